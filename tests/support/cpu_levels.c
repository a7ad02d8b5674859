/* cpu_levels.c: tables of all routines (cpu_levels.h). */
#include "tests/support/cpu_levels.h"

#define LIB(E, name, S, operands, shape, scratch, tiles, cuda, threads)        \
    extern LIB_ROUTINE(name) ampc_v2_##name, ampc_v3_##name, ampc_v4_##name;
#include "runtime/lib.def"

#define LIB(E, name, S, operands, shape, scratch, tiles, cuda, threads)        \
    .name = ampc_v2_##name,
const AmpcCpuLib ampc_cpu_v2 = {
    .isa = AMPC_ISA_V2,
#include "runtime/lib.def"
};

#define LIB(E, name, S, operands, shape, scratch, tiles, cuda, threads)        \
    .name = ampc_v3_##name,
const AmpcCpuLib ampc_cpu_v3 = {
    .isa = AMPC_ISA_V3,
#include "runtime/lib.def"
};

#define LIB(E, name, S, operands, shape, scratch, tiles, cuda, threads)        \
    .name = ampc_v4_##name,
const AmpcCpuLib ampc_cpu_v4 = {
    .isa = AMPC_ISA_V4,
#include "runtime/lib.def"
};

#define LIB(E, name, S, operands, shape, scratch, tiles, cuda, threads)        \
    .name = ampc_v4_##name,
const AmpcCpuLib ampc_cpu_amx = {
    .isa = AMPC_ISA_AMX,
#include "runtime/lib.def"
};
