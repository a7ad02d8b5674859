/* SPDX-License-Identifier: Apache-2.0 */
/* api.c: the table of functions that ampc.h describes; those for description
   and variables. Every entry that takes a session enters it (one thread at a
   time), checks its arguments, and leaves it. api_files.c holds the entries
   for files, train.c and infer.c those that run programs. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "runtime/api/session.h"
#include "runtime/base/host.h"
#include "runtime/base/try.h"
#include "runtime/files/sections.h"
#include "runtime/program/mode.h"

#define DTYPE(E, text, C, ...)                                                 \
    _Static_assert((int)AMPC_DTYPE_##E == (int)AMPC_##E, "ampc.h: " #E);
#include "runtime/program/dtypes.def"

_Static_assert((int)AMPC_KIND_CONSTANT == (int)PLAN_CONST &&
                   (int)AMPC_KIND_STATE == (int)PLAN_STATE,
               "ampc.h and plan.h number kinds alike");
_Static_assert(AMPC_RANK_LIMIT == AMPC_MAX_RANK, "one rank limit");

/* ---- description --------------------------------------------------------- */

static const AmpcModule *plan_of(const ampc_module_t *m) {
    return (const AmpcModule *)(const void *)m;
}

static ampc_status api_describe(const ampc_module_t *module,
                                ampc_module_info *out) {
    const AmpcModule *m = plan_of(module);
    if (!m || !SIZED(out)) return AMPC_ERR_ARGUMENT;
    const PlanTarget *plan = module_plan(m);
    ampc_module_info i = {.model = m->model,
                          .info = m->info ? m->info : "{}",
                          .graph_hash = m->graph_hash,
                          .batch = module_batch(m),
                          .accumulate = info_int(m, "accumulate", 1),
                          .seed = info_int(m, "seed", 0),
                          .nvariable = m->nvar};
    i.trains = objective_at(m, 0) != NULL;
    i.parts = info_int(m, "masks", 0) != 0;
    i.evaluates = find_program(m, program_names[PROG_EVAL]) >= 0;
    i.predicts = find_program(m, program_names[PROG_PREDICT]) >= 0;
    for (uint32_t k = 0; k < m->nprogram; k++)
        if (plan->runs[k].arena > i.arena) i.arena = plan->runs[k].arena;
    PUT(out, i);
    return AMPC_OK;
}

static const char *api_objective_name(const ampc_module_t *module,
                                      uint32_t index) {
    const AmpcModule *m = plan_of(module);
    return m ? objective_at(m, index) : NULL;
}

static ampc_status named_program(const AmpcModule *m, const char *name,
                                 bool sized, int *p) {
    if (!m || !name || !sized) return AMPC_ERR_ARGUMENT;
    *p = find_program(m, name);
    return *p < 0 ? AMPC_ERR_UNSUPPORTED : AMPC_OK;
}

static ampc_status api_program(const ampc_module_t *module, const char *name,
                               ampc_program_info *out) {
    const AmpcModule *m = plan_of(module);
    int p;
    TRY(named_program(m, name, SIZED(out), &p));
    ampc_program_info i = {.ninput = m->programs[p].nin,
                           .noutput = m->programs[p].nout,
                           .nstep = module_plan(m)->runs[p].nstep,
                           .flops = module_plan(m)->runs[p].flops};
    PUT(out, i);
    return AMPC_OK;
}

/* Input or output number `index` of a program. */
static ampc_status tensor_info(const ampc_module_t *module, const char *name,
                               bool output, uint32_t index,
                               ampc_tensor_info *out) {
    const AmpcModule *m = plan_of(module);
    uint64_t bytes = 0;
    int p;
    TRY(named_program(m, name, SIZED(out), &p));
    const PlanProgram *x = &m->programs[p];
    if (index >= (output ? x->nout : x->nin)) return AMPC_ERR_ARGUMENT;
    const PlanTensor *t = &m->tensors[(output ? x->out0 : x->in0) + index];
    ampc_tensor_info i = {.name = t->name,
                          .dtype = (int32_t)t->dtype,
                          .rank = (int32_t)t->rank,
                          .sample_rows = t->sample_rows};
    if (!dense_bytes(t->dtype, t->rank, t->dim, &bytes))
        return AMPC_ERR_INTERNAL;
    memcpy(i.shape, t->dim, t->rank * sizeof *i.shape);
    i.bytes = bytes;
    PUT(out, i);
    return AMPC_OK;
}

static ampc_status api_input(const ampc_module_t *module, const char *name,
                             uint32_t index, ampc_tensor_info *out) {
    return tensor_info(module, name, false, index, out);
}

static ampc_status api_output(const ampc_module_t *module, const char *name,
                              uint32_t index, ampc_tensor_info *out) {
    return tensor_info(module, name, true, index, out);
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
    fenv_t host;
    mode_enter(&host);
    ampc_status status = session_open(plan_of(m), o, out, err, err_size);
    mode_leave(&host);
    return status;
}

static void api_close(ampc_session *s) {
    fenv_t host;
    mode_enter(&host);
    session_close(s);
    mode_leave(&host);
}

static ampc_status api_comm_open(const ampc_comm_options *o, ampc_comm **out,
                                 char *err, size_t err_size) {
    fenv_t host;
    mode_enter(&host);
    ampc_status status = comm_open(o, out, err, err_size);
    mode_leave(&host);
    return status;
}

static void api_comm_close(ampc_comm *comm) {
    fenv_t host;
    mode_enter(&host);
    comm_close(comm);
    mode_leave(&host);
}

static const char *api_error(const ampc_session *s) {
    return s ? s->error : "no session";
}

/* ---- hyper-parameters, scaler, variables --------------------------------- */

/* "lr" and "ampc.lr" are the learning rate of the session's objective,
   "lr:NAME" the rate of another objective. */
static int find_hyper(const ampc_session *s, const char *name) {
    char full[256];
    const char *objectives[] = {s->objective, ""};
    if (own_name(name)) name += strlen("ampc.");
    for (int i = 0; i < 2; i++) {
        const char *colon = *objectives[i] ? ":" : "";
        snprintf(full, sizeof full, "ampc.%s%s%s", name, colon, objectives[i]);
        int v = find_var(s->m, full);
        if (v >= 0 && s->m->vars[v].kind == PLAN_HYPER) return v;
    }
    return -1;
}

static ampc_status no_hyper(ampc_session *s, const char *name) {
    char names[600] = "";
    size_t n = 0;
    for (uint32_t i = 0; i < s->m->nvar && n < sizeof names - 1; i++)
        if (s->m->vars[i].kind == PLAN_HYPER)
            n += (size_t)snprintf(names + n, sizeof names - n, " %.100s",
                                  s->m->vars[i].name + strlen("ampc."));
    return session_fail(s, AMPC_ERR_ARGUMENT,
                        "unknown hyper-parameter '%.200s'; the module has:%s",
                        name ? name : "", names);
}

static ampc_status api_get_hyper(ampc_session *s, const char *name,
                                 double *value) {
    ENTER(s);
    int v = name && value ? find_hyper(s, name) : -1;
    if (v < 0) return api_leave(s, no_hyper(s, name));
    return api_leave(s, var_number(s, v, 0, value));
}

static ampc_status bad_hyper(ampc_session *s, const char *name,
                             const PlanVar *v, double x) {
    char range[80];
    known_range_text(v->name, range, sizeof range);
    return session_fail(s, AMPC_ERR_ARGUMENT,
                        "hyper-parameter '%.200s' (%s) cannot be %g%s", name,
                        dtype_name(v->dtype), x, range);
}

static ampc_status do_set_hyper(ampc_session *s, const char *name, double x) {
    uint64_t value = 0;
    int i = name ? find_hyper(s, name) : -1;
    if (i < 0) return no_hyper(s, name);
    const PlanVar *v = &s->m->vars[i];
    if (!isfinite(x) || !known_in_range(v->name, x) || v->rank != 0 ||
        !scalar_encode(v->dtype, x, &value))
        return bad_hyper(s, name, v, x);
    return s->backend->put(s, var_ref((uint32_t)i, 0), &value, v->bytes);
}

static ampc_status api_set_hyper(ampc_session *s, const char *name, double x) {
    ENTER(s);
    return api_leave(s, do_set_hyper(s, name, x));
}

static ampc_status do_scaler(ampc_session *s, ampc_scaler *out) {
    static const KnownVar known[] = {VAR_GOOD,  VAR_HYST,    VAR_STEP,
                                     VAR_TRIED, VAR_SKIPPED, VAR_BAD_FORWARD};
    ampc_scaler v = {.micro = s->micro};
    int64_t *const count[] = {&v.good,  &v.hysteresis, &v.step,
                              &v.tried, &v.skipped,    &v.bad_forward};
    if (!SIZED(out)) return session_unsized(s, "ampc_scaler");
    ampc_status status = var_number(s, s->known[VAR_SCALE], 1, &v.scale);
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        double x;
        if (status == AMPC_OK)
            status = var_number(s, s->known[known[i]], 0, &x);
        if (status != AMPC_OK) return status;
        *count[i] = (int64_t)x;
    }
    PUT(out, v);
    return status;
}

static ampc_status api_scaler(ampc_session *s, ampc_scaler *out) {
    ENTER(s);
    return api_leave(s, do_scaler(s, out));
}

/* A variable that the host may read or write. */
static ampc_status named_var(ampc_session *s, const char *name, int *v) {
    *v = name ? find_var(s->m, name) : -1;
    if (*v < 0)
        return session_fail(s, AMPC_ERR_ARGUMENT, "no variable '%.200s'",
                            name ? name : "");
    if (!shard_is(s, (uint32_t)*v)) return AMPC_OK;
    return session_fail(s, AMPC_ERR_UNSUPPORTED,
                        "'%.200s' is spread over ranks; a checkpoint has it",
                        name);
}

static ampc_status do_read_variable(ampc_session *s, const char *name,
                                    const ampc_output *out) {
    int v;
    TRY(named_var(s, name, &v));
    const PlanVar *p = &s->m->vars[v];
    TRY(out_fits(s, name, p->dtype, p->bytes, out));
    if (p->kind == PLAN_SHADOW) TRY(session_refresh(s));
    return out_get(s, var_ref((uint32_t)v, 0), out, 0, p->bytes);
}

static ampc_status api_read_variable(ampc_session *s, const char *name,
                                     ampc_output *out) {
    ENTER(s);
    return api_leave(s, do_read_variable(s, name, out));
}

static ampc_status write_check(ampc_session *s, const PlanVar *v,
                               const ampc_input *in) {
    char want[160], given[160], order[160];
    shape_text(want, v->dtype, v->rank, v->dim);
    if (v->kind > PLAN_STATE)
        return session_fail(s, AMPC_ERR_ARGUMENT,
                            v->kind == PLAN_HYPER
                                ? "'%.200s': set_hyper sets it"
                                : "'%.200s' is read-only",
                            v->name);
    if (!SIZED(in) || !input_sized(in)) return session_unsized(s, "ampc_input");
    if (input_in_device(in))
        return session_fail(s, AMPC_ERR_ARGUMENT,
                            "'%.200s' is written from the host's memory",
                            v->name);
    bool same = (uint32_t)in->dtype == v->dtype && in->bytes == v->bytes &&
                (in->data || !v->bytes) &&
                (in->rank < 0 || (uint32_t)in->rank == v->rank);
    for (uint32_t i = 0; same && in->rank > 0 && i < v->rank; i++)
        same = in->shape && in->shape[i] == v->dim[i];
    if (same) return AMPC_OK;
    bool known = in->rank > 0 && in->rank <= AMPC_RANK_LIMIT && in->shape;
    const char *got = dtype_name((uint32_t)in->dtype);
    if (known)
        got = shape_text(given, (uint32_t)in->dtype, (uint32_t)in->rank,
                         in->shape);
    return session_fail(
        s, AMPC_ERR_ARGUMENT,
        "variable '%.200s' is %s, %llu bytes: the data given differ: %s, %llu "
        "bytes%s",
        v->name, want, (unsigned long long)v->bytes, got,
        (unsigned long long)in->bytes,
        known ? axes_hint(order, (uint32_t)in->rank, in->shape, v->rank, v->dim,
                          false)
              : "");
}

static ampc_status do_write_variable(ampc_session *s, const char *name,
                                     const ampc_input *in) {
    int i;
    TRY(named_var(s, name, &i));
    const PlanVar *v = &s->m->vars[i];
    TRY(write_check(s, v, in));
    if (!var_in_range(s, (uint32_t)i, in->data))
        return session_fail(s, AMPC_ERR_ARGUMENT,
                            "variable '%.200s' cannot be %g", v->name,
                            scalar_number(v->dtype, in->data));
    s->ranks.random = -1;
    s->stale = true;
    ampc_status status =
        s->backend->put(s, var_ref((uint32_t)i, 0), in->data, v->bytes);
    if (status != AMPC_OK || v->rank != 0) return status;
    if (i == s->known[VAR_MICRO])
        s->micro = (int64_t)scalar_number(v->dtype, in->data);
    if (i == s->known[VAR_BAD_DATA])
        s->bad.count = (int64_t)scalar_number(v->dtype, in->data);
    return status;
}

static ampc_status api_write_variable(ampc_session *s, const char *name,
                                      const ampc_input *in) {
    ENTER(s);
    return api_leave(s, do_write_variable(s, name, in));
}

static ampc_status api_bad_data(ampc_session *s, ampc_bad_data *out) {
    ENTER(s);
    if (!SIZED(out)) return api_leave(s, session_unsized(s, "ampc_bad_data"));
    ampc_bad_data b = s->bad;
    if (!b.input) b.input = "";
    PUT(out, b);
    return api_leave(s, AMPC_OK);
}

static ampc_status api_device(ampc_session *s, ampc_device_info *out) {
    ENTER(s);
    if (!SIZED(out))
        return api_leave(s, session_unsized(s, "ampc_device_info"));
    const AmpcBackend *b = s->backend;
    ampc_device_info d = {.kind = b->kind, .name = b->name ? b->name(s) : ""};
    PUT(out, d);
    return api_leave(s, AMPC_OK);
}

static ampc_status api_memory(ampc_session *s, ampc_memory_info *out) {
    ENTER(s);
    if (!SIZED(out))
        return api_leave(s, session_unsized(s, "ampc_memory_info"));
    ampc_memory_info i = {.size = 0};
    s->backend->memory(s, &i);
    for (uint32_t k = 0; k < s->m->nvar; k++) {
        const PlanVar *v = &s->m->vars[k];
        uint64_t lo, hi;
        shard_range(s, k, &lo, &hi);
        if (v->kind == PLAN_SHADOW)
            i.copies += hi - lo;
        else if (v->kind == PLAN_STATE || v->kind == PLAN_HYPER)
            i.state += hi - lo;
        else if (v->kind != PLAN_GRAD)
            i.parameters += hi - lo;
    }
    i.workspace = i.total - i.parameters - i.copies - i.state - i.gradients -
                  i.activations;
    PUT(out, i);
    return api_leave(s, AMPC_OK);
}

static ampc_status api_nonfinite(ampc_session *s, ampc_nonfinite *out) {
    ENTER(s);
    if (!SIZED(out)) return api_leave(s, session_unsized(s, "ampc_nonfinite"));
    ampc_nonfinite x = s->located.what;
    const char **text[] = {&x.name, &x.op, &x.source, &x.advice};
    for (size_t i = 0; i < sizeof text / sizeof *text; i++)
        if (!*text[i]) *text[i] = "";
    PUT(out, x);
    return api_leave(s, AMPC_OK);
}

static const char *api_notice(const ampc_session *s) {
    return s ? s->notice : "";
}

static ampc_status api_profile(ampc_session *s, ampc_profile_fn fn, void *ctx) {
    ENTER(s);
    s->profile = fn;
    s->profile_ctx = ctx;
    return api_leave(s, AMPC_OK);
}

static ampc_status do_stage(ampc_session *s, const char *name, uint32_t index,
                            void **data) {
    int p = name ? find_program(s->m, name) : -1;
    if (!data) return session_fail(s, AMPC_ERR_ARGUMENT, "data is NULL");
    *data = NULL;
    if (p < 0)
        return session_fail(s, AMPC_ERR_UNSUPPORTED,
                            "this module has no program '%.80s'",
                            name ? name : "");
    if (index >= s->m->programs[p].nin)
        return session_fail(s, AMPC_ERR_ARGUMENT,
                            "program '%.80s' has no input %" PRIu32, name,
                            index);
    return s->backend->stage ? s->backend->stage(s, p, index, data) : AMPC_OK;
}

static ampc_status api_stage(ampc_session *s, const char *program,
                             uint32_t index, void **data) {
    ENTER(s);
    return api_leave(s, do_stage(s, program, index, data));
}

/* Does not ENTER: it is called while the session runs a program. */
static ampc_status api_peek(ampc_session *s, uint64_t offset, void *to,
                            size_t bytes) {
    if (!s) return AMPC_ERR_ARGUMENT;
    if (!s->told)
        return session_fail(
            s, AMPC_ERR_UNSUPPORTED,
            "peek is for a function of profile, while a program "
            "runs on the CPU");
    uint64_t arena = s->plan->runs[s->told - 1].arena;
    if (!to || offset > arena || bytes > arena - offset)
        return session_fail(s, AMPC_ERR_ARGUMENT,
                            "%zu bytes at %llu: the program computes in %llu",
                            bytes, (unsigned long long)offset,
                            (unsigned long long)arena);
    PlanRef from = {.space = PLAN_ARENA, .offset = offset};
    return s->backend->get(s, from, to, bytes);
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
    .notice = api_notice,
    .bad_data = api_bad_data,
    .nonfinite = api_nonfinite,
    .load_weights = api_load_weights,
    .save_weights = api_save_weights,
    .underflow = api_underflow,
    .comm_open = api_comm_open,
    .comm_close = api_comm_close,
    .objective_name = api_objective_name,
    .objective = api_objective,
    .outputs = api_outputs,
    .stage = api_stage,
    .device = api_device,
    .peek = api_peek,
    .memory = api_memory,
    .fit = api_fit,
};

/* A module has one plan, so its table is built once. */
const ampc_api *ampc_module_api(const AmpcModule *m, uint32_t abi) {
    static HostLock lock = HOST_UNLOCKED;
    static ampc_api table;
    if (!m || abi != AMPC_ABI_VERSION) return NULL;
    host_lock(&lock);
    if (table.size == 0) {
        table = api_template;
        table.module = (const ampc_module_t *)(const void *)m;
        module_hold(m);
    }
    host_unlock(&lock);
    return table.module == (const ampc_module_t *)(const void *)m ? &table
                                                                  : NULL;
}
