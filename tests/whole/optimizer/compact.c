/* SPDX-License-Identifier: Apache-2.0 */
/* compact.c: weights and state of 16 and 8 bits. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/program/dtype.h"
#include "tests/support/compiled.h"

/* ---- weights and state of 16 bits ---------------------------------------- */

enum { FLAT = 4096, FLAT_STEPS = 32 };

static const char flat[] = "graph forward(%x: f32[64,64]) {\n"
                           "  param %a: f32[64,64] = 1\n"
                           "  %xa = mul %x, %a : f32[64,64]\n"
                           "  %loss = reduce_sum %xa {axes=[0,1], keepdims=0}\n"
                           "  return %loss\n}\n";

static double mean_of(const Compiled *c, ampc_session *s, const char *name,
                      ampc_dtype dtype, double *least) {
    static uint16_t low[FLAT];
    static float x[FLAT];
    double sum = 0;
    if (dtype == AMPC_DTYPE_F32)
        read_var(c, s, name, x, sizeof x, dtype);
    else
        read_var(c, s, name, low, sizeof low, dtype);
    *least = INFINITY;
    for (int i = 0; i < FLAT; i++) {
        uint32_t bits = (uint32_t)low[i] << 16;
        if (dtype != AMPC_DTYPE_F32) memcpy(&x[i], &bits, sizeof bits);
        sum += (double)x[i];
        *least = fmin(*least, (double)x[i]);
    }
    return sum / FLAT;
}

/* Each update is a 16th of a unit in the last place, which rounding to
   nearest would lose: stochastic rounding moves the mean by their sum,
   within five standard deviations; a remainder, or fp32 masters, move each
   element. */
TEST_CASE(optimizer, small_updates_of_bf16_weights_are_not_lost) {
    static const char *const masters[] = {"fp32", "kahan", "none"};
    const double want = 1 - FLAT_STEPS * 0x1p-12;
    const double deviation = 0x1p-8 * sqrt(FLAT_STEPS * 15) / 16 / sqrt(FLAT);
    static float x[FLAT];
    ampc_input in = ampc_in("x", x, sizeof x, AMPC_DTYPE_F32);
    for (int i = 0; i < 3; i++) {
        char options[160];
        double least;
        snprintf(options, sizeof options,
                 "--masters %s --optimizer sgd,lr=1 --target cpu:x86-64-v2",
                 masters[i]);
        Compiled c = compile_text(flat, options);
        ampc_session *s = open_threads(&c, 2);
        for (int k = 0; k < FLAT_STEPS; k++) {
            for (int j = 0; j < FLAT; j++) x[j] = 0x1p-12f;
            CHECK_EQ_INT(step_ok(&c, s, &in, 1).applied, 1);
            for (int j = 0; j < FLAT; j++) x[j] = k % 2 ? NAN : INFINITY;
            CHECK_EQ_INT(step_ok(&c, s, &in, 1).applied, 0);
        }
        double mean =
            mean_of(&c, s, "a", i ? AMPC_DTYPE_BF16 : AMPC_DTYPE_F32, &least);
        CHECK_MSG(fabs(mean - want) <= (i == 2 ? 5 * deviation : 0),
                  "%s: %.9g, not %.9g", masters[i], mean, want);
        CHECK((least < mean) == (i == 2));
        c.api->close(s);
        compiled_close(&c);
    }
}

/* Two weights with the same numbers and gradients are rounded by random numbers
   of their own: half of the elements are alike, within five standard deviations
   of 64 independent lines. */
TEST_CASE(optimizer, weights_are_rounded_independently) {
    static const char two[] =
        "graph forward(%x: f32[64,64]) {\n"
        "  param %a: f32[64,64] = 1, %b: f32[64,64] = 1\n"
        "  %ab = add %a, %b : f32[64,64]\n"
        "  %xa = mul %x, %ab : f32[64,64]\n"
        "  %loss = reduce_sum %xa {axes=[0,1], keepdims=0}\n"
        "  return %loss\n}\n";
    static float x[FLAT];
    static uint16_t w[2][FLAT];
    ampc_input in = ampc_in("x", x, sizeof x, AMPC_DTYPE_F32);
    Compiled c = compile_text(two, "--masters none --optimizer sgd,lr=1 "
                                   "--target cpu:x86-64-v2");
    ampc_session *s = open_threads(&c, 2);
    for (int j = 0; j < FLAT; j++) x[j] = 0x1p-9f; /* half of a unit */
    CHECK_EQ_INT(step_ok(&c, s, &in, 1).applied, 1);
    read_var(&c, s, "a", w[0], sizeof w[0], AMPC_DTYPE_BF16);
    read_var(&c, s, "b", w[1], sizeof w[1], AMPC_DTYPE_BF16);
    int alike = 0;
    for (int j = 0; j < FLAT; j++) alike += w[0][j] == w[1][j];
    CHECK_MSG(abs(alike - FLAT / 2) < 750, "%d of %d elements alike", alike,
              FLAT);
    c.api->close(s);
    compiled_close(&c);
}

/* A mean of squares that decays by a thousandth per step, with nothing
   added: bf16 rounded to nearest would not change. */
TEST_CASE(optimizer, bf16_state_decays) {
    static float x[FLAT];
    double first = 0, least;
    ampc_input in = ampc_in("x", x, sizeof x, AMPC_DTYPE_F32);
    Compiled c = compile_text(flat, "--state-dtype bf16 --optimizer adam "
                                    "--target cpu:x86-64-v2");
    ampc_session *s = open_threads(&c, 2);
    for (int k = 0; k <= 64; k++) {
        for (int j = 0; j < FLAT; j++) x[j] = k ? 0 : 1;
        CHECK_EQ_INT(step_ok(&c, s, &in, 1).applied, 1);
        double mean =
            mean_of(&c, s, "ampc.opt/a/exp_avg_sq", AMPC_DTYPE_BF16, &least);
        if (k == 0) first = mean;
        CHECK_REL(mean, first * pow(0.999, k), 2e-3);
    }
    c.api->close(s);
    compiled_close(&c);
}

/* ---- state of 8 bits ----------------------------------------------------- */

enum { BLOCK_OF = 128 };

static double of_code(ampc_dtype dtype, uint8_t code, float scale) {
    double c = (int8_t)code / 127.0, sign = c < 0 ? -1 : 1;
    if (dtype == AMPC_DTYPE_I8) return sign * c * c * c * c * (double)scale;
    return float_at(dtype, &code) / dtype_info[dtype].most * (double)scale;
}

/* The mean of a state; every 61st element has code 0. */
static double mean_of_codes(const Compiled *c, ampc_session *s,
                            const char *name, ampc_dtype dtype) {
    static uint8_t code[FLAT];
    static float scale[FLAT / BLOCK_OF];
    char of[80];
    double sum = 0;
    snprintf(of, sizeof of, "%s.scale", name);
    read_var(c, s, name, code, sizeof code, dtype);
    read_var(c, s, of, scale, sizeof scale, AMPC_DTYPE_F32);
    for (int i = 0; i < FLAT; i++) {
        if (i % 61 == 0 ? code[i] & 0x7f : !(code[i] & 0x7f))
            FAIL("%s, element %d: code %d", name, i, code[i]);
        sum += of_code(dtype, code[i], scale[i / BLOCK_OF]);
    }
    return sum / FLAT;
}

/* Means decay although a step is less than the distance of two codes; an
   element without a gradient keeps its weight to the bit; a step that is
   skipped changes nothing. */
TEST_CASE(optimizer, state_in_codes_decays) {
    static float x[FLAT], a[FLAT];
    ampc_input in = ampc_in("x", x, sizeof x, AMPC_DTYPE_F32);
    for (ampc_dtype d = 0; d < (ampc_dtype)AMPC_NDTYPE; d++) {
        if (!dtype_info[d].state || dtype_info[d].bytes > 1) continue;
        char options[120];
        double first = 0, firsts = 0;
        snprintf(options, sizeof options,
                 "--state-dtype %s --optimizer adam --target cpu:x86-64-v2",
                 dtype_info[d].state);
        Compiled c = compile_text(flat, options);
        ampc_session *s = open_threads(&c, 2);
        for (int k = 0; k <= 48; k++) {
            for (int j = 0; j < FLAT; j++)
                x[j] = k || j % 61 == 0 ? 0
                       : j % BLOCK_OF == 7
                           ? 1e-4f /* its square is below the least code */
                           : (float)(j % 61 - 30) - 0.5f;
            CHECK_EQ_INT(step_ok(&c, s, &in, 1).applied, 1);
            x[3] = NAN;
            CHECK_EQ_INT(step_ok(&c, s, &in, 1).applied, 0);
            double squares = mean_of_codes(&c, s, "ampc.opt/a/exp_avg_sq", d),
                   mean = mean_of_codes(&c, s, "ampc.opt/a/exp_avg", d);
            if (k == 0) first = squares, firsts = mean;
            CHECK_REL(squares, first * pow(0.999, k), 1e-2);
            CHECK_MSG(fabs(mean - firsts * pow(0.9, k)) < 2e-3 * pow(0.9, k),
                      "step %d: %g", k, mean);
        }
        read_var(&c, s, "a", a, sizeof a, AMPC_DTYPE_F32);
        for (int j = 0; j < FLAT; j++)
            if ((a[j] == 1) != (j % 61 == 0))
                FAIL("weight %d: %g", j, (double)a[j]);
        c.api->close(s);
        compiled_close(&c);
    }
}
