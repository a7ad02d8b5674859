/* optimizer.c: from gradients to programs that train.
   Before:  graph train: ampc.loss, ampc.grad/NAME for every parameter it trains
   After:   graph train    forward, backward and update in one
            graph micro    forward, backward, ampc.grad/NAME += gradient
            graph update   from ampc.grad/NAME, averaged; clears them
            graph refresh  16-bit copies of variables
   All of section 6 of the design is IR here: unscale, non-finite check, global
   norm, clipping, skip, optimizer, loss-scale growth and backoff, learning-rate
   schedule, counters.  Nothing is decided on the host.
   Formulas: PyTorch's (torch/optim/{sgd,adam,adamw}.py, clip_grad.py,
   grad_scaler.py), scalars in f64; the sum of squares is f64, in which finite
   f32 gradients cannot overflow, so one isfinite of it is the whole check.
   requires     stage DIFF
   establishes  stage STEP; casts of variables became VAR_SHADOW reads;
                the module's hash                                           */
#include "passes/passes.h"
#include "passes/common/rewrite.h"

#include <math.h>
#include <string.h>

typedef VEC(ValueId) Values;

/* What parameters with the same options share, as values of this step. */
typedef struct Rates {
    double weight_decay, lr_scale;
    ValueId keep; /* f32[]: AdamW, 1 - lr wd; 0 = one                       */
    ValueId root; /* f32[]: Adam and AdamW, sqrt(1 - beta2 ** t)            */
    ValueId move; /* f32[]: -lr, Adam and AdamW -lr / (1 - beta1 ** t)      */
} Rates;

/* One program under construction. */
typedef struct Step {
    Module *m;
    Graph *g;
    const Options *opt;
    const Objective *objective;
    Builder b;
    ValueId loss;    /* f32[], unscaled                                       */
    ValueId micro;   /* f32[]: micro-batches in the gradients; 0 = one        */
    Values params;   /* variables                                             */
    Values grads;    /* f32: scaled sums, after emit_check unscaled           */
    ValueId ok;      /* bool[]: every gradient is finite                      */
    ValueId loss_ok; /* bool[]                                             */
    ValueId bad;   /* bool[]: pass checks found bad data; 0: it did not look */
    ValueId norm;  /* f32[]                                              */
    ValueId lr;    /* f64[]                                              */
    ValueId step1; /* f64[]: number of this step, from 1                 */
    VEC(Rates) rates; /* those met so far                                   */
} Step;

static ValueId f64c(Step *s, double v) { return b_scalar(&s->b, DT_F64, v); }
static ValueId f32c(Step *s, double v) { return b_scalar(&s->b, DT_F32, v); }

static ValueId i32c(Step *s, int64_t v) {
    return graph_scalar_int(s->g, DT_I32, v);
}

static ValueId bin(Step *s, OpCode op, ValueId x, ValueId y) {
    return b2(&s->b, op, x, y, DT_DEFAULT);
}

static ValueId pick(Step *s, ValueId c, ValueId yes, ValueId no) {
    return b3(&s->b, OP_WHERE, c, yes, no, DT_DEFAULT);
}

/* A variable of the compiler's own. */
static ValueId own(Step *s, OwnVar v, double fill) {
    return graph_var(s->g, module_own_var(s->m, v, s->g->objective, fill));
}

static void write_var(Step *s, ValueId var, ValueId value) {
    Write w = {var, value};
    vec_push(s->g->arena, &s->g->writes, w);
}

static void output(Step *s, OwnOutput o, ValueId v) {
    graph_add_output(s->g, own_output(o, s->g->objective), v);
}

/* ---- learning rate ------------------------------------------------------- */

/* lr of this step from i = successful steps so far; behind the warm-up it falls
   from lr to c->min by share: min + (lr - min) * share */
static void emit_lr(Step *s) {
    const ScheduleSpec *c = &s->objective->schedule;
    const double pi = 3.14159265358979323846;
    ValueId base = own(s, OWN_LR, s->objective->optimizer.lr);
    ValueId i = b_cast(&s->b, own(s, OWN_STEP, 0), DT_F64);
    ValueId one = f64c(s, 1), warmup = f64c(s, (double)c->warmup);
    s->step1 = bin(s, OP_ADD, i, one);
    s->lr = base;
    if (c->kind == SCHED_STEP) {
        ValueId n = bin(s, OP_DIV, bin(s, OP_SUB, i, warmup),
                        f64c(s, (double)c->every));
        n = bin(s, OP_MAX, b1(&s->b, OP_FLOOR, n, DT_F64), f64c(s, 0));
        s->lr = bin(s, OP_MUL, base, bin(s, OP_POW, f64c(s, c->gamma), n));
    } else if (c->kind != SCHED_CONSTANT) {
        ValueId done = bin(s, OP_DIV, bin(s, OP_SUB, i, warmup),
                           f64c(s, (double)(c->total - c->warmup)));
        ValueId share = bin(s, OP_MIN, done, one), min = f64c(s, c->min);
        if (c->kind == SCHED_COSINE) {
            share = bin(s, OP_MUL, share, f64c(s, pi));
            share = bin(s, OP_ADD, b1(&s->b, OP_COS, share, DT_F64), one);
            share = bin(s, OP_MUL, share, f64c(s, 0.5));
        } else {
            share = bin(s, OP_SUB, one, share);
        }
        ValueId span = bin(s, OP_SUB, base, min);
        s->lr = bin(s, OP_ADD, min, bin(s, OP_MUL, span, share));
    }
    if (c->warmup > 0) {
        ValueId share = bin(s, OP_DIV, s->step1, warmup);
        ValueId cold = bin(s, OP_LESS, i, warmup);
        s->lr = pick(s, cold, bin(s, OP_MUL, base, share), s->lr);
    }
}

/* ---- unscale, check, norm, clip ------------------------------------------ */

static ValueId scale_var(Step *s) {
    if (!options_has_scaler(s->opt)) return NO_VALUE;
    return own(s, OWN_SCALE, s->opt->scale.init);
}

/* Gradients over scale and micro-batches, and the sum of their squares. */
static void emit_check(Step *s) {
    ValueId by = scale_var(s), inv = NO_VALUE, total = f64c(s, 0), sq;
    int64_t axes[MAX_RANK];
    if (s->micro.i) by = by.i ? bin(s, OP_MUL, by, s->micro) : s->micro;
    if (by.i) inv = b1(&s->b, OP_RECIPROCAL, by, DT_F32);
    for (int i = 0; i < MAX_RANK; i++) axes[i] = i;
    for (int i = 0; i < s->grads.len; i++) {
        ValueId *g = &s->grads.data[i];
        int rank = value_type(s->g, *g)->rank;
        ASSERT(value_dtype(s->g, *g) == DT_F32);
        if (inv.i) *g = bin(s, OP_MUL, *g, inv);
        if (rank) {
            sq =
                b_reduce(&s->b, OP_REDUCE_SUMSQ, *g, axes, rank, false, DT_F64);
        } else {
            ValueId wide = b_cast(&s->b, *g, DT_F64);
            sq = bin(s, OP_MUL, wide, wide);
        }
        total = i ? bin(s, OP_ADD, total, sq) : sq;
    }
    if (s->bad.i) total = pick(s, s->bad, f64c(s, NAN), total);
    s->ok = b1(&s->b, OP_ISFINITE, total, DT_DEFAULT);
    s->loss_ok = b1(&s->b, OP_ISFINITE, s->loss, DT_DEFAULT);
    s->norm = b_cast(&s->b, b1(&s->b, OP_SQRT, total, DT_F64), DT_F32);
}

/* clip_grad_norm_: g * min(1, max_norm / (norm + 1e-6)); clip_grad_value_ */
static void emit_clip(Step *s) {
    double most = s->objective->clip_norm, lim = s->objective->clip_value;
    Attr bounds[] = {attr_f(AK_min, -lim), attr_f(AK_max, lim)};
    ValueId f = NO_VALUE;
    if (most > 0) {
        f = bin(s, OP_DIV, f32c(s, most),
                bin(s, OP_ADD, s->norm, f32c(s, 1e-6)));
        f = bin(s, OP_MIN, f, f32c(s, 1));
    }
    for (int i = 0; i < s->grads.len; i++) {
        ValueId *g = &s->grads.data[i];
        if (f.i) *g = bin(s, OP_MUL, *g, f);
        if (lim > 0) *g = build(&s->b, OP_CLIP, g, 1, bounds, 2, DT_F32, NULL);
    }
}

/* ---- one parameter ------------------------------------------------------- */

/* 1 - beta ** t in f64 */
static ValueId bias_correction(Step *s, double beta) {
    return bin(s, OP_SUB, f64c(s, 1), bin(s, OP_POW, f64c(s, beta), s->step1));
}

/* Those of variable v: its own, the last --param-group's or the optimizer's. */
static Rates rates_of(Step *s, const Var *v) {
    const OptimizerSpec *o = &s->objective->optimizer;
    Rates r = {.weight_decay = o->weight_decay, .lr_scale = v->lr_scale};
    if (!isnan(v->weight_decay)) r.weight_decay = v->weight_decay;
    for (int i = 0; i < s->objective->param_groups.len; i++) {
        const ParamGroup *g = &s->objective->param_groups.data[i];
        if (!glob_match(g->glob, v->name)) continue;
        if (!isnan(g->lr_scale)) r.lr_scale = g->lr_scale;
        if (!isnan(g->weight_decay)) r.weight_decay = g->weight_decay;
    }
    for (int i = 0; i < s->rates.len; i++)
        if (s->rates.data[i].weight_decay == r.weight_decay &&
            s->rates.data[i].lr_scale == r.lr_scale)
            return s->rates.data[i];
    ValueId lr = s->lr;
    if (r.lr_scale != 1) lr = bin(s, OP_MUL, lr, f64c(s, r.lr_scale));
    if (o->kind == OPT_ADAMW && r.weight_decay != 0) {
        ValueId decay = bin(s, OP_MUL, lr, f64c(s, r.weight_decay));
        r.keep = b_cast(&s->b, bin(s, OP_SUB, f64c(s, 1), decay), DT_F32);
    }
    if (o->kind != OPT_SGD) {
        ValueId root = b1(&s->b, OP_SQRT, bias_correction(s, o->beta2), DT_F64);
        r.root = b_cast(&s->b, root, DT_F32);
        lr = bin(s, OP_DIV, lr, bias_correction(s, o->beta1));
    }
    r.move = b_cast(&s->b, b1(&s->b, OP_NEG, lr, DT_F64), DT_F32);
    vec_push(s->g->arena, &s->rates, r);
    return r;
}

static ValueId opt_state(Step *s, ValueId p, const char *what) {
    const Var *v = value_var(s->g, p);
    Str name = internf("%s/%s", family_name(FAMILY_OPT, v->name), what);
    int i = module_var(s->m, VAR_STATE, name, v->type, NULL, 0);
    return graph_var(s->g, i);
}

/* var <- ok ? value : var */
static void update(Step *s, ValueId var, ValueId value) {
    write_var(s, var, pick(s, s->ok, value, var));
}

/* sgd.py: buf = momentum buf + g; p -= lr (nesterov ? g + momentum buf : buf).
   A zero buffer makes the first step PyTorch's buf = g. */
static ValueId sgd(Step *s, ValueId p, ValueId g, const Rates *r) {
    const OptimizerSpec *o = &s->objective->optimizer;
    if (o->momentum != 0) {
        ValueId mu = f32c(s, o->momentum);
        ValueId buf = opt_state(s, p, "momentum_buffer");
        ValueId next = bin(s, OP_ADD, bin(s, OP_MUL, buf, mu), g);
        update(s, buf, next);
        g = o->nesterov ? bin(s, OP_ADD, g, bin(s, OP_MUL, next, mu)) : next;
    }
    return bin(s, OP_ADD, p, bin(s, OP_MUL, g, r->move));
}

/* adam.py, adamw.py (single tensor, not capturable):
   m.lerp_(g, 1-b1); v = b2 v + (1-b2) g g; denom = sqrt(v)/sqrt(bc2) + eps;
   p += -(lr/bc1) m / denom, where AdamW first p *= 1 - lr wd. */
static ValueId adam(Step *s, ValueId var, ValueId g, const Rates *r) {
    const OptimizerSpec *o = &s->objective->optimizer;
    ValueId p = r->keep.i ? bin(s, OP_MUL, var, r->keep) : var;
    ValueId m = opt_state(s, var, "exp_avg");
    ValueId v = opt_state(s, var, "exp_avg_sq");
    ValueId dm = bin(s, OP_MUL, bin(s, OP_SUB, g, m), f32c(s, 1 - o->beta1));
    ValueId m1 = bin(s, OP_ADD, m, dm);
    ValueId gg = bin(s, OP_MUL, bin(s, OP_MUL, g, f32c(s, 1 - o->beta2)), g);
    ValueId v1 = bin(s, OP_ADD, bin(s, OP_MUL, v, f32c(s, o->beta2)), gg);
    update(s, m, m1);
    update(s, v, v1);
    ValueId denom = bin(s, OP_DIV, b1(&s->b, OP_SQRT, v1, DT_F32), r->root);
    denom = bin(s, OP_ADD, denom, f32c(s, o->eps));
    ValueId move = bin(s, OP_DIV, bin(s, OP_MUL, r->move, m1), denom);
    return bin(s, OP_ADD, p, move);
}

/* SGD and Adam decay by the gradient: g += wd p. */
static void emit_parameters(Step *s) {
    OptimizerKind kind = s->objective->optimizer.kind;
    for (int i = 0; i < s->params.len; i++) {
        ValueId p = s->params.data[i], g = s->grads.data[i];
        Rates r = rates_of(s, value_var(s->g, p));
        if (kind != OPT_ADAMW && r.weight_decay != 0)
            g = bin(s, OP_ADD, g, bin(s, OP_MUL, p, f32c(s, r.weight_decay)));
        update(s, p, kind == OPT_SGD ? sgd(s, p, g, &r) : adam(s, p, g, &r));
    }
}

/* ---- scaler and counters ------------------------------------------------- */

/* grad_scaler.py's update, with floor, cap and hysteresis (amp.md 3.3, 3.4).
   A non-finite loss says nothing about the scale: it stays, but where neither
   floor nor cap asks for grad_scaler.py as it is. */
static void emit_scaler(Step *s) {
    const ScaleSpec *c = &s->opt->scale;
    if (!options_has_scaler(s->opt) || c->kind == SCALE_STATIC) return;
    ASSERT(s->opt->objectives.len == 1); /* several update it together */
    ValueId scale = scale_var(s), zero = i32c(s, 0), one = i32c(s, 1);
    ValueId good = own(s, OWN_GOOD, 0);
    ValueId hyst = own(s, OWN_HYST, (double)c->hysteresis);
    ValueId bad = b1(&s->b, OP_NOT, s->ok, DT_DEFAULT);
    bool as_pytorch = c->min == 0 && isinf(c->max);
    ValueId blame = as_pytorch ? bad : bin(s, OP_AND, bad, s->loss_ok);
    ValueId left = bin(s, OP_SUB, hyst, one);
    ValueId worn = bin(s, OP_LESS_EQUAL, left, zero);
    ValueId back = bin(s, OP_AND, blame, worn);
    ValueId good1 = bin(s, OP_ADD, good, one);
    ValueId enough = bin(s, OP_GREATER_EQUAL, good1, i32c(s, c->interval));
    ValueId due = bin(s, OP_AND, s->ok, enough);
    ValueId grown = bin(s, OP_MUL, scale, f32c(s, c->growth));
    ValueId finite = b1(&s->b, OP_ISFINITE, grown, DT_DEFAULT);
    ValueId grow = bin(s, OP_AND, due, finite);
    ValueId up = bin(s, OP_MIN, grown, f32c(s, c->max));
    ValueId down = bin(s, OP_MAX, bin(s, OP_MUL, scale, f32c(s, c->backoff)),
                       f32c(s, c->min));
    write_var(s, scale, pick(s, back, down, pick(s, grow, up, scale)));
    ValueId kept = pick(s, due, zero, good1);
    write_var(s, good, pick(s, s->ok, kept, zero));
    ValueId spent = pick(s, blame, bin(s, OP_MAX, left, zero), hyst);
    write_var(s, hyst, pick(s, due, i32c(s, c->hysteresis), spent));
}

static void count(Step *s, OwnVar counter, ValueId more) {
    ValueId c = own(s, counter, 0);
    write_var(s, c, bin(s, OP_ADD, c, b_cast(&s->b, more, DT_I64)));
}

static void emit_update(Step *s) {
    ASSERT(s->objective && is_value(s->loss));
    ASSERT(s->grads.len > 0 && s->grads.len == s->params.len);
    s->b.flags = NODE_UPDATE;
    emit_lr(s);
    emit_check(s);
    emit_clip(s);
    emit_parameters(s);
    ValueId scale = scale_var(s), step = own(s, OWN_STEP, 0);
    output(s, OUT_GRAD_NORM, s->norm);
    output(s, OUT_SCALE, scale.i ? b_cast(&s->b, scale, DT_F32) : f32c(s, 1));
    output(s, OUT_LR, b_cast(&s->b, s->lr, DT_F32));
    output(s, OUT_APPLIED, s->ok);
    output(s, OUT_STEP, bin(s, OP_ADD, step, b_cast(&s->b, s->ok, DT_I64)));
    emit_scaler(s);
    ValueId bad = b1(&s->b, OP_NOT, s->ok, DT_DEFAULT);
    ValueId one = graph_scalar_int(s->g, DT_I64, 1);
    count(s, OWN_STEP, s->ok);
    count(s, OWN_TRIED, one);
    count(s, OWN_SKIPPED, bad);
    count(s, OWN_BAD_FORWARD, b1(&s->b, OP_NOT, s->loss_ok, DT_DEFAULT));
    ValueId streak = own(s, OWN_SKIP_STREAK, 0);
    ValueId longer = bin(s, OP_ADD, streak, one);
    write_var(s, streak,
              pick(s, s->ok, graph_scalar_int(s->g, DT_I64, 0), longer));
}

/* ---- programs ------------------------------------------------------------ */

/* The parameter whose gradient an output is; -1. */
static int gradient_of(const Module *m, const Output *o) {
    Str of = family_member(FAMILY_GRAD, o->name);
    int v = of ? module_find_var(m, of) : -1;
    ASSERT(!of || v >= 0);
    return v;
}

static Step step_new(Graph *g, PassCtx *cx, uint32_t flags) {
    Step s = {.m = g->module, .g = g, .opt = cx->opt};
    s.objective = options_objective(cx->opt, g->objective);
    s.b = (Builder){.g = g, .flags = flags};
    s.loss = graph_output(g, own_output(OUT_LOSS, g->objective));
    return s;
}

/* Takes the gradients and ampc.bad off the graph's outputs.  Bad data make the
   loss NaN, and so what follows a loss that is not finite follows them. */
static void take_outputs(Step *s) {
    Graph *g = s->g;
    Str bad = own_output(OUT_BAD, g->objective);
    Str loss = own_output(OUT_LOSS, g->objective);
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
    s->loss = pick(s, s->bad, f32c(s, NAN), s->loss);
    for (int i = 0; i < kept; i++)
        if (g->outputs.data[i].name == loss) g->outputs.data[i].value = s->loss;
}

/* Running statistics follow only a finite forward; the random stream moves on
   with every forward that trains. */
static void write_forward(Step *s) {
    Graph *g = s->g;
    ValueId ok = b1(&s->b, OP_ISFINITE, s->loss, DT_DEFAULT);
    for (int i = 0; i < g->writes.len; i++) {
        Write *w = &g->writes.data[i];
        if (value_var(g, w->var)->kind == VAR_BUFFER)
            w->value = pick(s, ok, w->value, w->var);
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
                       p->type, NULL, 0);
    return graph_var(s->g, v);
}

static void make_micro(const Graph *train, PassCtx *cx) {
    Graph *g =
        graph_clone(train, program_name(PROGRAM_MICRO, train->objective));
    Step s = step_new(g, cx, NODE_UPDATE);
    take_outputs(&s);
    ValueId *least = s.grads.data; /* tells the update of a bad micro-batch */
    for (int i = 1; i < s.grads.len; i++)
        if (type_count(value_type(g, s.grads.data[i])) <
            type_count(value_type(g, *least)))
            least = &s.grads.data[i];
    if (s.bad.i && least) *least = pick(&s, s.bad, f32c(&s, NAN), *least);
    write_forward(&s);
    for (int i = 0; i < s.params.len; i++) {
        ValueId sum = grad_var(&s, value_var(g, s.params.data[i]));
        write_var(&s, sum, bin(&s, OP_ADD, sum, s.grads.data[i]));
    }
    ValueId n = own(&s, OWN_MICRO, 0), total = own(&s, OWN_LOSS_SUM, 0);
    write_var(&s, n, bin(&s, OP_ADD, n, i32c(&s, 1)));
    write_var(&s, total, bin(&s, OP_ADD, total, s.loss));
}

static void make_update(const Graph *train, PassCtx *cx) {
    Module *m = train->module;
    Graph *g = graph_new(m, program_name(PROGRAM_UPDATE, train->objective));
    Step s = step_new(g, cx, NODE_UPDATE);
    ValueId n = own(&s, OWN_MICRO, 0), total = own(&s, OWN_LOSS_SUM, 0);
    s.micro = b_cast(&s.b, n, DT_F32);
    s.loss = bin(&s, OP_DIV, total, s.micro);
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
    emit_update(&s);
    write_var(&s, n, i32c(&s, 0));
    write_var(&s, total, f32c(&s, 0));
}

static Status check_groups(const Module *m, PassCtx *cx, const Objective *j) {
    for (int i = 0; i < j->param_groups.len; i++) {
        Str glob = j->param_groups.data[i].glob;
        bool used = false;
        for (int k = 0; k < m->vars.len; k++)
            used |= m->vars.data[k].kind == VAR_PARAM &&
                    objective_trains(j, m->vars.data[k].name) &&
                    glob_match(glob, m->vars.data[k].name);
        if (used) continue;
        fail(cx->diag, (Loc){.file = m->file},
             "--param-group '%s' matches no parameter that trains", glob);
        return ERR_USAGE;
    }
    return OK;
}

static Status make_steps(Graph *train, PassCtx *cx) {
    Step s = step_new(train, cx, 0);
    if (!s.objective)
        return fail(cx->diag, (Loc){.file = s.m->file},
                    "graph %s: there is no objective '%s'", train->name,
                    train->objective);
    TRY(check_groups(s.m, cx, s.objective));
    make_micro(train, cx);
    make_update(train, cx);
    take_outputs(&s);
    write_forward(&s);
    emit_update(&s);
    return OK;
}

/* ---- 16-bit copies ------------------------------------------------------- */

/* cast %w = the copy of %w */
static bool shadow_rule(Rewriter *rw, NodeId id, ValueId *with) {
    Graph *g = rw->g;
    const Node *n = node_get(g, id);
    if (n->op != OP_CAST || n->flags & NODE_UPDATE ||
        value_get(g, n->in[0])->kind != VK_VAR)
        return false;
    const Var *var = value_var(g, n->in[0]);
    DType d = value_dtype(g, n->out[0]);
    if ((var->kind != VAR_PARAM && var->kind != VAR_FROZEN) || !dtype_is_16(d))
        return false;
    Str name = family_name(d == DT_BF16 ? FAMILY_BF16 : FAMILY_F16, var->name);
    TypeId t = type_with_dtype(var->type, d);
    with[0] = graph_var(g, module_var(g->module, VAR_SHADOW, name, t, NULL, 0));
    return true;
}

/* A program that writes a parameter also writes its copies; refresh makes them
   all of what is there. */
static void write_copies(Graph *g, Arena *scratch) {
    Module *m = g->module;
    Step s = {.m = m, .g = g, .b = {.g = g, .flags = NODE_UPDATE}};
    ValueId *now = NEW_ARRAY(scratch, ValueId, m->vars.len + 1);
    for (int i = 0; i < g->writes.len; i++) {
        const Write *w = &g->writes.data[i];
        now[value_get(g, w->var)->var] = w->value;
    }
    for (int i = 0; i < m->vars.len; i++) {
        Var v = m->vars.data[i];
        if (v.kind != VAR_SHADOW) continue;
        int of = shadow_source(m, &v);
        if (g->program == PROGRAM_REFRESH) now[of] = graph_var(g, of);
        if (!is_value(now[of])) continue;
        DType d = type_get(v.type)->dtype;
        write_var(&s, graph_var(g, i), b_cast(&s.b, now[of], d));
    }
}

/* ---- the pass ------------------------------------------------------------ */

/* A text may declare any copy, and hold programs that are made here. */
static Status check_text(const Module *m, PassCtx *cx) {
    Loc loc = {.file = m->file};
    for (int i = 0; i < m->vars.len; i++) {
        const Var *v = &m->vars.data[i];
        if (v->kind == VAR_SHADOW && shadow_source(m, v) < 0)
            return fail(cx->diag, loc,
                        "shadow '%s' is no copy of a variable; that of 'w' is "
                        "called '%s'",
                        v->name, family_name(FAMILY_BF16, "w"));
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
    for (int i = 0; i < m->graphs.len; i++)
        rewrite_graph(m->graphs.data[i], cx->scratch, shadow_rule, NULL);
    graph_new(m, program_name(PROGRAM_REFRESH, intern("")));
    for (int i = 0; i < m->graphs.len; i++)
        write_copies(m->graphs.data[i], cx->scratch);
    /* Whatever decides how a run goes on from a checkpoint: nothing was inlined
       or fused yet, so that targets and later passes do not count. */
    m->hash = (uint64_t)cx->opt->accumulate;
    for (int i = 0; i < m->graphs.len; i++) {
        if (m->graphs.data[i]->program == PROGRAM_UNDERFLOW) continue;
        uint64_t one = graph_hash(m->graphs.data[i]);
        m->hash = hash_bytes(m->hash, &one, sizeof one);
    }
    return OK;
}
