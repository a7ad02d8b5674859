/* SPDX-License-Identifier: Apache-2.0 */
/* wino.h: 3x3 convolutions at stride 1 by Winograd's minimal filtering.

   2x2 results are computed from 4x4 points of the source with 16
   multiplications per channel; the nine taps would need 36:
     Y = A'[(G w G') . (B' x B)]A     F(2x2, 3x3)
   summed over channels, so that each of the 16 places is a matrix product of
   its own: tiles by channels by result channels.  The gradient by the weights
   is the same read backwards, a sum over tiles:
     dW = G'[(B' x B) . (A dY A')]G
   Constants are 1 and 1/2.  A result depends only on the nine points that its
   own taps read, so an infinity or a large number beside them does not affect
   it. Against double, with 16 to 256 channels of random numbers, the rms error
   of results and of the input gradient is 0.6 to 0.8 times that of a direct sum
   over taps, and that of the weight gradient 1.3 times (cpu_conv_test has a
   bound).

   The source is staged as in chlast.h, widened to fp32, and followed by as many
   zeros as a tile reads beyond an odd edge. */
#ifndef AMPC_CPU_WINO_H
#define AMPC_CPU_WINO_H

#include "runtime/cpu/chlast.h"

enum { WINO_PLACES = 16 };

typedef struct WinoPlan {
    ChlastPlan x;       /* geometry and stage of the source                 */
    ChlastPlan dy;      /* dW: stage of dY, whose odd rows and columns are
                           made even */
    int64_t high, wide; /* tiles of an image                           */
    int64_t begin[2];   /* first row and column that tile 0 reads      */
    int64_t rows;       /* rows of tiles per item (dW: per turn) */
    int64_t channels, cols; /* floats per tile and position: of the source,
                               of results (dW: of dY) */
    int64_t source, sums;   /* floats per position of an item, or of a turn */
    int64_t slices; /* dW: number of slices of turns, each with its own sums
                       and tiles (its worker's); 1: all turns share both */
    size_t other;   /* shared bytes: weights, or tiles of both and the sums */
    size_t worker;
} WinoPlan;

/* Nonzero: the convolution is computed here, as p describes. */
int wino_plan(const LibConv *c, int dgrad, int kind, int threads, WinoPlan *p);
int wino_wgrad_plan(const LibConv *c, int kind, WinoPlan *p);
size_t wino_bytes(const WinoPlan *p, int threads);

#endif
