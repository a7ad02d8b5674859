/* SPDX-License-Identifier: Apache-2.0 */
/* cuda_runtime_test.c: sessions on the simulated GPU: training compared with
   the CPU, which calls wait, graphs, devices and images, state. */
#define _GNU_SOURCE
#include <stdlib.h>
#include <unistd.h>

#include "runtime/program/plan.h"
#include "tests/support/gpu_session.h"

/* ---- training ------------------------------------------------------------ */

static DcTraining training(const Model *m, int steps) {
    return (DcTraining){.steps = steps,
                        .tolerance = dc_training_tolerance(m->precision),
                        .feed = dc_random_feed,
                        .feed_ctx = m->feed};
}

static void trains(Model *which, bool forced) {
    const Model *m = model(which);
    const ampc_api *a = machine(m, NULL);
    DcTraining t = training(m, 6);
    DcReport r;
    t.forced = forced;
    CHECK_MSG(dc_train(a, "cpu", "cuda", &t, &r), "%s", r.text);
    CHECK(r.compared > 50);
    check_clean();
}

TEST_CASE(cuda_runtime, trains_as_the_cpu_does) { trains(&plain, false); }

TEST_CASE(cuda_runtime, accumulates_as_the_cpu_does) {
    trains(&accumulating, true);
}

TEST_CASE(cuda_runtime, skips_and_backs_off_as_the_cpu_does) {
    const Model *m = model(&scaled);
    ampc_metrics first, later;
    trains(&scaled, true);
    const ampc_api *a = machine(m, NULL);
    ampc_session *s = open_gpu(a);
    CHECK_EQ_INT(step(m, s, 0, &first), AMPC_OK);
    CHECK_EQ_INT(step(m, s, 1, &later), AMPC_OK);
    CHECK(!first.applied && first.skipped == 1 && first.tried == 1);
    CHECK(later.scale < first.scale);
    a->close(s);
}

TEST_CASE(cuda_runtime, graphs_do_not_change_bits) {
    Model *const models[] = {&plain, &accumulating, &scaled};
    for (int i = 0; i < 3; i++) {
        const Model *m = model(models[i]);
        const ampc_api *a = machine(m, NULL);
        DcTraining t = training(m, 6);
        DcReport r;
        CHECK_MSG(dc_same_bits(a, "cuda", "AMPC_CUDA_GRAPH", "0", &t, &r), "%s",
                  r.text);
        CHECK(sim()->calls("cuGraphLaunch") > 0);
        /* nor do measured choices count, unless they are requested */
        setenv("AMPC_TUNE", "1", 1);
        a->close(open_gpu(a));
        unsetenv("AMPC_TUNE");
        CHECK_MSG(
            dc_same_bits(a, "cuda", "AMPC_CACHE_DIR", "/proc/none", &t, &r),
            "%s", r.text);
        check_clean();
    }
}

/* One launch per step after a program has been captured. */
TEST_CASE(cuda_runtime, a_step_is_one_graph) {
    const Model *m = model(&plain);
    const ampc_api *a = machine(m, NULL);
    ampc_session *s = open_gpu(a);
    for (int i = 0; i < 2; i++) CHECK_EQ_INT(step(m, s, i, NULL), AMPC_OK);
    uint64_t kernels = sim()->calls("cuLaunchKernel");
    uint64_t graphs = sim()->calls("cuGraphLaunch");
    for (int i = 2; i < 7; i++) CHECK_EQ_INT(step(m, s, i, NULL), AMPC_OK);
    CHECK_EQ_INT(sim()->calls("cuLaunchKernel") - kernels, 0);
    CHECK_EQ_INT(sim()->calls("cuGraphLaunch") - graphs, 5);
    a->close(s);
    check_clean();
}
