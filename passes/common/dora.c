/* SPDX-License-Identifier: Apache-2.0 */
/* dora.c: see dora.h.
   |W + s B A|^2 is |W|^2 + 2 s W.(B A) + s^2 |B A|^2 for each row, which needs
   two small matrix products and no matrix as large as W:
     |W + s B A|^2 = |W|^2 + sum over rank of B^T (2 s A W^T + s^2 A A^T B^T)
   A convolution's weight is the matrix [out, in * kernel]. */
#include "passes/common/dora.h"

#include "ir/fn/fn.h"
#include "passes/common/frozen.h"

static ValueId var_value(Builder *b, Str name) {
    return graph_var(b->g, module_find_var(b->g->module, name));
}

static ValueId dora_sum_axis(Builder *b, OpCode op, ValueId x, int64_t axis) {
    return b_reduce(b, op, x, &axis, 1, false, DT_F32);
}

static ValueId times(Builder *b, ValueId x, double c) {
    return b2(b, OP_MUL, x, b_scalar(b, DT_F32, c), DT_F32);
}

/* A value of a convolution's shape as a matrix with its first axis. */
static ValueId as_matrix(Builder *b, ValueId v) {
    int64_t rows = value_type(b->g, v)->dim[0];
    int64_t dim[] = {rows, rows ? value_count(b->g, v) / rows : 0};
    return value_type(b->g, v)->rank == 2 ? v : b_reshape(b, v, 2, dim);
}

/* |W|^2 for each output; columns: w is [in,out]. */
static ValueId squares(Builder *b, ValueId w, bool columns) {
    return dora_sum_axis(b, OP_REDUCE_SUMSQ, w, columns ? 0 : 1);
}

/* magnitude / |W + s B A| for each output. */
static ValueId dora_scale_of(Builder *b, const Adapter *a, ValueId w,
                             bool columns) {
    static const int64_t turn[] = {1, 0};
    double s = a->alpha / (double)a->rank;
    ValueId va = as_matrix(b, var_value(b, a->a)),
            vb = as_matrix(b, var_value(b, a->b)),
            magnitude = var_value(b, a->magnitude);
    int64_t outputs = value_count(b->g, magnitude), each[MAX_RANK] = {outputs};
    w = as_matrix(b, w);
    magnitude = b_reshape(b, magnitude, 1, &outputs);
    ValueId cross = b_matmul(b, va, w, false, !columns, DT_F32),
            gram = b_matmul(b, va, va, false, true, DT_F32),
            both = b_matmul(b, gram, vb, false, true, DT_F32);
    ValueId added = times(b, both, s * s);
    ValueId sum = b2(b, OP_ADD, times(b, cross, 2 * s), added, DT_F32);
    sum = b2(b, OP_MUL, b_transpose(b, vb, turn), sum, DT_F32);
    sum = dora_sum_axis(b, OP_REDUCE_SUM, sum, 0);
    sum = b2(b, OP_ADD, squares(b, w, columns), sum, DT_F32);
    NodeId stopped = build_call(b, fn_std("stop"), &sum, 1, NULL, 0, 1, NULL);
    ValueId norm = b1(b, OP_SQRT, node_get(b->g, stopped)->out[0], DT_F32);
    for (int i = 1; i <= a->axes; i++) each[i] = 1;
    return b_reshape(b, b2(b, OP_DIV, magnitude, norm, DT_F32), 1 + a->axes,
                     each);
}

/* The result of n for another left operand. */
static ValueId product_again(Builder *b, const Node *n, ValueId x) {
    bool columns = !attr_int(n, AK_trans_b);
    if (n->op == OP_MATMUL)
        return b_matmul(b, x, n->in[1], attr_int(n, AK_trans_a) != 0, !columns,
                        DT_F32);
    return build(b, OP_CONV, (ValueId[]){x, n->in[1]}, 2, n->attrs, n->nattr,
                 DT_F32, NULL);
}

ValueId dora_result(Builder *b, const Adapter *a, const Node *n, ValueId x,
                    ValueId add, ValueId z) {
    bool columns = n->op == OP_MATMUL && !attr_int(n, AK_trans_b);
    ValueId y = n->out[0], w = n->in[1];
    DType d = value_dtype(b->g, y);
    ValueId scale = dora_scale_of(b, a, w, columns);
    if (!is_value(x)) return b2(b, OP_MUL, z, scale, d);
    ValueId again = product_again(b, n, x);
    ValueId less = b2(b, OP_SUB, scale, b_scalar(b, DT_F32, 1), DT_F32);
    ValueId more = b2(b, OP_MUL, add, scale, DT_F32);
    more = b2(b, OP_ADD, b2(b, OP_MUL, again, less, DT_F32), more, DT_F32);
    return b2(b, OP_ADD, y, more, d);
}

void dora_begin(Graph *refresh) {
    const Module *m = refresh->module;
    Builder b = {.g = refresh, .flags = NODE_UPDATE};
    for (int i = 0; i < m->adapters.len; i++) {
        const Adapter *a = &m->adapters.data[i];
        if (!a->magnitude) continue;
        int weight = module_find_var(m, a->weight);
        Stored s = frozen_stored(m, weight);
        ValueId w = as_matrix(&b, frozen_read(&b, &s, weight)),
                now = var_value(&b, a->magnitude);
        ValueId norm = b1(&b, OP_SQRT, squares(&b, w, a->columns), DT_F32);
        const Type t = *value_type(refresh, now);
        norm = b_reshape(&b, norm, t.rank, t.dim);
        ValueId first = b1(&b, OP_ISNAN, now, DT_DEFAULT);
        graph_write(refresh, now, b_where(&b, first, norm, now));
    }
}
