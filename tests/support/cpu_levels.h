/* SPDX-License-Identifier: Apache-2.0 */
/* cpu_levels.h: every routine of every level, which no module contains. */
#ifndef AMPC_TESTS_CPU_LEVELS_H
#define AMPC_TESTS_CPU_LEVELS_H

#include "runtime/cpu/kernels.h"

/* ampc_v2_level and so on, of runtime/cpu/level_isa.c: one per row of isa.def
   that has routines of its own. */
#define ISA_HERE
#define ISA(E, number, name, prefix, arch, vectors, flags)                     \
    extern const AmpcCpuLib ampc_v##number##_level __attribute__((weak));
#include "runtime/cpu/isa.def"

/* The routines of a level; NULL: runtime/BUILD compiles none. */
const AmpcCpuLib *cpu_level(int isa);

#endif
