/* SPDX-License-Identifier: Apache-2.0 */
/* gemm_isa.c: C = A * B with packed blocks.

   An item is one block of C (mc x nc) of one matrix of the batch, over one
   slice of k.  Its worker multiplies packed panels tile by tile and hands each
   finished strip of columns to the epilogue.  Rows of A that tiles can read in
   place are not packed. For a single matrix, B is packed whole by a separate
   round, once if it is kept, and so is A if many items read the same part of
   it; with few threads each worker packs it for itself instead. With few
   hundred rows an item has all rows and packs its own columns of B. Otherwise,
   in a batch or for huge matrices, items pack the blocks they need. With slices
   of k the panels go to `partial` first and a last round adds them in order.

   With few rows nothing is packed (gemm_few_isa.c).

   Products of bf16 by bf16 may count k in pairs (tile kinds 1 and 2); amx.h
   describes what AMX tiles need. */
#define SIMD_WANTS_DOT
#include "runtime/cpu/amx.h"
#include "runtime/cpu/gemm_run.h"
#include "runtime/cpu/routines.h"

/* One block of C while it is computed. */
typedef struct GemmItem {
    int64_t batch, slice;
    int64_t m0, n0, m, n; /* rows and columns of C                        */
    int64_t k0, k1;       /* range of k                                   */
    PackSrc a, b;         /* address of (0, 0) in this matrix of the batch */
    const float *rows;    /* rows of A in place, lda apart */
    int64_t lda;
    float *pa, *pb, *acc; /* else packed panels; accumulators             */
} GemmItem;

/* Part of a packed product: k elements of longer panels, from k0 on. */
typedef struct GemmPart {
    int64_t k, a_k0, a_all, b_k0, b_all;
    int first, last;
} GemmPart;

/* A panel of B that begins at column j of an item and has `w` vectors. */
typedef struct GemmPanel {
    int64_t j;
    int w;
    const float *b;
} GemmPanel;

#if HAS_DOT
/* bf16 results of products by the machine's own bf16 instruction are rounded
   by its conversion, too: at x86-64-v4 fp32 subnormals become zero, as in the
   sums. */
static void gemm_round_rows(uint16_t *to, int64_t next, const float *acc,
                            int64_t ld, int64_t rows, int64_t cols) {
    for (int64_t i = 0; i < rows; i++, to += next, acc += ld) {
        int64_t j = 0;
        for (; j + 2 * VL <= cols; j += 2 * VL)
            vstore2_dot(to + j, vload(acc + j), vload(acc + j + VL));
        for (; j + VL <= cols; j += VL) vstore_dot(to + j, vload(acc + j), VL);
        if (j < cols)
            vstore_dot(to + j, vload_n(acc, AMPC_F32, j, cols - j), cols - j);
    }
}
#endif

void ISA(gemm_store)(const GemmRun *r, const float *acc, int64_t ld,
                     int64_t batch, int64_t row, int64_t col, int64_t rows,
                     int64_t cols) {
    if (r->ep && r->ep->fn) {
        r->ep->fn(r->ep->buf, r->ep->table, acc, ld, batch, row, col, rows,
                  cols);
        return;
    }
    int64_t to = (batch * r->g->m + row) * r->g->n + col;
#if HAS_DOT
    if (r->kind && r->g->c_dtype == AMPC_BF16) {
        gemm_round_rows((uint16_t *)r->c + to, r->g->n, acc, ld, rows, cols);
        return;
    }
#endif
    narrow_rows(r->c, (int)r->g->c_dtype, to, r->g->n, acc, ld, rows, cols);
}

static void gemm_finish(const GemmRun *r, const GemmItem *it, const float *acc,
                        int64_t ld, int64_t col, int64_t cols) {
    if (r->p.nsplit == 1) {
        ISA(gemm_store)
        (r, acc, ld, it->batch, it->m0, it->n0 + col, it->m, cols);
        return;
    }
    float *to =
        r->partial +
        ((it->slice * r->p.batch + it->batch) * r->g->m + it->m0) * r->g->n +
        it->n0 + col;
    for (int64_t i = 0; i < it->m; i++)
        widen_as(to + i * r->g->n, acc + i * ld, AMPC_F32, 0, cols);
}

/* Address in C that the tiles of a panel may write directly; NULL if they
   would write beyond C. */
static float *gemm_direct(const GemmRun *r, const GemmItem *it, int64_t col,
                          int64_t cols) {
    const LibGemm *g = r->g;
    if (!r->direct || cols > it->n - col ||
        (on_tiles(r->kind) && it->m % AMX_ROWS))
        return NULL;
    return (float *)r->c + (it->batch * g->m + it->m0) * g->n + it->n0 + col;
}

enum {
    GEMM_FAR = 1 << 18
}; /* elements of C: larger than a second-level
      cache */

/* The panel of B that begins at column j of an item, rows of one part. */
static GemmPanel gemm_panel(const GemmRun *r, const GemmItem *it,
                            const GemmPart *part, int64_t j) {
    int w = panel_width(r->kind, ceil_div(it->n, VL) - j / VL);
    GemmPanel p = {j, w, it->pb + j * part->b_all + part->b_k0 * w * VL};
    return p;
}

/* Address that tile `i` of a panel prefetches from the next panel: one cache
   line per step of k. Panels arrive from a third-level cache more slowly
   than they are multiplied. */
INLINE const float *gemm_ahead(const GemmPart *part, int64_t i,
                               GemmPanel next) {
    int64_t line = i * TILE_LINE;
    return next.b + (line < next.w * VL ? line : 0) * part->k;
}

/* The cache lines of C at the ends of rows i .. in a panel. */
INLINE void gemm_fetch_as(const GemmRun *r, const GemmItem *it, int64_t i,
                          int64_t rows, GemmPanel b, int dtype) {
    int64_t row = it->batch * r->g->m + it->m0 + i;
    const char *c = at(r->c, dtype, row * r->g->n + it->n0 + b.j);
    for (int64_t y = 0; y < rows; y++, c += r->g->n * dtype_size(dtype))
        for (int x = 0; x < b.w * VL * dtype_size(dtype); x += 64)
            __builtin_prefetch(c + x, 1);
}

INLINE void gemm_fetch(const GemmRun *r, const GemmItem *it, int64_t i,
                       int64_t rows, GemmPanel b) {
    if (r->direct)
        gemm_fetch_as(r, it, i, rows, b, AMPC_F32);
    else
        gemm_fetch_as(r, it, i, rows, b, AMPC_BF16); /* or f16 */
}

/* Multiplies all rows of an item by one panel of B. */
static void gemm_panels(const GemmRun *r, const GemmItem *it,
                        const GemmPart *part, GemmPanel b, GemmPanel next,
                        float *c, int64_t ld) {
    const float *a = it->pa + part->a_k0 * panel_rows(r->kind);
    int64_t height = panel_height(r->kind);
    for (int64_t i = 0; i < it->m; i += height) {
        int64_t rows = min64(height, it->m - i);
        if (r->far) gemm_fetch(r, it, i, rows, b);
        panel_product(r->kind, part->k, rows, b.w, a + i * part->a_all,
                      part->a_all, b.b, b.w * VL, c + i * ld, ld, !part->first,
                      gemm_ahead(part, i / height, next));
    }
}

/* Multiplies rows of A in place, without packing. */
static void gemm_rows(const GemmRun *r, const GemmItem *it,
                      const GemmPart *part, GemmPanel b, GemmPanel next,
                      float *c, int64_t ld) {
    for (int64_t i = 0; i < it->m; i += MR) {
        int64_t rows = min64(MR, it->m - i);
        TileRowsFn *tile = ISA(tile_rows)[r->kind][rows - 1][b.w - 1];
        if (r->far) gemm_fetch(r, it, i, rows, b);
        tile(part->k, it->rows + i * it->lda + part->a_k0, it->lda, b.b,
             b.w * VL, c + i * ld, ld, !part->first,
             gemm_ahead(part, i / MR, next));
    }
}

/* Two panels of columns are converted at a time: for 16-bit results
   compilers use vectors of twice as many elements, and one panel is an odd
   number of vectors. */
static void gemm_multiply(const GemmRun *r, const GemmItem *it,
                          const GemmPart *part) {
    int once = part->first && part->last; /* then acc holds only two panels */
    int64_t all = round_up(it->n, VL), done = 0;
    int64_t wide = once ? min64(all, 2 * NR) : all;
    for (int64_t j = 0; j < it->n;) {
        GemmPanel b = gemm_panel(r, it, part, j);
        int64_t end = j + b.w * VL;
        GemmPanel next = gemm_panel(r, it, part, end < it->n ? end : 0);
        float *direct = gemm_direct(r, it, j, b.w * VL);
        float *c = direct ? direct : it->acc + (once ? j - done : j);
        int64_t ld = direct ? r->g->n : wide;
        if (r->p.a_as_is)
            gemm_rows(r, it, part, b, next, c, ld);
        else
            gemm_panels(r, it, part, b, next, c, ld);
        j = end;
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
    if (r->made) {
        int64_t all = r->kind ? 2 * k : k;
        r->made->pack(r->made, r->kind, dst, n0, n, first,
                      min64(all, r->g->k - first), k0 - base, k_all);
        return;
    }
    s.p = at(s.p, s.dtype, first * s.rs + n0 * s.cs);
    panel_pack_b(r->kind, dst, &s, k0 - base, k, k_all, n, r->g->k - first);
}

static void gemm_item(const GemmRun *r, GemmItem *it) {
    int64_t k = it->k0;
    do { /* runs once even if k is empty: C is then zero */
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
        if (r->p.prepack || r->p.columns)
            part.b_k0 = k, part.b_all = r->p.k;
        else
            gemm_pack_b(r, it->pb, it->b, it->n0, it->n, k, k, kc, kc);
        gemm_multiply(r, it, &part);
        k += kc;
    } while (k < it->k1);
}

/* Memory of one worker. */
typedef struct GemmWorker {
    float *a, *b, *acc;
    int64_t *packed; /* nonzero: it has packed what all items read */
} GemmWorker;

static GemmWorker gemm_worker(const GemmRun *r, int worker) {
    const GemmBlocks *p = &r->p;
    char *own = r->workers + (size_t)worker * block_worker(p);
    GemmWorker w = {.packed = (int64_t *)(void *)own};
    own += BLOCK_LINE;
    w.a = (float *)(void *)own;
    own += p->a - block_shared_a(p);
    w.b = (float *)(void *)own;
    w.acc = (float *)(void *)(own + p->b - block_shared_b(p));
    return w;
}

/* Rows of A, or the packed panels of the worker or of all. */
static void gemm_buffers(const GemmRun *r, GemmItem *it, const GemmWorker *w) {
    const GemmBlocks *p = &r->p;
    it->acc = w->acc;
    it->lda = r->kind == TILE_WIDENED ? r->g->a_rs : r->g->a_rs / 2;
    it->rows = (const float *)it->a.p + it->m0 * it->lda;
    it->pa = w->a;
    if (p->a_whole) it->pa = (p->own ? w->a : r->packed_a) + it->m0 * p->k;
    it->pb = w->b;
    if (p->prepack) it->pb = (p->own ? w->b : r->packed_b) + it->n0 * p->k;
}

/* A block of columns of B, k elements from k0 on, to its place in `packed`. */
static void gemm_pack_columns(const GemmRun *r, float *packed, int64_t block,
                              int64_t k0, int64_t k) {
    int64_t n0 = block * r->p.nc;
    gemm_pack_b(r, packed + n0 * r->p.k, gemm_source(r, 1, 0), n0,
                min64(r->p.nc, r->g->n - n0), 0, k0, k, r->p.k);
}

/* A worker packs for itself what all items read. */
static void gemm_pack_own(const GemmRun *r, const GemmWorker *w) {
    if (*w->packed) return;
    *w->packed = 1;
    if (r->p.a_whole)
        gemm_pack_a(r, w->a, gemm_source(r, 0, 0), 0, r->g->m, 0, r->p.k);
    else
        for (int64_t i = 0; i < r->p.nblocks; i++)
            gemm_pack_columns(r, w->b, i, 0, r->p.k);
}

/* Items go row by row: a worker writes rows whose operands it wrote itself. If
   B is packed by columns, they go column by column. */
static void gemm_work(void *ctx, int64_t lo, int64_t hi, int worker) {
    const GemmRun *r = ctx;
    const LibGemm *g = r->g;
    GemmWorker w = gemm_worker(r, worker);
    if (on_tiles(r->kind)) amx_begin();
    if (r->p.own) gemm_pack_own(r, &w);
    int64_t high = r->p.columns ? r->p.mblocks : 1;
    for (int64_t i = lo * high; i < hi * high; i++) {
        GemmItem it;
        int64_t inner = r->p.columns ? r->p.mblocks : r->p.nblocks;
        int64_t outer = r->p.columns ? r->p.nblocks : r->p.mblocks;
        int64_t at_inner = i % inner, rest = i / inner, at_outer = rest % outer;
        it.m0 = (r->p.columns ? at_inner : at_outer) * r->p.mc;
        it.n0 = (r->p.columns ? at_outer : at_inner) * r->p.nc;
        rest /= outer;
        it.slice = rest % r->p.nsplit;
        it.batch = rest / r->p.nsplit;
        it.m = min64(r->p.mc, g->m - it.m0);
        it.n = min64(r->p.nc, g->n - it.n0);
        it.k0 = min64(it.slice * r->p.ksplit, r->p.k);
        it.k1 = min64(it.k0 + r->p.ksplit, r->p.k);
        it.a = gemm_source(r, 0, it.batch);
        it.b = gemm_source(r, 1, it.batch);
        gemm_buffers(r, &it, &w);
        if (r->p.columns && it.m0 == 0)
            gemm_pack_b(r, it.pb, it.b, it.n0, it.n, 0, it.k0, it.k1 - it.k0,
                        r->p.k);
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
        if (i < a_units) {
            int64_t m0 = i * GEMM_PACK_ROWS;
            gemm_pack_a(r, r->packed_a + m0 * r->p.k, gemm_source(r, 0, 0), m0,
                        min64(GEMM_PACK_ROWS, g->m - m0), 0, r->p.k);
        } else {
            int64_t k0 = (i - a_units) % pieces * GEMM_PACK_K;
            gemm_pack_columns(r, r->packed_b, (i - a_units) / pieces, k0,
                              min64(GEMM_PACK_K, r->p.k - k0));
        }
    }
}

static void gemm_prepack(AmpcPool *pool, GemmRun *r, int made) {
    int64_t b_units = made || !r->p.prepack
                          ? 0
                          : r->p.nblocks * ceil_div(r->p.k, GEMM_PACK_K);
    int64_t unit = GEMM_PACK_ROWS * r->p.k + 1;
    pool_run(pool, gemm_pack_a_units(r) + b_units,
             ceil_div(GEMM_PACK_GRAIN, unit), gemm_pack_work, r);
}

/* ---- adding the slices --------------------------------------------------- */

enum { GEMM_SUM_COLS = 48 };

/* Rows [lo, hi), in groups of MR, of all matrices. */
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
            ISA(gemm_store)(r, acc, GEMM_SUM_COLS, batch, row, col, rows, cols);
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

static void gemm_run(AmpcPool *pool, GemmRun *r, GemmB b, void *scratch,
                     CpuKept *kept) {
    const LibGemm *g = r->g;
    block_gemm(g, r->kind, pool_threads(pool), b, &r->p);
    int plain = !(r->ep && r->ep->fn) && r->p.nsplit == 1;
    r->direct = plain && g->c_dtype == AMPC_F32;
    r->far = plain && g->m * g->n >= GEMM_FAR;
    r->partial = scratch;
    r->workers = (char *)scratch + r->p.partial;
    if (b == GEMM_B_READ && r->p.batch > 0 && g->n > 0 &&
        block_gemm_is_few(g)) {
        ISA(gemm_few)(pool, r);
        return;
    }
    if (r->p.own) {
        for (int i = 0; i < pool_threads(pool); i++)
            *gemm_worker(r, i).packed = 0;
    } else if (r->p.prepack || r->p.a_whole) {
        r->packed_a = (float *)(void *)r->workers;
        r->workers += block_shared_a(&r->p);
        r->packed_b = kept ? kept->memory : (float *)(void *)r->workers;
        r->workers += block_shared_b(&r->p);
        gemm_prepack(pool, r, kept && kept->made);
        if (kept) kept->made = 1;
    }
    pool_run(pool, r->p.items, r->p.grain, gemm_work, r);
    if (r->p.nsplit > 1)
        pool_run(pool, r->p.batch * ceil_div(g->m, MR), 1, gemm_sum, r);
}

void ISA(gemm)(int isa, AmpcPool *pool, const LibGemm *g, const void *a,
               const void *b, void *c, const CpuEpilogue *ep, void *scratch,
               CpuKept *kept) {
    GemmRun r = {.g = g, .a = a, .b = b, .c = c, .ep = ep};
    if (g->a_dtype == AMPC_F64) {
        block_gemm(g, TILE_WIDENED, 1, GEMM_B_READ, &r.p);
        pool_run(pool, r.p.batch * ceil_div(g->m, GEMM_F64_ROWS), 1,
                 gemm_f64_work, &r);
        return;
    }
    r.kind = product_kind(isa, g->a_dtype, g->b_dtype);
    gemm_run(pool, &r, kept ? GEMM_B_KEPT : GEMM_B_READ, scratch, kept);
}

void ISA(gemm_made)(int isa, AmpcPool *pool, const LibGemm *g, const void *a,
                    const GemmMade *b, void *c, const CpuEpilogue *ep,
                    void *scratch) {
    GemmRun r = {.g = g, .a = a, .made = b, .c = c, .ep = ep};
    r.kind = product_kind(isa, g->a_dtype, g->b_dtype);
    gemm_run(pool, &r, GEMM_B_MADE, scratch, NULL);
}
