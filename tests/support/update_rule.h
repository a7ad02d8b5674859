/* SPDX-License-Identifier: Apache-2.0 */
/* update_rule.h: updates as PyTorch has them (torch/optim/{sgd,adam,adamw}.py,
   lr_scheduler.py, clip_grad.py, grad_scaler.py), in double: what tests hold a
   compiled step against.                                                     */
#ifndef AMPC_TESTS_SUPPORT_UPDATE_RULE_H
#define AMPC_TESTS_SUPPORT_UPDATE_RULE_H

#include <stdbool.h>

enum { UPDATE_PARAMS = 64, UPDATE_ELEMENTS = 512 };

typedef enum UpdateKind { SGD, ADAM, ADAMW } UpdateKind;
typedef enum UpdateDecay { CONSTANT, COSINE, LINEAR, STEP } UpdateDecay;

typedef struct UpdateRule {
    UpdateKind kind;
    double lr, momentum, beta1, beta2, eps;
    bool nesterov;
    double decay[UPDATE_PARAMS], lr_scale[UPDATE_PARAMS]; /* 0: 1 */
    double clip_norm, clip_value;
    int accumulate; /* 0: 1 */
    UpdateDecay schedule;
    double warmup, total, every, min, gamma;
    double init, growth, backoff, scale_min, scale_max; /* init 0: no scaler */
    int interval, hysteresis;                           /* interval 0: static */
    bool blames_loss; /* as GradScaler: whatever is not finite backs off */
} UpdateRule;

typedef double UpdateTensors[UPDATE_PARAMS][UPDATE_ELEMENTS];

typedef struct UpdateOracle {
    const UpdateRule *r;
    int nparam, count[UPDATE_PARAMS];
    UpdateTensors p, m, v, g; /* g: a sum over micro-batches, as loss is */
    double lr, scale, loss;
    int step, tried, skipped, bad_forward, good, tolerated;
    bool overflow; /* set by the one who adds to g and loss */
} UpdateOracle;

/* Parameters, counts and tensors are for the caller to fill. */
void update_begin(UpdateOracle *o, const UpdateRule *r);
int update_windows(const UpdateRule *r); /* micro-batches a step */
double update_rate(const UpdateOracle *o);
double update_norm(const UpdateOracle *o); /* before clipping */
/* A step with what was added to g and loss, which are zero then. */
void update_step(UpdateOracle *o);

#endif
