/* SPDX-License-Identifier: Apache-2.0 */
/* gpu.h: declarations shared by the files of the CUDA backend.

   library.c  libcuda and cuBLASLt through dlopen; errors as statuses
   image.c    the module's CUDA code: which image this GPU runs
   memory.c   one block of device memory, one of pinned memory; copies
   bind.c     plan steps to launches with their parameters
   product.c  matrix products: cuBLASLt descriptors and layouts
   tune.c     which algorithm a product uses;  cache.c  remembers the choice
   ranks.c    sums over ranks;  nccl.c  NCCL
   run.c      inputs, one program: eager, captured, replayed; scalars
   backend.c  open, close, the table                                         */
#ifndef AMPC_CUDA_GPU_H
#define AMPC_CUDA_GPU_H

#include "runtime/api/session.h"
#include "runtime/cuda/driver.h"

/* ---- the libraries (library.c) ------------------------------------------- */

typedef struct CudaApi {
    void *lib;
#define CU(member, symbol, parameters) CUresult(*member) parameters;
#include "runtime/cuda/driver.def"
#undef CU
} CudaApi;

typedef struct LtApi {
    void *lib;
    size_t (*GetVersion)(void);
#define LT(member, symbol, parameters) int(*member) parameters;
#include "runtime/cuda/cublaslt.def"
#undef LT
} LtApi;

typedef struct NcclApi {
    void *lib;
    const char *(*GetErrorString)(NcclResult e);
#define NCCL(member, symbol, parameters) NcclResult(*member) parameters;
#include "runtime/cuda/nccl.def"
#undef NCCL
} NcclApi;

/* ---- a program ready to run ---------------------------------------------- */

typedef struct GpuLaunch {
    CUfunction fn; /* NULL: none */
    unsigned blocks, threads, shared;
    void **params;
} GpuLaunch;

/* A matrix product, column-major: out = op(a) op(b).  Without a descriptor
   it is empty: `zeros` bytes of out are cleared. */
typedef enum ProductBy {
    BY_LIBRARY,
    BY_LIBRARY_AND_AFTER, /* runs cuBLASLt, then GpuStep.second */
    BY_OWN,               /* GpuStep.first                                   */
    BY_NOTHING            /* PLAN_GELU: other steps do its work */
} ProductBy;

typedef struct GpuProduct {
    ProductBy by;
    bool own, after; /* true: there are kernels for them */
    bool gelu;       /* of a PLAN_GELU */
    LtDesc desc;
    LtLayout la, lb, lout;
    CUdeviceptr a, b, out;
    CUdeviceptr add;       /* 0: nothing */
    CUdeviceptr aux;       /* GELU's operand; 0: none */
    CUdeviceptr alpha;     /* 0: one number, from the host */
    CUdeviceptr scale;     /* numbers of 8 bits; 0: none */
    CUdeviceptr blocks[2]; /* .. scales of blocks of a and b; 0: none */
    bool f64;
    uint64_t zeros;
    LtAlgo algo;
} GpuProduct;

typedef struct GpuStep {
    uint32_t kind; /* PlanStepKind */
    GpuLaunch first, second;
    GpuProduct *product;
    CUdeviceptr from, to; /* PLAN_COPY */
    uint64_t bytes;
    const LibCopy *sum;     /* PLAN_SUM_NOW, of `from`, .. */
    bool largest;           /* .. or the largest */
    const PlanStep *bucket; /* PLAN_SUM */
    bool replaced;          /* others do its work: it is left out */
    const char *name;
} GpuStep;

/* One copy of scalars to the host. */
typedef struct GpuRange {
    CUdeviceptr from;
    uint32_t bytes, at;
} GpuRange;

typedef struct GpuProgram {
    GpuStep *steps;
    uint64_t input_bytes; /* bytes of all inputs in device memory */
    char *scalars;        /* pinned; NULL: not requested */
    uint32_t nrange, where[WATCH_COUNT];
    GpuRange range[WATCH_COUNT];
    bool late; /* gradients are variables of the program */
    bool bound;
    bool sums;        /* sums over ranks go through the host: they cannot be
                         captured */
    bool ran;         /* all kernels and library calls have been touched */
    CUgraphExec exec; /* for program update, if ranks sum on the device: the
                         last micro-step and the update */
} GpuProgram;

/* ---- the device ---------------------------------------------------------- */

enum {
    GPU_ALIGN = 256,
    GPU_SLOTS = 2, /* batches being copied to the device */
    GPU_SMALL = 8, /* small host writes being copied */
    GPU_SMALL_BYTES = 256,
    GPU_BOUNCE = 1 << 20,   /* piece size of large copies */
    GPU_SCALARS = 16 << 10, /* per program */
    GPU_NOWHERE = UINT32_MAX
};

typedef enum GpuMode { GPU_EAGER, GPU_CAPTURE, GPU_REPLAY } GpuMode;

typedef struct GpuDevice {
    CudaApi cu;
    LtApi lt;
    LtHandle handle;
    CUdevice device;
    CUcontext context;
    char name[96];
    int major, minor, sms;
    bool graphs;        /* AMPC_CUDA_GRAPH */
    bool ready;         /* open is done */
    ampc_status broken; /* true: the driver or other ranks failed; nothing
                           can be trusted any more */

    CUmodule *units, tile;
    CUfunction *kernels, *tiles;
    const char *arch, *tile_arch; /* tile_arch NULL: tiles are not used */

    CUdeviceptr memory;
    uint64_t bytes;
    CUdeviceptr *var;
    CUdeviceptr late; /* gradients come first; 0: not yet allocated */
    CUdeviceptr arena, late_arena, input, slot[GPU_SLOTS], scratch, workspace;
    CUdeviceptr zero, rows; /* constants; tables of launches */
    CUdeviceptr counters; /* u32, counts finished blocks: 0 between launches */
    uint64_t grads_bytes, late_bytes, slot_bytes, scratch_bytes,
        workspace_bytes;
    uint64_t row_bytes, counter_bytes;

    char *pinned;
    uint64_t pinned_bytes;
    char *host_slot[GPU_SLOTS], *small, *bounce, *scalars;

    CUstream stream;                   /* the host's stream or our own */
    CUstream own, copy, capture, work; /* work: the stream on which steps are
                                          enqueued now */
    CUevent uploaded[GPU_SLOTS], freed[GPU_SLOTS], written[GPU_SMALL], done;
    CUevent given, taken; /* of the host's arrays in the device */
    CUevent *marks; /* events around the steps of a program, for profiles */
    uint32_t nmark;
    unsigned next_slot, next_small;
    GpuMode mode; /* steps of the running program */

    /* ranks.c, in sessions whose ranks sum in the GPU's memory */
    CUstream ranks;
    CUevent forked, joined, waited;
    CUdeviceptr bad;   /* i64 of each rank */
    CUdeviceptr sent;  /* a bucket of gradients in 16 bits */
    int64_t *host_bad; /* pinned */

    GpuProgram *programs;
    GpuProduct *products;
    uint32_t nproduct;
    size_t nbound;       /* number of products already bound */
    uint64_t rows_bound; /* bytes of `rows` already made */
    void **params;       /* next free launch parameter while binding */
    uint64_t *values;
    void *tables; /* host memory that holds all tables above */
    size_t tables_bytes;
} GpuDevice;

static inline GpuDevice *gpu_of(const ampc_session *s) { return s->device; }

/* ---- library.c ----------------------------------------------------------- */

/* False: why not. */
bool cuda_find(CudaApi *cu, char *text, size_t size);
bool nccl_find(NcclApi *nccl, char *text, size_t size);
ampc_status lt_load(ampc_session *s, const CudaApi *cu, LtApi *lt);
void library_unload(void *lib);
/* The text "CUDA_ERROR_LAUNCH_FAILED (unspecified launch failure)". */
const char *gpu_error_text(const GpuDevice *d, CUresult e, char text[200]);
/* AMPC_ERR_DEVICE (AMPC_ERR_MEMORY during open); afterwards the session can
   only be closed. */
ampc_status gpu_fail(ampc_session *s, CUresult e, const char *call,
                     const char *step);
ampc_status lt_fail(ampc_session *s, int e, const char *call, const char *step);

/* Returns from a function of a session `s` when a driver call fails. */
#define GPU(call, what)                                                        \
    do {                                                                       \
        CUresult gpu_ = (call);                                                \
        if (gpu_ != CUDA_OK) return gpu_fail(s, gpu_, what, NULL);             \
    } while (0)

/* ---- image.c ------------------------------------------------------------- */

ampc_status image_load(ampc_session *s);
void image_unload(ampc_session *s);

/* ---- memory.c ------------------------------------------------------------ */

uint64_t gpu_round(uint64_t bytes); /* rounds up to GPU_ALIGN; saturates */
ampc_status memory_alloc(ampc_session *s);
ampc_status memory_alloc_late(ampc_session *s);
void memory_free(ampc_session *s);
CUdeviceptr gpu_address(const ampc_session *s, int program, PlanRef r);
ampc_status gpu_get(ampc_session *s, PlanRef from, void *to, uint64_t bytes);
ampc_status gpu_put(ampc_session *s, PlanRef to, const void *from,
                    uint64_t bytes);
ampc_status gpu_zero(ampc_session *s, PlanRef to, uint64_t bytes);
ampc_status gpu_give(ampc_session *s, PlanRef from, void *to, uint64_t bytes);
/* Refuses an array that is not in the memory of the session's GPU. */
ampc_status gpu_owns(ampc_session *s, const char *what, const void *array);
/* Around copies of the session's stream from or to arrays of the host's in the
   device: the legacy default stream and ours wait for each other. */
ampc_status gpu_join_host(ampc_session *s);
ampc_status gpu_leave_host(ampc_session *s);
ampc_status gpu_zero_grads(ampc_session *s);
ampc_status gpu_write(ampc_session *s, CUdeviceptr to, const void *from,
                      uint64_t bytes);

/* ---- bind.c -------------------------------------------------------------- */

/* NULL, or the name of the step whose CUDA tables are damaged. */
const char *gpu_plan_defect(const AmpcModule *m);
bool gpu_has_products(const AmpcModule *m);
/* Tables for every program; called before memory_alloc. bind_all fills those
   that can be filled and are not yet. */
ampc_status bind_tables(ampc_session *s);
ampc_status bind_all(ampc_session *s);
/* Between the two calls no thread captures a stream (run.c). */
void gpu_hold_captures(void);
void gpu_release_captures(void);
/* Number of blocks of a kernel over n elements. */
static inline int64_t gpu_blocks(const PlanCudaKernel *k, int64_t n) {
    return k->blocks ? k->blocks : n / k->per_block + (n % k->per_block > 0);
}

/* ---- ranks.c ------------------------------------------------------------- */

ampc_status gpu_ranks_open(ampc_session *s);
/* Bytes of GpuDevice.bad and host_bad, and of sent. */
uint64_t gpu_ranks_bytes(const ampc_session *s);
uint64_t gpu_sent_bytes(const ampc_session *s);
/* PLAN_SUM of program micro, as part of a whole step. */
ampc_status gpu_sum_bucket(ampc_session *s, const PlanStep *t);
/* Sums the remaining gradients before program update. */
ampc_status gpu_sum_rest(ampc_session *s);
/* With --shard-optimizer: called after program update. */
ampc_status gpu_hand_out(ampc_session *s);
/* PLAN_SUM_NOW. */
ampc_status gpu_sum_now(ampc_session *s, const GpuStep *t);
/* Waits for an event, or for all work of a stream; with ranks, no longer
   than the communicator allows. */
ampc_status gpu_wait(ampc_session *s, CUevent e, const char *what);
ampc_status gpu_wait_stream(ampc_session *s, CUstream stream, const char *what);

/* ---- product.c, tune.c, cache.c ------------------------------------------ */

/* The facts that decide which algorithms a product may use; no padding. */
typedef struct ProductKey {
    int64_t m, n, k, batch;
    int64_t lda, ldb, ldo, ldaux, stride_a, stride_b, stride_o;
    int32_t type_a, type_b, type_o, op_a, op_b, compute, epilogue, pointer;
    int32_t align_a, align_b, align_o, align_bias;
} ProductKey;

ampc_status product_bind(ampc_session *s, int program, const PlanStep *t,
                         GpuProduct *p, ProductKey *key);
/* A PLAN_GELU. */
ampc_status product_bind_gelu(ampc_session *s, int program, const PlanStep *t,
                              GpuProduct *p, ProductKey *key);
/* Leaves the operations after the product to a kernel. Returns the
   cublasStatus_t. */
int product_unfuse(const LtApi *lt, GpuProduct *p, ProductKey *key);
/* The cublasStatus_t. */
int product_launch(const GpuDevice *d, const GpuProduct *p, const LtAlgo *algo,
                   CUstream stream);
void product_free(const LtApi *lt, GpuProduct *p);
/* Chooses every product's algorithm, or our own kernel if there is none; may
   run them on undefined data. */
ampc_status tune_all(ampc_session *s, GpuProduct *products, size_t n,
                     ProductKey *keys, const char *const *names);
bool tune_measures(void); /* true if algorithms will be timed */

typedef struct CacheEntry {
    ProductKey key;
    LtAlgo algo;
} CacheEntry;

typedef struct Cache {
    ampc_session *s;
    char path[1024];
    bool damaged; /* the file exists but is not valid */
    CacheEntry *entries;
    size_t loaded, n, room; /* number of entries: from the file; in all */
} Cache;

/* Never fails: at worst the cache is empty and cannot be written. Returns
   the algorithm among the first n entries, or NULL. */
void cache_open(ampc_session *s, Cache *c);
const LtAlgo *cache_find(const Cache *c, size_t n, const ProductKey *key);
bool cache_add(Cache *c, const ProductKey *key, const LtAlgo *algo);
bool cache_writable(const Cache *c);
/* On success the cache holds the content of the file. */
bool cache_save(Cache *c);
void cache_close(Cache *c);

/* ---- run.c --------------------------------------------------------------- */

ampc_status gpu_begin(ampc_session *s, int program, const void *const *in,
                      uint32_t *first);
ampc_status gpu_step(ampc_session *s, int program, uint32_t step);
ampc_status gpu_end(ampc_session *s, int program, ampc_status status);
ampc_status gpu_stage(ampc_session *s, int program, uint32_t input,
                      void **data);
ampc_status gpu_sync(ampc_session *s);
ampc_status gpu_watched(ampc_session *s, int program,
                        uint64_t value[WATCH_COUNT]);
void watch_bind(ampc_session *s, int program);

#endif
