/* SPDX-License-Identifier: Apache-2.0 */
/* sim_driver_test.c: the simulated driver keeps the rules of a real one, and
   reports violations. */
#define _POSIX_C_SOURCE 200809L
#include <dlfcn.h>
#include <elf.h>
#include <pthread.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/simulate.h"

#define K "extern \"C\" __global__ void __launch_bounds__(256) "

/* ---- the driver ---------------------------------------------------------- */

/* libcuda, opened like a program does. */
typedef struct Cuda {
#define CU(member, symbol, params) CUresult(*member) params;
#include "runtime/cuda/driver.def"
#undef CU
} Cuda;

static Cuda cu;

static void open_driver(void) {
    void *h = dlopen(sim()->path, RTLD_NOW | RTLD_LOCAL);
    if (!h) FAIL("%s", dlerror());
#define CU(member, symbol, params)                                             \
    if (!(*(void **)&cu.member = dlsym(h, symbol))) FAIL("no " symbol);
#include "runtime/cuda/driver.def"
#undef CU
}

#define OK(call) CHECK_EQ_INT(call, 0)

/* PTX of kernels with hardly any parameters: the twin has the code. */
static const char ptx[] = ".version 8.0\n.target sm_80\n.address_size 64\n"
                          ".visible .entry add(\n)\n.maxntid 256, 1, 1\n{\n}\n"
                          ".visible .entry fill(\n)\n{\n}\n"
                          ".visible .entry wild(\n)\n{\n}\n";

static const char text[] =
    K "add(float *y, const float *x, long long n, float a) {\n"
      "    long long i = blockIdx.x * 256 + threadIdx.x;\n"
      "    if (i < n) y[i] += a * x[i];\n"
      "}\n" K "fill(float *y, float v) { y[threadIdx.x] = v; }\n" K
      "wild(float *y) { y[threadIdx.x + (1 << 20)] = 1; }\n";

/* The state in which every test of the driver starts. */
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

/* Everything is released: nothing is left. */
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

    OK(cu.EventRecord(r.e, r.t)); /* outside: must not join the capture */
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
        CHECK_EQ_INT(o.alloc, mode ? 0 : 900); /* global: not even there */
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
    CHECK_EQ_INT(
        cu.LaunchKernel(r.fill, 0, 1, 1, 32, 1, 1, 0, r.s, params, NULL), 1);
    CHECK_EQ_INT(
        cu.LaunchKernel(r.fill, 1, 1, 1, 1025, 1, 1, 0, r.s, params, NULL), 1);
    CHECK_EQ_INT(
        cu.LaunchKernel(r.fill, 1, 1, 1, 512, 1, 1, 0, r.s, params, NULL),
        CUDA_LAUNCH_OUT_OF_RESOURCES);
    CHECK_EQ_INT(
        cu.LaunchKernel(r.fill, 1, 70000, 1, 32, 1, 1, 0, r.s, params, NULL),
        1);
    CHECK_EQ_INT(cu.LaunchKernel(r.fill, 1, 1, 1, 32, 1, 1, 0, r.s, none, NULL),
                 1);
    CHECK_EQ_INT(cu.LaunchKernel(r.fill, 1, 1, 1, 32, 1, 1, 0, r.s, NULL, NULL),
                 1);
    CHECK_EQ_INT(
        cu.LaunchKernel(r.fill, 1, 1, 1, 32, 1, 1, 64 << 10, r.s, params, NULL),
        1);
    CHECK_EQ_INT(
        cu.FuncSetAttribute(r.fill, CUDA_FUNC_MAX_DYNAMIC_SHARED, 228 << 10),
        1);
    OK(cu.FuncSetAttribute(r.fill, CUDA_FUNC_MAX_DYNAMIC_SHARED, 64 << 10));
    OK(cu.LaunchKernel(r.fill, 1, 1, 1, 32, 1, 1, 64 << 10, r.s, params, NULL));
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
    c.section[1] = (Elf64_Shdr){.sh_name = 1,
                                .sh_type = SHT_STRTAB,
                                .sh_offset = offsetof(Cubin, text),
                                .sh_size = sizeof c.text};
    c.section[2] = (Elf64_Shdr){.sh_name = 9,
                                .sh_type = SHT_SYMTAB,
                                .sh_offset = offsetof(Cubin, symbol),
                                .sh_size = sizeof c.symbol,
                                .sh_link = 1,
                                .sh_entsize = sizeof *c.symbol};
    c.symbol[1].st_name = 18;
    c.symbol[1].st_info = ELF64_ST_INFO(STB_GLOBAL, STT_FUNC);
    return c;
}

static CUresult load_on(int cc, int driver, bool ptx_only, const void *image) {
    SimConfig c = {
        .cc = cc, .driver = driver, .ptx_only = ptx_only, .twins = twins()};
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

/* ---- what the host must not do ------------------------------------------- */

static void touch(void *arg) {
    const Rig *r = arg;
    volatile float *p = (volatile float *)(uintptr_t)r->x;
    *p = 1;
    fprintf(stderr, "it went on");
}

TEST_CASE(sim_driver, the_host_cannot_touch_device_memory) {
    Rig r = begin(1);
    char *words = sim_last_words(touch, &r);
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

/* Bytes beside an allocation: checked when it is freed, if no page or
   sanitizer has caught the access. */
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

/* ---- settings ------------------------------------------------------------ */

static void with_settings(void *arg) {
    const char *library = sim_without("no such symbol");
    setenv("AMPC_SIM_FAIL", "cuInit:1:100", 1);
    setenv("AMPC_SIM_REPORT", arg, 1);
    void *h = dlopen(library, RTLD_NOW | RTLD_LOCAL);
    CUresult (*init)(unsigned);
    if (!h) return;
    *(void **)&init = dlsym(h, "cuInit");
    fprintf(stderr, "first %d, ", init(0));
    fprintf(stderr, "second %d", init(0));
    dlclose(h);
}

TEST_CASE(sim_driver, the_environment_fails_and_reports) {
    char path[300];
    snprintf(path, sizeof path, "%s/report", test_tmpdir());
    char *words = sim_last_words(with_settings, path);
    char *report = test_read_file(path, NULL);
    CHECK_STR(words, "first 100, second 0");
    CHECK_STR(report, "launches 0, graph launches 0, copies 0, bytes 0\n");
    free(report);
    free(words);
}
