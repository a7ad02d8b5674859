/* SPDX-License-Identifier: Apache-2.0 */
/* products.c: matrix products and convolutions. */
#define _POSIX_C_SOURCE 200809L
#include <stdlib.h>
#include <string.h>

#include "runtime/program/dtype.h"
#include "runtime/program/strip.h"
#include "tests/runtime/cuda_kernels/cuda_kernels.h"
#include "tests/support/cuda_cases.h"

/* ---- matrix products ----------------------------------------------------- */

TEST_CASE(cuda_kernels, gemm) {
    run_cases(cuda_gemm_cases.data, cuda_gemm_cases.len);
}

TEST_CASE(cuda_kernels, large_tiles) {
    run_cases(cuda_large_cases.data, cuda_large_cases.len);
}

/* ---- products of rounded fp32 operands ----------------------------------- */

static bool reads_fp32(const CudaCase *c) {
    return c->lib == PLAN_LIB_GEMM && c->p.gemm.a_dtype == AMPC_F32 &&
           c->p.gemm.b_dtype == AMPC_F32;
}

static void gemm_factors(CudaCases all) {
    VEC(CudaCase) c = {0};
    Arena *a = arena_new();
    for (int i = 0; i < all.len; i++)
        if (reads_fp32(&all.data[i])) vec_push(a, &c, all.data[i]);
    for (int f = AMPC_FACTORS_TF32; f < AMPC_NFACTORS; f++)
        CHECK(run_factors(c.data, c.len, (AmpcFactors)f) > 0);
    arena_free(a);
}

TEST_CASE(cuda_kernels, gemm_factors) { gemm_factors(cuda_gemm_cases); }

TEST_CASE(cuda_kernels, conv_factors) {
    CudaCase *c = calloc(3 * (size_t)cuda_ngeometry, sizeof *c);
    for (int i = 0; i < 3 * cuda_ngeometry; i++) {
        const CudaGeometry *g = &cuda_geometries[i / 3];
        c[i].name = g->name;
        c[i].lib = cuda_conv_libs[i % 3];
        c[i].p.conv = g->c;
        c[i].p.conv.x_dtype = c[i].p.conv.w_dtype = c[i].p.conv.y_dtype =
            AMPC_F32;
    }
    for (int f = AMPC_FACTORS_TF32; f < AMPC_NFACTORS; f++)
        CHECK(run_factors(c, 3 * cuda_ngeometry, (AmpcFactors)f) > 0);
    free(c);
}

/* ---- convolution --------------------------------------------------------- */

/* Every geometry with four of the combinations of dtypes. */
static void conv_run(const CudaGeometry *g, int n, PlanLib lib) {
    CudaCase *c = calloc((size_t)n * (size_t)cuda_nconv_type, sizeof *c);
    int count = 0;
    for (int i = 0; i < n; i++)
        for (int j = 0; j < cuda_nconv_type; j++) {
            if (j > 1 && (i + j) % 2) continue;
            CudaCase *to = &c[count++];
            to->name = g[i].name;
            to->lib = lib;
            to->p.conv = g[i].c;
            to->p.conv.x_dtype = cuda_conv_types[j][0];
            to->p.conv.w_dtype = cuda_conv_types[j][1];
            to->p.conv.y_dtype = cuda_conv_types[j][2];
        }
    run_cases(c, count);
    free(c);
}

TEST_CASE(cuda_kernels, conv_fwd) {
    conv_run(cuda_geometries, cuda_ngeometry, PLAN_LIB_CONV_FWD);
}

TEST_CASE(cuda_kernels, conv_dgrad) {
    conv_run(cuda_geometries, cuda_ngeometry, PLAN_LIB_CONV_DGRAD);
}

TEST_CASE(cuda_kernels, conv_wgrad) {
    conv_run(cuda_geometries, cuda_ngeometry, PLAN_LIB_CONV_WGRAD);
}

/* Operands of 16 bits; results may be fp32. At least `least` of the cases are
   computed by conv_window.cuh. */
static void windows_run(PlanLib lib, int least) {
    int found = 0;
    CudaCase *c = calloc((size_t)cuda_nwindow, sizeof *c);
    for (int i = 0; i < cuda_nwindow; i++) {
        LibConv *p = &c[i].p.conv;
        const int64_t dtype = i % 2 ? AMPC_F16 : AMPC_BF16;
        c[i].name = cuda_windows[i].name;
        c[i].lib = lib;
        *p = cuda_windows[i].c;
        p->x_dtype = p->w_dtype = p->y_dtype = dtype;
        if (i % 3 == 1)
            *(lib == PLAN_LIB_CONV_FWD     ? &p->y_dtype
              : lib == PLAN_LIB_CONV_DGRAD ? &p->x_dtype
                                           : &p->w_dtype) = AMPC_F32;
        LoweredStep s = cuda_case_step(&c[i]);
        StrBuf sb = {0};
        CudaLib out;
        print_cuda_lib(&s, 0, false, &sb, &out);
        found += strstr(sb.data, "_window<L0>") != NULL;
        sb_free(&sb);
    }
    CHECK_MSG(found >= least, "%d of %d by windows", found, cuda_nwindow);
    run_cases(c, cuda_nwindow);
    free(c);
}

TEST_CASE(cuda_kernels, windows_fwd) {
    windows_run(PLAN_LIB_CONV_FWD, cuda_nwindow);
}

TEST_CASE(cuda_kernels, windows_dgrad) {
    windows_run(PLAN_LIB_CONV_DGRAD, cuda_nwindow);
}

/* Windows, and geometries that only tiles compute. */
TEST_CASE(cuda_kernels, conv_sums) {
    int n = 0, windows = 0, all = cuda_nwindow + cuda_ngeometry;
    CudaCase *c = calloc((size_t)all, sizeof *c);
    for (int i = 0; i < all; i++) {
        const CudaGeometry *g = i < cuda_nwindow
                                    ? &cuda_windows[i]
                                    : &cuda_geometries[i - cuda_nwindow];
        LibConvSums *p = &c[n].p.conv_sums;
        c[n].name = g->name;
        c[n].lib = PLAN_LIB_CONV_SUMS;
        c[n].p.conv = g->c;
        p->x_dtype = p->w_dtype = p->y_dtype = i % 2 ? AMPC_F16 : AMPC_BF16;
        if (i % 3 == 1) p->y_dtype = AMPC_F32;
        p->strip = CONV_STRIP;
        p->scale = lib_bits(i % 4 ? 1 : 0.125f);
        p->sums_dtype = AMPC_F32;
        LoweredStep s = cuda_case_step(&c[n]);
        StrBuf sb = {0};
        CudaLib out;
        print_cuda_lib(&s, 0, false, &sb, &out);
        windows += strstr(sb.data, "_window<L0>") != NULL;
        sb_free(&sb);
        n++;
    }
    CHECK_MSG(windows >= 8 && windows < n, "%d of %d by windows", windows, n);
    run_cases(c, n);
    free(c);
}

/* Short lines are left to tiles. */
TEST_CASE(cuda_kernels, windows_wgrad) { windows_run(PLAN_LIB_CONV_WGRAD, 5); }

/* A sum over positions that is divided into slices. */
TEST_CASE(cuda_kernels, conv_wgrad_slices) {
    static const CudaGeometry g[] = {{"slices",
                                      {.n = 7,
                                       .c = 5,
                                       .k = 5,
                                       .group = 1,
                                       .in = {1, 17, 16},
                                       .out = {1, 17, 16},
                                       .kernel = {1, 3, 3},
                                       .stride = {1, 1, 1},
                                       .dilation = {1, 1, 1},
                                       .pad = {0, 1, 1}}},
                                     {"slices of points",
                                      {.n = 7,
                                       .c = 5,
                                       .k = 5,
                                       .group = 1,
                                       .in = {1, 17, 16},
                                       .out = {1, 17, 16},
                                       .kernel = {1, 1, 1},
                                       .stride = {1, 1, 1},
                                       .dilation = {1, 1, 1}}}};
    conv_run(g, 2, PLAN_LIB_CONV_WGRAD);
}
