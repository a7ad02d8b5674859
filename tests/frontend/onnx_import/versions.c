/* SPDX-License-Identifier: Apache-2.0 */
/* versions.c: rules of old opsets that no stored model covers. */
#define _POSIX_C_SOURCE 200809L
#include <stdlib.h>
#include <string.h>

#include "frontend/onnx/onnx.h"
#include "tests/frontend/onnx_import/onnx_import.h"
#include "tests/harness.h"
#include "tests/support/onnx_util.h"

/* ---- version rules that no stored model covers --------------------------- */

/* The type of y after one node on x: f32[dims], or NULL if it is refused. */
static const Type *one_node(Made *m, int version, const char *dims,
                            const char *op, const char *in,
                            Onnx__NodeProto **node) {
    made_start(m, version);
    made_input(m, "x", DT_F32, dims);
    *node = made_node(m, op, in, "y");
    made_output(m, "y");
    return NULL;
}

static const Type *result_type(Made *m) {
    Module *mod = made_import(m);
    if (!mod) return NULL;
    Graph *g = module_graph(mod, "forward");
    return value_type(g, g->outputs.data[0].value);
}

TEST_CASE(onnx_versions, softmax_before_13_flattens) {
    Made m;
    Onnx__NodeProto *n;
    one_node(&m, 11, "2,3,4", "Softmax", "x", &n);
    Module *mod = made_import(&m);
    REQUIRE(mod != NULL);
    CHECK(find_node(mod, OP_RESHAPE) != NULL);
    m.opset.version = 13;
    mod = made_import(&m);
    REQUIRE(mod != NULL);
    CHECK(find_node(mod, OP_RESHAPE) == NULL);
    CHECK_EQ_INT(attr_int(find_call(mod, "softmax"), AK_axis), 2);
    made_end(&m);
}

TEST_CASE(onnx_versions, reduce_takes_axes_both_ways) {
    Made m;
    Onnx__NodeProto *n;
    int64_t axis = -1;
    one_node(&m, 17, "2,3,4", "ReduceMean", "x", &n);
    made_ints(&m, n, "axes", 1, &axis);
    REQUIRE(result_type(&m) != NULL);
    CHECK_EQ_INT(result_type(&m)->dim[2], 1);
    made_end(&m);
    one_node(&m, 18, "2,3,4", "ReduceMean", "x,axes", &n);
    made_i64(&m, "axes", 1, &axis);
    made_int(&m, n, "keepdims", 0);
    REQUIRE(result_type(&m) != NULL);
    CHECK_EQ_INT(result_type(&m)->rank, 2);
    CHECK_EQ_INT(result_type(&m)->dim[1], 3);
    made_end(&m);
}

/* ONNX Runtime's own domain has one version, which files need not import. */
TEST_CASE(onnx_versions, ops_of_onnx_runtime_without_import) {
    Made m;
    Onnx__NodeProto *n;
    one_node(&m, 17, "2,3", "QuickGelu", "x", &n);
    n->domain = made_text(&m, "com.microsoft");
    REQUIRE(result_type(&m) != NULL);
    CHECK_EQ_INT(result_type(&m)->dim[1], 3);
    made_end(&m);
}

/* Slices of five elements, compared with Python's range(5)[start:end:step].
   Exception: a slice that begins before the first element and goes backwards
   contains that element (ONNX clamps such a start to 0, as ONNX Runtime
   does). */
TEST_CASE(onnx_versions, slices_reach_both_ends) {
    static const int64_t cases[][4] = {
        {-1, INT64_MIN, -1, 5}, {-1, -6, -1, 5}, {9, INT64_MIN, -1, 5},
        {4, 0, -1, 4},          {4, -5, -1, 4},  {3, INT64_MIN, -2, 2},
        {-6, INT64_MAX, 2, 3},  {0, -1, 1, 4},   {-9, 9, 1, 5},
        {-6, INT64_MIN, -1, 1}, {-9, -9, -2, 1}, {-6, 0, -1, 0}};
    static const int64_t axis = 0;
    size_t count = sizeof cases / sizeof *cases;
    for (size_t i = 0; i < 2 * count; i++) {
        Made m;
        Onnx__NodeProto *n;
        bool none = i >= count;
        const int64_t *c = cases[i % count];
        one_node(&m, 17, none ? "0" : "5", "Slice", "x,s,e,a,t", &n);
        made_i64(&m, "s", 1, &c[0]);
        made_i64(&m, "e", 1, &c[1]);
        made_i64(&m, "a", 1, &axis);
        made_i64(&m, "t", 1, &c[2]);
        REQUIRE(result_type(&m) != NULL);
        CHECK_MSG(result_type(&m)->dim[0] == (none ? 0 : c[3]),
                  "case %zu: %lld", i, (long long)result_type(&m)->dim[0]);
        made_end(&m);
    }
}

/* The model's result for its only input, floats or integers. */
static const EvalTensor *result_of(Made *m, const double *f, const int64_t *i) {
    Module *mod = made_import(m);
    REQUIRE(mod != NULL);
    const Graph *g = module_graph(mod, "forward");
    ValueId x = g->inputs.data[0];
    size_t n = (size_t)type_count(value_type(g, x));
    Evaluator *e = eval_new(g, m->a, EVAL_EXACT);
    EvalTensor *t = eval_tensor_new(m->a, value_get(g, x)->type);
    if (f)
        memcpy(t->f, f, n * sizeof *f);
    else
        memcpy(t->i, i, n * sizeof *i);
    eval_bind(e, x, t);
    REQUIRE(eval_run(e, &m->d) == OK);
    return eval_get(e, g->outputs.data[0].value);
}

/* Hardmax of 0, 1, .. 23 in [2,3,4]: the bits show where the result is 1. Up
   to opset 12 all axes from `axis` on are treated as one. */
TEST_CASE(onnx_versions, hardmax_has_one_axis_or_many) {
    static const struct {
        int version, axis;
        uint32_t ones;
    } cases[] = {{12, 1, 0x800800},
                 {12, 2, 0x888888},
                 {12, 0, 0x800000},
                 {13, 1, 0xf00f00},
                 {13, 0, 0xfff000}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        Made m;
        Onnx__NodeProto *n;
        uint32_t ones = 0;
        one_node(&m, cases[i].version, "2,3,4", "Hardmax", "x", &n);
        made_int(&m, n, "axis", cases[i].axis);
        double x[24];
        for (int k = 0; k < 24; k++) x[k] = k;
        const EvalTensor *y = result_of(&m, x, NULL);
        for (int k = 0; k < 24; k++) ones |= (uint32_t)(y->f[k] == 1) << k;
        CHECK_MSG(ones == cases[i].ones, "case %zu: %06x", i, ones);
        made_end(&m);
    }
}

TEST_CASE(onnx_versions, concat_has_an_axis_before_4) {
    for (int version = 1; version < 5; version++) {
        Made m;
        Onnx__NodeProto *n;
        one_node(&m, version, "2,3", "Concat", "x,x", &n);
        const Type *t = result_type(&m);
        CHECK_MSG(version < 4 ? t && t->dim[1] == 6 : !t, "opset %d", version);
        made_end(&m);
    }
}

TEST_CASE(onnx_versions, an_optional_value_is_its_tensor) {
    const double x[] = {3, -4};
    for (int given = 0; given < 2; given++) {
        Made m;
        made_start(&m, 18);
        made_input(&m, "x", DT_F32, "2");
        made_node(&m, "OptionalHasElement", given ? "x" : "", "has");
        made_node(&m, "OptionalGetElement", "x", "some");
        made_f32(&m, "zero", "1", 0);
        made_node(&m, "Where", "has,some,zero", "y");
        made_output(&m, "y");
        const EvalTensor *y = result_of(&m, x, NULL);
        for (int k = 0; k < 2; k++) CHECK(y->f[k] == (given ? x[k] : 0));
        made_end(&m);
    }
}

/* Where(c, 0, softmax(x)) is that function, whether c has rows, columns,
   elements or several x. */
TEST_CASE(onnx_math, where_of_a_softmax) {
    enum { ROWS = 2, COLS = 3 };
    static const char *const dims[] = {"2,3", "2,1", "1,3", "3", "1", "2,2,3"};
    static const double x[ROWS * COLS] = {1, -2, 0.5, 3, 2.5, -1};
    static const float bits[] = {1, 0, 0, 1, 0, 1, 0, 1, 1, 0, 0, 1};
    for (int k = 0; k < 12; k++) {
        int axis = k % 2, size[3], rank = 0;
        Made m;
        made_start(&m, 17);
        made_input(&m, "x", DT_F32, "2,3");
        Onnx__TensorProto *t = made_f32(&m, "w", dims[k / 2], 0);
        for (size_t i = 0; i < t->n_float_data; i++) t->float_data[i] = bits[i];
        for (rank = 0; rank < (int)t->n_dims; rank++)
            size[rank] = (int)t->dims[rank];
        made_f32(&m, "zero", "1", 0);
        made_int(&m, made_node(&m, "Cast", "w", "c"), "to", 9);
        made_int(&m, made_node(&m, "Softmax", "x", "p"), "axis", axis);
        made_node(&m, "Where", "c,zero,p", "y");
        made_output(&m, "y");
        const EvalTensor *y = result_of(&m, x, NULL);
        int n = (int)type_count(type_get(y->type));
        CHECK_EQ_INT(n, rank == 3 ? 12 : 6);
        for (int e = 0; e < n; e++) {
            int at[] = {e / 6, e / 3 % 2, e % 3}, c = 0;
            double sum = 0;
            for (int j = 0; j < (axis ? COLS : ROWS); j++)
                sum += exp(axis ? x[at[1] * COLS + j] : x[j * COLS + at[2]]);
            for (int d = 0; d < rank; d++)
                c = c * size[d] + (size[d] == 1 ? 0 : at[3 - rank + d]);
            double want = bits[c] != 0 ? 0 : exp(x[e % 6]) / sum;
            CHECK_MSG(fabs(y->f[e] - want) < 1e-12,
                      "axis %d, condition [%s], element %d: %g, not %g", axis,
                      dims[k / 2], e, y->f[e], want);
        }
        made_end(&m);
    }
}

/* The smallest and the largest number of a type have no negation in that
   type. */
TEST_CASE(onnx_versions, the_least_of_integers) {
    static const struct {
        DType dtype;
        int64_t x[4];
        int64_t first, last;
    } cases[] = {{DT_I8, {127, -128, 5, -128}, 1, 3},
                 {DT_U8, {255, 0, 0, 7}, 1, 2},
                 {DT_I32, {0, INT32_MAX, INT32_MIN, 1}, 2, 2},
                 {DT_I64, {INT64_MIN + 1, INT64_MIN, INT64_MAX, 0}, 1, 1}};
    for (size_t i = 0; i < 2 * sizeof cases / sizeof *cases; i++) {
        Made m;
        bool last = i % 2;
        made_start(&m, 17);
        made_input(&m, "x", cases[i / 2].dtype, "4");
        made_int(&m, made_node(&m, "ArgMin", "x", "y"), "select_last_index",
                 last);
        made_output(&m, "y");
        CHECK_EQ_INT(result_of(&m, NULL, cases[i / 2].x)->i[0],
                     last ? cases[i / 2].last : cases[i / 2].first);
        made_end(&m);
    }
}

TEST_CASE(onnx_versions, relu6_has_exclusive_bounds) {
    Made m;
    Onnx__NodeProto *n;
    one_node(&m, 13, "4", "Clip", "x,lo,hi", &n);
    made_f32(&m, "lo", "", 0);
    made_f32(&m, "hi", "", 6);
    Module *mod = made_import(&m);
    REQUIRE(mod != NULL);
    CHECK_EQ_INT(attr_int(find_node(mod, OP_CLIP), AK_inclusive), 0);
    CHECK_NEAR(attr_float(find_node(mod, OP_CLIP), AK_max), 6, 0);
    made_end(&m);
}

TEST_CASE(onnx_versions, a_user_cast_is_marked) {
    Made m;
    Onnx__NodeProto *n;
    one_node(&m, 13, "4", "Cast", "x", &n);
    made_int(&m, n, "to", dtype_info[DT_BF16].onnx);
    Module *mod = made_import(&m);
    REQUIRE(mod != NULL);
    CHECK_EQ_INT(attr_int(find_node(mod, OP_CAST), AK_user), 1);
    made_end(&m);
}

TEST_CASE(onnx_loss, class_axis_is_one_and_log_prob_is_made_when_used) {
    Made m;
    made_start(&m, 13);
    made_input(&m, "x", DT_F32, "2,5,3");
    made_input(&m, "t", DT_I64, "2,3");
    made_node(&m, "SoftmaxCrossEntropyLoss", "x,t", "loss,prob");
    made_output(&m, "loss");
    Module *mod = made_import(&m);
    REQUIRE(mod != NULL);
    CHECK_EQ_INT(mod->class_axis, 1);
    CHECK(find_call(mod, "log_softmax") == NULL);
    made_output(&m, "prob");
    mod = made_import(&m);
    REQUIRE(mod != NULL);
    CHECK(find_call(mod, "log_softmax") != NULL);
    made_end(&m);
}

TEST_CASE(onnx_loss, soft_labels_are_explained) {
    Made m;
    made_start(&m, 13);
    made_input(&m, "x", DT_F32, "2,5");
    made_input(&m, "t", DT_F32, "2,5");
    made_node(&m, "SoftmaxCrossEntropyLoss", "x,t", "loss");
    made_output(&m, "loss");
    CHECK(!made_import(&m));
    CHECK_HAS(made_message(&m), "soft labels");
    made_end(&m);
}

/* ---- what a module keeps of the file ------------------------------------- */

TEST_CASE(onnx_skeleton, loses_the_variables_data_alone) {
    Made m;
    StrBuf kept = {0};
    size_t n, elements = 0;
    made_linear(&m);
    Module *mod = made_import(&m);
    REQUIRE(mod != NULL);
    uint8_t *bytes = model_pack(&m.model, &n);
    REQUIRE(onnx_skeleton(mod, bytes, n, &kept));
    Onnx__ModelProto *got =
        onnx__model_proto__unpack(NULL, kept.len, (uint8_t *)kept.data);
    REQUIRE(got && got->graph->n_initializer == m.graph.n_initializer);
    CHECK_EQ_INT(got->graph->n_node, m.graph.n_node);
    CHECK_STR(got->graph->node[3]->output[0], "y");
    for (size_t i = 0; i < got->graph->n_initializer; i++) {
        const Onnx__TensorProto *t = got->graph->initializer[i];
        CHECK_STR(t->name, m.graph.initializer[i]->name);
        CHECK_EQ_INT(t->n_dims, m.graph.initializer[i]->n_dims);
        elements += t->n_float_data + t->raw_data.len / 4;
    }
    CHECK_EQ_INT(elements, 1); /* "half", a literal */
    onnx__model_proto__free_unpacked(got, NULL);
    for (size_t cut = 1; cut < 4; cut++) {
        StrBuf rest = {0};
        CHECK(!onnx_skeleton(mod, bytes, n - cut, &rest));
        sb_free(&rest);
    }
    sb_free(&kept);
    free(bytes);
    made_end(&m);
}
