/* SPDX-License-Identifier: Apache-2.0 */
/* conv.h: geometry of the convolutions, the same for all ISA levels.

   All three convolutions read a *source* image (X, or dY for dgrad) through a
   worker's buffer: widened to fp32, zero-padded, and with stride s split into
   the s phases of each dimension, so that
     buffer[slot][v] = source[v * step + phase(slot) - pad],  0 outside,
   and every kernel tap is a constant shift of one slot:
     result[j] = sum over k = (channel, tap) of w[k] * buffer[off[k] + j].
   j runs over rows of the buffer's width `vw`, so a result row is followed by
   vw - out meaningless columns, which are never stored.

   dgrad with stride s is s sub-problems per dimension, one for each residue of
   the result's position, each a stride-1 convolution with some of the taps.  */
#ifndef AMPC_CPU_CONV_H
#define AMPC_CPU_CONV_H

#include "runtime/cpu/block.h"

typedef struct ConvDim {
    int64_t in;          /* extent of the source                       */
    int64_t step, pad;   /* see above                                  */
    int64_t slots;       /* phases that some tap reads                 */
    int64_t reach;       /* largest shift                              */
    int64_t width;       /* extent of the buffer: reach + result positions */
    int64_t result;      /* extent of the result tensor                */
    int64_t result_step; /* 1, or the stride for dgrad                 */
    int64_t count;       /* positions of the longest sub-problem       */
    int64_t kernel, stride, dilation, begin; /* parameters of the convolution */
    int64_t period; /* taps with equal t % period share a phase   */
    int64_t lead;   /* dgrad: added to shifts to keep them >= 0   */
} ConvDim;

typedef struct ConvPlan {
    int dgrad;
    int pairs; /* a buffer element is a pair of bf16 channels */
    int64_t n, group;
    int64_t channels; /* source channels per group                  */
    int64_t cs;       /* source channels in the buffer: a pair counts once */
    int64_t m;        /* result channels per group                  */
    ConvDim dim[3];
    int64_t taps, subs;
    int64_t vd, vh, vw;    /* buffer: depths, rows, width                */
    int64_t plane, chan;   /* floats per plane and per channel           */
    int64_t rows, hblocks; /* result rows of an item                     */
    int64_t inner;         /* result rows multiplied at a time           */
    int64_t mb;            /* result channels multiplied at a time       */
    int64_t kc;            /* taps and channels multiplied at a time     */
    int lines;             /* one channel makes one, lines at a time */
    int64_t ld;            /* row pitch of the accumulators              */
    int64_t items, grain;
    size_t packed, off; /* shared bytes: weights, offsets             */
    size_t src, acc;    /* bytes per worker                           */
} ConvPlan;

/* One sub-problem: along each dimension the taps t0, t0 + tstep, ... give the
   results first, first + result_step, ...                                   */
typedef struct ConvSub {
    int64_t first[3], count[3];
    int64_t t0[3], tstep[3], ntap[3];
    int64_t taps;
} ConvSub;

/* Sets the fields up to `subs`, without `cs`. */
void conv_geometry(const LibConv *c, int dgrad, ConvPlan *p);
void conv_plan(const LibConv *c, int dgrad, int pairs, int threads,
               ConvPlan *p);
/* Nonzero: each image is a matrix product, *g, with the weights on the left.
 */
int conv_product(const LibConv *c, int dgrad, LibGemm *g);

/* Bytes of the fp32 gradient of conv_dgrad_sums, before other scratch. */
static inline size_t conv_dgrad_sums_wide(const LibConvDgradSums *c) {
    size_t n = (size_t)(c->n * c->c * lib_volume(c->in));
    return (n + BLOCK_LANES - 1) / BLOCK_LANES * BLOCK_LANES * sizeof(float);
}

/* Images computed before they are pooled. */
int64_t conv_pool_images(const LibConv *c, const LibPool *p, int threads);
/* Images of a group that one thread computes and pools alone; 0: all threads
   compute and pool the same images. */
int64_t conv_pool_group(const LibConv *c, const LibPool *p, int threads);
/* Bytes of packed weights, of a group's results, and a thread's scratch memory
   with these in front. */
size_t conv_packed(const LibConv *c, int threads);
size_t conv_pool_bytes(const LibConv *c, const LibPool *p, int threads);
size_t conv_group_bytes(const LibConv *c, const LibPool *p);

void conv_sub(const ConvPlan *p, int64_t index, ConvSub *s);

/* The i-th tap of a sub-problem along each dimension, and its index in the
   kernel.                                                                   */
void conv_tap3(const ConvSub *s, int64_t i, int64_t t[3]);
int64_t conv_tap(const ConvPlan *p, const ConvSub *s, int64_t i);

/* Fills off[k] for all sub-problems, one after the other; k = (channel,
   tap). */
void conv_offsets(const ConvPlan *p, int32_t *off);

/* Source position that result 0 of the sub-problem reads through tap t of
   dimension i; it may lie outside. */
int64_t conv_shift(const ConvPlan *p, int i, int64_t t);

int64_t conv_phase(const ConvDim *d, int64_t slot);

/* ---- gradient by the weights --------------------------------------------- */

/* dW[k, (c, tap)] sums over positions.  A unit is `images` images, one depth
   and `rows` rows; slices are runs of units.  Only shape decides these
   numbers. */
typedef struct WgradPlan {
    ConvPlan p;     /* the source is X; rows, vh, plane, chan      */
    int64_t kb, cb; /* output and input channels of an item        */
    int64_t kblocks, cblocks;
    int64_t images; /* per unit                                    */
    int64_t units, nsplit, per_split;
    int64_t len;     /* floats per channel and image of dY          */
    int64_t x_image; /* floats per image of X                       */
    int64_t items;
    size_t off, partial; /* shared bytes                                */
    size_t x, dy, acc;   /* bytes per worker                            */
} WgradPlan;

void conv_wgrad_plan(const LibConv *c, WgradPlan *w);

#endif
