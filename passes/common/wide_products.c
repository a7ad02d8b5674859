/* SPDX-License-Identifier: Apache-2.0 */
/* wide_products.c: see wide_products.h. */
#include "passes/common/wide_products.h"

#include "passes/passes.h"
#include "passes/rewrite.h"

bool node_moves(const Node *n) {
    return node_kind(n) == KIND_VIEW || node_kind(n) == KIND_MOVE;
}

static bool is_product(const Node *n) {
    return n && !n->fn && !n->loc.amp && op_info[n->op].amp == AMP_LOW;
}

/* A product that reads f32, or of which pass autocast has not decided. */
static bool reads_f32(const Graph *g, const Node *n) {
    return is_product(n) && n->nin == 2 && value_dtype(g, n->in[0]) == DT_F32 &&
           value_dtype(g, n->in[1]) == DT_F32;
}

/* The value of which v is a move, a multiple by a number, or the opposite. */
static ValueId products_unscaled(const Graph *g, ValueId v) {
    for (const Node *n; (n = value_maker(g, v)) && !n->fn;) {
        double c;
        int k = n->op == OP_MUL && value_is_splat(g, n->in[0], &c);
        bool scales = (n->op == OP_MUL || n->op == OP_DIV) &&
                      value_is_splat(g, n->in[1 - k], &c);
        if (!scales && n->op != OP_NEG && !(node_moves(n) && n->nin == 1))
            return v;
        v = n->in[scales ? k : 0];
    }
    return v;
}

/* ---- terms that cancel --------------------------------------------------- */

/* True if v is x or y, the square of one of them, or x times y. */
static bool is_term_of(const Graph *g, ValueId v, ValueId x, ValueId y) {
    ValueId term = products_unscaled(g, v);
    const Node *n = value_maker(g, term);
    if (same_value(term, x) || same_value(term, y)) return true;
    if (!n || n->fn || (n->op != OP_MUL && n->op != OP_POW)) return false;
    ValueId p = products_unscaled(g, n->in[0]),
            q = products_unscaled(g, n->in[1]);
    if (n->op == OP_POW)
        return is_number(g, n->in[1], 2) &&
               (same_value(p, x) || same_value(p, y));
    return (same_value(p, x) || same_value(p, y)) &&
           (same_value(q, x) || same_value(q, y));
}

/* True if v is computed element by element from sums (or local means) over x
   and y alone. */
static bool is_of_sums(const Graph *g, ValueId v, ValueId x, ValueId y,
                       int depth) {
    double c;
    ValueId of = products_unscaled(g, v);
    const Node *n = value_maker(g, of);
    if (!n || depth == 0) return false;
    if (node_kind(n) == KIND_REDUCE || n->op == OP_REDUCE_MEAN ||
        n->op == OP_AVG_POOL)
        return is_term_of(g, n->in[0], x, y);
    if (n->op == OP_SQRT || call_of(g, of, "reduce_l2")) /* a norm, squared */
        return n->fn ? is_term_of(g, n->in[0], x, y)
                     : is_of_sums(g, n->in[0], x, y, depth - 1);
    if (n->op == OP_POW && is_number(g, n->in[1], 2))
        return is_of_sums(g, n->in[0], x, y, depth - 1);
    if (n->fn || (n->op != OP_ADD && n->op != OP_SUB && n->op != OP_MUL))
        return false;
    for (int k = 0; k < 2; k++)
        if (!value_is_splat(g, n->in[k], &c) &&
            !is_of_sums(g, n->in[k], x, y, depth - 1))
            return false;
    return true;
}

/* True if the product is of few terms or takes at most `most` multiply-adds.
   Rounding errors of many terms average out: torch.autocast's error is then
   mostly that of the rounded result, and that of 16-bit operands about as
   large. */
static bool is_cheap(const Graph *g, const Node *product, double most) {
    enum { TERMS = 64 };
    double work = product_work(g, product);
    return work <= most ||
           work <= TERMS * (double)value_count(g, product->out[0]);
}

/* Marks the product that operand k of the sum or difference n is, if the other
   operand is made of sums over the product's operands. */
static void note_cancelled(const Graph *g, const Node *n, int k, double most,
                           bool *wide) {
    enum { DEPTH = 6 };
    ValueId v = products_unscaled(g, n->in[k]);
    const Node *product = value_maker(g, v);
    if (!product || product->op != OP_MATMUL || !reads_f32(g, product) ||
        !is_cheap(g, product, most))
        return;
    ValueId x = products_unscaled(g, product->in[0]),
            y = products_unscaled(g, product->in[1]);
    if (is_of_sums(g, n->in[1 - k], x, y, DEPTH)) wide[v.i] = true;
}

/* Local moments of x and y: their products, and all of their local means. */
static void mark_moments(const Graph *g, const Node *term, const char *why,
                         const char **exact) {
    ValueId x = products_unscaled(g, term->in[0]),
            y = term->op == OP_MUL ? products_unscaled(g, term->in[1]) : x;
    exact[x.i] = exact[y.i] = exact[term->out[0].i] = why;
    for (int i = 0; i < g->order.len; i++) {
        const Node *n = node_at(g, i);
        if (n->op == OP_AVG_POOL && is_term_of(g, n->in[0], x, y))
            exact[n->out[0].i] = why;
    }
}

void note_moments(const Graph *g, const char *why, const char **exact) {
    enum { DEPTH = 6 };
    for (int i = 0; i < g->order.len; i++) {
        const Node *n = node_at(g, i);
        if (n->flags || n->fn || (n->op != OP_SUB && n->op != OP_ADD)) continue;
        for (int k = 0; k < 2; k++) {
            ValueId v = products_unscaled(g, n->in[k]);
            const Node *pool = value_maker(g, v),
                       *term = pool && !pool->fn && pool->op == OP_AVG_POOL
                                   ? value_maker(g, pool->in[0])
                                   : NULL;
            if (!term || term->fn ||
                (term->op != OP_MUL &&
                 !(term->op == OP_POW && is_number(g, term->in[1], 2))))
                continue;
            ValueId x = products_unscaled(g, term->in[0]),
                    y = term->op == OP_MUL ? products_unscaled(g, term->in[1])
                                           : x;
            if (is_of_sums(g, n->in[1 - k], x, y, DEPTH))
                mark_moments(g, term, why, exact);
        }
    }
}

/* ---- filters and small matrices ------------------------------------------ */

bool *fixed_values(const Graph *g, bool variables, Arena *a) {
    bool *fixed = NEW_ARRAY(a, bool, g->values.len);
    for (int v = 1; v < g->values.len; v++) {
        const Value *x = value_get(g, (ValueId){(uint32_t)v});
        VarKind kind =
            x->kind == VK_VAR ? g->module->vars.data[x->var].kind : VAR_PARAM;
        fixed[v] = x->kind == VK_CONST ||
                   (variables && (kind == VAR_FROZEN || kind == VAR_BUFFER));
    }
    for (int i = 0; i < g->order.len; i++) {
        const Node *n = node_at(g, i);
        bool all = n->nout == 1 && (n->op == OP_IOTA || n->nin > 0);
        for (int k = 0; k < n->nin; k++)
            all &= n->in[k].i == 0 || fixed[n->in[k].i];
        if (all) fixed[n->out[0].i] = true;
    }
    return fixed;
}

/* A convolution of one input channel a group with a filter of fixed values. */
static bool is_filter(const Graph *g, const Node *n, const bool *fixed) {
    return n && reads_f32(g, n) &&
           (n->op == OP_CONV || n->op == OP_CONV_DGRAD) &&
           value_type(g, n->in[1])->dim[1] == 1 && fixed[n->in[1].i];
}

/* True if n combines operand k with another value of as many elements, or takes
   its absolute value, power or root. A bias, a norm and an activation do not.
 */
static bool is_measured(const Graph *g, const Node *n, int k) {
    if (!n->fn && node_kind(n) != KIND_ELEM) return false;
    for (int j = 0; j < n->nin; j++)
        if (j != k && n->in[j].i &&
            value_count(g, n->in[j]) == value_count(g, n->in[k]))
            return true;
    return !n->fn && (n->op == OP_ABS || n->op == OP_POW || n->op == OP_SQRT);
}

/* Marks filters of constants; and filters that do not train but are variables,
   as frozen depthwise layers are, if their results are measured. */
static void note_filters(const Graph *g, Arena *a, bool *wide) {
    const bool *numbers = fixed_values(g, false, a),
               *fixed = fixed_values(g, true, a);
    for (int i = 0; i < g->order.len; i++) {
        const Node *n = node_at(g, i);
        if (n->flags) continue;
        if (is_filter(g, n, numbers)) wide[n->out[0].i] = true;
        for (int k = 0; k < n->nin; k++) {
            ValueId v = products_unscaled(g, n->in[k]);
            if (is_filter(g, value_maker(g, v), fixed) && is_measured(g, n, k))
                wide[v.i] = true;
        }
    }
}

static bool products_is_weight(const Graph *g, ValueId v) {
    ValueKind kind = value_get(g, products_unscaled(g, v))->kind;
    return kind == VK_VAR || kind == VK_CONST;
}

static bool is_small(const Graph *g, ValueId v) {
    enum { MOST = 6 };
    const Type *t = value_type(g, v);
    return t->rank > 1 && t->dim[t->rank - 1] <= MOST &&
           t->dim[t->rank - 2] <= MOST;
}

static bool has_small_matrix(const Graph *g, const Node *n) {
    if (n->op != OP_MATMUL || products_is_weight(g, n->in[0]) ||
        products_is_weight(g, n->in[1]))
        return false;
    return is_small(g, n->in[0]) || is_small(g, n->in[1]);
}

/* ---- gradients ----------------------------------------------------------- */

/* A product in backward that reads an operand of one of the forward
   products. */
static void note_gradients(const Graph *g, const bool *of, bool *wide) {
    for (int i = 0; i < g->order.len; i++) {
        const Node *n = node_at(g, i);
        if (!(n->flags & NODE_BACKWARD) || !reads_f32(g, n)) continue;
        for (int k = 0; k < 2; k++)
            if (of[products_unscaled(g, n->in[k]).i]) wide[n->out[0].i] = true;
    }
}

bool *wide_products(const Graph *g, double most, Arena *a) {
    bool *wide = NEW_ARRAY(a, bool, g->values.len);
    bool *of = NEW_ARRAY(a, bool, g->values.len);
    note_filters(g, a, wide);
    for (int i = 0; i < g->order.len; i++) {
        const Node *n = node_at(g, i);
        if (reads_f32(g, n) && !n->flags && has_small_matrix(g, n))
            wide[n->out[0].i] = true;
        if (n->flags || n->fn || (n->op != OP_ADD && n->op != OP_SUB)) continue;
        for (int k = 0; k < 2; k++) note_cancelled(g, n, k, most, wide);
    }
    for (int i = 0; i < g->order.len; i++) {
        const Node *n = node_at(g, i);
        for (int k = 0; k < n->nin && wide[n->out[0].i] && !n->flags; k++)
            of[products_unscaled(g, n->in[k]).i] = true;
    }
    note_gradients(g, of, wide);
    return wide;
}
