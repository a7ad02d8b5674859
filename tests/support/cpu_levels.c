/* SPDX-License-Identifier: Apache-2.0 */
/* cpu_levels.c: tables of all routines (cpu_levels.h).  A row of isa.def
   without a table here is an error of the compiler or the linker. */
#include "tests/support/cpu_levels.h"

#define LIB(E, name, S, operands, shape, scratch, tiles, cuda, threads)        \
    extern LIB_ROUTINE(name) ampc_v2_##name, ampc_v3_##name, ampc_v4_##name;
#include "runtime/program/lib.def"

#define LIB(E, name, S, operands, shape, scratch, tiles, cuda, threads)        \
    .name = ampc_v2_##name,
const AmpcCpuLib ampc_cpu_V2 = {
    .isa = AMPC_ISA_V2,
#include "runtime/program/lib.def"
};

#define LIB(E, name, S, operands, shape, scratch, tiles, cuda, threads)        \
    .name = ampc_v3_##name,
const AmpcCpuLib ampc_cpu_V3 = {
    .isa = AMPC_ISA_V3,
#include "runtime/program/lib.def"
};

#define LIB(E, name, S, operands, shape, scratch, tiles, cuda, threads)        \
    .name = ampc_v4_##name,
const AmpcCpuLib ampc_cpu_V4 = {
    .isa = AMPC_ISA_V4,
#include "runtime/program/lib.def"
};

#define LIB(E, name, S, operands, shape, scratch, tiles, cuda, threads)        \
    .name = ampc_v4_##name,
const AmpcCpuLib ampc_cpu_AMX = {
    .isa = AMPC_ISA_AMX,
#include "runtime/program/lib.def"
};

const AmpcCpuLib *cpu_level(int isa) {
#define ISA_HERE
#define ISA(E, number, name, prefix, arch, vectors, flags)                     \
    if (isa == number) return &ampc_cpu_##E;
#include "runtime/cpu/isa.def"
    return NULL;
}
