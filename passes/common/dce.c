/* SPDX-License-Identifier: Apache-2.0 */
/* dce.c: removes nodes that nothing needs.
   Roots are the outputs and the writes.  A node with several results stays
   while one of them is needed.
   requires     any stage before FUSED
   establishes  every node in order reaches a root */
#include "passes/passes.h"

static void dce_mark(const Graph *g, bool *live, ValueId v) {
    if (v.i && value_get(g, v)->kind == VK_RESULT)
        live[value_get(g, v)->def.i] = true;
}

static void dce_graph(Graph *g, Arena *scratch) {
    bool *live = NEW_ARRAY(scratch, bool, g->nodes.len);
    for (int i = 0; graph_root(g, i); i++) dce_mark(g, live, *graph_root(g, i));
    for (int i = g->order.len - 1; i >= 0; i--) {
        const Node *n = node_at(g, i);
        if (!live[g->order.data[i].i]) continue;
        for (int k = 0; k < n->nin; k++) dce_mark(g, live, n->in[k]);
    }
    int kept = 0;
    for (int i = 0; i < g->order.len; i++)
        if (live[g->order.data[i].i]) g->order.data[kept++] = g->order.data[i];
    g->order.len = kept;
}

Status pass_dce(Module *m, PassCtx *cx) {
    for (int i = 0; i < m->graphs.len; i++)
        dce_graph(m->graphs.data[i], cx->scratch);
    return OK;
}
