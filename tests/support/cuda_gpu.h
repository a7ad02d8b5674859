/* SPDX-License-Identifier: Apache-2.0 */
/* cuda_gpu.h: a compiled module on the simulated GPU. */
#ifndef AMPC_TESTS_SUPPORT_CUDA_GPU_H
#define AMPC_TESTS_SUPPORT_CUDA_GPU_H

#include "tests/support/compiled.h"
#include "tests/support/device_check.h"
#include "tests/support/simulate.h"

/* Compiles the twins of c's kernels and makes the runtime use a fresh
   simulated GPU of compute capability 8.0 with them. */
void gpu_for(const Compiled *c, uint64_t seed);
/* Resets the same GPU, like a reboot, with another order of threads. */
void gpu_reset(const Compiled *c, uint64_t seed);
/* Opens a session there; a failure ends the test case. */
ampc_session *gpu_open(const Compiled *c);
/* Checks that there was no violation and that nothing is left alive. */
void gpu_clean(const char *what);

#endif
