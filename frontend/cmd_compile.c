/* cmd_compile.c: ampc MODEL -o OUT.so, and ampc check MODEL.               */
#include <stdlib.h>
#include <string.h>

#include "codegen/codegen.h"
#include "frontend/cmd.h"

typedef struct Report {
    const char *name; /* section: "txt:casts", "json:casts" */
    StrBuf text;
} Report;

enum { NREPORT = 8 };

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

static Status emit(Session *s, Module *m, const char *model, const char *out,
                   Report *reports) {
    EmitSection sections[NREPORT];
    for (int i = 0; i < NREPORT; i++)
        sections[i] = (EmitSection){reports[i].name, reports[i].text.data,
                                    reports[i].text.len};
    EmitInput in = {.path = out,
                    .model_path = model,
                    .sections = sections,
                    .nsection = NREPORT};
    in.model_data = read_file(model, &in.model_size);
    Status st = emit_so(m, &s->opt, &s->diag, &in);
    free((void *)in.model_data);
    if (st == OK && s->opt.report)
        st = write_text(s, s->opt.report,
                        &reports[has_suffix(s->opt.report, ".json")].text);
    return st;
}

static Status compile(Session *s, const char *model, const char *out) {
    Report r[NREPORT] = {0};
    Module *m;
    TRY(load_model(s, model, &m));
    add_report(&r[2], "txt:params", false, report_params, m);
    add_report(&r[3], "json:params", true, report_params, m);
    TRY(run_passes(m, &s->diag, &s->opt, pipeline_front, true));
    add_report(&r[0], "txt:casts", false, report_casts, m);
    add_report(&r[1], "json:casts", true, report_casts, m);
    TRY(run_passes(m, &s->diag, &s->opt, pipeline_back, true));
    add_report(&r[4], "txt:kernels", false, report_kernels, m);
    add_report(&r[5], "json:kernels", true, report_kernels, m);
    add_report(&r[6], "txt:memory", false, report_memory, m);
    add_report(&r[7], "json:memory", true, report_memory, m);
    Status st = emit(s, m, model, out, r);
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

/* Everything up to the memory plan, which is all that can refuse a model. */
static Status check(Session *s, const char *model) {
    Module *m;
    TRY(load_model(s, model, &m));
    TRY(run_passes(m, &s->diag, &s->opt, pipeline_front, false));
    TRY(run_passes(m, &s->diag, &s->opt, pipeline_back, false));
    printf("%s: can be compiled\n", model);
    return OK;
}

int cmd_check(int argc, char **argv) {
    Session s;
    const char *model = NULL;
    session_init(&s);
    Status st = session_args(&s, argc, argv, NULL, &model);
    if (st == OK) st = check(&s, model);
    return session_end(&s, st);
}
