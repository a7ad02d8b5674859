/* SPDX-License-Identifier: Apache-2.0 */
/* gradient_dtype.c: gradients that are bf16 between backward and update. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "runtime/program/half.h"
#include "tests/support/compiled.h"

enum { ROWS = 8, IN = 64, OUT = 128, SMALL = 16 };

/* The parameters begin as 0, so that a step at rate 1 leaves their negative
   gradients. Two products add up the gradient of %tied; %few is small. */
static const char layers[] =
    "graph forward(%x: f32[8,64]) {\n"
    "  param %w: f32[64,128] = 0, %tied: f32[64,128] = 0\n"
    "  param %few: f32[64,16] = 0, %b: f32[128] = 0\n"
    "  %xw = matmul %x, %w\n  %xt = matmul %x, %tied\n"
    "  %z = tanh %x\n  %zt = matmul %z, %tied\n  %xf = matmul %x, %few\n"
    "  %f = reduce_sum %xf {axes=[1], keepdims=1}\n"
    "  %s = add %xw, %xt\n  %t = add %s, %zt\n  %u = add %t, %b\n"
    "  %y = add %u, %f\n  return %y\n}\n";

typedef struct After {
    float w[IN * OUT], tied[IN * OUT], few[IN * SMALL], b[OUT];
} After;

static void train(const char *options, int steps, After *to) {
    static float x[ROWS * IN], t[ROWS * OUT];
    char all[300];
    for (int i = 0; i < ROWS * IN; i++) x[i] = sinf((float)i);
    for (int i = 0; i < ROWS * OUT; i++) t[i] = cosf((float)(3 * i));
    ampc_input in[] = {ampc_in("x", x, sizeof x, AMPC_DTYPE_F32),
                       ampc_in("target", t, sizeof t, AMPC_DTYPE_F32)};
    snprintf(all, sizeof all,
             "--precision bf16 --loss mse --optimizer sgd,lr=1 %s", options);
    Compiled c = compile_text(layers, all);
    ampc_session *s = open_threads(&c, 2);
    for (int i = 0; i < steps; i++) step_ok(&c, s, in, 2);
    read_var(&c, s, "w", to->w, sizeof to->w, AMPC_DTYPE_F32);
    read_var(&c, s, "tied", to->tied, sizeof to->tied, AMPC_DTYPE_F32);
    read_var(&c, s, "few", to->few, sizeof to->few, AMPC_DTYPE_F32);
    read_var(&c, s, "b", to->b, sizeof to->b, AMPC_DTYPE_F32);
    c.api->close(s);
    compiled_close(&c);
}

/* Only what one product computes is rounded, to the nearest number. */
static void check_rounded(const char *options) {
    static After full, narrow;
    char all[200];
    int differ = 0;
    snprintf(all, sizeof all, "%s --gradient-dtype bf16", options);
    train(options, 1, &full);
    train(all, 1, &narrow);
    for (int i = 0; i < IN * OUT; i++) {
        float want = bf16_to_f32(f32_to_bf16(full.w[i]));
        if (!CHECK_NEAR(narrow.w[i], want, 0)) return;
        differ += want != full.w[i];
    }
    CHECK(differ > IN * OUT / 2);
    CHECK_EQ_INT(memcmp(full.tied, narrow.tied, sizeof full.tied), 0);
    CHECK_EQ_INT(memcmp(full.few, narrow.few, sizeof full.few), 0);
    CHECK_EQ_INT(memcmp(full.b, narrow.b, sizeof full.b), 0);
}

TEST_CASE(optimizer, gradients_of_one_product_are_rounded_once) {
    check_rounded("");
    check_rounded("--optimizer-in-backward");
    check_rounded(ALL_LEVELS);
}

/* Sums over micro-batches are fp32. */
TEST_CASE(optimizer, sums_of_gradients_are_not_rounded) {
    static After full, narrow;
    train("--accumulate 2", 2, &full);
    train("--accumulate 2 --gradient-dtype bf16", 2, &narrow);
    CHECK_EQ_INT(memcmp(&full, &narrow, sizeof full), 0);
}
