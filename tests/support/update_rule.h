/* SPDX-License-Identifier: Apache-2.0 */
/* update_rule.h: updates by PyTorch's formulas
   (torch/optim/{sgd,adam,adamw}.py, lr_scheduler.py, clip_grad.py,
   grad_scaler.py), in double, with which tests compare a compiled step. */
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
    bool clip_previous; /* by the norm of the last applied step */
    int accumulate;     /* 0: 1 */
    UpdateDecay schedule;
    double warmup, total, every, min, gamma;
    double init, growth, backoff, scale_min, scale_max; /* init 0: no scaler */
    int interval, hysteresis;                           /* interval 0: static */
    bool blames_loss; /* like GradScaler: any non-finite number lowers the
                         scale */
} UpdateRule;

typedef double UpdateTensors[UPDATE_PARAMS][UPDATE_ELEMENTS];

typedef struct UpdateOracle {
    const UpdateRule *r;
    int nparam, count[UPDATE_PARAMS];
    UpdateTensors p, m, v, g; /* g: sums over micro-batches, like loss */
    double lr, scale, loss, last_norm;
    int step, tried, skipped, bad_forward, good, tolerated;
    bool overflow; /* set by the code that adds to g and loss */
} UpdateOracle;

/* The caller sets parameters, counts and tensors. */
void update_begin(UpdateOracle *o, const UpdateRule *r);
int update_windows(const UpdateRule *r); /* micro-batches per step */
double update_rate(const UpdateOracle *o);
double update_norm(const UpdateOracle *o); /* before clipping */
/* Makes a step with the sums in g and loss, and sets them to zero. */
void update_step(UpdateOracle *o);

#endif
