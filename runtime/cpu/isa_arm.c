/* SPDX-License-Identifier: Apache-2.0 */
/* isa_arm.c: the levels of AArch64, as isa.c has those of x86-64.  Every such
   processor runs armv8-a. */
#include "runtime/cpu/block.h"

#if defined __aarch64__

int cpu_isa_level(void) { return AMPC_ISA_V8; }

const char *cpu_isa_unknown(void) { return NULL; } /* AMPC_ISA is for x86-64 */

const char *cpu_isa_name(int level) {
#define ISA_HERE
#define ISA(E, number, name, prefix, arch, vectors, flags)                     \
    if (level == number) return name;
#include "runtime/cpu/isa.def"
    return "an unknown level";
}

/* No level here has products of pairs. */
int cpu_bf16_dot(void) { return 0; }
void cpu_bf16_dot_force(int how) { (void)how; }

#endif
