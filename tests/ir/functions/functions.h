/* SPDX-License-Identifier: Apache-2.0 */
/* functions.h: for functions_test.c and the files of folder functions. */
#ifndef AMPC_TESTS_IR_FUNCTIONS_FUNCTIONS_H
#define AMPC_TESTS_IR_FUNCTIONS_FUNCTIONS_H

#include "ir/ir.h"

enum { MOST = 4096, NAMES = 8 };

typedef struct Operand {
    const char *dtype;
    int rank;
    int64_t dim[5];
    double v[MOST];
} Operand;

int64_t functions_draw(int64_t lo, int64_t hi);
double draw_real(double lo, double hi);
void functions_begin(uint64_t seed);
int64_t functions_count(const Operand *o);

/* The next operand, %a, %b ..; numbers in lo .. hi, integers for "i64". */
Operand *functions_operand(const char *dtype, double lo, double hi, int rank,
                           const int64_t *dim);

#define REAL(lo, hi, ...)                                                      \
    functions_operand("f64", lo, hi,                                           \
                      sizeof((int64_t[]){__VA_ARGS__}) / sizeof(int64_t),      \
                      (int64_t[]){__VA_ARGS__})
#define WHOLE(lo, hi, ...)                                                     \
    functions_operand("i64", lo, hi,                                           \
                      sizeof((int64_t[]){__VA_ARGS__}) / sizeof(int64_t),      \
                      (int64_t[]){__VA_ARGS__})

/* Computes a function of all operands, with attributes fmt; the results are
   in got[]. */
void functions_call(const char *name, int nout, const char *fmt, ...);

void functions_expect(int k, const double *want, int64_t n);

#endif
