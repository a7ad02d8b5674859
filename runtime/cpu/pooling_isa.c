/* SPDX-License-Identifier: Apache-2.0 */
/* pooling_isa.c: MaxPool, AveragePool and their gradients in fp32.

   Forward: for POOL_ROW outputs of one row, each input row of the window is
   copied to a padded fp32 line, and every window element becomes a strided
   vector read of that line.  Gradient: each input row is a padded fp32 line to
   which the window elements that read it are added before it is stored. So
   16-bit sums are never rounded in between, and the order is fixed. A window
   that is the whole input (global pooling) is a sum over contiguous memory.

   Only loops that load or store in their inner loop are instantiated for each
   dtype: global windows and windows of 2 x 2 (pooling_2x2_isa.c). */
#include <math.h>

#include "runtime/cpu/pooling_lanes.h"
#include "runtime/cpu/routines.h"

enum {
    POOL_ROW = 128,   /* outputs at a time                              */
    POOL_LINE = 2048, /* floats of an input line                        */
    POOL_GRAIN = 1 << 15
};

/* Part of a row: outputs [w0, w0 + n), window elements [k0, k0 + k) along the
   row, and the padded line that covers them, from input position `left` on.  */
typedef struct PoolPart {
    int64_t w0, n, k0, k, left, width;
} PoolPart;

/* State that all rows of a call share. */
typedef struct PoolCall {
    PoolRun r;
    int64_t n, k;          /* largest part                                  */
    int counted;           /* true: the row fits one part, and count is set */
    float count[POOL_ROW]; /* number of averaged elements along the row */
} PoolCall;

static PoolPart pool_part(const PoolCall *c, int64_t w0, int64_t k0) {
    const LibPool *p = c->r.p;
    PoolPart q = {.w0 = w0, .k0 = k0};
    q.n = min64(c->n, p->out[2] - w0);
    q.k = min64(c->k, p->kernel[2] - k0);
    q.left = pool_at(p, 2, w0, k0);
    q.width = (q.n - 1) * p->stride[2] + (q.k - 1) * p->dilation[2] + 1;
    return q;
}

static void pool_call(PoolCall *c) {
    const LibPool *p = c->r.p;
    int64_t room = POOL_LINE - 1;
    c->n = min64(min64(POOL_ROW, p->out[2]), 1 + room / 2 / p->stride[2]);
    c->k = 1 + (room - (c->n - 1) * p->stride[2]) / p->dilation[2];
    c->k = min64(c->k, p->kernel[2]);
    c->counted = c->n == p->out[2];
    for (int64_t i = 0; c->counted && i < c->n; i++)
        c->count[i] = (float)pool_count(p, 2, i);
}

/* Lane i = line[i * step] for i < n. */
INLINE vf pool_read(const float *line, int64_t step, int64_t n) {
    if (step == 1) return vload(line);
    if (step == 2) return veven(vload(line), vload(line + VL));
    vf v = {0};
    for (int64_t i = 0; i < min64(n, VL); i++) LANE(v, i) = line[i * step];
    return v;
}

/* line[i * step] += lane i for i < n; other lanes of v are zero. */
INLINE void pool_add(float *line, int64_t step, int64_t n, vf v) {
    vf zero = {0};
    if (step == 1) {
        vstore(line, vadd(vload(line), v));
    } else if (step == 2) {
        vstore(line, vadd(vload(line), vzip_low(v, zero)));
        vstore(line + VL, vadd(vload(line + VL), vzip_high(v, zero)));
    } else {
        for (int64_t i = 0; i < min64(n, VL); i++) line[i * step] += LANE(v, i);
    }
}

INLINE void pool_widen(float *to, const PoolRun *r, int64_t i, int64_t n) {
    widen(to, r->src, r->p->dtype, i, n);
}

OUTLINE void pool_narrow(const PoolRun *r, int64_t i, const float *from,
                         int64_t n) {
    narrow(r->dst, r->p->dtype, i, from, n);
}

/* line[0, width) = input row `from` at positions left .., `pad` outside. */
static void pool_line(const PoolRun *r, float *line, const PoolPart *q,
                      int64_t from, float pad) {
    const LibPool *p = r->p;
    int64_t lo = min64(max64(-q->left, 0), q->width);
    int64_t hi = max64(min64(p->in[2] - q->left, q->width), lo);
    for (int64_t i = 0; i < lo; i++) line[i] = pad;
    pool_widen(line + lo, r, from + q->left + lo, hi - lo);
    for (int64_t i = hi; i < q->width; i++) line[i] = pad;
}

/* ---- forward ------------------------------------------------------------- */

typedef struct PoolAcc {
    float value[POOL_ROW + VL];
    int32_t tap[POOL_ROW + VL];
} PoolAcc;

/* tap: the number of the window row's first element */
INLINE void pool_take_max(const LibPool *p, const PoolPart *q,
                          const float *line, int64_t tap, int64_t step,
                          PoolAcc *acc) {
    for (int64_t i = 0; i < q->n; i += VL) {
        const float *x = line + i * step;
        vf m = vload(acc->value + i);
        vi w = vi_load(acc->tap + i);
        for (int64_t k = 0; k < q->k; k++, x += p->dilation[2])
            vtake(pool_read(x, step, q->n - i),
                  vi_set((int32_t)(tap + q->k0 + k)), &m, &w);
        vstore(acc->value + i, m);
        vi_store(acc->tap + i, w);
    }
}

INLINE void pool_take_sum(const LibPool *p, const PoolPart *q,
                          const float *line, int64_t step, PoolAcc *acc) {
    for (int64_t i = 0; i < q->n; i += VL) {
        const float *x = line + i * step;
        vf sum = vload(acc->value + i);
        for (int64_t k = 0; k < q->k; k++, x += p->dilation[2])
            sum = vadd(sum, pool_read(x, step, q->n - i));
        vstore(acc->value + i, sum);
    }
}

INLINE void pool_take_row(const LibPool *p, const PoolPart *q, int max,
                          const float *line, int64_t tap, int64_t step,
                          PoolAcc *acc) {
    if (max)
        pool_take_max(p, q, line, tap, step, acc);
    else
        pool_take_sum(p, q, line, step, acc);
}

/* MaxPool starts with -infinity and the window's first input, so that ties
   and windows of only -infinity select that input; -1 if the window is
   empty. */
static void pool_begin(const LibPool *p, const PoolPart *q, int max, int64_t od,
                       int64_t oh, PoolAcc *acc) {
    for (int64_t i = 0; i < q->n + VL; i++)
        acc->value[i] = max ? -INFINITY : 0.0f;
    if (!max) return;
    int64_t td = pool_first(p, 0, od, 0), th = pool_first(p, 1, oh, 0);
    int64_t z = pool_at(p, 0, od, td), y = pool_at(p, 1, oh, th);
    int row =
        td < p->kernel[0] && z < p->in[0] && th < p->kernel[1] && y < p->in[1];
    int64_t tw = -1, x = 0;
    for (int64_t i = 0; i < q->n; i++) {
        x += p->stride[2];
        if (tw != 0) { /* later windows begin inside the input */
            tw = pool_first(p, 2, q->w0 + i, 0);
            x = pool_at(p, 2, q->w0 + i, tw);
        }
        int some = row && tw < p->kernel[2] && x < p->in[2];
        int64_t tap = (td * p->kernel[1] + th) * p->kernel[2] + tw;
        acc->tap[i] = some ? (int32_t)tap : -1;
    }
}

/* Adds all input rows of the window of output row (od, oh). */
static void pool_window_rows(const PoolCall *c, int max, int64_t plane,
                             int64_t od, int64_t oh, PoolPart q, PoolAcc *acc) {
    const LibPool *p = c->r.p;
    float line[POOL_LINE + 3 * VL], pad = max ? -INFINITY : 0.0f;
    int64_t in = p->in[0] * p->in[1] * p->in[2], step = p->stride[2];
    for (int64_t td = 0; td < p->kernel[0]; td++) {
        int64_t z = pool_at(p, 0, od, td);
        if (z < 0 || z >= p->in[0]) continue;
        for (int64_t th = 0; th < p->kernel[1]; th++) {
            int64_t y = pool_at(p, 1, oh, th);
            if (y < 0 || y >= p->in[1]) continue;
            int64_t row = plane * in + (z * p->in[1] + y) * p->in[2];
            int64_t tap = (td * p->kernel[1] + th) * p->kernel[2];
            for (int64_t k = 0; k < p->kernel[2]; k += q.k) {
                q = pool_part(c, q.w0, k);
                pool_line(&c->r, line, &q, row, pad);
                if (step == 1)
                    pool_take_row(p, &q, max, line, tap, 1, acc);
                else if (step == 2)
                    pool_take_row(p, &q, max, line, tap, 2, acc);
                else
                    pool_take_row(p, &q, max, line, tap, step, acc);
            }
        }
    }
}

/* value[i] divided by the number of elements that output w0 + i averages. */
static void pool_divide(const PoolCall *c, const PoolPart *q, int64_t od,
                        int64_t oh, float *value) {
    const LibPool *p = c->r.p;
    float outer = (float)(pool_count(p, 0, od) * pool_count(p, 1, oh));
    float part[POOL_ROW];
    const float *count = c->counted ? c->count : part;
    for (int64_t i = 0; !c->counted && i < q->n; i++)
        part[i] = (float)pool_count(p, 2, q->w0 + i);
    for (int64_t i = 0; i < q->n; i += VL) {
        vf n = vmul(vset(outer), vload(count + i)), none = vset(0.0f);
        vstore(value + i,
               vselect(vabove(n, none), vdiv(vload(value + i), n), none));
    }
}

static void pool_forward(const PoolCall *c, int max, int64_t plane) {
    const PoolRun *r = &c->r;
    const LibPool *p = r->p;
    _Alignas(64) PoolAcc acc;
    for (int64_t row = 0; row < p->out[0] * p->out[1]; row++) {
        int64_t od = row / p->out[1], oh = row % p->out[1], n;
        for (int64_t w0 = 0; w0 < p->out[2]; w0 += n) {
            PoolPart q = pool_part(c, w0, 0);
            n = q.n;
            pool_begin(p, &q, max, od, oh, &acc);
            pool_window_rows(c, max, plane, od, oh, q, &acc);
            if (!max) pool_divide(c, &q, od, oh, acc.value);
            int64_t to = (plane * p->out[0] * p->out[1] + row) * p->out[2] + w0;
            pool_narrow(r, to, acc.value, n);
            for (int64_t i = 0; max && r->idx_out && i < n; i += VL)
                pool_put_taps(r, to + i, vi_load(acc.tap + i), n - i);
        }
    }
}

/* ---- gradient ------------------------------------------------------------ */

/* g[i] = the gradient that each output of the row passes to one of its
   inputs. */
static void pool_row_grad(const PoolCall *c, const PoolPart *q, int64_t from,
                          int64_t od, int64_t oh, float *g) {
    pool_widen(g, &c->r, from, q->n);
    if (!c->r.idx) pool_divide(c, q, od, oh, g);
    for (int64_t i = q->n; i < q->n + VL; i++) g[i] = 0.0f;
}

/* Adds g to the padded line at window element k0 + k if it is the output's
   maximum; tap: the number of the window row's first element. */
INLINE void pool_spread(const PoolRun *r, const PoolPart *q, const float *g,
                        int64_t from, int64_t tap, int64_t step, float *line) {
    for (int64_t k = 0; k < q->k; k++) {
        float *at_k = line + k * r->p->dilation[2];
        vi here = vi_set((int32_t)(tap + q->k0 + k));
        for (int64_t i = 0; i < q->n; i += VL) {
            vf v = vload(g + i);
            if (r->idx) {
                vi w = pool_taps(r, from + i, q->n - i);
                v = vkeep(vi_equal(w, here), v);
            }
            pool_add(at_k + i * step, step, q->n - i, v);
        }
    }
}

/* Adds to the line of input row (z, y), which starts at position `left`. */
static void pool_gather_row(const PoolCall *c, int64_t plane, int64_t z,
                            int64_t y, int64_t w0, int64_t left, float *line) {
    const LibPool *p = c->r.p;
    float g[POOL_ROW + 2 * VL];
    int64_t od, oh, step = p->stride[2];
    for (int64_t td = 0; td < p->kernel[0]; td++) {
        if (!pool_window(p, 0, z, td, &od)) continue;
        for (int64_t th = 0; th < p->kernel[1]; th++) {
            if (!pool_window(p, 1, y, th, &oh)) continue;
            int64_t row = (plane * p->out[0] + od) * p->out[1] + oh;
            int64_t from = row * p->out[2] + w0;
            int64_t tap = (td * p->kernel[1] + th) * p->kernel[2];
            PoolPart q = pool_part(c, w0, 0);
            pool_row_grad(c, &q, from, od, oh, g);
            for (int64_t k = 0; k < p->kernel[2]; k += q.k) {
                q = pool_part(c, w0, k);
                float *to = line + q.left - left;
                if (step == 1)
                    pool_spread(&c->r, &q, g, from, tap, 1, to);
                else if (step == 2)
                    pool_spread(&c->r, &q, g, from, tap, 2, to);
                else
                    pool_spread(&c->r, &q, g, from, tap, step, to);
            }
        }
    }
}

/* The line spans the row with both pads; pool_fits checks that it fits. */
static void pool_backward(const PoolCall *c, int64_t plane) {
    const LibPool *p = c->r.p;
    float line[POOL_LINE + 4 * VL];
    int64_t left = -p->pad[2], in = p->in[0] * p->in[1] * p->in[2];
    int64_t width =
        max64(p->in[2], (p->out[2] - 1) * p->stride[2] +
                            (p->kernel[2] - 1) * p->dilation[2] + 1) +
        p->pad[2];
    for (int64_t row = 0; row < p->in[0] * p->in[1]; row++) {
        int64_t n;
        for (int64_t i = 0; i < width; i += VL) vstore(line + i, vset(0.0f));
        for (int64_t w0 = 0; w0 < p->out[2]; w0 += n) {
            n = pool_part(c, w0, 0).n;
            pool_gather_row(c, plane, row / p->in[1], row % p->in[1], w0, left,
                            line);
        }
        pool_narrow(&c->r, plane * in + row * p->in[2], line - left, p->in[2]);
    }
}

/* Rows too wide for a line: one input at a time. */
static void pool_backward_wide(const PoolRun *r, int64_t plane) {
    const LibPool *p = r->p;
    int dtype = p->dtype;
    int64_t in = p->in[0] * p->in[1] * p->in[2], o[3];
    for (int64_t pos = 0; pos < in; pos++) {
        float sum = 0;
        int64_t taps = p->kernel[0] * p->kernel[1];
        for (int64_t t = 0; t < taps; t++) {
            if (!pool_window(p, 0, pos / p->in[2] / p->in[1], t / p->kernel[1],
                             &o[0]) ||
                !pool_window(p, 1, pos / p->in[2] % p->in[1], t % p->kernel[1],
                             &o[1]))
                continue;
            for (int64_t k = 0; k < p->kernel[2]; k++) {
                if (!pool_window(p, 2, pos % p->in[2], k, &o[2])) continue;
                int64_t from = ((plane * p->out[0] + o[0]) * p->out[1] + o[1]) *
                                   p->out[2] +
                               o[2];
                float g = load1(r->src, dtype, from);
                if (r->idx)
                    sum += pool_idx(r, from) == t * p->kernel[2] + k ? g : 0.0f;
                else
                    sum += g / (float)(pool_count(p, 0, o[0]) *
                                       pool_count(p, 1, o[1]) *
                                       pool_count(p, 2, o[2]));
            }
        }
        store1(r->dst, dtype, plane * in + pos, sum);
    }
}

static int pool_fits(const LibPool *p) {
    return p->pad[2] + p->pad_end[2] + p->in[2] + p->kernel[2] +
               p->stride[2] * 2 <
           POOL_LINE;
}

/* ---- global average ------------------------------------------------------ */

static int pool_global(const LibPool *p) {
    for (int d = 0; d < 3; d++)
        if (p->out[d] != 1 || p->kernel[d] != p->in[d] || p->pad[d] ||
            p->pad_end[d] || p->dilation[d] != 1)
            return 0;
    return 1;
}

INLINE void pool_global_avg(const PoolRun *r, int dtype, int64_t plane,
                            int64_t in) {
    vf sum = {0};
    int64_t i = 0, from = plane * in;
    for (; i + VL <= in; i += VL)
        sum = vadd(sum, vload_as(r->src, dtype, from + i));
    if (i < in) sum = vadd(sum, vload_n(r->src, dtype, from + i, in - i));
    float all = 0.0f;
    for (int j = 0; j < VL; j++) all += LANE(sum, j);
    store1(r->dst, dtype, plane, all / (float)in);
}

INLINE void pool_global_grad(const PoolRun *r, int dtype, int64_t plane,
                             int64_t in) {
    vf g = vset(load1(r->src, dtype, plane) / (float)in);
    int64_t i = 0, to = plane * in;
    for (; i + VL <= in; i += VL) vstore_as(r->dst, dtype, to + i, g);
    if (i < in) vstore_n(r->dst, dtype, to + i, g, in - i);
}

/* ---- planes -------------------------------------------------------------- */

static int pool_is_2x2(const LibPool *p) {
    return p->kernel[0] == 1 && p->out[0] == 1 && p->in[0] == 1 &&
           p->pad[0] == 0 && p->kernel[1] == 2 && p->kernel[2] == 2 &&
           p->stride[1] == 2 && p->stride[2] == 2 && p->dilation[1] == 1 &&
           p->dilation[2] == 1 && p->pad[1] == 0 && p->pad[2] == 0 &&
           2 * p->out[1] <= p->in[1] && 2 * p->out[2] <= p->in[2];
}

INLINE void pool_planes_forward(const PoolCall *c, int dtype, int max,
                                int64_t lo, int64_t hi) {
    const LibPool *p = c->r.p;
    int64_t in = p->in[0] * p->in[1] * p->in[2];
    int global = !max && pool_global(p);
    if (!global && pool_is_2x2(p)) {
        ISA(pool_2x2)(&c->r, max, lo, hi);
        return;
    }
    for (int64_t i = lo; i < hi; i++) {
        if (global)
            pool_global_avg(&c->r, dtype, i, in);
        else
            pool_forward(c, max, i);
    }
}

INLINE void pool_planes_backward(const PoolCall *c, int dtype, int64_t lo,
                                 int64_t hi) {
    const LibPool *p = c->r.p;
    int64_t in = p->in[0] * p->in[1] * p->in[2];
    int global = !c->r.idx && pool_global(p), fits = pool_fits(p);
    if (!global && pool_is_2x2(p)) {
        ISA(pool_2x2_grad)(&c->r, lo, hi);
        return;
    }
    for (int64_t i = lo; i < hi; i++) {
        if (global)
            pool_global_grad(&c->r, dtype, i, in);
        else if (!fits)
            pool_backward_wide(&c->r, i);
        else
            pool_backward(c, i);
    }
}

#define POOL_WORK(name, call)                                                  \
    static void name(void *ctx, int64_t lo, int64_t hi, int worker) {          \
        const PoolCall *c = ctx;                                               \
        (void)worker;                                                          \
        if (c->r.p->dtype == AMPC_F32)                                         \
            call(AMPC_F32);                                                    \
        else if (c->r.p->dtype == AMPC_BF16)                                   \
            call(AMPC_BF16);                                                   \
        else                                                                   \
            call(AMPC_F16);                                                    \
    }
#define POOL_MAX(dtype)  pool_planes_forward(c, dtype, 1, lo, hi)
#define POOL_AVG(dtype)  pool_planes_forward(c, dtype, 0, lo, hi)
#define POOL_GRAD(dtype) pool_planes_backward(c, dtype, lo, hi)
POOL_WORK(pool_max_work, POOL_MAX)
POOL_WORK(pool_avg_work, POOL_AVG)
POOL_WORK(pool_grad_work, POOL_GRAD)

static void pool_planes(AmpcPool *pool, const PoolRun *r, PoolFn *fn,
                        PoolFn *fn_f64) {
    const LibPool *p = r->p;
    int64_t window = p->kernel[0] * p->kernel[1] * p->kernel[2];
    int64_t out = p->out[0] * p->out[1] * p->out[2];
    int64_t work = out * window + p->in[0] * p->in[1] * p->in[2] + 1;
    int64_t grain = ceil_div(POOL_GRAIN, work);
    PoolCall c = {.r = *r};
    if (p->dtype == AMPC_F64) {
        pool_run(pool, p->planes, grain, fn_f64, &c.r);
        return;
    }
    pool_call(&c);
    pool_run(pool, p->planes, grain, fn, &c);
}

void ISA(maxpool)(AmpcPool *pool, const LibPool *p, const void *x, void *y,
                  void *idx) {
    PoolRun r = {.p = p, .src = x, .dst = y, .idx_out = idx};
    pool_planes(pool, &r, pool_max_work, pool_max_f64);
}

void ISA(maxpool_grad)(AmpcPool *pool, const LibPool *p, const void *dy,
                       const void *idx, void *dx) {
    PoolRun r = {.p = p, .src = dy, .dst = dx, .idx = idx};
    pool_planes(pool, &r, pool_grad_work, pool_grad_f64);
}

void ISA(avgpool)(AmpcPool *pool, const LibPool *p, const void *x, void *y) {
    PoolRun r = {.p = p, .src = x, .dst = y};
    pool_planes(pool, &r, pool_avg_work, pool_avg_f64);
}

void ISA(avgpool_grad)(AmpcPool *pool, const LibPool *p, const void *dy,
                       void *dx) {
    PoolRun r = {.p = p, .src = dy, .dst = dx};
    pool_planes(pool, &r, pool_grad_work, pool_grad_f64);
}
