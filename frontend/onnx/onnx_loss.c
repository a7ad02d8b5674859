/* SPDX-License-Identifier: Apache-2.0 */
/* onnx_loss.c: classification losses.  The class axis is 1, not the last. */
#include "frontend/onnx/onnx.h"
#include "ir/fn/fn.h"

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

/* Operands scores, target, weight. */
static Status loss(Ox *ox, ValueId *out) {
    ValueId in[3] = {ox_in(ox, 0), ox_in(ox, 1), ox_in(ox, 2)};
    Attr attr[MAX_OP_ATTRS];
    int n, nout = ox_callee(ox->node->op).fn->info.out_max;
    TRY(check_target(ox, in[0], in[1]));
    TRY(ox_mapped(ox, attr, &n));
    /* ONNX has no label smoothing; PyTorch's exporter leaves it out */
    double smoothing =
        ox_torch_number(ox->node, "aten.cross_entropy_loss", 5, 0);
    if (smoothing) attr[n++] = attr_named_f("label_smoothing", smoothing);
    return ox_call(ox, ox->node->op->fn, in, 3, attr, n, nout, out);
}

Status onnx_softmax_cross_entropy(Ox *ox) {
    ValueId out[2], prob, x = ox_in(ox, 0);
    Attr axis = attr_i(AK_axis, 1);
    TRY(loss(ox, out));
    TRY(ox_out(ox, 0, out[0]));
    if (!ox_has_out(ox, 1)) return OK;
    TRY(ox_call(ox, "log_softmax", &x, 1, &axis, 1, 1, &prob));
    return ox_out(ox, 1, prob);
}

Status onnx_nll_loss(Ox *ox) {
    ValueId out;
    TRY(loss(ox, &out));
    return ox_out(ox, 0, out);
}
