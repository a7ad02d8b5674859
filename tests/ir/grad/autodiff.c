/* SPDX-License-Identifier: Apache-2.0 */
/* autodiff.c: dtypes of gradients, and the pass that adds them. */
#define _GNU_SOURCE
#include <math.h>
#include <string.h>

#include "passes/passes.h"
#include "tests/harness.h"
#include "tests/ir/grad/grad.h"

static ValueId output(const Graph *g, const char *name) {
    for (int k = 0; k < g->outputs.len; k++)
        if (strcmp(g->outputs.data[k].name, name) == 0)
            return g->outputs.data[k].value;
    FAIL("no output %s", name);
}

static const Node *maker(const Graph *g, ValueId v) {
    return node_get(g, value_get(g, v)->def);
}

/* 1 - p is e^-8 / (1 + e^-8); beside a logit of 60, fp32 has six digits less
   than that needs. */
TEST_CASE(grad_dtypes, a_sure_class_keeps_its_gradient_beside_large_logits) {
    static const char text[] =
        "graph train(%x: f32[1,2]) {\n  param %w: f32[1,2] = 0\n"
        "  const %t: i64[1] = [0]\n  %z = add %x, %w\n"
        "  %l, %e = softmax_cross_entropy %z, %t\n  return ampc.loss=%l\n}\n";
    Arena *a = arena_new();
    Graph *g = train_graph(a, text);
    Evaluator *e = eval_new(g, a, EVAL_STORAGE);
    EvalTensor *x = eval_tensor_new(a, value_get(g, g->inputs.data[0])->type);
    x->f[0] = 60, x->f[1] = 52;
    eval_bind(e, g->inputs.data[0], x);
    double want = -exp(-8) / (1 + exp(-8));
    ValueId grad = output(g, "ampc.grad/w");
    CHECK_NEAR(value_of(e, grad), want, -want / 1000);
    arena_free(a);
}

static int count_ops(const Graph *g, OpCode op, bool backward) {
    int n = 0;
    for (int k = 0; k < g->order.len; k++) {
        const Node *x = node_get(g, g->order.data[k]);
        n += x->op == op && backward == !!(x->flags & NODE_BACKWARD);
    }
    return n;
}

#define TRAIN_16(cast)                                                         \
    "graph train(%x: bf16[2,4,3]) {\nparam %w: f32[3,5]\n"                     \
    "%h = cast %w" cast " : bf16[3,5]\n%y = matmul %x, %h : bf16[2,4,5]\n"     \
    "%l = reduce_sum %y {axes=[0,1,2], keepdims=0} : f32[]\n"                  \
    "return ampc.loss=%l\n}\n"

TEST_CASE(grad_dtypes, weight_gradients_leave_16_bit_products_in_fp32) {
    Arena *a = arena_new();
    Graph *g = train_graph(a, TRAIN_16(""));
    ValueId w = output(g, "ampc.grad/w");
    const Node *n = maker(g, w);
    CHECK_EQ_INT(value_dtype(g, w), DT_F32);
    CHECK_STR(value_get(g, w)->name, "w.grad");
    REQUIRE(n->op == OP_MATMUL);
    CHECK_EQ_INT(value_dtype(g, n->in[0]), DT_BF16);
    CHECK_EQ_INT(value_dtype(g, n->in[1]), DT_BF16);
    CHECK_EQ_INT(value_type(g, n->in[0])->rank, 2); /* one product, no sum */
    CHECK_EQ_INT(count_ops(g, OP_REDUCE_SUM, true), 0);
    arena_free(a);
}

TEST_CASE(grad_dtypes, a_cast_of_the_user_rounds_the_gradient) {
    Arena *a = arena_new();
    Graph *g = train_graph(a, TRAIN_16(" {user=1}"));
    const Node *n = maker(g, output(g, "ampc.grad/w"));
    REQUIRE(n->op == OP_CAST);
    CHECK_EQ_INT(value_dtype(g, n->in[0]), DT_BF16);
    arena_free(a);
}

TEST_CASE(grad_dtypes, products_read_16_bits_where_the_forward_one_did) {
    Arena *a = arena_new();
    Graph *g = train_graph(
        a, "graph train(%x: bf16[4,3]) {\nparam %w: f32[3,5]\n"
           "%h = cast %w : bf16[3,5]\n%y = matmul %x, %h : f32[4,5]\n"
           "%e = exp %y\n%l = reduce_sum %e {axes=[0,1], keepdims=0}\n"
           "return ampc.loss=%l\n}\n");
    const Node *n = maker(g, output(g, "ampc.grad/w"));
    REQUIRE(n->op == OP_MATMUL);
    CHECK_EQ_INT(value_dtype(g, n->in[1]), DT_BF16);
    arena_free(a);
}

/* ---- the pass ------------------------------------------------------------ */

#define TWO_LAYERS                                                             \
    "graph train(%x: f32[4,3]) {\nparam %w: f32[3,5], %b: f32[5]\n"            \
    "%y = matmul %x, %w\n%z = add %y, %b\n%r = relu %z\n"                      \
    "%l = reduce_mean %r {axes=[0,1], keepdims=0}\nreturn ampc.loss=%l\n}\n"

TEST_CASE(autodiff, outputs_and_names) {
    Arena *a = arena_new();
    Graph *g = train_graph(a, TWO_LAYERS);
    CHECK_EQ_INT(g->outputs.len, 3);
    CHECK_STR(value_get(g, output(g, "ampc.grad/w"))->name, "w.grad");
    CHECK_STR(value_get(g, output(g, "ampc.grad/b"))->name, "b.grad");
    CHECK(maker(g, output(g, "ampc.grad/b"))->flags & NODE_BACKWARD);
    CHECK_EQ_INT(count_ops(g, OP_MATMUL, true), 1); /* none for x */
    arena_free(a);
}

TEST_CASE(autodiff, the_loss_scale_is_the_seed) {
    Arena *a = arena_new();
    Module *m = parse_text(a, TWO_LAYERS);
    Diag d = {0};
    PassCtx cx = pass_context(a, &d);
    module_var(m, VAR_STATE, "ampc.scale", type_scalar(DT_F32), NULL, 8);
    REQUIRE(pass_autodiff(m, &cx) == OK);
    Graph *g = module_graph(m, "train");
    Evaluator *e = eval_new(g, a, EVAL_EXACT);
    double sum[2];
    for (int k = 0; k < 2; k++) {
        TypeId type = value_get(g, g->inputs.data[0])->type;
        EvalTensor *x = eval_tensor_new(a, type);
        EvalTensor *s = eval_tensor_new(a, type_scalar(DT_F32));
        int64_t five = 5;
        EvalTensor *b = eval_tensor_new(a, type_make(DT_F32, 1, &five));
        s->f[0] = k ? 8 : 1;
        for (int i = 0; i < 5; i++) b->f[i] = 1;
        eval_bind(e, g->inputs.data[0], x);
        eval_bind(e, graph_find_value(g, "ampc.scale"), s);
        eval_bind(e, graph_find_value(g, "b"), b);
        REQUIRE(eval_run(e, &d) == OK);
        sum[k] = eval_get(e, output(g, "ampc.grad/b"))->f[0];
    }
    CHECK_NEAR(sum[0], 4.0 / 20, 1e-7);
    CHECK_NEAR(sum[1], 8 * 4.0 / 20, 1e-6);
    arena_free(a);
}

static void expect_error(const char *text, const char *const *parts) {
    Arena *a = arena_new();
    Diag d = {0};
    Module *m = parse_text(a, text);
    PassCtx cx = pass_context(a, &d);
    CHECK_EQ_INT(pass_autodiff(m, &cx), ERR_USER);
    for (; *parts; parts++) CHECK_HAS(d.text.data, *parts);
    sb_free(&d.text);
    arena_free(a);
}

#define ERROR_SAYS(text, ...)                                                  \
    expect_error(text, (const char *const[]){__VA_ARGS__, NULL})

TEST_CASE(autodiff, parameters_without_a_gradient_are_errors) {
    ERROR_SAYS("graph train(%x: f32[4]) {\nparam %w: f32[4], %v: f32[4]\n"
               "%c = greater %w, %x\n%y = where %c, %x, %v\n"
               "%l = reduce_sum %y {axes=[0], keepdims=0}\n"
               "return ampc.loss=%l\n}\n",
               "parameter 'w'", "non-differentiable input of greater");
    for (int k = 0; k < 2; k++) { /* after either result of split */
        char text[500];
        snprintf(text, sizeof text,
                 "graph train(%%x: f32[4]) {\nparam %%w: f32[8], %%v: f32[4]\n"
                 "%%p, %%q = split %%w {axis=0, sizes=[4,4]}\n"
                 "%%c = greater %%%c, %%x\n%%y = where %%c, %%x, %%v\n"
                 "%%l = reduce_sum %%y {axes=[0], keepdims=0}\n"
                 "return ampc.loss=%%l\n}\n",
                 "pq"[k]);
        ERROR_SAYS(text, "parameter 'w'",
                   "non-differentiable input of greater");
    }
    ERROR_SAYS("graph train(%x: f32[4]) {\n"
               "param %w: f32[4]\nfrozen %v: f32[4]\n"
               "%y = mul %x, %v\n%z = mul %w, %x\n"
               "%l = reduce_sum %y {axes=[0], keepdims=0}\n"
               "return ampc.loss=%l, other=%z\n}\n",
               "depends on no trained parameter", "'w'", "'v' (frozen)");
}

TEST_CASE(autodiff, a_parameter_beside_the_loss_is_left_alone) {
    Arena *a = arena_new();
    Graph *g = train_graph(
        a, "graph train(%x: f32[4]) {\nparam %w: f32[4], %v: f32[4]\n"
           "%y = mul %x, %v\n%z = mul %w, %x\n"
           "%l = reduce_sum %y {axes=[0], keepdims=0}\n"
           "return ampc.loss=%l, other=%z\n}\n");
    CHECK_EQ_INT(g->outputs.len, 3);
    CHECK_STR(g->outputs.data[2].name, "ampc.grad/v");
    arena_free(a);
}

TEST_CASE(autodiff, tied_parameters_get_one_sum) {
    Arena *a = arena_new();
    Graph *g = train_graph(
        a, "graph train(%i: i64[2]) {\nparam %w: f32[3,2]\n"
           "%e = gather %w, %i {axis=0}\n%y = matmul %e, %w {trans_b=1}\n"
           "%l = reduce_sum %y {axes=[0,1], keepdims=0}\n"
           "return ampc.loss=%l\n}\n");
    CHECK(maker(g, output(g, "ampc.grad/w"))->op == OP_ADD);
    arena_free(a);
}
