/* SPDX-License-Identifier: Apache-2.0 */
/* level.c: the only level of a module written by `ampc --target c`. It
   replaces cpu/isa.c. */
#include "runtime/cpu/block.h"

int cpu_isa_level(void) { return AMPC_ISA_C; }

const char *cpu_isa_unknown(void) { return NULL; } /* AMPC_ISA is for x86-64 */

const char *cpu_isa_name(int level) {
    return level == AMPC_ISA_C ? "plain C" : "an unknown level";
}

int cpu_bf16_dot(void) { return 0; }

/* No GPU either. */
int gpu_count(void) { return 0; }
