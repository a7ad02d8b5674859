/* SPDX-License-Identifier: Apache-2.0 */
/* kmath_arrays.h: the part of kmath.h that converts arrays of 16-bit and 8-bit
   floats; C only. */
#ifndef AMPC_KMATH_ARRAYS_H
#define AMPC_KMATH_ARRAYS_H

/* ---- arrays of 16-bit floats --------------------------------------------- */

/* <NAME>16: for a block of 16, which stays in registers; inlined. */
#define KM_VECTOR static inline __attribute__((always_inline, unused))

/* Two neighbours. */
KM_VECTOR uint32_t km_pair(const uint16_t *p) {
    uint32_t u;
    __builtin_memcpy(&u, p, sizeof u);
    return u;
}
KM_VECTOR void km_put_pair(uint16_t *p, uint32_t u) {
    __builtin_memcpy(p, &u, sizeof u);
}

/* Writes the 8 elements at even positions of 16 first, then the others: a
   conversion without shuffles. The remainder (n % 16) stays in order. */
KM_VECTOR void WIDEN16_BF16(float *to, const uint16_t *from) {
    for (int i = 0; i < 8; i++) {
        uint32_t x = km_pair(from + 2 * i);
        to[i] = km_float(x << 16);
        to[i + 8] = km_float(x & 0xffff0000u);
    }
}

/* from[] must contain values that the 16-bit format can represent. */
KM_VECTOR void PACK16_BF16(uint16_t *to, const float *from) {
    for (int i = 0; i < 8; i++)
        km_put_pair(to + 2 * i, km_bits(from[i]) >> 16 |
                                    (km_bits(from[i + 8]) & 0xffff0000u));
}

/* NARROW16_BF16 one by one. */
KM_VECTOR void km_narrow16_each(uint16_t *to, const float *from) {
    for (int i = 0; i < 8; i++)
        km_put_pair(to + 2 * i, km_bits(ROUND_BF16(from[i])) >> 16 |
                                    km_bits(ROUND_BF16(from[i + 8])));
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
/* Built-ins that gcc 11 has, the compiler of Ubuntu 22.04 and RHEL 9.

   Sixteen elements at once, as pairs of halves. Rounding adds half of the
   lower 16 bits' range, less one if the upper half is even; the carry then
   rounds. */
typedef uint32_t km_word8 __attribute__((vector_size(32)));
typedef uint16_t km_bits16 __attribute__((vector_size(32)));
typedef char km_char32 __attribute__((vector_size(32)));
typedef float km_real8 __attribute__((vector_size(32)));
typedef long long km_long4 __attribute__((vector_size(32)));
typedef long long km_long8 __attribute__((vector_size(64)));

KM_VECTOR km_short16 km_interleave(km_word8 a, km_word8 b) {
    return __builtin_shuffle((km_short16)a, (km_short16)b,
                             (km_short16){0, 17, 2, 19, 4, 21, 6, 23, 8, 25, 10,
                                          27, 12, 29, 14, 31});
}

KM_VECTOR km_short16 km_round_pairs(km_word8 a, km_word8 b) {
    km_short16 upper = km_interleave(a >> 16, b),
               lower = km_interleave(a, b << 16);
    km_short16 up = __builtin_ia32_psubusw256(lower, ~upper & 1) >> 15;
    return (km_short16)((km_bits16)upper - (km_bits16)up); /* it may wrap */
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
    a = (km_word8)__builtin_ia32_extracti64x4_mask((km_long8)u, 0,
                                                   (km_long4){0}, -1);
    b = (km_word8)__builtin_ia32_extracti64x4_mask((km_long8)u, 1,
                                                   (km_long4){0}, -1);
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
    return __builtin_shuffle(h, (km_char32){0,  1,  4,  5,  8,  9,  12, 13,
                                            2,  3,  6,  7,  10, 11, 14, 15,
                                            16, 17, 20, 21, 24, 25, 28, 29,
                                            18, 19, 22, 23, 26, 27, 30, 31});
}

KM_VECTOR void NARROW16_BF16(uint16_t *to, const float *from) {
    km_char32 h = km_round16(from);
    __builtin_memcpy(to, &h, sizeof h);
}

KM_VECTOR void PUT16_BF16(uint16_t *to, const float *from) {
    km_long4 h = (km_long4)km_deinterleave(km_round16(from));
    h = __builtin_shuffle(h, (km_long4){0, 2, 1, 3});
    __builtin_memcpy(to, &h, sizeof h);
}
#else
#define NARROW16_BF16 km_narrow16_each

KM_VECTOR void PUT16_BF16(uint16_t *to, const float *from) {
    for (int i = 0; i < 16; i++) to[i] = F32_TO_BF16(from[i]);
}
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
#endif

/* Arrays of 8-bit floats. */
#define KM_BYTES(E)                                                            \
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
KM_BYTES(F8E5M2)
KM_BYTES(E8M0)
#if defined __AVX2__ && !defined __clang__
/* As F8E4M3_TO_F32 and F32_TO_F8E4M3, one vector at a time: gcc leaves short
   pieces scalar, and below AVX-512 long ones, too. */
typedef char km_char16 __attribute__((vector_size(16)));
#ifdef __AVX512F__
enum { KM_LANES = 16 };
typedef km_word16 km_dwords;
typedef km_int16 km_ints;
typedef float km_reals __attribute__((vector_size(64)));

KM_VECTOR km_dwords km_get_bytes(const uint8_t *from) {
    km_char16 x;
    __builtin_memcpy(&x, from, 16);
    return (km_dwords)__builtin_ia32_pmovzxbd512_mask(x, (km_ints){0}, 0xffff);
}

KM_VECTOR void km_put_bytes(uint8_t *to, km_dwords x) {
    km_char16 r =
        __builtin_ia32_pmovdb512_mask((km_ints)x, (km_char16){0}, 0xffff);
    __builtin_memcpy(to, &r, 16);
}
#else
enum { KM_LANES = 8 };
typedef km_word8 km_dwords;
typedef int km_ints __attribute__((vector_size(32)));
typedef km_real8 km_reals;

KM_VECTOR km_dwords km_get_bytes(const uint8_t *from) {
    long long x;
    __builtin_memcpy(&x, from, 8);
    return (km_dwords)__builtin_ia32_pmovzxbd256((km_char16)(km_long2){x});
}

KM_VECTOR void km_put_bytes(uint8_t *to, km_dwords x) {
    km_half8 h = __builtin_ia32_packusdw128(
        __builtin_ia32_vextractf128_si256((km_ints)x, 0),
        __builtin_ia32_vextractf128_si256((km_ints)x, 1));
    km_char16 r = __builtin_ia32_packuswb128(h, h);
    __builtin_memcpy(to, &r, 8);
}
#endif

KM_VECTOR km_dwords km_choose(km_ints yes, km_dwords x, km_dwords y) {
    return ((km_dwords)yes & x) | (~(km_dwords)yes & y);
}

KM_VECTOR void WIDEN16_F8E4M3(float *to, const uint8_t *from) {
    for (int i = 0; i < 16; i += KM_LANES) {
        km_dwords u = km_get_bytes(from + i), mag = u & 0x7fu;
        km_dwords normal = (mag << 20) + (120u << 23);
        km_dwords tiny = (km_dwords)((km_reals)(normal + (1u << 23)) - 0x1p-6f);
        km_dwords r = km_choose((km_ints)mag < 8, tiny, normal);
        r |= (u & 0x80u) << 24;
        r = km_choose((km_ints)mag == 0x7f, (km_dwords){0} + 0x7fc00000u, r);
        __builtin_memcpy(to + i, &r, sizeof r);
    }
}

KM_VECTOR void NARROW16_F8E4M3(uint8_t *to, const float *from) {
    for (int i = 0; i < 16; i += KM_LANES) {
        km_dwords u;
        __builtin_memcpy(&u, from + i, sizeof u);
        km_dwords mag = u & 0x7fffffffu;
        km_dwords tiny = (km_dwords)((km_reals)mag + 0x1p14f) - (141u << 23);
        km_dwords r = ((mag + 0x7ffffu + (mag >> 20 & 1u)) >> 20) - (120u << 3);
        r = km_choose((km_ints)mag < 121 << 23, tiny, r);
        r = km_choose((km_ints)r > 0x7f, (km_dwords){0} + 0x7fu, r);
        km_put_bytes(to + i, r | (u >> 24 & 0x80u));
    }
}

/* The last n < 16 elements. */
KM_VECTOR void WIDEN_REST_F8E4M3(float *to, const uint8_t *from, int64_t n) {
    uint8_t code[16] = {0};
    float wide[16];
    __builtin_memcpy(code, from, (uint64_t)n);
    WIDEN16_F8E4M3(wide, code);
    __builtin_memcpy(to, wide, 4 * (uint64_t)n);
}

KM_VECTOR void NARROW_REST_F8E4M3(uint8_t *to, const float *from, int64_t n) {
    uint8_t code[16];
    float wide[16] = {0};
    __builtin_memcpy(wide, from, 4 * (uint64_t)n);
    NARROW16_F8E4M3(code, wide);
    __builtin_memcpy(to, code, (uint64_t)n);
}
#else
KM_BYTES(F8E4M3)
#endif

#endif
