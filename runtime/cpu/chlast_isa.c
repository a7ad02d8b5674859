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

/* The weights that are read next: processors do not guess where they are. */
INLINE void pack_fetch(const char *p, int64_t bytes) {
    for (int64_t i = 0; i < bytes; i += 64) __builtin_prefetch(p + i);
}

/* Weights of some columns and elements of a block. Each element has `run`
   weights that follow one another, tap 0 first; weights of a pair have
   companions `odd` behind them, or none if odd is 0. */
typedef struct PackRun {
    const ChlastWeights *s;
    const void *w;
    int64_t from;         /* the first column's of the first element */
    int64_t element, end; /* in a block of nc */
    int64_t nc, taps, run, odd;
} PackRun;

/* TB weights of a column. */
INLINE vt pack_load(const PackRun *p, int dtype, int per, int64_t i) {
    vt v = load_vt(at(p->w, dtype, i), dtype);
    if (per == 1) return v;
    v = lower_vt(v);
    return p->odd ? join_vt(v, load_vt(at(p->w, dtype, i + p->odd), dtype)) : v;
}

INLINE float pack_load1(const PackRun *p, int dtype, int per, int64_t i) {
    float x = load1(p->w, dtype, i);
    uint32_t pair = half_bits(x) >> 16;
    if (per == 1) return x;
    if (p->odd) pair |= half_bits(load1(p->w, dtype, i + p->odd));
    memcpy(&x, &pair, sizeof x);
    return x;
}

/* Weights from q on of columns [j, end), one by one; zeros from `cols` on. */
INLINE void pack_few(const PackRun *p, int dtype, int per, float *dst,
                     int64_t pw, int64_t q, int64_t j, int64_t end,
                     int64_t cols) {
    for (; q < p->run; q++) {
        int64_t tap = p->s->order[q % p->taps], c = p->element + q / p->taps;
        float *to = dst + (tap * p->nc + c) * pw;
        for (int64_t i = j; tap >= 0 && i < end; i++)
            to[i] = i < cols
                        ? pack_load1(p, dtype, per, p->from + i * p->s->col + q)
                        : 0.0f;
    }
}

/* The weights of TB columns. */
INLINE void pack_block(const PackRun *p, int dtype, int per, float *dst,
                       int64_t pw, int64_t j) {
    enum { FEW = 2 };
    int64_t step = p->s->col, from = p->from + j * step;
    for (int64_t q0 = 0; q0 < p->run; q0 += TB) {
        if (q0 && p->run - q0 <= FEW) {
            pack_few(p, dtype, per, dst, pw, q0, j, j + TB, j + TB);
            break;
        }
        vt v[TB];
        int64_t q = min64(q0, p->run - TB), tap = q % p->taps;
        int64_t c = p->element + q / p->taps;
        for (int i = 0; i < TB; i++)
            v[i] = pack_load(p, dtype, per, from + i * step + q);
        transpose_registers(v);
        for (int i = 0; i < TB; i++) {
            int64_t to = p->s->order[tap];
            if (to >= 0 && q + i >= q0)
                store_vt(dst + (to * p->nc + c) * pw + j, v[i]);
            if (++tap == p->taps) tap = 0, c++;
        }
    }
}

/* The columns of a panel, TB at a time. */
INLINE void pack_panel(const PackRun *all, int dtype, int per, float *dst,
                       int64_t pw, int64_t channels, int64_t cols) {
    int64_t channel = all->s->channel, next = TB * all->s->col;
    int64_t whole = all->run < TB ? 0 : cols / TB * TB;
    for (int64_t j = 0; j < pw; j += j < whole ? TB : pw) {
        PackRun p = *all;
        for (; p.element < p.end; p.element++, p.from += per * channel) {
            p.odd = per * p.element + 1 < channels ? channel : 0;
            if (j < whole)
                pack_block(&p, dtype, per, dst, pw, j);
            else
                pack_few(&p, dtype, per, dst, pw, 0, j, pw, cols);
        }
        for (int i = 0; channel == p.taps && i < TB; i++)
            pack_fetch(
                at(p.w, dtype, all->from + j * p.s->col + next + i * p.s->col),
                channels * channel * dtype_size(dtype));
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
    int rows = s->channel == taps; /* a column's weights follow one another, */
    int one = rows && per == 1;    /* and are one run */
    int64_t elements = ceil_div(channels, per);
    for (int64_t j = 0, w; j < n; j += w * VL, left -= w) {
        w = panel_width(c->kind, left);
        int64_t cols = min64(w * VL, n - j), from = first + j * s->col;
        float *dst = (float *)r->w + (n0 + j) * k + k0 * w * VL;
        if (channels < nc * per) chlast_zero(dst, r->sub.taps * nc * w * VL);
        for (int64_t i = 0; i < elements; i += rows ? elements : 1) {
            PackRun p = {.s = s,
                         .w = r->call->other,
                         .from = from + i * per * s->channel,
                         .element = i,
                         .end = rows && !one ? elements : i + 1,
                         .nc = nc,
                         .taps = taps,
                         .run = one ? channels * taps : taps};
            if (!rows)
                pack_fetch(at(p.w, dtype, p.from + 2 * per * s->channel),
                           cols * taps * dtype_size(dtype));
            pack_panel(&p, dtype, per, dst, w * VL, channels, cols);
        }
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

/* Fetches a part of the panel that is multiplied next, while results i .. of n
   are. */
INLINE void chlast_fetch(const float *next, int64_t floats, int64_t i,
                         int64_t n) {
    int64_t end = floats * min64(i + MR, n) / n;
    for (int64_t at = floats * i / n; SIMD_FETCHES && at < end; at += VL)
        __builtin_prefetch(next + at, 0, 2);
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
            const float *next = t.w + k * w * VL; /* equally wide */
            for (int64_t i = 0; i < n; i += MR) {
                int64_t rows = min64(MR, n - i);
                if (j + w * VL < m)
                    chlast_fetch(next, t.channels * t.taps * w * VL, i, n);
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
