/* same.c: when two nodes compute the same, and what an expression's P0 and P1
   are: facts about attributes that passes, importers and printers share.    */
#include <math.h>
#include <string.h>

#include "ir/graph/ir_impl.h"

/* Integers, floats and interned strings fill the union's first 8 bytes. */
uint64_t attr_hash(uint64_t h, const Attr *a) {
    h = hash_bytes(h, &a->key, sizeof a->key);
    if (attr_get(a->key)->kind != ATTR_INTS)
        return hash_bytes(h, &a->u.i, sizeof a->u.i);
    size_t bytes = (size_t)a->u.ints.n * sizeof(int64_t);
    return hash_bytes(h, a->u.ints.v, bytes);
}

bool attr_same(const Attr *a, const Attr *b) {
    if (a->key != b->key) return false;
    if (attr_get(a->key)->kind != ATTR_INTS) return a->u.i == b->u.i;
    size_t bytes = (size_t)a->u.ints.n * sizeof(int64_t);
    return a->u.ints.n == b->u.ints.n &&
           (!bytes || !memcmp(a->u.ints.v, b->u.ints.v, bytes));
}

bool node_same_work(const Node *a, const Node *b) {
    if (a->op != b->op || a->fn != b->fn || a->nin != b->nin ||
        a->nout != b->nout || a->nattr != b->nattr)
        return false;
    for (int i = 0; i < a->nattr; i++)
        if (!attr_same(&a->attrs[i], &b->attrs[i])) return false;
    return true;
}

uint64_t node_hash(const Graph *g, const Node *n) {
    uint64_t h = hash_bytes(1, &n->op, sizeof n->op);
    h = hash_bytes(h, &n->fn, sizeof n->fn);
    h = hash_bytes(h, n->in, (size_t)n->nin * sizeof *n->in);
    for (int i = 0; i < n->nattr; i++) h = attr_hash(h, &n->attrs[i]);
    for (int i = 0; i < n->nout; i++)
        h = hash_bytes(h, &value_get(g, n->out[i])->type, sizeof(TypeId));
    return h;
}

bool node_same(const Graph *g, const Node *a, const Node *b) {
    if (!node_same_work(a, b)) return false;
    for (int i = 0; i < a->nin; i++)
        if (!same_value(a->in[i], b->in[i])) return false;
    for (int i = 0; i < a->nout; i++)
        if (value_get(g, a->out[i])->type.i != value_get(g, b->out[i])->type.i)
            return false;
    return true;
}

/* Absent bounds bound nothing; 0.01 is ONNX's default slope. */
static double expr_default(AttrKey k) {
    if (k == AK_min) return -INFINITY;
    return k == AK_max ? INFINITY : k == AK_alpha ? 0.01 : 0;
}

void node_expr_params(const Node *n, double p[2]) {
    const OpInfo *info = &op_info[n->op];
    int np = 0;
    for (int k = 0; k < info->nattr && np < 2; k++)
        if (attr_get(info->attrs[k])->kind == ATTR_FLOAT)
            p[np++] =
                attr_float(n, info->attrs[k], expr_default(info->attrs[k]));
}
