/* SPDX-License-Identifier: Apache-2.0 */
/* branches_test.c: a step on the CPU runs one of two expensive branches,
   forward and backward; losses and weights beside plain C. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/on_device.h"
#include "tests/tolerance.h"

enum { ROWS = 96, IN = 512, OUT = 384, STEPS = 4 };

static const char text[] =
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
    const Compiled *c = compile_on("cpu", text, "--precision fp32 --loss mse:y",
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
