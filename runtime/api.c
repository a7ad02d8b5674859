/* api.c: the table of functions that ampc.h describes.  Every entry that takes
   a session enters it (one thread at a time), checks its arguments, and leaves
   it; the work is done in run.c, session.c and checkpoint.c.                */
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "runtime/json.h"
#include "runtime/session.h"

#define AMPC_VERSION "0.1"

_Static_assert((int)AMPC_DTYPE_F64 == (int)AMPC_F64 &&
                   (int)AMPC_DTYPE_F16 == (int)AMPC_F16 &&
                   (int)AMPC_DTYPE_I32 == (int)AMPC_I32,
               "ampc.h and plan.h number dtypes alike");
_Static_assert((int)AMPC_KIND_CONSTANT == (int)PLAN_CONST &&
                   (int)AMPC_KIND_STATE == (int)PLAN_STATE,
               "ampc.h and plan.h number kinds alike");
_Static_assert(AMPC_RANK_LIMIT == AMPC_MAX_RANK, "one rank limit");

static bool enter(ampc_session *s) { return !atomic_exchange(&s->busy, 1); }

static ampc_status leave(ampc_session *s, ampc_status status) {
    atomic_store(&s->busy, 0);
    return status;
}

#define ENTER(s)                                                               \
    do {                                                                       \
        if (!(s)) return AMPC_ERR_ARGUMENT;                                    \
        if (!enter(s)) return AMPC_ERR_BUSY;                                   \
    } while (0)

/* Copies a struct out, no further than its reader knows it. */
#define PUT(out, value)                                                        \
    do {                                                                       \
        size_t size_ = (out)->size;                                            \
        (value).size = size_;                                                  \
        memcpy((out), &(value),                                                \
               size_ < sizeof(value) ? size_ : sizeof(value));                 \
    } while (0)

#define SIZED(p) ((p) && (p)->size >= sizeof(size_t))

/* ---- description --------------------------------------------------------- */

static const AmpcModule *plan_of(const ampc_module_t *m) {
    return (const AmpcModule *)(const void *)m;
}

static ampc_status api_describe(const ampc_module_t *module,
                                ampc_module_info *out) {
    const AmpcModule *m = plan_of(module);
    if (!m || !SIZED(out)) return AMPC_ERR_ARGUMENT;
    ampc_module_info i = {.model = m->model,
                          .info = m->info ? m->info : "{}",
                          .graph_hash = m->graph_hash,
                          .batch = module_batch(m),
                          .accumulate = info_int(m, "accumulate", 1),
                          .seed = info_int(m, "seed", 0),
                          .nvariable = m->nvar};
    i.trains = find_program(m, "train") >= 0 || find_program(m, "micro") >= 0;
    i.evaluates = find_program(m, "eval") >= 0;
    i.predicts = find_program(m, "predict") >= 0;
    for (uint32_t k = 0; k < m->nprogram; k++)
        if (m->programs[k].arena > i.arena) i.arena = m->programs[k].arena;
    PUT(out, i);
    return AMPC_OK;
}

static ampc_status api_program(const ampc_module_t *module, const char *name,
                               ampc_program_info *out) {
    const AmpcModule *m = plan_of(module);
    if (!m || !name || !SIZED(out)) return AMPC_ERR_ARGUMENT;
    int p = find_program(m, name);
    if (p < 0) return AMPC_ERR_UNSUPPORTED;
    ampc_program_info i = {.ninput = m->programs[p].nin,
                           .noutput = m->programs[p].nout,
                           .nstep = m->programs[p].nstep};
    PUT(out, i);
    return AMPC_OK;
}

static ampc_status tensor_info(const PlanTensor *t, ampc_tensor_info *out) {
    uint64_t bytes = 0;
    ampc_tensor_info i = {.name = t->name,
                          .dtype = (int32_t)t->dtype,
                          .rank = (int32_t)t->rank};
    if (!dense_bytes(t->dtype, t->rank, t->dim, &bytes))
        return AMPC_ERR_INTERNAL;
    memcpy(i.shape, t->dim, t->rank * sizeof *i.shape);
    i.bytes = bytes;
    PUT(out, i);
    return AMPC_OK;
}

static ampc_status api_input(const ampc_module_t *module, const char *name,
                             uint32_t index, ampc_tensor_info *out) {
    const AmpcModule *m = plan_of(module);
    if (!m || !name || !SIZED(out)) return AMPC_ERR_ARGUMENT;
    int p = find_program(m, name);
    if (p < 0) return AMPC_ERR_UNSUPPORTED;
    if (index >= m->programs[p].nin) return AMPC_ERR_ARGUMENT;
    return tensor_info(&m->tensors[m->programs[p].in0 + index], out);
}

static ampc_status api_output(const ampc_module_t *module, const char *name,
                              uint32_t index, ampc_tensor_info *out) {
    const AmpcModule *m = plan_of(module);
    if (!m || !name || !SIZED(out)) return AMPC_ERR_ARGUMENT;
    int p = find_program(m, name);
    if (p < 0) return AMPC_ERR_UNSUPPORTED;
    if (index >= m->programs[p].nout) return AMPC_ERR_ARGUMENT;
    return tensor_info(&m->tensors[m->programs[p].out0 + index], out);
}

static ampc_status api_variable(const ampc_module_t *module, uint32_t index,
                                ampc_variable_info *out) {
    const AmpcModule *m = plan_of(module);
    if (!m || !SIZED(out) || index >= m->nvar) return AMPC_ERR_ARGUMENT;
    const PlanVar *v = &m->vars[index];
    if (v->rank > AMPC_MAX_RANK) return AMPC_ERR_INTERNAL;
    ampc_variable_info i = {.name = v->name,
                            .kind = (int32_t)v->kind,
                            .dtype = (int32_t)v->dtype,
                            .rank = (int32_t)v->rank,
                            .bytes = v->bytes};
    memcpy(i.shape, v->dim, v->rank * sizeof *i.shape);
    PUT(out, i);
    return AMPC_OK;
}

static ampc_status api_open(const ampc_module_t *m, const ampc_options *o,
                            ampc_session **out, char *err, size_t err_size) {
    return session_open(plan_of(m), o, out, err, err_size);
}

static void api_close(ampc_session *s) { session_close(s); }

static const char *api_error(const ampc_session *s) {
    return s ? s->error : "no session";
}

/* ---- outputs ------------------------------------------------------------- */

static int find_output(const AmpcModule *m, int program, const char *name) {
    const PlanProgram *p = &m->programs[program];
    for (uint32_t i = 0; i < p->nout; i++)
        if (strcmp(m->tensors[p->out0 + i].name, name) == 0) return (int)i;
    return -1;
}

static const PlanTensor *output_tensor(const ampc_session *s, int i) {
    return &s->m->tensors[s->m->programs[s->last].out0 + (uint32_t)i];
}

/* Address of output i of the program that ran last. */
static const void *output_data(const ampc_session *s, int i) {
    const PlanTensor *t = output_tensor(s, i);
    const Bound *b = &s->bound[s->last];
    if (t->ref.space != PLAN_INPUT) return b->outputs[i];
    const char *host = b->inputs[t->ref.index];
    return host ? host + t->ref.offset : NULL;
}

/* A scalar metric of the program that ran last; NaN when there is none. */
static double metric(const ampc_session *s, const char *name) {
    int i = find_output(s->m, s->last, name);
    if (i < 0) return NAN;
    const void *p = output_data(s, i);
    switch (output_tensor(s, i)->dtype) {
    case AMPC_F32: return *(const float *)p;
    case AMPC_F64: return *(const double *)p;
    case AMPC_I64: return (double)*(const int64_t *)p;
    case AMPC_I32: return *(const int32_t *)p;
    case AMPC_BOOL: return *(const uint8_t *)p;
    default: return NAN;
    }
}

/* ---- training ------------------------------------------------------------ */

static int64_t counter(const ampc_session *s, KnownVar v) {
    return (int64_t)var_number(s, s->known[v], 0);
}

static void fill_metrics(ampc_session *s) {
    ampc_metrics *m = &s->metrics;
    double applied = metric(s, "ampc.applied"), scale = metric(s, "ampc.scale");
    m->loss = metric(s, "ampc.loss");
    m->grad_norm = metric(s, "ampc.grad_norm");
    m->scale = isnan(scale) ? 1 : scale;
    m->lr = metric(s, "ampc.lr");
    m->updated = 1;
    m->applied = isnan(applied) || applied != 0;
    m->step = counter(s, VAR_STEP);
    m->tried = counter(s, VAR_TRIED);
    m->skipped = counter(s, VAR_SKIPPED);
    m->bad_forward = counter(s, VAR_BAD_FORWARD);
}

static ampc_status unsupported(ampc_session *s, const char *what) {
    return session_fail(s, AMPC_ERR_UNSUPPORTED,
                        "this module cannot %s; its compile options decide",
                        what);
}

/* The program itself may count too: both write the same number. */
static void set_micro(ampc_session *s, int64_t micro) {
    s->micro = micro;
    if (s->known[VAR_MICRO] >= 0)
        var_set_number(s, s->known[VAR_MICRO], (double)micro);
}

static ampc_status do_micro(ampc_session *s, ProgramId id, const ampc_input *in,
                            size_t nin) {
    if (s->program[id] < 0)
        return unsupported(s, id == PROG_VJP ? "take gradients from the host"
                                             : "make micro-steps");
    if (s->micro >= s->accumulate)
        return session_fail(s, AMPC_ERR_ARGUMENT,
                            "%lld micro-steps were made: update is due",
                            (long long)s->micro);
    int64_t micro = s->micro;
    ampc_status status = session_need_grads(s);
    if (status != AMPC_OK) return status;
    if (micro == 0) session_zero_grads(s);
    status = session_run(s, id, in, nin);
    if (status != AMPC_OK) return status;
    set_micro(s, micro + 1);
    s->metrics.loss = metric(s, "ampc.loss");
    s->metrics.updated = s->metrics.applied = 0;
    return AMPC_OK;
}

static ampc_status do_update(ampc_session *s) {
    if (s->program[PROG_UPDATE] < 0) return unsupported(s, "accumulate");
    if (s->micro != s->accumulate)
        return session_fail(s, AMPC_ERR_ARGUMENT,
                            "update needs %lld micro-steps; %lld were made",
                            (long long)s->accumulate, (long long)s->micro);
    ampc_status status = session_run(s, PROG_UPDATE, NULL, 0);
    if (status != AMPC_OK) return status;
    set_micro(s, 0);
    fill_metrics(s);
    return AMPC_OK;
}

static ampc_status do_step(ampc_session *s, const ampc_input *in, size_t nin) {
    if (s->program[PROG_TRAIN] >= 0 && s->accumulate == 1) {
        ampc_status status = session_run(s, PROG_TRAIN, in, nin);
        if (status == AMPC_OK) fill_metrics(s);
        return status;
    }
    if (s->program[PROG_MICRO] < 0 || s->program[PROG_UPDATE] < 0)
        return unsupported(s, "train");
    ampc_status status = session_prepare(s, PROG_UPDATE);
    if (status == AMPC_OK) status = do_micro(s, PROG_MICRO, in, nin);
    if (status == AMPC_OK && s->micro == s->accumulate) status = do_update(s);
    return status;
}

static ampc_status put_metrics(ampc_session *s, ampc_metrics *out) {
    if (!out) return AMPC_OK;
    ampc_metrics m = s->metrics;
    PUT(out, m);
    return AMPC_OK;
}

static ampc_status metrics_ok(ampc_session *s, const ampc_metrics *m) {
    if (!m || SIZED(m)) return AMPC_OK;
    return session_fail(s, AMPC_ERR_ARGUMENT, "ampc_metrics.size is not set");
}

static ampc_status api_step(ampc_session *s, const ampc_input *in, size_t nin,
                            ampc_metrics *metrics) {
    ENTER(s);
    ampc_status status = metrics_ok(s, metrics);
    if (status == AMPC_OK) status = do_step(s, in, nin);
    if (status == AMPC_OK) status = put_metrics(s, metrics);
    return leave(s, status);
}

static ampc_status api_sync(ampc_session *s, ampc_metrics *metrics) {
    ENTER(s);
    ampc_status status = metrics_ok(s, metrics);
    if (status == AMPC_OK) status = put_metrics(s, metrics);
    return leave(s, status);
}

static ampc_status api_micro_step(ampc_session *s, const ampc_input *in,
                                  size_t nin, double *loss) {
    ENTER(s);
    ampc_status status = do_micro(s, PROG_MICRO, in, nin);
    if (status == AMPC_OK && loss) *loss = s->metrics.loss;
    return leave(s, status);
}

static ampc_status api_vjp(ampc_session *s, const ampc_input *in, size_t nin) {
    ENTER(s);
    return leave(s, do_micro(s, PROG_VJP, in, nin));
}

static ampc_status api_update(ampc_session *s, ampc_metrics *metrics) {
    ENTER(s);
    ampc_status status = metrics_ok(s, metrics);
    if (status == AMPC_OK) status = do_update(s);
    if (status == AMPC_OK) status = put_metrics(s, metrics);
    return leave(s, status);
}

/* ---- evaluation ---------------------------------------------------------- */

static ampc_status valid_ok(ampc_session *s, int64_t valid) {
    if (valid >= 0 && valid <= s->batch) return AMPC_OK;
    return session_fail(s, AMPC_ERR_ARGUMENT,
                        "%lld valid samples in a batch of %lld",
                        (long long)valid, (long long)s->batch);
}

/* Elements of an output that belong to the first `valid` samples. */
static uint64_t valid_bytes(const ampc_session *s, const PlanTensor *t,
                            int64_t valid) {
    uint64_t bytes = 0;
    dense_bytes(t->dtype, t->rank, t->dim, &bytes);
    if (t->rank == 0 || s->batch <= 0 || t->dim[0] % s->batch) return bytes;
    return bytes / (uint64_t)s->batch * (uint64_t)valid;
}

/* Sum of the valid elements of a metric; false when the program lacks it. */
static bool metric_sum(const ampc_session *s, const char *name, int64_t valid,
                       double *sum) {
    int i = find_output(s->m, s->last, name);
    if (i < 0 || output_tensor(s, i)->dtype != AMPC_F32) return false;
    const float *p = output_data(s, i);
    uint64_t n = valid_bytes(s, output_tensor(s, i), valid) / sizeof *p;
    *sum = 0;
    for (uint64_t k = 0; k < n; k++) *sum += p[k];
    return true;
}

static void add_loss(const ampc_session *s, int64_t valid, ampc_eval *e,
                     bool first) {
    double num, den;
    if (first) e->exact = 1;
    if (metric_sum(s, "ampc.loss_num", valid, &num) &&
        metric_sum(s, "ampc.loss_den", valid, &den)) {
        e->loss_num += num;
        e->loss_den += den;
        return;
    }
    if (valid < s->batch) {
        e->exact = 0;
        return;
    }
    e->loss_num += metric(s, "ampc.loss") * (double)valid;
    e->loss_den += (double)valid;
}

static ampc_status do_evaluate(ampc_session *s, const ampc_input *in,
                               size_t nin, int64_t valid, ampc_eval *sums) {
    ampc_eval e = {0};
    double correct, count;
    if (s->program[PROG_EVAL] < 0) return unsupported(s, "evaluate");
    if (!SIZED(sums))
        return session_fail(s, AMPC_ERR_ARGUMENT, "ampc_eval.size is not set");
    memcpy(&e, sums, sums->size < sizeof e ? sums->size : sizeof e);
    ampc_status status = valid_ok(s, valid);
    if (status == AMPC_OK) status = session_run(s, PROG_EVAL, in, nin);
    if (status != AMPC_OK) return status;
    add_loss(s, valid, &e, e.samples == 0);
    if (metric_sum(s, "ampc.correct", valid, &correct) &&
        metric_sum(s, "ampc.count", valid, &count)) {
        e.correct += correct;
        e.count += count;
    }
    e.samples += valid;
    PUT(sums, e);
    return AMPC_OK;
}

static ampc_status api_evaluate(ampc_session *s, const ampc_input *in,
                                size_t nin, int64_t valid, ampc_eval *sums) {
    ENTER(s);
    return leave(s, do_evaluate(s, in, nin, valid, sums));
}

/* ---- prediction ---------------------------------------------------------- */

static ampc_status out_fits(ampc_session *s, const char *name, uint32_t dtype,
                            uint64_t bytes, const ampc_output *out) {
    if (!SIZED(out) || out->size < sizeof *out)
        return session_fail(s, AMPC_ERR_ARGUMENT,
                            "ampc_output.size is not set");
    if ((uint32_t)out->dtype != dtype)
        return session_fail(s, AMPC_ERR_ARGUMENT,
                            "'%.200s' is %s; %s was asked for", name,
                            dtype_name(dtype),
                            dtype_name((uint32_t)out->dtype));
    if (out->bytes < bytes || (bytes && !out->data))
        return session_fail(s, AMPC_ERR_ARGUMENT,
                            "'%.200s' needs room for %llu bytes; %zu given",
                            name, (unsigned long long)bytes,
                            out->data ? out->bytes : 0);
    return AMPC_OK;
}

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
        return session_fail(s, AMPC_ERR_ARGUMENT,
                            "ampc_output.size is not set");
    for (size_t i = 0; i < nout; i++) {
        const ampc_output *o = output_arg(out, i);
        int at = output_place(s, program, o, i);
        if (at < 0)
            return session_fail(s, AMPC_ERR_ARGUMENT, "no output '%.200s'",
                                o->name ? o->name : "(by position)");
        const PlanProgram *p = &s->m->programs[program];
        const PlanTensor *t = &s->m->tensors[p->out0 + (uint32_t)at];
        ampc_status status =
            out_fits(s, t->name, t->dtype, valid_bytes(s, t, valid), o);
        if (status != AMPC_OK) return status;
    }
    return AMPC_OK;
}

static ampc_status do_predict(ampc_session *s, const ampc_input *in, size_t nin,
                              int64_t valid, ampc_output *out, size_t nout) {
    int program = s->program[PROG_PREDICT];
    if (program < 0) return unsupported(s, "predict");
    ampc_status status = valid_ok(s, valid);
    if (status == AMPC_OK) status = outputs_check(s, program, valid, out, nout);
    if (status == AMPC_OK) status = session_run(s, PROG_PREDICT, in, nin);
    if (status != AMPC_OK) return status;
    for (size_t i = 0; i < nout; i++) {
        const ampc_output *o = output_arg(out, i);
        int at = output_place(s, program, o, i);
        uint64_t n = valid_bytes(s, output_tensor(s, at), valid);
        if (n) memcpy(o->data, output_data(s, at), n);
    }
    return AMPC_OK;
}

static ampc_status api_predict(ampc_session *s, const ampc_input *in,
                               size_t nin, int64_t valid, ampc_output *out,
                               size_t nout) {
    ENTER(s);
    return leave(s, do_predict(s, in, nin, valid, out, nout));
}

static ampc_status do_read_output(ampc_session *s, const char *name,
                                  const ampc_output *out) {
    int at = s->last < 0 || !name ? -1 : find_output(s->m, s->last, name);
    if (at < 0)
        return session_fail(s, AMPC_ERR_ARGUMENT,
                            "no output '%.200s' of the program that ran last",
                            name ? name : "");
    const PlanTensor *t = output_tensor(s, at);
    if (t->ref.space == PLAN_INPUT)
        return session_fail(s, AMPC_ERR_UNSUPPORTED,
                            "'%.200s' is an input unchanged; it is gone now",
                            t->name);
    uint64_t bytes = 0;
    dense_bytes(t->dtype, t->rank, t->dim, &bytes);
    ampc_status status = out_fits(s, t->name, t->dtype, bytes, out);
    if (status == AMPC_OK && bytes)
        memcpy(out->data, output_data(s, at), bytes);
    return status;
}

static ampc_status api_read_output(ampc_session *s, const char *name,
                                   ampc_output *out) {
    ENTER(s);
    return leave(s, do_read_output(s, name, out));
}

/* ---- hyper-parameters, scaler, variables --------------------------------- */

/* "lr" and "ampc.lr" name the same. */
static int find_hyper(const AmpcModule *m, const char *name) {
    char full[256];
    int v = find_var(m, name);
    if (v >= 0 && m->vars[v].kind == PLAN_HYPER) return v;
    snprintf(full, sizeof full, "ampc.%s", name);
    v = find_var(m, full);
    return v >= 0 && m->vars[v].kind == PLAN_HYPER ? v : -1;
}

static ampc_status no_hyper(ampc_session *s, const char *name) {
    char names[600] = "";
    size_t n = 0;
    for (uint32_t i = 0; i < s->m->nvar && n < sizeof names - 1; i++)
        if (s->m->vars[i].kind == PLAN_HYPER)
            n += (size_t)snprintf(names + n, sizeof names - n, " %.100s",
                                  s->m->vars[i].name);
    return session_fail(s, AMPC_ERR_ARGUMENT,
                        "no hyper-parameter '%.200s'; there are:%s",
                        name ? name : "", names);
}

static ampc_status api_get_hyper(ampc_session *s, const char *name,
                                 double *value) {
    ENTER(s);
    int v = name && value ? find_hyper(s->m, name) : -1;
    if (v < 0) return leave(s, no_hyper(s, name));
    *value = var_number(s, v, 0);
    return leave(s, AMPC_OK);
}

static ampc_status api_set_hyper(ampc_session *s, const char *name,
                                 double value) {
    ENTER(s);
    int v = name ? find_hyper(s->m, name) : -1;
    if (v < 0) return leave(s, no_hyper(s, name));
    if (!isfinite(value) || !var_set_number(s, v, value))
        return leave(s, session_fail(s, AMPC_ERR_ARGUMENT,
                                     "hyper-parameter '%.200s' (%s) cannot be "
                                     "%g",
                                     name, dtype_name(s->m->vars[v].dtype),
                                     value));
    return leave(s, AMPC_OK);
}

static ampc_status api_scaler(ampc_session *s, ampc_scaler *out) {
    ENTER(s);
    if (!SIZED(out))
        return leave(s, session_fail(s, AMPC_ERR_ARGUMENT,
                                     "ampc_scaler.size is not set"));
    ampc_scaler v = {.scale = var_number(s, s->known[VAR_SCALE], 1),
                     .good = counter(s, VAR_GOOD),
                     .hysteresis = counter(s, VAR_HYST),
                     .step = counter(s, VAR_STEP),
                     .tried = counter(s, VAR_TRIED),
                     .skipped = counter(s, VAR_SKIPPED),
                     .bad_forward = counter(s, VAR_BAD_FORWARD),
                     .micro = s->micro};
    PUT(out, v);
    return leave(s, AMPC_OK);
}

static ampc_status do_read_variable(ampc_session *s, const char *name,
                                    const ampc_output *out) {
    int v = name ? find_var(s->m, name) : -1;
    if (v < 0)
        return session_fail(s, AMPC_ERR_ARGUMENT, "no variable '%.200s'",
                            name ? name : "");
    const PlanVar *p = &s->m->vars[v];
    ampc_status status = out_fits(s, name, p->dtype, p->bytes, out);
    if (status != AMPC_OK || p->bytes == 0) return status;
    if (s->var[v])
        memcpy(out->data, s->var[v], p->bytes);
    else
        memset(out->data, 0, p->bytes); /* a gradient before any micro-step */
    return AMPC_OK;
}

static ampc_status api_read_variable(ampc_session *s, const char *name,
                                     ampc_output *out) {
    ENTER(s);
    return leave(s, do_read_variable(s, name, out));
}

static ampc_status write_check(ampc_session *s, const PlanVar *v,
                               const ampc_input *in) {
    char want[160];
    shape_text(want, v->dtype, v->rank, v->dim);
    if (v->kind > PLAN_STATE)
        return session_fail(s, AMPC_ERR_ARGUMENT,
                            v->kind == PLAN_HYPER
                                ? "'%.200s': set_hyper sets it"
                                : "'%.200s' is read-only",
                            v->name);
    if (!SIZED(in) || in->size < sizeof *in)
        return session_fail(s, AMPC_ERR_ARGUMENT, "ampc_input.size is not set");
    bool same = (uint32_t)in->dtype == v->dtype && in->bytes == v->bytes &&
                (in->data || !v->bytes) &&
                (in->rank < 0 || (uint32_t)in->rank == v->rank);
    for (uint32_t i = 0; same && in->rank > 0 && i < v->rank; i++)
        same = in->shape && in->shape[i] == v->dim[i];
    if (same) return AMPC_OK;
    return session_fail(s, AMPC_ERR_ARGUMENT,
                        "variable '%.200s' is %s, %llu bytes: other data given",
                        v->name, want, (unsigned long long)v->bytes);
}

static ampc_status do_write_variable(ampc_session *s, const char *name,
                                     const ampc_input *in) {
    int i = name ? find_var(s->m, name) : -1;
    if (i < 0)
        return session_fail(s, AMPC_ERR_ARGUMENT, "no variable '%.200s'",
                            name ? name : "");
    const PlanVar *v = &s->m->vars[i];
    ampc_status status = write_check(s, v, in);
    if (status != AMPC_OK) return status;
    if (v->bytes) memmove(s->var[i], in->data, v->bytes);
    s->stale = true;
    if (i == s->known[VAR_MICRO]) s->micro = counter(s, VAR_MICRO);
    return AMPC_OK;
}

static ampc_status api_write_variable(ampc_session *s, const char *name,
                                      const ampc_input *in) {
    ENTER(s);
    return leave(s, do_write_variable(s, name, in));
}

/* ---- files, cursor, profile ---------------------------------------------- */

static ampc_status need_path(ampc_session *s, const char *path) {
    if (path && *path) return AMPC_OK;
    return session_fail(s, AMPC_ERR_ARGUMENT, "no path given");
}

static ampc_status api_save(ampc_session *s, const char *path) {
    ENTER(s);
    ampc_status status = need_path(s, path);
    return leave(s, status == AMPC_OK ? checkpoint_save(s, path) : status);
}

static ampc_status api_load(ampc_session *s, const char *path) {
    ENTER(s);
    ampc_status status = need_path(s, path);
    if (status == AMPC_OK) status = checkpoint_load(s, path, false);
    return leave(s, status);
}

static ampc_status api_resume(ampc_session *s, const char *path) {
    ENTER(s);
    ampc_status status = need_path(s, path);
    if (status == AMPC_OK) status = checkpoint_load(s, path, true);
    return leave(s, status);
}

static ampc_status do_set_cursor(ampc_session *s, const char *json) {
    JsonSpan v;
    if (!json || !json_parse(json, strlen(json), &v))
        return session_fail(s, AMPC_ERR_ARGUMENT, "the cursor is not JSON");
    char *copy = mem_alloc(s, strlen(json) + 1);
    if (!copy) return session_fail(s, AMPC_ERR_MEMORY, "out of memory");
    strcpy(copy, json);
    if (s->cursor) mem_free(s, s->cursor, strlen(s->cursor) + 1);
    s->cursor = copy;
    return AMPC_OK;
}

static ampc_status api_set_cursor(ampc_session *s, const char *json) {
    ENTER(s);
    return leave(s, do_set_cursor(s, json));
}

static const char *api_get_cursor(const ampc_session *s) {
    return s && s->cursor ? s->cursor : "null";
}

static ampc_status api_profile(ampc_session *s, ampc_profile_fn fn, void *ctx) {
    ENTER(s);
    s->profile = fn;
    s->profile_ctx = ctx;
    return leave(s, AMPC_OK);
}

/* ---- the table ----------------------------------------------------------- */

static const ampc_api api_template = {
    .size = sizeof(ampc_api),
    .abi = AMPC_ABI_VERSION,
    .version = AMPC_VERSION,
    .describe = api_describe,
    .program = api_program,
    .input = api_input,
    .output = api_output,
    .variable = api_variable,
    .open = api_open,
    .close = api_close,
    .error = api_error,
    .step = api_step,
    .sync = api_sync,
    .micro_step = api_micro_step,
    .update = api_update,
    .vjp = api_vjp,
    .evaluate = api_evaluate,
    .predict = api_predict,
    .read_output = api_read_output,
    .get_hyper = api_get_hyper,
    .set_hyper = api_set_hyper,
    .scaler = api_scaler,
    .read_variable = api_read_variable,
    .write_variable = api_write_variable,
    .save = api_save,
    .load = api_load,
    .resume = api_resume,
    .set_cursor = api_set_cursor,
    .get_cursor = api_get_cursor,
    .profile = api_profile,
};

/* A module has one plan, so its table is made once. */
const ampc_api *ampc_module_api(const AmpcModule *m, uint32_t abi) {
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    static ampc_api table;
    if (!m || abi != AMPC_ABI_VERSION) return NULL;
    pthread_mutex_lock(&lock);
    if (table.size == 0) {
        table = api_template;
        table.module = (const ampc_module_t *)(const void *)m;
    }
    pthread_mutex_unlock(&lock);
    return table.module == (const ampc_module_t *)(const void *)m ? &table
                                                                  : NULL;
}
