/* SPDX-License-Identifier: Apache-2.0 */
/* rounding_test.c: where mixed precision rounds, value by value.

   Each case computes a model in double and marks every place where a value
   could be rounded with a letter: at(r, 'p', v).  It lists the letters that are
   rounded to the 16-bit type and those that are not (the rules are at the head
   of passes/common/placement.c). The compiled
   model must agree with that.  The data are chosen so that the case would
   fail if any one letter changed, and so that no rounding is so close to a
   tie that the order of an f32 sum could turn it. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/compiled.h"
#include "tests/tolerance.h"

enum { M = 11, K = 6, N = 12, P = 7, ROWS = 40, IDS = 7 };
enum { MOST = 400, READERS = 3 }; /* elements of results; rows of a broadcast */

typedef struct Data {
    float x[ROWS * K], z[ROWS * N], c[ROWS * N]; /* inputs */
    int64_t id[ROWS];
    float w[K * N], u[K * N], v[N * P], t[N * P], q[N * P]; /* parameters */
    float b[N], g[N], h[N], table[IDS * K];
} Data;

static Data data;

static float noise(uint64_t *state) {
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (float)((double)(*state >> 40) / (1 << 23) - 1);
}

static void fill(float *x, size_t bytes, float middle, uint64_t *seed) {
    for (size_t i = 0; i < bytes / 4; i++) x[i] = middle + noise(seed) / 2;
}

static void data_fill(uint64_t seed) {
    fill(data.x, sizeof data.x, 0.3f, &seed);
    fill(data.z, sizeof data.z, 0, &seed);
    fill(data.c, sizeof data.c, 0.6f, &seed);
    fill(data.w, sizeof data.w, 0.1f, &seed);
    fill(data.u, sizeof data.u, 0, &seed);
    fill(data.v, sizeof data.v, 0, &seed);
    fill(data.t, sizeof data.t, 0, &seed);
    fill(data.q, sizeof data.q, 0, &seed);
    fill(data.b, sizeof data.b, 0, &seed);
    fill(data.g, sizeof data.g, 1, &seed);
    fill(data.h, sizeof data.h, 0, &seed);
    fill(data.table, sizeof data.table, 0.3f, &seed);
    for (int i = 0; i < ROWS; i++) data.id[i] = i * i % 3 * 2;
}

/* ---- the oracle's arithmetic --------------------------------------------- */

typedef struct Rounder {
    char letters[32]; /* the rounded operands */
    int bits;         /* bits of the significand: 8 bf16, 11 fp16 */
    double *closest;  /* distance from a tie of the closest rounding, in
                         units of the last place */
    const char *fp16; /* letters rounded after division by 64, whatever the
                         others are; or NULL */
    int shift;        /* the model computes with 2^shift times these numbers */
} Rounder;

static double at(const Rounder *r, char letter, double v) {
    int e;
    if (!strchr(r->letters, letter) || v == 0) return v;
    double part = frexp(v, &e);
    int bits = r->bits;
    if (r->fp16 && strchr(r->fp16, letter))
        bits = e + r->shift < -7 ? e + r->shift + 18 : 11;
    double units = ldexp(part, bits), whole = nearbyint(units);
    double room = 0.5 - fabs(units - whole);
    if (room > 0) *r->closest = fmin(*r->closest, room); /* 0: exact sums */
    return ldexp(whole, e - bits);
}

/* y[m,n] = a[m,k] b[k,n]; 't' a term, 's' a partial sum */
static void product(const Rounder *r, const double *a, const double *b, int m,
                    int k, int n, double *y) {
    for (int i = 0; i < m; i++)
        for (int j = 0; j < n; j++) {
            double sum = 0;
            for (int l = 0; l < k; l++)
                sum = at(r, 's', sum + at(r, 't', a[i * k + l] * b[l * n + j]));
            y[i * n + j] = sum;
        }
}

static void widen(const Rounder *r, char letter, const float *x, int n,
                  double *y) {
    for (int i = 0; i < n; i++) y[i] = at(r, letter, (double)x[i]);
}

static void each(const Rounder *r, char letter, double *x, int n) {
    for (int i = 0; i < n; i++) x[i] = at(r, letter, x[i]);
}

static void transpose(const double *x, int m, int n, double *y) {
    for (int i = 0; i < m * n; i++) y[i % n * m + i / n] = x[i];
}

/* x w with operands 'x' and 'w', for `rows` rows */
static void x_times(const Rounder *r, const float *w, char letter, int rows,
                    double *y) {
    static double a[ROWS * K];
    double b[K * N];
    widen(r, 'x', data.x, rows * K, a);
    widen(r, letter, w, K * N, b);
    product(r, a, b, rows, K, N, y);
}

/* ---- forward ------------------------------------------------------------- */

static void plain(const Rounder *r, double *y) {
    x_times(r, data.w, 'w', M, y);
    each(r, 'y', y, M * N);
}

static void biased(const Rounder *r, double *y) {
    x_times(r, data.w, 'w', M, y);
    for (int i = 0; i < M * N; i++)
        y[i] = at(r, 'y', at(r, 'p', y[i]) + at(r, 'b', (double)data.b[i % N]));
}

static void scaled(const Rounder *r, double *y) {
    x_times(r, data.w, 'w', M, y);
    for (int i = 0; i < M * N; i++)
        y[i] = at(r, 'y', at(r, 'p', y[i]) * at(r, 'g', (double)data.g[i % N]));
}

static void by_constant(const Rounder *r, double *y) {
    x_times(r, data.w, 'w', M, y);
    for (int i = 0; i < M * N; i++)
        y[i] = at(r, 'y', at(r, 'p', y[i]) * at(r, 'k', 1.00171875));
}

static void two_products(const Rounder *r, double *y) {
    double other[M * N];
    x_times(r, data.w, 'w', M, y);
    x_times(r, data.u, 'u', M, other);
    for (int i = 0; i < M * N; i++)
        y[i] = at(r, 'y', at(r, 'p', y[i]) + at(r, 'o', other[i]));
}

static void beside_f32(const Rounder *r, double *y) {
    x_times(r, data.w, 'w', M, y);
    for (int i = 0; i < M * N; i++)
        y[i] = at(r, 'y', at(r, 'p', y[i]) + at(r, 'z', (double)data.z[i]));
}

static void bounded(const Rounder *r, double *y) {
    x_times(r, data.w, 'w', M, y);
    for (int i = 0; i < M * N; i++) y[i] = at(r, 'y', tanh(at(r, 'p', y[i])));
}

static void bounded_for_many(const Rounder *r, double *y) {
    double t[M * N];
    bounded(r, t);
    for (int i = 0; i < M * N; i++)
        for (int k = 0, at_o; k < READERS; k++) {
            at_o = (i / N * READERS + k) * N + i % N;
            y[at_o] = at(r, 'o', t[i] * (double)data.z[at_o]);
        }
}

static void bounded_and_scaled(const Rounder *r, double *y) {
    x_times(r, data.w, 'w', M, y);
    for (int i = 0; i < M * N; i++)
        y[i] = at(r, 'y',
                  at(r, 'a', tanh(at(r, 'p', y[i]))) *
                      at(r, 'g', (double)data.g[i % N]));
}

static void normed(const Rounder *r, double *y) {
    biased(r, y); /* 'y' is rounded: the norm's operand */
    for (int i = 0; i < M; i++) {
        double *row = y + i * N, mean = 0, var = 0;
        for (int j = 0; j < N; j++) mean += row[j] / N;
        mean = at(r, 'm', mean);
        for (int j = 0; j < N; j++) {
            row[j] = at(r, 'd', row[j] - mean);
            var += row[j] * row[j] / N;
        }
        double inv = at(r, 'i', 1 / sqrt(var + 0.1));
        for (int j = 0; j < N; j++)
            row[j] =
                at(r, 'n',
                   at(r, 'e', row[j] * inv) * at(r, 'g', (double)data.g[j]) +
                       at(r, 'h', (double)data.h[j]));
    }
}

static void softmaxed(const Rounder *r, double *y) {
    plain(r, y);
    for (int i = 0; i < M; i++) {
        double *row = y + i * N, most = row[0], sum = 0;
        for (int j = 1; j < N; j++) most = fmax(most, row[j]);
        for (int j = 0; j < N; j++)
            sum += row[j] = at(r, 'e', exp(at(r, 'd', row[j] - most)));
        for (int j = 0; j < N; j++)
            row[j] = at(r, 'n', row[j] / at(r, 'm', sum));
    }
}

/* ... and another product of the value that the reader reads */
static void times_v(const Rounder *r, double *x, double *y) {
    double b[N * P], a[M * N];
    memcpy(a, x, sizeof a);
    widen(r, 'v', data.v, N * P, b);
    product(r, a, b, M, N, P, y);
    each(r, 'q', y, M * P);
}

static void normed_inside(const Rounder *r, double *y) {
    double n[M * N];
    normed(r, n);
    times_v(r, n, y);
}

static void biased_inside(const Rounder *r, double *y) {
    double n[M * N];
    biased(r, n);
    times_v(r, n, y);
}

static void biased_by_one(const Rounder *r, double *y) {
    double n[M * N];
    x_times(r, data.w, 'w', M, n);
    for (int i = 0; i < M * N; i++)
        n[i] = at(r, 'y', at(r, 'p', n[i]) + at(r, 'b', (double)data.b[0]));
    times_v(r, n, y);
}

/* A product that is small compared with others and whose result no other
   product reads. */
static void head(const Rounder *r, double *y) {
    double n[M * N];
    plain(r, n);
    times_v(r, n, y);
}

static void softmaxed_inside(const Rounder *r, double *y) {
    double n[M * N];
    softmaxed(r, n);
    times_v(r, n, y);
}

static void column_sums(const Rounder *r, double *y) {
    static double x[ROWS * N];
    x_times(r, data.w, 'w', ROWS, x);
    for (int j = 0; j < N; j++) {
        double sum = 0;
        for (int i = 0; i < ROWS; i++)
            sum = at(r, 'a', sum + at(r, 'p', x[i * N + j]));
        y[j] = sum;
    }
}

static void summed(const Rounder *r, double *y) {
    column_sums(r, y);
    each(r, 'y', y, N);
}

static void averaged(const Rounder *r, double *y) {
    column_sums(r, y);
    for (int j = 0; j < N; j++) y[j] = at(r, 'y', y[j] / ROWS);
}

/* ... and besides that product the same value as it is stored; a third
   product reads both */
static void stream_kept(const Rounder *r, double *y) {
    double x[M * N], copy[M * N], t[M * P], v[N * P], vt[P * N];
    x_times(r, data.w, 'w', M, x);
    for (int i = 0; i < M * N; i++) {
        double two = at(r, 'p', x[i]) + at(r, 'z', (double)data.z[i]);
        copy[i] = at(r, 'm', x[i] = at(r, 'r', two));
    }
    times_v(r, copy, t);
    for (int i = 0; i < M * P; i++)
        t[i] = at(r, 'k', t[i] + x[i / P * N + i % P]);
    widen(r, 'v', data.v, N * P, v);
    transpose(v, N, P, vt);
    product(r, t, vt, M, P, N, y);
}

static void sum_kept(const Rounder *r, double *y) {
    double x[N], copy[N], b[N * P], bt[P * N], q[P];
    column_sums(r, x);
    each(r, 'r', x, N);
    memcpy(copy, x, sizeof x);
    each(r, 'm', copy, N);
    widen(r, 'v', data.v, N * P, b);
    transpose(b, N, P, bt);
    product(r, copy, b, 1, N, P, q);
    each(r, 'q', q, P);
    product(r, q, bt, 1, P, N, y);
    for (int i = 0; i < N; i++) y[i] = at(r, 'y', at(r, 'k', y[i]) * x[i]);
}

static double eps; /* of normed_columns */

/* x w, possibly plus b, with each column's mean subtracted, divided by the
   root of its mean square; and another product of the result */
static void normed_columns(const Rounder *r, bool bias, double *y) {
    double p[M * N];
    x_times(r, data.w, 'w', M, p);
    for (int i = 0; i < M * N; i++)
        p[i] = at(r, 'r', p[i] + (bias ? (double)data.b[i % N] : 0));
    for (int j = 0; j < N; j++) {
        double mean = 0, var = 0;
        for (int i = j; i < M * N; i += N) mean += p[i] / M;
        for (int i = j; i < M * N; i += N) {
            p[i] = at(r, 'd', p[i] - mean);
            var += p[i] * p[i] / M;
        }
        for (int i = j; i < M * N; i += N)
            p[i] = at(r, 'n', p[i] / sqrt(var + eps));
    }
    times_v(r, p, y);
}

static void conv_normed(const Rounder *r, double *y) {
    normed_columns(r, false, y);
}

static void biased_conv_normed(const Rounder *r, double *y) {
    normed_columns(r, true, y);
}

/* The user's own casts down and up: a rounding in every precision. */
static void cast_by_user(const Rounder *r, double *y) {
    for (int i = 0; i < M * K; i++)
        y[i] = at(r, 'y', at(r, 'x', (double)data.x[i]) * 3);
}

/* ---- gradients: the loss is sum(y c) ------------------------------------- */

static void dy(const Rounder *r, int rows, double *d) {
    widen(r, 'd', data.c, rows * N, d);
}

/* x[rows,K]' d[rows,N], with result 'W' */
static void weight_gradient(const Rounder *r, const double *d, int rows,
                            double *y) {
    static double a[ROWS * K], xt[ROWS * K];
    widen(r, 'x', data.x, rows * K, a);
    transpose(a, rows, K, xt);
    product(r, xt, d, K, rows, N, y);
    each(r, 'W', y, K * N);
}

static void grad_weight(const Rounder *r, double *y) {
    static double d[ROWS * N];
    dy(r, ROWS, d);
    weight_gradient(r, d, ROWS, y);
}

static void grad_bias(const Rounder *r, double *y) {
    static double d[ROWS * N];
    dy(r, ROWS, d);
    for (int j = 0; j < N; j++) {
        double sum = 0;
        for (int i = 0; i < ROWS; i++) sum = at(r, 'a', sum + d[i * N + j]);
        y[j] = at(r, 'B', sum);
    }
}

static void grad_gain(const Rounder *r, double *y) {
    static double d[ROWS * N], p[ROWS * N];
    dy(r, ROWS, d);
    x_times(r, data.w, 'w', ROWS, p);
    for (int j = 0; j < N; j++) {
        double sum = 0;
        for (int i = j; i < ROWS * N; i += N)
            sum = at(r, 'a', sum + at(r, 'm', d[i] * at(r, 'p', p[i])));
        y[j] = at(r, 'G', sum);
    }
}

/* dy w' in 'e' */
static void input_gradient(const Rounder *r, const double *d, const float *w,
                           char letter, int rows, int n, int k, char result,
                           double *y) {
    double b[N * N], bt[N * N];
    REQUIRE(k <= N && n <= N);
    widen(r, letter, w, k * n, b);
    transpose(b, k, n, bt);
    product(r, d, bt, rows, n, k, y);
    each(r, result, y, rows * k);
}

/* Many rows read the table's few rows: long sums. */
static void grad_table(const Rounder *r, double *y) {
    static double d[ROWS * N], e[ROWS * K];
    dy(r, ROWS, d);
    input_gradient(r, d, data.w, 'w', ROWS, N, K, 'e', e);
    memset(y, 0, IDS * K * sizeof *y);
    for (int i = 0; i < ROWS * K; i++) {
        double *sum = &y[data.id[i / K] * K + i % K];
        *sum = at(r, 'a', *sum + e[i]);
    }
}

/* y = x w read by three products: their gradients are summed in dy. */
static void grad_fan_in(const Rounder *r, double *y) {
    const float *const w[] = {data.v, data.t, data.q};
    double d[M * P], part[3][M * N], sum[M * N];
    widen(r, 'd', data.c, M * P, d);
    for (int i = 0; i < 3; i++)
        input_gradient(r, d, w[i], 'v', M, P, N, 'o', part[i]);
    for (int i = 0; i < M * N; i++) {
        double two = at(r, 'a', part[0][i] + part[1][i]);
        sum[i] = at(r, 'e', two + part[2][i]);
    }
    weight_gradient(r, sum, M, y);
}

/* y = x w read by a product that stays f32. */
static void grad_head(const Rounder *r, double *y) {
    double d[M * P], e[M * N];
    widen(r, 'd', data.c, M * P, d);
    input_gradient(r, d, data.v, 'v', M, P, N, 'e', e);
    weight_gradient(r, e, M, y);
}

/* A value that the model has in 16 bits, with three readers: each passes on 16
   bits, and their sum is rounded once. */
static void grad_of_16_bits(const Rounder *r, double *y) {
    double sum[M * N], z[M * N], k[M * N], d[M * N];
    widen(r, 'z', data.z, M * N, z);
    widen(r, 'k', data.c, M * N, k);
    dy(r, M, d);
    for (int i = 0; i < M * N; i++) {
        double zk = at(r, 'q', z[i] * k[i]);
        double two = at(r, 'o', d[i] * zk) + at(r, 'o', d[i] * k[i]);
        sum[i] = at(r, 'e', at(r, 'a', two) + at(r, 'o', d[i] * z[i]));
    }
    weight_gradient(r, sum, M, y);
}

/* ---- cases --------------------------------------------------------------- */

#define FORWARD "graph forward(%x: f32[11,6]) {\n  param %w: f32[6,12] = 0\n"
#define PRODUCT "  %y = matmul %x, %w : f32[11,12]\n"
#define LOSS(rows, cols)                                                       \
    "  %yc = mul %y, %c : f32[" rows "," cols "]\n"                            \
    "  %l = reduce_sum %yc {axes=[0,1], keepdims=0} : f32[]\n"                 \
    "  return %l\n}\n"

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

/* 7.1 million multiply-adds and 110592 elements, compared with 924 and 293
   for %o */
#define HEAD(inputs)                                                           \
    "graph forward(" inputs ") {\n"                                            \
    "  param %w: f32[6,12] = 0, %v: f32[12,7] = 0\n"                           \
    "  param %a: f32[192,192] = normal(1, 0.1)\n"                              \
    "  %b = matmul %a, %a : f32[192,192]\n"                                    \
    "  %d = tanh %b : f32[192,192]\n  %e = tanh %d : f32[192,192]\n" PRODUCT   \
    "  %o = matmul %y, %v : f32[11,7]\n"

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
#define ROW(eps) CONVOLVED("[11,1,6]", "[12,1,6]", ALONE, eps)
#define ALONE    "  %r = mul %p, 1 : f32[11,12,1]\n"

typedef struct Case {
    const char *name, *text;
    void (*oracle)(const Rounder *, double *);
    const char *rounded, *kept;
    const char *feeds; /* inputs by letter: x, z, c, i */
    int rows;          /* of the inputs */
    const char *grad;  /* this parameter's gradient; NULL: the output */
    int count;
} Case;

static const Case cases[] = {
    {"product", FORWARD PRODUCT "  return %y\n}\n", plain, "xw", "yts", "x", M,
     NULL, M *N},
    {"bias_meets_the_product_unrounded",
     FORWARD "  param %b: f32[12] = 0\n" PRODUCT
             "  %o = add %y, %b : f32[11,12]\n  return %o\n}\n",
     biased, "xw", "pybts", "x", M, NULL, M *N},
    {"a_bias_is_rounded_with_the_sum",
     FORWARD "  param %b: f32[12] = 0, %v: f32[12,7] = 0\n" PRODUCT
             "  %o = add %y, %b : f32[11,12]\n"
             "  %q = matmul %o, %v : f32[11,7]\n  return %q\n}\n",
     biased_inside, "xwybv", "pqts", "x", M, NULL, M *P},
    {"a_bias_of_one_number_stays_f32",
     FORWARD "  param %one: f32[1] = 0, %v: f32[12,7] = 0\n" PRODUCT
             "  %o = add %y, %one : f32[11,12]\n"
             "  %q = matmul %o, %v : f32[11,7]\n  return %q\n}\n",
     biased_by_one, "xwpyv", "bqts", "x", M, NULL, M *P},
    {"a_bias_stays_where_others_read_the_product",
     FORWARD "  param %b: f32[12] = 0, %v: f32[12,7] = 0\n" PRODUCT
             "  %o = add %y, %b : f32[11,12]\n"
             "  %q = matmul %o, %v : f32[11,7]\n  return %q, %y\n}\n",
     biased_inside, "xwyv", "pbqts", "x", M, NULL, M *P},
    {"parameters_are_not_rounded",
     FORWARD "  param %g: f32[12] = 0\n" PRODUCT
             "  %o = mul %y, %g : f32[11,12]\n  return %o\n}\n",
     scaled, "xw", "ygtsp", "x", M, NULL, M *N},
    {"constants_are_not_rounded",
     FORWARD PRODUCT "  %o = mul %y, 1.00171875 : f32[11,12]\n  return %o\n}\n",
     by_constant, "xw", "yktsp", "x", M, NULL, M *N},
    {"sum_of_two_products",
     FORWARD "  param %u: f32[6,12] = 0\n" PRODUCT
             "  %p = matmul %x, %u : f32[11,12]\n"
             "  %o = add %y, %p : f32[11,12]\n  return %o\n}\n",
     two_products, "xwu", "pytso", "x", M, NULL, M *N},
    {"an_activation_in_f32_widens",
     "graph forward(%x: f32[11,6], %z: f32[11,12]) {\n"
     "  param %w: f32[6,12] = 0\n" PRODUCT
     "  %o = add %y, %z : f32[11,12]\n  return %o\n}\n",
     beside_f32, "xw", "pzyts", "xz", M, NULL, M *N},
    {"outputs_are_not_rounded",
     FORWARD PRODUCT "  %o = tanh %y : f32[11,12]\n  return %o\n}\n", bounded,
     "xw", "ytsp", "x", M, NULL, M *N},
    {"registers_are_not_rounded",
     FORWARD "  param %g: f32[12] = 0\n" PRODUCT "  %a = tanh %y : f32[11,12]\n"
             "  %o = mul %a, %g : f32[11,12]\n  return %o\n}\n",
     bounded_and_scaled, "xw", "aygtsp", "x", M, NULL, M *N},
    {"what_is_broadcast_is_not_rounded",
     "graph forward(%x: f32[11,6], %z: f32[11,3,12]) {\n"
     "  param %w: f32[6,12] = 0\n" PRODUCT "  %t = tanh %y : f32[11,12]\n"
     "  %t3 = reshape %t {shape=[11,1,12]} : f32[11,1,12]\n"
     "  %o = mul %t3, %z : f32[11,3,12]\n  return %o\n}\n",
     bounded_for_many, "xw", "yotsp", "xZ", M, NULL, READERS *M *N},
    {"a_norm_near_the_loss_is_of_f32",
     FORWARD
     "  param %b: f32[12] = 0, %g: f32[12] = 1, %h: f32[12] = 0\n" PRODUCT
     "  %o = add %y, %b : f32[11,12]\n"
     "  %n, %m, %r = layer_norm %o, %g, %h {axis=1, epsilon=0.1}\n"
     "  return %n\n}\n",
     normed, "xw", "pmdieghntsyb", "x", M, NULL, M *N},
    {"norm_before_a_product_is_stored_in_16_bits",
     FORWARD "  param %b: f32[12] = 0, %g: f32[12] = 1, %h: f32[12] = 0\n"
             "  param %v: f32[12,7] = 0\n" PRODUCT
             "  %o = add %y, %b : f32[11,12]\n"
             "  %n, %m, %r = layer_norm %o, %g, %h {axis=1, epsilon=0.1}\n"
             "  %q = matmul %n, %v : f32[11,7]\n  return %q\n}\n",
     normed_inside, "xwybnv", "pqmdieghts", "x", M, NULL, M *P},
    {"a_softmax_near_the_loss_is_of_f32",
     FORWARD PRODUCT
     "  %n = softmax %y {axis=1} : f32[11,12]\n  return %n\n}\n",
     softmaxed, "xw", "demntsy", "x", M, NULL, M *N},
    {"softmax_before_a_product_is_stored_in_16_bits",
     FORWARD "  param %v: f32[12,7] = 0\n" PRODUCT
             "  %n = softmax %y {axis=1} : f32[11,12]\n"
             "  %q = matmul %n, %v : f32[11,7]\n  return %q\n}\n",
     softmaxed_inside, "xwnv", "yqdemts", "x", M, NULL, M *P},
    {"sums_are_f32",
     "graph forward(%x: f32[40,6]) {\n  param %w: f32[6,12] = 0\n"
     "  %y = matmul %x, %w : f32[40,12]\n"
     "  %o = reduce_sum %y {axes=[0], keepdims=0} : f32[12]\n  return %o\n}\n",
     summed, "xw", "aytsp", "x", ROWS, NULL, N},
    {"means_are_f32",
     "graph forward(%x: f32[40,6]) {\n  param %w: f32[6,12] = 0\n"
     "  %y = matmul %x, %w : f32[40,12]\n"
     "  %o = reduce_mean %y {axes=[0], keepdims=0} : f32[12]\n  return %o\n}\n",
     averaged, "xw", "yatsp", "x", ROWS, NULL, N},
    {"sums_are_stored_in_f32",
     "graph forward(%x: f32[40,6]) {\n"
     "  param %w: f32[6,12] = 0, %v: f32[12,7] = 0\n"
     "  %y = matmul %x, %w : f32[40,12]\n"
     "  %r = reduce_sum %y {axes=[0], keepdims=1} : f32[1,12]\n"
     "  %q = matmul %r, %v : f32[1,7]\n"
     "  %k = matmul %q, %v {trans_b=1} : f32[1,12]\n"
     "  %o = mul %k, %r : f32[1,12]\n  return %o\n}\n",
     sum_kept, "xwpvmq", "raykts", "x", ROWS, NULL, N},
    {"casts_of_the_user_stay",
     "graph forward(%x: f32[11,6]) {\n  %d = cast %x {user=1} : $T[11,6]\n"
     "  %u = cast %d {user=1} : f32[11,6]\n"
     "  %o = mul %u, 3 : f32[11,6]\n  return %o\n}\n",
     cast_by_user, "x", "y", "x", M, NULL, M *K},
    {"gradient_of_a_weight_stays_f32",
     "graph forward(%x: f32[40,6], %c: f32[40,12]) {\n"
     "  param %w: f32[6,12] = 0\n"
     "  %y = matmul %x, %w : f32[40,12]\n" LOSS("40", "12"),
     grad_weight, "xd", "Wts", "xc", ROWS, "w", K *N},
    {"gradient_of_a_bias_is_f32",
     "graph forward(%x: f32[40,6], %c: f32[40,12]) {\n"
     "  param %w: f32[6,12] = 0, %b: f32[12] = 0\n"
     "  %p = matmul %x, %w : f32[40,12]\n"
     "  %y = add %p, %b : f32[40,12]\n" LOSS("40", "12"),
     grad_bias, "", "daB", "xc", ROWS, "b", N},
    {"gradient_of_a_gain_adds_in_f32",
     "graph forward(%x: f32[40,6], %c: f32[40,12]) {\n"
     "  param %w: f32[6,12] = 0, %g: f32[12] = 0\n"
     "  %p = matmul %x, %w : f32[40,12]\n"
     "  %y = mul %p, %g : f32[40,12]\n" LOSS("40", "12"),
     grad_gain, "xw", "dmaGtsp", "xc", ROWS, "g", N},
    {"gradient_of_a_table_adds_in_f32",
     "graph forward(%i: i64[40], %c: f32[40,12]) {\n"
     "  param %w: f32[6,12] = 0, %table: f32[7,6] = 0\n"
     "  %e = gather %table, %i {axis=0} : f32[40,6]\n"
     "  %y = matmul %e, %w : f32[40,12]\n" LOSS("40", "12"),
     grad_table, "wde", "ats", "ic", ROWS, "table", IDS *K},
    {"gradients_that_meet_are_rounded_once",
     "graph forward(%x: f32[11,6], %c: f32[11,7]) {\n"
     "  param %w: f32[6,12] = 0, %v: f32[12,7] = 0, %t: f32[12,7] = 0\n"
     "  param %q: f32[12,7] = 0\n"
     "  %h = matmul %x, %w : f32[11,12]\n"
     "  %p1 = matmul %h, %v : f32[11,7]\n"
     "  %p2 = matmul %h, %t : f32[11,7]\n"
     "  %p3 = matmul %h, %q : f32[11,7]\n"
     "  %p12 = add %p1, %p2 : f32[11,7]\n"
     "  %y = add %p12, %p3 : f32[11,7]\n" LOSS("11", "7"),
     grad_fan_in, "xdvoe", "aWts", "xc", M, "w", K *N},
    {"a_small_last_product_is_of_f32",
     HEAD("%x: f32[11,6]") "  return %o, %e\n}\n", head, "xw", "yvqts", "x", M,
     NULL, M *P},
    {"gradients_through_a_small_last_product_are_of_f32",
     HEAD("%x: f32[11,6], %c: f32[11,7]") "  %oc = mul %o, %c : f32[11,7]\n"
                                          "  %m = reduce_sum %oc {axes=[0,1], "
                                          "keepdims=0} : f32[]\n"
                                          "  %n = reduce_sum %e {axes=[0,1], "
                                          "keepdims=0} : f32[]\n"
                                          "  %l = add %m, %n : f32[]\n  return "
                                          "%l\n}\n",
     grad_head, "xe", "dvWts", "xc", M, "w", K *N},
    {"gradients_of_16_bits_are_added_in_f32",
     "graph forward(%x: f32[11,6], %z: f32[11,12], %c: f32[11,12]) {\n"
     "  param %w: f32[6,12] = 0\n" PRODUCT
     "  %h = cast %y {user=1} : $T[11,12]\n"
     "  %zt = cast %z {user=1} : $T[11,12]\n"
     "  %ct = cast %c {user=1} : $T[11,12]\n"
     "  %zc = mul %zt, %ct : $T[11,12]\n"
     "  %hz = mul %h, %zt : $T[11,12]\n  %hc = mul %h, %ct : $T[11,12]\n"
     "  %hq = mul %h, %zc : $T[11,12]\n"
     "  %a = add %hz, %hc : $T[11,12]\n  %o = add %a, %hq : $T[11,12]\n"
     "  %oc = mul %o, %c : f32[11,12]\n"
     "  %l = reduce_sum %oc {axes=[0,1], keepdims=0} : f32[]\n"
     "  return %l\n}\n",
     grad_of_16_bits, "xzkqoe", "daWts", "xzc", M, "w", K *N},
};

/* ---- the two side by side ------------------------------------------------ */

static void set_parameters(const Compiled *c, ampc_session *s) {
    static const struct {
        const char *name;
        float *value;
        size_t bytes;
    } all[] = {{"w", data.w, sizeof data.w},
               {"u", data.u, sizeof data.u},
               {"v", data.v, sizeof data.v},
               {"t", data.t, sizeof data.t},
               {"q", data.q, sizeof data.q},
               {"b", data.b, sizeof data.b},
               {"one", data.b, sizeof *data.b},
               {"g", data.g, sizeof data.g},
               {"h", data.h, sizeof data.h},
               {"table", data.table, sizeof data.table}};
    ampc_module_info info = {.size = sizeof info};
    REQUIRE(!c->api->describe(c->api->module, &info));
    for (uint32_t i = 0; i < info.nvariable; i++) {
        ampc_variable_info v = {.size = sizeof v};
        REQUIRE(!c->api->variable(c->api->module, i, &v));
        for (size_t k = 0; k < sizeof all / sizeof *all; k++)
            if (!strcmp(v.name, all[k].name))
                write_var(c, s, v.name, all[k].value, all[k].bytes,
                          AMPC_DTYPE_F32);
    }
}

static size_t inputs(const Case *k, ampc_input *in) {
    size_t n = 0, rows = (size_t)k->rows;
    size_t loss = k->oracle == grad_fan_in || k->oracle == grad_head ? P : N;
    for (const char *f = k->feeds; *f; f++) switch (*f) {
        case 'x':
            in[n++] = ampc_in("x", data.x, rows * K * 4, AMPC_DTYPE_F32);
            break;
        case 'z':
            in[n++] = ampc_in("z", data.z, rows * N * 4, AMPC_DTYPE_F32);
            break;
        case 'Z':
            in[n++] =
                ampc_in("z", data.z, rows * READERS * N * 4, AMPC_DTYPE_F32);
            break;
        case 'c':
            in[n++] = ampc_in("c", data.c, rows * loss * 4, AMPC_DTYPE_F32);
            break;
        case 'i':
            in[n++] = ampc_in("i", data.id, rows * 8, AMPC_DTYPE_I64);
            break;
        }
    return n;
}

/* placement: NULL: the default */
static void compiled_result(const Case *k, const char *precision,
                            const char *placement, float *got) {
    char options[256], text[2000];
    ampc_input in[3];
    snprintf(options, sizeof options,
             "--precision %s --target cpu:x86-64-v2 --loss-scale none "
             "--placement %s %s",
             precision, placement ? placement : "exact",
             k->grad ? "" : "--loss none");
    text_in_dtype(text, sizeof text, k->text,
                  precision[0] == 'b' ? "bf16" : "f16");
    Compiled c = compile_text(text, options);
    ampc_session *s = open_threads(&c, 1);
    set_parameters(&c, s);
    size_t n = inputs(k, in), bytes = (size_t)k->count * 4;
    if (k->grad) {
        char name[40];
        snprintf(name, sizeof name, "ampc.grad/%s", k->grad);
        if (c.api->micro_step(s, in, n, NULL)) FAIL("%s", c.api->error(s));
        read_var(&c, s, name, got, bytes, AMPC_DTYPE_F32);
    } else {
        ampc_output out = ampc_out(NULL, got, bytes, AMPC_DTYPE_F32);
        if (c.api->predict(s, in, n, k->count / N == k->rows ? k->rows : M,
                           &out, 1))
            FAIL("%s", c.api->error(s));
    }
    c.api->close(s);
    compiled_close(&c);
}

/* The largest difference, relative to the largest magnitude. */
static double distance(const double *a, const double *b, int n) {
    double most = 0, size = 0;
    for (int i = 0; i < n; i++) {
        most = fmax(most, fabs(a[i] - b[i]));
        size = fmax(size, fabs(b[i]));
    }
    return most / size;
}

/* `all` with `letter` added, or removed if it has it. */
static Rounder changed(const Rounder *all, char letter) {
    Rounder r = {"", all->bits, all->closest, all->fp16, all->shift};
    size_t n = 0;
    for (const char *p = all->letters; *p; p++)
        if (*p != letter) r.letters[n++] = *p;
    if (n == strlen(all->letters)) r.letters[n++] = letter;
    return r;
}

/* True if no rounding is close to a tie and every letter makes a difference. */
static bool data_tell(const Case *k, const Rounder *r, double *want) {
    double other[MOST];
    *r->closest = 1;
    k->oracle(r, want);
    if (*r->closest < 1.0 / 400) return false;
    for (int list = 0; list < 2; list++)
        for (const char *p = list ? k->kept : k->rounded; *p; p++) {
            Rounder wrong = changed(r, *p);
            k->oracle(&wrong, other);
            if (distance(other, want, k->count) < 4 * TOL_ROUNDING)
                return false;
        }
    return true;
}

/* The letters with which the oracle gives `got`, with at most one changed. */
static void explain(const Case *k, const Rounder *r, const double *got) {
    double other[MOST];
    for (int list = 0; list < 2; list++)
        for (const char *p = list ? k->kept : k->rounded; *p; p++) {
            Rounder wrong = changed(r, *p);
            k->oracle(&wrong, other);
            CHECK_MSG(distance(got, other, k->count) > TOL_ROUNDING,
                      "as if '%c' were %s", *p, list ? "rounded" : "kept");
        }
}

/* fp16, placement: letters stored as fp16 if that is requested, or NULL */
static void run_in(const Case *k, const char *precision, int bits,
                   const char *fp16, int shift, const char *placement) {
    float got32[MOST];
    double got[MOST], want[MOST], closest;
    Rounder r = {"", bits, &closest, fp16, shift};
    uint64_t seed = 1;
    REQUIRE(k->count <= MOST);
    snprintf(r.letters, sizeof r.letters, "%s", k->rounded);
    for (data_fill(seed); !data_tell(k, &r, want); data_fill(++seed))
        if (seed == 5000) FAIL("%s: no data tell", precision);
    compiled_result(k, precision, placement, got32);
    for (int i = 0; i < k->count; i++) got[i] = (double)got32[i];
    double off = distance(got, want, k->count);
    if (!CHECK_MSG(off <= TOL_ROUNDING, "%s: off by %g of the largest",
                   precision, off))
        explain(k, &r, got);
}

static void run(void *arg) {
    run_in(arg, "bf16", 8, NULL, 0, NULL);
    run_in(arg, "fp16", 11, NULL, 0, NULL);
}

static void add_cases(void) {
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        harness_register("rounding", cases[i].name, run, (void *)&cases[i]);
}
TEST_REGISTRAR(add_cases);

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
         false},
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
    static const Case k = {"",    HEAD("%x: f32[11,6]") "  return %o, %e\n}\n",
                           head,  "xwyv",
                           "qts", "x",
                           M,     NULL,
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
                double w = (double)v[k], one = at(&r, 'v', w);
                double two = one + at(&r, 'v', w - one);
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
        REQUIRE(distance(other, want, ROWS_HERE) > 4 * TOL_ROUNDING);
        CHECK_MSG(distance(has, want, ROWS_HERE) <= TOL_ROUNDING,
                  "%s: off by %g", options, distance(has, want, ROWS_HERE));
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
            h += (double)x[0][i] * at(&r, 'w', (double)w[i][j]);
        double low = at(&r, 'w', h * (1 - 1e-6));
        h = at(&r, 'w', h * (1 + 1e-6));
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

/* ---- 16-bit copies of parameters ----------------------------------------- */

enum { IN = 6, OUT = 4 };

typedef struct Copies {
    Compiled c;
    ampc_session *s;
    float x[IN][IN], target[IN][OUT]; /* x = 1: the output is the copy */
    ampc_input in[2];
} Copies;

static void copies_open(Copies *k, const char *options) {
    char all[256];
    snprintf(all, sizeof all,
             "--precision bf16 --target cpu:x86-64-v2 --loss mse "
             "--optimizer sgd,lr=0.7 %s",
             options);
    k->c = compile_text("graph forward(%x: f32[6,6]) {\n"
                        "  param %w: f32[6,4] = uniform(3, -1, 1)\n"
                        "  %y = matmul %x, %w : f32[6,4]\n  return %y\n}\n",
                        all);
    k->s = open_threads(&k->c, 1);
    for (int i = 0; i < IN; i++) {
        for (int j = 0; j < IN; j++) k->x[i][j] = i == j;
        for (int j = 0; j < OUT; j++) k->target[i][j] = (float)(i - 2 * j);
    }
    k->in[0] = ampc_in("x", k->x, sizeof k->x, AMPC_DTYPE_F32);
    k->in[1] = ampc_in("target", k->target, sizeof k->target, AMPC_DTYPE_F32);
}

/* The model computes with the parameter's present value, rounded. */
static void check_copy(Copies *k, const char *after) {
    static double closest;
    Rounder r = {"w", 8, &closest, NULL, 0};
    float w[IN * OUT], y[IN * OUT];
    ampc_output out = ampc_out(NULL, y, sizeof y, AMPC_DTYPE_F32);
    read_var(&k->c, k->s, "w", w, sizeof w, AMPC_DTYPE_F32);
    if (k->c.api->predict(k->s, k->in, 1, IN, &out, 1))
        FAIL("%s", k->c.api->error(k->s));
    for (int i = 0; i < IN * OUT; i++)
        if (!CHECK_MSG((double)y[i] == at(&r, 'w', (double)w[i]),
                       "after %s: %g is used for %.9g", after, (double)y[i],
                       (double)w[i]))
            break;
}

static void train(Copies *k, int steps, bool applied) {
    for (int i = 0; i < steps; i++)
        CHECK_EQ_INT(step_ok(&k->c, k->s, k->in, 2).applied, applied);
}

TEST_CASE(rounding, copies_follow_their_parameters) {
    Copies k;
    float w[IN * OUT];
    double lr;
    ampc_eval e = {.size = sizeof e};
    const char *path = test_tmp("copies.safetensors");
    copies_open(&k, "");
    check_copy(&k, "open");
    train(&k, 2, true);
    check_copy(&k, "training");
    REQUIRE(!k.c.api->set_hyper(k.s, "lr", 0.7 / 3));
    REQUIRE(!k.c.api->save(k.s, path));
    REQUIRE(!k.c.api->set_hyper(k.s, "lr", 0.7));
    for (int i = 0; i < IN * OUT; i++) w[i] = 0.1f * (float)i;
    write_var(&k.c, k.s, "w", w, sizeof w, AMPC_DTYPE_F32);
    check_copy(&k, "writing");
    train(&k, 1, true);
    REQUIRE(!k.c.api->load(k.s, path));
    check_copy(&k, "loading");
    train(&k, 3, true);
    REQUIRE(!k.c.api->resume(k.s, path));
    REQUIRE(!k.c.api->get_hyper(k.s, "lr", &lr));
    CHECK(lr == 0.7 / 3);
    REQUIRE(!k.c.api->evaluate(k.s, k.in, 2, IN, &e));
    check_copy(&k, "resuming");
    k.target[0][0] = NAN;
    train(&k, 1, false);
    check_copy(&k, "a skipped step");
    k.c.api->close(k.s);
    compiled_close(&k.c);
}

TEST_CASE(rounding, copies_change_with_the_update_alone) {
    Copies k;
    float before[IN * OUT], after[IN * OUT];
    copies_open(&k, "--accumulate 2");
    read_var(&k.c, k.s, "w", before, sizeof before, AMPC_DTYPE_F32);
    step_ok(&k.c, k.s, k.in, 2);
    check_copy(&k, "a micro-step");
    read_var(&k.c, k.s, "w", after, sizeof after, AMPC_DTYPE_F32);
    CHECK_MEM(after, before, sizeof before);
    CHECK_EQ_INT(step_ok(&k.c, k.s, k.in, 2).applied, 1);
    check_copy(&k, "an update");
    read_var(&k.c, k.s, "w", after, sizeof after, AMPC_DTYPE_F32);
    CHECK(memcmp(after, before, sizeof before) != 0);
    k.c.api->close(k.s);
    compiled_close(&k.c);
}
