/* SPDX-License-Identifier: Apache-2.0 */
/* batch_norm.c: batch normalisation and dropout. */
#define _POSIX_C_SOURCE 200809L
#include <string.h>

#include "frontend/onnx/onnx.h"
#include "ir/fn/fn.h"
#include "tests/frontend/onnx_import/onnx_import.h"
#include "tests/harness.h"
#include "tests/support/onnx_util.h"

/* ---- batch normalisation, dropout ---------------------------------------- */

const Node *find_node(const Module *mod, OpCode op) {
    const Graph *g = module_graph(mod, "forward");
    for (int i = 0; i < g->order.len; i++)
        if (node_get(g, g->order.data[i])->op == op)
            return node_get(g, g->order.data[i]);
    return NULL;
}

const Node *find_call(const Module *mod, const char *fn) {
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

/* A model whose file says how many batches were averaged. */
static void counted(Made *m, const char *batches) {
    bn_model(m, OPERANDS);
    m->graph.n_node = 0;
    Onnx__NodeProto *n =
        made_node(m, "BatchNormalization", OPERANDS, "y,m2,v2");
    made_int(m, n, "training_mode", 1);
    made_metadata(m, &n->metadata_props, &n->n_metadata_props, "ampc.batches",
                  batches);
    m->opset.version = 17;
}

TEST_CASE(onnx_batch_norm, counts_go_on_from_those_of_the_file) {
    static const int cumulative[] = {-1, 1, 0};
    for (int i = 0; i < 3; i++) {
        Made m;
        counted(&m, "3");
        m.opt.batchnorm_cumulative = cumulative[i];
        Module *mod = made_import(&m);
        REQUIRE(mod != NULL);
        const Var *n = var_named(mod, "bn.num_batches_tracked");
        CHECK((n != NULL) == (cumulative[i] != 0));
        CHECK_EQ_INT(module_graph(mod, "forward")->writes.len, n ? 3 : 2);
        if (n) CHECK(n->kind == VAR_BUFFER && n->fill == 3);
        if (n) CHECK_EQ_INT(type_get(n->type)->dtype, DT_F64); /* beyond 2^24 */
        made_end(&m);
    }
}

TEST_CASE(onnx_batch_norm, a_count_that_is_something_else) {
    Made m;
    counted(&m, "3");
    made_f32(&m, "bn.num_batches_tracked", "3", 1);
    made_node(&m, "Mul", "y,bn.num_batches_tracked", "z");
    made_output(&m, "z");
    CHECK(!made_import(&m));
    CHECK_HAS(made_message(&m),
              "'bn.num_batches_tracked' does not count batches");
    made_end(&m);
}

TEST_CASE(onnx_batch_norm, a_count_that_is_no_number) {
    static const char *const texts[] = {"", "many", "-1", "3.5", "3 "};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        Made m;
        counted(&m, texts[i]);
        CHECK(!made_import(&m));
        CHECK_HAS(made_message(&m), "metadata 'ampc.batches' is '");
        CHECK_HAS(made_message(&m), "not a number of batches");
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
