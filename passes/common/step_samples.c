/* SPDX-License-Identifier: Apache-2.0 */
/* step_samples.c: what pass optimizer puts in place of the shares and masks of
   pass samples. */
#include "passes/passes.h"
#include "passes/rewrite.h"

#include <string.h>

static void put_samples(Graph *g, ValueId old, ValueId with) {
    for (int i = 0; i < g->order.len; i++) {
        const Node *n = node_at(g, i);
        for (int k = 0; k < n->nin; k++)
            if (same_value(n->in[k], old)) n->in[k] = with;
    }
    for (int i = 0; graph_root(g, i); i++)
        if (same_value(*graph_root(g, i), old)) *graph_root(g, i) = with;
}

static void put_own(Graph *g, OwnVar var, ValueId with) {
    int v = module_find_own_var(g->module, var, g->objective);
    ValueId old = v >= 0 ? graph_find_var(g, v) : NO_VALUE;
    if (old.i) put_samples(g, old, with);
}

static ValueId take_own(Graph *g, OwnOutput o) {
    return graph_take_output(g, own_output(o, g->objective));
}

bool samples_sum(const Graph *g) {
    double share;
    ValueId v = graph_output(g, own_output(OUT_SHARE, g->objective));
    return v.i && value_is_splat(g, v, &share) && share == 0;
}

/* True if v is computed from inputs. */
static bool reads_inputs(const Graph *g, ValueId v) {
    const Value *val = value_get(g, v);
    if (val->kind != VK_RESULT) return val->kind == VK_INPUT;
    const Node *n = node_get(g, val->def);
    for (int i = 0; i < n->nin; i++)
        if (n->in[i].i && reads_inputs(g, n->in[i])) return true;
    return false;
}

ValueId samples_weigh(Graph *g) {
    ValueId share = take_own(g, OUT_SHARE);
    take_own(g, OUT_ROWS);
    if (!share.i || value_get(g, share)->kind == VK_CONST)
        share = graph_scalar(g, DT_F32, 1);
    put_own(g, OWN_SHARES, share);
    return share;
}

/* Ones of that type: a constant, with which simplify folds what reads them,
   unless they are more elements than it folds. Then a node makes them, the
   first of the graph: time and memory of the compiler do not grow with them. */
static ValueId ones(Graph *g, TypeId type) {
    if (type_count(type_get(type)) <= FOLD_LIMIT) {
        Tensor *t = tensor_new(g->arena, type);
        tensor_set(t, 0, 1);
        tensor_repeat(t);
        return graph_const(g, "ampc.rows", t);
    }
    Builder b = {.g = g};
    ValueId made = b_full(&b, type, 1);
    NodeId *order = g->order.data, last = order[g->order.len - 1];
    memmove(order + 1, order, (size_t)(g->order.len - 1) * sizeof *order);
    order[0] = last;
    return made;
}

bool samples_all(Graph *g) {
    ValueId rows = take_own(g, OUT_ROWS), share = take_own(g, OUT_SHARE);
    bool labels = share.i && reads_inputs(g, share);
    put_own(g, OWN_SHARES, graph_scalar(g, DT_F32, 1));
    if (!rows.i) return labels;
    put_samples(g, rows, ones(g, value_get(g, rows)->type));
    /* the divisor for an incomplete batch */
    int64_t batch = value_type(g, rows)->dim[0];
    put_own(g, OWN_VALID, graph_scalar_int(g, DT_I32, batch));
    return labels;
}
