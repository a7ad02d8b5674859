/* SPDX-License-Identifier: Apache-2.0 */
/* cmd_export.c: ampc export OUT.so [--load CKPT] -o trained.onnx|--module SO.

   For an ONNX model the module keeps the user's graph without its tensors,
   which are filled in. For an .amp text the module keeps the IR of its
   predictions, which is written in ONNX's ops, in fp32. --module continues
   from the IR in which all dtypes are decided, with only the program that
   predicts. The module is read, never loaded as code. */
#include <string.h>

#include "codegen/codegen.h"
#include "frontend/cli/cmd.h"
#include "frontend/cli/export_weights.h"
#include "frontend/cli/kept.h"
#include "frontend/cli/options_text.h"
#include "frontend/cli/progress.h"
#include "ir/base/files.h"
#include "ir/text/text.h"
#include "passes/common/rows.h"
#include "passes/common/decode.h"
#include "passes/common/frozen.h"

/* ---- as ONNX ------------------------------------------------------------- */

static Status option(Session *s, const char *name, const char *value) {
    bool used;
    return options_set(&s->opt, &s->diag, name, value, &used);
}

/* The program that predicts, in fp32 and ONNX's ops. */
static Status predictions(Weights *w, Module **m) {
    static const ProgramKind kinds[] = {PROGRAM_PREDICT};
    Session *s = w->s;
    TRY(kept_options(s, w->module, &s->opt));
    options_second_source(&s->opt);
    TRY(option(s, "--precision", "fp32"));
    TRY(option(s, "--loss-scale", "none"));
    for (int k = 0; k < NUM_ERRORS; k++) s->opt.max_error[k] = 0;
    TRY(kept_ir(s, w->module, "policy", m));
    if (module_graph(*m, "predict"))
        frozen_widen(module_graph(*m, "predict"), s->arena);
    TRY(kept_programs(s, kinds, 1, m));
    if (!module_graph(*m, "predict"))
        return fail(&s->diag, (Loc){.file = w->module->path},
                    "it cannot predict");
    return run_between(*m, &s->diag, &s->opt, "policy", "buckets");
}

static Status put_onnx(Weights *w, const char *path, OutFile *out) {
    Session *s = w->s;
    char *skeleton;
    size_t n;
    Module *m;
    TRY(weights_text(w, "model", &skeleton, &n));
    if (skeleton)
        return onnx_export(s->arena, &s->diag, path, skeleton, n, weights_of, w,
                           out);
    TRY(predictions(w, &m));
    w->m = m;
    return onnx_emit(s->arena, &s->diag, path, module_graph(m, "predict"),
                     weights_of, w, out);
}

static Status write_onnx(Weights *w, const char *path) {
    OutFile o = {0};
    if (!outfile_open(&o, path, 0666, NULL, NULL))
        return file_failed(&w->s->diag, path, &o);
    Status st = put_onnx(w, path, &o);
    st = weights_close(w, st);
    if (st == OK && !outfile_commit(&o))
        st = file_failed(&w->s->diag, path, &o);
    outfile_abort(&o);
    return st;
}

/* ---- as a module --------------------------------------------------------- */

static Status set_weights(Weights *w, Module *m) {
    w->m = m;
    for (int i = 0; i < m->vars.len; i++) {
        Var *v = &m->vars.data[i];
        if (v->kind > VAR_BUFFER) continue;
        Tensor *t = tensor_new(w->s->arena, v->type);
        TRY(weights_of(w, v->name, type_get(v->type), t->data));
        v->init = t;
        v->init_text = NULL;
        v->draw = (Draw){.kind = DRAW_NONE};
    }
    return OK;
}

/* Passes on the text of pass policy and of the model, for the next export. */
static Status keep_sources(Weights *w, Module *m) {
    Session *s = w->s;
    char *text;
    size_t n;
    TRY(weights_text(w, "ir:policy", &text, &n));
    if (text)
        vec_push(s->arena, &m->texts, (StageText){intern("policy"), text, n});
    TRY(weights_text(w, "model", &text, &s->model_bytes));
    /* the user's graph alone does not compute adapters */
    s->is_text = !text || w->adapters.n;
    if (s->is_text) TRY(weights_text(w, "model.amp", &text, &s->model_bytes));
    s->model = text;
    return OK;
}

/* The programs of the IR of pass `pass` that a module for predictions has. */
static Status programs_of(Weights *w, const char *pass, Module **m) {
    static const ProgramKind kinds[] = {PROGRAM_PREDICT, PROGRAM_REFRESH};
    Session *s = w->s;
    TRY(kept_options(s, w->module, &s->opt));
    s->opt.accumulate = 1;
    s->opt.sidecar_weights = false;
    for (int k = 0; k < NUM_ERRORS; k++) s->opt.max_error[k] = 0;
    TRY(kept_ir(s, w->module, pass, m));
    TRY(kept_programs(s, kinds, 2, m));
    for (int i = 0; i < (*m)->graphs.len; i++) /* the text does not tell */
        rows_mark_outputs((*m)->graphs.data[i], s->arena);
    return module_graph(*m, "predict")
               ? set_weights(w, *m)
               : fail(&s->diag, (Loc){.file = w->module->path},
                      "it cannot predict");
}

static Status compile_predictions(Weights *w, const char *out) {
    Session *s = w->s;
    Module *m;
    TRY(programs_of(w, "place", &m));
    pads_of_inputs(s, m);
    TRY(run_between(m, &s->diag, &s->opt, "remat", "remat"));
    TRY(keep_sources(w, m));
    return compile_module(s, m, w->module->path, out);
}

/* ---- as a module for one token at a time --------------------------------- */

/* Keeps the program with the smallest batch, as program predict. */
static void smallest_batch(Module *m) {
    Graph *best = module_graph(m, "predict");
    for (int i = 0; i < m->graphs.len; i++) {
        Graph *g = m->graphs.data[i];
        int64_t batch = size_batch(g->size);
        if (g->program == PROGRAM_PREDICT && batch && !size_has_dims(g->size) &&
            batch < graph_samples(best))
            best = g;
    }
    m->graphs.data[0] = best;
    m->graphs.len = 1;
    best->name = intern("predict");
    best->size = intern("");
}

static Status compile_decode(Weights *w, const char *out) {
    Session *s = w->s;
    Module *m;
    TRY(programs_of(w, "policy", &m));
    smallest_batch(m);
    PassCtx cx = {arena_new(), &s->diag, &s->opt};
    Status st = decode_program(m->graphs.data[0], &cx);
    arena_free(cx.scratch);
    TRY(st);
    options_second_source(&s->opt);
    TRY(option(s, "--loss", "none"));
    s->opt.batch_sizes.len = s->opt.dim_sizes.len = s->opt.pads.len = 0;
    TRY(run_between(m, &s->diag, &s->opt, "checks", "remat"));
    StrBuf text = {0};
    print_module(m, &text);
    s->model = arena_dup(s->arena, text.data, text.len + 1);
    s->model_bytes = text.len;
    s->is_text = true;
    sb_free(&text);
    return compile_module(s, m, w->module->path, out);
}

static Status write_module(Weights *w, const char *out) {
    progress_begin();
    Status st =
        w->s->own.decode ? compile_decode(w, out) : compile_predictions(w, out);
    progress_end();
    return weights_close(w, st);
}

/* ---- the command --------------------------------------------------------- */

static Status export_from(Session *s, const SectionFile *f, const char *load,
                          const char *out, bool module) {
    Weights w = {.s = s, .module = f, .averaged = s->own.averaged};
    Status st = weights_open(&w, load);
    if (st == OK && s->own.adapter) st = weights_adapters(&w, out);
    if (st != OK || s->own.adapter) return weights_close(&w, st);
    return module ? write_module(&w, out) : write_onnx(&w, out);
}

int cmd_export(int argc, char **argv) {
    Session s;
    SectionFile f;
    const char *path = NULL;
    session_init(&s);
    s.own_only = true;
    Status st = session_args(&s, argc, argv, "export", &path);
    const char *load = s.own.load, *out = s.own.out;
    bool module = s.own.module;
    if (st == OK && !out) {
        fail(&s.diag, (Loc){0}, "-o %s is missing (see ampc export --help)",
             module ? "OUT.so" : "MODEL.onnx");
        st = ERR_USAGE;
    }
    if (st == OK && module && s.own.adapter) {
        fail(&s.diag, (Loc){0},
             "--adapter and --module: one file is written at a time");
        st = ERR_USAGE;
    }
    if (st == OK && s.own.decode && !module) {
        fail(&s.diag, (Loc){0}, "--decode needs --module");
        st = ERR_USAGE;
    }
    FileGuard *g = s.opt.guard;
    if (st == OK) st = file_reads(&s.diag, g, path, "the module");
    if (st == OK) st = file_reads(&s.diag, g, load, "--load");
    if (st == OK && !s.own.adapter) st = file_writes(&s.diag, g, out, "-o");
    if (st == OK) st = sections_open(s.arena, &s.diag, path, &f);
    if (st == OK) {
        if (!load)
            fprintf(stderr,
                    "no --load CKPT: with the weights inside the module, which "
                    "are those that training begins with\n");
        st = export_from(&s, &f, load, out, module);
        sections_close(&f);
    }
    return session_end(&s, st);
}
