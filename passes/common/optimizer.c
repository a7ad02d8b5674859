/* SPDX-License-Identifier: Apache-2.0 */
/* optimizer.c: builds the programs that train from gradients.
   Before:  graph train: ampc.loss, ampc.grad/NAME for every parameter it trains
   After:   graph train    forward, backward and update in one
            graph micro    forward, backward, ampc.grad/NAME += gradient,
                           ampc.shares += share of the micro-batch
            graph update   from ampc.grad/NAME over ampc.shares; clears them
            graph refresh  16-bit copies of variables
   All of section 6 of the design is IR here: unscale, non-finite check, global
   norm, clipping, skip, optimizer, loss-scale growth and backoff, learning-rate
   schedule, counters.  The host decides nothing. The formulas are functions of
   the language (optimizer.h); the update of a parameter is one
   call (step.h).
   requires     stage DIFF
   establishes  stage STEP; casts of variables became VAR_SHADOW reads;
                the module's hash */
#include "passes/common/average.h"
#include "passes/common/compact.h"
#include "passes/common/dora.h"
#include "passes/common/step.h"
#include "passes/rewrite.h"

#include <math.h>
#include <string.h>

/* ---- programs ------------------------------------------------------------ */

/* The parameter whose gradient is that output; -1: none. */
static int gradient_of(const Module *m, const Output *o) {
    Str of = family_member(FAMILY_GRAD, o->name);
    int v = of ? module_find_var(m, of) : -1;
    ASSERT(!of || v >= 0);
    return v;
}

static Step step_new(Graph *g, PassCtx *cx, uint32_t flags) {
    Step s = {.m = g->module, .g = g, .diag = cx->diag, .opt = cx->opt};
    s.objective = options_objective(cx->opt, g->objective);
    s.b = (Builder){.g = g, .flags = flags};
    s.loss = graph_output(g, own_output(OUT_LOSS, g->objective));
    return s;
}

/* Removes the gradients and ampc.bad from the graph's outputs. Bad data make
   the loss NaN, so they are handled like any loss that is not finite. */
static void take_outputs(Step *s) {
    Graph *g = s->g;
    Str bad = own_output(OUT_BAD, g->objective);
    int kept = 0;
    s->bad = graph_output(g, bad);
    for (int i = 0; i < g->outputs.len; i++) {
        Output o = g->outputs.data[i];
        int v = gradient_of(s->m, &o);
        if (v >= 0) {
            vec_push(g->arena, &s->params, graph_var(g, v));
            vec_push(g->arena, &s->grads, b_cast(&s->b, o.value, DT_F32));
        } else if (o.name != bad) {
            g->outputs.data[kept++] = o;
        }
    }
    g->outputs.len = kept;
    if (!s->bad.i) return;
    step_set_loss(s, b_where(&s->b, s->bad, f32c(s, NAN), s->loss));
}

/* Buffers are written only if forward was finite; the random state advances
   with every training forward. */
static void write_forward(Step *s) {
    Graph *g = s->g;
    ValueId ok = b1(&s->b, OP_ISFINITE, s->loss, DT_DEFAULT);
    for (int i = 0; i < g->writes.len; i++) {
        Write *w = &g->writes.data[i];
        VarKind kind = value_var(g, w->var)->kind;
        if (kind == VAR_BUFFER || kind == VAR_FROZEN)
            w->value = b_where(&s->b, ok, w->value, w->var);
    }
    int v = module_find_own_var(s->m, OWN_RNG, g->objective);
    if (v < 0 || !graph_find_var(g, v).i) return;
    Tensor *t = tensor_new(g->arena, s->m->vars.data[v].type);
    tensor_set_int(t, 1, 1);
    ValueId rng = graph_var(g, v), one = graph_const(g, "ampc.rng.step", t);
    write_var(s, rng, bin(s, OP_ADD, rng, one));
}

static ValueId grad_var(Step *s, const Var *p) {
    int v = module_var(s->m, VAR_GRAD, family_name(FAMILY_GRAD, p->name),
                       type_with_dtype(p->type, DT_F32), NULL, 0);
    return graph_var(s->g, v);
}

static void make_micro(const Graph *train, PassCtx *cx) {
    Str name = program_name(PROGRAM_MICRO, train->objective);
    Graph *g = graph_clone(train, name_at_size(name, train->size));
    Step s = step_new(g, cx, NODE_UPDATE);
    ValueId share = samples_weigh(g), some = NO_VALUE;
    if (value_get(g, share)->kind != VK_CONST) { /* 0 / 0 for no label */
        some = bin(&s, OP_GREATER, share, f32c(&s, 0));
        step_set_loss(&s, b_where(&s.b, some, s.loss, f32c(&s, 0)));
    }
    take_outputs(&s);
    ValueId *least = s.grads.data; /* passes the flag of a bad micro-batch to
                                      the update */
    for (int i = 1; i < s.grads.len; i++)
        if (value_count(g, s.grads.data[i]) < value_count(g, *least))
            least = &s.grads.data[i];
    if (s.bad.i && least) *least = b_where(&s.b, s.bad, f32c(&s, NAN), *least);
    write_forward(&s);
    for (int i = 0; i < s.params.len; i++) {
        ValueId sum = grad_var(&s, value_var(g, s.params.data[i]));
        write_var(&s, sum, bin(&s, OP_ADD, sum, s.grads.data[i]));
    }
    ValueId n = graph_own_var(g, OWN_MICRO, 0),
            total = graph_own_var(g, OWN_LOSS_SUM, 0),
            shares = graph_own_var(g, OWN_SHARES, 0);
    write_var(&s, n, bin(&s, OP_ADD, n, i32c(&s, 1)));
    write_var(&s, total, bin(&s, OP_ADD, total, s.loss));
    write_var(&s, shares, bin(&s, OP_ADD, shares, share));
    if (some.i) /* the mean of only this micro-batch */
        step_set_loss(&s, bin(&s, OP_DIV, s.loss,
                              b_where(&s.b, some, share, f32c(&s, 1))));
}

static Status make_update(const Graph *train, PassCtx *cx) {
    Module *m = train->module;
    Graph *g = graph_new(m, program_name(PROGRAM_UPDATE, train->objective));
    Step s = step_new(g, cx, NODE_UPDATE);
    ValueId n = graph_own_var(g, OWN_MICRO, 0),
            total = graph_own_var(g, OWN_LOSS_SUM, 0),
            shares = graph_own_var(g, OWN_SHARES, 0);
    s.loss = total;
    if (!samples_sum(train)) {
        s.some = bin(&s, OP_GREATER, shares, f32c(&s, 0));
        s.shares = b_where(&s.b, s.some, shares, f32c(&s, 1));
        s.loss = bin(&s, OP_DIV, total, s.shares);
    }
    output(&s, OUT_LOSS, s.loss);
    for (int i = 0; i < train->outputs.len; i++) {
        int v = gradient_of(m, &train->outputs.data[i]);
        if (v < 0) continue;
        ValueId p = graph_var(g, v);
        ValueId sum = grad_var(&s, value_var(g, p));
        vec_push(g->arena, &s.params, p);
        vec_push(g->arena, &s.grads, sum);
        write_var(&s, sum, b_full(&s.b, value_get(g, sum)->type, 0));
    }
    TRY(step_emit(&s));
    average_buffers(&s.b, cx->opt, train, s.share, s.ok);
    write_var(&s, n, i32c(&s, 0));
    write_var(&s, total, f32c(&s, 0));
    write_var(&s, shares, f32c(&s, 0));
    return OK;
}

/* Every glob must match a parameter that the objective trains, or would
   train without adapters. */
static Status check_glob(const Module *m, PassCtx *cx, const Objective *j,
                         const char *option, Str glob) {
    for (int k = 0; k < m->vars.len; k++) {
        const Var *v = &m->vars.data[k];
        bool trains =
            v->kind == VAR_PARAM || (m->adapters.len && v->kind == VAR_FROZEN);
        if (trains && objective_trains(j, v->name) && glob_layer(glob, v->name))
            return OK;
    }
    fail(cx->diag, (Loc){.file = m->file},
         "%s '%s' matches no trained parameter", option, glob);
    return ERR_USAGE;
}

/* A parameter has each state once: of the optimizer, or of one wrapper. */
static Status check_states(const Module *m, PassCtx *cx, const Objective *j,
                           const OptimizerSpec *wrapper) {
    const Optimizer *mine = wrapper->fn->optimizer;
    const OptimizerSpec *other = &j->optimizer;
    for (int i = -1; i < j->wrappers.len; i++) {
        if (i >= 0) other = &j->wrappers.data[i];
        if (other == wrapper) break;
        const char *twice = optimizer_shares_state(mine, other->fn->optimizer);
        if (!twice) continue;
        fail(cx->diag, (Loc){.file = m->file},
             "--wrapper %s: %s %s has a state '%s', too; rename one of them",
             wrapper->fn->info.text, optimizer_option(other->fn),
             other->fn->info.text, twice);
        return ERR_USAGE;
    }
    return OK;
}

/* State belongs to a parameter, so that only one objective may change it. */
static Status check_objective(const Module *m, PassCtx *cx, const Graph *train,
                              const Objective *j) {
    const Fn *fn = j->optimizer.fn;
    bool wraps = step_wrapper(j, WRAPPER_AFTER) != NULL;
    if ((cx->opt->average.fn || wraps) && optimizer_evaluates(fn->optimizer)) {
        fail(cx->diag, (Loc){.file = m->file},
             "%s: --optimizer %s computes itself what evaluation "
             "reads; leave one of both out",
             wraps ? "--wrapper" : "--ema and --swa", fn->info.text);
        return ERR_USAGE;
    }
    for (int i = 0; i < j->wrappers.len; i++)
        TRY(check_states(m, cx, j, &j->wrappers.data[i]));
    for (int i = 0; i < j->param_groups.len; i++)
        TRY(check_glob(m, cx, j, "--param-group",
                       j->param_groups.data[i].glob));
    for (int i = 0; i < j->params.len; i++)
        TRY(check_glob(m, cx, j, "--objective: params", j->params.data[i]));
    for (int i = 0; i < train->outputs.len; i++) {
        int v = gradient_of(m, &train->outputs.data[i]);
        if (v < 0 || module_find_var(m, train->outputs.data[i].name) < 0)
            continue;
        fail(cx->diag, (Loc){.file = m->file},
             "--objective %s: '%s' is trained by another objective, too; "
             "assign each parameter to one objective with params=, or add the "
             "losses up: --loss \"A:OUTPUT + 0.5*B:OUTPUT\"",
             j->name, m->vars.data[v].name);
        return ERR_USAGE;
    }
    return OK;
}

static Status make_steps(Graph *train, PassCtx *cx) {
    Step s = step_new(train, cx, 0);
    if (!s.objective)
        return fail(cx->diag, (Loc){.file = s.m->file},
                    "graph %s: unknown objective '%s'", train->name,
                    train->objective);
    bool own = !*train->size;
    if (own) TRY(check_objective(s.m, cx, train, s.objective));
    TRY(early_check(cx->opt, s.objective, cx->diag));
    make_micro(train, cx);
    if (own) TRY(make_update(train, cx)); /* reads no input */
    s.labels = samples_all(train);
    s.loss = graph_output(train, own_output(OUT_LOSS, train->objective));
    take_outputs(&s);
    for (int i = 0; i < s.grads.len; i++)
        s.grads.data[i] = compact_gradient(&s.b, cx->opt, s.grads.data[i]);
    write_forward(&s);
    TRY(step_emit(&s));
    average_buffers(&s.b, cx->opt, train, s.share, s.ok);
    return OK;
}

/* ---- 16-bit copies ------------------------------------------------------- */

ValueId shadow_of(Graph *g, ValueId v, DType d) {
    if (value_get(g, v)->kind != VK_VAR || !dtype_is_low(d) ||
        dtype_info[d].stored)
        return NO_VALUE;
    const Var *var = value_var(g, v);
    if (var->kind != VAR_PARAM && var->kind != VAR_FROZEN) return NO_VALUE;
    if (type_get(var->type)->dtype == d) return v;
    Str name = family_name(shadow_family(d), var->name);
    TypeId t = type_with_dtype(var->type, d);
    return graph_var(g, module_var(g->module, VAR_SHADOW, name, t, NULL, 0));
}

/* cast %w = the copy of %w, or the cast itself */
static bool shadow_rule(Rewriter *rw, NodeId id, ValueId *with) {
    const Node *n = node_get(rw->g, id);
    if (n->op != OP_CAST || n->flags & NODE_UPDATE) return false;
    with[0] = shadow_of(rw->g, n->in[0], value_dtype(rw->g, n->out[0]));
    return is_value(with[0]);
}

void shadows_write(Graph *g, Arena *scratch) {
    Module *m = g->module;
    Step s = {.m = m, .g = g, .b = {.g = g, .flags = NODE_UPDATE}};
    ValueId *now = NEW_ARRAY(scratch, ValueId, m->vars.len + 1);
    for (int i = 0; i < g->writes.len; i++) {
        const Write *w = &g->writes.data[i];
        now[value_get(g, w->var)->var] = w->value;
    }
    for (int i = 0; i < m->vars.len; i++) {
        Var v = m->vars.data[i];
        if (v.kind != VAR_SHADOW || is_value(now[i])) continue;
        int of = shadow_source(m, &v);
        if (g->program == PROGRAM_REFRESH) now[of] = graph_var(g, of);
        if (!is_value(now[of])) continue;
        DType d = type_get(v.type)->dtype;
        NodeId made = value_get(g, now[of])->def;
        s.b.loc.chunk = made.i ? node_get(g, made)->loc.chunk : 0;
        const Node *view = def_of(g, now[of], OP_RESHAPE); /* of blocks */
        ValueId x = b_cast(&s.b, view ? view->in[0] : now[of], d);
        x = compact_view(&s.b, x, v.type);
        write_var(&s, graph_var(g, i), x);
    }
}

/* ---- the pass ------------------------------------------------------------ */

/* A text may declare any copy, and contain programs that are made here. */
static Status check_text(const Module *m, PassCtx *cx) {
    Loc loc = {.file = m->file};
    for (int i = 0; i < m->vars.len; i++) {
        const Var *v = &m->vars.data[i];
        if (v->kind == VAR_SHADOW && shadow_source(m, v) < 0)
            return fail(cx->diag, loc,
                        "shadow '%s' is not a copy of a variable; the copy of "
                        "'w' is called '%s'",
                        v->name, family_name(FAMILY_BF16, "w"));
        if (v->kind == VAR_GRAD)
            return fail(cx->diag, loc,
                        "grad '%s': the optimizer makes the sums of gradients",
                        v->name);
    }
    for (int i = 0; i < m->graphs.len; i++) {
        ProgramKind p = m->graphs.data[i]->program;
        if (p == PROGRAM_MICRO || p == PROGRAM_UPDATE || p == PROGRAM_REFRESH)
            return fail(cx->diag, loc,
                        "graph %s: the optimizer makes the program of that "
                        "name",
                        m->graphs.data[i]->name);
    }
    return OK;
}

Status pass_optimizer(Module *m, PassCtx *cx) {
    TRY(check_text(m, cx));
    for (int i = 0, n = m->graphs.len; i < n; i++)
        if (m->graphs.data[i]->program == PROGRAM_TRAIN)
            TRY(make_steps(m->graphs.data[i], cx));
    average_read(m, cx->scratch);
    for (int i = 0; i < m->graphs.len; i++)
        rewrite_graph(m->graphs.data[i], cx->scratch, shadow_rule, NULL);
    dora_begin(graph_new(m, program_name(PROGRAM_REFRESH, intern(""))));
    for (int i = 0; i < m->graphs.len; i++)
        shadows_write(m->graphs.data[i], cx->scratch);
    /* A hash of everything that decides how a run continues from a
       checkpoint. It is taken before inlining and fusion, so that targets
       and later passes do not affect it. */
    m->hash = (uint64_t)cx->opt->accumulate;
    for (int i = 0; i < m->graphs.len; i++) {
        ProgramKind p = m->graphs.data[i]->program;
        if (p == PROGRAM_UNDERFLOW || p == PROGRAM_LOCATE) continue;
        uint64_t one = graph_hash(m->graphs.data[i]);
        m->hash = hash_bytes(m->hash, &one, sizeof one);
    }
    return OK;
}
