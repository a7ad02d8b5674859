/* SPDX-License-Identifier: Apache-2.0 */
/* step_update.c: the update of each parameter is one call of the optimizer's
   function, and one of each wrapper's behind it (optimizer.h). */
#include "passes/common/average.h"
#include "passes/common/compact.h"
#include "passes/common/step.h"

#include <math.h>
#include <string.h>

/* ---- parameters ---------------------------------------------------------- */

/* Calls one of the functions of an optimizer or wrapper, which may be the
   user's own. */
static Status call_checked(Step *s, const Fn *fn, ValueId *in, int nin,
                           const Attr *attrs, int nattr, const TypeId *want,
                           const Var *v, NodeId *out) {
    const Fn *update = fn->optimizer->update;
    char msg[MSG_TEXT];
    if (optimizer_call(&s->b, fn, in, nin, attrs, nattr, want, out, msg) == OK)
        return OK;
    return fail(s->diag, (Loc){0}, "%s %s, parameter '%s': %s",
                optimizer_option(update), update->info.text, v->name, msg);
}

static Status call_once(Step *s, const OptimizerSpec *o, const Var *v,
                        Rates *r) {
    const Fn *once = o->fn->optimizer->once;
    Attr attrs[MAX_OP_ATTRS];
    ValueId in[] = {s->lr, s->number};
    NodeId id;
    int chunk = s->b.loc.chunk;
    s->b.loc.chunk = 0;
    if (r->lr_scale != 1) in[0] = bin(s, OP_MUL, s->lr, f64c(s, r->lr_scale));
    optimizer_attrs(o, &r->weight_decay, attrs);
    TRY(call_checked(s, once, in, 2, attrs, o->keys.len, NULL, v, &id));
    for (int i = 0; i < once->results.len; i++)
        r->of[i] = node_get(s->g, id)->out[i];
    s->b.loc.chunk = chunk;
    return OK;
}

/* The rates of variable v: its own options, else those of the last matching
   --param-group, else the optimizer's. */
static Status rates_of(Step *s, const OptimizerSpec *o, const Var *v,
                       Rates *out) {
    const double *decay = optimizer_key(o, "weight_decay");
    Rates r = {
        .spec = o, .weight_decay = decay ? *decay : 0, .lr_scale = v->lr_scale};
    if (!isnan(v->weight_decay)) r.weight_decay = v->weight_decay;
    for (int i = 0; i < s->objective->param_groups.len; i++) {
        const ParamGroup *g = &s->objective->param_groups.data[i];
        if (!glob_layer(g->glob, v->name)) continue;
        if (!isnan(g->lr_scale)) r.lr_scale = g->lr_scale;
        if (!isnan(g->weight_decay)) r.weight_decay = g->weight_decay;
    }
    if (!decay && r.weight_decay != 0 && o == &s->objective->optimizer) {
        fail(s->diag, (Loc){0},
             "parameter '%s' has a weight_decay, which --optimizer %s has not",
             v->name, o->fn->info.text);
        return ERR_USAGE;
    }
    for (int i = 0; i < s->rates.len; i++) {
        *out = s->rates.data[i];
        if (out->spec == o && out->weight_decay == r.weight_decay &&
            out->lr_scale == r.lr_scale)
            return OK;
    }
    if (o->fn->optimizer->once->results.len) TRY(call_once(s, o, v, &r));
    vec_push(s->g->arena, &s->rates, r);
    *out = r;
    return OK;
}

/* Ranks share state that has one element for each element of a parameter. */
static Status update_check_shared(Step *s, const Fn *fn, NodeId id) {
    bool whole = !optimizer_can_share(fn->optimizer, s->g, id);
    if (!s->opt->shard_optimizer || (!whole && !compact_draws(s->opt)))
        return OK;
    fail(s->diag, (Loc){0},
         "--shard-optimizer: %s looks at whole parameters, so that ranks "
         "cannot share their state",
         whole ? fn->info.text : "--state-dtype");
    return ERR_USAGE;
}

/* The update of one parameter: operands of the function of the optimizer, or of
   a wrapper behind it, and where its results go. types[0]: the type of p and
   g; types[1 + i]: of state i, 0: absent. */
typedef struct Update {
    ValueId param;
    Var v;
    ValueId old, new;  /* f32: read, and as the functions so far give it */
    CompactVar stored; /* where it is read and written */
    ValueId in[MAX_FN_OPERANDS];
    TypeId types[MAX_FN_OPERANDS];
    CompactVar states[MAX_FN_OPERANDS];
    Attr attrs[MAX_OP_ATTRS];
} Update;

/* The type of the update's operands: the parameter's, or blocks of it. */
static TypeId update_type(Step *s, const OptimizerSpec *o, const Update *u,
                          int n, TypeId whole) {
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

/* Numbers that are operands: results of `once`; totals, which are 0 until they
   are known. */
static Status read_numbers(Step *s, const OptimizerSpec *o, Update *u) {
    const Optimizer *def = o->fn->optimizer;
    int once = def->once->results.len, n = numbers_of(def);
    Rates r;
    TRY(rates_of(s, o, &u->v, &r));
    u->in[2] = s->ok;
    for (int i = 0; i < once; i++) u->in[3 + i] = r.of[i];
    for (int i = 3 + once; i < n; i++) u->in[i] = f32c(s, 0);
    optimizer_attrs(o, &r.weight_decay, u->attrs);
    return OK;
}

/* The optimizer reads the parameter and gradient g, a wrapper the parameter's
   new and old value. */
static Status update_read_operands(Step *s, const OptimizerSpec *o, ValueId g,
                                   Update *u) {
    const Optimizer *def = o->fn->optimizer;
    bool first = def->role == ROLE_OPTIMIZER;
    int n = numbers_of(def), nstate = def->states.len;
    char msg[MSG_TEXT];
    TypeId whole = type_with_dtype(u->v.type, DT_F32), as;
    TRY(read_numbers(s, o, u));
    if (optimizer_types(def, s->g, g, u->attrs, o->keys.len, u->types + 1, msg))
        return fail(s->diag, (Loc){0}, "%s %s, parameter '%s': %s",
                    optimizer_option(o->fn), o->fn->info.text, u->v.name, msg);
    u->types[0] = as = update_type(s, o, u, n, whole);
    if (first)
        u->old = u->new =
            compact_read_param(&s->b, s->opt, u->param, as, &u->stored);
    u->in[0] = compact_view(&s->b, u->new, as);
    u->in[1] = compact_view(&s->b, first ? g : u->old, as);
    for (int i = 0; i < nstate; i++) {
        TypeId type = u->types[i + 1];
        if (!type.i) continue;
        if (as.i != whole.i) u->types[i + 1] = as;
        u->in[n + i] =
            compact_read_state(&s->b, s->opt, &u->v, &def->states.data[i], type,
                               u->types[i + 1], &u->states[i]);
    }
    return OK;
}

/* Total k over all parameters. */
static Status emit_total(Step *s, const OptimizerSpec *o, Update *all, int n,
                         int k) {
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

static Status write_results(Step *s, const OptimizerSpec *o, Update *u) {
    const Optimizer *def = o->fn->optimizer;
    int nstate = def->states.len;
    ValueId out[MAX_FN_OPERANDS];
    NodeId id;
    TRY(call_checked(s, o->fn, u->in, numbers_of(def) + nstate, u->attrs,
                     o->keys.len, u->types, &u->v, &id));
    TRY(update_check_shared(s, o->fn, id));
    memcpy(out, node_get(s->g, id)->out, (size_t)(nstate + 1) * sizeof *out);
    for (int i = 0; i < nstate; i++)
        if (u->types[i + 1].i)
            compact_write_state(&s->b, &u->states[i], out[i + 1], s->ok);
    u->new = out[0];
    return OK;
}

static void write_param(Step *s, const Update *u) {
    ValueId x = compact_write_param(&s->b, &u->stored, u->new, s->ok);
    average_write(&s->b, s->opt, u->param, x, s->share, s->ok);
}

/* The optimizer, or a wrapper behind it; last: no wrapper follows. */
static Status update_run_one(Step *s, const OptimizerSpec *o, EarlyPart part,
                             Update *all, bool last) {
    const Optimizer *def = o->fn->optimizer;
    bool waits = def->totals.len > 0;
    for (int i = 0; i < part.n; i++) {
        TRY(update_read_operands(s, o, s->grads.data[part.which[i]], &all[i]));
        if (!waits) TRY(write_results(s, o, &all[i]));
        if (!waits && last) write_param(s, &all[i]);
    }
    for (int k = 0; k < def->totals.len; k++)
        TRY(emit_total(s, o, all, part.n, k));
    for (int i = 0; i < part.n && waits; i++) {
        TRY(write_results(s, o, &all[i]));
        if (last) write_param(s, &all[i]);
    }
    return OK;
}

const OptimizerSpec *step_wrapper(const Objective *j, OptimizerRole role) {
    for (int i = 0; i < j->wrappers.len; i++)
        if (j->wrappers.data[i].fn->optimizer->role == role)
            return &j->wrappers.data[i];
    return NULL;
}

static Update update_of(const Step *s, int p) {
    ValueId param = s->params.data[p];
    return (Update){.param = param, .v = *value_var(s->g, param)};
}

Status step_update(Step *s, EarlyPart part) {
    const Objective *j = s->objective;
    const OptimizerSpec *chain[MAX_WRAPPERS + 1] = {&j->optimizer};
    Update *all = NEW_ARRAY(s->g->arena, Update, part.n);
    int n = 1;
    for (int i = 0; i < j->wrappers.len; i++)
        if (j->wrappers.data[i].fn->optimizer->role == WRAPPER_AFTER)
            chain[n++] = &j->wrappers.data[i];
    for (int i = 0; i < part.n; i++) all[i] = update_of(s, part.which[i]);
    for (int k = 0; k < n; k++)
        TRY(update_run_one(s, chain[k], part, all, k + 1 == n));
    return OK;
}

Status step_move(Step *s, const OptimizerSpec *wrapper, ValueId *moved) {
    const Optimizer *def = wrapper->fn->optimizer;
    int n = s->params.len;
    Update *all = NEW_ARRAY(s->g->arena, Update, n);
    NodeId id;
    for (int i = 0; i < n; i++) {
        Update *u = &all[i];
        *u = update_of(s, i);
        u->types[0] = type_with_dtype(u->v.type, DT_F32);
        u->in[0] = b_cast(&s->b, u->param, DT_F32);
        u->in[1] = s->grads.data[i];
        TRY(read_numbers(s, wrapper, u));
    }
    for (int k = 0; k < def->totals.len; k++)
        TRY(emit_total(s, wrapper, all, n, k));
    for (int i = 0; i < n; i++) {
        TRY(call_checked(s, wrapper->fn, all[i].in, numbers_of(def),
                         all[i].attrs, wrapper->keys.len, all[i].types,
                         &all[i].v, &id));
        moved[i] = node_get(s->g, id)->out[0];
    }
    return OK;
}

Status step_keep_definition(Step *s, const Fn *fn) {
    Str taken = optimizer_find(s->m, fn->info.text) == fn
                    ? NULL
                    : optimizer_keep(s->m, fn);
    if (!taken) return OK;
    fail(s->diag, (Loc){.file = s->m->file},
         "%s %s defines '%s', and so does the model, or another optimizer or "
         "wrapper, differently; rename one of them",
         optimizer_option(fn), fn->info.text, taken);
    return ERR_USAGE;
}
