/* SPDX-License-Identifier: Apache-2.0 */
/* pooling_lanes.h: vectors of a row of outputs, for the routines of pooling. */
#ifndef AMPC_CPU_POOLING_LANES_H
#define AMPC_CPU_POOLING_LANES_H

#include <string.h>

#include "runtime/cpu/pooling.h"
#include "runtime/cpu/simd.h"

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

INLINE void pool_put_bytes(int8_t *p, vi v, int64_t n) {
    if (n >= VL) {
        vstore_i8(p, v);
        return;
    }
    uint64_t part[2] = {0}; /* masked stores of bytes take longer */
    vstore_i8(part, v);
    if (n & 8) {
        memcpy(p, part, 8);
        part[0] = part[1];
        p += 8;
    }
    for (int64_t k = 0; k < (n & 7); k++, part[0] >>= 8) p[k] = (int8_t)part[0];
}

INLINE vi pool_taps(const PoolRun *r, int64_t i, int64_t n) {
    if (r->p->idx_dtype != AMPC_I8)
        return vf_as_i(pool_load_n(r->idx, AMPC_F32, i, n));
    return vload_i8((const int8_t *)r->idx + i, n);
}

INLINE void pool_put_taps(const PoolRun *r, int64_t i, vi tap, int64_t n) {
    if (r->p->idx_dtype != AMPC_I8)
        pool_store_n(r->idx_out, AMPC_F32, i, vi_as_f(tap), n);
    else
        pool_put_bytes((int8_t *)r->idx_out + i, tap, n);
}

/* pooling_2x2_isa.c: windows of 2 x 2, stride 2, without padding. */
/* Planes [lo, hi). */
void ISA(pool_2x2)(const PoolRun *r, int max, int64_t lo, int64_t hi);
void ISA(pool_2x2_grad)(const PoolRun *r, int64_t lo, int64_t hi);

#endif
