/* gemm_isa.c: C = A * B with packed blocks.

   An item is one block of C (mc x nc) of one matrix of the batch, over one
   slice of k.  Its worker multiplies packed panels tile by tile and hands each
   finished strip of columns to the epilogue.  Of A, rows that lie as tiles can
   read them are not packed.  A single matrix has B packed whole by a round of
   its own, once where it is kept, and A if many items read the same of it;
   else, in a batch, or when they are huge, items pack the blocks they need.
   With slices of k the panels go to `partial` first and a last round adds them
   in order.

   Products of bf16 by bf16 may count k in pairs (tile kinds 1 and 2); what AMX
   tiles need is in amx.h.                                                   */
#include "runtime/cpu/amx.h"
#include "runtime/cpu/block.h"
#include "runtime/cpu/routines.h"

typedef struct GemmRun {
    const LibGemm *g;
    int kind; /* of tiles; but for 0 k below counts pairs of bf16          */
    const void *a, *b;
    void *c;
    const CpuEpilogue *ep;
    GemmBlocks p;
    float *partial;
    float *packed_a, *packed_b; /* of the whole operands, if prepacked      */
    char *workers;
} GemmRun;

/* One block of C in the making. */
typedef struct GemmItem {
    int64_t batch, slice;
    int64_t m0, n0, m, n; /* rows and columns of C                        */
    int64_t k0, k1;       /* range of k                                   */
    PackSrc a, b;         /* at (0, 0) of this matrix of the batch        */
    const float *rows;    /* of A, as they lie, lda apart                 */
    int64_t lda;
    float *pa, *pb, *acc; /* else packed panels; accumulators             */
} GemmItem;

/* Part of a packed product: k elements of panels that are so long, from there
   on.                                                                       */
typedef struct GemmPart {
    int64_t k, a_k0, a_all, b_k0, b_all;
    int first, last;
} GemmPart;

static int64_t gemm_offset(const LibGemm *g, const int64_t *stride, int64_t b) {
    int64_t off = 0;
    for (int64_t i = g->nbatch_dim - 1; i >= 0; i--) {
        off += b % g->batch_dim[i] * stride[i];
        b /= g->batch_dim[i];
    }
    return off;
}

static void gemm_store(const GemmRun *r, const float *acc, int64_t ld,
                       int64_t batch, int64_t row, int64_t col, int64_t rows,
                       int64_t cols) {
    if (r->ep && r->ep->fn) {
        r->ep->fn(r->ep->buf, acc, ld, batch, row, col, rows, cols);
        return;
    }
    narrow_rows(r->c, (int)r->g->c_dtype,
                (batch * r->g->m + row) * r->g->n + col, r->g->n, acc, ld, rows,
                cols);
}

static void gemm_finish(const GemmRun *r, const GemmItem *it, const float *acc,
                        int64_t ld, int64_t col, int64_t cols) {
    if (r->p.nsplit == 1) {
        gemm_store(r, acc, ld, it->batch, it->m0, it->n0 + col, it->m, cols);
        return;
    }
    float *to =
        r->partial +
        ((it->slice * r->p.batch + it->batch) * r->g->m + it->m0) * r->g->n +
        it->n0 + col;
    for (int64_t i = 0; i < it->m; i++)
        widen_as(to + i * r->g->n, acc + i * ld, AMPC_F32, 0, cols);
}

/* Where the tiles of a panel may leave C itself, fp32 to which nothing else is
   done; NULL where they would write beyond it.                              */
static float *gemm_direct(const GemmRun *r, const GemmItem *it, int64_t col,
                          int64_t cols) {
    const LibGemm *g = r->g;
    if (g->c_dtype != AMPC_F32 || (r->ep && r->ep->fn) || r->p.nsplit > 1)
        return NULL;
    if (cols > it->n - col || (on_tiles(r->kind) && it->m % AMX_ROWS))
        return NULL;
    return (float *)r->c + (it->batch * g->m + it->m0) * g->n + it->n0 + col;
}

/* All rows of an item by one panel of B. */
static void gemm_panels(const GemmRun *r, const GemmItem *it,
                        const GemmPart *part, int w, const float *b, float *c,
                        int64_t ld) {
    const float *a = it->pa + part->a_k0 * panel_rows(r->kind);
    int64_t height = panel_height(r->kind);
    for (int64_t i = 0; i < it->m; i += height)
        panel_product(r->kind, part->k, min64(height, it->m - i), w,
                      a + i * part->a_all, part->a_all, b, w * VL, c + i * ld,
                      ld, !part->first);
}

/* The same of A as it lies. */
static void gemm_rows(const GemmRun *r, const GemmItem *it,
                      const GemmPart *part, int w, const float *b, float *c,
                      int64_t ld) {
    for (int64_t i = 0; i < it->m; i += MR) {
        int64_t rows = min64(MR, it->m - i);
        TileRowsFn *tile = ISA(tile_rows)[r->kind][rows - 1][w - 1];
        tile(part->k, it->rows + i * it->lda + part->a_k0, it->lda, b, w * VL,
             c + i * ld, ld, !part->first);
    }
}

/* Two panels of columns are handed over at a time: at 16 bits compilers take
   twice as many elements for a vector, and one panel has no even number.    */
static void gemm_multiply(const GemmRun *r, const GemmItem *it,
                          const GemmPart *part) {
    int once = part->first && part->last; /* then acc holds but two panels */
    int64_t left = ceil_div(it->n, VL), done = 0;
    int64_t wide = once ? min64(left * VL, 2 * NR) : left * VL;
    for (int64_t j = 0; j < it->n;) {
        int w = panel_width(r->kind, left);
        float *direct = gemm_direct(r, it, j, w * VL);
        float *c = direct ? direct : it->acc + (once ? j - done : j);
        int64_t ld = direct ? r->g->n : wide;
        const float *b = it->pb + j * part->b_all + part->b_k0 * w * VL;
        if (r->p.a_as_is)
            gemm_rows(r, it, part, w, b, c, ld);
        else
            gemm_panels(r, it, part, w, b, c, ld);
        j += w * VL;
        left -= w;
        if (direct) {
            done = j;
        } else if (part->last && (j - done > NR || j >= it->n)) {
            gemm_finish(r, it, once ? it->acc : it->acc + done, ld, done,
                        min64(j, it->n) - done);
            done = j;
        }
    }
}

/* Rows m0 .. m0 + m - 1 of k columns from k0 on. */
static void gemm_pack_a(const GemmRun *r, float *dst, PackSrc s, int64_t m0,
                        int64_t m, int64_t k0, int64_t k) {
    int64_t first = r->kind ? 2 * k0 : k0;
    s.p = at(s.p, s.dtype, m0 * s.rs + first * s.cs);
    panel_pack_a(r->kind, dst, &s, m, k, r->g->k - first);
}

/* Columns n0 .. n0 + n - 1; rows k0 .. of panels that begin at row base. */
static void gemm_pack_b(const GemmRun *r, float *dst, PackSrc s, int64_t n0,
                        int64_t n, int64_t base, int64_t k0, int64_t k,
                        int64_t k_all) {
    int64_t first = r->kind ? 2 * k0 : k0;
    s.p = at(s.p, s.dtype, first * s.rs + n0 * s.cs);
    panel_pack_b(r->kind, dst, &s, k0 - base, k, k_all, n, r->g->k - first);
}

static void gemm_item(const GemmRun *r, GemmItem *it) {
    int64_t k = it->k0;
    do { /* once even if k is empty: C is zero then */
        int64_t kc = min64(r->p.kc, it->k1 - k);
        GemmPart part = {.k = kc,
                         .a_all = kc,
                         .b_all = kc,
                         .first = k == it->k0,
                         .last = k + kc == it->k1};
        if (r->p.a_as_is)
            part.a_k0 = k;
        else if (r->p.a_whole)
            part.a_k0 = k, part.a_all = r->p.k;
        else
            gemm_pack_a(r, it->pa, it->a, it->m0, it->m, k, kc);
        if (r->p.prepack)
            part.b_k0 = k, part.b_all = r->p.k;
        else
            gemm_pack_b(r, it->pb, it->b, it->n0, it->n, k, k, kc, kc);
        gemm_multiply(r, it, &part);
        k += kc;
    } while (k < it->k1);
}

/* Rows of A, and the worker's or the shared packed panels. */
static void gemm_buffers(const GemmRun *r, GemmItem *it, int worker) {
    const GemmBlocks *p = &r->p;
    size_t a = p->a_whole ? 0 : p->a, b = p->prepack ? 0 : p->b;
    char *own = r->workers + (size_t)worker * (a + b + p->acc);
    it->acc = (float *)(void *)(own + a + b);
    it->lda = r->kind == TILE_WIDENED ? r->g->a_rs : r->g->a_rs / 2;
    it->rows = (const float *)it->a.p + it->m0 * it->lda;
    it->pa = p->a_whole ? r->packed_a + it->m0 * r->p.k : (float *)(void *)own;
    it->pb =
        p->prepack ? r->packed_b + it->n0 * r->p.k : (float *)(void *)(own + a);
}

static PackSrc gemm_source(const GemmRun *r, int b, int64_t batch) {
    const LibGemm *g = r->g;
    int64_t off = gemm_offset(g, b ? g->b_bs : g->a_bs, batch);
    int dtype = (int)(b ? g->b_dtype : g->a_dtype);
    PackSrc s = {at(b ? r->b : r->a, dtype, off), dtype, b ? g->b_rs : g->a_rs,
                 b ? g->b_cs : g->a_cs};
    return s;
}

static void gemm_work(void *ctx, int64_t lo, int64_t hi, int worker) {
    const GemmRun *r = ctx;
    const LibGemm *g = r->g;
    if (on_tiles(r->kind)) amx_begin();
    for (int64_t i = lo; i < hi; i++) {
        GemmItem it;
        int64_t rest = i / r->p.mblocks;
        it.m0 = i % r->p.mblocks * r->p.mc;
        it.n0 = rest % r->p.nblocks * r->p.nc;
        rest /= r->p.nblocks;
        it.slice = rest % r->p.nsplit;
        it.batch = rest / r->p.nsplit;
        it.m = min64(r->p.mc, g->m - it.m0);
        it.n = min64(r->p.nc, g->n - it.n0);
        it.k0 = min64(it.slice * r->p.ksplit, r->p.k);
        it.k1 = min64(it.k0 + r->p.ksplit, r->p.k);
        it.a = gemm_source(r, 0, it.batch);
        it.b = gemm_source(r, 1, it.batch);
        gemm_buffers(r, &it, worker);
        gemm_item(r, &it);
    }
    if (on_tiles(r->kind)) amx_end();
}

/* ---- packing whole operands ---------------------------------------------- */

enum { GEMM_PACK_ROWS = 32, GEMM_PACK_K = 128, GEMM_PACK_GRAIN = 1 << 14 };

static int64_t gemm_pack_a_units(const GemmRun *r) {
    return r->p.a_whole ? ceil_div(r->g->m, GEMM_PACK_ROWS) : 0;
}

/* Units [lo, hi): groups of rows of A, then pieces of B's column blocks. */
static void gemm_pack_work(void *ctx, int64_t lo, int64_t hi, int worker) {
    const GemmRun *r = ctx;
    const LibGemm *g = r->g;
    int64_t a_units = gemm_pack_a_units(r);
    int64_t pieces = ceil_div(r->p.k, GEMM_PACK_K);
    (void)worker;
    for (int64_t i = lo; i < hi; i++) {
        PackSrc s = gemm_source(r, i >= a_units, 0);
        if (i < a_units) {
            int64_t m0 = i * GEMM_PACK_ROWS;
            gemm_pack_a(r, r->packed_a + m0 * r->p.k, s, m0,
                        min64(GEMM_PACK_ROWS, g->m - m0), 0, r->p.k);
        } else {
            int64_t k0 = (i - a_units) % pieces * GEMM_PACK_K;
            int64_t n0 = (i - a_units) / pieces * r->p.nc;
            gemm_pack_b(r, r->packed_b + n0 * r->p.k, s, n0,
                        min64(r->p.nc, g->n - n0), 0, k0,
                        min64(GEMM_PACK_K, r->p.k - k0), r->p.k);
        }
    }
}

static void gemm_prepack(AmpcPool *pool, GemmRun *r, int made) {
    int64_t b_units = made ? 0 : r->p.nblocks * ceil_div(r->p.k, GEMM_PACK_K);
    int64_t unit = GEMM_PACK_ROWS * r->p.k + 1;
    pool_run(pool, gemm_pack_a_units(r) + b_units,
             ceil_div(GEMM_PACK_GRAIN, unit), gemm_pack_work, r);
}

/* ---- adding the slices --------------------------------------------------- */

enum { GEMM_SUM_COLS = 48 };

/* Rows [lo, hi) in groups of MR of all matrices. */
static void gemm_sum(void *ctx, int64_t lo, int64_t hi, int worker) {
    const GemmRun *r = ctx;
    const LibGemm *g = r->g;
    int64_t groups = ceil_div(g->m, MR), all = r->p.batch * g->m * g->n;
    float acc[MR * GEMM_SUM_COLS];
    (void)worker;
    for (int64_t i = lo; i < hi; i++) {
        int64_t batch = i / groups, row = i % groups * MR;
        int64_t rows = min64(MR, g->m - row);
        for (int64_t col = 0; col < g->n; col += GEMM_SUM_COLS) {
            int64_t cols = min64(GEMM_SUM_COLS, g->n - col);
            for (int64_t y = 0; y < rows; y++) {
                const float *p =
                    r->partial + (batch * g->m + row + y) * g->n + col;
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

static void gemm_f64_tile(const LibGemm *g, const double *a, const double *b,
                          double *c, int64_t rows, int64_t cols) {
    double acc[GEMM_F64_ROWS][GEMM_F64_COLS] = {{0}};
    for (int64_t k = 0; k < g->k; k++) {
        double row[GEMM_F64_COLS] = {0};
        for (int64_t j = 0; j < cols; j++)
            row[j] = b[k * g->b_rs + j * g->b_cs];
        for (int64_t i = 0; i < rows; i++) {
            double x = a[i * g->a_rs + k * g->a_cs];
            for (int j = 0; j < GEMM_F64_COLS; j++) acc[i][j] += x * row[j];
        }
    }
    for (int64_t i = 0; i < rows; i++)
        for (int64_t j = 0; j < cols; j++) c[i * g->n + j] = acc[i][j];
}

static void gemm_f64_work(void *ctx, int64_t lo, int64_t hi, int worker) {
    const GemmRun *r = ctx;
    const LibGemm *g = r->g;
    int64_t rblocks = ceil_div(g->m, GEMM_F64_ROWS);
    (void)worker;
    for (int64_t i = lo; i < hi; i++) {
        int64_t batch = i / rblocks, row = i % rblocks * GEMM_F64_ROWS;
        int64_t rows = min64(GEMM_F64_ROWS, g->m - row);
        const double *a = (const double *)r->a +
                          gemm_offset(g, g->a_bs, batch) + row * g->a_rs;
        const double *b = (const double *)r->b + gemm_offset(g, g->b_bs, batch);
        double *c = (double *)r->c + (batch * g->m + row) * g->n;
        for (int64_t col = 0; col < g->n; col += GEMM_F64_COLS)
            gemm_f64_tile(g, a, b + col * g->b_cs, c + col, rows,
                          min64(GEMM_F64_COLS, g->n - col));
    }
}

void ISA(gemm)(int isa, AmpcPool *pool, const LibGemm *g, const void *a,
               const void *b, void *c, const CpuEpilogue *ep, void *scratch,
               CpuKept *kept) {
    GemmRun r = {.g = g, .a = a, .b = b, .c = c, .ep = ep};
    r.kind = product_kind(isa, g->a_dtype, g->b_dtype);
    block_gemm(g, r.kind, pool_threads(pool), kept != NULL, &r.p);
    if (g->a_dtype == AMPC_F64) {
        pool_run(pool, r.p.batch * ceil_div(g->m, GEMM_F64_ROWS), 1,
                 gemm_f64_work, &r);
        return;
    }
    r.partial = scratch;
    r.workers = (char *)scratch + r.p.partial;
    if (r.p.prepack) {
        size_t whole = r.p.a_whole ? r.p.a : 0;
        r.packed_a = (float *)(void *)r.workers;
        r.packed_b = kept ? kept->memory : (float *)(void *)(r.workers + whole);
        r.workers += whole + r.p.b;
        gemm_prepack(pool, &r, kept && kept->made);
        if (kept) kept->made = 1;
    }
    pool_run(pool, r.p.items, r.p.grain, gemm_work, &r);
    if (r.p.nsplit > 1)
        pool_run(pool, r.p.batch * ceil_div(g->m, MR), 1, gemm_sum, &r);
}
