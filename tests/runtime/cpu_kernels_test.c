/* cpu_kernels_test.c: every CPU routine against a naive reference in double,
   over random shapes, strides and dtypes, at every ISA level this machine has;
   the same bits for 1, 2 and 5 threads; scratch stays within its bounds.     */
#define _POSIX_C_SOURCE 200809L
#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/cpu/block.h"
#include "runtime/cpu/kernels.h"
#include "runtime/cpu/kmath.h"
#include "runtime/half.h"
#include "tests/harness.h"

/* ---- random numbers, typed arrays ---------------------------------------- */

static uint64_t rng = 1;

static uint32_t rnd(void) {
    rng = rng * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (uint32_t)(rng >> 33);
}

static int64_t rnd_in(int64_t lo, int64_t hi) {
    return lo + (int64_t)(rnd() % (uint32_t)(hi - lo + 1));
}

static double rnd_value(void) { return (double)rnd_in(-1000, 1000) / 500.0; }

static size_t size_of(int64_t dtype) {
    if (dtype == AMPC_F64 || dtype == AMPC_I64) return 8;
    if (dtype == AMPC_I8) return 1;
    return dtype == AMPC_F16 || dtype == AMPC_BF16 ? 2 : 4;
}

static double get(const void *p, int64_t dtype, int64_t i) {
    switch (dtype) {
    case AMPC_F64: return ((const double *)p)[i];
    case AMPC_F32: return (double)((const float *)p)[i];
    case AMPC_I32: return ((const int32_t *)p)[i];
    case AMPC_I8: return ((const int8_t *)p)[i];
    case AMPC_BF16: return (double)bf16_to_f32(((const uint16_t *)p)[i]);
    default: return (double)f16_to_f32(((const uint16_t *)p)[i]);
    }
}

static void set(void *p, int64_t dtype, int64_t i, double x) {
    switch (dtype) {
    case AMPC_F64: ((double *)p)[i] = x; break;
    case AMPC_F32: ((float *)p)[i] = (float)x; break;
    case AMPC_I32: ((int32_t *)p)[i] = (int32_t)x; break;
    case AMPC_I8: ((int8_t *)p)[i] = (int8_t)x; break;
    case AMPC_BF16: ((uint16_t *)p)[i] = f32_to_bf16((float)x); break;
    default: ((uint16_t *)p)[i] = f32_to_f16((float)x); break;
    }
}

/* Exactly n elements, so that the sanitizers see a step outside. */
static void *array(int64_t dtype, int64_t n) {
    void *p = malloc((size_t)n * size_of(dtype) + (n == 0));
    REQUIRE(p != NULL);
    for (int64_t i = 0; i < n; i++) set(p, dtype, i, rnd_value());
    return p;
}

/* Rounding of a result of this dtype, relative. */
static double unit(int64_t dtype) {
    return dtype == AMPC_F64    ? 0x1p-53
           : dtype == AMPC_F32  ? 0x1p-24
           : dtype == AMPC_BF16 ? 0x1p-8
                                : 0x1p-11;
}

static int only_bf16;

static int64_t rnd_float(void) {
    static const int64_t types[] = {AMPC_BF16, AMPC_F32, AMPC_F16};
    return types[only_bf16 ? 0 : rnd() % 3];
}

/* Level 5 is v4 without vdpbf16ps, on machines that have it. */
static int top_level(void) {
    cpu_bf16_dot_force(1);
    return cpu_isa_level() + cpu_bf16_dot();
}

static const AmpcCpuLib *lib_of(int level) {
    cpu_bf16_dot_force(level != 5);
    if (level == 5) level = 4;
    return level == 4 ? &ampc_cpu_v4 : level == 3 ? &ampc_cpu_v3 : &ampc_cpu_v2;
}

/* Scratch of exactly that size, full of NaN. */
static void *scratch_of(size_t bytes) {
    void *p = aligned_alloc(64, (bytes + 127) / 64 * 64);
    REQUIRE(p != NULL);
    memset(p, 0xff, (bytes + 127) / 64 * 64);
    memset((char *)p + bytes, 0x5a, 16);
    return p;
}

static void scratch_check(void *p, size_t bytes) {
    for (int i = 0; i < 16; i++)
        if (!CHECK(((unsigned char *)p)[bytes + (size_t)i] == 0x5a)) break;
    free(p);
}

static const int thread_counts[] = {1, 2, 5};
static AmpcPool *pools[3];

static void pools_open(void) {
    for (int i = 0; i < 3; i++) {
        pools[i] = pool_create(thread_counts[i]);
        REQUIRE(pools[i] != NULL);
    }
}

static void pools_close(void) {
    for (int i = 0; i < 3; i++) pool_destroy(pools[i]);
}

/* ---- half.h -------------------------------------------------------------- */

static float bits_float(uint32_t u) {
    float f;
    memcpy(&f, &u, sizeof f);
    return f;
}

TEST_CASE(half, every_16_bit_value_survives_the_round_trip) {
    for (uint32_t h = 0; h < 65536; h++) {
        float b = bf16_to_f32((uint16_t)h), f = f16_to_f32((uint16_t)h);
        if (!isnan(b)) CHECK(f32_to_bf16(b) == h);
        if (!isnan(f)) CHECK(f32_to_f16(f) == h);
        if (isnan(b)) CHECK(isnan(bf16_to_f32(f32_to_bf16(b))));
        if (isnan(f)) CHECK(isnan(f16_to_f32(f32_to_f16(f))));
    }
}

/* The nearest of two neighbours, ties to the even one. */
static uint16_t nearest(double x, uint16_t lo, double vlo, double vhi) {
    double below = fabs(x - vlo), above = fabs(vhi - x);
    if (below != above) return below < above ? lo : (uint16_t)(lo + 1);
    return lo & 1 ? (uint16_t)(lo + 1) : lo;
}

TEST_CASE(half, narrowing_rounds_to_nearest_even) {
    rng = 7;
    for (int i = 0; i < 200000; i++) {
        uint16_t lo = (uint16_t)(rnd() % 0x7bff);
        double a = (double)f16_to_f32(lo);
        double b = (double)f16_to_f32((uint16_t)(lo + 1));
        double part = i % 3 == 0 ? 0.5 : (double)rnd_in(0, 1 << 12) / (1 << 12);
        double x = a + (b - a) * part;
        uint16_t want = nearest(x, lo, a, b);
        if (!CHECK_EQ_INT(f32_to_f16((float)x), want)) return;
        CHECK_EQ_INT(f32_to_f16((float)-x), want | 0x8000);
        lo = (uint16_t)(rnd() % 0x7f7e);
        a = (double)bf16_to_f32(lo);
        b = (double)bf16_to_f32((uint16_t)(lo + 1));
        x = a + (b - a) * part;
        if (!CHECK_EQ_INT(f32_to_bf16((float)x), nearest(x, lo, a, b))) return;
    }
    CHECK_EQ_INT(f32_to_f16(65519.996f), 0x7bff);
    CHECK_EQ_INT(f32_to_f16(65520.0f), 0x7c00);
    CHECK_EQ_INT(f32_to_bf16(FLT_MAX), 0x7f80);
    CHECK(isnan(bf16_to_f32(f32_to_bf16(bits_float(0x7f800001)))));
    CHECK(isnan(f16_to_f32(f32_to_f16(bits_float(0xff800001)))));
}

/* ---- a recording epilogue ------------------------------------------------ */

/* out[batch][row][col] = acc, and counts how often each was written. */
typedef struct Record {
    float *out;
    unsigned char *count;
    int64_t rows, cols;
    int inside;
} Record;

static void record(void *const *buf, const float *acc, int64_t ld,
                   int64_t batch, int64_t row, int64_t col, int64_t rows,
                   int64_t cols) {
    Record *r = buf[0];
    if (row < 0 || col < 0 || row + rows > r->rows || col + cols > r->cols) {
        r->inside = 0;
        return;
    }
    for (int64_t i = 0; i < rows; i++)
        for (int64_t j = 0; j < cols; j++) {
            int64_t at = (batch * r->rows + row + i) * r->cols + col + j;
            r->out[at] = acc[i * ld + j];
            r->count[at]++;
        }
}

static void record_check(const Record *r, int64_t n) {
    CHECK(r->inside);
    for (int64_t i = 0; i < n; i++)
        if (!CHECK_EQ_INT(r->count[i], 1)) break;
}

/* ---- matrix product ------------------------------------------------------ */

typedef struct GemmCase {
    LibGemm g;
    int64_t batch, na, nb;
    void *a, *b;
    double *want, *slack; /* reference, sum of |a * b|                      */
} GemmCase;

/* Random strides of one operand: rows or columns dense, or neither. */
static int64_t gemm_layout(int64_t rows, int64_t cols, int64_t *rs,
                           int64_t *cs) {
    int64_t pad = rnd_in(0, 3), kind = rnd_in(0, 5);
    if (kind < 3) {
        *cs = 1;
        *rs = cols + pad;
    } else if (kind < 5) {
        *rs = 1;
        *cs = rows + pad;
    } else {
        *cs = 2;
        *rs = 2 * cols + pad;
    }
    return rows == 0 || cols == 0 ? 0 : (rows - 1) * *rs + (cols - 1) * *cs + 1;
}

static int64_t gemm_batches(LibGemm *g, int64_t *stride, int64_t size) {
    int64_t n = 1;
    for (int64_t i = g->nbatch_dim - 1; i >= 0; i--) {
        stride[i] = 0;
        if (rnd() % 3 == 0) continue; /* broadcast */
        stride[i] = n * size;
        n *= g->batch_dim[i];
    }
    return n * size;
}

static int64_t gemm_offset(const LibGemm *g, const int64_t *stride, int64_t b) {
    int64_t off = 0;
    for (int64_t i = g->nbatch_dim - 1; i >= 0; i--) {
        off += b % g->batch_dim[i] * stride[i];
        b /= g->batch_dim[i];
    }
    return off;
}

static void gemm_reference(GemmCase *c) {
    const LibGemm *g = &c->g;
    for (int64_t b = 0; b < c->batch; b++)
        for (int64_t i = 0; i < g->m; i++)
            for (int64_t j = 0; j < g->n; j++) {
                double sum = 0, slack = 0;
                for (int64_t k = 0; k < g->k; k++) {
                    double x = get(c->a, g->a_dtype,
                                   gemm_offset(g, g->a_bs, b) + i * g->a_rs +
                                       k * g->a_cs);
                    double y = get(c->b, g->b_dtype,
                                   gemm_offset(g, g->b_bs, b) + k * g->b_rs +
                                       j * g->b_cs);
                    sum += x * y;
                    slack += fabs(x * y);
                }
                c->want[(b * g->m + i) * g->n + j] = sum;
                c->slack[(b * g->m + i) * g->n + j] = slack;
            }
}

static void gemm_case(GemmCase *c, int64_t m, int64_t n, int64_t k, int f64) {
    memset(c, 0, sizeof *c);
    LibGemm *g = &c->g;
    g->m = m;
    g->n = n;
    g->k = k;
    g->nbatch_dim = m * n * k > 40000 ? 0 : rnd_in(0, 2);
    c->batch = 1;
    for (int64_t i = 0; i < g->nbatch_dim; i++)
        c->batch *= g->batch_dim[i] = rnd_in(1, 3);
    g->a_dtype = f64 ? AMPC_F64 : rnd_float();
    g->b_dtype = f64 ? AMPC_F64 : rnd_float();
    g->c_dtype = f64 ? AMPC_F64 : rnd_float();
    c->na = gemm_batches(g, g->a_bs, gemm_layout(m, k, &g->a_rs, &g->a_cs));
    c->nb = gemm_batches(g, g->b_bs, gemm_layout(k, n, &g->b_rs, &g->b_cs));
    c->a = array(g->a_dtype, c->na);
    c->b = array(g->b_dtype, c->nb);
    c->want = malloc((size_t)(c->batch * m * n + 1) * sizeof(double));
    c->slack = malloc((size_t)(c->batch * m * n + 1) * sizeof(double));
    gemm_reference(c);
}

static void gemm_free(GemmCase *c) {
    free(c->a);
    free(c->b);
    free(c->want);
    free(c->slack);
}

static int gemm_close(const GemmCase *c, const void *got, int64_t dtype,
                      const char *what) {
    const LibGemm *g = &c->g;
    double eps = g->a_dtype == AMPC_F64 ? 0x1p-53 : 0x1p-24;
    for (int64_t i = 0; i < c->batch * g->m * g->n; i++) {
        double tol = (double)(g->k + 1) * eps * c->slack[i] +
                     unit(dtype) * fabs(c->want[i]) + 1e-7;
        if (!CHECK_MSG(fabs(get(got, dtype, i) - c->want[i]) <= tol,
                       "%s m=%d n=%d k=%d i=%d: %g, want %g", what, (int)g->m,
                       (int)g->n, (int)g->k, (int)i, get(got, dtype, i),
                       c->want[i]))
            return 0;
    }
    return 1;
}

/* What it made of B stands for B: the same bits, though B is gone. */
static void gemm_check_kept(const GemmCase *c, const AmpcCpuLib *lib,
                            const void *want, size_t bytes) {
    const LibGemm *g = &c->g;
    for (int t = 0; t < 3; t++) {
        size_t keeps = cpu_gemm_kept(g, thread_counts[t]);
        size_t need = cpu_gemm_scratch(g, thread_counts[t]);
        if (!keeps) return;
        void *out = malloc(bytes + 1), *scratch = scratch_of(need);
        CpuKept kept = {scratch_of(keeps), 0};
        for (int made = 0; made < 2; made++) {
            memset(out, 0x55, bytes);
            lib->gemm(pools[t], g, c->a, made ? NULL : c->b, out, NULL, scratch,
                      &kept);
            CHECK_MSG(kept.made && memcmp(want, out, bytes) == 0,
                      "kept panels change bits: m=%d n=%d k=%d", (int)g->m,
                      (int)g->n, (int)g->k);
        }
        scratch_check(kept.memory, keeps);
        scratch_check(scratch, need);
        free(out);
    }
}

static void gemm_check_level(const GemmCase *c, const AmpcCpuLib *lib) {
    const LibGemm *g = &c->g;
    int64_t all = c->batch * g->m * g->n;
    size_t bytes = (size_t)all * size_of(g->c_dtype);
    void *first = NULL;
    for (int t = 0; t < 3; t++) {
        size_t need = cpu_gemm_scratch(g, thread_counts[t]);
        void *out = malloc(bytes + 1), *scratch = scratch_of(need);
        lib->gemm(pools[t], g, c->a, c->b, out, NULL, scratch, NULL);
        if (t == 0) {
            gemm_close(c, out, g->c_dtype, "gemm");
            first = out;
        } else {
            CHECK_MSG(memcmp(first, out, bytes) == 0,
                      "threads change bits: m=%d n=%d k=%d", (int)g->m,
                      (int)g->n, (int)g->k);
            free(out);
        }
        scratch_check(scratch, need);
    }
    gemm_check_kept(c, lib, first, bytes);
    free(first);
    if (g->a_dtype == AMPC_F64) return;
    Record r = {.rows = g->m, .cols = g->n, .inside = 1};
    r.out = malloc((size_t)(all + 1) * sizeof(float));
    r.count = calloc((size_t)all + 1, 1);
    void *const buf[1] = {&r};
    CpuEpilogue ep = {record, buf};
    void *scratch = scratch_of(cpu_gemm_scratch(g, 5));
    lib->gemm(pools[2], g, c->a, c->b, NULL, &ep, scratch, NULL);
    record_check(&r, all);
    gemm_close(c, r.out, AMPC_F32, "gemm epilogue");
    free(scratch);
    free(r.out);
    free(r.count);
}

static void gemm_check(int64_t m, int64_t n, int64_t k, int f64) {
    GemmCase c;
    gemm_case(&c, m, n, k, f64);
    int top = top_level();
    for (int level = 2; level <= top; level++)
        gemm_check_level(&c, lib_of(level));
    gemm_free(&c);
}

TEST_CASE(gemm, small_shapes) {
    rng = 11;
    pools_open();
    for (int i = 0; i < 150; i++)
        gemm_check(rnd_in(1, 40), rnd_in(1, 70), rnd_in(0, 40), i % 10 == 0);
    pools_close();
}

TEST_CASE(gemm, vectors_and_thin_matrices) {
    rng = 12;
    pools_open();
    for (int i = 0; i < 12; i++) {
        gemm_check(1, rnd_in(1, 300), rnd_in(1, 500), 0);
        gemm_check(rnd_in(1, 300), 1, rnd_in(1, 500), 0);
        gemm_check(rnd_in(1, 300), 10, rnd_in(1, 300), 0);
        gemm_check(rnd_in(1, 150), rnd_in(1, 150), rnd_in(1, 3), 0);
    }
    pools_close();
}

TEST_CASE(gemm, blocked_and_sliced) {
    rng = 13;
    pools_open();
    gemm_check(201, 391, 300, 0);
    gemm_check(128, 96, 784, 0);
    gemm_check(17, 23, 5000, 0);
    gemm_check(33, 401, 2100, 0);
    gemm_check(400, 20, 260, 1);
    pools_close();
}

/* Waking a thread takes some microseconds, in which it could have made 2^16
   multiply-adds; a second of work that one thread does alone is lost. */
TEST_CASE(gemm, work_is_handed_over_in_sizes_that_pay) {
    static const int64_t sizes[][4] = {
        {8, 8, 8, 1},          {64, 10, 64, 1},    {128, 512, 784, 1},
        {512, 512, 512, 1},    {2048, 64, 64, 1},  {64, 2048, 64, 1},
        {32, 32, 20000, 1},    {1, 4096, 4096, 1}, {4096, 1, 4096, 1},
        {1024, 1024, 1024, 1}, {32, 32, 32, 512}};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        for (int threads = 1; threads <= 16; threads *= 2) {
            LibGemm g = {.m = sizes[i][0], .n = sizes[i][1], .k = sizes[i][2]};
            g.nbatch_dim = 1;
            g.batch_dim[0] = sizes[i][3];
            GemmBlocks p;
            block_gemm(&g, threads, 0, &p);
            int64_t parts = (p.items + p.grain - 1) / p.grain;
            int64_t work = g.m * g.n * g.k * sizes[i][3];
            CHECK_MSG(parts == 1 || work / parts >= 1 << 16,
                      "%lld x %lld x %lld: %lld parts", (long long)g.m,
                      (long long)g.n, (long long)g.k, (long long)parts);
            bool large = g.m * g.n >= 1 << 17 && work >= 1 << 24;
            CHECK_MSG(!large || parts >= threads,
                      "%lld x %lld x %lld: %lld parts for %d threads",
                      (long long)g.m, (long long)g.n, (long long)g.k,
                      (long long)parts, threads);
        }
}

/* ---- convolution --------------------------------------------------------- */

typedef struct ConvCase {
    LibConv c;
    int64_t nx, nw, ny, xs, ys, taps;
    void *x, *w, *dy;
    double *y, *dx, *dw; /* references                              */
    double *y_mag, *dx_mag, *dw_mag; /* sums of magnitudes                   */
} ConvCase;

static int64_t prod3(const int64_t v[3]) { return v[0] * v[1] * v[2]; }

/* Input position of tap t of output o, or -1. */
static int64_t conv_at(const LibConv *c, int d, int64_t o, int64_t t) {
    int64_t i = o * c->stride[d] - c->pad[d] + t * c->dilation[d];
    return i < 0 || i >= c->in[d] ? -1 : i;
}

static void conv_term(ConvCase *k, int64_t yi, int64_t xi, int64_t wi) {
    double x = get(k->x, k->c.x_dtype, xi), w = get(k->w, k->c.w_dtype, wi);
    double g = get(k->dy, k->c.y_dtype, yi);
    k->y[yi] += x * w;
    k->y_mag[yi] += fabs(x * w);
    k->dx[xi] += g * w;
    k->dx_mag[xi] += fabs(g * w);
    k->dw[wi] += g * x;
    k->dw_mag[wi] += fabs(g * x);
}

static void conv_reference(ConvCase *k) {
    const LibConv *c = &k->c;
    int64_t cg = c->c / c->group, kg = c->k / c->group;
    for (int64_t yi = 0; yi < k->ny; yi++) {
        int64_t o = yi % k->ys, ch = yi / k->ys % c->k, n = yi / k->ys / c->k;
        int64_t od = o / c->out[2] / c->out[1], oh = o / c->out[2] % c->out[1];
        for (int64_t wi = ch * cg * k->taps; wi < (ch + 1) * cg * k->taps;
             wi++) {
            int64_t t = wi % k->taps, ci = ch / kg * cg + wi / k->taps % cg;
            int64_t d = conv_at(c, 0, od, t / c->kernel[2] / c->kernel[1]);
            int64_t h = conv_at(c, 1, oh, t / c->kernel[2] % c->kernel[1]);
            int64_t w = conv_at(c, 2, o % c->out[2], t % c->kernel[2]);
            if (d < 0 || h < 0 || w < 0) continue;
            int64_t at = (d * c->in[1] + h) * c->in[2] + w;
            conv_term(k, yi, (n * c->c + ci) * k->xs + at, wi);
        }
    }
}

static double *zeros(int64_t n) {
    return calloc((size_t)n + 1, sizeof(double));
}

static void conv_prepare(ConvCase *k) {
    LibConv *c = &k->c;
    c->x_dtype = rnd_float();
    c->w_dtype = rnd_float();
    c->y_dtype = rnd_float();
    k->taps = prod3(c->kernel);
    k->xs = prod3(c->in);
    k->ys = prod3(c->out);
    k->nx = c->n * c->c * k->xs;
    k->ny = c->n * c->k * k->ys;
    k->nw = c->k * (c->c / c->group) * k->taps;
    k->x = array(c->x_dtype, k->nx);
    k->w = array(c->w_dtype, k->nw);
    k->dy = array(c->y_dtype, k->ny);
    k->y = zeros(k->ny);
    k->y_mag = zeros(k->ny);
    k->dx = zeros(k->nx);
    k->dx_mag = zeros(k->nx);
    k->dw = zeros(k->nw);
    k->dw_mag = zeros(k->nw);
    conv_reference(k);
}

static void conv_free(ConvCase *k) {
    void *all[] = {k->x,  k->w,      k->dy, k->y,     k->y_mag,
                   k->dx, k->dx_mag, k->dw, k->dw_mag};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) free(all[i]);
}

static void conv_close(const ConvCase *k, const char *what, const void *got,
                       int64_t dtype, const double *want, const double *mag,
                       int64_t n) {
    const LibConv *c = &k->c;
    for (int64_t i = 0; i < n; i++) {
        double tol = 1e-4 * mag[i] + unit(dtype) * fabs(want[i]) + 1e-7;
        if (!CHECK_MSG(
                fabs(get(got, dtype, i) - want[i]) <= tol,
                "%s n=%d c=%d k=%d g=%d in=%d,%d,%d kernel=%d,%d,%d "
                "stride=%d,%d,%d dil=%d,%d,%d pad=%d,%d,%d at %d: %g want %g",
                what, (int)c->n, (int)c->c, (int)c->k, (int)c->group,
                (int)c->in[0], (int)c->in[1], (int)c->in[2], (int)c->kernel[0],
                (int)c->kernel[1], (int)c->kernel[2], (int)c->stride[0],
                (int)c->stride[1], (int)c->stride[2], (int)c->dilation[0],
                (int)c->dilation[1], (int)c->dilation[2], (int)c->pad[0],
                (int)c->pad[1], (int)c->pad[2], (int)i, get(got, dtype, i),
                want[i]))
            return;
    }
}

/* which: 0 forward, 1 dgrad, 2 wgrad */
static size_t conv_need(const LibConv *c, int which, int threads) {
    return which == 0   ? cpu_conv_fwd_scratch(c, threads)
           : which == 1 ? cpu_conv_dgrad_scratch(c, threads)
                        : cpu_conv_wgrad_scratch(c, threads);
}

static void conv_call(const ConvCase *k, const AmpcCpuLib *lib, int which,
                      int pool, void *out) {
    const LibConv *c = &k->c;
    size_t need = conv_need(c, which, thread_counts[pool]);
    void *scratch = scratch_of(need);
    if (which == 0)
        lib->conv_fwd(pools[pool], c, k->x, k->w, out, NULL, scratch, NULL);
    else if (which == 1)
        lib->conv_dgrad(pools[pool], c, k->dy, k->w, out, scratch);
    else
        lib->conv_wgrad(pools[pool], c, k->x, k->dy, out, scratch);
    scratch_check(scratch, need);
}

/* What forward made of W stands for W: the same bits, though W is gone. */
static void conv_check_kept(const ConvCase *k, const AmpcCpuLib *lib,
                            const void *want, size_t bytes) {
    for (int t = 0; t < 3; t++) {
        size_t keeps = cpu_conv_fwd_kept(&k->c, thread_counts[t]);
        size_t need = cpu_conv_fwd_scratch(&k->c, thread_counts[t]);
        if (!keeps) return;
        void *out = malloc(bytes + 1), *scratch = scratch_of(need);
        CpuKept kept = {scratch_of(keeps), 0};
        for (int made = 0; made < 2; made++) {
            memset(out, 0x55, bytes);
            lib->conv_fwd(pools[t], &k->c, k->x, made ? NULL : k->w, out, NULL,
                          scratch, &kept);
            CHECK_MSG(kept.made && memcmp(want, out, bytes) == 0,
                      "kept weights change bits");
        }
        scratch_check(kept.memory, keeps);
        scratch_check(scratch, need);
        free(out);
    }
}

static void conv_check_routine(const ConvCase *k, const AmpcCpuLib *lib,
                               int which) {
    const LibConv *c = &k->c;
    static const char *const names[] = {"conv", "dgrad", "wgrad"};
    const int64_t n[] = {k->ny, k->nx, k->nw};
    const int64_t dtype[] = {c->y_dtype, c->x_dtype, c->w_dtype};
    const double *want[] = {k->y, k->dx, k->dw};
    const double *mag[] = {k->y_mag, k->dx_mag, k->dw_mag};
    size_t bytes = (size_t)n[which] * size_of(dtype[which]);
    void *first = malloc(bytes + 1);
    memset(first, 0xff, bytes);
    conv_call(k, lib, which, 0, first);
    conv_close(k, names[which], first, dtype[which], want[which], mag[which],
               n[which]);
    for (int t = 1; t < 3; t++) {
        void *out = malloc(bytes + 1);
        conv_call(k, lib, which, t, out);
        CHECK_MSG(memcmp(first, out, bytes) == 0, "%s: threads change bits",
                  names[which]);
        free(out);
    }
    if (which == 0) conv_check_kept(k, lib, first, bytes);
    free(first);
}

static void conv_check_epilogue(const ConvCase *k, const AmpcCpuLib *lib) {
    Record r = {.rows = k->c.k, .cols = k->ys, .inside = 1};
    r.out = malloc((size_t)(k->ny + 1) * sizeof(float));
    r.count = calloc((size_t)k->ny + 1, 1);
    void *const buf[1] = {&r};
    CpuEpilogue ep = {record, buf};
    void *scratch = scratch_of(cpu_conv_fwd_scratch(&k->c, 2));
    lib->conv_fwd(pools[1], &k->c, k->x, k->w, NULL, &ep, scratch, NULL);
    record_check(&r, k->ny);
    conv_close(k, "conv epilogue", r.out, AMPC_F32, k->y, k->y_mag, k->ny);
    free(scratch);
    free(r.out);
    free(r.count);
}

static void conv_check(const LibConv *shape) {
    ConvCase k = {.c = *shape};
    conv_prepare(&k);
    int top = top_level();
    for (int level = 2; level <= top; level++) {
        for (int which = 0; which < 3; which++)
            conv_check_routine(&k, lib_of(level), which);
        conv_check_epilogue(&k, lib_of(level));
    }
    conv_free(&k);
}

static void conv_spatial(LibConv *c, int rank, int64_t extent) {
    for (int d = 0; d < 3; d++) {
        c->in[d] = c->out[d] = c->kernel[d] = c->stride[d] = c->dilation[d] = 1;
        c->pad[d] = 0;
        if (d < 3 - rank) continue;
        do {
            c->in[d] = rnd_in(1, extent);
            c->kernel[d] = rnd_in(1, 4);
            c->stride[d] = rnd_in(1, 3);
            c->dilation[d] = rnd_in(1, 3);
            c->pad[d] = rnd_in(0, 3);
            int64_t span = (c->kernel[d] - 1) * c->dilation[d] + 1;
            int64_t room = c->in[d] + c->pad[d] + rnd_in(0, 3) - span;
            c->out[d] = room < 0 ? 0 : room / c->stride[d] + 1;
        } while (c->out[d] == 0);
    }
}

TEST_CASE(conv, random_shapes) {
    rng = 21;
    pools_open();
    for (int i = 0; i < 120; i++) {
        LibConv c = {.n = rnd_in(1, 3), .group = i % 4 == 0 ? rnd_in(2, 4) : 1};
        c.c = c.group * rnd_in(1, 5);
        c.k = c.group * rnd_in(1, 19);
        int rank = i % 3 + 1;
        conv_spatial(&c, rank, rank == 1 ? 60 : rank == 2 ? 20 : 7);
        conv_check(&c);
    }
    pools_close();
}

/* Random convolutions of one group. */
typedef struct ConvRange {
    int cases, least; /* channels on either side                             */
    int c[2], k[2];   /* at most; the second of every third                  */
    int extent[3];    /* at most, by rank                                    */
} ConvRange;

static void conv_range(const ConvRange *r) {
    pools_open();
    for (int i = 0; i < r->cases; i++) {
        LibConv c = {.n = rnd_in(1, 5), .group = 1};
        c.c = rnd_in(r->least, r->c[i % 3 == 0]);
        c.k = rnd_in(r->least, r->k[i % 3 == 0]);
        conv_spatial(&c, i % 3 + 1, r->extent[i % 3]);
        conv_check(&c);
    }
    pools_close();
}

/* Enough channels on both sides to be staged channels-last. */
TEST_CASE(conv, many_channels) {
    rng = 23;
    conv_range(&(ConvRange){60, 16, {20, 45}, {30, 250}, {40, 10, 5}});
}

/* Pairs of channels and of points: odd numbers of both, rows shorter than the
   stride, pads that belong to two images.                                   */
TEST_CASE(conv, pairs_of_bf16) {
    rng = 25;
    only_bf16 = 1;
    conv_range(&(ConvRange){60, 1, {19, 70}, {70, 19}, {40, 9, 5}});
    conv_range(&(ConvRange){60, 16, {19, 70}, {70, 19}, {40, 9, 5}});
    only_bf16 = 0;
}

/* Two images, of which one is staged at a time. */
TEST_CASE(conv, images_in_turns) {
    LibConv c = {.n = 2, .c = 16, .k = 17, .group = 1};
    rng = 24;
    for (int d = 0; d < 3; d++)
        c.in[d] = c.out[d] = c.kernel[d] = c.stride[d] = c.dilation[d] = 1;
    c.in[2] = 40001;
    c.kernel[2] = 3;
    c.stride[2] = 2;
    c.pad[2] = 1;
    c.out[2] = 20001;
    pools_open();
    conv_check(&c);
    pools_close();
}

/* The common kinds: 3x3 pad 1, strided, 1x1, depthwise, patches, long 1-D. */
TEST_CASE(conv, common_shapes) {
    static const LibConv shapes[] = {
        {2,
         1,
         16,
         1,
         {1, 28, 28},
         {1, 26, 26},
         {1, 3, 3},
         {1, 1, 1},
         {1, 1, 1},
         {0, 0, 0},
         0,
         0,
         0},
        {3,
         20,
         33,
         1,
         {1, 14, 14},
         {1, 14, 14},
         {1, 3, 3},
         {1, 1, 1},
         {1, 1, 1},
         {0, 1, 1},
         0,
         0,
         0},
        {2,
         40,
         24,
         1,
         {1, 9, 9},
         {1, 5, 5},
         {1, 3, 3},
         {1, 2, 2},
         {1, 1, 1},
         {0, 1, 1},
         0,
         0,
         0},
        {2,
         17,
         40,
         1,
         {1, 10, 12},
         {1, 5, 6},
         {1, 1, 1},
         {1, 2, 2},
         {1, 1, 1},
         {0, 0, 0},
         0,
         0,
         0},
        {2,
         32,
         32,
         32,
         {1, 15, 15},
         {1, 15, 15},
         {1, 3, 3},
         {1, 1, 1},
         {1, 1, 1},
         {0, 1, 1},
         0,
         0,
         0},
        {1,
         3,
         20,
         1,
         {1, 32, 32},
         {1, 4, 4},
         {1, 8, 8},
         {1, 8, 8},
         {1, 1, 1},
         {0, 0, 0},
         0,
         0,
         0},
        {1,
         2,
         5,
         1,
         {1, 1, 3000},
         {1, 1, 1498},
         {1, 1, 10},
         {1, 1, 2},
         {1, 1, 1},
         {0, 0, 2},
         0,
         0,
         0},
        {1,
         6,
         300,
         1,
         {1, 40, 70},
         {1, 40, 70},
         {1, 3, 3},
         {1, 1, 1},
         {1, 1, 1},
         {0, 1, 1},
         0,
         0,
         0},
        {40,
         5,
         7,
         1,
         {1, 4, 4},
         {1, 2, 2},
         {1, 3, 3},
         {1, 1, 1},
         {1, 1, 1},
         {0, 0, 0},
         0,
         0,
         0},
    };
    rng = 22;
    pools_open();
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        conv_check(&shapes[i]);
    pools_close();
}

/* ---- pooling ------------------------------------------------------------- */

static int64_t pool_pos(const LibPool *p, int d, int64_t o, int64_t t) {
    return o * p->stride[d] + t * p->dilation[d] - p->pad[d];
}

static void pool_random(LibPool *p, int rank) {
    static const int64_t types[] = {AMPC_F32, AMPC_BF16, AMPC_F16, AMPC_F64};
    memset(p, 0, sizeof *p);
    p->planes = rnd_in(1, 5);
    p->dtype = types[rnd() % 4];
    p->count_include_pad = rnd() % 2;
    int plain = rnd() % 3 == 0; /* 2x2, stride 2 */
    for (int d = 0; d < 3; d++) {
        p->in[d] = p->out[d] = p->kernel[d] = p->stride[d] = p->dilation[d] = 1;
        if (d < 3 - rank) continue;
        do {
            p->in[d] = rnd_in(1, rank == 1 ? 400 : rank == 2 ? 40 : 9);
            p->kernel[d] = plain ? 2 : rnd_in(1, 4);
            p->stride[d] = plain ? 2 : rnd_in(1, 3);
            p->dilation[d] = plain ? 1 : rnd_in(1, 2);
            p->pad[d] = plain ? 0 : rnd_in(0, p->kernel[d] - 1);
            p->pad_end[d] = plain ? 0 : rnd_in(0, p->kernel[d] - 1);
            int64_t span = (p->kernel[d] - 1) * p->dilation[d] + 1;
            int64_t room = p->in[d] + p->pad[d] + p->pad_end[d] - span;
            p->out[d] = room < 0 ? 0 : room / p->stride[d] + 1;
        } while (p->out[d] == 0);
    }
}

/* One window: the whole plane. */
static void pool_whole(LibPool *p, int64_t h, int64_t w) {
    static const int64_t types[] = {AMPC_F32, AMPC_BF16, AMPC_F16, AMPC_F64};
    *p = (LibPool){.planes = 3,
                   .in = {1, h, w},
                   .kernel = {1, h, w},
                   .out = {1, 1, 1},
                   .stride = {1, 1, 1},
                   .dilation = {1, 1, 1},
                   .dtype = types[rnd() % 4]};
}

typedef struct PoolRef {
    double *max, *avg, *dmax, *davg, *mag;
    int32_t *tap;
} PoolRef;

/* One window: its maximum, which element that is and its position, the sum and
   the count. */
static void pool_window_ref(const LibPool *p, const void *x, int64_t plane,
                            int64_t o, double *max, int32_t *best,
                            int64_t *from, double *sum, double *count) {
    int64_t in = prod3(p->in);
    *max = -INFINITY;
    *best = -1;
    *sum = *count = 0;
    for (int64_t t = 0; t < prod3(p->kernel); t++) {
        int64_t at[3],
            tap[3] = {t / p->kernel[2] / p->kernel[1],
                      t / p->kernel[2] % p->kernel[1], t % p->kernel[2]};
        int64_t pos[3] = {o / p->out[2] / p->out[1], o / p->out[2] % p->out[1],
                          o % p->out[2]};
        int inside = 1, padded = 1;
        for (int d = 0; d < 3; d++) {
            at[d] = pool_pos(p, d, pos[d], tap[d]);
            inside &= at[d] >= 0 && at[d] < p->in[d];
            padded &= at[d] < p->in[d] + p->pad_end[d];
        }
        if (inside || (p->count_include_pad && padded)) *count += 1;
        if (!inside) continue;
        int64_t i = (at[0] * p->in[1] + at[1]) * p->in[2] + at[2];
        double v = get(x, p->dtype, plane * in + i);
        *sum += v;
        if (*best < 0 || v > *max || (isnan(v) && !isnan(*max))) {
            *max = v;
            *best = (int32_t)t;
            *from = i;
        }
    }
}

static void pool_spread_ref(const LibPool *p, int64_t plane, int64_t o,
                            double g, double *dx, double *mag) {
    for (int64_t t = 0; t < prod3(p->kernel); t++) {
        int64_t z = pool_pos(p, 0, o / p->out[2] / p->out[1],
                             t / p->kernel[2] / p->kernel[1]);
        int64_t h = pool_pos(p, 1, o / p->out[2] % p->out[1],
                             t / p->kernel[2] % p->kernel[1]);
        int64_t w = pool_pos(p, 2, o % p->out[2], t % p->kernel[2]);
        if (z < 0 || z >= p->in[0] || h < 0 || h >= p->in[1] || w < 0 ||
            w >= p->in[2])
            continue;
        int64_t i = ((plane * p->in[0] + z) * p->in[1] + h) * p->in[2] + w;
        dx[i] += g;
        mag[i] += fabs(g);
    }
}

static void pool_close(const char *what, const void *got, int64_t dtype,
                       const double *want, double floor_, int64_t n) {
    for (int64_t i = 0; i < n; i++) {
        double tol = unit(dtype) * fabs(want[i]) + floor_;
        double v = get(got, dtype, i);
        int same = (isnan(v) && isnan(want[i])) || v == want[i];
        if (!CHECK_MSG(same || fabs(v - want[i]) <= tol, "%s %d: %g want %g",
                       what, (int)i, v, want[i]))
            return;
    }
}

static void pool_check(const LibPool *p, const void *x, const void *dy,
                       const PoolRef *ref, const AmpcCpuLib *lib, int t) {
    int64_t nx = p->planes * prod3(p->in), ny = p->planes * prod3(p->out);
    void *y = array(p->dtype, ny + 1), *dx = array(p->dtype, nx + 1);
    void *idx = array(p->idx_dtype, ny + 1);
    set(y, p->dtype, ny, 7); /* stays */
    set(dx, p->dtype, nx, 7);
    set(idx, p->idx_dtype, ny, 7);
    lib->maxpool(pools[t], p, x, y, idx);
    pool_close("maxpool", y, p->dtype, ref->max, 0, ny);
    for (int64_t i = 0; i < ny; i++)
        if (!CHECK(get(idx, p->idx_dtype, i) == ref->tap[i])) break;
    lib->maxpool(pools[t], p, x, y, NULL);
    pool_close("maxpool", y, p->dtype, ref->max, 0, ny);
    lib->maxpool_grad(pools[t], p, dy, idx, dx);
    pool_close("maxpool_grad", dx, p->dtype, ref->dmax, 1e-5, nx);
    lib->avgpool(pools[t], p, x, y);
    pool_close("avgpool", y, p->dtype, ref->avg, 1e-5, ny);
    lib->avgpool_grad(pools[t], p, dy, dx);
    pool_close("avgpool_grad", dx, p->dtype, ref->davg, 1e-5, nx);
    CHECK(get(y, p->dtype, ny) == 7 && get(dx, p->dtype, nx) == 7 &&
          get(idx, p->idx_dtype, ny) == 7);
    free(y);
    free(dx);
    free(idx);
}

static void pool_compare(LibPool p) {
    bool wide = prod3(p.kernel) > INT8_MAX || rnd() % 4 == 0;
    p.idx_dtype = wide ? AMPC_I32 : AMPC_I8;
    int64_t in = prod3(p.in), out = prod3(p.out);
    int64_t nx = p.planes * in, ny = p.planes * out;
    void *x = array(p.dtype, nx), *dy = array(p.dtype, ny);
    if (rnd() % 4 == 0) set(x, p.dtype, rnd_in(0, nx - 1), NAN);
    PoolRef ref = {zeros(ny), zeros(ny),
                   zeros(nx), zeros(nx),
                   zeros(nx), malloc((size_t)(ny + 1) * sizeof(int32_t))};
    int nan = 0;
    for (int64_t o = 0; o < ny; o++) {
        double sum, count, g = get(dy, p.dtype, o);
        int64_t from = 0;
        pool_window_ref(&p, x, o / out, o % out, &ref.max[o], &ref.tap[o],
                        &from, &sum, &count);
        ref.avg[o] = count > 0 ? sum / count : 0;
        nan |= isnan(sum);
        if (ref.tap[o] >= 0) ref.dmax[o / out * in + from] += g;
        pool_spread_ref(&p, o / out, o % out, count > 0 ? g / count : 0,
                        ref.davg, ref.mag);
    }
    int top = top_level();
    for (int level = 2; level <= top; level++)
        for (int t = 0; t < 3; t++)
            pool_check(&p, x, dy, &ref, lib_of(level), t);
    void *all[] = {x,        dy,       ref.max, ref.avg,
                   ref.dmax, ref.davg, ref.mag, ref.tap};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) free(all[i]);
}

TEST_CASE(pooling, whole_planes) {
    rng = 32;
    pools_open();
    for (int64_t n = 1; n <= 40; n++) {
        LibPool p;
        pool_whole(&p, 1 + n % 3, n);
        pool_compare(p);
        pool_whole(&p, n % 9 + 1, n % 9 + 1); /* 7 x 7: 1 more than vectors */
        pool_compare(p);
    }
    pools_close();
}

/* Rows of 2 x 2 windows around the length of a vector, planes of few rows. */
TEST_CASE(pooling, halves) {
    rng = 33;
    pools_open();
    for (int64_t n = 2; n <= 70; n++) {
        LibPool p;
        pool_whole(&p, 2 + n * 5 % 7, n);
        for (int d = 1; d < 3; d++) {
            p.kernel[d] = p.stride[d] = 2;
            p.out[d] = p.in[d] / 2;
        }
        pool_compare(p);
    }
    pools_close();
}

TEST_CASE(pooling, random_shapes) {
    rng = 31;
    pools_open();
    for (int i = 0; i < 240; i++) {
        LibPool p;
        pool_random(&p, i % 3 + 1);
        pool_compare(p);
    }
    pools_close();
}

/* ---- attention ----------------------------------------------------------- */

/* q, k, v, dy, mask; lse, delta; and what should come of them. */
typedef struct AttendCase {
    LibAttend p;
    void *in[5];
    int64_t rng[2];
    float *sums[2];
    double *want[5]; /* y, lse, dq, dk, dv */
    int64_t count[5];
    void *first[5]; /* what one thread gave */
} AttendCase;

static int64_t attend_key(const LibAttend *p, int64_t b, int64_t j, int64_t c) {
    return p->trans_b ? (b * p->u + j) * p->d + c : (b * p->d + c) * p->u + j;
}

static double attend_score(const AttendCase *c, int64_t b, int64_t i,
                           int64_t j) {
    const LibAttend *p = &c->p;
    double s = 0;
    if (p->causal && j > i + p->offset) return -(double)INFINITY;
    for (int64_t f = 0; f < p->d; f++)
        s += get(c->in[0], p->q_dtype, (b * p->t + i) * p->d + f) *
             get(c->in[1], p->k_dtype, attend_key(p, b / p->group, j, f));
    s *= (double)lib_float(p->scale);
    if (!c->in[4]) return s;
    int64_t rows = p->mask_rows ? p->t : 1, cols = p->mask_cols ? p->u : 1;
    int64_t m = b / p->mask_div % p->mask_mod * rows * cols;
    return s + get(c->in[4], p->mask_dtype,
                   m + (p->mask_rows ? i * cols : 0) + (p->mask_cols ? j : 0));
}

/* One row of scores, and all that it adds to the results. */
static void attend_row(AttendCase *c, int64_t b, int64_t i, double *s) {
    const LibAttend *p = &c->p;
    int64_t row = b * p->t + i, m = b / p->group;
    double top = -(double)INFINITY, sum = 0, delta = 0;
    for (int64_t j = 0; j < p->u; j++)
        top = fmax(top, s[j] = attend_score(c, b, i, j));
    bool none = top == -(double)INFINITY;
    for (int64_t j = 0; j < p->u; j++) sum += s[j] = none ? 0 : exp(s[j] - top);
    c->want[1][2 * row] = none ? (double)INFINITY : top;
    c->want[1][2 * row + 1] = none ? 0 : log(sum);
    for (int64_t j = 2 * row; j < 2 * row + 2; j++)
        c->sums[0][j] = (float)c->want[1][j];
    if (none) sum = 1;
    double *kept = zeros(p->u);
    for (int64_t j = 0; j < p->u; j++)
        kept[j] = PHILOX(c->rng[0], c->rng[1], row * p->u + j, p->salt) <
                          (float)p->drop * 0x1p-24f
                      ? 0
                      : (double)lib_float(p->keep);
    for (int64_t f = 0; f < p->e; f++) {
        double *y = &c->want[0][row * p->e + f];
        for (int64_t j = 0; j < p->u; j++)
            *y += s[j] / sum * kept[j] *
                  get(c->in[2], p->v_dtype, (m * p->u + j) * p->e + f);
        delta += *y * get(c->in[3], p->y_dtype, row * p->e + f);
    }
    c->sums[1][row] = (float)delta;
    for (int64_t j = 0; j < p->u; j++) {
        double dp = 0, g;
        for (int64_t f = 0; f < p->e; f++) {
            g = get(c->in[3], p->y_dtype, row * p->e + f);
            dp += g * get(c->in[2], p->v_dtype, (m * p->u + j) * p->e + f);
            c->want[4][(m * p->u + j) * p->e + f] += s[j] / sum * kept[j] * g;
        }
        dp = s[j] / sum * (dp * kept[j] - delta) * (double)lib_float(p->scale);
        for (int64_t f = 0; f < p->d; f++) {
            int64_t key = attend_key(p, m, j, f);
            c->want[2][row * p->d + f] += dp * get(c->in[1], p->k_dtype, key);
            c->want[3][key] += dp * get(c->in[0], p->q_dtype, row * p->d + f);
        }
    }
    free(kept);
}

static void attend_compare(AttendCase *c, int level, AmpcPool *pool,
                           int threads) {
    const LibAttend *p = &c->p;
    const AmpcCpuLib *lib = lib_of(level);
    size_t need[] = {cpu_attend_scratch(p, threads),
                     cpu_attend_grad_scratch(p, threads)};
    const int64_t dtype[] = {p->y_dtype, AMPC_F32, p->dq_dtype, p->dk_dtype,
                             p->dv_dtype};
    const char *const name[] = {"y", "lse", "dq", "dk", "dv"};
    void *out[5], *scratch[] = {scratch_of(need[0]), scratch_of(need[1])};
    for (int i = 0; i < 5; i++) out[i] = array(dtype[i], c->count[i]);
    lib->attend(pool, p, c->in[0], c->in[1], c->in[2], c->in[4], c->rng, out[0],
                out[1], scratch[0]);
    lib->attend_grad(pool, p, c->in[0], c->in[1], c->in[2], c->in[3],
                     c->sums[0], c->sums[1], c->in[4], c->rng, out[2], out[3],
                     out[4], scratch[1]);
    for (int i = 0; i < 5; i++) {
        size_t bytes = (size_t)c->count[i] * size_of(dtype[i]);
        pool_close(name[i], out[i], dtype[i], c->want[i], 2e-4, c->count[i]);
        if (threads > 1)
            CHECK_MSG(!memcmp(out[i], c->first[i], bytes), "%s: %d threads",
                      name[i], threads);
        free(threads > 1 ? out[i] : c->first[i]);
        if (threads == 1) c->first[i] = out[i];
    }
    for (int i = 0; i < 2; i++) scratch_check(scratch[i], need[i]);
}

/* size: of the largest shapes */
static void attend_case(int64_t size) {
    int64_t group = rnd_in(1, 3), heads = rnd_in(1, 2), samples = rnd_in(1, 2);
    AttendCase c = {.p = {.batch = samples * heads * group,
                          .group = group,
                          .t = rnd_in(1, size),
                          .u = rnd_in(1, size),
                          .d = rnd_in(1, 40),
                          .e = rnd_in(1, 40),
                          .causal = rnd() % 2,
                          .offset = rnd() % 2 ? rnd_in(-20, 20) : 0,
                          .trans_b = rnd() % 2,
                          .zeros = 1,
                          .scale = lib_bits(rnd() % 2 ? 1.0f : 0.4f),
                          .drop = rnd() % 2 ? rnd_in(1, 12) << 20 : 0,
                          .keep = lib_bits(1.0f),
                          .salt = rnd_in(0, 9),
                          .mask_div = 1,
                          .mask_mod = 1,
                          .mask_rows = rnd() % 2,
                          .mask_cols = rnd() % 2,
                          .mask_dtype = rnd_float(),
                          .rng_dtype = AMPC_I64,
                          .q_dtype = rnd_float(),
                          .k_dtype = rnd_float(),
                          .v_dtype = rnd_float(),
                          .y_dtype = rnd_float(),
                          .lse_dtype = AMPC_F32,
                          .delta_dtype = AMPC_F32,
                          .dq_dtype = rnd_float(),
                          .dk_dtype = rnd_float(),
                          .dv_dtype = rnd_float()},
                    .rng = {rnd(), rnd()}};
    LibAttend *p = &c.p;
    if (p->drop) p->keep = lib_bits(1.0f / (1.0f - (float)p->drop * 0x1p-24f));
    if (rnd() % 2) p->mask_div = heads * group; /* one for each sample */
    if (rnd() % 2) p->mask_mod = p->batch / p->mask_div;
    int64_t q = p->batch * p->t, k = p->batch / group * p->u;
    const int64_t count[] = {q * p->e, 2 * q, q * p->d, k * p->d, k * p->e};
    for (int i = 0; i < 5; i++) c.want[i] = zeros(c.count[i] = count[i]);
    c.in[0] = array(p->q_dtype, q * p->d);
    c.in[1] = array(p->k_dtype, k * p->d);
    c.in[2] = array(p->v_dtype, k * p->e);
    c.in[3] = array(p->y_dtype, q * p->e);
    if (rnd() % 3)
        c.in[4] = array(p->mask_dtype, p->mask_mod * (p->mask_rows ? p->t : 1) *
                                           (p->mask_cols ? p->u : 1));
    for (int i = 0; i < 2; i++) c.sums[i] = array(AMPC_F32, 2 * q);
    double *scores = zeros(p->u);
    for (int64_t i = 0; i < q; i++) attend_row(&c, i / p->t, i % p->t, scores);
    int top = top_level();
    for (int level = 2; level <= top; level++)
        for (int t = 0; t < 3; t++)
            attend_compare(&c, level, pools[t], thread_counts[t]);
    for (int i = 0; i < 5; i++) free(c.in[i]);
    for (int i = 0; i < 2; i++) free(c.sums[i]);
    for (int i = 0; i < 5; i++) {
        free(c.want[i]);
        free(c.first[i]);
    }
    free(scores);
}

TEST_CASE(attend, random_shapes) {
    rng = 47;
    pools_open();
    for (int i = 0; i < 48; i++) attend_case(i % 6 ? 60 : 300);
    pools_close();
}

/* ---- scatter-add, argmax ------------------------------------------------- */

static void scatter_case(void) {
    LibScatterAdd s = {rnd_in(1, 3),   rnd_in(1, 50), rnd_in(0, 200),
                       rnd_in(1, 300), rnd_float(),   AMPC_I64,
                       rnd_float()};
    if (rnd() % 5 == 0) s.src_dtype = s.out_dtype = AMPC_F64;
    if (rnd() % 2) s.idx_dtype = AMPC_I32;
    int64_t nsrc = s.outer * s.nidx * s.inner;
    int64_t nout = s.outer * s.rows * s.inner;
    void *src = array(s.src_dtype, nsrc);
    void *idx = malloc((size_t)(s.nidx + 1) * 8);
    double *want = zeros(nout);
    for (int64_t i = 0; i < s.nidx; i++) {
        int64_t t = rnd_in(-s.rows - 1, s.rows); /* both ends out of range */
        if (s.idx_dtype == AMPC_I64)
            ((int64_t *)idx)[i] = t;
        else
            ((int32_t *)idx)[i] = (int32_t)t;
        if (t < 0) t += s.rows;
        if (t < 0 || t >= s.rows) continue;
        for (int64_t o = 0; o < s.outer; o++)
            for (int64_t j = 0; j < s.inner; j++)
                want[(o * s.rows + t) * s.inner + j] +=
                    get(src, s.src_dtype, (o * s.nidx + i) * s.inner + j);
    }
    int top = top_level();
    for (int level = 2; level <= top; level++)
        for (int t = 0; t < 3; t++) {
            size_t need = cpu_scatter_add_scratch(&s, thread_counts[t]);
            void *out = array(s.out_dtype, nout), *scratch = scratch_of(need);
            lib_of(level)->scatter_add(pools[t], &s, src, idx, out, scratch);
            pool_close("scatter_add", out, s.out_dtype, want, 1e-4, nout);
            scratch_check(scratch, need);
            free(out);
        }
    free(src);
    free(idx);
    free(want);
}

TEST_CASE(scatter_add, random_shapes) {
    rng = 41;
    pools_open();
    for (int i = 0; i < 60; i++) scatter_case();
    pools_close();
}

static void argmax_case(void) {
    static const int64_t types[] = {AMPC_F32, AMPC_BF16, AMPC_F16, AMPC_F64};
    LibArgmax a = {rnd_in(1, 30), rnd_in(1, 40), rnd_in(1, 5), types[rnd() % 4],
                   AMPC_I64};
    int64_t n = a.outer * a.inner;
    void *x = array(a.dtype, n * a.axis);
    for (int64_t i = 0; i < n * a.axis; i++)
        set(x, a.dtype, i, (double)rnd_in(-4, 4)); /* many ties */
    int64_t *want = malloc((size_t)n * 8), *got = malloc((size_t)n * 8);
    for (int64_t i = 0; i < n; i++) {
        int64_t from = i / a.inner * a.axis * a.inner + i % a.inner;
        want[i] = 0;
        for (int64_t k = 1; k < a.axis; k++)
            if (get(x, a.dtype, from + k * a.inner) >
                get(x, a.dtype, from + want[i] * a.inner))
                want[i] = k;
    }
    int top = top_level();
    for (int level = 2; level <= top; level++)
        for (int t = 0; t < 3; t++) {
            lib_of(level)->argmax(pools[t], &a, x, got);
            CHECK(memcmp(want, got, (size_t)n * 8) == 0);
        }
    free(x);
    free(want);
    free(got);
}

TEST_CASE(argmax, first_of_the_largest) {
    rng = 51;
    pools_open();
    for (int i = 0; i < 60; i++) argmax_case();
    pools_close();
}

/* The answer of a fresh question under this AMPC_ISA. */
static int dot_under(const char *isa) {
    setenv("AMPC_ISA", isa, 1);
    cpu_bf16_dot_force(-1);
    return cpu_bf16_dot();
}

TEST_CASE(isa, bf16_dot_products_are_chosen_and_forced) {
    char *old = getenv("AMPC_ISA"), *kept = old ? strdup(old) : NULL;
    cpu_bf16_dot_force(1);
    int has = cpu_bf16_dot(); /* the machine, whatever is fast */
    CHECK_EQ_INT(dot_under("v4-fma"), 0);
    CHECK_EQ_INT(dot_under("v4-dot"), has);
    int measured = dot_under("v4");
    CHECK(measured <= has);
    for (int i = 0; i < 20; i++) CHECK_EQ_INT(dot_under("v4"), measured);
    setenv("AMPC_ISA", "v4-fma", 1);
    CHECK_EQ_INT(cpu_bf16_dot(), measured); /* kept for the process */
    if (kept)
        setenv("AMPC_ISA", kept, 1);
    else
        unsetenv("AMPC_ISA");
    free(kept);
    cpu_bf16_dot_force(-1);
}

TEST_CASE(isa, the_environment_only_lowers_the_level) {
    char *old = getenv("AMPC_ISA"), *kept = old ? strdup(old) : NULL;
    unsetenv("AMPC_ISA");
    int top = cpu_isa_level();
    CHECK(top >= AMPC_ISA_V2 && top <= AMPC_ISA_V4);
    setenv("AMPC_ISA", "v2", 1);
    CHECK_EQ_INT(cpu_isa_level(), AMPC_ISA_V2);
    setenv("AMPC_ISA", "v4", 1);
    CHECK_EQ_INT(cpu_isa_level(), top);
    static const char *const unknown[] = {"fast", "v3-dot", "v4-fast", "v5"};
    for (size_t i = 0; i < sizeof unknown / sizeof *unknown; i++) {
        setenv("AMPC_ISA", unknown[i], 1);
        CHECK_EQ_INT(cpu_isa_level(), top);
    }
    if (kept)
        setenv("AMPC_ISA", kept, 1);
    else
        unsetenv("AMPC_ISA");
    free(kept);
}
