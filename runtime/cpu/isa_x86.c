/* SPDX-License-Identifier: Apache-2.0 */
/* isa_x86.c: which instruction set level this x86-64 machine can run (isa.h).

   A level counts only if CPUID names every feature its translation units may
   use and XCR0 says that the kernel saves the registers.

   The kernel must permit AMX tiles, once for all threads of a process, and they
   must be faster than multiply-adds. AMPC_ISA=v4-amx with `ampc_tiles` in the
   process takes them unasked: that is a test's emulator of the instructions.

   vdpbf16ps takes one cycle on some processors and four on others, where the
   widened product is twice as fast: the two are measured once per process, for
   some ten microseconds.  Known ratios are 1 and 4, far from the limit, so that
   a machine always decides the same. AMPC_ISA=v4-dot and v4-fma decide instead.
 */
#define _GNU_SOURCE
#include "runtime/cpu/isa.h"

#if defined __x86_64__
#include <cpuid.h>
#include <dlfcn.h>
#include <immintrin.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "runtime/base/glibc.h" /* last */

static uint64_t isa_xcr0(void) {
    uint32_t lo, hi;
    __asm__ volatile("xgetbv" : "=a"(lo), "=d"(hi) : "c"(0));
    return (uint64_t)hi << 32 | lo;
}

static int isa_has(uint32_t reg, uint32_t need) { return (reg & need) == need; }

static int isa_has_V2(void) { return 1; }

static int isa_has_V3(void) {
    uint32_t a, b, c, d, a7, b7, c7, d7, cx, dx;
    const uint32_t avx = bit_OSXSAVE | bit_AVX | bit_FMA | bit_F16C | bit_MOVBE;
    const uint32_t avx2 = bit_AVX2 | bit_BMI | bit_BMI2;
    return __get_cpuid(1, &a, &b, &c, &d) && isa_has(c, avx) &&
           __get_cpuid_count(7, 0, &a7, &b7, &c7, &d7) && isa_has(b7, avx2) &&
           __get_cpuid(0x80000001u, &a, &b, &cx, &dx) &&
           isa_has(cx, bit_LZCNT) &&
           (isa_xcr0() & 0x6) == 0x6; /* SSE and AVX state */
}

static int isa_has_V4(void) {
    uint32_t a, b, c, d;
    const uint32_t avx512 =
        bit_AVX512F | bit_AVX512BW | bit_AVX512CD | bit_AVX512DQ | bit_AVX512VL;
    return isa_has_V3() && __get_cpuid_count(7, 0, &a, &b, &c, &d) &&
           isa_has(b, avx512) && (isa_xcr0() & 0xe6) == 0xe6;
}

/* cpu_isa_level requests tiles, and the request cannot be withdrawn. */
static int isa_has_AMX(void) { return 0; }

static int isa_machine(void) {
#define ISA_HERE
#define ISA(E, number, name, prefix, arch, vectors, flags)                     \
    if (isa_has_##E()) return AMPC_ISA_##E;
#include "runtime/cpu/isa.def"
    return AMPC_ISA_V2;
}

const CpuIsaWord cpu_isa_words[] = {{"v2", AMPC_ISA_V2, ""},
                                    {"v3", AMPC_ISA_V3, ""},
                                    {"v4", AMPC_ISA_V4, ""},
                                    {"v4-amx", AMPC_ISA_AMX, ""},
                                    {"v4-dot", AMPC_ISA_V4, "dot"},
                                    {"v4-fma", AMPC_ISA_V4, "fma"},
                                    {"", 0, ""}};

/* ---- dot products of bf16 ------------------------------------------------ */

static int isa_has_dot(void) {
    uint32_t a = 0, b, c, d;
    return isa_machine() == AMPC_ISA_V4 &&
           __get_cpuid_count(7, 1, &a, &b, &c, &d) && isa_has(a, 1u << 5);
}

/* Nanoseconds of a loop of independent instructions; the best of several
   tries. */
#define ISA_TIME(name, features, step)                                         \
    __attribute__((target(features))) static int64_t name(void) {              \
        int64_t best = INT64_MAX;                                              \
        for (int run = 0; run < ISA_RUNS; run++) {                             \
            __m512 a[ISA_CHAINS] = {{0}}, x = {0};                             \
            int64_t start = isa_clock();                                       \
            for (int i = 0; i < ISA_STEPS; i++)                                \
                _Pragma("GCC unroll 12") for (int j = 0; j < ISA_CHAINS;       \
                                              j++) {                           \
                    a[j] = step;                                               \
                    __asm__ volatile("" : "+v"(a[j]));                         \
                }                                                              \
            int64_t took = isa_clock() - start;                                \
            if (took < best) best = took;                                      \
        }                                                                      \
        return best;                                                           \
    }

enum { ISA_RUNS = 5, ISA_STEPS = 400, ISA_CHAINS = 12 };

static int64_t isa_clock(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000 + t.tv_nsec;
}

ISA_TIME(isa_time_fma, "avx512f", _mm512_fmadd_ps(x, x, a[j]))
ISA_TIME(isa_time_dot, "avx512f,avx512bf16",
         _mm512_dpbf16_ps(a[j], (__m512bh)x, (__m512bh)x))

/* Every call reads it, so the answer is kept: it must not change while a
   session lives. 0 = not asked yet, 1 = no, 2 = yes. */
static _Atomic int isa_dot;

int cpu_bf16_dot(void) {
    int known = atomic_load_explicit(&isa_dot, memory_order_relaxed);
    if (known) return known == 2;
    const char *how;
    int level = cpu_isa_wanted(&how), dot = isa_has_dot();
    if (level == AMPC_ISA_V4 && *how)
        dot = dot && !strcmp(how, "dot");
    else if (dot) /* one instruction does two multiply-adds; packing costs more
                   */
        dot = 2 * isa_time_dot() < 3 * isa_time_fma();
    known = 0; /* the first answer counts */
    if (!atomic_compare_exchange_strong(&isa_dot, &known, dot ? 2 : 1))
        return known == 2;
    return dot;
}

void cpu_bf16_dot_force(int how) {
    int dot = how < 0 ? 0 : how && isa_has_dot() ? 2 : 1;
    atomic_store_explicit(&isa_dot, dot, memory_order_relaxed);
}

/* ---- tiles --------------------------------------------------------------- */

enum {
    ISA_REQ_XCOMP_PERM = 0x1023, /* arch_prctl: ARCH_REQ_XCOMP_PERM          */
    ISA_TILE_DATA = 18,          /* XFEATURE_XTILEDATA                       */
    ISA_TILE_FMAS = 512 /* the number of fp32 FMAs with as many multiply-adds
                           as one TDPBF16PS */
};

const CpuTiles cpu_tiles = {
    .palette = 1,
    .bytes = {64, 64, 64, 64, 64, 64, 64, 64},
    .rows = {16, 16, 16, 16, 16, 16, 16, 16},
};

static int isa_has_tiles(void) {
    uint32_t a, b, c, d;
    const uint32_t tile = 1u << 24, bf16 = 1u << 22;
    return isa_machine() == AMPC_ISA_V4 &&
           __get_cpuid_count(7, 0, &a, &b, &c, &d) && isa_has(d, tile | bf16) &&
           (isa_xcr0() >> 17 & 3) == 3;
}

/* Nanoseconds for the multiply-adds of isa_time_fma, on tiles. */
static int64_t isa_time_tiles(void) {
    enum { STEPS = 4 * ISA_STEPS * ISA_CHAINS / ISA_TILE_FMAS };
    int64_t best = INT64_MAX;
    __asm__ volatile("ldtilecfg %0" ::"m"(cpu_tiles));
    for (int run = 0; run < ISA_RUNS; run++) {
        int64_t start = isa_clock();
        for (int i = 0; i < STEPS; i++)
            __asm__ volatile("tdpbf16ps %%tmm5, %%tmm4, %%tmm0\n\t"
                             "tdpbf16ps %%tmm5, %%tmm4, %%tmm1\n\t"
                             "tdpbf16ps %%tmm5, %%tmm4, %%tmm2\n\t"
                             "tdpbf16ps %%tmm5, %%tmm4, %%tmm3" ::);
        int64_t took = isa_clock() - start;
        if (took < best) best = took;
    }
    __asm__ volatile("tilerelease" ::);
    return best / 16; /* 4 instructions per step, 4 times the steps */
}

/* Like isa_dot; the kernel is asked once, since the request cannot be
   withdrawn. */
static _Atomic int isa_tiles;

static int isa_tiles_pay(void) {
    int known = atomic_load_explicit(&isa_tiles, memory_order_relaxed);
    if (known) return known == 2;
    int pay = isa_has_tiles() &&
              syscall(SYS_arch_prctl, ISA_REQ_XCOMP_PERM, ISA_TILE_DATA) == 0 &&
              isa_time_tiles() < isa_time_fma();
    known = 0;
    if (!atomic_compare_exchange_strong(&isa_tiles, &known, pay ? 2 : 1))
        return known == 2;
    return pay;
}

int cpu_isa_level(void) {
    const char *how;
    int level = isa_machine(), want = cpu_isa_wanted(&how);
    if (want >= 0 && want < level) return want;
    if (level < AMPC_ISA_V4 || want == AMPC_ISA_V4) return level;
    int emulated =
        want == AMPC_ISA_AMX && dlsym(RTLD_DEFAULT, "ampc_tiles") != NULL;
    return emulated || isa_tiles_pay() ? AMPC_ISA_AMX : level;
}

#endif
