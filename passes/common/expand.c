/* expand.c: whole ops to primitives, in the forms that fuse and lower best.
   Before:  %y = softmax %x {axis=1} : bf16[64,10]
   After:   %y.max = reduce_max %x {axes=[1]} : bf16[64,1]
            ... sub, exp, reduce_sum ...
            %y = div %e, %s : bf16[64,10]
   Arithmetic of a composite is fp32 (fp64 for fp64 operands) whatever is
   stored; only its results round to their declared types.

   requires     stage STEP
   establishes  no COMPOSITE and no SPLIT; every REDUCE keeps its dimensions;
                element-wise ops broadcast by shape rather than through expand;
                no reshape of a reshape
   breaks       nothing; leaves dead nodes                                   */
#include "passes/common/rewrite.h"
#include "passes/passes.h"

#include <string.h>

typedef struct Expand {
    Rewriter *rw;
    DType dt; /* of the arithmetic: F32 or F64 */
} Expand;

/* ---- small builders ------------------------------------------------------ */

static ValueId number(const Expand *e, double v) {
    return graph_scalar(e->rw->g, e->dt, v);
}

static ValueId op1(Expand *e, OpCode op, ValueId x) {
    return b1(&e->rw->b, op, x, e->dt);
}

static ValueId op2(Expand *e, OpCode op, ValueId x, ValueId y) {
    return b2(&e->rw->b, op, x, y, e->dt);
}

static ValueId op2_as(Expand *e, OpCode op, ValueId x, ValueId y, DType d) {
    return b2(&e->rw->b, op, x, y, d);
}

static ValueId choose(Expand *e, ValueId c, ValueId x, ValueId y) {
    return b3(&e->rw->b, OP_WHERE, c, x, y, e->dt);
}

/* dimensions kept */
static ValueId fold(Expand *e, OpCode op, ValueId x, const int64_t *axes, int n,
                    DType dtype) {
    return b_reduce(&e->rw->b, op, x, axes, n, true, dtype);
}

static ValueId fold1(Expand *e, OpCode op, ValueId x, int64_t axis) {
    return fold(e, op, x, &axis, 1, e->dt);
}

static Type type_copy(const Expand *e, ValueId v) {
    return *value_type(e->rw->g, v);
}

static DType result_dtype(const Expand *e, const Node *n, int i) {
    return value_dtype(e->rw->g, n->out[i]);
}

/* x in the shape of result i of n; its elements are the same */
static ValueId shaped_like(Expand *e, ValueId x, const Node *n, int i) {
    Type t = type_copy(e, n->out[i]);
    x = b_cast(&e->rw->b, x, t.dtype);
    if (shape_equal(&t, value_type(e->rw->g, x))) return x;
    return b_reshape(&e->rw->b, x, t.rank, t.dim);
}

/* a vector over axis `axis` of a tensor of rank `rank` */
static ValueId along_axis(Expand *e, ValueId x, int rank, int axis) {
    int64_t dim[MAX_RANK];
    for (int i = 0; i < rank; i++) dim[i] = 1;
    dim[axis] = type_count(value_type(e->rw->g, x));
    return b_reshape(&e->rw->b, x, rank, dim);
}

static int node_axis(const Expand *e, const Node *n, int64_t dflt) {
    int rank = value_type(e->rw->g, n->in[0])->rank;
    return axis_norm(attr_int(n, AK_axis, dflt), rank);
}

/* ---- softmax ------------------------------------------------------------- */

/* d = x - max x, s = sum exp d over the axis */
typedef struct SoftmaxParts {
    ValueId max, d, exp, sum;
} SoftmaxParts;

static SoftmaxParts softmax_parts(Expand *e, ValueId x, int axis) {
    SoftmaxParts p;
    int64_t a = axis;
    DType xd = value_dtype(e->rw->g, x);
    p.max = fold(e, OP_REDUCE_MAX, x, &a, 1, xd);
    p.d = op2(e, OP_SUB, x, p.max);
    p.exp = op1(e, OP_EXP, p.d);
    p.sum = fold1(e, OP_REDUCE_SUM, p.exp, axis);
    return p;
}

/* exp(x - max) / sum */
static void expand_softmax(Expand *e, const Node *n, ValueId *out) {
    SoftmaxParts p = softmax_parts(e, n->in[0], node_axis(e, n, -1));
    out[0] = op2_as(e, OP_DIV, p.exp, p.sum, result_dtype(e, n, 0));
}

/* (x - max) - log sum */
static void expand_log_softmax(Expand *e, const Node *n, ValueId *out) {
    SoftmaxParts p = softmax_parts(e, n->in[0], node_axis(e, n, -1));
    ValueId ls = op1(e, OP_LOG, p.sum);
    out[0] = op2_as(e, OP_SUB, p.d, ls, result_dtype(e, n, 0));
}

/* ---- norms --------------------------------------------------------------- */

/* Mean and 1/sqrt(var + eps) over axes, in two passes: the variance of
   x - mean loses nothing to cancellation. */
typedef struct Moments {
    ValueId mean, centred, var, rstd;
} Moments;

static ValueId inverse_std(Expand *e, ValueId var, double eps) {
    return op1(e, OP_RSQRT, op2(e, OP_ADD, var, number(e, eps)));
}

static Moments moments(Expand *e, ValueId x, const int64_t *axes, int n,
                       double eps) {
    Moments m;
    m.mean = fold(e, OP_REDUCE_MEAN, x, axes, n, e->dt);
    m.centred = op2(e, OP_SUB, x, m.mean);
    ValueId sq = op2(e, OP_MUL, m.centred, m.centred);
    m.var = fold(e, OP_REDUCE_MEAN, sq, axes, n, e->dt);
    m.rstd = inverse_std(e, m.var, eps);
    return m;
}

/* centred * rstd * scale [+ bias] */
static ValueId scale_shift(Expand *e, ValueId centred, ValueId rstd,
                           ValueId scale, ValueId bias, DType dt) {
    ValueId hat = op2(e, OP_MUL, centred, rstd);
    if (!is_value(bias)) return op2_as(e, OP_MUL, hat, scale, dt);
    return op2_as(e, OP_ADD, op2(e, OP_MUL, hat, scale), bias, dt);
}

static void expand_layer_norm(Expand *e, const Node *n, ValueId *out) {
    int rank = value_type(e->rw->g, n->in[0])->rank;
    int axis = node_axis(e, n, -1);
    int64_t axes[MAX_RANK];
    int na = 0;
    for (int i = axis; i < rank; i++) axes[na++] = i;
    double eps = attr_float(n, AK_epsilon, 1e-5);
    Moments m = moments(e, n->in[0], axes, na, eps);
    ValueId bias = n->nin > 2 ? n->in[2] : NO_VALUE;
    out[0] = scale_shift(e, m.centred, m.rstd, n->in[1], bias,
                         result_dtype(e, n, 0));
    out[1] = shaped_like(e, m.mean, n, 1);
    out[2] = shaped_like(e, m.rstd, n, 2);
}

static void expand_batch_norm(Expand *e, const Node *n, ValueId *out) {
    ValueId x = n->in[0];
    int rank = value_type(e->rw->g, x)->rank;
    double eps = attr_float(n, AK_epsilon, 1e-5);
    ValueId scale = along_axis(e, n->in[1], rank, 1);
    ValueId bias = along_axis(e, n->in[2], rank, 1);
    Moments m = {{0}, {0}, {0}, {0}};
    if (attr_int(n, AK_training, 0)) {
        int64_t axes[MAX_RANK];
        int na = 0;
        for (int i = 0; i < rank; i++)
            if (i != 1) axes[na++] = i;
        m = moments(e, x, axes, na, eps);
        if (n->nout > 1) out[1] = shaped_like(e, m.mean, n, 1);
        if (n->nout > 2) out[2] = shaped_like(e, m.var, n, 2);
    } else {
        m.centred = op2(e, OP_SUB, x, along_axis(e, n->in[3], rank, 1));
        m.rstd = inverse_std(e, along_axis(e, n->in[4], rank, 1), eps);
    }
    out[0] =
        scale_shift(e, m.centred, m.rstd, scale, bias, result_dtype(e, n, 0));
}

/* ---- losses over classes ------------------------------------------------- */

/* What both losses know of the targets, in the kept shape: class axis 1. */
typedef struct Targets {
    int axis;
    int64_t classes;
    Type kept;
    ValueId selected; /* full shape: class == target                        */
    ValueId ignored;  /* 0: none can be                                     */
    ValueId weights;  /* per class, along the axis; 0: all 1                */
    ValueId weight;   /* of each target; 0: 1                               */
} Targets;

/* Whether an integer of type d can hold v. */
static bool holds(DType d, int64_t v) {
    if (dtype_info[d].kind == DK_U && v < 0) return false;
    int bits = dtype_info[d].bytes * 8 - (dtype_info[d].kind == DK_I);
    int64_t end = bits >= 63 ? 0 : INT64_C(1) << bits;
    return bits >= 63 || (v < end && v >= -end);
}

static Targets read_targets(Expand *e, const Node *n) {
    Graph *g = e->rw->g;
    Builder *b = &e->rw->b;
    Type full = type_copy(e, n->in[0]);
    Targets t = {.axis = node_axis(e, n, 1), .kept = full};
    t.classes = full.dim[t.axis];
    t.kept.dim[t.axis] = 1;
    ValueId target = b_reshape(b, n->in[1], full.rank, t.kept.dim);
    DType td = value_dtype(g, target);
    const Attr *ignore = attr_find(n, AK_ignore_index);
    if (ignore && holds(td, ignore->u.i))
        t.ignored = b2(b, OP_EQUAL, target,
                       graph_scalar_int(g, td, ignore->u.i), DT_DEFAULT);
    if (td != DT_I64 && td != DT_I32) target = b_cast(b, target, DT_I32);
    td = value_dtype(g, target);
    Attr axis = attr_i(AK_axis, t.axis);
    ValueId classes = build_gen(b, OP_IOTA, NULL, 0, &axis, 1,
                                type_make(td, full.rank, full.dim), NULL);
    t.selected = b2(b, OP_EQUAL, classes, target, DT_DEFAULT);
    if (n->nin > 2 && is_value(n->in[2])) {
        t.weights = along_axis(e, n->in[2], full.rank, t.axis);
        t.weight =
            fold1(e, OP_REDUCE_SUM,
                  choose(e, t.selected, t.weights, number(e, 0)), t.axis);
    }
    return t;
}

/* element of x (full shape) at the target's class */
static ValueId at_target(Expand *e, const Targets *t, ValueId x) {
    return fold1(e, OP_REDUCE_SUM, choose(e, t->selected, x, number(e, 0)),
                 t->axis);
}

static ValueId unless_ignored(Expand *e, const Targets *t, ValueId x) {
    if (!is_value(t->ignored)) return x;
    return choose(e, t->ignored, number(e, 0), x);
}

static ValueId sum_all(Expand *e, ValueId x) {
    int64_t axes[MAX_RANK];
    int rank = value_type(e->rw->g, x)->rank;
    for (int i = 0; i < rank; i++) axes[i] = i;
    return fold(e, OP_REDUCE_SUM, x, axes, rank, e->dt);
}

/* sum of the weights of the targets that count */
static ValueId weight_sum(Expand *e, const Targets *t) {
    if (!is_value(t->weight) && !is_value(t->ignored))
        return number(e, (double)type_count(&t->kept));
    ValueId w = is_value(t->weight) ? t->weight : number(e, 1);
    return sum_all(e, unless_ignored(e, t, w));
}

/* per target (weighted already) to the declared result */
static ValueId reduce_loss(Expand *e, const Node *n, const Targets *t,
                           ValueId loss) {
    loss = unless_ignored(e, t, loss);
    Str how = attr_str(n, AK_reduction, "mean");
    if (how == intern("none")) return shaped_like(e, loss, n, 0);
    ValueId sum = sum_all(e, loss);
    if (how == intern("mean")) sum = op2(e, OP_DIV, sum, weight_sum(e, t));
    return shaped_like(e, sum, n, 0);
}

static ValueId weighted(Expand *e, ValueId x, ValueId w) {
    return is_value(w) ? op2(e, OP_MUL, x, w) : x;
}

/* (1-s) w_t (-log p_t) + s/K sum_k w_k (-log p_k), -log p = log sum - d */
static ValueId smoothed(Expand *e, const Targets *t, ValueId nll, ValueId ls,
                        ValueId d, double s) {
    if (s == 0) return nll;
    ValueId each = weighted(e, op2(e, OP_SUB, ls, d), t->weights);
    ValueId all = fold1(e, OP_REDUCE_SUM, each, t->axis);
    ValueId share = number(e, s / (double)t->classes);
    return op2(e, OP_ADD, op2(e, OP_MUL, nll, number(e, 1 - s)),
               op2(e, OP_MUL, all, share));
}

static void expand_xent(Expand *e, const Node *n, ValueId *out) {
    Targets t = read_targets(e, n);
    SoftmaxParts p = softmax_parts(e, n->in[0], t.axis);
    ValueId ls = op1(e, OP_LOG, p.sum);
    ValueId nll = op2(e, OP_SUB, ls, at_target(e, &t, p.d));
    nll = weighted(e, nll, t.weight);
    double s = attr_float(n, AK_label_smoothing, 0);
    out[0] = reduce_loss(e, n, &t, smoothed(e, &t, nll, ls, p.d, s));
    out[1] = shaped_like(e, op2(e, OP_ADD, ls, p.max), n, 1);
}

static void expand_nll(Expand *e, const Node *n, ValueId *out) {
    Targets t = read_targets(e, n);
    ValueId nll = op1(e, OP_NEG, at_target(e, &t, n->in[0]));
    out[0] = reduce_loss(e, n, &t, weighted(e, nll, t.weight));
}

/* ---- dropout ------------------------------------------------------------- */

static void expand_dropout(Expand *e, const Node *n, ValueId *out) {
    Builder *b = &e->rw->b;
    Type t = type_copy(e, n->in[0]);
    double ratio = attr_float(n, AK_ratio, 0.5);
    Attr salt = attr_i(AK_salt, attr_int(n, AK_salt, 0));
    TypeId ut = type_make(DT_F32, t.rank, t.dim);
    ValueId u = build_gen(b, OP_RAND_UNIFORM, &n->in[1], 1, &salt, 1, ut, NULL);
    ValueId keep = b2(b, OP_GREATER_EQUAL, u, graph_scalar(b->g, DT_F32, ratio),
                      DT_DEFAULT);
    ValueId scale = number(e, ratio < 1 ? 1 / (1 - ratio) : 0);
    out[0] = op2_as(e, OP_MUL, n->in[0], choose(e, keep, scale, number(e, 0)),
                    result_dtype(e, n, 0));
}

/* ---- primitives in other forms ------------------------------------------- */

static void expand_any_reduce(Expand *e, const Node *n, ValueId *out) {
    const int64_t *axes;
    int na = attr_ints(n, AK_axes, &axes);
    ValueId r = fold(e, n->op, n->in[0], axes, na, result_dtype(e, n, 0));
    out[0] = shaped_like(e, r, n, 0);
}

/* slices: one result each, so that each can move into its users */
static void expand_split(Expand *e, const Node *n, ValueId *out) {
    Graph *g = e->rw->g;
    Type t = type_copy(e, n->in[0]);
    int axis = node_axis(e, n, 0);
    int64_t starts[MAX_RANK] = {0}, steps[MAX_RANK];
    for (int i = 0; i < t.rank; i++) steps[i] = 1;
    for (int i = 0; i < n->nout; i++) {
        Type r = *value_type(g, n->out[i]);
        Attr a[] = {attr_v(AK_starts, starts, t.rank),
                    attr_v(AK_sizes, r.dim, t.rank),
                    attr_v(AK_steps, steps, t.rank)};
        out[i] = build(&e->rw->b, OP_SLICE, n->in, 1, a, 3, r.dtype, NULL);
        starts[axis] += r.dim[axis];
    }
}

/* The axis of `from` that `to` splits in two; -1: it does something else. */
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

/* reshape(slice(x)) = slice(reshape(x)) where the reshape only splits an axis
   at whole multiples: heads cut out of one projection then move together with
   the transpose that follows. */
static bool reshape_of_slice(Expand *e, const Node *n, ValueId *out) {
    Graph *g = e->rw->g;
    const Node *sl = def_of(g, n->in[0], OP_SLICE);
    if (!sl) return false;
    const int64_t *starts, *steps;
    int rank = attr_ints(sl, AK_starts, &starts);
    attr_ints(sl, AK_steps, &steps);
    Type whole = type_copy(e, sl->in[0]), to = type_copy(e, n->out[0]);
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
    ValueId x = b_reshape(&e->rw->b, sl->in[0], rank + 1, dim);
    Attr attrs[] = {attr_v(AK_sizes, to.dim, rank + 1),
                    attr_v(AK_starts, at, rank + 1),
                    attr_v(AK_steps, one, rank + 1)};
    out[0] = build(&e->rw->b, OP_SLICE, &x, 1, attrs, 3, to.dtype, NULL);
    return true;
}

/* reshape(reshape(x)) = reshape(x); reshape to x's own shape = x */
static bool expand_reshape(Expand *e, const Node *n, ValueId *out) {
    Graph *g = e->rw->g;
    ValueId x = n->in[0];
    if (reshape_of_slice(e, n, out)) return true;
    const Node *inner = def_of(g, x, OP_RESHAPE);
    if (inner) x = inner->in[0];
    Type t = type_copy(e, n->out[0]);
    if (!shape_equal(&t, value_type(g, x))) {
        if (!inner) return false;
        x = b_reshape(&e->rw->b, x, t.rank, t.dim);
    }
    out[0] = x;
    return true;
}

/* A smaller value that broadcasts to the same elements as operand v: what an
   expand reads, or a reduction's result with its leading ones still there. */
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

static bool broadcasts_to(const Graph *g, const ValueId *in, int n,
                          const Type *want) {
    Type t = *value_type(g, in[0]);
    for (int i = 1; i < n; i++) {
        Type u = t;
        if (!shape_broadcast(&t, value_type(g, in[i]), &u)) return false;
        t = u;
    }
    return shape_equal(&t, want);
}

/* f(reshape(x), scalars) = reshape(f(x, scalars)): views sink below the work,
   so that it can join the group that makes x. */
static bool sink_reshape(Expand *e, const Node *n, ValueId *out) {
    Graph *g = e->rw->g;
    ValueId in[3];
    int at = -1;
    if (n->flags & NODE_UPDATE) return false; /* stays with the update */
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
        build(&e->rw->b, n->op, in, n->nin, n->attrs, n->nattr, t.dtype, NULL);
    out[0] = b_reshape(&e->rw->b, v, t.rank, t.dim);
    return true;
}

static bool expand_elem(Expand *e, const Node *n, ValueId *out) {
    Graph *g = e->rw->g;
    if (n->nin > 3) return false;
    if (sink_reshape(e, n, out)) return true;
    const Type *want = value_type(g, n->out[0]);
    ValueId in[3];
    bool changed = false;
    memcpy(in, n->in, (size_t)n->nin * sizeof *in);
    for (int i = 0; i < n->nin; i++) {
        ValueId old = in[i];
        in[i] = broadcast_source(g, old, want->rank);
        if (same_value(in[i], old)) continue;
        if (broadcasts_to(g, in, n->nin, want))
            changed = true;
        else
            in[i] = old;
    }
    if (!changed) return false;
    out[0] = build(&e->rw->b, n->op, in, n->nin, n->attrs, n->nattr,
                   value_dtype(g, n->out[0]), NULL);
    return true;
}

/* ---- the walk ------------------------------------------------------------ */

static bool expand_node(Expand *e, const Node *n, ValueId *out) {
    switch (n->op) {
    case OP_SOFTMAX: expand_softmax(e, n, out); return true;
    case OP_LOG_SOFTMAX: expand_log_softmax(e, n, out); return true;
    case OP_LAYER_NORM: expand_layer_norm(e, n, out); return true;
    case OP_BATCH_NORM: expand_batch_norm(e, n, out); return true;
    case OP_SOFTMAX_CROSS_ENTROPY: expand_xent(e, n, out); return true;
    case OP_NLL_LOSS: expand_nll(e, n, out); return true;
    case OP_DROPOUT: expand_dropout(e, n, out); return true;
    case OP_SPLIT: expand_split(e, n, out); return true;
    case OP_RESHAPE: return expand_reshape(e, n, out);
    default: break;
    }
    if (op_info[n->op].kind == KIND_ELEM) return expand_elem(e, n, out);
    if (op_info[n->op].kind != KIND_REDUCE) return false;
    expand_any_reduce(e, n, out);
    return true;
}

static DType arithmetic_dtype(const Graph *g, const Node *n) {
    return n->nin && value_dtype(g, n->in[0]) == DT_F64 ? DT_F64 : DT_F32;
}

static bool expand_rule(Rewriter *rw, NodeId id, ValueId *with) {
    Graph *g = rw->g;
    Node n = *node_get(g, id); /* building moves the pool */
    Expand e = {.rw = rw, .dt = arithmetic_dtype(g, &n)};
    int made = g->order.len;
    if (!expand_node(&e, &n, with)) return false;
    for (int i = 0; i < n.nout; i++)
        if (is_value(with[i]) && g->order.len > made)
            rewrite_take_name(g, n.out[i], with[i]);
    return true;
}

Status pass_expand(Module *m, PassCtx *cx) {
    for (int i = 0; i < m->graphs.len; i++)
        rewrite_graph(m->graphs.data[i], cx->scratch, expand_rule, NULL);
    return OK;
}
