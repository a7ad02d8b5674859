/* SPDX-License-Identifier: Apache-2.0 */
/* cuda_turing_test.c: GPUs of compute capability 7.5 (T4, RTX 20): 64 KB of
   shared memory for a block, fp16 and no bf16.                              */
#define _POSIX_C_SOURCE 200809L
#include "runtime/program/plan.h"
#include "tests/support/cuda_gpu.h"

#include <stdlib.h>
#include <string.h>

/* Sums over rows of so many columns, in a block's shared memory. */
#define SUMS(rows, columns)                                                    \
    "graph forward(%x: f32[" rows "," columns "]) {\n"                         \
    "  %m = reduce_max %x {axes=[1], keepdims=1} : f32[" rows ",1]\n"          \
    "  %c = reduce_sum %x {axes=[0], keepdims=1} : f32[1," columns "]\n"       \
    "  return m=%m, c=%c\n}\n"

static const char attention[] =
    "graph forward(%x: f32[4,64,64]) {\n"
    "  param %q: f32[64,64] = normal(0, 0.3)\n"
    "  param %k: f32[64,64] = normal(0, 0.3)\n"
    "  param %v: f32[64,64] = normal(0, 0.3)\n"
    "  %a = matmul %x, %q : f32[4,64,64]\n"
    "  %b = matmul %x, %k : f32[4,64,64]\n"
    "  %c = matmul %x, %v : f32[4,64,64]\n"
    "  %s = matmul %a, %b {trans_b=1} : f32[4,64,64]\n"
    "  %p = softmax %s {axis=2} : f32[4,64,64]\n"
    "  %y = matmul %p, %c : f32[4,64,64]\n"
    "  %z = mul %y, %y : f32[4,64,64]\n"
    "  %loss = reduce_mean %z {axes=[0,1,2], keepdims=0}\n"
    "  return %loss\n}\n";

static void reset_turing(const Compiled *c, uint64_t seed) {
    sim()->reset(&(SimConfig){.seed = seed, .cc = 75, .twins = c->cuda_dir});
}

/* Dynamic shared memory of the kernel with the most. */
static uint32_t most_shared(const Compiled *c) {
    const PlanCuda *p = ((const AmpcModule *)c->api->module)->cuda;
    uint32_t most = 0;
    for (uint32_t i = 0; i < p->nkernel; i++)
        if (p->kernels[i].shared > most) most = p->kernels[i].shared;
    return most;
}

static const char summing[] = "--precision fp32 --loss none";

TEST_CASE(cuda_turing, a_block_has_less_shared_memory) {
    enum { BYTES = 4 * 20000 };
    static const char *const archs[] = {"cuda:sm_80", "cuda:sm_75",
                                        "cuda:sm_80,cuda:sm_75"};
    for (int i = 0; i < 3; i++) {
        Compiled c = compile_text_cuda(SUMS("512", "20000"), summing, archs[i]);
        uint32_t most = most_shared(&c);
        CHECK_MSG(i == 0 ? most == BYTES : most <= 64 << 10, "%s: %u bytes",
                  archs[i], (unsigned)most);
        compiled_close(&c);
    }
}

TEST_CASE(cuda_turing, a_block_uses_what_it_has) {
    DcReport r;
    size_t nin;
    Compiled c = compile_text_cuda(SUMS("256", "13000"), summing, "cuda:sm_75");
    CHECK_EQ_INT(most_shared(&c), 4 * 13000);
    DcRandom *feed = dc_random_new(c.api, "predict", 1, 5);
    gpu_for(&c, 1);
    reset_turing(&c, 1);
    const ampc_input *in = dc_random_feed(feed, 1, &nin);
    CHECK_MSG(dc_predict(c.api, "cpu", "cuda", in, nin, &r), "%s", r.text);
    gpu_clean("predict");
    dc_random_free(feed);
    compiled_close(&c);
}

static const ampc_input *next_random(void *ctx, int step, size_t *nin) {
    sim()->seed((uint64_t)step + 1);
    return dc_random_feed(ctx, step, nin);
}

TEST_CASE(cuda_turing, trains_in_fp16) {
    DcReport report;
    Compiled c = compile_text_cuda(
        attention, "--optimizer sgd,lr=0.1 --precision fp16", "cuda:sm_75");
    gpu_for(&c, 1);
    reset_turing(&c, 1);
    DcTraining t = {.steps = 6,
                    .forced = true,
                    .tolerance = dc_training_tolerance("fp16"),
                    .feed = next_random,
                    .feed_ctx = dc_random_new(c.api, "train", 1, 1)};
    REQUIRE(t.feed_ctx != NULL);
    CHECK_MSG(dc_train(c.api, "cpu", "cuda", &t, &report), "%s", report.text);
    CHECK(report.compared > 0);
    gpu_clean("train");
    dc_random_free(t.feed_ctx);
    compiled_close(&c);
}

TEST_CASE(cuda_turing, refuses_what_it_cannot_multiply) {
    static const struct {
        const char *options, *says, *remedy;
    } rows[] = {{"--precision bf16",
                 "matmul: GPUs of compute capability 7.5 do not multiply "
                 "bf16",
                 "--precision fp16 or fp32"},
                {"--precision fp32 --matmul-precision high",
                 "compute capability 7.5 do not multiply rounded fp32",
                 "leave out --matmul-precision or --target cuda:sm_75"}};
    require_nvrtc();
    char *model = strdup(test_tmp("attention.amp"));
    REQUIRE(test_write_file(model, attention, strlen(attention)));
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char *out;
        int status = test_command(
            &out, "%s %s -o %s --cache none --target cuda:sm_75 %s 2>&1",
            test_data_path("ampc"), model, test_tmp("out.so"), rows[i].options);
        CHECK_EQ_INT(status, 1);
        CHECK_HAS(out, rows[i].says);
        CHECK_HAS(out, rows[i].remedy);
        free(out);
    }
    free(model);
}
