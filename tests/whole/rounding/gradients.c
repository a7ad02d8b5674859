/* SPDX-License-Identifier: Apache-2.0 */
/* gradients.c: gradients of the oracle; the loss is sum(y c). */
#include <string.h>

#include "tests/whole/rounding/rounding.h"

/* ---- gradients: the loss is sum(y c) ------------------------------------- */

static void dy(const Rounder *r, int rows, double *d) {
    rounding_widen(r, 'd', rounding_data.c, rows * N, d);
}

/* x[rows,K]' d[rows,N], with result 'W' */
static void weight_gradient(const Rounder *r, const double *d, int rows,
                            double *y) {
    static double a[ROWS * K], xt[ROWS * K];
    rounding_widen(r, 'x', rounding_data.x, rows * K, a);
    rounding_transpose(a, rows, K, xt);
    rounding_product(r, xt, d, K, rows, N, y);
    rounding_each(r, 'W', y, K * N);
}

void grad_weight(const Rounder *r, double *y) {
    static double d[ROWS * N];
    dy(r, ROWS, d);
    weight_gradient(r, d, ROWS, y);
}

void grad_bias(const Rounder *r, double *y) {
    static double d[ROWS * N];
    dy(r, ROWS, d);
    for (int j = 0; j < N; j++) {
        double sum = 0;
        for (int i = 0; i < ROWS; i++)
            sum = rounding_at(r, 'a', sum + d[i * N + j]);
        y[j] = rounding_at(r, 'B', sum);
    }
}

void grad_gain(const Rounder *r, double *y) {
    static double d[ROWS * N], p[ROWS * N];
    dy(r, ROWS, d);
    x_times(r, rounding_data.w, 'w', ROWS, p);
    for (int j = 0; j < N; j++) {
        double sum = 0;
        for (int i = j; i < ROWS * N; i += N)
            sum = rounding_at(
                r, 'a',
                sum + rounding_at(r, 'm', d[i] * rounding_at(r, 'p', p[i])));
        y[j] = rounding_at(r, 'G', sum);
    }
}

/* dy w' in 'e' */
static void input_gradient(const Rounder *r, const double *d, const float *w,
                           char letter, int rows, int n, int k, char result,
                           double *y) {
    double b[N * N], bt[N * N];
    REQUIRE(k <= N && n <= N);
    rounding_widen(r, letter, w, k * n, b);
    rounding_transpose(b, k, n, bt);
    rounding_product(r, d, bt, rows, n, k, y);
    rounding_each(r, result, y, rows * k);
}

void grad_table(const Rounder *r, double *y) {
    static double d[ROWS * N], e[ROWS * K];
    dy(r, ROWS, d);
    input_gradient(r, d, rounding_data.w, 'w', ROWS, N, K, 'e', e);
    memset(y, 0, IDS * K * sizeof *y);
    for (int i = 0; i < ROWS * K; i++) {
        double *sum = &y[rounding_data.id[i / K] * K + i % K];
        *sum = rounding_at(r, 'a', *sum + e[i]);
    }
}

void grad_fan_in(const Rounder *r, double *y) {
    const float *const w[] = {rounding_data.v, rounding_data.t,
                              rounding_data.q};
    double d[M * P], part[3][M * N], sum[M * N];
    rounding_widen(r, 'd', rounding_data.c, M * P, d);
    for (int i = 0; i < 3; i++)
        input_gradient(r, d, w[i], 'v', M, P, N, 'o', part[i]);
    for (int i = 0; i < M * N; i++) {
        double two = rounding_at(r, 'a', part[0][i] + part[1][i]);
        sum[i] = rounding_at(r, 'e', two + part[2][i]);
    }
    weight_gradient(r, sum, M, y);
}

void grad_head(const Rounder *r, double *y) {
    double d[M * P], e[M * N];
    rounding_widen(r, 'd', rounding_data.c, M * P, d);
    input_gradient(r, d, rounding_data.v, 'v', M, P, N, 'e', e);
    weight_gradient(r, e, M, y);
}

void grad_of_16_bits(const Rounder *r, double *y) {
    double sum[M * N], z[M * N], k[M * N], d[M * N];
    rounding_widen(r, 'z', rounding_data.z, M * N, z);
    rounding_widen(r, 'k', rounding_data.c, M * N, k);
    dy(r, M, d);
    for (int i = 0; i < M * N; i++) {
        double zk = rounding_at(r, 'q', z[i] * k[i]);
        double two =
            rounding_at(r, 'o', d[i] * zk) + rounding_at(r, 'o', d[i] * k[i]);
        sum[i] = rounding_at(r, 'e',
                             rounding_at(r, 'a', two) +
                                 rounding_at(r, 'o', d[i] * z[i]));
    }
    weight_gradient(r, sum, M, y);
}
