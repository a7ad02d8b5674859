/* SPDX-License-Identifier: Apache-2.0 */
/* cpu_kernels.h: for cpu_kernels_test.c and the files of folder cpu_kernels. */
#ifndef AMPC_TESTS_RUNTIME_CPU_KERNELS_CPU_KERNELS_H
#define AMPC_TESTS_RUNTIME_CPU_KERNELS_CPU_KERNELS_H

#include "runtime/cpu/kmath.h"

float bits_float(uint32_t u);

#endif
