/* routines.h: the routines of one ISA level, gathered in lib_isa.c. */
#ifndef AMPC_CPU_ROUTINES_H
#define AMPC_CPU_ROUTINES_H

#include "runtime/cpu/simd.h"

#define OPERAND(role, x, f, dtypes) LIB_C_##role(x)
#define LIB(E, name, S, operands, shape, scratch, cuda, threads)               \
    void ISA(name)(AmpcPool *, const S *operands LIB_C_##scratch);
#include "runtime/lib.def"
#if AMPC_ISA_LEVEL == 4
/* Those that multiply bf16 on AMX tiles, and are at level v4 otherwise. */
#define LIB(E, name, S, operands, shape, scratch, cuda, threads)               \
    void ISA(name##_amx)(AmpcPool *, const S *operands LIB_C_##scratch);
#include "runtime/lib.def"
#endif
#undef OPERAND

#endif
