/* SPDX-License-Identifier: Apache-2.0 */
/* wino.h: 3x3 convolutions at stride 1 by Winograd's minimal filtering.

   Two by two results are made of 4x4 points of the source by 16 products a
   channel, where their taps need 36:
     Y = A'[(G w G') . (B' x B)]A     F(2x2, 3x3)
   summed over channels, so that each of the 16 places is a matrix product of
   its own: tiles by channels by result channels.  The gradient by the weights
   is the same read backwards, a sum over tiles:
     dW = G'[(B' x B) . (A dY A')]G
   Constants are 1 and 1/2.  A result is made of what its own nine taps read and
   of nothing else, so neither an infinity nor a large number beside them shows
   in it.  Beside double, of 16 to 256 channels of random numbers, results and
   the gradient by the input err by 0.6 to 0.8 of what sums of all taps do
   (rms), the gradient by the weights by 1.3 of it (cpu_conv_test has a bound).

   The source is staged as chlast.h has it, widened to fp32; behind it lie as
   many zeros as a tile reaches over an odd edge.                            */
#ifndef AMPC_CPU_WINO_H
#define AMPC_CPU_WINO_H

#include "runtime/cpu/chlast.h"

enum { WINO_PLACES = 16 };

typedef struct WinoPlan {
    ChlastPlan x;       /* geometry and stage of the source                 */
    ChlastPlan dy;      /* dW: of dY, whose odd rows and columns are evened  */
    int64_t high, wide; /* tiles of an image                           */
    int64_t begin[2];   /* first row and column that tile 0 reads      */
    int64_t rows;       /* rows of tiles of an item (dW: of a turn)    */
    int64_t channels, cols; /* floats of a tile in a place: of the source,
                               of results (dW: of dY)                      */
    int64_t source, sums;   /* floats of a place of an item, or of a turn  */
    int64_t slices; /* dW: of the turns, each with sums and tiles of its own
                       (the worker's); 1: all turns share both             */
    size_t other;   /* shared bytes: weights, or tiles of both and the sums */
    size_t worker;
} WinoPlan;

/* Nonzero: this convolution goes here, and *p says how. */
int wino_plan(const LibConv *c, int dgrad, int kind, int threads, WinoPlan *p);
int wino_wgrad_plan(const LibConv *c, int kind, WinoPlan *p);
size_t wino_bytes(const WinoPlan *p, int threads);

#endif
