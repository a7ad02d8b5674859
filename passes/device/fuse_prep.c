/* SPDX-License-Identifier: Apache-2.0 */
/* fuse_prep.c: copies nodes so that fusion can place them well (fuse.h).

   A copy costs arithmetic; a value stored for a second group costs memory
   traffic. These are copied to every reader: generators; expands; and
   element-wise nodes that are cheap, or that backward recomputes to save
   storage, and read one large operand that is no larger than their result (a
   widening cast, x - mean, grad * inverse_scale): reading that operand again
   costs no more than reading the result.  A mask computed from indices that
   its readers broadcast is not copied. */
#include "passes/device/fuse.h"

#include <string.h>

/* ---- results with a buffer of their own ---------------------------------- */

/* A scalar constant has no buffer; a variable that this program writes gets
   a new value when the program ends. */
static bool needs_copy(const Graph *g, ValueId v, const bool *written) {
    const Value *root = value_get(g, view_root(g, v));
    if (root->kind == VK_CONST) return type_get(root->type)->rank == 0;
    return root->kind == VK_VAR && written[root->var];
}

static void copy_roots(Graph *g, Arena *scratch) {
    Builder b = {.g = g};
    bool *written = NEW_ARRAY(scratch, bool, g->module->vars.len + 1);
    for (int i = 0; i < g->writes.len; i++)
        written[value_get(g, g->writes.data[i].var)->var] = true;
    for (int i = 0; graph_root(g, i); i++) {
        ValueId *v = graph_root(g, i);
        if (!needs_copy(g, *v, written)) continue;
        b.flags = i < g->outputs.len ? 0 : NODE_UPDATE;
        *v = b1(&b, OP_CAST, *v, value_dtype(g, *v));
    }
}

/* ---- copies -------------------------------------------------------------- */

typedef struct Use {
    int count;   /* number of reading nodes, outputs and writes */
    bool stored; /* needs a buffer anyway */
} Use;

typedef struct Prep {
    Graph *g;
    Arena *a;
    VEC(Use) uses;   /* by ValueId.i; grows with the values */
    VEC(NodeId) out; /* new order, back to front */
} Prep;

static Use *use_of(Prep *p, ValueId v) {
    while (p->uses.len <= (int)v.i) vec_push(p->a, &p->uses, (Use){0});
    return &p->uses.data[v.i];
}

static bool reads_before(const Node *n, int k) {
    for (int i = 0; i < k; i++)
        if (same_value(n->in[i], n->in[k])) return true;
    return false;
}

static void count_use(Prep *p, ValueId v, bool stored) {
    Use *u = use_of(p, v);
    u->count += is_value(v);
    u->stored |= stored;
}

static void count_operands(Prep *p, const Node *n) {
    OpKind k = node_kind(n);
    bool stored = k == KIND_VIEW || k == KIND_ANCHOR || k == KIND_LIB;
    for (int j = 0; j < n->nin; j++)
        if (!reads_before(n, j)) count_use(p, n->in[j], stored);
}

/* True if n has at most one large operand, not wider than the result; all
   other operands are small or computed from nothing. */
static bool rereads_cheaply(const Graph *g, const Node *n) {
    const Type *r = value_type(g, n->out[0]);
    int64_t count = type_count(r);
    int large = 0;
    if ((op_info[n->op].cost != COST_CHEAP && !(n->flags & NODE_AGAIN)) ||
        n->nin == 0 || count < target_of(g)->min_copied)
        return false;
    for (int i = 0; i < n->nin; i++) {
        const Type *t = value_type(g, n->in[i]);
        const Value *v = value_get(g, n->in[i]);
        bool made =
            v->kind == VK_RESULT && node_kind(node_get(g, v->def)) == KIND_GEN;
        if (type_count(t) * 8 <= count || made) continue;
        large++;
        if (!shape_equal(t, r) ||
            dtype_info[t->dtype].bytes > dtype_info[r->dtype].bytes)
            return false;
    }
    return large <= 1;
}

ValueId fuse_widened(const Graph *g, NodeId id) {
    const Node *n = node_get(g, id);
    ValueId from = NO_VALUE;
    if (kind_of(g, id) != KIND_ELEM || !rereads_cheaply(g, n)) return NO_VALUE;
    for (int i = 0; i < n->nin; i++) {
        if (value_is_immediate(g, n->in[i])) continue;
        if (from.i) return NO_VALUE;
        from = n->in[i];
    }
    const Value *v = value_get(g, from);
    bool wider = dtype_info[value_dtype(g, n->out[0])].bytes >
                 dtype_info[value_dtype(g, from)].bytes;
    bool made = v->kind == VK_RESULT && kind_of(g, v->def) == KIND_ELEM;
    return wider && made ? from : NO_VALUE;
}

/* A sum with a value that many rows read and that is not a bias: a mask,
   whose huge numbers keep the sum in f32, but not the scores. */
static bool adds_mask(const Graph *g, const Node *n) {
    for (int i = 0; i < n->nin && n->op == OP_ADD; i++) {
        ValueId v = n->in[i];
        int64_t count = value_count(g, v);
        const Value *root = value_get(g, view_root(g, v));
        bool bias = root->kind == VK_VAR &&
                    g->module->vars.data[root->var].kind == VAR_PARAM;
        if (count > 1 && count < value_count(g, n->out[0]) && !bias)
            return true;
    }
    return false;
}

/* True if an operand of n would be only in registers: it is the result of a
   product or of much arithmetic (for a large operand including the nodes
   that compute it only for n). Storing n's result then costs no more than
   storing the operand. */
static bool follows_work(Prep *p, const Node *n, int depth) {
    int64_t count = value_count(p->g, n->out[0]);
    if (count <= target_of(p->g)->small_tensor || adds_mask(p->g, n)) depth = 1;
    if (fuse_widened(p->g, value_get(p->g, n->out[0])->def).i) return false;
    for (int i = 0; i < n->nin; i++) {
        const Value *v = value_get(p->g, n->in[i]);
        const Use *u = use_of(p, n->in[i]);
        if (v->kind != VK_RESULT || u->stored ||
            value_count(p->g, n->in[i]) < count)
            continue;
        const Node *def = node_get(p->g, v->def);
        if (op_info[def->op].cost >= COST_LONG) return true;
        if (node_kind(def) == KIND_ANCHOR && u->count == 1) return true;
        if (node_kind(def) == KIND_ELEM && u->count == 1 && depth > 1 &&
            follows_work(p, def, depth - 1))
            return true;
    }
    return false;
}

/* A mask computed from indices, which the reader broadcasts: computed once,
   it is small. */
static bool is_mask_for(const Graph *g, const Node *n, const Node *reader) {
    for (int i = 0; i < n->nin; i++) {
        const Value *v = value_get(g, n->in[i]);
        if (v->kind == VK_RESULT && node_kind(node_get(g, v->def)) != KIND_GEN)
            return false;
    }
    return node_kind(n) == KIND_ELEM && reader->nout > 0 &&
           value_count(g, n->out[0]) < value_count(g, reader->out[0]);
}

enum { LONGEST_WORK = 4 };

static bool copied_to_users(Prep *p, const Node *n) {
    OpKind k = node_kind(n);
    if (k == KIND_GEN) return true;
    if (n->nout != 1) return false;
    const Use *u = use_of(p, n->out[0]);
    if (u->count < 2 || u->count > target_of(p->g)->max_copies || u->stored)
        return false;
    if (n->op == OP_EXPAND) return true;
    return k == KIND_ELEM && rereads_cheaply(p->g, n) &&
           !follows_work(p, n, LONGEST_WORK);
}

/* A copy of node `id` in the reader's part of the step. */
static NodeId copy_node(Graph *g, NodeId id, uint32_t flags) {
    int at = g->order.len;
    const Node *n = node_get(g, id);
    Builder b = {.g = g, .flags = n->flags | flags, .loc = n->loc};
    NodeId twin = build_again(&b, id, n->in);
    g->order.len = at;
    return twin;
}

/* Gives reader `user` its own copies of the nodes that compute its operands.
   Goes from the last node to the first, so that chains are copied whole. */
static void give_copies(Prep *p, NodeId user) {
    Graph *g = p->g;
    for (int i = 0; i < node_get(g, user)->nin; i++) {
        ValueId v = node_get(g, user)->in[i];
        if (!is_value(v) || value_get(g, v)->kind != VK_RESULT) continue;
        if (use_of(p, v)->count < 2) continue;
        NodeId def = value_get(g, v)->def;
        if (!copied_to_users(p, node_get(g, def)) ||
            is_mask_for(g, node_get(g, def), node_get(g, user)))
            continue;
        NodeId twin = copy_node(g, def, node_get(g, user)->flags);
        ValueId w = node_get(g, twin)->out[0];
        use_of(p, v)->count--;
        use_of(p, w)->count = 1;
        Node *u = node_get(g, user);
        for (int k = i; k < u->nin; k++)
            if (same_value(u->in[k], v)) u->in[k] = w;
        count_operands(p, node_get(g, twin));
    }
}

/* Walks from the last node to the first. A copy is made for a reader before
   the copy itself is visited as a reader. It is pushed on a stack that is
   emptied at once, so that the copy stands directly before its reader. In a
   long chain whose results all have a second reader, each node would copy
   everything before it; the limit `copied` prevents that. */
enum { LONGEST_COPY = 8 };

static void place_backwards(Prep *p, NodeId id, int first_copy, int copied) {
    Graph *g = p->g;
    vec_push(p->a, &p->out, id);
    if (copied < LONGEST_COPY) give_copies(p, id);
    for (int i = node_get(g, id)->nin - 1; i >= 0; i--) {
        const Node *n = node_get(g, id);
        if (!is_value(n->in[i]) || reads_before(n, i)) continue;
        const Value *v = value_get(g, n->in[i]);
        if (v->kind == VK_RESULT && (int)v->def.i >= first_copy)
            place_backwards(p, v->def, first_copy, copied + 1);
    }
}

static void copy_cheap_nodes(Graph *g, Arena *scratch) {
    int first_copy = g->nodes.len;
    Prep p = {.g = g, .a = scratch};
    for (int i = 0; i < g->order.len; i++) count_operands(&p, node_at(g, i));
    for (int i = 0; graph_root(g, i); i++)
        count_use(&p, *graph_root(g, i), true);
    for (int i = g->order.len - 1; i >= 0; i--)
        place_backwards(&p, g->order.data[i], first_copy, 0);
    g->order.len = 0;
    for (int i = p.out.len - 1; i >= 0; i--)
        vec_push(g->arena, &g->order, p.out.data[i]);
}

void fuse_prepare(Graph *g, Arena *scratch, bool copy_nodes) {
    copy_roots(g, scratch);
    if (copy_nodes) copy_cheap_nodes(g, scratch);
}
