/* SPDX-License-Identifier: Apache-2.0 */
/* pooling_f64.c: pooling of f64, one window at a time; compiled once. */
#include <math.h>

#include "runtime/cpu/pooling.h"

/* Visits the inputs of one window in order: `pos` is each one's position. */
typedef struct PoolWalk {
    int64_t t; /* next window element                                       */
    int64_t pos;
} PoolWalk;

static int pool_next(const LibPool *p, int64_t o, PoolWalk *w) {
    int64_t od = o / p->out[2] / p->out[1], oh = o / p->out[2] % p->out[1];
    int64_t kh = p->kernel[1], kw = p->kernel[2];
    while (w->t < p->kernel[0] * kh * kw) {
        int64_t t = w->t++;
        int64_t z = pool_at(p, 0, od, t / kw / kh);
        int64_t y = pool_at(p, 1, oh, t / kw % kh);
        int64_t x = pool_at(p, 2, o % p->out[2], t % kw);
        if (z < 0 || z >= p->in[0] || y < 0 || y >= p->in[1] || x < 0 ||
            x >= p->in[2])
            continue;
        w->pos = (z * p->in[1] + y) * p->in[2] + x;
        return 1;
    }
    return 0;
}

static int64_t pool_divisor(const LibPool *p, int64_t o) {
    return pool_count(p, 0, o / p->out[2] / p->out[1]) *
           pool_count(p, 1, o / p->out[2] % p->out[1]) *
           pool_count(p, 2, o % p->out[2]);
}

static int64_t pool_in(const LibPool *p) {
    return p->in[0] * p->in[1] * p->in[2];
}

static int64_t pool_out(const LibPool *p) {
    return p->out[0] * p->out[1] * p->out[2];
}

void pool_max_f64(void *ctx, int64_t lo, int64_t hi, int worker) {
    const PoolRun *r = ctx;
    int64_t out = pool_out(r->p);
    (void)worker;
    for (int64_t i = lo * out; i < hi * out; i++) {
        const double *x = (const double *)r->src + i / out * pool_in(r->p);
        double best = -INFINITY;
        int64_t tap = -1;
        for (PoolWalk w = {0, 0}; pool_next(r->p, i % out, &w);) {
            double v = x[w.pos];
            int nan = v != v && best == best;
            if (tap >= 0 && !(v > best) && !nan) continue;
            best = v;
            tap = w.t - 1;
        }
        ((double *)r->dst)[i] = best;
        if (r->idx_out) pool_set_idx(r, i, (int32_t)tap);
    }
}

void pool_avg_f64(void *ctx, int64_t lo, int64_t hi, int worker) {
    const PoolRun *r = ctx;
    int64_t out = pool_out(r->p);
    (void)worker;
    for (int64_t i = lo * out; i < hi * out; i++) {
        const double *x = (const double *)r->src + i / out * pool_in(r->p);
        double sum = 0;
        int64_t n = pool_divisor(r->p, i % out);
        for (PoolWalk w = {0, 0}; pool_next(r->p, i % out, &w);)
            sum += x[w.pos];
        ((double *)r->dst)[i] = n ? sum / (double)n : 0;
    }
}

/* The gradient of MaxPool if there are indices, else that of AveragePool. */
void pool_grad_f64(void *ctx, int64_t lo, int64_t hi, int worker) {
    const PoolRun *r = ctx;
    int64_t in = pool_in(r->p), out = pool_out(r->p);
    const double *dy = r->src;
    (void)worker;
    for (int64_t i = lo; i < hi; i++) {
        double *dx = (double *)r->dst + i * in;
        for (int64_t j = 0; j < in; j++) dx[j] = 0;
        for (int64_t o = 0; o < out; o++) {
            int64_t at = i * out + o, n = pool_divisor(r->p, o);
            for (PoolWalk w = {0, 0}; n && pool_next(r->p, o, &w);)
                if (!r->idx)
                    dx[w.pos] += dy[at] / (double)n;
                else if (pool_idx(r, at) == w.t - 1)
                    dx[w.pos] += dy[at];
        }
    }
}
