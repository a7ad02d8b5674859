/* cuda_kernels_test.c: the hand-written CUDA kernels on the simulated GPU
   against the CPU's routines, over tables of shapes and dtypes; and compiled
   by NVRTC, where there is one, without warnings or spills.                  */
#define _POSIX_C_SOURCE 200809L
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "codegen/cuda.h"
#include "runtime/cpu/kernels.h"
#include "runtime/half.h"
#include "tests/simulate.h"

/* ---- cases --------------------------------------------------------------- */

/* A library step with its buffers. */
typedef struct Case {
    const char *name;
    PlanLib lib;
    union {
        CpuGemm gemm;
        CpuConv conv;
        CpuPool pool;
        CpuScatterAdd scatter;
        CpuArgmax argmax;
    } p;
} Case;

enum { MAX_BUFS = 3, SEEDS = 2 };

typedef struct Buf {
    int64_t dtype, count;
    void *data;
} Buf;

static int64_t volume(const int64_t *v) { return v[0] * v[1] * v[2]; }

/* Product of the batch dims that a stride moves along. */
static int64_t gemm_span(const CpuGemm *g, const int64_t *stride,
                         int64_t matrix) {
    int64_t last = matrix - 1;
    for (int64_t i = 0; i < g->nbatch_dim; i++)
        last += (g->batch_dim[i] - 1) * stride[i];
    return matrix ? last + 1 : 0;
}

static void gemm_bufs(const CpuGemm *g, Buf *b) {
    int64_t batch = 1;
    for (int64_t i = 0; i < g->nbatch_dim; i++) batch *= g->batch_dim[i];
    b[0] = (Buf){g->a_dtype, gemm_span(g, g->a_bs, g->m * g->k), NULL};
    b[1] = (Buf){g->b_dtype, gemm_span(g, g->b_bs, g->k * g->n), NULL};
    b[2] = (Buf){g->c_dtype, batch * g->m * g->n, NULL};
}

static void conv_bufs(const Case *c, Buf *b) {
    const CpuConv *p = &c->p.conv;
    Buf x = {p->x_dtype, p->n * p->c * volume(p->in), NULL};
    Buf w = {p->w_dtype, p->k * (p->c / p->group) * volume(p->kernel), NULL};
    Buf y = {p->y_dtype, p->n * p->k * volume(p->out), NULL};
    bool fwd = c->lib == PLAN_LIB_CONV_FWD;
    bool dgrad = c->lib == PLAN_LIB_CONV_DGRAD;
    b[0] = dgrad ? y : x;
    b[1] = fwd || dgrad ? w : y;
    b[2] = fwd ? y : dgrad ? x : w;
}

static void pool_bufs(const Case *c, Buf *b) {
    const CpuPool *p = &c->p.pool;
    Buf x = {p->dtype, p->planes * volume(p->in), NULL};
    Buf y = {p->dtype, p->planes * volume(p->out), NULL};
    Buf idx = {AMPC_I32, y.count, NULL};
    bool back = c->lib == PLAN_LIB_MAXPOOL_GRAD ||
                c->lib == PLAN_LIB_AVGPOOL_GRAD;
    b[0] = back ? y : x;
    b[1] = c->lib == PLAN_LIB_MAXPOOL_GRAD ? idx : back ? x : y;
    b[2] = c->lib == PLAN_LIB_MAXPOOL ? idx : x;
}

/* In the order of refs; returns how many. */
static int case_bufs(const Case *c, Buf *b) {
    const CpuScatterAdd *s = &c->p.scatter;
    const CpuArgmax *a = &c->p.argmax;
    switch (c->lib) {
    case PLAN_LIB_GEMM: gemm_bufs(&c->p.gemm, b); return 3;
    case PLAN_LIB_CONV_FWD:
    case PLAN_LIB_CONV_DGRAD:
    case PLAN_LIB_CONV_WGRAD: conv_bufs(c, b); return 3;
    case PLAN_LIB_SCATTER_ADD:
        b[0] = (Buf){s->src_dtype, s->outer * s->nidx * s->inner, NULL};
        b[1] = (Buf){s->idx_dtype, s->nidx, NULL};
        b[2] = (Buf){s->out_dtype, s->outer * s->rows * s->inner, NULL};
        return 3;
    case PLAN_LIB_ARGMAX:
        b[0] = (Buf){a->dtype, a->outer * a->axis * a->inner, NULL};
        b[1] = (Buf){AMPC_I64, a->outer * a->inner, NULL};
        return 2;
    default:
        pool_bufs(c, b);
        return c->lib == PLAN_LIB_MAXPOOL || c->lib == PLAN_LIB_MAXPOOL_GRAD
                   ? 3
                   : 2;
    }
}

static size_t par_bytes(PlanLib lib) {
    return lib == PLAN_LIB_GEMM          ? sizeof(CpuGemm)
           : lib <= PLAN_LIB_CONV_WGRAD  ? sizeof(CpuConv)
           : lib <= PLAN_LIB_AVGPOOL_GRAD ? sizeof(CpuPool)
           : lib == PLAN_LIB_ARGMAX      ? sizeof(CpuArgmax)
                                         : sizeof(CpuScatterAdd);
}

static LoweredStep step_of(const Case *c) {
    return (LoweredStep){.kind = PLAN_LIB,
                         .lib = c->lib,
                         .pars = (int64_t *)(uintptr_t)&c->p,
                         .npar = (int)(par_bytes(c->lib) / sizeof(int64_t)),
                         .name = c->name};
}

/* ---- values -------------------------------------------------------------- */

static uint64_t rng = 1;

static uint32_t rnd(void) {
    rng = rng * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (uint32_t)(rng >> 33);
}

static int64_t rnd_in(int64_t lo, int64_t hi) {
    return lo + (int64_t)(rnd() % (uint32_t)(hi - lo + 1));
}

static double get(const void *p, int64_t dtype, int64_t i) {
    switch (dtype) {
    case AMPC_BOOL:
    case AMPC_U8: return ((const uint8_t *)p)[i];
    case AMPC_I8: return ((const int8_t *)p)[i];
    case AMPC_U16: return ((const uint16_t *)p)[i];
    case AMPC_I16: return ((const int16_t *)p)[i];
    case AMPC_U32: return ((const uint32_t *)p)[i];
    case AMPC_I32: return ((const int32_t *)p)[i];
    case AMPC_U64: return (double)((const uint64_t *)p)[i];
    case AMPC_I64: return (double)((const int64_t *)p)[i];
    case AMPC_F64: return ((const double *)p)[i];
    case AMPC_F32: return (double)((const float *)p)[i];
    case AMPC_BF16: return (double)bf16_to_f32(((const uint16_t *)p)[i]);
    default: return (double)f16_to_f32(((const uint16_t *)p)[i]);
    }
}

static void put(void *p, int64_t dtype, int64_t i, double x) {
    switch (dtype) {
    case AMPC_F64: ((double *)p)[i] = x; break;
    case AMPC_F32: ((float *)p)[i] = (float)x; break;
    case AMPC_BF16: ((uint16_t *)p)[i] = f32_to_bf16((float)x); break;
    case AMPC_F16: ((uint16_t *)p)[i] = f32_to_f16((float)x); break;
    default: /* two's complement, little-endian */
        memcpy((char *)p + i * dtype_info[dtype].bytes, &(int64_t){(int64_t)x},
               (size_t)dtype_info[dtype].bytes);
    }
}

/* Exactly so many bytes, of which none is a number. */
static void *bytes_of(size_t n) {
    void *p = malloc(n + (n == 0));
    REQUIRE(p != NULL);
    memset(p, 0xff, n);
    return p;
}

static void *blank(const Buf *b) {
    return bytes_of((size_t)(b->count * dtype_info[b->dtype].bytes));
}

static double unit(int64_t dtype) {
    return dtype == AMPC_F64    ? 0x1p-53
           : dtype == AMPC_F32  ? 0x1p-24
           : dtype == AMPC_BF16 ? 0x1p-8
           : dtype == AMPC_F16  ? 0x1p-11
                                : 0;
}

static double fresh(const Case *c, const Buf *b, int which) {
    int64_t rows = c->p.scatter.rows;
    if (c->lib == PLAN_LIB_SCATTER_ADD && which == 1) {
        if (dtype_info[b->dtype].kind == DK_U) return (double)rnd_in(0, rows);
        return (double)rnd_in(-rows - 1, rows); /* both ends out of range */
    }
    if (c->lib == PLAN_LIB_ARGMAX || c->lib == PLAN_LIB_MAXPOOL ||
        !dtype_is_float((DType)b->dtype)) {
        if (dtype_is_float((DType)b->dtype) && rnd() % 97 == 0)
            return rnd() % 2 ? (double)NAN : -(double)INFINITY;
        return dtype_info[b->dtype].kind == DK_U ? (double)rnd_in(0, 7)
               : b->dtype == AMPC_BOOL           ? (double)rnd_in(0, 1)
                                       : (double)rnd_in(-5, 5); /* many ties */
    }
    return (double)rnd_in(-1000, 1000) / 500.0;
}

/* Indices as a forward pass gives them. */
static void fill_indices(const CpuPool *p, void *idx) {
    Buf x = {p->dtype, p->planes * volume(p->in), NULL};
    Buf y = {p->dtype, p->planes * volume(p->out), NULL};
    x.data = blank(&x);
    y.data = blank(&y);
    for (int64_t i = 0; i < x.count; i++)
        put(x.data, x.dtype, i, (double)rnd_in(-5, 5));
    ampc_cpu_v2.maxpool(NULL, p, x.data, y.data, idx);
    free(x.data);
    free(y.data);
}

static void fill(const Case *c, Buf *b, int n, int nin) {
    for (int i = 0; i < n; i++) {
        b[i].data = blank(&b[i]);
        for (int64_t j = 0; i < nin && j < b[i].count; j++)
            put(b[i].data, b[i].dtype, j, fresh(c, &b[i], i));
    }
    if (c->lib == PLAN_LIB_MAXPOOL_GRAD)
        fill_indices(&c->p.pool, b[1].data);
}

/* ---- the CPU's result ---------------------------------------------------- */

static void cpu_conv(const Case *c, void *const *b) {
    const AmpcCpuLib *lib = &ampc_cpu_v2;
    const CpuConv *p = &c->p.conv;
    size_t need = c->lib == PLAN_LIB_CONV_FWD ? cpu_conv_fwd_scratch(p, 1)
                  : c->lib == PLAN_LIB_CONV_DGRAD
                      ? cpu_conv_dgrad_scratch(p, 1)
                      : cpu_conv_wgrad_scratch(p, 1);
    void *scratch = aligned_alloc(64, (need + 127) / 64 * 64);
    if (c->lib == PLAN_LIB_CONV_FWD)
        lib->conv_fwd(NULL, p, b[0], b[1], b[2], NULL, scratch);
    else if (c->lib == PLAN_LIB_CONV_DGRAD)
        lib->conv_dgrad(NULL, p, b[0], b[1], b[2], scratch);
    else
        lib->conv_wgrad(NULL, p, b[0], b[1], b[2], scratch);
    free(scratch);
}

static void cpu_run(const Case *c, void *const *b) {
    const AmpcCpuLib *lib = &ampc_cpu_v2;
    size_t need = c->lib == PLAN_LIB_GEMM ? cpu_gemm_scratch(&c->p.gemm, 1)
                  : c->lib == PLAN_LIB_SCATTER_ADD
                      ? cpu_scatter_add_scratch(&c->p.scatter, 1)
                      : 0;
    void *scratch = aligned_alloc(64, (need + 127) / 64 * 64);
    switch (c->lib) {
    case PLAN_LIB_GEMM:
        lib->gemm(NULL, &c->p.gemm, b[0], b[1], b[2], NULL, scratch);
        break;
    case PLAN_LIB_MAXPOOL: lib->maxpool(NULL, &c->p.pool, b[0], b[1], b[2]);
        break;
    case PLAN_LIB_MAXPOOL_GRAD:
        lib->maxpool_grad(NULL, &c->p.pool, b[0], b[1], b[2]);
        break;
    case PLAN_LIB_AVGPOOL: lib->avgpool(NULL, &c->p.pool, b[0], b[1]); break;
    case PLAN_LIB_AVGPOOL_GRAD:
        lib->avgpool_grad(NULL, &c->p.pool, b[0], b[1]);
        break;
    case PLAN_LIB_SCATTER_ADD:
        lib->scatter_add(NULL, &c->p.scatter, b[0], b[1], b[2], scratch);
        break;
    case PLAN_LIB_ARGMAX: lib->argmax(NULL, &c->p.argmax, b[0], b[1]); break;
    default: cpu_conv(c, b);
    }
    free(scratch);
}

/* ---- the kernels' result ------------------------------------------------- */

static void gpu_launch(SimTwin *t, const char *name, const CudaLaunch *l,
                       void *const *b, int n, void *scratch) {
    void *params[MAX_BUFS + 1];
    for (int i = 0; i < n; i++) params[i] = (void *)(uintptr_t)&b[i];
    params[n] = &scratch;
    if (!l->threads) return;
    int rc = sim()->run(t, name, (unsigned)l->blocks, (unsigned)l->threads,
                        l->shared, params);
    CHECK_MSG(rc == 0, "%s: %s", name, sim()->errors());
}

static void gpu_run(SimTwin *t, int number, const CudaLib *lib, void *const *b,
                    int n) {
    char name[32];
    void *scratch = bytes_of(lib->scratch);
    snprintf(name, sizeof name, "l%d", number);
    gpu_launch(t, name, &lib->first, b, n, scratch);
    snprintf(name, sizeof name, "l%d_2", number);
    gpu_launch(t, name, &lib->second, b, n, scratch);
    free(scratch);
}

static SimTwin *twin_of(const char *text) {
    char path[600], err[300];
    char *dir = sim_build_text(text);
    snprintf(path, sizeof path, "%s/unit0.so", dir);
    free(dir);
    SimTwin *t = sim()->twin_open(path, err, sizeof err);
    if (!t) FAIL("%s", err);
    return t;
}

/* ---- comparison ---------------------------------------------------------- */

static void same(const Case *c, const Buf *b, const void *want,
                 const void *got) {
    for (int64_t i = 0; i < b->count; i++) {
        double x = get(want, b->dtype, i), y = get(got, b->dtype, i);
        if (!CHECK_MSG(x == y || (isnan(x) && isnan(y)),
                       "%s: element %lld is %g, not %g", c->name, (long long)i,
                       y, x))
            return;
    }
}

/* Sums in other orders: as far apart as the sum of the terms' magnitudes
   allows, and one rounding of the result. */
static void close_to(const Case *c, const Buf *b, const void *want,
                     const void *got, const Buf *size, double terms) {
    double u = b->dtype == AMPC_F64 ? 0x1p-53 : 0x1p-24;
    for (int64_t i = 0; i < b->count; i++) {
        double x = get(want, b->dtype, i), y = get(got, b->dtype, i);
        double tol = 2 * (terms + 2) * u * get(size->data, size->dtype, i) +
                     2 * unit(b->dtype) * fabs(x);
        if (!CHECK_MSG(fabs(x - y) <= tol, "%s: element %lld is %g, not %g",
                       c->name, (long long)i, y, x))
            return;
    }
}

/* Terms of the longest sum. */
static double case_terms(const Case *c) {
    const CpuConv *p = &c->p.conv;
    double taps = (double)volume(p->kernel);
    switch (c->lib) {
    case PLAN_LIB_GEMM: return (double)c->p.gemm.k;
    case PLAN_LIB_CONV_FWD: return (double)(p->c / p->group) * taps;
    case PLAN_LIB_CONV_DGRAD: return (double)(p->k / p->group) * taps;
    case PLAN_LIB_CONV_WGRAD: return (double)(p->n * volume(p->out));
    default: return (double)volume(c->p.pool.kernel);
    }
}

/* The step of the operands' magnitudes, in f32 or f64. */
static Buf magnitudes(const Case *c, const Buf *b, int out) {
    Case m = *c;
    Buf r = b[out], in[MAX_BUFS];
    void *data[MAX_BUFS] = {0};
    bool pooled = c->lib > PLAN_LIB_CONV_WGRAD;
    r.dtype = pooled || r.dtype == AMPC_F64 ? r.dtype : AMPC_F32;
    if (c->lib == PLAN_LIB_GEMM) m.p.gemm.c_dtype = r.dtype;
    if (c->lib == PLAN_LIB_CONV_FWD) m.p.conv.y_dtype = r.dtype;
    if (c->lib == PLAN_LIB_CONV_DGRAD) m.p.conv.x_dtype = r.dtype;
    if (c->lib == PLAN_LIB_CONV_WGRAD) m.p.conv.w_dtype = r.dtype;
    r.data = blank(&r);
    for (int i = 0; i < out; i++) {
        in[i] = b[i];
        data[i] = in[i].data = blank(&b[i]);
        for (int64_t j = 0; j < b[i].count; j++) {
            double x = get(b[i].data, b[i].dtype, j);
            bool index = b[i].dtype == AMPC_I32;
            put(in[i].data, b[i].dtype, j, index ? x : fabs(x));
        }
    }
    data[out] = r.data;
    cpu_run(&m, data);
    for (int i = 0; i < out; i++) free(data[i]);
    return r;
}

/* ---- one case ------------------------------------------------------------ */

static bool is_exact(const Case *c) {
    return c->lib == PLAN_LIB_MAXPOOL || c->lib == PLAN_LIB_SCATTER_ADD ||
           c->lib == PLAN_LIB_ARGMAX;
}

static void compare(const Case *c, const Buf *b, int n, int first,
                    void *const *want, void *const *got) {
    if (is_exact(c)) {
        for (int i = first; i < n; i++) same(c, &b[i], want[i], got[i]);
        return;
    }
    Buf size = magnitudes(c, b, first);
    close_to(c, &b[first], want[first], got[first], &size, case_terms(c));
    free(size.data);
}

static void run_case(SimTwin *t, int number, const Case *c,
                     const CudaLib *lib) {
    Buf b[MAX_BUFS];
    void *want[MAX_BUFS], *got[MAX_BUFS];
    int n = case_bufs(c, b);
    int first = c->lib == PLAN_LIB_MAXPOOL ? 1 : n - 1; /* result */
    fill(c, b, n, first);
    for (int i = 0; i < n; i++) {
        want[i] = i < first ? b[i].data : blank(&b[i]);
        got[i] = b[i].data;
    }
    cpu_run(c, want);
    for (unsigned seed = 0; seed < SEEDS; seed++) {
        for (int i = first; i < n; i++)
            memset(got[i], 0xff,
                   (size_t)(b[i].count * dtype_info[b[i].dtype].bytes));
        sim()->seed(seed);
        gpu_run(t, number, lib, got, n);
        compare(c, b, n, first, want, got);
    }
    for (int i = first; i < n; i++) free(want[i]);
    for (int i = 0; i < n; i++) free(b[i].data);
}

/* All cases of a table as one unit. */
static void run_cases(const Case *c, int n) {
    StrBuf sb = {0};
    CudaLib *lib = calloc((size_t)n, sizeof *lib);
    print_cuda_head(&sb);
    for (int i = 0; i < n; i++) {
        LoweredStep s = step_of(&c[i]);
        print_cuda_lib(&s, i, &sb, &lib[i]);
    }
    SimTwin *t = twin_of(sb.data);
    for (int i = 0; i < n; i++) run_case(t, i, &c[i], &lib[i]);
    sim()->twin_close(t);
    free(lib);
    sb_free(&sb);
}

#define COUNT(a) ((int)(sizeof(a) / sizeof *(a)))
#define F32      AMPC_F32
#define BF16     AMPC_BF16
#define F16      AMPC_F16
#define F64      AMPC_F64

/* ---- matrix products ----------------------------------------------------- */

#define GEMM(name, m_, n_, k_, ta, tb, a, b, c)                               \
    {name, PLAN_LIB_GEMM,                                                     \
     {.gemm = {.m = m_, .n = n_, .k = k_, .a_rs = ta ? 1 : k_,                \
               .a_cs = ta ? m_ : 1, .b_rs = tb ? 1 : n_,                      \
               .b_cs = tb ? k_ : 1, .a_dtype = a, .b_dtype = b,               \
               .c_dtype = c}}}

static const Case gemm_cases[] = {
    GEMM("f32", 70, 67, 33, 0, 0, F32, F32, F32),
    GEMM("f32 transposed", 5, 130, 40, 1, 1, F32, F32, BF16),
    GEMM("bf16", 65, 70, 37, 0, 0, BF16, BF16, BF16),
    GEMM("bf16 to f32", 20, 150, 64, 1, 0, BF16, BF16, F32),
    GEMM("f16", 33, 129, 70, 0, 1, F16, F16, F16),
    GEMM("f16 transposed", 90, 1, 31, 1, 1, F16, F16, F32),
    GEMM("mixed", 17, 19, 23, 0, 0, BF16, F32, F32),
    GEMM("mixed 16", 40, 66, 18, 0, 1, F16, BF16, F16),
    GEMM("f64", 45, 67, 21, 0, 1, F64, F64, F64),
    GEMM("k is zero", 34, 3, 0, 0, 0, F32, F32, F32),
    GEMM("k is zero, bf16", 34, 3, 0, 0, 0, BF16, BF16, BF16),
    GEMM("nothing", 0, 3, 5, 0, 0, F32, F32, F32),
    {"batches", PLAN_LIB_GEMM,
     {.gemm = {.m = 9, .n = 11, .k = 5, .nbatch_dim = 3,
               .batch_dim = {2, 3, 4}, .a_bs = {540, 180, 45},
               .b_bs = {220, 0, 55}, .a_rs = 5, .a_cs = 1, .b_rs = 11,
               .b_cs = 1, .a_dtype = F32, .b_dtype = F32, .c_dtype = F32}}},
    {"batches bf16", PLAN_LIB_GEMM,
     {.gemm = {.m = 9, .n = 11, .k = 50, .nbatch_dim = 2, .batch_dim = {2, 3},
               .a_bs = {0, 450}, .b_bs = {550, 0}, .a_rs = 50, .a_cs = 1,
               .b_rs = 1, .b_cs = 50, .a_dtype = BF16, .b_dtype = BF16,
               .c_dtype = BF16}}},
};

TEST_CASE(cuda_kernels, gemm) { run_cases(gemm_cases, COUNT(gemm_cases)); }

/* The tiles that only large products take. */
static const Case large_cases[] = {
    GEMM("large f32", 1500, 1470, 3, 0, 0, F32, F32, F32),
    GEMM("large bf16", 1500, 1470, 35, 1, 0, BF16, BF16, F32),
};

TEST_CASE(cuda_kernels, large_tiles) {
    run_cases(large_cases, COUNT(large_cases));
}

/* ---- convolution --------------------------------------------------------- */

typedef struct Geometry {
    const char *name;
    CpuConv c;
} Geometry;

static const Geometry geometries[] = {
    {"plain", {.n = 2, .c = 5, .k = 7, .group = 1, .in = {1, 8, 7},
               .out = {1, 8, 7}, .kernel = {1, 3, 3}, .stride = {1, 1, 1},
               .dilation = {1, 1, 1}, .pad = {0, 1, 1}}},
    {"strided", {.n = 2, .c = 12, .k = 10, .group = 2, .in = {1, 9, 8},
                 .out = {1, 4, 7}, .kernel = {1, 3, 2}, .stride = {1, 2, 1},
                 .dilation = {1, 1, 2}, .pad = {0, 0, 1}}},
    {"depthwise", {.n = 2, .c = 4, .k = 8, .group = 4, .in = {1, 7, 6},
                   .out = {1, 4, 3}, .kernel = {1, 3, 3}, .stride = {1, 2, 2},
                   .dilation = {1, 1, 1}, .pad = {0, 1, 1}}},
    {"one dimension", {.n = 3, .c = 6, .k = 5, .group = 1, .in = {1, 1, 11},
                       .out = {1, 1, 11}, .kernel = {1, 1, 4},
                       .stride = {1, 1, 1}, .dilation = {1, 1, 1},
                       .pad = {0, 0, 2}}},
    {"volume", {.n = 1, .c = 5, .k = 6, .group = 1, .in = {4, 5, 4},
                .out = {3, 5, 2}, .kernel = {2, 3, 2}, .stride = {1, 1, 2},
                .dilation = {1, 1, 1}, .pad = {0, 1, 0}}},
    {"point", {.n = 2, .c = 40, .k = 36, .group = 1, .in = {1, 5, 5},
               .out = {1, 5, 5}, .kernel = {1, 1, 1}, .stride = {1, 1, 1},
               .dilation = {1, 1, 1}}},
    {"stride past the kernel",
     {.n = 1, .c = 5, .k = 5, .group = 1, .in = {1, 11, 10}, .out = {1, 4, 4},
      .kernel = {1, 2, 1}, .stride = {1, 3, 3}, .dilation = {1, 1, 1},
      .pad = {0, 1, 0}}},
    {"stride and dilation",
     {.n = 1, .c = 6, .k = 5, .group = 1, .in = {1, 14, 13}, .out = {1, 4, 3},
      .kernel = {1, 3, 2}, .stride = {1, 4, 6}, .dilation = {1, 2, 4},
      .pad = {0, 2, 3}}},
    {"unread end", {.n = 1, .c = 5, .k = 5, .group = 1, .in = {1, 9, 9},
                    .out = {1, 2, 2}, .kernel = {1, 2, 2}, .stride = {1, 4, 4},
                    .dilation = {1, 1, 1}}},
};

static void conv_run(const Geometry *g, int n, PlanLib lib) {
    static const int64_t types[][3] = {
        {F32, F32, F32}, {BF16, BF16, BF16}, {F16, F16, F16}, {F32, BF16, F32},
        {BF16, BF16, F32}, {F16, F32, BF16}};
    Case *c = calloc((size_t)n * 3, sizeof *c);
    int count = 0;
    for (int i = 0; i < n; i++)
        for (int j = 0; j < COUNT(types); j++) {
            if (j % 3 != i % 3 && j > 1) continue;
            Case *to = &c[count++];
            to->name = g[i].name;
            to->lib = lib;
            to->p.conv = g[i].c;
            to->p.conv.x_dtype = types[j][0];
            to->p.conv.w_dtype = types[j][1];
            to->p.conv.y_dtype = types[j][2];
            if (count == n * 3) break;
        }
    run_cases(c, count);
    free(c);
}

TEST_CASE(cuda_kernels, conv_fwd) {
    conv_run(geometries, COUNT(geometries), PLAN_LIB_CONV_FWD);
}

TEST_CASE(cuda_kernels, conv_dgrad) {
    conv_run(geometries, COUNT(geometries), PLAN_LIB_CONV_DGRAD);
}

TEST_CASE(cuda_kernels, conv_wgrad) {
    conv_run(geometries, COUNT(geometries), PLAN_LIB_CONV_WGRAD);
}

/* A sum over positions that is cut in slices. */
TEST_CASE(cuda_kernels, conv_wgrad_slices) {
    static const Geometry g = {
        "slices", {.n = 7, .c = 5, .k = 5, .group = 1, .in = {1, 17, 16},
                   .out = {1, 17, 16}, .kernel = {1, 3, 3}, .stride = {1, 1, 1},
                   .dilation = {1, 1, 1}, .pad = {0, 1, 1}}};
    conv_run(&g, 1, PLAN_LIB_CONV_WGRAD);
}

/* ---- pooling ------------------------------------------------------------- */

static const CpuPool pools[] = {
    {.planes = 6, .in = {1, 8, 7}, .out = {1, 4, 3}, .kernel = {1, 2, 2},
     .stride = {1, 2, 2}, .dilation = {1, 1, 1}, .dtype = F32},
    {.planes = 5, .in = {1, 7, 7}, .out = {1, 4, 3}, .kernel = {1, 3, 2},
     .stride = {1, 2, 2}, .dilation = {1, 1, 2}, .pad = {0, 1, 1},
     .pad_end = {0, 1, 0}, .dtype = BF16},
    {.planes = 5, .in = {1, 1, 9}, .out = {1, 1, 5}, .kernel = {1, 1, 4},
     .stride = {1, 1, 2}, .dilation = {1, 1, 1}, .pad = {0, 0, 2},
     .pad_end = {0, 0, 1}, .count_include_pad = 1, .dtype = F16},
    {.planes = 3, .in = {3, 4, 5}, .out = {2, 3, 3}, .kernel = {2, 3, 3},
     .stride = {2, 1, 2}, .dilation = {1, 1, 1}, .pad = {1, 0, 1},
     .pad_end = {0, 1, 1}, .dtype = F64},
    {.planes = 9, .in = {1, 6, 6}, .out = {1, 1, 1}, .kernel = {1, 6, 6},
     .stride = {1, 1, 1}, .dilation = {1, 1, 1}, .dtype = BF16},
    {.planes = 2, .in = {1, 2, 3}, .out = {1, 6, 7}, .kernel = {1, 1, 1},
     .stride = {1, 1, 1}, .dilation = {1, 1, 1}, .pad = {0, 2, 2},
     .pad_end = {0, 2, 2}, .dtype = F32}, /* empty windows */
};

TEST_CASE(cuda_kernels, pooling) {
    Case c[4 * COUNT(pools)];
    for (int i = 0; i < COUNT(c); i++) {
        c[i].name = "pool";
        c[i].lib = (PlanLib)(PLAN_LIB_MAXPOOL + i % 4);
        c[i].p.pool = pools[i / 4];
    }
    run_cases(c, COUNT(c));
}

TEST_CASE(cuda_kernels, maxpool_without_indices) {
    Case c = {.name = "maxpool", .lib = PLAN_LIB_MAXPOOL};
    c.p.pool = pools[0];
    Buf b[MAX_BUFS];
    CudaLib lib;
    StrBuf sb = {0};
    LoweredStep s = step_of(&c);
    int n = case_bufs(&c, b);
    fill(&c, b, n, 1);
    print_cuda_head(&sb);
    print_cuda_lib(&s, 0, &sb, &lib);
    SimTwin *t = twin_of(sb.data);
    void *want = blank(&b[1]);
    void *data[] = {b[0].data, want, NULL};
    cpu_run(&c, data);
    data[1] = b[1].data;
    gpu_run(t, 0, &lib, data, n);
    same(&c, &b[1], want, b[1].data);
    sim()->twin_close(t);
    free(want);
    for (int i = 0; i < n; i++) free(b[i].data);
    sb_free(&sb);
}

/* ---- scatter-add, argmax ------------------------------------------------- */

#define SCATTER(name, ...)                                                    \
    {name, PLAN_LIB_SCATTER_ADD, {.scatter = {__VA_ARGS__}}}
#define ARGMAX(name, ...) {name, PLAN_LIB_ARGMAX, {.argmax = {__VA_ARGS__}}}

/* Exact: the terms of a sum come in the CPU's order. */
static const Case scatter_cases[] = {
    SCATTER("f32", 1, 50, 200, 30, F32, AMPC_I64, F32),
    SCATTER("more rows than blocks", 1, 700, 900, 3, BF16, AMPC_I32, F32),
    SCATTER("ranges of many rows", 1, 70000, 300, 1, F32, AMPC_I32, F32),
    SCATTER("outer", 3, 17, 90, 300, F16, AMPC_I64, F16),
    SCATTER("few rows", 2, 2, 1000, 5, F32, AMPC_U8, BF16),
    SCATTER("i8", 1, 100, 90, 7, F32, AMPC_I8, F32),
    SCATTER("one index", 1, 6, 1, 5, F32, AMPC_I64, F32),
    SCATTER("no index", 1, 6, 0, 5, F32, AMPC_I64, F32),
    SCATTER("f64", 1, 9, 60, 5, F64, AMPC_I32, F64),
    SCATTER("long", 1, 300, 5000, 2, F32, AMPC_I32, F32),
};

TEST_CASE(cuda_kernels, scatter_add) {
    run_cases(scatter_cases, COUNT(scatter_cases));
}

static const Case argmax_cases[] = {
    ARGMAX("f32", 30, 40, 1, F32),   ARGMAX("bf16", 5, 100, 1, BF16),
    ARGMAX("f16", 7, 33, 1, F16),    ARGMAX("f64", 9, 64, 1, F64),
    ARGMAX("short", 300, 10, 1, F32), ARGMAX("inner", 5, 40, 3, BF16),
    ARGMAX("one", 3, 1, 1, F16),     ARGMAX("inner f64", 2, 7, 300, F64),
};

TEST_CASE(cuda_kernels, argmax) {
    run_cases(argmax_cases, COUNT(argmax_cases));
}
