/* SPDX-License-Identifier: Apache-2.0 */
/* cpu_kernels_test.c: the CPU routines against naive references in double, over
   random shapes, strides and dtypes, at every ISA level this machine has; the
   same bits for 1, 2 and 5 threads; scratch memory stays within its bounds.
   Convolution and pooling are in cpu_conv_test.c. */
#define _POSIX_C_SOURCE 200809L
#include <float.h>
#include <math.h>
#include <string.h>

#include "runtime/cpu/kmath.h"
#include "tests/harness.h"
#include "tests/runtime/cpu_kernels/cpu_kernels.h"
#include "tests/support/cpu_cases.h"

/* ---- half.h -------------------------------------------------------------- */

float bits_float(uint32_t u) {
    float f;
    memcpy(&f, &u, sizeof f);
    return f;
}

TEST_CASE(half, every_16_bit_value_survives_the_round_trip) {
    for (uint32_t h = 0; h < 65536; h++) {
        float b = bf16_to_f32((uint16_t)h), f = f16_to_f32((uint16_t)h);
        if (!isnan(b)) CHECK(f32_to_bf16(b) == h);
        if (!isnan(f)) CHECK(f32_to_f16(f) == h);
        if (isnan(b)) CHECK(isnan(bf16_to_f32(f32_to_bf16(b))));
        if (isnan(f)) CHECK(isnan(f16_to_f32(f32_to_f16(f))));
    }
}

/* The nearest of two neighbours; ties go to the even one. */
static uint16_t nearest(double x, uint16_t lo, double vlo, double vhi) {
    double below = fabs(x - vlo), above = fabs(vhi - x);
    if (below != above) return below < above ? lo : (uint16_t)(lo + 1);
    return lo & 1 ? (uint16_t)(lo + 1) : lo;
}

TEST_CASE(half, narrowing_rounds_to_nearest_even) {
    rng = 7;
    for (int i = 0; i < 200000; i++) {
        uint16_t lo = (uint16_t)(rnd() % 0x7bff);
        double a = (double)f16_to_f32(lo);
        double b = (double)f16_to_f32((uint16_t)(lo + 1));
        double part = i % 3 == 0 ? 0.5 : (double)rnd_in(0, 1 << 12) / (1 << 12);
        double x = a + (b - a) * part;
        uint16_t want = nearest(x, lo, a, b);
        if (!CHECK_EQ_INT(f32_to_f16((float)x), want)) return;
        CHECK_EQ_INT(f32_to_f16((float)-x), want | 0x8000);
        lo = (uint16_t)(rnd() % 0x7f7e);
        a = (double)bf16_to_f32(lo);
        b = (double)bf16_to_f32((uint16_t)(lo + 1));
        x = a + (b - a) * part;
        if (!CHECK_EQ_INT(f32_to_bf16((float)x), nearest(x, lo, a, b))) return;
    }
    CHECK_EQ_INT(f32_to_f16(65519.996f), 0x7bff);
    CHECK_EQ_INT(f32_to_f16(65520.0f), 0x7c00);
    CHECK_EQ_INT(f32_to_bf16(FLT_MAX), 0x7f80);
    CHECK(isnan(bf16_to_f32(f32_to_bf16(bits_float(0x7f800001)))));
    CHECK(isnan(f16_to_f32(f32_to_f16(bits_float(0xff800001)))));
}
