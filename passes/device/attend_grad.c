/* SPDX-License-Identifier: Apache-2.0 */
/* attend_grad.c: finds the gradient of an attention. */
#include "passes/device/attend.h"
#include "passes/rewrite.h"

bool attend_is_product(const Node *n, bool ta, bool tb) {
    return n && n->op == OP_MATMUL && attr_int(n, AK_trans_a) == ta &&
           attr_int(n, AK_trans_b) == tb;
}

/* Nodes that read v, up to `most`; if there are more: none. */
static int readers(const Attend *a, ValueId v, NodeId *to, int most) {
    int n = 0;
    for (Users u = users_of(&a->users, v); u.at < u.end; u.at++) {
        if (n && to[n - 1].i == u.at->i) continue;
        if (n == most) return 0;
        to[n++] = *u.at;
    }
    return n;
}
enum { MOST_READERS = 8 };

/* `product`, or its sum over the heads that share `of`, if nothing else
   reads it; 0: neither. */
static NodeId summed(Attend *a, NodeId product, ValueId of) {
    NodeId r, s;
    const int64_t *axes;
    const Graph *g = a->g;
    if (!product.i) return product;
    ValueId v = node_get(g, product)->out[0];
    if (shape_equal(value_type(g, v), value_type(g, of))) return product;
    if (readers(a, v, &r, 1) != 1) return (NodeId){0};
    const Node *n = node_get(g, r);
    int h = value_type(g, v)->rank - 3, at = h;
    if (n->op == OP_RESHAPE) {
        ValueId wide = n->out[0];
        if (readers(a, wide, &s, 1) != 1 || value_type(g, wide)->rank != h + 4)
            return (NodeId){0};
        vec_push(a->scratch, &a->nodes, r);
        r = s;
        n = node_get(g, s);
        at = h + 1;
    }
    bool whole = n->op == OP_REDUCE_SUM && attr_ints(n, AK_axes, &axes) == 1 &&
                 axes[0] == at &&
                 value_count(g, n->out[0]) == value_count(g, of);
    return whole ? r : (NodeId){0};
}

/* Finds the products that read the scores' gradient ds. */
static void find_operand_grads(Attend *a, Attention *t, ValueId ds) {
    NodeId r[MOST_READERS];
    const Graph *g = a->g;
    const Node *s = node_get(g, t->scores);
    int n = readers(a, ds, r, MOST_READERS);
    for (int i = 0; i < n; i++) {
        const Node *x = node_get(g, r[i]);
        bool left = same_value(x->in[0], ds);
        if (left && attend_is_product(x, false, !t->trans_b) &&
            attend_again(g, x->in[1], s->in[1], AGAIN))
            t->dq = r[i];
        else if (x->nin == 2 && attend_is_product(x, true, false) &&
                 attend_again(g, x->in[t->trans_b ? 1 : 0], s->in[0], AGAIN))
            t->dk = r[i];
    }
}

/* The dp of where(isnan(softmax(s)), 0, dp), s: the scores of a masked softmax,
   or NO_VALUE; else v. */
static ValueId without_hidden(Attend *a, ValueId s, ValueId v) {
    static Pattern not_nan = {.text = "where(isnan(q), 0, dp)"};
    Match m = {0};
    if (!is_value(s) || !attend_matches(a, &not_nan, v, &m)) return v;
    ValueId q = match_value(&m, "q");
    return same_value(attend_softmax_of(a, q, false), s) ? match_value(&m, "dp")
                                                         : v;
}

/* ds = p (dp - sum(dp p)), dp = dy v^T: found from one of the nodes that
   read p. */
static bool find_scores_grad(Attend *a, Attention *t, ValueId p, NodeId id) {
    static Pattern slope = {.text = "p * (dp - reduce_sum(dp * p, axes=[-1]))"};
    const Graph *g = a->g;
    Match m = {0};
    ValueId ds = node_get(g, id)->out[0];
    ValueId s = t->zeros ? attend_softmax_of(a, p, true) : NO_VALUE;
    if (t->zeros && !is_value(s)) return false; /* NaN where p is NaN */
    match_bind(&m, "p", p);
    if (!attend_matches(a, &slope, ds, &m)) return false;
    ValueId dy_v = without_hidden(a, s, match_value(&m, "dp"));
    if (t->rng.node.i) {
        ValueId whole = dy_v;
        dy_v = attend_undropped(a, t, whole);
        if (same_value(dy_v, whole)) return false;
    }
    const Node *product = attend_takes(a, dy_v, OP_MATMUL);
    if (!attend_is_product(product, false, true) ||
        !attend_again(g, product->in[1], node_get(g, t->y)->in[1], AGAIN))
        return false;
    t->dp = value_get(g, dy_v)->def;
    double scale = 1, c;
    ValueId x;
    for (NodeId r1; readers(a, ds, &r1, 1) == 1;) {
        const Node *next = node_get(g, r1);
        if (next->op == OP_WHERE && (t->causal || t->hide.node.i) &&
            (is_number(g, next->in[1], 0) || is_number(g, next->in[2], 0))) {
            /* the result is 0 where p is 0 */
        } else if (attend_scaled(g, next->out[0], &x, &c)) {
            scale *= c;
        } else {
            break;
        }
        vec_push(a->scratch, &a->nodes, r1);
        ds = next->out[0];
    }
    if (fabs(scale - t->scale) > 1e-6 * fabs(t->scale)) return true;
    find_operand_grads(a, t, ds);
    return true;
}

/* The node that moves y like dy was moved, with rows staying rows. */
static NodeId find_moved(Attend *a, ValueId y, ValueId dy) {
    NodeId r[MOST_READERS];
    const int64_t *back, *perm;
    const Graph *g = a->g;
    const Node *n = def_of(g, dy, OP_TRANSPOSE);
    int rank = n ? attr_ints(n, AK_perm, &back) : 0;
    int most = rank && back[rank - 1] == rank - 1 ? MOST_READERS : 0;
    int count = most ? readers(a, y, r, most) : 0;
    for (int i = 0; i < count; i++) {
        ValueId z = node_get(g, r[i])->out[0];
        const Node *x = def_of(g, z, OP_TRANSPOSE);
        bool same = x && attr_ints(x, AK_perm, &perm) == rank &&
                    value_dtype(g, z) == value_dtype(g, y);
        for (int d = 0; same && d < rank; d++) same = perm[back[d]] == d;
        if (same) return r[i];
    }
    return (NodeId){0};
}

void attend_find_grad(Attend *a, Attention *t, ValueId p, ValueId d) {
    NodeId r[MOST_READERS];
    const Graph *g = a->g;
    int n = readers(a, p, r, MOST_READERS);
    for (int i = 0; i < n && !t->dp.i; i++) find_scores_grad(a, t, p, r[i]);
    n = readers(a, d, r, MOST_READERS);
    for (int i = 0; i < n && t->dp.i; i++) {
        const Node *x = node_get(g, r[i]);
        if (attend_is_product(x, true, false) && same_value(x->in[0], d) &&
            same_value(x->in[1], node_get(g, t->dp)->in[0]))
            t->dv = r[i];
    }
    if (t->dp.i)
        t->moved =
            find_moved(a, node_get(g, t->y)->out[0], node_get(g, t->dp)->in[0]);
    t->dk_sum = summed(a, t->dk, attend_operand(g, t->k));
    t->dv_sum = summed(a, t->dv, attend_operand(g, t->v));
    const NodeId last[] = {t->y, t->dv, t->dq, t->dk, t->dk_sum, t->dv_sum};
    for (int i = 0; i < 6; i++)
        if (last[i].i) vec_push(a->scratch, &a->nodes, last[i]);
}
