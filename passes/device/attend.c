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
   as it is, and so do few keys that all are seen: the gradient computes scores
   again.

   requires     stage PRIMITIVE
   establishes  Graph.attention
   breaks       nothing; leaves dead nodes                                   */
#include "passes/rewrite.h"
#include "passes/passes.h"
#include "passes/device/target.h"

#include <math.h>

/* An operand of a node. Values cannot be remembered, because the rewriter
   replaces them. */
typedef struct Operand {
    NodeId node; /* 0: none */
    int at;
} Operand;

/* An attention in the graph; its gradient's nodes are 0 if it has none. */
typedef struct Attention {
    NodeId scores, y, dp, dv, dq, dk;
    NodeId dk_sum, dv_sum; /* sums over the heads that share keys; else dk
                              and dv */
    NodeId moved;          /* transposes y like dy is transposed back */
    Operand q, k, v, mask, rng, hide; /* hide: the condition of a where       */
    bool causal, trans_b, zeros;
    bool hide_seen; /* hide is true for visible keys instead of hidden ones */
    double scale, ratio, fill;
    int64_t offset, salt;
    ValueId lse, to_y; /* their replacements */
    ValueId grad[3];   /* dq, dk, dv           */
} Attention;

typedef struct Attend {
    const Graph *g;
    int *uses; /* per value */
    int *of;   /* per node: 1 + number of the attention that contains the node
                */
    UserIndex users;
    uint32_t limit;    /* number of nodes before the pass */
    VEC(NodeId) nodes; /* nodes of the current attention */
    VEC(Attention) found;
    Arena *scratch;
} Attend;

static ValueId attend_operand(const Graph *g, Operand o) {
    return o.node.i ? node_get(g, o.node)->in[o.at] : NO_VALUE;
}

/* The node that defines v if its op is `op`; it then counts as part of the
   attention. */
static const Node *part(Attend *a, ValueId v, OpCode op) {
    const Node *n = def_of(a->g, v, op);
    if (n) vec_push(a->scratch, &a->nodes, value_get(a->g, v)->def);
    return n;
}

/* True if v is the fold of x over its last axis. */
static bool folds(Attend *a, ValueId v, OpCode op, ValueId x) {
    const int64_t *axes;
    const Node *n = part(a, v, op);
    return n && same_value(n->in[0], x) && attr_ints(n, AK_axes, &axes) == 1 &&
           axes[0] == value_type(a->g, x)->rank - 1;
}

/* True if x and y are equal: remat computes values again. */
static bool again(const Graph *g, ValueId x, ValueId y, int depth) {
    if (same_value(x, y)) return true;
    const Value *vx = value_get(g, x), *vy = value_get(g, y);
    if (!depth || vx->kind != VK_RESULT || vy->kind != VK_RESULT ||
        vx->type.i != vy->type.i)
        return false;
    const Node *a = node_get(g, vx->def), *b = node_get(g, vy->def);
    if (!node_same_work(a, b) || a->nin != b->nin) return false;
    for (int i = 0; i < a->nin; i++)
        if (!again(g, a->in[i], b->in[i], depth - 1)) return false;
    return true;
}

enum { AGAIN = 6 };

/* True if operand `at` of the node that defines v has the shape of v, so it
   is not broadcast. */
static bool as_large(const Graph *g, ValueId v, int at) {
    const Node *n = node_get(g, value_get(g, v)->def);
    return shape_equal(value_type(g, v), value_type(g, n->in[at]));
}

/* True if v is x times the constant *c. */
static bool scaled(const Graph *g, ValueId v, ValueId *x, double *c) {
    const Node *n = def_of(g, v, OP_MUL), *d = def_of(g, v, OP_DIV);
    for (int i = 0; n && i < 2; i++)
        if (value_is_splat(g, n->in[i], c) && as_large(g, v, 1 - i))
            return *x = n->in[1 - i], true;
    if (!d || !value_is_splat(g, d->in[1], c) || !as_large(g, v, 0))
        return false;
    *c = 1 / *c;
    return *x = d->in[0], true;
}

/* ---- masks --------------------------------------------------------------- */

/* True if constant m, with the rows and columns of v, is `seen` up to
   `offset` after the diagonal and `hidden` (or less, for a number) beyond
   it. */
static bool is_triangle(const Graph *g, ValueId m, ValueId v, double seen,
                        double hidden, int64_t *offset) {
    const Type *t = value_type(g, v), *tm = value_type(g, m);
    const Tensor *data = value_get(g, m)->data;
    int64_t rows = t->dim[t->rank - 2], cols = t->dim[t->rank - 1], first = 0;
    if (value_get(g, m)->kind != VK_CONST || tm->rank < 2 ||
        type_count(tm) != rows * cols || tm->dim[tm->rank - 1] != cols ||
        tm->dim[tm->rank - 2] != rows)
        return false;
    while (first < cols && tensor_get(data, first) == seen) first++;
    *offset = first - 1;
    for (int64_t i = 0; i < rows * cols; i++) {
        double x = tensor_get(data, i);
        if (i % cols < first + i / cols ? x != seen : !(x <= hidden))
            return false;
    }
    return first > 0;
}

/* True if v is the number of the row (from_end 2) or the column (1), plus
 *more, and no addition in it wraps. */
static bool is_place(const Graph *g, ValueId v, int rank, int from_end,
                     double *more) {
    const Node *n = def_of(g, v, OP_ADD);
    DType d = value_dtype(g, v);
    *more = 0;
    if (d != DT_I32 && d != DT_I64) return false;
    for (int i = 0; n && i < 2; i++)
        if (value_is_splat(g, n->in[i], more)) {
            v = n->in[1 - i];
            break;
        }
    n = def_of(g, v, OP_IOTA);
    int own = value_type(g, v)->rank;
    return n && own == rank && attr_int(n, AK_axis) == own - from_end &&
           fabs(*more) <= 1 << 30;
}

/* True if c is true where a column is at most `offset` after its row; *seen:
   or false there. */
static bool is_order(const Graph *g, ValueId c, ValueId v, bool *seen,
                     int64_t *offset) {
    static const OpCode ops[] = {OP_LESS_EQUAL, OP_LESS, OP_GREATER,
                                 OP_GREATER_EQUAL};
    const Type *t = value_type(g, v);
    int r = value_type(g, c)->rank;
    *seen = true;
    for (int k = 0; r >= 2 && k < 4; k++) {
        const Node *n = def_of(g, c, ops[k]);
        double i, j;
        if (!n) continue;
        for (int x = 0; x < 2; x++) {
            if (!is_place(g, n->in[x], r, 1, &j) ||
                !is_place(g, n->in[1 - x], r, 2, &i))
                continue;
            /* column + j .. row + i, or with both sides swapped */
            bool less = (k < 2) != (x == 1), strict = k == 1 || k == 2;
            *seen = less;
            int64_t none = -t->dim[t->rank - 2], all = t->dim[t->rank - 1];
            int64_t at = (int64_t)(i - j) - (less == strict);
            *offset = at < none ? none : at > all ? all : at;
            return true;
        }
    }
    return is_triangle(g, c, v, 1, 0, offset);
}

/* ---- finding ------------------------------------------------------------- */

static bool is_product(const Node *n, bool ta, bool tb) {
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
        if (left && is_product(x, false, !t->trans_b) &&
            again(g, x->in[1], s->in[1], AGAIN))
            t->dq = r[i];
        else if (x->nin == 2 && is_product(x, true, false) &&
                 again(g, x->in[t->trans_b ? 1 : 0], s->in[0], AGAIN))
            t->dk = r[i];
    }
}

/* True if u is the dropout factor of a tensor of type t (one random number
   per element). *o: the random state. */
static bool is_kept(const Graph *g, ValueId u, const Type *t, Operand *o,
                    double *ratio, int64_t *salt) {
    double keep, zero;
    const Node *w = def_of(g, u, OP_WHERE);
    const Node *c = w ? def_of(g, w->in[0], OP_GREATER_EQUAL) : NULL;
    const Node *r = c ? def_of(g, c->in[0], OP_RAND_UNIFORM) : NULL;
    if (!r || !shape_equal(value_type(g, r->out[0]), t) ||
        !value_is_splat(g, c->in[1], ratio) ||
        !value_is_splat(g, w->in[1], &keep) ||
        !value_is_splat(g, w->in[2], &zero) || zero != 0 || *ratio < 0 ||
        *ratio >= 1 || fabs(keep * (1 - *ratio) - 1) > 1e-6)
        return false;
    *o = (Operand){value_get(g, c->in[0])->def, 0};
    *salt = attr_int(r, AK_salt);
    return true;
}

/* v without its dropout factor, if it has one; else v. Sets t->rng, or
   requires the factor found before. */
static ValueId undropped(Attend *a, Attention *t, ValueId v) {
    const Graph *g = a->g;
    const Node *n = def_of(g, v, OP_MUL);
    for (int i = 0; n && i < 2; i++) {
        Operand o;
        double ratio;
        int64_t salt;
        if (!as_large(g, v, 1 - i) ||
            !is_kept(g, n->in[i], value_type(g, v), &o, &ratio, &salt))
            continue;
        if (t->rng.node.i &&
            (salt != t->salt || ratio != t->ratio ||
             !same_value(attend_operand(g, o), attend_operand(g, t->rng))))
            continue;
        if (!t->rng.node.i) t->rng = o, t->ratio = ratio, t->salt = salt;
        part(a, v, OP_MUL);
        return n->in[1 - i];
    }
    return v;
}

/* The scores of a softmax p, or NO_VALUE; zeros: p is 0 if everything is
   hidden. */
static ValueId softmax_of(Attend *a, ValueId p, bool zeros) {
    const Graph *g = a->g;
    double c;
    const Node *n = part(a, p, zeros ? OP_DIV : OP_MUL);
    const Node *e = n ? part(a, n->in[0], OP_EXP) : NULL;
    const Node *w = e ? part(a, n->in[1], zeros ? OP_WHERE : OP_DIV) : NULL;
    const Node *x = w ? part(a, e->in[0], OP_SUB) : NULL;
    if (!x) return NO_VALUE;
    ValueId sum = w->in[1], top = x->in[1];
    if (zeros) {
        const Node *some = part(a, w->in[0], OP_GREATER);
        const Node *t = part(a, top, OP_WHERE);
        const Node *seen = t ? part(a, t->in[0], OP_GREATER) : NULL;
        if (!some || !seen || !is_number(g, some->in[1], 0) ||
            !is_number(g, w->in[2], 1) || !is_number(g, t->in[2], 0) ||
            !same_value(some->in[0], sum) ||
            !same_value(seen->in[0], t->in[1]) ||
            !value_is_splat(g, seen->in[1], &c) || c != -INFINITY)
            return NO_VALUE;
        top = t->in[1];
    } else if (!is_number(g, w->in[0], 1)) {
        return NO_VALUE;
    }
    return folds(a, sum, OP_REDUCE_SUM, n->in[0]) &&
                   folds(a, top, OP_REDUCE_MAX, x->in[0])
               ? x->in[0]
               : NO_VALUE;
}

/* where(isnan(softmax(s)), 0, masked_softmax(s)), as PyTorch exports it:
   equal to the masked softmax unless scores are NaN. */
static ValueId not_nan(Attend *a, ValueId v, ValueId *scores) {
    const Graph *g = a->g;
    const Node *w = def_of(g, v, OP_WHERE);
    const Node *nan = w ? def_of(g, w->in[0], OP_ISNAN) : NULL;
    *scores = NO_VALUE;
    if (!nan || !is_number(g, w->in[1], 0)) return v;
    part(a, v, OP_WHERE);
    part(a, w->in[0], OP_ISNAN);
    *scores = softmax_of(a, nan->in[0], false);
    return w->in[2];
}

/* Finds the matrix product that gives the scores v, and the scale and masks
   between them; false: there is none. *why: the reason why the attention
   routine cannot compute it. */
static bool find_scores(Attend *a, Attention *t, ValueId v, const char **why) {
    const Graph *g = a->g;
    const double hidden = -1e30;
    const Node *n;
    double c;
    ValueId x;
    if (part(a, v, OP_MATMUL)) {
        t->scores = value_get(g, v)->def;
        return true;
    }
    if (scaled(g, v, &x, &c)) {
        part(a, v, def_of(g, v, OP_MUL) ? OP_MUL : OP_DIV);
        if (!find_scores(a, t, x, why)) return false;
        if (t->mask.node.i) *why = "a factor of masked scores";
        t->scale *= c;
        return true;
    }
    if ((n = part(a, v, OP_ADD))) {
        int len = a->nodes.len;
        for (int i = 0; i < 2; i++) {
            a->nodes.len = len;
            if (value_is_splat(g, n->in[i], &c) || !as_large(g, v, i) ||
                !find_scores(a, t, n->in[i], why))
                continue;
            ValueId m = n->in[1 - i];
            int64_t offset;
            if (!t->causal && is_triangle(g, m, v, 0, hidden, &offset)) {
                bool all = is_triangle(g, m, v, 0, -INFINITY, &offset);
                t->causal = true;
                t->offset = offset;
                t->fill = all ? -INFINITY : hidden;
                return true;
            }
            if (t->mask.node.i) *why = "several masks";
            t->mask = (Operand){value_get(g, v)->def, 1 - i};
            return true;
        }
        return false;
    }
    if (!(n = part(a, v, OP_WHERE))) return false;
    for (int i = 1; i < 3; i++) { /* 1: hides keys where the condition is
                                     false */
        bool seen;
        int64_t offset;
        if (!value_is_splat(g, n->in[3 - i], &c) || !(c <= hidden) ||
            !as_large(g, v, i))
            continue;
        if (!find_scores(a, t, n->in[i], why)) return false;
        bool order = is_order(g, n->in[0], v, &seen, &offset);
        Operand at = {value_get(g, v)->def, 0};
        if (order && seen == (i == 1) && !t->causal) {
            t->causal = true;
            t->offset = offset;
            t->fill = c;
        } else if (t->mask.node.i) {
            *why = "several masks";
        } else if (c != -INFINITY) {
            *why = "a mask that puts a number";
        } else {
            t->mask = at;
            t->hide_seen = i == 1;
            t->hide = at;
        }
        return true;
    }
    return false;
}

/* ds = p (dp - sum(dp p)), dp = dy v^T: found from one of the nodes that
   read p. */
static bool find_scores_grad(Attend *a, Attention *t, ValueId p, NodeId id) {
    const Graph *g = a->g;
    const Node *n = node_get(g, id), *u = NULL;
    int at = n->op == OP_MUL && same_value(n->in[0], p);
    if (n->op != OP_MUL || !(u = def_of(g, n->in[at], OP_SUB))) return false;
    ValueId ds = n->out[0], dp = u->in[0], dy_v = dp;
    const Node *r = def_of(g, u->in[1], OP_REDUCE_SUM);
    const Node *m = r ? part(a, r->in[0], OP_MUL) : NULL;
    if (!m || !part(a, n->in[at], OP_SUB) ||
        !folds(a, u->in[1], OP_REDUCE_SUM, r->in[0]))
        return false;
    at = same_value(m->in[0], p);
    if (!same_value(m->in[at], dp) || !same_value(m->in[1 - at], p))
        return false;
    const Node *w = t->zeros ? def_of(g, dp, OP_WHERE) : NULL;
    if (w && def_of(g, w->in[0], OP_ISNAN) && is_number(g, w->in[1], 0)) {
        part(a, dp, OP_WHERE);
        dy_v = w->in[2];
    }
    if (t->rng.node.i) {
        ValueId whole = dy_v;
        dy_v = undropped(a, t, whole);
        if (same_value(dy_v, whole)) return false;
    }
    const Node *product = part(a, dy_v, OP_MATMUL);
    if (!is_product(product, false, true) ||
        !again(g, product->in[1], node_get(g, t->y)->in[1], AGAIN))
        return false;
    t->dp = value_get(g, dy_v)->def;
    vec_push(a->scratch, &a->nodes, id);
    double scale = 1, c;
    ValueId x;
    for (NodeId r1; readers(a, ds, &r1, 1) == 1;) {
        const Node *next = node_get(g, r1);
        if (next->op == OP_WHERE && (t->causal || t->hide.node.i) &&
            (is_number(g, next->in[1], 0) || is_number(g, next->in[2], 0))) {
            /* the result is 0 where p is 0 */
        } else if (scaled(g, next->out[0], &x, &c)) {
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

/* Finds the gradient, if there is one. p: the softmax; d: the first operand
   of the product that gives y. */
static void find_grad(Attend *a, Attention *t, ValueId p, ValueId d) {
    NodeId r[MOST_READERS];
    const Graph *g = a->g;
    int n = readers(a, p, r, MOST_READERS);
    for (int i = 0; i < n && !t->dp.i; i++) find_scores_grad(a, t, p, r[i]);
    n = readers(a, d, r, MOST_READERS);
    for (int i = 0; i < n && t->dp.i; i++) {
        const Node *x = node_get(g, r[i]);
        if (is_product(x, true, false) && same_value(x->in[0], d) &&
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
    const Type *s = value_type(g, node_get(g, t->scores)->out[0]);
    if (!t->causal && s->dim[r - 1] < target_of(g)->attend_keys)
        return *why = "few keys", false;
    int64_t div, mod;
    if (t->mask.node.i &&
        !attend_mask(q, v, value_type(g, attend_operand(g, t->mask)), &div,
                     &mod))
        return *why = "the shape of its mask", false;
    if (t->causal && t->fill != -INFINITY && (t->mask.node.i || t->offset < 0))
        return *why = "a mask that puts a number", false;
    return !*why;
}

/* Finds the attention that ends in product `id`; *why: the reason why the
   routine cannot compute it, else NULL. */
static bool attend_find(Attend *a, NodeId id, Attention *t, const char **why) {
    const Graph *g = a->g;
    const Node *y = node_get(g, id);
    *why = NULL;
    if (!is_product(y, false, false)) return false;
    a->nodes.len = 0;
    *t = (Attention){.y = id, .scale = 1};
    ValueId scores, p = not_nan(a, undropped(a, t, y->in[0]), &scores);
    int len = a->nodes.len;
    ValueId s = softmax_of(a, p, false);
    if (!is_value(s)) {
        a->nodes.len = len;
        s = softmax_of(a, p, true);
        t->zeros = true;
    }
    if (!is_value(s) || (is_value(scores) && !same_value(s, scores)) ||
        !find_scores(a, t, s, why))
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
    find_grad(a, t, p, y->in[0]);
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

/* The y that backward reads. If forward stores only the transposed y, for
   the next product, it is transposed back, so that y itself is not stored. */
static ValueId again_y(Rewriter *rw, const Attention *t, ValueId dy) {
    Builder b = rw->b;
    const int64_t *back;
    const Node *n = def_of(rw->g, dy, OP_TRANSPOSE);
    if (!t->moved.i || !n) return t->to_y;
    attr_ints(n, AK_perm, &back);
    b.flags |= NODE_AGAIN;
    return b_transpose(&b, node_get(rw->g, t->moved)->out[0], back);
}

/* Placed at the first of the nodes that read dy. */
static void make_grad(Rewriter *rw, Attention *t, ValueId dy) {
    Graph *g = rw->g;
    Builder *b = &rw->b;
    ValueId in[8];
    Attr attrs[NATTR];
    int nattr = attributes(t, attrs), nin = operands(rw, t, in, 6);
    int64_t last = value_type(g, t->to_y)->rank - 1;
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
        a.limit = (uint32_t)g->nodes.len;
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
