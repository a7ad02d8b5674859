/* SPDX-License-Identifier: Apache-2.0 */
/* simd_vectors.h: vectors of SIMD_LANES lanes for compilers that have them (gcc
   and clang); simd_plain.h has the same functions for other compilers. */
#ifndef AMPC_CPU_SIMD_VECTORS_H
#define AMPC_CPU_SIMD_VECTORS_H

typedef float vf __attribute__((vector_size(VL * 4)));
typedef int32_t vi __attribute__((vector_size(VL * 4)));
typedef uint32_t vu __attribute__((vector_size(VL * 4)));
typedef uint16_t vh __attribute__((vector_size(VL * 2)));
typedef vf vf_any __attribute__((aligned(1), may_alias)); /* pairs too */
typedef vu vu_any __attribute__((aligned(4), may_alias));
typedef vh vh_any __attribute__((aligned(2), may_alias));

INLINE vf vu_as_f(vu v) { return (vf)v; }
INLINE vf vi_as_f(vi v) { return (vf)v; }
INLINE vu vf_as_u(vf v) { return (vu)v; }
INLINE vi vf_as_i(vf v) { return (vi)v; }

/* ---- fp32 ---------------------------------------------------------------- */

INLINE vf vload(const float *p) { return *(const vf_any *)p; }
INLINE void vstore(float *p, vf v) { *(vf_any *)p = v; }
INLINE vf vset(float x) { return x - (vf){0}; } /* keeps -0 and NaN */

INLINE vf vadd(vf a, vf b) { return a + b; }
INLINE vf vsub(vf a, vf b) { return a - b; }
INLINE vf vmul(vf a, vf b) { return a * b; }
INLINE vf vdiv(vf a, vf b) { return a / b; }
INLINE vf vneg(vf v) { return -v; }
INLINE vi vabove(vf a, vf b) { return a > b; }
INLINE vf vkeep(vi take, vf v) { return (vf)(take & (vi)v); }

/* A lane of a variable: a function would copy the vector to memory each time.
 */
#define LANE(v, i) (v)[i]

/* ---- integers ------------------------------------------------------------ */

INLINE vi vi_set(int32_t x) { return (vi){0} + x; }
INLINE vi vi_load(const int32_t *p) { return *(const vi *)p; }
INLINE void vi_store(int32_t *p, vi v) { *(vi *)p = v; }
INLINE vi vi_equal(vi a, vi b) { return a == b; }

typedef int8_t vi_bytes __attribute__((vector_size(VL)));
typedef int16_t vi_shorts __attribute__((vector_size(VL * 2)));
INLINE void vstore_i8(void *p, vi v) {
    vi_bytes b = __builtin_convertvector(__builtin_convertvector(v, vi_shorts),
                                         vi_bytes);
    memcpy(p, &b, VL);
}

INLINE vu vu_set(uint32_t x) { return (vu){0} + x; }
INLINE vu vu_load(const uint32_t *p) { return *(const vu_any *)p; }
INLINE void vu_store(uint32_t *p, vu v) { *(vu_any *)p = v; }
INLINE vu vu_and(vu a, vu b) { return a & b; }
INLINE vu vu_or(vu a, vu b) { return a | b; }
INLINE vu vu_left(vu v, int n) { return v << n; }
INLINE vu vu_right(vu v, int n) { return v >> n; }
INLINE vu vu_sub(vu a, vu b) { return a - b; }
INLINE vu vu_less(vu a, vu b) { return (vu)(a < b); }
INLINE vu vu_most(vu a, vu b) { return (vu)(a <= b); }
INLINE vu vu_equal(vu a, vu b) { return (vu)(a == b); }

/* ---- lanes of two vectors ------------------------------------------------ */

#if SIMD_LANES == 16
#define EVEN   0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30
#define ODD    1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31
#define ZIP_LO 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23
#define ZIP_HI 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31
#elif SIMD_LANES == 8
#define EVEN   0, 2, 4, 6, 8, 10, 12, 14
#define ODD    1, 3, 5, 7, 9, 11, 13, 15
#define ZIP_LO 0, 8, 1, 9, 2, 10, 3, 11
#define ZIP_HI 4, 12, 5, 13, 6, 14, 7, 15
#else
#define EVEN   0, 2, 4, 6
#define ODD    1, 3, 5, 7
#define ZIP_LO 0, 4, 1, 5
#define ZIP_HI 2, 6, 3, 7
#endif
#define SHUFFLE(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
INLINE vf veven(vf a, vf b) { return SHUFFLE(a, b, EVEN); }
INLINE vf vodd(vf a, vf b) { return SHUFFLE(a, b, ODD); }
INLINE vf vzip_low(vf a, vf b) { return SHUFFLE(a, b, ZIP_LO); }
INLINE vf vzip_high(vf a, vf b) { return SHUFFLE(a, b, ZIP_HI); }

#endif
