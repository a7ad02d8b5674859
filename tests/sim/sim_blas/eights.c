/* SPDX-License-Identifier: Apache-2.0 */
/* eights.c: products of numbers of 8 bits. */
#define _GNU_SOURCE
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
