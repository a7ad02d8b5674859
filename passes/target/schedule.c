/* schedule.c: the order of groups.
   Two orders are tried and the one with the lower peak of live bytes is kept:
   the order of the source (layer by layer, which caches like), and a greedy
   one that runs next whatever frees most.  A group that makes the new content
   of a variable comes after every other reader of that variable where it can,
   so that memplan may let it write in place.

   requires     stage FUSED
   establishes  stage FUSED, groups and nodes in the order they run in
   breaks       nothing                                                      */
#include "passes/target/flow.h"
#include "passes/passes.h"

#include <string.h>

typedef struct Edges {
    int *to, len, cap;
} Edges;

typedef struct Sched {
    Flow *f;
    Arena *a;
    Edges *next;  /* by group: groups that must come later                    */
    int *blocked; /* by group: predecessors not yet run                      */
    int *left;    /* by root: readers not yet run                             */
    uint64_t rng;
} Sched;

/* ---- dependences --------------------------------------------------------- */

static void add_edge(Sched *s, int from, int to) {
    Edges *e = &s->next[from];
    for (int i = 0; i < e->len; i++)
        if (e->to[i] == to) return;
    if (e->len == e->cap)
        e->to = vec_grow(s->a, e->to, e->len, &e->cap, sizeof *e->to);
    e->to[e->len++] = to;
}

static bool leads_to(const Sched *s, int from, int to, bool *seen) {
    if (from == to) return true;
    if (seen[from]) return false;
    seen[from] = true;
    for (int i = 0; i < s->next[from].len; i++)
        if (leads_to(s, s->next[from].to[i], to, seen)) return true;
    return false;
}

/* Readers of a variable before the group that makes its new content. */
static void order_write(Sched *s, const Write *w) {
    Flow *f = s->f;
    int maker = f->def[f->root[w->value.i].i];
    if (maker < 0) return;
    for (int i = 0; i < f->ngroup; i++) {
        if (i == maker) continue;
        for (int k = f->read_at[i]; k < f->read_at[i + 1]; k++) {
            if (!same_value(f->read[k], w->var)) continue;
            bool *seen = NEW_ARRAY(s->a, bool, f->ngroup);
            if (!leads_to(s, maker, i, seen)) add_edge(s, i, maker);
        }
    }
}

static void find_edges(Sched *s) {
    Flow *f = s->f;
    for (int i = 0; i < f->ngroup; i++)
        for (int k = f->read_at[i]; k < f->read_at[i + 1]; k++)
            if (f->def[f->read[k].i] >= 0) add_edge(s, f->def[f->read[k].i], i);
    for (int i = 0; i < f->g->writes.len; i++)
        order_write(s, &f->g->writes.data[i]);
}

static void start(Sched *s) {
    Flow *f = s->f;
    memset(s->blocked, 0, (size_t)f->ngroup * sizeof *s->blocked);
    memset(s->left, 0, (size_t)f->g->values.len * sizeof *s->left);
    for (int i = 0; i < f->ngroup; i++) {
        for (int k = 0; k < s->next[i].len; k++) s->blocked[s->next[i].to[k]]++;
        for (int k = f->read_at[i]; k < f->read_at[i + 1]; k++)
            s->left[f->read[k].i]++;
    }
    for (int v = 1; v < f->g->values.len; v++)
        if (f->last[v] == f->ngroup) s->left[v]++; /* kept to the end */
}

/* ---- memory -------------------------------------------------------------- */

static int64_t made_bytes(const Sched *s, int group) {
    const Flow *f = s->f;
    int64_t sum = 0;
    for (int i = f->first[group]; i < f->end[group]; i++) {
        const Node *n = node_get(f->g, f->g->order.data[i]);
        for (int k = 0; k < n->nout; k++)
            if (f->stored[n->out[k].i]) sum += flow_bytes(f, n->out[k]);
    }
    return sum;
}

static int64_t freed_bytes(const Sched *s, int group) {
    const Flow *f = s->f;
    int64_t sum = 0;
    for (int k = f->read_at[group]; k < f->read_at[group + 1]; k++) {
        ValueId r = f->read[k];
        if (f->def[r.i] >= 0 && s->left[r.i] == 1) sum += flow_bytes(f, r);
    }
    return sum;
}

static void run_group(Sched *s, int group) {
    const Flow *f = s->f;
    for (int k = f->read_at[group]; k < f->read_at[group + 1]; k++)
        s->left[f->read[k].i]--;
    for (int k = 0; k < s->next[group].len; k++)
        s->blocked[s->next[group].to[k]]--;
}

static int64_t peak_bytes(Sched *s, const int *order) {
    int64_t live = 0, peak = 0;
    start(s);
    for (int i = 0; i < s->f->ngroup; i++) {
        live += made_bytes(s, order[i]);
        if (live > peak) peak = live;
        live -= freed_bytes(s, order[i]);
        run_group(s, order[i]);
    }
    return peak;
}

/* ---- orders -------------------------------------------------------------- */

typedef int PickFn(Sched *s, const int *ready, int n);

static int pick_first(Sched *s, const int *ready, int n) {
    (void)s, (void)n;
    return ready[0];
}

static int pick_freeing(Sched *s, const int *ready, int n) {
    int best = ready[0];
    int64_t most = INT64_MIN;
    for (int i = 0; i < n; i++) {
        int64_t gain = freed_bytes(s, ready[i]) - made_bytes(s, ready[i]);
        if (gain > most) {
            most = gain;
            best = ready[i];
        }
    }
    return best;
}

static int pick_any(Sched *s, const int *ready, int n) {
    s->rng = s->rng * UINT64_C(6364136223846793005) + 1442695040888963407u;
    return ready[(s->rng >> 33) % (uint64_t)n];
}

/* `ready` is kept sorted, so that ties fall to the source's order. */
static int *list_order(Sched *s, PickFn *pick) {
    int n = s->f->ngroup, nready = 0, done = 0;
    int *ready = NEW_ARRAY(s->a, int, n + 1);
    int *order = NEW_ARRAY(s->a, int, n + 1);
    bool *queued = NEW_ARRAY(s->a, bool, n + 1);
    start(s);
    while (done < n) {
        nready = 0;
        for (int i = 0; i < n; i++)
            if (!queued[i] && !s->blocked[i]) ready[nready++] = i;
        ASSERT(nready > 0);
        int c = pick(s, ready, nready);
        queued[c] = true;
        order[done++] = c;
        run_group(s, c);
    }
    return order;
}

/* ---- the graph in that order --------------------------------------------- */

typedef struct Emit {
    Graph *g;
    const NodeId *old;
    bool *done; /* by NodeId.i: VIEWs already placed */
} Emit;

static void emit_views(Emit *e, ValueId v) {
    if (!is_value(v) || value_get(e->g, v)->kind != VK_RESULT) return;
    NodeId id = value_get(e->g, v)->def;
    const Node *n = node_get(e->g, id);
    if (op_info[n->op].kind != KIND_VIEW || e->done[id.i]) return;
    emit_views(e, n->in[0]);
    e->done[id.i] = true;
    vec_push(e->g->arena, &e->g->order, id);
}

static void emit_group(Emit *e, const Flow *f, int old, int number) {
    Graph *g = e->g;
    for (int i = f->first[old]; i < f->end[old]; i++) {
        const Node *n = node_get(g, e->old[i]);
        for (int k = 0; k < n->nin; k++) emit_views(e, n->in[k]);
    }
    for (int i = f->first[old]; i < f->end[old]; i++) {
        node_get(g, e->old[i])->group = number;
        vec_push(g->arena, &g->order, e->old[i]);
    }
}

static void apply_order(Sched *s, const int *order) {
    Graph *g = s->f->g;
    int n = g->order.len, ng = s->f->ngroup;
    NodeId *old = arena_dup(s->a, g->order.data, (size_t)n * sizeof *old);
    Group *groups =
        arena_dup(s->a, g->groups.data, (size_t)ng * sizeof *groups);
    Emit e = {g, old, NEW_ARRAY(s->a, bool, g->nodes.len)};
    g->order.len = 0;
    for (int i = 0; i < ng; i++) {
        g->groups.data[i] = groups[order[i]];
        emit_group(&e, s->f, order[i], i);
    }
    for (int i = 0; i < n; i++)
        if (node_get(g, old[i])->group < 0)
            emit_views(&e, node_get(g, old[i])->out[0]);
}

static void schedule_graph(Graph *g, PassCtx *cx) {
    Sched s = {.f = flow_new(g, cx->scratch), .a = cx->scratch};
    int n = s.f->ngroup;
    s.next = NEW_ARRAY(s.a, Edges, n + 1);
    s.blocked = NEW_ARRAY(s.a, int, n + 1);
    s.left = NEW_ARRAY(s.a, int, g->values.len);
    s.rng = cx->opt->shuffle;
    find_edges(&s);
    int *order;
    if (cx->opt->shuffle) {
        order = list_order(&s, pick_any);
    } else {
        order = list_order(&s, pick_first);
        int *greedy = list_order(&s, pick_freeing);
        if (peak_bytes(&s, greedy) < peak_bytes(&s, order)) order = greedy;
    }
    apply_order(&s, order);
}

Status pass_schedule(Module *m, PassCtx *cx) {
    for (int i = 0; i < m->graphs.len; i++)
        schedule_graph(m->graphs.data[i], cx);
    return OK;
}
