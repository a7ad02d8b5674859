/* SPDX-License-Identifier: Apache-2.0 */
/* simd.h: vectors of one ISA level, for the *_isa.c files only.

   Each *_isa.c is compiled once per level, with the flags of its row of isa.def
   (runtime/isa.bzl) and AMPC_ISA_LEVEL as its number, and names its external
   symbols through ISA(name).  The other .c files of this folder are compiled
   once, for the baseline.

   A fused multiply-add is written (vfma), never left to the compiler, so an
   element's bits do not depend on the code path that computed it; on v2 vfma
   is a product and a sum in every path.                                     */
#ifndef AMPC_CPU_SIMD_H
#define AMPC_CPU_SIMD_H

#include <immintrin.h>

#include "runtime/cpu/kernels.h"
#include "runtime/program/half.h"

#define INLINE static inline __attribute__((always_inline, unused))
/* For functions that are long, seldom run or slow anyway: one copy per file. */
#define OUTLINE static __attribute__((noinline, unused))

/* VL lanes of fp32 per vector; a register tile of MR rows and NV vectors. */
#if AMPC_ISA_LEVEL == 4
enum { VL = 16, MR = 8, NV = 3 };
#define ISA(name) ampc_v4_##name
#elif AMPC_ISA_LEVEL == 3
enum { VL = 8, MR = 4, NV = 3 };
#define ISA(name) ampc_v3_##name
#elif AMPC_ISA_LEVEL == 2
enum { VL = 4, MR = 4, NV = 2 };
#define ISA(name) ampc_v2_##name
#else
#error "AMPC_ISA_LEVEL must be 2, 3 or 4"
#endif
enum { NR = NV * VL };

typedef float vf __attribute__((vector_size(VL * 4)));
typedef int32_t vi __attribute__((vector_size(VL * 4)));
typedef uint32_t vu __attribute__((vector_size(VL * 4)));
typedef uint16_t vh __attribute__((vector_size(VL * 2)));
typedef vf vf_any __attribute__((aligned(1), may_alias)); /* pairs too */
typedef vu vu_any __attribute__((aligned(4), may_alias));
typedef vh vh_any __attribute__((aligned(2), may_alias));

INLINE vf vload(const float *p) { return *(const vf_any *)p; }
INLINE void vstore(float *p, vf v) { *(vf_any *)p = v; }
INLINE vf vset(float x) { return x - (vf){0}; } /* keeps -0 and NaN */

INLINE vf vfma(vf a, vf b, vf c) {
#if AMPC_ISA_LEVEL == 4
    return (vf)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif AMPC_ISA_LEVEL == 3
    return (vf)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#else
    return c + a * b;
#endif
}

/* lanes of a where `take` has all bits set, of b where it is zero */
INLINE vf vselect(vi take, vf a, vf b) {
#if AMPC_ISA_LEVEL == 3
    return (vf)_mm256_blendv_ps((__m256)b, (__m256)a, (__m256)take);
#else
    return (vf)((take & (vi)a) | (~take & (vi)b));
#endif
}

INLINE float sfma(float a, float b, float c) {
#if AMPC_ISA_LEVEL >= 3
    return __builtin_fmaf(a, b, c);
#else
    return c + a * b;
#endif
}

/* ---- 16-bit and 32-bit memory -------------------------------------------- */

/* VL of 16 bits as 32, and back what fits: conversions of vectors are compiled
   to halves and masks. */
INLINE vu vload_u16(const uint16_t *p) {
    const void *q = p;
#if AMPC_ISA_LEVEL == 4
    return (vu)_mm512_cvtepu16_epi32(_mm256_loadu_si256(q));
#elif AMPC_ISA_LEVEL == 3
    return (vu)_mm256_cvtepu16_epi32(_mm_loadu_si128(q));
#else
    return (vu)_mm_cvtepu16_epi32(_mm_loadl_epi64(q));
#endif
}

INLINE void vstore_u16(uint16_t *p, vu v) {
#if AMPC_ISA_LEVEL == 4
    _mm256_storeu_si256((void *)p, _mm512_cvtepi32_epi16((__m512i)v));
#elif AMPC_ISA_LEVEL == 3
    __m128i low = _mm256_castsi256_si128((__m256i)v);
    __m128i high = _mm256_extracti128_si256((__m256i)v, 1);
    _mm_storeu_si128((void *)p, _mm_packus_epi32(low, high));
#else
    _mm_storel_epi64((void *)p, _mm_packus_epi32((__m128i)v, (__m128i)v));
#endif
}

INLINE vf vload_bf16(const uint16_t *p) { return (vf)(vload_u16(p) << 16); }

#if AMPC_ISA_LEVEL == 2
/* half.h, lane by lane. */
OUTLINE vf vload_f16(const uint16_t *p) {
    vu h = vload_u16(p), mag = h & 0x7fffu;
    vi least = (vi)mag<0x400, most = (vi)mag> 0x7bff, nan = (vi)mag > 0x7c00;
    vf small = __builtin_convertvector((vi)mag, vf) * 0x1p-24f;
    vu u = (mag << 13) + (112u << 23) + ((vu)most & 112u << 23);
    u |= (vu)nan & 0x400000u;
    return (vf)((vu)vselect(least, small, (vf)u) | (h & 0x8000u) << 16);
}

OUTLINE void vstore_f16(uint16_t *p, vf v) {
    vu u = (vu)v, mag = u & 0x7fffffffu;
    vi least = (vi)mag < 0x38800000, most = (vi)mag >= 0x477ff000;
    vi nan = (vi)mag > 0x7f800000;
    vu small = (vu)((vf)mag + 0.5f) - 0x3f000000u;
    vu r = (mag + 0xfffu + (mag >> 13 & 1u) - (112u << 23)) >> 13;
    r = (vu)vselect(least, (vf)small, (vf)r);
    r = (vu)vselect(most, (vf)((vu){0} + 0x7c00u), (vf)r);
    r |= (vu)nan & (0x200u | (mag >> 13 & 0x3ffu));
    vstore_u16(p, r | (u >> 16 & 0x8000u));
}
#elif AMPC_ISA_LEVEL == 3
INLINE vf vload_f16(const uint16_t *p) {
    return (vf)_mm256_cvtph_ps((__m128i) * (const vh_any *)p);
}

INLINE void vstore_f16(uint16_t *p, vf v) {
    *(vh_any *)p = (vh)_mm256_cvtps_ph((__m256)v, _MM_FROUND_TO_NEAREST_INT);
}
#else
INLINE vf vload_f16(const uint16_t *p) {
    return (vf)_mm512_cvtph_ps((__m256i) * (const vh_any *)p);
}

INLINE void vstore_f16(uint16_t *p, vf v) {
    *(vh_any *)p = (vh)_mm512_cvtps_ph((__m512)v, _MM_FROUND_TO_NEAREST_INT);
}
#endif

/* Rounded, in the upper halves; the lower ones are anything. */
INLINE vu vround_bf16(vf v) {
    vu u = (vu)v, r = u + 0x7fffu + (u >> 16 & 1u);
#if AMPC_ISA_LEVEL == 4
    __mmask16 nan = _mm512_cmp_ps_mask((__m512)v, (__m512)v, _CMP_UNORD_Q);
    return (vu)_mm512_mask_set1_epi32((__m512i)r, nan, -1);
#else
    return r | (vu)(v != v);
#endif
}

INLINE void vstore_bf16(uint16_t *p, vf v) {
    vstore_u16(p, vround_bf16(v) >> 16);
}

/* Two vectors side by side: packed in half the steps. */
INLINE void vstore2_bf16(uint16_t *p, vf v, vf w) {
    vu a = vround_bf16(v), b = vround_bf16(w);
#if AMPC_ISA_LEVEL == 3
    __m256i h = _mm256_packus_epi32((__m256i)(a >> 16), (__m256i)(b >> 16));
    _mm256_storeu_si256((void *)p, _mm256_permute4x64_epi64(h, 0xd8));
#else
    vstore_u16(p, a >> 16);
    vstore_u16(p + VL, b >> 16);
#endif
}

INLINE int dtype_is16(int dtype) {
    return dtype == AMPC_F16 || dtype == AMPC_BF16;
}

INLINE int64_t dtype_size(int dtype) {
    return dtype_is16(dtype) ? 2 : dtype == AMPC_F64 ? 8 : 4;
}

INLINE const void *at(const void *p, int dtype, int64_t i) {
    return (const char *)p + i * dtype_size(dtype);
}

INLINE void *at_mut(void *p, int dtype, int64_t i) {
    return (char *)p + i * dtype_size(dtype);
}

#if AMPC_ISA_LEVEL == 2
OUTLINE float load1_f16(uint16_t h) { return f16_to_f32(h); }
OUTLINE uint16_t store1_f16(float x) { return f32_to_f16(x); }
#else
INLINE float load1_f16(uint16_t h) { return _cvtsh_ss(h); }
INLINE uint16_t store1_f16(float x) {
    return _cvtss_sh(x, _MM_FROUND_TO_NEAREST_INT);
}
#endif

/* Element i of an f32, bf16 or f16 array as fp32, and back. */
INLINE float load1(const void *p, int dtype, int64_t i) {
    if (dtype == AMPC_F32) return ((const float *)p)[i];
    uint16_t h = ((const uint16_t *)p)[i];
    if (dtype == AMPC_BF16) return bf16_to_f32(h);
    return load1_f16(h);
}

INLINE void store1(void *p, int dtype, int64_t i, float x) {
    if (dtype == AMPC_F32)
        ((float *)p)[i] = x;
    else if (dtype == AMPC_BF16)
        ((uint16_t *)p)[i] = f32_to_bf16(x);
    else
        ((uint16_t *)p)[i] = store1_f16(x);
}

INLINE vf vload_as(const void *p, int dtype, int64_t i) {
    if (dtype == AMPC_F32) return vload((const float *)p + i);
    const uint16_t *h = (const uint16_t *)p + i;
    return dtype == AMPC_BF16 ? vload_bf16(h) : vload_f16(h);
}

INLINE void vstore_as(void *p, int dtype, int64_t i, vf v) {
    if (dtype == AMPC_F32)
        vstore((float *)p + i, v);
    else if (dtype == AMPC_BF16)
        vstore_bf16((uint16_t *)p + i, v);
    else
        vstore_f16((uint16_t *)p + i, v);
}

/* The first n < VL lanes; a load sets the others to zero. */
#if AMPC_ISA_LEVEL == 4
INLINE vf vload_mask(const void *p, int dtype, int64_t i, uint32_t mask) {
    __mmask16 m = (__mmask16)mask;
    const void *q = at(p, dtype, i);
    if (dtype == AMPC_F32) return (vf)_mm512_maskz_loadu_ps(m, q);
    __m256i h = _mm256_maskz_loadu_epi16(m, q);
    if (dtype == AMPC_F16) return (vf)_mm512_cvtph_ps(h);
    return (vf)_mm512_slli_epi32(_mm512_cvtepu16_epi32(h), 16);
}

INLINE vf vload_n(const void *p, int dtype, int64_t i, int64_t n) {
    return vload_mask(p, dtype, i, (1u << n) - 1);
}

INLINE void vstore_n(void *p, int dtype, int64_t i, vf v, int64_t n) {
    __mmask16 m = (__mmask16)((1u << n) - 1);
    if (dtype == AMPC_F32) {
        _mm512_mask_storeu_ps(at_mut(p, dtype, i), m, (__m512)v);
        return;
    }
    vh h;
    if (dtype == AMPC_BF16)
        vstore_bf16((uint16_t *)&h, v);
    else
        vstore_f16((uint16_t *)&h, v);
    _mm256_mask_storeu_epi16(at_mut(p, dtype, i), m, (__m256i)h);
}
#else
INLINE vf vload_n(const void *p, int dtype, int64_t i, int64_t n) {
    if (dtype != AMPC_F32) { /* the lanes are moved in pieces of 4, 2 and 1 */
        const uint16_t *q = (const uint16_t *)p + i;
        uint16_t h[VL] = {0};
        int64_t j = n & 4;
        if (VL > 4 && j) memcpy(h, q, 8);
        if (n & 2) memcpy(h + j, q + j, 4);
        j += n & 2;
        if (n & 1) h[j] = q[j];
        return dtype == AMPC_BF16 ? vload_bf16(h) : vload_f16(h);
    }
    vf v = {0};
    for (int64_t j = 0; j < n; j++) v[j] = load1(p, dtype, i + j);
    return v;
}

INLINE void vstore_n(void *p, int dtype, int64_t i, vf v, int64_t n) {
    if (dtype != AMPC_F32) {
        uint16_t *q = (uint16_t *)p + i, h[VL];
        vstore_as(h, dtype, 0, v);
        int64_t j = n & 4;
        if (VL > 4 && j) memcpy(q, h, 8);
        if (n & 2) memcpy(q + j, h + j, 4);
        j += n & 2;
        if (n & 1) q[j] = h[j];
        return;
    }
    for (int64_t j = 0; j < n; j++) store1(p, dtype, i + j, v[j]);
}
#endif

INLINE void widen_as(float *dst, const void *src, int dtype, int64_t i,
                     int64_t n) {
    int64_t j = 0;
    for (; j + VL <= n; j += VL) vstore(dst + j, vload_as(src, dtype, i + j));
    if (j == n) return;
    if (n >= VL) /* the last vector may overlap the one before */
        vstore(dst + n - VL, vload_as(src, dtype, i + n - VL));
    else
        vstore_n(dst, AMPC_F32, 0, vload_n(src, dtype, i, n), n);
}

/* dst[0, n) = src[i, i + n) as fp32. */
INLINE void widen(float *dst, const void *src, int dtype, int64_t i,
                  int64_t n) {
    if (dtype == AMPC_F32)
        widen_as(dst, src, AMPC_F32, i, n);
    else if (dtype == AMPC_BF16)
        widen_as(dst, src, AMPC_BF16, i, n);
    else
        widen_as(dst, src, AMPC_F16, i, n);
}

INLINE void narrow_as(void *dst, int dtype, int64_t i, const float *src,
                      int64_t n) {
    int64_t j = 0;
    for (; dtype == AMPC_BF16 && j + 2 * VL <= n; j += 2 * VL)
        vstore2_bf16((uint16_t *)dst + i + j, vload(src + j),
                     vload(src + j + VL));
    for (; j + VL <= n; j += VL) vstore_as(dst, dtype, i + j, vload(src + j));
    if (j == n) return;
    if (n >= VL)
        vstore_as(dst, dtype, i + n - VL, vload(src + n - VL));
    else
        vstore_n(dst, dtype, i, vload_n(src, AMPC_F32, 0, n), n);
}

INLINE void narrow_rows_as(void *dst, int dtype, int64_t i, int64_t next,
                           const float *src, int64_t ld, int64_t rows,
                           int64_t n) {
    for (int64_t r = 0; r < rows; r++)
        narrow_as(dst, dtype, i + r * next, src + r * ld, n);
}

/* dst[i + r * next, .. + n) = src[r * ld, .. + n) for r < rows. */
INLINE void narrow_rows(void *dst, int dtype, int64_t i, int64_t next,
                        const float *src, int64_t ld, int64_t rows, int64_t n) {
    if (dtype == AMPC_F32)
        narrow_rows_as(dst, AMPC_F32, i, next, src, ld, rows, n);
    else if (dtype == AMPC_BF16)
        narrow_rows_as(dst, AMPC_BF16, i, next, src, ld, rows, n);
    else
        narrow_rows_as(dst, AMPC_F16, i, next, src, ld, rows, n);
}

/* dst[i, i + n) = src[0, n). */
INLINE void narrow(void *dst, int dtype, int64_t i, const float *src,
                   int64_t n) {
    narrow_rows(dst, dtype, i, 0, src, 0, 1, n);
}

/* An integer of any width. */
INLINE int64_t integer_at(const void *x, int dtype, int64_t i) {
    switch (dtype) {
    case AMPC_U8: return ((const uint8_t *)x)[i];
    case AMPC_I8: return ((const int8_t *)x)[i];
    case AMPC_U16: return ((const uint16_t *)x)[i];
    case AMPC_I16: return ((const int16_t *)x)[i];
    case AMPC_U32: return ((const uint32_t *)x)[i];
    case AMPC_I32: return ((const int32_t *)x)[i];
    default: return ((const int64_t *)x)[i]; /* u64 too */
    }
}

#endif
