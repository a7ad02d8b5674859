/* SPDX-License-Identifier: Apache-2.0 */
/* tiles_test.c: products on AMX tiles, bit for bit, on machines with and
   without them; and the emulator that replaces them. */
#define _POSIX_C_SOURCE 200809L
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/cpu/kernels.h"
#include "runtime/program/dtype.h"
#include "tests/harness.h"
#include "tests/support/cpu_cases.h"
#include "tests/support/tiles.h"

static uint32_t pair(float even, float odd) {
    return f32_to_bf16(even) | (uint32_t)f32_to_bf16(odd) << 16;
}

/* ---- the emulator -------------------------------------------------------- */

/* One product of row 0 with column 0, whose pairs are a[0], a[1] .. */
static float dot(float c0, int n, const uint32_t *a, const uint32_t *b) {
    float c[16][16] = {{c0}};
    uint32_t x[16][16] = {{0}}, y[16][16] = {{0}};
    for (int k = 0; k < n; k++) {
        x[0][k] = a[k];
        y[k][0] = b[k];
    }
    tiles_dot(c, (const uint32_t(*)[16])x, (const uint32_t(*)[16])y);
    return c[0][0];
}

/* Computed by hand from the definition: even and odd elements are separate
   chains, C is added last, and subnormal numbers count as zero, as operands
   and as results. */
TEST_CASE(tiles, the_emulator_adds_as_the_manual_says) {
    const float big = 0x1p24f, tiny = 0x1p-127f, small = 0x1p-70f;
    uint32_t one = pair(1, 1), a[4], b[4] = {one, one, one, one};
    CHECK(dot(0.5f, 1, &one, &one) == 2.5f);
    a[0] = pair(3, -2), b[0] = pair(5, 7);
    CHECK(dot(0, 1, a, b) == 1);
    /* a single chain would lose both ones, and the sum of -big and 2 is
       exact */
    a[0] = pair(big, 1), a[1] = pair(-big, 1), b[0] = one;
    CHECK(dot(0, 2, a, b) == 2);
    a[0] = pair(big, 0), a[1] = pair(1, 0), a[2] = pair(-big, 0);
    CHECK(dot(0, 3, a, b) == 0);
    CHECK(dot(-big, 2, a, b) == 0); /* C is added when 1 is already lost */
    a[0] = pair(tiny, 0), b[0] = pair(0x1p10f, 0);
    CHECK(dot(0, 1, a, b) == 0);
    a[0] = b[0] = pair(small, 0);
    CHECK(dot(0, 1, a, b) == 0);
    CHECK(dot(tiny, 1, a, b) == 0);
    a[0] = pair(INFINITY, 0);
    CHECK(dot(0, 1, a, &one) == INFINITY && isnan(dot(-INFINITY, 1, a, &one)));
}

/* The addressing modes that a compiler may choose: from rows of x to rows of
   y through tiles. */
TEST_CASE(tiles, the_emulator_finds_operands) {
    static const uint8_t config[64] __attribute__((aligned(64))) = {
        [0] = 1,   [16] = 64, [18] = 64, [20] = 64, [22] = 64, [24] = 64,
        [26] = 64, [28] = 64, [30] = 64, [48] = 16, [49] = 16, [50] = 16,
        [51] = 16, [52] = 16, [53] = 16, [54] = 16, [55] = 16};
    enum { LD = 40, STEP = 4 * LD };
    float x[16 * LD], y[3][16 * LD] = {{0}};
    if (cpu_isa_level() < AMPC_ISA_V4) SKIP("no AVX-512 here");
    tiles_emulate();
    for (int i = 0; i < 16 * LD; i++) x[i] = (float)i;
    register const float *base __asm__("r13") = x;
    register int64_t half __asm__("r12") = STEP / 2;
    register float *far __asm__("rbx") = y[1] - 100;
    __asm__ volatile("ldtilecfg %5\n\t"
                     "tileloadd (%0,%1,2), %%tmm7\n\t"
                     "tileloadd 32(%0,%1,2), %%tmm0\n\t"
                     "tilezero %%tmm1\n\t"
                     "tilestored %%tmm7, (%2,%4,1)\n\t"
                     "tilestored %%tmm0, 464(%3,%4,1)\n\t"
                     "tilestored %%tmm1, (%6,%4,1)\n\t"
                     "tilerelease"
                     :
                     : "r"(base), "r"(half), "r"(y[0]), "r"(far),
                       "r"((int64_t)STEP), "m"(config), "r"(y[2])
                     : "memory");
    for (int i = 0; i < 16; i++)
        for (int j = 0; j < LD; j++) {
            CHECK(y[0][i * LD + j] == (j < 16 ? x[i * LD + j] : 0));
            int k = j - 16; /* 464 bytes are 116 floats */
            CHECK(y[1][i * LD + j] ==
                  (k >= 0 && k < 16 ? x[i * LD + 8 + k] : 0));
            CHECK(y[2][i * LD + j] == 0);
        }
}

/* ---- bits of products ---------------------------------------------------- */

/* C by tiles_dot: one tile after the other along k. */
static void product(const LibGemm *g, const uint16_t *a, const uint16_t *b,
                    float *c) {
    for (int64_t m = 0; m < g->m; m += 16)
        for (int64_t n = 0; n < g->n; n += 16) {
            float sum[16][16] = {{0}};
            for (int64_t k = 0; k < g->k; k += 32) {
                uint32_t x[16][16] = {{0}}, y[16][16] = {{0}};
                for (int i = 0; i < 16; i++)
                    for (int q = 0; q < 32; q++) {
                        if (k + q >= g->k) continue;
                        uint32_t up = q % 2 ? 16 : 0;
                        if (m + i < g->m)
                            x[i][q / 2] |=
                                (uint32_t)
                                    a[(m + i) * g->a_rs + (k + q) * g->a_cs]
                                << up;
                        if (n + i < g->n)
                            y[q / 2][i] |=
                                (uint32_t)
                                    b[(k + q) * g->b_rs + (n + i) * g->b_cs]
                                << up;
                    }
                tiles_dot(sum, (const uint32_t(*)[16])x,
                          (const uint32_t(*)[16])y);
            }
            for (int i = 0; i < 16 && m + i < g->m; i++)
                for (int j = 0; j < 16 && n + j < g->n; j++)
                    c[(m + i) * g->n + n + j] = sum[i][j];
        }
}

/* Each layout, each remainder, and several blocks along every side. */
TEST_CASE(tiles, products_have_the_bits_of_their_definition) {
    static const int64_t shapes[][3] = {
        {9, 1, 1},     {16, 16, 32},  {17, 33, 31},   {32, 48, 64},
        {40, 16, 33},  {15, 65, 513}, {200, 40, 100}, {33, 400, 70},
        {9, 17, 1025}, {64, 64, 1600}};
    if (cpu_isa_level() < AMPC_ISA_V4) SKIP("no AVX-512 here");
    rng = 73;
    pools_open();
    const AmpcCpuLib *lib = lib_of(top_level());
    CHECK_EQ_INT(lib->isa, AMPC_ISA_AMX);
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        for (int lay = 0; lay < 4; lay++) {
            LibGemm g = {.m = shapes[i][0],
                         .n = shapes[i][1],
                         .k = shapes[i][2],
                         .a_dtype = AMPC_BF16,
                         .b_dtype = AMPC_BF16,
                         .c_dtype = AMPC_F32};
            g.a_rs = lay & 1 ? 1 : g.k;
            g.a_cs = lay & 1 ? g.m : 1;
            g.b_rs = lay & 2 ? 1 : g.n;
            g.b_cs = lay & 2 ? g.k : 1;
            size_t bytes = (size_t)(g.m * g.n) * sizeof(float);
            void *a = array(AMPC_BF16, g.m * g.k);
            void *b = array(AMPC_BF16, g.k * g.n);
            float *got = block(bytes), *want = block(bytes);
            void *scratch = scratch_of(cpu_gemm_scratch(&g, 2));
            int64_t before = tiles_count();
            lib->gemm(lib->isa, pools[1], &g, a, b, got, NULL, scratch, NULL);
            product(&g, a, b, want);
            CHECK_MSG(!memcmp(got, want, bytes), "%d x %d x %d, layout %d",
                      (int)g.m, (int)g.n, (int)g.k, lay);
            if (!tiles_are_the_machines())
                CHECK_MSG(tiles_count() > before, "not on tiles");
            scratch_check(scratch, cpu_gemm_scratch(&g, 2));
            block_free(a);
            block_free(b);
            block_free(got);
            block_free(want);
        }
    pools_close();
}

/* ---- levels -------------------------------------------------------------- */

/* The level that AMPC_ISA=`isa` allows. */
static int level_under(const char *isa) {
    setenv("AMPC_ISA", isa, 1);
    return cpu_isa_level();
}

TEST_CASE(tiles, are_taken_where_they_are_asked_for) {
    char *old = getenv("AMPC_ISA"), *kept = old ? strdup(old) : NULL;
    if (level_under("v4") < AMPC_ISA_V4) SKIP("no AVX-512 here");
    tiles_emulate();
    CHECK_EQ_INT(level_under("v4-amx"), AMPC_ISA_AMX);
    CHECK_EQ_INT(level_under("v4"), AMPC_ISA_V4);
    CHECK_EQ_INT(level_under("v4-fma"), AMPC_ISA_V4);
    CHECK_EQ_INT(level_under("v4-dot"), AMPC_ISA_V4);
    CHECK_EQ_INT(level_under("v3"), AMPC_ISA_V3);
    /* an emulator alone does not count, and an unknown level is ignored */
    int top = tiles_are_the_machines() ? AMPC_ISA_AMX : AMPC_ISA_V4;
    CHECK_EQ_INT(level_under("v3-amx"), top);
    unsetenv("AMPC_ISA");
    CHECK_EQ_INT(cpu_isa_level(), top);
    if (kept) setenv("AMPC_ISA", kept, 1);
    free(kept);
}
