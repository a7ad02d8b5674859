/* SPDX-License-Identifier: Apache-2.0 */
/* sums_attend.c: see sums.h.
   Before:  %d = attend_grad .. {heads=[0,12,12,12,24,12]} : bf16[64,128,36,64]
            %r = reshape %d : bf16[8192,2304]
            %b = reduce_sum %r {axes=[0]} : f32[1,2304]
   After:   %d, %s = attend_grad ..                %s: f32[64,1,36,64]
            %b = reshape (reduce_sum %s {axes=[0,1]})
   The gradient of the bias before q, k and v. If there is a block of threads
   for each matrix, that has all rows of its columns.                         */
#include "passes/device/fold.h"
#include "passes/device/sums.h"
#include "passes/rewrite.h"

/* The node whose first result, the gradient of attention, v is in another
   shape; else NULL. */
static const Node *packed_gradient(const Graph *g, ValueId v) {
    const Value *x = value_get(g, v);
    const Node *n = x->kind == VK_RESULT ? node_get(g, x->def) : NULL;
    if (n && n->op == OP_RESHAPE) return packed_gradient(g, n->in[0]);
    return n && n->op == OP_ATTEND_GRAD && n->nout < 3 &&
                   same_value(v, n->out[0])
               ? n
               : NULL;
}

/* n sums up the rows of a packed gradient. */
static bool sums_up_rows(const Graph *g, const Node *n) {
    const int64_t *axes;
    if (n->fn || n->op != OP_REDUCE_SUM || value_dtype(g, n->out[0]) != DT_F32)
        return false;
    const Node *grad = packed_gradient(g, n->in[0]);
    const Type *t = value_type(g, n->in[0]);
    int na = attr_ints(n, AK_axes, &axes);
    if (!grad || na == t->rank) return false;
    for (int i = 0; i < na; i++)
        if (axes[i] != i) return false;
    const Type *d = value_type(g, grad->out[0]);
    int64_t columns = 1;
    for (int i = na; i < t->rank; i++) columns *= t->dim[i];
    return columns == d->dim[d->rank - 2] * d->dim[d->rank - 1];
}

static bool is_summed_up(const Graph *g, const UserIndex *users, ValueId v) {
    for (Users u = users_of(users, v); u.at < u.end; u.at++) {
        const Node *n = node_get(g, *u.at);
        if (n->op == OP_RESHAPE ? is_summed_up(g, users, n->out[0])
                                : sums_up_rows(g, n))
            return true;
    }
    return false;
}

/* As many blocks as fill the GPU, in 16 bits; sums are fp32. */
static bool has_all_rows(const Graph *g, const Node *n) {
    const int64_t *heads;
    const Type *x = value_type(g, n->in[0]);
    if (n->nout != 1 || attr_ints(n, AK_heads, &heads) != 6 ||
        heads[1] != heads[3] || !attr_int(n, AK_trans_b) ||
        x->dim[x->rank - 3] == 0 || !dtype_is_low(x->dtype) ||
        value_dtype(g, n->in[4]) != DT_F32)
        return false;
    int64_t matrices = heads[1];
    for (int i = 0; i < x->rank - 3; i++) matrices *= x->dim[i];
    return matrices >= GPU_BLOCKS;
}

static bool attend_rule(Rewriter *rw, NodeId id, ValueId *with) {
    Graph *g = rw->g;
    const UserIndex *users = rw->user;
    Node n = *node_get(g, id);
    if (n.op == OP_ATTEND_GRAD) {
        if (!has_all_rows(g, &n) || !is_summed_up(g, users, n.out[0]))
            return false;
        DType d[] = {value_dtype(g, n.out[0]), DT_F32};
        NodeId to = build_multi(&rw->b, OP_ATTEND_GRAD, n.in, n.nin, n.attrs,
                                n.nattr, 2, d, NULL);
        with[0] = node_get(g, to)->out[0];
        rewrite_take_name(g, n.out[0], with[0]);
        return true;
    }
    if (!sums_up_rows(g, &n)) return false;
    const Node *grad = packed_gradient(g, n.in[0]);
    if (grad->nout != 2) return false;
    const Type t = *value_type(g, n.out[0]);
    int64_t axes[MAX_RANK];
    ValueId sums = grad->out[1];
    int na = value_type(g, sums)->rank - 2;
    for (int i = 0; i < na; i++) axes[i] = i;
    sums = b_reduce(&rw->b, OP_REDUCE_SUM, sums, axes, na, true, DT_F32);
    with[0] = b_reshape(&rw->b, sums, t.rank, t.dim);
    rewrite_take_name(g, n.out[0], with[0]);
    return true;
}

void sums_of_attention(Graph *g, Arena *scratch) {
    UserIndex users = graph_users(g, scratch);
    rewrite_graph(g, scratch, attend_rule, &users);
}
