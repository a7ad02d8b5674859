/* SPDX-License-Identifier: Apache-2.0 */
/* step_scale.c: the loss scale, which grows and backs off, and the learning
   rate of a step. */
#include "passes/common/step.h"

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

ValueId step_scale(Step *s) {
    if (!options_has_scaler(s->opt)) return NO_VALUE;
    return optimizer_scale(&s->b, s->opt);
}

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

void step_scaler(Step *s) {
    if (!scale_moves(s->opt)) return;
    if (s->opt->objectives.len > 1) {
        emit_iteration(s);
        return;
    }
    ValueId scale = step_scale(s), good = graph_own_var(s->g, OWN_GOOD, 0),
            out[3];
    ValueId left =
        graph_own_var(s->g, OWN_HYST, (double)s->opt->scale.hysteresis);
    ValueId in[] = {scale, good, left, s->finite, s->loss_ok};
    Attr attrs[SCALER_ATTRS];
    scaler_attrs(&s->opt->scale, attrs);
    call(&s->b, "update_scale", in, 5, attrs, SCALER_ATTRS, out, 3);
    for (int i = 0; i < 3; i++) write_var(s, in[i], out[i]);
}

/* ---- learning rate ------------------------------------------------------- */

/* The functions of the user's text. */
static Status keep_schedule(Step *s, const ScheduleRow *row) {
    for (int i = 0; row->own && i < row->own->fns.len; i++) {
        const Fn *f = row->own->fns.data[i];
        if (fn_keep(s->m, f)) continue;
        fail(s->diag, (Loc){.file = s->m->file},
             "--lr-schedule %s defines '%s', and so does the model or an "
             "optimizer, differently; rename one of them",
             row->word, f->info.text);
        return ERR_USAGE;
    }
    return OK;
}

Status step_lr(Step *s) {
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
    if (!plain) {
        Attr attrs[MAX_OP_ATTRS];
        schedule_attrs(c, attrs);
        NodeId id = build_call(&s->b, schedule_fn(c), in, row->n + 2, attrs,
                               c->fixed.len, 1, NULL);
        s->lr = node_get(s->g, id)->out[0];
    }
    s->number = bin(s, OP_ADD, i, f64c(s, 1));
    return keep_schedule(s, row);
}
