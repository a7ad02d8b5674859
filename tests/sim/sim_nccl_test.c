/* SPDX-License-Identifier: Apache-2.0 */
/* sim_nccl_test.c: mistakes that the simulated NCCL detects, with two ranks
   in one process. */
#define _POSIX_C_SOURCE 200809L
#include <stdlib.h>
#include <math.h>
#include <string.h>

#include "runtime/cuda/gpu.h"
#include "tests/support/simulate.h"

enum { N = 8, SEEDS = 40 };

typedef struct Pair {
    CudaApi cu;
    NcclApi nccl;
    CUcontext context;
    NcclComm comm[2];
    CUstream stream[2], other;
    CUdeviceptr data[2];
    CUevent event;
} Pair;

#define OK(call) CHECK_EQ_INT(call, 0)

static void open_rank(Pair *r, NcclId id, int i) {
    NcclConfig config = {
        .size = sizeof config, .magic = NCCL_MAGIC, .version = NCCL_2_14};
    float x[N];
    NcclResult e;
    for (int k = 0; k < N; k++) x[k] = (float)(i + k);
    OK(r->cu.StreamCreate(&r->stream[i], CUDA_STREAM_NON_BLOCKING));
    OK(r->cu.MemAlloc(&r->data[i], sizeof x));
    OK(r->cu.MemcpyHtoDAsync(r->data[i], x, sizeof x, r->stream[i]));
    OK(r->cu.StreamSynchronize(r->stream[i]));
    CHECK_EQ_INT(r->nccl.CommInitRankConfig(&r->comm[i], 2, id, i, &config),
                 NCCL_IN_PROGRESS);
    OK(r->nccl.CommGetAsyncError(r->comm[i], &e));
    CHECK_EQ_INT(e, i ? NCCL_SUCCESS : NCCL_IN_PROGRESS);
}

static Pair open_pair(uint64_t seed) {
    Pair r = {.other = NULL};
    char why[400];
    NcclId id;
    setenv("AMPC_LIBCUDA", sim()->path, 1);
    setenv("AMPC_LIBNCCL", sim()->nccl, 1);
    sim()->reset(&(SimConfig){.seed = seed});
    REQUIRE(cuda_find(&r.cu, why, sizeof why));
    REQUIRE(nccl_find(&r.nccl, why, sizeof why));
    OK(r.cu.Init(0));
    OK(r.cu.PrimaryCtxRetain(&r.context, 0));
    OK(r.cu.CtxPushCurrent(r.context));
    OK(r.cu.StreamCreate(&r.other, CUDA_STREAM_NON_BLOCKING));
    OK(r.cu.EventCreate(&r.event, CUDA_EVENT_DISABLE_TIMING));
    OK(r.nccl.GetUniqueId(&id));
    for (int i = 0; i < 2; i++) open_rank(&r, id, i);
    return r;
}

static void close_pair(Pair *r) {
    CUcontext c;
    for (int i = 0; i < 2; i++) {
        r->nccl.CommDestroy(r->comm[i]);
        r->cu.MemFree(r->data[i]);
        r->cu.StreamDestroy(r->stream[i]);
    }
    r->cu.StreamDestroy(r->other);
    r->cu.EventDestroy(r->event);
    r->cu.CtxPopCurrent(&c);
    r->cu.PrimaryCtxRelease(0);
    CHECK_STR(sim()->leaks(), "");
}

static NcclResult sum(Pair *r, int rank, CUstream s, int type) {
    void *p = (void *)(uintptr_t)r->data[rank];
    return r->nccl.AllReduce(p, p, type == NCCL_FLOAT32 ? N : N / 2, type,
                             NCCL_SUM, r->comm[rank], s);
}

static void synchronize(Pair *r) {
    for (int i = 0; i < 2; i++) OK(r->cu.StreamSynchronize(r->stream[i]));
    OK(r->cu.StreamSynchronize(r->other));
}

static void check_sum(Pair *r, int times) {
    for (int i = 0; i < 2; i++) {
        float x[N];
        OK(r->cu.MemcpyDtoHAsync(x, r->data[i], sizeof x, r->stream[i]));
        OK(r->cu.StreamSynchronize(r->stream[i]));
        for (int k = 0; k < N; k++)
            CHECK_EQ_INT((int)x[k], (1 + 2 * k) * (1 << (times - 1)));
    }
}

TEST_CASE(sim_nccl, sums_eager_and_captured) {
    Pair r = open_pair(1);
    for (int i = 0; i < 2; i++) OK(sum(&r, i, r.stream[i], NCCL_FLOAT32));
    synchronize(&r);
    check_sum(&r, 1);
    CUgraphExec exec[2];
    for (int i = 0; i < 2; i++) {
        CUgraph g;
        OK(r.cu.StreamBeginCapture(r.stream[i], CUDA_CAPTURE_THREAD_LOCAL));
        OK(sum(&r, i, r.stream[i], NCCL_FLOAT32));
        OK(r.cu.StreamEndCapture(r.stream[i], &g));
        OK(r.cu.GraphInstantiate(&exec[i], g, 0));
        OK(r.cu.GraphDestroy(g));
    }
    for (int times = 2; times < 4; times++) {
        for (int i = 0; i < 2; i++) OK(r.cu.GraphLaunch(exec[i], r.stream[i]));
        synchronize(&r);
        check_sum(&r, times);
    }
    for (int i = 0; i < 2; i++) OK(r.cu.GraphExecDestroy(exec[i]));
    CHECK_STR(sim()->errors(), "");
    close_pair(&r);
}

TEST_CASE(sim_nccl, a_sum_for_one) {
    Pair r = open_pair(3);
    float x[2][N];
    for (int i = 0; i < 2; i++) {
        void *p = (void *)(uintptr_t)r.data[i];
        OK(r.nccl.Reduce(p, p, N, NCCL_FLOAT32, NCCL_SUM, 1, r.comm[i],
                         r.stream[i]));
    }
    for (int i = 0; i < 2; i++)
        OK(r.cu.MemcpyDtoHAsync(x[i], r.data[i], sizeof x[i], r.stream[i]));
    synchronize(&r);
    for (int k = 0; k < N; k++)
        CHECK(isnan(x[0][k]) && (int)x[1][k] == 1 + 2 * k);
    CHECK_STR(sim()->errors(), "");
    close_pair(&r);
}

TEST_CASE(sim_nccl, beside_a_capture_or_not_joined) {
    Pair r = open_pair(2);
    CUgraph g = NULL;
    OK(r.cu.StreamBeginCapture(r.other, CUDA_CAPTURE_THREAD_LOCAL));
    CHECK_EQ_INT(sum(&r, 0, r.stream[0], NCCL_FLOAT32),
                 NCCL_UNHANDLED_CUDA_ERROR);
    CHECK_EQ_INT(r.cu.StreamEndCapture(r.other, &g),
                 CUDA_STREAM_CAPTURE_INVALIDATED);
    OK(r.cu.StreamBeginCapture(r.other, CUDA_CAPTURE_THREAD_LOCAL));
    OK(r.cu.EventRecord(r.event, r.other));
    OK(r.cu.StreamWaitEvent(r.stream[0], r.event, 0));
    OK(sum(&r, 0, r.stream[0], NCCL_FLOAT32));
    CHECK_EQ_INT(r.cu.StreamEndCapture(r.other, &g),
                 CUDA_STREAM_CAPTURE_UNJOINED);
    CHECK(g == NULL);
    close_pair(&r);
}

/* The number of seeds that show it. */
static int seen(const char *what, void (*wrong)(Pair *r)) {
    int n = 0;
    for (uint64_t seed = 1; seed <= SEEDS; seed++) {
        Pair r = open_pair(seed);
        wrong(&r);
        n += strstr(sim()->errors(), what) != NULL;
        close_pair(&r);
    }
    return n;
}

static void write_meanwhile(Pair *r) {
    for (int i = 0; i < 2; i++) OK(sum(r, i, r->stream[i], NCCL_FLOAT32));
    OK(r->cu.MemsetD8Async(r->data[0], 0, 4, r->other));
    synchronize(r);
}

static void two_streams(Pair *r) {
    OK(sum(r, 0, r->stream[0], NCCL_FLOAT32));
    OK(sum(r, 0, r->other, NCCL_FLOAT32));
    for (int k = 0; k < 2; k++) OK(sum(r, 1, r->stream[1], NCCL_FLOAT32));
    synchronize(r);
}

static void two_streams_in_order(Pair *r) {
    OK(sum(r, 0, r->stream[0], NCCL_FLOAT32));
    OK(r->cu.EventRecord(r->event, r->stream[0]));
    OK(r->cu.StreamWaitEvent(r->other, r->event, 0));
    OK(sum(r, 0, r->other, NCCL_FLOAT32));
    for (int k = 0; k < 2; k++) OK(sum(r, 1, r->stream[1], NCCL_FLOAT32));
    synchronize(r);
    check_sum(r, 2);
}

static void other_types(Pair *r) {
    OK(sum(r, 0, r->stream[0], NCCL_FLOAT32));
    OK(sum(r, 1, r->stream[1], NCCL_FLOAT64));
    synchronize(r);
}

TEST_CASE(sim_nccl, what_is_noticed) {
    static const char order[] = "in another order";
    CHECK(seen("written to while it was exchanged", write_meanwhile) > 0);
    CHECK(seen(order, two_streams) > SEEDS / 8);
    CHECK_EQ_INT(seen(order, two_streams_in_order), 0);
    CHECK_EQ_INT(seen("ranks call different things", other_types), SEEDS);
}
