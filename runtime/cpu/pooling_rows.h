/* pooling_rows.h: the pooling loops over elements computed as T; a template,
   hence no include guard.  Included by pooling_isa.c with T = float and
   T = double, N(name) naming the instance and LOAD, STORE(p, dtype, i[, x])
   the access; dtype is a constant after inlining.

   Loops run over whole output rows, one window element at a time, so that the
   innermost one is a strided vector operation.                              */

/* MaxPool of outputs [w0, w0 + n) of one row. */
INLINE void N(maxpool_row)(const CpuPool *p, int dtype, const void *x, void *y,
                           int32_t *idx, int64_t plane, int64_t od, int64_t oh,
                           int64_t w0, int64_t n, int64_t step)
{
    T best[POOL_ROW];
    int32_t where[POOL_ROW];
    int64_t in = p->in[0] * p->in[1] * p->in[2];
    for (int64_t i = 0; i < n; i++) {
        best[i] = -(T)INFINITY;
        where[i] = -1;
    }
    for (int64_t t = 0; t < p->kernel[0] * p->kernel[1]; t++) {
        int64_t z = pool_at(p, 0, od, t / p->kernel[1]);
        int64_t h = pool_at(p, 1, oh, t % p->kernel[1]);
        if (z < 0 || z >= p->in[0] || h < 0 || h >= p->in[1]) continue;
        int64_t line = (z * p->in[1] + h) * p->in[2];
        for (int64_t k = 0; k < p->kernel[2]; k++) {
            PoolSpan s = pool_span(p, k, w0, n);
            int64_t from = plane * in + line + s.first;
            int32_t pos = (int32_t)(line + s.first);
            for (int64_t i = s.lo; i < s.hi; i++) {
                T v = LOAD(x, dtype, from + i * step);
                int take = (where[i] < 0) | (v > best[i]) |
                           ((v != v) & (best[i] == best[i]));
                best[i] = take ? v : best[i];
                where[i] = take ? pos + (int32_t)(i * step) : where[i];
            }
        }
    }
    int64_t to = ((plane * p->out[0] + od) * p->out[1] + oh) * p->out[2] + w0;
    for (int64_t i = 0; i < n; i++) STORE(y, dtype, to + i, best[i]);
    for (int64_t i = 0; idx && i < n; i++) idx[to + i] = where[i];
}

/* AveragePool of the same. */
INLINE void N(avgpool_row)(const CpuPool *p, int dtype, const void *x, void *y,
                           int64_t plane, int64_t od, int64_t oh, int64_t w0,
                           int64_t n, int64_t step)
{
    T sum[POOL_ROW];
    int64_t in = p->in[0] * p->in[1] * p->in[2];
    for (int64_t i = 0; i < n; i++) sum[i] = 0;
    for (int64_t t = 0; t < p->kernel[0] * p->kernel[1]; t++) {
        int64_t z = pool_at(p, 0, od, t / p->kernel[1]);
        int64_t h = pool_at(p, 1, oh, t % p->kernel[1]);
        if (z < 0 || z >= p->in[0] || h < 0 || h >= p->in[1]) continue;
        int64_t line = (z * p->in[1] + h) * p->in[2];
        for (int64_t k = 0; k < p->kernel[2]; k++) {
            PoolSpan s = pool_span(p, k, w0, n);
            int64_t from = plane * in + line + s.first;
            for (int64_t i = s.lo; i < s.hi; i++)
                sum[i] += LOAD(x, dtype, from + i * step);
        }
    }
    int64_t to = ((plane * p->out[0] + od) * p->out[1] + oh) * p->out[2] + w0;
    int64_t outer = pool_count(p, 0, od) * pool_count(p, 1, oh);
    for (int64_t i = 0; i < n; i++) {
        int64_t count = outer * pool_count(p, 2, w0 + i);
        STORE(y, dtype, to + i, count ? sum[i] / (T)count : 0);
    }
}

/* Adds each dY to the input it came from; `adds`: windows overlap. */
INLINE void N(maxpool_scatter)(const CpuPool *p, int dtype, const void *dy,
                               const int32_t *idx, void *dx, int64_t plane,
                               int adds)
{
    int64_t in = p->in[0] * p->in[1] * p->in[2];
    int64_t out = p->out[0] * p->out[1] * p->out[2];
    for (int64_t i = 0; i < in; i++) STORE(dx, dtype, plane * in + i, 0);
    for (int64_t o = plane * out; o < (plane + 1) * out; o++) {
        int64_t at = plane * in + idx[o];
        if (idx[o] < 0) continue;
        T g = LOAD(dy, dtype, o);
        STORE(dx, dtype, at, adds ? LOAD(dx, dtype, at) + g : g);
    }
}

/* One row of dY, spread over the inputs of its windows. */
INLINE void N(avgpool_spread)(const CpuPool *p, int dtype, const void *dy,
                              void *dx, int64_t plane, int64_t od, int64_t oh,
                              int64_t w0, int64_t n, int64_t step, int adds)
{
    T g[POOL_ROW];
    int64_t in = p->in[0] * p->in[1] * p->in[2];
    int64_t from = ((plane * p->out[0] + od) * p->out[1] + oh) * p->out[2] + w0;
    int64_t outer = pool_count(p, 0, od) * pool_count(p, 1, oh);
    for (int64_t i = 0; i < n; i++) {
        int64_t count = outer * pool_count(p, 2, w0 + i);
        g[i] = count ? LOAD(dy, dtype, from + i) / (T)count : 0;
    }
    for (int64_t t = 0; t < p->kernel[0] * p->kernel[1]; t++) {
        int64_t z = pool_at(p, 0, od, t / p->kernel[1]);
        int64_t h = pool_at(p, 1, oh, t % p->kernel[1]);
        if (z < 0 || z >= p->in[0] || h < 0 || h >= p->in[1]) continue;
        int64_t line = plane * in + (z * p->in[1] + h) * p->in[2];
        for (int64_t k = 0; k < p->kernel[2]; k++) {
            PoolSpan s = pool_span(p, k, w0, n);
            for (int64_t i = s.lo; i < s.hi; i++) {
                int64_t to = line + s.first + i * step;
                T old = adds ? LOAD(dx, dtype, to) : 0;
                STORE(dx, dtype, to, old + g[i]);
            }
        }
    }
}

/* dX of one input element as a sum over the windows that hold it: for 16-bit
   dX with overlapping windows, where partial sums must not be rounded.      */
INLINE T N(pool_gather)(const CpuPool *p, int dtype, const void *dy,
                        const int32_t *idx, int64_t plane, int64_t pos)
{
    int64_t w = pos % p->in[2], h = pos / p->in[2] % p->in[1];
    int64_t z = pos / p->in[2] / p->in[1], o[3];
    T sum = 0;
    for (int64_t a = p->kernel[0] - 1; a >= 0; a--) {
        if (!pool_window(p, 0, z, a, &o[0])) continue;
        for (int64_t b = p->kernel[1] - 1; b >= 0; b--) {
            if (!pool_window(p, 1, h, b, &o[1])) continue;
            for (int64_t c = p->kernel[2] - 1; c >= 0; c--) {
                if (!pool_window(p, 2, w, c, &o[2])) continue;
                int64_t at = (o[0] * p->out[1] + o[1]) * p->out[2] + o[2] +
                             plane * p->out[0] * p->out[1] * p->out[2];
                T g = LOAD(dy, dtype, at);
                if (idx)
                    sum += idx[at] == pos ? g : 0;
                else
                    sum += g / (T)(pool_count(p, 0, o[0]) *
                                   pool_count(p, 1, o[1]) *
                                   pool_count(p, 2, o[2]));
            }
        }
    }
    return sum;
}

/* ---- planes [lo, hi) ----------------------------------------------------- */

INLINE void N(maxpool_planes)(const PoolRun *r, int dtype, int64_t lo,
                              int64_t hi, int64_t step)
{
    const CpuPool *p = r->p;
    for (int64_t i = lo; i < hi; i++)
        for (int64_t row = 0; row < p->out[0] * p->out[1]; row++)
            for (int64_t w = 0; w < p->out[2]; w += POOL_ROW)
                N(maxpool_row)(p, dtype, r->src, r->dst, r->idx_out, i,
                               row / p->out[1], row % p->out[1], w,
                               min64(POOL_ROW, p->out[2] - w), step);
}

INLINE void N(avgpool_planes)(const PoolRun *r, int dtype, int64_t lo,
                              int64_t hi, int64_t step)
{
    const CpuPool *p = r->p;
    for (int64_t i = lo; i < hi; i++)
        for (int64_t row = 0; row < p->out[0] * p->out[1]; row++)
            for (int64_t w = 0; w < p->out[2]; w += POOL_ROW)
                N(avgpool_row)(p, dtype, r->src, r->dst, i, row / p->out[1],
                               row % p->out[1], w,
                               min64(POOL_ROW, p->out[2] - w), step);
}

INLINE void N(avgpool_spread_plane)(const PoolRun *r, int dtype, int64_t i,
                                    int64_t step, int adds)
{
    const CpuPool *p = r->p;
    int64_t in = p->in[0] * p->in[1] * p->in[2];
    for (int64_t j = 0; j < in; j++) STORE(r->dst, dtype, i * in + j, 0);
    for (int64_t row = 0; row < p->out[0] * p->out[1]; row++)
        for (int64_t w = 0; w < p->out[2]; w += POOL_ROW)
            N(avgpool_spread)(p, dtype, r->src, r->dst, i, row / p->out[1],
                              row % p->out[1], w,
                              min64(POOL_ROW, p->out[2] - w), step, adds);
}

INLINE void N(grad_planes)(const PoolRun *r, int dtype, int64_t lo, int64_t hi,
                           int64_t step)
{
    const CpuPool *p = r->p;
    int64_t in = p->in[0] * p->in[1] * p->in[2];
    int adds = pool_overlaps(p);
    for (int64_t i = lo; i < hi; i++) {
        if (adds && dtype_is16(dtype))
            for (int64_t j = 0; j < in; j++)
                STORE(r->dst, dtype, i * in + j,
                      N(pool_gather)(p, dtype, r->src, r->idx, i, j));
        else if (r->idx)
            N(maxpool_scatter)(p, dtype, r->src, r->idx, r->dst, i, adds);
        else if (adds)
            N(avgpool_spread_plane)(r, dtype, i, step, 1);
        else
            N(avgpool_spread_plane)(r, dtype, i, step, 0);
    }
}
