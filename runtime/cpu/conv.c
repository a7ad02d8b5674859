/* SPDX-License-Identifier: Apache-2.0 */
/* conv.c: geometry, block sizes and scratch of the convolutions. */
#include "runtime/cpu/conv.h"

#include <string.h>

enum {
    CONV_SRC_MAX = 1 << 17,  /* floats of the source that one item should
                                hold */
    CONV_ACC_MAX = 48 << 10, /* floats of accumulators                       */
    CONV_ROW_MAX = 384,      /* columns of accumulators                      */
    CONV_MB = 256,
    CONV_KC = 288,
    CONV_LINES = 8,       /* a multiple of TILE_LINES                     */
    CONV_PRODUCT = 128,   /* positions in an image from which a matrix product
                             is faster */
    CONV_GRAIN = 1 << 17, /* multiply-adds that are worth a hand-over */
    WGRAD_LEN = 1024,     /* positions summed in registers                */
    WGRAD_KB = 128,
    WGRAD_ACC_MAX = 1 << 16, /* floats of accumulators                       */
    WGRAD_SRC_MAX = 3 << 16, /* floats of X                                  */
    WGRAD_ITEMS = 16         /* enough items to work without slices */
};

static size_t conv_bytes(int64_t floats) {
    return (size_t)round_up(floats, BLOCK_LANES) * sizeof(float);
}

static int64_t conv_gcd(int64_t a, int64_t b) {
    while (b) {
        int64_t r = a % b;
        a = b;
        b = r;
    }
    return a;
}

/* First result position with residue r, as (position + begin) % stride. */
static int64_t conv_first(const ConvDim *d, int64_t r) {
    int64_t f = (r - d->begin) % d->stride;
    return f < 0 ? f + d->stride : f;
}

/* dgrad: result `first + j * stride` reads source j + this. */
static int64_t conv_reach_back(const ConvDim *d, int64_t t) {
    int64_t q = t * d->dilation;
    return (conv_first(d, q % d->stride) + d->begin - q) / d->stride;
}

static void conv_dim_fwd(ConvDim *d) {
    d->step = d->stride;
    d->pad = d->begin;
    d->slots = min64(d->kernel, d->period);
    d->reach = (d->kernel - 1) * d->dilation / d->stride;
    d->result_step = 1;
    d->count = d->result;
}

static void conv_dim_dgrad(ConvDim *d) {
    int64_t low = 0, high = 0;
    for (int64_t t = 0; t < d->kernel; t++) {
        int64_t e = conv_reach_back(d, t);
        low = min64(low, e);
        high = max64(high, e);
    }
    d->step = 1;
    d->pad = d->lead = -low;
    d->slots = 1;
    d->reach = high - low;
    d->result_step = d->stride;
    d->count = ceil_div(d->result, d->stride);
}

static void conv_dims(const LibConv *c, ConvPlan *p) {
    p->taps = p->subs = 1;
    for (int i = 0; i < 3; i++) {
        ConvDim *d = &p->dim[i];
        d->kernel = c->kernel[i];
        d->stride = c->stride[i];
        d->dilation = c->dilation[i];
        d->begin = c->pad[i];
        d->period = d->stride / conv_gcd(d->stride, d->dilation);
        d->in = p->dgrad ? c->out[i] : c->in[i];
        d->result = p->dgrad ? c->in[i] : c->out[i];
        if (p->dgrad)
            conv_dim_dgrad(d);
        else
            conv_dim_fwd(d);
        d->width = d->reach + d->count;
        p->taps *= d->kernel;
        p->subs *= d->result_step;
    }
}

/* Rows per item: its source fits the cache, and there are enough items. */
static void conv_rows(ConvPlan *p, int threads) {
    const ConvDim *h = &p->dim[1];
    int64_t slots = p->dim[0].slots * h->slots * p->dim[2].slots;
    int64_t row = p->cs * slots * p->vd * p->vw; /* floats per buffer row */
    int64_t outer = p->n * p->group * p->dim[0].count;
    int64_t blocks = 1;
    for (; blocks < h->count; blocks++) {
        p->rows = ceil_div(h->count, blocks);
        int fits = row * (p->rows + h->reach) <= CONV_SRC_MAX;
        int busy = threads == 1 || outer * blocks >= 2 * threads;
        int halo = p->rows <= 2 * h->reach; /* smaller items would double the
                                               loads */
        if (fits && (busy || halo)) break;
        if (!fits && p->rows <= h->reach) break;
    }
    p->rows = max64(1, ceil_div(h->count, blocks));
    p->hblocks = ceil_div(h->count, p->rows);
    p->vh = p->rows + h->reach;
    p->plane = p->vh * p->vw;
    p->chan = slots * p->vd * p->plane;
    p->items = outer * p->hblocks;
}

/* One channel of the source for one result, and neighbours for neighbours. */
static int conv_lines(const ConvPlan *p) {
    int plain = p->cs == 1 && p->m == 1 && !p->dgrad && !p->pairs &&
                p->dim[0].kernel == 1 && p->taps <= CONV_KC;
    for (int i = 1; i < 3; i++)
        plain &= p->dim[i].stride == 1 && p->dim[i].dilation == 1;
    return plain;
}

static void conv_inner(ConvPlan *p) {
    p->mb = min64(round_up(p->m, BLOCK_ROWS), CONV_MB);
    int64_t cols = min64(CONV_ACC_MAX / p->mb, CONV_ROW_MAX);
    p->inner = max64(1, cols / max64(1, p->vw));
    p->lines = conv_lines(p);
    if (p->lines) p->inner = round_up(p->inner, CONV_LINES);
    p->inner = min64(p->inner, p->rows);
    p->ld = round_up(p->inner * p->vw, BLOCK_LANES) + BLOCK_LANES;
    int64_t k = p->cs * p->taps;
    p->kc = ceil_div(k, max64(1, ceil_div(k, CONV_KC)));
}

void conv_geometry(const LibConv *c, int dgrad, ConvPlan *p) {
    CONTRACT(c->group > 0 && c->c % c->group == 0 && c->k % c->group == 0);
    memset(p, 0, sizeof *p);
    p->dgrad = dgrad;
    p->n = c->n;
    p->group = c->group;
    p->channels = (dgrad ? c->k : c->c) / c->group;
    p->m = (dgrad ? c->c : c->k) / c->group;
    conv_dims(c, p);
}

int conv_product(const LibConv *c, int dgrad, LibGemm *g) {
    int64_t positions = lib_volume(c->out), from = dgrad ? c->k : c->c;
    if (c->group != 1 || positions < CONV_PRODUCT) return 0;
    for (int i = 0; i < 3; i++)
        if (c->kernel[i] != 1 || c->stride[i] != 1 || c->pad[i] != 0 ||
            c->in[i] != c->out[i])
            return 0;
    *g = (LibGemm){.m = dgrad ? c->c : c->k,
                   .n = positions,
                   .k = from,
                   .nbatch_dim = 1,
                   .batch_dim = {c->n},
                   .b_bs = {from * positions},
                   .a_rs = dgrad ? 1 : c->c,
                   .a_cs = dgrad ? c->c : 1,
                   .b_rs = positions,
                   .b_cs = 1,
                   .a_dtype = c->w_dtype,
                   .b_dtype = dgrad ? c->y_dtype : c->x_dtype,
                   .c_dtype = dgrad ? c->x_dtype : c->y_dtype};
    return 1;
}

void conv_plan(const LibConv *c, int dgrad, int pairs, int threads,
               ConvPlan *p) {
    conv_geometry(c, dgrad, p);
    p->pairs = pairs;
    p->cs = pairs ? ceil_div(p->channels, 2) : p->channels;
    p->vd = p->dim[0].reach + 1;
    p->vw = p->dim[2].width;
    conv_rows(p, threads);
    conv_inner(p);
    int64_t k = p->cs * p->taps;
    CONTRACT(p->rows > 0 && p->vw > 0 && p->ld % BLOCK_LANES == 0);
    int64_t work = p->m * k * p->rows * p->vw + p->cs * p->chan;
    p->grain = work < CONV_GRAIN ? ceil_div(CONV_GRAIN, work + 1) : 1;
    p->packed = conv_bytes(p->group * round_up(p->m, BLOCK_ROWS) * k);
    p->off = conv_bytes(k);
    p->src = conv_bytes(p->cs * p->chan + 4 * BLOCK_LANES);
    p->acc = conv_bytes(p->mb * p->ld + BLOCK_LANES);
}

void conv_sub(const ConvPlan *p, int64_t index, ConvSub *s) {
    CONTRACT(index >= 0 && index < p->subs);
    s->taps = 1;
    for (int i = 2; i >= 0; i--) {
        const ConvDim *d = &p->dim[i];
        int64_t r = index % d->result_step;
        index /= d->result_step;
        s->t0[i] = 0;
        s->tstep[i] = p->dgrad ? d->period : 1;
        if (p->dgrad) {
            int64_t last = min64(d->kernel, d->period);
            while (s->t0[i] < last && s->t0[i] * d->dilation % d->stride != r)
                s->t0[i]++;
            if (s->t0[i] == last) s->t0[i] = d->kernel; /* no tap */
        }
        s->first[i] = p->dgrad ? conv_first(d, r) : 0;
        s->count[i] = ceil_div(d->result - s->first[i], d->result_step);
        if (d->result <= s->first[i]) s->count[i] = 0;
        s->ntap[i] = ceil_div(d->kernel - s->t0[i], s->tstep[i]);
        s->taps *= s->ntap[i];
    }
}

void conv_tap3(const ConvSub *s, int64_t i, int64_t t[3]) {
    for (int j = 2; j >= 0; j--) {
        t[j] = s->t0[j] + i % s->ntap[j] * s->tstep[j];
        i /= s->ntap[j];
    }
}

int64_t conv_tap(const ConvPlan *p, const ConvSub *s, int64_t i) {
    int64_t t[3];
    conv_tap3(s, i, t);
    return (t[0] * p->dim[1].kernel + t[1]) * p->dim[2].kernel + t[2];
}

int64_t conv_shift(const ConvPlan *p, int i, int64_t t) {
    const ConvDim *d = &p->dim[i];
    return p->dgrad ? conv_reach_back(d, t) : t * d->dilation - d->begin;
}

int64_t conv_phase(const ConvDim *d, int64_t slot) {
    return slot * d->dilation % d->step;
}

static int64_t conv_tap_offset(const ConvPlan *p, const int64_t t[3]) {
    int64_t slot[3], shift[3];
    for (int i = 0; i < 3; i++) {
        const ConvDim *d = &p->dim[i];
        slot[i] = p->dgrad ? 0 : t[i] % d->period;
        shift[i] = p->dgrad ? conv_reach_back(d, t[i]) + d->lead
                            : t[i] * d->dilation / d->stride;
    }
    int64_t at = slot[0] * p->vd + shift[0];
    at = (at * p->dim[1].slots + slot[1]) * p->dim[2].slots + slot[2];
    return at * p->plane + shift[1] * p->vw + shift[2];
}

void conv_offsets(const ConvPlan *p, int32_t *off) {
    for (int64_t i = 0; i < p->subs; i++) {
        ConvSub s;
        conv_sub(p, i, &s);
        for (int64_t t = 0; t < s.taps; t++) {
            int64_t tap[3];
            conv_tap3(&s, t, tap);
            int64_t at = conv_tap_offset(p, tap);
            for (int64_t c = 0; c < p->cs; c++)
                off[c * s.taps + t] = (int32_t)(c * p->chan + at);
        }
        off += p->cs * s.taps;
    }
}

/* ---- gradient by the weights --------------------------------------------- */

static void conv_wgrad_rows(WgradPlan *w) {
    ConvPlan *p = &w->p;
    const ConvDim *h = &p->dim[1];
    int64_t rows =
        min64(max64(1, WGRAD_LEN / max64(1, p->vw)), max64(1, h->count));
    p->hblocks = ceil_div(h->count, rows);
    p->rows = max64(1, ceil_div(h->count, max64(1, p->hblocks)));
    p->vh = p->rows + h->reach;
    p->plane = p->vh * p->vw;
    p->chan = p->dim[0].slots * h->slots * p->dim[2].slots * p->vd * p->plane;
    w->len = round_up(p->rows * p->vw, 2 * BLOCK_LANES);
    w->images = max64(1, min64(p->n, WGRAD_LEN / w->len));
}

static void conv_wgrad_channels(WgradPlan *w) {
    const ConvPlan *p = &w->p;
    w->kblocks = ceil_div(p->m, WGRAD_KB);
    w->kb = ceil_div(p->m, max64(1, w->kblocks));
    w->cb = WGRAD_ACC_MAX / max64(1, w->kb * p->taps);
    w->cb = min64(w->cb, WGRAD_SRC_MAX / max64(1, w->images * p->chan));
    w->cb = max64(1, min64(w->cb, p->cs));
    w->cblocks = ceil_div(p->cs, w->cb);
    w->cb = max64(1, ceil_div(p->cs, max64(1, w->cblocks)));
}

void conv_wgrad_plan(const LibConv *c, WgradPlan *w) {
    memset(w, 0, sizeof *w);
    conv_plan(c, 0, 0, 1, &w->p);
    const ConvPlan *p = &w->p;
    conv_wgrad_rows(w);
    conv_wgrad_channels(w);
    int64_t base = p->group * w->kblocks * w->cblocks;
    w->units = ceil_div(p->n, w->images) * p->dim[0].count * p->hblocks;
    w->nsplit = ceil_div(WGRAD_ITEMS, max64(1, base));
    w->nsplit = max64(1, min64(w->nsplit, w->units));
    w->per_split = ceil_div(w->units, w->nsplit);
    if (w->units > 0) w->nsplit = ceil_div(w->units, w->per_split);
    w->items = base * w->nsplit;
    w->x_image = w->cb * p->chan;
    w->off = conv_bytes(p->cs * p->taps);
    if (w->nsplit > 1)
        w->partial = conv_bytes(w->nsplit * c->k * p->cs * p->taps);
    w->x = conv_bytes(w->images * w->x_image + 4 * BLOCK_LANES);
    w->dy = conv_bytes(w->images * w->kb * w->len + 4 * BLOCK_LANES);
    w->acc = conv_bytes(w->kb * w->cb * p->taps);
}
