/* SPDX-License-Identifier: Apache-2.0 */
/* micro_steps.c: micro-steps, checkpoints and forks on a device. */
#define _GNU_SOURCE
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "runtime/program/plan.h"
#include "tests/support/gpu_session.h"

/* Compares the bits of variables of these kinds. */
static void same_variables(const Model *m, ampc_session *s, ampc_session *t,
                           unsigned kinds) {
    size_t n, k;
    void *x = read_all(&m->c, s, kinds, &n);
    void *y = read_all(&m->c, t, kinds, &k);
    REQUIRE(n == k);
    CHECK_MEM(x, y, n);
    free(x);
    free(y);
}

/* ---- micro-steps --------------------------------------------------------- */

static ampc_status micro(const Model *m, ampc_session *s, int i) {
    size_t n;
    const ampc_input *in = dc_random_feed(m->feed, i, &n);
    return m->c.api->micro_step(s, in, n, NULL);
}

static size_t allocated(void) {
    SimStats stats;
    sim()->stats(&stats);
    return stats.allocated;
}

/* Checks that all gradients are 0; returns their bytes. */
static size_t zero_gradients(const Model *m, ampc_session *s) {
    ampc_module_info info = {.size = sizeof info};
    size_t sum = 0;
    REQUIRE(m->c.api->describe(m->c.api->module, &info) == AMPC_OK);
    for (uint32_t i = 0; i < info.nvariable; i++) {
        ampc_variable_info v = {.size = sizeof v};
        REQUIRE(m->c.api->variable(m->c.api->module, i, &v) == AMPC_OK);
        if (v.kind != AMPC_KIND_GRADIENT) continue;
        char *data = malloc(v.bytes);
        memset(data, 1, v.bytes);
        read_var(&m->c, s, v.name, data, v.bytes, (ampc_dtype)v.dtype);
        for (size_t k = 0; k < v.bytes; k++) REQUIRE(data[k] == 0);
        free(data);
        sum += v.bytes;
    }
    return sum;
}

/* All memory taken from the device, before gradients are allocated and
   after. */
TEST_CASE(cuda_runtime, memory_by_kind) {
    const Model *m = model(&plain);
    const ampc_api *a = machine(m, NULL);
    ampc_session *s = open_gpu(a);
    for (int i = 0; i < 2; i++) {
        ampc_memory_info now = {.size = sizeof now};
        SimStats stats;
        sim()->stats(&stats);
        CHECK_EQ_INT(a->memory(s, &now), AMPC_OK);
        CHECK_EQ_INT(now.total, stats.allocated);
        CHECK(now.parameters && now.state && now.activations && now.host);
        CHECK(now.workspace < now.total);
        CHECK((now.gradients > 0) == (i > 0));
        CHECK_EQ_INT(micro(m, s, i), AMPC_OK);
        CHECK_EQ_INT(a->update(s, NULL), AMPC_OK);
    }
    a->close(s);
    check_clean();
}

/* A module that does not accumulate allocates gradients only when a host
   makes micro-steps. */
TEST_CASE(cuda_runtime, micro_steps_bring_their_memory) {
    enum { WEIGHTS = 1 << AMPC_KIND_PARAMETER | 1 << AMPC_KIND_STATE };
    const Model *m = model(&plain);
    const ampc_api *a = machine(m, NULL);
    ampc_session *s = open_gpu(a), *t = open_gpu(a);
    size_t before = allocated(), grads = zero_gradients(m, s);
    CHECK(grads > 0);
    CHECK_EQ_INT(step(m, s, 0, NULL), AMPC_OK);
    CHECK_EQ_INT(step(m, t, 0, NULL), AMPC_OK);
    CHECK(allocated() == before);
    sim()->fail("cuMemAlloc_v2", 1, CUDA_OUT_OF_MEMORY, false);
    CHECK_EQ_INT(micro(m, s, 1), AMPC_ERR_MEMORY);
    CHECK_HAS(a->error(s), "bytes of device memory are needed");
    CHECK(allocated() == before);
    for (int i = 1; i < 4; i++) {
        CHECK_EQ_INT(step(m, t, i, NULL), AMPC_OK);
        CHECK_EQ_INT(micro(m, s, i), AMPC_OK);
        CHECK_EQ_INT(a->update(s, NULL), AMPC_OK);
        CHECK(allocated() >= before + grads);
    }
    CHECK_EQ_INT(step(m, t, 4, NULL), AMPC_OK);
    CHECK_EQ_INT(step(m, s, 4, NULL), AMPC_OK);
    same_variables(m, s, t, WEIGHTS);
    a->close(s);
    a->close(t);
    check_clean();
}

/* A host that calls micro_step and update itself, with ranks that sum on the
   device: micro-steps are replayed, and updates must not be confused with
   them. */
TEST_CASE(cuda_runtime, micro_steps_and_updates_of_ranks_on_the_device) {
    enum { WEIGHTS = 1 << AMPC_KIND_PARAMETER | 1 << AMPC_KIND_STATE };
    static const char *const set[][2] = {{"MASTER_ADDR", "127.0.0.1"},
                                         {"MASTER_PORT", "29123"},
                                         {"RANK", "0"},
                                         {"WORLD_SIZE", "1"}};
    const Model *m = model(&accumulating);
    const ampc_api *a = machine(m, NULL);
    ampc_comm_options engine = {
        .size = sizeof engine, .engine = "nccl", .deadline = 10};
    ampc_options o = {.size = sizeof o, .device = "cuda", .threads = 1};
    ampc_session *s[2];
    ampc_comm *comm[2];
    char err[300] = "";
    setenv("AMPC_LIBNCCL", sim()->nccl, 1);
    for (int i = 0; i < 4; i++) setenv(set[i][0], set[i][1], 1);
    for (int k = 0; k < 2; k++) {
        CHECK_MSG(a->comm_open(&engine, &comm[k], err, sizeof err) == AMPC_OK,
                  "%s", err);
        o.comm = comm[k];
        CHECK_MSG(a->open(a->module, &o, &s[k], err, sizeof err) == AMPC_OK,
                  "%s", err);
    }
    for (int i = 0; i < 12; i++) {
        CHECK_EQ_INT(step(m, s[0], i, NULL), AMPC_OK);
        CHECK_EQ_INT(micro(m, s[1], i), AMPC_OK);
        if (i % 2) CHECK_EQ_INT(a->update(s[1], NULL), AMPC_OK);
    }
    same_variables(m, s[0], s[1], WEIGHTS);
    for (int k = 0; k < 2; k++) {
        a->close(s[k]);
        a->comm_close(comm[k]);
    }
    for (int i = 0; i < 4; i++) unsetenv(set[i][0]);
    unsetenv("AMPC_LIBNCCL");
    check_clean();
}

/* Gradients without elements need no memory; their programs still run. */
TEST_CASE(cuda_runtime, micro_steps_of_empty_parameters) {
    Model m = {.c = compile_text_cuda(
                   "graph forward(%x: f32[4]) {\n"
                   "  param %w: f32[0]\n"
                   "  %s = reduce_sum %w {axes=[0], keepdims=0} : f32[]\n"
                   "  %m = reduce_mean %x {axes=[0], keepdims=0} : f32[]\n"
                   "  %loss = add %m, %s : f32[]\n"
                   "  return %loss\n}\n",
                   "--loss auto --precision fp32", GPU_PTX)};
    const float x[] = {1, 2, 3, 6};
    ampc_input in = ampc_in("x", x, sizeof x, AMPC_DTYPE_F32);
    double loss = 0;
    REQUIRE(sim_build_twins(m.c.cuda_dir) > 0);
    const ampc_api *a = machine(&m, NULL);
    ampc_session *s = open_gpu(a);
    CHECK_EQ_INT(a->micro_step(s, &in, 1, &loss), AMPC_OK);
    CHECK(loss == 3);
    CHECK_EQ_INT(a->update(s, NULL), AMPC_OK);
    a->close(s);
    check_clean();
    compiled_close(&m.c);
}

/* A module that accumulates reports a lack of memory at open. */
TEST_CASE(cuda_runtime, modules_that_accumulate_have_room_from_the_start) {
    const Model *m = model(&accumulating);
    const ampc_api *a = machine(m, NULL);
    ampc_session *s = open_gpu(a);
    size_t before = allocated();
    for (int i = 0; i < 4; i++) CHECK_EQ_INT(step(m, s, i, NULL), AMPC_OK);
    CHECK(allocated() == before);
    a->close(s);
    check_clean();
}

/* ---- state --------------------------------------------------------------- */

TEST_CASE(cuda_runtime, checkpoints_move_between_devices) {
    const Model *m = model(&accumulating);
    const ampc_api *a = machine(m, NULL);
    enum {
        ALL = 0x7f & ~(1u << AMPC_KIND_SHADOW),
        LASTING = ALL & ~(1u << AMPC_KIND_GRADIENT) /* beyond a round */
    };
    ampc_session *gpu = open_gpu(a), *cpu;
    const char *path = test_tmp("moved.safetensors");
    for (int i = 0; i < 5; i++) /* in the middle of a round */
        CHECK_EQ_INT(step(m, gpu, i, NULL), AMPC_OK);
    CHECK_EQ_INT(a->set_hyper(gpu, "lr", 0.25), AMPC_OK);
    CHECK_EQ_INT(a->save(gpu, path), AMPC_OK);
    CHECK_EQ_INT(try_open(a, "cpu", NULL, &cpu), AMPC_OK);
    CHECK_EQ_INT(a->resume(cpu, path), AMPC_OK);
    same_variables(m, gpu, cpu, ALL);
    CHECK_EQ_INT(step(m, cpu, 5, NULL), AMPC_OK);
    CHECK_EQ_INT(a->save(cpu, path), AMPC_OK);
    CHECK_EQ_INT(a->resume(gpu, path), AMPC_OK);
    same_variables(m, gpu, cpu, LASTING);
    a->close(gpu);
    a->close(cpu);
    check_clean();
}

TEST_CASE(cuda_runtime, a_forked_child_leaves_the_driver_alone) {
    const Model *m = model(&plain);
    const ampc_api *a = machine(m, NULL);
    ampc_session *s = open_gpu(a);
    int status = -1;
    CHECK_EQ_INT(step(m, s, 0, NULL), AMPC_OK);
    pid_t pid = fork();
    REQUIRE(pid >= 0);
    if (pid == 0) {
        alarm(20);
        bool told = step(m, s, 1, NULL) == AMPC_ERR_DEVICE &&
                    strstr(a->error(s), "forked");
        a->close(s);
        _exit(told ? 0 : 1);
    }
    waitpid(pid, &status, 0);
    CHECK_EQ_INT(status, 0);
    CHECK_EQ_INT(step(m, s, 1, NULL), AMPC_OK);
    a->close(s);
    check_clean();
}
