/* sim_test.c: the simulated GPU keeps the rules of a real one, and sees what
   breaks them.                                                              */
#define _DEFAULT_SOURCE
#include <dlfcn.h>
#include <elf.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

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
                  "    x[0] = *(volatile float *)16;\n"
                  "}\n" GOOD, 32, 700, "illegal address 0x10");
}

#ifndef __SANITIZE_ADDRESS__ /* sanitizers end the process first */
TEST_CASE(sim, what_traps_on_the_host_is_reported) {
    check_fault(K "k0(float *x) { x[0] = (float)(7 / (int)x[1]); }\n" GOOD, 32,
                719, "division by zero");
    check_fault(K "k0(float *x) {\n"
                  "    volatile char much[300 << 10];\n"
                  "    much[threadIdx.x] = 1;\n"
                  "    x[0] = much[threadIdx.x];\n"
                  "}\n" GOOD, 32, 719, "stack overflow");
}
#endif

/* What a process of its own says that does this: sanitizers end it. */
static char *last_words(void (*fn)(void *), void *arg) {
    char path[300];
    int status;
    snprintf(path, sizeof path, "%s/words", test_tmpdir());
    fflush(NULL);
    pid_t pid = fork();
    if (!pid) {
        if (!freopen(path, "w", stderr)) _exit(1);
        fn(arg);
        fflush(NULL);
        _exit(0);
    }
    waitpid(pid, &status, 0);
    return test_read_file(path, NULL);
}

typedef struct Bad {
    const char *text;
    unsigned shared;
} Bad;

/* 32 floats up to the end of what may be touched. */
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

static void check_words(const char *text, unsigned shared,
                        const char *needle) {
    Bad b = {text, shared};
    char *words = last_words(run_bad, &b);
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
                  "}\n", 0, needle);
    check_words(K "k0(float *x) {\n"
                  "    float4 v = *(float4 *)(x + 2);\n"
                  "    x[0] = v.y;\n"
                  "}\n", 0, needle);
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
                  "}\n", 0, "unit0.cu:4:"); /* which sanitizer says so varies */
    check_words(K "k0(float *x) {\n"
                  "    SIM_DYNAMIC_SHARED(float, s);\n"
                  "    s[threadIdx.x + 1] = x[0];\n"
                  "}\n", 128, "heap-buffer-overflow");
}
#endif

/* ---- tensor cores -------------------------------------------------------- */

/* Elements as 16-bit floats that are exact in both formats: small integers. */
static const char mma[] =
    "static __device__ unsigned two(const unsigned short *p, int step) {\n"
    "    return p[0] | (unsigned)p[step] << 16;\n"
    "}\n"
    K "k0(float *d, const unsigned short *a, const unsigned short *b) {\n"
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
    /* the same with A through ldmatrix */
    K "k1(float *d, const unsigned short *a, const unsigned short *b) {\n"
    "    alignas(16) __shared__ unsigned short s[16][16];\n"
    "    int g = threadIdx.x / 4, t = threadIdx.x % 4;\n"
    "    for (int i = threadIdx.x; i < 256; i += 32) s[i / 16][i % 16] = a[i];\n"
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
    return (uint16_t)((v < 0 ? 0x8000u : 0) |
                      (e + (unsigned)bias) << mantissa | fraction);
}

static void check_mma(const char *name, int mantissa, int bias) {
    char whole[4000];
    int ia[256], ib[128];
    uint16_t a[256], b[128], *pa = a, *pb = b;
    float d[128], *pd = d;
    void *params[] = {&pd, &pa, &pb};
    snprintf(whole, sizeof whole, "#define MMA ampc_mma_%s_16816\n%s", name,
             mma);
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
    check_mma("bf16", 7, 127);
    check_mma("f16", 10, 15);
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

/* ---- the driver ---------------------------------------------------------- */

/* libcuda as a program opens it. */
typedef struct Cuda {
#define CU(member, symbol, params) CUresult(*member) params;
#include "runtime/cuda/driver.def"
#undef CU
} Cuda;

static Cuda cu;

static void open_driver(void) {
    void *h = dlopen(sim()->path, RTLD_NOW | RTLD_LOCAL);
    if (!h) FAIL("%s", dlerror());
#define CU(member, symbol, params)                                            \
    if (!(*(void **)&cu.member = dlsym(h, symbol))) FAIL("no " symbol);
#include "runtime/cuda/driver.def"
#undef CU
}

#define OK(call) CHECK_EQ_INT(call, 0)

/* PTX of kernels without parameters to speak of: the twin has the code. */
static const char ptx[] = ".version 8.0\n.target sm_80\n.address_size 64\n"
                          ".visible .entry add(\n)\n.maxntid 256, 1, 1\n{\n}\n"
                          ".visible .entry fill(\n)\n{\n}\n"
                          ".visible .entry wild(\n)\n{\n}\n";

static const char text[] =
    K "add(float *y, const float *x, long long n, float a) {\n"
      "    long long i = blockIdx.x * 256 + threadIdx.x;\n"
      "    if (i < n) y[i] += a * x[i];\n"
      "}\n"
    K "fill(float *y, float v) { y[threadIdx.x] = v; }\n"
    K "wild(float *y) { y[threadIdx.x + (1 << 20)] = 1; }\n";

/* What every test of the driver starts from. */
typedef struct Rig {
    CUcontext c;
    CUmodule m;
    CUfunction add, fill, wild;
    CUstream s, t;
    CUevent e;
    CUdeviceptr x, y; /* 256 floats */
} Rig;

static const char *twins(void) {
    static char *dir;
    if (!dir) dir = sim_build_text(text);
    return dir;
}

static Rig begin(uint64_t seed) {
    Rig r;
    SimConfig c = {.seed = seed, .twins = twins()};
    open_driver();
    sim()->reset(&c);
    OK(cu.Init(0));
    OK(cu.PrimaryCtxRetain(&r.c, 0));
    OK(cu.CtxPushCurrent(r.c));
    OK(cu.ModuleLoadDataEx(&r.m, ptx, 0, NULL, NULL));
    OK(cu.ModuleGetFunction(&r.add, r.m, "add"));
    OK(cu.ModuleGetFunction(&r.fill, r.m, "fill"));
    OK(cu.ModuleGetFunction(&r.wild, r.m, "wild"));
    OK(cu.StreamCreate(&r.s, CUDA_STREAM_NON_BLOCKING));
    OK(cu.StreamCreate(&r.t, CUDA_STREAM_NON_BLOCKING));
    OK(cu.EventCreate(&r.e, CUDA_EVENT_DISABLE_TIMING));
    OK(cu.MemAlloc(&r.x, 1024));
    OK(cu.MemAlloc(&r.y, 1024));
    return r;
}

/* Everything is given back: nothing is left. */
static void end(Rig *r) {
    cu.MemFree(r->x);
    cu.MemFree(r->y);
    cu.EventDestroy(r->e);
    cu.StreamDestroy(r->s);
    cu.StreamDestroy(r->t);
    cu.ModuleUnload(r->m);
    cu.CtxPopCurrent(NULL);
    OK(cu.PrimaryCtxRelease(0));
    CHECK_STR(sim()->leaks(), "");
}

static CUresult fill(const Rig *r, CUdeviceptr y, float v, CUstream s) {
    void *params[] = {&y, &v};
    return cu.LaunchKernel(r->fill, 1, 1, 1, 256, 1, 1, 0, s, params, NULL);
}

static CUresult add(const Rig *r, float a, CUstream s) {
    CUdeviceptr y = r->y, x = r->x;
    long long n = 256;
    void *params[] = {&y, &x, &n, &a};
    return cu.LaunchKernel(r->add, 1, 1, 1, 256, 1, 1, 0, s, params, NULL);
}

static float read_one(CUdeviceptr p, CUstream s) {
    float v = -1;
    OK(cu.MemcpyDtoHAsync(&v, p, sizeof v, s));
    return v;
}

TEST_CASE(sim_driver, a_whole_session) {
    Rig r = begin(1);
    float x[256];
    for (int i = 0; i < 256; i++) x[i] = (float)i;
    OK(cu.MemcpyHtoDAsync(r.x, x, sizeof x, r.s));
    memset(x, 0, sizeof x); /* pageable memory was staged */
    OK(fill(&r, r.y, 1, r.s));
    OK(add(&r, 2, r.s));
    SimStats st;
    sim()->stats(&st);
    CHECK_EQ_INT(st.launches, 0); /* nothing runs early */
    OK(cu.MemcpyDtoHAsync(x, r.y, sizeof x, r.s));
    for (int i = 0; i < 256; i++) CHECK_NEAR(x[i], 2 * i + 1, 0);
    sim()->stats(&st);
    CHECK_EQ_INT(st.launches, 2);
    CHECK_EQ_INT(sim()->calls("cuLaunchKernel"), 2);
    end(&r);
    CHECK_STR(sim()->errors(), "");
}

/* x = 3 in stream s, y = x + 0 in stream t, with or without an event. */
static int streams_right(bool event) {
    int right = 0;
    for (unsigned seed = 1; seed <= 16; seed++) {
        Rig r = begin(seed);
        fill(&r, r.x, 0, r.s);
        fill(&r, r.y, 0, r.t);
        OK(cu.StreamSynchronize(r.s));
        OK(cu.StreamSynchronize(r.t));
        fill(&r, r.x, 3, r.s);
        if (event) OK(cu.EventRecord(r.e, r.s));
        if (event) OK(cu.StreamWaitEvent(r.t, r.e, 0));
        add(&r, 1, r.t);
        right += read_one(r.y, r.t) == 3;
        end(&r);
    }
    return right;
}

TEST_CASE(sim_driver, a_missing_event_shows) {
    CHECK_EQ_INT(streams_right(true), 16);
    int right = streams_right(false);
    CHECK(right > 0 && right < 16);
}

TEST_CASE(sim_driver, pinned_memory_is_read_late) {
    Rig r = begin(1);
    void *p;
    OK(cu.MemHostAlloc(&p, 64, 0));
    *(float *)p = 1;
    OK(cu.MemcpyHtoDAsync(r.x, p, 64, r.s));
    *(float *)p = 2;
    CHECK_NEAR(read_one(r.x, r.s), 2, 0);
    OK(cu.MemFreeHost(p));
    end(&r);
}

TEST_CASE(sim_driver, captured_work_is_replayed) {
    Rig r = begin(1);
    CUgraph g;
    CUgraphExec x;
    OK(fill(&r, r.y, 0, r.s));
    OK(cu.StreamBeginCapture(r.s, CUDA_CAPTURE_THREAD_LOCAL));
    OK(fill(&r, r.x, 1, r.s));
    OK(cu.EventRecord(r.e, r.s));
    OK(cu.StreamWaitEvent(r.t, r.e, 0));
    OK(add(&r, 2, r.t));
    OK(cu.EventRecord(r.e, r.t));
    OK(cu.StreamWaitEvent(r.s, r.e, 0));
    OK(add(&r, 1, r.s));
    int status;
    OK(cu.StreamIsCapturing(r.s, &status));
    CHECK_EQ_INT(status, CUDA_CAPTURE_ACTIVE);
    OK(cu.StreamEndCapture(r.s, &g));
    OK(cu.GraphInstantiate(&x, g, 0));
    OK(cu.GraphDestroy(g));
    CHECK_NEAR(read_one(r.y, r.s), 0, 0); /* capture ran nothing */
    for (int i = 0; i < 4; i++) OK(cu.GraphLaunch(x, i % 2 ? r.s : r.t));
    CHECK_NEAR(read_one(r.y, r.s), 12, 0);
    OK(cu.GraphExecDestroy(x));
    end(&r);
    CHECK_STR(sim()->errors(), "");
}

static CUresult forbid_alloc(Rig *r) {
    CUdeviceptr p;
    (void)r;
    return cu.MemAlloc(&p, 256);
}
static CUresult forbid_free(Rig *r) { return cu.MemFree(r->x); }
static CUresult forbid_sync(Rig *r) { return cu.StreamSynchronize(r->s); }
static CUresult forbid_query(Rig *r) { return cu.EventQuery(r->e); }
static CUresult forbid_read(Rig *r) {
    static float v;
    return cu.MemcpyDtoHAsync(&v, r->x, sizeof v, r->s);
}

TEST_CASE(sim_driver, forbidden_calls_end_a_capture) {
    static CUresult (*const forbidden[])(Rig *) = {
        forbid_alloc, forbid_free, forbid_sync, forbid_query, forbid_read};
    for (size_t i = 0; i < sizeof forbidden / sizeof *forbidden; i++) {
        Rig r = begin(1);
        CUgraph g = (CUgraph)&r;
        OK(cu.StreamBeginCapture(r.s, CUDA_CAPTURE_THREAD_LOCAL));
        CHECK_EQ_INT(forbidden[i](&r), CUDA_STREAM_CAPTURE_UNSUPPORTED);
        CHECK_EQ_INT(fill(&r, r.x, 1, r.s), CUDA_STREAM_CAPTURE_INVALIDATED);
        CHECK_EQ_INT(cu.StreamEndCapture(r.s, &g),
                     CUDA_STREAM_CAPTURE_INVALIDATED);
        CHECK(!g);
        OK(fill(&r, r.x, 1, r.s));
        end(&r);
    }
}

TEST_CASE(sim_driver, capture_rules) {
    Rig r = begin(1);
    CUgraph g;
    OK(cu.StreamBeginCapture(r.s, CUDA_CAPTURE_THREAD_LOCAL));
    OK(fill(&r, r.x, 1, r.s));
    OK(cu.EventRecord(r.e, r.s));
    OK(cu.StreamWaitEvent(r.t, r.e, 0));
    OK(fill(&r, r.y, 1, r.t));
    CHECK_EQ_INT(cu.StreamEndCapture(r.s, &g), CUDA_STREAM_CAPTURE_UNJOINED);

    OK(cu.StreamBeginCapture(r.s, CUDA_CAPTURE_THREAD_LOCAL));
    OK(cu.EventRecord(r.e, r.s));
    CHECK_EQ_INT(cu.EventQuery(r.e), CUDA_CAPTURED_EVENT);
    CHECK_EQ_INT(cu.StreamEndCapture(r.s, &g), 901);

    OK(cu.EventRecord(r.e, r.t)); /* outside: must not come in */
    OK(cu.StreamBeginCapture(r.s, CUDA_CAPTURE_THREAD_LOCAL));
    CHECK_EQ_INT(cu.StreamWaitEvent(r.s, r.e, 0), 905);
    CHECK_EQ_INT(cu.StreamEndCapture(r.s, &g), 901);
    CHECK_EQ_INT(cu.StreamEndCapture(r.s, &g), CUDA_INVALID_VALUE);
    CHECK_EQ_INT(cu.StreamBeginCapture(NULL, 0), 900);
    end(&r);
}

typedef struct Other {
    Rig *r;
    CUresult alloc, end;
} Other;

static void *in_other_thread(void *arg) {
    Other *o = arg;
    CUdeviceptr p;
    CUgraph g;
    cu.CtxPushCurrent(o->r->c);
    o->end = cu.StreamEndCapture(o->r->s, &g);
    o->alloc = cu.MemAlloc(&p, 256);
    if (!o->alloc) cu.MemFree(p);
    cu.CtxPopCurrent(NULL);
    return NULL;
}

TEST_CASE(sim_driver, capture_and_other_threads) {
    Rig r = begin(1);
    for (int mode = 0; mode < 2; mode++) {
        Other o = {&r, -1, -1};
        CUgraph g;
        pthread_t t;
        OK(cu.StreamBeginCapture(r.s, mode));
        REQUIRE(!pthread_create(&t, NULL, in_other_thread, &o));
        pthread_join(t, NULL);
        CHECK_EQ_INT(o.end, CUDA_STREAM_CAPTURE_WRONG_THREAD);
        CHECK_EQ_INT(o.alloc, mode ? 0 : 900); /* global: not there either */
        CHECK_EQ_INT(cu.StreamEndCapture(r.s, &g), mode ? 0 : 901);
        if (mode) OK(cu.GraphDestroy(g));
    }
    end(&r);
}

TEST_CASE(sim_driver, faults_stick_to_the_context) {
    Rig r = begin(1);
    CUdeviceptr p;
    void *params[] = {&r.y};
    OK(cu.LaunchKernel(r.wild, 1, 1, 1, 32, 1, 1, 0, r.s, params, NULL));
    OK(fill(&r, r.x, 1, r.s)); /* not known yet */
    CHECK_EQ_INT(cu.StreamSynchronize(r.s), CUDA_ILLEGAL_ADDRESS);
    CHECK_HAS(sim()->errors(), "wild, block 0, thread");
    CHECK_EQ_INT(cu.MemAlloc(&p, 256), CUDA_ILLEGAL_ADDRESS);
    CHECK_EQ_INT(fill(&r, r.x, 1, r.s), CUDA_ILLEGAL_ADDRESS);
    CHECK_EQ_INT(cu.MemFree(r.x), CUDA_ILLEGAL_ADDRESS);
    r.x = 0;
    end(&r);
}

TEST_CASE(sim_driver, launches_are_checked) {
    Rig r = begin(1);
    void *none[] = {NULL, NULL}, *params[] = {&r.y, &r.x};
    CHECK_EQ_INT(cu.LaunchKernel(r.fill, 0, 1, 1, 32, 1, 1, 0, r.s, params,
                                 NULL), 1);
    CHECK_EQ_INT(cu.LaunchKernel(r.fill, 1, 1, 1, 1025, 1, 1, 0, r.s, params,
                                 NULL), 1);
    CHECK_EQ_INT(cu.LaunchKernel(r.fill, 1, 1, 1, 512, 1, 1, 0, r.s, params,
                                 NULL), CUDA_LAUNCH_OUT_OF_RESOURCES);
    CHECK_EQ_INT(cu.LaunchKernel(r.fill, 1, 70000, 1, 32, 1, 1, 0, r.s, params,
                                 NULL), 1);
    CHECK_EQ_INT(cu.LaunchKernel(r.fill, 1, 1, 1, 32, 1, 1, 0, r.s, none,
                                 NULL), 1);
    CHECK_EQ_INT(cu.LaunchKernel(r.fill, 1, 1, 1, 32, 1, 1, 0, r.s, NULL,
                                 NULL), 1);
    CHECK_EQ_INT(cu.LaunchKernel(r.fill, 1, 1, 1, 32, 1, 1, 64 << 10, r.s,
                                 params, NULL), 1);
    CHECK_EQ_INT(cu.FuncSetAttribute(r.fill, CUDA_FUNC_MAX_DYNAMIC_SHARED,
                                     228 << 10), 1);
    OK(cu.FuncSetAttribute(r.fill, CUDA_FUNC_MAX_DYNAMIC_SHARED, 64 << 10));
    OK(cu.LaunchKernel(r.fill, 1, 1, 1, 32, 1, 1, 64 << 10, r.s, params,
                       NULL));
    CUmodule m;
    CUfunction f;
    OK(cu.ModuleLoadDataEx(&m, ptx, 0, NULL, NULL));
    OK(cu.ModuleGetFunction(&f, m, "fill"));
    CHECK_EQ_INT(cu.ModuleGetFunction(&f, m, "k99"), CUDA_NOT_FOUND);
    OK(cu.ModuleUnload(m));
    CHECK_EQ_INT(cu.LaunchKernel(f, 1, 1, 1, 32, 1, 1, 0, r.s, params, NULL),
                 CUDA_INVALID_HANDLE);
    end(&r);
}

TEST_CASE(sim_driver, leaks_are_listed) {
    begin(1);
    CUdeviceptr p;
    CUevent e;
    OK(cu.MemAlloc(&p, 12345));
    OK(cu.EventCreate(&e, 0));
    CHECK_HAS(sim()->leaks(), "device memory: 12345 bytes");
    CHECK_HAS(sim()->leaks(), "event #");
    sim()->reset(NULL);
    CHECK_STR(sim()->leaks(), "");
}

TEST_CASE(sim_driver, contexts_are_needed) {
    Rig r = begin(1);
    CUdeviceptr p;
    CUcontext c;
    OK(cu.CtxPopCurrent(&c));
    CHECK(c == r.c);
    CHECK_EQ_INT(cu.MemAlloc(&p, 256), CUDA_INVALID_CONTEXT);
    CHECK_EQ_INT(cu.CtxPopCurrent(&c), CUDA_INVALID_CONTEXT);
    OK(cu.CtxPushCurrent(r.c));
    end(&r);
    CHECK_EQ_INT(cu.CtxPushCurrent(r.c), CUDA_INVALID_CONTEXT);
    sim()->reset(NULL);
    CHECK_EQ_INT(cu.PrimaryCtxRetain(&c, 0), CUDA_NOT_INITIALIZED);
    sim()->reset(&(SimConfig){.devices = -1});
    CHECK_EQ_INT(cu.Init(0), CUDA_NO_DEVICE);
}

TEST_CASE(sim_driver, memory_has_an_end) {
    SimConfig c = {.memory = 1 << 20, .twins = twins()};
    Rig r = begin(1);
    CUdeviceptr p;
    end(&r);
    sim()->reset(&c);
    OK(cu.Init(0));
    OK(cu.PrimaryCtxRetain(&r.c, 0));
    OK(cu.CtxPushCurrent(r.c));
    CHECK_EQ_INT(cu.MemAlloc(&p, (1 << 20) + 1), CUDA_OUT_OF_MEMORY);
    OK(cu.MemAlloc(&p, 1 << 20));
    size_t left, total;
    OK(cu.MemGetInfo(&left, &total));
    CHECK_EQ_INT(left, 0);
    OK(cu.MemFree(p));
    OK(cu.CtxPopCurrent(NULL));
    OK(cu.PrimaryCtxRelease(0));
    CHECK_STR(sim()->leaks(), "");
}

TEST_CASE(sim_driver, failures_on_demand) {
    Rig r = begin(1);
    CUdeviceptr p;
    sim()->fail("cuMemAlloc_v2", 2, CUDA_OUT_OF_MEMORY, false);
    OK(cu.MemAlloc(&p, 256));
    CUdeviceptr q;
    CHECK_EQ_INT(cu.MemAlloc(&q, 256), CUDA_OUT_OF_MEMORY);
    OK(cu.MemFree(p));
    sim()->fail("cuLaunchKernel", 1, CUDA_LAUNCH_FAILED, true);
    CHECK_EQ_INT(fill(&r, r.x, 1, r.s), CUDA_LAUNCH_FAILED);
    CHECK_EQ_INT(cu.StreamSynchronize(r.s), CUDA_LAUNCH_FAILED);
    end(&r); /* without leaks */
}

/* ---- images -------------------------------------------------------------- */

/* The smallest cubin with one kernel. */
typedef struct Cubin {
    Elf64_Ehdr head;
    Elf64_Shdr section[4];
    Elf64_Sym symbol[2];
    char text[64];
} Cubin;

static Cubin make_cubin(int sm, const char *kernel) {
    Cubin c;
    memset(&c, 0, sizeof c);
    memcpy(c.head.e_ident, ELFMAG, SELFMAG);
    c.head.e_ident[EI_CLASS] = ELFCLASS64;
    c.head.e_ident[EI_ABIVERSION] = 8;
    c.head.e_machine = 190;
    c.head.e_flags = (Elf64_Word)sm << 8;
    c.head.e_shoff = offsetof(Cubin, section);
    c.head.e_shnum = 4;
    c.head.e_shstrndx = 1;
    memcpy(c.text, "\0.strtab\0.symtab\0", 18);
    snprintf(c.text + 18, sizeof c.text - 18, "%s", kernel);
    c.section[1] = (Elf64_Shdr){.sh_name = 1, .sh_type = SHT_STRTAB,
                                .sh_offset = offsetof(Cubin, text),
                                .sh_size = sizeof c.text};
    c.section[2] = (Elf64_Shdr){.sh_name = 9, .sh_type = SHT_SYMTAB,
                                .sh_offset = offsetof(Cubin, symbol),
                                .sh_size = sizeof c.symbol, .sh_link = 1,
                                .sh_entsize = sizeof *c.symbol};
    c.symbol[1].st_name = 18;
    c.symbol[1].st_info = ELF64_ST_INFO(STB_GLOBAL, STT_FUNC);
    return c;
}

static CUresult load_on(int cc, int driver, bool ptx_only, const void *image) {
    SimConfig c = {.cc = cc, .driver = driver, .ptx_only = ptx_only,
                   .twins = twins()};
    CUcontext ctx;
    CUmodule m;
    open_driver();
    sim()->reset(&c);
    OK(cu.Init(0));
    OK(cu.PrimaryCtxRetain(&ctx, 0));
    OK(cu.CtxPushCurrent(ctx));
    CUresult rc = cu.ModuleLoadDataEx(&m, image, 0, NULL, NULL);
    sim()->reset(NULL);
    return rc;
}

TEST_CASE(sim_driver, cubins_fit_their_architecture) {
    Cubin c = make_cubin(80, "fill");
    OK(load_on(80, 0, false, &c));
    OK(load_on(86, 0, false, &c));
    CHECK_EQ_INT(load_on(90, 0, false, &c), CUDA_NO_BINARY_FOR_GPU);
    CHECK_EQ_INT(load_on(75, 0, false, &c), CUDA_NO_BINARY_FOR_GPU);
    CHECK_EQ_INT(load_on(80, 0, true, &c), CUDA_NO_BINARY_FOR_GPU);
    c = make_cubin(86, "fill");
    CHECK_EQ_INT(load_on(80, 0, false, &c), CUDA_NO_BINARY_FOR_GPU);
    c.head.e_machine = EM_X86_64;
    CHECK_EQ_INT(load_on(86, 0, false, &c), CUDA_INVALID_IMAGE);
    c = make_cubin(80, "k7"); /* no twin has that */
    CHECK_EQ_INT(load_on(80, 0, false, &c), CUDA_INVALID_IMAGE);
}

TEST_CASE(sim_driver, ptx_needs_a_driver_that_knows_it) {
    OK(load_on(120, 0, true, ptx));
    OK(load_on(90, 12000, false, ptx));
    CHECK_EQ_INT(load_on(75, 0, false, ptx), CUDA_INVALID_PTX);
    CHECK_EQ_INT(load_on(90, 11080, false, ptx), CUDA_UNSUPPORTED_PTX_VERSION);
    CHECK_EQ_INT(load_on(90, 0, false, "no PTX"), CUDA_INVALID_PTX);
}

/* ---- what the host must not do -------------------------------------------- */

static void touch(void *arg) {
    const Rig *r = arg;
    volatile float *p = (volatile float *)(uintptr_t)r->x;
    *p = 1;
    fprintf(stderr, "it went on");
}

TEST_CASE(sim_driver, the_host_cannot_touch_device_memory) {
    Rig r = begin(1);
    char *words = last_words(touch, &r);
    CHECK(!strstr(words, "it went on"));
    free(words);
    end(&r);
}

TEST_CASE(sim_driver, a_symbol_may_be_missing) {
    const char *path = sim_without("cuGraphLaunch");
    void *h = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    REQUIRE(h);
    CHECK(dlsym(h, "cuGraphDestroy"));
    CHECK(!dlsym(h, "cuGraphLaunch"));
    dlclose(h);
}

TEST_CASE(sim_driver, the_legacy_stream_waits_for_the_others) {
    for (unsigned seed = 1; seed < 6; seed++) {
        Rig r = begin(seed);
        CUstream s;
        OK(cu.StreamCreate(&s, 0));
        OK(fill(&r, r.x, 1, s));
        OK(fill(&r, r.y, 1, s));
        OK(add(&r, 1, NULL));
        OK(add(&r, 1, s));
        CHECK_NEAR(read_one(r.y, NULL), 3, 0);
        CUgraph g;
        OK(cu.StreamBeginCapture(s, CUDA_CAPTURE_THREAD_LOCAL));
        CHECK_EQ_INT(fill(&r, r.x, 1, NULL), 906);
        CHECK_EQ_INT(cu.StreamEndCapture(s, &g), 901);
        OK(cu.StreamDestroy(s));
        end(&r);
    }
}

TEST_CASE(sim_driver, copies_stay_in_their_allocation) {
    Rig r = begin(1);
    CHECK_EQ_INT(cu.MemcpyDtoDAsync(r.x, r.y + 4, 1024, r.s), 1);
    CHECK_EQ_INT(cu.MemsetD8Async(r.x + 1000, 0, 25, r.s), 1);
    OK(cu.MemsetD8Async(r.x + 1000, 0, 24, r.s));
    CHECK_NEAR(read_one(r.x + 1000, r.s), 0, 0);
    float v = read_one(r.x, r.s);
    CHECK(v != v); /* new memory is NaN */
    CHECK_HAS(sim()->errors(), "are not in one allocation");
    end(&r);
}

TEST_CASE(sim_driver, work_behind_the_free_of_its_memory) {
    Rig r = begin(1);
    CUgraph g;
    CUgraphExec x;
    OK(cu.StreamBeginCapture(r.s, CUDA_CAPTURE_THREAD_LOCAL));
    OK(cu.MemcpyDtoDAsync(r.x, r.y, 1024, r.s));
    OK(cu.StreamEndCapture(r.s, &g));
    OK(cu.GraphInstantiate(&x, g, 0));
    OK(cu.GraphDestroy(g));
    OK(cu.MemFree(r.y));
    OK(cu.GraphLaunch(x, r.s));
    CHECK_EQ_INT(cu.StreamSynchronize(r.s), CUDA_ILLEGAL_ADDRESS);
    CHECK_HAS(sim()->errors(), "not allocated any more");
    cu.GraphExecDestroy(x);
    r.y = 0;
    end(&r);
}

TEST_CASE(sim_driver, a_graph_does_not_outlive_its_module) {
    Rig r = begin(1);
    CUgraph g;
    CUgraphExec x;
    OK(cu.StreamBeginCapture(r.s, CUDA_CAPTURE_THREAD_LOCAL));
    OK(fill(&r, r.x, 1, r.s));
    OK(cu.StreamEndCapture(r.s, &g));
    OK(cu.GraphInstantiate(&x, g, 0));
    OK(cu.GraphDestroy(g));
    OK(cu.ModuleUnload(r.m));
    OK(cu.GraphLaunch(x, r.s));
    CHECK_EQ_INT(cu.StreamSynchronize(r.s), CUDA_ILLEGAL_ADDRESS);
    CHECK_HAS(sim()->errors(), "whose module was unloaded");
    cu.GraphExecDestroy(x);
    end(&r);
}

/* Bytes beside an allocation: found when it is freed, if no page or sanitizer
   was in the way. */
#ifndef __SANITIZE_ADDRESS__
TEST_CASE(sim_driver, writes_beside_an_allocation_show) {
    int seen = 0;
    for (unsigned seed = 1; seed < 9; seed++) {
        Rig r = begin(seed);
        OK(fill(&r, r.x - 32, 1, r.s));
        CUresult rc = cu.StreamSynchronize(r.s);
        CHECK(rc == 0 || rc == CUDA_ILLEGAL_ADDRESS);
        end(&r);
        bool beside = strstr(sim()->errors(), "beside an allocation") != NULL;
        CHECK(rc || beside);
        seen += beside;
    }
    CHECK(seen > 0 && seen < 8);
}
#endif
