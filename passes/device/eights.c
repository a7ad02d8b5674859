/* SPDX-License-Identifier: Apache-2.0 */
/* eights.c: GPUs that can multiply the numbers of 8 bits themselves.
   Before:  %x8 = cast %c : bf16    %w8 = cast %d : bf16    (%c, %d: f8e4m3)
            %p = matmul %x8, %w8 : f32
   After:   %d.2 = transpose %d {perm=[1,0]}           beside %d
            %p = matmul %c, %d.2 {trans_b=1} : f32
   and      %s = cast(.. %x) : e8m0    %c = cast(%x * 1 / %s)      (of blocks,
                                       as eight_blocks.c makes them)
            %x8 = mul(cast %c, cast %s) : bf16
            %p = matmul %x8, %w8 {trans_b=1} : bf16
   After:   %c = block_codes %x    %s = block_scales %x           (blocks.h)
            %p = matmul %c, %d, %s, %t {trans_b=1} : bf16
   and      %b = reduce_sum %x     over its rows         (a bias's gradient)
   After:   %b = reduce_sum block_sums %x     unless %x follows from its rows'
   own sums, whose kernel adds up columns, too
   The library of these GPUs wants the elements of each sum side by side, so
   that codes get a second, transposed copy where a product reads them across.
   It is made where the codes are, so that one kernel stores both
   (node_by_tile), and forward keeps for backward what backward reads. So are
   codes of blocks along rows and along columns. Codes of blocks by another
   formula, the model's, stay as they are, and their products bf16. The sums
   equal sums of bf16, since bf16 holds every code. A module with code for an
   older GPU keeps bf16: one plan serves all its GPUs. So does one with scales
   of blocks for a GPU before sm_100.

   requires     stage PRIMITIVE
   establishes  nothing
   breaks       nothing; leaves dead nodes                                   */
#include "passes/again.h"
#include "passes/device/fold.h"
#include "passes/device/product.h"
#include "passes/passes.h"
#include "passes/rewrite.h"
#include "runtime/program/blocks.h"

typedef struct Eights {
    Graph *g;
    int values;      /* of the graph before */
    ValueId *turned; /* per value: the codes with their columns first, or codes
                        of blocks in its place */
    ValueId *scales; /* .. and their scales in its place */
    int *rows;       /* .. and how many axes the rows of turned codes are */
    const ValueId *original; /* again_originals() */
    bool blocks;             /* all GPUs multiply codes with scales of blocks */
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

/* Puts turned codes, and codes and scales of blocks, right behind the codes. */
static void move_beside(Eights *e, Arena *a) {
    Graph *g = e->g;
    ValueId *const beside[] = {e->turned, e->scales};
    int n;
    NodeId *old = order_take(g, a, &n);
    bool *moves = NEW_ARRAY(a, bool, g->nodes.len);
    for (int v = 0; v < 2 * e->values; v++)
        if (beside[v % 2][v / 2].i &&
            value_maker(g, (ValueId){(uint32_t)v / 2}))
            moves[value_get(g, beside[v % 2][v / 2])->def.i] = true;
    for (int i = 0; i < n; i++) {
        if (moves[old[i].i]) continue;
        vec_push(g->arena, &g->order, old[i]);
        const Node *x = node_get(g, old[i]);
        for (int k = 0; k < 2 * x->nout; k++) {
            ValueId v = x->out[k / 2];
            if ((int)v.i < e->values && beside[k % 2][v.i].i)
                vec_push(g->arena, &g->order,
                         value_get(g, beside[k % 2][v.i])->def);
        }
    }
}

/* ---- scales of blocks ---------------------------------------------------- */

typedef struct BlockCodes {
    ValueId code, of; /* as pass eight made them; of numbers */
    int64_t columns;
    bool down; /* blocks lie along columns */
} BlockCodes;

/* The node that computes v, f32, if its op is `op`. */
static const Node *f32_def(const Graph *g, ValueId v, OpCode op) {
    const Node *n = def_of(g, v, op);
    return n && value_dtype(g, v) == DT_F32 ? n : NULL;
}

static ValueId f32_cast_of(const Graph *g, ValueId v) {
    const Node *n = f32_def(g, v, OP_CAST);
    return n ? n->in[0] : NO_VALUE;
}

/* The other operand of an op of v and c. */
static ValueId f32_beside(const Graph *g, ValueId v, OpCode op, double c) {
    const Node *n = f32_def(g, v, op);
    double x;
    for (int k = 0; n && k < 2; k++)
        if (value_number(g, n->in[k], &x) && (float)x == (float)c)
            return n->in[1 - k];
    return NO_VALUE;
}

/* v before it was reshaped, or widened from 16 bits. */
static ValueId unwidened(const Graph *g, ValueId v) {
    const Node *n;
    while ((n = def_of(g, v, OP_RESHAPE)) ||
           ((n = f32_def(g, v, OP_CAST)) &&
            dtype_is_low(value_dtype(g, n->in[0]))))
        v = n->in[0];
    return v;
}

/* The numbers from which eight_blocks.c makes that scale; NO_VALUE: by another
   formula, the codes would differ. */
static ValueId scaled_numbers(const Graph *g, const Type *codes,
                              ValueId scale) {
    const Node *n = def_of(g, scale, OP_CAST);
    ValueId v = n ? f32_beside(g, n->in[0], OP_MUL, BLOCK_UP) : NO_VALUE;
    v = f32_beside(g, v, OP_MAX, BLOCK_LEAST);
    v = f32_beside(g, v, OP_MUL, BLOCK_OF_LARGEST);
    n = f32_def(g, v, OP_REDUCE_MAX);
    if (!n || !shape_equal(value_type(g, v), value_type(g, scale)) ||
        !shape_equal(value_type(g, n->in[0]), codes))
        return NO_VALUE;
    n = f32_def(g, n->in[0], OP_ABS);
    return n ? unwidened(g, n->in[0]) : NO_VALUE;
}

/* v, or the forward value that it repeats. */
static ValueId original_of(const Eights *e, ValueId v) {
    bool repeats = (int)v.i < e->values && e->original[v.i].i;
    return repeats ? e->original[v.i] : v;
}

/* The numbers that become `code` by scales of blocks. Backward may compute
   again the numbers alone, or the scales, too. */
static ValueId blocked_numbers(const Eights *e, ValueId code, ValueId scale) {
    const Graph *g = e->g;
    const Node *n = def_of(g, code, OP_CAST), *by;
    ValueId v, x = NO_VALUE;
    n = n ? f32_def(g, n->in[0], OP_MUL) : NULL;
    by = n ? f32_def(g, n->in[1], OP_RECIPROCAL) : NULL;
    if (by && same_value(original_of(e, f32_cast_of(g, by->in[0])),
                         original_of(e, scale)))
        x = scaled_numbers(g, value_type(g, code), scale);
    if (!x.i) return NO_VALUE;
    v = unwidened(g, n->in[0]);
    return same_value(original_of(e, v), original_of(e, x)) ? v : NO_VALUE;
}

/* The axis along which the blocks of these codes lie, 2 or 1; 0: pass eight
   makes no such blocks. */
static int axis_of_blocks(const Type *code, const Type *scale) {
    if (code->dtype != DT_F8E4M3 || scale->dtype != DT_E8M0 ||
        code->rank != 3 || scale->rank != 3)
        return 0;
    for (int d = 2; d > 0; d--) {
        Type one = *code;
        one.dim[d] = 1;
        if (code->dim[d] == BLOCK_SIZE && shape_equal(&one, scale)) return d;
    }
    return 0;
}

/* True if numbers of 16 bits of type d are as large as codes times scales. */
static bool holds_scaled_codes(DType d) {
    return dtype_is_low(d) && dtype_info[d].most > 0x1p127;
}

/* The codes that v, an operand of a product, stands for. */
static bool find_blocks(const Eights *e, ValueId v, BlockCodes *to) {
    const Graph *g = e->g;
    const Type *read = value_type(g, v), *t;
    const Node *n;
    while ((n = def_of(g, v, OP_RESHAPE))) v = n->in[0];
    n = def_of(g, v, OP_MUL);
    if (!n || !holds_scaled_codes(value_dtype(g, v))) return false;
    ValueId code = f32_cast_of(g, n->in[0]), scale = f32_cast_of(g, n->in[1]);
    if (!code.i || !scale.i) return false;
    t = value_type(g, code);
    int axis = axis_of_blocks(t, value_type(g, scale));
    int64_t columns = axis == 1 ? t->dim[2] : t->dim[1] * t->dim[2];
    if (!axis || type_count(t) == 0 || columns % BLOCK_SIZE ||
        read->dim[read->rank - 1] != columns ||
        type_count(t) / columns % BLOCK_SIZE)
        return false;
    *to =
        (BlockCodes){code, blocked_numbers(e, code, scale), columns, axis == 1};
    return to->of.i != 0;
}

/* Codes and scales as the library reads them. */
static void make_block_codes(Eights *e, Builder *b, const BlockCodes *c) {
    uint32_t v = c->code.i, flags = b->flags;
    Attr a[] = {attr_i(AK_columns, c->columns), attr_i(AK_down, c->down)};
    if (e->turned[v].i) return;
    b->flags = value_maker(b->g, c->code)->flags;
    e->turned[v] = build(b, OP_BLOCK_CODES, &c->of, 1, a, 2, DT_F8E4M3, NULL);
    e->scales[v] = build(b, OP_BLOCK_SCALES, &c->of, 1, a, 2, DT_E8M0, NULL);
    value_get(b->g, e->turned[v])->why = value_get(b->g, c->code)->why;
    value_get(b->g, e->scales[v])->why = "scales of blocks of 32";
    b->flags = flags;
}

static bool blocks_rule(Rewriter *rw, const Node *n, const BlockCodes *x,
                        const BlockCodes *w, ValueId *with) {
    Graph *g = rw->g;
    Eights *e = rw->user;
    Builder *b = &rw->b;
    Attr right = attr_i(AK_trans_b, 1);
    bool ta = attr_int(n, AK_trans_a) != 0;
    Type t = *value_type(g, n->in[0]);
    if (!e->blocks || x->down != ta ||
        w->down == (attr_int(n, AK_trans_b) != 0))
        return false;
    make_block_codes(e, b, x);
    make_block_codes(e, b, w);
    if (ta) t = *value_type(g, e->turned[x->code.i]);
    ValueId in[] = {in_shape(b, e->turned[x->code.i], &t), e->turned[w->code.i],
                    e->scales[x->code.i], e->scales[w->code.i]};
    ValueId y =
        build(b, OP_MATMUL, in, 4, &right, 1, value_dtype(g, n->out[0]), NULL);
    if (!product_is_library(g, value_maker(g, y))) return false;
    with[0] = y;
    rewrite_take_name(g, n->out[0], y);
    return true;
}

/* ---- sums beside blocks -------------------------------------------------- */

typedef struct BesideBlocks {
    int values; /* of the graph before */
    int64_t
        *down;    /* per value: its columns, if blocks lie along them; else 0 */
    bool *folded; /* per value: it follows element by element from folds */
} BesideBlocks;

static BesideBlocks beside_blocks(const Graph *g, Arena *a) {
    BesideBlocks to = {g->values.len, NEW_ARRAY(a, int64_t, g->values.len),
                       NEW_ARRAY(a, bool, g->values.len)};
    for (int i = 0; i < g->order.len; i++) {
        const Node *n = node_at(g, i);
        bool folded = !n->fn && node_kind(n) == KIND_REDUCE;
        for (int k = 0; k < n->nin && !n->fn; k++)
            folded |= node_kind(n) == KIND_ELEM && to.folded[n->in[k].i];
        for (int k = 0; k < n->nout; k++) to.folded[n->out[k].i] = folded;
        if (n->op == OP_BLOCK_CODES && attr_int(n, AK_down))
            to.down[n->in[0].i] = attr_int(n, AK_columns);
    }
    return to;
}

/* The columns of v, if n sums up rows of it; else 0. */
static int64_t sums_rows(const BesideBlocks *e, const Graph *g, const Node *n,
                         ValueId *v) {
    const Node *view;
    const int64_t *axes;
    if (n->fn || n->op != OP_REDUCE_SUM || value_dtype(g, n->out[0]) != DT_F32)
        return 0;
    const Type *t = value_type(g, n->in[0]);
    int rows = attr_ints(n, AK_axes, &axes);
    int64_t columns = 1;
    for (int i = 0; i < rows; i++)
        if (axes[i] != i) return 0;
    for (int d = rows; d < t->rank; d++) columns *= t->dim[d];
    *v = n->in[0];
    while ((int)v->i < e->values && !e->down[v->i] &&
           (view = value_maker(g, *v)) && !view->fn &&
           node_kind(view) == KIND_VIEW)
        *v = view->in[0];
    bool known = (int)v->i < e->values && !e->folded[v->i] && rows > 0;
    return known && e->down[v->i] == columns ? columns : 0;
}

static bool block_sums_rule(Rewriter *rw, NodeId id, ValueId *with) {
    static const int64_t first = 0;
    Builder *b = &rw->b;
    const Node n = *node_get(rw->g, id); /* building may move the pool */
    const Type t = *value_type(rw->g, n.out[0]);
    ValueId v = NO_VALUE;
    int64_t columns = sums_rows(rw->user, rw->g, &n, &v);
    Attr a = attr_i(AK_columns, columns);
    if (!columns) return false;
    ValueId s = build(b, OP_BLOCK_SUMS, &v, 1, &a, 1, DT_F32, NULL);
    s = b_reduce(b, OP_REDUCE_SUM, s, &first, 1, true, DT_F32);
    with[0] = b_reshape(b, s, t.rank, t.dim);
    rewrite_take_name(rw->g, n.out[0], with[0]);
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
    if (find_blocks(e, n.in[0], &bx) && find_blocks(e, n.in[1], &bw))
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
        e.scales = NEW_ARRAY(cx->scratch, ValueId, e.values);
        e.rows = NEW_ARRAY(cx->scratch, int, e.values);
        e.original = again_originals(g, cx->scratch, false);
        rewrite_graph(g, cx->scratch, eights_rule, &e);
        move_beside(&e, cx->scratch);
        if (!e.blocks) continue;
        BesideBlocks blocks = beside_blocks(g, cx->scratch);
        rewrite_graph(g, cx->scratch, block_sums_rule, &blocks);
    }
    return OK;
}
