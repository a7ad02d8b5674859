/* SPDX-License-Identifier: Apache-2.0 */
/* codes.c: frozen weights in codes of 8 and 4 bits. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/compiled.h"
#include "tests/tolerance.h"
#include "tests/whole/lora/lora.h"

static const char coded_model[] =
    "model net(x: i64[8]) {\n"
    "  param table: f32[100,64] = normal(0.5)\n"
    "  h = tanh(Linear(gather(table, x, axis=0), units=96, scope=\"fc\"))\n"
    "  return y = Linear(h, units=48, scope=\"head\")\n"
    "}\n";

static const struct {
    const char *name;
    int n;
} coded[] = {{"table", 6400}, {"fc.weight", 6144}, {"head.weight", 4608}};

enum { NCODED = 3, MOST_CODED = 6400, MOST_SCALES = 100 };

/* The weight for which codes in blocks of 64 stand, by the definition: the
   nearest level, relative to the largest magnitude. */
static void round_coded(const char *dtype, float *x, int n) {
    static const float nf4[16] = {
        -1.0f,        -0.6961928f,  -0.52507305f, -0.3949175f,
        -0.28444138f, -0.18477343f, -0.09105004f, 0.0f,
        0.0795803f,   0.1609302f,   0.2461123f,   0.33791524f,
        0.44070983f,  0.562617f,    0.72295684f,  1.0f};
    bool nf = !strcmp(dtype, "nf4");
    int end = strcmp(dtype, "int8") ? 7 : 127;
    for (int b = 0; b < n; b += 64) {
        float most = 0;
        for (int i = b; i < b + 64; i++) most = fmaxf(most, fabsf(x[i]));
        float scale = nf ? most : most / (float)end;
        for (int i = b; i < b + 64; i++) {
            float r = x[i] / scale, best = 0;
            for (int k = 0; nf && k < 16; k++)
                if (k == 0 || fabsf(nf4[k] - r) < fabsf(best - r))
                    best = nf4[k];
            x[i] = (nf ? best : nearbyintf(r)) * scale;
        }
    }
}

static double coded_step(const Compiled *c, ampc_session *s, int i) {
    int64_t x[8];
    static float target[8 * 48];
    for (int k = 0; k < 8; k++) x[k] = (7 * i + 13 * k) % 100;
    for (int k = 0; k < 8 * 48; k++)
        target[k] = (float)((i + 5 * k) % 17 - 8) / 8;
    ampc_input in[] = {
        ampc_in("x", x, sizeof x, AMPC_DTYPE_I64),
        ampc_in("target", target, sizeof target, AMPC_DTYPE_F32)};
    return step_ok(c, s, in, 2).loss;
}

#define CODED(adapter)                                                         \
    "--lora " adapter " --loss mse --precision fp32 --optimizer "              \
    "adamw,lr=0.02 --target cpu:x86-64-v2"
#define CODED_OPTIONS CODED("fc,rank=4")

/* All codes and scales. */
static void *read_codes(const Compiled *c, ampc_session *s, size_t *n) {
    return read_all(c, s, 1u << AMPC_KIND_FROZEN, n);
}

/* Gives a session without codes the numbers that codes stand for. */
static void write_rounded(const Compiled *plain, ampc_session *t,
                          const char *dtype) {
    static float w[MOST_CODED];
    for (int i = 0; i < NCODED; i++) {
        size_t bytes = (size_t)coded[i].n * sizeof *w;
        read_var(plain, t, coded[i].name, w, bytes, AMPC_DTYPE_F32);
        round_coded(dtype, w, coded[i].n);
        write_var(plain, t, coded[i].name, w, bytes, AMPC_DTYPE_F32);
    }
}

static void check_same_losses(const Compiled *c, ampc_session *s,
                              const Compiled *plain, ampc_session *t,
                              const char *dtype) {
    for (int i = 0; i < STEPS; i++) {
        double got = coded_step(c, s, i), want = coded_step(plain, t, i);
        CHECK_MSG(fabs(got - want) <= TOL_LORA * want,
                  "%s, step %d: loss %.9g, not %.9g", dtype, i, got, want);
    }
}

/* Weights rounded when the model is compiled, when a file is loaded, and by
   the definition are the same; they train as the rounded weights do. */
static void run_coded(const char *dtype) {
    char options[300];
    size_t n[2];
    const char *file = test_tmp("whole.safetensors");
    Compiled plain = compile_text(coded_model, CODED_OPTIONS);
    snprintf(options, sizeof options, CODED_OPTIONS " --frozen-dtype %s",
             dtype);
    Compiled c = compile_text(coded_model, options);
    ampc_session *s = open_threads(&c, 2), *t = open_threads(&plain, 1);
    REQUIRE(plain.api->save_weights(t, file) == AMPC_OK);
    void *first = read_codes(&c, s, &n[0]);
    ampc_weights from = {.size = sizeof from, .paths = &file, .npath = 1};
    if (c.api->load_weights(s, &from)) FAIL("load: %s", c.api->error(s));
    void *then = read_codes(&c, s, &n[1]);
    CHECK(n[0] == n[1] && n[0] < 4 * MOST_CODED && !memcmp(first, then, n[0]));
    write_rounded(&plain, t, dtype);
    check_same_losses(&c, s, &plain, t, dtype);
    free(first);
    free(then);
    c.api->close(s);
    plain.api->close(t);
    compiled_close(&c);
    compiled_close(&plain);
}

TEST_CASE(lora, int8_weights_train_as_their_values) { run_coded("int8"); }
TEST_CASE(lora, int4_weights_train_as_their_values) { run_coded("int4"); }
TEST_CASE(lora, nf4_weights_train_as_their_values) { run_coded("nf4"); }

/* Magnitudes begin as the norms of the rounded weights. No program of the model
   widens a weight whole. */
static void run_magnitudes(const char *dtype) {
    char options[300], words[500];
    snprintf(options, sizeof options, CODED("fc,dora") " --frozen-dtype %s",
             dtype);
    Compiled plain = compile_text(coded_model, CODED("fc,dora"));
    Compiled c = compile_text(coded_model, options);
    ampc_session *s = open_threads(&c, 2), *t = open_threads(&plain, 1);
    write_rounded(&plain, t, dtype);
    check_same_losses(&c, s, &plain, t, dtype);
    c.api->close(s);
    plain.api->close(t);
    compiled_close(&c);
    compiled_close(&plain);
    REQUIRE(test_write_file(test_tmp("coded.amp"), coded_model,
                            strlen(coded_model)));
    snprintf(words, sizeof words,
             "inspect coded.amp %s --ir memplan > ir && grep -q "
             "matmul_quantized.*fc.weight ir && ! grep -q "
             "'widen_quantized %%fc.weight' ir && echo none",
             options);
    lora_ampc(0, "none", words);
}

TEST_CASE(lora, magnitudes_beside_int8) { run_magnitudes("int8"); }
TEST_CASE(lora, magnitudes_beside_int4) { run_magnitudes("int4"); }
TEST_CASE(lora, magnitudes_beside_nf4) { run_magnitudes("nf4"); }

/* A checkpoint contains codes and scales: it resumes, and loads as weights. */
TEST_CASE(lora, codes_in_checkpoints) {
    size_t n[2];
    const char *file = test_tmp("coded.ckpt");
    Compiled c = compile_text(coded_model, CODED_OPTIONS " --frozen-dtype nf4");
    ampc_session *s = open_threads(&c, 1), *t = open_threads(&c, 1);
    coded_step(&c, s, 0);
    REQUIRE(c.api->save(s, file) == AMPC_OK);
    REQUIRE(c.api->resume(t, file) == AMPC_OK);
    CHECK(coded_step(&c, s, 1) == coded_step(&c, t, 1));
    c.api->close(t);
    t = open_threads(&c, 1);
    ampc_weights from = {.size = sizeof from, .paths = &file, .npath = 1};
    if (c.api->load_weights(t, &from)) FAIL("load: %s", c.api->error(t));
    void *a = read_codes(&c, s, &n[0]), *b = read_codes(&c, t, &n[1]);
    CHECK(n[0] == n[1] && !memcmp(a, b, n[0]));
    free(a);
    free(b);
    c.api->close(s);
    c.api->close(t);
    compiled_close(&c);
}

/* --save-weights and exports have the numbers that codes stand for; a file of
   them loads as the same codes. */
static void run_widened(const char *dtype) {
    char options[300], words[700];
    static float want[MOST_CODED];
    size_t n[2];
    const char *file = test_tmp("wide.safetensors");
    snprintf(options, sizeof options, CODED_OPTIONS " --frozen-dtype %s",
             dtype);
    Compiled plain = compile_text(coded_model, CODED_OPTIONS);
    Compiled c = compile_text(coded_model, options);
    ampc_session *s = open_threads(&c, 1), *t = open_threads(&plain, 1);
    coded_step(&c, s, 0);
    REQUIRE(c.api->save_weights(s, file) == AMPC_OK);
    Trace w = trace_read(file);
    for (int i = 0; i < NCODED; i++) {
        size_t bytes = (size_t)coded[i].n * sizeof *want;
        read_var(&plain, t, coded[i].name, want, bytes, AMPC_DTYPE_F32);
        round_coded(dtype, want, coded[i].n);
        const TraceTensor *x = trace_find(&w, coded[i].name);
        REQUIRE(x && x->rank == 2 && x->dim[0] * x->dim[1] == coded[i].n);
        for (int k = 0; k < coded[i].n; k++) {
            float got;
            memcpy(&got, x->data + (size_t)k * sizeof got, sizeof got);
            CHECK_REL(got, want[k], TOL_LORA);
        }
    }
    for (int i = 0; i < w.n; i++) CHECK(!strstr(w.t[i].name, "ampc."));
    trace_free(&w);
    void *a = read_codes(&c, s, &n[0]);
    c.api->close(s);
    s = open_threads(&c, 1);
    REQUIRE(c.api->load(s, file) == AMPC_OK);
    void *b = read_codes(&c, s, &n[1]);
    CHECK(n[0] == n[1] && !memcmp(a, b, n[0]));
    free(a);
    free(b);
    snprintf(words, sizeof words,
             "export '%s' --load wide.safetensors -o wide.onnx", c.path);
    lora_ampc(0, "", words);
    c.api->close(s);
    plain.api->close(t);
    compiled_close(&c);
    compiled_close(&plain);
}

TEST_CASE(lora, int8_weights_leave_as_numbers) { run_widened("int8"); }
TEST_CASE(lora, nf4_weights_leave_as_numbers) { run_widened("nf4"); }

/* Weights that other ops read have no codes, as a note says. */
TEST_CASE(lora, what_has_no_codes) {
    static const char text[] =
        "model net(x: f32[4,64]) {\n"
        "  param w: f32[64,64] = normal(0.1)\n"
        "  return y = matmul(x, exp(w)) + Linear(x, units=64, scope=\"fc\")\n"
        "}\n";
    REQUIRE(test_write_file(test_tmp("exp.amp"), text, strlen(text)));
    lora_ampc(0, "not stored in codes: 'w' is read by exp",
              "check exp.amp --lora fc --frozen-dtype int8" LORA_SMALL);
    lora_ampc(0, "frozen fc.weight  i8[64,64]  --lora; int8 codes",
              "check exp.amp --lora fc --frozen-dtype int8" LORA_SMALL);
    lora_ampc(2, "not one of bf16, int8, int4, nf4",
              "check exp.amp --frozen-dtype int3" LORA_SMALL);
    lora_ampc(0, "frozen fc.weight  bf16[64,64]",
              "check exp.amp --freeze fc --frozen-dtype bf16" LORA_SMALL);
}
