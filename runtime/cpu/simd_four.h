/* SPDX-License-Identifier: Apache-2.0 */
/* simd_four.h: shared by levels of four lanes without fp16 instructions; see
   simd.h. */
#ifndef AMPC_CPU_SIMD_FOUR_H
#define AMPC_CPU_SIMD_FOUR_H

#define SIMD_LANES    4
#define SIMD_ROWS     4
#define SIMD_VECTORS  2
#define SIMD_DOT_ROWS 2
#define SIMD_DOT_COLS 4
#define HAS_FMA       0
#define HAS_F16       0
#define HAS_MASK      0
#define HAS_DOT       0
#define HAS_TILES     0

#define SIMD_STEPS
#define SIMD_FETCHES 0

#include "runtime/cpu/simd_types.h"

#ifndef AMPC_PLAIN
/* Of the level. */
INLINE vu vload_u16(const uint16_t *p);
INLINE void vstore_u16(uint16_t *p, vu v);

INLINE vf vfma(vf a, vf b, vf c) { return c + a * b; }

INLINE vf vselect(vi take, vf a, vf b) {
    return (vf)((take & (vi)a) | (~take & (vi)b));
}

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

INLINE vu vround_bf16(vf v) {
    vu u = (vu)v, r = u + 0x7fffu + (u >> 16 & 1u);
    return r | (vu)(v != v);
}

INLINE void vtake(vf v, vi tap, vf *m, vi *w) {
    vi take = (*m == *m) & ~(v <= *m);
    *m = vselect(take, v, *m);
    *w = (vi)vselect(take, (vf)tap, (vf)*w);
}
#endif

INLINE void vstore2_bf16(uint16_t *p, vf v, vf w) {
    vu a = vround_bf16(v), b = vround_bf16(w);
    vstore_u16(p, vu_right(a, 16));
    vstore_u16(p + VL, vu_right(b, 16));
}

OUTLINE float load1_f16(uint16_t h) { return f16_to_f32(h); }
OUTLINE uint16_t store1_f16(float x) { return f32_to_f16(x); }

#endif
