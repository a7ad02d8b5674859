/* SPDX-License-Identifier: Apache-2.0 */
/* cuda_cases.h: library steps in many shapes and dtypes, for the tests of the
   hand-written CUDA kernels.                                                 */
#ifndef AMPC_TESTS_SUPPORT_CUDA_CASES_H
#define AMPC_TESTS_SUPPORT_CUDA_CASES_H

#include "codegen/cuda/cuda.h"
#include "runtime/cpu/kernels.h"

/* Matrices of an attention, one after the other. */
#define ATTEND_APART                                                           \
    .q_heads = 1, .q_width = 1, .kv_heads = 1, .k_width = 1, .v_width = 1

/* A library step. */
typedef struct CudaCase {
    const char *name;
    PlanLib lib;
    union {
        LibGemm gemm;
        LibGemmQuantized gemm_quantized;
        LibConv conv;
        LibConvSums conv_sums;
        LibConvDgradSums conv_dgrad_sums;
        LibPool pool;
        LibScatterAdd scatter;
        LibArgmax argmax;
        LibArgsort argsort;
        LibSuppress suppress;
        LibAttend attend;
    } p;
} CudaCase;

enum { CUDA_MAX_BUFS = 12 };

typedef struct CudaBuf {
    int64_t dtype, count; /* -1: an absent operand */
    void *data;
} CudaBuf;

int64_t cuda_volume(const int64_t *v);
/* The case's buffers in the order of refs; returns their number. */
int cuda_case_bufs(const CudaCase *c, CudaBuf *b);
/* Points into the case. */
LoweredStep cuda_case_step(const CudaCase *c);

typedef struct CudaCases {
    const CudaCase *data;
    int len;
} CudaCases;
extern const CudaCases cuda_gemm_cases, cuda_scatter_cases, cuda_argmax_cases,
    cuda_argsort_cases, cuda_suppress_cases, cuda_attend_cases;
/* True if one of these tables, or of the tables below, tests the routine. */
bool cuda_has_cases(PlanLib lib);
/* Tiles that only large products use. */
extern const CudaCases cuda_large_cases;

typedef struct CudaGeometry {
    const char *name;
    LibConv c; /* without dtypes */
} CudaGeometry;
extern const CudaGeometry cuda_geometries[];
extern const int cuda_ngeometry;
/* Windows and channels that suit conv_window.cuh, in 16 bits. */
extern const CudaGeometry cuda_windows[];
extern const int cuda_nwindow;

/* Each suits the four routines. */
extern const LibPool cuda_pools[];
extern const int cuda_npool;
extern const PlanLib cuda_pool_libs[4], cuda_conv_libs[3];

/* dtypes of X, W and Y of a convolution */
extern const int64_t cuda_conv_types[][3];
extern const int cuda_nconv_type;

#endif
