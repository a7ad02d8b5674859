/* SPDX-License-Identifier: Apache-2.0 */
/* chlast_isa.c: convolutions of many channels (see chlast.h).

   The functions below return 0 if the plan assigns the convolution to
   conv_isa.c or wgrad_isa.c. */
#include "runtime/cpu/amx.h"
#include "runtime/cpu/chlast_run.h"
#include "runtime/cpu/transpose.h"

typedef struct ChlastRun {
    ChlastPlan c;
    const ChlastCall *call;
    int64_t image0, images; /* staged now                                   */
    float *stage, *other;   /* other: packed weights, or dY                 */
    float *dw;              /* [panel][block][tap][channel][columns]        */
    int32_t *row, *place, *shift;
    uint64_t *inside;      /* per result: the taps through which it reads the
                              source */
    int32_t *order, *many; /* tables of an item's results; dW: lists and
                              lengths */
    char *workers;
    ConvSub sub;
    int64_t index, results; /* sub-problem: its number, and results per image */
    int64_t groups;         /* groups of result channels */
    const float *w;         /* its weights                                  */
    int64_t taps;           /* dW: taps of an item */
} ChlastRun;

static int64_t chlast_block(const ChlastRun *r, int64_t b) {
    return min64(r->c.cb, r->c.p.cs - b * r->c.cb);
}

static int64_t chlast_channels(const ChlastRun *r, int64_t b) {
    int64_t most = r->c.cb * r->c.per;
    return min64(most, r->c.p.channels - b * most);
}

static float *chlast_stage_at(const ChlastRun *r, int64_t b) {
    return r->stage + b * r->c.points * r->c.cb;
}

/* ---- staging ------------------------------------------------------------- */

typedef uint32_t u1_any __attribute__((may_alias));

/* TB points of TB elements; with `per` 2 an element is bf16 of two channels. */
INLINE void stage_block(float *dst, int64_t cb, const void *src, int dtype,
                        int per, int64_t from, int64_t chan) {
    vt r[TB];
    for (int i = 0; i < TB; i++) {
        r[i] = load_vt(at(src, dtype, from + i * per * chan), dtype);
        if (per == 1) continue;
        vt high = load_vt(at(src, dtype, from + (2 * i + 1) * chan), dtype);
        r[i] = (vt)((ut)r[i] >> 16 | (ut)high);
    }
    transpose_registers(r);
    for (int i = 0; i < TB; i++) *(vt_any *)(dst + i * cb) = r[i];
}

INLINE void stage_block4(float *dst, int64_t cb, const void *src, int dtype,
                         int per, int64_t from, int64_t chan) {
    v4 r[4];
    for (int i = 0; i < 4; i++) {
        r[i] = load_v4(at(src, dtype, from + i * per * chan), dtype);
        if (per == 1) continue;
        v4 high = load_v4(at(src, dtype, from + (2 * i + 1) * chan), dtype);
        r[i] = (v4)((u4)r[i] >> 16 | (u4)high);
    }
    transpose_registers4(r);
    for (int i = 0; i < 4; i++) *(v4_any *)(dst + i * cb) = r[i];
}

/* n points of nc channels, which are `chan` elements apart; elements up to
   `zeros` of a point are zero. */
INLINE void stage_row(float *dst, int64_t cb, const void *src, int dtype,
                      int per, int64_t from, int64_t chan, int64_t nc,
                      int64_t zeros, int64_t n) {
    int64_t c = 0;
    for (; n >= 4 && c + TB <= nc / per; c += TB) {
        int64_t x = 0, at_c = from + c * per * chan;
        for (; x + TB <= n; x += TB)
            stage_block(dst + x * cb + c, cb, src, dtype, per, at_c + x, chan);
        if (x < n && n >= TB) { /* the last block may overlap the previous
                                   one */
            x = n - TB;
            stage_block(dst + x * cb + c, cb, src, dtype, per, at_c + x, chan);
            x = n;
        }
        for (; x < n; x = min64(x + 4, max64(n - 4, x + 1)))
            for (int64_t i = 0; x + 4 <= n && i < TB; i += 4)
                stage_block4(dst + x * cb + c + i, cb, src, dtype, per,
                             at_c + i * per * chan + x, chan);
    }
    for (; c < ceil_div(nc, per); c++)
        for (int64_t x = 0; x < n; x++)
            if (per == 2)
                *(u1_any *)(dst + x * cb + c) =
                    pair1((const uint16_t *)src + from + x, chan, c, nc);
            else
                dst[x * cb + c] = load1(src, dtype, from + c * chan + x);
    for (; c < zeros; c++)
        for (int64_t x = 0; x < n; x++) dst[x * cb + c] = 0.0f;
}

static void stage_zero(float *dst, int64_t n) {
    for (int64_t i = 0; i < n; i++) dst[i] = 0.0f;
}

INLINE void stage_image_as(const ChlastRun *r, int dtype, int per,
                           int64_t image, int64_t b) {
    const ChlastPlan *c = &r->c;
    const ConvDim *d = c->p.dim;
    int64_t cb = c->cb, nc = chlast_channels(r, b), rows = d[1].in;
    int64_t width = d[2].in, chan = d[0].in * d[1].in * d[2].in;
    int64_t zeros = on_tiles(c->kind) ? cb : 0;
    int64_t from = ((r->image0 + image) * c->p.channels + b * cb * per) * chan;
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
            stage_row(p, cb, r->call->src, dtype, per, from, chan, nc, zeros,
                      width);
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
        stage_image_as(r, AMPC_F32, 1, image, b);
    else if (dtype == AMPC_F16)
        stage_image_as(r, AMPC_F16, 1, image, b);
    else if (r->c.per == 1)
        stage_image_as(r, AMPC_BF16, 1, image, b);
    else
        stage_image_as(r, AMPC_BF16, 2, image, b);
}

static void stage_work(void *ctx, int64_t lo, int64_t hi, int worker) {
    (void)worker;
    for (int64_t i = lo; i < hi; i++) stage_image(ctx, i);
}

void ISA(chlast_stage)(AmpcPool *pool, const ChlastPlan *plan,
                       const ChlastCall *call, int64_t image0, int64_t images,
                       float *stage) {
    ChlastRun r = {.c = *plan,
                   .call = call,
                   .image0 = image0,
                   .images = images,
                   .stage = stage};
    pool_run(pool, images * plan->cblocks, 1, stage_work, &r);
}

/* ---- weights ------------------------------------------------------------- */

/* Position of the weight of (column, channel, tap 0). Columns are result
   channels; taps are adjacent. */
typedef struct ChlastWeights {
    int64_t col, channel; /* steps */
    const int32_t *order; /* tap's number in the sub-problem, or -1 */
} ChlastWeights;

/* The even channel is in the low half of a pair. */
INLINE void pack_put(float *to, vt v, int per, int64_t channel) {
    ut_any *pair = (void *)to;
    if (per == 1)
        *(vt_any *)to = v;
    else if (channel % 2 == 0)
        *pair = (ut)v >> 16;
    else
        *pair |= (ut)v;
}

INLINE void pack_put1(float *to, float x, int per, int64_t channel) {
    u1_any *pair = (void *)to;
    if (per == 1)
        *to = x;
    else if (channel % 2 == 0)
        *pair = half_bits(x) >> 16;
    else
        *pair |= half_bits(x);
}

/* `run` weights of each of cols columns, from (channel, tap 0) on: weight q
   belongs to tap q % taps, channel + q / taps of the block of nc elements. */
INLINE void pack_run(const ChlastRun *r, const ChlastWeights *s, int dtype,
                     int per, float *dst, int64_t pw, int64_t from, int64_t run,
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
            transpose_registers(v);
            int64_t tap = q % taps, c = channel + q / taps;
            for (int i = 0; i < TB; i++) {
                if (s->order[tap] >= 0 && q + i >= q0)
                    pack_put(dst + (s->order[tap] * nc + c / per) * pw + j,
                             v[i], per, c);
                if (++tap == taps) tap = 0, c++;
            }
        }
    for (; j < pw; j++)
        for (int64_t q = 0; q < run; q++) {
            int64_t tap = q % taps, c = channel + q / taps;
            if (s->order[tap] < 0) continue;
            pack_put1(dst + (s->order[tap] * nc + c / per) * pw + j,
                      j < cols ? load1(w, dtype, from + j * s->col + q) : 0.0f,
                      per, c);
        }
}

INLINE void pack_weights_as(const ChlastRun *r, const ChlastWeights *s,
                            int dtype, int per, int64_t n0, int64_t b) {
    const ChlastPlan *c = &r->c;
    int64_t taps = c->p.taps, nc = chlast_block(r, b);
    int64_t channels = chlast_channels(r, b);
    int64_t k = c->p.cs * r->sub.taps, k0 = b * c->cb * r->sub.taps;
    int64_t n = min64(c->cols, c->p.m - n0), left = ceil_div(n, VL);
    int64_t first = n0 * s->col + b * c->cb * per * s->channel;
    for (int64_t j = 0, w; j < n; j += w * VL, left -= w) {
        w = panel_width(c->kind, left);
        int64_t cols = min64(w * VL, n - j), from = first + j * s->col;
        float *dst = (float *)r->w + (n0 + j) * k + k0 * w * VL;
        if (channels < nc * per) stage_zero(dst, r->sub.taps * nc * w * VL);
        if (s->channel == taps)
            pack_run(r, s, dtype, per, dst, w * VL, from, channels * taps, 0,
                     nc, cols);
        for (int64_t i = 0; s->channel != taps && i < channels; i++)
            pack_run(r, s, dtype, per, dst, w * VL, from + i * s->channel, taps,
                     i, nc, cols);
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
            int64_t k0 = b * c->cb, k = c->p.cs, from = k0 * c->per * s.channel;
            PackSrc m = {at(r->call->other, dtype, n0 * s.col + from), dtype,
                         s.channel, s.col};
            float *to = (float *)r->w + n0 * k;
            panel_pack_b(c->kind, to, &m, k0, chlast_block(r, b), k, n,
                         chlast_channels(r, b));
        } else if (dtype == AMPC_F32)
            pack_weights_as(r, &s, AMPC_F32, 1, n0, b);
        else if (dtype == AMPC_F16)
            pack_weights_as(r, &s, AMPC_F16, 1, n0, b);
        else if (c->per == 1)
            pack_weights_as(r, &s, AMPC_BF16, 1, n0, b);
        else
            pack_weights_as(r, &s, AMPC_BF16, 2, n0, b);
    }
}

/* ---- forward, and the gradient by the input ------------------------------ */

/* Lists the taps through which any of n results reads the source; returns
   their number. */
static int64_t chlast_used(const uint64_t *inside, const int32_t *at, int64_t n,
                           int32_t *tap) {
    uint64_t bits = 0;
    int64_t used = 0;
    for (int64_t i = 0; i < n; i++) bits |= inside[at[i]];
    for (; bits; bits &= bits - 1) tap[used++] = __builtin_ctzll(bits);
    return used;
}

/* acc[n][ld] = the results for the item's points and columns. */
static void chlast_multiply(const ChlastRun *r, float *acc, int64_t ld,
                            int64_t first, int64_t n, int64_t n0, int64_t m) {
    const ChlastPlan *c = &r->c;
    int64_t k = c->p.cs * r->sub.taps, all = r->index * c->count + first;
    const int32_t *order = c->skips ? r->order + all : r->order;
    int32_t tap[CHLAST_TAPS];
    int64_t b = 0;
    do { /* runs once even without taps: the result is then zero */
        TilePoints t = {.cb = c->cb,
                        .taps = r->sub.taps,
                        .used = r->sub.taps,
                        .tap = c->skips ? tap : order,
                        .row = r->row + all,
                        .block_step = c->points * c->cb,
                        .src = chlast_stage_at(r, b),
                        .shift = r->shift,
                        .ldc = ld,
                        .add = b > 0};
        t.channels = min64(c->kc * c->cb, c->p.cs - b * c->cb);
        int64_t left = ceil_div(m, VL), k0 = b * c->cb * t.taps;
        for (int64_t j = 0, w; j < m; j += w * VL, left -= w) {
            w = tile_width(left);
            t.w = r->w + (n0 + j) * k + k0 * w * VL;
            t.w_step = w * VL;
            t.c = acc + j;
            for (int64_t i = 0; i < n; i += MR) {
                int64_t rows = min64(MR, n - i);
                t.at = order + i;
                if (c->skips)
                    t.used = chlast_used(r->inside + all, t.at, rows, tap);
                ISA(tile_points)[c->kind][rows - 1][w - 1](&t);
            }
        }
        b += c->kc;
    } while (r->sub.taps > 0 && b < c->cblocks);
}

/* Copies the columns of `from`, channels from `channel` on, to the result. */
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

/* Copies the source elements of results first .. first + AMX_HEIGHT - 1 to
   panels, from `blocks` blocks of channels. Beyond result n - 1 the last
   result is repeated. */
static void chlast_gather(const ChlastRun *r, float *to, int64_t first,
                          int64_t n, int64_t block, int64_t blocks) {
    const ChlastPlan *c = &r->c;
    const int32_t *row = r->row + r->index * c->count;
    for (int64_t i = first; i < first + AMX_HEIGHT; i += AMX_ROWS) {
        if (i >= n) break;
        for (int64_t b = block; b < block + blocks; b++)
            for (int64_t t = 0; t < r->sub.taps; t++, to += AMX_TILE) {
                const float *src = chlast_stage_at(r, b) + r->shift[t];
                for (int64_t y = 0; y < AMX_ROWS; y++)
                    vstore(to + y * AMX_UNIT,
                           vload(src + row[min64(i + y, n - 1)]));
            }
    }
}

/* chlast_multiply on tiles: rows of acc beyond n, up to a tile, are written. */
static void chlast_tiles(const ChlastRun *r, float *acc, int64_t ld,
                         float *panels, int64_t first, int64_t n, int64_t n0,
                         int64_t m) {
    const ChlastPlan *c = &r->c;
    int64_t k = c->p.cs * r->sub.taps, b = 0;
    do { /* runs once even without taps: the result is then zero */
        int64_t blocks = min64(c->kc, c->cblocks - b);
        int64_t units = blocks * r->sub.taps, k0 = b * c->cb * r->sub.taps;
        for (int64_t i = 0; i < n; i += AMX_HEIGHT) {
            int64_t left = ceil_div(m, VL);
            chlast_gather(r, panels, first + i, first + n, b, blocks);
            for (int64_t j = 0, w; j < m; j += w * VL, left -= w) {
                w = panel_width(TILE_AMX, left);
                amx_product(units, min64(AMX_HEIGHT, n - i), (int)w, panels,
                            units * AMX_TILE, r->w + (n0 + j) * k + k0 * w * VL,
                            w * VL, acc + i * ld + j, ld, b > 0);
            }
        }
        b += c->kc;
    } while (r->sub.taps > 0 && b < c->cblocks);
}

/* Items [lo, hi): some points and a group of columns. */
static void chlast_work(void *ctx, int64_t lo, int64_t hi, int worker) {
    const ChlastRun *r = ctx;
    const ChlastPlan *c = &r->c;
    float *acc = (float *)(void *)(r->workers + (size_t)worker * c->worker);
    float *turned = acc + (c->block + BLOCK_ROWS) * c->cols;
    int64_t blocks = ceil_div(r->images * r->results, c->block);
    int64_t tld = c->block + BLOCK_LANES;
    float *panels = turned + NR * tld;
    if (on_tiles(c->kind)) amx_begin();
    for (int64_t i = lo; i < hi; i++) {
        int64_t first = i % blocks * c->block, n0 = i / blocks * c->cols;
        int64_t n = min64(c->block, r->images * r->results - first);
        int64_t m = min64(c->cols, c->p.m - n0), ld = round_up(m, VL);
        if (on_tiles(c->kind))
            chlast_tiles(r, acc, ld, panels, first, n, n0, m);
        else
            chlast_multiply(r, acc, ld, first, n, n0, m);
        for (int64_t j = 0; j < m; j += NR) {
            int64_t cols = min64(NR, m - j);
            for (int64_t y = 0; y < n; y += TW)
                for (int64_t x = 0; x < cols; x += TW)
                    transpose_wide(turned + x * tld + y, tld,
                                   acc + y * ld + j + x, AMPC_F32, ld * 4);
            chlast_store(r, turned, tld, first, n, n0 + j, cols);
        }
    }
    if (on_tiles(c->kind)) amx_end();
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
    r->inside = (void *)((char *)scratch + c->stage + c->other + c->rows);
    r->order = (void *)(r->inside + (c->skips ? c->p.subs * c->count : 0));
    for (size_t i = 0; !c->skips && i < c->order / sizeof *r->order; i++)
        r->order[i] = (int32_t)i;
    r->workers = (char *)scratch + c->stage + c->other + c->rows + c->order;
    r->groups = c->cols ? ceil_div(c->p.m, c->cols) : 0;
    for (int64_t i = 0; i < c->p.subs; i++) {
        conv_sub(&c->p, i, &r->sub);
        chlast_rows(c, &r->sub, c->images, c->along, r->row + i * c->count,
                    r->place + i * c->count);
    }
}

/* Sub-problem `index`, whose weights begin at w; returns the end of its
   weights. */
static const float *chlast_sub(ChlastRun *r, int64_t index, const float *w) {
    const ConvPlan *p = &r->c.p;
    conv_sub(p, index, &r->sub);
    r->index = index;
    r->results = r->sub.count[0] * r->sub.count[1] * r->sub.count[2];
    r->w = w;
    chlast_shifts(&r->c, &r->sub, r->shift);
    return w + p->cs * r->sub.taps * round_up(p->m, VL);
}

int ISA(chlast_conv)(AmpcPool *pool, const LibConv *conv, int dgrad, int kind,
                     const ChlastCall *call, void *scratch) {
    ChlastRun r = {.call = NULL};
    ChlastPlan *c = &r.c;
    if (!chlast_plan(conv, dgrad, kind, pool_threads(pool), c)) return 0;
    chlast_begin(&r, call, scratch);
    r.other = kept_memory(call->kept, r.other);
    int made = call->kept && call->kept->made;
    const float *w = r.other;
    for (int64_t i = 0; i < c->p.subs; i++) {
        int32_t *order = r.shift + c->p.taps;
        w = chlast_sub(&r, i, w);
        for (int64_t t = 0; t < c->p.taps; t++) order[t] = -1;
        for (int64_t t = 0; t < r.sub.taps; t++)
            order[conv_tap(&c->p, &r.sub, t)] = (int32_t)t;
        if (r.sub.taps > 0 && !made)
            pool_run(pool, r.groups * c->cblocks, 1, pack_work, &r);
    }
    if (call->kept) call->kept->made = 1;
    int64_t end = call->first + call->images, ordered = 0;
    for (r.image0 = call->first; r.image0 < end; r.image0 += r.images) {
        r.images = min64(c->images, end - r.image0);
        pool_run(pool, r.images * c->cblocks, 1, stage_work, &r);
        w = r.other;
        for (int64_t i = 0; i < c->p.subs; i++) {
            w = chlast_sub(&r, i, w);
            if (c->skips && r.images != ordered) {
                int32_t *order = r.order + i * c->count;
                int64_t n = chlast_reads(c, &r.sub, r.images, 1,
                                         r.inside + i * c->count, order);
                chlast_order(c, n, order);
            }
            pool_run(pool, ceil_div(r.images * r.results, c->block) * r.groups,
                     1, chlast_work, &r);
        }
        ordered = r.images;
    }
    return 1;
}

/* ---- gradient by the weights --------------------------------------------- */

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
            stage_image(r, i);
            if (c->p.pairs) stage_pairs(r, i % r->images, i / r->images);
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

/* Taps [tap, end) of a panel and a block of channels. */
static void wgrad_item(const ChlastRun *r, int64_t col, int w, int64_t b,
                       int64_t tap, int64_t end) {
    const ChlastPlan *c = &r->c;
    int64_t all = r->images * (c->count / c->images), pw = w * VL;
    int64_t nc = chlast_block(r, b);
    const float *x = chlast_stage_at(r, b), *dy = r->other + col * c->count;
    float *to = wgrad_at(r, col, w, b);
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
                transpose_registers(v);
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

int ISA(chlast_wgrad)(AmpcPool *pool, const LibConv *conv, int kind,
                      const ChlastCall *call, void *scratch) {
    ChlastRun r = {.call = NULL};
    ChlastPlan *c = &r.c;
    if (!chlast_wgrad_plan(conv, kind, c)) return 0;
    chlast_begin(&r, call, scratch);
    chlast_sub(&r, 0, NULL);
    r.dw = r.other + round_up(c->length * c->width, BLOCK_LANES);
    int64_t panels = 0, threads = pool_threads(pool);
    for (int64_t left = ceil_div(c->p.m, VL); left > 0; panels++)
        left -= tile_width(left);
    r.taps = panels * c->cblocks < 4 * threads ? 1 : c->p.taps;
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
            pool_run(pool, panels * c->cblocks * ceil_div(c->p.taps, r.taps), 1,
                     wgrad_work, &r);
    }
    if (on_tiles(c->kind))
        pool_run(pool, ceil_div(c->cblocks, 2) * c->p.m, 8, wgrad_tile_store,
                 &r);
    else
        pool_run(pool, panels * c->cblocks, 1, wgrad_store_work, &r);
    return 1;
}
