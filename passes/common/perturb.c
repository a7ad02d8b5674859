/* SPDX-License-Identifier: Apache-2.0 */
/* perturb.c: the loss at parameters that a wrapper before the gradient chooses
   (--wrapper sam).
   Before:  %loss = f(%w)   return ampc.loss=%loss
   After:   %loss = f(%w)   %g = d %loss / d %w
            %there = sam %w, %g, ..
            %loss.1 = f(%there)
            return ampc.loss=%loss, ampc.moved/w=%there, ampc.moved_loss=%loss.1
   Casts are there already: both passes have the types of the plain one.
   Pass autodiff differentiates ampc.moved_loss with respect to ampc.moved/w and
   removes both outputs. The loss that a step reports, and what the model writes
   (running statistics), are those at %w. Both forward passes draw the same
   random numbers: nodes that depend on no parameter are shared. All is
   forward here, as gradients that a model asks for are. Gradients that are not
   finite move nothing, and %loss.1 is NaN: those of the second pass are not
   finite either, and the step, or that of all micro-batches and ranks, is
   skipped.
   requires     stage CAST, no op grad, samples masked                       */
#include "passes/common/step.h"
#include "passes/rewrite.h"

#include <math.h>

/* The gradients, unscaled, and whether all are finite. */
static Status first_gradients(Step *s, PassCtx *cx) {
    Graph *g = s->g;
    int n = s->params.len, *which = NEW_ARRAY(cx->scratch, int, n);
    ValueId scale = step_scale(s), *grads = NEW_ARRAY(g->arena, ValueId, n);
    TRY(autodiff(g, cx->diag, cx->scratch, 0, s->loss, scale, s->params.data, n,
                 grads));
    s->grads = s->squares = s->params;
    s->grads.data = grads;
    s->squares.data = NEW_ARRAY(g->arena, ValueId, n);
    for (int i = 0; i < n; i++) {
        TypeId t =
            type_with_dtype(value_get(g, s->params.data[i])->type, DT_F32);
        grads[i] = is_value(grads[i]) ? b_cast(&s->b, grads[i], DT_F32)
                                      : b_full(&s->b, t, 0);
        which[i] = i;
    }
    ValueId squares = step_unscale(s, (EarlyPart){which, n, 0});
    s->ok = b1(&s->b, OP_ISFINITE, squares, DT_DEFAULT);
    return OK;
}

/* Builds nodes 0..n-1 again where they depend on values that are mapped, and
   are needed. */
static void build_moved(Step *s, PassCtx *cx, int n, ValueId *map) {
    Graph *g = s->g;
    const bool *needed = needed_by(g, cx->scratch, &s->loss, 1);
    for (int i = 0; i < n; i++) {
        NodeId id = g->order.data[i];
        const Node old = *node_get(g, id); /* building may move the pool */
        ValueId *in = arena_dup(g->arena, old.in, (size_t)old.nin * sizeof *in);
        bool moves = false, wanted = false;
        for (int k = 0; k < old.nout; k++) wanted |= needed[old.out[k].i];
        for (int k = 0; k < old.nin; k++) {
            ValueId to = map[in[k].i];
            if (!is_value(to)) continue;
            moves = true;
            in[k] = to;
        }
        if (!moves || !wanted) continue;
        s->b.loc = old.loc;
        NodeId again = build_again(&s->b, id, in);
        for (int k = 0; k < old.nout; k++)
            map[old.out[k].i] = node_get(g, again)->out[k];
    }
    s->b.loc = (Loc){0};
}

static Status perturb(Graph *g, PassCtx *cx, const Objective *j,
                      const OptimizerSpec *wrapper) {
    Step s = {.m = g->module,
              .g = g,
              .diag = cx->diag,
              .opt = cx->opt,
              .objective = j,
              .b = {.g = g}};
    int nodes = g->order.len, nvars = g->module->vars.len;
    s.loss = graph_output(g, own_output(OUT_LOSS, g->objective));
    s.params.data = NEW_ARRAY(g->arena, ValueId, nvars);
    s.params.len = trained_params(g, cx->scratch, j, s.loss, s.params.data);
    if (!s.params.len) return OK; /* pass autodiff refuses the graph */
    ValueId *map = NEW_ARRAY(cx->scratch, ValueId, g->values.len);
    ValueId *moved = NEW_ARRAY(cx->scratch, ValueId, s.params.len);
    TRY(first_gradients(&s, cx));
    TRY(step_keep_definition(&s, wrapper->fn));
    TRY(step_move(&s, wrapper, moved));
    for (int i = 0; i < s.params.len; i++) {
        ValueId p = s.params.data[i];
        map[p.i] = b_cast(&s.b, moved[i], value_dtype(g, p));
        graph_add_output(g, family_name(FAMILY_MOVED, value_get(g, p)->name),
                         map[p.i]);
    }
    build_moved(&s, cx, nodes, map);
    ValueId whole = b_where(&s.b, s.ok, f32c(&s, 1), f32c(&s, NAN));
    output(&s, OUT_MOVED_LOSS, bin(&s, OP_MUL, map[s.loss.i], whole));
    return OK;
}

static Status check_wrapper(const Module *m, PassCtx *cx, const Objective *j,
                            const OptimizerSpec *wrapper) {
    const char *why = NULL;
    if (j->loss.kind == LOSS_HOST)
        why = "computes the loss twice, and with --loss host the host computes "
              "it";
    else if (cx->opt->half_model)
        why =
            "moves fp32 parameters by less than 16 bits hold; use --precision "
            "bf16, fp16 or fp32";
    if (!why) return OK;
    fail(cx->diag, (Loc){.file = m->file}, "--wrapper %s %s",
         wrapper->fn->info.text, why);
    return ERR_USAGE;
}

Status pass_perturb(Module *m, PassCtx *cx) {
    for (int i = 0; i < m->graphs.len; i++) {
        Graph *g = m->graphs.data[i];
        const Objective *j = options_objective(cx->opt, g->objective);
        const OptimizerSpec *wrapper =
            j ? step_wrapper(j, WRAPPER_BEFORE) : NULL;
        if (g->program != PROGRAM_TRAIN || !wrapper) continue;
        TRY(check_wrapper(m, cx, j, wrapper));
        TRY(perturb(g, cx, j, wrapper));
    }
    return OK;
}
