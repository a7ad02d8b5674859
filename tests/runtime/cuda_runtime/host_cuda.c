/* SPDX-License-Identifier: Apache-2.0 */
/* host_cuda.c: hosts with CUDA code of their own: their stream, and arrays in
   the GPU's memory. */
#include <dlfcn.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/cuda/driver.h"
#include "tests/support/gpu_session.h"

/* ---- the host's stream --------------------------------------------------- */

typedef CUresult StreamCreateFn(CUstream *s, unsigned flags);
typedef CUresult StreamDestroyFn(CUstream s);
typedef CUresult BeginCaptureFn(CUstream s, int mode);
typedef CUresult EndCaptureFn(CUstream s, CUgraph *g);
typedef CUresult GraphDestroyFn(CUgraph g);
typedef CUresult RetainFn(CUcontext *c, CUdevice d);
typedef CUresult ReleaseFn(CUdevice d);
typedef CUresult PushFn(CUcontext c);
typedef CUresult PopFn(CUcontext *c);
typedef CUresult InitFn(unsigned flags);

/* A function of the simulated driver, as a host with CUDA code calls it. */
static void *driver(const char *name) {
    void *fn = dlsym(sim()->handle, name);
    if (!fn) FAIL("no %s", name);
    return fn;
}
#define DRIVER(type, name) (*(type **)&(void *){driver(name)})

static CUcontext hold_context(void) {
    CUcontext c;
    REQUIRE(DRIVER(InitFn, "cuInit")(0) == 0);
    REQUIRE(DRIVER(RetainFn, "cuDevicePrimaryCtxRetain")(&c, 0) == 0);
    REQUIRE(DRIVER(PushFn, "cuCtxPushCurrent_v2")(c) == 0);
    return c;
}

static void let_context(CUcontext c) {
    DRIVER(PopFn, "cuCtxPopCurrent_v2")(&c);
    DRIVER(ReleaseFn, "cuDevicePrimaryCtxRelease_v2")(0);
    check_clean();
}

TEST_CASE(cuda_runtime, steps_go_to_the_hosts_stream) {
    const Model *m = model(&plain);
    const ampc_api *a = machine(m, NULL);
    ampc_session *s;
    ampc_metrics own, hosts;
    CUstream stream;
    CUgraph graph;
    s = open_gpu(a);
    for (int i = 0; i < 4; i++) CHECK_EQ_INT(step(m, s, i, &own), AMPC_OK);
    a->close(s);
    CUcontext context = hold_context();
    REQUIRE(DRIVER(StreamCreateFn,
                   "cuStreamCreate")(&stream, CUDA_STREAM_NON_BLOCKING) == 0);
    CHECK_EQ_INT(try_open(a, NULL, stream, &s), AMPC_OK);
    for (int i = 0; i < 4; i++) CHECK_EQ_INT(step(m, s, i, &hosts), AMPC_OK);
    CHECK_MEM(&own, &hosts, sizeof own);
    REQUIRE(DRIVER(BeginCaptureFn, "cuStreamBeginCapture_v2")(
                stream, CUDA_CAPTURE_THREAD_LOCAL) == 0);
    CHECK_EQ_INT(step(m, s, 4, NULL), AMPC_ERR_ARGUMENT);
    CHECK_HAS(a->error(s), "being captured");
    REQUIRE(DRIVER(EndCaptureFn, "cuStreamEndCapture")(stream, &graph) == 0);
    DRIVER(GraphDestroyFn, "cuGraphDestroy")(graph);
    CHECK_EQ_INT(step(m, s, 4, NULL), AMPC_OK);
    a->close(s);
    CHECK_EQ_INT(DRIVER(StreamDestroyFn, "cuStreamDestroy_v2")(stream), 0);
    let_context(context);
}

/* ---- arrays in the GPU's memory ------------------------------------------ */

typedef CUresult AllocFn(CUdeviceptr *p, size_t bytes);
typedef CUresult FreeFn(CUdeviceptr p);
typedef CUresult ToDeviceFn(CUdeviceptr to, const void *from, size_t bytes,
                            CUstream s);
typedef CUresult ToHostFn(void *to, CUdeviceptr from, size_t bytes, CUstream s);
typedef CUresult WaitFn(CUstream s);

enum { MOST_GIVEN = 2 };
typedef struct Given {
    CUdeviceptr at[MOST_GIVEN];
    ampc_input in[MOST_GIVEN];
    char *host[MOST_GIVEN]; /* what the copies on their way read */
} Given;

static void given_open(const Model *m, Given *g) {
    size_t n;
    const ampc_input *in = dc_random_feed(m->feed, 0, &n);
    REQUIRE(n == MOST_GIVEN);
    for (size_t i = 0; i < n; i++) {
        REQUIRE(DRIVER(AllocFn, "cuMemAlloc_v2")(&g->at[i], in[i].bytes) == 0);
        g->in[i] = in[i];
        g->host[i] = malloc(in[i].bytes);
    }
}

/* Batch i on the legacy stream, over the batch before; the inputs of which the
   bit is set lie in the device. */
static const ampc_input *given_batch(const Model *m, Given *g, int i,
                                     unsigned which) {
    size_t n;
    const ampc_input *in = dc_random_feed(m->feed, i, &n);
    REQUIRE(DRIVER(WaitFn, "cuStreamSynchronize")(NULL) == 0);
    for (size_t k = 0; k < n; k++) {
        g->in[k] = in[k];
        if (!(which >> k & 1)) continue;
        memcpy(g->host[k], in[k].data, in[k].bytes);
        REQUIRE(DRIVER(ToDeviceFn, "cuMemcpyHtoDAsync_v2")(
                    g->at[k], g->host[k], in[k].bytes, NULL) == 0);
        g->in[k].data = (const void *)(uintptr_t)g->at[k];
        g->in[k].place = AMPC_IN_DEVICE;
    }
    return g->in;
}

static void given_close(Given *g) {
    for (int i = 0; i < MOST_GIVEN; i++) {
        DRIVER(FreeFn, "cuMemFree_v2")(g->at[i]);
        free(g->host[i]);
    }
}

/* Each batch overwrites the one before at once: the streams must wait. */
TEST_CASE(cuda_runtime, trains_on_arrays_in_the_device) {
    enum { STEPS = 5 };
    const Model *m = model(&plain);
    const ampc_api *a = machine(m, NULL);
    ampc_metrics want, got;
    ampc_session *s = open_gpu(a);
    for (int i = 0; i < STEPS; i++) CHECK_EQ_INT(step(m, s, i, &want), AMPC_OK);
    a->close(s);
    for (unsigned which = 1; which <= 3; which++) {
        Given g;
        CUcontext context = hold_context();
        given_open(m, &g);
        s = open_gpu(a);
        for (int i = 0; i < STEPS; i++) {
            got.size = sizeof got;
            const ampc_input *in = given_batch(m, &g, i, which);
            CHECK_EQ_INT(a->step(s, in, 2, i + 1 < STEPS ? NULL : &got),
                         AMPC_OK);
        }
        CHECK_MEM(&want, &got, sizeof want);
        a->close(s);
        given_close(&g);
        let_context(context);
    }
}

TEST_CASE(cuda_runtime, outputs_go_to_arrays_in_the_device) {
    const Model *m = model(&plain);
    const ampc_api *a = machine(m, NULL);
    ampc_session *s = open_gpu(a);
    CUcontext context = hold_context();
    Given g;
    CUdeviceptr at;
    ampc_tensor_info t = {.size = sizeof t};
    REQUIRE(!a->output(a->module, "predict", 0, &t));
    char *want = malloc(t.bytes), *got = calloc(1, t.bytes);
    given_open(m, &g);
    const ampc_input *in = given_batch(m, &g, 0, 1);
    ampc_output host = ampc_out(NULL, want, t.bytes, t.dtype), device = host;
    REQUIRE(DRIVER(AllocFn, "cuMemAlloc_v2")(&at, t.bytes) == 0);
    device.data = (void *)(uintptr_t)at;
    device.place = AMPC_IN_DEVICE;
    CHECK_EQ_INT(a->predict(s, in, 2, 8, &host, 1), AMPC_OK);
    CHECK_EQ_INT(a->predict(s, in, 2, 8, &device, 1), AMPC_OK);
    CHECK(!DRIVER(ToHostFn, "cuMemcpyDtoHAsync_v2")(got, at, t.bytes, NULL));
    CHECK(!DRIVER(WaitFn, "cuStreamSynchronize")(NULL));
    CHECK_MEM(want, got, t.bytes);
    device.data = got; /* not in the device */
    CHECK_EQ_INT(a->predict(s, in, 2, 8, &device, 1), AMPC_ERR_ARGUMENT);
    CHECK_HAS(a->error(s), "no memory of GPU");
    free(want);
    free(got);
    DRIVER(FreeFn, "cuMemFree_v2")(at);
    given_close(&g);
    a->close(s);
    let_context(context);
}

TEST_CASE(cuda_runtime, arrays_that_are_not_in_the_device_are_refused) {
    const Model *m = model(&plain);
    const ampc_api *a = machine(m, NULL);
    ampc_session *s = open_gpu(a), *cpu;
    size_t n;
    ampc_input in[MOST_GIVEN];
    memcpy(in, dc_random_feed(m->feed, 0, &n), sizeof in);
    in[0].place = AMPC_IN_DEVICE;
    CHECK_EQ_INT(a->step(s, in, n, NULL), AMPC_ERR_ARGUMENT);
    CHECK_HAS(a->error(s), "points to no memory of GPU");
    in[0].place = 2;
    CHECK_EQ_INT(a->step(s, in, n, NULL), AMPC_ERR_ARGUMENT);
    CHECK_HAS(a->error(s), "unknown place");
    in[0].place = AMPC_IN_DEVICE;
    in[0].bytes /= 2; /* four samples of eight */
    in[1].bytes /= 2;
    CHECK_EQ_INT(a->step(s, in, n, NULL), AMPC_ERR_ARGUMENT);
    CHECK_HAS(a->error(s), "give whole batches of 8 samples");
    CHECK_EQ_INT(a->write_variable(s, "fc1.weight", in), AMPC_ERR_ARGUMENT);
    CHECK_EQ_INT(step(m, s, 0, NULL), AMPC_OK);
    REQUIRE(!try_open(a, "cpu", NULL, &cpu));
    memcpy(in, dc_random_feed(m->feed, 0, &n), sizeof in);
    in[0].place = AMPC_IN_DEVICE;
    CHECK_EQ_INT(a->step(cpu, in, n, NULL), AMPC_ERR_ARGUMENT);
    CHECK_HAS(a->error(cpu), "the session runs on the CPU");
    /* the structs of a host that was built before there were places */
    in[0].size = in[1].size = offsetof(ampc_input, place);
    char shorter[MOST_GIVEN * offsetof(ampc_input, place)];
    for (int i = 0; i < MOST_GIVEN; i++)
        memcpy(shorter + i * in[0].size, &in[i], in[0].size);
    CHECK_EQ_INT(a->step(cpu, (const void *)shorter, 2, NULL), AMPC_OK);
    a->close(cpu);
    a->close(s);
    check_clean();
}
