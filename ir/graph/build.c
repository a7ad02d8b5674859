/* build.c: the builder.  Attributes are kept in one form (sorted, axes
   non-negative, default axis written out), so that equal nodes are equal in
   memory and readers need no cases.                                        */
#include "ir/fn/fn.h"
#include "ir/graph/ir_impl.h"

#include <stdlib.h>
#include <string.h>

/* ---- names of results ---------------------------------------------------- */

static bool is_op_word(const Module *m, const char *s, size_t n) {
    OpCode op;
    DType d;
    return op_from_text(s, n, &op) || dtype_from_text(s, n, &d) ||
           fn_find(m, s, n);
}

static size_t last_dot(const char *s, size_t n) {
    while (n && s[n - 1] != '.') n--;
    return n ? n - 1 : 0; /* 0: none, or an empty stem, which is kept */
}

/* Length of the name without an op or dtype that this file appended, so that
   chains of derived names stay short: "h.mul.2" -> "h". */
static size_t stem_length(const Module *m, const char *s) {
    size_t n = strlen(s), end = n, dot = last_dot(s, n);
    bool number =
        dot && dot + 1 < n && strspn(s + dot + 1, "0123456789") == n - dot - 1;
    if (number) {
        end = dot;
        dot = last_dot(s, end);
    }
    return dot && is_op_word(m, s + dot + 1, end - dot - 1) ? dot : n;
}

static bool ends_with(const char *s, const char *end) {
    size_t n = strlen(s), k = strlen(end);
    return n > k && strcmp(s + n - k, end) == 0;
}

static Str first_name(const Graph *g, const ValueId *in, int nin) {
    for (int i = 0; i < nin; i++)
        if (is_value(in[i]) && value_get(g, in[i])->name)
            return value_get(g, in[i])->name;
    return NULL;
}

static Str derive_name(const Builder *b, Callee callee, const ValueId *in,
                       int nin, DType result) {
    const char *word = callee_info(callee)->text;
    Str base = first_name(b->g, in, nin);
    if (b->suffix) {
        if (!base) base = intern(word);
        if (ends_with(base, b->suffix)) return base;
        return internf("%s%s", base, b->suffix);
    }
    if (!base) return intern(word);
    if (callee.op == OP_CAST) word = dtype_info[result].text;
    return internf("%.*s.%s", (int)stem_length(b->g->module, base), base, word);
}

/* ---- attributes ---------------------------------------------------------- */

static int by_key(const void *a, const void *b) {
    return strcmp(attr_get(((const Attr *)a)->key)->text,
                  attr_get(((const Attr *)b)->key)->text);
}

static int by_value(const void *a, const void *b) {
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

static bool takes_attr(OpCode op, AttrKey k) {
    for (int i = 0; i < op_info[op].nattr; i++)
        if (op_info[op].attrs[i] == k) return true;
    return false;
}

/* The rank that attribute `axis` counts in; -1: unknown, the rule complains. */
static int axis_rank(const Graph *g, OpCode op, const ValueId *in, int nin,
                     const Node *attrs, const Type *given) {
    const int64_t *shape;
    if (op == OP_IOTA) return given ? given->rank : -1;
    if (op == OP_SCATTER_ADD) return attr_ints(attrs, AK_shape, &shape);
    return nin && is_value(in[0]) ? value_type(g, in[0])->rank : -1;
}

void attr_sort_axes(int64_t *v, int n, int rank) {
    for (int i = 0; i < n; i++)
        if (axis_norm(v[i], rank) >= 0) v[i] = axis_norm(v[i], rank);
    if (n) qsort(v, (size_t)n, sizeof *v, by_value);
}

/* A copy with room for one default, axis 0; *n is updated. */
static Attr *op_attrs(const Graph *g, OpCode op, const ValueId *in, int nin,
                      const Attr *attrs, int *n, const Type *given) {
    Attr *to = NEW_ARRAY(g->arena, Attr, *n + 1);
    for (int i = 0; i < *n; i++) {
        to[i] = attrs[i];
        if (attr_get(to[i].key)->kind != ATTR_INTS) continue;
        to[i].u.ints.v = arena_dup(g->arena, attrs[i].u.ints.v,
                                   (size_t)attrs[i].u.ints.n * sizeof(int64_t));
    }
    Node holder = {.attrs = to, .nattr = *n};
    int rank = axis_rank(g, op, in, nin, &holder, given);
    bool wants_axis = takes_attr(op, AK_axis);
    if (wants_axis && rank >= 0 && !attr_find(&holder, AK_axis))
        to[(*n)++] = attr_i(AK_axis, 0);
    for (int i = 0; i < *n; i++) {
        if (to[i].key == AK_axis && wants_axis &&
            axis_norm(to[i].u.i, rank) >= 0)
            to[i].u.i = axis_norm(to[i].u.i, rank);
        if (to[i].key == AK_axes) /* our own copy */
            attr_sort_axes((int64_t *)to[i].u.ints.v, to[i].u.ints.n, rank);
    }
    return to;
}

Status canonical_attrs(Graph *g, Callee callee, const ValueId *in, int nin,
                       const Attr **attrs, int *nattr, const Type *given,
                       char *msg) {
    Attr *to;
    if (callee.fn)
        TRY(fn_canonical_attrs(callee.fn, g, in, nin, *attrs, nattr, &to, msg));
    else
        to = op_attrs(g, callee.op, in, nin, *attrs, nattr, given);
    if (*nattr) qsort(to, (size_t)*nattr, sizeof *to, by_key);
    *attrs = to;
    return OK;
}

/* ---- nodes --------------------------------------------------------------- */

Status node_make(Builder *b, Callee callee, const ValueId *in, int nin,
                 const Attr *attrs, int nattr, int nout, const Type *given,
                 const char *const *names, NodeId *out, char *msg) {
    Graph *g = b->g;
    while (nin > callee_info(callee)->in_min && !is_value(in[nin - 1])) nin--;
    TRY(canonical_attrs(g, callee, in, nin, &attrs, &nattr, given, msg));
    TypeId *types = NEW_ARRAY(g->arena, TypeId, nout);
    TRY(infer_types(g, callee, in, nin, attrs, nattr, nout, given, types, msg));

    Node n = {.op = callee.op,
              .fn = callee.fn,
              .nin = nin,
              .nout = nout,
              .attrs = attrs,
              .nattr = nattr,
              .flags = b->flags,
              .group = -1,
              .loc = b->loc};
    n.in = arena_dup(g->arena, in, (size_t)nin * sizeof *in);
    n.out = NEW_ARRAY(g->arena, ValueId, nout);
    NodeId id = {(uint32_t)g->nodes.len};
    for (int i = 0; i < nout; i++) {
        Str name = names && names[i] ? intern(names[i])
                                     : derive_name(b, callee, in, nin,
                                                   type_get(types[i])->dtype);
        n.out[i] = value_new(g, (Value){.name = graph_fresh_name(g, name),
                                        .type = types[i],
                                        .kind = VK_RESULT,
                                        .def = id,
                                        .result = i});
    }
    vec_push(g->arena, &g->nodes, n);
    vec_push(g->arena, &g->order, id);
    *out = id;
    return OK;
}

/* A pass asked for an illegal node. */
static _Noreturn void illegal(const Builder *b, Callee callee,
                              const ValueId *in, int nin, const char *msg) {
    fprintf(stderr, "graph %s: illegal %s", b->g->name,
            callee_info(callee)->text);
    for (int i = 0; i < nin; i++) {
        const Value *v = is_value(in[i]) ? value_get(b->g, in[i]) : NULL;
        fprintf(stderr, "%s%s %s", i ? ", " : " ", v && v->name ? v->name : "",
                TXT(v ? type_get(v->type) : NULL));
    }
    fprintf(stderr, ": %s\n", msg);
    assert_failed("the builder makes legal nodes only", __FILE__, __LINE__);
}

static NodeId make_legal(Builder *b, Callee callee, const ValueId *in, int nin,
                         const Attr *attrs, int nattr, int nout,
                         const Type *given, const char *const *names) {
    NodeId id;
    char msg[MSG_TEXT];
    if (node_make(b, callee, in, nin, attrs, nattr, nout, given, names, &id,
                  msg))
        illegal(b, callee, in, nin, msg);
    return id;
}

static ValueId result(const Builder *b, NodeId n, int i) {
    return node_get(b->g, n)->out[i];
}

ValueId build(Builder *b, OpCode op, const ValueId *in, int nin,
              const Attr *attrs, int nattr, DType dtype, const char *name) {
    Type given = type_by_rule();
    given.dtype = dtype;
    return result(
        b,
        make_legal(b, callee_op(op), in, nin, attrs, nattr, 1, &given, &name),
        0);
}

static NodeId make_multi(Builder *b, Callee callee, const ValueId *in, int nin,
                         const Attr *attrs, int nattr, int nout,
                         const DType *dtypes, const char *const *names) {
    Type *given = NEW_ARRAY(b->g->arena, Type, nout);
    for (int i = 0; i < nout; i++) {
        given[i] = type_by_rule();
        if (dtypes) given[i].dtype = dtypes[i];
    }
    return make_legal(b, callee, in, nin, attrs, nattr, nout, given, names);
}

NodeId build_multi(Builder *b, OpCode op, const ValueId *in, int nin,
                   const Attr *attrs, int nattr, int nout, const DType *dtypes,
                   const char *const *names) {
    return make_multi(b, callee_op(op), in, nin, attrs, nattr, nout, dtypes,
                      names);
}

NodeId build_call(Builder *b, const Fn *fn, const ValueId *in, int nin,
                  const Attr *attrs, int nattr, int nout, const DType *dtypes) {
    Callee callee = {OP_CALL, fn};
    return make_multi(b, callee, in, nin, attrs, nattr, nout, dtypes, NULL);
}

ValueId build_gen(Builder *b, OpCode op, const ValueId *in, int nin,
                  const Attr *attrs, int nattr, TypeId type, const char *name) {
    Type given = *type_get(type);
    return result(
        b,
        make_legal(b, callee_op(op), in, nin, attrs, nattr, 1, &given, &name),
        0);
}

Status build_checked(Builder *b, Diag *d, Callee callee, const ValueId *in,
                     int nin, const Attr *attrs, int nattr, int nout,
                     const TypeId *types, const char *const *names,
                     NodeId *out) {
    char msg[MSG_TEXT];
    Type *given = NEW_ARRAY(b->g->arena, Type, nout);
    for (int i = 0; i < nout; i++)
        given[i] = types && types[i].i ? *type_get(types[i]) : type_by_rule();
    if (node_make(b, callee, in, nin, attrs, nattr, nout, given, names, out,
                  msg))
        return fail(d, b->loc, "%s: %s", callee_info(callee)->text, msg);
    return OK;
}

/* ---- shorthands ---------------------------------------------------------- */

ValueId b1(Builder *b, OpCode op, ValueId x, DType dtype) {
    return build(b, op, &x, 1, NULL, 0, dtype, NULL);
}

ValueId b2(Builder *b, OpCode op, ValueId x, ValueId y, DType dtype) {
    return build(b, op, (ValueId[]){x, y}, 2, NULL, 0, dtype, NULL);
}

ValueId b3(Builder *b, OpCode op, ValueId x, ValueId y, ValueId z,
           DType dtype) {
    return build(b, op, (ValueId[]){x, y, z}, 3, NULL, 0, dtype, NULL);
}

ValueId b_scalar(Builder *b, DType d, double v) {
    return graph_scalar(b->g, d, v);
}

ValueId b_cast(Builder *b, ValueId x, DType d) {
    if (value_dtype(b->g, x) == d) return x;
    return b1(b, OP_CAST, x, d);
}

static bool has_shape(const Builder *b, ValueId x, int rank,
                      const int64_t *dim) {
    const Type *t = value_type(b->g, x);
    if (t->rank != rank) return false;
    for (int i = 0; i < rank; i++)
        if (t->dim[i] != dim[i]) return false;
    return true;
}

ValueId b_reshape(Builder *b, ValueId x, int rank, const int64_t *dim) {
    if (has_shape(b, x, rank, dim)) return x;
    Attr a = attr_v(AK_shape, dim, rank);
    return build(b, OP_RESHAPE, &x, 1, &a, 1, DT_DEFAULT, NULL);
}

ValueId b_expand(Builder *b, ValueId x, int rank, const int64_t *dim) {
    if (has_shape(b, x, rank, dim)) return x;
    Attr a = attr_v(AK_shape, dim, rank);
    return build(b, OP_EXPAND, &x, 1, &a, 1, DT_DEFAULT, NULL);
}

ValueId b_reduce(Builder *b, OpCode op, ValueId x, const int64_t *axes, int n,
                 bool keepdims, DType dtype) {
    Attr a[] = {attr_v(AK_axes, axes, n), attr_i(AK_keepdims, keepdims)};
    return build(b, op, &x, 1, a, 2, dtype, NULL);
}

ValueId b_transpose(Builder *b, ValueId x, const int64_t *perm) {
    Attr a = attr_v(AK_perm, perm, value_type(b->g, x)->rank);
    return build(b, OP_TRANSPOSE, &x, 1, &a, 1, DT_DEFAULT, NULL);
}

ValueId b_matmul(Builder *b, ValueId x, ValueId y, bool ta, bool tb, DType d) {
    Attr a[2];
    int n = 0;
    if (ta) a[n++] = attr_i(AK_trans_a, 1);
    if (tb) a[n++] = attr_i(AK_trans_b, 1);
    return build(b, OP_MATMUL, (ValueId[]){x, y}, 2, a, n, d, NULL);
}

ValueId b_full(Builder *b, TypeId t, double v) {
    Attr a = attr_f(AK_value, v);
    return build_gen(b, OP_FULL, NULL, 0, &a, 1, t, NULL);
}

/* Axes of t that broadcasting repeated for a value of type `to`. */
static int repeated_axes(const Type *t, const Type *to, int64_t *axes) {
    int lead = t->rank - to->rank, n = 0;
    for (int d = 0; d < t->rank; d++)
        if (t->dim[d] != 1 && (d < lead || to->dim[d - lead] == 1))
            axes[n++] = d;
    return n;
}

ValueId b_sum_to(Builder *b, ValueId x, ValueId like, DType dtype) {
    Type t = *value_type(b->g, x), to = *value_type(b->g, like);
    int64_t axes[MAX_RANK];
    int n = repeated_axes(&t, &to, axes);
    if (n) x = b_reduce(b, OP_REDUCE_SUM, x, axes, n, true, dtype);
    return b_reshape(b, x, to.rank, to.dim);
}

DType grad_dtype(const Graph *g, ValueId v) {
    const Value *x = value_get(g, v);
    if (x->kind == VK_RESULT) {
        const Node *def = node_get(g, x->def);
        if (def->op == OP_CAST && !attr_int(def, AK_user, 0) &&
            value_dtype(g, def->in[0]) == DT_F32)
            return DT_F32;
    }
    return type_get(x->type)->dtype;
}

/* ---- storage of a new value ---------------------------------------------- */

/* v is of a new node, and of the new nodes only `reader` reads it. */
static bool is_new_alone(const Graph *g, uint32_t first, int start, ValueId v,
                         NodeId reader) {
    const Value *x = value_get(g, v);
    if (x->kind != VK_RESULT || x->def.i < first) return false;
    for (int i = start; i < g->order.len; i++) {
        const Node *n = node_get(g, g->order.data[i]);
        for (int k = 0; k < n->nin; k++)
            if (same_value(n->in[k], v) && g->order.data[i].i != reader.i)
                return false;
    }
    return true;
}

static bool store(Graph *g, uint32_t first, int start, ValueId v, DType d,
                  NodeId reader) {
    enum { FEW = 16 };
    if (!is_new_alone(g, first, start, v, reader)) return false;
    NodeId id = value_get(g, v)->def;
    const Node *n = node_get(g, id);
    OpKind kind = op_info[n->op].kind;
    int at = value_get(g, v)->result;
    TypeId types[FEW];
    Type given[FEW];
    char msg[MSG_TEXT];
    if (n->nout > FEW || !dtype_is_float(d) ||
        !dtype_is_float(value_dtype(g, v)))
        return false;
    if ((kind == KIND_VIEW || kind == KIND_MOVE) &&
        (n->nin != 1 || !store(g, first, start, n->in[0], d, id)))
        return false;
    for (int i = 0; i < n->nout; i++) given[i] = *value_type(g, n->out[i]);
    given[at].dtype = d;
    if (infer_types(g, node_callee(n), n->in, n->nin, n->attrs, n->nattr,
                    n->nout, given, types, msg) != OK)
        return false;
    value_get(g, v)->type = types[at];
    return true;
}

bool node_store(Graph *g, uint32_t first, int start, ValueId v, DType d) {
    return store(g, first, start, v, d, NO_NODE);
}
