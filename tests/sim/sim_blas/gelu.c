/* SPDX-License-Identifier: Apache-2.0 */
/* gelu.c: products with GELU, in the form of tanh, or times its slope. */
#define _GNU_SOURCE
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/program/half.h"
#include "tests/harness.h"
#include "tests/sim/sim_blas/sim_blas.h"
#include "tests/support/simulate.h"

enum { OF = LT_EPILOGUE_GELU, AUX = LT_EPILOGUE_AUX, LD = 24 };

static const Shape gelu_shape = {LT_R_16BF, LT_R_16BF, 16,    8, 40, 1,
                                 0,         true,      false, 0, OF, 0};

static double number(const char *at, size_t i) {
    uint16_t h;
    memcpy(&h, at + 2 * i, sizeof h);
    return bf16_to_f32(h);
}

static double gelu(double x) {
    return 0.5 * x *
           (1 + tanh(sqrt(2 / acos(-1)) * (x + 0.044715 * x * x * x)));
}

static void set_aux(Problem *p, CUdeviceptr at, int64_t ld) {
    REQUIRE(!blas_lt.DescSet(p->desc, LT_DESC_AUX_POINTER, &at, 8));
    REQUIRE(!blas_lt.DescSet(p->desc, LT_DESC_AUX_LD, &ld, 8));
}

/* alpha A'B + bias. */
static double product_at(const Problem *p, int i, int j) {
    const Shape *s = &p->s;
    double sum = 0;
    for (int k = 0; k < s->k; k++)
        sum += number(p->host[MA], (size_t)(i * s->k + k)) *
               number(p->host[MB], (size_t)(j * s->k + k));
    sum *= p->alpha;
    return s->epilogue & LT_EPILOGUE_BIAS
               ? sum + number(p->host[BIAS], (size_t)i)
               : sum;
}

static void near_to(double got, double want, const char *what) {
    CHECK_MSG(fabs(got - want) <= 0x1p-8 * fabs(want) + 1e-5, "%s: %g, not %g",
              what, got, want);
}

static void check_gelu(uint32_t epilogue) {
    Gpu g = gpu_new();
    Shape s = gelu_shape;
    LtHeuristic r;
    s.epilogue = epilogue;
    Problem p = problem_new(&g, s);
    bool slope = epilogue == LT_EPILOGUE_DGELU;
    char *got = malloc(p.bytes[MD]), *aux = calloc(1, p.bytes[WORK]);
    for (size_t i = 0; i < LD * 8; i++) {
        uint16_t h = f32_to_bf16((float)i / 32 - 3);
        memcpy(aux + 2 * i, &h, sizeof h);
    }
    CUdeviceptr at = p.at[WORK] + p.bytes[WORK] / 2;
    to_device(&g, at, aux, LD * 8 * 2);
    set_aux(&p, at, LD);
    set_workspace(&p, 0, 0);
    REQUIRE(blas_offers(&g, &p, &r, 1) == 1);
    CHECK_EQ_INT(matmul_at(&g, &p, &r.algo, p.at, 0), 0);
    from_device(&g, got, p.at[MD], p.bytes[MD]);
    from_device(&g, aux, at, LD * 8 * 2);
    for (int i = 0; i < s.m; i++)
        for (int j = 0; j < s.n; j++) {
            double z = product_at(&p, i, j),
                   x = number(aux, (size_t)(j * LD + i));
            double d = number(got, (size_t)(j * s.m + i));
            double slope_at = (gelu(x + 1e-4) - gelu(x - 1e-4)) / 2e-4;
            near_to(d, slope ? z * slope_at : gelu(z),
                    slope ? "slope" : "gelu");
            if (epilogue & AUX && !slope) near_to(x, z, "operand");
        }
    CHECK_STR(sim()->errors(), "");
    free(got);
    free(aux);
    problem_free(&p);
    gpu_free(&g);
}

TEST_CASE(sim_blas, gelu_and_its_slope_match_plain_loops) {
    check_gelu(OF);
    check_gelu(OF + LT_EPILOGUE_BIAS);
    check_gelu(OF + AUX);
    check_gelu(OF + AUX + LT_EPILOGUE_BIAS);
    check_gelu(LT_EPILOGUE_DGELU);
}

static int offers_gelu(const Gpu *g, Shape s, CUdeviceptr at, int64_t ld) {
    Problem p = problem_new(g, s);
    LtHeuristic r;
    set_aux(&p, at, ld);
    int n = blas_offers(g, &p, &r, 1);
    problem_free(&p);
    return n;
}

TEST_CASE(sim_blas, gelu_wants_its_operand) {
    Gpu g = gpu_new();
    Shape s = gelu_shape;
    LtHeuristic r;
    s.epilogue = OF + AUX;
    CHECK_EQ_INT(offers_gelu(&g, s, 4096, LD), 1);
    CHECK_EQ_INT(offers_gelu(&g, s, 4096, 8), 0);  /* less than D's rows */
    CHECK_EQ_INT(offers_gelu(&g, s, 4096, 17), 0); /* no multiple of 8 */
    s.out = LT_R_32F;
    CHECK_EQ_INT(offers_gelu(&g, s, 4096, LD), 0);
    s = gelu_shape;
    s.epilogue = LT_EPILOGUE_DGELU;
    Problem p = problem_new(&g, s);
    set_aux(&p, 0, s.m);
    REQUIRE(blas_offers(&g, &p, &r, 1) == 1);
    CHECK_EQ_INT(blas_matmul(&g, &p, &r.algo), LT_INVALID_VALUE);
    set_aux(&p, p.at[MD], s.m); /* where D lies */
    CHECK_EQ_INT(blas_matmul(&g, &p, &r.algo), LT_INVALID_VALUE);
    problem_free(&p);
    gpu_free(&g);
}
