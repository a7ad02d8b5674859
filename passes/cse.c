/* cse.c: one node for equal computations.
   Equal: op, operands, attributes and result types.  Every op is a pure
   function of its operands (random numbers too: they are keyed), so sharing
   is always legal.
   requires     any stage before FUSED                                      */
#include "passes/passes.h"
#include "passes/rewrite.h"

#include <string.h>

typedef struct CseTable {
    NodeId *slot;
    uint32_t mask;
} CseTable;

static uint64_t cse_hash_attr(uint64_t h, const Attr *a) {
    h = hash_bytes(h, &a->key, sizeof a->key);
    switch (attr_info[a->key].kind) {
    case ATTR_INT: return hash_bytes(h, &a->u.i, sizeof a->u.i);
    case ATTR_FLOAT: return hash_bytes(h, &a->u.f, sizeof a->u.f);
    case ATTR_STR: return hash_bytes(h, &a->u.s, sizeof a->u.s);
    case ATTR_INTS: break;
    }
    size_t bytes = (size_t)a->u.ints.n * sizeof(int64_t);
    return hash_bytes(h, a->u.ints.v, bytes);
}

static uint64_t cse_hash(const Graph *g, const Node *n) {
    uint64_t h = hash_bytes(1, &n->op, sizeof n->op);
    h = hash_bytes(h, n->in, (size_t)n->nin * sizeof *n->in);
    for (int i = 0; i < n->nattr; i++) h = cse_hash_attr(h, &n->attrs[i]);
    for (int i = 0; i < n->nout; i++)
        h = hash_bytes(h, &value_get(g, n->out[i])->type, sizeof(TypeId));
    return h;
}

static bool cse_attr_equal(const Attr *a, const Attr *b) {
    if (a->key != b->key) return false;
    switch (attr_info[a->key].kind) {
    case ATTR_INT: return a->u.i == b->u.i;
    case ATTR_FLOAT: return !memcmp(&a->u.f, &b->u.f, sizeof a->u.f);
    case ATTR_STR: return a->u.s == b->u.s;
    case ATTR_INTS: break;
    }
    size_t bytes = (size_t)a->u.ints.n * sizeof(int64_t);
    return a->u.ints.n == b->u.ints.n &&
           (!bytes || !memcmp(a->u.ints.v, b->u.ints.v, bytes));
}

bool same_computation(const Graph *g, const Node *a, const Node *b) {
    if (a->op != b->op || a->nin != b->nin || a->nout != b->nout ||
        a->nattr != b->nattr)
        return false;
    for (int i = 0; i < a->nin; i++)
        if (!same_value(a->in[i], b->in[i])) return false;
    for (int i = 0; i < a->nattr; i++)
        if (!cse_attr_equal(&a->attrs[i], &b->attrs[i])) return false;
    for (int i = 0; i < a->nout; i++)
        if (value_get(g, a->out[i])->type.i != value_get(g, b->out[i])->type.i)
            return false;
    return true;
}

static bool cse_rule(Rewriter *rw, NodeId id, ValueId *with) {
    CseTable *t = rw->user;
    const Node *n = node_get(rw->g, id);
    uint32_t at = (uint32_t)cse_hash(rw->g, n) & t->mask;
    for (; t->slot[at].i; at = (at + 1) & t->mask) {
        const Node *other = node_get(rw->g, t->slot[at]);
        if (!same_computation(rw->g, n, other)) continue;
        memcpy(with, other->out, (size_t)n->nout * sizeof *with);
        return true;
    }
    t->slot[at] = id;
    return false;
}

Status pass_cse(Module *m, PassCtx *cx) {
    for (int i = 0; i < m->graphs.len; i++) {
        Graph *g = m->graphs.data[i];
        CseTable t = {.mask = 15};
        while (t.mask < 2u * (uint32_t)g->order.len) t.mask = t.mask * 2 + 1;
        t.slot = NEW_ARRAY(cx->scratch, NodeId, t.mask + 1);
        rewrite_graph(g, cx->scratch, cse_rule, &t);
    }
    return OK;
}
