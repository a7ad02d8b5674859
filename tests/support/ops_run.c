/* SPDX-License-Identifier: Apache-2.0 */
/* ops_run.c: see ops_run.h. */
#include "tests/support/ops_run.h"

#include <stdio.h>

#include "tests/support/cuda_gpu.h"

void ops_on_cpu(const char *text, const char *more, OpsData *d) {
    char options[200];
    snprintf(options, sizeof options, "--precision fp32 %s", more);
    Compiled c = compile_text(text, options);
    ops_run_with(&c, d, 2);
    compiled_close(&c);
}

void ops_on_gpu(const char *text, const char *archs, uint64_t seed,
                OpsData *d) {
    Compiled c = compile_text_cuda(text, "--precision fp32", archs);
    gpu_for(&c, seed);
    ampc_session *s = gpu_open(&c);
    ops_run(&c, s, d);
    c.api->close(s);
    gpu_clean("predict");
    compiled_close(&c);
}
