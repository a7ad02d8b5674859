/* isa.c: which instruction set level this machine can run.

   A level counts only if CPUID names every feature its translation units may
   use and XCR0 says that the kernel saves the registers.  The environment
   variable AMPC_ISA (v2, v3, v4) can lower the level, never raise it.       */
#define _GNU_SOURCE
#include <cpuid.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "runtime/cpu/block.h"

static uint64_t isa_xcr0(void) {
    uint32_t lo, hi;
    __asm__ volatile("xgetbv" : "=a"(lo), "=d"(hi) : "c"(0));
    return (uint64_t)hi << 32 | lo;
}

static int isa_has(uint32_t reg, uint32_t need) { return (reg & need) == need; }

static int isa_machine(void) {
    uint32_t a, b, c, d, b7, c7, d7, a7, cx, dx;
    const uint32_t avx = bit_OSXSAVE | bit_AVX | bit_FMA | bit_F16C | bit_MOVBE;
    const uint32_t v3 = bit_AVX2 | bit_BMI | bit_BMI2;
    const uint32_t v4 =
        bit_AVX512F | bit_AVX512BW | bit_AVX512CD | bit_AVX512DQ | bit_AVX512VL;
    if (!__get_cpuid(1, &a, &b, &c, &d) || !isa_has(c, avx)) return AMPC_ISA_V2;
    if (!__get_cpuid_count(7, 0, &a7, &b7, &c7, &d7) || !isa_has(b7, v3))
        return AMPC_ISA_V2;
    if (!__get_cpuid(0x80000001u, &a, &b, &cx, &dx) || !isa_has(cx, bit_LZCNT))
        return AMPC_ISA_V2;
    uint64_t state = isa_xcr0();
    if ((state & 0x6) != 0x6) return AMPC_ISA_V2; /* SSE and AVX state */
    if (!isa_has(b7, v4) || (state & 0xe6) != 0xe6) return AMPC_ISA_V3;
    return AMPC_ISA_V4;
}

int cpu_isa_level(void) {
    int level = isa_machine();
    const char *want = secure_getenv("AMPC_ISA");
    if (want && want[0] == 'v' && want[1] >= '2' && want[1] <= '4' && !want[2])
        if (want[1] - '0' < level) level = want[1] - '0';
    return level;
}

/* CPUID traps on virtual machines, and this is asked on every call: the answer
   is kept.  0 = not asked yet, 1 = no, 2 = yes.                             */
static _Atomic int isa_bf16;

int cpu_bf16_dot(void) {
    int known = atomic_load_explicit(&isa_bf16, memory_order_relaxed);
    if (known) return known == 2;
    uint32_t a = 0, b, c, d;
    int has = isa_machine() == AMPC_ISA_V4 &&
              __get_cpuid_count(7, 1, &a, &b, &c, &d) && isa_has(a, 1u << 5);
    atomic_store_explicit(&isa_bf16, has ? 2 : 1, memory_order_relaxed);
    return has;
}

void cpu_bf16_dot_off(int off) {
    atomic_store_explicit(&isa_bf16, off ? 1 : 0, memory_order_relaxed);
}
