/* SPDX-License-Identifier: Apache-2.0 */
/* gpu_check.h: gpu_check's own calls of libcuda and cuBLASLt. */
#ifndef AMPC_GPU_CHECK_H
#define AMPC_GPU_CHECK_H

#include <stdbool.h>

#include "runtime/ampc.h"
#include "runtime/cuda/driver.h"
#include "runtime/program/plan.h"

typedef struct Gpu {
#define CU(member, symbol, parameters) CUresult(*member) parameters;
#include "runtime/cuda/driver.def"
#undef CU
    CUdevice device;
    CUcontext ctx;
    char name[128], why[300];
    int driver, major, minor, sms;
    size_t memory;
} Gpu;

/* Loads the driver, opens device `ordinal`, and makes its context current;
   false: g->why. */
bool gpu_open(Gpu *g, int ordinal);
void gpu_close(Gpu *g);

/* 130100 = 13.1; 0: cuBLASLt is missing. */
size_t gpu_cublaslt_version(const Gpu *g);

/* Asks cuBLASLt what it supports, by types, epilogues and sizes near `size`;
   prints a line of JSON per row. Returns the exit status. */
int gpu_gemm_table(Gpu *g, int size);
/* Measures the matrix products of a module's training step in the same way. */
int gpu_gemm_module(Gpu *g, const char *name, const AmpcModule *m);

/* ---- gpu_steps.c --------------------------------------------------------- */

/* Times each step of a training step on those inputs; prints a line of JSON
   for all and one for each. NULL, or the reason for a failure. */
const char *gpu_steps(Gpu *g, const char *module, const ampc_api *api,
                      ampc_session *s, const ampc_input *in, size_t nin,
                      int steps);

#endif
