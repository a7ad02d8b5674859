/* SPDX-License-Identifier: Apache-2.0 */
/* tune.c: chooses cuBLASLt's algorithm for each product.

   The choice decides the bits of the result, so it must not change from run to
   run nor from machine to machine: the library's own first choice is taken,
   which depends only on its version and the kind of GPU. With AMPC_TUNE=1
   several are measured. A measured choice is kept in a file and read from
   there; if the choice cannot be kept, or the file is in doubt, nothing is
   measured. Another machine may then get other bits. */
#define _GNU_SOURCE
#include <stdlib.h>
#include <string.h>

#include "runtime/base/try.h"
#include "runtime/cuda/gpu.h"

enum { CANDIDATES = 8, REPEATS = 5 };

typedef struct Tuner {
    ampc_session *s;
    GpuDevice *d;
    Cache cache;
    LtPref pref;
    CUevent begin, end;
    CUdeviceptr cold; /* twice the cache; 0: no room, trials run with a warm
                         cache */
    uint64_t cold_bytes;
    bool may_measure;
    GpuProduct *products;
    size_t n;
    unsigned refused, own, gelu; /* products */
} Tuner;

/* ---- candidates ---------------------------------------------------------- */

static int set_prefs(Tuner *t, const ProductKey *k) {
    uint64_t workspace = t->d->workspace_bytes;
    uint32_t mask = LT_REDUCTION_INPLACE | LT_REDUCTION_COMPUTE_TYPE;
    int e = 0;
#define SET(attribute, value)                                                  \
    e = e ? e : t->d->lt.PrefSet(t->pref, attribute, &(value), sizeof(value))
    SET(LT_PREF_MAX_WORKSPACE, workspace);
    SET(LT_PREF_REDUCTION_MASK, mask);
    SET(LT_PREF_ALIGN_A, k->align_a);
    SET(LT_PREF_ALIGN_B, k->align_b);
    SET(LT_PREF_ALIGN_C, k->align_o);
    SET(LT_PREF_ALIGN_D, k->align_o);
#undef SET
    return e;
}

/* True if the library has no algorithm: for this product, for parameters
   that it considers invalid, or for a GPU newer than the library. */
static bool is_refusal(int e) {
    return e == LT_NOT_SUPPORTED || e == LT_INVALID_VALUE ||
           e == LT_ARCH_MISMATCH;
}

/* Requests algorithms, best guess first; *n = 0: there are none. */
static ampc_status candidates(Tuner *t, const GpuProduct *p,
                              const ProductKey *k, const char *name, int wanted,
                              LtHeuristic *found, int *n) {
    int e = set_prefs(t, k), got = 0;
    *n = 0;
    if (e)
        return lt_fail(t->s, e, "cublasLtMatmulPreferenceSetAttribute", name);
    memset(found, 0, (size_t)wanted * sizeof *found);
    e = t->d->lt.Heuristic(t->d->handle, p->desc, p->la, p->lb, p->lout,
                           p->lout, t->pref, wanted, found, &got);
    if (e && !is_refusal(e))
        return lt_fail(t->s, e, "cublasLtMatmulAlgoGetHeuristic", name);
    for (int i = 0; !e && i < got && i < wanted; i++)
        if (found[i].state == LT_SUCCESS &&
            found[i].workspace <= t->d->workspace_bytes)
            found[(*n)++] = found[i];
    return AMPC_OK;
}

/* cuBLASLt has no algorithm: there may be one for the product alone, and our
   own kernel computes any product. */
static ampc_status refused(Tuner *t, GpuProduct *p, ProductKey *k,
                           const char *name) {
    LtHeuristic found;
    int n = 0;
    if (p->gelu) {
        p->by = BY_NOTHING;
        t->gelu++;
        return AMPC_OK;
    }
    if (p->after) {
        int e = product_unfuse(&t->d->lt, p, k);
        if (e) return lt_fail(t->s, e, "description of a product", name);
        TRY(candidates(t, p, k, name, 1, &found, &n));
    }
    if (!n && !p->own)
        return session_fail(t->s, AMPC_ERR_UNSUPPORTED,
                            "step '%.200s': cuBLASLt has no algorithm for this "
                            "product on GPU '%s'",
                            name, t->d->name);
    p->by = n ? BY_LIBRARY_AND_AFTER : BY_OWN;
    if (n) p->algo = found.algo;
    t->refused++;
    t->own += !n;
    return AMPC_OK;
}

/* ---- measuring ----------------------------------------------------------- */

/* Fills a block of memory by copies of its first piece, which is in
   `bounce`. */
static ampc_status fill_block(Tuner *t, CUdeviceptr block, uint64_t bytes) {
    GpuDevice *d = t->d;
    ampc_session *s = t->s;
    uint64_t piece = GPU_BOUNCE < bytes ? GPU_BOUNCE : bytes;
    GPU(d->cu.MemcpyHtoDAsync(block, d->bounce, piece, d->stream),
        "copy to the device");
    for (uint64_t at = piece; at < bytes; at *= 2) {
        uint64_t rest = bytes - at;
        GPU(d->cu.MemcpyDtoDAsync(block + at, block, rest < at ? rest : at,
                                  d->stream),
            "cuMemcpyDtoDAsync");
    }
    return AMPC_OK;
}

/* Memory has no data yet: it is filled with numbers of either sign around 1,
   whatever type the product reads, since power consumption, and so speed,
   depends on the data. */
static ampc_status fill_memory(Tuner *t) {
    GpuDevice *d = t->d;
    ampc_session *s = t->s;
    uint64_t bits = 1;
    for (uint64_t i = 0; i < GPU_BOUNCE / 2; i++) {
        bits = bits * 6364136223846793005u + 1442695040888963407u;
        uint16_t x = (uint16_t)((bits >> 40 & 0x83ff) | 0x3c00);
        memcpy(d->bounce + 2 * i, &x, sizeof x);
    }
    TRY(fill_block(t, d->memory, d->bytes));
    if (d->late) TRY(fill_block(t, d->late, d->late_bytes));
    GPU(d->cu.MemsetD8Async(d->zero, 0, sizeof(double), d->stream),
        "cuMemsetD8Async");
    return gpu_wait_stream(s, d->stream, "cuStreamSynchronize");
}

static void alloc_cold(Tuner *t) {
    GpuDevice *d = t->d;
    int cache = 0;
    if (d->cu.DeviceGetAttribute(&cache, CUDA_ATTR_L2_CACHE_SIZE, d->device) !=
        CUDA_OK)
        return;
    t->cold_bytes = 2 * (uint64_t)cache;
    if (!cache || d->cu.MemAlloc(&t->cold, t->cold_bytes) != CUDA_OK)
        t->cold = 0;
}

/* Imitates a step, in which other work runs between a product and its
   operands: reads and writes more than a cache holds. */
static ampc_status cool_cache(Tuner *t) {
    GpuDevice *d = t->d;
    ampc_session *s = t->s;
    uint64_t bytes = t->cold_bytes / 2;
    if (!t->cold) return AMPC_OK;
    GPU(d->cu.MemcpyDtoDAsync(t->cold + bytes, t->cold, bytes, d->stream),
        "cuMemcpyDtoDAsync");
    return AMPC_OK;
}

/* Milliseconds of all repetitions; negative: this algorithm does not run. */
static ampc_status measure(Tuner *t, const GpuProduct *p, const LtAlgo *algo,
                           float *ms) {
    GpuDevice *d = t->d;
    ampc_session *s = t->s;
    float sum = 0, one;
    *ms = -1;
    if (product_launch(d, p, algo, d->stream) != LT_SUCCESS) return AMPC_OK;
    for (int i = 0; i < REPEATS; i++) {
        TRY(cool_cache(t));
        GPU(d->cu.EventRecord(t->begin, d->stream), "cuEventRecord");
        if (product_launch(d, p, algo, d->stream) != LT_SUCCESS) return AMPC_OK;
        GPU(d->cu.EventRecord(t->end, d->stream), "cuEventRecord");
        GPU(d->cu.EventSynchronize(t->end), "a trial product");
        GPU(d->cu.EventElapsedTime(&one, t->begin, t->end),
            "cuEventElapsedTime");
        sum += one;
    }
    *ms = sum;
    return AMPC_OK;
}

/* The fastest algorithm; it must be clearly faster than the first. */
static ampc_status fastest(Tuner *t, const GpuProduct *p,
                           const LtHeuristic *found, int n, int *best) {
    float least = -1;
    *best = 0;
    ampc_status status = fill_memory(t);
    for (int i = 0; i < n && status == AMPC_OK; i++) {
        float ms;
        status = measure(t, p, &found[i].algo, &ms);
        if (ms < 0 || (least >= 0 && ms > 0.97f * least)) continue;
        least = ms;
        *best = i;
    }
    return status;
}

/* ---- choosing ------------------------------------------------------------ */

static bool algo_valid(const Tuner *t, const GpuProduct *p,
                       const LtAlgo *algo) {
    LtHeuristic r = {.state = LT_NOT_SUPPORTED};
    return t->d->lt.AlgoCheck(t->d->handle, p->desc, p->la, p->lb, p->lout,
                              p->lout, algo, &r) == LT_SUCCESS &&
           r.state == LT_SUCCESS && r.workspace <= t->d->workspace_bytes;
}

static ampc_status choose(Tuner *t, GpuProduct *p, ProductKey *k,
                          const char *name) {
    LtHeuristic found[CANDIDATES];
    Cache *c = &t->cache;
    int n = 0, best;
    const LtAlgo *known = cache_find(c, c->loaded, k);
    if (known && algo_valid(t, p, known)) {
        p->algo = *known;
        return AMPC_OK;
    }
    bool trial = t->may_measure && !known && !cache_find(c, c->n, k) &&
                 cache_writable(c);
    TRY(candidates(t, p, k, name, trial ? CANDIDATES : 1, found, &n));
    if (!n) return refused(t, p, k, name);
    p->algo = found[0].algo;
    if (!trial) return AMPC_OK;
    ampc_status status = fastest(t, p, found, n, &best);
    if (status == AMPC_OK) cache_add(c, k, &found[best].algo);
    return status;
}

/* Measured algorithms are used only after they are saved, so that later runs
   use the same. */
static void apply_new(Tuner *t, const ProductKey *keys) {
    Cache *c = &t->cache;
    if (c->n == c->loaded || !cache_save(c))
        return; /* nothing new, or
                   saving failed */
    for (size_t i = 0; i < t->n; i++) {
        GpuProduct *p = &t->products[i];
        const LtAlgo *algo = p->by == BY_LIBRARY && p->desc
                                 ? cache_find(c, c->n, &keys[i])
                                 : NULL;
        if (algo && algo_valid(t, p, algo)) p->algo = *algo;
    }
}

static ampc_status choose_all(Tuner *t, ProductKey *keys,
                              const char *const *names) {
    ampc_session *s = t->s;
    int e = t->d->lt.PrefCreate(&t->pref);
    if (e) return lt_fail(s, e, "cublasLtMatmulPreferenceCreate", NULL);
    GPU(t->d->cu.EventCreate(&t->begin, 0), "cuEventCreate");
    GPU(t->d->cu.EventCreate(&t->end, 0), "cuEventCreate");
    for (size_t i = 0; i < t->n; i++) {
        GpuProduct *p = &t->products[i];
        TRY(p->desc ? choose(t, p, &keys[i], names[i]) : AMPC_OK);
    }
    if (t->refused)
        session_log(s,
                    "cuBLASLt has no algorithm for %u products or for their "
                    "epilogues; %u of them run on our own, slower kernels",
                    t->refused, t->own);
    if (t->gelu)
        session_log(s,
                    "cuBLASLt has no algorithm for %u products with GELU, "
                    "which kernels of the module compute",
                    t->gelu);
    apply_new(t, keys);
    return AMPC_OK;
}

bool tune_measures(void) {
    const char *tune = secure_getenv("AMPC_TUNE");
    return tune && strcmp(tune, "1") == 0;
}

ampc_status tune_all(ampc_session *s, GpuProduct *products, size_t n,
                     ProductKey *keys, const char *const *names) {
    Tuner t = {.s = s,
               .d = gpu_of(s),
               .products = products,
               .n = n,
               .cache = {.s = s}};
    if (tune_measures()) {
        cache_open(s, &t.cache);
        t.may_measure = !t.cache.damaged;
        alloc_cold(&t);
    }
    ampc_status status = choose_all(&t, keys, names);
    if (t.pref) t.d->lt.PrefDestroy(t.pref);
    if (t.cold) t.d->cu.MemFree(t.cold);
    if (t.begin) t.d->cu.EventDestroy(t.begin);
    if (t.end) t.d->cu.EventDestroy(t.end);
    cache_close(&t.cache);
    return status;
}
