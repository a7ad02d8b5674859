/* SPDX-License-Identifier: Apache-2.0 */
/* chlast_stage_isa.c: what each convolution of many channels begins with: the
   source in memory as its plan reads it, and the tables of rows. */
#include "runtime/cpu/amx.h"
#include "runtime/cpu/chlast_run.h"
#include "runtime/cpu/transpose.h"

/* TB points of TB elements; with `per` 2 an element is bf16 of two channels. */
INLINE void stage_block(float *dst, int64_t cb, const void *src, int dtype,
                        int per, int64_t from, int64_t chan) {
    vt r[TB];
    for (int i = 0; i < TB; i++) {
        r[i] = load_vt(at(src, dtype, from + i * per * chan), dtype);
        if (per == 1) continue;
        vt high = load_vt(at(src, dtype, from + (2 * i + 1) * chan), dtype);
        r[i] = join_vt(lower_vt(r[i]), high);
    }
    transpose_registers(r);
    for (int i = 0; i < TB; i++) store_vt(dst + i * cb, r[i]);
}

INLINE void stage_block4(float *dst, int64_t cb, const void *src, int dtype,
                         int per, int64_t from, int64_t chan) {
    v4 r[4];
    for (int i = 0; i < 4; i++) {
        r[i] = load_v4(at(src, dtype, from + i * per * chan), dtype);
        if (per == 1) continue;
        v4 high = load_v4(at(src, dtype, from + (2 * i + 1) * chan), dtype);
        r[i] = join_v4(lower_v4(r[i]), high);
    }
    transpose_registers4(r);
    for (int i = 0; i < 4; i++) store_v4(dst + i * cb, r[i]);
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

INLINE void stage_image_as(const ChlastRun *r, int dtype, int per,
                           int64_t image, int64_t b) {
    const ChlastPlan *c = &r->c;
    const ConvDim *d = c->p.dim;
    int64_t cb = c->cb, nc = chlast_channels(r, b), rows = d[1].in;
    int64_t width = d[2].in, chan = d[0].in * d[1].in * d[2].in;
    int64_t zeros = on_tiles(c->kind) ? cb : 0;
    int64_t from = ((r->image0 + image) * c->p.channels + b * cb * per) * chan;
    float *to = chlast_stage_at(r, b);
    if (image == 0) chlast_zero(to, c->lead * cb);
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
            chlast_zero(p + width * cb, (pitch - width) * cb);
        }
        chlast_zero(p, end - p);
    }
    int64_t plane = c->pitch[1] * c->pitch[2];
    chlast_zero(to + d[0].in * plane * cb,
                (c->pitch[0] - d[0].in) * plane * cb);
}

void ISA(chlast_stage_unit)(const ChlastRun *r, int64_t unit) {
    int64_t image = unit / r->c.cblocks, b = unit % r->c.cblocks;
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

void ISA(chlast_stage_work)(void *ctx, int64_t lo, int64_t hi, int worker) {
    (void)worker;
    for (int64_t i = lo; i < hi; i++) ISA(chlast_stage_unit)(ctx, i);
}

INLINE void window_as(const ChlastWindow *w, int dtype, int64_t image,
                      int64_t channel, int64_t y, int64_t rows, float *to) {
    int64_t chan = w->high * w->wide, step = w->cols * CHLAST;
    int64_t left = max64(0, -w->x), end = min64(w->cols, w->wide - w->x);
    int64_t from = (image * w->channels + channel) * chan + w->x + left;
    int64_t nc = min64(CHLAST, w->channels - channel);
    for (; rows > 0; rows--, y++, to += step) {
        if (y < 0 || y >= w->high || end <= left) {
            chlast_zero(to, step);
            continue;
        }
        chlast_zero(to, left * CHLAST);
        stage_row(to + left * CHLAST, CHLAST, w->src, dtype, 1,
                  from + y * w->wide, chan, nc, 0, end - left);
        chlast_zero(to + end * CHLAST, step - end * CHLAST);
    }
}

void ISA(chlast_window)(const ChlastWindow *w, int64_t image, int64_t channel,
                        int64_t y, int64_t rows, float *to) {
    if (w->dtype == AMPC_F32)
        window_as(w, AMPC_F32, image, channel, y, rows, to);
    else if (w->dtype == AMPC_F16)
        window_as(w, AMPC_F16, image, channel, y, rows, to);
    else
        window_as(w, AMPC_BF16, image, channel, y, rows, to);
}

void ISA(chlast_begin)(ChlastRun *r, const ChlastCall *call, void *scratch) {
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

const float *ISA(chlast_sub)(ChlastRun *r, int64_t index, const float *w) {
    const ConvPlan *p = &r->c.p;
    conv_sub(p, index, &r->sub);
    r->index = index;
    r->results = r->sub.count[0] * r->sub.count[1] * r->sub.count[2];
    r->w = w;
    chlast_shifts(&r->c, &r->sub, r->shift);
    return w + p->cs * r->sub.taps * round_up(p->m, VL);
}
