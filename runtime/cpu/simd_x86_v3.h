/* SPDX-License-Identifier: Apache-2.0 */
/* simd_x86_v3.h: vectors of x86-64-v3 (AVX2, FMA, F16C): see simd.h. */
#ifndef AMPC_CPU_SIMD_X86_V3_H
#define AMPC_CPU_SIMD_X86_V3_H

#include <immintrin.h>

#include "runtime/cpu/kernels.h" /* before ISA, which reads isa.def */

#define ISA(name) ampc_v3_##name
#define ISA_LEVEL AMPC_ISA_V3

#define SIMD_LANES    8
#define SIMD_ROWS     4
#define SIMD_VECTORS  3
#define SIMD_DOT_ROWS 3
#define SIMD_DOT_COLS 4
#define HAS_FMA       1
#define HAS_F16       1
#define HAS_MASK      0
#define HAS_DOT       0
#define HAS_SSE       1
#define HAS_TILES     0

/* Steps of 12 multiply-adds leave no time for separate prefetches on a core
   that two threads share. */
#define SIMD_STEPS    _Pragma("GCC unroll 4")
#define SIMD_FETCHES  0
#define SIMD_REGISTER "+x"

#include "runtime/cpu/simd_types.h"
#include "runtime/cpu/simd_x86.h"

INLINE vf vfma(vf a, vf b, vf c) {
    return (vf)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
}

INLINE vf vselect(vi take, vf a, vf b) {
    return (vf)_mm256_blendv_ps((__m256)b, (__m256)a, (__m256)take);
}

INLINE vu vload_u16(const uint16_t *p) {
    const void *q = p;
    return (vu)_mm256_cvtepu16_epi32(_mm_loadu_si128(q));
}

INLINE void vstore_u16(uint16_t *p, vu v) {
    __m128i low = _mm256_castsi256_si128((__m256i)v);
    __m128i high = _mm256_extracti128_si256((__m256i)v, 1);
    _mm_storeu_si128((void *)p, _mm_packus_epi32(low, high));
}

INLINE vf vload_f16(const uint16_t *p) {
    return (vf)_mm256_cvtph_ps((__m128i) * (const vh_any *)p);
}

INLINE void vstore_f16(uint16_t *p, vf v) {
    *(vh_any *)p = (vh)_mm256_cvtps_ph((__m256)v, _MM_FROUND_TO_NEAREST_INT);
}

INLINE vu vround_bf16(vf v) {
    vu u = (vu)v, r = u + 0x7fffu + (u >> 16 & 1u);
    return r | (vu)(v != v);
}

/* Packing halves the number of steps. */
INLINE void vstore2_bf16(uint16_t *p, vf v, vf w) {
    vu a = vround_bf16(v), b = vround_bf16(w);
    __m256i h = _mm256_packus_epi32((__m256i)(a >> 16), (__m256i)(b >> 16));
    _mm256_storeu_si256((void *)p, _mm256_permute4x64_epi64(h, 0xd8));
}

INLINE float load1_f16(uint16_t h) { return _cvtsh_ss(h); }
INLINE uint16_t store1_f16(float x) {
    return _cvtss_sh(x, _MM_FROUND_TO_NEAREST_INT);
}

INLINE __m128 vfold(vf v) {
    return _mm_add_ps(_mm256_castps256_ps128((__m256)v),
                      _mm256_extractf128_ps((__m256)v, 1));
}

INLINE float vsum(vf v) { return x86_sum(vfold(v)); }

INLINE void vsum4(float *to, vf a, vf b, vf c, vf d) {
    x86_sum4(to, vfold(a), vfold(b), vfold(c), vfold(d));
}

INLINE vi vload_i8(const int8_t *p, int64_t n) {
    return (vi)_mm256_cvtepi8_epi32(x86_bytes(p, n));
}

INLINE void vtake(vf v, vi tap, vf *m, vi *w) {
    vi take = (*m == *m) & ~(v <= *m);
    *m = vselect(take, v, *m);
    *w = (vi)vselect(take, (vf)tap, (vf)*w);
}

INLINE vf vgreater(vf a, vf b) { /* max: returns b if one operand is NaN */
    return vselect(a != a, a, (vf)_mm256_max_ps((__m256)a, (__m256)b));
}

#endif
