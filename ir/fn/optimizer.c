/* SPDX-License-Identifier: Apache-2.0 */
/* optimizer.c: the optimizers that there are, their state, and calls of their
   functions (optimizer.h). */
#include "ir/fn/optimizer.h"

#include <string.h>

#include "ir/fn/run.h"

/* ---- finding ------------------------------------------------------------- */

const Fn *optimizer_find(const Module *m, const char *name) {
    const Fn *f = fn_find(m, name, strlen(name));
    return f && f->optimizer && f->optimizer->update == f ? f : NULL;
}

const char *optimizer_option(const Fn *update) {
    return update->optimizer->role == ROLE_OPTIMIZER ? "--optimizer"
                                                     : "--wrapper";
}

bool optimizer_begins(const Lexer *lx) {
    return lex_is_word(lx, "optimizer") || lex_is_word(lx, "wrapper");
}

const Fn *optimizer_next(const Fn *f, OptimizerRole role) {
    bool found = !f;
    for (int i = 0; i < fn_std_count(); i++) {
        const Fn *x = fn_std_at(i);
        if (found && x->optimizer && x->optimizer->update == x &&
            x->optimizer->role == role)
            return x;
        found |= x == f;
    }
    return NULL;
}

const Fn *optimizer_part(const Optimizer *o, int i) {
    if (i == 0) return o->once;
    if (i <= o->totals.len) return o->totals.data[i - 1];
    return i == o->totals.len + 1 ? o->update : NULL;
}

/* Two objectives may read the same file: m has its functions once. */
bool fn_keep(Module *m, const Fn *f) {
    for (int i = 0; i < m->fns.len; i++) {
        const Fn *x = m->fns.data[i];
        if (x->info.text == f->info.text)
            return x == f ||
                   (x->size == f->size && !memcmp(x->text, f->text, f->size));
    }
    vec_push(m->arena, &m->fns, (Fn *)f);
    return true;
}

Str optimizer_keep(Module *m, const Fn *update) {
    const Optimizer *o = update->optimizer;
    const Fn *f;
    for (int i = 0; i < o->helpers.len; i++)
        if (!fn_keep(m, o->helpers.data[i]))
            return o->helpers.data[i]->info.text;
    for (int i = 0; (f = optimizer_part(o, i)); i++)
        if (!fn_keep(m, f)) return f->info.text;
    return NULL;
}

Str optimizer_shares_state(const Optimizer *a, const Optimizer *b) {
    for (int i = 0; i < a->states.len; i++)
        for (int k = 0; k < b->states.len; k++)
            if (a->states.data[i].name == b->states.data[k].name)
                return a->states.data[i].name;
    return NULL;
}

bool optimizer_evaluates(const Optimizer *o) {
    bool any = false;
    for (int i = 0; i < o->states.len; i++)
        any |= !strcmp(o->states.data[i].name, OPTIMIZER_EVALUATED);
    return any;
}

/* ---- state --------------------------------------------------------------- */

static Status state_type(Run *r, const OptimizerState *s, ValueId p,
                         TypeId *out) {
    const Type *t = value_type(r->b->g, p);
    bool there = true;
    Val v;
    Type own;
    *out = (TypeId){0};
    if (s->when) {
        TRY(run_eval(r, s->when, &v));
        TRY(run_want_bool(r, s->when, &v, &there));
    }
    if (!there) return OK;
    if (s->shape) {
        TRY(run_eval(r, s->shape, &v));
        TRY(run_want_shape(r, s->shape, &v, &own));
        t = &own;
    }
    *out = type_make(s->dtype, t->rank, t->dim);
    return OK;
}

Status optimizer_types(const Optimizer *o, Graph *g, ValueId p,
                       const Attr *attrs, int nattr, TypeId *types, char *msg) {
    Run r = {0};
    Builder b = {.g = g};
    ValueId in[] = {p, p};
    FnCall call = {
        .fn = o->update, .in = in, .nin = 2, .attrs = attrs, .nattr = nattr};
    Status s = run_start(&r, &call, &b, msg);
    for (int i = 0; i < o->states.len && s == OK; i++)
        s = state_type(&r, &o->states.data[i], p, &types[i]);
    arena_free(r.a);
    return s;
}

static const FnInstance *instance_of(const Graph *g, const Node *n) {
    const Type *types[MAX_FN_OPERANDS] = {NULL};
    for (int i = 0; i < n->nin; i++)
        if (is_value(n->in[i])) types[i] = value_type(g, n->in[i]);
    return fn_instance(n, types);
}

static bool reads(const FnInstance *x, int nout, ValueId v) {
    bool any = false;
    for (int i = 0; i < nout; i++) any |= same_value(x->out[i], v);
    for (int i = 0; i < x->g->order.len; i++) {
        const Node *n = node_at(x->g, i);
        for (int k = 0; k < n->nin; k++) any |= same_value(n->in[k], v);
    }
    return any;
}

/* True if the body, or a function that it calls, has an op grad. */
static bool asks_for_gradients(const FnInstance *x) {
    bool any = false;
    for (int i = 0; i < x->g->order.len && !any; i++) {
        const Node *n = node_at(x->g, i);
        const FnInstance *of = n->fn ? instance_of(x->g, n) : NULL;
        any = n->op == OP_GRAD ||
              (of && of->status == OK && asks_for_gradients(of));
    }
    return any;
}

/* A zero replaces each scalar that the body does not read here. */
static Status drop_unread(Builder *b, Node *n, char *msg) {
    const Optimizer *o = n->fn->optimizer;
    const FnInstance *x = instance_of(b->g, n);
    if (x->status != OK) {
        snprintf(msg, MSG_TEXT, "%s", x->msg);
        return x->status;
    }
    if (asks_for_gradients(x)) {
        snprintf(msg, MSG_TEXT,
                 "grad(..) works in models alone; an update "
                 "reads the gradient that is its operand");
        return ERR_USER;
    }
    for (int i = 3; i < n->nin - o->states.len; i++)
        if (!reads(x, n->nout, x->in[i])) n->in[i] = b_scalar(b, DT_F32, 0);
    return OK;
}

Status optimizer_call(Builder *b, const Fn *fn, ValueId *in, int nin,
                      const Attr *attrs, int nattr, const TypeId *want,
                      NodeId *out, char *msg) {
    Type given[MAX_FN_OPERANDS];
    Node n = {.op = OP_CALL,
              .fn = fn,
              .in = in,
              .nin = nin,
              .attrs = attrs,
              .nattr = nattr,
              .nout = fn->results.len};
    for (int i = 0; i < n.nout; i++) given[i] = type_by_rule();
    if (fn->optimizer && fn != fn->optimizer->once)
        TRY(drop_unread(b, &n, msg));
    TRY(node_make(b, &n, given, NULL, out, msg));
    for (int i = 0; want && i < n.nout; i++) {
        const Type *x = value_type(b->g, node_get(b->g, *out)->out[i]);
        if (!want[i].i || shape_equal(type_get(want[i]), x)) continue;
        bool kept = type_count(x) == type_count(type_get(want[i]));
        snprintf(msg, MSG_TEXT, "'%s' becomes %s, was %s%s (%s:%d)",
                 fn->results.data[i].name, TXT(x), TXT(type_get(want[i])),
                 kept ? "; reductions keep dimensions of 1 unless keepdims=0"
                      : "",
                 fn->file, fn->line);
        return ERR_USER;
    }
    return OK;
}

/* Whether two bodies are the same steps, each for one element, but for sums of
   all elements. */
static bool same_steps(const Graph *x, const Graph *y) {
    if (x->order.len != y->order.len) return false;
    for (int i = 0; i < x->order.len; i++) {
        const Node *a = node_at(x, i), *b = node_at(y, i);
        if (a->op != b->op || a->fn != b->fn) return false;
        if (a->fn == fn_std("total_of")) continue;
        if (!a->fn && node_kind(a) != KIND_ELEM) return false;
        if (a->fn && !same_steps(instance_of(x, a)->g, instance_of(y, b)->g))
            return false;
    }
    return true;
}

static bool part_can_reshape(const Fn *fn, const Attr *attrs, int nattr,
                             const TypeId *types, int n, TypeId whole,
                             TypeId part) {
    const Type *as[2][MAX_FN_OPERANDS] = {{NULL}};
    const FnInstance *body[2];
    ValueId in[MAX_FN_OPERANDS] = {{0}};
    for (int k = 0; k < 2; k++) {
        Node call = {.op = OP_CALL,
                     .fn = fn,
                     .in = in,
                     .nin = n,
                     .attrs = attrs,
                     .nattr = nattr,
                     .nout = fn->results.len};
        for (int i = 0; i < n; i++) {
            bool moves = k && types[i].i &&
                         shape_equal(type_get(types[i]), type_get(whole));
            TypeId t = moves ? type_with_dtype(part, type_get(types[i])->dtype)
                             : types[i];
            as[k][i] = t.i ? type_get(t) : NULL;
        }
        body[k] = fn_instance(&call, as[k]);
        if (body[k]->status != OK) return false;
    }
    return same_steps(body[0]->g, body[1]->g);
}

bool optimizer_can_reshape(const Fn *update, const Attr *attrs, int nattr,
                           const TypeId *types, int n, TypeId whole,
                           TypeId part) {
    const Optimizer *o = update->optimizer;
    int nstate = o->states.len, first = n - nstate - o->totals.len;
    bool can = true;
    for (int i = 0; i < nstate; i++) can &= !o->states.data[i].shape;
    for (int k = 0; k < o->totals.len && can; k++) {
        TypeId of[MAX_FN_OPERANDS];
        int at = first + k;
        memcpy(of, types, (size_t)at * sizeof *of);
        memcpy(of + at, types + n - nstate, (size_t)nstate * sizeof *of);
        can = part_can_reshape(o->totals.data[k], attrs, nattr, of, at + nstate,
                               whole, part);
    }
    return can && part_can_reshape(update, attrs, nattr, types, n, whole, part);
}

bool call_is_elementwise(const Graph *g, const Node *call) {
    const FnInstance *x = instance_of(g, call);
    for (int i = 0; i < x->g->order.len; i++) {
        const Node *n = node_at(x->g, i);
        if (n->fn ? !call_is_elementwise(x->g, n) : node_kind(n) != KIND_ELEM)
            return false;
    }
    return true;
}

bool optimizer_can_share(const Optimizer *o, const Graph *g, NodeId update) {
    const Node *n = node_get(g, update);
    for (int i = 0; i < o->states.len; i++)
        if (o->states.data[i].shape) return false;
    return !o->totals.len && call_is_elementwise(g, n);
}
