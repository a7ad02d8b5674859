/* SPDX-License-Identifier: Apache-2.0 */
/* cuda_eights_test.c: GPUs of sm_89 and newer multiply numbers of 8 bits
   (--precision f8), and train as the CPU, which widens them.                */
#define _GNU_SOURCE
#include <stdlib.h>
#include <string.h>

#include "runtime/program/lib.h"
#include "runtime/program/plan.h"
#include "tests/support/cuda_gpu.h"
#include "tests/support/trace_feed.h"

/* The middle layer reads 8 bits: its product is scaled, gets a bias, or is
   added to what its input was. */
#define LAYERS(n, middle)                                                      \
    "graph forward(%x: f32[B,64]) {\n"                                         \
    "  param %a: f32[" n ",64] = normal(0, 0.1)\n"                             \
    "  param %m: f32[" n "," n "] = normal(0, 0.1)\n"                          \
    "  param %c: f32[" n "] = normal(0, 0.1)\n"                                \
    "  param %b: f32[64," n "] = normal(0, 0.1)\n"                             \
    "  %h = matmul %x, %a {trans_b=1} : f32[B," n "]\n"                        \
    "  %r = gelu %h : f32[B," n "]\n"                                          \
    "  %t = matmul %r, %m {trans_b=1} : f32[B," n "] !of=\"middle\"\n" middle  \
    "  %y = matmul %u, %b {trans_b=1} : f32[B,64]\n"                           \
    "  %s = mul %y, %y : f32[B,64]\n"                                          \
    "  %loss = reduce_mean %s {axes=[0,1], keepdims=0}\n"                      \
    "  return %loss\n}\n"
#define ADDS(n)                                                                \
    "  %v = add %t, %c : f32[B," n "]\n  %u = gelu %v : f32[B," n "]\n"
#define SUMS(n)                                                                \
    "  %v = add %t, %r : f32[B," n "]\n  %u = gelu %v : f32[B," n "]\n"

#define SINES(n)                                                               \
    "  %v = add %t, %c : f32[B," n "]\n  %u = sin %v : f32[B," n "]\n"

/* The kernel that folds %vh's gradient also adds up its rows. */
#define HEADS                                                                  \
    "  %v = add %t, %c : f32[B,80]\n"                                          \
    "  %vh = reshape %v {shape=[96,5,16]} : f32[96,5,16]\n"                    \
    "  %hh = gelu %vh : f32[96,5,16]\n"                                        \
    "  %u = reshape %hh {shape=[96,80]} : f32[96,80]\n"

static const struct {
    const char *name, *text;
    uint32_t fn; /* the product in forward */
} layers[] = {
    {"scale", LAYERS("80", "  %u = relu %t : f32[B,80]\n"), PLAN_PRODUCT_SCALE},
    {"scale and bias", LAYERS("80", ADDS("80")), PLAN_PRODUCT_SCALE_BIAS},
    /* scales of blocks: tiles that end early, and several */
    {"blocks", LAYERS("96", "  %u = relu %t : f32[B,96]\n"),
     PLAN_PRODUCT_BLOCKS},
    {"blocks and bias", LAYERS("160", ADDS("160")), PLAN_PRODUCT_BLOCKS_BIAS},
    {"blocks and a sum", LAYERS("128", SUMS("128")), PLAN_PRODUCT_BLOCKS_ADD},
    /* so slow that a thread computes one number at a time */
    {"a sine", LAYERS("80", SINES("80")), PLAN_PRODUCT_SCALE_BIAS},
    {"heads", LAYERS("80", HEADS), PLAN_PRODUCT_SCALE_BIAS},
};

typedef struct Count {
    int eights;
    bool ends[PLAN_PRODUCT_BLOCKS_ADD + 1];
} Count;

/* Products of the module that read numbers of 8 bits. */
static Count products_of_eights(const Compiled *c) {
    const AmpcModule *m = (const void *)c->api->module;
    const PlanTarget *plan = m->cuda->plan;
    Count n = {0};
    for (uint32_t i = 0; i < plan->nstep; i++) {
        const PlanStep *t = &plan->steps[i];
        const LibGemm *g = (const void *)(plan->pars + t->par0);
        if (t->kind != PLAN_PRODUCT || !lib_is_eight(g->a_dtype)) continue;
        n.eights++;
        n.ends[t->fn] = true;
        CHECK(lib_is_eight(g->b_dtype) && g->a_cs == 1 && g->b_rs == 1);
    }
    return n;
}

static Compiled compile_for(int layer, const char *more, const char *gpu) {
    char options[128];
    snprintf(options, sizeof options, "--dim B=96 --precision f8 %s", more);
    return compile_text_cuda(layers[layer].text, options, gpu);
}

static const ampc_input *feed_eights(void *ctx, int step, size_t *nin) {
    sim()->seed((uint64_t)step + 1);
    return dc_random_feed(ctx, step, nin);
}

static void train(const Compiled *c, int cc, const char *refused,
                  const char *what) {
    DcReport report;
    if (refused) setenv("AMPC_SIM_REFUSE", refused, 1);
    gpu_for(c, 1);
    sim()->reset(&(SimConfig){.seed = 1, .cc = cc, .twins = c->cuda_dir});
    DcTraining t = {.steps = 6,
                    .metrics_only = true,
                    .tolerance = dc_training_tolerance("f8"),
                    .feed = feed_eights,
                    .feed_ctx = dc_random_new(c->api, "train", 1, 1)};
    REQUIRE(t.feed_ctx != NULL);
    CHECK_MSG(dc_train(c->api, "cpu", "cuda", &t, &report), "%s, %s: %s", what,
              refused ? refused : "nothing refused", report.text);
    gpu_clean(what);
    dc_random_free(t.feed_ctx);
    unsetenv("AMPC_SIM_REFUSE");
}

/* One forward product and the two of its gradient, in programs train and
   micro; the forward one of eval and predict. */
TEST_CASE(cuda_eights, products_read_numbers_of_eight_bits) {
    static const char *const refused[] = {NULL, "epilogues", "products"};
    for (int i = 0; i < 2; i++) {
        Compiled c = compile_for(i, "", "cuda:sm_90");
        Count n = products_of_eights(&c);
        CHECK_EQ_INT(n.eights, 8);
        CHECK_MSG(n.ends[layers[i].fn], "%s", layers[i].name);
        for (int r = 0; r < 3; r++) train(&c, 90, refused[r], layers[i].name);
        compiled_close(&c);
    }
}

TEST_CASE(cuda_eights, scales_of_earlier_steps_and_sums) {
    static const struct {
        int layer;
        const char *more;
    } of[] = {{1, "--f8-scales delayed"},
              {1, "--f8-scales delayed --accumulate 2"},
              {5, "--f8-scales delayed"},
              {6, "--f8-scales delayed"},
              {6, ""}};
    for (int i = 0; i < 5; i++) {
        Compiled c = compile_for(of[i].layer, of[i].more, "cuda:sm_90");
        CHECK_EQ_INT(products_of_eights(&c).eights, 8);
        train(&c, 90, NULL, layers[of[i].layer].name);
        compiled_close(&c);
    }
}

/* GPUs from sm_100 on multiply codes whose blocks have scales. */
TEST_CASE(cuda_eights, scales_of_blocks) {
    static const char *const refused[] = {NULL, "epilogues", "products"};
    static const char *const gpus[] = {"cuda:sm_100", "cuda:sm_120"};
    for (int i = 2; i < 5; i++) {
        Compiled c = compile_for(i, "--f8-scales block", gpus[i % 2]);
        Count n = products_of_eights(&c);
        CHECK_EQ_INT(n.eights, 8);
        CHECK_MSG(n.ends[layers[i].fn], "%s", layers[i].name);
        for (int r = 0; r < 3; r++)
            train(&c, i % 2 ? 120 : 100, refused[r], layers[i].name);
        compiled_close(&c);
    }
}

/* Others multiply bf16, of the same numbers. */
TEST_CASE(cuda_eights, older_gpus_multiply_no_blocks) {
    static const char *const gpus[] = {"cuda:sm_90", "cuda:sm_90,cuda:sm_100"};
    for (int i = 0; i < 2; i++) {
        Compiled c = compile_for(2, "--f8-scales block", gpus[i]);
        CHECK_EQ_INT(products_of_eights(&c).eights, 0);
        train(&c, 90, NULL, gpus[i]);
        compiled_close(&c);
    }
}

/* A GPU before sm_89 multiplies bf16, and so does a module that serves one,
   too. */
TEST_CASE(cuda_eights, older_gpus_multiply_sixteen_bits) {
    static const char *const gpus[] = {"cuda:sm_80", "cuda:sm_80,cuda:sm_90"};
    for (int i = 0; i < 2; i++) {
        Compiled c = compile_for(0, "", gpus[i]);
        CHECK_EQ_INT(products_of_eights(&c).eights, 0);
        compiled_close(&c);
    }
}

TEST_CASE(cuda_eights, compiled_for_gpus_that_multiply_them) {
    static const char *const gpus[] = {"cuda:sm_89", "cuda:sm_90",
                                       "cuda:sm_100", "cuda:sm_120"};
    for (int i = 0; i < 4; i++) {
        Compiled c = compile_for(1, "", gpus[i]);
        CHECK_EQ_INT(products_of_eights(&c).eights, 8);
        compiled_close(&c);
    }
}

/* The largest numbers of the last batches are saved and read again. */
TEST_CASE(cuda_eights, histories_are_saved) {
    Compiled c = compile_for(1, "--f8-scales delayed", "cuda:sm_90");
    const char *path = test_tmp("histories.safetensors");
    DcRandom *r = dc_random_new(c.api, "train", 1, 1);
    ampc_session *s = open_threads(&c, 1), *again = open_threads(&c, 1);
    size_t n, m, nin;
    for (int i = 0; i < 2; i++) {
        const ampc_input *in = dc_random_feed(r, i, &nin);
        step_ok(&c, s, in, nin);
    }
    if (c.api->save(s, path)) FAIL("save: %s", c.api->error(s));
    if (c.api->resume(again, path)) FAIL("resume: %s", c.api->error(again));
    const ampc_input *in = dc_random_feed(r, 2, &nin);
    step_ok(&c, s, in, nin);
    step_ok(&c, again, in, nin);
    void *want = read_all(&c, s, ~0u, &n), *got = read_all(&c, again, ~0u, &m);
    REQUIRE(n == m);
    CHECK_MEM(got, want, n);
    free(want);
    free(got);
    c.api->close(s);
    c.api->close(again);
    dc_random_free(r);
    compiled_close(&c);
}
