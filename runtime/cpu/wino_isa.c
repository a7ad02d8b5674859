/* SPDX-License-Identifier: Apache-2.0 */
/* wino_isa.c: 3x3 convolutions at stride 1 by minimal filtering (wino.h).

   An item is some rows of tiles. Its worker transforms their source points
   to the 16 positions, multiplies there, up to three vectors of result
   channels at a time, and transforms the sums to results while they are in
   the cache. For dW a turn is some rows of tiles of both X and dY. All
   threads transform them first, some channels each, and then add to the sums,
   one position and some channels at a time. */
#include "runtime/cpu/routines.h"
#include "runtime/cpu/tile.h"
#include "runtime/cpu/transpose.h"
#include "runtime/cpu/wino_run.h"
#include "runtime/cpu/wino_turn.h"

enum { WINO_CHANNELS = 64 /* channels per item of dW */ };

typedef struct WinoRun {
    WinoPlan p;
    const ChlastCall *call;
    int dgrad;
    ChlastWindow x, dy; /* source and dY, for a row of tiles               */
    float *w; /* weights by position: panels of columns, [channel][columns] */
    /* dW: a turn's tiles of both operands, the sums by position, the numbers
       of the tiles, and the turn's rows of tiles */
    float *tiles, *tiles_dy, *sums;
    int32_t *each, *row;
    int64_t row0, rows;
    int adds; /* true: adds to the sums of earlier turns */
    char *workers;
} WinoRun;

INLINE float *wino_worker(const WinoRun *r, int worker) {
    return (float *)(void *)(r->workers + (size_t)worker * r->p.worker);
}

/* A worker's memory after its window. */
INLINE float *wino_own(const WinoRun *r, int worker) {
    return wino_worker(r, worker) + r->p.window / sizeof(float);
}

/* Tiles of `rows` rows of X or dY, CHLAST channels from `channel` on. */
static void wino_transform(const WinoRun *r, int is_dy, int64_t row,
                           int64_t rows, int64_t channel, float *window,
                           float *to) {
    const WinoPlan *p = &r->p;
    const ChlastWindow *w = is_dy ? &r->dy : &r->x;
    int64_t next = is_dy ? p->cols : p->channels, e = p->edge, n;
    for (to += channel; rows > 0; row += n, rows -= n) {
        int64_t first = row % p->high, y = first * e;
        n = min64(min64(rows, p->high - first), WINO_ROWS / e);
        if (!is_dy) y += p->begin[0];
        ISA(chlast_window)
        (w, row / p->high, channel, y, n * e + (is_dy ? 0 : 2), window);
        for (int64_t i = 0; i < n; i++, to += p->wide * next)
            for (int64_t j = 0; j < CHLAST; j += VL) {
                const float *from = window + i * e * w->cols * CHLAST + j;
                if (is_dy)
                    WINO_TURN(wino_turn_gradient, e, from, CHLAST, w->cols,
                              p->wide, to + j, next, p->sums);
                else
                    WINO_TURN(wino_turn_source, e, from, CHLAST, w->cols,
                              p->wide, to + j, next, p->source);
            }
    }
}

static void wino_windows(WinoRun *r) {
    const WinoPlan *p = &r->p;
    const ChlastCall *c = r->call;
    const ConvDim *d = p->x.dim;
    r->x = (ChlastWindow){.src = c->src,
                          .dtype = c->src_dtype,
                          .channels = p->x.channels,
                          .high = d[1].in,
                          .wide = d[2].in,
                          .x = p->begin[1],
                          .cols = p->wide * p->edge + 2};
    r->dy = (ChlastWindow){.src = c->other,
                           .dtype = c->other_dtype,
                           .channels = p->x.m,
                           .high = d[1].result,
                           .wide = d[2].result,
                           .cols = p->wide * p->edge};
}

/* ---- weights ------------------------------------------------------------- */

/* The nine weights of a channel and VL columns; columns beyond `cols` are
   zero. */
static void wino_load_weights(const WinoRun *r, int64_t col, int64_t cols,
                              int64_t channel, vf w[9]) {
    const ConvPlan *p = &r->p.x;
    int dtype = r->call->other_dtype;
    int64_t step = r->dgrad ? 9 : p->channels * 9;
    int64_t from = col * step + channel * (r->dgrad ? p->m * 9 : 9);
    float tap[9][VL];
    if (cols < VL) memset(tap, 0, sizeof tap);
    for (int64_t j = 0; j < min64(cols, VL); j += TB) {
        if (j + TB > cols) { /* the last few columns, one by one */
            for (int64_t i = j; i < cols; i++)
                for (int t = 0; t < 9; t++)
                    tap[t][i] =
                        load1(r->call->other, dtype, from + i * step + t);
            break;
        }
        for (int t = 0; t + TB <= 9; t += TB)
            transpose(&tap[t][j], VL,
                      at(r->call->other, dtype, from + j * step + t), dtype,
                      step * dtype_size(dtype));
        for (int64_t i = j; i < j + TB; i++)
            tap[8][i] = load1(r->call->other, dtype, from + i * step + 8);
    }
    for (int t = 0; t < 9; t++) w[t] = vload(tap[r->dgrad ? 8 - t : t]);
}

/* Units [lo, hi): vectors of result channels. */
static void wino_weights_work(void *ctx, int64_t lo, int64_t hi, int worker) {
    const WinoRun *r = ctx;
    int64_t k = r->p.x.channels, m = r->p.x.m;
    (void)worker;
    for (int64_t i = lo; i < hi; i++) {
        int64_t left = ceil_div(m, VL), panel = 0, v;
        int w = tile_width(left); /* the panel that contains vector i */
        for (v = i; v >= w; w = tile_width(left)) {
            v -= w;
            left -= w;
            panel += w * VL;
        }
        float *to = r->w + panel * k + v * VL;
        for (int64_t c = 0; c < k; c++, to += w * VL) {
            vf tap[9];
            wino_load_weights(r, i * VL, m - i * VL, c, tap);
            WINO_TURN(wino_turn_weights, r->p.edge, tap, to, r->p.weights);
        }
    }
}

/* ---- forward, and the gradient by the input ------------------------------ */

/* Results of whole rows, n from `first` of all images on, by channel. */
static void wino_store(const WinoRun *r, const float *from, int64_t ld,
                       int64_t first, int64_t n, int64_t channel,
                       int64_t channels) {
    const ConvPlan *p = &r->p.x;
    const ChlastCall *c = r->call;
    int64_t size = p->dim[1].result * p->dim[2].result;
    for (int64_t len; n > 0; first += len, n -= len, from += len) {
        int64_t image = first / size, col = first % size;
        len = min64(n, size - col);
        if (c->ep && c->ep->fn)
            c->ep->fn(c->ep->buf, c->ep->table, from, ld, image, channel, col,
                      channels, len);
        else
            narrow_rows(c->out, c->out_dtype,
                        (image * p->m + channel) * size + col, size, from, ld,
                        channels, len);
    }
}

/* The first result of row `row` of tiles. */
static int64_t wino_first(const WinoRun *r, int64_t row) {
    const ConvDim *d = r->p.x.dim;
    return (row / r->p.high * d[1].result + row % r->p.high * r->p.edge) *
           d[2].result;
}

/* Columns n0 .. for w vectors, of all tiles of an item. */
static void wino_columns(const WinoRun *r, const float *source, float *sums,
                         float *acc, int64_t row0, int64_t rows, int64_t n0,
                         int w) {
    const WinoPlan *p = &r->p;
    const ConvDim *d = p->x.dim;
    int64_t k = p->x.channels, tiles = rows * p->wide, ld = w * VL;
    for (int64_t i = 0; i < wino_places(p); i++)
        for (int64_t y = 0; y < tiles; y += MR) ISA(tile_rows)
    [0][min64(MR, tiles - y) - 1][w - 1](
        k, source + i * p->source + y * p->channels, p->channels,
        r->w + i * p->weights + n0 * k, ld, sums + i * p->sums + y * ld, ld, 0,
        sums);
    int64_t first = wino_first(r, row0), n = wino_first(r, row0 + rows) - first;
    for (int64_t y = 0; y < rows; y++) {
        int64_t some = d[1].result - (row0 + y) % p->high * p->edge;
        float *to = acc + (wino_first(r, row0 + y) - first) * ld;
        for (int j = 0; j < w; j++)
            WINO_TURN(wino_turn_sums, p->edge, sums + y * p->wide * ld + j * VL,
                      p->sums, ld, p->wide, to + j * VL, ld, d[2].result, some);
    }
    int64_t tld = p->edge * p->edge * p->rows * p->wide + BLOCK_LANES;
    float *turned = acc + tld * NR;
    for (int64_t x = 0; x < ld; x += TW)
        for (int64_t y = 0; y < n; y += TW)
            transpose_wide(turned + x * tld + y, tld, acc + y * ld + x,
                           AMPC_F32, ld * 4);
    wino_store(r, turned, tld, first, n, n0, min64(ld, p->x.m - n0));
}

/* Items [lo, hi): rows of tiles. */
static void wino_work(void *ctx, int64_t lo, int64_t hi, int worker) {
    const WinoRun *r = ctx;
    const WinoPlan *p = &r->p;
    float *window = wino_worker(r, worker), *source = wino_own(r, worker);
    float *sums = source + wino_places(p) * p->source;
    float *acc = sums + wino_places(p) * p->sums;
    int64_t begin = r->call->first * p->high;
    int64_t end = begin + r->call->images * p->high;
    for (int64_t i = lo; i < hi; i++) {
        int64_t row0 = begin + i * p->rows, rows = min64(p->rows, end - row0);
        for (int64_t c = 0; c < p->x.channels; c += CHLAST)
            wino_transform(r, 0, row0, rows, c, window, source);
        int64_t left = ceil_div(p->x.m, VL);
        for (int64_t n0 = 0; n0 < p->x.m;) {
            int w = tile_width(left);
            wino_columns(r, source, sums, acc, row0, rows, n0, w);
            n0 += w * VL;
            left -= w;
        }
    }
}

int ISA(wino_conv)(AmpcPool *pool, const LibConv *conv, int dgrad, int kind,
                   const ChlastCall *call, void *scratch) {
    WinoRun r = {.call = call, .dgrad = dgrad};
    WinoPlan *p = &r.p;
    if (!wino_plan(conv, dgrad, kind, call->threads, p)) return 0;
    r.w = kept_memory(call->kept, scratch);
    r.workers = (char *)scratch + p->other;
    wino_windows(&r);
    if (!call->kept || !call->kept->made)
        pool_run(pool, ceil_div(p->x.m, VL), 1, wino_weights_work, &r);
    if (call->kept) call->kept->made = 1;
    pool_run(pool, ceil_div(call->images * p->high, p->rows), 1, wino_work, &r);
    return 1;
}

/* ---- gradient by the weights --------------------------------------------- */

/* A turn's parts of WINO_ROWS rows of results. */
static int64_t wino_parts(const WinoRun *r) {
    return ceil_div(r->rows, WINO_ROWS / r->p.edge);
}

/* All parts and blocks of channels of a turn. */
static int64_t wino_units(const WinoRun *r) {
    return max64(r->p.channels, r->p.cols) / CHLAST * wino_parts(r);
}

/* Units [lo, hi): a block of channels, a part. So a thread transforms mostly
   those channels of X whose sums it computes next. */
static void wino_turn_work(void *ctx, int64_t lo, int64_t hi, int worker) {
    const WinoRun *r = ctx;
    const WinoPlan *p = &r->p;
    float *window = wino_worker(r, worker);
    int64_t parts = wino_parts(r), most = WINO_ROWS / p->edge;
    for (int64_t i = lo; i < hi; i++) {
        int64_t y = i % parts * most, n = min64(most, r->rows - y);
        int64_t channel = i / parts * CHLAST;
        if (channel < p->x.channels)
            wino_transform(r, 0, r->row0 + y, n, channel, window,
                           r->tiles + y * p->wide * p->channels);
        if (channel < p->x.m)
            wino_transform(r, 1, r->row0 + y, n, channel, window,
                           r->tiles_dy + y * p->wide * p->cols);
    }
}

/* Units [lo, hi): a position, some channels. */
static void wino_sum_work(void *ctx, int64_t lo, int64_t hi, int worker) {
    const WinoRun *r = ctx;
    const WinoPlan *p = &r->p;
    int64_t channels = p->x.channels, m = p->x.m;
    int64_t tiles = r->rows * p->wide;
    (void)worker;
    for (int64_t i = lo; i < hi; i++) {
        int64_t place = i % wino_places(p);
        int64_t c0 = i / wino_places(p) * WINO_CHANNELS;
        int64_t end = min64(c0 + WINO_CHANNELS, channels);
        const float *x = r->tiles + place * p->source;
        const float *dy = r->tiles_dy + place * p->sums;
        float *to = r->sums + place * p->weights;
        int64_t left = ceil_div(m, VL);
        for (int64_t n0 = 0, w; n0 < m; n0 += w * VL, left -= w) {
            w = tile_width(left);
            for (int64_t c = c0; c < end; c += MR) ISA(tile_outer)
            [0][min64(MR, end - c) - 1][w - 1](
                tiles, r->each, x + c, r->row, dy + n0, p->cols,
                to + c * p->cols + n0, p->cols, r->adds);
        }
    }
}

/* Slices [lo, hi) of the turns. One thread computes a whole slice and
   reads its own results: with few channels, exchanging tiles between threads
   takes longer than the multiplications. */
static void wino_slice_work(void *ctx, int64_t lo, int64_t hi, int worker) {
    const WinoRun *r = ctx;
    const WinoPlan *p = &r->p;
    int64_t all = p->x.n * p->high, turns = ceil_div(all, p->rows);
    int64_t parts = ceil_div(p->x.channels, WINO_CHANNELS);
    WinoRun own = *r;
    own.tiles = wino_own(r, worker);
    own.tiles_dy = own.tiles + wino_places(p) * p->source;
    for (int64_t i = lo; i < hi; i++) {
        int64_t from = turns * i / p->slices, to = turns * (i + 1) / p->slices;
        own.sums = r->sums + i * wino_places(p) * p->weights;
        own.adds = 0;
        for (int64_t t = from; t < to; t++, own.adds = 1) {
            own.row0 = t * p->rows;
            own.rows = min64(p->rows, all - own.row0);
            wino_turn_work(&own, 0, wino_units(&own), worker);
            wino_sum_work(&own, 0, wino_places(p) * parts, worker);
        }
    }
}

/* Adds vectors [lo, hi) of the sums of all slices, in order. */
static void wino_add_work(void *ctx, int64_t lo, int64_t hi, int worker) {
    const WinoRun *r = ctx;
    int64_t each = wino_places(&r->p) * r->p.weights;
    (void)worker;
    for (int64_t i = lo * VL; i < hi * VL; i += VL) {
        vf sum = vload(r->sums + i);
        for (int64_t s = 1; s < r->p.slices; s++)
            sum = vadd(sum, vload(r->sums + s * each + i));
        vstore(r->sums + i, sum);
    }
}

/* Units [lo, hi): a block of channels, a vector of results. */
static void wino_dw_work(void *ctx, int64_t lo, int64_t hi, int worker) {
    const WinoRun *r = ctx;
    const WinoPlan *p = &r->p;
    int64_t channels = p->x.channels, m = p->x.m;
    int64_t blocks = ceil_div(channels, CHLAST);
    float *tap = wino_own(r, worker);
    float *line = tap + 9 * CHLAST * VL;
    for (int64_t i = lo; i < hi; i++) {
        int64_t c0 = i % blocks * CHLAST, n0 = i / blocks * VL;
        int64_t nc = min64(CHLAST, channels - c0), run = 9 * nc;
        for (int64_t c = 0; c < nc; c++)
            WINO_TURN(wino_turn_back, p->edge,
                      r->sums + (c0 + c) * p->cols + n0, p->weights,
                      tap + c * 9 * VL);
        for (int64_t q = 0; q < run; q += TB)
            for (int j = 0; j < VL; j += TB)
                transpose(line + j * 9 * CHLAST + q, 9 * CHLAST,
                          tap + q * VL + j, AMPC_F32, VL * 4);
        narrow_rows(r->call->out, r->call->out_dtype, (n0 * channels + c0) * 9,
                    channels * 9, line, 9 * CHLAST, min64(VL, m - n0), run);
    }
}

static void wino_wgrad_begin(WinoRun *r, void *scratch) {
    const WinoPlan *p = &r->p;
    int64_t tiles = p->rows * p->wide;
    r->tiles = r->sums = scratch;
    r->tiles_dy = r->tiles + wino_places(p) * p->source;
    if (p->slices == 1) r->sums = r->tiles_dy + wino_places(p) * p->sums;
    r->row = (void *)(r->sums + p->slices * wino_places(p) * p->weights);
    r->each = r->row + tiles;
    for (int32_t i = 0; i < tiles; i++) {
        r->each[i] = i;
        r->row[i] = i * (int32_t)p->channels;
    }
    r->workers = (char *)scratch + p->other;
    wino_windows(r);
}

int ISA(wino_wgrad)(AmpcPool *pool, const LibConv *conv, int kind,
                    const ChlastCall *call, void *scratch) {
    WinoRun r = {.call = call};
    WinoPlan *p = &r.p;
    if (!wino_wgrad_plan(conv, kind, p)) return 0;
    int64_t parts = ceil_div(p->x.channels, WINO_CHANNELS);
    int64_t rows = conv->n * p->high;
    wino_wgrad_begin(&r, scratch);
    if (p->slices > 1) {
        pool_run(pool, p->slices, 1, wino_slice_work, &r);
        pool_run(pool, wino_places(p) * p->weights / VL, 64, wino_add_work, &r);
    }
    for (; p->slices == 1 && r.row0 < rows; r.row0 += p->rows, r.adds = 1) {
        r.rows = min64(p->rows, rows - r.row0);
        pool_run(pool, wino_units(&r), 1, wino_turn_work, &r);
        pool_run(pool, wino_places(p) * parts, 1, wino_sum_work, &r);
    }
    pool_run(pool, ceil_div(p->x.m, VL) * ceil_div(p->x.channels, CHLAST), 1,
             wino_dw_work, &r);
    return 1;
}
