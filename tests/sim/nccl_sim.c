/* SPDX-License-Identifier: Apache-2.0 */
/* nccl_sim.c: NCCL on the simulated GPU; ranks are processes that share a file.

   A collective is work on a stream.  When the collective is due, after a random
   number of refusals, it writes a copy of its buffer to the file and fills the
   buffer with NaN, so that reading it too early shows. When all ranks have
   written theirs, it checks that the buffer was not changed meanwhile and
   stores the result. The sum is added in an order that differs from call to
   call and is the same for all ranks; with AMPC_SIM_NCCL_ORDER=ranks always in
   that of ranks. The file has room for two collectives in turn: a rank that
   writes the next one has read the one before, so all ranks have written that.

   Violations: collectives of one communicator that run in another order than
   they were called in (streams did not order them), buffers outside the
   device's memory, ranks whose calls differ. A call during a capture
   elsewhere is refused like cudaMalloc; the capture itself reports streams
   that were not joined. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <math.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "runtime/program/dtype.h"
#include "tests/sim/sim.h"

#define NCCL(member, symbol, params)                                           \
    SIM_API NcclResult nccl_##member params __asm__(symbol);
#include "runtime/cuda/nccl.def"
#undef NCCL
SIM_API const char *
nccl_GetErrorString(NcclResult e) __asm__("ncclGetErrorString");

enum { ROOM = 4 << 20, RANKS = 8, QUEUE = 4096, POISON = 0xff };

/* The facts of a call on which two ranks must agree. */
typedef struct Call {
    int kind, type, root, pad; /* 0: a sum, 1: a broadcast from root, 2: a
                                  sum for root */
    size_t n;
} Call;

typedef struct Shared {
    _Atomic int joined;
    struct {
        _Atomic uint64_t left; /* collectives */
        Call call[2];
    } rank[RANKS];
} Shared;

struct NcclComm_st {
    int rank, world, refs;
    bool aborted, in_rank_order;
    NcclResult async;
    Shared *shared;
    char *rooms; /* ROOM bytes: rank * 2 + turn */
    uint64_t seed, done;
    uint64_t called, ran;  /* eager calls, in order */
    uintptr_t capture;     /* of the last call */
    struct Op *last, *was; /* captured calls: called, run */
    struct Op *under_way;
};

typedef struct Op {
    NcclComm c;
    Call call;
    char *data;
    struct Op *before; /* in its capture; NULL: none */
    bool captured, left;
    uint64_t number;
    int refusals;
} Op;

static struct {
    Op *op;
    CUstream stream;
} queue[QUEUE];
static int depth, queued;

/* ---- the exchange -------------------------------------------------------- */

static size_t type_size(int type) {
    bool half = type == NCCL_FLOAT16 || type == NCCL_BFLOAT16;
    return type == NCCL_INT8 ? 1 : half ? 2 : type == NCCL_FLOAT32 ? 4 : 8;
}

static size_t op_bytes(const Op *o) {
    return o->call.n * type_size(o->call.type);
}

static char *room(NcclComm c, int rank, uint64_t number) {
    return c->rooms + ((size_t)rank * 2 + number % 2) * ROOM;
}

static void in_order(Op *o) {
    NcclComm c = o->c;
    bool ok =
        o->captured ? !o->before || c->was == o->before : c->ran == o->number;
    if (!ok)
        sim_violation("NCCL: collectives of a communicator run in another "
                      "order than they were called in");
    if (o->captured)
        c->was = o;
    else
        c->ran = o->number + 1;
}

static void leave(Op *o) {
    NcclComm c = o->c;
    in_order(o);
    c->shared->rank[c->rank].call[c->done % 2] = o->call;
    memcpy(room(c, c->rank, c->done), o->data, op_bytes(o));
    memset(o->data, POISON, op_bytes(o));
    atomic_store(&c->shared->rank[c->rank].left, c->done + 1);
    o->left = true;
    c->under_way = o;
}

static bool kept(const Op *o) {
    for (size_t i = 0; i < op_bytes(o); i++)
        if ((unsigned char)o->data[i] != POISON) return false;
    return true;
}

static void add_half(int type, uint16_t *sum, const uint16_t *x) {
    uint32_t d = type == NCCL_FLOAT16 ? AMPC_F16 : AMPC_BF16;
    *sum = half_of_f32(d, half_to_f32(d, *sum) + half_to_f32(d, *x));
}

static void add(Op *o) {
    NcclComm c = o->c;
    uint64_t start = c->in_rank_order ? 0 : c->seed + c->done * 7;
    int first = (int)(start % (uint64_t)c->world);
    memcpy(o->data, room(c, first, c->done), op_bytes(o));
    for (int k = 1; k < c->world; k++) {
        const void *x = room(c, (first + k) % c->world, c->done);
        for (size_t i = 0; i < o->call.n; i++)
            if (o->call.type == NCCL_FLOAT32)
                ((float *)(void *)o->data)[i] += ((const float *)x)[i];
            else if (o->call.type == NCCL_FLOAT64)
                ((double *)(void *)o->data)[i] += ((const double *)x)[i];
            else if (o->call.type == NCCL_INT64)
                ((int64_t *)(void *)o->data)[i] += ((const int64_t *)x)[i];
            else
                add_half(o->call.type, (uint16_t *)(void *)o->data + i,
                         (const uint16_t *)x + i);
    }
}

static bool alike(const Op *o) {
    NcclComm c = o->c;
    for (int r = 0; r < c->world; r++)
        if (memcmp(&c->shared->rank[r].call[c->done % 2], &o->call,
                   sizeof o->call))
            return false;
    return true;
}

static int run(void *data) {
    Op *o = data;
    NcclComm c = o->c;
    if (c->aborted) return 0;
    if (c->under_way && c->under_way != o) return SIM_AGAIN;
    if (!o->left) {
        if (!o->refusals) o->refusals = 1 + (int)(sim_random() % 4);
        if (--o->refusals) return SIM_AGAIN;
        leave(o);
    }
    for (int r = 0; r < c->world; r++)
        if (atomic_load(&c->shared->rank[r].left) <= c->done) return SIM_AGAIN;
    if (!kept(o))
        sim_violation("NCCL: a buffer was written to while it was exchanged");
    if (!alike(o)) {
        sim_violation("NCCL: ranks call different things");
        c->async = NCCL_INVALID_USAGE;
    } else if (o->call.kind == 0) {
        add(o);
    } else if (o->call.kind == 2) { /* elsewhere it stays NaN */
        if (c->rank == o->call.root) add(o);
    } else {
        memcpy(o->data, room(c, o->call.root, c->done), op_bytes(o));
    }
    c->done++;
    c->under_way = NULL;
    o->left = false;
    return 0;
}

/* ---- calls --------------------------------------------------------------- */

static void drop_comm(NcclComm c) {
    if (--c->refs) return;
    munmap(c->shared, 4096);
    munmap(c->rooms, (size_t)RANKS * 2 * ROOM);
    free(c);
}

static void drop(void *data) {
    Op *o = data;
    NcclComm c = o->c;
    if (c->last == o) c->last = NULL;
    if (c->was == o) c->was = NULL;
    free(o);
    drop_comm(c);
}

static NcclResult put(Op *o, CUstream stream) {
    NcclComm c = o->c;
    uintptr_t capture = sim_capture(stream);
    if (!capture && sim_unsafe()) {
        drop(o);
        return NCCL_UNHANDLED_CUDA_ERROR;
    }
    o->captured = capture != 0;
    if (capture) {
        o->before = c->capture == capture ? c->last : NULL;
        c->last = o;
    } else {
        o->number = c->called++;
    }
    c->capture = capture;
    return sim_enqueue(stream, "nccl", run, o, drop) ? NCCL_UNHANDLED_CUDA_ERROR
                                                     : NCCL_SUCCESS;
}

static NcclResult call(const char *entry, const void *from, void *to, Call what,
                       NcclComm c, CUstream stream) {
    int code = sim_entered(entry);
    if (code) return code;
    if (c->aborted) return NCCL_INVALID_USAGE;
    size_t bytes = what.n * type_size(what.type);
    if (from != to || bytes > ROOM ||
        !sim_device_range((CUdeviceptr)(uintptr_t)to, bytes)) {
        sim_violation("%s: %zu bytes at %p are not in one allocation, or more "
                      "than are simulated",
                      entry, bytes, to);
        return NCCL_INVALID_ARGUMENT;
    }
    Op *o = calloc(1, sizeof *o);
    if (!o) return NCCL_SYSTEM_ERROR;
    *o = (Op){.c = c, .call = what, .data = to};
    c->refs++;
    if (!depth) return put(o, stream);
    if (queued == QUEUE) abort();
    queue[queued].op = o;
    queue[queued++].stream = stream;
    return NCCL_SUCCESS;
}

NcclResult nccl_AllReduce(const void *from, void *to, size_t n, int type,
                          int op, NcclComm c, CUstream s) {
    if (op != NCCL_SUM) return NCCL_INVALID_ARGUMENT;
    return call("ncclAllReduce", from, to, (Call){0, type, 0, 0, n}, c, s);
}

NcclResult nccl_Reduce(const void *from, void *to, size_t n, int type, int op,
                       int root, NcclComm c, CUstream s) {
    if (op != NCCL_SUM) return NCCL_INVALID_ARGUMENT;
    return call("ncclReduce", from, to, (Call){2, type, root, 0, n}, c, s);
}

NcclResult nccl_Broadcast(const void *from, void *to, size_t n, int type,
                          int root, NcclComm c, CUstream s) {
    return call("ncclBroadcast", from, to, (Call){1, type, root, 0, n}, c, s);
}

NcclResult nccl_GroupStart(void) {
    depth++;
    return sim_entered("ncclGroupStart");
}

NcclResult nccl_GroupEnd(void) {
    NcclResult rc = sim_entered("ncclGroupEnd");
    if (--depth) return rc;
    for (int i = 0; i < queued; i++) {
        NcclResult e =
            rc ? (drop(queue[i].op), rc) : put(queue[i].op, queue[i].stream);
        if (!rc) rc = e;
    }
    queued = 0;
    return rc;
}

/* ---- communicators ------------------------------------------------------- */

NcclResult nccl_GetUniqueId(NcclId *id) {
    const char *tmp = getenv("TMPDIR");
    int code = sim_entered("ncclGetUniqueId");
    if (code) return code;
    memset(id, 0, sizeof *id);
    snprintf(id->bytes, sizeof id->bytes, "%s/nccl.%d.XXXXXX",
             tmp ? tmp : "/tmp", (int)getpid());
    int fd = mkstemp(id->bytes);
    if (fd < 0) return NCCL_SYSTEM_ERROR;
    int rc = ftruncate(fd, 4096 + (off_t)RANKS * 2 * ROOM);
    close(fd);
    return rc ? NCCL_SYSTEM_ERROR : NCCL_SUCCESS;
}

static void *map(int fd, size_t n, off_t at) {
    void *p = mmap(NULL, n, PROT_READ | PROT_WRITE, MAP_SHARED, fd, at);
    return p == MAP_FAILED ? NULL : p;
}

/* Continues asynchronously until all ranks have arrived: CommGetAsyncError
   tells. */
NcclResult nccl_CommInitRankConfig(NcclComm *out, int world, NcclId id,
                                   int rank, NcclConfig *config) {
    int code = sim_entered("ncclCommInitRankConfig");
    *out = NULL;
    if (code) return code;
    if (config->magic != NCCL_MAGIC || config->blocking || world > RANKS ||
        sim_current_device() < 0)
        return NCCL_INVALID_ARGUMENT;
    NcclComm c = calloc(1, sizeof *c);
    int fd = open(id.bytes, O_RDWR | O_CLOEXEC);
    if (!c || fd < 0) return NCCL_SYSTEM_ERROR;
    *c = (struct NcclComm_st){.rank = rank, .world = world, .refs = 1};
    c->shared = map(fd, 4096, 0);
    c->rooms = map(fd, (size_t)RANKS * 2 * ROOM, 4096);
    close(fd);
    if (!c->shared || !c->rooms) return NCCL_SYSTEM_ERROR;
    const char *order = getenv("AMPC_SIM_NCCL_ORDER");
    c->in_rank_order = order && strcmp(order, "ranks") == 0;
    for (size_t i = 0; i < sizeof id.bytes; i++)
        c->seed = c->seed * 31 + (unsigned char)id.bytes[i];
    if (atomic_fetch_add(&c->shared->joined, 1) + 1 == world) unlink(id.bytes);
    *out = c;
    return NCCL_IN_PROGRESS;
}

NcclResult nccl_CommGetAsyncError(NcclComm c, NcclResult *e) {
    bool all = atomic_load(&c->shared->joined) >= c->world;
    int code = all ? sim_entered("ncclCommGetAsyncError") : 0;
    if (code == NCCL_REMOTE_ERROR) c->async = code;
    if (code && code != NCCL_REMOTE_ERROR) return code;
    *e = c->async ? c->async : all ? NCCL_SUCCESS : NCCL_IN_PROGRESS;
    return NCCL_SUCCESS;
}

NcclResult nccl_CommAbort(NcclComm c) {
    sim_entered("ncclCommAbort");
    c->aborted = true;
    depth = 0;
    for (int i = 0; i < queued; i++) drop(queue[i].op);
    queued = 0;
    drop_comm(c);
    return NCCL_SUCCESS;
}

NcclResult nccl_CommDestroy(NcclComm c) {
    int code = sim_entered("ncclCommDestroy");
    drop_comm(c);
    return code;
}

const char *nccl_GetErrorString(NcclResult e) {
    static const char *const texts[] = {
        "no error",
        "unhandled cuda error",
        "unhandled system error",
        "internal error",
        "invalid argument",
        "invalid usage",
        "remote process exited or there was a network error",
        "in progress"};
    return e >= 0 && e <= NCCL_IN_PROGRESS ? texts[e] : "unknown";
}
