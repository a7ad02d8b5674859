/* routines.h: the routines of one ISA level, gathered in lib_isa.c. */
#ifndef AMPC_CPU_ROUTINES_H
#define AMPC_CPU_ROUTINES_H

#include "runtime/cpu/simd.h"

#define OPERAND(role, x, f, dtypes) LIB_C_##role(x)
#define LIB(E, name, S, operands, shape, scratch, tiles, cuda, threads)        \
    void ISA(name)(LIB_TILES_##tiles AmpcPool *,                               \
                   const S *operands LIB_C_##scratch);
#include "runtime/lib.def"
#undef OPERAND

#endif
