/* SPDX-License-Identifier: Apache-2.0 */
/* sim_test.c: simulated kernels follow the rules of real ones, and
   violations are reported. */
#define _DEFAULT_SOURCE
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "tests/support/simulate.h"

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

/* Runs `kernel` with one float buffer; the errors must contain `needle`. */
static void check_fault(const char *text, unsigned threads, int code,
                        const char *needle) {
    SimTwin *t = twin_of(text);
    float x[1024] = {0}, *p = x;
    void *params[] = {&p};
    sim()->reset(NULL);
    CHECK_EQ_INT(sim()->run(t, "k0", 1, threads, 0, params), code);
    CHECK_HAS(sim()->errors(), needle);
    /* and the next launch works again */
    CHECK_EQ_INT(sim()->run(t, "good", 1, threads, 0, params), 0);
    sim()->twin_close(t);
}

#define GOOD                                                                   \
    K "good(float *x) { x[threadIdx.x] = 1; __syncthreads(); "                 \
      "x[threadIdx.x] = 2; }\n"

TEST_CASE(sim, divergence_is_reported) {
    check_fault(K "k0(float *x) {\n"
                  "    if (threadIdx.x < 64) { x[0] = 1; __syncthreads();\n"
                  "    } else { x[1] = 1;\n __syncthreads(); }\n"
                  "}\n" GOOD,
                128, 719, "divergent __syncthreads");
    check_fault(K "k0(float *x) {\n"
                  "    if (threadIdx.x % 2) x[0] = __shfl_xor_sync(~0u, 1.f, "
                  "1);\n    else x[1] = __ballot_sync(~0u, 1);\n"
                  "}\n" GOOD,
                64, 719, "divergent warp");
    check_fault(K "k0(float *x) {\n"
                  "    if (threadIdx.x == 3) return;\n"
                  "    x[0] = __shfl_xor_sync(~0u, 1.f, 1);\n"
                  "}\n" GOOD,
                64, 719, "lanes 00000008 of mask ffffffff");
    check_fault(K "k0(float *x) {\n"
                  "    x[0] = __shfl_xor_sync(0xffffu, 1.f, 1);\n"
                  "}\n" GOOD,
                64, 719, "is not in its mask 0000ffff");
    check_fault(K "k0(float *x) {\n"
                  "    x[0] = __shfl_xor_sync(~0u, 1.f, 1);\n"
                  "}\n" GOOD,
                16, 719, "do not exist");
}

TEST_CASE(sim, a_deadlock_is_reported) {
    check_fault(K "k0(float *x) {\n"
                  "    if (threadIdx.x < 16) __syncwarp();\n"
                  "    else __syncthreads();\n"
                  "    x[0] = 1;\n"
                  "}\n" GOOD,
                64, 719, "deadlock");
}

TEST_CASE(sim, bad_accesses_are_reported) {
    check_fault(K "k0(float *x) {\n"
                  "    x[0] = *(volatile float *)16;\n"
                  "}\n" GOOD,
                32, 700, "illegal address 0x10");
}

#ifndef __SANITIZE_ADDRESS__ /* sanitizers end the process first */
TEST_CASE(sim, what_traps_on_the_host_is_reported) {
    check_fault(K "k0(float *x) { x[0] = (float)(7 / (int)x[1]); }\n" GOOD, 32,
                719, "division by zero");
    check_fault(K "k0(float *x) {\n"
                  "    volatile char much[300 << 10];\n"
                  "    much[threadIdx.x] = 1;\n"
                  "    x[0] = much[threadIdx.x];\n"
                  "}\n" GOOD,
                32, 719, "stack overflow");
}
#endif

typedef struct Bad {
    const char *text;
    unsigned shared;
} Bad;

/* 32 floats at the end of the allocation. */
static float *edge(void) {
#ifdef __SANITIZE_ADDRESS__
    return calloc(32, sizeof(float));
#else
    char *p = mmap(NULL, 8192, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    REQUIRE(p != MAP_FAILED);
    mprotect(p + 4096, 4096, PROT_NONE);
    return (float *)(void *)(p + 4096) - 32;
#endif
}

static void run_bad(void *arg) {
    const Bad *b = arg;
    SimTwin *t = twin_of(b->text);
    float *x = edge();
    void *params[] = {&x};
    sim()->run(t, "k0", 1, 32, b->shared, params);
    fprintf(stderr, "%s", sim()->errors());
}

static void check_words(const char *text, unsigned shared, const char *needle) {
    Bad b = {text, shared};
    char *words = sim_last_words(run_bad, &b);
    CHECK_HAS(words, needle);
    free(words);
}

TEST_CASE(sim, misaligned_vectors_are_reported) {
#ifdef __SANITIZE_ADDRESS__
    const char *needle = "misaligned address";
#else
    const char *needle = "16-byte access";
#endif
    check_words(K "k0(float *x) {\n"
                  "    *(float4 *)(x + 1) = make_float4(1, 2, 3, 4);\n"
                  "}\n",
                0, needle);
    check_words(K "k0(float *x) {\n"
                  "    float4 v = *(float4 *)(x + 2);\n"
                  "    x[0] = v.y;\n"
                  "}\n",
                0, needle);
}

TEST_CASE(sim, one_past_the_end_is_reported) {
#ifdef __SANITIZE_ADDRESS__
    const char *needle = "heap-buffer-overflow";
#else
    const char *needle = "k0, block 0, thread 31: illegal address";
#endif
    check_words(K "k0(float *x) { x[threadIdx.x + 1] = 1; }\n", 0, needle);
}

#ifdef __SANITIZE_ADDRESS__
TEST_CASE(sim, one_past_shared_memory_is_reported) {
    check_words(K "k0(float *x) {\n"
                  "    __shared__ float s[32];\n"
                  "    float *p = s + threadIdx.x;\n"
                  "    p[1] = 1;\n"
                  "    x[0] = s[0];\n"
                  "}\n",
                0, "unit0.cu:4:"); /* the name of the sanitizer varies */
    check_words(K "k0(float *x) {\n"
                  "    SIM_DYNAMIC_SHARED(float, s);\n"
                  "    s[threadIdx.x + 1] = x[0];\n"
                  "}\n",
                128, "heap-buffer-overflow");
}
#endif

/* ---- tensor cores -------------------------------------------------------- */

/* 16-bit floats that are exact in both formats: small integers. */
static const char mma[] =
    "static __device__ unsigned two(const unsigned short *p, int step) {\n"
    "    return p[0] | (unsigned)p[step] << 16;\n"
    "}\n" K "k0(float *d, const unsigned short *a, const unsigned short *b) {\n"
    "    int g = threadIdx.x / 4, t = threadIdx.x % 4;\n"
    "    unsigned ra[4] = {two(a + g * 16 + 2 * t, 1),\n"
    "                      two(a + (g + 8) * 16 + 2 * t, 1),\n"
    "                      two(a + g * 16 + 2 * t + 8, 1),\n"
    "                      two(a + (g + 8) * 16 + 2 * t + 8, 1)};\n"
    "    unsigned rb[2] = {two(b + 2 * t * 8 + g, 8),\n"
    "                      two(b + (2 * t + 8) * 8 + g, 8)};\n"
    "    float rd[4] = {1, 1, 1, 1};\n"
    "    MMA(rd, ra, rb);\n"
    "    for (int i = 0; i < 4; i++)\n"
    "        d[(g + i / 2 * 8) * 8 + 2 * t + i % 2] = rd[i];\n"
    "}\n"
    /* the same product, with A loaded by ldmatrix */
    K "k1(float *d, const unsigned short *a, const unsigned short *b) {\n"
    "    alignas(16) __shared__ unsigned short s[16][16];\n"
    "    int g = threadIdx.x / 4, t = threadIdx.x % 4;\n"
    "    for (int i = threadIdx.x; i < 256; i += 32)\n"
    "        s[i / 16][i % 16] = a[i];\n"
    "    __syncwarp();\n"
    "    unsigned ra[4];\n"
    "    ampc_ldmatrix_x4(ra, &s[threadIdx.x % 16][threadIdx.x / 16 * 8]);\n"
    "    unsigned rb[2] = {two(b + 2 * t * 8 + g, 8),\n"
    "                      two(b + (2 * t + 8) * 8 + g, 8)};\n"
    "    float rd[4] = {1, 1, 1, 1};\n"
    "    MMA(rd, ra, rb);\n"
    "    for (int i = 0; i < 4; i++)\n"
    "        d[(g + i / 2 * 8) * 8 + 2 * t + i % 2] = rd[i];\n"
    "}\n";

/* 16-bit floats with `mantissa` bits; integers up to 8 or so. */
static uint16_t half_of(int v, int mantissa, int bias) {
    unsigned m = (unsigned)abs(v), e = 0;
    if (!m) return 0;
    while (m >> (e + 1)) e++;
    unsigned fraction = (m << mantissa >> e) & ((1u << mantissa) - 1);
    return (uint16_t)((v < 0 ? 0x8000u : 0) | (e + (unsigned)bias) << mantissa |
                      fraction);
}

static void check_mma(const char *macro, int mantissa, int bias) {
    char whole[4000];
    int ia[256], ib[128];
    uint16_t a[256], b[128], *pa = a, *pb = b;
    float d[128], *pd = d;
    void *params[] = {&pd, &pa, &pb};
    snprintf(whole, sizeof whole, "#define MMA%s\n%s", macro, mma);
    SimTwin *t = twin_of(whole);
    for (int i = 0; i < 256; i++)
        a[i] = half_of(ia[i] = i * 7 % 17 - 8, mantissa, bias);
    for (int i = 0; i < 128; i++)
        b[i] = half_of(ib[i] = i * 5 % 13 - 6, mantissa, bias);
    for (int k = 0; k < 2; k++) {
        CHECK_EQ_INT(sim()->run(t, k ? "k1" : "k0", 1, 32, 0, params), 0);
        for (int i = 0; i < 128; i++) {
            int sum = 1;
            for (int j = 0; j < 16; j++)
                sum += ia[i / 8 * 16 + j] * ib[j * 8 + i % 8];
            CHECK_NEAR(d[i], sum, 0);
        }
    }
    sim()->twin_close(t);
}

TEST_CASE(sim, tensor_cores_multiply) {
    check_mma(" ampc_mma_bf16_16816", 7, 127);
    check_mma(" ampc_mma_f16_16816", 10, 15);
    /* on GPUs before sm_80 (ptx.cuh) */
    check_mma("(d, a, b) (ampc_mma_f16_1688(d, a, b[0]),"
              " ampc_mma_f16_1688(d, a + 2, b[1]))",
              10, 15);
}

TEST_CASE(sim, matrices_are_transposed_on_the_way_from_shared_memory) {
    SimTwin *t = twin_of(
        K "k0(unsigned *x) {\n"
          "    alignas(16) __shared__ unsigned short s[32][8];\n"
          "    for (int i = 0; i < 8; i++)\n"
          "        s[threadIdx.x][i] = threadIdx.x * 8 + i;\n"
          "    __syncwarp();\n"
          "    ampc_ldmatrix_x4_trans(x + 4 * threadIdx.x, s[threadIdx.x]);\n"
          "}\n");
    unsigned x[128], *p = x;
    void *params[] = {&p};
    CHECK_EQ_INT(sim()->run(t, "k0", 1, 32, 0, params), 0);
    for (unsigned lane = 0; lane < 32; lane++)
        for (unsigned i = 0; i < 4; i++) { /* rows 2 (lane % 4) and the next */
            unsigned at = i * 64 + lane % 4 * 16 + lane / 4;
            CHECK_EQ_INT(x[4 * lane + i], at | (at + 8) << 16);
        }
    sim()->twin_close(t);
}

TEST_CASE(sim, a_load_that_is_left_out_is_zero) {
    SimTwin *t = twin_of(K "k0(uint16_t *x, const uint16_t *y) {\n"
                           "    int t = threadIdx.x;\n"
                           "    x[t] = ampc_load_16(t % 2 ? nullptr : y + t, "
                           "t % 2 == 0);\n"
                           "}\n");
    uint16_t x[32], y[32], *px = x, *py = y;
    void *params[] = {&px, &py};
    for (int i = 0; i < 32; i++) y[i] = (uint16_t)(i + 1);
    CHECK_EQ_INT(sim()->run(t, "k0", 1, 32, 0, params), 0);
    for (int i = 0; i < 32; i++) CHECK_EQ_INT(x[i], i % 2 ? 0 : i + 1);
    sim()->twin_close(t);
}

TEST_CASE(sim, a_store_without_an_address_is_left_out) {
    SimTwin *t = twin_of(K "k0(float *x) {\n"
                           "    int t = threadIdx.x;\n"
                           "    ampc_store_f32(t % 2 ? nullptr : x, t, t);\n"
                           "}\n");
    float x[32], *px = x;
    void *params[] = {&px};
    for (int i = 0; i < 32; i++) x[i] = -1;
    CHECK_EQ_INT(sim()->run(t, "k0", 1, 32, 0, params), 0);
    for (int i = 0; i < 32; i++) CHECK_EQ_INT((int)x[i], i % 2 ? -1 : i);
    sim()->twin_close(t);
}

TEST_CASE(sim, asynchronous_copies_are_there_when_waited_for) {
    SimTwin *t =
        twin_of(K "k0(float *x, const float *y) {\n"
                  "    alignas(16) __shared__ float s[32][4];\n"
                  "    int t = threadIdx.x;\n"
                  "    ampc_cp_async_16(s[t], y + 4 * t, t % 2 == 0);\n"
                  "    x[t] = s[t][1];\n"
                  "    ampc_cp_async_wait();\n"
                  "    x[32 + t] = s[t][1];\n"
                  "}\n");
    float x[64];
    _Alignas(16) float y[128];
    float *px = x, *py = y;
    void *params[] = {&px, &py};
    for (int i = 0; i < 128; i++) y[i] = (float)i;
    CHECK_EQ_INT(sim()->run(t, "k0", 1, 32, 0, params), 0);
    for (int i = 0; i < 32; i++) {
        CHECK(x[i] != x[i]);
        CHECK_NEAR(x[32 + i], i % 2 ? 0 : 4 * i + 1, 0);
    }
    sim()->twin_close(t);
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
                         "}\n" K "k0(float *x) {\n"
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
