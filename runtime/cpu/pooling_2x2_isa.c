/* SPDX-License-Identifier: Apache-2.0 */
/* pooling_2x2_isa.c: MaxPool, AveragePool and their gradients for windows of
   2 x 2, stride 2, without padding: no line of a row is copied. */
#include "runtime/cpu/pooling_lanes.h"

/* Elements from + 2i and from + 2i + 1, i < n. */
INLINE void pool_pairs(const void *x, int dtype, int64_t from, int64_t n,
                       vf *even, vf *odd) {
    if (dtype == AMPC_BF16 && n >= VL) {
        vu both = vf_as_u(vload(at(x, dtype, from)));
        *even = vu_as_f(vu_left(both, 16));
        *odd = vu_as_f(vu_and(both, vu_set(0xffff0000u)));
        return;
    }
    vf a = pool_load_n(x, dtype, from, 2 * n);
    vf b = pool_load_n(x, dtype, from + VL, 2 * n - VL);
    *even = veven(a, b);
    *odd = vodd(a, b);
}

/* Elements to + 2i = even[i], to + 2i + 1 = odd[i], i < n. */
INLINE void pool_store_pairs(void *x, int dtype, int64_t to, int64_t n, vf even,
                             vf odd) {
    if (dtype == AMPC_BF16 && n >= VL) {
        vu high = vu_and(vround_bf16(odd), vu_set(0xffff0000u));
        vstore(at_mut(x, dtype, to),
               vu_as_f(vu_or(vu_right(vround_bf16(even), 16), high)));
        return;
    }
    pool_store_n(x, dtype, to, vzip_low(even, odd), 2 * n);
    pool_store_n(x, dtype, to + VL, vzip_high(even, odd), 2 * n - VL);
}

/* n maxima, without indices, of the inputs from `from` on and of those in
   the row below. Rows are compared first, which halves the shuffles. */
INLINE vf pool_max_n(const void *x, int dtype, int64_t from, int64_t width,
                     int64_t n) {
    int64_t next = from + width;
    vf a, b, c, d;
    if (dtype == AMPC_BF16 && n >= VL) {
        pool_pairs(x, dtype, from, n, &a, &b);
        pool_pairs(x, dtype, next, n, &c, &d);
        return vgreater(vgreater(a, c), vgreater(b, d));
    }
    a = vgreater(pool_load_n(x, dtype, from, 2 * n),
                 pool_load_n(x, dtype, next, 2 * n));
    b = vgreater(pool_load_n(x, dtype, from + VL, 2 * n - VL),
                 pool_load_n(x, dtype, next + VL, 2 * n - VL));
    return vgreater(veven(a, b), vodd(a, b));
}

/* n outputs from `to` on, from the inputs from `from` on and the next row. */
INLINE void pool_forward_n(const PoolRun *r, int dtype, int max, int64_t from,
                           int64_t to, int64_t n) {
    vf a, b, c, d;
    pool_pairs(r->src, dtype, from, n, &a, &b);
    pool_pairs(r->src, dtype, from + r->p->in[2], n, &c, &d);
    if (!max) {
        vf sum = vadd(vadd(vadd(a, b), c), d);
        pool_store_n(r->dst, dtype, to, vdiv(sum, vset(4.0f)), n);
        return;
    }
    vi w = {0};
    vtake(b, vi_set(1), &a, &w);
    vtake(c, vi_set(2), &a, &w);
    vtake(d, vi_set(3), &a, &w);
    pool_store_n(r->dst, dtype, to, a, n);
    pool_put_taps(r, to, w, n);
}

/* The inputs from `to` on and in the next row, from n outputs from `from` on.
 */
INLINE void pool_backward_n(const PoolRun *r, int dtype, int64_t to,
                            int64_t from, int64_t n) {
    vf g = pool_load_n(r->src, dtype, from, n);
    vi w = {0};
    if (r->idx) w = pool_taps(r, from, n);
    for (int row = 0; row < 2; row++, to += r->p->in[2]) {
        vf a = vdiv(g, vset(4.0f)), b = a;
        if (r->idx) {
            a = vkeep(vi_equal(w, vi_set(2 * row)), g);
            b = vkeep(vi_equal(w, vi_set(2 * row + 1)), g);
        }
        pool_store_pairs(r->dst, dtype, to, n, a, b);
    }
}

/* Stores whole vectors of outputs: the last vector of a row overlaps the
   previous one. A row shorter than a vector spills into the following rows,
   which are written later; this is done only while the plane has enough rows
   left. max -1: the gradient. */
INLINE void pool_plane_2x2(const PoolRun *r, int dtype, int max,
                           int64_t plane) {
    const LibPool *p = r->p;
    int64_t width = p->in[2], out = p->out[2];
    for (int64_t y = 0; y < p->out[1]; y++) {
        int64_t at_in = (plane * p->in[1] + 2 * y) * width;
        int64_t at_out = (plane * p->out[1] + y) * out, i = 0;
        int whole = out >= VL || (p->out[1] - y) * out >= VL;
        for (; whole && i < out; i += VL) {
            int64_t j = max64(min64(i, out - VL), 0);
            if (max < 0)
                pool_backward_n(r, dtype, at_in + 2 * j, at_out + j, VL);
            else
                pool_forward_n(r, dtype, max, at_in + 2 * j, at_out + j, VL);
        }
        if (i > 0) continue;
        if (max < 0)
            pool_backward_n(r, dtype, at_in, at_out, out);
        else
            pool_forward_n(r, dtype, max, at_in, at_out, out);
    }
}

/* 2 x 2 maxima without indices. */
INLINE void pool_max_2x2(const PoolRun *r, int dtype, int64_t plane) {
    const void *x = r->src;
    void *y = r->dst;
    int64_t width = r->p->in[2], out = r->p->out[2], rows = r->p->out[1];
    int64_t from = plane * r->p->in[1] * width, to = plane * rows * out;
    for (; rows > 0; rows--, from += 2 * width, to += out) {
        if (rows * out < VL) {
            pool_store_n(y, dtype, to, pool_max_n(x, dtype, from, width, out),
                         out);
            continue;
        }
        for (int64_t i = 0; i < out; i += VL) {
            int64_t j = max64(min64(i, out - VL), 0);
            pool_store_n(y, dtype, to + j,
                         pool_max_n(x, dtype, from + 2 * j, width, VL), VL);
        }
    }
}

INLINE void pool_backward_2x2(const PoolRun *r, int dtype, int64_t plane) {
    const LibPool *p = r->p;
    int64_t width = p->in[2], done = 2 * p->out[2];
    pool_plane_2x2(r, dtype, -1, plane);
    for (int64_t y = 0; y < p->in[1]; y++) /* inputs that no window reads */
        for (int64_t x = y < 2 * p->out[1] ? done : 0; x < width; x++)
            store1(r->dst, dtype, (plane * p->in[1] + y) * width + x, 0.0f);
}

/* ---- planes -------------------------------------------------------------- */

INLINE void pool_2x2_planes(const PoolRun *r, int dtype, int max, int64_t lo,
                            int64_t hi) {
    for (int64_t i = lo; i < hi; i++)
        if (max < 0)
            pool_backward_2x2(r, dtype, i);
        else if (max && !r->idx_out)
            pool_max_2x2(r, dtype, i);
        else
            pool_plane_2x2(r, dtype, max, i);
}

INLINE void pool_2x2_as(const PoolRun *r, int max, int64_t lo, int64_t hi) {
    switch (r->p->dtype) {
    case AMPC_F32: pool_2x2_planes(r, AMPC_F32, max, lo, hi); break;
    case AMPC_BF16: pool_2x2_planes(r, AMPC_BF16, max, lo, hi); break;
    default: pool_2x2_planes(r, AMPC_F16, max, lo, hi); break;
    }
}

void ISA(pool_2x2)(const PoolRun *r, int max, int64_t lo, int64_t hi) {
    if (max)
        pool_2x2_as(r, 1, lo, hi);
    else
        pool_2x2_as(r, 0, lo, hi);
}

void ISA(pool_2x2_grad)(const PoolRun *r, int64_t lo, int64_t hi) {
    pool_2x2_as(r, -1, lo, hi);
}
