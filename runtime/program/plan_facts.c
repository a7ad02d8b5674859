/* SPDX-License-Identifier: Apache-2.0 */
/* plan_facts.c: facts about a plan, and whether its tables are sound.  Nothing
   of a session is needed. */
#include <stdio.h>
#include <string.h>

#include "runtime/program/dtype.h"
#include "runtime/base/json.h"
#include "runtime/program/lib.h"
#include "runtime/program/plan_facts.h"

/* ---- plan facts ---------------------------------------------------------- */

int find_program(const AmpcModule *m, const char *name) {
    for (uint32_t i = 0; i < m->nprogram; i++)
        if (strcmp(m->programs[i].name, name) == 0) return (int)i;
    return -1;
}

int find_var(const AmpcModule *m, const char *name) {
    for (uint32_t i = 0; i < m->nvar; i++)
        if (strcmp(m->vars[i].name, name) == 0) return (int)i;
    return -1;
}

int64_t info_int(const AmpcModule *m, const char *key, int64_t dflt) {
    JsonSpan info, options, v;
    int64_t n;
    if (!m->info || !json_parse(m->info, strlen(m->info), &info)) return dflt;
    if (json_get(info, key, &v) && json_int(v, &n)) return n;
    if (json_get(info, "options", &options) && json_get(options, key, &v) &&
        json_int(v, &n))
        return n;
    return dflt;
}

bool module_said(const AmpcModule *m, JsonSpan *said) {
    JsonSpan info;
    return m->info && json_parse(m->info, strlen(m->info), &info) &&
           json_get(info, "said", said) && json_is_object(*said);
}

int64_t module_batch(const AmpcModule *m) {
    int64_t known = info_int(m, "batch", -1);
    if (known >= 0) return known;
    for (uint32_t i = 0; i < m->nprogram; i++) {
        const PlanProgram *p = &m->programs[i];
        for (uint32_t j = 0; j < p->nin; j++)
            if (m->tensors[p->in0 + j].rank > 0)
                return m->tensors[p->in0 + j].dim[0];
    }
    return 0;
}

const PlanTarget *module_plan(const AmpcModule *m) {
    return m->cpu ? m->cpu : m->cuda->plan;
}

/* ---- is the plan sound? -------------------------------------------------- */

static bool plan_slice(uint64_t first, uint64_t n, uint64_t size) {
    return first <= size && n <= size - first;
}

/* One program for one target. */
typedef struct RunCheck {
    const AmpcModule *m;
    const PlanTarget *t;
    const PlanProgram *p;
    const PlanRun *r;
} RunCheck;

static bool plan_ref_ok(const RunCheck *c, const PlanRef *r) {
    switch (r->space) {
    case PLAN_NONE: return true;
    case PLAN_ARENA: return r->offset <= c->r->arena;
    case PLAN_VAR:
        return r->index < c->m->nvar && r->offset <= c->m->vars[r->index].bytes;
    case PLAN_INPUT: return r->index < c->p->nin;
    default: return false;
    }
}

static bool plan_refs_ok(const RunCheck *c, uint32_t first, uint32_t n) {
    if (!plan_slice(first, n, c->t->nref)) return false;
    for (uint32_t i = 0; i < n; i++)
        if (!plan_ref_ok(c, &c->t->refs[first + i])) return false;
    return true;
}

/* The operands of the routine's row; `stored`: those that need memory have
   it. */
static bool plan_operands_ok(const LibInfo *l, const PlanRef *refs,
                             const int64_t *pars, bool stored) {
    for (uint32_t i = 0; i < l->noperand; i++) {
        const LibOperand *o = &l->operands[i];
        int64_t dtype = pars[o->dtype_at];
        bool may_lack = o->role == LIB_ROLE_OPT_IN ||
                        o->role == LIB_ROLE_OPT_OUT ||
                        (o->role == LIB_ROLE_RESULT && !stored);
        if (dtype < 0 || dtype >= AMPC_NDTYPE || !(o->dtypes >> dtype & 1))
            return false;
        if (!may_lack && refs[i].space == PLAN_NONE) return false;
    }
    return true;
}

/* True if parameters and operands match the routine's row; `more` refs
   follow. */
static bool plan_lib_ok(const PlanTarget *p, const PlanStep *t, uint32_t lib,
                        uint32_t more) {
    const LibInfo *l = lib_info(lib);
    if (!l || t->nref != l->noperand + more || t->npar != l->npar) return false;
    const PlanRef *refs = p->refs + t->ref0;
    return plan_operands_ok(l, refs, p->pars + t->par0, !t->epilogue) &&
           (more < 1 || refs[l->noperand].space != PLAN_NONE) &&
           (more < 2 || refs[l->noperand + 1].space != PLAN_NONE);
}

/* Checks a convolution with a pool over the planes of its result. If the
   pool's input is not stored, exactly one ref of the convolution has no
   memory. */
static bool plan_pooled_ok(const PlanTarget *p, const PlanStep *t) {
    const LibInfo *l = lib_info(t->fn), *q = lib_info(t->second - 1);
    if (t->fn != PLAN_LIB_CONV_FWD || (t->second - 1 != PLAN_LIB_MAXPOOL &&
                                       t->second - 1 != PLAN_LIB_AVGPOOL))
        return false;
    if (t->nref != l->noperand + q->noperand || t->npar != l->npar + q->npar)
        return false;
    const PlanRef *refs = p->refs + t->ref0;
    const int64_t *pars = p->pars + t->par0;
    const LibConv *conv = (const void *)pars;
    const LibPool *pool = (const void *)(pars + l->npar);
    bool none = refs[l->noperand].space == PLAN_NONE;
    uint32_t lacking = 0;
    for (uint32_t i = t->nref; i < t->nref + t->ep_nref; i++)
        lacking += refs[i].space == PLAN_NONE;
    if (!t->epilogue) lacking = refs[l->noperand - 1].space == PLAN_NONE;
    PlanRef input = refs[l->noperand];
    if (none) input.space = PLAN_ARENA;
    const PlanRef pooled[3] = {input, refs[l->noperand + 1], refs[t->nref - 1]};
    for (int i = 0; i < 3; i++)
        if (pool->in[i] != conv->out[i]) return false;
    return lacking == none && pool->planes == conv->n * conv->k &&
           plan_operands_ok(l, refs, pars, !none && !t->epilogue) &&
           plan_operands_ok(q, pooled, pars + l->npar, true);
}

static bool plan_sum_ok(const RunCheck *c, const PlanStep *t) {
    for (uint32_t i = 0; i < t->nref; i++) {
        const PlanRef *r = &c->t->refs[t->ref0 + i];
        if (r->space != PLAN_VAR || r->offset ||
            c->m->vars[r->index].kind != PLAN_GRAD ||
            c->m->vars[r->index].dtype != AMPC_F32 || t->npar != 1 + t->nref ||
            c->t->pars[t->par0 + 1 + i] < 0)
            return false;
    }
    int64_t dtype = t->npar ? c->t->pars[t->par0] : -1;
    return dtype == AMPC_F32 ||
           (dtype >= 0 && dtype < AMPC_NDTYPE && dtype_info[dtype].low);
}

static bool plan_sum_now_ok(const RunCheck *c, const PlanStep *t) {
    if (t->nref != 1 || t->npar != sizeof(LibCopy) / sizeof(int64_t))
        return false;
    const LibCopy *what = (const void *)(c->t->pars + t->par0);
    return !t->second || (t->second == 1 && what->dtype == AMPC_F32);
}

/* The pars count the elements that ranks may share. */
static bool plan_split_ok(const PlanTarget *p, const PlanStep *t,
                          bool counted) {
    bool ok = t->split >= 0 && (!t->split || counted);
    for (uint32_t i = 0; i < t->npar && ok && t->split; i++)
        ok = p->pars[t->par0 + i] >= 0;
    return ok;
}

static bool plan_condition_ok(const RunCheck *c, const PlanStep *t) {
    return (t->kind == PLAN_KERNEL || t->kind == PLAN_LIB ||
            t->kind == PLAN_LAUNCH || t->kind == PLAN_ROWS) &&
           plan_refs_ok(c, plan_condition(t), 1) &&
           c->t->refs[plan_condition(t)].space != PLAN_NONE;
}

/* No operand is missing but for the bias and, of PLAN_GELU_OF, a result that
   nothing reads; it has no stride over matrices. */
static bool plan_gelu_ok(const RunCheck *c, const PlanStep *t) {
    const PlanRef *r = c->t->refs + t->ref0;
    const LibGemm *gemm = (const void *)(c->t->pars + t->par0);
    PlanStep product = *t;
    bool slope = t->fn == PLAN_GELU_SLOPE;
    if (t->nref != PLAN_GELU_REFS || t->npar < PLAN_GELU_PARS ||
        t->fn > PLAN_GELU_SLOPE)
        return false;
    product.nref = 3;
    product.npar -= PLAN_GELU_PARS;
    return plan_lib_ok(c->t, &product, PLAN_LIB_GEMM, 0) && !gemm->nbatch_dim &&
           (!slope || (r[3].space != PLAN_NONE && r[4].space == PLAN_NONE));
}

static bool plan_step_ok(const RunCheck *c, const PlanStep *t) {
    if (t->ep_nref > UINT32_MAX - t->nref ||
        !plan_refs_ok(c, t->ref0, t->nref + t->ep_nref) ||
        !plan_slice(t->par0, t->npar, c->t->npar))
        return false;
    bool cpu = c->t == c->m->cpu;
    if (t->when && !plan_condition_ok(c, t)) return false;
    switch (t->kind) {
    case PLAN_KERNEL: return cpu && plan_split_ok(c->t, t, t->npar > 0);
    case PLAN_LIB:
        return cpu && (t->second ? plan_pooled_ok(c->t, t)
                                 : plan_lib_ok(c->t, t, t->fn, 0));
    case PLAN_LAUNCH:
        return !cpu && plan_split_ok(c->t, t, t->npar > 0 && t->nref > 0);
    case PLAN_MANY:
        return !cpu && t->npar > 0 && t->nref % t->npar == 0 &&
               plan_split_ok(c->t, t, t->nref > 0);
    case PLAN_ROWS:
        return !cpu && t->npar > 0 && t->npar % 2 == 0 && !t->split &&
               t->nref % (t->npar / 2) == 0;
    case PLAN_PRODUCT: {
        PlanStep exact = *t;
        int64_t factors = plan_factors(c->t, t);
        exact.npar -= factors != AMPC_FACTORS_F32;
        return !cpu && t->fn <= PLAN_PRODUCT_BLOCKS_ADD && factors >= 0 &&
               factors < AMPC_NFACTORS &&
               plan_lib_ok(c->t, &exact, PLAN_LIB_GEMM, product_more(t->fn));
    }
    case PLAN_TILE: return !cpu && t->npar == 1;
    case PLAN_GELU: return !cpu && plan_gelu_ok(c, t);
    case PLAN_COPY: return !cpu && plan_lib_ok(c->t, t, PLAN_LIB_COPY, 0);
    case PLAN_SUM: return plan_sum_ok(c, t);
    case PLAN_SUM_NOW: return plan_sum_now_ok(c, t);
    default: return false;
    }
}

/* Outputs are read after the program has ended, when the host's inputs may
   be freed: an output must not be an input. */
static bool plan_outputs_ok(const RunCheck *c) {
    if (!plan_refs_ok(c, c->r->out0, c->p->nout)) return false;
    for (uint32_t i = 0; i < c->p->nout; i++)
        if (c->t->refs[c->r->out0 + i].space == PLAN_INPUT) return false;
    return true;
}

/* A PLAN_TILE or PLAN_GELU replaces steps of its own program. */
static bool plan_replaces_ok(const RunCheck *c, uint32_t step) {
    const PlanStep *t = &c->t->steps[c->r->step0 + step];
    const int64_t *end = c->t->pars + t->par0 + t->npar;
    int64_t left = (int64_t)c->r->nstep - step - 1;
    if (t->kind == PLAN_GELU) {
        if (end[-2] < 0 || end[-2] > left) return false;
        left -= end[-2];
    }
    return (t->kind != PLAN_TILE && t->kind != PLAN_GELU) ||
           (end[-1] >= 1 && end[-1] <= left);
}

static const char *target_defect(const AmpcModule *m, const PlanTarget *t) {
    for (uint32_t i = 0; i < m->nprogram; i++) {
        RunCheck c = {m, t, &m->programs[i], &t->runs[i]};
        if (!plan_slice(c.r->step0, c.r->nstep, t->nstep) ||
            c.r->nfixed > c.r->nstep || !plan_outputs_ok(&c))
            return c.p->name;
        for (uint32_t j = 0; j < c.r->nstep; j++)
            if (!plan_step_ok(&c, &t->steps[c.r->step0 + j]) ||
                !plan_replaces_ok(&c, j))
                return t->steps[c.r->step0 + j].name;
    }
    return NULL;
}

static bool plan_tensors_ok(const AmpcModule *m, uint32_t first, uint32_t n) {
    uint64_t bytes;
    if (!plan_slice(first, n, m->ntensor)) return false;
    for (uint32_t i = 0; i < n; i++) {
        const PlanTensor *t = &m->tensors[first + i];
        if (!dense_bytes(t->dtype, t->rank, t->dim, &bytes) || !t->name)
            return false;
        if (t->sample_rows < -1) return false;
        if (t->sample_rows > 0 &&
            (!t->rank || t->dim[0] < 1 || t->dim[0] % t->sample_rows))
            return false;
    }
    return true;
}

const char *plan_defect(const AmpcModule *m) {
    uint64_t bytes;
    const char *bad = NULL;
    if (m->version != AMPC_PLAN_VERSION) return "version of the plan";
    if (m->nisa && !m->cpu) return "programs for CPUs";
    for (uint32_t i = 0; i < m->nvar; i++) {
        const PlanVar *v = &m->vars[i];
        if (!dense_bytes(v->dtype, v->rank, v->dim, &bytes) ||
            bytes != v->bytes || !v->name)
            return v->name ? v->name : "a variable";
    }
    for (uint32_t i = 0; i < m->nprogram; i++) {
        const PlanProgram *p = &m->programs[i];
        if (!plan_tensors_ok(m, p->in0, p->nin) ||
            !plan_tensors_ok(m, p->out0, p->nout))
            return p->name;
    }
    if (m->cpu) bad = target_defect(m, m->cpu);
    return bad || !m->cuda ? bad : target_defect(m, m->cuda->plan);
}
