/* SPDX-License-Identifier: Apache-2.0 */
/* backend.c: the CPU as a device: memory, copies, open and close.
   run.c runs programs on it. */
#include <stdio.h>
#include <string.h>

#include "runtime/base/host.h"
#include "runtime/base/try.h"
#include "runtime/cpu/block.h"
#include "runtime/cpu/device.h"

/* ---- scratch ------------------------------------------------------------- */

static size_t scratch_bytes(const PlanTarget *plan, int threads) {
    size_t most = 0;
    for (uint32_t i = 0; i < plan->nstep; i++) {
        const PlanStep *t = &plan->steps[i];
        if (t->kind != PLAN_LIB) continue;
        const int64_t *par = plan->pars + t->par0;
        size_t n = cpu_lib_scratch((PlanLib)t->fn, par, threads);
        if (t->second)
            n += cpu_pool_scratch((const void *)par,
                                  (const void *)(par + lib_info(t->fn)->npar),
                                  threads);
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

/* Variables are in one block: the programs' tables, two arrays with a number
   per variable, then each variable on a 64-byte boundary. */
static ampc_status alloc_vars(ampc_session *s, CpuDevice *d) {
    const AmpcModule *m = s->m;
    size_t head = round64(m->nprogram * sizeof(Bound) +
                          m->nvar * (sizeof(void *) + sizeof(uint64_t)));
    size_t total = head;
    uint64_t lo, hi;
    for (uint32_t i = 0; i < m->nvar; i++) {
        shard_range(s, i, &lo, &hi);
        if (m->vars[i].kind != PLAN_GRAD) total += round64(hi - lo);
    }
    TRY(need(s, &d->vars, &d->vars_bytes, total, "parameters and state"));
    memset(d->vars, 0, head);
    d->bound = d->vars;
    d->var = (void **)(d->bound + m->nprogram);
    d->written = (uint64_t *)(d->var + m->nvar);
    char *p = (char *)d->vars + head;
    for (uint32_t i = 0; i < m->nvar; i++) {
        if (m->vars[i].kind == PLAN_GRAD) continue;
        shard_range(s, i, &lo, &hi);
        d->var[i] =
            (void *)((uintptr_t)p - (uintptr_t)lo); /* as if all gradients
                                                       existed */
        p += round64(hi - lo);
    }
    return AMPC_OK;
}

static bool spares_steps(const PlanTarget *plan) {
    for (uint32_t i = 0; i < plan->nstep; i++)
        if (plan->steps[i].when) return true;
    return false;
}

/* What reads the results of steps that were left out masks them. A processor
   takes hundreds of cycles for a masked load of a page that nothing wrote yet.
 */
static ampc_status alloc_arena(ampc_session *s, CpuDevice *d, uint64_t bytes) {
    ampc_status status =
        need(s, &d->arena, &d->arena_bytes, bytes, "activations");
    if (status == AMPC_OK && d->arena && spares_steps(s->plan))
        memset(d->arena, 0, d->arena_bytes);
    return status;
}

static ampc_status alloc_all(ampc_session *s, CpuDevice *d) {
    const PlanTarget *plan = s->plan;
    uint64_t arena = 0;
    for (uint32_t i = 0; i < s->m->nprogram; i++)
        if (plan->runs[i].arena > arena) arena = plan->runs[i].arena;
    TRY(alloc_vars(s, d));
    TRY(alloc_arena(s, d, arena));
    return need(s, &d->scratch, &d->scratch_bytes,
                scratch_bytes(plan, pool_threads(d->pool)), "scratch");
}

static ampc_status cpu_zero_grads(ampc_session *s) {
    CpuDevice *d = s->device;
    if (d->grads) memset(d->grads, 0, d->grads_bytes);
    return AMPC_OK;
}

ampc_status cpu_need_grads(ampc_session *s) {
    CpuDevice *d = s->device;
    uint64_t total = 0;
    if (d->grads) return AMPC_OK;
    for (uint32_t i = 0; i < s->m->nvar; i++)
        if (s->m->vars[i].kind == PLAN_GRAD)
            total += round64(s->m->vars[i].bytes);
    TRY(need(s, &d->grads, &d->grads_bytes, total, "gradients"));
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
    char *base = shard_whole(s, r);
    if (base) return base;
    if (r.space == PLAN_ARENA) base = d->arena;
    if (r.space == PLAN_VAR) base = d->var[r.index];
    return base ? base + r.offset : NULL;
}

static ampc_status cpu_get(ampc_session *s, PlanRef from, void *to,
                           uint64_t bytes) {
    const char *p = cpu_address(s, from);
    if (bytes == 0) return AMPC_OK;
    if (p)
        memmove(to, p, bytes);
    else
        memset(to, 0, bytes); /* a gradient before the first micro-step */
    return AMPC_OK;
}

static void changes(ampc_session *s, PlanRef to) {
    CpuDevice *d = s->device;
    if (to.space != PLAN_VAR) return;
    d->written[to.index]++;
    d->changes++;
}

static ampc_status cpu_put(ampc_session *s, PlanRef to, const void *from,
                           uint64_t bytes) {
    changes(s, to);
    if (bytes) memmove(cpu_address(s, to), from, bytes);
    return AMPC_OK;
}

static ampc_status cpu_zero(ampc_session *s, PlanRef to, uint64_t bytes) {
    changes(s, to);
    if (bytes) memset(cpu_address(s, to), 0, bytes);
    return AMPC_OK;
}

void *cpu_var(const ampc_session *s, uint32_t var) {
    return cpu_address(s, var_ref(var, 0));
}

/* ---- open and close ------------------------------------------------------ */

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

static ampc_status choose_isa(ampc_session *s, CpuDevice *d) {
    int level = cpu_isa_level();
    const char *unknown = cpu_isa_unknown();
    if (unknown)
        return session_fail(s, AMPC_ERR_ARGUMENT,
                            "AMPC_ISA=%.40s is unknown: " CPU_ISA_WORDS,
                            unknown);
    if (s->m->nisa == 0)
        return session_fail(s, AMPC_ERR_UNSUPPORTED,
                            "this module has no code for CPUs (--target)");
    for (uint32_t i = 0; i < s->m->nisa && !d->isa; i++)
        if ((int)s->m->isas[i].level <= level) d->isa = &s->m->isas[i];
    if (d->isa) return AMPC_OK;
    return session_fail(s, AMPC_ERR_UNSUPPORTED,
                        "this machine runs %s; the module was compiled for %s "
                        "and above (--target)",
                        cpu_isa_name(level),
                        cpu_isa_name((int)s->m->isas[s->m->nisa - 1].level));
}

static ampc_status cpu_open(ampc_session *s) {
    CpuDevice *d = s->device = mem_alloc(s, sizeof *d);
    if (!d) return session_fail(s, AMPC_ERR_MEMORY, "out of memory");
    *d = (CpuDevice){.isa = NULL};
    TRY(choose_isa(s, d));
    cpu_bf16_dot(); /* measured here, so that no step includes it */
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
    if (s->pid == host_process()) pool_destroy(d->pool);
    for (uint32_t i = 0; d->bound && i < s->m->nprogram; i++)
        mem_free(s, d->bound[i].memory, d->bound[i].bytes);
    for (Kept *k = d->kept, *next; k; k = next) {
        next = k->next;
        mem_free(s, k->kept.memory, k->bytes);
        mem_free(s, k, sizeof *k);
    }
    mem_free(s, d->vars, d->vars_bytes);
    mem_free(s, d->grads, d->grads_bytes);
    mem_free(s, d->arena, d->arena_bytes);
    mem_free(s, d->scratch, d->scratch_bytes);
    mem_free(s, d, sizeof *d);
    s->device = NULL;
}

static void cpu_memory(const ampc_session *s, ampc_memory_info *out) {
    const CpuDevice *d = s->device;
    out->gradients = d->grads_bytes;
    out->activations = d->arena_bytes;
    out->total =
        d->vars_bytes + d->grads_bytes + d->arena_bytes + d->scratch_bytes;
    for (uint32_t i = 0; i < s->m->nprogram; i++)
        out->total += d->bound[i].bytes;
    for (const Kept *k = d->kept; k; k = k->next)
        out->total += sizeof *k + k->bytes;
}

/* Three digits and a unit: "812 bytes", "1.73 GB". */
static void put_amount(char text[24], size_t bytes) {
    static const char units[][6] = {"bytes", "kB", "MB", "GB", "TB"};
    double x = (double)bytes;
    int k = 0;
    while (x >= 999.5 && k < 4) x /= 1e3, k++;
    snprintf(text, 24, "%.3g %.5s", x, units[k]);
}

static void cpu_describe(const ampc_session *s, char *text, size_t size) {
    const CpuDevice *d = s->device;
    int threads = pool_threads(d->pool);
    char vars[24], arena[24];
    put_amount(vars, d->vars_bytes);
    put_amount(arena, d->arena_bytes);
    snprintf(text, size, "%s, %d thread%s, %s of variables, %s of activations",
             cpu_isa_name((int)d->isa->level), threads, threads == 1 ? "" : "s",
             vars, arena);
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
    .kind = "cpu",
    .memory = cpu_memory,
    .describe = cpu_describe,
};
