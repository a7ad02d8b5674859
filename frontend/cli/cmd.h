/* SPDX-License-Identifier: Apache-2.0 */
/* cmd.h: the commands of `ampc`, one file each; main.c has their table.    */
#ifndef AMPC_FRONTEND_DRIVER_CMD_H
#define AMPC_FRONTEND_DRIVER_CMD_H

#include "frontend/frontend.h"
#include "passes/passes.h"

/* argv[0] is the command's name; the result is the exit status. */
typedef int Command(int argc, char **argv);
Command cmd_compile, cmd_run, cmd_inspect, cmd_check, cmd_opt, cmd_fmt,
    cmd_export, cmd_audit, cmd_bisect, cmd_data, cmd_list_ops,
    cmd_list_optimizers, cmd_manual;

/* ---- shared by the commands (cmd_common.c) ------------------------------- */

/* Values of a command's own options (rows OWN of options.def). */
typedef struct OwnOptions {
    const char *out, *load, *ir, *passes, *scaling, *link, *step_ms;
    const char *batches, *policy, *objective, *steps, *tolerance;
    bool casts, kernels, memory, params, nodes, json, cuda, roofline, expand,
        averaged, adapter, module;
} OwnOptions;

/* Everything a command needs until it ends. */
typedef struct Session {
    Arena *arena;
    Diag diag;
    Options opt;
    char *file;        /* the bytes of the model's file, read once */
    const char *model; /* these, or with fresh heads (--replace-head) */
    size_t model_bytes;
    bool is_text; /* they do not belong to an ONNX model */
    int argc;     /* of session_args */
    char **argv;
    const char *command; /* as options.def has it */
    OwnOptions own;
    const char *compile_option; /* the last of them; NULL: none was given */
    bool passes;                /* a text is for passes that the user names */
    bool own_only; /* compile options are unknown to this command */
    bool several;  /* the command takes several files: */
    VEC(const char *) files;
} Session;
void session_init(Session *s);
/* Prints the collected messages, frees all; returns the exit status. */
int session_end(Session *s, Status status);

/* The command's own option argv[0] of `left` words, to s->own; *used: how many
   of them it took, 0: it is none. */
Status session_own(Session *s, char **argv, int left, int *used);
/* True if the option of `ampc run` is one of the command, too (AS_RUN). */
bool option_of_run(const char *command, const char *flag);
/* Splits argv[1..] into compile options (applied to s->opt), options of that
   command, and one positional argument. */
Status session_args(Session *s, int argc, char **argv, const char *command,
                    const char **positional);

/* An .onnx or .amp file to a module; the model's bytes, which an .amp file may
   import, stay in s->model.  What the file says of options is done, but for
   those of the command line. */
Status load_model(Session *s, const char *path, Module **m);
/* The same model for batches of n; NULL: it has only one. */
Module *load_batch(Session *s, const char *path, int64_t n);
/* Compiles m, whose file's bytes are s->model, from where it is on, and says
   what it has become (cmd_compile.c); `model` is the path of the file. */
Status compile_module(Session *s, Module *m, const char *model,
                      const char *out);
/* Describes the module (cmd_summary.c); m has its programs. */
void summary_put(const Module *m, const Options *o, bool json, StrBuf *sb);

#endif
