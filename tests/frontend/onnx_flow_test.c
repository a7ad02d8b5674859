/* SPDX-License-Identifier: Apache-2.0 */
/* onnx_flow_test.c: If and Loop whose course depends on data. The interpreter
   evaluates what they become; the oracles are the loops and branches in C.
   Gradients: tests/exporters has training recorded from PyTorch. */
#include <math.h>
#include <string.h>

#include "tests/harness.h"
#include "tests/support/onnx_util.h"

enum { WIDTH = 3 };

static void put_body(Made *m, Onnx__NodeProto *n, const char *name,
                     Made *body) {
    made_attr(m, n, name, ONNX__ATTRIBUTE_PROTO__ATTRIBUTE_TYPE__GRAPH)->g =
        &body->graph;
}

/* The model's values where the inputs are x and the integer n. */
static Evaluator *evaluated(Made *m, const double *x, int64_t n, Arena *a,
                            const Graph **graph) {
    Module *mod = made_import(m);
    REQUIRE(CHECK_MSG(mod != NULL, "%s", made_message(m)));
    const Graph *g = *graph = mod->graphs.data[0];
    Evaluator *e = eval_new(g, a, EVAL_EXACT);
    Diag d = {0};
    for (int i = 0; i < g->inputs.len; i++) {
        ValueId v = g->inputs.data[i];
        EvalTensor *t = eval_tensor_new(a, value_get(g, v)->type);
        for (int k = 0; t->f && k < WIDTH; k++) t->f[k] = x[k];
        if (t->i) t->i[0] = n;
        eval_bind(e, v, t);
    }
    REQUIRE(CHECK_MSG(eval_run(e, &d) == OK, "%s", d.text.data));
    return e;
}

/* The only output. */
static double *outputs(Made *m, const double *x, int64_t n, Arena *a) {
    const Graph *g;
    Evaluator *e = evaluated(m, x, n, a, &g);
    return eval_get(e, g->outputs.data[0].value)->f;
}

static void refused(Made *m, const char *why) {
    Module *mod = made_import(m);
    CHECK(mod == NULL);
    CHECK_HAS(made_message(m), why);
}

static void trips(Made *m, const char *glob, int64_t most) {
    vec_push(m->a, &m->opt.max_trips,
             (TripBound){glob ? intern(glob) : NULL, most, false});
}

/* ---- If ------------------------------------------------------------------ */

/* y = then(x) if n > 0, else otherwise(x). */
static void branches(Made *m, Made *then, Made *otherwise, const char *op,
                     const char *other) {
    Made *all[] = {then, otherwise};
    for (int i = 0; i < 2; i++) {
        made_start(all[i], 17);
        made_node(all[i], i ? other : op, "x", "z");
        made_output(all[i], "z");
    }
    made_start(m, 17);
    made_input(m, "x", DT_F32, "3");
    made_input(m, "n", DT_I64, "");
    made_i64(m, "none", 1, (int64_t[]){0});
    made_node(m, "Greater", "n,none", "c");
    Onnx__NodeProto *n = made_node(m, "If", "c", "y");
    put_body(m, n, "then_branch", then);
    put_body(m, n, "else_branch", otherwise);
    made_output(m, "y");
}

TEST_CASE(onnx_flow, the_branch_that_data_says) {
    static const double x[WIDTH] = {-4, 0.25, 9};
    for (int64_t n = 0; n < 2; n++) {
        Made m, then, otherwise;
        Arena *a = arena_new();
        branches(&m, &then, &otherwise, "Sqrt", "Neg");
        const double *y = outputs(&m, x, n, a);
        for (int i = 0; i < WIDTH; i++)
            CHECK_MSG(n ? isnan(y[i]) ? x[i] < 0 : y[i] == sqrt(x[i])
                        : y[i] == -x[i],
                      "%d: %g", i, y[i]);
        arena_free(a);
        made_end(&m), made_end(&then), made_end(&otherwise);
    }
}

TEST_CASE(onnx_flow, branches_of_two_types_are_refused) {
    Made m, then, otherwise;
    branches(&m, &then, &otherwise, "Neg", "ReduceSum");
    refused(&m, "a result is f32[3] or f32[1]: both must have one type");
    made_end(&m), made_end(&then), made_end(&otherwise);
}

/* PaddlePaddle writes conditions as bool[] and as bool[1]. */
TEST_CASE(onnx_flow, numbers_of_two_ranks) {
    static const double x[WIDTH] = {-4, 0.25, 9};
    for (int n = 0; n < 2; n++) {
        Made m, then, otherwise;
        Arena *a = arena_new();
        const Graph *g;
        branches(&m, &then, &otherwise, n ? "ReduceMin" : "ReduceMax",
                 n ? "ReduceMax" : "ReduceMin");
        made_int(&then, then.graph.node[0], "keepdims", 0);
        Evaluator *e = evaluated(&m, x, n, a, &g);
        ValueId y = g->outputs.data[0].value;
        CHECK_EQ_INT(value_type(g, y)->rank, 1);
        CHECK(eval_get(e, y)->f[0] == -4);
        arena_free(a);
        made_end(&m), made_end(&then), made_end(&otherwise);
    }
}

static void set(Made *m, const char *name, int64_t n) {
    InputValue x = {.name = intern(name)};
    SetNumber number = {(double)n, n, true};
    vec_push(m->a, &x.numbers, number);
    vec_push(m->a, &m->opt.set_inputs, x);
}

/* One branch is built, so that the other may have another type. */
TEST_CASE(onnx_flow, an_input_with_a_number) {
    static const double x[WIDTH] = {-4, 0.25, 9};
    for (int n = 0; n < 2; n++) {
        Made m, then, otherwise;
        Arena *a = arena_new();
        const Graph *g;
        branches(&m, &then, &otherwise, "Neg", "ReduceSum");
        set(&m, "n", 1 - n);
        set(&m, "n", n); /* counts */
        Evaluator *e = evaluated(&m, x, 0, a, &g);
        const double *y = eval_get(e, g->outputs.data[0].value)->f;
        CHECK_EQ_INT(g->inputs.len, 1);
        CHECK(y[0] == (n ? 4 : 5.25));
        arena_free(a);
        made_end(&m), made_end(&then), made_end(&otherwise);
    }
}

/* ---- Loop ---------------------------------------------------------------- */

/* h = x / 2 again and again, n times, or while max(h) > 1 where `asks`; a row
   of each turn: its h. */
static void halve(Made *m, Made *body, const char *count, bool asks) {
    made_start(body, 17);
    made_input(body, "i", DT_I64, "");
    made_input(body, "go", DT_BOOL, "");
    made_input(body, "h", DT_F32, "3");
    made_node(body, "Mul", "h,half", "next");
    made_node(body, "ReduceMax", "next", "top");
    made_node(body, "Greater", "top,one", "more");
    made_node(body, "Identity", asks ? "more" : "go", "on");
    made_node(body, "Identity", "next", "row");
    made_output(body, "on");
    made_output(body, "next");
    made_output(body, "row");
    made_start(m, 17);
    made_input(m, "x", DT_F32, "3");
    made_input(m, "n", DT_I64, "");
    made_f32(m, "half", "", 0.5f);
    made_f32(m, "one", "", 1);
    made_i64(m, "four", 1, (int64_t[]){4});
    Onnx__NodeProto *n =
        made_node(m, "Loop", internf("%s,,x", count), "last,rows");
    n->name = made_text(m, "halving");
    put_body(m, n, "body", body);
}

TEST_CASE(onnx_flow, as_many_turns_as_data_says) {
    static const double x[WIDTH] = {8, -3, 1};
    for (int64_t n = 0; n <= 4; n++) {
        Made m, body;
        Arena *a = arena_new();
        double sum = 0;
        halve(&m, &body, "n", false);
        made_node(&m, "ReduceSum", "rows", "sum");
        made_node(&m, "Add", "sum,last", "y");
        made_output(&m, "y");
        trips(&m, NULL, 4);
        const double *y = outputs(&m, x, n, a);
        for (int64_t i = 1; i <= n; i++) sum += 6 / exp2((double)i);
        for (int i = 0; i < WIDTH; i++)
            CHECK_NEAR(y[i], sum + x[i] / exp2((double)n), 1e-12);
        arena_free(a);
        made_end(&m), made_end(&body);
    }
}

/* A loop of four turns at most needs no bound of its own. */
TEST_CASE(onnx_flow, turns_until_data_ends_them) {
    static const double x[][WIDTH] = {{8, -3, 1}, {1, 1, 0}, {99, 0, 0}};
    static const double turns[] = {3, 1, 4};
    for (int k = 0; k < 3; k++) {
        Made m, body;
        Arena *a = arena_new();
        halve(&m, &body, "four", true);
        made_node(&m, "ReduceMean", "rows", "mean");
        made_node(&m, "Mul", "last,mean", "y");
        made_output(&m, "y");
        const double *y = outputs(&m, x[k], 0, a);
        double sum = x[k][0] + x[k][1] + x[k][2], mean = 0;
        for (double i = 1; i <= turns[k]; i++)
            mean += sum / exp2(i) / turns[k] / WIDTH;
        for (int i = 0; i < WIDTH; i++)
            CHECK_NEAR(y[i], mean * x[k][i] / exp2(turns[k]), 1e-12);
        arena_free(a);
        made_end(&m), made_end(&body);
    }
}

/* Operand 1 of the op or function, as pass checks sees it: the number of turns,
   a row. */
static int64_t seen_by_checks(Made *m, const char *callee, const double *x,
                              int64_t n) {
    Arena *a = arena_new();
    const Graph *g;
    Evaluator *e = evaluated(m, x, n, a, &g);
    int64_t seen = -1;
    for (int i = 0; i < g->order.len; i++)
        if (!strcmp(callee_info(node_callee(node_at(g, i)))->text, callee))
            seen = eval_get(e, node_at(g, i)->in[1])->i[0];
    arena_free(a);
    return seen;
}

/* A loop in the branch that is not taken wants no turns. */
TEST_CASE(onnx_flow, loops_that_do_not_count) {
    static const double x[WIDTH] = {1e6, 0, 0};
    for (int64_t n = 0; n < 2; n++) {
        Made m, then, otherwise, body, unused;
        branches(&m, &then, &otherwise, "Neg", "Neg");
        halve(&unused, &body, "", true);
        made_end(&then);
        made_start(&then, 17);
        Onnx__NodeProto *loop = made_node(&then, "Loop", ",,x", "z,rows");
        put_body(&then, loop, "body", &body);
        made_output(&then, "z");
        made_f32(&m, "half", "", 0.5f);
        made_f32(&m, "one", "", 1);
        trips(&m, NULL, 2);
        CHECK_EQ_INT(seen_by_checks(&m, "ended", x, n), n ? 3 : 0);
        made_end(&m), made_end(&then), made_end(&otherwise);
        made_end(&body), made_end(&unused);
    }
}

/* The row is computed inside the branch. */
TEST_CASE(onnx_flow, rows_that_do_not_count) {
    static const double x[WIDTH] = {7, 8, 9};
    for (int64_t n = 0; n < 2; n++) {
        Made m, then, otherwise;
        branches(&m, &then, &otherwise, "Neg", "Neg");
        made_end(&then);
        made_start(&then, 17);
        made_int(&then, made_node(&then, "Cast", "x", "row"), "to",
                 ONNX__TENSOR_PROTO__DATA_TYPE__INT64);
        made_node(&then, "Gather", "x,row", "z");
        made_output(&then, "z");
        CHECK_EQ_INT(seen_by_checks(&m, "gather", x, n), n ? 7 : 0);
        made_end(&m), made_end(&then), made_end(&otherwise);
    }
}

TEST_CASE(onnx_flow, bounds_of_turns) {
    static const struct Row {
        const char *glob;
        int64_t most;
        const char *why;
    } rows[] = {
        {NULL, 0,
         "say the most that there are with --max-trips N, or "
         "--max-trips 'halving=N'"},
        {"other", 2, "node 'halving'"},
        {"halv*", 2, NULL},
        {NULL, 2, NULL},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        Made m, body;
        halve(&m, &body, "n", false);
        made_output(&m, "last");
        if (rows[i].most) trips(&m, rows[i].glob, rows[i].most);
        if (rows[i].why)
            refused(&m, rows[i].why);
        else
            CHECK_MSG(made_import(&m) != NULL, "%s", made_message(&m));
        made_end(&m), made_end(&body);
    }
}

TEST_CASE(onnx_flow, a_bound_for_no_loop) {
    Made m, body;
    halve(&m, &body, "four", false);
    made_output(&m, "last");
    trips(&m, "halving", 2);
    refused(&m, "--max-trips halving: no loop of that name has a number of "
                "trips that depends on data");
    made_end(&m), made_end(&body);
}
