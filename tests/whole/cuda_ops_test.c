/* SPDX-License-Identifier: Apache-2.0 */
/* cuda_ops_test.c: every op of the table, in every dtype, with its
   gradients, on the simulated GPU: the product's whole path, from NVRTC's
   PTX through the runtime's driver calls, compared with the CPU back end. */
#include <stdlib.h>
#include <string.h>

#include "tests/support/cuda_gpu.h"
#include "tests/support/ops_bench.h"

/* Outputs of the compiler, such as results of its index checks. */
static int metrics_of(const ampc_api *api) {
    ampc_program_info p = {.size = sizeof p};
    int n = 0;
    REQUIRE(api->program(api->module, "predict", &p) == AMPC_OK);
    for (uint32_t i = 0; i < p.noutput; i++) {
        ampc_tensor_info t = {.size = sizeof t};
        api->output(api->module, "predict", i, &t);
        n += !strncmp(t.name, "ampc.", 5);
    }
    return n;
}

TEST_CASE(cuda_ops, every_op_agrees_with_the_cpu_in_every_dtype) {
    OpsBench b = ops_bench_new();
    OpsData d = ops_data_new(&b, NULL);
    Compiled c = compile_text_cuda(ops_text(&b), "--precision fp32", GPU_PTX);
    gpu_for(&c, 1);
    DcReport r;
    CHECK_MSG(dc_predict(c.api, "cpu", "cuda", d.in, (size_t)d.nin, &r), "%s",
              r.text);
    CHECK_EQ_INT(r.compared, d.nout + metrics_of(c.api));
    gpu_clean("predict");
    /* eager, captured, replayed: the same bits, whatever the order of blocks */
    char *bits = NULL;
    size_t n;
    for (uint64_t seed = 1; seed <= 3; seed++) {
        gpu_reset(&c, seed);
        ampc_session *s = gpu_open(&c);
        for (int run = 0; run < 3; run++) {
            ops_run(&c, s, &d);
            if (!bits) bits = ops_all_bytes(&d, &n);
            ops_check_same_bits(&d, bits, run ? "graph replay" : "a seed");
        }
        c.api->close(s);
        gpu_clean("three runs");
    }
    free(bits);
    compiled_close(&c);
    arena_free(b.a);
}
