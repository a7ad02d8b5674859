/* SPDX-License-Identifier: Apache-2.0 */
/* sim_driver.h: for sim_driver_test.c and the files of folder sim_driver. */
#ifndef AMPC_TESTS_SIM_SIM_DRIVER_SIM_DRIVER_H
#define AMPC_TESTS_SIM_SIM_DRIVER_SIM_DRIVER_H

#include <elf.h>
#include <stdint.h>

#include "tests/support/simulate.h"

/* libcuda, opened like a program does. */
typedef struct Cuda {
#define CU(member, symbol, params) CUresult(*member) params;
#include "runtime/cuda/driver.def"
#undef CU
} Cuda;

extern Cuda driver_cu;

void open_driver(void);

#define OK(call) CHECK_EQ_INT(call, 0)

/* PTX of kernels with hardly any parameters: the twin has the code. */
extern const char driver_ptx[];

/* The state in which every test of the driver starts. */
typedef struct Rig {
    CUcontext c;
    CUmodule m;
    CUfunction add, fill, wild;
    CUstream s, t;
    CUevent e;
    CUdeviceptr x, y; /* 256 floats */
} Rig;

const char *driver_twins(void);
Rig driver_begin(uint64_t seed);

/* Everything is released: nothing is left. */
void driver_end(Rig *r);

CUresult driver_fill(const Rig *r, CUdeviceptr y, float v, CUstream s);
CUresult driver_add(const Rig *r, float a, CUstream s);
float read_one(CUdeviceptr p, CUstream s);

#endif
