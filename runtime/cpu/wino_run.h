/* SPDX-License-Identifier: Apache-2.0 */
/* wino_run.h: the convolutions of wino.h, for one ISA level. */
#ifndef AMPC_CPU_WINO_RUN_H
#define AMPC_CPU_WINO_RUN_H

#include "runtime/cpu/chlast_run.h"
#include "runtime/cpu/wino.h"

/* 0: another kind of convolution, nothing was done. */
int ISA(wino_conv)(AmpcPool *pool, const LibConv *conv, int dgrad, int kind,
                   const ChlastCall *call, void *scratch);
int ISA(wino_wgrad)(AmpcPool *pool, const LibConv *conv, int kind,
                    const ChlastCall *call, void *scratch);

#endif
