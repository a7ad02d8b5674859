/* SPDX-License-Identifier: Apache-2.0 */
/* kmath_narrow.h: the part of kmath.h that converts numbers of 16 and 8
   bits one by one; kmath_arrays.h converts whole arrays. */
#ifndef AMPC_KMATH_NARROW_H
#define AMPC_KMATH_NARROW_H

/* ---- 16-bit floats: nearest even, overflow to infinity, NaN stays NaN ---- */

KM_INLINE float BF16_TO_F32(uint16_t h) { return km_float((uint32_t)h << 16); }

#if defined KM_GPU && defined __CUDACC_RTC__
/* One instruction each; the same values, except the bits of NaN. */
KM_INLINE uint16_t F32_TO_BF16(float f) {
#ifndef KM_GPU_8
    uint32_t u = km_bits(f), nan = 0u - (uint32_t)(f != f);
    return (uint16_t)(((u + 0x7fffu + (u >> 16 & 1u)) | nan) >> 16);
#else
    uint16_t h;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(h) : "f"(f));
    return h;
#endif
}
KM_INLINE uint16_t F32_TO_F16(float f) {
    uint16_t h;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(h) : "f"(f));
    return h;
}
KM_INLINE float F16_TO_F32(uint16_t h) {
    float f;
    asm("cvt.f32.f16 %0, %1;" : "=f"(f) : "h"(h));
    return f;
}
KM_INLINE float ROUND_BF16(float f) { return BF16_TO_F32(F32_TO_BF16(f)); }
KM_INLINE uint16_t EXACT_BF16(float f) { return (uint16_t)(km_bits(f) >> 16); }
KM_INLINE float ROUND_F16(float f) { return F16_TO_F32(F32_TO_F16(f)); }
KM_INLINE uint16_t EXACT_F16(float f) { return F32_TO_F16(f); }
#else
/* A mask selects NaN and sets all its bits: gcc would merge a select with
   neighbouring selects and duplicate the code after them. */
KM_INLINE float ROUND_BF16(float f) {
    uint32_t u = km_bits(f), nan = 0u - (uint32_t)(f != f);
    return km_float(((u + 0x7fffu + (u >> 16 & 1u)) | nan) & 0xffff0000u);
}

/* f must be a value of the 16-bit format */
KM_INLINE uint16_t EXACT_BF16(float f) { return (uint16_t)(km_bits(f) >> 16); }
KM_INLINE uint16_t F32_TO_BF16(float f) { return EXACT_BF16(ROUND_BF16(f)); }

/* Floats are compared with floats, which gives masks of the right width. */
KM_INLINE float F16_TO_F32(uint16_t h) {
    uint32_t mag = h & 0x7fffu, sign = (uint32_t)h << 16 & 0x80000000u;
    float normal = km_float((mag << 13) + (112u << 23)), r;
    /* subnormal: treated as if it had a leading one, which is then
       subtracted */
    float tiny = km_float(km_bits(normal) + (1u << 23)) - 0x1p-14f;
    float special = km_float(km_bits(normal) + (112u << 23));
    r = normal < 0x1p-14f ? tiny : normal;
    r = normal >= 0x1p16f ? special : r; /* infinity, NaN */
    return km_float(km_bits(r) | sign);
}

/* Adding and subtracting 2^13 times the power of two below f rounds f to the
   format's last bit; below 2^-14, to that of subnormal numbers. */
KM_INLINE float ROUND_F16(float f) {
    uint32_t u = km_bits(f), mag = u & 0x7fffffffu;
    int32_t e = (int32_t)(u & 0x7f800000u), least = 113 << 23;
    float a = km_float(mag);
    float by = km_float((uint32_t)(e > least ? e : least) + (13u << 23));
    float r = (a + by) - by;
    r = a >= 65520.0f ? INFINITY : r;
    return km_float(km_bits(r) | (u & 0x80000000u));
}

KM_INLINE uint16_t EXACT_F16(float f) {
    uint32_t u = km_bits(f), mag = u & 0x7fffffffu, r;
    float a = km_float(mag);
    uint32_t tiny = km_bits(a + 0.5f) - 0x3f000000u;
    r = a < 0x1p-14f ? tiny : (mag - (112u << 23)) >> 13;
    r = a < INFINITY ? r : (mag >> 13 & 0x3ffu) | 0x7c00u;
    return (uint16_t)(r | (u >> 16 & 0x8000u));
}

KM_INLINE uint16_t F32_TO_F16(float f) { return EXACT_F16(ROUND_F16(f)); }
#endif

/* ---- 8-bit floats: see runtime/program/half.h ---------------------------- */

/* Less its last exponent, f8e4m3 is f16 of 256 times less; f8e5m2 is the upper
   half of f16. */
KM_INLINE float F8E5M2_TO_F32(uint8_t h) {
    return F16_TO_F32((uint16_t)((uint32_t)h << 8));
}

#ifdef KM_GPU_89
/* The same values, except the bits of NaN: the instructions make the largest
   number of what exceeds it, which is NaN or infinity here. */
KM_INLINE float F8E4M3_TO_F32(uint8_t h) {
    uint32_t two;
    asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(two) : "h"((uint16_t)h));
    return F16_TO_F32((uint16_t)two);
}
KM_INLINE uint8_t F32_TO_F8E4M3(float f) {
    uint16_t two;
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;"
        : "=h"(two)
        : "f"(0.0f), "f"(f));
    bool over = km_float(km_bits(f) & 0x7fffffffu) > 464.0f;
    return over ? 0x7f : (uint8_t)two;
}
KM_INLINE uint8_t F32_TO_F8E5M2(float f) {
    uint16_t two;
    uint32_t u = km_bits(f);
    asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;"
        : "=h"(two)
        : "f"(0.0f), "f"(f));
    bool over = km_float(u & 0x7fffffffu) > 61439.996f;
    return over ? (uint8_t)(0x7cu | (u >> 24 & 0x80u)) : (uint8_t)two;
}
KM_INLINE float ROUND_F8E4M3(float f) {
    return F8E4M3_TO_F32(F32_TO_F8E4M3(f));
}
KM_INLINE float ROUND_F8E5M2(float f) {
    return F8E5M2_TO_F32(F32_TO_F8E5M2(f));
}
KM_INLINE uint8_t EXACT_F8E4M3(float f) { return F32_TO_F8E4M3(f); }
KM_INLINE uint8_t EXACT_F8E5M2(float f) { return F32_TO_F8E5M2(f); }
#else
KM_INLINE float F8E4M3_TO_F32(uint8_t h) {
    uint32_t u = h;
    float r = F16_TO_F32((uint16_t)((u & 0x80u) << 8 | (u & 0x7fu) << 7)) * 256;
    return (u & 0x7fu) == 0x7fu ? NAN : r;
}

/* As ROUND_F16, for exponents from `least` on and `stored` bits; what exceeds
   `most` becomes `over`. */
KM_INLINE float km_round8(float f, int stored, int least, float most,
                          float over) {
    uint32_t u = km_bits(f);
    int32_t e = (int32_t)(u & 0x7f800000u), low = (127 + least) << 23;
    float a = km_float(u & 0x7fffffffu);
    float by = km_float((uint32_t)(e > low ? e : low) +
                        ((uint32_t)(23 - stored) << 23));
    float r = (a + by) - by;
    r = a > most ? over : r;
    return km_float(km_bits(r) | (u & 0x80000000u));
}

/* f must be a value of the format */
KM_INLINE uint8_t km_exact8(float f, int stored, int least, uint32_t inf) {
    uint32_t u = km_bits(f), mag = u & 0x7fffffffu, r;
    uint32_t big = (uint32_t)(127 + least + 23 - stored) << 23;
    float a = km_float(mag);
    uint32_t tiny = km_bits(a + km_float(big)) - big;
    r = a < km_float((uint32_t)(127 + least) << 23)
            ? tiny
            : (mag - ((uint32_t)(126 + least) << 23)) >> (23 - stored);
    r = a < INFINITY ? r : a == INFINITY ? inf : 0x7fu;
    return (uint8_t)(r | (u >> 24 & 0x80u));
}

KM_INLINE float ROUND_F8E4M3(float f) {
    return km_round8(f, 3, -6, 464.0f, NAN);
}
KM_INLINE uint8_t EXACT_F8E4M3(float f) { return km_exact8(f, 3, -6, 0x7f); }
KM_INLINE uint8_t F32_TO_F8E4M3(float f) {
    return EXACT_F8E4M3(ROUND_F8E4M3(f));
}

KM_INLINE float ROUND_F8E5M2(float f) {
    return km_round8(f, 2, -14, 61439.996f, INFINITY);
}
KM_INLINE uint8_t EXACT_F8E5M2(float f) { return km_exact8(f, 2, -14, 0x7c); }
KM_INLINE uint8_t F32_TO_F8E5M2(float f) {
    return EXACT_F8E5M2(ROUND_F8E5M2(f));
}
#endif

KM_INLINE float E8M0_TO_F32(uint8_t h) {
    uint32_t u = (uint32_t)h << 23;
    u = h == 0 ? 0x400000u : u; /* 2^-127 is subnormal */
    return km_float(h == 0xff ? 0x7fc00000u : u);
}
KM_INLINE uint8_t EXACT_E8M0(float f) {
    uint32_t mag = km_bits(f) & 0x7fffffffu, r = (mag + 0x400000u) >> 23;
    r = mag < 0x800000u ? (uint32_t)(mag > 0x400000u) : r;
    return (uint8_t)(mag > 0x7f800000u ? 0xffu : r);
}
KM_INLINE uint8_t F32_TO_E8M0(float f) { return EXACT_E8M0(f); }
KM_INLINE float ROUND_E8M0(float f) { return E8M0_TO_F32(EXACT_E8M0(f)); }

#endif
