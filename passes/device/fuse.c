/* SPDX-License-Identifier: Apache-2.0 */
/* fuse.c: group nodes that one kernel computes.
   Before:  %a = matmul %x, %w    %b = add %a, %bias    %r = relu %b
   After:   group anchor { %a, %b, %r }; only %r gets a buffer

   Every node starts as a cluster of its own; clusters merge greedily, best kind
   of merge first: masks with the forward values that they replace, widening
   casts with their readers, epilogues of products, pools after convolutions,
   losses with their gradients, then reductions with their producers and
   readers, chains of element-wise work, siblings that read the same tensors,
   small reductions, scalars.  A merge must fit one kernel (fuse_fit.c) and must
   not close a cycle; a topological order of clusters is kept for that.

   requires     stage STEP after expand, no dead nodes
   establishes  stage FUSED
   breaks       nothing: schedule may reorder groups                         */
#include "passes/device/fuse.h"
#include "passes/device/flow.h"
#include "passes/device/product.h"
#include "passes/rewrite.h"

#include <stdlib.h>
#include <string.h>

/* ---- the merges, in order of worth --------------------------------------- */

/* Cluster a absorbs c, a producer or reader of a. */
static bool take_over(Fuse *f, int a, int c) {
    const Cluster *x = cluster(f, a), *y = cluster(f, c);
    bool after = y->rank > x->rank, pays = false;
    if (x->nodes.len + y->nodes.len > fuse_most_nodes(f, x)) return false;
    if (y->kind != GROUP_POINT &&
        (y->kind != GROUP_ROW || x->kind != GROUP_ROW))
        return false;
    if (!fuse_parts_agree(f, a, c)) return false;
    switch (x->kind) {
    case GROUP_POINT:
        pays = fuse_chain_pays(f, after ? a : c, after ? c : a);
        break;
    case GROUP_ROW: pays = fuse_row_neighbour_pays(f, a, c); break;
    case GROUP_ANCHOR:
        pays = after
                   ? fuse_epilogue_pays(f, a, c)
                   : y->nodes.len == 1 &&
                         !fuse_other_users(
                             f, node_get(f->g, y->nodes.data[0])->out[0], a, c);
        break;
    case GROUP_LIB: break;
    }
    return pays && fuse_merge(f, a, c);
}

enum { READERS = 512 }; /* readers of one value that its producer may absorb */

static bool grow_once(Fuse *f, int a) {
    const NodeList nodes = cluster(f, a)->nodes;
    int most = fuse_most_nodes(f, cluster(f, a));
    for (int i = 0; i < nodes.len && nodes.len < most; i++) {
        const Node *n = node_get(f->g, nodes.data[i]);
        bool closed = true, *is_closed = &f->closed[nodes.data[i].i];
        if (*is_closed) continue;
        for (int k = 0; k < n->nin; k++) {
            int c = maker(f, n->in[k]);
            if (c >= 0 && c != a && take_over(f, a, c)) return true;
            closed &= c == a || !is_value(n->in[k]) ||
                      value_is_immediate(f->g, n->in[k]);
        }
        for (int o = 0; o < n->nout; o++) {
            closed &= !f->escapes[n->out[o].i];
            Users u = users_of(&f->users, n->out[o]);
            for (int left = READERS; u.at < u.end && left-- > 0; u.at++) {
                int c = f->cluster_of[u.at->i];
                if (c >= 0 && c != a && take_over(f, a, c)) return true;
                closed &= c == a;
            }
            closed &= u.at == u.end;
        }
        *is_closed = closed;
    }
    return false;
}

static void grow(Fuse *f, GroupKind kind) {
    for (int c = 0; c < f->clusters.len; c++)
        while (!cluster(f, c)->dead && cluster(f, c)->kind == kind &&
               grow_once(f, c)) {
        }
}

static bool join_siblings(Fuse *f, int a, int b) {
    const Cluster *x = cluster(f, a), *y = cluster(f, b);
    if (x->kind > GROUP_ROW || y->kind > GROUP_ROW || x->part != y->part)
        return false;
    if (x->kind == GROUP_POINT && y->kind == GROUP_POINT) {
        const Type *t = fuse_domain(f, a);
        const Type *u = t ? fuse_domain(f, b) : NULL;
        return u && shape_equal(t, u) && fuse_merge(f, a, b);
    }
    int row = x->kind == GROUP_ROW ? a : b;
    return fuse_row_neighbour_pays(f, row, row == a ? b : a) &&
           fuse_merge(f, a, b);
}

enum { SIBLING_USERS = 64 };

/* Clusters that read the same large value: directly, or, where a launch is
   expensive, through moves. */
static void all_siblings(Fuse *f) {
    bool moved = f->target->shares_launches;
    for (uint32_t i = 1, nv = (uint32_t)f->g->values.len; i < nv; i++) {
        Users u = users_of(&f->users, (ValueId){i});
        if (u.end - u.at < 2 || u.end - u.at > SIBLING_USERS ||
            value_type(f->g, (ValueId){i})->rank == 0)
            continue;
        for (; u.at < u.end; u.at++)
            for (const NodeId *v = u.at + 1; v < u.end; v++) {
                int a = f->cluster_of[u.at->i], b = f->cluster_of[v->i];
                if (a >= 0 && b >= 0 && a != b &&
                    (moved || (kind_of(f->g, *u.at) != KIND_MOVE &&
                               kind_of(f->g, *v) != KIND_MOVE)))
                    join_siblings(f, a, b);
            }
    }
}

static void join_masks(Fuse *f) {
    for (int c = 0; c < f->clusters.len; c++) {
        if (cluster(f, c)->dead || cluster(f, c)->kind != GROUP_POINT) continue;
        int from = fuse_keeps_instead(f, c);
        if (from >= 0) fuse_merge(f, from, c);
    }
}

/* A cast to a wider type joins its reader. Otherwise the kernel that
   computes the narrower value could absorb the cast, and the wider value
   would be stored. */
static void join_widened(Fuse *f) {
    for (int c = 0; c < f->clusters.len; c++) {
        const Cluster *x = cluster(f, c);
        if (x->dead || x->kind != GROUP_POINT || x->nodes.len != 1) continue;
        ValueId from = fuse_widened(f->g, x->nodes.data[0]);
        if (!from.i || cluster(f, maker(f, from))->part != x->part) continue;
        ValueId v = node_get(f->g, x->nodes.data[0])->out[0];
        Users u = users_of(&f->users, v);
        if (f->escapes[v.i] || u.end - u.at != 1 ||
            kind_of(f->g, *u.at) != KIND_ELEM)
            continue;
        fuse_merge(f, f->cluster_of[u.at->i], c);
    }
}

/* Pools after convolutions: some images are pooled while they are in the
   cache. The convolution's result needs no buffer if only the pool reads it. */
static void join_pools(Fuse *f) {
    for (int c = 0; c < f->clusters.len; c++) {
        const Cluster *x = cluster(f, c);
        if (x->dead || x->kind != GROUP_LIB) continue;
        const Node *n = node_get(f->g, x->nodes.data[0]);
        int m = node_pools(n) ? maker(f, n->in[0]) : -1;
        if (m >= 0 && cluster(f, m)->kind == GROUP_ANCHOR &&
            cluster(f, m)->part == x->part)
            fuse_merge(f, m, c);
    }
}

/* Scalars, or reductions of one small shape, without common operands: they
   cost a launch each, so they are joined into as few kernels as the order
   allows. If launches are shared, unmerged reductions get one launch, side
   by side. */
static void join_small(Fuse *f, GroupKind kind) {
    enum { MAX_OPEN = 8 }; /* clusters that one more cluster may join */
    VEC(int) open = {0};
    for (int c = 0; c < f->clusters.len; c++) {
        const NodeList *x = &cluster(f, c)->nodes;
        NodeId mine = fuse_reduce_node(f->g, x);
        if (cluster(f, c)->dead || cluster(f, c)->kind != kind) continue;
        const Type *t = kind == GROUP_POINT ? fuse_domain(f, c) : NULL;
        if (kind == GROUP_POINT
                ? !t || t->rank > 0
                : fuse_full_count(f, c) > f->target->tiny_tensor)
            continue;
        bool done = false;
        int oldest = open.len > MAX_OPEN ? open.len - MAX_OPEN : 0;
        for (int i = open.len - 1; i >= oldest && !done; i--) {
            int o = open.data[i];
            NodeId other = fuse_reduce_node(f->g, &cluster(f, o)->nodes);
            done = (kind == GROUP_POINT ||
                    fuse_same_reduction(f->g, mine, other)) &&
                   fuse_merge(f, o, c);
        }
        if (!done) vec_push(f->a, &open, c);
    }
}

/* ---- the result ---------------------------------------------------------- */

static void replace(Fuse *f, ValueId from, ValueId to) {
    Graph *g = f->g;
    for (Users u = users_of(&f->users, from); u.at < u.end; u.at++) {
        Node *n = node_get(g, *u.at);
        for (int i = 0; i < n->nin; i++)
            if (same_value(n->in[i], from)) n->in[i] = to;
    }
    for (int i = 0; f->escapes[from.i] && graph_root(g, i); i++)
        if (same_value(*graph_root(g, i), from)) *graph_root(g, i) = to;
    bool waited = f->waiting && f->waiting[from.i].len;
    for (int c = 0; waited && c < f->clusters.len; c++)
        if (same_value(cluster(f, c)->guard.when, from))
            cluster(f, c)->guard.when = to;
}

/* True if n reads a value with no other reader: then no other node equals n. */
static bool reads_alone(const Fuse *f, const Node *n) {
    for (int k = 0; k < n->nin; k++) {
        Users u = users_of(&f->users, n->in[k]);
        if (u.end - u.at == 1 && f->value_mark[n->in[k].i] != f->stamp)
            return true;
    }
    return false;
}

/* Equal copies in one cluster become one node again. Values that replace
   others are marked. */
static void drop_copies(Fuse *f, Cluster *c) {
    Graph *g = f->g;
    int kept = 0;
    for (int i = 0; i < c->nodes.len; i++) {
        NodeId *to = c->nodes.data, id = to[i];
        const Node *n = node_get(g, id);
        int k = reads_alone(f, n) ? kept : 0;
        while (k < kept && !node_same(g, n, node_get(g, to[k]))) k++;
        if (k == kept) to[kept++] = id;
        for (int o = 0; o < n->nout && to[k].i != id.i; o++) {
            ValueId stands = node_get(g, to[k])->out[o];
            replace(f, n->out[o], stands);
            f->value_mark[stands.i] = f->stamp;
        }
    }
    c->nodes.len = kept;
}

static void place_cluster(Fuse *f, int c);

static void place_maker(Fuse *f, ValueId v) {
    int m = is_value(v) ? maker(f, view_root(f->g, v)) : -1;
    if (m >= 0) place_cluster(f, m);
}

/* Places a cluster after the clusters whose results it needs. */
static void place_cluster(Fuse *f, int c) {
    const NodeList *x = &cluster(f, c)->nodes;
    if (cluster(f, c)->placed) return;
    cluster(f, c)->placed = true;
    place_maker(f, cluster(f, c)->guard.when);
    for (int i = 0; i < x->len; i++) {
        const Node *n = node_get(f->g, x->data[i]);
        for (int k = 0; k < n->nin; k++) place_maker(f, n->in[k]);
    }
    vec_push(f->a, &f->placed, c);
}

/* A cluster is placed at the position of its last node, or where its results
   are first read. */
static void place_all(Fuse *f) {
    Graph *g = f->g;
    for (int i = 0; i < g->order.len; i++) node_at(g, i)->group = -1;
    g->groups.len = 0;
    for (int c = 0; c < f->clusters.len; c++) {
        const NodeList *x = &cluster(f, c)->nodes;
        Group group = {.kind = cluster(f, c)->kind,
                       .guard = cluster(f, c)->guard};
        vec_push(g->arena, &g->groups, group);
        for (int i = 0; i < x->len; i++) node_get(g, x->data[i])->group = c;
    }
    for (int i = 0; i < g->order.len; i++) {
        int c = f->cluster_of[g->order.data[i].i];
        if (c < 0) continue;
        const NodeList *x = &cluster(f, c)->nodes;
        if (x->data[x->len - 1].i == g->order.data[i].i) place_cluster(f, c);
    }
    groups_reorder(g, f->a, f->placed.data, f->placed.len);
}

/* Limit on the steps of far searches: networks of some thousand nodes take
   20 steps per node. */
enum { FREE_STEPS = 1 << 20, STEPS_A_NODE = 64 };

static void fuse_graph(Graph *g, PassCtx *cx) {
    bool fusing = !cx->opt->no_fuse;
    fuse_prepare(g, cx->scratch, fusing);
    Fuse f = {.g = g,
              .target = target_smallest(g, cx->opt, cx->scratch),
              .a = cx->scratch};
    f.steps_left = FREE_STEPS + STEPS_A_NODE * (int64_t)g->order.len;
    fuse_index_users(&f);
    fuse_start_clusters(&f);
    fuse_mark_chunks(&f);
    if (fusing) {
        join_masks(&f);
        join_widened(&f);
        grow(&f, GROUP_ANCHOR);
        if (f.target->pools) join_pools(&f);
        fuse_join_losses(&f);
        grow(&f, GROUP_ROW);
        grow(&f, GROUP_POINT);
        all_siblings(&f);
        if (!f.target->shares_launches) join_small(&f, GROUP_ROW);
        join_small(&f, GROUP_POINT);
        f.stamp++;
        for (int c = 0; c < f.clusters.len; c++)
            drop_copies(&f, cluster(&f, c));
    }
    place_all(&f);
}

Status pass_fuse(Module *m, PassCtx *cx) {
    for (int i = 0; i < m->graphs.len; i++) fuse_graph(m->graphs.data[i], cx);
    return OK;
}
