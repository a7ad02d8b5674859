/* lib_isa.c: the routine table of one ISA level.

   Built once per level (see simd.h for the flags):
     tile_isa.c     register tiles             image_isa.c  padded images
     pack_isa.c     packing of operands        conv_isa.c   conv, its dX
     gemm_isa.c     matrix product             wgrad_isa.c  its dW
     amx_isa.c      tiles, at level v4         chlast_isa.c both, staged
     pooling_isa.c  pooling                    index_isa.c  scatter, argmax,
                                              copy
     attend_isa.c  attention                  sort_isa.c   argsort
   Built once: pool.c threads, isa.c detection, dispatch.c calls by row, block.c
   and conv.c geometry and scratch, pooling_f64.c                            */
#include "runtime/cpu/routines.h"

#define ISA_TABLE3(level) ampc_cpu_v##level
#define ISA_TABLE2(level) ISA_TABLE3(level)
#define ISA_TABLE         ISA_TABLE2(AMPC_ISA_LEVEL)

#define LIB(E, name, S, operands, shape, scratch, tiles, cuda, threads)        \
    .name = ISA(name),
const AmpcCpuLib ISA_TABLE = {
    .isa = AMPC_ISA_LEVEL,
#include "runtime/lib.def"
};

#if AMPC_ISA_LEVEL == 4
#define LIB(E, name, S, operands, shape, scratch, tiles, cuda, threads)        \
    .name = ISA(name),
const AmpcCpuLib ampc_cpu_amx = {
    .isa = AMPC_ISA_AMX,
#include "runtime/lib.def"
};
#endif
