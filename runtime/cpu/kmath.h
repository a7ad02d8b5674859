/* SPDX-License-Identifier: Apache-2.0 */
/* kmath.h: the functions called by generated kernels, in C, in CUDA C++ (NVRTC)
   and in CUDA text compiled for the host.

   The functions of the op table's expressions for each register type (_F32 in
   kmath_f32.h, _F64, _I64), conversions of 16-bit and 8-bit floats
   (kmath_narrow.h), folds over arrays (C only), and the random stream. fp32
   functions are branch-free, so that compilers can vectorise loops around
   them; fp64 functions call libm. All keep NaN and are correct at infinities.
   Compiled without contraction, so that ISA levels and GPUs differ only in the
   last bits of exponentials, logarithms and functions built on them (km_fma).
   fp64 functions, sine, cosine and tangent, and on a GPU the functions that
   are computed in double here, come from each system's library. Nothing else
   is included: parsing this text is part of the compilation time of each
   model. */
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

#include <stdint.h>
#if defined KM_KERNELS && defined __GNUC__ && !defined AMPC_PORTABLE
#include "kmath_libm.h" /* is read in a tenth of math.h's time */
#else
#include <math.h>
#endif

#define KM_INLINE static inline __attribute__((always_inline, unused, const))

#if defined(__GNUC__) && !defined(__clang__) && !defined(__cplusplus) &&       \
    !defined(KM_QUICK)
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

#endif

/* One switch for the GPU's own conversions, exp2 and quotients. EXP_F32 then
   has an error of up to 4 units in the last place (ex2.approx: 2) and is 0
   where the result would be subnormal; TANH_F32 up to 3, ERF_F32 4,
   SIGMOID_F32 and LOG_SIGMOID_F32 6, GELU_F32 11 (kmath_gpu_test.c). All
   other results equal the CPU's, except the sign of a zero that is a maximum
   or minimum. */
#if defined __CUDACC_RTC__ && !defined KM_PORTABLE
#define KM_GPU
/* Compute capability 8.0 and later: one instruction rounds to bf16, or takes a
   maximum that keeps NaN. */
#if __CUDA_ARCH__ >= 800
#define KM_GPU_8
#endif
/* 8.9 and later: one rounds to 8 bits. */
#if __CUDA_ARCH__ >= 890
#define KM_GPU_89
#endif
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

#include "kmath_narrow.h"

/* ---- kernels of one text (C only) ---------------------------------------- */

#ifndef __cplusplus
#include "kmath_calls.h"

#include "kmath_arrays.h"
#include "kmath_size.h"
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

#include "kmath_f32.h"

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

/* ---- folds (C only; GPUs have cuda/fold.cuh) ------------------ */

#ifndef __cplusplus

/* acc and t[0..16), folded as FOLD_SUM does; inlined. */
#define KM_SUM_LANES(S, T)                                                     \
    KM_VECTOR T SUM_LANES_##S(T acc, const T *t) {                             \
        T eight[8], four[4];                                                   \
        for (int k = 0; k < 8; k++) eight[k] = t[k] + t[k + 8];                \
        for (int k = 0; k < 4; k++) four[k] = eight[k] + eight[k + 4];         \
        return acc + ((four[0] + four[2]) + (four[1] + four[3]));              \
    }
KM_SUM_LANES(F32, float)
KM_SUM_LANES(F64, double)

#if !defined KM_ROUTINES || defined KM_CALLED
#include "kmath_called.h"
#endif

#endif /* __cplusplus */
#endif
