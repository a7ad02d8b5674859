/* SPDX-License-Identifier: Apache-2.0 */
/* eight.c: products of layers read numbers of 8 bits (--precision f8).
   Before:  %y = matmul %x, %w {trans_b=1} : f32[64,128]      (bf16 operands)
            %dw = matmul %dy, %x {trans_a=1} !backward
   After:   %a = reduce_max(abs %x) : f32[]    %i = 448 / max(%a, 1e-12)
            %c = cast clip(%x * %i, -448, 448) {user=1} : f8e4m3[64,64]
            %x8 = cast %c : bf16               .. and %w8 of %w
            %p = matmul %x8, %w8 {trans_b=1} : f32   %y = mul %p, 1/%i * 1/%j
            %x8.2 = cast %c : bf16 !backward !again
            %p2 = matmul %dy8, %x8.2 {trans_a=1} !backward   ..
   Activations and weights (the fp32 ones) become e4m3, gradients e5m2, each
   tensor with one fp32 scale, which follows from
     - the magnitude that the value cannot exceed, if bounds.c proves one
     - its own largest magnitude of this step ("current scaling", torchao's
       tensorwise recipe): always of weights, and of the rest unless
       --f8-scales delayed
     - else the largest magnitude of earlier steps (eight_history.c): the kernel
       that computes the value can round it, too
   With --f8-scales block all are e4m3 with a scale for each 32 that a product
   adds up side by side (eight_blocks.c), so that a matrix has codes along its
   rows and other codes along its columns.
   bf16 holds every f8 number, so that products are those of
   f8 numbers with fp32 sums. A product of forward, and the two of its gradient,
   read f8 if
     - it multiplies by a matrix of the model, and by no policy line
     - it is neither the first product on its way nor the last: embeddings'
       neighbours and heads stay bf16
     - rows, columns and terms are multiples of 16 (of blocks: 32), and at
       least 64
   Codes of a forward value are what backward reads, in the place of the value.

   requires     stage PRIMITIVE, types chosen, nothing recomputed
   establishes  nothing                                                      */
#include "passes/common/bounds.h"
#include "passes/common/eight.h"
#include "passes/common/traffic.h"
#include "passes/passes.h"
#include "passes/rewrite.h"

enum { LEAST = 64, UNIT = 16 };
static const double least_size = 1e-12; /* torchao's EPS */
/* The largest bound from which a scale follows: of values far below it few
   codes would be left. */
static const double most_bound = 64;

typedef struct Eighth {
    ValueId code, inverse; /* the value times `inverse` is rounded */
    ValueId read[2];       /* bf16 again: in forward, in backward */
} Eighth;

typedef struct EightLayer {
    Str named;
    int weight; /* its variable */
} EightLayer;

typedef struct Eight {
    Graph *g;
    Arena *a;
    Eighth *of;         /* per value */
    const double *most; /* bounds_find() */
    int values;         /* of the graph before */
    VEC(EightLayer) layers;
    EightHistory *history; /* NULL: scales are of this step */
    EightBlocks *blocks;   /* per value; NULL: not --f8-scales block */
} Eight;

/* ---- which products ------------------------------------------------------ */

static bool is_view_node(const Node *n) {
    return n && !n->fn && node_kind(n) == KIND_VIEW;
}

/* The value below views of v. */
static ValueId below_views(const Graph *g, ValueId v) {
    const Node *n;
    while (is_view_node(n = value_maker(g, v))) v = n->in[0];
    return v;
}

/* The variable of the model that v is a copy of; -1: none. */
static int matrix_of_model(const Graph *g, ValueId v) {
    const Node *n;
    while ((n = value_maker(g, v)) && !n->fn &&
           (node_kind(n) == KIND_VIEW || n->op == OP_CAST ||
            n->op == OP_TRANSPOSE))
        v = n->in[0];
    if (value_get(g, v)->kind != VK_VAR) return -1;
    int source = shadow_source(g->module, value_var(g, v));
    return source < 0 ? value_get(g, v)->var : source;
}

static bool fits_eight(const Eight *e, int64_t n) {
    return n >= LEAST && n % (e->blocks ? BLOCK_SIZE : UNIT) == 0;
}

static bool reads_low(const Node *n) {
    return !n->fn && op_info[n->op].amp == AMP_LOW;
}

/* A product of a layer, apart from its place. */
static bool is_of_layer(const Eight *e, const Node *n) {
    const Graph *g = e->g;
    if (n->fn || n->op != OP_MATMUL || n->flags || n->loc.amp ||
        !n->loc.named || value_type(g, n->in[1])->rank != 2 ||
        matrix_of_model(g, n->in[1]) < 0)
        return false;
    const Type *w = value_type(g, n->in[1]);
    int64_t k = w->dim[0], all = value_count(g, n->in[0]);
    if (attr_int(n, AK_trans_b)) k = w->dim[1];
    return dtype_is_low(value_dtype(g, n->in[0])) && dtype_is_low(w->dtype) &&
           fits_eight(e, w->dim[0]) && fits_eight(e, w->dim[1]) &&
           fits_eight(e, all / k);
}

/* Layers between the first and the last products. */
static void find_layers(Eight *e) {
    const Graph *g = e->g;
    bool *after = NEW_ARRAY(e->a, bool, e->values),
         *ahead = NEW_ARRAY(e->a, bool, e->values);
    for (int i = 0; i < g->order.len; i++) {
        const Node *n = node_at(g, i);
        bool any = reads_low(n);
        for (int k = 0; k < n->nin; k++) any |= after[n->in[k].i];
        for (int k = 0; k < n->nout; k++) after[n->out[k].i] = any;
    }
    for (int i = g->order.len - 1; i >= 0; i--) {
        const Node *n = node_at(g, i);
        bool any = false;
        for (int k = 0; k < n->nout; k++) any |= ahead[n->out[k].i];
        if (n->flags) continue;
        if (any && after[n->in[0].i] && is_of_layer(e, n))
            vec_push(e->a, &e->layers,
                     (EightLayer){n->loc.named, matrix_of_model(g, n->in[1])});
        for (int k = 0; k < n->nin; k++)
            ahead[n->in[k].i] |= any || reads_low(n);
    }
}

/* The layer of a product that reads 8 bits; NULL: it reads 16. */
static const EightLayer *eight_layer(const Eight *e, const Node *n) {
    bool low = !n->fn && n->op == OP_MATMUL && !(n->flags & NODE_UPDATE);
    for (int k = 0; k < 2 && low; k++)
        low = dtype_is_low(value_dtype(e->g, n->in[k]));
    for (int i = 0; i < e->layers.len && low; i++)
        if (e->layers.data[i].named == n->loc.named) return &e->layers.data[i];
    return NULL;
}

/* ---- their operands ------------------------------------------------------ */

/* The parameter itself in the place of its 16-bit copy: one rounding. */
static ValueId unrounded(Graph *g, ValueId v) {
    if (value_get(g, v)->kind != VK_VAR) return v;
    int source = shadow_source(g->module, value_var(g, v));
    return source < 0 ? v : graph_var(g, source);
}

/* The largest magnitude of v's numbers. */
static ValueId present_size(Builder *b, ValueId v) {
    return b_reshape(b, eight_largest(b, eight_rows(b, v), 0), 0, NULL);
}

/* The magnitude that becomes the largest code of v; *why: how it is known. */
static ValueId size_for(Eight *e, Builder *b, ValueId v, int weight, DType d,
                        const char **why) {
    double bound = e->most[v.i];
    bool is_var = value_get(e->g, v)->kind == VK_VAR;
    if (bound > 0 && bound <= most_bound) {
        if (e->history && !is_var) eight_history_skip(e->history, weight, d);
        *why = internf("its scale is proven: at most %.6g", bound);
        return b_scalar(b, DT_F32, bound);
    }
    if (e->history && !is_var) {
        *why = "its scale: history";
        return eight_history(e->history, b, v, weight, d);
    }
    *why = "its scale: its largest number";
    return present_size(b, v);
}

static void quantise(Eight *e, Builder *b, ValueId of, int weight) {
    Graph *g = e->g;
    ValueId v = unrounded(g, of);
    const Node *n = value_maker(g, v);
    DType d = n && n->flags & NODE_BACKWARD ? DT_F8E5M2 : DT_F8E4M3;
    double most = dtype_info[d].most;
    const char *why;
    Attr kept = attr_i(AK_user, 1), /* a rounding that no pass removes */
        bounds[] = {attr_f(AK_min, -most), attr_f(AK_max, most)};
    ValueId size = size_for(e, b, v, weight, d, &why);
    size = b2(b, OP_MAX, size, b_scalar(b, DT_F32, least_size), DT_F32);
    Eighth *to = &e->of[of.i];
    to->inverse = b2(b, OP_DIV, b_scalar(b, DT_F32, most), size, DT_F32);
    ValueId x = b2(b, OP_MUL, b_cast(b, v, DT_F32), to->inverse, DT_F32);
    x = build(b, OP_CLIP, &x, 1, bounds, 2, DT_F32, NULL);
    to->code = build(b, OP_CAST, &x, 1, &kept, 1, d, NULL);
    value_get(g, to->inverse)->why = "a scale";
    value_get(g, to->code)->why = why;
}

/* The bf16 numbers for which the codes of v stand. */
static ValueId eight_read(Eight *e, Builder *b, ValueId v, int weight,
                          ValueId *inverse) {
    Graph *g = e->g;
    ValueId root = below_views(g, v);
    bool backward = (b->flags & NODE_BACKWARD) != 0;
    Eighth *its = &e->of[root.i];
    if (!its->code.i) quantise(e, b, root, weight);
    *inverse = its->inverse;
    if (!its->read[backward].i) {
        uint32_t flags = b->flags;
        if (backward && is_forward(g, its->code)) b->flags |= NODE_AGAIN;
        its->read[backward] = b_cast(b, its->code, DT_BF16);
        b->flags = flags;
    }
    ValueId x = its->read[backward];
    if (same_value(root, v)) return x;
    const Type t = *value_type(g, v);
    return b_reshape(b, x, t.rank, t.dim);
}

/* The bf16 numbers for which the codes of v stand, a matrix or rows of one. */
static ValueId block_read(Eight *e, Builder *b, ValueId v, bool down) {
    const Type t = *value_type(e->g, v);
    int64_t columns = t.dim[t.rank - 1];
    ValueId root = below_views(e->g, v);
    EightBlocks *its = &e->blocks[root.i];
    if (its->columns && its->columns != columns) its = NEW(e->a, EightBlocks);
    if (!its->columns) eight_blocks(b, unrounded(e->g, root), columns, its);
    return b_reshape(b, eight_blocks_read(b, its, down), t.rank, t.dim);
}

static void multiply_blocks(Eight *e, NodeId id) {
    Graph *g = e->g;
    const Node n = *node_get(g, id); /* building may move the pool */
    Builder b = {.g = g, .flags = n.flags, .loc = n.loc};
    bool ta = attr_int(&n, AK_trans_a), tb = attr_int(&n, AK_trans_b);
    if (value_type(g, n.in[1])->rank == 2 &&
        (!ta || value_type(g, n.in[0])->rank == 2)) {
        ValueId x = block_read(e, &b, n.in[0], ta),
                w = block_read(e, &b, n.in[1], !tb);
        Node *own = node_get(g, id);
        own->in[0] = x;
        own->in[1] = w;
    }
    vec_push(g->arena, &g->order, id);
}

static void multiply_eights(Eight *e, NodeId id, int weight) {
    Graph *g = e->g;
    const Node n = *node_get(g, id); /* building may move the pool */
    Builder b = {.g = g, .flags = n.flags, .loc = n.loc};
    ValueId in[2], inverse[2];
    for (int k = 0; k < 2; k++)
        in[k] = eight_read(e, &b, n.in[k], weight, &inverse[k]);
    ValueId p = build(&b, OP_MATMUL, in, 2, n.attrs, n.nattr, DT_F32, NULL);
    ValueId by = b2(&b, OP_MUL, inverse[0], inverse[1], DT_F32);
    by = b1(&b, OP_RECIPROCAL, by, DT_F32);
    /* the node itself becomes the product with the scales, in its place */
    Node *own = node_get(g, id);
    own->op = OP_MUL;
    own->nattr = 0;
    own->in[0] = p;
    own->in[1] = by;
    value_get(g, p)->why = "a sum";
    vec_push(g->arena, &g->order, id);
}

static void eight_graph(Graph *g, F8Scales scales, Arena *a) {
    EightHistory history = {.g = g, .a = a};
    Eight e = {.g = g,
               .a = a,
               .most = bounds_find(g, a),
               .values = g->values.len,
               .history = scales == F8_DELAYED ? &history : NULL};
    int n;
    if (scales == F8_BLOCK) e.blocks = NEW_ARRAY(a, EightBlocks, e.values);
    find_layers(&e);
    if (!e.layers.len) return;
    e.of = NEW_ARRAY(a, Eighth, e.values);
    NodeId *old = order_take(g, a, &n);
    for (int i = 0; i < n; i++) {
        const EightLayer *l = eight_layer(&e, node_get(g, old[i]));
        if (l && e.blocks)
            multiply_blocks(&e, old[i]);
        else if (l)
            multiply_eights(&e, old[i], l->weight);
        else
            vec_push(g->arena, &g->order, old[i]);
    }
    eight_history_write(&history);
}

Status pass_eight(Module *m, PassCtx *cx) {
    const Options *o = cx->opt;
    if (o->f8_scales && !o->f8_products) {
        fail(cx->diag, (Loc){0}, "--f8-scales %s is for --precision f8",
             o->f8_scales == F8_DELAYED ? "delayed" : "block");
        return ERR_USAGE;
    }
    if (!o->f8_products) return OK;
    for (int i = 0; i < m->graphs.len; i++)
        eight_graph(m->graphs.data[i], o->f8_scales, cx->scratch);
    return pass_dce(m, cx); /* views of what codes replace in backward */
}
