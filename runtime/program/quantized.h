/* SPDX-License-Identifier: Apache-2.0 */
/* quantized.h: weights with few bits. QUANTIZED_BLOCK consecutive elements, row
   by row, share an fp32 scale; the last block may be shorter.  An element is
   the level of its code times the scale:
     QUANTIZED_INT8  -127 .. 127, an i8 each; scale = largest magnitude / 127
     QUANTIZED_INT4  -7 .. 7 as 1 .. 15, two in a byte, the first in its low
                     half; scale = largest magnitude / 7
     QUANTIZED_NF4   NF4_LEVELS, two in a byte; scale = largest magnitude
   Zero is exact in all.  A weight of a matrix multiplication may also be
     QUANTIZED_F32   fp32 elements without a scale, which the routine rounds to
                     the dtype of the other operand
   CPU and GPU kernels read this file, too.                                   */
#ifndef AMPC_QUANTIZED_H
#define AMPC_QUANTIZED_H

#define QUANTIZED_BLOCK 64

#define QUANTIZED_INT8  0
#define QUANTIZED_INT4  1
#define QUANTIZED_NF4   2
#define QUANTIZED_CODES 3
#define QUANTIZED_F32   3 /* no code of a stored weight */

/* The 4-bit NormalFloat of QLoRA (Dettmers et al. 2023), rounded like
   bitsandbytes. */
#define NF4_LEVELS                                                             \
    -1.0f, -0.6961928009986877f, -0.5250730514526367f, -0.39491748809814453f,  \
        -0.28444138169288635f, -0.18477343022823334f, -0.09105003625154495f,   \
        0.0f, 0.07958029955625534f, 0.16093020141124725f,                      \
        0.24611230194568634f, 0.33791524171829224f, 0.44070982933044434f,      \
        0.5626170039176941f, 0.7229568362236023f, 1.0f

#ifndef __CUDACC_RTC__
#include <stdint.h>

static inline int64_t quantized_blocks(int64_t elements) {
    return elements / QUANTIZED_BLOCK + (elements % QUANTIZED_BLOCK != 0);
}

/* The level of a 4-bit code. */
static inline float quantized_level4(int code, unsigned bits) {
    static const float nf4[16] = {NF4_LEVELS};
    return code == QUANTIZED_NF4 ? nf4[bits & 15] : (float)(bits & 15) - 8;
}

/* The level of element i. */
static inline float quantized_level(int code, const void *q, int64_t i) {
    if (code == QUANTIZED_INT8) return ((const int8_t *)q)[i];
    unsigned both = ((const uint8_t *)q)[i / 2];
    return quantized_level4(code, i % 2 ? both >> 4 : both);
}

/* Rounds a block: elements `first` .. first + n - 1, first a multiple of
   QUANTIZED_BLOCK, to the nearest level, ties to even (NF4: to the lower one,
   as bitsandbytes does). If an element is not finite, the block's scale is
   NaN. */
void quantized_put(int code, const float *x, int64_t first, int n, void *q,
                   float *scale);
#endif
#endif
