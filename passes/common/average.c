/* SPDX-License-Identifier: Apache-2.0 */
/* average.c: see average.h. */
#include "passes/common/average.h"

#include "ir/fn/fn.h"
#include "passes/rewrite.h"

static ValueId average_call(Builder *b, const char *fn, const ValueId *in,
                            int nin, const Attr *attrs, int nattr) {
    NodeId id = build_call(b, fn_std(fn), in, nin, attrs, nattr, 1, NULL);
    return node_get(b->g, id)->out[0];
}

ValueId average_share(Builder *b, const Options *o, ValueId number) {
    Attr attrs[AVERAGE_KEYS];
    const AverageSpec *a = &o->average;
    int n = 0;
    if (!a->fn) return NO_VALUE;
    for (; n < AVERAGE_KEYS && a->keys[n].name; n++)
        attrs[n] = attr_named_f(a->keys[n].name, a->keys[n].value);
    return b_cast(b, average_call(b, a->fn, &number, 1, attrs, n), DT_F32);
}

void average_write(Builder *b, const Options *o, ValueId var, ValueId x,
                   ValueId share, ValueId ok) {
    Graph *g = b->g;
    const Var v = *value_var(g, var);
    if (!o->average.fn || !dtype_is_float(type_get(v.type)->dtype)) return;
    TypeId type = type_with_dtype(v.type, DT_F32);
    ValueId mean =
        graph_var(g, module_var(g->module, VAR_STATE, average_name(v.name),
                                type, NULL, 0));
    ValueId kept = b_cast(b, x, type_get(v.type)->dtype);
    ValueId in[] = {mean, b_cast(b, kept, DT_F32), share, ok};
    graph_write(g, mean, average_call(b, "averaged", in, 4, NULL, 0));
}

void average_buffers(Builder *b, const Options *o, const Graph *train,
                     ValueId share, ValueId ok) {
    if (!o->average.fn || !o->average.buffers) return;
    for (int i = 0, n = train->writes.len; i < n; i++) {
        Write w = train->writes.data[i];
        if (value_var(train, w.var)->kind != VAR_BUFFER) continue;
        int v = value_get(train, w.var)->var;
        bool here = b->g == train;
        average_write(b, o, here ? w.var : graph_var(b->g, v),
                      here ? w.value : graph_var(b->g, v), share, ok);
    }
}

/* ---- reading ------------------------------------------------------------- */

/* True if evaluation reads averages: averages are enabled, and the objective
   has made a step. `evaluated` needs the step alone. */
static ValueId is_read(Builder *b, Str objective, bool average) {
    Graph *g = b->g;
    ValueId zero = b_scalar(b, DT_F64, 0);
    int v = module_own_var(g->module, OWN_STEP, objective, 0);
    ValueId steps = b_cast(b, graph_var(g, v), DT_F64);
    ValueId there = b2(b, OP_GREATER, steps, zero, DT_DEFAULT);
    if (!average) return there;
    ValueId asked = graph_own_var(g, OWN_AVERAGED, 0);
    return b2(b, OP_AND, b2(b, OP_GREATER, asked, zero, DT_DEFAULT), there,
              DT_DEFAULT);
}

/* What `train` writes for evaluation, in the place of its variables. */
static void read_in(Builder *b, const Graph *train, ValueId *map) {
    Graph *g = b->g;
    ValueId when = NO_VALUE;
    for (int i = 0; i < train->writes.len; i++) {
        int mean = value_get(train, train->writes.data[i].var)->var, of;
        Str name = g->module->vars.data[mean].name;
        if (!is_average(name) && !is_evaluated(name)) continue;
        family_of(g->module, name, &of);
        ValueId x = graph_find_var(g, of);
        if (!is_value(x)) continue;
        if (!is_value(when))
            when = is_read(b, train->objective, is_average(name));
        ValueId m = b_cast(b, graph_var(g, mean), value_dtype(g, x));
        map[x.i] = b_where(b, when, m, x);
    }
}

static void read_program(Graph *g, Arena *scratch) {
    const Module *m = g->module;
    Builder b = {.g = g};
    uint32_t limit = (uint32_t)g->values.len;
    ValueId *map = NEW_ARRAY(scratch, ValueId, limit);
    int n;
    NodeId *old = order_take(g, scratch, &n);
    for (int i = 0; i < m->graphs.len; i++)
        if (m->graphs.data[i]->program == PROGRAM_TRAIN &&
            !*m->graphs.data[i]->size)
            read_in(&b, m->graphs.data[i], map);
    for (int i = 0; i < n; i++) {
        const Node *x = node_get(g, old[i]);
        for (int k = 0; k < x->nin; k++)
            if (x->in[k].i < limit && map[x->in[k].i].i)
                x->in[k] = map[x->in[k].i];
        vec_push(g->arena, &g->order, old[i]);
    }
    for (int i = 0; i < g->outputs.len; i++) {
        ValueId *v = &g->outputs.data[i].value;
        if (v->i < limit && map[v->i].i) *v = map[v->i];
    }
}

void average_read(Module *m, Arena *scratch) {
    bool any = false;
    for (int i = 0; i < m->vars.len; i++)
        any |= is_average(m->vars.data[i].name) ||
               is_evaluated(m->vars.data[i].name);
    for (int i = 0; i < m->graphs.len && any; i++) {
        ProgramKind p = m->graphs.data[i]->program;
        if (p == PROGRAM_EVAL || p == PROGRAM_PREDICT)
            read_program(m->graphs.data[i], scratch);
    }
}
