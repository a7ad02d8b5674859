/* SPDX-License-Identifier: Apache-2.0 */
/* half.h: bf16 and f16 to fp32 and back, scalar.

   Narrowing rounds to nearest even and overflows to infinity; NaN stays NaN: in
   f16 it is quiet and keeps its sign and upper payload bits, in bf16 all its
   bits are set, which takes vector code the fewest steps.  Widening is
   exact. */
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

#endif
