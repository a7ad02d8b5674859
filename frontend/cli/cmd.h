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
        averaged, adapter, module, decode;
} OwnOptions;

/* Everything a command needs until it ends. */
typedef struct Session {
    Arena *arena;
    Diag diag;
    Options opt;
    char *file;        /* the bytes of the model's file, read once */
    const char *model; /* the model, or its copy with fresh heads
                          (--replace-head) */
    size_t model_bytes;
    bool is_text; /* options that do not apply to an ONNX model */
    int argc;     /* of session_args */
    char **argv;
    const char *command; /* as in options.def */
    OwnOptions own;
    const char *compile_option; /* the last option given; NULL: none */
    bool passes;                /* the text may have programs for passes that
                                   the user names */
    bool own_only;              /* the command takes no compile options */
    bool several;               /* the command takes several files: */
    VEC(const char *) files;
} Session;
void session_init(Session *s);
/* Prints the collected messages, frees all; returns the exit status. */
int session_end(Session *s, Status status);

/* Applies the command's own option argv[0], of `left` words, to s->own;
 *used: the number of words taken, 0 for another option. */
Status session_own(Session *s, char **argv, int left, int *used);
/* True if the command takes this option of `ampc run` (AS_RUN). */
bool option_of_run(const char *command, const char *flag);
/* Splits argv[1..] into compile options (applied to s->opt), options of that
   command, and one positional argument. */
Status session_args(Session *s, int argc, char **argv, const char *command,
                    const char **positional);

/* The model in s->model, with the dimensions of s->opt. */
Status import_model(Session *s, Diag *d, const char *path, Module **m);
/* An .onnx or .amp file to a module; the model's bytes, which an .amp file may
   import, stay in s->model.  Options in the file are applied, unless the
   command line sets them. */
Status load_model(Session *s, const char *path, Module **m);

/* ---- sizes.c ------------------------------------------------------------- */

/* The model for its own sizes, and as graphs FORWARD@SIZE for those of
   --batch-sizes and --dim NAME=N|N. */
Status import_sizes(Session *s, const char *path, Module **m);
/* The same model for batches of n; NULL: it has only one batch size. */
Module *load_batch(Session *s, const char *path, int64_t n);
/* Leaves out --pad for inputs that m does not have. */
void pads_of_inputs(Session *s, const Module *m);
/* Checks --pad, when m has its programs. */
Status check_pads(Session *s, const Module *m);

/* ---- cmd_compile.c, cmd_summary.c ---------------------------------------- */

/* Compiles m from its current stage on and describes the result
   (cmd_compile.c); s->model has the bytes of its file; `model` is the path
   of the file. */
Status compile_module(Session *s, Module *m, const char *model,
                      const char *out);
/* Describes the module (cmd_summary.c); m has its programs. */
void summary_put(const Module *m, const Options *o, bool json, StrBuf *sb);

#endif
