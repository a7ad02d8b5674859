/* chlast_isa.c: convolutions of many channels (see chlast.h).

   The calls below return 0 where the plan says that such a convolution belongs
   to conv_isa.c or wgrad_isa.c.                                             */
#include "runtime/cpu/chlast_run.h"
#include "runtime/cpu/pack.h"
#include "runtime/cpu/transpose.h"

typedef struct ChlastRun {
    ChlastPlan c;
    const ChlastCall *call;
    int64_t image0, images; /* staged now                                   */
    float *stage, *other;   /* other: packed weights, or dY                 */
    float *dw;              /* [panel][block][tap][channel][columns]        */
    int32_t *row, *place, *shift;
    char *workers;
    ConvSub sub;
    int64_t index, results; /* of the sub-problem: its number, per image    */
    int64_t groups;         /* of result channels                           */
    const float *w;         /* its weights                                  */
    int64_t taps;           /* dW: of an item                               */
} ChlastRun;

static int64_t chlast_block(const ChlastRun *r, int64_t b) {
    return min64(r->c.cb, r->c.p.channels - b * r->c.cb);
}

static float *chlast_stage_at(const ChlastRun *r, int64_t b) {
    return r->stage + b * r->c.points * r->c.cb;
}

/* ---- staging ------------------------------------------------------------- */

/* n points of nc channels that lie `chan` elements apart. */
INLINE void stage_row(float *dst, int64_t cb, const void *src, int dtype,
                      int64_t from, int64_t chan, int64_t nc, int64_t n) {
    int64_t c = 0, ld = chan * dtype_size(dtype);
    for (; n >= 4 && c + TB <= nc; c += TB) {
        int64_t x = 0, at_c = from + c * chan;
        for (; x + TB <= n; x += TB)
            transpose(dst + x * cb + c, cb, at(src, dtype, at_c + x), dtype,
                      ld);
        if (x < n && n >= TB) { /* the last block may overlap the one before */
            x = n - TB;
            transpose(dst + x * cb + c, cb, at(src, dtype, at_c + x), dtype,
                      ld);
            x = n;
        }
        for (; x < n; x = min64(x + 4, max64(n - 4, x + 1)))
            for (int64_t i = 0; x + 4 <= n && i < TB; i += 4)
                transpose4(dst + x * cb + c + i, cb,
                           at(src, dtype, at_c + i * chan + x), dtype, ld);
    }
    for (; c < nc; c++)
        for (int64_t x = 0; x < n; x++)
            dst[x * cb + c] = load1(src, dtype, from + c * chan + x);
}

static void stage_zero(float *dst, int64_t n) {
    for (int64_t i = 0; i < n; i++) dst[i] = 0.0f;
}

INLINE void stage_image_as(const ChlastRun *r, int dtype, int64_t image,
                           int64_t b) {
    const ChlastPlan *c = &r->c;
    const ConvDim *d = c->p.dim;
    int64_t cb = c->cb, nc = chlast_block(r, b), rows = d[1].in;
    int64_t width = d[2].in, chan = d[0].in * d[1].in * d[2].in;
    int64_t from = ((r->image0 + image) * c->p.channels + b * cb) * chan;
    float *to = chlast_stage_at(r, b);
    if (image == 0) stage_zero(to, c->lead * cb);
    to += (c->lead + image * c->image) * cb;
    if (c->pitch[2] == width) { /* no pads: a plane is one row */
        width *= rows;
        rows = 1;
    }
    int64_t pitch = width + c->pitch[2] - d[2].in;
    for (int64_t z = 0; z < d[0].in; z++) {
        float *end = to + (z + 1) * c->pitch[1] * c->pitch[2] * cb;
        float *p = to + z * c->pitch[1] * c->pitch[2] * cb;
        for (int64_t y = 0; y < rows; y++, p += pitch * cb, from += width) {
            stage_row(p, cb, r->call->src, dtype, from, chan, nc, width);
            stage_zero(p + width * cb, (pitch - width) * cb);
        }
        stage_zero(p, end - p);
    }
    int64_t plane = c->pitch[1] * c->pitch[2];
    stage_zero(to + d[0].in * plane * cb, (c->pitch[0] - d[0].in) * plane * cb);
}

/* Units [lo, hi): blocks of channels of each image. */
static void stage_image(const ChlastRun *r, int64_t unit) {
    int64_t image = unit % r->images, b = unit / r->images;
    int dtype = r->call->src_dtype;
    if (dtype == AMPC_F32)
        stage_image_as(r, AMPC_F32, image, b);
    else if (dtype == AMPC_BF16)
        stage_image_as(r, AMPC_BF16, image, b);
    else
        stage_image_as(r, AMPC_F16, image, b);
}

static void stage_work(void *ctx, int64_t lo, int64_t hi, int worker) {
    (void)worker;
    for (int64_t i = lo; i < hi; i++) stage_image(ctx, i);
}

/* ---- weights ------------------------------------------------------------- */

/* Where the weight of (column, channel, tap 0) lies: columns are result
   channels; taps lie side by side.                                          */
typedef struct ChlastWeights {
    int64_t col, channel; /* steps */
    const int32_t *order; /* of each tap in the sub-problem, or -1          */
} ChlastWeights;

/* `run` weights of each of cols columns, the first (channel, tap 0): weight q
   is of tap q % taps, channel + q / taps of the block of nc.                */
INLINE void pack_run(const ChlastRun *r, const ChlastWeights *s, int dtype,
                     float *dst, int64_t pw, int64_t from, int64_t run,
                     int64_t channel, int64_t nc, int64_t cols) {
    int64_t taps = r->c.p.taps, j = 0;
    const void *w = r->call->other;
    for (; run >= TB && j + TB <= cols; j += TB)
        for (int64_t q0 = 0, q = 0; q0 < run; q0 += TB) {
            vt v[TB];
            q = min64(q0, run - TB);
            for (int i = 0; i < TB; i++)
                v[i] =
                    load_vt(at(w, dtype, from + (j + i) * s->col + q), dtype);
            turn(v);
            int64_t tap = q % taps, c = channel + q / taps;
            for (int i = 0; i < TB; i++) {
                if (s->order[tap] >= 0)
                    *(vt_any *)(dst + (s->order[tap] * nc + c) * pw + j) = v[i];
                if (++tap == taps) tap = 0, c++;
            }
        }
    for (; j < pw; j++)
        for (int64_t q = 0; q < run; q++) {
            int64_t tap = q % taps, c = channel + q / taps;
            if (s->order[tap] < 0) continue;
            dst[(s->order[tap] * nc + c) * pw + j] =
                j < cols ? load1(w, dtype, from + j * s->col + q) : 0.0f;
        }
}

INLINE void pack_weights_as(const ChlastRun *r, const ChlastWeights *s,
                            int dtype, int64_t n0, int64_t b) {
    const ChlastPlan *c = &r->c;
    int64_t taps = c->p.taps, nc = chlast_block(r, b);
    int64_t k = c->p.channels * r->sub.taps, k0 = b * c->cb * r->sub.taps;
    int64_t n = min64(c->cols, c->p.m - n0), left = ceil_div(n, VL);
    int64_t first = n0 * s->col + b * c->cb * s->channel;
    for (int64_t j = 0, w; j < n; j += w * VL, left -= w) {
        w = tile_width(left);
        int64_t cols = min64(w * VL, n - j), from = first + j * s->col;
        float *dst = (float *)r->w + (n0 + j) * k + k0 * w * VL;
        if (s->channel == taps)
            pack_run(r, s, dtype, dst, w * VL, from, nc * taps, 0, nc, cols);
        for (int64_t i = 0; s->channel != taps && i < nc; i++)
            pack_run(r, s, dtype, dst, w * VL, from + i * s->channel, taps, i,
                     nc, cols);
    }
}

/* Units [lo, hi): a group of columns and a block of channels. */
static void pack_work(void *ctx, int64_t lo, int64_t hi, int worker) {
    const ChlastRun *r = ctx;
    const ChlastPlan *c = &r->c;
    int32_t *order = r->shift + c->p.taps;
    int dtype = r->call->other_dtype;
    ChlastWeights s = {c->p.channels * c->p.taps, c->p.taps, order};
    if (c->p.dgrad) s = (ChlastWeights){c->p.taps, c->p.m * c->p.taps, order};
    (void)worker;
    for (int64_t i = lo; i < hi; i++) {
        int64_t n0 = i % r->groups * c->cols, b = i / r->groups;
        int64_t n = min64(c->cols, c->p.m - n0);
        if (c->p.taps == 1) { /* a plain matrix */
            PackSrc m = {
                at(r->call->other, dtype, n0 * s.col + b * c->cb * s.channel),
                dtype, s.channel, s.col};
            ISA(pack_b)
            ((float *)r->w + n0 * c->p.channels, &m, b * c->cb,
             chlast_block(r, b), c->p.channels, n);
        } else if (dtype == AMPC_F32)
            pack_weights_as(r, &s, AMPC_F32, n0, b);
        else if (dtype == AMPC_BF16)
            pack_weights_as(r, &s, AMPC_BF16, n0, b);
        else
            pack_weights_as(r, &s, AMPC_F16, n0, b);
    }
}

/* ---- forward, and the gradient by the input ------------------------------ */

/* acc[n][ld] = the results of item's points and columns. */
static void chlast_multiply(const ChlastRun *r, float *acc, int64_t ld,
                            int64_t first, int64_t n, int64_t n0, int64_t m) {
    const ChlastPlan *c = &r->c;
    int64_t k = c->p.channels * r->sub.taps;
    int64_t b = 0;
    do { /* once even without taps: the result is zero then */
        TilePoints t = {.cb = c->cb,
                        .taps = r->sub.taps,
                        .block_step = c->points * c->cb,
                        .src = chlast_stage_at(r, b),
                        .shift = r->shift,
                        .ldc = ld,
                        .add = b > 0};
        t.channels = min64(c->kc * c->cb, c->p.channels - b * c->cb);
        int64_t left = ceil_div(m, VL), k0 = b * c->cb * t.taps;
        for (int64_t j = 0, w; j < m; j += w * VL, left -= w) {
            w = tile_width(left);
            t.w = r->w + (n0 + j) * k + k0 * w * VL;
            t.w_step = w * VL;
            for (int64_t i = 0; i < n; i += MR) {
                t.row = r->row + r->index * r->c.count + first + i;
                t.c = acc + i * ld + j;
                ISA(tile_points)[min64(MR, n - i) - 1][w - 1](&t);
            }
        }
        b += c->kc;
    } while (r->sub.taps > 0 && b < c->cblocks);
}

/* The columns of `from`, channels from `channel` on, to the result. */
static void chlast_store(const ChlastRun *r, const float *from, int64_t ld,
                         int64_t first, int64_t n, int64_t channel,
                         int64_t channels) {
    const ConvPlan *p = &r->c.p;
    const ChlastCall *c = r->call;
    int64_t size = p->dim[0].result * p->dim[1].result * p->dim[2].result;
    const int32_t *place = r->place + r->index * r->c.count;
    for (int64_t i = first, len; i < first + n; i += len, from += len) {
        int64_t image = i / r->results;
        len = min64((image + 1) * r->results, first + n) - i;
        image += r->image0;
        if (c->ep && c->ep->fn) {
            c->ep->fn(c->ep->buf, from, ld, image, channel, place[i], channels,
                      len);
            continue;
        }
        int64_t to = (image * p->m + channel) * size;
        for (int64_t j = 0; j < channels; j++, to += size)
            if (p->subs == 1)
                narrow(c->out, c->out_dtype, to + place[i], from + j * ld, len);
            else
                for (int64_t x = 0; x < len; x++)
                    store1(c->out, c->out_dtype, to + place[i + x],
                           from[j * ld + x]);
    }
}

/* Items [lo, hi): some points and a group of columns. */
static void chlast_work(void *ctx, int64_t lo, int64_t hi, int worker) {
    const ChlastRun *r = ctx;
    const ChlastPlan *c = &r->c;
    float *acc = (float *)(void *)(r->workers + (size_t)worker * c->worker);
    float *turned = acc + (c->block + BLOCK_ROWS) * c->cols;
    int64_t blocks = ceil_div(r->images * r->results, c->block);
    int64_t tld = c->block + BLOCK_LANES;
    for (int64_t i = lo; i < hi; i++) {
        int64_t first = i % blocks * c->block, n0 = i / blocks * c->cols;
        int64_t n = min64(c->block, r->images * r->results - first);
        int64_t m = min64(c->cols, c->p.m - n0), ld = round_up(m, VL);
        chlast_multiply(r, acc, ld, first, n, n0, m);
        for (int64_t j = 0; j < m; j += NR) {
            int64_t cols = min64(NR, m - j);
            for (int64_t y = 0; y < n; y += TB)
                for (int64_t x = 0; x < round_up(cols, TB) && j + x < ld;
                     x += TB)
                    transpose(turned + x * tld + y, tld, acc + y * ld + j + x,
                              AMPC_F32, ld * 4);
            chlast_store(r, turned, tld, first, n, n0 + j, cols);
        }
    }
}

/* ---- all of it ----------------------------------------------------------- */

static void chlast_begin(ChlastRun *r, const ChlastCall *call, void *scratch) {
    const ChlastPlan *c = &r->c;
    r->call = call;
    r->stage = scratch;
    r->other = (float *)(void *)((char *)scratch + c->stage);
    r->row = (int32_t *)(void *)((char *)scratch + c->stage + c->other);
    r->place = r->row + c->p.subs * c->count;
    r->shift = r->place + c->p.subs * c->count;
    r->workers = (char *)scratch + c->stage + c->other + c->rows;
    r->groups = c->cols ? ceil_div(c->p.m, c->cols) : 0;
    for (int64_t i = 0; i < c->p.subs; i++) {
        conv_sub(&c->p, i, &r->sub);
        chlast_rows(c, &r->sub, c->images, r->row + i * c->count,
                    r->place + i * c->count);
    }
}

/* Sub-problem `index`, whose weights lie at w; returns where they end. */
static const float *chlast_sub(ChlastRun *r, int64_t index, const float *w) {
    const ConvPlan *p = &r->c.p;
    conv_sub(p, index, &r->sub);
    r->index = index;
    r->results = r->sub.count[0] * r->sub.count[1] * r->sub.count[2];
    r->w = w;
    chlast_shifts(&r->c, &r->sub, r->shift);
    return w + p->channels * r->sub.taps * round_up(p->m, VL);
}

int ISA(chlast_conv)(AmpcPool *pool, const LibConv *conv, int dgrad,
                     const ChlastCall *call, void *scratch) {
    ChlastRun r = {.call = NULL};
    ChlastPlan *c = &r.c;
    if (!chlast_plan(conv, dgrad, pool_threads(pool), c)) return 0;
    chlast_begin(&r, call, scratch);
    const float *w = r.other;
    for (int64_t i = 0; i < c->p.subs; i++) {
        int32_t *order = r.shift + c->p.taps;
        w = chlast_sub(&r, i, w);
        for (int64_t t = 0; t < c->p.taps; t++) order[t] = -1;
        for (int64_t t = 0; t < r.sub.taps; t++)
            order[conv_tap(&c->p, &r.sub, t)] = (int32_t)t;
        if (r.sub.taps > 0)
            pool_run(pool, r.groups * c->cblocks, 1, pack_work, &r);
    }
    for (; r.image0 < conv->n; r.image0 += r.images) {
        r.images = min64(c->images, conv->n - r.image0);
        pool_run(pool, r.images * c->cblocks, 1, stage_work, &r);
        w = r.other;
        for (int64_t i = 0; i < c->p.subs; i++) {
            w = chlast_sub(&r, i, w);
            pool_run(pool, ceil_div(r.images * r.results, c->block) * r.groups,
                     1, chlast_work, &r);
        }
    }
    return 1;
}

/* ---- gradient by the weights --------------------------------------------- */

enum { CHLAST_PIECE = 256 };

/* Units [lo, hi): blocks of X, then pieces of the images of dY. */
static void wgrad_stage_work(void *ctx, int64_t lo, int64_t hi, int worker) {
    const ChlastRun *r = ctx;
    const ChlastPlan *c = &r->c;
    int64_t x_units = r->images * c->cblocks;
    int64_t pieces = ceil_div(r->results, CHLAST_PIECE);
    int dtype = r->call->other_dtype;
    (void)worker;
    for (int64_t i = lo; i < hi; i++) {
        if (i < x_units) {
            stage_image(r, i);
            continue;
        }
        int64_t image = (i - x_units) / pieces;
        int64_t first = (i - x_units) % pieces * CHLAST_PIECE;
        int64_t from = (r->image0 + image) * c->p.m * r->results + first;
        PackSrc s = {at(r->call->other, dtype, from), dtype, 1, r->results};
        ISA(pack_b)
        (r->other, &s, image * r->results + first,
         min64(CHLAST_PIECE, r->results - first), c->count, c->p.m);
    }
}

/* Panel i of dY: its first column; *w vectors. */
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

/* How many taps share a tile of MR rows: with more channels than two the rows
   of one tap fill it well enough.                                          */
static int64_t tile_taps(const ChlastPlan *c) {
    return c->cb <= 2 ? MR / c->cb : 1;
}

/* Taps [tap, end) of a panel and a block of channels. */
static void wgrad_item(const ChlastRun *r, int64_t col, int w, int64_t b,
                       int64_t tap, int64_t end) {
    const ChlastPlan *c = &r->c;
    int64_t n = r->images * r->results, nc = chlast_block(r, b), pw = w * VL;
    const float *x = chlast_stage_at(r, b), *dy = r->other + col * c->count;
    float *to = wgrad_at(r, col, w, b);
    int few = tile_taps(c) > 1;
    int64_t rows = few ? (end - tap) * c->cb : nc, last = few ? tap + 1 : end;
    for (int64_t y = 0; y < n; y += CHLAST_SUM)
        for (int64_t t = tap; t < last; t++)
            for (int64_t j = 0; j < rows; j += MR) {
                int32_t off[MR];
                for (int i = 0; few && i < min64(MR, rows - j); i++)
                    off[i] = r->shift[t + (j + i) / c->cb] +
                             (int32_t)((j + i) % c->cb);
                ISA(tile_outer)
                [min64(MR, rows - j) - 1][w - 1](
                    min64(CHLAST_SUM, n - y), few ? x : x + r->shift[t] + j,
                    few ? off : NULL, r->row + y, dy + y * pw, pw,
                    to + (t * c->cb + j) * pw, pw, y > 0 || r->image0 > 0);
            }
}

/* Items [lo, hi): some taps, a block of channels, a panel of dY. */
static void wgrad_work(void *ctx, int64_t lo, int64_t hi, int worker) {
    const ChlastRun *r = ctx;
    const ChlastPlan *c = &r->c;
    int64_t parts = ceil_div(c->p.taps, r->taps);
    (void)worker;
    for (int64_t i = lo; i < hi; i++) {
        int64_t tap = i % parts * r->taps, rest = i / parts;
        int w;
        int64_t col = wgrad_panel(r, rest / c->cblocks, &w);
        wgrad_item(r, col, w, rest % c->cblocks, tap,
                   min64(tap + r->taps, c->p.taps));
    }
}

/* Items [lo, hi): a block of channels, a panel: to dW[k][channel][tap]. */
static void wgrad_store_work(void *ctx, int64_t lo, int64_t hi, int worker) {
    const ChlastRun *r = ctx;
    const ChlastPlan *c = &r->c;
    int64_t taps = c->p.taps;
    float *line = (float *)(void *)(r->workers + (size_t)worker * c->worker);
    for (int64_t i = lo; i < hi; i++) {
        int64_t b = i % c->cblocks, nc = chlast_block(r, b), run = nc * taps;
        int w;
        int64_t col = wgrad_panel(r, i / c->cblocks, &w), pw = w * VL;
        const float *from = wgrad_at(r, col, w, b);
        int64_t ld = round_up(run, TB);
        for (int64_t k = 0; k < min64(pw, c->p.m - col); k += TB) {
            for (int64_t q0 = 0, tap = 0, ch = 0; q0 < run; q0 += TB) {
                vt v[TB];
                for (int j = 0; j < TB; j++) {
                    v[j] =
                        *(const vt_any *)(from + (tap * c->cb + ch) * pw + k);
                    if (++tap == taps) tap = 0, ch = min64(ch + 1, nc - 1);
                }
                turn(v);
                for (int j = 0; j < TB; j++)
                    *(vt_any *)(line + j * ld + q0) = v[j];
            }
            for (int64_t j = 0; j < min64(TB, c->p.m - col - k); j++)
                narrow(r->call->out, r->call->out_dtype,
                       ((col + k + j) * c->p.channels + b * c->cb) * taps,
                       line + j * ld, run);
        }
    }
}

int ISA(chlast_wgrad)(AmpcPool *pool, const LibConv *conv,
                      const ChlastCall *call, void *scratch) {
    ChlastRun r = {.call = NULL};
    ChlastPlan *c = &r.c;
    if (!chlast_wgrad_plan(conv, c)) return 0;
    chlast_begin(&r, call, scratch);
    chlast_sub(&r, 0, NULL);
    r.dw = r.other + round_up(c->count * c->width, BLOCK_LANES);
    int64_t panels = 0, threads = pool_threads(pool);
    for (int64_t left = ceil_div(c->p.m, VL); left > 0; panels++)
        left -= tile_width(left);
    r.taps = panels * c->cblocks < 4 * threads ? tile_taps(c) : c->p.taps;
    for (; r.image0 < conv->n; r.image0 += r.images) {
        r.images = min64(c->images, conv->n - r.image0);
        int64_t units = c->cblocks + ceil_div(r.results, CHLAST_PIECE);
        pool_run(pool, r.images * units, 1, wgrad_stage_work, &r);
        pool_run(pool, panels * c->cblocks * ceil_div(c->p.taps, r.taps), 1,
                 wgrad_work, &r);
    }
    pool_run(pool, panels * c->cblocks, 1, wgrad_store_work, &r);
    return 1;
}
