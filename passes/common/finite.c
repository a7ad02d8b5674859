/* SPDX-License-Identifier: Apache-2.0 */
/* finite.c: see finite.h.  Ops whose results may be infinite or NaN
   (quotients, logarithms, roots, powers, exponentials) have finite results
   if their operand is bounded away from 0, as in norms, or is never above 0,
   as in a softmax. */
#include "passes/common/finite.h"

#include <math.h>

#include "passes/rewrite.h"

enum { DEPTH = 12 };

static bool moves(const Node *n) {
    OpKind kind = op_info[n->op].kind;
    return !n->fn && (kind == KIND_VIEW || kind == KIND_MOVE ||
                      n->op == OP_CAST || n->op == OP_EXPAND);
}

/* True if n is x minus the maximum of each row. */
static bool is_below_largest(const Graph *g, const Node *n) {
    const Node *most = n->op == OP_SUB ? value_maker(g, n->in[1]) : NULL;
    for (int i = 0; i < DEPTH && most && moves(most); i++)
        most = value_maker(g, most->in[0]);
    return most && !most->fn && most->op == OP_REDUCE_MAX &&
           same_value(most->in[0], n->in[0]);
}

static bool is_bounded_exp(const Graph *g, const Node *n) {
    const Node *x = value_maker(g, n->in[0]);
    return n->op == OP_EXP && x && !x->fn && is_below_largest(g, x);
}

/* How the sign of an op's result follows from its operands. */
typedef enum Sign {
    SIGN_NONE,   /* it does not */
    SIGN_ALWAYS, /* from none */
    SIGN_FIRST,  /* from the first */
    SIGN_BOTH,   /* if both have it */
    SIGN_EITHER, /* if one has it */
    SIGN_SUM,    /* above 0 if one operand is, and the other is not below 0 */
    SIGN_POWER,
    SIGN_SQUARE, /* from both operands, or because both are the same value */
    SIGN_BOUND,  /* from attribute min */
    SIGN_SOFTMAX /* from the first operand, or because that is the operand of
                    a softmax */
} Sign;

static const struct {
    OpCode op;
    Sign nonnegative, positive;
} signs[] = {
    {OP_ABS, SIGN_ALWAYS, SIGN_NONE},
    {OP_EXP, SIGN_ALWAYS, SIGN_NONE},
    {OP_RELU, SIGN_ALWAYS, SIGN_NONE},
    {OP_SIGMOID, SIGN_ALWAYS, SIGN_NONE},
    {OP_SOFTPLUS, SIGN_ALWAYS, SIGN_NONE},
    {OP_SQRT, SIGN_ALWAYS, SIGN_FIRST},
    {OP_RSQRT, SIGN_ALWAYS, SIGN_NONE},
    {OP_REDUCE_SUMSQ, SIGN_ALWAYS, SIGN_NONE},
    {OP_POW, SIGN_POWER, SIGN_NONE},
    {OP_MUL, SIGN_SQUARE, SIGN_BOTH},
    {OP_ADD, SIGN_BOTH, SIGN_SUM},
    {OP_DIV, SIGN_BOTH, SIGN_NONE},
    {OP_MAX, SIGN_EITHER, SIGN_EITHER},
    {OP_CLIP, SIGN_NONE, SIGN_BOUND},
    {OP_REDUCE_SUM, SIGN_FIRST, SIGN_SOFTMAX},
    {OP_REDUCE_MEAN, SIGN_FIRST, SIGN_FIRST},
};

static Sign sign_of(const Node *n, bool positive) {
    for (size_t i = 0; i < sizeof signs / sizeof *signs; i++)
        if (signs[i].op == n->op)
            return positive ? signs[i].positive : signs[i].nonnegative;
    return moves(n) ? SIGN_FIRST : SIGN_NONE;
}

/* v >= 0 everywhere. */
static bool is_nonnegative(const Graph *g, ValueId v, int depth) {
    const Node *n = value_maker(g, v);
    double c;
    if (value_is_splat(g, v, &c)) return c >= 0;
    if (!n || n->fn || depth == DEPTH) return false;
    Sign s = sign_of(n, false);
    if (s == SIGN_NONE) return false;
    if (s == SIGN_ALWAYS) return true;
    if (s == SIGN_SQUARE && same_value(n->in[0], n->in[1])) return true;
    if (s == SIGN_POWER && value_is_splat(g, n->in[1], &c) && fmod(c, 2) == 0)
        return true;
    bool first = is_nonnegative(g, n->in[0], depth + 1);
    if (s == SIGN_FIRST || s == SIGN_POWER) return first;
    if (s == SIGN_EITHER)
        return first || is_nonnegative(g, n->in[1], depth + 1);
    return first && is_nonnegative(g, n->in[1], depth + 1);
}

static bool is_positive(const Graph *g, ValueId v, int depth);

static bool is_positive_sum(const Graph *g, const Node *n, int depth) {
    for (int k = 0; k < 2; k++)
        if (is_positive(g, n->in[k], depth + 1) &&
            is_nonnegative(g, n->in[1 - k], depth + 1))
            return true;
    return false;
}

/* True if v is above some positive number everywhere. */
static bool is_positive(const Graph *g, ValueId v, int depth) {
    const Node *n = value_maker(g, v);
    double c;
    if (value_is_splat(g, v, &c)) return c > 0;
    if (!n || n->fn || depth == DEPTH) return false;
    Sign s = sign_of(n, true);
    if (s == SIGN_NONE) return false;
    if (s == SIGN_SUM) return is_positive_sum(g, n, depth);
    if (s == SIGN_BOUND)
        return attr_find(n, AK_min) && attr_float(n, AK_min) > 0;
    const Node *e = s == SIGN_SOFTMAX ? value_maker(g, n->in[0]) : NULL;
    if (e && !e->fn && is_bounded_exp(g, e)) return true;
    bool first = is_positive(g, n->in[0], depth + 1);
    if (s == SIGN_FIRST || s == SIGN_SOFTMAX) return first;
    if (s == SIGN_EITHER) return first || is_positive(g, n->in[1], depth + 1);
    return first && is_positive(g, n->in[1], depth + 1);
}

static bool is_apart_from_0(const Graph *g, ValueId v) {
    double c;
    if (value_is_splat(g, v, &c)) return c != 0;
    return is_positive(g, v, 0);
}

static bool divides(const Graph *g, const Node *n) {
    return is_apart_from_0(g, n->in[1]);
}

static bool of_positive(const Graph *g, const Node *n) {
    return is_positive(g, n->in[0], 0);
}

static bool of_nonnegative(const Graph *g, const Node *n) {
    return is_nonnegative(g, n->in[0], 0);
}

static bool power_is_finite(const Graph *g, const Node *n) {
    double c;
    if (value_is_splat(g, n->in[1], &c) && c >= 0)
        return c == floor(c) || is_nonnegative(g, n->in[0], 0);
    return is_positive(g, n->in[0], 0);
}

static bool never(const Graph *g, const Node *n) {
    (void)g, (void)n;
    return false;
}

/* Ops whose results may be infinite or NaN, and when they are finite. */
static const struct {
    OpCode op;
    bool (*stays)(const Graph *g, const Node *n);
} leaving[] = {
    {OP_DIV, divides},         {OP_LOG, of_positive},
    {OP_RSQRT, of_positive},   {OP_RECIPROCAL, of_positive},
    {OP_SQRT, of_nonnegative}, {OP_POW, power_is_finite},
    {OP_EXP, is_bounded_exp},  {OP_TAN, never},
    {OP_ASIN, never},          {OP_ACOS, never},
    {OP_SINH, never},          {OP_COSH, never},
    {OP_ACOSH, never},         {OP_ATANH, never},
};

/* True if n computes finite results from finite operands. */
static bool stays_finite(const Graph *g, const Node *n) {
    if (n->fn) return true; /* norms, activations, losses */
    for (size_t i = 0; i < sizeof leaving / sizeof *leaving; i++)
        if (leaving[i].op == n->op) return leaving[i].stays(g, n);
    return true;
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
