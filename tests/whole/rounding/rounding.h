/* SPDX-License-Identifier: Apache-2.0 */
/* rounding.h: for rounding_test.c and the files of folder rounding. */
#ifndef AMPC_TESTS_WHOLE_ROUNDING_ROUNDING_H
#define AMPC_TESTS_WHOLE_ROUNDING_ROUNDING_H

#include "tests/support/compiled.h"

enum { M = 11, K = 6, N = 12, P = 7, ROWS = 40, IDS = 7 };

typedef struct Data {
    float x[ROWS * K], z[ROWS * N], c[ROWS * N]; /* inputs */
    int64_t id[ROWS];
    float w[K * N], u[K * N], v[N * P], t[N * P], q[N * P]; /* parameters */
    float b[N], g[N], h[N], table[IDS * K];
} Data;

extern Data rounding_data;

typedef struct Rounder {
    char letters[32]; /* the rounded operands */
    int bits;         /* bits of the significand: 8 bf16, 11 fp16 */
    double *closest;  /* distance from a tie of the closest rounding, in
                         units of the last place */
    const char *fp16; /* letters rounded after division by 64, whatever the
                         others are; or NULL */
    int shift;        /* the model computes with 2^shift times these numbers */
} Rounder;

double rounding_at(const Rounder *r, char letter, double v);

/* y[m,n] = a[m,k] b[k,n]; 't' a term, 's' a partial sum */
void rounding_product(const Rounder *r, const double *a, const double *b, int m,
                      int k, int n, double *y);

void rounding_widen(const Rounder *r, char letter, const float *x, int n,
                    double *y);
void rounding_each(const Rounder *r, char letter, double *x, int n);
void rounding_transpose(const double *x, int m, int n, double *y);

/* x w with operands 'x' and 'w', for `rows` rows */
void x_times(const Rounder *r, const float *w, char letter, int rows,
             double *y);

/* ... and another product of the value that the reader reads */
void times_v(const Rounder *r, double *x, double *y);

/* A product that is small compared with others and whose result no other
   product reads. */
void class_head(const Rounder *r, double *y);

void grad_weight(const Rounder *r, double *y);
void grad_bias(const Rounder *r, double *y);
void grad_gain(const Rounder *r, double *y);

/* Many rows read the table's few rows: long sums. */
void grad_table(const Rounder *r, double *y);

/* y = x w read by three products: their gradients are summed in dy. */
void grad_fan_in(const Rounder *r, double *y);

/* y = x w read by a product that stays f32. */
void grad_head(const Rounder *r, double *y);

/* A value that the model has in 16 bits, with three readers: each passes on 16
   bits, and their sum is rounded once. */
void grad_of_16_bits(const Rounder *r, double *y);

#define FORWARD "graph forward(%x: f32[11,6]) {\n  param %w: f32[6,12] = 0\n"
#define PRODUCT "  %y = matmul %x, %w : f32[11,12]\n"
#define LOSS(rows, cols)                                                       \
    "  %yc = mul %y, %c : f32[" rows "," cols "]\n"                            \
    "  %l = reduce_sum %yc {axes=[0,1], keepdims=0} : f32[]\n"                 \
    "  return %l\n}\n"

/* 7.1 million multiply-adds and 110592 elements, compared with 924 and 293
   for %o */
#define HEAD(inputs)                                                           \
    "graph forward(" inputs ") {\n"                                            \
    "  param %w: f32[6,12] = 0, %v: f32[12,7] = 0\n"                           \
    "  param %a: f32[192,192] = normal(1, 0.1)\n"                              \
    "  %b = matmul %a, %a : f32[192,192]\n"                                    \
    "  %d = tanh %b : f32[192,192]\n  %e = tanh %d : f32[192,192]\n" PRODUCT   \
    "  %o = matmul %y, %v : f32[11,7]\n"

typedef struct Case {
    const char *name, *text;
    void (*oracle)(const Rounder *, double *);
    const char *rounded, *kept;
    const char *feeds; /* inputs by letter: x, z, c, i */
    int rows;          /* of the inputs */
    const char *grad;  /* this parameter's gradient; NULL: the output */
    int count;
} Case;

size_t rounding_inputs(const Case *k, ampc_input *in);

/* The largest difference, relative to the largest magnitude. */
double rounding_distance(const double *a, const double *b, int n);

/* fp16, placement: letters stored as fp16 if that is requested, or NULL */
void run_in(const Case *k, const char *precision, int bits, const char *fp16,
            int shift, const char *placement);

#endif
