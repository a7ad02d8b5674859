/* SPDX-License-Identifier: Apache-2.0 */
/* cuda_compile_test.c: the hand-written CUDA kernels compile for every
   architecture without warnings, spills or stack, in every dtype.            */
#include "tests/support/cuda_cases.h"
#include "tests/harness.h"

#include <string.h>

enum { CASES_PER_UNIT = 6 };

typedef struct Units {
    Arena *a;
    VEC(CudaUnit) units;
    bool turing; /* for sm_75, which multiplies no bf16 */
    StrBuf text;
    int count; /* kernels in `text` */
} Units;

static void unit_end(Units *u) {
    CudaUnit unit = {arena_dup(u->a, u->text.data, u->text.len + 1),
                     u->text.len};
    vec_push(u->a, &u->units, unit);
    sb_free(&u->text);
    u->text = (StrBuf){0};
    u->count = 0;
}

static void unit_add_of(Units *u, const CudaCase *c, AmpcFactors factors) {
    CudaLib lib;
    LoweredStep s = cuda_case_step(c);
    s.factors = factors;
    const LibOperand *o = lib_info(s.lib)->operands;
    for (int i = 0; i < 2; i++)
        if (u->turing && s.pars[o[i].dtype_at] == AMPC_BF16) return;
    if (u->turing) s.block_shared = 64 << 10;
    if (!u->count) print_cuda_head(&u->text);
    print_cuda_lib(&s, u->count++, false, &u->text, &lib);
    if (u->count == CASES_PER_UNIT) unit_end(u);
}

static void unit_add(Units *u, const CudaCase *c) {
    unit_add_of(u, c, AMPC_FACTORS_F32);
}

static void units_build(Units *u) {
    static const char *const archs[] = {"sm_90", "sm_80"}, *const turing[] = {
                                                               "sm_75"};
    Diag d = {0};
    CudaBuild b = {0};
    if (u->count) unit_end(u);
    Status st = nvrtc_build(&d, u->a, NULL, false, u->units.data, u->units.len,
                            u->turing ? turing : archs, u->turing ? 1 : 2, &b);
    CHECK_MSG(st == OK, "%s", d.text.data);
    CHECK_MSG(!d.warnings, "%s", d.text.data);
    CHECK(b.usage.len > 0);
    for (int i = 0; i < b.usage.len; i++) {
        const CudaUsage *k = &b.usage.data[i];
        CHECK_MSG(!k->spill_stores && !k->spill_loads && !k->stack,
                  "%s for %s: spills %d, stack %d", k->kernel, k->arch,
                  k->spill_stores, k->stack);
    }
    sb_free(&d.text);
}

static void add_all(Units *u, const CudaCases *c) {
    for (int i = 0; i < c->len; i++)
        if (c->data[i].lib != PLAN_LIB_GEMM || c->data[i].p.gemm.m)
            unit_add(u, &c->data[i]);
}

/* Two groups, and depthwise: tiles, and one thread per result. */
static void add_convs(Units *u, PlanLib lib) {
    for (int i = 1; i < 3; i++)
        for (int j = 0; j < 4; j++) {
            CudaCase c = {.name = "conv", .lib = lib};
            c.p.conv = cuda_geometries[i].c;
            c.p.conv.x_dtype = cuda_conv_types[j][0];
            c.p.conv.w_dtype = cuda_conv_types[j][1];
            c.p.conv.y_dtype = cuda_conv_types[j][2];
            unit_add(u, &c);
        }
}

static void add_pools(Units *u) {
    for (int i = 0; i < cuda_npool; i++)
        for (int j = 0; j < 4; j++) {
            CudaCase c = {.name = "pool", .lib = cuda_pool_libs[j]};
            c.p.pool = cuda_pools[i];
            unit_add(u, &c);
        }
}

/* fp32 operands that are rounded, in tiles of every size. */
static void add_factors(Units *u, AmpcFactors factors) {
    static const CudaCases *const tables[] = {&cuda_gemm_cases,
                                              &cuda_large_cases};
    for (int t = 0; t < 2; t++)
        for (int i = 0; i < tables[t]->len; i++) {
            CudaCase c = tables[t]->data[i];
            bool fp32 = c.lib == PLAN_LIB_GEMM && c.p.gemm.a_dtype == AMPC_F32;
            if ((t == 0 && !fp32) || !c.p.gemm.m) continue;
            c.p.gemm.a_dtype = c.p.gemm.b_dtype = AMPC_F32;
            unit_add_of(u, &c, factors);
        }
    for (int i = 0; i < 3; i++) {
        CudaCase c = {.lib = cuda_conv_libs[i]};
        c.p.conv = cuda_geometries[1].c;
        c.p.conv.x_dtype = c.p.conv.w_dtype = c.p.conv.y_dtype = AMPC_F32;
        unit_add_of(u, &c, factors);
    }
}

static void compile(void (*add)(Units *u)) {
    NvrtcFacts f;
    Units u = {.a = arena_new()};
    if (!nvrtc_facts(u.a, &f)) SKIP("%s", f.why);
    add(&u);
    units_build(&u);
    arena_free(u.a);
}

static void products(Units *u) {
    add_all(u, &cuda_gemm_cases);
    add_all(u, &cuda_large_cases);
}

static void convolutions(Units *u) {
    for (int i = 0; i < 3; i++) add_convs(u, cuda_conv_libs[i]);
}

/* Tiles of each size, for windows of several places. */
static void windows(Units *u) {
    for (int i = 0; i < 3 * cuda_nwindow; i++) {
        CudaCase c = {.name = cuda_windows[i / 3].name,
                      .lib = cuda_conv_libs[i % 3]};
        c.p.conv = cuda_windows[i / 3].c;
        c.p.conv.x_dtype = c.p.conv.w_dtype = c.p.conv.y_dtype =
            i % 2 ? AMPC_F16 : AMPC_BF16;
        unit_add(u, &c);
    }
}

static void factors(Units *u) {
    add_factors(u, AMPC_FACTORS_TF32);
    add_factors(u, AMPC_FACTORS_BF16);
}

/* The PTX of a product of fp32 operands. */
static const char *ptx_of(Units *u, AmpcFactors factors) {
    static const char *const arch[] = {"compute_80"};
    const CudaCase *c = cuda_gemm_cases.data;
    Diag d = {0};
    CudaBuild b = {0};
    while (strcmp(c->name, "f32")) c++;
    u->units.len = 0;
    unit_add_of(u, c, factors);
    unit_end(u);
    Status st =
        nvrtc_build(&d, u->a, NULL, false, u->units.data, 1, arch, 1, &b);
    REQUIRE(st == OK);
    return b.image->data;
}

TEST_CASE(cuda_compile, factors_are_of_tensor_cores) {
    static const char round[] = "cvt.rna.tf32.f32",
                      tf32[] = "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32",
                      bf16[] = "mma.sync.aligned.m16n8k16.row.col.f32.bf16";
    NvrtcFacts f;
    Units u = {.a = arena_new()};
    if (!nvrtc_facts(u.a, &f)) SKIP("%s", f.why);
    CHECK(!strstr(ptx_of(&u, AMPC_FACTORS_F32), "mma.sync"));
    CHECK_HAS(ptx_of(&u, AMPC_FACTORS_TF32), round);
    CHECK_HAS(ptx_of(&u, AMPC_FACTORS_TF32), tf32);
    CHECK_HAS(ptx_of(&u, AMPC_FACTORS_BF16), bf16);
    arena_free(u.a);
}

static void others(Units *u) {
    add_all(u, &cuda_scatter_cases);
    add_all(u, &cuda_argmax_cases);
    add_all(u, &cuda_argsort_cases);
    add_all(u, &cuda_suppress_cases);
    add_all(u, &cuda_attend_cases);
    add_pools(u);
}

/* The instructions of sm_75: fp16 products of half the depth. */
TEST_CASE(cuda_compile, compute_capability_7_5) {
    NvrtcFacts f;
    Units u = {.a = arena_new(), .turing = true};
    if (!nvrtc_facts(u.a, &f)) SKIP("%s", f.why);
    products(&u);
    convolutions(&u);
    others(&u);
    units_build(&u);
    arena_free(u.a);
}

TEST_CASE(cuda_compile, products) { compile(products); }
TEST_CASE(cuda_compile, convolutions) { compile(convolutions); }
TEST_CASE(cuda_compile, windows) { compile(windows); }
TEST_CASE(cuda_compile, factors) { compile(factors); }
TEST_CASE(cuda_compile, others) { compile(others); }
