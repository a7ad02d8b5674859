/* SPDX-License-Identifier: Apache-2.0 */
/* simd_neon.h: shared by levels of NEON; see simd.h.

   Of the 32 registers a tile takes 12 for sums, 3 for a row of B and 4 for A.
   Multiply-adds round once, as at x86-64-v3, so that a chain of them has the
   bits of that level; four lanes are added up as at x86-64-v2.              */
#ifndef AMPC_CPU_SIMD_NEON_H
#define AMPC_CPU_SIMD_NEON_H

#include <arm_neon.h>

#define SIMD_LANES    4
#define SIMD_ROWS     4
#define SIMD_VECTORS  3
#define SIMD_DOT_ROWS 3
#define SIMD_DOT_COLS 4
#define HAS_FMA       1
#define HAS_F16       1
#define HAS_MASK      0
#define HAS_SSE       0
#define HAS_TILES     0

#define SIMD_STEPS    _Pragma("GCC unroll 4")
#define SIMD_FETCHES  0
#define SIMD_REGISTER "+w"

#include "runtime/cpu/simd_types.h"

INLINE vf vfma(vf a, vf b, vf c) {
    return (vf)vfmaq_f32((float32x4_t)c, (float32x4_t)a, (float32x4_t)b);
}

INLINE vf vselect(vi take, vf a, vf b) {
    return (vf)vbslq_f32((uint32x4_t)take, (float32x4_t)a, (float32x4_t)b);
}

INLINE vu vload_u16(const uint16_t *p) { return (vu)vmovl_u16(vld1_u16(p)); }

INLINE void vstore_u16(uint16_t *p, vu v) {
    vst1_u16(p, vmovn_u32((uint32x4_t)v));
}

INLINE vf vload_f16(const uint16_t *p) {
    return (vf)vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p)));
}

INLINE void vstore_f16(uint16_t *p, vf v) {
    vst1_u16(p, vreinterpret_u16_f16(vcvt_f16_f32((float32x4_t)v)));
}

INLINE vu vround_bf16(vf v) {
    vu u = (vu)v, r = u + 0x7fffu + (u >> 16 & 1u);
    return r | (vu)(v != v);
}

INLINE void vstore2_bf16(uint16_t *p, vf v, vf w) {
    uint16x4_t low = vshrn_n_u32((uint32x4_t)vround_bf16(v), 16);
    vst1q_u16(p, vshrn_high_n_u32(low, (uint32x4_t)vround_bf16(w), 16));
}

INLINE float load1_f16(uint16_t h) {
    __fp16 x;
    memcpy(&x, &h, sizeof x);
    return x;
}

INLINE uint16_t store1_f16(float x) {
    __fp16 y = (__fp16)x;
    uint16_t h;
    memcpy(&h, &y, sizeof h);
    return h;
}

INLINE float vsum(vf v) { return (v[0] + v[2]) + (v[1] + v[3]); }

INLINE void vsum4(float *to, vf a, vf b, vf c, vf d) {
    vf ab0 = __builtin_shufflevector(a, b, 0, 4, 1, 5);
    vf ab1 = __builtin_shufflevector(a, b, 2, 6, 3, 7);
    vf cd0 = __builtin_shufflevector(c, d, 0, 4, 1, 5);
    vf cd1 = __builtin_shufflevector(c, d, 2, 6, 3, 7);
    vf ab = ab0 + ab1, cd = cd0 + cd1; /* 0 + 2 of both, then 1 + 3 */
    vstore(to, __builtin_shufflevector(ab, cd, 0, 1, 4, 5) +
                   __builtin_shufflevector(ab, cd, 2, 3, 6, 7));
}

INLINE vi vload_i8(const int8_t *p, int64_t n) {
    uint64_t all = 0;
    if (n >= VL)
        memcpy(&all, p, VL);
    else
        for (int64_t k = n; k-- > 0;) all = all << 8 | (uint8_t)p[k];
    int8x8_t b = vreinterpret_s8_u64(vcreate_u64(all));
    return (vi)vmovl_s16(vget_low_s16(vmovl_s8(b)));
}

INLINE void vtake(vf v, vi tap, vf *m, vi *w) {
    vi take = (*m == *m) & ~(v <= *m);
    *m = vselect(take, v, *m);
    *w = (vi)vselect(take, (vf)tap, (vf)*w);
}

INLINE vf vgreater(vf a, vf b) { return vselect((a != a) | (a > b), a, b); }

#endif
