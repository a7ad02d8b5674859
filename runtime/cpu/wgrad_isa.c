/* SPDX-License-Identifier: Apache-2.0 */
/* wgrad_isa.c: gradient of a convolution by its weights.

   dW[k, (c, tap)] = sum over images and positions of dY[k, j] * X[off + j]
   with X in the padded buffer of conv.h and dY copied to the same row pitch,
   zero in the columns that X's rows have more.  Both factors are contiguous
   along the sum, so neither is transposed. (An infinite X times such a zero is
   NaN; the same X meets a true element of dY as well, so the gradient is not
   finite in either case.)

   An item is a block of output channels and one of input channels, over one
   slice of the units; slices are added in order by a second round.          */
#include <string.h>

#include "runtime/cpu/amx.h"
#include "runtime/cpu/wino_run.h"
#include "runtime/cpu/image.h"
#include "runtime/cpu/routines.h"
#include "runtime/cpu/tile.h"

typedef struct WgradRun {
    WgradPlan w;
    const void *x, *dy;
    void *dw;
    int x_dtype, dy_dtype, dw_dtype;
    int raw; /* buffers hold bf16, else fp32                                */
    int32_t *off;
    float *partial;
    char *workers;
} WgradRun;

typedef struct WgradItem {
    int64_t slice, group;
    int64_t k0, k, c0, c; /* channels of the group                          */
    char *x, *dy;
    float *acc;
} WgradItem;

/* Loads the unit's X and dY; returns its number of images. */
static int64_t wgrad_load(const WgradRun *r, const WgradItem *it, int64_t unit,
                          int64_t *len) {
    const ConvPlan *p = &r->w.p;
    const ConvDim *d = p->dim;
    int64_t row0 = unit % p->hblocks * p->rows;
    unit /= p->hblocks;
    int64_t depth = unit % d[0].count, image0 = unit / d[0].count * r->w.images;
    int64_t images = min64(r->w.images, p->n - image0);
    int64_t rows = min64(p->rows, d[1].count - row0);
    int64_t x_size = d[0].in * d[1].in * d[2].in;
    int64_t y_size = d[0].result * d[1].result * d[2].result;
    int kind = r->raw ? IMAGE_RAW : IMAGE_F32;
    int64_t size = r->raw ? 2 : 4;
    *len = round_up((rows - 1) * p->vw + d[2].result, r->raw ? 2 * VL : VL);
    for (int64_t i = 0; i < images; i++) {
        int64_t xc = ((image0 + i) * p->group + it->group) * p->cs + it->c0;
        int64_t yc = ((image0 + i) * p->group + it->group) * p->m + it->k0;
        ISA(image_load)
        (p, kind, it->x + i * r->w.x_image * size, r->x, r->x_dtype,
         xc * x_size, it->c, depth, row0, rows);
        for (int64_t k = 0; k < it->k; k++) {
            char *to = it->dy + (i * r->w.kb + k) * r->w.len * size;
            int64_t from =
                (yc + k) * y_size + (depth * d[1].result + row0) * d[2].result;
            ISA(image_pad)
            (kind, to, p->vw, r->dy, r->dy_dtype, from, d[2].result, rows);
            if (*len > rows * p->vw)
                memset(to + rows * p->vw * size, 0,
                       (size_t)((*len - rows * p->vw) * size));
        }
    }
    return images;
}

/* acc[k][c * taps] += the unit's sums. */
static void wgrad_multiply(const WgradRun *r, const WgradItem *it,
                           int64_t images, int64_t len) {
    const ConvPlan *p = &r->w.p;
    int64_t n = it->c * p->taps;
    TileDot t = {.images = images,
                 .len = len,
                 .lda = r->w.len,
                 .a_image = r->w.kb * r->w.len,
                 .b = it->x,
                 .b_image = r->w.x_image,
                 .ldc = n};
    for (int64_t j = 0; j < n; j += DOT_C) {
        t.off = r->off + j;
        for (int64_t i = 0; i < it->k; i += DOT_R) {
            t.a = it->dy + i * r->w.len * (r->raw ? 2 : 4);
            t.c = it->acc + i * n + j;
            int64_t rows = min64(DOT_R, it->k - i), cols = min64(DOT_C, n - j);
            ISA(tile_dot)[r->raw][rows - 1][cols - 1](&t);
        }
    }
}

static void wgrad_store(const WgradRun *r, const WgradItem *it) {
    const ConvPlan *p = &r->w.p;
    int64_t n = it->c * p->taps, ld = p->cs * p->taps;
    int64_t row = it->group * p->m + it->k0, rows = p->group * p->m;
    for (int64_t i = 0; i < it->k; i++) {
        int64_t to = (row + i) * ld + it->c0 * p->taps;
        if (r->w.nsplit > 1)
            narrow(r->partial, AMPC_F32, it->slice * rows * ld + to,
                   it->acc + i * n, n);
        else
            narrow(r->dw, r->dw_dtype, to, it->acc + i * n, n);
    }
}

static void wgrad_part(const WgradRun *r, const WgradItem *it) {
    int64_t n = it->k * it->c * r->w.p.taps;
    for (int64_t i = 0; i < n; i++) it->acc[i] = 0.0f;
    int64_t unit = it->slice * r->w.per_split;
    int64_t end = min64(unit + r->w.per_split, r->w.units);
    for (; unit < end; unit++) {
        int64_t len, images = wgrad_load(r, it, unit, &len);
        wgrad_multiply(r, it, images, len);
    }
    wgrad_store(r, it);
}

static void wgrad_parts(void *ctx, int64_t lo, int64_t hi, int worker) {
    const WgradRun *r = ctx;
    const WgradPlan *w = &r->w;
    char *own = r->workers + (size_t)worker * (w->x + w->dy + w->acc);
    for (int64_t i = lo; i < hi; i++) {
        WgradItem it = {.x = own,
                        .dy = own + w->x,
                        .acc = (float *)(void *)(own + w->x + w->dy)};
        int64_t rest = i;
        it.c0 = rest % w->cblocks * w->cb;
        rest /= w->cblocks;
        it.k0 = rest % w->kblocks * w->kb;
        rest /= w->kblocks;
        it.group = rest % w->p.group;
        it.slice = rest / w->p.group;
        it.c = min64(w->cb, w->p.cs - it.c0);
        it.k = min64(w->kb, w->p.m - it.k0);
        wgrad_part(r, &it);
    }
}

/* ---- adding the slices --------------------------------------------------- */

enum { WGRAD_SUM = 256 };

/* Elements [lo, hi) * WGRAD_SUM of dW. */
static void wgrad_sum(void *ctx, int64_t lo, int64_t hi, int worker) {
    const WgradRun *r = ctx;
    const ConvPlan *p = &r->w.p;
    int64_t all = p->group * p->m * p->cs * p->taps;
    (void)worker;
    for (int64_t i = lo * WGRAD_SUM; i < hi * WGRAD_SUM && i < all;
         i += WGRAD_SUM) {
        float sum[WGRAD_SUM];
        int64_t n = min64(WGRAD_SUM, all - i);
        for (int64_t j = 0; j < n; j++) sum[j] = r->partial[i + j];
        for (int64_t s = 1; s < r->w.nsplit; s++)
            for (int64_t j = 0; j < n; j++)
                sum[j] += r->partial[s * all + i + j];
        narrow(r->dw, r->dw_dtype, i, sum, n);
    }
}

void ISA(conv_wgrad)(int isa, AmpcPool *pool, const LibConv *c, const void *x,
                     const void *dy, void *dw, void *scratch) {
    WgradRun r = {.x = x, .dy = dy, .dw = dw};
    ChlastCall call = {.src = x,
                       .other = dy,
                       .out = dw,
                       .src_dtype = (int)c->x_dtype,
                       .other_dtype = (int)c->y_dtype,
                       .out_dtype = (int)c->w_dtype,
                       .images = c->n};
    r.x_dtype = (int)c->x_dtype;
    r.dy_dtype = (int)c->y_dtype;
    r.dw_dtype = (int)c->w_dtype;
    int kind = product_kind(isa, r.x_dtype, r.dy_dtype);
    if (ISA(wino_wgrad)(pool, c, kind, &call, scratch) ||
        ISA(chlast_wgrad)(pool, c, kind, &call, scratch) ||
        ISA(chlast_wgrad)(pool, c, TILE_WIDENED, &call, scratch))
        return;
    r.raw = product_kind(ISA_LEVEL, r.x_dtype, r.dy_dtype);
    conv_wgrad_plan(c, &r.w);
    r.off = scratch;
    r.partial = (float *)(void *)((char *)scratch + r.w.off);
    r.workers = (char *)scratch + r.w.off + r.w.partial;
    conv_offsets(&r.w.p, r.off);
    pool_run(pool, r.w.items, 1, wgrad_parts, &r);
    if (r.w.nsplit > 1)
        pool_run(pool, ceil_div(c->k * r.w.p.cs * r.w.p.taps, WGRAD_SUM), 8,
                 wgrad_sum, &r);
}
