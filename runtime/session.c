/* session.c: opens and closes sessions.  Everything a session will need but
   gradients and program tables is allocated here; a failure at any point goes
   through session_close, which accepts a half-built session.                */
#define _DEFAULT_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "runtime/session.h"

enum { HUGE_PAGE = 2 << 20 };

static void *default_alloc(void *ctx, size_t bytes, size_t align) {
    void *p = NULL;
    (void)ctx;
    bool big = bytes >= 2 * (size_t)HUGE_PAGE;
    if (posix_memalign(&p, big ? HUGE_PAGE : align, bytes) != 0) return NULL;
    if (big) madvise(p, bytes, MADV_HUGEPAGE); /* a tenth of the page faults */
    return p;
}

static void default_free(void *ctx, void *p, size_t bytes) {
    (void)ctx;
    (void)bytes;
    free(p);
}

static ampc_status open_error(char *err, size_t err_size, ampc_status status,
                              const char *text) {
    if (err && err_size) snprintf(err, err_size, "%s", text);
    return status;
}

/* ---- options ------------------------------------------------------------- */

static const char *options_defect(const ampc_options *o) {
    if (!o->alloc != !o->free) return "alloc and free: give both or none";
    if (o->threads < 0 || o->threads > 1024)
        return "threads: 0 (all) to 1024 are possible";
    if (o->stream) return "stream: this module has no CUDA code";
    if (o->comm) return "comm: this module has no data-parallel code";
    return NULL;
}

static ampc_status options_read(const ampc_options *given, ampc_options *o,
                                char *err, size_t err_size) {
    memset(o, 0, sizeof *o);
    if (given) {
        if (given->size < sizeof given->size)
            return open_error(err, err_size, AMPC_ERR_ARGUMENT,
                              "ampc_options.size is not set");
        memcpy(o, given, given->size < sizeof *o ? given->size : sizeof *o);
    }
    o->size = sizeof *o;
    const char *defect = options_defect(o);
    if (defect) return open_error(err, err_size, AMPC_ERR_ARGUMENT, defect);
    if (o->device && strcmp(o->device, "auto") != 0 &&
        strcmp(o->device, "cpu") != 0) {
        char text[200];
        bool cuda = strncmp(o->device, "cuda", 4) == 0;
        snprintf(text, sizeof text, "device '%.60s': %s", o->device,
                 cuda ? "this module was compiled for the CPU only"
                      : "'auto' and 'cpu' are possible");
        return open_error(err, err_size,
                          cuda ? AMPC_ERR_UNSUPPORTED : AMPC_ERR_ARGUMENT,
                          text);
    }
    o->device = NULL; /* not kept: the host's string may go away */
    if (!o->alloc) {
        o->alloc = default_alloc;
        o->free = default_free;
    }
    return AMPC_OK;
}

/* ---- memory -------------------------------------------------------------- */

static ampc_status need(ampc_session *s, void **p, size_t *size, size_t bytes,
                        const char *what) {
    *p = mem_alloc(s, bytes);
    if (!*p)
        return session_fail(s, AMPC_ERR_MEMORY,
                            "out of memory: %zu bytes for %s", bytes, what);
    *size = bytes;
    return AMPC_OK;
}

static size_t most_inputs(const AmpcModule *m) {
    size_t most = 0;
    for (uint32_t i = 0; i < m->nprogram; i++)
        if (m->programs[i].nin > most) most = m->programs[i].nin;
    return most;
}

/* Variables lie in one block: the programs' tables, the tables of addresses,
   then each variable on a 64-byte boundary.                                 */
static ampc_status alloc_vars(ampc_session *s) {
    const AmpcModule *m = s->m;
    size_t head = m->nprogram * sizeof(Bound) +
                  (m->nvar + most_inputs(m)) * sizeof(void *);
    size_t total = (head + 63) & ~(size_t)63;
    for (uint32_t i = 0; i < m->nvar; i++)
        if (m->vars[i].kind != PLAN_GRAD)
            total += (m->vars[i].bytes + 63) & ~(uint64_t)63;
    ampc_status status =
        need(s, &s->vars, &s->vars_bytes, total, "parameters and state");
    if (status != AMPC_OK) return status;
    memset(s->vars, 0, (head + 63) & ~(size_t)63);
    s->bound = s->vars;
    s->var = (void **)(s->bound + m->nprogram);
    s->addr = (const void **)(s->var + m->nvar);
    char *p = (char *)s->vars + ((head + 63) & ~(size_t)63);
    for (uint32_t i = 0; i < m->nvar; i++) {
        if (m->vars[i].kind == PLAN_GRAD) continue;
        s->var[i] = p;
        p += (m->vars[i].bytes + 63) & ~(uint64_t)63;
    }
    return AMPC_OK;
}

static ampc_status alloc_all(ampc_session *s) {
    const AmpcModule *m = s->m;
    uint64_t arena = 0;
    for (uint32_t i = 0; i < m->nprogram; i++)
        if (m->programs[i].arena > arena) arena = m->programs[i].arena;
    ampc_status status = alloc_vars(s);
    if (status == AMPC_OK)
        status = need(s, &s->arena, &s->arena_bytes, arena, "activations");
    if (status == AMPC_OK)
        status = need(s, &s->scratch, &s->scratch_bytes,
                      session_scratch_bytes(m, pool_threads(s->pool)),
                      "scratch");
    return status;
}

/* ---- open and close ------------------------------------------------------ */

static ampc_status choose_isa(ampc_session *s) {
    int level = cpu_isa_level();
    for (uint32_t i = 0; i < s->m->nisa && !s->isa; i++)
        if ((int)s->m->isas[i].level <= level) s->isa = &s->m->isas[i];
    if (s->isa) return AMPC_OK;
    uint32_t least = s->m->nisa ? s->m->isas[s->m->nisa - 1].level : 0;
    return session_fail(s, AMPC_ERR_UNSUPPORTED,
                        "this machine runs x86-64-v%d; the module was compiled "
                        "for x86-64-v%u and above (--target)",
                        level, least);
}

static void find_programs(ampc_session *s) {
    static const char *const names[PROG_COUNT] = {
        [PROG_TRAIN] = "train",     [PROG_MICRO] = "micro",
        [PROG_UPDATE] = "update",   [PROG_EVAL] = "eval",
        [PROG_PREDICT] = "predict", [PROG_REFRESH] = "refresh",
        [PROG_VJP] = "vjp"};
    for (int i = 0; i < PROG_COUNT; i++)
        s->program[i] = find_program(s->m, names[i]);
    s->last = -1;
}

static ampc_status session_build(ampc_session *s) {
    const char *defect = plan_defect(s->m);
    if (defect)
        return session_fail(s, AMPC_ERR_INTERNAL,
                            "the module's plan is damaged at '%.200s'", defect);
    find_programs(s);
    session_find_known(s);
    s->accumulate = info_int(s->m, "accumulate", 1);
    s->batch = module_batch(s->m);
    ampc_status status = choose_isa(s);
    if (status != AMPC_OK) return status;
    s->pool = pool_create(s->opt.threads);
    if (!s->pool)
        return session_fail(s, AMPC_ERR_MEMORY,
                            "out of memory or threads for the thread pool");
    status = alloc_all(s);
    if (status == AMPC_OK) status = weights_init(s);
    s->stale = true;
    return status;
}

ampc_status session_open(const AmpcModule *m, const ampc_options *options,
                         ampc_session **out, char *err, size_t err_size) {
    ampc_options o;
    if (err && err_size) err[0] = 0;
    if (!out)
        return open_error(err, err_size, AMPC_ERR_ARGUMENT, "out is NULL");
    *out = NULL;
    if (!m) return open_error(err, err_size, AMPC_ERR_ARGUMENT, "no module");
    ampc_status status = options_read(options, &o, err, err_size);
    if (status != AMPC_OK) return status;
    ampc_session *s = o.alloc(o.alloc_ctx, sizeof *s, 64);
    if (!s) return open_error(err, err_size, AMPC_ERR_MEMORY, "out of memory");
    memset(s, 0, sizeof *s);
    s->m = m;
    s->opt = o;
    s->pid = getpid();
    s->metrics.size = sizeof s->metrics;
    status = session_build(s);
    if (status != AMPC_OK) {
        open_error(err, err_size, status, s->error);
        session_close(s);
        return status;
    }
    session_log(s, "%s: x86-64-v%u, %d threads, %zu MB variables, %zu MB arena",
                m->model ? m->model : "model", s->isa->level,
                pool_threads(s->pool), s->vars_bytes >> 20,
                s->arena_bytes >> 20);
    *out = s;
    return AMPC_OK;
}

void session_close(ampc_session *s) {
    if (!s) return;
    /* A forked child has the pool's memory but none of its threads. */
    if (s->pid == getpid()) pool_destroy(s->pool);
    for (uint32_t i = 0; s->bound && i < s->m->nprogram; i++)
        mem_free(s, s->bound[i].memory, s->bound[i].bytes);
    mem_free(s, s->vars, s->vars_bytes);
    mem_free(s, s->grads, s->grads_bytes);
    mem_free(s, s->arena, s->arena_bytes);
    mem_free(s, s->scratch, s->scratch_bytes);
    if (s->cursor) mem_free(s, s->cursor, strlen(s->cursor) + 1);
    mem_free(s, s, sizeof *s);
}
