/* SPDX-License-Identifier: Apache-2.0 */
/* build.c: the builder.  Attributes are kept in normal form (sorted, axes
   non-negative, default axis written out), so that equal nodes are equal in
   memory and readers need no special cases. */
#include "ir/graph/fn_table.h"
#include "ir/graph/ir_impl.h"
#include "ir/op/rule.h"

#include <stdlib.h>
#include <string.h>

/* ---- names of results ---------------------------------------------------- */

static size_t last_dot(const char *s, size_t n) {
    while (n && s[n - 1] != '.') n--;
    return n ? n - 1 : 0; /* 0: no stem, or an empty one, which is kept */
}

/* Length of the name without an op or dtype that this file appended, so that
   chains of derived names stay short: "h.mul.2" -> "h".  "h.grad" is a name
   that autodiff gives. */
static size_t stem_length(const Module *m, const char *s) {
    size_t n = strlen(s), end = n, dot = last_dot(s, n);
    bool number =
        dot && dot + 1 < n && strspn(s + dot + 1, "0123456789") == n - dot - 1;
    if (number) {
        end = dot;
        dot = last_dot(s, end);
    }
    const char *word = s + dot + 1;
    size_t len = end - dot - 1;
    OpCode op;
    DType d;
    bool ours =
        dot && ((op_from_text(word, len, &op) && op != OP_GRAD) ||
                dtype_from_text(word, len, &d) || fn_table_has(m, word, len));
    return ours ? dot : n;
}

static Str derive_name(const Builder *b, const Node *n, DType result) {
    const char *word =
        n->op == OP_CAST ? dtype_info[result].text : node_info(n)->text;
    Str base = NULL;
    for (int i = 0; i < n->nin && !base; i++)
        if (is_value(n->in[i])) base = value_get(b->g, n->in[i])->name;
    if (b->suffix) {
        if (!base) base = intern(node_info(n)->text);
        size_t k = strlen(base), end = strlen(b->suffix);
        if (k > end && !strcmp(base + k - end, b->suffix)) return base;
        return internf("%s%s", base, b->suffix);
    }
    if (!base) return intern(node_info(n)->text);
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

/* The rank in which attribute `axis` counts; -1: unknown, and the type rule
   reports it. */
static int axis_rank(const Graph *g, const Node *n, const Type *given) {
    const int64_t *shape;
    if (n->op == OP_IOTA) return given ? given->rank : -1;
    if (n->op == OP_SCATTER_ADD) return attr_ints(n, AK_shape, &shape);
    return n->nin && is_value(n->in[0]) ? value_type(g, n->in[0])->rank : -1;
}

void attr_sort_axes(int64_t *v, int n, int rank) {
    for (int i = 0; i < n; i++)
        if (axis_norm(v[i], rank) >= 0) v[i] = axis_norm(v[i], rank);
    if (n) qsort(v, (size_t)n, sizeof *v, by_value);
}

Attr attr_copy(Arena *a, Attr x) {
    if (attr_get(x.key)->kind == ATTR_INTS)
        x.u.ints.v =
            arena_dup(a, x.u.ints.v, (size_t)x.u.ints.n * sizeof *x.u.ints.v);
    return x;
}

/* A copy in which a missing axis is 0. */
static void op_attrs(const Graph *g, Node *n, const Type *given) {
    int rank = axis_rank(g, n, given);
    bool takes = info_takes(&op_info[n->op], AK_axis);
    bool lacks = takes && rank >= 0 && !attr_find(n, AK_axis);
    Attr *to = NEW_ARRAY(g->arena, Attr, n->nattr + lacks);
    for (int i = 0; i < n->nattr; i++) to[i] = attr_copy(g->arena, n->attrs[i]);
    if (lacks) to[n->nattr++] = attr_i(AK_axis, 0);
    for (int i = 0; i < n->nattr; i++) {
        if (to[i].key == AK_axis && takes && axis_norm(to[i].u.i, rank) >= 0)
            to[i].u.i = axis_norm(to[i].u.i, rank);
        if (to[i].key == AK_axes) /* our own copy */
            attr_sort_axes((int64_t *)to[i].u.ints.v, to[i].u.ints.n, rank);
    }
    n->attrs = to;
}

Status canonical_attrs(Graph *g, Node *n, const Type *given, char *msg) {
    if (n->fn)
        TRY(node_info(n)->call->attrs(g, n, msg));
    else
        op_attrs(g, n, given);
    if (n->nattr) /* a copy of ours */
        qsort((Attr *)n->attrs, (size_t)n->nattr, sizeof *n->attrs, by_key);
    return OK;
}

/* ---- nodes --------------------------------------------------------------- */

enum { FEW = 16 };

Status node_make(Builder *b, const Node *want, const Type *given,
                 const char *const *names, NodeId *out, char *msg) {
    Graph *g = b->g;
    Node n = *want;
    n.flags = b->flags;
    n.group = -1;
    n.loc = b->loc;
    while (n.nin > node_info(&n)->in_min && !is_value(n.in[n.nin - 1])) n.nin--;
    TRY(canonical_attrs(g, &n, given, msg));
    TypeId few[FEW];
    TypeId *types = n.nout <= FEW ? few : NEW_ARRAY(g->arena, TypeId, n.nout);
    TRY(infer_types(g, &n, given, types, msg));

    node_own_ids(g->arena, &n);
    NodeId id = {(uint32_t)g->nodes.len};
    for (int i = 0; i < n.nout; i++) {
        Str name = names && names[i]
                       ? intern(names[i])
                       : derive_name(b, &n, type_get(types[i])->dtype);
        n.out[i] = value_new(g, (Value){.name = graph_unique_name(g, name),
                                        .type = types[i],
                                        .kind = VK_RESULT,
                                        .def = id,
                                        .result = i});
    }
    for (int i = 1; i < n.nin && n.op == OP_GRAD; i++)
        value_get(g, n.in[i])->held = true;
    vec_push(g->arena, &g->nodes, n);
    vec_push(g->arena, &g->order, id);
    *out = id;
    return OK;
}

/* Builds a node that must be legal, because a pass asks for it. */
static NodeId make_legal(Builder *b, const Node *n, const Type *given,
                         const char *const *names) {
    NodeId id;
    char msg[MSG_TEXT];
    if (node_make(b, n, given, names, &id, msg) == OK) return id;
    fprintf(stderr, "graph %s: illegal %s", b->g->name, node_info(n)->text);
    for (int i = 0; i < n->nin; i++) {
        const Value *v = is_value(n->in[i]) ? value_get(b->g, n->in[i]) : NULL;
        fprintf(stderr, "%s%s %s", i ? ", " : " ", v && v->name ? v->name : "",
                TXT(v ? type_get(v->type) : NULL));
    }
    fprintf(stderr, ": %s\n", msg);
    assert_failed("the builder makes legal nodes only", __FILE__, __LINE__);
}

static Node asked(Callee callee, const ValueId *in, int nin, const Attr *attrs,
                  int nattr, int nout) {
    return (Node){.op = callee.op,
                  .fn = callee.fn,
                  .in = (ValueId *)in, /* copied before anything is changed */
                  .nin = nin,
                  .attrs = attrs,
                  .nattr = nattr,
                  .nout = nout};
}

static ValueId make_one(Builder *b, OpCode op, const ValueId *in, int nin,
                        const Attr *attrs, int nattr, const Type *given,
                        const char *name) {
    Node n = asked(callee_op(op), in, nin, attrs, nattr, 1);
    return node_get(b->g, make_legal(b, &n, given, &name))->out[0];
}

ValueId build(Builder *b, OpCode op, const ValueId *in, int nin,
              const Attr *attrs, int nattr, DType dtype, const char *name) {
    Type given = type_by_rule();
    given.dtype = dtype;
    return make_one(b, op, in, nin, attrs, nattr, &given, name);
}

ValueId build_gen(Builder *b, OpCode op, const ValueId *in, int nin,
                  const Attr *attrs, int nattr, TypeId type, const char *name) {
    return make_one(b, op, in, nin, attrs, nattr, type_get(type), name);
}

static NodeId make_many(Builder *b, const Node *n, const DType *dtypes,
                        const char *const *names) {
    Type few[FEW];
    Type *given = n->nout <= FEW ? few : NEW_ARRAY(b->g->arena, Type, n->nout);
    for (int i = 0; i < n->nout; i++) {
        given[i] = type_by_rule();
        if (dtypes) given[i].dtype = dtypes[i];
    }
    return make_legal(b, n, given, names);
}

NodeId build_multi(Builder *b, OpCode op, const ValueId *in, int nin,
                   const Attr *attrs, int nattr, int nout, const DType *dtypes,
                   const char *const *names) {
    Node n = asked(callee_op(op), in, nin, attrs, nattr, nout);
    return make_many(b, &n, dtypes, names);
}

NodeId build_again(Builder *b, NodeId id, const ValueId *in) {
    Node n = *node_get(b->g, id);
    Type few[FEW];
    Type *given = n.nout <= FEW ? few : NEW_ARRAY(b->g->arena, Type, n.nout);
    const char **names = NEW_ARRAY(b->g->arena, const char *, n.nout);
    for (int i = 0; i < n.nout; i++) {
        given[i] = *value_type(b->g, n.out[i]);
        names[i] = value_get(b->g, n.out[i])->name;
    }
    n.in = (ValueId *)in; /* copied before anything is changed */
    n.out = NULL;
    return make_legal(b, &n, given, names);
}

NodeId build_call(Builder *b, const Fn *fn, const ValueId *in, int nin,
                  const Attr *attrs, int nattr, int nout, const DType *dtypes) {
    Node n = asked((Callee){OP_CALL, fn}, in, nin, attrs, nattr, nout);
    return make_many(b, &n, dtypes, NULL);
}

Status build_checked(Builder *b, Diag *d, Callee callee, const ValueId *in,
                     int nin, const Attr *attrs, int nattr, int nout,
                     const TypeId *types, const char *const *names,
                     NodeId *out) {
    char msg[MSG_TEXT];
    Node n = asked(callee, in, nin, attrs, nattr, nout);
    Type few[FEW];
    Type *given = nout <= FEW ? few : NEW_ARRAY(b->g->arena, Type, nout);
    for (int i = 0; i < nout; i++)
        given[i] = types && types[i].i ? *type_get(types[i]) : type_by_rule();
    if (node_make(b, &n, given, names, out, msg))
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

ValueId b_where(Builder *b, ValueId c, ValueId yes, ValueId no) {
    return build(b, OP_WHERE, (ValueId[]){c, yes, no}, 3, NULL, 0, DT_DEFAULT,
                 NULL);
}

ValueId b_scalar(Builder *b, DType d, double v) {
    return graph_scalar(b->g, d, v);
}

ValueId b_cast(Builder *b, ValueId x, DType d) {
    if (value_dtype(b->g, x) == d) return x;
    return b1(b, OP_CAST, x, d);
}

ValueId b_reshape(Builder *b, ValueId x, int rank, const int64_t *dim) {
    const Type *t = value_type(b->g, x);
    size_t bytes = (size_t)rank * sizeof *dim;
    if (t->rank == rank && (!rank || !memcmp(t->dim, dim, bytes))) return x;
    Attr a = attr_v(AK_shape, dim, rank);
    return build(b, OP_RESHAPE, &x, 1, &a, 1, DT_DEFAULT, NULL);
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

ValueId b_close(Builder *b, ValueId closed, ValueId x) {
    if (!is_value(closed) ||
        !shape_equal(value_type(b->g, closed), value_type(b->g, x)))
        return x;
    DType d = value_dtype(b->g, x);
    ValueId in[] = {closed, b_scalar(b, d, 0), x};
    return build(b, OP_WHERE, in, 3, NULL, 0, d, NULL);
}

ValueId b_sum_to(Builder *b, ValueId x, ValueId like, DType dtype) {
    Type t = *value_type(b->g, x), to = *value_type(b->g, like);
    int64_t axes[MAX_RANK]; /* axes along which `like` was broadcast */
    int lead = t.rank - to.rank, n = 0;
    for (int d = 0; d < t.rank; d++)
        if (t.dim[d] != 1 && (d < lead || to.dim[d - lead] == 1)) axes[n++] = d;
    if (n) x = b_reduce(b, OP_REDUCE_SUM, x, axes, n, true, dtype);
    return b_reshape(b, x, to.rank, to.dim);
}

DType grad_dtype(const Graph *g, ValueId v) {
    const Value *x = value_get(g, v);
    if (x->kind == VK_RESULT) {
        const Node *def = node_get(g, x->def);
        if (def->op == OP_CAST && !attr_int(def, AK_user) &&
            value_dtype(g, def->in[0]) == DT_F32)
            return DT_F32;
    }
    return type_get(x->type)->dtype;
}

/* ---- storage of a new value ---------------------------------------------- */

/* v is a result of a new node, and only `reader` among the new nodes reads
   it. */
static bool is_new_alone(const Graph *g, uint32_t first, int start, ValueId v,
                         NodeId reader) {
    const Value *x = value_get(g, v);
    if (x->kind != VK_RESULT || x->def.i < first) return false;
    for (int i = start; i < g->order.len; i++) {
        const Node *n = node_at(g, i);
        for (int k = 0; k < n->nin; k++)
            if (same_value(n->in[k], v) && g->order.data[i].i != reader.i)
                return false;
    }
    return true;
}

static bool store(Graph *g, uint32_t first, int start, ValueId v, DType d,
                  NodeId reader) {
    if (!is_new_alone(g, first, start, v, reader)) return false;
    NodeId id = value_get(g, v)->def;
    const Node *n = node_get(g, id);
    OpKind kind = node_kind(n);
    int at = value_get(g, v)->result;
    TypeId few[FEW];
    Type few_given[FEW];
    char msg[MSG_TEXT];
    if (!dtype_is_float(d) || !dtype_is_float(value_dtype(g, v))) return false;
    if ((kind == KIND_VIEW || kind == KIND_MOVE) &&
        (n->nin != 1 || !store(g, first, start, n->in[0], d, id)))
        return false;
    bool many = n->nout > FEW;
    TypeId *types = many ? NEW_ARRAY(g->arena, TypeId, n->nout) : few;
    Type *given = many ? NEW_ARRAY(g->arena, Type, n->nout) : few_given;
    for (int i = 0; i < n->nout; i++) given[i] = *value_type(g, n->out[i]);
    given[at].dtype = d;
    if (infer_types(g, n, given, types, msg) != OK) return false;
    value_get(g, v)->type = types[at];
    return true;
}

bool node_store(Graph *g, uint32_t first, int start, ValueId v, DType d) {
    return store(g, first, start, v, d, NO_NODE);
}
