/* SPDX-License-Identifier: Apache-2.0 */
/* block.c: sizes of blocks and of scratch memory. */
#include "runtime/cpu/block.h"
#include "runtime/cpu/attend.h"

enum {
    GEMM_MC = 192,
    GEMM_NC = 384,
    GEMM_KC = 384,
    GEMM_PREPACK_MC = 128,
    GEMM_PREPACK_KC = 1024,
    GEMM_COLUMNS_NC = 144, /* largest and smallest number of columns for an
                              item of all rows, */
    GEMM_COLUMNS_MIN = 48, /* and the most rows                            */
    GEMM_COLUMNS_ROWS = 512,
    GEMM_TILE_KC = 256, /* pairs: panels of both operands fit a first-level
                           cache */
    GEMM_PREPACK_MAX = 1 << 23, /* floats of both operands in a block */
    GEMM_AGAIN = 8,             /* packing A that often is cheaper than a round
                                   of threads */
    GEMM_OWN_THREADS = 4,   /* a worker packs for itself what all read if they
                               are that few, */
    GEMM_OWN_MAX = 1 << 18, /* if it has at most that number of elements, */
    GEMM_OWN_REUSE = 192,   /* and each meets that many rows or columns */
    GEMM_KEPT_ROWS = 512,   /* from here on, packing B takes a few percent */
    GEMM_KEPT_MORE = 4096,  /* rows, where B is small:                      */
    GEMM_KEPT_SMALL = 1 << 18, /* elements                                  */
    GEMM_SPLIT_MIN = 1024,     /* smallest k of a slice */
    GEMM_SPLIT_TILES = 16,     /* enough tiles to work without slices */
    GEMM_ITEM_MIN = 1 << 13, /* elements of C that one item should have,      */
    GEMM_ITEM_WORK = 1 << 21, /* or multiply-adds                            */
    GEMM_GRAIN = 1 << 17,     /* multiply-adds that are worth a hand-over */
    GEMM_ROW_MAX = 1 << 28    /* elements                                     */
};

static size_t block_floats(int64_t n) {
    return (size_t)round_up(n, BLOCK_LANES) * sizeof(float);
}

/* ---- matrix product ------------------------------------------------------ */

int64_t block_length(int kind, int64_t k) {
    int64_t pairs = ceil_div(k, 2);
    if (kind == TILE_WIDENED) return k;
    return kind == TILE_AMX ? round_up(pairs, BLOCK_UNIT) : pairs;
}

static void block_gemm_split(const LibGemm *g, int tiles, GemmBlocks *p) {
    int64_t cuts = p->batch * ceil_div(g->m, GEMM_MC) * ceil_div(g->n, GEMM_NC);
    int64_t unit = tiles ? BLOCK_UNIT : 1;
    p->nsplit = 1;
    if (cuts > 0 && cuts < GEMM_SPLIT_TILES && p->k >= 2 * GEMM_SPLIT_MIN)
        p->nsplit =
            min64(p->k / GEMM_SPLIT_MIN, ceil_div(GEMM_SPLIT_TILES, cuts));
    p->ksplit = round_up(ceil_div(p->k, p->nsplit), unit);
    int64_t most = tiles                      ? GEMM_TILE_KC
                   : p->prepack || p->columns ? GEMM_PREPACK_KC
                                              : GEMM_KC;
    int64_t blocks = ceil_div(p->ksplit, most);
    p->kc = blocks ? round_up(ceil_div(p->ksplit, blocks), unit) : 0;
}

static void block_gemm_items(const LibGemm *g, GemmBlocks *p) {
    p->mblocks = ceil_div(g->m, p->mc);
    p->nblocks = ceil_div(g->n, p->nc);
    int64_t high = p->columns ? p->mblocks : 1;
    p->items = p->batch * p->nsplit * p->nblocks * p->mblocks / high;
    int64_t work = high * p->mc * p->nc * (p->ksplit + 16);
    p->grain = work < GEMM_GRAIN ? ceil_div(GEMM_GRAIN, work) : 1;
}

/* Cuts columns alone. */
static void block_gemm_columns(const LibGemm *g, int64_t rows, int threads,
                               GemmBlocks *p) {
    int64_t nblocks = ceil_div(g->n, GEMM_COLUMNS_NC), busiest = INT64_MAX;
    int64_t mblocks = ceil_div(g->m, GEMM_PREPACK_MC);
    p->mc = round_up(ceil_div(g->m, mblocks), rows);
    for (;; nblocks++) {
        int64_t nc = round_up(ceil_div(g->n, nblocks), BLOCK_COLS);
        int64_t work = ceil_div(ceil_div(g->n, nc), threads) * nc;
        if (nc < GEMM_COLUMNS_MIN) break;
        if (work < busiest) {
            busiest = work;
            p->nc = nc;
        }
    }
}

/* Cuts C until every thread has work, but not below GEMM_ITEM_MIN elements;
   among these it takes the cut that leaves the busiest thread the least work.
   If items pack for themselves, every cut packs some operand twice. */
static void block_gemm_cuts(const LibGemm *g, int64_t rows, int threads,
                            GemmBlocks *p) {
    int64_t want = threads == 1 ? 1 : threads * (p->prepack ? 4 : 2);
    int64_t least = p->prepack ? GEMM_ITEM_MIN : 4 * GEMM_ITEM_MIN;
    int64_t mblocks = ceil_div(g->m, p->prepack ? GEMM_PREPACK_MC : GEMM_MC);
    int64_t nblocks = ceil_div(g->n, GEMM_NC), busiest = INT64_MAX;
    for (;;) {
        int64_t mc = round_up(ceil_div(g->m, mblocks), rows);
        int64_t nc = round_up(ceil_div(g->n, nblocks), BLOCK_COLS);
        int64_t items =
            p->batch * p->nsplit * ceil_div(g->m, mc) * ceil_div(g->n, nc);
        int64_t work = ceil_div(items, threads) * mc * nc;
        /* finer cuts balance better, and packed panels are as fast */
        if (p->prepack ? work <= busiest : work < busiest) {
            busiest = work;
            p->mc = mc;
            p->nc = nc;
        }
        if (items >= want ||
            (mc * nc < least && mc * nc * p->ksplit < GEMM_ITEM_WORK))
            break;
        if (nc > 2 * mc && nc > 6 * BLOCK_COLS)
            nblocks++;
        else if (mc > rows)
            mblocks++;
        else
            break;
    }
}

/* Nonzero: it pays that every worker packs an operand of `length` rows or
   columns; each meets `other` columns or rows. */
static int block_gemm_own(const GemmBlocks *p, int threads, int64_t length,
                          int64_t other) {
    return threads > 1 && threads <= GEMM_OWN_THREADS &&
           length * p->k <= GEMM_OWN_MAX && other / threads >= GEMM_OWN_REUSE;
}

static int64_t block_gemm_batch(const LibGemm *g) {
    int64_t batch = 1;
    for (int64_t i = 0; i < g->nbatch_dim; i++) batch *= g->batch_dim[i];
    return batch;
}

/* Tiles that read rows in memory as panels hold them: fp32, or whole pairs
   of bf16. */
static int block_gemm_as_is(const LibGemm *g, int kind) {
    if (g->a_cs != 1 || g->a_rs > GEMM_ROW_MAX) return 0;
    if (kind == TILE_WIDENED) return g->a_dtype == AMPC_F32;
    return kind == TILE_PAIRS && g->k % 2 == 0 && g->a_rs % 2 == 0;
}

int block_gemm_is_few(const LibGemm *g) {
    int64_t most =
        g->a_dtype == AMPC_F32 && g->b_rs == 1 ? BLOCK_FEW : BLOCK_FEW / 2;
    return g->a_dtype != AMPC_F64 && g->a_dtype == g->b_dtype && g->m > 0 &&
           g->m <= most && g->a_cs == 1 && (g->b_rs == 1 || g->b_cs == 1);
}

void block_gemm(const LibGemm *g, int kind, int threads, GemmB b,
                GemmBlocks *p) {
    int tiles = kind == TILE_AMX, keeps = b == GEMM_B_KEPT;
    int64_t rows = tiles ? BLOCK_TALL : BLOCK_ROWS;
    *p = (GemmBlocks){.batch = block_gemm_batch(g),
                      .k = block_length(kind, g->k),
                      .a_as_is = block_gemm_as_is(g, kind)};
    CONTRACT(threads > 0);
    if (p->batch <= 0 || g->m <= 0 || g->n <= 0) return;
    /* Bytes per worker: enough for the largest blocks for any number of
       threads. */
    int64_t mc = round_up(min64(g->m, GEMM_MC), rows);
    int64_t nc = round_up(min64(g->n, GEMM_NC), 3 * BLOCK_COLS);
    int64_t ma = round_up(g->m, rows), nb = round_up(g->n, BLOCK_COLS);
    int single = p->batch == 1 && g->m > BLOCK_ROWS &&
                 p->k <= GEMM_PREPACK_MAX / (ma + nb);
    int made = b == GEMM_B_MADE;
    int by_rows = !made && g->m > g->n && block_gemm_own(p, threads, nb, g->m);
    p->columns = !keeps && single && !by_rows &&
                 (g->m <= GEMM_COLUMNS_ROWS || made) &&
                 g->n / threads >= GEMM_COLUMNS_MIN;
    p->prepack = keeps || (single && !p->columns && !made);
    block_gemm_split(g, tiles, p);
    if (p->columns)
        block_gemm_columns(g, rows, threads, p);
    else
        block_gemm_cuts(g, rows, threads, p);
    block_gemm_items(g, p);
    CONTRACT(p->mc > 0 && p->mc % rows == 0);
    CONTRACT(p->nc > 0 && p->nc % BLOCK_COLS == 0);
    CONTRACT(p->nsplit * p->ksplit >= p->k);
    CONTRACT(p->k == 0 || (p->kc > 0 && p->kc <= p->ksplit));
    CONTRACT(p->items > 0 && p->grain > 0);
    int64_t again = tiles || p->columns ? 1 : GEMM_AGAIN;
    p->a_whole =
        (p->prepack || p->columns) && p->nblocks > again && !p->a_as_is;
    if (!keeps && p->nsplit == 1)
        p->own = p->prepack
                     ? !p->a_whole && block_gemm_own(p, threads, nb, g->m)
                     : p->a_whole && block_gemm_own(p, threads, ma, g->n);
    if (!p->a_as_is) p->a = block_floats(p->a_whole ? ma * p->k : mc * p->kc);
    if (!keeps)
        p->b = block_floats(p->prepack   ? nb * p->k
                            : p->columns ? p->nc * p->k
                                         : nc * p->kc);
    p->acc = block_floats(mc * nc);
    if (p->nsplit > 1)
        p->partial = block_floats(p->nsplit * p->batch * g->m * g->n);
}

size_t block_shared_a(const GemmBlocks *p) {
    return p->a_whole && !p->own ? p->a : 0;
}

size_t block_shared_b(const GemmBlocks *p) {
    return p->prepack && !p->own ? p->b : 0;
}

size_t block_worker(const GemmBlocks *p) {
    return p->a - block_shared_a(p) + p->b - block_shared_b(p) + BLOCK_LINE +
           p->acc;
}

static size_t block_gemm_bytes(const LibGemm *g, int kind, int threads,
                               GemmB b) {
    GemmBlocks p;
    block_gemm(g, kind, threads, b, &p);
    return p.partial + block_shared_a(&p) + block_shared_b(&p) +
           (size_t)threads * block_worker(&p);
}

/* Bytes for panels of elements or, if larger, for panels of bf16 pairs. */
size_t cpu_gemm_kept(const LibGemm *g, int threads) {
    int64_t ma = round_up(g->m, BLOCK_TALL), nb = round_up(g->n, BLOCK_COLS);
    int64_t pairs = block_length(TILE_AMX, g->k);
    (void)threads;
    if (block_gemm_is_few(g) && (g->a_dtype != AMPC_F32 || g->b_rs == 1))
        return 0;
    int64_t most = nb <= GEMM_KEPT_SMALL / max64(1, g->k) ? GEMM_KEPT_MORE
                                                          : GEMM_KEPT_ROWS;
    if (g->a_dtype == AMPC_F64 || block_gemm_batch(g) != 1 || g->m <= 0 ||
        g->m > most || g->k > GEMM_PREPACK_MAX / ma)
        return 0;
    return block_floats(nb * (pairs > g->k ? pairs : g->k));
}

/* The largest size over all kinds of tiles that a machine may choose. */
static size_t gemm_most(const LibGemm *g, int threads, GemmB b) {
    int last = g->a_dtype == AMPC_BF16 && g->b_dtype == AMPC_BF16
                   ? TILE_AMX
                   : TILE_WIDENED;
    size_t most = 0;
    for (int kind = TILE_WIDENED; kind <= last; kind++) {
        size_t need = block_gemm_bytes(g, kind, threads < 1 ? 1 : threads, b);
        most = need > most ? need : most;
    }
    return most;
}

size_t cpu_gemm_scratch(const LibGemm *g, int threads) {
    size_t read = gemm_most(g, threads, GEMM_B_READ), kept = 0;
    if (cpu_gemm_kept(g, threads)) kept = gemm_most(g, threads, GEMM_B_KEPT);
    return read > kept ? read : kept;
}

LibGemm gemm_of_quantized(const LibGemmQuantized *p) {
    return (LibGemm){.m = p->m,
                     .n = p->n,
                     .k = p->k,
                     .a_rs = p->k,
                     .a_cs = 1,
                     .b_rs = p->b_rs,
                     .b_cs = p->b_cs,
                     .a_dtype = p->a_dtype,
                     .b_dtype = p->a_dtype,
                     .c_dtype = p->c_dtype};
}

size_t cpu_gemm_quantized_scratch(const LibGemmQuantized *p, int threads) {
    LibGemm g = gemm_of_quantized(p);
    return gemm_most(&g, threads, GEMM_B_MADE);
}

/* ---- scatter-add --------------------------------------------------------- */

int scatter_is_few(const LibScatterAdd *s) {
    return s->src_dtype != AMPC_F64 && s->inner > 0 && s->inner < SCATTER_FEW;
}

/* Sums of short rows, or the inverted index: see index_isa.c. */
size_t cpu_scatter_add_scratch(const LibScatterAdd *s, int threads) {
    (void)threads;
    if (scatter_is_few(s))
        return s->out_dtype == AMPC_F32
                   ? 0
                   : block_floats(s->outer * s->rows * s->inner);
    return (size_t)round_up((s->rows + 1 + s->nidx) * 8, 64);
}

/* ---- sort ---------------------------------------------------------------- */

SortBlocks sort_blocks(const LibArgsort *a, int threads) {
    SortBlocks b = {.wide = a->dtype != AMPC_F16 && a->dtype != AMPC_BF16 &&
                            a->dtype != AMPC_F32};
    int shared = !b.wide && a->rows < threads && a->n >= SORT_LONG;
    b.parts = shared ? threads : 0;
    b.selects =
        !b.wide && (a->k == 1 || (a->n > SORT_ROOM &&
                                  8 * a->k * (shared ? threads : 1) <= a->n));
    b.room = !b.selects ? a->n : 4 * a->k > SORT_ROOM ? 4 * a->k : SORT_ROOM;
    b.memory = 2 * b.room * (shared && !b.selects ? 1 : threads);
    b.found = shared && b.selects ? 2 * b.parts * a->k : 0;
    return b;
}

size_t cpu_argsort_scratch(const LibArgsort *a, int threads) {
    SortBlocks b = sort_blocks(a, threads);
    return (size_t)round_up(
        (b.memory + b.found) * 8 + b.parts * SORT_DIGITS * 4, 64);
}

/* ---- boxes --------------------------------------------------------------- */

int64_t suppress_room(const LibSuppress *s) {
    int64_t most = s->k < s->n ? s->k : s->n;
    return SUPPRESS_PARTS * round_up(most, BLOCK_LANES);
}

size_t cpu_suppress_scratch(const LibSuppress *s, int threads) {
    return block_floats(suppress_room(s)) * (size_t)threads;
}

/* ---- attention ----------------------------------------------------------- */

AttendBlocks attend_blocks(const LibAttend *p) {
    enum { Q = ATTEND_QUERIES, K = ATTEND_KEYS };
    AttendBlocks b = {.queries = ceil_div(p->t, Q),
                      .d = round_up(p->d, BLOCK_LANES),
                      .e = round_up(p->e, BLOCK_LANES)};
    int64_t both = b.d + b.e;
    b.chunks = ceil_div(b.queries, ATTEND_CHUNK);
    b.worker = (ATTEND_CHUNK * Q + K) * both + 2 * K * Q;
    b.worker_grad = p->group * b.queries * Q * b.d + (2 * K + 2 * Q) * both +
                    K * b.d + 4 * K * Q;
    return b;
}

size_t cpu_attend_scratch(const LibAttend *p, int threads) {
    return block_floats(attend_blocks(p).worker) * (size_t)threads;
}

size_t cpu_attend_grad_scratch(const LibAttend *p, int threads) {
    return block_floats(attend_blocks(p).worker_grad) * (size_t)threads;
}
