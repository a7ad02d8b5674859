/* SPDX-License-Identifier: Apache-2.0 */
/* ops_run.h: program "predict" of a text in fp32, compiled and run once. */
#ifndef AMPC_TESTS_SUPPORT_OPS_RUN_H
#define AMPC_TESTS_SUPPORT_OPS_RUN_H

#include "tests/support/ops_bench.h"

/* more: further options, after the precision. */
void ops_on_cpu(const char *text, const char *more, OpsData *d);
/* Runs on the simulated GPU, which is reset afterwards. */
void ops_on_gpu(const char *text, const char *archs, uint64_t seed, OpsData *d);

#endif
