/* SPDX-License-Identifier: Apache-2.0 */
/* report_nodes.c: the model's nodes by the names that policy lines use. */
#include <string.h>

#include "frontend/report/report.h"
#include "passes/passes.h"

/* One op of a node; a node of the model may become several ops. */
static void put_report_node(const Graph *g, const Node *n, FactList *nodes) {
    const char *op = n->loc.does ? n->loc.does : node_info(n)->text;
    Facts f = {.json = nodes->json};
    fact_name(&f, "node", n->loc.named, NULL, NULL);
    fact_word(&f, "op", op, NULL);
    fact_name(&f, "layer", n->loc.layer, "  of ", NULL);
    fact_word(&f, "class", amp_class_text[node_class(n)], NULL);
    fact_bool(&f, "policy", n->loc.amp, " (the policy)");
    fact_type(&f, "type", value_get(g, n->out[0])->type);
    facts_put(&f, "{node}  {op}  {type}  {class}{policy}{layer}\n",
              fact_next(nodes));
}

/* The program that trains, or the first one. */
void report_nodes(const Module *m, bool json, StrBuf *sb) {
    const Graph *g = m->graphs.len ? m->graphs.data[0] : NULL;
    FactList nodes = fact_lines(json);
    for (int i = m->graphs.len - 1; i >= 0; i--)
        if (m->graphs.data[i]->program == PROGRAM_TRAIN) g = m->graphs.data[i];
    for (int i = 0; g && i < g->order.len; i++) {
        const Node *n = node_at(g, i);
        if (n->flags || !n->loc.named || n->op == OP_CAST) continue;
        put_report_node(g, n, &nodes);
    }
    fact_list_put(&nodes, sb);
}
