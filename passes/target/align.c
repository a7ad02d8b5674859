/* align.c: dimensions of products that memory is read along, as tensor cores
   want them.
   Before:  %y = matmul %x, %w {trans_b=1} : bf16[8192,50257]
   After:   %w.pad = pad %w {pads=[0,0,7,0]} : bf16[50264,768]
            %y.wide = matmul %x, %w.pad {trans_b=1} : bf16[8192,50264]
            %y = slice %y.wide : bf16[8192,50257]
   Rows that do not begin at a multiple of 16 bytes are read by kernels of a
   third of the speed.  The added rows and columns are zeros, which change no
   sum; what reads the result fuses with the slice, what makes an operand with
   the pad.  Only dimensions so long that copying the other operand costs less
   than it gains are padded.

   requires     stage PRIMITIVE
   establishes  nothing
   breaks       nothing; leaves dead nodes                                   */
#include "passes/common/rewrite.h"
#include "passes/passes.h"
#include "passes/target/target.h"

#include <string.h>

static ValueId pad_to(Builder *b, ValueId v, int axis, int64_t to) {
    int64_t pads[2 * MAX_RANK] = {0}, dim[MAX_RANK];
    const Type t = *value_type(b->g, v);
    const Node *view = def_of(b->g, v, OP_RESHAPE);
    if (t.dim[axis] == to) return v;
    /* what is padded is what was made, not a view of it */
    if (view && axis == t.rank - 1) {
        ValueId from = view->in[0];
        const Type *u = value_type(b->g, from);
        if (u->rank > 0 && u->dim[u->rank - 1] == t.dim[axis]) {
            memcpy(dim, t.dim, sizeof dim);
            dim[axis] = to;
            return b_reshape(b, pad_to(b, from, u->rank - 1, to), t.rank, dim);
        }
    }
    pads[t.rank + axis] = to - t.dim[axis];
    Attr a = attr_v(AK_pads, pads, 2 * t.rank);
    return build(b, OP_PAD, &v, 1, &a, 1, t.dtype, NULL);
}

/* The first of each dim, as many as `of` has. */
static ValueId first_of(Builder *b, ValueId v, const Type *of) {
    int64_t starts[MAX_RANK] = {0}, steps[MAX_RANK];
    if (shape_equal(value_type(b->g, v), of)) return v;
    for (int i = 0; i < of->rank; i++) steps[i] = 1;
    Attr a[] = {attr_v(AK_sizes, of->dim, of->rank),
                attr_v(AK_starts, starts, of->rank),
                attr_v(AK_steps, steps, of->rank)};
    return build(b, OP_SLICE, &v, 1, a, 3, of->dtype, NULL);
}

/* A length that memory is read along, as it should be. */
static int64_t aligned(const TargetInfo *target, int64_t n, DType d) {
    int64_t unit = target->row_bytes / dtype_info[d].bytes;
    return unit <= 1 || n < target->long_row ? n : (n + unit - 1) / unit * unit;
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
    if (a.rank < 2 || y.rank < 2 || a.dtype != y.dtype || !dtype_is_16(a.dtype))
        return false;
    int64_t rows = out.dim[out.rank - 2], k = a.dim[ak];
    int64_t columns = aligned(target, y.dim[bn], a.dtype);
    if (!ta || tb) k = aligned(target, k, a.dtype);
    if (ta) rows = aligned(target, rows, a.dtype);
    if (columns == y.dim[bn] && k == a.dim[ak] && rows == a.dim[am])
        return false;
    x = pad_to(b, pad_to(b, x, am, rows), ak, k);
    w = pad_to(b, pad_to(b, w, bn, columns), bk, k);
    with[0] = first_of(b, b_matmul(b, x, w, ta, tb, out.dtype), &out);
    rewrite_take_name(rw->g, n->out[0], with[0]);
    return true;
}

/* The product whose first columns v is. */
static bool columns_of(const Graph *g, ValueId v, ValueId *product) {
    const Node *cut = def_of(g, v, OP_SLICE);
    if (!cut || !def_of(g, cut->in[0], OP_MATMUL)) return false;
    *product = cut->in[0];
    const Type *whole = value_type(g, *product), *part = value_type(g, v);
    for (int d = 0; d < whole->rank - 1; d++)
        if (whole->dim[d] != part->dim[d]) return false;
    return true;
}

/* First columns plus a line: the first of all plus a longer line, which the
   product adds before it stores them (product.h). */
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
            pad_to(b, in[1 - i], line.rank - 1, whole->dim[whole->rank - 1]);
        with[0] =
            first_of(b, build(b, OP_ADD, in, 2, NULL, 0, to.dtype, NULL), &to);
        rewrite_take_name(rw->g, n->out[0], with[0]);
        return true;
    }
    return false;
}

/* A view of the first columns: the first columns of a view. */
static bool slice_behind_view(Rewriter *rw, const Node *n, ValueId *with) {
    ValueId from;
    if (!columns_of(rw->g, n->in[0], &from)) return false;
    Type whole = *value_type(rw->g, from), part = *value_type(rw->g, n->in[0]);
    Type to = *value_type(rw->g, n->out[0]), wide = to;
    int last = whole.rank - 1;
    if (to.rank == 0 || to.dim[to.rank - 1] != part.dim[last]) return false;
    wide.dim[to.rank - 1] = whole.dim[last];
    with[0] = first_of(&rw->b, b_reshape(&rw->b, from, to.rank, wide.dim), &to);
    rewrite_take_name(rw->g, n->out[0], with[0]);
    return true;
}

static bool align_rule(Rewriter *rw, NodeId id, ValueId *with) {
    const Node n = *node_get(rw->g, id); /* building moves the pool */
    if (n.op == OP_MATMUL) return align_product(rw, &n, with);
    if (n.op == OP_ADD) return slice_behind_bias(rw, &n, with);
    return n.op == OP_RESHAPE && slice_behind_view(rw, &n, with);
}

Status pass_align(Module *m, PassCtx *cx) {
    for (int i = 0; i < m->graphs.len; i++)
        if (target_of(m->graphs.data[i])->row_bytes)
            rewrite_graph(m->graphs.data[i], cx->scratch, align_rule, NULL);
    return OK;
}
