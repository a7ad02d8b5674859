/* SPDX-License-Identifier: Apache-2.0 */
/* gpu_session.c: see gpu_session.h. */
#define _POSIX_C_SOURCE 200809L
#include "tests/support/gpu_session.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char mlp[] = "tests/onnx/mlp.dyn.onnx";

/* ---- a module and its device --------------------------------------------- */

Model plain = {.precision = "fp32", .options = "--precision fp32"};
Model accumulating = {.precision = "bf16",
                      .archs = GPU_PTX,
                      .options = "--precision bf16 --accumulate 2"};
Model scaled = {.precision = "fp16",
                .archs = GPU_PTX,
                .options = "--precision fp16 --loss-scale "
                           "dynamic,init=1e9,max=1e9,interval=2"};

const Model *model(Model *m) {
    char options[200];
    if (m->c.api) return m;
    snprintf(options, sizeof options, "--dim batch=8 %s", m->options);
    Compiled c = compile_file_cuda(test_data_path(mlp), options, m->archs);
    REQUIRE(sim_build_twins(c.cuda_dir) > 0);
    m->feed = dc_random_new(c.api, "train", 3, 1);
    if (!m->feed) m->feed = dc_random_new(c.api, "micro", 3, 1);
    REQUIRE(m->feed);
    m->c = c;
    return m;
}

void cache_in(char dir[600], const char *name) {
    snprintf(dir, 600, "%s/%s", test_tmpdir(), name);
    setenv("AMPC_CACHE_DIR", dir, 1);
}

const ampc_api *machine(const Model *m, const SimConfig *config) {
    SimConfig c = config ? *config : (SimConfig){.seed = 1};
    char dir[600];
    c.twins = m->c.cuda_dir;
    setenv("AMPC_LIBCUDA", sim()->path, 1);
    setenv("AMPC_LIBCUBLASLT", sim()->cublaslt, 1);
    cache_in(dir, "cache");
    sim()->reset(&c);
    return m->c.api;
}

void check_clean(void) {
    static const char *const made[][2] = {
        {"cublasLtCreate", "cublasLtDestroy"},
        {"cublasLtMatmulDescCreate", "cublasLtMatmulDescDestroy"},
        {"cublasLtMatrixLayoutCreate", "cublasLtMatrixLayoutDestroy"},
        {"cublasLtMatmulPreferenceCreate", "cublasLtMatmulPreferenceDestroy"}};
    for (size_t i = 0; i < sizeof made / sizeof *made; i++)
        CHECK_MSG(sim()->calls(made[i][0]) == sim()->calls(made[i][1]),
                  "%d calls of %s, %d of %s", (int)sim()->calls(made[i][0]),
                  made[i][0], (int)sim()->calls(made[i][1]), made[i][1]);
    CHECK_STR(sim()->leaks(), "");
    CHECK_STR(sim()->errors(), "");
}

char log_text[4000];
static void log_line(void *ctx, const char *line) {
    size_t n = strlen(log_text);
    (void)ctx;
    snprintf(log_text + n, sizeof log_text - n, "%s\n", line);
}

char open_text[1200];
ampc_status try_open(const ampc_api *a, const char *device, void *stream,
                     ampc_session **s) {
    ampc_options o = {.size = sizeof o,
                      .device = device,
                      .threads = 1,
                      .log = log_line,
                      .stream = stream};
    log_text[0] = 0;
    ampc_status status = a->open(a->module, &o, s, open_text, sizeof open_text);
    if (status == AMPC_OK) CHECK_STR(a->error(*s), "");
    return status;
}

ampc_session *open_gpu(const ampc_api *a) {
    ampc_session *s;
    ampc_status status = try_open(a, "cuda", NULL, &s);
    if (status != AMPC_OK) FAIL("open: %s", open_text);
    return s;
}

ampc_status step(const Model *m, ampc_session *s, int i, ampc_metrics *out) {
    size_t n;
    const ampc_input *in = dc_random_feed(m->feed, i, &n);
    if (out) out->size = sizeof *out;
    return m->c.api->step(s, in, n, out);
}
