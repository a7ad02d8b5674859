/* SPDX-License-Identifier: Apache-2.0 */
/* chlast_run.h: the convolutions of chlast.h, for one ISA level. */
#ifndef AMPC_CPU_CHLAST_RUN_H
#define AMPC_CPU_CHLAST_RUN_H

#include "runtime/cpu/chlast.h"
#include "runtime/cpu/simd.h"

/* src: X, or dY for dgrad; other: W, or dY for wgrad. */
typedef struct ChlastCall {
    const void *src, *other;
    void *out;
    int src_dtype, other_dtype, out_dtype;
    const CpuEpilogue *ep;
    CpuKept *kept; /* packed weights; NULL: no kept copy; without memory: in
                      scratch memory */
    int64_t first, images; /* images of this call; the weight gradient takes
                              all */
    int threads;           /* the plan is for so many; not for dW */
} ChlastCall;

INLINE void *kept_memory(const CpuKept *k, void *scratch) {
    return k && k->memory ? k->memory : scratch;
}

typedef uint32_t u1_any __attribute__((may_alias));

typedef struct ChlastRun {
    ChlastPlan c;
    const ChlastCall *call;
    int64_t image0, images; /* staged now                                   */
    float *stage, *other;   /* other: packed weights, or dY                 */
    float *dw;              /* [panel][block][tap][channel][columns], unless an
                               item is stored at once */
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
} ChlastRun;

INLINE int64_t chlast_block(const ChlastRun *r, int64_t b) {
    CONTRACT(b >= 0 && b < r->c.cblocks);
    return min64(r->c.cb, r->c.p.cs - b * r->c.cb);
}

INLINE int64_t chlast_channels(const ChlastRun *r, int64_t b) {
    int64_t most = r->c.cb * r->c.per;
    return min64(most, r->c.p.channels - b * most);
}

INLINE float *chlast_stage_at(const ChlastRun *r, int64_t b) {
    CONTRACT(b >= 0 && b < r->c.cblocks);
    return r->stage + b * r->c.points * r->c.cb;
}

INLINE void chlast_zero(float *dst, int64_t n) {
    for (int64_t i = 0; i < n; i++) dst[i] = 0.0f;
}

/* Unit i of staging: an image, a block of channels. */
void ISA(chlast_stage_unit)(const ChlastRun *r, int64_t unit);
/* Units [lo, hi) of ctx, a ChlastRun, for pool_run. */
void ISA(chlast_stage_work)(void *ctx, int64_t lo, int64_t hi, int worker);
/* Lays out scratch memory and the tables of rows, for r's plan. */
void ISA(chlast_begin)(ChlastRun *r, const ChlastCall *call, void *scratch);
/* Sub-problem `index`, whose weights begin at w; returns the end of its
   weights. */
const float *ISA(chlast_sub)(ChlastRun *r, int64_t index, const float *w);

/* Columns x .. x + cols - 1 of images of high x wide points; they may extend
   beyond the image, and so may rows. */
typedef struct ChlastWindow {
    const void *src;
    int dtype;
    int64_t channels, high, wide, x, cols;
} ChlastWindow;

/* to[row][col][CHLAST]: CHLAST channels of rows y .. of an image, as fp32,
   with zeros beyond its edges. Lanes beyond the last channel are not written.
 */
void ISA(chlast_window)(const ChlastWindow *w, int64_t image, int64_t channel,
                        int64_t y, int64_t rows, float *to);

/* 0: another kind of convolution, nothing was done. */
int ISA(chlast_conv)(AmpcPool *pool, const LibConv *conv, int dgrad, int kind,
                     const ChlastCall *call, void *scratch);
int ISA(chlast_wgrad)(AmpcPool *pool, const LibConv *conv, int kind,
                      const ChlastCall *call, void *scratch);

#endif
