/* SPDX-License-Identifier: Apache-2.0 */
/* newcomer_test.c: mistakes that people make first, and their messages;
   others are in onnx_import_test.c (dimensions, folded exports, soft labels)
   and cli_test.c. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "frontend/frontend.h"
#include "frontend/onnx/onnx.h"
#include "ir/fn/fn.h"
#include "tests/harness.h"
#include "tests/support/onnx_util.h"

/* x: f32[2,3] times fc.weight -> y; `weight` is another name for it. */
static Onnx__TensorProto *linear(Made *m, const char *weight) {
    char operands[80];
    made_start(m, 17);
    made_input(m, "x", DT_F32, "2,3");
    Onnx__TensorProto *w = made_f32(m, weight, "3,4", 1);
    snprintf(operands, sizeof operands, "x,%s", weight);
    made_node(m, "MatMul", operands, "y");
    made_output(m, "y");
    return w;
}

static void refused(Made *m, const char *why, const char *advice) {
    CHECK(made_import(m) == NULL);
    CHECK_HAS(made_message(m), why);
    CHECK_HAS(made_message(m), advice);
    made_end(m);
}

static void warned(Made *m, const char *what, const char *advice) {
    CHECK(made_import(m) != NULL);
    CHECK_HAS(made_message(m), what);
    CHECK_HAS(made_message(m), advice);
    made_end(m);
}

TEST_CASE(newcomer, exports_in_inference_form) {
    Made m;
    linear(&m, "onnx::MatMul_12");
    warned(&m,
           "a folded export: 'onnx::MatMul_12' has no name of the model: ties",
           "training=TrainingMode.TRAINING, do_constant_folding=False");
    linear(&m, "onnx::MatMul_12");
    warned(&m,
           "'onnx::MatMul_12' does not train: its name is not a module path",
           "--train 'onnx::MatMul_12' overrides");
}

TEST_CASE(newcomer, exports_under_autocast) {
    Made m;
    Onnx__TensorProto *w = linear(&m, "_to_copy_3");
    static uint8_t zeros[24];
    w->data_type = 10; /* fp16 */
    w->n_float_data = 0;
    w->has_raw_data = 1;
    w->raw_data.data = zeros;
    w->raw_data.len = sizeof zeros;
    refused(&m, "16-bit copies replaced the parameters: '_to_copy_3'",
            "optimize=False");
}

TEST_CASE(newcomer, exports_whose_equal_parameters_were_merged) {
    Made m;
    linear(&m, "fc.weight");
    made_metadata(&m, &m.graph.metadata_props, &m.graph.n_metadata_props,
                  "pkg.torch.export.ExportedProgram.graph_signature",
                  "fc.weight: PARAMETER target='fc.weight'\n"
                  "fc.bias: PARAMETER target='fc.bias'\n");
    refused(&m, "the exporter merged or dropped parameters: 'fc.bias'",
            "optimize=False");
}

TEST_CASE(newcomer, of_many_lost_parameters_eight_are_named) {
    Made m;
    char lost[600];
    size_t n = 0;
    linear(&m, "fc.weight");
    for (int i = 0; i < 10; i++)
        n += (size_t)snprintf(lost + n, sizeof lost - n,
                              "b%d: PARAMETER target='b%d'\n", i, i);
    made_metadata(&m, &m.graph.metadata_props, &m.graph.n_metadata_props,
                  "pkg.torch.export.ExportedProgram.graph_signature", lost);
    refused(&m, "'b6', 'b7' and 2 more; re-export", "optimize=False");
}

static void start_body(Made *body) {
    made_start(body, 17);
    made_input(body, "i", DT_I64, "");
    made_input(body, "go", DT_BOOL, "");
}

/* The loop's result is y, an output. */
static void loop(Made *m, const char *in, Made *body) {
    made_attr(m, made_node(m, "Loop", in, "y"), "body",
              ONNX__ATTRIBUTE_PROTO__ATTRIBUTE_TYPE__GRAPH)
        ->g = &body->graph;
    made_output(m, "y");
}

TEST_CASE(newcomer, control_flow_over_data) {
    Made m;
    made_start(&m, 17);
    made_input(&m, "c", DT_BOOL, "");
    made_node(&m, "If", "c", "y");
    made_output(&m, "y");
    refused(&m, "If (opset 17)", "attribute 'then_branch' is missing");
    made_start(&m, 17);
    made_input(&m, "n", DT_I64, "");
    made_input(&m, "c", DT_BOOL, "");
    Made body; /* two iterations or three: the result would have 2 or 3
                  elements */
    start_body(&body);
    made_node(&body, "Identity", "go", "on");
    made_node(&body, "Identity", "i", "turn");
    made_output(&body, "on");
    made_output(&body, "turn");
    loop(&m, "n,c", &body);
    refused(&m, "Loop (opset 17)",
            "say the most that there are with --max-trips N");
    made_end(&body);
}

/* dynamo's EmbeddingBag: no trip count, but a condition that can be
   computed. */
TEST_CASE(newcomer, loops_without_a_trip_count) {
    Made m, body;
    start_body(&body);
    made_input(&body, "s", DT_F32, "2");
    made_i64(&body, "two", 1, (int64_t[]){2});
    made_node(&body, "Less", "i,two", "on1");
    made_node(&body, "Squeeze", "on1", "on");
    made_node(&body, "Mul", "s,s", "s2");
    made_output(&body, "on");
    made_output(&body, "s2");
    made_start(&m, 17);
    made_input(&m, "x", DT_F32, "2");
    loop(&m, ",,x", &body);
    Module *mod = made_import(&m);
    REQUIRE(mod != NULL);
    int products = 0;
    const Graph *g = module_graph(mod, "forward");
    for (int i = 0; i < g->order.len; i++)
        products += node_get(g, g->order.data[i])->op == OP_MUL;
    CHECK_EQ_INT(products, 3); /* after iterations 0, 1 and 2 */
    made_end(&m);
    made_end(&body);
}

/* TorchScript's file of Mamba2 has negative axes. */
TEST_CASE(newcomer, transposes_from_the_end) {
    Made m;
    made_start(&m, 17);
    made_input(&m, "x", DT_F32, "2,3,4");
    made_ints(&m, made_node(&m, "Transpose", "x", "y"), "perm", 3,
              (int64_t[]){0, -1, 1});
    made_output(&m, "y");
    Module *mod = made_import(&m);
    REQUIRE(mod != NULL);
    const Graph *g = module_graph(mod, "forward");
    const Type *t = type_get(value_get(g, g->outputs.data[0].value)->type);
    CHECK_EQ_INT(t->dim[1], 4);
    CHECK_EQ_INT(t->dim[2], 3);
    made_end(&m);
}

/* ---- what only dynamo tells ---------------------------------------------- */

static void torch_node(Made *m, Onnx__NodeProto *n, const char *target) {
    char text[200];
    snprintf(text, sizeof text,
             "%%n : [num_users=1] = call_function[target=torch.ops.%s, kwargs "
             "= {})",
             target);
    made_metadata(m, &n->metadata_props, &n->n_metadata_props,
                  "pkg.torch.onnx.fx_node", text);
}

static int64_t calls(const Module *mod, const char *fn) {
    const Graph *g = module_graph(mod, "forward");
    int64_t count = 0;
    for (int i = 0; i < g->order.len; i++)
        count += is_call(node_get(g, g->order.data[i]), fn);
    return count;
}

TEST_CASE(newcomer, detached_values_have_no_gradient) {
    Made m;
    linear(&m, "fc.weight");
    torch_node(&m, made_node(&m, "Identity", "y", "d"),
               "aten.detach.default](args = (%y,)");
    made_node(&m, "Mul", "y,d", "z");
    m.graph.n_output = 0;
    made_output(&m, "z");
    Module *mod = made_import(&m);
    REQUIRE(mod != NULL);
    CHECK_EQ_INT(calls(mod, "stop"), 1);
    made_end(&m);
    linear(&m, "fc.weight");
    torch_node(&m, made_node(&m, "Identity", "y", "d"),
               "aten.detach.default](args = (%y,)");
    m.graph.n_output = 0;
    made_output(&m, "d");
    warned(&m, "'fc.weight' does not train: no gradient reaches it", "--train");
}

TEST_CASE(newcomer, padding_idx) {
    static const struct {
        const char *target;
        int64_t calls;
    } rows[] = {{"aten.embedding.default](args = (%w, %ids, 0)", 1},
                {"aten.embedding.default](args = (%w, %ids, 0, False)", 1},
                {"aten.embedding.default](args = (%w, %ids, -1)", 0},
                {"aten.embedding.default](args = (%w, %ids)", 0},
                {"aten.embedding", 0},
                {"aten.index_select.default](args = (%w, 0, 1)", 0}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        Made m;
        made_start(&m, 17);
        made_input(&m, "ids", DT_I64, "2,3");
        made_f32(&m, "e.weight", "5,4", 0);
        torch_node(&m, made_node(&m, "Gather", "e.weight,ids", "y"),
                   rows[i].target);
        made_output(&m, "y");
        Module *mod = made_import(&m);
        REQUIRE(mod != NULL);
        CHECK_EQ_INT(calls(mod, "padded_rows"), rows[i].calls);
        made_end(&m);
    }
}

TEST_CASE(newcomer, gradients_by_frequency_are_refused) {
    Made m;
    made_start(&m, 17);
    made_input(&m, "ids", DT_I64, "2,3");
    made_f32(&m, "e.weight", "5,4", 0);
    torch_node(&m, made_node(&m, "Gather", "e.weight,ids", "y"),
               "aten.embedding.default](args = (%w, %ids, -1, True)");
    made_output(&m, "y");
    CHECK(made_import(&m) == NULL);
    CHECK_HAS(m.d.text.data, "scale_grad_by_freq=True changes the gradient");
    made_end(&m);
}

/* ---- files of other exporters ---------------------------------------------
 */

/* Constant nodes contain an initializer's tensor, without the tensor's name. */
static void move_to_nodes(Made *m) {
    for (size_t i = 0; i < m->graph.n_initializer; i++) {
        Onnx__TensorProto *t = m->graph.initializer[i];
        made_attr(m, made_node(m, "Constant", "", t->name), "value",
                  ONNX__ATTRIBUTE_PROTO__ATTRIBUTE_TYPE__TENSOR)
            ->t = t;
        t->name = NULL;
    }
    m->graph.n_initializer = 0;
}

static Status sevens(void *ctx, const char *name, const Type *type,
                     void *data) {
    (void)ctx;
    CHECK_STR(name, "fc.weight");
    for (int64_t i = 0; i < type_count(type); i++) ((float *)data)[i] = 7;
    return OK;
}

/* paddle2onnx and Spox write no initializers. */
TEST_CASE(newcomer, weights_in_constant_nodes) {
    Made m;
    StrBuf kept = {0};
    OutFile out;
    size_t n;
    linear(&m, "fc.weight");
    Onnx__TensorProto *w = m.graph.initializer[0];
    move_to_nodes(&m);
    Module *mod = made_import(&m);
    REQUIRE(mod != NULL);
    const Var *v = var_named(mod, "fc.weight");
    REQUIRE(v && v->kind == VAR_PARAM);
    CHECK_NEAR(((const float *)v->init->data)[0], 1, 0);
    uint8_t *bytes = model_pack(&m.model, &n);
    REQUIRE(onnx_skeleton(mod, bytes, n, &kept));
    CHECK(kept.len < n - w->n_float_data * 4 + 8);
    REQUIRE(outfile_open(&out, "sevens.onnx", 0666, NULL, NULL));
    REQUIRE(onnx_export(m.a, &m.d, "sevens.onnx", kept.data, kept.len, sevens,
                        NULL, &out) == OK &&
            outfile_ready(&out) && outfile_commit(&out));
    free(bytes);
    sb_free(&kept);
    size_t size;
    char *text = read_file(&m.d, "sevens.onnx", &size);
    REQUIRE(text != NULL);
    REQUIRE(import_onnx(m.a, &m.d, "sevens.onnx", (uint8_t *)text, size, &m.opt,
                        &mod) == OK);
    v = var_named(mod, "fc.weight");
    REQUIRE(v != NULL);
    CHECK_NEAR(((const float *)v->init->data)[11], 7, 0);
    free(text);
    made_end(&m);

    /* in a file with initializers they are constants, as in PyTorch's files */
    linear(&m, "fc.weight");
    move_to_nodes(&m);
    made_f32(&m, "scale", "4", 1);
    made_node(&m, "Mul", "y,scale", "z");
    made_output(&m, "z");
    mod = made_import(&m);
    REQUIRE(mod != NULL);
    CHECK(var_named(mod, "fc.weight") == NULL);
    CHECK(var_named(mod, "scale") != NULL);
    made_end(&m);
}

/* Keras' recurrent layers are Loops that pass their weights on. */
TEST_CASE(newcomer, weights_inside_bodies) {
    Made m, body;
    start_body(&body);
    made_input(&body, "h", DT_F32, "2,3");
    made_input(&body, "w", DT_F32, "3,3");
    made_node(&body, "Identity", "go", "on");
    made_node(&body, "MatMul", "h,w", "u");
    made_node(&body, "MatMul", "u,outer", "v");
    made_node(&body, "Clip", "v,low", "next");
    made_node(&body, "Identity", "w", "same");
    made_output(&body, "on");
    made_output(&body, "next");
    made_output(&body, "same");
    made_start(&m, 17);
    made_input(&m, "x", DT_F32, "2,3");
    made_f32(&m, "kernel", "3,3", 1);
    made_f32(&m, "outer", "3,3", 1);
    made_f32(&m, "low", "", 0);
    made_i64(&m, "two", 1, (int64_t[]){2});
    made_node(&m, "Squeeze", "two", "turns");
    made_attr(&m, made_node(&m, "Loop", "turns,,x,kernel", "y,last"), "body",
              ONNX__ATTRIBUTE_PROTO__ATTRIBUTE_TYPE__GRAPH)
        ->g = &body.graph;
    made_output(&m, "y");
    Module *mod = made_import(&m);
    REQUIRE(CHECK_MSG(mod != NULL, "%s", made_message(&m)));
    static const char *const trains[] = {"kernel", "outer"};
    for (int i = 0; i < 2; i++) {
        const Var *v = var_named(mod, trains[i]);
        CHECK_MSG(v && v->kind == VAR_PARAM, "%s", trains[i]);
    }
    CHECK(var_named(mod, "low") == NULL);
    made_end(&m);
    made_end(&body);
}

/* Each loop gives the values that it passes on new names and positions.
 */
TEST_CASE(newcomer, weights_inside_bodies_of_bodies) {
    Made m, outer, inner;
    start_body(&inner);
    made_input(&inner, "h2", DT_F32, "2,3");
    made_input(&inner, "w2", DT_F32, "3,3");
    made_node(&inner, "Identity", "go", "on2");
    made_node(&inner, "MatMul", "h2,w2", "next2");
    made_node(&inner, "Identity", "w2", "same2");
    made_output(&inner, "on2");
    made_output(&inner, "next2");
    made_output(&inner, "same2");
    inner.graph.input[0]->name = made_text(&inner, "i2");
    inner.graph.input[1]->name = made_text(&inner, "go2");
    inner.graph.node[0]->input[0] = made_text(&inner, "go2");
    start_body(&outer);
    made_input(&outer, "h", DT_F32, "2,3");
    made_input(&outer, "floor", DT_F32, "3,3");
    made_input(&outer, "w", DT_F32, "3,3");
    made_node(&outer, "Identity", "go", "on");
    made_attr(&outer, made_node(&outer, "Loop", "turns,,h,w", "u,last2"),
              "body", ONNX__ATTRIBUTE_PROTO__ATTRIBUTE_TYPE__GRAPH)
        ->g = &inner.graph;
    made_node(&outer, "Identity", "floor", "floor1");
    made_node(&outer, "Identity", "w", "same");
    made_output(&outer, "on");
    made_output(&outer, "u");
    made_output(&outer, "floor1");
    made_output(&outer, "same");
    made_start(&m, 17);
    made_input(&m, "x", DT_F32, "2,3");
    made_f32(&m, "floors", "3,3", 1);
    made_f32(&m, "kernel", "3,3", 1);
    made_i64(&m, "two", 1, (int64_t[]){2});
    made_node(&m, "Squeeze", "two", "turns");
    made_attr(&m, made_node(&m, "Loop", "turns,,x,floors,kernel", "y,f,last"),
              "body", ONNX__ATTRIBUTE_PROTO__ATTRIBUTE_TYPE__GRAPH)
        ->g = &outer.graph;
    made_output(&m, "y");
    Module *mod = made_import(&m);
    REQUIRE(CHECK_MSG(mod != NULL, "%s", made_message(&m)));
    const Var *kernel = var_named(mod, "kernel");
    const Var *floors = var_named(mod, "floors");
    CHECK(kernel && kernel->kind == VAR_PARAM);
    CHECK(!floors || floors->kind == VAR_FROZEN);
    made_end(&m);
    made_end(&outer);
    made_end(&inner);
}

/* The eps of a norm written by TensorFlow must not train. */
TEST_CASE(newcomer, literals_of_tf2onnx) {
    static const struct {
        const char *producer, *name, *dims;
        bool trains;
    } rows[] = {
        {"tf2onnx", "Const_4:0", "", false},
        {"tf2onnx", "const_fold_opt__211", "1,1", false},
        {"tf2onnx", "dense/BiasAdd/ReadVariableOp:0", "1", true},
        {"tf2onnx", "Const_4:0", "4", false},
        {"tf2onnx", "scale/kernel:0", "4", true},
        {"pytorch", "logit_scale", "", true},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        Made m;
        char operands[80];
        linear(&m, "fc.weight");
        m.model.producer_name = made_text(&m, rows[i].producer);
        made_f32(&m, rows[i].name, rows[i].dims, 1);
        snprintf(operands, sizeof operands, "y,%s", rows[i].name);
        made_node(&m, "Add", operands, "z");
        made_output(&m, "z");
        Module *mod = made_import(&m);
        REQUIRE(mod != NULL);
        CHECK_MSG(!!var_named(mod, rows[i].name) == rows[i].trains, "%s",
                  rows[i].name);
        made_end(&m);
    }
}

/* "?" and -1 are unknown dimensions, and not equal to each other. */
TEST_CASE(newcomer, dimensions_that_other_exporters_leave_open) {
    Made m;
    made_start(&m, 17);
    made_input(&m, "x", DT_F32, "-1,?,?");
    made_node(&m, "Relu", "x", "y");
    made_output(&m, "y");
    for (int axis = 0; axis < 3; axis++)
        vec_push(m.a, &m.opt.dims, (DimBind){intern("x"), axis, 2 + axis});
    Module *mod = made_import(&m);
    if (CHECK_MSG(mod != NULL, "%s", made_message(&m))) {
        const Graph *g = module_graph(mod, "forward");
        const Type *t = type_get(value_get(g, g->inputs.data[0])->type);
        for (int axis = 0; axis < 3; axis++)
            CHECK_EQ_INT(t->dim[axis], 2 + axis);
    }
    made_end(&m);
}

/* A pattern trains the tensors that can train; naming a constant is an
   error. */
TEST_CASE(newcomer, patterns_of_what_trains) {
    static const struct {
        const char *glob;
        bool ok;
    } rows[] = {{"*", true}, {"tabl?", true}, {"table", false}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        Made m;
        linear(&m, "onnx::MatMul_12");
        made_f32(&m, "table", "2", 0);
        made_node(&m, "Cast", "table", "rows");
        made_int(&m, m.graph.node[m.graph.n_node - 1], "to", 7);
        made_node(&m, "Gather", "y,rows", "z");
        made_output(&m, "z");
        vec_push(m.a, &m.opt.train_rules, (GlobRule){rows[i].glob, true});
        Module *mod = made_import(&m);
        CHECK_MSG(!!mod == rows[i].ok, "%s: %s", rows[i].glob,
                  made_message(&m));
        if (mod) {
            CHECK(var_named(mod, "onnx::MatMul_12")->kind ==
                  (i ? VAR_FROZEN : VAR_PARAM));
            CHECK_HAS(made_message(&m),
                      "'table' does not train: no gradient reaches it");
        } else {
            CHECK_HAS(made_message(&m),
                      "parameter 'table' reaches the outputs only through");
        }
        made_end(&m);
    }
}

/* ---- a fresh last layer -------------------------------------------------- */

static void no_head(Made *m, const char *why) {
    size_t n;
    uint8_t *packed = model_pack(&m->model, &n);
    const uint8_t *bytes = packed;
    vec_push(m->a, &m->opt.heads,
             (DimBind){.name = intern("z"), .axis = -1, .value = 5});
    CHECK(onnx_replace_heads(m->a, &m->d, "m.onnx", &m->opt, &bytes, &n) ==
          ERR_USER);
    CHECK_HAS(m->d.text.data, why);
    free(packed);
    made_end(m);
}

/* The layer's forms besides Gemm and MatMul with Add: what ampc writes itself
   (the bias behind a Gemm, weights in 16 bits), and copies. */
TEST_CASE(newcomer, heads_of_other_forms) {
    static const struct {
        const char *nodes[6][3];
        int axis; /* of the units */
    } rows[] = {
        {{{"Gemm", "x,w", "p"}, {"Add", "p,b", "z"}}, 1},
        {{{"Gemm", "x,w", "p"}, {"Add", "b,p", "z"}}, 1},
        {{{"Cast", "w", "w2"},
          {"Cast", "w2", "w3"},
          {"Cast", "b", "b2"},
          {"MatMul", "x,w3", "p"},
          {"Add", "p,b2", "z"}},
         1},
        {{{"Identity", "w", "w2"},
          {"Transpose", "w2", "w3"},
          {"Cast", "w3", "w4"},
          {"Gemm", "x,w4", "p"},
          {"Add", "b,p", "z"}},
         0},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        Made m;
        size_t n;
        made_start(&m, 17);
        made_input(&m, "x", DT_F32, "2,3");
        made_f32(&m, "w", rows[i].axis ? "3,4" : "4,3", 1);
        made_f32(&m, "b", "4", 1);
        for (int k = 0; k < 6 && rows[i].nodes[k][0]; k++) {
            const char *const *node = rows[i].nodes[k];
            made_node(&m, node[0], node[1], node[2]);
            if (!strcmp(node[0], "Cast"))
                made_int(&m, m.graph.node[m.graph.n_node - 1], "to", 1);
        }
        made_output(&m, "z");
        uint8_t *packed = model_pack(&m.model, &n);
        const uint8_t *bytes = packed;
        vec_push(m.a, &m.opt.heads,
                 (DimBind){.name = intern("z"), .axis = -1, .value = 5});
        Status st = onnx_replace_heads(m.a, &m.d, "m.onnx", &m.opt, &bytes, &n);
        if (CHECK_MSG(st == OK, "row %zu: %s", i, made_message(&m))) {
            Onnx__ModelProto *got = onnx__model_proto__unpack(NULL, n, bytes);
            for (size_t k = 0; k < got->graph->n_initializer; k++) {
                const Onnx__TensorProto *t = got->graph->initializer[k];
                int axis = *t->name == 'w' ? rows[i].axis : 0;
                CHECK_EQ_INT(t->dims[axis], 5);
            }
            onnx__model_proto__free_unpacked(got, NULL);
        }
        free(packed);
        made_end(&m);
    }
}

TEST_CASE(newcomer, heads_that_cannot_be_replaced) {
    Made m;
    linear(&m, "fc.weight");
    made_node(&m, "Relu", "y", "z");
    made_output(&m, "z");
    no_head(&m, "'z' does not come from a linear layer");
    made_start(&m, 17); /* a cast that another node reads, too */
    made_input(&m, "x", DT_F32, "2,3");
    made_f32(&m, "w", "3,4", 1);
    made_node(&m, "Identity", "w", "c");
    made_node(&m, "MatMul", "x,c", "u");
    made_node(&m, "MatMul", "x,c", "z");
    made_output(&m, "z");
    no_head(&m, "weights with another layer (tied weights)");
    linear(&m, "fc.weight");
    made_node(&m, "Transpose", "y", "t");
    made_node(&m, "MatMul", "t,fc.weight", "u");
    made_node(&m, "MatMul", "x,fc.weight", "z");
    made_output(&m, "z");
    no_head(&m, "weights with another layer (tied weights)");
    linear(&m, "fc.weight");
    no_head(&m, "is not an output of the model; its outputs: y");
    linear(&m, "fc.weight");
    move_to_nodes(&m);
    made_node(&m, "MatMul", "x,fc.weight", "z");
    made_output(&m, "z");
    no_head(&m, "weights with another layer (tied weights)");
    made_start(&m, 17);
    made_input(&m, "x", DT_F32, "2,0");
    made_f32(&m, "w", "0,4", 0);
    made_node(&m, "MatMul", "x,w", "z");
    made_output(&m, "z");
    no_head(&m, "would have too many elements");
}
