/* cpu_run.c: programs on the CPU.

   Binding resolves every PlanRef to an address once; a run then only patches
   the addresses of inputs that moved and walks the steps.  Nothing allocates
   while steps run, so a call that fails has changed nothing.                */
#include <string.h>

#include "runtime/cpu_device.h"

/* ---- binding ------------------------------------------------------------- */

typedef struct BindCtx {
    const ampc_session *s;
    const PlanTarget *plan;
    const CpuDevice *d;
    Bound *b;
} BindCtx;

static void *bind_ref(BindCtx *cx, const PlanRef *r, void **slot) {
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

/* Counts table entries, those that follow inputs and parameters of steps that
   ranks share. */
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
        *nbuf += t->nref + t->ep_nref;
        *npar += t->split ? t->npar : 0;
    }
}

/* This rank's part of a step, as if it were all: its variables begin there, and
   its first parameter counts elements.                                      */
static void bind_part(BindCtx *cx, const PlanStep *t, BoundStep *b, void **buf,
                      int64_t *par) {
    int64_t lo, hi;
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
    if (t->epilogue)
        b->epilogue =
            (CpuEpilogue){isa->epilogues[t->epilogue - 1], buf + t->nref};
}

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
    return AMPC_OK;
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

/* Threads of the pool round to nearest with subnormals; so must the host's,
   or results would depend on which thread computes them.                    */
ampc_status cpu_begin(ampc_session *s, int program, const void *const *in,
                      bool *walk) {
    CpuDevice *d = s->device;
    (void)walk;
    inputs_patch(s->m->programs[program].nin, &d->bound[program], in);
#ifdef __SSE__
    d->host_mode = __builtin_ia32_stmxcsr();
    __builtin_ia32_ldmxcsr(0x1f80);
#endif
    return AMPC_OK;
}

static void run_chunk(void *ctx, int64_t lo, int64_t hi, int worker) {
    const BoundStep *t = ctx;
    (void)worker;
    t->kernel(t->buf, t->par, lo, hi);
}

ampc_status cpu_step(ampc_session *s, int program, uint32_t step) {
    const CpuDevice *d = s->device;
    BoundStep *t = &d->bound[program].steps[step];
    if (t->kind == PLAN_SUM) {
        sums_ready(s);
    } else if (t->kind == PLAN_SUM_NOW) {
        const LibCopy *c = (const void *)t->par;
        return comm_sum_now(s, t->buf[0], c);
    } else if (t->kind == PLAN_LIB) {
        CpuLibCall c = {.pool = d->pool,
                        .par = t->par,
                        .buf = t->buf,
                        .epilogue = t->epilogue.fn ? &t->epilogue : NULL,
                        .scratch = d->scratch};
        cpu_lib_run(d->isa->lib, (PlanLib)t->lib, &c);
    } else if (t->units <= t->grain)
        run_chunk(t, 0, t->units, 0);
    else
        pool_run(d->pool, t->units, t->grain, run_chunk, t);
    return AMPC_OK;
}

ampc_status cpu_end(ampc_session *s, int program, ampc_status status) {
    const CpuDevice *d = s->device;
    (void)program;
    (void)d;
#ifdef __SSE__
    __builtin_ia32_ldmxcsr(d->host_mode);
#endif
    return status;
}
