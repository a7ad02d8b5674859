/* SPDX-License-Identifier: Apache-2.0 */
/* onnx_train_test.c: distinguishes parameters of a model from its buffers
   and constants, and reports the others. */
#define _POSIX_C_SOURCE 200809L
#include <math.h>
#include <string.h>

#include "tests/harness.h"
#include "tests/support/onnx_util.h"

static void add_rule(Made *m, const char *glob, bool train) {
    vec_push(m->a, &m->opt.train_rules, (GlobRule){intern(glob), train});
}

TEST_CASE(onnx_train, unmarked_files_go_by_role_and_name) {
    Made m;
    made_linear(&m);
    Module *mod = made_import(&m);
    REQUIRE(mod != NULL);
    CHECK_EQ_INT(var_named(mod, "fc.weight")->kind, VAR_PARAM);
    CHECK_STR(var_named(mod, "fc.weight")->why, "operand of MatMul");
    CHECK_EQ_INT(var_named(mod, "val_7")->kind, VAR_FROZEN);
    CHECK_HAS(made_message(&m), "'val_7' does not train");
    CHECK(var_named(mod, "half") == NULL); /* a literal */
    made_end(&m);
}

/* Names with an exporter's counter are not names of modules. */
TEST_CASE(onnx_train, names_of_weights) {
    static const struct {
        const char *name;
        VarKind kind;
    } rows[] = {{"fc.weight", VAR_PARAM},
                {"w", VAR_PARAM},
                {"onnx::MatMul_12", VAR_FROZEN},
                {"onnx::w", VAR_FROZEN},
                {"val_7", VAR_FROZEN},
                {"val_", VAR_PARAM},
                {"val_7b", VAR_PARAM},
                {"value", VAR_PARAM},
                {"12", VAR_FROZEN},
                {"12a", VAR_PARAM},
                {"/fc/w", VAR_FROZEN},
                {"fc/w", VAR_PARAM},
                {"onnx.w", VAR_PARAM},
                {"conv1_onnx::w", VAR_PARAM}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        Made m;
        char in[40];
        made_start(&m, 17);
        made_input(&m, "x", DT_F32, "2,3");
        made_f32(&m, rows[i].name, "3,4", 0);
        made_f32(&m, "b", "4", 0); /* something trains */
        snprintf(in, sizeof in, "x,%s", rows[i].name);
        made_node(&m, "MatMul", in, "a");
        made_node(&m, "Add", "a,b", "y");
        made_output(&m, "y");
        Module *mod = made_import(&m);
        REQUIRE(mod != NULL);
        CHECK_MSG(var_named(mod, rows[i].name)->kind == rows[i].kind, "%s",
                  rows[i].name);
        made_end(&m);
    }
}

/* CLIP's scale of its logits, a gate, weights mixed by Softmax, a token:
   found through all ops that pass a gradient on, and through no others. */
TEST_CASE(onnx_train, a_number_that_is_used_by_way_of_a_function) {
    static const struct {
        const char *ops, *in; /* separated by blanks; number of each */
        bool trains;
    } rows[] = {
        {"Exp Sigmoid Softmax Dropout Abs Neg Log Sqrt Reciprocal Erf Tanh "
         "Softplus Sin Cos Relu LeakyRelu Elu Selu HardSigmoid HardSwish Clip "
         "Identity Flatten Squeeze Transpose ReduceSum ReduceMean ReduceL1 "
         "ReduceL2 ReduceSumSquare LogSoftmax",
         "m.scale", true},
        {"Reshape Expand Tile", "m.scale,one", true},
        {"Unsqueeze CumSum", "m.scale,axis", true},
        {"CastLike", "m.scale,y", true},
        {"CastLike", "y,m.scale", false},
        {"Floor Ceil Round Sign", "m.scale", false}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char ops[400], *rest = ops, *op;
        snprintf(ops, sizeof ops, "%s", rows[i].ops);
        while ((op = strtok_r(rest, " ", &rest))) {
            Made m;
            made_linear(&m);
            made_f32(&m, "m.scale", "1", 2.5);
            made_i64(&m, "one", 1, (int64_t[]){1});
            made_i64(&m, "axis", 1, (int64_t[]){0});
            made_node(&m, op, rows[i].in, "s");
            made_node(&m, "Mul", "y,s", "z");
            made_output(&m, "z");
            Module *mod = made_import(&m);
            if (!CHECK_MSG(mod != NULL, "%s: %s", op, made_message(&m)))
                continue;
            const Var *v = var_named(mod, "m.scale");
            bool trains = v && v->kind == VAR_PARAM;
            CHECK_MSG(trains == rows[i].trains, "%s %s", op,
                      trains ? "trains" : "does not train");
            if (trains) CHECK_STR(v->why, "operand of Mul");
            made_end(&m);
        }
    }
}

/* Every floating-point tensor in the file is mentioned. */
TEST_CASE(onnx_train, what_is_no_variable_is_listed) {
    Made m;
    made_linear(&m);
    made_f32(&m, "left.over", "3", 0);
    made_f32(&m, "mask", "4", -INFINITY);
    made_node(&m, "Add", "y,mask", "z");
    made_output(&m, "z");
    made_i64(&m, "shape", 2, (int64_t[]){2, 4});
    made_node(&m, "Reshape", "z,shape", "q");
    made_output(&m, "q");
    Module *mod = made_import(&m);
    REQUIRE(mod != NULL);
    REQUIRE(mod->literals.len == 3);
    const Literal *l = mod->literals.data;
    CHECK_STR(l[0].name, "half");
    CHECK_STR(l[0].why, "one element, in no weight's place: --train overrides");
    CHECK_STR(l[1].name, "left.over");
    CHECK_STR(l[1].why, "no node reads it");
    CHECK_EQ_INT(type_count(type_get(l[1].type)), 3);
    CHECK_STR(l[2].name, "mask");
    CHECK_STR(l[2].why, "not finite: a mask");
    add_rule(&m, "half", true);
    REQUIRE((mod = made_import(&m)) != NULL);
    CHECK_EQ_INT(var_named(mod, "half")->kind, VAR_PARAM);
    CHECK_EQ_INT(mod->literals.len, 2);
    made_end(&m);
}

TEST_CASE(onnx_train, the_users_last_match_wins) {
    Made m;
    made_linear(&m);
    add_rule(&m, "*", false);
    add_rule(&m, "fc.*", true);
    Module *mod = made_import(&m);
    REQUIRE(mod != NULL);
    CHECK_EQ_INT(var_named(mod, "fc.weight")->kind, VAR_PARAM);
    CHECK_STR(var_named(mod, "fc.weight")->why, "--train fc.*");
    CHECK_EQ_INT(var_named(mod, "val_7")->kind, VAR_FROZEN);
    CHECK_STR(var_named(mod, "val_7")->why, "--freeze *");
    add_rule(&m, "fx.*", true);
    CHECK(!made_import(&m));
    CHECK_HAS(made_message(&m), "--train 'fx.*' matches no initializer");
    made_end(&m);
}

#define KIND "pkg.torch.export.graph_signature.InputSpec.kind"

TEST_CASE(onnx_train, the_exporters_marks_win_over_names) {
    Made m;
    made_linear(&m);
    made_mark(&m, "val_7", KIND, "PARAMETER");
    made_mark(&m, "fc.bias", KIND, "BUFFER");
    Module *mod = made_import(&m);
    REQUIRE(mod != NULL);
    CHECK_EQ_INT(var_named(mod, "val_7")->kind, VAR_PARAM);
    CHECK_EQ_INT(var_named(mod, "fc.bias")->kind, VAR_FROZEN);
    CHECK_STR(var_named(mod, "fc.bias")->why, "BUFFER in the file");
    made_end(&m);
}

/* Half a power iteration, n = W v / |W v|, with the length bounded away from
   zero; of: NULL, or the value whose length is taken. */
static void normalised(Made *m, const char *w, const char *v, const char *n,
                       const char *of) {
    char in[80], mv[20], len[20], most[20];
    snprintf(mv, sizeof mv, "%s.mv", n);
    snprintf(len, sizeof len, "%s.len", n);
    snprintf(most, sizeof most, "%s.most", n);
    snprintf(in, sizeof in, "%s,%s", w, v);
    made_node(m, "MatMul", in, mv);
    made_int(m, made_node(m, "ReduceL2", of ? of : mv, len), "keepdims", 0);
    snprintf(in, sizeof in, "%s,eps", len);
    made_node(m, "Clip", in, most);
    snprintf(in, sizeof in, "%s,%s", mv, most);
    made_node(m, "Div", in, n);
}

static void sign(Made *m, const char *lines) {
    made_metadata(m, &m->graph.metadata_props, &m->graph.n_metadata_props,
                  "pkg.torch.export.ExportedProgram.graph_signature", lines);
}

/* y = x (W / u' W v)', as dynamo writes spectral_norm in training. */
static void spectral_model(Made *m, const char *signature, const char *of) {
    made_start(m, 18);
    made_input(m, "x", DT_F32, "2,3");
    made_f32(m, "fc.weight", "4,3", 1);
    made_mark(m, "fc.weight", KIND, "PARAMETER");
    made_f32(m, "fc.weight_v", "3", 1);
    made_mark(m, "fc.weight_v", KIND, "BUFFER");
    made_f32(m, "eps", "", 1e-12f);
    sign(m, signature);
    normalised(m, "fc.weight", "fc.weight_v", "u", of);
    made_node(m, "Transpose", "fc.weight", "t");
    normalised(m, "t", "u", "v", NULL);
    made_node(m, "Identity", "v", "v2");
    made_node(m, "MatMul", "fc.weight,v2", "wv");
    made_node(m, "MatMul", "u,wv", "sigma");
    made_node(m, "Div", "fc.weight,sigma", "w");
    made_node(m, "Transpose", "w", "wt");
    made_node(m, "MatMul", "x,wt", "y");
    made_output(m, "y");
}

static int count_calls(const Graph *g, const char *fn) {
    int n = 0;
    for (int i = 0; i < g->order.len; i++)
        n += !strcmp(callee_info(node_callee(node_at(g, i)))->text, fn);
    return n;
}

/* trace_test.c checks the values that it computes. */
TEST_CASE(onnx_train, what_the_forward_writes_is_a_buffer) {
    static const struct {
        const char *signature, *says;
        VarKind kind;
        int stops;
        const char *of;
    } all[] = {
        {"v: BUFFER_MUTATION target='fc.weight_v'", "", VAR_BUFFER, 2, NULL},
        {"v: BUFFER_MUTATION target='fc.weight_v'", "", VAR_BUFFER, 1,
         "fc.weight"},
        {"u: BUFFER_MUTATION target='fc.weight_u'\n"
         "v: BUFFER_MUTATION target='fc.weight_v'",
         "", VAR_BUFFER, 2, NULL},
        {"y: USER_OUTPUT", "", VAR_FROZEN, 0, NULL},
        {"gone: BUFFER_MUTATION target='fc.weight_v'",
         "writes 'fc.weight_v', but the file lacks the value", VAR_FROZEN, 0,
         NULL},
        {"x: BUFFER_MUTATION target='fc.weight_v'",
         "writes 'fc.weight_v', but the file lacks the value", VAR_FROZEN, 0,
         NULL},
        {"v: BUFFER_MUTATION target='gone'",
         "writes 'gone' in training, but the file lacks the buffer", VAR_FROZEN,
         1, NULL},
        {"v: BUFFER_MUTATION target='n.num_batches_tracked'", "", VAR_FROZEN, 1,
         NULL},
        {"v: BUFFER_MUTATION target='x'", "", VAR_FROZEN, 1, NULL},
    };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        Made m;
        spectral_model(&m, all[i].signature, all[i].of);
        Module *mod = made_import(&m);
        REQUIRE(mod != NULL);
        const Var *v = var_named(mod, "fc.weight_v");
        const Graph *g = mod->graphs.data[0];
        CHECK_EQ_INT(v->kind, all[i].kind);
        CHECK_EQ_INT(g->writes.len, v->kind == VAR_BUFFER);
        for (int k = 0; k < g->writes.len; k++)
            CHECK(value_var(g, g->writes.data[k].var) == v);
        CHECK_EQ_INT(count_calls(g, "stop"), all[i].stops);
        CHECK_HAS(made_message(&m), all[i].says);
        CHECK_MSG(*all[i].says || !*made_message(&m), "row %zu: %s", i,
                  made_message(&m));
        made_end(&m);
    }
}

TEST_CASE(onnx_train, what_it_writes_has_the_buffers_type) {
    Made m;
    spectral_model(&m, "u: BUFFER_MUTATION target='fc.weight_v'", NULL);
    CHECK(made_import(&m) == NULL);
    CHECK_HAS(made_message(&m),
              "the forward writes to 'fc.weight_v' has another type");
    made_end(&m);
}

/* A teacher is written (odd i: under no_grad()); what trains cannot be. */
TEST_CASE(onnx_train, a_parameter_that_the_forward_writes) {
    static const struct {
        bool stopped;
        const char *freeze, *says;
    } rows[] = {
        {true, NULL, NULL},
        {false, "t", NULL},
        {false, NULL, "writes the parameter 't' and a gradient reaches it"},
    };
    for (size_t i = 0; i < 2 * (sizeof rows / sizeof *rows); i++) {
        Made m;
        made_start(&m, 18);
        m.model.producer_name = made_text(&m, "pytorch");
        made_input(&m, "x", DT_F32, "2,3");
        made_f32(&m, "w", "3,3", 1);
        made_mark(&m, "w", KIND, "PARAMETER");
        made_f32(&m, "t", "3,3", 1);
        made_mark(&m, "t", KIND, "PARAMETER");
        sign(&m, "p_w: PARAMETER target='w'\np_t: PARAMETER target='t'\n"
                 "add: PARAMETER_MUTATION target='t'\nx: USER_INPUT\n");
        Onnx__NodeProto *n = made_node(&m, "Add", "t,w", "add");
        if (i % 2)
            made_metadata(&m, &n->metadata_props, &n->n_metadata_props,
                          "pkg.torch.onnx.stack_trace",
                          "File \"<eval_with_key>.7\" add_(p_t, p_w)");
        made_node(&m, "MatMul", "x,add", "target");
        n = made_node(&m, "Identity", "target", "kept");
        if (rows[i / 2].stopped)
            made_metadata(&m, &n->metadata_props, &n->n_metadata_props,
                          "pkg.torch.onnx.fx_node",
                          "%detach : [num_users=1] = call_function[target="
                          "torch.ops.aten.detach.default](args = (%linear,), "
                          "kwargs = {})");
        made_node(&m, "MatMul", "x,w", "p");
        made_node(&m, "Sub", "p,kept", "y");
        made_output(&m, "y");
        if (rows[i / 2].freeze) {
            GlobRule r = {.glob = intern(rows[i / 2].freeze)};
            vec_push(m.a, &m.opt.train_rules, r);
        }
        Module *mod = made_import(&m);
        CHECK_MSG((mod == NULL) == (rows[i / 2].says != NULL), "row %zu: %s", i,
                  made_message(&m));
        if (mod) CHECK_EQ_INT(var_named(mod, "t")->kind, VAR_BUFFER);
        if (!mod) CHECK_HAS(made_message(&m), rows[i / 2].says);
        made_end(&m);
    }
}

/* y = x w + b; b is first split into a sequence that the signature names. */
TEST_CASE(onnx_train, a_sequence_is_written_to_no_buffer) {
    Made m;
    int64_t zero = 0;
    made_start(&m, 17);
    made_input(&m, "x", DT_F32, "2,3");
    made_f32(&m, "w", "3,3", 1);
    made_mark(&m, "w", KIND, "PARAMETER");
    made_f32(&m, "b", "2,3", 1);
    made_mark(&m, "b", KIND, "BUFFER");
    made_i64(&m, "zero", 1, &zero);
    sign(&m, "s: BUFFER_MUTATION target='b'");
    made_node(&m, "SplitToSequence", "b", "s");
    made_node(&m, "Squeeze", "zero", "first");
    made_node(&m, "SequenceAt", "s,first", "e");
    made_node(&m, "MatMul", "x,w", "p");
    made_node(&m, "Add", "p,e", "y");
    made_output(&m, "y");
    CHECK(made_import(&m) == NULL);
    CHECK_HAS(made_message(&m), "the forward writes to 'b' has another type");
    made_end(&m);
}

/* y = x w (scale + q); the sum is written to scale: no gradient reaches q. */
TEST_CASE(onnx_train, a_parameter_of_what_is_written_alone) {
    Made m;
    made_start(&m, 18);
    made_input(&m, "x", DT_F32, "2,3");
    made_f32(&m, "w", "3", 1);
    made_mark(&m, "w", KIND, "PARAMETER");
    made_f32(&m, "q", "3", 1);
    made_mark(&m, "q", KIND, "PARAMETER");
    made_f32(&m, "scale", "3", 1);
    made_mark(&m, "scale", KIND, "BUFFER");
    sign(&m, "sum: BUFFER_MUTATION target='scale'");
    made_node(&m, "Add", "scale,q", "sum");
    made_node(&m, "Mul", "x,w", "p");
    made_node(&m, "Mul", "p,sum", "y");
    made_output(&m, "y");
    CHECK(made_import(&m) == NULL);
    CHECK_HAS(made_message(&m),
              "parameter 'q' reaches the outputs only through "
              "non-differentiable operands");
    made_end(&m);
}

/* One message lists all of them, each with its option. */
TEST_CASE(onnx_train, parameters_behind_operands_without_gradient) {
    Made m;
    made_linear(&m);
    made_f32(&m, "a.weight", "2,4", 1);
    made_f32(&m, "b.weight", "2,4", 1);
    made_mark(&m, "a.weight", KIND, "PARAMETER");
    made_mark(&m, "b.weight", KIND, "PARAMETER");
    made_node(&m, "Add", "a.weight,b.weight", "sum");
    made_node(&m, "Greater", "y,sum", "mask");
    made_node(&m, "Where", "mask,y,c", "z");
    made_output(&m, "z");
    CHECK(made_import(&m) == NULL);
    CHECK_HAS(made_message(&m),
              "parameters 'a.weight', 'b.weight' reach the outputs only "
              "through non-differentiable operands; --freeze 'a.weight' "
              "--freeze 'b.weight' keeps them as they are");
    made_end(&m);
}

/* steps += 1; y = x * steps */
TEST_CASE(onnx_train, integers_that_it_writes_are_told_of) {
    Made m;
    int64_t one = 1;
    made_start(&m, 18);
    made_input(&m, "x", DT_F32, "2");
    made_f32(&m, "w", "2", 1);
    made_mark(&m, "w", KIND, "PARAMETER");
    made_i64(&m, "steps", 1, &one);
    made_mark(&m, "steps", KIND, "BUFFER");
    sign(&m, "add: BUFFER_MUTATION target='steps'");
    made_node(&m, "Add", "steps,steps", "add");
    made_node(&m, "CastLike", "add,x", "f");
    made_node(&m, "Mul", "x,f", "z");
    made_node(&m, "Mul", "z,w", "y");
    made_output(&m, "y");
    REQUIRE(made_import(&m) != NULL);
    CHECK_HAS(made_message(&m), "writes 'steps', but it holds integers");
    made_end(&m);
}

TEST_CASE(onnx_train, a_spectral_norm_in_evaluation_mode_is_told_of) {
    Made m;
    made_start(&m, 18);
    made_input(&m, "x", DT_F32, "2,3");
    made_f32(&m, "fc.weight", "4,3", 1);
    made_f32(&m, "fc.weight_u", "4", 1);
    made_f32(&m, "fc.weight_v", "3", 1);
    made_mark(&m, "fc.weight", KIND, "PARAMETER");
    made_mark(&m, "fc.weight_u", KIND, "BUFFER");
    made_mark(&m, "fc.weight_v", KIND, "BUFFER");
    made_node(&m, "MatMul", "fc.weight,fc.weight_v", "wv");
    made_node(&m, "MatMul", "fc.weight_u,wv", "sigma");
    made_node(&m, "Div", "fc.weight,sigma", "w");
    made_node(&m, "Transpose", "w", "wt");
    made_node(&m, "MatMul", "x,wt", "y");
    made_output(&m, "y");
    REQUIRE(made_import(&m) != NULL);
    CHECK_HAS(made_message(&m),
              "'fc.weight_u' and the vector beside it stay as they are");
    made_end(&m);
}

TEST_CASE(onnx_train, a_mask_with_infinity_is_a_constant) {
    Made m;
    made_linear(&m);
    m.graph.initializer[1]->float_data[0] = -INFINITY;
    Module *mod = made_import(&m);
    REQUIRE(mod != NULL);
    CHECK(var_named(mod, "fc.bias") == NULL);
    made_end(&m);
}

TEST_CASE(onnx_train, a_weight_with_nan_is_reported) {
    Made m;
    made_linear(&m);
    m.graph.initializer[1]->float_data[0] = NAN;
    Module *mod = made_import(&m);
    REQUIRE(mod != NULL);
    CHECK(var_named(mod, "fc.bias") == NULL);
    CHECK_HAS(made_message(&m), "'fc.bias' holds NaN and does not train");
    made_mark(&m, "fc.bias", KIND, "PARAMETER");
    mod = made_import(&m);
    REQUIRE(mod != NULL);
    CHECK_EQ_INT(var_named(mod, "fc.bias")->kind, VAR_PARAM);
    made_end(&m);
}

TEST_CASE(onnx_train, a_parameter_behind_a_comparison_is_an_error) {
    Made m;
    made_start(&m, 17);
    made_input(&m, "x", DT_F32, "2");
    made_f32(&m, "w", "2", 0);
    made_mark(&m, "w", KIND, "PARAMETER");
    made_node(&m, "Less", "x,w", "y");
    made_output(&m, "y");
    CHECK(!made_import(&m));
    CHECK_HAS(made_message(&m), "non-differentiable");
    made_end(&m);
}

TEST_CASE(onnx_train, identity_of_an_initializer_is_a_parameter_of_its_own) {
    Made m;
    made_start(&m, 17);
    made_input(&m, "x", DT_F32, "2,3");
    made_f32(&m, "a.weight", "3", 1);
    made_node(&m, "Identity", "a.weight", "b.weight");
    made_node(&m, "Mul", "x,a.weight", "h");
    made_node(&m, "Mul", "h,b.weight", "y");
    made_output(&m, "y");
    Module *mod = made_import(&m);
    REQUIRE(mod != NULL);
    CHECK_EQ_INT(count_kind(mod, VAR_PARAM), 2);
    CHECK(var_named(mod, "b.weight") != NULL);
    made_end(&m);
}

TEST_CASE(onnx_train, half_precision_parameters_become_fp32_masters) {
    Made m;
    made_start(&m, 17);
    made_input(&m, "x", DT_F32, "2,3");
    Onnx__TensorProto *t = made_f32(&m, "fc.weight", "3,4", 0);
    made_int(&m, made_node(&m, "Cast", "fc.weight", "wide"), "to", 1);
    made_node(&m, "MatMul", "x,wide", "y");
    made_output(&m, "y");
    t->data_type = ONNX__TENSOR_PROTO__DATA_TYPE__BFLOAT16;
    t->n_float_data = 0;
    t->n_int32_data = 12;
    t->int32_data = NEW_ARRAY(m.a, int32_t, 12);
    for (int i = 0; i < 12; i++) t->int32_data[i] = 0x3f80; /* 1.0 */
    Module *mod = made_import(&m);
    REQUIRE(mod != NULL);
    const Var *v = var_named(mod, "fc.weight");
    CHECK_EQ_INT(type_get(v->type)->dtype, DT_F32);
    CHECK_EQ_INT(v->stored_dtype, DT_BF16);
    CHECK_NEAR(((const float *)v->init->data)[11], 1, 0);
    made_end(&m);
}

/* Two nodes with one name: one doubles, the other squares. */
/* Identity nodes that TorchScript leaves for equal tensors are separate
   parameters, unless they are outputs of the model. */
TEST_CASE(onnx_train, an_output_is_no_copy_of_a_parameter) {
    static const char *const outputs[][3] = {
        {"y", "z", "w.copy"}, {"y", "w.copy", "z"}, {"w.copy", "y", "z"}};
    for (int i = 0; i < 3; i++) {
        Made m;
        made_start(&m, 17);
        made_input(&m, "x", DT_F32, "2");
        made_f32(&m, "w", "2", 1);
        made_node(&m, "Identity", "w", "w.copy");
        made_node(&m, "Identity", "w", "w.other");
        made_node(&m, "Mul", "x,w", "y");
        made_node(&m, "Mul", "x,w.other", "z");
        for (int k = 0; k < 3; k++) made_output(&m, outputs[i][k]);
        Module *mod = made_import(&m);
        if (!CHECK_MSG(mod != NULL, "%s", made_message(&m))) return;
        CHECK(module_find_var(mod, "w") >= 0);
        CHECK(module_find_var(mod, "w.other") >= 0);
        CHECK(module_find_var(mod, "w.copy") < 0);
        made_end(&m);
    }
}

/* An operand that gives a shape may be computed from f32 numbers, which then do
   not train: x is f32[4], w counts up from `first` by a quarter. */
TEST_CASE(onnx_train, numbers_behind_shapes_do_not) {
    static const struct {
        const char *op, *in, *dims;
        int n;
        float first;
        int version;
    } cases[] = {
        {"ReduceSum", "x,i", "4", 1, 0, 18},
        {"ReduceMean", "x,i", "4", 1, 0, 18},
        {"ReduceMax", "x,i", "4", 1, 0, 18},
        {"ReduceMin", "x,i", "4", 1, 0, 18},
        {"ReduceProd", "x,i", "4", 1, 0, 18},
        {"ReduceSumSquare", "x,i", "4", 1, 0, 18},
        {"ReduceL1", "x,i", "4", 1, 0, 18},
        {"ReduceL2", "x,i", "4", 1, 0, 18},
        {"ReduceLogSum", "x,i", "4", 1, 0, 18},
        {"ReduceLogSumExp", "x,i", "4", 1, 0, 18},
        {"Reshape", "x,i", "4", 1, 4, 18},
        {"Squeeze", "x,i", "4,1", 1, 1, 18},
        {"Unsqueeze", "x,i", "4", 1, 1, 18},
        {"Expand", "x,i", "4", 1, 4, 18},
        {"Tile", "x,i", "4", 1, 2, 18},
        {"Slice", "x,i,k", "4", 1, 1, 18},
        {"Slice", "x,k,i", "4", 1, 4, 18},
        {"Slice", "x,k,k2,i", "4", 1, 0, 18},
        {"Slice", "x,k,k2,,i", "4", 1, 2, 18},
        {"Split", "x,i", "4", 1, 4, 18},
        {"Gather", "x,i", "4", 2, 1, 18},
        {"GatherElements", "x,i", "4", 3, 1, 18},
        {"CumSum", "x,i", "4", 1, 0, 18},
        {"Trilu", "x,i1", "3,4", 1, 1, 18},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        Made m;
        char dims[8];
        int64_t one = 1, four = 4, zero = 0;
        made_start(&m, cases[i].version);
        made_input(&m, "x", DT_F32, cases[i].dims);
        snprintf(dims, sizeof dims, "%d", cases[i].n);
        made_f32(&m, "w", dims, cases[i].first);
        made_f32(&m, "v", cases[i].dims, 1);
        made_i64(&m, "k", 1, &one);
        made_i64(&m, "k2", 1, &four);
        made_i64(&m, "k3", 1, &zero);
        made_int(&m, made_node(&m, "Cast", "w", "i"), "to", 7);
        made_node(&m, "Squeeze", "i,k3", "i1");
        made_node(&m, "Mul", "x,v", "p");
        char in[32];
        snprintf(in, sizeof in, "p%s", cases[i].in + 1);
        Onnx__NodeProto *n = made_node(&m, cases[i].op, in, "y");
        if (!strcmp(cases[i].op, "Split")) made_int(&m, n, "num_outputs", 1);
        made_output(&m, "y");
        Module *mod = made_import(&m);
        CHECK_MSG(mod != NULL, "%s: %s", cases[i].op, made_message(&m));
        for (int k = 0; mod && k < mod->vars.len; k++) {
            const Var *v = &mod->vars.data[k];
            bool trains = v->kind == VAR_PARAM;
            CHECK_MSG(trains == !strcmp(v->name, "v"), "%s: %s", cases[i].op,
                      v->name);
        }
        made_end(&m);
    }
}
