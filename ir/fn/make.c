/* SPDX-License-Identifier: Apache-2.0 */
/* make.c: makes the nodes for calls and operators of a body.

   Arithmetic is wide: a node that rounds stores fp32 (fp64 if a floating
   operand of the call is fp64), whatever the operands' storage; ops of class
   ANY keep their operand's dtype.  cast(x, D) and a result's declared dtype
   round once: if x is a node without other readers, that node stores D
   itself. */
#include <math.h>
#include <string.h>

#include "ir/eval/evaluate.h"
#include "ir/fn/model.h"
#include "ir/fn/run.h"

/* ---- nodes --------------------------------------------------------------- */

/* The node that a call in a body requests. */
typedef struct Made {
    Node n;
    const OpInfo *info;
    Attr attrs[MAX_OP_ATTRS]; /* n.attrs while it is being built */
    DType dtype;              /* asked for; NUM_DTYPES: the type rule decides */
    Type gen;  /* type of a generator; rank -1: not a generator */
    Str scope; /* of a layer */
    bool list; /* results form one list, however many there are */
} Made;

static Made made_new(OpCode op, const Fn *fn) {
    return (Made){.n = {.op = fn ? OP_CALL : op, .fn = fn, .nout = 1},
                  .info = fn ? &fn->info : &op_info[op],
                  .dtype = NUM_DTYPES,
                  .gen = type_by_rule()};
}

/* The dtype of a result whose rule gives d. */
static DType stored(const Run *r, const Made *m, DType d) {
    OpKind kind = m->info->kind;
    if (m->dtype != NUM_DTYPES) return m->dtype;
    if (!dtype_is_float(d) || m->info->amp == AMP_ANY || kind == KIND_MOVE ||
        kind == KIND_VIEW || kind == KIND_GEN)
        return d;
    return r->wide;
}

/* Expands the body of an inner function in place. */
static Status expand_call(Run *r, const Expr *at, const Made *m,
                          const DType *want, ValueId *out) {
    char msg[MSG_TEXT];
    Run inner = {.depth = r->depth + 1, .work = r->work};
    FnCall call = fn_call(&m->n);
    const char *name = m->info->text;
    call.want = want;
    call.flat = r->call->flat;
    if (call.fn->layer) inner.model = r->model;
    if (inner.model) inner.scope = model_call_scope(r, call.fn, m->scope);
    if (inner.depth > MAX_CALLS) return run_fail(r, at, "calls nest too deep");
    Status s = run_start(&inner, &call, r->b, msg);
    if (s == OK) s = run_block(&inner, &call.fn->body.block);
    if (s == OK) s = run_results(&inner, out);
    arena_free(inner.a);
    if (s == OK) return OK;
    if (!inner.model || r->model->failed.len <= 1)
        return run_fail(r, at, "%s: %s", name, msg);
    return run_fail(r, at, "%s", msg); /* the trace contains the names */
}

/* Calls a layer: its body, or its file, makes nodes in the model. */
static Status expand_layer(Run *r, const Expr *at, const Made *m, Val *out) {
    const OpInfo *info = m->info;
    int n = m->n.nout;
    ValueId *made = NEW_ARRAY(r->a, ValueId, n);
    if (m->n.fn->onnx) {
        TRY(model_layer(r, at, m->n.fn, model_call_scope(r, m->n.fn, m->scope),
                        m->n.in, m->n.nin, made, n));
    } else {
        if (m->n.nin < info->in_min || m->n.nin > info->in_max)
            return run_fail(r, at, "%s takes %d to %d operands, found %d",
                            info->text, info->in_min, info->in_max, m->n.nin);
        if (n < info->out_min || n > info->out_max)
            return run_fail(r, at, "%s gives %d to %d results", info->text,
                            info->out_min, info->out_max);
        TRY(expand_call(r, at, m, NULL, made));
    }
    *out = n == 1 ? val_tensor(made[0]) : val_list(r, made, n);
    return OK;
}

/* Sets the source location of nodes made from now on. */
static void set_place(Run *r, const Expr *at) {
    Loc *loc = &r->b->loc;
    if (r->fn->file == r->model->file)
        *loc = (Loc){.file = r->fn->file, .line = at->line, .col = at->col};
    loc->amp = r->model->amp;
    loc->region = r->model->region;
}

static Status make(Run *r, const Expr *at, Made *m, Val *out) {
    char msg[MSG_TEXT];
    NodeId id;
    Graph *g = r->b->g;
    int nout = m->n.nout;
    Type *given = NEW_ARRAY(r->a, Type, nout);
    TypeId *types = NEW_ARRAY(r->a, TypeId, nout);
    ValueId *made = NEW_ARRAY(r->a, ValueId, nout);
    DType *want = NEW_ARRAY(r->a, DType, nout);
    m->n.attrs = m->attrs;
    if (r->model) set_place(r, at);
    for (int i = 0; i < nout; i++) {
        given[i] = type_by_rule();
        if (m->gen.rank >= 0) given[i] = m->gen;
        if (m->dtype != NUM_DTYPES) given[i].dtype = m->dtype;
    }
    if (canonical_attrs(g, &m->n, given, msg) ||
        infer_types(g, &m->n, given, types, msg))
        return run_fail(r, at, "%s: %s", m->info->text, msg);
    for (int i = 0; i < nout; i++)
        given[i].dtype = want[i] = stored(r, m, type_get(types[i])->dtype);
    for (int i = 0; i < m->n.nattr; i++) {
        const Attr *a = &m->n.attrs[i];
        if (attr_get(a->key)->kind == ATTR_FLOAT &&
            !dtype_can_hold(r->wide, a->u.f))
            return run_fail(r, at, "%s: %s=%g is beyond %s", m->info->text,
                            attr_get(a->key)->text, a->u.f,
                            dtype_info[r->wide].text);
    }
    if (m->n.fn && r->call->flat) {
        TRY(expand_call(r, at, m, want, made));
    } else {
        if (node_make(r->b, &m->n, given, NULL, &id, msg))
            return run_fail(r, at, "%s: %s", m->info->text, msg);
        for (int i = 0; i < nout; i++) made[i] = node_get(g, id)->out[i];
    }
    *out =
        nout == 1 && !m->list ? val_tensor(made[0]) : val_list(r, made, nout);
    out->typed = m->dtype != NUM_DTYPES;
    return OK;
}

Status run_want_number(Run *r, const Expr *at, const Val *v, DType d,
                       double *out) {
    *out = val_number(v);
    if (dtype_can_hold(d, *out)) return OK;
    return run_fail(r, at, "%g is beyond %s", *out, dtype_info[d].text);
}

Status run_scalar(Run *r, const Expr *at, const Val *v, DType d, ValueId *out) {
    double x;
    TRY(run_want_number(r, at, v, d, &x));
    *out = graph_scalar(r->b->g, d, x);
    return OK;
}

/* A number as a scalar for use with a tensor of dtype d. */
static Status scalar_for(Run *r, const Expr *at, const Val *v, DType d,
                         ValueId *out) {
    Graph *g = r->b->g;
    int64_t i;
    if (dtype_is_float(d)) return run_scalar(r, at, v, r->wide, out);
    TRY(run_want_element(r, at, v, d, &i));
    *out = graph_scalar_int(g, d, i);
    return OK;
}

/* Operands: a number becomes what the function expects; in an op it takes
   the dtype of the tensors beside it (the condition of `where` does not
   count). */
static Status take_operands(Run *r, const Expr *at, const Val *v, int n,
                            Made *m) {
    DType beside = DT_F32;
    int skip = m->n.op == OP_WHERE && !m->n.fn;
    bool any = false;
    m->n.in = NEW_ARRAY(r->a, ValueId, n + 1);
    for (int i = skip; i < n; i++)
        if (v[i].kind == V_TENSOR && !any) {
            beside = val_type(r, &v[i])->dtype;
            any = true;
        }
    for (int i = 0; i < n; i++) {
        m->n.in[i] = v[i].t;
        bool real = m->n.fn && i < m->n.fn->operands.len &&
                    m->n.fn->operands.data[i].kind == FO_FLOAT;
        DType d = i < skip ? DT_BOOL : real ? DT_F32 : beside;
        if (val_is_number(&v[i]))
            TRY(scalar_for(r, at, &v[i], d, &m->n.in[i]));
        else if (v[i].kind != V_TENSOR && v[i].kind != V_NONE)
            return run_wants(r, at, "a tensor or a number", &v[i]);
    }
    m->n.nin = n;
    return OK;
}

Status make_elementwise(Run *r, const Expr *at, OpCode op, const Val *v, int n,
                        Val *out) {
    Made m = made_new(op, NULL);
    TRY(take_operands(r, at, v, n, &m));
    return make(r, at, &m, out);
}

ValueId make_rounded(Run *r, ValueId v, DType d) {
    if (d == NUM_DTYPES || value_dtype(r->b->g, v) == d) return v;
    if (node_store(r->b->g, r->first, r->start, v, d)) return v;
    return b_cast(r->b, v, d);
}

ValueId make_cast(Run *r, ValueId v, DType d) {
    bool named = r->model;
    for (int i = 0; i < r->env.len; i++)
        named |= same_value(r->env.data[i].val.t, v);
    return named ? b_cast(r->b, v, d) : make_rounded(r, v, d);
}

/* ---- calls --------------------------------------------------------------- */

Status make_attr(Run *r, const Expr *at, AttrKey key, const Val *v, Attr *out) {
    int64_t *ints;
    out->key = key;
    switch (attr_get(key)->kind) {
    case ATTR_INT: return run_want_int(r, at, v, &out->u.i);
    case ATTR_FLOAT:
        if (!val_is_number(v)) return run_wants(r, at, "a number", v);
        out->u.f = val_number(v);
        return OK;
    case ATTR_STR:
        if (v->kind != V_STR) return run_wants(r, at, "text", v);
        out->u.s = v->s;
        return OK;
    case ATTR_INTS:
        TRY(run_want_ints(r, at, v, &ints, &out->u.ints.n));
        out->u.ints.v = ints;
        return OK;
    }
    return OK;
}

static Status no_attribute(Run *r, const KeyArg *k, const OpInfo *info) {
    char there[120] = "";
    size_t n = 0;
    for (int i = 0; i < info->nattr && n < sizeof there; i++)
        n += (size_t)snprintf(there + n, sizeof there - n, "%s%s",
                              i ? ", " : "; there are ",
                              attr_get(info->attrs[i])->text);
    return run_fail(r, k->at, "%s has no attribute '%.40s'%s", info->text,
                    k->name, there);
}

/* dtype= of any op; shape= of a generator, which has no such attribute. */
static Status take_keys(Run *r, const Expr *e, Made *m) {
    for (int i = 0; i < e->keys.len; i++) {
        const KeyArg *k = &e->keys.data[i];
        Val v;
        int a = 0;
        TRY(run_eval(r, k->value, &v));
        if (v.kind == V_NONE) continue;
        while (a < m->info->nattr &&
               strcmp(attr_get(m->info->attrs[a])->text, k->name) != 0)
            a++;
        if (a < m->info->nattr) {
            TRY(make_attr(r, k->value, m->info->attrs[a], &v,
                          &m->attrs[m->n.nattr++]));
        } else if (strcmp(k->name, "dtype") == 0) {
            TRY(run_want_dtype(r, k->value, &v, &m->dtype));
        } else if (strcmp(k->name, "shape") == 0 && m->info->kind == KIND_GEN) {
            TRY(run_want_shape(r, k->value, &v, &m->gen));
        } else if (strcmp(k->name, "scope") == 0 && m->n.fn && m->n.fn->layer) {
            if (v.kind != V_STR) return run_wants(r, k->value, "text", &v);
            m->scope = v.s;
        } else {
            return no_attribute(r, k, m->info);
        }
    }
    if (m->info->kind == KIND_GEN &&
        (m->gen.rank < 0 || m->dtype == NUM_DTYPES))
        return run_fail(r, e, "%s needs shape= and dtype=", m->info->text);
    return OK;
}

/* In a rule: passes on the node's attributes that the op also has. */
static void inherit_attrs(const Run *r, const Expr *e, Made *m) {
    for (int i = 0; i < m->info->nattr; i++) {
        Node holder = {.attrs = r->call->attrs, .nattr = r->call->nattr};
        const Attr *a = attr_find(&holder, m->info->attrs[i]);
        bool given = false;
        for (int k = 0; a && k < e->keys.len; k++)
            given |= !strcmp(e->keys.data[k].name, attr_get(a->key)->text);
        if (a && !given) m->attrs[m->n.nattr++] = *a;
    }
}

/* A reduction over no axes returns its operand (sumsq: its square); a value
   of the wanted shape is not reshaped. */
static Status shortcut(Run *r, const Expr *e, const Made *m, bool *done,
                       Val *out) {
    bool given = m->n.nin && is_value(m->n.in[0]);
    const Type *x = given ? value_type(r->b->g, m->n.in[0]) : NULL;
    const Attr *a = NULL;
    *done = false;
    for (int i = 0; i < m->n.nattr; i++)
        if (m->attrs[i].key == AK_shape || m->attrs[i].key == AK_axes)
            a = &m->attrs[i];
    if (m->n.fn || !x || !a) return OK;
    int n = a->u.ints.n;
    size_t bytes = (size_t)n * sizeof(int64_t);
    bool reduce = m->info->kind == KIND_REDUCE && n == 0;
    bool reshape = (m->n.op == OP_RESHAPE || m->n.op == OP_EXPAND) &&
                   n == x->rank &&
                   (n == 0 || memcmp(a->u.ints.v, x->dim, bytes) == 0);
    *done = reduce || reshape;
    *out = val_tensor(m->n.in[0]);
    if (!reduce || m->n.op != OP_REDUCE_SUMSQ) return OK;
    Val square[] = {*out, *out};
    return make_elementwise(r, e, OP_MUL, square, 2, out);
}

/* An op of any number of results has one for each of its sizes, as a list. */
static void count_results(Made *m) {
    for (int i = 0; i < m->n.nattr && m->info->out_max < 0; i++) {
        if (m->attrs[i].key != AK_sizes) continue;
        m->n.nout = m->attrs[i].u.ints.n;
        m->list = true;
    }
}

Status make_call(Run *r, const Expr *e, int nout, const Val *v, int n,
                 Val *out) {
    bool known = n > 0, same;
    Made m = made_new(e->code, e->callee == CALLEE_FN ? e->fn : NULL);
    m.n.nout = nout;
    for (int i = 0; i < n; i++) known &= val_is_number(&v[i]);
    if (known && !m.n.fn && known_op(m.n.op, v, n, out)) return OK;
    TRY(take_operands(r, e, v, n, &m));
    TRY(take_keys(r, e, &m));
    if (r->fn->rule) inherit_attrs(r, e, &m);
    count_results(&m);
    m.n.attrs = m.attrs;
    if (m.n.fn && m.n.fn->layer) return expand_layer(r, e, &m, out);
    TRY(shortcut(r, e, &m, &same, out));
    return same ? OK : make(r, e, &m, out);
}
