/* SPDX-License-Identifier: Apache-2.0 */
/* blocks.h: scales of MXFP8. Each BLOCK_SIZE numbers of a row share a scale, a
   power of two (e8m0). cuBLASLt reads the scales of a matrix in tiles of
   BLOCK_ROWS rows by BLOCK_COLUMNS blocks, 512 bytes each, tile after tile
   along the rows; in a tile row r and block c lie at r % 32 * 16 + r / 32 * 4 +
   c. Scales beyond the matrix are 0 (VEC32_UE8M0). GPU
   kernels read the numbers, too. */
#ifndef AMPC_BLOCKS_H
#define AMPC_BLOCKS_H

enum { BLOCK_SIZE = 32, BLOCK_ROWS = 128, BLOCK_COLUMNS = 4 };

/* A block's scale is the power of two nearest to its largest magnitude times
   the first, at least the second, times the third: the largest number below
   1.5, from which on e8m0 rounds up, so that all but powers of two do. The
   first is one by the largest code. */
#define BLOCK_OF_LARGEST (1 / 448.0)
#define BLOCK_LEAST      0x1p-126
#define BLOCK_UP         0x1.7ffffep0

#ifndef __CUDACC_RTC__
#include <stdint.h>

static inline int64_t block_tiles(int64_t n, int64_t each) {
    return n / each + (n % each != 0);
}

/* Scales of a matrix of `rows` rows of k numbers, with those beyond it. */
static inline int64_t block_scales(int64_t rows, int64_t k) {
    return block_tiles(rows, BLOCK_ROWS) * BLOCK_ROWS *
           block_tiles(k, BLOCK_SIZE * BLOCK_COLUMNS) * BLOCK_COLUMNS;
}

/* Place of the scale of number k of a row of `columns`. */
static inline int64_t block_scale_at(int64_t row, int64_t k, int64_t columns) {
    int64_t across = block_tiles(columns, BLOCK_SIZE * BLOCK_COLUMNS);
    int64_t c = k / BLOCK_SIZE, r = row % BLOCK_ROWS;
    int64_t tile = row / BLOCK_ROWS * across + c / BLOCK_COLUMNS;
    return tile * (BLOCK_ROWS * BLOCK_COLUMNS) + r % 32 * 16 +
           r / 32 * BLOCK_COLUMNS + c % BLOCK_COLUMNS;
}
#endif

#endif
