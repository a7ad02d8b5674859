/* SPDX-License-Identifier: Apache-2.0 */
/* kmath_size.h: what plans and generated kernels both read. */
#ifndef AMPC_KMATH_SIZE_H
#define AMPC_KMATH_SIZE_H

#include <stdint.h>

/* An entry of a kernel's table. */
typedef union km_size {
    int64_t i;
    uint32_t u;
    float f;
    double d;
} km_size;

#endif
