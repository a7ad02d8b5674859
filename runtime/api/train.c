/* SPDX-License-Identifier: Apache-2.0 */
/* train.c: steps and micro-steps, and their metrics.

   On an asynchronous device metrics are fetched when the host requests them:
   due_update and due_loss name the programs whose scalars are newer than the
   session's metrics. */
#include <math.h>
#include <string.h>

#include "runtime/api/session.h"
#include "runtime/base/try.h"

/* ---- metrics ------------------------------------------------------------- */

/* A scalar of a program that ran; dflt if it does not exist. */
static double watch_number(const ampc_session *s, int program,
                           const uint64_t *value, Watch w, double dflt) {
    PlanRef ref;
    uint32_t dtype;
    if (!session_watch(s, program, w, &ref, &dtype)) return dflt;
    return scalar_number(dtype, &value[w]);
}

static void fill_metrics(ampc_session *s, int program, const uint64_t *value) {
    ampc_metrics *m = &s->metrics;
#define NUMBER(w, dflt) watch_number(s, program, value, w, dflt)
    m->loss = NUMBER(WATCH_LOSS, NAN);
    m->grad_norm = NUMBER(WATCH_GRAD_NORM, NAN);
    m->scale = NUMBER(WATCH_SCALE, 1);
    m->lr = NUMBER(WATCH_LR, NAN);
    m->updated = 1;
    m->applied = NUMBER(WATCH_APPLIED, 1) != 0;
    m->step = (int64_t)NUMBER(WATCH_STEP, 0);
    m->tried = (int64_t)NUMBER(WATCH_TRIED, 0);
    m->skipped = (int64_t)NUMBER(WATCH_SKIPPED, 0);
    m->bad_forward = (int64_t)NUMBER(WATCH_BAD_FORWARD, 0);
    m->skip_streak = (int64_t)NUMBER(WATCH_SKIP_STREAK, 0);
#undef NUMBER
}

/* Remembers the first AMPC_ERR_DATA or AMPC_ERR_DIVERGED until the call has
   finished its work. */
static ampc_status find(ampc_session *s, ampc_status status) {
    if (status != AMPC_ERR_DATA && status != AMPC_ERR_DIVERGED) return status;
    s->found = status;
    return AMPC_OK;
}

static ampc_status find_bad_data(ampc_session *s, int program,
                                 const uint64_t *value) {
    double n = watch_number(s, program, value, WATCH_BAD_DATA, 0);
    s->metrics.bad_data = (int64_t)n;
    return find(s, data_trained(s, s->metrics.bad_data));
}

static ampc_status train_tell(ampc_session *s, ampc_status status) {
    if (status == AMPC_OK) status = s->found;
    s->found = AMPC_OK;
    return api_leave(s, status);
}

static ampc_status fetch_metrics(ampc_session *s) {
    uint64_t value[WATCH_COUNT];
    ampc_status status = AMPC_OK;
    if (s->due_update >= 0) {
        TRY(s->backend->watched(s, s->due_update, value));
        fill_metrics(s, s->due_update, value);
        status = find_bad_data(s, s->due_update, value);
        s->due_update = -1;
        if (status == AMPC_OK && s->found == AMPC_OK)
            status = find(s, diverge_trained(s));
        s->located.step = INT64_MAX;
        if (status != AMPC_OK) return status;
    }
    if (s->due_loss >= 0) {
        TRY(s->backend->watched(s, s->due_loss, value));
        s->metrics.loss = watch_number(s, s->due_loss, value, WATCH_LOSS, NAN);
        s->metrics.updated = s->metrics.applied = 0;
        status = find_bad_data(s, s->due_loss, value);
        s->due_loss = -1;
    }
    return status;
}

/* With program locate, metrics are fetched at once, so that a value that is
   not finite is found in its own step. */
static ampc_status metrics_unless_async(ampc_session *s) {
    bool later = s->backend->async && s->program[PROG_LOCATE] < 0;
    return later ? AMPC_OK : fetch_metrics(s);
}

static ampc_status updated(ampc_session *s, ProgramId id) {
    s->due_update = s->program[id];
    s->due_loss = -1;
    return metrics_unless_async(s);
}

/* ---- steps --------------------------------------------------------------- */

/* The program counts, too: both write the same number. If a graph captures a
   whole step, nothing else may enter the capture. */
static ampc_status set_micro(ampc_session *s, int64_t micro) {
    uint64_t value = 0;
    int v = s->known[VAR_MICRO];
    s->micro = micro;
    if (s->ranks.whole || v < 0 || s->m->vars[v].rank != 0 ||
        !scalar_encode(s->m->vars[v].dtype, (double)micro, &value))
        return AMPC_OK;
    return s->backend->put(s, var_ref((uint32_t)v, 0), &value,
                           s->m->vars[v].bytes);
}

static ampc_status do_micro(ampc_session *s, const ampc_input *in, size_t nin) {
    if (s->program[PROG_MICRO] < 0)
        return api_unsupported(s, "make micro-steps");
    if (s->micro >= s->accumulate)
        return session_fail(s, AMPC_ERR_ARGUMENT,
                            "%lld micro-steps were made: update is due",
                            (long long)s->micro);
    int64_t micro = s->micro;
    const ampc_comm *c = s->opt.comm;
    ampc_status status = s->backend->need_grads(s);
    if (status == AMPC_OK && micro == 0) status = s->backend->zero_grads(s);
    if (status == AMPC_OK && c && micro == 0)
        status = comm_random(s, c->rank * s->accumulate);
    if (status != AMPC_OK) return status;
    if (micro == 0) {
        s->ranks.bad_rank = -1;
        sums_begin(s);
    }
    if (s->valid || !s->own_batch) {
        status = locate_run(s, in, nin);
        if (status == AMPC_OK) status = session_run(s, PROG_MICRO, in, nin);
    } else {
        status = rows_skip(s);
    }
    ampc_status summed = sums_wait(s);
    if (status == AMPC_OK) status = summed;
    if (status != AMPC_OK && c && micro == 0) comm_random(s, 0);
    if (status == AMPC_OK) status = set_micro(s, micro + 1);
    if (status != AMPC_OK) return status;
    if (s->valid || !s->own_batch) s->due_loss = s->program[PROG_MICRO];
    return metrics_unless_async(s);
}

/* A micro-step of any number of samples up to a batch. */
static ampc_status any_micro(ampc_session *s, const ampc_input *in,
                             size_t nin) {
    ampc_status status = rows_begin(s, &in, nin);
    if (status == AMPC_OK) status = do_micro(s, in, nin);
    return rows_end(s, status);
}

static ampc_status do_update(ampc_session *s) {
    if (s->program[PROG_UPDATE] < 0) return api_unsupported(s, "accumulate");
    if (s->micro != s->accumulate)
        return session_fail(s, AMPC_ERR_ARGUMENT,
                            "update needs %lld micro-steps; %lld were made",
                            (long long)s->accumulate, (long long)s->micro);
    ampc_status status = session_prepare(s, PROG_UPDATE);
    if (status == AMPC_OK && s->opt.comm) status = comm_reduce(s);
    if (status == AMPC_OK) status = session_run(s, PROG_UPDATE, NULL, 0);
    s->ranks.whole = false;
    if (status == AMPC_OK && s->opt.comm) status = comm_updated(s);
    if (status == AMPC_OK) status = shards_allgather(s);
    if (status != AMPC_OK) return status;
    status = set_micro(s, 0);
    return status == AMPC_OK ? updated(s, PROG_UPDATE) : status;
}

static ampc_status do_step(ampc_session *s, const ampc_input *in, size_t nin) {
    if (s->program[PROG_TRAIN] >= 0 && s->accumulate == 1 && !s->opt.comm &&
        s->valid == s->own_batch) {
        ampc_status status = locate_run(s, in, nin);
        if (status == AMPC_OK) status = session_run(s, PROG_TRAIN, in, nin);
        return status == AMPC_OK ? updated(s, PROG_TRAIN) : status;
    }
    if (s->program[PROG_MICRO] < 0 || s->program[PROG_UPDATE] < 0)
        return api_unsupported(s, "train");
    ampc_status status = session_prepare(s, PROG_UPDATE);
    s->ranks.whole = s->ranks.on_device && s->micro + 1 == s->accumulate &&
                     s->valid && s->program[PROG_LOCATE] < 0 &&
                     !sizes_several(s);
    if (status == AMPC_OK) status = do_micro(s, in, nin);
    if (status == AMPC_OK && s->micro == s->accumulate) status = do_update(s);
    s->ranks.whole = false;
    return status;
}

static ampc_status put_metrics(ampc_session *s, ampc_metrics *out) {
    if (!out) return AMPC_OK;
    TRY(fetch_metrics(s));
    ampc_metrics m = s->metrics;
    PUT(out, m);
    return AMPC_OK;
}

static ampc_status metrics_ok(ampc_session *s, const ampc_metrics *m) {
    if (!m || SIZED(m)) return AMPC_OK;
    return session_unsized(s, "ampc_metrics");
}

ampc_status api_step(ampc_session *s, const ampc_input *in, size_t nin,
                     ampc_metrics *metrics) {
    ENTER(s);
    ampc_status status = metrics_ok(s, metrics);
    if (status == AMPC_OK) status = rows_begin(s, &in, nin);
    if (status == AMPC_OK) status = do_step(s, in, nin);
    status = rows_end(s, status);
    if (status == AMPC_OK) status = put_metrics(s, metrics);
    return train_tell(s, status);
}

ampc_status api_sync(ampc_session *s, ampc_metrics *metrics) {
    ENTER(s);
    ampc_status status = metrics_ok(s, metrics);
    if (status == AMPC_OK) status = s->backend->sync(s);
    if (status == AMPC_OK) status = put_metrics(s, metrics);
    return train_tell(s, status);
}

ampc_status api_micro_step(ampc_session *s, const ampc_input *in, size_t nin,
                           double *loss) {
    ENTER(s);
    ampc_status status = any_micro(s, in, nin);
    if (status == AMPC_OK && loss) status = fetch_metrics(s);
    if (status == AMPC_OK && loss) *loss = s->metrics.loss;
    return train_tell(s, status);
}

ampc_status api_vjp(ampc_session *s, const ampc_input *in, size_t nin) {
    ENTER(s);
    if (s->program[PROG_OUTPUTS] < 0)
        return train_tell(s,
                          api_unsupported(s, "take gradients from the host"));
    return train_tell(s, any_micro(s, in, nin));
}

/* Gradients are summed for one objective at a time. */
static ampc_status choose_objective(ampc_session *s, const char *name) {
    const char *found = NULL;
    for (uint32_t i = 0; name && !found && objective_at(s->m, i); i++)
        if (strcmp(objective_at(s->m, i), name) == 0)
            found = objective_at(s->m, i);
    if (!found)
        return session_fail(s, AMPC_ERR_ARGUMENT, "no objective '%.200s'",
                            name ? name : "");
    if (strcmp(found, s->objective) == 0) return AMPC_OK;
    if (s->micro)
        return session_fail(s, AMPC_ERR_ARGUMENT,
                            "%lld micro-steps were made for objective '%.200s'",
                            (long long)s->micro, s->objective);
    TRY(fetch_metrics(s));
    s->objective = found;
    session_find_known(s);
    return AMPC_OK;
}

ampc_status api_objective(ampc_session *s, const char *name) {
    ENTER(s);
    return train_tell(s, choose_objective(s, name));
}

ampc_status api_update(ampc_session *s, ampc_metrics *metrics) {
    ENTER(s);
    ampc_status status = metrics_ok(s, metrics);
    if (status == AMPC_OK) status = do_update(s);
    if (status == AMPC_OK) status = put_metrics(s, metrics);
    return train_tell(s, status);
}
