/* SPDX-License-Identifier: Apache-2.0 */
/* routines.h: the routines of one ISA level.

   Built once per level (see simd.h for the flags):
     tile_isa.c     register tiles             image_isa.c  padded images
     pack_isa.c     packing of operands        conv_isa.c   conv, its dX
     gemm_*.c       matrix product             wgrad_isa.c  its dW
     amx_isa.c      tiles, at level v4         chlast_*.c   both, staged
     pooling_*.c    pooling                    index_isa.c  scatter, argmax,
                                              copy
     attend_isa.c  attention                  sort_isa.c   argsort
     quantized_isa.c  weights of few bits
     level_isa.c    the level itself
   Built once: pool.c threads, isa.c detection, dispatch.c calls by row, block.c
   and conv.c geometry and scratch, pooling_f64.c                            */
#ifndef AMPC_CPU_ROUTINES_H
#define AMPC_CPU_ROUTINES_H

#include "runtime/cpu/simd.h"

#define OPERAND(role, x, f, dtypes) LIB_C_##role(x)
#define LIB(E, name, S, operands, shape, scratch, tiles, cuda, threads)        \
    void ISA(name)(LIB_TILES_##tiles AmpcPool *,                               \
                   const S *operands LIB_C_##scratch);
#include "runtime/program/lib.def"
#undef OPERAND

#endif
