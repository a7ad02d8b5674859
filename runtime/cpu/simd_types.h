/* SPDX-License-Identifier: Apache-2.0 */
/* simd_types.h: vectors of SIMD_LANES lanes, and operations that need no
   special instruction. The header of a level includes it.

   Code names each operation on vectors (vadd, not +), so that compilers
   without vectors take structs of lanes for them. */
#ifndef AMPC_CPU_SIMD_TYPES_H
#define AMPC_CPU_SIMD_TYPES_H

#include <string.h>

#include "runtime/program/half.h"

#define INLINE static inline __attribute__((always_inline, unused))
/* For functions that are long, rarely run or slow anyway: one copy per file. */
#define OUTLINE static __attribute__((noinline, unused))

/* Unrolls a loop of at most n turns, a constant number, completely. clang reads
   gcc's pragma as a hint that it does not follow: sums would lie in memory. */
#define SIMD_PRAGMA(text) _Pragma(#text)
#ifdef __clang__
#define SIMD_UNROLL(n) _Pragma("clang loop unroll(full)")
#elif defined __GNUC__
#define SIMD_UNROLL(n) SIMD_PRAGMA(GCC unroll n)
#else
#define SIMD_UNROLL(n)
#endif

/* Makes the compiler advance a pointer from row to row instead of keeping one
   address per row. */
#ifdef __GNUC__
#define SIMD_HIDE(p) __asm__("" : "+r"(p))
#else
#define SIMD_HIDE(p) (void)(p)
#endif

/* VL lanes of fp32 per vector; a register tile of MR rows and NV vectors. */
enum { VL = SIMD_LANES, MR = SIMD_ROWS, NV = SIMD_VECTORS };
enum { NR = NV * VL };

#ifdef AMPC_PLAIN
#include "runtime/cpu/simd_plain.h"
#else
#include "runtime/cpu/simd_vectors.h"
#endif

/* Pairs of lanes below 2^16, the even one in the low half. */
INLINE vf vweave_u16(vu even, vu odd) {
    return vu_as_f(vu_or(even, vu_left(odd, 16)));
}

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
