/* cpu_backend.c: programs on the CPU.

   Binding resolves every PlanRef to an address once; a run then only patches
   the addresses of inputs that moved and walks the steps.  Nothing allocates
   while steps run, so a call that fails has changed nothing.                */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "runtime/backend.h"

/* One step with its operands resolved. */
typedef struct BoundStep {
    uint32_t kind, lib;
    PlanKernelFn *kernel;
    void **buf;
    const int64_t *par;
    int64_t units, grain;
    CpuEpilogue epilogue;
} BoundStep;

/* A table entry that follows an input's address. */
typedef struct BoundPatch {
    void **slot;
    uint32_t input;
    uint64_t offset;
} BoundPatch;

/* A program ready to run; `memory` holds all its tables.  NULL: not bound. */
typedef struct Bound {
    void *memory;
    size_t bytes;
    BoundStep *steps;
    BoundPatch *patches;
    const void **inputs; /* addresses that the tables hold now */
    uint32_t npatch;
} Bound;

typedef struct CpuDevice {
    const PlanIsa *isa;
    AmpcPool *pool;
    Bound *bound; /* per program */
    void **var;   /* address of each variable; gradients: late */
    void *vars, *grads, *arena, *scratch;
    size_t vars_bytes, grads_bytes, arena_bytes, scratch_bytes;
    unsigned host_mode; /* the host's rounding while a program runs */
} CpuDevice;

/* ---- scratch ------------------------------------------------------------- */

static size_t lib_scratch(uint32_t lib, const void *par, int threads) {
    switch (lib) {
    case PLAN_LIB_GEMM: return cpu_gemm_scratch(par, threads);
    case PLAN_LIB_CONV_FWD: return cpu_conv_fwd_scratch(par, threads);
    case PLAN_LIB_CONV_DGRAD: return cpu_conv_dgrad_scratch(par, threads);
    case PLAN_LIB_CONV_WGRAD: return cpu_conv_wgrad_scratch(par, threads);
    case PLAN_LIB_SCATTER_ADD: return cpu_scatter_add_scratch(par, threads);
    default: return 0;
    }
}

static size_t scratch_bytes(const AmpcModule *m, int threads) {
    size_t most = 0;
    for (uint32_t i = 0; i < m->nstep; i++) {
        const PlanStep *t = &m->steps[i];
        if (t->kind != PLAN_LIB || t->fn >= PLAN_NLIB) continue;
        size_t n = lib_scratch(t->fn, m->pars + t->par0, threads);
        if (n > most) most = n;
    }
    return most;
}

/* ---- memory -------------------------------------------------------------- */

static uint64_t round64(uint64_t n) { return (n + 63) & ~(uint64_t)63; }

static ampc_status need(ampc_session *s, void **p, size_t *size, size_t bytes,
                        const char *what) {
    *p = mem_alloc(s, bytes);
    if (!*p)
        return session_fail(s, AMPC_ERR_MEMORY,
                            "out of memory: %zu bytes for %s", bytes, what);
    *size = bytes;
    return AMPC_OK;
}

/* Variables lie in one block: the programs' tables, the table of addresses,
   then each variable on a 64-byte boundary.                                 */
static ampc_status alloc_vars(ampc_session *s, CpuDevice *d) {
    const AmpcModule *m = s->m;
    size_t head = round64(m->nprogram * sizeof(Bound) +
                          m->nvar * sizeof(void *));
    size_t total = head;
    for (uint32_t i = 0; i < m->nvar; i++)
        if (m->vars[i].kind != PLAN_GRAD) total += round64(m->vars[i].bytes);
    ampc_status status =
        need(s, &d->vars, &d->vars_bytes, total, "parameters and state");
    if (status != AMPC_OK) return status;
    memset(d->vars, 0, head);
    d->bound = d->vars;
    d->var = (void **)(d->bound + m->nprogram);
    char *p = (char *)d->vars + head;
    for (uint32_t i = 0; i < m->nvar; i++) {
        if (m->vars[i].kind == PLAN_GRAD) continue;
        d->var[i] = p;
        p += round64(m->vars[i].bytes);
    }
    return AMPC_OK;
}

static ampc_status alloc_all(ampc_session *s, CpuDevice *d) {
    const AmpcModule *m = s->m;
    uint64_t arena = 0;
    for (uint32_t i = 0; i < m->nprogram; i++)
        if (m->programs[i].arena > arena) arena = m->programs[i].arena;
    ampc_status status = alloc_vars(s, d);
    if (status == AMPC_OK)
        status = need(s, &d->arena, &d->arena_bytes, arena, "activations");
    if (status == AMPC_OK)
        status = need(s, &d->scratch, &d->scratch_bytes,
                      scratch_bytes(m, pool_threads(d->pool)), "scratch");
    return status;
}

static ampc_status cpu_zero_grads(ampc_session *s) {
    CpuDevice *d = s->device;
    if (d->grads) memset(d->grads, 0, d->grads_bytes);
    return AMPC_OK;
}

static ampc_status cpu_need_grads(ampc_session *s) {
    CpuDevice *d = s->device;
    uint64_t total = 0;
    if (d->grads) return AMPC_OK;
    for (uint32_t i = 0; i < s->m->nvar; i++)
        if (s->m->vars[i].kind == PLAN_GRAD)
            total += round64(s->m->vars[i].bytes);
    ampc_status status =
        need(s, &d->grads, &d->grads_bytes, total, "gradients");
    if (status != AMPC_OK) return status;
    char *p = d->grads;
    for (uint32_t i = 0; i < s->m->nvar; i++) {
        if (s->m->vars[i].kind != PLAN_GRAD) continue;
        d->var[i] = p;
        p += round64(s->m->vars[i].bytes);
    }
    return cpu_zero_grads(s);
}

/* ---- copies -------------------------------------------------------------- */

static char *cpu_address(const ampc_session *s, PlanRef r) {
    const CpuDevice *d = s->device;
    char *base = NULL;
    if (r.space == PLAN_ARENA) base = d->arena;
    if (r.space == PLAN_VAR) base = d->var[r.index];
    /* an output that is an input, passed through: the host's own bytes */
    if (r.space == PLAN_INPUT && s->last >= 0)
        base = (char *)(uintptr_t)d->bound[s->last].inputs[r.index];
    return base ? base + r.offset : NULL;
}

static ampc_status cpu_get(ampc_session *s, PlanRef from, void *to,
                           uint64_t bytes) {
    const char *p = cpu_address(s, from);
    if (bytes == 0) return AMPC_OK;
    if (p)
        memmove(to, p, bytes);
    else
        memset(to, 0, bytes); /* a gradient before any micro-step */
    return AMPC_OK;
}

static ampc_status cpu_put(ampc_session *s, PlanRef to, const void *from,
                           uint64_t bytes) {
    if (bytes) memmove(cpu_address(s, to), from, bytes);
    return AMPC_OK;
}

static ampc_status cpu_zero(ampc_session *s, PlanRef to, uint64_t bytes) {
    if (bytes) memset(cpu_address(s, to), 0, bytes);
    return AMPC_OK;
}

void *cpu_var(const ampc_session *s, uint32_t var) {
    return cpu_address(s, var_ref(var, 0));
}

/* ---- binding ------------------------------------------------------------- */

typedef struct BindCtx {
    const AmpcModule *m;
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

static void **bind_refs(BindCtx *cx, uint32_t first, uint32_t n, void **buf) {
    for (uint32_t i = 0; i < n; i++)
        buf[i] = bind_ref(cx, &cx->m->refs[first + i], &buf[i]);
    return buf + n;
}

/* Counts table entries and those that follow inputs. */
static void bind_count(const AmpcModule *m, const PlanProgram *p, size_t *nbuf,
                       size_t *npatch, bool *grads) {
    *nbuf = *npatch = 0;
    *grads = false;
    for (uint32_t i = 0; i < p->nstep; i++) {
        const PlanStep *t = &m->steps[p->step0 + i];
        for (uint32_t j = 0; j < t->nref + t->ep_nref; j++) {
            const PlanRef *r = &m->refs[j < t->nref ? t->ref0 + j
                                                    : t->ep_ref0 + j - t->nref];
            *npatch += r->space == PLAN_INPUT;
            *grads |= r->space == PLAN_VAR &&
                      m->vars[r->index].kind == PLAN_GRAD;
        }
        *nbuf += t->nref + t->ep_nref;
    }
}

static void bind_step(BindCtx *cx, const PlanStep *t, BoundStep *b,
                      void **buf) {
    const AmpcModule *m = cx->m;
    const PlanIsa *isa = cx->d->isa;
    *b = (BoundStep){.kind = t->kind,
                     .lib = t->fn,
                     .buf = buf,
                     .par = m->pars + t->par0,
                     .units = t->units,
                     .grain = t->grain < 1 ? 1 : t->grain};
    if (t->kind == PLAN_KERNEL) b->kernel = isa->kernels[t->fn];
    void **ep = bind_refs(cx, t->ref0, t->nref, buf);
    if (t->epilogue)
        b->epilogue = (CpuEpilogue){isa->epilogues[t->epilogue - 1], ep,
                                    m->pars + t->ep_par0};
    bind_refs(cx, t->ep_ref0, t->ep_nref, ep);
}

static ampc_status cpu_prepare(ampc_session *s, int program) {
    CpuDevice *d = s->device;
    const PlanProgram *p = &s->m->programs[program];
    Bound *b = &d->bound[program];
    size_t nbuf, npatch;
    bool grads;
    if (b->memory) return AMPC_OK;
    bind_count(s->m, p, &nbuf, &npatch, &grads);
    if (grads) {
        ampc_status status = cpu_need_grads(s);
        if (status != AMPC_OK) return status;
    }
    size_t bytes = p->nstep * sizeof(BoundStep) + npatch * sizeof(BoundPatch) +
                   (nbuf + p->nin) * sizeof(void *);
    char *mem = mem_alloc(s, bytes);
    if (!mem)
        return session_fail(s, AMPC_ERR_MEMORY,
                            "out of memory: %zu bytes for program '%s'", bytes,
                            p->name);
    memset(mem, 0, bytes);
    *b = (Bound){.memory = mem, .bytes = bytes, .steps = (BoundStep *)mem};
    b->patches = (BoundPatch *)(b->steps + p->nstep);
    b->inputs = (const void **)(b->patches + npatch);
    void **buf = (void **)(b->inputs + p->nin);
    BindCtx cx = {s->m, d, b};
    for (uint32_t i = 0; i < p->nstep; i++) {
        const PlanStep *t = &s->m->steps[p->step0 + i];
        bind_step(&cx, t, &b->steps[i], buf);
        buf += t->nref + t->ep_nref;
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
static ampc_status cpu_begin(ampc_session *s, int program,
                             const void *const *in, bool *walk) {
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

static void run_lib(const CpuDevice *d, const BoundStep *t) {
    const AmpcCpuLib *lib = d->isa->lib;
    AmpcPool *pool = d->pool;
    void **b = t->buf, *scratch = d->scratch;
    const void *par = t->par;
    const CpuEpilogue *ep = t->epilogue.fn ? &t->epilogue : NULL;
    switch (t->lib) {
    case PLAN_LIB_GEMM:
        lib->gemm(pool, par, b[0], b[1], b[2], ep, scratch);
        break;
    case PLAN_LIB_CONV_FWD:
        lib->conv_fwd(pool, par, b[0], b[1], b[2], ep, scratch);
        break;
    case PLAN_LIB_CONV_DGRAD:
        lib->conv_dgrad(pool, par, b[0], b[1], b[2], scratch);
        break;
    case PLAN_LIB_CONV_WGRAD:
        lib->conv_wgrad(pool, par, b[0], b[1], b[2], scratch);
        break;
    case PLAN_LIB_MAXPOOL: lib->maxpool(pool, par, b[0], b[1], b[2]); break;
    case PLAN_LIB_MAXPOOL_GRAD:
        lib->maxpool_grad(pool, par, b[0], b[1], b[2]);
        break;
    case PLAN_LIB_AVGPOOL: lib->avgpool(pool, par, b[0], b[1]); break;
    case PLAN_LIB_AVGPOOL_GRAD: lib->avgpool_grad(pool, par, b[0], b[1]); break;
    case PLAN_LIB_SCATTER_ADD:
        lib->scatter_add(pool, par, b[0], b[1], b[2], scratch);
        break;
    case PLAN_LIB_ARGMAX: lib->argmax(pool, par, b[0], b[1]); break;
    case PLAN_LIB_COPY:
        if (t->par[0] > 0) memmove(b[1], b[0], (size_t)t->par[0]);
        break;
    default: break;
    }
}

static ampc_status cpu_step(ampc_session *s, int program, uint32_t step) {
    const CpuDevice *d = s->device;
    BoundStep *t = &d->bound[program].steps[step];
    if (t->kind == PLAN_LIB)
        run_lib(d, t);
    else if (t->units <= t->grain)
        t->kernel(t->buf, t->par, 0, t->units);
    else
        pool_run(d->pool, t->units, t->grain, run_chunk, t);
    return AMPC_OK;
}

static ampc_status cpu_end(ampc_session *s, int program, ampc_status status) {
    const CpuDevice *d = s->device;
    (void)program;
    (void)d;
#ifdef __SSE__
    __builtin_ia32_ldmxcsr(d->host_mode);
#endif
    return status;
}

static ampc_status cpu_watched(ampc_session *s, int program,
                               uint64_t value[WATCH_COUNT]) {
    memset(value, 0, WATCH_COUNT * sizeof *value);
    for (int w = 0; w < WATCH_COUNT; w++) {
        PlanRef ref;
        uint32_t dtype;
        if (session_watch(s, program, (Watch)w, &ref, &dtype))
            cpu_get(s, ref, &value[w], dtype_bytes(dtype));
    }
    return AMPC_OK;
}

static ampc_status cpu_nothing(ampc_session *s) {
    (void)s;
    return AMPC_OK;
}

static void cpu_leave(ampc_session *s) { (void)s; }

/* ---- open and close ------------------------------------------------------ */

static ampc_status choose_isa(ampc_session *s, CpuDevice *d) {
    int level = cpu_isa_level();
    if (s->m->nisa == 0)
        return session_fail(s, AMPC_ERR_UNSUPPORTED,
                            "this module has no code for CPUs (--target)");
    for (uint32_t i = 0; i < s->m->nisa && !d->isa; i++)
        if ((int)s->m->isas[i].level <= level) d->isa = &s->m->isas[i];
    if (d->isa) return AMPC_OK;
    return session_fail(s, AMPC_ERR_UNSUPPORTED,
                        "this machine runs x86-64-v%d; the module was compiled "
                        "for x86-64-v%u and above (--target)",
                        level, s->m->isas[s->m->nisa - 1].level);
}

static ampc_status cpu_open(ampc_session *s) {
    CpuDevice *d = s->device = mem_alloc(s, sizeof *d);
    if (!d) return session_fail(s, AMPC_ERR_MEMORY, "out of memory");
    *d = (CpuDevice){.isa = NULL};
    ampc_status status = choose_isa(s, d);
    if (status != AMPC_OK) return status;
    d->pool = pool_create(s->opt.threads);
    if (!d->pool)
        return session_fail(s, AMPC_ERR_MEMORY,
                            "out of memory or threads for the thread pool");
    return alloc_all(s, d);
}

static void cpu_close(ampc_session *s) {
    CpuDevice *d = s->device;
    if (!d) return;
    /* A forked child has the pool's memory but none of its threads. */
    if (s->pid == getpid()) pool_destroy(d->pool);
    for (uint32_t i = 0; d->bound && i < s->m->nprogram; i++)
        mem_free(s, d->bound[i].memory, d->bound[i].bytes);
    mem_free(s, d->vars, d->vars_bytes);
    mem_free(s, d->grads, d->grads_bytes);
    mem_free(s, d->arena, d->arena_bytes);
    mem_free(s, d->scratch, d->scratch_bytes);
    mem_free(s, d, sizeof *d);
    s->device = NULL;
}

static void cpu_describe(const ampc_session *s, char *text, size_t size) {
    const CpuDevice *d = s->device;
    snprintf(text, size,
             "x86-64-v%u, %d threads, %zu MB variables, %zu MB arena",
             d->isa->level, pool_threads(d->pool), d->vars_bytes >> 20,
             d->arena_bytes >> 20);
}

const AmpcBackend cpu_backend = {
    .open = cpu_open,
    .close = cpu_close,
    .enter = cpu_nothing,
    .leave = cpu_leave,
    .get = cpu_get,
    .put = cpu_put,
    .zero = cpu_zero,
    .need_grads = cpu_need_grads,
    .zero_grads = cpu_zero_grads,
    .prepare = cpu_prepare,
    .begin = cpu_begin,
    .step = cpu_step,
    .end = cpu_end,
    .sync = cpu_nothing,
    .watched = cpu_watched,
    .describe = cpu_describe,
};
