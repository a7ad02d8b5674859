/* SPDX-License-Identifier: Apache-2.0 */
/* verify_stage.c: the promises of the passes of each stage (list: verify.c). */
#include "ir/op/function.h"
#include "ir/graph/verify.h"

#include <math.h>

/* ---- CAST ---------------------------------------------------------------- */

static bool reads_16(const Graph *g, const Node *n) {
    for (int k = 0; k < n->nin; k++)
        if (is_value(n->in[k]) && dtype_is_low(value_dtype(g, n->in[k])))
            return true;
    return false;
}

Status verify_cast(Verifier *v) {
    DType low = v->g->module->low;
    for (int i = 0; i < v->g->order.len; i++) {
        const Node *n = node_at(v->g, i);
        if (n->op == OP_GRAD) return verify_fail(v, n, "it is not expanded");
        if (low == NUM_DTYPES || node_class(n) != AMP_LOW || n->flags ||
            node_made_low(n) || !reads_16(v->g, n))
            continue;
        for (int k = 0; k < n->nin; k++) {
            if (n->fn && n->fn->operands.data[k].kind == FO_ANY) continue;
            if (is_value(n->in[k]) && value_dtype(v->g, n->in[k]) == DT_F32)
                return verify_fail(v, n, "operand %d is f32, autocast to %s", k,
                                   dtype_info[low].text);
        }
    }
    return OK;
}

/* ---- DIFF ---------------------------------------------------------------- */

static Status check_gradient(Verifier *v, const Output *o) {
    const Module *m = v->g->module;
    Str of = family_member(FAMILY_GRAD, o->name);
    int p = module_find_var(m, of);
    if (p < 0 || m->vars.data[p].kind != VAR_PARAM)
        return verify_fail(v, NULL, "%s: '%s' is not a parameter", o->name, of);
    const Type *want = type_get(m->vars.data[p].type);
    const Type *got = value_type(v->g, o->value);
    if (!shape_equal(want, got) || got->dtype != DT_F32)
        return verify_fail(v, NULL, "%s is %s, the parameter %s", o->name,
                           TXT(got), TXT(want));
    return OK;
}

static uint32_t flags_of(const Graph *g, ValueId x) {
    const Value *val = value_get(g, x);
    return val->kind == VK_RESULT ? node_get(g, val->def)->flags : 0;
}

Status verify_diff(Verifier *v) {
    const Graph *g = v->g;
    int gradients = 0;
    if (g->program != PROGRAM_TRAIN) return OK;
    ValueId loss = graph_output(g, own_output(OUT_LOSS, g->objective));
    if (!is_value(loss))
        return verify_fail(v, NULL, "a program that trains returns its loss");
    if (value_get(g, loss)->type.i != type_scalar(DT_F32).i)
        return verify_fail(v, NULL, "the loss is %s, not f32[]",
                           TXT(value_type(g, loss)));
    for (int i = 0; i < g->outputs.len; i++) {
        if (!family_has(FAMILY_GRAD, g->outputs.data[i].name)) continue;
        TRY(check_gradient(v, &g->outputs.data[i]));
        gradients++;
    }
    if (!gradients) return verify_fail(v, NULL, "it returns no gradient");
    for (int i = 0; i < g->order.len; i++) {
        const Node *n = node_at(g, i);
        for (int k = 0; k < n->nin && !n->flags; k++)
            if (is_value(n->in[k]) && flags_of(g, n->in[k]) & NODE_BACKWARD)
                return verify_fail(v, n, "forward reads backward, operand %d",
                                   k);
    }
    return OK;
}

/* ---- STEP ---------------------------------------------------------------- */

static const Write *write_of(const Graph *g, int var) {
    for (int i = 0; i < g->writes.len; i++)
        if (value_get(g, g->writes.data[i].var)->var == var)
            return &g->writes.data[i];
    return NULL;
}

static Status check_counted(Verifier *v, const OwnVar *counters, int n) {
    for (int i = 0; i < n; i++) {
        int var =
            module_find_own_var(v->g->module, counters[i], v->g->objective);
        if (var < 0 || !write_of(v->g, var))
            return verify_fail(v, NULL, "it does not write %s",
                               own_var_text(counters[i]));
    }
    return OK;
}

/* A program that writes a variable also writes its 16-bit copies, except on
   CPUs where it has none (pass masters). */
static Status check_copies(Verifier *v) {
    const Module *m = v->g->module;
    if (v->g->rounds_weights) return OK;
    bool *written = NEW_ARRAY(v->a, bool, m->vars.len + 1);
    for (int i = 0; i < v->g->writes.len; i++)
        written[value_get(v->g, v->g->writes.data[i].var)->var] = true;
    for (int i = 0; i < m->vars.len; i++) {
        const Var *x = &m->vars.data[i];
        if (x->kind != VAR_SHADOW) continue;
        int source = shadow_source(m, x);
        if (source >= 0 && written[source] && !written[i])
            return verify_fail(v, NULL, "it writes %s and not %s",
                               m->vars.data[source].name, x->name);
    }
    return OK;
}

/* True if n checks the gradients of one part of the update. */
static bool checks_part(const Node *n) {
    return n->op == OP_ISFINITE && n->loc.chunk && n->flags & NODE_UPDATE;
}

/* Per value: depends on `flag`, or on the check of a part. */
static bool *mark_dependents(Verifier *v, ValueId flag) {
    const Graph *g = v->g;
    bool *marked = NEW_ARRAY(v->a, bool, g->values.len);
    marked[flag.i] = true;
    for (int i = 0; i < g->order.len; i++) {
        const Node *n = node_at(g, i);
        bool any = checks_part(n);
        for (int k = 0; k < n->nin; k++) any |= marked[n->in[k].i];
        for (int k = 0; any && k < n->nout; k++) marked[n->out[k].i] = true;
    }
    return marked;
}

/* Parameters and optimizer state change only if every gradient is finite, or
   with --optimizer-in-backward every gradient of their part. */
static Status check_guarded(Verifier *v) {
    const Graph *g = v->g;
    int parameters = 0;
    ValueId ok = graph_output(g, own_output(OUT_APPLIED, g->objective));
    if (!is_value(ok) || value_get(g, ok)->type.i != type_scalar(DT_BOOL).i)
        return verify_fail(v, NULL, "it does not return the finite flag");
    const bool *marked = mark_dependents(v, ok);
    for (int i = 0; i < g->writes.len; i++) {
        const Write *w = &g->writes.data[i];
        const Var *x = value_var(g, w->var);
        bool is_state = family_has(FAMILY_OPT, x->name);
        parameters += x->kind == VAR_PARAM;
        if (x->kind != VAR_PARAM && !is_state) continue;
        if (!marked[w->value.i] && !same_value(w->value, w->var))
            return verify_fail(v, NULL,
                               "%s is written whether gradients are finite or "
                               "not",
                               x->name);
        if (!same_value(w->value, w->var) &&
            !(flags_of(g, w->value) & NODE_UPDATE))
            return verify_fail(v, NULL, "%s is written by no update node",
                               x->name);
    }
    return parameters ? OK : verify_fail(v, NULL, "it updates no parameter");
}

static Status check_refresh(Verifier *v) {
    for (int i = 0; i < v->g->writes.len; i++) {
        const Var *x = value_var(v->g, v->g->writes.data[i].var);
        bool begins = x->kind == VAR_PARAM && isnan(x->fill);
        if (x->kind != VAR_SHADOW && !begins)
            return verify_fail(v, NULL, "it writes %s, which is not a copy",
                               x->name);
    }
    return OK;
}

Status verify_step(Verifier *v) {
    static const OwnVar steps[] = {OWN_STEP, OWN_TRIED, OWN_SKIPPED,
                                   OWN_BAD_FORWARD, OWN_SKIP_STREAK};
    const int nstep = (int)(sizeof steps / sizeof *steps);
    static const OwnVar sums[] = {OWN_MICRO, OWN_LOSS_SUM, OWN_SHARES};
    switch (v->g->program) {
    case PROGRAM_TRAIN:
        TRY(check_guarded(v));
        TRY(check_counted(v, steps, nstep));
        return check_copies(v);
    case PROGRAM_UPDATE:
        TRY(check_guarded(v));
        TRY(check_counted(v, steps, nstep));
        TRY(check_counted(v, sums, 3));
        return check_copies(v);
    case PROGRAM_MICRO: TRY(check_counted(v, sums, 3)); return check_copies(v);
    case PROGRAM_REFRESH: return check_refresh(v);
    case PROGRAM_EVAL:
    case PROGRAM_PREDICT:
    case PROGRAM_OUTPUTS:
    case PROGRAM_LOCATE:
    case PROGRAM_UNDERFLOW:
    case PROGRAM_NONE: break;
    }
    return OK;
}

/* ---- INLINED ------------------------------------------------------------- */

Status verify_inlined(Verifier *v) {
    for (int i = 0; i < v->g->order.len; i++) {
        const Node *n = node_at(v->g, i);
        if (n->fn && (!n->fn->whole || v->stage >= STAGE_FUSED))
            return verify_fail(v, n, "is inlined by now");
    }
    return OK;
}

/* ---- PRIMITIVE ----------------------------------------------------------- */

Status verify_primitive(Verifier *v) {
    for (int i = 0; i < v->g->order.len; i++) {
        const Node *n = node_at(v->g, i);
        OpKind kind = node_kind(n);
        if (n->op == OP_SPLIT) return verify_fail(v, n, "is in slices by now");
        if (kind == KIND_REDUCE && !attr_int(n, AK_keepdims))
            return verify_fail(v, n, "reductions keep their dimensions by now");
    }
    return OK;
}
