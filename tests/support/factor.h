/* SPDX-License-Identifier: Apache-2.0 */
/* factor.h: fp32 operands as --matmul-precision rounds them, by definition. */
#ifndef AMPC_TESTS_SUPPORT_FACTOR_H
#define AMPC_TESTS_SUPPORT_FACTOR_H

#include <math.h>

#include "runtime/program/dtype.h"

/* Nearest; ties of TF32 away from zero, of bf16 to even. The fraction of frexp
   is below 1: in units of 2^-11 it has TF32's 11 significant bits. */
static inline double factor_of(AmpcFactors f, double x) {
    int exponent;
    double fraction = frexp(x, &exponent);
    if (f == AMPC_FACTORS_F32) return x;
    if (f == AMPC_FACTORS_BF16)
        return (double)bf16_to_f32(f32_to_bf16((float)x));
    return ldexp(round(ldexp(fraction, 11)), exponent - 11);
}

#endif
