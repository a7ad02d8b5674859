/* SPDX-License-Identifier: Apache-2.0 */
/* sim_driver_test.c: the simulated driver keeps the rules of a real one, and
   reports violations. */
#define _POSIX_C_SOURCE 200809L
#include <dlfcn.h>
#include <elf.h>
#include <pthread.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "tests/sim/sim_driver/sim_driver.h"
#include "tests/support/simulate.h"

#define K "extern \"C\" __global__ void __launch_bounds__(256) "

/* ---- the driver ---------------------------------------------------------- */

Cuda driver_cu;

void open_driver(void) {
    void *h = dlopen(sim()->path, RTLD_NOW | RTLD_LOCAL);
    if (!h) FAIL("%s", dlerror());
#define CU(member, symbol, params)                                             \
    if (!(*(void **)&driver_cu.member = dlsym(h, symbol))) FAIL("no " symbol);
#include "runtime/cuda/driver.def"
#undef CU
}

const char driver_ptx[] = ".version 8.0\n.target sm_80\n.address_size 64\n"
                          ".visible .entry add(\n)\n.maxntid 256, 1, 1\n{\n}\n"
                          ".visible .entry fill(\n)\n{\n}\n"
                          ".visible .entry wild(\n)\n{\n}\n";

static const char twin_text[] =
    K "add(float *y, const float *x, long long n, float a) {\n"
      "    long long i = blockIdx.x * 256 + threadIdx.x;\n"
      "    if (i < n) y[i] += a * x[i];\n"
      "}\n" K "fill(float *y, float v) { y[threadIdx.x] = v; }\n" K
      "wild(float *y) { y[threadIdx.x + (1 << 20)] = 1; }\n";

const char *driver_twins(void) {
    static char *dir;
    if (!dir) dir = sim_build_text(twin_text);
    return dir;
}

Rig driver_begin(uint64_t seed) {
    Rig r;
    SimConfig c = {.seed = seed, .twins = driver_twins()};
    open_driver();
    sim()->reset(&c);
    OK(driver_cu.Init(0));
    OK(driver_cu.PrimaryCtxRetain(&r.c, 0));
    OK(driver_cu.CtxPushCurrent(r.c));
    OK(driver_cu.ModuleLoadDataEx(&r.m, driver_ptx, 0, NULL, NULL));
    OK(driver_cu.ModuleGetFunction(&r.add, r.m, "add"));
    OK(driver_cu.ModuleGetFunction(&r.fill, r.m, "fill"));
    OK(driver_cu.ModuleGetFunction(&r.wild, r.m, "wild"));
    OK(driver_cu.StreamCreate(&r.s, CUDA_STREAM_NON_BLOCKING));
    OK(driver_cu.StreamCreate(&r.t, CUDA_STREAM_NON_BLOCKING));
    OK(driver_cu.EventCreate(&r.e, CUDA_EVENT_DISABLE_TIMING));
    OK(driver_cu.MemAlloc(&r.x, 1024));
    OK(driver_cu.MemAlloc(&r.y, 1024));
    return r;
}

void driver_end(Rig *r) {
    driver_cu.MemFree(r->x);
    driver_cu.MemFree(r->y);
    driver_cu.EventDestroy(r->e);
    driver_cu.StreamDestroy(r->s);
    driver_cu.StreamDestroy(r->t);
    driver_cu.ModuleUnload(r->m);
    driver_cu.CtxPopCurrent(NULL);
    OK(driver_cu.PrimaryCtxRelease(0));
    CHECK_STR(sim()->leaks(), "");
}

CUresult driver_fill(const Rig *r, CUdeviceptr y, float v, CUstream s) {
    void *params[] = {&y, &v};
    return driver_cu.LaunchKernel(r->fill, 1, 1, 1, 256, 1, 1, 0, s, params,
                                  NULL);
}

CUresult driver_add(const Rig *r, float a, CUstream s) {
    CUdeviceptr y = r->y, x = r->x;
    long long n = 256;
    void *params[] = {&y, &x, &n, &a};
    return driver_cu.LaunchKernel(r->add, 1, 1, 1, 256, 1, 1, 0, s, params,
                                  NULL);
}

float read_one(CUdeviceptr p, CUstream s) {
    float v = -1;
    OK(driver_cu.MemcpyDtoHAsync(&v, p, sizeof v, s));
    return v;
}

TEST_CASE(sim_driver, a_whole_session) {
    Rig r = driver_begin(1);
    float x[256];
    for (int i = 0; i < 256; i++) x[i] = (float)i;
    OK(driver_cu.MemcpyHtoDAsync(r.x, x, sizeof x, r.s));
    memset(x, 0, sizeof x); /* pageable memory was staged */
    OK(driver_fill(&r, r.y, 1, r.s));
    OK(driver_add(&r, 2, r.s));
    SimStats st;
    sim()->stats(&st);
    CHECK_EQ_INT(st.launches, 0); /* nothing runs early */
    OK(driver_cu.MemcpyDtoHAsync(x, r.y, sizeof x, r.s));
    for (int i = 0; i < 256; i++) CHECK_NEAR(x[i], 2 * i + 1, 0);
    sim()->stats(&st);
    CHECK_EQ_INT(st.launches, 2);
    CHECK_EQ_INT(sim()->calls("cuLaunchKernel"), 2);
    driver_end(&r);
    CHECK_STR(sim()->errors(), "");
}

/* x = 3 in stream s, y = x + 0 in stream t, with or without an event. */
static int streams_right(bool event) {
    int right = 0;
    for (unsigned seed = 1; seed <= 16; seed++) {
        Rig r = driver_begin(seed);
        driver_fill(&r, r.x, 0, r.s);
        driver_fill(&r, r.y, 0, r.t);
        OK(driver_cu.StreamSynchronize(r.s));
        OK(driver_cu.StreamSynchronize(r.t));
        driver_fill(&r, r.x, 3, r.s);
        if (event) OK(driver_cu.EventRecord(r.e, r.s));
        if (event) OK(driver_cu.StreamWaitEvent(r.t, r.e, 0));
        driver_add(&r, 1, r.t);
        right += read_one(r.y, r.t) == 3;
        driver_end(&r);
    }
    return right;
}

TEST_CASE(sim_driver, a_missing_event_shows) {
    CHECK_EQ_INT(streams_right(true), 16);
    int right = streams_right(false);
    CHECK(right > 0 && right < 16);
}

TEST_CASE(sim_driver, pinned_memory_is_read_late) {
    Rig r = driver_begin(1);
    void *p;
    OK(driver_cu.MemHostAlloc(&p, 64, 0));
    *(float *)p = 1;
    OK(driver_cu.MemcpyHtoDAsync(r.x, p, 64, r.s));
    *(float *)p = 2;
    CHECK_NEAR(read_one(r.x, r.s), 2, 0);
    OK(driver_cu.MemFreeHost(p));
    driver_end(&r);
}

TEST_CASE(sim_driver, captured_work_is_replayed) {
    Rig r = driver_begin(1);
    CUgraph g;
    CUgraphExec x;
    OK(driver_fill(&r, r.y, 0, r.s));
    OK(driver_cu.StreamBeginCapture(r.s, CUDA_CAPTURE_THREAD_LOCAL));
    OK(driver_fill(&r, r.x, 1, r.s));
    OK(driver_cu.EventRecord(r.e, r.s));
    OK(driver_cu.StreamWaitEvent(r.t, r.e, 0));
    OK(driver_add(&r, 2, r.t));
    OK(driver_cu.EventRecord(r.e, r.t));
    OK(driver_cu.StreamWaitEvent(r.s, r.e, 0));
    OK(driver_add(&r, 1, r.s));
    int status;
    OK(driver_cu.StreamIsCapturing(r.s, &status));
    CHECK_EQ_INT(status, CUDA_CAPTURE_ACTIVE);
    OK(driver_cu.StreamEndCapture(r.s, &g));
    OK(driver_cu.GraphInstantiate(&x, g, 0));
    OK(driver_cu.GraphDestroy(g));
    CHECK_NEAR(read_one(r.y, r.s), 0, 0); /* capture ran nothing */
    for (int i = 0; i < 4; i++) OK(driver_cu.GraphLaunch(x, i % 2 ? r.s : r.t));
    CHECK_NEAR(read_one(r.y, r.s), 12, 0);
    OK(driver_cu.GraphExecDestroy(x));
    driver_end(&r);
    CHECK_STR(sim()->errors(), "");
}

static CUresult forbid_alloc(Rig *r) {
    CUdeviceptr p;
    (void)r;
    return driver_cu.MemAlloc(&p, 256);
}

static CUresult forbid_free(Rig *r) { return driver_cu.MemFree(r->x); }

static CUresult forbid_sync(Rig *r) {
    return driver_cu.StreamSynchronize(r->s);
}

static CUresult forbid_query(Rig *r) { return driver_cu.EventQuery(r->e); }

static CUresult forbid_read(Rig *r) {
    static float v;
    return driver_cu.MemcpyDtoHAsync(&v, r->x, sizeof v, r->s);
}

TEST_CASE(sim_driver, forbidden_calls_end_a_capture) {
    static CUresult (*const forbidden[])(Rig *) = {
        forbid_alloc, forbid_free, forbid_sync, forbid_query, forbid_read};
    for (size_t i = 0; i < sizeof forbidden / sizeof *forbidden; i++) {
        Rig r = driver_begin(1);
        CUgraph g = (CUgraph)&r;
        OK(driver_cu.StreamBeginCapture(r.s, CUDA_CAPTURE_THREAD_LOCAL));
        CHECK_EQ_INT(forbidden[i](&r), CUDA_STREAM_CAPTURE_UNSUPPORTED);
        CHECK_EQ_INT(driver_fill(&r, r.x, 1, r.s),
                     CUDA_STREAM_CAPTURE_INVALIDATED);
        CHECK_EQ_INT(driver_cu.StreamEndCapture(r.s, &g),
                     CUDA_STREAM_CAPTURE_INVALIDATED);
        CHECK(!g);
        OK(driver_fill(&r, r.x, 1, r.s));
        driver_end(&r);
    }
}

TEST_CASE(sim_driver, capture_rules) {
    Rig r = driver_begin(1);
    CUgraph g;
    OK(driver_cu.StreamBeginCapture(r.s, CUDA_CAPTURE_THREAD_LOCAL));
    OK(driver_fill(&r, r.x, 1, r.s));
    OK(driver_cu.EventRecord(r.e, r.s));
    OK(driver_cu.StreamWaitEvent(r.t, r.e, 0));
    OK(driver_fill(&r, r.y, 1, r.t));
    CHECK_EQ_INT(driver_cu.StreamEndCapture(r.s, &g),
                 CUDA_STREAM_CAPTURE_UNJOINED);

    OK(driver_cu.StreamBeginCapture(r.s, CUDA_CAPTURE_THREAD_LOCAL));
    OK(driver_cu.EventRecord(r.e, r.s));
    CHECK_EQ_INT(driver_cu.EventQuery(r.e), CUDA_CAPTURED_EVENT);
    CHECK_EQ_INT(driver_cu.StreamEndCapture(r.s, &g), 901);

    OK(driver_cu.EventRecord(r.e,
                             r.t)); /* outside: must not join the capture */
    OK(driver_cu.StreamBeginCapture(r.s, CUDA_CAPTURE_THREAD_LOCAL));
    CHECK_EQ_INT(driver_cu.StreamWaitEvent(r.s, r.e, 0), 905);
    CHECK_EQ_INT(driver_cu.StreamEndCapture(r.s, &g), 901);
    CHECK_EQ_INT(driver_cu.StreamEndCapture(r.s, &g), CUDA_INVALID_VALUE);
    CHECK_EQ_INT(driver_cu.StreamBeginCapture(NULL, 0), 900);
    driver_end(&r);
}

typedef struct Other {
    Rig *r;
    CUresult alloc, end;
} Other;

static void *in_other_thread(void *arg) {
    Other *o = arg;
    CUdeviceptr p;
    CUgraph g;
    driver_cu.CtxPushCurrent(o->r->c);
    o->end = driver_cu.StreamEndCapture(o->r->s, &g);
    o->alloc = driver_cu.MemAlloc(&p, 256);
    if (!o->alloc) driver_cu.MemFree(p);
    driver_cu.CtxPopCurrent(NULL);
    return NULL;
}

TEST_CASE(sim_driver, capture_and_other_threads) {
    Rig r = driver_begin(1);
    for (int mode = 0; mode < 2; mode++) {
        Other o = {&r, -1, -1};
        CUgraph g;
        pthread_t t;
        OK(driver_cu.StreamBeginCapture(r.s, mode));
        REQUIRE(!pthread_create(&t, NULL, in_other_thread, &o));
        pthread_join(t, NULL);
        CHECK_EQ_INT(o.end, CUDA_STREAM_CAPTURE_WRONG_THREAD);
        CHECK_EQ_INT(o.alloc, mode ? 0 : 900); /* global: not even there */
        CHECK_EQ_INT(driver_cu.StreamEndCapture(r.s, &g), mode ? 0 : 901);
        if (mode) OK(driver_cu.GraphDestroy(g));
    }
    driver_end(&r);
}

TEST_CASE(sim_driver, faults_stick_to_the_context) {
    Rig r = driver_begin(1);
    CUdeviceptr p;
    void *params[] = {&r.y};
    OK(driver_cu.LaunchKernel(r.wild, 1, 1, 1, 32, 1, 1, 0, r.s, params, NULL));
    OK(driver_fill(&r, r.x, 1, r.s)); /* not known yet */
    CHECK_EQ_INT(driver_cu.StreamSynchronize(r.s), CUDA_ILLEGAL_ADDRESS);
    CHECK_HAS(sim()->errors(), "wild, block 0, thread");
    CHECK_EQ_INT(driver_cu.MemAlloc(&p, 256), CUDA_ILLEGAL_ADDRESS);
    CHECK_EQ_INT(driver_fill(&r, r.x, 1, r.s), CUDA_ILLEGAL_ADDRESS);
    CHECK_EQ_INT(driver_cu.MemFree(r.x), CUDA_ILLEGAL_ADDRESS);
    r.x = 0;
    driver_end(&r);
}

TEST_CASE(sim_driver, launches_are_checked) {
    Rig r = driver_begin(1);
    void *none[] = {NULL, NULL}, *params[] = {&r.y, &r.x};
    CHECK_EQ_INT(
        driver_cu.LaunchKernel(r.fill, 0, 1, 1, 32, 1, 1, 0, r.s, params, NULL),
        1);
    CHECK_EQ_INT(driver_cu.LaunchKernel(r.fill, 1, 1, 1, 1025, 1, 1, 0, r.s,
                                        params, NULL),
                 1);
    CHECK_EQ_INT(driver_cu.LaunchKernel(r.fill, 1, 1, 1, 512, 1, 1, 0, r.s,
                                        params, NULL),
                 CUDA_LAUNCH_OUT_OF_RESOURCES);
    CHECK_EQ_INT(driver_cu.LaunchKernel(r.fill, 1, 70000, 1, 32, 1, 1, 0, r.s,
                                        params, NULL),
                 1);
    CHECK_EQ_INT(
        driver_cu.LaunchKernel(r.fill, 1, 1, 1, 32, 1, 1, 0, r.s, none, NULL),
        1);
    CHECK_EQ_INT(
        driver_cu.LaunchKernel(r.fill, 1, 1, 1, 32, 1, 1, 0, r.s, NULL, NULL),
        1);
    CHECK_EQ_INT(driver_cu.LaunchKernel(r.fill, 1, 1, 1, 32, 1, 1, 64 << 10,
                                        r.s, params, NULL),
                 1);
    CHECK_EQ_INT(driver_cu.FuncSetAttribute(
                     r.fill, CUDA_FUNC_MAX_DYNAMIC_SHARED, 228 << 10),
                 1);
    OK(driver_cu.FuncSetAttribute(r.fill, CUDA_FUNC_MAX_DYNAMIC_SHARED,
                                  64 << 10));
    OK(driver_cu.LaunchKernel(r.fill, 1, 1, 1, 32, 1, 1, 64 << 10, r.s, params,
                              NULL));
    CUmodule m;
    CUfunction f;
    OK(driver_cu.ModuleLoadDataEx(&m, driver_ptx, 0, NULL, NULL));
    OK(driver_cu.ModuleGetFunction(&f, m, "fill"));
    CHECK_EQ_INT(driver_cu.ModuleGetFunction(&f, m, "k99"), CUDA_NOT_FOUND);
    OK(driver_cu.ModuleUnload(m));
    CHECK_EQ_INT(
        driver_cu.LaunchKernel(f, 1, 1, 1, 32, 1, 1, 0, r.s, params, NULL),
        CUDA_INVALID_HANDLE);
    driver_end(&r);
}

TEST_CASE(sim_driver, leaks_are_listed) {
    driver_begin(1);
    CUdeviceptr p;
    CUevent e;
    OK(driver_cu.MemAlloc(&p, 12345));
    OK(driver_cu.EventCreate(&e, 0));
    CHECK_HAS(sim()->leaks(), "device memory: 12345 bytes");
    CHECK_HAS(sim()->leaks(), "event #");
    sim()->reset(NULL);
    CHECK_STR(sim()->leaks(), "");
}

TEST_CASE(sim_driver, contexts_are_needed) {
    Rig r = driver_begin(1);
    CUdeviceptr p;
    CUcontext c;
    OK(driver_cu.CtxPopCurrent(&c));
    CHECK(c == r.c);
    CHECK_EQ_INT(driver_cu.MemAlloc(&p, 256), CUDA_INVALID_CONTEXT);
    CHECK_EQ_INT(driver_cu.CtxPopCurrent(&c), CUDA_INVALID_CONTEXT);
    OK(driver_cu.CtxPushCurrent(r.c));
    driver_end(&r);
    CHECK_EQ_INT(driver_cu.CtxPushCurrent(r.c), CUDA_INVALID_CONTEXT);
    sim()->reset(NULL);
    CHECK_EQ_INT(driver_cu.PrimaryCtxRetain(&c, 0), CUDA_NOT_INITIALIZED);
    sim()->reset(&(SimConfig){.devices = -1});
    CHECK_EQ_INT(driver_cu.Init(0), CUDA_NO_DEVICE);
}

TEST_CASE(sim_driver, memory_has_an_end) {
    SimConfig c = {.memory = 1 << 20, .twins = driver_twins()};
    Rig r = driver_begin(1);
    CUdeviceptr p;
    driver_end(&r);
    sim()->reset(&c);
    OK(driver_cu.Init(0));
    OK(driver_cu.PrimaryCtxRetain(&r.c, 0));
    OK(driver_cu.CtxPushCurrent(r.c));
    CHECK_EQ_INT(driver_cu.MemAlloc(&p, (1 << 20) + 1), CUDA_OUT_OF_MEMORY);
    OK(driver_cu.MemAlloc(&p, 1 << 20));
    size_t left, total;
    OK(driver_cu.MemGetInfo(&left, &total));
    CHECK_EQ_INT(left, 0);
    OK(driver_cu.MemFree(p));
    OK(driver_cu.CtxPopCurrent(NULL));
    OK(driver_cu.PrimaryCtxRelease(0));
    CHECK_STR(sim()->leaks(), "");
}

TEST_CASE(sim_driver, failures_on_demand) {
    Rig r = driver_begin(1);
    CUdeviceptr p;
    sim()->fail("cuMemAlloc_v2", 2, CUDA_OUT_OF_MEMORY, false);
    OK(driver_cu.MemAlloc(&p, 256));
    CUdeviceptr q;
    CHECK_EQ_INT(driver_cu.MemAlloc(&q, 256), CUDA_OUT_OF_MEMORY);
    OK(driver_cu.MemFree(p));
    sim()->fail("cuLaunchKernel", 1, CUDA_LAUNCH_FAILED, true);
    CHECK_EQ_INT(driver_fill(&r, r.x, 1, r.s), CUDA_LAUNCH_FAILED);
    CHECK_EQ_INT(driver_cu.StreamSynchronize(r.s), CUDA_LAUNCH_FAILED);
    driver_end(&r); /* without leaks */
}
