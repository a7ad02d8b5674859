/* SPDX-License-Identifier: Apache-2.0 */
/* tiles.c: AMX on machines without it, instruction by instruction. */
#define _GNU_SOURCE
#include "tests/support/tiles.h"

#include <cpuid.h>
#include <math.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/syscall.h>
#include <ucontext.h>
#include <unistd.h>

enum { TILES = 8, ROWS = 16, ROW = 64 };

typedef union Tile {
    uint8_t row[ROWS][ROW];
    uint32_t pair[ROWS][ROW / 4];
    float f[ROWS][ROW / 4];
} Tile;

static _Thread_local Tile tile[TILES]
    __attribute__((tls_model("initial-exec")));
static _Thread_local int configured __attribute__((tls_model("initial-exec")));
static atomic_llong count;

int64_t tiles_count(void) { return atomic_load(&count); }

int tiles_are_the_machines(void) {
    uint32_t a, b, c, d;
    const uint32_t tiles = 1u << 24, bf16 = 1u << 22;
    return __get_cpuid_count(7, 0, &a, &b, &c, &d) && d & tiles && d & bf16 &&
           syscall(SYS_arch_prctl, 0x1023, 18) == 0;
}

/* ---- what an instruction does -------------------------------------------- */

/* Subnormal numbers count as zero, as operands and as results. */
static float normal(float x) { return fabsf(x) < 0x1p-126f ? x * 0.0f : x; }

static float half(uint32_t bits) {
    float x;
    bits <<= 16;
    memcpy(&x, &bits, sizeof x);
    return normal(x);
}

__attribute__((target("fma"))) void
tiles_dot(float c[16][16], const uint32_t a[16][16], const uint32_t b[16][16]) {
    float low[16][16], high[16][16];
    for (int k = 0; k < 16; k++)
        for (int n = 0; n < 16; n++) {
            low[k][n] = half(b[k][n] & 0xffff);
            high[k][n] = half(b[k][n] >> 16);
        }
    for (int m = 0; m < 16; m++) {
        float even[16] = {0}, odd[16] = {0};
        for (int k = 0; k < 16; k++) {
            float x = half(a[m][k] & 0xffff), y = half(a[m][k] >> 16);
            for (int n = 0; n < 16; n++) {
                even[n] = normal(__builtin_fmaf(x, low[k][n], even[n]));
                odd[n] = normal(__builtin_fmaf(y, high[k][n], odd[n]));
            }
        }
        for (int n = 0; n < 16; n++)
            c[m][n] = normal(normal(c[m][n]) + normal(even[n] + odd[n]));
    }
}

/* ---- the instructions, as they are encoded --------------------------------
 */

/* VEX.128 in the map 0F38 with W0: opcode, register fields, memory operand. */
typedef struct Insn {
    int prefix; /* pp: none, 66, F3, F2                                      */
    int opcode, reg, rm, vvvv, is_memory;
    uint64_t base, index; /* the address is their sum, or the row step index */
    const uint8_t *end;
} Insn;

static uint64_t gpr(const ucontext_t *u, int i) {
    static const int where[16] = {
        REG_RAX, REG_RCX, REG_RDX, REG_RBX, REG_RSP, REG_RBP, REG_RSI, REG_RDI,
        REG_R8,  REG_R9,  REG_R10, REG_R11, REG_R12, REG_R13, REG_R14, REG_R15};
    return (uint64_t)u->uc_mcontext.gregs[where[i]];
}

/* Decodes ModRM, SIB and displacement at p. */
static void decode_memory(Insn *x, const ucontext_t *u, const uint8_t *p,
                          int mod, int index_high, int base_high) {
    int32_t far = 0;
    int base = x->rm;
    if (base == 4) { /* SIB */
        int index = (*p >> 3 & 7) + index_high;
        x->index = index == 4 ? 0 : gpr(u, index) << (*p >> 6);
        base = *p++ & 7;
    }
    int relative = mod == 0 && base == 5;
    if (mod == 1) far = (int8_t)*p++;
    if (mod == 2 || relative) {
        memcpy(&far, p, 4);
        p += 4;
    }
    x->end = p;
    uint64_t from = relative ? x->rm == 4 ? 0 : (uint64_t)(uintptr_t)p
                             : gpr(u, base + base_high);
    x->base = from + (uint64_t)(int64_t)far;
}

static int decode(Insn *x, const ucontext_t *u) {
    const uint8_t *p = (const uint8_t *)u->uc_mcontext.gregs[REG_RIP];
    if (p[0] != 0xc4 || (p[1] & 0x1f) != 2 || (p[2] & 0x84) != 0) return 0;
    *x = (Insn){.prefix = p[2] & 3,
                .opcode = p[3],
                .reg = p[4] >> 3 & 7,
                .rm = p[4] & 7,
                .vvvv = ~(p[2] >> 3) & 15,
                .is_memory = p[4] >> 6 != 3,
                .end = p + 5};
    if (x->is_memory)
        decode_memory(x, u, p + 5, p[4] >> 6, p[1] & 0x40 ? 0 : 8,
                      p[1] & 0x20 ? 0 : 8);
    return 1;
}

static uint8_t *row_at(const Insn *x, int row) {
    return (uint8_t *)(uintptr_t)(x->base + x->index * (uint64_t)row);
}

/* Configures tiles; tests accept only the configuration that amx_isa.c
   requests. */
static int configure(const uint8_t *p) {
    if (p[0] != 1 || p[1] != 0) return 0;
    for (int i = 0; i < TILES; i++) {
        uint16_t bytes;
        memcpy(&bytes, p + 16 + 2 * i, 2);
        if (bytes != ROW || p[48 + i] != ROWS) return 0;
    }
    memset(tile, 0, sizeof tile);
    return configured = 1;
}

/* Nonzero: it was a tile instruction, and is done. */
static int execute(const Insn *x) {
    enum { NONE, P66, F3, F2 };
    if (x->opcode == 0x49 && x->prefix == NONE) {
        if (x->is_memory) return configure(row_at(x, 0));
        configured = 0; /* TILERELEASE */
        return x->reg == 0 && x->rm == 0;
    }
    if (!configured) return 0;
    if (x->opcode == 0x49 && x->prefix == F2 && !x->is_memory) {
        memset(&tile[x->reg], 0, sizeof tile[0]);
        return 1;
    }
    if (x->opcode == 0x4b && x->is_memory && x->rm == 4) {
        for (int i = 0; i < ROWS; i++) {
            if (x->prefix == F2) memcpy(tile[x->reg].row[i], row_at(x, i), ROW);
            if (x->prefix == F3) memcpy(row_at(x, i), tile[x->reg].row[i], ROW);
        }
        return x->prefix == F2 || x->prefix == F3;
    }
    if (x->opcode != 0x5c || x->prefix != F3 || x->is_memory) return 0;
    if (x->reg == x->rm || x->reg == x->vvvv || x->rm == x->vvvv) return 0;
    tiles_dot(tile[x->reg].f, (const uint32_t(*)[16])tile[x->rm].pair,
              (const uint32_t(*)[16])tile[x->vvvv].pair);
    return 1;
}

static void on_sigill(int sig, siginfo_t *info, void *context) {
    ucontext_t *u = context;
    Insn x;
    int done = 0;
    (void)info;
    while (decode(&x, u) && execute(&x)) {
        u->uc_mcontext.gregs[REG_RIP] = (greg_t)x.end;
        done++;
    }
    atomic_fetch_add(&count, done);
    if (!done)
        signal(sig, SIG_DFL); /* the signal is raised again, and ends the
                                 process */
}

/* ---- installing -----------------------------------------------------------
 */

/* Modules look for this symbol (runtime/cpu/isa.c). */
extern const int ampc_tiles;
__attribute__((visibility("default"))) const int ampc_tiles = 1;

void tiles_emulate(void) {
    static atomic_int once;
    if (atomic_exchange(&once, 1)) return;
    struct sigaction act = {.sa_sigaction = on_sigill,
                            .sa_flags = SA_SIGINFO | SA_ONSTACK};
    sigemptyset(&act.sa_mask);
    sigaction(SIGILL, &act, NULL);
}

#ifdef TILES_PRELOADED
__attribute__((constructor)) static void preload(void) { tiles_emulate(); }
#endif
