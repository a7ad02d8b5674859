/* SPDX-License-Identifier: Apache-2.0 */
/* device_check_test.c: the comparison of devices, with the CPU on both
   sides, and with deliberate differences. */
#include <stdio.h>

#include "tests/support/compiled.h"
#include "tests/support/device_check.h"

static const char mlp[] = "tests/onnx/mlp.dyn.onnx";

static Compiled mlp_with(const char *options) {
    char all[200];
    snprintf(all, sizeof all,
             "--target cpu:x86-64-v2,cpu:x86-64-v3 --dim batch=8 %s", options);
    return compile_file(test_data_path(mlp), all);
}

static DcTraining training(const Compiled *c, const char *precision) {
    DcTraining t = {.steps = 4, .tolerance = dc_training_tolerance(precision)};
    t.feed = dc_random_feed;
    t.feed_ctx = dc_random_new(c->api, "train", 3, 1);
    REQUIRE(t.feed_ctx);
    return t;
}

TEST_CASE(device_check, a_device_agrees_with_itself) {
    static const char *const precision[] = {"fp32", "bf16", "fp16"};
    for (int i = 0; i < 3; i++) {
        char options[64];
        DcReport r;
        snprintf(options, sizeof options, "--precision %s --accumulate %d",
                 precision[i], 1 + i % 2);
        Compiled c = mlp_with(options);
        DcTraining t = training(&c, precision[i]);
        CHECK_MSG(dc_train(c.api, "cpu", "cpu", &t, &r), "%s", r.text);
        t.forced = true;
        CHECK_MSG(dc_train(c.api, "cpu", "cpu", &t, &r), "%s", r.text);
        CHECK(r.compared > 50 && r.worst == 0);
        CHECK_MSG(dc_same_bits(c.api, "cpu", NULL, NULL, &t, &r), "%s", r.text);
        CHECK(r.compared > 50);
        dc_random_free(t.feed_ctx);
        DcRandom *in = dc_random_new(c.api, "predict", 3, 2);
        size_t nin;
        const ampc_input *x = dc_random_feed(in, 0, &nin);
        CHECK_MSG(dc_predict(c.api, "cpu", "cpu", x, nin, &r), "%s", r.text);
        CHECK(r.compared > 0);
        dc_random_free(in);
        compiled_close(&c);
    }
}

/* Gives the second session other inputs at every step. */
static int calls;
static const ampc_input *other_inputs(void *random, int step, size_t *nin) {
    return dc_random_feed(random, step + 100 * (calls++ & 1), nin);
}

TEST_CASE(device_check, differences_are_seen) {
    Compiled c = mlp_with("--precision fp32");
    DcTraining t = training(&c, "fp32");
    DcReport r;
    t.feed = other_inputs;
    CHECK(!dc_train(c.api, "cpu", "cpu", &t, &r));
    CHECK_HAS(r.text, "step 0, loss: off by");
    CHECK_HAS(r.text, "weight");
    t.feed = dc_random_feed;
    CHECK(!dc_same_bits(c.api, "cpu", "AMPC_ISA", "v2", &t, &r));
    CHECK_HAS(r.text, "other bits in ");
    CHECK(!dc_train(c.api, "cpu", "cpu:none", &t, &r));
    CHECK_HAS(r.text, "open on cpu:none");
    dc_random_free(t.feed_ctx);
    compiled_close(&c);
}

static size_t growing(void *ctx) {
    size_t *n = ctx;
    return *n += 100;
}

static size_t constant(void *ctx) { return *(size_t *)ctx; }

TEST_CASE(device_check, growth_is_seen) {
    Compiled c = mlp_with("--precision fp32");
    DcTraining t = training(&c, "fp32");
    DcReport r;
    size_t n = 1000;
    CHECK_MSG(dc_leaks(c.api, "cpu", &t, constant, &n, 0, &r), "%s", r.text);
    CHECK(!dc_leaks(c.api, "cpu", &t, growing, &n, 0, &r));
    CHECK_HAS(r.text, "steps: memory grew");
    t.steps = 200;
    CHECK_MSG(dc_leaks(c.api, "cpu", &t, dc_process_memory, NULL, 1 << 20, &r),
              "%s", r.text);
    dc_random_free(t.feed_ctx);
    compiled_close(&c);
}
