/* onnx_reduce.c: reductions over axes, and arg-max. */
#include <string.h>

#include "frontend/onnx/onnx.h"

typedef struct Reduction {
    ValueId x;
    int64_t axes[MAX_RANK];
    int n;
    bool keepdims;
} Reduction;

/* ReduceSum takes axes as an operand from opset 13, the others from 18. */
static Status read_reduction(Ox *ox, Reduction *r) {
    r->x = ox_in(ox, 0);
    r->keepdims = ox_int(ox, "keepdims", 1) != 0;
    int rank = ox_type(ox, r->x).rank;
    TRY(ox_axes(ox, ox->node->nin > 1, rank, r->axes, &r->n));
    if (r->n > 0) return OK;
    r->n = ox_int(ox, "noop_with_empty_axes", 0) ? 0 : rank;
    for (int i = 0; i < r->n; i++) r->axes[i] = i;
    return OK;
}

/* Over no axes a reduction gives its operand (sumsq: its square). */
static Status apply(Ox *ox, const Reduction *r, ValueId x, ValueId *y) {
    const OxOp *op = ox->node->op;
    Attr attr[] = {attr_v(AK_axes, r->axes, r->n),
                   attr_i(AK_keepdims, r->keepdims)};
    *y = x;
    if (op->fn) return ox_call(ox, op->fn, &x, 1, attr, 2, 1, y);
    if (r->n > 0) return ox_op(ox, op->core, &x, 1, attr, 2, y);
    return op->core == OP_REDUCE_SUMSQ ? ox2(ox, OP_MUL, x, x, y) : OK;
}

Status onnx_reduce(Ox *ox) {
    Reduction r;
    ValueId y;
    TRY(read_reduction(ox, &r));
    bool logic = ox_type(ox, r.x).dtype == DT_BOOL; /* any, all */
    if (logic) TRY(ox_cast(ox, r.x, DT_U8, false, &r.x));
    TRY(apply(ox, &r, r.x, &y));
    /* of no elements the greatest is below 0, the least above */
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

/* ArgMin is the arg-max of -x; the last of several equals is the first of the
   reversed axis. */
Status onnx_argmax(Ox *ox) {
    ValueId x = ox_in(ox, 0), y;
    Type t = ox_type(ox, x);
    bool last = ox_int(ox, "select_last_index", 0) != 0;
    int axis;
    TRY(ox_axis(ox, ox_int(ox, "axis", 0), t.rank, &axis));
    if (ox->node->op->core == OP_NEG) {
        if (!dtype_is_float(t.dtype))
            return ox_fail(ox, "integer operands are not supported");
        TRY(ox1(ox, OP_NEG, x, &x));
    }
    if (last) TRY(flip(ox, x, axis, &x));
    Attr attr[] = {attr_i(AK_axis, axis),
                   attr_i(AK_keepdims, ox_int(ox, "keepdims", 1) != 0)};
    TRY(ox_op(ox, OP_ARGMAX, &x, 1, attr, 2, &y));
    if (last)
        TRY(ox2(ox, OP_SUB, ox_scalar(ox, DT_I64, (double)t.dim[axis] - 1), y,
                &y));
    return ox_out(ox, 0, y);
}
