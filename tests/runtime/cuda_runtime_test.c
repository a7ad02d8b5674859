/* SPDX-License-Identifier: Apache-2.0 */
/* cuda_runtime_test.c: sessions on the simulated GPU: training compared with
   the CPU, which calls wait, graphs, devices and images, state. */
#define _GNU_SOURCE
#include "tests/support/gpu_session.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "runtime/program/plan.h"

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

/* ---- what waits ---------------------------------------------------------- */

/* Only calls that request a result wait for the device: no other call waits
   for the stream, or for events, except for the slot of two steps before. */
TEST_CASE(cuda_runtime, steps_do_not_wait) {
    const Model *m = model(&plain);
    const ampc_api *a = machine(m, NULL);
    ampc_session *s = open_gpu(a);
    ampc_metrics want[6], got;
    for (int i = 0; i < 6; i++) CHECK_EQ_INT(step(m, s, i, &want[i]), AMPC_OK);
    a->close(s);
    s = open_gpu(a);
    CHECK_EQ_INT(step(m, s, 0, NULL), AMPC_OK);
    uint64_t waits = sim()->calls("cuStreamSynchronize");
    for (int i = 1; i < 6; i++) CHECK_EQ_INT(step(m, s, i, NULL), AMPC_OK);
    CHECK_EQ_INT(sim()->calls("cuStreamSynchronize") - waits, 0);
    got.size = sizeof got;
    CHECK_EQ_INT(a->sync(s, &got), AMPC_OK);
    CHECK_MEM(&got, &want[5], sizeof got);
    a->close(s);
    check_clean();
}

/* The loss of step 4, with each step's inputs overwritten as soon as it
   returns. */
static double loss_with_reuse(const Model *m, uint64_t seed, bool reuse) {
    const ampc_api *a = machine(m, &(SimConfig){.seed = seed});
    ampc_session *s = open_gpu(a);
    ampc_metrics last = {.size = sizeof last};
    for (int i = 0; i < 5; i++) {
        size_t n;
        const ampc_input *in = dc_random_feed(m->feed, i, &n);
        CHECK_EQ_INT(a->step(s, in, n, NULL), AMPC_OK);
        for (size_t k = 0; reuse && k < n; k++)
            memset((void *)(uintptr_t)in[k].data, 0, in[k].bytes);
    }
    CHECK_EQ_INT(a->sync(s, &last), AMPC_OK);
    a->close(s);
    check_clean();
    return last.loss;
}

TEST_CASE(cuda_runtime, inputs_are_the_callers_again_at_once) {
    const Model *m = model(&plain);
    double want = loss_with_reuse(m, 1, false);
    for (uint64_t seed = 1; seed < 4; seed++)
        CHECK(loss_with_reuse(m, seed, true) == want);
}

/* Five steps on inputs written to staged memory, which is overwritten after
   each; or, misplaced, only the target, at the address of the first input. */
static double loss_of_staged(const Model *m, uint64_t seed, bool spoil,
                             bool misplaced) {
    const ampc_api *a = machine(m, &(SimConfig){.seed = seed});
    ampc_session *s = open_gpu(a);
    ampc_metrics last = {.size = sizeof last};
    for (int i = 0; i < 5; i++) {
        ampc_input in[4];
        size_t n;
        const ampc_input *from = dc_random_feed(m->feed, i, &n);
        REQUIRE(n == 2);
        for (uint32_t k = 0; k < n; k++) {
            void *to = NULL;
            in[k] = from[k];
            if (misplaced && k == 0) continue;
            uint32_t place = misplaced ? 0 : k;
            REQUIRE(a->stage(s, "train", place, &to) == AMPC_OK && to);
            memcpy(to, from[k].data, from[k].bytes);
            in[k].data = to;
        }
        CHECK_EQ_INT(a->step(s, in, n, i < 4 ? NULL : &last), AMPC_OK);
        for (size_t k = 0; k < n && spoil; k++)
            memset((void *)(uintptr_t)in[k].data, 0, in[k].bytes);
    }
    a->close(s);
    check_clean();
    return last.loss;
}

TEST_CASE(cuda_runtime, staged_inputs_are_read_where_they_lie) {
    const Model *m = model(&plain);
    double want = loss_with_reuse(m, 1, false);
    int changed = 0;
    for (uint64_t seed = 1; seed < 9; seed++) {
        CHECK(loss_of_staged(m, seed, false, false) == want);
        CHECK(loss_of_staged(m, seed, false, true) == want);
        changed += loss_of_staged(m, seed, true, false) != want;
    }
    CHECK(changed > 0);
}

TEST_CASE(cuda_runtime, only_a_gpu_has_a_stage) {
    const Model *m = model(&plain);
    const ampc_api *a = machine(m, NULL);
    ampc_options o = {.size = sizeof o, .device = "cpu"};
    ampc_session *s = NULL;
    void *to = &s;
    REQUIRE(a->open(a->module, &o, &s, NULL, 0) == AMPC_OK);
    CHECK(a->stage(s, "train", 0, &to) == AMPC_OK && !to);
    CHECK_EQ_INT(a->stage(s, "train", 9, &to), AMPC_ERR_ARGUMENT);
    CHECK_EQ_INT(a->stage(s, "none", 0, &to), AMPC_ERR_UNSUPPORTED);
    CHECK_EQ_INT(a->stage(s, "train", 0, NULL), AMPC_ERR_ARGUMENT);
    a->close(s);
}

/* ---- sessions side by side ----------------------------------------------- */

static ampc_metrics alone[3];

static void *train_alone(void *number) {
    const Model *m = model(&plain);
    ampc_metrics *out = number;
    ampc_session *s;
    ampc_options o = {.size = sizeof o, .device = "cuda"};
    if (m->c.api->open(m->c.api->module, &o, &s, NULL, 0)) return NULL;
    DcRandom *feed = dc_random_new(m->c.api, "train", 3, 1);
    out->size = sizeof *out;
    for (int i = 0; i < 5; i++) {
        size_t n;
        const ampc_input *in = dc_random_feed(feed, i, &n);
        m->c.api->step(s, in, n, i < 4 ? NULL : out);
    }
    dc_random_free(feed);
    m->c.api->close(s);
    return NULL;
}

TEST_CASE(cuda_runtime, sessions_run_in_parallel) {
    pthread_t t[3];
    machine(model(&plain), NULL);
    for (int i = 0; i < 3; i++)
        REQUIRE(!pthread_create(&t[i], NULL, train_alone, &alone[i]));
    for (int i = 0; i < 3; i++) pthread_join(t[i], NULL);
    CHECK(alone[0].step == 5 && alone[0].loss > 0);
    for (int i = 1; i < 3; i++) CHECK_MEM(&alone[0], &alone[i], sizeof *alone);
    check_clean();
}

static bool opened, opened_early;

static void *open_beside(void *unused) {
    const ampc_api *a = model(&plain)->c.api;
    ampc_options o = {.size = sizeof o, .device = "cuda"};
    ampc_session *s = NULL;
    char err[300] = "";
    (void)unused;
    CHECK_MSG(a->open(a->module, &o, &s, err, sizeof err) == AMPC_OK, "%s",
              err);
    a->close(s);
    __atomic_store_n(&opened, true, __ATOMIC_SEQ_CST);
    return NULL;
}

/* A thread begins to open a session while this one captures. */
static void open_in_capture(void *thread) {
    const struct timespec moment = {.tv_nsec = 50000000};
    REQUIRE(!pthread_create(thread, NULL, open_beside, NULL));
    nanosleep(&moment, NULL);
    opened_early = __atomic_load_n(&opened, __ATOMIC_SEQ_CST);
}

/* cuBLASLt finds no algorithm while a stream is captured. */
TEST_CASE(cuda_runtime, sessions_open_while_others_capture) {
    const Model *m = model(&plain);
    const ampc_api *a = machine(m, NULL);
    ampc_session *s = open_gpu(a);
    ampc_metrics out;
    pthread_t other;
    opened = opened_early = false;
    CHECK_EQ_INT(step(m, s, 0, &out), AMPC_OK);
    sim()->at_capture(open_in_capture, &other);
    CHECK_EQ_INT(step(m, s, 1, &out), AMPC_OK);
    CHECK(!opened_early);
    pthread_join(other, NULL);
    CHECK(opened);
    a->close(s);
    check_clean();
}

static uint64_t waited(void) {
    return sim()->calls("cuStreamSynchronize") +
           sim()->calls("cuEventSynchronize") +
           sim()->calls("cuCtxSynchronize");
}

static int profiled;
static uint64_t profiled_to;

/* One after the other, as on the device. */
static void on_step(void *ctx, const char *program, const char *name,
                    uint64_t begin, uint64_t end) {
    (void)ctx;
    CHECK(program && name && end >= begin && begin >= profiled_to);
    profiled_to = end;
    profiled++;
}

/* Times are those between events on the device, and the host waits once. */
TEST_CASE(cuda_runtime, profiles_every_step) {
    const Model *m = model(&plain);
    const ampc_api *a = machine(m, NULL);
    ampc_session *s = open_gpu(a);
    const AmpcModule *plan = (const void *)a->module;
    uint32_t train = 0;
    while (strcmp(plan->programs[train].name, "train")) train++;
    int nstep = (int)plan->cuda->plan->runs[train].nstep;
    for (int i = 0; i < 3; i++) CHECK_EQ_INT(step(m, s, i, NULL), AMPC_OK);
    profiled = 0;
    a->profile(s, on_step, NULL);
    uint64_t timed = sim()->calls("cuEventElapsedTime"), waits = waited();
    CHECK_EQ_INT(step(m, s, 3, NULL), AMPC_OK);
    CHECK_EQ_INT(profiled, nstep);
    CHECK(sim()->calls("cuEventElapsedTime") - timed >= (uint64_t)nstep);
    CHECK_MSG(waited() - waits <= 2, "%d waits", (int)(waited() - waits));
    a->profile(s, NULL, NULL);
    CHECK_EQ_INT(step(m, s, 4, NULL), AMPC_OK);
    CHECK_EQ_INT(profiled, nstep);
    a->close(s);
    check_clean();
}

/* Counters have 64 bits all the way to the host. */
TEST_CASE(cuda_runtime, counters_beyond_32_bits) {
    static const struct {
        const char *name;
        size_t field;
        int more; /* after a step that is applied */
    } rows[] = {{"ampc.step", offsetof(ampc_metrics, step), 1},
                {"ampc.tried", offsetof(ampc_metrics, tried), 1},
                {"ampc.skipped", offsetof(ampc_metrics, skipped), 0},
                {"ampc.bad_forward", offsetof(ampc_metrics, bad_forward), 0},
                {"ampc.bad_data", offsetof(ampc_metrics, bad_data), 0}};
    enum { ROWS = sizeof rows / sizeof *rows };
    const Model *m = model(&plain);
    const ampc_api *a = machine(m, NULL);
    for (int device = 0; device < 2; device++) {
        ampc_session *s;
        ampc_metrics now = {.size = sizeof now};
        REQUIRE(try_open(a, device ? "cuda" : "cpu", NULL, &s) == AMPC_OK);
        for (int i = 0; i < ROWS; i++) {
            int64_t far = ((int64_t)1 << 40) + i;
            ampc_input in = ampc_in(NULL, &far, sizeof far, AMPC_DTYPE_I64);
            CHECK_EQ_INT(a->write_variable(s, rows[i].name, &in), AMPC_OK);
        }
        for (int k = 1; k <= 3; k++) { /* eager, captured, replayed */
            CHECK_EQ_INT(step(m, s, k, &now), AMPC_OK);
            for (int i = 0; i < ROWS; i++) {
                int64_t got;
                memcpy(&got, (char *)&now + rows[i].field, sizeof got);
                CHECK_MSG(got == ((int64_t)1 << 40) + i + k * rows[i].more,
                          "%s: %lld", rows[i].name, (long long)got);
            }
        }
        a->close(s);
    }
    check_clean();
}

/* ---- plans that cannot be ------------------------------------------------ */

/* A copy of the module's tables for CUDA, which the test changes. */
typedef struct Copied {
    AmpcModule m;
    PlanCuda cuda;
    PlanTarget plan;
    PlanStep *steps;
    PlanCudaKernel *kernels;
    int64_t *pars;
} Copied;

static void copy_tables(const AmpcModule *from, Copied *c) {
    *c = (Copied){*from, *from->cuda, *from->cuda->plan, NULL, NULL, NULL};
    size_t steps = c->plan.nstep * sizeof *c->steps;
    size_t kernels = c->cuda.nkernel * sizeof *c->kernels;
    size_t pars = c->plan.npar * sizeof *c->pars;
    REQUIRE(c->steps = malloc(steps));
    REQUIRE(c->kernels = malloc(kernels));
    REQUIRE(c->pars = malloc(pars));
    c->plan.steps = memcpy(c->steps, c->plan.steps, steps);
    c->cuda.kernels = memcpy(c->kernels, c->cuda.kernels, kernels);
    c->plan.pars = memcpy(c->pars, c->plan.pars, pars);
    c->cuda.plan = &c->plan;
    c->m.cuda = &c->cuda;
}

static PlanStep *step_of(const Copied *c, uint32_t kind) {
    for (uint32_t i = 0; i < c->plan.nstep; i++)
        if (c->steps[i].kind == kind) return &c->steps[i];
    FAIL("no step of kind %u", kind);
    return NULL;
}

/* One number of a step or of its kernel; each invalid number is next to a
   valid one. */
TEST_CASE(cuda_runtime, a_damaged_plan_is_refused) {
    static const struct {
        uint32_t kind;
        bool of_kernel;
        size_t field, bytes;
        int64_t bad, good;
    } rows[] = {
#define STEP_FIELD(f) false, offsetof(PlanStep, f), sizeof(((PlanStep *)0)->f)
#define KERNEL_FIELD(f)                                                        \
    true, offsetof(PlanCudaKernel, f), sizeof(((PlanCudaKernel *)0)->f)
#define KERNELS  (INT64_MIN / 2) /* kernels: the number of kernels */
#define AS_IT_IS INT64_MAX
        {PLAN_LAUNCH, STEP_FIELD(fn), KERNELS, KERNELS - 1},
        {PLAN_LAUNCH, STEP_FIELD(second), KERNELS + 1, KERNELS},
        {PLAN_MANY, STEP_FIELD(fn), KERNELS, KERNELS - 1},
        {PLAN_PRODUCT, STEP_FIELD(second), KERNELS + 1, KERNELS},
        {PLAN_PRODUCT, STEP_FIELD(epilogue), KERNELS + 1, KERNELS},
        {PLAN_LAUNCH, KERNEL_FIELD(name), 0, -1},
        {PLAN_LAUNCH, KERNEL_FIELD(threads), 0, 1},
        {PLAN_LAUNCH, KERNEL_FIELD(threads), 1025, 1024},
        {PLAN_LAUNCH, KERNEL_FIELD(blocks), -1, 1},
        {PLAN_LAUNCH, KERNEL_FIELD(blocks), (int64_t)INT32_MAX + 1, INT32_MAX},
        {PLAN_MANY, KERNEL_FIELD(per_block), 0, 1},
        {PLAN_MANY, KERNEL_FIELD(per_block), -1, 1},
        {PLAN_ROWS, STEP_FIELD(fn), KERNELS, KERNELS - 1},
        {PLAN_ROWS, KERNEL_FIELD(per_block), 0, 1},
        {PLAN_ROWS, STEP_FIELD(second), 2, 1},
        {PLAN_SUM, STEP_FIELD(fn), KERNELS, AS_IT_IS},
        {PLAN_SUM, STEP_FIELD(second), 0, AS_IT_IS},
        {PLAN_SUM, STEP_FIELD(second), KERNELS + 1, AS_IT_IS},
    };
    static Model sums = {.precision = "fp32",
                         .options = "--precision fp32 --comm-dtype bf16"};
    const Model *model_ = model(&plain), *of_sums = model(&sums);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        for (int good = 0; good < 2; good++) {
            const ampc_api *a =
                machine(rows[i].kind == PLAN_SUM ? of_sums : model_, NULL);
            Copied c;
            ampc_session *s = NULL;
            ampc_options o = {.size = sizeof o, .device = "cuda"};
            copy_tables((const void *)a->module, &c);
            PlanStep *t = step_of(&c, rows[i].kind);
            PlanCudaKernel *k = &c.kernels[t->fn];
            int64_t v = good ? rows[i].good : rows[i].bad;
            if (v < INT64_MIN / 4) v = c.cuda.nkernel + (v - KERNELS);
            if (rows[i].field == offsetof(PlanCudaKernel, per_block) &&
                rows[i].of_kernel)
                k->blocks = 0;
            if (v != AS_IT_IS && !(rows[i].of_kernel && v == -1 && good))
                memcpy((char *)(rows[i].of_kernel ? (void *)k : (void *)t) +
                           rows[i].field,
                       &v, rows[i].bytes);
            ampc_status st = a->open((const void *)&c.m, &o, &s, open_text,
                                     sizeof open_text);
            bool damaged = strstr(open_text, "CUDA plan is damaged") != NULL;
            CHECK_MSG(damaged == !good && (st == AMPC_ERR_INTERNAL) == !good,
                      "row %zu, %s: %d %s", i, good ? "good" : "bad", (int)st,
                      open_text);
            if (s) a->close(s);
            free(c.steps);
            free(c.kernels);
            free(c.pars);
        }
}

/* ---- devices and images -------------------------------------------------- */

/* `there`: a GPU exists, which is worth a notice. */
static void refused(const ampc_api *a, const char *device, bool there,
                    const char *why) {
    ampc_session *s;
    CHECK_EQ_INT(try_open(a, device, NULL, &s), AMPC_ERR_UNSUPPORTED);
    CHECK_HAS(open_text, why);
    CHECK_EQ_INT(try_open(a, "auto", NULL, &s), AMPC_OK);
    CHECK_HAS(log_text, "running on the CPU");
    CHECK_HAS(log_text, why);
    if (there)
        CHECK_HAS(a->notice(s), "the GPU is not used, running on the CPU");
    else
        CHECK_STR(a->notice(s), "");
    a->close(s);
}

TEST_CASE(cuda_runtime, auto_takes_the_cpu_without_a_gpu) {
    const Model *m = model(&plain);
    const ampc_api *a = machine(m, NULL);
    ampc_session *s;
    CHECK_EQ_INT(try_open(a, NULL, NULL, &s), AMPC_OK);
    ampc_device_info device = {.size = sizeof device};
    CHECK_HAS(log_text, "GPU 'Simulated");
    CHECK_EQ_INT(a->device(s, &device), AMPC_OK);
    CHECK_STR(device.kind, "cuda");
    CHECK_HAS(device.name, "Simulated");
    a->close(s);
    CHECK_EQ_INT(try_open(a, "cpu", NULL, &s), AMPC_OK);
    CHECK_EQ_INT(a->device(s, &device), AMPC_OK);
    CHECK_STR(device.kind, "cpu");
    CHECK_STR(device.name, "");
    device.size = 0;
    CHECK_EQ_INT(a->device(s, &device), AMPC_ERR_ARGUMENT);
    a->close(s);
    CHECK_EQ_INT(try_open(a, "cuda:1", NULL, &s), AMPC_ERR_UNSUPPORTED);
    CHECK_HAS(open_text, "no GPU 1: the driver shows 1");
    machine(m, &(SimConfig){.devices = -1});
    refused(a, "cuda", false, "no usable GPU");
    machine(m, NULL);
    setenv("AMPC_LIBCUDA", "none", 1);
    refused(a, "cuda", false, "no NVIDIA driver");
    setenv("AMPC_LIBCUDA", "libm.so.6", 1);
    refused(a, "cuda:0", true, "libcuda has no cuInit");
    machine(m, NULL);
    setenv("AMPC_LIBCUBLASLT", "none", 1);
    refused(a, "cuda", true, "no cuBLASLt");
    CHECK_STR(sim()->leaks(), "");
}

/* With "auto" a message names a driver that does not start, unless the machine
   has no GPU. */
TEST_CASE(cuda_runtime, auto_tells_of_a_driver_that_does_not_start) {
    static const struct {
        int code;
        bool told;
    } rows[] = {{CUDA_NO_DEVICE, false},
                {CUDA_STUB_LIBRARY, false},
                {802, true}, /* the fabric is not up */
                {803, true}, /* its version differs from the kernel module's */
                {999, true}};
    const Model *m = model(&plain);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const ampc_api *a = machine(m, NULL);
        ampc_session *s;
        sim()->fail("cuInit", 1, rows[i].code, false);
        REQUIRE(try_open(a, "auto", NULL, &s) == AMPC_OK);
        CHECK_HAS(log_text, "no usable GPU: cuInit");
        CHECK_MSG((*a->notice(s) != 0) == rows[i].told, "%d: %s", rows[i].code,
                  a->notice(s));
        a->close(s);
    }
}

/* The user did not ask for a module without GPU code: NVRTC was missing. */
TEST_CASE(cuda_runtime, a_module_without_gpu_code_tells_of_a_gpu) {
    static const struct {
        bool asked;                  /* for no GPU code */
        const char *device, *driver; /* NULL: the simulated one */
        int devices;
        bool told;
    } rows[] = {
        {false, "auto", NULL, 0, true},
        {false, NULL, NULL, 0, true},
        {false, "cpu", NULL, 0, false},
        {false, "auto", NULL, -1, false},
        {false, "auto", "none", 0, false},
        {false, "auto", "libm.so.6", 0, false},
        {true, "auto", NULL, 0, false},
    };
    const char *mlp = "tests/onnx/mlp.dyn.onnx";
    const Compiled c[] = {
        compile_defaults(test_data_path(mlp), "--dim batch=8 --loss none"),
        compile_file(test_data_path(mlp),
                     "--dim batch=8 --loss none --target cpu:x86-64-v2")};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const ampc_api *a = c[rows[i].asked].api;
        ampc_session *s;
        machine(model(&plain), &(SimConfig){.devices = rows[i].devices});
        if (rows[i].driver) setenv("AMPC_LIBCUDA", rows[i].driver, 1);
        REQUIRE(try_open(a, rows[i].device, NULL, &s) == AMPC_OK);
        CHECK_MSG((strstr(a->notice(s), "the GPU is not used, running on the "
                                        "CPU: NVRTC was not found") != NULL) ==
                          rows[i].told &&
                      (*a->notice(s) != 0) == rows[i].told,
                  "row %zu: %s", i, a->notice(s));
        a->close(s);
    }
}

TEST_CASE(cuda_runtime, second_device) {
    const Model *m = model(&plain);
    const ampc_api *a = machine(m, &(SimConfig){.devices = 2});
    ampc_session *s;
    ampc_metrics x;
    CHECK_EQ_INT(try_open(a, "cuda:1", NULL, &s), AMPC_OK);
    for (int i = 0; i < 3; i++) CHECK_EQ_INT(step(m, s, i, &x), AMPC_OK);
    a->close(s);
    check_clean();
}

TEST_CASE(cuda_runtime, images_by_compute_capability) {
    static const struct {
        int cc, driver;
        bool ptx_only;
        const char *arch;
    } rows[] = {{80, 0, false, "sm_80"},        {86, 0, false, "sm_80"},
                {90, 0, false, "sm_90"},        {100, 0, false, "compute_80"},
                {90, 0, true, "compute_80"},    {80, 0, true, "compute_80"},
                {90, 12000, true, "compute_80"}};
    const Model *m = model(&plain);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        SimConfig c = {.cc = rows[i].cc,
                       .driver = rows[i].driver,
                       .ptx_only = rows[i].ptx_only};
        const ampc_api *a = machine(m, &c);
        setenv("AMPC_SIM_BLAS_VERSION", c.driver ? "120805" : "130100", 1);
        char want[40];
        ampc_session *s = open_gpu(a);
        snprintf(want, sizeof want, "code for %s,", rows[i].arch);
        CHECK_HAS(log_text, want);
        CHECK_EQ_INT(step(m, s, 0, NULL), AMPC_OK);
        CHECK_EQ_INT(a->sync(s, NULL), AMPC_OK);
        a->close(s);
        check_clean();
    }
    unsetenv("AMPC_SIM_BLAS_VERSION");
    machine(m, &(SimConfig){.cc = 75});
    refused(m->c.api, "cuda", true, "compute capability 7.5");
    CHECK_HAS(log_text, "GPUs of compute capability 8.0 and later can");
}

TEST_CASE(cuda_runtime, refused_images_say_why) {
    static const struct {
        int code;
        const char *why;
    } rows[] = {{CUDA_INVALID_PTX, "cannot compile this PTX"},
                {CUDA_JIT_COMPILER_NOT_FOUND, "PTX compiler"},
                {CUDA_UNSUPPORTED_PTX_VERSION, "newer than the driver"},
                {CUDA_JIT_DISABLED, "compiling PTX is disabled"},
                {CUDA_NO_BINARY_FOR_GPU, "no code for this GPU"}};
    const Model *m = model(&plain);
    const AmpcModule *made = (const void *)m->c.api->module;
    char with[60];
    snprintf(with, sizeof with, "(made with CUDA %d.%d)",
             made->cuda->toolkit / 1000, made->cuda->toolkit / 10 % 10);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const ampc_api *a =
            machine(m, &(SimConfig){.cc = 103, .driver = 12040});
        ampc_session *s;
        setenv("AMPC_SIM_BLAS_VERSION", "120805", 1);
        sim()->fail("cuModuleLoadDataEx", 1, rows[i].code, false);
        CHECK_EQ_INT(try_open(a, "cuda", NULL, &s), AMPC_ERR_UNSUPPORTED);
        CHECK_HAS(open_text, rows[i].why);
        CHECK_HAS(open_text, with);
        CHECK_HAS(open_text, "(compute capability 10.3, driver for CUDA 12.4)");
        CHECK_HAS(open_text, "compile with --target cuda:sm_103");
        CHECK_HAS(open_text, "holds sm_90, sm_80, compute_80");
        check_clean();
    }
    unsetenv("AMPC_SIM_BLAS_VERSION");
}

/* The module's PTX is newer than the driver. */
TEST_CASE(cuda_runtime, the_compiler_of_ptx_is_heard) {
    const Model *m = model(&plain);
    const ampc_api *a =
        machine(m, &(SimConfig){.cc = 90, .driver = 11080, .ptx_only = true});
    setenv("AMPC_SIM_BLAS_VERSION", "111103", 1);
    ampc_session *s;
    CHECK_EQ_INT(try_open(a, "cuda", NULL, &s), AMPC_ERR_UNSUPPORTED);
    CHECK_HAS(log_text, "cuda:compute_80:0: simulated compiler: error 222");
    check_clean();
    unsetenv("AMPC_SIM_BLAS_VERSION");
}

/* Each unit of an image in turn is rejected: the next image is used, and
   nothing of the earlier units stays. */
TEST_CASE(cuda_runtime, an_image_is_taken_whole) {
    const Model *m = model(&plain);
    int nth = 1;
    for (bool refused = true; refused; nth++) {
        const ampc_api *a = machine(m, &(SimConfig){.cc = 90});
        sim()->fail("cuModuleLoadDataEx", nth, CUDA_NO_BINARY_FOR_GPU, false);
        ampc_session *s = open_gpu(a);
        refused = strstr(log_text, "code for compute_80,") != NULL;
        CHECK(refused || strstr(log_text, "code for sm_90,"));
        CHECK_EQ_INT(step(m, s, 0, NULL), AMPC_OK);
        CHECK_EQ_INT(a->sync(s, NULL), AMPC_OK);
        a->close(s);
        check_clean();
    }
    CHECK(nth > 3);
}

/* A file whose list of sections has one name replaced by another. */
TEST_CASE(cuda_runtime, a_missing_section_is_named) {
    static const char name[] = "cuda:sm_90:0";
    const Model *m = model(&plain);
    const ampc_api *a;
    ampc_session *s;
    char err[400], *path = strdup(test_tmp("lacks.so"));
    void *handle;
    size_t n, found = 0;
    char *file = test_read_file(m->c.path, &n);
    REQUIRE(file);
    for (size_t i = 0; i + sizeof name <= n; i++)
        if (!memcmp(file + i, name, sizeof name)) {
            file[i + 5] = 'x';
            found++;
        }
    CHECK_EQ_INT(found, 1);
    REQUIRE(test_write_file(path, file, n));
    machine(m, &(SimConfig){.cc = 90});
    REQUIRE((a = ampc_load(path, &handle, err, sizeof err)));
    CHECK(try_open(a, "cuda", NULL, &s) != AMPC_OK);
    CHECK_HAS(open_text, "no section 'cuda:sm_90:0'");
    check_clean();
    dlclose(handle);
    free(file);
    free(path);
}

TEST_CASE(cuda_runtime, out_of_memory_names_the_bytes) {
    const Model *m = model(&plain);
    const ampc_api *a = machine(m, &(SimConfig){.memory = 1 << 20});
    ampc_session *s;
    CHECK_EQ_INT(try_open(a, "cuda", NULL, &s), AMPC_ERR_MEMORY);
    CHECK_HAS(open_text, "bytes of device memory are needed");
    CHECK_HAS(open_text, "--remat is not enough");
    CHECK_EQ_INT(try_open(a, "auto", NULL, &s), AMPC_ERR_MEMORY);
    check_clean();
    /* one byte too few: activations may be that much smaller */
    unsigned long long needed, have, arena, remat;
    const char *at = strstr(open_text, "': ");
    REQUIRE(at && sscanf(at, "': %llu bytes", &needed) == 1);
    machine(m, &(SimConfig){.memory = (size_t)needed - 1});
    CHECK_EQ_INT(try_open(a, "cuda", NULL, &s), AMPC_ERR_MEMORY);
    at = strstr(open_text, "needed; ");
    REQUIRE(at && sscanf(at, "needed; %llu of", &have) == 1);
    at = strstr(open_text, "are free; ");
    REQUIRE(at && sscanf(at, "are free; %llu of them", &arena) == 1);
    at = strstr(open_text, "--remat ");
    REQUIRE(at && sscanf(at, "--remat %llu or", &remat) == 1);
    CHECK(arena - remat == needed - have && remat > 0);
    check_clean();
}

/* ---- ampc run ------------------------------------------------------------ */

/* Zeros for an input of "train", two batches, as a .npy file whose header
   has 128 bytes: 'v' is the length of its text. */
static void write_zeroes(const ampc_api *a, uint32_t index, char option[700]) {
    ampc_tensor_info t = {.size = sizeof t};
    char head[128], path[600];
    CHECK_EQ_INT(a->input(a->module, "train", index, &t), AMPC_OK);
    REQUIRE(t.rank == 1 || t.rank == 2);
    int n = snprintf(head, sizeof head,
                     "\x93NUMPY%c%c%c%c{'descr': '%s', 'fortran_order': False, "
                     "'shape': (%d,",
                     1, 0, 'v', 0, t.dtype == AMPC_DTYPE_I64 ? "<i8" : "<f4",
                     (int)(2 * t.shape[0]));
    if (t.rank == 2)
        n +=
            snprintf(head + n, sizeof head - (size_t)n, " %d", (int)t.shape[1]);
    n += snprintf(head + n, sizeof head - (size_t)n, "), }");
    size_t size = sizeof head + 2 * t.bytes;
    char *file = calloc(1, size);
    memset(file, ' ', sizeof head);
    memcpy(file, head, (size_t)n);
    file[sizeof head - 1] = '\n';
    snprintf(path, sizeof path, "%s/%u.npy", test_tmpdir(), index);
    REQUIRE(test_write_file(path, file, size));
    snprintf(option, 700, "--feed %s=%s", t.name, path);
    free(file);
}

TEST_CASE(cuda_runtime, ampc_run_takes_a_device) {
    static const struct {
        const char *device, *says;
        int status;
    } rows[] = {{"auto", "GPU 'Simulated", 0}, {"cuda", "GPU 'Simulated", 0},
                {"cuda:0", "\"step\":3", 0},   {"cpu", "x86-64-v2", 0},
                {"cuda:1", "no GPU 1", 1},     {"tpu", "'cuda:N'", 1}};
    const Model *m = model(&plain);
    const ampc_api *a = machine(m, NULL);
    char feed[2][700];
    setenv("AMPC_SIM_TWINS", m->c.cuda_dir, 1);
    for (uint32_t i = 0; i < 2; i++) write_zeroes(a, i, feed[i]);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char *out = NULL;
        int rc = test_command(&out, "'%s' run '%s' --device %s %s %s --steps 3",
                              test_ampc(), m->c.path, rows[i].device, feed[0],
                              feed[1]);
        CHECK_EQ_INT(rc, rows[i].status);
        CHECK_HAS(out, rows[i].says);
        free(out);
    }
    /* the share of the GPU's peak */
    char *out = NULL;
    int rc =
        test_command(&out,
                     "'%s' run '%s' --device cuda %s %s --steps 3 "
                     "--profile '%s/trace.json'",
                     test_ampc(), m->c.path, feed[0], feed[1], test_tmpdir());
    CHECK_EQ_INT(rc, 0);
    CHECK_HAS(out, "on the GPU ");
    CHECK_HAS(out, " ms a step, ");
    free(out);
    unsetenv("AMPC_SIM_TWINS");
}

/* Folders with libraries of these names; "no": a file that is not a library. */
static const char *put_libraries(const char *folder, const char *v13,
                                 const char *v12) {
    const char *at = test_tmp(folder);
    const char *const names[] = {"libcublasLt.so.13", "libcublasLt.so.12"};
    const char *const kinds[] = {v13, v12};
    CHECK_EQ_INT(test_command(NULL, "mkdir -p '%s' && ln -sf '%s' '%s'/", at,
                              sim()->path, at),
                 0);
    for (int i = 0; i < 2; i++)
        if (kinds[i])
            CHECK_EQ_INT(test_command(NULL, "ln -sf '%s' '%s/%s'",
                                      strcmp(kinds[i], "no") == 0
                                          ? "/lib/x86_64-linux-gnu/libm.so.6"
                                          : sim()->cublaslt,
                                      at, names[i]),
                         0);
    return at;
}

typedef struct Found {
    int driver;
    const char *libraries, *device, *says;
    int status;
    const char *home; /* NULL: there is none */
} Found;

/* Precedes a command: hides this machine's CUDA toolkit. */
static const char *hide_toolkit(void) {
    static const char hides[] =
        "unshare -rm sh -c 'mount -t tmpfs none /usr/local && exec \"$@\"' sh";
    if (test_command(NULL, "ls /usr/local/cuda*/lib64/libcublasLt.so.1?") != 0)
        return "";
    if (test_command(NULL, "%s true", hides) != 0)
        SKIP("this machine has a CUDA toolkit, which would be found");
    return hides;
}

static void check_found(const Found *rows, size_t n) {
    const Model *m = model(&plain);
    const ampc_api *a = machine(m, NULL);
    const char *hides = hide_toolkit();
    char feed[2][700];
    for (uint32_t i = 0; i < 2; i++) write_zeroes(a, i, feed[i]);
    unsetenv("AMPC_LIBCUBLASLT");
    for (const Found *r = rows; r < rows + n; r++) {
        char *out = NULL;
        int rc = test_command(
            &out,
            "LD_LIBRARY_PATH='%s' VIRTUAL_ENV='%s' HOME='%s' "
            "AMPC_SIM_DRIVER=%d "
            "AMPC_SIM_BLAS_VERSION=%d AMPC_SIM_TWINS='%s' %s '%s' run '%s' "
            "--device %s %s %s --steps 1",
            r->libraries,
            strcmp(r->libraries, "nowhere") == 0 ? test_tmp("env") : "none",
            r->home ? r->home : "none", r->driver,
            strstr(r->says, ".12") ? 120805 : 130100, m->c.cuda_dir, hides,
            test_ampc(), m->c.path, r->device, feed[0], feed[1]);
        CHECK_MSG(rc == r->status, "status %d\n%s", rc, out);
        CHECK_HAS(out, r->says);
        free(out);
    }
    machine(m, NULL);
}

TEST_CASE(cuda_runtime, cublaslt_is_of_a_version) {
    const Found rows[] = {{13000, put_libraries("both", "yes", "yes"), "cuda",
                           "both/libcublasLt.so.13", 0, NULL},
                          {12080, put_libraries("old", NULL, "yes"), "cuda",
                           "old/libcublasLt.so.12", 0, NULL}};
    check_found(rows, sizeof rows / sizeof *rows);
}

TEST_CASE(cuda_runtime, cublaslt_is_searched_for) {
    static const char in_package[] =
        "env/lib/python3.11/site-packages/nvidia/cu13/lib";
    static const char in_users[] =
        "home/.local/lib/python3.12/site-packages/nvidia/cublas/lib";
    const Found rows[] = {
        {13000, put_libraries("wrong", "no", "yes"), "cuda",
         "wrong/libcublasLt.so.12", 0, NULL},
        {12080, put_libraries("new", "yes", NULL), "cuda",
         "the driver is too old for libcublasLt.so.13", 1, NULL},
        {12080, test_tmp("new"), "auto", "the GPU is not used", 0, NULL},
        {13000, put_libraries(in_package, "yes", NULL) ? "nowhere" : "", "cuda",
         "cu13/lib/libcublasLt.so.13", 0, NULL},
        {12080, put_libraries(in_users, NULL, "yes") ? "none" : "", "cuda",
         "cublas/lib/libcublasLt.so.12", 0, test_tmp("home")}};
    check_found(rows, sizeof rows / sizeof *rows);
}

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
                   "--loss auto --precision fp32", "cuda:sm_90")};
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
