/* SPDX-License-Identifier: Apache-2.0 */
/* kmath_gpu_test.c: kmath_test.c with the formulas that only GPUs use. Their
   instructions are simulated by functions with the errors that the manual of
   PTX allows: 2 units in the last place for ex2.approx, 1 for rcp.approx, in
   a direction that depends on the operand's bits; subnormal numbers are 0. */
#include <math.h>
#include <stdint.h>
#include <string.h>

static float flushed(float x) {
    return fabsf(x) < 0x1p-126f ? copysignf(0, x) : x;
}

/* `want`, the result for x, changed by up to `units`. */
static float erring(float x, double want, double units) {
    uint32_t bits;
    int e;
    if (want == 0 || !(fabs(want) < 0x1p128)) return (float)want;
    memcpy(&bits, &x, sizeof bits);
    frexp(want, &e);
    double off = units * (bits * 2654435761u / (UINT32_MAX / 3 + 1) - 1.0);
    float r = (float)(want + ldexp(off, e - 24));
    if (fabs((double)r - want) > ldexp(units, e - 24))
        r = nextafterf(r, (float)want);
    return flushed(r);
}

static float km_ex2(float x) {
    x = flushed(x);
    return erring(x, exp2((double)x), 2);
}

static float km_rcp(float x) {
    x = flushed(x);
    return erring(x, 1 / (double)x, 1);
}

static float km_between(float x, float low, float high) {
    return x < low ? low : x > high ? high : x;
}

#define KM_GPU

/* The error bound in kmath.h; also for results computed from an e^x that may
   be 0. */
static double most(const char *name, double elsewhere) {
    static const struct {
        const char *name;
        double units;
    } own[] = {{"EXP", 4},     {"TANH", 3},        {"ERF", 4},
               {"SIGMOID", 6}, {"LOG_SIGMOID", 6}, {"GELU", 11}};
    for (size_t i = 0; i < sizeof own / sizeof *own; i++)
        if (!strcmp(name, own[i].name)) return own[i].units;
    return elsewhere;
}

#define LEAST             0x1p-120
#define MOST(NAME, limit) most(#NAME, limit)
#include "tests/runtime/kmath_test.c"
