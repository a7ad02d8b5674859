/* SPDX-License-Identifier: Apache-2.0 */
/* onnx_emit_parts.c: parts of an ONNX file that is written: tensors, attributes
   and nodes, and the names of values in each dtype. */
#include <string.h>

#include "frontend/onnx/onnx_emit.h"

Status emit_fail(const Emit *e, const char *what) {
    return fail(e->d, e->n->loc, "%s: %s", node_info(e->n)->text, what);
}

/* ---- parts of the file --------------------------------------------------- */

Str emit_fresh(Emit *e, StrMap *used, Str name) {
    Str s = name;
    int i = str_map_get(used, name);
    for (; str_map_get(used, s) >= 0; s = internf("%s.%d", name, i)) i++;
    if (s != name) str_map_put(e->a, used, name, i);
    str_map_put(e->a, used, s, 1);
    return s;
}

Onnx__ValueInfoProto *emit_value_info(Emit *e, Str name, const Type *t) {
    Onnx__ValueInfoProto *v = NEW(e->a, Onnx__ValueInfoProto);
    Onnx__TypeProto *type = NEW(e->a, Onnx__TypeProto);
    Onnx__TypeProto__Tensor *x = NEW(e->a, Onnx__TypeProto__Tensor);
    Onnx__TensorShapeProto *shape = NEW(e->a, Onnx__TensorShapeProto);
    onnx__value_info_proto__init(v);
    onnx__type_proto__init(type);
    onnx__type_proto__tensor__init(x);
    onnx__tensor_shape_proto__init(shape);
    v->name = (char *)name;
    v->type = type;
    type->value_case = ONNX__TYPE_PROTO__VALUE_TENSOR_TYPE;
    type->tensor_type = x;
    x->has_elem_type = true;
    x->elem_type = dtype_info[t->dtype].onnx;
    x->shape = shape;
    shape->n_dim = (size_t)t->rank;
    shape->dim = NEW_ARRAY(e->a, Onnx__TensorShapeProto__Dimension *, t->rank);
    for (int i = 0; i < t->rank; i++) {
        shape->dim[i] = NEW(e->a, Onnx__TensorShapeProto__Dimension);
        onnx__tensor_shape_proto__dimension__init(shape->dim[i]);
        shape->dim[i]->value_case =
            ONNX__TENSOR_SHAPE_PROTO__DIMENSION__VALUE_DIM_VALUE;
        shape->dim[i]->dim_value = t->dim[i];
    }
    return v;
}

Str emit_tensor(Emit *e, Str name, const Type *t, const void *data) {
    Onnx__TensorProto *x = NEW(e->a, Onnx__TensorProto);
    onnx__tensor_proto__init(x);
    x->name = (char *)name;
    x->has_data_type = true;
    x->data_type = dtype_info[t->dtype].onnx;
    x->n_dims = (size_t)t->rank;
    x->dims = arena_dup(e->a, t->dim, sizeof *t->dim * (size_t)t->rank);
    x->has_raw_data = true;
    x->raw_data.data = (uint8_t *)data;
    x->raw_data.len = (size_t)type_bytes(t);
    vec_push(e->a, &e->tensors, x);
    return name;
}

Str emit_ints(Emit *e, const int64_t *v, int n) {
    StrBuf name = {0};
    sb_puts(&name, "ints");
    for (int i = 0; i < n; i++) sb_printf(&name, "_%lld", (long long)v[i]);
    Str s = intern(name.data);
    sb_free(&name);
    int at = str_map_get(&e->lists, s);
    if (at >= 0) return e->tensors.data[at]->name;
    str_map_put(e->a, &e->lists, s, e->tensors.len);
    Type t = {.dtype = DT_I64, .rank = 1, .dim = {n}};
    return emit_tensor(e, emit_fresh(e, &e->values, s), &t,
                       arena_dup(e->a, v, sizeof *v * (size_t)n));
}

Str emit_number(Emit *e, DType d, double v) {
    Type t = {.dtype = d};
    const Tensor *x = tensor_new(e->a, type_scalar(d));
    tensor_set(x, 0, v);
    return emit_tensor(e, emit_fresh(e, &e->values, intern("number")), &t,
                       x->data);
}

static Onnx__AttributeProto *put_attr(Emit *e, Onnx__NodeProto *p,
                                      const char *name, int type) {
    Onnx__AttributeProto *a = NEW(e->a, Onnx__AttributeProto);
    onnx__attribute_proto__init(a);
    a->name = (char *)name;
    a->has_type = true;
    a->type = (Onnx__AttributeProto__AttributeType)type;
    p->attribute[p->n_attribute++] = a;
    return a;
}

void emit_int(Emit *e, Onnx__NodeProto *p, const char *name, int64_t v) {
    Onnx__AttributeProto *a =
        put_attr(e, p, name, ONNX__ATTRIBUTE_PROTO__ATTRIBUTE_TYPE__INT);
    a->has_i = true;
    a->i = v;
}

void emit_word(Emit *e, Onnx__NodeProto *p, const char *name, const char *v) {
    Onnx__AttributeProto *a =
        put_attr(e, p, name, ONNX__ATTRIBUTE_PROTO__ATTRIBUTE_TYPE__STRING);
    a->has_s = true;
    a->s.data = (uint8_t *)v;
    a->s.len = strlen(v);
}

void emit_list(Emit *e, Onnx__NodeProto *p, const char *name, const int64_t *v,
               int n) {
    Onnx__AttributeProto *a =
        put_attr(e, p, name, ONNX__ATTRIBUTE_PROTO__ATTRIBUTE_TYPE__INTS);
    a->n_ints = (size_t)n;
    a->ints = arena_dup(e->a, v, sizeof *v * (size_t)n);
}

static void put_emit_float(Emit *e, Onnx__NodeProto *p, const char *name,
                           double v) {
    Onnx__AttributeProto *a =
        put_attr(e, p, name, ONNX__ATTRIBUTE_PROTO__ATTRIBUTE_TYPE__FLOAT);
    a->has_f = true;
    a->f = (float)v;
}

void emit_copy_attr(Emit *e, Onnx__NodeProto *p, const char *name,
                    const Attr *a) {
    switch (attr_get(a->key)->kind) {
    case ATTR_INT: emit_int(e, p, name, a->u.i); break;
    case ATTR_FLOAT: put_emit_float(e, p, name, a->u.f); break;
    case ATTR_STR: emit_word(e, p, name, a->u.s); break;
    case ATTR_INTS: emit_list(e, p, name, a->u.ints.v, a->u.ints.n); break;
    }
}

void emit_copy_attrs(Emit *e, Onnx__NodeProto *p, const char *names) {
    for (const char *s = names; *s;) {
        size_t len = strcspn(s, " ");
        for (int i = 0; i < e->n->nattr; i++) {
            const char *name = attr_get(e->n->attrs[i].key)->text;
            if (strlen(name) == len && !strncmp(name, s, len))
                emit_copy_attr(e, p, name, &e->n->attrs[i]);
        }
        s += len + strspn(s + len, " ");
    }
}

Onnx__NodeProto *emit_node(Emit *e, const char *op, const Str *in, int nin,
                           Str out) {
    Onnx__NodeProto *p = NEW(e->a, Onnx__NodeProto);
    onnx__node_proto__init(p);
    bool users = e->n && e->n->loc.node && out == e->result;
    p->name = (char *)emit_fresh(e, &e->labels, users ? e->n->loc.node : out);
    p->op_type = (char *)op;
    p->n_input = (size_t)nin;
    p->input = arena_dup(e->a, in, sizeof *in * (size_t)nin);
    p->n_output = 1;
    p->output = NEW_ARRAY(e->a, char *, 1);
    p->output[0] = (char *)out;
    p->attribute = NEW_ARRAY(e->a, Onnx__AttributeProto *, MAX_OP_ATTRS);
    vec_push(e->a, &e->nodes, p);
    return p;
}

static void put_info(Emit *e, Str name, const Type *t, DType d) {
    Type as = *t;
    as.dtype = d;
    vec_push(e->a, &e->infos, emit_value_info(e, name, &as));
}

/* ---- values -------------------------------------------------------------- */

Str *emit_called(const Emit *e, ValueId v, DType d) {
    return &e->as[v.i * NUM_DTYPES + d];
}

Str emit_cast_to(Emit *e, Str from, const Type *t, DType d, Str to) {
    Onnx__NodeProto *p = emit_node(e, "Cast", &from, 1, to);
    emit_int(e, p, "to", dtype_info[d].onnx);
    if (dtype_info[d].stored) emit_int(e, p, "saturate", 0);
    put_info(e, to, t, d);
    return to;
}

static Str put_cast(Emit *e, Str from, const Type *t, DType d, Str name) {
    return emit_cast_to(e, from, t, d, emit_fresh(e, &e->values, name));
}

static Str put_var(Emit *e, int var) {
    const Var *v = &e->g->module->vars.data[var];
    if (e->has_var[var]) return v->name;
    e->has_var[var] = true;
    if (e->weight && v->kind <= VAR_BUFFER) {
        const Type *type = type_get(v->type);
        char *data = arena_alloc(e->a, (size_t)type_bytes(type) + 1);
        if (e->weights == OK)
            e->weights = e->weight(e->ctx, v->name, type, data);
        return emit_tensor(e, v->name, type, data);
    }
    const Tensor *t = var_initial(e->a, v);
    if (!t) {
        t = tensor_new(e->a, v->type);
        if (type_count(type_get(v->type))) tensor_set(t, 0, v->fill);
        tensor_repeat(t);
    }
    return emit_tensor(e, v->name, type_get(v->type), t->data);
}

/* A constant in another dtype is written with that dtype. */
static Str put_const(Emit *e, const Value *v, DType d) {
    const Tensor *t = ox_as(e->a, v->data, d);
    Str name = v->name ? v->name : intern("number");
    return emit_tensor(e, emit_fresh(e, &e->values, name), type_get(t->type),
                       t->data);
}

Str emit_as_stored(Emit *e, ValueId id) {
    const Value *v = value_get(e->g, id);
    const Type *t = type_get(v->type);
    const Module *m = e->g->module;
    Str *name = emit_called(e, id, t->dtype);
    if (*name) return *name;
    switch (v->kind) {
    case VK_CONST: return *name = put_const(e, v, t->dtype);
    case VK_VAR: break;
    case VK_INPUT:
    case VK_RESULT: ASSERT(!"it stands before its readers");
    }
    const Var *var = &m->vars.data[v->var];
    if (var->kind != VAR_SHADOW) return *name = put_var(e, v->var);
    Str from = put_var(e, shadow_source(m, var));
    return *name = put_cast(e, from, t, t->dtype,
                            internf("%s/%s", from, dtype_info[t->dtype].text));
}

Str emit_as_dtype(Emit *e, ValueId id, DType d) {
    const Value *v = value_get(e->g, id);
    const Type *t = type_get(v->type);
    Str *name = emit_called(e, id, d);
    if (*name) return *name;
    if (v->kind == VK_CONST) return *name = put_const(e, v, d);
    Str from = emit_as_stored(e, id);
    if (d == t->dtype) return from;
    return *name = put_cast(e, from, t, d,
                            internf("%s/%s", from, dtype_info[d].text));
}

/* ---- nodes --------------------------------------------------------------- */

DType emit_meet(const Emit *e, int first) {
    DType d = value_dtype(e->g, e->n->in[first]);
    for (int i = first + 1; i < e->n->nin; i++)
        d = dtype_promote(d, value_dtype(e->g, e->n->in[i]));
    if (!dtype_is_float(d)) return d;
    return dtype_compute(d, value_dtype(e->g, e->n->out[0]));
}

Str emit_made(Emit *e, DType d) {
    ValueId v = e->n->out[0];
    DType stored = value_dtype(e->g, v);
    e->result = *emit_called(e, v, stored);
    if (d != stored)
        e->result = emit_fresh(e, &e->values,
                               internf("%s/%s", e->result, dtype_info[d].text));
    return e->result;
}

Status emit_stored(Emit *e, Str name, DType d) {
    ValueId v = e->n->out[0];
    const Type *t = value_type(e->g, v);
    Str as = *emit_called(e, v, t->dtype);
    put_info(e, name, t, d);
    if (d != t->dtype) emit_cast_to(e, name, t, t->dtype, as);
    return OK;
}

Status emit_chain(Emit *e, const char *ops, const char *attrs, const Str *in,
                  int nin, DType d) {
    Str y = emit_made(e, d), part = NULL;
    for (const char *s = ops; *s; in = &part, nin = 1, attrs = "") {
        Str op = intern_n(s, strcspn(s, " "));
        s += strlen(op) + strspn(s + strlen(op), " ");
        Str to = *s ? emit_fresh(e, &e->values, internf("%s/%s", y, op)) : y;
        emit_copy_attrs(e, emit_node(e, op, in, nin, to), attrs);
        part = to;
    }
    return emit_stored(e, y, d);
}
