/* SPDX-License-Identifier: Apache-2.0 */
/* tensors.c: tensors with the wrong types, shapes or content. */
#define _GNU_SOURCE
#include <string.h>

#include "tests/frontend/onnx_hostile/onnx_hostile.h"
#include "tests/harness.h"
#include "tests/support/onnx_util.h"

/* ---- tensors ------------------------------------------------------------- */

Onnx__TensorProto *with_weight(Made *m, const char *dims) {
    hostile_start(m, "2", "Add", "x,w");
    return made_f32(m, "w", dims, 0);
}

TEST_CASE(onnx_tensor, types_and_shapes) {
    Made m;
    with_weight(&m, "2")->data_type = 99;
    hostile_refuse(&m, "w: unknown element type 99");
    with_weight(&m, "2")->data_type = 8;
    hostile_refuse(&m, "STRING is not supported");
    with_weight(&m, "2")->data_type = 0;
    hostile_refuse(&m, "UNDEFINED is not supported");
    with_weight(&m, "2")->dims[0] = -2;
    hostile_refuse(&m, "dimension 0 is -2");
    Onnx__TensorProto *t = with_weight(&m, "2,1");
    t->dims[0] = t->dims[1] = INT64_MAX;
    hostile_refuse(&m, "has more than");
    t = with_weight(&m, "0,1");
    t->dims[1] = INT64_MAX;
    hostile_refuse(&m, "has more than");
    with_weight(&m, "1,1,1,1,1,1,1,1,2");
    hostile_refuse(&m, "has rank 9; at most 8");
}

typedef struct OtherTypes {
    Onnx__TypeProto element;
    Onnx__TypeProto__Sequence sequence;
    Onnx__TypeProto__Optional optional;
    Onnx__TypeProto__SparseTensor sparse;
} OtherTypes;

/* Makes the type of a tensor another one, with the tensor in it. */
static void set_type(Onnx__TypeProto *type, Onnx__TypeProto__ValueCase is,
                     OtherTypes *o) {
    *o = (OtherTypes){.element = *type,
                      .sequence = ONNX__TYPE_PROTO__SEQUENCE__INIT,
                      .optional = ONNX__TYPE_PROTO__OPTIONAL__INIT,
                      .sparse = ONNX__TYPE_PROTO__SPARSE_TENSOR__INIT};
    o->sequence.elem_type = o->optional.elem_type = &o->element;
    o->sparse.has_elem_type = 1;
    o->sparse.elem_type = type->tensor_type->elem_type;
    o->sparse.shape = type->tensor_type->shape;
    type->value_case = is;
    if (is == ONNX__TYPE_PROTO__VALUE_SEQUENCE_TYPE)
        type->sequence_type = &o->sequence;
    if (is == ONNX__TYPE_PROTO__VALUE_OPTIONAL_TYPE)
        type->optional_type = &o->optional;
    if (is == ONNX__TYPE_PROTO__VALUE_SPARSE_TENSOR_TYPE)
        type->sparse_tensor_type = &o->sparse;
}

/* Declared types of outputs do not count. */
TEST_CASE(onnx_tensor, other_types_are_no_tensors) {
    static const Onnx__TypeProto__ValueCase types[] = {
        ONNX__TYPE_PROTO__VALUE_SEQUENCE_TYPE,
        ONNX__TYPE_PROTO__VALUE_OPTIONAL_TYPE,
        ONNX__TYPE_PROTO__VALUE_SPARSE_TENSOR_TYPE,
        ONNX__TYPE_PROTO__VALUE__NOT_SET};
    for (size_t i = 0; i < sizeof types / sizeof *types; i++)
        for (int k = 0; k < 3; k++) {
            Made m;
            OtherTypes other;
            made_start(&m, 18);
            made_input(&m, "a", DT_F32, "2");
            made_input(&m, "b", DT_F32, "2");
            made_input(&m, "of_y", DT_F32, "2");
            made_node(&m, "Add", "a,b", "y");
            made_output(&m, "y");
            m.graph.output[0]->type = m.graph.input[2]->type;
            m.graph.n_input = 2;
            set_type(m.graph.input[k]->type, types[i], &other);
            CHECK_MSG((made_import(&m) != NULL) == (k == 2), "%d, %d: %s",
                      (int)types[i], k, made_message(&m));
            if (k < 2)
                CHECK_HAS(made_message(&m),
                          k ? "input 'b' is not a tensor with a shape"
                            : "input 'a' is not a tensor with a shape");
            made_end(&m);
        }
}

TEST_CASE(onnx_tensor, content) {
    Made m;
    with_weight(&m, "2")->n_float_data = 1;
    hostile_refuse(&m, "'w' is f32[2] and needs 2 entries, but the file has 1");
    with_weight(&m, "2")->n_float_data = 0;
    hostile_refuse(&m, "has no data");
    Onnx__TensorProto *t = with_weight(&m, "2");
    uint8_t raw[9] = {0};
    t->has_raw_data = 1;
    t->raw_data.data = raw;
    t->raw_data.len = 8;
    hostile_refuse(&m, "more than one field");
    t = with_weight(&m, "2");
    t->n_float_data = 0;
    t->has_raw_data = 1;
    t->raw_data.data = raw;
    t->raw_data.len = 9;
    hostile_refuse(&m, "needs 8 bytes, but the file has 9");
    t = with_weight(&m, "2");
    int32_t big[] = {1, 70000};
    t->n_float_data = 0;
    t->n_int32_data = 2;
    t->int32_data = big;
    t->data_type = 10;
    hostile_refuse(&m, "entry 1, 70000, is out of range for f16");
    static const struct {
        int type; /* of onnx.proto */
        int32_t least, most;
    } small[] = {{2, 0, 255}, {3, -128, 127}, {4, 0, 65535}, {5, -32768, 32767},
                 {9, 0, 1},   {10, 0, 65535}, {16, 0, 65535}};
    for (size_t i = 0; i < 2 * sizeof small / sizeof *small; i++) {
        int beyond = i % 2;
        int32_t ends[] = {small[i / 2].least, small[i / 2].most + beyond};
        for (int side = 0; side < 1 + beyond; side++) {
            if (side) ends[0] = small[i / 2].least - 1, ends[1]--;
            t = with_weight(&m, "2");
            t->n_float_data = 0;
            t->n_int32_data = 2;
            t->int32_data = ends;
            t->data_type = small[i / 2].type;
            (void)made_import(&m);
            bool out = strstr(made_message(&m), "is out of range") != NULL;
            CHECK_MSG(out == beyond, "type %d: %d, %d: %s", small[i / 2].type,
                      ends[0], ends[1], made_message(&m));
            made_end(&m);
        }
    }
    t = with_weight(&m, "2");
    t->n_float_data = 0;
    t->has_raw_data = 1;
    t->raw_data.data = (uint8_t *)"\1\2";
    t->raw_data.len = 2;
    t->data_type = 9;
    hostile_refuse(&m, "element 1 of a bool tensor is 2");
    t = with_weight(&m, "2");
    Onnx__TensorProto__Segment seg = ONNX__TENSOR_PROTO__SEGMENT__INIT;
    t->segment = &seg;
    hostile_refuse(&m, "segments");
}

/* Numbers of each width, in the field for that width. */
TEST_CASE(onnx_tensor, fields_by_type) {
    static const struct {
        int type; /* of onnx.proto */
        DType dtype;
    } rows[] = {{1, DT_F32},  {11, DT_F64}, {7, DT_I64}, {6, DT_I32},
                {13, DT_U64}, {12, DT_U32}, {2, DT_U8},  {5, DT_I16}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        Made m;
        float f[2] = {3, 5};
        double g[2] = {3, 5};
        int32_t s[2] = {3, 5};
        int64_t l[2] = {3, 5};
        uint64_t u[2] = {3, 5};
        made_start(&m, 18);
        Onnx__TensorProto *t = made_f32(&m, "w", "2", 0);
        DType d = rows[i].dtype;
        t->n_float_data = 0;
        t->data_type = rows[i].type;
        if (d == DT_F32) t->n_float_data = 2, t->float_data = f;
        if (d == DT_F64) t->n_double_data = 2, t->double_data = g;
        if (d == DT_I64) t->n_int64_data = 2, t->int64_data = l;
        if (d == DT_I32 || d == DT_U8 || d == DT_I16)
            t->n_int32_data = 2, t->int32_data = s;
        if (d == DT_U64 || d == DT_U32)
            t->n_uint64_data = 2, t->uint64_data = u;
        made_int(&m, made_node(&m, "Cast", "w", "y"), "to", 11);
        made_output(&m, "y");
        Module *mod = made_import(&m);
        if (!mod) FAIL("type %d: %s", rows[i].type, made_message(&m));
        const Graph *graph = module_graph(mod, "forward");
        Evaluator *e = eval_new(graph, m.a, EVAL_EXACT);
        REQUIRE(eval_run(e, &m.d) == OK);
        const EvalTensor *y = eval_get(e, graph->outputs.data[0].value);
        CHECK_MSG(y->f[0] == 3 && y->f[1] == 5, "type %d: %g, %g", rows[i].type,
                  y->f[0], y->f[1]);
        made_end(&m);
    }
    for (int over = 0; over < 2; over++) {
        Made m;
        uint64_t u[2] = {1, UINT32_MAX + (uint64_t)over};
        Onnx__TensorProto *t = with_weight(&m, "2");
        t->n_float_data = 0;
        t->data_type = 12;
        t->n_uint64_data = 2;
        t->uint64_data = u;
        (void)made_import(&m);
        bool out = strstr(made_message(&m), "is out of range") != NULL;
        CHECK_MSG(out == over, "%s", made_message(&m));
        made_end(&m);
    }
}

/* The text of an attribute ends at its first zero byte. */
TEST_CASE(onnx_operands, texts_end_at_a_zero_byte) {
    Made m;
    made_start(&m, 14);
    made_input(&m, "x", DT_F32, "2,1,1");
    made_f32(&m, "w", "1,1,1", 1);
    Onnx__NodeProto *n = made_node(&m, "RNN", "x,w,w", "y");
    made_str(&m, n, "direction", "reverse");
    ProtobufCBinaryData *s = &n->attribute[0]->s;
    *s = (ProtobufCBinaryData){9, (uint8_t *)"reverse\0x"};
    Onnx__AttributeProto *p = made_attr(
        &m, n, "activations", ONNX__ATTRIBUTE_PROTO__ATTRIBUTE_TYPE__STRINGS);
    p->n_strings = 1;
    p->strings = &(ProtobufCBinaryData){4, (uint8_t *)"Relu"};
    made_output(&m, "y");
    Module *mod = made_import(&m);
    if (!mod) FAIL("%s", made_message(&m));
    const Graph *g = module_graph(mod, "forward");
    Evaluator *e = eval_new(g, m.a, EVAL_EXACT);
    for (int i = 0; i < mod->vars.len; i++) REQUIRE(mod->vars.data[i].init);
    EvalTensor *x = eval_tensor_new(m.a, value_get(g, g->inputs.data[0])->type);
    x->f[0] = 1, x->f[1] = 2;
    eval_bind(e, g->inputs.data[0], x);
    REQUIRE(eval_run(e, &m.d) == OK);
    const EvalTensor *y = eval_get(e, g->outputs.data[0].value);
    CHECK_NEAR(y->f[0], 3, 0); /* from the end */
    CHECK_NEAR(y->f[1], 2, 0);
    made_end(&m);
}

/* A list of dimensions has at most 4096 entries. */
TEST_CASE(onnx_operands, lists_end) {
    for (int over = 0; over < 2; over++) {
        Made m;
        static int64_t ones[4097];
        for (int i = 0; i < 4097; i++) ones[i] = 1;
        hostile_start(&m, "1", "Reshape", "x,s");
        made_i64(&m, "s", 4096 + over, ones);
        hostile_refuse(&m, over ? "its shape has 4097 entries" : "rank 4096");
    }
}
