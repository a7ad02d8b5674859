/* SPDX-License-Identifier: Apache-2.0 */
/* chlast.h: convolutions of many channels, staged channels-last.

   The source image (X, or dY for dgrad) of some images at a time is copied to
     stage[channel / CHLAST][point][channel % CHLAST]   as fp32
   where a point is a position of the images laid end to end.  Rows, planes and
   images are followed by as many zeros as a kernel reaches over either edge,
   so neighbours share their pads and a tap is one shift for all points:
     result[i] = sum over tap, c of w[tap, c] * stage[row[i] + shift[tap]][c].
   Lanes are result channels, so every lane computes a result even if the image
   is small or the stride is large. In small images, where many taps read pads,
   an item groups the results that read the source with the same taps and
   computes them with these taps only.

   dW[tap, c, k] is the outer product of the same stage with dY, which is packed
   like the right operand of a matrix product; in small images only the points
   that the tap reads from the source are used.

   In pairs (kinds 1 and 2 of tile.h) an element of the stage is two bf16:
   channels 2c and 2c + 1, for dW points p and p + stride of one channel.
   Results 2i and 2i + 1 of a row read these two points; after the last result
   of a row of odd length dY is zero.

   For AMX tiles blocks of channels are whole, with zeros behind the last one,
   and every tap of a result is multiplied.  The source elements of AMX_HEIGHT
   results are copied to panels (amx.h) before they are multiplied by the
   weights of the item. For dW, dY is the left operand: for each tap and each
   two blocks of channels, the source elements for CHLAST_GATHER elements of dY
   are copied to a panel.

   Sums run over blocks of channels, then taps, then channels of a block (dW:
   over blocks of CHLAST_SUM elements); only shapes decide the order. */
#ifndef AMPC_CPU_CHLAST_H
#define AMPC_CPU_CHLAST_H

#include "runtime/cpu/conv.h"

enum {
    CHLAST = 16,
    CHLAST_STAGE = 1 << 18, /* floats staged at a time, if an image fits */
    CHLAST_SUM = 128,
    CHLAST_GATHER = 256,
    CHLAST_TAPS = 64 /* more taps or strides: not supported here */
};

typedef struct ChlastPlan {
    ConvPlan p;          /* only geometry, pairs and cs are set */
    int kind;            /* of tiles                                        */
    int64_t images;      /* staged at a time                                */
    int64_t per, along;  /* channels and points per element: 1, or 2 */
    int64_t cb, cblocks; /* elements per point in a block; number of blocks */
    int64_t pitch[3]; /* distances in the source's dimensions, pads included */
    int64_t lead;     /* zero points before the first */
    int64_t image;    /* points of an image                              */
    int64_t points;   /* points of the stage */
    int64_t count;    /* results of all staged images, in the largest
                         sub-problem (dW: elements of a column of dY) */
    int64_t block;    /* results of an item                              */
    int64_t cols;     /* result channels per item */
    int64_t kc;       /* channel blocks multiplied at a time             */
    int64_t width;    /* dW: dY is stored as columns of the panels, or as
                         rows */
    int64_t length;   /* dW: elements of a row of dY in the panels       */
    int parted;       /* dW: an item computes one tap, not all           */
    int at_once; /* dW: an item computes its part of dW in its worker's memory
                    and stores it; else dW is stored by a second round */
    size_t stage, other; /* shared bytes: other is weights, or dY and dW    */
    int skips;           /* taps that read pads are skipped; else every tap
                            is used */
    size_t rows;         /* and tables of rows, places and shifts           */
    size_t order;        /* and what chlast_order makes                     */
    size_t worker;
} ChlastPlan;

/* Sets the fields up to `count`, and rows, for a stage of at most `most` floats
   unless an image has more; returns 0 if the convolution cannot be staged. */
int chlast_geometry(const LibConv *c, int dgrad, int kind, int64_t per,
                    int64_t along, int64_t most, ChlastPlan *p);

/* Nonzero: the convolution is computed here, as p describes. dW in pairs is
   refused if rows are too short for pairs. */
int chlast_plan(const LibConv *c, int dgrad, int kind, int threads,
                ChlastPlan *p);
int chlast_wgrad_plan(const LibConv *c, int kind, int threads, ChlastPlan *p);
size_t chlast_bytes(const ChlastPlan *p, int threads);

/* For results 0, every, .. of each row of `images` images, in order: its row in
   the stage and its place in a channel of the result, in elements.          */
int64_t chlast_rows(const ChlastPlan *p, const ConvSub *s, int64_t images,
                    int64_t every, int32_t *row, int32_t *place);

/* For results 0, every, 2 every, .. of each row: taps[i]: bits of the taps
   through which the result, or a neighbour before the next one listed, reads
   the source; sort[i] changes when they do. Returns their number. */
int64_t chlast_reads(const ChlastPlan *p, const ConvSub *s, int64_t images,
                     int64_t every, uint64_t *taps, int32_t *sort);
/* Fills order: the kinds of n results, then for each item the numbers (from
   its first result) of its results, grouped by kind. */
void chlast_order(const ChlastPlan *p, int64_t n, int32_t *order);
/* list[tap * count ..]: the many[tap] of n results that use the tap. */
void chlast_lists(const ChlastPlan *p, int64_t n, const uint64_t *taps,
                  int32_t *list, int32_t *many);

/* One shift for each tap of the sub-problem, in elements of the stage. */
void chlast_shifts(const ChlastPlan *p, const ConvSub *s, int32_t *shift);

#endif
