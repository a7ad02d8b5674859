/* cuda_runtime_test.c: sessions on the simulated GPU: which device and which
   image, what waits and what does not, graphs, algorithms that are remembered,
   and every call of the driver failing.                                     */
#define _GNU_SOURCE
#include "tests/simulate.h"

#include <dirent.h>
#include <dlfcn.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "runtime/cuda/driver.h"
#include "tests/compiled.h"
#include "tests/device_check.h"

static const char mlp[] = "tests/onnx/mlp.dyn.onnx";

/* ---- a module and its device --------------------------------------------- */

/* One module per way of compiling, for the whole process. */
typedef struct Model {
    const char *precision, *archs, *options;
    Compiled c;
    DcRandom *feed;
} Model;
static Model plain = {.precision = "fp32", .options = "--precision fp32"};
static Model accumulating = {.precision = "bf16",
                             .archs = "cuda:sm_90",
                             .options = "--precision bf16 --accumulate 2"};
static Model scaled = {.precision = "fp16",
                       .archs = "cuda:sm_90",
                       .options = "--precision fp16 --loss-scale "
                                  "dynamic,init=1e9,max=1e9,interval=2"};

static const Model *model(Model *m) {
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

static void cache_in(char dir[600], const char *name) {
    snprintf(dir, 600, "%s/%s", test_tmpdir(), name);
    setenv("AMPC_CACHE_DIR", dir, 1);
}

/* A simulated machine as new. */
static const ampc_api *machine(const Model *m, const SimConfig *config) {
    SimConfig c = config ? *config : (SimConfig){.seed = 1};
    char dir[600];
    c.twins = m->c.cuda_dir;
    setenv("AMPC_LIBCUDA", sim()->path, 1);
    setenv("AMPC_LIBCUBLASLT", sim()->cublaslt, 1);
    cache_in(dir, "cache");
    sim()->reset(&c);
    return m->c.api;
}

static void check_clean(void) {
    CHECK_STR(sim()->leaks(), "");
    CHECK_STR(sim()->errors(), "");
}

static char log_text[4000];
static void log_line(void *ctx, const char *line) {
    size_t n = strlen(log_text);
    (void)ctx;
    snprintf(log_text + n, sizeof log_text - n, "%s\n", line);
}

static char open_text[1200];
static ampc_status try_open(const ampc_api *a, const char *device, void *stream,
                            ampc_session **s) {
    ampc_options o = {.size = sizeof o,
                      .device = device,
                      .threads = 1,
                      .log = log_line,
                      .stream = stream};
    log_text[0] = 0;
    return a->open(a->module, &o, s, open_text, sizeof open_text);
}

static ampc_session *open_gpu(const ampc_api *a) {
    ampc_session *s;
    ampc_status status = try_open(a, "cuda", NULL, &s);
    if (status != AMPC_OK) FAIL("open: %s", open_text);
    return s;
}

static ampc_status step(const Model *m, ampc_session *s, int i,
                        ampc_metrics *out) {
    size_t n;
    const ampc_input *in = dc_random_feed(m->feed, i, &n);
    if (out) out->size = sizeof *out;
    return m->c.api->step(s, in, n, out);
}

static DcTraining training(const Model *m, int steps) {
    return (DcTraining){.steps = steps,
                        .tolerance = dc_training_tolerance(m->precision),
                        .feed = dc_random_feed,
                        .feed_ctx = m->feed};
}

/* ---- training ------------------------------------------------------------ */

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
        CHECK_MSG(dc_same_bits(a, "cuda", "AMPC_CUDA_GRAPH", "0", &t, &r),
                  "%s", r.text);
        CHECK(sim()->calls("cuGraphLaunch") > 0);
        CHECK_MSG(dc_same_bits(a, "cuda", "AMPC_TUNE", "0", &t, &r), "%s",
                  r.text);
        check_clean();
    }
}

/* One launch per step once a program has been captured. */
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

/* Nothing that a caller does not ask for waits for the device: not the stream,
   and not the events but those of a slot two steps back.                    */
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

/* The loss of step 4, each step's inputs overwritten as soon as it returns. */
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

typedef CUresult StreamCreateFn(CUstream *s, unsigned flags);
typedef CUresult StreamDestroyFn(CUstream s);
typedef CUresult BeginCaptureFn(CUstream s, int mode);
typedef CUresult EndCaptureFn(CUstream s, CUgraph *g);
typedef CUresult GraphDestroyFn(CUgraph g);
typedef CUresult RetainFn(CUcontext *c, CUdevice d);
typedef CUresult ReleaseFn(CUdevice d);
typedef CUresult PushFn(CUcontext c);
typedef CUresult PopFn(CUcontext *c);
typedef CUresult InitFn(unsigned flags);

/* A function of the simulated driver, as a host with its own CUDA calls it. */
static void *driver(const char *name) {
    void *fn = dlsym(sim()->handle, name);
    if (!fn) FAIL("no %s", name);
    return fn;
}
#define DRIVER(type, name) (*(type **)&(void *){driver(name)})

TEST_CASE(cuda_runtime, steps_go_to_the_hosts_stream) {
    const Model *m = model(&plain);
    const ampc_api *a = machine(m, NULL);
    ampc_session *s;
    ampc_metrics own, hosts;
    CUcontext context;
    CUstream stream;
    CUgraph graph;
    s = open_gpu(a);
    for (int i = 0; i < 4; i++) CHECK_EQ_INT(step(m, s, i, &own), AMPC_OK);
    a->close(s);
    REQUIRE(DRIVER(InitFn, "cuInit")(0) == 0);
    REQUIRE(DRIVER(RetainFn, "cuDevicePrimaryCtxRetain")(&context, 0) == 0);
    REQUIRE(DRIVER(PushFn, "cuCtxPushCurrent_v2")(context) == 0);
    REQUIRE(DRIVER(StreamCreateFn, "cuStreamCreate")(
                &stream, CUDA_STREAM_NON_BLOCKING) == 0);
    CHECK_EQ_INT(try_open(a, NULL, stream, &s), AMPC_OK);
    for (int i = 0; i < 4; i++) CHECK_EQ_INT(step(m, s, i, &hosts), AMPC_OK);
    CHECK_MEM(&own, &hosts, sizeof own);
    REQUIRE(DRIVER(BeginCaptureFn, "cuStreamBeginCapture_v2")(
                stream, CUDA_CAPTURE_THREAD_LOCAL) == 0);
    CHECK_EQ_INT(step(m, s, 4, NULL), AMPC_ERR_ARGUMENT);
    CHECK_HAS(a->error(s), "being captured");
    REQUIRE(DRIVER(EndCaptureFn, "cuStreamEndCapture")(stream, &graph) == 0);
    DRIVER(GraphDestroyFn, "cuGraphDestroy")(graph);
    CHECK_EQ_INT(step(m, s, 4, NULL), AMPC_OK);
    a->close(s);
    CHECK_EQ_INT(DRIVER(StreamDestroyFn, "cuStreamDestroy_v2")(stream), 0);
    DRIVER(PopFn, "cuCtxPopCurrent_v2")(&context);
    DRIVER(ReleaseFn, "cuDevicePrimaryCtxRelease_v2")(0);
    check_clean();
}

static int profiled;
static void on_step(void *ctx, const char *program, const char *name,
                    uint64_t begin, uint64_t end) {
    (void)ctx;
    CHECK(program && name && end >= begin);
    profiled++;
}

TEST_CASE(cuda_runtime, profiles_every_step) {
    const Model *m = model(&plain);
    const ampc_api *a = machine(m, NULL);
    ampc_session *s = open_gpu(a);
    ampc_program_info p = {.size = sizeof p};
    CHECK_EQ_INT(a->program(a->module, "train", &p), AMPC_OK);
    for (int i = 0; i < 3; i++) CHECK_EQ_INT(step(m, s, i, NULL), AMPC_OK);
    profiled = 0;
    a->profile(s, on_step, NULL);
    CHECK_EQ_INT(step(m, s, 3, NULL), AMPC_OK);
    CHECK_EQ_INT(profiled, p.nstep);
    a->profile(s, NULL, NULL);
    CHECK_EQ_INT(step(m, s, 4, NULL), AMPC_OK);
    CHECK_EQ_INT(profiled, p.nstep);
    a->close(s);
    check_clean();
}

/* ---- devices and images -------------------------------------------------- */

static void refused(const ampc_api *a, const char *device, const char *why) {
    ampc_session *s;
    CHECK_EQ_INT(try_open(a, device, NULL, &s), AMPC_ERR_UNSUPPORTED);
    CHECK_HAS(open_text, why);
    CHECK_EQ_INT(try_open(a, "auto", NULL, &s), AMPC_OK);
    CHECK_HAS(log_text, "running on the CPU");
    CHECK_HAS(log_text, why);
    a->close(s);
}

TEST_CASE(cuda_runtime, auto_takes_the_cpu_without_a_gpu) {
    const Model *m = model(&plain);
    const ampc_api *a = machine(m, NULL);
    ampc_session *s;
    CHECK_EQ_INT(try_open(a, NULL, NULL, &s), AMPC_OK);
    CHECK_HAS(log_text, "GPU '");
    a->close(s);
    CHECK_EQ_INT(try_open(a, "cuda:1", NULL, &s), AMPC_ERR_UNSUPPORTED);
    CHECK_HAS(open_text, "no GPU 1: the driver shows 1");
    machine(m, &(SimConfig){.devices = -1});
    refused(a, "cuda", "no usable GPU");
    machine(m, NULL);
    setenv("AMPC_LIBCUDA", "none", 1);
    refused(a, "cuda", "no NVIDIA driver");
    setenv("AMPC_LIBCUDA", "libm.so.6", 1);
    refused(a, "cuda:0", "libcuda has no cuInit");
    machine(m, NULL);
    setenv("AMPC_LIBCUBLASLT", "none", 1);
    refused(a, "cuda", "no cuBLASLt");
    CHECK_STR(sim()->leaks(), "");
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
        int cc;
        bool ptx_only;
        const char *arch;
    } rows[] = {{80, false, "sm_80"},      {86, false, "sm_80"},
                {90, false, "sm_90"},      {100, false, "compute_80"},
                {90, true, "compute_80"},  {80, true, "compute_80"}};
    const Model *m = model(&plain);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        SimConfig c = {.cc = rows[i].cc, .ptx_only = rows[i].ptx_only};
        const ampc_api *a = machine(m, &c);
        char want[40];
        ampc_session *s = open_gpu(a);
        snprintf(want, sizeof want, "code for %s,", rows[i].arch);
        CHECK_HAS(log_text, want);
        CHECK_EQ_INT(step(m, s, 0, NULL), AMPC_OK);
        CHECK_EQ_INT(a->sync(s, NULL), AMPC_OK);
        a->close(s);
        check_clean();
    }
    machine(m, &(SimConfig){.cc = 75});
    refused(m->c.api, "cuda", "compute capability 7.5");
}

TEST_CASE(cuda_runtime, refused_images_say_why) {
    static const struct {
        int code;
        const char *why;
    } rows[] = {{CUDA_INVALID_PTX, "cannot compile this PTX"},
                {CUDA_JIT_COMPILER_NOT_FOUND, "PTX compiler"},
                {CUDA_UNSUPPORTED_PTX_VERSION, "newer than the driver"},
                {CUDA_NO_BINARY_FOR_GPU, "no code for this GPU"}};
    const Model *m = model(&plain);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const ampc_api *a = machine(m, &(SimConfig){.cc = 100});
        ampc_session *s;
        sim()->fail("cuModuleLoadDataEx", 1, rows[i].code, false);
        CHECK_EQ_INT(try_open(a, "cuda", NULL, &s), AMPC_ERR_UNSUPPORTED);
        CHECK_HAS(open_text, rows[i].why);
        CHECK_HAS(open_text, "holds sm_90, sm_80, compute_80");
        check_clean();
    }
}

TEST_CASE(cuda_runtime, out_of_memory_names_the_bytes) {
    const Model *m = model(&plain);
    const ampc_api *a = machine(m, &(SimConfig){.memory = 1 << 20});
    ampc_session *s;
    CHECK_EQ_INT(try_open(a, "cuda", NULL, &s), AMPC_ERR_MEMORY);
    CHECK_HAS(open_text, "bytes of device memory are needed");
    CHECK_EQ_INT(try_open(a, "auto", NULL, &s), AMPC_ERR_MEMORY);
    check_clean();
}

/* ---- state --------------------------------------------------------------- */

TEST_CASE(cuda_runtime, checkpoints_move_between_devices) {
    const Model *m = model(&accumulating);
    const ampc_api *a = machine(m, NULL);
    ampc_session *gpu = open_gpu(a), *cpu;
    size_t n, k;
    char path[600];
    snprintf(path, sizeof path, "%s/moved.safetensors", test_tmpdir());
    for (int i = 0; i < 5; i++) /* in the middle of a round */
        CHECK_EQ_INT(step(m, gpu, i, NULL), AMPC_OK);
    CHECK_EQ_INT(a->set_hyper(gpu, "lr", 0.25), AMPC_OK);
    CHECK_EQ_INT(a->save(gpu, path), AMPC_OK);
    CHECK_EQ_INT(try_open(a, "cpu", NULL, &cpu), AMPC_OK);
    CHECK_EQ_INT(a->resume(cpu, path), AMPC_OK);
    void *x = read_all(&m->c, gpu, 0x7f & ~(1u << AMPC_KIND_SHADOW), &n);
    void *y = read_all(&m->c, cpu, 0x7f & ~(1u << AMPC_KIND_SHADOW), &k);
    REQUIRE(n == k);
    CHECK_MEM(x, y, n);
    CHECK_EQ_INT(step(m, cpu, 5, NULL), AMPC_OK);
    CHECK_EQ_INT(a->save(cpu, path), AMPC_OK);
    CHECK_EQ_INT(a->resume(gpu, path), AMPC_OK);
    free(x);
    x = read_all(&m->c, gpu, 0x7f & ~(1u << AMPC_KIND_SHADOW), &n);
    free(y);
    y = read_all(&m->c, cpu, 0x7f & ~(1u << AMPC_KIND_SHADOW), &k);
    CHECK_MEM(x, y, n);
    free(x);
    free(y);
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

/* ---- algorithms ---------------------------------------------------------- */

static char *only_file(const char *dir) {
    static char path[900];
    DIR *d = opendir(dir);
    path[0] = 0;
    for (struct dirent *e; d && (e = readdir(d));)
        if (e->d_name[0] != '.') {
            CHECK_MSG(!path[0], "two files: %s and %s", path, e->d_name);
            snprintf(path, sizeof path, "%s/%s", dir, e->d_name);
        }
    if (d) closedir(d);
    return path;
}

/* Opens once; how often cuBLASLt was asked for algorithms and for products. */
static void open_counted(const Model *m, const char *dir, uint64_t *asked,
                         uint64_t *tried) {
    const ampc_api *a = machine(m, NULL);
    setenv("AMPC_CACHE_DIR", dir, 1);
    ampc_session *s = open_gpu(a);
    *asked = sim()->calls("cublasLtMatmulAlgoGetHeuristic");
    *tried = sim()->calls("cublasLtMatmul");
    CHECK_EQ_INT(step(m, s, 0, NULL), AMPC_OK);
    a->close(s);
    check_clean();
}

TEST_CASE(cuda_runtime, algorithms_are_measured_once) {
    const Model *m = model(&plain);
    uint64_t asked, tried;
    char dir[600];
    cache_in(dir, "deep/algorithms");
    open_counted(m, dir, &asked, &tried);
    CHECK(asked > 0 && tried > asked);
    CHECK(*only_file(dir));
    open_counted(m, dir, &asked, &tried);
    CHECK(asked == 0 && tried == 0);
    setenv("AMPC_SIM_BLAS_VERSION", "130200", 1);
    remove(only_file(dir));
    open_counted(m, dir, &asked, &tried);
    CHECK(asked > 0 && tried > 0);
    unsetenv("AMPC_SIM_BLAS_VERSION");
}

TEST_CASE(cuda_runtime, nothing_is_measured_that_cannot_be_kept) {
    const Model *m = model(&plain);
    uint64_t asked, tried;
    char dir[600];
    cache_in(dir, "untuned");
    open_counted(m, "/proc/none", &asked, &tried);
    CHECK(asked > 0 && tried == 0);
    setenv("AMPC_TUNE", "0", 1);
    open_counted(m, dir, &asked, &tried);
    CHECK(asked > 0 && tried == 0);
    unsetenv("AMPC_TUNE");
    CHECK(access(dir, F_OK) != 0);
}

/* Every way of cutting and some of changing a kept file. */
TEST_CASE(cuda_runtime, damaged_choices_are_not_used) {
    const Model *m = model(&plain);
    uint64_t asked, tried;
    size_t n;
    char dir[600];
    cache_in(dir, "damaged");
    open_counted(m, dir, &asked, &tried);
    const char *path = only_file(dir);
    char *good = test_read_file(path, &n);
    REQUIRE(good && n > 300);
    for (size_t i = 0; i < 12; i++) {
        char *bad = malloc(n + 1);
        size_t size = i < 6 ? n * i / 6 : n + (i == 11);
        memcpy(bad, good, n);
        bad[n] = 0;
        if (i >= 6 && i < 11) bad[(i - 6) * (n - 1) / 4] ^= 0x40;
        REQUIRE(test_write_file(path, bad, size));
        open_counted(m, dir, &asked, &tried);
        CHECK(asked > 0 && tried == 0);
        CHECK_HAS(log_text, "is damaged and not used");
        free(bad);
    }
    REQUIRE(test_write_file(path, good, n));
    open_counted(m, dir, &asked, &tried);
    CHECK_EQ_INT(asked, 0);
    free(good);
}

/* ---- failures ------------------------------------------------------------ */

/* Everything that calls the driver.  AMPC_OK, or the status that came. */
static ampc_status use_all(const Model *m, const ampc_api *a) {
    ampc_session *s;
    ampc_metrics metrics = {.size = sizeof metrics};
    ampc_status st = try_open(a, "cuda", NULL, &s);
    char path[600];
    snprintf(path, sizeof path, "%s/fails.safetensors", test_tmpdir());
    if (st != AMPC_OK) {
        CHECK(s == NULL && strlen(open_text) > 10);
        return st;
    }
    for (int i = 0; i < 6 && st == AMPC_OK; i++)
        st = step(m, s, i, i == 3 ? &metrics : NULL);
    if (st == AMPC_OK) st = a->sync(s, &metrics);
    if (st == AMPC_OK) st = a->save(s, path);
    if (st == AMPC_OK) st = a->resume(s, path);
    if (st == AMPC_OK) st = a->set_hyper(s, "lr", 0.1);
    if (st == AMPC_ERR_DEVICE) {
        char *why = strdup(a->error(s));
        CHECK(strlen(why) > 10);
        CHECK_EQ_INT(step(m, s, 0, NULL), AMPC_ERR_DEVICE);
        CHECK_STR(a->error(s), why);
        free(why);
    }
    a->close(s);
    return st;
}

/* The nth call of an entry point fails; false: there are not so many. */
static bool fail_at(const Model *m, const char *entry, int nth, int code,
                    bool sticky) {
    const ampc_api *a = machine(m, NULL);
    sim()->fail(entry, nth, code, sticky);
    ampc_status st = use_all(m, a);
    if (st == AMPC_OK) return sim()->calls(entry) >= (uint64_t)nth;
    CHECK_MSG(st == AMPC_ERR_DEVICE || st == AMPC_ERR_MEMORY ||
                  st == AMPC_ERR_UNSUPPORTED,
              "%s %d: status %d: %s", entry, nth, st, open_text);
    sim()->fail(NULL, 0, 0, false);
    CHECK_MSG(sticky || !*sim()->leaks(), "%s %d: %s", entry, nth,
              sim()->leaks());
    return true;
}

static void fail_each(const Model *m, const char *entry, int code, int other) {
    static const int nths[] = {1, 2, 5, 17};
    for (size_t i = 0; i < sizeof nths / sizeof *nths; i++)
        if (!fail_at(m, entry, nths[i], i % 2 ? other : code, false)) break;
    fail_at(m, entry, 2, code, true);
}

/* What cannot be given back leaks. */
static bool gives_back(const char *e) {
    return strstr(e, "Destroy") || strstr(e, "Free") || strstr(e, "Unload") ||
           strstr(e, "Release") || strstr(e, "Pop");
}

TEST_CASE(cuda_runtime, every_driver_call_may_fail) {
    static const char *const entries[] = {
#define CU(member, symbol, parameters) symbol,
#include "runtime/cuda/driver.def"
#undef CU
    };
    const Model *m = model(&accumulating);
    for (size_t i = 0; i < sizeof entries / sizeof *entries; i++) {
        const char *e = entries[i];
        if (!gives_back(e) && !strstr(e, "GetError"))
            fail_each(m, e, CUDA_OUT_OF_MEMORY, CUDA_LAUNCH_FAILED);
    }
}

TEST_CASE(cuda_runtime, every_cublaslt_call_may_fail) {
    static const char *const entries[] = {
#define LT(member, symbol, parameters) symbol,
#include "runtime/cuda/cublaslt.def"
#undef LT
    };
    const Model *m = model(&plain);
    for (size_t i = 0; i < sizeof entries / sizeof *entries; i++)
        if (!strstr(entries[i], "Destroy"))
            fail_each(m, entries[i], LT_INTERNAL_ERROR, LT_ALLOC_FAILED);
}

TEST_CASE(cuda_runtime, an_error_names_step_and_cause) {
    const Model *m = model(&plain);
    const ampc_api *a = machine(m, NULL);
    ampc_session *s = open_gpu(a);
    sim()->fail("cuLaunchKernel", 1, CUDA_LAUNCH_OUT_OF_RESOURCES, false);
    CHECK_EQ_INT(step(m, s, 0, NULL), AMPC_ERR_DEVICE);
    CHECK_HAS(a->error(s), "step '");
    CHECK_HAS(a->error(s),
              "cuLaunchKernel: CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES");
    a->close(s);
    check_clean();
}
