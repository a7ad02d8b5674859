/* SPDX-License-Identifier: Apache-2.0 */
/* onnx_made.c: ONNX models made in C, for tests (onnx_util.h). */
#include <stdlib.h>
#include <string.h>

#include "tests/harness.h"
#include "tests/support/onnx_util.h"

void made_start(Made *m, int version) {
    *m = (Made){.a = arena_new()};
    onnx__model_proto__init(&m->model);
    onnx__graph_proto__init(&m->graph);
    onnx__operator_set_id_proto__init(&m->opset);
    m->opset.has_version = 1;
    m->opset.version = version;
    m->model.has_ir_version = 1;
    m->model.ir_version = 8;
    m->model.graph = &m->graph;
    m->model.n_opset_import = 1;
    m->model.opset_import = NEW(m->a, Onnx__OperatorSetIdProto *);
    m->model.opset_import[0] = &m->opset;
    options_init(&m->opt, m->a);
}

void made_end(Made *m) {
    sb_free(&m->d.text);
    arena_free(m->a);
}

char *made_text(Made *m, const char *s) { return arena_printf(m->a, "%s", s); }

/* Appends to a repeated message field. */
static void append(Made *m, void *list, size_t *n, void *item) {
    void **old = *(void ***)list;
    void **fresh = NEW_ARRAY(m->a, void *, *n + 1);
    if (*n) memcpy(fresh, old, *n * sizeof *fresh);
    fresh[(*n)++] = item;
    *(void ***)list = fresh;
}

/* Calls a function with each comma-separated part; returns the number of
   parts. */
static int split_names(Made *m, const char *s, char ***out) {
    int n = 0;
    *out = NEW_ARRAY(m->a, char *, strlen(s) + 1);
    while (*s) {
        size_t len = strcspn(s, ",");
        (*out)[n++] = arena_printf(m->a, "%.*s", (int)len, s);
        s += len + (s[len] == ',');
        if (!*s && s[-1] == ',') (*out)[n++] = made_text(m, "");
    }
    return n;
}

/* ---- inputs and outputs -------------------------------------------------- */

static Onnx__TensorShapeProto__Dimension *make_dim(Made *m, char *text) {
    Onnx__TensorShapeProto__Dimension *d =
        NEW(m->a, Onnx__TensorShapeProto__Dimension);
    onnx__tensor_shape_proto__dimension__init(d);
    char *end;
    long long v = strtoll(text, &end, 10);
    if (!strcmp(text, "?")) return d;
    d->value_case = ONNX__TENSOR_SHAPE_PROTO__DIMENSION__VALUE_DIM_PARAM;
    d->dim_param = text;
    if (*end) return d;
    d->value_case = ONNX__TENSOR_SHAPE_PROTO__DIMENSION__VALUE_DIM_VALUE;
    d->dim_value = v;
    return d;
}

static Onnx__ValueInfoProto *make_info(Made *m, const char *name) {
    Onnx__ValueInfoProto *v = NEW(m->a, Onnx__ValueInfoProto);
    onnx__value_info_proto__init(v);
    v->name = made_text(m, name);
    return v;
}

void made_input(Made *m, const char *name, DType d, const char *dims) {
    Onnx__ValueInfoProto *v = make_info(m, name);
    v->type = NEW(m->a, Onnx__TypeProto);
    onnx__type_proto__init(v->type);
    v->type->value_case = ONNX__TYPE_PROTO__VALUE_TENSOR_TYPE;
    Onnx__TypeProto__Tensor *t = v->type->tensor_type =
        NEW(m->a, Onnx__TypeProto__Tensor);
    onnx__type_proto__tensor__init(t);
    t->has_elem_type = 1;
    t->elem_type = dtype_info[d].onnx;
    t->shape = NEW(m->a, Onnx__TensorShapeProto);
    onnx__tensor_shape_proto__init(t->shape);
    char **part;
    int n = split_names(m, dims, &part);
    for (int i = 0; i < n; i++)
        append(m, &t->shape->dim, &t->shape->n_dim, make_dim(m, part[i]));
    append(m, &m->graph.input, &m->graph.n_input, v);
}

void made_output(Made *m, const char *name) {
    append(m, &m->graph.output, &m->graph.n_output, make_info(m, name));
}

/* ---- nodes --------------------------------------------------------------- */

Onnx__NodeProto *made_node(Made *m, const char *op, const char *in,
                           const char *out) {
    Onnx__NodeProto *n = NEW(m->a, Onnx__NodeProto);
    onnx__node_proto__init(n);
    n->op_type = made_text(m, op);
    n->n_input = (size_t)split_names(m, in, &n->input);
    n->n_output = (size_t)split_names(m, out, &n->output);
    append(m, &m->graph.node, &m->graph.n_node, n);
    return n;
}

Onnx__AttributeProto *made_attr(Made *m, Onnx__NodeProto *n, const char *name,
                                int type) {
    Onnx__AttributeProto *p = NEW(m->a, Onnx__AttributeProto);
    onnx__attribute_proto__init(p);
    p->name = made_text(m, name);
    p->has_type = 1;
    p->type = (Onnx__AttributeProto__AttributeType)type;
    append(m, &n->attribute, &n->n_attribute, p);
    return p;
}

void made_int(Made *m, Onnx__NodeProto *n, const char *name, int64_t v) {
    Onnx__AttributeProto *p =
        made_attr(m, n, name, ONNX__ATTRIBUTE_PROTO__ATTRIBUTE_TYPE__INT);
    p->has_i = 1;
    p->i = v;
}

void made_ints(Made *m, Onnx__NodeProto *n, const char *name, int count,
               const int64_t *v) {
    Onnx__AttributeProto *p =
        made_attr(m, n, name, ONNX__ATTRIBUTE_PROTO__ATTRIBUTE_TYPE__INTS);
    p->n_ints = (size_t)count;
    p->ints = arena_dup(m->a, v, (size_t)count * sizeof *v);
}

void made_float(Made *m, Onnx__NodeProto *n, const char *name, float v) {
    Onnx__AttributeProto *p =
        made_attr(m, n, name, ONNX__ATTRIBUTE_PROTO__ATTRIBUTE_TYPE__FLOAT);
    p->has_f = 1;
    p->f = v;
}

void made_str(Made *m, Onnx__NodeProto *n, const char *name, const char *v) {
    Onnx__AttributeProto *p =
        made_attr(m, n, name, ONNX__ATTRIBUTE_PROTO__ATTRIBUTE_TYPE__STRING);
    p->has_s = 1;
    p->s.data = (uint8_t *)made_text(m, v);
    p->s.len = strlen(v);
}

/* ---- initializers -------------------------------------------------------- */

static Onnx__TensorProto *make_tensor(Made *m, const char *name, DType d) {
    Onnx__TensorProto *t = NEW(m->a, Onnx__TensorProto);
    onnx__tensor_proto__init(t);
    t->name = made_text(m, name);
    t->has_data_type = 1;
    t->data_type = dtype_info[d].onnx;
    append(m, &m->graph.initializer, &m->graph.n_initializer, t);
    return t;
}

Onnx__TensorProto *made_f32(Made *m, const char *name, const char *dims,
                            float first) {
    Onnx__TensorProto *t = make_tensor(m, name, DT_F32);
    char **part;
    int rank = split_names(m, dims, &part);
    int64_t count = 1;
    t->n_dims = (size_t)rank;
    t->dims = NEW_ARRAY(m->a, int64_t, rank);
    for (int i = 0; i < rank; i++) count *= t->dims[i] = atoll(part[i]);
    t->n_float_data = (size_t)count;
    t->float_data = NEW_ARRAY(m->a, float, count);
    for (int64_t i = 0; i < count; i++)
        t->float_data[i] = first + 0.25f * (float)i;
    return t;
}

Onnx__TensorProto *made_i64(Made *m, const char *name, int count,
                            const int64_t *v) {
    Onnx__TensorProto *t = make_tensor(m, name, DT_I64);
    t->n_dims = 1;
    t->dims = NEW(m->a, int64_t);
    t->dims[0] = count;
    t->n_int64_data = (size_t)count;
    t->int64_data = arena_dup(m->a, v, (size_t)count * sizeof *v);
    return t;
}

void made_metadata(Made *m, Onnx__StringStringEntryProto ***list, size_t *n,
                   const char *key, const char *value) {
    Onnx__StringStringEntryProto *e = NEW(m->a, Onnx__StringStringEntryProto);
    onnx__string_string_entry_proto__init(e);
    e->key = made_text(m, key);
    e->value = made_text(m, value);
    append(m, list, n, e);
}

void made_mark(Made *m, const char *name, const char *key, const char *value) {
    Onnx__ValueInfoProto *v = make_info(m, name);
    made_metadata(m, &v->metadata_props, &v->n_metadata_props, key, value);
    append(m, &m->graph.value_info, &m->graph.n_value_info, v);
}

/* ---- import -------------------------------------------------------------- */

Module *made_import(Made *m) {
    Module *out = NULL;
    size_t n;
    uint8_t *bytes = model_pack(&m->model, &n);
    sb_free(&m->d.text);
    m->d = (Diag){0};
    char *path = arena_printf(m->a, "%s/made.onnx", test_tmpdir());
    Status s = import_onnx(m->a, &m->d, path, bytes, n, &m->opt, &out);
    free(bytes);
    if (s == OK && verify_module(out, STAGE_TYPED, &m->d) != OK)
        FAIL("the verifier refuses the import: %s", m->d.text.data);
    return s == OK ? out : NULL;
}

const char *made_message(const Made *m) {
    return m->d.text.data ? m->d.text.data : "";
}

void made_relu(Made *m, const char *dims) {
    made_start(m, 17);
    made_input(m, "x", DT_F32, dims);
    made_node(m, "Relu", "x", "y");
    made_output(m, "y");
}

void made_linear(Made *m) {
    made_start(m, 17);
    made_input(m, "x", DT_F32, "2,3");
    made_f32(m, "fc.weight", "3,4", 0);
    made_f32(m, "fc.bias", "4", 1);
    made_f32(m, "val_7", "4", 1);
    made_f32(m, "half", "", 0.5f);
    made_node(m, "MatMul", "x,fc.weight", "a");
    made_node(m, "Add", "a,fc.bias", "b");
    made_node(m, "Add", "b,val_7", "c");
    made_node(m, "Pow", "c,half", "y");
    made_output(m, "y");
}

void made_by(Made *m, const char *by) {
    m->model.producer_name = made_text(m, by);
}

void made_weights(Made *m, const char *rows) {
    char name[40], dims[20];
    for (int n; sscanf(rows, " %39s %19[^;]%n", name, dims, &n) == 2;
         rows += n + (rows[n] == ';'))
        made_f32(m, name, *dims == '-' ? "" : dims, 0.5f);
}

void made_nodes(Made *m, const char *rows) {
    char op[20], in[60], out[20];
    for (int n; sscanf(rows, " %19s %59s %19[^;]%n", op, in, out, &n) == 3;
         rows += n + (rows[n] == ';'))
        made_node(m, op, in, out);
    made_output(m, "y");
}

void made_becomes(Made *m, const char *name, Becomes want, const char *why) {
    Module *mod = made_import(m);
    if (!CHECK_MSG(mod != NULL, "%s: %s", name, made_message(m))) return;
    const Var *v = var_named(mod, name);
    const char *said = v ? v->why : NULL;
    Becomes got = !v ? CONSTANT : v->kind == VAR_PARAM ? TRAINS : FROZEN;
    for (int i = 0; i < mod->literals.len; i++)
        if (!strcmp(mod->literals.data[i].name, name))
            said = mod->literals.data[i].why;
    CHECK_MSG(got == want, "%s: %d, not %d (%s)", name, got, want, said);
    if (CHECK_MSG(said != NULL, "%s: no reason", name))
        CHECK_MSG(!strcmp(said, why), "%s: '%s', not '%s'", name, said, why);
}
