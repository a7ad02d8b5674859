/* SPDX-License-Identifier: Apache-2.0 */
/* eights.c: GPUs that can multiply the numbers of 8 bits themselves.
   Before:  %x8 = cast %c : bf16    %w8 = cast %d : bf16    (%c, %d: f8e4m3)
            %p = matmul %x8, %w8 : f32
   After:   %d.2 = transpose %d {perm=[1,0]}           beside %d
            %p = matmul %c, %d.2 {trans_b=1} : f32
   and      %x8 = mul(cast %c, cast %s) : bf16           (%s: e8m0, of blocks)
            %p = matmul %x8, %w8 {trans_b=1} : bf16
   After:   %s.t = transpose %s as tiles                  (blocks.h)
            %p = matmul %c, %d, %s.t, %t.t {trans_b=1} : bf16
   The library of these GPUs wants the elements of each sum side by side, so
   that codes get a second, transposed copy where a product reads them across.
   It is made where the codes are, so that one kernel stores both
   (node_turned_by_maker), and forward keeps for backward what backward reads.
   The sums equal sums of bf16, since bf16 holds every code. A module
   with code for an older GPU keeps bf16: one plan serves all its GPUs. So does
   one with scales of blocks for a GPU before sm_100.

   requires     stage PRIMITIVE
   establishes  nothing
   breaks       nothing; leaves dead nodes                                   */
#include "passes/device/fold.h"
#include "passes/device/product.h"
#include "passes/passes.h"
#include "passes/rewrite.h"
#include "runtime/program/blocks.h"

typedef struct Eights {
    Graph *g;
    int values;      /* of the graph before */
    ValueId *turned; /* per value: the codes with their columns first */
    int *rows;       /* .. and how many axes their rows are */
    bool blocks;     /* all GPUs multiply codes with scales of blocks */
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

/* ---- scales of blocks ---------------------------------------------------- */

typedef struct BlockCodes {
    ValueId code, scale; /* as pass eight made them */
    bool down;           /* blocks lie along columns */
} BlockCodes;

static bool find_blocks(const Graph *g, ValueId v, BlockCodes *to) {
    const Node *n;
    ValueId in[2];
    while ((n = value_maker(g, v)) && !n->fn && node_kind(n) == KIND_VIEW)
        v = n->in[0];
    if (!n || n->fn || n->op != OP_MUL) return false;
    for (int k = 0; k < 2; k++) {
        in[k] = codes_of(g, n->in[k]);
        if (!in[k].i) return false;
    }
    if (value_dtype(g, in[1]) != DT_E8M0) return false;
    *to = (BlockCodes){in[0], in[1], value_type(g, in[1])->dim[1] == 1};
    return true;
}

/* Scales f32[rows,columns] and zeros behind them. */
static ValueId pad_scales(Builder *b, ValueId s, const int64_t *to) {
    const Type *t = value_type(b->g, s);
    int64_t pads[] = {0, 0, to[0] - t->dim[0], to[1] - t->dim[1]};
    Attr a = attr_v(AK_pads, pads, 4);
    return build(b, OP_PAD, &s, 1, &a, 1, DT_F32, NULL);
}

static int64_t rounded_up(int64_t n, int64_t each) {
    return block_tiles(n, each) * each;
}

/* The scales as the library reads them. */
static ValueId scale_tiles(Builder *b, const BlockCodes *c) {
    static const int64_t turn[2][5] = {{0, 3, 2, 1, 4}, {2, 0, 4, 3, 1}};
    const Type t = *value_type(b->g, c->scale);
    int64_t lines = t.dim[c->down ? 2 : 0], blocks = t.dim[!c->down];
    int64_t all = rounded_up(lines, BLOCK_ROWS),
            wide = rounded_up(blocks, BLOCK_COLUMNS);
    int64_t own[] = {lines, blocks}, down[] = {blocks, lines};
    int64_t to[] = {all, wide}, to_down[] = {wide, all};
    int64_t parts[] = {all / BLOCK_ROWS, BLOCK_ROWS / 32, 32,
                       wide / BLOCK_COLUMNS, BLOCK_COLUMNS};
    int64_t parts_down[] = {parts[3], parts[4], parts[0], parts[1], parts[2]};
    ValueId s = b_reshape(b, c->scale, 2, c->down ? down : own);
    if (all != lines || wide != blocks)
        s = b_cast(b,
                   pad_scales(b, b_cast(b, s, DT_F32), c->down ? to_down : to),
                   DT_E8M0);
    s = b_reshape(b, s, 5, c->down ? parts_down : parts);
    return b_transpose(b, s, turn[c->down]);
}

static bool blocks_rule(Rewriter *rw, const Node *n, const BlockCodes *x,
                        const BlockCodes *w, ValueId *with) {
    Graph *g = rw->g;
    Eights *e = rw->user;
    Builder *b = &rw->b;
    bool ta = attr_int(n, AK_trans_a), tb = attr_int(n, AK_trans_b);
    const Type tx = *value_type(g, n->in[0]), tw = *value_type(g, n->in[1]);
    Attr right = attr_i(AK_trans_b, 1);
    if (!e->blocks || x->down != ta || w->down == tb) return false;
    ValueId in[] = {
        ta ? turned_codes(e, b, x->code, n->in[0]) : in_shape(b, x->code, &tx),
        tb ? in_shape(b, w->code, &tw) : turned_codes(e, b, w->code, n->in[1]),
        scale_tiles(b, x), scale_tiles(b, w)};
    ValueId y =
        build(b, OP_MATMUL, in, 4, &right, 1, value_dtype(g, n->out[0]), NULL);
    if (!product_is_library(g, value_maker(g, y))) return false;
    with[0] = y;
    rewrite_take_name(g, n->out[0], y);
    return true;
}

/* ---- the pass ------------------------------------------------------------ */

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
    BlockCodes bx, bw;
    if (find_blocks(g, n.in[0], &bx) && find_blocks(g, n.in[1], &bw))
        return blocks_rule(rw, &n, &bx, &bw, with);
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
        Eights e = {.g = g,
                    .values = g->values.len,
                    .blocks = !gpu_without(cx->opt, TENSOR_MX)};
        if (g->target != TARGET_CUDA) continue;
        e.turned = NEW_ARRAY(cx->scratch, ValueId, e.values);
        e.rows = NEW_ARRAY(cx->scratch, int, e.values);
        rewrite_graph(g, cx->scratch, eights_rule, &e);
        move_turned(&e, cx->scratch);
    }
    return OK;
}
