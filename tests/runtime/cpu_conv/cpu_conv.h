/* SPDX-License-Identifier: Apache-2.0 */
/* cpu_conv.h: for cpu_conv_test.c and the files of folder cpu_conv. */
#ifndef AMPC_TESTS_RUNTIME_CPU_CONV_CPU_CONV_H
#define AMPC_TESTS_RUNTIME_CPU_CONV_CPU_CONV_H

#include "runtime/cpu/wino.h"
#include "tests/harness.h"
#include "tests/support/cpu_cases.h"
#include "tests/tolerance.h"

/* ---- convolution --------------------------------------------------------- */

typedef struct ConvCase {
    LibConv c;
    int64_t nx, nw, ny, xs, ys, taps;
    void *x, *w, *dy;
    double *y, *dx, *dw; /* references                              */
    double *y_mag, *dx_mag, *dw_mag; /* sums of magnitudes                   */
} ConvCase;

/* A convolution of images: n, channels, results, groups; then height, width,
   kernel's height and width, stride, pad.                                   */
typedef struct ConvRow {
    int64_t n, c, k, group, in[2], kernel[2], stride, pad;
} ConvRow;

int64_t conv_volume(const int64_t v[3]);
void conv_fill(ConvCase *k);
void conv_free(ConvCase *k);
void conv_call(const ConvCase *k, const AmpcCpuLib *lib, int which, int pool,
               void *out);
LibConv conv_of_row(const ConvRow *r);
void conv_check_row(const ConvRow *r);

#endif
