/* SPDX-License-Identifier: Apache-2.0 */
/* devices.c: damaged plans, devices, images and memory that is exhausted. */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "runtime/program/plan.h"
#include "tests/support/gpu_session.h"

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

static Model sums = {.precision = "fp32",
                     .options = "--precision fp32 --comm-dtype bf16"};

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
        {PLAN_SUM, KERNEL_FIELD(guarded), 1, 0},
        {PLAN_LAUNCH, STEP_FIELD(when), 1, 0},
        {PLAN_ROWS, STEP_FIELD(when), 1, 0},
    };
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

/* The dtype that a sum is sent in, then the elements of each piece. */
TEST_CASE(cuda_runtime, a_damaged_sum_is_refused) {
    static const int64_t values[] = {INT64_MIN, -1, AMPC_DTYPE_I32, INT64_MAX};
    const Model *m = model(&sums);
    for (int i = 0; i < 2; i++)
        for (int k = 0; k < (i ? 2 : 4); k++) {
            const ampc_api *a = machine(m, NULL);
            Copied c;
            ampc_session *s = NULL;
            ampc_options o = {.size = sizeof o, .device = "cuda"};
            copy_tables((const void *)a->module, &c);
            c.pars[step_of(&c, PLAN_SUM)->par0 + (uint32_t)i] = values[k];
            ampc_status st = a->open((const void *)&c.m, &o, &s, open_text,
                                     sizeof open_text);
            CHECK_MSG(st == AMPC_ERR_INTERNAL &&
                          strstr(open_text, "plan is damaged at 'bucket"),
                      "number %d, %lld: %d %s", i, (long long)values[k],
                      (int)st, open_text);
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
    CHECK_HAS(log_text, "compile with --target cuda:sm_75");
    machine(m, &(SimConfig){.cc = 70});
    refused(m->c.api, "cuda", true, "compute capability 7.0");
    CHECK_HAS(log_text, "GPUs of compute capability 7.5 and later can");
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
    CHECK_HAS(open_text, "is not enough");
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
    REQUIRE(at && sscanf(at, "--remat %llu", &remat) == 1);
    CHECK(arena - remat == needed - have && remat > 0);
    check_clean();
}
