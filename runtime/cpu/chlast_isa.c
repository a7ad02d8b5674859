/* SPDX-License-Identifier: Apache-2.0 */
/* chlast_isa.c: convolutions of many channels and their gradient by the input
   (see chlast.h).

   chlast_conv returns 0 if the plan assigns the convolution to conv_isa.c. */
#include "runtime/cpu/amx.h"
#include "runtime/cpu/chlast_run.h"
#include "runtime/cpu/transpose.h"

/* ---- weights ------------------------------------------------------------- */

/* Position of the weight of (column, channel, tap 0). Columns are result
   channels; taps are adjacent. */
typedef struct ChlastWeights {
    int64_t col, channel; /* steps */
    const int32_t *order; /* tap's number in the sub-problem, or -1 */
} ChlastWeights;

/* The even channel is in the low half of a pair. */
INLINE void pack_put(float *to, vt v, int per, int64_t channel) {
    if (per == 1)
        store_vt(to, v);
    else if (channel % 2 == 0)
        store_vt(to, lower_vt(v));
    else
        store_vt(to, join_vt(load_vt(to, AMPC_F32), v));
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
        if (channels < nc * per) chlast_zero(dst, r->sub.taps * nc * w * VL);
        if (s->channel == taps)
            pack_run(r, s, dtype, per, dst, w * VL, from, channels * taps, 0,
                     nc, cols);
        for (int64_t i = 0; s->channel != taps && i < channels; i++)
            pack_run(r, s, dtype, per, dst, w * VL, from + i * s->channel, taps,
                     i, nc, cols);
    }
}

/* Units [lo, hi): a group of columns, which the same thread multiplies, and a
   block of channels. */
static void pack_work(void *ctx, int64_t lo, int64_t hi, int worker) {
    const ChlastRun *r = ctx;
    const ChlastPlan *c = &r->c;
    int32_t *order = r->shift + c->p.taps;
    int dtype = r->call->other_dtype;
    ChlastWeights s = {c->p.channels * c->p.taps, c->p.taps, order};
    if (c->p.dgrad) s = (ChlastWeights){c->p.taps, c->p.m * c->p.taps, order};
    (void)worker;
    for (int64_t i = lo; i < hi; i++) {
        int64_t n0 = i / c->cblocks * c->cols, b = i % c->cblocks;
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
    for (int64_t b = 0; b < c->cblocks; b += c->kc) {
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
    }
}

/* out[to + place[i]] = from[i] */
static void chlast_spread(const ChlastCall *c, int64_t to, const int32_t *place,
                          const float *from, int64_t n) {
    enum { SOME = 64 };
    if (c->out_dtype == AMPC_F32) {
        float *out = (float *)c->out + to;
        for (int64_t i = 0; i < n; i++) out[place[i]] = from[i];
        return;
    }
    uint16_t *out = (uint16_t *)c->out + to, some[SOME];
    for (; n > 0; n -= SOME, from += SOME, place += SOME) {
        int64_t len = min64(n, SOME);
        narrow(some, c->out_dtype, 0, from, len);
        for (int64_t i = 0; i < len; i++) out[place[i]] = some[i];
    }
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
            c->ep->fn(c->ep->buf, c->ep->table, from, ld, image, channel,
                      place[i], channels, len);
            continue;
        }
        int64_t to = (image * p->m + channel) * size;
        for (int64_t j = 0; j < channels; j++, to += size)
            if (p->subs == 1)
                narrow(c->out, c->out_dtype, to + place[i], from + j * ld, len);
            else
                chlast_spread(c, to, place + i, from + j * ld, len);
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
    int64_t k = c->p.cs * r->sub.taps;
    for (int64_t b = 0; b < c->cblocks; b += c->kc) {
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
    float *panels = turned + NR * tld;
    int zero = r->sub.taps == 0; /* so are all results */
    if (zero) chlast_zero(turned, NR * tld);
    if (on_tiles(c->kind)) amx_begin();
    for (int64_t i = lo; i < hi; i++) {
        int64_t first = i % blocks * c->block, n0 = i / blocks * c->cols;
        int64_t n = min64(c->block, r->images * r->results - first);
        int64_t m = min64(c->cols, c->p.m - n0), ld = round_up(m, VL);
        if (on_tiles(c->kind) && !zero)
            chlast_tiles(r, acc, ld, panels, first, n, n0, m);
        else if (!zero)
            chlast_multiply(r, acc, ld, first, n, n0, m);
        for (int64_t j = 0; j < m; j += NR) {
            int64_t cols = min64(NR, m - j);
            for (int64_t y = 0; y < n && !zero; y += TW)
                for (int64_t x = 0; x < cols; x += TW)
                    transpose_wide(turned + x * tld + y, tld,
                                   acc + y * ld + j + x, AMPC_F32, ld * 4);
            chlast_store(r, turned, tld, first, n, n0 + j, cols);
        }
    }
    if (on_tiles(c->kind)) amx_end();
}

/* ---- all of it ----------------------------------------------------------- */

int ISA(chlast_conv)(AmpcPool *pool, const LibConv *conv, int dgrad, int kind,
                     const ChlastCall *call, void *scratch) {
    ChlastRun r = {.call = NULL};
    ChlastPlan *c = &r.c;
    if (!chlast_plan(conv, dgrad, kind, call->threads, c)) return 0;
    ISA(chlast_begin)(&r, call, scratch);
    r.other = kept_memory(call->kept, r.other);
    int made = call->kept && call->kept->made;
    const float *w = r.other;
    for (int64_t i = 0; i < c->p.subs; i++) {
        int32_t *order = r.shift + c->p.taps;
        w = ISA(chlast_sub)(&r, i, w);
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
        pool_run(pool, r.images * c->cblocks, 1, ISA(chlast_stage_work), &r);
        w = r.other;
        for (int64_t i = 0; i < c->p.subs; i++) {
            w = ISA(chlast_sub)(&r, i, w);
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
