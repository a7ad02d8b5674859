/* op_grad.h: what the files of gradient rules share.  Every rule stands under
   its formula; g is the gradient of the result, un() sums to the operand's
   shape, x, y name operand and result.

   Dtypes: arithmetic that is not a move runs in `wide` (fp32, or fp64 where an
   operand is) whatever the operands are stored as; only the last node rounds
   to the operand's dtype.  Second order works because rules are written in
   ops that have rules.                                                      */
#ifndef AMPC_IR_OP_OP_GRAD_H
#define AMPC_IR_OP_OP_GRAD_H

#include "ir/ir.h"

#define grad_dx(expr) grad_by_expr
#define OP(E, text, imin, imax, omin, omax, attrs, type, cls, grad, kind,      \
           cost, eval, lower, expr)                                            \
    GradRule grad_##grad;
#include "ir/op/ops.def"

static inline Node grad_node(const GradCtx *cx) {
    return *node_get(cx->b->g, cx->node);
}
static inline DType dtype_of(const Builder *b, ValueId v) {
    return value_dtype(b->g, v);
}
/* By value: pointers would die with the next node. */
static inline Type type_of(const Builder *b, ValueId v) {
    return *value_type(b->g, v);
}
static inline DType wide_of(const Builder *b, ValueId v) {
    return dtype_compute(dtype_of(b, v), dtype_of(b, v));
}

static inline ValueId add(Builder *b, ValueId x, ValueId y, DType d) {
    return b2(b, OP_ADD, x, y, d);
}
static inline ValueId sub(Builder *b, ValueId x, ValueId y, DType d) {
    return b2(b, OP_SUB, x, y, d);
}
static inline ValueId mul(Builder *b, ValueId x, ValueId y, DType d) {
    return b2(b, OP_MUL, x, y, d);
}
static inline ValueId divide(Builder *b, ValueId x, ValueId y, DType d) {
    return b2(b, OP_DIV, x, y, d);
}
/* x * k in x's wide dtype or `d` */
static inline ValueId times(Builder *b, ValueId x, double k, DType d) {
    return mul(b, x, b_scalar(b, wide_of(b, x), k), d);
}
static inline ValueId plus(Builder *b, ValueId x, double k, DType d) {
    return add(b, x, b_scalar(b, wide_of(b, x), k), d);
}
static inline ValueId compare(Builder *b, OpCode op, ValueId x, double k) {
    return b2(b, op, x, b_scalar(b, wide_of(b, x), k), DT_DEFAULT);
}
/* c ? x : 0 */
static inline ValueId keep_if(Builder *b, ValueId c, ValueId x, DType d) {
    return b3(b, OP_WHERE, c, x, b_scalar(b, wide_of(b, x), 0), d);
}

/* Dtype in which the gradient of v leaves a product: fp32 where v is a cast
   that the compiler made of an fp32 value, for the rule of cast then passes it
   on unrounded; else v's own. */
DType grad_store(const Builder *b, ValueId v);
/* Elements of the given axes of t. */
int64_t grad_extent(const Type *t, const int64_t *axes, int n);
/* x with length-1 dims put back where a reduction dropped `axes` of `t` */
ValueId grad_keepdims(Builder *b, ValueId x, const Type *t, const int64_t *axes,
                      int n);
/* The node's op on other operands with the same attributes. */
ValueId grad_same_op(Builder *b, const Node *n, const ValueId *in, int nin,
                     DType d);
/* `more`, then those of the node's attributes that `op` takes and `more` does
   not have.  out has room for 8; returns how many. */
int grad_attrs(const Node *n, OpCode op, const Attr *more, int nmore,
               Attr *out);

#endif
