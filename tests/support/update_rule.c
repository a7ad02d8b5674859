/* SPDX-License-Identifier: Apache-2.0 */
/* update_rule.c: see update_rule.h. */
#include "tests/support/update_rule.h"

#include <math.h>
#include <string.h>

void update_begin(UpdateOracle *o, const UpdateRule *r) {
    memset(o, 0, sizeof *o);
    o->r = r;
    o->lr = r->lr;
    o->scale = r->init != 0 ? r->init : 1;
    o->tolerated = r->hysteresis;
}

int update_windows(const UpdateRule *r) {
    return r->accumulate ? r->accumulate : 1;
}

double update_rate(const UpdateOracle *o) {
    const UpdateRule *r = o->r;
    double i = o->step, p = fmin(1, (i - r->warmup) / (r->total - r->warmup));
    if (i < r->warmup) return o->lr * (i + 1) / r->warmup;
    switch (r->schedule) {
    case CONSTANT: break;
    case COSINE:
        return r->min + (o->lr - r->min) * 0.5 * (1 + cos(acos(-1) * p));
    case LINEAR: return r->min + (o->lr - r->min) * (1 - p);
    case STEP: return o->lr * pow(r->gamma, floor((i - r->warmup) / r->every));
    }
    return o->lr;
}

double update_norm(const UpdateOracle *o) {
    double sum = 0;
    for (int k = 0; k < o->nparam; k++)
        for (int i = 0; i < o->count[k]; i++) {
            double g = o->g[k][i] / update_windows(o->r);
            sum += g * g;
        }
    return sqrt(sum);
}

static void apply(UpdateOracle *o, int k, int i, double g, double lr) {
    const UpdateRule *r = o->r;
    double *p = &o->p[k][i], *m = &o->m[k][i], *v = &o->v[k][i];
    if (r->lr_scale[k] != 0) lr *= r->lr_scale[k];
    if (r->kind == ADAMW)
        *p -= lr * r->decay[k] * *p;
    else
        g += r->decay[k] * *p;
    if (r->kind == SGD) {
        *m = o->step == 0 ? g : r->momentum * *m + g;
        *p -= lr * (r->nesterov ? g + r->momentum * *m : *m);
        return;
    }
    double t = o->step + 1;
    *m = r->beta1 * *m + (1 - r->beta1) * g;
    *v = r->beta2 * *v + (1 - r->beta2) * g * g;
    double root = sqrt(*v / (1 - pow(r->beta2, t)));
    *p -= lr * (*m / (1 - pow(r->beta1, t))) / (root + r->eps);
}

static void next_scale(UpdateOracle *o, bool ok) {
    const UpdateRule *r = o->r;
    if (r->init == 0 || !r->interval) return;
    o->good = ok ? o->good + 1 : 0;
    bool blamed = r->blames_loss ? !ok : o->overflow;
    if (blamed && --o->tolerated <= 0) {
        o->scale = fmax((float)(o->scale * r->backoff), r->scale_min);
        o->tolerated = 0;
    }
    if (o->good == r->interval) {
        o->scale = fmin((float)(o->scale * r->growth), r->scale_max);
        o->good = 0;
        o->tolerated = r->hysteresis;
    }
}

static void clear(UpdateOracle *o) {
    memset(o->g, 0, sizeof o->g);
    o->loss = 0;
    o->overflow = false;
}

void update_step(UpdateOracle *o) {
    const UpdateRule *r = o->r;
    double total = update_norm(o), lr = update_rate(o), clip = 1;
    bool forward = isfinite(o->loss), ok = forward && !o->overflow;
    double norm = r->clip_previous ? o->last_norm : total;
    if (r->clip_norm != 0) clip = fmin(1, r->clip_norm / (norm + 1e-6));
    if (ok) o->last_norm = total;
    for (int k = 0; k < o->nparam && ok; k++)
        for (int i = 0; i < o->count[k]; i++) {
            double g = o->g[k][i] / update_windows(r) * clip;
            if (r->clip_value != 0)
                g = fmax(-r->clip_value, fmin(r->clip_value, g));
            apply(o, k, i, g, lr);
        }
    o->tried++;
    o->step += ok;
    o->skipped += !ok;
    o->bad_forward += !forward;
    next_scale(o, ok);
    clear(o);
}
