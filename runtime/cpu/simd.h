/* SPDX-License-Identifier: Apache-2.0 */
/* simd.h: vectors of one ISA level, for the *_isa.c files only.

   Each *_isa.c is compiled once per level, with the flags and the header of its
   row of isa.def (runtime/isa.bzl), and names its external symbols through
   ISA(name).  The other .c files of this folder are compiled once, for the
   baseline.

   The header of a level, AMPC_SIMD, defines
     ISA(name), ISA_LEVEL   its prefix, its number
     SIMD_LANES             of fp32 in a vector: VL
     SIMD_ROWS, _VECTORS    of a register tile: MR, NV
     SIMD_DOT_ROWS, _COLS   of a tile of dot products
     HAS_FMA                vfma and sfma round once
     HAS_F16                instructions convert f16
     HAS_MASK               vload_mask, vload_u16_mask, with HAS_DOT
                            vload_pairs_mask; vload_n and vstore_n are its own
     HAS_DOT                products of pairs of bf16, for files that define
                            SIMD_WANTS_DOT before they include anything
     HAS_SSE                SSE4.1, whatever VL is
     HAS_TILES              AMX
     SIMD_STEPS             unrolls a loop over k
     SIMD_FETCHES           a step of a tile has time to prefetch
     SIMD_REGISTER          constraint of a vector in assembly; may be missing
   and, beside the types and functions of simd_vectors.h,
     vfma, sfma             c + a * b
     vselect                lanes of a where `take` has all bits set, of b where
                            it is zero
     vload_u16, vstore_u16  VL of 16 bits as 32, and back what fits: conversions
                            of vectors are compiled to halves and masks
     vload_f16, vstore_f16, load1_f16, store1_f16
     vround_bf16            rounded, in the upper halves; the lower ones are
                            anything
     vstore2_bf16           two vectors side by side
     vsum                   the sum of all lanes
     vsum4                  the sums of the lanes of four vectors: halves are
                            added until four lanes are left, then (0 + 2) +
                            (1 + 3)
     vload_i8               n bytes as lanes
     vtake                  takes v, of number `tap`, where it is greater, or
                            the first NaN
     vgreater               the greater, or one that is NaN
   With HAS_DOT, where a lane holds a pair of bf16, the even one in the low
   half, vload_pairs            n bf16, at most 2 VL; zeros behind them and for
   files with SIMD_WANTS_DOT vdot                   c + the products of both
   halves of a and b vpairs                 pairs of lanes of fp32, rounded
     vstore2_dot            two vectors of sums, rounded, side by side
     vstore_dot             n of one, at most VL

   A fused multiply-add is written (vfma), never left to the compiler, so an
   element's bits do not depend on the code path that computed it; without
   HAS_FMA vfma is a product and a sum in every path.                        */
#ifndef AMPC_CPU_SIMD_H
#define AMPC_CPU_SIMD_H

#include AMPC_SIMD

/* ---- 16-bit and 32-bit memory -------------------------------------------- */

INLINE vf vload_bf16(const uint16_t *p) {
    return vu_as_f(vu_left(vload_u16(p), 16));
}

INLINE void vstore_bf16(uint16_t *p, vf v) {
    vstore_u16(p, vu_right(vround_bf16(v), 16));
}

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

/* The first n < VL lanes, at a level without masks. */
#if !HAS_MASK
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
    for (int64_t j = 0; j < n; j++) LANE(v, j) = load1(p, dtype, i + j);
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
    for (int64_t j = 0; j < n; j++) store1(p, dtype, i + j, LANE(v, j));
}
#endif

INLINE void widen_as(float *dst, const void *src, int dtype, int64_t i,
                     int64_t n) {
    int64_t j = 0;
    for (; j + VL <= n; j += VL) vstore(dst + j, vload_as(src, dtype, i + j));
    if (j == n) return;
    if (n >= VL) /* the last vector may overlap the previous one */
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
