/* SPDX-License-Identifier: Apache-2.0 */
/* export_test.c: the file that `ampc export` writes can be read back, and
   predicts the trained session's results bit for bit. */
#define _GNU_SOURCE
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "runtime/program/plan.h"
#include "tests/support/compiled.h"
#include "tests/support/onnx_util.h"
#include "tests/tolerance.h"

/* ---- helpers ------------------------------------------------------------- */

enum { BATCH = 4 };
#define OPTIONS                                                                \
    "--dim batch=4 --precision fp32 --target "                                 \
    "cpu:x86-64-v2 --accept-folded --dropout off "

/* Some data for every input; integers are small enough for labels. */
typedef struct Data {
    ampc_input in[8];
    char *bytes[8];
    size_t n;
} Data;

static Data data_for(const ampc_api *api, const char *program) {
    Data d = {.n = 0};
    ampc_tensor_info t = {.size = sizeof t};
    for (; api->input(api->module, program, (uint32_t)d.n, &t) == AMPC_OK;
         d.n++) {
        d.bytes[d.n] = calloc(1, t.bytes);
        for (size_t i = 0; t.dtype == AMPC_DTYPE_F32 && i < t.bytes / 4; i++)
            ((float *)d.bytes[d.n])[i] = (float)((i * 37 + 5) % 64) / 32 - 1;
        for (size_t i = 0; t.dtype == AMPC_DTYPE_I64 && i < t.bytes / 8; i++)
            ((int64_t *)d.bytes[d.n])[i] = (int64_t)(i * 7 % 3);
        d.in[d.n] = ampc_in(t.name, d.bytes[d.n], t.bytes, (ampc_dtype)t.dtype);
    }
    return d;
}

static void data_free(Data *d) {
    for (size_t i = 0; i < d->n; i++) free(d->bytes[i]);
}

/* The logits; the caller frees them. */
static float *predict(const Compiled *c, ampc_session *s, size_t *n) {
    ampc_tensor_info t = {.size = sizeof t};
    Data d = data_for(c->api, "predict");
    for (uint32_t i = 0; t.rank == 0; i++)
        REQUIRE(c->api->output(c->api->module, "predict", i, &t) == AMPC_OK);
    float *y = malloc(t.bytes);
    ampc_output out = ampc_out(t.name, y, t.bytes, (ampc_dtype)t.dtype);
    CHECK_MSG(c->api->predict(s, d.in, d.n, BATCH, &out, 1) == AMPC_OK, "%s",
              c->api->error(s));
    data_free(&d);
    *n = t.bytes;
    return y;
}

/* `ampc export WORDS`. */
static void check_export(int status, const char *says, const char *words) {
    char *out;
    int rc = test_command(&out, "cd '%s' && '%s' export %s", test_tmpdir(),
                          test_ampc(), words);
    CHECK_MSG(rc == status, "ampc export %s: status %d\n%s", words, rc, out);
    CHECK_HAS(out, says);
    free(out);
}

static void same_predictions(const char *model, const float *want, size_t n) {
    size_t k;
    Compiled c = compile_file(test_tmp(model), OPTIONS);
    ampc_session *s = open_threads(&c, 1);
    float *y = predict(&c, s, &k);
    if (CHECK_EQ_INT(n, k)) CHECK_MEM(y, want, n);
    free(y);
    c.api->close(s);
    compiled_close(&c);
}

/* ---- round trips --------------------------------------------------------- */

static void round_trip_of(const char *path, const char *options) {
    char words[1400], all[400];
    size_t n;
    snprintf(all, sizeof all, OPTIONS "%s", options);
    Compiled c = compile_file(path, all);
    ampc_session *s = open_threads(&c, 1);
    float *first = predict(&c, s, &n);
    Data d = data_for(c.api, "train");
    for (int i = 0; i < 3; i++) step_ok(&c, s, d.in, d.n);
    CHECK(c.api->save(s, test_tmp("trained")) == AMPC_OK);
    float *last = predict(&c, s, &n);
    CHECK(memcmp(first, last, n) != 0);
    snprintf(words, sizeof words, "'%s' -o first.onnx", c.path);
    check_export(0, "", words);
    same_predictions("first.onnx", first, n);
    snprintf(words, sizeof words, "'%s' --load trained -o last.onnx", c.path);
    check_export(0, "", words);
    same_predictions("last.onnx", last, n);
    free(first);
    free(last);
    data_free(&d);
    c.api->close(s);
    compiled_close(&c);
}

static void round_trip(const char *file, const char *options) {
    char model[200];
    snprintf(model, sizeof model, "tests/onnx/%s", file);
    round_trip_of(test_data_path(model), options);
}

/* A weight without elements among the others. */
TEST_CASE(export, an_empty_tensor) {
    Made m;
    size_t n;
    made_start(&m, 17);
    made_input(&m, "x", DT_F32, "batch,3");
    made_f32(&m, "w", "3", 0.5f);
    made_f32(&m, "none", "4,0", 0);
    made_node(&m, "Mul", "x,w", "h");
    made_int(&m, made_node(&m, "Concat", "h,none", "y"), "axis", 1);
    made_node(&m, "ReduceMean", "y", "loss");
    made_output(&m, "y");
    made_output(&m, "loss");
    uint8_t *bytes = model_pack(&m.model, &n);
    REQUIRE(test_write_file(test_tmp("empty.onnx"), bytes, n));
    free(bytes);
    made_end(&m);
    round_trip_of(test_tmp("empty.onnx"), "");
}

TEST_CASE(export, gpt) { round_trip("gpt.dyn.onnx", ""); }

#define MLP "tests/onnx/mlp.dyn.onnx"

/* The exported weights contain the adapters: the file predicts like the
   trained session, up to the order of sums. */
static void run_merged(const char *file, const char *options) {
    char words[1400];
    size_t n, k;
    Compiled c = compile_file(test_data_path(file), options);
    ampc_session *s = open_threads(&c, 1);
    float *first = predict(&c, s, &n);
    Data d = data_for(c.api, "train");
    for (int i = 0; i < 3; i++) step_ok(&c, s, d.in, d.n);
    CHECK(c.api->save(s, test_tmp("trained")) == AMPC_OK);
    float *want = predict(&c, s, &n), largest = 0, moved = 0;
    c.api->close(s);
    snprintf(words, sizeof words, "'%s' --load trained -o merged.onnx", c.path);
    check_export(0, "", words);
    Compiled m = compile_file(test_tmp("merged.onnx"), OPTIONS);
    s = open_threads(&m, 1);
    float *got = predict(&m, s, &k);
    REQUIRE(n == k);
    for (size_t i = 0; i < n / sizeof *got; i++) {
        largest = fmaxf(largest, fabsf(want[i]));
        moved = fmaxf(moved, fabsf(want[i] - first[i]));
    }
    for (size_t i = 0; i < n / sizeof *got; i++)
        CHECK(fabsf(got[i] - want[i]) <= (float)TOL_LORA * largest);
    CHECK(moved > 100 * (float)TOL_LORA * largest);
    snprintf(words, sizeof words, "'%s' --load trained --adapter -o adapter",
             m.path);
    check_export(1, "compiled without --lora and --ia3", words);
    free(first);
    free(want);
    free(got);
    data_free(&d);
    m.api->close(s);
    compiled_close(&m);
    compiled_close(&c);
}

TEST_CASE(export, adapters_are_merged) {
    run_merged(MLP, OPTIONS "--lora 'fc?,rank=2,alpha=16'");
}
TEST_CASE(export, adapters_of_convolutions_are_merged) {
    run_merged("tests/onnx/cnn.dyn.onnx",
               OPTIONS "--lora 'c?,rank=2,alpha=16'");
}
TEST_CASE(export, magnitudes_of_convolutions_are_merged) {
    run_merged("tests/onnx/cnn.dyn.onnx",
               OPTIONS "--lora 'c?,rank=2,alpha=16,dora'");
}
TEST_CASE(export, factors_of_convolutions_are_merged) {
    run_merged("tests/onnx/cnn.dyn.onnx",
               OPTIONS "--ia3 c1 --ia3 c2,feedforward");
}
TEST_CASE(export, factors_are_merged) {
    run_merged(MLP, OPTIONS "--ia3 fc1 --ia3 fc2,feedforward");
}
TEST_CASE(export, magnitudes_are_merged) {
    run_merged(MLP, OPTIONS "--lora 'fc?,rank=2,alpha=16,dora'");
}

static bool file_has(const char *path, const char *text) {
    size_t n = 0;
    char *file = test_read_file(path, &n);
    REQUIRE(file);
    bool has = memmem(file, n, text, strlen(text)) != NULL;
    free(file);
    return has;
}

/* BatchNormalization is in training mode there, and in inference mode here. */
TEST_CASE(export, resnet_exported_for_training) {
    CHECK(
        file_has(test_data_path("tests/onnx/resnet.ts.onnx"), "training_mode"));
    round_trip("resnet.ts.onnx", "--batchnorm train");
    CHECK(!file_has(test_tmp("last.onnx"), "training_mode"));
}

TEST_CASE(export, weights_beside_the_module) {
    round_trip("mlp.dyn.onnx", "--weights sidecar");
}

/* Like after a compilation that ended before the files had their names; gzip
   gives the CRC. */
TEST_CASE(export, weights_that_wait_beside_the_module) {
    char words[1400], *out;
    Compiled c = compile_file(test_data_path("tests/onnx/mlp.dyn.onnx"),
                              OPTIONS "--weights sidecar");
    snprintf(words, sizeof words, "'%s' -o named.onnx", c.path);
    check_export(0, "", words);
    int rc = test_command(
        &out,
        "f=$(echo '%s' | sed 's/so$/weights.safetensors/') && "
        "mv $f $f.$(gzip -c $f | tail -c 8 | od -An -N4 -tx4 | tr -d ' ')",
        c.path);
    CHECK_MSG(rc == 0, "%s", out);
    free(out);
    snprintf(words, sizeof words, "'%s' -o waiting.onnx", c.path);
    check_export(0, "", words);
    rc = test_command(NULL, "cd '%s' && cmp named.onnx waiting.onnx",
                      test_tmpdir());
    CHECK_EQ_INT(rc, 0);
    compiled_close(&c);
}

/* ---- mistakes ------------------------------------------------------------ */

/* A module's file is not trusted: this one claims that its weights have 0
   bytes and checksum 0. */
TEST_CASE(export, weights_that_end_early) {
    char words[1400];
    size_t n;
    int found = 0;
    Compiled c =
        compile_file(test_data_path("tests/onnx/mlp.dyn.onnx"), OPTIONS);
    char *file = test_read_file(c.path, &n);
    PlanTail t;
    REQUIRE(file && n > sizeof t);
    memcpy(&t, file + n - sizeof t, sizeof t);
    for (uint64_t i = 0; i < t.nsection; i++) {
        char *at = file + t.directory + i * sizeof(PlanSection);
        PlanSection s;
        memcpy(&s, at, sizeof s);
        if (strcmp(s.name, "weights") != 0) continue;
        s.bytes = s.crc = 0;
        memcpy(at, &s, sizeof s);
        found++;
    }
    CHECK_EQ_INT(found, 1);
    REQUIRE(test_write_file(test_tmp("early.so"), file, n));
    snprintf(words, sizeof words, "'%s' -o early.onnx", test_tmp("early.so"));
    check_export(1, "its weights do not fit its model", words);
    free(file);
    compiled_close(&c);
}

/* ---- of a text, and as a module ------------------------------------------ */

static const char text_model[] =
    "dim B = 4\n"
    "model m(x: f32[B,64]) {\n"
    "  h = gelu(Linear(LayerNorm(x, scope=\"norm\"), units=16, scope=\"a\"))\n"
    "  return y = softmax(Linear(h, units=4, scope=\"b\"), axis=-1)\n"
    "}\n"
    "train m { loss = nll }\n";

/* Trains the text; returns its predictions, and writes its checkpoint "w". */
static float *trained_text(Compiled *c, const char *precision, size_t *n) {
    char options[200];
    snprintf(options, sizeof options, "--precision %s --target cpu:x86-64-v2",
             precision);
    REQUIRE(test_write_file(test_tmp("m.amp"), text_model, strlen(text_model)));
    *c = compile_file(test_tmp("m.amp"), options);
    ampc_session *s = open_threads(c, 1);
    Data d = data_for(c->api, "train");
    for (int i = 0; i < 3; i++) step_ok(c, s, d.in, d.n);
    data_free(&d);
    CHECK(c->api->save(s, test_tmp("w")) == AMPC_OK);
    float *y = predict(c, s, n);
    c->api->close(s);
    return y;
}

/* Ops of a text may be rounded in another order than those of the file; so
   may the predict-only module and merged adapters. */
static void text_as_onnx(const char *options) {
    char words[1400];
    size_t n, k;
    Compiled c;
    float *want = trained_text(&c, options, &n);
    snprintf(words, sizeof words, "'%s' --load w -o m.onnx", c.path);
    check_export(0, "", words);
    snprintf(words, sizeof words, "'%s' --load w --module -o s.so", c.path);
    check_export(0, "", words);
    check_export(0, "", "s.so -o s.onnx");
    CHECK_EQ_INT(
        test_command(NULL, "cd '%s' && cmp m.onnx s.onnx", test_tmpdir()), 0);
    check_export(1, "ampc export --module wrote it", "s.so --module -o t.so");
    compiled_close(&c);
    c = compile_file(test_tmp("m.onnx"), "--loss none --precision fp32 "
                                         "--target cpu:x86-64-v2");
    ampc_session *s = open_threads(&c, 1);
    float *y = predict(&c, s, &k);
    REQUIRE(n == k);
    for (size_t i = 0; i < n / sizeof *y; i++) CHECK_NEAR(y[i], want[i], 1e-6);
    free(want);
    free(y);
    c.api->close(s);
    compiled_close(&c);
}

TEST_CASE(export, a_text_as_onnx) { text_as_onnx("fp32"); }

TEST_CASE(export, a_text_with_adapters_as_onnx) {
    text_as_onnx("fp32 --lora '*,rank=2,alpha=8'");
}

TEST_CASE(export, a_module_that_predicts_alone) {
    char words[1400], err[256];
    size_t n, k;
    Compiled c, small = {.handle = NULL};
    float *want = trained_text(&c, "bf16", &n);
    snprintf(words, sizeof words, "'%s' --load w --module -o small.so", c.path);
    check_export(0, "", words);
    compiled_close(&c);
    small.api = ampc_load(test_tmp("small.so"), NULL, err, sizeof err);
    REQUIRE(small.api);
    ampc_module_info info = {.size = sizeof info};
    small.api->describe(small.api->module, &info);
    CHECK(!info.trains && !info.evaluates && info.predicts);
    for (uint32_t i = 0; i < info.nvariable; i++) {
        ampc_variable_info v = {.size = sizeof v};
        small.api->variable(small.api->module, i, &v);
        CHECK_MSG(v.kind != AMPC_KIND_STATE && v.kind != AMPC_KIND_HYPER, "%s",
                  v.name);
    }
    ampc_session *s = open_threads(&small, 1);
    float *y = predict(&small, s, &k);
    if (CHECK_EQ_INT(n, k)) CHECK_MEM(y, want, n);
    small.api->close(s);
    free(y);
    free(want);
    check_export(0, "", "small.so -o again.onnx");
}

/* fc1.weight is f32[16,12]. Files of that many numbers, or of as many as their
   shape says, whose shape is another in rank, first or last size. */
TEST_CASE(export, weights_of_another_shape) {
    static const struct {
        const char *shape;
        size_t bytes;
    } rows[] = {{"192", 768},     {"16,12,1", 768}, {"12,16", 768},
                {"16,11", 704},   {"16,13", 832},   {"15,12", 720},
                {"1,16,12", 768}, {"", 4},          {"16,0", 0}};
    char words[1400], file[2000];
    Compiled c =
        compile_file(test_data_path("tests/onnx/mlp.dyn.onnx"), OPTIONS);
    snprintf(words, sizeof words, "'%s' --load shaped -o y.onnx", c.path);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        memset(file, 0, sizeof file);
        uint64_t head = (uint64_t)sprintf(
            file + 8,
            "{\"fc1.weight\":{\"dtype\":\"F32\",\"shape\":[%s],"
            "\"data_offsets\":[0,%zu]}}",
            rows[i].shape, rows[i].bytes);
        memcpy(file, &head, sizeof head);
        REQUIRE(test_write_file(test_tmp("shaped"), file,
                                8 + head + rows[i].bytes));
        check_export(1, "'fc1.weight' has another shape in the model", words);
    }
    compiled_close(&c);
}

TEST_CASE(export, mistakes) {
    char words[1400];
    Compiled c =
        compile_file(test_data_path("tests/onnx/mlp.dyn.onnx"), OPTIONS);
    check_export(2, "-o MODEL.onnx is missing", "x.so");
    check_export(2, "unknown option '--lr'", "x.so --lr 3 -o y");
    check_export(2, "a file is missing", "-o y");
    check_export(1, "No such file", "none.so -o y.onnx");
    snprintf(words, sizeof words, "'%s' -o '%s'", c.path, c.path);
    check_export(1, "-o would overwrite the module", words);
    snprintf(words, sizeof words, "'%s' --load none -o y.onnx", c.path);
    check_export(1, "none: No such file", words);
    ampc_session *s = open_threads(&c, 1);
    CHECK(c.api->save(s, test_tmp("whole")) == AMPC_OK);
    c.api->close(s);
    size_t n;
    char *file = test_read_file(test_tmp("whole"), &n);
    file[n - 1] ^= 1;
    REQUIRE(test_write_file(test_tmp("torn"), file, n));
    snprintf(words, sizeof words, "'%s' --load torn -o y.onnx", c.path);
    check_export(1, "its checksum is wrong", words);
    static const char other[] =
        "{\"head\":{\"dtype\":\"F32\",\"shape\":[0],\"data_offsets\":[0,0]}}";
    uint64_t head = sizeof other - 1;
    memcpy(file, &head, 8);
    memcpy(file + 8, other, head);
    REQUIRE(test_write_file(test_tmp("other"), file, 8 + head));
    snprintf(words, sizeof words, "'%s' --load other -o y.onnx", c.path);
    check_export(1, "is not in it", words);
    free(file);
    compiled_close(&c);
    c = compile_text("graph forward(%x: f32[3,4], %i: i64[3]) {\n"
                     "  %y = scatter_add %x, %i {axis=0, shape=[5,4]}\n"
                     "  return %y\n}\n",
                     "--loss none --target cpu:x86-64-v2");
    snprintf(words, sizeof words, "'%s' -o y.onnx", c.path);
    check_export(1, "scatter_add: has no form in ONNX", words);
    compiled_close(&c);
    CHECK(access(test_tmp("y.onnx"), F_OK) != 0);
}
