/* SPDX-License-Identifier: Apache-2.0 */
/* traps_test.c: models at which mixed precision often goes wrong, compiled
   in 16 bits, compared with double. Their numbers fit both 16-bit types in
   the places where a careful compiler stores them, so that only a careless
   one gives wrong results. tests/traps.txt lists all traps, and the tests of
   the others. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/compiled.h"

enum { MOST = 16384 };

typedef struct Trap {
    const char *name, *text; /* $T: the 16-bit type */
    int rows, in, out;       /* and numbers in a row of %x and of %y */
    float (*x)(int i);
    void (*oracle)(const float *x, double *y);
    double tolerance; /* relative to the largest result */
} Trap;

/* ---- masks and scores ---------------------------------------------------- */

enum { BATCH = 4, TOKENS = 5, WIDTH = 8 };

static float small_integer(int i) { return (float)(i * 7 % 5 - 2); }
static float large_integer(int i) { return 64 * small_integer(i); }

/* Softmax over keys of scores x x' times `by`, to which masks are added. */
static void attention(const float *x, int width, double by,
                      double (*mask)(int batch, int query, int key),
                      double *y) {
    for (int i = 0; i < BATCH * TOKENS; i++) {
        double z[TOKENS], most = -INFINITY, sum = 0;
        int b = i / TOKENS;
        for (int k = 0; k < TOKENS; k++) {
            const float *p = x + i * width, *q = x + (b * TOKENS + k) * width;
            z[k] = 0;
            for (int j = 0; j < width; j++) z[k] += (double)p[j] * (double)q[j];
            z[k] = z[k] * by + (mask ? mask(b, i % TOKENS, k) : 0);
            most = fmax(most, z[k]);
        }
        for (int k = 0; k < TOKENS; k++) sum += exp(z[k] - most);
        for (int k = 0; k < TOKENS; k++)
            y[i * TOKENS + k] = exp(z[k] - most) / sum;
    }
}

#define SCORES(inputs)                                                         \
    "graph forward(%x: f32[4,5,8]) {\n" inputs                                 \
    "  %s = matmul %x, %x {trans_b=1} : f32[4,5,5]\n"
#define PROBABILITIES "  %y = softmax %z {axis=2}\n  return y=%y\n}\n"

static double padding(int batch, int query, int key) {
    (void)query;
    return key > batch ? -1e9 : 0;
}

static void padded(const float *x, double *y) {
    attention(x, WIDTH, 1, padding, y);
}

static double twice(int batch, int query, int key) {
    (void)batch;
    return (key > query ? -65504 : 0) + (key == 1 || query == 0 ? -65504 : 0);
}

static void masked_twice(const float *x, double *y) {
    attention(x, WIDTH, 1, twice, y);
}

static void scaled_afterwards(const float *x, double *y) {
    attention(x, 64, 1.0 / 4096, NULL, y);
}

/* ---- sums and norms ------------------------------------------------------ */

static float one(int i) { return i >= 0 ? 1 : 0; }
static float thousand(int i) { return i >= 0 ? 1000 : 0; }

static void counted(const float *x, double *y) {
    (void)x;
    for (int i = 0; i < 4; i++) y[i] = 4096;
}

static void averaged(const float *x, double *y) {
    (void)x;
    for (int i = 0; i < 4; i++) y[i] = 1000;
}

/* ---- constants ----------------------------------------------------------- */

static void unchanged(const float *x, double *y) {
    for (int i = 0; i < 64; i++) y[i] = (double)x[i];
}

/* 0.999 ^ 16 x, and the effect of 1e-7 beside 0 */
static void decayed(const float *x, double *y) {
    for (int i = 0; i < 64; i++)
        y[i] = (double)x[i] * pow(0.9990000128746033, 8);
}

static void beside_zero(const float *x, double *y) {
    for (int i = 0; i < 64; i++)
        y[i] = 1 / sqrt((double)x[i] * (double)x[i] + 1e-8);
}

static float zero_or_tiny(int i) { return i % 2 ? 0 : 0x1p-14f; }

/* ---- powers and logarithms ----------------------------------------------- */

static float beyond_squares(int i) { return (float)(256 + 8 * (i % 32)); }

/* x / sqrt(mean(x^2)) */
static void root_mean_square(const float *x, double *y) {
    for (int r = 0; r < 4; r++) {
        double sum = 0;
        for (int j = 0; j < 16; j++)
            sum += (double)x[r * 16 + j] * (double)x[r * 16 + j];
        for (int j = 0; j < 16; j++)
            y[r * 16 + j] = (double)x[r * 16 + j] / sqrt(sum / 16);
    }
}

static float sure(int i) { return (float)(i % 2 ? 12 : -12); }

/* log(1 - sigmoid(x)) */
static void log_of_the_other(const float *x, double *y) {
    for (int i = 0; i < 64; i++) y[i] = -log1p(exp((double)x[i]));
}

static const Trap traps[] = {
    {"a_mask_made_by_a_product",
     SCORES("  frozen %m: f32[4,1,5] = [1,0,0,0,0, 1,1,0,0,0, 1,1,1,0,0, "
            "1,1,1,1,0]\n") "  %n = sub 1, %m : f32[4,1,5]\n  %f = mul %n, "
                            "-1e9 : f32[4,1,5]\n"
                            "  %z = add %s, %f : f32[4,5,5]\n" PROBABILITIES,
     BATCH, TOKENS *WIDTH, TOKENS *TOKENS, small_integer, padded, 1e-5},
    {"two_masks_on_one_row",
     SCORES("  const %later: f32[5,5] = [0,-65504,-65504,-65504,-65504, "
            "0,0,-65504,-65504,-65504, 0,0,0,-65504,-65504, 0,0,0,0,-65504, "
            "0,0,0,0,0]\n"
            "  const %other: f32[5,5] = [-65504,-65504,-65504,-65504,-65504, "
            "0,-65504,0,0,0, 0,-65504,0,0,0, 0,-65504,0,0,0, "
            "0,-65504,0,0,0]\n") "  %a = add %s, %later : f32[4,5,5]\n  %z = "
                                 "add %a, %other : "
                                 "f32[4,5,5]\n" PROBABILITIES,
     BATCH, TOKENS *WIDTH, TOKENS *TOKENS, small_integer, masked_twice, 1e-5},
    {"scores_are_scaled_behind_the_product",
     "graph forward(%x: f32[4,5,64]) {\n"
     "  %s = matmul %x, %x {trans_b=1} : f32[4,5,5]\n"
     "  %z = mul %s, 0.000244140625 : f32[4,5,5]\n" PROBABILITIES,
     BATCH, TOKENS * 64, TOKENS *TOKENS, large_integer, scaled_afterwards,
     1e-5},
    {"a_sum_counts_beyond_2048",
     "graph forward(%x: f32[4,4096]) {\n  %h = cast %x {user=1} : "
     "$T[4,4096]\n"
     "  %z = reduce_sum %h {axes=[1]} : $T[4,1]\n"
     "  %y = cast %z {user=1} : f32[4,1]\n  return y=%y\n}\n",
     4, 4096, 1, one, counted, 0},
    {"a_mean_is_no_sum_that_overflows",
     "graph forward(%x: f32[4,4096]) {\n  %h = cast %x {user=1} : "
     "$T[4,4096]\n"
     "  %z = reduce_mean %h {axes=[1]} : $T[4,1]\n"
     "  %y = cast %z {user=1} : f32[4,1]\n  return y=%y\n}\n",
     4, 4096, 1, thousand, averaged, 0},
    {"a_bound_beyond_the_range_is_none",
     "graph forward(%x: f32[8,8]) {\n  %h = cast %x {user=1} : $T[8,8]\n"
     "  %a = clip %h {min=-1e9, max=1e9} : $T[8,8]\n"
     "  %b = min %a, 1e5 : $T[8,8]\n  %z = max %b, -1e5 : $T[8,8]\n"
     "  %y = cast %z {user=1} : f32[8,8]\n"
     "  return y=%y\n}\n",
     8, 8, 8, large_integer, unchanged, 0},
    {"a_factor_near_1_is_not_1",
     "graph forward(%x: f32[8,8]) {\n  param %w: f32[8,8] = "
     "[1,0,0,0,0,0,0,0, "
     "0,1,0,0,0,0,0,0, 0,0,1,0,0,0,0,0, 0,0,0,1,0,0,0,0, 0,0,0,0,1,0,0,0, "
     "0,0,0,0,0,1,0,0, 0,0,0,0,0,0,1,0, 0,0,0,0,0,0,0,1]\n"
     "  %a = matmul %x, %w : f32[8,8]\n  %b = mul %a, 0.999 : f32[8,8]\n"
     "  %c = mul %b, 0.999 : f32[8,8]\n  %d = mul %c, 0.999 : f32[8,8]\n"
     "  %e = mul %d, 0.999 : f32[8,8]\n  %f = mul %e, 0.999 : f32[8,8]\n"
     "  %g = mul %f, 0.999 : f32[8,8]\n  %h = mul %g, 0.999 : f32[8,8]\n"
     "  %y = mul %h, 0.999 : f32[8,8]\n  return y=%y\n}\n",
     8, 8, 8, small_integer, decayed, 1e-6},
    {"an_epsilon_is_not_0",
     "graph forward(%x: f32[8,8]) {\n  %h = cast %x {user=1} : $T[8,8]\n"
     "  %q = mul %h, %h : f32[8,8]\n  %e = add %q, 1e-8 : f32[8,8]\n"
     "  %y = rsqrt %e : f32[8,8]\n  return y=%y\n}\n",
     8, 8, 8, zero_or_tiny, beside_zero, 1e-6},
    {"squares_leave_the_range_of_fp16",
     "graph forward(%x: f32[4,16]) {\n  %h = cast %x {user=1} : $T[4,16]\n"
     "  %q = mul %h, %h : f32[4,16]\n"
     "  %m = reduce_mean %q {axes=[1]} : f32[4,1]\n  %r = rsqrt %m : "
     "f32[4,1]\n"
     "  %y = mul %h, %r : f32[4,16]\n  return y=%y\n}\n",
     4, 16, 16, beyond_squares, root_mean_square, 1e-6},
    {"a_sure_sigmoid_has_a_logarithm",
     "graph forward(%x: f32[8,8]) {\n  %s = sigmoid %x : f32[8,8]\n"
     "  %n = sub 1, %s : f32[8,8]\n  %y = log %n : f32[8,8]\n"
     "  return y=%y\n}\n",
     8, 8, 8, sure, log_of_the_other, 2e-3},
};

static void run_in(const Trap *t, const char *precision, const char *type) {
    static float x[MOST], got[MOST];
    static double want[MOST];
    char text[4000], options[100];
    int nx = t->rows * t->in, ny = t->rows * t->out;
    double most = 0;
    REQUIRE(nx <= MOST && ny <= MOST);
    for (int i = 0; i < nx; i++) x[i] = t->x(i);
    t->oracle(x, want);
    for (int i = 0; i < ny; i++) most = fmax(most, fabs(want[i]));
    text_in_dtype(text, sizeof text, t->text, type);
    snprintf(options, sizeof options,
             "--loss none --precision %s --target cpu:x86-64-v2", precision);
    Compiled c = compile_text(text, options);
    ampc_session *s = open_threads(&c, 1);
    ampc_input in = ampc_in("x", x, (size_t)nx * sizeof *x, AMPC_DTYPE_F32);
    ampc_output out =
        ampc_out("y", got, (size_t)ny * sizeof *got, AMPC_DTYPE_F32);
    if (c.api->predict(s, &in, 1, (size_t)t->rows, &out, 1))
        FAIL("%s", c.api->error(s));
    for (int i = 0; i < ny; i++)
        if (!CHECK_MSG(fabs((double)got[i] - want[i]) <= t->tolerance * most,
                       "%s, %d: %g, not %g", precision, i, (double)got[i],
                       want[i]))
            break;
    c.api->close(s);
    compiled_close(&c);
}

static void run(void *arg) {
    run_in(arg, "bf16", "bf16");
    run_in(arg, "fp16", "f16");
}

static void add_cases(void) {
    for (size_t i = 0; i < sizeof traps / sizeof *traps; i++)
        harness_register("traps", traps[i].name, run, (void *)&traps[i]);
}
TEST_REGISTRAR(add_cases);

/* ---- gradients and state ------------------------------------------------- */

enum { ROWS = 256, COLUMNS = 4 };

/* The gradient of a weight is 256 times 300, more than fp16's largest
   number; a second micro-batch adds 64, less than half a unit in bf16's last
   place. */
TEST_CASE(traps, gradients_of_weights_are_summed_in_f32) {
    static const char *const precisions[] = {"bf16", "fp16"};
    for (int p = 0; p < 2; p++) {
        float x[ROWS * COLUMNS], got[COLUMNS];
        char options[160];
        snprintf(options, sizeof options,
                 "--precision %s --loss-scale none --accumulate 2 --target "
                 "cpu:x86-64-v2",
                 precisions[p]);
        Compiled c = compile_text(
            "graph forward(%x: f32[256,4]) {\n  param %w: f32[4,1] = 0\n"
            "  %y = matmul %x, %w : f32[256,1]\n"
            "  %l = reduce_sum %y {axes=[0,1], keepdims=0} : f32[]\n"
            "  return %l\n}\n",
            options);
        ampc_session *s = open_threads(&c, 1);
        for (int half = 0; half < 2; half++) {
            for (int i = 0; i < ROWS * COLUMNS; i++) x[i] = half ? 0.25f : 300;
            ampc_input in = ampc_in("x", x, sizeof x, AMPC_DTYPE_F32);
            if (c.api->micro_step(s, &in, 1, NULL)) FAIL("%s", c.api->error(s));
            read_var(&c, s, "ampc.grad/w", got, sizeof got, AMPC_DTYPE_F32);
            for (int i = 0; i < COLUMNS; i++)
                CHECK_MSG(got[i] == (half ? 76864.f : 76800.f), "%s: %g",
                          precisions[p], (double)got[i]);
        }
        c.api->close(s);
        compiled_close(&c);
    }
}

/* A bf16 parameter of 1 does not change when less than 1/512 is subtracted.
 */
TEST_CASE(traps, updates_too_small_for_16_bits_add_up) {
    enum { UPDATES = 64 };
    const float x[4] = {1, 1, 1, 1};
    float w[1];
    Compiled c = compile_text(
        "graph forward(%x: f32[4,1]) {\n  param %w: f32[1,1] = 1\n"
        "  %y = matmul %x, %w : f32[4,1]\n"
        "  %l = reduce_mean %y {axes=[0,1], keepdims=0} : f32[]\n"
        "  return %l\n}\n",
        "--precision bf16 --optimizer sgd,lr=0.0009765625 --target "
        "cpu:x86-64-v2");
    ampc_session *s = open_threads(&c, 1);
    ampc_input in = ampc_in("x", x, sizeof x, AMPC_DTYPE_F32);
    for (int i = 0; i < UPDATES; i++) step_ok(&c, s, &in, 1);
    read_var(&c, s, "w", w, sizeof w, AMPC_DTYPE_F32);
    CHECK_MSG(w[0] == 1 - UPDATES / 1024.f, "%g", (double)w[0]);
    CHECK_NEAR((double)step_ok(&c, s, &in, 1).loss, (double)w[0], 1e-7);
    c.api->close(s);
    compiled_close(&c);
}

/* The mean square of 29999 and 30001 minus the square of their mean is 0 or
   64 in f32; after a norm the mean square is 1. */
TEST_CASE(traps, variances_do_not_cancel) {
    static const char *const precisions[] = {"bf16", "fp16"};
    for (int p = 0; p < 2; p++) {
        float x[64 * 8];
        char options[100];
        snprintf(options, sizeof options,
                 "--precision %s --target cpu:x86-64-v2", precisions[p]);
        Compiled c = compile_text(
            "graph forward(%x: f32[64,8]) {\n"
            "  param %s: f32[8] = 1, %b: f32[8] = 0\n"
            "  buffer %m: f32[8] = 0, %v: f32[8] = 1\n"
            "  %y, %bm, %bv = batch_norm %x, %s, %b, %m, %v {epsilon=1e-05, "
            "training=1}\n"
            "  %q = mul %y, %y\n"
            "  %l = reduce_mean %q {axes=[0,1], keepdims=0} : f32[]\n"
            "  return %l\n}\n",
            options);
        ampc_session *s = open_threads(&c, 1);
        for (int i = 0; i < 64 * 8; i++)
            x[i] = i / 8 * 5 % 8 < 4 ? 30001 : 29999;
        ampc_input in = ampc_in("x", x, sizeof x, AMPC_DTYPE_F32);
        double loss = (double)step_ok(&c, s, &in, 1).loss;
        CHECK_MSG(fabs(loss - 1) < 1e-4, "%s: %g", precisions[p], loss);
        c.api->close(s);
        compiled_close(&c);
    }
}

/* A skipped step does not change running statistics, whatever type they are
   declared with. */
static void skipped_step_leaves(const char *kind) {
    float x[64 * 8], before[8], after[8];
    char text[700];
    snprintf(text, sizeof text,
             "graph forward(%%x: f32[64,8]) {\n"
             "  param %%s: f32[8] = 1, %%b: f32[8] = 0\n"
             "  %s %%m: f32[8] = 0, %%v: f32[8] = 1\n"
             "  %%y, %%bm, %%bv = batch_norm %%x, %%s, %%b, %%m, %%v "
             "{epsilon=1e-05, training=1}\n"
             "  %%q = mul %%y, %%y\n"
             "  %%l = reduce_mean %%q {axes=[0,1], keepdims=0} : f32[]\n"
             "  %%m1 = mul %%m, 0.9\n  %%bm1 = mul %%bm, 0.1\n"
             "  %%mn = add %%m1, %%bm1\n"
             "  write %%m = %%mn\n  return %%l\n}\n",
             kind);
    Compiled c = compile_text(text, "--precision fp16 --target cpu:x86-64-v2");
    ampc_session *s = open_threads(&c, 1);
    ampc_input in = ampc_in("x", x, sizeof x, AMPC_DTYPE_F32);
    for (int i = 0; i < 64 * 8; i++) x[i] = (float)(i % 7);
    step_ok(&c, s, &in, 1);
    read_var(&c, s, "m", before, sizeof before, AMPC_DTYPE_F32);
    CHECK(before[0] > 0.1f && before[0] < 0.5f);
    x[5] = INFINITY;
    ampc_metrics m = {.size = sizeof m};
    c.api->step(s, &in, 1, &m);
    CHECK_EQ_INT(m.applied, false);
    read_var(&c, s, "m", after, sizeof after, AMPC_DTYPE_F32);
    CHECK(!memcmp(before, after, sizeof before));
    c.api->close(s);
    compiled_close(&c);
}

TEST_CASE(traps, a_skipped_step_leaves_running_statistics) {
    skipped_step_leaves("buffer");
    skipped_step_leaves("frozen");
}
