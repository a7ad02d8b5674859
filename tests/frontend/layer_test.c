/* SPDX-License-Identifier: Apache-2.0 */
/* layer_test.c: an ONNX file as a layer of a model in text. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "frontend/cli/options_text.h"
#include "frontend/frontend.h"
#include "ir/text/text.h"
#include "tests/harness.h"
#include "tests/support/onnx_util.h"

/* layer.onnx in the test's folder: `extra` is appended to y = x w. */
static void write_layer(void (*extra)(Made *m)) {
    Made m;
    size_t n;
    made_start(&m, 17);
    made_input(&m, "x", DT_F32, "n,3");
    made_f32(&m, "fc.weight", "3,3", 1);
    made_node(&m, "MatMul", "x,fc.weight", "y");
    if (extra) extra(&m);
    made_output(&m, "y");
    uint8_t *bytes = model_pack(&m.model, &n);
    FILE *f = fopen(test_tmp("layer.onnx"), "wb");
    REQUIRE(f && fwrite(bytes, 1, n, f) == n && !fclose(f));
    free(bytes);
    made_end(&m);
}

/* The graph of `lines`, or the messages. trips: of --max-trips; may be NULL. */
static void becomes_with(const char *trips, const char *inputs,
                         const char *lines, const char *want) {
    Arena *a = arena_new();
    Diag d = {0};
    Options opt;
    Module *m;
    StrBuf got = {0};
    char path[600];
    bool used;
    Str text = internf("def layer = onnx(\"layer.onnx\")\n"
                       "model m(%s) {\n  %s\n}\n",
                       inputs, lines);
    snprintf(path, sizeof path, "%s", test_tmp("m.amp"));
    options_init(&opt, a);
    if (trips)
        REQUIRE(options_set(&opt, &d, "--max-trips", trips, &used) == OK);
    if (import_amp(a, &d, path, text, strlen(text), &opt, false, &m))
        sb_puts(&got, d.text.data);
    else
        print_module(m, &got);
    CHECK_HAS(got.data, want);
    sb_free(&got);
    sb_free(&d.text);
    arena_free(a);
}

static void becomes(const char *inputs, const char *lines, const char *want) {
    becomes_with(NULL, inputs, lines, want);
}

TEST_CASE(layer, parameters_are_those_of_the_scope) {
    write_layer(NULL);
    becomes("x: f32[2,3]",
            "a = layer(x, scope=\"D\")\n  b = layer(a, scope=\"D\")\n"
            "  c = layer(b)\n  return c",
            "  %a = matmul %x, %D.fc.weight {trans_a=0, trans_b=0} : f32[2,3]\n"
            "  %b = matmul %a, %D.fc.weight {trans_a=0, trans_b=0} : f32[2,3]\n"
            "  %c = matmul %b, %layer.fc.weight {trans_a=0, trans_b=0} : ");
}

TEST_CASE(layer, dimensions_are_those_of_operands) {
    write_layer(NULL);
    becomes("x: f32[5,3], z: f32[7,3]",
            "return a = layer(x, scope=\"L\"), b = layer(z, scope=\"L\")",
            ": f32[7,3]");
    becomes("x: f32[5,4]", "return a = layer(x)",
            ":3:14: error: layer: input 'x' is f32[5,3], the operand "
            "f32[5,4]\n    return a = layer(x)\n               ^\n");
    becomes("x: f32[5]", "return a = layer(x)",
            "error: layer: input 'x' is f32[5,3], the operand f32[5]");
    becomes("x: f32[5,3]", "return a = layer(x, x)",
            "error: 2 operands for 1 inputs");
    becomes("x: f32[5,3]", "return a = layer()",
            "error: 0 operands for 1 inputs");
    becomes("x: f32[5,3]", "a, b = layer(x)\n  return a",
            "3:10: error: layer gives 1 results");
    becomes("x: f32[5,3]", "return a = layer(x, units=2)",
            "3:23: error: layer has no attribute 'units'");
}

static void drop(Made *m) {
    made_node(m, "Dropout", "y,ratio,mode", "dropped");
    static const int64_t on[] = {1};
    made_f32(m, "ratio", "1", 0.5F)->n_dims = 0;
    Onnx__TensorProto *mode = made_i64(m, "mode", 1, on);
    mode->data_type = 9; /* bool */
    mode->n_dims = 0;
    mode->n_int64_data = 0;
    mode->n_int32_data = 1;
    static int32_t yes[] = {1};
    mode->int32_data = yes;
    made_output(m, "dropped");
}

/* Each call draws different numbers, from the module's only random state. */
TEST_CASE(layer, random_numbers_differ) {
    write_layer(drop);
    becomes("x: f32[2,3]",
            "y, a = layer(x, scope=\"L\")\n  y, b = layer(x, scope=\"L\")\n"
            "  return c = a + b",
            "%y.2 = dropout %b, %ampc.rng {salt=1} : f32[2,3]\n");
}

static void normalise(Made *m) {
    static const char *const vars[] = {"bn.weight", "bn.bias",
                                       "bn.running_mean", "bn.running_var"};
    for (int i = 0; i < 4; i++) made_f32(m, vars[i], "3", 1);
    Onnx__NodeProto *n = made_node(
        m, "BatchNormalization",
        "y,bn.weight,bn.bias,bn.running_mean,bn.running_var", "z,m,v");
    made_int(m, n, "training_mode", 1);
    made_output(m, "z");
}

TEST_CASE(layer, running_statistics_are_written_once) {
    write_layer(normalise);
    becomes("x: f32[2,3]", "y, a = layer(x, scope=\"L\")\n  return a",
            "  write %L.bn.running_mean = ");
    becomes("x: f32[2,3]",
            "y, a = layer(x, scope=\"L\")\n"
            "  y, b = layer(x, scope=\"L\")\n  return a",
            ":4:10: error: 'L.bn.running_mean' is already written");
}

/* A loop that negates y while its elements are above 0. */
static void turns(Made *m) {
    static Made body;
    made_start(&body, 17);
    made_input(&body, "i", DT_I64, "");
    made_input(&body, "go", DT_BOOL, "");
    made_input(&body, "h", DT_F32, "n,3");
    made_node(&body, "Neg", "h", "next");
    made_node(&body, "ReduceMax", "next", "top");
    made_node(&body, "Greater", "top,zero", "more");
    made_output(&body, "more");
    made_output(&body, "next");
    made_f32(m, "zero", "", 0);
    Onnx__NodeProto *n = made_node(m, "Loop", ",,y", "last");
    n->name = made_text(m, "turning");
    made_attr(m, n, "body", ONNX__ATTRIBUTE_PROTO__ATTRIBUTE_TYPE__GRAPH)->g =
        &body.graph;
    made_output(m, "last");
}

TEST_CASE(layer, bounds_of_turns) {
    static const char line[] = "y, a = layer(x)\n  return a";
    write_layer(turns);
    becomes("x: f32[2,3]", line, "its number of trips depends on data");
    becomes_with("2", "x: f32[2,3]", line, " = neg ");
    becomes_with("turn*=2", "x: f32[2,3]", line, " = neg ");
    becomes_with("other=2", "x: f32[2,3]", line,
                 "its number of trips depends on data");
    write_layer(NULL);
    becomes_with("other=2", "x: f32[2,3]", "return a = layer(x)",
                 "--max-trips other: no loop of that name");
    becomes_with("2", "x: f32[2,3]", "return a = layer(x)",
                 "--max-trips: no loop of the model");
}

TEST_CASE(layer, files_that_are_none) {
    remove(test_tmp("layer.onnx"));
    becomes("x: f32[2,3]", "return a = layer(x)", "error: No such file");
    FILE *f = fopen(test_tmp("layer.onnx"), "wb");
    REQUIRE(f && fputs("no model", f) >= 0 && !fclose(f));
    becomes("x: f32[2,3]", "return a = layer(x)",
            ":3:14: error: layer: the file cannot be this layer");
}
