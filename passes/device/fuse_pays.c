/* SPDX-License-Identifier: Apache-2.0 */
/* fuse_pays.c: which merges of pass fuse pay: buffers that go away against
   work that is repeated and results that live longer. */
#include "passes/device/fuse.h"
#include "passes/device/product.h"
#include "passes/rewrite.h"

#include <string.h>

bool fuse_other_users(const Fuse *f, ValueId v, int a, int b) {
    if (f->escapes[v.i]) return true;
    for (Users u = users_of(&f->users, v); u.at < u.end; u.at++) {
        int c = f->cluster_of[u.at->i];
        if (c != a && c != b) return true;
    }
    return false;
}

int64_t fuse_bytes_of(const Fuse *f, ValueId v) {
    return type_bytes(value_type(f->g, v));
}

bool fuse_parts_agree(const Fuse *f, int a, int b) {
    int pa = f->clusters.data[a].part, pb = f->clusters.data[b].part;
    if (pa == pb) return true;
    int early = pa < pb ? a : b, late = early == a ? b : a;
    const NodeList *y = &f->clusters.data[late].nodes;
    int64_t taken = 0, made = 0;
    for (int i = 0; i < y->len; i++) {
        const Node *n = node_get(f->g, y->data[i]);
        for (int k = 0; k < n->nin; k++) {
            if (maker(f, n->in[k]) != early) continue;
            if (fuse_other_users(f, n->in[k], early, late)) return false;
            taken += fuse_bytes_of(f, n->in[k]);
        }
        for (int k = 0; k < n->nout; k++)
            if (fuse_other_users(f, n->out[k], late, late))
                made += fuse_bytes_of(f, n->out[k]);
    }
    return taken > 0 && made <= taken;
}

int fuse_keeps_instead(Fuse *f, int c) {
    const Cluster *x = cluster(f, c);
    const Node *n = node_get(f->g, x->nodes.data[0]);
    int from = -1;
    if (x->nodes.len != 1 || node_kind(n) != KIND_ELEM) return -1;
    for (int k = 0; k < n->nin; k++) {
        ValueId v = n->in[k];
        int m = maker(f, v);
        if (value_type(f->g, v)->rank == 0) continue;
        if (m < 0 || (from >= 0 && m != from) || f->escapes[v.i] ||
            2 * fuse_bytes_of(f, n->out[0]) > fuse_bytes_of(f, v))
            return -1;
        for (Users u = users_of(&f->users, v); u.at < u.end; u.at++) {
            int reader = f->cluster_of[u.at->i];
            if (reader != c && cluster(f, reader)->part >= x->part) return -1;
        }
        from = m;
    }
    return from >= 0 && cluster(f, from)->part < x->part ? from : -1;
}

bool fuse_stored_anyway(const Fuse *f, ValueId v) {
    int reader = -1, m = maker(f, v);
    if (f->escapes[v.i]) return true;
    for (Users u = users_of(&f->users, v); u.at < u.end; u.at++) {
        OpKind kind = kind_of(f->g, *u.at);
        int c = f->cluster_of[u.at->i];
        if (kind == KIND_ANCHOR || kind == KIND_LIB) return true;
        if (m >= 0 && c >= 0 &&
            f->clusters.data[c].chunk != f->clusters.data[m].chunk)
            return true; /* no kernel has both */
        if (reader >= 0 && c != reader) return true;
        reader = c;
    }
    return false;
}

/* cuBLASLt's epilogue adds a stored value to a product and stores the sum:
   it pays only if both need a buffer anyway. */
static bool sum_pays(const Fuse *f, const NodeList *own, NodeId last) {
    const Graph *g = f->g;
    const Node *product = node_get(g, own->data[0]), *n = node_get(g, last);
    NodeId after[PRODUCT_MOST_AFTER];
    int k = own->len - 1;
    if (!f->target->epilogue || k >= PRODUCT_MOST_AFTER ||
        !product_is_library(g, product))
        return true;
    for (int i = 0; i < k; i++) after[i] = own->data[1 + i];
    after[k] = last;
    PlanProduct how = product_end(g, product, after, k + 1).how;
    if (how != PLAN_PRODUCT_ADD && how != PLAN_PRODUCT_SCALE_ADD) return true;
    ValueId sum = node_get(g, own->data[k])->out[0];
    ValueId v = n->in[same_value(n->in[0], sum)];
    int m = maker(f, v);
    return fuse_stored_anyway(f, n->out[0]) &&
           (m < 0 || f->clusters.data[m].kind >= GROUP_ANCHOR ||
            fuse_stored_anyway(f, v));
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
    return reader->op == OP_CAST && fuse_stored_anyway(f, reader->out[0]);
}

bool fuse_epilogue_pays(Fuse *f, int anchor, int c) {
    const NodeList *x = &cluster(f, c)->nodes,
                   *own = &cluster(f, anchor)->nodes;
    bool second = false, needed = false;
    if (x->len == 1 && !sum_pays(f, own, x->data[0])) return false;
    for (int i = 0; i < x->len; i++) {
        const Node *n = node_get(f->g, x->data[i]);
        for (int k = 0; k < n->nin; k++)
            if (maker(f, n->in[k]) == anchor &&
                fuse_other_users(f, n->in[k], anchor, c))
                second = true, needed |= stored_as_cast(f, n);
        needed |= fuse_stored_anyway(f, n->out[0]);
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

int64_t fuse_full_count(const Fuse *f, int row) {
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

bool fuse_row_neighbour_pays(Fuse *f, int row, int c) {
    const Cluster *x = cluster(f, c);
    int64_t full = fuse_full_count(f, row);
    const Type *t = value_type(f->g, node_get(f->g, x->nodes.data[0])->out[0]);
    if (x->kind == GROUP_POINT && type_count(t) < full) return true;
    if (x->kind != GROUP_POINT || x->part != 2)
        return full <= f->target->small_tensor || share_large(f, row, c, full);
    if (updates_blocks(f, row, c)) return true;
    for (int i = 0; i < x->nodes.len; i++) {
        const Node *n = node_get(f->g, x->nodes.data[i]);
        for (int k = 0; k < n->nout; k++)
            if (fuse_other_users(f, n->out[k], c, row)) return false;
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

bool fuse_chain_pays(Fuse *f, int p, int c) {
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
        if (f->target->turns_codes && node_tiles(g, n)) continue;
        for (int k = 0; k < n->nin; k++) {
            ValueId v = n->in[k];
            if (maker(f, v) != p || generator) continue;
            if (!move &&
                shape_equal(value_type(g, v), value_type(g, n->out[0])))
                continue;
            if (!moves_once || x->len > most || fuse_other_users(f, v, p, c))
                return false;
            if (n->op == OP_CONCAT && n->nin > costly_parts(f, n) &&
                is_costly(g, x))
                return false;
        }
    }
    return true;
}
