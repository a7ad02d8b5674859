/* SPDX-License-Identifier: Apache-2.0 */
/* blocks.cuh: codes of 8 bits whose blocks of 32 numbers share a scale
   (blocks.h), along rows and along columns, and sums of blocks of columns, of a
   tile of a matrix in shared memory.

   Four lanes have neighbouring blocks of a row, a lane four bytes wide a block
   of columns. Lines of the tile lie BLOCKS_APART bytes apart, so that neither
   meets in the same banks.                                                  */
#ifndef AMPC_BLOCKS_CUH
#define AMPC_BLOCKS_CUH

#include "blocks.h"
#include "tile.cuh"

/* Results of a tile. */
enum {
    BLOCKS_CODES = 1,
    BLOCKS_SCALES = 2,
    BLOCKS_DOWN = 4,
    BLOCKS_DOWN_SCALES = 8,
    BLOCKS_SUMS = 16
};

/* A matrix, its tiles, and their results. */
template <class N, int LINES_, int LINE_, long long ROWS_, long long COLUMNS_,
          unsigned WANTS_>
struct BlocksOf {
    typedef N T;
    static constexpr int LINES = LINES_, LINE = LINE_;
    static constexpr long long ROWS = ROWS_, COLUMNS = COLUMNS_;
    static constexpr unsigned wants = WANTS_;
    static constexpr bool whole =
        ROWS % BLOCK_ROWS == 0 && COLUMNS % (BLOCK_SIZE * BLOCK_COLUMNS) == 0;
    static __device__ __forceinline__ bool has(unsigned row, unsigned column) {
        return whole || (row < ROWS && column < COLUMNS);
    }
};

/* Place of the scale of a block of a line of `across` tiles. */
template <class I>
__device__ __forceinline__ I blocks_place(I line, I block, I across) {
    I tile = line / BLOCK_ROWS * across + block / BLOCK_COLUMNS;
    return tile * (BLOCK_ROWS * BLOCK_COLUMNS) + line % 32 * 16 +
           line % BLOCK_ROWS / 32 * BLOCK_COLUMNS + block % BLOCK_COLUMNS;
}

/* The first element of a tile's line. */
template <class T, int LINE>
__device__ __forceinline__ unsigned blocks_line(unsigned line) {
    return line * (LINE * (unsigned)sizeof(T) + BLOCKS_APART);
}

/* Four bytes of a tile: their numbers, and the larger magnitudes of two words,
   whose other bits mean nothing. Numbers are multiplied by one by the scale as
   words (`times`) or one by one (`number`). */
template <class T> struct BlockWord {
    static constexpr unsigned numbers = 2, magnitude = 0x7fff7fffu;
    static __device__ __forceinline__ float number(unsigned w, unsigned i,
                                                   float by) {
        return widen(T{(uint16_t)(w >> 16 * i)}) * by;
    }
    static __device__ __forceinline__ unsigned times(unsigned w, unsigned) {
        return w;
    }
    static __device__ __forceinline__ unsigned larger(unsigned a, unsigned b) {
        return ampc_larger_f16x2(a, b);
    }
};
/* A power of two times a bf16 is a bf16, or far below the least code. */
template <> struct BlockWord<bf16> {
    static constexpr unsigned numbers = 2, magnitude = 0x7fff7fffu;
    static __device__ __forceinline__ float number(unsigned w, unsigned i,
                                                   float) {
        return widen(bf16{(uint16_t)(w >> 16 * i)});
    }
    static __device__ __forceinline__ unsigned times(unsigned w, unsigned by) {
        return ampc_times_bf16x2(w, by);
    }
    static __device__ __forceinline__ unsigned larger(unsigned a, unsigned b) {
        return ampc_larger_bf16x2(a, b);
    }
};
template <> struct BlockWord<float> {
    static constexpr unsigned numbers = 1, magnitude = 0x7fffffffu;
    static __device__ __forceinline__ float number(unsigned w, unsigned,
                                                   float by) {
        return km_float(w) * by;
    }
    static __device__ __forceinline__ unsigned times(unsigned w, unsigned) {
        return w;
    }
    static __device__ __forceinline__ unsigned larger(unsigned a, unsigned b) {
        a &= magnitude, b &= magnitude;
        return a > b ? a : b;
    }
};

/* The number with these bits. */
template <class T> __device__ __forceinline__ float widest(T, unsigned bits) {
    return widen(T{(uint16_t)bits});
}
__device__ __forceinline__ float widest(float, unsigned bits) {
    return km_float(bits);
}

/* The scale of a block whose largest magnitude is m, and one by it. */
__device__ __forceinline__ unsigned block_scale_of(float m, float *inverse) {
    float s = m * (float)BLOCK_OF_LARGEST;
    s = s < (float)BLOCK_LEAST ? (float)BLOCK_LEAST : s;
    /* to e8m0, of a normal number, infinity or NaN that is not negative */
    unsigned scale = (km_bits(s * (float)BLOCK_UP) + 0x400000u) >> 23;
    scale = scale < 0xff ? scale : 0xff;
    *inverse = km_float(scale == 0xff ? 0x7fc00000u : (254u - scale) << 23);
    return scale;
}

/* Four numbers that no code is too small for. */
__device__ __forceinline__ unsigned block_codes_of(float a, float b, float c,
                                                   float d) {
#ifdef KM_GPU_89
    return ampc_e4m3x4(a, b, c, d);
#else
    return F32_TO_F8E4M3(a) | (unsigned)F32_TO_F8E4M3(b) << 8 |
           (unsigned)F32_TO_F8E4M3(c) << 16 | (unsigned)F32_TO_F8E4M3(d) << 24;
#endif
}

/* Block i of the tile's rows. All lanes of a warp call it together. */
template <class P>
__device__ __forceinline__ void
blocks_along_row(const unsigned char *tile, unsigned char *codes,
                 unsigned char *scales, unsigned top, unsigned left,
                 unsigned i) {
    typedef typename P::T T;
    typedef BlockWord<T> W;
    constexpr unsigned each = BLOCK_SIZE / W::numbers, pieces = each / 4;
    const unsigned line = i / BLOCK_COLUMNS % P::LINES, own = i % BLOCK_COLUMNS;
    const unsigned block = i / (BLOCK_COLUMNS * P::LINES) * BLOCK_COLUMNS + own;
    const unsigned row = top + line, k = left + block * BLOCK_SIZE;
    const unsigned half = own / 2; /* with which the lane begins */
    unsigned scale = 0;
    if (P::has(row, k)) {
        const unsigned char *from =
            tile + blocks_line<T, P::LINE>(line) + block * each * 4;
        unsigned w[each], m = 0;
        float inverse;
        UNROLL
        for (unsigned j = 0; j < pieces; j++) {
            const unsigned piece = j ^ (half * (pieces / 2));
            const Words<4> x = *(const Words<4> *)(from + piece * 16);
            for (unsigned u = 0; u < 4; u++) {
                w[j * 4 + u] = x.v[u];
                m = W::larger(m, x.v[u]);
            }
        }
        if (W::numbers == 2) m = W::larger(m, m << 16) >> 16;
        m &= W::magnitude;
        scale = block_scale_of(widest(T(), m), &inverse);
        const unsigned by = km_bits(inverse) >> 16;
        UNROLL
        for (unsigned j = 0; j < each; j++)
            w[j] = W::times(w[j], by << 16 | by);
        unsigned char *to = codes + (long long)row * P::COLUMNS + k;
        UNROLL
        for (unsigned h = 0; h < 2; h++) {
            Words<4> y;
            for (unsigned u = 0; u < 4; u++) {
                float x[4];
                for (unsigned v = 0; v < 4; v++) {
                    const unsigned at = h * 16 + u * 4 + v;
                    x[v] =
                        W::number(w[at / W::numbers], at % W::numbers, inverse);
                }
                y.v[u] = block_codes_of(x[0], x[1], x[2], x[3]);
            }
            if (P::wants & BLOCKS_CODES)
                *(Words<4> *)(to + (h ^ half) * 16) = y;
        }
    }
    if (!(P::wants & BLOCKS_SCALES)) return;
    scale <<= 8 * own;
    scale |= __shfl_xor_sync(0xffffffffu, scale, 1);
    scale |= __shfl_xor_sync(0xffffffffu, scale, 2);
    constexpr unsigned across = up_div(P::COLUMNS, BLOCK_SIZE * BLOCK_COLUMNS);
    if (own == 0)
        *(unsigned *)(scales + blocks_place(row, k / BLOCK_SIZE, across)) =
            scale;
}

/* Blocks i of the tile's columns: those of the numbers of a word. */
template <class P>
__device__ __forceinline__ void
blocks_along_columns(const unsigned char *tile, unsigned char *codes,
                     unsigned char *scales, float *sums, unsigned top,
                     unsigned left, unsigned i) {
    typedef typename P::T T;
    typedef BlockWord<T> W;
    constexpr unsigned words = P::LINE / W::numbers;
    constexpr unsigned across = up_div(P::ROWS, BLOCK_SIZE * BLOCK_COLUMNS);
    const unsigned line = i / words * BLOCK_SIZE, word = i % words;
    const unsigned row = top + line, column = left + word * W::numbers;
    const bool in = P::has(row, column);
    const unsigned char *from = tile + blocks_line<T, P::LINE>(line) + word * 4;
    unsigned w[BLOCK_SIZE], m = 0, scale[W::numbers], by = 0;
    float inverse[W::numbers];
    UNROLL
    for (unsigned j = 0; j < BLOCK_SIZE; j++) {
        w[j] = *(const unsigned *)(from + blocks_line<T, P::LINE>(j));
        m = W::larger(m, w[j]);
    }
    m &= W::magnitude;
    UNROLL
    for (unsigned n = 0; n < W::numbers && P::wants & BLOCKS_SUMS; n++) {
        float sum = 0;
        for (unsigned j = 0; j < BLOCK_SIZE; j++) sum += W::number(w[j], n, 1);
        if (in)
            sums[(long long)(row / BLOCK_SIZE) * P::COLUMNS + column + n] = sum;
    }
    UNROLL
    for (unsigned n = 0; n < W::numbers; n++) {
        scale[n] = block_scale_of(widest(T(), m >> 16 * n), &inverse[n]);
        by |= km_bits(inverse[n]) >> 16 << 16 * n;
        if (P::wants & BLOCKS_DOWN_SCALES)
            scales[blocks_place(column + n, row / BLOCK_SIZE, across)] =
                (unsigned char)(in ? scale[n] : 0);
    }
    if (!in || !(P::wants & BLOCKS_DOWN)) return;
    UNROLL
    for (unsigned j = 0; j < BLOCK_SIZE; j++) w[j] = W::times(w[j], by);
    UNROLL
    for (unsigned n = 0; n < W::numbers; n++) {
        unsigned char *to = codes + (long long)(column + n) * P::ROWS + row;
        UNROLL
        for (unsigned h = 0; h < 2; h++) {
            Words<4> y;
            for (unsigned u = 0; u < 4; u++) {
                const unsigned *x = w + h * 16 + u * 4;
                y.v[u] = block_codes_of(W::number(x[0], n, inverse[n]),
                                        W::number(x[1], n, inverse[n]),
                                        W::number(x[2], n, inverse[n]),
                                        W::number(x[3], n, inverse[n]));
            }
            *(Words<4> *)(to + h * 16) = y;
        }
    }
}

/* Stores what P wants of the tile whose first element is (top, left). Tiles
   extend to multiples of 128 lines and columns, where scales are 0. All threads
   of the block call it together, between two barriers. */
template <class P, int THREADS>
__device__ __forceinline__ void
blocks_tile(const unsigned char *tile, void *codes, void *scales, void *down,
            void *down_scales, void *sums, unsigned top, unsigned left) {
    constexpr unsigned rows = P::LINES * (P::LINE / BLOCK_SIZE);
    constexpr unsigned columns =
        P::LINE / BlockWord<typename P::T>::numbers * (P::LINES / BLOCK_SIZE);
    static_assert(rows % 32 == 0 && columns % 32 == 0, "whole warps");
    if (P::wants & (BLOCKS_CODES | BLOCKS_SCALES))
        for (unsigned i = threadIdx.x; i < rows; i += THREADS)
            blocks_along_row<P>(tile, (unsigned char *)codes,
                                (unsigned char *)scales, top, left, i);
    if (P::wants & (BLOCKS_DOWN | BLOCKS_DOWN_SCALES | BLOCKS_SUMS))
        for (unsigned i = threadIdx.x; i < columns; i += THREADS)
            blocks_along_columns<P>(tile, (unsigned char *)down,
                                    (unsigned char *)down_scales, (float *)sums,
                                    top, left, i);
}

#endif
