/* SPDX-License-Identifier: Apache-2.0 */
/* bytes.c: files that are not a model, their headers and their names. */
#define _GNU_SOURCE
#include <stdlib.h>
#include <string.h>

#include "tests/frontend/onnx_hostile/onnx_hostile.h"
#include "tests/harness.h"
#include "tests/support/onnx_util.h"

static bool refuse_bytes(const void *p, size_t n, const char *why) {
    Arena *a = arena_new();
    Diag d = {0};
    Options o;
    Module *m = NULL;
    options_init(&o, a);
    Status s = import_onnx(a, &d, "bad.onnx", p, n, &o, &m);
    bool ok = CHECK(s == ERR_USER && !m);
    ok = ok && CHECK_HAS(d.text.data, why);
    sb_free(&d.text);
    arena_free(a);
    return ok;
}

/* ---- bytes --------------------------------------------------------------- */

TEST_CASE(onnx_bytes, not_a_model) {
    refuse_bytes("", 0, "not an ONNX model");
    refuse_bytes("hello world, this is text", 25, "stopped at byte");
    refuse_bytes("\x3a\xff\xff\xff\xff\x0f", 6, "truncated");
    refuse_bytes("\x3a\x05", 2, "truncated");
    refuse_bytes("\x08", 1, "truncated");
    refuse_bytes("\x08\x07", 2, "no graph");
    refuse_bytes("\x3b", 1, "a field of wrong type");
    refuse_bytes("\xf3\x7f", 2, "not a protobuf field");
    refuse_bytes("\x12\x02"
                 "a\0",
                 4, "zero byte");
    refuse_bytes("\x3a\x00\x3a\x00", 4, "given twice");
    refuse_bytes("\x1f\x8b\x08", 3, "gunzip");
    refuse_bytes("\x89HDF\r\n", 6, "as Keras writes");
    refuse_bytes("\x1c\0\0\0TFL3", 8, "TensorFlow Lite");
    refuse_bytes("\x28\0\0\0ORTM", 8, "ONNX Runtime's own format");
    /* unknown fields of 8 and of 4 bytes are skipped if they are complete */
    refuse_bytes("\x08\x07"
                 "\xc1\x3e"
                 "12345678",
                 12, "no graph");
    refuse_bytes("\xc1\x3e"
                 "1234567",
                 9, "truncated");
    refuse_bytes("\x08\x07"
                 "\xc5\x3e"
                 "1234",
                 8, "no graph");
    refuse_bytes("\xc5\x3e"
                 "123",
                 5, "truncated");
    refuse_bytes("\x08\x07"
                 "\xc2\x3e\x02"
                 "12",
                 7, "no graph");
    refuse_bytes("\xc2\x3e\x02"
                 "1",
                 4, "truncated");
    refuse_bytes("\x08\x07"
                 "\xc0\x3e\x02",
                 5, "no graph");
    refuse_bytes("\xc3\x3e", 2, "not a protobuf field");
    refuse_bytes("\xc6\x3e", 2, "not a protobuf field");
    refuse_bytes("\x02", 1, "not a protobuf field"); /* number 0 */
    refuse_bytes("\x08\x07"
                 "\xfa\xff\xff\xff\x0f\x00",
                 8, "no graph"); /* the last */
    refuse_bytes("\x82\x80\x80\x80\x10\x00", 6, "not a protobuf field");
    refuse_bytes("\x08\x07"
                 "\x08\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01",
                 13, "ir_version -1");
    refuse_bytes("\x08\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", 12,
                 "truncated");
}

/* A field of length n; writes backwards and returns the new start. */
static uint8_t *wrap(uint8_t *p, uint8_t *end, unsigned field) {
    size_t n = (size_t)(end - p);
    uint8_t head[12];
    int k = 0;
    for (unsigned key = field << 3 | 2;; key >>= 7) {
        head[k++] = (uint8_t)((key & 127) | (key > 127 ? 128 : 0));
        if (key <= 127) break;
    }
    for (;; n >>= 7) {
        head[k++] = (uint8_t)((n & 127) | (n > 127 ? 128 : 0));
        if (n <= 127) break;
    }
    p -= k;
    memcpy(p, head, (size_t)k);
    return p;
}

TEST_CASE(onnx_bytes, nesting_is_limited) {
    enum { LEVELS = 4000 };
    size_t size = (size_t)LEVELS * 24;
    uint8_t *buf = malloc(size), *end = buf + size, *p = end;
    for (int i = 0; i < LEVELS; i++) {
        p = wrap(p, end, 6); /* attribute.g */
        p = wrap(p, end, 5); /* node.attribute */
        p = wrap(p, end, 1); /* graph.node */
    }
    p = wrap(p, end, 7); /* model.graph */
    refuse_bytes(p, (size_t)(end - p), "nested deeper than 64");
    free(buf);
}

TEST_CASE(onnx_bytes, a_million_empty_nodes) {
    size_t n = 3 << 20;
    uint8_t *buf = malloc(n + 16), *end = buf + n + 16, *p = end - n;
    for (size_t i = 0; i < n; i += 2) {
        p[i] = 0x0a;
        p[i + 1] = 0;
    }
    p = wrap(p, end, 7);
    refuse_bytes(p, (size_t)(end - p), "too many parts");
    free(buf);
}

/* ---- header -------------------------------------------------------------- */

TEST_CASE(onnx_header, versions_and_imports) {
    Made m;
    hostile_start(&m, "2", "Relu", "x");
    m.model.n_opset_import = 0;
    hostile_refuse(&m, "opset_import");
    hostile_start(&m, "2", "Relu", "x");
    m.opset.domain = made_text(&m, "my");
    hostile_refuse(&m, "no opset is imported");
    hostile_start(&m, "2", "Relu", "x");
    m.opset.version = 29;
    hostile_refuse(&m, "re-export at opset <= 28");
    hostile_start(&m, "2", "Relu", "x");
    m.opset.version = 0;
    hostile_refuse(&m, "too old; accepted: 1 to 28");
    hostile_start(&m, "2", "Relu", "x");
    m.model.ir_version = 99;
    hostile_refuse(&m, "ir_version 99; accepted");
    hostile_start(&m, "2", "Relu", "x");
    Onnx__OperatorSetIdProto other = m.opset;
    Onnx__OperatorSetIdProto *two[] = {&m.opset, &other};
    other.version--;
    m.model.opset_import = two;
    m.model.n_opset_import = 2;
    hostile_refuse(&m, "twice");
    hostile_start(&m, "2", "Relu", "x");
    Onnx__TrainingInfoProto info = ONNX__TRAINING_INFO_PROTO__INIT;
    Onnx__TrainingInfoProto *infos[] = {&info};
    m.model.training_info = infos;
    m.model.n_training_info = 1;
    hostile_refuse(&m, "training_info");
    hostile_start(&m, "2", "Relu", "x");
    m.graph.n_output = 0;
    hostile_refuse(&m, "no outputs");
}

/* ---- names --------------------------------------------------------------- */

TEST_CASE(onnx_names, undefined_and_cyclic) {
    Made m;
    hostile_start(&m, "2", "Add", "x,nowhere");
    hostile_refuse(&m, "operand 1, 'nowhere', is never defined");
    hostile_start(&m, "2", "Add", "x,nowhere");
    made_metadata(&m, &m.graph.metadata_props, &m.graph.n_metadata_props,
                  "pkg.torch.export.ExportedProgram.graph_signature",
                  "x: USER_INPUT\n");
    hostile_refuse(
        &m, "is never defined: PyTorch's optimiser wrote an invalid file");
    hostile_start(&m, "2", "Add", "x,y");
    hostile_refuse(&m, "cycle: 'y'");
    hostile_start(&m, "2", "Add", "x,a");
    made_node(&m, "Neg", "b", "a");
    made_node(&m, "Abs", "c", "b");
    made_node(&m, "Exp", "a", "c");
    hostile_refuse(&m, "cycle: 'a', 'b', 'c'");
    hostile_start(&m, "2", "Relu", "x");
    made_output(&m, "z");
    hostile_refuse(&m, "output 'z' is never defined");
}

TEST_CASE(onnx_names, defined_twice) {
    Made m;
    hostile_start(&m, "2", "Relu", "x");
    made_node(&m, "Neg", "x", "y");
    hostile_refuse(
        &m, "'y' is defined twice: as a result of node 'y' and as a result");
    hostile_start(&m, "2", "Relu", "x");
    made_f32(&m, "y", "2", 0);
    hostile_refuse(&m, "as an initializer and as a result");
    hostile_start(&m, "2", "Relu", "x");
    made_f32(&m, "w", "2", 0);
    made_f32(&m, "w", "2", 0);
    hostile_refuse(&m, "as an initializer and as an initializer");
    hostile_start(&m, "2", "Relu", "x");
    made_node(&m, "Neg", "x", "x");
    hostile_refuse(&m, "as a graph input and as a result");
    hostile_start(&m, "2", "Relu", "x");
    made_input(&m, "x", DT_F32, "2");
    hostile_refuse(&m, "input 'x' is given twice");
    hostile_start(&m, "2", "Relu", "x");
    made_output(&m, "y");
    hostile_refuse(&m, "output 'y' is given twice");
}

TEST_CASE(onnx_names, an_output_may_be_an_input) {
    Made m;
    hostile_start(&m, "2", "Relu", "x");
    made_output(&m, "x");
    CHECK(made_import(&m) != NULL);
    made_end(&m);
}

TEST_CASE(onnx_names, ugly_names_are_escaped_and_shortened) {
    Made m;
    hostile_start(&m, "2", "Relu", "x");
    char *name = arena_alloc(m.a, 100001);
    memset(name, 'n', 100000);
    memcpy(name, "*/\n\"%s%n\\\x1b", 10);
    m.graph.node[0]->input[0] = name;
    CHECK(made_import(&m) == NULL);
    CHECK(strlen(made_message(&m)) < 1000);
    CHECK_HAS(made_message(&m), "*/\\x0a\\\"%s%n");
    made_end(&m);
}

TEST_CASE(onnx_names, ugly_names_import) {
    Made m;
    made_start(&m, 18);
    made_input(&m, "in */ \n'%s", DT_F32, "2");
    made_node(&m, "Relu", "in */ \n'%s", "out\x01\\");
    made_output(&m, "out\x01\\");
    CHECK(made_import(&m) != NULL);
    made_end(&m);
}

TEST_CASE(onnx_names, reserved) {
    Made m;
    hostile_start(&m, "2", "Add", "x,ampc.rng");
    made_f32(&m, "ampc.rng", "2", 0);
    hostile_refuse(
        &m, "'ampc.rng' is an initializer: names that start with 'ampc.'");
    made_start(&m, 18);
    made_input(&m, "ampc.scale", DT_F32, "2");
    made_node(&m, "Relu", "ampc.scale", "y");
    made_output(&m, "y");
    hostile_refuse(&m, "'ampc.scale' is a graph input: names that start");
    made_start(&m, 18);
    made_input(&m, "x", DT_F32, "2");
    made_node(&m, "Relu", "x", "ampc.loss");
    made_output(&m, "ampc.loss");
    hostile_refuse(&m, "'ampc.loss' is a result of node");
}

/* ---- signatures ---------------------------------------------------------- */

TEST_CASE(onnx_signature, operands_and_attributes) {
    Made m;
    hostile_start(&m, "2", "Add", "x");
    hostile_refuse(&m, "1 operands");
    hostile_start(&m, "2", "Relu", "x,x");
    hostile_refuse(&m, "2 operands");
    hostile_start(&m, "2", "Add", "x,");
    hostile_refuse(&m, "operand 1 is required");
    Onnx__NodeProto *n = hostile_start(&m, "2", "Relu", "x");
    made_int(&m, n, "colour", 3);
    hostile_refuse(&m, "unknown attribute 'colour'");
    n = hostile_start(&m, "2", "Softmax", "x");
    made_int(&m, n, "axis", 0);
    made_int(&m, n, "axis", 0);
    hostile_refuse(&m, "'axis' is given twice");
    n = hostile_start(&m, "2", "Softmax", "x");
    made_float(&m, n, "axis", 0);
    hostile_refuse(&m, "'axis' must be an integer");
    n = hostile_start(&m, "2", "Softmax", "x");
    made_int(&m, n, "axis", 0);
    n->attribute[0]->has_f = 1;
    hostile_refuse(&m, "disagrees");
    n = hostile_start(&m, "2", "Softmax", "x");
    made_int(&m, n, "axis", 0);
    n->attribute[0]->has_type = 0;
    hostile_refuse(&m, "has no type");
    hostile_start(&m, "2", "Cast", "x");
    hostile_refuse(&m, "'to' is missing");
    hostile_start(&m, "2", "Concat", "x,x");
    hostile_refuse(&m, "'axis' is missing");
    hostile_start(&m, "2", "Constant", "");
    hostile_refuse(&m, "exactly one attribute");
    static const float p[] = {2.5F, 2}; /* in opset 1 it is a float */
    for (int i = 0; i < 2; i++) {
        n = hostile_start(&m, "2,2,2", "LpPool", "x");
        made_ints(&m, n, "kernel_shape", 1, (int64_t[]){2});
        made_float(&m, n, "p", p[i]);
        m.opset.version = i + 1;
        hostile_refuse(&m, "'p' must be an integer");
    }
}

/* The fields of an attribute that may contain its value, as in Constant. */
static const struct {
    const char *name;
    int type; /* 0: of none */
} fields[] = {
#define FIELD(name, T)                                                         \
    { name, ONNX__ATTRIBUTE_PROTO__ATTRIBUTE_TYPE__##T }
    FIELD("value_int", INT),
    FIELD("value_float", FLOAT),
    FIELD("value_string", STRING),
    FIELD("value_ints", INTS),
    FIELD("value_floats", FLOATS),
    FIELD("value_strings", STRINGS),
    FIELD("value", TENSOR),
    FIELD("sparse_value", SPARSE_TENSOR),
    {"a graph", 0},
    {"graphs", 0},
    {"tensors", 0},
    {"sparse tensors", 0},
    {"a type", 0},
    {"types", 0},
#undef FIELD
};

static void put_field(Onnx__AttributeProto *p, int field) {
    static ProtobufCBinaryData text;
    static Onnx__TensorProto tensor = ONNX__TENSOR_PROTO__INIT;
    static Onnx__SparseTensorProto sparse = ONNX__SPARSE_TENSOR_PROTO__INIT;
    static Onnx__GraphProto graph = ONNX__GRAPH_PROTO__INIT;
    static Onnx__TypeProto type = ONNX__TYPE_PROTO__INIT;
    static Onnx__TensorProto *tensors = &tensor;
    static Onnx__SparseTensorProto *sparses = &sparse;
    static Onnx__GraphProto *graphs = &graph;
    static Onnx__TypeProto *types = &type;
    static int64_t ints[1];
    static float floats[1];
    switch (field) {
    case 0: p->has_i = 1; break;
    case 1: p->has_f = 1; break;
    case 2: p->has_s = 1; break;
    case 3: p->n_ints = 1, p->ints = ints; break;
    case 4: p->n_floats = 1, p->floats = floats; break;
    case 5: p->n_strings = 1, p->strings = &text; break;
    case 6: p->t = &tensor; break;
    case 7: p->sparse_tensor = &sparse; break;
    case 8: p->g = &graph; break;
    case 9: p->n_graphs = 1, p->graphs = &graphs; break;
    case 10: p->n_tensors = 1, p->tensors = &tensors; break;
    case 11: p->n_sparse_tensors = 1, p->sparse_tensors = &sparses; break;
    case 12: p->tp = &type; break;
    case 13: p->n_type_protos = 1, p->type_protos = &types; break;
    }
}

TEST_CASE(onnx_signature, values_of_another_type) {
    enum { N = sizeof fields / sizeof *fields };
    for (int i = 0; i < N && fields[i].type; i++)
        for (int k = 0; k < N; k++) {
            Made m;
            Onnx__NodeProto *n = hostile_start(&m, "2", "Constant", "");
            Onnx__AttributeProto *p =
                made_attr(&m, n, fields[i].name, fields[i].type);
            put_field(p, i);
            put_field(p, k);
            made_import(&m);
            CHECK_MSG((i != k) == (strstr(made_message(&m),
                                          "disagrees with its type") != NULL),
                      "%s beside %s: %s", fields[k].name, fields[i].name,
                      made_message(&m));
            made_end(&m);
        }
}

TEST_CASE(onnx_signature, all_unsupported_ops_at_once) {
    Made m;
    made_start(&m, 18);
    made_input(&m, "x", DT_F32, "2");
    made_node(&m, "MelWeightMatrix", "x", "a");
    made_node(&m, "MelWeightMatrix", "a", "b")->name = made_text(&m, "second");
    made_node(&m, "QEmbedLayerNormalization", "b", "c")->domain =
        made_text(&m, "com.microsoft");
    made_node(&m, "StringNormalizer", "c", "y");
    made_output(&m, "y");
    CHECK(made_import(&m) == NULL);
    CHECK_HAS(made_message(&m),
              "MelWeightMatrix (opset 18): unsupported op (2 nodes");
    CHECK_HAS(made_message(&m), "fused for inference");
    CHECK_HAS(made_message(&m),
              "StringNormalizer (opset 18): unsupported op (1 node,");
    CHECK_HAS(made_message(&m), "outside the tiers");
    CHECK_EQ_INT(m.d.errors, 3);
    made_end(&m);
}
