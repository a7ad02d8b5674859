/* SPDX-License-Identifier: Apache-2.0 */
/* changed_graph.c: see changed_graph.h. */
#include "tests/support/changed_graph.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "ir/fn/fn.h"

typedef struct Remake {
    RandomBelow *below;
    const Graph *from;
    Graph *g;
    ValueId *now;          /* the new value, by ValueId.i of `from` */
    int64_t size, instead; /* axes of this size become `instead` everywhere;
                              size 0: none */
    size_t edits, steps;   /* number of edits, and of steps that they take */
} Remake;

static int64_t plus(int64_t a, int64_t b) {
    return (int64_t)((uint64_t)a + (uint64_t)b);
}

/* ---- sizes --------------------------------------------------------------- */

static int64_t resized(const Remake *r, int64_t n) {
    return r->size && n == r->size ? r->instead : n;
}

static TypeId retyped(const Remake *r, TypeId t) {
    const Type *x = type_get(t);
    int64_t dim[MAX_RANK];
    for (int i = 0; i < x->rank; i++) dim[i] = resized(r, x->dim[i]);
    TypeId made = type_make(x->dtype, x->rank, dim);
    return made.i ? made : t; /* too large */
}

static void choose_size(Remake *r) {
    const Graph *g = r->from;
    if (r->below(4) || !g->inputs.len) return;
    ValueId v = g->inputs.data[r->below((size_t)g->inputs.len)];
    const Type *t = value_type(g, v);
    if (!t->rank) return;
    r->size = t->dim[r->below((size_t)t->rank)];
    const int64_t others[] = {1,           2,           3,          5,
                              r->size - 1, r->size + 1, 2 * r->size};
    r->instead = others[r->below(sizeof others / sizeof *others)];
    if (r->instead <= 0) r->size = 0;
}

/* ---- what has a value before the first node ------------------------------ */

static ValueId remake_var(Remake *r, VarKind kind, Str name, TypeId t,
                          double fill) {
    return graph_var(r->g, module_var(r->g->module, kind, name, t, NULL, fill));
}

/* An input may become a parameter. */
static void remake_input(Remake *r, ValueId v) {
    const Value *x = value_get(r->from, v);
    TypeId t = retyped(r, x->type);
    bool trains = type_get(t)->dtype == DT_F32 && r->below(12) == 0 &&
                  module_find_var(r->g->module, x->name) < 0;
    r->now[v.i] = trains ? remake_var(r, VAR_PARAM, x->name, t, 0.5)
                         : graph_input(r->g, x->name, t);
}

/* All elements or one of them may change. */
static void remake_const(Remake *r, ValueId v) {
    const Value *x = value_get(r->from, v);
    TypeId t = retyped(r, x->type);
    const Tensor *was = x->data;
    int64_t from = type_count(type_get(was->type));
    int64_t n = from ? type_count(type_get(t)) : 0;
    int64_t edit = r->below(12) ? 0 : (int64_t)r->below(5) - 2;
    int64_t only = r->below(2) ? -1 : (int64_t)r->below((size_t)n);
    Tensor *is = tensor_new(r->g->arena, t);
    for (int64_t i = 0; i < n; i++) {
        int64_t add = only < 0 || only == i ? edit : 0;
        if (dtype_is_float(type_get(t)->dtype))
            tensor_set(is, i, tensor_get(was, i % from) + (double)add);
        else
            tensor_set_int(is, i, plus(tensor_get_int(was, i % from), add));
    }
    r->now[v.i] = graph_const(r->g, x->name ? x->name : "c", is);
}

static void remake_leaves(Remake *r) {
    const Graph *g = r->from;
    for (int i = 0; i < g->inputs.len; i++) remake_input(r, g->inputs.data[i]);
    for (uint32_t v = 1; v < (uint32_t)g->values.len; v++) {
        const Value *x = &g->values.data[v];
        if (x->kind == VK_VAR) {
            const Var *var = value_var(g, (ValueId){v});
            r->now[v] = remake_var(r, var->kind, var->name,
                                   retyped(r, var->type), var->fill);
        } else if (x->kind == VK_CONST) {
            remake_const(r, (ValueId){v});
        }
    }
}

/* ---- nodes --------------------------------------------------------------- */

/* One of the values made so far, of this type if one exists, else any. */
static ValueId some_value(const Remake *r, TypeId t) {
    size_t n = (size_t)r->g->values.len - 1;
    ValueId any = NO_VALUE;
    for (int tries = 0; tries < 12 && n; tries++) {
        any.i = (uint32_t)(1 + r->below(n));
        if (value_get(r->g, any)->type.i == t.i) return any;
    }
    return any;
}

static int64_t near(const Remake *r, int64_t x) {
    const int64_t others[] = {plus(x, 1), plus(x, -1), 0,           1,
                              2,          -1,          plus(~x, 1), plus(x, x)};
    return others[r->below(sizeof others / sizeof *others)];
}

static void edit_attribute(Remake *r, Attr *a) {
    static const double factors[] = {0.5, 0, 1, -1, 3, INFINITY};
    switch (attr_get(a->key)->kind) {
    case ATTR_INT: a->u.i = near(r, a->u.i); break;
    case ATTR_FLOAT: a->u.f = factors[r->below(6)]; break;
    case ATTR_INTS: {
        size_t n = (size_t)a->u.ints.n;
        int64_t *v = NEW_ARRAY(r->g->arena, int64_t, n + 1);
        if (!n) break;
        memcpy(v, a->u.ints.v, n * sizeof *v);
        size_t i = r->below(n), k = r->below(n);
        int64_t keep = v[i];
        if (r->below(2)) {
            v[i] = v[k];
            v[k] = keep;
        } else {
            v[i] = near(r, keep);
        }
        a->u.ints.v = v;
        break;
    }
    case ATTR_STR: break;
    }
}

static bool one_result(const OpInfo *info) {
    return info->out_min == 1 && info->out_max == 1;
}

/* Another op with as many operands. */
static OpCode other_op(const Remake *r, int nin) {
    for (;;) {
        OpCode op = (OpCode)r->below(NUM_OPS);
        const OpInfo *info = &op_info[op];
        if (op != OP_CALL && one_result(info) && info->in_min <= nin &&
            (info->in_max < 0 || info->in_max >= nin))
            return op;
    }
}

static bool build_any(Remake *r, Callee callee, const Node *like,
                      const ValueId *in, const Attr *attrs, bool given,
                      NodeId *out) {
    Builder b = {.g = r->g, .loc = like->loc};
    Diag d = {0};
    TypeId *types = NEW_ARRAY(r->g->arena, TypeId, like->nout + 1);
    for (int i = 0; i < like->nout; i++)
        types[i] = retyped(r, value_get(r->from, like->out[i])->type);
    Status s = build_checked(&b, &d, callee, in, like->nin, attrs, like->nattr,
                             like->nout, given ? types : NULL, NULL, out);
    sb_free(&d.text);
    return s == OK;
}

static bool now_edit(Remake *r) {
    bool yes = r->edits && r->below(r->steps) < r->edits;
    r->steps -= r->steps > 1;
    r->edits -= yes;
    return yes;
}

/* Inserts a node of one or two values; it may replace the first from now on. */
static void insert_node(Remake *r) {
    ValueId in[2];
    NodeId made;
    int nin = 1 + (int)r->below(2);
    in[0] = some_value(r, (TypeId){0});
    if (!in[0].i) return;
    TypeId t = value_get(r->g, in[0])->type;
    in[1] = some_value(r, t);
    Builder b = {.g = r->g};
    Diag d = {0};
    Status s = build_checked(&b, &d, callee_op(other_op(r, nin)), in, nin, NULL,
                             0, 1, NULL, NULL, &made);
    sb_free(&d.text);
    if (s != OK) return;
    ValueId v = node_get(r->g, made)->out[0];
    for (int i = 1; i < r->from->values.len; i++)
        if (r->now[i].i == in[0].i && value_get(r->g, v)->type.i == t.i &&
            r->below(3))
            r->now[i] = v;
}

static void remake_node(Remake *r, const Node *n) {
    ValueId *in = NEW_ARRAY(r->g->arena, ValueId, n->nin + 1);
    Attr *attrs = NEW_ARRAY(r->g->arena, Attr, n->nattr + 1);
    Node like = *n;
    Callee callee = node_callee(n);
    for (int i = 0; i < n->nin; i++)
        in[i] = n->in[i].i ? r->now[n->in[i].i] : NO_VALUE;
    for (int i = 0; i < n->nattr; i++) {
        attrs[i] = n->attrs[i];
        if (attr_get(attrs[i].key)->kind != ATTR_INTS || !r->size) continue;
        int64_t *v = NEW_ARRAY(r->g->arena, int64_t, attrs[i].u.ints.n + 1);
        for (int k = 0; k < attrs[i].u.ints.n; k++)
            v[k] = resized(r, attrs[i].u.ints.v[k]);
        attrs[i].u.ints.v = v;
    }
    bool drop = false;
    if (now_edit(r)) switch (r->below(7)) {
        case 0:
        case 1:
            if (n->nin) {
                ValueId *x = &in[r->below((size_t)n->nin)];
                if (x->i) *x = some_value(r, value_get(r->g, *x)->type);
            }
            break;
        case 2:
        case 3:
            if (n->nattr) edit_attribute(r, &attrs[r->below((size_t)n->nattr)]);
            break;
        case 4:
            if (n->nout == 1) {
                callee = callee_op(other_op(r, n->nin));
                if (r->below(2)) like.nattr = 0;
            }
            break;
        case 5: drop = true; break;
        default: insert_node(r);
        }
    NodeId made;
    bool ok = !drop && (build_any(r, callee, &like, in, attrs, true, &made) ||
                        build_any(r, callee, &like, in, attrs, false, &made));
    for (int i = 0; i < n->nout; i++) {
        TypeId t = retyped(r, value_get(r->from, n->out[i])->type);
        r->now[n->out[i].i] =
            ok ? node_get(r->g, made)->out[i] : some_value(r, t);
    }
}

/* ---- a graph ------------------------------------------------------------- */

static void remake_ends(Remake *r) {
    const Graph *g = r->from;
    for (int i = 0; i < g->outputs.len; i++) {
        ValueId v = r->now[g->outputs.data[i].value.i];
        if (!r->below(24)) v = some_value(r, (TypeId){0});
        graph_add_output(r->g, g->outputs.data[i].name, v);
    }
    if (!r->below(8))
        graph_add_output(r->g, intern("more"), some_value(r, (TypeId){0}));
    for (int i = 0; i < g->writes.len; i++) {
        ValueId var = r->now[g->writes.data[i].var.i];
        ValueId v = r->now[g->writes.data[i].value.i];
        if (value_get(r->g, v)->type.i == value_get(r->g, var)->type.i)
            graph_write(r->g, var, v);
    }
}

static void remake(Remake *r) {
    choose_size(r);
    r->steps = (size_t)r->from->order.len;
    r->edits = r->below(4);
    remake_leaves(r);
    if (r->g->values.len <= 1) return;
    for (int i = 0; i < r->from->order.len; i++)
        remake_node(r, node_at(r->from, i));
    if (r->from->order.len == 0 || r->below(6) == 0) insert_node(r);
    remake_ends(r);
}

int64_t graph_numbers(const Graph *g) {
    int64_t sum = 0;
    for (int v = 1; v < g->values.len; v++)
        sum += type_count(type_get(g->values.data[v].type));
    return sum;
}

Module *changed_graph(Arena *a, const Graph *from, RandomBelow *below) {
    Module *into = module_new(a, "changed");
    into->fns = from->module->fns;
    Remake r = {.below = below, .from = from};
    r.g = graph_new(into, FORWARD);
    r.now = NEW_ARRAY(a, ValueId, from->values.len);
    remake(&r);
    return r.g->values.len > 1 ? into : NULL;
}
