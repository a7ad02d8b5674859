/* SPDX-License-Identifier: Apache-2.0 */
/* functions_test.c: advantages of an op as one function: its arithmetic is
   fp32 in 16-bit modules; and functions that a model's file defines. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "tests/support/compiled.h"
#include "tests/tolerance.h"

enum { ROWS = 4, CHANNELS = 8, PIXELS = 64, N = ROWS * CHANNELS * PIXELS };

/* Predictions of one input x of N elements. */
static void predict(const char *text, const char *options, float *x, float *y) {
    Compiled c = compile_text(text, options);
    ampc_session *s = open_threads(&c, 2);
    ampc_input in = ampc_in("x", x, N * sizeof *x, AMPC_DTYPE_F32);
    ampc_output out = ampc_out("y", y, N * sizeof *y, AMPC_DTYPE_F32);
    REQUIRE(!c.api->predict(s, &in, 1, ROWS, &out, 1));
    c.api->close(s);
    compiled_close(&c);
}

/* Largest error in fp16 of a norm of h = x w, |h| about 300, compared with
   fp32, relative to the largest result. */
static double error_of(const char *norm) {
    static float x[N], y[2][N];
    char text[1000];
    double worst = 0, most = 0;
    snprintf(text, sizeof text,
             "graph forward(%%x: f32[4,8,64]) {\n"
             "  param %%w: f32[64,64] = normal(3, 1)\n"
             "  param %%s: f32[64] = 1, %%c: f32[8] = 1, %%b: f32[8] = 0\n"
             "  param %%d: f32[64] = 0\n"
             "  %%h = matmul %%x, %%w : f32[4,8,64]\n"
             "  %%i = reshape %%h {shape=[4,8,8,8]}\n"
             "  %s\n"
             "  %%r = reshape %%n {shape=[4,8,64]}\n"
             "  return y=%%r\n}\n",
             norm);
    for (int i = 0; i < N; i++) x[i] = 40 * sinf((float)i * 1.7f);
    predict(text, "--loss none --precision fp32", x, y[0]);
    predict(text, "--loss none --precision fp16", x, y[1]);
    for (int i = 0; i < N; i++) {
        worst = fmax(worst, fabs((double)y[0][i] - (double)y[1][i]));
        most = fmax(most, fabs((double)y[0][i]));
    }
    return worst / most;
}

TEST_CASE(functions, norms_of_large_values_in_fp16) {
    double layer = error_of("%n, %m, %v = layer_norm %h, %s, %d");
    CHECK_MSG(layer > 0 && layer < 2e-3, "%g", layer);
    static const char *const norms[] = {
        "%n = rms_norm %h, %s", "%n = group_norm %i, %c, %b {groups=2}",
        "%n = instance_norm %i, %c, %b", "%n = mean_variance_norm %i"};
    for (int i = 0; i < 4; i++) {
        double e = error_of(norms[i]);
        CHECK_MSG(e <= 2 * layer, "%s: %g, layer_norm: %g", norms[i], e, layer);
    }
}

static const char own[] = "def halved(x; by = 2.0) -> y class follow {\n"
                          "  y = x / by\n}\n"
                          "def bent(x) -> y class follow {\n"
                          "  y = halved(elu(x), by=4)\n}\n"
                          "graph forward(%x: f32[4,8,64]) {\n"
                          "  %n = bent %x\n  return y=%n\n}\n";

TEST_CASE(functions, a_model_defines_its_own) {
    static float x[N], y[N];
    for (int i = 0; i < N; i++) x[i] = (float)(i % 9) - 4;
    predict(own, "--loss none --precision fp32", x, y);
    for (int i = 0; i < N; i++) {
        double v = (double)x[i], want = (v > 0 ? v : exp(v) - 1) / 4;
        CHECK_MSG(fabs((double)y[i] - want) < 1e-6, "%g: %g", v, (double)y[i]);
    }
}

/* A matrix product rounds its operands; operands that may have any dtype are
   unchanged: 1 + 2^-12 has more digits than bf16. */
TEST_CASE(functions, operands_of_any_dtype_are_not_narrowed) {
    static const char text[] = "def scaled(x, w, by: any) -> y class low {\n"
                               "  y = matmul(x, w) * by\n}\n"
                               "graph forward(%x: f32[4,8,64]) {\n"
                               "  param %w: f32[64,64] = 1\n"
                               "  param %by: f32[64] = 1.000244140625\n"
                               "  %y = scaled %x, %w, %by\n"
                               "  return y=%y\n}\n";
    static float x[N], y[N];
    for (int i = 0; i < N; i++) x[i] = (float)(i % 9) - 4;
    predict(text, "--loss none --precision bf16", x, y);
    for (int i = 0; i < N; i++) {
        float sum = 0;
        for (int k = 0; k < 64; k++) sum += x[i / 64 * 64 + k];
        CHECK_MSG(y[i] == sum * 1.000244140625f, "%.9g of %g", (double)y[i],
                  (double)sum);
    }
}

/* True if x[a] is sorted before x[b]: NaN is the greatest; among equal ones the
   first comes first.
 */
static bool comes_before(const float *x, int a, int b, bool largest) {
    if (isnan(x[a]) != isnan(x[b])) return isnan(x[a]) == largest;
    if (isnan(x[a]) || x[a] == x[b]) return a < b;
    return largest ? x[a] > x[b] : x[a] < x[b];
}

/* Values, then positions, twice. */
static void check_topk(bool largest) {
    enum { K = PIXELS / 4 };
    static float x[N], y[N];
    char text[500];
    snprintf(text, sizeof text,
             "graph forward(%%x: f32[4,8,64]) {\n"
             "  %%v, %%i = topk %%x {k=%d, largest=%d}\n"
             "  %%p = cast %%i : f32[4,8,%d]\n"
             "  %%c = concat %%v, %%p, %%v, %%p {axis=2}\n"
             "  return y=%%c\n}\n",
             K, largest, K);
    for (int i = 0; i < N; i++) {
        int row = i / PIXELS, special = i * 31 % 64;
        x[i] = (float)(i * 7919 % 23) - 11;
        if (special < row * 2) x[i] = special % 3 ? INFINITY : NAN;
        if (special > 64 - row) x[i] = -INFINITY;
    }
    predict(text, "--loss none --precision fp32", x, y);
    for (int r = 0; r < N / PIXELS; r++) {
        const float *row = x + r * PIXELS, *got = y + r * PIXELS;
        for (int j = 0; j < PIXELS; j++) {
            int place = 0;
            for (int i = 0; i < PIXELS; i++)
                place += i != j && comes_before(row, i, j, largest);
            if (place >= K) continue;
            CHECK_MSG((int)got[K + place] == j, "row %d: number %d is %g", r,
                      place, (double)got[K + place]);
            CHECK(isnan(row[j]) ? isnan(got[place]) : got[place] == row[j]);
        }
    }
}

TEST_CASE(functions, few_of_many_are_the_first_in_order) {
    check_topk(true);
    check_topk(false);
}

/* The first numbers of each sample's spectrum, compared with sums in double:
   `read` of its numbers, `parts` each, as a signal of length n. */
static void check_dft(int parts, int n, bool inverse, bool one_sided) {
    enum { HAS = N / ROWS };
    static float x[N], y[N];
    int bins = one_sided ? n / 2 + 1 : n, made = 2 * bins;
    int shown = made < HAS ? made : HAS, read = HAS / parts;
    char text[700];
    snprintf(text, sizeof text,
             "graph forward(%%x: f32[4,8,64]) {\n"
             "  %%s = reshape %%x {shape=[4,%d,%d]}\n"
             "  %%d = dft %%s {axis=1, size=%d, inverse=%d, one_sided=%d}\n"
             "  %%r = reshape %%d {shape=[4,%d]}\n"
             "  %%c = slice %%r {starts=[0,0], sizes=[4,%d], steps=[1,1]}\n"
             "  %%y = pad %%c {pads=[0,0,0,%d], mode=\"constant\", value=7}\n"
             "  return y=%%y\n}\n",
             read, parts, n, inverse, one_sided, made, shown, HAS - shown);
    for (int i = 0; i < N; i++) x[i] = (float)(i * 7919 % 101) / 50 - 1;
    predict(text, "--loss none --precision fp32", x, y);
    for (int r = 0; r < ROWS; r++)
        for (int i = 0; i < shown; i++) {
            const float *row = x + r * HAS;
            double want = 0;
            for (int e = 0; e < read && e < n; e++) {
                double angle = 2 * acos(-1) * ((int64_t)e * (i / 2) % n) / n;
                double re = cos(angle), im = inverse ? sin(angle) : -sin(angle);
                double a = (double)row[e * parts];
                double b = parts == 2 ? (double)row[e * parts + 1] : 0;
                want += i % 2 ? a * im + b * re : a * re - b * im;
            }
            want /= inverse ? n : 1;
            if (!CHECK_MSG(fabs((double)y[r * HAS + i] - want) < TOL_DFT,
                           "%d of %d, number %d: %g, wants %g", r, n, i,
                           (double)y[r * HAS + i], want))
                return;
        }
}

/* Lengths: primes, products of two primes, and shorter ones; truncated and
   padded. */
TEST_CASE(functions, spectra_are_sums) {
    check_dft(1, 512, false, true);
    check_dft(1, 600, false, true);
    check_dft(1, 300, false, false);
    check_dft(1, 127, false, true);
    check_dft(2, 256, false, false);
    check_dft(2, 250, true, false);
    check_dft(2, 264, true, false);
    check_dft(2, 131, true, false);
}
