/* SPDX-License-Identifier: Apache-2.0 */
/* run.c: runs programs: checks the inputs of a call and walks the steps of
   the plan on the session's backend; scalars as numbers.                    */
#define _DEFAULT_SOURCE
#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "runtime/api/session.h"
#include "runtime/base/contract.h"
#include "runtime/base/host.h"
#include "runtime/base/try.h"

/* ---- messages and memory ------------------------------------------------- */

ampc_status session_fail(ampc_session *s, ampc_status status, const char *fmt,
                         ...) {
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(s->error, sizeof s->error, fmt, ap);
    va_end(ap);
    return status;
}

ampc_status session_unsized(ampc_session *s, const char *type) {
    return session_fail(s, AMPC_ERR_ARGUMENT, "%s.size is not set", type);
}

void session_log(ampc_session *s, const char *fmt, ...) {
    char line[512];
    va_list ap;
    if (!s->opt.log) return;
    va_start(ap, fmt);
    vsnprintf(line, sizeof line, fmt, ap);
    va_end(ap);
    s->opt.log(s->opt.log_ctx, line);
}

void session_notice(ampc_session *s, const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(s->notice, sizeof s->notice, fmt, ap);
    va_end(ap);
    session_log(s, "%s", s->notice);
}

void *mem_alloc(const ampc_session *s, size_t bytes) {
    if (bytes == 0) bytes = 1;
    return s->opt.alloc(s->opt.alloc_ctx, bytes, 64);
}

void mem_free(const ampc_session *s, void *p, size_t bytes) {
    if (p) s->opt.free(s->opt.alloc_ctx, p, bytes ? bytes : 1);
}

ampc_status room_for(ampc_session *s, Room *r, size_t bytes) {
    CONTRACT(!r->bytes == !r->data);
    if (bytes <= r->bytes) return AMPC_OK;
    room_close(s, r);
    r->data = mem_alloc(s, bytes);
    r->bytes = r->data ? bytes : 0;
    return r->data ? AMPC_OK
                   : session_fail(s, AMPC_ERR_MEMORY, "out of memory");
}

void room_close(const ampc_session *s, Room *r) {
    mem_free(s, r->data, r->bytes);
    *r = (Room){0};
}

void session_take_cursor(ampc_session *s, char *text) {
    if (s->cursor) mem_free(s, s->cursor, strlen(s->cursor) + 1);
    s->cursor = text;
}

/* ---- scalars ------------------------------------------------------------- */

double scalar_number(uint32_t dtype, const void *p) {
    switch (dtype) {
    case AMPC_I32: return *(const int32_t *)p;
    case AMPC_I64: return (double)*(const int64_t *)p;
    case AMPC_U32: return *(const uint32_t *)p;
    case AMPC_U64: return (double)*(const uint64_t *)p;
    case AMPC_BOOL:
    case AMPC_U8: return *(const uint8_t *)p;
    default: return is_float_dtype(dtype) ? float_at(dtype, p) : 0;
    }
}

bool var_in_range(const ampc_session *s, uint32_t var, const void *value) {
    const PlanVar *v = &s->m->vars[var];
    if (v->rank != 0) return true;
    double x = scalar_number(v->dtype, value);
    if (is_known(v->name, VAR_MICRO) && x > (double)s->accumulate) return false;
    if (is_known(v->name, VAR_VALID) && x != (double)s->own_batch) return false;
    return known_in_range(v->name, x) && (v->kind != PLAN_HYPER || isfinite(x));
}

PlanRef output_ref(const ampc_session *s, int program, int i) {
    CONTRACT(i >= 0 && (uint32_t)i < s->m->programs[program].nout);
    return s->plan->refs[s->plan->runs[program].out0 + (uint32_t)i];
}

PlanRef var_ref(uint32_t var, uint64_t offset) {
    return (PlanRef){PLAN_VAR, var, offset};
}

ampc_status var_number(ampc_session *s, int var, double dflt, double *out) {
    uint64_t value = 0;
    CONTRACT(var < (int)s->m->nvar);
    *out = dflt;
    if (var < 0 || s->m->vars[var].rank != 0) return AMPC_OK;
    const PlanVar *v = &s->m->vars[var];
    ampc_status status =
        s->backend->get(s, var_ref((uint32_t)var, 0), &value, v->bytes);
    if (status == AMPC_OK) *out = scalar_number(v->dtype, &value);
    return status;
}

static bool integral(double x, double lo, double hi) {
    return x >= lo && x <= hi && x == (double)(int64_t)x;
}

bool scalar_encode(uint32_t dtype, double x, void *out) {
    switch (dtype) {
    case AMPC_F32: *(float *)out = (float)x; return true;
    case AMPC_F64: *(double *)out = x; return true;
    case AMPC_I32:
        if (!integral(x, INT32_MIN, INT32_MAX)) return false;
        *(int32_t *)out = (int32_t)x;
        return true;
    case AMPC_I64:
        if (!integral(x, -9007199254740992.0, 9007199254740992.0)) return false;
        *(int64_t *)out = (int64_t)x;
        return true;
    case AMPC_BOOL:
        if (x != 0 && x != 1) return false;
        *(uint8_t *)out = x != 0;
        return true;
    default: return false;
    }
}

bool session_watch(const ampc_session *s, int program, Watch w, PlanRef *ref,
                   uint32_t *dtype) {
    static const KnownOutput outputs[] = {OUT_LOSS, OUT_GRAD_NORM, OUT_SCALE,
                                          OUT_LR, OUT_APPLIED};
    static const KnownVar vars[] = {VAR_STEP,     VAR_TRIED,
                                    VAR_SKIPPED,  VAR_BAD_FORWARD,
                                    VAR_BAD_DATA, VAR_SKIP_STREAK};
    const AmpcModule *m = s->m;
    if (w >= WATCH_STEP) {
        int v = s->known[vars[w - WATCH_STEP]];
        if (v < 0 || m->vars[v].rank != 0) return false;
        *ref = var_ref((uint32_t)v, 0);
        *dtype = m->vars[v].dtype;
        return true;
    }
    int i = find_known_output(s, program, outputs[w]);
    if (i < 0) return false;
    const PlanTensor *t = &m->tensors[m->programs[program].out0 + (uint32_t)i];
    *ref = output_ref(s, program, i);
    *dtype = t->dtype;
    return true;
}

/* ---- inputs -------------------------------------------------------------- */

/* Class numbers for a loss may have narrower types than the program reads. */
uint32_t given_dtype(const PlanTensor *t, const ampc_input *in) {
    bool label = t->dtype == AMPC_I64 && !strncmp(t->name, "target", 6) &&
                 (!t->name[6] || t->name[6] == ':');
    bool fewer = in->dtype == AMPC_DTYPE_I32 || in->dtype == AMPC_DTYPE_U8;
    return label && fewer ? (uint32_t)in->dtype : t->dtype;
}

/* The structs of a host that knows no places are shorter. */
enum { INPUT_LEAST = offsetof(ampc_input, place) };

bool input_sized(const ampc_input *in) { return in->size >= INPUT_LEAST; }

bool input_in_device(const ampc_input *in) {
    return in->size >= sizeof *in && in->place != AMPC_IN_HOST;
}

ampc_status place_check(ampc_session *s, const char *name, int32_t place) {
    bool known = place == AMPC_IN_HOST || place == AMPC_IN_DEVICE;
    if (place == AMPC_IN_HOST || (known && s->backend->give)) return AMPC_OK;
    return session_fail(s, AMPC_ERR_ARGUMENT,
                        known ? "'%.200s' lies in the memory of a device, but "
                                "the session runs on the CPU: copy it to the "
                                "host's memory first"
                              : "'%.200s': unknown place",
                        name);
}

/* The host cannot convert what lies in a device. */
static ampc_status device_input_check(ampc_session *s, const PlanTensor *t,
                                      const ampc_input *in) {
    if (!input_in_device(in)) return AMPC_OK;
    ampc_status status = place_check(s, t->name, in->place);
    if (status != AMPC_OK || (uint32_t)in->dtype == t->dtype) return status;
    return session_fail(s, AMPC_ERR_ARGUMENT,
                        "input '%.200s': classes in the memory of a device "
                        "are %s, not %s",
                        t->name, dtype_name(t->dtype),
                        dtype_name((uint32_t)in->dtype));
}

static ampc_status shape_refused(ampc_session *s, const PlanTensor *t,
                                 const ampc_input *in, const char *want) {
    char have[160] = "unknown", order[160], sizes[200];
    bool known = in->shape && in->rank >= 0 && in->rank <= AMPC_MAX_RANK;
    const char *hint = "";
    if (known) {
        shape_text(have, (uint32_t)in->dtype, (uint32_t)in->rank, in->shape);
        hint = axes_hint(order, (uint32_t)in->rank, in->shape, t->rank, t->dim,
                         t->rank && t->dim[0] == s->batch);
    }
    return session_fail(s, AMPC_ERR_ARGUMENT,
                        "input '%.200s': shape %s given, %s needed%s%s",
                        t->name, have, want, hint, sizes_text(s, sizes));
}

static ampc_status input_check(ampc_session *s, const PlanTensor *t,
                               const ampc_input *in) {
    char want[160];
    uint64_t bytes = 0;
    uint32_t dtype = given_dtype(t, in);
    dense_bytes(dtype, t->rank, t->dim, &bytes);
    shape_text(want, t->dtype, t->rank, t->dim);
    bool same = in->rank == -1 || (uint32_t)in->rank == t->rank;
    for (uint32_t i = 0; same && in->rank > 0 && i < t->rank; i++)
        same = in->shape && in->shape[i] == t->dim[i];
    if ((uint32_t)in->dtype != dtype)
        return session_fail(s, AMPC_ERR_ARGUMENT,
                            "input '%.200s': dtype %s given, %s needed",
                            t->name, dtype_name((uint32_t)in->dtype), want);
    if (!same) return shape_refused(s, t, in, want);
    if (in->bytes != bytes)
        return session_fail(s, AMPC_ERR_ARGUMENT,
                            "input '%.200s': %zu bytes given, %llu needed (%s)",
                            t->name, in->bytes, (unsigned long long)bytes,
                            want);
    if (bytes && (!in->data || (uintptr_t)in->data % dtype_bytes(dtype)))
        return session_fail(s, AMPC_ERR_ARGUMENT,
                            "input '%.200s': the data pointer is %s", t->name,
                            in->data ? "not aligned to its elements" : "NULL");
    return device_input_check(s, t, in);
}

const ampc_input *input_at(const ampc_input *in, size_t i) {
    return (const void *)((const char *)in + i * in->size);
}

/* The program input to which an argument belongs; -1 if there is none. */
int input_place(const AmpcModule *m, const PlanProgram *p, const ampc_input *in,
                size_t position) {
    if (!in->name) return position < p->nin ? (int)position : -1;
    for (uint32_t i = 0; i < p->nin; i++)
        if (strcmp(m->tensors[p->in0 + i].name, in->name) == 0) return (int)i;
    return -1;
}

static ampc_status input_count(ampc_session *s, const PlanProgram *p,
                               size_t nin) {
    char names[400] = "";
    size_t n = 0;
    for (uint32_t i = 0; i < p->nin && n < sizeof names - 1; i++)
        n += (size_t)snprintf(names + n, sizeof names - n, "%s%.100s",
                              i ? ", " : "", s->m->tensors[p->in0 + i].name);
    return session_fail(s, AMPC_ERR_ARGUMENT,
                        "%zu inputs given, %" PRIu32
                        " needed by program '%s': %s",
                        nin, p->nin, p->name, names);
}

/* Converts it in memory that the session keeps. */
static ampc_status widen_labels(ampc_session *s, const PlanProgram *p,
                                const ampc_input *in, size_t nin) {
    enum { NEED, WIDEN };
    int64_t *to = NULL;
    for (int pass = NEED; pass <= WIDEN; pass++) {
        size_t need = 0;
        for (size_t i = 0; i < nin; i++) {
            const ampc_input *a = input_at(in, i);
            int at = input_place(s->m, p, a, i);
            const PlanTensor *t = &s->m->tensors[p->in0 + (uint32_t)at];
            bool bytes = a->dtype == AMPC_DTYPE_U8;
            size_t n = a->bytes / dtype_bytes((uint32_t)a->dtype);
            if ((uint32_t)a->dtype == t->dtype) continue;
            for (size_t k = 0; pass == WIDEN && k < n; k++)
                to[need + k] = bytes ? ((const uint8_t *)a->data)[k]
                                     : ((const int32_t *)a->data)[k];
            if (pass == WIDEN) s->in.addr[at] = to + need;
            need += n;
        }
        if (pass == WIDEN || need == 0) break;
        if (need * sizeof *to > s->in.labels_bytes) {
            mem_free(s, s->in.labels, s->in.labels_bytes);
            s->in.labels_bytes = need * sizeof *to;
            s->in.labels = mem_alloc(s, s->in.labels_bytes);
        }
        to = s->in.labels;
        if (to) continue;
        s->in.labels_bytes = 0;
        return session_fail(s, AMPC_ERR_MEMORY, "out of memory");
    }
    return AMPC_OK;
}

/* Marks an input that the call did not pass. */
static const char not_given;

static ampc_status inputs_check(ampc_session *s, const PlanProgram *p,
                                const ampc_input *in, size_t nin,
                                const void **addr) {
    if (nin != p->nin || (nin && !in)) return input_count(s, p, nin);
    for (size_t i = 0; i < nin; i++) addr[i] = &not_given;
    if (nin && !input_sized(in)) return session_unsized(s, "ampc_input");
    for (size_t i = 0; i < nin; i++) {
        const ampc_input *a = input_at(in, i);
        int at = input_place(s->m, p, a, i);
        if (at < 0 || addr[at] != &not_given)
            return session_fail(s, AMPC_ERR_ARGUMENT,
                                "%s input '%.200s' of program '%s'",
                                at < 0 ? "no" : "twice given:",
                                a->name ? a->name : "(by position)", p->name);
        TRY(input_check(s, &s->m->tensors[p->in0 + at], a));
        addr[at] = a->data;
        s->in.device[at] = input_in_device(a);
    }
    return widen_labels(s, p, in, nin);
}

/* ---- the loop ------------------------------------------------------------ */

uint64_t now_ns(void) { return host_clock(); }

static ampc_status run_profiled(ampc_session *s, int program, uint32_t step) {
    const PlanProgram *p = &s->m->programs[program];
    const PlanRun *r = &s->plan->runs[program];
    const char *name = s->plan->steps[r->step0 + step].name;
    uint64_t begin = now_ns();
    s->spared = false;
    ampc_status status = s->backend->step(s, program, step);
    if (status != AMPC_OK || s->spared) return status;
    s->told = program + 1;
    s->profile(s->profile_ctx, p->name, name ? name : "", begin, now_ns());
    s->told = 0;
    return status;
}

static ampc_status run_program(ampc_session *s, int program,
                               const void *const *in) {
    const AmpcBackend *b = s->backend;
    uint32_t nstep = s->plan->runs[program].nstep, first = 0;
    ampc_status status = b->begin(s, program, in, &first);
    if (status != AMPC_OK) return status;
    for (uint32_t i = first; i < nstep && status == AMPC_OK; i++)
        status = s->profile && !b->async ? run_profiled(s, program, i)
                                         : b->step(s, program, i);
    s->last = program;
    return b->end(s, program, status);
}

bool session_on_masters(const ampc_session *s, ProgramId id) {
    return s->program[id] >= 0 && s->plan->runs[s->program[id]].masters;
}

ampc_status session_prepare(ampc_session *s, ProgramId id) {
    int refresh = s->program[PROG_REFRESH];
    TRY(s->backend->prepare(s, s->program[id]));
    if (s->stale && refresh >= 0 && !session_on_masters(s, id))
        TRY(s->backend->prepare(s, refresh));
    return AMPC_OK;
}

ampc_status session_refresh(ampc_session *s) {
    int refresh = s->program[PROG_REFRESH], last = s->last;
    ampc_status status = AMPC_OK;
    if (s->stale && refresh >= 0) {
        status = s->backend->prepare(s, refresh);
        if (status == AMPC_OK) status = run_program(s, refresh, NULL);
        s->last = last; /* its outputs can still be read */
    }
    if (status == AMPC_OK) s->stale = false;
    return status;
}

ampc_status session_run(ampc_session *s, ProgramId id, const ampc_input *in,
                        size_t nin) {
    int program = s->program[id];
    CONTRACT(program >= 0);
    TRY(inputs_check(s, &s->m->programs[program], in, nin, s->in.addr));
    TRY(session_prepare(s, id));
    if (!session_on_masters(s, id)) TRY(session_refresh(s));
    s->stale |= session_on_masters(s, id);
    if (nin) s->in.program = program;
    return run_program(s, program, s->in.addr);
}
