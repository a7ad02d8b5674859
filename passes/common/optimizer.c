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
   call.  The sum of squares is f64, in which finite f32 gradients cannot
   overflow, so one isfinite of it is the whole check. requires     stage DIFF
   establishes  stage STEP; casts of variables became VAR_SHADOW reads;
                the module's hash */
#include "ir/fn/optimizer.h"
#include "passes/passes.h"
#include "passes/common/average.h"
#include "passes/common/compact.h"
#include "passes/common/dora.h"
#include "passes/common/early.h"
#include "passes/rewrite.h"

#include <math.h>
#include <string.h>

typedef VEC(ValueId) Values;

/* Values of this step, shared by parameters with equal options: the results
   of the optimizer's `once`. */
typedef struct Rates {
    double weight_decay, lr_scale;
    ValueId of[MAX_FN_OPERANDS];
} Rates;

/* One program under construction. */
typedef struct Step {
    Module *m;
    Graph *g;
    Diag *diag;
    const Options *opt;
    const Objective *objective;
    Builder b;
    ValueId loss;     /* f32[], unscaled                                      */
    ValueId shares;   /* f32[]: divisor of the gradients; 0: no samples */
    Values params;    /* variables                                            */
    Values squares;   /* per gradient: f64[], its sum of squares */
    Values grads;     /* f32: scaled sums; unscaled after emit_check */
    ValueId some;     /* bool[]: at least one label counts; 0: labels always
                         count */
    bool labels;      /* a train program in which possibly no label counts */
    ValueId finite;   /* bool[]: every gradient is finite                     */
    ValueId ok;       /* bool[]: finite is true, and there is a gradient */
    ValueId loss_ok;  /* bool[]                                               */
    ValueId bad;      /* bool[]: pass checks found bad data; 0: there are no
                         checks */
    ValueId norm;     /* f32[]                                                */
    ValueId lr;       /* f64[]                                                */
    ValueId number;   /* f64[]: number of the step: 1, 2, .. */
    ValueId share;    /* f32[]: share of the average that this step replaces */
    VEC(Rates) rates; /* computed so far */
} Step;

static ValueId f64c(Step *s, double v) { return b_scalar(&s->b, DT_F64, v); }
static ValueId f32c(Step *s, double v) { return b_scalar(&s->b, DT_F32, v); }

static ValueId i32c(Step *s, int64_t v) {
    return graph_scalar_int(s->g, DT_I32, v);
}

static ValueId bin(Step *s, OpCode op, ValueId x, ValueId y) {
    return b2(&s->b, op, x, y, DT_DEFAULT);
}

/* Calls a function of std.amp; returns its first nout results. */
static void call(Builder *b, const char *fn, const ValueId *in, int nin,
                 const Attr *attrs, int nattr, ValueId *out, int nout) {
    NodeId id = build_call(b, fn_std(fn), in, nin, attrs, nattr, nout, NULL);
    for (int i = 0; i < nout; i++) out[i] = node_get(b->g, id)->out[i];
}

static void write_var(Step *s, ValueId var, ValueId value) {
    graph_write(s->g, var, b_cast(&s->b, value, value_dtype(s->g, var)));
}

static void output(Step *s, OwnOutput o, ValueId v) {
    graph_add_output(s->g, own_output(o, s->g->objective), v);
}

/* ---- the scale ----------------------------------------------------------- */

enum { SCALER_ATTRS = 6 };

static void scaler_attrs(const ScaleSpec *c, Attr *to) {
    to[0] = attr_named_f("growth", c->growth);
    to[1] = attr_named_f("backoff", c->backoff);
    to[2] = attr_named_i("interval", c->interval);
    to[3] = attr_named_f("least", c->min);
    to[4] = attr_named_f("most", c->max);
    to[5] = attr_named_i("hysteresis", c->hysteresis);
}

static bool scale_moves(const Options *o) {
    return options_has_scaler(o) && o->scale.kind != SCALE_STATIC;
}

static void next_iteration(Builder *b, const Options *o, ValueId when,
                           ValueId it[5]) {
    Attr attrs[SCALER_ATTRS];
    ValueId in[] = {when, it[0], it[1], it[2], it[3], it[4]};
    scaler_attrs(&o->scale, attrs);
    call(b, "next_iteration", in, 6, attrs, SCALER_ATTRS, it, 5);
}

/* With several objectives: loads the state left by the last iteration. If
   this objective has already made a step in that iteration, the iteration
   has ended; returns whether it has. */
static ValueId open_iteration(Builder *b, const Options *o, ValueId it[5]) {
    Graph *g = b->g;
    it[0] = graph_own_var(g, OWN_SCALE, o->scale.init);
    it[1] = graph_own_var(g, OWN_GOOD, 0);
    it[2] = graph_own_var(g, OWN_HYST, (double)o->scale.hysteresis);
    it[3] = graph_own_var(g, OWN_BAD_STEP, 0);
    it[4] = graph_own_var(g, OWN_BLAMED, 0);
    ValueId zero = graph_scalar_int(g, DT_I32, 0);
    ValueId again =
        b2(b, OP_GREATER, graph_own_var(g, OWN_STEPPED, 0), zero, DT_DEFAULT);
    next_iteration(b, o, again, it);
    return again;
}

ValueId optimizer_scale(Builder *b, const Options *o) {
    ValueId it[5];
    if (o->objectives.len == 1 || !scale_moves(o))
        return graph_own_var(b->g, OWN_SCALE, o->scale.init);
    open_iteration(b, o, it);
    return it[0];
}

/* ---- learning rate ------------------------------------------------------- */

static void emit_lr(Step *s) {
    const ScheduleSpec *c = &s->objective->schedule;
    const ScheduleRow *row = c->row;
    ValueId in[SCHEDULE_KEYS + 2] = {
        graph_own_var(s->g, OWN_LR, s->objective->optimizer.lr)};
    ValueId i = b_cast(&s->b, graph_own_var(s->g, OWN_STEP, 0), DT_F64);
    bool plain = row == schedule_rows && c->key[KEY_WARMUP] == 0;
    in[1] = i;
    for (int k = 0; k < row->n && !plain; k++) {
        ScheduleKey key = row->keys[k].key;
        in[k + 2] =
            graph_own_var(s->g, schedule_keys[key].variable, c->key[key]);
    }
    s->lr = in[0];
    if (!plain) call(&s->b, row->fn, in, row->n + 2, NULL, 0, &s->lr, 1);
    s->number = bin(s, OP_ADD, i, f64c(s, 1));
}

/* ---- unscale, check, norm, clip ------------------------------------------ */

static ValueId scale_of(Step *s) {
    if (!options_has_scaler(s->opt)) return NO_VALUE;
    return optimizer_scale(&s->b, s->opt);
}

static void set_loss(Step *s, ValueId loss) {
    Str name = own_output(OUT_LOSS, s->g->objective);
    s->loss = loss;
    for (int i = 0; i < s->g->outputs.len; i++)
        if (s->g->outputs.data[i].name == name)
            s->g->outputs.data[i].value = loss;
}

/* A mean over no labels is 0 / 0 and has no gradient: the loss becomes 0,
   and the step is skipped. */
static void without_labels(Step *s, bool last) {
    ValueId nan = b1(&s->b, OP_ISNAN, s->loss, DT_DEFAULT);
    ValueId none = bin(s, OP_AND, nan, s->finite);
    s->some = b1(&s->b, OP_NOT, none, DT_DEFAULT);
    if (last) set_loss(s, b_where(&s->b, none, f32c(s, 0), s->loss));
}

/* The factor that divides gradients by scale and shares; 0: there is none. */
static ValueId unscale(Step *s) {
    ValueId by = scale_of(s);
    if (s->shares.i) by = by.i ? bin(s, OP_MUL, by, s->shares) : s->shares;
    return by.i ? b1(&s->b, OP_RECIPROCAL, by, DT_F32) : NO_VALUE;
}

/* Gradients divided by scale and shares, and the sum of their squares. */
static ValueId sum_squares(Step *s, EarlyPart part) {
    ValueId inv = unscale(s), total = f64c(s, 0), sq;
    int64_t axes[MAX_RANK];
    for (int i = 0; i < MAX_RANK; i++) axes[i] = i;
    for (int i = 0; i < part.n; i++) {
        ValueId *g = &s->grads.data[part.which[i]];
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
        s->squares.data[part.which[i]] = sq;
    }
    return total;
}

/* The sum over all parts in the order of parameters, so that the norm has
   the same bits for any division into parts. */
static ValueId sum_parts(Step *s) {
    ValueId total = s->squares.data[0];
    for (int i = 1; i < s->squares.len; i++)
        total = bin(s, OP_ADD, total, s->squares.data[i]);
    return total;
}

/* True if the gradients of a part and of all earlier parts are finite. */
static void emit_check(Step *s, EarlyPart part, bool last) {
    bool whole = last && !s->finite.i;
    ValueId total = sum_squares(s, part), finite;
    if (s->bad.i) total = b_where(&s->b, s->bad, f64c(s, NAN), total);
    finite = b1(&s->b, OP_ISFINITE, total, DT_DEFAULT);
    s->ok = s->finite =
        s->finite.i ? bin(s, OP_AND, s->finite, finite) : finite;
    if (s->labels) without_labels(s, last);
    if (s->some.i) s->ok = bin(s, OP_AND, s->finite, s->some);
    if (!last) return;
    s->b.loc.chunk = 0;
    s->loss_ok = b1(&s->b, OP_ISFINITE, s->loss, DT_DEFAULT);
    if (!whole) {
        total = sum_parts(s);
        if (s->bad.i) total = b_where(&s->b, s->bad, f64c(s, NAN), total);
    }
    s->norm = b_cast(&s->b, b1(&s->b, OP_SQRT, total, DT_F64), DT_F32);
    s->b.loc.chunk = part.chunk;
}

static void emit_clip(Step *s, EarlyPart part) {
    double most = s->objective->clip_norm, lim = s->objective->clip_value;
    Attr bounds[] = {attr_f(AK_min, -lim), attr_f(AK_max, lim)};
    Attr limit = attr_named_f("most", most);
    ValueId f, norm = s->opt->clip_previous
                          ? graph_own_var(s->g, OWN_LAST_NORM, 0)
                          : s->norm;
    if (most > 0) call(&s->b, "clip_factor", &norm, 1, &limit, 1, &f, 1);
    for (int i = 0; i < part.n; i++) {
        ValueId *g = &s->grads.data[part.which[i]];
        if (most > 0) *g = bin(s, OP_MUL, *g, f);
        if (lim > 0) *g = build(&s->b, OP_CLIP, g, 1, bounds, 2, DT_F32, NULL);
    }
}

/* Ranks that share updates hold parts of gradients. */
static Status check_parts(Step *s, const TransformSpec *t, NodeId id) {
    if (!s->opt->shard_optimizer ||
        call_is_elementwise(s->g, node_get(s->g, id)))
        return OK;
    fail(s->diag, (Loc){0},
         "--shard-optimizer: %s looks at whole gradients, so that ranks cannot "
         "share updates",
         t->fn->info.text);
    return ERR_USAGE;
}

static Status emit_transforms(Step *s, EarlyPart part) {
    for (int k = 0; k < s->objective->transforms.len; k++) {
        const TransformSpec *t = &s->objective->transforms.data[k];
        Attr attrs[MAX_OP_ATTRS];
        for (int i = 0; i < t->keys.len; i++)
            attrs[i] =
                attr_named_f(t->keys.data[i].key->name, t->keys.data[i].value);
        for (int i = 0; i < part.n; i++) {
            int p = part.which[i];
            ValueId in[] = {s->grads.data[p],
                            b_cast(&s->b, s->params.data[p], DT_F32)};
            NodeId id =
                build_call(&s->b, t->fn, in, 2, attrs, t->keys.len, 1, NULL);
            TRY(check_parts(s, t, id));
            s->grads.data[p] = node_get(s->g, id)->out[0];
        }
    }
    return OK;
}

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

/* The type of the update's operands: the parameter's, or blocks of it. */
static TypeId update_type(Step *s, const ValueId *in, int n, TypeId whole,
                          const TypeId *states, int nstate, const Attr *attrs) {
    const OptimizerSpec *o = &s->objective->optimizer;
    TypeId of[MAX_FN_OPERANDS], blocks = compact_blocks(s->opt, whole);
    if (blocks.i == whole.i) return whole;
    of[0] = of[1] = whole;
    for (int i = 2; i < n; i++) of[i] = value_get(s->g, in[i])->type;
    for (int i = 0; i < nstate; i++) of[n + i] = states[i];
    bool can = optimizer_can_reshape(o->fn, attrs, o->keys.len, of, n + nstate,
                                     whole, blocks);
    return can ? blocks : whole;
}

static Status update_one(Step *s, ValueId p, ValueId g) {
    const OptimizerSpec *o = &s->objective->optimizer;
    const Optimizer *def = o->fn->optimizer;
    const Var v = *value_var(s->g, p);
    int once = def->once->results.len, n = 3 + once, nstate = def->states.len;
    CompactVar stored[MAX_FN_OPERANDS];
    ValueId in[MAX_FN_OPERANDS] = {p, g, s->ok};
    TypeId types[MAX_FN_OPERANDS], whole = type_with_dtype(v.type, DT_F32), as;
    Attr attrs[MAX_OP_ATTRS];
    char msg[MSG_TEXT];
    Rates r;
    NodeId id;
    TRY(rates_of(s, &v, &r));
    for (int i = 0; i < once; i++) in[3 + i] = r.of[i];
    optimizer_attrs(o, &r.weight_decay, attrs);
    if (optimizer_types(def, s->g, g, attrs, o->keys.len, types + 1, msg))
        return fail(s->diag, (Loc){0}, "--optimizer %s, parameter '%s': %s",
                    o->fn->info.text, v.name, msg);
    types[0] = as = update_type(s, in, n, whole, types + 1, nstate, attrs);
    in[0] = compact_read_param(&s->b, s->opt, p, as, &stored[nstate]);
    in[1] = compact_view(&s->b, g, as);
    for (int i = 0; i < nstate; i++) {
        TypeId type = types[i + 1];
        if (!type.i) continue;
        if (as.i != whole.i) types[i + 1] = as;
        in[n + i] = compact_read_state(&s->b, s->opt, &v, &def->states.data[i],
                                       type, types[i + 1], &stored[i]);
    }
    TRY(call_checked(s, o->fn, in, n + nstate, attrs, o->keys.len, types, &v,
                     &id));
    TRY(check_shared(s, o->fn, id));
    ValueId out[MAX_FN_OPERANDS];
    memcpy(out, node_get(s->g, id)->out, (size_t)(nstate + 1) * sizeof *out);
    for (int i = 0; i < nstate; i++)
        if (types[i + 1].i)
            compact_write_state(&s->b, &stored[i], out[i + 1], s->ok);
    out[0] = compact_write_param(&s->b, &stored[nstate], out[0], s->ok);
    average_write(&s->b, s->opt, p, out[0], s->share, s->ok);
    return OK;
}

/* A program's text must define the functions that it calls. */
static void keep_definition(Module *m, const Fn *fn) {
    const Fn *parts[] = {fn->optimizer->once, fn};
    if (optimizer_find(m, fn->info.text) == fn) return;
    for (int i = 0; i < 2; i++) vec_push(m->arena, &m->fns, (Fn *)parts[i]);
}

/* ---- scaler and counters ------------------------------------------------- */

/* The iteration ends when every objective has made a step. */
static void emit_iteration(Step *s) {
    static const OwnVar vars[] = {OWN_SCALE, OWN_GOOD, OWN_HYST, OWN_BAD_STEP,
                                  OWN_BLAMED};
    ValueId it[5], zero = i32c(s, 0), one = i32c(s, 1);
    ValueId again = open_iteration(&s->b, s->opt, it);
    ValueId bad = b1(&s->b, OP_NOT, s->finite, DT_DEFAULT);
    ValueId blamed = bin(s, OP_AND, bad, s->loss_ok);
    ValueId ends = b1(&s->b, OP_NOT, again, DT_DEFAULT);
    ValueId cleared;
    it[3] = b_where(&s->b, bad, one, it[3]);
    it[4] = b_where(&s->b, blamed, one, it[4]);
    for (int i = 0; i < s->opt->objectives.len; i++) {
        Str name = s->opt->objectives.data[i].name;
        if (name == s->g->objective) continue;
        int v = module_own_var(s->m, OWN_STEPPED, name, 0);
        ValueId there = bin(s, OP_GREATER, graph_var(s->g, v), zero);
        ends = bin(s, OP_AND, ends, there);
    }
    cleared = bin(s, OP_OR, ends, again);
    for (int i = 0; i < s->opt->objectives.len; i++) {
        Str name = s->opt->objectives.data[i].name;
        int v = module_own_var(s->m, OWN_STEPPED, name, 0);
        ValueId var = graph_var(s->g, v);
        bool mine = name == s->g->objective;
        write_var(s, var,
                  mine ? b_where(&s->b, ends, zero, one)
                       : b_where(&s->b, cleared, zero, var));
    }
    next_iteration(&s->b, s->opt, ends, it);
    for (int i = 0; i < 5; i++)
        write_var(s, graph_own_var(s->g, vars[i], 0), it[i]);
}

static void emit_scaler(Step *s) {
    if (!scale_moves(s->opt)) return;
    if (s->opt->objectives.len > 1) {
        emit_iteration(s);
        return;
    }
    ValueId scale = scale_of(s), good = graph_own_var(s->g, OWN_GOOD, 0),
            out[3];
    ValueId left =
        graph_own_var(s->g, OWN_HYST, (double)s->opt->scale.hysteresis);
    ValueId in[] = {scale, good, left, s->finite, s->loss_ok};
    Attr attrs[SCALER_ATTRS];
    scaler_attrs(&s->opt->scale, attrs);
    call(&s->b, "update_scale", in, 5, attrs, SCALER_ATTRS, out, 3);
    for (int i = 0; i < 3; i++) write_var(s, in[i], out[i]);
}

static void count(Step *s, OwnVar counter, ValueId more) {
    ValueId c = graph_own_var(s->g, counter, 0);
    write_var(s, c, bin(s, OP_ADD, c, b_cast(&s->b, more, DT_I64)));
}

/* The check of all gradients, which then are computed again. Parts of the
   second pass have numbers of their own. */
static void emit_first_pass(Step *s, const EarlyParts *parts) {
    int n = s->grads.len;
    Builder b = s->b;
    ValueId *first = NEW_ARRAY(s->g->arena, ValueId, n);
    b.flags = NODE_BACKWARD;
    memcpy(first, s->grads.data, (size_t)n * sizeof *first);
    for (int i = 0; i < parts->len; i++) {
        s->b.loc.chunk = parts->data[i].chunk;
        emit_check(s, parts->data[i], i + 1 == parts->len);
    }
    ValueId inv = unscale(s);
    for (int i = 0; i < parts->len; i++) {
        EarlyPart *part = &parts->data[i];
        part->chunk += parts->len;
        s->b.loc.chunk = part->chunk;
        for (int k = 0; k < part->n; k++) {
            ValueId *g = &s->grads.data[part->which[k]];
            *g = early_again(&b, first[part->which[k]], s->ok);
            if (inv.i) *g = bin(s, OP_MUL, *g, inv);
        }
    }
    s->b.loc.chunk = 0;
}

/* Updates the parameters of a part. */
static Status emit_part(Step *s, EarlyPart part) {
    s->b.loc.chunk = part.chunk;
    emit_clip(s, part);
    TRY(emit_transforms(s, part));
    s->b.loc.chunk = 0;
    if (!s->share.i) s->share = average_share(&s->b, s->opt, s->number);
    s->b.loc.chunk = part.chunk;
    for (int i = 0; i < part.n; i++) {
        int p = part.which[i];
        TRY(update_one(s, s->params.data[p], s->grads.data[p]));
    }
    s->b.loc.chunk = 0;
    return OK;
}

static Status emit_update(Step *s) {
    int n = s->grads.len;
    EarlyParts parts;
    ASSERT(s->objective && is_value(s->loss));
    ASSERT(n > 0 && n == s->params.len);
    s->b.flags = NODE_UPDATE;
    s->squares = s->grads;
    s->squares.data = NEW_ARRAY(s->g->arena, ValueId, n);
    parts = early_parts(s->g, s->opt, s->grads.data, n);
    emit_lr(s);
    keep_definition(s->m, s->objective->optimizer.fn);
    bool twice = early_needs_norm(s->g, s->opt);
    if (twice) emit_first_pass(s, &parts);
    for (int i = 0; i < parts.len; i++) {
        s->b.loc.chunk = parts.data[i].chunk;
        if (!twice) emit_check(s, parts.data[i], i + 1 == parts.len);
        TRY(emit_part(s, parts.data[i]));
    }
    if (s->opt->clip_previous) {
        ValueId last = graph_own_var(s->g, OWN_LAST_NORM, 0);
        write_var(s, last, b_where(&s->b, s->ok, s->norm, last));
    }
    ValueId scale = scale_of(s), step = graph_own_var(s->g, OWN_STEP, 0);
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
    ValueId streak = graph_own_var(s->g, OWN_SKIP_STREAK, 0);
    ValueId longer = bin(s, OP_ADD, streak, one);
    write_var(s, streak,
              b_where(&s->b, s->ok, graph_scalar_int(s->g, DT_I64, 0), longer));
    return OK;
}

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
    set_loss(s, b_where(&s->b, s->bad, f32c(s, NAN), s->loss));
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
        set_loss(&s, b_where(&s.b, some, s.loss, f32c(&s, 0)));
    }
    take_outputs(&s);
    if (compact_draws(cx->opt)) graph_own_var(g, OWN_RNG, 0);
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
        set_loss(&s, bin(&s, OP_DIV, s.loss,
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
    TRY(emit_update(&s));
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

/* State belongs to a parameter, so that only one objective may change it. */
static Status check_objective(const Module *m, PassCtx *cx, const Graph *train,
                              const Objective *j) {
    const Fn *fn = j->optimizer.fn;
    if (cx->opt->average.fn && optimizer_evaluates(fn->optimizer)) {
        fail(cx->diag, (Loc){.file = m->file},
             "--ema and --swa: --optimizer %s computes itself what evaluation "
             "reads; leave one of both out",
             fn->info.text);
        return ERR_USAGE;
    }
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
    if (compact_draws(cx->opt)) graph_own_var(train, OWN_RNG, 0);
    write_forward(&s);
    TRY(emit_update(&s));
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
        write_var(&s, graph_var(g, i), compact_view(&s.b, x, v.type));
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
