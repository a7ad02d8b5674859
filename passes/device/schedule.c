/* SPDX-License-Identifier: Apache-2.0 */
/* schedule.c: the order of groups. Two orders are tried and the one with the
   lower peak of live bytes is kept: the order of the source (layer by layer,
   which caches like), and a greedy one that runs next the group that frees most
   bytes. A group that computes the new content of a variable comes after all
   other readers of that variable, if possible, so that memplan can let it write
   in place.

   Chunks of rows (stream.c) stay separate: one ends before the next begins.
   Parts of an update (early.h) run as early as possible.

   What a prediction computes of variables alone comes first (flow_fixed).

   Where the target shares launches (launch.c), groups of equal work that may
   run at the same time become neighbours.

   requires     stage FUSED
   establishes  stage FUSED, groups and nodes in the order they run in
   breaks       nothing                                                      */
#include "passes/passes.h"
#include "passes/device/fold.h"
#include "passes/device/launch.h"
#include "passes/device/product.h"

#include <string.h>

/* A group that may run next; the largest key goes first, then the source's
   order.
 */
typedef struct Ready {
    int64_t key;
    int group;
} Ready;

typedef struct Sched {
    Flow *f;
    Arena *a;
    Edges *next;      /* per group: groups that must run later */
    int64_t *made;    /* per group: bytes of its results */
    ValueId *result;  /* per group: the largest of them; or none */
    int *blocked;     /* per group: number of predecessors that have not yet
                         run */
    int *left;        /* per root: number of readers that have not yet run */
    int *readers;     /* per root: exclusive or of the numbers of these
                         readers */
    VEC(Ready) ready; /* a heap; it may still contain groups that ran */
    unsigned *seen;   /* per group: stamp of the last search */
    unsigned searches;
    enum { SOURCE, EARLY, FREEING, ANY } how; /* criterion for the next group */
    uint64_t rng;
} Sched;

/* ---- dependences --------------------------------------------------------- */

/* Duplicates are harmless: most are adjacent and are skipped. */
static void add_edge(Sched *s, int from, int to) {
    Edges *e = &s->next[from];
    if (e->len && e->to[e->len - 1] == to) return;
    if (e->len == e->cap)
        e->to = vec_grow(s->a, e->to, e->len, &e->cap, sizeof *e->to);
    e->to[e->len++] = to;
}

static bool leads_to(const Sched *s, int from, int to) {
    if (from == to) return true;
    if (s->seen[from] == s->searches) return false;
    s->seen[from] = s->searches;
    for (int i = 0; i < s->next[from].len; i++)
        if (leads_to(s, s->next[from].to[i], to)) return true;
    return false;
}

/* Dependences: results before their readers and, if possible, readers of a
   variable before the group that computes its new content. */
static void find_edges(Sched *s) {
    Flow *f = s->f;
    int *maker = NEW_ARRAY(s->a, int, f->g->values.len); /* + 1, by variable */
    for (int i = 0; i < f->g->writes.len; i++) {
        const Write *w = &f->g->writes.data[i];
        maker[w->var.i] = f->def[f->root[w->value.i].i] + 1;
    }
    for (int i = 0; i < f->ngroup; i++)
        for (int k = f->read_at[i]; k < f->read_at[i + 1]; k++)
            if (f->def[f->read[k].i] >= 0) add_edge(s, f->def[f->read[k].i], i);
    for (int i = 0; i < f->ngroup; i++)
        for (int k = f->read_at[i]; k < f->read_at[i + 1]; k++) {
            int m = maker[f->read[k].i] - 1;
            if (m < 0 || m == i) continue;
            s->searches++;
            if (!leads_to(s, m, i)) add_edge(s, i, m);
        }
}

/* .. if no path leads to it, after a search from its readers. */
static bool is_first_sum(const Sched *s, int group) {
    return flow_sums_ranks(s->f, group) && s->seen[group] != s->searches;
}

/* Groups that read sums over ranks come after all sums that depend on no
   other sum, so that these sums become one step. */
static void gather_sums(Sched *s) {
    const Flow *f = s->f;
    bool *reads = NEW_ARRAY(s->a, bool, f->ngroup + 1);
    s->searches++;
    for (int i = 0; i < f->ngroup; i++)
        for (int k = 0; k < s->next[i].len && flow_sums_ranks(f, i); k++)
            leads_to(s, s->next[i].to[k], f->ngroup);
    for (int i = 0; i < f->ngroup; i++)
        for (int k = 0; k < s->next[i].len && is_first_sum(s, i); k++)
            reads[s->next[i].to[k]] = true;
    for (int to = 0; to < f->ngroup; to++)
        for (int i = 0; i < f->ngroup && reads[to]; i++)
            if (is_first_sum(s, i)) add_edge(s, i, to);
}

/* True if the group belongs to a part of the update. */
static bool is_early(const Flow *f, int group) {
    const Node *n = node_at(f->g, f->first[group]);
    return n->loc.chunk && n->flags & NODE_UPDATE;
}

static int chunk_of(const Flow *f, int group) {
    return is_early(f, group) ? 0 : node_at(f->g, f->first[group])->loc.chunk;
}

/* Chunks of rows (stream.c) run one after the other: the groups that end one
   chunk come before those that begin the next. If marks in a text contradict
   its values, the values decide. */
static void order_chunks(Sched *s) {
    int n = s->f->ngroup;
    bool *goes_on = NEW_ARRAY(s->a, bool, n + 1);
    bool *begun = NEW_ARRAY(s->a, bool, n + 1);
    VEC(int) in = {0};
    for (int i = 0; i < n; i++) {
        if (!chunk_of(s->f, i)) continue;
        vec_push(s->a, &in, i);
        for (int k = 0; k < s->next[i].len; k++) {
            int to = s->next[i].to[k];
            if (chunk_of(s->f, i) == chunk_of(s->f, to))
                goes_on[i] = begun[to] = true;
        }
    }
    for (int i = 0; i < in.len; i++)
        for (int k = 0; k < in.len && !goes_on[in.data[i]]; k++) {
            int from = in.data[i], to = in.data[k];
            if (begun[to] || chunk_of(s->f, from) + 1 != chunk_of(s->f, to))
                continue;
            s->searches++;
            if (!leads_to(s, to, from)) add_edge(s, from, to);
        }
}

static void start(Sched *s) {
    Flow *f = s->f;
    int nv = f->g->values.len;
    memset(s->blocked, 0, (size_t)f->ngroup * sizeof *s->blocked);
    memset(s->left, 0, (size_t)nv * sizeof *s->left);
    memset(s->readers, 0, (size_t)nv * sizeof *s->readers);
    for (int i = 0; i < f->ngroup; i++) {
        for (int k = 0; k < s->next[i].len; k++) s->blocked[s->next[i].to[k]]++;
        for (int k = f->read_at[i]; k < f->read_at[i + 1]; k++) {
            s->left[f->read[k].i]++;
            s->readers[f->read[k].i] ^= i;
        }
    }
    for (int v = 1; v < nv; v++)
        if (f->last[v] == f->ngroup) s->left[v]++; /* kept to the end */
}

/* ---- memory -------------------------------------------------------------- */

/* A group is the last reader of a buffer computed by groups. */
static bool last_reader(const Sched *s, ValueId root) {
    return s->f->def[root.i] >= 0 && s->left[root.i] == 1;
}

static int64_t freed_bytes(const Sched *s, int group) {
    const Flow *f = s->f;
    int64_t sum = 0;
    for (int k = f->read_at[group]; k < f->read_at[group + 1]; k++)
        if (last_reader(s, f->read[k])) sum += flow_bytes(f, f->read[k]);
    return sum;
}

static void run_group(Sched *s, int group) {
    const Flow *f = s->f;
    for (int k = f->read_at[group]; k < f->read_at[group + 1]; k++) {
        s->left[f->read[k].i]--;
        s->readers[f->read[k].i] ^= group;
    }
    for (int k = 0; k < s->next[group].len; k++)
        s->blocked[s->next[group].to[k]]--;
}

/* Bytes of the group's largest result if it takes the place of what the group
   frees. */
static int64_t replaced_bytes(const Sched *s, int group) {
    const Flow *f = s->f;
    ValueId v = s->result[group];
    for (int k = f->read_at[group]; v.i && k < f->read_at[group + 1]; k++)
        if (last_reader(s, f->read[k]) &&
            flow_in_place(f, group, f->read[k], v))
            return flow_bytes(f, v);
    return 0;
}

static int64_t peak_bytes(Sched *s, const int *order) {
    int64_t live = 0, peak = 0;
    start(s);
    for (int i = 0; i < s->f->ngroup; i++) {
        live += s->made[order[i]];
        int64_t now = live - replaced_bytes(s, order[i]);
        if (now > peak) peak = now;
        live -= freed_bytes(s, order[i]);
        run_group(s, order[i]);
    }
    return peak;
}

/* ---- orders -------------------------------------------------------------- */

static bool before(Ready x, Ready y) {
    return x.key != y.key ? x.key > y.key : x.group < y.group;
}

/* Few bytes for which a part of the update waits: whether the loss is finite.
 */
static bool feeds_early(const Sched *s, int group) {
    enum { FEW_BYTES = 4096 };
    for (int i = 0; i < s->next[group].len; i++)
        if (is_early(s->f, s->next[group].to[i]))
            return s->made[group] <= FEW_BYTES;
    return false;
}

static void push(Sched *s, int group) {
    Ready x = {0, group};
    if (s->how == EARLY) x.key = is_early(s->f, group) || feeds_early(s, group);
    if (s->how == FREEING) x.key = freed_bytes(s, group) - s->made[group];
    if (s->how == ANY) {
        s->rng = s->rng * UINT64_C(6364136223846793005) + 1442695040888963407u;
        x.key = (int64_t)(s->rng >> 33);
    }
    vec_push(s->a, &s->ready, x);
    int i = s->ready.len - 1;
    for (; i > 0 && before(x, s->ready.data[(i - 1) / 2]); i = (i - 1) / 2)
        s->ready.data[i] = s->ready.data[(i - 1) / 2];
    s->ready.data[i] = x;
}

static int pop(Sched *s) {
    Ready *heap = s->ready.data, last = heap[--s->ready.len];
    int first = heap[0].group, n = s->ready.len, i = 0;
    for (int child; (child = 2 * i + 1) < n; i = child) {
        if (child + 1 < n && before(heap[child + 1], heap[child])) child++;
        if (before(last, heap[child])) break;
        heap[i] = heap[child];
    }
    heap[i] = last;
    return first;
}

/* The key of a waiting group grows when it becomes the last reader of a
   buffer: then it is queued again. */
static int *list_order(Sched *s, int how) {
    const Flow *f = s->f;
    int n = f->ngroup, done = 0;
    int *order = NEW_ARRAY(s->a, int, n + 1);
    bool *ran = NEW_ARRAY(s->a, bool, n + 1);
    start(s);
    s->how = how;
    s->ready.len = 0;
    for (int i = 0; i < n; i++)
        if (!s->blocked[i]) push(s, i);
    while (s->ready.len) {
        int c = pop(s);
        if (ran[c]) continue;
        ran[c] = true;
        order[done++] = c;
        run_group(s, c);
        for (int k = f->read_at[c]; k < f->read_at[c + 1]; k++) {
            ValueId r = f->read[k];
            int reader = s->readers[r.i];
            if (last_reader(s, r) && f->last[r.i] < n && !s->blocked[reader])
                push(s, reader);
        }
        for (int k = 0; k < s->next[c].len; k++) {
            int to = s->next[c].to[k];
            if (!s->blocked[to]) push(s, to);
        }
    }
    ASSERT(done == n);
    return order;
}

static void count_result(Sched *s, int group, ValueId v) {
    ValueId *most = &s->result[group];
    int64_t bytes = flow_bytes(s->f, v);
    s->made[group] += bytes;
    if (!most->i || flow_bytes(s->f, *most) < bytes) *most = v;
}

/* Bytes that each group adds. New values of variables, which have their own
   memory, are not counted if updates run early, since they would hide the
   bytes that gradients free. Returns whether there are such values. */
static bool count_made(Sched *s) {
    const Flow *f = s->f;
    const Graph *g = f->g;
    bool *content = NEW_ARRAY(s->a, bool, g->values.len), early = false;
    for (int i = 0; i < f->ngroup; i++) early |= is_early(f, i);
    for (int i = 0; i < g->writes.len && early; i++)
        content[f->root[g->writes.data[i].value.i].i] = true;
    for (int i = 0; i < g->order.len; i++) {
        const Node *x = node_at(g, i);
        for (int k = 0; k < x->nout && x->group >= 0; k++)
            if (f->stored[x->out[k].i] && !content[x->out[k].i])
                count_result(s, x->group, x->out[k]);
    }
    return early;
}

/* Per group: 1 + the group of a product with which cuBLASLt can compute it. */
static int *find_gelus(const Sched *s) {
    const Flow *f = s->f;
    int *product = NEW_ARRAY(s->a, int, f->ngroup + 1);
    ProductGelu x;
    for (int i = 0; i < f->ngroup; i++)
        for (int k = 0; k < s->next[i].len; k++) {
            int to = s->next[i].to[k];
            if (f->g->groups.data[i].kind == GROUP_ANCHOR &&
                product_gelu(f->g, f->first[i], f->first[to], &x))
                product[to] = i + 1;
        }
    return product;
}

/* GELU, or the gradient by its slope, runs right behind its product, if all
   else that it needs is there, so that cuBLASLt can do both. */
static int *pair_gelus(Sched *s, const int *order) {
    const Flow *f = s->f;
    int n = f->ngroup, done = 0;
    const int *product = find_gelus(s);
    int *paired = NEW_ARRAY(s->a, int, n + 1);
    int *behind = NEW_ARRAY(s->a, int, n + 1); /* + 1, per product */
    int *at = NEW_ARRAY(s->a, int, n + 1), *needs = NEW_ARRAY(s->a, int, n + 1);
    for (int i = 0; i < n; i++) at[order[i]] = i;
    for (int i = 0; i < n; i++)
        for (int k = 0; k < s->next[i].len; k++) {
            int to = s->next[i].to[k];
            if (product[to] != i + 1 && needs[to] <= at[i])
                needs[to] = at[i] + 1;
        }
    for (int i = 0; i < n; i++)
        if (product[i] && needs[i] <= at[product[i] - 1])
            behind[product[i] - 1] = i + 1;
    for (int i = 0; i < n; i++) {
        int group = order[i];
        if (product[group] && behind[product[group] - 1] == group + 1) continue;
        paired[done++] = group;
        if (behind[group]) paired[done++] = behind[group] - 1;
    }
    ASSERT(done == n);
    return paired;
}

/* Groups that depend on variables alone come first, so that later runs begin
   behind them. */
static int *fixed_first(const Sched *s, const int *order) {
    int n = s->f->ngroup, done = 0;
    const bool *fixed = flow_fixed(s->f, s->a);
    int *sorted = NEW_ARRAY(s->a, int, n + 1);
    for (int pass = 1; pass >= 0; pass--)
        for (int i = 0; i < n; i++)
            if (fixed[order[i]] == pass) sorted[done++] = order[i];
    return sorted;
}

static void schedule_graph(Graph *g, PassCtx *cx) {
    Sched s = {.f = flow_new(g, cx->scratch), .a = cx->scratch};
    int n = s.f->ngroup;
    s.next = NEW_ARRAY(s.a, Edges, n + 1);
    s.made = NEW_ARRAY(s.a, int64_t, n + 1);
    s.result = NEW_ARRAY(s.a, ValueId, n + 1);
    s.blocked = NEW_ARRAY(s.a, int, n + 1);
    s.left = NEW_ARRAY(s.a, int, g->values.len);
    s.readers = NEW_ARRAY(s.a, int, g->values.len);
    s.seen = NEW_ARRAY(s.a, unsigned, n + 1);
    s.rng = cx->opt->shuffle;
    bool early = count_made(&s);
    find_edges(&s);
    order_chunks(&s);
    gather_sums(&s);
    int *order = list_order(&s, cx->opt->shuffle ? ANY
                                : early          ? EARLY
                                                 : SOURCE);
    if (!cx->opt->shuffle) {
        int *greedy = list_order(&s, FREEING);
        if (peak_bytes(&s, greedy) < peak_bytes(&s, order)) order = greedy;
    }
    if (target_of(g)->shares_launches &&
        gpu_reaches(cx->opt, PLAN_GELU_SINCE)) {
        int *paired = pair_gelus(&s, order);
        if (peak_bytes(&s, paired) <= peak_bytes(&s, order)) order = paired;
    }
    order = fixed_first(&s, order);
    Joins *joins = NEW_ARRAY(s.a, Joins, n + 1);
    if (target_of(g)->shares_launches)
        joins = launch_together(s.f, s.next, order);
    groups_reorder(g, s.a, order, n);
    for (int i = 0; i < n; i++) {
        g->groups.data[i].beside = joins[i] != JOINS_NOT;
        g->groups.data[i].after = joins[i] == JOINS_AFTER;
    }
}

Status pass_schedule(Module *m, PassCtx *cx) {
    for (int i = 0; i < m->graphs.len; i++)
        schedule_graph(m->graphs.data[i], cx);
    return OK;
}
