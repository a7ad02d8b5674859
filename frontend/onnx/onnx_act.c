/* onnx_act.c: activations; those that the core lacks are written out.  Where a
   branch that is not taken could overflow, its operand is bounded first, so
   that no 0 * inf reaches a gradient.                                       */
#include <string.h>

#include "frontend/onnx/onnx.h"

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

Status onnx_leaky_relu(Ox *ox) {
    ValueId x = ox_in(ox, 0), y;
    Attr attr = attr_f(AK_alpha, ox_float(ox, "alpha", 0.01));
    TRY(ox_op(ox, OP_LEAKY_RELU, &x, 1, &attr, 1, &y));
    return ox_out(ox, 0, y);
}

/* Before opset 7 the slope was a vector over axis 1. */
static Status slope_of(Ox *ox, ValueId x, ValueId *slope) {
    *slope = ox_in(ox, 1);
    Type tx = ox_type(ox, x), ts = ox_type(ox, *slope);
    if (ox->node->version >= 7 || ts.rank != 1 || tx.rank < 2) return OK;
    int64_t dim[MAX_RANK];
    for (int i = 0; i < tx.rank - 1; i++) dim[i] = i ? 1 : ts.dim[0];
    return ox_reshape(ox, *slope, tx.rank - 1, dim, slope);
}

static Status where_positive(Ox *ox, ValueId x, ValueId pos, ValueId neg,
                             ValueId *y) {
    ValueId c;
    TRY(ox2k(ox, OP_GREATER, x, 0, &c));
    return ox3(ox, OP_WHERE, c, pos, neg, y);
}

Status onnx_prelu(Ox *ox) {
    ValueId x = ox_in(ox, 0), s, y;
    TRY(slope_of(ox, x, &s));
    TRY(ox2(ox, OP_MUL, x, s, &s));
    TRY(where_positive(ox, x, x, s, &y));
    return ox_out(ox, 0, y);
}

/* gain * (x > 0 ? x : alpha * (exp(x / width) - 1)) */
static Status exponential(Ox *ox, double alpha, double width, double gain) {
    ValueId x = ox_in(ox, 0), e, y;
    TRY(ox2k(ox, OP_MIN, x, 0, &e));
    if (width != 1) TRY(ox2k(ox, OP_DIV, e, width, &e));
    TRY(ox1(ox, OP_EXP, e, &e));
    TRY(ox2k(ox, OP_SUB, e, 1, &e));
    if (alpha != 1) TRY(ox2k(ox, OP_MUL, e, alpha, &e));
    TRY(where_positive(ox, x, x, e, &y));
    if (gain != 1) TRY(ox2k(ox, OP_MUL, y, gain, &y));
    return ox_out(ox, 0, y);
}

Status onnx_elu(Ox *ox) {
    return exponential(ox, ox_float(ox, "alpha", 1), 1, 1);
}

Status onnx_selu(Ox *ox) {
    return exponential(ox, ox_float(ox, "alpha", 1.67326319217681884765625), 1,
                       ox_float(ox, "gamma", 1.05070102214813232421875));
}

Status onnx_celu(Ox *ox) {
    double alpha = ox_float(ox, "alpha", 1);
    return exponential(ox, alpha, alpha, 1);
}

/* clip(alpha * x + beta, 0, 1), no gradient at the bounds */
static Status hard_sigmoid(Ox *ox, ValueId x, double alpha, double beta,
                           ValueId *y) {
    Attr attr[] = {attr_f(AK_min, 0), attr_f(AK_max, 1), attr_i(AK_strict, 1)};
    TRY(ox2k(ox, OP_MUL, x, alpha, y));
    TRY(ox2k(ox, OP_ADD, *y, beta, y));
    return ox_op(ox, OP_CLIP, y, 1, attr, 3, y);
}

Status onnx_hard_sigmoid(Ox *ox) {
    ValueId y;
    TRY(hard_sigmoid(ox, ox_in(ox, 0), ox_float(ox, "alpha", 0.2),
                     ox_float(ox, "beta", 0.5), &y));
    return ox_out(ox, 0, y);
}

Status onnx_hard_swish(Ox *ox) {
    ValueId x = ox_in(ox, 0), y;
    TRY(hard_sigmoid(ox, x, 1.0 / 6, 0.5, &y));
    TRY(ox2(ox, OP_MUL, x, y, &y));
    return ox_out(ox, 0, y);
}

Status onnx_mish(Ox *ox) {
    ValueId x = ox_in(ox, 0), y;
    TRY(ox1(ox, OP_SOFTPLUS, x, &y));
    TRY(ox1(ox, OP_TANH, y, &y));
    TRY(ox2(ox, OP_MUL, x, y, &y));
    return ox_out(ox, 0, y);
}

Status onnx_swish(Ox *ox) {
    ValueId x = ox_in(ox, 0), y = x;
    double alpha = ox_float(ox, "alpha", 1);
    if (alpha != 1) TRY(ox2k(ox, OP_MUL, x, alpha, &y));
    TRY(ox1(ox, OP_SIGMOID, y, &y));
    TRY(ox2(ox, OP_MUL, x, y, &y));
    return ox_out(ox, 0, y);
}

Status onnx_softsign(Ox *ox) {
    ValueId x = ox_in(ox, 0), y;
    TRY(ox1(ox, OP_ABS, x, &y));
    TRY(ox2k(ox, OP_ADD, y, 1, &y));
    TRY(ox2(ox, OP_DIV, x, y, &y));
    return ox_out(ox, 0, y);
}

Status onnx_thresholded(Ox *ox) {
    ValueId x = ox_in(ox, 0), c, y;
    TRY(ox2k(ox, OP_GREATER, x, ox_float(ox, "alpha", 1), &c));
    TRY(ox3(ox, OP_WHERE, c, x, ox_scalar(ox, ox_type(ox, x).dtype, 0), &y));
    return ox_out(ox, 0, y);
}

/* x < -lambd ? x + bias : x > lambd ? x - bias : 0 */
Status onnx_shrink(Ox *ox) {
    ValueId x = ox_in(ox, 0), low, high, below, above, y;
    double lambd = ox_float(ox, "lambd", 0.5), bias = ox_float(ox, "bias", 0);
    TRY(ox2k(ox, OP_LESS, x, -lambd, &low));
    TRY(ox2k(ox, OP_GREATER, x, lambd, &high));
    TRY(ox2k(ox, OP_ADD, x, bias, &below));
    TRY(ox2k(ox, OP_SUB, x, bias, &above));
    TRY(ox3(ox, OP_WHERE, high, above, ox_scalar(ox, ox_type(ox, x).dtype, 0),
            &y));
    TRY(ox3(ox, OP_WHERE, low, below, y, &y));
    return ox_out(ox, 0, y);
}
