/* eval_elem.c: element-wise ops of the interpreter.  Every row with an
   expression becomes a function over doubles here and one over integers in
   eval_int.c.  */
#include "ir/eval/eval_impl.h"

#include <math.h>

/* ---- expressions over doubles -------------------------------------------- */

/* The rows' functions by their own names. */
#define FN(NAME, f64, integer, ulps)                                           \
    static double NAME(double x) { return f64; }
#include "ir/op/ops.def"

#define ISNAN(x)    ((x) != (x))
#define ISINF(x)    (fabs(x) == INFINITY)
#define ISFINITE(x) (fabs(x) < INFINITY)
#define DIV(x, y)   ((x) / (y))
#define MOD(x, y)   fmod(x, y)
#define POW(x, y)   pow(x, y)

typedef double ElemF(double a, double b, double c, double P0, double P1);

#define OP(E, text, imin, imax, omin, omax, attrs, type, cls, grad, kind,      \
           cost, eval, lower, expr)                                            \
    EXPR_##kind(static double f_##E(double a, double b, double c, double P0,   \
                                    double P1) {                               \
        (void)a, (void)b, (void)c, (void)P0, (void)P1;                         \
        return expr;                                                           \
    })
#include "ir/op/ops.def"

static ElemF *const elem_f[NUM_OPS] = {
#define OP(E, text, imin, imax, omin, omax, attrs, type, cls, grad, kind,      \
           cost, eval, lower, expr)                                            \
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
    int64_t stride[3][MAX_RANK]; /* over the result's index; 0 = repeated */
    int64_t pos[3];
    int nin;
    double p[2]; /* the float attributes, in table order */
} Elem;

static void broadcast_strides(const Type *t, const Type *out, int64_t *s) {
    int64_t own[MAX_RANK] = {0};
    int lead = out->rank - t->rank;
    shape_strides(t, own);
    for (int d = 0; d < out->rank; d++)
        s[d] = d < lead || t->dim[d - lead] == 1 ? 0 : own[d - lead];
}

static void elem_init(Elem *e, EvalCx *cx, const Type *out) {
    *e = (Elem){.cx = cx, .nin = cx->n->nin};
    for (int k = 0; k < e->nin; k++) {
        e->in[k] = cx->in[k];
        broadcast_strides(type_get(cx->in[k]->type), out, e->stride[k]);
    }
    node_expr_params(cx->n, e->p);
}

/* Moves every operand's position to the next element of the result. */
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

static void store_f(EvalTensor *t, int64_t k, double v) {
    if (t->f)
        t->f[k] = v;
    else if (type_get(t->type)->dtype == DT_BOOL)
        t->i[k] = v != 0; /* NaN is true */
    else
        t->i[k] = eval_to_int(v);
}

static double arg_f(const Elem *e, int k) {
    return k < e->nin ? eval_at(e->in[k], e->pos[k]) : 0;
}

static int64_t arg_i(const Elem *e, int k) {
    return k < e->nin ? e->in[k]->i[e->pos[k]] : 0;
}

/* One element, from the operands' positions. */
static Status elem_one(Elem *e, bool floats, int64_t k) {
    EvalTensor *out = e->cx->out[0];
    OpCode op = e->cx->n->op;
    const char *err = NULL;
    if (floats) {
        store_f(out, k,
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
    Elem e;
    elem_init(&e, cx, out);
    for (int k = 0; k < e.nin; k++) floats |= e.in[k]->f != NULL;
    for (int64_t k = 0; k < n; k++) {
        TRY(elem_one(&e, floats, k));
        elem_step(&e, out, idx);
    }
    return OK;
}
