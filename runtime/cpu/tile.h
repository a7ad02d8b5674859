/* SPDX-License-Identifier: Apache-2.0 */
/* tile.h: the register tiles from which all matrix products are built.

   A tile has R rows (1..MR, index R - 1 below) and W vectors of columns (1..NV,
   index W - 1).  Each element is one chain of multiply-adds in order of k,
   the same chain in every tile, so that the bits depend neither on the
   position in a tile nor on the blocking of rows and columns. */
#ifndef AMPC_CPU_TILE_H
#define AMPC_CPU_TILE_H

#include "runtime/cpu/block.h"
#include "runtime/cpu/simd.h"

/* c[R][W*VL] (+)= a[k][MR] * b[k][..], row k of b at b + k * b_step.  At level
   v4 step k of these two tiles fetches ahead[k * TILE_LINE] into the second
   cache. */
enum { TILE_LINE = 16 };
typedef void TilePanelFn(int64_t k, const float *a, const float *b,
                         int64_t b_step, float *c, int64_t ldc, int add,
                         const float *ahead);

/* Like TileFn, but element (r, k) of A is at a[r * lda + k]. */
typedef void TileRowsFn(int64_t k, const float *a, int64_t lda, const float *b,
                        int64_t b_step, float *c, int64_t ldc, int add,
                        const float *ahead);

/* Like TileFn, with row k of b at b + off[k], for a convolution's shifted
   images.
 */
typedef void TileSliceFn(int64_t k, const float *a, const float *b,
                         const int32_t *off, float *c, int64_t ldc, int add);

/* A convolution staged channels-last (chlast.h), row r of c is point p = at[r]:
     c[p][W*VL] (+)= sum over blocks of `cb` channels, taps, channels j of
                     src[row[p] + shift[tap] + j] * w[block][tap][j]
   with w_step from product to product and block_step between blocks of src.
   The taps are `used` of `taps`, those in tap[].                            */
typedef struct TilePoints {
    int64_t channels, cb, taps, used, block_step;
    const float *src;
    const int32_t *row, *at, *shift, *tap;
    const float *w;
    int64_t w_step;
    float *c;
    int64_t ldc;
    int add;
} TilePoints;
typedef void TilePointsFn(const TilePoints *t);

/* c[R][W*VL] (+)= sum over p of a[row[p] + R] * b[p * b_step][W*VL], where p is
   at[0] .. at[n - 1]: from zero, and added to c as a whole.                 */
typedef void TileOuterFn(int64_t n, const int32_t *at, const float *a,
                         const int32_t *row, const float *b, int64_t b_step,
                         float *c, int64_t ldc, int add);

/* `lines` lines of one channel, W vectors each, the next line `pitch` later:
     c[y][x] = sum over ky < high, kx < wide of
               w[(ky * wide + kx) * MR] * src[y + ky][x + kx]
   so that a line of src is loaded once for all results that read it.  Where
   W vectors exceed the pitch, the next line overwrites the rest.            */
enum { TILE_LINES = 4 };
typedef struct TileLines {
    int64_t high, wide, lines, pitch;
    const float *w, *src;
    float *c;
} TileLines;
typedef void TileLinesFn(const TileLines *t);

/* First index 1: each 32-bit element of both factors holds two bf16 that belong
   to neighbouring k (channels, i), the even one in the low half (vdot).  It
   exists at levels with HAS_DOT and is used if cpu_bf16_dot() is true. */
enum { TILE_KINDS = 1 + HAS_DOT };

extern TilePanelFn *const ISA(tile_panel)[TILE_KINDS][MR][NV];
extern TileRowsFn *const ISA(tile_rows)[TILE_KINDS][MR][NV];
extern TileSliceFn *const ISA(tile_slice)[TILE_KINDS][MR][NV];
extern TilePointsFn *const ISA(tile_points)[TILE_KINDS][MR][NV];
extern TileOuterFn *const ISA(tile_outer)[TILE_KINDS][MR][NV];
extern TileLinesFn *const ISA(tile_lines)[NV];

/* Both factors run along the summed dimension:
     c[r][j] += sum over images, i < len of a[r * lda + i] * b[off[j] + i]
   with a and b advancing by a_image, b_image.  len is a multiple of VL.  The
   order of the sum depends only on images and len. Kind 1: a and b are arrays
   of bf16 and len is a multiple of 2 * VL; all counts are in elements.      */
typedef struct TileDot {
    int64_t images, len;
    const void *a;
    int64_t lda, a_image;
    const void *b;
    const int32_t *off;
    int64_t b_image;
    float *c;
    int64_t ldc;
} TileDot;
typedef void TileDotFn(const TileDot *t);

enum { DOT_R = SIMD_DOT_ROWS, DOT_C = SIMD_DOT_COLS };
extern TileDotFn *const ISA(tile_dot)[TILE_KINDS][DOT_R][DOT_C];

/* Width in vectors of the next column tile when `left` vectors remain: NV,
   unless a full tile would leave a single vector. */
INLINE int tile_width(int64_t left) {
    if (left == NV + 1 && NV > 2) return NV - 1;
    return left < NV ? (int)left : NV;
}

/* The number of vectors in the next panel of B. */
INLINE int panel_width(int kind, int64_t left) {
    if (kind == TILE_AMX) return left < 2 ? (int)left : 2;
    return tile_width(left);
}

#endif
