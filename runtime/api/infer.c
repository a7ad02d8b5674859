/* SPDX-License-Identifier: Apache-2.0 */
/* infer.c: evaluation and prediction, and outputs for the host. */
#include <math.h>
#include <string.h>

#include "runtime/api/session.h"
#include "runtime/base/try.h"

/* ---- outputs ------------------------------------------------------------- */

ampc_status out_fits(ampc_session *s, const char *name, uint32_t dtype,
                     uint64_t bytes, const ampc_output *out) {
    if (!SIZED(out) || out->size < sizeof *out)
        return session_unsized(s, "ampc_output");
    if ((uint32_t)out->dtype != dtype)
        return session_fail(
            s, AMPC_ERR_ARGUMENT, "'%.200s' is %s; %s was asked for", name,
            dtype_name(dtype), dtype_name((uint32_t)out->dtype));
    if (out->bytes < bytes || (bytes && !out->data))
        return session_fail(
            s, AMPC_ERR_ARGUMENT, "'%.200s' needs %llu bytes; %zu given", name,
            (unsigned long long)bytes, out->data ? out->bytes : 0);
    return place_check(s, name, out->place);
}

ampc_status out_get(ampc_session *s, PlanRef from, const ampc_output *out,
                    uint64_t at, uint64_t bytes) {
    void *to = (char *)out->data + at;
    if (out->place == AMPC_IN_DEVICE)
        return s->backend->give(s, from, to, bytes);
    return s->backend->get(s, from, to, bytes);
}

static const PlanTensor *output_tensor(const ampc_session *s, int i) {
    return &s->m->tensors[s->m->programs[s->last].out0 + (uint32_t)i];
}

/* ---- evaluation ---------------------------------------------------------- */

/* given: number of samples in the inputs; -1: a batch. */
static ampc_status valid_ok(ampc_session *s, int64_t given, int64_t valid) {
    int64_t most = given < 0 ? s->batch : given;
    if (valid >= 0 && valid <= most) return AMPC_OK;
    return session_fail(s, AMPC_ERR_ARGUMENT,
                        "%lld valid samples in a batch of %lld",
                        (long long)valid, (long long)most);
}

/* Elements of an output that belong to the first `valid` samples. */
static uint64_t valid_bytes(const PlanTensor *t, int64_t valid) {
    uint64_t bytes = 0;
    dense_bytes(t->dtype, t->rank, t->dim, &bytes);
    if (t->sample_rows < 1) return bytes;
    return bytes / (uint64_t)t->dim[0] * (uint64_t)(t->sample_rows * valid);
}

/* Sum of the valid elements of a metric; *there = false if the program lacks
   it. */
static ampc_status metric_sum(ampc_session *s, KnownOutput o, int64_t valid,
                              double *sum, bool *there) {
    float part[1024];
    int i = find_known_output(s, s->last, o);
    *sum = 0;
    *there = i >= 0 && output_tensor(s, i)->dtype == AMPC_F32;
    if (!*there) return AMPC_OK;
    PlanRef at = output_ref(s, s->last, i);
    uint64_t left = valid_bytes(output_tensor(s, i), valid);
    while (left) {
        uint64_t n = left < sizeof part ? left : sizeof part;
        TRY(s->backend->get(s, at, part, n));
        for (uint64_t k = 0; k < n / sizeof *part; k++) *sum += part[k];
        at.offset += n;
        left -= n;
    }
    return AMPC_OK;
}

/* Adds two sums of a program if it has both. */
static ampc_status add_pair(ampc_session *s, KnownOutput a, KnownOutput b,
                            int64_t valid, double *num, double *den,
                            bool *there) {
    double x, y = 0;
    bool has = false;
    ampc_status status = metric_sum(s, a, valid, &x, there);
    if (status == AMPC_OK && *there) status = metric_sum(s, b, valid, &y, &has);
    *there = *there && has;
    if (status != AMPC_OK || !*there) return status;
    *num += x;
    *den += y;
    return AMPC_OK;
}

static ampc_status mean_loss(ampc_session *s, double *loss) {
    uint64_t value = 0;
    PlanRef ref;
    uint32_t dtype;
    *loss = NAN;
    if (!session_watch(s, s->last, WATCH_LOSS, &ref, &dtype)) return AMPC_OK;
    ampc_status status = s->backend->get(s, ref, &value, dtype_bytes(dtype));
    *loss = scalar_number(dtype, &value);
    return status;
}

static ampc_status add_loss(ampc_session *s, int64_t valid, ampc_eval *e,
                            bool first) {
    bool there;
    double loss;
    if (first) e->exact = 1;
    ampc_status status = add_pair(s, OUT_LOSS_NUM, OUT_LOSS_DEN, valid,
                                  &e->loss_num, &e->loss_den, &there);
    if (status != AMPC_OK || there) return status;
    if (valid < s->batch) {
        e->exact = 0;
        return AMPC_OK;
    }
    status = mean_loss(s, &loss);
    e->loss_num += loss * (double)valid;
    e->loss_den += (double)valid;
    return status;
}

static ampc_status evaluate_batch(ampc_session *s, const ampc_input *in,
                                  size_t nin, int64_t valid, void *sums) {
    ampc_eval *e = sums;
    bool classifies;
    double count = 0;
    TRY(session_run(s, PROG_EVAL, in, nin));
    TRY(data_ran(s, valid));
    ampc_status status = add_loss(s, valid, e, e->samples == 0);
    if (status == AMPC_OK)
        status = add_pair(s, OUT_CORRECT, OUT_COUNT, valid, &e->correct,
                          &e->count, &classifies);
    if (status == AMPC_OK && e->top_k)
        status = add_pair(s, OUT_CORRECT_TOP, OUT_COUNT, valid, &e->correct_top,
                          &count, &classifies);
    e->samples += valid;
    return status;
}

/* Runs the inputs batch by batch; the last batch is filled up. */
static ampc_status all_batches(ampc_session *s, int program,
                               const ampc_input *in, size_t nin, int64_t valid,
                               ampc_status (*run)(ampc_session *,
                                                  const ampc_input *, size_t,
                                                  int64_t, void *),
                               void *ctx) {
    int64_t given = rows_given(s, program, in, nin), n;
    ampc_status status = valid_ok(s, given, valid);
    if (status != AMPC_OK) return status;
    if (given < 0 || given == s->batch) return run(s, in, nin, valid, ctx);
    for (s->first = 0; s->first < valid && status == AMPC_OK; s->first += n) {
        const ampc_input *part;
        n = valid - s->first < s->batch ? valid - s->first : s->batch;
        status = rows_take(s, program, in, nin, s->first, n, &part);
        if (status == AMPC_OK) status = run(s, part, nin, n, ctx);
    }
    s->first = 0;
    return status;
}

static ampc_status do_evaluate(ampc_session *s, const ampc_input *in,
                               size_t nin, int64_t valid, ampc_eval *sums) {
    ampc_eval e = {0};
    sizes_choose(s, PROG_EVAL, in, nin);
    int program = s->program[PROG_EVAL];
    if (program < 0) return api_unsupported(s, "evaluate");
    if (!SIZED(sums)) return session_unsized(s, "ampc_eval");
    memcpy(&e, sums, sums->size < sizeof e ? sums->size : sizeof e);
    e.top_k = (int32_t)info_int(s->m, "top_k", 0);
    ampc_status status = sizes_pad(s, PROG_EVAL, &in, nin);
    if (status == AMPC_OK)
        status = all_batches(s, program, in, nin, valid, evaluate_batch, &e);
    if (status == AMPC_OK) PUT(sums, e);
    return status;
}

ampc_status api_evaluate(ampc_session *s, const ampc_input *in, size_t nin,
                         int64_t valid, ampc_eval *sums) {
    ENTER(s);
    return api_leave(s, do_evaluate(s, in, nin, valid, sums));
}

/* ---- prediction ---------------------------------------------------------- */

static const ampc_output *output_arg(const ampc_output *out, size_t i) {
    return (const ampc_output *)((const char *)out + i * out->size);
}

static int output_place(const ampc_session *s, int program,
                        const ampc_output *out, size_t i) {
    if (out->name) return find_output(s->m, program, out->name);
    return i < s->m->programs[program].nout ? (int)i : -1;
}

/* All checks come before the program runs. */
static ampc_status outputs_check(ampc_session *s, int program, int64_t valid,
                                 const ampc_output *out, size_t nout) {
    if (nout && (!out || out->size < sizeof *out))
        return session_unsized(s, "ampc_output");
    for (size_t i = 0; i < nout; i++) {
        const ampc_output *o = output_arg(out, i);
        int at = output_place(s, program, o, i);
        if (at < 0)
            return session_fail(s, AMPC_ERR_ARGUMENT, "no output '%.200s'",
                                o->name ? o->name : "(by position)");
        const PlanProgram *p = &s->m->programs[program];
        const PlanTensor *t = &s->m->tensors[p->out0 + (uint32_t)at];
        TRY(out_fits(s, t->name, t->dtype, valid_bytes(t, valid), o));
    }
    return AMPC_OK;
}

typedef struct Prediction {
    ProgramId id;
    ampc_output *out;
    size_t nout;
} Prediction;

static ampc_status predict_batch(ampc_session *s, const ampc_input *in,
                                 size_t nin, int64_t valid, void *ctx) {
    const Prediction *p = ctx;
    ampc_status status = session_run(s, p->id, in, nin);
    if (status == AMPC_OK) status = data_ran(s, valid);
    for (size_t i = 0; i < p->nout && status == AMPC_OK; i++) {
        const ampc_output *o = output_arg(p->out, i);
        int at = output_place(s, s->program[p->id], o, i);
        const PlanTensor *t = output_tensor(s, at);
        uint64_t behind =
            s->first && t->sample_rows > 0 ? valid_bytes(t, s->first) : 0;
        status = out_get(s, output_ref(s, s->last, at), o, behind,
                         valid_bytes(t, valid));
    }
    return status;
}

/* An output that is not per sample has one value for each batch. */
static ampc_status outputs_join(ampc_session *s, int program,
                                const ampc_output *out, size_t nout) {
    for (size_t i = 0; i < nout; i++) {
        int at = output_place(s, program, output_arg(out, i), i);
        const PlanProgram *p = &s->m->programs[program];
        const PlanTensor *t = &s->m->tensors[p->out0 + (uint32_t)at];
        if (t->sample_rows) continue;
        return session_fail(s, AMPC_ERR_ARGUMENT,
                            "output '%.200s' is of a whole batch, not of "
                            "samples: give %lld samples at a time",
                            t->name, (long long)s->batch);
    }
    return AMPC_OK;
}

static ampc_status do_predict(ampc_session *s, ProgramId id,
                              const ampc_input *in, size_t nin, int64_t valid,
                              ampc_output *out, size_t nout) {
    Prediction p = {id, out, nout};
    sizes_choose(s, id, in, nin);
    int program = s->program[id];
    if (program < 0)
        return api_unsupported(s, id == PROG_PREDICT
                                      ? "predict"
                                      : "give outputs to a loss of the host's");
    ampc_status status = sizes_pad(s, id, &in, nin);
    int64_t given = rows_given(s, program, in, nin);
    if (status == AMPC_OK) status = valid_ok(s, given, valid);
    if (status == AMPC_OK) status = outputs_check(s, program, valid, out, nout);
    if (status == AMPC_OK && given >= 0 && given != s->batch)
        status = outputs_join(s, program, out, nout);
    if (status != AMPC_OK) return status;
    return all_batches(s, program, in, nin, valid, predict_batch, &p);
}

ampc_status api_predict(ampc_session *s, const ampc_input *in, size_t nin,
                        int64_t valid, ampc_output *out, size_t nout) {
    ENTER(s);
    return api_leave(s, do_predict(s, PROG_PREDICT, in, nin, valid, out, nout));
}

ampc_status api_outputs(ampc_session *s, const ampc_input *in, size_t nin,
                        int64_t valid, ampc_output *out, size_t nout) {
    ENTER(s);
    return api_leave(s, do_predict(s, PROG_OUTPUTS, in, nin, valid, out, nout));
}

static ampc_status do_read_output(ampc_session *s, const char *name,
                                  const ampc_output *out) {
    int at = s->last < 0 || !name ? -1 : find_output(s->m, s->last, name);
    if (at < 0)
        return session_fail(s, AMPC_ERR_ARGUMENT,
                            "no output '%.200s' of the program that ran last",
                            name ? name : "");
    const PlanTensor *t = output_tensor(s, at);
    uint64_t bytes = 0;
    dense_bytes(t->dtype, t->rank, t->dim, &bytes);
    TRY(out_fits(s, t->name, t->dtype, bytes, out));
    return out_get(s, output_ref(s, s->last, at), out, 0, bytes);
}

ampc_status api_read_output(ampc_session *s, const char *name,
                            ampc_output *out) {
    ENTER(s);
    return api_leave(s, do_read_output(s, name, out));
}
