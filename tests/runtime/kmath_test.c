/* SPDX-License-Identifier: Apache-2.0 */
/* kmath_test.c: the functions that generated kernels call, compared with
   libm in double: a sweep over all fp32 bit patterns, and the special
   values. */
#include "runtime/cpu/kmath.h"
#include "ir/ir.h"
#include "runtime/program/dtype.h"
#include "tests/harness.h"

#include <string.h>

/* ---- fp32 functions ------------------------------------------------------ */

/* Limits for another system: the largest number that may become 0, and the
   largest error of a function. */
#ifndef LEAST
#define LEAST             0
#define MOST(NAME, limit) limit
#endif

/* Distance in units of the expected value's last place. */
static double ulps(double want, float got) {
    float w = (float)want;
    int e;
    if (want != want || got != got) return want != want && got != got ? 0 : 1e9;
    if (w == got) return 0;
    if (got == 0 && fabs(want) < LEAST) return 0;
    if (isinf(w) || isinf(got)) return 1e9;
    frexp(want, &e);
    return fabs(want - (double)got) / ldexp(1, (e < -125 ? -125 : e) - 24);
}

typedef float F32Fn(float);
typedef double F64Fn(double);

/* The largest error over every `step`-th bit pattern and the first ones. */
static double sweep(F32Fn *f, F64Fn *ref, float *worst) {
    double max = 0;
    for (uint64_t u = 0; u < UINT64_C(1) << 32; u += u % 4096 == 0 ? 1 : 1023) {
        float x = km_float((uint32_t)u);
        double d = ulps(ref((double)x), f(x));
        if (d > max) max = d, *worst = x;
    }
    return max;
}

/* NAME_F32, which is always inlined, as a function; and its entry in the
   table. */
#define FN(NAME, f64, integer, limit)                                          \
    static float f_##NAME(float x) { return NAME##_F32(x); }                   \
    static double d_##NAME(double x) { return NAME##_F64(x); }                 \
    static double NAME(double x) { return f64; }
#include "ir/op/ops.def"

static void check_sweep(const char *name, F32Fn *f, F64Fn *ref, double limit) {
    float worst = 0;
    double max = sweep(f, ref, &worst);
    CHECK_MSG(max <= limit, "%s(%.9g) = %.9g, wants %.9g: %.2f ulps", name,
              (double)worst, (double)f(worst), ref((double)worst), max);
}

TEST_CASE(kmath, functions_of_the_op_table) {
#define FN(NAME, f64, integer, limit)                                          \
    check_sweep(#NAME, f_##NAME, NAME, MOST(NAME, limit));
#include "ir/op/ops.def"
}

/* gelu's derivative has a root, near which the sweep checks nothing. */
TEST_CASE(kmath, slope_of_gelu) {
    double near = 0, far = 0;
    for (int i = -20000; i <= 20000; i++) {
        float x = (float)i / 1024, got = GELU_SLOPE_F32(x);
        double want = GELU_SLOPE((double)x), off = fabs((double)got - want);
        bool root = x > -0.85f && x < -0.65f;
        if (root && off > near) near = off;
        if (!root && ulps(want, got) > far) far = ulps(want, got);
    }
    CHECK_MSG(near < 1.2e-7, "%g", near);
    CHECK_MSG(far <= 20, "%.1f ulps", far);
    CHECK(GELU_SLOPE_F32(INFINITY) == 1 && GELU_SLOPE_F32(-INFINITY) == 0);
}

static float exp_low(float x) { return EXP_LOW_F32(x); }
static float gelu_low(float x) { return GELU_LOW_F32(x); }

/* exp errs by its operand's units of 2^-24, gelu by an eighth of fp16's last
   place; 0, infinity and NaN where exp and gelu are. */
TEST_CASE(kmath, functions_for_sixteen_bits) {
    for (int i = -88 * 256; i <= 88 * 256; i++) {
        float x = (float)i / 256 + 0x1p-12f * (float)(i % 7);
        double want = exp((double)x), got = (double)exp_low(x);
        CHECK_MSG(fabs(got / want - 1) <=
                          (6 + 1.25 * fabs((double)x)) * 0x1p-24 ||
                      want < 0x1p-126,
                  "exp(%a) = %a, wants %a", (double)x, got, want);
    }
    for (int i = -13 * 256; i <= 40 * 256; i++) {
        float x = (float)i / 256;
        double want = GELU((double)x), got = (double)gelu_low(x);
        CHECK_MSG(fabs(got - want) <= 0x1p-13 * fabs(want) ||
                      fabs(want) < 0x1p-100,
                  "gelu(%a) = %a, wants %a", (double)x, got, want);
    }
    CHECK(exp_low(-INFINITY) == 0 && exp_low(-1e38f) == 0);
    CHECK(exp_low(INFINITY) == INFINITY && exp_low(1e38f) == INFINITY);
    CHECK(exp_low(NAN) != exp_low(NAN));
    CHECK(gelu_low(0) == 0 && gelu_low(-1e18f) == 0 && gelu_low(9e9f) == 9e9f);
    CHECK(gelu_low(INFINITY) == INFINITY && gelu_low(NAN) != gelu_low(NAN));
}

static const float special[] = {
    0.0f,        -0.0f,       1.0f,         -1.0f,  2.0f,     -2.0f,     0.5f,
    -0.5f,       3.0f,        -3.0f,        1e-40f, -1e-40f,  1e30f,     -1e30f,
    16777216.0f, 16777215.0f, -16777215.0f, 2.5f,   INFINITY, -INFINITY, NAN};
enum { NSPECIAL = sizeof special / sizeof *special };

TEST_CASE(kmath, pow) {
    double max = 0;
    for (int i = 0; i < NSPECIAL; i++)
        for (int j = 0; j < NSPECIAL; j++) {
            double x = (double)special[i], y = (double)special[j];
            float got = POW_F32(special[i], special[j]);
            CHECK_MSG(ulps(pow(x, y), got) <= 0.51,
                      "pow(%g, %g) = %.9g, wants %.9g", x, y, (double)got,
                      pow(x, y));
            CHECK(got != got || signbit(got) == signbit((float)pow(x, y)));
        }
    for (uint32_t u = 0; u < 0x7f800000u; u += 99991) {
        float x = km_float(u), y = km_float(u * 2654435761u >> 2) - 1.0f;
        double d = ulps(pow((double)x, (double)y), POW_F32(x, y));
        if (y == y && d > max) max = d;
    }
    CHECK_MSG(max <= 0.51, "pow: %.3f ulps", max);
}

/* fmod is exact. */
TEST_CASE(kmath, mod) {
    for (int i = 0; i < NSPECIAL; i++)
        for (int j = 0; j < NSPECIAL; j++) {
            float x = special[i], y = special[j], got = MOD_F32(x, y);
            double want = fmod((double)x, (double)y);
            CHECK_MSG(ulps(want, got) == 0, "fmod(%g, %g) = %.9g, wants %.9g",
                      (double)x, (double)y, (double)got, want);
            CHECK(got != got || signbit(got) == signbit((float)want));
        }
    for (uint32_t u = 0; u < 0x7f800000u; u += 9973) {
        float x = km_float(u ^ u << 31);
        /* quotients up to 2^32, and close to integers */
        float y =
            u % 3 ? km_float(u - (u * 2654435761u >> 4)) : x / (float)(u % 97);
        double want = fmod((double)x, (double)y);
        CHECK_MSG(ulps(want, MOD_F32(x, y)) == 0, "fmod(%a, %a) = %a, wants %a",
                  (double)x, (double)y, (double)MOD_F32(x, y), want);
    }
}

static void check_double(const char *name, F64Fn *f, F64Fn *ref) {
    for (int i = 0; i < NSPECIAL; i++) {
        double x = (double)special[i], got = f(x), want = ref(x);
        CHECK_MSG(got == want || (got != got && want != want) ||
                      fabs(got - want) <= 1e-15 * (1 + fabs(want)),
                  "%s(%g) = %.17g, wants %.17g", name, x, got, want);
    }
}

TEST_CASE(kmath, doubles) {
#define FN(NAME, f64, integer, limit) check_double(#NAME, d_##NAME, NAME);
#include "ir/op/ops.def"
    for (int i = 0; i < NSPECIAL; i++)
        CHECK(TO_I64_F64((double)special[i]) == TO_I64_F32(special[i]));
    CHECK(TO_I64_F64(-3.9) == -3);
    CHECK(TO_I64_F64(1e300) == INT64_MAX && TO_I64_F64(-1e300) == INT64_MIN);
    CHECK(TO_I64_F64(NAN) == 0);
}

/* ---- 16-bit floats ------------------------------------------------------- */

TEST_CASE(kmath, widening) {
    for (uint32_t h = 0; h < 65536; h++) {
        uint16_t x = (uint16_t)h;
        uint32_t want = half_bits(f16_to_f32(x));
        CHECK_EQ_INT(km_bits(BF16_TO_F32(x)), half_bits(bf16_to_f32(x)));
        if ((x & 0x7fff) > 0x7c00) /* signalling NaNs may stay signalling */
            want &= ~0x400000u | (uint32_t)(x & 0x200) << 13;
        if (!CHECK_EQ_INT(km_bits(F16_TO_F32(x)), want)) return;
        CHECK_EQ_INT(EXACT_F16(F16_TO_F32(x)), x);
        CHECK_EQ_INT(EXACT_BF16(BF16_TO_F32(x)), x);
    }
}

TEST_CASE(kmath, arrays_of_fp16) {
    uint16_t h[40], back[40];
    float x[40];
    for (int n = 0; n <= 33; n++) {
        for (int i = 0; i < 40; i++) {
            h[i] = (uint16_t)(0x3c00 + 977 * i), back[i] = 0xdead;
            x[i] = -1;
        }
        WIDEN_F16(x, h, n);
        for (int i = 0; i < 40; i++)
            CHECK(x[i] == (i < n ? f16_to_f32(h[i]) : -1) || x[i] != x[i]);
        NARROW_F16(back, x, n);
        for (int i = 0; i < 40; i++)
            CHECK_EQ_INT(back[i], i < n ? f32_to_f16(x[i]) : 0xdead);
    }
}

/* The index from which element i of WIDEN_BF16's n results came: among 16
   the even ones come first; the remainder is in order. */
static int widened(int i, int n) {
    return i >= n / 16 * 16 ? i : i / 16 * 16 + i % 8 * 2 + i % 16 / 8;
}

TEST_CASE(kmath, arrays_of_bf16) {
    uint16_t h[40], back[40];
    float x[40];
    for (int n = 0; n <= 33; n++) {
        for (int i = 0; i < 40; i++) {
            h[i] = (uint16_t)(0x3f80 + 977 * i), back[i] = 0xdead;
            x[i] = -1;
        }
        WIDEN_BF16(x, h, n);
        for (int i = 0; i < 40; i++) {
            CHECK_EQ_INT(km_bits(x[i]),
                         half_bits(i < n ? bf16_to_f32(h[widened(i, n)]) : -1));
        }
        PACK_BF16(back, x, n);
        for (int i = 0; i < 40; i++)
            CHECK_EQ_INT(back[i], i < n ? h[i] : 0xdead);
        for (int i = 0; i < n; i++)
            x[i] = km_float(km_bits(x[i]) + 0x7000u + 0x800u * (uint32_t)i);
        NARROW_BF16(back, x, n);
        for (int i = 0; i < 40; i++) {
            if (i < n)
                CHECK_EQ_INT(back[widened(i, n)], f32_to_bf16(x[i]));
            else
                CHECK_EQ_INT(back[i], 0xdead);
        }
    }
}

/* Arrays of all kinds of numbers give the same as element by element: ties,
   carries into the exponent, infinities; every other array contains a NaN. */
TEST_CASE(kmath, rounded_arrays_of_bf16) {
    enum { N = 37 };
    for (uint32_t first = 0; first < 4000; first++) {
        uint16_t mixed[N], put[N + 1] = {0};
        float x[N];
        for (uint32_t i = 0; i < N; i++) {
            uint32_t u = (first * N + i) * 0x9e3779b1u, low = u >> 28;
            if (low < 8) u = (u & 0xffff0000u) | (0x7ffeu + low);
            x[i] = km_float(u);
            if (x[i] != x[i]) x[i] = km_float(u & 0xff800000u);
        }
        if (first % 2 == 0) x[first / 2 % N] = km_float(0x7f800001u + first);
        NARROW_BF16(mixed, x, N);
        float *late = x;
        for (int i = 0; i < N; i++) STORE_BF16(put[i], late[i], x[i]);
        PUT_BF16(put, late, N);
        for (int i = 0; i < N; i++) {
            CHECK_EQ_INT(mixed[widened(i, N)], f32_to_bf16(x[i]));
            CHECK_EQ_INT(put[i], f32_to_bf16(x[i]));
        }
        CHECK_EQ_INT(put[N], 0);
    }
}

/* Blocks of 16 and shorter ones give the same numbers. */
TEST_CASE(kmath, blocks_of_16_bits) {
    for (uint32_t first = 0; first < 4000; first++) {
        uint16_t h[17], put[17] = {0}, mixed[17] = {0}, half[17] = {0};
        float x[16], in_order[17], widened_all[17], from_half[17];
        for (uint32_t i = 0; i < 16; i++) {
            uint32_t u = (first * 16 + i) * 0x9e3779b1u, low = u >> 28;
            if (low < 8) u = (u & 0xffff0000u) | (0x7ffeu + low);
            x[i] = km_float(u), h[i] = (uint16_t)(u >> 16);
        }
        PUT16_BF16(put, x);
        NARROW16_BF16(mixed, x);
        GET16_BF16(in_order, h);
        WIDEN16_BF16(widened_all, h);
        WIDEN16_F16(from_half, h);
        NARROW16_F16(half, x);
        for (int i = 0; i < 16; i++) {
            CHECK_EQ_INT(put[i], f32_to_bf16(x[i]));
            CHECK_EQ_INT(mixed[widened(i, 16)], f32_to_bf16(x[i]));
            CHECK_EQ_INT(km_bits(in_order[i]), half_bits(bf16_to_f32(h[i])));
            CHECK_EQ_INT(km_bits(widened_all[i]),
                         half_bits(bf16_to_f32(h[widened(i, 16)])));
            CHECK(from_half[i] == f16_to_f32(h[i]) ||
                  (from_half[i] != from_half[i] && isnan(f16_to_f32(h[i]))));
            CHECK_EQ_INT(half[i], f32_to_f16(x[i]));
        }
        PACK16_BF16(put, widened_all);
        for (int i = 0; i < 16; i++) CHECK_EQ_INT(put[i], h[i]);
        CHECK_EQ_INT(put[16] | mixed[16] | half[16], 0);

        int n = (int)(first % 16);
        for (int i = 0; i < 17; i++) from_half[i] = -1, half[i] = 0xdead;
        WIDEN_REST_F16(from_half, h, n);
        NARROW_REST_F16(half, x, n);
        for (int i = 0; i < 17; i++) {
            CHECK(from_half[i] == (i < n ? f16_to_f32(h[i]) : -1) ||
                  (i < n && isnan(f16_to_f32(h[i]))));
            CHECK_EQ_INT(half[i], i < n ? f32_to_f16(x[i]) : 0xdead);
        }
    }
}

/* Pieces of all lengths have the numbers of single conversions. */
TEST_CASE(kmath, pieces_of_f8) {
    enum { MOST = 40 };
    for (uint32_t first = 0; first < 20000; first++) {
        int n = (int)(first % MOST);
        uint8_t code[MOST + 1], to[MOST + 1];
        float x[MOST + 1], wide[MOST + 1];
        for (uint32_t i = 0; i <= MOST; i++) {
            uint32_t u = (first * 41 + i) * 0x9e3779b1u;
            x[i] = km_float(first % 3 ? u % 0x8000000u + 0x3c000000u : u);
            if (u & 1) x[i] = -x[i];
            code[i] = (uint8_t)(u >> 24), to[i] = 0x5a, wide[i] = -1;
        }
        WIDEN_F8E4M3(wide, code, n);
        NARROW_F8E4M3(to, x, n);
        for (int i = 0; i <= MOST; i++) {
            float want = i < n ? F8E4M3_TO_F32(code[i]) : -1;
            CHECK_EQ_INT(km_bits(wide[i]), km_bits(want));
            CHECK_EQ_INT(to[i], i < n ? F32_TO_F8E4M3(x[i]) : 0x5a);
        }
    }
}

TEST_CASE(kmath, narrowing) {
    for (uint64_t u = 0; u < UINT64_C(1) << 32; u += 251) {
        float x = km_float((uint32_t)u);
        if (F32_TO_BF16(x) != f32_to_bf16(x) ||
            F32_TO_F16(x) != f32_to_f16(x)) {
            CHECK_EQ_INT(F32_TO_BF16(x), f32_to_bf16(x));
            CHECK_MSG(F32_TO_F16(x) == f32_to_f16(x), "%a: %x, wants %x",
                      (double)x, F32_TO_F16(x), f32_to_f16(x));
            return;
        }
    }
    CHECK_EQ_INT(F32_TO_F16(65519.9f), 0x7bff);
    CHECK_EQ_INT(F32_TO_F16(65520.0f), 0x7c00);
    CHECK_EQ_INT(F32_TO_BF16(3.4e38f), 0x7f80);
}

/* Both ways, and by way of a rounded number; NaN may have another code. */
#define STORED(E, text, C, ...)                                                \
    static bool agree_##text(float x) {                                        \
        C want = f32_to_##text(x), direct = F32_TO_##E(x), all;                \
        NARROW_##E(&all, &x, 1);                                               \
        return want == direct && want == all &&                                \
               want == EXACT_##E(ROUND_##E(x)) &&                              \
               want == double_to_##text((double)x);                            \
    }                                                                          \
    static void check_codes_##text(void) {                                     \
        for (int i = 0; i < 256; i++) {                                        \
            C code = (C)i;                                                     \
            float want = text##_to_f32(code), got = E##_TO_F32(code), all;     \
            WIDEN_##E(&all, &code, 1);                                         \
            CHECK(isnan(want) ? isnan(got) && isnan(all)                       \
                              : want == got && want == all &&                  \
                                    signbit(want) == signbit(got) &&           \
                                    EXACT_##E(want) == code);                  \
            CHECK(isnan(want) ? isnan(text##_to_double(code))                  \
                              : (double)want == text##_to_double(code));       \
        }                                                                      \
    }
#define LOW(...)
#include "runtime/program/dtypes.def"

TEST_CASE(kmath, eight_bits) {
    static const struct {
        const char *name;
        void (*codes)(void);
        bool (*agree)(float);
    } types[] = {
#define STORED(E, text, C, ...) {#text, check_codes_##text, agree_##text},
#define LOW(...)
#include "runtime/program/dtypes.def"
    };
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        types[i].codes();
        for (uint64_t u = 0; u < UINT64_C(1) << 32; u += 1021) {
            float x = km_float((uint32_t)u);
            if (!CHECK_MSG(types[i].agree(x), "%s of %a", types[i].name,
                           (double)x))
                break;
        }
    }
}

/* ---- integers ------------------------------------------------------------ */

TEST_CASE(kmath, integers_never_trap) {
    CHECK_EQ_INT(DIV_I64(7, 0), 0);
    CHECK_EQ_INT(DIV_I64(-7, 2), -3);
    CHECK(DIV_I64(INT64_MIN, -1) == INT64_MIN);
    CHECK_EQ_INT(MOD_I64(-7, 3), 2);
    CHECK_EQ_INT(MOD_I64(7, -3), -2);
    CHECK_EQ_INT(MOD_I64(7, 0), 0);
    CHECK_EQ_INT(MOD_I64(INT64_MIN, -1), 0);
    CHECK(ABS_I64(INT64_MIN) == INT64_MIN);
    CHECK_EQ_INT(POW_I64(-3, 5), -243);
    CHECK_EQ_INT(POW_I64(2, -1), 0);
    CHECK_EQ_INT(POW_I64(-1, -3), -1);
}

/* ---- random numbers ------------------------------------------------------ */

/* Known answers of Philox 4x32-10: zero key and counter; all ones. */
TEST_CASE(kmath, philox) {
    static const uint32_t zero[4] = {0x6627e8d5, 0xe169c58d, 0xbc57ac4c,
                                     0x9b00dbd8};
    for (int i = 0; i < 4; i++)
        CHECK(PHILOX(0, 0, i, 0) == (float)(zero[i] >> 8) * 0x1p-24f);
    double sum = 0;
    for (int i = 0; i < 100000; i++) sum += (double)PHILOX(5, 6, i, 7);
    CHECK_NEAR(sum / 100000, 0.5, 0.005);
}

/* ---- folds --------------------------------------------------------------- */

TEST_CASE(kmath, folds) {
    float x[100];
    for (int i = 0; i < 100; i++) x[i] = (float)((i * 37) % 101 - 50);
    for (int n = 0; n <= 100; n++) {
        float sum = 3, max = -60, min = 60;
        for (int i = 0; i < n; i++) {
            sum += x[i]; /* integers: exact in any order */
            max = x[i] > max ? x[i] : max;
            min = x[i] < min ? x[i] : min;
        }
        CHECK(FOLD_SUM_F32(3, x, n) == sum);
        CHECK(FOLD_MAX_F32(-60, x, n) == max);
        CHECK(FOLD_MIN_F32(60, x, n) == min);
    }
    CHECK(FOLD_MAX_F32(-INFINITY, x, 0) == -INFINITY);
    for (int at = 0; at < 100; at++) {
        float y = x[at];
        x[at] = NAN;
        CHECK(isnan(FOLD_MAX_F32(-INFINITY, x, 100)));
        CHECK(isnan(FOLD_MIN_F32(INFINITY, x, 100)));
        x[at] = y;
    }
    CHECK(isnan(FOLD_MAX_F32(NAN, x, 100)));
}

/* The order of additions is equal on every level and depends only on the
   count: element i goes to lane i mod 16, then halves of the lanes are
   added; elements after the count are not read. */
#define IN_LANES(T, op, START, FOLD)                                           \
    for (int n = 0; n <= 70; n++) {                                            \
        T x[86], lane[16], acc = (T)0.3;                                       \
        for (int i = 0; i < 86; i++)                                           \
            x[i] = i < n ? 1 + (T)((i * 37) % 101) / 7 : (T)NAN;               \
        for (int k = 0; k < 16; k++) lane[k] = START;                          \
        for (int i = 0; i < n; i++) lane[i % 16] = lane[i % 16] op x[i];       \
        for (int w = 8; w > 0; w /= 2)                                         \
            for (int k = 0; k < w; k++) lane[k] = lane[k] op lane[k + w];      \
        CHECK(FOLD(acc, x, n) == (T)(acc op lane[0]));                         \
    }

TEST_CASE(kmath, folds_are_in_lanes) {
    IN_LANES(float, +, 0, FOLD_SUM_F32)
    IN_LANES(float, *, 1, FOLD_PROD_F32)
    IN_LANES(double, +, 0, FOLD_SUM_F64)
    IN_LANES(double, *, 1, FOLD_PROD_F64)
    float x[16] = {0};
    double y[16] = {0};
    for (int k = 0; k < 16; k++) {
        x[k] = 1 / (3.0f + (float)k), y[k] = 1 / (3.0 + k);
        CHECK(SUM_LANES_F32(0.3f, x) == FOLD_SUM_F32(0.3f, x, 16));
        CHECK(SUM_LANES_F64(0.3, y) == FOLD_SUM_F64(0.3, y, 16));
    }
}
