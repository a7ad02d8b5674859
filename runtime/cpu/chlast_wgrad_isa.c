/* SPDX-License-Identifier: Apache-2.0 */
/* chlast_wgrad_isa.c: the gradient by the weights of a convolution of many
   channels (see chlast.h).

   chlast_wgrad returns 0 if the plan assigns the convolution to wgrad_isa.c. */
#include "runtime/cpu/amx.h"
#include "runtime/cpu/chlast_run.h"
#include "runtime/cpu/transpose.h"

enum { CHLAST_PIECE = 256 };

/* Results of one image that are packed at a time: whole rows of pairs. */
static int64_t wgrad_piece(const ChlastRun *r) {
    int64_t width = r->c.p.dim[2].count;
    return width % r->c.along ? width : CHLAST_PIECE;
}

/* The points of a staged image, and those before the first, become pairs
   with the points `step` later; the next image may consist of pairs already. */
static void stage_pairs(const ChlastRun *r, int64_t image, int64_t b) {
    const ChlastPlan *c = &r->c;
    int64_t cb = c->cb, step = c->p.dim[2].stride;
    int64_t chan = c->p.dim[0].in * c->p.dim[1].in * c->p.dim[2].in;
    int64_t n = (c->image + (image ? 0 : c->lead)) * cb, ahead = step * cb;
    u1_any *p = (void *)(chlast_stage_at(r, b) +
                         (image ? c->lead + image * c->image : 0) * cb);
    for (int64_t i = 0; i < n - ahead; i++)
        p[i] = p[i] >> 16 | (p[i + ahead] & 0xffff0000);
    const uint16_t *next =
        (const uint16_t *)r->call->src +
        ((r->image0 + image + 1) * c->p.channels + b * cb) * chan;
    for (int64_t x = 0; x < step; x++)
        for (int64_t j = 0; j < cb; j++) {
            u1_any *last = p + n - ahead + x * cb + j;
            int real = image + 1 < r->images && j < chlast_channels(r, b);
            *last =
                *last >> 16 | (real ? (uint32_t)next[j * chan + x] << 16 : 0);
        }
}

/* Units [lo, hi): blocks of X, then pieces of the images of dY. */
static void wgrad_stage_work(void *ctx, int64_t lo, int64_t hi, int worker) {
    const ChlastRun *r = ctx;
    const ChlastPlan *c = &r->c;
    int64_t x_units = r->images * c->cblocks, piece = wgrad_piece(r);
    int64_t pieces = ceil_div(r->results, piece);
    int dtype = r->call->other_dtype;
    (void)worker;
    for (int64_t i = lo; i < hi; i++) {
        if (i < x_units) {
            ISA(chlast_stage_unit)(r, i);
            if (c->p.pairs) stage_pairs(r, i / c->cblocks, i % c->cblocks);
            continue;
        }
        int64_t image = (i - x_units) / pieces,
                at_piece = (i - x_units) % pieces;
        int64_t first = at_piece * piece, n = min64(piece, r->results - first);
        int64_t from = (r->image0 + image) * c->p.m * r->results + first;
        int64_t k0 = image * (c->count / c->images) +
                     at_piece * ceil_div(piece, c->along);
        PackSrc s = {at(r->call->other, dtype, from), dtype, 1, r->results};
        if (on_tiles(c->kind)) {
            /* the last piece fills the last tile with zeros */
            int64_t end = image + 1 == r->images && at_piece + 1 == pieces;
            int64_t k = ceil_div(n, 2);
            if (end) k = round_up(k0 + k, AMX_UNIT) - k0;
            s.rs = r->results;
            s.cs = 1;
            amx_pack_a(r->other, &s, k0, k, c->length, c->p.m, n);
        } else {
            panel_pack_b(c->kind, r->other, &s, k0, block_length(c->kind, n),
                         c->count, c->p.m, n);
        }
    }
}

/* Panel i of dY: its first column; its width is *w vectors. */
static int64_t wgrad_panel(const ChlastRun *r, int64_t i, int *w) {
    int64_t left = ceil_div(r->c.p.m, VL), col = 0;
    for (;; i--) {
        *w = tile_width(left);
        if (i == 0) return col;
        col += *w * VL;
        left -= *w;
    }
}

/* dW of a panel and a block of channels: [tap][channel][w * VL]. */
static float *wgrad_at(const ChlastRun *r, int64_t col, int w, int64_t b) {
    const ChlastPlan *c = &r->c;
    int64_t taps = c->p.taps;
    return r->dw + (col * c->cblocks + b * w * VL) * taps * c->cb;
}

/* to[..] = taps [tap, end) of a panel and a block of channels. */
static void wgrad_item(const ChlastRun *r, float *to, int64_t col, int w,
                       int64_t b, int64_t tap, int64_t end) {
    const ChlastPlan *c = &r->c;
    int64_t all = r->images * (c->count / c->images), pw = w * VL;
    int64_t nc = chlast_block(r, b);
    const float *x = chlast_stage_at(r, b), *dy = r->other + col * c->count;
    for (int64_t y = 0; y == 0 || y < all; y += CHLAST_SUM)
        for (int64_t t = tap; t < end; t++) {
            const int32_t *at = r->order + (c->skips ? t * c->count : 0);
            int64_t n = c->skips ? r->many[t] : all;
            for (int64_t j = 0; j < nc && (y == 0 || y < n); j += MR)
                ISA(tile_outer)
            [c->kind][min64(MR, nc - j) - 1][w - 1](
                min64(CHLAST_SUM, n - y), at + y, x + r->shift[t] + j, r->row,
                dy, pw, to + (t * c->cb + j) * pw, pw, y > 0 || r->image0 > 0);
        }
}

/* For tiles dW is stored as [two blocks of channels][tap][k][their
   channels]. */
static float *wgrad_tile_at(const ChlastRun *r, int64_t b, int64_t tap,
                            int64_t w) {
    const ChlastPlan *c = &r->c;
    return r->dw + (b * c->cb * c->p.taps + tap * w * VL) * c->width;
}

/* Elements [y, y + n) of X as the tap reads them, from w blocks of channels;
   after the last block, `all`, zeros. */
static void wgrad_gather(const ChlastRun *r, float *to, int64_t b, int64_t w,
                         int64_t tap, int64_t y, int64_t n, int64_t all) {
    const float *x = chlast_stage_at(r, b) + r->shift[tap];
    int64_t next = r->c.points * r->c.cb;
    for (int64_t i = y; i < y + n; i++)
        for (int64_t j = 0; j < w; j++, to += VL)
            vstore(to, i < all ? vload(x + j * next + r->row[i]) : vset(0.0f));
}

/* Items [lo, hi): a tap, two blocks of channels. */
static void wgrad_tile_work(void *ctx, int64_t lo, int64_t hi, int worker) {
    const ChlastRun *r = ctx;
    const ChlastPlan *c = &r->c;
    float *x = (float *)(void *)(r->workers + (size_t)worker * c->worker);
    int64_t all = r->images * (c->count / c->images);
    int64_t end = round_up(all, AMX_UNIT);
    amx_begin();
    for (int64_t i = lo; i < hi; i++) {
        int64_t tap = i % c->p.taps, b = i / c->p.taps * 2;
        int64_t w = min64(2, c->cblocks - b);
        float *to = wgrad_tile_at(r, b, tap, w);
        for (int64_t y = 0; y < end; y += CHLAST_GATHER) {
            int64_t n = min64(CHLAST_GATHER, end - y);
            wgrad_gather(r, x, b, w, tap, y, n, all);
            for (int64_t k = 0; k < c->width; k += AMX_HEIGHT)
                amx_product(n / AMX_UNIT, min64(AMX_HEIGHT, c->width - k),
                            (int)w, r->other + k * c->length + y * AMX_ROWS,
                            AMX_ROWS * c->length, x, w * VL, to + k * w * VL,
                            w * VL, y > 0 || r->image0 > 0);
        }
    }
    amx_end();
}

/* Items [lo, hi): two blocks of channels, a row: to dW[k][channel][tap]. */
static void wgrad_tile_store(void *ctx, int64_t lo, int64_t hi, int worker) {
    const ChlastRun *r = ctx;
    const ChlastPlan *c = &r->c;
    int64_t taps = c->p.taps;
    float *line = (float *)(void *)(r->workers + (size_t)worker * c->worker) +
                  2 * VL * CHLAST_GATHER;
    for (int64_t i = lo; i < hi; i++) {
        int64_t k = i % c->p.m, b = i / c->p.m * 2;
        int64_t w = min64(2, c->cblocks - b), first = b * c->cb;
        int64_t channels = min64(w * c->cb, c->p.channels - first);
        for (int64_t t = 0; t < taps; t++) {
            const float *from = wgrad_tile_at(r, b, t, w) + k * w * VL;
            for (int64_t j = 0; j < channels; j++) line[j * taps + t] = from[j];
        }
        narrow(r->call->out, r->call->out_dtype,
               (k * c->p.channels + first) * taps, line, channels * taps);
    }
}

/* A panel and a block of channels to dW[k][channel][tap]; `line` is scratch. */
static void wgrad_write(const ChlastRun *r, const float *from, int64_t col,
                        int w, int64_t b, float *line) {
    const ChlastPlan *c = &r->c;
    int64_t taps = c->p.taps, nc = chlast_block(r, b), run = nc * taps;
    int64_t pw = w * VL, ld = round_up(run, TB);
    for (int64_t k = 0; k < min64(pw, c->p.m - col); k += TB) {
        for (int64_t q0 = 0, tap = 0, ch = 0; q0 < run; q0 += TB) {
            vt v[TB];
            for (int j = 0; j < TB; j++) {
                v[j] = load_vt(from + (tap * c->cb + ch) * pw + k, AMPC_F32);
                if (++tap == taps) tap = 0, ch = min64(ch + 1, nc - 1);
            }
            transpose_registers(v);
            for (int j = 0; j < TB; j++) store_vt(line + j * ld + q0, v[j]);
        }
        for (int64_t j = 0; j < min64(TB, c->p.m - col - k); j++)
            narrow(r->call->out, r->call->out_dtype,
                   ((col + k + j) * c->p.channels + b * c->cb) * taps,
                   line + j * ld, run);
    }
}

/* Items [lo, hi): a tap or all, a block of channels, a panel of dY. */
static void wgrad_work(void *ctx, int64_t lo, int64_t hi, int worker) {
    const ChlastRun *r = ctx;
    const ChlastPlan *c = &r->c;
    int64_t parts = c->parted ? c->p.taps : 1, taps = c->p.taps / parts;
    float *own = (float *)(void *)(r->workers + (size_t)worker * c->worker);
    for (int64_t i = lo; i < hi; i++) {
        int64_t tap = i % parts * taps, rest = i / parts, b = rest % c->cblocks;
        int w;
        int64_t col = wgrad_panel(r, rest / c->cblocks, &w);
        float *to = c->at_once ? own : wgrad_at(r, col, w, b);
        wgrad_item(r, to, col, w, b, tap, tap + taps);
        if (c->at_once)
            wgrad_write(r, to, col, w, b, own + taps * c->cb * w * VL);
    }
}

/* Items [lo, hi): a block of channels, a panel. */
static void wgrad_store_work(void *ctx, int64_t lo, int64_t hi, int worker) {
    const ChlastRun *r = ctx;
    const ChlastPlan *c = &r->c;
    float *line = (float *)(void *)(r->workers + (size_t)worker * c->worker);
    for (int64_t i = lo; i < hi; i++) {
        int w;
        int64_t b = i % c->cblocks, col = wgrad_panel(r, i / c->cblocks, &w);
        wgrad_write(r, wgrad_at(r, col, w, b), col, w, b, line);
    }
}

int ISA(chlast_wgrad)(AmpcPool *pool, const LibConv *conv, int kind,
                      const ChlastCall *call, void *scratch) {
    ChlastRun r = {.call = NULL};
    ChlastPlan *c = &r.c;
    if (!chlast_wgrad_plan(conv, kind, pool_threads(pool), c)) return 0;
    ISA(chlast_begin)(&r, call, scratch);
    ISA(chlast_sub)(&r, 0, NULL);
    r.dw = r.other + round_up(c->length * c->width, BLOCK_LANES);
    int64_t panels = 0, parts = c->parted ? c->p.taps : 1;
    for (int64_t left = ceil_div(c->p.m, VL); left > 0; panels++)
        left -= tile_width(left);
    r.many = r.order + c->p.taps * c->count;
    for (int64_t ordered = 0; r.image0 < conv->n; r.image0 += r.images) {
        r.images = min64(c->images, conv->n - r.image0);
        if (c->skips && r.images != ordered) {
            ordered = r.images;
            int64_t n =
                chlast_reads(c, &r.sub, ordered, c->along, r.inside, r.order);
            chlast_lists(c, n, r.inside, r.order, r.many);
        }
        int64_t units = c->cblocks + ceil_div(r.results, wgrad_piece(&r));
        pool_run(pool, r.images * units, 1, wgrad_stage_work, &r);
        if (on_tiles(c->kind))
            pool_run(pool, ceil_div(c->cblocks, 2) * c->p.taps, 1,
                     wgrad_tile_work, &r);
        else
            pool_run(pool, panels * c->cblocks * parts, 1, wgrad_work, &r);
    }
    if (on_tiles(c->kind))
        pool_run(pool, ceil_div(c->cblocks, 2) * c->p.m, 8, wgrad_tile_store,
                 &r);
    else if (!c->at_once)
        pool_run(pool, panels * c->cblocks, 1, wgrad_store_work, &r);
    return 1;
}
