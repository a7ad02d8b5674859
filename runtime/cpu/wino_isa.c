/* SPDX-License-Identifier: Apache-2.0 */
/* wino_isa.c: 3x3 convolutions at stride 1 by minimal filtering (wino.h).

   An item is some rows of tiles. Its worker transforms their source points
   to the 16 positions, multiplies there, up to three vectors of result
   channels at a time, and transforms the sums to results while they are in
   the cache. For dW a turn is some rows of tiles of both X and dY. All
   threads transform them first and then add to the sums, one position and
   some channels at a time. */
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
    int64_t image0, images; /* staged now                                   */
    float *stage, *stage_dy;
    float *w; /* weights by position: panels of columns, [channel][columns] */
    /* dW: a turn's tiles of both operands, the sums by position, the numbers
       of the tiles, and the turn's rows of tiles */
    float *tiles, *tiles_dy, *sums;
    int32_t *each, *row;
    int64_t row0, rows;
    int adds; /* true: adds to the sums of earlier turns */
    char *workers;
} WinoRun;

/* All channels of row `row` of the staged tiles. */
static void wino_row(const WinoRun *r, int64_t row, float *to) {
    const WinoPlan *p = &r->p;
    const ChlastPlan *c = &p->x;
    int64_t image = row / p->high, y = row % p->high * p->edge + p->begin[0];
    int64_t at = c->lead + image * c->image + y * c->pitch[2] + p->begin[1];
    for (int64_t b = 0; b < c->cblocks; b++)
        for (int64_t j = 0; j < c->cb; j += VL)
            WINO_TURN(wino_turn_source, p->edge,
                      r->stage + (b * c->points + at) * c->cb + j, c->cb,
                      c->pitch[2], p->wide, to + b * c->cb + j, p->channels,
                      p->source);
}

static void wino_row_dy(const WinoRun *r, int64_t row, float *to) {
    const WinoPlan *p = &r->p;
    const ChlastPlan *c = &p->dy;
    int64_t at =
        row / p->high * c->image + row % p->high * p->edge * c->pitch[2];
    for (int64_t b = 0; b < c->cblocks; b++)
        for (int64_t j = 0; j < c->cb; j += VL)
            WINO_TURN(wino_turn_gradient, p->edge,
                      r->stage_dy + (b * c->points + at) * c->cb + j, c->cb,
                      c->pitch[2], p->wide, to + b * c->cb + j, p->cols,
                      p->sums);
}

/* ---- weights ------------------------------------------------------------- */

/* The nine weights of a channel and VL columns; columns beyond `cols` are
   zero. */
static void wino_load_weights(const WinoRun *r, int64_t col, int64_t cols,
                              int64_t channel, vf w[9]) {
    const ConvPlan *p = &r->p.x.p;
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
    int64_t k = r->p.x.p.channels, m = r->p.x.p.m;
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

/* Results of whole rows, n from `first` of all staged images on, by channel. */
static void wino_store(const WinoRun *r, const float *from, int64_t ld,
                       int64_t first, int64_t n, int64_t channel,
                       int64_t channels) {
    const ConvPlan *p = &r->p.x.p;
    const ChlastCall *c = r->call;
    int64_t size = p->dim[1].result * p->dim[2].result;
    for (int64_t len; n > 0; first += len, n -= len, from += len) {
        int64_t image = r->image0 + first / size, col = first % size;
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

/* The first result of row `row` of the staged tiles. */
static int64_t wino_first(const WinoRun *r, int64_t row) {
    const ConvDim *d = r->p.x.p.dim;
    return (row / r->p.high * d[1].result + row % r->p.high * r->p.edge) *
           d[2].result;
}

/* Columns n0 .. for w vectors, of all tiles of an item. */
static void wino_columns(const WinoRun *r, const float *source, float *sums,
                         float *acc, int64_t row0, int64_t rows, int64_t n0,
                         int w) {
    const WinoPlan *p = &r->p;
    const ConvDim *d = p->x.p.dim;
    int64_t k = p->x.p.channels, tiles = rows * p->wide, ld = w * VL;
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
    wino_store(r, turned, tld, first, n, n0, min64(ld, p->x.p.m - n0));
}

/* Items [lo, hi): rows of tiles. */
static void wino_work(void *ctx, int64_t lo, int64_t hi, int worker) {
    const WinoRun *r = ctx;
    const WinoPlan *p = &r->p;
    float *source = (float *)(void *)(r->workers + (size_t)worker * p->worker);
    float *sums = source + wino_places(p) * p->source;
    float *acc = sums + wino_places(p) * p->sums;
    for (int64_t i = lo; i < hi; i++) {
        int64_t row0 = i * p->rows;
        int64_t rows = min64(p->rows, r->images * p->high - row0);
        for (int64_t y = 0; y < rows; y++)
            wino_row(r, row0 + y, source + y * p->wide * p->channels);
        int64_t left = ceil_div(p->x.p.m, VL);
        for (int64_t n0 = 0; n0 < p->x.p.m;) {
            int w = tile_width(left);
            wino_columns(r, source, sums, acc, row0, rows, n0, w);
            n0 += w * VL;
            left -= w;
        }
    }
}

int ISA(wino_conv)(AmpcPool *pool, const LibConv *conv, int dgrad, int kind,
                   const ChlastCall *call, void *scratch) {
    WinoRun r = {.call = call, .dgrad = dgrad, .stage = scratch};
    WinoPlan *p = &r.p;
    if (!wino_plan(conv, dgrad, kind, call->threads, p)) return 0;
    char *other = (char *)scratch + p->x.stage;
    r.w = kept_memory(call->kept, other);
    r.workers = other + p->other;
    if (!call->kept || !call->kept->made)
        pool_run(pool, ceil_div(p->x.p.m, VL), 1, wino_weights_work, &r);
    if (call->kept) call->kept->made = 1;
    int64_t end = call->first + call->images;
    for (r.image0 = call->first; r.image0 < end; r.image0 += r.images) {
        r.images = min64(p->x.images, end - r.image0);
        ISA(chlast_stage)(pool, &p->x, call, r.image0, r.images, r.stage);
        pool_run(pool, ceil_div(r.images * p->high, p->rows), 1, wino_work, &r);
    }
    return 1;
}

/* ---- gradient by the weights --------------------------------------------- */

/* Units [lo, hi): the turn's rows of tiles of X, then of dY. */
static void wino_turn_work(void *ctx, int64_t lo, int64_t hi, int worker) {
    const WinoRun *r = ctx;
    const WinoPlan *p = &r->p;
    (void)worker;
    for (int64_t i = lo; i < hi; i++) {
        int64_t y = i % r->rows;
        if (i < r->rows)
            wino_row(r, r->row0 + y, r->tiles + y * p->wide * p->channels);
        else
            wino_row_dy(r, r->row0 + y, r->tiles_dy + y * p->wide * p->cols);
    }
}

/* Units [lo, hi): a position, some channels. */
static void wino_sum_work(void *ctx, int64_t lo, int64_t hi, int worker) {
    const WinoRun *r = ctx;
    const WinoPlan *p = &r->p;
    int64_t channels = p->x.p.channels, m = p->x.p.m;
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

/* Slices [lo, hi) of the staged turns. One thread computes a whole slice and
   reads its own results: with few channels, exchanging tiles between threads
   takes longer than the multiplications. */
static void wino_slice_work(void *ctx, int64_t lo, int64_t hi, int worker) {
    const WinoRun *r = ctx;
    const WinoPlan *p = &r->p;
    int64_t all = r->images * p->high, turns = ceil_div(all, p->rows);
    int64_t parts = ceil_div(p->x.p.channels, WINO_CHANNELS);
    WinoRun own = *r;
    own.tiles = (float *)(void *)(r->workers + (size_t)worker * p->worker);
    own.tiles_dy = own.tiles + wino_places(p) * p->source;
    for (int64_t i = lo; i < hi; i++) {
        int64_t from = turns * i / p->slices, to = turns * (i + 1) / p->slices;
        own.sums = r->sums + i * wino_places(p) * p->weights;
        own.adds = r->image0 > 0;
        for (int64_t t = from; t < to; t++, own.adds = 1) {
            own.row0 = t * p->rows;
            own.rows = min64(p->rows, all - own.row0);
            wino_turn_work(&own, 0, 2 * own.rows, worker);
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
    int64_t channels = p->x.p.channels, m = p->x.p.m;
    int64_t blocks = ceil_div(channels, CHLAST);
    float *tap = (float *)(void *)(r->workers + (size_t)worker * p->worker);
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
    r->stage = scratch;
    r->stage_dy = (void *)((char *)scratch + p->x.stage);
    r->tiles = r->sums = (void *)((char *)r->stage_dy + p->dy.stage);
    r->tiles_dy = r->tiles + wino_places(p) * p->source;
    if (p->slices == 1) r->sums = r->tiles_dy + wino_places(p) * p->sums;
    r->row = (void *)(r->sums + p->slices * wino_places(p) * p->weights);
    r->each = r->row + tiles;
    for (int32_t i = 0; i < tiles; i++) {
        r->each[i] = i;
        r->row[i] = i * (int32_t)p->channels;
    }
    r->workers = (char *)r->tiles + p->other;
}

int ISA(wino_wgrad)(AmpcPool *pool, const LibConv *conv, int kind,
                    const ChlastCall *call, void *scratch) {
    WinoRun r = {.call = call};
    WinoPlan *p = &r.p;
    if (!wino_wgrad_plan(conv, kind, p)) return 0;
    ChlastCall dy = {.src = call->other, .src_dtype = call->other_dtype};
    int64_t parts = ceil_div(p->x.p.channels, WINO_CHANNELS);
    wino_wgrad_begin(&r, scratch);
    for (; r.image0 < conv->n; r.image0 += r.images) {
        r.images = min64(p->x.images, conv->n - r.image0);
        ISA(chlast_stage)(pool, &p->x, call, r.image0, r.images, r.stage);
        ISA(chlast_stage)(pool, &p->dy, &dy, r.image0, r.images, r.stage_dy);
        if (p->slices > 1) {
            pool_run(pool, p->slices, 1, wino_slice_work, &r);
            continue;
        }
        int64_t rows = r.images * p->high;
        for (r.row0 = 0; r.row0 < rows; r.row0 += p->rows) {
            r.rows = min64(p->rows, rows - r.row0);
            r.adds = r.image0 + r.row0 > 0;
            pool_run(pool, 2 * r.rows, 1, wino_turn_work, &r);
            pool_run(pool, wino_places(p) * parts, 1, wino_sum_work, &r);
        }
    }
    if (p->slices > 1)
        pool_run(pool, wino_places(p) * p->weights / VL, 64, wino_add_work, &r);
    pool_run(pool, ceil_div(p->x.p.m, VL) * ceil_div(p->x.p.channels, CHLAST),
             1, wino_dw_work, &r);
    return 1;
}
