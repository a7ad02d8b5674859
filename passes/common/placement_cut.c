/* SPDX-License-Identifier: Apache-2.0 */
/* placement_cut.c: the choice of pass place as a minimum s-t cut, and its
   cost (placement.c has the order of costs). */
#include "passes/common/placement_impl.h"

CutCost place_cost(const Place *p, ValueId v, bool low) {
    static const Traffic none;
    const Traffic *t = &p->traffic[v.i], *copy = &none;
    int64_t n = value_count(p->g, v), half = 2 * n, full = 4 * n;
    CutCost c = {{0}};
    if (p->f.cast[v.i].i) copy = &p->traffic[p->f.cast[v.i].i];
    if (low && (t->stored || copy->stored)) {
        c.of[STEP_BYTES] = half * (1 + t->reads + copy->reads);
        c.of[SAVED_BYTES] = t->saved || copy->saved ? half : 0;
    }
    if (low) return c;
    if (t->stored) c.of[STEP_BYTES] += full * (1 + t->reads);
    if (copy->stored) c.of[STEP_BYTES] += half * (1 + copy->reads);
    c.of[SAVED_BYTES] = (t->saved ? full : 0) + (copy->saved ? half : 0);
    return c;
}

static CutCost rounding(const Place *p, ValueId v) {
    CutCost c = {{0}};
    c.of[PRICE] = p->price[v.i];
    c.of[ROUNDINGS] = 1;
    return c;
}

static void agree(Place *p, ValueId v, ValueId w) {
    cut_low_implies_low(p->cut, (int)v.i, (int)w.i);
    cut_low_implies_low(p->cut, (int)w.i, (int)v.i);
}

bool is_tied(const Place *p, const Node *n) {
    return shares_type(n) && dtype_of(p->g, n->in[0]) == DT_F32 &&
           dtype_of(p->g, n->out[0]) == DT_F32;
}

bool is_selection(const Node *n) {
    OpKind kind = node_kind(n);
    return kind == KIND_MOVE || kind == KIND_VIEW || n->op == OP_RELU ||
           n->op == OP_MAX_POOL;
}

static void add_node(Place *p, const Node *n) {
    ValueId v = n->out[0];
    if (dtype_of(p->g, v) != DT_F32) return;
    if (is_tied(p, n)) agree(p, v, n->in[0]);
    if (!is_selection(n)) {
        cut_if_low(p->cut, (int)v.i, rounding(p, v));
        return;
    }
    for (int k = 0; k < n->nin; k++)
        if (has_float(p->g, n->in[k]))
            cut_if_low_high(p->cut, (int)v.i, (int)n->in[k].i, rounding(p, v));
}

/* Forward stores this mask for backward, of a value whose 16-bit copy is
   stored, too: if the value is low, backward can read it instead of the
   mask. */
bool mask_cost(const Place *p, const Node *n, ValueId v, CutCost *high,
               CutCost *low) {
    const Traffic *mask = &p->traffic[n->out[0].i];
    int64_t count = value_count(p->g, n->out[0]);
    ValueId copy = p->f.cast[v.i];
    if (!(n->flags & NODE_BACKWARD) || dtype_of(p->g, n->out[0]) != DT_BOOL ||
        !mask->stored || !copy.i || !p->traffic[copy.i].stored ||
        !is_forward(p->g, v) || value_count(p->g, v) != count)
        return false;
    *high = *low = (CutCost){{0}};
    high->of[STEP_BYTES] = count * (1 + mask->reads);
    high->of[SAVED_BYTES] = count;
    low->of[STEP_BYTES] = 2 * count * mask->reads;
    return true;
}

static void add_mask(Place *p, const Node *n) {
    CutCost high, low;
    for (int k = 0; k < n->nin; k++) {
        if (!mask_cost(p, n, n->in[k], &high, &low)) continue;
        cut_if_high(p->cut, (int)n->in[k].i, high);
        cut_if_low(p->cut, (int)n->in[k].i, low);
    }
}

static void build_cut(Place *p, Arena *a) {
    Graph *g = p->g;
    p->cut = cut_new(a, g->values.len);
    for (int v = 1; v < g->values.len; v++) {
        ValueId id = {(uint32_t)v};
        DType d = value_dtype(g, id);
        if (is_updates(g, id)) continue;
        if (!p->free[v]) cut_force(p->cut, v, d == p->low);
        if (d != DT_F32) continue;
        cut_if_low(p->cut, v, place_cost(p, id, true));
        cut_if_high(p->cut, v, place_cost(p, id, false));
        if (p->f.cast[v].i) cut_if_high(p->cut, v, rounding(p, id));
    }
    for (int i = 0; i < g->order.len; i++) {
        const Node *n = node_at(g, i);
        if (n->flags & NODE_UPDATE) continue;
        add_node(p, n);
        add_mask(p, n);
    }
}

CutCost place_cut(Place *p, bool *low, Arena *a) {
    CutCost total;
    build_cut(p, a);
    bool possible = cut_solve(p->cut, low, &total);
    ASSERT(possible && "what is forced does not contradict itself");
    return total;
}
