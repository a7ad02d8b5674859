/* SPDX-License-Identifier: Apache-2.0 */
/* cmd_inspect.c: ampc inspect OUT.so|MODEL.

   A module carries its reports and the IR after every pass as sections; a
   model is compiled up to where the question can be answered.              */
#define _POSIX_C_SOURCE 200809L
#include <string.h>

#include "codegen/codegen.h"
#include "codegen/section.h"
#include "frontend/cli/cmd.h"
#include "frontend/cli/cmd_measure.h"
#include "frontend/report/report.h"
#include "codegen/cost/roofline.h"
#include "codegen/cost/scaling.h"
#include "ir/base/files.h"

typedef struct Question {
    const char *report; /* casts, kernels, memory, params; NULL: IR, or a
                           description of the module and its parameters */
    const char *ir;     /* pass name */
    bool json, cuda, roofline;
    Scaling scaling; /* world: asked for */
} Question;

static bool asks_cost(const Question *q) {
    return q->roofline || q->scaling.world;
}

static void put(const char *text, size_t n) { fwrite(text, 1, n, stdout); }

/* Prints a text as it is, or {"KIND":"NAME","text":"..."}. */
static void put_text(const Session *s, const Question *q, const char *kind,
                     const char *name, const char *text, size_t n) {
    StrBuf sb = {0};
    if (!q->json) {
        put(text, n);
        return;
    }
    sb_puts(&sb, "{");
    sb_put_json_field(&sb, kind, name);
    sb_puts(&sb, ",");
    sb_put_json_field(&sb, "text",
                      arena_printf(s->arena, "%.*s", (int)n, text));
    sb_puts(&sb, "}\n");
    put(sb.data, sb.len);
    sb_free(&sb);
}

/* ---- of a module --------------------------------------------------------- */

static Status no_stage(Session *s, const SectionFile *f, const char *stage) {
    StrBuf known = {0};
    for (int i = 0; i < f->n; i++)
        if (!strncmp(f->dir[i].name, "ir:", 3))
            sb_printf(&known, " %s", f->dir[i].name + 3);
    Status st = fail(&s->diag, (Loc){.file = f->path},
                     "no IR of stage '%s'; there is:%s", stage,
                     known.data ? known.data : " none");
    sb_free(&known);
    return st;
}

static Status section_text(Session *s, const SectionFile *f, const char *name,
                           char **text, size_t *n) {
    const PlanSection *section = sections_find(f, name);
    if (!section)
        return fail(&s->diag, (Loc){.file = f->path}, "no section '%s'", name);
    return sections_read(s->arena, &s->diag, f, section, text, n);
}

/* --roofline or --scaling, of the text of section "cost". */
static Status print_cost(Session *s, const char *cost, const Question *q) {
    StrBuf sb = {0};
    Status st = OK;
    if (q->roofline)
        roofline_put(s->arena, cost, q->json, &sb);
    else
        st = scaling_put(&s->diag, cost, &q->scaling, &sb);
    if (sb.len) put(sb.data, sb.len);
    sb_free(&sb);
    return st;
}

/* The CUDA text, unit by unit, CUDA Tile's last. */
static Status print_cuda(Session *s, const SectionFile *f, const Question *q) {
    char name[64], unit[32], *text;
    size_t n;
    bool last = false;
    for (int i = 0; !last; i++) {
        snprintf(name, sizeof name, "txt:cuda:%d", i);
        snprintf(unit, sizeof unit, "unit%d.cu", i);
        const PlanSection *section = sections_find(f, name);
        if (!section && !i)
            return fail(&s->diag, (Loc){.file = f->path}, "no GPU code in it");
        if (!section) {
            last = true;
            snprintf(unit, sizeof unit, "tile.cu");
            if (!(section = sections_find(f, "txt:tile"))) break;
        }
        TRY(sections_read(s->arena, &s->diag, f, section, &text, &n));
        if (q->json)
            put(i ? "," : "[", 1);
        else
            printf("/* %s */\n", unit);
        put_text(s, q, "cuda", unit, text, n);
    }
    if (q->json) put("]\n", 2);
    return OK;
}

static Status print_ir(Session *s, const SectionFile *f, const Question *q) {
    char name[64], *text;
    size_t n;
    snprintf(name, sizeof name, "ir:%s", q->ir);
    if (!sections_find(f, name)) return no_stage(s, f, q->ir);
    TRY(section_text(s, f, name, &text, &n));
    put_text(s, q, "ir", q->ir, text, n);
    return OK;
}

static Status print_section(Session *s, const SectionFile *f, const char *kind,
                            const char *of) {
    char name[64], *text;
    size_t n;
    snprintf(name, sizeof name, "%s:%s", kind, of);
    TRY(section_text(s, f, name, &text, &n));
    put(text, n);
    return OK;
}

static Status answer_module(Session *s, const SectionFile *f,
                            const Question *q) {
    const char *kind = q->json ? "json" : "txt";
    if (q->cuda) return print_cuda(s, f, q);
    if (asks_cost(q)) {
        char *cost;
        size_t n;
        TRY(section_text(s, f, "cost", &cost, &n));
        return print_cost(s, arena_printf(s->arena, "%.*s", (int)n, cost), q);
    }
    if (q->ir) return print_ir(s, f, q);
    if (q->report) return print_section(s, f, kind, q->report);
    if (q->json) put("{\"module\":", 10);
    TRY(print_section(s, f, kind, "summary"));
    fseeko(f->file, 0, SEEK_END);
    printf(q->json ? ",\"bytes\":%lld,\n\"params\":"
                   : "file        %lld bytes\n\n",
           (long long)ftello(f->file));
    TRY(print_section(s, f, kind, "params"));
    if (q->json) put("}\n", 2);
    return OK;
}

static Status inspect_module(Session *s, const char *path, const Question *q) {
    SectionFile f;
    if (s->compile_option) {
        fail(&s->diag, (Loc){.file = path},
             "%s is for models; this is no .onnx or .amp file, and a module is "
             "what it was compiled as",
             s->compile_option);
        return ERR_USAGE;
    }
    TRY(sections_open(s->arena, &s->diag, path, &f));
    Status st = answer_module(s, &f, q);
    sections_close(&f);
    return st;
}

/* ---- of a model ---------------------------------------------------------- */

static ReportFn *report_named(const char *name) {
    static const struct {
        const char *name;
        ReportFn *fn;
    } reports[] = {{"params", report_params},
                   {"nodes", report_nodes},
                   {"casts", report_casts},
                   {"memory", report_memory}};
    for (size_t i = 0; i < sizeof reports / sizeof *reports; i++)
        if (!strcmp(reports[i].name, name)) return reports[i].fn;
    return NULL;
}

static Status print_stage(Session *s, const Module *m, const Question *q) {
    for (int i = m->texts.len - 1; i >= 0; i--) {
        const StageText *t = &m->texts.data[i];
        if (strcmp(t->pass, q->ir)) continue;
        put_text(s, q, "ir", q->ir, t->text, t->size);
        return OK;
    }
    return fail(&s->diag, (Loc){0}, "no pass named '%s' (--list-passes)",
                q->ir);
}

typedef struct Kernels {
    Session *s;
    const Module *m;
    const Question *q;
} Kernels;

static Status kernels_lowered(void *ctx, const char *const *const notes[2],
                              const char *cost) {
    const Kernels *k = ctx;
    StrBuf sb = {0};
    if (asks_cost(k->q)) return print_cost(k->s, cost, k->q);
    report_kernels(k->m, k->q->json, notes[k->q->json], NULL, &sb);
    put(sb.data, sb.len);
    sb_free(&sb);
    return OK;
}

/* Nodes of a model may be listed before a loss is chosen, too. */
static void list_without_loss(Session *s, const Module *m) {
    Objective *j = &s->opt.objectives.data[0];
    const Graph *g = module_graph(m, FORWARD);
    if (!g || s->opt.objectives.len > 1 || j->loss.kind != LOSS_AUTO ||
        j->loss.outputs.len || j->added.len)
        return;
    for (int i = 0; i < g->outputs.len; i++)
        if (type_count(value_type(g, g->outputs.data[i].value)) == 1) return;
    j->loss.kind = LOSS_NONE;
    fail_note(&s->diag, (Loc){.file = m->file},
              "no --loss: the nodes are those of prediction");
}

static Status inspect_model(Session *s, const char *path, const Question *q) {
    StrBuf sb = {0};
    Module *m;
    if (q->cuda)
        return fail(&s->diag, (Loc){.file = path},
                    "--cuda asks a module; --emit-cuda DIR writes the text of "
                    "a model's kernels");
    TRY(load_model(s, path, &m));
    const char *report = q->report               ? q->report
                         : q->ir || asks_cost(q) ? ""
                                                 : "params";
    if (!strcmp(report, "nodes")) {
        list_without_loss(s, m);
        TRY(run_pipeline(m, &s->diag, &s->opt, STAGE_CAST, false));
    } else if (strcmp(report, "params")) {
        TRY(place_measured(s, path, m, q->ir != NULL));
        TRY(run_pipeline(m, &s->diag, &s->opt, STAGE_PLANNED, q->ir != NULL));
    }
    if (q->ir) return print_stage(s, m, q);
    if (asks_cost(q) || !strcmp(report, "kernels")) {
        Kernels k = {s, m, q};
        EmitInput in = {.compiled = kernels_lowered, .ctx = &k};
        return emit_check(m, &s->opt, &s->diag, &in);
    }
    report_named(report)(m, q->json, &sb);
    put(sb.data, sb.len);
    sb_free(&sb);
    return OK;
}

static Status check_question(Session *s) {
    const OwnOptions *o = &s->own;
    if (o->casts + o->kernels + o->memory + o->params + o->nodes + o->cuda +
            o->roofline + (o->ir != NULL) + (o->scaling != NULL) >
        1) {
        fail(&s->diag, (Loc){0},
             "one of --ir, --casts, --kernels, --memory, "
             "--params, --nodes, --cuda, --roofline, --scaling at a time");
        return ERR_USAGE;
    }
    if (!o->scaling && (o->link || o->step_ms)) {
        fail(&s->diag, (Loc){0}, "%s goes with --scaling N",
             o->link ? "--link" : "--step-ms");
        return ERR_USAGE;
    }
    return OK;
}

int cmd_inspect(int argc, char **argv) {
    Session s;
    const char *path = NULL;
    session_init(&s);
    Status st = session_args(&s, argc, argv, "inspect", &path);
    const OwnOptions *o = &s.own;
    const Question q = {
        .report = o->casts     ? "casts"
                  : o->kernels ? "kernels"
                  : o->memory  ? "memory"
                  : o->params  ? "params"
                  : o->nodes   ? "nodes"
                               : NULL,
        .ir = o->ir,
        .json = o->json,
        .cuda = o->cuda,
        .roofline = o->roofline,
        .scaling = {o->scaling, o->link, o->step_ms, o->json},
    };
    if (st == OK) st = check_question(&s);
    if (st == OK)
        st = has_suffix(path, ".onnx") || has_suffix(path, ".amp")
                 ? inspect_model(&s, path, &q)
                 : inspect_module(&s, path, &q);
    return session_end(&s, st);
}
