/* SPDX-License-Identifier: Apache-2.0 */
/* level_isa.c: the flags and the header of this level, which tests compare
   with isa.def, and the table of its routines; modules do not contain it. */
#include "runtime/cpu/simd.h"

const char ISA(flags)[] = AMPC_ISA_FLAGS;
const char ISA(vectors)[] = AMPC_SIMD;

#define LIB(E, name, S, operands, shape, scratch, tiles, cuda, threads)        \
    extern LIB_ROUTINE(name) ISA(name);
#include "runtime/program/lib.def"

#define LIB(E, name, S, operands, shape, scratch, tiles, cuda, threads)        \
    .name = ISA(name),
const AmpcCpuLib ISA(level) = {
    ISA_LEVEL,
#include "runtime/program/lib.def"
};
