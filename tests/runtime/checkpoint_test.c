/* SPDX-License-Identifier: Apache-2.0 */
/* checkpoint_test.c: save, load, resume: bit-exact, atomic, and hostile files
   are refused without a change.  Also a module's own file: tail, directory,
   weights.                                                                  */
#define _GNU_SOURCE
#include "tests/harness.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <locale.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "runtime/api/session.h"
#include "runtime/files/checkpoint.h"
#include "tests/support/tiny_module.h"

static ampc_session *open_module(const AmpcModule *m) {
    ampc_options o = {.size = sizeof o, .threads = 1};
    ampc_session *s = NULL;
    char err[256];
    ampc_status status =
        tiny_api()->open(tiny_handle(m), &o, &s, err, sizeof err);
    if (!CHECK_MSG(status == AMPC_OK, "%s", err)) harness_leave();
    return s;
}

static void train(ampc_session *s, int first, int n) {
    float x[TINY_BATCH * TINY_IN], t[TINY_BATCH * TINY_OUT];
    ampc_input in[] = {ampc_in("x", x, sizeof x, AMPC_DTYPE_F32),
                       ampc_in("target", t, sizeof t, AMPC_DTYPE_F32)};
    for (int i = 0; i < n; i++) {
        tiny_batch(first + i, x, t);
        if (!CHECK_EQ_INT(tiny_api()->step(s, in, 2, NULL), AMPC_OK)) return;
    }
}

/* Every variable's bytes, and the cursor. */
typedef struct Snapshot {
    char bytes[1024];
    size_t n;
    char cursor[64];
} Snapshot;

static Snapshot snapshot(ampc_session *s) {
    Snapshot shot = {.n = 0};
    for (uint32_t i = 0; i < s->m->nvar; i++) {
        const PlanVar *v = &s->m->vars[i];
        if (v->kind == PLAN_SHADOW || (v->kind == PLAN_GRAD && !s->micro))
            continue;
        memcpy(shot.bytes + shot.n, cpu_var(s, i), v->bytes);
        shot.n += v->bytes;
    }
    snprintf(shot.cursor, sizeof shot.cursor, "%s", tiny_api()->get_cursor(s));
    return shot;
}

static void check_same(const Snapshot *a, const Snapshot *b) {
    CHECK_EQ_INT(a->n, b->n);
    CHECK_MEM(a->bytes, b->bytes, a->n);
    CHECK_STR(a->cursor, b->cursor);
}

static void check_ok(ampc_session *s, ampc_status status) {
    CHECK_MSG(status == AMPC_OK, "%s", tiny_api()->error(s));
}

/* ---- round trips --------------------------------------------------------- */

static void resume_equals(const AmpcModule *m, int stop) {
    const ampc_api *a = tiny_api();
    const char *path = test_tmp("resume.safetensors");
    ampc_session *one = open_module(m), *two = open_module(m);
    train(one, 0, 30);
    train(two, 0, stop);
    check_ok(two, a->set_cursor(two, "{\"epoch\":3}"));
    check_ok(two, a->set_hyper(two, "seed", 99));
    check_ok(two, a->save(two, path));
    a->close(two);
    two = open_module(m);
    check_ok(two, a->resume(two, path));
    CHECK_STR(a->get_cursor(two), "{\"epoch\":3}");
    CHECK(two->bad.count == 0);
    train(two, stop, 30 - stop);
    check_ok(one, a->set_cursor(one, "{\"epoch\":3}"));
    check_ok(one, a->set_hyper(one, "seed", 99));
    Snapshot x = snapshot(one), y = snapshot(two);
    check_same(&x, &y);
    a->close(one);
    a->close(two);
}

TEST_CASE(checkpoint, resume_is_bit_exact) {
    resume_equals(&tiny_module, 0);
    resume_equals(&tiny_module, 17);
}

TEST_CASE(checkpoint, resume_between_micro_steps) {
    resume_equals(&tiny_accumulating, 17);
    resume_equals(&tiny_accumulating, 18);
}

static void write_f32(ampc_session *s, const char *name, float x) {
    ampc_input in = ampc_in(NULL, &x, sizeof x, AMPC_DTYPE_F32);
    check_ok(s, tiny_api()->write_variable(s, name, &in));
}

TEST_CASE(checkpoint, states_that_are_not_finite) {
    const ampc_api *a = tiny_api();
    ampc_session *s = open_module(&tiny_module);
    float odd[] = {NAN, INFINITY, -INFINITY, 1.17549435e-38f, 1e-45f, 0.1f};
    const char *path = test_tmp("odd.safetensors");
    for (int i = 0; i < 6; i++) {
        write_f32(s, "ampc.loss_sum", odd[i]);
        if (odd[i] > 0 && isfinite(odd[i])) write_f32(s, "ampc.scale", odd[i]);
        Snapshot before = snapshot(s);
        check_ok(s, a->save(s, path));
        write_f32(s, "ampc.loss_sum", odd[5]);
        write_f32(s, "ampc.scale", odd[5]);
        check_ok(s, a->resume(s, path));
        Snapshot after = snapshot(s);
        if (!isnan(odd[i])) CHECK_MEM(before.bytes, after.bytes, before.n);
    }
    a->close(s);
}

/* With these every later step would be skipped, or refused. */
TEST_CASE(checkpoint, scalars_that_cannot_be) {
    static const float scales[] = {NAN, 0, -1, INFINITY, -INFINITY};
    static const int64_t counts[] = {-1, INT64_MIN, INT64_MAX};
    const ampc_api *a = tiny_api();
    ampc_session *s = open_module(&tiny_accumulating);
    Snapshot before = snapshot(s);
    ampc_input in = ampc_in(NULL, NULL, 4, AMPC_DTYPE_F32);
    for (size_t i = 0; i < sizeof scales / sizeof *scales; i++) {
        in.data = &scales[i];
        CHECK_EQ_INT(a->write_variable(s, "ampc.scale", &in),
                     AMPC_ERR_ARGUMENT);
        CHECK_HAS(a->error(s), "'ampc.scale' cannot be");
    }
    in = ampc_in(NULL, NULL, 8, AMPC_DTYPE_I64);
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
        in.data = &counts[i];
        CHECK_EQ_INT(a->write_variable(s, "ampc.step", &in), AMPC_ERR_ARGUMENT);
    }
    int32_t micro = 3; /* of 2 */
    in = ampc_in(NULL, &micro, 4, AMPC_DTYPE_I32);
    CHECK_EQ_INT(a->write_variable(s, "ampc.micro", &in), AMPC_ERR_ARGUMENT);
    Snapshot after = snapshot(s);
    check_same(&before, &after);
    a->close(s);
}

/* The bf16 copy of w from the last step is not a copy of the loaded w. */
TEST_CASE(checkpoint, loading_refreshes_the_16_bit_copies) {
    const ampc_api *a = tiny_api();
    const char *path = test_tmp("refresh.safetensors");
    float x[TINY_BATCH * TINY_IN], t[TINY_BATCH * TINY_OUT];
    for (int resume = 0; resume < 2; resume++) {
        ampc_session *s = open_module(&tiny_module);
        train(s, 0, 1);
        check_ok(s, a->save(s, path));
        train(s, 1, 5);
        check_ok(s, resume ? a->resume(s, path) : a->load(s, path));
        tiny_batch(0, x, t);
        ampc_input in = ampc_in("x", x, sizeof x, AMPC_DTYPE_F32);
        check_ok(s, a->predict(s, &in, 1, 0, NULL, 0));
        const float *w = cpu_var(s, 0);
        const uint16_t *copy = cpu_var(s, (uint32_t)find_var(s->m, "w.bf16"));
        for (int i = 0; i < TINY_IN * TINY_OUT; i++) {
            uint32_t wide = (uint32_t)copy[i] << 16;
            float back;
            memcpy(&back, &wide, 4);
            CHECK_REL(back, w[i], 0.004); /* 8 bits of mantissa */
        }
        a->close(s);
    }
}

TEST_CASE(checkpoint, does_not_depend_on_the_locale) {
    if (!setlocale(LC_ALL, "de_DE.UTF-8") && !setlocale(LC_ALL, "fr_FR.UTF-8"))
        SKIP("no locale with a decimal comma is installed");
    resume_equals(&tiny_module, 5);
    setlocale(LC_ALL, "C");
}

TEST_CASE(checkpoint, load_takes_weights_alone) {
    const ampc_api *a = tiny_api();
    const char *path = test_tmp("weights.safetensors");
    ampc_session *s = open_module(&tiny_module), *t = open_module(&tiny_other);
    ampc_scaler sc = {.size = sizeof sc};
    train(s, 0, 10);
    check_ok(s, a->save(s, path));
    check_ok(t, a->load(t, path));
    CHECK_MEM(cpu_var(s, 0), cpu_var(t, 0), 24);
    check_ok(t, a->scaler(t, &sc));
    CHECK_EQ_INT(sc.step, 0);
    CHECK_EQ_INT(a->resume(t, path), AMPC_ERR_FORMAT);
    CHECK_HAS(a->error(t), "another model");
    a->close(s);
    a->close(t);
}

/* Weights from elsewhere: no metadata, tensors that nobody asked for. */
TEST_CASE(checkpoint, load_takes_files_from_elsewhere) {
    static const char header[] =
        "{\"w\":{\"dtype\":\"F32\",\"shape\":[3,2],\"data_offsets\":[0,24]},"
        "\"b\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[24,32]},"
        "\"running \\\"mean\\\"\":{\"dtype\":\"F32\",\"shape\":[],"
        "\"data_offsets\":[32,36]},"
        "\"head\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[36,40]}}";
    const ampc_api *a = tiny_api();
    const char *path = test_tmp("elsewhere.safetensors");
    char file[8 + sizeof header - 1 + 40];
    uint64_t n = sizeof header - 1;
    float w = 0.75f;
    memset(file, 0, sizeof file);
    memcpy(file, &n, 8);
    memcpy(file + 8, header, n);
    memcpy(file + 8 + n, &w, 4);
    REQUIRE(test_write_file(path, file, sizeof file));
    ampc_session *s = open_module(&tiny_module);
    CHECK_EQ_INT(a->resume(s, path), AMPC_ERR_FORMAT);
    CHECK_STR(a->notice(s), "");
    check_ok(s, a->load(s, path));
    CHECK(*(float *)cpu_var(s, 0) == 0.75f);
    CHECK_HAS(a->notice(s), "1 tensors are not in this module: 'head'");
    a->close(s);
}

/* ---- weights from elsewhere ---------------------------------------------- */

/* A file of header text and data, as other programs write it. */
static const char *foreign_file(const char *name, const char *header,
                                const void *data, size_t n) {
    const char *path = test_tmp(name);
    uint64_t head = strlen(header);
    char *file = malloc(8 + head + n);
    memcpy(file, &head, 8);
    memcpy(file + 8, header, head);
    memcpy(file + 8 + head, data, n);
    REQUIRE(test_write_file(path, file, 8 + head + n));
    free(file);
    return path;
}

#define TENSOR_W(at)                                                           \
    "\"w\":{\"dtype\":\"F32\",\"shape\":[3,2],\"data_offsets\":[" at "]}"
#define TENSOR_B(name, at)                                                     \
    "\"" name "\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[" at "]}"
#define TENSOR_MEAN(at)                                                        \
    "\"running \\\"mean\\\"\":{\"dtype\":\"F32\",\"shape\":[],"                \
    "\"data_offsets\":[" at "]}"

static ampc_status load_from(ampc_session *s, const char *const *paths,
                             size_t npath, const char *rename, int partial) {
    ampc_weights from = {.size = sizeof from,
                         .paths = paths,
                         .npath = npath,
                         .renames = &rename,
                         .nrename = rename != NULL,
                         .partial = partial};
    return tiny_api()->load_weights(s, &from);
}

/* 2.5, -0.75 and 2^100 are exact in every width that holds them. */
TEST_CASE(weights, other_widths_are_converted) {
    static const char header[] =
        "{\"w\":{\"dtype\":\"F16\",\"shape\":[3,2],\"data_offsets\":[0,12]},"
        "\"b\":{\"dtype\":\"BF16\",\"shape\":[2],\"data_offsets\":[12,16]},"
        "\"running \\\"mean\\\"\":{\"dtype\":\"F64\",\"shape\":[],"
        "\"data_offsets\":[16,24]}}";
    struct {
        uint16_t w[6], b[2];
        double mean;
    } data = {
        {0x4100, 0xba00, 0, 1, 0x7bff, 0x3c00}, {0x4020, 0xbf40}, 0x1p100};
    static const float w[] = {2.5f, -0.75f, 0, 0x1p-24f, 65504, 1};
    ampc_session *s = open_module(&tiny_module);
    const char *path = foreign_file("widths", header, &data, sizeof data);
    check_ok(s, load_from(s, &path, 1, NULL, 0));
    CHECK_STR(tiny_api()->notice(s), "");
    CHECK_MEM(cpu_var(s, 0), w, sizeof w);
    CHECK(((float *)cpu_var(s, 1))[0] == 2.5f);
    CHECK(((float *)cpu_var(s, 1))[1] == -0.75f);
    int mean = find_var(s->m, "running \"mean\"");
    CHECK(*(float *)cpu_var(s, (uint32_t)mean) == 0x1p100f);
    data.mean = 1e39;
    path = foreign_file("widths", header, &data, sizeof data);
    CHECK_EQ_INT(load_from(s, &path, 1, NULL, 0), AMPC_ERR_FORMAT);
    CHECK_HAS(tiny_api()->error(s), "is beyond f32");
    CHECK(*(float *)cpu_var(s, (uint32_t)mean) == 0x1p100f);
    tiny_api()->close(s);
}

/* Dtypes that the format has and ampc does not: they matter only if a wanted
   tensor has one. */
TEST_CASE(weights, dtypes_that_are_not_read) {
    static const char *const dtypes[] = {"F8_E4M3", "F8_E5M2", "F8_E8M0",
                                         "C64",     "F4",      "F6_E2M3"};
    char header[400], data[40 + 24] = {0};
    ampc_session *s = open_module(&tiny_module);
    for (size_t i = 0; i < sizeof dtypes / sizeof *dtypes; i++) {
        int n = snprintf(
            header, sizeof header,
            "{" TENSOR_W("0,24") "," TENSOR_B("b", "24,32") "," TENSOR_MEAN(
                "32,36") ",\"extra\":{\"dtype\":\"%s\","
                         "\"shape\":[1,1,1,1,1,1,1,1,4],"
                         "\"data_offsets\":[36,40]}}",
            dtypes[i]);
        REQUIRE(n > 0 && n < (int)sizeof header);
        const char *path = foreign_file("dtypes", header, data, 40);
        check_ok(s, load_from(s, &path, 1, NULL, 0));
        CHECK_HAS(tiny_api()->notice(s), "not in this module: 'extra'");
        snprintf(header, sizeof header,
                 "{\"w\":{\"dtype\":\"%s\",\"shape\":[3,2],"
                 "\"data_offsets\":[0,6]}}",
                 dtypes[i]);
        path = foreign_file("dtypes", header, data, 6);
        CHECK_EQ_INT(load_from(s, &path, 1, NULL, 1), AMPC_ERR_FORMAT);
        CHECK_HAS(tiny_api()->error(s), dtypes[i]);
        CHECK_HAS(tiny_api()->error(s), "which is not read, and f32[3,2]");
    }
    tiny_api()->close(s);
}

TEST_CASE(weights, four_of_those_left_over_are_named) {
    const ampc_api *a = tiny_api();
    float data[16] = {0};
    char header[1000];
    ampc_session *s = open_module(&tiny_module);
    size_t n = (size_t)snprintf(header, sizeof header, "{%s", TENSOR_W("0,24"));
    for (int i = 0; i < 5; i++)
        n += (size_t)snprintf(header + n, sizeof header - n,
                              ",\"h%d\":{\"dtype\":\"F32\",\"shape\":[2],"
                              "\"data_offsets\":[%d,%d]}",
                              i, 24 + 8 * i, 32 + 8 * i);
    snprintf(header + n, sizeof header - n, "}");
    const char *path = foreign_file("five", header, data, sizeof data);
    check_ok(s, load_from(s, &path, 1, NULL, 1));
    CHECK_HAS(a->notice(s), "5 tensors are not in this module: 'h0', 'h1', "
                            "'h2', 'h3', ...");
    a->close(s);
}

static void count_line(void *ctx, const char *line) {
    *(int *)ctx += strstr(line, "weights loaded") != NULL;
}

/* A refused load does not report the tensors that it had loaded. */
TEST_CASE(weights, a_refused_load_tells_of_none_loaded) {
    const ampc_api *a = tiny_api();
    float data[] = {1, 2, 3, 4, 5, 6};
    int told = 0;
    char err[200];
    ampc_session *s = NULL;
    ampc_options o = {.size = sizeof o, .log = count_line, .log_ctx = &told};
    REQUIRE(a->open(tiny_handle(&tiny_module), &o, &s, err, sizeof err) ==
            AMPC_OK);
    const char *path = foreign_file(
        "long", "{" TENSOR_B("w", "0,8") "," TENSOR_B("head", "8,16") "}", data,
        16);
    CHECK_EQ_INT(load_from(s, &path, 1, NULL, 1), AMPC_ERR_FORMAT);
    CHECK_HAS(a->error(s), "'w' is f32[2] in the file");
    CHECK_STR(a->notice(s), "");
    CHECK_EQ_INT(told, 0);
    path = foreign_file(
        "good", "{" TENSOR_B("b", "0,8") "," TENSOR_B("head", "8,16") "}", data,
        16);
    check_ok(s, load_from(s, &path, 1, NULL, 1));
    CHECK_EQ_INT(told, 1);
    a->close(s);
}

TEST_CASE(weights, what_is_missing_and_what_is_left_over_is_said) {
    const ampc_api *a = tiny_api();
    float data[] = {1, 2, 3, 4, 5, 6, 7, 8};
    ampc_session *s = open_module(&tiny_module);
    const char *path = foreign_file(
        "part", "{" TENSOR_W("0,24") "," TENSOR_B("head", "24,32") "}", data,
        32);
    CHECK_EQ_INT(load_from(s, &path, 1, NULL, 0), AMPC_ERR_FORMAT);
    CHECK_HAS(a->error(s), "2 of 3 tensors are missing, among them "
                           "'b', 'running \"mean\"'");
    CHECK(((float *)cpu_var(s, 0))[1] != 2);
    check_ok(s, load_from(s, &path, 1, NULL, 1));
    CHECK_HAS(a->notice(s), "part: 1 of 3 weights loaded; 2 missing, left as "
                            "they were: 'b', 'running \"mean\"'; 1 tensors are "
                            "not in this module: 'head'");
    CHECK_MEM(cpu_var(s, 0), data, 24);
    path = foreign_file("strange", "{" TENSOR_B("head", "0,8") "}", data, 8);
    CHECK_EQ_INT(load_from(s, &path, 1, NULL, 1), AMPC_ERR_FORMAT);
    CHECK_HAS(a->error(s), "There: 'head'; here: 'w', 'b', ");
    path = foreign_file(
        "counts",
        "{" TENSOR_W("0,24") "," TENSOR_B("b", "24,32") "," TENSOR_MEAN(
            "32,36") ","
                     "\"bn.num_batches_tracked\":{\"dtype\":\"I64\","
                     "\"shape\":[],\"data_offsets\":[36,44]}}",
        "01234567890123456789012345678901234567890123", 44);
    check_ok(s, load_from(s, &path, 1, NULL, 0));
    CHECK_STR(a->notice(s), "");
    a->close(s);
}

TEST_CASE(weights, several_files_and_an_index_of_them) {
    static const char index[] =
        "{\"metadata\":{\"total_size\":36},\"weight_map\":{\"w\":\"one\","
        "\"b\":\"two\",\"running \\\"mean\\\"\":\"two\"}}";
    const ampc_api *a = tiny_api();
    float data[] = {1, 2, 3, 4, 5, 6, 7, 8, 9};
    const char *paths[2] = {
        foreign_file("one", "{" TENSOR_W("0,24") "}", data, 24),
        foreign_file("two",
                     "{" TENSOR_B("b", "0,8") "," TENSOR_MEAN("8,12") "}",
                     data + 6, 12)};
    const char *all = test_tmp("all.index.json");
    REQUIRE(test_write_file(all, index, sizeof index - 1));
    for (int by_index = 0; by_index < 2; by_index++) {
        ampc_session *s = open_module(&tiny_module);
        check_ok(s, load_from(s, by_index ? &all : paths, by_index ? 1 : 2,
                              NULL, 0));
        CHECK_MEM(cpu_var(s, 0), data, 24);
        CHECK_MEM(cpu_var(s, 1), data + 6, 8);
        CHECK_STR(a->notice(s), "");
        a->close(s);
    }
    ampc_session *s = open_module(&tiny_module);
    const char *twice[2] = {paths[0], paths[0]};
    CHECK_EQ_INT(load_from(s, twice, 2, NULL, 1), AMPC_ERR_FORMAT);
    CHECK_HAS(a->error(s), "a second tensor for 'w'");
    static const char *const bad[][2] = {
        {"{\"weight_map\":{\"w\":\"../one\"}}", "names no file beside it"},
        {"{\"weight_map\":{\"w\":\"\"}}", "names no file beside it"},
        {"{\"weight_map\":{\"w\":7}}", "names no file beside it"},
        {"{\"weight_map\":{\"w\":\"none\"}}", "none: No such file"},
        {"{\"weight_map\":{\"w\":\"all.index.json\"}}", "not a safetensors"},
        {"{\"weight_map\":[]}   ", "no weight_map"},
        {"{\"weight_map\":       ", "neither a safetensors file nor JSON"}};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        REQUIRE(test_write_file(all, bad[i][0], strlen(bad[i][0])));
        CHECK(load_from(s, &all, 1, NULL, 1) != AMPC_OK);
        CHECK_HAS(a->error(s), bad[i][1]);
    }
    a->close(s);
}

TEST_CASE(weights, names_are_renamed_by_prefix) {
    const ampc_api *a = tiny_api();
    float data[] = {1, 2, 3, 4, 5, 6, 7, 8};
    ampc_session *s = open_module(&tiny_module);
    const char *path =
        foreign_file("prefix", "{" TENSOR_B("model.b", "0,8") "}", data, 8);
    CHECK_EQ_INT(load_from(s, &path, 1, NULL, 1), AMPC_ERR_FORMAT);
    check_ok(s, load_from(s, &path, 1, "model.=", 1));
    CHECK_MEM(cpu_var(s, 1), data, 8);
    CHECK_EQ_INT(load_from(s, &path, 1, "modl.=", 1), AMPC_ERR_ARGUMENT);
    CHECK_HAS(a->error(s), "renaming 'modl.='");
    CHECK_EQ_INT(load_from(s, &path, 1, "model.", 1), AMPC_ERR_ARGUMENT);
    CHECK_HAS(a->error(s), "is not OLD=NEW");
    path = foreign_file("prefix", "{" TENSOR_B(".b", "0,8") "}", data, 8);
    CHECK_EQ_INT(load_from(s, &path, 1, "=running", 1), AMPC_ERR_FORMAT);
    path = foreign_file("prefix", "{" TENSOR_B("w", "0,8") "}", data, 8);
    CHECK_EQ_INT(load_from(s, &path, 1, NULL, 1), AMPC_ERR_FORMAT);
    CHECK_HAS(
        a->error(s),
        "'w' is f32[2] in the file and f32[3,2] in this module (to leave");
    CHECK_EQ_INT(load_from(s, NULL, 0, NULL, 1), AMPC_ERR_ARGUMENT);
    a->close(s);
}

/* The first fitting one of several renamings counts, and each must fit a
   tensor. */
TEST_CASE(weights, every_renaming_renames) {
    static const struct {
        const char *renames[3], *unused; /* NULL: "b" is found */
    } rows[] = {{{"model.=", "head.="}, "'head.='"},
                {{"head.=", "model.="}, "'head.='"},
                {{"model.b=b", "model.=w.", "run="}, "'model.=w.'"},
                {{"model.b=b", "other=another"}, NULL},
                {{"mod=x", "other=another"}, ""}};
    const ampc_api *a = tiny_api();
    float data[] = {1, 2, 3, 4};
    ampc_session *s = open_module(&tiny_module);
    const char *path = foreign_file(
        "renamed",
        "{" TENSOR_B("model.b", "0,8") "," TENSOR_B("other", "8,16") "}", data,
        sizeof data);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        ampc_weights from = {.size = sizeof from,
                             .paths = &path,
                             .npath = 1,
                             .renames = rows[i].renames,
                             .nrename = rows[i].renames[2] ? 3 : 2,
                             .partial = 1};
        ampc_status status = a->load_weights(s, &from);
        if (!rows[i].unused) {
            check_ok(s, status);
            CHECK_HAS(a->notice(s), "not in this module: 'another'");
            CHECK_MEM(cpu_var(s, 1), data, 8);
        } else if (*rows[i].unused) {
            CHECK_EQ_INT(status, AMPC_ERR_ARGUMENT);
            CHECK_HAS(a->error(s), rows[i].unused);
        } else {
            CHECK_EQ_INT(status, AMPC_ERR_FORMAT);
            CHECK_HAS(a->error(s), "There: 'xel.b', 'another'");
        }
    }
    a->close(s);
}

/* A variable larger than any block in which one is read, written, drawn or
   converted, from files of every width: each number is at its place.        */
TEST_CASE(weights, larger_than_any_block) {
    enum { COUNT = 600011 };
    static const struct {
        const char *file;
        uint32_t from, to;
    } rows[] = {{"F16", AMPC_F16, AMPC_F32},
                {"F64", AMPC_F64, AMPC_F32},
                {"F32", AMPC_F32, AMPC_F32},
                {"F32", AMPC_F32, AMPC_BF16},
                {"BF16", AMPC_BF16, AMPC_F64}};
    const ampc_api *a = tiny_api();
    char header[200];
    char *data = malloc(COUNT * 8), *want = malloc(COUNT * 8);
    PlanVar vars[32];
    uint32_t n = tiny_module.nvar;
    memcpy(vars, tiny_module.vars, n * sizeof *vars);
    AmpcModule m = tiny_module;
    m.vars = vars;
    m.nvar = n + 1;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        size_t each = dtype_bytes(rows[i].from), size = dtype_bytes(rows[i].to);
        vars[n] = (PlanVar){.name = "table",
                            .kind = PLAN_FROZEN,
                            .dtype = rows[i].to,
                            .stored_dtype = rows[i].to,
                            .rank = 1,
                            .dim = {COUNT},
                            .bytes = COUNT * size,
                            .init = -1,
                            .fill = 3};
        for (size_t k = 0; k < COUNT; k++) { /* exact in every width */
            float_put(rows[i].from, (double)(k * 7 % 251), data + k * each);
            float_put(rows[i].to, (double)(k * 7 % 251), want + k * size);
        }
        snprintf(header, sizeof header,
                 "{\"table\":{\"dtype\":\"%s\",\"shape\":[%d],"
                 "\"data_offsets\":[0,%zu]}}",
                 rows[i].file, COUNT, COUNT * each);
        const char *path = foreign_file("table", header, data, COUNT * each);
        const char *saved = test_tmp("table.safetensors");
        ampc_session *s = open_module(&m), *t = open_module(&m);
        char three[8] = {0};
        float_put(rows[i].to, 3, three);
        for (size_t k = 0; k < COUNT; k++)
            if (memcmp((char *)cpu_var(s, n) + k * size, three, size) != 0) {
                CHECK_MSG(0, "element %zu is not filled", k);
                break;
            }
        check_ok(s, load_from(s, &path, 1, NULL, 1));
        CHECK_MEM(cpu_var(s, n), want, COUNT * size);
        check_ok(s, a->save(s, saved));
        check_ok(t, a->resume(t, saved));
        CHECK_MEM(cpu_var(t, n), want, COUNT * size);
        memset(data, 0, COUNT * size);
        ampc_output out =
            ampc_out("table", data, COUNT * size, (ampc_dtype)rows[i].to);
        check_ok(t, a->read_variable(t, "table", &out));
        CHECK_MEM(data, want, COUNT * size);
        check_ok(s, a->save_weights(s, saved));
        memset(cpu_var(t, n), 0, COUNT * size);
        check_ok(t, load_from(t, &saved, 1, NULL, 0));
        CHECK_MEM(cpu_var(t, n), want, COUNT * size);
        a->close(s);
        a->close(t);
    }
    free(data);
    free(want);
}

TEST_CASE(weights, every_axis_counts) {
    static const char wide[] =
        "{\"w\":{\"dtype\":\"F32\",\"shape\":[3,3],\"data_offsets\":[0,36]}}";
    float data[9] = {0};
    const char *path = foreign_file("wide", wide, data, sizeof data);
    ampc_session *s = open_module(&tiny_module);
    CHECK_EQ_INT(load_from(s, &path, 1, NULL, 1), AMPC_ERR_FORMAT);
    CHECK_HAS(tiny_api()->error(s), "'w' is f32[3,3] in the file and f32[3,2]");
    tiny_api()->close(s);
}

TEST_CASE(weights, what_torch_save_writes_is_named) {
    ampc_session *s = open_module(&tiny_module);
    const char *path = test_tmp("model.pt");
    REQUIRE(test_write_file(path, "PK\3\4 and the rest", 17));
    CHECK_EQ_INT(load_from(s, &path, 1, NULL, 1), AMPC_ERR_FORMAT);
    CHECK_HAS(tiny_api()->error(s), "safetensors.torch.save_file");
    tiny_api()->close(s);
}

/* Parameters and buffers, nothing else, and a mark of the format. */
TEST_CASE(weights, saved_alone) {
    const ampc_api *a = tiny_api();
    const char *path = test_tmp("alone.safetensors");
    ampc_session *s = open_module(&tiny_module), *t = open_module(&tiny_other);
    size_t n;
    train(s, 0, 3);
    check_ok(s, a->save_weights(s, path));
    check_ok(t, load_from(t, &path, 1, NULL, 0));
    CHECK_STR(a->notice(t), "");
    CHECK_MEM(cpu_var(s, 0), cpu_var(t, 0), 24);
    char *file = test_read_file(path, &n);
    REQUIRE(file);
    CHECK_HAS(file + 8, "\"format\":\"pt\"},\"w\":");
    CHECK(!memmem(file, n, "ampc.opt", 8) &&
          !memmem(file, n, "graph_hash", 10));
    CHECK_EQ_INT(a->resume(s, path), AMPC_ERR_FORMAT);
    free(file);
    a->close(s);
    a->close(t);
}

static char pattern(uint64_t at) { return (char)(at * 7 % 251); }

static ampc_status get_pattern(ampc_session *s, PlanRef from, void *to,
                               uint64_t bytes) {
    (void)s;
    for (uint64_t i = 0; i < bytes; i++)
        ((char *)to)[i] = pattern(from.offset + i);
    return AMPC_OK;
}

TEST_CASE(checkpoint, a_tensor_is_written_in_parts) {
    enum { BYTES = 700001 };
    const char *path = test_tmp("long.safetensors");
    ampc_session *s = open_module(&tiny_module);
    struct AmpcBackend device = *s->backend;
    const struct AmpcBackend *own = s->backend;
    StItem item = {"long", AMPC_U8, 1, (int64_t[]){BYTES}, 0, BYTES};
    device.get = get_pattern;
    s->backend = &device;
    check_ok(s, st_write(s, path, &item, 1, &(StOutput){"format", "pt", NULL}));
    s->backend = own;
    size_t n = 0, same = 0;
    char *file = test_read_file(path, &n);
    REQUIRE(file && n > BYTES);
    while (same < BYTES && file[n - BYTES + same] == pattern(same)) same++;
    CHECK_EQ_INT(same, BYTES);
    uint64_t header;
    memcpy(&header, file, sizeof header);
    CHECK_EQ_INT(n, sizeof header + header + BYTES);
    free(file);
    tiny_api()->close(s);
}

TEST_CASE(checkpoint, file_is_as_promised) {
    const ampc_api *a = tiny_api();
    const char *path = test_tmp("format.safetensors");
    ampc_session *s = open_module(&tiny_module);
    size_t n;
    train(s, 0, 2);
    check_ok(s, a->save(s, path));
    char *file = test_read_file(path, &n);
    REQUIRE(file);
    uint64_t header;
    memcpy(&header, file, 8);
    CHECK_EQ_INT(header % 8, 0);
    CHECK_EQ_INT(n, 8 + header + 24 + 8 + 24 + 8 + 4);
    file[8 + header] = 0;
    CHECK_HAS(file + 8, "\"w\":{\"dtype\":\"F32\",\"shape\":[3,2],"
                        "\"data_offsets\":[0,24]}");
    CHECK_HAS(file + 8, "\"ampc.opt/w/momentum_buffer\":");
    CHECK_HAS(file + 8, "\"running \\\"mean\\\"\":");
    CHECK_HAS(file + 8, "\\\"scaler\\\":{\\\"scale\\\":1024,\\\"good\\\":2}");
    CHECK_HAS(file + 8, "\\\"rng\\\":{\\\"rng\\\":[");
    CHECK_HAS(file + 8, "\\\"graph_hash\\\":\\\"0000000000001234\\\"");
    char *crc = strstr(file + 8, "\"ampc.crc32\":\"");
    CHECK(crc && crc < strstr(file + 8, "\"ampc\":"));
    free(file);
    CHECK_EQ_INT(test_temporaries(), 0);
    a->close(s);
}

/* A header is UTF-8, or it is none of a safetensors file. */
TEST_CASE(checkpoint, a_cursor_is_utf8) {
    static const char *const wrong[] = {
        "\"caf\xe9\"",          "\"\xc0\x80\"", "\"\xed\xa0\x80\"",
        "\"\xf4\x90\x80\x80\"", "\"\xe2\x82\"", "{\"\xff\":1}"};
    const ampc_api *a = tiny_api();
    const char *path = test_tmp("utf8.safetensors");
    ampc_session *s = open_module(&tiny_module);
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        CHECK_EQ_INT(a->set_cursor(s, wrong[i]), AMPC_ERR_ARGUMENT);
        CHECK_HAS(a->error(s), "no UTF-8");
        CHECK_STR(a->get_cursor(s), "null");
    }
    const char *good = "{ \"at\" :\n\"caf\xc3\xa9 \xf0\x9f\x98\x80\"}";
    check_ok(s, a->set_cursor(s, good));
    check_ok(s, a->save(s, path));
    check_ok(s, a->set_cursor(s, "0"));
    check_ok(s, a->resume(s, path));
    CHECK_STR(a->get_cursor(s), good);
    /* memory of an older module */
    char *old = mem_alloc(s, 7);
    memcpy(old, "\"a\xe9z\"", 6);
    session_take_cursor(s, old);
    check_ok(s, a->save(s, path));
    size_t n;
    char *file = test_read_file(path, &n);
    uint64_t header;
    memcpy(&header, file, 8);
    CHECK(json_is_utf8(file + 8, header));
    free(file);
    check_ok(s, a->resume(s, path));
    CHECK_STR(a->get_cursor(s), "\"a\\u00e9z\"");
    a->close(s);
}

/* ---- the checkpoint before ----------------------------------------------- */

static int64_t steps_of(ampc_session *s) {
    ampc_scaler sc = {.size = sizeof sc};
    check_ok(s, tiny_api()->scaler(s, &sc));
    return sc.step;
}

static void damage(const char *path, const char *good, size_t n, int how) {
    char *copy = malloc(n);
    memcpy(copy, good, n);
    if (how == 0) REQUIRE(test_write_file(path, copy, n - 3));
    if (how == 1) REQUIRE(test_write_file(path, copy, 0));
    copy[n - 3] ^= 4; /* one bit of the data */
    if (how == 2) REQUIRE(test_write_file(path, copy, n));
    if (how == 3) REQUIRE(unlink(path) == 0);
    free(copy);
}

TEST_CASE(checkpoint, a_torn_file_falls_back_and_says_so) {
    static const char *const why[] = {"truncated", "not a safetensors",
                                      "checksum is wrong", "No such file"};
    const ampc_api *a = tiny_api();
    const char *path = test_tmp("torn.safetensors");
    const char *prev = test_tmp("torn.safetensors.prev");
    ampc_session *s = open_module(&tiny_module);
    size_t n;
    train(s, 0, 2);
    check_ok(s, a->save(s, path));
    CHECK(access(prev, F_OK) != 0);
    Snapshot before = snapshot(s);
    train(s, 2, 1);
    check_ok(s, a->save(s, path));
    char *good = test_read_file(path, &n);
    REQUIRE(good);
    for (int how = 0; how < 4; how++) {
        damage(path, good, n, how);
        CHECK(a->load(s, path) != AMPC_OK);
        train(s, 3, 1);
        check_ok(s, a->resume(s, path));
        Snapshot after = snapshot(s);
        check_same(&before, &after);
        CHECK_HAS(a->notice(s), why[how]);
        CHECK_HAS(a->notice(s), "torn.safetensors.prev");
        REQUIRE(test_write_file(path, good, n));
        check_ok(s, a->resume(s, path));
        CHECK_EQ_INT(steps_of(s), 3);
        CHECK_STR(a->notice(s), "");
    }
    damage(path, good, n, 2);
    damage(prev, good, n, 2);
    CHECK_EQ_INT(a->resume(s, path), AMPC_ERR_FORMAT);
    CHECK_HAS(a->error(s), "torn.safetensors: damaged");
    CHECK_EQ_INT(steps_of(s), 3);
    free(good);
    a->close(s);
}

/* A whole file of other programs is a mistake, no accident. */
TEST_CASE(checkpoint, a_foreign_file_does_not_fall_back) {
    const ampc_api *a = tiny_api();
    const char *path = test_tmp("foreign.safetensors");
    ampc_session *s = open_module(&tiny_module), *t = open_module(&tiny_other);
    check_ok(s, a->save(s, path));
    check_ok(t, a->save(t, path));
    CHECK_EQ_INT(a->resume(s, path), AMPC_ERR_FORMAT);
    CHECK_HAS(a->error(s), "another model");
    a->close(s);
    a->close(t);
}

TEST_CASE(checkpoint, every_bit_of_the_data_counts) {
    const ampc_api *a = tiny_api();
    const char *path = test_tmp("bits.safetensors");
    ampc_session *s = open_module(&tiny_module);
    train(s, 0, 2);
    check_ok(s, a->save(s, path));
    size_t n;
    char *file = test_read_file(path, &n);
    REQUIRE(file);
    for (size_t i = 0; i < n; i++) {
        file[i] ^= (char)(1 << i % 8);
        REQUIRE(test_write_file(path, file, n));
        bool ok = a->resume(s, path) != AMPC_OK;
        if (!CHECK_MSG(ok, "byte %zu", i)) break;
        file[i] ^= (char)(1 << i % 8);
    }
    free(file);
    a->close(s);
}

/* ---- hostile files ------------------------------------------------------- */

static uint32_t crc32_slow(const uint8_t *p, size_t n) {
    uint32_t crc = ~0u;
    for (; n--; p++) {
        crc ^= *p;
        for (int k = 0; k < 8; k++)
            crc = crc >> 1 ^ (crc & 1 ? 0xedb88320u : 0);
    }
    return ~crc;
}

/* Makes the checksum right again. */
static void sum(char *file, size_t n) {
    static const char key[] = "\"ampc.crc32\":\"";
    char *at = memmem(file, n, key, sizeof key - 1), digits[9];
    if (!at || (at += sizeof key - 1) + 8 > file + n) return;
    memset(at, '0', 8);
    snprintf(digits, sizeof digits, "%08x",
             (unsigned)crc32_slow((uint8_t *)file, n));
    memcpy(at, digits, 8);
}

typedef struct Victim {
    ampc_session *s;
    Snapshot before;
    const char *path;
    char *good;
    size_t n;
} Victim;

static Victim victim_new(void) {
    const ampc_api *a = tiny_api();
    Victim v = {.s = open_module(&tiny_module),
                .path = test_tmp("hostile.safetensors")};
    unlink(v.path);
    train(v.s, 0, 13);
    check_ok(v.s, a->set_cursor(v.s, "[1,2]"));
    check_ok(v.s, a->save(v.s, v.path));
    unlink(test_tmp("hostile.safetensors.prev"));
    v.good = test_read_file(v.path, &v.n);
    REQUIRE(v.good);
    train(v.s, 13, 1);
    check_ok(v.s, a->set_cursor(v.s, "[3]"));
    v.before = snapshot(v.s);
    return v;
}

static void victim_free(Victim *v) {
    free(v->good);
    tiny_api()->close(v->s);
}

/* Neither load nor resume may take the file or change anything. */
static void refused(Victim *v, const char *data, size_t n, const char *why) {
    const ampc_api *a = tiny_api();
    REQUIRE(test_write_file(v->path, data, n));
    CHECK_EQ_INT(a->resume(v->s, v->path), AMPC_ERR_FORMAT);
    if (why) CHECK_HAS(a->error(v->s), why);
    Snapshot after = snapshot(v->s);
    check_same(&v->before, &after);
}

TEST_CASE(checkpoint, truncated_anywhere) {
    Victim v = victim_new();
    for (size_t n = v.n; n-- > 0;) {
        REQUIRE(truncate(v.path, (off_t)n) == 0);
        if (!CHECK_EQ_INT(tiny_api()->resume(v.s, v.path), AMPC_ERR_FORMAT) ||
            !CHECK_EQ_INT(tiny_api()->load(v.s, v.path), AMPC_ERR_FORMAT))
            break;
    }
    Snapshot after = snapshot(v.s);
    check_same(&v.before, &after);
    REQUIRE(test_write_file(v.path, v.good, v.n - 1));
    CHECK_EQ_INT(tiny_api()->resume(v.s, v.path), AMPC_ERR_FORMAT);
    CHECK_HAS(tiny_api()->error(v.s), "truncated");
    char *longer = calloc(1, v.n + 4);
    memcpy(longer, v.good, v.n);
    refused(&v, longer, v.n + 4, "more data");
    free(longer);
    victim_free(&v);
}

/* Each byte of the header changed, the checksum made right: taken or refused,
   never half of it. */
TEST_CASE(checkpoint, damaged_headers) {
    Victim v = victim_new();
    uint64_t header;
    memcpy(&header, v.good, 8);
    static const char with[] = "\"0{]9-\\\x80";
    char *copy = malloc(v.n);
    int fd = open(v.path, O_WRONLY);
    REQUIRE(fd >= 0 && copy);
    for (size_t i = 0; i < 8 + header; i++) {
        for (size_t k = 0; k + 1 < sizeof with; k++) {
            memcpy(copy, v.good, v.n);
            copy[i] = with[k];
            sum(copy, v.n);
            REQUIRE(pwrite(fd, copy, v.n, 0) == (ssize_t)v.n);
            ampc_status st = tiny_api()->resume(v.s, v.path);
            if (st != AMPC_OK) CHECK_EQ_INT(st, AMPC_ERR_FORMAT);
        }
    }
    REQUIRE(pwrite(fd, v.good, v.n, 0) == (ssize_t)v.n);
    close(fd);
    free(copy);
    check_ok(v.s, tiny_api()->resume(v.s, v.path));
    victim_free(&v);
}

#define SUMMED "{\"__metadata__\":{\"ampc.crc32\":\"00000000\","

/* A file from header text and `data` zero bytes. */
static void craft(Victim *v, const char *header, size_t data, const char *why) {
    char file[4096] = {0};
    uint64_t n = strlen(header);
    memcpy(file, &n, 8);
    memcpy(file + 8, header, n);
    sum(file, 8 + n + data);
    refused(v, file, 8 + n + data, why);
}

TEST_CASE(checkpoint, crafted_files) {
    Victim v = victim_new();
    craft(&v, "[]", 0, "not JSON");
    craft(&v, "{}", 0, "not a checkpoint of ampc");
    craft(&v, "{}", 8, "more data");
    craft(&v, "{\"w\":{\"dtype\":\"F32\",\"shape\":[3,2]}}", 24, "malformed");
    craft(&v,
          "{\"w\":{\"dtype\":\"F32\",\"shape\":[3,2],\"data_offsets\":[0,23]}}",
          24, "malformed entry \"w\"");
    craft(&v,
          "{\"w\":{\"dtype\":\"F32\",\"shape\":[3,2],\"data_offsets\":[0,28]}}",
          28, "malformed entry \"w\"");
    craft(&v,
          "{\"w\":{\"dtype\":\"F32\",\"shape\":[-3,-2],"
          "\"data_offsets\":[0,24]}}",
          24, "malformed");
    craft(&v,
          "{\"w\":{\"dtype\":\"F32\",\"shape\":[4611686018427387904,2],"
          "\"data_offsets\":[0,0]}}",
          0, "malformed");
    craft(&v,
          "{\"w\":{\"dtype\":\"U8\",\"shape\":[9223372036854775807],"
          "\"data_offsets\":[0,9223372036854775807]}}",
          0, "truncated");
    craft(&v,
          "{\"a\":{\"dtype\":\"U8\",\"shape\":[8],\"data_offsets\":[0,8]},"
          "\"b\":{\"dtype\":\"U8\",\"shape\":[8],\"data_offsets\":[4,12]}}",
          12, "overlap");
    craft(&v, "{\"__metadata__\":{\"ampc\":\"{}\"}}", 0, "no checksum");
    craft(&v, "{\"__metadata__\":{\"ampc.crc32\":\"0\"}}", 0, "checksum");
    craft(&v, "{\"__metadata__\":{\"ampc.crc32\":1}}", 0, "checksum");
    craft(&v, SUMMED "\"ampc\":\"{}\"}}", 0, "malformed");
    craft(&v, SUMMED "\"ampc\":\"{\\\"version\\\":3}\"}}", 0, "version 3");
    craft(&v, SUMMED "\"ampc\":7}}", 0, "no metadata");
    victim_free(&v);
}

static void replaced(Victim *v, const char *from, const char *to,
                     const char *why) {
    char *copy = malloc(v->n + 1);
    memcpy(copy, v->good, v->n);
    char *at = memmem(copy, v->n, from, strlen(from));
    REQUIRE(at && strlen(from) == strlen(to));
    memcpy(at, to, strlen(to));
    refused(v, copy, v->n, NULL);
    sum(copy, v->n);
    refused(v, copy, v->n, why);
    free(copy);
}

/* Checkpoints of other graphs, but with the variables of this one. */
TEST_CASE(checkpoint, another_build_may_have_made_it) {
    const ampc_api *a = tiny_api();
    Victim v = victim_new();
    const char *path = test_tmp("build.safetensors");
    char *at = memmem(v.good, v.n, "0000000000001234", 16);
    REQUIRE(at);
    at[15] = '5';
    sum(v.good, v.n);
    REQUIRE(test_write_file(path, v.good, v.n));
    ampc_session *s = open_module(&tiny_module);
    check_ok(s, a->resume(s, path));
    CHECK_HAS(a->notice(s), "made by another build of ampc");
    a->close(s);
    victim_free(&v);
}

/* The good file with another text in its header, and zeros behind its data. */
static ampc_status exchanged(Victim *v, const char *from, const char *to,
                             size_t more) {
    uint64_t header;
    char file[8192] = {0};
    memcpy(&header, v->good, 8);
    const char *at = memmem(v->good, v->n, from, strlen(from));
    REQUIRE(at && v->n + strlen(to) + more + 8 < sizeof file);
    size_t before = (size_t)(at - v->good), n = before + strlen(to);
    size_t rest = (size_t)header + 8 - before - strlen(from);
    memcpy(file, v->good, before);
    memcpy(file + before, to, strlen(to));
    memcpy(file + n, at + strlen(from), rest);
    for (n += rest; n % 8; n++) file[n] = ' ';
    header = n - 8;
    memcpy(file, &header, 8);
    uint64_t former;
    memcpy(&former, v->good, 8);
    memcpy(file + n, v->good + 8 + former, v->n - 8 - former);
    n += v->n - 8 - former + more;
    sum(file, n);
    REQUIRE(test_write_file(v->path, file, n));
    return tiny_api()->resume(v->s, v->path);
}

/* Numbers up to the ends of their types, and nothing of another width. */
TEST_CASE(checkpoint, numbers_of_files_fit_their_types) {
    static const struct {
        const char *from, *to;
        size_t more;
        const char *why; /* NULL: it is taken */
    } rows[] = {
        {"\\\"good\\\":13", "\\\"good\\\":2147483647", 0, NULL},
        {"\\\"good\\\":13", "\\\"good\\\":2147483648", 0, "scaler.good"},
        {"\\\"good\\\":13", "\\\"good\\\":4294967296", 0, "scaler.good"},
        {"\\\"good\\\":13", "\\\"good\\\":-2147483649", 0, "scaler.good"},
        {"[-9007199254740992,-", "[9223372036854775807,-", 0, NULL},
        {"[-9007199254740992,-", "[-9223372036854775808,-", 0, NULL},
        {"[-9007199254740992,-", "[9223372036854775808,-", 0, "rng.rng"},
        {"[-9007199254740992,-", "[-9223372036854775809,-", 0, "rng.rng"},
        {"[-9007199254740992,-", "[1.5,-", 0, "rng.rng"},
        {"\\\"step\\\":13", "\\\"step\\\":9007199254740992", 0, NULL},
        {"\\\"step\\\":13", "\\\"step\\\":9007199254740994", 0, "step"},
        {"\\\"scale\\\":1024", "\\\"scale\\\":3.4e38", 0, NULL},
        {"\\\"scale\\\":1024", "\\\"scale\\\":3.5e38", 0, "scaler.scale"},
        {"F32\",\"shape\":[],\"data_offsets\":[64,68]",
         "F32\",\"shape\":[],\"data_offsets\":[64,68] ", 0, NULL},
        {"F32\",\"shape\":[],\"data_offsets\":[64,68]",
         "F64\",\"shape\":[],\"data_offsets\":[64,72]", 4,
         "is f64[] in the file and f32[]"},
        {"F32\",\"shape\":[],\"data_offsets\":[64,68]",
         "I32\",\"shape\":[],\"data_offsets\":[64,68]", 0,
         "is i32[] in the file and f32[]"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        Victim v = victim_new();
        ampc_status st = exchanged(&v, rows[i].from, rows[i].to, rows[i].more);
        CHECK_MSG(st == (rows[i].why ? AMPC_ERR_FORMAT : AMPC_OK), "%s: %s",
                  rows[i].to, tiny_api()->error(v.s));
        if (rows[i].why) {
            CHECK_HAS(tiny_api()->error(v.s), rows[i].why);
            Snapshot after = snapshot(v.s);
            check_same(&v.before, &after);
        }
        victim_free(&v);
    }
}

TEST_CASE(checkpoint, mismatched_files) {
    Victim v = victim_new();
    replaced(&v, "\"shape\":[3,2]", "\"shape\":[2,3]",
             "'w' is f32[2,3] in the file and f32[3,2]");
    replaced(&v, "\"b\":{\"dtype", "\"c\":{\"dtype", "'c' is unknown");
    replaced(&v, "\\\"good\\\":", "\\\"gold\\\":", "scaler.good");
    replaced(&v, "\\\"step\\\":13", "\\\"step\\\":1x", "malformed");
    replaced(&v, "\\\"tried\\\":13", "\\\"tried\\\":1\\", NULL);
    replaced(&v, "\\\"micro\\\":0", "\\\"micro\\\":7", "micro-steps");
    replaced(&v, "\\\"scale\\\":1024", "\\\"scale\\\":null",
             "has no valid 'scaler.scale'");
    replaced(&v, "\\\"scale\\\":1024", "\\\"scale\\\":-124",
             "'scaler.scale' = -124 cannot be");
    replaced(&v, "\\\"scale\\\":1024", "\\\"scale\\\":0e24",
             "'scaler.scale' = 0e24 cannot be");
    replaced(&v, "\\\"lr\\\":0.100000001", "\\\"lr\\\":1e200000000",
             "'schedule.lr'");
    replaced(&v, "\\\"tried\\\":13", "\\\"tried\\\":-3",
             "'counts.tried' = -3 cannot be");
    /* two numbers where one is missing, or three */
    replaced(&v, "[-9007199254740992,-9007199254740992]",
             "[-9007199254740992                  ]", "has no valid 'rng.rng'");
    replaced(&v, "[-9007199254740992,-9007199254740992]",
             "[-9007199254740992,-90071992547409,2]", "has no valid 'rng.rng'");
    victim_free(&v);
}

TEST_CASE(checkpoint, paths_that_are_no_files) {
    const ampc_api *a = tiny_api();
    ampc_session *s = open_module(&tiny_module);
    const char *fifo = test_tmp("pipe");
    CHECK_EQ_INT(a->load(s, test_tmp("absent")), AMPC_ERR_FILE);
    CHECK_HAS(a->error(s), "absent: No such file");
    CHECK_EQ_INT(a->load(s, test_tmpdir()), AMPC_ERR_FORMAT);
    CHECK_EQ_INT(a->load(s, ""), AMPC_ERR_ARGUMENT);
    CHECK_EQ_INT(a->save(s, NULL), AMPC_ERR_ARGUMENT);
    REQUIRE(mkfifo(fifo, 0600) == 0);
    CHECK_EQ_INT(a->load(s, fifo), AMPC_ERR_FORMAT);
    CHECK_EQ_INT(a->save(s, test_tmp("no/such/folder/x")), AMPC_ERR_FILE);
    CHECK_EQ_INT(a->save(s, "/dev/full/x"), AMPC_ERR_FILE);
    CHECK_EQ_INT(a->set_cursor(s, "{epoch:1}"), AMPC_ERR_ARGUMENT);
    a->close(s);
}

/* ---- what is in the way of a save ---------------------------------------- */

TEST_CASE(checkpoint, a_save_destroys_nothing_of_the_user) {
    const ampc_api *a = tiny_api();
    const char *path = test_tmp("safe.safetensors");
    const char *other = test_tmp("safe.safetensors.tmp");
    ampc_session *s = open_module(&tiny_module);
    struct stat st;
    REQUIRE(test_write_file(other, "mine", 4));
    int fd = open(other, O_RDONLY);
    REQUIRE(flock(fd, LOCK_EX) == 0);
    alarm(20); /* a lock that somebody holds is not waited for */
    check_ok(s, a->save(s, path));
    alarm(0);
    char *text = test_read_file(other, NULL);
    CHECK_STR(text, "mine");
    free(text);
    close(fd);
    const char *fifo = test_tmp("safe.fifo");
    REQUIRE(mkfifo(fifo, 0600) == 0);
    CHECK_EQ_INT(a->save(s, fifo), AMPC_ERR_FILE);
    CHECK_HAS(a->error(s), "not a regular file");
    CHECK(lstat(fifo, &st) == 0 && S_ISFIFO(st.st_mode));
    a->close(s);
}

/* The signal's default action would end the host. */
TEST_CASE(checkpoint, a_limit_on_file_sizes_fails_the_save) {
    const ampc_api *a = tiny_api();
    const char *path = test_tmp("limited.safetensors");
    ampc_session *s = open_module(&tiny_module);
    int status;
    check_ok(s, a->save(s, path));
    pid_t pid = fork();
    REQUIRE(pid >= 0);
    if (pid == 0) {
        struct rlimit l = {100, 100};
        ampc_session *own = open_module(&tiny_module);
        setrlimit(RLIMIT_FSIZE, &l);
        _exit(a->save(own, path) == AMPC_ERR_FILE &&
                      strstr(a->error(own), "File too large")
                  ? 0
                  : 1);
    }
    REQUIRE(waitpid(pid, &status, 0) == pid);
    CHECK_EQ_INT(status, 0);
    check_ok(s, a->resume(s, path));
    CHECK_EQ_INT(test_temporaries(), 0);
    a->close(s);
}

/* ---- killed while saving ------------------------------------------------- */

static void save_forever(const char *path) {
    ampc_session *s = open_module(&tiny_module);
    for (int i = 0;; i++) {
        train(s, i, 1);
        if (tiny_api()->save(s, path) != AMPC_OK) _exit(1);
    }
}

TEST_CASE(checkpoint, survives_kill) {
    const ampc_api *a = tiny_api();
    const char *path = test_tmp("killed.safetensors");
    ampc_session *s = open_module(&tiny_module);
    ampc_scaler sc = {.size = sizeof sc};
    check_ok(s, a->save(s, path));
    int kills = test_slow() ? 1000 : 25;
    for (int i = 0; i < kills; i++) {
        pid_t pid = fork();
        REQUIRE(pid >= 0);
        if (pid == 0) save_forever(path);
        struct timespec t = {0, 3000000 + 700000 * (i % 25) + 1000 * i};
        nanosleep(&t, NULL);
        kill(pid, SIGKILL);
        waitpid(pid, NULL, 0);
        check_ok(s, a->resume(s, path));
        check_ok(s, a->scaler(s, &sc));
        CHECK_EQ_INT(sc.step, sc.tried);
    }
    check_ok(s, a->save(s, path));
    CHECK_EQ_INT(test_temporaries(), 0);
    a->close(s);
}

TEST_CASE(checkpoint, two_writers_of_one_path) {
    const ampc_api *a = tiny_api();
    const char *path = test_tmp("shared.safetensors");
    ampc_session *s = open_module(&tiny_module);
    pid_t pid[2];
    check_ok(s, a->save(s, path));
    for (int i = 0; i < 2; i++)
        if ((pid[i] = fork()) == 0) save_forever(path);
    for (double end = comm_seconds() + 0.5; comm_seconds() < end;)
        if (!CHECK_EQ_INT(a->resume(s, path), AMPC_OK)) break;
    for (int i = 0; i < 2; i++) {
        CHECK_EQ_INT(waitpid(pid[i], NULL, WNOHANG), 0); /* still saving */
        kill(pid[i], SIGKILL);
        waitpid(pid[i], NULL, 0);
    }
    a->close(s);
}

/* ---- the module's own file ----------------------------------------------- */

/* A shared object with a plan of two variables; weights lie in its tail. */
static const char module_source[] =
    "#include \"runtime/program/plan.h\"\n"
    "static const PlanVar vars[] = {\n"
    "  {\"w\", PLAN_PARAM, AMPC_F32, 1, AMPC_F32, {4}, 16, 0, 0},\n"
    "  {\"c\", PLAN_CONST, AMPC_U8, 1, AMPC_U8, {3}, 3, 64, 0}};\n"
    "static const PlanIsa isas[] = {{2, 0, 0, 0}};\n"
    "static const PlanTarget cpu = {0};\n"
    "const AmpcModule plan = {.version = AMPC_PLAN_VERSION, .model = \"m\",\n"
    "  .info = \"{}\", .nvar = 2, .nisa = 1, .vars = vars, .cpu = &cpu,\n"
    "  .isas = isas};\n";

typedef struct Tail {
    uint8_t weights[80];
    PlanSection section[2];
    PlanTail tail;
} Tail;

static Tail tail_new(uint64_t at) {
    Tail t = {.tail = {at + offsetof(Tail, section), 2, 0, AMPC_TAIL_MAGIC}};
    float w[4] = {1, 2, 3, 4};
    memcpy(t.weights, w, sizeof w);
    memcpy(t.weights + 64, "\7\10\11", 3);
    strcpy(t.section[0].name, "model");
    strcpy(t.section[1].name, "weights");
    t.section[1].offset = at;
    t.section[1].bytes = sizeof t.weights;
    t.section[1].crc = crc32_slow(t.weights, sizeof t.weights);
    return t;
}

static ampc_status open_file(const char *image, size_t n, const Tail *t,
                             size_t tail_bytes, char err[300]) {
    static int number;
    char name[40];
    snprintf(name, sizeof name, "module%d.so", number++);
    const char *path = test_tmp(name);
    char *all = malloc(n + sizeof *t);
    memcpy(all, image, n);
    memcpy(all + n, t, tail_bytes);
    REQUIRE(test_write_file(path, all, n + tail_bytes));
    free(all);
    void *lib = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    REQUIRE(lib != NULL);
    const AmpcModule *m = dlsym(lib, "plan");
    ampc_session *s = NULL;
    ampc_status st = tiny_api()->open(tiny_handle(m), NULL, &s, err, 300);
    if (st == AMPC_OK) {
        CHECK(((float *)cpu_var(s, 0))[3] == 4);
        CHECK_MEM(cpu_var(s, 1), "\7\10\11", 3);
    }
    tiny_api()->close(s);
    dlclose(lib);
    return st;
}

/* Loaded by a relative path, opened from another folder. */
static void open_after_chdir(const char *image, size_t n, const Tail *t) {
    char *all = malloc(n + sizeof *t), *home = getcwd(NULL, 0), err[300];
    memcpy(all, image, n);
    memcpy(all + n, t, sizeof *t);
    REQUIRE(test_write_file(test_tmp("relative.so"), all, n + sizeof *t));
    REQUIRE(home && chdir(test_tmpdir()) == 0);
    void *lib = dlopen("./relative.so", RTLD_NOW | RTLD_LOCAL);
    REQUIRE(chdir("/") == 0 && lib);
    ampc_session *s = NULL;
    const AmpcModule *m = dlsym(lib, "plan");
    CHECK_MSG(tiny_api()->open(tiny_handle(m), NULL, &s, err, sizeof err) ==
                  AMPC_OK,
              "%s", err);
    tiny_api()->close(s);
    dlclose(lib);
    CHECK(chdir(home) == 0);
    free(home);
    free(all);
}

TEST_CASE(checkpoint, weights_of_the_module) {
    const char *src = test_tmp("module.c"), *so = test_tmp("module.so");
    char err[300], *out, *image;
    size_t n;
    REQUIRE(test_write_file(src, module_source, sizeof module_source - 1));
    if (test_command(&out, "cc -shared -fPIC -I%s/.. -o %s %s",
                     test_data_path("runtime"), so, src) != 0)
        FAIL("%s", out);
    free(out);
    REQUIRE((image = test_read_file(so, &n)) != NULL);
    Tail t = tail_new(n);
    CHECK_EQ_INT(open_file(image, n, &t, sizeof t, err), AMPC_OK);
    for (size_t cut = 1; cut < sizeof t; cut += 7)
        CHECK_EQ_INT(open_file(image, n, &t, sizeof t - cut, err),
                     AMPC_ERR_FORMAT);
    open_after_chdir(image, n, &t);
    t.weights[5] ^= 1;
    CHECK_EQ_INT(open_file(image, n, &t, sizeof t, err), AMPC_ERR_FORMAT);
    CHECK_HAS(err, "checksum");
    t = tail_new(n);
    t.tail.nsection = UINT64_MAX / 4;
    CHECK_EQ_INT(open_file(image, n, &t, sizeof t, err), AMPC_ERR_FORMAT);
    t = tail_new(n);
    t.tail.directory = UINT64_MAX - 8;
    CHECK_EQ_INT(open_file(image, n, &t, sizeof t, err), AMPC_ERR_FORMAT);
    t = tail_new(n);
    t.section[1].offset = UINT64_MAX - 16;
    CHECK_EQ_INT(open_file(image, n, &t, sizeof t, err), AMPC_ERR_FORMAT);
    t = tail_new(n);
    t.section[1].bytes = 66;
    CHECK_EQ_INT(open_file(image, n, &t, sizeof t, err), AMPC_ERR_FORMAT);
    CHECK_HAS(err, "too short");
    t = tail_new(n);
    memset(t.section[1].name, 'w', sizeof t.section[1].name);
    CHECK_EQ_INT(open_file(image, n, &t, sizeof t, err), AMPC_ERR_FORMAT);
    CHECK_HAS(err, "no section 'weights'");
    free(image);
}
