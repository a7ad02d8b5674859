/* op_grad_elem.c: gradient rules of element-wise ops that are no expression of
   ops.def.  Conventions at ties and
   kinks are PyTorch's.                                                      */
#include "ir/op/op_grad.h"

#include <math.h>

/* ---- one operand --------------------------------------------------------- */

typedef struct Unary {
    Builder *b;
    ValueId x, y, g;
    DType d, w; /* x's dtype, arithmetic */
} Unary;

static Unary unary(const GradCtx *cx) {
    Node n = grad_node(cx);
    return (Unary){cx->b,
                   n.in[0],
                   n.out[0],
                   cx->gout[0],
                   dtype_of(cx->b, n.in[0]),
                   wide_of(cx->b, n.in[0])};
}

/* gin = g * v */
static Status times_g(GradCtx *cx, ValueId v) {
    Unary u = unary(cx);
    cx->gin[0] = mul(u.b, u.g, v, u.d);
    return OK;
}

/* 0 */
Status grad_zero(GradCtx *cx) {
    Unary u = unary(cx);
    cx->gin[0] = b_full(u.b, value_get(u.b->g, u.x)->type, 0);
    return OK;
}

/* exp(-k x^2) */
static ValueId bell(Unary u, double k) {
    ValueId square = mul(u.b, u.x, u.x, u.w);
    return b1(u.b, OP_EXP, times(u.b, square, -k, u.w), u.w);
}

/* 1 - y^2 */
static ValueId one_minus_square(Builder *b, ValueId y, DType w) {
    return sub(b, b_scalar(b, w, 1), mul(b, y, y, w), w);
}

/* y <= 0 ? 0 : g, so that a NaN passes */
Status grad_relu(GradCtx *cx) {
    Unary u = unary(cx);
    ValueId off = compare(u.b, OP_LESS_EQUAL, u.y, 0);
    cx->gin[0] = b3(u.b, OP_WHERE, off, b_scalar(u.b, u.w, 0), u.g, u.d);
    return OK;
}

/* x > 0 ? g : alpha g */
Status grad_leaky_relu(GradCtx *cx) {
    Unary u = unary(cx);
    Node n = grad_node(cx);
    ValueId on = compare(u.b, OP_GREATER, u.x, 0);
    ValueId low = times(u.b, u.g, attr_float(&n, AK_alpha, 0.01), u.w);
    cx->gin[0] = b3(u.b, OP_WHERE, on, u.g, low, u.d);
    return OK;
}

/* g (Phi(x) + x phi(x)),  Phi = (1 + erf(x / sqrt 2)) / 2,
   phi = exp(-x^2 / 2) / sqrt(2 pi) */
Status grad_gelu(GradCtx *cx) {
    Unary u = unary(cx);
    ValueId e = b1(u.b, OP_ERF, times(u.b, u.x, sqrt(0.5), u.w), u.w);
    ValueId cdf = times(u.b, plus(u.b, e, 1, u.w), 0.5, u.w);
    ValueId pdf = times(u.b, bell(u, 0.5), 1 / sqrt(2 * acos(-1)), u.w);
    return times_g(cx, add(u.b, cdf, mul(u.b, u.x, pdf, u.w), u.w));
}

/* t = tanh(k (x + c x^3)), k = sqrt(2/pi), c = 0.044715
   g ((1 + t) / 2 + x/2 (1 - t^2) k (1 + 3 c x^2)) */
Status grad_gelu_tanh(GradCtx *cx) {
    Unary u = unary(cx);
    double k = sqrt(2 / acos(-1)), c = 0.044715;
    ValueId square = mul(u.b, u.x, u.x, u.w);
    ValueId inner = plus(u.b, times(u.b, square, c, u.w), 1, u.w);
    ValueId arg = times(u.b, mul(u.b, u.x, inner, u.w), k, u.w);
    ValueId t = b1(u.b, OP_TANH, arg, u.w);
    ValueId left = times(u.b, plus(u.b, t, 1, u.w), 0.5, u.w);
    ValueId slope = plus(u.b, times(u.b, square, 3 * c, u.w), 1, u.w);
    ValueId half = times(u.b, mul(u.b, u.x, slope, u.w), k / 2, u.w);
    ValueId right = mul(u.b, half, one_minus_square(u.b, t, u.w), u.w);
    return times_g(cx, add(u.b, left, right, u.w));
}

/* min <= x <= max ? g : 0; strict: 0 at the bounds */
Status grad_clip(GradCtx *cx) {
    Unary u = unary(cx);
    Node n = grad_node(cx);
    bool strict = attr_int(&n, AK_strict, 0) != 0;
    double lo = attr_float(&n, AK_min, -INFINITY);
    double hi = attr_float(&n, AK_max, INFINITY);
    ValueId above =
        compare(u.b, strict ? OP_GREATER : OP_GREATER_EQUAL, u.x, lo);
    ValueId below = compare(u.b, strict ? OP_LESS : OP_LESS_EQUAL, u.x, hi);
    ValueId in = isinf(lo)   ? below
                 : isinf(hi) ? above
                             : b2(u.b, OP_AND, above, below, DT_DEFAULT);
    cx->gin[0] = isinf(lo) && isinf(hi) ? u.g : keep_if(u.b, in, u.g, u.d);
    return OK;
}

/* g in x's dtype; integers and bools have no gradient */
Status grad_cast(GradCtx *cx) {
    Unary u = unary(cx);
    if (dtype_is_float(u.d) && dtype_is_float(dtype_of(u.b, u.y)))
        cx->gin[0] = b_cast(u.b, u.g, u.d);
    return OK;
}

/* ---- two operands -------------------------------------------------------- */

typedef struct Binary {
    Builder *b;
    ValueId x[2], y, g;
    DType w;
} Binary;

static Binary binary(const GradCtx *cx) {
    Node n = grad_node(cx);
    DType w = dtype_compute(dtype_of(cx->b, n.in[0]), dtype_of(cx->b, n.in[1]));
    return (Binary){cx->b, {n.in[0], n.in[1]}, n.out[0], cx->gout[0], w};
}

/* Dtype of the last node before un(): rounded only if nothing follows. */
static DType before_sum(const GradCtx *cx, int k) {
    Binary u = binary(cx);
    bool sums =
        !shape_equal(value_type(u.b->g, u.x[k]), value_type(u.b->g, u.y));
    return sums ? u.w : dtype_of(u.b, u.x[k]);
}

static void set_sum(GradCtx *cx, int k, ValueId v) {
    cx->gin[k] = grad_unbroadcast(cx->b, v, binary(cx).x[k]);
}

/* un(g), un(g) */
Status grad_add(GradCtx *cx) {
    for (int k = 0; k < 2; k++)
        if (cx->want[k]) set_sum(cx, k, cx->gout[0]);
    return OK;
}

/* un(g), un(-g) */
Status grad_sub(GradCtx *cx) {
    Binary u = binary(cx);
    if (cx->want[0]) set_sum(cx, 0, u.g);
    if (cx->want[1]) {
        /* negate what is smaller */
        ValueId s = grad_unbroadcast(u.b, u.g, u.x[1]);
        cx->gin[1] = b1(u.b, OP_NEG, s, DT_DEFAULT);
    }
    return OK;
}

/* un(g b), un(g a) */
Status grad_mul(GradCtx *cx) {
    Binary u = binary(cx);
    for (int k = 0; k < 2; k++)
        if (cx->want[k])
            set_sum(cx, k, mul(u.b, u.g, u.x[1 - k], before_sum(cx, k)));
    return OK;
}

/* un(g / b), un(-g y / b) */
Status grad_div(GradCtx *cx) {
    Binary u = binary(cx);
    if (cx->want[0])
        set_sum(cx, 0, divide(u.b, u.g, u.x[1], before_sum(cx, 0)));
    if (cx->want[1]) {
        ValueId gy = mul(u.b, u.g, u.y, u.w);
        ValueId minus = b1(u.b, OP_NEG, gy, u.w);
        set_sum(cx, 1, divide(u.b, minus, u.x[1], before_sum(cx, 1)));
    }
    return OK;
}

/* un(g), un(-g q) with the quotient q = round((a - y) / b), whichever sign
   rule y follows */
Status grad_mod(GradCtx *cx) {
    Binary u = binary(cx);
    if (cx->want[0]) set_sum(cx, 0, u.g);
    if (cx->want[1]) {
        ValueId part = sub(u.b, u.x[0], u.y, u.w);
        ValueId q = b1(u.b, OP_ROUND, divide(u.b, part, u.x[1], u.w), u.w);
        ValueId minus = b1(u.b, OP_NEG, q, u.w);
        set_sum(cx, 1, mul(u.b, u.g, minus, before_sum(cx, 1)));
    }
    return OK;
}

/* p x^(p-1) for a number p; short forms for the common ones */
static ValueId pow_slope(Binary u, double p) {
    Builder *b = u.b;
    if (p == 2) return times(b, u.x[0], 2, u.w);
    if (p == 3) return times(b, mul(b, u.x[0], u.x[0], u.w), 3, u.w);
    if (p == 0.5) return divide(b, b_scalar(b, u.w, 0.5), u.y, u.w);
    if (p == -1) {
        ValueId square = mul(b, u.y, u.y, u.w);
        return b1(b, OP_NEG, square, u.w);
    }
    ValueId q = b_scalar(b, u.w, p - 1);
    return times(b, b2(b, OP_POW, u.x[0], q, u.w), p, u.w);
}

/* the same for a tensor p; 0 where p is 0, also at x = 0 */
static ValueId pow_slope_tensor(Binary u) {
    Builder *b = u.b;
    ValueId power = b2(b, OP_POW, u.x[0], plus(b, u.x[1], -1, u.w), u.w);
    ValueId slope = mul(b, u.x[1], power, u.w);
    return b3(b, OP_WHERE, compare(b, OP_EQUAL, u.x[1], 0), b_scalar(b, u.w, 0),
              slope, u.w);
}

/* y ln x, 0 where x = 0: the operand of log is selected first, so that no
   infinity meets a zero */
static ValueId pow_log(Binary u) {
    Builder *b = u.b;
    ValueId zero = compare(b, OP_EQUAL, u.x[0], 0);
    ValueId safe = b3(b, OP_WHERE, zero, b_scalar(b, u.w, 1), u.x[0], u.w);
    ValueId v = mul(b, u.y, b1(b, OP_LOG, safe, u.w), u.w);
    return b3(b, OP_WHERE, zero, b_scalar(b, u.w, 0), v, u.w);
}

/* un(g p x^(p-1)), un(g y ln x) */
Status grad_pow(GradCtx *cx) {
    Binary u = binary(cx);
    double p;
    bool number = value_is_splat(u.b->g, u.x[1], &p);
    if (cx->want[0] && number && p == 0)
        cx->gin[0] = b_full(u.b, value_get(u.b->g, u.x[0])->type, 0);
    else if (cx->want[0]) {
        ValueId slope = number ? pow_slope(u, p) : pow_slope_tensor(u);
        set_sum(cx, 0, mul(u.b, u.g, slope, before_sum(cx, 0)));
    }
    if (cx->want[1])
        set_sum(cx, 1, mul(u.b, u.g, pow_log(u), before_sum(cx, 1)));
    return OK;
}

/* to the winner; half each at a tie; both on NaN */
static Status extremum(GradCtx *cx, OpCode loses) {
    Binary u = binary(cx);
    Builder *b = u.b;
    ValueId tie = b2(b, OP_EQUAL, u.x[0], u.x[1], DT_DEFAULT);
    ValueId half = times(b, u.g, 0.5, u.w);
    for (int k = 0; k < 2; k++) {
        if (!cx->want[k]) continue;
        ValueId lost = b2(b, loses, u.x[k], u.x[1 - k], DT_DEFAULT);
        ValueId won = b3(b, OP_WHERE, lost, b_scalar(b, u.w, 0), u.g, u.w);
        set_sum(cx, k, b3(b, OP_WHERE, tie, half, won, before_sum(cx, k)));
    }
    return OK;
}

Status grad_min(GradCtx *cx) { return extremum(cx, OP_GREATER); }
Status grad_max(GradCtx *cx) { return extremum(cx, OP_LESS); }

/* none, un(c ? g : 0), un(c ? 0 : g): selects, so that an infinity of the
   other branch cannot leak */
Status grad_where(GradCtx *cx) {
    Builder *b = cx->b;
    Node n = grad_node(cx);
    ValueId zero = b_scalar(b, wide_of(b, n.out[0]), 0), g = cx->gout[0];
    for (int k = 1; k < 3; k++) {
        if (!cx->want[k]) continue;
        ValueId v = b3(b, OP_WHERE, n.in[0], k == 1 ? g : zero,
                       k == 1 ? zero : g, dtype_of(b, g));
        cx->gin[k] = grad_unbroadcast(b, v, n.in[k]);
    }
    return OK;
}
