/* SPDX-License-Identifier: Apache-2.0 */
/* arithmetic.c: the oracle's arithmetic: a letter a rounding. */
#include <math.h>
#include <string.h>

#include "tests/whole/rounding/rounding.h"

double rounding_at(const Rounder *r, char letter, double v) {
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

void rounding_product(const Rounder *r, const double *a, const double *b, int m,
                      int k, int n, double *y) {
    for (int i = 0; i < m; i++)
        for (int j = 0; j < n; j++) {
            double sum = 0;
            for (int l = 0; l < k; l++)
                sum = rounding_at(
                    r, 's',
                    sum + rounding_at(r, 't', a[i * k + l] * b[l * n + j]));
            y[i * n + j] = sum;
        }
}

void rounding_widen(const Rounder *r, char letter, const float *x, int n,
                    double *y) {
    for (int i = 0; i < n; i++) y[i] = rounding_at(r, letter, (double)x[i]);
}

void rounding_each(const Rounder *r, char letter, double *x, int n) {
    for (int i = 0; i < n; i++) x[i] = rounding_at(r, letter, x[i]);
}

void rounding_transpose(const double *x, int m, int n, double *y) {
    for (int i = 0; i < m * n; i++) y[i % n * m + i / n] = x[i];
}

void x_times(const Rounder *r, const float *w, char letter, int rows,
             double *y) {
    static double a[ROWS * K];
    double b[K * N];
    rounding_widen(r, 'x', rounding_data.x, rows * K, a);
    rounding_widen(r, letter, w, K * N, b);
    rounding_product(r, a, b, rows, K, N, y);
}

void times_v(const Rounder *r, double *x, double *y) {
    double b[N * P], a[M * N];
    memcpy(a, x, sizeof a);
    rounding_widen(r, 'v', rounding_data.v, N * P, b);
    rounding_product(r, a, b, M, N, P, y);
    rounding_each(r, 'q', y, M * P);
}
