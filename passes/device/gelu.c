/* SPDX-License-Identifier: Apache-2.0 */
/* gelu.c: products with GELU, or with its slope, behind them, which cuBLASLt
   computes at once (product.h). Its GELU has the form of tanh.

   Forward:  group { %z = matmul .. + bias }  group { %y = gelu_tanh %z }
   Backward: group { %g = matmul .. }
             group { .. %d = mul %g, slope at %z   [%s = reduce_sum %d] }    */
#include "passes/device/product.h"
#include "passes/pattern.h"

/* The gradient of gelu_tanh (std.amp). */
static Pattern gelu_slope = {
    .text = "g * (s + x * (q * 0.134145 + 1) * 1.5957691 * (s * (1 - s))) "
            "where s = sigmoid(x * (q * 0.044715 + 1) * 1.5957691), q = x * x",
    .near = 1e-4};

/* The nodes of a group lie side by side in the order of the graph. */
static int nodes_of(const Graph *g, int first) {
    int n = 1, group = node_at(g, first)->group;
    while (first + n < g->order.len && node_at(g, first + n)->group == group)
        n++;
    return n;
}

/* A result of 16 bits as the library has GELU for, with a bias at most. */
static bool product_of_16(const Graph *g, int first, int n, ValueId *v) {
    const Node *x = node_at(g, first);
    *v = node_at(g, first + n - 1)->out[0];
    if (n > 2 || !product_is_library(g, x) || x->nin != 2 ||
        !dtype_is_low(value_dtype(g, *v)) ||
        value_dtype(g, x->in[0]) != value_dtype(g, *v))
        return false;
    const Type *t[] = {value_type(g, x->in[0]), value_type(g, x->in[1]),
                       value_type(g, x->out[0])};
    LibGemm p = {.nbatch_dim = 0};
    product_shape(x, &p, t);
    return !p.nbatch_dim && p.n % 8 == 0 &&
           (n == 1 || product_end(g, x, &g->order.data[first + 1], 1).how ==
                          PLAN_PRODUCT_BIAS);
}

/* In fp32 from the first node to the last one. */
static bool slope_in_fp32(const Graph *g, const Match *m, int group) {
    for (int i = 0; i < m->nodes; i++) {
        const Node *n = node_get(g, m->node[i]);
        if (n->group != group || (i && value_dtype(g, n->out[0]) != DT_F32))
            return false;
    }
    return true;
}

static bool times_slope(const Graph *g, int first, int n, ProductGelu *x) {
    enum { NODES = 15 };
    if (n != NODES && n != NODES + 1) return false;
    const Node *last = node_at(g, first + n - 1);
    bool sums = last->op == OP_REDUCE_SUM;
    Match m = {0};
    if (sums != (n > NODES)) return false;
    x->out = sums ? last->in[0] : last->out[0];
    x->sums = sums ? last->out[0] : NO_VALUE;
    match_bind(&m, "g", x->product);
    if (!pattern_matches(&gelu_slope, g, x->out, &m)) return false;
    x->at = match_value(&m, "x");
    x->slope = true;
    return m.nodes == NODES && slope_in_fp32(g, &m, last->group) &&
           !same_value(view_root(g, x->at), view_root(g, x->product));
}

bool product_gelu(const Graph *g, int first, int next, ProductGelu *x) {
    int n = nodes_of(g, first), after = nodes_of(g, next);
    *x = (ProductGelu){.slope = false};
    if (!product_of_16(g, first, n, &x->product)) return false;
    const Node *y = node_at(g, next);
    x->at = x->product;
    x->out = y->out[0];
    bool of =
        after == 1 && y->op == OP_GELU_TANH && same_value(y->in[0], x->product);
    if (!of && (n > 1 || !times_slope(g, next, after, x))) return false;
    const Type *t = value_type(g, x->product);
    const Type *at = value_type(g, x->at), *out = value_type(g, x->out);
    return at->dtype == t->dtype && out->dtype == t->dtype &&
           shape_equal(at, t) && shape_equal(out, t);
}
