/* SPDX-License-Identifier: Apache-2.0 */
/* align.c: pads the contiguous dimension of matrix products to the alignment
   that tensor cores need.
   Before:  %y = matmul %x, %w {trans_b=1} : bf16[8192,50257]
   After:   %w.pad = pad %w {pads=[0,0,7,0]} : bf16[50264,768]
            %y.wide = matmul %x, %w.pad {trans_b=1} : bf16[8192,50264]
            %y = slice %y.wide : bf16[8192,50257]
   If rows do not begin at multiples of 16 bytes, the available kernels run at a
   third of the speed.  The added rows and columns are zeros, which change no
   sum.  Readers of the result fuse with the slice, producers of an operand with
   the pad.  A dimension is padded only if it is so long that copying the other
   operand costs less than the faster kernel saves.  A large fp32 result for the
   host (logits of a prediction) stays as long as it is: the slice would need as
   much memory again.
   If a padded operand has other readers (a logit gradient whose sums are the
   bias gradient), only the padded form is stored, and all read that:
   Before:  %p = pad %v {pads=[0,0,0,7]}    %s = reduce_sum %v {axes=[0]}
   After:   %p = pad %v {..}    %v' = slice %p    %s = reduce_sum %v'

   requires     stage PRIMITIVE
   establishes  nothing
   breaks       nothing; leaves dead nodes                                   */
#include "passes/rewrite.h"
#include "passes/passes.h"
#include "passes/device/target.h"

#include <string.h>

static ValueId pad_here(Builder *b, ValueId v, int axis, int64_t to) {
    int64_t pads[2 * MAX_RANK] = {0};
    const Type *t = value_type(b->g, v);
    pads[t->rank + axis] = to - t->dim[axis];
    Attr a = attr_v(AK_pads, pads, 2 * t->rank);
    return build(b, OP_PAD, &v, 1, &a, 1, t->dtype, NULL);
}

/* The operand of element-wise node n that has the shape and the zeros of the
   result, if the other operands are constant along the last axis; -1 if
   there is none. */
static int zero_with(const Graph *g, const Node *n) {
    int at = -1;
    bool where = n->op == OP_WHERE;
    const Type *t = value_type(g, n->out[0]);
    if (n->op != OP_CAST && n->op != OP_MUL && !where) return -1;
    for (int i = 0; i < n->nin; i++) {
        const Type *x = value_type(g, n->in[i]);
        if (at < 0 && shape_equal(x, t) && !(where && i == 0))
            at = i;
        else if ((x->rank > 0 && x->dim[x->rank - 1] > 1) ||
                 (where && i > 0 && !is_number(g, n->in[i], 0)))
            return -1;
    }
    return at;
}

static const Node *maker_of(const Graph *g, ValueId v) {
    const Value *x = value_get(g, v);
    return x->kind == VK_RESULT && !x->held ? node_get(g, x->def) : NULL;
}

static ValueId pad_to(Rewriter *rw, ValueId v, int axis, int64_t to) {
    Builder *b = &rw->b;
    int64_t dim[MAX_RANK];
    const Type t = *value_type(b->g, v);
    const Node *view = def_of(b->g, v, OP_RESHAPE);
    if (t.dim[axis] == to) return v;
    /* pad the computed value, not a view of it */
    if (view && axis == t.rank - 1) {
        ValueId from = view->in[0];
        const Type *u = value_type(b->g, from);
        if (u->rank > 0 && u->dim[u->rank - 1] == t.dim[axis]) {
            memcpy(dim, t.dim, sizeof dim);
            dim[axis] = to;
            return b_reshape(b, pad_to(rw, from, u->rank - 1, to), t.rank, dim);
        }
    }
    return pad_here(b, v, axis, to);
}

/* The leading part of v with the shape of `of`. */
static ValueId align_first_of(Builder *b, ValueId v, const Type *of) {
    int64_t starts[MAX_RANK] = {0}, steps[MAX_RANK];
    if (shape_equal(value_type(b->g, v), of)) return v;
    for (int i = 0; i < of->rank; i++) steps[i] = 1;
    Attr a[] = {attr_v(AK_sizes, of->dim, of->rank),
                attr_v(AK_starts, starts, of->rank),
                attr_v(AK_steps, steps, of->rank)};
    return build(b, OP_SLICE, &v, 1, a, 3, of->dtype, NULL);
}

/* A row length in memory, rounded up to the alignment. */
static int64_t aligned(const TargetInfo *target, int64_t n, DType d) {
    int64_t unit = target->row_bytes / dtype_info[d].bytes;
    return unit <= 1 || n < target->long_row ? n : (n + unit - 1) / unit * unit;
}

/* True if the host receives v, and a second copy would be large. */
static bool is_large_output(const Graph *g, ValueId v) {
    bool out = false;
    for (int i = 0; i < g->outputs.len; i++)
        out |= same_value(view_root(g, g->outputs.data[i].value), v);
    return out && value_dtype(g, v) == DT_F32 &&
           type_bytes(value_type(g, v)) >= target_of(g)->large_output;
}

static bool align_product(Rewriter *rw, const Node *n, ValueId *with) {
    Builder *b = &rw->b;
    const TargetInfo *target = target_of(rw->g);
    bool ta = attr_int(n, AK_trans_a), tb = attr_int(n, AK_trans_b);
    ValueId x = n->in[0], w = n->in[1];
    Type a = *value_type(rw->g, x), y = *value_type(rw->g, w);
    Type out = *value_type(rw->g, n->out[0]);
    int am = a.rank - (ta ? 1 : 2), ak = a.rank - (ta ? 2 : 1);
    int bk = y.rank - (tb ? 1 : 2), bn = y.rank - (tb ? 2 : 1);
    if (a.rank < 2 || y.rank < 2 || a.dtype != y.dtype ||
        !dtype_is_low(a.dtype))
        return false;
    int64_t rows = out.dim[out.rank - 2], k = a.dim[ak];
    int64_t columns = is_large_output(rw->g, n->out[0])
                          ? y.dim[bn]
                          : aligned(target, y.dim[bn], a.dtype);
    if (!ta || tb) k = aligned(target, k, a.dtype);
    if (ta) rows = aligned(target, rows, a.dtype);
    if (columns == y.dim[bn] && k == a.dim[ak] && rows == a.dim[am])
        return false;
    x = pad_to(rw, pad_to(rw, x, am, rows), ak, k);
    w = pad_to(rw, pad_to(rw, w, bn, columns), bk, k);
    with[0] = align_first_of(b, b_matmul(b, x, w, ta, tb, out.dtype), &out);
    rewrite_take_name(rw->g, n->out[0], with[0]);
    return true;
}

/* The product of whose columns v is the first part. */
static bool columns_of(const Graph *g, ValueId v, ValueId *product) {
    const Node *cut = def_of(g, v, OP_SLICE);
    if (!cut || !def_of(g, cut->in[0], OP_MATMUL)) return false;
    *product = cut->in[0];
    const Type *whole = value_type(g, *product), *part = value_type(g, v);
    for (int d = 0; d < whole->rank - 1; d++)
        if (whole->dim[d] != part->dim[d]) return false;
    return true;
}

/* First columns plus a vector: the first columns of all plus a longer
   vector, which the product adds before it stores (product.h). */
static bool slice_behind_bias(Rewriter *rw, const Node *n, ValueId *with) {
    Builder *b = &rw->b;
    for (int i = 0; i < 2; i++) {
        ValueId in[2] = {n->in[0], n->in[1]};
        if (!columns_of(rw->g, n->in[i], &in[i])) continue;
        Type line = *value_type(rw->g, n->in[1 - i]);
        Type to = *value_type(rw->g, n->out[0]);
        int64_t columns = to.dim[to.rank - 1];
        if (line.rank == 0 || line.dim[line.rank - 1] != columns ||
            type_count(&line) != columns ||
            !shape_equal(&to, value_type(rw->g, n->in[i])))
            continue;
        const Type *whole = value_type(rw->g, in[i]);
        in[1 - i] =
            pad_to(rw, in[1 - i], line.rank - 1, whole->dim[whole->rank - 1]);
        with[0] = align_first_of(
            b, build(b, OP_ADD, in, 2, NULL, 0, to.dtype, NULL), &to);
        rewrite_take_name(rw->g, n->out[0], with[0]);
        return true;
    }
    return false;
}

/* A view of the first columns = the first columns of a view. */
static bool slice_behind_view(Rewriter *rw, const Node *n, ValueId *with) {
    ValueId from;
    if (!columns_of(rw->g, n->in[0], &from)) return false;
    Type whole = *value_type(rw->g, from), part = *value_type(rw->g, n->in[0]);
    Type to = *value_type(rw->g, n->out[0]), wide = to;
    int last = whole.rank - 1;
    if (to.rank == 0 || to.dim[to.rank - 1] != part.dim[last]) return false;
    wide.dim[to.rank - 1] = whole.dim[last];
    with[0] =
        align_first_of(&rw->b, b_reshape(&rw->b, from, to.rank, wide.dim), &to);
    rewrite_take_name(rw->g, n->out[0], with[0]);
    return true;
}

/* What v is the leading part of, if that is hardly larger; else NO_VALUE. */
static ValueId whole_of(const Graph *g, ValueId v) {
    const Node *cut = def_of(g, v, OP_SLICE);
    const int64_t *starts, *steps;
    if (!cut) return NO_VALUE;
    const Type *whole = value_type(g, cut->in[0]), *part = value_type(g, v);
    attr_ints(cut, AK_starts, &starts);
    attr_ints(cut, AK_steps, &steps);
    for (int d = 0; d < whole->rank; d++)
        if (starts[d] != 0 || steps[d] != 1 ||
            whole->dim[d] - part->dim[d] >= target_of(g)->row_bytes)
            return NO_VALUE;
    return cut->in[0];
}

/* The sum of leading parts is the leading part of a sum, to which a product
   adds before it stores (product.h): gradients of chunks (stream.c). */
static bool slice_behind_sum(Rewriter *rw, const Node *n, ValueId *with) {
    const Graph *g = rw->g;
    ValueId in[2] = {whole_of(g, n->in[0]), whole_of(g, n->in[1])};
    if (!is_value(in[0]) || !is_value(in[1]) || !def_of(g, in[1], OP_MATMUL) ||
        !shape_equal(value_type(g, in[0]), value_type(g, in[1])))
        return false;
    Type to = *value_type(g, n->out[0]);
    with[0] = align_first_of(
        &rw->b, build(&rw->b, OP_ADD, in, 2, NULL, 0, to.dtype, NULL), &to);
    rewrite_take_name(rw->g, n->out[0], with[0]);
    return true;
}

static bool align_rule(Rewriter *rw, NodeId id, ValueId *with) {
    const Node n = *node_get(rw->g, id); /* building may move the pool */
    if (n.op == OP_MATMUL && n.nin == 2) return align_product(rw, &n, with);
    if (n.op == OP_ADD)
        return slice_behind_bias(rw, &n, with) ||
               slice_behind_sum(rw, &n, with);
    return n.op == OP_RESHAPE && slice_behind_view(rw, &n, with);
}

/* Per value: its stored row length if padded; 0: not padded. */
static int64_t *padded_rows(const Graph *g, Arena *scratch) {
    int64_t *to = NEW_ARRAY(scratch, int64_t, g->values.len);
    for (int i = 0; i < g->order.len; i++) {
        const Node *n = node_at(g, i);
        if (n->op != OP_PAD || !maker_of(g, n->in[0])) continue;
        const Type *t = value_type(g, n->in[0]), *p = value_type(g, n->out[0]);
        bool rows = t->rank > 0 && dtype_is_low(t->dtype);
        for (int d = 0; d < t->rank - 1; d++) rows &= t->dim[d] == p->dim[d];
        const int64_t *pads;
        attr_ints(n, AK_pads, &pads);
        if (rows && pads[t->rank - 1] == 0)
            to[n->in[0].i] = p->dim[p->rank - 1];
    }
    return to;
}

/* Element-wise nodes and sums read the padded form, too. */
static bool share_rule(Rewriter *rw, NodeId id, ValueId *with) {
    const int64_t *to = rw->user;
    const Node n = *node_get(rw->g, id);
    if (n.nout != 1) return false;
    int i = node_kind(&n) == KIND_REDUCE ? 0 : zero_with(rw->g, &n);
    if (i < 0) return false;
    ValueId from = n.in[i];
    if (from.i >= rw->limit || !to[from.i]) return false;
    const Type t = *value_type(rw->g, from);
    ValueId *in = arena_dup(rw->g->arena, n.in, (size_t)n.nin * sizeof *in);
    in[i] = align_first_of(&rw->b,
                           pad_here(&rw->b, from, t.rank - 1, to[from.i]), &t);
    with[0] = build(&rw->b, n.op, in, n.nin, n.attrs, n.nattr,
                    value_dtype(rw->g, n.out[0]), NULL);
    rewrite_take_name(rw->g, n.out[0], with[0]);
    return true;
}

Status pass_align(Module *m, PassCtx *cx) {
    for (int i = 0; i < m->graphs.len; i++) {
        Graph *g = m->graphs.data[i];
        if (!target_of(g)->row_bytes) continue;
        rewrite_graph(g, cx->scratch, align_rule, NULL);
        rewrite_graph(g, cx->scratch, share_rule, padded_rows(g, cx->scratch));
    }
    return OK;
}
