/* SPDX-License-Identifier: Apache-2.0 */
/* cuda_product_test.c: matrix products of the GPU runtime on the simulated
   cuBLASLt: random sizes, strides, batches, dtypes and fused forms, against
   plain loops.  The plan is made by hand and contains only products. */
#define _POSIX_C_SOURCE 200809L
#include "tests/support/simulate.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/api/session.h"
#include "runtime/program/dtype.h"
#include "tests/support/factor.h"
#include "tests/support/tiny_module.h"
#include "tests/tolerance.h"

enum { CASES = 160, ELEMENTS = 4096, REFS = 4 };
/* LibGemm, and an AmpcFactors. */
enum { PARS = sizeof(LibGemm) / sizeof(int64_t) + 1 };

/* For each dtype, operands A and B and a bias; then the scale. */
enum { V_A, V_B, V_BIAS, V_PER_TYPE, V_SCALE = 4 * V_PER_TYPE, V_COUNT };
static const uint32_t types[] = {AMPC_F32, AMPC_BF16, AMPC_F16, AMPC_F64};

typedef struct Products {
    AmpcModule m;
    PlanProgram program;
    PlanRun run;
    PlanTarget plan;
    PlanCuda cuda;
    PlanVar vars[V_COUNT];
    PlanStep steps[CASES];
    PlanRef refs[CASES *
                 (REFS + 1)]; /* references of the steps, then of the results */
    int64_t pars[CASES * PARS];
    PlanTensor tensors[CASES];
    char names[CASES + V_COUNT][16];
    double value[V_COUNT][ELEMENTS];
} Products;

static uint32_t state;
static int64_t random_below(int64_t n) {
    state = state * 1664525u + 1013904223u;
    return (int64_t)(state >> 10) % n;
}

/* ---- elements ------------------------------------------------------------ */

static double element(uint32_t dtype, const void *p, int64_t i) {
    switch (dtype) {
    case AMPC_F16: return f16_to_f32(((const uint16_t *)p)[i]);
    case AMPC_BF16: return bf16_to_f32(((const uint16_t *)p)[i]);
    case AMPC_F64: return ((const double *)p)[i];
    default: return ((const float *)p)[i];
    }
}

static void put_element(uint32_t dtype, void *p, int64_t i, double x) {
    switch (dtype) {
    case AMPC_F16: ((uint16_t *)p)[i] = f32_to_f16((float)x); break;
    case AMPC_BF16: ((uint16_t *)p)[i] = f32_to_bf16((float)x); break;
    case AMPC_F64: ((double *)p)[i] = x; break;
    default: ((float *)p)[i] = (float)x; break;
    }
}

/* ---- the plan ------------------------------------------------------------ */

static void make_var(Products *p, int v, uint32_t dtype, int64_t n) {
    snprintf(p->names[v], sizeof p->names[v], "v%d", v);
    p->vars[v] = (PlanVar){.name = p->names[v],
                           .kind = PLAN_PARAM,
                           .dtype = dtype,
                           .rank = n > 1,
                           .dim = {n},
                           .bytes = (uint64_t)n * dtype_bytes(dtype),
                           .init = -1};
}

/* rows x cols: packed or padded, in either order. */
static void strides(int64_t rows, int64_t cols, int64_t *rs, int64_t *cs) {
    bool by_row = random_below(2);
    int64_t pad = random_below(3);
    *rs = by_row ? cols + pad : 1;
    *cs = by_row ? 1 : rows + pad;
    if (rows == 1 && random_below(2)) *rs = 77; /* stepped over never */
    if (cols == 1 && random_below(2)) *cs = 0;
}

static int64_t make_batch(LibGemm *g) {
    int64_t a = (g->m + 2) * (g->k + 2), b = (g->k + 2) * (g->n + 2);
    bool one_a = random_below(4) == 0, one_b = random_below(4) == 0;
    int64_t count = 1;
    g->nbatch_dim = random_below(4);
    for (int64_t i = g->nbatch_dim - 1; i >= 0; i--) {
        g->batch_dim[i] = 1 + random_below(2);
        g->a_bs[i] = one_a ? 0 : a * count;
        g->b_bs[i] = one_b ? 0 : b * count;
        count *= g->batch_dim[i];
    }
    return count;
}

static LibGemm make_gemm(int *type, int64_t *batch) {
    static const int64_t sizes[] = {1, 2, 3, 5, 8, 16};
    LibGemm g = {.m = sizes[random_below(6)],
                 .n = sizes[random_below(6)],
                 .k = sizes[random_below(6)]};
    strides(g.m, g.k, &g.a_rs, &g.a_cs);
    strides(g.k, g.n, &g.b_rs, &g.b_cs);
    *batch = make_batch(&g);
    if (random_below(20) == 0) g.k = 0;
    if (random_below(30) == 0) g.n = 0;
    *type = (int)random_below(4);
    g.a_dtype = g.b_dtype = g.c_dtype = types[*type];
    if (*type != 3 && random_below(2)) g.c_dtype = AMPC_F32;
    return g;
}

static uint32_t make_fused(const LibGemm *g) {
    uint32_t f = (uint32_t)random_below(4);
    if (g->k == 0 || g->n == 0 || g->a_dtype == AMPC_F64) return 0;
    return f == PLAN_PRODUCT_SCALE && g->c_dtype != AMPC_F32 ? 0 : f;
}

static int var_of(uint32_t dtype, int which) {
    int t = 0;
    while (types[t] != dtype) t++;
    return t * V_PER_TYPE + which;
}

/* A few elements in bytes, so that each operand has a different alignment. */
static uint64_t shift(uint32_t dtype) {
    static const int64_t elements[] = {0, 0, 1, 2, 4, 8};
    return (uint64_t)elements[random_below(6)] * dtype_bytes(dtype);
}

static void make_case(Products *p, uint32_t i, uint64_t *arena) {
    int type;
    int64_t batch;
    LibGemm g = make_gemm(&type, &batch);
    uint32_t fused = make_fused(&g), r = i * REFS;
    int64_t factors = g.a_dtype == AMPC_F32 ? random_below(AMPC_NFACTORS) : 0;
    uint32_t out = (uint32_t)g.c_dtype;
    uint64_t bytes = (uint64_t)(batch * g.m * g.n) * dtype_bytes(out);
    PlanRef at = {PLAN_ARENA, 0, *arena + shift(out)};
    snprintf(p->names[V_COUNT + i], 16, "case%u", i);
    memcpy(&p->pars[i * PARS], &g, sizeof g);
    p->pars[i * PARS + PARS - 1] = factors;
    int bias = fused == PLAN_PRODUCT_SCALE ? V_SCALE : var_of(out, V_BIAS);
    p->refs[r] = var_ref((uint32_t)var_of((uint32_t)g.a_dtype, V_A),
                         shift((uint32_t)g.a_dtype));
    p->refs[r + 1] = var_ref((uint32_t)var_of((uint32_t)g.b_dtype, V_B),
                             shift((uint32_t)g.b_dtype));
    p->refs[r + 2] = at;
    p->refs[r + 3] = var_ref((uint32_t)bias, bias == V_SCALE ? 0 : shift(out));
    p->steps[i] = (PlanStep){.kind = PLAN_PRODUCT,
                             .fn = fused,
                             .ref0 = r,
                             .nref = 3 + (fused != PLAN_PRODUCT_PLAIN),
                             .par0 = i * PARS,
                             .npar = PARS - (factors == AMPC_FACTORS_F32),
                             .name = p->names[V_COUNT + i]};
    p->tensors[i] = (PlanTensor){.name = p->names[V_COUNT + i],
                                 .dtype = out,
                                 .rank = 3,
                                 .dim = {batch, g.m, g.n}};
    p->refs[CASES * REFS + i] = at;
    *arena = (at.offset + bytes + 255) / 256 * 256;
}

static void make_plan(Products *p) {
    uint64_t arena = 0;
    for (int t = 0; t < 4; t++)
        for (int v = 0; v < V_PER_TYPE; v++)
            make_var(p, t * V_PER_TYPE + v, types[t], ELEMENTS);
    make_var(p, V_SCALE, AMPC_F32, 1);
    for (uint32_t i = 0; i < CASES; i++) make_case(p, i, &arena);
    p->program = (PlanProgram){.name = "predict", .nout = CASES};
    p->run = (PlanRun){.nstep = CASES, .out0 = CASES * REFS, .arena = arena};
    p->plan = (PlanTarget){.nstep = CASES,
                           .nref = CASES * (REFS + 1),
                           .npar = CASES * PARS,
                           .runs = &p->run,
                           .steps = p->steps,
                           .refs = p->refs,
                           .pars = p->pars};
    p->cuda = (PlanCuda){.plan = &p->plan, .backend = &ampc_cuda_backend};
    p->m = (AmpcModule){.version = AMPC_PLAN_VERSION,
                        .model = "products",
                        .info = "{}",
                        .nprogram = 1,
                        .nvar = V_COUNT,
                        .ntensor = CASES,
                        .programs = &p->program,
                        .vars = p->vars,
                        .tensors = p->tensors,
                        .cuda = &p->cuda};
}

/* ---- values -------------------------------------------------------------- */

static void write_values(Products *p, ampc_session *s) {
    for (int v = 0; v < V_COUNT; v++) {
        double data[ELEMENTS];
        const PlanVar *var = &p->vars[v];
        int64_t n = var->rank ? ELEMENTS : 1;
        for (int64_t i = 0; i < n; i++) {
            put_element(var->dtype, data, i,
                        (double)(random_below(1 << 16) - (1 << 15)) / 20000);
            p->value[v][i] = element(var->dtype, data, i);
        }
        ampc_input in = ampc_in(NULL, data, var->bytes, (ampc_dtype)var->dtype);
        CHECK_EQ_INT(tiny_api()->write_variable(s, var->name, &in), AMPC_OK);
    }
}

static double value_at(const Products *p, PlanRef r, int64_t i) {
    size_t first = r.offset / dtype_bytes(p->vars[r.index].dtype);
    return p->value[r.index][first + (size_t)i];
}

static double expected(const Products *p, uint32_t i, int64_t e) {
    LibGemm g;
    const PlanRef *r = &p->refs[i * REFS];
    uint32_t fused = p->steps[i].fn;
    memcpy(&g, &p->pars[i * PARS], sizeof g);
    int64_t b = e / (g.m * g.n), m = e / g.n % g.m, n = e % g.n, a0 = 0, b0 = 0;
    double sum = 0;
    for (int64_t d = g.nbatch_dim - 1; d >= 0; b /= g.batch_dim[d--]) {
        a0 += b % g.batch_dim[d] * g.a_bs[d];
        b0 += b % g.batch_dim[d] * g.b_bs[d];
    }
    AmpcFactors f = (AmpcFactors)p->pars[i * PARS + PARS - 1];
    for (int64_t k = 0; k < g.k; k++)
        sum += factor_of(f, value_at(p, r[0], a0 + m * g.a_rs + k * g.a_cs)) *
               factor_of(f, value_at(p, r[1], b0 + k * g.b_rs + n * g.b_cs));
    if (fused == PLAN_PRODUCT_SCALE) sum *= p->value[V_SCALE][0];
    if (fused == PLAN_PRODUCT_BIAS) sum += value_at(p, r[3], n);
    if (fused == PLAN_PRODUCT_ADD) sum += value_at(p, r[3], e);
    return sum;
}

/* Rounded once to the result's dtype, after a sum in fp32. */
static double allowed(uint32_t dtype) {
    return dtype == AMPC_BF16  ? TOL_PRODUCT_BF16
           : dtype == AMPC_F16 ? TOL_PRODUCT_F16
                               : TOL_PRODUCT_F32;
}

static void check_case(const Products *p, ampc_session *s, uint32_t i) {
    double data[ELEMENTS];
    const PlanTensor *t = &p->tensors[i];
    int64_t n = t->dim[0] * t->dim[1] * t->dim[2];
    ampc_output out = ampc_out(NULL, data, sizeof data, (ampc_dtype)t->dtype);
    REQUIRE(n <= ELEMENTS);
    memset(data, 0xff, sizeof data);
    CHECK_EQ_INT(tiny_api()->read_output(s, t->name, &out), AMPC_OK);
    for (int64_t e = 0; e < n; e++) {
        double got = element(t->dtype, data, e), want = expected(p, i, e);
        if (!CHECK_MSG(fabs(got - want) <= allowed(t->dtype) * (fabs(want) + 4),
                       "case %u, element %lld: %g, not %g", i, (long long)e,
                       got, want))
            return;
    }
}

/* Runs differ: eager, captured, replayed. */
static void check_products(Products *p) {
    ampc_options o = {.size = sizeof o, .device = "cuda"};
    ampc_session *s;
    char err[600];
    const ampc_api *a = tiny_api();
    if (a->open(tiny_handle(&p->m), &o, &s, err, sizeof err))
        FAIL("open: %s", err);
    for (int run = 0; run < 3; run++) {
        write_values(p, s);
        CHECK_EQ_INT(a->predict(s, NULL, 0, 0, NULL, 0), AMPC_OK);
        for (uint32_t i = 0; i < CASES; i++) check_case(p, s, i);
    }
    a->close(s);
    CHECK_STR(sim()->leaks(), "");
    CHECK_STR(sim()->errors(), "");
}

static void with_seed(uint32_t seed, const char *tune) {
    Products *p = calloc(1, sizeof *p);
    REQUIRE(p);
    state = seed;
    make_plan(p);
    const char *dir = test_tmp("cache");
    setenv("AMPC_CACHE_DIR", dir, 1);
    setenv("AMPC_TUNE", tune, 1);
    setenv("AMPC_LIBCUDA", sim()->path, 1);
    setenv("AMPC_LIBCUBLASLT", sim()->cublaslt, 1);
    sim()->reset(&(SimConfig){.seed = seed});
    check_products(p);
    free(p);
}

TEST_CASE(cuda_product, agrees_with_plain_loops) {
    for (uint32_t seed = 1; seed < 4; seed++) with_seed(seed, "1");
}

/* The first offered algorithm is used without measuring: for the addresses
   of operands, addends and results. */
TEST_CASE(cuda_product, agrees_untried) {
    for (uint32_t seed = 4; seed < 8; seed++) with_seed(seed, "0");
}

/* A product that cuBLASLt cannot compute is refused with the step's name. */
TEST_CASE(cuda_product, refuses_what_has_no_algorithm) {
    static Products p;
    ampc_options o = {.size = sizeof o, .device = "cuda"};
    ampc_session *s;
    char err[600];
    state = 1;
    make_plan(&p);
    LibGemm *g = (LibGemm *)(void *)p.pars;
    *g = (LibGemm){.m = 4,
                   .n = 4,
                   .k = 4,
                   .a_rs = 8,
                   .a_cs = 2,
                   .b_rs = 4,
                   .b_cs = 1,
                   .a_dtype = AMPC_F32,
                   .b_dtype = AMPC_F32,
                   .c_dtype = AMPC_F32};
    setenv("AMPC_LIBCUDA", sim()->path, 1);
    setenv("AMPC_LIBCUBLASLT", sim()->cublaslt, 1);
    sim()->reset(NULL);
    CHECK_EQ_INT(tiny_api()->open(tiny_handle(&p.m), &o, &s, err, sizeof err),
                 AMPC_ERR_UNSUPPORTED);
    CHECK_HAS(err,
              "step 'case0': cuBLASLt cannot do this product: its strides");
    CHECK_STR(sim()->leaks(), "");
}

TEST_CASE(cuda_product, refuses_unknown_factors) {
    static const int64_t wrong[] = {AMPC_FACTORS_F32, AMPC_NFACTORS, -1};
    static Products p;
    ampc_options o = {.size = sizeof o, .device = "cuda"};
    setenv("AMPC_LIBCUDA", sim()->path, 1);
    setenv("AMPC_LIBCUBLASLT", sim()->cublaslt, 1);
    for (int i = 0; i < 3; i++) {
        char err[600] = "";
        ampc_session *s = NULL;
        state = 1;
        make_plan(&p);
        p.steps[0].npar = PARS;
        p.pars[PARS - 1] = wrong[i];
        sim()->reset(NULL);
        CHECK_EQ_INT(
            tiny_api()->open(tiny_handle(&p.m), &o, &s, err, sizeof err),
            AMPC_ERR_INTERNAL);
    }
}

/* Operands of two types, and an f32 factor in memory for a product in f64. */
TEST_CASE(cuda_product, refuses_what_has_no_type) {
    static Products p;
    ampc_options o = {.size = sizeof o, .device = "cuda"};
    setenv("AMPC_LIBCUDA", sim()->path, 1);
    setenv("AMPC_LIBCUBLASLT", sim()->cublaslt, 1);
    for (int i = 0; i < 4 * 4 * 2; i++) {
        uint32_t a = types[i % 4], b = types[i / 4 % 4];
        bool scale = i / 16;
        char err[600] = "";
        ampc_session *s = NULL;
        state = 1;
        make_plan(&p);
        *(LibGemm *)(void *)p.pars = (LibGemm){.m = 4,
                                               .n = 4,
                                               .k = 4,
                                               .a_rs = 4,
                                               .a_cs = 1,
                                               .b_rs = 4,
                                               .b_cs = 1,
                                               .a_dtype = a,
                                               .b_dtype = b,
                                               .c_dtype = a};
        p.refs[3] = var_ref(V_SCALE, 0);
        p.steps[0].fn = scale ? PLAN_PRODUCT_SCALE : PLAN_PRODUCT_PLAIN;
        p.steps[0].nref = 3 + scale;
        sim()->reset(NULL);
        bool types_refused = a != b || (a == AMPC_F64 && scale);
        if (tiny_api()->open(tiny_handle(&p.m), &o, &s, err, sizeof err) ==
            AMPC_OK)
            tiny_api()->close(s);
        CHECK_MSG((strstr(err, "its types") != NULL) == types_refused,
                  "%u times %u, scale %d: %s", a, b, scale, err);
        CHECK_STR(sim()->leaks(), "");
    }
}

/* Partial sums are never rounded to 16 bits: 2049 - 2048 would be 0. */
TEST_CASE(cuda_product, parts_of_a_sum_are_wide) {
    enum { M = 16, K = 48 };
    static Products p;
    ampc_options o = {.size = sizeof o, .device = "cuda"};
    uint16_t a[ELEMENTS] = {0}, b[ELEMENTS], y[M * M];
    ampc_session *s;
    char err[600];
    state = 1;
    make_plan(&p);
    LibGemm g = {.m = M,
                 .n = M,
                 .k = K,
                 .a_rs = K,
                 .a_cs = 1,
                 .b_rs = M,
                 .b_cs = 1,
                 .a_dtype = AMPC_BF16,
                 .b_dtype = AMPC_BF16,
                 .c_dtype = AMPC_BF16};
    int va = var_of(AMPC_BF16, V_A), vb = var_of(AMPC_BF16, V_B);
    PlanRef at = {PLAN_ARENA, 0, p.run.arena};
    memcpy(p.pars, &g, sizeof g);
    p.refs[0] = var_ref((uint32_t)va, 0);
    p.refs[1] = var_ref((uint32_t)vb, 0);
    p.refs[2] = p.refs[CASES * REFS] = at;
    p.run.arena += sizeof y;
    p.steps[0].fn = PLAN_PRODUCT_PLAIN;
    p.steps[0].nref = 3;
    p.tensors[0].dtype = AMPC_BF16;
    p.tensors[0].dim[0] = 1;
    p.tensors[0].dim[1] = p.tensors[0].dim[2] = M;
    for (int i = 0; i < M; i++)
        for (int k = 0; k < 32; k++)
            a[i * K + k] = f32_to_bf16(k == 0 ? 129 : k < 16 ? 128 : -128);
    for (int i = 0; i < ELEMENTS; i++) b[i] = f32_to_bf16(1);
    unsetenv("AMPC_TUNE");
    setenv("AMPC_LIBCUDA", sim()->path, 1);
    setenv("AMPC_LIBCUBLASLT", sim()->cublaslt, 1);
    sim()->reset(NULL);
    if (tiny_api()->open(tiny_handle(&p.m), &o, &s, err, sizeof err))
        FAIL("open: %s", err);
    ampc_input in[] = {ampc_in(NULL, a, sizeof a, AMPC_DTYPE_BF16),
                       ampc_in(NULL, b, sizeof b, AMPC_DTYPE_BF16)};
    ampc_output out = ampc_out(NULL, y, sizeof y, AMPC_DTYPE_BF16);
    CHECK_EQ_INT(tiny_api()->write_variable(s, p.vars[va].name, &in[0]), 0);
    CHECK_EQ_INT(tiny_api()->write_variable(s, p.vars[vb].name, &in[1]), 0);
    CHECK_EQ_INT(tiny_api()->predict(s, NULL, 0, 0, NULL, 0), AMPC_OK);
    CHECK_EQ_INT(tiny_api()->read_output(s, p.tensors[0].name, &out), AMPC_OK);
    for (int i = 0; i < M * M; i++) CHECK_NEAR(bf16_to_f32(y[i]), 1, 0);
    tiny_api()->close(s);
    CHECK_STR(sim()->errors(), "");
}
