/* SPDX-License-Identifier: Apache-2.0 */
/* gpu_gemm.c: measures this machine's cuBLASLt: for the products of a
   module's training step, and per types, epilogue and size (multiples of 8
   and not) of square ones, the number of algorithms and the time of the
   first; and whether a fused ReLU keeps NaN. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/program/lib.h"
#include "tests/bench/gpu_check.h"

static struct {
#define LT(member, symbol, parameters) int(*member) parameters;
#include "runtime/cuda/cublaslt.def"
#undef LT
    size_t (*Version)(void);
} lt;

/* 13 does not work with a driver for CUDA 12. */
static void *open_cublaslt(int driver) {
    static const char *const usual[] = {"libcublasLt.so.13",
                                        "libcublasLt.so.12"};
    const char *given = getenv("AMPC_LIBCUBLASLT");
    void *lib = NULL;
    if (given && *given) return dlopen(given, RTLD_NOW | RTLD_LOCAL);
    for (int i = driver < 13000; i < 2 && !lib; i++)
        lib = dlopen(usual[i], RTLD_NOW | RTLD_LOCAL);
    return lib;
}

static bool find(void *lib, const char *symbol, void *field) {
    void *p = dlsym(lib, symbol);
    memcpy(field, &p, sizeof p);
    return p != NULL;
}

static bool load(const Gpu *g) {
    void *lib = open_cublaslt(g->driver);
    bool ok = lib && find(lib, "cublasLtGetVersion", &lt.Version);
#define LT(member, symbol, parameters) ok = ok && find(lib, symbol, &lt.member);
#include "runtime/cuda/cublaslt.def"
#undef LT
    return ok;
}

size_t gpu_cublaslt_version(const Gpu *g) { return load(g) ? lt.Version() : 0; }

/* ---- one product --------------------------------------------------------- */

typedef struct Types {
    const char *name;
    int in, out;
    size_t in_size, out_size;
} Types;

static const Types types[] = {{"bf16->bf16", LT_R_16BF, LT_R_16BF, 2, 2},
                              {"bf16->f32", LT_R_16BF, LT_R_32F, 2, 4},
                              {"f16->f16", LT_R_16F, LT_R_16F, 2, 2},
                              {"f16->f32", LT_R_16F, LT_R_32F, 2, 4},
                              {"f32->f32", LT_R_32F, LT_R_32F, 4, 4}};

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
    CUdeviceptr a, b, c, d, bias, work;
} Bench;

/* D = op(A) op(B), column-major as in cuBLASLt: m x n. */
typedef struct Problem {
    const Types *t;
    int64_t m, n, k, lda, ldb, stride_a, stride_b;
    int op_a, op_b, batch, epilogue;
    bool adds, scales; /* C; a number on the device */
} Problem;

static Problem square(const Types *t, int64_t n, int epilogue) {
    return (Problem){.t = t,
                     .m = n,
                     .n = n,
                     .k = n,
                     .lda = n,
                     .ldb = n,
                     .op_a = LT_OP_T,
                     .batch = 1,
                     .epilogue = epilogue};
}

typedef struct Product {
    LtDesc desc;
    LtLayout a, b, d;
    LtPref pref;
} Product;

static bool layout_new(LtLayout *l, int type, bool turned, int64_t rows,
                       int64_t cols, int64_t ld, int batch, int64_t stride) {
    return !lt.LayoutCreate(l, type, (uint64_t)(turned ? cols : rows),
                            (uint64_t)(turned ? rows : cols), ld) &&
           (batch == 1 ||
            (!lt.LayoutSet(*l, LT_LAYOUT_BATCH_COUNT, &batch, 4) &&
             !lt.LayoutSet(*l, LT_LAYOUT_BATCH_STRIDE, &stride, 8)));
}

static bool product_new(const Bench *b, Product *p, const Problem *x) {
    uint64_t work = WORKSPACE;
    uint32_t mask = LT_REDUCTION_INPLACE | LT_REDUCTION_COMPUTE_TYPE;
    int scalars = x->scales ? LT_POINTER_DEVICE : LT_POINTER_HOST;
    return !lt.DescCreate(&p->desc, LT_COMPUTE_32F, LT_R_32F) &&
           !lt.DescSet(p->desc, LT_DESC_TRANSA, &x->op_a, 4) &&
           !lt.DescSet(p->desc, LT_DESC_TRANSB, &x->op_b, 4) &&
           !lt.DescSet(p->desc, LT_DESC_EPILOGUE, &x->epilogue, 4) &&
           !lt.DescSet(p->desc, LT_DESC_POINTER_MODE, &scalars, 4) &&
           (!(x->epilogue & LT_EPILOGUE_BIAS) ||
            !lt.DescSet(p->desc, LT_DESC_BIAS_POINTER, &b->bias, 8)) &&
           layout_new(&p->a, x->t->in, x->op_a == LT_OP_T, x->m, x->k, x->lda,
                      x->batch, x->stride_a) &&
           layout_new(&p->b, x->t->in, x->op_b == LT_OP_T, x->k, x->n, x->ldb,
                      x->batch, x->stride_b) &&
           layout_new(&p->d, x->t->out, false, x->m, x->n, x->m, x->batch,
                      x->m * x->n) &&
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

static int run(const Bench *b, const Product *p, const Problem *x,
               const LtAlgo *algo) {
    static const float one = 1, zero = 0;
#define AT(p) (void *)(uintptr_t)(p)
    const void *alpha = x->scales ? AT(b->bias) : &one;
    const void *beta = x->scales ? AT(b->bias) : x->adds ? &one : &zero;
    return lt.Matmul(b->h, p->desc, alpha, AT(b->a), p->a, AT(b->b), p->b, beta,
                     AT(x->adds ? b->c : b->d), p->d, AT(b->d), p->d, algo,
                     AT(b->work), WORKSPACE, b->stream);
#undef AT
}

/* Milliseconds of one product; a number below 0: it failed. */
static float time_of(const Bench *b, const Product *p, const Problem *x,
                     const LtAlgo *algo) {
    float ms = -1;
    if (run(b, p, x, algo) || b->g->EventRecord(b->from, b->stream)) return -1;
    for (int i = 0; i < REPEATS; i++)
        if (run(b, p, x, algo)) return -1;
    if (b->g->EventRecord(b->to, b->stream) || b->g->EventSynchronize(b->to) ||
        b->g->EventElapsedTime(&ms, b->from, b->to))
        return -1;
    return ms / REPEATS;
}

/* Requests algorithms, times them, and prints the end of the line:
   `epilogue`, algorithms, time and rate. */
static bool row(const Bench *b, const Problem *x, const char *epilogue) {
    Product p = {0};
    LtHeuristic r[WANTED];
    int found = 0;
    double flop = 2.0 * (double)x->m * (double)x->n * (double)x->k * x->batch;
    bool ok = product_new(b, &p, x);
    int s = ok ? lt.Heuristic(b->h, p.desc, p.a, p.b, p.d, p.d, p.pref, WANTED,
                              r, &found)
               : LT_INTERNAL_ERROR;
    float ms = s || !found ? 0 : time_of(b, &p, x, &r[0].algo);
    ok = ok && ms >= 0;
    printf("\"ok\":%s,\"types\":\"%s\",\"epilogue\":\"%s\",\"algorithms\":%d,"
           "\"ms\":%.4f,\"tflops\":%.1f}\n",
           ok ? "true" : "false", x->t->name, epilogue, s ? 0 : found,
           (double)ms, ms > 0 ? 1e-9 * flop / (double)ms : 0.0);
    product_free(&p);
    return ok;
}

static bool square_row(const Bench *b, const Types *t, int n, int epilogue) {
    Problem x = square(t, n, epilogues[epilogue].value);
    printf("{\"check\":\"gemm\",\"size\":%d,", n);
    return row(b, &x, epilogues[epilogue].name);
}

/* ---- NaN ----------------------------------------------------------------- */

static bool is_nan(const Types *t, uint32_t bits) {
    uint32_t low = bits & 0x7fff;
    if (t->out == LT_R_32F) return (bits & 0x7fffffff) > 0x7f800000;
    return low > (t->out == LT_R_16F ? 0x7c00u : 0x7f80u);
}

/* True if max(x, 0) keeps a NaN, as on the CPU: otherwise the check for
   finite gradients could miss it. b->a holds NaN. */
static bool nan_row(const Bench *b, const Types *t, int n, int epilogue) {
    Product p = {0};
    LtHeuristic r[1];
    int found = 0;
    uint32_t bits = 0;
    Problem x = square(t, n, epilogues[epilogue].value);
    bool ok =
        product_new(b, &p, &x) &&
        !lt.Heuristic(b->h, p.desc, p.a, p.b, p.d, p.d, p.pref, 1, r, &found);
    if (ok && found)
        ok = !run(b, &p, &x, &r[0].algo) &&
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

/* Number of bytes of each matrix. */
typedef struct Room {
    size_t a, b, d, bias;
} Room;

static bool bench_new(Bench *b, Gpu *g, Room r) {
    *b = (Bench){.g = g};
    return !lt.Create(&b->h) &&
           !g->StreamCreate(&b->stream, CUDA_STREAM_NON_BLOCKING) &&
           !g->EventCreate(&b->from, 0) && !g->EventCreate(&b->to, 0) &&
           !g->MemAlloc(&b->a, r.a) && !g->MemAlloc(&b->b, r.b) &&
           !g->MemAlloc(&b->c, r.d) && !g->MemAlloc(&b->d, r.d) &&
           !g->MemAlloc(&b->bias, r.bias) &&
           !g->MemAlloc(&b->work, WORKSPACE) &&
           !g->MemsetD8Async(b->a, 0x3c, r.a, b->stream) &&
           !g->MemsetD8Async(b->b, 0x3c, r.b, b->stream) &&
           !g->MemsetD8Async(b->c, 0x3c, r.d, b->stream) &&
           !g->MemsetD8Async(b->bias, 0, r.bias, b->stream);
}

static void bench_free(Bench *b) {
    const CUdeviceptr memory[] = {b->a, b->b, b->c, b->d, b->bias, b->work};
    if (b->stream) b->g->StreamSynchronize(b->stream);
    for (int i = 0; i < 6; i++)
        if (memory[i]) b->g->MemFree(memory[i]);
    if (b->from) b->g->EventDestroy(b->from);
    if (b->to) b->g->EventDestroy(b->to);
    if (b->stream) b->g->StreamDestroy(b->stream);
    if (b->h) lt.Destroy(b->h);
}

int gpu_gemm_table(Gpu *g, int size) {
    static const int rest[] = {0, 4, 2, 1};
    Bench b;
    size_t side = (size_t)size + 8, bytes = side * side * 4;
    bool ready =
        load(g) && bench_new(&b, g, (Room){bytes, bytes, bytes, bytes});
    bool ok = ready;
    if (!ready) puts("{\"check\":\"gemm\",\"ok\":false,\"text\":\"set-up\"}");
    for (size_t t = 0; t < sizeof types / sizeof *types && ready; t++)
        for (int e = 0; e < 4; e++)
            for (int i = 0; i < 4; i++)
                ok = square_row(&b, &types[t], size + rest[i], e) && ok;
    if (ready) g->MemsetD8Async(b.a, 0xff, bytes, b.stream);
    for (size_t t = 0; t < sizeof types / sizeof *types && ready; t++)
        for (int e = 1; e < 4; e += 2)
            ok = nan_row(&b, &types[t], size, e) && ok;
    if (ready) bench_free(&b);
    return ok ? 0 : 1;
}

/* ---- the products of a module -------------------------------------------- */

/* NULL: fp64, which a training step in 16 bits does not use. */
static const Types *types_of(int64_t in, int64_t out) {
    static const int code[] = {
        [AMPC_F16] = LT_R_16F, [AMPC_BF16] = LT_R_16BF, [AMPC_F32] = LT_R_32F};
    for (size_t i = 0; i < sizeof types / sizeof *types; i++)
        if (in <= AMPC_F32 && out <= AMPC_F32 && types[i].in == code[in] &&
            types[i].out == code[out])
            return &types[i];
    return NULL;
}

/* A row-major rows x cols matrix is column-major as its transpose. */
static void turned(int64_t rows, int64_t cols, int64_t rs, int64_t cs, int *op,
                   int64_t *ld) {
    bool plain = cs == 1;
    int64_t line = plain ? cols : rows, pitch = plain ? rs : cs;
    *op = plain ? LT_OP_N : LT_OP_T;
    *ld = pitch > line ? pitch
                       : line; /* for a single line the pitch is meaningless */
}

static Problem problem_of(const LibGemm *p, uint32_t how) {
    Problem x = {.t = types_of(p->a_dtype, p->c_dtype),
                 .m = p->n,
                 .n = p->m,
                 .k = p->k,
                 .stride_a = p->b_bs[0],
                 .stride_b = p->a_bs[0],
                 .batch = p->nbatch_dim ? (int)p->batch_dim[0] : 1,
                 .epilogue = how == PLAN_PRODUCT_BIAS ? LT_EPILOGUE_BIAS
                                                      : LT_EPILOGUE_DEFAULT,
                 .adds = how == PLAN_PRODUCT_ADD,
                 .scales = how == PLAN_PRODUCT_SCALE};
    turned(p->k, p->n, p->b_rs, p->b_cs, &x.op_a, &x.lda);
    turned(p->m, p->k, p->a_rs, p->a_cs, &x.op_b, &x.ldb);
    return x;
}

static size_t more(size_t x, int64_t count, size_t size) {
    return (size_t)count * size > x ? (size_t)count * size : x;
}

/* Allocates the matrices of x, which the batches may share. */
static void make_room(Room *r, const Problem *x) {
    int64_t a = x->m * x->k, b = x->k * x->n, last = x->batch - 1;
    r->a = more(r->a, a + last * x->stride_a, x->t->in_size);
    r->b = more(r->b, b + last * x->stride_b, x->t->in_size);
    r->d = more(r->d, x->m * x->n * x->batch, x->t->out_size);
    r->bias = more(r->bias, x->m + 1, 4);
}

typedef struct Products {
    const PlanTarget *plan;
    const PlanStep *step;
    uint32_t n;
} Products;

/* The matrix products of program train. */
static Products products_of(const AmpcModule *m) {
    for (uint32_t i = 0; m->cuda && i < m->nprogram; i++)
        if (!strcmp(m->programs[i].name, "train")) {
            const PlanRun *run = &m->cuda->plan->runs[i];
            return (Products){m->cuda->plan, m->cuda->plan->steps + run->step0,
                              run->nstep};
        }
    return (Products){NULL, NULL, 0};
}

/* The number of steps equal to step i; 0: step i is not a product, or equals
   an earlier one. */
static int count_like(const Products *all, uint32_t i) {
    const PlanStep *s = &all->step[i];
    int count = 0;
    for (uint32_t j = 0; j < all->n && s->kind == PLAN_PRODUCT; j++) {
        const PlanStep *o = &all->step[j];
        if (o->kind != PLAN_PRODUCT || o->fn != s->fn ||
            memcmp(all->plan->pars + o->par0, all->plan->pars + s->par0,
                   sizeof(LibGemm)))
            continue;
        if (j < i) return 0;
        count++;
    }
    return count;
}

int gpu_gemm_module(Gpu *g, const char *name, const AmpcModule *m) {
    static const char *const how[] = {"none", "bias", "scale", "add"};
    Products all = products_of(m);
    Room room = {1, 1, 1, 1};
    Bench b = {.g = g};
    bool ok = true;
    for (int timed = 0; timed < 2; timed++) {
        if (timed && (!load(g) || !bench_new(&b, g, room))) {
            printf("{\"check\":\"product\",\"ok\":false,\"module\":\"%s\","
                   "\"text\":\"set-up\"}\n",
                   name);
            return 1;
        }
        for (uint32_t i = 0; i < all.n; i++) {
            const PlanStep *s = &all.step[i];
            int count = count_like(&all, i);
            const LibGemm *p = (const void *)(all.plan->pars + s->par0);
            Problem x = problem_of(p, s->fn);
            if (!count || !x.t) continue;
            if (!timed) {
                make_room(&room, &x);
                continue;
            }
            printf("{\"check\":\"product\",\"module\":\"%s\",\"count\":%d,"
                   "\"m\":%lld,\"n\":%lld,\"k\":%lld,\"batch\":%d,",
                   name, count, (long long)p->m, (long long)p->n,
                   (long long)p->k, x.batch);
            ok = row(&b, &x, how[s->fn]) && ok;
        }
    }
    bench_free(&b);
    return ok ? 0 : 1;
}
