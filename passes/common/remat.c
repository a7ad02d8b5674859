/* SPDX-License-Identifier: Apache-2.0 */
/* remat.c: backward recomputes values, so that forward need not store them.
   Before:  %s = sigmoid %x      %y = mul %x, %s
            %d = mul %dy, %s : f32[4,8] !backward
   After:   %s.2 = sigmoid %x : f32[4,8] !backward !again
            %d = mul %dy, %s.2 : f32[4,8] !backward
   The second node has the types and operands of the first, and random numbers
   depend on a key only, so its bits are the same.  It is placed before its
   first reader.
   A minimum cut between forward and backward decides what is stored and what
   is recomputed: fewest bytes stored, where exp and similar work counts as one
   byte per element, then least work.
     - In a checkpoint region only values that other regions read are stored;
       all others are recomputed, products too.
     - Elsewhere only free work is recomputed: element-wise work (generators,
       views) on one large value whose result no product or library routine of
       backward needs in memory.  If that large value is a host input or a
       variable, which is in memory anyway, its work is free even if the result
       is needed in memory (as the copy of an image that products read).
       Readers of recomputed values read the large value instead.  If kernels
       would then move more than 1/25 more bytes than without recomputation,
       recomputed values that reach memory are stored after all; if that does
       not help, nothing is recomputed.
     - In 16 bits kernels may move up to 1/128 more bytes so that storage is
       half of that of f32: statistics of norms and softmax are f32 in both,
       and masks and positions take a byte.  As much free work as needed is
       recomputed even though a product of backward reads its result.
   --remat none: recomputes nothing, in regions neither.
   --remat BYTES: limits the bytes stored plus the largest part that is
   recomputed at once.  Tried in turn:
     - free work
     - free work even if its result is needed in memory
     - regions chosen by the compiler, 2 to 32 of equal length between narrow
       places of forward; only as many of the first ones as suffice.
   requires     stage PRIMITIVE, types chosen
   establishes  backward nodes with !again                                   */
#include "passes/common/keep.h"
#include "passes/common/mincut.h"
#include "passes/common/traffic.h"
#include "passes/rewrite.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum { KEPT_BYTES, WORK };

/* Variables of the cut. Per value: low means that backward needs it. After
   these, per node: low means that it is recomputed. */
typedef struct Recompute {
    Graph *g;
    int *part;    /* per node: the compiler's region; 0: none */
    int64_t kept; /* bytes of the solution                                */
    const int64_t *bytes; /* per value: if it is stored (keep.h) */
    Arena *a;
    Cut *cut;
    bool *low;
    int nodes; /* the first variable of nodes                          */
    int last;  /* the variable after the last; recomputed nodes have none */
    bool *material; /* per root: a product or routine of backward reads it */
    bool *leaves;   /* per root: forward reads it outside of its region */
    ValueId *from;  /* per root: the one large value from which free work
                       computes  it */
    bool *free;     /* per node */
    bool *barred;   /* per node: must not be recomputed, even if free */
    bool *stores;   /* per node: free even if its result is needed in memory */
    int *position;  /* per node */
    ValueId *twin;  /* per value of the old graph: the recomputed value */
} Recompute;

static bool is_view(const Node *n) { return node_kind(n) == KIND_VIEW; }

/* ---- what may be computed again ------------------------------------------ */

/* The user's region, or the compiler's if there is none. The compiler's
   casts and views belong to the region of their operand. */
static int region_of(const Recompute *r, NodeId id) {
    const Node *n = node_get(r->g, id);
    while (!n->loc.region && (is_view(n) || n->op == OP_CAST) &&
           is_forward(r->g, n->in[0])) {
        id = value_get(r->g, n->in[0])->def;
        n = node_get(r->g, id);
    }
    return n->loc.region ? n->loc.region : -r->part[id.i];
}

static void note_readers(Recompute *r) {
    const Graph *g = r->g;
    for (int i = 0; i < g->order.len; i++) {
        const Node *n = node_at(g, i);
        OpKind kind = node_kind(n);
        for (int k = 0; k < n->nin; k++) {
            ValueId v = n->in[k].i ? view_root(g, n->in[k]) : NO_VALUE;
            if (!is_forward(g, v)) continue;
            if (n->flags & NODE_BACKWARD)
                r->material[v.i] |= kind == KIND_ANCHOR || kind == KIND_LIB;
            else
                r->leaves[v.i] |= region_of(r, value_get(g, v)->def) !=
                                  region_of(r, g->order.data[i]);
        }
    }
    for (int i = 0; graph_root(g, i); i++)
        r->leaves[view_root(g, *graph_root(g, i)).i] = true;
}

/* True if n is element-wise work with at most one operand about as large as
   its result. *from: that operand, or the value from which free work
   computes it. */
static bool is_free(const Recompute *r, NodeId id, ValueId *from) {
    const Graph *g = r->g;
    const Node *n = node_get(g, id);
    OpKind kind = node_kind(n);
    *from = NO_VALUE;
    if ((kind != KIND_ELEM && kind != KIND_GEN) ||
        op_info[n->op].cost > COST_LONG)
        return false;
    for (int k = 0; k < n->nin; k++) {
        ValueId v = r->from[view_root(g, n->in[k]).i];
        if (value_count(g, n->in[k]) * 8 <= value_count(g, n->out[0])) continue;
        if (from->i && !same_value(v, *from)) return false;
        *from = v;
    }
    return !r->material[n->out[0].i] || r->stores[id.i] ||
           (from->i && !is_forward(g, *from));
}

static void note_free(Recompute *r) {
    const Graph *g = r->g;
    memset(r->free, 0, (size_t)(r->last - r->nodes) * sizeof *r->free);
    for (int v = 0; v < r->nodes; v++) r->from[v].i = (uint32_t)v;
    for (int i = 0; i < g->order.len; i++) {
        const Node *n = node_at(g, i);
        ValueId from;
        if (n->flags || is_view(n) || r->barred[g->order.data[i].i] ||
            !is_free(r, g->order.data[i], &from))
            continue;
        r->free[g->order.data[i].i] = true;
        if (from.i) r->from[n->out[0].i] = from;
    }
}

/* Recomputing it would make ranks communicate once more. */
static bool may_again(const Recompute *r, NodeId id) {
    const Node *n = node_get(r->g, id);
    bool leaves = false;
    if (is_view(n)) return true;
    for (int k = 0; k < n->nout; k++) leaves |= r->leaves[n->out[k].i];
    if (region_of(r, id)) return !leaves && !op_of_ranks(n->op);
    return r->free[id.i];
}

/* ---- the cut ------------------------------------------------------------- */

static void remat_add_node(Recompute *r, NodeId id) {
    const Graph *g = r->g;
    const Node *n = node_get(g, id);
    int again = r->nodes + (int)id.i;
    bool may = may_again(r, id);
    bool must = is_view(n) || (may && region_of(r, id));
    CutCost work = {{0}};
    if (!may) {
        cut_force(r->cut, again, false);
    } else if (!must) {
        int64_t count = value_count(g, n->out[0]);
        work.of[KEPT_BYTES] = op_info[n->op].cost >= COST_LONG ? count : 0;
        work.of[WORK] = count;
        cut_if_low(r->cut, again, work);
    }
    for (int k = 0; k < n->nin; k++)
        if (is_forward(g, n->in[k]))
            cut_low_implies_low(r->cut, again, (int)n->in[k].i);
    for (int k = 0; k < n->nout; k++) {
        CutCost kept = {{0}};
        kept.of[KEPT_BYTES] = r->bytes[n->out[k].i];
        if (must)
            cut_low_implies_low(r->cut, (int)n->out[k].i, again);
        else
            cut_if_low_high(r->cut, (int)n->out[k].i, again, kept);
    }
}

static int64_t remat_bytes_of(const Graph *g, ValueId v) {
    return type_bytes(value_type(g, v));
}

/* True if forward stores v for backward. */
static bool remat_is_kept(const Recompute *r, ValueId v) {
    if (!is_forward(r->g, v) || !r->low[v.i]) return false;
    NodeId id = value_get(r->g, v)->def;
    return !r->low[r->nodes + (int)id.i] && !is_view(node_get(r->g, id));
}

static void solve(Recompute *r) {
    const Graph *g = r->g;
    CutCost total;
    memset(r->leaves, 0, (size_t)r->nodes * sizeof *r->leaves);
    note_readers(r);
    note_free(r);
    r->cut = cut_new(r->a, r->last);
    r->low = NEW_ARRAY(r->a, bool, r->last);
    for (int i = 0; i < g->order.len; i++) {
        const Node *x = node_at(g, i);
        if (!x->flags) remat_add_node(r, g->order.data[i]);
        for (int k = 0; k < x->nin && x->flags & NODE_BACKWARD; k++)
            if (is_forward(g, x->in[k]))
                cut_force(r->cut, (int)x->in[k].i, true);
    }
    bool possible = cut_solve(r->cut, r->low, &total);
    ASSERT(possible && "what must be computed again may be");
    r->kept = 0;
    for (uint32_t v = 1; v < (uint32_t)r->nodes; v++)
        if (remat_is_kept(r, (ValueId){v})) r->kept += r->bytes[v];
}

/* ---- a budget ------------------------------------------------------------ */

/* Forward in execution order, and the values that are stored if only free
   work is recomputed. */
typedef struct Line {
    NodeId *node;
    int n;
    bool *kept;     /* per value */
    int64_t *made;  /* [n + 1] stored bytes computed by earlier nodes */
    int64_t *cross; /* [n + 1] bytes computed earlier and read later */
} Line;

static Line line_new(const Recompute *r) {
    const Graph *g = r->g;
    Line l = {.node = NEW_ARRAY(r->a, NodeId, g->order.len + 1),
              .kept = NEW_ARRAY(r->a, bool, r->nodes),
              .made = NEW_ARRAY(r->a, int64_t, g->order.len + 2),
              .cross = NEW_ARRAY(r->a, int64_t, g->order.len + 2)};
    int *last = NEW_ARRAY(r->a, int, r->nodes); /* per root: last reader + 1 */
    for (int i = 0; i < g->order.len; i++) {
        const Node *n = node_at(g, i);
        if (n->flags) continue;
        for (int k = 0; k < n->nin; k++)
            if (n->in[k].i) last[view_root(g, n->in[k]).i] = l.n + 1;
        l.node[l.n++] = g->order.data[i];
    }
    for (int i = 0; i < l.n; i++) {
        const Node *n = node_get(g, l.node[i]);
        l.made[i + 1] = l.made[i];
        for (int k = 0; k < n->nout; k++) {
            int64_t bytes = is_view(n) ? 0 : r->bytes[n->out[k].i];
            l.kept[n->out[k].i] = remat_is_kept(r, n->out[k]);
            if (l.kept[n->out[k].i]) l.made[i + 1] += bytes;
            if (last[n->out[k].i] <= i + 1) continue;
            l.cross[i + 1] += bytes;
            l.cross[last[n->out[k].i]] -= bytes;
        }
    }
    for (int i = 0; i < l.n; i++) l.cross[i + 1] += l.cross[i];
    return l;
}

/* The narrowest place within half a part of the end of part i of n; if
   several are equal, the nearest one. */
static int end_of_part(const Line *l, int i, int n) {
    int64_t half = l->made[l->n] / (2 * n), end = 2 * half * i, best = half + 1;
    int found = l->n;
    for (int at = 1; at <= l->n; at++) {
        int64_t away = llabs(l->made[at] - end);
        if (away > half || (best <= half && l->cross[at] > l->cross[found]) ||
            (best <= away && l->cross[at] == l->cross[found]))
            continue;
        best = away;
        found = at;
    }
    return found;
}

/* The first m of the n parts become regions. */
static void make_parts(Recompute *r, const Line *l, int m, int n) {
    memset(r->part, 0, (size_t)(r->last - r->nodes) * sizeof *r->part);
    for (int i = 1, at = 0; i <= m; i++)
        for (int end = end_of_part(l, i, n); at < end; at++)
            r->part[l->node[at].i] = i;
}

/* Bytes stored, plus the largest part that is recomputed at once. */
static int64_t bytes_held(const Recompute *r, const Line *l) {
    int64_t most = 0, sum = 0;
    for (int i = 0, part = 0; i < l->n; i++) {
        const Node *n = node_get(r->g, l->node[i]);
        if (r->part[l->node[i].i] != part) sum = 0;
        part = r->part[l->node[i].i];
        for (int k = 0; k < n->nout && part; k++)
            if (l->kept[n->out[k].i] && !remat_is_kept(r, n->out[k]))
                sum += type_bytes(value_type(r->g, n->out[k]));
        if (sum > most) most = sum;
    }
    return r->kept + most;
}

static Status fit(Recompute *r, PassCtx *cx) {
    enum { PARTS = 32 };
    int64_t budget = cx->opt->remat_bytes, least = r->kept;
    if (least <= budget) return OK;
    Line l = line_new(r);
    memset(r->stores, 1, (size_t)(r->last - r->nodes) * sizeof *r->stores);
    solve(r);
    least = r->kept;
    for (int m = 1; m < PARTS; m++)
        for (int n = PARTS; n >= 2; n /= 2) {
            if (least <= budget) return OK;
            if (m * n % PARTS)
                continue; /* the regions are not whole parts
                             of n */
            make_parts(r, &l, m * n / PARTS, n);
            solve(r);
            int64_t held = bytes_held(r, &l);
            if (held < least) least = held;
        }
    if (least <= budget) return OK;
    return fail(cx->diag, (Loc){.file = r->g->module->file},
                "--remat %" PRId64 ": graph %s needs %" PRId64
                " bytes for values that backward reads",
                budget, r->g->name, least);
}

/* ---- the nodes of backward ----------------------------------------------- */

typedef struct Made {
    int at; /* position */
    NodeId node;
} Made;

typedef VEC(Made) MadeList;

static int by_position(const void *a, const void *b) {
    return ((const Made *)a)->at - ((const Made *)b)->at;
}

static ValueId twin_of(const Recompute *r, ValueId v) {
    return v.i < (uint32_t)r->nodes && r->twin[v.i].i ? r->twin[v.i] : v;
}

static void make_again(Recompute *r, NodeId id) {
    Graph *g = r->g;
    Node n = *node_get(g, id); /* building may move the pool */
    ValueId *in = NEW_ARRAY(r->a, ValueId, n.nin + 1);
    bool changed = !is_view(&n);
    for (int k = 0; k < n.nin; k++) {
        in[k] = twin_of(r, n.in[k]);
        changed |= !same_value(in[k], n.in[k]);
    }
    if (!changed) return; /* a view of a stored value */
    Builder b = {.g = g, .flags = NODE_BACKWARD | NODE_AGAIN, .loc = n.loc};
    NodeId twin = build_again(&b, id, in);
    for (int k = 0; k < n.nout; k++) {
        r->twin[n.out[k].i] = node_get(g, twin)->out[k];
        value_get(g, r->twin[n.out[k].i])->why = value_get(g, n.out[k])->why;
    }
}

/* Recomputes everything that backward node `id` needs; the new nodes stand
   before it, in the order of forward. */
static void give_twins(Recompute *r, NodeId id, bool *done) {
    Graph *g = r->g;
    MadeList list = {0};
    for (int i = -1; i < list.len; i++) {
        const Node *n = node_get(g, i < 0 ? id : list.data[i].node);
        for (int k = 0; k < n->nin; k++) {
            if (!is_forward(g, n->in[k])) continue;
            NodeId maker = value_get(g, n->in[k])->def;
            if (done[maker.i] || !r->low[r->nodes + (int)maker.i]) continue;
            done[maker.i] = true;
            vec_push(r->a, &list, ((Made){r->position[maker.i], maker}));
        }
    }
    if (list.len)
        qsort(list.data, (size_t)list.len, sizeof *list.data, by_position);
    for (int i = 0; i < list.len; i++) make_again(r, list.data[i].node);
    Node *n = node_get(g, id);
    for (int k = 0; k < n->nin; k++) n->in[k] = twin_of(r, n->in[k]);
}

static void make_all(Recompute *r) {
    Graph *g = r->g;
    int n;
    NodeId *old = order_take(g, r->a, &n);
    bool *done = NEW_ARRAY(r->a, bool, g->nodes.len);
    memset(r->twin, 0, (size_t)r->nodes * sizeof *r->twin);
    for (int i = 0; i < n; i++) {
        if (node_get(g, old[i])->flags & NODE_BACKWARD)
            give_twins(r, old[i], done);
        vec_push(g->arena, &g->order, old[i]);
    }
}

/* ---- recomputing free work must hardly move more bytes ------------------- */

/* Fills *trial with a copy of the graph with the recomputed nodes. The copy
   has an arena of its own, which the caller frees. */
static void try_out(const Recompute *r, Recompute *trial, Module *aside) {
    *trial = *r;
    trial->a = arena_new();
    trial->g = graph_clone_aside(r->g, aside, trial->a);
    make_all(trial);
}

/* Bytes that kernels move, estimated on a copy of the graph with the
   recomputed nodes. */
static int64_t bytes_moved(const Recompute *r, Traffic **traffic, PassCtx *cx) {
    Recompute trial;
    Module aside;
    int64_t sum = 0;
    try_out(r, &trial, &aside);
    const Graph *g = trial.g;
    *traffic = NEW_ARRAY(r->a, Traffic, g->values.len);
    traffic_join(g, *traffic, g->values.len, cx);
    for (uint32_t v = 1; v < (uint32_t)g->values.len; v++)
        if ((*traffic)[v].stored)
            sum += remat_bytes_of(g, (ValueId){v}) * (1 + (*traffic)[v].reads);
    arena_free(trial.a);
    return sum;
}

static void solve_moving_little(Recompute *r, PassCtx *cx) {
    enum { TRIES = 3 };
    Graph *g = r->g;
    Traffic *traffic;
    size_t n = (size_t)(r->last - r->nodes);
    int64_t most = 0;
    memset(r->barred, 1, n * sizeof *r->barred);
    solve(r);
    const Recompute without = *r;
    memset(r->barred, 0, n * sizeof *r->barred);
    for (int i = 0; i < TRIES; i++) {
        solve(r);
        if (r->kept >= without.kept) break;
        if (!i) most = bytes_moved(&without, &traffic, cx);
        /* The estimate is the maximum over all targets, so it exceeds what
           each of them moves. */
        if (bytes_moved(r, &traffic, cx) <= most + most / 25) return;
        for (uint32_t v = 1; v < (uint32_t)r->nodes; v++)
            if (r->twin[v].i && traffic[r->twin[v].i].stored)
                r->barred[value_get(g, (ValueId){v})->def.i] = true;
    }
    *r = without;
}

/* ---- half of the bytes that f32 stores ----------------------------------- */

static int64_t beyond_half(const Recompute *r, PassCtx *cx) {
    Recompute trial;
    Module aside;
    try_out(r, &trial, &aside);
    int64_t beyond = traffic_beyond_half(trial.g, cx);
    arena_free(trial.a);
    return beyond;
}

/* True if backward has all operands of n: stored, recomputed, or computed in
   backward. */
static bool is_at_hand(const Recompute *r, const Node *n, const bool *made) {
    for (int k = 0; k < n->nin; k++) {
        ValueId v = n->in[k].i ? view_root(r->g, n->in[k]) : NO_VALUE;
        if (is_forward(r->g, v) && !remat_is_kept(r, v) && !made[v.i])
            return false;
    }
    return true;
}

/* Chooses free work whose result is stored for a product of backward and
   whose operands backward has: the largest result of at most `missing`
   bytes, or else the smallest; among equal ones the first, which is stored
   longest. Returns 0 if there is none. */
static NodeId remat_choose(Recompute *r, int64_t missing) {
    const Graph *g = r->g;
    size_t n = (size_t)(r->last - r->nodes);
    bool *stores = arena_dup(r->a, r->stores, n * sizeof *stores);
    bool *made = NEW_ARRAY(r->a, bool, r->nodes); /* per root */
    NodeId best = {0};
    int64_t found = 0;
    memset(r->stores, 1, n * sizeof *r->stores);
    note_free(r);
    for (int i = 0; i < g->order.len; i++) {
        NodeId id = g->order.data[i];
        const Node *x = node_get(g, id);
        if (!r->free[id.i] || !is_at_hand(r, x, made)) continue;
        made[x->out[0].i] = true;
        if (stores[id.i] || r->barred[id.i] || !r->material[x->out[0].i] ||
            !remat_is_kept(r, x->out[0]))
            continue;
        int64_t bytes = remat_bytes_of(g, x->out[0]);
        bool fits = bytes <= missing, fitted = found && found <= missing;
        if (fits ? fitted && bytes <= found
                 : fitted || (found && bytes >= found))
            continue;
        found = bytes;
        best = id;
    }
    memcpy(r->stores, stores, n * sizeof *stores);
    return best;
}

static void halve(Recompute *r, PassCtx *cx) {
    enum { TRIES = 16, PART = 128 };
    Traffic *traffic;
    int64_t all = r->kept, missing = beyond_half(r, cx);
    int64_t most = missing > 0 ? bytes_moved(r, &traffic, cx) : 0;
    most += most / PART;
    for (int i = 0; i < TRIES && missing > 0; i++) {
        const Recompute before = *r;
        NodeId id = remat_choose(r, missing);
        if (!id.i) return;
        r->stores[id.i] = true;
        solve(r);
        if (r->kept < before.kept && bytes_moved(r, &traffic, cx) <= most) {
            missing = beyond_half(r, cx) - (all - r->kept);
            continue;
        }
        *r = before;
        r->stores[id.i] = false;
        r->barred[id.i] = true;
    }
}

static Status remat_graph(Graph *g, PassCtx *cx) {
    Arena *a = cx->scratch;
    Recompute r = {.g = g, .a = a, .nodes = g->values.len};
    r.last = r.nodes + g->nodes.len;
    bool any = false;
    for (int i = 0; i < g->order.len; i++)
        any |= node_at(g, i)->flags & NODE_BACKWARD;
    if (!any) return OK;
    r.part = NEW_ARRAY(a, int, g->nodes.len);
    r.material = NEW_ARRAY(a, bool, r.nodes);
    r.leaves = NEW_ARRAY(a, bool, r.nodes);
    r.from = NEW_ARRAY(a, ValueId, r.nodes);
    r.free = NEW_ARRAY(a, bool, g->nodes.len);
    r.barred = NEW_ARRAY(a, bool, g->nodes.len);
    r.stores = NEW_ARRAY(a, bool, g->nodes.len);
    r.twin = NEW_ARRAY(a, ValueId, r.nodes);
    r.position = graph_positions(g, a);
    r.bytes = keep_bytes(g, cx);
    if (cx->opt->remat == REMAT_AUTO) {
        solve_moving_little(&r, cx);
        if (g->module->low != NUM_DTYPES && !g->module->rule) halve(&r, cx);
    } else {
        solve(&r);
        TRY(fit(&r, cx));
    }
    make_all(&r);
    return OK;
}

Status pass_remat(Module *m, PassCtx *cx) {
    if (cx->opt->remat == REMAT_NONE) return OK;
    for (int i = 0; i < m->graphs.len; i++)
        TRY(remat_graph(m->graphs.data[i], cx));
    return OK;
}
