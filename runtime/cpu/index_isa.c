/* SPDX-License-Identifier: Apache-2.0 */
/* index_isa.c: scatter-add (the gradient of Gather), argmax, cumulative sums
   and copies. */
#include <string.h>

#include "runtime/cpu/block.h"
#include "runtime/cpu/routines.h"

/* ---- scatter-add --------------------------------------------------------- */

/* Unless rows are short, the index is inverted first: the positions whose index
   is t are order[start[t]] ... order[start[t + 1] - 1], ascending.  Then each
   row is an independent sum. */
typedef struct ScatterRun {
    const LibScatterAdd *s;
    const void *src;
    void *out;
    const int64_t *start, *order;
    const void *idx; /* short rows are summed here, in the order of the index */
    float *sum;
} ScatterRun;

enum { SCATTER_COLS = 256, SCATTER_GRAIN = 1 << 14 };

/* The row that position i selects, or -1. */
INLINE int64_t scatter_row(const LibScatterAdd *s, const void *idx, int64_t i) {
    int64_t t = integer_at(idx, (int)s->idx_dtype, i);
    if (t < 0 && s->idx_dtype != AMPC_U64) t += s->rows;
    return t < 0 || t >= s->rows ? -1 : t;
}

static void scatter_invert(const LibScatterAdd *s, const void *idx,
                           int64_t *start, int64_t *order) {
    for (int64_t t = 0; t <= s->rows; t++) start[t] = 0;
    for (int64_t i = 0; i < s->nidx; i++) {
        int64_t t = scatter_row(s, idx, i);
        if (t >= 0) start[t + 1]++;
    }
    for (int64_t t = 0; t < s->rows; t++) start[t + 1] += start[t];
    for (int64_t i = s->nidx - 1; i >= 0; i--) { /* fills from the ends */
        int64_t t = scatter_row(s, idx, i);
        if (t >= 0) order[--start[t + 1]] = i;
    }
    /* start[t + 1] is now the beginning of row t: shifts the array down and
       sets the end. */
    int64_t used = 0;
    for (int64_t i = 0; i < s->nidx; i++) used += scatter_row(s, idx, i) >= 0;
    for (int64_t t = 0; t < s->rows; t++) start[t] = start[t + 1];
    start[s->rows] = used;
}

INLINE void scatter_add_row(float *sum, const void *src, int dtype,
                            int64_t from, int64_t n) {
    int64_t j = 0;
    for (; j + VL <= n; j += VL)
        vstore(sum + j, vadd(vload(sum + j), vload_as(src, dtype, from + j)));
    for (; j < n; j++) sum[j] += load1(src, dtype, from + j);
}

/* Rows [lo, hi) of outer * rows, each shorter than SCATTER_FEW: whoever has
   them looks through all positions, in order.                               */
INLINE void scatter_few(const ScatterRun *r, int src, int idx, int64_t lo,
                        int64_t hi) {
    const LibScatterAdd *s = r->s;
    LibScatterAdd as = {.rows = s->rows, .idx_dtype = idx};
    float *sum = r->sum;
    for (int64_t i = lo * s->inner; i < hi * s->inner; i++) sum[i] = 0.0f;
    for (int64_t o = lo / s->rows; o * s->rows < hi; o++) {
        int64_t first = max64(lo - o * s->rows, 0);
        int64_t end = min64(hi - o * s->rows, s->rows);
        for (int64_t i = 0; i < s->nidx; i++) {
            int64_t t = scatter_row(&as, r->idx, i);
            if (t < first || t >= end) continue;
            float *to = sum + (o * s->rows + t) * s->inner;
            int64_t from = (o * s->nidx + i) * s->inner;
            if (s->inner >= VL)
                scatter_add_row(to, r->src, src, from, s->inner);
            else
                for (int64_t j = 0; j < s->inner; j++)
                    to[j] += load1(r->src, src, from + j);
        }
    }
    if (s->out_dtype != AMPC_F32)
        narrow(r->out, (int)s->out_dtype, lo * s->inner, sum + lo * s->inner,
               (hi - lo) * s->inner);
}

static void scatter_work_few(void *ctx, int64_t lo, int64_t hi, int worker) {
    const ScatterRun *r = ctx;
    (void)worker;
    if (r->s->src_dtype == AMPC_F32 && r->s->idx_dtype == AMPC_I64)
        scatter_few(r, AMPC_F32, AMPC_I64, lo, hi);
    else if (r->s->src_dtype == AMPC_BF16 && r->s->idx_dtype == AMPC_I64)
        scatter_few(r, AMPC_BF16, AMPC_I64, lo, hi);
    else
        scatter_few(r, (int)r->s->src_dtype, (int)r->s->idx_dtype, lo, hi);
}

/* Rows [lo, hi) of outer * rows. */
static void scatter_work(void *ctx, int64_t lo, int64_t hi, int worker) {
    const ScatterRun *r = ctx;
    const LibScatterAdd *s = r->s;
    float sum[SCATTER_COLS];
    (void)worker;
    for (int64_t i = lo; i < hi; i++) {
        int64_t o = i / s->rows, t = i % s->rows;
        for (int64_t c = 0; c < s->inner; c += SCATTER_COLS) {
            int64_t n = min64(SCATTER_COLS, s->inner - c);
            for (int64_t j = 0; j < n; j++) sum[j] = 0.0f;
            for (int64_t q = r->start[t]; q < r->start[t + 1]; q++) {
                int64_t at = (o * s->nidx + r->order[q]) * s->inner + c;
                if (s->src_dtype == AMPC_F32)
                    scatter_add_row(sum, r->src, AMPC_F32, at, n);
                else if (s->src_dtype == AMPC_BF16)
                    scatter_add_row(sum, r->src, AMPC_BF16, at, n);
                else
                    scatter_add_row(sum, r->src, AMPC_F16, at, n);
            }
            narrow(r->out, (int)s->out_dtype, i * s->inner + c, sum, n);
        }
    }
}

/* f64 operands, summed in f64. */
static void scatter_work_f64(void *ctx, int64_t lo, int64_t hi, int worker) {
    const ScatterRun *r = ctx;
    const LibScatterAdd *s = r->s;
    (void)worker;
    for (int64_t i = lo; i < hi; i++) {
        int64_t o = i / s->rows, t = i % s->rows;
        double *to = (double *)r->out + i * s->inner;
        for (int64_t j = 0; j < s->inner; j++) to[j] = 0.0;
        for (int64_t q = r->start[t]; q < r->start[t + 1]; q++) {
            const double *from =
                (const double *)r->src + (o * s->nidx + r->order[q]) * s->inner;
            for (int64_t j = 0; j < s->inner; j++) to[j] += from[j];
        }
    }
}

void ISA(scatter_add)(AmpcPool *pool, const LibScatterAdd *s, const void *src,
                      const void *idx, void *out, void *scratch) {
    int64_t rows = s->outer * s->rows;
    int64_t per_row = s->inner * (1 + s->nidx / max64(1, s->rows)) + 4;
    int64_t grain = ceil_div(SCATTER_GRAIN, per_row);
    if (scatter_is_few(s)) {
        ScatterRun r = {.s = s, .src = src, .out = out, .idx = idx};
        r.sum = s->out_dtype == AMPC_F32 ? out : scratch;
        int64_t cuts = pool_threads(pool) * (s->inner < VL ? 1 : 4);
        pool_run(pool, rows, max64(grain, ceil_div(rows, cuts)),
                 scatter_work_few, &r);
        return;
    }
    int64_t *start = scratch, *order = start + s->rows + 1;
    ScatterRun r = {
        .s = s, .src = src, .out = out, .start = start, .order = order};
    scatter_invert(s, idx, start, order);
    pool_run(pool, rows, grain,
             s->src_dtype == AMPC_F64 ? scatter_work_f64 : scatter_work, &r);
}

/* ---- argmax -------------------------------------------------------------- */

typedef struct ArgmaxRun {
    const LibArgmax *a;
    const void *x;
    int64_t *out;
} ArgmaxRun;

enum { ARGMAX_GRAIN = 1 << 14 };

INLINE double argmax_load(const void *x, int dtype, int64_t i) {
    return dtype == AMPC_F64 ? ((const double *)x)[i] : load1(x, dtype, i);
}

/* NaN counts as the largest value, as in NumPy. */
INLINE void argmax_as(const ArgmaxRun *r, int dtype, int64_t lo, int64_t hi) {
    const LibArgmax *a = r->a;
    for (int64_t i = lo; i < hi; i++) {
        int64_t from = i / a->inner * a->axis * a->inner + i % a->inner;
        int64_t best = 0;
        double top = argmax_load(r->x, dtype, from);
        for (int64_t k = 1; k < a->axis && top == top; k++) {
            double v = argmax_load(r->x, dtype, from + k * a->inner);
            if (v > top || v != v) {
                top = v;
                best = k;
            }
        }
        r->out[i] = best;
    }
}

/* Integers as i64 of the same order. */
INLINE int64_t argmax_int(const void *x, int dtype, int64_t i) {
    int64_t v = integer_at(x, dtype, i);
    return dtype == AMPC_U64 ? v ^ INT64_MIN : v;
}

static void argmax_of_ints(const ArgmaxRun *r, int64_t lo, int64_t hi) {
    const LibArgmax *a = r->a;
    for (int64_t i = lo; i < hi; i++) {
        int64_t from = i / a->inner * a->axis * a->inner + i % a->inner;
        int64_t best = 0, top = argmax_int(r->x, (int)a->dtype, from);
        for (int64_t k = 1; k < a->axis; k++) {
            int64_t v = argmax_int(r->x, (int)a->dtype, from + k * a->inner);
            if (v > top) top = v, best = k;
        }
        r->out[i] = best;
    }
}

static void argmax_work(void *ctx, int64_t lo, int64_t hi, int worker) {
    const ArgmaxRun *r = ctx;
    (void)worker;
    switch (r->a->dtype) {
    case AMPC_F32: argmax_as(r, AMPC_F32, lo, hi); break;
    case AMPC_BF16: argmax_as(r, AMPC_BF16, lo, hi); break;
    case AMPC_F16: argmax_as(r, AMPC_F16, lo, hi); break;
    case AMPC_F64: argmax_as(r, AMPC_F64, lo, hi); break;
    default: argmax_of_ints(r, lo, hi); break;
    }
}

void ISA(argmax)(AmpcPool *pool, const LibArgmax *a, const void *x, void *out) {
    ArgmaxRun r = {a, x, out};
    if (a->axis <= 0) return;
    pool_run(pool, a->outer * a->inner, ceil_div(ARGMAX_GRAIN, a->axis),
             argmax_work, &r);
}

/* ---- cumulative sum ------------------------------------------------------ */

typedef struct CumsumRun {
    const LibCumsum *c;
    const void *x;
    void *y;
} CumsumRun;

enum { CUMSUM_COLS = 256, CUMSUM_GRAIN = 1 << 14 };

/* Element k in the order of summation, as a position along the axis. */
INLINE int64_t cumsum_at(const LibCumsum *c, int64_t k) {
    return c->reverse ? c->axis - 1 - k : k;
}

/* Adjacent blocks of columns, in fp32. */
INLINE void cumsum_as(const CumsumRun *r, int dtype, int64_t lo, int64_t hi) {
    const LibCumsum *c = r->c;
    int64_t blocks = ceil_div(c->inner, CUMSUM_COLS);
    float sum[CUMSUM_COLS];
    for (int64_t i = lo; i < hi; i++) {
        int64_t col = i % blocks * CUMSUM_COLS;
        int64_t n = min64(CUMSUM_COLS, c->inner - col);
        for (int64_t j = 0; j < n; j++) sum[j] = 0.0f;
        for (int64_t k = 0; k < c->axis; k++) {
            int64_t line = i / blocks * c->axis + cumsum_at(c, k);
            int64_t at = line * c->inner + col;
            if (c->exclusive) narrow(r->y, (int)c->out_dtype, at, sum, n);
            scatter_add_row(sum, r->x, dtype, at, n);
            if (!c->exclusive) narrow(r->y, (int)c->out_dtype, at, sum, n);
        }
    }
}

/* Columns [lo, hi), one by one, in type T; `element` and `put` are
   expressions over the position `at` and, for `put`, over `sum`. */
#define CUMSUM_ONE_BY_ONE(T, element, put)                                     \
    for (int64_t i = lo; i < hi; i++) {                                        \
        int64_t first = i / c->inner * c->axis * c->inner + i % c->inner;      \
        T all = 0;                                                             \
        for (int64_t k = 0; k < c->axis; k++) {                                \
            int64_t at = first + cumsum_at(c, k) * c->inner;                   \
            T before = all;                                                    \
            all += element;                                                    \
            T sum = c->exclusive ? before : all;                               \
            put;                                                               \
        }                                                                      \
    }

/* Fewer adjacent scans than lanes: one scan at a time. */
INLINE void cumsum_few(const CumsumRun *r, int dtype, int out, int64_t lo,
                       int64_t hi) {
    const LibCumsum *c = r->c;
    CUMSUM_ONE_BY_ONE(float, load1(r->x, dtype, at), store1(r->y, out, at, sum))
}

static void cumsum_few_work(void *ctx, int64_t lo, int64_t hi, int worker) {
    const CumsumRun *r = ctx;
    (void)worker;
    if (r->c->dtype == AMPC_F32 && r->c->out_dtype == AMPC_F32)
        cumsum_few(r, AMPC_F32, AMPC_F32, lo, hi);
    else
        cumsum_few(r, (int)r->c->dtype, (int)r->c->out_dtype, lo, hi);
}

static void cumsum_work(void *ctx, int64_t lo, int64_t hi, int worker) {
    const CumsumRun *r = ctx;
    (void)worker;
    switch (r->c->dtype) {
    case AMPC_F32: cumsum_as(r, AMPC_F32, lo, hi); break;
    case AMPC_BF16: cumsum_as(r, AMPC_BF16, lo, hi); break;
    default: cumsum_as(r, AMPC_F16, lo, hi); break;
    }
}

/* The low bytes. */
INLINE void integer_put(void *y, int dtype, int64_t i, uint64_t v) {
    switch (dtype) {
    case AMPC_U8:
    case AMPC_I8: ((uint8_t *)y)[i] = (uint8_t)v; break;
    case AMPC_U16:
    case AMPC_I16: ((uint16_t *)y)[i] = (uint16_t)v; break;
    case AMPC_U32:
    case AMPC_I32: ((uint32_t *)y)[i] = (uint32_t)v; break;
    default: ((uint64_t *)y)[i] = v; break;
    }
}

static void cumsum_f64(void *ctx, int64_t lo, int64_t hi, int worker) {
    const CumsumRun *r = ctx;
    const LibCumsum *c = r->c;
    const double *x = r->x;
    double *y = r->y;
    (void)worker;
    CUMSUM_ONE_BY_ONE(double, x[at], y[at] = sum)
}

static void cumsum_of_ints(void *ctx, int64_t lo, int64_t hi, int worker) {
    const CumsumRun *r = ctx;
    const LibCumsum *c = r->c;
    (void)worker;
    CUMSUM_ONE_BY_ONE(uint64_t, (uint64_t)integer_at(r->x, (int)c->dtype, at),
                      integer_put(r->y, (int)c->dtype, at, sum))
}

void ISA(cumsum)(AmpcPool *pool, const LibCumsum *c, const void *x, void *y) {
    CumsumRun r = {c, x, y};
    int floats =
        c->dtype == AMPC_F16 || c->dtype == AMPC_BF16 || c->dtype == AMPC_F32;
    int wide = floats && c->inner >= VL;
    int64_t cols = wide ? ceil_div(c->inner, CUMSUM_COLS) : c->inner;
    int64_t each = c->axis * (wide ? min64(CUMSUM_COLS, c->inner) : 1) + 1;
    pool_run(pool, c->outer * cols, ceil_div(CUMSUM_GRAIN, each),
             wide                   ? cumsum_work
             : floats               ? cumsum_few_work
             : c->dtype == AMPC_F64 ? cumsum_f64
                                    : cumsum_of_ints,
             &r);
}

/* ---- copy ---------------------------------------------------------------- */

void ISA(copy)(AmpcPool *pool, const LibCopy *c, const void *src, void *dst) {
    (void)pool;
    if (c->bytes > 0) memmove(dst, src, (size_t)c->bytes);
}
