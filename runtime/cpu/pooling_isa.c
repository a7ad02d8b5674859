/* pooling_isa.c: MaxPool, AveragePool and their gradients, plane by plane. */
#include <math.h>

#include "runtime/cpu/lib.h"

enum { POOL_ROW = 128, POOL_GRAIN = 1 << 15 };

typedef struct PoolRun {
    const CpuPool *p;
    const void *src;
    void *dst;
    const int32_t *idx; /* gradient of MaxPool                              */
    int32_t *idx_out;   /* MaxPool                                          */
} PoolRun;

/* Input position of window element t of output o along dimension d. */
INLINE int64_t pool_at(const CpuPool *p, int d, int64_t o, int64_t t)
{
    return o * p->stride[d] + t * p->dilation[d] - p->pad[d];
}

/* The outputs w0 + i, lo <= i < hi, whose window element k is an input; that
   of i is at first + i * stride.                                            */
typedef struct PoolSpan {
    int64_t first, lo, hi;
} PoolSpan;

INLINE PoolSpan pool_span(const CpuPool *p, int64_t k, int64_t w0, int64_t n)
{
    PoolSpan s = {pool_at(p, 2, w0, k), 0, 0};
    int64_t step = p->stride[2];
    if (s.first < 0) s.lo = min64(n, ceil_div(-s.first, step));
    if (s.first < p->in[2]) s.hi = min64(n, ceil_div(p->in[2] - s.first, step));
    return s;
}

/* Elements that output o averages along dimension d. */
INLINE int64_t pool_count(const CpuPool *p, int d, int64_t o)
{
    int64_t from = 0, to = p->in[d];
    if (p->count_include_pad) {
        from = -p->pad[d];
        to += p->pad_end[d];
    }
    int64_t low = pool_at(p, d, o, 0), step = p->dilation[d];
    int64_t t0 = low >= from ? 0 : ceil_div(from - low, step);
    int64_t t1 = low >= to ? 0 : ceil_div(to - low, step);
    return max64(0, min64(t1, p->kernel[d]) - t0);
}

/* The output whose window element t is input i, if there is one. */
INLINE int pool_window(const CpuPool *p, int d, int64_t i, int64_t t,
                       int64_t *o)
{
    int64_t at = i + p->pad[d] - t * p->dilation[d];
    *o = at / p->stride[d];
    return at >= 0 && at % p->stride[d] == 0 && *o < p->out[d];
}

INLINE int pool_overlaps(const CpuPool *p)
{
    for (int d = 0; d < 3; d++)
        if ((p->kernel[d] - 1) * p->dilation[d] + 1 > p->stride[d] &&
            p->out[d] > 1)
            return 1;
    return 0;
}

#define T float
#define N(name) name##_f32
#define LOAD(p, dtype, i) load1(p, dtype, i)
#define STORE(p, dtype, i, x) store1(p, dtype, i, x)
#include "runtime/cpu/pooling_rows.h"
#undef T
#undef N
#undef LOAD
#undef STORE

#define T double
#define N(name) name##_f64
#define LOAD(p, dtype, i) ((void)(dtype), ((const double *)(p))[i])
#define STORE(p, dtype, i, x) ((void)(dtype), ((double *)(p))[i] = (x))
#include "runtime/cpu/pooling_rows.h"

/* fn(run, lo, hi, ...) with dtype and the common strides as constants. */
#define POOL_STEPS(fn, r, dtype, lo, hi)                                      \
    do {                                                                      \
        if ((r)->p->stride[2] == 1)                                           \
            fn(r, dtype, lo, hi, 1);                                          \
        else if ((r)->p->stride[2] == 2)                                      \
            fn(r, dtype, lo, hi, 2);                                          \
        else                                                                  \
            fn(r, dtype, lo, hi, (r)->p->stride[2]);                          \
    } while (0)

#define POOL_WORK(name, planes)                                               \
    static void name(void *ctx, int64_t lo, int64_t hi, int worker)           \
    {                                                                         \
        const PoolRun *r = ctx;                                               \
        (void)worker;                                                         \
        if (r->p->dtype == AMPC_F32)                                          \
            POOL_STEPS(planes##_f32, r, AMPC_F32, lo, hi);                    \
        else if (r->p->dtype == AMPC_BF16)                                    \
            POOL_STEPS(planes##_f32, r, AMPC_BF16, lo, hi);                   \
        else if (r->p->dtype == AMPC_F16)                                     \
            POOL_STEPS(planes##_f32, r, AMPC_F16, lo, hi);                    \
        else                                                                  \
            POOL_STEPS(planes##_f64, r, AMPC_F64, lo, hi);                    \
    }

POOL_WORK(maxpool_work, maxpool_planes)
POOL_WORK(avgpool_work, avgpool_planes)
POOL_WORK(grad_work, grad_planes)

static void pool_planes(AmpcPool *pool, const CpuPool *p, PoolFn *fn,
                        PoolRun *r)
{
    int64_t window = p->kernel[0] * p->kernel[1] * p->kernel[2];
    int64_t out = p->out[0] * p->out[1] * p->out[2];
    int64_t work = out * window + p->in[0] * p->in[1] * p->in[2] + 1;
    pool_run(pool, p->planes, ceil_div(POOL_GRAIN, work), fn, r);
}

void ISA(maxpool)(AmpcPool *pool, const CpuPool *p, const void *x, void *y,
                  int32_t *idx)
{
    PoolRun r = {.p = p, .src = x, .dst = y, .idx_out = idx};
    pool_planes(pool, p, maxpool_work, &r);
}

void ISA(maxpool_grad)(AmpcPool *pool, const CpuPool *p, const void *dy,
                       const int32_t *idx, void *dx)
{
    PoolRun r = {.p = p, .src = dy, .dst = dx, .idx = idx};
    pool_planes(pool, p, grad_work, &r);
}

void ISA(avgpool)(AmpcPool *pool, const CpuPool *p, const void *x, void *y)
{
    PoolRun r = {.p = p, .src = x, .dst = y};
    pool_planes(pool, p, avgpool_work, &r);
}

void ISA(avgpool_grad)(AmpcPool *pool, const CpuPool *p, const void *dy,
                       void *dx)
{
    PoolRun r = {.p = p, .src = dy, .dst = dx};
    pool_planes(pool, p, grad_work, &r);
}
