/* eval_impl.h: what the files of the interpreter share; nobody else includes
   it.  eval.c finds the function of an op, gives it results of the right type
   filled with zeros, and afterwards rounds them.                            */
#ifndef AMPC_IR_EVAL_EVAL_IMPL_H
#define AMPC_IR_EVAL_EVAL_IMPL_H

#include "ir/ir.h"

typedef struct EvalCx {
    const Node *n;
    Arena *a;                    /* results and temporaries */
    const EvalTensor *const *in; /* NULL: absent operand */
    EvalTensor **out;
    char *msg; /* [256] */
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

/* An INTS attribute of n entries, `dflt` each where it is absent. */
void eval_ints(const Node *n, AttrKey k, int count, int64_t dflt, int64_t *out);

/* Element i of the stream (rng, salt), in [0, 1); see eval_move.c. */
double eval_uniform(const int64_t rng[2], int64_t salt, int64_t i);

EvalFn eval_elem;
EvalFn eval_full, eval_iota, eval_rand_uniform;
EvalFn eval_reshape, eval_transpose, eval_expand, eval_slice, eval_slice_grad,
    eval_pad, eval_pad_grad, eval_concat, eval_split, eval_gather,
    eval_scatter_add, eval_trilu;
EvalFn eval_reduce, eval_argmax, eval_matmul, eval_conv, eval_conv_dgrad,
    eval_conv_wgrad, eval_max_pool, eval_max_pool_grad, eval_avg_pool,
    eval_avg_pool_grad;

#endif
