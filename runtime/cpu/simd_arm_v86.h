/* SPDX-License-Identifier: Apache-2.0 */
/* simd_arm_v86.h: vectors of armv8.6-a+bf16, whose bfdot multiplies pairs of
   bf16: see simd.h.

   bfdot adds the two products and the sum with roundings of its own (to odd),
   and takes subnormals as zero. */
#ifndef AMPC_CPU_SIMD_ARM_V86_H
#define AMPC_CPU_SIMD_ARM_V86_H

#include "runtime/cpu/kernels.h" /* before ISA: it reads isa.def */

#define ISA(name) ampc_v86_##name
#define ISA_LEVEL AMPC_ISA_V86
#define HAS_DOT   1

#include "runtime/cpu/simd_neon.h"

INLINE vf vdot(vf a, vf b, vf c) {
    return (vf)vbfdotq_f32((float32x4_t)c, (bfloat16x8_t)a, (bfloat16x8_t)b);
}

INLINE vf vload_pairs(const uint16_t *p, int64_t n) {
    vh h[2] = {{0}};
    memcpy(h, p, (size_t)(n < 2 * VL ? n : 2 * VL) * sizeof *p);
    return vload((const float *)(const void *)h);
}

INLINE vf vpairs(vf even, vf odd) {
    return vweave_u16(vround_bf16(even) >> 16, vround_bf16(odd) >> 16);
}

INLINE void vstore2_dot(uint16_t *p, vf v, vf w) { vstore2_bf16(p, v, w); }

INLINE void vstore_dot(uint16_t *p, vf v, int64_t n) {
    uint16_t h[VL];
    vstore_u16(h, vround_bf16(v) >> 16);
    memcpy(p, h, (size_t)(n < VL ? n : VL) * sizeof *p);
}

#endif
