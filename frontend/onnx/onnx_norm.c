/* SPDX-License-Identifier: Apache-2.0 */
/* onnx_norm.c: batch normalisation and softmax.

   BatchNormalization in training normalises by the batch's statistics, and the
   program writes its running ones: new = momentum*old + (1-momentum)*batch.
   ONNX keeps the population variance there, torch the unbiased one.         */
#include "frontend/onnx/onnx.h"

/* ---- batch normalisation ------------------------------------------------- */

static bool frozen_by_user(const Ox *ox) {
    bool frozen = false;
    for (int i = 0; i < ox->opt->batchnorm_frozen.len; i++) {
        const char *glob = ox->opt->batchnorm_frozen.data[i];
        if (!glob_match(glob, ox->node->name) &&
            !glob_match(glob, ox->node->in[1]))
            continue;
        frozen = ox->frozen_used[i] = true;
    }
    return frozen;
}

static bool in_training(const Ox *ox) {
    if (frozen_by_user(ox)) return false;
    if (ox->opt->batchnorm_train && options_train(ox->opt)) return true;
    int v = ox->node->version; /* as it was exported */
    if (v < 7) return ox_int(ox, "is_test", 0) == 0;
    if (v < 14) return ox->node->nout > 1;
    return ox_int(ox, "training_mode", 0) != 0;
}

/* batch variance as running statistics count it */
static Status unbiased(Ox *ox, ValueId x, ValueId *var) {
    Type t = ox_type(ox, x);
    double n = t.dim[1] ? (double)(type_count(&t) / t.dim[1]) : 0;
    bool wanted = ox->opt->batchnorm_unbiased >= 0
                      ? ox->opt->batchnorm_unbiased != 0
                      : ox->is_torch;
    if (wanted && n > 0 && ox->opt->sync_batchnorm) {
        Attr attr = attr_named_f("n", n);
        return ox_call(ox, "unbiased_over_ranks", var, 1, &attr, 1, 1, var);
    }
    return wanted && n > 1 ? ox2k(ox, OP_MUL, *var, n / (n - 1), var) : OK;
}

/* A module called twice updates its statistics twice. */
static ValueId *pending_write(Ox *ox, ValueId buffer) {
    for (int i = 0; i < ox->g->writes.len; i++)
        if (same_value(ox->g->writes.data[i].var, buffer))
            return &ox->g->writes.data[i].value;
    return NULL;
}

static Status run_average(Ox *ox, ValueId buffer, ValueId batch, ValueId *out) {
    double m = ox_float(ox, "momentum", 0.9);
    const Value *b = value_get(ox->g, buffer);
    bool is_state =
        b->kind == VK_VAR && value_var(ox->g, buffer)->kind == VAR_BUFFER;
    ValueId *write = pending_write(ox, buffer), old = write ? *write : buffer;
    TRY(ox2k(ox, OP_MUL, old, m, &old));
    TRY(ox2k(ox, OP_MUL, batch, 1 - m, &batch));
    TRY(ox2(ox, OP_ADD, old, batch, out));
    if (!is_state) return OK;
    if (write)
        *write = *out;
    else
        vec_push(ox->a, &ox->g->writes, (Write){.var = buffer, .value = *out});
    return OK;
}

static Status train_batch_norm(Ox *ox, const ValueId *in, const Attr *attr,
                               int nattr) {
    ValueId out[3], mean, var;
    TRY(ox_call(ox, "batch_norm", in, 5, attr, nattr, 3, out));
    var = out[2];
    TRY(ox_out(ox, 0, out[0]));
    TRY(unbiased(ox, in[0], &var));
    TRY(run_average(ox, in[3], out[1], &mean));
    TRY(run_average(ox, in[4], var, &var));
    TRY(ox_out(ox, 1, mean));
    TRY(ox_out(ox, 2, var));
    TRY(ox_out(ox, 3, out[1]));
    return ox_out(ox, 4, out[2]);
}

Status onnx_batch_norm(Ox *ox) {
    ValueId in[5], y;
    for (int i = 0; i < 5; i++) in[i] = ox_in(ox, i);
    if (ox->node->version < 9 && ox_int(ox, "spatial", 1) == 0)
        return ox_fail(ox, "spatial=0 is not supported");
    bool training = in_training(ox);
    if (training && ox_float(ox, "momentum", 0.9) == 0)
        ox_warn(ox, ox->node,
                "momentum is 0: running statistics will be those "
                "of the last batch (torch's momentum=None exports wrongly)");
    Attr attr[MAX_OP_ATTRS + 2];
    int n;
    TRY(ox_mapped(ox, attr, &n));
    attr[n++] = attr_named_i("training", training);
    if (training && ox->opt->sync_batchnorm)
        attr[n++] = attr_named_i("ranks", 1);
    if (training) return train_batch_norm(ox, in, attr, n);
    for (int i = 1; i < ox->node->nout; i++)
        if (ox_has_out(ox, i))
            return ox_fail(ox, "result %d exists in training only", i);
    TRY(ox_call(ox, "batch_norm", in, 5, attr, n, 1, &y));
    return ox_out(ox, 0, y);
}

/* A scale of more than the normalised axes, as PyTorch's exporter writes one of
   ones for rms_norm without weight, is multiplied behind. */
Status onnx_rms_norm(Ox *ox) {
    ValueId in[2] = {ox_in(ox, 0), ox_in(ox, 1)}, y;
    Type x = ox_type(ox, in[0]), scale = ox_type(ox, in[1]);
    Attr attr[MAX_OP_ATTRS];
    int n, axis;
    TRY(ox_axis(ox, ox_int(ox, "axis", -1), x.rank, &axis));
    TRY(ox_mapped(ox, attr, &n));
    bool outer = scale.rank > x.rank - axis;
    if (outer) {
        ValueId one = ox_scalar(ox, scale.dtype, 1);
        TRY(ox_expand(ox, one, x.rank - axis, x.dim + axis, &in[1]));
    }
    TRY(ox_call(ox, ox->node->op->fn, in, 2, attr, n, 1, &y));
    if (outer) TRY(ox2(ox, OP_MUL, y, ox_in(ox, 1), &y));
    return ox_out(ox, 0, y);
}

/* ---- softmax ------------------------------------------------------------- */

/* Before opset 13 everything from `axis` on was one axis, and the default
   was 1. */
Status onnx_softmax(Ox *ox) {
    ValueId x = ox_in(ox, 0), y = x;
    Type t = ox_type(ox, x);
    bool flat = ox->node->version < 13;
    int axis;
    TRY(ox_axis(ox, ox_int(ox, "axis", flat ? 1 : -1), t.rank, &axis));
    flat = flat && axis < t.rank - 1;
    if (flat) {
        int64_t dim[2] = {1, 1};
        for (int i = 0; i < t.rank; i++) dim[i >= axis] *= t.dim[i];
        TRY(ox_reshape(ox, x, 2, dim, &y));
        axis = 1;
    }
    Attr attr = attr_i(AK_axis, axis);
    TRY(ox_call(ox, ox->node->op->fn, &y, 1, &attr, 1, 1, &y));
    if (flat) TRY(ox_reshape(ox, y, t.rank, t.dim, &y));
    return ox_out(ox, 0, y);
}
