/* SPDX-License-Identifier: Apache-2.0 */
/* bounds.c: see bounds.h.  Interval arithmetic over primitives, and three
   facts that intervals alone do not show:
     x - max(x) is at most 0
     a sum of exp(x - max(x)) is at least 1, since one term is
     |d| / sqrt(mean(d * d) + eps) is at most sqrt(n) for n elements
   Rounding keeps order, so that the rounded bound holds for rounded values. The
   facts see through casts only as far as each of them says. */
#include "passes/common/bounds.h"

#include <math.h>

#include "passes/rewrite.h"

/* A norm's elements and its mean may be rounded to 8 significant bits. */
#define NORM_ROOM (1 + 1.0 / 64)
/* fp32 sums of n terms are larger than exact ones by less than n times this. */
#define SUM_ROOM 0x1p-23

typedef struct Interval {
    double lo, hi;
} Interval;

typedef struct Bounds {
    const Graph *g;
    Interval *of; /* per value */
} Bounds;

static const Interval anything = {-INFINITY, INFINITY};

static Interval hull(Interval x, Interval y) {
    return (Interval){fmin(x.lo, y.lo), fmax(x.hi, y.hi)};
}

/* A product of corners, in which 0 times infinity is 0. */
static double corner(double x, double y) {
    return x == 0 || y == 0 ? 0 : x * y;
}

static Interval interval_product(Interval x, Interval y) {
    double c[] = {corner(x.lo, y.lo), corner(x.lo, y.hi), corner(x.hi, y.lo),
                  corner(x.hi, y.hi)};
    return hull((Interval){fmin(c[0], c[1]), fmax(c[0], c[1])},
                (Interval){fmin(c[2], c[3]), fmax(c[2], c[3])});
}

static Interval sum(Interval x, Interval y) {
    return (Interval){x.lo + y.lo, x.hi + y.hi};
}

static Interval negative(Interval x) { return (Interval){-x.hi, -x.lo}; }

static Interval square(Interval x) {
    double most = fmax(fabs(x.lo), fabs(x.hi));
    return (Interval){0, corner(most, most)};
}

static Interval inverse(Interval x) {
    if (x.lo > 0 || x.hi < 0) return (Interval){1 / x.hi, 1 / x.lo};
    return anything;
}

/* ---- the three facts ----------------------------------------------------- */

/* Casts that a fact sees through. */
typedef enum Casts {
    ANY_FLOAT, /* 1 stays 1 */
    NEAR,      /* to 8 significant bits and more, in fp32's range */
    EXACT      /* to a type that has all numbers of the other */
} Casts;

static bool sees_through(const Graph *g, const Node *n, Casts casts) {
    if (n->fn || n->op != OP_CAST) return !n->fn && n->op == OP_EXPAND;
    DType a = value_dtype(g, n->in[0]), b = value_dtype(g, n->out[0]);
    const DTypeInfo *from = &dtype_info[a], *to = &dtype_info[b];
    if (!dtype_is_float(a) || !dtype_is_float(b)) return false;
    if (casts == ANY_FLOAT) return true;
    bool exact = to->mantissa >= from->mantissa && to->most >= from->most &&
                 to->least <= from->least;
    bool near = to->mantissa >= 8 && to->most >= from->most / 2 &&
                to->least <= from->least;
    return exact || (casts == NEAR && near);
}

/* The value of which v is a cast or an expansion. */
static ValueId bound_behind(const Graph *g, ValueId v, Casts casts) {
    const Node *n;
    while ((n = value_maker(g, v)) && sees_through(g, n, casts)) v = n->in[0];
    return v;
}

static const Node *maker_behind(const Graph *g, ValueId v, OpCode op,
                                Casts casts) {
    const Node *n = value_maker(g, bound_behind(g, v, casts));
    return n && !n->fn && n->op == op ? n : NULL;
}

static bool same_behind(const Graph *g, ValueId x, ValueId y) {
    return same_value(bound_behind(g, x, NEAR), bound_behind(g, y, NEAR));
}

/* The reduction that computes v and keeps its reduced axes as 1. */
static const Node *reduction_behind(const Graph *g, ValueId v, OpCode op,
                                    Casts casts) {
    const Node *n = maker_behind(g, v, op, casts);
    bool keeps =
        n && value_type(g, n->in[0])->rank == value_type(g, n->out[0])->rank;
    return keeps ? n : NULL;
}

/* The reduce_max of x if v is x - reduce_max(x). */
static const Node *largest_taken(const Graph *g, ValueId v) {
    const Node *n = value_maker(g, v);
    if (!n || n->fn || n->op != OP_SUB) return NULL;
    const Node *most = reduction_behind(g, n->in[1], OP_REDUCE_MAX, EXACT);
    return most && same_value(most->in[0], n->in[0]) ? most : NULL;
}

/* The number of elements of which v is the mean of squares of d; 0: it is
   something else. */
static double squares_in_mean(const Graph *g, ValueId v, ValueId d) {
    const Node *mean = reduction_behind(g, v, OP_REDUCE_MEAN, NEAR);
    const Node *squares =
        mean ? maker_behind(g, mean->in[0], OP_MUL, NEAR) : NULL;
    if (!squares || !same_behind(g, squares->in[0], d) ||
        !same_behind(g, squares->in[1], d))
        return 0;
    return (double)value_count(g, mean->in[0]) /
           (double)value_count(g, mean->out[0]);
}

/* d * rsqrt(mean(d * d) + eps), eps above 0: the largest magnitude. */
static double norm_bound(const Bounds *b, ValueId d, ValueId r) {
    const Node *root = maker_behind(b->g, r, OP_RSQRT, NEAR);
    const Node *shifted =
        root ? maker_behind(b->g, root->in[0], OP_ADD, NEAR) : NULL;
    double eps, n = 0;
    for (int k = 0; shifted && k < 2; k++)
        if (value_is_splat(b->g, shifted->in[1 - k], &eps) && eps > 0)
            n = squares_in_mean(b->g, shifted->in[k], d);
    return n > 0 ? sqrt(n) * NORM_ROOM : INFINITY;
}

static Interval multiplied(const Bounds *b, const Node *n) {
    ValueId x = n->in[0], y = n->in[1];
    double most = fmin(norm_bound(b, x, y), norm_bound(b, y, x));
    if (isfinite(most)) return (Interval){-most, most};
    if (same_behind(b->g, x, y)) return square(hull(b->of[x.i], b->of[y.i]));
    return interval_product(b->of[x.i], b->of[y.i]);
}

static Interval interval_of_sum(const Bounds *b, const Node *n) {
    Interval x = b->of[n->in[0].i];
    const Node *e = maker_behind(b->g, n->in[0], OP_EXP, ANY_FLOAT);
    double count = (double)value_count(b->g, n->in[0]) /
                   (double)value_count(b->g, n->out[0]);
    Interval all = {corner(count, x.lo), corner(count, x.hi)};
    all.lo -= fabs(corner(all.lo, count * SUM_ROOM));
    all.hi += fabs(corner(all.hi, count * SUM_ROOM));
    const Node *most = e ? largest_taken(b->g, e->in[0]) : NULL;
    if (most && shape_equal(value_type(b->g, most->out[0]),
                            value_type(b->g, n->out[0])))
        all.lo = fmax(all.lo, 1);
    return all;
}

/* ---- ops ----------------------------------------------------------------- */

static Interval attr_bounds(const Node *n, Interval x) {
    if (attr_find(n, AK_min)) x.lo = fmax(x.lo, attr_float(n, AK_min));
    if (attr_find(n, AK_max)) x.hi = fmin(x.hi, attr_float(n, AK_max));
    return x;
}

static Interval exponential(const Bounds *b, const Node *n, Interval x) {
    double most = largest_taken(b->g, n->in[0]) ? 0 : x.hi;
    return (Interval){exp(x.lo), exp(most)};
}

static Interval of_all(const Bounds *b, const Node *n, int first) {
    Interval x = b->of[n->in[first].i];
    for (int k = first + 1; k < n->nin; k++) x = hull(x, b->of[n->in[k].i]);
    return x;
}

static Interval inverse_root(Interval x) {
    return x.lo > 0 ? (Interval){1 / sqrt(x.hi), 1 / sqrt(x.lo)} : anything;
}

static Interval interval_of(const Bounds *b, const Node *n) {
    Interval x = n->nin > 0 ? b->of[n->in[0].i] : anything;
    Interval y = n->nin > 1 ? b->of[n->in[1].i] : anything;
    Interval positive = {fmax(x.lo, 0), fmax(x.hi, 0)};
    if (n->fn) return anything;
    switch (op_bound[n->op]) {
    case BOUND_ANYTHING: return anything;
    case BOUND_UNIT: return (Interval){0, 1};
    case BOUND_SIGNED: return (Interval){-1, 1};
    case BOUND_FIRST: return x;
    case BOUND_ALL: return of_all(b, n, 0);
    case BOUND_CHOICE: return of_all(b, n, 1);
    case BOUND_EXP: return exponential(b, n, x);
    case BOUND_POSITIVE: return positive;
    case BOUND_CLIP: return attr_bounds(n, x);
    case BOUND_NEGATIVE: return negative(x);
    case BOUND_MAGNITUDE:
        return (Interval){fmax(positive.lo, -x.hi),
                          fmax(fabs(x.lo), fabs(x.hi))};
    case BOUND_INVERSE: return inverse(x);
    case BOUND_ROOT: return (Interval){sqrt(positive.lo), sqrt(positive.hi)};
    case BOUND_INVERSE_ROOT: return inverse_root(x);
    case BOUND_SUM_OF_ALL: return interval_of_sum(b, n);
    case BOUND_SUM: return sum(x, y);
    case BOUND_DIFFERENCE: return sum(x, negative(y));
    case BOUND_PRODUCT: return multiplied(b, n);
    case BOUND_QUOTIENT: return interval_product(x, inverse(y));
    case BOUND_LEAST: return (Interval){fmin(x.lo, y.lo), fmin(x.hi, y.hi)};
    case BOUND_MOST: return (Interval){fmax(x.lo, y.lo), fmax(x.hi, y.hi)};
    }
    return anything;
}

/* Rounded to the dtype of the value, as its elements are. */
static Interval stored_interval(const Graph *g, ValueId v, Interval x) {
    DType d = value_dtype(g, v);
    if (!(x.lo <= x.hi)) return anything;
    if (!dtype_is_float(d)) return x;
    return (Interval){dtype_nearest(d, x.lo), dtype_nearest(d, x.hi)};
}

static Interval of_leaf(const Graph *g, ValueId v) {
    double c;
    if (value_is_splat(g, v, &c) && isfinite(c)) return (Interval){c, c};
    return value_dtype(g, v) == DT_BOOL ? (Interval){0, 1} : anything;
}

const double *bounds_find(const Graph *g, Arena *a) {
    Bounds b = {g, NEW_ARRAY(a, Interval, g->values.len)};
    double *most = NEW_ARRAY(a, double, g->values.len);
    for (uint32_t v = 0; v < (uint32_t)g->values.len; v++)
        b.of[v] = v ? of_leaf(g, (ValueId){v}) : anything;
    for (int i = 0; i < g->order.len; i++) {
        const Node *n = node_at(g, i);
        for (int k = 0; k < n->nout; k++)
            if (value_dtype(g, n->out[k]) != DT_BOOL)
                b.of[n->out[k].i] =
                    stored_interval(g, n->out[k], interval_of(&b, n));
    }
    for (int v = 0; v < g->values.len; v++)
        most[v] = fmax(fabs(b.of[v].lo), fabs(b.of[v].hi));
    return most;
}
