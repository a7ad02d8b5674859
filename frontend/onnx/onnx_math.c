/* SPDX-License-Identifier: Apache-2.0 */
/* onnx_math.c: arithmetic, comparison, casts and matrix products. */
#include <math.h>
#include <string.h>

#include "frontend/onnx/onnx.h"
#include "ir/fn/fn.h"

/* Before opset 7 the second operand was aligned at axis `axis`. */
static Status align(Ox *ox, ValueId a, ValueId *b) {
    if (ox->node->version >= 7 || !ox_attr(ox, "axis")) return OK;
    Type ta = ox_type(ox, a), tb = ox_type(ox, *b);
    int64_t axis = ox_int(ox, "axis", -1);
    if (axis < 0) axis += ta.rank;
    int64_t tail = ta.rank - axis - tb.rank;
    if (axis < 0 || tail < 0)
        return ox_fail(ox,
                       "axis %lld does not place an operand of rank %d in "
                       "one of rank %d",
                       (long long)ox_int(ox, "axis", -1), tb.rank, ta.rank);
    int64_t dim[MAX_RANK];
    for (int i = 0; i < tb.rank + tail; i++)
        dim[i] = i < tb.rank ? tb.dim[i] : 1;
    return ox_reshape(ox, *b, tb.rank + (int)tail, dim, b);
}

Status onnx_elem(Ox *ox) {
    ValueId in[3], y;
    int n = ox->node->nin;
    for (int i = 0; i < n; i++) in[i] = ox_in(ox, i);
    const char *name = ox->node->nout ? ox->node->out[0] : "";
    if (n == 2) TRY(align(ox, in[0], &in[1]));
    TRY(ox_make(ox, callee_op(ox->node->op->core), in, n, NULL, 0, 1, NULL,
                *name ? &name : NULL, &y));
    return ox_out(ox, 0, y);
}

/* The sum of powers whose p-th root the node takes, a norm; or NULL. */
static const Node *norm_of(const Ox *ox, ValueId sum, double root, double *p) {
    const Node *n, *power;
    while ((n = ox_def(ox, sum, OP_RESHAPE))) sum = n->in[0];
    n = ox_def(ox, sum, OP_REDUCE_SUM);
    power = n ? ox_def(ox, n->in[0], OP_POW) : NULL;
    return power && ox_const_scalar(ox, power->in[1], p) && *p > 0 &&
                   (fabs(root * *p - 1) < 1e-5 || (isinf(*p) && !root))
               ? n
               : NULL;
}

/* The gradient at 0 is 0: there the power's gradient is infinite, and
   PyTorch's norm has gradient 0. */
static Status root_of_norm(Ox *ox, ValueId a, ValueId b, ValueId *y) {
    ValueId zero, one = ox_scalar(ox, ox_type(ox, a).dtype, 1);
    TRY(ox2k(ox, OP_EQUAL, a, 0, &zero));
    TRY(ox3(ox, OP_WHERE, zero, one, a, &a));
    TRY(ox2(ox, OP_POW, a, b, &a));
    return ox3(ox, OP_WHERE, zero, ox_scalar(ox, ox_type(ox, a).dtype, 0), a,
               y);
}

/* TorchScript writes cdist() and pairwise_distance() as the root 1 / (p + eps)
   of a sum of powers of differences, without their absolute values: wrong for
   every p that is not even. */
static Status distance(Ox *ox, const Node *sum, double root, double p,
                       ValueId *a) {
    const Node *power = ox_def(ox, sum->in[0], OP_POW);
    bool root_is_theirs = isinf(p) || 1 - root * p > 1e-7;
    if (!ox->is_torch || ox->has_signature || !root_is_theirs ||
        fmod(p, 2) == 0 || !ox_def(ox, power->in[0], OP_SUB))
        return OK;
    if (isinf(p))
        return ox_fail(ox, "TorchScript loses the maximum of a distance with "
                           "p=inf: export with dynamo=True");
    ox_warn_node(ox, ox->node,
                 "TorchScript loses the absolute values of a distance with "
                 "p=%g: they are taken here; ONNX Runtime does not",
                 p);
    ValueId x = power->in[0], exponent = power->in[1], kept = *a;
    const int64_t *axes;
    int64_t copy[MAX_RANK];
    int n = attr_ints(sum, AK_axes, &axes);
    for (int i = 0; i < n; i++) copy[i] = axes[i];
    Type t = ox_type(ox, kept);
    TRY(ox1(ox, OP_ABS, x, &x));
    TRY(ox2(ox, OP_POW, x, exponent, &x));
    TRY(ox_reduce(ox, OP_REDUCE_SUM, x, copy, n, false, &x));
    return ox_reshape(ox, x, t.rank, t.dim, a);
}

/* A power whose slope at 0 PyTorch takes for 0: the root of a norm, and the
   elements of a norm with p below 1. */
static Status float_power(Ox *ox, ValueId a, ValueId b, ValueId *y) {
    double k, p;
    bool known = ox_const_scalar(ox, b, &k);
    const Node *sum = known ? norm_of(ox, a, k, &p) : NULL;
    if (sum) TRY(distance(ox, sum, k, p, &a));
    if (sum || (known && k > 0 && k < 1 && ox_def(ox, a, OP_ABS)))
        return root_of_norm(ox, a, b, y);
    return ox2(ox, OP_POW, a, b, y);
}

/* The result has the base's type; the exponent may have another. */
Status onnx_pow(Ox *ox) {
    ValueId a = ox_in(ox, 0), b = ox_in(ox, 1), y;
    TRY(align(ox, a, &b));
    DType da = ox_type(ox, a).dtype, db = ox_type(ox, b).dtype;
    if (dtype_is_float(da) || !dtype_is_float(db)) {
        TRY(ox_cast(ox, b, da, false, &b));
        TRY(float_power(ox, a, b, &y));
    } else {
        TRY(ox_cast(ox, a, db, false, &a));
        TRY(ox2(ox, OP_POW, a, b, &y));
        TRY(ox_cast(ox, y, da, false, &y));
    }
    return ox_out(ox, 0, y);
}

/* Gives r the sign of b: r + b if r is not 0 and the signs differ. */
static Status floor_rule(Ox *ox, ValueId r, ValueId b, ValueId *out) {
    ValueId rneg, bneg, differ, zero, fixed;
    TRY(ox2k(ox, OP_LESS, r, 0, &rneg));
    TRY(ox2k(ox, OP_LESS, b, 0, &bneg));
    TRY(ox2(ox, OP_XOR, rneg, bneg, &differ));
    TRY(ox2k(ox, OP_EQUAL, r, 0, &zero));
    TRY(ox1(ox, OP_NOT, zero, &zero));
    TRY(ox2(ox, OP_AND, differ, zero, &differ));
    TRY(ox2(ox, OP_ADD, r, b, &fixed));
    return ox3(ox, OP_WHERE, differ, fixed, r, out);
}

/* The core's integer remainder takes the divisor's sign, and its floating
   one the dividend's: ONNX fmod=0 and fmod=1. */
Status onnx_mod(Ox *ox) {
    ValueId a = ox_in(ox, 0), b = ox_in(ox, 1), y;
    bool fl = dtype_is_float(ox_type(ox, a).dtype);
    bool fmod_rule = ox_int(ox, "fmod", 0) != 0;
    if (!fl && fmod_rule) {
        TRY(ox2(ox, OP_DIV, a, b, &y));
        TRY(ox2(ox, OP_MUL, y, b, &y));
        TRY(ox2(ox, OP_SUB, a, y, &y));
        return ox_out(ox, 0, y);
    }
    TRY(ox2(ox, OP_MOD, a, b, &y));
    if (fl && !fmod_rule) TRY(floor_rule(ox, y, b, &y));
    return ox_out(ox, 0, y);
}

Status onnx_isinf(Ox *ox) {
    ValueId x = ox_in(ox, 0), y, side;
    bool neg = ox_int(ox, "detect_negative", 1) != 0;
    bool pos = ox_int(ox, "detect_positive", 1) != 0;
    TRY(ox1(ox, OP_ISINF, x, &y));
    if (!neg || !pos) {
        TRY(ox2k(ox, neg ? OP_LESS : OP_GREATER, x, 0, &side));
        if (!neg && !pos) side = ox_scalar(ox, DT_BOOL, 0);
        TRY(ox2(ox, OP_AND, y, side, &y));
    }
    return ox_out(ox, 0, y);
}

static Status fold_left(Ox *ox, OpCode op, ValueId *y) {
    *y = ox_in(ox, 0);
    for (int i = 1; i < ox->node->nin; i++)
        TRY(ox2(ox, op, *y, ox_in(ox, i), y));
    return OK;
}

Status onnx_sum(Ox *ox) {
    ValueId y;
    TRY(fold_left(ox, OP_ADD, &y));
    return ox_out(ox, 0, y);
}

Status onnx_mean(Ox *ox) {
    ValueId y;
    TRY(fold_left(ox, OP_ADD, &y));
    if (ox->node->nin > 1) TRY(ox2k(ox, OP_DIV, y, ox->node->nin, &y));
    return ox_out(ox, 0, y);
}

/* ---- bits ---------------------------------------------------------------- */

/* Integer arithmetic wraps, so one bitwise op suffices to express the
   others. */
Status onnx_bitwise(Ox *ox) {
    ValueId a = ox_in(ox, 0), b = ox_in(ox, 1), both, y;
    OpCode core = ox->node->op->core;
    DType d = ox_type(ox, a).dtype;
    if (!dtype_is_int(d)) return ox_fail(ox, "bits of %s", dtype_info[d].text);
    if (core == OP_NOT) {
        TRY(ox2(ox, OP_SUB, ox_scalar(ox, d, 0), a, &y));
        TRY(ox2k(ox, OP_SUB, y, 1, &y));
        return ox_out(ox, 0, y);
    }
    TRY(ox2(ox, OP_BIT_AND, a, b, &y));
    if (core != OP_BIT_AND) {
        TRY(ox2(ox, OP_ADD, a, b, &both));
        if (core == OP_XOR) TRY(ox2k(ox, OP_MUL, y, 2, &y));
        TRY(ox2(ox, OP_SUB, both, y, &y));
    }
    return ox_out(ox, 0, y);
}

/* Shifts are products with powers of 2, or quotients rounded down. Shifts by
   the number of bits or more leave only the sign. */
Status onnx_bit_shift(Ox *ox) {
    ValueId a = ox_in(ox, 0), b = ox_in(ox, 1), ok, below, y, rest;
    Str way = ox_str(ox, "direction", "");
    bool left = !strcmp(way, "LEFT");
    DType d = ox_type(ox, a).dtype, wide = d == DT_U64 ? DT_U64 : DT_I64;
    int bits = 8 * dtype_info[d].bytes;
    if (!left && strcmp(way, "RIGHT"))
        return ox_fail(ox, "direction '%s'", ox_quote(ox, way));
    if (!dtype_is_int(d)) return ox_fail(ox, "bits of %s", dtype_info[d].text);
    ValueId none = ox_scalar(ox, wide, 0), one = ox_scalar(ox, wide, 1);
    TRY(ox_cast(ox, a, wide, false, &a));
    TRY(ox_cast(ox, b, wide, false, &b));
    TRY(ox2k(ox, OP_GREATER_EQUAL, b, 0, &ok));
    TRY(ox2k(ox, OP_LESS, b, left || bits < 64 ? bits : 63, &below));
    TRY(ox2(ox, OP_AND, ok, below, &ok));
    TRY(ox3(ox, OP_WHERE, ok, b, none, &b));
    TRY(ox2(ox, OP_POW, ox_scalar(ox, wide, 2), b, &b));
    if (left) {
        TRY(ox2(ox, OP_MUL, a, b, &y));
        rest = none;
    } else {
        TRY(ox2(ox, OP_MOD, a, b, &y));
        TRY(ox2(ox, OP_SUB, a, y, &y));
        TRY(ox2(ox, OP_DIV, y, b, &y));
        TRY(ox2(ox, OP_LESS, a, none, &below));
        TRY(ox2(ox, OP_SUB, none, one, &rest));
        TRY(ox3(ox, OP_WHERE, below, rest, none, &rest));
    }
    TRY(ox3(ox, OP_WHERE, ok, y, rest, &y));
    TRY(ox_cast(ox, y, d, false, &y));
    return ox_out(ox, 0, y);
}

/* ---- where --------------------------------------------------------------- */

/* The softmax whose result is v, ignoring casts. */
static const Node *softmax_of(const Ox *ox, ValueId v) {
    const Node *n;
    while ((n = ox_def(ox, v, OP_CAST))) v = n->in[0];
    n = ox_def(ox, v, OP_CALL);
    return n && is_call(n, "softmax") ? n : NULL;
}

/* Exporters write the softmax of rows that may be all -inf as
   Where(IsNaN(p), 0, p), or with a condition per row. The NaN of such a row
   would spoil its gradient, so its scores are replaced before the softmax. */
static Status guarded_softmax(Ox *ox, const Node *p, ValueId *in) {
    int axis = (int)attr_int(p, AK_axis);
    const Node *nan = ox_def(ox, in[0], OP_ISNAN);
    Type t = ox_type(ox, in[2]), c = ox_type(ox, in[0]);
    ValueId s = p->in[0];
    int at = axis_norm(axis, t.rank) - (t.rank - c.rank);
    Attr attr = attr_i(AK_axis, axis);
    if (nan && same_value(nan->in[0], in[2])) {
        TRY(ox_call(ox, "masked_softmax", &s, 1, &attr, 1, 1, &in[2]));
    } else if (!nan && (at < 0 || c.dim[at] == 1) && c.rank <= t.rank) {
        ValueId none = ox_scalar(ox, ox_type(ox, s).dtype, 0);
        TRY(ox3(ox, OP_WHERE, in[0], none, s, &s));
        TRY(ox_call(ox, "softmax", &s, 1, &attr, 1, 1, &in[2]));
    } else {
        return OK;
    }
    return ox_cast(ox, in[2], t.dtype, false, &in[2]);
}

/* PyTorch's exporter masks keys with the lowest finite number instead of
   -inf: a query without any key would get the mean of all values. */
static void hide_keys(Ox *ox, ValueId *in) {
    double hidden, seen;
    if (ox_torch_node(ox->node, "aten.scaled_dot_product_attention") &&
        value_is_splat(ox->g, in[1], &seen) && seen == 0 &&
        value_is_splat(ox->g, in[2], &hidden) && hidden <= -65504)
        in[2] = ox_scalar(ox, ox_type(ox, in[2]).dtype, -INFINITY);
}

/* xlogy(x, y), which the file has as Where(x == 0, x, Where(isnan(y), y,
   x log y)): its gradient at x = 0 is log y where that is finite, else 0. */
static Status where_of_xlogy(Ox *ox, ValueId in[3]) {
    const OxNode *inner = ox_maker(ox, ox->node->in[2], "Where");
    ValueId y, below, beyond;
    if (!inner || !ox_torch_node(ox->node, "aten.xlogy")) return OK;
    y = ox_name_of(ox, inner->in[1])->value;
    TRY(ox2k(ox, OP_LESS_EQUAL, y, 0, &below));
    TRY(ox1(ox, OP_ISINF, y, &beyond));
    TRY(ox2(ox, OP_OR, below, beyond, &below));
    TRY(ox2(ox, OP_AND, in[0], below, &in[0]));
    in[1] = ox_scalar(ox, ox_type(ox, in[1]).dtype, 0);
    return OK;
}

Status onnx_where(Ox *ox) {
    ValueId in[3] = {ox_in(ox, 0), ox_in(ox, 1), ox_in(ox, 2)}, y;
    const Node *p = softmax_of(ox, in[2]);
    double k;
    hide_keys(ox, in);
    TRY(where_of_xlogy(ox, in));
    if (p && value_is_splat(ox->g, in[1], &k) && k == 0) {
        Node copy = *p; /* creating nodes may move the pool */
        TRY(guarded_softmax(ox, &copy, in));
    }
    TRY(ox_op(ox, OP_WHERE, in, 3, NULL, 0, &y));
    return ox_out(ox, 0, y);
}

/* ---- casts --------------------------------------------------------------- */

/* ONNX's casts to 8-bit floats saturate unless they are told not to; those of
   the IR overflow to infinity or NaN. */
static Status math_cast(Ox *ox, ValueId x, DType d, ValueId *y) {
    Attr limits[] = {attr_f(AK_min, -dtype_info[d].most),
                     attr_f(AK_max, dtype_info[d].most)};
    ValueId wide, inf, clipped, level = NO_VALUE;
    if (dtype_is_float(d) && dtype_is_int(ox_type(ox, x).dtype))
        TRY(ox_levels(ox, x, &level));
    if (is_value(level)) x = level;
    if (!dtype_info[d].stored || ox_type(ox, x).dtype == d)
        return ox_cast(ox, x, d, true, y);
    if (d == DT_E8M0 && strcmp(ox_str(ox, "round_mode", "up"), "nearest"))
        return ox_fail(ox,
                       "round_mode '%s' of a power of two: ampc rounds to "
                       "the nearest one; write round_mode = nearest",
                       ox_quote(ox, ox_str(ox, "round_mode", "up")));
    TRY(ox_cast(ox, x, DT_F32, true, &wide));
    if (ox_int(ox, "saturate", 1)) {
        TRY(ox_op(ox, OP_CLIP, &wide, 1, limits, 2, &clipped));
        if (d == DT_E8M0) { /* infinity stays NaN */
            TRY(ox_op(ox, OP_ISINF, &wide, 1, NULL, 0, &inf));
            TRY(ox_op(ox, OP_WHERE, (ValueId[]){inf, wide, clipped}, 3, NULL, 0,
                      &clipped));
        }
        wide = clipped;
    }
    return ox_cast(ox, wide, d, true, y);
}

Status onnx_cast(Ox *ox) {
    DType d;
    ValueId y;
    if (!ox_attr(ox, "to")) return ox_fail(ox, "attribute 'to' is missing");
    int64_t to = ox_int(ox, "to", 0);
    TRY(ox_dtype(ox, to < 0 || to > 1000 ? -1 : (int)to, "attribute to", &d));
    TRY(math_cast(ox, ox_in(ox, 0), d, &y));
    return ox_out(ox, 0, y);
}

Status onnx_cast_like(Ox *ox) {
    ValueId y;
    TRY(math_cast(ox, ox_in(ox, 0), ox_type(ox, ox_in(ox, 1)).dtype, &y));
    return ox_out(ox, 0, y);
}

/* ---- products ------------------------------------------------------------ */

static Status math_product(Ox *ox, ValueId a, ValueId b, bool ta, bool tb,
                           ValueId *y) {
    Attr attr[] = {attr_i(AK_trans_a, ta), attr_i(AK_trans_b, tb)};
    return ox_op(ox, OP_MATMUL, (ValueId[]){a, b}, 2, attr, 2, y);
}

/* x in x * k, or NO_VALUE. */
static ValueId unscaled(const Ox *ox, ValueId v, double *k) {
    const Node *n = ox_def(ox, v, OP_MUL);
    for (int i = 0; n && i < 2; i++)
        if (value_get(ox->g, n->in[1 - i])->kind == VK_CONST &&
            ox_const_scalar(ox, n->in[1 - i], k) &&
            shape_equal(value_type(ox->g, n->in[i]), value_type(ox->g, v)))
            return n->in[i];
    return NO_VALUE;
}

/* Exporters apply a part of the attention scale to each operand. If all of
   it is applied to the first operand, the second is a plain transpose, which
   the matrix product reads at no cost. */
static Status merge_scales(Ox *ox, ValueId *a, ValueId *b) {
    double ka, kb;
    ValueId xa = unscaled(ox, *a, &ka), xb = unscaled(ox, *b, &kb);
    if (!is_value(xa) || !is_value(xb)) return OK;
    TRY(ox2k(ox, OP_MUL, xa, ka * kb, a));
    *b = xb;
    return OK;
}

/* A vector on the left becomes a row, one on the right a column; the result
   loses that dimension again. */
Status onnx_matmul(Ox *ox) {
    ValueId a = ox_in(ox, 0), b = ox_in(ox, 1), y;
    Type ta = ox_type(ox, a), tb = ox_type(ox, b);
    if (ta.rank == 0 || tb.rank == 0)
        return ox_fail(ox, "operands must not be scalars");
    if (ta.rank == 1) TRY(ox_reshape(ox, a, 2, (int64_t[]){1, ta.dim[0]}, &a));
    if (tb.rank == 1) TRY(ox_reshape(ox, b, 2, (int64_t[]){tb.dim[0], 1}, &b));
    if (dtype_is_int(ta.dtype)) {
        TRY(ox_call(ox, "whole_matmul", (ValueId[]){a, b}, 2, NULL, 0, 1, &y));
    } else {
        TRY(merge_scales(ox, &a, &b));
        TRY(math_product(ox, a, b, false, false, &y));
    }
    Type ty = ox_type(ox, y);
    int64_t dim[MAX_RANK];
    int rank = 0;
    for (int i = 0; i < ty.rank; i++)
        if (!(ta.rank == 1 && i == ty.rank - 2) &&
            !(tb.rank == 1 && i == ty.rank - 1))
            dim[rank++] = ty.dim[i];
    if (rank < ty.rank) TRY(ox_reshape(ox, y, rank, dim, &y));
    return ox_out(ox, 0, y);
}

static Status integer_matrices(Ox *ox, ValueId a, ValueId b, bool ta, bool tb,
                               ValueId *y) {
    static const int64_t swapped[] = {1, 0};
    ValueId in[] = {a, b};
    if (ta) TRY(ox_transpose(ox, a, swapped, &in[0]));
    if (tb) TRY(ox_transpose(ox, b, swapped, &in[1]));
    return ox_call(ox, "whole_matmul", in, 2, NULL, 0, 1, y);
}

/* True if the integer type has the number. */
static bool is_of_type(double k, DType d) {
    return k == floor(k) && fabs(k) < 0x1p63 && dtype_holds(d, (int64_t)k);
}

Status onnx_gemm(Ox *ox) {
    ValueId a = ox_in(ox, 0), b = ox_in(ox, 1), c = ox_in(ox, 2), y;
    double alpha = ox_float(ox, "alpha", 1), beta = ox_float(ox, "beta", 1);
    bool ta = ox_int(ox, "transA", 0) != 0, tb = ox_int(ox, "transB", 0) != 0;
    DType d = ox_type(ox, a).dtype;
    bool whole = dtype_is_int(d);
    if (ox_type(ox, a).rank != 2 || ox_type(ox, b).rank != 2)
        return ox_fail(ox, "operands must be matrices");
    if (whole) { /* all digits of a large number, not the fewest */
        alpha = (float)alpha;
        beta = (float)beta;
    }
    if (whole && !(is_of_type(alpha, d) && is_of_type(beta, d)))
        return ox_fail(ox,
                       "alpha is %g and beta %g; of integers both must be "
                       "whole numbers of their type: cast the operands to "
                       "float",
                       alpha, beta);
    TRY(whole ? integer_matrices(ox, a, b, ta, tb, &y)
              : math_product(ox, a, b, ta, tb, &y));
    if (alpha != 1) TRY(ox2k(ox, OP_MUL, y, alpha, &y));
    if (is_value(c) && beta != 0) {
        Type before = ox_type(ox, y), after;
        if (beta != 1) TRY(ox2k(ox, OP_MUL, c, beta, &c));
        TRY(ox2(ox, OP_ADD, y, c, &y));
        after = ox_type(ox, y);
        if (!shape_equal(&before, &after))
            return ox_fail(ox, "operand C does not broadcast to the product");
    }
    return ox_out(ox, 0, y);
}

/* ---- activations --------------------------------------------------------- */

Status onnx_gelu(Ox *ox) {
    ValueId y;
    Str how = ox_str(ox, "approximate", "none");
    bool is_tanh = !strcmp(how, "tanh");
    if (!is_tanh && strcmp(how, "none"))
        return ox_fail(ox, "approximate '%s' is neither none nor tanh",
                       ox_quote(ox, how));
    TRY(ox1(ox, is_tanh ? OP_GELU_TANH : OP_GELU, ox_in(ox, 0), &y));
    return ox_out(ox, 0, y);
}

/* Before opset 6 the defaults had four digits. */
Status onnx_selu(Ox *ox) {
    ValueId x = ox_in(ox, 0), y;
    if (ox->node->version >= 6) return onnx_call(ox);
    Attr attr[] = {attr_named_f("alpha", ox_float(ox, "alpha", 1.6732)),
                   attr_named_f("gamma", ox_float(ox, "gamma", 1.0507))};
    TRY(ox_call(ox, "selu", &x, 1, attr, 2, 1, &y));
    return ox_out(ox, 0, y);
}

Status onnx_prelu(Ox *ox) {
    ValueId in[2] = {ox_in(ox, 0), ox_in(ox, 1)}, y;
    Type tx = ox_type(ox, in[0]), ts = ox_type(ox, in[1]);
    int64_t dim[MAX_RANK];
    /* before opset 7 the slope was a vector over axis 1 */
    if (ox->node->version < 7 && ts.rank == 1 && tx.rank > 1) {
        for (int i = 0; i < tx.rank - 1; i++) dim[i] = i ? 1 : ts.dim[0];
        TRY(ox_reshape(ox, in[1], tx.rank - 1, dim, &in[1]));
    }
    TRY(ox_call(ox, "prelu", in, 2, NULL, 0, 1, &y));
    return ox_out(ox, 0, y);
}

/* x < -lambd ? x + bias : x > lambd ? x - bias : 0 */
Status onnx_shrink(Ox *ox) {
    ValueId x = ox_in(ox, 0), low, high, below, above, y;
    double lambd = ox_float(ox, "lambd", 0.5), bias = ox_float(ox, "bias", 0);
    DType d = ox_type(ox, x).dtype;
    if (!dtype_is_float(d)) TRY(ox_cast(ox, x, DT_F32, true, &x));
    TRY(ox2k(ox, OP_LESS, x, -lambd, &low));
    TRY(ox2k(ox, OP_GREATER, x, lambd, &high));
    TRY(ox2k(ox, OP_ADD, x, bias, &below));
    TRY(ox2k(ox, OP_SUB, x, bias, &above));
    TRY(ox3(ox, OP_WHERE, high, above, ox_scalar(ox, ox_type(ox, x).dtype, 0),
            &y));
    TRY(ox3(ox, OP_WHERE, low, below, y, &y));
    if (!dtype_is_float(d)) TRY(ox_cast(ox, y, d, true, &y));
    return ox_out(ox, 0, y);
}
