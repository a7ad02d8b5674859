/* SPDX-License-Identifier: Apache-2.0 */
/* simd_x86_v2.h: vectors of x86-64-v2 (SSE4.2): see simd.h. */
#ifndef AMPC_CPU_SIMD_X86_V2_H
#define AMPC_CPU_SIMD_X86_V2_H

#include <immintrin.h>

#include "runtime/cpu/kernels.h" /* before ISA, which reads isa.def */

#define ISA(name) ampc_v2_##name
#define ISA_LEVEL AMPC_ISA_V2

#define HAS_SSE       1
#define SIMD_REGISTER "+x"

#include "runtime/cpu/simd_four.h"
#include "runtime/cpu/simd_x86.h"

INLINE vu vload_u16(const uint16_t *p) {
    const void *q = p;
    return (vu)_mm_cvtepu16_epi32(_mm_loadl_epi64(q));
}

INLINE void vstore_u16(uint16_t *p, vu v) {
    _mm_storel_epi64((void *)p, _mm_packus_epi32((__m128i)v, (__m128i)v));
}

INLINE __m128 vfold(vf v) { return (__m128)v; }

INLINE float vsum(vf v) { return x86_sum(vfold(v)); }

INLINE void vsum4(float *to, vf a, vf b, vf c, vf d) {
    x86_sum4(to, vfold(a), vfold(b), vfold(c), vfold(d));
}

INLINE vi vload_i8(const int8_t *p, int64_t n) {
    return (vi)_mm_cvtepi8_epi32(x86_bytes(p, n));
}

INLINE vf vgreater(vf a, vf b) {
    return vselect(a != a, a, (vf)_mm_max_ps((__m128)a, (__m128)b));
}

#endif
