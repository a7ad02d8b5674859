/* SPDX-License-Identifier: Apache-2.0 */
/* simplify.c: folds constants and removes nodes without effect. Each rule is
   one equation: a row of patterns if its left side is a tree of ops, else it
   stands above the function that applies it; the table at the bottom says which
   op tries which of these.  rewrite.h lists what a rule must preserve.
   requires     any stage before FUSED
   breaks       nothing */
#include "ir/eval/evaluate.h"
#include "ir/fn/fn.h"
#include "passes/passes.h"
#include "passes/pattern.h"

#include <math.h>
#include <string.h>

static TypeId type_of(const Rewriter *rw, ValueId v) {
    return value_get(rw->g, v)->type;
}

static bool same_type(const Rewriter *rw, ValueId a, ValueId b) {
    return type_of(rw, a).i == type_of(rw, b).i;
}

/* ---- constants ----------------------------------------------------------- */

/* A gather with rows out of range is left as it is: pass checks refuses it. */
static bool foldable(const Graph *g, const Node *n) {
    OpKind kind = node_kind(n);
    if (kind == KIND_GEN || kind == KIND_LIB || kind == KIND_ANCHOR ||
        kind == KIND_COMPOSITE || n->nin == 0)
        return false;
    for (int i = 0; i < n->nin; i++)
        if (n->in[i].i && value_get(g, n->in[i])->kind != VK_CONST)
            return false;
    for (int i = 0; i < n->nout; i++)
        if (value_count(g, n->out[i]) > FOLD_LIMIT) return false;
    if (n->op != OP_GATHER) return true;
    const Type *t = value_type(g, n->in[0]);
    int64_t size = t->dim[axis_norm(attr_int(n, AK_axis), t->rank)];
    const Tensor *rows = value_get(g, n->in[1])->data;
    for (int64_t i = 0; i < type_count(type_get(rows->type)); i++) {
        int64_t row = tensor_get_int(rows, i);
        if (row < -size || row >= size) return false;
    }
    return true;
}

/* op(consts) = const.  Rounded to the declared types, like compiled code. */
static bool rule_fold(Rewriter *rw, const Node *n, NodeId id, ValueId *with) {
    Graph *g = rw->g;
    if (!foldable(g, n)) return false;
    const EvalTensor **in = NEW_ARRAY(rw->scratch, const EvalTensor *, n->nin);
    EvalTensor **out = NEW_ARRAY(rw->scratch, EvalTensor *, n->nout);
    for (int i = 0; i < n->nin; i++)
        in[i] = n->in[i].i ? eval_from_tensor(rw->scratch,
                                              value_get(g, n->in[i])->data)
                           : NULL;
    char msg[MSG_TEXT];
    if (eval_node(g, id, rw->scratch, EVAL_STORAGE, in, out, msg) != OK)
        return false; /* e.g. division by zero: left to run time */
    for (int i = 0; i < n->nout; i++) {
        ValueId o = n->out[i];
        Tensor *t = eval_to_tensor(g->arena, out[i], type_of(rw, o));
        with[i] = graph_const(g, value_get(g, o)->name, t);
    }
    return true;
}

/* f(full(c), y) = f(c, y) if y alone has the result's shape: the scalar is
   an immediate, the tensor would need a buffer. */
static bool rule_scalar_operand(Rewriter *rw, const Node *n, ValueId *with) {
    Graph *g = rw->g;
    if (node_kind(n) != KIND_ELEM || n->nin < 2) return false;
    const Type *res = value_type(g, n->out[0]);
    bool whole = false; /* another operand has the result's shape */
    int splat = -1;
    double c = 0;
    for (int i = 0; i < n->nin; i++) {
        const Type *t = value_type(g, n->in[i]);
        const Node *full = def_of(g, n->in[i], OP_FULL);
        double v = full ? attr_float(full, AK_value) : 0;
        bool is_splat = full || value_is_splat(g, n->in[i], &v);
        if (!is_splat && shape_equal(t, res)) whole = true;
        if (!is_splat || !t->rank || splat >= 0) continue;
        splat = i;
        c = v;
    }
    if (!whole || splat < 0) return false;
    ValueId in[3];
    memcpy(in, n->in, (size_t)n->nin * sizeof *in);
    DType d = value_dtype(g, in[splat]);
    if (dtype_is_int(d) && fabs(c) > 9e15) return false;
    in[splat] = graph_scalar(g, d, c);
    with[0] =
        build(&rw->b, n->op, in, n->nin, n->attrs, n->nattr, res->dtype, NULL);
    return same_type(rw, with[0], n->out[0]);
}

/* ---- arithmetic ---------------------------------------------------------- */

#define ROW(tree, to, is)                                                      \
    { .find = {.text = tree}, .make = to, .when = is }
#define GELU(tree)                                                             \
    {                                                                          \
        .find = {.text = tree, .near = 1e-4}, .make = "gelu(x)",               \
        .when = SAME_TYPE                                                      \
    }
#define NORM(root)                                                             \
    ROW("x * " root " where w = reduce_mean(x * x, axes=axes) + E",            \
        "unit_rms(x, axes=axes, epsilon=E)", SAME_TYPE | TYPED)

static PatternRow simplify_patterns[] = {
    /* -0 + 0 differs in its sign, which affects only a later division */
    ROW("x + 0", "x", SAME_TYPE),
    ROW("x - 0", "x", SAME_TYPE),
    ROW("x * 1", "x", SAME_TYPE),
    ROW("x / 1", "x", SAME_TYPE),
    ROW("pow(x, 1)", "x", SAME_TYPE),
    ROW("pow(x, 2)", "x * x", SAME_SHAPE | FLOATS),
    ROW("pow(x, 3)", "x * x * x", SAME_SHAPE | FLOATS),
    ROW("pow(x, 0.5)", "sqrt(x)", SAME_SHAPE | FLOATS),
    ROW("pow(x, -1)", "reciprocal(x)", SAME_SHAPE | FLOATS),
    ROW("where(true, x, y)", "x", SAME_TYPE),
    ROW("where(false, y, x)", "x", SAME_TYPE),
    /* the left sides are -inf for x < -88 (in fp16 from x = -17), and the right
       sides are exact there */
    ROW("log(sigmoid(x))", "log_sigmoid(x)", SAME_SHAPE),
    ROW("log(1 - sigmoid(x))", "log_sigmoid(-x)", SAME_SHAPE),
    ROW("log(softmax(x, axis=axis))", "log_softmax(x, axis=axis)", 0),
    GELU("0.5 * (x * (1 + erf(x / 1.41421356)))"),
    GELU("0.5 * (x * (1 + erf(x * 0.70710678)))"),
    GELU("0.5 * x * (1 + erf(x / 1.41421356))"),
    GELU("0.5 * x * (1 + erf(x * 0.70710678))"),
    GELU("x * (0.5 * (1 + erf(x / 1.41421356)))"),
    GELU("x * (0.5 * (1 + erf(x * 0.70710678)))"),
    /* its gradient is computed from the quotient and not from x; root and
       reciprocal are rounded once */
    NORM("rsqrt(w)"),
    NORM("(1 / sqrt(w))"),
    NORM("reciprocal(sqrt(w))"),
};

/* ---- casts --------------------------------------------------------------- */

/* cast to its own dtype = x; cast16(cast32(x16)) = x16 (widening is exact);
   never cast32(cast16(x32)): that drops a rounding. */
static bool rule_cast(Rewriter *rw, const Node *n, ValueId *with) {
    const Graph *g = rw->g;
    if (same_type(rw, n->in[0], n->out[0])) {
        with[0] = n->in[0];
        return true;
    }
    const Node *up = def_of(g, n->in[0], OP_CAST);
    if (!up || !same_type(rw, up->in[0], n->out[0])) return false;
    DType narrow = value_dtype(g, up->in[0]), wide = value_dtype(g, n->in[0]);
    if (!dtype_is_float(narrow) || !dtype_is_float(wide)) return false;
    with[0] = up->in[0];
    return wide == DT_F64 || (wide == DT_F32 && dtype_is_low(narrow));
}

/* ---- data movement ------------------------------------------------------- */

/* reshape, expand, slice, concat to the same type = x */
static bool rule_same_type(Rewriter *rw, const Node *n, ValueId *with) {
    if (n->nin < 1 || n->nout != 1 || !same_type(rw, n->in[0], n->out[0]))
        return false;
    if (n->op == OP_CONCAT && n->nin > 1) return false;
    const int64_t *step;
    int rank = attr_ints(n, AK_steps, &step);
    for (int i = 0; i < rank; i++)
        if (step[i] < 0) return false; /* a reversal */
    with[0] = n->in[0];
    return true;
}

static bool keeps_dtype(const Rewriter *rw, const Node *n) {
    return value_dtype(rw->g, n->in[0]) == value_dtype(rw->g, n->out[0]);
}

/* reshape(reshape x) = reshape x; reshape(full c) = full c */
static bool rule_reshape(Rewriter *rw, const Node *n, ValueId *with) {
    const Node *inner = def_of(rw->g, n->in[0], OP_RESHAPE);
    const Node *full = def_of(rw->g, n->in[0], OP_FULL);
    Type t = *value_type(rw->g, n->out[0]);
    if (!keeps_dtype(rw, n)) return false;
    if (inner)
        with[0] = b_reshape(&rw->b, inner->in[0], t.rank, t.dim);
    else if (full)
        with[0] =
            b_full(&rw->b, type_of(rw, n->out[0]), attr_float(full, AK_value));
    return with[0].i != 0;
}

/* gather(x, i, i + 1, ..) = slice(x): the steps of a recurrence, positions */
static bool rule_gather(Rewriter *rw, const Node *n, ValueId *with) {
    const Value *rows = value_get(rw->g, n->in[1]);
    Type t = *value_type(rw->g, n->in[0]), to = *value_type(rw->g, n->out[0]);
    int axis = axis_norm(attr_int(n, AK_axis), t.rank);
    int64_t size = t.dim[axis], starts[MAX_RANK] = {0}, steps[MAX_RANK];
    if (rows->kind != VK_CONST || !keeps_dtype(rw, n)) return false;
    int64_t count = type_count(type_get(rows->type));
    for (int64_t i = 0; i < count; i++) {
        int64_t row = tensor_get_int(rows->data, i);
        if (row < -size || row >= size) return false;
        if (row < 0) row += size;
        if (i == 0) starts[axis] = row;
        if (row != starts[axis] + i) return false;
    }
    if (count == 0) return false;
    t.dim[axis] = count;
    for (int d = 0; d < t.rank; d++) steps[d] = 1;
    Attr a[] = {attr_v(AK_starts, starts, t.rank),
                attr_v(AK_sizes, t.dim, t.rank),
                attr_v(AK_steps, steps, t.rank)};
    ValueId x = build(&rw->b, OP_SLICE, n->in, 1, a, 3, t.dtype, NULL);
    with[0] = b_reshape(&rw->b, x, to.rank, to.dim);
    return true;
}

/* transpose by 0,1,2,... = x; transpose of transpose = one transpose */
static bool rule_transpose(Rewriter *rw, const Node *n, ValueId *with) {
    const int64_t *p, *q;
    int rank = attr_ints(n, AK_perm, &p);
    bool same = true;
    for (int i = 0; i < rank; i++) same = same && p[i] == i;
    if (!keeps_dtype(rw, n)) return false;
    if (same) {
        with[0] = n->in[0];
        return true;
    }
    const Node *inner = def_of(rw->g, n->in[0], OP_TRANSPOSE);
    if (!inner || (n->flags & ~inner->flags) & NODE_AGAIN) return false;
    attr_ints(inner, AK_perm, &q);
    int64_t both[MAX_RANK];
    for (int i = 0; i < rank; i++) both[i] = q[p[i]];
    with[0] = b_transpose(&rw->b, inner->in[0], both);
    return true;
}

/* The axes of y, which a reshape makes of whole neighbours among those of t,
   reordered by p: reads[i] is the axis of t that comes at place i. */
static bool reordered(const Type *t, const Type *y, const int64_t *p,
                      int64_t *reads) {
    int first[MAX_RANK + 1] = {0}, at = 0, n = 0;
    for (int i = 0; i < y->rank; i++) {
        int64_t size = 1;
        while (at < t->rank && (size < y->dim[i] || t->dim[at] == 1))
            size *= t->dim[at++];
        if (size != y->dim[i]) return false;
        first[i + 1] = at;
    }
    for (int i = 0; i < y->rank; i++)
        for (int k = first[p[i]]; k < first[p[i] + 1]; k++) reads[n++] = k;
    return n == t->rank;
}

/* transpose(gather(reshape(transpose x))) = gather(reshape x) if the second
   transpose undoes the first: the whole x would be moved for some of its
   rows */
static bool rule_undone(Rewriter *rw, const Node *n, ValueId *with) {
    Graph *g = rw->g;
    const Node *gather = def_of(g, n->in[0], OP_GATHER);
    if (!gather || !keeps_dtype(rw, n) || !keeps_dtype(rw, gather) ||
        uses_of(rw, n->in[0]) > 1 || value_type(g, gather->in[1])->rank != 1)
        return false;
    ValueId y = gather->in[0];
    const Node *shape = def_of(g, y, OP_RESHAPE);
    const Node *move = def_of(g, shape ? shape->in[0] : y, OP_TRANSPOSE);
    const int64_t *p, *q;
    int64_t reads[MAX_RANK];
    if (!move || (n->flags & ~move->flags) & NODE_AGAIN) return false;
    attr_ints(n, AK_perm, &p);
    attr_ints(move, AK_perm, &q);
    Type t = *value_type(g, y), whole = t;
    if (!reordered(value_type(g, move->out[0]), &t, p, reads)) return false;
    for (int i = 0; i < value_type(g, move->out[0])->rank; i++)
        if (q[reads[i]] != i) return false;
    int64_t axis = axis_norm(attr_int(gather, AK_axis), t.rank), to = 0;
    for (int i = 0; i < t.rank; i++) {
        whole.dim[i] = t.dim[p[i]];
        if (p[i] == axis) to = i;
    }
    ValueId in[2] = {b_reshape(&rw->b, move->in[0], t.rank, whole.dim),
                     gather->in[1]};
    Attr a = attr_i(AK_axis, to);
    with[0] = build(&rw->b, OP_GATHER, in, 2, &a, 1, t.dtype, NULL);
    return true;
}

/* matmul(transpose x) in which lines of x become columns = matmul with a
   flag; any remaining transpose moves whole lines */
static bool rule_matmul(Rewriter *rw, const Node *n, ValueId *with) {
    ValueId in[2] = {n->in[0], n->in[1]};
    bool flag[2] = {attr_int(n, AK_trans_a), attr_int(n, AK_trans_b)};
    bool changed = false;
    for (int i = 0; i < 2; i++) {
        const Node *t = def_of(rw->g, in[i], OP_TRANSPOSE);
        const int64_t *p;
        int64_t lines[MAX_RANK];
        int r = t ? attr_ints(t, AK_perm, &p) : 0, same = 0;
        while (same < r - 2 && p[same] == same) same++;
        if (r < 2 || p[r - 2] != r - 1 || /* codes: pass eights */
            dtype_info[value_dtype(rw->g, in[i])].stored ||
            (same < r - 2 && uses_of(rw, in[i]) > 1))
            continue;
        memcpy(lines, p, (size_t)r * sizeof *p);
        lines[r - 2] = p[r - 1];
        lines[r - 1] = p[r - 2];
        in[i] = same < r - 2 ? b_transpose(&rw->b, t->in[0], lines) : t->in[0];
        flag[i] = !flag[i];
        changed = true;
    }
    if (!changed) return false;
    with[0] = b_matmul(&rw->b, in[0], in[1], flag[0], flag[1],
                       value_dtype(rw->g, n->out[0]));
    return true;
}

/* nll_loss(log_softmax x) = softmax_cross_entropy x, on the same axis: one
   kernel over the logits instead of a stored tensor of log-probabilities. */
static bool rule_nll(Rewriter *rw, const Node *n, ValueId *with) {
    Graph *g = rw->g;
    const Node *ls = call_of(g, n->in[0], "log_softmax");
    Attr from, to;
    if (!is_call(n, "nll_loss") || !ls) return false;
    call_attr(g, ls, "axis", &from);
    call_attr(g, n, "axis", &to);
    if (from.u.i != to.u.i) return false;
    ValueId in[3] = {ls->in[0], n->in[1], n->nin > 2 ? n->in[2] : NO_VALUE};
    DType d[2] = {value_dtype(g, n->out[0]), DT_DEFAULT};
    NodeId x = build_call(&rw->b, fn_std("softmax_cross_entropy"), in, n->nin,
                          n->attrs, n->nattr, 2, d);
    with[0] = node_get(g, x)->out[0];
    return true;
}

/* ---- which op tries what ------------------------------------------------- */

typedef bool SimplifyRule(Rewriter *rw, const Node *n, ValueId *with);

static const struct {
    OpCode op;
    SimplifyRule *rule;
} simplify_rules[] = {
    {OP_CAST, rule_cast},           {OP_RESHAPE, rule_same_type},
    {OP_EXPAND, rule_same_type},    {OP_SLICE, rule_same_type},
    {OP_CONCAT, rule_same_type},    {OP_PAD, rule_same_type},
    {OP_SPLIT, rule_same_type},     {OP_RESHAPE, rule_reshape},
    {OP_TRANSPOSE, rule_transpose}, {OP_TRANSPOSE, rule_undone},
    {OP_MATMUL, rule_matmul},       {OP_CALL, rule_nll},
    {OP_GATHER, rule_gather},
};

static bool simplify_node(Rewriter *rw, NodeId id, ValueId *with) {
    Node n = *node_get(rw->g, id); /* building may move the pool */
    for (int i = 0; i < n.nout; i++)
        if (value_get(rw->g, n.out[i])->held) return false;
    if (rule_fold(rw, &n, id, with)) return true;
    int patterns = (int)(sizeof simplify_patterns / sizeof *simplify_patterns);
    if (pattern_rows(rw, simplify_patterns, patterns, &n, with)) return true;
    size_t count = sizeof simplify_rules / sizeof *simplify_rules;
    for (size_t i = 0; i < count; i++, with[0] = NO_VALUE)
        if (simplify_rules[i].op == n.op &&
            simplify_rules[i].rule(rw, &n, with))
            return true;
    return rule_scalar_operand(rw, &n, with);
}

Status pass_simplify(Module *m, PassCtx *cx) {
    for (int i = 0; i < m->graphs.len; i++)
        for (int round = 0; round < 20; round++)
            if (!rewrite_graph(m->graphs.data[i], cx->scratch, simplify_node,
                               NULL))
                break;
    return OK;
}
