/* SPDX-License-Identifier: Apache-2.0 */
/* training_test.c: promises about a whole training run, through the C API.

   Skipped steps change nothing; loss scale, counters and schedules follow their
   rules; the same bits for any number of threads and across save and resume;
   the same bytes from two compilations; every ISA level trains.             */
#define _POSIX_C_SOURCE 200809L
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/compiled.h"
#include "tests/whole/training/training.h"

float training_noise(uint64_t *state) {
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (float)((double)(*state >> 40) / (1 << 23) - 1);
}

void batch_fill(Batch *b, uint64_t seed, float scale) {
    for (int i = 0; i < BATCH * FEATURES; i++)
        b->x[i] = scale * training_noise(&seed);
    for (int i = 0; i < BATCH; i++) b->t[i] = i % CLASSES;
    b->in[0] = ampc_in("x", b->x, sizeof b->x, AMPC_DTYPE_F32);
    b->in[1] = ampc_in("target", b->t, sizeof b->t, AMPC_DTYPE_I64);
}

const char *training_mlp(void) {
    return test_data_path("tests/traces/mlp_torchscript_adamw/model.onnx");
}

#define MLP_OPTIONS "--dim batch=16 --loss cross_entropy "

/* ---- loss scaling -------------------------------------------------------- */

TEST_CASE(training, fp16_overflow_skips_backs_off_and_recovers) {
    Compiled c = compile_file(training_mlp(), MLP_OPTIONS
                              "--precision fp16 --loss-scale "
                              "dynamic,init=1073741824,max=inf,interval=3");
    ampc_session *s = open_threads(&c, 2);
    Batch b;
    size_t n0, n1;
    int skipped = 0, applied = 0;
    double scale = 1073741824;
    for (int i = 0; i < 40 && applied < 8; i++) {
        void *before = read_all(&c, s, STATE_KINDS, &n0);
        batch_fill(&b, 100 + (uint64_t)i, 1);
        ampc_metrics m = step_ok(&c, s, b.in, 2);
        void *after = read_all(&c, s, STATE_KINDS, &n1);
        CHECK(isfinite(m.loss));
        CHECK_NEAR(m.scale, scale, 0);
        REQUIRE(n0 == n1);
        bool same = !memcmp(before, after, n0);
        CHECK_MSG(same == !m.applied, "step %d: applied %d, state %s", i,
                  m.applied, same ? "unchanged" : "changed");
        skipped += !m.applied;
        applied += m.applied;
        CHECK_EQ_INT(m.skipped, skipped);
        CHECK_EQ_INT(m.step, applied);
        ampc_scaler after_step = {.size = sizeof after_step};
        REQUIRE(!c.api->scaler(s, &after_step));
        scale = after_step.scale;
        if (!m.applied)
            CHECK_NEAR(scale, m.scale / 2, 0);
        else
            CHECK(scale == m.scale || scale == m.scale * 2);
        free(before);
        free(after);
    }
    CHECK_MSG(skipped > 3 && applied == 8, "%d skipped, %d applied", skipped,
              applied);
    c.api->close(s);
    compiled_close(&c);
}

TEST_CASE(training, a_bad_input_is_skipped_and_keeps_the_scale) {
    Compiled c = compile_file(training_mlp(), MLP_OPTIONS "--precision fp16");
    ampc_session *s = open_threads(&c, 1);
    Batch b;
    size_t n;
    batch_fill(&b, 1, 1);
    b.x[3] = NAN;
    void *before = read_all(&c, s, STATE_KINDS, &n);
    ampc_metrics m = step_ok(&c, s, b.in, 2);
    void *after = read_all(&c, s, STATE_KINDS, &n);
    CHECK(isnan(m.loss));
    CHECK_EQ_INT(m.applied, 0);
    CHECK_EQ_INT(m.bad_forward, 1);
    CHECK_MEM(before, after, n);
    batch_fill(&b, 1, 1);
    m = step_ok(&c, s, b.in, 2);
    CHECK_NEAR(m.scale, 65536, 0);
    CHECK_EQ_INT(m.applied, 1);
    free(before);
    free(after);
    c.api->close(s);
    compiled_close(&c);
}

TEST_CASE(training, the_scale_grows_after_an_interval_up_to_its_cap) {
    Compiled c = compile_file(training_mlp(), MLP_OPTIONS
                              "--precision fp16 --loss-scale "
                              "dynamic,init=8,interval=2,growth=4,max=100");
    static const double want[] = {8, 8, 32, 32, 100, 100, 100};
    ampc_session *s = open_threads(&c, 1);
    Batch b;
    for (int i = 0; i < 7; i++) {
        batch_fill(&b, 7, 0.1f);
        CHECK_NEAR(step_ok(&c, s, b.in, 2).scale, want[i], 0);
    }
    c.api->close(s);
    compiled_close(&c);
}

/* ---- schedules ----------------------------------------------------------- */

static void check_lr(const char *schedule, const double *want, int n) {
    char options[256];
    snprintf(options, sizeof options,
             MLP_OPTIONS "--precision fp32 --optimizer sgd,lr=0.1 "
                         "--lr-schedule %s",
             schedule);
    Compiled c = compile_file(training_mlp(), options);
    ampc_session *s = open_threads(&c, 1);
    Batch b;
    batch_fill(&b, 7, 0.1f);
    for (int i = 0; i < n; i++)
        CHECK_REL(step_ok(&c, s, b.in, 2).lr, want[i], 1e-6);
    c.api->close(s);
    compiled_close(&c);
}

TEST_CASE(training, schedules_follow_their_formulas) {
    const double pi = acos(-1);
    double cosine[8], linear[8], step[8];
    for (int i = 0; i < 8; i++) {
        double p = fmin(1, (i - 2) / 4.0);
        cosine[i] = i < 2 ? 0.1 * (i + 1) / 2
                          : 0.01 + (0.1 - 0.01) * 0.5 * (1 + cos(pi * p));
        linear[i] = i < 2 ? 0.1 * (i + 1) / 2 : 0.1 * (1 - p);
        step[i] = 0.1 * pow(0.5, i / 3);
    }
    linear[6] = linear[7] = 0;
    check_lr("cosine,warmup=2,total=6,min=0.01", cosine, 8);
    check_lr("linear,warmup=2,total=6", linear, 8);
    check_lr("step,every=3,gamma=0.5", step, 8);
}

TEST_CASE(training, a_host_changes_the_schedule) {
    const double pi = acos(-1);
    Compiled c = compile_file(training_mlp(), MLP_OPTIONS
                              "--precision fp32 --optimizer sgd,lr=0.1 "
                              "--lr-schedule cosine,warmup=2,total=6");
    ampc_session *s = open_threads(&c, 1), *resumed = open_threads(&c, 1);
    const char *const names[] = {"lr", "warmup", "total", "min"};
    const double values[] = {0.2, 0, 20, 0.04};
    double x;
    Batch b;
    batch_fill(&b, 7, 0.1f);
    CHECK_REL(step_ok(&c, s, b.in, 2).lr, 0.05, 1e-6);
    for (int i = 0; i < 4; i++)
        CHECK_EQ_INT(c.api->set_hyper(s, names[i], values[i]), AMPC_OK);
    for (int i = 1; i < 4; i++)
        CHECK_REL(step_ok(&c, s, b.in, 2).lr,
                  0.04 + 0.16 * 0.5 * (1 + cos(pi * i / 20)), 1e-6);
    CHECK_EQ_INT(c.api->set_hyper(s, "total", 0), AMPC_OK); /* long over */
    CHECK_REL(step_ok(&c, s, b.in, 2).lr, 0.04, 1e-6);
    CHECK_EQ_INT(c.api->set_hyper(s, "total", -1), AMPC_ERR_ARGUMENT);
    CHECK_HAS(c.api->error(s), "'total' (f64) cannot be -1; it is a whole");
    CHECK_EQ_INT(c.api->set_hyper(s, "total", 1.5), AMPC_ERR_ARGUMENT);
    CHECK_EQ_INT(c.api->set_hyper(s, "gamma", 1), AMPC_ERR_ARGUMENT);
    CHECK_HAS(c.api->error(s), "the module has: lr warmup");
    const char *path = test_tmp("schedule.safetensors");
    CHECK_EQ_INT(c.api->save(s, path), AMPC_OK);
    CHECK_EQ_INT(c.api->resume(resumed, path), AMPC_OK);
    CHECK_EQ_INT(c.api->get_hyper(resumed, "min", &x), AMPC_OK);
    CHECK_NEAR(x, 0.04, 0);
    c.api->close(resumed);
    c.api->close(s);
    compiled_close(&c);
}

/* ---- accumulation -------------------------------------------------------- */

TEST_CASE(training, accumulated_micro_batches_equal_one_batch) {
    const char *common = "--loss cross_entropy --precision fp32 --optimizer "
                         "adamw,lr=0.01 --clip-norm 0.3 ";
    char options[256];
    Batch b;
    snprintf(options, sizeof options, "%s --dim batch=16", common);
    Compiled whole = compile_file(training_mlp(), options);
    snprintf(options, sizeof options, "%s --dim batch=4 --accumulate 4",
             common);
    Compiled parts = compile_file(training_mlp(), options);
    ampc_session *s = open_threads(&whole, 2), *p = open_threads(&parts, 2);
    for (int i = 0; i < 6; i++) {
        ampc_metrics want, got = {0};
        batch_fill(&b, 50 + (uint64_t)i, 1);
        want = step_ok(&whole, s, b.in, 2);
        for (int k = 0; k < 4; k++) {
            ampc_input in[] = {
                ampc_in("x", b.x + k * 4 * FEATURES, 4 * FEATURES * 4,
                        AMPC_DTYPE_F32),
                ampc_in("target", b.t + 4 * k, 4 * 8, AMPC_DTYPE_I64)};
            got = step_ok(&parts, p, in, 2);
            CHECK_EQ_INT(got.updated, k == 3);
        }
        CHECK_REL(got.loss, want.loss, 1e-5);
        CHECK_REL(got.grad_norm, want.grad_norm, 1e-4);
        CHECK_EQ_INT(got.step, i + 1);
    }
    whole.api->close(s);
    parts.api->close(p);
    compiled_close(&whole);
    compiled_close(&parts);
}
