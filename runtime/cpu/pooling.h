/* SPDX-License-Identifier: Apache-2.0 */
/* pooling.h: window arithmetic, and the plain f64 loops. */
#ifndef AMPC_CPU_POOLING_H
#define AMPC_CPU_POOLING_H

#include "runtime/cpu/kernels.h"

typedef struct PoolRun {
    const LibPool *p;
    const void *src; /* X, or dY                                         */
    void *dst;       /* Y, or dX                                         */
    const void *idx; /* gradient of MaxPool: p->idx_dtype                */
    void *idx_out;   /* MaxPool, may be NULL                             */
} PoolRun;

static inline int32_t pool_idx(const PoolRun *r, int64_t i) {
    return r->p->idx_dtype == AMPC_I8 ? ((const int8_t *)r->idx)[i]
                                      : ((const int32_t *)r->idx)[i];
}

static inline void pool_set_idx(const PoolRun *r, int64_t i, int32_t tap) {
    if (r->p->idx_dtype == AMPC_I8)
        ((int8_t *)r->idx_out)[i] = (int8_t)tap;
    else
        ((int32_t *)r->idx_out)[i] = tap;
}

/* Input position that window element t of output o reads along dimension d. */
static inline int64_t pool_at(const LibPool *p, int d, int64_t o, int64_t t) {
    return o * p->stride[d] + t * p->dilation[d] - p->pad[d];
}

/* First window element of output o at or after input position `from`. */
static inline int64_t pool_first(const LibPool *p, int d, int64_t o,
                                 int64_t from) {
    int64_t low = pool_at(p, d, o, 0), step = p->dilation[d];
    if (low >= from) return 0;
    return step == 1 ? from - low : (from - low + step - 1) / step;
}

/* Number of elements that output o averages along dimension d. */
static inline int64_t pool_count(const LibPool *p, int d, int64_t o) {
    int64_t from = 0, to = p->in[d];
    if (p->count_include_pad) {
        from = -p->pad[d];
        to += p->pad_end[d];
    }
    int64_t t0 = pool_first(p, d, o, from), t1 = pool_first(p, d, o, to);
    if (t1 > p->kernel[d]) t1 = p->kernel[d];
    return t1 > t0 ? t1 - t0 : 0;
}

/* The output of which input i is window element t, if there is one. */
static inline int pool_window(const LibPool *p, int d, int64_t i, int64_t t,
                              int64_t *o) {
    int64_t at = i + p->pad[d] - t * p->dilation[d];
    *o = at / p->stride[d];
    return at >= 0 && at % p->stride[d] == 0 && *o < p->out[d];
}

/* Planes [lo, hi) in f64; ctx is a PoolRun. */
PoolFn pool_max_f64, pool_avg_f64, pool_grad_f64;

#endif
