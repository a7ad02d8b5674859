/* SPDX-License-Identifier: Apache-2.0 */
/* finite.c: see finite.h.  Ops that leave the finite numbers (quotients,
   logarithms, roots, powers, exponentials) do not where their operand is
   bounded away from 0, as in norms, or not above 0, as in a softmax.         */
#include "passes/common/finite.h"

#include <math.h>

#include "passes/common/rewrite.h"

enum { DEPTH = 12 };

static const Node *maker(const Graph *g, ValueId v) {
    const Value *x = value_get(g, v);
    return x->kind == VK_RESULT ? node_get(g, x->def) : NULL;
}

static bool moves(const Node *n) {
    OpKind kind = op_info[n->op].kind;
    return !n->fn && (kind == KIND_VIEW || kind == KIND_MOVE ||
                      n->op == OP_CAST || n->op == OP_EXPAND);
}

/* n is x minus the largest x of each row. */
static bool is_below_largest(const Graph *g, const Node *n) {
    const Node *most = n->op == OP_SUB ? maker(g, n->in[1]) : NULL;
    for (int i = 0; i < DEPTH && most && moves(most); i++)
        most = maker(g, most->in[0]);
    return most && !most->fn && most->op == OP_REDUCE_MAX &&
           same_value(most->in[0], n->in[0]);
}

static bool is_bounded_exp(const Graph *g, const Node *n) {
    const Node *x = maker(g, n->in[0]);
    return n->op == OP_EXP && x && !x->fn && is_below_largest(g, x);
}

/* v >= 0 everywhere. */
static bool is_nonnegative(const Graph *g, ValueId v, int depth) {
    const Node *n = maker(g, v);
    double c;
    if (value_is_splat(g, v, &c)) return c >= 0;
    if (!n || n->fn || depth == DEPTH) return false;
    switch (n->op) {
    case OP_ABS:
    case OP_EXP:
    case OP_RELU:
    case OP_SIGMOID:
    case OP_SOFTPLUS:
    case OP_SQRT:
    case OP_RSQRT:
    case OP_REDUCE_SUMSQ: return true;
    case OP_POW:
        if (value_is_splat(g, n->in[1], &c) && fmod(c, 2) == 0) return true;
        return is_nonnegative(g, n->in[0], depth + 1);
    case OP_MUL:
        if (same_value(n->in[0], n->in[1])) return true;
        /* fall through */
    case OP_ADD:
    case OP_DIV:
        return is_nonnegative(g, n->in[0], depth + 1) &&
               is_nonnegative(g, n->in[1], depth + 1);
    case OP_MAX:
        return is_nonnegative(g, n->in[0], depth + 1) ||
               is_nonnegative(g, n->in[1], depth + 1);
    case OP_REDUCE_SUM:
    case OP_REDUCE_MEAN: return is_nonnegative(g, n->in[0], depth + 1);
    default: return moves(n) && is_nonnegative(g, n->in[0], depth + 1);
    }
}

/* v is above some positive number everywhere. */
static bool is_positive(const Graph *g, ValueId v, int depth) {
    const Node *n = maker(g, v);
    double c;
    if (value_is_splat(g, v, &c)) return c > 0;
    if (!n || n->fn || depth == DEPTH) return false;
    switch (n->op) {
    case OP_ADD:
        for (int k = 0; k < 2; k++)
            if (is_positive(g, n->in[k], depth + 1) &&
                is_nonnegative(g, n->in[1 - k], depth + 1))
                return true;
        return false;
    case OP_MAX:
        return is_positive(g, n->in[0], depth + 1) ||
               is_positive(g, n->in[1], depth + 1);
    case OP_CLIP: return attr_find(n, AK_min) && attr_float(n, AK_min) > 0;
    case OP_MUL:
        return is_positive(g, n->in[0], depth + 1) &&
               is_positive(g, n->in[1], depth + 1);
    case OP_REDUCE_SUM: {
        const Node *e = maker(g, n->in[0]); /* the sum of a softmax */
        if (e && !e->fn && is_bounded_exp(g, e)) return true;
        return is_positive(g, n->in[0], depth + 1);
    }
    case OP_SQRT:
    case OP_REDUCE_MEAN: return is_positive(g, n->in[0], depth + 1);
    default: return moves(n) && is_positive(g, n->in[0], depth + 1);
    }
}

static bool is_apart_from_0(const Graph *g, ValueId v) {
    double c;
    if (value_is_splat(g, v, &c)) return c != 0;
    return is_positive(g, v, 0);
}

/* Whether n makes finite results of finite operands. */
static bool stays_finite(const Graph *g, const Node *n) {
    double c;
    if (n->fn) return true; /* norms, activations, losses */
    switch (n->op) {
    case OP_DIV: return is_apart_from_0(g, n->in[1]);
    case OP_LOG:
    case OP_RSQRT:
    case OP_RECIPROCAL: return is_positive(g, n->in[0], 0);
    case OP_SQRT: return is_nonnegative(g, n->in[0], 0);
    case OP_POW:
        if (value_is_splat(g, n->in[1], &c) && c >= 0)
            return c == floor(c) || is_nonnegative(g, n->in[0], 0);
        return is_positive(g, n->in[0], 0);
    case OP_EXP: return is_bounded_exp(g, n);
    case OP_TAN:
    case OP_ASIN:
    case OP_ACOS:
    case OP_SINH:
    case OP_COSH:
    case OP_ACOSH:
    case OP_ATANH: return false;
    default: return true;
    }
}

static bool is_finite(const Finite *f, ValueId v) {
    double c;
    if (value_is_splat(f->g, v, &c)) return isfinite(c);
    return f->may_not.len <= (int)v.i || !f->may_not.data[v.i];
}

static bool all_finite(const Finite *f, const Node *n) {
    for (int k = 0; k < n->nin; k++)
        if (is_value(n->in[k]) && dtype_is_float(value_dtype(f->g, n->in[k])) &&
            !is_finite(f, n->in[k]))
            return false;
    return true;
}

void finite_note(Finite *f, const Node *n) {
    bool bounded = op_info[n->op].kind == KIND_ANCHOR || n->op == OP_TANH ||
                   n->op == OP_SIGMOID || n->op == OP_ERF;
    bool finite = bounded || (all_finite(f, n) && stays_finite(f->g, n));
    for (int k = 0; k < n->nout && !finite; k++) {
        while (f->may_not.len <= (int)n->out[k].i)
            vec_push(f->a, &f->may_not, false);
        f->may_not.data[n->out[k].i] = true;
    }
}

bool has_infinite_slope(const Finite *f, const Node *n) {
    double c;
    if (!all_finite(f, n)) return true;
    if (n->op == OP_SQRT) return !is_positive(f->g, n->in[0], 0);
    if (n->op == OP_POW &&
        !(value_is_splat(f->g, n->in[1], &c) && (c == 0 || c >= 1)))
        return !is_positive(f->g, n->in[0], 0);
    return !stays_finite(f->g, n);
}
