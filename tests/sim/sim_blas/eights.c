/* SPDX-License-Identifier: Apache-2.0 */
/* eights.c: products of numbers of 8 bits. */
#define _GNU_SOURCE
#include <math.h>
#include <string.h>

#include "tests/harness.h"
#include "tests/sim/sim_blas/sim_blas.h"
#include "tests/support/simulate.h"

static const Shape eights = {LT_R_8F_E4M3, LT_R_32F, 32,    16, 48, 1, 0,
                             true,         false,    false, 1,  0};

/* The scale is in the memory of the bias. */
static void set_scale(const Gpu *g, Problem *p, float scale) {
    to_device(g, p->at[BIAS], &scale, sizeof scale);
    REQUIRE(
        !blas_lt.DescSet(p->desc, LT_DESC_A_SCALE_POINTER, &p->at[BIAS], 8));
    p->alpha *= (double)scale;
}

TEST_CASE(sim_blas, products_of_eight_bits_match_a_plain_loop) {
    static const int out[] = {LT_R_32F, LT_R_16BF, LT_R_16F};
    Gpu g = gpu_new();
    for (int i = 0; i < 6; i++) {
        Shape s = eights;
        LtHeuristic r[8];
        s.out = out[i % 3];
        s.batch = i < 3 ? 1 : 2;
        Problem p = problem_new(&g, s);
        set_scale(&g, &p, 0.3125f);
        int n = blas_offers(&g, &p, r, 8);
        CHECK(n > 0);
        for (int k = 0; k < n; k++) {
            CHECK_EQ_INT(blas_matmul(&g, &p, &r[k].algo), 0);
            check_result(&g, &p, k);
            to_device(&g, p.at[MD], p.host[MD], p.bytes[MD]);
        }
        problem_free(&p);
    }
    CHECK_STR(sim()->errors(), "");
    gpu_free(&g);
}

static int offered(const Gpu *g, Shape s) {
    LtHeuristic r[1];
    Problem p = problem_new(g, s);
    int n = blas_offers(g, &p, r, 1);
    problem_free(&p);
    return n;
}

TEST_CASE(sim_blas, eight_bits_want_their_layout_sizes_and_gpu) {
    Gpu g = gpu_new();
    Shape s = eights;
    CHECK_EQ_INT(offered(&g, s), 1);
    s.ta = false;
    CHECK_EQ_INT(offered(&g, s), 0);
    s = eights, s.tb = true;
    CHECK_EQ_INT(offered(&g, s), 0);
    s = eights, s.k = 40;
    CHECK_EQ_INT(offered(&g, s), 0);
    s = eights, s.in = LT_R_8F_E5M2; /* both */
    CHECK_EQ_INT(offered(&g, s), 0);
    s = eights, s.epilogue = LT_EPILOGUE_BIAS;
    CHECK_EQ_INT(offered(&g, s), 0);
    gpu_free(&g);
}

/* ---- scales of blocks ---------------------------------------------------- */

/* Equal scales of all blocks of A, and of B: their codes. */
static void set_blocks(const Gpu *g, Problem *p, CUdeviceptr at[2], int a,
                       int b) {
    unsigned char bytes[512];
    const int code[] = {a, b}, lines[] = {p->s.m, p->s.n};
    set_int(p->desc, LT_DESC_A_SCALE_MODE, LT_SCALE_VEC32_UE8M0);
    set_int(p->desc, LT_DESC_B_SCALE_MODE, LT_SCALE_VEC32_UE8M0);
    for (int i = 0; i < 2; i++) {
        memset(bytes, 0, sizeof bytes);
        for (int r = 0; r < lines[i]; r++)
            for (int c = 0; c < p->s.k / 32; c++)
                bytes[r % 32 * 16 + r / 32 * 4 + c] = (unsigned char)code[i];
        REQUIRE(!blas_cu.MemAlloc(&at[i], sizeof bytes));
        to_device(g, at[i], bytes, sizeof bytes);
        REQUIRE(!blas_lt.DescSet(
            p->desc, i ? LT_DESC_B_SCALE_POINTER : LT_DESC_A_SCALE_POINTER,
            &at[i], 8));
        p->alpha *= ldexp(1, code[i] - 127);
    }
}

static void free_blocks(Problem *p, const CUdeviceptr at[2]) {
    for (int i = 0; i < 2; i++) CHECK_EQ_INT(blas_cu.MemFree(at[i]), 0);
    problem_free(p);
}

TEST_CASE(sim_blas, products_of_blocks_match_a_plain_loop) {
    LtHeuristic r[1];
    CUdeviceptr at[2];
    Gpu g = gpu_new_of(100);
    Shape s = eights;
    s.k = 96;
    Problem p = problem_new(&g, s);
    set_blocks(&g, &p, at, 130, 126);
    REQUIRE(blas_offers(&g, &p, r, 1) == 1);
    CHECK_EQ_INT(blas_matmul(&g, &p, &r[0].algo), 0);
    check_result(&g, &p, 0);
    CHECK_STR(sim()->errors(), "");
    free_blocks(&p, at);
    gpu_free(&g);
}

TEST_CASE(sim_blas, blocks_want_their_gpu_and_whole_blocks) {
    static const struct {
        int cc, k, offers;
    } cases[] = {{90, 96, 0}, {100, 80, 0}, {120, 96, 1}};
    for (int i = 0; i < 3; i++) {
        LtHeuristic r[1];
        CUdeviceptr at[2];
        Gpu g = gpu_new_of(cases[i].cc);
        Shape s = eights;
        s.k = cases[i].k;
        Problem p = problem_new(&g, s);
        set_blocks(&g, &p, at, 127, 127);
        CHECK_EQ_INT(blas_offers(&g, &p, r, 1), cases[i].offers);
        free_blocks(&p, at);
        gpu_free(&g);
    }
}

/* The library reads whole tiles. */
TEST_CASE(sim_blas, scales_beyond_the_matrix_are_zero) {
    LtHeuristic r[1];
    CUdeviceptr at[2];
    unsigned char one = 127;
    Gpu g = gpu_new_of(100);
    Shape s = eights;
    s.k = 96;
    Problem p = problem_new(&g, s);
    set_blocks(&g, &p, at, 127, 127);
    to_device(&g, at[0] + 3, &one, 1); /* block 3 of the first line */
    REQUIRE(blas_offers(&g, &p, r, 1) == 1);
    CHECK_EQ_INT(blas_matmul(&g, &p, &r[0].algo), 0);
    CHECK(blas_cu.StreamSynchronize(g.stream) != 0);
    CHECK(strstr(sim()->errors(), "scales beyond the matrix are not 0"));
}

/* Only there is a scale. */
TEST_CASE(sim_blas, sixteen_bits_take_no_scale) {
    Gpu g = gpu_new();
    LtHeuristic r[1];
    Shape s = eights;
    s.in = LT_R_16BF;
    Problem p = problem_new(&g, s);
    CHECK_EQ_INT(blas_offers(&g, &p, r, 1), 1);
    set_scale(&g, &p, 2);
    CHECK_EQ_INT(blas_offers(&g, &p, r, 1), 0);
    problem_free(&p);
    gpu_free(&g);
}
