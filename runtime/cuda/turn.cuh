/* SPDX-License-Identifier: Apache-2.0 */
/* turn.cuh: transposes matrices of bytes, 64 x 64 at a time, so that both
   sides move 16 bytes at once. */
#ifndef AMPC_TURN_CUH
#define AMPC_TURN_CUH

#include "tile.cuh"

/* y[r * COLS + c] = x[c * LD + r]; ROWS, COLS and LD are multiples of 16. One
   block, with a thread for TURN_NEAR bytes. At most two lanes of a warp read
   different words of a bank. */
template <long long ROWS, long long COLS, long long LD>
__device__ void turn_bytes(const void *x, void *y, unsigned block) {
    typedef Words<TURN_NEAR / 4> Line;
    __shared__ unsigned tile[TURN_SIDE][TURN_SIDE / 4 + 1];
    constexpr unsigned across = (COLS + TURN_SIDE - 1) / TURN_SIDE;
    const long long row = (long long)(block / across) * TURN_SIDE;
    const long long col = (long long)(block % across) * TURN_SIDE;
    const unsigned line = threadIdx.x / 4, part = threadIdx.x % 4;
    const unsigned first = part * TURN_NEAR;
    if (col + line < COLS && row + first < ROWS) {
        const unsigned char *from = (const unsigned char *)x;
        Line in = *(const Line *)(from + (col + line) * LD + row + first);
        for (unsigned j = 0; j < 4; j++) tile[line][4 * part + j] = in.v[j];
    }
    __syncthreads();
    if (row + line < ROWS && col + first < COLS) {
        const unsigned shift = 8 * (line % 4);
        Line out;
        for (unsigned j = 0; j < 4; j++) {
            out.v[j] = 0;
            for (unsigned i = 0; i < 4; i++)
                out.v[j] |= (tile[first + 4 * j + i][line / 4] >> shift & 255)
                            << 8 * i;
        }
        unsigned char *to = (unsigned char *)y;
        *(Line *)(to + (row + line) * COLS + col + first) = out;
    }
}

#endif
