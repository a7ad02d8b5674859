/* build.c: the builder.  Attributes are kept in one form (sorted, axes
   non-negative, default axis written out), so that equal nodes are equal in
   memory and readers need no cases.                                        */
#include "ir/graph/ir_impl.h"

#include <stdlib.h>
#include <string.h>

/* ---- names of results ---------------------------------------------------- */

static bool is_op_word(const char *s, size_t n) {
    OpCode op;
    DType d;
    return op_from_text(s, n, &op) || dtype_from_text(s, n, &d);
}

static size_t last_dot(const char *s, size_t n) {
    while (n && s[n - 1] != '.') n--;
    return n ? n - 1 : 0; /* 0: none, or an empty stem, which is kept */
}

/* Length of the name without an op or dtype that this file appended, so that
   chains of derived names stay short: "h.mul.2" -> "h". */
static size_t stem_length(const char *s) {
    size_t n = strlen(s), end = n, dot = last_dot(s, n);
    bool number =
        dot && dot + 1 < n && strspn(s + dot + 1, "0123456789") == n - dot - 1;
    if (number) {
        end = dot;
        dot = last_dot(s, end);
    }
    return dot && is_op_word(s + dot + 1, end - dot - 1) ? dot : n;
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

static Str derive_name(const Builder *b, OpCode op, const ValueId *in, int nin,
                       DType result) {
    const char *word = op_info[op].text;
    Str base = first_name(b->g, in, nin);
    if (b->suffix) {
        if (!base) base = intern(word);
        if (ends_with(base, b->suffix)) return base;
        return internf("%s%s", base, b->suffix);
    }
    if (!base) return intern(word);
    if (op == OP_CAST) word = dtype_info[result].text;
    return internf("%.*s.%s", (int)stem_length(base), base, word);
}

/* ---- attributes ---------------------------------------------------------- */

static int by_key(const void *a, const void *b) {
    return (int)((const Attr *)a)->key - (int)((const Attr *)b)->key;
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

static int64_t default_axis(OpCode op, int rank) {
    switch (op) {
    case OP_SOFTMAX:
    case OP_LOG_SOFTMAX:
    case OP_LAYER_NORM: return rank - 1;
    case OP_SOFTMAX_CROSS_ENTROPY:
    case OP_NLL_LOSS: return rank > 1;
    default: return 0;
    }
}

static void normalise_axes(Attr *a, int rank) {
    int64_t *v = (int64_t *)a->u.ints.v; /* our own copy */
    for (int i = 0; i < a->u.ints.n; i++)
        if (axis_norm(v[i], rank) >= 0) v[i] = axis_norm(v[i], rank);
    if (a->u.ints.n) qsort(v, (size_t)a->u.ints.n, sizeof *v, by_value);
}

/* A copy in canonical form with room for one default; *n is updated. */
static Attr *canonical_attrs(const Graph *g, OpCode op, const ValueId *in,
                             int nin, const Attr *attrs, int *n,
                             const Type *given) {
    Attr *to = NEW_ARRAY(g->arena, Attr, *n + 1);
    for (int i = 0; i < *n; i++) {
        to[i] = attrs[i];
        if (attr_info[to[i].key].kind != ATTR_INTS) continue;
        to[i].u.ints.v = arena_dup(g->arena, attrs[i].u.ints.v,
                                   (size_t)attrs[i].u.ints.n * sizeof(int64_t));
    }
    Node holder = {.attrs = to, .nattr = *n};
    int rank = axis_rank(g, op, in, nin, &holder, given);
    bool wants_axis = takes_attr(op, AK_axis);
    if (wants_axis && rank >= 0 && !attr_find(&holder, AK_axis))
        to[(*n)++] = attr_i(AK_axis, default_axis(op, rank));
    for (int i = 0; i < *n; i++) {
        if (to[i].key == AK_axis && wants_axis &&
            axis_norm(to[i].u.i, rank) >= 0)
            to[i].u.i = axis_norm(to[i].u.i, rank);
        if (to[i].key == AK_axes) normalise_axes(&to[i], rank);
    }
    if (*n) qsort(to, (size_t)*n, sizeof *to, by_key);
    return to;
}

/* ---- nodes --------------------------------------------------------------- */

/* Everything the entry points have in common.  given: nout entries or NULL. */
static Status make_node(Builder *b, OpCode op, const ValueId *in, int nin,
                        const Attr *attrs, int nattr, int nout,
                        const Type *given, const char *const *names,
                        NodeId *out, char *msg) {
    Graph *g = b->g;
    while (nin > op_info[op].in_min && !is_value(in[nin - 1])) nin--;
    attrs = canonical_attrs(g, op, in, nin, attrs, &nattr, given);
    TypeId *types = NEW_ARRAY(g->arena, TypeId, nout);
    TRY(infer_types(g, op, in, nin, attrs, nattr, nout, given, types, msg));

    Node n = {.op = op,
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
        Str name = names && names[i]
                       ? intern(names[i])
                       : derive_name(b, op, in, nin, type_get(types[i])->dtype);
        n.out[i] = value_new(g, (Value){.name = graph_unique_name(g, name),
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
static _Noreturn void illegal(const Builder *b, OpCode op, const ValueId *in,
                              int nin, const char *msg) {
    fprintf(stderr, "graph %s: illegal %s", b->g->name, op_info[op].text);
    for (int i = 0; i < nin; i++) {
        const Value *v = is_value(in[i]) ? value_get(b->g, in[i]) : NULL;
        fprintf(stderr, "%s%s %s", i ? ", " : " ", v && v->name ? v->name : "",
                TXT(v ? type_get(v->type) : NULL));
    }
    fprintf(stderr, ": %s\n", msg);
    assert_failed("the builder makes legal nodes only", __FILE__, __LINE__);
}

static NodeId make_legal(Builder *b, OpCode op, const ValueId *in, int nin,
                         const Attr *attrs, int nattr, int nout,
                         const Type *given, const char *const *names) {
    NodeId id;
    char msg[MSG_TEXT];
    if (make_node(b, op, in, nin, attrs, nattr, nout, given, names, &id, msg))
        illegal(b, op, in, nin, msg);
    return id;
}

static ValueId result(const Builder *b, NodeId n, int i) {
    return node_get(b->g, n)->out[i];
}

ValueId build(Builder *b, OpCode op, const ValueId *in, int nin,
              const Attr *attrs, int nattr, DType dtype, const char *name) {
    Type given = type_by_rule();
    given.dtype = dtype;
    return result(b, make_legal(b, op, in, nin, attrs, nattr, 1, &given, &name),
                  0);
}

NodeId build_multi(Builder *b, OpCode op, const ValueId *in, int nin,
                   const Attr *attrs, int nattr, int nout, const DType *dtypes,
                   const char *const *names) {
    Type *given = NEW_ARRAY(b->g->arena, Type, nout);
    for (int i = 0; i < nout; i++) {
        given[i] = type_by_rule();
        if (dtypes) given[i].dtype = dtypes[i];
    }
    return make_legal(b, op, in, nin, attrs, nattr, nout, given, names);
}

ValueId build_gen(Builder *b, OpCode op, const ValueId *in, int nin,
                  const Attr *attrs, int nattr, TypeId type, const char *name) {
    Type given = *type_get(type);
    return result(b, make_legal(b, op, in, nin, attrs, nattr, 1, &given, &name),
                  0);
}

Status build_checked(Builder *b, Diag *d, OpCode op, const ValueId *in, int nin,
                     const Attr *attrs, int nattr, int nout,
                     const TypeId *types, const char *const *names,
                     NodeId *out) {
    char msg[MSG_TEXT];
    Type *given = NEW_ARRAY(b->g->arena, Type, nout);
    for (int i = 0; i < nout; i++)
        given[i] = types && types[i].i ? *type_get(types[i]) : type_by_rule();
    if (make_node(b, op, in, nin, attrs, nattr, nout, given, names, out, msg))
        return fail(d, b->loc, "%s: %s", op_info[op].text, msg);
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
