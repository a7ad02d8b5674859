/* SPDX-License-Identifier: Apache-2.0 */
/* emit_onnx_test.c: --emit-onnx.  Written files are imported again, and the
   interpreter must find the same values: every op of tests/ops that ONNX
   has, in every dtype, and whole models with their casts.
   models/check/emit.py checks such files with the ONNX checker and ONNX
   Runtime. */
#define _GNU_SOURCE
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "ir/graph/ir_impl.h"
#include "passes/passes.h"
#include "tests/support/device_check.h"
#include "tests/support/onnx_util.h"
#include "tests/support/ops_bench.h"

/* ---- what ONNX asks of a file -------------------------------------------- */

static Onnx__ModelProto *message(void) {
    size_t n;
    char *bytes = test_read_file(test_tmp("emitted.onnx"), &n);
    Onnx__ModelProto *p =
        onnx__model_proto__unpack(NULL, n, (const uint8_t *)bytes);
    REQUIRE(p);
    free(bytes);
    return p;
}

static void define(Arena *a, StrMap *names, const char *name, const char *as) {
    CHECK_MSG(name && *name && str_map_get(names, intern(name)) < 0,
              "%s '%s' has no name or that of another", as, name ? name : "");
    str_map_put(a, names, intern(name), 1);
}

/* The graph that was imported has inferred types of its own. */
static bool has_type(const Onnx__ValueInfoProto *v, const Type *t) {
    const Onnx__TypeProto__Tensor *x = v->type->tensor_type;
    if (v->type->value_case != ONNX__TYPE_PROTO__VALUE_TENSOR_TYPE ||
        !x->has_elem_type || x->elem_type != dtype_info[t->dtype].onnx ||
        !x->shape || (int)x->shape->n_dim != t->rank)
        return false;
    for (int i = 0; i < t->rank; i++)
        if (x->shape->dim[i]->value_case !=
                ONNX__TENSOR_SHAPE_PROTO__DIMENSION__VALUE_DIM_VALUE ||
            x->shape->dim[i]->dim_value != t->dim[i])
            return false;
    return true;
}

static bool attribute_is_whole(const Onnx__AttributeProto *p) {
    switch (p->has_type ? p->type
                        : ONNX__ATTRIBUTE_PROTO__ATTRIBUTE_TYPE__UNDEFINED) {
    case ONNX__ATTRIBUTE_PROTO__ATTRIBUTE_TYPE__INT: return p->has_i;
    case ONNX__ATTRIBUTE_PROTO__ATTRIBUTE_TYPE__FLOAT: return p->has_f;
    case ONNX__ATTRIBUTE_PROTO__ATTRIBUTE_TYPE__STRING: return p->has_s;
    case ONNX__ATTRIBUTE_PROTO__ATTRIBUTE_TYPE__INTS: return p->n_ints > 0;
    default: return false;
    }
}

/* The first of the consecutive operands that must have one type; -1: there
   are none. */
static int first_of_one_type(const char *op) {
    static const char *const ops[] = {
        "Add",    "Sub",     "Mul",   "Div",
        "Mod",    "Min",     "Max",   "MatMul",
        "Gemm",   "Conv",    "Less",  "LessOrEqual",
        "And",    "Greater", "Equal", "GreaterOrEqual",
        "Concat", "Clip"};
    for (size_t i = 0; i < sizeof ops / sizeof *ops; i++)
        if (!strcmp(op, ops[i])) return 0;
    return strcmp(op, "Where") ? -1 : 1;
}

static void check_operands(Arena *a, const Onnx__GraphProto *g) {
    StrMap types = {0};
    for (size_t i = 0; i < g->n_input; i++)
        str_map_put(a, &types, intern(g->input[i]->name),
                    g->input[i]->type->tensor_type->elem_type);
    for (size_t i = 0; i < g->n_initializer; i++)
        str_map_put(a, &types, intern(g->initializer[i]->name),
                    g->initializer[i]->data_type);
    for (size_t i = 0; i < g->n_value_info; i++)
        str_map_put(a, &types, intern(g->value_info[i]->name),
                    g->value_info[i]->type->tensor_type->elem_type);
    for (size_t i = 0; i < g->n_node; i++) {
        const Onnx__NodeProto *n = g->node[i];
        int first = first_of_one_type(n->op_type), is = -1;
        for (size_t k = first < 0 ? n->n_input : (size_t)first; k < n->n_input;
             k++) {
            int type = str_map_get(&types, intern(n->input[k]));
            CHECK_MSG(type < 0 || is < 0 || type == is,
                      "%s: operands of types %d and %d", n->name, is, type);
            if (type >= 0) is = type;
        }
    }
}

/* Arithmetic is fp32; 16-bit values are only moved. */
static bool may_be_short(const char *op) {
    static const char *const ops[] = {"Cast",   "Reshape", "Transpose", "Slice",
                                      "Concat", "Gather",  "Identity"};
    for (size_t i = 0; i < sizeof ops / sizeof *ops; i++)
        if (!strcmp(op, ops[i])) return true;
    return false;
}

static void check_nodes(Arena *a, const Onnx__GraphProto *g, StrMap *values) {
    StrMap labels = {0}, read = {0};
    for (size_t i = 0; i < g->n_node; i++) {
        const Onnx__NodeProto *n = g->node[i];
        define(a, &labels, n->name, "node");
        for (size_t k = 0; k < n->n_input; k++) {
            CHECK_MSG(str_map_get(values, intern(n->input[k])) > 0,
                      "%s reads '%s' before it is computed", n->name,
                      n->input[k]);
            str_map_put(a, &read, intern(n->input[k]), 1);
        }
        for (size_t k = 0; k < n->n_output; k++)
            define(a, values, n->output[k], "result");
        for (size_t k = 0; k < n->n_attribute; k++)
            CHECK_MSG(attribute_is_whole(n->attribute[k]), "%s of %s",
                      n->attribute[k]->name, n->name);
    }
    for (size_t i = 0; i < g->n_output; i++)
        str_map_put(a, &read, intern(g->output[i]->name), 1);
    for (size_t i = 0; i < g->n_initializer; i++)
        CHECK_MSG(str_map_get(&read, intern(g->initializer[i]->name)) > 0,
                  "nothing reads %s", g->initializer[i]->name);
}

static bool reads_short_weight(const Onnx__GraphProto *g,
                               const Onnx__NodeProto *n) {
    for (size_t i = 0; i < g->n_initializer; i++) {
        const Onnx__TensorProto *t = g->initializer[i];
        for (size_t k = 0; k < n->n_input; k++)
            if (!strcmp(n->input[k], t->name) &&
                (t->data_type == ONNX__TENSOR_PROTO__DATA_TYPE__FLOAT16 ||
                 t->data_type == ONNX__TENSOR_PROTO__DATA_TYPE__BFLOAT16))
                return true;
    }
    return false;
}

/* Types of the file's results, if the imported graph has a result with that
   name from that node: its own types are inferred again. (Initializers of 16
   bits are widened there.) */
static void check_infos(Arena *a, const Onnx__GraphProto *g,
                        const Graph *imported) {
    StrMap infos = {0}, makers = {0};
    size_t found = 0;
    for (size_t i = 0; i < g->n_value_info; i++) {
        define(a, &infos, g->value_info[i]->name, "type");
        str_map_put(a, &infos, intern(g->value_info[i]->name), (int)i);
    }
    for (size_t i = 0; i < g->n_node; i++)
        str_map_put(a, &makers, intern(g->node[i]->output[0]), (int)i);
    for (int i = 0; i < imported->order.len; i++) {
        const Node *n = node_at(imported, i);
        const Type *t = value_type(imported, n->out[0]);
        Str name = value_get(imported, n->out[0])->name;
        int info = name ? str_map_get(&infos, name) : -1;
        int maker = name ? str_map_get(&makers, name) : -1;
        if (info < 0 || maker < 0 || n->loc.inside ||
            n->loc.node != intern(g->node[maker]->name))
            continue;
        found++;
        CHECK_MSG(!dtype_is_low(t->dtype) ||
                      may_be_short(g->node[maker]->op_type),
                  "'%s' is of 16 bits", name);
        CHECK_MSG(has_type(g->value_info[info], t) ||
                      reads_short_weight(g, g->node[maker]),
                  "'%s' is no %s", name, TXT(t));
    }
    CHECK_MSG(found * 5 >= g->n_value_info * 4, "%zu of %zu", found,
              g->n_value_info);
}

/* Names are unique and defined before use; a value with a type in the file
   has that type in the imported graph. */
static void check_file(Arena *a, const Graph *imported) {
    Onnx__ModelProto *p = message();
    const Onnx__GraphProto *g = p->graph;
    StrMap values = {0};
    CHECK_EQ_INT(p->n_opset_import, 1);
    CHECK_STR(p->opset_import[0]->domain, "");
    CHECK_EQ_INT(p->opset_import[0]->version, 20); /* of ONNX 1.15, as .. */
    CHECK_EQ_INT(p->ir_version, 9);                /* .. this is          */
    CHECK_STR(p->producer_name, "ampc");
    CHECK(g->name && *g->name);
    for (size_t i = 0; i < g->n_input; i++) {
        const char *name = g->input[i]->name;
        define(a, &values, name, "input");
        ValueId v = graph_input_named(imported, intern(name));
        CHECK_MSG(has_type(g->input[i], value_type(imported, v)),
                  "input %s has another type", name);
    }
    for (size_t i = 0; i < g->n_initializer; i++)
        define(a, &values, g->initializer[i]->name, "initializer");
    check_nodes(a, g, &values);
    check_operands(a, g);
    check_infos(a, g, imported);
    for (size_t i = 0; i < g->n_output; i++) {
        const char *name = g->output[i]->name;
        CHECK(str_map_get(&values, intern(name)) > 0);
        CHECK_MSG(has_type(g->output[i],
                           value_type(imported, graph_output(imported, name))),
                  "output %s has another type", name);
    }
    onnx__model_proto__free_unpacked(p, NULL);
}

/* Imports the file that onnx_emit writes for g; returns its message if it
   refuses.
 */
static Module *again(Arena *a, const Graph *g, Diag *d) {
    const char *path = test_tmp("emitted.onnx");
    OutFile out;
    Options opt;
    Module *m = NULL;
    size_t n;
    REQUIRE(outfile_open(&out, path, 0666, NULL, NULL));
    bool written = onnx_emit(a, d, path, g, NULL, NULL, &out) == OK;
    if (written) REQUIRE(outfile_commit(&out));
    outfile_abort(&out);
    if (!written) return NULL;
    char *bytes = test_read_file(path, &n);
    options_inference(&opt, a);
    Status s = import_onnx(a, d, path, (uint8_t *)bytes, n, &opt, &m);
    free(bytes);
    if (s != OK) return NULL;
    check_file(a, module_graph(m, "forward"));
    return m;
}

/* ---- every op ------------------------------------------------------------ */

/* Random numbers, updates, and gradients without an ONNX op. */
static bool has_form(const Node *n) {
    switch (n->op) {
    case OP_CALL:
    case OP_RAND_UNIFORM:
    case OP_SLICE_GRAD:
    case OP_SCATTER_ADD:
    case OP_PAD_GRAD:
    case OP_CONV_WGRAD:
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

/* Number of differing elements: parts of an op are rounded to fp32, which
   may change the direction of a rounding to 16 bits. */
static void compare(const char *name, const Type *t, const EvalTensor *want,
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
                Module *back = again(a, g, &d);
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
    CHECK(again(b.a, b.all, &d) == NULL);
    CHECK_HAS(d.text.data, "conv_wgrad: has no form in ONNX");
    REQUIRE(keep_outputs(b.all, b.a) > 400);
    Module *m = again(b.a, b.all, &d);
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
        compare(o->name, value_type(g, o->value), want[k],
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
    Onnx__ModelProto *p = message();
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
    Module *back = again(a, m->graphs.data[0], &d);
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
        Module *back = again(a, m->graphs.data[0], &d);
        CHECK_MSG((back != NULL) == !rows[r].why, "sizes %s, %s", rows[r].sizes,
                  rows[r].output);
        if (rows[r].why) CHECK_HAS(d.text.data, rows[r].why);
        sb_free(&d.text);
        arena_free(a);
    }
}

/* ---- whole models -------------------------------------------------------- */

static int count(const Onnx__GraphProto *g, const char *op) {
    int n = 0;
    for (size_t i = 0; i < g->n_node; i++)
        n += !strcmp(g->node[i]->op_type, op);
    return n;
}

static bool has_node(const Onnx__GraphProto *g, const char *op,
                     const char *name) {
    for (size_t i = 0; i < g->n_node; i++)
        if (!strcmp(g->node[i]->op_type, op) && !strcmp(g->node[i]->name, name))
            return true;
    return false;
}

static const EvalTensor *logits(const Graph *g, Arena *a) {
    Evaluator *e = eval_new(g, a, EVAL_STORAGE);
    Diag d = {0};
    for (int i = 0; i < g->inputs.len; i++) {
        EvalTensor *t =
            eval_tensor_new(a, value_get(g, g->inputs.data[i])->type);
        for (int64_t k = 0; k < type_count(type_get(t->type)); k++)
            t->i ? (t->i[k] = k * 7 % 3) : (t->f[k] = (double)(k % 64) / 32);
        eval_bind(e, g->inputs.data[i], t);
    }
    for (int i = 1; i < g->values.len; i++) { /* program refresh fills them */
        ValueId v = {(uint32_t)i};
        const Module *m = g->module;
        if (value_get(g, v)->kind != VK_VAR) continue;
        int from = shadow_source(m, value_var(g, v));
        if (from < 0) continue;
        EvalTensor *t = eval_from_tensor(a, m->vars.data[from].init);
        t->type = value_get(g, v)->type;
        for (int64_t k = 0; k < type_count(type_get(t->type)); k++)
            t->f[k] = round_to_dtype(t->f[k], type_get(t->type)->dtype);
        eval_bind(e, v, t);
    }
    REQUIRE(eval_run(e, &d) == OK);
    return eval_get(e, graph_output(g, "logits"));
}

/* PyTorch's names stay, 16-bit values stay 16 bits in the file, and the file
   computes the program's numbers. */
static void whole_model(const char *file, Precision precision,
                        const char *product, const char *name) {
    Arena *a = arena_new();
    Diag d = {0};
    Options opt;
    Module *m;
    size_t n;
    int64_t same = 0, other = 0;
    char *bytes = test_read_file(test_data_path(file), &n);
    options_inference(&opt, a);
    opt.precision = precision;
    vec_push(a, &opt.dims,
             (DimBind){.name = intern("batch"), .axis = -1, .value = 4});
    REQUIRE(import_onnx(a, &d, file, (uint8_t *)bytes, n, &opt, &m) == OK);
    REQUIRE(run_common(m, &d, &opt, false) == OK);
    free(bytes);
    const Graph *g = module_graph(m, "predict");
    Module *got = again(a, g, &d);
    if (!got) FAIL("%s", d.text.data);
    compare(file, value_type(g, graph_output(g, "logits")), logits(g, a),
            logits(module_graph(got, "forward"), a), &same, &other);
    Onnx__ModelProto *p = message();
    CHECK(has_node(p->graph, product, name));
    CHECK(count(p->graph, "Cast") > count(p->graph, product));
    for (size_t i = 0; i < p->graph->n_initializer; i++)
        CHECK(strncmp(p->graph->initializer[i]->name, "ampc.", 5));
    onnx__model_proto__free_unpacked(p, NULL);
    sb_free(&d.text);
    arena_free(a);
}

TEST_CASE(emit_onnx, gpt_in_bf16) {
    whole_model("tests/onnx/gpt.ts.onnx", PREC_BF16, "MatMul",
                "/h.0/qkv/MatMul");
}

TEST_CASE(emit_onnx, resnet_in_fp16) {
    whole_model("tests/onnx/resnet.ts.onnx", PREC_FP16, "Conv",
                "/layer1/conv1/Conv");
}

/* ---- the option ---------------------------------------------------------- */

static void check_option(int status, const char *says, const char *text,
                         const char *words) {
    char *out;
    test_write_file(test_tmp("m.amp"), text, strlen(text));
    int rc = test_command(&out,
                          "cd '%s' && rm -f m.onnx && '%s' m.amp -o m.so "
                          "--loss none --target cpu:x86-64-v2 %s",
                          test_tmpdir(), test_ampc(), words);
    CHECK_MSG(rc == status, "%s: status %d\n%s", words, rc, out);
    CHECK_HAS(out, says);
    CHECK_EQ_INT(access(test_tmp("m.onnx"), F_OK) == 0, status == 0);
    free(out);
}

TEST_CASE(emit_onnx, option) {
    const char *plain = "graph forward(%x: f32[2,3]) {\n  %y = exp %x\n"
                        "  return %y\n}\n";
    check_option(0, "", plain, "--emit-onnx m.onnx");
    check_option(1, "--emit-onnx would overwrite the model", plain,
                 "--emit-onnx m.amp");
    check_option(1, "m.amp:2:8: error: scatter_add: has no form in ONNX",
                 "graph forward(%x: f32[3,4], %i: i64[3]) {\n"
                 "  %y = scatter_add %x, %i {axis=0, shape=[5,4]}\n"
                 "  return %y\n}\n",
                 "--emit-onnx m.onnx");
}
