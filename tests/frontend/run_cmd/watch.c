/* SPDX-License-Identifier: Apache-2.0 */
/* watch.c: what a long run measures: spikes, update-to-weight ratios, the noise
   scale of gradients; a restart by the same command. */
#include "tests/frontend/run_cmd/ran.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* 160 samples, 40 steps; the outlier's label is far away. */
enum { MANY = 160, OUTLIER = 130 };

static void write_outlier(void) {
    static float x[MANY * TINY_IN], t[MANY * TINY_OUT];
    for (int i = 0; i < MANY / TINY_BATCH; i++)
        tiny_batch(i, x + i * TINY_BATCH * TINY_IN,
                   t + i * TINY_BATCH * TINY_OUT);
    t[OUTLIER * TINY_OUT] = 1000;
    write_npy("x.npy", AMPC_DTYPE_F32, 2, (int64_t[]){MANY, TINY_IN}, x);
    write_npy("t.npy", AMPC_DTYPE_F32, 2, (int64_t[]){MANY, TINY_OUT}, t);
}

static int count(const char *text, const char *what) {
    int n = 0;
    for (const char *p = text; (p = strstr(p, what)); p += strlen(what)) n++;
    return n;
}

/* In file order the outlier is in step 33, later in any step of an epoch:
   an earlier spike hides none. */
TEST_CASE(watch, a_spike_is_told_with_its_samples) {
    write_outlier();
    Ran r = run_module(&tiny_module, FEEDS "--lr 1e-9 --epochs 3");
    CHECK_EQ_INT(r.status, 0);
    CHECK_EQ_INT(count(r.out, "{\"spike\":\"loss\""), 3);
    CHECK_EQ_INT(count(r.out, "{\"spike\":\"grad_norm\""), 3);
    CHECK_HAS(r.out, "\"spike\":\"loss\",\"step\":33,");
    CHECK_HAS(r.out, "\"spike\":\"loss\",\"step\":73,");
    CHECK_HAS(r.out, "\"epoch\":3,\"samples\":[128,129,130,131],\"files\":[\"");
    CHECK_HAS(r.out, "x.npy\", \"");
    CHECK_HAS(r.err, "step 113 spikes: loss ");
    CHECK_HAS(r.err, "; epoch 1, samples 128, 129, 130, 131 of ");
    CHECK_HAS(r.err, "t.npy\n");
    ran_free(&r);
    char *out = good(&tiny_module, FEEDS "--lr 1e-9 --epochs 3 --spikes 0");
    CHECK_EQ_INT(count(out, "spike"), 0);
    free(out);
    out = good(&tiny_module, FEEDS "--lr 1e-9 --epochs 6 --shuffle");
    CHECK(count(out, "{\"spike\":\"loss\"") >= 5);
    for (const char *p = out; (p = strstr(p, "{\"spike\"")); p++) {
        char line[300];
        snprintf(line, sizeof line, "%.*s", (int)strcspn(p, "\n"), p);
        CHECK_HAS(line, "130");
        *strstr(line, "],\"files\"") = 0;
        CHECK_EQ_INT(count(strstr(line, "samples"), ","), 3);
    }
    free(out);
    bad(&tiny_module, FEEDS "--spikes -1", 2, "--spikes: '-1' is not a number");
}

/* 30 steps of 8 samples and one of 4 that has the loss of step 25, a spike. */
TEST_CASE(watch, a_short_step_may_scatter_more) {
    enum { ALL = 30 * 2 * TINY_BATCH + TINY_BATCH, HIGH = 24 * 2 * TINY_BATCH };
    static float x[ALL * TINY_IN], t[ALL * TINY_OUT];
    for (int i = 0; i < ALL * TINY_OUT; i++) {
        int sample = i / TINY_OUT;
        bool high = (sample >= HIGH && sample < HIGH + 2 * TINY_BATCH) ||
                    sample >= ALL - TINY_BATCH;
        t[i] = high ? 112 : 100;
    }
    write_npy("x.npy", AMPC_DTYPE_F32, 2, (int64_t[]){ALL, TINY_IN}, x);
    write_npy("t.npy", AMPC_DTYPE_F32, 2, (int64_t[]){ALL, TINY_OUT}, t);
    char *out = good(&tiny_accumulating, FEEDS "--lr 1e-30");
    CHECK_HAS(out, "\"spike\":\"loss\",\"step\":25,");
    CHECK_EQ_INT(count(out, "\"step\":31,"), 1);
    free(out);
}

/* Targets of one size for each step, by which the loss falls or grows: rate a
   step. Sample 4 * at has `value` in its place. */
static void write_moving(double rate, int at, float value) {
    static float x[MANY * TINY_IN], t[MANY * TINY_OUT];
    for (int i = 0; i < MANY * TINY_OUT; i++)
        t[i] = (float)(100 * pow(rate, i / TINY_OUT / TINY_BATCH));
    t[at * TINY_BATCH * TINY_OUT] = value;
    write_npy("x.npy", AMPC_DTYPE_F32, 2, (int64_t[]){MANY, TINY_IN}, x);
    write_npy("t.npy", AMPC_DTYPE_F32, 2, (int64_t[]){MANY, TINY_OUT}, t);
}

/* The loss falls from 1e4 to 2100 in 40 steps, and is 7000 in step 37: the
   first losses must not hide it. A norm that grows as evenly never spikes. */
TEST_CASE(watch, a_spike_of_a_falling_loss_is_told) {
    write_moving(0.98, 36, 200);
    char *out = good(&tiny_module, FEEDS "--lr 1e-30");
    CHECK_HAS(out, "\"spike\":\"loss\",\"step\":37,");
    CHECK_EQ_INT(count(out, "\"spike\":\"loss\""), 1);
    free(out);
    write_moving(1.02, 0, 100);
    out = good(&tiny_module, FEEDS "--lr 1e-30");
    CHECK_EQ_INT(count(out, "spike"), 0);
    free(out);
}

/* Also among the first steps. */
TEST_CASE(watch, a_loss_that_is_not_finite_spikes) {
    write_moving(1, 9, INFINITY);
    Ran r = run_module(&tiny_module, FEEDS "--lr 1e-30");
    CHECK_HAS(r.out, "{\"spike\":\"loss\",\"step\":10,\"value\":null,");
    CHECK_HAS(r.out, "\"samples\":[36,37,38,39]");
    CHECK_EQ_INT(count(r.out, "{\"spike\""), 1);
    CHECK_HAS(r.err,
              "step 10 spikes: loss inf, usually 1e+04; epoch 1, samples ");
    ran_free(&r);
}

/* The watch does not count usual losses as spikes. */
TEST_CASE(watch, a_falling_loss_does_not_spike) {
    write_data(40);
    char *out = good(&tiny_module, FEEDS "--epochs 20");
    CHECK_EQ_INT(count(out, "spike"), 0);
    free(out);
}

static double squares_of(ampc_session *s, const char *name, int n) {
    float x[TINY_IN * TINY_OUT];
    double sum = 0;
    ampc_output out = {.size = sizeof out,
                       .data = x,
                       .bytes = (size_t)n * sizeof *x,
                       .dtype = AMPC_DTYPE_F32};
    CHECK_EQ_INT(tiny_api()->read_variable(s, name, &out), AMPC_OK);
    for (int i = 0; i < n; i++) sum += (double)x[i] * x[i];
    return sum;
}

/* The first step of SGD moves all parameters by lr times the gradient. */
TEST_CASE(watch, update_ratios_are_those_of_the_definition) {
    ampc_session *s;
    char err[200];
    const ampc_api *api = tiny_api();
    REQUIRE(!api->open(tiny_handle(&tiny_module), NULL, &s, err, sizeof err));
    double size = sqrt(squares_of(s, "w", TINY_IN * TINY_OUT) +
                       squares_of(s, "b", TINY_OUT));
    api->close(s);
    write_data(40);
    char *out = good(&tiny_module,
                     FEEDS "--steps 5 --update-ratios 1 --report @ratios.html");
    CHECK_EQ_INT(count(out, "\"update_ratio\":"), 5);
    CHECK_REL(field(out, 1, "update_ratio"),
              0.1 * field(out, 0, "grad_norm") / size, 1e-5);
    CHECK_HAS(out, "\"update_ratios\":{\"w\":");
    free(out);
    char *page = test_read_file(test_tmp("ratios.html"), NULL);
    REQUIRE(page);
    CHECK_HAS(page, "update / weight in step 5\\u000a");
    CHECK_HAS(page, "\"tag\":\"train/update_ratio\"");
    free(page);
    out = good(&tiny_module, FEEDS "--steps 5 --update-ratios 2");
    CHECK_EQ_INT(count(out, "\"update_ratio\":"), 2);
    CHECK_HAS(out, "{\"step\":4,\"update_ratio\":");
    free(out);
    bad(&tiny_module, FEEDS "--eval --update-ratios 2", 2, "no effect");
}

/* From the norms of the gradients of 4 and of 8 samples. */
TEST_CASE(watch, the_noise_scale_is_that_of_the_definition) {
    write_data(16);
    char *each = good(&tiny_module, FEEDS "--steps 4 --lr 1e-30");
    char *out =
        good(&tiny_accumulating, FEEDS "--steps 2 --lr 1e-30 --noise-scale 1");
    double square = 0, trace = 0;
    for (int i = 0; i < 2; i++) {
        double g4 = pow(field(each, 2 * i, "grad_norm"), 2);
        double g8 = pow(field(out, 2 * i, "grad_norm"), 2);
        square = 0.9 * square + 0.1 * (8 * g8 - 4 * g4) / (8 - 4);
        trace = 0.9 * trace + 0.1 * (g4 - g8) / (1.0 / 4 - 1.0 / 8);
        CHECK_REL(field(out, 2 * i + 1, "noise_scale"), trace / square, 1e-4);
    }
    free(each);
    free(out);
    bad(&tiny_module, FEEDS "--noise-scale 1", 1, "--accumulate 2 or more");
}

TEST_CASE(watch, one_command_starts_and_restarts) {
    static const char once[] = FEEDS "--epochs 2 --save @whole.ck";
    static const char again[] = FEEDS "--save @auto.ck --auto-resume --epochs ";
    char words[300];
    write_data(40);
    free(good(&tiny_module, once));
    snprintf(words, sizeof words, "%s1", again);
    Ran r = run_module(&tiny_module, words);
    CHECK_EQ_INT(r.status, 0);
    CHECK_HAS(r.err, "auto.ck does not exist: starting at step 1");
    ran_free(&r);
    snprintf(words, sizeof words, "%s2 --load @none.safetensors", again);
    r = run_module(&tiny_module, words); /* the checkpoint replaces --load */
    CHECK_EQ_INT(r.status, 0);
    CHECK_EQ_INT(field(r.out, 0, "step"), 11);
    ran_free(&r);
    same_files("auto.ck", "whole.ck");
    bad(&tiny_module, FEEDS "--auto-resume", 2, "--auto-resume needs");
}
