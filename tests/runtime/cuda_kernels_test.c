/* SPDX-License-Identifier: Apache-2.0 */
/* cuda_kernels_test.c: the hand-written CUDA kernels on the simulated GPU,
   compared with the CPU's routines, over the tables of cuda_cases.c. */
#define _POSIX_C_SOURCE 200809L
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/program/dtype.h"
#include "tests/runtime/cuda_kernels/cuda_kernels.h"
#include "tests/support/cpu_levels.h"
#include "tests/support/cuda_cases.h"
#include "tests/support/factor.h"
#include "tests/support/simulate.h"

enum { SEEDS = 2 };

/* ---- values -------------------------------------------------------------- */

static uint64_t rng = 1;

static uint32_t rnd(void) {
    rng = rng * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (uint32_t)(rng >> 33);
}

int64_t rnd_in(int64_t lo, int64_t hi) {
    return lo + (int64_t)(rnd() % (uint32_t)(hi - lo + 1));
}

double kernels_get(const void *p, int64_t dtype, int64_t i) {
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

void kernels_put(void *p, int64_t dtype, int64_t i, double x) {
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

void *bytes_of(size_t n) {
    void *p = NULL;
    REQUIRE(!posix_memalign(&p, 256, n + (n == 0)));
    memset(p, 0xff, n);
    return p;
}

void *kernels_blank(const CudaBuf *b) {
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
    x.data = kernels_blank(&x);
    y.data = kernels_blank(&y);
    for (int64_t i = 0; i < x.count; i++)
        kernels_put(x.data, x.dtype, i, (double)rnd_in(-5, 5));
    ampc_v2_level.maxpool(NULL, p, x.data, y.data, idx);
    free(x.data);
    free(y.data);
}

void cpu_run(const CudaCase *c, void *const *b) {
    size_t need = cpu_lib_scratch(c->lib, &c->p, 1);
    CpuLibCall call = {.par = &c->p, .buf = b};
    call.scratch = aligned_alloc(64, (need + 127) / 64 * 64);
    cpu_lib_run(&ampc_v2_level, c->lib, &call);
    free(call.scratch);
}

/* lse and delta that are consistent with q, k, v and dy. */
static void fill_sums(const CudaCase *c, const CudaBuf *b) {
    const LibAttend *p = &c->p.attend;
    CudaCase forward = {.lib = PLAN_LIB_ATTEND, .p = c->p};
    void *y = kernels_blank(&b[3]);
    void *data[] = {b[0].data, b[1].data, b[2].data, b[6].data,
                    b[7].data, y,         b[4].data};
    cpu_run(&forward, data);
    for (int64_t i = 0; i < b[5].count; i++) {
        double sum = 0;
        for (int64_t k = i * p->e; k < (i + 1) * p->e; k++)
            sum += kernels_get(y, p->y_dtype, k) *
                   kernels_get(b[3].data, p->y_dtype, k);
        kernels_put(b[5].data, b[5].dtype, i, sum);
    }
    free(y);
}

void kernels_fill(const CudaCase *c, CudaBuf *b, int n, int nin) {
    for (int i = 0; i < n; i++) {
        b[i].data = kernels_blank(&b[i]);
        for (int64_t j = 0; i < nin && j < b[i].count; j++)
            kernels_put(b[i].data, b[i].dtype, j, fresh(c, &b[i], i));
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

void gpu_run(SimTwin *t, int number, const CudaLib *lib, void *const *b,
             int n) {
    char name[32];
    void *scratch = bytes_of(lib->scratch);
    snprintf(name, sizeof name, "l%d", number);
    gpu_launch(t, name, &lib->first, b, n, scratch);
    snprintf(name, sizeof name, "l%d_2", number);
    gpu_launch(t, name, &lib->second, b, n, scratch);
    free(scratch);
}

SimTwin *twin_of(const char *text) {
    char path[600], err[300];
    char *dir = sim_build_text(text);
    snprintf(path, sizeof path, "%s/unit0.so", dir);
    free(dir);
    SimTwin *t = sim()->twin_open(path, err, sizeof err);
    if (!t) FAIL("%s", err);
    return t;
}

/* ---- comparison ---------------------------------------------------------- */

void kernels_same(const CudaCase *c, const CudaBuf *b, const void *want,
                  const void *got) {
    for (int64_t i = 0; i < b->count; i++) {
        double x = kernels_get(want, b->dtype, i),
               y = kernels_get(got, b->dtype, i);
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
        double x = kernels_get(want, b->dtype, i),
               y = kernels_get(got, b->dtype, i);
        double tol =
            2 * (terms + 2) * u * kernels_get(size->data, size->dtype, i) +
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
        most = fmax(most, fabs(kernels_get(want, b->dtype, i)));
    if (part < 0x1p-18) part = 0x1p-18;
    for (int64_t i = 0; i < b->count; i++) {
        double x = kernels_get(want, b->dtype, i),
               y = kernels_get(got, b->dtype, i);
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
    case PLAN_LIB_CONV_FWD:
    case PLAN_LIB_CONV_SUMS: return (double)(p->c / p->group) * taps;
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
    if (c->lib == PLAN_LIB_CONV_SUMS) m.lib = PLAN_LIB_CONV_FWD;
    memcpy((int64_t *)(void *)&m.p + o[out].dtype_at, &r.dtype, 8);
    r.data = kernels_blank(&r);
    for (int i = 0; i < out; i++) {
        in[i] = b[i];
        data[i] = in[i].data = kernels_blank(&b[i]);
        for (int64_t j = 0; j < b[i].count; j++) {
            double x = kernels_get(b[i].data, b[i].dtype, j);
            bool index = b[i].dtype == AMPC_I32;
            kernels_put(in[i].data, b[i].dtype, j, index ? x : fabs(x));
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
    float *x = kernels_blank(b);
    const float *from = b->data;
    REQUIRE(b->dtype == AMPC_F32);
    for (int64_t i = 0; i < b->count; i++)
        x[i] = (float)factor_of(factors, (double)from[i]);
    return x;
}

/* ---- one case ------------------------------------------------------------ */

static bool is_exact(const CudaCase *c) {
    return c->lib == PLAN_LIB_MAXPOOL || c->lib == PLAN_LIB_SCATTER_ADD ||
           c->lib == PLAN_LIB_ARGMAX || c->lib == PLAN_LIB_ARGSORT ||
           c->lib == PLAN_LIB_SUPPRESS;
}

/* The sums of each channel's strips, of the results y. */
static void check_strips(const CudaCase *c, const void *y, const float *sums,
                         const float *squares) {
    const LibConvSums *p = &c->p.conv_sums;
    int64_t plane = cuda_volume(p->out), columns = p->n * plane, i = 0;
    for (int64_t from = 0; from < columns; from += p->strip)
        for (int64_t k = 0; k < p->k; k++, i++) {
            int64_t to = from + p->strip < columns ? from + p->strip : columns;
            double sum = 0, size = 0, square = 0, mean;
            for (int pass = 0; pass < 2; pass++) {
                mean = sum / (double)(to - from);
                for (int64_t n = from; n < to; n++) {
                    double v =
                        kernels_get(y, p->y_dtype,
                                    (n / plane * p->k + k) * plane + n % plane);
                    if (pass)
                        square += (v - mean) * (v - mean);
                    else
                        sum += v, size += fabs(v);
                }
            }
            double off = fabs(sum - (double)sums[i]);
            double off2 = fabs(square - (double)squares[i]);
            if (!CHECK_MSG(off <= 0x1p-18 * size && off2 <= 0x1p-18 * square,
                           "%s: channel %lld, strip from %lld: %g and %g, not "
                           "%g and %g",
                           c->name, (long long)k, (long long)from,
                           (double)sums[i], (double)squares[i], sum, square))
                return;
        }
}

static void compare(const CudaCase *c, const CudaBuf *b, int n, int first,
                    void *const *want, void *const *got) {
    if (is_exact(c)) {
        for (int i = first; i < n; i++) kernels_same(c, &b[i], want[i], got[i]);
        return;
    }
    if (attend_mask_at(c) >= 0) {
        for (int i = first; i < n; i++) close_in_all(c, &b[i], want[i], got[i]);
        return;
    }
    CudaBuf size = magnitudes(c, b, first);
    close_to(c, &b[first], want[first], got[first], &size, case_terms(c));
    free(size.data);
    if (c->lib == PLAN_LIB_CONV_SUMS) check_strips(c, got[2], got[3], got[4]);
}

/* factors: to which the kernel rounds its operands. */
static void run_case(SimTwin *t, int number, const CudaCase *c,
                     const CudaLib *lib, AmpcFactors factors) {
    CudaBuf b[CUDA_MAX_BUFS];
    void *want[CUDA_MAX_BUFS], *got[CUDA_MAX_BUFS];
    int n = cuda_case_bufs(c, b);
    int first = 0; /* result */
    while (!lib_writes(lib_info(c->lib), first)) first++;
    kernels_fill(c, b, n, first);
    for (int i = 0; i < n; i++) {
        want[i] = i >= first ? kernels_blank(&b[i])
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

int run_factors(const CudaCase *c, int n, AmpcFactors factors) {
    StrBuf sb = {0};
    CudaLib *lib = calloc((size_t)n, sizeof *lib);
    AmpcFactors *rounds = calloc((size_t)n, sizeof *rounds);
    int count = 0;
    print_cuda_head(&sb);
    for (int i = 0; i < n; i++) {
        size_t from = sb.len;
        LoweredStep s = cuda_case_step(&c[i]);
        s.factors = factors;
        print_cuda_lib(&s, i, false, &sb, &lib[i]);
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

void run_cases(const CudaCase *c, int n) {
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
