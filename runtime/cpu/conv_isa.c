/* SPDX-License-Identifier: Apache-2.0 */
/* conv_isa.c: convolution forward and its gradient with respect to the input,
   as one implicit matrix product (see conv.h): rows = result channels, columns
   = positions of an image, k = source channels times taps.

   An item is some rows of one image and group: its worker loads the source
   rows once, then multiplies `inner` result rows and `mb` channels at a time.
   Weights are packed once per call, or once if they are kept.

   Kernels of one element at stride 1 are a matrix product for each image,
   except small images, whose columns would not fill tiles. Others use wino.h
   or chlast.h where these support them. */
#include "runtime/cpu/amx.h"
#include "runtime/cpu/image.h"
#include "runtime/cpu/routines.h"
#include "runtime/cpu/wino_run.h"

typedef struct ConvRun {
    ConvPlan p;
    const void *src, *w;
    void *out;
    int src_dtype, w_dtype, out_dtype;
    const CpuEpilogue *ep;
    CpuKept *kept;    /* as of ChlastCall, like threads                     */
    int64_t first, n; /* images                                             */
    int threads;
    float *packed;
    int32_t *off;
    char *workers;
} ConvRun;

/* One sub-problem of one item. */
typedef struct ConvJob {
    ConvSub sub;
    int64_t image, group, depth; /* depth: position in the sub-problem      */
    int64_t row0, rows;          /* positions in the sub-problem            */
    const float *src;            /* buffer at row0                          */
    const float *w;              /* packed weights of sub-problem and group */
    const int32_t *off;
    float *acc;
} ConvJob;

static int64_t conv_k(const ConvRun *r, const ConvSub *s) {
    return r->p.cs * s->taps;
}

/* ---- weights ------------------------------------------------------------- */

typedef struct ConvPack {
    const ConvRun *r;
    ConvSub sub;
    float *to;
} ConvPack;

static void conv_pack_fwd(const ConvRun *r, float *dst, int64_t group,
                          int64_t m0, int64_t m) {
    int64_t k = r->p.cs * r->p.taps;
    PackSrc s = {at(r->w, r->w_dtype, (group * r->p.m + m0) * k), r->w_dtype, k,
                 1};
    ISA(pack_a)(dst, &s, m, k);
}

/* Row m of the matrix: W[m, c, tap], c = 2i low and c = 2i + 1 high. */
static void conv_pack_fwd_pairs(const ConvRun *r, float *dst, int64_t group,
                                int64_t m0, int64_t m) {
    const ConvPlan *p = &r->p;
    int64_t taps = p->taps, row = p->channels * taps;
    uint32_t *to = (uint32_t *)(void *)dst;
    for (int64_t i = 0; i < m; i++) {
        const uint16_t *w =
            (const uint16_t *)r->w + (group * p->m + m0 + i) * row;
        for (int64_t c = 0; c < p->cs; c++, w += 2 * taps) {
            int64_t high = 2 * c + 1 < p->channels ? taps : 0;
            for (int64_t t = 0; t < taps; t++)
                to[(c * taps + t) * MR + i] =
                    w[t] | (high ? (uint32_t)w[t + high] << 16 : 0);
        }
    }
}

/* Row c of the matrix: W[k, c, tap], k = 2i low and k = 2i + 1 high. */
static void conv_pack_dgrad_pairs(const ConvRun *r, const ConvSub *sub,
                                  float *dst, int64_t group, int64_t m0,
                                  int64_t m) {
    const ConvPlan *p = &r->p;
    int64_t taps = p->taps, next = p->m * taps;
    uint32_t *to = (uint32_t *)(void *)dst;
    for (int64_t t = 0; t < sub->taps; t++) {
        const uint16_t *w = (const uint16_t *)r->w +
                            (group * p->channels * p->m + m0) * taps +
                            conv_tap(p, sub, t);
        for (int64_t k = 0; k < p->cs; k++, w += 2 * next) {
            int64_t high = 2 * k + 1 < p->channels ? next : 0;
            for (int64_t c = 0; c < m; c++)
                to[(k * sub->taps + t) * MR + c] =
                    w[c * taps] |
                    (high ? (uint32_t)w[c * taps + high] << 16 : 0);
        }
    }
}

/* Row c, column (k, tap) of the matrix is W[k, c, tap]. */
static void conv_pack_dgrad(const ConvRun *r, const ConvSub *sub, float *dst,
                            int64_t group, int64_t m0, int64_t m) {
    const ConvPlan *p = &r->p;
    for (int64_t t = 0; t < sub->taps; t++) {
        int64_t tap = conv_tap(p, sub, t);
        for (int64_t k = 0; k < p->cs; k++) {
            float *to = dst + (k * sub->taps + t) * MR;
            int64_t from = ((group * p->cs + k) * p->m + m0) * p->taps + tap;
            for (int64_t c = 0; c < m; c++)
                to[c] = load1(r->w, r->w_dtype, from + c * p->taps);
        }
    }
}

/* Panels [lo, hi) of all groups of one sub-problem. */
static void conv_pack_work(void *ctx, int64_t lo, int64_t hi, int worker) {
    const ConvPack *c = ctx;
    const ConvPlan *p = &c->r->p;
    int64_t panels = ceil_div(p->m, MR), k = conv_k(c->r, &c->sub);
    (void)worker;
    for (int64_t i = lo; i < hi; i++) {
        int64_t group = i / panels, m0 = i % panels * MR;
        int64_t m = min64(MR, p->m - m0);
        float *dst = c->to + i * MR * k;
        if (p->pairs && p->dgrad)
            conv_pack_dgrad_pairs(c->r, &c->sub, dst, group, m0, m);
        else if (p->pairs)
            conv_pack_fwd_pairs(c->r, dst, group, m0, m);
        else if (p->dgrad)
            conv_pack_dgrad(c->r, &c->sub, dst, group, m0, m);
        else
            conv_pack_fwd(c->r, dst, group, m0, m);
    }
}

static void conv_pack(AmpcPool *pool, const ConvRun *r) {
    int64_t panels = r->p.group * ceil_div(r->p.m, MR);
    float *to = r->packed;
    for (int64_t i = 0; i < r->p.subs; i++) {
        ConvPack c = {.r = r, .to = to};
        conv_sub(&r->p, i, &c.sub);
        int64_t k = conv_k(r, &c.sub);
        if (k == 0) continue;
        pool_run(pool, panels, ceil_div(1 << 15, MR * k), conv_pack_work, &c);
        to += panels * MR * k;
    }
}

/* ---- results ------------------------------------------------------------- */

/* Moves the rows of `width` columns from pitch vw together, VL elements at a
   time from the left, so that whole vectors may be copied: they never
   overwrite unread columns. */
static const float *conv_compact(float *acc, int64_t rows, int64_t width,
                                 int64_t vw) {
    float *to = acc - VL;
    for (int64_t y = 0; y < rows; y++)
        for (int64_t x = 0; x < width; x += VL)
            vstore(to + y * width + x, vload(acc + y * vw + x));
    return to;
}

static void conv_finish_fwd(const ConvRun *r, const ConvJob *j, int64_t m0,
                            int64_t m, int64_t row, int64_t rows) {
    const ConvPlan *p = &r->p;
    int64_t width = p->dim[2].result, height = p->dim[1].result;
    int64_t size = p->dim[0].result * height * width;
    int64_t col = (j->depth * height + row) * width, cols = rows * width;
    const float *acc = j->acc;
    if (width != p->vw)
        for (int64_t i = 0; i < m; i++)
            acc = conv_compact(j->acc + i * p->ld, rows, width, p->vw);
    if (width != p->vw) acc -= (m - 1) * p->ld;
    int64_t channel = j->group * p->m + m0;
    if (r->ep && r->ep->fn) {
        r->ep->fn(r->ep->buf, r->ep->table, acc, p->ld, j->image, channel, col,
                  m, cols);
        return;
    }
    int64_t to = (j->image * p->group * p->m + channel) * size + col;
    for (int64_t i = 0; i < m; i++, to += size)
        narrow(r->out, r->out_dtype, to, acc + i * p->ld, cols);
}

static void conv_finish_dgrad(const ConvRun *r, const ConvJob *j, int64_t m0,
                              int64_t m, int64_t row, int64_t rows) {
    const ConvPlan *p = &r->p;
    const ConvDim *d = &p->dim[0], *h = &p->dim[1], *w = &p->dim[2];
    int64_t step = w->result_step, width = j->sub.count[2];
    int64_t z = j->sub.first[0] + j->depth * d->result_step;
    for (int64_t i = 0; i < m; i++) {
        int64_t plane = j->image * p->group * p->m + j->group * p->m + m0 + i;
        for (int64_t y = 0; y < rows; y++) {
            const float *from = j->acc + i * p->ld + y * p->vw;
            int64_t line = j->sub.first[1] + (row + y) * h->result_step;
            int64_t to =
                ((plane * d->result + z) * h->result + line) * w->result +
                j->sub.first[2];
            if (step == 1)
                narrow(r->out, r->out_dtype, to, from, width);
            else
                for (int64_t x = 0; x < width; x++)
                    store1(r->out, r->out_dtype, to + x * step, from[x]);
        }
    }
}

/* ---- products ------------------------------------------------------------ */

/* acc[m][cols] (+)= weights[m0..][k0..k0+k) * source. */
static void conv_multiply(const ConvRun *r, const ConvJob *j, const float *src,
                          int64_t m0, int64_t m, int64_t k0, int64_t k,
                          int64_t cols) {
    int64_t all = conv_k(r, &j->sub), left = ceil_div(cols, VL);
    const float *w = j->w + m0 * all + k0 * MR;
    float *acc = j->acc;
    while (left > 0) {
        int n = tile_width(left);
        for (int64_t i = 0; i < m; i += MR) ISA(tile_slice)
        [r->p.pairs][min64(MR, m - i) - 1][n - 1](
            k, w + i * all, src, j->off + k0, acc + i * r->p.ld, r->p.ld,
            k0 > 0);
        acc += n * VL;
        src += n * VL;
        left -= n;
    }
}

/* acc[0] = rows of the only channel. From the right, since a tile may store
   more than its part of a row. */
static void conv_line_tiles(const ConvRun *r, const ConvJob *j,
                            const float *src, int64_t rows) {
    const ConvPlan *p = &r->p;
    int64_t all = ceil_div(p->dim[2].result, VL);
    TileLines t = {.high = p->dim[1].kernel,
                   .wide = p->dim[2].kernel,
                   .pitch = p->vw,
                   .w = j->w};
    for (int64_t y = 0; y < rows; y += TILE_LINES)
        for (int64_t left = all, n; left > 0; left -= n) {
            n = ceil_div(left, ceil_div(left, NV));
            int64_t at = y * p->vw + (left - n) * VL;
            t.lines = min64(TILE_LINES, rows - y);
            t.src = src + at;
            t.c = j->acc + at;
            ISA(tile_lines)[n - 1](&t);
        }
}

static void conv_job(const ConvRun *r, const ConvJob *j) {
    const ConvPlan *p = &r->p;
    int64_t k = conv_k(r, &j->sub);
    int64_t end = min64(j->row0 + j->rows, j->sub.count[1]);
    if (j->depth >= j->sub.count[0] || j->sub.count[2] <= 0) return;
    for (int64_t y = j->row0; y < end; y += p->inner) {
        int64_t rows = min64(p->inner, end - y);
        int64_t cols = (rows - 1) * p->vw + j->sub.count[2];
        const float *src = j->src + (y - j->row0) * p->vw;
        if (p->lines) conv_line_tiles(r, j, src, rows);
        for (int64_t m0 = 0; m0 < p->m; m0 += p->mb) {
            int64_t m = min64(p->mb, p->m - m0), k0 = 0;
            do { /* runs once even without taps: the result is then zero */
                int64_t kc = min64(p->kc, k - k0);
                if (!p->lines) conv_multiply(r, j, src, m0, m, k0, kc, cols);
                k0 += kc;
            } while (k0 < k);
            if (p->dgrad)
                conv_finish_dgrad(r, j, m0, m, y, rows);
            else
                conv_finish_fwd(r, j, m0, m, y, rows);
        }
    }
}

static void conv_item(const ConvRun *r, ConvJob *j, float *src) {
    const ConvPlan *p = &r->p;
    int64_t size = p->dim[0].in * p->dim[1].in * p->dim[2].in;
    int64_t from = (j->image * p->group + j->group) * p->channels * size;
    ISA(image_load)
    (p, p->pairs ? IMAGE_PAIRS : IMAGE_F32, src, r->src, r->src_dtype, from,
     p->channels, j->depth, j->row0, j->rows);
    int64_t panels = ceil_div(p->m, MR);
    j->src = src;
    j->off = r->off;
    const float *w = r->packed;
    for (int64_t i = 0; i < p->subs; i++) {
        conv_sub(p, i, &j->sub);
        int64_t k = conv_k(r, &j->sub);
        j->w = w + j->group * panels * MR * k;
        conv_job(r, j);
        w += p->group * panels * MR * k;
        j->off += k;
    }
}

static void conv_work(void *ctx, int64_t lo, int64_t hi, int worker) {
    const ConvRun *r = ctx;
    const ConvPlan *p = &r->p;
    char *own = r->workers + (size_t)worker * (p->src + p->acc);
    int64_t item0 = r->first * (p->items / p->n);
    for (int64_t i = item0 + lo; i < item0 + hi; i++) {
        ConvJob j = {.acc = (float *)(void *)(own + p->src) + BLOCK_LANES};
        int64_t rest = i / p->hblocks;
        j.row0 = i % p->hblocks * p->rows;
        j.rows = min64(p->rows, p->dim[1].count - j.row0);
        j.depth = rest % p->dim[0].count;
        rest /= p->dim[0].count;
        j.group = rest % p->group;
        j.image = rest / p->group;
        conv_item(r, &j, (float *)(void *)own);
    }
}

/* r->n images from r->first on; without images the weights are packed. */
static void conv_run(int isa, AmpcPool *pool, const LibConv *c, int dgrad,
                     ConvRun *r, void *scratch) {
    int64_t channels = (dgrad ? c->k : c->c) / c->group;
    ChlastCall call = {r->src,     r->w,         r->out,    r->src_dtype,
                       r->w_dtype, r->out_dtype, r->ep,     r->kept,
                       r->first,   r->n,         r->threads};
    int kind = product_kind(isa, r->src_dtype, r->w_dtype);
    LibGemm g;
    if (!(r->ep && r->ep->pool) && conv_product(c, dgrad, &g)) {
        ISA(gemm)(isa, pool, &g, r->w, r->src, r->out, r->ep, scratch, NULL);
        return;
    }
    if (c->n <= 0 || ISA(wino_conv)(pool, c, dgrad, kind, &call, scratch) ||
        ISA(chlast_conv)(pool, c, dgrad, kind, &call, scratch))
        return;
    int pairs =
        channels > 1 && product_kind(ISA_LEVEL, r->src_dtype, r->w_dtype);
    conv_plan(c, dgrad, pairs, r->threads, &r->p);
    r->packed = kept_memory(r->kept, scratch);
    r->off = (int32_t *)(void *)((char *)scratch + r->p.packed);
    r->workers = (char *)scratch + r->p.packed + r->p.off;
    conv_offsets(&r->p, r->off);
    if (!r->kept || !r->kept->made) conv_pack(pool, r);
    if (r->kept) r->kept->made = 1;
    pool_run(pool, r->p.items / c->n * r->n, r->p.grain, conv_work, r);
}

/* The planes of the images from r->first on. */
static void conv_pool(AmpcPool *pool, const LibConv *c, const ConvRun *r,
                      const CpuPool *q, const void *x) {
    LibPool p = *q->par;
    int64_t from = r->first * c->k, tap = p.idx_dtype == AMPC_I8 ? 1 : 4;
    p.planes = r->n * c->k;
    x = at(x, (int)p.dtype, from * lib_volume(p.in));
    char *y = at_mut(q->buf[1], (int)p.dtype, from * lib_volume(p.out));
    if (q->lib == PLAN_LIB_AVGPOOL)
        ISA(avgpool)(pool, &p, x, y);
    else
        ISA(maxpool)
    (pool, &p, x, y,
     q->buf[2] ? (char *)q->buf[2] + tap * from * lib_volume(p.out) : NULL);
}

/* The r->n images from r->first on, and their pools. A result that is not
   stored is kept in front of the scratch memory, `own` bytes; the address
   passed is that of the first of all images. */
static void conv_pooled_some(int isa, AmpcPool *pool, const LibConv *c,
                             ConvRun *r, char *scratch, size_t own) {
    const CpuPool *q = r->ep->pool;
    int64_t image = c->k * lib_volume(q->par->in);
    void *x = q->buf[0];
    if (!x)
        x = (void *)((uintptr_t)scratch -
                     (uintptr_t)(r->first * image *
                                 dtype_size((int)q->par->dtype)));
    if (q->at)
        *q->at = x;
    else
        r->out = x;
    conv_run(isa, pool, c, 0, r, scratch + own);
    conv_pool(pool, c, r, q, x);
}

enum { CONV_OPERANDS = 32 /* most operands of fn in a group */ };

typedef struct ConvGroups {
    const ConvRun *r;
    const LibConv *c;
    int isa;
    int64_t images; /* of a group */
    char *scratch;
    size_t own, each;
} ConvGroups;

/* Groups [lo, hi): one thread computes and pools them. */
static void conv_group_work(void *ctx, int64_t lo, int64_t hi, int worker) {
    const ConvGroups *g = ctx;
    ConvRun r = *g->r;
    CpuEpilogue ep = *r.ep;
    CpuPool q = *ep.pool;
    CpuKept kept = *r.kept;
    void *buf[CONV_OPERANDS];
    for (int i = 0; i < q.count; i++) buf[i] = ep.buf[i];
    if (q.at) q.at = buf + (q.at - ep.buf);
    ep.buf = buf;
    ep.pool = &q;
    r.ep = &ep;
    r.kept = &kept;
    for (int64_t i = lo; i < hi; i++) {
        r.first = i * g->images;
        r.n = min64(g->images, g->c->n - r.first);
        conv_pooled_some(g->isa, NULL, g->c, &r,
                         g->scratch + (size_t)worker * g->each, g->own);
    }
}

/* Weights are packed by all threads, for plans of one; then each thread takes
   groups, so that no image has to wait for the others. */
static void conv_pooled_groups(int isa, AmpcPool *pool, const LibConv *c,
                               ConvRun *r, int64_t images, char *scratch) {
    const LibPool *p = r->ep->pool->par;
    ConvGroups g = {.r = r,
                    .c = c,
                    .isa = isa,
                    .images = images,
                    .scratch = scratch + conv_packed(c, 1),
                    .own = conv_pool_bytes(c, p, 1),
                    .each = conv_group_bytes(c, p)};
    r->kept->memory = scratch;
    r->threads = 1;
    r->n = 0;
    conv_run(isa, pool, c, 0, r, g.scratch);
    pool_run(pool, ceil_div(c->n, images), 1, conv_group_work, &g);
}

/* Computes some images at a time. */
static void conv_pooled(int isa, AmpcPool *pool, const LibConv *c, ConvRun *r,
                        char *scratch) {
    const CpuPool *q = r->ep->pool;
    int64_t images = conv_pool_images(c, q->par, r->threads);
    size_t own = conv_pool_bytes(c, q->par, r->threads);
    for (; r->first < c->n; r->first += images) {
        r->n = min64(images, c->n - r->first);
        conv_pooled_some(isa, pool, c, r, scratch, own);
    }
}

void ISA(conv_fwd)(int isa, AmpcPool *pool, const LibConv *c, const void *x,
                   const void *w, void *y, const CpuEpilogue *ep, void *scratch,
                   CpuKept *kept) {
    ConvRun r = {.src = x, .w = w, .out = y, .ep = ep, .kept = kept, .n = c->n};
    CpuKept here = {0}; /* weights are packed once for all images */
    r.src_dtype = (int)c->x_dtype;
    r.w_dtype = (int)c->w_dtype;
    r.out_dtype = (int)c->y_dtype;
    r.threads = pool_threads(pool);
    if (!ep || !ep->pool) {
        conv_run(isa, pool, c, 0, &r, scratch);
        return;
    }
    int64_t group = kept ? 0 : conv_pool_group(c, ep->pool->par, r.threads);
    if (!kept) r.kept = &here;
    if (group && ep->pool->count <= CONV_OPERANDS)
        conv_pooled_groups(isa, pool, c, &r, group, scratch);
    else
        conv_pooled(isa, pool, c, &r, scratch);
}

/* Results are widened in pieces of a strip. */
static void conv_sum_strip(const LibConvSums *c, const void *y, int64_t channel,
                           int64_t from, int64_t to, float *sum,
                           float *squares) {
    enum { PIECE = 64 };
    int64_t plane = lib_volume(c->out);
    float mean = 0;
    *sum = *squares = 0;
    for (int pass = 0; pass < 2; pass++) {
        mean = *sum / (float)(to - from);
        for (int64_t i = from, n; i < to; i += n) {
            float v[PIECE];
            n = plane - i % plane;
            if (n > to - i) n = to - i;
            if (n > PIECE) n = PIECE;
            widen(v, y, (int)c->y_dtype,
                  (i / plane * c->k + channel) * plane + i % plane, n);
            for (int64_t j = 0; j < n; j++)
                if (pass == 0)
                    *sum += v[j];
                else
                    *squares += (v[j] - mean) * (v[j] - mean);
        }
    }
}

/* An epilogue that stores results of conv_sums. */
static void conv_scaled(void *const *buf, const void *table, const float *acc,
                        int64_t ld, int64_t batch, int64_t row, int64_t col,
                        int64_t rows, int64_t cols) {
    const LibConvSums *c = buf[0];
    (void)table;
    float scale = lib_float(c->scale), v[1];
    for (int64_t r = 0; r < rows; r++)
        for (int64_t i = 0; i < cols; i++) {
            int64_t at = (batch * c->k + row + r) * lib_volume(c->out);
            v[0] = acc[r * ld + i] * scale;
            narrow(buf[1], (int)c->y_dtype, at + col + i, v, 1);
        }
}

void ISA(conv_sums)(int isa, AmpcPool *pool, const LibConvSums *c,
                    const void *x, const void *w, void *y, void *sums,
                    void *squares, void *scratch) {
    int64_t columns = c->n * lib_volume(c->out);
    void *buf[] = {(void *)(uintptr_t)c, y};
    CpuEpilogue ep = {.fn = conv_scaled, .buf = buf};
    float unread;
    ISA(conv_fwd)(isa, pool, conv_of_sums(c), x, w, y, &ep, scratch, NULL);
    for (int64_t at = 0, i = 0; at < columns; at += c->strip)
        for (int64_t k = 0; k < c->k; k++, i++)
            conv_sum_strip(c, y, k, at,
                           at + c->strip < columns ? at + c->strip : columns,
                           sums ? (float *)sums + i : &unread,
                           squares ? (float *)squares + i : &unread);
}

void ISA(conv_dgrad)(int isa, AmpcPool *pool, const LibConv *c, const void *dy,
                     const void *w, void *dx, void *scratch) {
    ConvRun r = {.src = dy, .w = w, .out = dx, .n = c->n};
    r.threads = pool_threads(pool);
    r.src_dtype = (int)c->y_dtype;
    r.w_dtype = (int)c->w_dtype;
    r.out_dtype = (int)c->x_dtype;
    conv_run(isa, pool, c, 1, &r, scratch);
}

/* Operands and results of conv_dgrad_sums; sum: the gradient, in fp32. */
typedef struct ConvGate {
    const LibConvDgradSums *c;
    const void *x, *gate, *add;
    const float *mean, *rstd, *gain, *shift, *sum;
    void *dx;
} ConvGate;

/* Gates and adds up the columns [from, to) of a channel. */
static void conv_gate_strip(const ConvGate *g, int64_t channel, int64_t from,
                            int64_t to, float *sum, float *product) {
    const LibConvDgradSums *c = g->c;
    int64_t plane = lib_volume(c->in);
    float scale = lib_float(c->scale);
    *sum = *product = 0;
    for (int64_t i = from; i < to; i++) {
        int64_t at = (i / plane * c->c + channel) * plane + i % plane;
        float v = load1(g->x, (int)c->norm_dtype, at) * scale;
        float norm = (v - g->mean[channel]) * g->rstd[channel];
        float gate = g->gate ? load1(g->gate, (int)c->gate_dtype, at)
                             : norm * g->gain[channel] + g->shift[channel];
        v = g->sum[at];
        if (g->add) v += load1(g->add, (int)c->add_dtype, at);
        store1(g->dx, (int)c->x_dtype, at, gate <= 0 ? 0 : v);
        v = load1(g->dx, (int)c->x_dtype, at);
        *sum += v;
        *product += v * norm;
    }
}

void ISA(conv_dgrad_sums)(int isa, AmpcPool *pool, const LibConvDgradSums *c,
                          const void *dy, const void *w, const void *x,
                          const void *mean, const void *rstd, const void *gate,
                          const void *gain, const void *shift, const void *add,
                          void *dx, void *sums, void *products, void *scratch) {
    int64_t columns = c->n * lib_volume(c->in), step = c->strip;
    float unread;
    LibConv wide = *conv_of_dgrad_sums(c);
    ConvGate g = {c, x, gate, add, mean, rstd, gain, shift, scratch, dx};
    wide.x_dtype = AMPC_F32;
    ISA(conv_dgrad)
    (isa, pool, &wide, dy, w, scratch,
     (char *)scratch + conv_dgrad_sums_wide(c));
    for (int64_t at = 0, i = 0; at < columns; at += step)
        for (int64_t k = 0; k < c->c; k++, i++)
            conv_gate_strip(&g, k, at,
                            at + step < columns ? at + step : columns,
                            sums ? (float *)sums + i : &unread,
                            products ? (float *)products + i : &unread);
}
