/* onnx_norm.c: normalisations and softmax.

   BatchNormalization in training normalises by the batch's statistics, and the
   program writes its running ones: new = momentum*old + (1-momentum)*batch.
   ONNX keeps the population variance there, torch the unbiased one.         */
#include <inttypes.h>
#include <string.h>

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

static bool exported_training(const Ox *ox) {
    int v = ox->node->version;
    if (v < 7) return ox_int(ox, "is_test", 0) == 0;
    if (v < 14) return ox->node->nout > 1;
    return ox_int(ox, "training_mode", 0) != 0;
}

static bool in_training(const Ox *ox) {
    if (frozen_by_user(ox)) return false;
    if (ox->opt->batchnorm_train && options_train(ox->opt)) return true;
    return exported_training(ox);
}

/* batch variance as running statistics count it */
static Status unbiased(Ox *ox, ValueId x, ValueId *var) {
    Type t = ox_type(ox, x);
    double n = t.dim[1] ? (double)(type_count(&t) / t.dim[1]) : 0;
    bool wanted = ox->opt->batchnorm_unbiased >= 0
                      ? ox->opt->batchnorm_unbiased != 0
                      : ox->is_torch;
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
        vec_push(ox->a, &ox->g->writes, (Write){buffer, *out});
    return OK;
}

static Status train_batch_norm(Ox *ox, const ValueId *in, const Attr *attr) {
    ValueId out[3], mean, var;
    TRY(ox_opn(ox, OP_BATCH_NORM, in, 5, attr, 2, 3, NULL, out));
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
    Attr attr[] = {attr_i(AK_training, training),
                   attr_f(AK_epsilon, ox_float(ox, "epsilon", 1e-5))};
    if (training) return train_batch_norm(ox, in, attr);
    for (int i = 1; i < ox->node->nout; i++)
        if (ox_has_out(ox, i))
            return ox_fail(ox, "result %d exists in training only", i);
    TRY(ox_op(ox, OP_BATCH_NORM, in, 5, attr, 2, &y));
    return ox_out(ox, 0, y);
}

/* ---- the others ---------------------------------------------------------- */

Status onnx_layer_norm(Ox *ox) {
    ValueId in[3] = {ox_in(ox, 0), ox_in(ox, 1), ox_in(ox, 2)}, out[3];
    int axis;
    TRY(ox_axis(ox, ox_int(ox, "axis", -1), ox_type(ox, in[0]).rank, &axis));
    Attr attr[] = {attr_i(AK_axis, axis),
                   attr_f(AK_epsilon, ox_float(ox, "epsilon", 1e-5))};
    TRY(ox_opn(ox, OP_LAYER_NORM, in, is_value(in[2]) ? 3 : 2, attr, 2, 3, NULL,
               out));
    for (int i = 0; i < 3; i++) TRY(ox_out(ox, i, out[i]));
    return OK;
}

/* (x - mean) / sqrt(variance + eps) over the axes */
static Status standardise(Ox *ox, ValueId x, const int64_t *axes, int n,
                          double eps, ValueId *y) {
    ValueId mean, d, var;
    TRY(ox_reduce(ox, OP_REDUCE_MEAN, x, axes, n, true, &mean));
    TRY(ox2(ox, OP_SUB, x, mean, &d));
    TRY(ox2(ox, OP_MUL, d, d, &var));
    TRY(ox_reduce(ox, OP_REDUCE_MEAN, var, axes, n, true, &var));
    TRY(ox2k(ox, OP_ADD, var, eps, &var));
    TRY(ox1(ox, OP_RSQRT, var, &var));
    return ox2(ox, OP_MUL, d, var, y);
}

/* y * scale + bias, vectors along axis 1 of the given rank */
static Status scale_channels(Ox *ox, int rank, ValueId *y) {
    ValueId v[2] = {ox_in(ox, 1), ox_in(ox, 2)};
    for (int i = 0; i < 2; i++) {
        Type t = ox_type(ox, v[i]);
        int64_t dim[MAX_RANK];
        if (t.rank != 1)
            return ox_fail(ox, "operand %d must be a vector", i + 1);
        for (int k = 0; k < rank - 1; k++) dim[k] = k ? 1 : t.dim[0];
        TRY(ox_reshape(ox, v[i], rank - 1, dim, &v[i]));
        TRY(ox2(ox, i ? OP_ADD : OP_MUL, *y, v[i], y));
    }
    return OK;
}

Status onnx_instance_norm(Ox *ox) {
    ValueId x = ox_in(ox, 0), y;
    int rank = ox_type(ox, x).rank;
    int64_t axes[MAX_RANK];
    if (rank < 3) return ox_fail(ox, "an operand of rank %d", rank);
    for (int i = 2; i < rank; i++) axes[i - 2] = i;
    TRY(standardise(ox, x, axes, rank - 2, ox_float(ox, "epsilon", 1e-5), &y));
    TRY(scale_channels(ox, rank, &y));
    return ox_out(ox, 0, y);
}

/* Scale and bias are per group before opset 21, per channel since. */
Status onnx_group_norm(Ox *ox) {
    ValueId x = ox_in(ox, 0), y;
    Type t = ox_type(ox, x);
    int64_t g = ox_int(ox, "num_groups", 0), axis = 2, rest;
    if (t.rank < 2 || g < 1 || t.dim[1] % g)
        return ox_fail(ox, "num_groups %" PRId64 " for an operand of rank %d",
                       g, t.rank);
    rest = type_count(&t);
    for (int i = 0; i < 2; i++) rest /= i ? g : t.dim[0] ? t.dim[0] : 1;
    TRY(ox_reshape(ox, x, 3, (int64_t[]){t.dim[0], g, rest}, &y));
    TRY(standardise(ox, y, &axis, 1, ox_float(ox, "epsilon", 1e-5), &y));
    if (ox->node->version < 21) TRY(scale_channels(ox, 3, &y));
    TRY(ox_reshape(ox, y, t.rank, t.dim, &y));
    if (ox->node->version >= 21) TRY(scale_channels(ox, t.rank, &y));
    return ox_out(ox, 0, y);
}

Status onnx_rms_norm(Ox *ox) {
    ValueId x = ox_in(ox, 0), y;
    int rank = ox_type(ox, x).rank, axis;
    int64_t axes[MAX_RANK];
    TRY(ox_axis(ox, ox_int(ox, "axis", -1), rank, &axis));
    for (int i = axis; i < rank; i++) axes[i - axis] = i;
    TRY(ox2(ox, OP_MUL, x, x, &y));
    TRY(ox_reduce(ox, OP_REDUCE_MEAN, y, axes, rank - axis, true, &y));
    TRY(ox2k(ox, OP_ADD, y, ox_float(ox, "epsilon", 1e-5), &y));
    TRY(ox1(ox, OP_RSQRT, y, &y));
    TRY(ox2(ox, OP_MUL, x, y, &y));
    TRY(ox2(ox, OP_MUL, y, ox_in(ox, 1), &y));
    return ox_out(ox, 0, y);
}

Status onnx_mean_variance_norm(Ox *ox) {
    ValueId x = ox_in(ox, 0), y;
    int rank = ox_type(ox, x).rank, n;
    int64_t axes[MAX_RANK];
    TRY(ox_axes(ox, false, rank, axes, &n));
    if (n < 0) {
        if (rank != 4) return ox_fail(ox, "axes are missing");
        memcpy(axes, (int64_t[]){0, 2, 3}, 3 * sizeof *axes);
        n = 3;
    }
    if (n == 0) return ox_fail(ox, "axes are empty");
    TRY(standardise(ox, x, axes, n, 1e-9, &y));
    return ox_out(ox, 0, y);
}

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
    TRY(ox_op(ox, ox->node->op->core, &y, 1, &attr, 1, &y));
    if (flat) TRY(ox_reshape(ox, y, t.rank, t.dim, &y));
    return ox_out(ox, 0, y);
}
