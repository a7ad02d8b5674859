/* gemm_isa.c: C = A * B with packed blocks.

   An item is one block of C (mc x nc) of one matrix of the batch, over one
   slice of k.  Its worker packs the blocks of A and B it needs, multiplies
   tile by tile, and hands each finished panel of columns to the epilogue.
   With slices of k the panels go to `partial` first and a second round adds
   them in order.                                                            */
#include "runtime/cpu/block.h"
#include "runtime/cpu/lib.h"
#include "runtime/cpu/pack.h"

typedef struct GemmRun {
    const CpuGemm *g;
    const void *a, *b;
    void *c;
    const CpuEpilogue *ep;
    GemmBlocks p;
    float *partial;
    char *workers;
} GemmRun;

/* One block of C in the making. */
typedef struct GemmItem {
    int64_t batch, slice;
    int64_t m0, n0, m, n;   /* rows and columns of C                        */
    int64_t k0, k1;         /* range of k                                   */
    PackSrc a, b;           /* at (0, 0) of this matrix of the batch        */
    float *pa, *pb, *acc;   /* the worker's buffers                         */
} GemmItem;

static int64_t gemm_offset(const CpuGemm *g, const int64_t *stride, int64_t b)
{
    int64_t off = 0;
    for (int64_t i = g->nbatch_dim - 1; i >= 0; i--) {
        off += b % g->batch_dim[i] * stride[i];
        b /= g->batch_dim[i];
    }
    return off;
}

static void gemm_store(const GemmRun *r, const float *acc, int64_t ld,
                       int64_t batch, int64_t row, int64_t col, int64_t rows,
                       int64_t cols)
{
    if (r->ep && r->ep->fn) {
        r->ep->fn(r->ep->buf, r->ep->par, acc, ld, batch, row, col, rows, cols);
        return;
    }
    for (int64_t i = 0; i < rows; i++)
        narrow(r->c, (int)r->g->c_dtype,
               ((batch * r->g->m) + row + i) * r->g->n + col, acc + i * ld,
               cols);
}

static void gemm_finish(const GemmRun *r, const GemmItem *it, const float *acc,
                        int64_t ld, int64_t col, int64_t cols)
{
    if (r->p.nsplit == 1) {
        gemm_store(r, acc, ld, it->batch, it->m0, it->n0 + col, it->m, cols);
        return;
    }
    float *to = r->partial +
                ((it->slice * r->p.batch + it->batch) * r->g->m + it->m0) *
                    r->g->n +
                it->n0 + col;
    for (int64_t i = 0; i < it->m; i++)
        widen_as(to + i * r->g->n, acc + i * ld, AMPC_F32, 0, cols);
}

/* Multiplies the packed blocks of k elements; `first` and `last` say where the
   block lies in k.                                                          */
static void gemm_block(const GemmRun *r, const GemmItem *it, int64_t k,
                       int first, int last)
{
    int once = first && last; /* then acc holds one panel, else the block */
    int64_t ld = once ? NR : round_up(it->n, VL);
    int64_t left = ceil_div(it->n, VL);
    const float *b = it->pb;
    for (int64_t j = 0; j < it->n;) {
        int w = tile_width(left);
        float *c = once ? it->acc : it->acc + j;
        const float *a = it->pa;
        for (int64_t i = 0; i < it->m; i += MR, a += MR * k)
            ISA(tile_panel)[min64(MR, it->m - i) - 1][w - 1](
                k, a, b, w * VL, c + i * ld, ld, !first);
        if (last)
            gemm_finish(r, it, c, ld, j, min64(w * VL, it->n - j));
        b += w * VL * k;
        j += w * VL;
        left -= w;
    }
}

static void gemm_item(const GemmRun *r, GemmItem *it)
{
    int64_t k = it->k0;
    do { /* once even if k is empty: C is zero then */
        int64_t kc = min64(r->p.kc, it->k1 - k);
        PackSrc a = it->a, b = it->b;
        a.p = at(a.p, a.dtype, it->m0 * a.rs + k * a.cs);
        b.p = at(b.p, b.dtype, k * b.rs + it->n0 * b.cs);
        ISA(pack_a)(it->pa, &a, it->m, kc);
        ISA(pack_b)(it->pb, &b, kc, it->n);
        gemm_block(r, it, kc, k == it->k0, k + kc == it->k1);
        k += kc;
    } while (k < it->k1);
}

static void gemm_work(void *ctx, int64_t lo, int64_t hi, int worker)
{
    const GemmRun *r = ctx;
    const CpuGemm *g = r->g;
    char *own = r->workers + (size_t)worker * (r->p.a + r->p.b + r->p.acc);
    for (int64_t i = lo; i < hi; i++) {
        GemmItem it = {.pa = (float *)(void *)own,
                       .pb = (float *)(void *)(own + r->p.a),
                       .acc = (float *)(void *)(own + r->p.a + r->p.b)};
        int64_t rest = i / r->p.mblocks;
        it.m0 = i % r->p.mblocks * r->p.mc;
        it.n0 = rest % r->p.nblocks * r->p.nc;
        rest /= r->p.nblocks;
        it.slice = rest % r->p.nsplit;
        it.batch = rest / r->p.nsplit;
        it.m = min64(r->p.mc, g->m - it.m0);
        it.n = min64(r->p.nc, g->n - it.n0);
        it.k0 = min64(it.slice * r->p.ksplit, g->k);
        it.k1 = min64(it.k0 + r->p.ksplit, g->k);
        int64_t ao = gemm_offset(g, g->a_bs, it.batch);
        int64_t bo = gemm_offset(g, g->b_bs, it.batch);
        it.a = (PackSrc){at(r->a, (int)g->a_dtype, ao), (int)g->a_dtype,
                         g->a_rs, g->a_cs};
        it.b = (PackSrc){at(r->b, (int)g->b_dtype, bo), (int)g->b_dtype,
                         g->b_rs, g->b_cs};
        gemm_item(r, &it);
    }
}

/* ---- adding the slices --------------------------------------------------- */

enum { GEMM_SUM_COLS = 48 };

/* Rows [lo, hi) in groups of MR of all matrices. */
static void gemm_sum(void *ctx, int64_t lo, int64_t hi, int worker)
{
    const GemmRun *r = ctx;
    const CpuGemm *g = r->g;
    int64_t groups = ceil_div(g->m, MR), all = r->p.batch * g->m * g->n;
    float acc[MR * GEMM_SUM_COLS];
    (void)worker;
    for (int64_t i = lo; i < hi; i++) {
        int64_t batch = i / groups, row = i % groups * MR;
        int64_t rows = min64(MR, g->m - row);
        for (int64_t col = 0; col < g->n; col += GEMM_SUM_COLS) {
            int64_t cols = min64(GEMM_SUM_COLS, g->n - col);
            for (int64_t y = 0; y < rows; y++) {
                const float *p = r->partial +
                                 (batch * g->m + row + y) * g->n + col;
                float *to = acc + y * GEMM_SUM_COLS;
                for (int64_t x = 0; x < cols; x++) to[x] = p[x];
                for (int64_t s = 1; s < r->p.nsplit; s++)
                    for (int64_t x = 0; x < cols; x++) to[x] += p[s * all + x];
            }
            gemm_store(r, acc, GEMM_SUM_COLS, batch, row, col, rows, cols);
        }
    }
}

/* ---- f64 ----------------------------------------------------------------- */

enum { GEMM_F64_ROWS = 4, GEMM_F64_COLS = 32 };

static void gemm_f64_tile(const CpuGemm *g, const double *a, const double *b,
                          double *c, int64_t rows, int64_t cols)
{
    double acc[GEMM_F64_ROWS][GEMM_F64_COLS] = {{0}};
    for (int64_t k = 0; k < g->k; k++) {
        double row[GEMM_F64_COLS] = {0};
        for (int64_t j = 0; j < cols; j++) row[j] = b[k * g->b_rs + j * g->b_cs];
        for (int64_t i = 0; i < rows; i++) {
            double x = a[i * g->a_rs + k * g->a_cs];
            for (int j = 0; j < GEMM_F64_COLS; j++) acc[i][j] += x * row[j];
        }
    }
    for (int64_t i = 0; i < rows; i++)
        for (int64_t j = 0; j < cols; j++) c[i * g->n + j] = acc[i][j];
}

static void gemm_f64_work(void *ctx, int64_t lo, int64_t hi, int worker)
{
    const GemmRun *r = ctx;
    const CpuGemm *g = r->g;
    int64_t rblocks = ceil_div(g->m, GEMM_F64_ROWS);
    (void)worker;
    for (int64_t i = lo; i < hi; i++) {
        int64_t batch = i / rblocks, row = i % rblocks * GEMM_F64_ROWS;
        int64_t rows = min64(GEMM_F64_ROWS, g->m - row);
        const double *a = (const double *)r->a +
                          gemm_offset(g, g->a_bs, batch) + row * g->a_rs;
        const double *b = (const double *)r->b +
                          gemm_offset(g, g->b_bs, batch);
        double *c = (double *)r->c + (batch * g->m + row) * g->n;
        for (int64_t col = 0; col < g->n; col += GEMM_F64_COLS)
            gemm_f64_tile(g, a, b + col * g->b_cs, c + col, rows,
                          min64(GEMM_F64_COLS, g->n - col));
    }
}

void ISA(gemm)(AmpcPool *pool, const CpuGemm *g, const void *a, const void *b,
               void *c, const CpuEpilogue *ep, void *scratch)
{
    GemmRun r = {.g = g, .a = a, .b = b, .c = c, .ep = ep};
    block_gemm(g, pool_threads(pool), &r.p);
    if (g->a_dtype == AMPC_F64) {
        pool_run(pool, r.p.batch * ceil_div(g->m, GEMM_F64_ROWS), 1,
                 gemm_f64_work, &r);
        return;
    }
    r.partial = scratch;
    r.workers = (char *)scratch + r.p.partial;
    pool_run(pool, r.p.items, r.p.grain, gemm_work, &r);
    if (r.p.nsplit > 1)
        pool_run(pool, r.p.batch * ceil_div(g->m, MR), 1, gemm_sum, &r);
}
