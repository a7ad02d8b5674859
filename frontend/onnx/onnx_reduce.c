/* SPDX-License-Identifier: Apache-2.0 */
/* onnx_reduce.c: reductions over axes, and arg-max. */
#include <string.h>

#include "frontend/onnx/onnx.h"

static bool is_l1(const OxOp *op) {
    return op->fn && !strcmp(op->fn, "reduce_l1");
}

/* ReduceSum takes axes as an operand from opset 13, the others from 18.  A
   reduction over no axes returns its operand (sumsq: its square). */
Status onnx_reduce(Ox *ox) {
    const OxOp *op = ox->node->op;
    ValueId x = ox_in(ox, 0), y;
    Type t = ox_type(ox, x);
    int64_t axes[MAX_RANK];
    int n;
    bool all, logic = t.dtype == DT_BOOL; /* any, all */
    TRY(ox_axes(ox, ox->node->nin > 1, t.rank, axes, &n));
    all = n <= 0;
    if (n <= 0) {
        n = ox_int(ox, "noop_with_empty_axes", 0) ? 0 : t.rank;
        for (int i = 0; i < n; i++) axes[i] = i;
    }
    Attr attr[] = {attr_v(AK_axes, axes, n),
                   attr_i(AK_keepdims, ox_int(ox, "keepdims", 1) != 0)};
    if (logic) TRY(ox_cast(ox, x, DT_U8, false, &x));
    y = x;
    if (!all && ox_picks_element(ox, t.dtype, n)) {
        attr[0] = attr_i(AK_axis, axes[0]);
        TRY(ox_call(ox,
                    op->core == OP_REDUCE_MAX ? "max_element" : "min_element",
                    &x, 1, attr, 2, 1, &y));
    } else if (n > 0 && ox->kinks.abs_is_above && is_l1(op) &&
               dtype_is_float(t.dtype)) {
        TRY(ox_call(ox, "abs_above", &x, 1, NULL, 0, 1, &y));
        TRY(ox_op(ox, OP_REDUCE_SUM, &y, 1, attr, 2, &y));
    } else if (op->fn)
        TRY(ox_call(ox, op->fn, &x, 1, attr, 2, 1, &y));
    else if (n > 0)
        TRY(ox_op(ox, op->core, &x, 1, attr, 2, &y));
    else if (op->core == OP_REDUCE_SUMSQ)
        TRY(ox2(ox, OP_MUL, x, x, &y));
    /* -inf or less for the maximum of no elements, +inf for the minimum */
    if (logic) TRY(ox2k(ox, OP_GREATER, y, 0, &y));
    return ox_out(ox, 0, y);
}

/* x with one axis in reverse order. */
static Status flip(Ox *ox, ValueId x, int axis, ValueId *y) {
    Type t = ox_type(ox, x);
    int64_t starts[MAX_RANK] = {0}, steps[MAX_RANK];
    for (int i = 0; i < t.rank; i++) steps[i] = 1;
    if (t.dim[axis] < 2) {
        *y = x;
        return OK;
    }
    starts[axis] = t.dim[axis] - 1;
    steps[axis] = -1;
    return ox_slice(ox, x, starts, t.dim, steps, y);
}

/* ArgMin is the arg-max of -x, for integers of -1 - x, which never
   overflows; the last of equal elements is the first one along the reversed
   axis. */
Status onnx_argmax(Ox *ox) {
    ValueId x = ox_in(ox, 0), y;
    Type t = ox_type(ox, x);
    bool last = ox_int(ox, "select_last_index", 0) != 0;
    int axis;
    TRY(ox_axis(ox, ox_int(ox, "axis", 0), t.rank, &axis));
    if (ox->node->op->core == OP_NEG && dtype_is_float(t.dtype))
        TRY(ox1(ox, OP_NEG, x, &x));
    else if (ox->node->op->core == OP_NEG)
        TRY(ox2(ox, OP_SUB, graph_scalar_int(ox->g, t.dtype, -1), x, &x));
    if (last) TRY(flip(ox, x, axis, &x));
    Attr attr[] = {attr_i(AK_axis, axis),
                   attr_i(AK_keepdims, ox_int(ox, "keepdims", 1) != 0)};
    TRY(ox_op(ox, OP_ARGMAX, &x, 1, attr, 2, &y));
    if (last)
        TRY(ox2(ox, OP_SUB, ox_scalar(ox, DT_I64, (double)t.dim[axis] - 1), y,
                &y));
    return ox_out(ox, 0, y);
}
