/* SPDX-License-Identifier: Apache-2.0 */
/* device_check.c: see device_check.h. */
#define _POSIX_C_SOURCE 200809L
#include "tests/support/device_check.h"
#include "tests/tolerance.h"

#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <unistd.h>

#include "runtime/program/dtype.h"

/* ---- the report ---------------------------------------------------------- */

static void say(DcReport *r, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));

static void say(DcReport *r, const char *fmt, ...) {
    size_t at = strlen(r->text), room = sizeof r->text - at;
    va_list ap;
    r->failed++;
    if (room < 200) return;
    va_start(ap, fmt);
    vsnprintf(r->text + at, room - 1, fmt, ap);
    va_end(ap);
    strcat(r->text, "\n");
}

/* An error of `off` if `allowed` is the limit; NaN is always wrong. */
static void judge(DcReport *r, const char *name, int step, double off,
                  double allowed) {
    double part = off == 0 ? 0 : off / allowed;
    r->compared++;
    if (!(part <= r->worst)) {
        r->worst = part;
        snprintf(r->worst_name, sizeof r->worst_name, "%s", name);
    }
    if (part <= 1) return;
    if (step < 0)
        say(r, "%s: off by %g, %g allowed", name, off, allowed);
    else
        say(r, "step %d, %s: off by %g, %g allowed", step, name, off, allowed);
}

static void judge_equal(DcReport *r, const char *name, int step, double a,
                        double b) {
    bool same = a == b || (isnan(a) && isnan(b));
    r->compared++;
    if (!same) say(r, "step %d, %s: %g and %g", step, name, a, b);
}

/* ---- sessions ------------------------------------------------------------ */

typedef struct Side {
    const ampc_api *api;
    ampc_session *s;
    DcReport *r;
} Side;

static bool side_open(Side *d, const ampc_api *api, const char *device,
                      DcReport *r) {
    ampc_options o = {.size = sizeof o, .device = device};
    char err[300] = "";
    *d = (Side){api, NULL, r};
    if (api->open(api->module, &o, &d->s, err, sizeof err) == AMPC_OK)
        return true;
    say(r, "open on %s: %s", device, err);
    return false;
}

static void side_close(Side *d) {
    if (d->s) d->api->close(d->s);
    d->s = NULL;
}

static bool ok(Side *d, const char *what, ampc_status s) {
    if (s != AMPC_OK) say(d->r, "%s: %s", what, d->api->error(d->s));
    return s == AMPC_OK;
}

/* ---- outputs ------------------------------------------------------------- */

double dc_output_tolerance(ampc_dtype d) {
    switch (d) {
    case AMPC_DTYPE_F16: return TOL_OUTPUT_F16;
    case AMPC_DTYPE_BF16: return TOL_OUTPUT_BF16;
    case AMPC_DTYPE_F32: return TOL_OUTPUT_F32;
    case AMPC_DTYPE_F64: return TOL_OUTPUT_F64;
    default: return 0;
    }
}

static void compare_floats(DcReport *r, const ampc_tensor_info *t,
                           const char *a, const char *b) {
    double worst = 0, scale = 0;
    for (size_t i = 0; i < t->bytes / dtype_bytes((uint32_t)t->dtype); i++) {
        size_t at = i * dtype_bytes((uint32_t)t->dtype);
        double x = float_at((uint32_t)t->dtype, a + at),
               y = float_at((uint32_t)t->dtype, b + at);
        if (isfinite(x)) scale = fmax(scale, fabs(x));
        if (x == y || (isnan(x) && isnan(y))) continue;
        double off = fabs(x - y);
        if (!(off <= worst)) worst = off;
        if (isnan(off)) break;
    }
    judge(r, t->name, -1, worst,
          dc_output_tolerance((ampc_dtype)t->dtype) * scale + 1e-30);
}

static void compare_output(DcReport *r, const ampc_tensor_info *t,
                           const char *a, const char *b) {
    if (t->dtype >= AMPC_DTYPE_F16)
        compare_floats(r, t, a, b);
    else
        judge(r, t->name, -1, memcmp(a, b, t->bytes) ? 1 : 0, 1e-30);
}

static bool read_output(Side *d, const ampc_tensor_info *t, void *data) {
    ampc_output out = ampc_out(t->name, data, t->bytes, (ampc_dtype)t->dtype);
    return ok(d, t->name, d->api->read_output(d->s, t->name, &out));
}

static void compare_outputs(Side *a, Side *b) {
    ampc_program_info p = {.size = sizeof p};
    a->api->program(a->api->module, "predict", &p);
    for (uint32_t i = 0; i < p.noutput; i++) {
        ampc_tensor_info t = {.size = sizeof t};
        a->api->output(a->api->module, "predict", i, &t);
        char *x = malloc(t.bytes + 1), *y = malloc(t.bytes + 1);
        if (x && y && read_output(a, &t, x) && read_output(b, &t, y))
            compare_output(a->r, &t, x, y);
        free(x);
        free(y);
    }
}

static bool predict(Side *d, const ampc_input *in, size_t nin) {
    ampc_module_info m = {.size = sizeof m};
    d->api->describe(d->api->module, &m);
    return ok(d, "predict",
              d->api->predict(d->s, in, nin, m.batch ? m.batch : 1, NULL, 0));
}

bool dc_predict(const ampc_api *api, const char *device_a, const char *device_b,
                const ampc_input *in, size_t nin, DcReport *r) {
    Side a, b = {0};
    *r = (DcReport){0};
    if (side_open(&a, api, device_a, r) && side_open(&b, api, device_b, r) &&
        predict(&a, in, nin) && predict(&b, in, nin))
        compare_outputs(&a, &b);
    side_close(&a);
    side_close(&b);
    return !r->failed;
}

/* ---- variables ----------------------------------------------------------- */

static bool variable_info(const ampc_api *api, uint32_t i,
                          ampc_variable_info *v) {
    ampc_module_info m = {.size = sizeof m};
    api->describe(api->module, &m);
    *v = (ampc_variable_info){.size = sizeof *v};
    return i < m.nvariable && !api->variable(api->module, i, v);
}

static bool carries_state(const ampc_variable_info *v) {
    return v->kind == AMPC_KIND_PARAMETER || v->kind == AMPC_KIND_BUFFER ||
           v->kind == AMPC_KIND_STATE;
}

static bool read_variable(Side *d, const ampc_variable_info *v, void *to) {
    ampc_output out = ampc_out(v->name, to, v->bytes, (ampc_dtype)v->dtype);
    return ok(d, v->name, d->api->read_variable(d->s, v->name, &out));
}

static bool copy_variable(Side *from, Side *to, const ampc_variable_info *v) {
    char *p = malloc(v->bytes + 1);
    bool done = p && read_variable(from, v, p);
    ampc_input in = ampc_in(v->name, p, v->bytes, (ampc_dtype)v->dtype);
    if (done)
        done = ok(to, v->name, to->api->write_variable(to->s, v->name, &in));
    free(p);
    return done;
}

static bool copy_state(Side *from, Side *to) {
    ampc_variable_info v;
    for (uint32_t i = 0; variable_info(from->api, i, &v); i++)
        if (carries_state(&v) && !copy_variable(from, to, &v)) return false;
    return true;
}

/* Parameters, buffers and each kind of optimizer state are groups. */
static int group_of(const ampc_variable_info *v) {
    const char *last = strrchr(v->name, '/');
    if (v->kind != AMPC_KIND_STATE) return v->kind == AMPC_KIND_BUFFER;
    if (!last) return 2;
    return !strcmp(last, "/exp_avg") ? 3 : !strcmp(last, "/exp_avg_sq") ? 4 : 5;
}

enum { GROUPS = 6 };

typedef struct Norms {
    double size, off; /* of A; of A - B */
} Norms;

static Norms norms_of(const ampc_variable_info *v, const char *a,
                      const char *b) {
    Norms n = {0, 0};
    for (size_t i = 0; i < v->bytes / dtype_bytes((uint32_t)v->dtype); i++) {
        size_t at = i * dtype_bytes((uint32_t)v->dtype);
        double x = float_at((uint32_t)v->dtype, a + at),
               y = float_at((uint32_t)v->dtype, b + at);
        n.size += x * x;
        if (x != y && !(isnan(x) && isnan(y))) n.off += (x - y) * (x - y);
    }
    return (Norms){sqrt(n.size), sqrt(n.off)};
}

/* Reads a variable on both sides; *n only for floats, others must be equal. */
static bool compare_variable(Side *a, Side *b, const ampc_variable_info *v,
                             int step, Norms *n) {
    char *x = malloc(v->bytes + 1), *y = malloc(v->bytes + 1);
    bool done = x && y && read_variable(a, v, x) && read_variable(b, v, y);
    *n = (Norms){0, 0};
    if (done && v->dtype >= AMPC_DTYPE_F16)
        *n = norms_of(v, x, y);
    else if (done && memcmp(x, y, v->bytes))
        say(a->r, "step %d, %s differs", step, v->name);
    free(x);
    free(y);
    return done;
}

static void compare_state(Side *a, Side *b, const DcTraining *t, int step) {
    double group[GROUPS] = {0};
    ampc_module_info m = {.size = sizeof m};
    ampc_variable_info v;
    a->api->describe(a->api->module, &m);
    Norms *n = calloc(m.nvariable + 1, sizeof *n);
    for (uint32_t i = 0; n && variable_info(a->api, i, &v); i++) {
        if (!carries_state(&v)) continue;
        if (!compare_variable(a, b, &v, step, &n[i])) break;
        group[group_of(&v)] += n[i].size * n[i].size;
    }
    for (uint32_t i = 0; n && variable_info(a->api, i, &v); i++)
        if (carries_state(&v) && v.dtype >= AMPC_DTYPE_F16)
            judge(a->r, v.name, step, n[i].off,
                  t->tolerance.tensor * n[i].size +
                      t->tolerance.floor * sqrt(group[group_of(&v)]) + 1e-30);
    free(n);
}

/* ---- training ------------------------------------------------------------ */

DcTolerance dc_training_tolerance(const char *precision) {
    if (!strcmp(precision, "fp32")) return (DcTolerance)TOL_DEVICE_FP32;
    if (!strcmp(precision, "fp16")) return (DcTolerance)TOL_DEVICE_FP16;
    if (!strcmp(precision, "f8")) return (DcTolerance)TOL_DEVICE_F8;
    return (DcTolerance)TOL_DEVICE_BF16;
}

static bool step(Side *d, const DcTraining *t, int i, ampc_metrics *m) {
    size_t nin;
    const ampc_input *in = t->feed(t->feed_ctx, i, &nin);
    *m = (ampc_metrics){.size = sizeof *m};
    return in && ok(d, "step", d->api->step(d->s, in, nin, m));
}

static void judge_metric(DcReport *r, const char *name, int i, double a,
                         double b, double tolerance) {
    if (!isfinite(a) || !isfinite(b))
        judge_equal(r, name, i, a, b);
    else
        judge(r, name, i, fabs(a - b), tolerance * fabs(a) + 1e-30);
}

static void compare_metrics(DcReport *r, const DcTraining *t, int i,
                            const ampc_metrics *a, const ampc_metrics *b) {
    judge_metric(r, "loss", i, a->loss, b->loss, t->tolerance.loss);
    judge_equal(r, "updated", i, a->updated, b->updated);
    judge_equal(r, "lr", i, a->lr, b->lr);
    judge_equal(r, "scale", i, a->scale, b->scale);
    judge_equal(r, "applied steps", i, (double)a->step, (double)b->step);
    judge_equal(r, "tried steps", i, (double)a->tried, (double)b->tried);
    judge_equal(r, "skipped steps", i, (double)a->skipped, (double)b->skipped);
    judge_equal(r, "bad forwards", i, (double)a->bad_forward,
                (double)b->bad_forward);
    if (a->updated)
        judge_metric(r, "grad_norm", i, a->grad_norm, b->grad_norm,
                     t->tolerance.grad_norm);
}

static void compare_scalers(Side *a, Side *b, int i) {
    ampc_scaler x = {.size = sizeof x}, y = x;
    if (!ok(a, "scaler", a->api->scaler(a->s, &x)) ||
        !ok(b, "scaler", b->api->scaler(b->s, &y)))
        return;
    judge_equal(a->r, "next scale", i, x.scale, y.scale);
    judge_equal(a->r, "clean steps", i, (double)x.good, (double)y.good);
    judge_equal(a->r, "hysteresis", i, (double)x.hysteresis,
                (double)y.hysteresis);
    judge_equal(a->r, "micro-steps", i, (double)x.micro, (double)y.micro);
}

static void train(Side *a, Side *b, const DcTraining *t) {
    bool between = true; /* no micro-step is pending */
    for (int i = 0; i < t->steps && a->r->failed < 20; i++) {
        ampc_metrics x, y;
        if (t->forced && between && !copy_state(a, b)) return;
        if (!step(a, t, i, &x) || !step(b, t, i, &y)) return;
        compare_metrics(a->r, t, i, &x, &y);
        compare_scalers(a, b, i);
        between = x.updated;
        if (!t->metrics_only && between) compare_state(a, b, t, i);
    }
}

bool dc_train(const ampc_api *api, const char *device_a, const char *device_b,
              const DcTraining *t, DcReport *r) {
    Side a, b = {0};
    *r = (DcReport){0};
    if (side_open(&a, api, device_a, r) && side_open(&b, api, device_b, r))
        train(&a, &b, t);
    side_close(&a);
    side_close(&b);
    return !r->failed;
}
