/* SPDX-License-Identifier: Apache-2.0 */
/* kmath_calls.h: the part of kmath.h that kernels call and do not copy: folds
   of arrays, conversions of whole arrays. C only; kmath_called.h has the
   bodies.

   They are a level's routines of the runtime (kmath_isa.c) where KM_ROUTINES,
   a string, begins their names: no model compiles them. Else, as in the text of
   --target c, they are static. */
#ifndef AMPC_KMATH_CALLS_H
#define AMPC_KMATH_CALLS_H

#if defined(__GNUC__) && !defined(__clang__)
#define KM_LONG noinline, unused, optimize("O3") /* lanes in registers */
#else
#define KM_LONG noinline, unused
#endif

#ifndef KM_ROUTINES
#define KM_CALL(T, name, ...)                                                  \
    static T name(__VA_ARGS__) __attribute__((KM_LONG));
#elif defined KM_CALLED /* each in a section, which linkers drop */
#define KM_CALL(T, name, ...)                                                  \
    T name(__VA_ARGS__) __asm__(KM_ROUTINES #name)                             \
        __attribute__((KM_LONG, section(".text." KM_ROUTINES #name)));
#else
#define KM_CALL(T, name, ...)                                                  \
    T name(__VA_ARGS__) __asm__(KM_ROUTINES #name)                             \
        __attribute__((visibility("hidden")));
#endif

/* acc folded with p[0..n). */
#define KM_CALL_FOLDS(S, T)                                                    \
    KM_CALL(T, FOLD_SUM_##S, T acc, const T *restrict p, int64_t n)            \
    KM_CALL(T, FOLD_PROD_##S, T acc, const T *restrict p, int64_t n)           \
    KM_CALL(T, FOLD_MAX_##S, T acc, const T *restrict p, int64_t n)            \
    KM_CALL(T, FOLD_MIN_##S, T acc, const T *restrict p, int64_t n)
KM_CALL_FOLDS(F32, float)
KM_CALL_FOLDS(F64, double)
KM_CALL_FOLDS(I64, int64_t)

#define KM_CALL_WIDEN(E, T)                                                    \
    KM_CALL(void, WIDEN_##E, float *restrict to, const T *restrict from,       \
            int64_t n)
#define KM_CALL_NARROW(E, T)                                                   \
    KM_CALL(void, NARROW_##E, T *restrict to, const float *restrict from,      \
            int64_t n)

KM_CALL_WIDEN(BF16, uint16_t)
KM_CALL_NARROW(BF16, uint16_t)
KM_CALL(void, PACK_BF16, uint16_t *restrict to, const float *restrict from,
        int64_t n)
#ifndef __AVX512F__
KM_CALL(void, PUT_BF16, uint16_t *restrict to, const float *restrict from,
        int64_t n)
#endif

#ifdef __F16C__
KM_CALL(void, km_widen_rest, float *to, const uint16_t *from, int64_t n)
KM_CALL(void, km_narrow_rest, uint16_t *to, const float *from, int64_t n)
#else
KM_CALL_WIDEN(F16, uint16_t)
KM_CALL_NARROW(F16, uint16_t)
#endif

KM_CALL_WIDEN(F8E4M3, uint8_t)
KM_CALL_NARROW(F8E4M3, uint8_t)
KM_CALL_WIDEN(F8E5M2, uint8_t)
KM_CALL_NARROW(F8E5M2, uint8_t)
KM_CALL_WIDEN(E8M0, uint8_t)
KM_CALL_NARROW(E8M0, uint8_t)

#endif
