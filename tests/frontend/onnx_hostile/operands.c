/* SPDX-License-Identifier: Apache-2.0 */
/* operands.c: operands and attributes of operators, and too many nodes. */
#define _GNU_SOURCE
#include <math.h>

#include "tests/frontend/onnx_hostile/onnx_hostile.h"
#include "tests/harness.h"
#include "tests/support/onnx_util.h"

/* ---- operands of operators ----------------------------------------------- */

static void refuse_ints(const char *dims, const char *op, int count,
                        const int64_t *v, const char *why) {
    Made m;
    hostile_start(&m, dims, op, "x,v");
    made_i64(&m, "v", count, v);
    hostile_refuse(&m, why);
}

TEST_CASE(onnx_operands, reshape_and_friends) {
    refuse_ints("6", "Reshape", 2, (int64_t[]){-1, -1}, "two -1");
    refuse_ints("6", "Reshape", 2, (int64_t[]){-1, 4}, "do not divide into 4");
    refuse_ints("6", "Reshape", 1, (int64_t[]){7}, "cannot take a shape of 7");
    refuse_ints("6", "Reshape", 1, (int64_t[]){-2}, "is -2");
    refuse_ints("6", "Reshape", 2, (int64_t[]){6, 0}, "copies a dimension");
    refuse_ints("6", "Reshape", 2, (int64_t[]){INT64_MAX, 3}, "too large");
    refuse_ints("6", "Reshape", 9, (int64_t[]){1, 1, 1, 1, 1, 1, 1, 1, 6},
                "rank 9");
    refuse_ints("6", "Squeeze", 1, (int64_t[]){0}, "is 6, not 1");
    refuse_ints("6", "Squeeze", 1, (int64_t[]){1}, "out of range");
    refuse_ints("6", "Unsqueeze", 1, (int64_t[]){INT64_MIN}, "out of range");
    refuse_ints("6", "Unsqueeze", 2, (int64_t[]){0, 0}, "given twice");
    refuse_ints("6", "Unsqueeze", 9, (int64_t[9]){0}, "at most 8");
    refuse_ints("6", "ReduceSum", 1, (int64_t[]){-2}, "out of range");
    refuse_ints("6", "Expand", 1, (int64_t[]){5}, "does not broadcast");
    refuse_ints("6", "Split", 1, (int64_t[]){5}, "sum to 5, the axis has 6");
    refuse_ints("6", "Tile", 2, (int64_t[]){2, 2}, "2 repeats for rank 1");
    refuse_ints("6", "Pad", 1, (int64_t[]){2}, "1 pads for 1 axes");
    refuse_ints("6", "Pad", 2, (int64_t[]){-4, -4}, "crop more");
    refuse_ints("6", "Pad", 2, (int64_t[]){0, INT64_MIN}, "a pad of");
}

TEST_CASE(onnx_operands, attributes) {
    Made m;
    Onnx__NodeProto *n = hostile_start(&m, "2,3", "Transpose", "x");
    made_ints(&m, n, "perm", 2, (int64_t[]){0, 0});
    hostile_refuse(&m, "not a permutation");
    n = hostile_start(&m, "2,3", "Transpose", "x");
    made_ints(&m, n, "perm", 2, (int64_t[]){0, INT64_MAX});
    hostile_refuse(&m, "not a permutation");
    n = hostile_start(&m, "2,3", "Transpose", "x");
    made_ints(&m, n, "perm", 2, (int64_t[]){1, -1});
    hostile_refuse(&m, "not a permutation");
    n = hostile_start(&m, "2,3", "Transpose", "x");
    made_ints(&m, n, "perm", 2, (int64_t[]){0, INT64_MIN});
    hostile_refuse(&m, "not a permutation");
    n = hostile_start(&m, "2,3", "Softmax", "x");
    made_int(&m, n, "axis", 2);
    hostile_refuse(&m, "axis 2 is out of range for rank 2");
    n = hostile_start(&m, "2,3", "Flatten", "x");
    made_int(&m, n, "axis", INT64_MIN);
    hostile_refuse(&m, "out of range");
    n = hostile_start(&m, "2,3", "LayerNormalization", "x,x");
    made_int(&m, n, "axis", INT64_MAX);
    hostile_refuse(&m, "out of range for rank 2");
    n = hostile_start(&m, "1,1,4,4", "MaxPool", "x");
    made_ints(&m, n, "kernel_shape", 2, (int64_t[]){0, 1});
    hostile_refuse(&m, "kernel_shape[0] is 0");
    n = hostile_start(&m, "1,1,4,4", "MaxPool", "x");
    made_ints(&m, n, "kernel_shape", 2, (int64_t[]){5, 5});
    hostile_refuse(&m, "a window of 5 on 4");
    n = hostile_start(&m, "1,1,4,4", "MaxPool", "x");
    made_ints(&m, n, "kernel_shape", 2, (int64_t[]){2, 2});
    made_ints(&m, n, "strides", 2, (int64_t[]){1, -1});
    hostile_refuse(&m, "strides[1] is -1");
    n = hostile_start(&m, "1,1,4,4", "AveragePool", "x");
    made_ints(&m, n, "kernel_shape", 2, (int64_t[]){2, 2});
    made_ints(&m, n, "pads", 4, (int64_t[]){0, 0, INT64_MAX, 0});
    hostile_refuse(&m, "pads[2]");
    n = hostile_start(&m, "2,3", "Dropout", "x,r");
    made_f32(&m, "r", "", 1);
    hostile_refuse(&m, "a ratio of 1");
    n = hostile_start(&m, "2,3", "Cast", "x");
    made_int(&m, n, "to", INT64_MIN);
    hostile_refuse(&m, "unknown element type");
}

TEST_CASE(onnx_operands, convolution) {
    Made m;
    Onnx__NodeProto *n = hostile_start(&m, "1,4,5,5", "Conv", "x,w");
    made_f32(&m, "w", "6,2,3,3", 0);
    made_int(&m, n, "group", 3);
    hostile_refuse(&m, "3 groups");
    n = hostile_start(&m, "1,4,5,5", "Conv", "x,w");
    made_f32(&m, "w", "6,4,3,3", 0);
    made_ints(&m, n, "dilations", 2, (int64_t[]){0, 1});
    hostile_refuse(&m, "dilations[0] is 0");
    hostile_start(&m, "1,4,5,5", "Conv", "x,w");
    made_f32(&m, "w", "6,4,6,6", 0);
    hostile_refuse(&m, "kernel of f32[6,4,6,6] is larger");
    hostile_start(&m, "1,4,5,5", "Conv", "x,w,b");
    made_f32(&m, "w", "6,4,3,3", 0);
    made_f32(&m, "b", "5", 0);
    hostile_refuse(&m, "bias");
    hostile_start(&m, "1,4", "Conv", "x,w");
    made_f32(&m, "w", "6,4", 0);
    hostile_refuse(&m, "spatial axes");
}

TEST_CASE(onnx_operands, slices_clamp_their_sentinels) {
    static const int64_t starts[] = {INT64_MIN}, ends[] = {INT64_MAX};
    static const int64_t steps[] = {1, -1, INT64_MIN, INT64_MAX, 0};
    static const int64_t want[] = {6, 0, 0, 1, -1};
    for (int i = 0; i < 5; i++) {
        Made m;
        int64_t axis = 0;
        hostile_start(&m, "6", "Slice", "x,s,e,a,t");
        made_i64(&m, "s", 1, starts);
        made_i64(&m, "e", 1, ends);
        made_i64(&m, "a", 1, &axis);
        made_i64(&m, "t", 1, &steps[i]);
        Module *mod = made_import(&m);
        if (want[i] < 0) {
            CHECK(!mod);
            CHECK_HAS(made_message(&m), "a step of 0");
        } else if (CHECK(mod != NULL)) {
            Graph *g = module_graph(mod, "forward");
            CHECK_EQ_INT(value_type(g, g->outputs.data[0].value)->dim[0],
                         want[i]);
        }
        made_end(&m);
    }
}

TEST_CASE(onnx_operands, results_of_a_million_million_elements) {
    refuse_ints("1", "Expand", 2, (int64_t[]){1000000, 1000000}, "more than");
    refuse_ints("1", "Tile", 1, (int64_t[]){1000000000000}, "more than");
    refuse_ints("1", "Tile", 1, (int64_t[]){INT64_MAX}, "more than");
    Made m;
    made_start(&m, 18);
    made_i64(&m, "s", 2, (int64_t[]){1000000, 1000000});
    made_node(&m, "ConstantOfShape", "s", "y");
    made_output(&m, "y");
    hostile_refuse(&m, "more than");
    hostile_start(&m, "100000,1,100000", "Add", "x,w");
    made_f32(&m, "w", "2,1", 0);
    hostile_refuse(&m, "more than");
    int64_t far = 2000000000;
    refuse_ints("4,4", "Pad", 4, (int64_t[]){far, far, far, far}, "large");
}

static void range(Made *m, int64_t a, int64_t b, int64_t step) {
    made_start(m, 18);
    int64_t v[] = {a, b, step};
    const char *names[] = {"a", "b", "c"};
    for (int i = 0; i < 3; i++) made_i64(m, names[i], 1, &v[i])->n_dims = 0;
    made_node(m, "Range", "a,b,c", "y");
    made_output(m, "y");
}

TEST_CASE(onnx_folding, ranges_and_division) {
    Made m;
    range(&m, 0, 10, 0);
    hostile_refuse(&m, "delta is 0");
    range(&m, 0, INT64_MAX, 1);
    hostile_refuse(&m, "too long");
    range(&m, INT64_MIN, INT64_MAX, INT64_MAX);
    CHECK(made_import(&m) != NULL);
    made_end(&m);
    made_start(&m, 18);
    made_i64(&m, "a", 2, (int64_t[]){1, 2});
    made_i64(&m, "b", 2, (int64_t[]){1, 0});
    made_node(&m, "Div", "a,b", "y");
    made_output(&m, "y");
    hostile_refuse(&m, "division by zero");
    made_start(&m, 18);
    made_i64(&m, "a", 1, (int64_t[]){INT64_MIN});
    made_i64(&m, "b", 1, (int64_t[]){-1});
    made_node(&m, "Div", "a,b", "y");
    made_output(&m, "y");
    made_import(&m);
    made_end(&m);
    made_start(&m, 18);
    made_f32(&m, "a", "2", 0)->float_data[0] = NAN;
    m.graph.initializer[0]->float_data[1] = INFINITY;
    made_int(&m, made_node(&m, "Cast", "a", "y"), "to", 7);
    made_output(&m, "y");
    made_import(&m);
    made_end(&m);
}

TEST_CASE(onnx_folding, a_shape_that_depends_on_data) {
    Made m;
    hostile_start(&m, "2,3", "Reshape", "x,s");
    made_input(&m, "s", DT_I64, "2");
    hostile_refuse(
        &m, "its shape must be known at compile time, but 's' depends on data");
}

/* f0 calls f1 twice, f1 calls f2 twice, ...: 2^40 calls of an empty
   function. */
TEST_CASE(onnx_functions, exponential_chains_are_stopped) {
    enum { N = 40 };
    Made m;
    static Onnx__FunctionProto f[N], *fs[N];
    static char *in[] = {"u"}, *out[] = {"v"};
    made_start(&m, 18);
    Onnx__OperatorSetIdProto *opset[] = {&m.opset};
    for (int i = 0; i < N; i++) {
        onnx__function_proto__init(&f[i]);
        fs[i] = &f[i];
        f[i].name = arena_printf(m.a, "f%d", i);
        f[i].domain = "my";
        f[i].opset_import = opset;
        f[i].n_opset_import = f[i].n_input = f[i].n_output = 1;
        f[i].input = in;
        f[i].output = out;
        const char *callee = arena_printf(m.a, "f%d", i + 1);
        if (i < N - 1) {
            made_node(&m, callee, "u", "w")->domain = "my";
            made_node(&m, callee, "w", "v")->domain = "my";
        }
        f[i].node = m.graph.node;
        f[i].n_node = m.graph.n_node;
        m.graph.node = NULL;
        m.graph.n_node = 0;
    }
    made_input(&m, "x", DT_F32, "2");
    made_node(&m, "f0", "x", "y")->domain = "my";
    made_output(&m, "y");
    m.model.functions = fs;
    m.model.n_functions = N;
    hostile_refuse(&m, "function calls");
}

/* ONNX leaves open which of the two a node means. */
TEST_CASE(onnx_functions, named_like_an_op) {
    static const struct {
        const char *name, *domain;
        bool told;
    } rows[] = {
        {"Relu", "", true}, {"Relu", "my", false}, {"Relu6", "", false}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        Made m;
        Onnx__FunctionProto f, *fs[] = {&f};
        Onnx__OperatorSetIdProto *opset[] = {&m.opset};
        static char *in[] = {"u"}, *out[] = {"v"};
        made_start(&m, 17);
        made_input(&m, "x", DT_F32, "2");
        made_node(&m, "Tanh", "u", "v");
        onnx__function_proto__init(&f);
        f.name = made_text(&m, rows[i].name);
        f.domain = made_text(&m, rows[i].domain);
        f.node = m.graph.node;
        f.n_node = m.graph.n_node;
        f.n_opset_import = f.n_input = f.n_output = 1;
        f.opset_import = opset;
        f.input = in;
        f.output = out;
        m.graph.node = NULL;
        m.graph.n_node = 0;
        made_node(&m, f.name, "x", "y")->domain = f.domain;
        made_output(&m, "y");
        m.model.functions = fs;
        m.model.n_functions = 1;
        CHECK(made_import(&m) != NULL);
        bool told = strstr(made_message(&m), "function 'Relu' of the file");
        CHECK_MSG(told == rows[i].told, "row %zu: %s", i, made_message(&m));
        made_end(&m);
    }
}

/* ---- how many nodes ------------------------------------------------------ */

/* Imports nodes without an op: functions of `each` nodes that are called
   `times` times, and `more` nodes. All are counted before the first one is
   read.
 */
static void check_nodes(int times, int each, int more, const char *says) {
    Made m;
    Onnx__FunctionProto f, *fs[] = {&f};
    Onnx__OperatorSetIdProto *opset[] = {&m.opset};
    char name[] = "Many", domain[] = "my", u[] = "u", *in[] = {u};
    made_start(&m, 17);
    made_input(&m, "x", DT_F32, "2");
    for (int i = 0; i < each; i++) made_node(&m, "Relu", "u", "");
    onnx__function_proto__init(&f);
    f.name = name;
    f.domain = domain;
    f.node = m.graph.node;
    f.n_node = m.graph.n_node;
    f.n_opset_import = f.n_input = 1;
    f.opset_import = opset;
    f.input = in;
    m.graph.node = NULL;
    m.graph.n_node = 0;
    made_node(&m, "NoSuchOp", "x", "y");
    for (int i = 0; i < times; i++)
        made_node(&m, "Many", "x", "")->domain = domain;
    for (int i = 0; i < more; i++) made_node(&m, "Relu", "x", "");
    m.model.functions = fs;
    m.model.n_functions = 1;
    made_output(&m, "y");
    hostile_refuse(&m, says);
}

TEST_CASE(onnx_hostile, nodes_are_counted_behind_functions) {
    check_nodes(1023, 1024, 1023, "NoSuchOp");
    check_nodes(1023, 1024, 1024, "more than 1048576 nodes");
}
