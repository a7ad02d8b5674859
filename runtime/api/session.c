/* SPDX-License-Identifier: Apache-2.0 */
/* session.c: opens and closes sessions, and chooses their device.  A failure
   at any point goes through session_close, which accepts a half-built session
   (and backends a half-built device).                                        */
#define _DEFAULT_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/api/session.h"
#include "runtime/base/host.h"
#include "runtime/base/json.h"
#include "runtime/base/try.h"

static void *default_alloc(void *ctx, size_t bytes, size_t align) {
    (void)ctx;
    return host_alloc(bytes, align);
}

static void default_free(void *ctx, void *p, size_t bytes) {
    (void)ctx;
    (void)bytes;
    host_free(p);
}

static ampc_status open_error(char *err, size_t err_size, ampc_status status,
                              const char *text) {
    if (err && err_size) snprintf(err, err_size, "%s", text);
    return status;
}

/* ---- options ------------------------------------------------------------- */

static const char *options_defect(const AmpcModule *m, const ampc_options *o) {
    if (!o->alloc != !o->free) return "alloc and free: set both or neither";
    if (o->threads < 0 || o->threads > 1024)
        return "threads: use 0 (all) to 1024";
    if (o->max_skipped < -1)
        return "max_skipped: -1 (no limit), 0 (the default) or more";
    if (o->stream && !m->cuda) return "stream: this module has no CUDA code";
    if (o->comm && !comm_is_whole(o->comm))
        return "comm: its size, a function, the rank or the world is not set";
    return NULL;
}

/* "auto" or NULL, "cpu", "cuda", "cuda:N", which sets *ordinal */
static bool device_parse(const char *text, DeviceKind *kind, int *ordinal) {
    *kind = DEVICE_AUTO;
    if (!text || strcmp(text, "auto") == 0) return true;
    *kind = DEVICE_CPU;
    if (strcmp(text, "cpu") == 0) return true;
    *kind = DEVICE_CUDA;
    if (strncmp(text, "cuda", 4) != 0) return false;
    if (text[4] == 0) return true;
    if (text[4] != ':' || text[5] < '0' || text[5] > '9') return false;
    char *end;
    long n = strtol(text + 5, &end, 10);
    *ordinal = (int)n;
    return *end == 0 && n <= 4096;
}

static ampc_status device_read(const AmpcModule *m, const ampc_options *o,
                               DeviceKind *kind, int *ordinal, char *err,
                               size_t err_size) {
    char text[200];
    *ordinal = o->comm ? o->comm->local : 0;
    bool known = device_parse(o->device, kind, ordinal);
    if (known && (*kind != DEVICE_CUDA || m->cuda)) {
        if (*kind != DEVICE_CPU || !o->stream) return AMPC_OK;
        return open_error(err, err_size, AMPC_ERR_ARGUMENT,
                          "stream: device 'cpu' has none");
    }
    snprintf(text, sizeof text, "device '%.60s': %s", o->device,
             known ? "this module was compiled for the CPU only"
                   : "use 'auto', 'cpu', 'cuda' or 'cuda:N'");
    return open_error(err, err_size,
                      known ? AMPC_ERR_UNSUPPORTED : AMPC_ERR_ARGUMENT, text);
}

static ampc_status options_read(const AmpcModule *m, const ampc_options *given,
                                ampc_options *o, char *err, size_t err_size) {
    memset(o, 0, sizeof *o);
    if (given) {
        if (given->size < sizeof given->size)
            return open_error(err, err_size, AMPC_ERR_ARGUMENT,
                              "ampc_options.size is not set");
        memcpy(o, given, given->size < sizeof *o ? given->size : sizeof *o);
    }
    o->size = sizeof *o;
    const char *defect = options_defect(m, o);
    if (defect) return open_error(err, err_size, AMPC_ERR_ARGUMENT, defect);
    if (!o->alloc) {
        o->alloc = default_alloc;
        o->free = default_free;
    }
    return AMPC_OK;
}

/* ---- open and close ------------------------------------------------------ */

/* A device and its memory. */
static ampc_status device_open(ampc_session *s, const AmpcBackend *b,
                               const PlanTarget *plan) {
    s->backend = b;
    s->plan = plan;
    s->ranks.on_device = b->async && comm_sums_on_device(s->opt.comm) &&
                         s->program[PROG_UPDATE] >= 0;
    ampc_status status = shards_open(s);
    if (status == AMPC_OK) {
        status = b->open(s);
        if (status != AMPC_OK) b->close(s);
    }
    if (status != AMPC_OK) shards_close(s);
    return status;
}

static void tell_unused(ampc_session *s, const char *why) {
    session_notice(s, "the GPU is not used, running on the CPU: %s", why);
}

/* A GPU is present but not used, because the module was compiled without
   NVRTC and not by the user's choice (--target cpu). */
static void tell_missed(ampc_session *s) {
    char why[200];
    JsonSpan info, text;
    const char *json = s->m->info;
    if (!json || !json_parse(json, strlen(json), &info) ||
        !json_get(info, "no_cuda", &text) ||
        json_text(text, why, sizeof why) < 0 || gpu_count() == 0)
        return;
    tell_unused(s, why);
}

/* "auto" falls back to the CPU if the GPU cannot be used, but not if its
   memory is full: a slow run would surprise the user. An unused GPU is worth
   a notice. */
static ampc_status choose_device(ampc_session *s) {
    const PlanCuda *cuda = s->m->cuda;
    if (!cuda && s->want == DEVICE_AUTO) tell_missed(s);
    if (!cuda || s->want == DEVICE_CPU)
        return device_open(s, &cpu_backend, s->m->cpu);
    ampc_status status = device_open(s, cuda->backend, cuda->plan);
    if (status == AMPC_OK || s->want == DEVICE_CUDA || s->opt.stream ||
        s->m->nisa == 0 ||
        (status != AMPC_ERR_UNSUPPORTED && status != AMPC_ERR_DEVICE))
        return status;
    if (s->gpu_is_there)
        tell_unused(s, s->error);
    else
        session_log(s, "no GPU, running on the CPU: %s", s->error);
    s->error[0] = 0;
    return device_open(s, &cpu_backend, s->m->cpu);
}

/* Runs `work` on the device, before the host's first call. */
static ampc_status with_device(ampc_session *s,
                               ampc_status (*work)(ampc_session *)) {
    TRY(s->backend->enter(s));
    ampc_status status = work(s);
    s->backend->leave(s);
    return status;
}

static ampc_status session_build(ampc_session *s) {
    const char *defect = plan_defect(s->m);
    if (defect)
        return session_fail(s, AMPC_ERR_INTERNAL,
                            "the module's plan is damaged at '%.200s'", defect);
    const char *first = objective_at(s->m, 0);
    s->objective = first ? first : "";
    session_find_known(s);
    s->last = s->due_update = s->due_loss = s->in.program = -1;
    s->located.step = INT64_MAX;
    s->accumulate = info_int(s->m, "accumulate", 1);
    s->batch = s->own_batch = s->valid = module_batch(s->m);
    size_t most = 0; /* inputs of a program */
    for (uint32_t i = 0; i < s->m->nprogram; i++)
        if (s->m->programs[i].nin > most) most = s->m->programs[i].nin;
    s->in.bytes = most * (sizeof *s->in.addr + sizeof *s->in.device);
    s->in.addr = mem_alloc(s, s->in.bytes);
    if (!s->in.addr) return session_fail(s, AMPC_ERR_MEMORY, "out of memory");
    s->in.device = (bool *)(s->in.addr + most);
    ampc_status status = choose_device(s);
    if (status == AMPC_OK) status = with_device(s, weights_init);
    s->stale = true;
    return status;
}

static void log_open(ampc_session *s) {
    char text[300];
    if (!s->opt.log) return;
    s->backend->describe(s, text, sizeof text);
    session_log(s, "%s: %s", s->m->model ? s->m->model : "model", text);
}

ampc_status session_open(const AmpcModule *m, const ampc_options *options,
                         ampc_session **out, char *err, size_t err_size) {
    ampc_options o;
    DeviceKind want;
    int ordinal;
    if (err && err_size) err[0] = 0;
    if (!out)
        return open_error(err, err_size, AMPC_ERR_ARGUMENT, "out is NULL");
    *out = NULL;
    if (!m) return open_error(err, err_size, AMPC_ERR_ARGUMENT, "no module");
    TRY(options_read(m, options, &o, err, err_size));
    TRY(device_read(m, &o, &want, &ordinal, err, err_size));
    ampc_session *s = o.alloc(o.alloc_ctx, sizeof *s, 64);
    if (!s) return open_error(err, err_size, AMPC_ERR_MEMORY, "out of memory");
    memset(s, 0, sizeof *s);
    s->m = m;
    s->opt = o;
    s->opt.device = NULL; /* cleared, because the host may free the string */
    s->want = want;
    s->ordinal = ordinal;
    s->pid = host_process();
    s->metrics.size = sizeof s->metrics;
    s->ranks.bad_rank = s->ranks.random = -1;
    ampc_status status = session_build(s);
    if (o.comm) status = comm_join(s, status);
    if (status == AMPC_OK) status = with_device(s, shards_refresh);
    if (status != AMPC_OK) {
        open_error(err, err_size, status, s->error);
        session_close(s);
        return status;
    }
    log_open(s);
    *out = s;
    return AMPC_OK;
}

void session_close(ampc_session *s) {
    if (!s) return;
    sums_close(s);
    if (s->ranks.bad_of)
        mem_free(s, s->ranks.bad_of,
                 (size_t)s->opt.comm->world * sizeof *s->ranks.bad_of);
    if (s->backend) s->backend->close(s);
    shards_close(s);
    mem_free(s, s->in.addr, s->in.bytes);
    mem_free(s, s->in.labels, s->in.labels_bytes);
    room_close(s, &s->in.rows);
    room_close(s, &s->in.padded);
    session_take_cursor(s, NULL);
    mem_free(s, s, sizeof *s);
}
