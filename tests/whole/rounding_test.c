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
#include <string.h>

#include "tests/support/compiled.h"
#include "tests/tolerance.h"
#include "tests/whole/rounding/rounding.h"

enum { MOST = 400, READERS = 3 }; /* elements of results; rows of a broadcast */

Data rounding_data;

static float noise(uint64_t *state) {
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (float)((double)(*state >> 40) / (1 << 23) - 1);
}

static void fill(float *x, size_t bytes, float middle, uint64_t *seed) {
    for (size_t i = 0; i < bytes / 4; i++) x[i] = middle + noise(seed) / 2;
}

static void data_fill(uint64_t seed) {
    fill(rounding_data.x, sizeof rounding_data.x, 0.3f, &seed);
    fill(rounding_data.z, sizeof rounding_data.z, 0, &seed);
    fill(rounding_data.c, sizeof rounding_data.c, 0.6f, &seed);
    fill(rounding_data.w, sizeof rounding_data.w, 0.1f, &seed);
    fill(rounding_data.u, sizeof rounding_data.u, 0, &seed);
    fill(rounding_data.v, sizeof rounding_data.v, 0, &seed);
    fill(rounding_data.t, sizeof rounding_data.t, 0, &seed);
    fill(rounding_data.q, sizeof rounding_data.q, 0, &seed);
    fill(rounding_data.b, sizeof rounding_data.b, 0, &seed);
    fill(rounding_data.g, sizeof rounding_data.g, 1, &seed);
    fill(rounding_data.h, sizeof rounding_data.h, 0, &seed);
    fill(rounding_data.table, sizeof rounding_data.table, 0.3f, &seed);
    for (int i = 0; i < ROWS; i++) rounding_data.id[i] = i * i % 3 * 2;
}

/* ---- forward ------------------------------------------------------------- */

static void plain(const Rounder *r, double *y) {
    x_times(r, rounding_data.w, 'w', M, y);
    rounding_each(r, 'y', y, M * N);
}

static void biased(const Rounder *r, double *y) {
    x_times(r, rounding_data.w, 'w', M, y);
    for (int i = 0; i < M * N; i++)
        y[i] = rounding_at(
            r, 'y',
            rounding_at(r, 'p', y[i]) +
                rounding_at(r, 'b', (double)rounding_data.b[i % N]));
}

static void scaled(const Rounder *r, double *y) {
    x_times(r, rounding_data.w, 'w', M, y);
    for (int i = 0; i < M * N; i++)
        y[i] = rounding_at(
            r, 'y',
            rounding_at(r, 'p', y[i]) *
                rounding_at(r, 'g', (double)rounding_data.g[i % N]));
}

static void by_constant(const Rounder *r, double *y) {
    x_times(r, rounding_data.w, 'w', M, y);
    for (int i = 0; i < M * N; i++)
        y[i] = rounding_at(r, 'y',
                           rounding_at(r, 'p', y[i]) *
                               rounding_at(r, 'k', 1.00171875));
}

static void two_products(const Rounder *r, double *y) {
    double other[M * N];
    x_times(r, rounding_data.w, 'w', M, y);
    x_times(r, rounding_data.u, 'u', M, other);
    for (int i = 0; i < M * N; i++)
        y[i] = rounding_at(
            r, 'y', rounding_at(r, 'p', y[i]) + rounding_at(r, 'o', other[i]));
}

static void beside_f32(const Rounder *r, double *y) {
    x_times(r, rounding_data.w, 'w', M, y);
    for (int i = 0; i < M * N; i++)
        y[i] = rounding_at(r, 'y',
                           rounding_at(r, 'p', y[i]) +
                               rounding_at(r, 'z', (double)rounding_data.z[i]));
}

static void bounded(const Rounder *r, double *y) {
    x_times(r, rounding_data.w, 'w', M, y);
    for (int i = 0; i < M * N; i++)
        y[i] = rounding_at(r, 'y', tanh(rounding_at(r, 'p', y[i])));
}

static void bounded_for_many(const Rounder *r, double *y) {
    double t[M * N];
    bounded(r, t);
    for (int i = 0; i < M * N; i++)
        for (int k = 0, at_o; k < READERS; k++) {
            at_o = (i / N * READERS + k) * N + i % N;
            y[at_o] = rounding_at(r, 'o', t[i] * (double)rounding_data.z[at_o]);
        }
}

static void bounded_and_scaled(const Rounder *r, double *y) {
    x_times(r, rounding_data.w, 'w', M, y);
    for (int i = 0; i < M * N; i++)
        y[i] = rounding_at(
            r, 'y',
            rounding_at(r, 'a', tanh(rounding_at(r, 'p', y[i]))) *
                rounding_at(r, 'g', (double)rounding_data.g[i % N]));
}

static void normed(const Rounder *r, double *y) {
    biased(r, y); /* 'y' is rounded: the norm's operand */
    for (int i = 0; i < M; i++) {
        double *row = y + i * N, mean = 0, var = 0;
        for (int j = 0; j < N; j++) mean += row[j] / N;
        mean = rounding_at(r, 'm', mean);
        for (int j = 0; j < N; j++) {
            row[j] = rounding_at(r, 'd', row[j] - mean);
            var += row[j] * row[j] / N;
        }
        double inv = rounding_at(r, 'i', 1 / sqrt(var + 0.1));
        for (int j = 0; j < N; j++)
            row[j] = rounding_at(
                r, 'n',
                rounding_at(r, 'e', row[j] * inv) *
                        rounding_at(r, 'g', (double)rounding_data.g[j]) +
                    rounding_at(r, 'h', (double)rounding_data.h[j]));
    }
}

static void softmaxed(const Rounder *r, double *y) {
    plain(r, y);
    for (int i = 0; i < M; i++) {
        double *row = y + i * N, most = row[0], sum = 0;
        for (int j = 1; j < N; j++) most = fmax(most, row[j]);
        for (int j = 0; j < N; j++)
            sum += row[j] =
                rounding_at(r, 'e', exp(rounding_at(r, 'd', row[j] - most)));
        for (int j = 0; j < N; j++)
            row[j] = rounding_at(r, 'n', row[j] / rounding_at(r, 'm', sum));
    }
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
    x_times(r, rounding_data.w, 'w', M, n);
    for (int i = 0; i < M * N; i++)
        n[i] = rounding_at(r, 'y',
                           rounding_at(r, 'p', n[i]) +
                               rounding_at(r, 'b', (double)rounding_data.b[0]));
    times_v(r, n, y);
}

void class_head(const Rounder *r, double *y) {
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
    x_times(r, rounding_data.w, 'w', ROWS, x);
    for (int j = 0; j < N; j++) {
        double sum = 0;
        for (int i = 0; i < ROWS; i++)
            sum = rounding_at(r, 'a', sum + rounding_at(r, 'p', x[i * N + j]));
        y[j] = sum;
    }
}

static void summed(const Rounder *r, double *y) {
    column_sums(r, y);
    rounding_each(r, 'y', y, N);
}

static void averaged(const Rounder *r, double *y) {
    column_sums(r, y);
    for (int j = 0; j < N; j++) y[j] = rounding_at(r, 'y', y[j] / ROWS);
}

static void sum_kept(const Rounder *r, double *y) {
    double x[N], copy[N], b[N * P], bt[P * N], q[P];
    column_sums(r, x);
    rounding_each(r, 'r', x, N);
    memcpy(copy, x, sizeof x);
    rounding_each(r, 'm', copy, N);
    rounding_widen(r, 'v', rounding_data.v, N * P, b);
    rounding_transpose(b, N, P, bt);
    rounding_product(r, copy, b, 1, N, P, q);
    rounding_each(r, 'q', q, P);
    rounding_product(r, q, bt, 1, P, N, y);
    for (int i = 0; i < N; i++)
        y[i] = rounding_at(r, 'y', rounding_at(r, 'k', y[i]) * x[i]);
}

/* The user's own casts down and up: a rounding in every precision. */
static void cast_by_user(const Rounder *r, double *y) {
    for (int i = 0; i < M * K; i++)
        y[i] = rounding_at(r, 'y',
                           rounding_at(r, 'x', (double)rounding_data.x[i]) * 3);
}

/* ---- cases --------------------------------------------------------------- */

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
     HEAD("%x: f32[11,6]") "  return %o, %e\n}\n", class_head, "xw", "yvqts",
     "x", M, NULL, M *P},
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
    } all[] = {{"w", rounding_data.w, sizeof rounding_data.w},
               {"u", rounding_data.u, sizeof rounding_data.u},
               {"v", rounding_data.v, sizeof rounding_data.v},
               {"t", rounding_data.t, sizeof rounding_data.t},
               {"q", rounding_data.q, sizeof rounding_data.q},
               {"b", rounding_data.b, sizeof rounding_data.b},
               {"one", rounding_data.b, sizeof *rounding_data.b},
               {"g", rounding_data.g, sizeof rounding_data.g},
               {"h", rounding_data.h, sizeof rounding_data.h},
               {"table", rounding_data.table, sizeof rounding_data.table}};
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

size_t rounding_inputs(const Case *k, ampc_input *in) {
    size_t n = 0, rows = (size_t)k->rows;
    size_t loss = k->oracle == grad_fan_in || k->oracle == grad_head ? P : N;
    for (const char *f = k->feeds; *f; f++) switch (*f) {
        case 'x':
            in[n++] =
                ampc_in("x", rounding_data.x, rows * K * 4, AMPC_DTYPE_F32);
            break;
        case 'z':
            in[n++] =
                ampc_in("z", rounding_data.z, rows * N * 4, AMPC_DTYPE_F32);
            break;
        case 'Z':
            in[n++] = ampc_in("z", rounding_data.z, rows * READERS * N * 4,
                              AMPC_DTYPE_F32);
            break;
        case 'c':
            in[n++] =
                ampc_in("c", rounding_data.c, rows * loss * 4, AMPC_DTYPE_F32);
            break;
        case 'i':
            in[n++] = ampc_in("i", rounding_data.id, rows * 8, AMPC_DTYPE_I64);
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
    size_t n = rounding_inputs(k, in), bytes = (size_t)k->count * 4;
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

double rounding_distance(const double *a, const double *b, int n) {
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
            if (rounding_distance(other, want, k->count) < 4 * TOL_ROUNDING)
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
            CHECK_MSG(rounding_distance(got, other, k->count) > TOL_ROUNDING,
                      "as if '%c' were %s", *p, list ? "rounded" : "kept");
        }
}

void run_in(const Case *k, const char *precision, int bits, const char *fp16,
            int shift, const char *placement) {
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
    double off = rounding_distance(got, want, k->count);
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
