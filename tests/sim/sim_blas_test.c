/* SPDX-License-Identifier: Apache-2.0 */
/* sim_blas_test.c: the simulated cuBLASLt, called like the runtime calls it.

   Compares the results of every algorithm with a plain loop; tests what its
   heuristic offers, what it refuses, and that products run when their stream
   does. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/program/dtype.h"
#include "tests/harness.h"
#include "tests/sim/sim_blas/sim_blas.h"
#include "tests/support/simulate.h"

Driver blas_cu;

Blas blas_lt;

static void find(void *lib, const char *symbol, void *field) {
    void *p = dlsym(lib, symbol);
    if (!p) FAIL("no %s in the simulator", symbol);
    memcpy(field, &p, sizeof p);
}

void blas_load(void) {
    void *driver = sim()->handle;
    if (!sim()->cublaslt) FAIL("no cuBLASLt look-alike");
    void *blas = dlopen(sim()->cublaslt, RTLD_NOW | RTLD_LOCAL);
    if (!blas) FAIL("%s", dlerror());
#define CU(member, symbol, parameters) find(driver, symbol, &blas_cu.member);
#include "runtime/cuda/driver.def"
#undef CU
#define LT(member, symbol, parameters) find(blas, symbol, &blas_lt.member);
#include "runtime/cuda/cublaslt.def"
#undef LT
    find(blas, "cublasLtGetVersion", &blas_lt.Version);
}

/* ---- a device with a stream and a handle --------------------------------- */

Gpu gpu_new(void) { return gpu_new_of(0); }

Gpu gpu_new_of(int cc) {
    Gpu g;
    blas_load();
    sim()->reset(&(SimConfig){.cc = cc});
    REQUIRE(!blas_cu.Init(0) && !blas_cu.PrimaryCtxRetain(&g.ctx, 0));
    REQUIRE(!blas_cu.CtxPushCurrent(g.ctx));
    REQUIRE(!blas_cu.StreamCreate(&g.stream, CUDA_STREAM_NON_BLOCKING));
    REQUIRE(!blas_lt.Create(&g.h));
    return g;
}

void gpu_free(Gpu *g) {
    CHECK_EQ_INT(blas_lt.Destroy(g->h), 0);
    CHECK_EQ_INT(blas_cu.StreamDestroy(g->stream), 0);
    CHECK_EQ_INT(blas_cu.CtxPopCurrent(&g->ctx), 0);
    CHECK_EQ_INT(blas_cu.PrimaryCtxRelease(0), 0);
    CHECK_STR(sim()->leaks(), "");
}

static CUdeviceptr device_new(size_t bytes) {
    CUdeviceptr p;
    if (blas_cu.MemAlloc(&p, bytes)) FAIL("cuMemAlloc of %zu bytes", bytes);
    return p;
}

void to_device(const Gpu *g, CUdeviceptr to, const void *p, size_t n) {
    REQUIRE(!blas_cu.MemcpyHtoDAsync(to, p, n, g->stream));
    REQUIRE(!blas_cu.StreamSynchronize(g->stream));
}

void from_device(const Gpu *g, void *to, CUdeviceptr p, size_t n) {
    REQUIRE(!blas_cu.MemcpyDtoHAsync(to, p, n, g->stream));
    REQUIRE(!blas_cu.StreamSynchronize(g->stream));
}

/* ---- one product --------------------------------------------------------- */

static size_t size_of(int type) {
    switch (type) {
    case LT_R_64F: return 8;
    case LT_R_32F: return 4;
    case LT_R_8F_E4M3:
    case LT_R_8F_E5M2: return 1;
    default: return 2;
    }
}

static double get(int type, const void *p, size_t i) {
    if (type == LT_R_64F) return ((const double *)p)[i];
    if (type == LT_R_32F) return ((const float *)p)[i];
    if (type == LT_R_8F_E4M3) return f8e4m3_to_f32(((const uint8_t *)p)[i]);
    if (type == LT_R_8F_E5M2) return f8e5m2_to_f32(((const uint8_t *)p)[i]);
    uint16_t h = ((const uint16_t *)p)[i];
    return type == LT_R_16F ? f16_to_f32(h) : bf16_to_f32(h);
}

static void put(int type, void *p, size_t i, double v) {
    if (type == LT_R_64F)
        ((double *)p)[i] = v;
    else if (type == LT_R_32F)
        ((float *)p)[i] = (float)v;
    else if (type == LT_R_8F_E4M3)
        ((uint8_t *)p)[i] = f32_to_f8e4m3((float)v);
    else if (type == LT_R_8F_E5M2)
        ((uint8_t *)p)[i] = f32_to_f8e5m2((float)v);
    else if (type == LT_R_16F)
        ((uint16_t *)p)[i] = f32_to_f16((float)v);
    else
        ((uint16_t *)p)[i] = f32_to_bf16((float)v);
}

int type_of(const Shape *s, int which) {
    return which == MA || which == MB ? s->in : s->out;
}

static int rows_of(const Shape *s, int which) {
    if (which == MA) return s->ta ? s->k : s->m;
    if (which == MB) return s->tb ? s->n : s->k;
    return s->m;
}

static int cols_of(const Shape *s, int which) {
    if (which == MA) return s->ta ? s->m : s->k;
    if (which == MB) return s->tb ? s->k : s->n;
    return s->n;
}

static int64_t ld_of(const Shape *s, int which) {
    return rows_of(s, which) + s->pad;
}

static int64_t stride_of(const Shape *s, int which) {
    return ld_of(s, which) * cols_of(s, which);
}

void set_int(LtDesc d, int attribute, int value) {
    REQUIRE(!blas_lt.DescSet(d, attribute, &value, sizeof value));
}

void make_layout(Problem *p, int which) {
    const Shape *s = &p->s;
    int64_t stride = stride_of(s, which);
    REQUIRE(!blas_lt.LayoutCreate(
        &p->layout[which], type_of(s, which), (uint64_t)rows_of(s, which),
        (uint64_t)cols_of(s, which), ld_of(s, which)));
    if (s->batch == 1) return;
    REQUIRE(!blas_lt.LayoutSet(p->layout[which], LT_LAYOUT_BATCH_COUNT,
                               &s->batch, sizeof s->batch));
    REQUIRE(!blas_lt.LayoutSet(p->layout[which], LT_LAYOUT_BATCH_STRIDE,
                               &stride, sizeof stride));
}

static void make_desc(Problem *p) {
    const Shape *s = &p->s;
    bool wide = s->in == LT_R_64F;
    REQUIRE(!blas_lt.DescCreate(&p->desc,
                                wide ? LT_COMPUTE_64F : LT_COMPUTE_32F,
                                wide ? LT_R_64F : LT_R_32F));
    set_int(p->desc, LT_DESC_TRANSA, s->ta);
    set_int(p->desc, LT_DESC_TRANSB, s->tb);
    set_int(p->desc, LT_DESC_EPILOGUE, (int)s->epilogue);
    set_int(p->desc, LT_DESC_POINTER_MODE, s->device_scalars);
    REQUIRE(!blas_lt.DescSet(p->desc, LT_DESC_BIAS_POINTER, &p->at[BIAS], 8));
}

void set_workspace(Problem *p, uint64_t bytes, uint32_t mask) {
    REQUIRE(!blas_lt.PrefSet(p->pref, LT_PREF_MAX_WORKSPACE, &bytes, 8));
    REQUIRE(!blas_lt.PrefSet(p->pref, LT_PREF_REDUCTION_MASK, &mask, 4));
}

void blas_fill(Problem *p, int buf, int type) {
    static uint32_t seed = 1;
    for (size_t i = 0; i < p->bytes[buf] / size_of(type); i++) {
        seed = seed * 1664525u + 1013904223u;
        put(type, p->host[buf], i, (double)(int32_t)seed / 2147483648.0);
    }
}

void put_scalars(Problem *p, const Gpu *g) {
    int scale = p->s.in == LT_R_64F ? LT_R_64F : LT_R_32F;
    put(scale, p->host[SCALARS], 0, p->alpha);
    put(scale, p->host[SCALARS], 1, p->s.beta);
    to_device(g, p->at[SCALARS], p->host[SCALARS], p->bytes[SCALARS]);
}

Problem problem_new(const Gpu *g, Shape s) {
    Problem p = {.s = s, .alpha = 0.75};
    for (int i = 0; i < 4; i++)
        p.bytes[i] =
            (size_t)(stride_of(&s, i) * s.batch) * size_of(type_of(&s, i));
    p.bytes[BIAS] = (size_t)s.m * size_of(s.out);
    p.bytes[WORK] = 1 << 20;
    p.bytes[SCALARS] = 16;
    for (int i = 0; i < NBUF; i++) {
        p.at[i] = device_new(p.bytes[i]);
        p.host[i] = calloc(1, p.bytes[i]);
        if (i < WORK) blas_fill(&p, i, i == BIAS ? s.out : type_of(&s, i));
        if (i < WORK) to_device(g, p.at[i], p.host[i], p.bytes[i]);
    }
    put_scalars(&p, g);
    for (int i = 0; i < 4; i++) make_layout(&p, i);
    make_desc(&p);
    REQUIRE(!blas_lt.PrefCreate(&p.pref));
    set_workspace(&p, p.bytes[WORK],
                  LT_REDUCTION_INPLACE | LT_REDUCTION_COMPUTE_TYPE);
    return p;
}

void problem_free(Problem *p) {
    for (int i = 0; i < NBUF; i++) {
        CHECK_EQ_INT(blas_cu.MemFree(p->at[i]), 0);
        free(p->host[i]);
    }
    for (int i = 0; i < 4; i++)
        CHECK_EQ_INT(blas_lt.LayoutDestroy(p->layout[i]), 0);
    CHECK_EQ_INT(blas_lt.DescDestroy(p->desc), 0);
    CHECK_EQ_INT(blas_lt.PrefDestroy(p->pref), 0);
}

int blas_offers(const Gpu *g, const Problem *p, LtHeuristic *r, int wanted) {
    int found = -1;
    int s = blas_lt.Heuristic(g->h, p->desc, p->layout[MA], p->layout[MB],
                              p->layout[MC], p->layout[MD], p->pref, wanted, r,
                              &found);
    return s ? 0 : found;
}

int check_algo(const Gpu *g, const Problem *p, const LtAlgo *a) {
    LtHeuristic r;
    return blas_lt.AlgoCheck(g->h, p->desc, p->layout[MA], p->layout[MB],
                             p->layout[MC], p->layout[MD], a, &r);
}

int matmul_at(const Gpu *g, const Problem *p, const LtAlgo *a,
              const CUdeviceptr *at, size_t workspace) {
    bool dev = p->s.device_scalars;
    size_t size = p->s.in == LT_R_64F ? 8 : 4;
    const char *host = p->host[SCALARS];
    const char *scalars = dev ? (char *)(uintptr_t)p->at[SCALARS] : host;
    return blas_lt.Matmul(
        g->h, p->desc, scalars, (void *)(uintptr_t)at[MA], p->layout[MA],
        (void *)(uintptr_t)at[MB], p->layout[MB], scalars + size,
        (void *)(uintptr_t)at[MC], p->layout[MC], (void *)(uintptr_t)at[MD],
        p->layout[MD], a, (void *)(uintptr_t)at[WORK], workspace, g->stream);
}

int blas_matmul(const Gpu *g, const Problem *p, const LtAlgo *a) {
    return matmul_at(g, p, a, p->at, p->bytes[WORK]);
}

/* ---- results beside a plain loop ----------------------------------------- */

static double element(const Problem *p, int which, int b, int r, int c) {
    const Shape *s = &p->s;
    int64_t i = b * stride_of(s, which) + c * ld_of(s, which) + r;
    return get(type_of(s, which), p->host[which], (size_t)i);
}

static double expected(const Problem *p, int b, int i, int j, double *mass) {
    const Shape *s = &p->s;
    double sum = 0;
    *mass = 0;
    for (int k = 0; k < s->k; k++) {
        double x = s->ta ? element(p, MA, b, k, i) : element(p, MA, b, i, k);
        double y = s->tb ? element(p, MB, b, j, k) : element(p, MB, b, k, j);
        sum += x * y;
        *mass += fabs(x * y);
    }
    sum = p->alpha * sum;
    if (s->beta != 0) sum += (double)s->beta * element(p, MC, b, i, j);
    if (s->epilogue & LT_EPILOGUE_BIAS)
        sum += get(s->out, p->host[BIAS], (size_t)i);
    return s->epilogue & LT_EPILOGUE_RELU ? fmax(sum, 0) : sum;
}

static double unit(int type) {
    switch (type) {
    case LT_R_64F: return 0x1p-53;
    case LT_R_32F: return 0x1p-24;
    case LT_R_16F: return 0x1p-11;
    default: return 0x1p-8;
    }
}

void check_result(const Gpu *g, Problem *p, int algo) {
    const Shape *s = &p->s;
    char *got = malloc(p->bytes[MD]);
    double acc = unit(s->in == LT_R_64F ? LT_R_64F : LT_R_32F);
    from_device(g, got, p->at[MD], p->bytes[MD]);
    for (int b = 0; b < s->batch; b++)
        for (int j = 0; j < s->n; j++)
            for (int i = 0; i < (int)ld_of(s, MD); i++) {
                int64_t at = b * stride_of(s, MD) + j * ld_of(s, MD) + i;
                double v = get(s->out, got, (size_t)at), mass = 0;
                bool pad = i >= s->m;
                double want =
                    pad ? element(p, MD, b, i, j) : expected(p, b, i, j, &mass);
                double tol = pad ? 0
                                 : (s->k + 4) * acc * (mass + 2) +
                                       unit(s->out) * fabs(want);
                CHECK_MSG(fabs(v - want) <= tol,
                          "algorithm %d, [%d %d %d] of %dx%dx%d: %g, not %g",
                          algo, b, i, j, s->m, s->n, s->k, v, want);
            }
    free(got);
}

static void check_shape(const Gpu *g, Shape s) {
    Problem p = problem_new(g, s);
    LtHeuristic r[8];
    int n = blas_offers(g, &p, r, 8);
    CHECK_MSG(n > 0, "no algorithm: types %d %d, epilogue %u", s.in, s.out,
              s.epilogue);
    for (int i = 0; i < n; i++) {
        CHECK_EQ_INT(check_algo(g, &p, &r[i].algo), 0);
        CHECK_EQ_INT(blas_matmul(g, &p, &r[i].algo), 0);
        check_result(g, &p, i);
        to_device(g, p.at[MD], p.host[MD], p.bytes[MD]);
    }
    problem_free(&p);
}

TEST_CASE(sim_blas, products_match_a_plain_loop) {
    static const int types[][2] = {
        {LT_R_32F, LT_R_32F}, {LT_R_16BF, LT_R_16BF}, {LT_R_16BF, LT_R_32F},
        {LT_R_16F, LT_R_16F}, {LT_R_16F, LT_R_32F},   {LT_R_64F, LT_R_64F}};
    static const uint32_t epilogues[] = {1, 2, 4, 6};
    Gpu g = gpu_new();
    for (int t = 0; t < 6; t++)
        for (int trans = 0; trans < 4; trans++)
            for (int e = 0; e < (types[t][0] == LT_R_64F ? 1 : 4); e++) {
                Shape s = {types[t][0], types[t][1],  16,
                           8,           24,           1,
                           0,           trans & 1,    trans >> 1,
                           e & 1,       epilogues[e], 0};
                check_shape(&g, s);
                s.batch = 3, s.pad = 8, s.beta = 0.5f, s.k = 40;
                check_shape(&g, s);
                s.m = 5, s.n = 3, s.k = 7, s.pad = 1; /* nothing aligned */
                s.device_scalars = false;
                check_shape(&g, s);
            }
    CHECK_STR(sim()->errors(), "");
    gpu_free(&g);
}

TEST_CASE(sim_blas, in_place_and_one_column) {
    Gpu g = gpu_new();
    Shape s = {LT_R_16BF, LT_R_32F, 16, 1, 64, 1, 0, true, false, false, 1, 1};
    Problem p = problem_new(&g, s);
    LtHeuristic r[1];
    REQUIRE(blas_offers(&g, &p, r, 1) == 1);
    CUdeviceptr at[NBUF];
    memcpy(at, p.at, sizeof at);
    at[MC] = at[MD];
    memcpy(p.host[MC], p.host[MD], p.bytes[MD]);
    CHECK_EQ_INT(matmul_at(&g, &p, &r[0].algo, at, p.bytes[WORK]), 0);
    check_result(&g, &p, 0);
    CHECK_STR(sim()->errors(), "");
    problem_free(&p);
    gpu_free(&g);
}
