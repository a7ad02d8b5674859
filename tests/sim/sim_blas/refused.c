/* SPDX-License-Identifier: Apache-2.0 */
/* refused.c: refused calls, streams and graphs. */
#define _GNU_SOURCE
#include <string.h>

#include "runtime/program/dtype.h"
#include "tests/harness.h"
#include "tests/sim/sim_blas/sim_blas.h"
#include "tests/support/simulate.h"

/* ---- what is refused ----------------------------------------------------- */

/* Replaces one layout, asks, and restores a legal one. */
static void check_layout_refused(const Gpu *g, Problem *p, int which, int rows,
                                 int cols, int ld, int batch) {
    REQUIRE(!blas_lt.LayoutDestroy(p->layout[which]));
    REQUIRE(!blas_lt.LayoutCreate(&p->layout[which], type_of(&p->s, which),
                                  (uint64_t)rows, (uint64_t)cols, ld));
    REQUIRE(
        !blas_lt.LayoutSet(p->layout[which], LT_LAYOUT_BATCH_COUNT, &batch, 4));
    CHECK_MSG(blas_offered(g, p) == 0, "matrix %d of %dx%d, ld %d", which, rows,
              cols, ld);
    CHECK(blas_matmul(g, p, NULL) != 0);
    REQUIRE(!blas_lt.LayoutDestroy(p->layout[which]));
    make_layout(p, which);
}

TEST_CASE(sim_blas, shapes_that_do_not_fit_are_refused) {
    Gpu g = gpu_new();
    Shape s = blas_plain;
    s.m = 16, s.n = 24, s.k = 32;
    Problem p = problem_new(&g, s);
    check_layout_refused(&g, &p, MA, 32, 16, 32, 1); /* not transposed */
    check_layout_refused(&g, &p, MA, 16, 32, 15, 1); /* ld < rows */
    check_layout_refused(&g, &p, MB, 24, 32, 32, 1);
    check_layout_refused(&g, &p, MC, 24, 16, 24, 1);
    check_layout_refused(&g, &p, MD, 16, 16, 16, 1);
    check_layout_refused(&g, &p, MD, 16, 24, 0, 1);
    check_layout_refused(&g, &p, MB, 32, 24, 32, 2); /* batch counts */
    check_layout_refused(&g, &p, MB, 32, 0, 32, 1);
    int row_major = 1;
    REQUIRE(!blas_lt.LayoutSet(p.layout[MD], LT_LAYOUT_ORDER, &row_major, 4));
    CHECK_EQ_INT(blas_offered(&g, &p), 0);
    problem_free(&p);
    gpu_free(&g);
}

static void check_addresses_refused(const Gpu *g, const Problem *p,
                                    const LtHeuristic *r, int which,
                                    CUdeviceptr address, const char *why) {
    CUdeviceptr at[NBUF];
    memcpy(at, p->at, sizeof at);
    at[which] = address;
    CHECK(matmul_at(g, p, &r->algo, at, p->bytes[WORK]) != 0);
    CHECK_HAS(sim()->errors(), why);
}

TEST_CASE(sim_blas, addresses_are_checked) {
    Gpu g = gpu_new();
    Problem p = problem_new(&g, blas_plain);
    LtHeuristic r[8];
    int n = blas_offers(&g, &p, r, 8);
    while (n-- && !r[n].workspace) {
    }
    REQUIRE(n >= 0);
    r[0] = r[n];
    check_addresses_refused(&g, &p, r, MA, 0, "NULL");
    check_addresses_refused(&g, &p, r, MA, p.at[MA] + 128, "outside");
    check_addresses_refused(&g, &p, r, MB, p.at[MB] + 2, "aligned");
    check_addresses_refused(&g, &p, r, MD, p.at[MA], "overlaps an operand");
    check_addresses_refused(&g, &p, r, WORK, p.at[WORK] + 128, "workspace");
    CHECK(matmul_at(&g, &p, &r[0].algo, p.at, r[0].workspace - 1) != 0);
    CHECK_HAS(sim()->errors(), "workspace smaller");
    problem_free(&p);
    gpu_free(&g);
}

TEST_CASE(sim_blas, a_leading_dimension_too_large_is_caught) {
    Gpu g = gpu_new();
    Problem p = problem_new(&g, blas_plain);
    REQUIRE(!blas_lt.LayoutDestroy(p.layout[MB]));
    REQUIRE(!blas_lt.LayoutCreate(&p.layout[MB], LT_R_16BF, 64, 16, 72));
    CHECK(blas_matmul(&g, &p, NULL) != 0);
    CHECK_HAS(sim()->errors(), "outside of device memory");
    problem_free(&p);
    gpu_free(&g);
}

TEST_CASE(sim_blas, failures_are_injected) {
    Gpu g = gpu_new();
    Problem p = problem_new(&g, blas_plain);
    LtHeuristic r[1];
    sim()->fail("cublasLtMatmulAlgoGetHeuristic", 1, LT_INTERNAL_ERROR, false);
    CHECK_EQ_INT(blas_offers(&g, &p, r, 1), 0);
    REQUIRE(blas_offers(&g, &p, r, 1) == 1);
    sim()->fail("cublasLtMatmul", 2, LT_EXECUTION_FAILED, false);
    CHECK_EQ_INT(blas_matmul(&g, &p, &r->algo), 0);
    CHECK_EQ_INT(blas_matmul(&g, &p, &r->algo), LT_EXECUTION_FAILED);
    CHECK_EQ_INT(blas_matmul(&g, &p, &r->algo), 0);
    REQUIRE(!blas_cu.StreamSynchronize(g.stream));
    problem_free(&p);
    gpu_free(&g);
}

/* ---- streams and graphs -------------------------------------------------- */

TEST_CASE(sim_blas, a_call_copies_its_arguments) {
    Gpu g = gpu_new();
    Shape s = blas_plain;
    s.beta = 0.25f;
    Problem p = problem_new(&g, s);
    LtHeuristic r[1];
    REQUIRE(blas_offers(&g, &p, r, 1) == 1);
    REQUIRE(!blas_matmul(&g, &p, &r->algo));
    memset(p.host[SCALARS], 0, 8);
    set_int(p.desc, LT_DESC_EPILOGUE, LT_EPILOGUE_RELU);
    check_result(&g, &p, 0);
    problem_free(&p);
    gpu_free(&g);
}

TEST_CASE(sim_blas, captured_products_run_at_every_replay) {
    Gpu g = gpu_new();
    Shape s = blas_plain;
    s.device_scalars = true, s.epilogue = LT_EPILOGUE_RELU_BIAS;
    Problem p = problem_new(&g, s);
    CUgraph graph;
    CUgraphExec exec;
    LtHeuristic r[1];
    REQUIRE(blas_offers(&g, &p, r, 1) == 1);
    REQUIRE(!blas_cu.StreamBeginCapture(g.stream, CUDA_CAPTURE_THREAD_LOCAL));
    CHECK_EQ_INT(blas_matmul(&g, &p, &r->algo), 0);
    REQUIRE(!blas_cu.StreamEndCapture(g.stream, &graph));
    REQUIRE(!blas_cu.GraphInstantiate(&exec, graph, 0));
    REQUIRE(!blas_cu.GraphDestroy(graph));
    for (int i = 0; i < 3; i++) {
        p.alpha = 0.5 * (i + 1);
        put_scalars(&p, &g);
        blas_fill(&p, MA, s.in);
        to_device(&g, p.at[MA], p.host[MA], p.bytes[MA]);
        CHECK_EQ_INT(blas_cu.GraphLaunch(exec, g.stream), 0);
        check_result(&g, &p, i);
    }
    CHECK_EQ_INT(blas_cu.GraphExecDestroy(exec), 0);
    CHECK_STR(sim()->errors(), "");
    problem_free(&p);
    gpu_free(&g);
}
