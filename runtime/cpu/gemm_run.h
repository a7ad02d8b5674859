/* SPDX-License-Identifier: Apache-2.0 */
/* gemm_run.h: one matrix product while it runs, for one ISA level. */
#ifndef AMPC_CPU_GEMM_RUN_H
#define AMPC_CPU_GEMM_RUN_H

#include "runtime/cpu/block.h"
#include "runtime/cpu/gemm.h"
#include "runtime/cpu/pack.h"

typedef struct GemmRun {
    const LibGemm *g;
    int kind; /* kind of tiles; for kinds 1 and 2, k counts pairs of bf16 */
    const void *a, *b;
    const GemmMade *made; /* computes B instead of reading b; else NULL */
    void *c;
    const CpuEpilogue *ep;
    GemmBlocks p;
    int direct; /* C is fp32, and there is no other operation on it */
    int far;    /* direct, and C is larger than a second-level cache */
    float *partial;
    float *packed_a, *packed_b; /* the whole operands, if prepacked */
    char *workers;
} GemmRun;

INLINE int64_t gemm_offset(const LibGemm *g, const int64_t *stride, int64_t b) {
    int64_t off = 0;
    for (int64_t i = g->nbatch_dim - 1; i >= 0; i--) {
        off += b % g->batch_dim[i] * stride[i];
        b /= g->batch_dim[i];
    }
    CONTRACT(b == 0);
    return off;
}

INLINE PackSrc gemm_source(const GemmRun *r, int b, int64_t batch) {
    const LibGemm *g = r->g;
    int64_t off = gemm_offset(g, b ? g->b_bs : g->a_bs, batch);
    int dtype = (int)(b ? g->b_dtype : g->a_dtype);
    PackSrc s = {r->made && b ? NULL : at(b ? r->b : r->a, dtype, off), dtype,
                 b ? g->b_rs : g->a_rs, b ? g->b_cs : g->a_cs};
    return s;
}

/* Hands finished sums to the epilogue, or rounds them to C. */
void ISA(gemm_store)(const GemmRun *r, const float *acc, int64_t ld,
                     int64_t batch, int64_t row, int64_t col, int64_t rows,
                     int64_t cols);

/* gemm_few_isa.c: all of C, which has few rows. */
void ISA(gemm_few)(AmpcPool *pool, const GemmRun *r);

#endif
