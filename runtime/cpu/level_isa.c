/* SPDX-License-Identifier: Apache-2.0 */
/* level_isa.c: the flags and the header of this level, which tests compare
   with isa.def; modules do not contain it. */
#include "runtime/cpu/simd.h"

const char ISA(flags)[] = AMPC_ISA_FLAGS;
const char ISA(vectors)[] = AMPC_SIMD;
