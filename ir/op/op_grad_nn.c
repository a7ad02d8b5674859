/* op_grad_nn.c: gradient rules of the composites.  Statistics that a composite
   returns beside its result (mean, rstd, var, lse) are functions of x too:
   their gradients are added, which is what second order needs.              */
#include "ir/op/op_grad.h"

#include <math.h>
#include <string.h>

/* a + b where either may be absent */
static ValueId join(Builder *b, ValueId x, ValueId y, DType d) {
    if (!is_value(x) || !is_value(y)) return is_value(x) ? x : y;
    return add(b, x, y, d);
}

static ValueId sum_over(Builder *b, ValueId x, const int64_t *axes, int n,
                        DType d) {
    return b_reduce(b, OP_REDUCE_SUM, x, axes, n, true, d);
}

/* ---- softmax ------------------------------------------------------------- */

/* y (g - sum(g y)) */
Status grad_softmax(GradCtx *cx) {
    Builder *b = cx->b;
    Node n = grad_node(cx);
    ValueId y = n.out[0], g = cx->gout[0];
    DType w = wide_of(b, n.in[0]);
    int64_t axis = attr_int(&n, AK_axis, -1);
    ValueId s = sum_over(b, mul(b, g, y, w), &axis, 1, w);
    cx->gin[0] = mul(b, y, sub(b, g, s, w), dtype_of(b, n.in[0]));
    return OK;
}

/* g - exp(y) sum(g) */
Status grad_log_softmax(GradCtx *cx) {
    Builder *b = cx->b;
    Node n = grad_node(cx);
    ValueId g = cx->gout[0];
    DType w = wide_of(b, n.in[0]);
    int64_t axis = attr_int(&n, AK_axis, -1);
    ValueId p = b1(b, OP_EXP, n.out[0], w);
    ValueId s = sum_over(b, g, &axis, 1, w);
    cx->gin[0] = sub(b, g, mul(b, p, s, w), dtype_of(b, n.in[0]));
    return OK;
}

/* ---- normalisation ------------------------------------------------------- */

/* A normalisation of x over `axes`, z = (x - mean) r; mean and r broadcast
   against x, scale and bias too. */
typedef struct Norm {
    Builder *b;
    ValueId x, z, mean, r, scale, g;
    int64_t axes[MAX_RANK];
    int n;
    double inv; /* 1 / elements */
    DType d, w;
} Norm;

static void norm_finish(Norm *k) {
    Type t = type_of(k->b, k->x);
    int64_t n = grad_extent(&t, k->axes, k->n);
    k->inv = 1.0 / (double)(n ? n : 1);
    k->z = mul(k->b, sub(k->b, k->x, k->mean, k->w), k->r, k->w);
}

static ValueId norm_mean(const Norm *k, ValueId v) {
    return b_reduce(k->b, OP_REDUCE_MEAN, v, k->axes, k->n, true, k->w);
}

/* r (h - mean(h) - z mean(h z)) */
static ValueId norm_back(const Norm *k, ValueId h, DType d) {
    Builder *b = k->b;
    ValueId hz = norm_mean(k, mul(b, h, k->z, k->w));
    ValueId centred = sub(b, h, norm_mean(k, h), k->w);
    return mul(b, k->r, sub(b, centred, mul(b, k->z, hz, k->w), k->w), d);
}

/* h = g scale:  dx = r (h - mean(h) - z mean(h z)),  dscale = un(g z),
   dbias = un(g);  from mean: g/n;  from r: -g r^2 z / n */
Status grad_layer_norm(GradCtx *cx) {
    Builder *b = cx->b;
    Node n = grad_node(cx);
    Norm k = {.b = b,
              .x = n.in[0],
              .mean = n.out[1],
              .r = n.out[2],
              .scale = n.in[1],
              .g = cx->gout[0],
              .d = dtype_of(b, n.in[0]),
              .w = wide_of(b, n.in[0])};
    ValueId gmean = cx->gout[1], gr = cx->gout[2], dx = NO_VALUE;
    bool plain = !is_value(gmean) && !is_value(gr);
    for (int d = (int)attr_int(&n, AK_axis, -1); d < type_of(b, k.x).rank; d++)
        k.axes[k.n++] = d;
    norm_finish(&k);
    if (is_value(k.g)) {
        if (cx->want[0])
            dx = norm_back(&k, mul(b, k.g, k.scale, k.w), plain ? k.d : k.w);
        if (cx->want[1])
            cx->gin[1] = grad_unbroadcast(b, mul(b, k.g, k.z, k.w), k.scale);
        if (n.nin > 2 && cx->want[2])
            cx->gin[2] = grad_unbroadcast(b, k.g, n.in[2]);
    }
    if (!cx->want[0]) return OK;
    if (is_value(gr)) {
        ValueId s = mul(b, gr, mul(b, k.r, k.r, k.w), k.w);
        dx = join(b, dx, mul(b, times(b, s, -k.inv, k.w), k.z, k.w), k.w);
    }
    if (is_value(gmean)) {
        Type t = type_of(b, k.x);
        ValueId s = times(b, gmean, k.inv, k.w);
        dx = join(b, dx, b_expand(b, s, t.rank, t.dim), k.w);
    }
    cx->gin[0] = dx;
    return OK;
}

/* [C] as [1, C, 1, ..] */
static ValueId per_channel(Builder *b, ValueId v, int rank) {
    int64_t dim[MAX_RANK];
    for (int d = 0; d < rank; d++) dim[d] = 1;
    dim[1] = type_of(b, v).dim[0];
    return b_reshape(b, v, rank, dim);
}

/* s[C] of v[N, C, ..] in the dtype of like */
static ValueId channel_sum(const Norm *k, ValueId v, ValueId like) {
    return b_reduce(k->b, OP_REDUCE_SUM, v, k->axes, k->n, false,
                    dtype_of(k->b, like));
}

/* From the statistics: mean: g/n;  var: 2 g (x - mean) / n */
static ValueId batch_norm_stats(const GradCtx *cx, const Norm *k, ValueId dx) {
    Builder *b = k->b;
    Type t = type_of(b, k->x);
    if (is_value(cx->gout[2])) {
        ValueId g =
            times(b, per_channel(b, cx->gout[2], t.rank), 2 * k->inv, k->w);
        ValueId v = mul(b, sub(b, k->x, k->mean, k->w), g, k->w);
        dx = join(b, dx, v, k->w);
    }
    if (is_value(cx->gout[1])) {
        ValueId g = times(b, per_channel(b, cx->gout[1], t.rank), k->inv, k->w);
        dx = join(b, dx, b_expand(b, g, t.rank, t.dim), k->w);
    }
    return dx;
}

/* training: as layer_norm over all axes but 1, with r = 1/sqrt(var + eps) and
     the scale outside: dx = s r (g - mean(g) - z mean(g z))
   inference: mean and var are constants: dx = g s r
   both: dscale = sum(g z), dbias = sum(g)                                   */
Status grad_batch_norm(GradCtx *cx) {
    Builder *b = cx->b;
    Node n = grad_node(cx);
    bool training = attr_int(&n, AK_training, 0) != 0;
    int rank = type_of(b, n.in[0]).rank;
    Norm k = {.b = b,
              .x = n.in[0],
              .g = cx->gout[0],
              .d = dtype_of(b, n.in[0]),
              .w = wide_of(b, n.in[0])};
    ValueId var = training ? n.out[2] : n.in[4];
    ValueId shifted = plus(b, var, attr_float(&n, AK_epsilon, 1e-5), k.w);
    k.mean = per_channel(b, training ? n.out[1] : n.in[3], rank);
    k.r = per_channel(b, b1(b, OP_RSQRT, shifted, k.w), rank);
    k.scale = per_channel(b, n.in[1], rank);
    for (int d = 0; d < rank; d++)
        if (d != 1) k.axes[k.n++] = d;
    norm_finish(&k);
    ValueId dx = NO_VALUE;
    if (is_value(k.g)) {
        if (cx->want[0] && training)
            dx = mul(b, norm_back(&k, k.g, k.w), k.scale, k.w);
        else if (cx->want[0])
            dx = mul(b, k.g, mul(b, k.scale, k.r, k.w), k.d);
        if (cx->want[1])
            cx->gin[1] = channel_sum(&k, mul(b, k.g, k.z, k.w), n.in[1]);
        if (cx->want[2]) cx->gin[2] = channel_sum(&k, k.g, n.in[2]);
    }
    if (cx->want[0]) cx->gin[0] = training ? batch_norm_stats(cx, &k, dx) : dx;
    return OK;
}

/* ---- losses -------------------------------------------------------------- */

/* Rows of class scores, targets with the class axis kept as 1. */
typedef struct Loss {
    Builder *b;
    Node n;
    ValueId x, target, weight, hit, keep; /* keep 0: every row counts */
    Type rows;                            /* target's shape with the axis */
    int axis;
    DType d, w;
} Loss;

static ValueId with_axis(const Loss *l, ValueId v) {
    return b_reshape(l->b, v, l->rows.rank, l->rows.dim);
}

/* class number = target, shaped like the scores */
static ValueId target_hit(const Loss *l) {
    Type t = type_of(l->b, l->x), line = t;
    for (int d = 0; d < t.rank; d++)
        if (d != l->axis) line.dim[d] = 1;
    Attr axis = attr_i(AK_axis, l->axis);
    ValueId classes = build_gen(
        l->b, OP_IOTA, NULL, 0, &axis, 1,
        type_make(dtype_of(l->b, l->target), line.rank, line.dim), NULL);
    return b2(l->b, OP_EQUAL, classes, l->target, DT_DEFAULT);
}

/* Whether an integer of dtype d can equal v at all. */
static bool holds(DType d, int64_t v) {
    int bits = 8 * dtype_info[d].bytes - (dtype_info[d].kind == DK_I);
    if (v < 0) {
        if (dtype_info[d].kind == DK_U) return false;
        v = -(v + 1);
    }
    return bits >= 63 || v >> bits == 0;
}

/* Targets too narrow to number the classes are widened. */
static ValueId wide_target(Builder *b, ValueId t) {
    DType d = dtype_of(b, t);
    if (d == DT_U32 || d == DT_U64) return b_cast(b, t, DT_I64);
    return d == DT_I64 ? t : b_cast(b, t, DT_I32);
}

static Loss loss_init(const GradCtx *cx) {
    Loss l = {.b = cx->b, .n = grad_node(cx)};
    l.x = l.n.in[0];
    l.axis = (int)attr_int(&l.n, AK_axis, 1);
    l.rows = type_of(l.b, l.x);
    l.rows.dim[l.axis] = 1;
    l.d = dtype_of(l.b, l.x);
    l.w = wide_of(l.b, l.x);
    l.target = with_axis(&l, wide_target(l.b, l.n.in[1]));
    l.hit = target_hit(&l);
    if (l.n.nin > 2) l.weight = l.n.in[2];
    int64_t index = attr_int(&l.n, AK_ignore_index, 0);
    if (attr_find(&l.n, AK_ignore_index) &&
        holds(dtype_of(l.b, l.n.in[1]), index)) {
        ValueId ignore =
            graph_scalar_int(l.b->g, dtype_of(l.b, l.target), index);
        ValueId gone = b2(l.b, OP_EQUAL, l.target, ignore, DT_DEFAULT);
        l.keep = b1(l.b, OP_NOT, gone, DT_DEFAULT);
    }
    return l;
}

/* v where the row counts, else 0 */
static ValueId kept(const Loss *l, ValueId v, DType d) {
    return is_value(l->keep) ? keep_if(l->b, l->keep, v, d) : v;
}

/* weight of each row's target; 0 when none is given */
static ValueId row_weight(const Loss *l) {
    if (!is_value(l->weight)) return NO_VALUE;
    Attr axis = attr_i(AK_axis, 0);
    return build(l->b, OP_GATHER, (ValueId[]){l->weight, l->target}, 2, &axis,
                 1, DT_DEFAULT, NULL);
}

/* gradient of each row's loss: g, g / sum of kept weights, or g */
static ValueId row_scale(const Loss *l, ValueId g, ValueId weight) {
    Str reduction = attr_str(&l->n, AK_reduction, "mean");
    if (strcmp(reduction, "none") == 0) return with_axis(l, g);
    if (strcmp(reduction, "mean") != 0) return g;
    if (!is_value(weight) && !is_value(l->keep))
        return times(l->b, g, 1.0 / (double)type_count(&l->rows), l->w);
    ValueId each = is_value(weight) ? weight : b_scalar(l->b, l->w, 1);
    ValueId counted = kept(l, each, l->w);
    int64_t axes[MAX_RANK];
    for (int d = 0; d < l->rows.rank; d++) axes[d] = d;
    ValueId total =
        b_reduce(l->b, OP_REDUCE_SUM, counted, axes, l->rows.rank, false, l->w);
    return divide(l->b, g, total, l->w);
}

/* Per row with weights w, smoothing s, C classes and p = exp(x - lse):
     loss = (1-s) w[t] (lse - x[t]) + s/C sum_c w[c] (lse - x[c])
     d/dx = a p - (1-s) w[t] [c = t] - s/C w[c],
        a = (1-s) w[t] + s/C sum w                                           */
static ValueId xent_slope(const Loss *l, ValueId p, ValueId weight) {
    Builder *b = l->b;
    double s = attr_float(&l->n, AK_label_smoothing, 0);
    double each = s / (double)type_of(b, l->x).dim[l->axis];
    ValueId main = is_value(weight) ? times(b, weight, 1 - s, l->w)
                                    : b_scalar(b, l->w, 1 - s);
    ValueId q = keep_if(b, l->hit, main, l->w), a = main;
    if (s != 0 && is_value(weight)) {
        int64_t zero = 0, classes = type_of(b, l->weight).dim[0];
        ValueId sum =
            b_reduce(b, OP_REDUCE_SUM, l->weight, &zero, 1, false, l->w);
        int64_t line[MAX_RANK];
        for (int d = 0; d < l->rows.rank; d++) line[d] = 1;
        line[l->axis] = classes;
        ValueId wc = b_reshape(b, l->weight, l->rows.rank, line);
        a = add(b, main, times(b, sum, each, l->w), l->w);
        q = add(b, q, times(b, wc, each, l->w), l->w);
    } else if (s != 0) {
        q = plus(b, q, each, l->w);
    }
    if (is_value(weight)) p = mul(b, a, p, l->w); /* else a = 1 */
    return sub(b, p, q, l->w);
}

/* dx = [kept] scale (a p - ...) + glse p */
Status grad_xent(GradCtx *cx) {
    Loss l = loss_init(cx);
    Builder *b = l.b;
    ValueId lse = with_axis(&l, l.n.out[1]), glse = cx->gout[1], dx = NO_VALUE;
    ValueId p = b1(b, OP_EXP, sub(b, l.x, lse, l.w), l.w);
    bool plain = !is_value(glse);
    if (is_value(cx->gout[0])) {
        ValueId weight = row_weight(&l);
        ValueId scale = row_scale(&l, cx->gout[0], weight);
        ValueId slope = xent_slope(&l, p, weight);
        DType d = plain ? l.d : l.w;
        dx = mul(b, slope, scale, is_value(l.keep) ? l.w : d);
        dx = kept(&l, dx, d);
    }
    if (!plain) dx = join(b, dx, mul(b, with_axis(&l, glse), p, l.w), l.d);
    cx->gin[0] = dx;
    return OK;
}

/* dx = [kept][c = t] -w[t] scale */
Status grad_nll(GradCtx *cx) {
    Loss l = loss_init(cx);
    ValueId weight = row_weight(&l);
    ValueId v = row_scale(&l, cx->gout[0], weight);
    if (is_value(weight)) v = mul(l.b, v, weight, l.w);
    v = b1(l.b, OP_NEG, v, l.w);
    cx->gin[0] = keep_if(l.b, l.hit, kept(&l, v, l.w), l.d);
    return OK;
}

/* ---- dropout ------------------------------------------------------------- */

/* dropout(g) with the same stream: it is linear, and the mask is a function of
   position and stream only */
Status grad_dropout(GradCtx *cx) {
    Node n = grad_node(cx);
    ValueId in[2] = {cx->gout[0], n.in[1]};
    cx->gin[0] = grad_same_op(cx->b, &n, in, 2, dtype_of(cx->b, n.in[0]));
    return OK;
}
