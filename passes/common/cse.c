/* cse.c: one node for equal computations.
   Equal: op, operands, attributes and result types.  Every op is a pure
   function of its operands (random numbers too: they are keyed), so sharing
   is always legal.
   requires     any stage before FUSED                                      */
#include "passes/passes.h"
#include "passes/common/rewrite.h"

#include <string.h>

typedef struct CseSlot {
    NodeId node;
    uint32_t hash;
} CseSlot;

typedef struct CseTable {
    CseSlot *slot;
    uint32_t mask;
} CseTable;

static bool cse_rule(Rewriter *rw, NodeId id, ValueId *with) {
    CseTable *t = rw->user;
    const Node *n = node_get(rw->g, id);
    uint32_t hash = (uint32_t)node_hash(rw->g, n), at = hash & t->mask;
    for (; t->slot[at].node.i; at = (at + 1) & t->mask) {
        const Node *other = node_get(rw->g, t->slot[at].node);
        if (t->slot[at].hash != hash || !node_same(rw->g, n, other)) continue;
        memcpy(with, other->out, (size_t)n->nout * sizeof *with);
        return true;
    }
    t->slot[at] = (CseSlot){id, hash};
    return false;
}

Status pass_cse(Module *m, PassCtx *cx) {
    for (int i = 0; i < m->graphs.len; i++) {
        Graph *g = m->graphs.data[i];
        CseTable t = {.mask = 15};
        while (t.mask < 2u * (uint32_t)g->order.len) t.mask = t.mask * 2 + 1;
        t.slot = NEW_ARRAY(cx->scratch, CseSlot, t.mask + 1);
        rewrite_graph(g, cx->scratch, cse_rule, &t);
    }
    return OK;
}
