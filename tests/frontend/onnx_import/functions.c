/* SPDX-License-Identifier: Apache-2.0 */
/* functions.c: functions of the language that ONNX's operators become. */
#define _POSIX_C_SOURCE 200809L
#include <string.h>

#include "frontend/onnx/onnx.h"
#include "ir/fn/fn.h"
#include "tests/frontend/onnx_import/onnx_import.h"
#include "tests/harness.h"
#include "tests/support/onnx_util.h"

/* ---- functions ----------------------------------------------------------- */

TEST_CASE(onnx_functions, rows_name_what_there_is) {
    StrBuf why = {0};
    for (int i = 0; ox_row(i); i++)
        CHECK_MSG(!ox_row_defect(ox_row(i), &why), "%s", why.data);
    OxOp op = {.name = "X", .attrs = "alpha:f", .fn = "softmax", .map = ""};
    CHECK(ox_row_defect(&op, &why));
    CHECK_HAS(why.data, "X: softmax has no attribute 'alpha'");
    op.fn = "sofmax";
    CHECK(ox_row_defect(&op, &why));
    CHECK_HAS(why.data, "X: unknown op or function 'sofmax'");
    sb_free(&why);
}

/* Row numbers are known only at run time: any two updates may name different
   rows. */
TEST_CASE(onnx_functions, scatters_of_updates_that_are_nearly_equal) {
    enum { ROWS = 4, UPDATES = 3 };
    for (int other = 0; other < UPDATES; other++) {
        Made m;
        made_start(&m, 18);
        made_input(&m, "x", DT_F32, "4");
        made_input(&m, "at", DT_I64, "3,1");
        Onnx__TensorProto *u = made_f32(&m, "updates", "3", 0);
        for (int i = 0; i < UPDATES; i++) u->float_data[i] = i == other ? 5 : 7;
        made_node(&m, "ScatterND", "x,at,updates", "y");
        made_output(&m, "y");
        Module *mod = made_import(&m);
        if (!CHECK_MSG(mod != NULL, "%s", made_message(&m))) return;
        Graph *g = module_graph(mod, "forward");
        Evaluator *e = eval_new(g, m.a, EVAL_EXACT);
        for (int i = 0; i < 2; i++) {
            ValueId v = g->inputs.data[i];
            EvalTensor *t = eval_tensor_new(m.a, value_get(g, v)->type);
            for (int k = 0; k < ROWS && i == 0; k++) t->f[k] = k;
            for (int k = 0; k < UPDATES && i == 1; k++) t->i[k] = ROWS - 1 - k;
            eval_bind(e, v, t);
        }
        REQUIRE(eval_run(e, &m.d) == OK);
        const double *y = eval_get(e, g->outputs.data[0].value)->f;
        CHECK_NEAR(y[0], 0, 0);
        for (int k = 0; k < UPDATES; k++)
            CHECK_NEAR(y[ROWS - 1 - k], k == other ? 5 : 7, 0);
        made_end(&m);
    }
}

/* The shapes that a file declares for its outputs are compared with the
   computed ones; a difference gives only a warning. */
TEST_CASE(onnx_graph, declared_shapes_of_outputs) {
    static const struct {
        const char *dims, *says; /* NULL: right */
    } rows[] = {{"2,3,4", NULL},
                {"2,3,n", NULL},
                {"5,3,4", "dimension 0 of output 'y' is declared"},
                {"2,5,4", "dimension 1 of output 'y' is declared"},
                {"2,3,5", "dimension 2 of output 'y' is declared"},
                {"2,3", "output 'y' is declared with rank 2"}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        Made m;
        made_start(&m, 17);
        made_input(&m, "x", DT_F32, "2,3,4");
        made_node(&m, "Relu", "x", "y");
        made_input(&m, "y", DT_F32, rows[i].dims);
        Onnx__ValueInfoProto *y = m.graph.input[--m.graph.n_input];
        m.graph.output = NEW(m.a, Onnx__ValueInfoProto *);
        m.graph.output[m.graph.n_output++] = y;
        Module *mod = made_import(&m);
        CHECK_MSG(mod != NULL, "%s: %s", rows[i].dims, made_message(&m));
        if (rows[i].says)
            CHECK_HAS(made_message(&m), rows[i].says);
        else
            CHECK_STR(made_message(&m), "");
        made_end(&m);
    }
}

/* Ops that move time steps, whatever computes the steps. */
TEST_CASE(onnx_functions, steps_of_any_type) {
    static const DType types[] = {DT_F32, DT_I64, DT_BOOL};
    for (int i = 0; i < 3; i++) {
        Made m;
        made_start(&m, 24);
        made_input(&m, "x", types[i], "3,2");
        made_input(&m, "update", types[i], "3,1");
        made_input(&m, "lens", DT_I64, "2");
        made_int(&m, made_node(&m, "TensorScatter", "x,update", "w"), "axis",
                 1);
        made_node(&m, "ReverseSequence", "w,lens", "y");
        made_output(&m, "y");
        m.opt.objectives.data[0].loss.kind = LOSS_NONE;
        Module *mod = made_import(&m);
        if (CHECK_MSG(mod != NULL, "%s", made_message(&m))) {
            Graph *g = module_graph(mod, "forward");
            Evaluator *e = eval_new(g, m.a, EVAL_EXACT);
            for (int k = 0; k < 3; k++) {
                ValueId v = g->inputs.data[k];
                EvalTensor *t = eval_tensor_new(m.a, value_get(g, v)->type);
                for (int j = 0; j < (k == 2 ? 2 : k ? 3 : 6); j++) {
                    double value = k == 2 ? 3 - j : k ? 1 : 0;
                    if (t->f)
                        t->f[j] = value;
                    else
                        t->i[j] = (int64_t)value;
                }
                eval_bind(e, v, t);
            }
            REQUIRE(eval_run(e, &m.d) == OK);
            const EvalTensor *y = eval_get(e, g->outputs.data[0].value);
            for (int j = 0; j < 6; j++)
                CHECK_NEAR(y->f ? y->f[j] : (double)y->i[j], j % 2 == 0, 0);
        }
        made_end(&m);
    }
}

/* Among equal elements the last one, however many there are; or the largest,
   of which the first counts. */
TEST_CASE(onnx_functions, the_last_of_equal_elements) {
    for (int i = 0; i < 8; i++) {
        int n = 1 + i / 2;
        Made m;
        char dims[8];
        snprintf(dims, sizeof dims, "%d", n);
        made_start(&m, 18);
        made_input(&m, "x", DT_F32, dims);
        Onnx__NodeProto *node = made_node(&m, "ArgMax", "x", "y");
        made_int(&m, node, "axis", 0);
        made_int(&m, node, "select_last_index", 1);
        made_output(&m, "y");
        Module *mod = made_import(&m);
        if (!CHECK_MSG(mod != NULL, "%s", made_message(&m))) return;
        Graph *g = module_graph(mod, "forward");
        Evaluator *e = eval_new(g, m.a, EVAL_EXACT);
        ValueId x = g->inputs.data[0];
        EvalTensor *t = eval_tensor_new(m.a, value_get(g, x)->type);
        t->f[0] = i % 2;
        eval_bind(e, x, t);
        REQUIRE(eval_run(e, &m.d) == OK);
        CHECK_EQ_INT(eval_get(e, g->outputs.data[0].value)->i[0],
                     i % 2 ? 0 : n - 1);
        made_end(&m);
    }
}

/* A mask with one column is the same for all keys and does not change a
   row's softmax; a mask with fewer columns than keys hides the remaining
   keys. */
TEST_CASE(onnx_functions, masks_of_attention_with_few_columns) {
    enum { KEYS = 3, WIDE = 2 };
    static const char *const columns[] = {NULL, "2,1", "2,3", "2,2"};
    double y[4][2 * WIDE];
    for (int i = 0; i < 4; i++) {
        Made m;
        made_start(&m, 23);
        made_input(&m, "q", DT_F32, "1,1,2,2");
        made_f32(&m, "k", "1,1,3,2", 0.25f);
        made_f32(&m, "v", "1,1,3,2", 1);
        if (columns[i]) {
            int n = columns[i][2] - '0';
            Onnx__TensorProto *t = made_f32(&m, "mask", columns[i], 0);
            for (int k = 0; k < 2 * n; k++) /* one number per row */
                t->float_data[k] = k < n ? 0.5f : -2.0f;
        }
        made_node(&m, "Attention", columns[i] ? "q,k,v,mask" : "q,k,v", "y");
        made_output(&m, "y");
        Module *mod = made_import(&m);
        if (!CHECK_MSG(mod != NULL, "%s", made_message(&m))) return;
        Graph *g = module_graph(mod, "forward");
        Evaluator *e = eval_new(g, m.a, EVAL_EXACT);
        ValueId q = g->inputs.data[0];
        EvalTensor *x = eval_tensor_new(m.a, value_get(g, q)->type);
        for (int k = 0; k < 4; k++) x->f[k] = 0.3 * k - 0.4;
        eval_bind(e, q, x);
        REQUIRE(eval_run(e, &m.d) == OK);
        memcpy(y[i], eval_get(e, g->outputs.data[0].value)->f, sizeof y[i]);
        made_end(&m);
    }
    for (int k = 0; k < 2 * WIDE; k++) {
        CHECK_NEAR(y[1][k], y[0][k], 1e-12);
        CHECK_NEAR(y[2][k], y[0][k], 1e-12);
        CHECK(y[3][k] <= 1.5 + 0.25 * (k % WIDE)); /* between two rows of v */
        CHECK(fabs(y[3][k] - y[0][k]) > 0.01);
    }
}

/* The mask compares positions; it is not a constant of T x T elements. */
TEST_CASE(onnx_functions, causal_attention_of_8192_positions) {
    Made m;
    made_start(&m, 23);
    made_input(&m, "q", DT_F32, "1,2,8192,16");
    made_input(&m, "k", DT_F32, "1,2,8192,16");
    made_input(&m, "v", DT_F32, "1,2,8192,16");
    Onnx__NodeProto *n = made_node(&m, "Attention", "q,k,v", "y");
    made_int(&m, n, "is_causal", 1);
    made_output(&m, "y");
    Module *mod = made_import(&m);
    REQUIRE(mod != NULL);
    const Graph *g = module_graph(mod, "forward");
    const Node *call = find_call(mod, "attention");
    REQUIRE(call != NULL);
    const Type *types[] = {value_type(g, call->in[0]),
                           value_type(g, call->in[1]),
                           value_type(g, call->in[2])};
    const Graph *body = fn_instance(call, types)->g;
    for (int i = 1; i < body->values.len; i++)
        CHECK(body->values.data[i].kind != VK_CONST ||
              type_count(type_get(body->values.data[i].type)) == 1);
    made_end(&m);
}

/* x[mask] and one node after it; NULL: y is the output. */
static void picked(const char *op, const char *in, const char *told) {
    Made m;
    made_start(&m, 18);
    made_input(&m, "x", DT_F32, "4,3");
    made_input(&m, "m", DT_BOOL, "4");
    made_node(&m, "NonZero", "m", "i");
    made_node(&m, "Transpose", "i", "t");
    made_node(&m, "GatherND", "x,t", "y");
    made_node(&m, "Shape", "y", "s");
    if (op) made_node(&m, op, in, "z");
    made_output(&m, op ? "z" : "y");
    m.opt.objectives.data[0].loss.kind = LOSS_NONE;
    bool taken = made_import(&m) != NULL;
    CHECK_MSG(taken == !told, "%s: %s", op ? op : "output", made_message(&m));
    if (told) CHECK_HAS(made_message(&m), told);
    made_end(&m);
}

TEST_CASE(onnx_picked, what_has_no_rule_is_refused) {
    picked("ReduceSum", "y", NULL);
    picked("ReduceLogSumExp", "y", NULL);
    picked(NULL, "", NULL);
    picked("Tanh", "y", NULL);
    picked("Det", "y", "has no rule for them");
    picked("Add", "y,x", "meets a tensor with all rows");
    picked("GatherND", "y,t", "gathers from them");
    picked("Concat", "y,x", "joins them with others");
    picked("Mul", "s,s", "computes with their number");
    picked("ReduceProd", "s", "computes with their number");
}
