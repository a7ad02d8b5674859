/* fuse.c: group nodes that one kernel computes.
   Before:  %a = matmul %x, %w    %b = add %a, %bias    %r = relu %b
   After:   group anchor { %a, %b, %r }, of which only %r gets a buffer

   Every node starts as a cluster of its own; clusters merge greedily, best
   kind of merge first: epilogues of products, then reductions with what they
   read and feed, chains of element-wise work, siblings that read the same
   tensors, scalars.  A merge must fit one kernel (fuse_fit.c) and must not
   close a cycle; a topological order of clusters is kept for that.

   requires     stage STEP after expand, no dead nodes
   establishes  stage FUSED
   breaks       nothing: schedule may reorder groups                         */
#include "passes/target/fuse.h"
#include "passes/common/rewrite.h"

#include <stdlib.h>
#include <string.h>

/* ---- clusters ------------------------------------------------------------ */

static Cluster *cluster(Fuse *f, int c) { return &f->clusters.data[c]; }

/* Cluster that makes v; -1: none (input, variable, constant, VIEW). */
static int maker(const Fuse *f, ValueId v) {
    if (!is_value(v)) return -1;
    const Value *x = value_get(f->g, v);
    return x->kind == VK_RESULT ? f->cluster_of[x->def.i] : -1;
}

static GroupKind first_kind(OpKind k) {
    switch (k) {
    case KIND_REDUCE: return GROUP_ROW;
    case KIND_ANCHOR: return GROUP_ANCHOR;
    case KIND_LIB: return GROUP_LIB;
    default: return GROUP_POINT;
    }
}

static void index_users(Fuse *f) {
    Graph *g = f->g;
    int nv = g->values.len, total = 0;
    f->user_at = NEW_ARRAY(f->a, int, nv + 2);
    for (int i = 0; i < g->order.len; i++) {
        const Node *n = node_get(g, g->order.data[i]);
        for (int k = 0; k < n->nin; k++) f->user_at[n->in[k].i + 1]++;
        total += n->nin;
    }
    for (int v = 0; v < nv; v++) f->user_at[v + 1] += f->user_at[v];
    f->user = NEW_ARRAY(f->a, NodeId, total + 1);
    int *next = arena_dup(f->a, f->user_at, (size_t)nv * sizeof *next);
    for (int i = 0; i < g->order.len; i++) {
        const Node *n = node_get(g, g->order.data[i]);
        for (int k = 0; k < n->nin; k++)
            f->user[next[n->in[k].i]++] = g->order.data[i];
    }
}

static void find_escapes(Fuse *f) {
    Graph *g = f->g;
    f->escapes = NEW_ARRAY(f->a, bool, g->values.len);
    for (int i = 0; i < g->outputs.len; i++)
        f->escapes[g->outputs.data[i].value.i] = true;
    for (int i = 0; i < g->writes.len; i++)
        f->escapes[g->writes.data[i].value.i] = true;
    for (int i = 0; i < g->order.len; i++) {
        const Node *n = node_get(g, g->order.data[i]);
        if (op_info[n->op].kind != KIND_VIEW) continue;
        for (int k = 0; k < n->nin; k++) f->escapes[n->in[k].i] = true;
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

static void start_clusters(Fuse *f) {
    Graph *g = f->g;
    f->cluster_of = NEW_ARRAY(f->a, int, g->nodes.len);
    f->position = graph_positions(g, f->a);
    f->first = -1;
    memset(f->cluster_of, -1, (size_t)g->nodes.len * sizeof(int));
    for (int i = 0; i < g->order.len; i++) {
        NodeId id = g->order.data[i];
        OpKind k = kind_of(g, id);
        if (k == KIND_VIEW) continue;
        Cluster c = {.kind = first_kind(k)};
        int n = f->clusters.len;
        vec_push(f->a, &c.nodes, id);
        f->cluster_of[id.i] = n;
        vec_push(f->a, &f->clusters, c);
        link_after(f, n - 1, n);
    }
    number_clusters(f);
    f->node_mark = NEW_ARRAY(f->a, unsigned, g->nodes.len);
    f->depth = NEW_ARRAY(f->a, int, g->nodes.len);
    f->value_mark = NEW_ARRAY(f->a, unsigned, g->values.len);
    f->cluster_mark = NEW_ARRAY(f->a, unsigned, f->clusters.len + 1);
}

/* ---- cycles and the order of clusters ------------------------------------ */

/* Collects the clusters ranked below b that are reached from c (not through the
   direct edge from `from`); false if b itself is reached. */
static bool reach(Fuse *f, int c, int from, int b);

static bool reach_user(Fuse *f, NodeId user, int from, bool direct, int b) {
    int c = f->cluster_of[user.i];
    if (c < 0) { /* through a VIEW */
        const Node *n = node_get(f->g, user);
        for (int i = 0; i < n->nout; i++)
            for (int k = f->user_at[n->out[i].i];
                 k < f->user_at[n->out[i].i + 1]; k++)
                if (!reach_user(f, f->user[k], from, false, b)) return false;
        return true;
    }
    if (c == from) return true;
    if (c == b) return direct;
    if (cluster(f, c)->rank > cluster(f, b)->rank) return true;
    if (f->cluster_mark[c] == f->cluster_stamp) return true;
    return reach(f, c, -1, b);
}

static bool reach(Fuse *f, int c, int from, int b) {
    f->cluster_mark[c] = f->cluster_stamp;
    if (from < 0) vec_push(f->a, &f->reached, (Reached){c, 0});
    for (int i = 0; i < cluster(f, c)->nodes.len; i++) {
        const Node *n = node_get(f->g, cluster(f, c)->nodes.data[i]);
        for (int o = 0; o < n->nout; o++) {
            uint32_t v = n->out[o].i;
            for (int k = f->user_at[v]; k < f->user_at[v + 1]; k++)
                if (!reach_user(f, f->user[k], from, from >= 0, b))
                    return false;
        }
    }
    return true;
}

static int by_rank(const void *a, const void *b) {
    const Reached *x = a, *y = b;
    return x->rank < y->rank ? -1 : x->rank > y->rank;
}

/* The merged cluster, number `keep` of lo and hi, takes hi's place; behind it
   comes what lo reaches. */
static void reorder(Fuse *f, int lo, int hi, int keep) {
    Reached *late = f->reached.data;
    int n = f->reached.len, at = keep;
    unlink_cluster(f, lo);
    if (keep == lo) {
        link_after(f, hi, lo);
        cluster(f, lo)->rank = cluster(f, hi)->rank;
        unlink_cluster(f, hi);
    }
    for (int i = 0; i < n; i++)
        late[i].rank = cluster(f, late[i].cluster)->rank;
    if (n) qsort(late, (size_t)n, sizeof *late, by_rank);
    for (int i = 0; i < n; at = late[i++].cluster) {
        unlink_cluster(f, late[i].cluster);
        link_after(f, at, late[i].cluster);
    }
    int64_t rank = cluster(f, keep)->rank;
    int next = cluster(f, at)->next;
    int64_t room = next < 0 ? RANK_STEP : cluster(f, next)->rank - rank;
    if (n && room / (n + 1) == 0) number_clusters(f);
    for (int i = 0; i < n && room / (n + 1) > 0; i++)
        cluster(f, late[i].cluster)->rank = rank + room / (n + 1) * (i + 1);
}

/* Both lists in graph order, until the next call. */
static NodeList *joined(Fuse *f, const NodeList *x, const NodeList *y) {
    NodeList *out = &f->joined;
    int i = 0, j = 0;
    out->len = 0;
    while (i < x->len || j < y->len) {
        bool take_x = j == y->len ||
                      (i < x->len &&
                       f->position[x->data[i].i] < f->position[y->data[j].i]);
        vec_push(f->a, out, take_x ? x->data[i++] : y->data[j++]);
    }
    return out;
}

static GroupKind merged_kind(GroupKind a, GroupKind b) {
    if (a == GROUP_LIB || b == GROUP_LIB) return GROUP_LIB;
    return a > b ? a : b; /* POINT < ROW < ANCHOR; fits() refuses the rest */
}

/* The merged cluster keeps the number of a. */
static bool merge(Fuse *f, int a, int b) {
    if (a == b) return false;
    Cluster *ca = cluster(f, a), *cb = cluster(f, b);
    GroupKind kind = merged_kind(ca->kind, cb->kind);
    if (kind == GROUP_LIB) return false;
    if (ca->nodes.len + cb->nodes.len > f->target->max_nodes) return false;
    NodeList *all = joined(f, &ca->nodes, &cb->nodes);
    if (!fuse_fits(f, kind, all)) return false;
    int lo = ca->rank < cb->rank ? a : b, hi = lo == a ? b : a;
    f->cluster_stamp++;
    f->reached.len = 0;
    if (!reach(f, lo, lo, hi)) return false;
    reorder(f, lo, hi, a);
    for (int i = 0; i < cb->nodes.len; i++)
        f->cluster_of[cb->nodes.data[i].i] = a;
    ca->nodes = *all;
    *all = (NodeList){0};
    ca->kind = kind;
    cb->dead = true;
    cb->nodes.len = 0;
    return true;
}

/* ---- which merges pay ---------------------------------------------------- */

static bool other_users(const Fuse *f, ValueId v, int a, int b) {
    if (f->escapes[v.i]) return true;
    for (int k = f->user_at[v.i]; k < f->user_at[v.i + 1]; k++) {
        int c = f->cluster_of[f->user[k].i];
        if (c != a && c != b) return true;
    }
    return false;
}

/* When a cluster runs: forward 0, backward 1, update 2; its earliest node
   tells. */
static int part_of_step(const Fuse *f, int c) {
    const NodeList *x = &f->clusters.data[c].nodes;
    int part = 2;
    for (int i = 0; i < x->len; i++) {
        uint32_t flags = node_get(f->g, x->data[i])->flags;
        int p = flags & NODE_UPDATE ? 2 : flags & NODE_BACKWARD ? 1 : 0;
        if (p < part) part = p;
    }
    return part;
}

static int64_t bytes_of(const Fuse *f, ValueId v) {
    return type_bytes(value_type(f->g, v));
}

/* Work of a later part joins an earlier cluster only to take over values that
   then need no buffer, and are no smaller than what it makes of them:
   results would live for half a step. */
static bool parts_agree(const Fuse *f, int a, int b) {
    int pa = part_of_step(f, a), pb = part_of_step(f, b);
    if (pa == pb) return true;
    int early = pa < pb ? a : b, late = early == a ? b : a;
    const NodeList *y = &f->clusters.data[late].nodes;
    int64_t taken = 0, made = 0;
    for (int i = 0; i < y->len; i++) {
        const Node *n = node_get(f->g, y->data[i]);
        for (int k = 0; k < n->nin; k++) {
            if (maker(f, n->in[k]) != early) continue;
            if (other_users(f, n->in[k], early, late)) return false;
            taken += bytes_of(f, n->in[k]);
        }
        for (int k = 0; k < n->nout; k++)
            if (other_users(f, n->out[k], late, late))
                made += bytes_of(f, n->out[k]);
    }
    return taken > 0 && made <= taken;
}

/* Whether v is read in an earlier part of the step than `part` only, but for
   cluster c. */
static bool done_before(const Fuse *f, ValueId v, int c, int part) {
    if (f->escapes[v.i]) return false;
    for (int k = f->user_at[v.i]; k < f->user_at[v.i + 1]; k++) {
        int u = f->cluster_of[f->user[k].i];
        if (u != c && part_of_step(f, u) >= part) return false;
    }
    return true;
}

/* Cluster c, one node of a later part, turns a value that nothing else keeps
   alive into one of at most half its size (the mask of a relu): made at once,
   it is what stays. */
static int keeps_instead(const Fuse *f, int c) {
    const NodeList *x = &f->clusters.data[c].nodes;
    const Node *n = node_get(f->g, x->data[0]);
    int from = -1;
    if (x->len != 1 || op_info[n->op].kind != KIND_ELEM) return -1;
    for (int k = 0; k < n->nin; k++) {
        int m = maker(f, n->in[k]);
        if (value_type(f->g, n->in[k])->rank == 0) continue;
        if (m < 0 || (from >= 0 && m != from)) return -1;
        if (2 * bytes_of(f, n->out[0]) > bytes_of(f, n->in[k]) ||
            !done_before(f, n->in[k], c, part_of_step(f, c)))
            return -1;
        from = m;
    }
    if (from >= 0 && part_of_step(f, from) >= part_of_step(f, c)) return -1;
    return from;
}

/* Whether v needs a buffer wherever the work goes: read by the host, a VIEW,
   a library routine, or several clusters. */
static bool stored_anyway(const Fuse *f, ValueId v) {
    int reader = -1;
    if (f->escapes[v.i]) return true;
    for (int k = f->user_at[v.i]; k < f->user_at[v.i + 1]; k++) {
        OpKind kind = kind_of(f->g, f->user[k]);
        int c = f->cluster_of[f->user[k].i];
        if (kind == KIND_ANCHOR || kind == KIND_LIB) return true;
        if (reader >= 0 && c != reader) return true;
        reader = c;
    }
    return false;
}

/* Where the product is stored for others too, an epilogue that makes a second
   result must not rather move into that result's one reader. */
static bool epilogue_pays(Fuse *f, int anchor, int c) {
    const NodeList *x = &cluster(f, c)->nodes;
    bool second = false, needed = false;
    for (int i = 0; i < x->len; i++) {
        const Node *n = node_get(f->g, x->data[i]);
        for (int k = 0; k < n->nin; k++)
            if (maker(f, n->in[k]) == anchor &&
                other_users(f, n->in[k], anchor, c))
                second = true;
        needed |= stored_anyway(f, n->out[0]);
    }
    return !second || needed;
}

/* A value with at least `count` elements that both clusters touch. */
static bool share_large(Fuse *f, int a, int b, int64_t count) {
    const NodeList *x = &cluster(f, a)->nodes, *y = &cluster(f, b)->nodes;
    Graph *g = f->g;
    unsigned s = ++f->stamp;
    for (int i = 0; i < x->len; i++) {
        const Node *n = node_get(g, x->data[i]);
        for (int k = 0; k < n->nin; k++) f->value_mark[n->in[k].i] = s;
        for (int k = 0; k < n->nout; k++) f->value_mark[n->out[k].i] = s;
    }
    for (int i = 0; i < y->len; i++) {
        const Node *n = node_get(g, y->data[i]);
        for (int k = 0; k < n->nin + n->nout; k++) {
            ValueId v = k < n->nin ? n->in[k] : n->out[k - n->nin];
            if (is_value(v) && f->value_mark[v.i] == s &&
                type_count(value_type(g, v)) >= count)
                return true;
        }
    }
    return false;
}

static int64_t full_count(const Fuse *f, int row) {
    NodeId r = fuse_reduce_node(f->g, &f->clusters.data[row].nodes);
    return type_count(value_type(f->g, node_get(f->g, r)->in[0]));
}

/* Whether every value of cluster c is read by cluster `reader` alone. */
static bool feeds_only(const Fuse *f, int c, int reader) {
    const NodeList *x = &f->clusters.data[c].nodes;
    for (int i = 0; i < x->len; i++) {
        const Node *n = node_get(f->g, x->data[i]);
        for (int k = 0; k < n->nout; k++)
            if (other_users(f, n->out[k], c, reader)) return false;
    }
    return true;
}

/* Work on rows is free in a ROW cluster, and on small tensors a step costs more
   than the work; other full work must share a tensor.  An update stays in one
   piece, since a POINT group can do it in place. */
static bool row_neighbour_pays(Fuse *f, int row, int c) {
    const Cluster *x = cluster(f, c);
    int64_t full = full_count(f, row);
    const Type *t = value_type(f->g, node_get(f->g, x->nodes.data[0])->out[0]);
    if (x->kind == GROUP_POINT && type_count(t) < full) return true;
    if (x->kind == GROUP_POINT && part_of_step(f, c) == 2)
        return feeds_only(f, c, row);
    return full <= f->target->small_tensor || share_large(f, row, c, full);
}

/* How a POINT cluster reads a value made by another one. */
static bool direct_read(const Graph *g, const Node *user, ValueId v) {
    if (op_info[user->op].kind == KIND_MOVE) return false;
    return shape_equal(value_type(g, v), value_type(g, user->out[0]));
}

static bool moves_once(OpCode op) {
    return op == OP_TRANSPOSE || op == OP_SLICE || op == OP_TRILU;
}

enum { MAX_MOVED = 3 }; /* nodes worth computing at a moved index */

/* The producer p may be computed inside consumer c: element for element, or
   for a short p read once at another index. */
static bool chain_pays(Fuse *f, int p, int c) {
    const Cluster *x = cluster(f, p), *y = cluster(f, c);
    Graph *g = f->g;
    for (int i = 0; i < y->nodes.len; i++) {
        const Node *n = node_get(g, y->nodes.data[i]);
        for (int k = 0; k < n->nin; k++) {
            if (maker(f, n->in[k]) != p || direct_read(g, n, n->in[k]))
                continue;
            bool gen =
                x->nodes.len == 1 && kind_of(g, x->nodes.data[0]) == KIND_GEN;
            if (gen &&
                op_info[node_get(g, x->nodes.data[0])->op].cost < COST_LONG)
                continue;
            if (!moves_once(n->op) || x->nodes.len > MAX_MOVED ||
                other_users(f, n->in[k], p, c))
                return false;
        }
    }
    return true;
}

/* ---- the merges, in order of worth --------------------------------------- */

/* Calls on_pair(a, other) for clusters that make what a reads or read what a
   makes, until nothing merges. */
typedef bool TryPair(Fuse *f, int a, int other);

static bool try_neighbours_once(Fuse *f, int a, TryPair *on_pair) {
    const NodeList nodes = cluster(f, a)->nodes;
    for (int i = 0; i < nodes.len; i++) {
        const Node *n = node_get(f->g, nodes.data[i]);
        for (int k = 0; k < n->nin; k++) {
            int c = maker(f, n->in[k]);
            if (c >= 0 && c != a && on_pair(f, a, c)) return true;
        }
        for (int o = 0; o < n->nout; o++)
            for (int k = f->user_at[n->out[o].i];
                 k < f->user_at[n->out[o].i + 1]; k++) {
                int c = f->cluster_of[f->user[k].i];
                if (c >= 0 && c != a && on_pair(f, a, c)) return true;
            }
    }
    return false;
}

static void grow(Fuse *f, GroupKind kind, TryPair *on_pair) {
    for (int c = 0; c < f->clusters.len; c++)
        while (!cluster(f, c)->dead && cluster(f, c)->kind == kind &&
               try_neighbours_once(f, c, on_pair)) {
        }
}

static bool grow_anchor(Fuse *f, int a, int c) {
    if (cluster(f, c)->kind != GROUP_POINT) return false;
    bool after = cluster(f, c)->rank > cluster(f, a)->rank;
    if (!parts_agree(f, a, c)) return false;
    if (after) return epilogue_pays(f, a, c) && merge(f, a, c);
    const Node *n = node_get(f->g, cluster(f, c)->nodes.data[0]);
    return cluster(f, c)->nodes.len == 1 && !other_users(f, n->out[0], a, c) &&
           merge(f, a, c);
}

static bool grow_row(Fuse *f, int a, int c) {
    GroupKind k = cluster(f, c)->kind;
    if (k != GROUP_POINT && k != GROUP_ROW) return false;
    return parts_agree(f, a, c) && row_neighbour_pays(f, a, c) &&
           merge(f, a, c);
}

static bool grow_point(Fuse *f, int a, int c) {
    if (cluster(f, c)->kind != GROUP_POINT) return false;
    bool before = cluster(f, c)->rank < cluster(f, a)->rank;
    return parts_agree(f, a, c) &&
           chain_pays(f, before ? c : a, before ? a : c) && merge(f, a, c);
}

static bool same_domain(Fuse *f, int a, int b) {
    const Type *x = fuse_domain(f, &cluster(f, a)->nodes);
    if (!x) return false;
    Type t = *x;
    const Type *y = fuse_domain(f, &cluster(f, b)->nodes);
    return y && shape_equal(&t, y);
}

static bool join_siblings(Fuse *f, int a, int b) {
    Cluster *x = cluster(f, a), *y = cluster(f, b);
    if (a == b || x->dead || y->dead) return false;
    if (x->kind > GROUP_ROW || y->kind > GROUP_ROW) return false;
    if (part_of_step(f, a) != part_of_step(f, b)) return false;
    if (x->kind == GROUP_POINT && y->kind == GROUP_POINT)
        return same_domain(f, a, b) && merge(f, a, b);
    int row = x->kind == GROUP_ROW ? a : b;
    return row_neighbour_pays(f, row, row == a ? b : a) && merge(f, a, b);
}

/* Clusters that read the same large value directly. */
static void siblings_of(Fuse *f, uint32_t v) {
    for (int i = f->user_at[v]; i < f->user_at[v + 1]; i++)
        for (int j = i + 1; j < f->user_at[v + 1]; j++) {
            NodeId m = f->user[i], n = f->user[j];
            int a = f->cluster_of[m.i], b = f->cluster_of[n.i];
            if (a < 0 || b < 0 || a == b) continue;
            if (kind_of(f->g, m) == KIND_MOVE || kind_of(f->g, n) == KIND_MOVE)
                continue;
            join_siblings(f, a, b);
        }
}

enum { SIBLING_USERS = 64 };

static void all_siblings(Fuse *f) {
    int nv = f->g->values.len;
    for (uint32_t v = 1; v < (uint32_t)nv; v++) {
        int users = f->user_at[v + 1] - f->user_at[v];
        if (users < 2 || users > SIBLING_USERS) continue;
        if (value_type(f->g, (ValueId){v})->rank == 0) continue;
        siblings_of(f, v);
    }
}

static void join_masks(Fuse *f) {
    for (int c = 0; c < f->clusters.len; c++) {
        if (cluster(f, c)->dead || cluster(f, c)->kind != GROUP_POINT) continue;
        int from = keeps_instead(f, c);
        if (from >= 0) merge(f, from, c);
    }
}

static bool is_scalar_cluster(Fuse *f, int c) {
    const Cluster *x = cluster(f, c);
    if (x->dead || x->kind != GROUP_POINT) return false;
    const Type *t = fuse_domain(f, &x->nodes);
    return t && t->rank == 0;
}

enum { MAX_OPEN = 8 }; /* clusters that one may join: the older ones are full */

/* Scalar work is all overhead: as few kernels as order allows. */
static void join_scalars(Fuse *f) {
    VEC(int) open = {0};
    for (int c = 0; c < f->clusters.len; c++) {
        if (!is_scalar_cluster(f, c)) continue;
        bool done = false;
        int oldest = open.len > MAX_OPEN ? open.len - MAX_OPEN : 0;
        for (int i = open.len - 1; i >= oldest && !done; i--)
            done = merge(f, open.data[i], c);
        if (!done) vec_push(f->a, &open, c);
    }
}

/* Reductions that share nothing but their shape, when they are small. */
static void join_small_rows(Fuse *f) {
    VEC(int) open = {0};
    for (int c = 0; c < f->clusters.len; c++) {
        const Cluster *x = cluster(f, c);
        if (x->dead || x->kind != GROUP_ROW) continue;
        if (full_count(f, c) > f->target->tiny_tensor) continue;
        NodeId mine = fuse_reduce_node(f->g, &x->nodes);
        bool done = false;
        int oldest = open.len > MAX_OPEN ? open.len - MAX_OPEN : 0;
        for (int i = oldest; i < open.len && !done; i++) {
            const NodeList *y = &cluster(f, open.data[i])->nodes;
            done = fuse_same_reduction(f->g, mine, fuse_reduce_node(f->g, y)) &&
                   merge(f, open.data[i], c);
        }
        if (!done) vec_push(f->a, &open, c);
    }
}

/* ---- the result ---------------------------------------------------------- */

static void replace(Fuse *f, ValueId from, ValueId to) {
    Graph *g = f->g;
    for (int k = f->user_at[from.i]; k < f->user_at[from.i + 1]; k++) {
        Node *n = node_get(g, f->user[k]);
        for (int i = 0; i < n->nin; i++)
            if (same_value(n->in[i], from)) n->in[i] = to;
    }
    for (int i = 0; i < g->outputs.len && f->escapes[from.i]; i++)
        if (same_value(g->outputs.data[i].value, from))
            g->outputs.data[i].value = to;
    for (int i = 0; i < g->writes.len && f->escapes[from.i]; i++)
        if (same_value(g->writes.data[i].value, from))
            g->writes.data[i].value = to;
}

/* Equal copies that met in one cluster become one node again. */
static void drop_copies(Fuse *f, Cluster *c) {
    Graph *g = f->g;
    int kept = 0;
    for (int i = 0; i < c->nodes.len; i++) {
        NodeId id = c->nodes.data[i];
        int same = -1;
        for (int k = 0; k < kept && same < 0; k++)
            if (node_same(g, node_get(g, id), node_get(g, c->nodes.data[k])))
                same = k;
        if (same < 0) {
            c->nodes.data[kept++] = id;
            continue;
        }
        const Node *n = node_get(g, id);
        const Node *m = node_get(g, c->nodes.data[same]);
        for (int k = 0; k < n->nout; k++) replace(f, n->out[k], m->out[k]);
    }
    c->nodes.len = kept;
}

typedef struct Placer {
    Fuse *f;
    bool *done;  /* by cluster */
    bool *views; /* by NodeId.i */
} Placer;

static void place_maker(Placer *p, ValueId v);

static void place_cluster(Placer *p, int c) {
    Graph *g = p->f->g;
    Cluster *x = cluster(p->f, c);
    if (p->done[c]) return;
    p->done[c] = true;
    for (int i = 0; i < x->nodes.len; i++)
        for (int k = 0; k < node_get(g, x->nodes.data[i])->nin; k++)
            place_maker(p, node_get(g, x->nodes.data[i])->in[k]);
    vec_push(g->arena, &g->groups, (Group){.kind = x->kind});
    for (int i = 0; i < x->nodes.len; i++) {
        node_get(g, x->nodes.data[i])->group = g->groups.len - 1;
        vec_push(g->arena, &g->order, x->nodes.data[i]);
    }
}

static void place_view(Placer *p, NodeId id) {
    if (p->views[id.i]) return;
    p->views[id.i] = true;
    place_maker(p, node_get(p->f->g, id)->in[0]);
    vec_push(p->f->g->arena, &p->f->g->order, id);
}

static void place_maker(Placer *p, ValueId v) {
    if (!is_value(v)) return;
    const Value *x = value_get(p->f->g, v);
    if (x->kind != VK_RESULT) return;
    int c = p->f->cluster_of[x->def.i];
    if (c >= 0)
        place_cluster(p, c);
    else
        place_view(p, x->def);
}

/* Each cluster stands where its last node stood, or where it is first read. */
static void place_all(Fuse *f) {
    Graph *g = f->g;
    Placer p = {.f = f};
    p.done = NEW_ARRAY(f->a, bool, f->clusters.len + 1);
    p.views = NEW_ARRAY(f->a, bool, g->nodes.len);
    int n = g->order.len;
    NodeId *old = arena_dup(f->a, g->order.data, (size_t)n * sizeof *old);
    g->order.len = 0;
    g->groups.len = 0;
    for (int i = 0; i < n; i++) node_get(g, old[i])->group = -1;
    for (int i = 0; i < n; i++) {
        int c = f->cluster_of[old[i].i];
        if (c < 0) continue;
        const NodeList *nodes = &cluster(f, c)->nodes;
        if (nodes->data[nodes->len - 1].i == old[i].i) place_cluster(&p, c);
    }
    for (int i = 0; i < n; i++)
        if (f->cluster_of[old[i].i] < 0) place_view(&p, old[i]);
}

static void fuse_graph(Graph *g, PassCtx *cx) {
    bool fusing = !cx->opt->no_fuse;
    fuse_prepare(g, cx->scratch, fusing);
    Fuse f = {.g = g, .target = target_of(g), .a = cx->scratch};
    index_users(&f);
    find_escapes(&f);
    start_clusters(&f);
    if (fusing) {
        join_masks(&f);
        grow(&f, GROUP_ANCHOR, grow_anchor);
        grow(&f, GROUP_ROW, grow_row);
        grow(&f, GROUP_POINT, grow_point);
        all_siblings(&f);
        join_small_rows(&f);
        join_scalars(&f);
        for (int c = 0; c < f.clusters.len; c++)
            drop_copies(&f, cluster(&f, c));
    }
    place_all(&f);
}

Status pass_fuse(Module *m, PassCtx *cx) {
    for (int i = 0; i < m->graphs.len; i++) fuse_graph(m->graphs.data[i], cx);
    return OK;
}
