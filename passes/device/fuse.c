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

/* ---- clusters ------------------------------------------------------------ */

static Cluster *cluster(Fuse *f, int c) { return &f->clusters.data[c]; }

/* The node that computes v, or none. */
static NodeId maker_node(const Graph *g, ValueId v) {
    return g->values.data[v.i].def;
}

/* Cluster that computes v; -1: none (input, variable, constant, VIEW). */
static int maker(const Fuse *f, ValueId v) {
    return f->cluster_of[maker_node(f->g, v).i];
}

/* The readers of each value. */
static void index_users(Fuse *f) {
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
    }
    for (int i = g->order.len - 1; i >= 0; i--) {
        NodeId id = g->order.data[i];
        const Node *n = node_get(g, id);
        int c = f->cluster_of[id.i];
        for (int k = 0; k < n->nin; k++)
            before[maker_node(g, n->in[k]).i] |= before[id.i];
        if (c < 0) continue;
        cluster(f, c)->pivots = behind[id.i] & before[id.i];
        cluster(f, c)->behind = behind[id.i];
        cluster(f, c)->before = before[id.i];
    }
}

static void start_clusters(Fuse *f) {
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

/* The values that chunks of rows (stream.c) read, and the readers of their
   results. */
static void mark_chunks(Fuse *f) {
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
    }
    return found;
}

/* The same in the other direction: collects the clusters ranked above lo
   that c depends on. */
static Search reach_back(Fuse *f, int c, int lo, int hi) {
    Search found = FREE;
    f->cluster_mark[c] = f->cluster_stamp;
    if (c != hi) vec_push(f->a, &f->reached, (Reached){c, 0});
    for (int i = 0; i < cluster(f, c)->nodes.len; i++) {
        const Node *n = node_get(f->g, cluster(f, c)->nodes.data[i]);
        for (int k = 0; k < n->nin && !found; k++) {
            if (!is_value(n->in[k])) continue;
            ValueId root = view_root(f->g, n->in[k]);
            int m = maker(f, root);
            if (f->steps-- == 0) return TOO_FAR;
            if (m == lo && (c != hi || !same_value(root, n->in[k])))
                return CYCLE;
            if (m >= 0 && m != lo && m != c &&
                cluster(f, m)->rank > cluster(f, lo)->rank &&
                f->cluster_mark[m] != f->cluster_stamp)
                found = reach_back(f, m, lo, hi);
        }
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

/* Codes of state are long: twice as many nodes for rows of an update. */
static int most_nodes(const Fuse *f, const Cluster *x) {
    return f->target->max_nodes << (x->kind == GROUP_ROW && x->part == 2);
}

/* The merged cluster keeps the number of a and has the greater kind (POINT <
   ROW < ANCHOR; a pool after an ANCHOR has that kind); fuse_fits refuses
   other combinations. */
static bool merge(Fuse *f, int a, int b) {
    Cluster *ca = cluster(f, a), *cb = cluster(f, b);
    const NodeList *x = &ca->nodes, *y = &cb->nodes;
    NodeList *all = &f->joined; /* in graph order */
    GroupKind kind = ca->kind > cb->kind ? ca->kind : cb->kind;
    if (ca->kind == GROUP_ANCHOR && cb->kind == GROUP_LIB) kind = GROUP_ANCHOR;
    if (a == b || !chunks_agree(ca, cb) || kind == GROUP_LIB ||
        x->len + y->len > most_nodes(f, kind == ca->kind ? ca : cb))
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
    ca->before_chunks |= cb->before_chunks;
    ca->after_chunks |= cb->after_chunks;
    if (cb->part < ca->part) ca->part = part_of(f, &ca->nodes, a, b, cb->part);
    cb->dead = true;
    cb->nodes.len = 0;
    return true;
}

/* ---- which merges pay ---------------------------------------------------- */

static bool other_users(const Fuse *f, ValueId v, int a, int b) {
    if (f->escapes[v.i]) return true;
    for (Users u = users_of(&f->users, v); u.at < u.end; u.at++) {
        int c = f->cluster_of[u.at->i];
        if (c != a && c != b) return true;
    }
    return false;
}

static int64_t bytes_of(const Fuse *f, ValueId v) {
    return type_bytes(value_type(f->g, v));
}

/* Work of a later part may join an earlier cluster only if this removes
   buffers at least as large as the buffers of its results, which then live for
   half a step. */
static bool parts_agree(const Fuse *f, int a, int b) {
    int pa = f->clusters.data[a].part, pb = f->clusters.data[b].part;
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

/* True for a cluster c of one later node that turns a value, which nothing
   else in that part reads or keeps, into one of at most half its size (the
   mask of a relu): computed early, the smaller value is stored instead. */
static int keeps_instead(Fuse *f, int c) {
    const Cluster *x = cluster(f, c);
    const Node *n = node_get(f->g, x->nodes.data[0]);
    int from = -1;
    if (x->nodes.len != 1 || node_kind(n) != KIND_ELEM) return -1;
    for (int k = 0; k < n->nin; k++) {
        ValueId v = n->in[k];
        int m = maker(f, v);
        if (value_type(f->g, v)->rank == 0) continue;
        if (m < 0 || (from >= 0 && m != from) || f->escapes[v.i] ||
            2 * bytes_of(f, n->out[0]) > bytes_of(f, v))
            return -1;
        for (Users u = users_of(&f->users, v); u.at < u.end; u.at++) {
            int reader = f->cluster_of[u.at->i];
            if (reader != c && cluster(f, reader)->part >= x->part) return -1;
        }
        from = m;
    }
    return from >= 0 && cluster(f, from)->part < x->part ? from : -1;
}

/* True if v needs a buffer anyway: the host, a VIEW, a library routine or
   several clusters read it. */
static bool stored_anyway(const Fuse *f, ValueId v) {
    int reader = -1;
    if (f->escapes[v.i]) return true;
    for (Users u = users_of(&f->users, v); u.at < u.end; u.at++) {
        OpKind kind = kind_of(f->g, *u.at);
        int c = f->cluster_of[u.at->i];
        if (kind == KIND_ANCHOR || kind == KIND_LIB) return true;
        if (reader >= 0 && c != reader) return true;
        reader = c;
    }
    return false;
}

/* cuBLASLt's epilogue adds a stored value to a product and stores the sum:
   it pays only if both need a buffer anyway. */
static bool sum_pays(const Fuse *f, const Node *product, const Node *n) {
    const Graph *g = f->g;
    if (!f->target->epilogue || !product_is_library(g, product) ||
        product_end(g, product, n).how != PLAN_PRODUCT_ADD)
        return true;
    ValueId v = n->in[same_value(n->in[0], product->out[0])];
    int m = maker(f, v);
    return stored_anyway(f, n->out[0]) &&
           (m < 0 || f->clusters.data[m].kind >= GROUP_ANCHOR ||
            stored_anyway(f, v));
}

/* True if n is a long function (exp, ..) that a stored cast alone reads, and
   all readers of its operand are long functions, too, which backward should
   not repeat. */
static bool stored_as_cast(const Fuse *f, const Node *n) {
    const Graph *g = f->g;
    Users cast = users_of(&f->users, n->out[0]),
          u = users_of(&f->users, n->in[0]);
    for (; u.at < u.end; u.at++)
        if (op_info[node_get(g, *u.at)->op].cost < COST_LONG) return false;
    if (op_info[n->op].cost < COST_LONG || cast.end != cast.at + 1 ||
        value_count(g, n->out[0]) <= f->target->small_tensor)
        return false;
    const Node *reader = node_get(g, *cast.at);
    return reader->op == OP_CAST && stored_anyway(f, reader->out[0]);
}

/* If the product is stored for other readers, too, an epilogue with a second
   result is worthwhile only if that result cannot better merge with its one
   reader. */
static bool epilogue_pays(Fuse *f, int anchor, int c) {
    const NodeList *x = &cluster(f, c)->nodes,
                   *own = &cluster(f, anchor)->nodes;
    bool second = false, needed = false;
    if (own->len == 1 && x->len == 1 &&
        !sum_pays(f, node_get(f->g, own->data[0]), node_get(f->g, x->data[0])))
        return false;
    for (int i = 0; i < x->len; i++) {
        const Node *n = node_get(f->g, x->data[i]);
        for (int k = 0; k < n->nin; k++)
            if (maker(f, n->in[k]) == anchor &&
                other_users(f, n->in[k], anchor, c))
                second = true, needed |= stored_as_cast(f, n);
        needed |= stored_anyway(f, n->out[0]);
    }
    return !second || needed;
}

/* A value with at least `count` elements that both clusters read or write. */
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
                value_count(g, v) >= count)
                return true;
        }
    }
    return false;
}

static int64_t full_count(const Fuse *f, int row) {
    NodeId r = fuse_reduce_node(f->g, &f->clusters.data[row].nodes);
    return value_count(f->g, node_get(f->g, r)->in[0]);
}

/* Columns of blocks of state (compact.h): the nearest cache has the row of each
   operand in all phases. */
enum { BLOCK_COLUMNS = 128 };

/* Whether c makes what the ROW cluster reads, or the reverse, and rows are
   blocks, whose scale is their largest magnitude. */
static bool updates_blocks(Fuse *f, int row, int c) {
    NodeId r = fuse_reduce_node(f->g, &cluster(f, row)->nodes);
    const Node *reduce = node_get(f->g, r);
    int64_t rows = value_count(f->g, reduce->out[0]);
    if (reduce->op != OP_REDUCE_MAX ||
        value_count(f->g, reduce->in[0]) > BLOCK_COLUMNS * rows)
        return false;
    for (int side = 0; side < 2; side++) {
        const NodeList *reads = &cluster(f, side ? row : c)->nodes;
        for (int i = 0; i < reads->len; i++) {
            const Node *n = node_get(f->g, reads->data[i]);
            for (int k = 0; k < n->nin; k++)
                if (maker(f, n->in[k]) == (side ? c : row)) return true;
        }
    }
    return false;
}

/* Element-wise work on rows costs nothing in a ROW cluster, and on small
   tensors a launch costs more than the work; other full work must share a
   tensor. Point-wise work of the update stays in one piece, unless all that
   it makes is read in the ROW cluster, or rows are blocks of state. */
static bool row_neighbour_pays(Fuse *f, int row, int c) {
    const Cluster *x = cluster(f, c);
    int64_t full = full_count(f, row);
    const Type *t = value_type(f->g, node_get(f->g, x->nodes.data[0])->out[0]);
    if (x->kind == GROUP_POINT && type_count(t) < full) return true;
    if (x->kind != GROUP_POINT || x->part != 2)
        return full <= f->target->small_tensor || share_large(f, row, c, full);
    if (updates_blocks(f, row, c)) return true;
    for (int i = 0; i < x->nodes.len; i++) {
        const Node *n = node_get(f->g, x->nodes.data[i]);
        for (int k = 0; k < n->nout; k++)
            if (other_users(f, n->out[k], c, row)) return false;
    }
    return true;
}

static bool is_costly(const Graph *g, const NodeList *x) {
    for (int i = 0; i < x->len; i++)
        if (op_info[node_get(g, x->data[i])->op].cost >= COST_LONG) return true;
    return false;
}

/* Operands of the concatenation into which costly work may move. */
static int costly_parts(const Fuse *f, const Node *concat) {
    const Type *t = value_type(f->g, concat->out[0]);
    int axis = axis_norm(attr_int(concat, AK_axis), t->rank);
    bool last = true;
    for (int d = axis + 1; d < t->rank; d++) last &= t->dim[d] == 1;
    return f->target->costly_parts[last];
}

/* True if the producer p may be computed inside consumer c: element by
   element, or for a short p that is read once at another index. */
static bool chain_pays(Fuse *f, int p, int c) {
    const NodeList *x = &cluster(f, p)->nodes, *y = &cluster(f, c)->nodes;
    Graph *g = f->g;
    bool generator = x->len == 1 && kind_of(g, x->data[0]) == KIND_GEN &&
                     op_info[node_get(g, x->data[0])->op].cost < COST_LONG;
    for (int i = 0; i < y->len; i++) {
        const Node *n = node_get(g, y->data[i]);
        bool move = node_kind(n) == KIND_MOVE;
        bool pads =
            n->op == OP_PAD && strcmp(attr_str(n, AK_mode), "constant") == 0;
        bool moves_once = n->op == OP_TRANSPOSE || n->op == OP_SLICE ||
                          n->op == OP_TRILU || n->op == OP_CONCAT || pads;
        int most = pads ? f->target->max_padded : f->target->max_moved;
        for (int k = 0; k < n->nin; k++) {
            ValueId v = n->in[k];
            if (maker(f, v) != p || generator) continue;
            if (!move &&
                shape_equal(value_type(g, v), value_type(g, n->out[0])))
                continue;
            if (!moves_once || x->len > most || other_users(f, v, p, c))
                return false;
            if (n->op == OP_CONCAT && n->nin > costly_parts(f, n) &&
                is_costly(g, x))
                return false;
        }
    }
    return true;
}

/* ---- the merges, in order of worth --------------------------------------- */

/* Cluster a absorbs c, a producer or reader of a. */
static bool take_over(Fuse *f, int a, int c) {
    const Cluster *x = cluster(f, a), *y = cluster(f, c);
    bool after = y->rank > x->rank, pays = false;
    if (x->nodes.len + y->nodes.len > most_nodes(f, x)) return false;
    if (y->kind != GROUP_POINT &&
        (y->kind != GROUP_ROW || x->kind != GROUP_ROW))
        return false;
    if (!parts_agree(f, a, c)) return false;
    switch (x->kind) {
    case GROUP_POINT: pays = chain_pays(f, after ? a : c, after ? c : a); break;
    case GROUP_ROW: pays = row_neighbour_pays(f, a, c); break;
    case GROUP_ANCHOR:
        pays = after
                   ? epilogue_pays(f, a, c)
                   : y->nodes.len == 1 &&
                         !other_users(
                             f, node_get(f->g, y->nodes.data[0])->out[0], a, c);
        break;
    case GROUP_LIB: break;
    }
    return pays && merge(f, a, c);
}

enum { READERS = 512 }; /* readers of one value that its producer may absorb */

static bool grow_once(Fuse *f, int a) {
    const NodeList nodes = cluster(f, a)->nodes;
    int most = most_nodes(f, cluster(f, a));
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
        return u && shape_equal(t, u) && merge(f, a, b);
    }
    int row = x->kind == GROUP_ROW ? a : b;
    return row_neighbour_pays(f, row, row == a ? b : a) && merge(f, a, b);
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
        int from = keeps_instead(f, c);
        if (from >= 0) merge(f, from, c);
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
        merge(f, f->cluster_of[u.at->i], c);
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
            merge(f, m, c);
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
        if (kind == GROUP_POINT ? !t || t->rank > 0
                                : full_count(f, c) > f->target->tiny_tensor)
            continue;
        bool done = false;
        int oldest = open.len > MAX_OPEN ? open.len - MAX_OPEN : 0;
        for (int i = open.len - 1; i >= oldest && !done; i--) {
            int o = open.data[i];
            NodeId other = fuse_reduce_node(f->g, &cluster(f, o)->nodes);
            done = (kind == GROUP_POINT ||
                    fuse_same_reduction(f->g, mine, other)) &&
                   merge(f, o, c);
        }
        if (!done) vec_push(f->a, &open, c);
    }
}

/* ---- losses -------------------------------------------------------------- */

/* Follows the chain of nodes that compute the gradient of an operand of
   `id`, as long as each has one element-wise reader; returns the last. */
static NodeId gradient_end(const Fuse *f, NodeId id, const Node *reduce) {
    for (;;) {
        ValueId v = node_get(f->g, id)->out[0];
        Users u = users_of(&f->users, v);
        if (f->escapes[v.i] || u.end - u.at != 1 ||
            (kind_of(f->g, *u.at) != KIND_ELEM &&
             !node_pads_rows(f->g, reduce, node_get(f->g, *u.at))))
            return id;
        id = *u.at;
    }
}

static bool listed(const NodeList *all, NodeId n) {
    for (int i = 0; i < all->len; i++)
        if (all->data[i].i == n.i) return true;
    return false;
}

/* The nodes from which `last` is computed by work on rows alone, in graph
   order; false: too many. */
static bool gather_rows(const Fuse *f, NodeId last, const Type *full,
                        const Type *row, NodeList *all) {
    const Graph *g = f->g;
    vec_push(f->a, all, last);
    for (int i = 0; i < all->len; i++) {
        const Node *n = node_get(g, all->data[i]);
        for (int k = 0; k < n->nin; k++) {
            if (!is_value(n->in[k])) continue;
            NodeId def = maker_node(g, n->in[k]);
            const Type *t = value_type(g, n->in[k]);
            int c = f->cluster_of[def.i];
            if (c < 0 || f->clusters.data[c].kind > GROUP_ROW ||
                (!shape_equal(t, full) && !shape_equal(t, row)))
                continue;
            if (listed(all, def)) continue;
            if (all->len == f->target->max_nodes) return false;
            vec_push(f->a, all, def);
        }
    }
    for (int i = 1; i < all->len; i++)
        for (int j = i; j > 0 && f->position[all->data[j].i] <
                                     f->position[all->data[j - 1].i];
             j--) {
            NodeId x = all->data[j];
            all->data[j] = all->data[j - 1];
            all->data[j - 1] = x;
        }
    return true;
}

/* A row value independent of `all`: its readers may be placed after others
   that need it. */
static bool is_apart(const Fuse *f, const NodeList *all, NodeId id,
                     const Type *row) {
    const Node *n = node_get(f->g, id);
    bool apart = shape_equal(value_type(f->g, n->out[0]), row);
    for (int k = 0; k < n->nin && apart; k++)
        apart = !is_value(n->in[k]) ||
                !listed(all, maker_node(f->g, view_root(f->g, n->in[k])));
    return apart;
}

/* Bytes of full values from other clusters that nothing else in backward
   reads. */
static int64_t bytes_freed(Fuse *f, const NodeList *all, const Type *full) {
    int64_t bytes = 0;
    unsigned s = ++f->stamp;
    for (int i = 0; i < all->len; i++) {
        const Node *n = node_get(f->g, all->data[i]);
        for (int k = 0; k < n->nin; k++) {
            ValueId v = n->in[k];
            if (!is_value(v) || f->value_mark[v.i] == s || f->escapes[v.i] ||
                value_count(f->g, v) < type_count(full) ||
                listed(all, maker_node(f->g, v)))
                continue;
            f->value_mark[v.i] = s;
            Users u = users_of(&f->users, v);
            while (u.at < u.end &&
                   (listed(all, *u.at) || !(node_get(f->g, *u.at)->flags &
                                            (NODE_BACKWARD | NODE_UPDATE))))
                u.at++;
            if (u.at == u.end) bytes += bytes_of(f, v);
        }
    }
    return bytes;
}

/* A loss of rows and its gradient become one kernel, which still has the
   rows in registers or cache, if the gradient needs only rows and takes no
   more memory than the values that only the two read. (Its other parts,
   which would close cycles with the gradient, come later.) */
static void join_losses(Fuse *f) {
    for (int c = 0; c < f->clusters.len; c++) {
        const Cluster *x = cluster(f, c);
        if (x->dead || x->kind != GROUP_ROW || x->part) continue;
        NodeId reduce = fuse_reduce_node(f->g, &x->nodes);
        const Node *r = node_get(f->g, reduce);
        const Type *full = value_type(f->g, r->in[0]);
        const Type *row = value_type(f->g, r->out[0]);
        NodeId later = NO_NODE;
        int count = 0;
        for (Users u = users_of(&f->users, r->in[0]); u.at < u.end; u.at++)
            if (node_get(f->g, *u.at)->flags & NODE_BACKWARD)
                later = *u.at, count++;
        if (count != 1 || kind_of(f->g, later) != KIND_ELEM) continue;
        NodeId end = gradient_end(f, later, r);
        ValueId made = node_get(f->g, end)->out[0];
        NodeList all = {0};
        if (!stored_anyway(f, made) || !gather_rows(f, end, full, row, &all) ||
            !listed(&all, reduce) ||
            bytes_of(f, made) > bytes_freed(f, &all, full))
            continue;
        bool fits = true;
        for (int apart = 0; apart < 2 && fits; apart++)
            for (int i = 0; i < all.len && fits; i++) {
                int to = f->cluster_of[reduce.i];
                int from = f->cluster_of[all.data[i].i];
                if (to == from || is_apart(f, &all, all.data[i], row) != apart)
                    continue;
                fits = merge(f, to, from) || apart;
            }
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

/* Places a cluster after the clusters whose results it reads. */
static void place_cluster(Fuse *f, int c) {
    const NodeList *x = &cluster(f, c)->nodes;
    if (cluster(f, c)->placed) return;
    cluster(f, c)->placed = true;
    for (int i = 0; i < x->len; i++) {
        const Node *n = node_get(f->g, x->data[i]);
        for (int k = 0; k < n->nin; k++) {
            ValueId v = n->in[k];
            int m = is_value(v) ? maker(f, view_root(f->g, v)) : -1;
            if (m >= 0) place_cluster(f, m);
        }
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
        vec_push(g->arena, &g->groups, (Group){.kind = cluster(f, c)->kind});
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
    Fuse f = {.g = g, .target = target_of(g), .a = cx->scratch};
    f.steps_left = FREE_STEPS + STEPS_A_NODE * (int64_t)g->order.len;
    index_users(&f);
    start_clusters(&f);
    mark_chunks(&f);
    if (fusing) {
        join_masks(&f);
        join_widened(&f);
        grow(&f, GROUP_ANCHOR);
        if (f.target->pools) join_pools(&f);
        join_losses(&f);
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
