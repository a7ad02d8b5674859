/* SPDX-License-Identifier: Apache-2.0 */
/* dtype.h: element types of plan.h: their sizes and names, and floating numbers
   of any width.                                                             */
#ifndef AMPC_DTYPE_H
#define AMPC_DTYPE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

size_t dtype_bytes(uint32_t dtype); /* 0: no such dtype */
const char *dtype_name(uint32_t dtype);
bool is_float_dtype(uint32_t dtype);
/* Bytes of a dense array; false on overflow or a bad dtype, rank or dim. */
bool dense_bytes(uint32_t dtype, uint32_t rank, const int64_t *dim,
                 uint64_t *bytes);
/* "f32[64,10]" */
const char *shape_text(char buf[160], uint32_t dtype, uint32_t rank,
                       const int64_t *dim);

/* For floating dtypes. 16-bit values are rounded by way of f32. float_put
   returns false if a finite number became infinite. */
double float_at(uint32_t dtype, const void *p);
bool float_put(uint32_t dtype, double x, void *p);

#endif
