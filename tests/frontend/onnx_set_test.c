/* SPDX-License-Identifier: Apache-2.0 */
/* onnx_set_test.c: --set: inputs whose numbers are known when the model is
   compiled, and messages that ask for it. */
#include <math.h>
#include <string.h>

#include "passes/options.h"
#include "tests/harness.h"
#include "tests/support/onnx_util.h"

enum { MOST = 4 };

static SetNumber number(double v) {
    return (SetNumber){v, fabs(v) < 1e15 ? (int64_t)v : 0,
                       fabs(v) < 1e15 && v == floor(v)};
}

static void set(Made *m, const char *name, int n, const double *v) {
    InputValue x = {.name = intern(name)};
    for (int i = 0; i < n; i++) {
        SetNumber s = number(v[i]);
        vec_push(m->a, &x.numbers, s);
    }
    vec_push(m->a, &m->opt.set_inputs, x);
}

/* Imports the model: NULL where it is refused. */
static const Graph *imported(Made *m) {
    m->opt.objectives.data[0].loss.kind = LOSS_NONE;
    Module *mod = made_import(m);
    return mod ? mod->graphs.data[0] : NULL;
}

/* ---- lists --------------------------------------------------------------- */

typedef struct SetRow {
    const char *dims; /* of input k, an i64 */
    int n;
    double v[MOST];
    const char *shape; /* ReduceSum(x: f32[2,3,4], k), or the message */
} SetRow;

static void sums(Made *m, const char *dims) {
    made_start(m, 17);
    made_input(m, "x", DT_F32, "2,3,4");
    made_input(m, "k", DT_I64, dims);
    made_int(m, made_node(m, "ReduceSum", "x,k", "y"), "keepdims", 0);
    made_output(m, "y");
}

TEST_CASE(onnx_set, lists_of_axes) {
    static const SetRow rows[] = {
        {"1", 1, {1}, "2,4"},
        {"2", 2, {0, 2}, "3"},
        {"2", 2, {-1, 0}, "3"},
        {"?", 2, {0, 1}, "4"},
        {"n", 3, {0, 1, 2}, ""},
        {"?", 1, {2}, "2,3"},
        {"2", 1, {1}, "axis 1 is given twice"},
        {"2", 3, {0, 1, 2}, "--set k: 3 numbers for an input of 2 elements"},
        {"2", 2, {0, 0.5}, "--set k: the input's type, i64, cannot hold 0.5"},
        {"2", 2, {0, 1e300}, "the input's type, i64, cannot hold 1"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        Made m;
        char dims[64] = "";
        sums(&m, rows[i].dims);
        set(&m, "k", rows[i].n, rows[i].v);
        const Graph *g = imported(&m);
        if (!g) {
            CHECK_HAS(made_message(&m), rows[i].shape);
        } else {
            const Type *t = value_type(g, g->outputs.data[0].value);
            CHECK_EQ_INT(g->inputs.len, 1);
            for (int d = 0; d < t->rank; d++)
                sprintf(dims + strlen(dims), "%s%d", d ? "," : "",
                        (int)t->dim[d]);
            CHECK_STR(dims, rows[i].shape);
        }
        made_end(&m);
    }
}

/* ---- types --------------------------------------------------------------- */

TEST_CASE(onnx_set, numbers_of_each_type) {
    static const struct {
        DType d;
        double v;
        bool taken;
    } rows[] = {
        {DT_U8, 255, true},          {DT_U8, 256, false},
        {DT_U8, -1, false},          {DT_I8, -128, true},
        {DT_I8, 128, false},         {DT_I32, 2147483647, true},
        {DT_I32, 2147483648, false}, {DT_U32, 4294967295, true},
        {DT_U64, -1, false},         {DT_I64, -1, true},
        {DT_BOOL, 1, true},          {DT_BOOL, 2, false},
        {DT_F16, 65504, true},       {DT_F16, 1e10, false},
        {DT_F32, 1e38, true},        {DT_F32, 1e39, false},
        {DT_F32, INFINITY, true},    {DT_F64, 1e300, true},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        Made m;
        Arena *a = arena_new();
        Diag d = {0};
        made_start(&m, 17);
        made_input(&m, "x", DT_F64, "2");
        made_input(&m, "n", rows[i].d, "2");
        made_int(&m, made_node(&m, "Cast", "n", "c"), "to", 11);
        made_node(&m, "Add", "x,c", "y");
        made_output(&m, "y");
        set(&m, "n", 1, &rows[i].v);
        const Graph *g = imported(&m);
        CHECK_MSG(!g == !rows[i].taken, "row %zu", i);
        if (g) {
            Evaluator *e = eval_new(g, a, EVAL_EXACT);
            ValueId x = graph_input_named(g, "x");
            eval_bind(e, x, eval_tensor_new(a, value_get(g, x)->type));
            REQUIRE(CHECK(eval_run(e, &d) == OK));
            const EvalTensor *y = eval_get(e, g->outputs.data[0].value);
            double want = rows[i].d == DT_F32 ? (float)rows[i].v : rows[i].v;
            CHECK_MSG(y->f[0] == want && y->f[1] == want, "%g", y->f[0]);
        } else {
            CHECK_HAS(made_message(&m), "cannot hold");
        }
        arena_free(a);
        made_end(&m);
    }
}

TEST_CASE(onnx_set, names_that_no_input_has) {
    static const double one = 1;
    Made m;
    sums(&m, "1");
    set(&m, "kk", 1, &one);
    CHECK(!imported(&m));
    CHECK_HAS(made_message(&m),
              "--set kk: the model has no such input; did you mean 'k'?");
    made_end(&m);
}

/* ---- messages ------------------------------------------------------------ */

TEST_CASE(onnx_set, refusals_name_the_input) {
    Made m;
    sums(&m, "2");
    CHECK(!imported(&m));
    CHECK_HAS(made_message(&m),
              "its axes must be known at compile time, but 'k' depends on "
              "data; if it is the same in every call, compile with --set "
              "k=N,N");
    made_end(&m);
}

/* Behind a cast, too; no input of many elements. */
TEST_CASE(onnx_set, refusals_name_what_the_operand_is_computed_from) {
    for (int few = 0; few < 2; few++) {
        Made m;
        made_start(&m, 17);
        made_input(&m, "x", DT_F32, "100");
        made_input(&m, "s", DT_I32, few ? "2" : "100");
        made_int(&m, made_node(&m, "Cast", "s", "c"), "to", 7);
        made_node(&m, "Reshape", "x,c", "y");
        made_output(&m, "y");
        CHECK(!imported(&m));
        CHECK_HAS(made_message(&m), "but 'c' depends on data");
        CHECK_EQ_INT(strstr(made_message(&m), "--set s=N,N") != NULL, few);
        CHECK_EQ_INT(strstr(made_message(&m), "--set") != NULL, few);
        made_end(&m);
    }
}
