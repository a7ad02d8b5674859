/* SPDX-License-Identifier: Apache-2.0 */
/* isa_arm.c: the levels of AArch64 that this machine runs.  Every such
   processor runs armv8-a; the kernel tells of more. */
#include "runtime/cpu/isa.h"

#if defined __aarch64__
#include <stdatomic.h>
#include <sys/auxv.h>

#ifndef HWCAP2_BF16
#define HWCAP2_BF16 (1ul << 14)
#endif

const CpuIsaWord cpu_isa_words[] = {
    {"v8", AMPC_ISA_V8, ""}, {"v8.6", AMPC_ISA_V86, ""}, {"", 0, ""}};

static int isa_machine(void) {
    return getauxval(AT_HWCAP2) & HWCAP2_BF16 ? AMPC_ISA_V86 : AMPC_ISA_V8;
}

int cpu_isa_level(void) {
    const char *how;
    int level = isa_machine(), want = cpu_isa_wanted(&how);
    return want >= 0 && want < level ? want : level;
}

/* bfdot is never slower than multiply-adds on processors that have it. */
static _Atomic int isa_no_dot;

int cpu_bf16_dot(void) {
    return isa_machine() == AMPC_ISA_V86 &&
           !atomic_load_explicit(&isa_no_dot, memory_order_relaxed);
}

void cpu_bf16_dot_force(int how) {
    atomic_store_explicit(&isa_no_dot, how == 0, memory_order_relaxed);
}

#endif
