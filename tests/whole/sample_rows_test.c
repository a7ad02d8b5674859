/* SPDX-License-Identifier: Apache-2.0 */
/* sample_rows_test.c: which outputs have a row (or several) for each sample.
   The oracle is the model's text: sizes are such that the first axis of each
   output is a multiple of the batch, whatever it stands for. */
#include <dlfcn.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/on_device.h"

enum { BATCH = 4, IN = 8 };

#define MODEL                                                                  \
    "dim B = 4\n"                                                              \
    "model net(x: f32[B,8]) {\n"                                               \
    "  param w: f32[8,3] = normal(1)\n"                                        \
    "  param v: f32[4,8] = normal(1)\n"                                        \
    "  y = matmul(x, w)\n"                                                     \
    "  t = transpose(x, perm=[1,0])\n"                                         \
    "  return y = y, w = 2 * w, t = t,\n"                                      \
    "         two = concat(x, -x, axis=0), halves = reshape(x, "               \
    "shape=[B*2,4]),\n"                                                        \
    "         total = sum(y), sums = sum(x, axes=0), gram = matmul(t, x), "    \
    "more = concat(x, v, axis=0),\n"                                           \
    "         same = matmul(x, transpose(x, perm=[1,0]))\n}\n"

static const struct {
    const char *name;
    int64_t sample_rows, floats; /* of the whole, or of one sample */
} outputs[] = {
    {"y", 1, 3},      {"w", -1, 24},   {"t", 0, 32},   {"two", 0, 64},
    {"halves", 2, 8}, {"total", 0, 1}, {"sums", 0, 8}, {"gram", 0, 64},
    {"more", 0, 64},  {"same", 1, 4},
};
enum { OUTPUTS = sizeof outputs / sizeof *outputs };

static void fill(float *x, int n) {
    for (int i = 0; i < n; i++) x[i] = sinf((float)i);
}

TEST_CASE(sample_rows, of_each_output) {
    Compiled c = compile_text(
        MODEL, "--loss none --batch-sizes 2 --target cpu:x86-64-v2 ");
    static const char *const programs[] = {"predict", "predict@2"};
    for (int p = 0; p < 2; p++)
        for (uint32_t i = 0; i < OUTPUTS; i++) {
            ampc_tensor_info t = {.size = sizeof t};
            REQUIRE(!c.api->output(c.api->module, programs[p], i, &t));
            CHECK_STR(t.name, outputs[i].name);
            CHECK_MSG(t.sample_rows == outputs[i].sample_rows,
                      "%s of %s: %lld rows", t.name, programs[p],
                      (long long)t.sample_rows);
        }
    ampc_tensor_info in = {.size = sizeof in};
    REQUIRE(!c.api->input(c.api->module, "predict", 0, &in));
    CHECK_EQ_INT(in.sample_rows, 1);
    compiled_close(&c);
}

/* A module of predictions alone is made of the kept text of a pass. */
TEST_CASE(sample_rows, of_an_exported_module) {
    Compiled c = compile_text(MODEL, "--loss none --target cpu:x86-64-v2 ");
    const char *path = test_tmp("small.so");
    char *out, err[300];
    void *handle;
    int rc = test_command(&out, "'%s' export '%s' --module -o '%s'",
                          test_ampc(), c.path, path);
    REQUIRE(CHECK_MSG(rc == 0, "%s", out));
    free(out);
    const ampc_api *api = ampc_load(path, &handle, err, sizeof err);
    REQUIRE(CHECK_MSG(api != NULL, "%s", err));
    for (uint32_t i = 0; i < OUTPUTS; i++) {
        ampc_tensor_info t = {.size = sizeof t};
        REQUIRE(!api->output(api->module, "predict", i, &t));
        CHECK_MSG(t.sample_rows == outputs[i].sample_rows, "%s: %lld rows",
                  t.name, (long long)t.sample_rows);
    }
    dlclose(handle);
    compiled_close(&c);
}

/* What belongs to the whole batch is given whole. */
TEST_CASE(sample_rows, of_a_part_of_a_batch) {
    Compiled c = compile_text(MODEL, "--loss none --target cpu:x86-64-v2 ");
    ampc_session *s = open_threads(&c, 1);
    float x[BATCH * IN], whole[OUTPUTS][64], part[OUTPUTS][64];
    ampc_output out[OUTPUTS];
    fill(x, BATCH * IN);
    for (int valid = BATCH; valid >= 1; valid -= 3)
        for (int i = 0; i < OUTPUTS; i++) {
            float *to = valid == BATCH ? whole[i] : part[i];
            ampc_input in = ampc_in("x", x, sizeof x, AMPC_DTYPE_F32);
            memset(to, 0, sizeof whole[i]);
            out[i] =
                ampc_out(outputs[i].name, to, sizeof whole[i], AMPC_DTYPE_F32);
            CHECK_EQ_INT(c.api->predict(s, &in, 1, valid, &out[i], 1), AMPC_OK);
        }
    for (int i = 0; i < OUTPUTS; i++) {
        int64_t n = outputs[i].floats;
        CHECK_MSG(!memcmp(whole[i], part[i], (size_t)n * sizeof(float)),
                  "'%s' of one sample differs", outputs[i].name);
        for (int64_t k = n; k < 64; k++)
            CHECK_MSG(part[i][k] == 0, "'%s': element %lld is written",
                      outputs[i].name, (long long)k);
    }
    c.api->close(s);
    compiled_close(&c);
}

/* Seven samples in two batches: outputs of samples are joined, and what depends
   on no sample is given. */
TEST_CASE(sample_rows, of_more_than_a_batch) {
    Compiled c = compile_text(MODEL, "--loss none --target cpu:x86-64-v2 ");
    ampc_session *s = open_threads(&c, 1);
    enum { N = 7 };
    float x[N * IN], to[64];
    fill(x, N * IN);
    ampc_input in = ampc_in("x", x, sizeof x, AMPC_DTYPE_F32);
    for (int i = 0; i < OUTPUTS; i++) {
        ampc_output out =
            ampc_out(outputs[i].name, to, sizeof to, AMPC_DTYPE_F32);
        ampc_status status = c.api->predict(s, &in, 1, N, &out, 1);
        if (outputs[i].sample_rows) {
            CHECK_EQ_INT(status, AMPC_OK);
            continue;
        }
        CHECK_EQ_INT(status, AMPC_ERR_ARGUMENT);
        CHECK_HAS(c.api->error(s), outputs[i].name);
        CHECK_HAS(c.api->error(s), "is of a whole batch, not of samples");
    }
    ampc_output halves = ampc_out("halves", to, sizeof x, AMPC_DTYPE_F32);
    CHECK_EQ_INT(c.api->predict(s, &in, 1, N, &halves, 1), AMPC_OK);
    CHECK(!memcmp(to, x, sizeof x));
    c.api->close(s);
    compiled_close(&c);
}
