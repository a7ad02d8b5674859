/* SPDX-License-Identifier: Apache-2.0 */
/* chlast_run.h: the convolutions of chlast.h, for one ISA level. */
#ifndef AMPC_CPU_CHLAST_RUN_H
#define AMPC_CPU_CHLAST_RUN_H

#include "runtime/cpu/chlast.h"
#include "runtime/cpu/simd.h"

/* src: X, or dY for dgrad; other: W, or dY for wgrad. */
typedef struct ChlastCall {
    const void *src, *other;
    void *out;
    int src_dtype, other_dtype, out_dtype;
    const CpuEpilogue *ep;
    CpuKept *kept; /* packed weights; NULL: no kept copy; without memory: in
                      scratch memory */
    int64_t first, images; /* images of this call; the weight gradient takes
                              all */
} ChlastCall;

INLINE void *kept_memory(const CpuKept *k, void *scratch) {
    return k && k->memory ? k->memory : scratch;
}

/* X of images image0 .. image0 + images - 1, staged as planned. */
void ISA(chlast_stage)(AmpcPool *pool, const ChlastPlan *plan,
                       const ChlastCall *call, int64_t image0, int64_t images,
                       float *stage);

/* 0: another kind of convolution, nothing was done. */
int ISA(chlast_conv)(AmpcPool *pool, const LibConv *conv, int dgrad, int kind,
                     const ChlastCall *call, void *scratch);
int ISA(chlast_wgrad)(AmpcPool *pool, const LibConv *conv, int kind,
                      const ChlastCall *call, void *scratch);

#endif
