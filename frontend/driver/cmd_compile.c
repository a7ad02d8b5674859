/* cmd_compile.c: ampc MODEL -o OUT.so.                                     */
#include <signal.h>

#include "codegen/codegen.h"
#include "frontend/driver/cmd.h"
#include "frontend/driver/options_text.h"
#include "passes/files.h"

typedef struct Report {
    const char *name; /* section: "txt:casts", "json:casts" */
    StrBuf text;
} Report;

enum { KERNELS = 4, SUMMARY = 8, COST = 10, NREPORT = 11 };

static void add_report(Report *r, const char *name, bool json, ReportFn *fn,
                       const Module *m) {
    r->name = name;
    fn(m, json, &r->text);
}

typedef struct Compile {
    Session *s;
    Module *m;
    Report *reports;
    EmitSection sections[NREPORT];
} Compile;

static void set_sections(Compile *c) {
    for (int i = 0; i < NREPORT; i++)
        c->sections[i] =
            (EmitSection){c->reports[i].name, c->reports[i].text.data,
                          c->reports[i].text.len};
}

/* Loops and registers of kernels are known when everything is compiled. */
static void report_compiled(void *ctx, const char *const *const notes[2],
                            const char *cost) {
    Compile *c = ctx;
    sb_puts(&c->reports[COST].text, cost);
    for (int json = 0; json < 2; json++)
        report_kernels(c->m, json, notes[json], c->s->opt.no_cuda,
                       &c->reports[KERNELS + json].text);
    set_sections(c);
}

static Status emit(Compile *c, const char *model, const char *out) {
    Session *s = c->s;
    StrBuf options = {0}, kept = {0};
    bool onnx = !has_suffix(model, ".amp");
    EmitInput in = {.path = out,
                    .model_path = model,
                    .model_is_text = !onnx,
                    .sections = c->sections,
                    .nsection = NREPORT,
                    .compiled = report_compiled,
                    .ctx = c};
    options_json(&s->opt, &options);
    in.options = options.data;
    if (onnx) ASSERT(onnx_skeleton(c->m, s->model, s->model_bytes, &kept));
    in.model_data = onnx ? kept.data : s->model;
    in.model_size = onnx ? kept.len : s->model_bytes;
    Status st = emit_so(c->m, &s->opt, &s->diag, &in);
    sb_free(&kept);
    sb_free(&options);
    return st;
}

/* The report is whole before the module is made, and named after it. */
static Status emit_with_report(Compile *c, const char *model, const char *out) {
    const char *path = c->s->opt.report;
    if (!path) return emit(c, model, out);
    const StrBuf *text = &c->reports[has_suffix(path, ".json")].text;
    OutFile o;
    bool ok = outfile_open(&o, path, 0666, NULL, NULL) &&
              outfile_write(&o, text->data, text->len) && outfile_ready(&o);
    Status st = ok ? emit(c, model, out) : file_failed(&c->s->diag, path, &o);
    if (st == OK && !outfile_commit(&o))
        st = file_failed(&c->s->diag, path, &o);
    outfile_abort(&o);
    return st;
}

static Status claim(Session *s, const char *path, const char *role) {
    char why[160];
    if (!path || file_guard_claim(s->opt.guard, path, role, why)) return OK;
    return fail(&s->diag, (Loc){.file = intern(path)}, "%s", why);
}

/* What is written must not be what is read, nor two files in one. */
static Status claim_files(Session *s, const char *model, const char *out) {
    char why[160];
    if (!file_guard_input(s->opt.guard, model, "the model", why))
        return fail(&s->diag, (Loc){.file = intern(model)}, "%s", why);
    TRY(claim(s, out, "-o"));
    if (s->opt.sidecar_weights)
        TRY(claim(s, weights_sidecar_path(s->arena, out), "--weights sidecar"));
    return claim(s, s->opt.report, "--report");
}

static void print_summary(const Module *m) {
    StrBuf line = {0};
    report_summary(m, &line);
    if (line.len) fputs(line.data, stderr);
    sb_free(&line);
}

static Status compile(Session *s, const char *model, const char *out) {
    Report r[NREPORT] = {[KERNELS] = {.name = "txt:kernels"},
                         [KERNELS + 1] = {.name = "json:kernels"},
                         [COST] = {.name = "cost"}};
    Compile c = {.s = s, .reports = r};
    TRY(claim_files(s, model, out));
    TRY(cuda_targets(&s->opt, &s->diag));
    TRY(load_model(s, model, &c.m));
    TRY(run_pipeline(c.m, &s->diag, &s->opt, STAGE_CAST, true));
    add_report(&r[2], "txt:params", false, report_params, c.m);
    add_report(&r[3], "json:params", true, report_params, c.m);
    for (int json = 0; json < 2; json++) {
        r[SUMMARY + json].name = json ? "json:summary" : "txt:summary";
        summary_put(c.m, &s->opt, json, &r[SUMMARY + json].text);
    }
    TRY(run_pipeline(c.m, &s->diag, &s->opt, STAGE_PLANNED, true));
    add_report(&r[0], "txt:casts", false, report_casts, c.m);
    add_report(&r[1], "json:casts", true, report_casts, c.m);
    add_report(&r[6], "txt:memory", false, report_memory, c.m);
    add_report(&r[7], "json:memory", true, report_memory, c.m);
    Status st = emit_with_report(&c, model, out);
    if (st == OK) print_summary(c.m);
    for (int i = 0; i < NREPORT; i++) sb_free(&r[i].text);
    return st;
}

int cmd_compile(int argc, char **argv) {
    Session s;
    const char *model = NULL, *out = NULL;
    const OwnOption own[] = {{"-o", &out, NULL}, {0}};
    signal(SIGPIPE, SIG_IGN); /* a reader of our messages may go away */
    session_init(&s);
    Status st = session_args(&s, argc, argv, own, &model);
    if (st == OK && !out) {
        fail(&s.diag, (Loc){0}, "-o OUT.so is missing (see ampc --help)");
        st = ERR_USAGE;
    }
    if (st == OK) st = compile(&s, model, out);
    return session_end(&s, st);
}
