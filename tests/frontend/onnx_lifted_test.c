/* SPDX-License-Identifier: Apache-2.0 */
/* onnx_lifted_test.c: files of Keras on PyTorch for static shapes: its
   variables are constants of dynamo's program, and of equal ones the file
   stores one. */
#include <stdio.h>
#include <string.h>

#include "tests/harness.h"
#include "tests/support/onnx_util.h"

static void tell(Made *m, int node, const char *args) {
    Onnx__NodeProto *n = m->graph.node[node];
    char text[200];
    snprintf(text, sizeof text,
             "%%n%d : [num_users=1] = call_function[target=torch.ops.aten.f]"
             "(args = (%s), kwargs = {})",
             node, args);
    made_metadata(m, &n->metadata_props, &n->n_metadata_props,
                  "pkg.torch.onnx.fx_node", text);
}

/* A constant with the exporter's mark, or (from) one that it computed. */
static void describe(Made *m, const char *name, const char *from) {
    Onnx__ValueInfoProto *v = NEW(m->a, Onnx__ValueInfoProto);
    char text[100];
    onnx__value_info_proto__init(v);
    v->name = made_text(m, name);
    snprintf(text, sizeof text, "['%s', 'val_7']", from ? from : "");
    made_metadata(m, &v->metadata_props, &v->n_metadata_props,
                  from ? "pkg.onnxscript.optimizer.folded_from"
                       : "pkg.torch.export.graph_signature.InputSpec.kind",
                  from ? text : "CONSTANT_TENSOR");
    Onnx__ValueInfoProto **all =
        NEW_ARRAY(m->a, Onnx__ValueInfoProto *, m->graph.n_value_info + 1);
    for (size_t i = 0; i < m->graph.n_value_info; i++)
        all[i] = m->graph.value_info[i];
    all[m->graph.n_value_info++] = v;
    m->graph.value_info = all;
}

/* x W + b, and what `nodes` makes of its result p. Parameters of the
   signature: n of layer a, and `more`, a line; n constants. */
static void begin_lifted(Made *m, const char *weights, const char *nodes, int n,
                         const char *more) {
    StrBuf sb = {0};
    char all[300];
    made_start(m, 20);
    made_by(m, "pytorch");
    made_input(m, "x", DT_F32, "2,4");
    snprintf(all, sizeof all, "lifted_tensor_0 4,4; lifted_tensor_1 4; %s",
             weights);
    made_weights(m, all);
    snprintf(all, sizeof all,
             "MatMul x,lifted_tensor_0 o; Add o,lifted_tensor_1 p; %s", nodes);
    made_nodes(m, all);
    for (int i = 0; i < n; i++)
        sb_printf(&sb, "p_%d: PARAMETER target='_torch_params.a/%d'\n", i, i);
    sb_puts(&sb, more);
    for (int i = 0; i < n; i++)
        sb_printf(&sb,
                  "c_lifted_tensor_%d: CONSTANT_TENSOR "
                  "target='lifted_tensor_%d'\n",
                  i, i);
    made_metadata(m, &m->graph.metadata_props, &m->graph.n_metadata_props,
                  "pkg.torch.export.ExportedProgram.graph_signature", sb.data);
    sb_free(&sb);
    tell(m, 0, "%x, %c_lifted_tensor_0");
    tell(m, 1, "%n0, %c_lifted_tensor_1");
    describe(m, "lifted_tensor_0", NULL);
    describe(m, "lifted_tensor_1", NULL);
}

/* Each node gets the constant of its record, and the same name the same one. */
TEST_CASE(onnx_lifted, equal_constants_are_separate) {
    Made m;
    begin_lifted(&m, "",
                 "Mul p,lifted_tensor_1 q; Add q,lifted_tensor_1 r; "
                 "Add lifted_tensor_1,r s; Sub s,lifted_tensor_1 y;",
                 3, "");
    tell(&m, 2, "%n1, %c_lifted_tensor_2");
    tell(&m, 3, "%n2, %c_lifted_tensor_1");
    tell(&m, 4, "%c_lifted_tensor_2, %n3");
    tell(&m, 5, "%n4, 0.001");
    Module *mod = made_import(&m);
    REQUIRE(CHECK_MSG(mod != NULL, "%s", made_message(&m)));
    CHECK(var_named(mod, "lifted_tensor_2"));
    CHECK(!strstr(made_message(&m), "is lost"));
    static const char *const want[] = {"lifted_tensor_2", "lifted_tensor_1",
                                       "lifted_tensor_2", "lifted_tensor_1"};
    const Graph *g = module_graph(mod, "forward");
    REQUIRE(g && g->order.len == 6);
    for (int i = 2; i < 6; i++) {
        const Node *n = node_at(g, i);
        CHECK_STR(value_get(g, n->in[i != 4])->name, want[i - 2]);
    }
    made_end(&m);
}

/* Moves and the opposite of one variable, computed by the exporter, train. */
TEST_CASE(onnx_lifted, views_of_variables) {
    static const struct {
        const char *name, *from, *more;
        Becomes becomes;
    } rows[] = {
        {"view_3", "lifted_tensor_2", "", TRAINS},
        {"neg", "lifted_tensor_2", "", TRAINS},
        {"select_1", "lifted_tensor_2", "", TRAINS},
        {"mul_1", "lifted_tensor_2", "", CONSTANT},
        {"view_3", "val_2", "", CONSTANT},
        {"view_3", "lifted_tensor_1', 'lifted_tensor_2", "", CONSTANT},
        {"view_3", "lifted_tensor_2",
         "s: PARAMETER target='_torch_params.seed/seed_generator_state'\n",
         TRAINS},
        {"view_3", "lifted_tensor_2",
         "s: PARAMETER target='_torch_params.bn/moving_mean'\n", CONSTANT},
        {"view_3", "lifted_tensor_2",
         "s: PARAMETER target='_torch_params.a/more'\n", CONSTANT},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        Made m;
        char weights[60], nodes[60], args[60], why[80];
        snprintf(weights, sizeof weights, "%s 1,4;", rows[i].name);
        snprintf(nodes, sizeof nodes, "Mul p,%s y;", rows[i].name);
        begin_lifted(&m, weights, nodes, 3, rows[i].more);
        snprintf(args, sizeof args, "%%n1, %%%s", rows[i].name);
        tell(&m, 2, args);
        describe(&m, rows[i].name, rows[i].from);
        snprintf(why, sizeof why, "by guess: folded from '%s'", rows[i].from);
        made_becomes(
            &m, rows[i].name, rows[i].becomes,
            rows[i].becomes == TRAINS ? why : "a constant of the model's code");
        made_end(&m);
    }
}

/* The file has nothing left of a constant: another one is read. */
TEST_CASE(onnx_lifted, lost_constants_are_named) {
    Made m;
    begin_lifted(&m, "", "Relu p y;", 3, "");
    REQUIRE(made_import(&m) != NULL);
    CHECK_HAS(made_message(&m), "one of several equal tensors: "
                                "'lifted_tensor_2' is lost");
    CHECK_HAS(made_message(&m), "InputSpec(shape=(None, ..))");
    made_end(&m);
}
