/* SPDX-License-Identifier: Apache-2.0 */
/* cmd_measure.c: see cmd_measure.h.

   The programs of passes/common/sensitivity.h are compiled for this machine
   and run on a few batches: of --calibrate, or of random numbers. Random
   initial weights are drawn anew for each batch. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "frontend/cli/cmd_audit.h"
#include "frontend/cli/cmd_measure.h"
#include "frontend/cli/measure.h"
#include "passes/common/sensitivity.h"

bool measure_is_own(const char *input) {
    return !strncmp(input, "signs/", 6) || !strncmp(input, "round/", 6);
}

Status measure_fail(const Measure *x, const char *what) {
    return fail(&x->s->diag, (Loc){0}, "%s: %s", what,
                x->r.run.api->error(x->r.run.s));
}

Status measure_no_memory(const Measure *x, size_t bytes) {
    return fail(&x->s->diag, (Loc){0},
                "out of memory: the error budget is measured with %zu bytes",
                bytes);
}

/* ---- one run ------------------------------------------------------------- */

/* A result of the program that ran last. */
static Status read_number(const Measure *x, const char *name, double *v) {
    float f;
    ampc_output out = ampc_out(name, &f, sizeof f, AMPC_DTYPE_F32);
    if (x->r.run.api->read_output(x->r.run.s, name, &out) != AMPC_OK)
        return measure_fail(x, name);
    *v = (double)f;
    return OK;
}

static Status run_program(const Measure *x, const Program *p) {
    const Run *r = &x->r.run;
    size_t n = (size_t)p->nin;
    int64_t valid = r->info.batch ? r->info.batch : 1;
    ampc_eval sums = {.size = sizeof sums};
    ampc_status st = p == &x->slopes
                         ? r->api->evaluate(r->s, p->in, n, valid, &sums)
                         : r->api->predict(r->s, p->in, n, valid, NULL, 0);
    return st == AMPC_OK ? OK : measure_fail(x, "the step");
}

/* A loss near 0 is compared with 1e-6. */
static double size_of_loss(double loss) { return fmax(fabs(loss), 1e-6); }

static Status not_finite(const Measure *x) {
    return fail(&x->s->diag, (Loc){.file = x->m->file},
                x->feed.n
                    ? "--calibrate: loss or gradient are not finite in fp32"
                    : "the error budget is measured on random numbers, and "
                      "loss or gradient are not finite there; --calibrate "
                      "INPUT=FILE gives data");
}

/* ---- the step with some roundings ---------------------------------------- */

static Status run_step(Measure *x, int draw, double *loss) {
    Program *p = &x->step;
    TRY(measure_fill_inputs(x, p, draw));
    TRY(run_program(x, p));
    return read_number(x, "loss", loss);
}

/* Runs a repetition in fp32 and keeps its results if they are finite. */
static Status keep_step(Measure *x, int draw) {
    int64_t n = x->r.count;
    float *ref = x->ref + x->kept * n;
    double loss, norm = 0;
    TRY(run_step(x, draw, &loss));
    for (int i = 0; i < x->r.grads.len; i++)
        TRY(replica_grad(x->s, &x->r, &x->r.grads.data[i], ref));
    for (int64_t i = 0; i < n; i++) norm += (double)ref[i] * (double)ref[i];
    if (!isfinite(loss) || !isfinite(norm)) return OK;
    x->used[x->kept] = draw;
    x->loss[x->kept] = loss;
    x->norm[x->kept++] = norm;
    return OK;
}

/* Room for the step in fp32, for as many repetitions as fit. */
static Status room_for_fp32(Measure *x, int draws, int *most) {
    const int64_t room = INT64_C(1) << 28; /* elements of all gradients
                                              together */
    int64_t n = x->r.count, largest = 0;
    for (int i = 0; i < x->r.grads.len; i++)
        if (x->r.grads.data[i].count > largest)
            largest = x->r.grads.data[i].count;
    *most = draws == LEAST_DRAWS ? 1 : draws; /* 1: of a long step */
    while (*most > 1 && *most * n > room) --*most;
    size_t bytes = (size_t)(n + 1) * sizeof(float) * (size_t)*most;
    x->grad = malloc((size_t)(largest + 1) * sizeof(float));
    x->ref = malloc(bytes);
    x->used = NEW_ARRAY(x->s->arena, int, *most);
    x->loss = NEW_ARRAY(x->s->arena, double, *most);
    x->norm = NEW_ARRAY(x->s->arena, double, *most);
    return x->grad && x->ref ? OK : measure_no_memory(x, bytes);
}

/* ---- the slopes ---------------------------------------------------------- */

/* The squares of loss and gradient. */
static Status run_slopes(Measure *x, int draw, double *size) {
    double loss;
    Program *p = &x->slopes;
    TRY(measure_fill_inputs(x, p, draw));
    TRY(run_program(x, p));
    TRY(read_number(x, "loss", &loss));
    size[ERROR_LOSS] = size_of_loss(loss) * size_of_loss(loss);
    size[ERROR_GRADIENT] = 0;
    return x->s->opt.max_error[ERROR_GRADIENT] > 0
               ? read_number(x, "norm", &size[ERROR_GRADIENT])
               : OK;
}

static Status add_draw(Measure *x, const double *size) {
    char name[40];
    x->draws++;
    for (int i = 0; i < x->sensitivity.of.len; i++)
        for (int k = 0; k < NUM_ERRORS; k++) {
            double alone, both;
            if (!x->sensitivity.of.data[i].measured[k]) continue;
            snprintf(name, sizeof name, "%d/%d", k, i);
            TRY(read_number(x, name, &alone));
            snprintf(name, sizeof name, "%d/%d", NUM_ERRORS + k, i);
            TRY(read_number(x, name, &both));
            if (size[k] <= 0) continue;
            x->sum[k][i] += alone / size[k];
            x->sum[NUM_ERRORS + k][i] += both * both / size[k];
        }
    return OK;
}

/* Both programs run with the same weights, before other weights are drawn. */
static Status run_draws(Measure *x) {
    int draws = measure_all_draws(x), most;
    TRY(room_for_fp32(x, draws, &most));
    for (int d = 0; d < draws; d++) {
        double size[NUM_ERRORS];
        if (x->kept < most) TRY(keep_step(x, d));
        if (!x->kept && !x->feed.n && x->floats == FLOATS_NORMAL) {
            x->floats = FLOATS_UNIT;
            d--;
            continue;
        }
        TRY(run_slopes(x, d, size));
        if (isfinite(size[ERROR_LOSS]) && isfinite(size[ERROR_GRADIENT]))
            TRY(add_draw(x, size));
    }
    return x->kept && x->draws ? OK : not_finite(x);
}

/* ---- the step with roundings --------------------------------------------- */

static Measure *measure_of(const Measures *all, Str objective) {
    for (int i = 0; i < all->len; i++)
        if (all->data[i]->objective == objective) return all->data[i];
    return NULL;
}

static void switch_on(Measure *x, const uint64_t *on, int n) {
    Program *p = &x->step;
    for (int i = 0; i < x->sensitivity.of.len; i++) {
        bool any = false;
        for (int k = 0; k < n && !any; k++)
            any = on[k] == x->sensitivity.of.data[i].key;
        *p->own[p->nmodel + i] = any;
    }
}

/* Adds the squared distance of a gradient of the step that ran last from
   ref. */
static Status add_distance(const Measure *x, const ReplicaGrad *g,
                           const float *ref, double *square) {
    ReplicaGrad alone = {g->name, 0, g->count};
    TRY(replica_grad(x->s, &x->r, &alone, x->grad));
    for (int64_t i = 0; i < g->count; i++) {
        double far = (double)x->grad[i] - (double)ref[g->at + i];
        *square += far * far;
    }
    return OK;
}

static Status simulate(void *ctx, Str objective, const uint64_t *on, int n,
                       double *error) {
    Measure *x = measure_of(ctx, objective);
    ASSERT(x && "every objective that trains was measured");
    int64_t count = x->r.count;
    double sum[NUM_ERRORS] = {0};
    bool down = x->kept && x->weights == x->used[x->kept - 1];
    switch_on(x, on, n);
    x->s->opt.errors->repetitions = x->kept;
    for (int i = 0; i < x->kept; i++) { /* first the weights that are there */
        int d = down ? x->kept - 1 - i : i;
        const float *ref = x->ref + d * count;
        double loss, square = 0;
        TRY(run_step(x, x->used[d], &loss));
        for (int k = 0; k < x->r.grads.len; k++)
            TRY(add_distance(x, &x->r.grads.data[k], ref, &square));
        double far = (loss - x->loss[d]) / size_of_loss(x->loss[d]);
        sum[ERROR_LOSS] += far * far;
        if (x->norm[d] > 0) sum[ERROR_GRADIENT] += square / x->norm[d];
    }
    for (int k = 0; k < NUM_ERRORS; k++) {
        error[k] = sqrt(sum[k] / x->kept);
        if (isnan(error[k])) error[k] = INFINITY;
    }
    return OK;
}

/* ---- results ------------------------------------------------------------- */

/* Errors of elements count as independent, unless their sum is far larger
   than independent errors would give. */
static double mean_square(const Measure *x, int k, int site) { /* exceeded by
    the mean square of n normal random numbers in one case of 60 */
    static const double fars[] = {INFINITY, 5.7, 4.1, 3.4, 3};
    const int most = sizeof fars / sizeof *fars - 1;
    double far = fars[x->draws < most ? x->draws : most];
    double alone = x->sum[k][site] / x->draws;
    double both = x->sum[NUM_ERRORS + k][site] / x->draws;
    if (isnan(alone) || isnan(both)) return INFINITY;
    return both > far * alone ? both : alone;
}

static void add_errors(Measure *x, Errors *e) {
    Arena *a = x->s->arena;
    for (int i = 0; i < x->sensitivity.of.len; i++) {
        const SensitivitySite *s = &x->sensitivity.of.data[i];
        ErrorOf of = {.key = s->key, .count = s->count};
        for (int k = 0; k < NUM_ERRORS; k++) {
            if (s->measured[k]) of.square[k] = mean_square(x, k, i);
            if (isfinite(of.square[k])) x->fp32[k] += of.square[k];
        }
        vec_push(a, &e->of, of);
        of.key = s->name_key;
        vec_push(a, &e->of, of);
    }
}

/* ratio: the rounding error of 16 bits over the error of fp32. */
static Status check_limits(const Measure *x, Errors *e) {
    static const char *const flag[] = {"--max-loss-error",
                                       "--max-gradient-error"};
    const Options *o = &x->s->opt;
    double times = o->precision == PREC_FP16 ? 0x1p13 : 0x1p16;
    for (int k = 0; k < NUM_ERRORS; k++) {
        double fp32 = sqrt(x->fp32[k]) / times;
        if (k == ERROR_LOSS) fp32 = fmax(fp32, 0x1p-25);
        if (fp32 > e->fp32[k]) e->fp32[k] = fp32;
        if (o->max_error[k] == 0 || o->max_error[k] >= fp32 * error_margin[k])
            continue;
        return fail(&x->s->diag, (Loc){0},
                    "%s %.1e: fp32 itself is about %.1e from the exact "
                    "%s: give at least %.1e",
                    flag[k], o->max_error[k], fp32,
                    k == ERROR_LOSS ? "loss" : "gradient",
                    fp32 * error_margin[k]);
    }
    return OK;
}

static Status make_programs(Measure *x) {
    Session *s = x->s;
    const Graph *g = module_program(x->m, PROGRAM_MICRO, x->objective);
    Module aside;
    PassCtx cx = {arena_new(), &s->diag, &s->opt};
    graph_clone_aside(g, &aside, s->arena);
    Status st = sensitivity_make(&aside, &cx, &x->sensitivity);
    arena_free(cx.scratch);
    TRY(st);
    x->slopes.name = "eval";
    x->step.name = "predict";
    x->r.unfused = true;
    TRY(replica_load(s, &aside, "inline", 0, &x->r));
    return replica_grads(s, &x->r);
}

static Status measure_steps(Measure *x, Errors *e) {
    measure_ranges(x, module_program(x->m, PROGRAM_MICRO, x->objective));
    TRY(measure_room(x));
    TRY(make_programs(x));
    TRY(measure_open_data(x));
    TRY(measure_open_inputs(x, &x->step));
    TRY(measure_open_inputs(x, &x->slopes));
    for (int k = 0; k < 2 * NUM_ERRORS; k++)
        x->sum[k] = NEW_ARRAY(x->s->arena, double, x->sensitivity.of.len + 1);
    TRY(run_draws(x));
    add_errors(x, e);
    return check_limits(x, e);
}

static void close_program(Program *p) {
    for (int i = 0; p->own && i < p->nin; i++) free(p->own[i]);
}

static void close_all(Session *s) {
    Errors *e = s->opt.errors;
    Measures *all = e ? e->ctx : NULL;
    for (int i = 0; all && i < all->len; i++) {
        Measure *x = all->data[i];
        feeds_free(&x->feed);
        close_program(&x->slopes);
        close_program(&x->step);
        replica_close(&x->r);
        free(x->ref);
        free(x->grad);
        free(x->weight);
    }
    if (e) e->ctx = NULL;
}

/* Multiply-adds of the steps, and the batch size. */
static double measure_work_of(const Module *m, int64_t *batch) {
    double work = 0;
    for (int i = 0; i < m->graphs.len; i++) {
        const Graph *g = m->graphs.data[i];
        if (g->program != PROGRAM_MICRO || *g->size) continue;
        for (int k = 0; k < g->order.len; k++)
            work += product_work(g, node_at(g, k));
        for (int k = g->inputs.len - 1; k >= 0; k--) {
            const Type *t = value_type(g, g->inputs.data[k]);
            if (t->rank) *batch = t->dim[0];
        }
    }
    return work;
}

/* The model for a smaller batch, up to pass place, if the step is long. */
static Status smaller(Session *s, const char *model, Module **m) {
    const double most = 2e9;
    enum { LEAST = 3 };
    int64_t batch = 0;
    double work = measure_work_of(*m, &batch);
    int64_t n = work > most ? (int64_t)((double)batch * most / work) : batch;
    if (n < LEAST) n = LEAST;
    if (n >= batch) return OK;
    Module *other = load_batch(s, model, n);
    if (!other) return OK;
    Diag d = {0};
    Status st = run_until(other, &d, &s->opt, "place", false);
    sb_free(&d.text);
    if (st != OK) return OK;
    *m = other;
    s->opt.errors->part = n;
    return OK;
}

/* Each file must be for an input that some objective reads. */
static Status check_inputs(Session *s, const Module *m) {
    for (int i = 0; i < s->opt.calibrate.len; i++) {
        const char *spec = s->opt.calibrate.data[i];
        size_t n = strcspn(spec, "=");
        bool known = false;
        for (int k = 0; k < m->graphs.len; k++) {
            const Graph *g = m->graphs.data[k];
            if (g->program != PROGRAM_MICRO) continue;
            for (int j = 0; j < g->inputs.len; j++) {
                Str name = value_get(g, g->inputs.data[j])->name;
                known |= strlen(name) == n && !strncmp(name, spec, n);
            }
        }
        if (known) continue;
        return fail(&s->diag, (Loc){.file = m->file},
                    "--calibrate %s: training has no input '%.*s'", spec,
                    (int)n, spec);
    }
    return OK;
}

/* Measures the roundings of each objective of m before pass place runs:
   s->opt.errors. */
static Status measure_errors(Session *s, const char *model, Module *m) {
    Errors *e = NEW(s->arena, Errors);
    Measures *all = NEW(s->arena, Measures);
    e->ctx = all;
    e->simulate = simulate;
    s->opt.errors = e;
    TRY(check_inputs(s, m));
    TRY(smaller(s, model, &m));
    for (int i = 0; i < s->opt.objectives.len; i++) {
        Measure *x = NEW(s->arena, Measure);
        *x = (Measure){
            .s = s, .m = m, .objective = s->opt.objectives.data[i].name};
        if (!module_program(m, PROGRAM_MICRO, x->objective)) continue;
        vec_push(s->arena, all, x);
        TRY(measure_steps(x, e));
    }
    errors_sort(e);
    return OK;
}

/* Refuses options that would have no effect. */
static Status check_budget(Session *s, const Module *m) {
    const Options *o = &s->opt;
    if (m->rule)
        return fail(&s->diag, (Loc){.file = m->file},
                    "an error budget (--max-loss-error, --max-gradient-error) "
                    "needs --placement exact, and no level O2 or O3");
    for (int i = 0; i < m->graphs.len; i++)
        if (m->graphs.data[i]->program == PROGRAM_MICRO) return OK;
    return fail(&s->diag, (Loc){.file = m->file},
                o->loss_given
                    ? "an error budget limits the error of a loss, and "
                      "--loss leaves none that trains"
                    : "an error budget limits the error of a loss: the model "
                      "has none that trains");
}

Status place_measured(Session *s, const char *model, Module *m, bool keep) {
    const Options *o = &s->opt;
    bool limits =
        o->max_error[ERROR_LOSS] > 0 || o->max_error[ERROR_GRADIENT] > 0;
    if (o->calibrate.len && !limits) {
        fail(&s->diag, (Loc){0},
             "--calibrate: nothing is measured without --max-loss-error or "
             "--max-gradient-error");
        return ERR_USAGE;
    }
    if (o->keep_f8 && o->max_error[ERROR_GRADIENT] > 0) {
        fail(&s->diag, (Loc){0},
             "--max-gradient-error does not count what --keep f8 rounds: leave "
             "out one of the two");
        return ERR_USAGE;
    }
    if (o->gradient_dtype != DT_F32 && o->max_error[ERROR_GRADIENT] > 0) {
        fail(&s->diag, (Loc){0},
             "--max-gradient-error does not count what --gradient-dtype rounds:"
             " leave out one of the two");
        return ERR_USAGE;
    }
    if (o->f8_products && limits) {
        fail(&s->diag, (Loc){0},
             "error budgets do not count what --precision f8 rounds: leave out "
             "--max-loss-error and --max-gradient-error, or use bf16");
        return ERR_USAGE;
    }
    if (!options_budget(o)) return OK;
    TRY(run_until(m, &s->diag, o, "place", keep));
    TRY(check_budget(s, m));
    Status st = measure_errors(s, model, m);
    if (st == OK) st = run_until(m, &s->diag, o, "remat", keep);
    close_all(s);
    return st;
}
