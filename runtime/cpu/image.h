/* SPDX-License-Identifier: Apache-2.0 */
/* image.h: fills the source buffers described in conv.h. */
#ifndef AMPC_CPU_IMAGE_H
#define AMPC_CPU_IMAGE_H

#include "runtime/cpu/conv.h"
#include "runtime/cpu/simd.h"

/* Contents of a buffer element. */
enum {
    IMAGE_F32,   /* the source element as fp32 */
    IMAGE_PAIRS, /* bf16 of channels 2c and 2c + 1, the even one low        */
    IMAGE_RAW    /* the 16-bit source element                               */
};

/* Loads `channels` source channels, the first at src[from], for result depth
   `depth` and result rows row0 .. row0 + rows - 1.  Writes BLOCK_LANES 32-bit
   zeros after the buffer, which tiles may read. Kinds other than
   IMAGE_F32 exist at level v4 only.                                         */
void ISA(image_load)(const ConvPlan *p, int kind, void *dst, const void *src,
                     int dtype, int64_t from, int64_t channels, int64_t depth,
                     int64_t row0, int64_t rows);

/* dst[rows][width] = src[from ...][rows][n], the columns from n on are zero;
   may write up to BLOCK_LANES 32-bit zeros after the end. */
void ISA(image_pad)(int kind, void *dst, int64_t width, const void *src,
                    int dtype, int64_t from, int64_t n, int64_t rows);

#endif
