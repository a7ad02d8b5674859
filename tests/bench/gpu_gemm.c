/* gpu_gemm.c: what this machine's cuBLASLt offers for the products of a
   training step: per types, epilogue and size (multiples of 8 and not), the
   number of algorithms and the time of the first; and whether a fused ReLU
   keeps NaN.                                                                 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/bench/gpu_check.h"

static struct {
#define LT(member, symbol, parameters) int(*member) parameters;
#include "runtime/cuda/cublaslt.def"
#undef LT
    size_t (*Version)(void);
} lt;

static void *open_cublaslt(void) {
    static const char *const usual[] = {"libcublasLt.so.13",
                                        "libcublasLt.so.12"};
    const char *given = getenv("AMPC_LIBCUBLASLT");
    void *lib = NULL;
    if (given && *given) return dlopen(given, RTLD_NOW | RTLD_LOCAL);
    for (int i = 0; i < 2 && !lib; i++)
        lib = dlopen(usual[i], RTLD_NOW | RTLD_LOCAL);
    return lib;
}

static bool find(void *lib, const char *symbol, void *field) {
    void *p = dlsym(lib, symbol);
    memcpy(field, &p, sizeof p);
    return p != NULL;
}

static bool load(void) {
    void *lib = open_cublaslt();
    bool ok = lib && find(lib, "cublasLtGetVersion", &lt.Version);
#define LT(member, symbol, parameters) ok = ok && find(lib, symbol, &lt.member);
#include "runtime/cuda/cublaslt.def"
#undef LT
    return ok;
}

size_t gpu_cublaslt_version(void) { return load() ? lt.Version() : 0; }

/* ---- one product --------------------------------------------------------- */

typedef struct Types {
    const char *name;
    int in, out;
    size_t out_size;
} Types;

static const Types types[] = {{"bf16->bf16", LT_R_16BF, LT_R_16BF, 2},
                              {"bf16->f32", LT_R_16BF, LT_R_32F, 4},
                              {"f16->f16", LT_R_16F, LT_R_16F, 2},
                              {"f16->f32", LT_R_16F, LT_R_32F, 4},
                              {"f32->f32", LT_R_32F, LT_R_32F, 4}};

static const struct {
    const char *name;
    int value;
} epilogues[] = {{"none", LT_EPILOGUE_DEFAULT},
                 {"relu", LT_EPILOGUE_RELU},
                 {"bias", LT_EPILOGUE_BIAS},
                 {"relu_bias", LT_EPILOGUE_RELU_BIAS}};

enum { WORKSPACE = 32 << 20, WANTED = 8, REPEATS = 10 };

typedef struct Bench {
    Gpu *g;
    LtHandle h;
    CUstream stream;
    CUevent from, to;
    CUdeviceptr a, b, d, bias, work;
} Bench;

typedef struct Product {
    LtDesc desc;
    LtLayout a, b, d;
    LtPref pref;
} Product;

static bool product_new(const Bench *b, Product *p, const Types *t, int n,
                        int epilogue) {
    int transposed = LT_OP_T;
    uint64_t work = WORKSPACE, size = (uint64_t)n;
    uint32_t mask = LT_REDUCTION_INPLACE | LT_REDUCTION_COMPUTE_TYPE;
    return !lt.DescCreate(&p->desc, LT_COMPUTE_32F, LT_R_32F) &&
           !lt.DescSet(p->desc, LT_DESC_TRANSA, &transposed, 4) &&
           !lt.DescSet(p->desc, LT_DESC_EPILOGUE, &epilogue, 4) &&
           (!(epilogue & LT_EPILOGUE_BIAS) ||
            !lt.DescSet(p->desc, LT_DESC_BIAS_POINTER, &b->bias, 8)) &&
           !lt.LayoutCreate(&p->a, t->in, size, size, n) &&
           !lt.LayoutCreate(&p->b, t->in, size, size, n) &&
           !lt.LayoutCreate(&p->d, t->out, size, size, n) &&
           !lt.PrefCreate(&p->pref) &&
           !lt.PrefSet(p->pref, LT_PREF_MAX_WORKSPACE, &work, 8) &&
           !lt.PrefSet(p->pref, LT_PREF_REDUCTION_MASK, &mask, 4);
}

static void product_free(Product *p) {
    if (p->desc) lt.DescDestroy(p->desc);
    if (p->a) lt.LayoutDestroy(p->a);
    if (p->b) lt.LayoutDestroy(p->b);
    if (p->d) lt.LayoutDestroy(p->d);
    if (p->pref) lt.PrefDestroy(p->pref);
}

static int run(const Bench *b, const Product *p, const LtAlgo *algo) {
    float one = 1, zero = 0;
    return lt.Matmul(b->h, p->desc, &one, (void *)(uintptr_t)b->a, p->a,
                     (void *)(uintptr_t)b->b, p->b, &zero,
                     (void *)(uintptr_t)b->d, p->d, (void *)(uintptr_t)b->d,
                     p->d, algo, (void *)(uintptr_t)b->work, WORKSPACE,
                     b->stream);
}

/* Milliseconds of one product; below 0: it failed. */
static float time_of(const Bench *b, const Product *p, const LtAlgo *algo) {
    float ms = -1;
    if (run(b, p, algo) || b->g->EventRecord(b->from, b->stream)) return -1;
    for (int i = 0; i < REPEATS; i++)
        if (run(b, p, algo)) return -1;
    if (b->g->EventRecord(b->to, b->stream) || b->g->EventSynchronize(b->to) ||
        b->g->EventElapsedTime(&ms, b->from, b->to))
        return -1;
    return ms / REPEATS;
}

static bool row(const Bench *b, const Types *t, int n, int epilogue) {
    Product p = {0};
    LtHeuristic r[WANTED];
    int found = 0;
    bool ok = product_new(b, &p, t, n, epilogues[epilogue].value);
    int s = ok ? lt.Heuristic(b->h, p.desc, p.a, p.b, p.d, p.d, p.pref, WANTED,
                              r, &found)
               : LT_INTERNAL_ERROR;
    float ms = s || !found ? 0 : time_of(b, &p, &r[0].algo);
    ok = ok && ms >= 0;
    printf("{\"check\":\"gemm\",\"ok\":%s,\"types\":\"%s\",\"epilogue\":\"%s\","
           "\"size\":%d,\"algorithms\":%d,\"ms\":%.4f,\"tflops\":%.1f}\n",
           ok ? "true" : "false", t->name, epilogues[epilogue].name, n,
           s ? 0 : found, (double)ms,
           ms > 0 ? 2e-9 * n * n * n / (double)ms : 0.0);
    product_free(&p);
    return ok;
}

/* ---- NaN ----------------------------------------------------------------- */

static bool is_nan(const Types *t, uint32_t bits) {
    uint32_t low = bits & 0x7fff;
    if (t->out == LT_R_32F) return (bits & 0x7fffffff) > 0x7f800000;
    return low > (t->out == LT_R_16F ? 0x7c00u : 0x7f80u);
}

/* Whether max(x, 0) keeps a NaN, as the CPU does: else the check for finite
   gradients could miss it.  b->a holds NaN. */
static bool nan_row(const Bench *b, const Types *t, int n, int epilogue) {
    Product p = {0};
    LtHeuristic r[1];
    int found = 0;
    uint32_t bits = 0;
    bool ok =
        product_new(b, &p, t, n, epilogues[epilogue].value) &&
        !lt.Heuristic(b->h, p.desc, p.a, p.b, p.d, p.d, p.pref, 1, r, &found);
    if (ok && found)
        ok = !run(b, &p, &r[0].algo) &&
             !b->g->MemcpyDtoHAsync(&bits, b->d, t->out_size, b->stream) &&
             !b->g->StreamSynchronize(b->stream) && is_nan(t, bits);
    if (found)
        printf("{\"check\":\"gemm nan\",\"ok\":%s,\"module\":\"%s %s\","
               "\"text\":\"of NaN: %08x\"}\n",
               ok ? "true" : "false", t->name, epilogues[epilogue].name, bits);
    product_free(&p);
    return ok;
}

/* ---- the table ----------------------------------------------------------- */

static bool bench_new(Bench *b, Gpu *g, size_t cells) {
    *b = (Bench){.g = g};
    return !lt.Create(&b->h) &&
           !g->StreamCreate(&b->stream, CUDA_STREAM_NON_BLOCKING) &&
           !g->EventCreate(&b->from, 0) && !g->EventCreate(&b->to, 0) &&
           !g->MemAlloc(&b->a, cells * 4) && !g->MemAlloc(&b->b, cells * 4) &&
           !g->MemAlloc(&b->d, cells * 4) &&
           !g->MemAlloc(&b->bias, cells * 4) &&
           !g->MemAlloc(&b->work, WORKSPACE) &&
           !g->MemsetD8Async(b->a, 0x3c, cells * 4, b->stream) &&
           !g->MemsetD8Async(b->b, 0x3c, cells * 4, b->stream) &&
           !g->MemsetD8Async(b->bias, 0, cells * 4, b->stream);
}

static void bench_free(Bench *b) {
    const CUdeviceptr memory[] = {b->a, b->b, b->d, b->bias, b->work};
    if (b->stream) b->g->StreamSynchronize(b->stream);
    for (int i = 0; i < 5; i++)
        if (memory[i]) b->g->MemFree(memory[i]);
    if (b->from) b->g->EventDestroy(b->from);
    if (b->to) b->g->EventDestroy(b->to);
    if (b->stream) b->g->StreamDestroy(b->stream);
    if (b->h) lt.Destroy(b->h);
}

int gpu_gemm_table(Gpu *g, int size) {
    static const int rest[] = {0, 4, 2, 1};
    Bench b;
    size_t side = (size_t)size + 8;
    bool ready = load() && bench_new(&b, g, side * side), ok = ready;
    if (!ready) puts("{\"check\":\"gemm\",\"ok\":false,\"text\":\"set-up\"}");
    for (size_t t = 0; t < sizeof types / sizeof *types && ready; t++)
        for (int e = 0; e < 4; e++)
            for (int i = 0; i < 4; i++)
                ok = row(&b, &types[t], size + rest[i], e) && ok;
    if (ready) g->MemsetD8Async(b.a, 0xff, side * side * 4, b.stream);
    for (size_t t = 0; t < sizeof types / sizeof *types && ready; t++)
        for (int e = 1; e < 4; e += 2)
            ok = nan_row(&b, &types[t], size, e) && ok;
    if (ready) bench_free(&b);
    return ok ? 0 : 1;
}
