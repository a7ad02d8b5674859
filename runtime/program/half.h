/* SPDX-License-Identifier: Apache-2.0 */
/* half.h: low types to fp32 and back, scalar.

   Narrowing rounds to nearest even and overflows to infinity; NaN stays NaN: in
   f16 it becomes quiet and keeps its sign and upper payload bits, in bf16 all
   its bits are set, which takes vector code the fewest steps. Widening is
   exact.

   f8e4m3 has no infinity: NaN is what overflows. NaN is 0x7f or 0xff. e8m0 is
   2^(code - 127), has neither a sign nor a zero, and 255 is NaN: the sign is
   dropped, zero becomes 2^-127, the middle between two powers the larger, and
   all between 2^-127 and 2^-126 the larger, as PyTorch and ONNX have it. */
#ifndef AMPC_HALF_H
#define AMPC_HALF_H

#include <stdint.h>
#include <string.h>

static inline uint32_t half_bits(float f) {
    uint32_t u;
    memcpy(&u, &f, sizeof u);
    return u;
}

static inline float half_float(uint32_t u) {
    float f;
    memcpy(&f, &u, sizeof f);
    return f;
}

static inline float bf16_to_f32(uint16_t h) {
    return half_float((uint32_t)h << 16);
}

static inline uint16_t f32_to_bf16(float f) {
    uint32_t u = half_bits(f);
    if ((u & 0x7fffffffu) > 0x7f800000u) return 0xffff;
    return (uint16_t)((u + 0x7fffu + (u >> 16 & 1u)) >> 16);
}

static inline float f16_to_f32(uint16_t h) {
    uint32_t sign = (uint32_t)(h & 0x8000u) << 16;
    uint32_t mag = h & 0x7fffu;
    if (mag >= 0x7c00u) { /* infinity or NaN */
        uint32_t quiet = mag > 0x7c00u ? 0x400000u : 0;
        return half_float(sign | 0x7f800000u | (mag & 0x3ffu) << 13 | quiet);
    }
    if (mag >= 0x0400u) return half_float(sign | ((mag << 13) + (112u << 23)));
    /* subnormal: mag * 2^-24 is exact in fp32 */
    return half_float(half_bits((float)mag * 0x1p-24f) | sign);
}

static inline uint16_t f32_to_f16(float f) {
    uint32_t u = half_bits(f);
    uint16_t sign = (uint16_t)(u >> 16 & 0x8000u);
    uint32_t mag = u & 0x7fffffffu;
    if (mag > 0x7f800000u)
        return (uint16_t)(sign | 0x7e00u | (mag >> 13 & 0x3ffu));
    if (mag >= 0x477ff000u) return (uint16_t)(sign | 0x7c00u); /* >= 65520 */
    if (mag < 0x38800000u) { /* below 2^-14: the sum's ulp is 2^-24 */
        uint32_t r = half_bits(half_float(mag) + 0.5f) - 0x3f000000u;
        return (uint16_t)(sign | r);
    }
    mag += 0xfffu + (mag >> 13 & 1u);
    return (uint16_t)(sign | (mag - (112u << 23)) >> 13);
}

/* ---- 8 bits: a sign, exponents from `least` on, `stored` bits -------------
 */

/* over: the code of what overflows. */
static inline uint8_t f8_round(float f, int stored, int least, uint32_t over) {
    uint32_t u = half_bits(f), sign = u >> 24 & 0x80u, mag = u & 0x7fffffffu;
    int shift = 23 - stored;
    if (mag > 0x7f800000u) return (uint8_t)(sign | 0x7fu);
    if (mag < (uint32_t)(127 + least) << 23) { /* the sum's ulp is the least */
        uint32_t big = (uint32_t)(127 + least + shift) << 23;
        mag = half_bits(half_float(mag) + half_float(big)) - big;
    } else {
        mag += (1u << (shift - 1)) - 1 + (mag >> shift & 1u);
        mag = (mag >> shift) - ((uint32_t)(126 + least) << stored);
    }
    return (uint8_t)(sign | (mag < over ? mag : over));
}

static inline uint8_t f32_to_f8e4m3(float f) {
    return f8_round(f, 3, -6, 0x7f);
}

static inline uint8_t f32_to_f8e5m2(float f) {
    return f8_round(f, 2, -14, 0x7c);
}

/* Less its last exponent, f8e4m3 is f16 of 256 times less. */
static inline float f8e4m3_to_f32(uint8_t h) {
    uint32_t sign = (uint32_t)h << 8 & 0x8000u, mag = h & 0x7fu;
    if (mag == 0x7f) return half_float(sign << 16 | 0x7fc00000u);
    return f16_to_f32((uint16_t)(sign | mag << 7)) * 256;
}

/* The upper half of f16. */
static inline float f8e5m2_to_f32(uint8_t h) {
    return f16_to_f32((uint16_t)(h << 8));
}

static inline uint8_t f32_to_e8m0(float f) {
    uint32_t mag = half_bits(f) & 0x7fffffffu;
    if (mag < 0x800000u) return mag > 0x400000u;
    if (mag > 0x7f800000u) return 0xff;
    return (uint8_t)((mag + 0x400000u) >> 23);
}

static inline float e8m0_to_f32(uint8_t h) {
    if (h == 0xff) return half_float(0x7fc00000u);
    return half_float(h ? (uint32_t)h << 23 : 0x400000u);
}

#endif
