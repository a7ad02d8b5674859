/* SPDX-License-Identifier: Apache-2.0 */
/* onnx_import_test.c: batch normalisation, dropout, the form of graphs,
   functions, version rules.                                                 */
#define _POSIX_C_SOURCE 200809L
#include <stdlib.h>
#include <string.h>

#include "frontend/onnx/onnx.h"
#include "ir/fn/fn.h"
#include "tests/harness.h"
#include "tests/support/onnx_util.h"

/* A model is named like its file, without folders and the last suffix. */
TEST_CASE(onnx_graph, modules_are_named_by_their_file) {
    static const char *const rows[][2] = {
        {"net.onnx", "net"}, {"a/b.c/net.v2.onnx", "net.v2"}, {"/net", "net"},
        {"a.b/net", "net"},  {"dir/.onnx", ".onnx"},          {"n.", "n"}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        Made m;
        Module *mod;
        size_t n;
        made_relu(&m, "2");
        uint8_t *bytes = model_pack(&m.model, &n);
        Status s = import_onnx(m.a, &m.d, rows[i][0], bytes, n, &m.opt, &mod);
        if (CHECK_MSG(s == OK, "%s", made_message(&m)))
            CHECK_STR(mod->name, rows[i][1]);
        free(bytes);
        made_end(&m);
    }
}

/* ---- spoiled exports ----------------------------------------------------- */

static Onnx__NodeProto *bn_model(Made *m, const char *operands) {
    made_start(m, 17);
    made_input(m, "x", DT_F32, "4,2,3");
    made_f32(m, "bn.scale", "2", 1);
    made_f32(m, "bn.bias", "2", 0);
    made_f32(m, "bn.mean", "2", 0);
    made_f32(m, "bn.var", "2", 1);
    Onnx__NodeProto *n = made_node(m, "BatchNormalization", operands, "y");
    made_output(m, "y");
    return n;
}

TEST_CASE(onnx_spoiled, statistics_merged_with_weights) {
    Made m;
    bn_model(&m, "x,bn.scale,bn.bias,bn.mean,bn.scale");
    CHECK(!made_import(&m));
    CHECK_HAS(made_message(&m), "running statistics and as something else");
    m.opt.accept_folded = true;
    Module *mod = made_import(&m);
    REQUIRE(mod != NULL);
    CHECK_EQ_INT(var_named(mod, "bn.scale")->kind, VAR_PARAM);
    CHECK_EQ_INT(count_kind(mod, VAR_BUFFER), 2);
    made_end(&m);
}

TEST_CASE(onnx_spoiled, an_inference_module_does_not_care) {
    Made m;
    bn_model(&m, "x,bn.scale,bn.bias,bn.mean,bn.scale");
    m.opt.objectives.data[0].loss.kind = LOSS_NONE;
    CHECK(made_import(&m) != NULL);
    made_end(&m);
}

/* ---- batch normalisation, dropout ---------------------------------------- */

static const Node *find_node(const Module *mod, OpCode op) {
    const Graph *g = module_graph(mod, "forward");
    for (int i = 0; i < g->order.len; i++)
        if (node_get(g, g->order.data[i])->op == op)
            return node_get(g, g->order.data[i]);
    return NULL;
}

static const Node *find_call(const Module *mod, const char *fn) {
    const Graph *g = module_graph(mod, "forward");
    for (int i = 0; i < g->order.len; i++)
        if (is_call(node_get(g, g->order.data[i]), fn))
            return node_get(g, g->order.data[i]);
    return NULL;
}

static int64_t training_of(Made *m, int *writes) {
    Module *mod = made_import(m);
    REQUIRE(mod != NULL);
    *writes = module_graph(mod, "forward")->writes.len;
    Attr a;
    call_attr(module_graph(mod, "forward"), find_call(mod, "batch_norm"),
              "training", &a);
    return a.u.i;
}

#define OPERANDS "x,bn.scale,bn.bias,bn.mean,bn.var"

TEST_CASE(onnx_batch_norm, follows_the_options) {
    Made m;
    int writes;
    bn_model(&m, OPERANDS);
    CHECK_EQ_INT(training_of(&m, &writes), 1);
    CHECK_EQ_INT(writes, 2);
    vec_push(m.a, &m.opt.batchnorm_frozen, intern("bn.s*"));
    CHECK_EQ_INT(training_of(&m, &writes), 0);
    CHECK_EQ_INT(writes, 0);
    m.opt.batchnorm_frozen.data[0] = intern("other*");
    CHECK(made_import(&m) == NULL);
    CHECK_HAS(m.d.text.data, "frozen:other* matches no BatchNormalization");
    m.opt.batchnorm_frozen.len = 0;
    CHECK_EQ_INT(training_of(&m, &writes), 1);
    m.opt.objectives.data[0].loss.kind = LOSS_NONE;
    CHECK_EQ_INT(training_of(&m, &writes), 0);
    made_end(&m);
}

/* The file's mode: from is_test, then the results, then training_mode. */
TEST_CASE(onnx_batch_norm, versions_say_otherwise_whether_it_trains) {
    static const struct {
        int version;
        const char *results, *attr;
        int value, trains;
    } rows[] = {{6, "y", "is_test", 0, 1},
                {6, "y", "is_test", 1, 0},
                {6, "y", "spatial", 1, 1}, /* is_test left out */
                {7, "y", NULL, 0, 0},
                {9, "y,m2,v2,sm,sv", NULL, 0, 1},
                {13, "y", NULL, 0, 0},
                {14, "y", "training_mode", 0, 0},
                {14, "y,m2,v2", "training_mode", 1, 1},
                {17, "y", NULL, 0, 0}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        Made m;
        int writes;
        bn_model(&m, OPERANDS);
        m.graph.n_node = 0;
        Onnx__NodeProto *n =
            made_node(&m, "BatchNormalization", OPERANDS, rows[i].results);
        if (rows[i].attr) made_int(&m, n, rows[i].attr, rows[i].value);
        m.opset.version = rows[i].version;
        m.opt.batchnorm_train = false;
        CHECK_MSG(training_of(&m, &writes) == rows[i].trains,
                  "row %zu: opset %d", i, rows[i].version);
        made_end(&m);
    }
}

/* PyTorch's momentum of None is written as that of another number. */
TEST_CASE(onnx_batch_norm, a_momentum_that_may_be_none_is_said) {
    static const struct {
        float momentum;
        int training, cumulative; /* attributes; the option */
        const char *says;
    } rows[] = {
        {1, 0, -1, "means over all batches, as of None"},
        {1, 0, 0, NULL},
        {1, 0, 1, NULL},
        {1, 1, -1, NULL}, /* None would be a 0 */
        {0, 0, -1, NULL},
        {0, 1, -1, "those of the last batch, as of the number"},
        {0, 1, 1, NULL},
        {0.9f, 0, -1, NULL},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        Made m;
        int writes;
        bn_model(&m, OPERANDS);
        m.graph.n_node = 0;
        Onnx__NodeProto *n = made_node(&m, "BatchNormalization", OPERANDS,
                                       rows[i].training ? "y,m2,v2" : "y");
        made_float(&m, n, "momentum", rows[i].momentum);
        if (rows[i].training) made_int(&m, n, "training_mode", 1);
        m.opset.version = 17;
        m.model.producer_name = made_text(&m, "pytorch");
        m.opt.batchnorm_cumulative = rows[i].cumulative;
        CHECK_EQ_INT(training_of(&m, &writes), 1);
        const char *text = m.d.text.data ? m.d.text.data : "";
        const char *says =
            rows[i].says ? rows[i].says : "PyTorch's momentum=None";
        CHECK_MSG((strstr(text, says) != NULL) == (rows[i].says != NULL),
                  "row %zu: %s", i, text);
        made_end(&m);
    }
}

/* The running variance after one step on x = 0, 1, 2, ...: channel 0 sees
   0 1 2, 6 7 8, 12 13 14, 18 19 20. */
static double new_variance(Made *m) {
    Module *mod = made_import(m);
    REQUIRE(mod != NULL);
    Graph *g = module_graph(mod, "forward");
    Evaluator *e = eval_new(g, m->a, EVAL_EXACT);
    TypeId type = value_get(g, g->inputs.data[0])->type;
    EvalTensor *x = eval_tensor_new(m->a, type);
    for (int i = 0; i < 24; i++) x->f[i] = i;
    eval_bind(e, g->inputs.data[0], x);
    REQUIRE(eval_run(e, &m->d) == OK);
    return eval_get(e, g->writes.data[1].value)->f[0];
}

TEST_CASE(onnx_batch_norm, variance_is_unbiased_for_torch) {
    Made m;
    double mean = 0, var = 0;
    for (int i = 0; i < 12; i++) mean += (i / 3 * 6 + i % 3) / 12.0;
    for (int i = 0; i < 12; i++) var += pow(i / 3 * 6 + i % 3 - mean, 2) / 12;
    bn_model(&m, OPERANDS);
    CHECK_NEAR(new_variance(&m), 0.9 + 0.1 * var, 1e-6);
    m.model.producer_name = made_text(&m, "pytorch");
    CHECK_NEAR(new_variance(&m), 0.9 + 0.1 * var * 12 / 11, 1e-6);
    m.opt.batchnorm_unbiased = 0;
    CHECK_NEAR(new_variance(&m), 0.9 + 0.1 * var, 1e-6);
    made_end(&m);
}

TEST_CASE(onnx_batch_norm, shared_statistics_are_updated_twice) {
    Made m;
    bn_model(&m, OPERANDS);
    made_node(&m, "BatchNormalization", "y,bn.scale,bn.bias,bn.mean,bn.var",
              "z");
    made_output(&m, "z");
    Module *mod = made_import(&m);
    REQUIRE(mod != NULL);
    CHECK_EQ_INT(module_graph(mod, "forward")->writes.len, 2);
    made_end(&m);
}

/* dynamo writes a module that is called three times in this way. */
TEST_CASE(onnx_batch_norm, statistics_behind_identities_are_the_buffers) {
    Made m;
    bn_model(&m, OPERANDS);
    made_metadata(&m, &m.graph.metadata_props, &m.graph.n_metadata_props,
                  "pkg.torch.export.ExportedProgram.graph_signature",
                  "b_bn_mean: BUFFER target='bn.mean'\n");
    made_node(&m, "Identity", "bn.mean", "mean2");
    made_node(&m, "Identity", "bn.var", "var2");
    made_node(&m, "BatchNormalization", "y,bn.scale,bn.bias,mean2,var2", "z");
    made_node(&m, "Identity", "mean2", "mean3");
    made_node(&m, "Identity", "var2", "var3");
    made_node(&m, "BatchNormalization", "z,bn.scale,bn.bias,mean3,var3", "u");
    made_output(&m, "u");
    Module *mod = made_import(&m);
    REQUIRE(mod != NULL);
    CHECK_EQ_INT(module_graph(mod, "forward")->writes.len, 2);
    m.graph.n_metadata_props = 0; /* TorchScript: equal tensors of other
                                     modules */
    CHECK(!made_import(&m));
    CHECK_HAS(made_message(&m), "serves as running statistics and as");
    made_end(&m);
}

TEST_CASE(onnx_dropout, forms_and_options) {
    Made m;
    int64_t off = 0;
    made_start(&m, 17);
    made_input(&m, "x", DT_F32, "2,3");
    made_f32(&m, "ratio", "", 0.1f);
    made_i64(&m, "mode", 1, &off);
    made_node(&m, "Dropout", "x,ratio", "y");
    made_node(&m, "Dropout", "y", "z");
    made_output(&m, "z");
    Module *mod = made_import(&m);
    REQUIRE(mod != NULL);
    const Node *n = find_call(mod, "dropout");
    REQUIRE(n != NULL);
    CHECK_NEAR(attr_float(n, attr_key("ratio", ATTR_FLOAT)), 0.1,
               0); /* as written */
    CHECK_EQ_INT(attr_int(n, AK_salt), 0);
    CHECK_HAS(made_message(&m), "2 Dropout nodes");
    CHECK_EQ_INT(var_named(mod, "ampc.rng")->kind, VAR_STATE);
    m.opt.dropout = false;
    mod = made_import(&m);
    REQUIRE(mod != NULL);
    CHECK(!find_call(mod, "dropout"));
    made_end(&m);
}

/* A ratio makes it drop; a note says that the mode, a separate operand, was
   off. */
TEST_CASE(onnx_dropout, what_was_exported_disabled_is_told) {
    static const float ratios[] = {0, 0.25F};
    for (int i = 0; i < 4; i++) {
        Made m;
        int64_t mode = i / 2;
        made_start(&m, 17);
        made_input(&m, "x", DT_F32, "2,3");
        made_f32(&m, "ratio", "", ratios[i % 2]);
        made_i64(&m, "mode", 1, &mode);
        made_node(&m, "Dropout", "x,ratio,mode", "y");
        made_output(&m, "y");
        Module *mod = made_import(&m);
        REQUIRE(mod != NULL);
        bool drops = ratios[i % 2] > 0;
        CHECK_EQ_INT(find_call(mod, "dropout") != NULL, drops);
        CHECK_EQ_INT(strstr(made_message(&m), "Dropout") != NULL,
                     drops && !mode);
        made_end(&m);
    }
}

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

/* ---- version rules that no stored model covers --------------------------- */

/* The type of y after one node on x: f32[dims], or NULL if it is refused. */
static const Type *one_node(Made *m, int version, const char *dims,
                            const char *op, const char *in,
                            Onnx__NodeProto **node) {
    made_start(m, version);
    made_input(m, "x", DT_F32, dims);
    *node = made_node(m, op, in, "y");
    made_output(m, "y");
    return NULL;
}

static const Type *result_type(Made *m) {
    Module *mod = made_import(m);
    if (!mod) return NULL;
    Graph *g = module_graph(mod, "forward");
    return value_type(g, g->outputs.data[0].value);
}

TEST_CASE(onnx_versions, softmax_before_13_flattens) {
    Made m;
    Onnx__NodeProto *n;
    one_node(&m, 11, "2,3,4", "Softmax", "x", &n);
    Module *mod = made_import(&m);
    REQUIRE(mod != NULL);
    CHECK(find_node(mod, OP_RESHAPE) != NULL);
    m.opset.version = 13;
    mod = made_import(&m);
    REQUIRE(mod != NULL);
    CHECK(find_node(mod, OP_RESHAPE) == NULL);
    CHECK_EQ_INT(attr_int(find_call(mod, "softmax"), AK_axis), 2);
    made_end(&m);
}

TEST_CASE(onnx_versions, reduce_takes_axes_both_ways) {
    Made m;
    Onnx__NodeProto *n;
    int64_t axis = -1;
    one_node(&m, 17, "2,3,4", "ReduceMean", "x", &n);
    made_ints(&m, n, "axes", 1, &axis);
    REQUIRE(result_type(&m) != NULL);
    CHECK_EQ_INT(result_type(&m)->dim[2], 1);
    made_end(&m);
    one_node(&m, 18, "2,3,4", "ReduceMean", "x,axes", &n);
    made_i64(&m, "axes", 1, &axis);
    made_int(&m, n, "keepdims", 0);
    REQUIRE(result_type(&m) != NULL);
    CHECK_EQ_INT(result_type(&m)->rank, 2);
    CHECK_EQ_INT(result_type(&m)->dim[1], 3);
    made_end(&m);
}

/* Slices of five elements, compared with Python's range(5)[start:end:step].
   Exception: a slice that begins before the first element and goes backwards
   contains that element (ONNX clamps such a start to 0, as ONNX Runtime
   does). */
TEST_CASE(onnx_versions, slices_reach_both_ends) {
    static const int64_t cases[][4] = {
        {-1, INT64_MIN, -1, 5}, {-1, -6, -1, 5}, {9, INT64_MIN, -1, 5},
        {4, 0, -1, 4},          {4, -5, -1, 4},  {3, INT64_MIN, -2, 2},
        {-6, INT64_MAX, 2, 3},  {0, -1, 1, 4},   {-9, 9, 1, 5},
        {-6, INT64_MIN, -1, 1}, {-9, -9, -2, 1}, {-6, 0, -1, 0}};
    static const int64_t axis = 0;
    size_t count = sizeof cases / sizeof *cases;
    for (size_t i = 0; i < 2 * count; i++) {
        Made m;
        Onnx__NodeProto *n;
        bool none = i >= count;
        const int64_t *c = cases[i % count];
        one_node(&m, 17, none ? "0" : "5", "Slice", "x,s,e,a,t", &n);
        made_i64(&m, "s", 1, &c[0]);
        made_i64(&m, "e", 1, &c[1]);
        made_i64(&m, "a", 1, &axis);
        made_i64(&m, "t", 1, &c[2]);
        REQUIRE(result_type(&m) != NULL);
        CHECK_MSG(result_type(&m)->dim[0] == (none ? 0 : c[3]),
                  "case %zu: %lld", i, (long long)result_type(&m)->dim[0]);
        made_end(&m);
    }
}

/* The model's result for its only input, floats or integers. */
static const EvalTensor *result_of(Made *m, const double *f, const int64_t *i) {
    Module *mod = made_import(m);
    REQUIRE(mod != NULL);
    const Graph *g = module_graph(mod, "forward");
    ValueId x = g->inputs.data[0];
    size_t n = (size_t)type_count(value_type(g, x));
    Evaluator *e = eval_new(g, m->a, EVAL_EXACT);
    EvalTensor *t = eval_tensor_new(m->a, value_get(g, x)->type);
    if (f)
        memcpy(t->f, f, n * sizeof *f);
    else
        memcpy(t->i, i, n * sizeof *i);
    eval_bind(e, x, t);
    REQUIRE(eval_run(e, &m->d) == OK);
    return eval_get(e, g->outputs.data[0].value);
}

/* Hardmax of 0, 1, .. 23 in [2,3,4]: the bits show where the result is 1. Up
   to opset 12 all axes from `axis` on are treated as one. */
TEST_CASE(onnx_versions, hardmax_has_one_axis_or_many) {
    static const struct {
        int version, axis;
        uint32_t ones;
    } cases[] = {{12, 1, 0x800800},
                 {12, 2, 0x888888},
                 {12, 0, 0x800000},
                 {13, 1, 0xf00f00},
                 {13, 0, 0xfff000}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        Made m;
        Onnx__NodeProto *n;
        uint32_t ones = 0;
        one_node(&m, cases[i].version, "2,3,4", "Hardmax", "x", &n);
        made_int(&m, n, "axis", cases[i].axis);
        double x[24];
        for (int k = 0; k < 24; k++) x[k] = k;
        const EvalTensor *y = result_of(&m, x, NULL);
        for (int k = 0; k < 24; k++) ones |= (uint32_t)(y->f[k] == 1) << k;
        CHECK_MSG(ones == cases[i].ones, "case %zu: %06x", i, ones);
        made_end(&m);
    }
}

/* Where(c, 0, softmax(x)) is that function, whether c has rows, columns,
   elements or several x. */
TEST_CASE(onnx_math, where_of_a_softmax) {
    enum { ROWS = 2, COLS = 3 };
    static const char *const dims[] = {"2,3", "2,1", "1,3", "3", "1", "2,2,3"};
    static const double x[ROWS * COLS] = {1, -2, 0.5, 3, 2.5, -1};
    static const float bits[] = {1, 0, 0, 1, 0, 1, 0, 1, 1, 0, 0, 1};
    for (int k = 0; k < 12; k++) {
        int axis = k % 2, size[3], rank = 0;
        Made m;
        made_start(&m, 17);
        made_input(&m, "x", DT_F32, "2,3");
        Onnx__TensorProto *t = made_f32(&m, "w", dims[k / 2], 0);
        for (size_t i = 0; i < t->n_float_data; i++) t->float_data[i] = bits[i];
        for (rank = 0; rank < (int)t->n_dims; rank++)
            size[rank] = (int)t->dims[rank];
        made_f32(&m, "zero", "1", 0);
        made_int(&m, made_node(&m, "Cast", "w", "c"), "to", 9);
        made_int(&m, made_node(&m, "Softmax", "x", "p"), "axis", axis);
        made_node(&m, "Where", "c,zero,p", "y");
        made_output(&m, "y");
        const EvalTensor *y = result_of(&m, x, NULL);
        int n = (int)type_count(type_get(y->type));
        CHECK_EQ_INT(n, rank == 3 ? 12 : 6);
        for (int e = 0; e < n; e++) {
            int at[] = {e / 6, e / 3 % 2, e % 3}, c = 0;
            double sum = 0;
            for (int j = 0; j < (axis ? COLS : ROWS); j++)
                sum += exp(axis ? x[at[1] * COLS + j] : x[j * COLS + at[2]]);
            for (int d = 0; d < rank; d++)
                c = c * size[d] + (size[d] == 1 ? 0 : at[3 - rank + d]);
            double want = bits[c] != 0 ? 0 : exp(x[e % 6]) / sum;
            CHECK_MSG(fabs(y->f[e] - want) < 1e-12,
                      "axis %d, condition [%s], element %d: %g, not %g", axis,
                      dims[k / 2], e, y->f[e], want);
        }
        made_end(&m);
    }
}

/* The smallest and the largest number of a type have no negation in that
   type. */
TEST_CASE(onnx_versions, the_least_of_integers) {
    static const struct {
        DType dtype;
        int64_t x[4];
        int64_t first, last;
    } cases[] = {{DT_I8, {127, -128, 5, -128}, 1, 3},
                 {DT_U8, {255, 0, 0, 7}, 1, 2},
                 {DT_I32, {0, INT32_MAX, INT32_MIN, 1}, 2, 2},
                 {DT_I64, {INT64_MIN + 1, INT64_MIN, INT64_MAX, 0}, 1, 1}};
    for (size_t i = 0; i < 2 * sizeof cases / sizeof *cases; i++) {
        Made m;
        bool last = i % 2;
        made_start(&m, 17);
        made_input(&m, "x", cases[i / 2].dtype, "4");
        made_int(&m, made_node(&m, "ArgMin", "x", "y"), "select_last_index",
                 last);
        made_output(&m, "y");
        CHECK_EQ_INT(result_of(&m, NULL, cases[i / 2].x)->i[0],
                     last ? cases[i / 2].last : cases[i / 2].first);
        made_end(&m);
    }
}

TEST_CASE(onnx_versions, relu6_has_exclusive_bounds) {
    Made m;
    Onnx__NodeProto *n;
    one_node(&m, 13, "4", "Clip", "x,lo,hi", &n);
    made_f32(&m, "lo", "", 0);
    made_f32(&m, "hi", "", 6);
    Module *mod = made_import(&m);
    REQUIRE(mod != NULL);
    CHECK_EQ_INT(attr_int(find_node(mod, OP_CLIP), AK_inclusive), 0);
    CHECK_NEAR(attr_float(find_node(mod, OP_CLIP), AK_max), 6, 0);
    made_end(&m);
}

TEST_CASE(onnx_versions, a_user_cast_is_marked) {
    Made m;
    Onnx__NodeProto *n;
    one_node(&m, 13, "4", "Cast", "x", &n);
    made_int(&m, n, "to", dtype_info[DT_BF16].onnx);
    Module *mod = made_import(&m);
    REQUIRE(mod != NULL);
    CHECK_EQ_INT(attr_int(find_node(mod, OP_CAST), AK_user), 1);
    made_end(&m);
}

TEST_CASE(onnx_loss, class_axis_is_one_and_log_prob_is_made_when_used) {
    Made m;
    made_start(&m, 13);
    made_input(&m, "x", DT_F32, "2,5,3");
    made_input(&m, "t", DT_I64, "2,3");
    made_node(&m, "SoftmaxCrossEntropyLoss", "x,t", "loss,prob");
    made_output(&m, "loss");
    Module *mod = made_import(&m);
    REQUIRE(mod != NULL);
    CHECK_EQ_INT(mod->class_axis, 1);
    CHECK(find_call(mod, "log_softmax") == NULL);
    made_output(&m, "prob");
    mod = made_import(&m);
    REQUIRE(mod != NULL);
    CHECK(find_call(mod, "log_softmax") != NULL);
    made_end(&m);
}

TEST_CASE(onnx_loss, soft_labels_are_explained) {
    Made m;
    made_start(&m, 13);
    made_input(&m, "x", DT_F32, "2,5");
    made_input(&m, "t", DT_F32, "2,5");
    made_node(&m, "SoftmaxCrossEntropyLoss", "x,t", "loss");
    made_output(&m, "loss");
    CHECK(!made_import(&m));
    CHECK_HAS(made_message(&m), "soft labels");
    made_end(&m);
}

/* ---- what a module keeps of the file ------------------------------------- */

TEST_CASE(onnx_skeleton, loses_the_variables_data_alone) {
    Made m;
    StrBuf kept = {0};
    size_t n, elements = 0;
    made_linear(&m);
    Module *mod = made_import(&m);
    REQUIRE(mod != NULL);
    uint8_t *bytes = model_pack(&m.model, &n);
    REQUIRE(onnx_skeleton(mod, bytes, n, &kept));
    Onnx__ModelProto *got =
        onnx__model_proto__unpack(NULL, kept.len, (uint8_t *)kept.data);
    REQUIRE(got && got->graph->n_initializer == m.graph.n_initializer);
    CHECK_EQ_INT(got->graph->n_node, m.graph.n_node);
    CHECK_STR(got->graph->node[3]->output[0], "y");
    for (size_t i = 0; i < got->graph->n_initializer; i++) {
        const Onnx__TensorProto *t = got->graph->initializer[i];
        CHECK_STR(t->name, m.graph.initializer[i]->name);
        CHECK_EQ_INT(t->n_dims, m.graph.initializer[i]->n_dims);
        elements += t->n_float_data + t->raw_data.len / 4;
    }
    CHECK_EQ_INT(elements, 1); /* "half", a literal */
    onnx__model_proto__free_unpacked(got, NULL);
    for (size_t cut = 1; cut < 4; cut++) {
        StrBuf rest = {0};
        CHECK(!onnx_skeleton(mod, bytes, n - cut, &rest));
        sb_free(&rest);
    }
    sb_free(&kept);
    free(bytes);
    made_end(&m);
}

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
    bool taken = made_import(&m) != NULL;
    CHECK_MSG(taken == !told, "%s: %s", op ? op : "output", made_message(&m));
    if (told) CHECK_HAS(made_message(&m), told);
    made_end(&m);
}

TEST_CASE(onnx_picked, what_has_no_rule_is_refused) {
    picked("ReduceSum", "y", NULL);
    picked("ReduceLogSumExp", "y", NULL);
    picked(NULL, "", "has as many rows as a mask selects");
    picked("Tanh", "y", "has as many rows as a mask selects");
    picked("Det", "y", "has no rule for them");
    picked("Add", "y,x", "meets a tensor with all rows");
    picked("GatherND", "y,t", "gathers from them");
    picked("Concat", "y,x", "joins them with others");
    picked("Mul", "s,s", "computes with their number");
    picked("ReduceProd", "s", "computes with their number");
}
