/* SPDX-License-Identifier: Apache-2.0 */
/* same_bits.c: the same bits for any number of threads, level and resume. */
#define _POSIX_C_SOURCE 200809L
#include <stdlib.h>

#include "tests/support/compiled.h"
#include "tests/support/tiles.h"
#include "tests/whole/training/training.h"

static const char *resnet(void) {
    return test_data_path(
        "tests/traces/resnet_torchscript_sgd_forced/model.onnx");
}

/* ---- same bits ----------------------------------------------------------- */

typedef struct Image {
    float x[8 * 3 * 12 * 12];
    int64_t t[8];
    ampc_input in[2];
} Image;

static void image_fill(Image *b, uint64_t seed) {
    for (size_t i = 0; i < sizeof b->x / 4; i++)
        b->x[i] = training_noise(&seed);
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
    Compiled c =
        compile_file(training_mlp(), "--dim batch=16 --loss cross_entropy "
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
    twice_the_same_bytes(training_mlp(),
                         "--dim batch=16 --loss cross_entropy " ALL_LEVELS);
}
