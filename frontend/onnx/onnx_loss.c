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

/* The operands are scores, target and weight. */
static Status loss(Ox *ox, ValueId *out) {
    ValueId in[3] = {ox_in(ox, 0), ox_in(ox, 1), ox_in(ox, 2)};
    Attr attr[MAX_OP_ATTRS];
    int n, nout = ox_callee(ox->node->op).fn->info.out_max;
    TRY(check_target(ox, in[0], in[1]));
    TRY(ox_mapped(ox, attr, &n));
    /* ONNX lacks label smoothing; PyTorch's exporter leaves it out */
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

/* ---- one op in parts ----------------------------------------------------- */

static bool is_loss_number(const Ox *ox, Str name, double k) {
    const OxName *x = ox_name_of(ox, name);
    double v;
    return x && is_value(x->value) && value_is_splat(ox->g, x->value, &v) &&
           v == k;
}

/* x if the node is max(log(x), -100), or NULL. */
static Str bounded_log(const Ox *ox, Str name) {
    const OxNode *max = ox_maker(ox, name, "Max");
    const OxNode *log = max ? ox_maker(ox, max->in[0], "Log") : NULL;
    bool bounded = log && max->nin == 2 && is_loss_number(ox, max->in[1], -100);
    return bounded ? log->in[0] : NULL;
}

/* torch.export splits F.binary_cross_entropy into (t - 1) max(log(1 - p), -100)
   - t max(log(p), -100). The gradient of the bounded log is 0 at a probability
   of 0 or 1; the gradient of PyTorch's function is not.
 */
static Status binary_cross_entropy(Ox *ox, bool *done) {
    const OxNode *n = ox->node;
    const OxNode *miss = ox_maker(ox, n->in[0], "Mul");
    const OxNode *hit = ox_maker(ox, n->in[1], "Mul");
    const OxNode *less = miss ? ox_maker(ox, miss->in[0], "Sub") : NULL;
    Str p = hit ? bounded_log(ox, hit->in[1]) : NULL;
    Str rest = miss ? bounded_log(ox, miss->in[1]) : NULL;
    const OxNode *add = rest ? ox_maker(ox, rest, "Add") : NULL;
    const OxNode *neg = add ? ox_maker(ox, add->in[0], "Neg") : NULL;
    if (!p || !less || !neg || neg->in[0] != p || less->in[0] != hit->in[0] ||
        !is_loss_number(ox, less->in[1], 1) ||
        !is_loss_number(ox, add->in[1], 1))
        return OK;
    ValueId in[] = {ox_name_of(ox, p)->value,
                    ox_name_of(ox, hit->in[0])->value},
            y;
    Attr none = attr_s(attr_key("reduction", ATTR_STR), "none");
    TRY(ox_call(ox, "bce_loss", in, 2, &none, 1, 1, &y));
    *done = true;
    return ox_out(ox, 0, y);
}

/* PyTorch functions that the file contains in parts and that would lose
   something: they are built as a whole at the last part. */
Status ox_torch_whole(Ox *ox, bool *done) {
    static const struct {
        const char *target;
        Status (*build)(Ox *ox, bool *done);
    } rows[] = {{"aten.sub.", binary_cross_entropy}};
    *done = false;
    for (size_t i = 0; i < sizeof rows / sizeof *rows && !*done; i++)
        if (ox_torch_node(ox->node, rows[i].target) && ox->node->nin == 2)
            TRY(rows[i].build(ox, done));
    return OK;
}
