/* SPDX-License-Identifier: Apache-2.0 */
/* gemm.h: matrix products whose right operand is computed while it is
   packed. */
#ifndef AMPC_CPU_GEMM_H
#define AMPC_CPU_GEMM_H

#include "runtime/cpu/simd.h"

/* Computes B of a product: packs rows k0 .. k0 + k - 1 (elements) of columns n0
   .. n0 + n - 1 into panels of `kind`, from row `to` of k_all on;
   `to` and k_all are counted in the units of panels. */
typedef struct GemmMade GemmMade;
struct GemmMade {
    void (*pack)(const GemmMade *b, int kind, float *dst, int64_t n0, int64_t n,
                 int64_t k0, int64_t k, int64_t to, int64_t k_all);
};

/* g: the dtype of its B is A's; strides of B are ignored. */
void ISA(gemm_made)(int isa, AmpcPool *pool, const LibGemm *g, const void *a,
                    const GemmMade *b, void *c, const CpuEpilogue *ep,
                    void *scratch);

#endif
