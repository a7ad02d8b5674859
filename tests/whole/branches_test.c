/* SPDX-License-Identifier: Apache-2.0 */
/* branches_test.c: a step runs one of two expensive branches, forward and
   backward: losses and weights on the CPU beside plain C, and on the
   simulated GPU beside the CPU. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/on_device.h"
#include "tests/support/simulate.h"
#include "tests/tolerance.h"

enum { ROWS = 96, IN = 512, OUT = 384, STEPS = 4 };

static const char two[] =
    "graph forward(%x: f32[96,512]) {\n"
    "  param %a: f32[512,384] = normal(1, 0.04)\n"
    "  param %b: f32[512,384] = normal(2, 0.04)\n"
    "  %low = reduce_min %x {axes=[0,1], keepdims=0} : f32[]\n"
    "  %c = greater %low, 0 : bool[]\n"
    "  %not = not %c : bool[]\n"
    "  %ac = read_if %a, %c : f32[512,384]\n"
    "  %bc = read_if %b, %not : f32[512,384]\n"
    "  %p = matmul %x, %ac\n"
    "  %q = matmul %x, %bc\n"
    "  %y = where %c, %p, %q : f32[96,384]\n"
    "  return y=%y\n"
    "}\n";

/* Names of the products of the steps that ran. */
static void note(void *ctx, const char *program, const char *step,
                 uint64_t begin, uint64_t end) {
    bool *ran = ctx;
    (void)program, (void)begin, (void)end;
    ran[0] |= strcmp(step, "p") == 0;
    ran[1] |= strcmp(step, "q") == 0;
}

/* A step of gradient descent on the mean of (x w - t)^2; returns the loss. */
static double descend(const float *x, const float *t, double *w, double lr) {
    double *e = calloc(ROWS * OUT, sizeof *e), loss = 0;
    for (int r = 0; r < ROWS; r++)
        for (int k = 0; k < IN; k++)
            for (int j = 0; j < OUT; j++)
                e[r * OUT + j] += x[r * IN + k] * w[k * OUT + j];
    for (int i = 0; i < ROWS * OUT; i++) {
        e[i] -= t[i];
        loss += e[i] * e[i];
    }
    for (int r = 0; r < ROWS; r++)
        for (int k = 0; k < IN; k++)
            for (int j = 0; j < OUT; j++)
                w[k * OUT + j] -=
                    lr * 2 / (ROWS * OUT) * x[r * IN + k] * e[r * OUT + j];
    free(e);
    return loss / (ROWS * OUT);
}

static double *weights(const Compiled *c, ampc_session *s, const char *name) {
    static float w[IN * OUT];
    double *copy = calloc(IN * OUT, sizeof *copy);
    read_var(c, s, name, w, sizeof w, AMPC_DTYPE_F32);
    for (int i = 0; i < IN * OUT; i++) copy[i] = w[i];
    return copy;
}

static void expect_weights(const Compiled *c, ampc_session *s, const char *name,
                           const double *want) {
    double *got = weights(c, s, name), far = 0;
    for (int i = 0; i < IN * OUT; i++)
        if (fabs(got[i] - want[i]) > far) far = fabs(got[i] - want[i]);
    CHECK_MSG(far < 1e-5, "%s: %g", name, far);
    free(got);
}

TEST_CASE(branches, one_runs) {
    const double lr = 1;
    const Compiled *c = compile_on("cpu", two, "--precision fp32 --loss mse:y",
                                   "--optimizer sgd,lr=1");
    ampc_session *s = open_on(c, "cpu", 0);
    static float x[ROWS * IN], t[ROWS * OUT];
    double *w[] = {weights(c, s, "a"), weights(c, s, "b")};
    ampc_input in[] = {ampc_in("x", x, sizeof x, AMPC_DTYPE_F32),
                       ampc_in("target", t, sizeof t, AMPC_DTYPE_F32)};
    for (int step = 0; step < STEPS; step++) {
        bool ran[2] = {false, false};
        int taken = step % 2;
        ampc_metrics m = {.size = sizeof m};
        for (int i = 0; i < ROWS * IN; i++)
            x[i] = (float)((i * 37 + step * 11) % 101 + 1) / 101;
        for (int i = 0; i < ROWS * OUT; i++)
            t[i] = (float)((i * 53 + step) % 97) / 97;
        if (taken) x[5] = -1;
        c->api->profile(s, note, ran);
        REQUIRE(c->api->step(s, in, 2, &m) == AMPC_OK);
        CHECK_REL(m.loss, descend(x, t, w[taken], lr), TOL_LOSS);
        CHECK_MSG(ran[taken] && !ran[!taken], "step %d: %d %d", step, ran[0],
                  ran[1]);
        expect_weights(c, s, "a", w[0]);
        expect_weights(c, s, "b", w[1]);
    }
    free(w[0]);
    free(w[1]);
    c->api->close(s);
}

/* ---- on GPUs ------------------------------------------------------------- */

enum { LINES = 256, WIDE = 1024 };

/* Only the branch of %c has a product, and so barriers. */
static const char nested[] =
    "graph forward(%x: f32[256,1024]) {\n"
    "  param %a: f32[1024,64] = normal(1, 0.04)\n"
    "  param %s: f32[1024] = normal(2, 0.5)\n"
    "  %low = reduce_min %x {axes=[0,1], keepdims=0} : f32[]\n"
    "  %top = reduce_max %x {axes=[0,1], keepdims=0} : f32[]\n"
    "  %c = greater %low, 0 : bool[]\n"
    "  %not = not %c : bool[]\n"
    "  %d = greater %top, 2 : bool[]\n"
    "  %ac = read_if %a, %c : f32[1024,64]\n"
    "  %sc = read_if %s, %not : f32[1024]\n"
    "  %p1 = sin %x\n  %p2 = tanh %p1\n  %p3 = exp %p2\n"
    "  %p4 = matmul %p3, %ac\n"
    "  %p = reduce_mean %p4 {axes=[1], keepdims=0} : f32[256]\n"
    "  %q0 = mul %x, %sc\n"
    "  %q1 = sin %q0\n  %q2 = tanh %q1\n  %q3 = exp %q2\n"
    "  %r1 = sin %q3\n  %r2 = tanh %r1\n  %r3 = exp %r2\n"
    "  %i = where %d, %r3, %q3\n"
    "  %j = reduce_mean %i {axes=[1], keepdims=0} : f32[256]\n"
    "  %y = where %c, %p, %j : f32[256]\n"
    "  return y=%y\n"
    "}\n";

/* One turn of a loop, which %g2 may leave out, of one of two branches. */
static const char turns[] =
    "graph forward(%x: f32[256,1024]) {\n"
    "  param %a: f32[1024] = normal(1, 1)\n"
    "  param %b: f32[1024] = normal(2, 1)\n"
    "  %low = reduce_min %x {axes=[0,1], keepdims=0} : f32[]\n"
    "  %top = reduce_max %x {axes=[0,1], keepdims=0} : f32[]\n"
    "  %c = greater %low, 0 : bool[]\n"
    "  %g = greater %top, 2 : bool[]\n"
    "  %not = not %c : bool[]\n"
    "  %gc = and %g, %c : bool[]\n"
    "  %gn = and %g, %not : bool[]\n"
    "  %ac = read_if %a, %gc : f32[1024]\n"
    "  %bc = read_if %b, %gn : f32[1024]\n"
    "  %p0 = mul %x, %ac\n"
    "  %p1 = sin %p0\n  %p2 = tanh %p1\n  %p3 = exp %p2\n"
    "  %p4 = sin %p3\n  %p5 = tanh %p4\n  %p6 = exp %p5\n"
    "  %p7 = log %p6\n  %p8 = sin %p7\n"
    "  %q0 = mul %x, %bc\n"
    "  %q1 = sin %q0\n  %q2 = tanh %q1\n  %q3 = exp %q2\n"
    "  %q4 = sin %q3\n  %q5 = tanh %q4\n  %q6 = exp %q5\n"
    "  %q7 = log %q6\n  %q8 = cos %q7\n"
    "  %i = where %c, %p8, %q8\n"
    "  %h = where %g, %i, %x\n"
    "  %y = reduce_mean %h {axes=[1], keepdims=0} : f32[256]\n"
    "  return y=%y\n"
    "}\n";

/* The four values of two conditions, twice: eager, captured, replayed. */
static void like_the_cpu(const char *text, const char *const *names, int n,
                         bool products) {
    static float x[LINES * WIDE], t[LINES], w[2][WIDE * 64];
    const char *options = "--precision fp32 --loss mse:y";
    const char *rate = "--optimizer sgd,lr=0.1";
    const Compiled *on[] = {compile_on("cpu", text, options, rate),
                            compile_on("cuda", text, options, rate)};
    ampc_session *s[] = {open_on(on[0], "cpu", 0), open_on(on[1], "cuda", 0)};
    uint64_t barriers[2] = {0, 0};
    ampc_input in[] = {ampc_in("x", x, sizeof x, AMPC_DTYPE_F32),
                       ampc_in("target", t, sizeof t, AMPC_DTYPE_F32)};
    for (int step = 0; step < 8; step++) {
        double loss[2];
        SimStats before, after;
        for (int i = 0; i < LINES * WIDE; i++)
            x[i] = (float)((i * 37 + step * 11) % 101 + 1) / 101;
        for (int i = 0; i < LINES; i++) t[i] = (float)((i + step) % 97) / 97;
        if (step & 1) x[5] = -1;
        if (step & 2) x[6] = 3;
        sim()->stats(&before);
        for (int k = 0; k < 2; k++) loss[k] = step_ok(on[k], s[k], in, 2).loss;
        sim()->stats(&after);
        barriers[step & 1] += after.barriers - before.barriers;
        CHECK_REL(loss[1], loss[0], TOL_LOSS);
        for (int v = 0; v < n; v++) {
            double far = 0;
            size_t count =
                strcmp(names[v], "a") || !products ? WIDE : WIDE * 64;
            for (int k = 0; k < 2; k++)
                read_var(on[k], s[k], names[v], w[k], count * sizeof **w,
                         AMPC_DTYPE_F32);
            for (size_t i = 0; i < count; i++)
                far = fmax(far, fabs((double)w[0][i] - (double)w[1][i]));
            CHECK_MSG(far < 1e-5, "step %d, %s: %g", step, names[v], far);
        }
    }
    if (products)
        CHECK_MSG(barriers[0] > 2 * barriers[1],
                  "%llu barriers, %llu without "
                  "the product",
                  (unsigned long long)barriers[0],
                  (unsigned long long)barriers[1]);
    for (int k = 0; k < 2; k++) on[k]->api->close(s[k]);
    CHECK_STR(sim()->errors(), "");
}

TEST_CASE(branches, gpus_run_one_of_a_nest) {
    like_the_cpu(nested, (const char *const[]){"a", "s"}, 2, true);
}

TEST_CASE(branches, gpus_run_one_in_a_turn) {
    like_the_cpu(turns, (const char *const[]){"a", "b"}, 2, false);
}
