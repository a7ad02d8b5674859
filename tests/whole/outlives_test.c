/* SPDX-License-Identifier: Apache-2.0 */
/* outlives_test.c: a checkpoint outlives the compiler: a module of the same
   model and options continues from it, whatever graphs another build has made.
   Another graph is made here by an option that does not affect training
   (--top-k); tests/whole/old has files of older builds, one of each format. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/compiled.h"
#include "tests/tolerance.h"

static const char model[] = "dim B = 4\n"
                            "model m(x: f32[B,6]) {\n"
                            "  return logits = Linear(tanh(x), units=3)\n}\n"
                            "train m { loss = cross_entropy }\n";
#define OPTIONS                                                                \
    "--target cpu:x86-64-v2 --optimizer adamw,lr=0.01 --lr-schedule "          \
    "cosine,total=50 "

typedef struct Data {
    float x[24];
    int64_t t[4];
    ampc_input in[2];
} Data;

static const ampc_input *data_in(Data *d) {
    for (int i = 0; i < 24; i++) d->x[i] = (float)(i * 7 % 11) / 5 - 1;
    for (int i = 0; i < 4; i++) d->t[i] = i % 3;
    d->in[0] = ampc_in("x", d->x, sizeof d->x, AMPC_DTYPE_F32);
    d->in[1] = ampc_in("target", d->t, sizeof d->t, AMPC_DTYPE_I64);
    return d->in;
}

static double train(const Compiled *c, ampc_session *s, int n) {
    Data d;
    double loss = 0;
    for (int i = 0; i < n; i++) loss = step_ok(c, s, data_in(&d), 2).loss;
    return loss;
}

static ampc_session *resumed(const Compiled *c, const char *path,
                             const char *notice) {
    ampc_session *s = open_threads(c, 1);
    ampc_status status = c->api->resume(s, path);
    CHECK_MSG(status == AMPC_OK, "%s", c->api->error(s));
    if (notice) CHECK_HAS(c->api->notice(s), notice);
    return s;
}

static void refuses(const char *text, const char *options, const char *path,
                    const char *why) {
    Compiled c = compile_text(text, options);
    ampc_session *s = open_threads(&c, 1);
    CHECK_EQ_INT(c.api->resume(s, path), AMPC_ERR_FORMAT);
    CHECK_HAS(c.api->error(s), why);
    c.api->close(s);
    compiled_close(&c);
}

TEST_CASE(outlives, the_same_model_and_options) {
    char path[600];
    snprintf(path, sizeof path, "%s", test_tmp("a.safetensors"));
    Compiled a = compile_text(model, OPTIONS);
    ampc_session *s = open_threads(&a, 1);
    train(&a, s, 5);
    CHECK_EQ_INT(a.api->save(s, path), AMPC_OK);
    double want = train(&a, s, 5);
    a.api->close(s);
    compiled_close(&a);
    /* other graphs, and another layout of the text */
    Compiled b = compile_text("# words\ndim B=4\nmodel m(x: f32[B,6]) {\n"
                              "  return logits = Linear(tanh(x), units = 3)\n}"
                              "\ntrain m { loss=cross_entropy }\n",
                              OPTIONS "--top-k 2 --batch-sizes 2");
    s = resumed(&b, path, "model, options and variables are the same");
    CHECK(train(&b, s, 5) == want);
    b.api->close(s);
    compiled_close(&b);
    refuses(model, OPTIONS "--optimizer sgd,lr=0.01", path,
            "--optimizer was 'adamw,lr=0.01' there and is 'sgd,lr=0.01'");
    refuses(model, OPTIONS "--precision fp32", path,
            "--precision was not given there and is 'fp32' in this module");
    refuses(model, OPTIONS "--clip-norm 1", path,
            "--clip-norm was not given there and is '1' in this module");
    refuses("dim B = 4\nmodel m(x: f32[B,6]) {\n"
            "  return logits = Linear(relu(x), units=3)\n}\n"
            "train m { loss = cross_entropy }\n",
            OPTIONS, path, "another model");
}

/* Resumes NAME.safetensors and compares the losses that follow with those of
   the build that wrote it (old/README.md). */
static void check_old(const char *name) {
    char path[100], options[400];
    snprintf(path, sizeof path, "tests/whole/old/%s.txt", name);
    char *text = test_read_file(test_data_path(path), NULL);
    REQUIRE(text != NULL);
    char *line = strtok(text, "\n");
    snprintf(options, sizeof options, "--target cpu:x86-64-v2 %s", line);
    Compiled c =
        compile_file(test_data_path("tests/whole/old/dropout.amp"), options);
    snprintf(path, sizeof path, "tests/whole/old/%s.safetensors", name);
    ampc_session *s = resumed(&c, test_data_path(path), NULL);
    int calls = atoi(strtok(NULL, "\n"));
    while ((line = strtok(NULL, "\n"))) {
        double want = strtod(line, NULL), got = train(&c, s, 1);
        CHECK_MSG(fabs(got - want) <= TOL_LOSS * fabs(want),
                  "%s, call %d: loss %.9g, expected %.9g", name, ++calls, got,
                  want);
    }
    c.api->close(s);
    compiled_close(&c);
    free(text);
}

TEST_CASE(outlives, files_of_older_builds) {
    static const char *const files[] = {"options", "between", "compact"};
    for (size_t i = 0; i < sizeof files / sizeof *files; i++)
        check_old(files[i]);
}

/* The first format names neither model nor options. */
TEST_CASE(outlives, the_first_format) {
    float w[12];
    Compiled c = compile_file(test_data_path("tests/whole/old/model.amp"),
                              "--target cpu:x86-64-v2");
    const char *path = test_data_path("tests/whole/old/first.safetensors");
    ampc_session *s = resumed(&c, path, NULL);
    ampc_scaler sc = {.size = sizeof sc};
    CHECK_EQ_INT(c.api->scaler(s, &sc), AMPC_OK);
    CHECK_EQ_INT(sc.step, 3);
    size_t n;
    char *file = test_read_file(path, &n);
    uint64_t header;
    memcpy(&header, file, 8);
    const char *tensors = file + 8 + header; /* w, b, their momenta */
    REQUIRE(n == 8 + header + 128);
    read_var(&c, s, "fc.weight", w, sizeof w, AMPC_DTYPE_F32);
    CHECK_MEM(w, tensors, sizeof w);
    read_var(&c, s, "ampc.opt/fc.weight/momentum_buffer", w, sizeof w,
             AMPC_DTYPE_F32);
    CHECK_MEM(w, tensors + 64, sizeof w);
    free(file);
    c.api->close(s);
    compiled_close(&c);
}
