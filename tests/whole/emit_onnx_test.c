/* SPDX-License-Identifier: Apache-2.0 */
/* emit_onnx_test.c: --emit-onnx.  Written files are imported again, and the
   interpreter must find the same values: every op of tests/ops that ONNX
   has, in every dtype, and whole models with their casts.
   models/check/emit.py checks such files with the ONNX checker and ONNX
   Runtime. */
#define _GNU_SOURCE
#include <math.h>
#include <string.h>

#include "ir/text/text.h"
#include "passes/passes.h"
#include "tests/support/device_check.h"
#include "tests/support/onnx_util.h"
#include "tests/support/ops_bench.h"
#include "tests/whole/emit_onnx/emit_onnx.h"

/* ---- every op ------------------------------------------------------------ */

/* Random numbers, updates, and gradients without an ONNX op. */
static bool has_form(const Node *n) {
    switch (n->op) {
    case OP_CALL:
    case OP_RAND_UNIFORM:
    case OP_SLICE_GRAD:
    case OP_SCATTER_ADD:
    case OP_SUPPRESS:
    case OP_PAD_GRAD:
    case OP_CONV_WGRAD:
    case OP_CONV_SUMS:
    case OP_CONV_DGRAD_SUMS:
    case OP_BLOCK_CODES:
    case OP_BLOCK_SCALES:
    case OP_BLOCK_SUMS:
    case OP_ATTEND:
    case OP_ATTEND_GRAD:
    case OP_WIDEN_QUANTIZED:
    case OP_MATMUL_QUANTIZED:
    case OP_MAX_POOL_GRAD:
    case OP_AVG_POOL_GRAD: return false;
    default: return true;
    }
}

/* Keeps and counts outputs that can be written; f64 outputs do not count,
   because f64 constants are imported as f32. e8m0 is younger than opset 20. */
static int keep_outputs(Graph *g, Arena *a) {
    bool *without = NEW_ARRAY(a, bool, g->values.len);
    int kept = 0;
    for (int i = 0; i < g->order.len; i++) {
        const Node *n = node_get(g, g->order.data[i]);
        DType d = value_dtype(g, n->out[0]);
        bool bad = !has_form(n) || d == DT_F64 || d == DT_E8M0;
        for (int k = 0; k < n->nin; k++) bad |= without[n->in[k].i];
        for (int k = 0; k < n->nout; k++) without[n->out[k].i] = bad || k > 0;
    }
    for (int i = 0; i < g->outputs.len; i++) {
        const Output *o = &g->outputs.data[i];
        if (!without[o->value.i] && !name_is_own(o->name) &&
            value_dtype(g, o->value) != DT_F64)
            g->outputs.data[kept++] = *o;
    }
    return g->outputs.len = kept;
}

void onnx_compare(const char *name, const Type *t, const EvalTensor *want,
                  const EvalTensor *got, int64_t *same, int64_t *other) {
    double unit = dc_output_tolerance((ampc_dtype)t->dtype), scale = 0;
    for (int64_t k = 0; k < type_count(t); k++)
        if (dtype_is_float(t->dtype) && isfinite(want->f[k]))
            scale = fmax(scale, fabs(want->f[k]));
    for (int64_t k = 0; k < type_count(t); k++) {
        bool fl = dtype_is_float(t->dtype);
        double w = fl ? want->f[k] : (double)want->i[k];
        double g = fl ? got->f[k] : (double)got->i[k];
        bool eq = w == g || (isnan(w) && isnan(g));
        ++*(eq ? same : other);
        if (!CHECK_MSG(eq || (fl && fabs(w - g) <= unit * scale),
                       "%s[%lld] is %g, not %g", name, (long long)k, g, w))
            return;
    }
}

/* One line of IR and the values of %y by hand, before and after; %x are nan,
   inf, -inf, 1.5, -0.25, 0, %i are 0, 1, 2 .. in i64, %k the same in i32, %h
   is %x in bf16 and %p is slightly more, in f32. */
TEST_CASE(emit_onnx, lines_by_value) {
    static const struct {
        const char *line;
        int n;
        double want[12];
    } rows[] = {
        {"slice %x {starts=[3], sizes=[3], steps=[1]}", 3, {1.5, -0.25, 0}},
        {"slice %x {starts=[5], sizes=[3], steps=[-1]}", 3, {0, -0.25, 1.5}},
        {"slice %x {starts=[5], sizes=[2], steps=[-2]}", 2, {0, 1.5}},
        {"slice %x {starts=[3], sizes=[2], steps=[2]}", 2, {1.5, 0}},
        {"slice %x {starts=[2], sizes=[0], steps=[1]}", 0, {0}},
        {"slice %x {starts=[0], sizes=[0], steps=[-1]}", 0, {0}},
        {"slice %i {starts=[5], sizes=[6], steps=[-1]}", 6, {5, 4, 3, 2, 1, 0}},
        {"slice %i {starts=[0], sizes=[1], steps=[-1]}", 1, {0}},
        {"slice %i {starts=[0], sizes=[2], steps=[5]}", 2, {0, 5}},
        {"isfinite %x", 6, {0, 0, 0, 1, 1, 1}},
        {"isnan %x", 6, {1, 0, 0, 0, 0, 0}},
        {"isinf %x", 6, {0, 1, 1, 0, 0, 0}},
        {"gather %x, %i {axis=0}",
         6,
         {NAN, INFINITY, -INFINITY, 1.5, -0.25, 0}},
        {"gather %i, %k {axis=0}", 6, {0, 1, 2, 3, 4, 5}},
        {"pad %i {pads=[1,1], value=7}", 8, {7, 0, 1, 2, 3, 4, 5, 7}},
        {"pad %i {pads=[2,0], mode=\"reflect\"}", 8, {2, 1, 0, 1, 2, 3, 4, 5}},
        {"pad %i {pads=[0,2], mode=\"edge\"}", 8, {0, 1, 2, 3, 4, 5, 5, 5}},
        {"clip %x {min=-1, max=1}", 6, {NAN, 1, -1, 1, -0.25, 0}},
        {"less %i, 3:i64", 6, {1, 1, 1, 0, 0, 0}},
        {"less_equal %i, 3:i64", 6, {1, 1, 1, 1, 0, 0}},
        {"greater %i, 3:i64", 6, {0, 0, 0, 0, 1, 1}},
        {"greater_equal %i, 3:i64", 6, {0, 0, 0, 1, 1, 1}},
        {"mod %i, 4:i64", 6, {0, 1, 2, 3, 0, 1}},
        {"sub 7:i64, %i", 6, {7, 6, 5, 4, 3, 2}},
        {"cumsum %i {axis=0}", 6, {0, 1, 3, 6, 10, 15}},
        {"cumsum %i {axis=0, exclusive=1}", 6, {0, 0, 1, 3, 6, 10}},
        {"cumsum %i {axis=0, reverse=1}", 6, {15, 15, 14, 12, 9, 5}},
        {"argmax %x {axis=0, keepdims=0}", 1, {0}},
        {"cast %x : bool[6]", 6, {1, 1, 1, 1, 1, 0}},
        {"where %b, %i, %j", 6, {0, -1, 2, -3, 4, -5}},
        {"less %r, %q", 6, {0, 1, 0, 0, 0, 1}},
        {"concat %h, %p {axis=0}",
         12,
         {NAN, INFINITY, -INFINITY, 1.5, -0.25, 0, NAN, INFINITY, -INFINITY,
          1.5009765625, -0.2490234375, 0.0009765625}},
    };
    for (size_t r = 0; r < sizeof rows / sizeof *rows; r++) {
        Arena *a = arena_new();
        Diag d = {0};
        Module *m;
        char text[900];
        snprintf(
            text, sizeof text,
            "graph predict(%%x: f32[6], %%i: i64[6], %%k: i32[6], "
            "%%b: bool[6]) {\n  %%j = neg %%i\n  %%h = cast %%x : bf16[6]\n"
            "  %%p = add %%x, 0.0009765625\n"
            "  %%g = add %%i, 16777216:i64\n  %%q = cast %%g : f64[6]\n"
            "  %%r = cast %%g : f32[6]\n  %%y = %s\n"
            "  return %%y, j=%%j\n}\n",
            rows[r].line);
        if (parse_module(a, &d, "t", text, strlen(text), &m) != OK)
            FAIL("%s", d.text.data);
        const Graph *g = m->graphs.data[0];
        for (int after = 0; after < 2; after++) {
            static const double x[] = {NAN, INFINITY, -INFINITY, 1.5, -0.25, 0};
            if (after) {
                Module *back = onnx_again(a, g, &d);
                if (!back) FAIL("%s", d.text.data);
                g = module_graph(back, "forward");
            }
            Evaluator *e = eval_new(g, a, EVAL_STORAGE);
            for (int i = 0; i < g->inputs.len; i++) {
                const Value *v = value_get(g, g->inputs.data[i]);
                EvalTensor *t = eval_tensor_new(a, v->type);
                for (int k = 0; k < 6; k++)
                    if (t->f)
                        t->f[k] = x[k];
                    else
                        t->i[k] = *v->name == 'b' ? k % 2 == 0 : k;
                eval_bind(e, g->inputs.data[i], t);
            }
            REQUIRE(eval_run(e, &d) == OK);
            const EvalTensor *y = eval_get(e, g->outputs.data[0].value);
            CHECK_EQ_INT(type_count(type_get(y->type)), rows[r].n);
            for (int k = 0; k < rows[r].n; k++) {
                double got = y->f ? y->f[k] : (double)y->i[k];
                double want = rows[r].want[k];
                CHECK_MSG(got == want || (isnan(got) && isnan(want)),
                          "%s%s: element %d is %g, not %g", rows[r].line,
                          after ? " in ONNX" : "", k, got, want);
            }
        }
        sb_free(&d.text);
        arena_free(a);
    }
}

TEST_CASE(emit_onnx, every_op_that_onnx_has) {
    OpsBench b = ops_bench_new();
    Diag d = {0};
    Options opt;
    Evaluator *e = eval_new(b.all, b.a, EVAL_STORAGE), *f;
    int64_t same = 0, other = 0;
    ops_data_new(&b, e);
    REQUIRE(eval_run(e, &d) == OK);
    int nwant = b.all->outputs.len;
    const EvalTensor **want = ops_wanted(&b, e);
    const Output *names =
        arena_dup(b.a, b.all->outputs.data, sizeof *names * (size_t)nwant);
    options_inference(&opt, b.a);
    opt.precision = PREC_FP32;
    REQUIRE(run_common(b.m, &d, &opt, false) == OK);
    CHECK(onnx_again(b.a, b.all, &d) == NULL);
    CHECK_HAS(d.text.data, "conv_wgrad: has no form in ONNX");
    REQUIRE(keep_outputs(b.all, b.a) > 400);
    Module *m = onnx_again(b.a, b.all, &d);
    if (!m) FAIL("%s", strstr(d.text.data, "avg_pool_grad"));
    Graph *g = module_graph(m, "forward");
    f = eval_new(g, b.a, EVAL_STORAGE);
    for (int i = 0; i < g->inputs.len; i++) {
        const Value *v = value_get(g, g->inputs.data[i]);
        ValueId from = graph_input_named(b.all, v->name);
        eval_bind(f, g->inputs.data[i], eval_get(e, from));
    }
    REQUIRE(eval_run(f, &d) == OK);
    REQUIRE(CHECK_EQ_INT(g->outputs.len, b.all->outputs.len));
    for (int i = 0, k = 0; i < g->outputs.len; i++, k++) {
        const Output *o = &g->outputs.data[i];
        while (k < nwant && names[k].name != o->name) k++;
        REQUIRE(k < nwant);
        const Type *t = value_type(g, o->value), *as = type_get(want[k]->type);
        CHECK_MSG(t->dtype == as->dtype && shape_equal(t, as),
                  "%s is %s, not %s, or of another shape", o->name,
                  dtype_info[t->dtype].text, dtype_info[as->dtype].text);
        onnx_compare(o->name, value_type(g, o->value), want[k],
                     eval_get(f, o->value), &same, &other);
    }
    CHECK_MSG(other * 20 < same, "%lld of %lld elements differ",
              (long long)other, (long long)(same + other));
    sb_free(&d.text);
    arena_free(b.a);
}

/* ---- names --------------------------------------------------------------- */

/* "label: Op(in, in) -> out", one per line. */
static const char *nodes_text(Arena *a) {
    Onnx__ModelProto *p = onnx_message();
    StrBuf sb = {0};
    for (size_t i = 0; i < p->graph->n_node; i++) {
        const Onnx__NodeProto *n = p->graph->node[i];
        sb_printf(&sb, "%s: %s(", n->name, n->op_type);
        for (size_t k = 0; k < n->n_input; k++)
            sb_printf(&sb, k ? ", %s" : "%s", n->input[k]);
        sb_printf(&sb, ") -> %s\n", n->output[n->n_output - 1]);
    }
    const char *text = arena_dup(a, sb.data ? sb.data : "", sb.len + 1);
    sb_free(&sb);
    onnx__model_proto__free_unpacked(p, NULL);
    return text;
}

/* Users' names that the writer might use itself, results with several names,
   and outputs that are inputs or parameters. */
TEST_CASE(emit_onnx, names) {
    static const char text[] =
        "graph predict(%x: f32[2,3], %number: f32[3], %k: i32[2]) {\n"
        "  param %w: f32[3] = 3, %v: bf16[3] = [1, 2, 4]\n"
        "  %ints_6 = mul %x, %w\n"
        "  %y = reshape %ints_6 {shape=[6]}\n"
        "  %c = clip %number {min=-1, max=1}\n"
        "  %d = add %v, %c\n"
        "  %e = mul %v, %d\n"
        "  %o = gather %number, %k {axis=0}\n"
        "  %s = slice_grad %o {starts=[0], shape=[3], steps=[1]}\n"
        "  return same=%x, held=%w, %w, c=%x, %y, again=%y, %d, out=%e, "
        "%ints_6, %number, %o, ampc.s=%s\n"
        "}\n";
    static const struct {
        const char *output;
        int n;
        double want[6];
    } rows[] = {{"same", 6, {0, 1, 2, 3, 4, 5}},
                {"c", 6, {0, 1, 2, 3, 4, 5}},
                {"w", 3, {3, 3, 3}},
                {"held", 3, {3, 3, 3}},
                {"y", 6, {0, 3, 6, 9, 12, 15}},
                {"again", 6, {0, 3, 6, 9, 12, 15}},
                {"d", 3, {1, 3, 5}},
                {"out", 3, {1, 6, 20}},
                {"ints_6", 6, {0, 3, 6, 9, 12, 15}},
                {"o", 2, {0, 1}},
                {"number", 3, {0, 1, 2}}};
    Arena *a = arena_new();
    Diag d = {0};
    Module *m;
    if (parse_module(a, &d, "t", text, strlen(text), &m) != OK)
        FAIL("%s", d.text.data);
    Module *back = onnx_again(a, m->graphs.data[0], &d);
    if (!back) FAIL("%s", d.text.data);
    const Graph *g = module_graph(back, "forward");
    Evaluator *e = eval_new(g, a, EVAL_EXACT);
    for (int i = 0; i < g->inputs.len; i++) {
        EvalTensor *x =
            eval_tensor_new(a, value_get(g, g->inputs.data[i])->type);
        for (int64_t k = 0; k < type_count(type_get(x->type)); k++)
            x->f ? (x->f[k] = (double)k) : (x->i[k] = k);
        eval_bind(e, g->inputs.data[i], x);
    }
    REQUIRE(eval_run(e, &d) == OK);
    CHECK_EQ_INT(g->outputs.len, sizeof rows / sizeof *rows);
    for (size_t r = 0; r < sizeof rows / sizeof *rows; r++) {
        const EvalTensor *y = eval_get(e, graph_output(g, rows[r].output));
        REQUIRE(CHECK_EQ_INT(type_count(type_get(y->type)), rows[r].n));
        for (int k = 0; k < rows[r].n; k++)
            CHECK_MSG(y->f[k] == rows[r].want[k], "%s[%d] is %g",
                      rows[r].output, k, y->f[k]);
    }
    CHECK_STR(nodes_text(a), "ints_6: Mul(x, w) -> ints_6\n"
                             "y: Reshape(ints_6, ints_6.2) -> y\n"
                             "c.2: Clip(number, number.2, number.3) -> c.2\n"
                             "v/f32: Cast(v) -> v/f32\n"
                             "d: Add(v/f32, c.2) -> d\n"
                             "out: Mul(v/f32, d) -> out\n"
                             "o: Gather(number, k) -> o\n"
                             "same: Identity(x) -> same\n"
                             "held: Identity(w) -> held\n"
                             "c: Identity(x) -> c\n"
                             "again: Identity(y) -> again\n");
    sb_free(&d.text);
    arena_free(a);
}

/* Operations that ONNX lacks and a user's output needs. */
TEST_CASE(emit_onnx, refusals) {
    static const struct {
        const char *sizes, *output, *why; /* NULL: it can */
    } rows[] = {{"3", "%y", NULL},
                {"4", "%y", NULL},
                {"2", "%y", "max_pool: its windows have no form in ONNX"},
                {"3", "%k", "max_pool: has no form in ONNX"},
                {"3", "%y, %k", "max_pool: has no form in ONNX"},
                {"3", "%y, ampc.k=%k", NULL}};
    for (size_t r = 0; r < sizeof rows / sizeof *rows; r++) {
        Arena *a = arena_new();
        Diag d = {0};
        Module *m;
        char text[400];
        snprintf(text, sizeof text,
                 "graph predict(%%x: f32[1,2,7]) {\n"
                 "  %%y, %%k = max_pool %%x {kernel_shape=[2], strides=[2], "
                 "pads=[0,0], dilations=[1], sizes=[%s]}\n"
                 "  return %s\n}\n",
                 rows[r].sizes, rows[r].output);
        if (parse_module(a, &d, "t", text, strlen(text), &m) != OK)
            FAIL("%s", d.text.data);
        Module *back = onnx_again(a, m->graphs.data[0], &d);
        CHECK_MSG((back != NULL) == !rows[r].why, "sizes %s, %s", rows[r].sizes,
                  rows[r].output);
        if (rows[r].why) CHECK_HAS(d.text.data, rows[r].why);
        sb_free(&d.text);
        arena_free(a);
    }
}
