/* SPDX-License-Identifier: Apache-2.0 */
/* training_test.c: promises about a whole training run, through the C API.

   Skipped steps change nothing; loss scale, counters and schedules follow their
   rules; the same bits for any number of threads and across save and resume;
   the same bytes from two compilations; every ISA level trains.             */
#define _POSIX_C_SOURCE 200809L
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/compiled.h"
#include "tests/support/tiles.h"

enum { BATCH = 16, FEATURES = 20, CLASSES = 10 };

/* The 16-bit copies follow from the parameters, at the next step at the
   latest. */
#define STATE_KINDS                                                            \
    (1u << AMPC_KIND_PARAMETER | 1u << AMPC_KIND_BUFFER | 1u << AMPC_KIND_STATE)

typedef struct Batch {
    float x[BATCH * FEATURES];
    int64_t t[BATCH];
    ampc_input in[2];
} Batch;

static float noise(uint64_t *state) {
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (float)((double)(*state >> 40) / (1 << 23) - 1);
}

static void batch_fill(Batch *b, uint64_t seed, float scale) {
    for (int i = 0; i < BATCH * FEATURES; i++) b->x[i] = scale * noise(&seed);
    for (int i = 0; i < BATCH; i++) b->t[i] = i % CLASSES;
    b->in[0] = ampc_in("x", b->x, sizeof b->x, AMPC_DTYPE_F32);
    b->in[1] = ampc_in("target", b->t, sizeof b->t, AMPC_DTYPE_I64);
}

static const char *mlp(void) {
    return test_data_path("tests/traces/mlp_torchscript_adamw/model.onnx");
}

static const char *resnet(void) {
    return test_data_path(
        "tests/traces/resnet_torchscript_sgd_forced/model.onnx");
}

#define MLP_OPTIONS "--dim batch=16 --loss cross_entropy "

/* ---- loss scaling -------------------------------------------------------- */

TEST_CASE(training, fp16_overflow_skips_backs_off_and_recovers) {
    Compiled c = compile_file(mlp(), MLP_OPTIONS
                              "--precision fp16 --loss-scale "
                              "dynamic,init=1073741824,max=inf,interval=3");
    ampc_session *s = open_threads(&c, 2);
    Batch b;
    size_t n0, n1;
    int skipped = 0, applied = 0;
    double scale = 1073741824;
    for (int i = 0; i < 40 && applied < 8; i++) {
        void *before = read_all(&c, s, STATE_KINDS, &n0);
        batch_fill(&b, 100 + (uint64_t)i, 1);
        ampc_metrics m = step_ok(&c, s, b.in, 2);
        void *after = read_all(&c, s, STATE_KINDS, &n1);
        CHECK(isfinite(m.loss));
        CHECK_NEAR(m.scale, scale, 0);
        REQUIRE(n0 == n1);
        bool same = !memcmp(before, after, n0);
        CHECK_MSG(same == !m.applied, "step %d: applied %d, state %s", i,
                  m.applied, same ? "unchanged" : "changed");
        skipped += !m.applied;
        applied += m.applied;
        CHECK_EQ_INT(m.skipped, skipped);
        CHECK_EQ_INT(m.step, applied);
        ampc_scaler after_step = {.size = sizeof after_step};
        REQUIRE(!c.api->scaler(s, &after_step));
        scale = after_step.scale;
        if (!m.applied)
            CHECK_NEAR(scale, m.scale / 2, 0);
        else
            CHECK(scale == m.scale || scale == m.scale * 2);
        free(before);
        free(after);
    }
    CHECK_MSG(skipped > 3 && applied == 8, "%d skipped, %d applied", skipped,
              applied);
    c.api->close(s);
    compiled_close(&c);
}

TEST_CASE(training, a_bad_input_is_skipped_and_keeps_the_scale) {
    Compiled c = compile_file(mlp(), MLP_OPTIONS "--precision fp16");
    ampc_session *s = open_threads(&c, 1);
    Batch b;
    size_t n;
    batch_fill(&b, 1, 1);
    b.x[3] = NAN;
    void *before = read_all(&c, s, STATE_KINDS, &n);
    ampc_metrics m = step_ok(&c, s, b.in, 2);
    void *after = read_all(&c, s, STATE_KINDS, &n);
    CHECK(isnan(m.loss));
    CHECK_EQ_INT(m.applied, 0);
    CHECK_EQ_INT(m.bad_forward, 1);
    CHECK_MEM(before, after, n);
    batch_fill(&b, 1, 1);
    m = step_ok(&c, s, b.in, 2);
    CHECK_NEAR(m.scale, 65536, 0);
    CHECK_EQ_INT(m.applied, 1);
    free(before);
    free(after);
    c.api->close(s);
    compiled_close(&c);
}

TEST_CASE(training, the_scale_grows_after_an_interval_up_to_its_cap) {
    Compiled c = compile_file(mlp(), MLP_OPTIONS
                              "--precision fp16 --loss-scale "
                              "dynamic,init=8,interval=2,growth=4,max=100");
    static const double want[] = {8, 8, 32, 32, 100, 100, 100};
    ampc_session *s = open_threads(&c, 1);
    Batch b;
    for (int i = 0; i < 7; i++) {
        batch_fill(&b, 7, 0.1f);
        CHECK_NEAR(step_ok(&c, s, b.in, 2).scale, want[i], 0);
    }
    c.api->close(s);
    compiled_close(&c);
}

/* ---- schedules ----------------------------------------------------------- */

static void check_lr(const char *schedule, const double *want, int n) {
    char options[256];
    snprintf(options, sizeof options,
             MLP_OPTIONS "--precision fp32 --optimizer sgd,lr=0.1 "
                         "--lr-schedule %s",
             schedule);
    Compiled c = compile_file(mlp(), options);
    ampc_session *s = open_threads(&c, 1);
    Batch b;
    batch_fill(&b, 7, 0.1f);
    for (int i = 0; i < n; i++)
        CHECK_REL(step_ok(&c, s, b.in, 2).lr, want[i], 1e-6);
    c.api->close(s);
    compiled_close(&c);
}

TEST_CASE(training, schedules_follow_their_formulas) {
    const double pi = acos(-1);
    double cosine[8], linear[8], step[8];
    for (int i = 0; i < 8; i++) {
        double p = fmin(1, (i - 2) / 4.0);
        cosine[i] = i < 2 ? 0.1 * (i + 1) / 2
                          : 0.01 + (0.1 - 0.01) * 0.5 * (1 + cos(pi * p));
        linear[i] = i < 2 ? 0.1 * (i + 1) / 2 : 0.1 * (1 - p);
        step[i] = 0.1 * pow(0.5, i / 3);
    }
    linear[6] = linear[7] = 0;
    check_lr("cosine,warmup=2,total=6,min=0.01", cosine, 8);
    check_lr("linear,warmup=2,total=6", linear, 8);
    check_lr("step,every=3,gamma=0.5", step, 8);
}

TEST_CASE(training, a_host_changes_the_schedule) {
    const double pi = acos(-1);
    Compiled c = compile_file(mlp(), MLP_OPTIONS
                              "--precision fp32 --optimizer sgd,lr=0.1 "
                              "--lr-schedule cosine,warmup=2,total=6");
    ampc_session *s = open_threads(&c, 1), *resumed = open_threads(&c, 1);
    const char *const names[] = {"lr", "warmup", "total", "min"};
    const double values[] = {0.2, 0, 20, 0.04};
    double x;
    Batch b;
    batch_fill(&b, 7, 0.1f);
    CHECK_REL(step_ok(&c, s, b.in, 2).lr, 0.05, 1e-6);
    for (int i = 0; i < 4; i++)
        CHECK_EQ_INT(c.api->set_hyper(s, names[i], values[i]), AMPC_OK);
    for (int i = 1; i < 4; i++)
        CHECK_REL(step_ok(&c, s, b.in, 2).lr,
                  0.04 + 0.16 * 0.5 * (1 + cos(pi * i / 20)), 1e-6);
    CHECK_EQ_INT(c.api->set_hyper(s, "total", 0), AMPC_OK); /* long over */
    CHECK_REL(step_ok(&c, s, b.in, 2).lr, 0.04, 1e-6);
    CHECK_EQ_INT(c.api->set_hyper(s, "total", -1), AMPC_ERR_ARGUMENT);
    CHECK_HAS(c.api->error(s), "'total' (f64) cannot be -1; it is a whole");
    CHECK_EQ_INT(c.api->set_hyper(s, "total", 1.5), AMPC_ERR_ARGUMENT);
    CHECK_EQ_INT(c.api->set_hyper(s, "gamma", 1), AMPC_ERR_ARGUMENT);
    CHECK_HAS(c.api->error(s), "the module has: lr warmup");
    const char *path = test_tmp("schedule.safetensors");
    CHECK_EQ_INT(c.api->save(s, path), AMPC_OK);
    CHECK_EQ_INT(c.api->resume(resumed, path), AMPC_OK);
    CHECK_EQ_INT(c.api->get_hyper(resumed, "min", &x), AMPC_OK);
    CHECK_NEAR(x, 0.04, 0);
    c.api->close(resumed);
    c.api->close(s);
    compiled_close(&c);
}

/* ---- accumulation -------------------------------------------------------- */

TEST_CASE(training, accumulated_micro_batches_equal_one_batch) {
    const char *common = "--loss cross_entropy --precision fp32 --optimizer "
                         "adamw,lr=0.01 --clip-norm 0.3 ";
    char options[256];
    Batch b;
    snprintf(options, sizeof options, "%s --dim batch=16", common);
    Compiled whole = compile_file(mlp(), options);
    snprintf(options, sizeof options, "%s --dim batch=4 --accumulate 4",
             common);
    Compiled parts = compile_file(mlp(), options);
    ampc_session *s = open_threads(&whole, 2), *p = open_threads(&parts, 2);
    for (int i = 0; i < 6; i++) {
        ampc_metrics want, got = {0};
        batch_fill(&b, 50 + (uint64_t)i, 1);
        want = step_ok(&whole, s, b.in, 2);
        for (int k = 0; k < 4; k++) {
            ampc_input in[] = {
                ampc_in("x", b.x + k * 4 * FEATURES, 4 * FEATURES * 4,
                        AMPC_DTYPE_F32),
                ampc_in("target", b.t + 4 * k, 4 * 8, AMPC_DTYPE_I64)};
            got = step_ok(&parts, p, in, 2);
            CHECK_EQ_INT(got.updated, k == 3);
        }
        CHECK_REL(got.loss, want.loss, 1e-5);
        CHECK_REL(got.grad_norm, want.grad_norm, 1e-4);
        CHECK_EQ_INT(got.step, i + 1);
    }
    whole.api->close(s);
    parts.api->close(p);
    compiled_close(&whole);
    compiled_close(&parts);
}

/* ---- same bits ----------------------------------------------------------- */

typedef struct Image {
    float x[8 * 3 * 12 * 12];
    int64_t t[8];
    ampc_input in[2];
} Image;

static void image_fill(Image *b, uint64_t seed) {
    for (size_t i = 0; i < sizeof b->x / 4; i++) b->x[i] = noise(&seed);
    for (int i = 0; i < 8; i++)
        b->t[i] = (int64_t)(seed >> (i + 8)) % 5 + i / 2;
    for (int i = 0; i < 8; i++) b->t[i] = b->t[i] < 0 ? 0 : b->t[i] % 10;
    b->in[0] = ampc_in("x", b->x, sizeof b->x, AMPC_DTYPE_F32);
    b->in[1] = ampc_in("target", b->t, sizeof b->t, AMPC_DTYPE_I64);
}

/* Trains `steps` steps from step `from`; returns the whole state, which the
   caller frees. */
static void *train(const Compiled *c, ampc_session *s, int from, int steps,
                   size_t *bytes) {
    Image b;
    for (int i = from; i < from + steps; i++) {
        image_fill(&b, 900 + (uint64_t)i);
        step_ok(c, s, b.in, 2);
    }
    return read_all(c, s, STATE_KINDS, bytes);
}

static void threads_and_resume(const char *options) {
    Compiled c = compile_file(resnet(), options);
    size_t n, m;
    const char *path = test_tmp("resume.safetensors");
    ampc_session *s = open_threads(&c, 1);
    free(train(&c, s, 0, 3, &n));
    if (c.api->save(s, path)) FAIL("save: %s", c.api->error(s));
    void *want = train(&c, s, 3, 3, &n);
    c.api->close(s);
    for (int threads = 2; threads <= 5; threads += 3) {
        s = open_threads(&c, threads);
        void *got = train(&c, s, 0, 6, &m);
        REQUIRE(n == m);
        CHECK_MEM(got, want, n);
        free(got);
        c.api->close(s);
    }
    s = open_threads(&c, 2);
    if (c.api->resume(s, path)) FAIL("resume: %s", c.api->error(s));
    void *got = train(&c, s, 3, 3, &m);
    REQUIRE(n == m);
    CHECK_MEM(got, want, n);
    free(got);
    free(want);
    c.api->close(s);
    compiled_close(&c);
}

#define RESNET_OPTIONS "--dim batch=8 --loss cross_entropy --clip-norm 1 "

TEST_CASE(training, same_bits_for_any_threads_and_across_resume_fp32) {
    threads_and_resume(RESNET_OPTIONS "--precision fp32");
}

TEST_CASE(training, same_bits_for_any_threads_and_across_resume_bf16) {
    threads_and_resume(RESNET_OPTIONS "--precision bf16 "
                                      "--optimizer sgd,lr=0.1,momentum=0.9");
}

TEST_CASE(training, same_bits_for_any_threads_and_across_resume_compact) {
    threads_and_resume("--dim batch=8 --loss cross_entropy --masters none "
                       "--state-dtype int8 --optimizer-in-backward");
}

TEST_CASE(training, same_bits_for_any_threads_and_across_resume_kept) {
    threads_and_resume(RESNET_OPTIONS "--keep f8 --accumulate 2");
}

TEST_CASE(training, same_bits_for_any_threads_and_across_resume_fp16) {
    threads_and_resume(RESNET_OPTIONS "--precision fp16");
}

TEST_CASE(training, every_isa_level_trains_alike) {
    static const char *const levels[] = {"v2", "v3", "v4", "v4-amx"};
    Compiled c =
        compile_file(resnet(), RESNET_OPTIONS "--precision bf16 " ALL_LEVELS);
    double loss[4];
    Image b;
    tiles_emulate();
    for (int i = 0; i < 4; i++) {
        setenv("AMPC_ISA", levels[i], 1); /* only lowers it: harmless beyond */
        ampc_session *s = open_threads(&c, 2);
        for (int k = 0; k < 4; k++) {
            image_fill(&b, 900 + (uint64_t)k);
            loss[i] = step_ok(&c, s, b.in, 2).loss;
        }
        c.api->close(s);
    }
    unsetenv("AMPC_ISA");
    CHECK_REL(loss[1], loss[0], 1e-2); /* four chaotic 16-bit steps */
    CHECK_REL(loss[2], loss[0], 1e-2);
    CHECK_REL(loss[3], loss[0], 1e-2);
    compiled_close(&c);
}

/* SSE code, in libm or the host, takes several times as long after AVX code
   that leaves data in the upper half of a register (vzeroupper is missing).
   Reads a thread's registers after a call that ran kernels. */
static bool upper_halves_are_clean(void) {
    float high[16][4];
#define READ_HIGH(n) "vextractf128 $1, %%ymm" #n ", 16*" #n "(%0)\n"
    __asm__ volatile(READ_HIGH(0) READ_HIGH(1) READ_HIGH(2) READ_HIGH(3)
                         READ_HIGH(4) READ_HIGH(5) READ_HIGH(6) READ_HIGH(7)
                             READ_HIGH(8) READ_HIGH(9) READ_HIGH(10)
                                 READ_HIGH(11) READ_HIGH(12) READ_HIGH(13)
                                     READ_HIGH(14) READ_HIGH(15)::"r"(high)
                     : "memory");
#undef READ_HIGH
    for (int i = 0; i < 64; i++)
        if (high[i / 4][i % 4] != 0) return false;
    return true;
}

TEST_CASE(training, the_host_gets_its_vector_registers_back_clean) {
    static const char *const levels[] = {"v3", "v4"};
    if (!__builtin_cpu_supports("avx2")) SKIP("no AVX2 here");
    Compiled c = compile_text("graph forward(%x: f32[16,20]) {\n"
                              "  param %w: f32[16,20]\n"
                              "  %e = mul %x, %w : f32[16,20]\n"
                              "  %y = tanh %e : f32[16,20]\n"
                              "  return %y\n"
                              "}\n",
                              "--precision fp32 --loss none " ALL_LEVELS);
    Batch b;
    batch_fill(&b, 7, 1);
    for (int i = 0; i < 2; i++) {
        float y[BATCH * FEATURES];
        ampc_output out = ampc_out(NULL, y, sizeof y, AMPC_DTYPE_F32);
        setenv("AMPC_ISA", levels[i], 1);
        ampc_session *s = open_threads(&c, 1);
        ampc_status status = c.api->predict(s, b.in, 1, BATCH, &out, 1);
        bool clean = upper_halves_are_clean();
        CHECK_EQ_INT(status, AMPC_OK);
        CHECK_MSG(clean, "level %s", levels[i]);
        c.api->close(s);
    }
    unsetenv("AMPC_ISA");
    compiled_close(&c);
}

/* With products on AMX tiles, of the machine or emulated: as above for
   threads and resume, and one more level that a module can have. */
TEST_CASE(training, same_bits_for_any_threads_and_across_resume_on_tiles) {
    if (!__builtin_cpu_supports("x86-64-v4")) SKIP("no AVX-512 here");
    tiles_emulate();
    setenv("AMPC_ISA", "v4-amx", 1);
    int64_t before = tiles_count();
    threads_and_resume(RESNET_OPTIONS "--precision bf16 "
                                      "--target cpu:x86-64-v4+amx");
    CHECK(tiles_are_the_machines() || tiles_count() > before);
    unsetenv("AMPC_ISA");
}

TEST_CASE(training, a_module_for_tiles_says_what_it_misses) {
    char err[256];
    ampc_session *s;
    Compiled c = compile_file(mlp(), "--dim batch=16 --loss cross_entropy "
                                     "--target cpu:x86-64-v4+amx");
    setenv("AMPC_ISA", "v3", 1);
    CHECK_EQ_INT(c.api->open(c.api->module, NULL, &s, err, sizeof err),
                 AMPC_ERR_UNSUPPORTED);
    CHECK_HAS(err, "x86-64-v4+amx");
    unsetenv("AMPC_ISA");
    compiled_close(&c);
}

static void twice_the_same_bytes(const char *model, const char *options) {
    Compiled a = compile_file(model, options);
    Compiled b = compile_file(model, options);
    size_t n, m;
    char *x = test_read_file(a.path, &n), *y = test_read_file(b.path, &m);
    REQUIRE(x && y && n == m);
    CHECK_MEM(x, y, n);
    free(x);
    free(y);
    compiled_close(&a);
    compiled_close(&b);
}

TEST_CASE(training, two_compilations_give_the_same_bytes) {
    twice_the_same_bytes(resnet(), RESNET_OPTIONS);
    twice_the_same_bytes(mlp(),
                         "--dim batch=16 --loss cross_entropy " ALL_LEVELS);
}

/* ---- which modules may go on from a checkpoint --------------------------- */

#define PERCEPTRON(activation)                                                 \
    "graph forward(%x: f32[4,8]) {\n"                                          \
    "  param %w: f32[8,6], %v: f32[6,3]\n"                                     \
    "  %h = matmul %x, %w : f32[4,6]\n"                                        \
    "  %a = " activation " %h : f32[4,6]\n"                                    \
    "  %y = matmul %a, %v : f32[4,3]\n"                                        \
    "  return %y\n"                                                            \
    "}\n"
#define ADAM "--loss cross_entropy --optimizer adamw,lr=0.001,beta1="

static void check_resume(const char *path, const char *text,
                         const char *options, const char *refusal) {
    Compiled c = compile_text(text, options);
    ampc_session *s = open_threads(&c, 1);
    CHECK_MSG(c.api->resume(s, path) == (refusal ? AMPC_ERR_FORMAT : AMPC_OK),
              "%s: %s", options, c.api->error(s));
    if (refusal) CHECK_HAS(c.api->error(s), refusal);
    CHECK_MSG(c.api->load(s, path) == AMPC_OK, "%s", c.api->error(s));
    c.api->close(s);
    compiled_close(&c);
}

TEST_CASE(training, resumes_in_the_same_programs_only) {
    const char *path = test_tmp("same.safetensors");
    Compiled c = compile_text(PERCEPTRON("relu"), ADAM "0.9");
    ampc_session *s = open_threads(&c, 1);
    if (c.api->save(s, path)) FAIL("save: %s", c.api->error(s));
    c.api->close(s);
    compiled_close(&c);
    check_resume(path, PERCEPTRON("relu"), ADAM "0.9", NULL);
    check_resume(path, PERCEPTRON("relu"),
                 ADAM "0.9 --target cpu:x86-64-v2 --no-fuse", NULL);
    check_resume(path, PERCEPTRON("tanh"), ADAM "0.9",
                 "the file that this module was compiled from has changed");
    check_resume(path, PERCEPTRON("relu"), ADAM "0.8",
                 "other options: --optimizer was");
    check_resume(path, PERCEPTRON("relu"), ADAM "0.9 --clip-norm 1",
                 "other options: --clip-norm was");
    check_resume(path, PERCEPTRON("relu"), ADAM "0.9 --precision fp32",
                 "other options: --precision was");
    check_resume(path, PERCEPTRON("relu"), ADAM "0.9 --accumulate 2",
                 "other options: --accumulate was");
}

/* The only name that the file format reserves. */
TEST_CASE(training, a_parameter_may_have_any_name) {
    static const char text[] = "graph forward(%x: f32[4,8]) {\n"
                               "  param %__metadata__: f32[8,3] = 0.5\n"
                               "  %y = matmul %x, %__metadata__ : f32[4,3]\n"
                               "  return %y\n}\n";
    float one[24], w[24];
    const char *path = test_tmp("any.safetensors");
    for (int sidecar = 0; sidecar < 2; sidecar++) {
        Compiled c = compile_text(text, sidecar ? ADAM "0.9 --weights sidecar"
                                                : ADAM "0.9");
        ampc_session *s = open_threads(&c, 1);
        for (int i = 0; i < 24; i++) one[i] = 1;
        write_var(&c, s, "__metadata__", one, sizeof one, AMPC_DTYPE_F32);
        CHECK_EQ_INT(c.api->save(s, path), AMPC_OK);
        c.api->close(s);
        s = open_threads(&c, 1);
        CHECK_MSG(c.api->resume(s, path) == AMPC_OK, "%s", c.api->error(s));
        read_var(&c, s, "__metadata__", w, sizeof w, AMPC_DTYPE_F32);
        CHECK_MEM(w, one, sizeof w);
        c.api->close(s);
        compiled_close(&c);
    }
}

/* Each parameter is larger than the part written at a time: a constant, and
   values from the file, i / 8 at index i. */
TEST_CASE(training, large_parameters_begin_as_given) {
    enum { ROWS = 300, COLS = 257, ELEMENTS = ROWS * COLS };
    static char text[16 * ELEMENTS];
    size_t n = (size_t)snprintf(text, sizeof text,
                                "graph forward(%%x: f32[2,%d]) {\n"
                                "  param %%w: f32[%d,%d] = 0.75\n"
                                "  param %%v: f32[%d,%d] = [",
                                ROWS, ROWS, COLS, ROWS, COLS);
    for (int i = 0; i < ELEMENTS; i++)
        n += (size_t)snprintf(text + n, 16, "%s%.9g", i ? "," : "", i / 8.0);
    strcpy(text + n, "]\n  %y = matmul %x, %w\n  %z = matmul %x, %v\n"
                     "  %s = add %y, %z\n  return %s\n}\n");
    Compiled c = compile_text(text, "--loss mse --precision fp32 --target "
                                    "cpu:x86-64-v2 --optimizer sgd,lr=0.1");
    ampc_session *s = open_threads(&c, 1);
    static float w[ELEMENTS], v[ELEMENTS];
    read_var(&c, s, "w", w, sizeof w, AMPC_DTYPE_F32);
    read_var(&c, s, "v", v, sizeof v, AMPC_DTYPE_F32);
    for (int i = 0; i < ELEMENTS; i++)
        if (!CHECK_NEAR(w[i], 0.75, 0) || !CHECK_NEAR(v[i], i / 8.0, 0)) break;
    c.api->close(s);
    compiled_close(&c);
}

/* Every bit of a seed counts. */
TEST_CASE(training, seeds_of_parameters_have_64_bits) {
    enum { ELEMENTS = 64 };
    static const char *const seeds[] = {"1", "4294967297", "65537",
                                        "4611686018427387905", "-1"};
    enum { SEEDS = sizeof seeds / sizeof *seeds };
    char text[1200] = "graph forward(%x0: f32[1,8]) {\n";
    for (int i = 0; i < SEEDS; i++)
        snprintf(text + strlen(text), sizeof text - strlen(text),
                 "  param %%n%d: f32[8,8] = normal(%s, 0.5)\n"
                 "  param %%u%d: f32[8,8] = uniform(%s, 0, 1)\n"
                 "  %%a%d = matmul %%x%d, %%n%d\n"
                 "  %%x%d = matmul %%a%d, %%u%d\n",
                 i, seeds[i], i, seeds[i], i, i, i, i + 1, i, i);
    snprintf(text + strlen(text), sizeof text - strlen(text),
             "  return %%x%d\n}\n", SEEDS);
    Compiled c = compile_text(text, "--loss mse --precision fp32 --target "
                                    "cpu:x86-64-v2");
    ampc_session *s = open_threads(&c, 1);
    static float v[2][SEEDS][ELEMENTS];
    for (int i = 0; i < 2 * SEEDS; i++) {
        char name[8];
        snprintf(name, sizeof name, "%c%d", "nu"[i / SEEDS], i % SEEDS);
        read_var(&c, s, name, v[i / SEEDS][i % SEEDS], sizeof v[0][0],
                 AMPC_DTYPE_F32);
        for (int k = 0; k < i % SEEDS; k++)
            for (int e = 0; e < ELEMENTS; e++)
                CHECK_MSG(v[i / SEEDS][k][e] != v[i / SEEDS][i % SEEDS][e],
                          "seeds %s and %s, element %d", seeds[k],
                          seeds[i % SEEDS], e);
    }
    c.api->close(s);
    compiled_close(&c);
}

/* A product reads the weight in 16 bits; as an output it has the file's values.
 */
TEST_CASE(training, a_frozen_weight_that_is_returned_is_not_rounded) {
    static const char *const text[] = {
        "graph forward(%x: f32[4,3]) {\n"
        "  param %w: f32[2] = [1, 2]\n"
        "  frozen %f: f32[3,2] = [0.1, 0.2, 0.3, 0.4, 0.7, 0.9]\n"
        "  %y = matmul %x, %f : f32[4,2]\n  %z = mul %y, %w : f32[4,2]\n"
        "  %loss = reduce_mean %z {axes=[0,1], keepdims=0} : f32[]\n"
        "  return %loss, f=%f\n}\n",
        "graph forward(%x: f32[4,3]) {\n"
        "  frozen %f: f32[3,2] = [0.1, 0.2, 0.3, 0.4, 0.7, 0.9]\n"
        "  %y = matmul %x, %f : f32[4,2]\n"
        "  return y=%y, f=%f\n}\n"};
    static const char *const options[] = {
        "--precision bf16 --target cpu:x86-64-v2",
        "--precision bf16 --target cpu:x86-64-v2 --loss none"};
    static const float want[6] = {0.1f, 0.2f, 0.3f, 0.4f, 0.7f, 0.9f};
    for (int i = 0; i < 2; i++) {
        float x[12] = {1}, got[6] = {0};
        Compiled c = compile_text(text[i], options[i]);
        ampc_session *s = open_threads(&c, 1);
        ampc_input in = ampc_in("x", x, sizeof x, AMPC_DTYPE_F32);
        ampc_output out = ampc_out("f", got, sizeof got, AMPC_DTYPE_F32);
        CHECK_MSG(c.api->predict(s, &in, 1, 4, &out, 1) == AMPC_OK, "%s",
                  c.api->error(s));
        CHECK_MEM(got, want, sizeof want);
        c.api->close(s);
        compiled_close(&c);
    }
}

/* ---- checkpoints of other models ----------------------------------------- */

#define SMALL(ACT)                                                             \
    "graph forward(%x: f32[4,3]) {\n"                                          \
    "  param %w: f32[3] = [1, -2, 0.5]\n"                                      \
    "  %h = mul %x, %w : f32[4,3]\n"                                           \
    "  %a = " ACT " %h : f32[4,3]\n"                                           \
    "  %loss = reduce_mean %a {axes=[0,1], keepdims=0} : f32[]\n"              \
    "  return %loss\n}\n"

/* A run continues only in modules that compute the same; weights load
   anywhere. */
TEST_CASE(training, a_run_goes_on_in_its_own_model_only) {
    static const char plain[] = "--precision fp32 --target cpu:x86-64-v2 "
                                "--optimizer sgd,lr=0.1,momentum=0.5";
    static const struct {
        const char *text, *options;
        bool same;
    } other[] = {
        {SMALL("relu"), plain, true},
        {SMALL("tanh"), plain, false},
        {SMALL("relu"),
         "--precision fp32 --target cpu:x86-64-v2 "
         "--optimizer sgd,lr=0.1,momentum=0.9",
         false},
        {SMALL("relu"),
         "--precision fp32 --target cpu:x86-64-v2 "
         "--optimizer sgd,lr=0.1,momentum=0.5 --clip-norm 1",
         false},
        {SMALL("relu"),
         "--precision fp32 --target cpu:x86-64-v3 "
         "--optimizer sgd,lr=0.1,momentum=0.5 --no-fuse",
         true},
    };
    const char *path = test_tmp("other.checkpoint");
    float x[12], w[3], got[3];
    for (int i = 0; i < 12; i++) x[i] = (float)(i % 5) - 2;
    ampc_input in = ampc_in("x", x, sizeof x, AMPC_DTYPE_F32);
    Compiled c = compile_text(SMALL("relu"), plain);
    ampc_session *s = open_threads(&c, 1);
    step_ok(&c, s, &in, 1);
    read_var(&c, s, "w", w, sizeof w, AMPC_DTYPE_F32);
    REQUIRE(c.api->save(s, path) == AMPC_OK);
    c.api->close(s);
    compiled_close(&c);
    for (size_t i = 0; i < sizeof other / sizeof *other; i++) {
        c = compile_text(other[i].text, other[i].options);
        s = open_threads(&c, 1);
        ampc_status status = c.api->resume(s, path);
        CHECK_MSG((status == AMPC_OK) == other[i].same, "row %d: status %d: %s",
                  (int)i, (int)status, c.api->error(s));
        if (!other[i].same) {
            CHECK_EQ_INT(status, AMPC_ERR_FORMAT);
            read_var(&c, s, "w", got, sizeof got, AMPC_DTYPE_F32);
            CHECK(got[0] == 1 && got[1] == -2);
        }
        CHECK_EQ_INT(c.api->load(s, path), AMPC_OK);
        read_var(&c, s, "w", got, sizeof got, AMPC_DTYPE_F32);
        CHECK_MEM(got, w, sizeof w);
        c.api->close(s);
        compiled_close(&c);
    }
}
