/* SPDX-License-Identifier: Apache-2.0 */
/* fuse_fit.c: decides whether some nodes may form one group. The promises that
   codegen.h lists
   per group kind, plus limits on size.  fuse.c checks for cycles. */
#include "passes/device/fuse.h"
#include "runtime/cuda/tile.h"

#include <string.h>

/* ---- sets of nodes ------------------------------------------------------- */

/* The nodes of clusters a and b. */
static void mark(Fuse *f, int a, int b) {
    f->stamp++;
    f->marked[0] = a;
    f->marked[1] = b;
}

static bool marked(const Fuse *f, NodeId n) {
    int c = f->cluster_of[n.i];
    return c == f->marked[0] || c == f->marked[1];
}

/* True if value v leaves the set of marked nodes. */
static bool leaves(const Fuse *f, ValueId v) {
    if (f->escapes[v.i]) return true;
    for (Users u = users_of(&f->users, v); u.at < u.end; u.at++)
        if (!marked(f, *u.at)) return true;
    return false;
}

static bool made_inside(const Fuse *f, ValueId v) {
    const Value *x = value_get(f->g, v);
    return x->kind == VK_RESULT && marked(f, x->def);
}

static bool read_inside(const Fuse *f, ValueId v) {
    for (Users u = users_of(&f->users, v); u.at < u.end; u.at++)
        if (marked(f, *u.at)) return true;
    return false;
}

/* True for codes of the marked nodes that their kernel stores transposed, too,
   and what it makes of blocks. */
static bool by_tile(const Fuse *f, const Node *n) {
    return f->target->turns_codes && node_tiles(f->g, n) &&
           (node_makes_blocks(n) || made_inside(f, n->in[0]));
}

/* The type by which result k of n leaves: through a tile, the type that the
   kernel computes. */
static const Type *leaving_type(const Fuse *f, const Node *n, int k) {
    return value_type(f->g, by_tile(f, n) ? n->in[0] : n->out[k]);
}

/* Distinct operands from outside, and results that leave. */
static int count_buffers(Fuse *f, const NodeList *nodes) {
    Graph *g = f->g;
    int count = 0;
    for (int i = 0; i < nodes->len; i++) {
        if (f->closed[nodes->data[i].i]) continue;
        const Node *n = node_get(g, nodes->data[i]);
        for (int k = 0; k < n->nin; k++) {
            ValueId v = n->in[k];
            if (!is_value(v) || value_is_immediate(g, v) || made_inside(f, v))
                continue;
            if (f->value_mark[v.i] == f->stamp) continue;
            f->value_mark[v.i] = f->stamp;
            count++;
        }
        for (int k = 0; k < n->nout; k++) count += leaves(f, n->out[k]);
    }
    return count;
}

/* ---- shapes -------------------------------------------------------------- */

const Type *fuse_domain(Fuse *f, int cluster) {
    const NodeList *nodes = &f->clusters.data[cluster].nodes;
    mark(f, cluster, cluster);
    for (int i = nodes->len - 1; i >= 0; i--) {
        const Node *n = node_get(f->g, nodes->data[i]);
        for (int k = 0; k < n->nout; k++)
            if (leaves(f, n->out[k])) return leaving_type(f, n, k);
    }
    return NULL;
}

NodeId fuse_reduce_node(const Graph *g, const NodeList *nodes) {
    NodeId first = NO_NODE;
    for (int i = 0; i < nodes->len; i++) {
        NodeId id = nodes->data[i];
        if (kind_of(g, id) != KIND_REDUCE) continue;
        if (!first.i ||
            node_sums_columns(g, node_get(g, id), node_get(g, first)))
            first = id;
    }
    return first;
}

bool fuse_same_reduction(const Graph *g, NodeId a, NodeId b) {
    const Node *x = node_get(g, a), *y = node_get(g, b);
    const int64_t *ax, *ay;
    int nx = attr_ints(x, AK_axes, &ax), ny = attr_ints(y, AK_axes, &ay);
    return nx == ny && !memcmp(ax, ay, (size_t)nx * sizeof *ax) &&
           shape_equal(value_type(g, x->in[0]), value_type(g, y->in[0]));
}

/* ---- one function per kind ----------------------------------------------- */

enum { MOST_PLACES = 2 };

static void add_place(Places *to, uint32_t place) {
    for (int i = 0; i < to->n; i++)
        if (to->at[i] == place) return;
    if (to->n <= MOST_PLACES) to->at[to->n++] = place;
}

/* The index maps at which a node is computed, distinguished by the moves
   through which the marked nodes read it. */
static Places places_of(const Fuse *f, const Node *n) {
    Places x = {0};
    for (int j = 0; j < n->nout; j++) {
        if (leaves(f, n->out[j])) add_place(&x, 0);
        for (Users u = users_of(&f->users, n->out[j]); u.at < u.end; u.at++) {
            if (!marked(f, *u.at)) continue;
            const Places *y = &f->places[u.at->i];
            bool move = kind_of(f->g, *u.at) == KIND_MOVE;
            for (int i = 0; i < y->n; i++)
                add_place(&x, move ? y->at[i] * 31 + u.at->i : y->at[i]);
        }
    }
    return x;
}

/* A kernel that needs costly work at several index maps computes it again
   for each; in a chain of such steps the maps multiply. False: there are too
   many. */
static bool few_places(Fuse *f, const NodeList *nodes) {
    bool costly = false;
    int moves = 0;
    for (int i = 0; i < nodes->len; i++) {
        const Node *n = node_get(f->g, nodes->data[i]);
        costly |= op_info[n->op].cost >= COST_LONG;
        moves += node_kind(n) == KIND_MOVE && !by_tile(f, n);
    }
    if (!costly || moves <= MOST_PLACES) return true;
    for (int i = nodes->len - 1; i >= 0; i--) {
        const Node *n = node_get(f->g, nodes->data[i]);
        Places *x = &f->places[nodes->data[i].i];
        *x = places_of(f, n);
        if (x->n > MOST_PLACES && op_info[n->op].cost >= COST_LONG)
            return false;
    }
    return true;
}

/* True if n's operand, whose columns are several axes, is one matrix to its
   kernel. */
static bool reads_alike(const Fuse *f, const NodeList *nodes, const Node *n) {
    int64_t count = value_count(f->g, n->in[0]);
    for (int i = 0; i < nodes->len; i++) {
        const Node *x = node_get(f->g, nodes->data[i]);
        if (!node_reads_alike(f->g, x, by_tile(f, x), count)) return false;
    }
    return true;
}

static bool turns_elements(const Fuse *f, const NodeList *nodes,
                           const Node *n) {
    int rank = value_type(f->g, n->in[0])->rank;
    return !read_inside(f, n->out[0]) &&
           (node_tiles(f->g, n) == rank - 1 || reads_alike(f, nodes, n));
}

/* True if an earlier node makes blocks of the same numbers as node i. */
static bool shares_tile(const Graph *g, const NodeList *nodes, int i) {
    const Node *n = node_get(g, nodes->data[i]);
    bool shares = false;
    for (int j = 0; j < i && node_makes_blocks(n); j++) {
        const Node *x = node_get(g, nodes->data[j]);
        shares |= node_makes_blocks(x) && same_value(x->in[0], n->in[0]);
    }
    return shares;
}

/* Bytes of the tile of node i, of lines of so many numbers; 0: it has none of
   its own. */
static int64_t block_bytes(const Graph *g, const NodeList *nodes, int i,
                           int lines, int64_t line) {
    const Node *n = node_get(g, nodes->data[i]);
    int bytes = dtype_info[value_dtype(g, n->in[0])].bytes;
    if (!node_makes_blocks(n) || shares_tile(g, nodes, i)) return 0;
    return lines * (line * bytes + BLOCKS_APART);
}

static bool fits_point(Fuse *f, const NodeList *nodes) {
    Graph *g = f->g;
    const Type *domain = NULL;
    int rows = 0;
    int64_t bytes = 0; /* of tiles */
    for (int i = 0; i < nodes->len; i++) {
        if (f->closed[nodes->data[i].i])
            continue; /* as in a cluster that
                         fits */
        const Node *n = node_get(g, nodes->data[i]);
        OpKind k = node_kind(n);
        if (k != KIND_ELEM && k != KIND_GEN && k != KIND_MOVE) return false;
        if (by_tile(f, n)) {
            int own = node_tiles(g, n);
            if ((rows && own != rows) || !turns_elements(f, nodes, n))
                return false;
            rows = own; /* the kernel has one matrix */
            bytes += block_bytes(g, nodes, i, BLOCKS_LINES, BLOCKS_LINE);
            if (bytes > f->target->column_sums) return false;
        }
        for (int j = 0; j < n->nout; j++) {
            if (!leaves(f, n->out[j])) continue;
            const Type *t = leaving_type(f, n, j);
            if (domain && !shape_equal(domain, t)) return false;
            domain = t;
        }
    }
    return few_places(f, nodes);
}

/* True if n adds up rows of the marked nodes, whose first reduction along
   rows is `first`; *bytes: size of all such sums. */
static bool fits_column_sum(Fuse *f, const Node *first, const Node *n,
                            int64_t *bytes) {
    if (!node_sums_columns(f->g, first, n) || read_inside(f, n->out[0]))
        return false;
    *bytes += 4 * value_count(f->g, n->out[0]);
    return *bytes <= f->target->column_sums;
}

/* True if node i has a tile of rows of the marked nodes, whose first reduction
   is `first`, some lines at a time. */
static bool fits_tile(Fuse *f, const Node *first, const NodeList *nodes, int i,
                      int64_t *bytes) {
    enum { LINES = 16 };
    const Node *n = node_get(f->g, nodes->data[i]);
    int64_t line =
        value_count(f->g, first->in[0]) / value_count(f->g, first->out[0]);
    if (read_inside(f, n->out[0]) || !node_tiles_rows(f->g, first, n))
        return false;
    *bytes += node_makes_blocks(n)
                  ? block_bytes(f->g, nodes, i, BLOCKS_ROWS, line)
                  : LINES * line;
    return *bytes <= f->target->column_sums;
}

/* True for a transposition that keeps the last axis. */
static bool moves_lines(const Node *n) {
    const int64_t *perm;
    int rank = n->op == OP_TRANSPOSE ? attr_ints(n, AK_perm, &perm) : 0;
    return rank && perm[rank - 1] == rank - 1;
}

/* A kernel of several phases recomputes full values in each phase. Moves
   therefore stay outside, except those that read a stored value without a
   stride and pads that store a few zeros after each row. */
static bool fits_row(Fuse *f, const NodeList *nodes) {
    Graph *g = f->g;
    NodeId first = fuse_reduce_node(g, nodes);
    if (!first.i) return false;
    const Type *row = value_type(g, node_get(g, first)->out[0]);
    const Type *full = value_type(g, node_get(g, first)->in[0]);
    int64_t sums = 0; /* bytes */
    for (int i = 0; i < nodes->len; i++) {
        NodeId id = nodes->data[i];
        const Node *n = node_get(g, id);
        OpKind k = node_kind(n);
        if (k == KIND_REDUCE) {
            if (!fuse_same_reduction(g, first, id) &&
                !fits_column_sum(f, node_get(g, first), n, &sums))
                return false;
            continue;
        }
        if (k != KIND_ELEM && k != KIND_GEN && k != KIND_MOVE) return false;
        if (by_tile(f, n)) {
            if (!fits_tile(f, node_get(g, first), nodes, i, &sums))
                return false;
            continue;
        }
        if (k == KIND_GEN && !leaves(f, n->out[0])) continue;
        if (node_pads_rows(g, node_get(g, first), n)) {
            if (!made_inside(f, n->in[0]) || read_inside(f, n->out[0]))
                return false;
            continue;
        }
        const Type *t = value_type(g, n->out[0]);
        bool is_full = shape_equal(t, full);
        if (!is_full && !shape_equal(t, row)) return false;
        bool reads_on = n->op == OP_EXPAND || n->op == OP_SLICE ||
                        n->op == OP_TRILU || moves_lines(n);
        if (k == KIND_MOVE &&
            (!is_full || !reads_on || made_inside(f, n->in[0])))
            return false;
    }
    return true;
}

/* Expensive values that depend on no reduction would be computed once per
   phase: a separate kernel is then cheaper. With few, long rows, work after
   the reduction needs more threads than there are rows. */
static bool row_pays(Fuse *f, const NodeList *nodes) {
    Graph *g = f->g;
    NodeId first = fuse_reduce_node(g, nodes);
    const Type *full = value_type(g, node_get(g, first)->in[0]);
    const Type *row = value_type(g, node_get(g, first)->out[0]);
    int64_t rows = type_count(row), count = type_count(full);
    bool few = rows < f->target->rows_enough &&
               count > f->target->small_tensor &&
               count > rows * f->target->short_row;
    bool expensive = false;
    int phases = 1;
    for (int i = 0; i < nodes->len; i++) { /* in graph order */
        const Node *n = node_get(g, nodes->data[i]);
        bool sums = node_sums_columns(g, node_get(g, first), n);
        bool reduce = node_kind(n) == KIND_REDUCE && !sums;
        bool is_full =
            sums || (!reduce && shape_equal(leaving_type(f, n, 0), full));
        int depth = 0; /* reductions on the longest path to n, including n */
        for (int k = 0; k < n->nin; k++) {
            if (!is_value(n->in[k]) || !made_inside(f, n->in[k])) continue;
            int d = f->depth[value_get(g, n->in[k])->def.i];
            if (d > depth) depth = d;
        }
        f->depth[nodes->data[i].i] = depth += reduce;
        if (reduce && depth > phases) phases = depth;
        if (is_full && depth >= phases) phases = depth + 1;
        if (is_full && depth == 0 && op_info[n->op].cost >= COST_LONG)
            expensive = true;
        if (is_full && depth > 0 && few) return false;
    }
    return phases == 1 || !expensive;
}

/* True for a pool of a value computed by the marked nodes and read by none
   of them. */
static bool fits_pool(const Fuse *f, NodeId pool) {
    const Node *n = node_get(f->g, pool);
    if (!node_pools(n) || !made_inside(f, n->in[0])) return false;
    for (int k = 0; k < n->nout; k++)
        if (read_inside(f, n->out[k])) return false;
    return true;
}

/* One matrix product or convolution, whose operands come from memory and so
   from other groups; element-wise work of its shape that the target can do
   before it stores; and a pool of the result. fp64 products have no
   epilogue. */
static bool fits_anchor(Fuse *f, const NodeList *nodes) {
    Graph *g = f->g;
    NodeId anchor = NO_NODE, pool = NO_NODE;
    for (int i = 0; i < nodes->len; i++) {
        OpKind k = kind_of(g, nodes->data[i]);
        if (k == KIND_ANCHOR && anchor.i) return false;
        if (k == KIND_LIB && pool.i) return false;
        if (k == KIND_ANCHOR)
            anchor = nodes->data[i];
        else if (k == KIND_LIB)
            pool = nodes->data[i];
        else if (k != KIND_ELEM && k != KIND_GEN)
            return false;
    }
    if (!anchor.i || nodes->len == 1) return anchor.i != 0;
    const Node *product = node_get(g, anchor);
    const Type *shape = value_type(g, product->out[0]);
    if (pool.i && (product->op != OP_CONV || !fits_pool(f, pool))) return false;
    for (int i = 0; i < nodes->len; i++) {
        const Node *n = node_get(g, nodes->data[i]);
        if (nodes->data[i].i == pool.i) continue;
        if (!shape_equal(value_type(g, n->out[0]), shape)) return false;
        for (int k = 0; k < n->nin; k++) {
            ValueId v = n->in[k];
            if (!is_value(v)) continue;
            if (n == product && made_inside(f, view_root(g, v))) return false;
            if (value_dtype(g, v) == DT_F64) return false;
        }
    }
    bool stored = false; /* a value before the last */
    for (int i = 0; i < nodes->len - 1; i++)
        stored |= leaves(f, node_get(g, nodes->data[i])->out[0]);
    return !f->target->epilogue ||
           f->target->epilogue(g, anchor, nodes->data, nodes->len, stored);
}

bool fuse_fits(Fuse *f, GroupKind kind, const NodeList *nodes, int a, int b) {
    const Node *last = node_get(f->g, nodes->data[nodes->len - 1]);
    bool number = kind == GROUP_POINT && last->nout > 0 &&
                  value_type(f->g, last->out[0])->rank == 0;
    int most = number ? f->target->max_numbers : f->target->max_buffers;
    mark(f, a, b);
    switch (kind) {
    case GROUP_POINT:
        if (!fits_point(f, nodes)) return false;
        break;
    case GROUP_ROW:
        if (!fits_row(f, nodes) || !row_pays(f, nodes)) return false;
        break;
    case GROUP_ANCHOR:
        if (!fits_anchor(f, nodes)) return false;
        break;
    case GROUP_LIB: return nodes->len == 1;
    }
    return nodes->len == 1 || count_buffers(f, nodes) <= most;
}
