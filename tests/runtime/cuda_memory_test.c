/* SPDX-License-Identifier: Apache-2.0 */
/* cuda_memory_test.c: a session opens after the remedy that the message about
   too little memory of a GPU names. */
#include <string.h>

#include "tests/support/gpu_session.h"

static const char wide_layer[] =
    "graph g(%x: f32[B,64]) {\n"
    "  param %v: f32[64,512] = normal(0, 0.1)\n"
    "  param %w: f32[512,64] = normal(0, 0.1)\n"
    "  %h = matmul %x, %v : f32[B,512]\n"
    "  %t = tanh %h : f32[B,512]\n"
    "  %y = matmul %t, %w : f32[B,64]\n"
    "  %s = mul %y, %y : f32[B,64]\n"
    "  %loss = reduce_mean %s {axes=[0,1], keepdims=0}\n"
    "  return %loss\n}\n";

static Model wide_with(const char *options) {
    char all[200];
    snprintf(all, sizeof all, "--optimizer adamw,lr=1e-3 --dim %s", options);
    Model m = {.c = compile_text_cuda(wide_layer, all, GPU_PTX)};
    REQUIRE(sim_build_twins(m.c.cuda_dir) > 0);
    return m;
}

/* Opens it on a GPU of that memory; 0: enough of it. Returns the bytes that the
   session has, 0 if it does not open. */
static uint64_t opened_in(const Model *m, uint64_t memory) {
    ampc_session *s;
    ampc_memory_info has = {.size = sizeof has};
    const ampc_api *a = machine(m, &(SimConfig){.memory = (size_t)memory});
    ampc_status status = try_open(a, "cuda", NULL, &s);
    if (status == AMPC_OK) {
        CHECK_EQ_INT(a->memory(s, &has), AMPC_OK);
        a->close(s);
    } else {
        CHECK_EQ_INT(status, AMPC_ERR_MEMORY);
    }
    check_clean();
    return has.total;
}

/* The number after `word` in the message. */
static unsigned long long advised(const char *word) {
    unsigned long long n = 0;
    const char *at = strstr(open_text, word);
    if (!at || sscanf(at + strlen(word), " %llu", &n) != 1)
        FAIL("no number after '%s': %s", word, open_text);
    return n;
}

/* With an option that the message names, the session opens in the memory that
   was too small. */
TEST_CASE(cuda_memory, a_message_names_options_that_fit) {
    enum { LITTLE = 64 << 10, MUCH = 300 << 10 };
    char options[60];
    sim_twins_compile_fast();
    Model large = wide_with("B=512"), codes = wide_with("B=512 "
                                                        "--state-dtype int8");
    /* the GPU lacks less than the activations take */
    uint64_t whole = opened_in(&large, 0);
    CHECK_EQ_INT(opened_in(&large, whole - LITTLE), 0);
    CHECK_HAS(open_text, "or --state-dtype int8");
    CHECK(advised("--remat") > 0);
    unsigned long long batch = advised("batch of at most");
    CHECK(batch > 256 && batch < 512);
    CHECK_HAS(open_text, " instead of 512");
    snprintf(options, sizeof options, "B=%llu", batch);
    Model fewer = wide_with(options);
    CHECK(opened_in(&fewer, whole - LITTLE) > 0);
    CHECK(opened_in(&codes, whole - LITTLE) > 0);
    /* more than the activations take */
    Model small = wide_with("B=8"), least = wide_with("B=8 "
                                                      "--state-dtype int8");
    whole = opened_in(&small, 0);
    CHECK_EQ_INT(opened_in(&small, whole - MUCH), 0);
    CHECK(!strstr(open_text, "--remat"));
    CHECK(advised("compile with --state-dtype int8, which saves") >= MUCH);
    CHECK(opened_in(&least, whole - MUCH) > 0);
    /* state that has codes already */
    whole = opened_in(&least, 0);
    CHECK_EQ_INT(opened_in(&least, whole - MUCH), 0);
    CHECK_HAS(open_text, "--remat is not enough");
    CHECK(!strstr(open_text, "--state-dtype"));
    Model *const all[] = {&large, &codes, &fewer, &small, &least};
    for (int i = 0; i < 5; i++) compiled_close(&all[i]->c);
}
