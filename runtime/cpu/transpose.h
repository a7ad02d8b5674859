/* SPDX-License-Identifier: Apache-2.0 */
/* transpose.h: transposes blocks of TB x TB elements, 16-bit elements are
   widened; adds up columns. */
#ifndef AMPC_CPU_TRANSPOSE_H
#define AMPC_CPU_TRANSPOSE_H

#include "runtime/cpu/simd.h"
#include "runtime/program/lib.h"

#ifdef AMPC_PLAIN
typedef vf v4;

INLINE v4 load_v4(const void *p, int dtype) { return vload_as(p, dtype, 0); }
INLINE void store_v4(float *p, v4 v) { vstore(p, v); }
INLINE v4 lower_v4(v4 v) { return vu_as_f(vu_right(vf_as_u(v), 16)); }
INLINE v4 join_v4(v4 a, v4 b) { return vu_as_f(vu_or(vf_as_u(a), vf_as_u(b))); }

INLINE void transpose_registers4(v4 r[4]) {
    for (int i = 0; i < 4; i++)
        for (int j = 0; j < i; j++) {
            float x = LANE(r[i], j);
            LANE(r[i], j) = LANE(r[j], i);
            LANE(r[j], i) = x;
        }
}
#else
typedef float v4 __attribute__((vector_size(16)));
typedef v4 v4_any __attribute__((aligned(1), may_alias));
typedef uint32_t u4 __attribute__((vector_size(16)));

INLINE v4 load_v4(const void *p, int dtype) {
    if (dtype == AMPC_F32) return *(const v4_any *)p;
    const uint16_t *h = p;
#if HAS_SSE
    if (dtype == AMPC_BF16)
        return (v4)_mm_slli_epi32(_mm_cvtepu16_epi32(_mm_loadl_epi64(p)), 16);
#else
    if (dtype == AMPC_BF16) return (v4)((u4){h[0], h[1], h[2], h[3]} << 16);
#endif
#if HAS_F16 && HAS_SSE
    return (v4)_mm_cvtph_ps(_mm_loadl_epi64((const __m128i *)(const void *)h));
#elif HAS_F16
    return vload_f16(h);
#else
    return (v4){f16_to_f32(h[0]), f16_to_f32(h[1]), f16_to_f32(h[2]),
                f16_to_f32(h[3])};
#endif
}

INLINE void store_v4(float *p, v4 v) { *(v4_any *)p = v; }
/* Upper halves of lanes as lower ones; all bits of two vectors. */
INLINE v4 lower_v4(v4 v) { return (v4)((u4)v >> 16); }
INLINE v4 join_v4(v4 a, v4 b) { return (v4)((u4)a | (u4)b); }

INLINE void transpose_registers4(v4 r[4]) {
    v4 ab0 = __builtin_shufflevector(r[0], r[1], 0, 4, 1, 5);
    v4 ab1 = __builtin_shufflevector(r[0], r[1], 2, 6, 3, 7);
    v4 cd0 = __builtin_shufflevector(r[2], r[3], 0, 4, 1, 5);
    v4 cd1 = __builtin_shufflevector(r[2], r[3], 2, 6, 3, 7);
    r[0] = __builtin_shufflevector(ab0, cd0, 0, 1, 4, 5);
    r[1] = __builtin_shufflevector(ab0, cd0, 2, 3, 6, 7);
    r[2] = __builtin_shufflevector(ab1, cd1, 0, 1, 4, 5);
    r[3] = __builtin_shufflevector(ab1, cd1, 2, 3, 6, 7);
}
#endif

/* Like transpose() below, for 4 x 4. */
INLINE void transpose4(float *dst, int64_t dld, const void *src, int dtype,
                       int64_t ld) {
    v4 r[4];
    for (int i = 0; i < 4; i++)
        r[i] = load_v4((const char *)src + i * ld, dtype);
    transpose_registers4(r);
    for (int i = 0; i < 4; i++) store_v4(dst + i * dld, r[i]);
}

#if SIMD_LANES >= 8
enum { TB = 8 };
typedef float v8 __attribute__((vector_size(32)));
typedef v8 v8_any __attribute__((aligned(1), may_alias));
typedef uint32_t u8 __attribute__((vector_size(32)));

typedef v8 vt;

INLINE vt load_vt(const void *p, int dtype) {
    if (dtype == AMPC_F32) return *(const v8_any *)p;
    __m128i h = _mm_loadu_si128(p);
    if (dtype == AMPC_BF16)
        return (v8)_mm256_slli_epi32(_mm256_cvtepu16_epi32(h), 16);
    return (v8)_mm256_cvtph_ps(h);
}

INLINE void store_vt(float *p, vt v) { *(v8_any *)p = v; }
INLINE vt lower_vt(vt v) { return (vt)((u8)v >> 16); }
INLINE vt join_vt(vt a, vt b) { return (vt)((u8)a | (u8)b); }

#define LO8(a, b) __builtin_shufflevector(a, b, 0, 8, 1, 9, 4, 12, 5, 13)
#define HI8(a, b) __builtin_shufflevector(a, b, 2, 10, 3, 11, 6, 14, 7, 15)
#define LO4(a, b) __builtin_shufflevector(a, b, 0, 1, 8, 9, 4, 5, 12, 13)
#define HI4(a, b) __builtin_shufflevector(a, b, 2, 3, 10, 11, 6, 7, 14, 15)
#define LO2(a, b) __builtin_shufflevector(a, b, 0, 1, 2, 3, 8, 9, 10, 11)
#define HI2(a, b) __builtin_shufflevector(a, b, 4, 5, 6, 7, 12, 13, 14, 15)

INLINE void transpose_registers(vt r[TB]) {
    v8 t[8], q[8];
    for (int i = 0; i < 8; i += 2) {
        t[i] = LO8(r[i], r[i + 1]);
        t[i + 1] = HI8(r[i], r[i + 1]);
    }
    for (int i = 0; i < 8; i += 4) {
        q[i] = LO4(t[i], t[i + 2]);
        q[i + 1] = HI4(t[i], t[i + 2]);
        q[i + 2] = LO4(t[i + 1], t[i + 3]);
        q[i + 3] = HI4(t[i + 1], t[i + 3]);
    }
    for (int i = 0; i < 4; i++) {
        r[i] = LO2(q[i], q[i + 4]);
        r[i + 4] = HI2(q[i], q[i + 4]);
    }
}
#else
enum { TB = 4 };
typedef v4 vt;
INLINE vt load_vt(const void *p, int dtype) { return load_v4(p, dtype); }
INLINE void store_vt(float *p, vt v) { store_v4(p, v); }
INLINE vt lower_vt(vt v) { return lower_v4(v); }
INLINE vt join_vt(vt a, vt b) { return join_v4(a, b); }
INLINE void transpose_registers(vt r[TB]) { transpose_registers4(r); }
#endif

/* dst[j * dld + i] = element j of row i; rows lie `ld` bytes apart. */
INLINE void transpose(float *dst, int64_t dld, const void *src, int dtype,
                      int64_t ld) {
    vt r[TB];
    for (int i = 0; i < TB; i++)
        r[i] = load_vt((const char *)src + i * ld, dtype);
    transpose_registers(r);
    for (int i = 0; i < TB; i++) store_vt(dst + i * dld, r[i]);
}

/* Transposes in the largest blocks of this level, TW x TW. */
#if SIMD_LANES == 16
enum { TW = VL };

INLINE void transpose_wide(float *dst, int64_t dld, const void *src, int dtype,
                           int64_t ld) {
    __m512 r[TW], t[TW];
    for (int i = 0; i < TW; i += 2) {
        const char *p = (const char *)src + i * ld;
        __m512 a = (__m512)vload_as(p, dtype, 0);
        __m512 b = (__m512)vload_as(p + ld, dtype, 0);
        t[i] = _mm512_unpacklo_ps(a, b);
        t[i + 1] = _mm512_unpackhi_ps(a, b);
    }
#define PD(how, a, b)                                                          \
    _mm512_castpd_ps(                                                          \
        _mm512_unpack##how##_pd(_mm512_castps_pd(a), _mm512_castps_pd(b)))
    for (int i = 0; i < TW; i += 4) {
        r[i] = PD(lo, t[i], t[i + 2]);
        r[i + 1] = PD(hi, t[i], t[i + 2]);
        r[i + 2] = PD(lo, t[i + 1], t[i + 3]);
        r[i + 3] = PD(hi, t[i + 1], t[i + 3]);
    }
#undef PD
    /* r[4 i + j]: in quarter q, elements 4 q + j of rows from 4 i on */
    for (int j = 0; j < 4; j++, dst += dld) {
        __m512 a = _mm512_shuffle_f32x4(r[j], r[4 + j], 0x44);
        __m512 b = _mm512_shuffle_f32x4(r[8 + j], r[12 + j], 0x44);
        __m512 c = _mm512_shuffle_f32x4(r[j], r[4 + j], 0xee);
        __m512 d = _mm512_shuffle_f32x4(r[8 + j], r[12 + j], 0xee);
        vstore(dst, (vf)_mm512_shuffle_f32x4(a, b, 0x88));
        vstore(dst + 4 * dld, (vf)_mm512_shuffle_f32x4(a, b, 0xdd));
        vstore(dst + 8 * dld, (vf)_mm512_shuffle_f32x4(c, d, 0x88));
        vstore(dst + 12 * dld, (vf)_mm512_shuffle_f32x4(c, d, 0xdd));
    }
}
#else
enum { TW = TB };

INLINE void transpose_wide(float *dst, int64_t dld, const void *src, int dtype,
                           int64_t ld) {
    transpose(dst, dld, src, dtype, ld);
}
#endif

/* Sums of dq's lines over the rows of t, for packed gradients of attention
   (LibAttend). */
OUTLINE void attend_columns(const LibAttend *p, const void *dq, void *sums) {
    const int64_t line = p->q_width * p->d;
    for (int64_t i = 0; i < p->batch / p->q_heads * line; i++) {
        int64_t at = i / line * p->t * line + i % line;
        float sum = 0;
        for (int64_t row = 0; row < p->t; row++)
            sum += load1(dq, (int)p->dq_dtype, at + row * line);
        store1(sums, (int)p->sums_dtype, i, sum);
    }
}

#endif
