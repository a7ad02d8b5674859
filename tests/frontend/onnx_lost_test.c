/* SPDX-License-Identifier: Apache-2.0 */
/* onnx_lost_test.c: information that a file has lost, found in its metadata
   or its form. */
#include <stdlib.h>
#include <string.h>

#include "tests/harness.h"
#include "tests/support/onnx_util.h"

static void told(Made *m, Onnx__NodeProto *n, const char *call) {
    made_metadata(m, &n->metadata_props, &n->n_metadata_props,
                  "pkg.torch.onnx.fx_node",
                  arena_printf(m->a,
                               "%%y : [num_users=1] = call_function[target="
                               "torch.ops.aten.%s",
                               call));
}

static const Node *call_of(const Module *m, const char *fn) {
    const Graph *g = m->graphs.data[0];
    for (int i = 0; i < g->order.len; i++)
        if (!strcmp(callee_info(node_callee(node_at(g, i)))->text, fn))
            return node_at(g, i);
    return NULL;
}

TEST_CASE(onnx_lost, label_smoothing) {
    static const struct {
        const char *args;
        double smoothing;
    } rows[] = {{"%x, %t, None, 1, -100, 0.3", 0.3},
                {"%x, %t, None, 1, -100, 0.0", 0},
                {"%x, %t", 0}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        Made m;
        made_start(&m, 18);
        made_input(&m, "x", DT_F32, "2,3");
        made_input(&m, "t", DT_I64, "2");
        made_f32(&m, "w", "3", 1);
        made_node(&m, "Mul", "x,w", "s");
        told(&m, made_node(&m, "SoftmaxCrossEntropyLoss", "s,t", "y"),
             arena_printf(m.a,
                          "cross_entropy_loss.default](args = (%s), kwargs = "
                          "{})",
                          rows[i].args));
        made_output(&m, "y");
        Module *mod = made_import(&m);
        REQUIRE(mod != NULL);
        const Node *n = call_of(mod, "softmax_cross_entropy");
        REQUIRE(n != NULL);
        AttrKey key = attr_named_f("label_smoothing", 0).key;
        const Attr *got = attr_find(n, key);
        CHECK((got ? got->u.f : 0) == rows[i].smoothing);
        made_end(&m);
    }
}

TEST_CASE(onnx_lost, the_mean_of_scatter_reduce) {
    for (int mean = 0; mean < 2; mean++) {
        Made m;
        made_start(&m, 18);
        made_input(&m, "x", DT_F32, "2,3");
        made_f32(&m, "w", "2,3", 1);
        int64_t rows[] = {0, 0, 0, 1, 1, 1};
        made_i64(&m, "flat", 6, rows);
        made_i64(&m, "shape", 2, (int64_t[]){2, 3});
        made_node(&m, "Reshape", "flat,shape", "i");
        told(&m, made_node(&m, "ScatterElements", "w,i,x", "y"),
             mean
                 ? "scatter_reduce.two](args = (%w, 0, %i, %x, mean), kwargs = "
                   "{})"
                 : "scatter.src](args = (%w, 0, %i, %x), kwargs = {})");
        made_output(&m, "y");
        CHECK((made_import(&m) == NULL) == mean);
        if (mean) CHECK_HAS(made_message(&m), "the model takes the mean");
        made_end(&m);
    }
}

/* forward(self, x, scale) of a module with a parameter `scale`. */
TEST_CASE(onnx_lost, an_input_named_like_a_parameter) {
    for (int all = 0; all < 2; all++) {
        Made m;
        made_start(&m, 18);
        m.model.producer_name = made_text(&m, "pytorch");
        made_input(&m, "x", DT_F32, "2,4");
        made_input(&m, "scale", DT_F32, "4");
        if (all) made_input(&m, "weight", DT_F32, "4,4");
        made_f32(&m, "scale", "4", 1);
        made_f32(&m, "weight", "4,4", 1);
        made_node(&m, "MatMul", "x,weight", "a");
        made_node(&m, "Mul", "a,scale", "y");
        made_output(&m, "y");
        CHECK((made_import(&m) != NULL) == all);
        if (!all)
            CHECK_HAS(made_message(&m),
                      "input 'scale' and the model's tensor 'scale' have one "
                      "name");
        made_end(&m);
    }
}

TEST_CASE(onnx_lost, operands_of_two_element_types) {
    for (int cast = 0; cast < 2; cast++) {
        Made m;
        made_start(&m, 18);
        made_input(&m, "x", DT_F16, "2,4");
        made_f32(&m, "weight", "4,4", 1);
        made_node(&m, "Relu", "x", "r");
        made_int(&m, made_node(&m, "Cast", "r", "c"), "to", 1);
        made_node(&m, "MatMul", cast ? "c,weight" : "r,weight", "y");
        made_output(&m, "y");
        CHECK((made_import(&m) != NULL) == cast);
        if (!cast)
            CHECK_HAS(made_message(&m),
                      "operands 'r' of f16 and 'weight' of f32");
        made_end(&m);
    }
}

/* torch.utils.checkpoint leaves no node; its line is in the stack trace. */
TEST_CASE(onnx_lost, statistics_under_a_checkpoint) {
    static const struct {
        const char *line;
        bool told;
    } rows[] = {{"y = checkpoint(self.norm, x)", true},
                {"y = checkpoint_sequential(self.all, 2, x)", true},
                {"y = torch.utils.checkpoint.checkpoint(self.norm, x)", true},
                {"y = self.load_checkpoint(x)", false},
                {"y = self.norm(x)", false}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        Made m;
        made_start(&m, 17);
        made_input(&m, "x", DT_F32, "2,4");
        for (const char *s = "gbmv"; *s; s++) {
            const char name[] = {*s, '\0'};
            made_f32(&m, made_text(&m, name), "4", 1);
        }
        Onnx__NodeProto *n =
            made_node(&m, "BatchNormalization", "x,g,b,m,v", "y");
        made_int(&m, n, "training_mode", 1);
        made_metadata(&m, &n->metadata_props, &n->n_metadata_props,
                      "pkg.torch.onnx.stack_trace",
                      arena_printf(m.a,
                                   "File \"checkpoint.py\", line 9\n    %s",
                                   rows[i].line));
        made_output(&m, "y");
        CHECK(made_import(&m) != NULL);
        CHECK_MSG(!!strstr(made_message(&m), "'g' lies under checkpoint()") ==
                      rows[i].told,
                  "row %zu: %s", i, made_message(&m));
        made_end(&m);
    }
}

/* Keras through tf2onnx: BatchNormalization as one product, without biases
   of 0. */
TEST_CASE(onnx_lost, layers_of_keras) {
    Made m;
    made_start(&m, 15);
    m.model.producer_name = made_text(&m, "tf2onnx 1.17.0");
    made_input(&m, "x", DT_F32, "2,4");
    made_f32(&m, "m/dense_1/ReadVariableOp:0", "4,4", 1);
    made_f32(&m, "m/batch_normalization_1/mul:0", "1,4", 1);
    made_node(&m, "MatMul", "x,m/dense_1/ReadVariableOp:0", "a")->name =
        made_text(&m, "m/dense_1/MatMul");
    made_node(&m, "Mul", "a,m/batch_normalization_1/mul:0", "y")->name =
        made_text(&m, "m/batch_normalization_1/batchnorm/mul_1");
    made_output(&m, "y");
    CHECK(made_import(&m) == NULL);
    CHECK_HAS(made_message(&m), "no bias in the file: 'm/dense_1/'");
    CHECK_HAS(made_message(&m), "fused BatchNormalization into other layers");
    m.opt.accept_folded = true;
    CHECK(made_import(&m) != NULL);
    made_end(&m);
}

/* Slopes as a person writes them, and what paddle2onnx makes of them. */
TEST_CASE(onnx_lost, slopes_of_paddle) {
    static const struct {
        float slope;
        const char *warning;
    } rows[] = {{0.01f, NULL}, {0.25f, NULL}, {-4.594451e-37f, "-4.59445e-37"}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        Made m;
        made_start(&m, 17);
        made_input(&m, "x", DT_F32, "2,4");
        made_f32(&m, "linear_0.w_0", "4,4", 1);
        made_node(&m, "MatMul", "x,linear_0.w_0", "p2o.pd_op.matmul.0.0");
        Onnx__NodeProto *n =
            made_node(&m, "LeakyRelu", "p2o.pd_op.matmul.0.0", "y");
        Onnx__AttributeProto *alpha = made_attr(
            &m, n, "alpha", ONNX__ATTRIBUTE_PROTO__ATTRIBUTE_TYPE__FLOAT);
        alpha->has_f = true;
        alpha->f = rows[i].slope;
        made_output(&m, "y");
        CHECK(made_import(&m) != NULL);
        if (rows[i].warning) CHECK_HAS(made_message(&m), rows[i].warning);
        CHECK((rows[i].warning != NULL) ==
              (strstr(made_message(&m), "its slope is") != NULL));
        made_end(&m);
    }
}

/* The bias of a Dense layer of three axes is outside of the product's scope. */
TEST_CASE(onnx_lost, a_dense_layer_of_keras_in_scopes) {
    Made m;
    made_start(&m, 15);
    m.model.producer_name = made_text(&m, "tf2onnx 1.17.0");
    made_input(&m, "x", DT_F32, "2,4");
    made_f32(&m, "m/dense_1/Cast/ReadVariableOp:0", "4,4", 1);
    made_f32(&m, "m/dense_1/BiasAdd/ReadVariableOp:0", "4", 1);
    made_node(&m, "MatMul", "x,m/dense_1/Cast/ReadVariableOp:0", "a")->name =
        made_text(&m, "m/dense_1/Tensordot/MatMul");
    made_node(&m, "Add", "a,m/dense_1/BiasAdd/ReadVariableOp:0", "y")->name =
        made_text(&m, "m/dense_1/BiasAdd");
    made_output(&m, "y");
    CHECK_MSG(made_import(&m) != NULL, "%s", made_message(&m));
    CHECK_MSG(!strstr(made_message(&m), "no bias"), "%s", made_message(&m));
    made_end(&m);
}

/* tf2onnx keeps one of equal tensors; a layer that is called twice reads its
   own. */
TEST_CASE(onnx_lost, equal_tensors_of_keras_layers) {
    static const struct {
        const char *node;
        bool told;
    } rows[] = {{"m/dense_1/BiasAdd", false},
                {"m/dense_3/BiasAdd", false},
                {"m/dense_1_1/BiasAdd", true},
                {"m/a_1/query_1/Add", true},
                {"BiasAdd", false}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        Made m;
        made_start(&m, 15);
        m.model.producer_name = made_text(&m, "tf2onnx 1.17.0");
        made_input(&m, "x", DT_F32, "2,4");
        made_f32(&m, "m/dense_1/BiasAdd/ReadVariableOp:0", "4", 1);
        made_node(&m, "Add", "x,m/dense_1/BiasAdd/ReadVariableOp:0", "y")
            ->name = made_text(&m, rows[i].node);
        made_output(&m, "y");
        CHECK_MSG(made_import(&m) != NULL, "%s", made_message(&m));
        CHECK_MSG((strstr(made_message(&m), "keeps one of equal tensors") !=
                   NULL) == rows[i].told,
                  "%s: %s", rows[i].node, made_message(&m));
        made_end(&m);
    }
}

/* rms_norm without weight at opset 23 has a scale of the operand's shape. */
TEST_CASE(onnx_lost, rms_norm_without_weight) {
    Made m;
    made_start(&m, 23);
    made_input(&m, "x", DT_F32, "2,4");
    made_f32(&m, "w", "4", 1);
    made_f32(&m, "one", "", 1);
    made_node(&m, "Mul", "x,w", "s");
    made_node(&m, "Shape", "s", "shape");
    made_node(&m, "Expand", "one,shape", "ones");
    made_node(&m, "RMSNormalization", "s,ones", "y");
    made_output(&m, "y");
    Module *mod = made_import(&m);
    CHECK_MSG(mod != NULL, "%s", made_message(&m));
    made_end(&m);
}

/* x + 1e-8 of PyTorch's default export: the addition is gone. */
TEST_CASE(onnx_lost, epsilons) {
    static const struct {
        const char *type, *args, *code;
        bool sum, warned;
        const char *then; /* reads the node's result */
    } rows[] = {
        {"Log", "log.default](args = (%add,)", NULL, false, true, NULL},
        {"Sqrt", "sqrt.default](args = (%sub_1,)", NULL, false, true, NULL},
        {"Div", "div.Tensor](args = (%x, %add)", NULL, false, true, NULL},
        {"Div", "div.Tensor](args = (%add, %h)", NULL, false, false, NULL},
        {"Log", "log.default](args = (%h,)", NULL, false, false, NULL},
        {"Log", "log.default](args = (%x,)", NULL, false, false, NULL},
        {"Exp", "exp.default](args = (%add,)", NULL, false, false, NULL},
        {"Mul", "mul.Tensor](args = (%x, %add)", NULL, false, true, "Sqrt"},
        {"Mul", "mul.Tensor](args = (%add, %h)", NULL, false, false, "Sqrt"},
        {"Mul", "mul.Tensor](args = (%x, %add)", NULL, false, false, "Exp"},
        /* an equal sum replaced it, or it adds to a sum */
        {"Log", "log.default](args = (%add,)", "y = (a + b).log()", true, false,
         NULL},
        {"Log", "log.default](args = (%add,)", "y = (h + 1e-8).log()", true,
         true, NULL},
        {"Log", "log.default](args = (%add,)", "y = (h + s.eps).log()", true,
         true, NULL},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        Made m;
        made_start(&m, 18);
        m.model.producer_name = made_text(&m, "pytorch");
        made_metadata(&m, &m.graph.metadata_props, &m.graph.n_metadata_props,
                      "pkg.torch.export.ExportedProgram.graph_signature", "");
        made_input(&m, "x", DT_F32, "2,3");
        Onnx__NodeProto *h =
            made_node(&m, rows[i].sum ? "Add" : "Mul", "x,x", "h");
        made_metadata(&m, &h->metadata_props, &h->n_metadata_props,
                      "pkg.torch.onnx.fx_node",
                      rows[i].sum ? "%h : [num_users=1] = call_function["
                                    "target=torch.ops.aten.add.Tensor](args = "
                                    "(%x, %x), kwargs = {})"
                                  : "%h : [num_users=1] = call_function["
                                    "target=torch.ops.aten.mul.Tensor](args = "
                                    "(%x, %x), kwargs = {})");
        bool two = !strcmp(rows[i].type, "Div") || !strcmp(rows[i].type, "Mul");
        Onnx__NodeProto *n =
            made_node(&m, rows[i].type, two ? "x,h" : "h", "y");
        told(&m, n, rows[i].args);
        if (rows[i].then) made_node(&m, rows[i].then, "y", "z");
        if (rows[i].code)
            made_metadata(&m, &n->metadata_props, &n->n_metadata_props,
                          "pkg.torch.onnx.stack_trace",
                          arena_printf(m.a,
                                       "File \"m.py\", line 3, in forward"
                                       "\n    %s",
                                       rows[i].code));
        made_output(&m, rows[i].then ? "z" : "y");
        CHECK_MSG(made_import(&m) != NULL, "%s", made_message(&m));
        CHECK_MSG((strstr(made_message(&m), "an epsilon, to 'h'") != NULL) ==
                      rows[i].warned,
                  "row %zu: %s", i, made_message(&m));
        made_end(&m);
    }
}

/* padding_idx of TorchScript: its row of the table is zeros, and trains. */
TEST_CASE(onnx_lost, row_of_padding) {
    static const int64_t ids[] = {0, 2};
    static float table[12] = {0, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8};
    for (int padded = 0; padded < 2; padded++) {
        Made m;
        made_start(&m, 17);
        m.model.producer_name = made_text(&m, "pytorch");
        Onnx__TensorProto *t = made_f32(&m, "e.weight", "3,4", 1);
        if (padded) {
            t->n_float_data = 12;
            t->float_data = table;
            t->has_raw_data = false;
        }
        made_i64(&m, "ids", 2, ids);
        made_node(&m, "Gather", "e.weight,ids", "y");
        made_output(&m, "y");
        CHECK_MSG(made_import(&m) != NULL, "%s", made_message(&m));
        CHECK((strstr(made_message(&m), "row 0 of 'e.weight' is zeros") !=
               NULL) == padded);
        made_end(&m);
    }
}

/* max_norm of TorchScript: rows that were too long have equal norms. */
TEST_CASE(onnx_lost, rows_of_one_norm) {
    static const int64_t ids[] = {0, 2};
    static float tables[3][12] = {
        {3, 4, 0, 0, 7, 2, 3, 0, 0, 0, 0, 5},  /* rows 0 and 2 */
        {3, 4, 0, 0, 1, 2, 3, 0, 0, 0, 0, 6},  /* none */
        {3, 4, 0, 0, 1, 2, 3, 0, 3, 4, 0, 0}}; /* equal rows */
    for (int i = 0; i < 3; i++) {
        Made m;
        made_start(&m, 17);
        m.model.producer_name = made_text(&m, "pytorch");
        Onnx__TensorProto *t = made_f32(&m, "e.weight", "3,4", 1);
        t->n_float_data = 12;
        t->float_data = tables[i];
        t->has_raw_data = false;
        made_i64(&m, "ids", 2, ids);
        made_node(&m, "Gather", "e.weight,ids", "y");
        made_output(&m, "y");
        CHECK_MSG(made_import(&m) != NULL, "%s", made_message(&m));
        CHECK_MSG((strstr(made_message(&m), "of 'e.weight' have the norm 5, as "
                                            "max_norm") != NULL) == (i == 0),
                  "table %d: %s", i, made_message(&m));
        made_end(&m);
    }
}

/* InstanceNorm with running statistics, exported in training mode, with and
   without a weight. */
TEST_CASE(onnx_lost, statistics_of_instance_norm) {
    static const char *const operands[] = {"x,n.weight,n.bias", "x,ones,zeros"};
    static const char *const text[] = {
        "instance_norm.default](args = (%x, None, None, %b_n_mean, %b_n_var, "
        "True, 0.1, 1e-05, False), kwargs = {})",
        "instance_norm.default](args = (%b_n_mean_add, None, None, %b_n_mean, "
        "%b_n_var, True, 0.1, 1e-05, False), kwargs = {})"};
    for (int plain = 0; plain < 2; plain++) {
        Made m;
        made_start(&m, 20);
        m.model.producer_name = made_text(&m, "pytorch");
        made_metadata(&m, &m.graph.metadata_props, &m.graph.n_metadata_props,
                      "pkg.torch.export.ExportedProgram.graph_signature",
                      "p_w: PARAMETER target='w'\n"
                      "b_n_mean: BUFFER target='n.running_mean'\n"
                      "b_o_mean: BUFFER target='other.running_mean'\n"
                      "x: USER_INPUT\n");
        made_input(&m, "x", DT_F32, "2,3,4");
        made_f32(&m, "w", "3,1", 1);
        made_f32(&m, plain ? "ones" : "n.weight", "3", 1);
        made_f32(&m, plain ? "zeros" : "n.bias", "3", 1);
        told(&m, made_node(&m, "InstanceNormalization", operands[plain], "h"),
             text[plain]);
        made_node(&m, "Mul", "h,w", "y");
        made_output(&m, "y");
        CHECK_MSG(made_import(&m) != NULL, "%s", made_message(&m));
        CHECK_HAS(made_message(&m),
                  "statistics of InstanceNorm: 'n.running_mean';");
        made_end(&m);
    }
}

/* Nodes of torch.export without its metadata: onnxsim gives its own name as
   producer. */
TEST_CASE(onnx_lost, metadata_that_a_simplifier_dropped) {
    static const struct {
        const char *key, *node, *says;
    } rows[] = {
        {"onnxsim.removed_nodes", "node_mul", "warning: onnxsim wrote the"},
        {NULL, "node_mul", "warning: another tool (onnxslim"},
        {NULL, "/l/Mul", NULL}, /* TorchScript */
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        Made m;
        made_start(&m, 20);
        m.model.producer_name = made_text(&m, "pytorch");
        if (rows[i].key)
            made_metadata(&m, &m.model.metadata_props,
                          &m.model.n_metadata_props, rows[i].key, "");
        made_input(&m, "x", DT_F32, "2,3");
        made_f32(&m, "w", "3,3", 1);
        made_f32(&m, "scalar_tensor_default", "", 1);
        made_node(&m, "MatMul", "x,w", "h");
        made_node(&m, "Mul", "h,scalar_tensor_default", "y")->name =
            made_text(&m, rows[i].node);
        made_output(&m, "y");
        Module *mod = made_import(&m);
        REQUIRE(mod != NULL);
        bool told = strstr(made_message(&m), "wrote the exporter's file");
        CHECK(told == (rows[i].says != NULL));
        if (rows[i].says) CHECK_HAS(made_message(&m), rows[i].says);
        made_end(&m);
    }
}

/* v is not in the file: the model may not read it, or the exporter merged it.
   told: refused, or a warning. */
TEST_CASE(onnx_lost, parameters_that_equal_others) {
    static const struct {
        const char *args, *refused, *warned;
    } rows[] = {
        {"(args = (%x, %p_u), kwargs = {})", NULL, NULL},
        {"(args = (%x, %p_v), kwargs = {})", "dropped parameters: 'v'", NULL},
        {"(args = (%x, %unsqueeze_1), kwargs = {})", "dropped parameters: 'v'",
         NULL},
        {"(args = (%detach, %p_u), kwargs = {})", NULL,
         "lacks parameters of its signature: 'v'"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        Made m;
        made_start(&m, 18);
        m.model.producer_name = made_text(&m, "pytorch");
        made_input(&m, "x", DT_F32, "2,3");
        made_f32(&m, "u", "3", 1);
        made_mark(&m, "u", "pkg.torch.export.graph_signature.InputSpec.kind",
                  "PARAMETER");
        made_metadata(&m, &m.graph.metadata_props, &m.graph.n_metadata_props,
                      "pkg.torch.export.ExportedProgram.graph_signature",
                      "p_u: PARAMETER target='u'\np_v: PARAMETER "
                      "target='v'\nx: USER_INPUT\n\ny: USER_OUTPUT\n");
        told(&m, made_node(&m, "Mul", "x,u", "y"),
             arena_printf(m.a, "mul.Tensor]%s", rows[i].args));
        made_output(&m, "y");
        const Module *mod = made_import(&m);
        CHECK_MSG(!mod == !!rows[i].refused, "row %zu", i);
        CHECK_HAS(made_message(&m), rows[i].refused  ? rows[i].refused
                                    : rows[i].warned ? rows[i].warned
                                                     : "");
        CHECK_MSG(rows[i].warned || !strstr(made_message(&m), "lacks"),
                  "row %zu: %s", i, made_message(&m));
        made_end(&m);
    }
}

/* The name of operand k of node i, when onnx_unfold has restored what it
   can. */
static const char *operand_restored(Made *m, size_t i, size_t k) {
    size_t n;
    uint8_t *packed = model_pack(&m->model, &n);
    const uint8_t *bytes = packed;
    CHECK(onnx_unfold(m->a, &m->d, "m.onnx", &m->opt, &bytes, &n) == OK);
    Onnx__ModelProto *got = onnx__model_proto__unpack(NULL, n, bytes);
    free(packed);
    REQUIRE(got != NULL);
    const char *name = made_text(m, got->graph->node[i]->input[k]);
    onnx__model_proto__free_unpacked(got, NULL);
    return name;
}

/* The rest of a Linear of a quantiser, an Add, and a LayerNorm behind it.
   A tensor that the file has, or whose node reads something else, is not the
   merged one. n.bias: its first element; 0: merged into a.bias. */
TEST_CASE(onnx_lost, parameters_that_a_quantiser_keeps) {
    static const struct {
        const char *call;
        float bias;
        const char *reads;
    } rows[] = {
        {NULL, 2, "a.bias"},
        {NULL, 1, "a.bias"},
        {NULL, 0, "n.bias"},
        {"linear.default](args = (%x, %p_a_weight, %p_a_bias), kwargs = {})", 2,
         "a.bias"},
        {"layer_norm.default](args = (%x, [3], %p_n_bias), kwargs = {})", 2,
         "a.bias"},
        {"layer_norm.default](args = (%x, [3], %p_n_bias), kwargs = {})", 1,
         "n.bias"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        Made m;
        made_start(&m, 18);
        made_metadata(&m, &m.graph.metadata_props, &m.graph.n_metadata_props,
                      "pkg.torch.export.ExportedProgram.graph_signature",
                      "p_a_weight: PARAMETER target='a.weight'\n"
                      "p_a_bias: PARAMETER target='a.bias'\n"
                      "p_n_weight: PARAMETER target='n.weight'\n"
                      "p_n_bias: PARAMETER target='n.bias'\nx: USER_INPUT\n");
        made_input(&m, "x", DT_F32, "2,3");
        made_f32(&m, "a.bias", "3", 1);
        made_f32(&m, "n.weight", "3", 1);
        if (rows[i].bias > 0) made_f32(&m, "n.bias", "3", rows[i].bias);
        Onnx__NodeProto *add = made_node(&m, "Add", "x,a.bias", "h");
        if (rows[i].call) told(&m, add, rows[i].call);
        Onnx__NodeProto *n = made_node(
            &m, "LayerNormalization",
            rows[i].bias > 0 ? "h,n.weight,n.bias" : "h,n.weight", "y");
        made_metadata(&m, &n->metadata_props, &n->n_metadata_props,
                      "pkg.torch.onnx.name_scopes", "['', 'n', 'layer_norm']");
        made_output(&m, "y");
        CHECK_STR(operand_restored(&m, 0, 1), rows[i].reads);
        made_end(&m);
    }
}

/* F.binary_cross_entropy in torch.export's parts; one may differ: only the
   whole is the loss. rows: the probability that misses, the target in the
   second product, the number of t - 1, of the bound, of 1 - p. */
TEST_CASE(onnx_lost, binary_cross_entropy_is_of_one_probability) {
    static const struct {
        const char *miss, *target;
        float less, bound, more;
    } rows[] = {{"p", "t", 1, -100, 1}, {"q", "t", 1, -100, 1},
                {"p", "u", 1, -100, 1}, {"p", "t", 2, -100, 1},
                {"p", "t", 1, -50, 1},  {"p", "t", 1, -100, 2}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        Made m;
        made_start(&m, 18);
        m.model.producer_name = made_text(&m, "pytorch");
        for (const char *in = "pqtu"; *in; in++)
            made_input(&m, arena_printf(m.a, "%c", *in), DT_F32, "2,3");
        made_f32(&m, "val_1", "", rows[i].less);
        made_f32(&m, "val_2", "", rows[i].more);
        made_f32(&m, "val_3", "", rows[i].bound);
        made_node(&m, "Sub", "t,val_1", "t1");
        made_node(&m, "Neg", rows[i].miss, "minus");
        made_node(&m, "Add", "minus,val_2", "rest");
        made_node(&m, "Log", "rest", "log_rest");
        made_node(&m, "Max", "log_rest,val_3", "max_rest");
        made_node(&m, "Mul", "t1,max_rest", "missed");
        made_node(&m, "Log", "p", "log_p");
        made_node(&m, "Max", "log_p,val_3", "max_p");
        made_node(&m, "Mul", arena_printf(m.a, "%s,max_p", rows[i].target),
                  "hit");
        told(&m, made_node(&m, "Sub", "missed,hit", "y"),
             "sub.Tensor](args = (%missed, %hit), kwargs = {})");
        made_output(&m, "y");
        Module *mod = made_import(&m);
        if (!mod) FAIL("row %zu: %s", i, made_message(&m));
        CHECK_MSG((call_of(mod, "bce_loss") != NULL) == (i == 0), "row %zu", i);
        made_end(&m);
    }
}
