/* SPDX-License-Identifier: Apache-2.0 */
/* diverge_test.c: runs whose steps are all skipped, on the CPU and on the
   simulated GPU.

   Each case breaks one thing and knows what must be named. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/on_device.h"

enum { BATCH = 4, WIDTH = 3, FAR = 5003 };

/* %c and %far do not train, and %far is larger than the part that is
   examined at a time; the forward pass writes %mean. */
static const char model[] =
    "graph forward(%x: f32[4,3]) {\n"
    "  param %w: f32[3,2] = 0.5\n"
    "  frozen %c: f32[3] = 1\n"
    "  frozen %far: f32[5003] = 0\n"
    "  buffer %mean: f32[3] = 0\n"
    "  %s = reduce_sum %far {axes=[0], keepdims=0} : f32[]\n"
    "  %xs = add %x, %s : f32[4,3]\n"
    "  %xc = mul %xs, %c : f32[4,3]\n"
    "  %m = reduce_mean %xc {axes=[0], keepdims=0} : f32[3]\n"
    "  %b = add %xc, %mean : f32[4,3]\n"
    "  %y = matmul %b, %w : f32[4,2]\n"
    "  write %mean = %m\n"
    "  return %y\n"
    "}\n";
#define OPTIONS "--loss mse --precision fp32 --optimizer sgd,lr=0.01 "

typedef struct Data {
    float x[BATCH * WIDTH], target[BATCH * 2];
    ampc_input in[2];
} Data;

static Data *data(Data *d) {
    for (int i = 0; i < BATCH * WIDTH; i++) d->x[i] = (float)i / 8;
    for (int i = 0; i < BATCH * 2; i++) d->target[i] = (float)(i % 3);
    d->in[0] = ampc_in("x", d->x, sizeof d->x, AMPC_DTYPE_F32);
    d->in[1] = ampc_in("target", d->target, sizeof d->target, AMPC_DTYPE_F32);
    return d;
}

static const Compiled *compile(const char *device, const char *options) {
    return compile_on(device, model, OPTIONS, options);
}

static void named(const Compiled *c, ampc_session *s, const char *text,
                  ampc_origin origin, const char *name, int64_t index,
                  int64_t tried) {
    ampc_nonfinite x = {.size = sizeof x};
    CHECK_HAS(c->api->error(s), text);
    CHECK_EQ_INT(c->api->nonfinite(s, &x), AMPC_OK);
    CHECK_EQ_INT(x.origin, origin);
    CHECK_STR(x.name, name);
    CHECK_EQ_INT(x.index, index);
    CHECK(!isfinite(x.value));
    CHECK_EQ_INT(x.tried, tried);
}

/* ---- what is named ------------------------------------------------------- */

/* One element of an input or a variable. */
static const struct Fault {
    const char *name;
    int bytes, index; /* index of a variable; bytes 0: it is an input */
    float value;
    const char *text;
    ampc_origin origin;
} faults[] = {
    {"x", 0, 7, NAN, "input 'x' holds nan at position 7", AMPC_ORIGIN_INPUT},
    {"x", 0, 7, -NAN, "input 'x' holds nan at position 7", AMPC_ORIGIN_INPUT},
    {"target", 0, 2, -INFINITY, "input 'target' holds -inf at position 2",
     AMPC_ORIGIN_INPUT},
    {"w", 24, 5, INFINITY, "parameter 'w' holds inf at position 5",
     AMPC_ORIGIN_VARIABLE},
    {"c", 12, 1, NAN, "frozen weight 'c' holds nan at position 1",
     AMPC_ORIGIN_VARIABLE},
    {"far", 4 * FAR, 4096, NAN,
     "frozen weight 'far' holds nan at position 4096", AMPC_ORIGIN_VARIABLE},
    {"far", 4 * FAR, FAR - 1, INFINITY,
     "frozen weight 'far' holds inf at position 5002", AMPC_ORIGIN_VARIABLE},
    {"mean", 12, 2, INFINITY, "buffer 'mean' holds inf at position 2",
     AMPC_ORIGIN_VARIABLE},
    {"w", 24, 0, 3.2e38f, "the loss is inf, though", AMPC_ORIGIN_LOSS},
    {"x", 0, 0, 1e9f, "gradients are not finite, though the loss is",
     AMPC_ORIGIN_GRADIENT},
};

static void set(const Compiled *c, ampc_session *s, Data *d,
                const struct Fault *f) {
    float v[FAR];
    if (!f->bytes) {
        (strcmp(f->name, "x") ? d->target : d->x)[f->index] = f->value;
        return;
    }
    read_var(c, s, f->name, v, (size_t)f->bytes, AMPC_DTYPE_F32);
    v[f->index] = f->value;
    write_var(c, s, f->name, v, (size_t)f->bytes, AMPC_DTYPE_F32);
}

static void faulty(const char *device, const struct Fault *f) {
    const Compiled *c = compile(device, "--loss-scale static=1e30");
    ampc_session *s = open_on(c, device, 3);
    ampc_metrics m = {.size = sizeof m};
    Data d, good;
    bool is_variable = f->origin == AMPC_ORIGIN_VARIABLE;
    const char *name =
        is_variable || f->origin == AMPC_ORIGIN_INPUT ? f->name : "";
    step_ok(c, s, data(&good)->in, 2);
    set(c, s, data(&d), f);
    for (int i = 1; i <= 5; i++) {
        ampc_status status = c->api->step(s, d.in, 2, &m);
        CHECK_MSG(status == (i < 3 ? AMPC_OK : AMPC_ERR_DIVERGED),
                  "%s, step %d: %d %s", f->text, i, (int)status,
                  c->api->error(s));
        CHECK_EQ_INT(m.applied, 0);
        CHECK_EQ_INT(m.skip_streak, i);
        CHECK_EQ_INT(m.tried, 1 + i);
        CHECK_STR(c->api->notice(s), ""); /* nobody asked where */
        if (i < 3) continue;
        CHECK_HAS(c->api->error(s),
                  i == 3 ? "3 steps in a row were skipped" : "steps in a row");
        named(c, s, f->text, f->origin, name, *name ? f->index : -1, 1 + i);
    }
    c->api->close(s);
}

static void all_faults(const char *device) {
    for (size_t i = 0; i < sizeof faults / sizeof *faults; i++)
        faulty(device, &faults[i]);
}

TEST_CASE(diverge, the_first_that_is_not_finite_is_named_cpu) {
    all_faults("cpu");
}
TEST_CASE(diverge, the_first_that_is_not_finite_is_named_gpu) {
    all_faults("cuda");
}

/* ---- when ---------------------------------------------------------------- */

/* An applied step restarts the count. */
static void recovery(const char *device) {
    const Compiled *c = compile(device, "--loss-scale static=1");
    ampc_session *s = open_on(c, device, 2);
    ampc_metrics m = {.size = sizeof m};
    Data d, bad;
    data(&bad)->x[0] = NAN;
    for (int round = 0; round < 2; round++) {
        CHECK_EQ_INT(c->api->step(s, bad.in, 2, &m), AMPC_OK);
        CHECK_EQ_INT(c->api->step(s, bad.in, 2, &m), AMPC_ERR_DIVERGED);
        CHECK_EQ_INT(c->api->step(s, data(&d)->in, 2, &m), AMPC_OK);
        CHECK_EQ_INT(m.applied, 1);
        CHECK_EQ_INT(m.skip_streak, 0);
    }
    CHECK_EQ_INT(m.skipped, 4);
    c->api->close(s);
}

TEST_CASE(diverge, a_good_step_begins_anew_cpu) { recovery("cpu"); }
TEST_CASE(diverge, a_good_step_begins_anew_gpu) { recovery("cuda"); }

static int first_failure(int max_skipped, int steps) {
    const Compiled *c = compile("cpu", "--loss-scale static=1");
    ampc_session *s = open_on(c, "cpu", max_skipped);
    Data d;
    int first = 0;
    data(&d)->x[0] = NAN;
    for (int i = 1; i <= steps; i++)
        if (c->api->step(s, d.in, 2, NULL) && !first) first = i;
    c->api->close(s);
    return first;
}

TEST_CASE(diverge, after_a_hundred_or_as_many_as_asked) {
    ampc_options o = {.size = sizeof o, .max_skipped = -2};
    const Compiled *c = compile("cpu", "--loss-scale static=1");
    ampc_session *s;
    char err[200];
    CHECK_EQ_INT(first_failure(0, 120), 100);
    CHECK_EQ_INT(first_failure(1, 3), 1);
    CHECK_EQ_INT(first_failure(110, 120), 110);
    CHECK_EQ_INT(first_failure(-1, 300), 0);
    CHECK_EQ_INT(c->api->open(c->api->module, &o, &s, err, sizeof err),
                 AMPC_ERR_ARGUMENT);
    CHECK_HAS(err, "max_skipped");
}

/* Optimizer steps count, not micro-batches. */
static void accumulation(const char *device) {
    const Compiled *c = compile(device, "--accumulate 2");
    ampc_session *s = open_on(c, device, 2);
    ampc_metrics m = {.size = sizeof m};
    Data d;
    data(&d)->x[4] = INFINITY;
    for (int i = 0; i < 3; i++)
        CHECK_EQ_INT(c->api->step(s, d.in, 2, &m), AMPC_OK);
    CHECK_EQ_INT(c->api->step(s, d.in, 2, &m), AMPC_ERR_DIVERGED);
    CHECK_EQ_INT(m.skip_streak, 2);
    named(c, s, "input 'x' holds inf at position 4", AMPC_ORIGIN_INPUT, "x", 4,
          2);
    c->api->close(s);
}

TEST_CASE(diverge, accumulated_steps_cpu) { accumulation("cpu"); }
TEST_CASE(diverge, accumulated_steps_gpu) { accumulation("cuda"); }

/* No metrics are requested: sync reports the error, and no longer knows the
   inputs. */
TEST_CASE(diverge, steps_that_nobody_waits_for) {
    const Compiled *c = compile("cuda", "--loss-scale static=1");
    ampc_session *s = open_on(c, "cuda", 4);
    ampc_metrics m = {.size = sizeof m};
    Data d;
    data(&d)->x[1] = NAN;
    for (int i = 0; i < 6; i++)
        CHECK_EQ_INT(c->api->step(s, d.in, 2, NULL), AMPC_OK);
    memset(&d, 0, sizeof d);
    CHECK_EQ_INT(c->api->sync(s, &m), AMPC_ERR_DIVERGED);
    CHECK_EQ_INT(m.skip_streak, 6);
    named(c, s, "the loss is nan", AMPC_ORIGIN_LOSS, "", -1, 6);
    CHECK_EQ_INT(c->api->sync(s, &m), AMPC_OK);
    c->api->close(s);
}

TEST_CASE(diverge, the_count_is_in_checkpoints) {
    const Compiled *c = compile("cpu", "--loss-scale static=1");
    ampc_session *s = open_on(c, "cpu", 3);
    Data d;
    const char *path = test_tmp("skips.safetensors");
    data(&d)->x[0] = NAN;
    for (int i = 0; i < 2; i++)
        CHECK_EQ_INT(c->api->step(s, d.in, 2, NULL), AMPC_OK);
    CHECK_EQ_INT(c->api->save(s, path), AMPC_OK);
    c->api->close(s);
    s = open_on(c, "cpu", 3);
    CHECK_EQ_INT(c->api->resume(s, path), AMPC_OK);
    CHECK_EQ_INT(c->api->step(s, d.in, 2, NULL), AMPC_ERR_DIVERGED);
    c->api->close(s);
}

/* ---- --debug-nonfinite --------------------------------------------------- */

/* The masks' infinities are intended; the root of x is NaN below 0, and its
   slope infinite at 0. */
static const char deep[] = "graph forward(%x: f32[4,3]) {\n"     /* line 1 */
                           "  param %w: f32[3,2] = 0.5\n"        /* 2 */
                           "  const %mask: f32[2] = [0, -inf]\n" /* 3 */
                           "  %h = matmul %x, %w : f32[4,2]\n"   /* 4 */
                           "  %m = add %h, %mask : f32[4,2]\n"   /* 5 */
                           "  %p = softmax %m {axis=1} : f32[4,2]\n" /* 6 */
                           "  %s = sqrt %h : f32[4,2]\n"             /* 7 */
                           "  %e = exp %h : f32[4,2]\n"              /* 8 */
                           "  %ps = add %p, %s : f32[4,2]\n"         /* 9 */
                           "  %se = add %ps, %e : f32[4,2]\n"        /* 10 */
                           "  %k = isnan %h\n"
                           "  %far = where %k, 0, -inf : f32[4,2]\n"
                           "  %turned = transpose %far {perm=[1,0]}\n"
                           "  %none = exp %turned : f32[2,4]\n"
                           "  %back = transpose %none {perm=[1,0]}\n"
                           "  %y = add %se, %back : f32[4,2]\n"
                           "  return %y\n"
                           "}\n";

/* Sets a row of x to one number, or w[1, 0] to another. */
static const struct Place {
    float row, w; /* 0: unchanged; NaN: the row is three zeros */
    ampc_origin origin;
    const char *name, *op, *source; /* NULL: any */
    int64_t index;                  /* -1: any */
    const char *advice;
} places[] = {
    {INFINITY, 0, AMPC_ORIGIN_INPUT, "x", "", "", 3, "look at the data"},
    {0, INFINITY, AMPC_ORIGIN_VARIABLE, NULL, "", "", 2, ""},
    {-1, 0, AMPC_ORIGIN_FORWARD, "s", "sqrt", "line 7", -1, "away from 0"},
    {99, 0, AMPC_ORIGIN_FORWARD, "e", "exp", "line 8", -1, "88.7"},
    {NAN, 0, AMPC_ORIGIN_BACKWARD, NULL, NULL, "line 7", -1, ""},
};

static void spoil(const Compiled *c, ampc_session *s, Data *d,
                  const struct Place *p) {
    float w[6];
    data(d);
    for (int i = 0; i < BATCH * WIDTH; i++) d->x[i] += 0.125f;
    for (int i = 3; i < 6 && p && p->row != 0; i++)
        d->x[i] = isnan(p->row) ? 0 : p->row;
    if (!p || p->w == 0) return;
    read_var(c, s, "w", w, sizeof w, AMPC_DTYPE_F32);
    w[2] = p->w;
    write_var(c, s, "w", w, sizeof w, AMPC_DTYPE_F32);
}

static void check_place(const Compiled *c, ampc_session *s,
                        const struct Place *p) {
    ampc_nonfinite x = {.size = sizeof x};
    char notice[1024];
    snprintf(notice, sizeof notice, "%s", c->api->notice(s));
    CHECK_EQ_INT(c->api->nonfinite(s, &x), AMPC_OK);
    CHECK_EQ_INT(x.origin, p->origin);
    if (p->name) CHECK_STR(x.name, p->name);
    if (p->op) CHECK_STR(x.op, p->op);
    if (p->source) CHECK_STR(x.source, p->source);
    if (p->index >= 0) CHECK_EQ_INT(x.index, p->index);
    CHECK(!isfinite(x.value));
    CHECK_HAS(x.advice, p->advice);
    CHECK_HAS(notice, "step 2 was skipped: ");
    if (p->origin == AMPC_ORIGIN_VARIABLE) {
        bool shadow = strchr(x.name, '/') != NULL;
        CHECK_HAS(notice,
                  shadow ? "skipped: 16-bit copy '" : "skipped: parameter '");
    }
    CHECK_HAS(notice, x.name);
    CHECK_HAS(notice, x.source);
    CHECK_HAS(notice, x.advice);
}

static void locating(const char *device, const char *options) {
    const Compiled *c = compile_on(device, deep, OPTIONS, options);
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        ampc_session *s = open_on(c, device, 0);
        Data d;
        spoil(c, s, &d, NULL);
        CHECK_EQ_INT(step_ok(c, s, d.in, 2).applied, 1);
        CHECK_STR(c->api->notice(s), "");
        spoil(c, s, &d, &places[i]);
        CHECK_EQ_INT(c->api->step(s, d.in, 2, NULL), AMPC_OK);
        check_place(c, s, &places[i]);
        c->api->close(s);
    }
}

#define SLOW  "--loss-scale static=1 --optimizer sgd,lr=0.0001 "
#define DEBUG "--debug-nonfinite " SLOW

TEST_CASE(diverge, debug_names_the_value_fp32) {
    locating("cpu", DEBUG "--precision fp32");
}
TEST_CASE(diverge, debug_names_the_value_bf16) {
    locating("cpu", DEBUG "--precision bf16");
}
TEST_CASE(diverge, debug_names_the_value_gpu) {
    locating("cuda", DEBUG "--precision bf16");
}

/* Either micro-batch of a step may be the cause. */
static void locating_micro(const char *device) {
    const Compiled *c =
        compile_on(device, deep, OPTIONS, DEBUG "--accumulate 2");
    for (int which = 0; which < 2; which++) {
        ampc_session *s = open_on(c, device, 0);
        Data d;
        for (int i = 0; i < 4; i++) {
            spoil(c, s, &d, i == 2 + which ? &places[2] : NULL);
            CHECK_EQ_INT(c->api->step(s, d.in, 2, NULL), AMPC_OK);
        }
        check_place(c, s, &places[2]);
        c->api->close(s);
    }
}

TEST_CASE(diverge, debug_names_the_value_of_a_micro_batch_cpu) {
    locating_micro("cpu");
}
TEST_CASE(diverge, debug_names_the_value_of_a_micro_batch_gpu) {
    locating_micro("cuda");
}

/* The message names a function's result and nothing inside the function,
   even if it ends with a cast in mixed precision. */
static const char scores[] =
    "graph forward(%x: f32[4,3], %target: f32[1,1,4,4]) {\n"
    "  param %w: f32[3] = 1\n"
    "  %xw = mul %x, %w : f32[4,3]\n"
    "  %h = reshape %xw {shape=[1,1,4,3]} : f32[1,1,4,3]\n"
    "  %a, %k, %v, %scores = attention %h, %h, %h {stage=2}\n"
    "  %st = mul %scores, %target : f32[1,1,4,4]\n"
    "  %loss = reduce_sum %st {axes=[0,1,2,3], keepdims=0} : f32[]\n"
    "  return %loss\n"
    "}\n";

static void locating_result(const char *precision) {
    const Compiled *c =
        compile_on("cpu", scores, "--debug-nonfinite ", precision);
    ampc_session *s = open_on(c, "cpu", 0);
    ampc_nonfinite x = {.size = sizeof x};
    Data d;
    float target[BATCH * BATCH];
    for (int i = 0; i < BATCH * BATCH; i++) target[i] = 1;
    for (int i = 0; i < BATCH * WIDTH; i++) d.x[i] = 3e30f;
    d.in[0] = ampc_in("x", d.x, sizeof d.x, AMPC_DTYPE_F32);
    d.in[1] = ampc_in("target", target, sizeof target, AMPC_DTYPE_F32);
    CHECK_EQ_INT(step_ok(c, s, d.in, 2).applied, 0);
    CHECK_EQ_INT(c->api->nonfinite(s, &x), AMPC_OK);
    CHECK_EQ_INT(x.origin, AMPC_ORIGIN_FORWARD);
    CHECK_STR(x.name, "scores");
    CHECK_STR(x.source, "line 5");
    c->api->close(s);
}

TEST_CASE(diverge, debug_names_the_result_of_a_function) {
    locating_result("--precision fp32");
    locating_result("--precision bf16");
}

TEST_CASE(diverge, debug_knows_what_fp16_cannot_hold) {
    const Compiled *c = compile_on("cpu", deep, OPTIONS,
                                   "--debug-nonfinite --precision fp16 "
                                   "--loss-scale static=1e9");
    ampc_session *s = open_on(c, "cpu", 1);
    ampc_nonfinite x = {.size = sizeof x};
    Data d;
    spoil(c, s, &d, NULL);
    CHECK_EQ_INT(c->api->step(s, d.in, 2, NULL), AMPC_ERR_DIVERGED);
    CHECK_HAS(c->api->error(s), "1 steps in a row were skipped: backward, ");
    CHECK_HAS(c->api->error(s), "the loss scale is too large for this step");
    CHECK_EQ_INT(c->api->nonfinite(s, &x), AMPC_OK);
    CHECK_EQ_INT(x.origin, AMPC_ORIGIN_BACKWARD);
    CHECK_EQ_INT(x.dtype, AMPC_DTYPE_F16);
    c->api->close(s);
}

static const char stream[] =
    "graph forward(%x: f32[4,3]) {\n  param %w: f32[3,3] = 0.5\n"
    "  param %v: f32[3,2] = 0.5\n  %h = matmul %x, %w : f32[4,3]\n"
    "  %r = add %x, %h : f32[4,3]\n  %t = mul %r, 0.001 : f32[4,3]\n"
    "  %k = matmul %t, %w : f32[4,3]\n  %s = add %r, %k : f32[4,3]\n"
    "  %u = mul %s, 0.001 : f32[4,3]\n  %y = matmul %u, %v : f32[4,2]\n"
    "  return %y\n}\n";

static const char divided[] =
    "graph forward(%x: f32[4,3]) {\n  param %w: f32[3,1,3] = 0.5\n"
    "  param %v: f32[3,2] = 0.5\n"
    "  %h = reshape %x {shape=[4,1,3]} : f32[4,1,3]\n"
    "  %r = conv %h, %w {strides=[1], pads=[0,0], dilations=[1], group=1} : "
    "f32[4,3,1]\n"
    "  %m = reduce_mean %r {axes=[0,1,2], keepdims=1} : f32[1,1,1]\n"
    "  %d = sub %r, %m : f32[4,3,1]\n  %s = mul %d, %d : f32[4,3,1]\n"
    "  %a = reduce_mean %s {axes=[0,1,2], keepdims=1} : f32[1,1,1]\n"
    "  %e = add %a, 1e-5 : f32[1,1,1]\n  %o = rsqrt %e : f32[1,1,1]\n"
    "  %n = mul %d, %o : f32[4,3,1]\n"
    "  %z = reshape %n {shape=[4,3]} : f32[4,3]\n"
    "  %y = matmul %z, %v : f32[4,2]\n  return %y\n}\n";

static void check_where_fp16_ends(const char *text) {
    const Compiled *c =
        compile_on("cpu", text, OPTIONS, DEBUG "--precision bf16");
    ampc_session *s = open_on(c, "cpu", 2);
    ampc_nonfinite x = {.size = sizeof x};
    Data d;
    CHECK_EQ_INT(step_ok(c, s, data(&d)->in, 2).applied, 1);
    d.x[2 * WIDTH] = 9e6f;
    CHECK_EQ_INT(step_ok(c, s, d.in, 2).applied, 0);
    CHECK_EQ_INT(c->api->nonfinite(s, &x), AMPC_OK);
    CHECK_STR(x.name, "r.f16");
    CHECK_EQ_INT(x.dtype, AMPC_DTYPE_F16);
    CHECK_HAS(x.advice, "--placement exact,residuals=inf");
    c->api->close(s);
}

TEST_CASE(diverge, debug_knows_where_fp16_streams_end) {
    check_where_fp16_ends(stream);
}

TEST_CASE(diverge, debug_knows_where_what_norms_divide_ends) {
    check_where_fp16_ends(divided);
}

/* Good steps, bad steps and a checkpoint of the module without the option. */
static void same_bits(const char *device, const char *with,
                      const char *without) {
    const unsigned kinds = 1u << AMPC_KIND_PARAMETER | 1u << AMPC_KIND_BUFFER |
                           1u << AMPC_KIND_STATE;
    const Compiled *c[] = {compile_on(device, deep, OPTIONS, with),
                           compile_on(device, deep, OPTIONS, without)};
    char path[600], *state[2];
    size_t n[2];
    snprintf(path, sizeof path, "%s/plain.safetensors", test_tmpdir());
    for (int k = 2; k-- > 0;) { /* without it first */
        if (strcmp(device, "cpu") != 0)
            c[k] = compile_on(device, deep, OPTIONS, k ? without : with);
        ampc_session *s = open_on(c[k], device, 0);
        if (!k) CHECK_EQ_INT(c[k]->api->resume(s, path), AMPC_OK);
        for (int i = k ? 0 : 3; i < 8; i++) {
            Data d;
            if (k && i == 3) CHECK_EQ_INT(c[k]->api->save(s, path), AMPC_OK);
            spoil(c[k], s, &d, i % 3 == 1 ? &places[2] : NULL);
            ampc_metrics m = step_ok(c[k], s, d.in, 2);
            CHECK_EQ_INT(m.applied, i % 3 != 1);
        }
        state[k] = read_all(c[k], s, kinds, &n[k]);
        c[k]->api->close(s);
    }
    if (CHECK_EQ_INT(n[0], n[1])) CHECK_MEM(state[0], state[1], n[0]);
    free(state[0]);
    free(state[1]);
}

TEST_CASE(diverge, debug_changes_no_bit_cpu) {
    same_bits("cpu", DEBUG "--precision bf16", SLOW "--precision bf16");
}
TEST_CASE(diverge, debug_changes_no_bit_gpu) {
    same_bits("cuda", DEBUG "--precision bf16", SLOW "--precision bf16");
}

/* ---- --count-underflow --------------------------------------------------- */

/* x = 1, 1, 0: y = 1, so that row 2 of w has no gradient, and the gradient
   of column 1 is 2^-25, since its target is 2^-23 below 1: the largest
   number that fp16 rounds to 0. */
static const char flat[] = "graph forward(%x: f32[4,3]) {\n"
                           "  param %w: f32[3,2] = 0.5, %b: f32[2] = 0\n"
                           "  %h = matmul %x, %w : f32[4,2]\n"
                           "  %y = add %h, %b : f32[4,2]\n"
                           "  return %y\n"
                           "}\n";

static Data *flat_data(Data *d) {
    data(d);
    for (int i = 0; i < BATCH * WIDTH; i++) d->x[i] = i % WIDTH < 2;
    for (int i = 0; i < BATCH * 2; i++) d->target[i] = i % 2 ? 1 - 0x1p-23f : 0;
    return d;
}

typedef struct Flushed {
    int calls;
    double flushed[2], nonzero[2]; /* of w, of b */
} Flushed;

static void note_flushed(void *ctx, const char *parameter, double flushed,
                         double nonzero) {
    Flushed *f = ctx;
    int i = !strcmp(parameter, "b");
    f->calls++;
    f->flushed[i] = flushed;
    f->nonzero[i] = nonzero;
}

static void flushing(const char *device, const char *options, double lost) {
    const Compiled *c = compile_on(device, flat, OPTIONS, options);
    ampc_session *s = open_on(c, device, 0);
    Flushed f = {0};
    Data d;
    CHECK_MSG(c->api->underflow(s, flat_data(&d)->in, 2, note_flushed, &f) ==
                  AMPC_OK,
              "%s", c->api->error(s));
    CHECK_EQ_INT(f.calls, 2);
    CHECK_EQ_INT(f.nonzero[0], 4);
    CHECK_EQ_INT(f.nonzero[1], 2);
    CHECK_EQ_INT(f.flushed[0], 2 * lost);
    CHECK_EQ_INT(f.flushed[1], lost);
    CHECK_EQ_INT(step_ok(c, s, d.in, 2).applied, 1);
    c->api->close(s);
}

#define COUNT "--count-underflow --precision fp16 --loss-scale "

TEST_CASE(diverge, what_fp16_flushes_is_counted_cpu) {
    flushing("cpu", COUNT "static=1", 1);
    flushing("cpu", COUNT "static=1.5", 0);
    flushing("cpu", COUNT "none", 1);
}
TEST_CASE(diverge, what_fp16_flushes_is_counted_gpu) {
    flushing("cuda", COUNT "static=1", 1);
}

/* A module that counts refuses checkpoints of a module that does not. */
TEST_CASE(diverge, counting_changes_no_bit) {
    const char *const options[] = {COUNT "static=8",
                                   "--precision fp16 --loss-scale static=8"};
    char path[600], *state[2];
    size_t n[2];
    snprintf(path, sizeof path, "%s/uncounted.safetensors", test_tmpdir());
    for (int k = 2; k-- > 0;) {
        const Compiled *c = compile_on("cpu", deep, OPTIONS, options[k]);
        ampc_session *s = open_on(c, "cpu", 0);
        Flushed f = {0};
        Data d;
        if (!k) CHECK_EQ_INT(c->api->resume(s, path), AMPC_OK);
        for (int i = k ? 0 : 2; i < 5; i++) {
            if (k && i == 2) CHECK_EQ_INT(c->api->save(s, path), AMPC_OK);
            spoil(c, s, &d, NULL);
            CHECK_EQ_INT(c->api->underflow(s, d.in, 2, note_flushed, &f),
                         k ? AMPC_ERR_UNSUPPORTED : AMPC_OK);
            step_ok(c, s, d.in, 2);
        }
        state[k] = read_all(c, s, 1u << AMPC_KIND_PARAMETER, &n[k]);
        c->api->close(s);
    }
    if (CHECK_EQ_INT(n[0], n[1])) CHECK_MEM(state[0], state[1], n[0]);
    free(state[0]);
    free(state[1]);
}

static void check_refused(const char *options, const char *says) {
    char path[600], *out = NULL;
    snprintf(path, sizeof path, "%s/flat.amp", test_tmpdir());
    REQUIRE(test_write_file(path, flat, sizeof flat - 1));
    CHECK_EQ_INT(
        test_command(&out, "'%s' check '%s' %s", test_ampc(), path, options),
        2);
    CHECK_HAS(out, says);
    free(out);
}

TEST_CASE(diverge, counting_and_debugging_want_something_to_look_at) {
    check_refused("--loss mse --count-underflow",
                  "--count-underflow: only fp16 flushes gradients");
    check_refused("--loss none --count-underflow --precision fp16",
                  "--count-underflow: nothing trains");
    check_refused("--loss none --debug-nonfinite",
                  "--debug-nonfinite: nothing trains");
}

TEST_CASE(diverge, a_module_counts_and_locates) {
    char path[600], *out = NULL;
    snprintf(path, sizeof path, "%s/both.amp", test_tmpdir());
    REQUIRE(test_write_file(path, flat, sizeof flat - 1));
    int rc = test_command(&out,
                          "'%s' inspect '%s' --loss mse --target cpu --ir "
                          "underflow --debug-nonfinite " COUNT "static=1",
                          test_ampc(), path);
    CHECK_MSG(rc == 0, "%s", out);
    CHECK_HAS(out, "graph locate(");
    CHECK_HAS(out, "graph underflow(");
    free(out);
}

/* ---- the driver ---------------------------------------------------------- */

static void write_floats(const char *name, int columns, const float *v,
                         int rows) {
    char file[4096], path[600];
    size_t n = (size_t)(rows * columns) * sizeof *v;
    REQUIRE(128 + n <= sizeof file);
    memset(file, ' ', 128);
    memcpy(file, "\x93NUMPY\x01\x00\x76\x00", 10);
    snprintf(file + 10, 100,
             "{'descr': '<f4', 'fortran_order': False, 'shape': (%d, %d), }",
             rows, columns);
    file[10 + strlen(file + 10)] = ' ';
    file[127] = '\n';
    memcpy(file + 128, v, n);
    snprintf(path, sizeof path, "%s/%s", test_tmpdir(), name);
    REQUIRE(test_write_file(path, file, 128 + n));
}

static char *run(const Compiled *c, const char *options, int status) {
    char *out = NULL;
    CHECK_EQ_INT(test_command(&out,
                              "cd '%s' && '%s' run '%s' --quiet --device cpu "
                              "--feed x=x.npy --feed target=t.npy %s 2>&1",
                              test_tmpdir(), test_ampc(), c->path, options),
                 status);
    return out;
}

TEST_CASE(diverge, run_prints_what_debug_finds) {
    const Compiled *c =
        compile_on("cpu", deep, OPTIONS, DEBUG "--precision fp32");
    float x[BATCH * WIDTH], t[BATCH * 2] = {0};
    for (int i = 0; i < BATCH * WIDTH; i++) x[i] = i == 1 ? -9.f : 1;
    write_floats("x.npy", WIDTH, x, BATCH);
    write_floats("t.npy", 2, t, BATCH);
    char *out = run(c, "--steps 2", 0);
    CHECK_HAS(out, "step 1 was skipped: forward, 's' (f32 sqrt, line 7) holds "
                   "nan; keep its operand");
    CHECK_HAS(out, "step 2 was skipped: ");
    free(out);
}

TEST_CASE(diverge, run_tells_what_fp16_flushes) {
    const Compiled *c = compile_on("cpu", flat, OPTIONS, COUNT "static=1");
    char *out;
    Data d;
    flat_data(&d);
    write_floats("x.npy", WIDTH, d.x, BATCH);
    write_floats("t.npy", 2, d.target, BATCH);
    out = run(c, "--steps 3", 0);
    CHECK_HAS(out, "{\"underflow\":{\"w\":0.5,\"b\":0.5}}");
    free(out);
    CHECK_EQ_INT(test_command(&out,
                              "cd '%s' && '%s' run '%s' --steps 1 --device cpu "
                              "--feed x=x.npy --feed target=t.npy 2>&1",
                              test_tmpdir(), test_ampc(), c->path),
                 0);
    CHECK_HAS(out, "fp16 flushes 50 % of the gradient of 'w' to zero");
    CHECK_HAS(out, "a larger loss scale or --precision bf16");
    free(out);
}

TEST_CASE(diverge, run_ends_and_names_the_sample) {
    enum { SAMPLES = 8 };
    const Compiled *c = compile("cpu", "--loss-scale static=1");
    float x[SAMPLES * WIDTH], t[SAMPLES * 2] = {0};
    for (int i = 0; i < SAMPLES * WIDTH; i++) x[i] = (float)i / 8;
    x[6 * WIDTH + 1] = NAN; /* and x[2, 0]: each batch has one */
    x[2 * WIDTH] = INFINITY;
    write_floats("x.npy", WIDTH, x, SAMPLES);
    write_floats("t.npy", 2, t, SAMPLES);
    char *out = run(c, "--steps 9 --max-skipped 4", 1);
    CHECK_HAS(out, "\"step\":3,\"loss\":null,");
    CHECK_HAS(out, "\"skipped\":3,\"skip_streak\":3,");
    CHECK_HAS(out, "4 steps in a row were skipped: input 'x' holds nan at "
                   "position 7");
    CHECK_HAS(out, "x.npy: error: sample 6 (from 0) has nan");
    free(out);
    out = run(c, "--steps 9 --max-skipped 5", 1);
    CHECK_HAS(out, "x.npy: error: sample 2 (from 0) has inf");
    free(out);
    free(run(c, "--steps 120 --max-skipped -1", 0));
    out = run(c, "--steps 120", 1);
    CHECK_HAS(out, "100 steps in a row");
    free(out);
}
