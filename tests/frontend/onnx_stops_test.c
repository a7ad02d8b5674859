/* SPDX-License-Identifier: Apache-2.0 */
/* onnx_stops_test.c: where gradients stop in files that lost the node for
   the stop. The metadata are those written by PyTorch 2.11 and 2.15. */
#include <string.h>

#include "tests/harness.h"
#include "tests/support/onnx_util.h"

#define KIND   "pkg.torch.export.graph_signature.InputSpec.kind"
#define SIGNED "pkg.torch.export.ExportedProgram.graph_signature"

/* A node of PyTorch's graph: its fx_node, and its stack trace or NULL. */
static void fx_node(Made *m, const char *op, const char *in, const char *out,
                    const char *fx, const char *args, const char *trace) {
    Onnx__NodeProto *n = made_node(m, op, in, out);
    made_metadata(m, &n->metadata_props, &n->n_metadata_props,
                  "pkg.torch.onnx.fx_node",
                  arena_printf(m->a,
                               "%%%s : [num_users=1] = call_function[target="
                               "torch.ops.aten.%s](args = (%s), kwargs = {})",
                               fx, fx, args));
    if (trace)
        made_metadata(m, &n->metadata_props, &n->n_metadata_props,
                      "pkg.torch.onnx.stack_trace", trace);
}

/* a = x w, t = tanh(a); trace: the stack trace of both. */
static void start(Made *m, const char *trace) {
    made_start(m, 18);
    m->model.producer_name = made_text(m, "pytorch");
    made_input(m, "x", DT_F32, "2,4");
    made_f32(m, "w", "4,4", 0);
    made_mark(m, "w", KIND, "PARAMETER");
    made_metadata(m, &m->graph.metadata_props, &m->graph.n_metadata_props,
                  SIGNED, "p_w: PARAMETER target='w'\nx: USER_INPUT\n");
    fx_node(m, "MatMul", "x,w", "a", "a", "%x, %p_w", trace);
    fx_node(m, "Tanh", "a", "t", "t", "%a", trace);
}

static int stops(Made *m) {
    int n = 0;
    Module *mod = made_import(m);
    if (!CHECK_MSG(mod != NULL, "%s", made_message(m))) return -1;
    const Graph *g = mod->graphs.data[0];
    for (int i = 0; i < g->order.len; i++)
        n += !strcmp(callee_info(node_callee(node_at(g, i)))->text, "stop");
    return n;
}

TEST_CASE(onnx_stops, detach_that_was_dropped) {
    static const struct {
        const char *in, *args, *line;
        int stops;
    } rows[] = {
        {"t,t", "%t, %t", NULL, 0},
        {"t,t", "%t, %detach", NULL, 1},
        {"t,t", "%detach_1, %t", NULL, 1},
        {"a,t", "%a, %detach", NULL, 1},
        {"a,t", "%detach, %detach_1", NULL, 2},
        {"a,t", "%a_1, %t_1", NULL, 0}, /* equal nodes were merged */
        {"a,t", "%a, %detachment", NULL, 0},
        {"a,t", "%a, %clone", "File \"m.py\", line 3\n    a * t.clone()", 0},
        {"a,t", "%a, %clone",
         "File \"m.py\", line 3\n    a * t.detach().clone()", 1},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        Made m;
        start(&m, NULL);
        fx_node(&m, "Mul", rows[i].in, "y", "mul", rows[i].args, rows[i].line);
        made_node(&m, "Add", "y,a", "z");
        made_output(&m, "z");
        int n = stops(&m);
        CHECK_MSG(n == rows[i].stops, "(%s) of (%s): %d", rows[i].args,
                  rows[i].in, n);
        made_end(&m);
    }
}

/* A target network: w is used behind detach() only, u beside it.  Behind a
   comparison, too, w is refused as before. */
TEST_CASE(onnx_stops, parameters_behind_detach_alone_are_frozen) {
    for (int compared = 0; compared < 2; compared++) {
        Made m;
        start(&m, NULL);
        made_f32(&m, "u", "4,4", 0);
        made_mark(&m, "u", KIND, "PARAMETER");
        fx_node(&m, "MatMul", "x,u", "q", "q", "%x, %p_u", NULL);
        if (compared) {
            made_node(&m, "Greater", "q,t", "c");
            made_node(&m, "Where", "c,q,x", "y");
        } else {
            fx_node(&m, "Identity", "t", "d", "detach", "%t", NULL);
            made_node(&m, "Sub", "d,q", "y");
        }
        made_output(&m, "y");
        Module *mod = made_import(&m);
        CHECK_EQ_INT(mod != NULL, !compared);
        if (mod) {
            CHECK_EQ_INT(var_named(mod, "u")->kind, VAR_PARAM);
            CHECK_EQ_INT(var_named(mod, "w")->kind, VAR_FROZEN);
        } else
            CHECK_HAS(made_message(&m), "parameter 'w' reaches the outputs "
                                        "only through non-differentiable");
        made_end(&m);
    }
}

/* As atleast_1d is in PyTorch's export of column_stack. */
TEST_CASE(onnx_stops, nodes_of_an_unknown_op_are_refused_by_name) {
    Made m;
    start(&m, NULL);
    fx_node(&m, "SequenceMap", "t,a", "y", "atleast_1d", "%t, %a", NULL);
    made_output(&m, "y");
    CHECK(made_import(&m) == NULL);
    CHECK_HAS(made_message(&m), "SequenceMap");
    made_end(&m);
}

/* The exporter also drops copies: cosine_similarity makes some of its own,
   and on a line without detach() they look like any copy. */
TEST_CASE(onnx_stops, copies_that_were_dropped) {
    static const char both[] =
        "File \"m.py\", line 3\n    cosine_similarity(a, "
        "t.detach()) + t.detach().clone()";
    static const char one[] = "File \"m.py\", line 3\n    cosine_similarity(a, "
                              "t.detach())";
    static const struct {
        const char *in, *args, *line, *second, *then; /* of a second node */
        int stops;
        bool told;
    } rows[] = {
        {"a,t", "%a, %detach", one, "s,t", "%s, %clone", 1, false},
        {"a,t", "%a, %detach", one, "s,a", "%s, %clone", 1, false},
        {"a,t", "%a, %detach", both, "s,a", "%s, %clone", 2, false},
        {"a,t", "%a, %clone_1", both, "s,a", "%s, %clone", 2, false},
        {"a,t", "%a, %clone_1", one, "s,a", "%s, %clone", 0, true},
        {"a,t", "%a, %t", NULL, "s,t", "%s, %clone", 0, true},
        {"a,t", "%a, %t", NULL, "s,t", "%s, %expand_2", 0, true},
        {"a,a", "%a, %a", NULL, "s,t", "%s, %clone", 0, false}, /* once */
        {"a,t", "%a, %t", NULL, "s,t", "%s, %t", 0, false},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        Made m;
        start(&m, NULL);
        fx_node(&m, "Mul", rows[i].in, "s", "s", rows[i].args, rows[i].line);
        fx_node(&m, "Add", rows[i].second, "y", "add", rows[i].then,
                rows[i].line);
        made_output(&m, "y");
        int n = stops(&m);
        CHECK_MSG(n == rows[i].stops, "row %zu: %d", i, n);
        CHECK_MSG(!!strstr(made_message(&m), "reads a copy whose") ==
                      rows[i].told,
                  "row %zu: %s", i, made_message(&m));
        made_end(&m);
    }
}

/* A loss's target; inactive dropout and contiguous() are copies, too. A
   detach() that the value's own line hides applies to that value. */
TEST_CASE(onnx_stops, copies_that_alone_read_their_value) {
    static const char hidden[] =
        "File \"m.py\", line 3\n    u = f(t).detach().clone()";
    static const struct {
        const char *reader, *line;
        int stops;
        bool told;
    } rows[] = {{"relu", NULL, 0, false},
                {"mse_loss", NULL, 0, true},
                {"sub", NULL, 0, true},
                {"relu", hidden, 1, false}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        Made m;
        start(&m, NULL);
        fx_node(&m, "Sigmoid", "t", "u", "u", "%t", rows[i].line);
        fx_node(&m, "Sub", "x,u", "y",
                arena_printf(m.a, "%s.default", rows[i].reader), "%x, %clone",
                NULL);
        made_node(&m, "MatMul", "t,w", "z");
        made_output(&m, "y");
        made_output(&m, "z");
        int n = stops(&m);
        CHECK_MSG(n == rows[i].stops, "row %zu: %d", i, n);
        CHECK_MSG(!!strstr(made_message(&m), "reads a copy whose") ==
                      rows[i].told,
                  "row %zu: %s", i, made_message(&m));
        made_end(&m);
    }
}

/* x.view_as(x), which the exporter drops, is what a function of autograd
   returns that only has a backward(). */
TEST_CASE(onnx_stops, views_to_their_own_shape) {
    static const struct {
        const char *args;
        bool told;
    } rows[] = {{"%a, %view", true},
                {"%a, %view_2", true},
                {"%a, %view_as_real", false},
                {"%a, %t", false}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        Made m;
        start(&m, NULL);
        fx_node(&m, "Mul", "a,t", "y", "mul", rows[i].args, NULL);
        made_output(&m, "y");
        CHECK_EQ_INT(stops(&m), 0);
        CHECK_MSG(!!strstr(made_message(&m), "'y' reads a view to its") ==
                      rows[i].told,
                  "row %zu: %s", i, made_message(&m));
        made_end(&m);
    }
}

/* f(t) and f(t.detach()) were merged into one node. */
TEST_CASE(onnx_stops, equal_nodes_that_were_merged) {
    static const struct {
        const char *in, *args;
        bool told;
    } rows[] = {{"a,u", "%a, %tanh_1", true},   {"u,u", "%tanh, %tanh_1", true},
                {"u,u", "%tanh, %tanh", false}, {"a,u", "%a, %tanh", false},
                {"a,u", "%a, %sigmoid", false}, {"a,u", "%a, %tanh_x", false}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        Made m;
        start(&m, NULL);
        fx_node(&m, "Tanh", "t", "u", "tanh", "%t", NULL);
        fx_node(&m, "Mul", rows[i].in, "y", "mul", rows[i].args, NULL);
        made_output(&m, "y");
        CHECK(stops(&m) == 0);
        CHECK_MSG(!!strstr(made_message(&m), "'y' reads one of two equal") ==
                      rows[i].told,
                  "row %zu: %s", i, made_message(&m));
        made_end(&m);
    }
}

/* u stands for f(t) and for f(t.detach()): the line of Python that reads both
   says detach() once more than its nodes, and t has a reader that is gone. */
TEST_CASE(onnx_stops, merged_values_of_a_line_that_detaches) {
#define LINE "File \"m.py\", line 3\n    y = "
    static const struct {
        const char *line, *op, *from; /* of u */
        int users, stops;             /* users: readers of s */
        bool told;
    } rows[] = {
        {LINE "tanh(s) / tanh(s.detach())", "Tanh", "s", 2, 1, false},
        {LINE "tanh(s) / tanh(s.detach())", "Tanh", "s", 1, 0, true},
        {LINE "tanh(s) / tanh(s)", "Tanh", "s", 2, 0, true},
        {LINE "f(s.detach()) * f(s.detach()) * f(s)", "Tanh", "s", 2, 0, true},
        {LINE "(s @ w) / (s.detach() @ w)", "MatMul", "s,w", 2, 0, true},
        {LINE "(s * a) / (s.detach() * a)", "Mul", "s,a", 2, 0, true},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        Made m;
        start(&m, NULL);
        Onnx__NodeProto *shared = made_node(&m, "Sigmoid", "t", "s");
        made_metadata(
            &m, &shared->metadata_props, &shared->n_metadata_props,
            "pkg.torch.onnx.fx_node",
            arena_printf(m.a,
                         "%%s : [num_users=%d] = call_function[target=torch."
                         "ops.aten.sigmoid](args = (%%t,), kwargs = {})",
                         rows[i].users));
        fx_node(&m, rows[i].op, rows[i].from, "u", "tanh", "%s", rows[i].line);
        fx_node(&m, "Div", "u,u", "y", "div", "%tanh, %tanh_1", rows[i].line);
        made_output(&m, "y");
        int n = stops(&m);
        CHECK_MSG(n == rows[i].stops, "row %zu: %d", i, n);
        CHECK_MSG(!!strstr(made_message(&m), "'y' reads one of two equal") ==
                      rows[i].told,
                  "row %zu: %s", i, made_message(&m));
        made_end(&m);
    }
#undef LINE
}

/* The exporter drops detach_(). */
TEST_CASE(onnx_stops, detach_in_place) {
    Made m;
    start(&m, NULL);
    fx_node(&m, "Mul", "t,a", "y", "mul", "%t, %a",
            "File \"m.py\", line 3, in forward\n    t.detach_() * a");
    made_output(&m, "y");
    CHECK_EQ_INT(stops(&m), 0);
    CHECK_HAS(made_message(&m), "'y': its line says detach_()");
    made_end(&m);
}

/* Results of a node without a record; several nodes of one line that share
   the difference. */
TEST_CASE(onnx_stops, detach_of_what_does_not_tell_its_name) {
    Made m;
    start(&m, NULL);
    made_node(&m, "Sigmoid", "t", "p");
    fx_node(&m, "Mul", "a,p", "y", "mul", "%a, %detach", NULL);
    made_output(&m, "y");
    CHECK(stops(&m) == 1);
    made_end(&m);
    start(&m, NULL);
    fx_node(&m, "Neg", "t", "u", "stack", "%t, %detach", NULL);
    fx_node(&m, "Mul", "u,u", "y", "stack", "%t, %detach", NULL);
    made_output(&m, "y");
    CHECK(stops(&m) == 0);
    CHECK_MSG(strstr(made_message(&m), "does not tell by which operand"), "%s",
              made_message(&m));
    made_end(&m);
}

/* torch.stack([t, t.detach()]): one node computes the value, and it is read
   twice. */
TEST_CASE(onnx_stops, detach_within_a_stack) {
    Made m;
    start(&m, NULL);
    fx_node(&m, "Neg", "t", "u", "stack", "[%t, %detach], 1", NULL);
    fx_node(&m, "Concat", "u,u", "y", "stack", "[%t, %detach], 1", NULL);
    made_int(&m, m.graph.node[m.graph.n_node - 1], "axis", 1);
    made_output(&m, "y");
    CHECK_EQ_INT(stops(&m), 1);
    CHECK(!strstr(made_message(&m), "by which operand"));
    made_end(&m);
}

/* The backward of a user's own function is in files of ampc.torch.export alone.
 */
TEST_CASE(onnx_stops, functions_of_autograd) {
    static const struct {
        const char *trace, *classes;
        bool told;
    } rows[] = {
        {"File \"m.py\", line 3, in forward\n    q = Round.apply(t)\n"
         "  File \"m.py\", line 1, in forward\n    return torch.round(x)",
         "['m.Net', 'aten.round.default']", true},
        {"File \"m.py\", line 3, in forward\n    q = rounded(t)\n"
         "  File \"m.py\", line 1, in forward\n    return torch.round(x)",
         "['m.Net', 'aten.round.default']", true},
        {"File \"m.py\", line 3, in forward\n    q = self.round(t)\n"
         "  File \"m.py\", line 1, in forward\n    return torch.round(x)",
         "['m.Net', 'm.Round', 'aten.round.default']", false},
        {"File \"m.py\", line 3, in forward\n    q = super().forward(t)\n"
         "  File \"m.py\", line 1, in forward\n    return torch.round(x)",
         "['m.Net', 'aten.round.default']", false},
        {"File \"m.py\", line 3, in forward\n    q = self.parts[0](t)\n"
         "  File \"m.py\", line 1, in forward\n    return x.round(self.n)",
         "['m.Net', 'aten.round.default']", false},
        {"File \"m.py\", line 3, in forward\n    q = torch.round(t)",
         "['m.Net', 'aten.round.default']", false},
    };
    for (size_t k = 0; k < 2 * sizeof rows / sizeof *rows; k++) {
        size_t i = k / 2;
        bool ours = k % 2;
        Made m;
        start(&m, NULL);
        if (ours)
            made_metadata(&m, &m.model.metadata_props,
                          &m.model.n_metadata_props, "ampc.torch.export", "1");
        fx_node(&m, "Round", "t", "u", "round_1", "%t", rows[i].trace);
        Onnx__NodeProto *n = m.graph.node[m.graph.n_node - 1];
        made_metadata(&m, &n->metadata_props, &n->n_metadata_props,
                      "pkg.torch.onnx.class_hierarchy", rows[i].classes);
        fx_node(&m, "Add", "u,a", "y", "add", "%round_1, %a", NULL);
        made_output(&m, "y");
        CHECK(stops(&m) == 0);
        CHECK_MSG(!!strstr(made_message(&m), "torch.autograd.Function") ==
                      (rows[i].told && !ours),
                  "row %zu: %s", i, made_message(&m));
        made_end(&m);
    }
}

/* Several nodes of one line: mse_loss(t, a.detach()). */
TEST_CASE(onnx_stops, detach_in_a_line_of_several_nodes) {
    Made m;
    start(&m, NULL);
    fx_node(&m, "Sub", "t,a", "d", "mse_loss", "%t, %detach", NULL);
    fx_node(&m, "Mul", "d,d", "s", "mse_loss", "%t, %detach", NULL);
    fx_node(&m, "ReduceMean", "s", "y", "mse_loss", "%t, %detach", NULL);
    made_output(&m, "y");
    CHECK_EQ_INT(stops(&m), 1);
    made_end(&m);
}

/* Traces of nodes in a block begin in the block's own graph. */
/* z = t * 1; z[:2] = t[:2].detach(): the exporter drops the product as well,
   and reads t for z. */
TEST_CASE(onnx_stops, detach_written_into_a_slice) {
    static const char line[] =
        "File \"m.py\", line 3\n    z[:2] = t[:2].detach()";
    static const struct {
        const char *whole; /* the argument for z */
        int stops;
        bool told;
    } rows[] = {{"%t", 1, false}, {"%mul", 0, true}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        Made m;
        start(&m, NULL);
        const char *args = arena_printf(m.a, "%s, %%copy", rows[i].whole);
        fx_node(&m, "Sigmoid", "t", "s", "s", "%t", line);
        fx_node(&m, "Neg", "s", "p", "slice_scatter", args, line);
        fx_node(&m, "Neg", "t", "q", "slice_scatter", args, line);
        fx_node(&m, "Add", "p,q", "y", "slice_scatter", args, line);
        made_output(&m, "y");
        int n = stops(&m);
        CHECK_MSG(n == rows[i].stops, "row %zu: %d", i, n);
        CHECK_MSG(!!strstr(made_message(&m), "does not tell by which") ==
                      rows[i].told,
                  "row %zu: %s", i, made_message(&m));
        made_end(&m);
    }
}

TEST_CASE(onnx_stops, blocks_without_gradients) {
    static const struct {
        const char *trace;
        int stops;
        const char *says;
        bool ours; /* ampc.torch.export wrote each detach() */
    } rows[] = {
        {"File \"<eval_with_key>.7\", line 5, in forward\n    a = "
         "torch.ops.aten.linear.default(x, p_w);  x = p_w = None",
         1, "", false},
        {"File \"<eval_with_key>.7\", line 5, in forward\n    a = "
         "torch.ops.aten.linear.default(x, arg2_1);  x = arg2_1 = None",
         0, "", false},
        {"File \"<eval_with_key>.7\", line 5, in forward\n    a = "
         "torch.ops.aten.tanh.default(h);  h = None",
         0, "the file does not tell which: the gradient passes", false},
        {"File \"<eval_with_key>.7\", line 5, in forward\n    a = "
         "torch.ops.aten.tanh.default(h);  h = None",
         0, "", true},
        {"File \"<eval_with_key>.7\", line 6, in forward\n    a = "
         "torch.ops.higher_order.wrap_with_set_grad_enabled(False, submod_2, "
         "h)\n  File \"<eval_with_key>.8\", line 5, in forward\n    a = "
         "torch.ops.aten.tanh.default(h)",
         1, "", false},
        {"File \"m.py\", line 5, in forward\n    a = tanh(p_w)", 0, "", false},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        Made m;
        start(&m, rows[i].trace);
        if (rows[i].ours)
            made_metadata(&m, &m.model.metadata_props,
                          &m.model.n_metadata_props, "ampc.torch.export", "1");
        fx_node(&m, "MatMul", "x,w", "b", "b", "%x, %p_w", NULL);
        fx_node(&m, "Mul", "b,t", "y", "mul", "%b, %t", NULL);
        made_output(&m, "y");
        int n = stops(&m);
        CHECK_MSG(n == rows[i].stops, "%zu: %d", i, n);
        CHECK_HAS(made_message(&m), rows[i].says);
        CHECK(*rows[i].says || !strstr(made_message(&m), "no_grad"));
        made_end(&m);
    }
}

/* PyTorch's gradient of `t` is that of what was written over it. */
TEST_CASE(onnx_stops, values_overwritten_in_a_block) {
    for (int i = 0; i < 2; i++) {
        Made m;
        const char *op = i ? "tanh" : "tanh_";
        start(&m, NULL);
        fx_node(
            &m, "Tanh", "t", "v", "v", "%t",
            arena_printf(m.a,
                         "File \"<eval_with_key>.7\", line 5, in forward\n"
                         "    v = torch.ops.aten.%s.default(t);  p_w = None",
                         op));
        fx_node(&m, "Mul", "v,t", "y", "mul", "%v, %t", NULL);
        made_output(&m, "y");
        CHECK_EQ_INT(stops(&m), 1);
        CHECK_MSG(i == !strstr(made_message(&m), "then written to under"),
                  "%s: %s", op, made_message(&m));
        made_end(&m);
    }
}

/* An equal value outside of the block was merged with the block's. */
TEST_CASE(onnx_stops, values_shared_with_a_block) {
    Made m;
    start(&m, "File \"<eval_with_key>.7\", line 5, in forward\n    a = "
              "torch.ops.aten.linear.default(x, p_w)");
    fx_node(&m, "Mul", "a,t", "y", "mul", "%a_1, %t", NULL);
    made_output(&m, "y");
    CHECK_EQ_INT(stops(&m), 1); /* of t alone */
    made_end(&m);
}

TEST_CASE(onnx_stops, identities_that_exporters_name) {
    static const struct {
        const char *by, *out;
        int stops;
    } rows[] = {{"jax2onnx", "stop_out_0", 1},
                {"jax2onnx", "scan_loop_0/stop_out_0", 1},
                {"jax2onnx", "copy_out_0", 0},
                {"tf2onnx 1.17", "m/StopGradient:0", 1},
                {"", "p2o.pd_op.share_data_.0.0", 1},
                {"", "p2o.pd_op.assign.0.0", 0},
                {"other", "p2o.pd_op.share_data_.0.0", 0},
                {"other", "stop_out_0", 0}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        Made m;
        char in[40];
        made_start(&m, 18);
        m.model.producer_name = made_text(&m, rows[i].by);
        made_input(&m, "x", DT_F32, "2,4");
        made_f32(&m, "w", "4,4", 0);
        made_node(&m, "MatMul", "x,w", "a");
        made_node(&m, "Identity", "a", rows[i].out);
        snprintf(in, sizeof in, "a,%s", rows[i].out);
        made_node(&m, "Mul", in, "y");
        made_output(&m, "y");
        int n = stops(&m);
        CHECK_MSG(n == rows[i].stops, "%s of %s: %d", rows[i].out, rows[i].by,
                  n);
        made_end(&m);
    }
}

/* Step functions in a trained path: TorchScript keeps no detach() for them, and
   jax2onnx no custom_vjp. */
TEST_CASE(onnx_stops, steps_where_no_stop_is_left) {
    static const struct {
        const char *by, *op, *in;
        bool told;
    } rows[] = {
        {"pytorch", "Round", "a", true},  {"pytorch", "Sign", "a", true},
        {"pytorch", "Floor", "a", true},  {"tf2onnx", "Round", "a", true},
        {"pytorch", "Round", "x", false}, {"pytorch", "Relu", "a", false},
        {"jax2onnx", "Round", "a", true}, {"jax2onnx", "Round", "x", false}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        Made m;
        made_start(&m, 18);
        m.model.producer_name = made_text(&m, rows[i].by);
        made_input(&m, "x", DT_F32, "2,4");
        made_f32(&m, "fc.weight", "4,4", 0);
        made_node(&m, "MatMul", "x,fc.weight", "a");
        made_node(&m, rows[i].op, rows[i].in, "q")->doc_string =
            made_text(&m, "/m.py(6): forward\n/module.py(10): _call_impl");
        made_node(&m, "Add", "a,q", "y");
        made_output(&m, "y");
        REQUIRE(made_import(&m) != NULL);
        const char *says = made_message(&m);
        CHECK_MSG(!!strstr(says, "a step function (gradient 0)") ==
                      rows[i].told,
                  "%s %s: %s", rows[i].by, rows[i].op, says);
        if (rows[i].told) CHECK_HAS(says, "[/m.py(6): forward]");
        made_end(&m);
    }
}

/* h + stop_gradient(round(h)), and h * round(stop_gradient(h)). */
TEST_CASE(onnx_stops, steps_beside_a_stop_of_jax) {
    for (int before = 0; before < 2; before++) {
        Made m;
        made_start(&m, 18);
        m.model.producer_name = made_text(&m, "jax2onnx");
        made_input(&m, "x", DT_F32, "2,4");
        made_f32(&m, "const_0", "4,4", 0);
        made_node(&m, "MatMul", "x,const_0", "a");
        if (before) made_node(&m, "Identity", "a", "stop_out_0");
        made_node(&m, "Round", before ? "stop_out_0" : "a", "q");
        if (!before) made_node(&m, "Identity", "q", "stop_out_0");
        made_node(&m, "Mul", before ? "a,q" : "a,stop_out_0", "y");
        made_output(&m, "y");
        REQUIRE(made_import(&m) != NULL);
        CHECK_MSG(!strstr(made_message(&m), "step function"), "%s",
                  made_message(&m));
        made_end(&m);
    }
}

/* Indices of the nearest row, and a comparison that becomes a number. */
TEST_CASE(onnx_stops, choices_where_no_stop_is_left) {
    for (int metric = 0; metric < 2; metric++) {
        Made m;
        made_start(&m, 18);
        m.model.producer_name = made_text(&m, "pytorch");
        made_input(&m, "x", DT_F32, "2,4");
        made_f32(&m, "fc.weight", "4,4", 0);
        made_node(&m, "MatMul", "x,fc.weight", "a");
        made_node(&m, "ArgMax", "a", "i");
        made_node(&m, "Gather", "fc.weight,i", "g");
        made_node(&m, "ReduceMean", metric ? "a" : "g", "y");
        made_output(&m, "y");
        REQUIRE(made_import(&m) != NULL);
        CHECK(!!strstr(made_message(&m), "ArgMax (opset 18): a step") ==
              !metric);
        made_end(&m);
    }
    Made m;
    made_start(&m, 18);
    m.model.producer_name = made_text(&m, "pytorch");
    made_input(&m, "x", DT_F32, "2,4");
    made_f32(&m, "fc.weight", "4,4", 0);
    made_f32(&m, "zero", "4", 0);
    made_node(&m, "MatMul", "x,fc.weight", "a");
    made_node(&m, "Greater", "a,zero", "c");
    made_int(&m, made_node(&m, "Cast", "c", "f"), "to", 1);
    made_node(&m, "Add", "a,f", "y");
    made_output(&m, "y");
    REQUIRE(made_import(&m) != NULL);
    CHECK_HAS(made_message(&m), "Cast (opset 18): a step");
    made_end(&m);
}
