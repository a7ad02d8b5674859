/* SPDX-License-Identifier: Apache-2.0 */
/* kmath_called.h: the bodies of the functions that kmath_calls.h declares. */
#ifndef AMPC_KMATH_CALLED_H
#define AMPC_KMATH_CALLED_H

/* ---- folds --------------------------------------------------------------- */

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
    T NAME(T acc, const T *restrict p, int64_t n) {                            \
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

/* ---- bf16 ---------------------------------------------------------------- */

void WIDEN_BF16(float *restrict to, const uint16_t *restrict from, int64_t n) {
    for (; n >= 16; n -= 16, to += 16, from += 16) WIDEN16_BF16(to, from);
    for (int64_t i = 0; i < n; i++) to[i] = BF16_TO_F32(from[i]);
}

void PACK_BF16(uint16_t *restrict to, const float *restrict from, int64_t n) {
    for (; n >= 16; n -= 16, to += 16, from += 16) PACK16_BF16(to, from);
    for (int64_t i = 0; i < n; i++) to[i] = EXACT_BF16(from[i]);
}

#if defined __AVX2__ && !defined __AVX512F__ && !defined __clang__
typedef uint32_t km_word4 __attribute__((vector_size(16)));
typedef int km_int4 __attribute__((vector_size(16)));

KM_VECTOR km_word8 km_words(const float *low, const float *high) {
    km_word4 a, b;
    __builtin_memcpy(&a, low, sizeof a);
    __builtin_memcpy(&b, high, sizeof b);
    return (km_word8)__builtin_ia32_vinsertf128_si256(
        __builtin_ia32_si256_si((km_int4)a), (km_int4)b, 1);
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
#else
#define km_round_all(to, from, n, in_order) 0
#endif

void NARROW_BF16(uint16_t *restrict to, const float *restrict from, int64_t n) {
    int64_t i = km_round_all(to, from, n, 0);
    for (; i + 16 <= n; i += 16) km_narrow16_each(to + i, from + i);
    for (; i < n; i++) to[i] = F32_TO_BF16(from[i]);
}

#ifndef PUT_BF16
void PUT_BF16(uint16_t *restrict to, const float *restrict from, int64_t n) {
    for (int64_t i = km_round_all(to, from, n, 1); i < n; i++)
        to[i] = F32_TO_BF16(from[i]);
}
#endif

/* ---- fp16 ---------------------------------------------------------------- */

#ifdef __F16C__
/* Converts the last n % 16 elements: the last vector may overlap the
   previous one. */
void km_widen_rest(float *to, const uint16_t *from, int64_t n) {
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

void km_narrow_rest(uint16_t *to, const float *from, int64_t n) {
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
#else
void WIDEN_F16(float *to, const uint16_t *from, int64_t n) {
    for (int64_t i = 0; i < n; i++) to[i] = F16_TO_F32(from[i]);
}

void NARROW_F16(uint16_t *to, const float *from, int64_t n) {
    for (int64_t i = 0; i < n; i++) to[i] = F32_TO_F16(from[i]);
}
#endif

/* ---- 8-bit floats -------------------------------------------------------- */

#define KM_BYTES_CALLED(E)                                                     \
    void WIDEN_##E(float *restrict to, const uint8_t *restrict from,           \
                   int64_t n) {                                                \
        for (int64_t i = 0; i < n; i++) to[i] = E##_TO_F32(from[i]);           \
    }                                                                          \
    void NARROW_##E(uint8_t *restrict to, const float *restrict from,          \
                    int64_t n) {                                               \
        for (int64_t i = 0; i < n; i++) to[i] = F32_TO_##E(from[i]);           \
    }
KM_BYTES_CALLED(F8E5M2)
KM_BYTES_CALLED(E8M0)
#if defined __AVX2__ && !defined __clang__
void WIDEN_F8E4M3(float *to, const uint8_t *from, int64_t n) {
    int64_t i = 0;
    for (; i + 16 <= n; i += 16) WIDEN16_F8E4M3(to + i, from + i);
    if (i < n) WIDEN_REST_F8E4M3(to + i, from + i, n - i);
}

void NARROW_F8E4M3(uint8_t *to, const float *from, int64_t n) {
    int64_t i = 0;
    for (; i + 16 <= n; i += 16) NARROW16_F8E4M3(to + i, from + i);
    if (i < n) NARROW_REST_F8E4M3(to + i, from + i, n - i);
}
#else
KM_BYTES_CALLED(F8E4M3)
#endif

#endif
