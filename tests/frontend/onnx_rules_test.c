/* SPDX-License-Identifier: Apache-2.0 */
/* onnx_rules_test.c: the tensors that train in files of each exporter, with the
   reason. Names and marks are those that the exporters write (versions in
   docs/exporters.md). */
#include <string.h>

#include "tests/harness.h"
#include "tests/support/onnx_util.h"

#define KIND   "pkg.torch.export.graph_signature.InputSpec.kind"
#define FOLDED "pkg.onnxscript.optimizer.folded_from"
#define SIGNED "pkg.torch.export.ExportedProgram.graph_signature"
#define FX     "pkg.torch.onnx.fx_node"

static void sign(Made *m, const char *lines) {
    made_metadata(m, &m->graph.metadata_props, &m->graph.n_metadata_props,
                  SIGNED, lines);
}

/* A model of the exporter with the input x[2,4]. */
static void begin_model(Made *m, const char *by) {
    made_start(m, 18);
    made_by(m, by);
    made_input(m, "x", DT_F32, "2,4");
}

/* A tensor used in y = op(x w, name), where w certainly trains. */
static void start(Made *m, const char *by, const char *name, const char *dims,
                  const char *op) {
    char in[80];
    begin_model(m, by);
    made_f32(m, "fc.weight", "4,4", 0);
    made_mark(m, "fc.weight", KIND, "PARAMETER");
    made_node(m, "MatMul", "x,fc.weight", "a");
    made_node(m, "Tanh", "a", "act");
    made_f32(m, name, dims, 0.5f);
    snprintf(in, sizeof in, "act,%s", name);
    made_node(m, op, in, "y");
    made_output(m, "y");
}

/* PyTorch's exporter over torch.export: its marks decide, and constants that
   its optimiser made from Python's numbers and tables do not train. */
TEST_CASE(onnx_rules, dynamo) {
    static const struct {
        const char *name, *dims, *mark, *folded, *op;
        Becomes becomes;
        const char *why;
    } rows[] = {
        {"scale", "", "PARAMETER", NULL, "Mul", TRAINS,
         "PARAMETER in the file"},
        {"mask", "4", "BUFFER", NULL, "Mul", FROZEN, "BUFFER in the file"},
        {"plain", "4", "CONSTANT_TENSOR", NULL, "Mul", FROZEN,
         "CONSTANT_TENSOR in the file"},
        {"lifted_tensor_0", "4,4", "CONSTANT_TENSOR", NULL, "MatMul", TRAINS,
         "by guess: operand of MatMul, kept outside of the module's "
         "parameters"},
        {"lifted_tensor_1", "4", "CONSTANT_TENSOR", NULL, "Add", TRAINS,
         "by guess: operand of Add, kept outside of the module's parameters"},
        {"scalar_tensor_default", "", NULL, "['val_0']", "Mul", CONSTANT,
         "a constant of the model's code"},
        {"val_1", "", NULL, NULL, "Add", CONSTANT,
         "a constant of the model's code"},
        {"view", "4", NULL, "['clone', 'lifted_tensor_0', 'val_1']", "Sub",
         CONSTANT, "a constant of the model's code"},
        {"arange", "4", NULL, "['val_0', 'val_1', 'val_2']", "Add", CONSTANT,
         "a constant of the model's code"},
        {"eye", "4,4", NULL, "['val_0']", "MatMul", CONSTANT,
         "a constant of the model's code"},
        {"clone", "4,4", NULL, "['lifted_tensor_0']", "MatMul", CONSTANT,
         "a constant of the model's code"},
        {"t", "4,4", NULL, "['lifted_tensor_0']", "MatMul", TRAINS,
         "by guess: folded from 'lifted_tensor_0'"},
        {"u", "4,4", NULL, NULL, "MatMul", TRAINS,
         "by guess: operand of MatMul, without a mark"},
        {"conv.weight", "4,4", NULL, NULL, "MatMul", TRAINS,
         "PARAMETER of the file's signature"},
        {"table", "4", NULL, NULL, "Mul", FROZEN,
         "no PARAMETER of the file's signature"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        Made m;
        start(&m, "pytorch", rows[i].name, rows[i].dims, rows[i].op);
        sign(&m, "p_fc_weight: PARAMETER target='fc.weight'\n"
                 "c_lifted_tensor_0: CONSTANT_TENSOR target='lifted_tensor_0'\n"
                 "b_table: BUFFER target='table'\n"
                 "p_conv_weight: PARAMETER target='conv.weight'\n"
                 "x: USER_INPUT\n");
        m.opt.accept_folded = true; /* 'conv.weight' may have been lost */
        if (rows[i].mark) made_mark(&m, rows[i].name, KIND, rows[i].mark);
        if (rows[i].folded) made_mark(&m, rows[i].name, FOLDED, rows[i].folded);
        made_becomes(&m, rows[i].name, rows[i].becomes, rows[i].why);
        made_end(&m);
    }
}

/* A clone reads a torch.tensor(..) inside a forward. */
TEST_CASE(onnx_rules, tensors_that_a_forward_makes) {
    Made m;
    start(&m, "pytorch", "fc.bias", "4", "Add");
    made_mark(&m, "fc.bias", KIND, "PARAMETER");
    made_f32(&m, "lifted_tensor_0", "4", 1);
    made_mark(&m, "lifted_tensor_0", KIND, "CONSTANT_TENSOR");
    sign(&m, "c_lifted_tensor_0: CONSTANT_TENSOR target='lifted_tensor_0'\n");
    Onnx__NodeProto *n = made_node(&m, "Identity", "lifted_tensor_0", "clone");
    made_metadata(&m, &n->metadata_props, &n->n_metadata_props, FX,
                  "%clone : [num_users=1] = call_function[target="
                  "torch.ops.aten.clone.default](args = "
                  "(%c_lifted_tensor_0,), kwargs = {})");
    made_node(&m, "Mul", "y,clone", "z");
    made_output(&m, "z");
    made_becomes(&m, "lifted_tensor_0", FROZEN, "CONSTANT_TENSOR in the file");
    made_end(&m);
}

/* ampc.torch.export marks all parameters: what a closure holds is none. */
TEST_CASE(onnx_rules, captured_tensors_in_files_of_our_own) {
    Made m;
    start(&m, "pytorch", "lifted_tensor_0", "4", "Add");
    made_mark(&m, "lifted_tensor_0", KIND, "CONSTANT_TENSOR");
    sign(&m, "c_lifted_tensor_0: CONSTANT_TENSOR target='lifted_tensor_0'\n");
    made_metadata(&m, &m.model.metadata_props, &m.model.n_metadata_props,
                  "ampc.torch.export", "1");
    made_becomes(&m, "lifted_tensor_0", FROZEN, "CONSTANT_TENSOR in the file");
    made_end(&m);
}

/* Weights that --accept-folded keeps still train. */
TEST_CASE(onnx_rules, what_was_folded_of_a_parameter) {
    Made m;
    start(&m, "pytorch", "val_3", "4,4", "MatMul");
    sign(&m, "p_head_weight: PARAMETER target='head.weight'\n");
    made_mark(&m, "val_3", FOLDED, "['head.weight', 'val_2']");
    m.opt.accept_folded = true;
    made_becomes(&m, "val_3", TRAINS, "folded from 'head.weight'");
    made_end(&m);
}

TEST_CASE(onnx_rules, other_exporters) {
    static const struct {
        const char *by, *name, *dims, *op;
        Becomes becomes;
        const char *why;
    } rows[] = {
        /* TorchScript has no marks, but names of modules */
        {"pytorch", "logit_scale", "", "Mul", TRAINS,
         "by guess: operand of Mul"},
        {"pytorch", "head.weight", "4,4", "MatMul", TRAINS,
         "operand of MatMul"},
        {"pytorch", "ls.gamma", "4", "Mul", TRAINS, "by guess: operand of Mul"},
        {"pytorch", "norm.mean", "4", "Sub", FROZEN, "named like a buffer"},
        {"pytorch", "std", "4", "Div", FROZEN, "named like a buffer"},
        {"pytorch", "attn.causal_mask", "4", "Mul", FROZEN,
         "named like a buffer"},
        {"pytorch", "action_bias", "4", "Add", FROZEN, "named like a buffer"},
        {"pytorch", "loss_bias", "4", "Add", TRAINS,
         "by guess: operand of Add"},
        {"pytorch", "a.in_proj_bias", "4", "Add", TRAINS, "operand of Add"},
        {"pytorch", "sn.weight_v", "4", "Mul", FROZEN, "named like a buffer"},
        {"pytorch", "rope.cos_cached", "4", "Mul", FROZEN,
         "named like a buffer"},
        {"pytorch", "stem.mean", "4,4", "MatMul", TRAINS,
         "by guess: operand of MatMul"},
        {"pytorch", "proj", "4,4", "MatMul", TRAINS,
         "by guess: operand of MatMul"},
        {"pytorch", "onnx::Mul_7", "4", "Mul", FROZEN,
         "its name is not a module path"},
        {"pytorch", "weight", "4,4", "MatMul", TRAINS,
         "by guess: operand of MatMul"},
        {"pytorch", "p", "", "Pow", TRAINS, "by guess: a gradient reaches it"},
        {"pytorch", "floor", "4", "Max", TRAINS,
         "by guess: a gradient reaches it"},
        {"pytorch", "alpha", "", "Clip", TRAINS,
         "by guess: a gradient reaches it"},
        {"", "alpha", "", "Clip", CONSTANT,
         "one element, in no weight's place: --train overrides"},
        /* jax2onnx numbers its tensors */
        {"jax2onnx", "const_0", "4,4", "MatMul", TRAINS, "operand of MatMul"},
        {"jax2onnx", "const_7", "", "Add", CONSTANT,
         "a number, of the code or a parameter"},
        {"jax2onnx", "eps_0", "", "Add", CONSTANT,
         "a number, of the code or a parameter"},
        {"jax2onnx", "const_2", "4", "Mul", TRAINS, "by guess: operand of Mul"},
        {"jax2onnx", "const_3", "4", "Pow", TRAINS,
         "by guess: a gradient reaches it"},
        {"jax2onnx", "const_4", "1,4", "Max", TRAINS,
         "by guess: a gradient reaches it"},
        /* tf2onnx uses the names of TensorFlow's nodes */
        {"jax2onnx", "scale_c_0", "4", "Mul", CONSTANT,
         "a constant that the exporter added"},
        {"jax2onnx", "bias_c_12", "4", "Add", CONSTANT,
         "a constant that the exporter added"},
        {"tf2onnx 1.17.0", "m/dense/MatMul/ReadVariableOp:0", "4,4", "MatMul",
         TRAINS, "operand of MatMul"},
        {"tf2onnx 1.17.0", "m/dense/BiasAdd/ReadVariableOp:0", "4", "Add",
         TRAINS, "operand of Add"},
        {"tf2onnx 1.17.0", "m/layer_normalization_1/Reshape:0", "1,4", "Mul",
         TRAINS, "operand of Mul"},
        {"tf2onnx 1.17.0", "m/layer_normalization_1/add/y:0", "", "Add",
         CONSTANT, "a number of the model's code"},
        {"tf2onnx 1.17.0", "m/mul/y:0", "4", "Mul", CONSTANT,
         "a constant of the model's code"},
        {"tf2onnx 1.17.0", "Const:0", "4,4", "MatMul", TRAINS,
         "by guess: operand of MatMul, no variable"},
        {"tf2onnx 1.17.0", "m/Const_3:0", "4", "Add", CONSTANT,
         "a constant of the model's code"},
        {"tf2onnx 1.17.0", "ConstantFolding/m/truediv_recip:0", "1,4", "Mul",
         CONSTANT, "a constant of the model's code"},
        {"tf2onnx 1.17.0", "m/table_1/mul:0", "4", "Add", TRAINS,
         "by guess: operand of Add, computed beforehand"},
        {"tf2onnx 1.17.0", "transpose:0", "4,4", "MatMul", TRAINS,
         "by guess: operand of MatMul, computed beforehand"},
        {"tf2onnx 1.17.0", "strided_slice_1:0", "4,4", "MatMul", TRAINS,
         "by guess: operand of MatMul, computed beforehand"},
        {"tf2onnx 1.17.0", "conv1d/ExpandDims_1:0", "4,4", "MatMul", TRAINS,
         "operand of MatMul"},
        {"tf2onnx 1.17.0", "m/gru_cell/Squeeze_1:0", "4", "Add", TRAINS,
         "operand of Add"},
        {"tf2onnx 1.17.0", "m/const_fold_opt__23", "4,4", "MatMul", TRAINS,
         "operand of MatMul"},
        /* skl2onnx */
        {"skl2onnx", "coefficient1", "4,4", "MatMul", TRAINS,
         "operand of MatMul"},
        {"skl2onnx", "intercepts", "1,4", "Add", TRAINS, "operand of Add"},
        {"skl2onnx", "unity", "", "Sub", CONSTANT,
         "no coefficient or intercept"},
        {"skl2onnx", "Di_Divcst", "4", "Div", CONSTANT,
         "no coefficient or intercept"},
        /* paddle2onnx */
        {"", "linear_0.w_0", "4,4", "MatMul", TRAINS, "operand of MatMul"},
        {"", "p2o.helper.constant.3", "4", "Mul", FROZEN,
         "its name is not a module path"},
        {"paddle2onnx", "create_parameter_0.w_0", "1", "Mul", TRAINS,
         "operand of Mul"},
        {"paddle2onnx", "auto.cast.1", "1", "Mul", CONSTANT,
         "a constant of the model's code"},
        {"paddle2onnx", "p2o.pd_op.assign_value_.0.0", "4", "Add", CONSTANT,
         "a constant of the model's code"},
        {"paddle2onnx", "generated_tensor_10", "4,4", "MatMul", FROZEN,
         "a tensor without a parameter's name"},
        {"paddle2onnx", "p2o.pd_op.transpose.0.0", "4,4", "MatMul", FROZEN,
         "its name is not a module path"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        Made m;
        start(&m, rows[i].by, rows[i].name, rows[i].dims, rows[i].op);
        made_becomes(&m, rows[i].name, rows[i].becomes, rows[i].why);
        made_end(&m);
    }
}

/* The kernel of a flax layer, and the matrix of x @ w. */
TEST_CASE(onnx_rules, products_of_jax) {
    static const struct {
        const char *bias, *dims, *why;
    } rows[] = {
        {"const_1", "4", "operand of Gemm"},
        {"dot_bias_0", "", "by guess: operand of Gemm, not of a layer"}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        Made m;
        begin_model(&m, "jax2onnx");
        made_f32(&m, "const_0", "4,4", 0.5f);
        made_f32(&m, rows[i].bias, rows[i].dims, 0.5f);
        made_node(&m, "Gemm", arena_printf(m.a, "x,const_0,%s", rows[i].bias),
                  "y");
        made_output(&m, "y");
        made_becomes(&m, "const_0", TRAINS, rows[i].why);
        made_end(&m);
    }
}

/* Names of torch.export without its metadata, which a simplifier dropped. */
TEST_CASE(onnx_rules, names_that_a_simplifier_left) {
    static const struct {
        const char *name, *dims, *op;
        Becomes becomes;
        const char *why;
    } rows[] = {
        {"scalar_tensor_default", "", "Mul", CONSTANT,
         "a constant of the model's code"},
        {"val_9", "4", "Add", CONSTANT, "a constant of the model's code"},
        {"gain", "4", "Mul", TRAINS, "by guess: operand of Mul"},
        {"head.weight", "4,4", "MatMul", TRAINS, "operand of MatMul"},
        {"val_9", "4,4", "MatMul", TRAINS,
         "by guess: operand of MatMul, transposed beforehand"},
        {"onnx::MatMul_9", "4,4", "MatMul", TRAINS,
         "folded by the exporter: operand of MatMul"},
    };
    for (size_t i = 0; i < 2 * sizeof rows / sizeof *rows; i++) {
        Made m;
        start(&m, i % 2 ? "pytorch" : "onnxruntime.transformers",
              rows[i / 2].name, rows[i / 2].dims, rows[i / 2].op);
        m.graph.node[0]->name = made_text(&m, "node_linear");
        made_becomes(&m, rows[i / 2].name, rows[i / 2].becomes,
                     rows[i / 2].why);
        made_end(&m);
    }
}

/* What reads the product tells whether the matrix belongs to a layer. */
TEST_CASE(onnx_rules, transposed_weights_beside_biases) {
    static const struct {
        const char *tensor, *nodes, *why;
    } rows[] = {
        {"fc.bias 4", "Gemm x,val_9,fc.bias y", "the weight beside 'fc.bias'"},
        {"fc.bias 4", "MatMul x,val_9 h; Add fc.bias,h y",
         "the weight beside 'fc.bias'"},
        {"fc.bias 4", "MatMul x,val_9 h; Mul h,fc.bias y",
         "by guess: operand of MatMul, transposed beforehand"},
        {"gain 4", "MatMul x,val_9 h; Add h,gain y",
         "by guess: operand of MatMul, transposed beforehand"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        Made m;
        begin_model(&m, "pytorch");
        made_weights(&m, "val_9 4,4");
        made_weights(&m, rows[i].tensor);
        made_nodes(&m, rows[i].nodes);
        m.graph.node[0]->name = made_text(&m, "node_linear");
        made_becomes(&m, "val_9", TRAINS, rows[i].why);
        made_end(&m);
    }
}

/* (x - mean) / std of an input, whatever the names. A separate matrix, and a
   bias that is subtracted first, as in sparse autoencoders, train. */
TEST_CASE(onnx_rules, normalised_inputs) {
    static const char *const by[] = {"pytorch", "jax2onnx", "Spox", ""};
    for (size_t i = 0; i < sizeof by / sizeof *by; i++) {
        Made m;
        begin_model(&m, by[i]);
        made_weights(&m, "const_2 4; const_3 4,4; const_4 4; const_0 1,4; "
                         "const_1 1,4;");
        made_nodes(&m, "Transpose x xt; Transpose xt xtt; Sub xtt,const_0 s; "
                       "Sqrt const_1 root; Div s,root d; Sub d,const_2 e; "
                       "MatMul e,const_3 p; Div p,const_4 y;");
        made_becomes(&m, "const_0", FROZEN, "normalises an input (Div)");
        made_becomes(&m, "const_1", FROZEN, "normalises an input (Div)");
        Module *mod = made_import(&m);
        REQUIRE(mod != NULL);
        CHECK_EQ_INT(var_named(mod, "const_2")->kind, VAR_PARAM);
        CHECK_EQ_INT(var_named(mod, "const_3")->kind, VAR_PARAM);
        CHECK_EQ_INT(var_named(mod, "const_4")->kind, VAR_PARAM);
        made_end(&m);
    }
}

/* TorchScript writes the parameters of a module before its buffers. */
TEST_CASE(onnx_rules, order_within_a_module) {
    Made m;
    begin_model(&m, "pytorch");
    made_weights(&m, "a.gain 4; a.weight 4,4; b.weight 4,4;");
    made_i64(&m, "b.steps", 1, (int64_t[]){4});
    made_weights(&m, "b.table 4; c.table 4;");
    made_nodes(&m, "MatMul x,a.weight p; Mul p,a.gain q; MatMul q,b.weight r; "
                   "Mul r,b.table s; Add s,c.table t; Expand t,b.steps y;");
    made_becomes(&m, "a.gain", TRAINS,
                 "its module writes it before 'a.weight'");
    made_becomes(&m, "b.table", FROZEN,
                 "its module writes it behind 'b.steps'");
    made_becomes(&m, "c.table", TRAINS, "by guess: operand of Add");
    made_end(&m);
}

/* A gain and an offset that follow no normalisation may be buffers, those of a
   frozen BatchNorm. */
TEST_CASE(onnx_rules, gains_of_no_normalisation) {
    Made m;
    begin_model(&m, "pytorch");
    made_weights(&m,
                 "a.weight 4; a.bias 4; m.weight 4,4; m.bias 4; n.weight 4; "
                 "n.bias 4; d 4;");
    made_nodes(&m,
               "Mul x,a.weight p; Add p,a.bias q; MatMul q,m.weight r; "
               "Add r,m.bias s; Div s,d t; Mul t,n.weight u; Add u,n.bias y;");
    made_becomes(&m, "a.weight", TRAINS, "by guess: operand of Mul");
    made_becomes(&m, "a.bias", TRAINS, "by guess: operand of Add");
    made_becomes(&m, "m.bias", TRAINS, "operand of Add");
    made_becomes(&m, "n.weight", TRAINS, "operand of Mul");
    made_becomes(&m, "n.bias", TRAINS, "operand of Add");
    made_end(&m);
}

/* A matrix in a buffer is not certainly a weight; nor are tensors before it. */
TEST_CASE(onnx_rules, order_of_buffers) {
    Made m;
    begin_model(&m, "pytorch");
    made_weights(&m, "support 4; project 4,4;");
    made_nodes(&m, "Mul x,support s; MatMul s,project y;");
    made_becomes(&m, "support", TRAINS, "by guess: operand of Mul");
    made_becomes(&m, "project", TRAINS, "by guess: operand of MatMul");
    made_end(&m);
}

/* BatchNormalization in evaluation mode, as Keras on JAX writes it: the
   scale and the bias train, the statistics do not. */
#define SCALED                                                                 \
    "MatMul x,w p; Add variance,eps v; Sqrt v root; Div one,root inv; "        \
    "Mul inv,scale by; "
TEST_CASE(onnx_rules, statistics_in_arithmetic) {
    static const char *const forms[] = {
        SCALED "Sub p,mean less; Mul less,by scaled; Add scaled,offset y;",
        SCALED "Neg mean less; Mul less,by shift; Add shift,offset add; "
               "Mul p,by scaled; Add scaled,add y;"};
    for (int form = 0; form < 2; form++) {
        Made m;
        begin_model(&m, "jax2onnx");
        made_weights(&m, "w 4,4; mean 4; variance 4; scale 4; offset 4;");
        made_f32(&m, "eps", "", 1e-3f);
        made_f32(&m, "one", "", 1);
        made_nodes(&m, forms[form]);
        made_becomes(&m, "variance", FROZEN,
                     "running statistics, as Sqrt has them");
        made_becomes(&m, "mean", FROZEN, "running statistics, as Mul has them");
        made_becomes(&m, "scale", TRAINS, "by guess: operand of Mul");
        made_becomes(&m, "offset", TRAINS, "by guess: operand of Add");
        CHECK_HAS(made_message(&m), "2 tensors are running statistics of "
                                    "normalisations in the arithmetic of "
                                    "evaluation, first 'mean'");
        made_end(&m);
    }
}

/* Weight standardisation, a weight divided by its own length, and a gain that
   is learned as a logarithm: none is a running statistic. */
TEST_CASE(onnx_rules, weights_that_normalise_themselves) {
    static const char *const forms[] = {
        "ReduceMean w m; Sub w,m c; Mul c,c s; ReduceMean s v; Add v,eps e; "
        "Sqrt e d; Div c,d n; MatMul x,n y;",
        "Mul w,w s; ReduceSum s v; Add v,eps e; Sqrt e d; Div w,d n; "
        "MatMul x,n y;",
        "Exp w s; Add s,eps e; Sqrt e d; Div one,d n; MatMul x,n y;"};
    static const char *const by[] = {"pytorch", "jax2onnx", "Spox"};
    for (int i = 0; i < 9; i++) {
        Made m;
        begin_model(&m, by[i % 3]);
        made_weights(&m, "w 4,4;");
        made_f32(&m, "eps", "", 1e-4f);
        made_f32(&m, "one", "", 1);
        made_nodes(&m, forms[i / 3]);
        Module *mod = made_import(&m);
        REQUIRE(mod != NULL);
        const Var *v = var_named(mod, "w");
        CHECK_MSG(v && v->kind == VAR_PARAM, "%d: %s", i, v ? v->why : "none");
        made_end(&m);
    }
}

TEST_CASE(onnx_rules, a_table_of_sines_and_cosines) {
    for (int halves = 0; halves < 2; halves++) {
        Made m;
        start(&m, "pytorch", "pos_embed", "2,4", "Add");
        Onnx__TensorProto *t = m.graph.initializer[m.graph.n_initializer - 1];
        float turns[] = {0, 1, 0, 1, 0.84f, 0.54f, 0.01f, 0.99f},
              half[] = {0, 0, 1, 1, 0.84f, 0.01f, 0.54f, 0.99f};
        memcpy(t->float_data, halves ? half : turns, sizeof turns);
        made_becomes(&m, "pos_embed", FROZEN, "a table of sines and cosines");
        t->float_data[7] = 1.5f;
        made_becomes(&m, "pos_embed", TRAINS, "by guess: operand of Add");
        made_end(&m);
    }
}

/* Names that modules of PyTorch register buffers under, alone and in a module,
   and names beside them that parameters have. */
TEST_CASE(onnx_rules, names_of_buffers) {
    static const char *const buffers[] = {
        "mean",        "std",          "var",          "variance",
        "pixel_mean",  "pixel_std",    "running_mean", "running_var",
        "causal_mask", "mask",         "pe",           "inv_freq",
        "freqs",       "freqs_cos",    "cos",          "sin",
        "cos_cached",  "sin_cached",   "rope_cos",     "rope_sin",
        "anchors",     "anchor_grid",  "grid",         "stride",
        "strides",     "eps",          "epsilon",      "class_weights",
        "pos_weight",  "window",       "ema",          "embed_ema",
        "ema_count",   "cluster_size", "embed_avg",    "position_ids",
        "weight_u",    "weight_v",     "action_scale", "action_bias"};
    static const char *const others[] = {
        "scale",  "bias",    "weight_g", "meaning", "runs",    "masked",
        "cosine", "gridded", "pes",      "emac",    "standard"};
    int n = sizeof buffers / sizeof *buffers;
    int all = n + (int)(sizeof others / sizeof *others);
    for (int i = 0; i < 2 * all; i++) {
        Made m;
        int k = i / 2;
        const char *name = k < n ? buffers[k] : others[k - n];
        char path[60];
        snprintf(path, sizeof path, "%s%s", i % 2 ? "block.0." : "", name);
        start(&m, "pytorch", path, "4", "Mul");
        made_becomes(&m, path, k < n ? FROZEN : TRAINS,
                     k < n ? "named like a buffer"
                           : "by guess: operand of Mul");
        made_end(&m);
    }
}

/* An infinity hides no NaN, whichever is first. */
TEST_CASE(onnx_rules, tensors_that_are_not_finite) {
    for (int i = 0; i < 9; i++) {
        static const float value[] = {1, -INFINITY, NAN};
        Made m;
        start(&m, "pytorch", "fc.bias", "4", "Add");
        float *data = m.graph.initializer[1]->float_data;
        data[1] = value[i / 3];
        data[3] = value[i % 3];
        bool nan = i / 3 == 2 || i % 3 == 2;
        Module *mod = made_import(&m);
        REQUIRE(mod != NULL);
        const char *text = made_message(&m);
        CHECK_MSG(!strstr(text, "'fc.bias' holds NaN") == !nan, "%d: %s", i,
                  text);
        made_end(&m);
    }
}
