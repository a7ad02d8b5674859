/* SPDX-License-Identifier: Apache-2.0 */
/* run_watch.c: what a long run measures beside its loss: steps that spike,
   with their samples (--spikes); update-to-weight ratios (--update-ratios);
   the gradient noise scale (--noise-scale).

   Noise scale of McCandlish et al. 2018, "An Empirical Model of Large-Batch
   Training", appendix A.1: the gradient of `small` samples has a larger squared
   norm than that of `big` samples. From both follow the squared norm of the
   true gradient and the trace of the covariance of a sample's gradient:
       |G|^2 = (big |G_big|^2 - small |G_small|^2) / (big - small)
       trace = (|G_small|^2 - |G_big|^2) / (1 / small - 1 / big)
   The noise scale is the ratio of their moving averages. G_small is that of the
   step's first micro-batch on this rank, G_big that of the whole step. */
#include "frontend/run/run_cmd.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/program/dtype.h"

enum {
    WINDOW = 100, /* steps before, of which the scatter is measured */
    LATELY = 20,  /* the last of them: their mean is the usual value, and with
                     fewer no finite number is a spike */
    SAMPLES = 8,  /* that a note names */
    NOTES = 10,   /* of spikes, in one run */
    LINES = 200   /* of spikes, on the page */
};
#define LEAST_RISE 0.1 /* of the usual value: rounding errors are no spikes */
#define KEEP       0.9 /* of the moving averages of the noise scale */

typedef struct Recent {
    double x[WINDOW], rise[WINDOW]; /* above the usual value of its time */
    int64_t n;
} Recent;

typedef struct Watched {
    ampc_variable_info v;
    char *before; /* parameters, with --update-ratios */
    double ratio; /* of the last step that was measured */
} Watched;

struct RunWatch {
    Recent loss, norm;
    int64_t step;   /* the last one that was tried */
    int64_t spikes; /* of this run */
    StrBuf lines;   /* a line for each spike */
    Watched *of;    /* n parameters, then ngrad sums of gradients */
    int n, ngrad;
    char *now;            /* numbers of the largest of them */
    int64_t ratios_of;    /* step of the ratios; 0: none */
    double small;         /* |G_small|^2 of this step */
    double trace, square; /* moving averages, not divided by `weight` */
    double weight;
};

/* ---- spikes -------------------------------------------------------------- */

/* The usual value, and the scatter. A loss that falls scatters no more: counted
   are differences from step to step, or what has risen above the usual value,
   as a norm that grows does. */
static void recent_moments(const Recent *w, double *usual, double *scatter) {
    int n = w->n < WINDOW ? (int)w->n : WINDOW, late = n < LATELY ? n : LATELY;
    double sum = 0, steps = 0, rises = 0;
    for (int i = 0; i < n; i++) {
        int64_t at = w->n - 1 - i;
        double x = w->x[at % WINDOW], rise = w->rise[at % WINDOW];
        double step = i + 1 < n ? x - w->x[(at - 1) % WINDOW] : 0;
        if (i < late) sum += x;
        steps += step * step;
        rises += rise * rise;
    }
    *usual = n ? sum / late : NAN;
    *scatter = n > 1 ? sqrt(fmax(steps / (2 * (n - 1)), rises / n)) : 0;
}

/* Takes the value of a step; true if it spikes. A spike counts as the limit
   that it exceeds, so that it hides no other one, and a new level becomes the
   usual one. `part` of a batch scatters more, by 1 / sqrt(part), a norm that is
   mostly noise as a whole, and is not among the values of whole batches. */
static bool is_spike(Recent *w, double x, double part, double deviations,
                     double *usual) {
    double scatter, most = INFINITY;
    recent_moments(w, usual, &scatter);
    if (!isfinite(x)) return true;
    if (w->n >= LATELY) {
        most = *usual + fmax(deviations * scatter, LEAST_RISE * fabs(*usual));
        most += (1 / sqrt(part) - 1) * fabs(most);
    }
    if (part == 1) {
        int64_t at = w->n % WINDOW;
        w->x[at] = fmin(x, most);
        w->rise[at] = w->n ? fmax(w->x[at] - *usual, 0) : 0;
        w->n++;
    }
    return x > most;
}

static void watch_put_samples(const Run *r, int64_t n, StrBuf *line,
                              StrBuf *json) {
    for (int64_t i = 0; i < n; i++) {
        int64_t at = r->at.done + i;
        long long sample = r->order ? r->order[at] : at;
        sb_printf(json, "%s%lld", i ? "," : "", sample);
        if (i < SAMPLES) sb_printf(line, "%s%lld", i ? ", " : "", sample);
    }
    if (n > SAMPLES) sb_printf(line, " and %lld more", (long long)n - SAMPLES);
}

/* The files that have samples. */
static void put_batch_files(const Run *r, StrBuf *line, StrBuf *json) {
    const char *before = "";
    for (int i = 0; i < r->train.n; i++) {
        const Feed *f = &r->train.feed[i];
        if (f->per <= 0) continue;
        sb_printf(line, "%s%s", before, f->file);
        sb_puts(json, before);
        sb_put_json_string(json, f->file);
        before = ", ";
    }
}

static void tell_spike(Run *r, const ampc_metrics *m, int64_t samples,
                       const char *what, double value, double usual) {
    struct RunWatch *w = r->watch;
    StrBuf line = {0}, json = {0};
    sb_printf(&line, "step %lld spikes: %s %.4g", (long long)m->tried, what,
              isnan(value) ? fabs(value) : value); /* a NaN has a sign */
    if (isfinite(usual)) sb_printf(&line, ", usually %.4g", usual);
    sb_printf(&line, "; epoch %lld, samples ", (long long)r->at.epoch + 1);
    sb_printf(&json, "{\"spike\":\"%s\",\"step\":%lld,\"value\":", what,
              (long long)m->tried);
    log_number(&json, value);
    sb_puts(&json, ",\"usual\":");
    log_number(&json, usual);
    sb_printf(&json, ",\"epoch\":%lld,\"samples\":[",
              (long long)r->at.epoch + 1);
    watch_put_samples(r, samples, &line, &json);
    sb_puts(&line, " of ");
    sb_puts(&json, "],\"files\":[");
    put_batch_files(r, &line, &json);
    sb_puts(&json, "]}");
    log_line(r, &json);
    if (w->spikes < NOTES) log_note(r, "%s", line.data);
    if (++w->spikes == NOTES)
        log_note(r, "further spikes: see the lines \"spike\" of --log");
    if (w->spikes <= LINES) sb_printf(&w->lines, "%s\n", line.data);
    sb_free(&line);
}

/* Gradients that overflow are the search for a loss scale. */
static void look_for_spike(Run *r, const ampc_metrics *m, int64_t samples) {
    struct RunWatch *w = r->watch;
    int64_t all = run_step_samples(r);
    double part = all > 0 ? (double)samples / (double)all : 1;
    double usual, most = r->opt->spikes;
    if (!(most > 0)) return;
    if (is_spike(&w->loss, m->loss, part, most, &usual))
        tell_spike(r, m, samples, "loss", m->loss, usual);
    bool search = !isfinite(m->grad_norm) && m->scale != 1;
    if (isfinite(m->loss) && !search &&
        is_spike(&w->norm, m->grad_norm, part, most, &usual))
        tell_spike(r, m, samples, "grad_norm", m->grad_norm, usual);
}

/* ---- numbers of variables ------------------------------------------------ */

static Status watch_read_numbers(Run *r, const ampc_variable_info *v, void *to,
                                 const char *option) {
    ampc_output out = {.size = sizeof out,
                       .name = v->name,
                       .data = to,
                       .bytes = v->bytes,
                       .dtype = v->dtype};
    if (r->api->read_variable(r->s, v->name, &out) == AMPC_OK) return OK;
    return run_api_fail(r, option);
}

/* Sum of the squares of x, or of x - from. */
static double watch_squares(const ampc_variable_info *v, const char *x,
                            const char *from) {
    uint32_t dtype = (uint32_t)v->dtype;
    size_t each = dtype_bytes(dtype);
    double sum = 0;
    for (size_t at = 0; at < v->bytes; at += each) {
        double d = float_at(dtype, x + at);
        if (from) d -= float_at(dtype, from + at);
        sum += d * d;
    }
    return sum;
}

static bool is_due(const struct RunWatch *w, int64_t every) {
    return every && (w->step + 1) % every == 0;
}

/* ---- update-to-weight ratios --------------------------------------------- */

static Status keep_parameters(Run *r) {
    struct RunWatch *w = r->watch;
    if (!is_due(w, r->opt->update_ratios)) return OK;
    for (int i = 0; i < w->n; i++)
        TRY(watch_read_numbers(r, &w->of[i].v, w->of[i].before,
                               "--update-ratios"));
    return OK;
}

static double ratio_of(double change, double weight) {
    return weight > 0 ? sqrt(change / weight) : NAN;
}

static void log_ratios(Run *r, double all) {
    const struct RunWatch *w = r->watch;
    StrBuf sb = {0};
    double least = INFINITY, most = 0;
    sb_printf(&sb, "{\"step\":%lld,\"update_ratio\":", (long long)w->ratios_of);
    log_number(&sb, all);
    sb_puts(&sb, ",\"update_ratios\":{");
    for (int i = 0; i < w->n; i++) {
        sb_puts(&sb, i ? "," : "");
        sb_put_json_string(&sb, w->of[i].v.name);
        sb_puts(&sb, ":");
        log_number(&sb, w->of[i].ratio);
        least = fmin(least, w->of[i].ratio);
        most = fmax(most, w->of[i].ratio);
    }
    sb_puts(&sb, "}}");
    log_line(r, &sb);
    const RunScalar scalars[] = {{"train/update_ratio", all},
                                 {"train/update_ratio_least", least},
                                 {"train/update_ratio_most", most}};
    log_scalars(r, w->ratios_of, scalars, 3);
}

static Status measure_ratios(Run *r) {
    struct RunWatch *w = r->watch;
    double change = 0, weight = 0;
    if (!is_due(w, r->opt->update_ratios)) return OK;
    for (int i = 0; i < w->n; i++) {
        Watched *x = &w->of[i];
        TRY(watch_read_numbers(r, &x->v, w->now, "--update-ratios"));
        double moved = watch_squares(&x->v, w->now, x->before);
        double size = watch_squares(&x->v, x->before, NULL);
        x->ratio = ratio_of(moved, size);
        change += moved;
        weight += size;
    }
    w->ratios_of = w->step + 1;
    log_ratios(r, ratio_of(change, weight));
    return OK;
}

/* ---- the noise scale ----------------------------------------------------- */

/* Sums of gradients are multiplied by the loss scale and by what the
   micro-batch counts. */
static Status watch_divisor(Run *r, double *by) {
    static const char shares[] = "ampc.shares";
    ampc_scaler sc = {.size = sizeof sc};
    ampc_variable_info v = {.size = sizeof v};
    float count = 1;
    if (r->api->scaler(r->s, &sc) != AMPC_OK)
        return run_api_fail(r, "--noise-scale");
    for (uint32_t i = 0; i < r->info.nvariable; i++)
        if (r->api->variable(r->api->module, i, &v) == AMPC_OK &&
            !strcmp(v.name, shares))
            TRY(watch_read_numbers(r, &v, &count, "--noise-scale"));
    *by = sc.scale * count;
    return OK;
}

Status watch_micro(Run *r, int64_t micro) {
    struct RunWatch *w = r->watch;
    double by, sum = 0;
    if (micro || !is_due(w, r->opt->noise_scale)) return OK;
    TRY(watch_divisor(r, &by));
    for (int i = w->n; i < w->n + w->ngrad; i++) {
        TRY(watch_read_numbers(r, &w->of[i].v, w->now, "--noise-scale"));
        sum += watch_squares(&w->of[i].v, w->now, NULL);
    }
    w->small = sum / (by * by);
    return OK;
}

static void measure_noise(Run *r, const ampc_metrics *m, int64_t samples) {
    struct RunWatch *w = r->watch;
    double small = (double)r->info.batch, big = (double)samples;
    double norm = m->grad_norm * m->grad_norm;
    StrBuf sb = {0};
    if (!is_due(w, r->opt->noise_scale) || !(big > small) ||
        !isfinite(norm + w->small))
        return;
    double square = (big * norm - small * w->small) / (big - small);
    double trace = (w->small - norm) / (1 / small - 1 / big);
    w->square = KEEP * w->square + (1 - KEEP) * square;
    w->trace = KEEP * w->trace + (1 - KEEP) * trace;
    w->weight = KEEP * w->weight + (1 - KEEP);
    double scale = w->square > 0 ? w->trace / w->square : NAN;
    sb_printf(&sb, "{\"step\":%lld,\"noise_scale\":", (long long)m->tried);
    log_number(&sb, scale);
    sb_puts(&sb, ",\"gradient_squared\":");
    log_number(&sb, w->square / w->weight);
    sb_puts(&sb, ",\"gradient_variance\":");
    log_number(&sb, w->trace / w->weight);
    sb_puts(&sb, "}");
    log_line(r, &sb);
    log_scalars(r, m->tried, &(RunScalar){"train/noise_scale", scale}, 1);
}

/* ---- order of work ------------------------------------------------------- */

static bool of_kind(const ampc_variable_info *v, int32_t kind) {
    return v->kind == kind && v->bytes && is_float_dtype((uint32_t)v->dtype);
}

/* Lists the float variables of a kind; returns their number. */
static int watch_list_variables(Run *r, int32_t kind, Watched *to,
                                size_t *most) {
    int n = 0;
    for (uint32_t i = 0; i < r->info.nvariable; i++) {
        ampc_variable_info v = {.size = sizeof v};
        if (r->api->variable(r->api->module, i, &v) != AMPC_OK ||
            !of_kind(&v, kind))
            continue;
        if (v.bytes > *most) *most = v.bytes;
        to[n++].v = v;
    }
    return n;
}

static Status watch_no_memory(Run *r) {
    return fail(&r->diag, (Loc){0}, "out of memory");
}

static Status open_variables(Run *r) {
    struct RunWatch *w = r->watch;
    const RunOptions *o = r->opt;
    size_t most = 0;
    w->of = calloc(2 * (size_t)r->info.nvariable + 1, sizeof *w->of);
    if (!w->of) return watch_no_memory(r);
    if (o->update_ratios)
        w->n = watch_list_variables(r, AMPC_KIND_PARAMETER, w->of, &most);
    if (o->noise_scale)
        w->ngrad =
            watch_list_variables(r, AMPC_KIND_GRADIENT, w->of + w->n, &most);
    w->now = malloc(most + 1);
    for (int i = 0; i < w->n; i++)
        if (!(w->of[i].before = malloc(w->of[i].v.bytes)))
            return watch_no_memory(r);
    return w->now ? OK : watch_no_memory(r);
}

static Status check_noise(Run *r) {
    if (!r->opt->noise_scale) return OK;
    if (r->nother)
        return fail(&r->diag, (Loc){.file = r->opt->module},
                    "--noise-scale: the module has several objectives");
    if (r->info.accumulate > 1) return OK;
    return fail(
        &r->diag, (Loc){.file = r->opt->module},
        "--noise-scale compares the gradient of a micro-batch with that "
        "of a step: compile with --accumulate 2 or more");
}

Status watch_open(Run *r) {
    ampc_scaler sc = {.size = sizeof sc};
    TRY(check_noise(r));
    r->watch = calloc(1, sizeof *r->watch);
    if (!r->watch) return watch_no_memory(r);
    if (r->api->scaler(r->s, &sc) != AMPC_OK) return run_api_fail(r, "step");
    r->watch->step = sc.tried;
    return open_variables(r);
}

Status watch_before(Run *r) { return keep_parameters(r); }

Status watch_after(Run *r, const ampc_metrics *m, int64_t samples) {
    look_for_spike(r, m, samples);
    TRY(measure_ratios(r));
    measure_noise(r, m, samples);
    r->watch->step++;
    return OK;
}

void watch_text(const Run *r, StrBuf *sb) {
    const struct RunWatch *w = r->watch;
    if (!w) return;
    if (w->lines.len) sb_printf(sb, "\n%s", w->lines.data);
    if (!w->ratios_of) return;
    sb_printf(sb, "\nupdate / weight in step %lld\n", (long long)w->ratios_of);
    for (int i = 0; i < w->n; i++)
        sb_printf(sb, "%10.3g  %s\n", w->of[i].ratio, w->of[i].v.name);
}

void watch_close(Run *r) {
    struct RunWatch *w = r->watch;
    for (int i = 0; w && i < w->n; i++) free(w->of[i].before);
    if (!w) return;
    sb_free(&w->lines);
    free(w->of);
    free(w->now);
    free(w);
    r->watch = NULL;
}
