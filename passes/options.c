/* SPDX-License-Identifier: Apache-2.0 */
/* options.c: defaults of the compile options, and facts derived from them. */
#include "passes/options.h"

#include <limits.h>
#include <math.h>

OptimizerSpec optimizer_default(OptimizerKind kind) {
    return (OptimizerSpec){.kind = kind,
                           .lr = 1e-3,
                           .beta1 = 0.9,
                           .beta2 = 0.999,
                           .eps = 1e-8,
                           .weight_decay = kind == OPT_ADAMW ? 1e-2 : 0};
}

LossSpec loss_default(LossKind kind) {
    return (LossSpec){
        .kind = kind, .axis = INT_MIN, .ignore_index = -100, .delta = 1};
}

ScaleSpec scale_default(ScaleKind kind) {
    return (ScaleSpec){.kind = kind,
                       .init = 65536,
                       .growth = 2,
                       .backoff = 0.5,
                       .interval = 2000,
                       .min = 0x1p-24,
                       .max = 16777216,
                       .hysteresis = 1};
}

void options_init(Options *o, Arena *a) {
    Objective only = {
        .name = intern(""),
        .loss = loss_default(LOSS_AUTO),
        .optimizer = optimizer_default(OPT_ADAMW),
        .schedule = {.gamma = 0.1},
    };
    *o = (Options){.arena = a};
    vec_push(a, &o->objectives, only);
    o->precision = PREC_BF16;
    o->fp16_residuals = true;
    o->residuals = INFINITY;
    o->wide_head = true;
    o->accumulate = 1;
    o->comm_bucket = 25 << 20;
    o->comm_dtype = DT_F32;
    o->scale = scale_default(SCALE_DEFAULT);
    o->batchnorm_train = true;
    o->batchnorm_unbiased = -1;
    o->dropout = true;
    o->symbol = intern("ampc_module");
}

int64_t options_largest_batch(const Options *o) {
    int64_t most = 0;
    for (int i = 0; i < o->batch_sizes.len; i++)
        if (o->batch_sizes.data[i] > most) most = o->batch_sizes.data[i];
    return most;
}

bool options_has_scaler(const Options *o) {
    if (o->scale.kind == SCALE_DEFAULT)
        return o->precision == PREC_FP16 &&
               (!o->half_model || o->master_weights);
    return o->scale.kind != SCALE_NONE;
}

const Objective *options_objective(const Options *o, Str name) {
    for (int i = 0; i < o->objectives.len; i++)
        if (o->objectives.data[i].name == name) return &o->objectives.data[i];
    return NULL;
}

bool objective_trains(const Objective *j, const char *parameter) {
    for (int i = 0; i < j->params.len; i++)
        if (glob_layer(j->params.data[i], parameter)) return true;
    return j->params.len == 0;
}

bool options_train(const Options *o) {
    for (int i = 0; i < o->objectives.len; i++)
        if (o->objectives.data[i].loss.kind != LOSS_NONE) return true;
    return false;
}
