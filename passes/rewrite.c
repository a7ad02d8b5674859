/* SPDX-License-Identifier: Apache-2.0 */
/* rewrite.c: the walk of rewrite.h. */
#include "passes/rewrite.h"

#include "ir/fn/fn.h"

#include <string.h>

static ValueId mapped(const Rewriter *rw, ValueId v) {
    while (v.i < rw->limit && rw->map[v.i].i) v = rw->map[v.i];
    return v;
}

/* The readers of `old` now read `built`, which gets their uses. */
static void take_uses(Rewriter *rw, ValueId old, ValueId built) {
    if (built.i < rw->limit) return;
    while (rw->fresh.len <= (int)(built.i - rw->limit))
        vec_push(rw->scratch, &rw->fresh, 0);
    rw->fresh.data[built.i - rw->limit] += uses_of(rw, old);
}

/* Applies the rule to one node; true if every result has a replacement. */
static bool try_rule(Rewriter *rw, RewriteRule *rule, NodeId id,
                     ValueId *with) {
    const Node *n = node_get(rw->g, id);
    memset(with, 0, (size_t)n->nout * sizeof *with);
    rw->b.flags = n->flags;
    rw->b.loc = n->loc;
    if (!rule(rw, id, with)) return false;
    rw->changes++;
    bool all = true;
    n = node_get(rw->g, id);
    for (int i = 0; i < n->nout; i++) {
        if (!with[i].i)
            all = false;
        else if (with[i].i != n->out[i].i) {
            ASSERT(value_get(rw->g, with[i])->type.i ==
                   value_get(rw->g, n->out[i])->type.i);
            rw->map[n->out[i].i] = with[i];
            take_uses(rw, n->out[i], with[i]);
        }
    }
    return all;
}

int rewrite_graph(Graph *g, Arena *scratch, RewriteRule *rule, void *user) {
    Rewriter rw = {.g = g,
                   .b = {.g = g},
                   .scratch = scratch,
                   .limit = (uint32_t)g->values.len,
                   .user = user};
    rw.uses = graph_use_counts(g, scratch);
    rw.map = NEW_ARRAY(scratch, ValueId, rw.limit);
    int n, most = 0;
    NodeId *old = order_take(g, scratch, &n);
    for (int i = 0; i < n; i++) {
        int nout = node_get(g, old[i])->nout;
        if (nout > most) most = nout;
    }
    ValueId *with = NEW_ARRAY(scratch, ValueId, most);
    for (int i = 0; i < n; i++) {
        const Node *x = node_get(g, old[i]);
        for (int k = 0; k < x->nin; k++) x->in[k] = mapped(&rw, x->in[k]);
        if (!try_rule(&rw, rule, old[i], with))
            vec_push(g->arena, &g->order, old[i]);
    }
    for (int i = 0; graph_root(g, i); i++)
        *graph_root(g, i) = mapped(&rw, *graph_root(g, i));
    return rw.changes;
}

NodeId *order_take(Graph *g, Arena *scratch, int *n) {
    *n = g->order.len;
    g->order.len = 0;
    return arena_dup(scratch, g->order.data, (size_t)*n * sizeof(NodeId));
}

bool *needed_by(const Graph *g, Arena *scratch, const ValueId *root, int n) {
    bool *needed = NEW_ARRAY(scratch, bool, g->values.len);
    for (int i = 0; i < n; i++) needed[root[i].i] = true;
    for (int i = g->order.len - 1; i >= 0; i--) {
        const Node *x = node_at(g, i);
        bool any = false;
        for (int k = 0; k < x->nout; k++) any |= needed[x->out[k].i];
        for (int k = 0; any && k < x->nin; k++) needed[x->in[k].i] = true;
    }
    needed[0] = false;
    return needed;
}

int uses_of(const Rewriter *rw, ValueId v) {
    if (v.i < rw->limit) return rw->uses[v.i];
    int at = (int)(v.i - rw->limit);
    return at < rw->fresh.len ? rw->fresh.data[at] : 0;
}

const Node *def_of(const Graph *g, ValueId v, OpCode op) {
    if (!v.i) return NULL;
    const Value *val = value_get(g, v);
    if (val->kind != VK_RESULT || val->held) return NULL;
    const Node *n = node_get(g, val->def);
    OpKind kind = op_info[op].kind;
    bool moves = kind == KIND_VIEW || kind == KIND_MOVE;
    if (n->op != op || (moves && value_dtype(g, n->in[0]) != value_dtype(g, v)))
        return NULL;
    return n;
}

bool value_number(const Graph *g, ValueId v, double *c) {
    const Node *full = def_of(g, v, OP_FULL);
    if (!full) return value_is_splat(g, v, c);
    *c = attr_float(full, AK_value);
    return true;
}

bool is_number(const Graph *g, ValueId v, double c) {
    double x;
    return value_number(g, v, &x) && x == c;
}

void rewrite_take_name(Graph *g, ValueId old, ValueId new_value) {
    Str a = value_get(g, old)->name, b = value_get(g, new_value)->name;
    if (value_get(g, new_value)->kind != VK_RESULT) return;
    graph_rename(g, old, b);
    graph_rename(g, new_value, a);
}

const Node *call_of(const Graph *g, ValueId v, const char *name) {
    const Node *n = def_of(g, v, OP_CALL);
    return n && is_call(n, name) ? n : NULL;
}

void var_narrow(Module *m, int var, DType d) {
    Var *v = &m->vars.data[var];
    const Tensor *wide = v->init;
    v->type = type_with_dtype(v->type, d);
    if (wide) {
        v->init_text = NULL;
        Tensor *t = tensor_new(m->arena, v->type);
        for (int64_t i = type_count(type_get(v->type)); i-- > 0;)
            tensor_set(t, i, tensor_get(wide, i));
        v->init = t;
    }
    for (int i = 0; i < m->graphs.len; i++) {
        ValueId x = graph_find_var(m->graphs.data[i], var);
        if (x.i) value_get(m->graphs.data[i], x)->type = v->type;
    }
}

void reads_begin(ReadWalk *w, Graph *g, Arena *scratch, ReadVar *read,
                 const void *user) {
    *w = (ReadWalk){.b = {.g = g}, .limit = (uint32_t)g->values.len};
    w->map = NEW_ARRAY(scratch, ValueId, w->limit);
    w->old = order_take(g, scratch, &w->n);
    for (int i = 0; i < g->module->vars.len; i++) {
        ValueId v = graph_find_var(g, i);
        if (is_value(v) && v.i < w->limit) w->map[v.i] = read(&w->b, i, user);
    }
}

static ValueId read_as(const ReadWalk *w, ValueId v) {
    return v.i < w->limit && w->map[v.i].i ? w->map[v.i] : v;
}

void reads_keep(ReadWalk *w, NodeId id) {
    Graph *g = w->b.g;
    Node *n = node_get(g, id);
    for (int k = 0; k < n->nin; k++) n->in[k] = read_as(w, n->in[k]);
    vec_push(g->arena, &g->order, id);
}

void reads_end(const ReadWalk *w) {
    for (int i = 0; graph_root(w->b.g, i); i++)
        *graph_root(w->b.g, i) = read_as(w, *graph_root(w->b.g, i));
}

static ValueId read_wide(Builder *b, int var, const void *user) {
    const bool *narrow = user;
    return narrow[var] ? b_cast(b, graph_find_var(b->g, var), DT_F32)
                       : NO_VALUE;
}

void vars_narrow(Module *m, const bool *narrow, DType d, Arena *scratch) {
    for (int i = 0; i < m->vars.len; i++)
        if (narrow[i]) var_narrow(m, i, d);
    for (int i = 0; i < m->graphs.len; i++) {
        ReadWalk w;
        reads_begin(&w, m->graphs.data[i], scratch, read_wide, narrow);
        for (int k = 0; k < w.n; k++) reads_keep(&w, w.old[k]);
        reads_end(&w);
    }
}
