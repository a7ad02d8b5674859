/* SPDX-License-Identifier: Apache-2.0 */
/* kmath_f32.h: the part of kmath.h that computes in fp32: without a branch,
   so that compilers can vectorise loops around it. */
#ifndef AMPC_KMATH_F32_H
#define AMPC_KMATH_F32_H

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
#ifndef KM_GPU_8
    return x < low ? low : x > high ? high : x;
#else
    asm("max.NaN.f32 %0, %0, %1;" : "+f"(x) : "f"(low));
    asm("min.NaN.f32 %0, %0, %1;" : "+f"(x) : "f"(high));
    return x;
#endif
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

/* y^2 + c, where c is close to -y^2 */
KM_INLINE float km_square_plus(float y, float c) {
#ifdef KM_FUSED
    return fmaf(y, y, c);
#else
    float hi = km_float(km_bits(y) & 0xfffff000u), lo = y - hi;
    return (hi * hi + c) + (2.0f * hi * lo + lo * lo);
#endif
}

/* e^(unit r), |unit r| <= 0.35; the unit is a power of two */
KM_INLINE float km_exp_near(float r, float unit) {
    float u2 = unit * unit, u3 = u2 * unit, u4 = u2 * u2, p;
    p = 0x1.9f02dp-13f * u4 * u3;
    p = km_fma(p, r, 0x1.6d945cp-10f * u4 * u2);
    p = km_fma(p, r, 0x1.11128p-7f * u4 * unit);
    p = km_fma(p, r, 0x1.555486p-5f * u4);
    p = km_fma(p, r, 0x1.555554p-3f * u3);
    p = km_fma(p, r, 0.5f * u2);
    p = km_fma(p, r, unit);
    return km_fma(p, r, 1.0f);
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
    int low = x < -104.0f;
    float k;
    uint32_t n, m;
    x = low ? 0.0f : x;
    x = x > 89.0f ? 89.0f : x;
    /* the nearest integer, plus 254, as its bits */
    t = km_fma(x, 0x1.715476p+0f, 0x1.8p+23f + 254.0f);
    k = t - (0x1.8p+23f + 254.0f);
    r = km_fma(k, -0x1.0bfbe8p-15f, km_fma(k, -0x1.62ep-1f, x));
    n = km_bits(t);
    m = n >> 1;
    p = km_exp_near(r, 1.0f) * km_float(m << 23);
    p = p * km_float((n - m) << 23);
    return low ? 0.0f : p;
#endif
}

/* The same for x <= 40, in fewer instructions: one scaling, of 2^64 e^x. */
KM_INLINE float km_exp_below(float x) {
#ifdef KM_GPU
    return EXP_F32(x);
#else
    int low = x < -104.0f;
    float t, k, r, p;
    x = low ? 0.0f : x;
    t = km_fma(x, 0x1.715476p+0f, 0x1.8p+23f + 191.0f);
    k = t - (0x1.8p+23f + 191.0f);
    r = km_fma(k, -0x1.0bfbe8p-15f, km_fma(k, -0x1.62ep-1f, x));
    p = km_exp_near(r, 1.0f) * km_float(km_bits(t) << 23) * 0x1p-64f;
    return low ? 0.0f : p;
#endif
}

/* For results of 16 bits: a relative error of (6 + 1.25 |x|) 2^-24. */
KM_INLINE float EXP_LOW_F32(float x) {
#ifdef KM_GPU
    return km_ex2(x * 0x1.715476p+0f);
#else
    return EXP_F32(x);
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
    float e = km_exp_below(-ABS_F32(x));
    return km_divide(x < 0 ? e : 1.0f, 1.0f + e);
#endif
}

KM_INLINE float LOG_SIGMOID_F32(float x) {
    float low = x < 0 ? x : 0.0f;
    float r = low - km_log1p(km_exp_below(-ABS_F32(x)));
    return x != x ? x : r;
}

/* x, but not more than `most`, which NaN becomes; x >= 0. As integers: that
   is one instruction. */
KM_INLINE float km_at_most(float x, float most) {
    int32_t a = (int32_t)km_bits(x), b = (int32_t)km_bits(most);
    return km_float((uint32_t)(a < b ? a : b));
}

/* e^(2a) for a >= 0; what exceeds 2^57 may be less */
KM_INLINE float km_exp_twice(float a) {
#ifdef KM_GPU
    return EXP_F32(2.0f * a);
#else
    float t, k, r;
    a = km_at_most(a, 20.0f);
    t = km_fma(a, 0x1.715476p+1f, 0x1.8p+23f + 127.0f);
    k = t - (0x1.8p+23f + 127.0f);
    r = km_fma(k, -0x1.0bfbe8p-16f, km_fma(k, -0x1.62ep-2f, a));
    return km_exp_near(r, 2.0f) * km_float(km_bits(t) << 23);
#endif
}

KM_INLINE float TANH_F32(float x) {
    float a = ABS_F32(x), s = x * x, p = -0x1.7af50cp-8f;
    float big = 1.0f - km_divide(2.0f, km_exp_twice(a) + 1.0f);
    p = km_fma(p, s, 0x1.533916p-6f);
    p = km_fma(p, s, -0x1.b863dcp-5f);
    p = km_fma(p, s, 0x1.110842p-3f);
    p = km_fma(p, s, -0x1.555538p-2f);
    p = km_fma(x, s * p, x);
    return a >= 0.6f ? km_sign_of(big, x) : p; /* NaN: p */
}

/* e^(-y^2/2) p for 0 <= y <= 15 */
KM_INLINE float km_bell_times(float y, float p) {
#ifdef KM_GPU
    float sq = y * y, err = fmaf(y, y, -sq);
    return EXP_F32(-0.5f * sq) * fmaf(p, -0.5f * err, p);
#else
    /* y^2 is not rounded before 2 k ln 2 is added */
    float t = km_fma(-0x1.715476p-1f * y, y, 0x1.8p+23f + 191.0f);
    float k = t - (0x1.8p+23f + 191.0f);
    float r = km_fma(k, 0x1.0bfbe8p-14f, km_square_plus(y, k * 0x1.62ep+0f));
    return km_exp_near(r, -0.5f) * km_float(km_bits(t) << 23) * (p * 0x1p-64f);
#endif
}

/* For y >= 0, with phi and Phi the normal density and distribution function:
   1 - Phi(y) - slope y phi(y), where 1 - Phi(y) = erfc(y / sqrt 2) / 2 is
   e^(-y^2/2) times a polynomial in 1/(1 + 0.3 y). */
KM_INLINE float km_upper_tail(float y, float slope) {
    int far = y > 15.0f;
    float u, p;
    y = far ? 0.0f : y;
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
    p = slope == 0 ? p : km_fma(-slope, y, p);
    p = km_bell_times(y, p);
    return far ? 0.0f : p;
}

KM_INLINE float ERF_F32(float x) {
    float a = ABS_F32(x), s = x * x, p = 0x1.165cdap-8f;
    float big = km_fma(-2.0f, km_upper_tail(a * 0x1.6a09e6p+0f, 0.0f), 1.0f);
    p = km_fma(p, s, -0x1.b142f8p-6f);
    p = km_fma(p, s, 0x1.cddf4cp-4f);
    p = km_fma(p, s, -0x1.8126p-2f);
    p = km_fma(p, s, 0x1.20dd74p+0f);
    return a >= 0.7f ? km_sign_of(big, x) : x * p; /* NaN: x p */
}

/* x times the normal distribution function */
KM_INLINE float GELU_F32(float x) {
    float q = km_upper_tail(ABS_F32(x), 0.0f);
    return x * (x < 0 ? q : 1.0f - q);
}

/* The same for results of 16 bits: a relative error of 2^-13. */
KM_INLINE float GELU_LOW_F32(float x) {
#ifdef KM_GPU
    float y = ABS_F32(x), u = km_divide(1.0f, km_fma(0.35f, y, 1.0f)), q;
    q = -0x1.93f34cp-4f;
    q = km_fma(q, u, 0x1.1ff8d8p-2f);
    q = km_fma(q, u, 0x1.168648p-7f);
    q = km_fma(q, u, 0x1.64b69p-3f);
    q = km_fma(q, u, 0x1.134d72p-3f);
    q = km_fma(q, u, 0x1.41e08ep-12f);
    q *= km_ex2(y * y * -0x1.715476p-1f);
    return x * (x < 0 ? q : 1.0f - q);
#else
    return GELU_F32(x);
#endif
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

#endif
