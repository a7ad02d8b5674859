/* SPDX-License-Identifier: Apache-2.0 */
/* isa.h: how the level of this machine is found.  isa.c reads AMPC_ISA; a file
   for each kind of processor, isa_x86.c and isa_arm.c, has the rest.

   The variable can lower the level, never raise it; a session does not open,
   and `ampc` does not compile, with another word than those of cpu_isa_words.
 */
#ifndef AMPC_CPU_ISA_H
#define AMPC_CPU_ISA_H

#include "runtime/cpu/block.h"

typedef struct CpuIsaWord {
    char name[8]; /* no pointers: a module relocates none; "": the end */
    int level;
    char how[4]; /* products of bf16; "": what is faster */
} CpuIsaWord;
extern const CpuIsaWord cpu_isa_words[];

/* Highest level that AMPC_ISA allows; -1: it names none. */
int cpu_isa_wanted(const char **how);

#endif
