/* SPDX-License-Identifier: Apache-2.0 */
/* cuda_kernels_test.c: the hand-written CUDA kernels on the simulated GPU,
   compared with the CPU's routines, over the tables of cuda_cases.c. */
#define _POSIX_C_SOURCE 200809L
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/program/dtype.h"
#include "tests/support/cpu_levels.h"
#include "tests/support/cuda_cases.h"
#include "tests/support/factor.h"
#include "tests/support/simulate.h"

#define COUNT(a) ((int)(sizeof(a) / sizeof *(a)))

enum { SEEDS = 2 };

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

/* Memory of exactly n bytes, filled with NaN, aligned as on a GPU. */
static void *bytes_of(size_t n) {
    void *p = NULL;
    REQUIRE(!posix_memalign(&p, 256, n + (n == 0)));
    memset(p, 0xff, n);
    return p;
}

static void *blank(const CudaBuf *b) {
    if (b->count < 0) return NULL;
    return bytes_of((size_t)(b->count * dtype_info[b->dtype].bytes));
}

static double unit(int64_t dtype) {
    return dtype == AMPC_F64    ? 0x1p-53
           : dtype == AMPC_F32  ? 0x1p-24
           : dtype == AMPC_BF16 ? 0x1p-8
           : dtype == AMPC_F16  ? 0x1p-11
                                : 0;
}

/* The index of the mask among the operands of attention; -1: none. */
static int attend_mask_at(const CudaCase *c) {
    return c->lib == PLAN_LIB_ATTEND        ? 3
           : c->lib == PLAN_LIB_ATTEND_GRAD ? 6
                                            : -1;
}

static double fresh(const CudaCase *c, const CudaBuf *b, int which) {
    int64_t rows = c->p.scatter.rows;
    if (c->lib == PLAN_LIB_SCATTER_ADD && which == 1) {
        if (dtype_info[b->dtype].kind == DK_U) return (double)rnd_in(0, rows);
        return (double)rnd_in(-rows - 1, rows); /* out of range at both ends */
    }
    if (c->lib == PLAN_LIB_ARGMAX || c->lib == PLAN_LIB_ARGSORT ||
        c->lib == PLAN_LIB_MAXPOOL || !dtype_is_float((DType)b->dtype)) {
        if (dtype_is_float((DType)b->dtype) && rnd() % 97 == 0)
            return rnd() % 2 ? (double)NAN : -(double)INFINITY;
        return dtype_info[b->dtype].kind == DK_U ? (double)rnd_in(0, 7)
               : b->dtype == AMPC_BOOL           ? (double)rnd_in(0, 1)
                                       : (double)rnd_in(-5, 5); /* many ties */
    }
    if (which == attend_mask_at(c) && rnd() % 7 == 0)
        return rnd() % 2 ? -1e30 : -(double)INFINITY;
    return (double)rnd_in(-1000, 1000) / 500.0;
}

/* Window numbers as a forward pass gives them. */
static void fill_indices(const LibPool *p, void *idx) {
    CudaBuf x = {p->dtype, p->planes * cuda_volume(p->in), NULL};
    CudaBuf y = {p->dtype, p->planes * cuda_volume(p->out), NULL};
    x.data = blank(&x);
    y.data = blank(&y);
    for (int64_t i = 0; i < x.count; i++)
        put(x.data, x.dtype, i, (double)rnd_in(-5, 5));
    ampc_cpu_V2.maxpool(NULL, p, x.data, y.data, idx);
    free(x.data);
    free(y.data);
}

static void cpu_run(const CudaCase *c, void *const *b) {
    size_t need = cpu_lib_scratch(c->lib, &c->p, 1);
    CpuLibCall call = {.par = &c->p, .buf = b};
    call.scratch = aligned_alloc(64, (need + 127) / 64 * 64);
    cpu_lib_run(&ampc_cpu_V2, c->lib, &call);
    free(call.scratch);
}

/* lse and delta that are consistent with q, k, v and dy. */
static void fill_sums(const CudaCase *c, const CudaBuf *b) {
    const LibAttend *p = &c->p.attend;
    CudaCase forward = {.lib = PLAN_LIB_ATTEND, .p = c->p};
    void *y = blank(&b[3]);
    void *data[] = {b[0].data, b[1].data, b[2].data, b[6].data,
                    b[7].data, y,         b[4].data};
    cpu_run(&forward, data);
    for (int64_t i = 0; i < b[5].count; i++) {
        double sum = 0;
        for (int64_t k = i * p->e; k < (i + 1) * p->e; k++)
            sum += get(y, p->y_dtype, k) * get(b[3].data, p->y_dtype, k);
        put(b[5].data, b[5].dtype, i, sum);
    }
    free(y);
}

static void fill(const CudaCase *c, CudaBuf *b, int n, int nin) {
    for (int i = 0; i < n; i++) {
        b[i].data = blank(&b[i]);
        for (int64_t j = 0; i < nin && j < b[i].count; j++)
            put(b[i].data, b[i].dtype, j, fresh(c, &b[i], i));
    }
    if (c->lib == PLAN_LIB_MAXPOOL_GRAD) fill_indices(&c->p.pool, b[1].data);
    if (c->lib == PLAN_LIB_ATTEND_GRAD) fill_sums(c, b);
}

/* ---- the kernels' result ------------------------------------------------- */

static void gpu_launch(SimTwin *t, const char *name, const CudaShape *l,
                       void *const *b, int n, void *scratch) {
    void *params[CUDA_MAX_BUFS + 1];
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

static void same(const CudaCase *c, const CudaBuf *b, const void *want,
                 const void *got) {
    for (int64_t i = 0; i < b->count; i++) {
        double x = get(want, b->dtype, i), y = get(got, b->dtype, i);
        if (!CHECK_MSG(x == y || (isnan(x) && isnan(y)),
                       "%s: element %lld is %g, not %g", c->name, (long long)i,
                       y, x))
            return;
    }
}

/* Sums in another order may differ by as much as the sum of the terms'
   magnitudes allows, plus one rounding of the result. */
static void close_to(const CudaCase *c, const CudaBuf *b, const void *want,
                     const void *got, const CudaBuf *size, double terms) {
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

/* On tensor cores the factors of the second product have 16 bits: two units
   of the largest result; otherwise sums in another order. */
static void close_in_all(const CudaCase *c, const CudaBuf *b, const void *want,
                         const void *got) {
    double most = 0, part = 2 * unit(c->p.attend.q_dtype);
    for (int64_t i = 0; i < b->count; i++)
        most = fmax(most, fabs(get(want, b->dtype, i)));
    if (part < 0x1p-18) part = 0x1p-18;
    for (int64_t i = 0; i < b->count; i++) {
        double x = get(want, b->dtype, i), y = get(got, b->dtype, i);
        if (!CHECK_MSG(fabs(x - y) <= part * most || x == y ||
                           (isnan(x) && isnan(y)),
                       "%s: element %lld is %g, not %g (of %g)", c->name,
                       (long long)i, y, x, most))
            return;
    }
}

/* Number of terms of the longest sum. */
static double case_terms(const CudaCase *c) {
    const LibConv *p = &c->p.conv;
    double taps = (double)cuda_volume(p->kernel);
    switch (c->lib) {
    case PLAN_LIB_GEMM: return (double)c->p.gemm.k;
    case PLAN_LIB_GEMM_QUANTIZED: return (double)c->p.gemm_quantized.k;
    case PLAN_LIB_CONV_FWD: return (double)(p->c / p->group) * taps;
    case PLAN_LIB_CONV_DGRAD: return (double)(p->k / p->group) * taps;
    case PLAN_LIB_CONV_WGRAD: return (double)(p->n * cuda_volume(p->out));
    default: return (double)cuda_volume(c->p.pool.kernel);
    }
}

/* The spacing of the operands' magnitudes, in f32 or f64 if the result may
   have another dtype than the operands. */
static CudaBuf magnitudes(const CudaCase *c, const CudaBuf *b, int out) {
    CudaCase m = *c;
    CudaBuf r = b[out], in[CUDA_MAX_BUFS];
    void *data[CUDA_MAX_BUFS] = {0};
    const LibOperand *o = lib_info(c->lib)->operands;
    if (o[out].dtype_at != o[0].dtype_at && r.dtype != AMPC_F64)
        r.dtype = AMPC_F32;
    memcpy((int64_t *)(void *)&m.p + o[out].dtype_at, &r.dtype, 8);
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

/* ---- factors ------------------------------------------------------------- */

/* A copy of an operand as the kernel multiplies it. */
static void *rounded(const CudaBuf *b, AmpcFactors factors) {
    float *x = blank(b);
    const float *from = b->data;
    REQUIRE(b->dtype == AMPC_F32);
    for (int64_t i = 0; i < b->count; i++)
        x[i] = (float)factor_of(factors, (double)from[i]);
    return x;
}

/* ---- one case ------------------------------------------------------------ */

static bool is_exact(const CudaCase *c) {
    return c->lib == PLAN_LIB_MAXPOOL || c->lib == PLAN_LIB_SCATTER_ADD ||
           c->lib == PLAN_LIB_ARGMAX || c->lib == PLAN_LIB_ARGSORT;
}

static void compare(const CudaCase *c, const CudaBuf *b, int n, int first,
                    void *const *want, void *const *got) {
    if (is_exact(c)) {
        for (int i = first; i < n; i++) same(c, &b[i], want[i], got[i]);
        return;
    }
    if (attend_mask_at(c) >= 0) {
        for (int i = first; i < n; i++) close_in_all(c, &b[i], want[i], got[i]);
        return;
    }
    CudaBuf size = magnitudes(c, b, first);
    close_to(c, &b[first], want[first], got[first], &size, case_terms(c));
    free(size.data);
}

/* factors: to which the kernel rounds its operands. */
static void run_case(SimTwin *t, int number, const CudaCase *c,
                     const CudaLib *lib, AmpcFactors factors) {
    CudaBuf b[CUDA_MAX_BUFS];
    void *want[CUDA_MAX_BUFS], *got[CUDA_MAX_BUFS];
    int n = cuda_case_bufs(c, b);
    int first = 0; /* result */
    while (!lib_writes(lib_info(c->lib), first)) first++;
    fill(c, b, n, first);
    for (int i = 0; i < n; i++) {
        want[i] = i >= first ? blank(&b[i])
                  : factors  ? rounded(&b[i], factors)
                             : b[i].data;
        got[i] = b[i].data;
    }
    cpu_run(c, want);
    for (unsigned seed = 0; seed < SEEDS; seed++) {
        for (int i = first; i < n; i++)
            if (got[i])
                memset(got[i], 0xff,
                       (size_t)(b[i].count * dtype_info[b[i].dtype].bytes));
        sim()->seed(seed);
        gpu_run(t, number, lib, got, n);
        compare(c, b, n, first, want, got);
    }
    for (int i = factors ? 0 : first; i < n; i++) free(want[i]);
    for (int i = 0; i < n; i++) free(b[i].data);
}

/* All cases of a table as one unit. Kernels without tensor cores do not
   round; returns the number of the others. */
static int run_factors(const CudaCase *c, int n, AmpcFactors factors) {
    StrBuf sb = {0};
    CudaLib *lib = calloc((size_t)n, sizeof *lib);
    AmpcFactors *rounds = calloc((size_t)n, sizeof *rounds);
    int count = 0;
    print_cuda_head(&sb);
    for (int i = 0; i < n; i++) {
        size_t from = sb.len;
        LoweredStep s = cuda_case_step(&c[i]);
        s.factors = factors;
        print_cuda_lib(&s, i, &sb, &lib[i]);
        if (strstr(sb.data + from, "MmaTile")) rounds[i] = factors;
        count += rounds[i] != AMPC_FACTORS_F32;
    }
    SimTwin *t = twin_of(sb.data);
    for (int i = 0; i < n; i++) run_case(t, i, &c[i], &lib[i], rounds[i]);
    sim()->twin_close(t);
    free(rounds);
    free(lib);
    sb_free(&sb);
    return count;
}

static void run_cases(const CudaCase *c, int n) {
    run_factors(c, n, AMPC_FACTORS_F32);
}

/* Routines that choose tiles or threads by shape need special shapes; the
   others are tested by tests/ops. */
TEST_CASE(cuda_kernels, every_routine_has_cases) {
    for (int lib = 0; lib < PLAN_NLIB; lib++)
        if (cuda_lib_route((PlanLib)lib) == CUDA_ROUTE_kernel ||
            cuda_lib_route((PlanLib)lib) == CUDA_ROUTE_product)
            CHECK_MSG(cuda_has_cases((PlanLib)lib),
                      "no case of %s in cuda_cases.c", lib_info(lib)->name);
}

/* ---- matrix products ----------------------------------------------------- */

TEST_CASE(cuda_kernels, gemm) {
    run_cases(cuda_gemm_cases.data, cuda_gemm_cases.len);
}

TEST_CASE(cuda_kernels, large_tiles) {
    run_cases(cuda_large_cases.data, cuda_large_cases.len);
}

/* ---- products of rounded fp32 operands ----------------------------------- */

static bool reads_fp32(const CudaCase *c) {
    return c->lib == PLAN_LIB_GEMM && c->p.gemm.a_dtype == AMPC_F32 &&
           c->p.gemm.b_dtype == AMPC_F32;
}

static void gemm_factors(CudaCases all) {
    VEC(CudaCase) c = {0};
    Arena *a = arena_new();
    for (int i = 0; i < all.len; i++)
        if (reads_fp32(&all.data[i])) vec_push(a, &c, all.data[i]);
    for (int f = AMPC_FACTORS_TF32; f < AMPC_NFACTORS; f++)
        CHECK(run_factors(c.data, c.len, (AmpcFactors)f) > 0);
    arena_free(a);
}

TEST_CASE(cuda_kernels, gemm_factors) { gemm_factors(cuda_gemm_cases); }

TEST_CASE(cuda_kernels, conv_factors) {
    CudaCase *c = calloc(3 * (size_t)cuda_ngeometry, sizeof *c);
    for (int i = 0; i < 3 * cuda_ngeometry; i++) {
        const CudaGeometry *g = &cuda_geometries[i / 3];
        c[i].name = g->name;
        c[i].lib = cuda_conv_libs[i % 3];
        c[i].p.conv = g->c;
        c[i].p.conv.x_dtype = c[i].p.conv.w_dtype = c[i].p.conv.y_dtype =
            AMPC_F32;
    }
    for (int f = AMPC_FACTORS_TF32; f < AMPC_NFACTORS; f++)
        CHECK(run_factors(c, 3 * cuda_ngeometry, (AmpcFactors)f) > 0);
    free(c);
}

/* ---- convolution --------------------------------------------------------- */

/* Every geometry with four of the combinations of dtypes. */
static void conv_run(const CudaGeometry *g, int n, PlanLib lib) {
    CudaCase *c = calloc((size_t)n * (size_t)cuda_nconv_type, sizeof *c);
    int count = 0;
    for (int i = 0; i < n; i++)
        for (int j = 0; j < cuda_nconv_type; j++) {
            if (j > 1 && (i + j) % 2) continue;
            CudaCase *to = &c[count++];
            to->name = g[i].name;
            to->lib = lib;
            to->p.conv = g[i].c;
            to->p.conv.x_dtype = cuda_conv_types[j][0];
            to->p.conv.w_dtype = cuda_conv_types[j][1];
            to->p.conv.y_dtype = cuda_conv_types[j][2];
        }
    run_cases(c, count);
    free(c);
}

TEST_CASE(cuda_kernels, conv_fwd) {
    conv_run(cuda_geometries, cuda_ngeometry, PLAN_LIB_CONV_FWD);
}

TEST_CASE(cuda_kernels, conv_dgrad) {
    conv_run(cuda_geometries, cuda_ngeometry, PLAN_LIB_CONV_DGRAD);
}

TEST_CASE(cuda_kernels, conv_wgrad) {
    conv_run(cuda_geometries, cuda_ngeometry, PLAN_LIB_CONV_WGRAD);
}

/* A sum over positions that is divided into slices. */
TEST_CASE(cuda_kernels, conv_wgrad_slices) {
    static const CudaGeometry g[] = {{"slices",
                                      {.n = 7,
                                       .c = 5,
                                       .k = 5,
                                       .group = 1,
                                       .in = {1, 17, 16},
                                       .out = {1, 17, 16},
                                       .kernel = {1, 3, 3},
                                       .stride = {1, 1, 1},
                                       .dilation = {1, 1, 1},
                                       .pad = {0, 1, 1}}},
                                     {"slices of points",
                                      {.n = 7,
                                       .c = 5,
                                       .k = 5,
                                       .group = 1,
                                       .in = {1, 17, 16},
                                       .out = {1, 17, 16},
                                       .kernel = {1, 1, 1},
                                       .stride = {1, 1, 1},
                                       .dilation = {1, 1, 1}}}};
    conv_run(g, 2, PLAN_LIB_CONV_WGRAD);
}

/* ---- pooling ------------------------------------------------------------- */

TEST_CASE(cuda_kernels, pooling) {
    int n = 4 * cuda_npool;
    CudaCase *c = calloc((size_t)n, sizeof *c);
    for (int i = 0; i < n; i++) {
        c[i].name = "pool";
        c[i].lib = cuda_pool_libs[i % 4];
        c[i].p.pool = cuda_pools[i / 4];
    }
    run_cases(c, n);
    free(c);
}

/* lowest: every number is -infinity. */
static void maxpool_once(const LibPool *p, bool indices, bool lowest) {
    CudaCase c = {.name = "maxpool", .lib = PLAN_LIB_MAXPOOL};
    c.p.pool = *p;
    CudaBuf b[CUDA_MAX_BUFS];
    CudaLib lib;
    StrBuf sb = {0};
    LoweredStep s = cuda_case_step(&c);
    int n = cuda_case_bufs(&c, b);
    fill(&c, b, n, 1);
    for (int64_t i = 0; i < b[0].count && lowest; i++)
        put(b[0].data, b[0].dtype, i, -(double)INFINITY);
    print_cuda_head(&sb);
    print_cuda_lib(&s, 0, &sb, &lib);
    SimTwin *t = twin_of(sb.data);
    void *want = blank(&b[1]), *first = blank(&b[2]);
    void *data[] = {b[0].data, want, indices ? first : NULL};
    cpu_run(&c, data);
    data[1] = b[1].data;
    data[2] = indices ? b[2].data : NULL;
    gpu_run(t, 0, &lib, data, n);
    same(&c, &b[1], want, b[1].data);
    if (indices) same(&c, &b[2], first, b[2].data);
    sim()->twin_close(t);
    free(want);
    free(first);
    for (int i = 0; i < n; i++) free(b[i].data);
    sb_free(&sb);
}

TEST_CASE(cuda_kernels, maxpool_without_indices) {
    maxpool_once(&cuda_pools[0], false, false);
}

/* Among equal elements the first is chosen, and there is one even if all are
   -infinity. */
TEST_CASE(cuda_kernels, maxpool_of_the_lowest) {
    for (int i = 0; i < cuda_npool; i++)
        maxpool_once(&cuda_pools[i], true, true);
}

/* ---- scatter-add, argmax, argsort ---------------------------------------- */

/* Exact: the terms of a sum are added in the CPU's order. */
TEST_CASE(cuda_kernels, scatter_add) {
    run_cases(cuda_scatter_cases.data, cuda_scatter_cases.len);
}

TEST_CASE(cuda_kernels, argmax) {
    run_cases(cuda_argmax_cases.data, cuda_argmax_cases.len);
}

/* The CPU's routine accepts only floats. */
static void integer_case(SimTwin *t, int number, const CudaCase *c,
                         const CudaLib *lib) {
    const LibArgmax *a = &c->p.argmax;
    CudaBuf b[CUDA_MAX_BUFS];
    int n = cuda_case_bufs(c, b);
    fill(c, b, n, 1);
    void *data[] = {b[0].data, b[1].data};
    gpu_run(t, number, lib, data, n);
    for (int64_t i = 0; i < b[1].count; i++) {
        int64_t from = i / a->inner * a->axis * a->inner + i % a->inner;
        int64_t best = 0;
        for (int64_t k = 1; k < a->axis; k++)
            if (get(b[0].data, a->dtype, from + k * a->inner) >
                get(b[0].data, a->dtype, from + best * a->inner))
                best = k;
        CHECK_EQ_INT(((int64_t *)b[1].data)[i], best);
    }
    for (int i = 0; i < n; i++) free(b[i].data);
}

TEST_CASE(cuda_kernels, argmax_of_integers) {
    static const int64_t types[] = {AMPC_BOOL, AMPC_U8,  AMPC_I8,
                                    AMPC_I16,  AMPC_I32, AMPC_I64};
    CudaCase c[12];
    CudaLib lib[12];
    StrBuf sb = {0};
    print_cuda_head(&sb);
    for (int i = 0; i < 12; i++) {
        c[i] = (CudaCase){.name = "integers", .lib = PLAN_LIB_ARGMAX};
        c[i].p.argmax =
            (LibArgmax){9, 45, i % 2 ? 1 : 4, types[i / 2], AMPC_I64};
        LoweredStep s = cuda_case_step(&c[i]);
        print_cuda_lib(&s, i, &sb, &lib[i]);
    }
    SimTwin *t = twin_of(sb.data);
    for (int i = 0; i < 12; i++) integer_case(t, i, &c[i], &lib[i]);
    sim()->twin_close(t);
    sb_free(&sb);
}

TEST_CASE(cuda_kernels, argsort) {
    run_cases(cuda_argsort_cases.data, cuda_argsort_cases.len);
}

/* ---- attention ----------------------------------------------------------- */

TEST_CASE(cuda_kernels, attend) {
    run_cases(cuda_attend_cases.data, cuda_attend_cases.len);
}

/* ---- epilogues ----------------------------------------------------------- */

/* relu(product + bias) of a lowered group, compared with the same on the
   CPU's unfused product. */
typedef struct Fused {
    const char *text;
    int64_t rows, inner; /* element i has bias[i / inner % rows]            */
    int64_t x, w, y;     /* elements                                        */
} Fused;

static void fused_lower(const Fused *f, Arena *a, LoweredStep *s) {
    Diag d = {0};
    Module *m = NULL;
    Status st = parse_module(a, &d, "test.amp", f->text, strlen(f->text), &m);
    if (!CHECK_MSG(st == OK, "%s", d.text.data)) harness_leave();
    LoweredStep *steps;
    REQUIRE(lower_graph(m->graphs.data[0], kernel_set_new(a, TARGET_CUDA), &d,
                        &steps) == OK);
    *s = steps[0];
    REQUIRE(s->epilogue != NULL && s->epilogue->bufs.len == 2);
}

static SimTwin *fused_twin(const LoweredStep *s, CudaLib *lib) {
    StrBuf sb = {0};
    print_cuda_head(&sb);
    print_cuda_functor(s->epilogue, &sb);
    print_cuda_lib(s, 0, &sb, lib);
    SimTwin *t = twin_of(sb.data);
    sb_free(&sb);
    return t;
}

static float *floats(int64_t n) {
    float *p = bytes_of((size_t)n * sizeof *p);
    for (int64_t i = 0; i < n; i++) p[i] = (float)rnd_in(-8, 8);
    return p;
}

static void fused_run(SimTwin *t, const CudaLib *lib, const float *x,
                      const float *w, const float *bias, float *y) {
    void *none = NULL;
    void *params[] = {&x, &w, &none, &bias, &y};
    int rc = sim()->run(t, "l0", (unsigned)lib->first.blocks,
                        (unsigned)lib->first.threads, 0, params);
    CHECK_MSG(rc == 0, "%s", sim()->errors());
}

/* Small integers: sums are exact in any order. */
static void fused_case(const Fused *f) {
    Arena *a = arena_new();
    LoweredStep s;
    CudaLib lib;
    fused_lower(f, a, &s);
    SimTwin *t = fused_twin(&s, &lib);
    CudaCase c = {.name = "fused", .lib = s.lib};
    memcpy(&c.p, s.pars, (size_t)s.npar * sizeof *s.pars);
    float *x = floats(f->x), *w = floats(f->w), *bias = floats(f->rows);
    float *want = floats(f->y), *got = floats(f->y);
    cpu_run(&c, (void *[]){x, w, want});
    fused_run(t, &lib, x, w, bias, got);
    for (int64_t i = 0; i < f->y; i++) {
        float v = want[i] + bias[i / f->inner % f->rows];
        if (!CHECK_NEAR(got[i], v > 0 ? v : 0, 0)) break;
    }
    float *all[] = {x, w, bias, want, got};
    for (int i = 0; i < COUNT(all); i++) free(all[i]);
    sim()->twin_close(t);
    arena_free(a);
}

TEST_CASE(cuda_kernels, epilogues) {
    static const Fused cases[] = {
        {.text = "graph g(%x: f32[2,3,8,7], %w: f32[5,3,3,3], %b: f32[5,1,1]) "
                 "{ group anchor { %y = conv %x, %w {dilations=[1,1], group=1, "
                 "pads=[1,1,1,1], strides=[1,1]} %z = add %y, %b "
                 "%r = relu %z } return %r }",
         .rows = 5,
         .inner = 56,
         .x = 336,
         .w = 135,
         .y = 560},
        {.text = "graph g(%x: f32[2,4,6,6], %w: f32[4,1,3,3], %b: f32[4,1,1]) "
                 "{ group anchor { %y = conv %x, %w {dilations=[1,1], group=4, "
                 "pads=[1,1,1,1], strides=[1,1]} %z = add %y, %b "
                 "%r = relu %z } return %r }",
         .rows = 4,
         .inner = 36,
         .x = 288,
         .w = 36,
         .y = 288},
        {.text = "graph g(%x: f32[3,33,20], %w: f32[3,20,9], %b: f32[9]) "
                 "{ group anchor { %y = matmul %x, %w %z = add %y, %b "
                 "%r = relu %z } return %r }",
         .rows = 9,
         .inner = 1,
         .x = 1980,
         .w = 540,
         .y = 891}};
    for (int i = 0; i < COUNT(cases); i++) fused_case(&cases[i]);
}
