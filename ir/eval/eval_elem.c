/* SPDX-License-Identifier: Apache-2.0 */
/* eval_elem.c: element-wise ops of the interpreter.  Every row with an
   expression becomes a function over doubles here and one over integers in
   eval_int.c. */
#include "ir/eval/eval_impl.h"

#include <math.h>

/* ---- expressions over doubles -------------------------------------------- */

/* Evaluates rows by their own functions. */
#define FN(NAME, f64, integer, ulps)                                           \
    static double NAME(double x) { return f64; }
#include "ir/op/ops.def"

#define ISNAN(x)      ((x) != (x))
#define ISINF(x)      (fabs(x) == INFINITY)
#define ISFINITE(x)   (fabs(x) < INFINITY)
#define DIV(x, y)     ((x) / (y))
#define MOD(x, y)     fmod(x, y)
#define POW(x, y)     pow(x, y)
#define BIT_AND(x, y) 0 /* type rules refuse floats here */

typedef double ElemF(double a, double b, double c, double P0, double P1);

#define OP(E, text, imin, imax, omin, omax, attrs, type, cls, torch, grad,     \
           kind, cost, eval, lower, expr)                                      \
    EXPR_##kind(static double f_##E(double a, double b, double c, double P0,   \
                                    double P1) {                               \
        (void)a, (void)b, (void)c, (void)P0, (void)P1;                         \
        return expr;                                                           \
    })
#include "ir/op/ops.def"

static ElemF *const elem_f[NUM_OPS] = {
#define OP(E, text, imin, imax, omin, omax, attrs, type, cls, torch, grad,     \
           kind, cost, eval, lower, expr)                                      \
    EXPR_##kind([OP_##E] = f_##E, )
#include "ir/op/ops.def"
};

double eval_expr_f(OpCode op, double a, double b) {
    return elem_f[op](a, b, 0, 0, 0);
}

/* ---- broadcasting loop --------------------------------------------------- */

typedef struct Elem {
    EvalCx *cx;
    const EvalTensor *in[3];
    int64_t stride[3][MAX_RANK]; /* strides over the result's index; 0:
                                    broadcast */
    int64_t pos[3];
    int nin;
    double p[2]; /* the float attributes, in table order */
} Elem;

/* Advances every operand's position to the next element of the result. */
static void elem_step(Elem *e, const Type *out, int64_t *idx) {
    for (int d = out->rank - 1; d >= 0; d--) {
        bool carry = ++idx[d] == out->dim[d];
        for (int k = 0; k < e->nin; k++)
            e->pos[k] +=
                carry ? -e->stride[k][d] * (out->dim[d] - 1) : e->stride[k][d];
        if (!carry) return;
        idx[d] = 0;
    }
}

static double arg_f(const Elem *e, int k) {
    return k < e->nin ? eval_at(e->in[k], e->pos[k]) : 0;
}

static int64_t arg_i(const Elem *e, int k) {
    return k < e->nin ? e->in[k]->i[e->pos[k]] : 0;
}

/* Computes one element from the operands' positions. */
static Status elem_one(Elem *e, bool floats, int64_t k) {
    EvalTensor *out = e->cx->out[0];
    OpCode op = e->cx->n->op;
    const char *err = NULL;
    if (floats) {
        eval_put(out, k,
                 elem_f[op](arg_f(e, 0), arg_f(e, 1), arg_f(e, 2), e->p[0],
                            e->p[1]));
        return OK;
    }
    EvalInts in = {arg_i(e, 0), arg_i(e, 1), arg_i(e, 2), eval_to_int(e->p[0]),
                   eval_to_int(e->p[1])};
    int64_t v = eval_expr_i(op, &in, &err);
    if (err) return eval_fail(e->cx, "%s", err);
    if (out->f)
        out->f[k] = (double)v;
    else if (type_get(out->type)->dtype == DT_BOOL)
        out->i[k] = v != 0;
    else
        out->i[k] = v;
    return OK;
}

Status eval_elem(EvalCx *cx) {
    const Type *out = type_get(cx->out[0]->type);
    int64_t n = type_count(out), idx[MAX_RANK] = {0};
    bool floats = false;
    Elem e = {.cx = cx, .nin = cx->n->nin};
    node_expr_params(cx->n, e.p);
    for (int k = 0; k < e.nin; k++) {
        const Type *t = type_get(cx->in[k]->type);
        int64_t own[MAX_RANK] = {0};
        int lead = out->rank - t->rank;
        e.in[k] = cx->in[k];
        floats |= e.in[k]->f != NULL;
        shape_strides(t, own);
        for (int d = lead; d < out->rank; d++)
            e.stride[k][d] = t->dim[d - lead] == 1 ? 0 : own[d - lead];
    }
    for (int64_t k = 0; k < n; k++) {
        TRY(elem_one(&e, floats, k));
        elem_step(&e, out, idx);
    }
    return OK;
}
