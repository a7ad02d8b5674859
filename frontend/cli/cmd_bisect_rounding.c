/* SPDX-License-Identifier: Apache-2.0 */
/* cmd_bisect_rounding.c: see cmd_bisect.h.

   A value may be badly conditioned: a sum whose exact value is 0, a difference
   of nearly equal numbers. Analysis of each op would only bound how far
   rounding moves it; here the nodes are interpreted again from operands and
   with results that are changed by one unit of their dtype. */
#include "frontend/cli/cmd_bisect.h"

#include <math.h>
#include <string.h>

#include "runtime/program/draw.h"

static Unit unit_of(DType d) {
    return (Unit){ldexp(1, -dtype_info[d].mantissa), dtype_info[d].least,
                  !dtype_is_low(d)};
}

/* The dtype with fewer bits of both sides' values with this name. */
static DType coarser(const Slice *x, ValueId v, bool *same) {
    DType own = value_dtype(x->p->g, v);
    Str name = value_get(x->p->g, v)->name;
    ValueId w = name ? graph_find_value(x->q->g, name) : NO_VALUE;
    DType theirs = w.i ? value_dtype(x->q->g, w) : own;
    *same = w.i && own == theirs;
    return dtype_info[theirs].mantissa < dtype_info[own].mantissa ? theirs
                                                                  : own;
}

static Unit unit_for(const Slice *x, ValueId v, bool operand, Roundings which) {
    bool same;
    DType d = coarser(x, v, &same);
    if (!dtype_is_float(value_dtype(x->p->g, v))) return (Unit){0};
    if (operand && is_noise(x, v)) return (Unit){1, 0, false};
    switch (which) {
    case ROUND_ALL: return unit_of(d);
    case ROUND_APART: return unit_of(same && dtype_is_low(d) ? DT_F32 : d);
    case ROUND_CODE: break;
    }
    return unit_of(operand ? DT_F32 : value_dtype(x->p->g, v));
}

static const Unit *units_for(const Slice *x, Roundings which, Arena *a) {
    const Graph *g = x->p->g;
    Unit *unit = NEW_ARRAY(a, Unit, g->values.len);
    bool *made = NEW_ARRAY(a, bool, g->values.len);
    for (int i = 0; i < x->order.len; i++) {
        const Node *n = node_get(g, x->order.data[i]);
        for (int k = 0; k < n->nin; k++)
            if (n->in[k].i && !made[n->in[k].i])
                unit[n->in[k].i] = unit_for(x, n->in[k], true, which);
        for (int k = 0; k < n->nout; k++) {
            made[n->out[k].i] = true;
            unit[n->out[k].i] = unit_for(x, n->out[k], false, which);
        }
    }
    return unit;
}

/* Root mean square of the differences of finite elements. An integer, such as
   an index, that changes can be any other. */
static double distance(const EvalTensor *a, const EvalTensor *b) {
    int64_t n = type_count(type_get(a->type));
    double sum = 0;
    for (int64_t k = 0; k < n; k++) {
        double d = a->f ? a->f[k] - b->f[k] : a->i[k] == b->i[k] ? 0 : INFINITY;
        if (!a->f || isfinite(d)) sum += d * d;
    }
    return n ? sqrt(sum / (double)n) : 0;
}

double *slice_moved(Slice *x, const Slice *like, Roundings which, Arena *a) {
    EvalTensor **plain = x->value;
    double *moved = NEW_ARRAY(a, double, x->p->g->values.len);
    Status st = OK;
    x->unit = units_for(x, which, a);
    for (int r = 0; r < ROUNDING_REPETITIONS && st == OK; r++) {
        Arena *of_run = arena_new();
        Diag quiet = {0};
        x->repetition = r;
        st = slice_run(x, like, of_run, &quiet);
        for (int i = 0; i < x->order.len && st == OK; i++) {
            const Node *n = node_get(x->p->g, x->order.data[i]);
            for (int k = 0; k < n->nout; k++) {
                uint32_t v = n->out[k].i;
                if (plain[v] && x->value[v])
                    moved[v] = fmax(moved[v], distance(plain[v], x->value[v]));
            }
        }
        sb_free(&quiet.text);
        arena_free(of_run);
    }
    x->unit = NULL;
    x->value = plain;
    return st == OK ? moved : NULL;
}

/* ---- what rounding decides ----------------------------------------------- */

/* A copy of t; each element moves by up to `far`, or a unit of its own. */
static EvalTensor *stirred(const EvalTensor *t, double far, const Unit *u,
                           uint64_t *seed, Arena *a) {
    const double several = 4; /* see explained() */
    int64_t n = type_count(type_get(t->type));
    EvalTensor *to = NEW(a, EvalTensor);
    *to = *t;
    to->f = NEW_ARRAY(a, double, n + 1);
    for (int64_t k = 0; k < n; k++) {
        double own = u->part * fmax(fabs(t->f[k]), u->least);
        double part = (double)(draw_next(seed) >> 40) / 0x1p23 - 1;
        to->f[k] = t->f[k] + part * several * fmax(far, own);
    }
    return to;
}

/* Clears open[k] of the elements that have become `other`; returns how many
   are still open. */
static int64_t close_equal(const EvalTensor *now, const EvalTensor *other,
                           bool *open) {
    int64_t left = 0;
    for (int64_t k = 0; k < type_count(type_get(now->type)); k++) {
        open[k] &= now->i[k] != other->i[k];
        left += open[k];
    }
    return left;
}

bool is_rounded_to(Slice *x, ValueId v, const EvalTensor *other,
                   const double *moved, Roundings which, Arena *a) {
    enum { REPETITIONS = 64 };
    const Graph *g = x->p->g;
    const EvalTensor *own = x->value[v.i];
    if (!own || own->f || other->f) return false;
    int64_t n = type_count(type_get(own->type));
    if (n != type_count(type_get(other->type))) return false;
    NodeId id = value_get(g, v)->def;
    const Node *node = node_get(g, id);
    const Unit *unit = units_for(x, which, a);
    bool *open = NEW_ARRAY(a, bool, n + 1);
    memset(open, true, (size_t)n);
    int64_t left = close_equal(own, other, open);
    uint64_t seed = v.i;
    for (int r = 0; r < REPETITIONS && left > 0; r++) {
        Arena *run = arena_new();
        const EvalTensor **in =
            NEW_ARRAY(run, const EvalTensor *, node->nin + 1);
        EvalTensor **out = NEW_ARRAY(run, EvalTensor *, node->nout + 1);
        char msg[MSG_TEXT] = "";
        for (int k = 0; k < node->nin; k++) {
            uint32_t i = node->in[k].i;
            in[k] = i ? x->value[i] : NULL;
            if (in[k] && in[k]->f)
                in[k] = stirred(in[k], moved[i], &unit[i], &seed, run);
        }
        Status st = eval_node(g, id, run, EVAL_STORAGE, in, out, msg);
        for (int k = 0; k < node->nout && st == OK; k++)
            if (same_value(node->out[k], v) && out[k] && !out[k]->f)
                left = close_equal(out[k], other, open);
        arena_free(run);
    }
    return left == 0;
}
