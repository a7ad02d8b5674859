/* SPDX-License-Identifier: Apache-2.0 */
/* cuda_gpu.h: a compiled module on the simulated GPU. */
#ifndef AMPC_TESTS_SUPPORT_CUDA_GPU_H
#define AMPC_TESTS_SUPPORT_CUDA_GPU_H

#include "tests/support/compiled.h"
#include "tests/support/device_check.h"
#include "tests/support/simulate.h"

/* Compiles the twins of c's kernels and points the runtime at a fresh
   simulated GPU of compute capability 8.0 that uses them. */
void gpu_for(const Compiled *c, uint64_t seed);
/* Resets the same GPU, as a reboot does, with another order of threads. */
void gpu_reset(const Compiled *c, uint64_t seed);
/* Opens a session there; a failure ends the test case. */
ampc_session *gpu_open(const Compiled *c);
/* No violation, nothing left alive. */
void gpu_clean(const char *what);

#endif
