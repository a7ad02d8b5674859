/* cmd_compile.c: ampc MODEL -o OUT.so.                                     */
#include <stdlib.h>
#include <string.h>

#include "codegen/codegen.h"
#include "frontend/driver/cmd.h"
#include "frontend/driver/options_text.h"

typedef struct Report {
    const char *name; /* section: "txt:casts", "json:casts" */
    StrBuf text;
} Report;

enum { KERNELS = 4, NREPORT = 8 };

static void add_report(Report *r, const char *name, bool json, ReportFn *fn,
                       const Module *m) {
    r->name = name;
    fn(m, json, &r->text);
}

static Status write_text(Session *s, const char *path, const StrBuf *text) {
    FILE *f = fopen(path, "w");
    bool ok = f && (!text->len || fwrite(text->data, 1, text->len, f));
    ok = f && fclose(f) == 0 && ok;
    return ok ? OK
              : fail(&s->diag, (Loc){.file = intern(path)},
                     "cannot write the report");
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

/* Registers of GPU kernels are known when everything is compiled. */
static void report_compiled(void *ctx, const char *const *const notes[2]) {
    Compile *c = ctx;
    for (int json = 0; json < 2; json++)
        report_kernels_cuda(c->m, json, notes[json], c->s->opt.no_cuda,
                            &c->reports[KERNELS + json].text);
    set_sections(c);
}

static Status emit(Compile *c, const char *model, const char *out) {
    Session *s = c->s;
    EmitInput in = {.path = out,
                    .model_path = model,
                    .sections = c->sections,
                    .nsection = NREPORT,
                    .compiled = report_compiled,
                    .ctx = c};
    StrBuf options = {0};
    options_json(&s->opt, &options);
    in.options = options.data;
    in.model_data = read_file(model, &in.model_size);
    Status st = emit_so(c->m, &s->opt, &s->diag, &in);
    free((void *)in.model_data);
    sb_free(&options);
    if (st == OK && s->opt.report)
        st = write_text(s, s->opt.report,
                        &c->reports[has_suffix(s->opt.report, ".json")].text);
    return st;
}

static Status compile(Session *s, const char *model, const char *out) {
    Report r[NREPORT] = {[KERNELS] = {.name = "txt:kernels"},
                         [KERNELS + 1] = {.name = "json:kernels"}};
    Compile c = {.s = s, .reports = r};
    TRY(cuda_targets(&s->opt, &s->diag));
    TRY(load_model(s, model, &c.m));
    add_report(&r[2], "txt:params", false, report_params, c.m);
    add_report(&r[3], "json:params", true, report_params, c.m);
    TRY(run_pipeline(c.m, &s->diag, &s->opt, STAGE_CAST, true));
    add_report(&r[0], "txt:casts", false, report_casts, c.m);
    add_report(&r[1], "json:casts", true, report_casts, c.m);
    TRY(run_pipeline(c.m, &s->diag, &s->opt, STAGE_PLANNED, true));
    add_report(&r[6], "txt:memory", false, report_memory, c.m);
    add_report(&r[7], "json:memory", true, report_memory, c.m);
    Status st = emit(&c, model, out);
    for (int i = 0; i < NREPORT; i++) sb_free(&r[i].text);
    return st;
}

int cmd_compile(int argc, char **argv) {
    Session s;
    const char *model = NULL, *out = NULL;
    const OwnOption own[] = {{"-o", &out, NULL}, {0}};
    session_init(&s);
    Status st = session_args(&s, argc, argv, own, &model);
    if (st == OK && !out) {
        fail(&s.diag, (Loc){0}, "-o OUT.so is missing (see ampc --help)");
        st = ERR_USAGE;
    }
    if (st == OK) st = compile(&s, model, out);
    return session_end(&s, st);
}
