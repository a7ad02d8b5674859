/* SPDX-License-Identifier: Apache-2.0 */
/* gemm.c: matrix products of every level beside a plain loop. */
#define _POSIX_C_SOURCE 200809L
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/cpu/block.h"
#include "runtime/cpu/kmath.h"
#include "tests/harness.h"
#include "tests/runtime/cpu_kernels/cpu_kernels.h"
#include "tests/support/cpu_cases.h"

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

/* Panels of a small B are kept for many rows. */
TEST_CASE(gemm, a_small_operand_is_kept_for_many_rows) {
    LibGemm g = {.m = 1100, .n = 70, .k = 40, .a_rs = 40, .a_cs = 1};
    g.b_rs = 70, g.b_cs = 1;
    g.a_dtype = g.b_dtype = g.c_dtype = AMPC_F32;
    CHECK(cpu_gemm_kept(&g, 2) > 0);
    g.n = g.b_rs = 8000;
    CHECK(cpu_gemm_kept(&g, 2) == 0);
    g.m = 500;
    CHECK(cpu_gemm_kept(&g, 2) > 0);
    rng = 38;
    pools_open();
    gemm_check(1100, 70, 40, 0);
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

/* Two threads pack for themselves what all items read: B for many rows, A for
   many columns; scratch memory holds it twice, and bits stay. */
TEST_CASE(gemm, each_worker_packs_what_all_read) {
    rng = 41;
    pools_open();
    for (int i = 0; i < 6; i++) {
        gemm_check(rnd_in(384, 560), rnd_in(17, 90), rnd_in(8, 60), 0);
        gemm_check(rnd_in(9, 70), rnd_in(384, 560), rnd_in(8, 60), 0);
    }
    LibGemm g = {.m = 400, .n = 40, .k = 50, .a_rs = 50, .a_cs = 1, .b_rs = 40};
    g.b_cs = 1;
    GemmBlocks two, many;
    block_gemm(&g, TILE_WIDENED, 2, GEMM_B_READ, &two);
    block_gemm(&g, TILE_WIDENED, 8, GEMM_B_READ, &many);
    CHECK(two.own && block_shared_b(&two) == 0);
    CHECK(!many.own && block_shared_b(&many) == many.b);
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

/* Items of 400 drawn products, and the work of the busiest thread, as they are
   today. A change of the cuts that means to change these numbers records them
   here; more work for the busiest thread needs a reason. */
TEST_CASE(gemm, cuts_are_as_recorded) {
    static const struct {
        int threads;
        long long items, busiest; /* busiest: permille of an equal part */
    } recorded[] = {{1, 3556, 1103},
                    {2, 3624, 1114},
                    {4, 3693, 1140},
                    {8, 3919, 1200},
                    {24, 4327, 1505}};
    for (size_t i = 0; i < sizeof recorded / sizeof *recorded; i++) {
        int threads = recorded[i].threads;
        long long items = 0;
        double busiest = 0, all = 0;
        rng = 17;
        for (int n = 0; n < 400; n++) {
            int64_t bits[4];
            for (int k = 0; k < 4; k++) bits[k] = rnd_in(0, k < 3 ? 11 : 4);
            LibGemm g = {.m = rnd_in(1, 1 << bits[0]),
                         .n = rnd_in(1, 1 << bits[1]),
                         .k = rnd_in(1, 1 << bits[2]),
                         .nbatch_dim = 1};
            g.batch_dim[0] = rnd_in(0, 2) ? 1 : 1 << bits[3];
            GemmBlocks p;
            int kind = n % 3;
            block_gemm(&g, kind, threads, (GemmB)(n % 2), &p);
            double high = p.columns ? (double)p.mblocks : 1;
            double rounds =
                ceil(ceil((double)p.items / (double)p.grain) / threads) *
                (double)p.grain;
            if ((double)p.items < rounds) rounds = (double)p.items;
            all += (double)(g.m * g.n * p.batch * p.nsplit);
            items += p.items;
            busiest += rounds * high * (double)(p.mc * p.nc);
        }
        long long permille = (long long)(busiest * threads * 1000 / all);
        CHECK_MSG(items == recorded[i].items && permille == recorded[i].busiest,
                  "400 products on %d threads: {%d, %lld, %lld}, recorded "
                  "{%d, %lld, %lld}",
                  threads, threads, items, permille, threads, recorded[i].items,
                  recorded[i].busiest);
    }
}
