/* SPDX-License-Identifier: Apache-2.0 */
/* onnx_emit.c: a program as an ONNX file: --emit-onnx, ampc export.

   A value stored in 16 bits becomes a 16-bit tensor, and each rounding or
   widening becomes a Cast. Arithmetic is fp32, as in compiled code. ONNX's
   matrix products have one type, so a 16-bit one would round the sum that ampc
   keeps in fp32; and most ONNX runtimes have no bf16 arithmetic on CPUs. Ops
   that only move elements keep the type of their operand. The 16-bit copy of a
   parameter is a Cast of
   the parameter.                                                            */
#include <math.h>
#include <string.h>

#include "frontend/onnx/onnx.h"

enum { OPSET = 20, IR_VERSION = 9 };

typedef struct Emit {
    Arena *a;
    Diag *d;
    const Graph *g;
    VEC(Onnx__NodeProto *) nodes;
    VEC(Onnx__TensorProto *) tensors;
    VEC(Onnx__ValueInfoProto *) infos;
    StrMap values, labels; /* names that values and nodes use */
    StrMap lists;          /* integer lists of put_ints: index in `tensors` */
    Str *as;       /* name of a value in each dtype; NULL: not written yet */
    const Node *n; /* node being written */
    Str result;    /* name of its result */
    Str *outputs;  /* name of each output */
    bool *has_var; /* per variable: already in the file */
    bool *needed;  /* per value: a user's output depends on it */
    OnnxWeightFn *weight; /* NULL: initial values */
    void *ctx;
    Status weights; /* its last status */
} Emit;

static Status emit_fail(const Emit *e, const char *what) {
    return fail(e->d, e->n->loc, "%s: %s", node_info(e->n)->text, what);
}

/* ---- parts of the file --------------------------------------------------- */

/* The name, made unique by a number. */
static Str fresh(Emit *e, StrMap *used, Str name) {
    Str s = name;
    int i = str_map_get(used, name);
    for (; str_map_get(used, s) >= 0; s = internf("%s.%d", name, i)) i++;
    if (s != name) str_map_put(e->a, used, name, i);
    str_map_put(e->a, used, s, 1);
    return s;
}

static Onnx__ValueInfoProto *value_info(Emit *e, Str name, const Type *t) {
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

static Str put_tensor(Emit *e, Str name, const Type *t, const void *data) {
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

/* A list that ONNX takes as an operand; equal lists share one. */
static Str put_ints(Emit *e, const int64_t *v, int n) {
    StrBuf name = {0};
    sb_puts(&name, "ints");
    for (int i = 0; i < n; i++) sb_printf(&name, "_%lld", (long long)v[i]);
    Str s = intern(name.data);
    sb_free(&name);
    int at = str_map_get(&e->lists, s);
    if (at >= 0) return e->tensors.data[at]->name;
    str_map_put(e->a, &e->lists, s, e->tensors.len);
    Type t = {.dtype = DT_I64, .rank = 1, .dim = {n}};
    return put_tensor(e, fresh(e, &e->values, s), &t,
                      arena_dup(e->a, v, sizeof *v * (size_t)n));
}

static Str put_emit_number(Emit *e, DType d, double v) {
    Type t = {.dtype = d};
    const Tensor *x = tensor_new(e->a, type_scalar(d));
    tensor_set(x, 0, v);
    return put_tensor(e, fresh(e, &e->values, intern("number")), &t, x->data);
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

static void put_int(Emit *e, Onnx__NodeProto *p, const char *name, int64_t v) {
    Onnx__AttributeProto *a =
        put_attr(e, p, name, ONNX__ATTRIBUTE_PROTO__ATTRIBUTE_TYPE__INT);
    a->has_i = true;
    a->i = v;
}

static void put_emit_word(Emit *e, Onnx__NodeProto *p, const char *name,
                          const char *v) {
    Onnx__AttributeProto *a =
        put_attr(e, p, name, ONNX__ATTRIBUTE_PROTO__ATTRIBUTE_TYPE__STRING);
    a->has_s = true;
    a->s.data = (uint8_t *)v;
    a->s.len = strlen(v);
}

static void put_list(Emit *e, Onnx__NodeProto *p, const char *name,
                     const int64_t *v, int n) {
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

static void copy_attr(Emit *e, Onnx__NodeProto *p, const char *name,
                      const Attr *a) {
    switch (attr_get(a->key)->kind) {
    case ATTR_INT: put_int(e, p, name, a->u.i); break;
    case ATTR_FLOAT: put_emit_float(e, p, name, a->u.f); break;
    case ATTR_STR: put_emit_word(e, p, name, a->u.s); break;
    case ATTR_INTS: put_list(e, p, name, a->u.ints.v, a->u.ints.n); break;
    }
}

/* Copies the named attributes of the node, "axis keepdims". */
static void copy_attrs(Emit *e, Onnx__NodeProto *p, const char *names) {
    for (const char *s = names; *s;) {
        size_t len = strcspn(s, " ");
        for (int i = 0; i < e->n->nattr; i++) {
            const char *name = attr_get(e->n->attrs[i].key)->text;
            if (strlen(name) == len && !strncmp(name, s, len))
                copy_attr(e, p, name, &e->n->attrs[i]);
        }
        s += len + strspn(s + len, " ");
    }
}

/* Writes a node; if it computes the result of a user's node, it takes that
   node's name. */
static Onnx__NodeProto *put_emit_node(Emit *e, const char *op, const Str *in,
                                      int nin, Str out) {
    Onnx__NodeProto *p = NEW(e->a, Onnx__NodeProto);
    onnx__node_proto__init(p);
    bool users = e->n && e->n->loc.node && out == e->result;
    p->name = (char *)fresh(e, &e->labels, users ? e->n->loc.node : out);
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
    vec_push(e->a, &e->infos, value_info(e, name, &as));
}

/* ---- values -------------------------------------------------------------- */

static Str *called(const Emit *e, ValueId v, DType d) {
    return &e->as[v.i * NUM_DTYPES + d];
}

/* Declares `to` as a value of type t, but with dtype d. */
static Str cast_to(Emit *e, Str from, const Type *t, DType d, Str to) {
    Onnx__NodeProto *p = put_emit_node(e, "Cast", &from, 1, to);
    put_int(e, p, "to", dtype_info[d].onnx);
    if (dtype_info[d].stored) put_int(e, p, "saturate", 0);
    put_info(e, to, t, d);
    return to;
}

static Str put_cast(Emit *e, Str from, const Type *t, DType d, Str name) {
    return cast_to(e, from, t, d, fresh(e, &e->values, name));
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
        return put_tensor(e, v->name, type, data);
    }
    const Tensor *t = var_initial(e->a, v);
    if (!t) {
        t = tensor_new(e->a, v->type);
        if (type_count(type_get(v->type))) tensor_set(t, 0, v->fill);
        tensor_repeat(t);
    }
    return put_tensor(e, v->name, type_get(v->type), t->data);
}

/* A constant in another dtype is written with that dtype. */
static Str put_const(Emit *e, const Value *v, DType d) {
    const Tensor *t = ox_as(e->a, v->data, d);
    Str name = v->name ? v->name : intern("number");
    return put_tensor(e, fresh(e, &e->values, name), type_get(t->type),
                      t->data);
}

static Str as_stored(Emit *e, ValueId id) {
    const Value *v = value_get(e->g, id);
    const Type *t = type_get(v->type);
    const Module *m = e->g->module;
    Str *name = called(e, id, t->dtype);
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

/* Casts of one value to the same dtype share a node. */
static Str as_dtype(Emit *e, ValueId id, DType d) {
    const Value *v = value_get(e->g, id);
    const Type *t = type_get(v->type);
    Str *name = called(e, id, d);
    if (*name) return *name;
    if (v->kind == VK_CONST) return *name = put_const(e, v, d);
    Str from = as_stored(e, id);
    if (d == t->dtype) return from;
    return *name = put_cast(e, from, t, d,
                            internf("%s/%s", from, dtype_info[d].text));
}

/* ---- nodes --------------------------------------------------------------- */

/* The common dtype of the operands from `first` on: at least fp32. */
static DType meet(const Emit *e, int first) {
    DType d = value_dtype(e->g, e->n->in[first]);
    for (int i = first + 1; i < e->n->nin; i++)
        d = dtype_promote(d, value_dtype(e->g, e->n->in[i]));
    if (!dtype_is_float(d)) return d;
    return dtype_compute(d, value_dtype(e->g, e->n->out[0]));
}

/* Converts the result from dtype d, in which the node computes it, to its
   stored dtype. */
static Str made(Emit *e, DType d) {
    ValueId v = e->n->out[0];
    DType stored = value_dtype(e->g, v);
    e->result = *called(e, v, stored);
    if (d != stored)
        e->result = fresh(e, &e->values,
                          internf("%s/%s", e->result, dtype_info[d].text));
    return e->result;
}

static Status stored(Emit *e, Str name, DType d) {
    ValueId v = e->n->out[0];
    const Type *t = value_type(e->g, v);
    Str as = *called(e, v, t->dtype);
    put_info(e, name, t, d);
    if (d != t->dtype) cast_to(e, name, t, t->dtype, as);
    return OK;
}

/* Writes a chain of nodes, "Sqrt Reciprocal": the last node computes the
   result, of dtype d; the first node reads `in` and has the named
   attributes. */
static Status chain(Emit *e, const char *ops, const char *attrs, const Str *in,
                    int nin, DType d) {
    Str y = made(e, d), part = NULL;
    for (const char *s = ops; *s; in = &part, nin = 1, attrs = "") {
        Str op = intern_n(s, strcspn(s, " "));
        s += strlen(op) + strspn(s + strlen(op), " ");
        Str to = *s ? fresh(e, &e->values, internf("%s/%s", y, op)) : y;
        copy_attrs(e, put_emit_node(e, op, in, nin, to), attrs);
        part = to;
    }
    return stored(e, y, d);
}

typedef struct Form Form;
struct Form {
    OpCode op;
    const char *names, *attrs;
    Status (*put)(Emit *e, const Form *f);
};

/* Brings all operands except a condition to one dtype. */
static Status put_elem(Emit *e, const Form *f) {
    Str in[3];
    int first = e->n->op == OP_WHERE;
    DType d = meet(e, first);
    for (int i = 0; i < e->n->nin; i++)
        in[i] = as_dtype(e, e->n->in[i], i < first ? DT_BOOL : d);
    DType y = value_dtype(e->g, e->n->out[0]);
    return chain(e, f->names, f->attrs, in, e->n->nin,
                 dtype_is_float(y) ? d : y);
}

/* All operands but the first are constants that ONNX does not round. */
static Status put_moved(Emit *e, const Form *f) {
    Str in[2] = {as_stored(e, e->n->in[0])};
    const int64_t *v;
    DType d = value_dtype(e->g, e->n->in[0]);
    if (e->n->op == OP_EXPAND && dtype_is_float(d)) { /* the runtimes' own */
        d = meet(e, 0);
        in[0] = as_dtype(e, e->n->in[0], d);
    }
    int n = attr_ints(e->n, AK_shape, &v);
    bool shape = e->n->op != OP_TRANSPOSE;
    if (shape) in[1] = put_ints(e, v, n);
    return chain(e, f->names, f->attrs, in, 1 + shape, d);
}

static Status put_slice(Emit *e, const Form *f) {
    const Type *x = value_type(e->g, e->n->in[0]);
    const int64_t *from, *size, *step;
    int64_t to[MAX_RANK], axes[MAX_RANK];
    attr_ints(e->n, AK_starts, &from);
    attr_ints(e->n, AK_sizes, &size);
    attr_ints(e->n, AK_steps, &step);
    for (int i = 0; i < x->rank; i++) {
        axes[i] = i;
        to[i] = size[i] ? from[i] + (size[i] - 1) * step[i] : from[i] - 1;
        to[i] += step[i] > 0 || !size[i] ? 1 : -1;
        if (to[i] < 0)
            to[i] = INT64_MIN + 1; /* and does not count from the
                                      end */
    }
    Str in[] = {as_stored(e, e->n->in[0]), put_ints(e, from, x->rank),
                put_ints(e, to, x->rank), put_ints(e, axes, x->rank),
                put_ints(e, step, x->rank)};
    return chain(e, f->names, "", in, 5, x->dtype);
}

static Status put_pad(Emit *e, const Form *f) {
    const int64_t *pads;
    int n = attr_ints(e->n, AK_pads, &pads);
    DType d = meet(e, 0);
    Str in[] = {as_dtype(e, e->n->in[0], d), put_ints(e, pads, n),
                put_emit_number(e, d, attr_float(e->n, AK_value))};
    return chain(e, f->names, f->attrs, in, 3, d);
}

static Status put_concat(Emit *e, const Form *f) {
    Str *in = NEW_ARRAY(e->a, Str, e->n->nin);
    DType d = value_dtype(e->g, e->n->in[0]);
    for (int i = 1; i < e->n->nin; i++)
        d = dtype_promote(d, value_dtype(e->g, e->n->in[i]));
    for (int i = 0; i < e->n->nin; i++) in[i] = as_dtype(e, e->n->in[i], d);
    return chain(e, f->names, f->attrs, in, e->n->nin, d);
}

static Status put_gather(Emit *e, const Form *f) {
    DType i = value_dtype(e->g, e->n->in[1]);
    Str in[] = {as_stored(e, e->n->in[0]),
                as_dtype(e, e->n->in[1], i == DT_I32 ? DT_I32 : DT_I64)};
    return chain(e, f->names, f->attrs, in, 2, value_dtype(e->g, e->n->in[0]));
}

/* Reverses the row of onnx_ops.def: an operand in ONNX that is an attribute
   here becomes an operand again. */
static Status put_emit_row(Emit *e, const Form *f) {
    enum { MOST = 8 };
    Str in[MOST];
    const OpInfo *info = node_info(e->n);
    const OxOp *row = ox_op_find(f->names);
    DType d = meet(e, 0), y = value_dtype(e->g, e->n->out[0]);
    int nin = e->n->nin;
    ASSERT(nin + info->nattr <= MOST);
    for (int i = 0; i < nin; i++) in[i] = as_dtype(e, e->n->in[i], d);
    for (int i = 0; i < info->nattr; i++) {
        AttrKey key = info->attrs[i];
        OxMapEntry from = ox_map_to(row, attr_get(key)->text);
        if (!from.operand) continue;
        ASSERT(from.operand == nin);
        in[nin++] = put_emit_number(e, DT_I64, (double)attr_int(e->n, key));
    }
    if (!dtype_is_float(y)) d = y;
    Str to = made(e, d);
    Onnx__NodeProto *p = put_emit_node(e, row->name, in, nin, to);
    for (int i = 0; i < e->n->nattr; i++) {
        const Attr *a = &e->n->attrs[i];
        OxMapEntry from = ox_map_to(row, attr_get(a->key)->text);
        if (!from.operand) copy_attr(e, p, from.from, a);
    }
    return stored(e, to, d);
}

/* The second result of TopK. */
static Status put_argsort(Emit *e, const Form *f) {
    DType d = meet(e, 0);
    int64_t k = attr_int(e->n, AK_k);
    Str in[] = {as_dtype(e, e->n->in[0], d), put_ints(e, &k, 1)};
    Str y = made(e, DT_I64);
    Onnx__NodeProto *p = put_emit_node(e, f->names, in, 2, y);
    p->n_output = 2;
    p->output = NEW_ARRAY(e->a, char *, 2);
    p->output[0] = (char *)fresh(e, &e->values, internf("%s/values", y));
    p->output[1] = (char *)y;
    put_int(e, p, "largest", attr_int(e->n, AK_descending));
    return stored(e, y, DT_I64);
}

static Status put_clip(Emit *e, const Form *f) {
    DType d = meet(e, 0);
    Str in[] = {as_dtype(e, e->n->in[0], d),
                put_emit_number(e, d, attr_float(e->n, AK_min)),
                put_emit_number(e, d, attr_float(e->n, AK_max))};
    return chain(e, f->names, "", in, 3, d);
}

static Status put_mod(Emit *e, const Form *f) {
    DType d = meet(e, 0);
    Str in[] = {as_dtype(e, e->n->in[0], d), as_dtype(e, e->n->in[1], d)};
    Str y = made(e, d);
    put_int(e, put_emit_node(e, f->names, in, 2, y), "fmod", dtype_is_float(d));
    return stored(e, y, d);
}

static Status put_gelu_tanh(Emit *e, const Form *f) {
    DType d = meet(e, 0);
    Str in = as_dtype(e, e->n->in[0], d), y = made(e, d);
    put_emit_word(e, put_emit_node(e, f->names, &in, 1, y), "approximate",
                  "tanh");
    return stored(e, y, d);
}

/* (1 + erf(x / sqrt 2)) / 2 + x exp(-x^2 / 2) / sqrt(2 pi) */
static Status put_gelu_slope(Emit *e, const Form *f) {
    enum { NUMBER = -1, NONE = -2 };
    static const struct {
        const char *op;
        int a, b; /* 0: x; n: the result of part n - 1 */
        double number;
    } parts[] = {{"Mul", 0, NUMBER, 0.7071067811865476},
                 {"Erf", 1, NONE, 0},
                 {"Add", 2, NUMBER, 1},
                 {"Mul", 3, NUMBER, 0.5},
                 {"Mul", 0, 0, 0},
                 {"Mul", 5, NUMBER, -0.5},
                 {"Exp", 6, NONE, 0},
                 {"Mul", 7, NUMBER, 0.3989422804014327},
                 {"Mul", 8, 0, 0},
                 {"Add", 4, 9, 0}};
    enum { PARTS = sizeof parts / sizeof *parts };
    DType d = meet(e, 0);
    Str at[PARTS + 1] = {as_dtype(e, e->n->in[0], d)}, y = made(e, d);
    (void)f;
    for (int i = 0; i < PARTS; i++) {
        int b = parts[i].b;
        Str in[] = {at[parts[i].a], b >= 0 ? at[b]
                                    : b == NUMBER
                                        ? put_emit_number(e, d, parts[i].number)
                                        : NULL};
        at[i + 1] =
            i + 1 == PARTS ? y : fresh(e, &e->values, internf("%s/%d", y, i));
        put_emit_node(e, parts[i].op, in, b == NONE ? 1 : 2, at[i + 1]);
    }
    return stored(e, y, d);
}

/* True for finite numbers: x - x is 0. */
static Status put_isfinite(Emit *e, const Form *f) {
    DType d = meet(e, 0);
    Str x = as_dtype(e, e->n->in[0], d), in[] = {x, x};
    Str zero = fresh(e, &e->values, intern("zero"));
    put_emit_node(e, "Sub", in, 2, zero);
    Str both[] = {zero, put_emit_number(e, d, 0)};
    return chain(e, f->names, "", both, 2, DT_BOOL);
}

/* A cast that a store needs, or that the user's model contains. */
static Status put_user_cast(Emit *e, const Form *f) {
    (void)f;
    const Type *t = value_type(e->g, e->n->out[0]);
    Str from = as_stored(e, e->n->in[0]);
    cast_to(e, from, t, t->dtype, made(e, t->dtype));
    return OK;
}

static Status put_generated(Emit *e, const Form *f) {
    const Type *t = value_type(e->g, e->n->out[0]);
    Type small = {.dtype = t->dtype, .rank = t->rank};
    bool counts = e->n->op == OP_IOTA;
    int axis = (int)attr_int(e->n, AK_axis);
    for (int i = 0; i < t->rank; i++)
        small.dim[i] = counts && i == axis ? t->dim[i] : 1;
    if (dtype_is_low(small.dtype)) small.dtype = DT_F32;
    const Tensor *x =
        tensor_new(e->a, type_make(small.dtype, small.rank, small.dim));
    for (int64_t i = 0, n = type_count(&small); i < n; i++)
        tensor_set(x, i, counts ? (double)i : attr_float(e->n, AK_value));
    Str in[] = {
        put_tensor(e, fresh(e, &e->values, intern("values")), &small, x->data),
        put_ints(e, t->dim, t->rank)};
    return chain(e, f->names, "", in, 2, small.dtype);
}

static Status put_reduced(Emit *e, const Form *f) {
    const int64_t *axes;
    int n = attr_ints(e->n, AK_axes, &axes);
    DType d = meet(e, 0);
    Str in[] = {as_dtype(e, e->n->in[0], d), put_ints(e, axes, n)};
    return chain(e, f->names, f->attrs, in, 2, d);
}

/* Gemm for two matrices; otherwise the last two axes are transposed first. */
static Status put_matmul(Emit *e, const Form *f) {
    DType d = meet(e, 0);
    Str in[2];
    AttrKey trans[] = {AK_trans_a, AK_trans_b};
    bool flat = true, any = false;
    for (int i = 0; i < 2; i++) {
        in[i] = as_dtype(e, e->n->in[i], d);
        flat &= value_type(e->g, e->n->in[i])->rank == 2;
        any |= attr_int(e->n, trans[i]) != 0;
    }
    if (flat && any) {
        Str y = made(e, d);
        Onnx__NodeProto *p = put_emit_node(e, "Gemm", in, 2, y);
        put_int(e, p, "transA", attr_int(e->n, AK_trans_a));
        put_int(e, p, "transB", attr_int(e->n, AK_trans_b));
        return stored(e, y, d);
    }
    for (int i = 0; i < 2; i++) {
        int rank = value_type(e->g, e->n->in[i])->rank;
        int64_t perm[MAX_RANK];
        if (!attr_int(e->n, trans[i])) continue;
        for (int k = 0; k < rank; k++) perm[k] = k;
        perm[rank - 1] = rank - 2;
        perm[rank - 2] = rank - 1;
        Str y = fresh(e, &e->values, internf("%s/transposed", in[i]));
        put_list(e, put_emit_node(e, "Transpose", &in[i], 1, y), "perm", perm,
                 rank);
        in[i] = y;
    }
    return chain(e, f->names, "", in, 2, d);
}

/* The range of window positions along spatial axis i of x. */
static int64_t window_room(const Node *n, const Type *x, int i,
                           int64_t kernel) {
    const int64_t *pads, *dilations;
    attr_ints(n, AK_pads, &pads);
    attr_ints(n, AK_dilations, &dilations);
    return x->dim[i + 2] + pads[i] + pads[i + x->rank - 2] -
           (kernel - 1) * dilations[i] - 1;
}

/* The gradient of a convolution with respect to its operand is
   ConvTranspose; positions at the end that no window reached are
   output_padding. */
static Status put_conv_transposed(Emit *e, const Form *f) {
    const Type *y = value_type(e->g, e->n->in[0]);
    const Type *w = value_type(e->g, e->n->in[1]);
    const Type *x = value_type(e->g, e->n->out[0]);
    const int64_t *strides;
    int64_t rest[MAX_RANK];
    DType d = meet(e, 0);
    int spatial = attr_ints(e->n, AK_strides, &strides);
    for (int i = 0; i < spatial; i++)
        rest[i] = window_room(e->n, x, i, w->dim[i + 2]) -
                  strides[i] * (y->dim[i + 2] - 1);
    Str in[] = {as_dtype(e, e->n->in[0], d), as_dtype(e, e->n->in[1], d)};
    Str out = made(e, d);
    Onnx__NodeProto *p = put_emit_node(e, f->names, in, 2, out);
    copy_attrs(e, p, f->attrs);
    put_list(e, p, "output_padding", rest, spatial);
    return stored(e, out, d);
}

static Status put_pool(Emit *e, const Form *f) {
    const Type *x = value_type(e->g, e->n->in[0]);
    const int64_t *kernel, *strides, *sizes;
    int n = attr_ints(e->n, AK_strides, &strides);
    bool floors = true, ceils = true;
    attr_ints(e->n, AK_kernel_shape, &kernel);
    attr_ints(e->n, AK_sizes, &sizes);
    for (int i = 0; i < n; i++) {
        int64_t room = window_room(e->n, x, i, kernel[i]);
        floors &= sizes[i] == room / strides[i] + 1;
        ceils &= sizes[i] == (room + strides[i] - 1) / strides[i] + 1;
    }
    if (!floors && !ceils)
        return emit_fail(e, "its windows have no form in ONNX");
    DType d = meet(e, 0);
    Str in = as_dtype(e, e->n->in[0], d), y = made(e, d);
    Onnx__NodeProto *p = put_emit_node(e, f->names, &in, 1, y);
    copy_attrs(e, p, f->attrs);
    put_int(e, p, "ceil_mode", !floors);
    return stored(e, y, d);
}

/* Ops without a usable row in onnx_ops.def. Ops in neither table (gradients,
   random numbers, parts of convolutions) have no ONNX op. */
#define WINDOW    "kernel_shape strides pads dilations"
#define CONVOLVED "strides pads dilations group"
static const Form forms[] = {
    {OP_RSQRT, "Sqrt Reciprocal", "", put_elem},
    {OP_ABS, "Abs", "", put_elem},
    {OP_ATAN, "Atan", "", put_elem},
    {OP_LEAKY_RELU, "LeakyRelu", "alpha", put_elem},
    {OP_LOG_SIGMOID, "Neg Softplus Neg", "", put_elem},
    {OP_GELU, "Gelu", "", put_elem},
    {OP_GELU_TANH, "Gelu", "", put_gelu_tanh},
    {OP_GELU_SLOPE, "Erf", "", put_gelu_slope},
    {OP_CLIP, "Clip", "", put_clip},
    {OP_ISINF, "IsInf", "", put_elem},
    {OP_ISFINITE, "Equal", "", put_isfinite},
    {OP_CAST, "Cast", "", put_user_cast},
    {OP_MOD, "Mod", "", put_mod},
    {OP_POW, "Pow", "", put_elem},
    {OP_MIN, "Min", "", put_elem},
    {OP_MAX, "Max", "", put_elem},
    {OP_BIT_AND, "BitwiseAnd", "", put_elem},
    {OP_WHERE, "Where", "", put_elem},
    {OP_FULL, "Expand", "", put_generated},
    {OP_IOTA, "Expand", "", put_generated},
    {OP_RESHAPE, "Reshape", "", put_moved},
    {OP_TRANSPOSE, "Transpose", "perm", put_moved},
    {OP_EXPAND, "Expand", "", put_moved},
    {OP_SLICE, "Slice", "", put_slice},
    {OP_PAD, "Pad", "mode", put_pad},
    {OP_CONCAT, "Concat", "axis", put_concat},
    {OP_GATHER, "Gather", "axis", put_gather},
    {OP_REDUCE_SUM, "ReduceSum", "keepdims", put_reduced},
    {OP_REDUCE_MEAN, "ReduceMean", "keepdims", put_reduced},
    {OP_REDUCE_SUMSQ, "ReduceSumSquare", "keepdims", put_reduced},
    {OP_REDUCE_PROD, "ReduceProd", "keepdims", put_reduced},
    {OP_REDUCE_MAX, "ReduceMax", "keepdims", put_reduced},
    {OP_REDUCE_MIN, "ReduceMin", "keepdims", put_reduced},
    {OP_ARGMAX, "ArgMax", "axis keepdims", put_elem},
    {OP_ARGSORT, "TopK", "", put_argsort},
    {OP_RANK_SUM, "Identity", "", put_elem},
    {OP_MATMUL, "MatMul", "", put_matmul},
    {OP_CONV, "Conv", CONVOLVED, put_elem},
    {OP_CONV_DGRAD, "ConvTranspose", CONVOLVED, put_conv_transposed},
    {OP_MAX_POOL, "MaxPool", WINDOW, put_pool},
    {OP_AVG_POOL, "AveragePool", WINDOW " count_include_pad", put_pool},
};

static bool find_form(OpCode op, Form *f) {
    const OxOp *row;
    for (size_t i = 0; i < sizeof forms / sizeof *forms; i++) {
        *f = forms[i];
        if (f->op == op) return true;
    }
    for (int i = 0; (row = ox_row(i)); i++) {
        *f = (Form){op, row->name, "", put_emit_row};
        if (!*row->domain &&
            (row->handler == OX_elem || row->handler == OX_call) &&
            ox_callee(row).op == op)
            return true;
    }
    return false;
}

/* Opset 20 has no powers of two. */
static bool is_power_of_two(const Graph *g, const Node *n) {
    bool is = false;
    for (int k = 0; k < n->nout; k++)
        is |= value_dtype(g, n->out[k]) == DT_E8M0;
    return is;
}

/* Finds the nodes that the user's outputs need. Reports every op that ONNX
   lacks, once. */
static Status check_forms(Emit *e) {
    const Graph *g = e->g;
    Form f;
    StrMap told = {0};
    e->needed = NEW_ARRAY(e->a, bool, g->values.len);
    for (int i = 0; i < g->outputs.len; i++)
        if (!name_is_own(g->outputs.data[i].name))
            e->needed[g->outputs.data[i].value.i] = true;
    for (int i = g->order.len; i-- > 0;) {
        const Node *n = e->n = node_at(g, i);
        bool read = false, only_first = true;
        for (int k = 0; k < n->nout; k++) {
            read |= e->needed[n->out[k].i];
            only_first &= !k || !e->needed[n->out[k].i];
        }
        for (int k = 0; k < n->nin && read; k++) e->needed[n->in[k].i] = true;
        if (!read ||
            (only_first && find_form(n->op, &f) && !is_power_of_two(g, n)))
            continue;
        Str name = intern(node_info(n)->text);
        if (str_map_get(&told, name) < 0) emit_fail(e, "has no form in ONNX");
        str_map_put(e->a, &told, name, 1);
    }
    return told.len ? ERR_USER : OK;
}

/* ---- the file ------------------------------------------------------------ */

/* Inputs, outputs and variables keep their names; a result that is several
   outputs takes the name of the first. */
static void name_values(Emit *e) {
    const Graph *g = e->g;
    const Module *m = g->module;
    e->as = NEW_ARRAY(e->a, Str, g->values.len * NUM_DTYPES);
    e->outputs = NEW_ARRAY(e->a, Str, g->outputs.len);
    e->has_var = NEW_ARRAY(e->a, bool, m->vars.len);
    for (int i = 0; i < m->vars.len; i++)
        str_map_put(e->a, &e->values, m->vars.data[i].name, 1);
    for (int i = 0; i < g->inputs.len; i++) {
        ValueId v = g->inputs.data[i];
        *called(e, v, value_dtype(g, v)) =
            fresh(e, &e->values, value_get(g, v)->name);
    }
    for (int i = 0; i < g->outputs.len; i++) {
        const Output *o = &g->outputs.data[i];
        const Value *v = value_get(g, o->value);
        Str *name = called(e, o->value, value_dtype(g, o->value));
        if (name_is_own(o->name)) continue;
        bool same = v->kind == VK_VAR ? m->vars.data[v->var].name == o->name
                                      : *name == o->name;
        e->outputs[i] = same ? o->name : fresh(e, &e->values, o->name);
        if (v->kind == VK_RESULT && !*name) *name = e->outputs[i];
    }
    for (int i = 0; i < g->order.len; i++) {
        ValueId v = node_at(g, i)->out[0];
        Str *name = called(e, v, value_dtype(g, v));
        if (!*name) *name = fresh(e, &e->values, value_get(g, v)->name);
    }
}

static void put_outputs(Emit *e, Onnx__GraphProto *p) {
    const Graph *g = e->g;
    p->output = NEW_ARRAY(e->a, Onnx__ValueInfoProto *, g->outputs.len);
    e->n = NULL;
    for (int i = 0; i < g->outputs.len; i++) {
        Str to = e->outputs[i];
        if (!to) continue;
        ValueId v = g->outputs.data[i].value;
        Str name = as_stored(e, v);
        if (name != to) put_emit_node(e, "Identity", &name, 1, to);
        p->output[p->n_output++] = value_info(e, to, value_type(g, v));
    }
}

static Status emit_graph(Emit *e, Onnx__GraphProto *p) {
    const Graph *g = e->g;
    Form f;
    p->name = (char *)(*g->module->name ? g->module->name : g->name);
    p->n_input = (size_t)g->inputs.len;
    p->input = NEW_ARRAY(e->a, Onnx__ValueInfoProto *, g->inputs.len);
    for (int i = 0; i < g->inputs.len; i++) {
        ValueId v = g->inputs.data[i];
        const Type *t = value_type(g, v);
        p->input[i] = value_info(e, *called(e, v, t->dtype), t);
    }
    for (int i = 0; i < g->order.len; i++) {
        e->n = node_at(g, i);
        if (e->needed[e->n->out[0].i] && find_form(e->n->op, &f))
            TRY(f.put(e, &f));
    }
    put_outputs(e, p);
    p->n_node = (size_t)e->nodes.len;
    p->node = e->nodes.data;
    p->n_initializer = (size_t)e->tensors.len;
    p->initializer = e->tensors.data;
    p->n_value_info = (size_t)e->infos.len;
    p->value_info = e->infos.data;
    return OK;
}

Status onnx_emit(Arena *a, Diag *d, const char *path, const Graph *g,
                 OnnxWeightFn *weight, void *ctx, OutFile *out) {
    Emit e = {.a = a, .d = d, .g = g, .weight = weight, .ctx = ctx};
    Onnx__ModelProto model = ONNX__MODEL_PROTO__INIT;
    Onnx__GraphProto graph = ONNX__GRAPH_PROTO__INIT;
    Onnx__OperatorSetIdProto opset = ONNX__OPERATOR_SET_ID_PROTO__INIT;
    Onnx__OperatorSetIdProto *opsets[] = {&opset};
    TRY(check_forms(&e));
    name_values(&e);
    TRY(emit_graph(&e, &graph));
    TRY(e.weights);
    opset.domain = "";
    opset.has_version = model.has_ir_version = true;
    opset.version = OPSET;
    model.ir_version = IR_VERSION;
    model.producer_name = "ampc";
    model.graph = &graph;
    model.n_opset_import = 1;
    model.opset_import = opsets;
    return ox_write(d, path, &model, out);
}
