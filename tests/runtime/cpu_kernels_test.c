/* SPDX-License-Identifier: Apache-2.0 */
/* cpu_kernels_test.c: the CPU routines against naive references in double, over
   random shapes, strides and dtypes, at every ISA level this machine has; the
   same bits for 1, 2 and 5 threads; scratch memory stays within its bounds.
   Convolution and pooling are in cpu_conv_test.c. */
#define _POSIX_C_SOURCE 200809L
#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/cpu/block.h"
#include "runtime/cpu/kmath.h"
#include "runtime/program/dtype.h"
#include "tests/harness.h"
#include "tests/support/cpu_cases.h"

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

/* The nearest of two neighbours; ties go to the even one. */
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

/* ---- matrix product ------------------------------------------------------ */

typedef struct GemmCase {
    LibGemm g;
    int64_t batch, na, nb;
    void *a, *b;
    double *want, *slack; /* reference, sum of |a * b|                      */
} GemmCase;

/* Random strides of one operand: contiguous rows, contiguous columns, or
   neither. */
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
                    double x = array_get(c->a, g->a_dtype,
                                         gemm_offset(g, g->a_bs, b) +
                                             i * g->a_rs + k * g->a_cs);
                    double y = array_get(c->b, g->b_dtype,
                                         gemm_offset(g, g->b_bs, b) +
                                             k * g->b_rs + j * g->b_cs);
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
    c->want = block((size_t)(c->batch * m * n) * sizeof(double));
    c->slack = block((size_t)(c->batch * m * n) * sizeof(double));
    gemm_reference(c);
}

static void gemm_free(GemmCase *c) {
    block_free(c->a);
    block_free(c->b);
    block_free(c->want);
    block_free(c->slack);
}

static int gemm_close(const GemmCase *c, const void *got, int64_t dtype,
                      const char *what) {
    const LibGemm *g = &c->g;
    double eps = g->a_dtype == AMPC_F64 ? 0x1p-53 : 0x1p-24;
    for (int64_t i = 0; i < c->batch * g->m * g->n; i++) {
        double tol = (double)(g->k + 1) * eps * c->slack[i] +
                     unit(dtype) * fabs(c->want[i]) + 1e-7;
        if (!CHECK_MSG(fabs(array_get(got, dtype, i) - c->want[i]) <= tol,
                       "%s m=%d n=%d k=%d i=%d: %g, want %g", what, (int)g->m,
                       (int)g->n, (int)g->k, (int)i, array_get(got, dtype, i),
                       c->want[i]))
            return 0;
    }
    return 1;
}

/* The packed B that was kept replaces B: the same bits, even if B is gone. */
static void gemm_check_kept(const GemmCase *c, const AmpcCpuLib *lib,
                            const void *want, size_t bytes) {
    const LibGemm *g = &c->g;
    for (int t = 0; t < 3; t++) {
        size_t keeps = cpu_gemm_kept(g, thread_counts[t]);
        size_t need = cpu_gemm_scratch(g, thread_counts[t]);
        if (!keeps) return;
        void *out = block(bytes), *scratch = scratch_of(need);
        CpuKept kept = {scratch_of(keeps), 0};
        for (int made = 0; made < 2; made++) {
            memset(out, 0x55, bytes);
            lib->gemm(lib->isa, pools[t], g, c->a, made ? NULL : c->b, out,
                      NULL, scratch, &kept);
            CHECK_MSG(kept.made && memcmp(want, out, bytes) == 0,
                      "kept panels change bits: m=%d n=%d k=%d", (int)g->m,
                      (int)g->n, (int)g->k);
        }
        scratch_check(kept.memory, keeps);
        scratch_check(scratch, need);
        block_free(out);
    }
}

static void gemm_check_level(const GemmCase *c, const AmpcCpuLib *lib) {
    const LibGemm *g = &c->g;
    int64_t all = c->batch * g->m * g->n;
    size_t bytes = (size_t)all * size_of(g->c_dtype);
    void *first = NULL;
    for (int t = 0; t < 3; t++) {
        size_t need = cpu_gemm_scratch(g, thread_counts[t]);
        void *out = block(bytes), *scratch = scratch_of(need);
        lib->gemm(lib->isa, pools[t], g, c->a, c->b, out, NULL, scratch, NULL);
        if (t == 0) {
            gemm_close(c, out, g->c_dtype, "gemm");
            first = out;
        } else {
            CHECK_MSG(memcmp(first, out, bytes) == 0,
                      "threads change bits: m=%d n=%d k=%d", (int)g->m,
                      (int)g->n, (int)g->k);
            block_free(out);
        }
        scratch_check(scratch, need);
    }
    gemm_check_kept(c, lib, first, bytes);
    block_free(first);
    if (g->a_dtype == AMPC_F64) return;
    Record r = {.rows = g->m, .cols = g->n, .inside = 1};
    r.out = block((size_t)all * sizeof(float));
    r.count = block((size_t)all);
    memset(r.count, 0, (size_t)all);
    void *const buf[1] = {&r};
    CpuEpilogue ep = {.fn = record, .buf = buf};
    void *scratch = scratch_of(cpu_gemm_scratch(g, 5));
    lib->gemm(lib->isa, pools[2], g, c->a, c->b, NULL, &ep, scratch, NULL);
    record_check(&r, all);
    gemm_close(c, r.out, AMPC_F32, "gemm epilogue");
    block_free(scratch);
    block_free(r.out);
    block_free(r.count);
}

/* Runs it at every level, compares with the reference, and frees it. */
static void gemm_check_levels(GemmCase *c) {
    int top = top_level();
    for (int level = 2; level <= top; level++)
        gemm_check_level(c, lib_of(level));
    gemm_free(c);
}

static void gemm_check(int64_t m, int64_t n, int64_t k, int f64) {
    GemmCase c;
    gemm_case(&c, m, n, k, f64);
    gemm_check_levels(&c);
}

TEST_CASE(gemm, small_shapes) {
    rng = 11;
    pools_open();
    for (int i = 0; i < 150; i++)
        gemm_check(rnd_in(1, 40), rnd_in(1, 70), rnd_in(0, 40), i % 10 == 0);
    pools_close();
}

/* Computes 1 x + 0 for n elements in that many rows. */
static void convert(int level, int64_t rows, int64_t n, const void *x,
                    int64_t from, void *y, int64_t to) {
    const AmpcCpuLib *lib = lib_of(level);
    LibGemm g = {.m = rows, .n = n, .k = 1, .a_rs = 1, .a_cs = 1, .b_rs = n};
    g.b_cs = 1, g.a_dtype = AMPC_F32, g.b_dtype = from, g.c_dtype = to;
    float ones[] = {1, 1, 1, 1, 1};
    size_t need = cpu_gemm_scratch(&g, 1);
    void *scratch = scratch_of(need);
    lib->gemm(lib->isa, NULL, &g, ones, x, y, NULL, scratch, NULL);
    scratch_check(scratch, need);
}

enum { HALVES = 1 << 16, BETWEEN = 1 << 19, ROWS = 5 };

/* All 16-bit numbers, and numbers below, at and above the middle of each two
   neighbours. */
TEST_CASE(half, routines_convert_as_half_h_does) {
    static const uint32_t low[] = {0, 1, 0xfff, 0x1000, 0x1001, 0x1fff};
    uint16_t *h = malloc(HALVES * sizeof *h), *got = malloc(BETWEEN * ROWS * 2);
    float *x = malloc(BETWEEN * sizeof *x), *wide = malloc(HALVES * ROWS * 4);
    REQUIRE(h && got && x && wide);
    for (int i = 0; i < HALVES; i++) h[i] = (uint16_t)i;
    for (int level = 2; level <= top_level(); level++)
        for (int64_t rows = 1; rows <= ROWS; rows += ROWS - 1) {
            int wrong = 0;
            convert(level, rows, HALVES, h, AMPC_F16, wide, AMPC_F32);
            for (int64_t i = 0; i < HALVES * rows; i++) {
                float want = 0.0f + f16_to_f32(h[i % HALVES]);
                wrong += memcmp(&want, &wide[i], sizeof want) != 0;
            }
            CHECK_MSG(wrong == 0, "level %d, %d rows: %d", level, (int)rows,
                      wrong);
        }
    for (size_t l = 0; l < sizeof low / sizeof *low; l++) {
        for (uint32_t i = 0; i < BETWEEN; i++) {
            uint32_t u = i << 13 | low[l];
            memcpy(&x[i], &u, sizeof u);
        }
        for (int level = 2; level <= top_level(); level++) {
            int wrong = 0;
            convert(level, ROWS, BETWEEN, x, AMPC_F32, got, AMPC_F16);
            for (int64_t i = 0; i < (int64_t)BETWEEN * ROWS; i++)
                wrong += got[i] != f32_to_f16(0.0f + x[i % BETWEEN]);
            CHECK_MSG(wrong == 0, "level %d, %x: %d", level, low[l], wrong);
        }
    }
    free(h);
    free(got);
    free(x);
    free(wide);
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

TEST_CASE(gemm, few_rows) {
    static const int64_t cols[] = {1, 9, 100, 385, 1100};
    static const int64_t depth[] = {1, 15, 33, 300, 2070};
    rng = 27;
    pools_open();
    for (int64_t m = 1; m <= 9; m++)
        for (int i = 0; i < 5; i++)
            for (int how = 0; how < 4; how++) {
                GemmCase c;
                gemm_case(&c, m, cols[i], depth[(i + m) % 5], 0);
                LibGemm *g = &c.g;
                g->a_dtype = g->b_dtype = how & 1 ? AMPC_BF16 : AMPC_F32;
                g->nbatch_dim = 0;
                g->a_rs = g->k;
                g->a_cs = 1;
                g->b_rs = how & 2 ? 1 : g->n;
                g->b_cs = how & 2 ? g->k : 1;
                block_free(c.a);
                block_free(c.b);
                c.a = array(g->a_dtype, g->m * g->k);
                c.b = array(g->b_dtype, g->k * g->n);
                c.batch = 1;
                gemm_reference(&c);
                gemm_check_levels(&c);
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

/* Each thread has enough columns to pack its own part of B. */
TEST_CASE(gemm, all_rows_by_some_columns) {
    rng = 37;
    pools_open();
    for (int i = 0; i < 8; i++)
        gemm_check(rnd_in(9, 300), rnd_in(336, 500), rnd_in(8, 60), 0);
    pools_close();
}

/* Elements stored as bf16 are rounded to nearest even at every position in a
   row, and NaN stays NaN, whatever its bits. One row, few rows, and panels. */
TEST_CASE(gemm, results_are_rounded_at_every_place) {
    static const uint32_t bits[] = {
        0x3f808000, 0x3f818000, 0x3f807fff, 0x3f808001, 0xbf808000, 0xbf818000,
        0x7f7fffff, 0xff7fffff, 0x7f800000, 0xff800000, 0x7f800001, 0xff800001,
        0x7fffffff, 0xffffffff, 0x7fc00000, 0x00008000, 0x00018000, 0x80008001};
    enum { N = 117, CASES = sizeof bits / sizeof *bits };
    pools_open();
    for (int64_t m = 1; m <= 33; m += 8) {
        LibGemm g = {.m = m,
                     .n = N,
                     .k = 1,
                     .a_rs = 1,
                     .a_cs = 1,
                     .b_rs = N,
                     .b_cs = 1,
                     .a_dtype = AMPC_F32,
                     .b_dtype = AMPC_F32,
                     .c_dtype = AMPC_BF16};
        float *a = block((size_t)m * sizeof *a);
        float *b = block(N * sizeof *b);
        for (int64_t i = 0; i < m; i++) a[i] = 1;
        for (int i = 0; i < N; i++) b[i] = bits_float(bits[i % CASES]);
        int top = top_level();
        for (int level = 2; level <= top; level++) {
            const AmpcCpuLib *lib = lib_of(level);
            uint16_t *out = block((size_t)(m * N) * sizeof *out);
            void *scratch = scratch_of(cpu_gemm_scratch(&g, 1));
            lib->gemm(lib->isa, pools[0], &g, a, b, out, NULL, scratch, NULL);
            for (int64_t i = 0; i < m * N; i++) {
                float got = bf16_to_f32(out[i]), x = b[i % N];
                float want = bf16_to_f32(f32_to_bf16(x));
                CHECK_MSG(isnan(want) ? isnan(got) : got == want,
                          "level %d, %d rows, %d: %a, want %a", level, (int)m,
                          (int)i, (double)got, (double)want);
            }
            block_free(scratch);
            block_free(out);
        }
        block_free(b);
        block_free(a);
    }
    pools_close();
}

/* Sums longer than a block of k, of 16 bits, in every storage order of the
   operands; alone and in a batch, whose items pack for themselves. */
TEST_CASE(gemm, long_sums_of_16_bits) {
    rng = 14;
    pools_open();
    for (int how = 0; how < 32; how++) {
        int64_t m = how & 1 ? 11 : 5, n = how & 2 ? 384 : 391, k = 1703;
        int along_a = how & 4, along_b = how & 8;
        GemmCase c = {.g = {.m = m,
                            .n = n,
                            .k = k,
                            .a_rs = along_a ? k : 1,
                            .a_cs = along_a ? 1 : m,
                            .b_rs = along_b ? 1 : n,
                            .b_cs = along_b ? k : 1,
                            .nbatch_dim = 1,
                            .batch_dim = {how & 16 ? 2 : 1},
                            .a_bs = {m * k},
                            .b_bs = {k * n},
                            .a_dtype = AMPC_BF16,
                            .b_dtype = AMPC_BF16,
                            .c_dtype = AMPC_F32}};
        c.batch = c.g.batch_dim[0];
        c.a = array(AMPC_BF16, c.batch * m * k);
        c.b = array(AMPC_BF16, c.batch * k * n);
        c.want = zeros(c.batch * m * n);
        c.slack = zeros(c.batch * m * n);
        gemm_reference(&c);
        gemm_check_levels(&c);
    }
    pools_close();
}

/* Waking a thread takes some microseconds, in which it could do 2^16
   multiply-adds; a large product on one thread alone is a failure. */
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
            block_gemm(&g, TILE_WIDENED, threads, 0, &p);
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

/* ---- attention ----------------------------------------------------------- */

/* q, k, v, dy, mask; lse, delta; and the expected results. */
typedef struct AttendCase {
    LibAttend p;
    void *in[5];
    int64_t rng[2];
    float *sums[2];
    double *want[5];  /* y, lse, dq, dk, dv */
    double *terms[5]; /* sums of absolute values of each sum's terms */
    int64_t count[5];
    void *first[5]; /* results of one thread */
} AttendCase;

/* The element at column c of row i of matrix b. */
static int64_t attend_q(const LibAttend *p, int64_t b, int64_t i, int64_t c) {
    int64_t line = b / p->q_heads * p->t + i;
    return (line * p->q_width + p->q_first + b % p->q_heads) * p->d + c;
}
static int64_t attend_y(const LibAttend *p, int64_t b, int64_t i, int64_t c) {
    int64_t line = b / p->q_heads * p->t + i;
    return (line * p->q_heads + b % p->q_heads) * p->e + c;
}
static int64_t attend_key(const LibAttend *p, int64_t b, int64_t j, int64_t c) {
    int64_t line = b / p->kv_heads * p->u + j;
    if (!p->trans_b) return (b * p->d + c) * p->u + j;
    return (line * p->k_width + p->k_first + b % p->kv_heads) * p->d + c;
}
static int64_t attend_value(const LibAttend *p, int64_t b, int64_t j,
                            int64_t c) {
    int64_t line = b / p->kv_heads * p->u + j;
    return (line * p->v_width + p->v_first + b % p->kv_heads) * p->e + c;
}

/* The layout of the gradients. */
static LibAttend attend_grads(const LibAttend *p) {
    LibAttend g = *p;
    if (p->packed) return g;
    g.q_width = g.q_heads;
    g.k_width = g.v_width = g.kv_heads;
    g.q_first = g.k_first = g.v_first = 0;
    return g;
}

static double attend_score(const AttendCase *c, int64_t b, int64_t i,
                           int64_t j) {
    const LibAttend *p = &c->p;
    double s = 0;
    if (p->causal && j > i + p->offset) return -(double)INFINITY;
    for (int64_t f = 0; f < p->d; f++)
        s += array_get(c->in[0], p->q_dtype, attend_q(p, b, i, f)) *
             array_get(c->in[1], p->k_dtype, attend_key(p, b / p->group, j, f));
    s *= (double)lib_float(p->scale);
    if (!c->in[4]) return s;
    int64_t rows = p->mask_rows ? p->t : 1, cols = p->mask_cols ? p->u : 1;
    int64_t m = b / p->mask_div % p->mask_mod * rows * cols;
    return s + array_get(c->in[4], p->mask_dtype,
                         m + (p->mask_rows ? i * cols : 0) +
                             (p->mask_cols ? j : 0));
}

static void attend_add(AttendCase *c, int result, int64_t i, double x) {
    c->want[result][i] += x;
    c->terms[result][i] += fabs(x);
}

/* Adds one row of scores to the results. */
static void attend_row(AttendCase *c, int64_t b, int64_t i, double *s) {
    const LibAttend *p = &c->p, to = attend_grads(p);
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
        int64_t at = attend_y(p, b, i, f);
        for (int64_t j = 0; j < p->u; j++)
            attend_add(
                c, 0, at,
                s[j] / sum * kept[j] *
                    array_get(c->in[2], p->v_dtype, attend_value(p, m, j, f)));
        delta += c->want[0][at] * array_get(c->in[3], p->y_dtype, at);
    }
    c->sums[1][attend_y(p, b, i, 0) / p->e] = (float)delta;
    for (int64_t j = 0; j < p->u; j++) {
        double dp = 0, g;
        for (int64_t f = 0; f < p->e; f++) {
            g = array_get(c->in[3], p->y_dtype, attend_y(p, b, i, f));
            dp += g * array_get(c->in[2], p->v_dtype, attend_value(p, m, j, f));
            attend_add(c, p->packed ? 2 : 4, attend_value(&to, m, j, f),
                       s[j] / sum * kept[j] * g);
        }
        dp = s[j] / sum * (dp * kept[j] - delta) * (double)lib_float(p->scale);
        for (int64_t f = 0; f < p->d; f++) {
            int64_t key = attend_key(p, m, j, f);
            attend_add(c, 2, attend_q(&to, b, i, f),
                       dp * array_get(c->in[1], p->k_dtype, key));
            attend_add(
                c, p->packed ? 2 : 3, attend_key(&to, m, j, f),
                dp * array_get(c->in[0], p->q_dtype, attend_q(p, b, i, f)));
        }
    }
    block_free(kept);
}

/* In products of bf16 pairs one factor of each term is rounded; the other is
   exact. */
static void attend_close(const AttendCase *c, int i, const void *got,
                         int64_t dtype, int level) {
    static const char *const name[] = {"y", "lse", "dq", "dk", "dv"};
    const LibAttend *p = &c->p;
    int pairs = level >= AMPC_ISA_V4 && p->q_dtype == AMPC_BF16 &&
                p->k_dtype == AMPC_BF16 && p->v_dtype == AMPC_BF16 &&
                p->y_dtype == AMPC_BF16;
    for (int64_t k = 0; k < c->count[i]; k++) {
        double want = c->want[i][k], x = array_get(got, dtype, k);
        double tol = 2e-4 + unit(dtype) * fabs(want) +
                     (pairs ? unit(AMPC_BF16) * c->terms[i][k] : 0);
        if (!CHECK_MSG(x == want || fabs(x - want) <= tol, "%s %d: %g want %g",
                       name[i], (int)k, x, want))
            return;
    }
}

static void attend_compare(AttendCase *c, int level, AmpcPool *pool,
                           int threads) {
    const LibAttend *p = &c->p;
    const AmpcCpuLib *lib = lib_of(level);
    size_t need[] = {cpu_attend_scratch(p, threads),
                     cpu_attend_grad_scratch(p, threads)};
    const int64_t dtype[] = {p->y_dtype, AMPC_F32, p->dq_dtype, p->dk_dtype,
                             p->dv_dtype};
    void *out[5], *scratch[] = {scratch_of(need[0]), scratch_of(need[1])};
    for (int i = 0; i < 5; i++) out[i] = array(dtype[i], c->count[i]);
    lib->attend(lib->isa, pool, p, c->in[0], c->in[1], c->in[2], c->in[4],
                c->rng, out[0], out[1], scratch[0]);
    lib->attend_grad(lib->isa, pool, p, c->in[0], c->in[1], c->in[2], c->in[3],
                     c->sums[0], c->sums[1], c->in[4], c->rng, out[2], out[3],
                     out[4], scratch[1]);
    for (int i = 0; i < 5; i++) {
        size_t bytes = (size_t)c->count[i] * size_of(dtype[i]);
        attend_close(c, i, out[i], dtype[i], level);
        if (threads > 1)
            CHECK_MSG(!memcmp(out[i], c->first[i], bytes),
                      "result %d: %d threads", i, threads);
        block_free(threads > 1 ? out[i] : c->first[i]);
        if (threads == 1) c->first[i] = out[i];
    }
    for (int i = 0; i < 2; i++) scratch_check(scratch[i], need[i]);
}

static int past_blocks;

/* Heads are stored beside rows, with others around them; or one value has
   all heads. */
static void attend_beside(LibAttend *p, int64_t heads) {
    p->trans_b = 1;
    p->kv_heads = heads;
    p->q_heads = heads * p->group;
    p->packed = rnd() % 2;
    p->q_first = rnd_in(0, 2);
    p->k_first = rnd_in(0, 2);
    p->v_first = rnd_in(0, 2);
    p->q_width = p->q_first + p->q_heads + rnd_in(0, 2);
    p->k_width = p->k_first + heads + rnd_in(0, 2);
    p->v_width = p->v_first + heads + rnd_in(0, 2);
    if (!p->packed) return;
    p->u = p->t;
    p->e = p->d;
    p->q_width = p->k_width = p->v_width = p->q_heads + 2 * heads;
    p->v_first = 0;
    p->q_first = heads;
    p->k_first = heads + p->q_heads;
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
                          .q_heads = 1,
                          .q_width = 1,
                          .kv_heads = 1,
                          .k_width = 1,
                          .v_width = 1,
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
    if (past_blocks) { /* parts of keys and of queries */
        p->causal = 1;
        p->t = rnd_in(size / 2, size), p->u = rnd_in(size / 2, size);
        p->offset = rnd_in(-p->t, p->u);
    }
    if (p->drop) p->keep = lib_bits(1.0f / (1.0f - (float)p->drop * 0x1p-24f));
    if (rnd() % 2) attend_beside(p, heads);
    if (rnd() % 2) p->mask_div = heads * group; /* one for each sample */
    if (rnd() % 2) p->mask_mod = p->batch / p->mask_div;
    int64_t q = p->batch * p->t, k = p->batch / group * p->u;
    int64_t q_lines = q / p->q_heads, k_lines = k / p->kv_heads;
    const int64_t count[] = {
        q * p->e, 2 * q, p->packed ? q_lines * p->q_width * p->d : q * p->d,
        p->packed ? 0 : k * p->d, p->packed ? 0 : k * p->e};
    for (int i = 0; i < 5; i++) {
        c.want[i] = zeros(c.count[i] = count[i]);
        c.terms[i] = zeros(count[i]);
    }
    c.in[0] = array(p->q_dtype, q_lines * p->q_width * p->d);
    c.in[1] = array(p->k_dtype, k_lines * p->k_width * p->d);
    c.in[2] = array(p->v_dtype, k_lines * p->v_width * p->e);
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
    for (int i = 0; i < 5; i++) block_free(c.in[i]);
    for (int i = 0; i < 2; i++) block_free(c.sums[i]);
    for (int i = 0; i < 5; i++) {
        block_free(c.want[i]);
        block_free(c.terms[i]);
        block_free(c.first[i]);
    }
    block_free(scores);
}

TEST_CASE(attend, random_shapes) {
    rng = 47;
    pools_open();
    for (int i = 0; i < 48; i++) attend_case(i % 6 ? 60 : 300);
    pools_close();
}

TEST_CASE(attend, windows_past_blocks) {
    rng = 49;
    pools_open();
    past_blocks = 1;
    for (int i = 0; i < 8; i++) attend_case(280);
    past_blocks = 0;
    pools_close();
}

TEST_CASE(attend, pairs_of_bf16) {
    rng = 48;
    pools_open();
    only_bf16 = 1;
    for (int i = 0; i < 30; i++) attend_case(i % 6 ? 60 : 300);
    only_bf16 = 0;
    pools_close();
}

/* ---- scatter-add, argmax ------------------------------------------------- */

/* Indices of each integer type, around both ends of the range. */
static const struct IndexType {
    int64_t dtype, least, most;
    size_t bytes;
} index_types[] = {
    {AMPC_I64, INT32_MIN, INT32_MAX, 8}, {AMPC_I32, INT32_MIN, INT32_MAX, 4},
    {AMPC_U64, 0, INT32_MAX, 8},         {AMPC_U32, 0, UINT32_MAX, 4},
    {AMPC_I16, INT16_MIN, INT16_MAX, 2}, {AMPC_U16, 0, UINT16_MAX, 2},
    {AMPC_I8, INT8_MIN, INT8_MAX, 1},    {AMPC_U8, 0, UINT8_MAX, 1}};
enum { INDEX_TYPES = sizeof index_types / sizeof *index_types };

static void scatter_case(int which) {
    LibScatterAdd s = {rnd_in(1, 3),   rnd_in(1, 50), rnd_in(0, 200),
                       rnd_in(1, 300), rnd_float(),   AMPC_I64,
                       rnd_float()};
    if (rnd() % 2)
        s.inner = rnd_in(1, 16); /* about as many as a vector, or
                                    fewer */
    if (rnd() % 5 == 0) s.src_dtype = s.out_dtype = AMPC_F64;
    const struct IndexType *type = &index_types[which];
    s.idx_dtype = type->dtype;
    int64_t nsrc = s.outer * s.nidx * s.inner;
    int64_t nout = s.outer * s.rows * s.inner;
    void *src = array(s.src_dtype, nsrc);
    void *idx = block((size_t)s.nidx * 8);
    double *want = zeros(nout);
    for (int64_t i = 0; i < s.nidx; i++) {
        int64_t t = rnd_in(-s.rows - 1, s.rows); /* out of range at both ends */
        if (rnd() % 8 == 0) t = rnd() % 2 ? type->least : type->most;
        t = t < type->least ? type->least : t > type->most ? type->most : t;
        memcpy((char *)idx + (size_t)i * type->bytes, &t, type->bytes);
        if (t < 0) t += s.rows;
        if (t < 0 || t >= s.rows) continue;
        for (int64_t o = 0; o < s.outer; o++)
            for (int64_t j = 0; j < s.inner; j++)
                want[(o * s.rows + t) * s.inner + j] +=
                    array_get(src, s.src_dtype, (o * s.nidx + i) * s.inner + j);
    }
    int top = top_level();
    for (int level = 2; level <= top; level++)
        for (int t = 0; t < 3; t++) {
            size_t need = cpu_scatter_add_scratch(&s, thread_counts[t]);
            void *out = array(s.out_dtype, nout), *scratch = scratch_of(need);
            lib_of(level)->scatter_add(pools[t], &s, src, idx, out, scratch);
            array_close("scatter_add", out, s.out_dtype, want, 1e-4, nout);
            scratch_check(scratch, need);
            block_free(out);
        }
    block_free(src);
    block_free(idx);
    block_free(want);
}

TEST_CASE(scatter_add, random_shapes) {
    rng = 41;
    pools_open();
    for (int i = 0; i < 12 * INDEX_TYPES; i++) scatter_case(i % INDEX_TYPES);
    pools_close();
}

static void argmax_case(void) {
    static const int64_t types[] = {AMPC_F32, AMPC_BF16, AMPC_F16, AMPC_F64};
    LibArgmax a = {rnd_in(1, 30), rnd_in(1, 40), rnd_in(1, 5), types[rnd() % 4],
                   AMPC_I64};
    int64_t n = a.outer * a.inner;
    void *x = array(a.dtype, n * a.axis);
    for (int64_t i = 0; i < n * a.axis; i++)
        array_set(x, a.dtype, i, (double)rnd_in(-4, 4)); /* many ties */
    int64_t *want = block((size_t)n * 8), *got = block((size_t)n * 8);
    for (int64_t i = 0; i < n; i++) {
        int64_t from = i / a.inner * a.axis * a.inner + i % a.inner;
        want[i] = 0;
        for (int64_t k = 1; k < a.axis; k++)
            if (array_get(x, a.dtype, from + k * a.inner) >
                array_get(x, a.dtype, from + want[i] * a.inner))
                want[i] = k;
    }
    int top = top_level();
    for (int level = 2; level <= top; level++)
        for (int t = 0; t < 3; t++) {
            lib_of(level)->argmax(pools[t], &a, x, got);
            CHECK(memcmp(want, got, (size_t)n * 8) == 0);
        }
    block_free(x);
    block_free(want);
    block_free(got);
}

TEST_CASE(argmax, first_of_the_largest) {
    rng = 51;
    pools_open();
    for (int i = 0; i < 60; i++) argmax_case();
    pools_close();
}

/* ---- cumulative sums ----------------------------------------------------- */

static void cumsum_case(void) {
    LibCumsum c = {.outer = rnd_in(1, 4),
                   .axis = rnd_in(1, 300),
                   .inner = rnd() % 2 ? rnd_in(1, 9) : rnd_in(1, 600),
                   .exclusive = rnd() % 2,
                   .reverse = rnd() % 2,
                   .dtype = rnd_float(),
                   .out_dtype = rnd_float()};
    int64_t n = c.outer * c.axis * c.inner;
    void *x = array(c.dtype, n), *y = array(c.out_dtype, n);
    double *want = zeros(n);
    for (int64_t o = 0; o < c.outer; o++)
        for (int64_t i = 0; i < c.inner; i++) {
            double sum = 0;
            for (int64_t k = 0; k < c.axis; k++) {
                int64_t a = c.reverse ? c.axis - 1 - k : k;
                int64_t at = (o * c.axis + a) * c.inner + i;
                want[at] = sum;
                sum += array_get(x, c.dtype, at);
                if (!c.exclusive) want[at] = sum;
            }
        }
    int top = top_level();
    for (int level = 2; level <= top; level++)
        for (int t = 0; t < 3; t++) {
            lib_of(level)->cumsum(pools[t], &c, x, y);
            array_close("cumsum", y, c.out_dtype, want, 1e-3, n);
        }
    block_free(x);
    block_free(y);
    block_free(want);
}

TEST_CASE(cumsum, random_shapes) {
    rng = 59;
    pools_open();
    for (int i = 0; i < 60; i++) cumsum_case();
    pools_close();
}

/* ---- argsort ------------------------------------------------------------- */

/* True if element i of a row is sorted before element j. */
static int comes_before(const LibArgsort *a, const void *x, int64_t row,
                        int64_t i, int64_t j) {
    double p = array_get(x, a->dtype, row + i);
    double q = array_get(x, a->dtype, row + j);
    if (isnan(p) != isnan(q)) return isnan(p) == !!a->descending;
    if (isnan(p) || p == q) return i < j;
    return (p > q) == !!a->descending;
}

/* Each position occurs once, before all later ones and all that are left
   out, including the last. */
static void argsort_check(const LibArgsort *a, const void *x,
                          const int32_t *got) {
    char *seen = block((size_t)a->n);
    for (int64_t r = 0; r < a->rows; r++, got += a->k) {
        int64_t row = r * a->n, wrong = 0;
        memset(seen, 0, (size_t)a->n);
        for (int64_t i = 0; i < a->k; i++) {
            REQUIRE(got[i] >= 0 && got[i] < a->n && !seen[got[i]]);
            seen[got[i]] = 1;
            wrong += i && !comes_before(a, x, row, got[i - 1], got[i]);
        }
        for (int64_t i = 0; i < a->n; i++)
            wrong += !seen[i] && !comes_before(a, x, row, got[a->k - 1], i);
        if (!CHECK_MSG(wrong == 0, "row %lld of %lld, first %lld, dtype %lld",
                       (long long)r, (long long)a->n, (long long)a->k,
                       (long long)a->dtype))
            break;
    }
    block_free(seen);
}

/* Ties, zeros of both signs, NaN; sorted, or in any order. */
static void argsort_fill(const LibArgsort *a, void *x) {
    static const double odd[] = {-0.0, NAN, -NAN, INFINITY, -INFINITY};
    int i8 = a->dtype == AMPC_I8, whole = i8 || a->dtype == AMPC_I32;
    int64_t most = i8 ? 127 : rnd() % 2 ? 9 : 1 << 20, way = rnd_in(-2, 1);
    for (int64_t i = 0; i < a->rows * a->n; i++) {
        double v = (double)rnd_in(-most, most);
        if (way > -1 && !i8) v = (double)(way ? i : -i);
        if (!whole && rnd() % 50 == 0) v = odd[rnd() % 5];
        array_set(x, a->dtype, i, v);
    }
}

static void argsort_case(int64_t rows, int64_t n, int64_t k) {
    static const int64_t types[] = {AMPC_F32, AMPC_BF16, AMPC_F16, AMPC_F64,
                                    AMPC_F32, AMPC_I32,  AMPC_I8,  AMPC_F32};
    LibArgsort a = {rows, n, k, rnd() % 2, types[rnd() % 8], AMPC_I32};
    size_t bytes = (size_t)(rows * k) * 4;
    void *x = array(a.dtype, rows * n);
    int32_t *got = block(bytes), *first = block(bytes);
    int top = top_level();
    argsort_fill(&a, x);
    for (int level = 2; level <= top; level++)
        for (int t = 0; t < 3; t++) {
            size_t need = cpu_argsort_scratch(&a, thread_counts[t]);
            void *scratch = scratch_of(need);
            lib_of(level)->argsort(pools[t], &a, x, got, scratch);
            scratch_check(scratch, need);
            if (level == 2 && t == 0) {
                argsort_check(&a, x, got);
                memcpy(first, got, bytes);
            }
            CHECK_MSG(memcmp(first, got, bytes) == 0,
                      "%lld of %lld, level %d, pool %d", (long long)k,
                      (long long)n, level, t);
        }
    block_free(x);
    block_free(got);
    block_free(first);
}

TEST_CASE(argsort, random_shapes) {
    rng = 53;
    pools_open();
    for (int i = 0; i < 120; i++) {
        int64_t n = rnd_in(1, i % 3 ? 100 : 2000);
        argsort_case(rnd_in(1, 9), n, rnd() % 3 ? rnd_in(1, n) : 1 + n / 20);
    }
    for (int i = 0; i < 12; i++) {
        int64_t n = rnd_in(1 << 15, 1 << 16);
        argsort_case(rnd_in(1, 2), n, i % 3 ? rnd_in(1, n / 50) : n);
    }
    pools_close();
}

/* The answer of a new process under this AMPC_ISA. */
static int dot_under(const char *isa) {
    setenv("AMPC_ISA", isa, 1);
    cpu_bf16_dot_force(-1);
    return cpu_bf16_dot();
}

/* The flags with which runtime/BUILD compiles a level's routines; NULL: it
   does not name the level. */
#define ISA_HERE
#define ISA(E, number, name, prefix, arch, vectors, flags)                     \
    extern const char ampc_v##number##_flags[] __attribute__((weak));          \
    extern const char ampc_v##number##_vectors[] __attribute__((weak));
#include "runtime/cpu/isa.def"

TEST_CASE(isa, runtime_build_has_the_rows_of_isa_def) {
    static const struct {
        const char *name, *flags, *built, *vectors, *built_vectors;
    } rows[] = {
#define ISA_HERE
#define ISA(E, number, name, prefix, arch, vectors, flags)                     \
    {name, flags, ampc_v##number##_flags, vectors, ampc_v##number##_vectors},
#include "runtime/cpu/isa.def"
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const char *built = rows[i].built ? rows[i].built : "nothing";
        const char *flags = rows[i].flags ? rows[i].flags : "nothing";
        CHECK_MSG(!strcmp(built, flags), "%s: isa.def has %s, runtime/BUILD %s",
                  rows[i].name, flags, built);
        built = rows[i].built_vectors ? rows[i].built_vectors : "nothing";
        const char *vectors = rows[i].vectors ? rows[i].vectors : "nothing";
        CHECK_MSG(!strcmp(built, vectors),
                  "%s: isa.def has %s, runtime/BUILD %s", rows[i].name, vectors,
                  built);
    }
}

/* Code must ask for a level's features (simd.h), never for its number: other
   machines do not have these numbers. */
TEST_CASE(isa, no_routine_compares_levels) {
    char line[1000];
    int n = 0;
    FILE *p =
        popen("grep -nE '(ISA_LEVEL *[=!<>]|[=!<>] *ISA_LEVEL|"
              "__(AVX|SSE|x86_64)|^#include AMPC_SIMD)' runtime/cpu/*_isa.c "
              "runtime/cpu/*.h",
              "r");
    REQUIRE(p != NULL);
    for (; fgets(line, sizeof line, p); n++)
        CHECK_MSG(strstr(line, "#include AMPC_SIMD") ||
                      strstr(line, "runtime/cpu/kmath"),
                  "ask for a HAS_ or SIMD_ of the level instead: %s", line);
    pclose(p);
    CHECK(n > 0);
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
    CHECK(top >= AMPC_ISA_V2 && top <= AMPC_ISA_AMX);
    int least = top < AMPC_ISA_V4 ? top : AMPC_ISA_V4;
    setenv("AMPC_ISA", "v2", 1);
    CHECK_EQ_INT(cpu_isa_level(), AMPC_ISA_V2);
    setenv("AMPC_ISA", "v4", 1);
    CHECK_EQ_INT(cpu_isa_level(), least);
    static const char *const unknown[] = {"fast", "v3-dot", "v4-fast", "v5",
                                          "V3",   "v3 ",    "2",       "v22"};
    for (size_t i = 0; i < sizeof unknown / sizeof *unknown; i++) {
        setenv("AMPC_ISA", unknown[i], 1);
        CHECK_STR(cpu_isa_unknown(), unknown[i]);
    }
    static const char *const known[] = {"",       "v2",     "v3",    "v4",
                                        "v4-amx", "v4-dot", "v4-fma"};
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        setenv("AMPC_ISA", known[i], 1);
        CHECK(!cpu_isa_unknown());
        CHECK_MSG(!*known[i] || strstr(CPU_ISA_WORDS, known[i]), "%s",
                  known[i]);
    }
    if (kept)
        setenv("AMPC_ISA", kept, 1);
    else
        unsetenv("AMPC_ISA");
    free(kept);
}
