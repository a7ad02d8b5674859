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
#include "tests/support/simulate.h"

static struct {
#define CU(member, symbol, parameters) CUresult(*member) parameters;
#include "runtime/cuda/driver.def"
#undef CU
} cu;

static struct {
#define LT(member, symbol, parameters) int(*member) parameters;
#include "runtime/cuda/cublaslt.def"
#undef LT
    size_t (*Version)(void);
} lt;

static void find(void *lib, const char *symbol, void *field) {
    void *p = dlsym(lib, symbol);
    if (!p) FAIL("no %s in the simulator", symbol);
    memcpy(field, &p, sizeof p);
}

static void load(void) {
    void *driver = sim()->handle;
    if (!sim()->cublaslt) FAIL("no cuBLASLt look-alike");
    void *blas = dlopen(sim()->cublaslt, RTLD_NOW | RTLD_LOCAL);
    if (!blas) FAIL("%s", dlerror());
#define CU(member, symbol, parameters) find(driver, symbol, &cu.member);
#include "runtime/cuda/driver.def"
#undef CU
#define LT(member, symbol, parameters) find(blas, symbol, &lt.member);
#include "runtime/cuda/cublaslt.def"
#undef LT
    find(blas, "cublasLtGetVersion", &lt.Version);
}

/* ---- a device with a stream and a handle --------------------------------- */

typedef struct Gpu {
    CUcontext ctx;
    CUstream stream;
    LtHandle h;
} Gpu;

static Gpu gpu_new(void) {
    Gpu g;
    load();
    sim()->reset(NULL);
    REQUIRE(!cu.Init(0) && !cu.PrimaryCtxRetain(&g.ctx, 0));
    REQUIRE(!cu.CtxPushCurrent(g.ctx));
    REQUIRE(!cu.StreamCreate(&g.stream, CUDA_STREAM_NON_BLOCKING));
    REQUIRE(!lt.Create(&g.h));
    return g;
}

static void gpu_free(Gpu *g) {
    CHECK_EQ_INT(lt.Destroy(g->h), 0);
    CHECK_EQ_INT(cu.StreamDestroy(g->stream), 0);
    CHECK_EQ_INT(cu.CtxPopCurrent(&g->ctx), 0);
    CHECK_EQ_INT(cu.PrimaryCtxRelease(0), 0);
    CHECK_STR(sim()->leaks(), "");
}

static CUdeviceptr device_new(size_t bytes) {
    CUdeviceptr p;
    if (cu.MemAlloc(&p, bytes)) FAIL("cuMemAlloc of %zu bytes", bytes);
    return p;
}

static void to_device(const Gpu *g, CUdeviceptr to, const void *p, size_t n) {
    REQUIRE(!cu.MemcpyHtoDAsync(to, p, n, g->stream));
    REQUIRE(!cu.StreamSynchronize(g->stream));
}

static void from_device(const Gpu *g, void *to, CUdeviceptr p, size_t n) {
    REQUIRE(!cu.MemcpyDtoHAsync(to, p, n, g->stream));
    REQUIRE(!cu.StreamSynchronize(g->stream));
}

/* ---- one product --------------------------------------------------------- */

typedef struct Shape {
    int in, out;             /* LT_R_* */
    int m, n, k, batch, pad; /* pad: elements added to the leading dimensions */
    bool ta, tb, device_scalars;
    uint32_t epilogue;
    float beta;
} Shape;

enum { MA, MB, MC, MD, BIAS, WORK, SCALARS, NBUF };

typedef struct Problem {
    Shape s;
    LtDesc desc;
    LtLayout layout[4];
    LtPref pref;
    CUdeviceptr at[NBUF];
    size_t bytes[NBUF];
    char *host[NBUF];
    double alpha;
} Problem;

static size_t size_of(int type) {
    return type == LT_R_64F ? 8 : type == LT_R_32F ? 4 : 2;
}

static double get(int type, const void *p, size_t i) {
    if (type == LT_R_64F) return ((const double *)p)[i];
    if (type == LT_R_32F) return ((const float *)p)[i];
    uint16_t h = ((const uint16_t *)p)[i];
    return type == LT_R_16F ? f16_to_f32(h) : bf16_to_f32(h);
}

static void put(int type, void *p, size_t i, double v) {
    if (type == LT_R_64F)
        ((double *)p)[i] = v;
    else if (type == LT_R_32F)
        ((float *)p)[i] = (float)v;
    else if (type == LT_R_16F)
        ((uint16_t *)p)[i] = f32_to_f16((float)v);
    else
        ((uint16_t *)p)[i] = f32_to_bf16((float)v);
}

static int type_of(const Shape *s, int which) {
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

static void set_int(LtDesc d, int attribute, int value) {
    REQUIRE(!lt.DescSet(d, attribute, &value, sizeof value));
}

static void make_layout(Problem *p, int which) {
    const Shape *s = &p->s;
    int64_t stride = stride_of(s, which);
    REQUIRE(!lt.LayoutCreate(&p->layout[which], type_of(s, which),
                             (uint64_t)rows_of(s, which),
                             (uint64_t)cols_of(s, which), ld_of(s, which)));
    if (s->batch == 1) return;
    REQUIRE(!lt.LayoutSet(p->layout[which], LT_LAYOUT_BATCH_COUNT, &s->batch,
                          sizeof s->batch));
    REQUIRE(!lt.LayoutSet(p->layout[which], LT_LAYOUT_BATCH_STRIDE, &stride,
                          sizeof stride));
}

static void make_desc(Problem *p) {
    const Shape *s = &p->s;
    bool wide = s->in == LT_R_64F;
    REQUIRE(!lt.DescCreate(&p->desc, wide ? LT_COMPUTE_64F : LT_COMPUTE_32F,
                           wide ? LT_R_64F : LT_R_32F));
    set_int(p->desc, LT_DESC_TRANSA, s->ta);
    set_int(p->desc, LT_DESC_TRANSB, s->tb);
    set_int(p->desc, LT_DESC_EPILOGUE, (int)s->epilogue);
    set_int(p->desc, LT_DESC_POINTER_MODE, s->device_scalars);
    REQUIRE(!lt.DescSet(p->desc, LT_DESC_BIAS_POINTER, &p->at[BIAS], 8));
}

static void set_workspace(Problem *p, uint64_t bytes, uint32_t mask) {
    REQUIRE(!lt.PrefSet(p->pref, LT_PREF_MAX_WORKSPACE, &bytes, 8));
    REQUIRE(!lt.PrefSet(p->pref, LT_PREF_REDUCTION_MASK, &mask, 4));
}

/* Values in [-1, 1] that f16 and bf16 represent exactly, or not. */
static void fill(Problem *p, int buf, int type) {
    static uint32_t seed = 1;
    for (size_t i = 0; i < p->bytes[buf] / size_of(type); i++) {
        seed = seed * 1664525u + 1013904223u;
        put(type, p->host[buf], i, (double)(int32_t)seed / 2147483648.0);
    }
}

static void put_scalars(Problem *p, const Gpu *g) {
    int scale = p->s.in == LT_R_64F ? LT_R_64F : LT_R_32F;
    put(scale, p->host[SCALARS], 0, p->alpha);
    put(scale, p->host[SCALARS], 1, p->s.beta);
    to_device(g, p->at[SCALARS], p->host[SCALARS], p->bytes[SCALARS]);
}

static Problem problem_new(const Gpu *g, Shape s) {
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
        if (i < WORK) fill(&p, i, i == BIAS ? s.out : type_of(&s, i));
        if (i < WORK) to_device(g, p.at[i], p.host[i], p.bytes[i]);
    }
    put_scalars(&p, g);
    for (int i = 0; i < 4; i++) make_layout(&p, i);
    make_desc(&p);
    REQUIRE(!lt.PrefCreate(&p.pref));
    set_workspace(&p, p.bytes[WORK],
                  LT_REDUCTION_INPLACE | LT_REDUCTION_COMPUTE_TYPE);
    return p;
}

static void problem_free(Problem *p) {
    for (int i = 0; i < NBUF; i++) {
        CHECK_EQ_INT(cu.MemFree(p->at[i]), 0);
        free(p->host[i]);
    }
    for (int i = 0; i < 4; i++) CHECK_EQ_INT(lt.LayoutDestroy(p->layout[i]), 0);
    CHECK_EQ_INT(lt.DescDestroy(p->desc), 0);
    CHECK_EQ_INT(lt.PrefDestroy(p->pref), 0);
}

static int offers(const Gpu *g, const Problem *p, LtHeuristic *r, int wanted) {
    int found = -1;
    int s =
        lt.Heuristic(g->h, p->desc, p->layout[MA], p->layout[MB], p->layout[MC],
                     p->layout[MD], p->pref, wanted, r, &found);
    return s ? 0 : found;
}

static int check_algo(const Gpu *g, const Problem *p, const LtAlgo *a) {
    LtHeuristic r;
    return lt.AlgoCheck(g->h, p->desc, p->layout[MA], p->layout[MB],
                        p->layout[MC], p->layout[MD], a, &r);
}

/* The product with other matrices or another workspace than p's. */
static int matmul_at(const Gpu *g, const Problem *p, const LtAlgo *a,
                     const CUdeviceptr *at, size_t workspace) {
    bool dev = p->s.device_scalars;
    size_t size = p->s.in == LT_R_64F ? 8 : 4;
    const char *host = p->host[SCALARS];
    const char *scalars = dev ? (char *)(uintptr_t)p->at[SCALARS] : host;
    return lt.Matmul(g->h, p->desc, scalars, (void *)(uintptr_t)at[MA],
                     p->layout[MA], (void *)(uintptr_t)at[MB], p->layout[MB],
                     scalars + size, (void *)(uintptr_t)at[MC], p->layout[MC],
                     (void *)(uintptr_t)at[MD], p->layout[MD], a,
                     (void *)(uintptr_t)at[WORK], workspace, g->stream);
}

static int matmul(const Gpu *g, const Problem *p, const LtAlgo *a) {
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

static void check_result(const Gpu *g, Problem *p, int algo) {
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
    int n = offers(g, &p, r, 8);
    CHECK_MSG(n > 0, "no algorithm: types %d %d, epilogue %u", s.in, s.out,
              s.epilogue);
    for (int i = 0; i < n; i++) {
        CHECK_EQ_INT(check_algo(g, &p, &r[i].algo), 0);
        CHECK_EQ_INT(matmul(g, &p, &r[i].algo), 0);
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
    REQUIRE(offers(&g, &p, r, 1) == 1);
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

/* ---- objects and attributes ---------------------------------------------- */

TEST_CASE(sim_blas, attributes_have_names_and_sizes) {
    Gpu g = gpu_new();
    Shape s = {LT_R_32F, LT_R_32F, 8, 8, 8, 1, 0, 0, 0, 0, 1, 0};
    Problem p = problem_new(&g, s);
    int64_t v = 1;
    CHECK_EQ_INT(lt.DescSet(p.desc, LT_DESC_TRANSA, &v, 8), LT_INVALID_VALUE);
    CHECK_EQ_INT(lt.DescSet(p.desc, LT_DESC_TRANSA, NULL, 4), LT_INVALID_VALUE);
    CHECK_EQ_INT(lt.DescSet(p.desc, 99, &v, 4), LT_INVALID_VALUE);
    CHECK_EQ_INT(lt.DescSet(p.desc, LT_DESC_BIAS_POINTER, &v, 4),
                 LT_INVALID_VALUE);
    CHECK_EQ_INT(lt.LayoutSet(p.layout[MA], LT_LAYOUT_BATCH_COUNT, &v, 8),
                 LT_INVALID_VALUE);
    CHECK_EQ_INT(lt.LayoutSet(p.layout[MA], LT_LAYOUT_BATCH_STRIDE, &v, 4),
                 LT_INVALID_VALUE);
    CHECK_EQ_INT(lt.PrefSet(p.pref, LT_PREF_MAX_WORKSPACE, &v, 4),
                 LT_INVALID_VALUE);
    CHECK_EQ_INT(lt.PrefSet(p.pref, LT_PREF_ALIGN_D, &v, 8), LT_INVALID_VALUE);
    problem_free(&p);
    gpu_free(&g);
}

TEST_CASE(sim_blas, without_a_device_there_is_no_handle) {
    load();
    sim()->reset(NULL);
    LtHandle h = NULL;
    CHECK_EQ_INT(lt.Create(&h), LT_NOT_INITIALIZED);
    LtLayout l;
    CHECK_EQ_INT(lt.LayoutCreate(&l, LT_R_32F, 2, 2, 2), 0);
    CHECK_EQ_INT(lt.LayoutDestroy(l), 0);
}

/* ---- what the heuristic offers ------------------------------------------- */

static const Shape plain = {LT_R_16BF, LT_R_16BF, 16, 16, 64, 1,
                            0,         0,         0,  0,  1,  0};

static int offered(const Gpu *g, const Problem *p) {
    LtHeuristic r[8];
    return offers(g, p, r, 8);
}

TEST_CASE(sim_blas, preferences_narrow_the_choice) {
    Gpu g = gpu_new();
    Problem p = problem_new(&g, plain);
    LtHeuristic r[8];
    int all = offered(&g, &p);
    CHECK(all >= 3);
    CHECK_EQ_INT(offers(&g, &p, r, 2), 2);
    set_workspace(&p, p.bytes[WORK], 7);
    CHECK_EQ_INT(offered(&g, &p), all + 1); /* rounds in the workspace */
    set_workspace(&p, 0, 7);
    int n = offers(&g, &p, r, 8);
    CHECK(n > 0 && n < all);
    for (int i = 0; i < n; i++) CHECK_EQ_INT(r[i].workspace, 0);
    uint32_t align = 2;
    REQUIRE(!lt.PrefSet(p.pref, LT_PREF_ALIGN_B, &align, 4));
    CHECK_EQ_INT(offered(&g, &p), 1);
    problem_free(&p);

    Shape s = plain;
    s.device_scalars = true;
    p = problem_new(&g, s);
    CHECK(offered(&g, &p) < all);
    problem_free(&p);
    gpu_free(&g);
}

TEST_CASE(sim_blas, preferences_default_to_no_workspace) {
    Gpu g = gpu_new();
    Problem p = problem_new(&g, plain);
    LtHeuristic r[8];
    REQUIRE(!lt.PrefDestroy(p.pref) && !lt.PrefCreate(&p.pref));
    int n = offers(&g, &p, r, 8);
    CHECK(n > 0);
    for (int i = 0; i < n; i++) CHECK_EQ_INT(r[i].workspace, 0);
    problem_free(&p);
    gpu_free(&g);
}

TEST_CASE(sim_blas, algorithms_differ_in_bits) {
    Gpu g = gpu_new();
    Shape s = plain;
    s.in = s.out = LT_R_32F, s.k = 200;
    Problem p = problem_new(&g, s);
    LtHeuristic r[8];
    int n = offers(&g, &p, r, 8), different = 0;
    char *first = malloc(p.bytes[MD]), *other = malloc(p.bytes[MD]);
    for (int i = 0; i < n; i++) {
        REQUIRE(!matmul(&g, &p, &r[i].algo));
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
        CHECK_EQ_INT(offered(&g, &p), 0);
        CHECK(matmul(&g, &p, NULL) != 0);
        problem_free(&p);
    }
    gpu_free(&g);
}

TEST_CASE(sim_blas, a_saved_algorithm_is_checked) {
    Gpu g = gpu_new();
    Problem p = problem_new(&g, plain);
    Shape wider = plain;
    wider.n = 24;
    Problem q = problem_new(&g, wider);
    LtHeuristic r[1];
    REQUIRE(offers(&g, &p, r, 1) == 1);
    LtAlgo none = {{0}};
    CHECK_EQ_INT(check_algo(&g, &p, &r->algo), 0);
    CHECK(check_algo(&g, &q, &r->algo) != 0);
    CHECK(check_algo(&g, &p, &none) != 0);
    CHECK_EQ_INT(lt.Version(), 130100);
    setenv("AMPC_SIM_BLAS_VERSION", "120803", 1);
    CHECK_EQ_INT(lt.Version(), 120803);
    CHECK(check_algo(&g, &p, &r->algo) != 0);
    CHECK(matmul(&g, &p, &r->algo) != 0);
    CHECK_HAS(sim()->errors(), "version");
    unsetenv("AMPC_SIM_BLAS_VERSION");
    problem_free(&q);
    problem_free(&p);
    gpu_free(&g);
}

/* ---- what is refused ----------------------------------------------------- */

/* Replaces one layout, asks, and restores a legal one. */
static void check_layout_refused(const Gpu *g, Problem *p, int which, int rows,
                                 int cols, int ld, int batch) {
    REQUIRE(!lt.LayoutDestroy(p->layout[which]));
    REQUIRE(!lt.LayoutCreate(&p->layout[which], type_of(&p->s, which),
                             (uint64_t)rows, (uint64_t)cols, ld));
    REQUIRE(!lt.LayoutSet(p->layout[which], LT_LAYOUT_BATCH_COUNT, &batch, 4));
    CHECK_MSG(offered(g, p) == 0, "matrix %d of %dx%d, ld %d", which, rows,
              cols, ld);
    CHECK(matmul(g, p, NULL) != 0);
    REQUIRE(!lt.LayoutDestroy(p->layout[which]));
    make_layout(p, which);
}

TEST_CASE(sim_blas, shapes_that_do_not_fit_are_refused) {
    Gpu g = gpu_new();
    Shape s = plain;
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
    REQUIRE(!lt.LayoutSet(p.layout[MD], LT_LAYOUT_ORDER, &row_major, 4));
    CHECK_EQ_INT(offered(&g, &p), 0);
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
    Problem p = problem_new(&g, plain);
    LtHeuristic r[8];
    int n = offers(&g, &p, r, 8);
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
    Problem p = problem_new(&g, plain);
    REQUIRE(!lt.LayoutDestroy(p.layout[MB]));
    REQUIRE(!lt.LayoutCreate(&p.layout[MB], LT_R_16BF, 64, 16, 72));
    CHECK(matmul(&g, &p, NULL) != 0);
    CHECK_HAS(sim()->errors(), "outside of device memory");
    problem_free(&p);
    gpu_free(&g);
}

TEST_CASE(sim_blas, failures_are_injected) {
    Gpu g = gpu_new();
    Problem p = problem_new(&g, plain);
    LtHeuristic r[1];
    sim()->fail("cublasLtMatmulAlgoGetHeuristic", 1, LT_INTERNAL_ERROR, false);
    CHECK_EQ_INT(offers(&g, &p, r, 1), 0);
    REQUIRE(offers(&g, &p, r, 1) == 1);
    sim()->fail("cublasLtMatmul", 2, LT_EXECUTION_FAILED, false);
    CHECK_EQ_INT(matmul(&g, &p, &r->algo), 0);
    CHECK_EQ_INT(matmul(&g, &p, &r->algo), LT_EXECUTION_FAILED);
    CHECK_EQ_INT(matmul(&g, &p, &r->algo), 0);
    REQUIRE(!cu.StreamSynchronize(g.stream));
    problem_free(&p);
    gpu_free(&g);
}

/* ---- streams and graphs -------------------------------------------------- */

TEST_CASE(sim_blas, a_call_copies_its_arguments) {
    Gpu g = gpu_new();
    Shape s = plain;
    s.beta = 0.25f;
    Problem p = problem_new(&g, s);
    LtHeuristic r[1];
    REQUIRE(offers(&g, &p, r, 1) == 1);
    REQUIRE(!matmul(&g, &p, &r->algo));
    memset(p.host[SCALARS], 0, 8);
    set_int(p.desc, LT_DESC_EPILOGUE, LT_EPILOGUE_RELU);
    check_result(&g, &p, 0);
    problem_free(&p);
    gpu_free(&g);
}

TEST_CASE(sim_blas, captured_products_run_at_every_replay) {
    Gpu g = gpu_new();
    Shape s = plain;
    s.device_scalars = true, s.epilogue = LT_EPILOGUE_RELU_BIAS;
    Problem p = problem_new(&g, s);
    CUgraph graph;
    CUgraphExec exec;
    LtHeuristic r[1];
    REQUIRE(offers(&g, &p, r, 1) == 1);
    REQUIRE(!cu.StreamBeginCapture(g.stream, CUDA_CAPTURE_THREAD_LOCAL));
    CHECK_EQ_INT(matmul(&g, &p, &r->algo), 0);
    REQUIRE(!cu.StreamEndCapture(g.stream, &graph));
    REQUIRE(!cu.GraphInstantiate(&exec, graph, 0));
    REQUIRE(!cu.GraphDestroy(graph));
    for (int i = 0; i < 3; i++) {
        p.alpha = 0.5 * (i + 1);
        put_scalars(&p, &g);
        fill(&p, MA, s.in);
        to_device(&g, p.at[MA], p.host[MA], p.bytes[MA]);
        CHECK_EQ_INT(cu.GraphLaunch(exec, g.stream), 0);
        check_result(&g, &p, i);
    }
    CHECK_EQ_INT(cu.GraphExecDestroy(exec), 0);
    CHECK_STR(sim()->errors(), "");
    problem_free(&p);
    gpu_free(&g);
}
