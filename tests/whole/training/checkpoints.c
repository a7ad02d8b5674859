/* SPDX-License-Identifier: Apache-2.0 */
/* checkpoints.c: which modules may go on from a checkpoint. */
#define _POSIX_C_SOURCE 200809L
#include <stdio.h>
#include <string.h>

#include "tests/support/compiled.h"

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
