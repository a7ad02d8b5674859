/* lib.h: the routines of one ISA level, gathered in lib_isa.c. */
#ifndef AMPC_CPU_LIB_H
#define AMPC_CPU_LIB_H

#include "runtime/cpu/simd.h"

void ISA(gemm)(AmpcPool *, const CpuGemm *, const void *a, const void *b,
               void *c, const CpuEpilogue *, void *scratch);
void ISA(conv_fwd)(AmpcPool *, const CpuConv *, const void *x, const void *w,
                   void *y, const CpuEpilogue *, void *scratch);
void ISA(conv_dgrad)(AmpcPool *, const CpuConv *, const void *dy, const void *w,
                     void *dx, void *scratch);
void ISA(conv_wgrad)(AmpcPool *, const CpuConv *, const void *x, const void *dy,
                     void *dw, void *scratch);
void ISA(maxpool)(AmpcPool *, const CpuPool *, const void *x, void *y,
                  int32_t *idx);
void ISA(maxpool_grad)(AmpcPool *, const CpuPool *, const void *dy,
                       const int32_t *idx, void *dx);
void ISA(avgpool)(AmpcPool *, const CpuPool *, const void *x, void *y);
void ISA(avgpool_grad)(AmpcPool *, const CpuPool *, const void *dy, void *dx);
void ISA(scatter_add)(AmpcPool *, const CpuScatterAdd *, const void *src,
                      const void *idx, void *out, void *scratch);
void ISA(argmax)(AmpcPool *, const CpuArgmax *, const void *x, int64_t *out);

#endif
