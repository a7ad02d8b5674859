/* SPDX-License-Identifier: Apache-2.0 */
/* cpu_levels.h: every routine of every level, which no module contains. */
#ifndef AMPC_TESTS_CPU_LEVELS_H
#define AMPC_TESTS_CPU_LEVELS_H

#include "runtime/cpu/kernels.h"

/* ampc_cpu_V2 and so on: one per row of isa.def. */
#define ISA_HERE
#define ISA(E, number, name, prefix, arch, vectors, flags)                     \
    extern const AmpcCpuLib ampc_cpu_##E;
#include "runtime/cpu/isa.def"

const AmpcCpuLib *cpu_level(int isa);

#endif
