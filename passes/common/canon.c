/* SPDX-License-Identifier: Apache-2.0 */
/* canon.c: brings primitives into the forms that fuse and lower best.
   Before:  %m = reduce_mean %x {axes=[0,1], keepdims=0} : f32[]
   After:   %x.reduce_mean = reduce_mean %x {axes=[0,1], keepdims=1} : f32[1,1]
            %m = reshape %x.reduce_mean {shape=[]} : f32[]
   requires     stage INLINED
   establishes  no SPLIT; every REDUCE keeps its dimensions; element-wise ops
                broadcast by shape rather than through expand; no reshape of a
                reshape
   breaks       nothing; leaves dead nodes                                   */
#include "passes/rewrite.h"
#include "passes/passes.h"

#include <string.h>

static Type type_copy(const Rewriter *rw, ValueId v) {
    return *value_type(rw->g, v);
}

/* slices: one result each, so that each can move into its users */
static bool canon_split(Rewriter *rw, const Node *n, ValueId *out) {
    Graph *g = rw->g;
    Type t = type_copy(rw, n->in[0]);
    int axis = (int)attr_int(n, AK_axis);
    int64_t starts[MAX_RANK] = {0}, steps[MAX_RANK];
    for (int i = 0; i < t.rank; i++) steps[i] = 1;
    for (int i = 0; i < n->nout; i++) {
        Type r = *value_type(g, n->out[i]);
        Attr a[] = {attr_v(AK_starts, starts, t.rank),
                    attr_v(AK_sizes, r.dim, t.rank),
                    attr_v(AK_steps, steps, t.rank)};
        out[i] = build(&rw->b, OP_SLICE, n->in, 1, a, 3, r.dtype, NULL);
        starts[axis] += r.dim[axis];
    }
    return true;
}

/* The axis of `from` that `to` splits in two; -1: `to` is not such a split. */
static int split_axis(const Type *from, const Type *to) {
    if (to->rank != from->rank + 1) return -1;
    int a = 0;
    while (a < from->rank && from->dim[a] == to->dim[a]) a++;
    if (a == from->rank || to->dim[a] * to->dim[a + 1] != from->dim[a])
        return -1;
    for (int i = a + 1; i < from->rank; i++)
        if (from->dim[i] != to->dim[i + 1]) return -1;
    return a;
}

/* The slice `sl` rebuilt on its reshaped operand: reshape to dim, slice at
   `at` to the shape of `to`, and cast if `cast`. */
static ValueId slice_of_reshape(Rewriter *rw, const Node *sl, const Type *to,
                                const int64_t *dim, const int64_t *at,
                                const int64_t *step, bool cast) {
    DType d = value_dtype(rw->g, sl->in[0]);
    ValueId x = b_reshape(&rw->b, sl->in[0], to->rank, dim);
    Attr attrs[] = {attr_v(AK_sizes, to->dim, to->rank),
                    attr_v(AK_starts, at, to->rank),
                    attr_v(AK_steps, step, to->rank)};
    x = build(&rw->b, OP_SLICE, &x, 1, attrs, 3, d, NULL);
    return cast ? b1(&rw->b, OP_CAST, x, to->dtype) : x;
}

/* reshape(slice(x)) = slice(reshape(x)) if the reshape drops an axis that
   the slice reduces to one element: a step of a recurrence is then read
   without a copy. */
static bool squeeze_of_slice(Rewriter *rw, const Node *n, const Node *cast,
                             const Node *sl, ValueId *out) {
    const int64_t *starts, *steps;
    Type whole = type_copy(rw, sl->in[0]), part = type_copy(rw, n->in[0]);
    Type to = type_copy(rw, n->out[0]);
    int a = split_axis(&to, &part);
    attr_ints(sl, AK_starts, &starts);
    attr_ints(sl, AK_steps, &steps);
    if (a < 0 || part.dim[a] != 1 || steps[a + 1] != 1) return false;
    int64_t dim[MAX_RANK], at[MAX_RANK], step[MAX_RANK], q = whole.dim[a + 1];
    for (int i = 0; i < to.rank; i++) {
        int from = i < a ? i : i + 1;
        dim[i] = i == a ? whole.dim[a] * q : whole.dim[from];
        at[i] = i == a ? starts[a] * q + starts[a + 1] : starts[from];
        step[i] = steps[from];
    }
    out[0] = slice_of_reshape(rw, sl, &to, dim, at, step, cast != NULL);
    return true;
}

/* reshape(slice(x)) = slice(reshape(x)), with or without a cast after the
   slice, if the reshape only splits an axis at whole multiples: heads that
   are slices of one projection then move together with the transpose that
   follows. */
static bool reshape_of_slice(Rewriter *rw, const Node *n, ValueId *out) {
    Graph *g = rw->g;
    const Node *cast = def_of(g, n->in[0], OP_CAST);
    const Node *sl = def_of(g, cast ? cast->in[0] : n->in[0], OP_SLICE);
    if (!sl) return false;
    if (squeeze_of_slice(rw, n, cast, sl, out)) return true;
    const int64_t *starts, *steps;
    int rank = attr_ints(sl, AK_starts, &starts);
    attr_ints(sl, AK_steps, &steps);
    Type whole = type_copy(rw, sl->in[0]), to = type_copy(rw, n->out[0]);
    int a = split_axis(value_type(g, n->in[0]), &to);
    int64_t q = a < 0 ? 0 : to.dim[a + 1];
    if (q <= 0 || rank == MAX_RANK || whole.dim[a] % q || starts[a] % q)
        return false;
    int64_t dim[MAX_RANK], at[MAX_RANK], one[MAX_RANK];
    for (int i = 0; i <= rank; i++) {
        int from = i > a ? i - 1 : i;
        if (steps[from] != 1) return false;
        dim[i] = i == a ? whole.dim[a] / q : i == a + 1 ? q : whole.dim[from];
        at[i] = i == a ? starts[a] / q : i == a + 1 ? 0 : starts[from];
        one[i] = 1;
    }
    out[0] = slice_of_reshape(rw, sl, &to, dim, at, one, cast != NULL);
    return true;
}

static ValueId reshape_of_concat(Rewriter *rw, const ValueId *in, int nin,
                                 int axis, const Type *to) {
    Attr a = attr_i(AK_axis, axis);
    ValueId v = build(&rw->b, OP_CONCAT, in, nin, &a, 1, to->dtype, NULL);
    return b_reshape(&rw->b, v, to->rank, to->dim);
}

/* concat(reshape(x)..) = reshape(concat(x..)) if each reshape joins the axis
   with a following one of the same extent: gradients of heads that are
   slices of one projection then move together with the transposes before. */
static bool concat_of_reshapes(Rewriter *rw, const Node *n, ValueId *out) {
    Graph *g = rw->g;
    Type to = type_copy(rw, n->out[0]);
    int axis = axis_norm(attr_int(n, AK_axis), to.rank);
    ValueId *in = NEW_ARRAY(rw->scratch, ValueId, n->nin);
    int64_t extent = 0;
    for (int i = 0; i < n->nin; i++) {
        const Node *r = def_of(g, n->in[i], OP_RESHAPE);
        const Type *t = r ? value_type(g, r->in[0]) : NULL;
        if (!t || split_axis(value_type(g, n->in[i]), t) != axis ||
            (i && t->dim[axis + 1] != extent))
            return false;
        extent = t->dim[axis + 1];
        in[i] = r->in[0];
    }
    out[0] = reshape_of_concat(rw, in, n->nin, axis, &to);
    return true;
}

/* concat(reshape(x)..) = reshape(concat(x..)) if each reshape only inserts a
   leading axis of one, along which the concat joins: steps of a sequence are
   then stored as the rows that a matrix product of all of them reads. */
static bool concat_of_steps(Rewriter *rw, const Node *n, ValueId *out) {
    Graph *g = rw->g;
    Type to = type_copy(rw, n->out[0]);
    if (axis_norm(attr_int(n, AK_axis), to.rank) != 0) return false;
    ValueId *in = NEW_ARRAY(rw->scratch, ValueId, n->nin);
    for (int i = 0; i < n->nin; i++) {
        const Node *r = def_of(g, n->in[i], OP_RESHAPE);
        const Type *t = r ? value_type(g, r->in[0]) : NULL;
        if (!t || t->rank == 0 || t->rank + 1 != to.rank ||
            value_type(g, n->in[i])->dim[0] != 1 ||
            memcmp(t->dim, to.dim + 1, (size_t)t->rank * sizeof *t->dim) != 0)
            return false;
        in[i] = r->in[0];
    }
    out[0] = reshape_of_concat(rw, in, n->nin, 0, &to);
    return true;
}

/* reshape(x) of another dtype = reshape(cast(x)), since a view moves no bytes;
   reshape(reshape(x)) = reshape(x); reshape to x's own shape = x */
static bool canon_reshape(Rewriter *rw, const Node *n, ValueId *out) {
    Graph *g = rw->g;
    ValueId x = n->in[0];
    Type t = type_copy(rw, n->out[0]);
    if (t.dtype != value_dtype(g, x)) {
        out[0] = b_reshape(&rw->b, b_cast(&rw->b, x, t.dtype), t.rank, t.dim);
        return true;
    }
    if (reshape_of_slice(rw, n, out)) return true;
    const Node *inner = def_of(g, x, OP_RESHAPE);
    if (inner) x = inner->in[0];
    if (!shape_equal(&t, value_type(g, x))) {
        if (!inner) return false;
        x = b_reshape(&rw->b, x, t.rank, t.dim);
    }
    out[0] = x;
    return true;
}

/* A smaller value that broadcasts to the elements of operand v: the operand
   of an expand, or a reduction's result without its leading axes of length
   1. */
static ValueId broadcast_source(const Graph *g, ValueId v, int rank) {
    const Node *x = def_of(g, v, OP_EXPAND);
    if (x) return x->in[0];
    const Node *r = def_of(g, v, OP_RESHAPE);
    if (!r) return v;
    const Type *t = value_type(g, v), *s = value_type(g, r->in[0]);
    int extra = s->rank - t->rank;
    if (extra <= 0 || s->rank > rank) return v;
    for (int i = 0; i < s->rank; i++)
        if (s->dim[i] != (i < extra ? 1 : t->dim[i - extra])) return v;
    return r->in[0];
}

/* f(reshape(x), scalars) = reshape(f(x, scalars)): views move behind
   element-wise work, so that it can join the group that computes x. */
static bool sink_reshape(Rewriter *rw, const Node *n, ValueId *out) {
    Graph *g = rw->g;
    ValueId in[3];
    int at = -1;
    if (n->flags & NODE_UPDATE) return false; /* the update keeps it */
    for (int i = 0; i < n->nin; i++) {
        in[i] = n->in[i];
        if (value_type(g, in[i])->rank == 0) continue;
        if (at >= 0 && !same_value(n->in[at], in[i])) return false;
        at = i;
    }
    const Node *r = at < 0 ? NULL : def_of(g, n->in[at], OP_RESHAPE);
    if (!r || value_get(g, r->in[0])->kind != VK_RESULT) return false;
    for (int i = 0; i < n->nin; i++)
        if (same_value(in[i], n->in[at])) in[i] = r->in[0];
    Type t = *value_type(g, n->out[0]);
    ValueId v =
        build(&rw->b, n->op, in, n->nin, n->attrs, n->nattr, t.dtype, NULL);
    out[0] = b_reshape(&rw->b, v, t.rank, t.dim);
    return true;
}

static bool canon_elem(Rewriter *rw, const Node *n, ValueId *out) {
    Graph *g = rw->g;
    if (n->nin > 3) return false;
    if (sink_reshape(rw, n, out)) return true;
    const Type *want = value_type(g, n->out[0]);
    ValueId in[3];
    bool changed = false;
    memcpy(in, n->in, (size_t)n->nin * sizeof *in);
    for (int i = 0; i < n->nin; i++) {
        ValueId old = in[i];
        in[i] = broadcast_source(g, old, want->rank);
        if (same_value(in[i], old)) continue;
        Type t = *value_type(g, in[0]); /* the shape that all operands broadcast
                                           to after the change */
        bool fits = true;
        for (int k = 1; k < n->nin; k++)
            fits = fits && shape_broadcast(&t, value_type(g, in[k]), &t);
        if (fits && shape_equal(&t, want))
            changed = true;
        else
            in[i] = old;
    }
    if (!changed) return false;
    out[0] = build(&rw->b, n->op, in, n->nin, n->attrs, n->nattr,
                   value_dtype(g, n->out[0]), NULL);
    return true;
}

static bool canon_node(Rewriter *rw, const Node *n, ValueId *out) {
    if (n->op == OP_SPLIT) return canon_split(rw, n, out);
    if (n->op == OP_RESHAPE) return canon_reshape(rw, n, out);
    if (n->op == OP_CONCAT)
        return concat_of_reshapes(rw, n, out) || concat_of_steps(rw, n, out);
    if (node_kind(n) == KIND_ELEM) return canon_elem(rw, n, out);
    if (node_kind(n) != KIND_REDUCE) return false;
    const int64_t *axes;
    int na = attr_ints(n, AK_axes, &axes);
    Type t = type_copy(rw, n->out[0]);
    ValueId r = b_reduce(&rw->b, n->op, n->in[0], axes, na, true, t.dtype);
    out[0] = b_reshape(&rw->b, r, t.rank, t.dim);
    return true;
}

static bool canon_rule(Rewriter *rw, NodeId id, ValueId *with) {
    Graph *g = rw->g;
    Node n = *node_get(g, id); /* building may move the pool */
    int made = g->order.len;
    if (!canon_node(rw, &n, with)) return false;
    for (int i = 0; i < n.nout; i++)
        if (is_value(with[i]) && g->order.len > made)
            rewrite_take_name(g, n.out[i], with[i]);
    return true;
}

Status pass_canon(Module *m, PassCtx *cx) {
    for (int i = 0; i < m->graphs.len; i++)
        rewrite_graph(m->graphs.data[i], cx->scratch, canon_rule, NULL);
    return OK;
}
