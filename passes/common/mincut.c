/* SPDX-License-Identifier: Apache-2.0 */
/* mincut.c: preflows (Goldberg and Tarjan), highest label first, with
   capacities from an ordered group instead of numbers: it only adds, subtracts
   and compares them.  A constraint is an arc whose leading number is 1; no
   sum of terms reaches 1. The preflow goes from the sink to the source,
   against the arcs. Excess that cannot move on stays, and the nodes that the
   source still reaches are the smallest low side of all minimum cuts. Excess
   moves along a chain of nodes in one go, so that time is linear in the
   chain; with augmenting paths (Dinic) it is quadratic. */
#include "passes/common/mincut.h"

enum { SOURCE, SINK, FIRST_VARIABLE };

typedef struct Amount {
    int64_t of[1 + CUT_RANKS]; /* [0]: constraints */
} Amount;

typedef struct Arc {
    int to;
    Amount room;
} Arc; /* the reverse arc has index ^ 1 */

typedef VEC(int) Ints;

struct Cut {
    Arena *a;
    int n;
    VEC(Arc) arcs;
    Ints *out;      /* per node: its arcs */
    Amount *excess; /* per node: flow that arrived and did not leave */
    int *level;     /* per node: lower bound of its distance from the source; n:
                       unreachable */
    int *next;      /* per node: the first arc that may still take excess */
    int *count;     /* per level: the number of its nodes */
    int *active;    /* per level: a node with excess; -1: none */
    int *below;     /* per node: the next active one on its level */
    int highest;    /* the highest level with an active node, or above it */
    int lifted;     /* number of nodes relabelled since levels were exact
                       distances */
};

/* ---- amounts ------------------------------------------------------------- */

static int compare(const Amount *x, const Amount *y) {
    for (int i = 0; i <= CUT_RANKS; i++)
        if (x->of[i] != y->of[i]) return x->of[i] < y->of[i] ? -1 : 1;
    return 0;
}

static void cut_move(Amount *from, Amount *to, const Amount *flow) {
    for (int i = 0; i <= CUT_RANKS; i++) {
        from->of[i] -= flow->of[i];
        to->of[i] += flow->of[i];
    }
}

static bool cut_is_zero(const Amount *x) {
    static const Amount zero;
    return compare(x, &zero) == 0;
}

/* ---- the network --------------------------------------------------------- */

Cut *cut_new(Arena *a, int variables) {
    Cut *c = NEW(a, Cut);
    *c = (Cut){.a = a, .n = variables + FIRST_VARIABLE};
    c->out = NEW_ARRAY(a, Ints, c->n);
    c->excess = NEW_ARRAY(a, Amount, c->n);
    c->level = NEW_ARRAY(a, int, c->n);
    c->next = NEW_ARRAY(a, int, c->n);
    c->count = NEW_ARRAY(a, int, c->n + 1);
    c->active = NEW_ARRAY(a, int, c->n + 1);
    c->below = NEW_ARRAY(a, int, c->n);
    return c;
}

static void add_arc(Cut *c, int from, int to, Amount room) {
    if (from == to || cut_is_zero(&room)) return;
    Arc there = {to, room}, back = {from, {{0}}};
    vec_push(c->a, &c->out[from], c->arcs.len);
    vec_push(c->a, &c->arcs, there);
    vec_push(c->a, &c->out[to], c->arcs.len);
    vec_push(c->a, &c->arcs, back);
}

static Amount amount_of(CutCost cost) {
    Amount x = {{0}};
    for (int i = 0; i < CUT_RANKS; i++) {
        ASSERT(cost.of[i] >= 0);
        x.of[1 + i] = cost.of[i];
    }
    return x;
}

static const Amount forbidden = {{1}};

void cut_if_low(Cut *c, int x, CutCost cost) {
    add_arc(c, FIRST_VARIABLE + x, SINK, amount_of(cost));
}

void cut_if_high(Cut *c, int x, CutCost cost) {
    add_arc(c, SOURCE, FIRST_VARIABLE + x, amount_of(cost));
}

void cut_if_low_high(Cut *c, int x, int y, CutCost cost) {
    add_arc(c, FIRST_VARIABLE + x, FIRST_VARIABLE + y, amount_of(cost));
}

void cut_force(Cut *c, int x, bool low) {
    if (low)
        add_arc(c, SOURCE, FIRST_VARIABLE + x, forbidden);
    else
        add_arc(c, FIRST_VARIABLE + x, SINK, forbidden);
}

void cut_low_implies_low(Cut *c, int x, int y) {
    add_arc(c, FIRST_VARIABLE + x, FIRST_VARIABLE + y, forbidden);
}

/* ---- the preflow --------------------------------------------------------- */

static void activate(Cut *c, int at) {
    int level = c->level[at];
    if (at == SOURCE || at == SINK || level >= c->n) return;
    c->below[at] = c->active[level];
    c->active[level] = at;
    if (level > c->highest) c->highest = level;
}

/* Computes distances from the source over arcs with capacity left, and the
   lists that follow from them. */
static void find_levels(Cut *c, int *queue) {
    int head = 0, tail = 0;
    for (int i = 0; i < c->n; i++) c->level[i] = c->n;
    c->level[SOURCE] = 0;
    queue[tail++] = SOURCE;
    while (head < tail) {
        int at = queue[head++];
        for (int i = 0; i < c->out[at].len; i++) {
            const Arc *arc = &c->arcs.data[c->out[at].data[i]];
            if (arc->to == SINK || c->level[arc->to] < c->n ||
                cut_is_zero(&arc->room))
                continue;
            c->level[arc->to] = c->level[at] + 1;
            queue[tail++] = arc->to;
        }
    }
    for (int i = 0; i <= c->n; i++) {
        c->count[i] = 0;
        c->active[i] = -1;
    }
    c->highest = c->lifted = 0;
    for (int i = 0; i < c->n; i++) {
        c->next[i] = 0;
        c->count[c->level[i]]++;
        if (!cut_is_zero(&c->excess[i])) activate(c, i);
    }
}

/* Pushes against arc i ^ 1, which has capacity left. */
static void mincut_push(Cut *c, int at, int i, const Amount *flow) {
    int to = c->arcs.data[i].to;
    Amount moved = *flow;
    bool was_active = !cut_is_zero(&c->excess[to]);
    cut_move(&c->arcs.data[i ^ 1].room, &c->arcs.data[i].room, &moved);
    cut_move(&c->excess[at], &c->excess[to], &moved);
    if (!was_active) activate(c, to);
}

/* Relabels to one above the lowest neighbour that can still take excess; to
   n if the level that it leaves is now empty, since no node above can reach
   the source. */
static void lift(Cut *c, int at) {
    int level = c->n, old = c->level[at];
    for (int k = 0; k < c->out[at].len; k++) {
        int i = c->out[at].data[k], to = c->arcs.data[i].to;
        if (c->level[to] + 1 < level && !cut_is_zero(&c->arcs.data[i ^ 1].room))
            level = c->level[to] + 1;
    }
    if (--c->count[old] == 0) level = c->n;
    c->count[level]++;
    c->level[at] = level;
    c->next[at] = 0;
    c->lifted++;
}

/* Pushes until a node has no excess, or no place for it. */
static void discharge(Cut *c, int at) {
    Amount *excess = &c->excess[at];
    while (!cut_is_zero(excess) && c->level[at] < c->n) {
        if (c->next[at] == c->out[at].len) {
            lift(c, at);
            continue;
        }
        int i = c->out[at].data[c->next[at]];
        const Amount *room = &c->arcs.data[i ^ 1].room;
        if (c->level[c->arcs.data[i].to] + 1 == c->level[at] &&
            !cut_is_zero(room)) {
            mincut_push(c, at, i, compare(room, excess) < 0 ? room : excess);
            if (cut_is_zero(excess)) return;
        }
        c->next[at]++;
    }
}

bool cut_solve(Cut *c, bool *low, CutCost *total) {
    int *scratch = NEW_ARRAY(c->a, int, c->n);
    for (int k = 0; k < c->out[SINK].len; k++) {
        int i = c->out[SINK].data[k];
        Amount *room = &c->arcs.data[i ^ 1].room, flow = *room;
        cut_move(room, &c->arcs.data[i].room, &flow);
        cut_move(&c->excess[SINK], &c->excess[c->arcs.data[i].to], &flow);
    }
    find_levels(c, scratch);
    while (c->highest >= 0) {
        int at = c->active[c->highest];
        if (at < 0) {
            c->highest--;
            continue;
        }
        c->active[c->highest] = c->below[at];
        discharge(c, at);
        if (c->lifted >= c->n) find_levels(c, scratch);
    }
    find_levels(c, scratch);
    for (int i = FIRST_VARIABLE; i < c->n; i++)
        low[i - FIRST_VARIABLE] = c->level[i] < c->n;
    for (int i = 0; i < CUT_RANKS; i++)
        total->of[i] = c->excess[SOURCE].of[1 + i];
    return c->excess[SOURCE].of[0] == 0;
}
