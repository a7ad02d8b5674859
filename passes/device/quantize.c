/* SPDX-License-Identifier: Apache-2.0 */
/* quantize.c: matrix products and norms read quantized weights directly.
   Before:  %w = widen_quantized %q, %s : f32    %b = cast %w : bf16
            %y = matmul %x, %b {trans_b=1}
   After:   %y = matmul_quantized %x, %q, %s {trans_b=1}
   and     %n = reduce_sumsq %w {axes=[1], keepdims=1}
   becomes elementwise work on %q as [rows, blocks, 64] and on %s, which fuses
           with its reduction.
   The routine widens pieces while it packs them; a weight that all its readers
   take so is never whole in memory. Norms of rows that are no whole blocks
   widen the weight.
   requires     stage PRIMITIVE
   establishes  nothing; same bits: the routine rounds as the cast does. Sums of
                squares are added in another order, once for both targets    */
#include "passes/passes.h"
#include "passes/rewrite.h"
#include "runtime/program/quantized.h"

/* ---- products ------------------------------------------------------------ */

/* The node that widens v, or of whose result v is a rounding to d; *turned
   flips for each transposition. */
static const Node *widened(const Graph *g, ValueId v, DType d, bool *turned) {
    const int64_t *perm;
    for (const Node *n; (n = value_maker(g, v)); v = n->in[0]) {
        DType of = value_dtype(g, v);
        if (n->fn || (of != d && of != DT_F32)) return NULL;
        if (n->op == OP_WIDEN_QUANTIZED) return n;
        if (n->op == OP_TRANSPOSE && attr_ints(n, AK_perm, &perm) == 2 &&
            perm[0] == 1)
            *turned = !*turned;
        else if (n->op != OP_CAST)
            return NULL;
    }
    return NULL;
}

static bool product_rule(Rewriter *rw, const Node n, ValueId *with) {
    Graph *g = rw->g;
    if (attr_int(&n, AK_trans_a)) return false;
    bool tb = attr_int(&n, AK_trans_b) != 0;
    DType d = value_dtype(g, n.in[0]);
    const Node *w = widened(g, n.in[1], d, &tb);
    if (!w || value_dtype(g, n.in[1]) != d || d == DT_F64 ||
        value_type(g, n.in[1])->rank != 2)
        return false;
    ValueId in[] = {n.in[0], w->in[0], w->in[1]};
    Attr attrs[] = {attr_i(AK_code, attr_int(w, AK_code)),
                    attr_i(AK_trans_b, tb)};
    with[0] = build(&rw->b, OP_MATMUL_QUANTIZED, in, 3, attrs, 2,
                    value_dtype(g, n.out[0]), NULL);
    rewrite_take_name(g, n.out[0], with[0]);
    return true;
}

/* ---- norms --------------------------------------------------------------- */

/* The level of `n` NF4 codes from `first` on. */
static ValueId nf4_level(Builder *b, ValueId code, int first, int n) {
    static const float level[] = {NF4_LEVELS};
    if (n == 1) return b_scalar(b, DT_F32, (double)level[first]);
    n /= 2;
    ValueId low =
        b2(b, OP_LESS, code, b_scalar(b, DT_F32, first + n), DT_DEFAULT);
    ValueId above = nf4_level(b, code, first + n, n);
    return b_where(b, low, nf4_level(b, code, first, n), above);
}

/* What bytes of 4-bit codes hold in their low half, or their high half. */
static ValueId level4(Builder *b, int64_t code, ValueId bytes, bool high) {
    ValueId x =
        b1(b, OP_FLOOR,
           b2(b, OP_MUL, bytes, b_scalar(b, DT_F32, 0.0625), DT_F32), DT_F32);
    if (!high)
        x = b2(b, OP_SUB, bytes,
               b2(b, OP_MUL, x, b_scalar(b, DT_F32, 16), DT_F32), DT_F32);
    return code == QUANTIZED_NF4
               ? nf4_level(b, x, 0, 16)
               : b2(b, OP_SUB, x, b_scalar(b, DT_F32, 8), DT_F32);
}

/* Sums of the squares of level * scale: of rows, [rows, 1, 1], block by block,
   or of columns, [1, blocks, ..]. */
static ValueId sum_levels(Builder *b, ValueId level, ValueId scale,
                          bool over_rows) {
    static const int64_t axis[] = {0, 1, 2};
    if (over_rows)
        return b_reduce(b, OP_REDUCE_SUMSQ, b2(b, OP_MUL, level, scale, DT_F32),
                        axis, 1, true, DT_F32);
    ValueId x = b_reduce(b, OP_REDUCE_SUMSQ, level, axis + 2, 1, true, DT_F32);
    x = b2(b, OP_MUL, x, b2(b, OP_MUL, scale, scale, DT_F32), DT_F32);
    return b_reduce(b, OP_REDUCE_SUM, x, axis + 1, 1, true, DT_F32);
}

/* The sums of bytes' low and high halves, as sums of elements. */
static ValueId join_halves(Builder *b, ValueId low, ValueId high,
                           bool over_rows) {
    if (!over_rows) return b2(b, OP_ADD, low, high, DT_F32);
    int64_t dim[] = {value_count(b->g, low), 1};
    ValueId in[] = {b_reshape(b, low, 2, dim), b_reshape(b, high, 2, dim)};
    Attr axis = attr_i(AK_axis, 1);
    return build(b, OP_CONCAT, in, 2, &axis, 1, DT_F32, NULL);
}

static bool norm_rule(Rewriter *rw, const Node n, ValueId *with) {
    Graph *g = rw->g;
    Builder *b = &rw->b;
    const int64_t *axes;
    bool turned = false;
    const Node *w = widened(g, n.in[0], DT_F32, &turned);
    if (!w || attr_ints(&n, AK_axes, &axes) != 1 ||
        value_dtype(g, n.out[0]) != DT_F32)
        return false;
    ValueId q = w->in[0], scale = w->in[1];
    int64_t code = attr_int(w, AK_code), rows = value_type(g, q)->dim[0];
    int64_t bytes = value_type(g, q)->dim[1];
    int64_t each =
        code == QUANTIZED_INT8 ? QUANTIZED_BLOCK : QUANTIZED_BLOCK / 2;
    bool over_rows = (axes[0] == 0) != turned;
    if (value_type(g, q)->rank != 2 || bytes % each) return false;
    const int64_t blocks[] = {rows, bytes / each, each},
                  scales[] = {rows, bytes / each, 1};
    TypeId want = value_get(g, n.out[0])->type;
    ValueId x = b_cast(b, b_reshape(b, q, 3, blocks), DT_F32), sum;
    scale = b_reshape(b, scale, 3, scales);
    if (code == QUANTIZED_INT8) {
        sum = sum_levels(b, x, scale, over_rows);
    } else {
        ValueId high =
            sum_levels(b, level4(b, code, x, true), scale, over_rows);
        ValueId low =
            sum_levels(b, level4(b, code, x, false), scale, over_rows);
        sum = join_halves(b, low, high, over_rows);
    }
    with[0] = b_reshape(b, sum, type_get(want)->rank, type_get(want)->dim);
    rewrite_take_name(g, n.out[0], with[0]);
    return true;
}

/* ---- the pass ------------------------------------------------------------ */

static bool quantize_rule(Rewriter *rw, NodeId id, ValueId *with) {
    const Node n = *node_get(rw->g, id); /* building may move the pool */
    if (n.fn) return false;
    if (n.op == OP_MATMUL) return product_rule(rw, n, with);
    return n.op == OP_REDUCE_SUMSQ && norm_rule(rw, n, with);
}

Status pass_quantize(Module *m, PassCtx *cx) {
    for (int i = 0; i < m->graphs.len; i++)
        rewrite_graph(m->graphs.data[i], cx->scratch, quantize_rule, NULL);
    return OK;
}
