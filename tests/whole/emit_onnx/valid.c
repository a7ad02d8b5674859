/* SPDX-License-Identifier: Apache-2.0 */
/* valid.c: checks of a file by ONNX's specification. */
#define _GNU_SOURCE
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "ir/graph/ir_impl.h"
#include "tests/support/onnx_util.h"
#include "tests/support/ops_bench.h"
#include "tests/whole/emit_onnx/emit_onnx.h"

/* ---- what ONNX asks of a file -------------------------------------------- */

Onnx__ModelProto *onnx_message(void) {
    size_t n;
    char *bytes = test_read_file(test_tmp("emitted.onnx"), &n);
    Onnx__ModelProto *p =
        onnx__model_proto__unpack(NULL, n, (const uint8_t *)bytes);
    REQUIRE(p);
    free(bytes);
    return p;
}

void onnx_define(Arena *a, StrMap *names, const char *name, const char *as) {
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
        onnx_define(a, &labels, n->name, "node");
        for (size_t k = 0; k < n->n_input; k++) {
            CHECK_MSG(str_map_get(values, intern(n->input[k])) > 0,
                      "%s reads '%s' before it is computed", n->name,
                      n->input[k]);
            str_map_put(a, &read, intern(n->input[k]), 1);
        }
        for (size_t k = 0; k < n->n_output; k++)
            onnx_define(a, values, n->output[k], "result");
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
        onnx_define(a, &infos, g->value_info[i]->name, "type");
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
    Onnx__ModelProto *p = onnx_message();
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
        onnx_define(a, &values, name, "input");
        ValueId v = graph_input_named(imported, intern(name));
        CHECK_MSG(has_type(g->input[i], value_type(imported, v)),
                  "input %s has another type", name);
    }
    for (size_t i = 0; i < g->n_initializer; i++)
        onnx_define(a, &values, g->initializer[i]->name, "initializer");
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

Module *onnx_again(Arena *a, const Graph *g, Diag *d) {
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
