/* SPDX-License-Identifier: Apache-2.0 */
/* graphs.c: the order of nodes, functions, declared shapes. */
#define _POSIX_C_SOURCE 200809L
#include "frontend/onnx/onnx.h"
#include "tests/frontend/onnx_import/onnx_import.h"
#include "tests/harness.h"
#include "tests/support/onnx_util.h"

/* ---- graphs -------------------------------------------------------------- */

TEST_CASE(onnx_graph, nodes_may_stand_in_any_order) {
    Made m;
    made_start(&m, 17);
    made_input(&m, "x", DT_F32, "2");
    made_node(&m, "Exp", "b", "y");
    made_node(&m, "Neg", "a", "b");
    made_node(&m, "Abs", "x", "a");
    made_output(&m, "y");
    Module *mod = made_import(&m);
    REQUIRE(mod != NULL);
    CHECK_EQ_INT(module_graph(mod, "forward")->order.len, 3);
    made_end(&m);
}

TEST_CASE(onnx_graph, dead_nodes_are_not_looked_at) {
    Made m;
    made_relu(&m, "2");
    made_node(&m, "NoSuchOp", "x", "unused");
    CHECK(made_import(&m) != NULL);
    made_end(&m);
}

TEST_CASE(onnx_graph, split_to_sequence_is_a_split) {
    Made m;
    int64_t two = 2, at[] = {0};
    made_start(&m, 17);
    made_input(&m, "x", DT_F32, "2,5");
    Onnx__TensorProto *t = made_i64(&m, "size", 1, &two);
    t->n_dims = 0;
    made_i64(&m, "at", 1, at)->n_dims = 0;
    made_int(&m, made_node(&m, "SplitToSequence", "x,size", "s"), "axis", 1);
    made_node(&m, "SequenceAt", "s,at", "y");
    made_output(&m, "y");
    Module *mod = made_import(&m);
    REQUIRE(mod != NULL);
    const Node *n = find_node(mod, OP_SPLIT);
    REQUIRE(n != NULL);
    CHECK_EQ_INT(n->nout, 3);
    made_end(&m);
}

/* A function y = x * attr(k), called with k = 3, then with its default 2. */
static void function_model(Made *m) {
    static Onnx__FunctionProto f;
    static Onnx__FunctionProto *fs[1] = {&f};
    static Onnx__OperatorSetIdProto *opset[1];
    static char *in[] = {"u"}, *out[] = {"v"};
    static Onnx__AttributeProto dflt, *dflts[1] = {&dflt};
    made_start(m, 17);
    made_input(m, "x", DT_F32, "2");
    Onnx__NodeProto *c = made_node(m, "Constant", "", "k");
    made_attr(m, c, "value_float", ONNX__ATTRIBUTE_PROTO__ATTRIBUTE_TYPE__FLOAT)
        ->ref_attr_name = made_text(m, "k");
    made_node(m, "Mul", "u,k", "v");
    onnx__function_proto__init(&f);
    f.name = "Scale";
    f.domain = "my";
    f.node = m->graph.node;
    f.n_node = m->graph.n_node;
    m->graph.n_node = 0;
    m->graph.node = NULL;
    opset[0] = &m->opset;
    f.n_opset_import = 1;
    f.opset_import = opset;
    f.n_input = f.n_output = f.n_attribute_proto = 1;
    f.input = in;
    f.output = out;
    onnx__attribute_proto__init(&dflt);
    dflt.name = "k";
    dflt.has_type = dflt.has_f = 1;
    dflt.type = ONNX__ATTRIBUTE_PROTO__ATTRIBUTE_TYPE__FLOAT;
    dflt.f = 2;
    f.attribute_proto = dflts;
    Onnx__NodeProto *call = made_node(m, "Scale", "x", "a");
    call->domain = "my";
    made_float(m, call, "k", 3);
    made_node(m, "Scale", "a", "y")->domain = "my";
    made_output(m, "y");
    m->model.n_functions = 1;
    m->model.functions = fs;
}

TEST_CASE(onnx_graph, functions_are_inlined) {
    Made m;
    function_model(&m);
    Module *mod = made_import(&m);
    if (!CHECK_MSG(mod != NULL, "%s", made_message(&m))) return;
    Graph *g = module_graph(mod, "forward");
    for (int i = 0; i < g->order.len; i++) { /* for --amp-policy */
        const Str *types = node_get(g, g->order.data[i])->loc.types;
        CHECK_STR(types[0], "Mul");
        CHECK_STR(types[1], "my::Scale");
        CHECK(!types[2]);
    }
    Evaluator *e = eval_new(g, m.a, EVAL_STORAGE);
    EvalTensor *x = eval_tensor_new(m.a, value_get(g, g->inputs.data[0])->type);
    x->f[0] = 1;
    x->f[1] = -5;
    eval_bind(e, g->inputs.data[0], x);
    REQUIRE(eval_run(e, &m.d) == OK);
    CHECK_NEAR(eval_get(e, g->outputs.data[0].value)->f[1], -30, 0);
    made_end(&m);
}

/* my::A calls my::B, which calls my::C, which calls the op: --amp-policy may
   name any of them. */
TEST_CASE(onnx_graph, functions_within_functions_are_told) {
    static const char *const name[] = {"A", "B", "C", "Relu"};
    enum { DEEP = 3 };
    Made m;
    made_start(&m, 17);
    made_input(&m, "x", DT_F32, "2");
    Onnx__FunctionProto **all = NEW_ARRAY(m.a, Onnx__FunctionProto *, DEEP);
    Onnx__OperatorSetIdProto *opset[] = {&m.opset};
    char *in[] = {made_text(&m, "u")}, *out[] = {made_text(&m, "v")};
    for (int i = 0; i < DEEP; i++) {
        Onnx__FunctionProto *f = all[i] = NEW(m.a, Onnx__FunctionProto);
        onnx__function_proto__init(f);
        Onnx__NodeProto *n = made_node(&m, name[i + 1], "u", "v");
        if (i + 1 < DEEP) n->domain = made_text(&m, "my");
        f->name = made_text(&m, name[i]);
        f->domain = made_text(&m, "my");
        f->node = m.graph.node;
        f->n_node = m.graph.n_node;
        m.graph.node = NULL;
        m.graph.n_node = 0;
        f->n_opset_import = f->n_input = f->n_output = 1;
        f->opset_import = opset;
        f->input = in;
        f->output = out;
    }
    m.model.functions = all;
    m.model.n_functions = DEEP;
    made_node(&m, "A", "x", "y")->domain = made_text(&m, "my");
    made_output(&m, "y");
    Module *mod = made_import(&m);
    if (!CHECK_MSG(mod != NULL, "%s", made_message(&m))) return;
    const Graph *g = module_graph(mod, "forward");
    REQUIRE(g->order.len == 1);
    const Str *types = node_at(g, 0)->loc.types;
    CHECK_STR(types[0], "Relu");
    CHECK_STR(types[1], "my::C");
    CHECK_STR(types[2], "my::B");
    CHECK_STR(types[3], "my::A");
    CHECK(!types[4]);
    made_end(&m);
}

TEST_CASE(onnx_graph, functions_are_told_apart_by_overload) {
    static const char *const overload[] = {"", "square"};
    static const double want[] = {4 * 3, 9};
    for (int first = 0; first < 2; first++)
        for (int called = 0; called < 3; called++) {
            Made m;
            Onnx__FunctionProto other, *both[2];
            function_model(&m);
            Onnx__FunctionProto *scale = m.model.functions[0];
            Onnx__NodeProto mul = *scale->node[1], *mul_only = &mul;
            char *twice[] = {"u", "u"};
            mul.input = twice;
            other = *scale;
            other.overload = (char *)overload[1];
            other.node = &mul_only;
            other.n_node = 1;
            other.n_attribute_proto = 0;
            both[first] = scale;
            both[1 - first] = &other;
            m.model.functions = both;
            m.model.n_functions = 2;
            for (int i = 0; i < 2; i++) {
                Onnx__NodeProto *call = m.graph.node[i];
                call->overload =
                    called == 2 ? "cube" : (char *)overload[called];
                call->n_attribute = 0;
            }
            m.graph.n_node = 2;
            Module *mod = made_import(&m);
            CHECK_MSG((mod != NULL) == (called < 2), "%s", made_message(&m));
            if (mod) {
                Graph *g = module_graph(mod, "forward");
                Evaluator *e = eval_new(g, m.a, EVAL_STORAGE);
                EvalTensor *x =
                    eval_tensor_new(m.a, value_get(g, g->inputs.data[0])->type);
                x->f[0] = x->f[1] = called ? sqrt(3) : 3;
                eval_bind(e, g->inputs.data[0], x);
                REQUIRE(eval_run(e, &m.d) == OK);
                CHECK_NEAR(eval_get(e, g->outputs.data[0].value)->f[1],
                           want[called], 1e-5);
            }
            made_end(&m);
        }
}

TEST_CASE(onnx_graph, a_function_that_calls_itself_is_an_error) {
    Made m;
    function_model(&m);
    m.model.functions[0]->node[1]->op_type = "Scale";
    m.model.functions[0]->node[1]->domain = "my";
    m.model.functions[0]->node[1]->n_input = 1;
    CHECK(!made_import(&m));
    CHECK_HAS(made_message(&m), "calls itself");
    made_end(&m);
}
