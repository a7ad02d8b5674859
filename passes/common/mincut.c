/* SPDX-License-Identifier: Apache-2.0 */
/* mincut.c: Dinic's algorithm, with capacities from an ordered group instead of
   numbers: it only adds, subtracts and compares them.  A constraint is an arc
   whose leading number is 1, which no sum of terms reaches.                 */
#include "passes/common/mincut.h"

enum { SOURCE, SINK, FIRST_VARIABLE };

typedef struct Amount {
    int64_t of[1 + CUT_RANKS]; /* [0]: constraints */
} Amount;

typedef struct Arc {
    int to;
    Amount room;
} Arc; /* its reverse stands at index ^ 1 */

typedef VEC(int) Ints;

struct Cut {
    Arena *a;
    int n;
    VEC(Arc) arcs;
    Ints *out;  /* by node: arcs */
    int *level; /* by node: distance from the source, -1: none */
    int *next;  /* by node: the first arc that may still lead on */
};

/* ---- amounts ------------------------------------------------------------- */

static int compare(const Amount *x, const Amount *y) {
    for (int i = 0; i <= CUT_RANKS; i++)
        if (x->of[i] != y->of[i]) return x->of[i] < y->of[i] ? -1 : 1;
    return 0;
}

static void move(Amount *from, Amount *to, const Amount *flow) {
    for (int i = 0; i <= CUT_RANKS; i++) {
        from->of[i] -= flow->of[i];
        to->of[i] += flow->of[i];
    }
}

static bool is_zero(const Amount *x) {
    static const Amount zero;
    return compare(x, &zero) == 0;
}

/* ---- the network --------------------------------------------------------- */

Cut *cut_new(Arena *a, int variables) {
    Cut *c = NEW(a, Cut);
    *c = (Cut){.a = a, .n = variables + FIRST_VARIABLE};
    c->out = NEW_ARRAY(a, Ints, c->n);
    c->level = NEW_ARRAY(a, int, c->n);
    c->next = NEW_ARRAY(a, int, c->n);
    return c;
}

static void add_arc(Cut *c, int from, int to, Amount room) {
    if (from == to || is_zero(&room)) return;
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

/* ---- the flow ------------------------------------------------------------ */

/* Distances from the source over arcs with room; whether the sink has one. */
static bool find_levels(Cut *c, int *queue) {
    int head = 0, tail = 0;
    for (int i = 0; i < c->n; i++) c->level[i] = -1;
    c->level[SOURCE] = 0;
    queue[tail++] = SOURCE;
    while (head < tail) {
        int at = queue[head++];
        for (int i = 0; i < c->out[at].len; i++) {
            const Arc *arc = &c->arcs.data[c->out[at].data[i]];
            if (c->level[arc->to] >= 0 || is_zero(&arc->room)) continue;
            c->level[arc->to] = c->level[at] + 1;
            queue[tail++] = arc->to;
        }
    }
    return c->level[SINK] >= 0;
}

/* The arcs of one more path from the source to the sink down the levels; their
   count, 0: there is none. */
static int find_path(Cut *c, int *path) {
    int n = 0, at = SOURCE;
    while (at != SINK) {
        if (c->next[at] == c->out[at].len) { /* a dead end */
            if (!n) return 0;
            at = c->arcs.data[path[--n] ^ 1].to;
            c->next[at]++;
            continue;
        }
        int i = c->out[at].data[c->next[at]];
        const Arc *arc = &c->arcs.data[i];
        if (is_zero(&arc->room) || c->level[arc->to] != c->level[at] + 1) {
            c->next[at]++;
            continue;
        }
        path[n++] = i;
        at = arc->to;
    }
    return n;
}

static void fill_path(Cut *c, const int *path, int n, Amount *total) {
    Amount least = c->arcs.data[path[0]].room, none = {{0}};
    for (int i = 1; i < n; i++)
        if (compare(&c->arcs.data[path[i]].room, &least) < 0)
            least = c->arcs.data[path[i]].room;
    for (int i = 0; i < n; i++)
        move(&c->arcs.data[path[i]].room, &c->arcs.data[path[i] ^ 1].room,
             &least);
    move(&none, total, &least);
}

bool cut_solve(Cut *c, bool *low, CutCost *total) {
    int *scratch = NEW_ARRAY(c->a, int, c->n);
    Amount flow = {{0}};
    while (find_levels(c, scratch)) {
        for (int i = 0; i < c->n; i++) c->next[i] = 0;
        for (int n; (n = find_path(c, scratch)) > 0;)
            fill_path(c, scratch, n, &flow);
    }
    for (int i = FIRST_VARIABLE; i < c->n; i++)
        low[i - FIRST_VARIABLE] = c->level[i] >= 0;
    for (int i = 0; i < CUT_RANKS; i++) total->of[i] = flow.of[1 + i];
    return flow.of[0] == 0;
}
