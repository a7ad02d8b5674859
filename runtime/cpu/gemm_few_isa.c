/* SPDX-License-Identifier: Apache-2.0 */
/* gemm_few_isa.c: products with few rows of C.

   Nothing is packed. B is read once, in place, and widened to fp32. An item
   is some columns of one matrix. */
#define SIMD_WANTS_DOT
#include "runtime/cpu/gemm_run.h"

#define UNROLL SIMD_UNROLL(8)

enum {
    FEW_FLOATS = 384 * BLOCK_FEW, /* columns of an item are multiples of this
                                     `acc` holds them */
    FEW_UNIT = 64,                /* multiply-adds that are worth a hand-over */
    FEW_SUMS = 8,       /* vectors of sums, or rows of B, at a time          */
    FEW_GRAIN = 1 << 16 /* multiply-adds worth a hand-over                   */
};

typedef struct FewRun {
    GemmRun r;
    int64_t cols, nblocks;
} FewRun;

/* Loads elements i .. of a row or column in which n elements are left; 2 VL
   elements if they are pairs. */
INLINE vf few_load(const void *p, int dtype, int pairs, int64_t i, int64_t n) {
#if HAS_DOT
    if (pairs) return vload_pairs(at(p, dtype, i), n);
#endif
    (void)pairs;
    return n < VL ? vload_n(p, dtype, i, n) : vload_as(p, dtype, i);
}

INLINE vf few_fma(vf x, vf y, vf sum, int pairs) {
#if HAS_DOT
    if (pairs) return vdot(x, y, sum);
#endif
    (void)pairs;
    return vfma(x, y, sum);
}

/* Rows of A times columns of B, both contiguous, summed by lanes. */
INLINE void few_dots(const LibGemm *g, const void *a, const void *b, int dtype,
                     int pairs, float *acc, int64_t ld, int rows, int cols) {
    vf sum[FEW_SUMS] = {{0}}, x[4];
    for (int64_t k = 0; k < g->k; k += pairs ? 2 * VL : VL) {
        int64_t n = g->k - k;
        UNROLL for (int i = 0; i < rows; i++) x[i] =
            few_load(a, dtype, pairs, i * g->a_rs + k, n);
        UNROLL for (int j = 0; j < cols; j++) {
            vf y = few_load(b, dtype, pairs, j * g->b_cs + k, n);
            UNROLL for (int i = 0; i < rows; i++) sum[i * cols + j] =
                few_fma(x[i], y, sum[i * cols + j], pairs);
        }
    }
    UNROLL for (int i = 0; i < rows; i++) UNROLL for (int j = 0; j < cols; j++)
        acc[i * ld + j] = vsum(sum[i * cols + j]);
}

INLINE void few_along_k(const LibGemm *g, PackSrc a, PackSrc b, int dtype,
                        int pairs, float *acc, int64_t ld, int64_t n) {
    for (int64_t j = 0; j < n;) {
        int wide = n - j >= FEW_SUMS ? FEW_SUMS : 1;
        for (int64_t i = 0; i < g->m;) {
            const void *x = at(a.p, dtype, i * g->a_rs);
            float *to = acc + i * ld + j;
            int rows = g->m - i >= 4 ? 4 : g->m - i >= 2 ? 2 : 1;
            for (int c = 0; c<wide; c += wide> 1 ? FEW_SUMS / rows : 1) {
                const void *y = at(b.p, dtype, (j + c) * g->b_cs);
                if (rows == 4 && wide > 1)
                    few_dots(g, x, y, dtype, pairs, to + c, ld, 4, 2);
                else if (rows == 4)
                    few_dots(g, x, y, dtype, pairs, to + c, ld, 4, 1);
                else if (rows == 2 && wide > 1)
                    few_dots(g, x, y, dtype, pairs, to + c, ld, 2, 4);
                else if (rows == 2)
                    few_dots(g, x, y, dtype, pairs, to + c, ld, 2, 1);
                else if (wide > 1)
                    few_dots(g, x, y, dtype, pairs, to + c, ld, 1, 8);
                else
                    few_dots(g, x, y, dtype, pairs, to + c, ld, 1, 1);
            }
            i += rows;
        }
        j += wide;
    }
}

/* Multiplies some contiguous rows of B by the elements of A. */
INLINE void few_rows_of_b(const LibGemm *g, PackSrc a, PackSrc b, int dtype,
                          float *acc, int64_t ld, int64_t n, int64_t k,
                          int depth) {
    float x[BLOCK_FEW][FEW_SUMS];
    for (int64_t i = 0; i < g->m; i++)
        for (int t = 0; t < depth; t++)
            x[i][t] = load1(a.p, dtype, i * g->a_rs + k + t);
    for (int64_t j = 0; j < n; j += VL) {
        vf y[FEW_SUMS];
        UNROLL for (int t = 0; t < depth; t++) y[t] =
            n - j < VL ? vload_n(b.p, dtype, (k + t) * g->b_rs + j, n - j)
                       : vload_as(b.p, dtype, (k + t) * g->b_rs + j);
        for (int64_t i = 0; i < g->m; i++) {
            vf sum = vload(acc + i * ld + j);
            UNROLL for (int t = 0; t < depth; t++) sum =
                vfma(vset(x[i][t]), y[t], sum);
            vstore(acc + i * ld + j, sum);
        }
    }
}

/* Uses the slices of k that panels would have; `slice` is room for the sums
   of one more slice. */
INLINE void few_along_n(const GemmRun *r, PackSrc a, PackSrc b, int dtype,
                        float *acc, int64_t ld, int64_t n) {
    const LibGemm *g = r->g;
    int64_t size = g->m * ld, each = r->p.nsplit > 1 ? r->p.ksplit : g->k;
    float *slice = acc;
    memset(acc, 0, (size_t)size * sizeof *acc);
    for (int64_t k = 0; k < g->k; slice = acc + size) {
        int64_t end = min64(k + each, g->k);
        if (slice != acc) memset(slice, 0, (size_t)size * sizeof *slice);
        for (; k + FEW_SUMS <= end; k += FEW_SUMS)
            few_rows_of_b(g, a, b, dtype, slice, ld, n, k, FEW_SUMS);
        for (; k < end; k++) few_rows_of_b(g, a, b, dtype, slice, ld, n, k, 1);
        for (int64_t i = 0; slice != acc && i < size; i++) acc[i] += slice[i];
    }
}

INLINE void few_product(const GemmRun *r, PackSrc a, PackSrc b, int dtype,
                        float *acc, int64_t ld, int64_t n) {
    if (r->g->b_rs != 1)
        few_along_n(r, a, b, dtype, acc, ld, n);
    else if (HAS_DOT && dtype == AMPC_BF16 && r->kind == TILE_PAIRS)
        few_along_k(r->g, a, b, dtype, 1, acc, ld, n);
    else
        few_along_k(r->g, a, b, dtype, 0, acc, ld, n);
}

static void few_work(void *ctx, int64_t lo, int64_t hi, int worker) {
    const FewRun *f = ctx;
    const GemmRun *r = &f->r;
    const LibGemm *g = r->g;
    float *acc = (float *)(void *)(r->workers + (size_t)worker * r->p.acc);
    for (int64_t i = lo; i < hi; i++) {
        int64_t batch = i / f->nblocks, n0 = i % f->nblocks * f->cols;
        int64_t n = min64(f->cols, g->n - n0), ld = round_up(n, VL);
        PackSrc a = gemm_source(r, 0, batch), b = gemm_source(r, 1, batch);
        b.p = at(b.p, b.dtype, n0 * g->b_cs);
        switch (b.dtype) {
        case AMPC_F32: few_product(r, a, b, AMPC_F32, acc, ld, n); break;
        case AMPC_BF16: few_product(r, a, b, AMPC_BF16, acc, ld, n); break;
        default: few_product(r, a, b, AMPC_F16, acc, ld, n); break;
        }
        ISA(gemm_store)(r, acc, ld, batch, 0, n0, g->m, n);
    }
}

void ISA(gemm_few)(AmpcPool *pool, const GemmRun *r) {
    const LibGemm *g = r->g;
    int64_t rows = r->p.nsplit > 1 ? 2 * g->m : g->m;
    int64_t room = FEW_FLOATS / rows / FEW_UNIT * FEW_UNIT;
    int64_t share = ceil_div(g->n, 2 * pool_threads(pool));
    FewRun f = {.r = *r, .cols = min64(room, round_up(share, FEW_UNIT))};
    f.nblocks = ceil_div(g->n, f.cols);
    int64_t work = g->m * min64(g->n, f.cols) * (g->k + 16);
    pool_run(pool, r->p.batch * f.nblocks, ceil_div(FEW_GRAIN, work + 1),
             few_work, &f);
}
