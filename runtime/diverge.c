/* diverge.c: a run none of whose steps is applied any more.

   The update counts the steps skipped in a row (ampc.skip_streak).  Once there
   are as many as the session allows, every step that is skipped returns
   AMPC_ERR_DIVERGED and names the first thing that is not finite: an input of
   the call, a parameter, a buffer, the loss, or else the gradients.          */
#include <math.h>
#include <stdio.h>

#include "runtime/backend.h"
#include "runtime/half.h"

enum { DEFAULT_MAX_SKIPPED = 100 };

/* ---- numbers ------------------------------------------------------------- */

static double number_at(uint32_t dtype, const void *data, uint64_t i) {
    switch (dtype) {
    case AMPC_F16: return f16_to_f32(((const uint16_t *)data)[i]);
    case AMPC_BF16: return bf16_to_f32(((const uint16_t *)data)[i]);
    default:
        return scalar_number(dtype,
                             (const char *)data + i * dtype_bytes(dtype));
    }
}

static bool is_float(uint32_t dtype) {
    return dtype == AMPC_F16 || dtype == AMPC_BF16 || dtype == AMPC_F32 ||
           dtype == AMPC_F64;
}

/* Whether one of n elements, which begin at position `at`, is not finite: it
   goes into *x. */
static bool search(uint32_t dtype, const void *data, uint64_t n, uint64_t at,
                   ampc_nonfinite *x) {
    for (uint64_t i = 0; i < n; i++) {
        double v = number_at(dtype, data, i);
        if (isfinite(v)) continue;
        x->index = (int64_t)(at + i);
        x->value = v;
        return true;
    }
    return false;
}

/* ---- where they are ------------------------------------------------------ */

static bool search_inputs(const ampc_session *s, ampc_nonfinite *x) {
    if (s->fed < 0) return false;
    const PlanProgram *p = &s->m->programs[s->fed];
    for (uint32_t i = 0; i < p->nin; i++) {
        const PlanTensor *t = &s->m->tensors[p->in0 + i];
        uint64_t bytes = 0;
        dense_bytes(t->dtype, t->rank, t->dim, &bytes);
        if (!is_float(t->dtype) ||
            !search(t->dtype, s->addr[i], bytes / dtype_bytes(t->dtype), 0, x))
            continue;
        x->origin = AMPC_ORIGIN_INPUT;
        x->name = t->name;
        return true;
    }
    return false;
}

/* In pieces: they may lie on a device. */
static ampc_status search_var(ampc_session *s, uint32_t var,
                              ampc_nonfinite *x) {
    const PlanVar *v = &s->m->vars[var];
    uint64_t piece[1 << 11];
    for (uint64_t at = 0, n; at < v->bytes; at += n) {
        n = v->bytes - at < sizeof piece ? v->bytes - at : sizeof piece;
        ampc_status status = s->backend->get(s, var_ref(var, at), piece, n);
        if (status != AMPC_OK) return status;
        size_t each = dtype_bytes(v->dtype);
        if (!search(v->dtype, piece, n / each, at / each, x)) continue;
        x->origin = AMPC_ORIGIN_VARIABLE;
        x->name = v->name;
        return AMPC_OK;
    }
    return AMPC_OK;
}

static const char *const kind_text[] = {[PLAN_PARAM] = "parameter",
                                        [PLAN_FROZEN] = "frozen weight",
                                        [PLAN_BUFFER] = "buffer"};

/* Sets x->origin if there is one; *kind: what it is. */
static ampc_status search_vars(ampc_session *s, ampc_nonfinite *x,
                               const char **kind) {
    const uint32_t nkind = sizeof kind_text / sizeof *kind_text;
    for (uint32_t k = 0; k < nkind; k++)
        for (uint32_t i = 0; i < s->m->nvar; i++) {
            const PlanVar *v = &s->m->vars[i];
            if (v->kind != k || !kind_text[k] || !is_float(v->dtype)) continue;
            ampc_status status = search_var(s, i, x);
            *kind = kind_text[k];
            if (status != AMPC_OK || x->origin) return status;
        }
    return AMPC_OK;
}

/* ---- what is told -------------------------------------------------------- */

static ampc_status tell(ampc_session *s, const char *kind) {
    const ampc_nonfinite *x = &s->nonfinite;
    const ampc_metrics *m = &s->metrics;
    char what[400];
    if (x->name)
        snprintf(what, sizeof what, "%s '%.200s' holds %g at position %lld",
                 kind, x->name, x->value, (long long)x->index);
    else if (x->origin == AMPC_ORIGIN_LOSS)
        snprintf(what, sizeof what,
                 "the loss is %g, though parameters and buffers are finite",
                 x->value);
    else
        snprintf(what, sizeof what,
                 "gradients are not finite, though the loss is %g (loss scale "
                 "%g)",
                 m->loss, m->scale);
    return session_fail(s, AMPC_ERR_DIVERGED,
                        "%lld steps in a row were skipped: %s",
                        (long long)m->skip_streak, what);
}

ampc_status diverge_trained(ampc_session *s) {
    int64_t limit =
        s->opt.max_skipped ? s->opt.max_skipped : DEFAULT_MAX_SKIPPED;
    const char *kind = "input";
    if (limit < 0 || s->metrics.skip_streak < limit) return AMPC_OK;
    ampc_nonfinite x = {
        .size = sizeof x, .index = -1, .value = NAN, .tried = s->metrics.tried};
    if (!search_inputs(s, &x)) {
        ampc_status status = search_vars(s, &x, &kind);
        if (status != AMPC_OK) return status;
    }
    if (!x.origin && !isfinite(s->metrics.loss)) {
        x.origin = AMPC_ORIGIN_LOSS;
        x.value = s->metrics.loss;
    } else if (!x.origin) {
        x.origin = AMPC_ORIGIN_GRADIENT;
    }
    s->nonfinite = x;
    return tell(s, kind);
}
