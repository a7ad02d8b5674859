/* SPDX-License-Identifier: Apache-2.0 */
/* host_loss_test.c: --loss host compared with the same loss inside the
   module: a mean of squares, which the host differentiates here, over a
   model with running statistics and dropout. */
#include <math.h>
#include <stdio.h>

#include "tests/support/compiled.h"

enum { N = 8, IN = 6, OUT = 3, STEPS = 4 };

static const char model[] =
    "graph forward(%x: f32[8,6]) {\n"
    "  param %w: f32[6,5] = normal(1, 0.5), %s: f32[5] = 1, %b: f32[5] = 0\n"
    "  param %v: f32[5,3] = normal(2, 0.5)\n"
    "  buffer %mean: f32[5] = 0, %var: f32[5] = 1\n"
    "  state %ampc.rng: i64[2]\n"
    "  %h = matmul %x, %w\n"
    "  %n, %m, %u = batch_norm %h, %s, %b, %mean, %var {training=1}\n"
    "  %kept = mul %mean, 0.9\n  %new = mul %m, 0.1\n"
    "  %mean.new = add %kept, %new\n"
    "  %d = dropout %n, %ampc.rng {ratio=0.25}\n"
    "  %y = matmul %d, %v\n"
    "  write %mean = %mean.new\n"
    "  return y=%y\n"
    "}\n";
static const char *const variables[] = {"w", "s", "b", "v", "mean"};

static void batch(float *x, float *target, int step) {
    for (int i = 0; i < N * IN; i++)
        x[i] = sinf((float)(i * 7 + step * 13) * 0.37f);
    for (int i = 0; i < N * OUT; i++)
        target[i] = cosf((float)(i * 5 + step * 11) * 0.53f);
}

static void host_step(const Compiled *c, ampc_session *s, const float *x,
                      const float *target) {
    float y[N * OUT], g[N * OUT];
    ampc_output out = ampc_out("y", y, sizeof y, AMPC_DTYPE_F32);
    ampc_input in[] = {ampc_in("x", x, N * IN * sizeof *x, AMPC_DTYPE_F32),
                       ampc_in("gradient:y", g, sizeof g, AMPC_DTYPE_F32)};
    if (c->api->outputs(s, in, 1, N, &out, 1))
        FAIL("outputs: %s", c->api->error(s));
    for (int i = 0; i < N * OUT; i++) g[i] = 2 * (y[i] - target[i]) / (N * OUT);
    if (c->api->vjp(s, in, 2)) FAIL("vjp: %s", c->api->error(s));
    if (c->api->update(s, NULL)) FAIL("update: %s", c->api->error(s));
}

static void compare(const Compiled *own, ampc_session *a, const Compiled *host,
                    ampc_session *b, double tolerance) {
    static const int count[] = {IN * 5, 5, 5, 5 * OUT, 5};
    for (int v = 0; v < 5; v++) {
        float want[IN * 5], got[IN * 5];
        size_t bytes = (size_t)count[v] * sizeof *want;
        read_var(own, a, variables[v], want, bytes, AMPC_DTYPE_F32);
        read_var(host, b, variables[v], got, bytes, AMPC_DTYPE_F32);
        for (int i = 0; i < count[v]; i++)
            CHECK_MSG(fabsf(got[i] - want[i]) <= tolerance,
                      "%s[%d]: %g, not %g", variables[v], i, got[i], want[i]);
    }
}

static void train_both(const char *options, double tolerance) {
    char all[300];
    snprintf(all, sizeof all, "--loss mse %s", options);
    Compiled own = compile_text(model, all);
    snprintf(all, sizeof all, "--loss host %s", options);
    Compiled host = compile_text(model, all);
    ampc_session *a = open_threads(&own, 1), *b = open_threads(&host, 1);
    for (int step = 0; step < STEPS; step++) {
        float x[N * IN], target[N * OUT];
        batch(x, target, step);
        ampc_input in[] = {
            ampc_in("x", x, sizeof x, AMPC_DTYPE_F32),
            ampc_in("target", target, sizeof target, AMPC_DTYPE_F32)};
        step_ok(&own, a, in, 2);
        host_step(&host, b, x, target);
    }
    compare(&own, a, &host, b, tolerance);
    own.api->close(a);
    host.api->close(b);
    compiled_close(&own);
    compiled_close(&host);
}

TEST_CASE(host_loss, trains_as_the_same_loss_inside_fp32) {
    train_both("--precision fp32 --optimizer sgd,lr=0.1 "
               "--target cpu:x86-64-v2",
               1e-6);
}

/* The module itself handles the scale that fp16 needs. */
TEST_CASE(host_loss, trains_as_the_same_loss_inside_fp16) {
    train_both("--precision fp16 --optimizer sgd,lr=0.1 --clip-norm 0.5 "
               "--target cpu:x86-64-v2",
               1e-3);
}

TEST_CASE(host_loss, only_where_it_was_asked_for) {
    Compiled c = compile_text(model, "--loss mse --target cpu:x86-64-v2");
    ampc_session *s = open_threads(&c, 1);
    float x[N * IN] = {0};
    ampc_input in = ampc_in("x", x, sizeof x, AMPC_DTYPE_F32);
    CHECK_EQ_INT(c.api->vjp(s, &in, 1), AMPC_ERR_UNSUPPORTED);
    CHECK_EQ_INT(c.api->outputs(s, &in, 1, N, NULL, 0), AMPC_ERR_UNSUPPORTED);
    c.api->close(s);
    compiled_close(&c);
}
