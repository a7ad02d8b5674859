/* SPDX-License-Identifier: Apache-2.0 */
/* pooling_lanes.h: vectors of a row of outputs, for the routines of pooling. */
#ifndef AMPC_CPU_POOLING_LANES_H
#define AMPC_CPU_POOLING_LANES_H

#include <string.h>

#include "runtime/cpu/pooling.h"
#include "runtime/cpu/simd.h"

/* The even and the odd elements of two vectors, and the reverse. */
#define SHUFFLE(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#if SIMD_LANES == 16
#define EVEN   0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30
#define ODD    1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31
#define ZIP_LO 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23
#define ZIP_HI 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31
#elif SIMD_LANES == 8
#define EVEN   0, 2, 4, 6, 8, 10, 12, 14
#define ODD    1, 3, 5, 7, 9, 11, 13, 15
#define ZIP_LO 0, 8, 1, 9, 2, 10, 3, 11
#define ZIP_HI 4, 12, 5, 13, 6, 14, 7, 15
#else
#define EVEN   0, 2, 4, 6
#define ODD    1, 3, 5, 7
#define ZIP_LO 0, 4, 1, 5
#define ZIP_HI 2, 6, 3, 7
#endif

INLINE vf pool_load_n(const void *p, int dtype, int64_t i, int64_t n) {
    if (n <= 0) return vset(0.0f);
    return n >= VL ? vload_as(p, dtype, i) : vload_n(p, dtype, i, n);
}

INLINE void pool_store_n(void *p, int dtype, int64_t i, vf v, int64_t n) {
    if (n >= VL)
        vstore_as(p, dtype, i, v);
    else if (n > 0)
        vstore_n(p, dtype, i, v, n);
}

INLINE vi pool_iset(int64_t x) { return (vi){0} + (int32_t)x; }

typedef int8_t PoolBytes __attribute__((vector_size(VL)));
typedef int16_t PoolShorts __attribute__((vector_size(VL * 2)));

INLINE void pool_put_bytes(int8_t *p, vi v, int64_t n) {
    PoolBytes b = __builtin_convertvector(
        __builtin_convertvector(v, PoolShorts), PoolBytes);
    if (n >= VL) {
        memcpy(p, &b, VL);
        return;
    }
    uint64_t part[2] = {0}; /* masked stores of bytes take longer */
    memcpy(part, &b, VL);
    if (n & 8) {
        memcpy(p, part, 8);
        part[0] = part[1];
        p += 8;
    }
    for (int64_t k = 0; k < (n & 7); k++, part[0] >>= 8) p[k] = (int8_t)part[0];
}

INLINE vi pool_taps(const PoolRun *r, int64_t i, int64_t n) {
    if (r->p->idx_dtype != AMPC_I8)
        return (vi)pool_load_n(r->idx, AMPC_F32, i, n);
    return vload_i8((const int8_t *)r->idx + i, n);
}

INLINE void pool_put_taps(const PoolRun *r, int64_t i, vi tap, int64_t n) {
    if (r->p->idx_dtype != AMPC_I8)
        pool_store_n(r->idx_out, AMPC_F32, i, (vf)tap, n);
    else
        pool_put_bytes((int8_t *)r->idx_out + i, tap, n);
}

/* pooling_2x2_isa.c: windows of 2 x 2, stride 2, without padding. */
/* Planes [lo, hi). */
void ISA(pool_2x2)(const PoolRun *r, int max, int64_t lo, int64_t hi);
void ISA(pool_2x2_grad)(const PoolRun *r, int64_t lo, int64_t hi);

#endif
