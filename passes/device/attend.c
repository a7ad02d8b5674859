/* SPDX-License-Identifier: Apache-2.0 */
/* attend.c: replaces matrix products around a softmax, and their gradients, by
   one node each.
   Before:  %s = matmul %q, %k
            %a = add %s, %mask                %m = where %seen, %a, -inf
            %e = exp(%m - reduce_max %m)      %p = %e * (1 / reduce_sum %e)
            %d = %p * where(rand_uniform >= ratio, 1 / (1 - ratio), 0)
            %y = matmul %d, %v
            %dp = matmul %dy, %v {trans_b=1}  %dv = matmul %d, %dy {trans_a=1}
            %ds = %p * (%dp - reduce_sum(%dp * %p))
            %dq = matmul %ds, %k {trans_b=1}  %dk = matmul %q, %ds {trans_a=1}
   After:   %y, %lse = attend %q, %k, %v, %mask
            %delta = reduce_sum(%dy * %y), %y read where it is kept
            %dq, %dk, %dv = attend_grad %q, %k, %v, %dy, %lse, %delta, %mask
   Scores and probabilities then are fp32 in the cache, whatever they were
   stored as.  A factor of the scores, one mask (added or selecting), causal
   positions, repeated heads of keys and dropout become a part of it. What else
   reads a score or a probability (an output, the gradient of a mask) leaves all
   as it is, and so do few keys that all are seen, above all if there is a
   gradient, which computes scores again.

   requires     stage PRIMITIVE
   establishes  Graph.attention
   breaks       nothing; leaves dead nodes                                   */
#include "passes/codes.h"
#include "passes/device/attend.h"
#include "passes/rewrite.h"
#include "passes/device/target.h"

#include <math.h>

/* ---- finding ------------------------------------------------------------- */

/* Operand `at` of a node, or, if it is keys or values with repeated heads,
   the operand before the repetition. */
static Operand repeated(const Graph *g, NodeId id, int at) {
    Operand own = {id, at};
    ValueId v = node_get(g, id)->in[at];
    const Node *r = def_of(g, v, OP_RESHAPE);
    const Node *e = r ? def_of(g, r->in[0], OP_EXPAND) : NULL;
    const Node *x = e ? def_of(g, e->in[0], OP_RESHAPE) : NULL;
    if (!x) return own;
    const Type *to = value_type(g, v), *from = value_type(g, x->in[0]);
    const Type *one = value_type(g, e->in[0]), *all = value_type(g, r->in[0]);
    int h = to->rank - 3;
    bool ok = h >= 0 && from->rank == to->rank && one->rank == to->rank + 1 &&
              one->dim[h + 1] == 1 && from->dtype == to->dtype &&
              from->dim[h] * all->dim[h + 1] == to->dim[h];
    for (int d = 0; ok && d < to->rank; d++)
        ok = one->dim[d + (d > h)] == from->dim[d] &&
             (d == h || from->dim[d] == to->dim[d]);
    Operand under = {value_get(g, e->in[0])->def, 0};
    return ok ? under : own;
}

/* True if v, or a value that only moves give it from, was read from codes. */
static bool is_from_codes(const Graph *g, ValueId v) {
    const Node *n = value_maker(g, v);
    while (n && n->nin == 1 && !codes_source(g, v).i &&
           (node_kind(n) == KIND_VIEW || node_kind(n) == KIND_MOVE)) {
        v = n->in[0];
        n = value_maker(g, v);
    }
    return codes_source(g, v).i != 0;
}

/* The gradient stands where the first of its nodes stood: codes of v must be
   read by then. */
static void find_kept_v(const Attend *a, Attention *t, const char **why) {
    t->kept_v = t->v;
    if (!t->dp.i || !is_from_codes(a->g, node_get(a->g, t->dp)->in[1])) return;
    t->kept_v = (Operand){t->dp, 1};
    if (t->v.node.i != t->y.i) t->kept_v = repeated(a->g, t->dp, 1);
    if (t->dv.i && a->position[t->dv.i] < a->position[t->dp.i])
        *why = "the order of its gradient";
}

/* True if values that only the attention computes have no other readers. */
static bool is_closed(const Attend *a, const Attention *t) {
    const Graph *g = a->g;
    for (int i = 0; i < a->nodes.len; i++) {
        NodeId id = a->nodes.data[i];
        if (id.i == t->y.i || id.i == t->dv_sum.i || id.i == t->dq.i ||
            id.i == t->dk_sum.i)
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

/* True if the routine supports these shapes. */
static bool attend_fits(const Graph *g, const Attention *t, const char **why) {
    const Type *q = value_type(g, attend_operand(g, t->q));
    const Type *k = value_type(g, attend_operand(g, t->k));
    const Type *v = value_type(g, attend_operand(g, t->v));
    int r = q->rank;
    bool ok = r >= 3 && k->rank == r && v->rank == r;
    for (int d = 0; ok && d < r - 2; d++)
        ok = k->dim[d] == v->dim[d] &&
             (d == r - 3 ? k->dim[d] > 0 && q->dim[d] % k->dim[d] == 0
                         : k->dim[d] == q->dim[d]);
    int64_t most = target_of(g)->attend_columns;
    if (ok && most)
        ok = dtype_is_low(q->dtype) && q->dtype == k->dtype &&
             q->dtype == v->dtype && q->dim[r - 1] <= most &&
             v->dim[r - 1] <= most;
    if (!ok || q->dtype == DT_F64) return *why = "its shapes or dtypes", false;
    int64_t div, mod;
    if (t->mask.node.i &&
        !attend_mask(q, v, value_type(g, attend_operand(g, t->mask)), &div,
                     &mod))
        return *why = "the shape of its mask", false;
    if (t->causal && t->fill != -INFINITY && (t->mask.node.i || t->offset < 0))
        return *why = "a mask that puts a number", false;
    return !*why;
}

static bool has_backward(const Graph *g) {
    for (int k = 0; k < g->order.len; k++)
        if (node_at(g, k)->flags & NODE_BACKWARD) return true;
    return false;
}

/* Beside a backward pass, what has no gradient may be what backward computes
   again, and that copy has one. */
static bool has_few_keys(const Attend *a, const Attention *t) {
    const TargetInfo *to = target_of(a->g);
    const Type *s = value_type(a->g, node_get(a->g, t->scores)->out[0]);
    int64_t least =
        t->dp.i || a->trains ? to->attend_keys : to->attend_keys_alone;
    return !t->causal && s->dim[s->rank - 1] < least;
}

/* Finds the attention that ends in product `id`; *why: the reason why the
   routine cannot compute it, else NULL. */
static bool attend_find(Attend *a, NodeId id, Attention *t, const char **why) {
    const Graph *g = a->g;
    const Node *y = node_get(g, id);
    *why = NULL;
    if (!attend_is_product(y, false, false)) return false;
    a->nodes.len = 0;
    *t = (Attention){.y = id, .scale = 1};
    ValueId scores,
        p = attend_not_nan(a, attend_undropped(a, t, y->in[0]), &scores);
    int len = a->nodes.len;
    ValueId s = attend_softmax_of(a, p, false);
    t->zeros = is_value(scores);
    if (!is_value(s)) {
        a->nodes.len = len;
        s = attend_softmax_of(a, p, true);
        t->zeros = true;
    }
    if (!is_value(s) || (is_value(scores) && !same_value(s, scores)) ||
        !attend_find_scores(a, t, s, why))
        return false;
    const Node *m = node_get(g, t->scores);
    if (attr_int(m, AK_trans_a)) return false;
    t->trans_b = attr_int(m, AK_trans_b) != 0;
    t->q = (Operand){t->scores, 0};
    t->k = repeated(g, t->scores, 1);
    t->v = repeated(g, id, 1);
    if ((t->k.node.i == t->scores.i) != (t->v.node.i == t->y.i) ||
        (t->k.node.i != t->scores.i && !t->trans_b)) {
        t->k = (Operand){t->scores, 1};
        t->v = (Operand){id, 1};
    }
    if (!attend_fits(g, t, why)) return false;
    attend_find_grad(a, t, p, y->in[0]);
    if (has_few_keys(a, t)) return *why = "few keys", false;
    find_kept_v(a, t, why);
    if (t->dp.i && target_of(g)->attend_columns &&
        value_dtype(g, node_get(g, t->dp)->in[0]) !=
            value_dtype(g, attend_operand(g, t->v)))
        *why = "the dtype of its gradient";
    if (!is_closed(a, t)) *why = "another reader of its scores";
    return !*why;
}

/* ---- replacing ----------------------------------------------------------- */

enum { NATTR = 7 };

static int attributes(const Attention *t, Attr *to) {
    int n = 0;
    if (t->causal) to[n++] = attr_i(AK_causal, 1);
    if (t->causal && t->offset) to[n++] = attr_i(AK_offset, t->offset);
    if (t->trans_b) to[n++] = attr_i(AK_trans_b, 1);
    if (t->zeros) to[n++] = attr_i(AK_zeros, 1);
    if (t->scale != 1) to[n++] = attr_f(AK_scale, t->scale);
    if (t->rng.node.i) to[n++] = attr_f(AK_ratio, t->ratio);
    if (t->rng.node.i && t->salt) to[n++] = attr_i(AK_salt, t->salt);
    return n;
}

/* q, k, v; mask and random numbers from `at` on. */
static int operands(Rewriter *rw, const Attention *t, ValueId *in, int at) {
    const Graph *g = rw->g;
    Builder *b = &rw->b;
    in[0] = attend_operand(g, t->q);
    in[1] = attend_operand(g, t->k);
    in[2] = attend_operand(g, t->v);
    in[at] = attend_operand(g, t->mask);
    in[at + 1] = attend_operand(g, t->rng);
    if (t->hide.node.i) {
        ValueId with[] = {b_scalar(b, DT_F32, t->hide_seen ? 0 : -INFINITY),
                          b_scalar(b, DT_F32, t->hide_seen ? -INFINITY : 0)};
        ValueId choose[] = {in[at], with[0], with[1]};
        in[at] = build(b, OP_WHERE, choose, 3, NULL, 0, DT_F32, NULL);
    }
    return at + (is_value(in[at + 1]) ? 2 : is_value(in[at]) ? 1 : 0);
}

static void make_forward(Rewriter *rw, Attention *t) {
    Graph *g = rw->g;
    Node y = *node_get(g, t->y);
    ValueId in[5];
    DType d[] = {value_dtype(g, y.out[0]), DT_F32};
    Attr attrs[NATTR];
    int nattr = attributes(t, attrs), nin = operands(rw, t, in, 3);
    NodeId id =
        build_multi(&rw->b, OP_ATTEND, in, nin, attrs, nattr, 2, d, NULL);
    t->to_y = node_get(g, id)->out[0];
    t->lse = node_get(g, id)->out[1];
}

/* v, or what its codes stand for. */
static ValueId kept_form(Rewriter *rw, Builder *b, ValueId v) {
    const Attend *a = rw->user;
    Codes c = codes_of(rw->g, &a->users, v);
    return c.code.i ? b_cast(b, codes_read(b, c), value_dtype(rw->g, v)) : v;
}

/* The y that backward reads. If forward stores only the transposed y, for
   the next product, it is transposed back, so that y itself is not stored. */
static ValueId again_y(Rewriter *rw, const Attention *t, ValueId dy) {
    Builder b = rw->b;
    const int64_t *back;
    const Node *n = def_of(rw->g, dy, OP_TRANSPOSE);
    b.flags |= NODE_AGAIN;
    if (!t->moved.i || !n) {
        ValueId y = node_get(rw->g, t->y)->out[0], kept = kept_form(rw, &b, y);
        return same_value(y, kept) ? t->to_y : kept;
    }
    attr_ints(n, AK_perm, &back);
    ValueId moved = node_get(rw->g, t->moved)->out[0];
    return b_transpose(&b, kept_form(rw, &b, moved), back);
}

/* Placed at the first of the nodes that read dy. */
static void make_grad(Rewriter *rw, Attention *t, ValueId dy) {
    Graph *g = rw->g;
    Builder *b = &rw->b;
    ValueId in[8];
    Attr attrs[NATTR];
    int nattr = attributes(t, attrs), nin = operands(rw, t, in, 6);
    int64_t last = value_type(g, t->to_y)->rank - 1;
    in[2] = attend_operand(g, t->kept_v);
    in[3] = dy;
    in[4] = t->lse;
    in[5] = b_reduce(b, OP_REDUCE_SUM,
                     b2(b, OP_MUL, dy, again_y(rw, t, dy), DT_F32), &last, 1,
                     true, DT_F32);
    const NodeId old[] = {t->dq, t->dk_sum, t->dv_sum};
    DType d[3];
    for (int i = 0; i < 3; i++)
        d[i] = old[i].i ? value_dtype(g, node_get(g, old[i])->out[0])
                        : value_dtype(g, in[i]);
    NodeId id =
        build_multi(b, OP_ATTEND_GRAD, in, nin, attrs, nattr, 3, d, NULL);
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
    with[0] = id.i == t->y.i        ? t->to_y
              : id.i == t->dq.i     ? t->grad[0]
              : id.i == t->dk_sum.i ? t->grad[1]
              : id.i == t->dv_sum.i ? t->grad[2]
                                    : NO_VALUE;
    if (!is_value(with[0])) return false;
    Type want = *value_type(g, node_get(g, id)->out[0]);
    if (!shape_equal(&want, value_type(g, with[0])))
        with[0] = b_reshape(&rw->b, with[0], want.rank, want.dim);
    rewrite_take_name(g, node_get(g, id)->out[0], with[0]);
    return true;
}

Status pass_attend(Module *m, PassCtx *cx) {
    for (int i = 0; i < m->graphs.len; i++) {
        Graph *g = m->graphs.data[i];
        Attend a = {.g = g, .scratch = cx->scratch};
        if (!target_of(g)->attend_keys) continue;
        a.uses = graph_use_counts(g, cx->scratch);
        a.users = graph_users(g, cx->scratch);
        a.position = graph_positions(g, cx->scratch);
        a.limit = (uint32_t)g->nodes.len;
        a.trains = has_backward(g);
        a.of = NEW_ARRAY(cx->scratch, int, g->nodes.len);
        for (int k = 0; k < g->order.len; k++) {
            Attention t;
            const char *why;
            bool whole = attend_find(&a, g->order.data[k], &t, &why);
            if (whole || why) vec_push(g->arena, &g->attention, why);
            if (!whole) continue;
            vec_push(cx->scratch, &a.found, t);
            const NodeId at[] = {t.y,  t.dp,     t.dv,    t.dq,
                                 t.dk, t.dk_sum, t.dv_sum};
            for (int j = 0; j < 7; j++) a.of[at[j].i] = a.found.len;
            a.of[0] = 0;
        }
        if (a.found.len) rewrite_graph(g, cx->scratch, attend_rule, &a);
    }
    return OK;
}
