/* SPDX-License-Identifier: Apache-2.0 */
/* reduce.c: splits reductions into stages that keep the target busy.
   Before:  %b = reduce_sum %x {axes=[0,1]} : f32[1,1]        %x: f32[70,300]
   After:   %p = reduce_sum %x {axes=[1]} : f32[70,1]
            %b = reduce_sum %p {axes=[0]} : f32[1,1]
   A kernel works on rows in parallel, so a reduction to few rows of many
   columns (a bias gradient, a batch norm, a loss) would occupy a fraction of
   the machine.  The split depends only on shapes, on the target's numbers and
   on whether the operand is computed element by element, so the bits depend on
   nothing else. Outer reduced axes become rows of a first stage; one remaining
   long axis is cut into chunks. The last stage folds the results of the first.
   If launches are shared, all stored tensors that are reduced to one number are
   cut into the same number of rows. A sum over rows that other reductions fold
   stays whole if the kernel of those rows can add them up, too (fuse_fit.c); if
   it reads their columns as other axes, it reads the rows themselves. If a row
   is too long to be held by the worker that folds it and reads it again (a
   channel of a batch norm), its outer axes become rows, too.

   A variance whose mean comes in stages is computed in the same stages: each
   part around its own mean, which one kernel knows while it holds the part, and
   then the part's mean around the mean of all (Chan, Golub and LeVeque, 1979).

   With --shard-optimizer each rank has a part of a large gradient, in whole
   rows, and zeros elsewhere. The row sums are added over all ranks, so that the
   later stages add the same numbers as without the option.

   requires     stage STEP after expand
   establishes  every REDUCE folds only axes longer than 1
   breaks       nothing; leaves dead nodes                                   */
#include "passes/rewrite.h"
#include "passes/passes.h"
#include "passes/device/target.h"

typedef struct Stages {
    Builder *b;
    const TargetInfo *target;
    DType partial; /* storage dtype of floating partial results */
    bool in_parts; /* the operand is a gradient that is spread over ranks */
} Stages;

/* Lists the axes longer than 1; folding the other axes changes nothing. */
static int long_axes(const Type *t, const int64_t *axes, int n, int64_t *out) {
    int kept = 0;
    for (int i = 0; i < n; i++)
        if (t->dim[axes[i]] != 1) out[kept++] = axes[i];
    return kept;
}

/* How the target computes a reduction over long axes. */
typedef struct Work {
    int64_t rows, columns; /* of t */
    int64_t shares, each;  /* shares of work: their number, and the elements
                              of each */
    int64_t most; /* columns that a worker can hold between two sweeps over its
                     row */
} Work;

/* bytes: what a worker holds for each column; 0: it reads its row once. */
static Work work_of(const Stages *e, const Type *t, const int64_t *axes, int n,
                    int bytes) {
    Work w = {.columns = 1, .most = INT64_MAX};
    int last = t->rank - 1;
    for (int i = 0; i < n; i++) w.columns *= t->dim[axes[i]];
    w.rows = w.columns ? type_count(t) / w.columns : 0;
    while (last > axes[n - 1] && t->dim[last] == 1) last--;
    bool adjacent = last == axes[n - 1];
    int64_t beside = adjacent ? 1 : e->target->rows_beside;
    if (bytes && adjacent && n > 1 && e->target->row_held)
        w.most = e->target->row_held / bytes;
    w.shares = (w.rows + beside - 1) / beside;
    w.each = w.columns * (w.rows < beside ? w.rows : beside);
    return w;
}

static bool in_one_stage(const Stages *e, Work w) {
    return w.each <= e->target->columns_serial ||
           (w.shares >= e->target->rows_enough && w.columns <= w.most);
}

/* Bytes of an element in each of the tensors of shape t from which nodes of
   that part of the step compute v, but of two tensors at most: a kernel that
   reads more holds none. */
static int held_bytes(const Graph *g, ValueId v, const Type *t, uint32_t part) {
    enum { MOST = 2, DEEP = 16 };
    ValueId open[DEEP] = {v}, leaf[MOST] = {NO_VALUE};
    int nopen = 1, nleaf = 0, bytes = 0;
    for (int steps = 0; nopen > 0 && nleaf < MOST && steps < DEEP; steps++) {
        ValueId x = open[--nopen];
        const Value *value = value_get(g, x);
        const Node *n =
            value->kind == VK_RESULT ? node_get(g, value->def) : NULL;
        if (!shape_equal(value_type(g, x), t)) continue;
        if (n && node_kind(n) == KIND_ELEM && (n->flags & part) == part &&
            nopen + n->nin <= DEEP) {
            for (int k = 0; k < n->nin; k++)
                if (is_value(n->in[k])) open[nopen++] = n->in[k];
        } else if (nleaf == 0 || !same_value(x, leaf[0])) {
            leaf[nleaf++] = x;
            bytes += dtype_info[value_dtype(g, x)].bytes;
        }
    }
    return bytes;
}

/* The op that combines partial results. */
static OpCode combining(OpCode op) {
    return op == OP_REDUCE_SUMSQ || op == OP_REDUCE_MEAN ? OP_REDUCE_SUM : op;
}

/* The smallest divisor of n that is at least `want`; 0: none is close. */
static int64_t divisor_from(int64_t n, int64_t want) {
    for (int64_t d = want; d <= n / 2 && d < want + 65536; d++)
        if (n % d == 0) return d;
    return 0;
}

static DType partial_dtype(const Stages *e, DType result) {
    if (result == DT_F64) return DT_F64; /* f64 was chosen for its range */
    return dtype_is_float(result) ? e->partial : result;
}

/* ---- sums over rows that others fold ------------------------------------- */

/* Values of one shape linked by element-wise nodes form a class; each class
   has the reductions that read it. */
typedef struct Classes {
    int nvalue;
    uint32_t *of;    /* per value: another value of its class, nearer to the
                        root */
    NodeId *first;   /* per root: a reduction of the class */
    NodeId *next;    /* per node: the next reduction of the class */
    const bool *has; /* see with_state */
    const TargetInfo *target;
} Classes;

static uint32_t class_of(const Classes *c, ValueId v) {
    uint32_t i = v.i;
    while (c->of[i] != i) i = c->of[i] = c->of[c->of[i]];
    return i;
}

static void classify(const Graph *g, Arena *a, Classes *c) {
    c->nvalue = g->values.len;
    c->of = NEW_ARRAY(a, uint32_t, g->values.len);
    c->first = NEW_ARRAY(a, NodeId, g->values.len);
    c->next = NEW_ARRAY(a, NodeId, g->nodes.len);
    for (int v = 0; v < g->values.len; v++) c->of[v] = (uint32_t)v;
    for (int i = 0; i < g->order.len; i++) {
        const Node *n = node_at(g, i);
        if (node_kind(n) != KIND_ELEM) continue;
        const Type *t = value_type(g, n->out[0]);
        for (int k = 0; k < n->nin; k++)
            if (is_value(n->in[k]) && shape_equal(value_type(g, n->in[k]), t))
                c->of[class_of(c, n->in[k])] = class_of(c, n->out[0]);
    }
    for (int i = 0; i < g->order.len; i++) {
        NodeId id = g->order.data[i];
        const Node *n = node_get(g, id);
        if (node_kind(n) != KIND_REDUCE) continue;
        NodeId *first = &c->first[class_of(c, n->in[0])];
        c->next[id.i] = *first;
        *first = id;
    }
}

/* True if the target can sum these rows in a kernel that folds them in the
   same part of the step. */
static bool beside_rows(const Stages *e, const Classes *c, const Node *n) {
    enum { PART = NODE_BACKWARD | NODE_UPDATE };
    const Graph *g = e->b->g;
    if (4 * value_count(g, n->out[0]) > e->target->column_sums ||
        (int)n->in[0].i >= c->nvalue)
        return false;
    for (NodeId r = c->first[class_of(c, n->in[0])]; r.i; r = c->next[r.i]) {
        const Node *row = node_get(g, r);
        if ((row->flags & PART) == (n->flags & PART) &&
            node_sums_columns(g, row, n))
            return true;
    }
    return false;
}

/* What n, a sum over rows, may read so that a kernel that folds the rows adds
   them up, too: its operand, or the tensor whose columns that views as other
   axes (heads). NO_VALUE: no kernel does. */
static ValueId rows_of_others(const Stages *e, const Classes *c,
                              const Node *n) {
    const Graph *g = e->b->g;
    const Node *view = def_of(g, n->in[0], OP_RESHAPE);
    const int64_t *axes;
    if (beside_rows(e, c, n)) return n->in[0];
    if (!view) return NO_VALUE;
    ValueId v = view->in[0];
    const Type *t = value_type(g, v), *own = value_type(g, n->in[0]);
    int na = attr_ints(n, AK_axes, &axes);
    for (int i = 0; i < na; i++)
        if (axes[i] != i || i >= t->rank || t->dim[i] != own->dim[i])
            return NO_VALUE;
    Node same = *n;
    same.in = &v;
    return beside_rows(e, c, &same) ? v : NO_VALUE;
}

/* ---- stages -------------------------------------------------------------- */

/* The first stage of a sum over x. */
static ValueId of_ranks(const Stages *e, ValueId x, ValueId part) {
    const Graph *g = e->b->g;
    if (!e->in_parts) return part;
    int64_t n = value_count(g, x);
    int64_t row = n / value_count(g, part);
    return rank_parts(n, row) ? b1(e->b, OP_RANK_SUM, part, DT_DEFAULT) : part;
}

/* Reshapes x. A gradient is scaled after the reshape, in the kernel that
   folds it: its update scales it again by itself, which reads no more. */
static ValueId reshaped(const Stages *e, ValueId x, int rank,
                        const int64_t *dim) {
    const Graph *g = e->b->g;
    const Node *scaled = def_of(g, x, OP_MUL);
    if (!scaled || !(scaled->flags & NODE_UPDATE) ||
        value_type(g, scaled->in[1])->rank != 0)
        return b_reshape(e->b, x, rank, dim);
    ValueId by = scaled->in[1];
    DType d = value_dtype(g, x);
    return b2(e->b, OP_MUL, b_reshape(e->b, scaled->in[0], rank, dim), by, d);
}

static ValueId in_best_stages(Stages *e, OpCode op, ValueId x,
                              const int64_t *all, int nall, DType dtype,
                              int bytes);

/* Outer axes become rows of a first stage until there are enough rows; the
   last axis remains to be folded. If it is the only one, it is cut: x[.., c,
   n/c, ..] is folded over n/c, then over c. */
static ValueId in_stages(Stages *e, OpCode op, ValueId x, const int64_t *axes,
                         int n, Work w, DType dtype) {
    Builder *b = e->b;
    Type t = *value_type(e->b->g, x);
    int k = 0;
    for (int64_t r = w.shares, left = w.columns;
         k < n && (r < e->target->rows_enough || left > w.most); k++) {
        r *= t.dim[axes[k]];
        left /= t.dim[axes[k]];
    }
    if (k == n) k = n - 1;
    if (k > 0) {
        ValueId part =
            b_reduce(b, op, x, axes + k, n - k, true, partial_dtype(e, dtype));
        if (op == OP_REDUCE_SUMSQ) part = of_ranks(e, x, part);
        return in_best_stages(e, combining(op), part, axes, k, dtype, 0);
    }
    int64_t len = t.dim[axes[0]];
    int64_t want = (e->target->rows_enough + w.shares - 1) / w.shares;
    if (want > w.each / e->target->least_share)
        want = w.each / e->target->least_share;
    if (want < len / e->target->columns_serial)
        want = len / e->target->columns_serial;
    int64_t chunks = t.rank < MAX_RANK ? divisor_from(len, want) : 0;
    if (!chunks) return b_reduce(b, op, x, axes, n, true, dtype);
    int64_t dim[MAX_RANK + 1], axis = axes[0], inner = axis + 1;
    for (int i = 0; i < t.rank; i++) dim[i + (i > axis)] = t.dim[i];
    t.dim[axis] = dim[axis] = chunks;
    dim[inner] = len / chunks;
    ValueId cut = reshaped(e, x, t.rank + 1, dim);
    cut = b_reduce(b, op, cut, &inner, 1, true, partial_dtype(e, dtype));
    if (op == OP_REDUCE_SUMSQ) cut = of_ranks(e, x, cut);
    cut = b_reshape(b, cut, t.rank, t.dim);
    return in_best_stages(e, combining(op), cut, &axis, 1, dtype, 0);
}

static ValueId in_best_stages(Stages *e, OpCode op, ValueId x,
                              const int64_t *all, int nall, DType dtype,
                              int bytes) {
    Builder *b = e->b;
    Type t = *value_type(e->b->g, x);
    int64_t axes[MAX_RANK];
    int n = long_axes(&t, all, nall, axes);
    if (n == 0)
        return op == OP_REDUCE_SUMSQ ? b2(b, OP_MUL, x, x, dtype)
                                     : b_cast(b, x, dtype);
    Work w = work_of(e, &t, axes, n, bytes);
    if (in_one_stage(e, w)) return b_reduce(b, op, x, axes, n, true, dtype);
    if (op != OP_REDUCE_MEAN) return in_stages(e, op, x, axes, n, w, dtype);
    ValueId sum =
        in_stages(e, OP_REDUCE_SUM, x, axes, n, w, partial_dtype(e, dtype));
    ValueId count =
        graph_scalar(e->b->g, value_dtype(e->b->g, sum), (double)w.columns);
    return b2(b, OP_DIV, sum, count, dtype);
}

/* Reduces x to one number, if launches are shared: only its size decides how
   it is cut into rows, so that sums of equal size share a kernel whatever
   their shapes. A gradient is scaled in the kernel that folds it; other
   operands computed element by element in that part of the step are folded
   in the kernel that computes them. */
static bool in_equal_stages(Stages *e, const Node *n, ValueId *with) {
    Graph *g = e->b->g;
    Type to = *value_type(g, n->out[0]);
    ValueId x = n->in[0], by = NO_VALUE;
    const Node *scaled = def_of(g, view_root(g, x), OP_MUL);
    int64_t count = value_count(g, x), rows = 1;
    if (scaled && value_type(g, scaled->in[1])->rank == 0 &&
        value_count(g, scaled->in[0]) == count &&
        scaled->flags & n->flags & NODE_UPDATE) {
        x = scaled->in[0];
        by = scaled->in[1];
    }
    const Value *root = value_get(g, view_root(g, x));
    const Node *def = root->kind == VK_RESULT ? node_get(g, root->def) : NULL;
    while (2 * rows <= e->target->rows_enough && count % (2 * rows) == 0 &&
           count / (2 * rows) >= e->target->least_share)
        rows *= 2;
    if (!e->target->shares_launches || e->in_parts || type_count(&to) != 1 ||
        n->op == OP_REDUCE_MEAN || rows == 1 ||
        (2 * rows <= e->target->rows_enough &&
         count / rows > e->target->columns_serial) ||
        (def && node_kind(def) == KIND_ELEM &&
         (def->flags & NODE_UPDATE) == (n->flags & NODE_UPDATE)))
        return false;
    const int64_t dim[] = {rows, count / rows}, axes[] = {0, 1};
    ValueId part = b_reshape(e->b, x, 2, dim);
    if (by.i) part = b2(e->b, OP_MUL, part, by, value_dtype(g, n->in[0]));
    part = b_reduce(e->b, n->op, part, axes + 1, 1, true,
                    partial_dtype(e, to.dtype));
    part = in_best_stages(e, combining(n->op), part, axes, 1, to.dtype, 0);
    with[0] = b_reshape(e->b, part, to.rank, to.dim);
    return true;
}

/* The node that computes v = sum(x) / number in stages, of which the first is
 *part. */
static bool mean_in_stages(const Graph *g, ValueId v, ValueId x, Node *outer,
                           Node *part) {
    const Node *div = def_of(g, v, OP_DIV);
    const Node *sum = div ? def_of(g, div->in[0], OP_REDUCE_SUM) : NULL;
    const Node *first = sum ? def_of(g, sum->in[0], OP_REDUCE_SUM) : NULL;
    if (!first || !same_value(first->in[0], x) ||
        value_dtype(g, first->out[0]) != DT_F32)
        return false;
    *outer = *sum;
    *part = *first;
    return true;
}

/* The variance of x around a mean in stages:
     sum over parts of (sum of (x - own)^2 + number * (own - mean)^2) / all
   own: the mean of a part of `number` elements. */
static bool variance_in_stages(Stages *e, const Node *n, ValueId *with) {
    Builder *b = e->b;
    Graph *g = b->g;
    const Node *mul = def_of(g, n->in[0], OP_MUL);
    const Node *sub = mul ? def_of(g, mul->in[0], OP_SUB) : NULL;
    Node outer, part;
    const int64_t *axes;
    if (!e->target->row_held || n->op != OP_REDUCE_MEAN || !sub ||
        !same_value(mul->in[0], mul->in[1]) ||
        value_dtype(g, mul->out[0]) != DT_F32 ||
        value_dtype(g, sub->out[0]) != DT_F32)
        return false;
    ValueId x = sub->in[0], mean = sub->in[1];
    if (!mean_in_stages(g, mean, x, &outer, &part) ||
        !shape_equal(value_type(g, mean), value_type(g, n->out[0])))
        return false;
    double all = (double)value_count(g, x) / (double)value_count(g, mean);
    ValueId number = graph_scalar(g, DT_F32,
                                  (double)value_count(g, x) /
                                      (double)value_count(g, part.out[0]));
    ValueId own = b2(b, OP_DIV, part.out[0], number, DT_F32);
    ValueId off = b2(b, OP_SUB, x, own, DT_F32);
    int na = attr_ints(&part, AK_axes, &axes);
    ValueId within = b_reduce(b, OP_REDUCE_SUM, b2(b, OP_MUL, off, off, DT_F32),
                              axes, na, true, DT_F32);
    ValueId apart = b2(b, OP_SUB, own, mean, DT_F32);
    apart = b2(b, OP_MUL, b2(b, OP_MUL, apart, apart, DT_F32), number, DT_F32);
    na = attr_ints(&outer, AK_axes, &axes);
    ValueId sum =
        in_best_stages(e, OP_REDUCE_SUM, b2(b, OP_ADD, within, apart, DT_F32),
                       axes, na, DT_F32, 0);
    with[0] = b2(b, OP_DIV, sum, graph_scalar(g, DT_F32, all),
                 value_dtype(g, n->out[0]));
    rewrite_take_name(g, n->out[0], with[0]);
    return true;
}

/* Per variable: true for parameters whose update writes optimizer state,
   which ranks then share (split_of in codegen/module/emit_plan.c). */
static bool *with_state(const Graph *g, Arena *a) {
    bool *has = NEW_ARRAY(a, bool, g->module->vars.len);
    int parameter;
    for (int i = 0; i < g->writes.len; i++) {
        Str name = value_var(g, g->writes.data[i].var)->name;
        if (family_of(g->module, name, &parameter) == FAMILY_OPT &&
            parameter >= 0 && !is_average(name))
            has[parameter] = true;
    }
    return has;
}

/* True if x is the scaled gradient of one of them. */
static bool is_shared(const Graph *g, ValueId x, const bool *has) {
    int parameter, v = var_scaled(g, x);
    const Var *vars = g->module->vars.data;
    if (v < 0 || vars[v].kind != VAR_GRAD) return false;
    family_of(g->module, vars[v].name, &parameter);
    return parameter >= 0 && has[parameter];
}

static bool reduce_rule(Rewriter *rw, NodeId id, ValueId *with) {
    Graph *g = rw->g;
    Node n = *node_get(g, id); /* building may move the pool */
    const Classes *c = rw->user;
    int64_t kept[MAX_RANK];
    const int64_t *axes;
    if (node_kind(&n) != KIND_REDUCE) return false;
    int na = attr_ints(&n, AK_axes, &axes), made = g->order.len;
    ASSERT(attr_int(&n, AK_keepdims));
    bool wide = value_dtype(g, n.in[0]) == DT_F64;
    Stages e = {&rw->b, c->target, wide ? DT_F64 : DT_F32,
                c->has && n.op == OP_REDUCE_SUMSQ &&
                    is_shared(g, n.in[0], c->has)};
    ValueId rows = rows_of_others(&e, c, &n);
    if (rows.i) {
        const Type to = *value_type(g, n.out[0]);
        int nlong = long_axes(value_type(g, rows), axes, na, kept);
        if (same_value(rows, n.in[0]) && nlong == na) return false;
        with[0] = b_reduce(&rw->b, n.op, rows, kept, nlong, true, to.dtype);
        with[0] = b_reshape(&rw->b, with[0], to.rank, to.dim);
        rewrite_take_name(g, n.out[0], with[0]);
        return true;
    }
    if (in_equal_stages(&e, &n, with)) {
        rewrite_take_name(g, n.out[0], with[0]);
        return true;
    }
    if (variance_in_stages(&e, &n, with)) return true;
    const Type *t = value_type(g, n.in[0]);
    int bytes =
        held_bytes(g, n.in[0], t, n.flags & (NODE_BACKWARD | NODE_UPDATE));
    if (long_axes(t, axes, na, kept) == na &&
        (na == 0 || in_one_stage(&e, work_of(&e, t, axes, na, bytes))))
        return false;
    with[0] = in_best_stages(&e, n.op, n.in[0], axes, na,
                             value_dtype(g, n.out[0]), bytes);
    if (g->order.len > made) rewrite_take_name(g, n.out[0], with[0]);
    return true;
}

Status pass_reduce(Module *m, PassCtx *cx) {
    for (int i = 0; i < m->graphs.len; i++) {
        Graph *g = m->graphs.data[i];
        bool shares = cx->opt->shard_optimizer && g->program == PROGRAM_UPDATE;
        Classes c = {.has = shares ? with_state(g, cx->scratch) : NULL,
                     .target = target_smallest(g, cx->opt, cx->scratch)};
        classify(g, cx->scratch, &c);
        rewrite_graph(g, cx->scratch, reduce_rule, &c);
    }
    return OK;
}
