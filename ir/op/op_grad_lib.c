/* op_grad_lib.c: gradient rules of reductions, products, convolutions and
   pools.  No rule transposes in memory: products take layout flags.         */
#include "ir/op/op_grad.h"

/* ---- reductions ---------------------------------------------------------- */

typedef struct Reduction {
    Builder *b;
    ValueId x, y, g; /* y, g with the reduced axes kept as 1 */
    Type t;          /* of x */
    const int64_t *axes;
    int n;
    DType d, w;
} Reduction;

static Reduction reduction(const GradCtx *cx) {
    Node n = grad_node(cx);
    Reduction r = {.b = cx->b,
                   .x = n.in[0],
                   .y = n.out[0],
                   .g = cx->gout[0],
                   .t = type_of(cx->b, n.in[0]),
                   .d = dtype_of(cx->b, n.in[0]),
                   .w = wide_of(cx->b, n.in[0])};
    r.n = attr_ints(&n, AK_axes, &r.axes);
    r.g = grad_keepdims(r.b, r.g, &r.t, r.axes, r.n);
    return r;
}

/* g repeated over the axes */
Status grad_reduce_sum(GradCtx *cx) {
    Reduction r = reduction(cx);
    ValueId g = b_cast(r.b, r.g, r.d); /* while it is small */
    cx->gin[0] = b_expand(r.b, g, r.t.rank, r.t.dim);
    return OK;
}

/* g / n repeated */
Status grad_reduce_mean(GradCtx *cx) {
    Reduction r = reduction(cx);
    int64_t n = grad_extent(&r.t, r.axes, r.n);
    ValueId g = times(r.b, r.g, 1.0 / (double)(n ? n : 1), r.d);
    cx->gin[0] = b_expand(r.b, g, r.t.rank, r.t.dim);
    return OK;
}

/* 2 g x */
Status grad_reduce_sumsq(GradCtx *cx) {
    Reduction r = reduction(cx);
    cx->gin[0] = mul(r.b, times(r.b, r.g, 2, r.w), r.x, r.d);
    return OK;
}

/* x = y ? g / (number of such) : 0; reduce_min too */
Status grad_reduce_max(GradCtx *cx) {
    Reduction r = reduction(cx);
    Builder *b = r.b;
    ValueId y = grad_keepdims(b, r.y, &r.t, r.axes, r.n);
    ValueId hit = b2(b, OP_EQUAL, r.x, y, DT_DEFAULT);
    ValueId one = keep_if(b, hit, b_scalar(b, r.w, 1), r.w);
    ValueId count = b_reduce(b, OP_REDUCE_SUM, one, r.axes, r.n, true, r.w);
    cx->gin[0] = keep_if(b, hit, divide(b, r.g, count, r.w), r.d);
    return OK;
}

/* ---- matrix product ------------------------------------------------------ */

/* Products read 16 bits where the forward one did. */
static ValueId like_operands(const GradCtx *cx, ValueId g) {
    Node n = grad_node(cx);
    DType a = dtype_of(cx->b, n.in[0]), b = dtype_of(cx->b, n.in[1]);
    if (dtype_is_16(a) && a == b) return b_cast(cx->b, g, a);
    return g;
}

/* A product whose batch is summed to the shape of v. */
static ValueId product_for(Builder *b, ValueId v, ValueId l, ValueId r,
                           bool trans_l, bool trans_r) {
    Type lt = type_of(b, l), rt = type_of(b, r), vt = type_of(b, v), out = {0};
    DType d = grad_store(b, v);
    lt.rank -= 2;
    rt.rank -= 2;
    vt.rank -= 2;
    ASSERT(shape_broadcast(&lt, &rt, &out));
    bool sums = !shape_equal(&out, &vt);
    ValueId p = b_matmul(b, l, r, trans_l, trans_r, sums ? wide_of(b, v) : d);
    return b_sum_to(b, p, v, d);
}

/* [.., m, n] -> [prod .. * m, n] */
static ValueId fold_rows(Builder *b, ValueId v) {
    Type t = type_of(b, v);
    int64_t dim[2] = {1, t.dim[t.rank - 1]};
    for (int d = 0; d < t.rank - 1; d++) dim[0] *= t.dim[d];
    return b_reshape(b, v, 2, dim);
}

/* Y = A B:      dA = G B^T          dB = A^T G
   stored A^T:   dA^T = B G^T
   stored B^T:                       dB^T = G^T A
   summed over broadcast batch dims.  A matrix B that serves a batch of rows
   gets its gradient from one product over all rows.                         */
Status grad_matmul(GradCtx *cx) {
    Builder *b = cx->b;
    Node n = grad_node(cx);
    ValueId A = n.in[0], B = n.in[1], G = like_operands(cx, cx->gout[0]);
    bool ta = attr_int(&n, AK_trans_a, 0) != 0;
    bool tb = attr_int(&n, AK_trans_b, 0) != 0;
    if (cx->want[0])
        cx->gin[0] = ta ? product_for(b, A, B, G, tb, true)
                        : product_for(b, A, G, B, false, !tb);
    if (!cx->want[1]) return OK;
    if (!ta && type_of(b, B).rank == 2 && type_of(b, A).rank > 2) {
        A = fold_rows(b, A);
        G = fold_rows(b, G);
    }
    cx->gin[1] = tb ? product_for(b, B, G, A, true, ta)
                    : product_for(b, B, A, G, !ta, false);
    return OK;
}

/* ---- convolution --------------------------------------------------------- */

/* One of the three convolutions with the window of this node; shape of like
   for the two that need it. */
static ValueId conv_like(const GradCtx *cx, OpCode op, ValueId l, ValueId r,
                         ValueId like, DType d) {
    Node n = grad_node(cx);
    Type t = type_of(cx->b, like);
    Attr attrs[8], shape = attr_v(AK_shape, t.dim, t.rank);
    int k = grad_attrs(&n, op, &shape, op == OP_CONV ? 0 : 1, attrs);
    return build(cx->b, op, (ValueId[]){l, r}, 2, attrs, k, d, NULL);
}

/* y = conv(x, w):  dx = conv_dgrad(g, w), dw = conv_wgrad(x, g) */
Status grad_conv(GradCtx *cx) {
    Node n = grad_node(cx);
    ValueId x = n.in[0], w = n.in[1], g = like_operands(cx, cx->gout[0]);
    if (cx->want[0])
        cx->gin[0] =
            conv_like(cx, OP_CONV_DGRAD, g, w, x, grad_store(cx->b, x));
    if (cx->want[1])
        cx->gin[1] =
            conv_like(cx, OP_CONV_WGRAD, x, g, w, grad_store(cx->b, w));
    return OK;
}

/* dx(dy, w) is linear in both:  ddy = conv(g, w), dw = conv_wgrad(g, dy) */
Status grad_conv_dgrad(GradCtx *cx) {
    Node n = grad_node(cx);
    ValueId dy = n.in[0], w = n.in[1], g = like_operands(cx, cx->gout[0]);
    if (cx->want[0])
        cx->gin[0] = conv_like(cx, OP_CONV, g, w, dy, grad_store(cx->b, dy));
    if (cx->want[1])
        cx->gin[1] =
            conv_like(cx, OP_CONV_WGRAD, g, dy, w, grad_store(cx->b, w));
    return OK;
}

/* dw(x, dy) likewise:  dx = conv_dgrad(dy, g), ddy = conv(x, g) */
Status grad_conv_wgrad(GradCtx *cx) {
    Node n = grad_node(cx);
    ValueId x = n.in[0], dy = n.in[1], g = like_operands(cx, cx->gout[0]);
    if (cx->want[0])
        cx->gin[0] =
            conv_like(cx, OP_CONV_DGRAD, dy, g, x, grad_store(cx->b, x));
    if (cx->want[1])
        cx->gin[1] = conv_like(cx, OP_CONV, x, g, dy, grad_store(cx->b, dy));
    return OK;
}

/* ---- pools --------------------------------------------------------------- */

/* op with the window of this node, shape of its operand where op takes it */
static ValueId pool_like(const GradCtx *cx, OpCode op, const ValueId *in,
                         int nin) {
    Node n = grad_node(cx);
    Type t = type_of(cx->b, n.in[0]);
    Attr attrs[8], shape = attr_v(AK_shape, t.dim, t.rank);
    bool back = op == OP_MAX_POOL_GRAD || op == OP_AVG_POOL_GRAD;
    int k = grad_attrs(&n, op, &shape, back ? 1 : 0, attrs);
    return build(cx->b, op, in, nin, attrs, k, DT_DEFAULT, NULL);
}

/* g to the chosen position of each window */
Status grad_max_pool(GradCtx *cx) {
    if (!is_value(cx->gout[0])) return OK;
    ValueId in[2] = {cx->gout[0], grad_node(cx).out[1]};
    cx->gin[0] = pool_like(cx, OP_MAX_POOL_GRAD, in, 2);
    return OK;
}

/* ddy = g at the chosen positions: one gather from all planes laid end to end,
   position + plane * (plane size), out of range (0) for an empty window */
Status grad_max_pool_grad(GradCtx *cx) {
    Builder *b = cx->b;
    Node n = grad_node(cx);
    ValueId g = cx->gout[0], idx = n.in[1];
    Type x = type_of(b, g), y = type_of(b, idx), plane = y;
    int64_t all = type_count(&x), size = 1;
    for (int d = 2; d < x.rank; d++) size *= x.dim[d];
    for (int d = 2; d < y.rank; d++) plane.dim[d] = 1;
    int64_t planes = plane.dim[0] * plane.dim[1];
    ValueId pos = b_cast(b, idx, DT_I64);
    Attr axis = attr_i(AK_axis, 0);
    ValueId number = build_gen(b, OP_IOTA, NULL, 0, &axis, 1,
                               type_make(DT_I64, 1, &planes), NULL);
    ValueId base = mul(b, b_reshape(b, number, plane.rank, plane.dim),
                       graph_scalar_int(b->g, DT_I64, size), DT_DEFAULT);
    ValueId empty =
        b2(b, OP_LESS, pos, graph_scalar_int(b->g, DT_I64, 0), DT_DEFAULT);
    ValueId at = b3(b, OP_WHERE, empty, graph_scalar_int(b->g, DT_I64, all),
                    add(b, pos, base, DT_DEFAULT), DT_DEFAULT);
    ValueId in[2] = {b_reshape(b, g, 1, &all), at};
    cx->gin[0] = build(b, OP_GATHER, in, 2, &axis, 1, DT_DEFAULT, NULL);
    return OK;
}

/* g / divisor spread over each window */
Status grad_avg_pool(GradCtx *cx) {
    cx->gin[0] = pool_like(cx, OP_AVG_POOL_GRAD, cx->gout, 1);
    return OK;
}

/* avg_pool(g) */
Status grad_avg_pool_grad(GradCtx *cx) {
    cx->gin[0] = pool_like(cx, OP_AVG_POOL, cx->gout, 1);
    return OK;
}
