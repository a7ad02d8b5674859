/* SPDX-License-Identifier: Apache-2.0 */
/* fuse_losses.c: a loss of rows and its gradient as one kernel. */
#include "passes/device/fuse.h"
#include "passes/rewrite.h"

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
            if (u.at == u.end) bytes += fuse_bytes_of(f, v);
        }
    }
    return bytes;
}

void fuse_join_losses(Fuse *f) {
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
        if (!fuse_stored_anyway(f, made) ||
            !gather_rows(f, end, full, row, &all) || !listed(&all, reduce) ||
            fuse_bytes_of(f, made) > bytes_freed(f, &all, full))
            continue;
        bool fits = true;
        for (int apart = 0; apart < 2 && fits; apart++)
            for (int i = 0; i < all.len && fits; i++) {
                int to = f->cluster_of[reduce.i];
                int from = f->cluster_of[all.data[i].i];
                if (to == from || is_apart(f, &all, all.data[i], row) != apart)
                    continue;
                fits = fuse_merge(f, to, from) || apart;
            }
    }
}
