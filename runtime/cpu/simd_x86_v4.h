/* SPDX-License-Identifier: Apache-2.0 */
/* simd_x86_v4.h: vectors of x86-64-v4 (AVX-512, pairs of bf16, AMX): see
 * simd.h. */
#ifndef AMPC_CPU_SIMD_X86_V4_H
#define AMPC_CPU_SIMD_X86_V4_H

#ifdef SIMD_WANTS_DOT
#pragma GCC target("avx512bf16") /* for pairs only; plain C code never         \
                                    includes it */
#endif

#include <immintrin.h>

#include "runtime/cpu/kernels.h" /* before ISA, which reads isa.def */

#define ISA(name) ampc_v4_##name
#define ISA_LEVEL AMPC_ISA_V4

#define SIMD_LANES    16
#define SIMD_ROWS     8
#define SIMD_VECTORS  3
#define SIMD_DOT_ROWS 4
#define SIMD_DOT_COLS 6
#define HAS_FMA       1
#define HAS_F16       1
#define HAS_MASK      1
#define HAS_DOT       1
#define HAS_SSE       1
#define HAS_TILES     1

#define SIMD_STEPS
#define SIMD_FETCHES  1
#define SIMD_REGISTER "+v"

#include "runtime/cpu/simd_types.h"
#include "runtime/cpu/simd_x86.h"

INLINE vf vfma(vf a, vf b, vf c) {
    return (vf)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
}

INLINE vf vselect(vi take, vf a, vf b) {
    return (vf)((take & (vi)a) | (~take & (vi)b));
}

INLINE vu vload_u16(const uint16_t *p) {
    const void *q = p;
    return (vu)_mm512_cvtepu16_epi32(_mm256_loadu_si256(q));
}

INLINE void vstore_u16(uint16_t *p, vu v) {
    _mm256_storeu_si256((void *)p, _mm512_cvtepi32_epi16((__m512i)v));
}

INLINE vf vload_f16(const uint16_t *p) {
    return (vf)_mm512_cvtph_ps((__m256i) * (const vh_any *)p);
}

INLINE void vstore_f16(uint16_t *p, vf v) {
    *(vh_any *)p = (vh)_mm512_cvtps_ph((__m512)v, _MM_FROUND_TO_NEAREST_INT);
}

INLINE vu vround_bf16(vf v) {
    vu u = (vu)v, r = u + 0x7fffu + (u >> 16 & 1u);
    __mmask16 nan = _mm512_cmp_ps_mask((__m512)v, (__m512)v, _CMP_UNORD_Q);
    return (vu)_mm512_mask_set1_epi32((__m512i)r, nan, -1);
}

INLINE void vstore2_bf16(uint16_t *p, vf v, vf w) {
    vu a = vround_bf16(v), b = vround_bf16(w);
    vstore_u16(p, a >> 16);
    vstore_u16(p + VL, b >> 16);
}

INLINE float load1_f16(uint16_t h) { return _cvtsh_ss(h); }
INLINE uint16_t store1_f16(float x) {
    return _cvtss_sh(x, _MM_FROUND_TO_NEAREST_INT);
}

INLINE float vsum(vf v) { return _mm512_reduce_add_ps((__m512)v); }

INLINE __m128 vfold(vf v) {
    __m256 h = _mm256_add_ps(_mm512_castps512_ps256((__m512)v),
                             _mm512_extractf32x8_ps((__m512)v, 1));
    return _mm_add_ps(_mm256_castps256_ps128(h), _mm256_extractf128_ps(h, 1));
}

INLINE void vsum4(float *to, vf a, vf b, vf c, vf d) {
    x86_sum4(to, vfold(a), vfold(b), vfold(c), vfold(d));
}

INLINE vi vload_i8(const int8_t *p, int64_t n) {
    __m128i b = n >= VL ? _mm_loadu_si128((const __m128i *)p)
                        : _mm_maskz_loadu_epi8((__mmask16)((1u << n) - 1), p);
    return (vi)_mm512_cvtepi8_epi32(b);
}

INLINE void vtake(vf v, vi tap, vf *m, vi *w) {
    __mmask16 take = _mm512_cmp_ps_mask((__m512)*m, (__m512)*m, _CMP_ORD_Q);
    take = _mm512_mask_cmp_ps_mask(take, (__m512)v, (__m512)*m, _CMP_NLE_UQ);
    *m = (vf)_mm512_mask_mov_ps((__m512)*m, take, (__m512)v);
    *w = (vi)_mm512_mask_mov_epi32((__m512i)*w, take, (__m512i)tap);
}

INLINE vf vgreater(vf a, vf b) {
    __mmask16 number = _mm512_cmp_ps_mask((__m512)a, (__m512)a, _CMP_ORD_Q);
    return (vf)_mm512_mask_max_ps((__m512)a, number, (__m512)a, (__m512)b);
}

/* ---- pairs of bf16 ------------------------------------------------------- */

INLINE vf vload_pairs_mask(const uint16_t *p, uint32_t mask) {
    return (vf)_mm512_maskz_loadu_epi16(mask, p);
}

INLINE vf vload_pairs(const uint16_t *p, int64_t n) {
    return vload_pairs_mask(p, n < 2 * VL ? (1u << n) - 1 : ~0u);
}

#ifdef SIMD_WANTS_DOT
INLINE vf vdot(vf a, vf b, vf c) {
    return (vf)_mm512_dpbf16_ps((__m512)c, (__m512bh)a, (__m512bh)b);
}

INLINE vf vpairs(vf even, vf odd) {
    static const uint16_t weave[32] = {
        0, 16, 1, 17, 2,  18, 3,  19, 4,  20, 5,  21, 6,  22, 7,  23,
        8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31};
    __m512i both = (__m512i)_mm512_cvtne2ps_pbh((__m512)odd, (__m512)even);
    return (vf)_mm512_permutexvar_epi16(_mm512_loadu_si512(weave), both);
}

INLINE void vstore2_dot(uint16_t *p, vf v, vf w) {
    _mm512_storeu_si512(p, (__m512i)_mm512_cvtne2ps_pbh((__m512)w, (__m512)v));
}

INLINE void vstore_dot(uint16_t *p, vf v, int64_t n) {
    __mmask16 m = (__mmask16)(n < VL ? (1u << n) - 1 : 0xffffu);
    _mm256_mask_storeu_epi16(p, m, (__m256i)_mm512_cvtneps_pbh((__m512)v));
}
#endif

/* ---- masked lanes -------------------------------------------------------- */

INLINE vu vload_u16_mask(const uint16_t *p, uint32_t mask) {
    return (vu)_mm512_cvtepu16_epi32(
        _mm256_maskz_loadu_epi16((__mmask16)mask, p));
}

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
        vstore_u16((uint16_t *)&h, vround_bf16(v) >> 16);
    else
        vstore_f16((uint16_t *)&h, v);
    _mm256_mask_storeu_epi16(at_mut(p, dtype, i), m, (__m256i)h);
}

#endif
