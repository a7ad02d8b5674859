/* SPDX-License-Identifier: Apache-2.0 */
/* placement_high.c: values that pass place must leave in fp32, and the reasons
   (placement.c has the rules). */
#include <math.h>

#include "passes/common/placement_impl.h"
#include "passes/rewrite.h"

const char place_stream[] = "a residual stream";
static const char gradient[] = "a gradient";
static const char of_ranks[] = "of all ranks";

static bool leaves_short_range(const Node *n) {
    return op_numeric[n->op].leaves_short_range ||
           (n->op == OP_MUL && same_value(n->in[0], n->in[1]));
}

/* The reason why result k of n is high (from the type rule; an op's own
   reason holds for the first result); NULL: none. */
static const char *must_be_high(const Place *p, const Node *n, int k) {
    OpKind kind = node_kind(n);
    ValueId v = n->out[0];
    if (n->flags & NODE_UPDATE) return "the update is fp32";
    if (n->op == OP_RANK_MAX) return of_ranks;
    if (k && dtype_of(p->g, n->out[k]) == DT_F32 &&
        !node_may_store(p->g, n, k, p->low))
        return "a sum";
    if (node_wide_by_policy(n)) return "the policy";
    if (n->loc.amp && value_count(p->g, v) > 1) return NULL;
    if (p->f.origins.of[v.i] != FROM_DATA) return "made of integers";
    if (p->whole && p->whole[v.i]) return place_stream;
    if (p->f.few[v.i] || value_count(p->g, v) == 1) return "a sum";
    if (kind == KIND_GEN) return "made by a generator";
    if (op_numeric[n->op].stores) return op_numeric[n->op].stores;
    if (n->op == OP_RANK_SUM) return of_ranks;
    if (dtype_is_short(p->low) && leaves_short_range(n)) return "range of fp16";
    if (kind == KIND_ELEM && !origin_fits(n, p->f.origins.bound[v.i], p->low))
        return "huge constants";
    return p->f.exact[v.i];
}

/* True if n multiplies v by a constant of magnitude below 1. */
static bool takes_a_part(const Graph *g, const Node *n, ValueId v) {
    double c;
    if (n->op == OP_DIV)
        return same_value(n->in[0], v) && value_is_splat(g, n->in[1], &c) &&
               fabs(c) > 1;
    for (int k = 0; k < 2 && n->op == OP_MUL; k++)
        if (value_is_splat(g, n->in[k], &c) && fabs(c) < 1) return true;
    return false;
}

static const char *demand(const Place *p, const Node *reader, ValueId v) {
    if (reader->flags & NODE_UPDATE) return gradient;
    if (reader->loc.amp && node_class(reader) == AMP_FULL) return "the policy";
    if (broadcasts(p->g, reader, v) &&
        !(reader->op == OP_EXPAND && p->f.copied[reader->out[0].i]))
        return "broadcast";
    if (op_numeric[reader->op].reads) return op_numeric[reader->op].reads;
    if (op_of_ranks(reader->op)) return of_ranks;
    if (op_info[reader->op].amp == AMP_LOW && dtype_of(p->g, v) == DT_F32)
        return "a product that reads fp32";
    if (dtype_is_short(p->low) && !reader->flags &&
        def_of(p->g, v, OP_MATMUL) && takes_a_part(p->g, reader, v))
        return "range of fp16";
    return NULL;
}

/* Addends of a parameter's gradient are fp32, too: the sum takes the place of
   the first one, and no memory of its own. */
static void keep_addends(Place *p) {
    for (int i = p->g->order.len - 1; i >= 0; i--) {
        const Node *n = node_at(p->g, i);
        if (n->op != OP_ADD || !(n->flags & NODE_BACKWARD) ||
            p->high[n->out[0].i] != gradient)
            continue;
        for (int k = 0; k < 2; k++)
            if (!p->high[n->in[k].i]) p->high[n->in[k].i] = gradient;
    }
}

static void find_free(Place *p) {
    Graph *g = p->g;
    for (int i = 0; i < g->order.len; i++) {
        const Node *n = node_at(g, i);
        for (int k = 0; k < n->nin; k++)
            if (n->in[k].i && !p->high[n->in[k].i])
                p->high[n->in[k].i] = demand(p, n, n->in[k]);
        for (int k = 0; k < n->nout; k++) {
            ValueId v = n->out[k];
            if (!p->high[v.i]) p->high[v.i] = must_be_high(p, n, k);
            p->free[v.i] = dtype_of(g, v) == DT_F32;
        }
    }
    keep_addends(p);
    for (int i = 0; i < g->outputs.len; i++)
        p->high[g->outputs.data[i].value.i] = "an output";
    for (int i = 0; i < g->writes.len; i++)
        p->high[g->writes.data[i].value.i] = "a variable";
    for (uint32_t v = 0; v < (uint32_t)g->values.len; v++) {
        p->free[v] &= !p->high[v];
        p->stream[v] = p->f.stream[v] && p->free[v];
        if (p->stream[v]) place_hold_stream(p, (ValueId){v}, true);
    }
}

Place place_new(Graph *g, const bool *whole, Arena *a) {
    int n = g->values.len;
    Place p = {.g = g, .values = n, .low = g->module->low, .whole = whole};
    p.f = facts_of(g, a);
    p.high = NEW_ARRAY(a, const char *, n);
    p.free = NEW_ARRAY(a, bool, n);
    p.stream = NEW_ARRAY(a, bool, n);
    p.price = NEW_ARRAY(a, int, n);
    find_free(&p);
    return p;
}
