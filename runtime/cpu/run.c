/* SPDX-License-Identifier: Apache-2.0 */
/* run.c: programs on the CPU.

   Binding resolves every PlanRef to an address once; a run then only updates
   the addresses of inputs that moved and walks the steps. Nothing is
   allocated while steps run, so a call that fails has changed nothing. */
#include <string.h>

#include "runtime/cpu/device.h"

/* ---- binding ------------------------------------------------------------- */

typedef struct BindCtx {
    const ampc_session *s;
    const PlanTarget *plan;
    const CpuDevice *d;
    Bound *b;
} BindCtx;

static void *bind_ref(BindCtx *cx, const PlanRef *r, void **slot) {
    CONTRACT(r->space != PLAN_VAR ||
             (r->index < cx->s->m->nvar &&
              r->offset <= cx->s->m->vars[r->index].bytes));
    switch (r->space) {
    case PLAN_ARENA: return (char *)cx->d->arena + r->offset;
    case PLAN_VAR: return (char *)cx->d->var[r->index] + r->offset;
    case PLAN_INPUT:
        cx->b->patches[cx->b->npatch++] =
            (BoundPatch){slot, r->index, r->offset};
        return NULL;
    default: return NULL;
    }
}

/* Counts table entries, entries that follow inputs, and parameters of steps
   that ranks share. */
static void bind_count(const ampc_session *s, const PlanRun *r, size_t *nbuf,
                       size_t *npatch, size_t *npar, bool *grads) {
    const PlanTarget *plan = s->plan;
    *nbuf = *npatch = *npar = 0;
    *grads = false;
    for (uint32_t i = 0; i < r->nstep; i++) {
        const PlanStep *t = &plan->steps[r->step0 + i];
        for (uint32_t j = 0; j < t->nref + t->ep_nref; j++) {
            const PlanRef *x = &plan->refs[t->ref0 + j];
            *npatch += x->space == PLAN_INPUT;
            *grads |=
                x->space == PLAN_VAR && s->m->vars[x->index].kind == PLAN_GRAD;
        }
        *npatch += t->when && plan->refs[plan_condition(t)].space == PLAN_INPUT;
        *nbuf += t->nref + t->ep_nref;
        *npar += t->split ? t->npar : 0;
    }
}

/* This rank's part of a step, as if it were the whole: its variables begin
   there, and its first parameter counts elements. */
static void bind_part(BindCtx *cx, const PlanStep *t, BoundStep *b, void **buf,
                      int64_t *par) {
    int64_t lo, hi;
    CONTRACT(t->npar > 0 && t->split > 0);
    shard_elements(cx->s, t, 0, session_rank(cx->s), &lo, &hi);
    memcpy(par, b->par, t->npar * sizeof *par);
    par[0] = hi - lo;
    b->par = par;
    b->units = (par[0] + t->split - 1) / t->split;
    for (uint32_t i = 0; i < t->nref; i++) {
        const PlanRef *r = &cx->plan->refs[t->ref0 + i];
        if (r->space != PLAN_VAR) continue;
        const PlanVar *v = &cx->s->m->vars[r->index];
        uint64_t each = dtype_bytes(v->dtype);
        if (v->bytes > each) buf[i] = (char *)buf[i] + (uint64_t)lo * each;
    }
}

/* True if a step's ref i is a variable that it may write; generated code may
   write any. */
static bool writes_var(const PlanTarget *plan, const PlanStep *t, uint32_t i) {
    if (plan->refs[t->ref0 + i].space != PLAN_VAR) return false;
    if (t->kind != PLAN_LIB || i >= t->nref) return true;
    const LibInfo *l = lib_info(t->fn);
    return i < l->noperand
               ? lib_writes(l, (int)i)
               : lib_writes(lib_info(t->second - 1), (int)(i - l->noperand));
}

/* If the pool's input is not stored, it is one of the epilogue's refs or the
   result: the one without memory. */
static void bind_pool(const BindCtx *cx, const PlanStep *t, BoundStep *b) {
    const PlanRef *refs = cx->plan->refs + t->ref0;
    const LibInfo *l = lib_info(t->fn);
    b->pool = (CpuPool){.lib = (PlanLib)(t->second - 1),
                        .par = (const void *)(b->par + l->npar),
                        .buf = b->buf + l->noperand,
                        .count = t->ep_nref};
    b->epilogue.pool = &b->pool;
    for (uint32_t i = t->nref; i < t->nref + t->ep_nref; i++)
        if (refs[i].space == PLAN_NONE) b->pool.at = &b->buf[i];
}

static void bind_step(BindCtx *cx, const PlanStep *t, BoundStep *b,
                      void **buf) {
    const PlanIsa *isa = cx->d->isa;
    *b = (BoundStep){.kind = t->kind,
                     .lib = t->fn,
                     .buf = buf,
                     .par = cx->plan->pars + t->par0,
                     .units = t->units,
                     .grain = t->grain < 1 ? 1 : t->grain};
    if (t->kind == PLAN_KERNEL) b->kernel = isa->kernels[t->fn];
    for (uint32_t i = 0; i < t->nref + t->ep_nref; i++)
        buf[i] = bind_ref(cx, &cx->plan->refs[t->ref0 + i], &buf[i]);
    b->unless = t->when < 0;
    if (t->when)
        b->when = bind_ref(cx, &cx->plan->refs[plan_condition(t)], &b->when);
    if (t->epilogue) {
        const PlanEpilogue *e = &isa->epilogues[t->epilogue - 1];
        b->epilogue = (CpuEpilogue){e->fn, e->table, buf + t->nref, NULL};
    }
    if (t->kind == PLAN_LIB && t->second) bind_pool(cx, t, b);
    for (uint32_t i = 0; i < t->nref + t->ep_nref; i++)
        b->writes |= writes_var(cx->plan, t, i);
}

/* ---- kept data of operands ----------------------------------------------- */

/* The entry shared by steps with that routine, parameters and operand; NULL:
   not yet made. */
static Kept *find_kept(const CpuDevice *d, const PlanStep *t, const PlanRef *of,
                       const int64_t *par) {
    for (Kept *k = d->kept; k; k = k->next)
        if (k->lib == t->fn && k->of.space == of->space &&
            k->of.index == of->index && k->of.offset == of->offset &&
            memcmp(k->par, par, t->npar * sizeof *par) == 0)
            return k;
    return NULL;
}

/* A step that depends on variables alone computes the value. */
static bool fixed_value(const PlanTarget *plan, const PlanRun *r,
                        const PlanRef *of) {
    for (uint32_t i = 0; of->space == PLAN_ARENA && i < r->nfixed; i++) {
        const PlanStep *t = &plan->steps[r->step0 + i];
        for (uint32_t j = 0; j < t->nref + t->ep_nref; j++) {
            const PlanRef *x = &plan->refs[t->ref0 + j];
            if (x->space == PLAN_ARENA && x->index == of->index) return true;
        }
    }
    return false;
}

static ampc_status count_use(ampc_session *s, const PlanRun *r,
                             const PlanStep *t, BoundStep *b) {
    CpuDevice *d = s->device;
    const PlanRef *of = &s->plan->refs[t->ref0 + 1];
    size_t bytes;
    if (t->kind != PLAN_LIB || t->nref < 2 ||
        !(of->space == PLAN_VAR || (of->space == PLAN_ARENA && of->index)))
        return AMPC_OK;
    bytes = cpu_lib_kept((PlanLib)t->fn, b->par, pool_threads(d->pool));
    if (!bytes) return AMPC_OK;
    b->kept = find_kept(d, t, of, b->par);
    if (!b->kept) {
        Kept *k = b->kept = mem_alloc(s, sizeof *k);
        if (!k) return session_fail(s, AMPC_ERR_MEMORY, "out of memory");
        *k = (Kept){.next = d->kept,
                    .bytes = bytes,
                    .lib = t->fn,
                    .par = b->par,
                    .of = *of};
        d->kept = k;
    }
    b->kept->uses++;
    b->kept->fixed = b->fixed = fixed_value(s->plan, r, of);
    return AMPC_OK;
}

/* Frozen weights of 16 bits save memory; fp32 panels of them would take twice
   as much again. Predictions with few rows are faster with panels.
 */
static bool is_lean(const ampc_session *s, const PlanProgram *p,
                    const PlanRef *of) {
    static const char predict[] = "predict";
    if (of->space != PLAN_VAR || !strncmp(p->name, predict, strlen(predict)))
        return false;
    const PlanVar *v = &s->m->vars[of->index];
    return v->kind == PLAN_FROZEN && dtype_bytes(v->dtype) == 2;
}

/* A training step changes its parameters, and every run changes the arena but
   for what fixed steps computed, so that only data used more than once per run
   are worth memory. */
static ampc_status keep(ampc_session *s, const PlanProgram *p, const PlanRun *r,
                        Bound *b) {
    CpuDevice *d = s->device;
    ampc_status status = AMPC_OK;
    size_t bytes = s->m->nvar + 1; /* no variables: the data never change */
    bool *changes = mem_alloc(s, bytes);
    if (!changes) return session_fail(s, AMPC_ERR_MEMORY, "out of memory");
    memset(changes, 0, bytes);
    for (Kept *k = d->kept; k; k = k->next) k->uses = 0;
    for (uint32_t i = 0; i < r->nstep && status == AMPC_OK; i++) {
        const PlanStep *t = &s->plan->steps[r->step0 + i];
        for (uint32_t j = 0; j < t->nref + t->ep_nref; j++)
            if (writes_var(s->plan, t, j))
                changes[s->plan->refs[t->ref0 + j].index] = true;
        status = count_use(s, r, t, &b->steps[i]);
    }
    for (Kept *k = d->kept; k && status == AMPC_OK; k = k->next) {
        bool new_each =
            k->of.space == PLAN_ARENA ? !k->fixed : changes[k->of.index];
        if (k->uses <= new_each || k->kept.memory || is_lean(s, p, &k->of))
            continue;
        k->kept.memory = mem_alloc(s, k->bytes);
        if (!k->kept.memory)
            status = session_fail(
                s, AMPC_ERR_MEMORY,
                "out of memory: %zu bytes for packed operands", k->bytes);
    }
    mem_free(s, changes, bytes);
    return status;
}

/* The kept data for a step that is about to run; NULL: none. */
static CpuKept *kept_now(const CpuDevice *d, const Bound *b,
                         const BoundStep *t) {
    Kept *k = t->kept;
    if (!k || !k->kept.memory) return NULL;
    uint64_t now = k->of.space == PLAN_VAR ? d->written[k->of.index]
                   : t->fixed              ? b->fixed
                                           : d->runs;
    k->kept.made &= k->seen == now;
    k->seen = now;
    return &k->kept;
}

/* ---- programs ------------------------------------------------------------ */

ampc_status cpu_prepare(ampc_session *s, int program) {
    CpuDevice *d = s->device;
    const PlanProgram *p = &s->m->programs[program];
    const PlanRun *r = &s->plan->runs[program];
    Bound *b = &d->bound[program];
    size_t nbuf, npatch, npar;
    bool grads;
    if (b->memory) return AMPC_OK;
    bind_count(s, r, &nbuf, &npatch, &npar, &grads);
    if (grads) {
        ampc_status status = cpu_need_grads(s);
        if (status != AMPC_OK) return status;
    }
    size_t bytes = r->nstep * sizeof(BoundStep) + npatch * sizeof(BoundPatch) +
                   (nbuf + p->nin) * sizeof(void *) + npar * sizeof(int64_t);
    char *mem = mem_alloc(s, bytes);
    if (!mem)
        return session_fail(s, AMPC_ERR_MEMORY,
                            "out of memory: %zu bytes for program '%s'", bytes,
                            p->name);
    memset(mem, 0, bytes);
    *b = (Bound){.memory = mem, .bytes = bytes, .steps = (BoundStep *)mem};
    b->patches = (BoundPatch *)(b->steps + r->nstep);
    b->inputs = (const void **)(b->patches + npatch);
    void **buf = (void **)(b->inputs + p->nin);
    int64_t *par = (int64_t *)(buf + nbuf);
    BindCtx cx = {s, s->plan, d, b};
    for (uint32_t i = 0; i < r->nstep; i++) {
        const PlanStep *t = &s->plan->steps[r->step0 + i];
        bind_step(&cx, t, &b->steps[i], buf);
        if (t->split) bind_part(&cx, t, &b->steps[i], buf, par);
        buf += t->nref + t->ep_nref;
        par += t->split ? t->npar : 0;
    }
    CONTRACT(b->npatch == npatch && (char *)par == mem + bytes);
    ampc_status status = keep(s, p, r, b);
    if (status == AMPC_OK) return status;
    mem_free(s, b->memory, b->bytes);
    *b = (Bound){0};
    return status;
}

/* ---- running ------------------------------------------------------------- */

static void inputs_patch(uint32_t n, Bound *b, const void *const *addr) {
    if (n == 0 || memcmp(b->inputs, addr, n * sizeof *addr) == 0) return;
    memcpy(b->inputs, addr, n * sizeof *addr);
    for (uint32_t i = 0; i < b->npatch; i++) {
        const BoundPatch *t = &b->patches[i];
        *t->slot = (char *)(uintptr_t)addr[t->input] + t->offset;
    }
}

ampc_status cpu_begin(ampc_session *s, int program, const void *const *in,
                      uint32_t *first) {
    CpuDevice *d = s->device;
    Bound *b = &d->bound[program];
    d->runs++;
    if (d->fixed_of == program + 1 && d->fixed_at == d->changes)
        *first = s->plan->runs[program].nfixed;
    else
        b->fixed = d->runs;
    d->fixed_of = 0;
    inputs_patch(s->m->programs[program].nin, b, in);
    return AMPC_OK;
}

static void run_chunk(void *ctx, int64_t lo, int64_t hi, int worker) {
    const BoundStep *t = ctx;
    (void)worker;
    t->kernel.fn(t->buf, t->kernel.table, t->par, lo, hi);
}

/* True if data say that the step is left out. */
static bool is_spared(const BoundStep *t) {
    return t->when && (*(const uint8_t *)t->when != 0) == t->unless;
}

static void has_written(ampc_session *s, int program, uint32_t step) {
    CpuDevice *d = s->device;
    const PlanStep *t = &s->plan->steps[s->plan->runs[program].step0 + step];
    for (uint32_t i = 0; i < t->nref + t->ep_nref; i++)
        if (writes_var(s->plan, t, i))
            d->written[s->plan->refs[t->ref0 + i].index]++, d->changes++;
}

ampc_status cpu_step(ampc_session *s, int program, uint32_t step) {
    const CpuDevice *d = s->device;
    CONTRACT(d->bound[program].memory); /* cpu_prepare */
    BoundStep *t = &d->bound[program].steps[step];
    ampc_status status = AMPC_OK;
    s->spared = is_spared(t);
    if (s->spared) return AMPC_OK;
    if (t->kind == PLAN_SUM) {
        sums_ready(s);
    } else if (t->kind == PLAN_SUM_NOW) {
        const LibCopy *c = (const void *)t->par;
        bool largest =
            s->plan->steps[s->plan->runs[program].step0 + step].second;
        status = comm_sum_now(s, t->buf[0], c, largest);
    } else if (t->kind == PLAN_LIB) {
        CpuLibCall c = {.pool = d->pool,
                        .par = t->par,
                        .buf = t->buf,
                        .epilogue = &t->epilogue,
                        .scratch = d->scratch,
                        .kept = kept_now(d, &d->bound[program], t)};
        cpu_lib_run(d->isa->lib, (PlanLib)t->lib, &c);
    } else if (t->units <= t->grain)
        run_chunk(t, 0, t->units, 0);
    else
        pool_run(d->pool, t->units, t->grain, run_chunk, t);
    if (t->writes) has_written(s, program, step);
    return status;
}

ampc_status cpu_end(ampc_session *s, int program, ampc_status status) {
    CpuDevice *d = s->device;
    if (status == AMPC_OK) d->fixed_of = program + 1;
    d->fixed_at = d->changes;
    return status;
}
