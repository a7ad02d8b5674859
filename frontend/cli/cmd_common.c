/* SPDX-License-Identifier: Apache-2.0 */
/* cmd_common.c: options, messages and model files, for every command.      */
#include <malloc.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "frontend/cli/cmd.h"
#include "ir/base/near.h"
#include "frontend/cli/options_text.h"
#include "ir/lex/lex.h"
#include "ir/base/files.h"
#include "ir/text/text.h"
#include "runtime/base/json.h"
#include "runtime/files/outfile.h"

/* Memory that one pass frees serves the next pass: for large models the system
   takes longer to clear pages than a pass takes to fill them. `ampc run` has no
   passes: the system takes back what a run frees. */
static void keep_freed_memory(void) {
    enum { KEPT = 1 << 30 };
    mallopt(M_MMAP_THRESHOLD, KEPT);
    mallopt(M_TRIM_THRESHOLD, KEPT);
}

void session_init(Session *s) {
    keep_freed_memory();
    *s = (Session){.arena = arena_new()};
    options_init(&s->opt, s->arena);
    s->opt.guard = file_guard_new();
    if (!s->opt.guard) out_of_memory();
}

int session_end(Session *s, Status status) {
    if (s->diag.text.data) fputs(s->diag.text.data, stderr);
    sb_free(&s->diag.text);
    file_guard_free(s->opt.guard);
    free(s->file);
    arena_free(s->arena);
    return (int)status;
}

static Status cmd_usage(Session *s, const char *what, const char *arg) {
    fail(&s->diag, (Loc){0}, "%s '%s' (see ampc --help)", what, arg);
    return ERR_USAGE;
}

/* ---- options of single commands ------------------------------------------ */

typedef enum OwnKind { OWN_FLAG, OWN_TEXT, OWN_FILE } OwnKind;

static const struct OwnRow {
    const char *command, *flag;
    OwnKind kind;
    size_t field; /* OWN_FLAG: a bool of OwnOptions; other kinds: a text */
} own_rows[] = {
#define OWN(command, flag, kind, field, value, preset, text)                   \
    {command, flag, OWN_##kind, offsetof(OwnOptions, field)},
#include "frontend/cli/options.def"
};

static const struct OwnRow *find_own(const char *command, const char *flag) {
    const struct OwnRow *r = own_rows;
    for (size_t i = 0; i < sizeof own_rows / sizeof *r; i++)
        if (!strcmp(r[i].command, command) && !strcmp(r[i].flag, flag))
            return &r[i];
    return NULL;
}

bool option_of_run(const char *command, const char *flag) {
    static const char *const rows[][2] = {
#define AS_RUN(command, flag) {command, flag},
#include "frontend/cli/options.def"
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        if (!strcmp(rows[i][0], command) && !strcmp(rows[i][1], flag))
            return true;
    return false;
}

Status session_own(Session *s, char **argv, int left, int *used) {
    const struct OwnRow *r = find_own(s->command, argv[0]);
    *used = 0;
    if (!r) return OK;
    void *field = (char *)&s->own + r->field;
    *used = r->kind == OWN_FLAG ? 1 : 2;
    if (*used > left) return cmd_usage(s, "a value is missing after", argv[0]);
    if (r->kind == OWN_FLAG) {
        *(bool *)field = true;
        return OK;
    }
    /* options in a text repeat the command line's words */
    const char **text = field;
    if (*text && *text != argv[1]) return cmd_usage(s, "given twice:", argv[0]);
    *text = argv[1];
    return OK;
}

static Status unknown_own(Session *s, const char *arg) {
    char text[NEAR_TEXT];
    Near near = near_to(arg);
    for (size_t i = 0; i < sizeof own_rows / sizeof *own_rows; i++)
        if (!strcmp(own_rows[i].command, s->command))
            near_offer(&near, own_rows[i].flag);
    if (!s->own_only) return options_unknown(&s->opt, &s->diag, arg, near);
    fail(&s->diag, (Loc){0}, "unknown option '%s'%s (see ampc --help)", arg,
         near_text(&near, text));
    return ERR_USAGE;
}

/* Applies one argument; *used: the number of words taken. */
static Status take_cmd_arg(Session *s, char **argv, int left,
                           const char **positional, int *used) {
    const char *arg = argv[0], *next = left > 1 ? argv[1] : NULL;
    *used = 1;
    if (arg[0] != '-' || !arg[1]) {
        if (*positional && !s->several)
            return cmd_usage(s, "unexpected argument", arg);
        *positional = arg;
        vec_push(s->arena, &s->files, arg);
        return OK;
    }
    TRY(session_own(s, argv, left, used));
    if (*used) return OK;
    bool took = false;
    *used = 1;
    s->compile_option = arg;
    if (s->own_only || !options_known(arg)) return unknown_own(s, arg);
    TRY(options_set(&s->opt, &s->diag, arg, next, &took));
    if (took) *used = 2;
    return OK;
}

Status session_args(Session *s, int argc, char **argv, const char *command,
                    const char **positional) {
    s->argc = argc;
    s->argv = argv;
    s->command = command;
    s->files.len = 0;
    for (int i = 1, used; i < argc; i += used)
        TRY(take_cmd_arg(s, argv + i, argc - i, positional, &used));
    if (!*positional) return cmd_usage(s, "a file is missing after", argv[0]);
    return OK;
}

Status import_model(Session *s, Diag *d, const char *path, Module **m) {
    return s->is_text
               ? import_amp(s->arena, d, path, s->model, s->model_bytes,
                            &s->opt, s->passes, m)
               : import_onnx(s->arena, d, path, (const uint8_t *)s->model,
                             s->model_bytes, &s->opt, m);
}

static Status load_onnx(Session *s, const char *path, Module **m) {
    const uint8_t *bytes = (const uint8_t *)s->file;
    TRY(onnx_unfold(s->arena, &s->diag, path, &s->opt, &bytes,
                    &s->model_bytes));
    if (s->opt.heads.len)
        TRY(onnx_replace_heads(s->arena, &s->diag, path, &s->opt, &bytes,
                               &s->model_bytes));
    s->model = (const char *)bytes;
    return import_sizes(s, path, m);
}

/* Applies the model's own options; the command line overrides them. */
static Status take_settings(Session *s, const Settings *given) {
    struct FileGuard *guard = s->opt.guard;
    const char *file = NULL;
    if (!given->len) return OK;
    options_init(&s->opt, s->arena);
    s->opt.guard = guard;
    for (int i = 0; i < given->len; i++) {
        const Setting *x = &given->data[i];
        Lexer lx = {.diag = &s->diag, .text = s->file, .n = s->model_bytes};
        Token at = lex_token_at(&lx, x->loc.line, x->loc.col);
        Status st = options_set_line(&s->opt, &s->diag, x);
        if (st != OK) lex_show(&lx, &at);
        if (st != OK) return st;
    }
    options_second_source(&s->opt);
    return session_args(s, s->argc, s->argv, s->command, &file);
}

/* model NAME = onnx("FILE"), relative to the text, whose blocks apply to
   that model. */
static Status load_import(Session *s, const char *path, Module **m) {
    static const TextOptions none = {0};
    Module *text;
    TRY(parse_model(s->arena, &s->diag, path, s->model, s->model_bytes, &none,
                    &text));
    Str file = file_beside(path, text->onnx);
    TRY(file_reads(&s->diag, s->opt.guard, file, "the model"));
    free(s->file);
    s->model = s->file = read_file(&s->diag, file, &s->model_bytes);
    if (!s->file) return ERR_USER;
    TRY(load_onnx(s, file, m));
    (*m)->name = text->name;
    (*m)->policy = text->policy;
    return OK;
}

/* The first axis of the first input is the batch.  What only predicts may have
   an empty input. */
static Status check_batch(Session *s, const char *path, const Module *m) {
    const Graph *g = module_graph(m, FORWARD);
    if (!options_train(&s->opt)) return OK;
    for (int i = 0; g && i < g->inputs.len; i++) {
        const Value *v = value_get(g, g->inputs.data[i]);
        const Type *t = type_get(v->type);
        if (!t->rank) continue;
        if (t->dim[0]) return OK;
        StrBuf sb = {0};
        sb_put_escaped(&sb, v->name);
        sb_puts(&sb, "' is ");
        sb_put_type(&sb, v->type);
        fail(&s->diag, (Loc){.file = intern(path)},
             "the batch is 0: input '%s; --dim NAME=N sets another one",
             sb.data);
        sb_free(&sb);
        return ERR_USER;
    }
    return OK;
}

/* Headers of checkpoints and ONNX files are UTF-8. */
static Status check_names(Session *s, const char *path, const Module *m) {
    for (int i = 0; i < m->vars.len; i++) {
        const char *name = m->vars.data[i].name;
        if (json_is_utf8(name, strlen(name))) continue;
        StrBuf sb = {0};
        sb_put_escaped(&sb, name);
        fail(&s->diag, (Loc){.file = intern(path)},
             "the variable name '%s' is not valid UTF-8, and files of weights "
             "need UTF-8: rename the variable in the model",
             sb.data);
        sb_free(&sb);
        return ERR_USER;
    }
    return OK;
}

static Status read_model(Session *s, const char *path, Module **m) {
    Module *blocks;
    s->model = s->file = read_file(&s->diag, path, &s->model_bytes);
    if (!s->file) return ERR_USER;
    if (!has_suffix(path, ".amp")) return load_onnx(s, path, m);
    text_blocks(s->arena, path, s->model, s->model_bytes, &blocks);
    TRY(take_settings(s, &blocks->settings));
    s->is_text = !blocks->onnx;
    if (!s->is_text) return load_import(s, path, m);
    return import_sizes(s, path, m);
}

Status load_model(Session *s, const char *path, Module **m) {
    TRY(read_model(s, path, m));
    TRY(check_batch(s, path, *m));
    return check_names(s, path, *m);
}
