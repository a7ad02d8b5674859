/* SPDX-License-Identifier: Apache-2.0 */
/* wino.h: 3x3 convolutions at stride 1 by Winograd's minimal filtering.

   m x m results are computed from (m + 2) x (m + 2) points of the source with
   as many multiplications per channel; the nine taps would need 9 m m: Y =
   A'[(G w G') . (B' x B)]A     F(m x m, 3 x 3) summed over channels, so that
   each of the places is a matrix product of its own: tiles by channels by
   result channels.  The gradient by the weights is the same read backwards, a
   sum over tiles: dW = G'[(B' x B) . (A dY A')]G (Lavin, Gray: Fast Algorithms
   for Convolutional Neural Networks, 2016; the numbers are in wino_turn.h.)

   Against double, with 16 to 256 channels of random numbers, the rms error of
   results and of the input gradient is 0.6 to 0.8 times that of a direct sum
   over taps for m = 2, and that of the weight gradient 1.3 times; for m = 4
   they are 1.9 and 1.6 times (cpu_conv_test has bounds). So m is 4 only where
   both factors have 16 bits, whose own rounding is 2000 times as large; it
   is used instead of pairs of bf16 (tile.h), too.

   For m = 2 a result depends only on the nine points that its own taps read, so
   an infinity or a large number beside them does not affect it. For m = 4 all
   results of a tile are NaN if one of its points is not finite, and their
   errors are relative to the largest of its points.

   A worker widens the points that a row of tiles reads, some channels at a
   time, to a window in its own memory, with zeros beyond the image's edges. */
#ifndef AMPC_CPU_WINO_H
#define AMPC_CPU_WINO_H

#include "runtime/cpu/chlast.h"

enum { WINO_ROWS = 4 /* most rows of results of a window, a whole tile */ };

typedef struct WinoPlan {
    int edge;               /* results along a side of a tile: 2 or 4        */
    ConvPlan x;             /* geometry only                                 */
    int64_t high, wide;     /* tiles of an image                             */
    int64_t begin[2];       /* first row and column that tile 0 reads        */
    int64_t rows;           /* rows of tiles per item (dW: per turn) */
    int64_t channels, cols; /* floats per tile and position: of the source,
                               of results (dW: of dY) */
    int64_t source, sums;   /* floats per position of an item, or of a turn */
    int64_t weights; /* floats per position of weights, or of sums of dW    */
    int64_t slices;  /* dW: number of slices of turns, each with its own sums
                        and tiles (its worker's); 1: all turns share both */
    size_t window;   /* bytes of a worker for points of the source (or dY) */
    size_t other;    /* shared bytes: weights, or tiles of both and the sums */
    size_t worker;   /* bytes of a worker, the window included              */
} WinoPlan;

/* Positions of a tile. */
static inline int64_t wino_places(const WinoPlan *p) {
    return (p->edge + 2) * (p->edge + 2);
}

/* Nonzero: the convolution is computed here, as p describes. */
int wino_plan(const LibConv *c, int dgrad, int kind, int threads, WinoPlan *p);
int wino_wgrad_plan(const LibConv *c, int kind, WinoPlan *p);
size_t wino_bytes(const WinoPlan *p, int threads);

#endif
