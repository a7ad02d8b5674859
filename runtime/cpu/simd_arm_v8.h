/* SPDX-License-Identifier: Apache-2.0 */
/* simd_arm_v8.h: vectors of armv8-a: see simd.h. */
#ifndef AMPC_CPU_SIMD_ARM_V8_H
#define AMPC_CPU_SIMD_ARM_V8_H

#include "runtime/cpu/kernels.h" /* before ISA: it reads isa.def */

#define ISA(name) ampc_v8_##name
#define ISA_LEVEL AMPC_ISA_V8
#define HAS_DOT   0

#include "runtime/cpu/simd_neon.h"

#endif
