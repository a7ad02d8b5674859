/* SPDX-License-Identifier: Apache-2.0 */
/* residual.c: streams, norms and the last product that the options keep in fp32
 * or 16 bits. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "tests/support/compiled.h"
#include "tests/tolerance.h"
#include "tests/whole/rounding/rounding.h"

/* ... and besides that product the same value as it is stored; a third
   product reads both */
static void stream_kept(const Rounder *r, double *y) {
    double x[M * N], copy[M * N], t[M * P], v[N * P], vt[P * N];
    x_times(r, rounding_data.w, 'w', M, x);
    for (int i = 0; i < M * N; i++) {
        double two = rounding_at(r, 'p', x[i]) +
                     rounding_at(r, 'z', (double)rounding_data.z[i]);
        copy[i] = rounding_at(r, 'm', x[i] = rounding_at(r, 'r', two));
    }
    times_v(r, copy, t);
    for (int i = 0; i < M * P; i++)
        t[i] = rounding_at(r, 'k', t[i] + x[i / P * N + i % P]);
    rounding_widen(r, 'v', rounding_data.v, N * P, v);
    rounding_transpose(v, N, P, vt);
    rounding_product(r, t, vt, M, P, N, y);
}

static double eps; /* of normed_columns */

/* x w, possibly plus b, with each column's mean subtracted, divided by the
   root of its mean square; and another product of the result */
static void normed_columns(const Rounder *r, bool bias, double *y) {
    double p[M * N];
    x_times(r, rounding_data.w, 'w', M, p);
    for (int i = 0; i < M * N; i++)
        p[i] = rounding_at(r, 'r',
                           p[i] + (bias ? (double)rounding_data.b[i % N] : 0));
    for (int j = 0; j < N; j++) {
        double mean = 0, var = 0;
        for (int i = j; i < M * N; i += N) mean += p[i] / M;
        for (int i = j; i < M * N; i += N) {
            p[i] = rounding_at(r, 'd', p[i] - mean);
            var += p[i] * p[i] / M;
        }
        for (int i = j; i < M * N; i += N)
            p[i] = rounding_at(r, 'n', p[i] / sqrt(var + eps));
    }
    times_v(r, p, y);
}

static void conv_normed(const Rounder *r, double *y) {
    normed_columns(r, false, y);
}

static void biased_conv_normed(const Rounder *r, double *y) {
    normed_columns(r, true, y);
}

#define STREAM(times, part)                                                    \
    "graph forward(%x: f32[11,6], %z: f32[11,12]) {\n"                         \
    "  param %w: f32[6,12] = 0, %v: f32[12,7] = 0\n"                           \
    "  %a = mul %x, " times " : f32[11,6]\n"                                   \
    "  %b = mul %z, " times " : f32[11,12]\n"                                  \
    "  %y = matmul %a, %w : f32[11,12]\n"                                      \
    "  %r = add %y, %b : f32[11,12]\n  %q = matmul %r, %v : f32[11,7]\n"       \
    "  %s = slice %r {starts=[0,0], sizes=[11,7], steps=[1,1]} : f32[11,7]\n"  \
    "  %t = add %q, %s : f32[11,7]\n"                                          \
    "  %k = matmul %t, %v {trans_b=1} : f32[11,12]\n"                          \
    "  %o = mul %k, " part " : f32[11,12]\n  return %o\n}\n"

/* x w as a convolution of %i with %k, and a norm of %r */
#define CONVOLVED(i, k, r, eps)                                                \
    "graph forward(%x: f32[11,6]) {\n"                                         \
    "  param %w: f32[6,12] = 0, %v: f32[12,7] = 0, %b: f32[12] = 0\n"          \
    "  %t = transpose %w {perm=[1,0]} : f32[12,6]\n"                           \
    "  %i = reshape %x {shape=" i "} : f32" i "\n"                             \
    "  %k = reshape %t {shape=" k "} : f32" k "\n"                             \
    "  %p = conv %i, %k {strides=[1], pads=[0,0], dilations=[1], group=1} : "  \
    "f32[11,12,1]\n" r                                                         \
    "  %m = reduce_mean %r {axes=[0,2], keepdims=1} : f32[1,12,1]\n"           \
    "  %d = sub %r, %m : f32[11,12,1]\n"                                       \
    "  %s = mul %d, %d : f32[11,12,1]\n"                                       \
    "  %a = reduce_mean %s {axes=[0,2], keepdims=1} : f32[1,12,1]\n"           \
    "  %e = add %a, " eps " : f32[1,12,1]\n"                                   \
    "  %o = rsqrt %e : f32[1,12,1]\n  %n = mul %d, %o : f32[11,12,1]\n"        \
    "  %z = reshape %n {shape=[11,12]} : f32[11,12]\n"                         \
    "  %q = matmul %z, %v : f32[11,7]\n  return %q\n}\n"
/* x w as a convolution with windows of one element over planes of eight equal
   ones, which a library may compute. */
#define LIBRARY                                                                \
    "graph forward(%x: f32[11,6]) {\n"                                         \
    "  param %w: f32[6,12] = 0, %v: f32[12,7] = 0, %b: f32[12] = 0\n"          \
    "  %t = transpose %w {perm=[1,0]} : f32[12,6]\n"                           \
    "  %i = reshape %x {shape=[11,6,1]} : f32[11,6,1]\n"                       \
    "  %j = expand %i {shape=[11,6,8]} : f32[11,6,8]\n"                        \
    "  %k = reshape %t {shape=[12,6,1]} : f32[12,6,1]\n"                       \
    "  %p = conv %j, %k {strides=[1], pads=[0,0], dilations=[1], group=1} : "  \
    "f32[11,12,8]\n"                                                           \
    "  %r = mul %p, 1 : f32[11,12,8]\n"                                        \
    "  %m = reduce_mean %r {axes=[0,2], keepdims=1} : f32[1,12,1]\n"           \
    "  %d = sub %r, %m : f32[11,12,8]\n"                                       \
    "  %s = mul %d, %d : f32[11,12,8]\n"                                       \
    "  %a = reduce_mean %s {axes=[0,2], keepdims=1} : f32[1,12,1]\n"           \
    "  %e = add %a, 1e-5 : f32[1,12,1]\n"                                      \
    "  %o = rsqrt %e : f32[1,12,1]\n  %n = mul %d, %o : f32[11,12,8]\n"        \
    "  %f = slice %n {starts=[0,0,3], sizes=[11,12,1], steps=[1,1,1]} : "      \
    "f32[11,12,1]\n"                                                           \
    "  %z = reshape %f {shape=[11,12]} : f32[11,12]\n"                         \
    "  %q = matmul %z, %v : f32[11,7]\n  return %q\n}\n"
#define ROW(eps) CONVOLVED("[11,1,6]", "[12,1,6]", ALONE, eps)
#define ALONE    "  %r = mul %p, 1 : f32[11,12,1]\n"

/* Numbers this small have no bits that rounding the product's copy, 'm',
   could lose; nor does a copy in fp16 help, because fp16 represents the
   other factors, of that size, no better. */
TEST_CASE(rounding, residual_streams_are_fp16) {
    static const struct {
        const char *text, *rounded;
        int shift;
    } sizes[] = {
        {STREAM("1", "1"), "xwvmqrpk", 0},
        {STREAM("1048576", "9.5367431640625e-07"), "xwvmqrpk", 20},
        {STREAM("0.00048828125", "2048"), "xwvqrpk", -11},
    };
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        Case k = {"", sizes[i].text, stream_kept, sizes[i].rounded, "zts", "xz",
                  M,  NULL,          M * N};
        run_in(&k, "bf16", 8, "r", sizes[i].shift, NULL);
        k.rounded = "xwvqrpk";
        if (!sizes[i].shift) run_in(&k, "fp16", 11, "r", 0, NULL);
    }
}

TEST_CASE(rounding, residual_streams_may_be_f32) {
    static const Case k = {
        "",   STREAM("1", "1"), stream_kept, "xwvmqk", "przts", "xz", M, NULL,
        M * N};
    run_in(&k, "bf16", 8, NULL, 0, "exact,residuals=inf");
    run_in(&k, "fp16", 11, NULL, 0, "exact,residuals=inf");
}

/* With automatic placement, bf16 stores the operand of a norm as fp16 after
   division by 64, where the norm's eps bounds the effect; but not after a
   product that a library may compute. */
TEST_CASE(rounding, what_norms_divide_is_fp16) {
    static const struct {
        const char *text, *placement;
        double eps;
        bool bias, fp16;
    } all[] = {
        {ROW("1e-5"), "exact", 1e-5, false, true},
        {ROW("1e-6"), "exact", 1e-6, false, true},
        {ROW("9e-7"), "exact", 9e-7, false, false},
        {ROW("1e-5"), "exact,residuals=inf", 1e-5, false, false},
        {CONVOLVED("[11,1,6]", "[12,1,6]",
                   "  %f = reshape %b {shape=[1,12,1]} : f32[1,12,1]\n"
                   "  %r = add %p, %f : f32[11,12,1]\n",
                   "1e-5"),
         "exact", 1e-5, true, true},
        {CONVOLVED("[11,6,1]", "[12,6,1]", ALONE, "1e-5"), "exact", 1e-5, false,
         true},
        {LIBRARY, "exact", 1e-5, false, false},
    };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        Case k = {"",
                  all[i].text,
                  all[i].bias ? biased_conv_normed : conv_normed,
                  "xwrnv",
                  "dqts",
                  "x",
                  M,
                  NULL,
                  M * P};
        eps = all[i].eps;
        run_in(&k, "bf16", 8, all[i].fp16 ? "r" : NULL, 0, all[i].placement);
        run_in(&k, "fp16", 11, NULL, 0, all[i].placement);
    }
}

TEST_CASE(rounding, a_small_last_product_may_be_of_16_bits) {
    static const Case k = {
        "",         HEAD("%x: f32[11,6]") "  return %o, %e\n}\n",
        class_head, "xwyv",
        "qts",      "x",
        M,          NULL,
        M * P};
    run_in(&k, "bf16", 8, NULL, 0, "exact,head=0");
    run_in(&k, "fp16", 11, NULL, 0, "exact,head=0");
}

/* The last product after convolutions, too large for f32, with few results:
   its weight is the sum of two bf16 numbers; the second is the rounding
   error of the first. With fp16, or if the user asks, it is one number. */
TEST_CASE(rounding, a_weight_near_the_loss_is_two_numbers_of_bf16) {
    enum { ROWS_HERE = 16, DEPTH = 12 };
    static const struct {
        const char *options;
        int bits;
        bool rest;
    } all[] = {{"--precision bf16", 8, true},
               {"--precision bf16 --placement exact,head=0", 8, false},
               {"--precision fp16 --loss-scale none", 11, false}};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        char options[128];
        float x[ROWS_HERE][DEPTH], v[DEPTH], got[ROWS_HERE];
        double closest = 1, want[ROWS_HERE], other[ROWS_HERE], has[ROWS_HERE];
        Rounder r = {"v", all[i].bits, &closest, NULL, 0};
        snprintf(options, sizeof options,
                 "%s --target cpu:x86-64-v2 --loss none", all[i].options);
        /* 192 multiply-adds beside 13,824 */
        Compiled c = compile_text(
            "graph forward(%x: f32[16,12]) {\n"
            "  param %v: f32[12,1] = normal(3, 1)\n"
            "  param %a: f32[1,24,24] = normal(1, 0.1)\n"
            "  param %f: f32[24,24,1] = normal(2, 0.1)\n"
            "  %b = conv %a, %f {strides=[1], pads=[0,0], dilations=[1], "
            "group=1} : f32[1,24,24]\n"
            "  %o = matmul %x, %v : f32[16,1]\n  return %o, %b\n}\n",
            options);
        ampc_session *s = open_threads(&c, 1);
        read_var(&c, s, "v", v, sizeof v, AMPC_DTYPE_F32);
        for (int m = 0; m < ROWS_HERE; m++) {
            want[m] = other[m] = 0;
            for (int k = 0; k < DEPTH; k++) {
                double w = (double)v[k], one = rounding_at(&r, 'v', w);
                double two = one + rounding_at(&r, 'v', w - one);
                x[m][k] = (float)((m * 5 + k * 3) % 7 - 3) / 4;
                want[m] += (double)x[m][k] * (all[i].rest ? two : one);
                other[m] += (double)x[m][k] * (all[i].rest ? one : two);
            }
        }
        ampc_input in = ampc_in("x", x, sizeof x, AMPC_DTYPE_F32);
        ampc_output out = ampc_out("o", got, sizeof got, AMPC_DTYPE_F32);
        if (c.api->predict(s, &in, 1, ROWS_HERE, &out, 1))
            FAIL("%s", c.api->error(s));
        for (int m = 0; m < ROWS_HERE; m++) has[m] = (double)got[m];
        REQUIRE(rounding_distance(other, want, ROWS_HERE) > 4 * TOL_ROUNDING);
        CHECK_MSG(rounding_distance(has, want, ROWS_HERE) <= TOL_ROUNDING,
                  "%s: off by %g", options,
                  rounding_distance(has, want, ROWS_HERE));
        c.api->close(s);
        compiled_close(&c);
    }
}

/* ---- slopes -------------------------------------------------------------- */

/* With equal v and only one row that is not 0, the gradients of biases are
   slopes of rounded numbers times one: their quotients by the ones in double
   differ by the rounding of the gradient (bf16) and of the stored value
   (fp16). If the stored value were bf16, they would differ by twice as much. */
TEST_CASE(rounding, slopes_are_kept_as_fp16) {
    enum { DEEP = 8, TALL = 64, WIDE = 1024 };
    static float w[DEEP][WIDE], b[WIDE], x[TALL][DEEP], target[TALL][4];
    double least = INFINITY, most = 0, closest = 1;
    Rounder r = {"w", 8, &closest, NULL, 0};
    Compiled c = compile_text(
        "graph forward(%x: f32[64,8]) {\n"
        "  param %w: f32[8,1024] = uniform(3, -1, 1), %b: f32[1024] = 0\n"
        "  param %v: f32[1024,4] = 1\n"
        "  %p = matmul %x, %w : f32[64,1024]\n"
        "  %h = add %p, %b : f32[64,1024]\n"
        "  %g = gelu %h : f32[64,1024]\n"
        "  %y = matmul %g, %v : f32[64,4]\n  return %y\n}\n",
        "--precision bf16 --target cpu --loss mse --optimizer sgd,lr=1 "
        "--remat none");
    ampc_session *s = open_threads(&c, 2);
    for (int i = 0; i < DEEP; i++) x[0][i] = (float)(i - 3) / 4;
    for (int i = 0; i < 4; i++) target[0][i] = (float)i;
    ampc_input in[] = {
        ampc_in("x", x, sizeof x, AMPC_DTYPE_F32),
        ampc_in("target", target, sizeof target, AMPC_DTYPE_F32)};
    read_var(&c, s, "w", w, sizeof w, AMPC_DTYPE_F32);
    CHECK(step_ok(&c, s, in, 2).applied);
    read_var(&c, s, "b", b, sizeof b, AMPC_DTYPE_F32);
    for (int j = 0; j < WIDE; j++) {
        double h = 0;
        for (int i = 0; i < DEEP; i++)
            h += (double)x[0][i] * rounding_at(&r, 'w', (double)w[i][j]);
        double low = rounding_at(&r, 'w', h * (1 - 1e-6));
        h = rounding_at(&r, 'w', h * (1 + 1e-6));
        double slope =
            0.5 * erfc(-h / sqrt(2)) + h * exp(-h * h / 2) / sqrt(2 * acos(-1));
        /* near its root; next to a tie */
        if (fabs(slope) < 0.01 || low != h) continue;
        double part = fabs((double)b[j] / slope);
        least = fmin(least, part), most = fmax(most, part);
    }
    CHECK_MSG(most / least - 1 < 1.01 * (0x1p-7 + 0x1p-10), "%g",
              most / least - 1);
    c.api->close(s);
    compiled_close(&c);
}
