/* image.h: fills the source buffers described in conv.h. */
#ifndef AMPC_CPU_IMAGE_H
#define AMPC_CPU_IMAGE_H

#include "runtime/cpu/conv.h"
#include "runtime/cpu/simd.h"

/* Loads `channels` channels whose first lies at src[from], for result depth
   `depth` and result rows row0 .. row0 + rows - 1.  Writes BLOCK_LANES zeros
   behind the buffer, which tiles may read.                                  */
void ISA(image_load)(const ConvPlan *p, float *dst, const void *src, int dtype,
                     int64_t from, int64_t channels, int64_t depth,
                     int64_t row0, int64_t rows);

/* dst[rows][width] = src[from ...][rows][n], the columns from n on zero; may
   write up to BLOCK_LANES floats behind the end.                            */
void ISA(image_pad)(float *dst, int64_t width, const void *src, int dtype,
                    int64_t from, int64_t n, int64_t rows);

#endif
