/* SPDX-License-Identifier: Apache-2.0 */
/* objects.c: objects, attributes and the heuristic's offers. */
#define _GNU_SOURCE
#include <stdlib.h>
#include <string.h>

#include "tests/harness.h"
#include "tests/sim/sim_blas/sim_blas.h"
#include "tests/support/simulate.h"

/* ---- objects and attributes ---------------------------------------------- */

TEST_CASE(sim_blas, attributes_have_names_and_sizes) {
    Gpu g = gpu_new();
    Shape s = {LT_R_32F, LT_R_32F, 8, 8, 8, 1, 0, 0, 0, 0, 1, 0};
    Problem p = problem_new(&g, s);
    int64_t v = 1;
    CHECK_EQ_INT(blas_lt.DescSet(p.desc, LT_DESC_TRANSA, &v, 8),
                 LT_INVALID_VALUE);
    CHECK_EQ_INT(blas_lt.DescSet(p.desc, LT_DESC_TRANSA, NULL, 4),
                 LT_INVALID_VALUE);
    CHECK_EQ_INT(blas_lt.DescSet(p.desc, 99, &v, 4), LT_INVALID_VALUE);
    CHECK_EQ_INT(blas_lt.DescSet(p.desc, LT_DESC_BIAS_POINTER, &v, 4),
                 LT_INVALID_VALUE);
    CHECK_EQ_INT(blas_lt.LayoutSet(p.layout[MA], LT_LAYOUT_BATCH_COUNT, &v, 8),
                 LT_INVALID_VALUE);
    CHECK_EQ_INT(blas_lt.LayoutSet(p.layout[MA], LT_LAYOUT_BATCH_STRIDE, &v, 4),
                 LT_INVALID_VALUE);
    CHECK_EQ_INT(blas_lt.PrefSet(p.pref, LT_PREF_MAX_WORKSPACE, &v, 4),
                 LT_INVALID_VALUE);
    CHECK_EQ_INT(blas_lt.PrefSet(p.pref, LT_PREF_ALIGN_D, &v, 8),
                 LT_INVALID_VALUE);
    problem_free(&p);
    gpu_free(&g);
}

TEST_CASE(sim_blas, without_a_device_there_is_no_handle) {
    blas_load();
    sim()->reset(NULL);
    LtHandle h = NULL;
    CHECK_EQ_INT(blas_lt.Create(&h), LT_NOT_INITIALIZED);
    LtLayout l;
    CHECK_EQ_INT(blas_lt.LayoutCreate(&l, LT_R_32F, 2, 2, 2), 0);
    CHECK_EQ_INT(blas_lt.LayoutDestroy(l), 0);
}

/* ---- what the heuristic offers ------------------------------------------- */

const Shape blas_plain = {LT_R_16BF, LT_R_16BF, 16, 16, 64, 1,
                          0,         0,         0,  0,  1,  0};

int blas_offered(const Gpu *g, const Problem *p) {
    LtHeuristic r[8];
    return blas_offers(g, p, r, 8);
}

TEST_CASE(sim_blas, preferences_narrow_the_choice) {
    Gpu g = gpu_new();
    Problem p = problem_new(&g, blas_plain);
    LtHeuristic r[8];
    int all = blas_offered(&g, &p);
    CHECK(all >= 3);
    CHECK_EQ_INT(blas_offers(&g, &p, r, 2), 2);
    set_workspace(&p, p.bytes[WORK], 7);
    CHECK_EQ_INT(blas_offered(&g, &p), all + 1); /* rounds in the workspace */
    set_workspace(&p, 0, 7);
    int n = blas_offers(&g, &p, r, 8);
    CHECK(n > 0 && n < all);
    for (int i = 0; i < n; i++) CHECK_EQ_INT(r[i].workspace, 0);
    uint32_t align = 2;
    REQUIRE(!blas_lt.PrefSet(p.pref, LT_PREF_ALIGN_B, &align, 4));
    CHECK_EQ_INT(blas_offered(&g, &p), 1);
    problem_free(&p);

    Shape s = blas_plain;
    s.device_scalars = true;
    p = problem_new(&g, s);
    CHECK(blas_offered(&g, &p) < all);
    problem_free(&p);
    gpu_free(&g);
}

TEST_CASE(sim_blas, preferences_default_to_no_workspace) {
    Gpu g = gpu_new();
    Problem p = problem_new(&g, blas_plain);
    LtHeuristic r[8];
    REQUIRE(!blas_lt.PrefDestroy(p.pref) && !blas_lt.PrefCreate(&p.pref));
    int n = blas_offers(&g, &p, r, 8);
    CHECK(n > 0);
    for (int i = 0; i < n; i++) CHECK_EQ_INT(r[i].workspace, 0);
    problem_free(&p);
    gpu_free(&g);
}

TEST_CASE(sim_blas, algorithms_differ_in_bits) {
    Gpu g = gpu_new();
    Shape s = blas_plain;
    s.in = s.out = LT_R_32F, s.k = 200;
    Problem p = problem_new(&g, s);
    LtHeuristic r[8];
    int n = blas_offers(&g, &p, r, 8), different = 0;
    char *first = malloc(p.bytes[MD]), *other = malloc(p.bytes[MD]);
    for (int i = 0; i < n; i++) {
        REQUIRE(!blas_matmul(&g, &p, &r[i].algo));
        from_device(&g, i ? other : first, p.at[MD], p.bytes[MD]);
        different += i && memcmp(first, other, p.bytes[MD]);
    }
    CHECK_EQ_INT(different, n - 1);
    free(first);
    free(other);
    problem_free(&p);
    gpu_free(&g);
}

TEST_CASE(sim_blas, unsupported_combinations_have_no_algorithm) {
    Shape s[] = {
        {LT_R_16F, LT_R_16BF, 8, 8, 8, 1, 0, 0, 0, 0, 1, 0},
        {LT_R_32F, LT_R_16BF, 8, 8, 8, 1, 0, 0, 0, 0, 1, 0},
        {LT_R_64F, LT_R_32F, 8, 8, 8, 1, 0, 0, 0, 0, 1, 0},
        {LT_R_64F, LT_R_64F, 8, 8, 8, 1, 0, 0, 0, 0, 4, 0},
        {LT_R_32F, LT_R_32F, 8, 8, 8, 1, 0, 0, 0, 0, 32, 0}, /* GELU */
    };
    Gpu g = gpu_new();
    for (size_t i = 0; i < sizeof s / sizeof *s; i++) {
        Problem p = problem_new(&g, s[i]);
        CHECK_EQ_INT(blas_offered(&g, &p), 0);
        CHECK(blas_matmul(&g, &p, NULL) != 0);
        problem_free(&p);
    }
    gpu_free(&g);
}

TEST_CASE(sim_blas, a_saved_algorithm_is_checked) {
    Gpu g = gpu_new();
    Problem p = problem_new(&g, blas_plain);
    Shape wider = blas_plain;
    wider.n = 24;
    Problem q = problem_new(&g, wider);
    LtHeuristic r[1];
    REQUIRE(blas_offers(&g, &p, r, 1) == 1);
    LtAlgo none = {{0}};
    CHECK_EQ_INT(check_algo(&g, &p, &r->algo), 0);
    CHECK(check_algo(&g, &q, &r->algo) != 0);
    CHECK(check_algo(&g, &p, &none) != 0);
    CHECK_EQ_INT(blas_lt.Version(), 130100);
    setenv("AMPC_SIM_BLAS_VERSION", "120803", 1);
    CHECK_EQ_INT(blas_lt.Version(), 120803);
    CHECK(check_algo(&g, &p, &r->algo) != 0);
    CHECK(blas_matmul(&g, &p, &r->algo) != 0);
    CHECK_HAS(sim()->errors(), "version");
    unsetenv("AMPC_SIM_BLAS_VERSION");
    problem_free(&q);
    problem_free(&p);
    gpu_free(&g);
}
