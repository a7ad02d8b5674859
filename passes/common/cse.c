/* SPDX-License-Identifier: Apache-2.0 */
/* cse.c: one node for equal computations, one constant for equal numbers.
   Equal: op, operands, attributes and result types.  Every op is a pure
   function of its operands (random numbers too: they are keyed), so sharing
   is always legal.
   requires     any stage before FUSED */
#include "passes/passes.h"
#include "passes/rewrite.h"

#include <string.h>

/* Equal by bits: -0 differs from 0, and a NaN equals itself. Scalars are
   shared when they are built. */
typedef struct ConstTable {
    const Graph *g;
    ValueId *slot;
    ValueId *shared; /* per value: its replacement; 0: not yet seen */
    uint32_t mask;
} ConstTable;

static void share_const(ConstTable *t, ValueId *v) {
    if (!is_value(*v)) return;
    const Value *x = value_get(t->g, *v), *y;
    if (x->kind != VK_CONST || x->held) return;
    if (!t->shared[v->i].i) {
        size_t bytes = (size_t)type_bytes(type_get(x->type));
        uint64_t at = hash_bytes(x->type.i, x->data->data, bytes);
        for (;; at++) {
            ValueId *slot = &t->slot[at & t->mask];
            if (!slot->i) *slot = *v;
            y = value_get(t->g, *slot);
            t->shared[v->i] = *slot;
            if (y->type.i == x->type.i &&
                !memcmp(y->data->data, x->data->data, bytes))
                break;
        }
    }
    *v = t->shared[v->i];
}

static void share_consts(Graph *g, Arena *scratch) {
    uint32_t values = (uint32_t)g->values.len, consts = 0;
    for (uint32_t i = 1; i < values; i++)
        consts += g->values.data[i].kind == VK_CONST;
    if (!consts) return;
    ConstTable t = {.g = g, .mask = 15};
    while (t.mask < 2 * consts) t.mask = t.mask * 2 + 1;
    t.slot = NEW_ARRAY(scratch, ValueId, t.mask + 1);
    t.shared = NEW_ARRAY(scratch, ValueId, values);
    for (int i = 0; i < g->order.len; i++) {
        const Node *n = node_at(g, i);
        for (int k = 0; k < n->nin; k++) share_const(&t, &n->in[k]);
    }
    for (int i = 0; graph_root(g, i); i++) share_const(&t, graph_root(g, i));
}

typedef struct CseSlot {
    NodeId node;
    uint32_t hash;
} CseSlot;

typedef struct CseTable {
    CseSlot *slot;
    uint32_t mask;
    NodeId *waits; /* per value: a reader that is not yet in the table */
} CseTable;

/* The slot of a node equal to this one, or the free slot for it. */
static CseSlot *slot_of(const CseTable *t, const Graph *g, NodeId id) {
    const Node *n = node_get(g, id);
    uint32_t hash = (uint32_t)node_hash(g, n), at = hash & t->mask;
    for (; t->slot[at].node.i; at = (at + 1) & t->mask)
        if (t->slot[at].hash == hash &&
            node_same(g, n, node_get(g, t->slot[at].node)))
            return &t->slot[at];
    t->slot[at].hash = hash;
    return &t->slot[at];
}

/* The first operand that no other node reads; 0: none. */
static ValueId read_alone(const Rewriter *rw, const Node *n) {
    for (int k = 0; k < n->nin; k++)
        if (uses_of(rw, n->in[k]) == 1) return n->in[k];
    return NO_VALUE;
}

/* Equal nodes read the same values. A node that is the only reader of a
   value is therefore kept out of the table, where each look-up is a cache
   miss, until another value is merged into that value. */
static bool cse_rule(Rewriter *rw, NodeId id, ValueId *with) {
    CseTable *t = rw->user;
    const Node *n = node_get(rw->g, id);
    ValueId alone = read_alone(rw, n);
    if (is_value(alone)) {
        t->waits[alone.i] = id;
        return false;
    }
    CseSlot *slot = slot_of(t, rw->g, id);
    if (!slot->node.i) {
        slot->node = id;
        return false;
    }
    const Node *other = node_get(rw->g, slot->node);
    memcpy(with, other->out, (size_t)n->nout * sizeof *with);
    for (int k = 0; k < n->nout; k++) {
        NodeId *reader = &t->waits[with[k].i];
        rw->uses[with[k].i] += rw->uses[n->out[k].i];
        if (reader->i) slot_of(t, rw->g, *reader)->node = *reader;
        *reader = NO_NODE;
    }
    return true;
}

Status pass_cse(Module *m, PassCtx *cx) {
    for (int i = 0; i < m->graphs.len; i++) {
        Graph *g = m->graphs.data[i];
        share_consts(g, cx->scratch);
        CseTable t = {.mask = 15};
        while (t.mask < 2u * (uint32_t)g->order.len) t.mask = t.mask * 2 + 1;
        t.slot = NEW_ARRAY(cx->scratch, CseSlot, t.mask + 1);
        t.waits = NEW_ARRAY(cx->scratch, NodeId, g->values.len);
        rewrite_graph(g, cx->scratch, cse_rule, &t);
    }
    return OK;
}
