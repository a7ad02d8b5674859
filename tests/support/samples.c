/* SPDX-License-Identifier: Apache-2.0 */
/* samples.c: see samples.h. */
#include "tests/support/samples.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "frontend/data/array.h"
#include "tests/support/onnx_util.h"

double samples_random(uint32_t *state) {
    *state = *state * 1664525u + 1013904223u;
    return (double)(*state >> 8) / 16777216.0;
}

void samples_write(const Compiled *c, const char *prefix, int first, int n) {
    ampc_tensor_info t = {.size = sizeof t};
    for (uint32_t i = 0; !c->api->input(c->api->module, "micro", i, &t); i++) {
        StrBuf sb = {0};
        char name[100];
        uint32_t state = i + 1;
        bool whole = t.dtype == AMPC_DTYPE_I64;
        size_t each = t.bytes / (size_t)t.shape[0] / (whole ? 8 : 4);
        t.shape[0] = n;
        npy_header(&sb, t.dtype, t.rank, t.shape);
        for (size_t k = 0; k < (size_t)(first + n) * each; k++) {
            double x = samples_random(&state);
            int64_t class = (int64_t)(5 * x);
            float number = (float)(2 * x - 1);
            if (k < (size_t)first * each) continue;
            sb_putn(&sb, whole ? (char *)&class : (char *)&number,
                    whole ? 8 : 4);
        }
        snprintf(name, sizeof name, "%s.%s.npy", t.name, prefix);
        REQUIRE(test_write_file(test_tmp(name), sb.data, sb.len));
        sb_free(&sb);
    }
}

void samples_write_bad(const Compiled *c) {
    int64_t labels[8] = {0, 1, 2, 77};
    StrBuf sb = {0};
    samples_write(c, "all", 0, 8);
    npy_header(&sb, AMPC_DTYPE_I64, 1, (int64_t[]){8});
    sb_putn(&sb, (char *)labels, sizeof labels);
    REQUIRE(test_write_file(test_tmp("y.all.npy"), sb.data, sb.len));
    sb_free(&sb);
}

void samples_write_inf(const Compiled *c, int n, int where) {
    static const float inf = INFINITY;
    ampc_tensor_info t = {.size = sizeof t};
    char name[100];
    size_t size;
    samples_write(c, "all", 0, n);
    REQUIRE(!c->api->input(c->api->module, "micro", 0, &t) &&
            t.dtype == AMPC_DTYPE_F32);
    snprintf(name, sizeof name, "%s.all.npy", t.name);
    char *data = test_read_file(test_tmp(name), &size);
    size_t each = t.bytes / (size_t)t.shape[0];
    memcpy(data + size - (size_t)(n - where) * each, &inf, sizeof inf);
    REQUIRE(test_write_file(test_tmp(name), data, size));
    free(data);
}

const char *samples_other_mlp(void) {
    static const char before[] = "fc1.weightJ\x80\x06"; /* 768 bytes */
    size_t n, at = 0;
    char *model = test_read_file(test_data_path("tests/onnx/mlp.dyn.onnx"), &n);
    REQUIRE(model != NULL);
    while (at + sizeof before < n &&
           memcmp(model + at, before, sizeof before - 1))
        at++;
    REQUIRE(at + sizeof before < n);
    model[at + sizeof before - 1] ^= 1;
    REQUIRE(test_write_file(test_tmp("mlp.dyn.onnx"), model, n));
    free(model);
    return test_tmp("mlp.dyn.onnx");
}

const char samples_wide_text[] =
    "graph forward(%x: f32[2,67], %y: i64[2]) {\n"
    "  param %u: f32[67,2048] = normal(0, 0.1), %b: f32[2048]\n"
    "  param %w: f32[2048,5] = normal(0, 0.1)\n"
    "  %h = matmul %x, %u : f32[2,2048]\n"
    "  %a = add %h, %b : f32[2,2048]\n"
    "  %r = tanh %a : f32[2,2048]\n"
    "  %z = matmul %r, %w : f32[2,5]\n"
    "  %loss = softmax_cross_entropy %z, %y : f32[]\n"
    "  return loss=%loss\n"
    "}\n";

const char *samples_wide(void) {
    REQUIRE(test_write_file(test_tmp("wide.amp"), samples_wide_text,
                            sizeof samples_wide_text - 1));
    return test_tmp("wide.amp");
}

const char *samples_norm(void) {
    static const char *const names[] = {"scale", "bias", "mean", "var"};
    Made m;
    size_t n;
    made_start(&m, 15);
    made_input(&m, "x", DT_F32, "batch,3");
    for (int i = 0; i < 4; i++) made_f32(&m, names[i], "3", (float)(i % 3));
    made_int(&m,
             made_node(&m, "BatchNormalization", "x,scale,bias,mean,var",
                       "y,mean2,var2"),
             "training_mode", 1);
    made_output(&m, "y");
    uint8_t *bytes = model_pack(&m.model, &n);
    REQUIRE(test_write_file(test_tmp("norm.onnx"), bytes, n));
    free(bytes);
    made_end(&m);
    return test_tmp("norm.onnx");
}
