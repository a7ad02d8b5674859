/* SPDX-License-Identifier: Apache-2.0 */
/* weights.c: initial values of variables: a constant, random numbers, or bytes
   of section "weights" of the module's own file, or of the file beside it.  */
#include <stdio.h>
#include <string.h>

#include "runtime/api/session.h"
#include "runtime/base/host.h"
#include "runtime/base/try.h"
#include "runtime/cpu/kernels.h"
#include "runtime/program/dtype.h"
#include "runtime/files/sections.h"

/* ---- from the file ------------------------------------------------------- */

/* Copies the parts of variables that a chunk (section bytes [at, at + n))
   contains. */
static ampc_status scatter(void *ctx, const uint8_t *chunk, uint64_t at,
                           uint64_t n) {
    ampc_session *s = ctx;
    for (uint32_t i = 0; i < s->m->nvar; i++) {
        const PlanVar *v = &s->m->vars[i];
        if (v->init < 0 || v->kind == PLAN_GRAD) continue;
        uint64_t lo = (uint64_t)v->init, hi = lo + v->bytes;
        uint64_t from = lo > at ? lo : at, to = hi < at + n ? hi : at + n;
        if (from >= to) continue;
        TRY(shard_put(s, var_ref(i, from - lo), chunk + (from - at),
                      to - from));
    }
    return AMPC_OK;
}

static ampc_status read_weights(ampc_session *s, SectionFile *f) {
    PlanSection sec;
    bool there;
    TRY(section_find(f, "weights", &sec, &there));
    if (!there) return section_damaged(f, "no section 'weights'");
    for (uint32_t i = 0; i < s->m->nvar; i++) {
        const PlanVar *v = &s->m->vars[i];
        if (v->init >= 0 &&
            !section_inside((uint64_t)v->init, v->bytes, sec.bytes))
            return section_damaged(f, "section 'weights' is too short");
    }
    return section_read(f, &sec, scatter, s);
}

/* ---- constant fill ------------------------------------------------------- */

/* Repeats one value. */
static ampc_status fill_repeat(ampc_session *s, uint32_t var, const char *one,
                               size_t size) {
    char part[8 << 10];
    uint64_t bytes = s->m->vars[var].bytes;
    for (size_t i = 0; i < sizeof part; i += size) memcpy(part + i, one, size);
    for (uint64_t at = 0; at < bytes; at += sizeof part) {
        uint64_t n = bytes - at < sizeof part ? bytes - at : sizeof part;
        TRY(shard_put(s, var_ref(var, at), part, n));
    }
    return AMPC_OK;
}

static ampc_status fill(ampc_session *s, uint32_t var) {
    const PlanVar *v = &s->m->vars[var];
    _Alignas(8) char one[8] = {0};
    uint64_t lo, hi;
    shard_range(s, var, &lo, &hi);
    number_put(v->dtype, v->fill, one);
    if (memcmp(one, "\0\0\0\0\0\0\0\0", 8) == 0)
        return s->backend->zero(s, var_ref(var, lo), hi - lo);
    return fill_repeat(s, var, one, dtype_bytes(v->dtype));
}

enum { DRAW_BLOCK = 1 << 20 }; /* bytes that are drawn at once */

static bool is_drawn(const PlanVar *v) {
    return v->kind != PLAN_GRAD && v->init < 0 && v->draw.kind;
}

static DrawType drawn_as(uint32_t dtype) {
    return !is_float_dtype(dtype) ? DRAW_INTEGER
           : dtype == AMPC_F64    ? DRAW_DOUBLE
                                  : DRAW_FLOAT;
}

/* Elements of a variable from `first` on, into a block. */
typedef struct Drawing {
    const PlanVar *v;
    uint64_t first;
    char *block;
} Drawing;

static void draw_part(void *ctx, int64_t lo, int64_t hi, int worker) {
    const Drawing *d = ctx;
    size_t size = dtype_bytes(d->v->dtype);
    DrawType as = drawn_as(d->v->dtype);
    (void)worker;
    for (int64_t i = lo; i < hi; i++)
        number_put(d->v->dtype,
                   draw_at(&d->v->draw, as, d->first + (uint64_t)i),
                   d->block + (size_t)i * size);
}

static ampc_status fill_drawn(ampc_session *s, uint32_t var, AmpcPool *pool,
                              char *block) {
    const PlanVar *v = &s->m->vars[var];
    uint64_t lo, hi, size = dtype_bytes(v->dtype);
    shard_range(s, var, &lo, &hi);
    for (uint64_t at = lo; at < hi; at += DRAW_BLOCK) {
        uint64_t n = hi - at < DRAW_BLOCK ? hi - at : DRAW_BLOCK;
        Drawing d = {v, at / size, block};
        pool_run(pool, (int64_t)(n / size), 4096, draw_part, &d);
        TRY(s->backend->put(s, var_ref(var, at), block, n));
    }
    return AMPC_OK;
}

/* Large variables are drawn by all threads that the session may use. */
static ampc_status fill_all_drawn(ampc_session *s) {
    ampc_status status = AMPC_OK;
    uint64_t most = 0;
    for (uint32_t i = 0; i < s->m->nvar; i++)
        if (is_drawn(&s->m->vars[i]) && s->m->vars[i].bytes > most)
            most = s->m->vars[i].bytes;
    if (!most) return AMPC_OK;
    if (most > DRAW_BLOCK) most = DRAW_BLOCK;
    char *block = mem_alloc(s, most);
    if (!block) return session_fail(s, AMPC_ERR_MEMORY, "out of memory");
    AmpcPool *pool = most == DRAW_BLOCK ? pool_create(s->opt.threads) : NULL;
    for (uint32_t i = 0; i < s->m->nvar && status == AMPC_OK; i++)
        if (is_drawn(&s->m->vars[i])) status = fill_drawn(s, i, pool, block);
    pool_destroy(pool);
    mem_free(s, block, most);
    return status;
}

/* ---- all of it ----------------------------------------------------------- */

static ampc_status take_facts(void *ctx, const uint8_t *p, uint64_t at,
                              uint64_t n) {
    memcpy((char *)ctx + at, p, n);
    return AMPC_OK;
}

/* Reads the section that describes the file beside the module. */
static ampc_status sidecar_facts(ampc_session *s, PlanSidecar *want) {
    SectionFile f;
    PlanSection sec;
    bool there = false;
    ampc_status status = section_open(s, &f);
    if (status == AMPC_OK) status = section_find(&f, "sidecar", &sec, &there);
    if (status == AMPC_OK && (!there || sec.bytes != sizeof *want))
        status = section_damaged(&f, "no section 'sidecar'");
    if (status == AMPC_OK) status = section_read(&f, &sec, take_facts, want);
    section_close(&f);
    return status;
}

static ampc_status read_sidecar(ampc_session *s) {
    char path[4300];
    if (!module_path(s->m, path, 4200))
        return session_fail(s, AMPC_ERR_FILE,
                            "the module's own file cannot be found");
    size_t n = strlen(path);
    if (n > 3 && strcmp(path + n - 3, ".so") == 0) n -= 3;
    PlanSidecar want;
    TRY(sidecar_facts(s, &want));
    n += (size_t)sprintf(path + n, ".weights.safetensors");
    sprintf(path + n, PLAN_WAITING, want.crc);
    if (!host_exists(path)) path[n] = 0;
    return checkpoint_sidecar(s, path, &want);
}

ampc_status weights_init(ampc_session *s) {
    bool file = false;
    ampc_status status = AMPC_OK;
    for (uint32_t i = 0; i < s->m->nvar && status == AMPC_OK; i++) {
        const PlanVar *v = &s->m->vars[i];
        /* its pages stay untouched until program refresh runs */
        bool later =
            v->kind == PLAN_SHADOW && session_on_masters(s, PROG_TRAIN);
        if (v->kind == PLAN_GRAD || is_drawn(v) || later) continue;
        if (v->init < 0)
            status = fill(s, i);
        else
            file = true;
    }
    if (status == AMPC_OK) status = fill_all_drawn(s);
    if (status == AMPC_OK && file) {
        SectionFile f;
        status = section_open(s, &f);
        if (status == AMPC_OK) status = read_weights(s, &f);
        section_close(&f);
    }
    if (status == AMPC_OK && info_int(s->m, "sidecar_weights", 0))
        status = read_sidecar(s);
    return status;
}
