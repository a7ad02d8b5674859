/* remat.c: backward computes again what forward then need not keep.
   Before:  %s = sigmoid %x      %y = mul %x, %s
            %d = mul %dy, %s : f32[4,8] !backward
   After:   %s.2 = sigmoid %x : f32[4,8] !backward !again
            %d = mul %dy, %s.2 : f32[4,8] !backward
   The second node has the types and the operands of the first, and random
   numbers are keyed, so it has its bits.  It stands in front of its first
   reader.
   What is kept and what is computed again is a minimum cut between forward and
   backward, for fewest bytes kept, the work of exp and the like counted as a
   byte an element, then least work.
     - In a checkpoint region only what others read is kept: all else is
       computed again, products too.
     - Elsewhere what is free: element-wise work (generators, views) on one
       large value, whose result no product or routine of backward wants in
       memory.  Its readers then read that value instead.
   --remat none: nothing, in regions neither.
   requires     stage PRIMITIVE, types chosen
   establishes  backward nodes with !again                                   */
#include "passes/common/mincut.h"
#include "passes/passes.h"

#include <stdlib.h>

enum { KEPT_BYTES, WORK };

/* Variables of the cut: by ValueId.i, low: backward wants it; behind them by
   NodeId.i, low: it is computed again. */
typedef struct Again {
    Graph *g;
    Arena *a;
    Cut *cut;
    bool *low;
    int nodes;      /* the first variable of nodes                          */
    bool *material; /* by root: a product or routine of backward reads it   */
    bool *leaves;   /* by root: read in forward outside of its region       */
    ValueId *from;  /* by root: the one large value that it is free work on */
    bool *free;     /* by NodeId.i                                          */
    int *position;  /* by NodeId.i                                          */
    ValueId *twin;  /* by ValueId.i of the old graph                        */
} Again;

static bool is_forward(const Graph *g, ValueId v) {
    const Value *val = v.i ? value_get(g, v) : NULL;
    return val && val->kind == VK_RESULT && !node_get(g, val->def)->flags;
}

static bool is_view(const Node *n) { return op_info[n->op].kind == KIND_VIEW; }

/* ---- what may be computed again ------------------------------------------ */

/* Casts that the compiler puts in belong to what they cast, as views do. */
static int region_of(const Graph *g, const Node *n) {
    while (!n->loc.region && (is_view(n) || n->op == OP_CAST) &&
           is_forward(g, n->in[0]))
        n = node_get(g, value_get(g, n->in[0])->def);
    return n->loc.region;
}

static void note_readers(Again *r) {
    const Graph *g = r->g;
    for (int i = 0; i < g->order.len; i++) {
        const Node *n = node_get(g, g->order.data[i]);
        OpKind kind = op_info[n->op].kind;
        for (int k = 0; k < n->nin; k++) {
            ValueId v = n->in[k].i ? view_root(g, n->in[k]) : NO_VALUE;
            if (!is_forward(g, v)) continue;
            const Node *maker = node_get(g, value_get(g, v)->def);
            if (n->flags & NODE_BACKWARD)
                r->material[v.i] |= kind == KIND_ANCHOR || kind == KIND_LIB;
            else
                r->leaves[v.i] |= region_of(g, maker) != region_of(g, n);
        }
    }
    for (int i = 0; graph_root(g, i); i++)
        r->leaves[view_root(g, *graph_root(g, i)).i] = true;
}

static int64_t count_of(const Graph *g, ValueId v) {
    return type_count(value_type(g, v));
}

/* Whether n is element-wise work that needs no operand as large as its result
   but one; that, where what is free itself is seen through. */
static bool is_free(const Again *r, const Node *n, ValueId *from) {
    const Graph *g = r->g;
    OpKind kind = op_info[n->op].kind;
    *from = NO_VALUE;
    if ((kind != KIND_ELEM && kind != KIND_GEN) ||
        op_info[n->op].cost > COST_LONG || r->material[n->out[0].i])
        return false;
    for (int k = 0; k < n->nin; k++) {
        ValueId v = r->from[view_root(g, n->in[k]).i];
        if (count_of(g, n->in[k]) * 8 <= count_of(g, n->out[0])) continue;
        if (from->i && !same_value(v, *from)) return false;
        *from = v;
    }
    return true;
}

static void note_free(Again *r) {
    const Graph *g = r->g;
    for (int v = 0; v < r->nodes; v++) r->from[v].i = (uint32_t)v;
    for (int i = 0; i < g->order.len; i++) {
        const Node *n = node_get(g, g->order.data[i]);
        ValueId from;
        if (n->flags || is_view(n) || !is_free(r, n, &from)) continue;
        r->free[g->order.data[i].i] = true;
        if (from.i) r->from[n->out[0].i] = from;
    }
}

/* Ranks would speak with each other once more. */
static bool may_again(const Again *r, NodeId id) {
    const Node *n = node_get(r->g, id);
    bool leaves = false;
    if (is_view(n)) return true;
    for (int k = 0; k < n->nout; k++) leaves |= r->leaves[n->out[k].i];
    if (region_of(r->g, n)) return !leaves && n->op != OP_RANK_SUM;
    return r->free[id.i];
}

/* ---- the cut ------------------------------------------------------------- */

static void add_node(Again *r, NodeId id) {
    const Graph *g = r->g;
    const Node *n = node_get(g, id);
    int again = r->nodes + (int)id.i;
    bool may = may_again(r, id);
    bool must = is_view(n) || (may && region_of(g, n));
    CutCost work = {{0}};
    if (!may) {
        cut_force(r->cut, again, false);
    } else if (!must) {
        int64_t count = count_of(g, n->out[0]);
        work.of[KEPT_BYTES] = op_info[n->op].cost >= COST_LONG ? count : 0;
        work.of[WORK] = count;
        cut_if_low(r->cut, again, work);
    }
    for (int k = 0; k < n->nin; k++)
        if (is_forward(g, n->in[k]))
            cut_low_implies_low(r->cut, again, (int)n->in[k].i);
    for (int k = 0; k < n->nout; k++) {
        CutCost kept = {{0}};
        kept.of[KEPT_BYTES] = type_bytes(value_type(g, n->out[k]));
        if (must)
            cut_low_implies_low(r->cut, (int)n->out[k].i, again);
        else
            cut_if_low_high(r->cut, (int)n->out[k].i, again, kept);
    }
}

static void solve(Again *r) {
    const Graph *g = r->g;
    int n = r->nodes + g->nodes.len;
    CutCost total;
    r->cut = cut_new(r->a, n);
    r->low = NEW_ARRAY(r->a, bool, n);
    for (int i = 0; i < g->order.len; i++) {
        const Node *x = node_get(g, g->order.data[i]);
        if (!x->flags) add_node(r, g->order.data[i]);
        for (int k = 0; k < x->nin && x->flags & NODE_BACKWARD; k++)
            if (is_forward(g, x->in[k]))
                cut_force(r->cut, (int)x->in[k].i, true);
    }
    bool possible = cut_solve(r->cut, r->low, &total);
    ASSERT(possible && "what must be computed again may be");
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

static ValueId twin_of(const Again *r, ValueId v) {
    return v.i < (uint32_t)r->nodes && r->twin[v.i].i ? r->twin[v.i] : v;
}

static void make_again(Again *r, NodeId id) {
    Graph *g = r->g;
    Node n = *node_get(g, id); /* building moves the pool */
    ValueId *in = NEW_ARRAY(r->a, ValueId, n.nin + 1);
    bool changed = !is_view(&n);
    for (int k = 0; k < n.nin; k++) {
        in[k] = twin_of(r, n.in[k]);
        changed |= !same_value(in[k], n.in[k]);
    }
    if (!changed) return; /* a view of what is kept */
    Builder b = {.g = g, .flags = NODE_BACKWARD | NODE_AGAIN, .loc = n.loc};
    NodeId twin = build_again(&b, id, in);
    for (int k = 0; k < n.nout; k++) {
        r->twin[n.out[k].i] = node_get(g, twin)->out[k];
        value_get(g, r->twin[n.out[k].i])->why = value_get(g, n.out[k])->why;
    }
}

/* All that backward node `id` needs computed again comes in front of it, in the
   order of forward. */
static void give_twins(Again *r, NodeId id, bool *done) {
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

static void remat_graph(Graph *g, Arena *a) {
    Again r = {.g = g, .a = a, .nodes = g->values.len};
    r.material = NEW_ARRAY(a, bool, r.nodes);
    r.leaves = NEW_ARRAY(a, bool, r.nodes);
    r.twin = NEW_ARRAY(a, ValueId, r.nodes);
    r.position = graph_positions(g, a);
    r.from = NEW_ARRAY(a, ValueId, r.nodes);
    r.free = NEW_ARRAY(a, bool, g->nodes.len);
    note_readers(&r);
    note_free(&r);
    solve(&r);
    int n = g->order.len;
    NodeId *old = arena_dup(a, g->order.data, (size_t)n * sizeof *old);
    bool *done = NEW_ARRAY(a, bool, g->nodes.len);
    g->order.len = 0;
    for (int i = 0; i < n; i++) {
        if (node_get(g, old[i])->flags & NODE_BACKWARD)
            give_twins(&r, old[i], done);
        vec_push(g->arena, &g->order, old[i]);
    }
}

Status pass_remat(Module *m, PassCtx *cx) {
    if (cx->opt->remat == REMAT_NONE) return OK;
    for (int i = 0; i < m->graphs.len; i++)
        remat_graph(m->graphs.data[i], cx->scratch);
    return OK;
}
