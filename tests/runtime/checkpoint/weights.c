/* SPDX-License-Identifier: Apache-2.0 */
/* weights.c: weights from other programs, and files of weights alone. */
#define _GNU_SOURCE
#include "tests/runtime/checkpoint/saved.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

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

/* 2.5, -0.75 and 2^100 are exact in every width that can represent them. */
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
    ampc_session *s = open_module(&tiny_module, 1);
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

/* Dtypes that the format allows and ampc does not: they matter only if a
   wanted tensor has one. */
TEST_CASE(weights, dtypes_that_are_not_read) {
    static const char *const dtypes[] = {"C64", "F4", "F6_E2M3"};
    char header[400], data[40 + 24] = {0};
    ampc_session *s = open_module(&tiny_module, 1);
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
    ampc_session *s = open_module(&tiny_module, 1);
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

/* A refused load does not report tensors as loaded. */
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
    ampc_session *s = open_module(&tiny_module, 1);
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
        ampc_session *s = open_module(&tiny_module, 1);
        check_ok(s, load_from(s, by_index ? &all : paths, by_index ? 1 : 2,
                              NULL, 0));
        CHECK_MEM(cpu_var(s, 0), data, 24);
        CHECK_MEM(cpu_var(s, 1), data + 6, 8);
        CHECK_STR(a->notice(s), "");
        a->close(s);
    }
    ampc_session *s = open_module(&tiny_module, 1);
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
        {"version https://git-lfs.github.com/spec/v1\n",
         "a pointer of Git LFS, not the file itself: git lfs pull"},
        {"<!doctype html>\n", "a web page about the file"},
        {"<html>", "a web page about the file"},
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
    ampc_session *s = open_module(&tiny_module, 1);
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

/* The first matching renaming counts, and each must match a tensor. */
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
    ampc_session *s = open_module(&tiny_module, 1);
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

/* A variable larger than any block in which variables are read, written,
   drawn or converted, from files of every width: each number is at its
   position. */
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
        ampc_session *s = open_module(&m, 1), *t = open_module(&m, 1);
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
    ampc_session *s = open_module(&tiny_module, 1);
    CHECK_EQ_INT(load_from(s, &path, 1, NULL, 1), AMPC_ERR_FORMAT);
    CHECK_HAS(tiny_api()->error(s), "'w' is f32[3,3] in the file and f32[3,2]");
    tiny_api()->close(s);
}

TEST_CASE(weights, what_torch_save_writes_is_named) {
    ampc_session *s = open_module(&tiny_module, 1);
    const char *path = test_tmp("model.pt");
    REQUIRE(test_write_file(path, "PK\3\4 and the rest", 17));
    CHECK_EQ_INT(load_from(s, &path, 1, NULL, 1), AMPC_ERR_FORMAT);
    CHECK_HAS(tiny_api()->error(s), "safetensors.torch.save_file");
    tiny_api()->close(s);
}

/* Parameters and buffers only, and the format's mark. */
TEST_CASE(weights, saved_alone) {
    const ampc_api *a = tiny_api();
    const char *path = test_tmp("alone.safetensors");
    ampc_session *s = open_module(&tiny_module, 1),
                 *t = open_module(&tiny_other, 1);
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
