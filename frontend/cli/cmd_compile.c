/* SPDX-License-Identifier: Apache-2.0 */
/* cmd_compile.c: ampc MODEL -o OUT.so.                                     */
#include <signal.h>
#include <string.h>

#include "codegen/codegen.h"
#include "codegen/levels.h"
#include "frontend/cli/cmd.h"
#include "frontend/cli/cmd_measure.h"
#include "frontend/cli/options_text.h"
#include "frontend/cli/progress.h"
#include "frontend/page/page.h"
#include "frontend/report/report.h"
#include "ir/fn/fn.h"
#include "ir/base/files.h"
#include "passes/common/budget.h"
#include "runtime/ampc.h"

/* Reports inside a module, and for --report: each as text and as JSON. */
enum { SUMMARY, PARAMS, NODES, CASTS, KERNELS, MEMORY, NREPORT };
/* section with the cost, the options, and the adapters if there are any */
enum { COST = 2 * NREPORT, OPTIONS, ADAPTERS, NSECTION };

static const char *const report_names[NREPORT][2] = {
    {"txt:summary", "json:summary"}, {"txt:params", "json:params"},
    {"txt:nodes", "json:nodes"},     {"txt:casts", "json:casts"},
    {"txt:kernels", "json:kernels"}, {"txt:memory", "json:memory"},
};

typedef struct Compile {
    Session *s;
    Module *m;
    StrBuf reports[NREPORT][2]; /* [1]: JSON */
    StrBuf cost;
    EmitSection sections[NSECTION];
    OutFile report, onnx; /* for --report and --emit-onnx */
} Compile;

static void put_json(const Compile *c, StrBuf *sb) {
    StrBuf line = {0};
    report_summary(c->m, &line);
    sb_puts(sb, "{");
    sb_put_json_field(sb, "module", *c->m->name ? c->m->name : c->m->file);
    sb_puts(sb, ",\"version\":\"" AMPC_VERSION "\",\"said\":\"");
    for (int i = 0; i + 1 < c->s->opt.said.len; i += 2) {
        sb_puts(sb, i ? " " : "");
        sb_put_json(sb, c->s->opt.said.data[i]);
        sb_puts(sb, " ");
        sb_put_json(sb, c->s->opt.said.data[i + 1]);
    }
    sb_puts(sb, "\",");
    sb_put_json_field(sb, "text", line.data);
    for (int i = 0; i < NREPORT; i++)
        sb_printf(sb, ",\n\"%s\":%s", report_names[i][1] + strlen("json:"),
                  c->reports[i][1].data);
    sb_puts(sb, "}\n");
    sb_free(&line);
}

static void put_report(const Compile *c, const char *path, StrBuf *sb) {
    if (has_suffix(path, ".html")) {
        StrBuf json = {0};
        put_json(c, &json);
        page_put(page_compile, json.data, sb);
        sb_free(&json);
    } else if (has_suffix(path, ".json")) {
        put_json(c, sb);
    } else {
        report_summary(c->m, sb);
        for (int i = 0; i < NREPORT; i++)
            sb_printf(sb, "\n%s\n%s", report_names[i][0] + strlen("txt:"),
                      c->reports[i][0].data);
    }
}

/* Loops and registers of kernels are known when everything is compiled.  The
   report is complete before the module is made, and is named after the
   module. */
static Status report_compiled(void *ctx, const char *const *const notes[2],
                              const char *cost) {
    Compile *c = ctx;
    const char *path = c->s->opt.report;
    for (int json = 0; json < 2; json++)
        report_kernels(c->m, json, notes[json], c->s->opt.no_cuda,
                       &c->reports[KERNELS][json]);
    for (int i = 0; i < 2 * NREPORT; i++) {
        const StrBuf *r = &c->reports[i / 2][i % 2];
        c->sections[i] =
            (EmitSection){report_names[i / 2][i % 2], r->data, r->len};
    }
    sb_puts(&c->cost, cost);
    c->sections[COST] = (EmitSection){"cost", c->cost.data, c->cost.len};
    if (!path) return OK;
    StrBuf text = {0};
    put_report(c, path, &text);
    bool ok = outfile_write(&c->report, text.data, text.len) &&
              outfile_ready(&c->report);
    sb_free(&text);
    return ok ? OK : file_failed(&c->s->diag, path, &c->report);
}

/* Hashes a text regardless of its layout: without blanks, line ends and
 * comments. */
static uint64_t hash_words(const char *text, size_t n) {
    uint64_t hash = 1;
    bool quoted = false;
    for (size_t i = 0; i < n; i++) {
        char c = text[i];
        if (c == '"') quoted = !quoted;
        while (!quoted && c == '#' && i + 1 < n && text[i + 1] != '\n') i++;
        if (!quoted && (c == '#' || strchr(" \t\r\n", c))) continue;
        hash = hash_bytes(hash, &c, 1);
    }
    return hash;
}

static Status emit(Compile *c, const char *model, const char *out) {
    Session *s = c->s;
    StrBuf options = {0}, kept = {0}, words = {0}, said = {0}, adapters = {0};
    bool onnx = !s->is_text;
    EmitInput in = {.path = out,
                    .model_path = model,
                    .model_is_text = !onnx,
                    .sections = c->sections,
                    .nsection = c->m->adapters.len ? NSECTION : ADAPTERS,
                    .compiled = report_compiled,
                    .ctx = c};
    options_json(&s->opt, &options);
    options_words(&s->opt, &words);
    adapters_put(c->m, &adapters);
    c->sections[ADAPTERS] =
        (EmitSection){"adapters", adapters.data, adapters.len};
    c->sections[OPTIONS] =
        (EmitSection){"options", words.data ? words.data : "", words.len};
    in.options = options.data;
    if (onnx) ASSERT(onnx_skeleton(c->m, s->model, s->model_bytes, &kept));
    in.model_data = onnx ? kept.data : s->model;
    in.model_size = onnx ? kept.len : s->model_bytes;
    options_said(&s->opt,
                 onnx ? hash_bytes(1, in.model_data, in.model_size)
                      : hash_words(in.model_data, in.model_size),
                 &said);
    in.said = said.data;
    Status st = emit_so(c->m, &s->opt, &s->diag, &in);
    sb_free(&adapters);
    sb_free(&said);
    sb_free(&kept);
    sb_free(&words);
    sb_free(&options);
    return st;
}

static Status emit_with_report(Compile *c, const char *model, const char *out) {
    const char *path = c->s->opt.report;
    if (!path) return emit(c, model, out);
    Status st = OK;
    if (!outfile_open(&c->report, path, 0666, NULL, NULL))
        st = file_failed(&c->s->diag, path, &c->report);
    if (st == OK) st = emit(c, model, out);
    if (st == OK && !outfile_commit(&c->report))
        st = file_failed(&c->s->diag, path, &c->report);
    outfile_abort(&c->report);
    return st;
}

static Status claim_compile_files(Session *s, const char *model,
                                  const char *out) {
    Diag *d = &s->diag;
    FileGuard *g = s->opt.guard;
    const char *report = s->opt.report;
    TRY(file_reads(d, g, model, "the model"));
    TRY(isa_check(&s->opt, d));
    TRY(emit_object_check(&s->opt, d, out));
    TRY(emit_is_source(&s->opt) ? emit_source_check(&s->opt, d, out)
                                : file_writes(d, g, out, "-o"));
    if (s->opt.sidecar_weights)
        TRY(file_writes(d, g, weights_sidecar_path(s->arena, out),
                        "--weights sidecar"));
    TRY(file_writes(d, g, s->opt.emit_onnx, "--emit-onnx"));
    TRY(file_writes(d, g, report, "--report"));
    if (!report || has_suffix(report, ".html") || has_suffix(report, ".txt") ||
        has_suffix(report, ".json"))
        return OK;
    fail(d, (Loc){0}, "--report: '%s' does not end in .html, .txt, .json",
         report);
    return ERR_USAGE;
}

static void add_report(Compile *c, int which, ReportFn *fn) {
    for (int json = 0; json < 2; json++)
        fn(c->m, json, &c->reports[which][json]);
}

/* The program that predicts, in the form that all targets share. */
static Status emit_onnx(Compile *c) {
    Session *s = c->s;
    const char *path = s->opt.emit_onnx;
    if (!path) return OK;
    TRY(run_common(c->m, &s->diag, &s->opt, true));
    if (!outfile_open(&c->onnx, path, 0666, NULL, NULL))
        return file_failed(&s->diag, path, &c->onnx);
    return onnx_emit(c->m->arena, &s->diag, path, module_graph(c->m, "predict"),
                     NULL, NULL, &c->onnx);
}

static Status compile_reported(Compile *c, const char *model, const char *out) {
    Session *s = c->s;
    TRY(run_pipeline(c->m, &s->diag, &s->opt, STAGE_CAST, true));
    TRY(check_pads(s, c->m));
    add_report(c, PARAMS, report_params);
    add_report(c, NODES, report_nodes);
    for (int json = 0; json < 2; json++)
        summary_put(c->m, &s->opt, json, &c->reports[SUMMARY][json]);
    TRY(place_measured(s, model, c->m, true));
    TRY(emit_onnx(c));
    TRY(run_pipeline(c->m, &s->diag, &s->opt, STAGE_PLANNED, true));
    add_report(c, CASTS, report_casts);
    add_report(c, MEMORY, report_memory);
    TRY(emit_with_report(c, model, out));
    if (!s->opt.emit_onnx || outfile_commit(&c->onnx)) return OK;
    return file_failed(&s->diag, s->opt.emit_onnx, &c->onnx);
}

/* --freeze holds weights; the statistics of a batch normalisation are not
   weights. */
static void note_frozen_norms(Session *s, const Module *m) {
    const Graph *g = module_graph(m, FORWARD);
    const char *first = NULL;
    int n = 0;
    Attr training;
    bool asked = false;
    for (int i = 0; i < s->opt.train_rules.len; i++)
        asked |= !s->opt.train_rules.data[i].train;
    for (int i = 0; g && asked && i < g->order.len; i++) {
        const Node *b = node_at(g, i);
        if (!is_call(b, "batch_norm") || b->nin < 2 ||
            value_get(g, b->in[1])->kind != VK_VAR ||
            !call_attr(g, b, "training", &training) || !training.u.i)
            continue;
        const Var *scale = value_var(g, b->in[1]);
        if (scale->kind != VAR_FROZEN) continue;
        first = n++ ? first : scale->name;
    }
    if (n)
        fail_note(&s->diag, (Loc){.file = m->file},
                  "--freeze: %d batch normalisation%s ('%s'%s) still %s "
                  "statistics of the batch and %s running ones; --batchnorm "
                  "frozen:GLOB holds them",
                  n, n > 1 ? "s" : "", first, n > 1 ? ", .." : "",
                  n > 1 ? "use" : "uses", n > 1 ? "move their" : "moves its");
}

/* Prints the predicted errors: those that the options limit, and the other
   one. */
static void put_errors(const Options *o, StrBuf *sb) {
    static const char *const of[] = {"loss", "gradient"};
    const Errors *e = o->errors;
    if (!e || !e->placed) return;
    for (int k = 0; k < NUM_ERRORS; k++) {
        sb_printf(sb, "%s the %s %.1e", k ? ", of" : "predicted error of",
                  of[k], e->predicted[k]);
        if (o->max_error[k] > 0)
            sb_printf(sb, " (budget %.1e)", o->max_error[k]);
    }
    if (e->part)
        sb_printf(sb, ", measured on a batch of %lld", (long long)e->part);
    sb_printf(sb,
              "; %d of %d products in f32; %.2f MB of values and operands a "
              "step, at most %.1f %% more than the best choice\n",
              e->wide, e->products, (double)e->bytes / 1e6,
              e->bound > 0 ? 100 * ((double)e->bytes / e->bound - 1) : 0);
}

Status compile_module(Session *s, Module *m, const char *model,
                      const char *out) {
    Compile c = {.s = s, .m = m};
    Status st =
        cuda_targets(&s->opt, &s->diag, emit_is_object(out) ? out : NULL);
    if (st == OK) st = compile_reported(&c, model, out);
    progress_end();
    outfile_abort(&c.onnx);
    StrBuf summary = {0};
    if (st == OK) report_summary(c.m, &summary);
    if (st == OK) put_errors(&s->opt, &summary);
    if (summary.len) fputs(summary.data, stderr);
    sb_free(&summary);
    for (int i = 0; i < 2 * NREPORT; i++) sb_free(&c.reports[i / 2][i % 2]);
    sb_free(&c.cost);
    return st;
}

static Status compile(Session *s, const char *model, const char *out) {
    Module *m;
    TRY(claim_compile_files(s, model, out));
    progress_begin();
    Status st = load_model(s, model, &m);
    if (st == OK) note_frozen_norms(s, m);
    if (st == OK) st = compile_module(s, m, model, out);
    progress_end();
    return st;
}

int cmd_compile(int argc, char **argv) {
    Session s;
    const char *model = NULL;
    signal(SIGPIPE, SIG_IGN); /* the reader of our messages may close the
                                 pipe */
    session_init(&s);
    Status st = session_args(&s, argc, argv, "ampc", &model);
    if (st == OK && !s.own.out) {
        fail(&s.diag, (Loc){0}, "-o OUT.so is missing%s (see ampc --help)",
             has_suffix(model, ".so")
                 ? "; ampc run and ampc inspect take a module"
                 : "");
        st = ERR_USAGE;
    }
    if (st == OK) st = compile(&s, model, s.own.out);
    return session_end(&s, st);
}
