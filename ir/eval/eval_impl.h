/* SPDX-License-Identifier: Apache-2.0 */
/* eval_impl.h: declarations shared by the files of the interpreter; no other
   file includes it. eval.c finds the function of an op, passes it results of
   the right type filled with zeros, and rounds them afterwards. */
#ifndef AMPC_IR_EVAL_EVAL_IMPL_H
#define AMPC_IR_EVAL_EVAL_IMPL_H

#include "ir/eval/evaluate.h"
#include "ir/ir.h"

typedef struct EvalCx {
    const Node *n;
    Arena *a;                    /* results and temporaries */
    const EvalTensor *const *in; /* NULL: absent operand */
    EvalTensor **out;
    char *msg; /* [MSG_TEXT] */
} EvalCx;
typedef Status EvalFn(EvalCx *cx);

Status eval_fail(EvalCx *cx, const char *fmt, ...) PRINTF_LIKE(2, 3);

static inline double eval_at(const EvalTensor *t, int64_t k) {
    return t->f ? t->f[k] : (double)t->i[k];
}

/* Towards zero, saturating; NaN gives 0. */
static inline int64_t eval_to_int(double v) {
    if (v != v) return 0;
    return v >= 0x1p63 ? INT64_MAX : v < -0x1p63 ? INT64_MIN : (int64_t)v;
}

/* v converted to the kind of number that t holds. */
static inline void eval_put(EvalTensor *t, int64_t k, double v) {
    if (t->f)
        t->f[k] = v;
    else if (type_get(t->type)->dtype == DT_BOOL)
        t->i[k] = v != 0; /* NaN is true */
    else
        t->i[k] = eval_to_int(v);
}

/* Row-major successor of an index. */
static inline void eval_step(const Type *t, int64_t *idx) {
    for (int d = t->rank - 1; d >= 0; d--) {
        if (++idx[d] < t->dim[d]) return;
        idx[d] = 0;
    }
}

/* An axis splits a tensor into outer x n x inner. */
typedef struct EvalAxis {
    int64_t outer, n, inner;
} EvalAxis;
EvalAxis eval_axis(const Type *t, int axis);

/* An INTS attribute of n entries; each is `dflt` if absent. */
void eval_ints(const Node *n, AttrKey k, int count, int64_t dflt, int64_t *out);

/* Element i of the random stream (rng, salt), in [0, 1); see eval_move.c. */
double eval_uniform(const int64_t rng[2], int64_t salt, int64_t i);

/* Text for those rows of ops.def whose expression is evaluated, by kind. */
#define EXPR_ELEM(...)   __VA_ARGS__
#define EXPR_REDUCE(...) __VA_ARGS__
#define EXPR_GEN(...)
#define EXPR_VIEW(...)
#define EXPR_MOVE(...)
#define EXPR_ANCHOR(...)
#define EXPR_LIB(...)
#define EXPR_COMPOSITE(...)

/* eval_expr_f for integers, which wrap; *err: the reason why there is no
   result. */
typedef struct EvalInts {
    int64_t a, b, c, P0, P1;
} EvalInts;
int64_t eval_expr_i(OpCode op, const EvalInts *in, const char **err);

/* matmul with scales of blocks. */
Status eval_scaled_blocks(EvalCx *cx);

#define OP(E, text, imin, imax, omin, omax, attrs, type, cls, torch, grad,     \
           kind, cost, eval, lower, expr)                                      \
    EvalFn eval_##eval;
#include "ir/op/ops.def"

#endif
