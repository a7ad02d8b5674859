/* SPDX-License-Identifier: Apache-2.0 */
/* step.h: the program under construction, shared by the files that make an
   optimizer's step: optimizer.c has the programs, step.c the step's order,
   step_gradients.c what happens to gradients before the update, step_update.c
   the update of parameters, step_scale.c the loss scale and learning rate. */
#ifndef AMPC_PASSES_COMMON_STEP_H
#define AMPC_PASSES_COMMON_STEP_H

#include "ir/fn/optimizer.h"
#include "passes/common/early.h"
#include "passes/passes.h"

typedef VEC(ValueId) Values;

/* Values of this step, shared by parameters with equal options: the results
   of `once` of the optimizer or a wrapper. */
typedef struct Rates {
    const OptimizerSpec *spec;
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
    Values grads;     /* scaled sums, f32 or as --gradient-dtype says; unscaled
                         after step_check, f32 after step_transform */
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

static inline ValueId f64c(Step *s, double v) {
    return b_scalar(&s->b, DT_F64, v);
}
static inline ValueId f32c(Step *s, double v) {
    return b_scalar(&s->b, DT_F32, v);
}

static inline ValueId i32c(Step *s, int64_t v) {
    return graph_scalar_int(s->g, DT_I32, v);
}

static inline ValueId bin(Step *s, OpCode op, ValueId x, ValueId y) {
    return b2(&s->b, op, x, y, DT_DEFAULT);
}

/* Calls a function of std.amp; returns its first nout results. */
static inline void call(Builder *b, const char *fn, const ValueId *in, int nin,
                        const Attr *attrs, int nattr, ValueId *out, int nout) {
    NodeId id = build_call(b, fn_std(fn), in, nin, attrs, nattr, nout, NULL);
    for (int i = 0; i < nout; i++) out[i] = node_get(b->g, id)->out[i];
}

static inline void write_var(Step *s, ValueId var, ValueId value) {
    graph_write(s->g, var, b_cast(&s->b, value, value_dtype(s->g, var)));
}

static inline void output(Step *s, OwnOutput o, ValueId v) {
    graph_add_output(s->g, own_output(o, s->g->objective), v);
}

/* ---- step.c -------------------------------------------------------------- */

/* Everything between the gradients and the values that the program writes. */
Status step_emit(Step *s);

/* ---- step_gradients.c ---------------------------------------------------- */

/* Replaces the loss of the program. */
void step_set_loss(Step *s, ValueId loss);
/* Unscales a part of the gradients, and returns the sum of their squares. */
ValueId step_unscale(Step *s, EarlyPart part);
/* Unscales a part of the gradients; s->ok: they and all earlier ones are
   finite. The last part gives their norm. */
void step_check(Step *s, EarlyPart part, bool last);
/* The check of all gradients, which then are computed again. Parts of the
   second pass have numbers of their own. */
void step_first_pass(Step *s, const EarlyParts *parts);
void step_clip(Step *s, EarlyPart part);
/* What --gradient asks for. */
Status step_transform(Step *s, EarlyPart part);

/* ---- step_update.c ------------------------------------------------------- */

/* Updates the parameters of a part, and their state. */
Status step_update(Step *s, EarlyPart part);
/* The objective's first wrapper of that role; NULL: it has none. */
const OptimizerSpec *step_wrapper(const Objective *j, OptimizerRole role);
/* What a wrapper before the gradient puts in the place of parameters. */
Status step_move(Step *s, const OptimizerSpec *wrapper, ValueId *moved);
/* A program's text must define the functions that it calls. */
Status step_keep_definition(Step *s, const Fn *fn);

/* ---- step_scale.c -------------------------------------------------------- */

/* The rate of this step and its number. */
Status step_lr(Step *s);
/* The loss scale; 0: there is none. */
ValueId step_scale(Step *s);
void step_scaler(Step *s);

#endif
