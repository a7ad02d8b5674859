/* SPDX-License-Identifier: Apache-2.0 */
/* step_update.c: the update of each parameter is one call of the optimizer's
   function (optimizer.h). */
#include "passes/common/average.h"
#include "passes/common/compact.h"
#include "passes/common/step.h"

#include <math.h>
#include <string.h>

/* ---- parameters ---------------------------------------------------------- */

/* Calls one of the optimizer's functions, which may be the user's own. */
static Status call_checked(Step *s, const Fn *fn, ValueId *in, int nin,
                           const Attr *attrs, int nattr, const TypeId *want,
                           const Var *v, NodeId *out) {
    char msg[MSG_TEXT];
    if (optimizer_call(&s->b, fn, in, nin, attrs, nattr, want, out, msg) == OK)
        return OK;
    return fail(s->diag, (Loc){0}, "--optimizer %s, parameter '%s': %s",
                fn->optimizer->update->info.text, v->name, msg);
}

/* The rates of variable v: its own options, else those of the last matching
   --param-group, else the optimizer's. */
static Status rates_of(Step *s, const Var *v, Rates *out) {
    const OptimizerSpec *o = &s->objective->optimizer;
    const double *decay = optimizer_key(o, "weight_decay");
    Rates r = {.weight_decay = decay ? *decay : 0, .lr_scale = v->lr_scale};
    if (!isnan(v->weight_decay)) r.weight_decay = v->weight_decay;
    for (int i = 0; i < s->objective->param_groups.len; i++) {
        const ParamGroup *g = &s->objective->param_groups.data[i];
        if (!glob_layer(g->glob, v->name)) continue;
        if (!isnan(g->lr_scale)) r.lr_scale = g->lr_scale;
        if (!isnan(g->weight_decay)) r.weight_decay = g->weight_decay;
    }
    if (!decay && r.weight_decay != 0) {
        fail(s->diag, (Loc){0},
             "parameter '%s' has a weight_decay, which --optimizer %s has not",
             v->name, o->fn->info.text);
        return ERR_USAGE;
    }
    for (int i = 0; i < s->rates.len; i++) {
        *out = s->rates.data[i];
        if (out->weight_decay == r.weight_decay && out->lr_scale == r.lr_scale)
            return OK;
    }
    const Fn *once = o->fn->optimizer->once;
    Attr attrs[MAX_OP_ATTRS];
    ValueId in[] = {s->lr, s->number};
    NodeId id;
    int chunk = s->b.loc.chunk;
    s->b.loc.chunk = 0;
    if (r.lr_scale != 1) in[0] = bin(s, OP_MUL, s->lr, f64c(s, r.lr_scale));
    optimizer_attrs(o, &r.weight_decay, attrs);
    TRY(call_checked(s, once, in, 2, attrs, o->keys.len, NULL, v, &id));
    for (int i = 0; i < once->results.len; i++)
        r.of[i] = node_get(s->g, id)->out[i];
    s->b.loc.chunk = chunk;
    vec_push(s->g->arena, &s->rates, r);
    *out = r;
    return OK;
}

/* Ranks share state that has one element for each element of a parameter. */
static Status check_shared(Step *s, const Fn *fn, NodeId id) {
    bool whole = !optimizer_can_share(fn->optimizer, s->g, id);
    if (!s->opt->shard_optimizer || (!whole && !compact_draws(s->opt)))
        return OK;
    fail(s->diag, (Loc){0},
         "--shard-optimizer: %s looks at whole parameters, so that ranks "
         "cannot share their state",
         whole ? fn->info.text : "--state-dtype");
    return ERR_USAGE;
}

/* The update of one parameter: operands of the function, and where its results
   go. types[0]: the type of p and g; types[1 + i]: of state i, 0: absent. */
typedef struct Update {
    ValueId param;
    Var v;
    ValueId in[MAX_FN_OPERANDS];
    TypeId types[MAX_FN_OPERANDS];
    CompactVar stored[MAX_FN_OPERANDS]; /* the states, then the parameter */
    Attr attrs[MAX_OP_ATTRS];
} Update;

/* The type of the update's operands: the parameter's, or blocks of it. */
static TypeId update_type(Step *s, const Update *u, int n, TypeId whole) {
    const OptimizerSpec *o = &s->objective->optimizer;
    int nstate = o->fn->optimizer->states.len;
    TypeId of[MAX_FN_OPERANDS], blocks = compact_blocks(s->opt, whole);
    if (blocks.i == whole.i) return whole;
    of[0] = of[1] = whole;
    for (int i = 2; i < n; i++) of[i] = value_get(s->g, u->in[i])->type;
    for (int i = 0; i < nstate; i++) of[n + i] = u->types[i + 1];
    bool can = optimizer_can_reshape(o->fn, u->attrs, o->keys.len, of,
                                     n + nstate, whole, blocks);
    return can ? blocks : whole;
}

/* Number of operands before the state. */
static int numbers_of(const Optimizer *def) {
    return 3 + def->once->results.len + def->totals.len;
}

/* Totals are 0 until they are known. */
static Status read_operands(Step *s, ValueId p, ValueId g, Update *u) {
    const OptimizerSpec *o = &s->objective->optimizer;
    const Optimizer *def = o->fn->optimizer;
    int once = def->once->results.len, n = numbers_of(def);
    int nstate = def->states.len;
    char msg[MSG_TEXT];
    Rates r;
    *u = (Update){.param = p, .v = *value_var(s->g, p)};
    TypeId whole = type_with_dtype(u->v.type, DT_F32), as;
    TRY(rates_of(s, &u->v, &r));
    u->in[2] = s->ok;
    for (int i = 0; i < once; i++) u->in[3 + i] = r.of[i];
    for (int i = 3 + once; i < n; i++) u->in[i] = f32c(s, 0);
    optimizer_attrs(o, &r.weight_decay, u->attrs);
    if (optimizer_types(def, s->g, g, u->attrs, o->keys.len, u->types + 1, msg))
        return fail(s->diag, (Loc){0}, "--optimizer %s, parameter '%s': %s",
                    o->fn->info.text, u->v.name, msg);
    u->types[0] = as = update_type(s, u, n, whole);
    u->in[0] = compact_read_param(&s->b, s->opt, p, as, &u->stored[nstate]);
    u->in[1] = compact_view(&s->b, g, as);
    for (int i = 0; i < nstate; i++) {
        TypeId type = u->types[i + 1];
        if (!type.i) continue;
        if (as.i != whole.i) u->types[i + 1] = as;
        u->in[n + i] =
            compact_read_state(&s->b, s->opt, &u->v, &def->states.data[i], type,
                               u->types[i + 1], &u->stored[i]);
    }
    return OK;
}

/* Total k over all parameters. */
static Status emit_total(Step *s, Update *all, int n, int k) {
    const OptimizerSpec *o = &s->objective->optimizer;
    const Optimizer *def = o->fn->optimizer;
    int at = 3 + def->once->results.len + k, rest = numbers_of(def);
    ValueId sum = NO_VALUE, in[MAX_FN_OPERANDS];
    for (int i = 0; i < n; i++) {
        Update *u = &all[i];
        NodeId id;
        memcpy(in, u->in, (size_t)at * sizeof *in);
        for (int j = 0; j < def->states.len; j++) in[at + j] = u->in[rest + j];
        TRY(call_checked(s, def->totals.data[k], in, at + def->states.len,
                         u->attrs, o->keys.len, NULL, &u->v, &id));
        ValueId one = node_get(s->g, id)->out[0];
        sum = i ? bin(s, OP_ADD, sum, one) : one;
    }
    for (int i = 0; i < n; i++) all[i].in[at] = b_cast(&s->b, sum, DT_F32);
    return OK;
}

static Status write_results(Step *s, Update *u) {
    const OptimizerSpec *o = &s->objective->optimizer;
    const Optimizer *def = o->fn->optimizer;
    int nstate = def->states.len;
    ValueId out[MAX_FN_OPERANDS];
    NodeId id;
    TRY(call_checked(s, o->fn, u->in, numbers_of(def) + nstate, u->attrs,
                     o->keys.len, u->types, &u->v, &id));
    TRY(check_shared(s, o->fn, id));
    memcpy(out, node_get(s->g, id)->out, (size_t)(nstate + 1) * sizeof *out);
    for (int i = 0; i < nstate; i++)
        if (u->types[i + 1].i)
            compact_write_state(&s->b, &u->stored[i], out[i + 1], s->ok);
    out[0] = compact_write_param(&s->b, &u->stored[nstate], out[0], s->ok);
    average_write(&s->b, s->opt, u->param, out[0], s->share, s->ok);
    return OK;
}

Status step_update(Step *s, EarlyPart part) {
    const Optimizer *def = s->objective->optimizer.fn->optimizer;
    Update *all = NEW_ARRAY(s->g->arena, Update, part.n);
    bool waits = def->totals.len > 0;
    for (int i = 0; i < part.n; i++) {
        int p = part.which[i];
        TRY(read_operands(s, s->params.data[p], s->grads.data[p], &all[i]));
        if (!waits) TRY(write_results(s, &all[i]));
    }
    for (int k = 0; k < def->totals.len; k++)
        TRY(emit_total(s, all, part.n, k));
    for (int i = 0; i < part.n && waits; i++) TRY(write_results(s, &all[i]));
    return OK;
}

void step_keep_definition(Module *m, const Fn *fn) {
    if (optimizer_find(m, fn->info.text) != fn) optimizer_keep(m, fn);
}
