/* SPDX-License-Identifier: Apache-2.0 */
/* turn.cuh: transposes matrices of bytes through shared memory, so that both
   sides move 16 bytes at once.

   A tile has LINES lines, a multiple of 16, of LINE bytes each. Sixteen lines
   begin some bytes later than the sixteen before would have them, so that lanes
   that read different sixteen meet in different banks.                      */
#ifndef AMPC_TURN_CUH
#define AMPC_TURN_CUH

#include "tile.cuh"

/* Where a line of a tile begins. */
template <int LINES, int LINE>
__device__ __forceinline__ unsigned turn_line(unsigned line) {
    return line * LINE + line / TURN_NEAR * TURN_SHIFT(LINES);
}

/* Columns 0 .. 3 of four lines of four bytes each. */
__device__ __forceinline__ void turn_words(const unsigned *x, unsigned *y) {
    const unsigned a = ampc_bytes(x[0], x[1], 0x5140);
    const unsigned b = ampc_bytes(x[2], x[3], 0x5140);
    const unsigned c = ampc_bytes(x[0], x[1], 0x7362);
    const unsigned d = ampc_bytes(x[2], x[3], 0x7362);
    y[0] = ampc_bytes(a, b, 0x5410);
    y[1] = ampc_bytes(a, b, 0x7632);
    y[2] = ampc_bytes(c, d, 0x5410);
    y[3] = ampc_bytes(c, d, 0x7632);
}

/* Stores the first `columns` columns, a multiple of 4, of the first `lines`
   lines, a multiple of 16: byte (l, c) goes to y[c * ROWS + l]. All threads of
   the block call it together, between two barriers. */
template <int LINES, int LINE, long long ROWS, int THREADS>
__device__ void turn_tile(const unsigned char *tile, void *y, unsigned lines,
                          unsigned columns) {
    typedef Words<TURN_NEAR / 4> Line;
    constexpr unsigned parts = LINES / TURN_NEAR;
    for (unsigned i = threadIdx.x; i < columns / 4 * parts; i += THREADS) {
        const unsigned line = i % parts * TURN_NEAR, column = i / parts * 4;
        const unsigned char *from =
            tile + turn_line<LINES, LINE>(line) + column;
        unsigned char *to = (unsigned char *)y + column * ROWS + line;
        Line out[4];
        if (line >= lines) continue;
        UNROLL
        for (unsigned j = 0; j < TURN_NEAR / 4; j++) {
            unsigned x[4], turned[4];
            for (unsigned k = 0; k < 4; k++)
                x[k] = *(const unsigned *)(from + (4 * j + k) * LINE);
            turn_words(x, turned);
            for (unsigned k = 0; k < 4; k++) out[k].v[j] = turned[k];
        }
        for (unsigned k = 0; k < 4; k++) *(Line *)(to + k * ROWS) = out[k];
    }
}

/* y[r * COLS + c] = x[c * LD + r]; ROWS, COLS and LD are multiples of 16. One
   block, with a thread for TURN_NEAR bytes. */
template <long long ROWS, long long COLS, long long LD>
__device__ void turn_bytes(const void *x, void *y, unsigned block) {
    typedef Words<TURN_NEAR / 4> Line;
    constexpr unsigned across = (COLS + TURN_SIDE - 1) / TURN_SIDE;
    constexpr unsigned parts = TURN_SIDE / TURN_NEAR;
    __shared__ Line
        tile[TURN_SIDE * parts +
             TURN_SIDE / TURN_NEAR * TURN_SHIFT(TURN_SIDE) / TURN_NEAR];
    unsigned char *const bytes = (unsigned char *)tile;
    const long long row = (long long)(block / across) * TURN_SIDE;
    const long long col = (long long)(block % across) * TURN_SIDE;
    const unsigned line = threadIdx.x / parts;
    const unsigned first = threadIdx.x % parts * TURN_NEAR;
    if (col + line < COLS && row + first < ROWS)
        *(Line *)(bytes + turn_line<TURN_SIDE, TURN_SIDE>(line) + first) =
            *(const Line *)((const unsigned char *)x + (col + line) * LD + row +
                            first);
    __syncthreads();
    const long long lines = COLS - col, columns = ROWS - row;
    turn_tile<TURN_SIDE, TURN_SIDE, COLS, TURN_SIDE * parts>(
        bytes, (unsigned char *)y + row * COLS + col,
        lines < TURN_SIDE ? (unsigned)lines : TURN_SIDE,
        columns < TURN_SIDE ? (unsigned)columns : TURN_SIDE);
}

#endif
