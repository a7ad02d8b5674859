/* sim_test.c: the simulated GPU keeps the rules of a real one, and sees what
   breaks them.                                                              */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/simulate.h"

#define K "extern \"C\" __global__ void __launch_bounds__(256) "

/* ---- kernels on host memory ---------------------------------------------- */

static SimTwin *twin_of(const char *text) {
    char path[600], err[300];
    char *dir = sim_build_text(text);
    snprintf(path, sizeof path, "%s/unit0.so", dir);
    free(dir);
    SimTwin *t = sim()->twin_open(path, err, sizeof err);
    if (!t) FAIL("%s", err);
    return t;
}

static const char block_sum[] =
    K "k0(const float *x, float *y) {\n"
    "    __shared__ float part[8];\n"
    "    float v = x[blockIdx.x * 256 + threadIdx.x];\n"
    "    for (int s = 16; s; s /= 2) v += __shfl_xor_sync(~0u, v, s);\n"
    "    if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = v;\n"
    "    BARRIER\n"
    "    if (threadIdx.x == 0) {\n"
    "        float sum = 0;\n"
    "        for (int i = 0; i < 8; i++) sum += part[i];\n"
    "        y[blockIdx.x] = sum;\n"
    "    }\n"
    "}\n";

static SimTwin *block_sum_twin(const char *barrier) {
    char text[2000];
    snprintf(text, sizeof text, "#define BARRIER %s\n%s", barrier, block_sum);
    return twin_of(text);
}

static int run_block_sum(SimTwin *t, float y[4]) {
    float x[1024];
    const float *px = x;
    void *params[] = {&px, &y};
    for (int i = 0; i < 1024; i++) x[i] = (float)(i % 256);
    return sim()->run(t, "k0", 4, 256, 0, params);
}

TEST_CASE(sim, blocks_with_barriers_and_shuffles) {
    SimTwin *t = block_sum_twin("__syncthreads();");
    float y[4];
    for (unsigned seed = 0; seed < 3; seed++) {
        sim()->seed(seed);
        CHECK_EQ_INT(run_block_sum(t, y), 0);
        for (int i = 0; i < 4; i++) CHECK_NEAR(y[i], 255 * 128, 0);
    }
    sim()->twin_close(t);
}

TEST_CASE(sim, a_removed_barrier_shows) {
    SimTwin *t = block_sum_twin("");
    float y[4];
    int wrong = 0;
    for (unsigned seed = 0; seed < 3; seed++) {
        sim()->seed(seed);
        CHECK_EQ_INT(run_block_sum(t, y), 0);
        for (int i = 0; i < 4; i++) wrong += !(y[i] == 255 * 128);
    }
    CHECK(wrong > 8);
    sim()->twin_close(t);
}

/* Runs `kernel` of one float buffer; the errors must have `needle`. */
static void check_fault(const char *text, unsigned threads, int code,
                        const char *needle) {
    SimTwin *t = twin_of(text);
    float x[1024] = {0}, *p = x;
    void *params[] = {&p};
    sim()->reset(NULL);
    CHECK_EQ_INT(sim()->run(t, "k0", 1, threads, 0, params), code);
    CHECK_HAS(sim()->errors(), needle);
    /* and the next launch is as good as ever */
    CHECK_EQ_INT(sim()->run(t, "good", 1, threads, 0, params), 0);
    sim()->twin_close(t);
}

#define GOOD                                                                  \
    K "good(float *x) { x[threadIdx.x] = 1; __syncthreads(); "                \
      "x[threadIdx.x] = 2; }\n"

TEST_CASE(sim, divergence_is_reported) {
    check_fault(K "k0(float *x) {\n"
                  "    if (threadIdx.x < 64) { x[0] = 1; __syncthreads();\n"
                  "    } else { x[1] = 1;\n __syncthreads(); }\n"
                  "}\n" GOOD, 128, 719, "divergent __syncthreads");
    check_fault(K "k0(float *x) {\n"
                  "    if (threadIdx.x % 2) x[0] = __shfl_xor_sync(~0u, 1.f, "
                  "1);\n    else x[1] = __ballot_sync(~0u, 1);\n"
                  "}\n" GOOD, 64, 719, "divergent warp");
    check_fault(K "k0(float *x) {\n"
                  "    if (threadIdx.x == 3) return;\n"
                  "    x[0] = __shfl_xor_sync(~0u, 1.f, 1);\n"
                  "}\n" GOOD, 64, 719, "lanes 00000008 of mask ffffffff");
    check_fault(K "k0(float *x) {\n"
                  "    x[0] = __shfl_xor_sync(0xffffu, 1.f, 1);\n"
                  "}\n" GOOD, 64, 719, "is not in its mask 0000ffff");
    check_fault(K "k0(float *x) {\n"
                  "    x[0] = __shfl_xor_sync(~0u, 1.f, 1);\n"
                  "}\n" GOOD, 16, 719, "do not exist");
}

TEST_CASE(sim, a_deadlock_is_reported) {
    check_fault(K "k0(float *x) {\n"
                  "    if (threadIdx.x < 16) __syncwarp();\n"
                  "    else __syncthreads();\n"
                  "    x[0] = 1;\n"
                  "}\n" GOOD, 64, 719, "deadlock");
}

TEST_CASE(sim, bad_accesses_are_reported) {
    check_fault(K "k0(float *x) {\n"
                  "    *(float4 *)(x + 1) = make_float4(1, 2, 3, 4);\n"
                  "}\n" GOOD, 32, 716, "16-byte access");
    check_fault(K "k0(float *x) {\n"
                  "    x[0] = *(volatile float *)16;\n"
                  "}\n" GOOD, 32, 700, "illegal address 0x10");
}

TEST_CASE(sim, exited_threads_are_not_waited_for) {
    SimTwin *t = twin_of(K "k0(float *x) {\n"
                           "    __shared__ float s[256];\n"
                           "    if (threadIdx.x >= 200) return;\n"
                           "    s[threadIdx.x] = threadIdx.x;\n"
                           "    __syncthreads();\n"
                           "    x[threadIdx.x] = s[199 - threadIdx.x];\n"
                           "}\n");
    float x[256] = {0}, *p = x;
    void *params[] = {&p};
    CHECK_EQ_INT(sim()->run(t, "k0", 1, 256, 0, params), 0);
    for (int i = 0; i < 200; i++) CHECK_NEAR(x[i], 199 - i, 0);
    sim()->twin_close(t);
}

TEST_CASE(sim, shared_memory_starts_as_nan) {
    SimTwin *t = twin_of("template <int N> __device__ float *tile() {\n"
                         "    __shared__ float s[N];\n"
                         "    return s;\n"
                         "}\n" K
                         "k0(float *x) {\n"
                         "    float *s = tile<3000>();\n"
                         "    x[blockIdx.x] = s[blockIdx.x * 900];\n"
                         "    s[blockIdx.x * 900] = 1;\n"
                         "    s[0] = 1;\n"
                         "}\n");
    float x[4] = {0}, *p = x;
    void *params[] = {&p};
    CHECK_EQ_INT(sim()->run(t, "k0", 3, 1, 0, params), 0);
    for (int i = 0; i < 3; i++) CHECK(x[i] != x[i]);
    sim()->twin_close(t);
}
