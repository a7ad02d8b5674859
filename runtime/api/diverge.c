/* SPDX-License-Identifier: Apache-2.0 */
/* diverge.c: detects a run whose steps are all skipped.

   The update counts the steps skipped in a row (ampc.skip_streak).  Beyond the
   session's limit every skipped step returns AMPC_ERR_DIVERGED and names the
   first value that is not finite: an input of the call, a parameter, a buffer,
   a 16-bit copy, the loss, or else the gradients.  A module with program locate
   knows which value it was, and reports every skipped step. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "runtime/api/session.h"
#include "runtime/base/try.h"

enum { DEFAULT_MAX_SKIPPED = 100 };

/* True if one of n elements is not finite; sets its position (the first
   element is at `at`) and value in x. */
static bool diverge_search(uint32_t dtype, const void *data, uint64_t n,
                           uint64_t at, ampc_nonfinite *x) {
    size_t size = dtype_bytes(dtype);
    for (uint64_t i = 0; i < n; i++) {
        double v = float_at(dtype, (const char *)data + i * size);
        if (isfinite(v)) continue;
        x->index = (int64_t)(at + i);
        x->value = isnan(v) ? NAN : v; /* without its sign, for messages */
        return true;
    }
    return false;
}

/* ---- where they are ------------------------------------------------------ */

static bool search_inputs(const ampc_session *s, ampc_nonfinite *x) {
    if (s->in.program < 0) return false;
    const PlanProgram *p = &s->m->programs[s->in.program];
    for (uint32_t i = 0; i < p->nin; i++) {
        const PlanTensor *t = &s->m->tensors[p->in0 + i];
        uint64_t bytes = 0;
        dense_bytes(t->dtype, t->rank, t->dim, &bytes);
        if (!is_float_dtype(t->dtype) || s->in.device[i] ||
            !diverge_search(t->dtype, s->in.addr[i],
                            bytes / dtype_bytes(t->dtype), 0, x))
            continue;
        x->origin = AMPC_ORIGIN_INPUT;
        x->dtype = (int32_t)t->dtype;
        x->name = t->name;
        return true;
    }
    return false;
}

/* Piece by piece, since they may be in a device's memory. */
static ampc_status search_var(ampc_session *s, uint32_t var,
                              ampc_nonfinite *x) {
    const PlanVar *v = &s->m->vars[var];
    uint64_t piece[1 << 11], lo, hi;
    shard_range(s, var, &lo, &hi);
    for (uint64_t at = lo, n; at < hi; at += n) {
        n = hi - at < sizeof piece ? hi - at : sizeof piece;
        TRY(s->backend->get(s, var_ref(var, at), piece, n));
        size_t each = dtype_bytes(v->dtype);
        if (!diverge_search(v->dtype, piece, n / each, at / each, x)) continue;
        x->origin = AMPC_ORIGIN_VARIABLE;
        x->dtype = (int32_t)v->dtype;
        x->name = v->name;
        return AMPC_OK;
    }
    return AMPC_OK;
}

/* In the order in which they are examined. */
static const struct {
    uint32_t kind;
    const char *text;
} kinds[] = {{PLAN_PARAM, "parameter"},
             {PLAN_FROZEN, "frozen weight"},
             {PLAN_BUFFER, "buffer"},
             {PLAN_SHADOW, "16-bit copy"}};
enum { NKIND = sizeof kinds / sizeof *kinds };

static const char *kind_of(const PlanVar *v) {
    for (size_t k = 0; k < NKIND; k++)
        if (kinds[k].kind == v->kind) return kinds[k].text;
    return "variable";
}

/* Sets x->origin if a variable of that *kind is not finite. */
static ampc_status search_vars(ampc_session *s, ampc_nonfinite *x,
                               const char **kind) {
    ampc_status status = session_refresh(s); /* copies may be outdated */
    for (size_t k = 0; k < NKIND && status == AMPC_OK; k++)
        for (uint32_t i = 0; i < s->m->nvar; i++) {
            const PlanVar *v = &s->m->vars[i];
            if (v->kind != kinds[k].kind || !is_float_dtype(v->dtype)) continue;
            status = search_var(s, i, x);
            *kind = kinds[k].text;
            if (status != AMPC_OK || x->origin) return status;
        }
    return status;
}

/* ---- what to do ---------------------------------------------------------- */

#define DOMAIN                                                                 \
    "keep its operand away from 0 or from what it is not defined for (an "     \
    "eps, "                                                                    \
    "a clip)"
#define MASK                                                                   \
    "a row that is masked everywhere has no softmax: mask with a finite "      \
    "number"

/* Advice for the op that computed NaN, or infinity in a type with fp32's
   range. */
static const struct {
    const char *op, *text;
} op_advice[] = {
    {"log", DOMAIN},
    {"sqrt", DOMAIN},
    {"rsqrt", DOMAIN},
    {"div", DOMAIN},
    {"reciprocal", DOMAIN},
    {"pow", DOMAIN},
    {"softmax", MASK},
    {"log_softmax", MASK},
    {"exp", "exp is inf from 88.7 on: subtract the largest operand"},
};

static const char *advice_of(const ampc_session *s, const ampc_nonfinite *x) {
    bool located =
        x->origin == AMPC_ORIGIN_FORWARD || x->origin == AMPC_ORIGIN_BACKWARD;
    bool f16 = x->dtype == AMPC_DTYPE_F16 && x->origin != AMPC_ORIGIN_INPUT;
    if (x->origin == AMPC_ORIGIN_INPUT) return "look at the data";
    if (x->origin == AMPC_ORIGIN_BACKWARD && s->metrics.scale != 1 &&
        !isnan(x->value))
        return "the loss scale is too large for this step; a dynamic one backs "
               "off by itself";
    if (f16 && !isnan(x->value))
        return "fp16 ends at 65504, for residual streams and what norms "
               "divide at 4.19e6: --precision bf16, for those --placement "
               "exact,residuals=inf, or smaller weights";
    for (size_t i = 0; located && i < sizeof op_advice / sizeof *op_advice; i++)
        if (strcmp(op_advice[i].op, x->op) == 0) return op_advice[i].text;
    if ((x->origin == AMPC_ORIGIN_LOSS || x->origin == AMPC_ORIGIN_GRADIENT) &&
        s->program[PROG_LOCATE] < 0)
        return "a module compiled with --debug-nonfinite names the value";
    return "a smaller learning rate or --clip-norm may help";
}

/* ---- messages ------------------------------------------------------------ */

static void describe(const ampc_session *s, const ampc_nonfinite *x,
                     const char *kind, char *text, size_t size) {
    const char *way = x->origin == AMPC_ORIGIN_FORWARD ? "forward" : "backward";
    bool node = x->source && *x->source;
    char at[40] = "";
    if (x->index >= 0)
        snprintf(at, sizeof at, " at position %lld", (long long)x->index);
    if (x->op && *x->op)
        snprintf(text, size, "%s, '%.200s' (%s %s%s%.200s) holds %g", way,
                 x->name, dtype_name((uint32_t)x->dtype), x->op,
                 node ? ", " : "", node ? x->source : "", x->value);
    else if (x->name)
        snprintf(text, size, "%s '%.200s' holds %g%s", kind, x->name, x->value,
                 at);
    else if (x->origin == AMPC_ORIGIN_LOSS)
        snprintf(text, size,
                 "the loss is %g, though parameters and buffers are finite",
                 x->value);
    else
        snprintf(text, size,
                 "gradients are not finite, though the loss is %g (loss scale "
                 "%g)",
                 s->metrics.loss, s->metrics.scale);
}

/* Finds the element of an input or variable that program locate named;
   inputs of an earlier micro-batch are no longer available. */
static ampc_status find_element(ampc_session *s, ampc_nonfinite *x,
                                const char **kind) {
    ampc_nonfinite found = {.index = -1};
    ampc_status status = AMPC_OK;
    int v = x->origin == AMPC_ORIGIN_VARIABLE ? find_var(s->m, x->name) : -1;
    if (v >= 0) {
        *kind = kind_of(&s->m->vars[v]);
        status = search_var(s, (uint32_t)v, &found);
    } else if (x->origin != AMPC_ORIGIN_INPUT || !search_inputs(s, &found) ||
               strcmp(found.name, x->name) != 0) {
        return AMPC_OK;
    }
    if (found.origin) {
        x->index = found.index;
        x->value = found.value;
    }
    return status;
}

/* The first thing that is not finite, and its name in messages. */
static ampc_status find_first(ampc_session *s, ampc_nonfinite *x,
                              const char **kind) {
    *kind = "input";
    if (locate_read(s, x)) return find_element(s, x, kind);
    if (search_inputs(s, x)) return AMPC_OK;
    ampc_status status = search_vars(s, x, kind);
    if (status != AMPC_OK || x->origin) return status;
    bool loss = !isfinite(s->metrics.loss);
    x->origin = loss ? AMPC_ORIGIN_LOSS : AMPC_ORIGIN_GRADIENT;
    if (loss) x->value = isnan(s->metrics.loss) ? NAN : s->metrics.loss;
    return AMPC_OK;
}

/* A step in which no sample counts is skipped, too: its mean would be 0 / 0. */
static ampc_status empty(ampc_session *s, bool over) {
    static const char why[] =
        "no label counts: all are ignored, or weigh nothing";
    const ampc_metrics *m = &s->metrics;
    if (over) {
        s->located.what = (ampc_nonfinite){.size = sizeof s->located.what,
                                           .index = -1,
                                           .tried = m->tried,
                                           .name = "",
                                           .op = "",
                                           .source = "",
                                           .advice = "look at the data"};
        return session_fail(s, AMPC_ERR_DIVERGED,
                            "%lld steps in a row were skipped: %s",
                            (long long)m->skip_streak, why);
    }
    session_notice(s, "step %lld was skipped: %s", (long long)m->tried, why);
    return AMPC_OK;
}

ampc_status diverge_trained(ampc_session *s) {
    const ampc_metrics *m = &s->metrics;
    int64_t limit =
        s->opt.max_skipped ? s->opt.max_skipped : DEFAULT_MAX_SKIPPED;
    bool over = limit > 0 && m->skip_streak >= limit;
    const char *kind;
    char text[700];
    if (m->applied) return AMPC_OK;
    if (isfinite(m->grad_norm)) return empty(s, over);
    if (!over && s->program[PROG_LOCATE] < 0) return AMPC_OK;
    ampc_nonfinite x = {
        .size = sizeof x, .index = -1, .value = NAN, .tried = m->tried};
    TRY(find_first(s, &x, &kind));
    x.advice = advice_of(s, &x);
    s->located.what = x;
    describe(s, &x, kind, text, sizeof text);
    if (over)
        return session_fail(s, AMPC_ERR_DIVERGED,
                            "%lld steps in a row were skipped: %s; %s",
                            (long long)m->skip_streak, text, x.advice);
    session_notice(s, "step %lld was skipped: %s; %s", (long long)m->tried,
                   text, x.advice);
    return AMPC_OK;
}
