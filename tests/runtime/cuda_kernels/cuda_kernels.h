/* SPDX-License-Identifier: Apache-2.0 */
/* cuda_kernels.h: for cuda_kernels_test.c and the files of folder cuda_kernels.
 */
#ifndef AMPC_TESTS_RUNTIME_CUDA_KERNELS_CUDA_KERNELS_H
#define AMPC_TESTS_RUNTIME_CUDA_KERNELS_CUDA_KERNELS_H

#include "runtime/program/dtype.h"
#include "tests/support/cuda_cases.h"
#include "tests/support/simulate.h"

int64_t rnd_in(int64_t lo, int64_t hi);
double kernels_get(const void *p, int64_t dtype, int64_t i);
void kernels_put(void *p, int64_t dtype, int64_t i, double x);

/* Memory of exactly n bytes, filled with NaN, aligned as on a GPU. */
void *bytes_of(size_t n);

void *kernels_blank(const CudaBuf *b);
void cpu_run(const CudaCase *c, void *const *b);
void kernels_fill(const CudaCase *c, CudaBuf *b, int n, int nin);
void gpu_run(SimTwin *t, int number, const CudaLib *lib, void *const *b, int n);
SimTwin *twin_of(const char *text);
void kernels_same(const CudaCase *c, const CudaBuf *b, const void *want,
                  const void *got);

/* All cases of a table as one unit. Kernels without tensor cores do not
   round; returns the number of the others. */
int run_factors(const CudaCase *c, int n, AmpcFactors factors);

void run_cases(const CudaCase *c, int n);

#endif
