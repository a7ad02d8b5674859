/* SPDX-License-Identifier: Apache-2.0 */
/* cmd_summary.c: describes a module in a few lines, as `ampc inspect`
   begins. */
#include "codegen/cuda/cuda.h"
#include "codegen/module/emit.h"
#include "frontend/cli/cmd.h"
#include "frontend/cli/options_text.h"
#include "frontend/report/facts.h"
#include "frontend/report/report.h"
#include "ir/graph/names.h"

static void put_summary_tensor(StrBuf *sb, bool json, int i, const char *name,
                               TypeId type) {
    Facts f = {.json = json};
    fact_name(&f, "name", name, NULL, NULL);
    fact_type(&f, "type", type);
    sb_puts(sb, i ? ", " : "");
    facts_put(&f, "{name} {type}", sb);
}

/* Inputs of the first training program, or of predict if none trains. */
static void put_inputs(const Module *m, bool json, StrBuf *sb) {
    const Graph *g = NULL;
    for (int i = m->graphs.len - 1; i >= 0; i--)
        if (m->graphs.data[i]->program == PROGRAM_TRAIN) g = m->graphs.data[i];
    if (!g) g = module_program(m, PROGRAM_PREDICT, intern(""));
    for (int i = 0; g && i < g->inputs.len; i++) {
        const Value *v = value_get(g, g->inputs.data[i]);
        put_summary_tensor(sb, json, i, v->name, v->type);
    }
}

static void put_outputs(const Module *m, bool json, StrBuf *sb) {
    const Graph *g = module_program(m, PROGRAM_PREDICT, intern(""));
    for (int i = 0, n = 0; g && i < g->outputs.len; i++) {
        const Output *o = &g->outputs.data[i];
        if (!name_is_own(o->name))
            put_summary_tensor(sb, json, n++, o->name,
                               value_get(g, o->value)->type);
    }
}

/* The number of variables of a kind, and of their elements. */
static void put_summary_count(const Module *m, VarKind kind, bool json,
                              StrBuf *sb) {
    int64_t n = 0, elements = 0;
    for (int i = 0; i < m->vars.len; i++) {
        if (m->vars.data[i].kind != kind) continue;
        n++;
        elements += type_count(type_get(m->vars.data[i].type));
    }
    sb_printf(sb, json ? "[%lld,%lld]" : "%lld (%lld elements)", (long long)n,
              (long long)elements);
}

static void put_targets(const Options *o, bool json, StrBuf *sb) {
    Arena *a = arena_new();
    CudaArchs archs = cuda_archs(o, a);
    const char *quote = json ? "\"" : "", *comma = "";
    for (const IsaLevel *l = isa_levels; l->isa; l++) {
        if (!isa_wanted(o, l)) continue;
        sb_printf(sb, "%s%s%s%s%s", comma, quote,
                  l->source ? "" : "cpu:", l->name, quote);
        comma = ", ";
    }
    for (int i = 0; i < archs.len; i++) {
        sb_printf(sb, "%s%scuda:%s%s", comma, quote, archs.data[i], quote);
        comma = ", ";
    }
    arena_free(a);
}

static void put_kinds(const Module *m, bool json, StrBuf *sb) {
    static const struct {
        const char *key;
        VarKind kind;
    } kinds[] = {{"trained", VAR_PARAM},
                 {"frozen", VAR_FROZEN},
                 {"buffers", VAR_BUFFER}};
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        sb_printf(sb, json ? ",\"%s\":" : "%-12s", kinds[i].key);
        put_summary_count(m, kinds[i].kind, json, sb);
        if (!json) sb_puts(sb, "\n");
    }
}

static void summary_json(const Module *m, const Options *o, StrBuf *sb) {
    sb_puts(sb, "{");
    sb_put_json_field(sb, "model", m->name);
    sb_puts(sb, ",\"inputs\":[");
    put_inputs(m, true, sb);
    sb_puts(sb, "],\"outputs\":[");
    put_outputs(m, true, sb);
    sb_printf(sb, "],\"class_axis\":%d", m->class_axis);
    put_kinds(m, true, sb);
    sb_puts(sb, ",\"options\":");
    options_json(o, sb);
    sb_puts(sb, ",\"targets\":[");
    put_targets(o, true, sb);
    sb_puts(sb, "]}");
}

void summary_put(const Module *m, const Options *o, bool json, StrBuf *sb) {
    if (json) {
        summary_json(m, o, sb);
        return;
    }
    sb_puts(sb, "model       ");
    sb_put_escaped(sb, m->name ? m->name : "");
    if (m->producer) sb_printf(sb, " (%s)", m->producer);
    sb_puts(sb, "\ninputs      ");
    put_inputs(m, false, sb);
    sb_puts(sb, "\noutputs     ");
    put_outputs(m, false, sb);
    sb_puts(sb, "\n");
    options_lines(o, sb);
    if (m->class_axis >= 0) sb_printf(sb, "class axis  %d\n", m->class_axis);
    put_kinds(m, false, sb);
    sb_puts(sb, "targets     ");
    put_targets(o, false, sb);
    sb_puts(sb, "\n");
}
