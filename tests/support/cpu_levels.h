/* cpu_levels.h: every routine of every level, which no module has. */
#ifndef AMPC_TESTS_CPU_LEVELS_H
#define AMPC_TESTS_CPU_LEVELS_H

#include "runtime/cpu/kernels.h"

extern const AmpcCpuLib ampc_cpu_v2, ampc_cpu_v3, ampc_cpu_v4, ampc_cpu_amx;

#endif
