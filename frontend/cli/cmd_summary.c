/* SPDX-License-Identifier: Apache-2.0 */
/* cmd_summary.c: describes a module in a few lines, as `ampc inspect`
   begins. */
#include "codegen/cuda/cuda.h"
#include "codegen/emit.h"
#include "frontend/cli/cmd.h"
#include "frontend/cli/options_text.h"
#include "frontend/report/report.h"
#include "ir/base/facts.h"
#include "ir/graph/names.h"

static void add_tensor(FactList *list, const char *name, TypeId type) {
    Facts f = {.json = list->json};
    fact_name(&f, "name", name, NULL, NULL);
    fact_type(&f, "type", type);
    facts_put(&f, "{name} {type}", fact_next(list));
}

/* Inputs of the first training program, or of predict if none trains. */
static void add_inputs(Facts *f, const Module *m) {
    FactList list = fact_series(f->json, ", ", ", ");
    const Graph *g = NULL;
    for (int i = m->graphs.len - 1; i >= 0; i--)
        if (m->graphs.data[i]->program == PROGRAM_TRAIN) g = m->graphs.data[i];
    if (!g) g = module_program(m, PROGRAM_PREDICT, intern(""));
    for (int i = 0; g && i < g->inputs.len; i++) {
        const Value *v = value_get(g, g->inputs.data[i]);
        add_tensor(&list, v->name, v->type);
    }
    fact_list(f, "inputs", &list);
}

static void add_outputs(Facts *f, const Module *m) {
    FactList list = fact_series(f->json, ", ", ", ");
    const Graph *g = module_program(m, PROGRAM_PREDICT, intern(""));
    for (int i = 0; g && i < g->outputs.len; i++) {
        const Output *o = &g->outputs.data[i];
        if (!name_is_own(o->name))
            add_tensor(&list, o->name, value_get(g, o->value)->type);
    }
    fact_list(f, "outputs", &list);
}

/* The number of variables of a kind, and of their elements. */
static void add_count(Facts *f, const char *key, const Module *m,
                      VarKind kind) {
    int64_t n = 0, elements = 0;
    for (int i = 0; i < m->vars.len; i++) {
        if (m->vars.data[i].kind != kind) continue;
        n++;
        elements += type_count(type_get(m->vars.data[i].type));
    }
    fact_form(f, key, "[%lld,%lld]", "%lld (%lld elements)", (long long)n,
              (long long)elements);
}

static void add_targets(Facts *f, const Options *o) {
    Arena *a = arena_new();
    CudaArchs archs = cuda_archs(o, a);
    FactList list = fact_series(f->json, ", ", ", ");
    for (const IsaLevel *l = isa_levels; l->isa; l++)
        if (isa_wanted(o, l))
            fact_next_word(
                &list,
                arena_printf(a, "%s%s", l->source ? "" : "cpu:", l->name));
    for (int i = 0; i < archs.len; i++)
        fact_next_word(&list, arena_printf(a, "cuda:%s", archs.data[i]));
    fact_list(f, "targets", &list);
    arena_free(a);
}

void summary_put(const Module *m, const Options *o, bool json, StrBuf *sb) {
    Facts f = {.json = json};
    StrBuf options = {0};
    (json ? options_json : options_lines)(o, &options);
    fact_name(&f, "model", m->name, NULL, NULL);
    if (m->producer) fact_words(&f, "producer", " (%s)", m->producer);
    add_inputs(&f, m);
    add_outputs(&f, m);
    fact_form(&f, "class_axis", "%d",
              m->class_axis < 0 ? "" : "class axis  %d\n", m->class_axis);
    add_count(&f, "trained", m, VAR_PARAM);
    add_count(&f, "frozen", m, VAR_FROZEN);
    add_count(&f, "buffers", m, VAR_BUFFER);
    fact_text(&f, "options", &options);
    add_targets(&f, o);
    facts_put(&f,
              "model       {model}{producer}\ninputs      {inputs}\n"
              "outputs     {outputs}\n{options}{class_axis}"
              "trained     {trained}\nfrozen      {frozen}\n"
              "buffers     {buffers}\ntargets     {targets}\n",
              sb);
}
