/* SPDX-License-Identifier: Apache-2.0 */
/* nccl.c: sums of gradients over GPUs by NCCL.

   It uses a communicator of NCCL and one of processes (MPI or TCP), which
   transfers NCCL's id and data in host memory, and finds the missing rank if
   NCCL waits too long. NCCL's communicator is non-blocking, so that nothing
   waits without a deadline; aborting it ends the work on its streams. */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "runtime/cuda/gpu.h"

typedef struct Nccl {
    CommHead head;
    ampc_comm comm;
    ampc_comm *host;
    CudaApi cu;
    NcclApi nccl;
    CUdevice device;
    CUcontext context;
    NcclComm handle;
    bool broken;
    char why[600];
} Nccl;

/* ---- failures ------------------------------------------------------------ */

static void give_up(Nccl *n) {
    n->broken = true;
    if (n->handle) n->nccl.CommAbort(n->handle);
    n->handle = NULL;
}

/* Also ranks that have given up elsewhere come here. */
static void ask_around(Nccl *n) {
    enum { SECONDS = 5 };
    CommHead *h = n->host->ctx;
    size_t at = strlen(n->why);
    if (h->deadline > SECONDS) h->deadline = SECONDS;
    if (n->host->barrier(n->host->ctx))
        snprintf(n->why + at, sizeof n->why - at, ": %.300s",
                 n->host->error(n->host->ctx));
}

static int failed(Nccl *n, const char *call, NcclResult e) {
    snprintf(n->why, sizeof n->why, "NCCL: %s: %.200s", call,
             n->nccl.GetErrorString(e));
    give_up(n);
    if (e == NCCL_REMOTE_ERROR || e == NCCL_SYSTEM_ERROR) ask_around(n);
    return 1;
}

static int late(Nccl *n) {
    snprintf(n->why, sizeof n->why,
             "NCCL: not all ranks have answered within %g s", n->head.deadline);
    give_up(n);
    ask_around(n);
    return 1;
}

/* Waits until an asynchronous call is done. */
static int settle(Nccl *n, const char *call, NcclResult e) {
    double begin = comm_seconds();
    while (e == NCCL_IN_PROGRESS) {
        NcclResult asked = n->nccl.CommGetAsyncError(n->handle, &e);
        if (asked) return failed(n, call, asked);
        if (comm_seconds() - begin > n->head.deadline) return late(n);
        if (e == NCCL_IN_PROGRESS)
            nanosleep(&(struct timespec){.tv_nsec = 100000}, NULL);
    }
    return e ? failed(n, call, e) : 0;
}

/* ---- on the GPU's memory ------------------------------------------------- */

static int nccl_type(int32_t dtype) {
    return dtype >= 0 && dtype < AMPC_NDTYPE ? dtype_info[dtype].nccl - 1 : -1;
}

static int allreduce_on(void *ctx, uint64_t data, size_t count, int32_t dtype,
                        void *stream) {
    Nccl *n = ctx;
    int type = nccl_type(dtype);
    void *p = (void *)(uintptr_t)data;
    if (n->broken) return 1;
    if (type < 0) return failed(n, "ncclAllReduce", NCCL_INVALID_ARGUMENT);
    return settle(
        n, "ncclAllReduce",
        n->nccl.AllReduce(p, p, count, type, NCCL_SUM, n->handle, stream));
}

static int reduce_on(void *ctx, uint64_t data, size_t count, int32_t dtype,
                     int32_t root, void *stream) {
    Nccl *n = ctx;
    int type = nccl_type(dtype);
    void *p = (void *)(uintptr_t)data;
    if (n->broken) return 1;
    if (type < 0) return failed(n, "ncclReduce", NCCL_INVALID_ARGUMENT);
    return settle(
        n, "ncclReduce",
        n->nccl.Reduce(p, p, count, type, NCCL_SUM, root, n->handle, stream));
}

static int broadcast_on(void *ctx, uint64_t data, size_t bytes, int32_t root,
                        void *stream) {
    Nccl *n = ctx;
    void *p = (void *)(uintptr_t)data;
    if (n->broken) return 1;
    return settle(
        n, "ncclBroadcast",
        n->nccl.Broadcast(p, p, bytes, NCCL_INT8, root, n->handle, stream));
}

static int group(void *ctx, int32_t begin) {
    Nccl *n = ctx;
    if (n->broken) return 1;
    return begin ? settle(n, "ncclGroupStart", n->nccl.GroupStart())
                 : settle(n, "ncclGroupEnd", n->nccl.GroupEnd());
}

static int waiting(void *ctx, double seconds) {
    Nccl *n = ctx;
    NcclResult e = NCCL_SUCCESS;
    if (n->broken) return 1;
    NcclResult asked = n->nccl.CommGetAsyncError(n->handle, &e);
    if (asked || (e && e != NCCL_IN_PROGRESS))
        return failed(n, "another rank", asked ? asked : e);
    return seconds > n->head.deadline ? late(n) : 0;
}

/* ---- on the host's ------------------------------------------------------- */

static int host_failed(Nccl *n) {
    snprintf(n->why, sizeof n->why, "%.300s", n->host->error(n->host->ctx));
    return 1;
}

static int nccl_allreduce(void *ctx, void *data, size_t count, int32_t dtype) {
    Nccl *n = ctx;
    return n->host->allreduce(n->host->ctx, data, count, dtype) ? host_failed(n)
                                                                : 0;
}

static int nccl_broadcast(void *ctx, void *data, size_t bytes, int32_t root) {
    Nccl *n = ctx;
    return n->host->broadcast(n->host->ctx, data, bytes, root) ? host_failed(n)
                                                               : 0;
}

static int nccl_barrier(void *ctx) {
    Nccl *n = ctx;
    return n->host->barrier(n->host->ctx) ? host_failed(n) : 0;
}

static const char *nccl_error(void *ctx) { return ((Nccl *)ctx)->why; }

/* ---- open and close ------------------------------------------------------ */

static void nccl_close(ampc_comm *comm) {
    Nccl *n = comm->ctx;
    if (n->handle && n->cu.CtxPushCurrent(n->context) == CUDA_OK) {
        CUcontext c;
        n->nccl.CommDestroy(n->handle);
        n->cu.CtxPopCurrent(&c);
    }
    if (n->context) n->cu.PrimaryCtxRelease(n->device);
    if (n->host) comm_close(n->host);
    free(n);
}

/* Finds the libraries and this rank's own GPU; if the launcher shows each
   rank a single GPU, that one. */
static bool find_gpu(Nccl *n) {
    int count = 0;
    CUcontext c;
    if (!cuda_find(&n->cu, n->why, sizeof n->why) ||
        !nccl_find(&n->nccl, n->why, sizeof n->why))
        return false;
    snprintf(n->why, sizeof n->why, "no usable GPU");
    if (n->cu.Init(0) || n->cu.DeviceGetCount(&count) || count < 1)
        return false;
    n->comm.local = n->host->local % count;
    if (n->cu.DeviceGet(&n->device, n->comm.local) ||
        n->cu.PrimaryCtxRetain(&c, n->device))
        return false;
    n->context = c;
    return true;
}

/* Returns true if no rank lacks a library or a GPU; tells each rank which
   one does. */
static bool all_have(Nccl *n, bool have) {
    int world = n->comm.world, bad = -1;
    double *has = calloc((size_t)world, sizeof *has);
    if (!has) return false;
    has[n->comm.rank] = !have;
    if (nccl_allreduce(n, has, (size_t)world, AMPC_DTYPE_F64)) have = false;
    for (int r = world; r-- > 0;)
        if (has[r] != 0) bad = r;
    free(has);
    if (have && bad >= 0)
        snprintf(n->why, sizeof n->why, "rank %d has no GPU or no NCCL", bad);
    return have && bad < 0;
}

static bool nccl_start(Nccl *n) {
    NcclConfig config = {
        .size = sizeof config, .magic = NCCL_MAGIC, .version = NCCL_2_14};
    struct {
        NcclId id;
        int64_t e;
    } first = {.e = 0};
    CUcontext c;
    if (n->comm.rank == 0) first.e = n->nccl.GetUniqueId(&first.id);
    if (nccl_broadcast(n, &first, sizeof first, 0)) return false;
    if (first.e) return !failed(n, "ncclGetUniqueId", (NcclResult)first.e);
    if (n->cu.CtxPushCurrent(n->context)) return false;
    NcclResult e = n->nccl.CommInitRankConfig(&n->handle, n->comm.world,
                                              first.id, n->comm.rank, &config);
    bool ok = !settle(n, "ncclCommInitRankConfig", e);
    n->cu.CtxPopCurrent(&c);
    return ok;
}

static ampc_status nccl_open(double deadline, ampc_comm **out, char *err,
                             size_t err_size) {
    Nccl *n = calloc(1, sizeof *n);
    const CommEngine *host = comm_tcp_possible() ? &comm_tcp : &comm_mpi;
    if (!n) {
        if (err && err_size) snprintf(err, err_size, "out of memory");
        return AMPC_ERR_MEMORY;
    }
    ampc_status status = host->open(deadline, &n->host, err, err_size);
    if (status != AMPC_OK) {
        free(n);
        return status;
    }
    n->head = (CommHead){&comm_nccl, deadline};
    n->comm = (ampc_comm){.size = sizeof n->comm,
                          .rank = n->host->rank,
                          .world = n->host->world,
                          .ctx = n,
                          .allreduce = nccl_allreduce,
                          .broadcast = nccl_broadcast,
                          .barrier = nccl_barrier,
                          .error = nccl_error,
                          .allreduce_on = allreduce_on,
                          .broadcast_on = broadcast_on,
                          .group = group,
                          .waiting = waiting,
                          .reduce_on = reduce_on};
    bool have = find_gpu(n);
    if (all_have(n, have) && nccl_start(n)) {
        *out = &n->comm;
        return AMPC_OK;
    }
    if (err && err_size) snprintf(err, err_size, "%s", n->why);
    nccl_close(&n->comm);
    return have ? AMPC_ERR_COMM : AMPC_ERR_UNSUPPORTED;
}

const CommEngine comm_nccl = {"nccl", nccl_open, nccl_close};
