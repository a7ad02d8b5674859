/* SPDX-License-Identifier: Apache-2.0 */
/* kmath.h: the functions called by generated kernels, in C, in CUDA C++ (NVRTC)
   and in CUDA text compiled for the host.

   The functions of the op table's expressions for each register type (_F32,
   _F64, _I64), conversions of 16-bit floats, folds over arrays (C only), and
   the random stream. fp32 functions are branch-free, so that compilers can
   vectorise loops around them; fp64 functions call libm. All keep NaN and are
   correct at infinities.  Compiled without contraction, so that ISA levels and
   GPUs differ only in the last bits of exponentials, logarithms and functions
   built on them (km_fma). fp64 functions, sine, cosine and tangent, and on a
   GPU the functions that are computed in double here, come from each system's
   library.  It includes nothing else: parsing this file is part of the
   compilation time of each model. */
#ifndef AMPC_KMATH_H
#define AMPC_KMATH_H

/* ---- languages ----------------------------------------------------------- */

#ifdef __CUDACC_RTC__ /* NVRTC has no headers, only CUDA's built-in functions  \
                       */

typedef signed char int8_t;
typedef short int16_t;
typedef int int32_t;
typedef long long int64_t;
typedef unsigned char uint8_t;
typedef unsigned short uint16_t;
typedef unsigned int uint32_t;
typedef unsigned long long uint64_t;
#define INT64_C(c)  c##LL
#define UINT64_C(c) c##ULL
#define INT64_MAX   INT64_C(0x7fffffffffffffff)
#define INT64_MIN   (-INT64_MAX - 1)
#define INFINITY    __int_as_float(0x7f800000)
#define NAN         __int_as_float(0x7fc00000)
#define KM_INLINE   static __forceinline__

#else

#include <math.h>
#include <stdint.h>

#define KM_INLINE static inline __attribute__((always_inline, unused, const))

#if defined(__GNUC__) && !defined(__clang__) && !defined(__cplusplus)
/* Optimisations that gcc -O2 does not include; clang -O2 does. Generated
   kernels run as fast without the rest of -O2 and compile in three quarters
   of the time. thread-jumps is off so that a select whose result decides
   another select stays a select: a branch would keep the loop from being
   vectorised. expensive-optimizations is on because without it gcc emits no
   vzeroupper, and SSE code that runs next (libm or the host) takes four
   times as long. */
#ifdef KM_KERNELS
#pragma GCC optimize("O1", "no-thread-jumps", "expensive-optimizations")
#endif
#pragma GCC optimize("tree-loop-vectorize", "vect-cost-model=dynamic",         \
                     "unswitch-loops")
#define KM_NO_UNROLL _Pragma("GCC unroll 1")
#else
#define KM_NO_UNROLL
#endif
/* Folds are called, not copied into every kernel; their lanes must be
   unrolled into registers. */
#if defined(__GNUC__) && !defined(__clang__)
#define KM_CALLED static __attribute__((noinline, unused, optimize("O3")))
#define KM_SHARED static __attribute__((noinline, noclone))
#else
#define KM_CALLED static __attribute__((noinline, unused))
#define KM_SHARED static __attribute__((noinline))
#endif

#endif

/* One switch for the GPU's own conversions, exp2 and quotients. EXP_F32 then
   has an error of up to 4 units in the last place (ex2.approx: 2) and is 0
   where the result would be subnormal; TANH_F32 up to 3, ERF_F32 4,
   SIGMOID_F32 and LOG_SIGMOID_F32 6, GELU_F32 11 (kmath_gpu_test.c). All
   other results equal the CPU's, except the sign of a zero that is a maximum
   or minimum. */
#if defined __CUDACC_RTC__ && !defined KM_PORTABLE
#define KM_GPU
#endif

/* ---- bits ---------------------------------------------------------------- */

#ifdef __CUDACC_RTC__
KM_INLINE uint32_t km_bits(float f) { return __float_as_uint(f); }
KM_INLINE float km_float(uint32_t u) { return __uint_as_float(u); }
KM_INLINE uint64_t km_bits64(double f) {
    return (uint64_t)__double_as_longlong(f);
}
KM_INLINE double km_double(uint64_t u) {
    return __longlong_as_double((int64_t)u);
}
#else
KM_INLINE uint32_t km_bits(float f) {
    uint32_t u;
    __builtin_memcpy(&u, &f, sizeof u);
    return u;
}

KM_INLINE float km_float(uint32_t u) {
    float f;
    __builtin_memcpy(&f, &u, sizeof f);
    return f;
}

KM_INLINE uint64_t km_bits64(double f) {
    uint64_t u;
    __builtin_memcpy(&u, &f, sizeof u);
    return u;
}

KM_INLINE double km_double(uint64_t u) {
    double f;
    __builtin_memcpy(&f, &u, sizeof f);
    return f;
}
#endif

/* ---- 16-bit floats: nearest even, overflow to infinity, NaN stays NaN ---- */

KM_INLINE float BF16_TO_F32(uint16_t h) { return km_float((uint32_t)h << 16); }

#if defined KM_GPU && defined __CUDACC_RTC__
/* One instruction each; the same values, except the bits of NaN. */
KM_INLINE uint16_t F32_TO_BF16(float f) {
    uint16_t h;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(h) : "f"(f));
    return h;
}
KM_INLINE uint16_t F32_TO_F16(float f) {
    uint16_t h;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(h) : "f"(f));
    return h;
}
KM_INLINE float F16_TO_F32(uint16_t h) {
    float f;
    asm("cvt.f32.f16 %0, %1;" : "=f"(f) : "h"(h));
    return f;
}
KM_INLINE float ROUND_BF16(float f) { return BF16_TO_F32(F32_TO_BF16(f)); }
KM_INLINE uint16_t EXACT_BF16(float f) { return (uint16_t)(km_bits(f) >> 16); }
KM_INLINE float ROUND_F16(float f) { return F16_TO_F32(F32_TO_F16(f)); }
KM_INLINE uint16_t EXACT_F16(float f) { return F32_TO_F16(f); }
#else
/* A mask selects NaN and sets all its bits: gcc would merge a select with
   neighbouring selects and duplicate the code after them. */
KM_INLINE float ROUND_BF16(float f) {
    uint32_t u = km_bits(f), nan = 0u - (uint32_t)(f != f);
    return km_float(((u + 0x7fffu + (u >> 16 & 1u)) | nan) & 0xffff0000u);
}

/* f must be a value of the 16-bit format */
KM_INLINE uint16_t EXACT_BF16(float f) { return (uint16_t)(km_bits(f) >> 16); }
KM_INLINE uint16_t F32_TO_BF16(float f) { return EXACT_BF16(ROUND_BF16(f)); }

/* Floats are compared with floats, which gives masks of the right width. */
KM_INLINE float F16_TO_F32(uint16_t h) {
    uint32_t mag = h & 0x7fffu, sign = (uint32_t)h << 16 & 0x80000000u;
    float normal = km_float((mag << 13) + (112u << 23)), r;
    /* subnormal: treated as if it had a leading one, which is then
       subtracted */
    float tiny = km_float(km_bits(normal) + (1u << 23)) - 0x1p-14f;
    float special = km_float(km_bits(normal) + (112u << 23));
    r = normal < 0x1p-14f ? tiny : normal;
    r = normal >= 0x1p16f ? special : r; /* infinity, NaN */
    return km_float(km_bits(r) | sign);
}

/* Adding and subtracting 2^13 times the power of two below f rounds f to the
   format's last bit; below 2^-14, to that of subnormal numbers. */
KM_INLINE float ROUND_F16(float f) {
    uint32_t u = km_bits(f), mag = u & 0x7fffffffu;
    int32_t e = (int32_t)(u & 0x7f800000u), least = 113 << 23;
    float a = km_float(mag);
    float by = km_float((uint32_t)(e > least ? e : least) + (13u << 23));
    float r = (a + by) - by;
    r = a >= 65520.0f ? INFINITY : r;
    return km_float(km_bits(r) | (u & 0x80000000u));
}

KM_INLINE uint16_t EXACT_F16(float f) {
    uint32_t u = km_bits(f), mag = u & 0x7fffffffu, r;
    float a = km_float(mag);
    uint32_t tiny = km_bits(a + 0.5f) - 0x3f000000u;
    r = a < 0x1p-14f ? tiny : (mag - (112u << 23)) >> 13;
    r = a < INFINITY ? r : (mag >> 13 & 0x3ffu) | 0x7c00u;
    return (uint16_t)(r | (u >> 16 & 0x8000u));
}

KM_INLINE uint16_t F32_TO_F16(float f) { return EXACT_F16(ROUND_F16(f)); }
#endif

/* ---- 8-bit floats: see runtime/program/half.h ---------------------------- */

/* Less its last exponent, f8e4m3 is f16 of 256 times less; f8e5m2 is the upper
   half of f16. */
KM_INLINE float F8E4M3_TO_F32(uint8_t h) {
    uint32_t u = h;
    float r = F16_TO_F32((uint16_t)((u & 0x80u) << 8 | (u & 0x7fu) << 7)) * 256;
    return (u & 0x7fu) == 0x7fu ? NAN : r;
}

KM_INLINE float F8E5M2_TO_F32(uint8_t h) {
    return F16_TO_F32((uint16_t)((uint32_t)h << 8));
}

/* As ROUND_F16, for exponents from `least` on and `stored` bits; what exceeds
   `most` becomes `over`. */
KM_INLINE float km_round8(float f, int stored, int least, float most,
                          float over) {
    uint32_t u = km_bits(f);
    int32_t e = (int32_t)(u & 0x7f800000u), low = (127 + least) << 23;
    float a = km_float(u & 0x7fffffffu);
    float by = km_float((uint32_t)(e > low ? e : low) +
                        ((uint32_t)(23 - stored) << 23));
    float r = (a + by) - by;
    r = a > most ? over : r;
    return km_float(km_bits(r) | (u & 0x80000000u));
}

/* f must be a value of the format */
KM_INLINE uint8_t km_exact8(float f, int stored, int least, uint32_t inf) {
    uint32_t u = km_bits(f), mag = u & 0x7fffffffu, r;
    uint32_t big = (uint32_t)(127 + least + 23 - stored) << 23;
    float a = km_float(mag);
    uint32_t tiny = km_bits(a + km_float(big)) - big;
    r = a < km_float((uint32_t)(127 + least) << 23)
            ? tiny
            : (mag - ((uint32_t)(126 + least) << 23)) >> (23 - stored);
    r = a < INFINITY ? r : a == INFINITY ? inf : 0x7fu;
    return (uint8_t)(r | (u >> 24 & 0x80u));
}

KM_INLINE float ROUND_F8E4M3(float f) {
    return km_round8(f, 3, -6, 464.0f, NAN);
}
KM_INLINE uint8_t EXACT_F8E4M3(float f) { return km_exact8(f, 3, -6, 0x7f); }
KM_INLINE uint8_t F32_TO_F8E4M3(float f) {
    return EXACT_F8E4M3(ROUND_F8E4M3(f));
}

KM_INLINE float ROUND_F8E5M2(float f) {
    return km_round8(f, 2, -14, 61439.996f, INFINITY);
}
KM_INLINE uint8_t EXACT_F8E5M2(float f) { return km_exact8(f, 2, -14, 0x7c); }
KM_INLINE uint8_t F32_TO_F8E5M2(float f) {
    return EXACT_F8E5M2(ROUND_F8E5M2(f));
}

KM_INLINE float E8M0_TO_F32(uint8_t h) {
    uint32_t u = (uint32_t)h << 23;
    u = h == 0 ? 0x400000u : u; /* 2^-127 is subnormal */
    return km_float(h == 0xff ? 0x7fc00000u : u);
}
KM_INLINE uint8_t EXACT_E8M0(float f) {
    uint32_t mag = km_bits(f) & 0x7fffffffu, r = (mag + 0x400000u) >> 23;
    r = mag < 0x800000u ? (uint32_t)(mag > 0x400000u) : r;
    return (uint8_t)(mag > 0x7f800000u ? 0xffu : r);
}
KM_INLINE uint8_t F32_TO_E8M0(float f) { return EXACT_E8M0(f); }
KM_INLINE float ROUND_E8M0(float f) { return E8M0_TO_F32(EXACT_E8M0(f)); }

/* ---- kernels of one text (C only) ---------------------------------------- */

#ifndef __cplusplus
/* A size parameter of shared kernels. */
typedef union km_size {
    int64_t i;
    uint32_t u;
    float f;
    double d;
} km_size;

/* ---- arrays of 16-bit floats (C only) ------------------------------------ */

/* <NAME>16: for a block of 16, which stays in registers; inlined. */
#define KM_VECTOR static inline __attribute__((always_inline, unused))

/* Two neighbours. */
typedef uint32_t km_pair __attribute__((aligned(2), may_alias));

/* Writes the 8 elements at even positions of 16 first, then the others: a
   conversion without shuffles. The remainder (n % 16) stays in order. */
KM_VECTOR void WIDEN16_BF16(float *to, const uint16_t *from) {
    for (int i = 0; i < 8; i++) {
        uint32_t x = ((const km_pair *)from)[i];
        to[i] = km_float(x << 16);
        to[i + 8] = km_float(x & 0xffff0000u);
    }
}

KM_CALLED void WIDEN_BF16(float *restrict to, const uint16_t *restrict from,
                          int64_t n) {
    for (; n >= 16; n -= 16, to += 16, from += 16) WIDEN16_BF16(to, from);
    for (int64_t i = 0; i < n; i++) to[i] = BF16_TO_F32(from[i]);
}

/* from[] must contain values that the 16-bit format can represent. */
KM_VECTOR void PACK16_BF16(uint16_t *to, const float *from) {
    for (int i = 0; i < 8; i++)
        ((km_pair *)to)[i] =
            km_bits(from[i]) >> 16 | (km_bits(from[i + 8]) & 0xffff0000u);
}

KM_CALLED void PACK_BF16(uint16_t *restrict to, const float *restrict from,
                         int64_t n) {
    for (; n >= 16; n -= 16, to += 16, from += 16) PACK16_BF16(to, from);
    for (int64_t i = 0; i < n; i++) to[i] = EXACT_BF16(from[i]);
}

/* NARROW_BF16 for short arrays and for arrays with NaN. */
KM_VECTOR void km_narrow16_each(uint16_t *to, const float *from) {
    for (int i = 0; i < 8; i++)
        ((km_pair *)to)[i] = km_bits(ROUND_BF16(from[i])) >> 16 |
                             km_bits(ROUND_BF16(from[i + 8]));
}

KM_CALLED void km_narrow_each(uint16_t *restrict to, const float *restrict from,
                              int64_t n) {
    for (; n >= 16; n -= 16, to += 16, from += 16) km_narrow16_each(to, from);
    for (int64_t i = 0; i < n; i++) to[i] = F32_TO_BF16(from[i]);
}

/* Narrows n elements in order. */
KM_CALLED void km_put_each(uint16_t *restrict to, const float *restrict from,
                           int64_t n) {
    for (int64_t i = 0; i < n; i++) to[i] = F32_TO_BF16(from[i]);
}

/* STORE_BF16 rounds in the same loop, or leaves a piece of values for a
   later PUT_BF16: with short vectors there are too few registers to round in
   the loop. */
#ifdef __AVX512F__
#define STORE_BF16(to, at, x) (to) = F32_TO_BF16(x)
#define PUT_BF16(to, from, n) (void)(from)
#else
#define STORE_BF16(to, at, x) (at) = (x)
#endif

#if defined __AVX2__ && !defined __clang__
typedef short km_short16 __attribute__((vector_size(32)));
#endif

/* Conversions of 16 elements in order. */
#if defined __AVX512F__ && !defined __clang__
typedef uint32_t km_word16 __attribute__((vector_size(64)));
typedef int km_int16 __attribute__((vector_size(64)));

KM_VECTOR void GET16_BF16(float *to, const uint16_t *from) {
    km_short16 h;
    __builtin_memcpy(&h, from, sizeof h);
    km_word16 u =
        (km_word16)__builtin_ia32_pmovzxwd512_mask(h, (km_int16){0}, -1) << 16;
    __builtin_memcpy(to, &u, sizeof u);
}
#else
KM_VECTOR void GET16_BF16(float *to, const uint16_t *from) {
    for (int i = 0; i < 16; i++) to[i] = BF16_TO_F32(from[i]);
}
#endif

#if defined __AVX2__ && !defined __clang__
/* Sixteen elements at once, as pairs of halves. Rounding adds half of the
   lower 16 bits' range, less one if the upper half is even; the carry then
   rounds. */
typedef uint32_t km_word8 __attribute__((vector_size(32)));
typedef char km_char32 __attribute__((vector_size(32)));
typedef float km_real8 __attribute__((vector_size(32)));
typedef long long km_long4 __attribute__((vector_size(32)));

KM_VECTOR km_short16 km_interleave(km_word8 a, km_word8 b) {
    return __builtin_shufflevector((km_short16)a, (km_short16)b, 0, 17, 2, 19,
                                   4, 21, 6, 23, 8, 25, 10, 27, 12, 29, 14, 31);
}

KM_VECTOR km_short16 km_round_pairs(km_word8 a, km_word8 b) {
    km_short16 upper = km_interleave(a >> 16, b),
               lower = km_interleave(a, b << 16);
    return upper - (__builtin_ia32_psubusw256(lower, ~upper & 1) >> 15);
}

/* All bits set in each lane where a or b is NaN. */
KM_VECTOR km_word8 km_unordered(km_word8 a, km_word8 b) {
    return (km_word8)__builtin_ia32_cmpps256((km_real8)a, (km_real8)b, 3);
}

KM_VECTOR km_char32 km_round16(const float *from) {
    km_word8 a, b;
#ifdef __AVX512F__ /* must be loaded as it was stored: else it is not taken    \
                      from a register */
    km_word16 u;
    __builtin_memcpy(&u, from, sizeof u);
    a = __builtin_shufflevector(u, u, 0, 1, 2, 3, 4, 5, 6, 7);
    b = __builtin_shufflevector(u, u, 8, 9, 10, 11, 12, 13, 14, 15);
#else
    __builtin_memcpy(&a, from, sizeof a);
    __builtin_memcpy(&b, from + 8, sizeof b);
#endif
    km_short16 h = km_round_pairs(a, b);
    if (__builtin_expect(
            __builtin_ia32_movmskps256((km_real8)km_unordered(a, b)), 0))
        h |= km_interleave(km_unordered(a, a), km_unordered(b, b));
    return (km_char32)h;
}

/* Interleaves groups of four numbers with the groups eight further on, in
   order. */
KM_VECTOR km_char32 km_deinterleave(km_char32 h) {
    return __builtin_shufflevector(h, h, 0, 1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7,
                                   10, 11, 14, 15, 16, 17, 20, 21, 24, 25, 28,
                                   29, 18, 19, 22, 23, 26, 27, 30, 31);
}

KM_VECTOR void NARROW16_BF16(uint16_t *to, const float *from) {
    km_char32 h = km_round16(from);
    __builtin_memcpy(to, &h, sizeof h);
}

KM_VECTOR void PUT16_BF16(uint16_t *to, const float *from) {
    km_long4 h = (km_long4)km_deinterleave(km_round16(from));
    h = __builtin_shufflevector(h, h, 0, 2, 1, 3);
    __builtin_memcpy(to, &h, sizeof h);
}
#else
#define NARROW16_BF16 km_narrow16_each

KM_VECTOR void PUT16_BF16(uint16_t *to, const float *from) {
    for (int i = 0; i < 16; i++) to[i] = F32_TO_BF16(from[i]);
}
#endif

#if defined __AVX2__ && !defined __AVX512F__ && !defined __clang__
typedef uint32_t km_word4 __attribute__((vector_size(16)));

KM_VECTOR km_word8 km_words(const float *low, const float *high) {
    km_word4 a, b;
    __builtin_memcpy(&a, low, sizeof a);
    __builtin_memcpy(&b, high, sizeof b);
    return __builtin_shufflevector(a, b, 0, 1, 2, 3, 4, 5, 6, 7);
}

/* Returns the number converted; 0 if the piece has a NaN. NaN is rare: the
   whole piece is searched for one before any is replaced. */
KM_VECTOR int64_t km_round_all(uint16_t *to, const float *from, int64_t n,
                               int in_order) {
    km_word8 nan = {0}, a, b;
    int64_t i = 0;
    for (; i + 16 <= n; i += 16) {
        if (in_order) {
            a = km_words(from + i, from + i + 8);
            b = km_words(from + i + 4, from + i + 12);
        } else {
            __builtin_memcpy(&a, from + i, sizeof a);
            __builtin_memcpy(&b, from + i + 8, sizeof b);
        }
        km_char32 h = (km_char32)km_round_pairs(a, b);
        nan |= km_unordered(a, b);
        if (in_order) h = km_deinterleave(h);
        __builtin_memcpy(to + i, &h, sizeof h);
    }
    return __builtin_ia32_movmskps256((km_real8)nan) ? 0 : i;
}

KM_CALLED void NARROW_BF16(uint16_t *restrict to, const float *restrict from,
                           int64_t n) {
    int64_t i = km_round_all(to, from, n, 0);
    km_narrow_each(to + i, from + i, n - i);
}

KM_CALLED void PUT_BF16(uint16_t *restrict to, const float *restrict from,
                        int64_t n) {
    int64_t i = km_round_all(to, from, n, 1);
    km_put_each(to + i, from + i, n - i);
}
#else
#define NARROW_BF16 km_narrow_each
#ifndef __AVX512F__
#define PUT_BF16 km_put_each
#endif
#endif

#ifdef __F16C__
typedef short km_half8 __attribute__((vector_size(16)));
typedef float km_float8 __attribute__((vector_size(32)));
typedef long long km_long2 __attribute__((vector_size(16)));
KM_VECTOR void km_widen8(float *to, const uint16_t *from) {
    km_half8 h;
    __builtin_memcpy(&h, from, sizeof h);
    km_float8 x = __builtin_ia32_vcvtph2ps256(h);
    __builtin_memcpy(to, &x, sizeof x);
}

KM_VECTOR void km_narrow8(uint16_t *to, const float *from) {
    km_float8 x;
    __builtin_memcpy(&x, from, sizeof x);
    km_half8 h = __builtin_ia32_vcvtps2ph256(x, 0); /* nearest even */
    __builtin_memcpy(to, &h, sizeof h);
}

#ifdef __AVX512F__
typedef short km_half16 __attribute__((vector_size(32)));
typedef float km_float16 __attribute__((vector_size(64)));

KM_VECTOR void WIDEN16_F16(float *to, const uint16_t *from) {
    km_half16 h;
    __builtin_memcpy(&h, from, sizeof h);
    km_float16 x = __builtin_ia32_vcvtph2ps512_mask(h, (km_float16){0}, -1, 4);
    __builtin_memcpy(to, &x, sizeof x);
}

KM_VECTOR void NARROW16_F16(uint16_t *to, const float *from) {
    km_float16 x;
    __builtin_memcpy(&x, from, sizeof x);
    km_half16 h = __builtin_ia32_vcvtps2ph512_mask(x, 0, (km_half16){0}, -1);
    __builtin_memcpy(to, &h, sizeof h);
}
#else
KM_VECTOR void WIDEN16_F16(float *to, const uint16_t *from) {
    km_widen8(to, from);
    km_widen8(to + 8, from + 8);
}

KM_VECTOR void NARROW16_F16(uint16_t *to, const float *from) {
    km_narrow8(to, from);
    km_narrow8(to + 8, from + 8);
}
#endif

/* Converts the last n % 16 elements: the last vector may overlap the
   previous one. */
KM_CALLED void km_widen_rest(float *to, const uint16_t *from, int64_t n) {
    float wide[8];
    uint16_t half[8] = {0};
    int64_t i = n & -16;
    if (i + 8 < n) km_widen8(to + i, from + i);
    if (n >= 8) {
        km_widen8(to + n - 8, from + n - 8);
    } else {
        __builtin_memcpy(half, from, 2 * (uint64_t)n);
        km_widen8(wide, half);
        __builtin_memcpy(to, wide, 4 * (uint64_t)n);
    }
}

KM_CALLED void km_narrow_rest(uint16_t *to, const float *from, int64_t n) {
    float wide[8] = {0};
    uint16_t half[8];
    int64_t i = n & -16;
    if (i + 8 < n) km_narrow8(to + i, from + i);
    if (n >= 8) {
        km_narrow8(to + n - 8, from + n - 8);
    } else {
        __builtin_memcpy(wide, from, 4 * (uint64_t)n);
        km_narrow8(half, wide);
        __builtin_memcpy(to, half, 2 * (uint64_t)n);
    }
}

/* Converts n < 16 elements; n is mostly a constant. */
KM_VECTOR void WIDEN_REST_F16(float *to, const uint16_t *from, int64_t n) {
    km_float8 x;
    if (n & 8) km_widen8(to, from);
    if (n & 4) {
        uint64_t four;
        __builtin_memcpy(&four, from + (n & 8), sizeof four);
        x = __builtin_ia32_vcvtph2ps256((km_half8)(km_long2){(long long)four});
        __builtin_memcpy(to + (n & 8), &x, 16);
    }
    for (int64_t i = n & 12; i < n; i++) {
        x = __builtin_ia32_vcvtph2ps256((km_half8){(short)from[i]});
        to[i] = x[0];
    }
}

KM_VECTOR void NARROW_REST_F16(uint16_t *to, const float *from, int64_t n) {
    if (n & 8) km_narrow8(to, from);
    for (int64_t i = n & 8; i < n; i++)
        to[i] =
            (uint16_t)__builtin_ia32_vcvtps2ph256((km_float8){from[i]}, 0)[0];
}

/* Pieces are often short: a call would cost as much as the conversion. */
KM_VECTOR void WIDEN_F16(float *to, const uint16_t *from, int64_t n) {
    for (int64_t i = 0; i + 16 <= n; i += 16) WIDEN16_F16(to + i, from + i);
    if (n & 15) km_widen_rest(to, from, n);
}

KM_VECTOR void NARROW_F16(uint16_t *to, const float *from, int64_t n) {
    for (int64_t i = 0; i + 16 <= n; i += 16) NARROW16_F16(to + i, from + i);
    if (n & 15) km_narrow_rest(to, from, n);
}
#else
/* Long functions are called for a block or for a piece. */
#define WIDEN16_F16(to, from)  WIDEN_F16(to, from, 16)
#define NARROW16_F16(to, from) NARROW_F16(to, from, 16)
#define WIDEN_REST_F16         WIDEN_F16
#define NARROW_REST_F16        NARROW_F16

KM_CALLED void WIDEN_F16(float *to, const uint16_t *from, int64_t n) {
    for (int64_t i = 0; i < n; i++) to[i] = F16_TO_F32(from[i]);
}

KM_CALLED void NARROW_F16(uint16_t *to, const float *from, int64_t n) {
    for (int64_t i = 0; i < n; i++) to[i] = F32_TO_F16(from[i]);
}
#endif

/* Arrays of 8-bit floats. */
#define KM_BYTES(E)                                                            \
    KM_CALLED void WIDEN_##E(float *restrict to, const uint8_t *restrict from, \
                             int64_t n) {                                      \
        for (int64_t i = 0; i < n; i++) to[i] = E##_TO_F32(from[i]);           \
    }                                                                          \
    KM_CALLED void NARROW_##E(uint8_t *restrict to,                            \
                              const float *restrict from, int64_t n) {         \
        for (int64_t i = 0; i < n; i++) to[i] = F32_TO_##E(from[i]);           \
    }                                                                          \
    KM_VECTOR void WIDEN16_##E(float *to, const uint8_t *from) {               \
        WIDEN_##E(to, from, 16);                                               \
    }                                                                          \
    KM_VECTOR void NARROW16_##E(uint8_t *to, const float *from) {              \
        NARROW_##E(to, from, 16);                                              \
    }                                                                          \
    KM_VECTOR void WIDEN_REST_##E(float *to, const uint8_t *from, int64_t n) { \
        WIDEN_##E(to, from, n);                                                \
    }                                                                          \
    KM_VECTOR void NARROW_REST_##E(uint8_t *to, const float *from,             \
                                   int64_t n) {                                \
        NARROW_##E(to, from, n);                                               \
    }
KM_BYTES(F8E4M3)
KM_BYTES(F8E5M2)
KM_BYTES(E8M0)
#endif

/* ---- to integers: towards zero, saturating, NaN gives 0 ------------------ */

/* Small values separately: gcc combines the conversion to an integer and
   back into one truncation, which would turn -0.5 into -0 at the ISA levels
   that have one. */
KM_INLINE int64_t TO_I64_F64(double x) {
    return !(x >= 1 || x <= -1) ? 0
           : x >= 0x1p63        ? INT64_MAX
           : x < -0x1p63        ? INT64_MIN
                                : (int64_t)x;
}

KM_INLINE int64_t TO_I64_F32(float x) { return TO_I64_F64((double)x); }

/* Of numbers that int32_t has; NaN gives 0. */
KM_INLINE int32_t TO_I32_F32(float x) { return x == x ? (int32_t)x : 0; }
KM_INLINE int32_t TO_I32_F64(double x) { return x == x ? (int32_t)x : 0; }

/* ---- fp32 ---------------------------------------------------------------- */

KM_INLINE float ABS_F32(float x) { return km_float(km_bits(x) & 0x7fffffffu); }
KM_INLINE float km_sign_of(float x, float sign) { /* x >= 0 */
    return km_float(km_bits(x) | (km_bits(sign) & 0x80000000u));
}
KM_INLINE float SIGN_F32(float x) {
    return x > 0 ? 1.0f : x < 0 ? -1.0f : x != x ? x : 0.0f;
}
KM_INLINE float FLOOR_F32(float x) { return floorf(x); }
KM_INLINE float CEIL_F32(float x) { return ceilf(x); }
KM_INLINE float ROUND_F32(float x) { return rintf(x); }
KM_INLINE float SQRT_F32(float x) { return sqrtf(x); }
KM_INLINE float DIV_F32(float x, float y) { return x / y; }
KM_INLINE int ISNAN_F32(float x) { return x != x; }
KM_INLINE int ISINF_F32(float x) { return ABS_F32(x) == INFINITY; }
KM_INLINE int ISFINITE_F32(float x) { return ABS_F32(x) < INFINITY; }
static inline float SIN_F32(float x) { return sinf(x); }
static inline float COS_F32(float x) { return cosf(x); }
static inline float TAN_F32(float x) { return tanf(x); }

/* 2^k for integers k in [-126, 127] */
KM_INLINE float km_pow2(int32_t k) {
    return km_float((uint32_t)(k + 127) << 23);
}

#if defined KM_GPU && defined __CUDACC_RTC__ /* otherwise the test defines it  \
                                              */
KM_INLINE float km_ex2(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
KM_INLINE float km_rcp(float x) {
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
/* x limited to [low, high]; NaN stays. */
KM_INLINE float km_between(float x, float low, float high) {
    asm("max.NaN.f32 %0, %0, %1;" : "+f"(x) : "f"(low));
    asm("min.NaN.f32 %0, %0, %1;" : "+f"(x) : "f"(high));
    return x;
}
#endif

/* x / y, y >= 1; on a GPU 0 if y is 2^126 or more */
KM_INLINE float km_divide(float x, float y) {
#ifdef KM_GPU
    return x * km_rcp(y);
#else
    return x / y;
#endif
}

/* Multiply-adds that round once are one instruction; what --target c writes
   has the same bits everywhere and never uses them. */
#if defined KM_GPU ||                                                          \
    (!defined AMPC_PORTABLE && (defined __FMA__ || defined __ARM_FEATURE_FMA))
#define KM_FUSED
#endif

/* a b + c, rounded once if that is one instruction: the functions below then
   take 0.6 to 0.8 times as long. */
KM_INLINE float km_fma(float a, float b, float c) {
#ifdef KM_FUSED
    return fmaf(a, b, c);
#else
    return a * b + c;
#endif
}

/* y^2 - sq, exactly, where sq is y^2 rounded to fp32 */
KM_INLINE float km_square_rest(float y, float sq) {
#ifdef KM_FUSED
    return fmaf(y, y, -sq);
#else
    float hi = km_float(km_bits(y) & 0xfffff000u), lo = y - hi;
    return (hi * hi - sq) + 2.0f * hi * lo + lo * lo;
#endif
}

/* e^x: x = k ln 2 + r, a polynomial in r, two exact scalings; or 2^h (1 - l ln
   2), where h - l is x / ln 2. */
KM_INLINE float EXP_F32(float x) {
    float t, r, p;
#ifdef KM_GPU
    x = km_between(x, -105.0f, 89.0f);
    t = x * 0x1.715476p+0f;
    r = fmaf(x, -0x1.4ae0cp-26f, fmaf(x, -0x1.715476p+0f, t));
    p = km_ex2(t);
    return p * fmaf(r, -0x1.62e43p-1f, 1.0f);
#else
    /* Clamp: e^-104 is below half of the smallest subnormal (a masked
       score). Without it, a result that underflows would cost hundreds of
       cycles. */
    float given = x, k;
    int32_t n;
    x = x < -104.0f ? 0.0f : x;
    x = x > 89.0f ? 89.0f : x;
    /* the nearest integer, as its bits */
    t = km_fma(x, 0x1.715476p+0f, 0x1.8p+23f);
    n = (int32_t)(km_bits(t) - 0x4b400000u);
    k = t - 0x1.8p+23f;
    r = km_fma(k, -0x1.0bfbe8p-15f, km_fma(k, -0x1.62ep-1f, x));
    p = 0x1.9f02dp-13f;
    p = km_fma(p, r, 0x1.6d945cp-10f);
    p = km_fma(p, r, 0x1.11128p-7f);
    p = km_fma(p, r, 0x1.555486p-5f);
    p = km_fma(p, r, 0x1.555554p-3f);
    p = km_fma(p, r, 0.5f);
    p = km_fma(p, r * r, r) + 1.0f;
    p = p * km_pow2(n >> 1) * km_pow2(n - (n >> 1));
    return given < -104.0f ? 0.0f : p;
#endif
}

/* ln x: x = 2^k m, sqrt(1/2) <= m < sqrt(2), a polynomial in m - 1. */
KM_INLINE float LOG_F32(float x) {
    float y = x < 0x1p-126f ? x * 0x1p+23f : x; /* subnormal */
    uint32_t u = km_bits(y) - 0x3f3504f3u;
    float k = (float)((int32_t)u >> 23) - (x < 0x1p-126f ? 23.0f : 0.0f);
    float f = km_float((u & 0x7fffffu) + 0x3f3504f3u) - 1.0f;
    float p = 0x1.1456cep-4f, s = f * f;
    p = km_fma(p, f, -0x1.de65fp-4f);
    p = km_fma(p, f, 0x1.e70736p-4f);
    p = km_fma(p, f, -0x1.fc1d4cp-4f);
    p = km_fma(p, f, 0x1.2335aep-3f);
    p = km_fma(p, f, -0x1.555c5cp-3f);
    p = km_fma(p, f, 0x1.99a4cap-3f);
    p = km_fma(p, f, -0x1.000006p-2f);
    p = km_fma(p, f, 0x1.555548p-2f);
    p = km_fma(p, s * f, k * 0x1.7f7d1cp-20f) - 0.5f * s + f;
    p = km_fma(k, 0x1.62e4p-1f, p);
    p = x == 0 ? -INFINITY : p;
    p = x < 0 ? NAN : p;
    return x < INFINITY ? p : x; /* infinity and NaN are returned unchanged */
}

/* ln(1 + x), 0 <= x <= 1 */
KM_INLINE float km_log1p(float x) {
    float u = 1.0f + x;
    return LOG_F32(u) + (x - (u - 1.0f)) / u;
}

KM_INLINE float SIGMOID_F32(float x) {
#ifdef KM_GPU
    return km_divide(1.0f, 1.0f + EXP_F32(-x));
#else
    float e = EXP_F32(-ABS_F32(x));
    return km_divide(x < 0 ? e : 1.0f, 1.0f + e);
#endif
}

KM_INLINE float LOG_SIGMOID_F32(float x) {
    float low = x < 0 ? x : 0.0f;
    float r = low - km_log1p(EXP_F32(-ABS_F32(x)));
    return x != x ? x : r;
}

KM_INLINE float TANH_F32(float x) {
    float a = ABS_F32(x), s = x * x, p = -0x1.7af50cp-8f;
    float big = 1.0f - km_divide(2.0f, EXP_F32(2.0f * a) + 1.0f);
    p = km_fma(p, s, 0x1.533916p-6f);
    p = km_fma(p, s, -0x1.b863dcp-5f);
    p = km_fma(p, s, 0x1.110842p-3f);
    p = km_fma(p, s, -0x1.555538p-2f);
    p = km_fma(x, s * p, x);
    return a < 0.6f ? p : x != x ? x : km_sign_of(big, x);
}

/* For y >= 0, with phi and Phi the normal density and distribution function:
   1 - Phi(y) - slope y phi(y), where 1 - Phi(y) = erfc(y / sqrt 2) / 2 is
   e^(-y^2/2) times a polynomial in 1/(1 + 0.3 y); the square is kept in two
   floats. */
KM_INLINE float km_upper_tail(float y, float slope) {
    float sq, err, u, p;
    y = y > 15.0f ? 15.0f : y;
    sq = y * y;
    err = km_square_rest(y, sq);
    u = km_divide(1.0f, km_fma(0.3f, y, 1.0f));
    p = 0x1.3aa284p-5f;
    p = km_fma(p, u, -0x1.5abe5p-3f);
    p = km_fma(p, u, 0x1.d4e588p-3f);
    p = km_fma(p, u, -0x1.3abe18p-4f);
    p = km_fma(p, u, 0x1.2462bap-3f);
    p = km_fma(p, u, 0x1.836bfcp-4f);
    p = km_fma(p, u, 0x1.f37cfep-4f);
    p = km_fma(p, u, 0x1.e96842p-4f);
    p = km_fma(p, u, 0x1.eecda8p-18f);
    p = km_fma(-slope, y, p);
    return EXP_F32(-0.5f * sq) * km_fma(p, -0.5f * err, p);
}

KM_INLINE float ERF_F32(float x) {
    float a = ABS_F32(x), s = x * x, p = 0x1.165cdap-8f;
    float big = km_fma(-2.0f, km_upper_tail(a * 0x1.6a09e6p+0f, 0.0f), 1.0f);
    p = km_fma(p, s, -0x1.b142f8p-6f);
    p = km_fma(p, s, 0x1.cddf4cp-4f);
    p = km_fma(p, s, -0x1.8126p-2f);
    p = km_fma(p, s, 0x1.20dd74p+0f);
    return a < 0.7f ? x * p : x != x ? x : km_sign_of(big, x);
}

/* x times the normal distribution function */
KM_INLINE float GELU_F32(float x) {
    float q = km_upper_tail(ABS_F32(x), 0.0f);
    return x * (x < 0 ? q : 1.0f - q);
}

/* Phi(x) + x phi(x), its derivative */
KM_INLINE float GELU_SLOPE_F32(float x) {
    float s = km_upper_tail(ABS_F32(x), 0x1.988454p-2f);
    return x < 0 ? s : 1.0f - s;
}

/* x/2 (1 + tanh u) = x sigmoid(2u) */
KM_INLINE float GELU_TANH_F32(float x) {
    float u = 0x1.988454p+0f * km_fma(0.044715f * x * x, x, x);
    return x * SIGMOID_F32(u);
}

/* ---- fp32 by way of doubles: a short series, rounded once ---------------- */

/* log2 a for a > 0, also infinity */
KM_INLINE double km_log2(double a) {
    uint64_t u = km_bits64(a) - UINT64_C(0x3fe6a09e667f3bcd);
    double k = (double)((int32_t)(u >> 32) >> 20);
    double m = km_double((u & UINT64_C(0xfffffffffffff)) +
                         UINT64_C(0x3fe6a09e667f3bcd));
    double s = (m - 1) / (m + 1), z = s * s, p;
    p = 1.0 / 15;
    p = p * z + 1.0 / 13;
    p = p * z + 1.0 / 11;
    p = p * z + 1.0 / 9;
    p = p * z + 1.0 / 7;
    p = p * z + 1.0 / 5;
    p = p * z + 1.0 / 3;
    p = p * z + 1.0;
    p = k + s * p * 0x1.71547652b82fep+1;
    return a < (double)INFINITY ? p : a;
}

/* 2^t, |t| <= 200 */
KM_INLINE double km_exp2(double t) {
    double n = t + 0x1.8p+52; /* the nearest integer, as its bits */
    double f = (t - (n - 0x1.8p+52)) * 0x1.62e42fefa39efp-1, r;
    r = 1.0 / 3628800;
    r = r * f + 1.0 / 362880;
    r = r * f + 1.0 / 40320;
    r = r * f + 1.0 / 5040;
    r = r * f + 1.0 / 720;
    r = r * f + 1.0 / 120;
    r = r * f + 1.0 / 24;
    r = r * f + 1.0 / 6;
    r = r * f + 0.5;
    r = r * f + 1.0;
    r = r * f + 1.0;
    return r * km_double((km_bits64(n) + 1023) << 52);
}

KM_INLINE float POW_F32(float x, float y) {
    float a = ABS_F32(x);
    double p = a == 0 ? -(double)INFINITY : km_log2((double)a);
    double t = (a != a ? (double)a : p) * (double)y;
    t = t > 200 ? 200 : t;
    t = t < -200 ? -200 : t;
    float q = (float)km_exp2(t), half = y * 0.5f;
    int whole = rintf(y) == y;
    int odd = whole & (rintf(half) != half);
    int negative = km_bits(x) >> 31;
    int defined = whole | (x == 0) | (a == INFINITY);
    /* consecutive selects: gcc turns nested selects into branches */
    q = (negative & odd) ? -q : q;
    q = (negative & !defined) ? NAN : q;
    q = ((x != x) | (y != y)) ? x + y : q;
    q = ((a == 1.0f) & (ABS_F32(y) == INFINITY)) ? 1.0f : q;
    return ((y == 0) | (x == 1.0f)) ? 1.0f : q;
}

#ifdef __CUDACC_RTC__ /* double is slow on GPUs */
static inline float MOD_F32(float x, float y) { return fmodf(x, y); }
static inline float ASIN_F32(float x) { return asinf(x); }
static inline float ACOS_F32(float x) { return acosf(x); }
static inline float ATAN_F32(float x) { return atanf(x); }
static inline float SINH_F32(float x) { return sinhf(x); }
static inline float COSH_F32(float x) { return coshf(x); }
static inline float ASINH_F32(float x) { return asinhf(x); }
static inline float ACOSH_F32(float x) { return acoshf(x); }
static inline float ATANH_F32(float x) { return atanhf(x); }
#else
/* A quotient below 2^29 times y is exact, or one too large if it was rounded
   up. */
static inline float MOD_F32(float x, float y) {
    double a = (double)ABS_F32(x), b = (double)ABS_F32(y), q = a / b, r;
    if (!(q < 0x1p+29) | !(b < (double)INFINITY)) return fmodf(x, y);
    r = a - (double)(int32_t)q * b;
    return km_sign_of((float)(r < 0 ? r + b : r), x);
}

/* asin r, |r| <= 1/2, z = r^2 */
KM_INLINE double km_asin(double r, double z) {
    double p = 0x1.365ead2021a8cp-5;
    p = p * z + 0x1.cf4ac34d4d4eap-7;
    p = p * z + 0x1.055557e80d1d3p-5;
    p = p * z + 0x1.6c91ad5f69d39p-5;
    p = p * z + 0x1.333989380000ep-4;
    p = p * z + 0x1.55554847f7113p-3;
    p = p * z + 0x1.0000000118088p+0;
    return p * r;
}

/* Beyond 1/2: asin a = pi/2 - 2 asin(sqrt((1 - a)/2)). */
KM_INLINE float ASIN_F32(float x) {
    double a = (double)ABS_F32(x), half = (1 - a) * 0.5, p;
    int far = a > 0.5;
    p = km_asin(far ? sqrt(half) : a, far ? half : a * a);
    p = far ? 0x1.921fb54442d18p+0 - 2 * p : p;
    return a <= 1 ? km_sign_of((float)p, x) : NAN;
}

KM_INLINE float ACOS_F32(float x) {
    double a = (double)ABS_F32(x), half = (1 - a) * 0.5, p;
    int far = a > 0.5;
    p = km_asin(far ? sqrt(half) : a, far ? half : a * a);
    p = far ? 2 * p : 0x1.921fb54442d18p+0 - p; /* of a */
    p = x < 0 ? 0x1.921fb54442d18p+1 - p : p;
    return a <= 1 ? (float)p : NAN;
}

/* Beyond tan(pi/8) = 1 / tan(3 pi/8): uses atan of (a - 1)/(a + 1) plus
   pi/4, or of -1/a plus pi/2. */
KM_INLINE float ATAN_F32(float x) {
    double a = (double)ABS_F32(x), n, d, r, z, p;
    int near = a<0x1.a827999fcef32p-2, far = a> 0x1.3504f333f9de6p+1;
    n = near ? a : a - 1;
    n = far ? -1 : n;
    d = near ? 1 : a + 1;
    d = far ? a : d;
    r = n / d;
    z = r * r;
    p = -0x1.ee5e3b6c29de6p-5;
    p = p * z + 0x1.b116e049215dfp-4;
    p = p * z - 0x1.23a30a3f45b24p-3;
    p = p * z + 0x1.999040570ca14p-3;
    p = p * z - 0x1.555544149d197p-2;
    p = p * z + 0x1.fffffffad1301p-1;
    p = p * r + (near ? 0 : far ? 0x1.921fb54442d18p+0 : 0x1.921fb54442d18p-1);
    return x != x ? x : km_sign_of((float)p, x);
}

KM_INLINE float SINH_F32(float x) {
    double a = (double)ABS_F32(x), e, s;
    a = a > 90 ? 90 : a;
    e = km_exp2(a * 0x1.71547652b82fep+0);
    s = a < 0x1p-10 ? a + a * a * a * (1.0 / 6) : (e - 1 / e) * 0.5;
    return x != x ? x : km_sign_of((float)s, x);
}

KM_INLINE float COSH_F32(float x) {
    double a = (double)ABS_F32(x), e;
    a = a > 90 ? 90 : a;
    e = km_exp2(a * 0x1.71547652b82fep+0);
    return x != x ? x : (float)((e + 1 / e) * 0.5);
}

KM_INLINE float ASINH_F32(float x) {
    double a = (double)ABS_F32(x), s;
    s = km_log2(a + sqrt(a * a + 1)) * 0x1.62e42fefa39efp-1;
    s = a < 0x1p-10 ? a - a * a * a * (1.0 / 6) : s;
    return x != x ? x : km_sign_of((float)s, x);
}

KM_INLINE float ACOSH_F32(float x) {
    double a = (double)x;
    double s = km_log2(a + sqrt(a * a - 1)) * 0x1.62e42fefa39efp-1;
    return x >= 1 ? (float)s : x != x ? x : NAN;
}

KM_INLINE float ATANH_F32(float x) {
    double a = (double)ABS_F32(x), s;
    s = km_log2((1 + a) / (1 - a)) * 0x1.62e42fefa39efp-2;
    s = a < 0x1p-10 ? a + a * a * a * (1.0 / 3) : s;
    return a <= 1 ? km_sign_of((float)s, x) : NAN;
}
#endif

/* ---- fp64 ---------------------------------------------------------------- */

static inline double ABS_F64(double x) { return fabs(x); }
static inline double SIGN_F64(double x) {
    return x > 0 ? 1 : x < 0 ? -1 : x != x ? x : 0;
}
static inline double FLOOR_F64(double x) { return floor(x); }
static inline double CEIL_F64(double x) { return ceil(x); }
static inline double ROUND_F64(double x) { return rint(x); }
static inline double SQRT_F64(double x) { return sqrt(x); }
static inline double DIV_F64(double x, double y) { return x / y; }
static inline int ISNAN_F64(double x) { return x != x; }
static inline int ISINF_F64(double x) { return fabs(x) == INFINITY; }
static inline int ISFINITE_F64(double x) { return fabs(x) < INFINITY; }
/* Versions of functions that glibc 2.17 has, too (runtime/base/glibc.h). */
#if defined __GLIBC__ && !defined AMPC_PORTABLE
#if defined __aarch64__
#define KM_GLIBC "@GLIBC_2.17"
#else
#define KM_GLIBC "@GLIBC_2.2.5"
#endif
__asm__(".symver exp,exp" KM_GLIBC);
__asm__(".symver fmod,fmod" KM_GLIBC);
__asm__(".symver log,log" KM_GLIBC);
__asm__(".symver pow,pow" KM_GLIBC);
#endif

static inline double MOD_F64(double x, double y) { return fmod(x, y); }
static inline double POW_F64(double x, double y) { return pow(x, y); }
static inline double SIN_F64(double x) { return sin(x); }
static inline double COS_F64(double x) { return cos(x); }
static inline double TAN_F64(double x) { return tan(x); }
static inline double ASIN_F64(double x) { return asin(x); }
static inline double ACOS_F64(double x) { return acos(x); }
static inline double ATAN_F64(double x) { return atan(x); }
static inline double SINH_F64(double x) { return sinh(x); }
static inline double COSH_F64(double x) { return cosh(x); }
static inline double ASINH_F64(double x) { return asinh(x); }
static inline double ACOSH_F64(double x) { return acosh(x); }
static inline double ATANH_F64(double x) { return atanh(x); }
static inline double EXP_F64(double x) { return exp(x); }
static inline double LOG_F64(double x) { return log(x); }
static inline double ERF_F64(double x) { return erf(x); }
static inline double TANH_F64(double x) { return tanh(x); }
static inline double SIGMOID_F64(double x) {
    double e = exp(-fabs(x));
    return (x < 0 ? e : 1) / (1 + e);
}
static inline double LOG_SIGMOID_F64(double x) {
    return x != x ? x : (x < 0 ? x : 0) - log1p(exp(-fabs(x)));
}
static inline double GELU_F64(double x) {
    return 0.5 * x * erfc(x * -0x1.6a09e667f3bcdp-1);
}
static inline double GELU_SLOPE_F64(double x) {
    double y = fabs(x) > 40 ? 40 : fabs(x);
    double s = 0.5 * erfc(y * 0x1.6a09e667f3bcdp-1) -
               y * exp(-0.5 * y * y) * 0x1.9884533d43651p-2;
    return x < 0 ? s : 1 - s;
}
static inline double GELU_TANH_F64(double x) {
    return x * SIGMOID_F64(0x1.9884533d43651p+0 * (x + 0.044715 * x * x * x));
}

/* ---- integers: wrap, and never trap -------------------------------------- */

static inline int64_t ABS_I64(int64_t x) {
    return x < 0 ? (int64_t)(0 - (uint64_t)x) : x;
}
static inline int64_t SIGN_I64(int64_t x) { return (x > 0) - (x < 0); }
static inline int64_t DIV_I64(int64_t x, int64_t y) {
    if (y == 0) return 0;
    return y == -1 ? (int64_t)(0 - (uint64_t)x) : x / y;
}
static inline int64_t BIT_AND_I64(int64_t x, int64_t y) { return x & y; }
/* the result has the divisor's sign */
static inline int64_t MOD_I64(int64_t x, int64_t y) {
    int64_t r = y == 0 || y == -1 ? 0 : x % y;
    return r != 0 && (r < 0) != (y < 0) ? r + y : r;
}
static inline int64_t POW_I64(int64_t x, int64_t y) {
    uint64_t r = 1, b = (uint64_t)x;
    if (y < 0) return x == 1 ? 1 : x == -1 ? (y % 2 ? -1 : 1) : 0;
    for (; y > 0; y /= 2, b *= b)
        if (y % 2) r *= b;
    return (int64_t)r;
}

/* ---- random numbers ------------------------------------------------------ */

/* Philox 4x32-10: key = seed, counter = (block, count, salt). */
typedef struct KmPhilox {
    uint32_t a, b, c, d;
} KmPhilox;

KM_INLINE KmPhilox km_philox(int64_t seed, int64_t count, uint64_t block,
                             int64_t salt) {
    uint32_t k0 = (uint32_t)seed, k1 = (uint32_t)((uint64_t)seed >> 32);
    uint32_t a = (uint32_t)block, b = (uint32_t)(block >> 32);
    uint32_t c = (uint32_t)count, d = (uint32_t)salt;
    for (int round = 0; round < 10; round++) {
        uint64_t p = (uint64_t)a * 0xd2511f53u, q = (uint64_t)c * 0xcd9e8d57u;
        a = (uint32_t)(q >> 32) ^ b ^ k0;
        c = (uint32_t)(p >> 32) ^ d ^ k1;
        b = (uint32_t)q;
        d = (uint32_t)p;
        k0 += 0x9e3779b9u;
        k1 += 0xbb67ae85u;
    }
    KmPhilox word = {a, b, c, d};
    return word;
}

/* One word for each element i: word i % 4 of block i / 4; uniform in [0, 1)
   with 24 bits. */
KM_INLINE float PHILOX(int64_t seed, int64_t count, int64_t i, int64_t salt) {
    KmPhilox w = km_philox(seed, count, (uint64_t)i >> 2, salt);
    uint32_t low = i & 1 ? w.b : w.a, high = i & 1 ? w.d : w.c;
    return (float)(int32_t)((i & 2 ? high : low) >> 8) * 0x1p-24f;
}

/* ---- folds --------------------------------------------------------------- */

#ifndef __cplusplus /* GPU kernels fold across threads: cuda/fold.cuh */

/* Sets each of the 16 lanes for which p[i..n) has an element; FROM holds the
   previous values of the lanes. */
#ifdef __AVX2__ /* loads only some lanes of a vector */
#define KM_REST(T, START, FROM, EXPR)                                          \
    const T *restrict rest = p + i;                                            \
    T some[16];                                                                \
    int left = (int)(n - i);                                                   \
    for (int k = 0; k < 16; k++) some[k] = k < left ? rest[k] : START;         \
    for (int k = 0; k < 16; k++) {                                             \
        x = FROM, y = some[k];                                                 \
        lane[k] = EXPR;                                                        \
    }
#else
#define KM_REST(T, START, FROM, EXPR)                                          \
    for (int k = 0; k < (int)(n - i); k++) {                                   \
        x = lane[k], y = p[i + k];                                             \
        lane[k] = EXPR;                                                        \
    }
#endif

#define KM_HALF(w, T, from, to, EXPR)                                          \
    T to[w];                                                                   \
    for (int k = 0; k < (w); k++) {                                            \
        x = from[k], y = from[k + (w)];                                        \
        to[k] = EXPR;                                                          \
    }

/* acc folded with p[0..n): 16 lanes, then halves of the lanes.  The order
   depends on n alone. */
#define KM_FOLD(NAME, T, START, LOOP, EXPR)                                    \
    KM_CALLED T NAME(T acc, const T *restrict p, int64_t n) {                  \
        T lane[16], x, y;                                                      \
        int64_t i = 0;                                                         \
        if (n <= 4) { /* one by one: a vector load would wait for stores just  \
                         made */                                               \
            T even = START, odd = START;                                       \
            if (n > 0) x = even, y = p[0], even = EXPR;                        \
            if (n > 2) x = even, y = p[2], even = EXPR;                        \
            if (n > 1) x = odd, y = p[1], odd = EXPR;                          \
            if (n > 3) x = odd, y = p[3], odd = EXPR;                          \
            x = even, y = odd;                                                 \
            y = EXPR, x = acc;                                                 \
            return EXPR;                                                       \
        }                                                                      \
        for (int k = 0; k < 16; k++) lane[k] = START;                          \
        for (; i + 16 <= n; i += 16) {                                         \
            LOOP for (int k = 0; k < 16; k++) {                                \
                x = lane[k], y = p[i + k];                                     \
                lane[k] = EXPR;                                                \
            }                                                                  \
        }                                                                      \
        if (i == 0) {                                                          \
            KM_REST(T, START, START, EXPR)                                     \
        } else if (i < n) {                                                    \
            KM_REST(T, START, lane[k], EXPR)                                   \
        }                                                                      \
        KM_HALF(8, T, lane, eight, EXPR)                                       \
        KM_HALF(4, T, eight, four, EXPR)                                       \
        KM_HALF(2, T, four, two, EXPR)                                         \
        x = two[0], y = two[1];                                                \
        y = EXPR, x = acc;                                                     \
        return EXPR;                                                           \
    }

/* acc and t[0..16), folded as KM_FOLD does; inlined. */
#define KM_SUM_LANES(S, T)                                                     \
    KM_VECTOR T SUM_LANES_##S(T acc, const T *t) {                             \
        T eight[8], four[4];                                                   \
        for (int k = 0; k < 8; k++) eight[k] = t[k] + t[k + 8];                \
        for (int k = 0; k < 4; k++) four[k] = eight[k] + eight[k + 4];         \
        return acc + ((four[0] + four[2]) + (four[1] + four[3]));              \
    }
KM_SUM_LANES(F32, float)
KM_SUM_LANES(F64, double)

/* `|` because || would branch; keeps NaN */
#define KM_LARGER  (((y > x) | (y != y)) ? y : x)
#define KM_SMALLER (((y < x) | (y != y)) ? y : x)
#define KM_FOLDS(S, T, LEAST, MOST)                                            \
    KM_FOLD(FOLD_SUM_##S, T, 0, , x + y)                                       \
    KM_FOLD(FOLD_PROD_##S, T, 1, , x *y)                                       \
    KM_FOLD(FOLD_MAX_##S, T, LEAST, KM_NO_UNROLL, KM_LARGER)                   \
    KM_FOLD(FOLD_MIN_##S, T, MOST, KM_NO_UNROLL, KM_SMALLER)
KM_FOLDS(F32, float, -INFINITY, INFINITY)
KM_FOLDS(F64, double, -(double)INFINITY, (double)INFINITY)
KM_FOLD(FOLD_SUM_I64, int64_t, 0, , (int64_t)((uint64_t)x + (uint64_t)y))
KM_FOLD(FOLD_PROD_I64, int64_t, 1, , (int64_t)((uint64_t)x *(uint64_t)y))
KM_FOLD(FOLD_MAX_I64, int64_t, INT64_MIN, , y > x ? y : x)
KM_FOLD(FOLD_MIN_I64, int64_t, INT64_MAX, , y < x ? y : x)

#endif /* __cplusplus */
#endif
