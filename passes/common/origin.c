/* SPDX-License-Identifier: Apache-2.0 */
/* origin.c: see origin.h. */
#include "passes/common/origin.h"

#include <math.h>

static double largest(const Tensor *t) {
    double most = 0;
    int64_t n = t ? type_count(type_get(t->type)) : 0;
    if (t && !dtype_is_float(type_get(t->type)->dtype)) return 0;
    for (int64_t i = 0; i < n; i++) {
        double v = fabs(tensor_get(t, i));
        if (v > most && !isinf(v)) most = v;
    }
    return most;
}

static void leaf(const Graph *g, ValueId v, Origins *o) {
    const Value *val = value_get(g, v);
    const Var *var = val->kind == VK_VAR ? value_var(g, v) : NULL;
    o->of[v.i] = FROM_DATA;
    if (val->kind == VK_CONST || (var && var->kind == VAR_FROZEN))
        o->of[v.i] = FROM_CONSTANTS;
    if (val->kind == VK_CONST) o->bound[v.i] = largest(val->data);
    if (var && var->kind == VAR_FROZEN)
        o->bound[v.i] = var->init        ? largest(var->init)
                        : var->draw.kind ? draw_bound(&var->draw)
                                         : fabs(var->fill);
}

Origin origin_joined(const Graph *g, const Origins *o, const Node *n) {
    Origin most = FROM_CONSTANTS;
    for (int k = 0; k < n->nin; k++)
        if (n->in[k].i && dtype_is_float(value_dtype(g, n->in[k])) &&
            o->of[n->in[k].i] > most)
            most = o->of[n->in[k].i];
    return most;
}

static Origin origin(const Graph *g, const Origins *o, const Node *n) {
    DType d = n->nin ? value_dtype(g, n->in[0]) : NUM_DTYPES;
    if (n->op == OP_CAST && !dtype_is_float(d)) {
        /* integers of 8 bits are pixels, which 16-bit floats hold */
        bool counts = dtype_is_int(d) && dtype_info[d].bytes > 1;
        return counts ? FROM_POSITIONS : FROM_DATA;
    }
    if (n->op == OP_IOTA) return FROM_POSITIONS;
    if (n->fn || n->op == OP_SIN || n->op == OP_COS || n->op == OP_RAND_UNIFORM)
        return FROM_DATA;
    return origin_joined(g, o, n);
}

static double bound(const Graph *g, const Origins *o, const Node *n) {
    double most = 0, least = INFINITY, sum = 0;
    for (int k = 0; k < n->nin; k++) {
        if (!n->in[k].i || !dtype_is_float(value_dtype(g, n->in[k]))) continue;
        double b = o->bound[n->in[k].i];
        most = fmax(most, b);
        least = fmin(least, b);
        sum += b;
    }
    switch (node_kind(n)) {
    case KIND_VIEW:
    case KIND_MOVE: return most;
    case KIND_ELEM:
        if (n->op == OP_ADD || n->op == OP_SUB) return sum;
        if (n->op == OP_MUL) return least > 0 ? least * most : 0;
        if (n->op == OP_DIV) return o->bound[n->in[0].i];
        if (n->op == OP_WHERE || n->op == OP_NEG || n->op == OP_RELU ||
            n->op == OP_MIN || n->op == OP_MAX || n->op == OP_ABS)
            return most;
        if (n->op == OP_CAST && dtype_is_float(value_dtype(g, n->in[0])))
            return most;
        break;
    case KIND_GEN:
        if (n->op == OP_FULL) return fabs(attr_float(n, AK_value));
        break;
    case KIND_REDUCE:
    case KIND_ANCHOR:
    case KIND_LIB:
    case KIND_COMPOSITE: break;
    }
    return o->of[n->out[0].i] == FROM_DATA ? 0 : INFINITY;
}

Origins origins_of(const Graph *g, Arena *a) {
    Origins o = {NEW_ARRAY(a, Origin, g->values.len),
                 NEW_ARRAY(a, double, g->values.len)};
    for (uint32_t v = 1; v < (uint32_t)g->values.len; v++)
        if (value_get(g, (ValueId){v})->kind != VK_RESULT)
            leaf(g, (ValueId){v}, &o);
    for (int i = 0; i < g->order.len; i++) {
        const Node *n = node_at(g, i);
        Origin from = origin(g, &o, n);
        for (int k = 0; k < n->nout; k++) o.of[n->out[k].i] = from;
        double most = bound(g, &o, n);
        for (int k = 0; k < n->nout; k++) o.bound[n->out[k].i] = most;
    }
    return o;
}

bool origin_fits(const Node *n, double most, DType d) {
    bool sums = n->op == OP_ADD || n->op == OP_SUB;
    if (sums) return most <= ldexp(1, dtype_info[d].mantissa);
    return most <= dtype_info[d].most / 2;
}
