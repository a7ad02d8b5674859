/* attend.c: products around a softmax, and their gradients, as one node each.
   Before:  %s = matmul %q, %k                %m = add %s, %mask
            %e = exp(%m - reduce_max %m)      %p = %e * (1 / reduce_sum %e)
            %y = matmul %p, %v
            %dp = matmul %dy, %v {trans_b=1}  %dv = matmul %p, %dy {trans_a=1}
            %ds = %p * (%dp - reduce_sum(%dp * %p))
            %dq = matmul %ds, %k {trans_b=1}  %dk = matmul %q, %ds {trans_a=1}
   After:   %y, %lse = attend %q, %k, %v
            %delta = reduce_sum(%dy * %y)
            %dq, %dk, %dv = attend_grad %q, %k, %v, %dy, %lse, %delta
   Scores and probabilities then are fp32 in the cache, whatever they were
   stored as.  Of masks only the one that hides later positions is taken over.
   What else reads a score or a probability (dropout, an output) leaves all as
   it is, and so do few keys that all are seen: the gradient computes scores
   again.

   requires     stage PRIMITIVE
   establishes  nothing
   breaks       nothing; leaves dead nodes                                   */
#include "passes/common/rewrite.h"
#include "passes/passes.h"
#include "passes/target/target.h"

#include <math.h>

/* An attention in the graph; nodes of the gradient are 0 where there is none.
 */
typedef struct Attention {
    NodeId scores, y, dp, dv, dq, dk;
    bool causal, trans_b;
    ValueId lse, to_y; /* what stands for them */
    ValueId grad[3];   /* dq, dk, dv           */
} Attention;

typedef struct Attend {
    const Graph *g;
    int *uses; /* by ValueId.i                                         */
    int *of;   /* by NodeId.i: 1 + the attention that it is part of          */
    uint32_t limit; /* nodes before the pass                                 */
    VEC(NodeId) nodes; /* of the one at hand                                 */
    VEC(Attention) found;
    Arena *scratch;
} Attend;

/* The node that makes v if its op is `op`, which is then part of it all. */
static const Node *part(Attend *a, ValueId v, OpCode op) {
    const Node *n = def_of(a->g, v, op);
    if (n) vec_push(a->scratch, &a->nodes, value_get(a->g, v)->def);
    return n;
}

/* v is the fold of x over its last axis. */
static bool folds(Attend *a, ValueId v, OpCode op, ValueId x) {
    const int64_t *axes;
    const Node *n = part(a, v, op);
    return n && same_value(n->in[0], x) && attr_ints(n, AK_axes, &axes) == 1 &&
           axes[0] == value_type(a->g, x)->rank - 1;
}

/* ---- masks --------------------------------------------------------------- */

/* Constant m, of rows and columns as v has, is `seen` up to the diagonal and
   `hidden` (or less, where that is a number) behind it. */
static bool is_triangle(const Graph *g, ValueId m, ValueId v, double seen,
                        double hidden) {
    const Type *t = value_type(g, v), *tm = value_type(g, m);
    const Tensor *data = value_get(g, m)->data;
    int64_t rows = t->dim[t->rank - 2], cols = t->dim[t->rank - 1];
    if (value_get(g, m)->kind != VK_CONST || tm->rank < 2 ||
        type_count(tm) != rows * cols || tm->dim[tm->rank - 1] != cols ||
        tm->dim[tm->rank - 2] != rows)
        return false;
    for (int64_t i = 0; i < rows * cols; i++) {
        double x = tensor_get(data, i);
        if (i % cols <= i / cols ? x != seen : !(x <= hidden)) return false;
    }
    return true;
}

/* c is whether a column stands at or before its row. */
static bool is_seen(const Graph *g, ValueId c, ValueId v) {
    const Node *n = def_of(g, c, OP_LESS_EQUAL);
    const Node *j = n ? def_of(g, n->in[0], OP_IOTA) : NULL;
    const Node *i = n ? def_of(g, n->in[1], OP_IOTA) : NULL;
    if (!i || !j) return is_triangle(g, c, v, 1, 0);
    int64_t r = value_type(g, c)->rank;
    return attr_int(j, AK_axis, 0) == value_type(g, n->in[0])->rank - 1 &&
           attr_int(i, AK_axis, 0) == value_type(g, n->in[1])->rank - 2 &&
           r >= 2 && value_type(g, n->in[0])->rank == r &&
           value_type(g, n->in[1])->rank == r;
}

/* What of the scores that the softmax reads hides nothing; NO_VALUE where a
   mask is no causal one. */
static ValueId unmasked(Attend *a, ValueId v, bool *causal) {
    const double hidden = -1e30;
    double with;
    const Node *add = part(a, v, OP_ADD);
    for (int i = 0; add && i < 2; i++)
        if ((*causal = is_triangle(a->g, add->in[i], v, 0, hidden)))
            return add->in[1 - i];
    const Node *where = part(a, v, OP_WHERE);
    if (where && value_is_splat(a->g, where->in[2], &with) && with <= hidden &&
        (*causal = is_seen(a->g, where->in[0], v)))
        return where->in[1];
    return add || where ? NO_VALUE : v;
}

/* ---- finding ------------------------------------------------------------- */

static bool is_product(const Node *n, bool ta, bool tb) {
    return n && n->op == OP_MATMUL && attr_int(n, AK_trans_a, 0) == ta &&
           attr_int(n, AK_trans_b, 0) == tb;
}

static bool same_batch(const Graph *g, ValueId x, ValueId y) {
    const Type *a = value_type(g, x), *b = value_type(g, y);
    bool same = a->rank == b->rank && a->rank >= 3;
    for (int i = 0; same && i < a->rank - 2; i++) same = a->dim[i] == b->dim[i];
    return same && a->dtype != DT_F64;
}

/* Nodes that read v, up to `most`; more: none. */
static int readers(const Attend *a, ValueId v, NodeId *to, int most) {
    int n = 0, left = a->uses[v.i];
    for (int i = 0; left > 0 && i < a->g->order.len; i++) {
        const Node *x = node_get(a->g, a->g->order.data[i]);
        bool reads = false;
        for (int k = 0; k < x->nin; k++)
            if (same_value(x->in[k], v)) reads = true, left--;
        if (reads && n == most) return 0;
        if (reads) to[n++] = a->g->order.data[i];
    }
    return n;
}

enum { MOST_READERS = 8 };

/* Finds the products that read the scores' gradient ds. */
static void find_operand_grads(Attend *a, Attention *t, ValueId ds) {
    NodeId r[MOST_READERS];
    const Graph *g = a->g;
    const Node *s = node_get(g, t->scores);
    int n = readers(a, ds, r, MOST_READERS);
    for (int i = 0; i < n; i++) {
        const Node *x = node_get(g, r[i]);
        bool left = same_value(x->in[0], ds);
        if (left && is_product(x, false, !t->trans_b) &&
            same_value(x->in[1], s->in[1]))
            t->dq = r[i];
        else if (x->nin == 2 && is_product(x, true, false) &&
                 same_value(x->in[t->trans_b ? 1 : 0], s->in[0]))
            t->dk = r[i];
    }
}

/* ds = p (dp - sum(dp p)), dp = dy v^T: from one of the nodes that read p. */
static bool find_scores_grad(Attend *a, Attention *t, ValueId p, NodeId id) {
    const Graph *g = a->g;
    const Node *n = node_get(g, id), *u = NULL;
    int at = n->op == OP_MUL && same_value(n->in[0], p);
    if (n->op != OP_MUL || !(u = def_of(g, n->in[at], OP_SUB))) return false;
    ValueId ds = n->out[0], dp = u->in[0];
    const Node *r = def_of(g, u->in[1], OP_REDUCE_SUM);
    const Node *m = r ? part(a, r->in[0], OP_MUL) : NULL;
    if (!m || !part(a, dp, OP_MATMUL) || !part(a, n->in[at], OP_SUB) ||
        !folds(a, u->in[1], OP_REDUCE_SUM, r->in[0]))
        return false;
    const Node *product = node_get(g, value_get(g, dp)->def);
    at = same_value(m->in[0], p);
    if (!same_value(m->in[at], dp) || !same_value(m->in[1 - at], p) ||
        !is_product(product, false, true) ||
        !same_value(product->in[1], node_get(g, t->y)->in[1]))
        return false;
    t->dp = value_get(g, dp)->def;
    vec_push(a->scratch, &a->nodes, id);
    NodeId w[1];
    if (t->causal && readers(a, ds, w, 1) == 1 &&
        node_get(g, w[0])->op == OP_WHERE) { /* gives 0 where p is 0 */
        vec_push(a->scratch, &a->nodes, w[0]);
        ds = node_get(g, w[0])->out[0];
    }
    find_operand_grads(a, t, ds);
    return true;
}

/* The gradient, if there is one: false where p is read for something else. */
static bool find_grad(Attend *a, Attention *t, ValueId p) {
    NodeId r[MOST_READERS];
    const Graph *g = a->g;
    int n = readers(a, p, r, MOST_READERS);
    for (int i = 0; i < n && !t->dp.i; i++) find_scores_grad(a, t, p, r[i]);
    for (int i = 0; i < n && t->dp.i; i++) {
        const Node *x = node_get(g, r[i]);
        if (is_product(x, true, false) && same_value(x->in[0], p) &&
            same_value(x->in[1], node_get(g, t->dp)->in[0]))
            t->dv = r[i];
    }
    const NodeId last[] = {t->y, t->dv, t->dq, t->dk};
    for (int i = 0; i < 4; i++)
        if (last[i].i) vec_push(a->scratch, &a->nodes, last[i]);
    return n > 0;
}

/* Nobody but the attention reads what only it makes. */
static bool is_closed(const Attend *a, const Attention *t) {
    const Graph *g = a->g;
    for (int i = 0; i < a->nodes.len; i++) {
        NodeId id = a->nodes.data[i];
        if (id.i == t->y.i || id.i == t->dv.i || id.i == t->dq.i ||
            id.i == t->dk.i)
            continue;
        ValueId v = node_get(g, id)->out[0];
        int inside = 0;
        for (int j = 0; j < a->nodes.len; j++) {
            const Node *x = node_get(g, a->nodes.data[j]);
            bool again = false;
            for (int k = 0; k < j; k++)
                again |= a->nodes.data[k].i == a->nodes.data[j].i;
            for (int k = 0; k < x->nin && !again; k++)
                inside += same_value(x->in[k], v);
        }
        if (inside != a->uses[v.i]) return false;
    }
    return true;
}

/* The attention that ends in the product `id`. */
static bool find(Attend *a, NodeId id, Attention *t) {
    const Graph *g = a->g;
    const Node *y = node_get(g, id);
    if (!is_product(y, false, false)) return false;
    a->nodes.len = 0;
    const Node *p = part(a, y->in[0], OP_MUL);
    const Node *e = p ? part(a, p->in[0], OP_EXP) : NULL;
    const Node *one = e ? part(a, p->in[1], OP_DIV) : NULL;
    const Node *x = one ? part(a, e->in[0], OP_SUB) : NULL;
    if (!x || !is_number(g, one->in[0], 1) ||
        !folds(a, one->in[1], OP_REDUCE_SUM, p->in[0]) ||
        !folds(a, x->in[1], OP_REDUCE_MAX, x->in[0]))
        return false;
    *t = (Attention){.y = id};
    ValueId s = unmasked(a, x->in[0], &t->causal);
    const Node *m = is_value(s) ? part(a, s, OP_MATMUL) : NULL;
    if (!m || attr_int(m, AK_trans_a, 0) ||
        !same_batch(g, m->in[0], m->in[1]) ||
        !same_batch(g, m->in[0], y->in[1]))
        return false;
    const Type *scores = value_type(g, s);
    if (!t->causal && scores->dim[scores->rank - 1] < target_of(g)->attend_keys)
        return false;
    t->scores = value_get(g, s)->def;
    t->trans_b = attr_int(m, AK_trans_b, 0) != 0;
    return find_grad(a, t, y->in[0]) && is_closed(a, t);
}

/* ---- replacing ----------------------------------------------------------- */

static int attributes(const Attention *t, Attr *to) {
    int n = 0;
    if (t->causal) to[n++] = attr_i(AK_causal, 1);
    if (t->trans_b) to[n++] = attr_i(AK_trans_b, 1);
    return n;
}

static void make_forward(Rewriter *rw, Attention *t) {
    Graph *g = rw->g;
    Node y = *node_get(g, t->y);
    const Node *s = node_get(g, t->scores);
    ValueId in[] = {s->in[0], s->in[1], y.in[1]};
    DType d[] = {value_dtype(g, y.out[0]), DT_F32};
    Attr attrs[2];
    int nattr = attributes(t, attrs);
    NodeId id = build_multi(&rw->b, OP_ATTEND, in, 3, attrs, nattr, 2, d, NULL);
    t->to_y = node_get(g, id)->out[0];
    t->lse = node_get(g, id)->out[1];
}

/* At the first of the nodes that read dy. */
static void make_grad(Rewriter *rw, Attention *t, ValueId dy) {
    Graph *g = rw->g;
    Builder *b = &rw->b;
    const Node *s = node_get(g, t->scores);
    ValueId q = s->in[0], k = s->in[1], v = node_get(g, t->y)->in[1];
    int64_t last = value_type(g, t->to_y)->rank - 1;
    ValueId delta =
        b_reduce(b, OP_REDUCE_SUM, b2(b, OP_MUL, dy, t->to_y, DT_F32), &last, 1,
                 true, DT_F32);
    ValueId in[] = {q, k, v, dy, t->lse, delta};
    const NodeId old[] = {t->dq, t->dk, t->dv};
    DType d[3];
    Attr attrs[2];
    int nattr = attributes(t, attrs);
    for (int i = 0; i < 3; i++)
        d[i] = old[i].i ? value_dtype(g, node_get(g, old[i])->out[0])
                        : value_dtype(g, in[i]);
    NodeId id = build_multi(b, OP_ATTEND_GRAD, in, 6, attrs, nattr, 3, d, NULL);
    for (int i = 0; i < 3; i++) t->grad[i] = node_get(g, id)->out[i];
}

static bool attend_rule(Rewriter *rw, NodeId id, ValueId *with) {
    Attend *a = rw->user;
    Graph *g = rw->g;
    if (id.i >= a->limit || !a->of[id.i]) return false;
    Attention *t = &a->found.data[a->of[id.i] - 1];
    const Node *n = node_get(g, id);
    if (id.i == t->y.i) make_forward(rw, t);
    if ((id.i == t->dp.i || id.i == t->dv.i) && !is_value(t->grad[0]))
        make_grad(rw, t, n->in[id.i == t->dv.i]);
    with[0] = id.i == t->y.i    ? t->to_y
              : id.i == t->dq.i ? t->grad[0]
              : id.i == t->dk.i ? t->grad[1]
              : id.i == t->dv.i ? t->grad[2]
                                : NO_VALUE;
    if (!is_value(with[0])) return false;
    rewrite_take_name(g, node_get(g, id)->out[0], with[0]);
    return true;
}

Status pass_attend(Module *m, PassCtx *cx) {
    for (int i = 0; i < m->graphs.len; i++) {
        Graph *g = m->graphs.data[i];
        Attend a = {.g = g, .scratch = cx->scratch};
        if (!target_of(g)->attend_keys) continue;
        a.uses = graph_use_counts(g, cx->scratch);
        a.limit = (uint32_t)g->nodes.len;
        a.of = NEW_ARRAY(cx->scratch, int, g->nodes.len);
        for (int k = 0; k < g->order.len; k++) {
            Attention t;
            if (!find(&a, g->order.data[k], &t)) continue;
            vec_push(cx->scratch, &a.found, t);
            const NodeId at[] = {t.y, t.dp, t.dv, t.dq, t.dk};
            for (int j = 0; j < 5; j++) a.of[at[j].i] = a.found.len;
            a.of[0] = 0;
        }
        if (a.found.len) rewrite_graph(g, cx->scratch, attend_rule, &a);
    }
    return OK;
}
