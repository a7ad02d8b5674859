/* fuse_fit.c: may these nodes be one group?  The promises that codegen.h lists
   per group kind, plus limits on size.  Cycles are fuse.c's business.       */
#include "passes/target/fuse.h"

#include <string.h>

/* ---- sets of nodes ------------------------------------------------------- */

void fuse_mark(Fuse *f, const NodeList *nodes) {
    f->stamp++;
    for (int i = 0; i < nodes->len; i++)
        f->node_mark[nodes->data[i].i] = f->stamp;
}

static bool marked(const Fuse *f, NodeId n) {
    return f->node_mark[n.i] == f->stamp;
}

bool fuse_leaves(const Fuse *f, ValueId v) {
    if (f->escapes[v.i]) return true;
    for (int k = f->user_at[v.i]; k < f->user_at[v.i + 1]; k++)
        if (!marked(f, f->user[k])) return true;
    return false;
}

static bool made_inside(const Fuse *f, ValueId v) {
    const Value *x = value_get(f->g, v);
    return x->kind == VK_RESULT && marked(f, x->def);
}

static bool is_immediate(const Graph *g, ValueId v) {
    return value_get(g, v)->kind == VK_CONST && value_type(g, v)->rank == 0;
}

/* Distinct operands from outside, and results that leave. */
static int count_buffers(Fuse *f, const NodeList *nodes) {
    Graph *g = f->g;
    int count = 0;
    for (int i = 0; i < nodes->len; i++) {
        const Node *n = node_get(g, nodes->data[i]);
        for (int k = 0; k < n->nin; k++) {
            ValueId v = n->in[k];
            if (!is_value(v) || is_immediate(g, v) || made_inside(f, v))
                continue;
            if (f->value_mark[v.i] == f->stamp) continue;
            f->value_mark[v.i] = f->stamp;
            count++;
        }
        for (int k = 0; k < n->nout; k++) count += fuse_leaves(f, n->out[k]);
    }
    return count;
}

/* ---- shapes -------------------------------------------------------------- */

const Type *fuse_domain(Fuse *f, const NodeList *nodes) {
    fuse_mark(f, nodes);
    for (int i = nodes->len - 1; i >= 0; i--) {
        const Node *n = node_get(f->g, nodes->data[i]);
        for (int k = 0; k < n->nout; k++)
            if (fuse_leaves(f, n->out[k])) return value_type(f->g, n->out[k]);
    }
    return NULL;
}

NodeId fuse_reduce_node(const Graph *g, const NodeList *nodes) {
    for (int i = 0; i < nodes->len; i++)
        if (kind_of(g, nodes->data[i]) == KIND_REDUCE) return nodes->data[i];
    return NO_NODE;
}

Type fuse_row_shape(const Graph *g, NodeId reduce) {
    return *value_type(g, node_get(g, reduce)->out[0]);
}

bool fuse_same_reduction(const Graph *g, NodeId a, NodeId b) {
    const Node *x = node_get(g, a), *y = node_get(g, b);
    const int64_t *ax, *ay;
    int nx = attr_ints(x, AK_axes, &ax), ny = attr_ints(y, AK_axes, &ay);
    return nx == ny && !memcmp(ax, ay, (size_t)nx * sizeof *ax) &&
           shape_equal(value_type(g, x->in[0]), value_type(g, y->in[0]));
}

/* ---- one function per kind ----------------------------------------------- */

static bool fits_point(Fuse *f, const NodeList *nodes) {
    Graph *g = f->g;
    const Type *domain = NULL;
    for (int i = 0; i < nodes->len; i++) {
        const Node *n = node_get(g, nodes->data[i]);
        OpKind k = op_info[n->op].kind;
        if (k != KIND_ELEM && k != KIND_GEN && k != KIND_MOVE) return false;
        for (int j = 0; j < n->nout; j++) {
            if (!fuse_leaves(f, n->out[j])) continue;
            const Type *t = value_type(g, n->out[j]);
            if (domain && !shape_equal(domain, t)) return false;
            domain = t;
        }
    }
    return true;
}

/* A kernel of several phases computes full values anew in each: what reads
   with a stride or costs much arithmetic stays outside. */
static bool fits_in_row(const Fuse *f, const Node *n) {
    if (n->op == OP_EXPAND || n->op == OP_SLICE || n->op == OP_TRILU)
        return !made_inside(f, n->in[0]);
    return op_info[n->op].kind != KIND_MOVE;
}

static bool fits_row(Fuse *f, const NodeList *nodes) {
    Graph *g = f->g;
    NodeId first = fuse_reduce_node(g, nodes);
    if (!first.i) return false;
    Type row = fuse_row_shape(g, first);
    const Type *full = value_type(g, node_get(g, first)->in[0]);
    for (int i = 0; i < nodes->len; i++) {
        NodeId id = nodes->data[i];
        const Node *n = node_get(g, id);
        OpKind k = op_info[n->op].kind;
        if (k == KIND_REDUCE) {
            if (!fuse_same_reduction(g, first, id)) return false;
            continue;
        }
        if (k != KIND_ELEM && k != KIND_GEN && k != KIND_MOVE) return false;
        if (k == KIND_GEN && !fuse_leaves(f, n->out[0])) continue;
        const Type *t = value_type(g, n->out[0]);
        bool is_full = shape_equal(t, full);
        if (!is_full && !shape_equal(t, &row)) return false;
        if (k == KIND_MOVE && (!is_full || !fits_in_row(f, n))) return false;
    }
    return true;
}

/* Reductions on the longest path to each node of the set, itself included;
   nodes come in graph order. */
static void fill_depths(Fuse *f, const NodeList *nodes) {
    for (int i = 0; i < nodes->len; i++) {
        const Node *n = node_get(f->g, nodes->data[i]);
        int depth = 0;
        for (int k = 0; k < n->nin; k++) {
            if (!is_value(n->in[k]) || !made_inside(f, n->in[k])) continue;
            int d = f->depth[value_get(f->g, n->in[k])->def.i];
            if (d > depth) depth = d;
        }
        f->depth[nodes->data[i].i] =
            depth + (op_info[n->op].kind == KIND_REDUCE);
    }
}

/* Expensive values that depend on no reduction are computed once per phase:
   then a kernel of their own is cheaper.  And few, long rows: work after the
   reduction wants more units than there are rows. */
static bool row_pays(Fuse *f, const NodeList *nodes) {
    Graph *g = f->g;
    NodeId first = fuse_reduce_node(g, nodes);
    const Type *full = value_type(g, node_get(g, first)->in[0]);
    Type row = fuse_row_shape(g, first);
    bool few = type_count(&row) < f->target->rows_enough &&
               type_count(full) > f->target->small_tensor;
    bool expensive = false;
    int phases = 1;
    fill_depths(f, nodes);
    for (int i = 0; i < nodes->len; i++) {
        const Node *n = node_get(g, nodes->data[i]);
        int depth = f->depth[nodes->data[i].i];
        bool reduce = op_info[n->op].kind == KIND_REDUCE;
        bool is_full = !reduce && shape_equal(value_type(g, n->out[0]), full);
        if (reduce && depth > phases) phases = depth;
        if (is_full && depth >= phases) phases = depth + 1;
        if (is_full && depth == 0 && op_info[n->op].cost >= COST_LONG)
            expensive = true;
        if (is_full && depth > 0 && few) return false;
    }
    return phases == 1 || !expensive;
}

/* A marked node makes v, or what v is a view of. */
static bool made_here(const Fuse *f, ValueId v) {
    for (;;) {
        const Value *x = value_get(f->g, v);
        if (x->kind != VK_RESULT) return false;
        if (kind_of(f->g, x->def) != KIND_VIEW) return marked(f, x->def);
        v = node_get(f->g, x->def)->in[0];
    }
}

/* A product reads its operands from memory: they come from other groups. */
static bool feeds_itself(const Fuse *f, NodeId anchor) {
    const Node *n = node_get(f->g, anchor);
    for (int k = 0; k < n->nin; k++)
        if (is_value(n->in[k]) && made_here(f, n->in[k])) return true;
    return false;
}

static bool fits_anchor(Fuse *f, const NodeList *nodes) {
    Graph *g = f->g;
    NodeId anchor = NO_NODE;
    for (int i = 0; i < nodes->len; i++) {
        OpKind k = kind_of(g, nodes->data[i]);
        if (k == KIND_ANCHOR && anchor.i) return false;
        if (k == KIND_ANCHOR)
            anchor = nodes->data[i];
        else if (k != KIND_ELEM && k != KIND_GEN)
            return false;
    }
    if (!anchor.i) return false;
    if (nodes->len == 1) return true;
    if (feeds_itself(f, anchor)) return false;
    /* fp64 products have no epilogue */
    if (value_dtype(g, node_get(g, anchor)->in[0]) == DT_F64) return false;
    const Type *shape = value_type(g, node_get(g, anchor)->out[0]);
    for (int i = 0; i < nodes->len; i++) {
        const Node *n = node_get(g, nodes->data[i]);
        if (nodes->data[i].i == anchor.i) continue;
        if (!shape_equal(value_type(g, n->out[0]), shape)) return false;
        for (int k = 0; k < n->nin; k++)
            if (value_dtype(g, n->in[k]) == DT_F64) return false;
    }
    return !f->target->epilogue ||
           f->target->epilogue(g, anchor, nodes->data, nodes->len,
                               fuse_leaves(f, node_get(g, anchor)->out[0]));
}

bool fuse_fits(Fuse *f, GroupKind kind, const NodeList *nodes) {
    if (nodes->len > f->target->max_nodes) return false;
    fuse_mark(f, nodes);
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
    return nodes->len == 1 || count_buffers(f, nodes) <= f->target->max_buffers;
}
