/* SPDX-License-Identifier: Apache-2.0 */
/* cuda_gpu.c: see cuda_gpu.h. */
#define _POSIX_C_SOURCE 200809L
#include "tests/support/cuda_gpu.h"

#include <stdlib.h>

void gpu_reset(const Compiled *c, uint64_t seed) {
    SimConfig config = {.seed = seed, .cc = 80, .twins = c->cuda_dir};
    sim()->reset(&config);
}

void gpu_for(const Compiled *c, uint64_t seed) {
    sim_twins_compile_fast(); /* each kernel runs a few times */
    sim_build_twins(c->cuda_dir);
    setenv("AMPC_LIBCUDA", sim()->path, 1);
    setenv("AMPC_LIBCUBLASLT", sim()->cublaslt, 1);
    setenv("AMPC_CACHE_DIR", test_tmpdir(), 1);
    gpu_reset(c, seed);
}

ampc_session *gpu_open(const Compiled *c) {
    char err[600];
    ampc_options o = {.size = sizeof o, .device = "cuda"};
    ampc_session *s;
    if (c->api->open(c->api->module, &o, &s, err, sizeof err))
        FAIL("open: %s", err);
    return s;
}

void gpu_clean(const char *what) {
    CHECK_MSG(!*sim()->errors(), "%s: %s", what, sim()->errors());
    CHECK_MSG(!*sim()->leaks(), "%s: still alive: %s", what, sim()->leaks());
}
