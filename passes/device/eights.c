/* SPDX-License-Identifier: Apache-2.0 */
/* eights.c: GPUs that can multiply the numbers of 8 bits themselves.
   Before:  %x8 = cast %c : bf16    %w8 = cast %d : bf16    (%c, %d: f8e4m3)
            %p = matmul %x8, %w8 : f32
   After:   %d.2 = transpose %d {perm=[1,0]}           beside %d
            %p = matmul %c, %d.2 {trans_b=1} : f32
   The library of these GPUs wants the elements of each sum side by side, so
   that codes get a second, transposed copy where a product reads them across.
   It is made where the codes are, so that one kernel stores both
   (node_turned_by_maker), and forward keeps for backward what backward reads.
   The sums equal sums of bf16, since bf16 holds every code. A module
   with code for an older GPU keeps bf16: one plan serves all its GPUs.

   requires     stage PRIMITIVE
   establishes  nothing
   breaks       nothing; leaves dead nodes                                   */
#include "passes/device/fold.h"
#include "passes/device/product.h"
#include "passes/passes.h"
#include "passes/rewrite.h"

typedef struct Eights {
    Graph *g;
    int values;      /* of the graph before */
    ValueId *turned; /* per value: the codes with their columns first */
    int *rows;       /* .. and how many axes their rows are */
} Eights;

/* The codes for which v stands, in their own shape; NO_VALUE: v does not cast
   codes. */
static ValueId codes_of(const Graph *g, ValueId v) {
    const Node *n;
    while ((n = value_maker(g, v)) && !n->fn && node_kind(n) == KIND_VIEW)
        v = n->in[0];
    if (!n || n->fn || n->op != OP_CAST || attr_int(n, AK_user) ||
        !dtype_info[value_dtype(g, n->in[0])].stored)
        return NO_VALUE;
    return n->in[0];
}

static ValueId in_shape(Builder *b, ValueId code, const Type *t) {
    return shape_equal(value_type(b->g, code), t)
               ? code
               : b_reshape(b, code, t->rank, t->dim);
}

/* Codes with their columns first, the axes behind `rows`. */
static ValueId columns_first(Eights *e, Builder *b, ValueId code, int rows) {
    const Node *maker = value_maker(b->g, code);
    int64_t perm[MAX_RANK];
    int rank = value_type(b->g, code)->rank;
    uint32_t flags = b->flags;
    if (maker) b->flags = maker->flags;
    for (int d = 0; d < rank; d++) perm[d] = (rows + d) % rank;
    e->turned[code.i] = b_transpose(b, code, perm);
    e->rows[code.i] = rows;
    b->flags = flags;
    return e->turned[code.i];
}

/* Codes of v, a matrix, transposed. */
static ValueId turned_codes(Eights *e, Builder *b, ValueId code, ValueId v) {
    static const int64_t swap[] = {1, 0};
    const Type own = *value_type(b->g, code), t = *value_type(b->g, v);
    const int64_t turned[] = {t.dim[1], t.dim[0]};
    int64_t columns = 1;
    int rows = own.rank;
    while (rows > 1 && columns < t.dim[1]) columns *= own.dim[--rows];
    bool made = e->turned[code.i].i != 0;
    if (rows == own.rank || columns != t.dim[1] ||
        (made && e->rows[code.i] != rows))
        return b_transpose(b, in_shape(b, code, &t), swap);
    ValueId r = made ? e->turned[code.i] : columns_first(e, b, code, rows);
    return b_reshape(b, r, 2, turned);
}

/* Transposed codes come right behind the codes. */
static void move_turned(Eights *e, Arena *a) {
    Graph *g = e->g;
    int n;
    NodeId *old = order_take(g, a, &n);
    bool *moves = NEW_ARRAY(a, bool, g->nodes.len);
    for (int v = 0; v < e->values; v++)
        if (e->turned[v].i && value_maker(g, (ValueId){(uint32_t)v}))
            moves[value_get(g, e->turned[v])->def.i] = true;
    for (int i = 0; i < n; i++) {
        if (moves[old[i].i]) continue;
        vec_push(g->arena, &g->order, old[i]);
        const Node *x = node_get(g, old[i]);
        for (int k = 0; k < x->nout; k++) {
            ValueId v = x->out[k];
            if ((int)v.i < e->values && e->turned[v.i].i)
                vec_push(g->arena, &g->order,
                         value_get(g, e->turned[v.i])->def);
        }
    }
}

static bool eights_rule(Rewriter *rw, NodeId id, ValueId *with) {
    Graph *g = rw->g;
    Eights *e = rw->user;
    Builder *b = &rw->b;
    const Node n = *node_get(g, id); /* building may move the pool */
    if (n.fn || n.op != OP_MATMUL) return false;
    bool ta = attr_int(&n, AK_trans_a), tb = attr_int(&n, AK_trans_b);
    if (value_type(g, n.in[1])->rank != 2 ||
        (ta && value_type(g, n.in[0])->rank != 2))
        return false;
    ValueId x = codes_of(g, n.in[0]), w = codes_of(g, n.in[1]);
    if (!x.i || !w.i) return false;
    const Type tx = *value_type(g, n.in[0]), tw = *value_type(g, n.in[1]);
    x = ta ? turned_codes(e, b, x, n.in[0]) : in_shape(b, x, &tx);
    w = tb ? in_shape(b, w, &tw) : turned_codes(e, b, w, n.in[1]);
    ValueId y = b_matmul(b, x, w, false, true, value_dtype(g, n.out[0]));
    if (!product_is_library(g, value_maker(g, y))) return false;
    with[0] = y;
    rewrite_take_name(g, n.out[0], with[0]);
    return true;
}

Status pass_eights(Module *m, PassCtx *cx) {
    if (!any_gpu(cx->opt) || gpu_without(cx->opt, TENSOR_F8)) return OK;
    for (int i = 0; i < m->graphs.len; i++) {
        Graph *g = m->graphs.data[i];
        Eights e = {.g = g, .values = g->values.len};
        if (g->target != TARGET_CUDA) continue;
        e.turned = NEW_ARRAY(cx->scratch, ValueId, e.values);
        e.rows = NEW_ARRAY(cx->scratch, int, e.values);
        rewrite_graph(g, cx->scratch, eights_rule, &e);
        move_turned(&e, cx->scratch);
    }
    return OK;
}
