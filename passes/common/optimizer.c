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

/* One program under construction. */
typedef struct Step {
    Module *m;
    Graph *g;
    const Options *opt;
    const Objective *objective;
    Builder b;
    ValueId loss;    /* f32[], unscaled                                    */
    ValueId micro;   /* f32[]: micro-batches in the gradients; 0 = one     */
    Values params;   /* variables                                          */
    Values grads;    /* scaled sums, f32                                   */
    Values unscaled; /* before clipping                                    */
    ValueId ok;      /* bool[]: every gradient is finite                   */
    ValueId loss_ok; /* bool[]                                             */
    ValueId bad;   /* bool[]: pass checks found bad data; 0 = it did not look */
    ValueId norm;  /* f32[]                                              */
    ValueId clip;  /* f32[] factor; 0 = none                             */
    ValueId lr;    /* f64[]                                              */
    ValueId step1; /* f64[]: number of this step, from 1                 */
} Step;

static ValueId f64c(Step *s, double v) { return b_scalar(&s->b, DT_F64, v); }
static ValueId f32c(Step *s, double v) { return b_scalar(&s->b, DT_F32, v); }

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

static ValueId i64c(Step *s, int64_t v) {
    return graph_scalar_int(s->g, DT_I64, v);
}

/* ---- learning rate ------------------------------------------------------- */

/* x / y in [0, 1], for the decays */
static ValueId progress(Step *s, ValueId i, const ScheduleSpec *c) {
    ValueId done = bin(s, OP_SUB, i, f64c(s, (double)c->warmup));
    ValueId p = bin(s, OP_DIV, done, f64c(s, (double)(c->total - c->warmup)));
    return bin(s, OP_MIN, p, f64c(s, 1));
}

/* min + (lr - min) * share */
static ValueId between(Step *s, ValueId lr, double min, ValueId share) {
    ValueId span = bin(s, OP_SUB, lr, f64c(s, min));
    return bin(s, OP_ADD, f64c(s, min), bin(s, OP_MUL, span, share));
}

static ValueId decayed(Step *s, ValueId lr, ValueId i) {
    const ScheduleSpec *c = &s->objective->schedule;
    const double pi = 3.14159265358979323846;
    if (c->kind == SCHED_COSINE) {
        ValueId angle = bin(s, OP_MUL, progress(s, i, c), f64c(s, pi));
        ValueId cosine = b1(&s->b, OP_COS, angle, DT_F64);
        ValueId share =
            bin(s, OP_MUL, bin(s, OP_ADD, cosine, f64c(s, 1)), f64c(s, 0.5));
        return between(s, lr, c->min, share);
    }
    if (c->kind == SCHED_LINEAR) {
        ValueId left = bin(s, OP_SUB, f64c(s, 1), progress(s, i, c));
        return between(s, lr, c->min, left);
    }
    if (c->kind == SCHED_STEP) {
        ValueId done = bin(s, OP_SUB, i, f64c(s, (double)c->warmup));
        ValueId n = bin(s, OP_DIV, done, f64c(s, (double)c->every));
        n = bin(s, OP_MAX, b1(&s->b, OP_FLOOR, n, DT_F64), f64c(s, 0));
        return bin(s, OP_MUL, lr, bin(s, OP_POW, f64c(s, c->gamma), n));
    }
    return lr;
}

/* lr of this step from i = successful steps so far */
static void emit_lr(Step *s) {
    const ScheduleSpec *c = &s->objective->schedule;
    ValueId base = own(s, OWN_LR, s->objective->optimizer.lr);
    ValueId i = b_cast(&s->b, own(s, OWN_STEP, 0), DT_F64);
    s->step1 = bin(s, OP_ADD, i, f64c(s, 1));
    s->lr = decayed(s, base, i);
    if (c->warmup > 0) {
        ValueId share = bin(s, OP_DIV, s->step1, f64c(s, (double)c->warmup));
        ValueId cold = bin(s, OP_LESS, i, f64c(s, (double)c->warmup));
        s->lr = pick(s, cold, bin(s, OP_MUL, base, share), s->lr);
    }
}

/* ---- unscale, check, norm, clip ------------------------------------------ */

static ValueId scale_var(Step *s) {
    if (!options_has_scaler(s->opt)) return NO_VALUE;
    return own(s, OWN_SCALE, s->opt->scale.init);
}

/* 1 / (scale * micro-batches), or 0 = one */
static ValueId inverse_scale(Step *s) {
    ValueId scale = scale_var(s), all = s->micro;
    if (scale.i) all = all.i ? bin(s, OP_MUL, scale, all) : scale;
    return all.i ? b1(&s->b, OP_RECIPROCAL, all, DT_F32) : NO_VALUE;
}

static ValueId sum_of_squares(Step *s, ValueId g) {
    int rank = value_type(s->g, g)->rank;
    int64_t axes[MAX_RANK];
    for (int i = 0; i < rank; i++) axes[i] = i;
    if (!rank) {
        ValueId wide = b_cast(&s->b, g, DT_F64);
        return bin(s, OP_MUL, wide, wide);
    }
    return b_reduce(&s->b, OP_REDUCE_SUMSQ, g, axes, rank, false, DT_F64);
}

static void emit_check(Step *s) {
    ValueId inv = inverse_scale(s), total = f64c(s, 0);
    for (int i = 0; i < s->grads.len; i++) {
        ValueId g = s->grads.data[i];
        ASSERT(value_dtype(s->g, g) == DT_F32);
        if (inv.i) g = bin(s, OP_MUL, g, inv);
        vec_push(s->g->arena, &s->unscaled, g);
        ValueId sq = sum_of_squares(s, g);
        total = i ? bin(s, OP_ADD, total, sq) : sq;
    }
    if (s->bad.i) total = pick(s, s->bad, f64c(s, NAN), total);
    s->ok = b1(&s->b, OP_ISFINITE, total, DT_DEFAULT);
    s->loss_ok = b1(&s->b, OP_ISFINITE, s->loss, DT_DEFAULT);
    s->norm = b_cast(&s->b, b1(&s->b, OP_SQRT, total, DT_F64), DT_F32);
}

/* clip_grad_norm_: min(1, max_norm / (norm + 1e-6)) */
static void emit_clip(Step *s) {
    if (s->objective->clip_norm <= 0) return;
    ValueId room = bin(s, OP_ADD, s->norm, f32c(s, 1e-6));
    ValueId f = bin(s, OP_DIV, f32c(s, s->objective->clip_norm), room);
    s->clip = bin(s, OP_MIN, f, f32c(s, 1));
}

static ValueId clipped(Step *s, ValueId g) {
    double lim = s->objective->clip_value;
    if (s->clip.i) g = bin(s, OP_MUL, g, s->clip);
    if (lim <= 0) return g;
    Attr a[] = {attr_f(AK_min, -lim), attr_f(AK_max, lim)};
    return build(&s->b, OP_CLIP, &g, 1, a, 2, DT_F32, NULL);
}

/* ---- one parameter ------------------------------------------------------- */

typedef struct Hyper {
    double weight_decay, lr_scale;
} Hyper;

static Hyper hyper_of(const Step *s, const Var *v) {
    Hyper h = {s->objective->optimizer.weight_decay, v->lr_scale};
    if (!isnan(v->weight_decay)) h.weight_decay = v->weight_decay;
    for (int i = 0; i < s->objective->param_groups.len; i++) {
        const ParamGroup *g = &s->objective->param_groups.data[i];
        if (!glob_match(g->glob, v->name)) continue;
        if (!isnan(g->lr_scale)) h.lr_scale = g->lr_scale;
        if (!isnan(g->weight_decay)) h.weight_decay = g->weight_decay;
    }
    return h;
}

static ValueId opt_state(Step *s, ValueId p, const char *what) {
    const Var *v = value_var(s->g, p);
    Str name = internf("%s/%s", family_name(FAMILY_OPT, v->name), what);
    int i = module_var(s->m, VAR_STATE, name, v->type, NULL, 0);
    return graph_var(s->g, i);
}

/* var <- ok ? value : var */
static ValueId update(Step *s, ValueId var, ValueId value) {
    ValueId kept = pick(s, s->ok, value, var);
    write_var(s, var, kept);
    return kept;
}

static ValueId lr_of(Step *s, Hyper h) {
    return h.lr_scale == 1 ? s->lr : bin(s, OP_MUL, s->lr, f64c(s, h.lr_scale));
}

static ValueId neg32(Step *s, ValueId x) {
    return b_cast(&s->b, b1(&s->b, OP_NEG, x, DT_F64), DT_F32);
}

/* sgd.py: g += wd p; buf = momentum buf + g; p -= lr (nesterov ? g + momentum
   buf : buf).  A zero buffer makes the first step PyTorch's buf = g. */
static ValueId sgd(Step *s, ValueId p, ValueId g, Hyper h) {
    const OptimizerSpec *o = &s->objective->optimizer;
    if (h.weight_decay != 0)
        g = bin(s, OP_ADD, g, bin(s, OP_MUL, p, f32c(s, h.weight_decay)));
    if (o->momentum != 0) {
        ValueId mu = f32c(s, o->momentum);
        ValueId buf = opt_state(s, p, "momentum_buffer");
        ValueId next = bin(s, OP_ADD, bin(s, OP_MUL, buf, mu), g);
        update(s, buf, next);
        g = o->nesterov ? bin(s, OP_ADD, g, bin(s, OP_MUL, next, mu)) : next;
    }
    return bin(s, OP_ADD, p, bin(s, OP_MUL, g, neg32(s, lr_of(s, h))));
}

/* 1 - beta ** t in f64 */
static ValueId bias_correction(Step *s, double beta) {
    return bin(s, OP_SUB, f64c(s, 1), bin(s, OP_POW, f64c(s, beta), s->step1));
}

/* adam.py, adamw.py (single tensor, not capturable):
   m.lerp_(g, 1-b1); v = b2 v + (1-b2) g g; denom = sqrt(v)/sqrt(bc2) + eps;
   p += -(lr/bc1) m / denom.  AdamW first p *= 1 - lr wd; Adam g += wd p. */
static ValueId adam(Step *s, ValueId var, ValueId g, Hyper h) {
    const OptimizerSpec *o = &s->objective->optimizer;
    ValueId lr = lr_of(s, h), p = var;
    if (h.weight_decay != 0 && o->kind == OPT_ADAMW) {
        ValueId decay = bin(s, OP_MUL, lr, f64c(s, h.weight_decay));
        ValueId keep = bin(s, OP_SUB, f64c(s, 1), decay);
        p = bin(s, OP_MUL, p, b_cast(&s->b, keep, DT_F32));
    } else if (h.weight_decay != 0) {
        g = bin(s, OP_ADD, g, bin(s, OP_MUL, p, f32c(s, h.weight_decay)));
    }
    ValueId m = opt_state(s, var, "exp_avg");
    ValueId v = opt_state(s, var, "exp_avg_sq");
    ValueId dm = bin(s, OP_MUL, bin(s, OP_SUB, g, m), f32c(s, 1 - o->beta1));
    ValueId m1 = bin(s, OP_ADD, m, dm);
    ValueId gg = bin(s, OP_MUL, bin(s, OP_MUL, g, f32c(s, 1 - o->beta2)), g);
    ValueId v1 = bin(s, OP_ADD, bin(s, OP_MUL, v, f32c(s, o->beta2)), gg);
    update(s, m, m1);
    update(s, v, v1);
    ValueId bc1 = bias_correction(s, o->beta1);
    ValueId bc2 = b1(&s->b, OP_SQRT, bias_correction(s, o->beta2), DT_F64);
    ValueId denom = bin(s, OP_DIV, b1(&s->b, OP_SQRT, v1, DT_F32),
                        b_cast(&s->b, bc2, DT_F32));
    denom = bin(s, OP_ADD, denom, f32c(s, o->eps));
    ValueId step = neg32(s, bin(s, OP_DIV, lr, bc1));
    ValueId move = bin(s, OP_DIV, bin(s, OP_MUL, step, m1), denom);
    return bin(s, OP_ADD, p, move);
}

static void emit_parameters(Step *s) {
    for (int i = 0; i < s->params.len; i++) {
        ValueId p = s->params.data[i], g = clipped(s, s->unscaled.data[i]);
        Hyper h = hyper_of(s, value_var(s->g, p));
        bool is_sgd = s->objective->optimizer.kind == OPT_SGD;
        update(s, p, is_sgd ? sgd(s, p, g, h) : adam(s, p, g, h));
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
    ValueId scale = scale_var(s), zero = graph_scalar_int(s->g, DT_I32, 0);
    ValueId one = graph_scalar_int(s->g, DT_I32, 1);
    ValueId good = own(s, OWN_GOOD, 0);
    ValueId hyst = own(s, OWN_HYST, (double)c->hysteresis);
    ValueId full = graph_scalar_int(s->g, DT_I32, c->hysteresis);
    ValueId bad = b1(&s->b, OP_NOT, s->ok, DT_DEFAULT);
    bool as_pytorch = c->min == 0 && isinf(c->max);
    ValueId blame = as_pytorch ? bad : bin(s, OP_AND, bad, s->loss_ok);
    ValueId left = bin(s, OP_SUB, hyst, one);
    ValueId worn = bin(s, OP_LESS_EQUAL, left, zero);
    ValueId back = bin(s, OP_AND, blame, worn);
    ValueId good1 = bin(s, OP_ADD, good, one);
    ValueId limit = graph_scalar_int(s->g, DT_I32, c->interval);
    ValueId due = bin(s, OP_AND, s->ok, bin(s, OP_GREATER_EQUAL, good1, limit));
    ValueId grown = bin(s, OP_MUL, scale, f32c(s, c->growth));
    ValueId grow =
        bin(s, OP_AND, due, b1(&s->b, OP_ISFINITE, grown, DT_DEFAULT));
    ValueId up = bin(s, OP_MIN, grown, f32c(s, c->max));
    ValueId down = bin(s, OP_MAX, bin(s, OP_MUL, scale, f32c(s, c->backoff)),
                       f32c(s, c->min));
    write_var(s, scale, pick(s, back, down, pick(s, grow, up, scale)));
    ValueId kept = pick(s, due, zero, good1);
    write_var(s, good, pick(s, s->ok, kept, zero));
    ValueId spent = pick(s, blame, bin(s, OP_MAX, left, zero), hyst);
    write_var(s, hyst, pick(s, due, full, spent));
}

static void count(Step *s, OwnVar counter, ValueId flag) {
    ValueId c = own(s, counter, 0);
    ValueId more = flag.i ? b_cast(&s->b, flag, DT_I64) : i64c(s, 1);
    write_var(s, c, bin(s, OP_ADD, c, more));
}

static void emit_counters(Step *s) {
    ValueId bad = b1(&s->b, OP_NOT, s->ok, DT_DEFAULT);
    count(s, OWN_STEP, s->ok);
    count(s, OWN_TRIED, NO_VALUE);
    count(s, OWN_SKIPPED, bad);
    count(s, OWN_BAD_FORWARD, b1(&s->b, OP_NOT, s->loss_ok, DT_DEFAULT));
    ValueId streak = own(s, OWN_SKIP_STREAK, 0);
    ValueId longer = bin(s, OP_ADD, streak, i64c(s, 1));
    write_var(s, streak, pick(s, s->ok, i64c(s, 0), longer));
}

static void emit_outputs(Step *s) {
    ValueId scale = scale_var(s), step = own(s, OWN_STEP, 0);
    output(s, OUT_GRAD_NORM, s->norm);
    output(s, OUT_SCALE, scale.i ? b_cast(&s->b, scale, DT_F32) : f32c(s, 1));
    output(s, OUT_LR, b_cast(&s->b, s->lr, DT_F32));
    output(s, OUT_APPLIED, s->ok);
    output(s, OUT_STEP, bin(s, OP_ADD, step, b_cast(&s->b, s->ok, DT_I64)));
}

static void emit_update(Step *s) {
    ASSERT(s->objective && is_value(s->loss));
    ASSERT(s->grads.len > 0 && s->grads.len == s->params.len);
    s->b.flags = NODE_UPDATE;
    emit_lr(s);
    emit_check(s);
    emit_clip(s);
    emit_parameters(s);
    emit_outputs(s);
    emit_scaler(s);
    emit_counters(s);
}

/* ---- programs ------------------------------------------------------------ */

/* The parameter whose gradient an output is; -1. */
static int gradient_of(const Module *m, const Output *o) {
    Str of = family_member(FAMILY_GRAD, o->name);
    int v = of ? module_find_var(m, of) : -1;
    ASSERT(!of || v >= 0);
    return v;
}

/* Takes the gradients off the graph's outputs. */
static void take_gradients(Step *s) {
    int kept = 0;
    for (int i = 0; i < s->g->outputs.len; i++) {
        Output o = s->g->outputs.data[i];
        int v = gradient_of(s->m, &o);
        if (v < 0) {
            s->g->outputs.data[kept++] = o;
            continue;
        }
        vec_push(s->g->arena, &s->params, graph_var(s->g, v));
        vec_push(s->g->arena, &s->grads, b_cast(&s->b, o.value, DT_F32));
    }
    s->g->outputs.len = kept;
}

/* Takes ampc.bad off the graph.  Bad data make the loss NaN, and so what
   follows a loss that is not finite follows them. */
static void take_bad(Step *s) {
    Str bad = own_output(OUT_BAD, s->g->objective);
    Str loss = own_output(OUT_LOSS, s->g->objective);
    s->bad = graph_output(s->g, bad);
    if (!s->bad.i) return;
    s->loss = pick(s, s->bad, f32c(s, NAN), s->loss);
    int kept = 0;
    for (int i = 0; i < s->g->outputs.len; i++) {
        Output o = s->g->outputs.data[i];
        if (o.name == bad) continue;
        if (o.name == loss) o.value = s->loss;
        s->g->outputs.data[kept++] = o;
    }
    s->g->outputs.len = kept;
}

/* One gradient, the smallest, tells the update of a bad micro-batch. */
static void spoil_gradient(Step *s) {
    int least = 0;
    if (!s->bad.i || !s->grads.len) return;
    for (int i = 1; i < s->grads.len; i++)
        if (type_count(value_type(s->g, s->grads.data[i])) <
            type_count(value_type(s->g, s->grads.data[least])))
            least = i;
    s->grads.data[least] = pick(s, s->bad, f32c(s, NAN), s->grads.data[least]);
}

/* Running statistics follow only a finite forward. */
static void gate_buffers(Step *s) {
    ValueId ok = b1(&s->b, OP_ISFINITE, s->loss, DT_DEFAULT);
    for (int i = 0; i < s->g->writes.len; i++) {
        Write *w = &s->g->writes.data[i];
        if (value_var(s->g, w->var)->kind == VAR_BUFFER)
            w->value = pick(s, ok, w->value, w->var);
    }
}

/* The random stream moves on with every forward that trains. */
static void advance_rng(Step *s) {
    int v = module_find_own_var(s->m, OWN_RNG, s->g->objective);
    if (v < 0 || !graph_find_var(s->g, v).i) return;
    int64_t *one = arena_dup(s->g->arena, (int64_t[]){0, 1}, 16);
    int64_t dim = 2;
    Tensor *t = NEW(s->g->arena, Tensor);
    *t = (Tensor){type_make(DT_I64, 1, &dim), one};
    ValueId rng = graph_var(s->g, v);
    write_var(s, rng,
              bin(s, OP_ADD, rng, graph_const(s->g, "ampc.rng.step", t)));
}

static Step step_new(Graph *g, PassCtx *cx, uint32_t flags) {
    Step s = {.m = g->module, .g = g, .opt = cx->opt};
    s.objective = options_objective(cx->opt, g->objective);
    s.b = (Builder){.g = g, .flags = flags};
    s.loss = graph_output(g, own_output(OUT_LOSS, g->objective));
    return s;
}

static void make_train(Graph *g, PassCtx *cx) {
    Step s = step_new(g, cx, 0);
    take_gradients(&s);
    take_bad(&s);
    gate_buffers(&s);
    advance_rng(&s);
    emit_update(&s);
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
    take_gradients(&s);
    take_bad(&s);
    spoil_gradient(&s);
    gate_buffers(&s);
    advance_rng(&s);
    for (int i = 0; i < s.params.len; i++) {
        ValueId sum = grad_var(&s, value_var(g, s.params.data[i]));
        write_var(&s, sum, bin(&s, OP_ADD, sum, s.grads.data[i]));
    }
    ValueId n = own(&s, OWN_MICRO, 0), total = own(&s, OWN_LOSS_SUM, 0);
    write_var(&s, n, bin(&s, OP_ADD, n, graph_scalar_int(g, DT_I32, 1)));
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
    write_var(&s, n, graph_scalar_int(g, DT_I32, 0));
    write_var(&s, total, f32c(&s, 0));
}

/* ---- 16-bit copies ------------------------------------------------------- */

static bool is_weight(const Graph *g, ValueId v) {
    if (value_get(g, v)->kind != VK_VAR) return false;
    VarKind k = value_var(g, v)->kind;
    return k == VAR_PARAM || k == VAR_FROZEN;
}

static int shadow_of(Graph *g, ValueId v, DType d) {
    const Var *var = value_var(g, v);
    Str name = family_name(d == DT_BF16 ? FAMILY_BF16 : FAMILY_F16, var->name);
    return module_var(g->module, VAR_SHADOW, name,
                      type_with_dtype(var->type, d), NULL, 0);
}

static bool shadow_rule(Rewriter *rw, NodeId id, ValueId *with) {
    const Node *n = node_get(rw->g, id);
    if (n->op != OP_CAST || (n->flags & NODE_UPDATE) ||
        !is_weight(rw->g, n->in[0]) ||
        !dtype_is_16(value_dtype(rw->g, n->out[0])))
        return false;
    DType d = value_dtype(rw->g, n->out[0]);
    with[0] = graph_var(rw->g, shadow_of(rw->g, n->in[0], d));
    return true;
}

static void make_refresh(Module *m) {
    Step s = {.m = m,
              .g = graph_new(m, program_name(PROGRAM_REFRESH, intern("")))};
    s.b = (Builder){.g = s.g, .flags = NODE_UPDATE};
    for (int i = 0; i < m->vars.len; i++) {
        Var v = m->vars.data[i];
        if (v.kind != VAR_SHADOW) continue;
        ValueId from = graph_var(s.g, shadow_source(m, &v));
        DType d = type_get(v.type)->dtype;
        write_var(&s, graph_var(s.g, i), b_cast(&s.b, from, d));
    }
}

/* A program that writes a parameter also writes its copies. */
static void update_shadows(Module *m, Graph *g) {
    Step s = {.m = m, .g = g, .b = {.g = g, .flags = NODE_UPDATE}};
    ValueId *now = NEW_ARRAY(g->arena, ValueId, m->vars.len + 1);
    for (int i = 0; i < g->writes.len; i++) {
        const Write *w = &g->writes.data[i];
        now[value_get(g, w->var)->var] = w->value;
    }
    for (int i = 0; i < m->vars.len; i++) {
        Var v = m->vars.data[i];
        if (v.kind != VAR_SHADOW || !is_value(now[shadow_source(m, &v)]))
            continue;
        ValueId from = now[shadow_source(m, &v)];
        DType d = type_get(v.type)->dtype;
        write_var(&s, graph_var(g, i), b_cast(&s.b, from, d));
    }
}

/* Whatever decides how a run goes on from a checkpoint: nothing was inlined or
   fused yet, so that targets and later passes do not count. */
static uint64_t programs_hash(const Module *m, const Options *opt) {
    uint64_t h = (uint64_t)opt->accumulate;
    for (int i = 0; i < m->graphs.len; i++) {
        uint64_t one = graph_hash(m->graphs.data[i]);
        h = hash_bytes(h, &one, sizeof one);
    }
    return h;
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
    const Objective *j = options_objective(cx->opt, train->objective);
    if (!j)
        return fail(cx->diag, (Loc){.file = train->module->file},
                    "graph %s: there is no objective '%s'", train->name,
                    train->objective);
    TRY(check_groups(train->module, cx, j));
    make_micro(train, cx);
    make_update(train, cx);
    make_train(train, cx);
    return OK;
}

/* A text may declare any. */
static Status check_shadows(const Module *m, PassCtx *cx) {
    for (int i = 0; i < m->vars.len; i++) {
        const Var *v = &m->vars.data[i];
        if (v->kind == VAR_SHADOW && shadow_source(m, v) < 0)
            return fail(cx->diag, (Loc){.file = m->file},
                        "shadow '%s' is no copy of a variable; that of 'w' is "
                        "called '%s'",
                        v->name, family_name(FAMILY_BF16, "w"));
    }
    return OK;
}

/* Nor has it programs that are made here. */
static Status check_programs(const Module *m, PassCtx *cx) {
    for (int i = 0; i < m->graphs.len; i++) {
        const Graph *g = m->graphs.data[i];
        if (g->program == PROGRAM_MICRO || g->program == PROGRAM_UPDATE ||
            g->program == PROGRAM_REFRESH)
            return fail(cx->diag, (Loc){.file = m->file},
                        "graph %s: the optimizer makes the program of that "
                        "name",
                        g->name);
    }
    return OK;
}

Status pass_optimizer(Module *m, PassCtx *cx) {
    int n = m->graphs.len;
    TRY(check_shadows(m, cx));
    TRY(check_programs(m, cx));
    for (int i = 0; i < n; i++)
        if (m->graphs.data[i]->program == PROGRAM_TRAIN)
            TRY(make_steps(m->graphs.data[i], cx));
    for (int i = 0; i < m->graphs.len; i++)
        rewrite_graph(m->graphs.data[i], cx->scratch, shadow_rule, NULL);
    for (int i = 0; i < m->graphs.len; i++)
        update_shadows(m, m->graphs.data[i]);
    make_refresh(m);
    m->hash = programs_hash(m, cx->opt);
    return OK;
}
