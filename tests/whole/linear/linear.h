/* SPDX-License-Identifier: Apache-2.0 */
/* linear.h: for linear_test.c and the files of folder linear. */
#ifndef AMPC_TESTS_WHOLE_LINEAR_LINEAR_H
#define AMPC_TESTS_WHOLE_LINEAR_LINEAR_H

#include "ir/base/base.h"
#include "tests/support/on_device.h"

enum { CHAINS = 48, STEPS = 4, X = 48, MOST = 640, RANK = 5, INPUTS = 160 };

/* ---- a value ------------------------------------------------------------- */

typedef struct Row {
    float of[X], plus; /* factor of each element of x; a constant term */
} Row;

typedef struct Val {
    int rank, dim[RANK], n;
    char name[24];
    Row *row;
} Val;

typedef struct Given { /* an input of the program */
    char name[24];
    bool index;
    int n;
    float f[MOST];
    int64_t i[MOST];
} Given;

typedef struct Made {
    StrBuf sig, params, body, results;
    Val out[CHAINS];
    Given given[INPUTS], *y[CHAINS];
    int ngiven, nvalue, chain;
    float x[CHAINS][X];
} Made;

typedef Val Op(Made *m, const Val *x);

extern uint64_t linear_state;
int linear_below(int n);
int linear_number(void);
Val linear_val_new(Made *m, int rank, const int *dim);
void linear_put_shape(StrBuf *sb, const Val *v);
void linear_put_ints(StrBuf *sb, const char *key, const int *x, int n);
void linear_put_type(Made *m, const Val *v);
Given *linear_give(Made *m, bool index, int n);
extern Op *const linear_ops[];
extern const int linear_nops;

#endif
