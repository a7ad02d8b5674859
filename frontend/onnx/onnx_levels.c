/* SPDX-License-Identifier: Apache-2.0 */
/* onnx_levels.c: ops on the integers of quantised files (quantized.amp).
   Integers that were rounded from floats are casts of float values, and a
   reader takes those: the gradient passes from the product of two integers to
   the floats before the rounding. Other integers, such as weights, have none
   and stay as they are. */
#include <math.h>
#include <string.h>

#include "frontend/onnx/onnx.h"
#include "ir/fn/fn.h"

/* True for floats that are integers by construction; those of f64 are exact
   sums of integers, through which no gradient passes. */
static bool is_whole_number(const Ox *ox, ValueId v) {
    const Node *n = ox_def(ox, v, OP_CALL);
    return n && value_dtype(ox->g, v) != DT_F64 &&
           (is_call(n, "level") || is_call(n, "quantize"));
}

/* Ops that move elements of their first operand. */
static const Node *moving_node(const Ox *ox, ValueId v) {
    static const OpCode ops[] = {OP_RESHAPE, OP_TRANSPOSE, OP_EXPAND, OP_SLICE,
                                 OP_GATHER};
    for (size_t i = 0; i < sizeof ops / sizeof *ops; i++) {
        const Node *n = ox_def(ox, v, ops[i]);
        if (n) return n;
    }
    return NULL;
}

Status ox_levels(Ox *ox, ValueId v, ValueId *y) {
    enum { MOST = 2 };
    const Node *cast = ox_def(ox, v, OP_CAST), *n = moving_node(ox, v);
    *y = NO_VALUE;
    if (cast && is_whole_number(ox, cast->in[0])) {
        *y = cast->in[0];
        return OK;
    }
    if (cast && !dtype_is_float(ox_type(ox, cast->in[0]).dtype))
        return ox_levels(ox, cast->in[0], y);
    if (!n || n->nin > MOST || n->nout != 1) return OK;
    Node copy = *n; /* creating nodes may move the pool */
    ValueId in[MOST] = {copy.in[0], copy.nin > 1 ? copy.in[1] : NO_VALUE};
    TRY(ox_levels(ox, in[0], &in[0]));
    if (!is_value(in[0])) return OK;
    return ox_op(ox, copy.op, in, copy.nin, copy.attrs, copy.nattr, y);
}

Status ox_numbers(Ox *ox, ValueId v, ValueId *y) {
    *y = v;
    if (!is_value(v)) return OK;
    DType d = ox_type(ox, v).dtype;
    if (!dtype_is_int(d)) return OK;
    TRY(ox_levels(ox, v, y));
    return is_value(*y) ? OK : ox_cast(ox, v, DT_F32, false, y);
}

Status ox_whole(Ox *ox, ValueId numbers, DType d, ValueId *y) {
    TRY(ox_call(ox, "level", &numbers, 1, NULL, 0, 1, &numbers));
    return ox_cast(ox, numbers, d, false, y);
}

int ox_range(DType d, Attr attr[2]) {
    double span = ldexp(1, 8 * dtype_info[d].bytes);
    double low = dtype_info[d].kind == DK_U ? 0 : -span / 2;
    attr[0] = attr_named_f("low", low);
    attr[1] = attr_named_f("high", low + span - 1);
    return 2;
}

/* The position of an operand of the function; -1: it has none of that name. */
static int operand_called(const Fn *fn, const char *name) {
    for (int i = 0; i < fn->operands.len; i++)
        if (!strcmp(fn->operands.data[i].name, name)) return i;
    return -1;
}

/* A function whose operands are numbers. With operand `ys` its result is
   levels in the type of the zero point, or else of the first operand. */
Status onnx_of_levels(Ox *ox) {
    enum { MOST = 9 };
    ValueId in[MOST], y;
    Attr attr[MAX_OP_ATTRS];
    const Fn *fn = ox_callee(ox->node->op).fn;
    int n, ys = operand_called(fn, "ys"), zero = operand_called(fn, "zero");
    bool whole = ys >= 0 && is_value(ox_in(ox, ys));
    DType d =
        ox_type(ox, ox_in(ox, whole && is_value(ox_in(ox, zero)) ? zero : 0))
            .dtype;
    for (int i = 0; i < ox->node->nin; i++)
        if (fn->operands.data[i].kind == FO_FLOAT)
            TRY(ox_numbers(ox, ox_in(ox, i), &in[i]));
        else
            in[i] = ox_in(ox, i);
    TRY(ox_mapped(ox, attr, &n));
    if (ys >= 0) n += ox_range(whole ? d : DT_U8, attr + n);
    if (whole && (!dtype_is_int(d) || dtype_info[d].bytes > 2))
        return ox_fail(ox, "a result of dtype %s", dtype_info[d].text);
    TRY(ox_call(ox, ox->node->op->fn, in, ox->node->nin, attr, n, 1, &y));
    if (whole) TRY(ox_whole(ox, y, d, &y));
    return ox_out(ox, 0, y);
}

/* True if sums of the products of 8-bit integers may need more digits than f32
   has; where such integers were rounded from floats, all readers take f32. */
static Status needs_f64(Ox *ox, bool *yes) {
    enum { MOST = 1 << 24, LEVELS = 255 };
    ValueId level[2];
    Type t = ox_type(ox, ox_in(ox, 0));
    for (int i = 0; i < 2; i++) TRY(ox_levels(ox, ox_in(ox, i), &level[i]));
    *yes = t.rank && t.dim[t.rank - 1] > MOST / (LEVELS * LEVELS) &&
           !is_value(level[0]) && !is_value(level[1]);
    return OK;
}

Status onnx_integer_product(Ox *ox) {
    ValueId in[4], y;
    bool wide;
    TRY(needs_f64(ox, &wide));
    for (int i = 0; i < 4; i++) {
        ValueId v = ox_in(ox, i);
        TRY(wide && is_value(v) ? ox_cast(ox, v, DT_F64, false, &in[i])
                                : ox_numbers(ox, v, &in[i]));
    }
    TRY(ox_call(ox, "q_product", in, 4, NULL, 0, 1, &y));
    TRY(ox_whole(ox, y, DT_I32, &y));
    return ox_out(ox, 0, y);
}

Status onnx_dynamic_quantize(Ox *ox) {
    ValueId x = ox_in(ox, 0), y[3];
    TRY(ox_call(ox, "dynamic_quantize", &x, 1, NULL, 0, 3, y));
    TRY(ox_whole(ox, y[0], DT_U8, &y[0]));
    TRY(ox_whole(ox, y[2], DT_U8, &y[2]));
    for (int i = 0; i < 3; i++) TRY(ox_out(ox, i, y[i]));
    return OK;
}

/* Scale and zero point of the result, then levels, scale and zero point of
   each part. */
Status onnx_levels_concat(Ox *ox) {
    enum { MOST = 64 };
    ValueId part[MOST], in[3], y;
    Attr range[2];
    int axis, n = ox->node->nin / 3;
    DType d = ox_type(ox, ox_in(ox, 1)).dtype;
    if (ox->node->nin != 3 * n + 2 || n < 1 || n > MOST || !dtype_is_int(d) ||
        dtype_info[d].bytes > 1)
        return ox_fail(ox,
                       "%d operands, needs 2 and 3 for each of at most %d "
                       "parts of 8 bits",
                       ox->node->nin, MOST);
    for (int i = 0; i < n; i++) {
        for (int k = 0; k < 3; k++)
            TRY(ox_numbers(ox, ox_in(ox, 2 + 3 * i + k), &in[k]));
        TRY(ox_call(ox, "q_real", in, 3, NULL, 0, 1, &part[i]));
    }
    TRY(ox_axis(ox, ox_int(ox, "axis", 1), ox_type(ox, part[0]).rank, &axis));
    TRY(ox_concat(ox, part, n, axis, false, &in[0]));
    for (int k = 0; k < 2; k++) TRY(ox_numbers(ox, ox_in(ox, k), &in[k + 1]));
    TRY(ox_call(ox, "q_level", in, 3, range, ox_range(d, range), 1, &y));
    TRY(ox_whole(ox, y, d, &y));
    return ox_out(ox, 0, y);
}
