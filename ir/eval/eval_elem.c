/* eval_elem.c: element-wise ops of the interpreter.  Every row of kind ELEM
   becomes two functions, its expression over doubles and over integers; a new
   row needs nothing here unless its expression names a new function.        */
#include "ir/eval/eval_impl.h"

#include <math.h>

/* Integers compute in 128 bits, so that no expression overflows before the
   result wraps to its dtype. */
__extension__ typedef __int128 Wide;

/* ---- functions of the expressions, double -------------------------------- */

static double f_sign(double a) { return a != a ? a : (a > 0) - (a < 0); }

static double f_sigmoid(double a) {
    if (a >= 0) return 1 / (1 + exp(-a));
    double e = exp(a);
    return e / (1 + e);
}

static double f_log_sigmoid(double a) {
    return (a < 0 ? a : 0) - log1p(exp(-fabs(a))) + (a != a ? a : 0);
}

static double f_gelu(double a) { return 0.5 * a * erfc(-a * sqrt(0.5)); }

static double f_gelu_tanh(double a) {
    double u = sqrt(2 / acos(-1)) * (a + 0.044715 * a * a * a);
    return 0.5 * a * (1 + tanh(u));
}

#define ABS(x)         fabs(x)
#define SIGN(x)        f_sign(x)
#define FLOOR(x)       floor(x)
#define CEIL(x)        ceil(x)
#define ROUND(x)       rint(x)
#define EXP(x)         exp(x)
#define LOG(x)         log(x)
#define SQRT(x)        sqrt(x)
#define ERF(x)         erf(x)
#define TANH(x)        tanh(x)
#define SIGMOID(x)     f_sigmoid(x)
#define LOG_SIGMOID(x) f_log_sigmoid(x)
#define SIN(x)         sin(x)
#define COS(x)         cos(x)
#define GELU(x)        f_gelu(x)
#define GELU_TANH(x)   f_gelu_tanh(x)
#define ISNAN(x)       ((x) != (x))
#define ISINF(x)       (fabs(x) == INFINITY)
#define ISFINITE(x)    (fabs(x) < INFINITY)
#define DIV(x, y)      ((x) / (y))
#define MOD(x, y)      fmod(x, y)
#define POW(x, y)      pow(x, y)

typedef double ElemF(double a, double b, double c, double P0, double P1);

#define OTHER(E, expr)
#define ROW(E, expr)                                                           \
    static double f_##E(double a, double b, double c, double P0, double P1) {  \
        (void)a, (void)b, (void)c, (void)P0, (void)P1;                         \
        return expr;                                                           \
    }
#define ROW_ELEM      ROW
#define ROW_GEN       OTHER
#define ROW_VIEW      OTHER
#define ROW_MOVE      OTHER
#define ROW_REDUCE    OTHER
#define ROW_ANCHOR    OTHER
#define ROW_LIB       OTHER
#define ROW_COMPOSITE OTHER
#define OP(E, text, imin, imax, omin, omax, attrs, type, cls, grad, kind,      \
           expr)                                                               \
    ROW_##kind(E, expr)
#include "ir/op/ops.def"

#undef ROW
#define ROW(E, expr) [OP_##E] = f_##E,
static ElemF *const elem_f[NUM_OPS] = {
#include "ir/op/ops.def"
};

/* ---- the same over integers ---------------------------------------------- */

static Wide i_div(Wide a, Wide b, const char **err) {
    if (b == 0) {
        *err = "integer division by zero";
        return 0;
    }
    return a / b;
}

/* The remainder has the divisor's sign. */
static Wide i_mod(Wide a, Wide b, const char **err) {
    if (b == 0) {
        *err = "integer remainder of division by zero";
        return 0;
    }
    Wide r = a % b;
    return r != 0 && (r < 0) != (b < 0) ? r + b : r;
}

static Wide i_pow(Wide a, Wide b, const char **err) {
    if (b < 0) {
        if (a == 0) *err = "0 raised to a negative power";
        return a == 1 ? 1 : a == -1 ? (b % 2 ? -1 : 1) : 0;
    }
    uint64_t r = 1, base = (uint64_t)a; /* wraps like the dtype does */
    for (; b > 0; b /= 2, base *= base)
        if (b % 2) r *= base;
    return (int64_t)r;
}

/* Type rules keep integers away from these. */
static Wide float_only(void) {
    ASSERT(!"float op on integers");
    return 0;
}

#undef ABS
#undef SIGN
#undef FLOOR
#undef CEIL
#undef ROUND
#undef EXP
#undef LOG
#undef SQRT
#undef ERF
#undef TANH
#undef SIGMOID
#undef LOG_SIGMOID
#undef SIN
#undef COS
#undef GELU
#undef GELU_TANH
#undef ISNAN
#undef ISINF
#undef ISFINITE
#undef DIV
#undef MOD
#undef POW
#define ABS(x)         ((x) < 0 ? -(x) : (x))
#define SIGN(x)        (((x) > 0) - ((x) < 0))
#define FLOOR(x)       (x)
#define CEIL(x)        (x)
#define ROUND(x)       (x)
#define EXP(x)         float_only()
#define LOG(x)         float_only()
#define SQRT(x)        float_only()
#define ERF(x)         float_only()
#define TANH(x)        float_only()
#define SIGMOID(x)     float_only()
#define LOG_SIGMOID(x) float_only()
#define SIN(x)         float_only()
#define COS(x)         float_only()
#define GELU(x)        float_only()
#define GELU_TANH(x)   float_only()
#define ISNAN(x)       0
#define ISINF(x)       0
#define ISFINITE(x)    1
#define DIV(x, y)      i_div(x, y, err)
#define MOD(x, y)      i_mod(x, y, err)
#define POW(x, y)      i_pow(x, y, err)

typedef Wide ElemI(Wide a, Wide b, Wide c, Wide P0, Wide P1, const char **err);

#undef ROW
#define ROW(E, expr)                                                           \
    static Wide i_##E(Wide a, Wide b, Wide c, Wide P0, Wide P1,                \
                      const char **err) {                                      \
        (void)a, (void)b, (void)c, (void)P0, (void)P1, (void)err;              \
        return expr;                                                           \
    }
#include "ir/op/ops.def"

#undef ROW
#define ROW(E, expr) [OP_##E] = i_##E,
static ElemI *const elem_i[NUM_OPS] = {
#include "ir/op/ops.def"
};
#undef OP

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

static Wide arg_i(const Elem *e, int k) {
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
    Wide v = elem_i[op](arg_i(e, 0), arg_i(e, 1), arg_i(e, 2),
                        eval_to_int(e->p[0]), eval_to_int(e->p[1]), &err);
    if (err) return eval_fail(e->cx, "%s", err);
    if (out->f)
        out->f[k] = (double)v;
    else if (type_get(out->type)->dtype == DT_BOOL)
        out->i[k] = v != 0;
    else
        out->i[k] = (int64_t)v;
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
