/* SPDX-License-Identifier: Apache-2.0 */
/* placement_spare.c: values that pass place leaves in fp32 because that costs
   few bytes (placement.c has the rules). */
#include "passes/common/placement_impl.h"
#include "passes/rewrite.h"

/* Per value: true if a forward product depends on the value. Pools count
   as products, since their operand would become high, too. */
static bool *find_ahead(const Place *p, Arena *a) {
    const Graph *g = p->g;
    bool *ahead = NEW_ARRAY(a, bool, g->values.len);
    for (int i = g->order.len - 1; i >= 0; i--) {
        const Node *n = node_at(g, i);
        bool any = op_info[n->op].amp == AMP_LOW || n->op == OP_MAX_POOL ||
                   n->op == OP_AVG_POOL;
        if (n->flags) continue;
        for (int k = 0; k < n->nout; k++) any |= ahead[n->out[k].i];
        for (int k = 0; k < n->nin; k++) ahead[n->in[k].i] |= any;
    }
    return ahead;
}

static void spare(Place *p, ValueId v, const char *why) {
    p->free[v.i] = false;
    p->high[v.i] = why;
}

/* Makes log-softmax values high, and values computed from them with at most
   1/8 as many elements. */
static void spare_logs(Place *p, const bool *ahead, Arena *a) {
    const Graph *g = p->g;
    int64_t *of = NEW_ARRAY(a, int64_t, g->values.len); /* elements; 0: none */
    for (int i = 0; i < g->order.len; i++) {
        const Node *n = node_at(g, i);
        OpKind kind = node_kind(n);
        ValueId v = n->out[0];
        if (n->flags || ahead[v.i] ||
            (kind != KIND_ELEM && kind != KIND_MOVE && kind != KIND_VIEW))
            continue;
        for (int k = 0; k < n->nin; k++)
            if (of[n->in[k].i] > of[v.i]) of[v.i] = of[n->in[k].i];
        bool log = n->op == OP_SUB && def_of(g, n->in[1], OP_LOG) &&
                   p->f.few[n->in[1].i] && broadcasts(g, n, n->in[1]);
        if (log) of[v.i] = value_count(g, v);
        if ((log || value_count(g, v) * 8 <= of[v.i]) && p->free[v.i] &&
            !n->loc.amp && !shares_type(n))
            spare(p, v, "the log of a softmax");
    }
}

/* Bytes that v adds to a step if it is high. */
static int64_t bytes_of_high(const Place *p, ValueId v) {
    return 2 * value_count(p->g, v) * (1 + p->traffic[v.i].reads);
}

enum { FEW = 2048 };

/* Makes the result of n high if it has few elements or if `*left` bytes
   suffice for it. */
static void spare_cheap(Place *p, const Node *n, int64_t *left,
                        const char *why) {
    ValueId v = n->out[0];
    bool few = value_count(p->g, v) <= FEW;
    int64_t more = few ? 0 : bytes_of_high(p, v);
    if (more > *left) return;
    *left -= more;
    spare(p, v, why);
}

void place_spare(Place *p, Arena *a) {
    enum { LOSS_PART = 128, SCORES_PART = 64, LARGE_PART = 8 };
    const Graph *g = p->g;
    const bool *ahead = find_ahead(p, a);
    int64_t all = 0 /* in 16 bits */, large = FEW * LARGE_PART;
    spare_logs(p, ahead, a);
    for (uint32_t v = 1; v < (uint32_t)g->values.len; v++) {
        ValueId id = {v};
        if (!p->free[v] || !p->traffic[v].stored) continue;
        all += bytes_of_high(p, id);
        if (value_count(g, id) > large) large = value_count(g, id);
    }
    int64_t of_loss = all / LOSS_PART, of_scores = all / SCORES_PART;
    for (int i = g->order.len - 1; i >= 0; i--) {
        const Node *n = node_at(g, i);
        ValueId v = n->out[0];
        if (n->flags || n->loc.amp || shares_type(n) || !p->free[v.i] ||
            !p->traffic[v.i].stored)
            continue;
        if (p->f.scores[v.i])
            spare_cheap(p, n, &of_scores, "the operand of a softmax");
        else if (!ahead[v.i] && value_count(g, v) * LARGE_PART <= large)
            spare_cheap(p, n, &of_loss, "near the loss");
    }
}
