/* SPDX-License-Identifier: Apache-2.0 */
/* kernels.c: what each kernel computes, reads and writes. */
#include <string.h>

#include "frontend/report/report.h"
#include "frontend/report/report_names.h"
#include "passes/device/flow.h"

/* The buffers that a kernel reads and writes: for JSON. */
static void add_buffers(Facts *f, const Flow *flow, int group) {
    FactList reads = fact_series(f->json, ",", ""), writes = reads;
    for (int i = flow->read_at[group]; i < flow->read_at[group + 1]; i++)
        fact_next_word(&reads, value_get(flow->g, flow->read[i])->name);
    for (int i = flow->first[group]; i < flow->end[group]; i++) {
        const Node *n = node_at(flow->g, i);
        for (int k = 0; k < n->nout; k++)
            if (flow->stored[n->out[k].i])
                fact_next_word(&writes, value_get(flow->g, n->out[k])->name);
    }
    fact_list(f, "reads", &reads);
    fact_list(f, "writes", &writes);
}

/* note: how it runs, in lines or JSON members */
static void add_note(Facts *f, const char *note) {
    StrBuf text = {0};
    while (*note) {
        size_t n = f->json ? strlen(note) : strcspn(note, "\n");
        sb_puts(&text, f->json ? "" : "\n          ");
        sb_putn(&text, note, n);
        note += n + (note[n] == '\n');
    }
    fact_members(f, "note", &text);
}

static void kernel_line(const Flow *flow, int group, const char *note,
                        FactList *kernels) {
    const Graph *g = flow->g;
    const Node *end = node_at(g, flow->end[group] - 1);
    const Value *v = value_get(g, end->out[0]);
    Facts f = {.json = kernels->json};
    FactList ops = fact_series(f.json, ",", " ");
    StrBuf name = {0};
    for (int i = flow->first[group]; i < flow->end[group]; i++)
        fact_next_word(&ops, op_info[node_at(g, i)->op].text);
    report_kernel_name(flow, group, &name);
    fact_word(&f, "kind", group_kind_text[g->groups.data[end->group].kind],
              "%-7s");
    fact_word(&f, "part", report_part_of(end), NULL);
    fact_list(&f, "ops", &ops);
    fact_name(&f, "result", v->name, NULL, NULL);
    fact_type(&f, "type", v->type);
    fact_name(&f, "name", name.data, NULL, NULL);
    add_buffers(&f, flow, group);
    add_note(&f, note);
    facts_put(&f,
              "  {kind}{ops} -> {result} {type}{note}\n          for: {name}\n",
              fact_next(kernels));
    sb_free(&name);
}

static int launches(const Graph *g) {
    int n = 0;
    for (int i = 0; i < g->groups.len; i++) n += !g->groups.data[i].beside;
    return n;
}

static void kernels_of_graph(Graph *g, const char *const *notes,
                             FactList *programs) {
    Arena *a = arena_new();
    const Flow *flow = flow_new(g, a);
    Facts f = {.json = programs->json};
    FactList kernels = fact_lines(f.json);
    long long bytes = 0; /* each buffer once per group */
    for (int i = 0; i < flow->read_at[flow->ngroup]; i++)
        bytes += flow_bytes(flow, flow->read[i]);
    for (uint32_t v = 1; v < (uint32_t)g->values.len; v++)
        if (flow->def[v] >= 0 && flow->stored[v])
            bytes += flow_bytes(flow, (ValueId){v});
    for (int i = 0; i < flow->ngroup; i++)
        kernel_line(flow, i, notes[i], &kernels);
    fact_word(&f, "program", g->name, NULL);
    fact_word(&f, "target", target_text[g->target], NULL);
    fact_words(&f, "n", "%d", flow->ngroup);
    fact_list(&f, "kernels", &kernels);
    fact_int(&f, "launches", launches(g),
             launches(g) < flow->ngroup ? " in %lld launches" : "");
    fact_int(&f, "bytes", bytes, NULL);
    facts_put(
        &f,
        "program {program} on {target}\n{kernels}  {n} kernels{launches}, "
        "{bytes} bytes\n",
        fact_next(programs));
    arena_free(a);
}

void report_kernels(const Module *m, bool json, const char *const *notes,
                    const char *why, StrBuf *sb) {
    FactList programs = fact_lines(json);
    if (why && !json) sb_printf(sb, "no GPU code: %s\n", why);
    for (int i = 0; i < m->graphs.len; i++) {
        kernels_of_graph(m->graphs.data[i], notes, &programs);
        notes += m->graphs.data[i]->groups.len;
    }
    fact_list_put(&programs, sb);
}
