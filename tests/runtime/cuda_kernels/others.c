/* SPDX-License-Identifier: Apache-2.0 */
/* others.c: pooling, scatter-add, argmax, argsort, boxes, attention,
   epilogues. */
#define _POSIX_C_SOURCE 200809L
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "ir/text/text.h"
#include "passes/device/fold.h"
#include "runtime/program/dtype.h"
#include "tests/runtime/cuda_kernels/cuda_kernels.h"
#include "tests/support/cuda_cases.h"
#include "tests/support/simulate.h"

#define COUNT(a) ((int)(sizeof(a) / sizeof *(a)))

/* ---- pooling ------------------------------------------------------------- */

TEST_CASE(cuda_kernels, pooling) {
    int n = 4 * cuda_npool;
    CudaCase *c = calloc((size_t)n, sizeof *c);
    for (int i = 0; i < n; i++) {
        c[i].name = "pool";
        c[i].lib = cuda_pool_libs[i % 4];
        c[i].p.pool = cuda_pools[i / 4];
    }
    run_cases(c, n);
    free(c);
}

/* lowest: every number is -infinity. */
static void maxpool_once(const LibPool *p, bool indices, bool lowest) {
    CudaCase c = {.name = "maxpool", .lib = PLAN_LIB_MAXPOOL};
    c.p.pool = *p;
    CudaBuf b[CUDA_MAX_BUFS];
    CudaLib lib;
    StrBuf sb = {0};
    LoweredStep s = cuda_case_step(&c);
    int n = cuda_case_bufs(&c, b);
    kernels_fill(&c, b, n, 1);
    for (int64_t i = 0; i < b[0].count && lowest; i++)
        kernels_put(b[0].data, b[0].dtype, i, -(double)INFINITY);
    print_cuda_head(&sb);
    print_cuda_lib(&s, 0, false, &sb, &lib);
    SimTwin *t = twin_of(sb.data);
    void *want = kernels_blank(&b[1]), *first = kernels_blank(&b[2]);
    void *data[] = {b[0].data, want, indices ? first : NULL};
    cpu_run(&c, data);
    data[1] = b[1].data;
    data[2] = indices ? b[2].data : NULL;
    gpu_run(t, 0, &lib, data, n);
    kernels_same(&c, &b[1], want, b[1].data);
    if (indices) kernels_same(&c, &b[2], first, b[2].data);
    sim()->twin_close(t);
    free(want);
    free(first);
    for (int i = 0; i < n; i++) free(b[i].data);
    sb_free(&sb);
}

TEST_CASE(cuda_kernels, maxpool_without_indices) {
    maxpool_once(&cuda_pools[0], false, false);
}

/* Among equal elements the first is chosen, and there is one even if all are
   -infinity. */
TEST_CASE(cuda_kernels, maxpool_of_the_lowest) {
    for (int i = 0; i < cuda_npool; i++)
        maxpool_once(&cuda_pools[i], true, true);
}

/* ---- scatter-add, argmax, argsort ---------------------------------------- */

/* Exact: the terms of a sum are added in the CPU's order. */
TEST_CASE(cuda_kernels, scatter_add) {
    run_cases(cuda_scatter_cases.data, cuda_scatter_cases.len);
}

TEST_CASE(cuda_kernels, argmax) {
    run_cases(cuda_argmax_cases.data, cuda_argmax_cases.len);
}

/* The CPU's routine accepts only floats. */
static void integer_case(SimTwin *t, int number, const CudaCase *c,
                         const CudaLib *lib) {
    const LibArgmax *a = &c->p.argmax;
    CudaBuf b[CUDA_MAX_BUFS];
    int n = cuda_case_bufs(c, b);
    kernels_fill(c, b, n, 1);
    void *data[] = {b[0].data, b[1].data};
    gpu_run(t, number, lib, data, n);
    for (int64_t i = 0; i < b[1].count; i++) {
        int64_t from = i / a->inner * a->axis * a->inner + i % a->inner;
        int64_t best = 0;
        for (int64_t k = 1; k < a->axis; k++)
            if (kernels_get(b[0].data, a->dtype, from + k * a->inner) >
                kernels_get(b[0].data, a->dtype, from + best * a->inner))
                best = k;
        CHECK_EQ_INT(((int64_t *)b[1].data)[i], best);
    }
    for (int i = 0; i < n; i++) free(b[i].data);
}

TEST_CASE(cuda_kernels, argmax_of_integers) {
    static const int64_t types[] = {AMPC_BOOL, AMPC_U8,  AMPC_I8,
                                    AMPC_I16,  AMPC_I32, AMPC_I64};
    CudaCase c[12];
    CudaLib lib[12];
    StrBuf sb = {0};
    print_cuda_head(&sb);
    for (int i = 0; i < 12; i++) {
        c[i] = (CudaCase){.name = "integers", .lib = PLAN_LIB_ARGMAX};
        c[i].p.argmax =
            (LibArgmax){9, 45, i % 2 ? 1 : 4, types[i / 2], AMPC_I64};
        LoweredStep s = cuda_case_step(&c[i]);
        print_cuda_lib(&s, i, false, &sb, &lib[i]);
    }
    SimTwin *t = twin_of(sb.data);
    for (int i = 0; i < 12; i++) integer_case(t, i, &c[i], &lib[i]);
    sim()->twin_close(t);
    sb_free(&sb);
}

TEST_CASE(cuda_kernels, argsort) {
    run_cases(cuda_argsort_cases.data, cuda_argsort_cases.len);
}

TEST_CASE(cuda_kernels, suppress) {
    run_cases(cuda_suppress_cases.data, cuda_suppress_cases.len);
}

/* ---- attention ----------------------------------------------------------- */

TEST_CASE(cuda_kernels, attend) {
    run_cases(cuda_attend_cases.data, cuda_attend_cases.len);
}

/* ---- epilogues ----------------------------------------------------------- */

/* relu(product + bias) of a lowered group, compared with the same on the
   CPU's unfused product. */
typedef struct Fused {
    const char *text;
    int64_t rows, inner; /* element i has bias[i / inner % rows]            */
    int64_t x, w, y;     /* elements                                        */
} Fused;

static void fused_lower(const Fused *f, Arena *a, LoweredStep *s) {
    Diag d = {0};
    Module *m = NULL;
    Status st = parse_module(a, &d, "test.amp", f->text, strlen(f->text), &m);
    if (!CHECK_MSG(st == OK, "%s", d.text.data)) harness_leave();
    LoweredStep *steps;
    REQUIRE(lower_graph(m->graphs.data[0],
                        kernel_set_new(a, TARGET_CUDA, GPU_BLOCK_SHARED), &d,
                        &steps) == OK);
    *s = steps[0];
    REQUIRE(s->epilogue != NULL && s->epilogue->bufs.len == 2);
}

static SimTwin *fused_twin(const LoweredStep *s, CudaLib *lib) {
    StrBuf sb = {0};
    print_cuda_head(&sb);
    print_cuda_functor(s->epilogue, &sb);
    print_cuda_lib(s, 0, false, &sb, lib);
    SimTwin *t = twin_of(sb.data);
    sb_free(&sb);
    return t;
}

static float *floats(int64_t n) {
    float *p = bytes_of((size_t)n * sizeof *p);
    for (int64_t i = 0; i < n; i++) p[i] = (float)rnd_in(-8, 8);
    return p;
}

static void fused_run(SimTwin *t, const CudaLib *lib, const float *x,
                      const float *w, const float *bias, float *y) {
    void *none = NULL;
    void *params[] = {&x, &w, &none, &bias, &y};
    int rc = sim()->run(t, "l0", (unsigned)lib->first.blocks,
                        (unsigned)lib->first.threads, 0, params);
    CHECK_MSG(rc == 0, "%s", sim()->errors());
}

/* Small integers: sums are exact in any order. */
static void fused_case(const Fused *f) {
    Arena *a = arena_new();
    LoweredStep s;
    CudaLib lib;
    fused_lower(f, a, &s);
    SimTwin *t = fused_twin(&s, &lib);
    CudaCase c = {.name = "fused", .lib = s.lib};
    memcpy(&c.p, s.pars, (size_t)s.npar * sizeof *s.pars);
    float *x = floats(f->x), *w = floats(f->w), *bias = floats(f->rows);
    float *want = floats(f->y), *got = floats(f->y);
    cpu_run(&c, (void *[]){x, w, want});
    fused_run(t, &lib, x, w, bias, got);
    for (int64_t i = 0; i < f->y; i++) {
        float v = want[i] + bias[i / f->inner % f->rows];
        if (!CHECK_NEAR(got[i], v > 0 ? v : 0, 0)) break;
    }
    float *all[] = {x, w, bias, want, got};
    for (int i = 0; i < COUNT(all); i++) free(all[i]);
    sim()->twin_close(t);
    arena_free(a);
}

TEST_CASE(cuda_kernels, epilogues) {
    static const Fused cases[] = {
        {.text = "graph g(%x: f32[2,3,8,7], %w: f32[5,3,3,3], %b: f32[5,1,1]) "
                 "{ group anchor { %y = conv %x, %w {dilations=[1,1], group=1, "
                 "pads=[1,1,1,1], strides=[1,1]} %z = add %y, %b "
                 "%r = relu %z } return %r }",
         .rows = 5,
         .inner = 56,
         .x = 336,
         .w = 135,
         .y = 560},
        {.text = "graph g(%x: f32[2,4,6,6], %w: f32[4,1,3,3], %b: f32[4,1,1]) "
                 "{ group anchor { %y = conv %x, %w {dilations=[1,1], group=4, "
                 "pads=[1,1,1,1], strides=[1,1]} %z = add %y, %b "
                 "%r = relu %z } return %r }",
         .rows = 4,
         .inner = 36,
         .x = 288,
         .w = 36,
         .y = 288},
        {.text = "graph g(%x: f32[3,33,20], %w: f32[3,20,9], %b: f32[9]) "
                 "{ group anchor { %y = matmul %x, %w %z = add %y, %b "
                 "%r = relu %z } return %r }",
         .rows = 9,
         .inner = 1,
         .x = 1980,
         .w = 540,
         .y = 891}};
    for (int i = 0; i < COUNT(cases); i++) fused_case(&cases[i]);
}
