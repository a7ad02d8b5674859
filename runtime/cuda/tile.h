/* SPDX-License-Identifier: Apache-2.0 */
/* tile.h: sizes shared by the kernels and the compiler (codegen/cuda_lib.c).
   Plain numbers that both C and CUDA read. */
#ifndef AMPC_CUDA_TILE_H
#define AMPC_CUDA_TILE_H

/* Steps of the contracted dimension that a block keeps in shared memory; of
   TF32 half as many. */
#define TILE_K_MMA 32
#define TILE_K_FMA 16

/* Threads per block of the kernels in which a thread computes each result. */
#define EACH_THREADS 256

/* Gradients per thread that are converted to another type. */
#define CONVERT_NEAR 8

/* A block of DIRECT_THREADS sums one element of a small weight gradient. */
#define DIRECT_THREADS 256

/* The gradient by the weights of windows: rows of dY of a block. */
#define WINDOW_ROWS    64
#define WINDOW_THREADS 256

/* scatter-add: at most SCATTER_BLOCKS ranges of rows, each inverted by one
   block; a line of at most SCATTER_LINE threads sums a row. */
#define SCATTER_BLOCKS       256
#define SCATTER_THREADS      256
#define SCATTER_THREADS_LONG 1024
#define SCATTER_LINE         256

/* attention on tensor cores: largest number of columns of a matrix; with up
   to FLASH_NARROW columns a block of forward may have twice the rows.  A warp
   of the gradient has FLASH_GRAD_NARROW or FLASH_GRAD_WIDE keys; a thread keeps
   FLASH_GRAD_SUMS terms of a step's dq. */
#define FLASH_MOST        128
#define FLASH_NARROW      64
#define FLASH_WARPS       4
#define FLASH_THREADS     (FLASH_WARPS * 32)
#define FLASH_GRAD_NARROW 32
#define FLASH_GRAD_WIDE   16
#define FLASH_GRAD_SUMS   16

/* argsort: in rows of at most SORT_SHORT elements, each is compared with
   all; longer rows are sorted by digits of SORT_BITS, each by a block of
   SORT_THREADS or, if rows are few, in parts of at least SORT_PART, which
   are merged. */
#define SORT_SHORT   256
#define SORT_BITS    4
#define SORT_THREADS 512
#define SORT_PART    2048

/* argmax: a warp computes each result if the axis is innermost and longer
   than this. */
#define ARGMAX_WARP 32

/* suppress: threads that compare the later boxes of a row with a kept one. */
#define SUPPRESS_THREADS 256

/* A block transposes TURN_SIDE x TURN_SIDE bytes, a thread TURN_NEAR.
   TURN_SHIFT(n): bytes between TURN_NEAR of the n lines of a tile and the next
   ones. */
#define TURN_SIDE     64
#define TURN_NEAR     16
#define TURN_SHIFT(n) (128 / ((n) / TURN_NEAR))

/* Codes of blocks: a block of threads has BLOCKS_LINES lines of BLOCKS_LINE
   numbers, or where it folds rows BLOCKS_ROWS whole ones; BLOCKS_APART: bytes
   between two lines. */
#define BLOCKS_LINES 64
#define BLOCKS_LINE  128
#define BLOCKS_ROWS  32
#define BLOCKS_APART 16

#endif
