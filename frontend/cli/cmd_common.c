/* SPDX-License-Identifier: Apache-2.0 */
/* cmd_common.c: options, messages and model files, for every command.      */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "frontend/cli/cmd.h"
#include "ir/base/near.h"
#include "frontend/cli/options_text.h"
#include "ir/text/lex.h"
#include "ir/base/files.h"
#include "runtime/files/outfile.h"

void session_init(Session *s) {
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

static const OwnOption *find_own(const OwnOption *own, const char *name) {
    for (; own && own->name; own++)
        if (!strcmp(own->name, name)) return own;
    return NULL;
}

static Status usage(Session *s, const char *what, const char *arg) {
    fail(&s->diag, (Loc){0}, "%s '%s' (see ampc --help)", what, arg);
    return ERR_USAGE;
}

static Status unknown_own(Session *s, const OwnOption *own, const char *arg) {
    char text[NEAR_TEXT];
    Near near = near_to(arg);
    for (; own && own->name; own++) near_offer(&near, own->name);
    fail(&s->diag, (Loc){0}, "unknown option '%s'%s (see ampc --help)", arg,
         near_text(&near, text));
    return ERR_USAGE;
}

/* One argument; returns how many words it took through *used. */
static Status take_arg(Session *s, char **argv, int left, const OwnOption *own,
                       const char **positional, int *used) {
    const char *arg = argv[0], *next = left > 1 ? argv[1] : NULL;
    *used = 1;
    if (arg[0] != '-' || !arg[1]) {
        if (*positional) return usage(s, "unexpected argument", arg);
        *positional = arg;
        return OK;
    }
    const OwnOption *o = find_own(own, arg);
    if (o && o->flag) {
        *o->flag = true;
        return OK;
    }
    if (o) {
        if (!next) return usage(s, "a value is missing after", arg);
        /* a text's own options bring the same words a second time */
        if (*o->value && *o->value != next)
            return usage(s, "given twice:", arg);
        *o->value = next;
        *used = 2;
        return OK;
    }
    bool took = false;
    s->compile_option = arg;
    if (s->own_only) return unknown_own(s, own, arg);
    TRY(options_set(&s->opt, &s->diag, arg, next, &took));
    if (took) *used = 2;
    return OK;
}

Status session_args(Session *s, int argc, char **argv, const OwnOption *own,
                    const char **positional) {
    s->argc = argc;
    s->argv = argv;
    s->own = own;
    for (int i = 1, used; i < argc; i += used)
        TRY(take_arg(s, argv + i, argc - i, own, positional, &used));
    if (!*positional) return usage(s, "a file is missing after", argv[0]);
    return OK;
}

bool has_suffix(const char *s, const char *suffix) {
    size_t n = strlen(s), m = strlen(suffix);
    return n >= m && !strcmp(s + n - m, suffix);
}

static Status import(Session *s, Diag *d, const char *path, Module **m) {
    return s->is_text
               ? import_amp(s->arena, d, path, s->model, s->model_bytes,
                            &s->opt, s->passes, m)
               : import_onnx(s->arena, d, path, (const uint8_t *)s->model,
                             s->model_bytes, &s->opt, m);
}

/* The batch that the model is for; 0: no input has one. */
static int64_t batch_of(const Graph *g) {
    for (int i = 0; i < g->inputs.len; i++) {
        const Type *t = value_type(g, g->inputs.data[i]);
        if (t->rank) return t->dim[0];
    }
    return 0;
}

/* The model for batches of n, beside that for its own.  What is said of it has
   been said of that one, if it is no error. */
static Status add_batch(Session *s, const char *path, int64_t n, Module *m) {
    Module *other;
    Diag d = {0};
    s->opt.batch = n;
    Status st = import(s, &d, path, &other);
    s->opt.batch = 0;
    if (st != OK) sb_puts(&s->diag.text, d.text.data);
    sb_free(&d.text);
    TRY(st);
    Graph *g = module_graph(other, FORWARD);
    const Var *v = graph_move(g, m, name_at_batch(intern(FORWARD), n));
    if (!v) return OK;
    return fail(&s->diag, (Loc){.file = intern(path)},
                "--batch-sizes %" PRId64 ": '%s' is of another shape there", n,
                v->name);
}

static Status import_sizes(Session *s, const char *path, Module **m) {
    TRY(import(s, &s->diag, path, m));
    if (!s->opt.batch_sizes.len) return OK;
    const Graph *g = module_graph(*m, FORWARD);
    if (!g)
        return fail(&s->diag, (Loc){.file = intern(path)},
                    "--batch-sizes: no graph of the file is a model, called "
                    "'%s'",
                    FORWARD);
    int64_t own = batch_of(g);
    for (int i = 0; i < s->opt.batch_sizes.len; i++)
        if (s->opt.batch_sizes.data[i] != own)
            TRY(add_batch(s, path, s->opt.batch_sizes.data[i], *m));
    return OK;
}

static Status load_onnx(Session *s, const char *path, Module **m) {
    const uint8_t *bytes = (const uint8_t *)s->file;
    if (s->opt.heads.len)
        TRY(onnx_replace_heads(s->arena, &s->diag, path, &s->opt, &bytes,
                               &s->model_bytes));
    s->model = (const char *)bytes;
    return import_sizes(s, path, m);
}

/* A model's own options, and over them those of the command line. */
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
    return session_args(s, s->argc, s->argv, s->own, &file);
}

/* model NAME = onnx("FILE"), beside the text: its blocks are of that. */
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

Status load_model(Session *s, const char *path, Module **m) {
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
