/* op_grad.c: the table of gradient rules, what they share, and the rules of
   ops that move elements.  Element-wise rules: op_grad_elem.c; reductions,
   products and pools: op_grad_lib.c.  A call's gradient is its function's.  */
#include "ir/op/op_grad.h"

#include <string.h>

/* The row of a non-differentiable op says `none`. */
#define grad_none NULL
GradRule *const op_grad[NUM_OPS] = {
#define OP(E, text, imin, imax, omin, omax, attrs, type, cls, grad, kind,      \
           cost, eval, lower, expr)                                            \
    [OP_##E] = grad_##grad,
#include "ir/op/ops.def"
};

/* ---- shared -------------------------------------------------------------- */

ValueId grad_unbroadcast(Builder *b, ValueId g, ValueId like) {
    return b_sum_to(b, g, like, dtype_of(b, like));
}

DType grad_store(const Builder *b, ValueId v) {
    const Value *val = value_get(b->g, v);
    if (val->kind == VK_RESULT) {
        const Node *def = node_get(b->g, val->def);
        if (def->op == OP_CAST && !attr_int(def, AK_user, 0) &&
            dtype_of(b, def->in[0]) == DT_F32)
            return DT_F32;
    }
    return type_get(val->type)->dtype;
}

int64_t grad_extent(const Type *t, const int64_t *axes, int n) {
    int64_t count = 1;
    for (int k = 0; k < n; k++) count *= t->dim[axes[k]];
    return count;
}

ValueId grad_keepdims(Builder *b, ValueId x, const Type *t, const int64_t *axes,
                      int n) {
    Type kept = *t;
    for (int k = 0; k < n; k++) kept.dim[axes[k]] = 1;
    return b_reshape(b, x, kept.rank, kept.dim);
}

ValueId grad_same_op(Builder *b, const Node *n, const ValueId *in, int nin,
                     DType d) {
    return build(b, n->op, in, nin, n->attrs, n->nattr, d, NULL);
}

static bool takes_attr(OpCode op, AttrKey k) {
    for (int i = 0; i < op_info[op].nattr; i++)
        if (op_info[op].attrs[i] == k) return true;
    return false;
}

int grad_attrs(const Node *n, OpCode op, const Attr *more, int nmore,
               Attr *out) {
    int count = 0;
    for (int k = 0; k < nmore; k++) out[count++] = more[k];
    for (int k = 0; k < n->nattr; k++) {
        bool given = !takes_attr(op, n->attrs[k].key);
        for (int j = 0; j < nmore; j++) given |= more[j].key == n->attrs[k].key;
        if (!given) out[count++] = n->attrs[k];
    }
    return count;
}

/* op on one operand, with the attributes of n that it takes and one more */
static ValueId move_back(const GradCtx *cx, OpCode op, ValueId g, Attr more) {
    Node n = grad_node(cx);
    Attr attrs[8];
    int k = grad_attrs(&n, op, &more, 1, attrs);
    return build(cx->b, op, &g, 1, attrs, k, DT_DEFAULT, NULL);
}

/* ---- moves --------------------------------------------------------------- */

/* g in x's shape */
Status grad_reshape(GradCtx *cx) {
    Type x = type_of(cx->b, grad_node(cx).in[0]);
    cx->gin[0] = b_reshape(cx->b, cx->gout[0], x.rank, x.dim);
    return OK;
}

/* inverse permutation of g */
Status grad_transpose(GradCtx *cx) {
    Node n = grad_node(cx);
    const int64_t *perm;
    int64_t inverse[MAX_RANK];
    int r = type_of(cx->b, n.in[0]).rank;
    bool given = attr_ints(&n, AK_perm, &perm) > 0;
    for (int d = 0; d < r; d++) inverse[given ? perm[d] : r - 1 - d] = d;
    cx->gin[0] = b_transpose(cx->b, cx->gout[0], inverse);
    return OK;
}

/* un(g) */
Status grad_expand(GradCtx *cx) {
    cx->gin[0] = grad_unbroadcast(cx->b, cx->gout[0], grad_node(cx).in[0]);
    return OK;
}

/* zeros with g stored at starts + i * steps */
Status grad_slice(GradCtx *cx) {
    Type x = type_of(cx->b, grad_node(cx).in[0]);
    cx->gin[0] = move_back(cx, OP_SLICE_GRAD, cx->gout[0],
                           attr_v(AK_shape, x.dim, x.rank));
    return OK;
}

/* the same slice of g */
Status grad_slice_grad(GradCtx *cx) {
    Type x = type_of(cx->b, grad_node(cx).in[0]);
    cx->gin[0] =
        move_back(cx, OP_SLICE, cx->gout[0], attr_v(AK_sizes, x.dim, x.rank));
    return OK;
}

static ValueId slice_box(Builder *b, ValueId g, const int64_t *starts,
                         const Type *size) {
    Attr attrs[] = {
        attr_v(AK_starts, starts, size->rank),
        attr_v(AK_sizes, size->dim, size->rank),
        attr_v(AK_steps, (int64_t[]){1, 1, 1, 1, 1, 1, 1, 1}, size->rank)};
    return build(b, OP_SLICE, &g, 1, attrs, 3, DT_DEFAULT, NULL);
}

/* constant: g without the pads; other modes add the pads to their sources */
Status grad_pad(GradCtx *cx) {
    Node n = grad_node(cx);
    Type x = type_of(cx->b, n.in[0]);
    const int64_t *pads;
    attr_ints(&n, AK_pads, &pads);
    if (strcmp(attr_str(&n, AK_mode, "constant"), "constant") == 0)
        cx->gin[0] = slice_box(cx->b, cx->gout[0], pads, &x);
    else
        cx->gin[0] = move_back(cx, OP_PAD_GRAD, cx->gout[0],
                               attr_v(AK_shape, x.dim, x.rank));
    return OK;
}

/* g padded the same way (zeros where the mode is constant) */
Status grad_pad_grad(GradCtx *cx) {
    Node n = grad_node(cx);
    const int64_t *pads;
    int np = attr_ints(&n, AK_pads, &pads);
    cx->gin[0] = move_back(cx, OP_PAD, cx->gout[0], attr_v(AK_pads, pads, np));
    return OK;
}

/* slices of g */
Status grad_concat(GradCtx *cx) {
    Node n = grad_node(cx);
    int64_t starts[MAX_RANK] = {0};
    int axis = (int)attr_int(&n, AK_axis, 0);
    for (int k = 0; k < n.nin; k++) {
        Type x = type_of(cx->b, n.in[k]);
        if (cx->want[k]) cx->gin[k] = slice_box(cx->b, cx->gout[0], starts, &x);
        starts[axis] += x.dim[axis];
    }
    return OK;
}

/* concat of the g's, zeros where a result is unused */
Status grad_split(GradCtx *cx) {
    Node n = grad_node(cx);
    ValueId *part = NEW_ARRAY(cx->b->g->arena, ValueId, n.nout);
    for (int k = 0; k < n.nout; k++)
        part[k] = is_value(cx->gout[k])
                      ? cx->gout[k]
                      : b_full(cx->b, value_get(cx->b->g, n.out[k])->type, 0);
    Attr axis = attr_i(AK_axis, attr_int(&n, AK_axis, 0));
    cx->gin[0] = build(cx->b, OP_CONCAT, part, n.nout, &axis, 1,
                       dtype_of(cx->b, n.in[0]), NULL);
    return OK;
}

/* zeros of the data's shape with g added at the indices, summed in fp32 and
   left there where the table is a cast of fp32 */
Status grad_gather(GradCtx *cx) {
    Node n = grad_node(cx);
    Type x = type_of(cx->b, n.in[0]);
    Attr attrs[] = {attr_v(AK_shape, x.dim, x.rank),
                    attr_i(AK_axis, attr_int(&n, AK_axis, 0))};
    cx->gin[0] = build(cx->b, OP_SCATTER_ADD, (ValueId[]){cx->gout[0], n.in[1]},
                       2, attrs, 2, grad_store(cx->b, n.in[0]), NULL);
    return OK;
}

/* g at the indices */
Status grad_scatter_add(GradCtx *cx) {
    Node n = grad_node(cx);
    Attr axis = attr_i(AK_axis, attr_int(&n, AK_axis, 0));
    cx->gin[0] = build(cx->b, OP_GATHER, (ValueId[]){cx->gout[0], n.in[1]}, 2,
                       &axis, 1, DT_DEFAULT, NULL);
    return OK;
}

/* the same triangle of g */
Status grad_trilu(GradCtx *cx) {
    Node n = grad_node(cx);
    cx->gin[0] = grad_same_op(cx->b, &n, cx->gout, 1, DT_DEFAULT);
    return OK;
}
