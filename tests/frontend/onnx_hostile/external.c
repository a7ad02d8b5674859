/* SPDX-License-Identifier: Apache-2.0 */
/* external.c: tensors in files beside the model. */
#define _GNU_SOURCE
#include <limits.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "runtime/files/outfile.h"
#include "tests/frontend/onnx_hostile/onnx_hostile.h"
#include "tests/harness.h"
#include "tests/support/onnx_util.h"

/* ---- external data ------------------------------------------------------- */

/* w: f32[2] at `location`, relative to the model. */
static Onnx__TensorProto *with_external(Made *m, const char *location,
                                        const char *offset,
                                        const char *length) {
    Onnx__TensorProto *t = with_weight(m, "2");
    t->n_float_data = 0;
    t->has_data_location = 1;
    t->data_location = ONNX__TENSOR_PROTO__DATA_LOCATION__EXTERNAL;
    if (location)
        made_metadata(m, &t->external_data, &t->n_external_data, "location",
                      location);
    if (offset)
        made_metadata(m, &t->external_data, &t->n_external_data, "offset",
                      offset);
    if (length)
        made_metadata(m, &t->external_data, &t->n_external_data, "length",
                      length);
    return t;
}

static const char *data_file(void) {
    float v[] = {7, 1, 2, 3};
    static char path[PATH_MAX];
    snprintf(path, sizeof path, "%s/w.data", test_tmpdir());
    REQUIRE(test_write_file(path, v, sizeof v));
    return path;
}

TEST_CASE(onnx_external, is_read_from_beside_the_model) {
    Made m;
    data_file();
    Onnx__TensorProto *t = with_external(&m, "w.data", "4", "8");
    made_metadata(&m, &t->external_data, &t->n_external_data, "checksum",
                  "ae7f4eb8c5aa6be4c55fbd2e1ab6c2fd21e6aca5");
    CHECK(made_import(&m) == NULL);
    CHECK_HAS(made_message(&m), "checksum");
    t->n_external_data--;
    Module *mod = made_import(&m);
    REQUIRE(mod != NULL);
    const Var *w = var_named(mod, "w");
    REQUIRE(w != NULL);
    CHECK_NEAR(((const float *)w->init->data)[1], 2, 0);
    made_end(&m);
}

TEST_CASE(onnx_external, a_pointer_in_the_datas_place_is_refused) {
    static const char *const lengths[] = {"8", NULL};
    static const char pointer[] =
        "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a2146\n";
    for (int i = 0; i < 2; i++) {
        Made m;
        REQUIRE(test_write_file(data_file(), pointer, sizeof pointer - 1));
        with_external(&m, "w.data", "0", lengths[i]);
        hostile_refuse(&m, "'w.data' is a pointer of Git LFS, not the file "
                           "itself: git lfs pull");
    }
}

/* A tensor may end where the file ends, and be empty there. */
TEST_CASE(onnx_external, the_end_of_the_file) {
    static const struct {
        int64_t dim;
        const char *offset, *why;
    } rows[] = {{2, "8", NULL},
                {2, "9", "offset 9 + 8 bytes is past the end"},
                {0, "16", NULL},
                {0, "17", "offset 17 + 0 bytes is past the end"}};
    data_file();
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        Made m;
        Onnx__TensorProto *t =
            with_external(&m, "w.data", rows[i].offset, NULL);
        t->dims[0] = rows[i].dim;
        m.graph.input[0]->type->tensor_type->shape->dim[0]->dim_value =
            rows[i].dim;
        if (rows[i].why) {
            hostile_refuse(&m, rows[i].why);
            continue;
        }
        Module *mod = made_import(&m);
        REQUIRE(mod != NULL);
        const float *w = mod->vars.data[module_find_var(mod, "w")].init->data;
        if (rows[i].dim) CHECK(w[0] == 2 && w[1] == 3);
        made_end(&m);
    }
}

TEST_CASE(onnx_external, no_output_is_read) {
    Made m;
    char why[160];
    with_external(&m, "w.data", "4", "8");
    m.opt.guard = file_guard_new();
    REQUIRE(file_guard_claim(m.opt.guard, data_file(), "--report", why));
    CHECK(made_import(&m) == NULL);
    CHECK_HAS(made_message(&m), "--report would overwrite the model's data");
    file_guard_free(m.opt.guard);
    made_end(&m);
}

TEST_CASE(onnx_external, the_right_checksum_passes) {
    Made m;
    char *sum;
    int rc = test_command(&sum, "sha1sum '%s'", data_file());
    if (rc) SKIP("no sha1sum");
    sum[40] = 0;
    Onnx__TensorProto *t = with_external(&m, "w.data", NULL, NULL);
    made_metadata(&m, &t->external_data, &t->n_external_data, "checksum", sum);
    CHECK_MSG(made_import(&m) != NULL, "%s", made_message(&m));
    free(sum);
    made_end(&m);
}

TEST_CASE(onnx_external, locations_that_escape) {
    Made m;
    char path[PATH_MAX];
    data_file();
    const char *bad[][2] = {{"/etc/passwd", "is absolute"},
                            {"../w.data", "leaves the folder"},
                            {"a/../../w.data", "leaves the folder"},
                            {"a/../w.data", "leaves the folder"},
                            {"a\\..\\w.data", "backslash"},
                            {"a//w.data", "empty component"},
                            {"", "is empty"},
                            {"missing.data", "No such file"}};
    for (int i = 0; i < 8; i++) {
        with_external(&m, bad[i][0], NULL, NULL);
        hostile_refuse(&m, bad[i][1]);
    }
    with_external(&m, NULL, NULL, NULL);
    hostile_refuse(&m, "has no location");
    snprintf(path, sizeof path, "%s/link.data", test_tmpdir());
    REQUIRE(symlink("w.data", path) == 0);
    with_external(&m, "link.data", NULL, NULL);
    hostile_refuse(&m, "not a plain file");
    snprintf(path, sizeof path, "%s/dir", test_tmpdir());
    REQUIRE(symlink("/usr", path) == 0);
    with_external(&m, "dir/w.data", NULL, NULL);
    hostile_refuse(&m, "not a plain file");
    snprintf(path, sizeof path, "%s/pipe", test_tmpdir());
    REQUIRE(mkfifo(path, 0600) == 0);
    with_external(&m, "pipe", NULL, NULL);
    hostile_refuse(&m, "not a regular file");
    snprintf(path, sizeof path, "%s/folder", test_tmpdir());
    REQUIRE(mkdir(path, 0700) == 0);
    with_external(&m, "folder", NULL, NULL);
    hostile_refuse(&m, "not a regular file");
}

TEST_CASE(onnx_external, numbers) {
    Made m;
    data_file();
    with_external(&m, "w.data", "9", NULL);
    hostile_refuse(&m, "past the end");
    with_external(&m, "w.data", "9223372036854775807", NULL);
    hostile_refuse(&m, "past the end");
    with_external(&m, "w.data", "99999999999999999999", NULL);
    hostile_refuse(&m, "is not a number");
    with_external(&m, "w.data", "-4", NULL);
    hostile_refuse(&m, "is not a number");
    with_external(&m, "w.data", "0x4", NULL);
    hostile_refuse(&m, "is not a number");
    with_external(&m, "w.data", "0", "12");
    hostile_refuse(&m, "needs 8 bytes, but 'w.data' gives length 12");
    Onnx__TensorProto *t = with_external(&m, "w.data", "0", "8");
    t->n_float_data = 2;
    hostile_refuse(&m, "both external and inline");
    t = with_external(&m, "w.data", "0", "8");
    t->n_double_data = 1, t->double_data = &(double){1};
    hostile_refuse(&m, "both external and inline");
    t = with_external(&m, "w.data", "0", "8");
    t->n_int32_data = 1, t->int32_data = &(int32_t){1};
    hostile_refuse(&m, "both external and inline");
    t = with_external(&m, "w.data", "0", "8");
    t->n_int64_data = 1, t->int64_data = &(int64_t){1};
    hostile_refuse(&m, "both external and inline");
    t = with_external(&m, "w.data", "0", "8");
    t->n_uint64_data = 1, t->uint64_data = &(uint64_t){1};
    hostile_refuse(&m, "both external and inline");
    t = with_external(&m, "w.data", "0", "8");
    t->has_raw_data = 1, t->raw_data = (ProtobufCBinaryData){1, (uint8_t *)"a"};
    hostile_refuse(&m, "both external and inline");
}
