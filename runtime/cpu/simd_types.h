/* SPDX-License-Identifier: Apache-2.0 */
/* simd_types.h: vectors of SIMD_LANES lanes, and operations that need no
   special instruction. The header of a level includes it. */
#ifndef AMPC_CPU_SIMD_TYPES_H
#define AMPC_CPU_SIMD_TYPES_H

#include "runtime/program/half.h"

#define INLINE static inline __attribute__((always_inline, unused))
/* For functions that are long, rarely run or slow anyway: one copy per file. */
#define OUTLINE static __attribute__((noinline, unused))

/* Unrolls a loop of at most n turns, a constant number, completely. clang reads
   gcc's pragma as a hint that it does not follow: sums would lie in memory. */
#define SIMD_PRAGMA(text) _Pragma(#text)
#ifdef __clang__
#define SIMD_UNROLL(n) _Pragma("clang loop unroll(full)")
#else
#define SIMD_UNROLL(n) SIMD_PRAGMA(GCC unroll n)
#endif

/* VL lanes of fp32 per vector; a register tile of MR rows and NV vectors. */
enum { VL = SIMD_LANES, MR = SIMD_ROWS, NV = SIMD_VECTORS };
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

/* Pairs of lanes below 2^16, the even one in the low half. */
INLINE vf vweave_u16(vu even, vu odd) { return (vf)(even | odd << 16); }

INLINE float sfma(float a, float b, float c) {
#if HAS_FMA
    return __builtin_fmaf(a, b, c);
#else
    return c + a * b;
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

#endif
