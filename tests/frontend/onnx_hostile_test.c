/* SPDX-License-Identifier: Apache-2.0 */
/* onnx_hostile_test.c: broken and hostile ONNX files.  Every row of the
   importer's contract has a case with its message; tests/fuzz uses damaged
   copies of good models. */
#define _GNU_SOURCE
#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "runtime/files/outfile.h"
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

static bool refuse(Made *m, const char *why) {
    Module *mod = made_import(m);
    bool ok = CHECK(mod == NULL);
    ok = ok && CHECK_HAS(made_message(m), why);
    made_end(m);
    return ok;
}

/* x: f32[dims] -> op -> y */
static Onnx__NodeProto *start(Made *m, const char *dims, const char *op,
                              const char *in) {
    made_start(m, 18);
    made_input(m, "x", DT_F32, dims);
    made_output(m, "y");
    return made_node(m, op, in, "y");
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
    start(&m, "2", "Relu", "x");
    m.model.n_opset_import = 0;
    refuse(&m, "opset_import");
    start(&m, "2", "Relu", "x");
    m.opset.domain = made_text(&m, "my");
    refuse(&m, "no opset is imported");
    start(&m, "2", "Relu", "x");
    m.opset.version = 29;
    refuse(&m, "re-export at opset <= 28");
    start(&m, "2", "Relu", "x");
    m.opset.version = 5;
    refuse(&m, "too old; accepted: 6 to 28");
    start(&m, "2", "Relu", "x");
    m.model.ir_version = 99;
    refuse(&m, "ir_version 99; accepted");
    start(&m, "2", "Relu", "x");
    Onnx__OperatorSetIdProto other = m.opset;
    Onnx__OperatorSetIdProto *two[] = {&m.opset, &other};
    other.version--;
    m.model.opset_import = two;
    m.model.n_opset_import = 2;
    refuse(&m, "twice");
    start(&m, "2", "Relu", "x");
    Onnx__TrainingInfoProto info = ONNX__TRAINING_INFO_PROTO__INIT;
    Onnx__TrainingInfoProto *infos[] = {&info};
    m.model.training_info = infos;
    m.model.n_training_info = 1;
    refuse(&m, "training_info");
    start(&m, "2", "Relu", "x");
    m.graph.n_output = 0;
    refuse(&m, "no outputs");
}

/* ---- names --------------------------------------------------------------- */

TEST_CASE(onnx_names, undefined_and_cyclic) {
    Made m;
    start(&m, "2", "Add", "x,nowhere");
    refuse(&m, "operand 1, 'nowhere', is never defined");
    start(&m, "2", "Add", "x,nowhere");
    made_metadata(&m, &m.graph.metadata_props, &m.graph.n_metadata_props,
                  "pkg.torch.export.ExportedProgram.graph_signature",
                  "x: USER_INPUT\n");
    refuse(&m, "is never defined: PyTorch's optimiser wrote an invalid file");
    start(&m, "2", "Add", "x,y");
    refuse(&m, "cycle: 'y'");
    start(&m, "2", "Add", "x,a");
    made_node(&m, "Neg", "b", "a");
    made_node(&m, "Abs", "c", "b");
    made_node(&m, "Exp", "a", "c");
    refuse(&m, "cycle: 'a', 'b', 'c'");
    start(&m, "2", "Relu", "x");
    made_output(&m, "z");
    refuse(&m, "output 'z' is never defined");
}

TEST_CASE(onnx_names, defined_twice) {
    Made m;
    start(&m, "2", "Relu", "x");
    made_node(&m, "Neg", "x", "y");
    refuse(&m, "'y' is defined twice: as a result of node 'y' and as a result");
    start(&m, "2", "Relu", "x");
    made_f32(&m, "y", "2", 0);
    refuse(&m, "as an initializer and as a result");
    start(&m, "2", "Relu", "x");
    made_f32(&m, "w", "2", 0);
    made_f32(&m, "w", "2", 0);
    refuse(&m, "as an initializer and as an initializer");
    start(&m, "2", "Relu", "x");
    made_node(&m, "Neg", "x", "x");
    refuse(&m, "as a graph input and as a result");
    start(&m, "2", "Relu", "x");
    made_input(&m, "x", DT_F32, "2");
    refuse(&m, "input 'x' is given twice");
    start(&m, "2", "Relu", "x");
    made_output(&m, "y");
    refuse(&m, "output 'y' is given twice");
}

TEST_CASE(onnx_names, an_output_may_be_an_input) {
    Made m;
    start(&m, "2", "Relu", "x");
    made_output(&m, "x");
    CHECK(made_import(&m) != NULL);
    made_end(&m);
}

TEST_CASE(onnx_names, ugly_names_are_escaped_and_shortened) {
    Made m;
    start(&m, "2", "Relu", "x");
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
    start(&m, "2", "Add", "x,ampc.rng");
    made_f32(&m, "ampc.rng", "2", 0);
    refuse(&m, "'ampc.rng' is an initializer: names that start with 'ampc.'");
    made_start(&m, 18);
    made_input(&m, "ampc.scale", DT_F32, "2");
    made_node(&m, "Relu", "ampc.scale", "y");
    made_output(&m, "y");
    refuse(&m, "'ampc.scale' is a graph input: names that start");
    made_start(&m, 18);
    made_input(&m, "x", DT_F32, "2");
    made_node(&m, "Relu", "x", "ampc.loss");
    made_output(&m, "ampc.loss");
    refuse(&m, "'ampc.loss' is a result of node");
}

/* ---- signatures ---------------------------------------------------------- */

TEST_CASE(onnx_signature, operands_and_attributes) {
    Made m;
    start(&m, "2", "Add", "x");
    refuse(&m, "1 operands");
    start(&m, "2", "Relu", "x,x");
    refuse(&m, "2 operands");
    start(&m, "2", "Add", "x,");
    refuse(&m, "operand 1 is required");
    Onnx__NodeProto *n = start(&m, "2", "Relu", "x");
    made_int(&m, n, "colour", 3);
    refuse(&m, "unknown attribute 'colour'");
    n = start(&m, "2", "Softmax", "x");
    made_int(&m, n, "axis", 0);
    made_int(&m, n, "axis", 0);
    refuse(&m, "'axis' is given twice");
    n = start(&m, "2", "Softmax", "x");
    made_float(&m, n, "axis", 0);
    refuse(&m, "'axis' must be an integer");
    n = start(&m, "2", "Softmax", "x");
    made_int(&m, n, "axis", 0);
    n->attribute[0]->has_f = 1;
    refuse(&m, "disagrees");
    n = start(&m, "2", "Softmax", "x");
    made_int(&m, n, "axis", 0);
    n->attribute[0]->has_type = 0;
    refuse(&m, "has no type");
    start(&m, "2", "Cast", "x");
    refuse(&m, "'to' is missing");
    start(&m, "2", "Concat", "x,x");
    refuse(&m, "'axis' is missing");
    start(&m, "2", "Constant", "");
    refuse(&m, "exactly one attribute");
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
            Onnx__NodeProto *n = start(&m, "2", "Constant", "");
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
    made_node(&m, "QAttention", "b", "c")->domain =
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

/* ---- tensors ------------------------------------------------------------- */

static Onnx__TensorProto *with_weight(Made *m, const char *dims) {
    start(m, "2", "Add", "x,w");
    return made_f32(m, "w", dims, 0);
}

TEST_CASE(onnx_tensor, types_and_shapes) {
    Made m;
    with_weight(&m, "2")->data_type = 99;
    refuse(&m, "w: unknown element type 99");
    with_weight(&m, "2")->data_type = 8;
    refuse(&m, "STRING is not supported");
    with_weight(&m, "2")->data_type = 0;
    refuse(&m, "UNDEFINED is not supported");
    with_weight(&m, "2")->dims[0] = -2;
    refuse(&m, "dimension 0 is -2");
    Onnx__TensorProto *t = with_weight(&m, "2,1");
    t->dims[0] = t->dims[1] = INT64_MAX;
    refuse(&m, "has more than");
    t = with_weight(&m, "0,1");
    t->dims[1] = INT64_MAX;
    refuse(&m, "has more than");
    with_weight(&m, "1,1,1,1,1,1,1,1,2");
    refuse(&m, "has rank 9; at most 8");
}

TEST_CASE(onnx_tensor, content) {
    Made m;
    with_weight(&m, "2")->n_float_data = 1;
    refuse(&m, "'w' is f32[2] and needs 2 entries, but the file has 1");
    with_weight(&m, "2")->n_float_data = 0;
    refuse(&m, "has no data");
    Onnx__TensorProto *t = with_weight(&m, "2");
    uint8_t raw[9] = {0};
    t->has_raw_data = 1;
    t->raw_data.data = raw;
    t->raw_data.len = 8;
    refuse(&m, "more than one field");
    t = with_weight(&m, "2");
    t->n_float_data = 0;
    t->has_raw_data = 1;
    t->raw_data.data = raw;
    t->raw_data.len = 9;
    refuse(&m, "needs 8 bytes, but the file has 9");
    t = with_weight(&m, "2");
    int32_t big[] = {1, 70000};
    t->n_float_data = 0;
    t->n_int32_data = 2;
    t->int32_data = big;
    t->data_type = 10;
    refuse(&m, "entry 1, 70000, is out of range for f16");
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
    refuse(&m, "element 1 of a bool tensor is 2");
    t = with_weight(&m, "2");
    Onnx__TensorProto__Segment seg = ONNX__TENSOR_PROTO__SEGMENT__INIT;
    t->segment = &seg;
    refuse(&m, "segments");
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
        start(&m, "1", "Reshape", "x,s");
        made_i64(&m, "s", 4096 + over, ones);
        refuse(&m, over ? "its shape has 4097 entries" : "rank 4096");
    }
}

/* ---- external data ------------------------------------------------------- */

/* w: f32[2] at `location`, relative to the model. */
static Onnx__TensorProto *with_external(Made *m, const char *location,
                                        const char *offset,
                                        const char *length) {
    Onnx__TensorProto *t = with_weight(m, "2");
    t->n_float_data = 0;
    t->has_data_location = 1;
    t->data_location = ONNX__TENSOR_PROTO__DATA_LOCATION__EXTERNAL;
    if (location)
        made_metadata(m, &t->external_data, &t->n_external_data, "location",
                      location);
    if (offset)
        made_metadata(m, &t->external_data, &t->n_external_data, "offset",
                      offset);
    if (length)
        made_metadata(m, &t->external_data, &t->n_external_data, "length",
                      length);
    return t;
}

static const char *data_file(void) {
    float v[] = {7, 1, 2, 3};
    static char path[PATH_MAX];
    snprintf(path, sizeof path, "%s/w.data", test_tmpdir());
    REQUIRE(test_write_file(path, v, sizeof v));
    return path;
}

TEST_CASE(onnx_external, is_read_from_beside_the_model) {
    Made m;
    data_file();
    Onnx__TensorProto *t = with_external(&m, "w.data", "4", "8");
    made_metadata(&m, &t->external_data, &t->n_external_data, "checksum",
                  "ae7f4eb8c5aa6be4c55fbd2e1ab6c2fd21e6aca5");
    CHECK(made_import(&m) == NULL);
    CHECK_HAS(made_message(&m), "checksum");
    t->n_external_data--;
    Module *mod = made_import(&m);
    REQUIRE(mod != NULL);
    const Var *w = var_named(mod, "w");
    REQUIRE(w != NULL);
    CHECK_NEAR(((const float *)w->init->data)[1], 2, 0);
    made_end(&m);
}

/* A tensor may end where the file ends, and be empty there. */
TEST_CASE(onnx_external, the_end_of_the_file) {
    static const struct {
        int64_t dim;
        const char *offset, *why;
    } rows[] = {{2, "8", NULL},
                {2, "9", "offset 9 + 8 bytes is past the end"},
                {0, "16", NULL},
                {0, "17", "offset 17 + 0 bytes is past the end"}};
    data_file();
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        Made m;
        Onnx__TensorProto *t =
            with_external(&m, "w.data", rows[i].offset, NULL);
        t->dims[0] = rows[i].dim;
        m.graph.input[0]->type->tensor_type->shape->dim[0]->dim_value =
            rows[i].dim;
        if (rows[i].why) {
            refuse(&m, rows[i].why);
            continue;
        }
        Module *mod = made_import(&m);
        REQUIRE(mod != NULL);
        const float *w = mod->vars.data[module_find_var(mod, "w")].init->data;
        if (rows[i].dim) CHECK(w[0] == 2 && w[1] == 3);
        made_end(&m);
    }
}

TEST_CASE(onnx_external, no_output_is_read) {
    Made m;
    char why[160];
    with_external(&m, "w.data", "4", "8");
    m.opt.guard = file_guard_new();
    REQUIRE(file_guard_claim(m.opt.guard, data_file(), "--report", why));
    CHECK(made_import(&m) == NULL);
    CHECK_HAS(made_message(&m), "--report would overwrite the model's data");
    file_guard_free(m.opt.guard);
    made_end(&m);
}

TEST_CASE(onnx_external, the_right_checksum_passes) {
    Made m;
    char *sum;
    int rc = test_command(&sum, "sha1sum '%s'", data_file());
    if (rc) SKIP("no sha1sum");
    sum[40] = 0;
    Onnx__TensorProto *t = with_external(&m, "w.data", NULL, NULL);
    made_metadata(&m, &t->external_data, &t->n_external_data, "checksum", sum);
    CHECK_MSG(made_import(&m) != NULL, "%s", made_message(&m));
    free(sum);
    made_end(&m);
}

TEST_CASE(onnx_external, locations_that_escape) {
    Made m;
    char path[PATH_MAX];
    data_file();
    const char *bad[][2] = {{"/etc/passwd", "is absolute"},
                            {"../w.data", "leaves the folder"},
                            {"a/../../w.data", "leaves the folder"},
                            {"a/../w.data", "leaves the folder"},
                            {"a\\..\\w.data", "backslash"},
                            {"a//w.data", "empty component"},
                            {"", "is empty"},
                            {"missing.data", "No such file"}};
    for (int i = 0; i < 8; i++) {
        with_external(&m, bad[i][0], NULL, NULL);
        refuse(&m, bad[i][1]);
    }
    with_external(&m, NULL, NULL, NULL);
    refuse(&m, "has no location");
    snprintf(path, sizeof path, "%s/link.data", test_tmpdir());
    REQUIRE(symlink("w.data", path) == 0);
    with_external(&m, "link.data", NULL, NULL);
    refuse(&m, "not a plain file");
    snprintf(path, sizeof path, "%s/dir", test_tmpdir());
    REQUIRE(symlink("/usr", path) == 0);
    with_external(&m, "dir/w.data", NULL, NULL);
    refuse(&m, "not a plain file");
    snprintf(path, sizeof path, "%s/pipe", test_tmpdir());
    REQUIRE(mkfifo(path, 0600) == 0);
    with_external(&m, "pipe", NULL, NULL);
    refuse(&m, "not a regular file");
    snprintf(path, sizeof path, "%s/folder", test_tmpdir());
    REQUIRE(mkdir(path, 0700) == 0);
    with_external(&m, "folder", NULL, NULL);
    refuse(&m, "not a regular file");
}

TEST_CASE(onnx_external, numbers) {
    Made m;
    data_file();
    with_external(&m, "w.data", "9", NULL);
    refuse(&m, "past the end");
    with_external(&m, "w.data", "9223372036854775807", NULL);
    refuse(&m, "past the end");
    with_external(&m, "w.data", "99999999999999999999", NULL);
    refuse(&m, "is not a number");
    with_external(&m, "w.data", "-4", NULL);
    refuse(&m, "is not a number");
    with_external(&m, "w.data", "0x4", NULL);
    refuse(&m, "is not a number");
    with_external(&m, "w.data", "0", "12");
    refuse(&m, "needs 8 bytes, but 'w.data' gives length 12");
    Onnx__TensorProto *t = with_external(&m, "w.data", "0", "8");
    t->n_float_data = 2;
    refuse(&m, "both external and inline");
    t = with_external(&m, "w.data", "0", "8");
    t->n_double_data = 1, t->double_data = &(double){1};
    refuse(&m, "both external and inline");
    t = with_external(&m, "w.data", "0", "8");
    t->n_int32_data = 1, t->int32_data = &(int32_t){1};
    refuse(&m, "both external and inline");
    t = with_external(&m, "w.data", "0", "8");
    t->n_int64_data = 1, t->int64_data = &(int64_t){1};
    refuse(&m, "both external and inline");
    t = with_external(&m, "w.data", "0", "8");
    t->n_uint64_data = 1, t->uint64_data = &(uint64_t){1};
    refuse(&m, "both external and inline");
    t = with_external(&m, "w.data", "0", "8");
    t->has_raw_data = 1, t->raw_data = (ProtobufCBinaryData){1, (uint8_t *)"a"};
    refuse(&m, "both external and inline");
}

/* ---- operands of operators ----------------------------------------------- */

static void refuse_ints(const char *dims, const char *op, int count,
                        const int64_t *v, const char *why) {
    Made m;
    start(&m, dims, op, "x,v");
    made_i64(&m, "v", count, v);
    refuse(&m, why);
}

TEST_CASE(onnx_operands, reshape_and_friends) {
    refuse_ints("6", "Reshape", 2, (int64_t[]){-1, -1}, "two -1");
    refuse_ints("6", "Reshape", 2, (int64_t[]){-1, 4}, "do not divide into 4");
    refuse_ints("6", "Reshape", 1, (int64_t[]){7}, "cannot take a shape of 7");
    refuse_ints("6", "Reshape", 1, (int64_t[]){-2}, "is -2");
    refuse_ints("6", "Reshape", 2, (int64_t[]){6, 0}, "copies a dimension");
    refuse_ints("6", "Reshape", 2, (int64_t[]){INT64_MAX, 3}, "too large");
    refuse_ints("6", "Reshape", 9, (int64_t[]){1, 1, 1, 1, 1, 1, 1, 1, 6},
                "rank 9");
    refuse_ints("6", "Squeeze", 1, (int64_t[]){0}, "is 6, not 1");
    refuse_ints("6", "Squeeze", 1, (int64_t[]){1}, "out of range");
    refuse_ints("6", "Unsqueeze", 1, (int64_t[]){INT64_MIN}, "out of range");
    refuse_ints("6", "Unsqueeze", 2, (int64_t[]){0, 0}, "given twice");
    refuse_ints("6", "Unsqueeze", 9, (int64_t[9]){0}, "at most 8");
    refuse_ints("6", "ReduceSum", 1, (int64_t[]){-2}, "out of range");
    refuse_ints("6", "Expand", 1, (int64_t[]){5}, "does not broadcast");
    refuse_ints("6", "Split", 1, (int64_t[]){5}, "sum to 5, the axis has 6");
    refuse_ints("6", "Tile", 2, (int64_t[]){2, 2}, "2 repeats for rank 1");
    refuse_ints("6", "Pad", 1, (int64_t[]){2}, "1 pads for 1 axes");
    refuse_ints("6", "Pad", 2, (int64_t[]){-4, -4}, "crop more");
    refuse_ints("6", "Pad", 2, (int64_t[]){0, INT64_MIN}, "a pad of");
}

TEST_CASE(onnx_operands, attributes) {
    Made m;
    Onnx__NodeProto *n = start(&m, "2,3", "Transpose", "x");
    made_ints(&m, n, "perm", 2, (int64_t[]){0, 0});
    refuse(&m, "not a permutation");
    n = start(&m, "2,3", "Transpose", "x");
    made_ints(&m, n, "perm", 2, (int64_t[]){0, INT64_MAX});
    refuse(&m, "not a permutation");
    n = start(&m, "2,3", "Transpose", "x");
    made_ints(&m, n, "perm", 2, (int64_t[]){1, -1});
    refuse(&m, "not a permutation");
    n = start(&m, "2,3", "Transpose", "x");
    made_ints(&m, n, "perm", 2, (int64_t[]){0, INT64_MIN});
    refuse(&m, "not a permutation");
    n = start(&m, "2,3", "Softmax", "x");
    made_int(&m, n, "axis", 2);
    refuse(&m, "axis 2 is out of range for rank 2");
    n = start(&m, "2,3", "Flatten", "x");
    made_int(&m, n, "axis", INT64_MIN);
    refuse(&m, "out of range");
    n = start(&m, "2,3", "LayerNormalization", "x,x");
    made_int(&m, n, "axis", INT64_MAX);
    refuse(&m, "outside rank 2");
    n = start(&m, "1,1,4,4", "MaxPool", "x");
    made_ints(&m, n, "kernel_shape", 2, (int64_t[]){0, 1});
    refuse(&m, "kernel_shape[0] is 0");
    n = start(&m, "1,1,4,4", "MaxPool", "x");
    made_ints(&m, n, "kernel_shape", 2, (int64_t[]){5, 5});
    refuse(&m, "a window of 5 on 4");
    n = start(&m, "1,1,4,4", "MaxPool", "x");
    made_ints(&m, n, "kernel_shape", 2, (int64_t[]){2, 2});
    made_ints(&m, n, "strides", 2, (int64_t[]){1, -1});
    refuse(&m, "strides[1] is -1");
    n = start(&m, "1,1,4,4", "AveragePool", "x");
    made_ints(&m, n, "kernel_shape", 2, (int64_t[]){2, 2});
    made_ints(&m, n, "pads", 4, (int64_t[]){0, 0, INT64_MAX, 0});
    refuse(&m, "pads[2]");
    n = start(&m, "2,3", "Dropout", "x,r");
    made_f32(&m, "r", "", 1);
    refuse(&m, "a ratio of 1");
    n = start(&m, "2,3", "Cast", "x");
    made_int(&m, n, "to", INT64_MIN);
    refuse(&m, "unknown element type");
}

TEST_CASE(onnx_operands, convolution) {
    Made m;
    Onnx__NodeProto *n = start(&m, "1,4,5,5", "Conv", "x,w");
    made_f32(&m, "w", "6,2,3,3", 0);
    made_int(&m, n, "group", 3);
    refuse(&m, "3 groups");
    n = start(&m, "1,4,5,5", "Conv", "x,w");
    made_f32(&m, "w", "6,4,3,3", 0);
    made_ints(&m, n, "dilations", 2, (int64_t[]){0, 1});
    refuse(&m, "dilations[0] is 0");
    start(&m, "1,4,5,5", "Conv", "x,w");
    made_f32(&m, "w", "6,4,6,6", 0);
    refuse(&m, "kernel of f32[6,4,6,6] is larger");
    start(&m, "1,4,5,5", "Conv", "x,w,b");
    made_f32(&m, "w", "6,4,3,3", 0);
    made_f32(&m, "b", "5", 0);
    refuse(&m, "bias");
    start(&m, "1,4", "Conv", "x,w");
    made_f32(&m, "w", "6,4", 0);
    refuse(&m, "spatial axes");
}

TEST_CASE(onnx_operands, slices_clamp_their_sentinels) {
    static const int64_t starts[] = {INT64_MIN}, ends[] = {INT64_MAX};
    static const int64_t steps[] = {1, -1, INT64_MIN, INT64_MAX, 0};
    static const int64_t want[] = {6, 0, 0, 1, -1};
    for (int i = 0; i < 5; i++) {
        Made m;
        int64_t axis = 0;
        start(&m, "6", "Slice", "x,s,e,a,t");
        made_i64(&m, "s", 1, starts);
        made_i64(&m, "e", 1, ends);
        made_i64(&m, "a", 1, &axis);
        made_i64(&m, "t", 1, &steps[i]);
        Module *mod = made_import(&m);
        if (want[i] < 0) {
            CHECK(!mod);
            CHECK_HAS(made_message(&m), "a step of 0");
        } else if (CHECK(mod != NULL)) {
            Graph *g = module_graph(mod, "forward");
            CHECK_EQ_INT(value_type(g, g->outputs.data[0].value)->dim[0],
                         want[i]);
        }
        made_end(&m);
    }
}

TEST_CASE(onnx_operands, results_of_a_million_million_elements) {
    refuse_ints("1", "Expand", 2, (int64_t[]){1000000, 1000000}, "more than");
    refuse_ints("1", "Tile", 1, (int64_t[]){1000000000000}, "more than");
    refuse_ints("1", "Tile", 1, (int64_t[]){INT64_MAX}, "more than");
    Made m;
    made_start(&m, 18);
    made_i64(&m, "s", 2, (int64_t[]){1000000, 1000000});
    made_node(&m, "ConstantOfShape", "s", "y");
    made_output(&m, "y");
    refuse(&m, "more than");
    start(&m, "100000,1,100000", "Add", "x,w");
    made_f32(&m, "w", "2,1", 0);
    refuse(&m, "more than");
    int64_t far = 2000000000;
    refuse_ints("4,4", "Pad", 4, (int64_t[]){far, far, far, far}, "large");
}

static void range(Made *m, int64_t a, int64_t b, int64_t step) {
    made_start(m, 18);
    int64_t v[] = {a, b, step};
    const char *names[] = {"a", "b", "c"};
    for (int i = 0; i < 3; i++) made_i64(m, names[i], 1, &v[i])->n_dims = 0;
    made_node(m, "Range", "a,b,c", "y");
    made_output(m, "y");
}

TEST_CASE(onnx_folding, ranges_and_division) {
    Made m;
    range(&m, 0, 10, 0);
    refuse(&m, "delta is 0");
    range(&m, 0, INT64_MAX, 1);
    refuse(&m, "too long");
    range(&m, INT64_MIN, INT64_MAX, INT64_MAX);
    CHECK(made_import(&m) != NULL);
    made_end(&m);
    made_start(&m, 18);
    made_i64(&m, "a", 2, (int64_t[]){1, 2});
    made_i64(&m, "b", 2, (int64_t[]){1, 0});
    made_node(&m, "Div", "a,b", "y");
    made_output(&m, "y");
    refuse(&m, "division by zero");
    made_start(&m, 18);
    made_i64(&m, "a", 1, (int64_t[]){INT64_MIN});
    made_i64(&m, "b", 1, (int64_t[]){-1});
    made_node(&m, "Div", "a,b", "y");
    made_output(&m, "y");
    made_import(&m);
    made_end(&m);
    made_start(&m, 18);
    made_f32(&m, "a", "2", 0)->float_data[0] = NAN;
    m.graph.initializer[0]->float_data[1] = INFINITY;
    made_int(&m, made_node(&m, "Cast", "a", "y"), "to", 7);
    made_output(&m, "y");
    made_import(&m);
    made_end(&m);
}

TEST_CASE(onnx_folding, a_shape_that_depends_on_data) {
    Made m;
    start(&m, "2,3", "Reshape", "x,s");
    made_input(&m, "s", DT_I64, "2");
    refuse(&m, "'s' is not known at compile time");
}

/* f0 calls f1 twice, f1 calls f2 twice, ...: 2^40 calls of an empty
   function. */
TEST_CASE(onnx_functions, exponential_chains_are_stopped) {
    enum { N = 40 };
    Made m;
    static Onnx__FunctionProto f[N], *fs[N];
    static char *in[] = {"u"}, *out[] = {"v"};
    made_start(&m, 18);
    Onnx__OperatorSetIdProto *opset[] = {&m.opset};
    for (int i = 0; i < N; i++) {
        onnx__function_proto__init(&f[i]);
        fs[i] = &f[i];
        f[i].name = arena_printf(m.a, "f%d", i);
        f[i].domain = "my";
        f[i].opset_import = opset;
        f[i].n_opset_import = f[i].n_input = f[i].n_output = 1;
        f[i].input = in;
        f[i].output = out;
        const char *callee = arena_printf(m.a, "f%d", i + 1);
        if (i < N - 1) {
            made_node(&m, callee, "u", "w")->domain = "my";
            made_node(&m, callee, "w", "v")->domain = "my";
        }
        f[i].node = m.graph.node;
        f[i].n_node = m.graph.n_node;
        m.graph.node = NULL;
        m.graph.n_node = 0;
    }
    made_input(&m, "x", DT_F32, "2");
    made_node(&m, "f0", "x", "y")->domain = "my";
    made_output(&m, "y");
    m.model.functions = fs;
    m.model.n_functions = N;
    refuse(&m, "function calls");
}

/* ---- how many nodes ------------------------------------------------------ */

/* Imports nodes without an op: functions of `each` nodes that are called
   `times` times, and `more` nodes. All are counted before the first one is
   read.
 */
static void check_nodes(int times, int each, int more, const char *says) {
    Made m;
    Onnx__FunctionProto f, *fs[] = {&f};
    Onnx__OperatorSetIdProto *opset[] = {&m.opset};
    char name[] = "Many", domain[] = "my", u[] = "u", *in[] = {u};
    made_start(&m, 17);
    made_input(&m, "x", DT_F32, "2");
    for (int i = 0; i < each; i++) made_node(&m, "Relu", "u", "");
    onnx__function_proto__init(&f);
    f.name = name;
    f.domain = domain;
    f.node = m.graph.node;
    f.n_node = m.graph.n_node;
    f.n_opset_import = f.n_input = 1;
    f.opset_import = opset;
    f.input = in;
    m.graph.node = NULL;
    m.graph.n_node = 0;
    made_node(&m, "NoSuchOp", "x", "y");
    for (int i = 0; i < times; i++)
        made_node(&m, "Many", "x", "")->domain = domain;
    for (int i = 0; i < more; i++) made_node(&m, "Relu", "x", "");
    m.model.functions = fs;
    m.model.n_functions = 1;
    made_output(&m, "y");
    refuse(&m, says);
}

TEST_CASE(onnx_hostile, nodes_are_counted_behind_functions) {
    check_nodes(1023, 1024, 1023, "NoSuchOp");
    check_nodes(1023, 1024, 1024, "more than 1048576 nodes");
}
