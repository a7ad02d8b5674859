/* SPDX-License-Identifier: Apache-2.0 */
/* eval.c: the reference interpreter: defines what a graph computes, in double
   precision.

   It is written to be obviously right: plain loops, one function per op. It
   shares only the expressions of the op table with the code generator. Tests
   compare everything else with it; constant folding uses it.
   Integers are int64_t and wrap to their dtype; u64 is its bit pattern.     */
#include "ir/eval/eval_impl.h"
#include "ir/op/function.h"
#include "ir/op/rule.h"

#include <math.h>
#include <string.h>

/* ---- numbers ------------------------------------------------------------- */

/* 16-bit types are first rounded to fp32, in which generated code computes. */
double round_to_dtype(double v, DType d) {
    return dtype_nearest(d, dtype_is_low(d) ? (double)(float)v : v);
}

bool dtype_can_hold(DType d, double v) {
    return !isfinite(v) || isfinite(round_to_dtype(v, d));
}

static int64_t wrap_int(int64_t v, DType d) {
    switch (d) {
    case DT_BOOL: return v != 0;
    case DT_U8: return (uint8_t)v;
    case DT_I8: return (int8_t)v;
    case DT_U16: return (uint16_t)v;
    case DT_I16: return (int16_t)v;
    case DT_U32: return (uint32_t)v;
    case DT_I32: return (int32_t)v;
    default: return v;
    }
}

static void settle(EvalTensor *t, EvalMode mode) {
    const Type *ty = type_get(t->type);
    int64_t n = type_count(ty);
    if (t->i)
        for (int64_t k = 0; k < n; k++) t->i[k] = wrap_int(t->i[k], ty->dtype);
    else if (mode == EVAL_STORAGE && ty->dtype != DT_F64)
        for (int64_t k = 0; k < n; k++)
            t->f[k] = round_to_dtype(t->f[k], ty->dtype);
}

/* ---- tensors and storage ------------------------------------------------- */

EvalTensor *eval_tensor_new(Arena *a, TypeId t) {
    EvalTensor *r = NEW(a, EvalTensor);
    int64_t n = type_count(type_get(t)) + 1; /* never NULL */
    r->type = t;
    if (dtype_is_float(type_get(t)->dtype))
        r->f = NEW_ARRAY(a, double, n);
    else
        r->i = NEW_ARRAY(a, int64_t, n);
    return r;
}

EvalTensor *eval_from_tensor(Arena *a, const Tensor *t) {
    EvalTensor *r = eval_tensor_new(a, t->type);
    int64_t n = type_count(type_get(t->type));
    for (int64_t k = 0; k < n; k++)
        if (r->f)
            r->f[k] = tensor_get(t, k);
        else
            r->i[k] = tensor_get_int(t, k);
    return r;
}

/* `as` may differ from t's type in dtype; the shape is the same. */
Tensor *eval_to_tensor(Arena *a, const EvalTensor *t, TypeId as) {
    int64_t n = type_count(type_get(as));
    DType d = type_get(as)->dtype;
    Tensor *r = tensor_new(a, as);
    ASSERT(n == type_count(type_get(t->type)));
    for (int64_t k = 0; k < n; k++)
        if (t->f)
            tensor_set(r, k, round_to_dtype(t->f[k], d));
        else
            tensor_set_int(r, k, t->i[k]);
    return r;
}

/* ---- one node ------------------------------------------------------------ */

static EvalFn *const eval_fn[NUM_OPS] = {
#define OP(E, text, imin, imax, omin, omax, attrs, type, cls, torch, grad,     \
           kind, cost, eval, lower, expr)                                      \
    [OP_##E] = eval_##eval,
#include "ir/op/ops.def"
};

static Status run_node(const Graph *g, NodeId id, Arena *a, EvalMode mode,
                       const EvalTensor *const *in, EvalTensor **out,
                       char *msg) {
    const Node *n = node_get(g, id);
    EvalCx cx = {n, a, in, out, msg};
    TRY(eval_fn[n->op](&cx));
    for (int k = 0; k < n->nout; k++) settle(out[k], mode);
    return OK;
}

Status eval_node(const Graph *g, NodeId n, Arena *a, EvalMode mode,
                 const EvalTensor *const *in, EvalTensor **out, char *msg) {
    const Node *node = node_get(g, n);
    for (int k = 0; k < node->nout; k++)
        out[k] = eval_tensor_new(a, value_get(g, node->out[k])->type);
    return run_node(g, n, a, mode, in, out, msg);
}

/* ---- a whole graph ------------------------------------------------------- */

struct Evaluator {
    const Graph *g;
    Arena *a;
    EvalMode mode;
    EvalTensor **value; /* by ValueId.i; buffers of results stay allocated */
};

Evaluator *eval_new(const Graph *g, Arena *a, EvalMode mode) {
    Evaluator *e = NEW(a, Evaluator);
    e->g = g;
    e->a = a;
    e->mode = mode;
    e->value = NEW_ARRAY(a, EvalTensor *, g->values.len);
    return e;
}

static void clear(EvalTensor *t) {
    size_t n = (size_t)type_count(type_get(t->type));
    if (t->f) memset(t->f, 0, n * sizeof *t->f);
    if (t->i) memset(t->i, 0, n * sizeof *t->i);
}

/* Copies t into `to`, converting the elements. */
static void assign(EvalTensor *to, const EvalTensor *t) {
    int64_t n = type_count(type_get(to->type));
    for (int64_t k = 0; k < n; k++)
        if (to->f)
            to->f[k] = eval_at(t, k);
        else
            to->i[k] = t->i ? t->i[k] : eval_to_int(t->f[k]);
}

void eval_bind(Evaluator *e, ValueId v, const EvalTensor *t) {
    TypeId type = value_get(e->g, v)->type;
    ASSERT(shape_equal(type_get(type), type_get(t->type)));
    EvalTensor *own = e->value[v.i];
    if (!own) own = e->value[v.i] = eval_tensor_new(e->a, type);
    assign(own, t);
    settle(own, e->mode);
}

static EvalTensor *var_start(Evaluator *e, const Var *var) {
    EvalTensor *r = eval_tensor_new(e->a, var->type);
    int64_t n = type_count(type_get(var->type));
    const Tensor *t = var_initial(e->a, var);
    if (t) {
        assign(r, eval_from_tensor(e->a, t));
    } else {
        for (int64_t k = 0; k < n; k++) eval_put(r, k, var->fill);
    }
    settle(r, e->mode);
    return r;
}

static Status eval_load(Evaluator *e, Diag *d, ValueId v) {
    const Value *val = value_get(e->g, v);
    if (e->value[v.i]) return OK;
    if (val->kind == VK_CONST)
        e->value[v.i] = eval_from_tensor(e->a, val->data);
    else if (val->kind == VK_VAR)
        e->value[v.i] = var_start(e, value_var(e->g, v));
    else
        return fail(d, (Loc){0}, "input '%s' has no data",
                    val->name ? val->name : "?");
    return OK;
}

static Status run_one(Evaluator *e, Diag *d, NodeId id) {
    const Node *n = node_get(e->g, id);
    const EvalTensor **in = NEW_ARRAY(e->a, const EvalTensor *, n->nin + 1);
    EvalTensor **out = NEW_ARRAY(e->a, EvalTensor *, n->nout + 1);
    char msg[MSG_TEXT] = "";
    for (int k = 0; k < n->nin; k++) {
        if (!is_value(n->in[k])) continue;
        TRY(eval_load(e, d, n->in[k]));
        in[k] = e->value[n->in[k].i];
    }
    for (int k = 0; k < n->nout; k++) {
        EvalTensor **slot = &e->value[n->out[k].i];
        if (*slot)
            clear(*slot);
        else
            *slot = eval_tensor_new(e->a, value_get(e->g, n->out[k])->type);
        out[k] = *slot;
    }
    if (run_node(e->g, id, e->a, e->mode, in, out, msg) != OK)
        return fail(d, n->loc, "%s: %s", node_info(n)->text, msg);
    return OK;
}

Status eval_run(Evaluator *e, Diag *d) {
    const Graph *g = e->g;
    for (int k = 0; k < g->order.len; k++) TRY(run_one(e, d, g->order.data[k]));
    for (int k = 0; k < g->outputs.len; k++) {
        ValueId v = g->outputs.data[k].value;
        if (value_get(g, v)->kind != VK_RESULT) TRY(eval_load(e, d, v));
    }
    for (int k = 0; k < g->writes.len; k++) {
        ValueId v = g->writes.data[k].value;
        if (value_get(g, v)->kind != VK_RESULT) TRY(eval_load(e, d, v));
    }
    return OK;
}

const EvalTensor *eval_get(const Evaluator *e, ValueId v) {
    return e->value[v.i];
}

/* ---- calls --------------------------------------------------------------- */

Status eval_grad(EvalCx *cx) {
    return eval_fail(cx, "pass grad puts in what computes it");
}

/* Evaluates the body without intermediate rounding. */
Status eval_call(EvalCx *cx) {
    const Type *types[MAX_FN_OPERANDS];
    const Node *n = cx->n;
    Diag d = {0};
    for (int k = 0; k < n->nin; k++)
        types[k] = cx->in[k] ? type_get(cx->in[k]->type) : NULL;
    const FnInstance *x = node_info(n)->call->instance(n, types);
    if (x->status != OK) return eval_fail(cx, "%s", x->msg);
    Evaluator *e = eval_new(x->g, cx->a, EVAL_EXACT);
    for (int k = 0; k < n->nin; k++)
        if (cx->in[k]) eval_bind(e, x->in[k], cx->in[k]);
    Status s = eval_run(e, &d);
    if (s != OK) eval_fail(cx, "%s", d.text.data);
    sb_free(&d.text);
    for (int k = 0; k < n->nout && s == OK; k++) {
        if (!e->value[x->out[k].i]) s = eval_load(e, &d, x->out[k]);
        assign(cx->out[k], e->value[x->out[k].i]);
    }
    return s;
}
