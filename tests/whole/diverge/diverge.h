/* SPDX-License-Identifier: Apache-2.0 */
/* diverge.h: for diverge_test.c and the files of folder diverge. */
#ifndef AMPC_TESTS_WHOLE_DIVERGE_DIVERGE_H
#define AMPC_TESTS_WHOLE_DIVERGE_DIVERGE_H

#include "tests/support/on_device.h"

enum { BATCH = 4, WIDTH = 3, FAR = 5003 };

#define OPTIONS "--loss mse --precision fp32 --optimizer sgd,lr=0.01 "

typedef struct Data {
    float x[BATCH * WIDTH], target[BATCH * 2];
    ampc_input in[2];
} Data;

Data *diverge_data(Data *d);
const Compiled *diverge_compile(const char *device, const char *options);

/* The masks' infinities are intended; the root of x is NaN below 0, and its
   slope infinite at 0. */
extern const char diverge_deep[];

/* Sets a row of x to one number, or w[1, 0] to another. */
typedef struct Place {
    float row, w; /* 0: unchanged; NaN: the row is three zeros */
    ampc_origin origin;
    const char *name, *op, *source; /* NULL: any */
    int64_t index;                  /* -1: any */
    const char *advice;
} Place;

void diverge_spoil(const Compiled *c, ampc_session *s, Data *d, const Place *p);

#define SLOW  "--loss-scale static=1 --optimizer sgd,lr=0.0001 "
#define DEBUG "--debug-nonfinite " SLOW

#endif
