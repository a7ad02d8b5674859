/* onnx_loss.c: classification losses.  The class axis is 1, not the last. */
#include <string.h>

#include "frontend/onnx/onnx.h"

static Status check_target(Ox *ox, ValueId x, ValueId target) {
    if (ox_type(ox, x).rank < 2)
        return ox_fail(ox, "the scores must have a batch and a class axis");
    if (!dtype_is_int(ox_type(ox, target).dtype))
        return ox_fail(ox,
                       "the target is %s: class probabilities as target "
                       "(soft labels) do not exist in this op; give class "
                       "numbers",
                       dtype_info[ox_type(ox, target).dtype].text);
    ox->m->class_axis = 1;
    return OK;
}

/* Operands scores, target, weight; results and their number are the op's. */
static Status loss(Ox *ox, OpCode op, int nout, ValueId *out) {
    ValueId in[3] = {ox_in(ox, 0), ox_in(ox, 1), ox_in(ox, 2)};
    TRY(check_target(ox, in[0], in[1]));
    Attr attr[3] = {attr_i(AK_axis, 1),
                    attr_s(AK_reduction, ox_str(ox, "reduction", "mean"))};
    int n = 2;
    if (ox_attr(ox, "ignore_index"))
        attr[n++] = attr_i(AK_ignore_index, ox_int(ox, "ignore_index", 0));
    return ox_opn(ox, op, in, is_value(in[2]) ? 3 : 2, attr, n, nout, NULL,
                  out);
}

Status onnx_softmax_cross_entropy(Ox *ox) {
    ValueId out[2], prob, x = ox_in(ox, 0);
    Attr axis = attr_i(AK_axis, 1);
    TRY(loss(ox, OP_SOFTMAX_CROSS_ENTROPY, 2, out));
    TRY(ox_out(ox, 0, out[0]));
    if (!ox_has_out(ox, 1)) return OK;
    TRY(ox_op(ox, OP_LOG_SOFTMAX, &x, 1, &axis, 1, &prob));
    return ox_out(ox, 1, prob);
}

Status onnx_nll_loss(Ox *ox) {
    ValueId out;
    TRY(loss(ox, OP_NLL_LOSS, 1, &out));
    return ox_out(ox, 0, out);
}
