/* SPDX-License-Identifier: Apache-2.0 */
/* attend_scores.c: finds the scores of an attention: softmax, masks, scale,
   dropout. */
#include "passes/codes.h"
#include "passes/device/attend.h"
#include "passes/pattern.h"

#include <math.h>

const Node *attend_takes(Attend *a, ValueId v, OpCode op) {
    const Node *n = def_of(a->g, v, op);
    if (n) vec_push(a->scratch, &a->nodes, value_get(a->g, v)->def);
    return n;
}

bool attend_matches(Attend *a, Pattern *p, ValueId v, Match *m) {
    if (!pattern_matches(p, a->g, v, m)) return false;
    for (int i = 0; i < m->nodes; i++)
        vec_push(a->scratch, &a->nodes, m->node[i]);
    return true;
}

bool attend_again(const Graph *g, ValueId x, ValueId y, int depth) {
    if (same_value(x, y) || same_value(codes_source(g, x), y)) return true;
    const Value *vx = value_get(g, x), *vy = value_get(g, y);
    if (!depth || vx->kind != VK_RESULT || vy->kind != VK_RESULT ||
        vx->type.i != vy->type.i)
        return false;
    const Node *a = node_get(g, vx->def), *b = node_get(g, vy->def);
    if (!node_same_work(a, b) || a->nin != b->nin) return false;
    for (int i = 0; i < a->nin; i++)
        if (!attend_again(g, a->in[i], b->in[i], depth - 1)) return false;
    return true;
}

/* True if operand `at` of the node that defines v has the shape of v, so it
   is not broadcast. */
static bool as_large(const Graph *g, ValueId v, int at) {
    const Node *n = node_get(g, value_get(g, v)->def);
    return shape_equal(value_type(g, v), value_type(g, n->in[at]));
}

bool attend_scaled(const Graph *g, ValueId v, ValueId *x, double *c) {
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
ValueId attend_undropped(Attend *a, Attention *t, ValueId v) {
    static Pattern dropout = {.text =
                                  "x * where(u >= RATIO, KEPT, 0) "
                                  "where u = rand_uniform(state, salt=salt)"};
    const Graph *g = a->g;
    Match m = {0};
    if (!pattern_matches(&dropout, g, v, &m)) return v;
    double ratio = match_number(&m, "RATIO");
    ValueId x = match_value(&m, "x"), u = match_value(&m, "u");
    int64_t salt = match_int(&m, "salt");
    if (!shape_equal(value_type(g, x), value_type(g, v)) ||
        !shape_equal(value_type(g, u), value_type(g, v)) || ratio < 0 ||
        ratio >= 1 || fabs(match_number(&m, "KEPT") * (1 - ratio) - 1) > 1e-6)
        return v;
    if (t->rng.node.i &&
        (salt != t->salt || ratio != t->ratio ||
         !same_value(match_value(&m, "state"), attend_operand(g, t->rng))))
        return v;
    if (!t->rng.node.i) {
        t->rng = (Operand){value_get(g, u)->def, 0};
        t->ratio = ratio;
        t->salt = salt;
    }
    attend_takes(a, v, OP_MUL);
    return x;
}

ValueId attend_softmax_of(Attend *a, ValueId p, bool zeros) {
    static Pattern softmax[] = {
        {.text = "e * (1 / reduce_sum(e, axes=[-1])) "
                 "where e = exp(s - reduce_max(s, axes=[-1]))"},
        {.text = "e / where(sum > 0, sum, 1) "
                 "where e = exp(s - where(top > -inf, top, 0)), "
                 "sum = reduce_sum(e, axes=[-1]), "
                 "top = reduce_max(s, axes=[-1])"}};
    Match m = {0};
    return attend_matches(a, &softmax[zeros], p, &m) ? match_value(&m, "s")
                                                     : NO_VALUE;
}

ValueId attend_not_nan(Attend *a, ValueId v, ValueId *scores) {
    static Pattern not_nan = {.text = "where(isnan(q), 0, p)"};
    Match m = {0};
    *scores = NO_VALUE;
    if (!attend_matches(a, &not_nan, v, &m)) return v;
    *scores = attend_softmax_of(a, match_value(&m, "q"), false);
    return is_value(*scores) ? match_value(&m, "p") : v;
}

bool attend_find_scores(Attend *a, Attention *t, ValueId v, const char **why) {
    const Graph *g = a->g;
    const double hidden = -1e30;
    const Node *n;
    double c;
    ValueId x;
    if (attend_takes(a, v, OP_MATMUL)) {
        t->scores = value_get(g, v)->def;
        return true;
    }
    if (attend_scaled(g, v, &x, &c)) {
        attend_takes(a, v, def_of(g, v, OP_MUL) ? OP_MUL : OP_DIV);
        if (!attend_find_scores(a, t, x, why)) return false;
        if (t->mask.node.i) *why = "a factor of masked scores";
        t->scale *= c;
        return true;
    }
    if ((n = attend_takes(a, v, OP_ADD))) {
        int len = a->nodes.len;
        for (int i = 0; i < 2; i++) {
            a->nodes.len = len;
            if (value_is_splat(g, n->in[i], &c) || !as_large(g, v, i) ||
                !attend_find_scores(a, t, n->in[i], why))
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
    if (!(n = attend_takes(a, v, OP_WHERE))) return false;
    for (int i = 1; i < 3; i++) { /* 1: hides keys where the condition is
                                     false */
        bool seen;
        int64_t offset;
        if (!value_is_splat(g, n->in[3 - i], &c) || !(c <= hidden) ||
            !as_large(g, v, i))
            continue;
        if (!attend_find_scores(a, t, n->in[i], why)) return false;
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
