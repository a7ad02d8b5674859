/* SPDX-License-Identifier: Apache-2.0 */
/* fuse_clusters.c: the clusters of pass fuse.  They have a topological order,
   which merges keep: two clusters merge only if no path leads from one through
   a third to the other. */
#include "passes/device/fuse.h"
#include "passes/device/flow.h"

#include <stdlib.h>
#include <string.h>

/* Where a node runs. */
static Guard guard_of(const Fuse *f, NodeId id) {
    return f->guard ? f->guard[id.i] : (Guard){0};
}

void fuse_index_users(Fuse *f) {
    Graph *g = f->g;
    f->users = graph_users(g, f->a);
    f->escapes = NEW_ARRAY(f->a, bool, g->values.len);
    for (int i = 0; graph_root(g, i); i++)
        f->escapes[graph_root(g, i)->i] = true;
    for (int i = 0; i < g->order.len; i++) {
        const Node *n = node_at(g, i);
        bool view = node_kind(n) == KIND_VIEW;
        for (int k = 0; k < n->nin; k++) f->escapes[n->in[k].i] |= view;
    }
    f->guard = guards_of(g, f->a);
    for (int i = 0; i < g->order.len; i++) {
        ValueId when = guard_of(f, g->order.data[i]).when;
        if (!is_value(when)) continue;
        if (!f->waiting) f->waiting = NEW_ARRAY(f->a, NodeList, g->values.len);
        f->escapes[when.i] = true;
        vec_push(f->a, &f->waiting[when.i], g->order.data[i]);
    }
}

static void unlink_cluster(Fuse *f, int c) {
    Cluster *x = cluster(f, c);
    if (x->prev >= 0) cluster(f, x->prev)->next = x->next;
    if (x->next >= 0) cluster(f, x->next)->prev = x->prev;
    if (f->first == c) f->first = x->next;
}

static void link_after(Fuse *f, int at, int c) {
    Cluster *x = cluster(f, c);
    x->prev = at;
    x->next = at >= 0 ? cluster(f, at)->next : f->first;
    if (x->next >= 0) cluster(f, x->next)->prev = c;
    if (at >= 0)
        cluster(f, at)->next = c;
    else
        f->first = c;
}

static void number_clusters(Fuse *f) {
    int64_t rank = 0;
    for (int c = f->first; c >= 0; c = cluster(f, c)->next)
        cluster(f, c)->rank = rank += RANK_STEP;
}

/* Up to 64 nodes spread over the order; for each cluster, those on which it
   depends and those that depend on it. */
static void start_pivots(Fuse *f) {
    Graph *g = f->g;
    int step = g->order.len / 64 + 1;
    uint64_t *behind = NEW_ARRAY(f->a, uint64_t, g->nodes.len);
    uint64_t *before = NEW_ARRAY(f->a, uint64_t, g->nodes.len);
    for (int i = 0; i < g->order.len; i++) {
        NodeId id = g->order.data[i];
        const Node *n = node_get(g, id);
        uint64_t own = i % step ? 0 : UINT64_C(1) << i / step;
        behind[id.i] = before[id.i] = f->cluster_of[id.i] < 0 ? 0 : own;
        for (int k = 0; k < n->nin; k++)
            behind[id.i] |= behind[maker_node(g, n->in[k]).i];
        behind[id.i] |= behind[maker_node(g, guard_of(f, id).when).i];
    }
    for (int i = g->order.len - 1; i >= 0; i--) {
        NodeId id = g->order.data[i];
        const Node *n = node_get(g, id);
        int c = f->cluster_of[id.i];
        for (int k = 0; k < n->nin; k++)
            before[maker_node(g, n->in[k]).i] |= before[id.i];
        before[maker_node(g, guard_of(f, id).when).i] |= before[id.i];
        if (c < 0) continue;
        cluster(f, c)->pivots = behind[id.i] & before[id.i];
        cluster(f, c)->behind = behind[id.i];
        cluster(f, c)->before = before[id.i];
    }
}

/* True if forward makes codes by n: they are stored for backward, in the place
   of larger values. */
static bool makes_codes(const Graph *g, const Node *n) {
    return !n->flags && n->op == OP_CAST &&
           dtype_info[value_dtype(g, n->out[0])].stored;
}

void fuse_start_clusters(Fuse *f) {
    static const GroupKind kinds[] = {[KIND_REDUCE] = GROUP_ROW,
                                      [KIND_ANCHOR] = GROUP_ANCHOR,
                                      [KIND_LIB] = GROUP_LIB};
    Graph *g = f->g;
    f->cluster_of = NEW_ARRAY(f->a, int, g->nodes.len);
    f->position = graph_positions(g, f->a);
    f->first = -1;
    memset(f->cluster_of, -1, (size_t)g->nodes.len * sizeof(int));
    for (int i = 0; i < g->order.len; i++) {
        NodeId id = g->order.data[i];
        uint32_t flags = node_get(g, id)->flags, n = (uint32_t)f->clusters.len;
        OpKind k = kind_of(g, id);
        if (k == KIND_VIEW) continue;
        Cluster c = {.kind = (size_t)k < sizeof kinds / sizeof *kinds
                                 ? kinds[k]
                                 : GROUP_POINT,
                     .part = flags & NODE_UPDATE     ? 2
                             : flags & NODE_BACKWARD ? 1
                                                     : 0,
                     .codes = makes_codes(g, node_get(g, id)),
                     .back = (flags & NODE_BACKWARD) != 0,
                     .guard = guard_of(f, id),
                     .chunk = node_get(g, id)->loc.chunk};
        vec_push(f->a, &c.nodes, id);
        f->cluster_of[id.i] = (int)n;
        vec_push(f->a, &f->clusters, c);
        link_after(f, (int)n - 1, (int)n);
    }
    number_clusters(f);
    start_pivots(f);
    f->closed = NEW_ARRAY(f->a, bool, g->nodes.len);
    f->depth = NEW_ARRAY(f->a, int, g->nodes.len);
    f->places = NEW_ARRAY(f->a, Places, g->nodes.len);
    f->value_mark = NEW_ARRAY(f->a, unsigned, g->values.len);
    f->cluster_mark = NEW_ARRAY(f->a, unsigned, f->clusters.len + 1);
}

/* True if n belongs to a chunk of rows. The parts of an update (early.h)
   only need kernels of their own. */
static bool in_chunk(const Node *n) {
    return n->loc.chunk && !(n->flags & NODE_UPDATE);
}

void fuse_mark_chunks(Fuse *f) {
    Graph *g = f->g;
    bool *before = NEW_ARRAY(f->a, bool, g->nodes.len);
    bool *after = NEW_ARRAY(f->a, bool, g->nodes.len);
    for (int i = 0; i < g->order.len; i++) {
        NodeId id = g->order.data[i];
        const Node *n = node_get(g, id);
        for (int k = 0; k < n->nin; k++) {
            NodeId from = maker_node(g, n->in[k]);
            after[id.i] |= after[from.i] || in_chunk(&g->nodes.data[from.i]);
        }
    }
    for (int i = g->order.len - 1; i >= 0; i--) {
        NodeId id = g->order.data[i];
        const Node *n = node_get(g, id);
        int c = f->cluster_of[id.i];
        for (int k = 0; k < n->nin; k++)
            before[maker_node(g, n->in[k]).i] |= before[id.i] || in_chunk(n);
        if (c < 0) continue;
        cluster(f, c)->before_chunks = before[id.i];
        cluster(f, c)->after_chunks = after[id.i];
    }
}

/* A kernel of two chunks, or one both before and after chunks, would prevent
   a chunk from ending before the next begins. */
static bool chunks_agree(const Cluster *a, const Cluster *b) {
    return a->chunk == b->chunk &&
           (a->chunk || !(a->before_chunks || b->before_chunks) ||
            !(a->after_chunks || b->after_chunks));
}

/* ---- cycles and the order of clusters ------------------------------------ */

typedef enum Search { FREE, CYCLE, TOO_FAR } Search;

static Search reach(Fuse *f, int c, int from, int b);

static Search reach_user(Fuse *f, NodeId user, int from, bool direct, int b) {
    int c = f->cluster_of[user.i];
    Search found = FREE;
    if (f->steps-- == 0) return TOO_FAR;
    if (c < 0) { /* through a VIEW */
        const Node *n = node_get(f->g, user);
        for (int i = 0; i < n->nout; i++)
            for (Users u = users_of(&f->users, n->out[i]);
                 u.at < u.end && !found; u.at++)
                found = reach_user(f, *u.at, from, false, b);
        return found;
    }
    if (c == b && !direct) return CYCLE;
    if (c == b || c == from || cluster(f, c)->rank > cluster(f, b)->rank ||
        f->cluster_mark[c] == f->cluster_stamp)
        return FREE;
    return reach(f, c, -1, b);
}

/* Collects the clusters ranked below b that are reached from c (not through the
   direct edge from `from`). */
static Search reach(Fuse *f, int c, int from, int b) {
    Search found = FREE;
    f->cluster_mark[c] = f->cluster_stamp;
    if (from < 0) vec_push(f->a, &f->reached, (Reached){c, 0});
    for (int i = 0; i < cluster(f, c)->nodes.len; i++) {
        const Node *n = node_get(f->g, cluster(f, c)->nodes.data[i]);
        for (int o = 0; o < n->nout; o++)
            for (Users u = users_of(&f->users, n->out[o]);
                 u.at < u.end && !found; u.at++)
                found = reach_user(f, *u.at, from, from >= 0, b);
        for (int o = 0; f->waiting && o < n->nout; o++) {
            const NodeList *w = &f->waiting[n->out[o].i];
            for (int k = 0; k < w->len && !found; k++)
                found = reach_user(f, w->data[k], from, from >= 0, b);
        }
    }
    return found;
}

static Search reach_back(Fuse *f, int c, int lo, int hi);

/* Cluster c depends on value v. */
static Search reach_maker(Fuse *f, int c, ValueId v, int lo, int hi) {
    ValueId root = view_root(f->g, v);
    int m = maker(f, root);
    if (f->steps-- == 0) return TOO_FAR;
    if (m == lo && (c != hi || !same_value(root, v))) return CYCLE;
    if (m < 0 || m == lo || m == c ||
        cluster(f, m)->rank <= cluster(f, lo)->rank ||
        f->cluster_mark[m] == f->cluster_stamp)
        return FREE;
    return reach_back(f, m, lo, hi);
}

/* The same in the other direction: collects the clusters ranked above lo
   that c depends on. */
static Search reach_back(Fuse *f, int c, int lo, int hi) {
    ValueId when = cluster(f, c)->guard.when;
    f->cluster_mark[c] = f->cluster_stamp;
    if (c != hi) vec_push(f->a, &f->reached, (Reached){c, 0});
    Search found = is_value(when) ? reach_maker(f, c, when, lo, hi) : FREE;
    for (int i = 0; i < cluster(f, c)->nodes.len; i++) {
        const Node *n = node_get(f->g, cluster(f, c)->nodes.data[i]);
        for (int k = 0; k < n->nin && !found; k++)
            if (is_value(n->in[k])) found = reach_maker(f, c, n->in[k], lo, hi);
    }
    return found;
}

/* A long path passes one of the pivots. Otherwise the search goes from both
   ends in turns, in growing steps: an early value that is read late reaches
   half of the graph, while its reader needs little. A search without a
   result after FARTHEST steps, or after NEAR once the graph's total of steps
   is used up, counts as a cycle, so that fusion takes linear time. */
static Search search(Fuse *f, int lo, int hi, bool *back) {
    enum { NEAR = 64, FARTHER = 4, FARTHEST = 1024 };
    const Cluster *x = cluster(f, lo), *y = cluster(f, hi);
    if (x->before & y->behind & ~(x->pivots | y->pivots)) return CYCLE;
    for (int steps = NEAR;
         steps <= FARTHEST && (steps == NEAR || f->steps_left > 0);
         steps *= FARTHER)
        for (int end = 0; end < 2; end++) {
            f->cluster_stamp++;
            f->reached.len = 0;
            f->steps = steps;
            *back = end == 0;
            Search found =
                *back ? reach_back(f, hi, lo, hi) : reach(f, lo, lo, hi);
            f->steps_left -= steps - f->steps;
            if (found != TOO_FAR) return found;
        }
    return CYCLE;
}

static int by_rank(const void *a, const void *b) {
    const Reached *x = a, *y = b;
    return x->rank < y->rank ? -1 : x->rank > y->rank;
}

/* The merged cluster, number `keep` of lo and hi, takes hi's place, followed
   by everything that lo reaches; with `back` it takes lo's place, preceded
   by everything that hi needs. */
static void reorder(Fuse *f, int lo, int hi, int keep, bool back) {
    Reached *moved = f->reached.data;
    int n = f->reached.len, stays = back ? lo : hi, goes = back ? hi : lo;
    unlink_cluster(f, goes);
    if (keep == goes) {
        link_after(f, stays, goes);
        cluster(f, goes)->rank = cluster(f, stays)->rank;
        unlink_cluster(f, stays);
    }
    int before = back ? cluster(f, keep)->prev : keep, at = before;
    for (int i = 0; i < n; i++)
        moved[i].rank = cluster(f, moved[i].cluster)->rank;
    if (n) qsort(moved, (size_t)n, sizeof *moved, by_rank);
    for (int i = 0; i < n; at = moved[i++].cluster) {
        unlink_cluster(f, moved[i].cluster);
        link_after(f, at, moved[i].cluster);
    }
    int next = at < 0 ? f->first : cluster(f, at)->next;
    int64_t rank = before >= 0 ? cluster(f, before)->rank
                               : cluster(f, next)->rank - RANK_STEP;
    int64_t room = next < 0 ? RANK_STEP : cluster(f, next)->rank - rank;
    if (n && room / (n + 1) == 0) number_clusters(f);
    for (int i = 0; i < n && room / (n + 1) > 0; i++)
        cluster(f, moved[i].cluster)->rank = rank + room / (n + 1) * (i + 1);
}

/* The earliest part of the step in which the marked nodes can run: the
   latest part of their producers outside a and b, at least `part`. */
static int part_of(Fuse *f, const NodeList *nodes, int a, int b, int part) {
    for (int i = 0; i < nodes->len; i++) {
        const Node *n = node_get(f->g, nodes->data[i]);
        for (int k = 0; k < n->nin; k++) {
            int c = maker(f, view_root(f->g, n->in[k]));
            if (c >= 0 && c != a && c != b && cluster(f, c)->part > part)
                part = cluster(f, c)->part;
        }
    }
    return part;
}

int fuse_most_nodes(const Fuse *f, const Cluster *x) {
    return f->target->max_nodes << (x->kind == GROUP_ROW && x->part == 2);
}

bool fuse_merge(Fuse *f, int a, int b) {
    Cluster *ca = cluster(f, a), *cb = cluster(f, b);
    const NodeList *x = &ca->nodes, *y = &cb->nodes;
    NodeList *all = &f->joined; /* in graph order */
    GroupKind kind = ca->kind > cb->kind ? ca->kind : cb->kind;
    if (ca->kind == GROUP_ANCHOR && cb->kind == GROUP_LIB) kind = GROUP_ANCHOR;
    if (a == b || !chunks_agree(ca, cb) || kind == GROUP_LIB ||
        !guard_same(ca->guard, cb->guard) || (ca->codes && cb->back) ||
        (cb->codes && ca->back) ||
        x->len + y->len > fuse_most_nodes(f, kind == ca->kind ? ca : cb))
        return false;
    all->len = 0;
    for (int i = 0, j = 0; i < x->len || j < y->len;) {
        bool take_x = j == y->len ||
                      (i < x->len &&
                       f->position[x->data[i].i] < f->position[y->data[j].i]);
        vec_push(f->a, all, take_x ? x->data[i++] : y->data[j++]);
    }
    if (!fuse_fits(f, kind, all, a, b)) return false;
    int lo = ca->rank < cb->rank ? a : b, hi = lo == a ? b : a;
    bool back;
    if (search(f, lo, hi, &back) == CYCLE) return false;
    reorder(f, lo, hi, a, back);
    for (int i = 0; i < y->len; i++) f->cluster_of[y->data[i].i] = a;
    NodeList old = ca->nodes; /* room for the next merge */
    ca->nodes = *all;
    *all = old;
    ca->kind = kind;
    ca->pivots |= cb->pivots;
    ca->behind |= cb->behind;
    ca->before |= cb->before;
    ca->codes |= cb->codes;
    ca->back |= cb->back;
    ca->before_chunks |= cb->before_chunks;
    ca->after_chunks |= cb->after_chunks;
    if (cb->part < ca->part) ca->part = part_of(f, &ca->nodes, a, b, cb->part);
    cb->dead = true;
    cb->nodes.len = 0;
    return true;
}
