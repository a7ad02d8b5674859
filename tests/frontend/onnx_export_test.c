/* SPDX-License-Identifier: Apache-2.0 */
/* onnx_export_test.c: models of both PyTorch exporters, compared with
   PyTorch's numbers; dimensions and how they are set. */
#define _POSIX_C_SOURCE 200809L
#include <stdlib.h>
#include <string.h>

#include "frontend/frontend.h"
#include "frontend/onnx/onnx.h"
#include "ir/base/files.h"
#include "tests/harness.h"
#include "tests/support/onnx_util.h"

/* ---- exports of PyTorch (models/record/export.py) ------------------------ */

typedef struct Torch {
    Arena *a;
    Diag d;
    Options o;
    Module *m;
    ExpectedList want;
} Torch;

static void bind_batch(Options *o, const char *name, int64_t n) {
    vec_push(o->arena, &o->dims,
             (DimBind){.name = intern(name), .axis = -1, .value = n});
}

static Status import_again(Torch *t, const char *file) {
    char name[128];
    size_t n;
    snprintf(name, sizeof name, "tests/onnx/%s", file);
    const char *path = test_data_path(name);
    char *bytes = read_file(&t->d, path, &n);
    REQUIRE(bytes);
    Status s =
        import_onnx(t->a, &t->d, path, (const uint8_t *)bytes, n, &t->o, &t->m);
    free(bytes);
    return s;
}

static Status import_file(Torch *t, const char *file) {
    t->a = arena_new();
    options_init(&t->o, t->a);
    bind_batch(&t->o, "batch", 4);
    return import_again(t, file);
}

static void end(Torch *t) {
    sb_free(&t->d.text);
    arena_free(t->a);
}

static bool check_tensor(Torch *t, const char *what, const EvalTensor *got,
                         const EvalTensor *want) {
    if (!CHECK_MSG(want != NULL, "%s is expected nowhere", what)) return false;
    const char *diff = tensor_differs(t->a, got, want, 1e-5, 1e-6, true);
    return CHECK_MSG(!diff, "%s %s", what, diff);
}

static void check_run(Torch *t) {
    Graph *g = module_graph(t->m, "forward");
    Evaluator *e = eval_new(g, t->a, EVAL_STORAGE);
    REQUIRE(verify_module(t->m, STAGE_TYPED, &t->d) == OK);
    for (int i = 0; i < g->inputs.len; i++) {
        ValueId v = g->inputs.data[i];
        eval_bind(e, v,
                  expected_find(&t->want, "input", value_get(g, v)->name));
    }
    REQUIRE(eval_run(e, &t->d) == OK);
    REQUIRE(CHECK_EQ_INT(g->outputs.len, 2));
    const char *names[] = {"loss", "logits"};
    for (int i = 0; i < 2; i++)
        check_tensor(t, names[i], eval_get(e, g->outputs.data[i].value),
                     expected_find(&t->want, "output", names[i]));
    for (int i = 0; i < g->writes.len; i++) {
        const char *name = value_var(g, g->writes.data[i].var)->name;
        check_tensor(t, name, eval_get(e, g->writes.data[i].value),
                     expected_find(&t->want, "buffer", name));
    }
}

/* Loss, logits and updated running statistics equal PyTorch's; no shape
   arithmetic is left. */
static void run_export(void *arg) {
    const char *name = arg;
    Torch t = {0};
    char fp32[128];
    snprintf(fp32, sizeof fp32, "tests/onnx/%.*s.fp32", (int)strcspn(name, "."),
             name);
    if (!CHECK_MSG(import_file(&t, name) == OK, "%s", t.d.text.data)) return;
    REQUIRE(expected_read(t.a, test_data_path(fp32), &t.want));
    check_run(&t);
    Graph *g = module_graph(t.m, "forward");
    for (int i = 0; i < g->order.len; i++) {
        const Node *n = node_get(g, g->order.data[i]);
        bool shapes = op_info[n->op].kind == KIND_ELEM &&
                      dtype_is_int(value_dtype(g, n->out[0]));
        CHECK_MSG(!shapes, "integer arithmetic is left: %s",
                  op_info[n->op].text);
    }
    end(&t);
}

static const char *const models[] = {"mlp", "cnn", "resnet", "gpt"};
static const char *const kinds[] = {"dyn", "ts"};

static void register_exports(void) {
    static char names[8][64];
    for (int i = 0; i < 4; i++)
        for (int k = 0; k < 2; k++) {
            char *file = names[2 * i + k];
            snprintf(file, 64, "%s.%s.onnx", models[i], kinds[k]);
            harness_register("onnx_export", file, run_export, file);
        }
    static char attention[] = "gpt.dyn23.onnx";
    harness_register("onnx_export", attention, run_export, attention);
}
TEST_REGISTRAR(register_exports);

TEST_CASE(onnx_export, both_exporters_agree_on_what_trains) {
    static const int params[] = {4, 9, 18, 28}, buffers[] = {0, 4, 8, 0};
    for (int i = 0; i < 4; i++)
        for (int k = 0; k < 2; k++) {
            Torch t = {0};
            char file[64];
            snprintf(file, sizeof file, "%s.%s.onnx", models[i], kinds[k]);
            REQUIRE(import_file(&t, file) == OK);
            CHECK_EQ_INT(count_kind(t.m, VAR_PARAM), params[i]);
            CHECK_EQ_INT(count_kind(t.m, VAR_BUFFER), buffers[i]);
            CHECK_EQ_INT(count_kind(t.m, VAR_FROZEN), 0);
            CHECK_EQ_INT(t.d.warnings, 0);
            end(&t);
        }
}

TEST_CASE(onnx_export, a_tie_is_one_parameter) {
    Torch t = {0};
    REQUIRE(import_file(&t, "gpt.dyn.onnx") == OK);
    CHECK(module_find_var(t.m, "wte.weight") >= 0 ||
          module_find_var(t.m, "head.weight") >= 0);
    CHECK(module_find_var(t.m, "wte.weight") < 0 ||
          module_find_var(t.m, "head.weight") < 0);
    end(&t);
}

/* In the file every layer computes the causal mask again. */
TEST_CASE(onnx_export, one_mask_serves_all_layers) {
    Torch t = {0};
    REQUIRE(import_file(&t, "gpt.dyn.onnx") == OK);
    Graph *g = module_graph(t.m, "forward");
    ValueId mask = NO_VALUE;
    int uses = 0;
    for (int i = 0; i < g->order.len; i++) {
        const Node *n = node_get(g, g->order.data[i]);
        for (int k = 0; k < n->nin; k++) {
            const Value *v = value_get(g, n->in[k]);
            if (v->kind != VK_CONST || type_get(v->type)->rank < 2) continue;
            if (!uses++) mask = n->in[k];
            CHECK(same_value(mask, n->in[k]));
        }
    }
    CHECK_EQ_INT(uses, 2);
    end(&t);
}

/* Both exporters spread attention's scale over q and k. */
TEST_CASE(onnx_export, attention_scales_one_operand_only) {
    for (int k = 0; k < 2; k++) {
        Torch t = {0};
        char file[64];
        int products = 0;
        snprintf(file, sizeof file, "gpt.%s.onnx", kinds[k]);
        REQUIRE(import_file(&t, file) == OK);
        Graph *g = module_graph(t.m, "forward");
        for (int i = 0; i < g->order.len; i++) {
            const Node *n = node_get(g, g->order.data[i]);
            if (n->op != OP_MATMUL) continue;
            const Value *v = value_get(g, n->in[1]);
            products++;
            CHECK(v->kind != VK_RESULT || node_get(g, v->def)->op != OP_MUL);
        }
        CHECK_EQ_INT(products, 13);
        end(&t);
    }
}

TEST_CASE(onnx_export, optimised_exports_are_refused_with_the_recipe) {
    static const char *const why[] = {NULL, "fused BatchNormalization",
                                      "fused BatchNormalization",
                                      "'h.0.qkv.weight' (folded into"};
    for (int i = 1; i < 4; i++) {
        Torch t = {0};
        char file[64];
        snprintf(file, sizeof file, "%s.opt.onnx", models[i]);
        CHECK(import_file(&t, file) == ERR_USER);
        CHECK_HAS(t.d.text.data, why[i]);
        CHECK_HAS(t.d.text.data, "optimize=False");
        end(&t);
    }
}

TEST_CASE(onnx_export, accept_folded_trains_what_is_left) {
    Torch t = {0};
    CHECK(import_file(&t, "cnn.opt.onnx") == ERR_USER);
    t.o.accept_folded = true;
    CHECK(import_again(&t, "cnn.opt.onnx") == OK);
    CHECK(t.d.warnings > 0);
    end(&t);
}

TEST_CASE(onnx_export, an_untouched_small_model_may_be_optimised) {
    Torch t = {0};
    CHECK(import_file(&t, "mlp.opt.onnx") == OK);
    end(&t);
}

/* ---- what ampc export writes --------------------------------------------- */

/* Each tensor is filled with the length of its name. */
static Status lengths(void *ctx, const char *name, const Type *type,
                      void *data) {
    (void)ctx;
    for (int64_t i = 0; i < type_count(type); i++)
        ((float *)data)[i] = (float)strlen(name);
    return OK;
}

/* TorchScript writes biases that begin as equal once, and an Identity for each
   other one; trained, they differ. */
TEST_CASE(onnx_export, equal_tensors_that_train_apart) {
    static const char *const names[] = {"a.bias", "second.bias"};
    Made m;
    StrBuf kept = {0};
    OutFile out;
    size_t n;
    made_start(&m, 18);
    m.model.producer_name = made_text(&m, "pytorch");
    made_input(&m, "x", DT_F32, "2,3");
    made_f32(&m, "a.bias", "3", 1);
    made_node(&m, "Identity", "a.bias", "second.bias");
    made_node(&m, "Add", "x,a.bias", "h");
    made_node(&m, "Mul", "h,second.bias", "y");
    made_output(&m, "y");
    vec_push(m.opt.arena, &m.opt.train_rules,
             (GlobRule){.glob = "*", .train = true});
    Module *mod = made_import(&m);
    REQUIRE(mod != NULL);
    uint8_t *bytes = model_pack(&m.model, &n);
    REQUIRE(onnx_skeleton(mod, bytes, n, &kept));
    REQUIRE(outfile_open(&out, "apart.onnx", 0666, NULL, NULL));
    REQUIRE(onnx_export(m.a, &m.d, "apart.onnx", kept.data, kept.len, lengths,
                        NULL, &out) == OK &&
            outfile_ready(&out) && outfile_commit(&out));
    free(bytes);
    sb_free(&kept);
    char *text = read_file(&m.d, "apart.onnx", &n);
    REQUIRE(text != NULL);
    REQUIRE(import_onnx(m.a, &m.d, "apart.onnx", (uint8_t *)text, n, &m.opt,
                        &mod) == OK);
    for (int i = 0; i < 2; i++) {
        const Var *v = var_named(mod, names[i]);
        REQUIRE(v != NULL);
        CHECK_NEAR(((const float *)v->init->data)[2], strlen(names[i]), 0);
    }
    free(text);
    made_end(&m);
}

/* ---- dimensions ---------------------------------------------------------- */

TEST_CASE(onnx_dims, unbound_ones_are_listed_with_an_example) {
    Made m;
    made_relu(&m, "batch,3,?");
    CHECK(!made_import(&m));
    CHECK_HAS(made_message(&m), "'batch' (x:0), x:2");
    CHECK_HAS(made_message(&m), "--dim batch=64");
    made_end(&m);
}

/* A mistake in another input is reported first. */
TEST_CASE(onnx_dims, unbound_ones_are_no_matter_beside_other_mistakes) {
    Made m;
    made_start(&m, 17);
    made_input(&m, "x", DT_F32, "batch,3");
    made_input(&m, "u", DT_F32, "3");
    m.graph.input[1]->type->tensor_type->elem_type = 8; /* a string */
    made_node(&m, "Relu", "x", "y");
    made_output(&m, "y");
    CHECK(!made_import(&m));
    CHECK(!strstr(made_message(&m), "have no value"));
    made_end(&m);
}

TEST_CASE(onnx_dims, bound_by_name_and_by_place) {
    Made m;
    made_relu(&m, "batch,3,?");
    bind_batch(&m.opt, "batch", 5);
    vec_push(m.a, &m.opt.dims, (DimBind){intern("x"), 2, 7});
    Module *mod = made_import(&m);
    REQUIRE(mod != NULL);
    Graph *g = module_graph(mod, "forward");
    const Type *t = value_type(g, g->outputs.data[0].value);
    CHECK_EQ_INT(t->dim[0], 5);
    CHECK_EQ_INT(t->dim[2], 7);
    made_end(&m);
}

TEST_CASE(onnx_dims, wrong_bindings) {
    Made m;
    made_relu(&m, "batch,3");
    bind_batch(&m.opt, "time", 5);
    CHECK(!made_import(&m));
    CHECK_HAS(made_message(&m), "symbolic dimensions are: 'batch'");
    m.opt.dims.data[0] = (DimBind){intern("x"), 1, 4};
    CHECK(!made_import(&m));
    CHECK_HAS(made_message(&m), "fixed dimension 3");
    m.opt.dims.data[0] = (DimBind){intern("x"), 2, 4};
    CHECK(!made_import(&m));
    CHECK_HAS(made_message(&m), "no such input dimension");
    m.opt.dims.data[0] = (DimBind){intern("batch"), -1, 4};
    vec_push(m.a, &m.opt.dims, (DimBind){intern("x"), 0, 5});
    CHECK(!made_import(&m));
    CHECK_HAS(made_message(&m), "bound to 4 and to 5");
    made_end(&m);
}

/* Messages for PyTorch's files say how to export again. */
TEST_CASE(onnx_dims, fixed_ones_say_how_to_export) {
    Made m;
    made_relu(&m, "1,3");
    m.model.producer_name = made_text(&m, "pytorch");
    REQUIRE(made_import(&m) != NULL);
    CHECK_HAS(made_message(&m), "the file fixes the batch at 1");
    bind_batch(&m.opt, "time", 5);
    CHECK(!made_import(&m));
    CHECK_HAS(made_message(&m), "has no symbolic dimensions");
    CHECK_HAS(made_message(&m), "dynamic_shapes=({0: d},)");
    m.opt.dims.data[0] = (DimBind){intern("batch"), -1, 5};
    CHECK(!made_import(&m));
    CHECK_HAS(made_message(&m), "--dim batch=5: this file was exported with "
                                "the fixed batch 1");
    CHECK_HAS(made_message(&m), "dynamic_shapes=({0: d},)");
    m.opt.dims.data[0].value = 1;
    CHECK(made_import(&m) != NULL);
    made_end(&m);
}

/* Each name once. */
TEST_CASE(onnx_dims, names_are_listed_once) {
    Made m;
    made_start(&m, 17);
    made_input(&m, "x", DT_F32, "n,t,n");
    made_input(&m, "u", DT_F32, "n,?,k");
    made_f32(&m, "w", "2", 0); /* an initializer does not count as data */
    made_node(&m, "Relu", "x", "y");
    made_output(&m, "y");
    bind_batch(&m.opt, "time", 5);
    CHECK(!made_import(&m));
    CHECK_HAS(made_message(&m), "symbolic dimensions are: 'n', 't', 'k'");
    made_end(&m);
}

/* --batch-sizes applies only to the first axis. */
TEST_CASE(onnx_dims, an_axis_without_a_name_is_no_batch) {
    Made m;
    made_relu(&m, "batch,?");
    m.opt.batch = 5;
    CHECK(!made_import(&m));
    CHECK_HAS(made_message(&m), "x:1");
    made_end(&m);
}

/* --batch-sizes with x [b,t,b] and u [?,b]. */
static void batches(Made *m, const char *x, const char *u) {
    made_start(m, 17);
    made_input(m, "x", DT_F32, x);
    made_input(m, "u", DT_F32, u);
    made_node(m, "Relu", "x", "y");
    made_node(m, "Relu", "u", "v");
    made_output(m, "y");
    made_output(m, "v");
}

static void shapes(Made *m, const char *want) {
    StrBuf sb = {0};
    Module *mod = made_import(m);
    if (!mod) FAIL("%s", made_message(m));
    const Graph *g = module_graph(mod, "forward");
    for (int i = 0; i < g->inputs.len; i++) {
        const Type *t = value_type(g, g->inputs.data[i]);
        for (int k = 0; k < t->rank; k++)
            sb_printf(&sb, "%lld ", (long long)t->dim[k]);
    }
    CHECK_STR(sb.data, want);
    sb_free(&sb);
}

TEST_CASE(onnx_dims, batch_of_batch_sizes) {
    Made m;
    batches(&m, "batch,3,batch", "?,batch");
    vec_push(m.a, &m.opt.batch_sizes, 7);
    vec_push(m.a, &m.opt.batch_sizes, 9);
    vec_push(m.a, &m.opt.batch_sizes, 8);
    vec_push(m.a, &m.opt.dims, (DimBind){intern("u"), 0, 2});
    shapes(&m, "9 3 9 2 9 "); /* the largest, if no other option decides */
    m.opt.batch = 7;
    shapes(&m, "7 3 7 7 7 ");
    bind_batch(&m.opt, "batch", 4);
    shapes(&m, "7 3 7 7 7 "); /* whatever --dim says */
    m.opt.batch = 0;
    shapes(&m, "4 3 4 2 4 ");
    made_end(&m);
    batches(&m, "4,3", "4,4");
    m.opt.batch = 4;
    shapes(&m, "4 3 4 4 ");
    m.opt.batch = 5;
    CHECK(!made_import(&m));
    CHECK_HAS(made_message(&m), "--batch-sizes 5: this file was exported with "
                                "the fixed batch 4");
    made_end(&m);
    batches(&m, "", "");
    m.opt.batch = 5;
    CHECK(!made_import(&m));
    CHECK_HAS(made_message(&m), "--batch-sizes: no input has a batch");
    made_end(&m);
}
