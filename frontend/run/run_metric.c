/* SPDX-License-Identifier: Apache-2.0 */
/* run_metric.c: the metrics of --metric, measured while r->eval is evaluated.
   Outputs and labels are read in the module's own form, so that any loss is
   allowed. */
#include "frontend/run/run_cmd.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/base/json.h"

typedef struct One {
    Metric m;
    void *out;
    const ampc_input *labels, *mask; /* among r->eval.in */
    double last;
    char tag[80];
} One;

typedef struct RunMetrics {
    One one[RUN_MAX_LIST];
    int n, best; /* best: index of the metric of --best-by, or -1 */
} RunMetrics;

/* ---- options ------------------------------------------------------------- */

static Status usage(Diag *d, const char *text) {
    fail(d, (Loc){0}, "%s (see ampc run --help)", text);
    return ERR_USAGE;
}

Status metric_options(Diag *d, const RunOptions *o) {
    Metric m;
    bool found = false;
    for (int i = 0; i < o->metric.n; i++) {
        TRY(metric_read(d, o->metric.at[i], &m));
        found |= o->best_by && !strcmp(o->best_by, m.label);
    }
    if (o->metric.n && !o->eval && !o->eval_feed.n)
        return usage(d,
                     "--metric needs data to evaluate: --eval-feed or --eval");
    if (!o->best_by || found) return OK;
    fail(d, (Loc){0}, "--best-by '%s' names none of the --metric options",
         o->best_by);
    return ERR_USAGE;
}

/* ---- outputs and labels -------------------------------------------------- */

/* The output of that name; "": the only floating-point output. */
static Status find_output(Run *r, const Metric *m, ampc_tensor_info *found) {
    StrBuf names = {0};
    int n = 0, seen = 0;
    ampc_tensor_info t = {.size = sizeof t};
    for (uint32_t i = 0; r->api->output(r->api->module, feed_program(&r->eval),
                                        i, &t) == AMPC_OK;
         i++) {
        if (!strncmp(t.name, "ampc.", 5)) continue;
        if (sb_put_next(&names, seen++)) sb_put_escaped(&names, t.name);
        if (*m->output ? strcmp(m->output, t.name)
                       : t.dtype < AMPC_DTYPE_F16 || !t.rank)
            continue;
        *found = t;
        n++;
    }
    sb_put_more(&names, seen);
    if (n != 1)
        fail(&r->diag, (Loc){0}, "--metric %s: %s; the model's outputs: %s",
             m->label,
             *m->output ? "the model lacks this output"
                        : "say which output, NAME:OUTPUT",
             names.data ? names.data : "none");
    sb_free(&names);
    return n == 1 ? OK : ERR_USER;
}

static int metrics_find_input(const Run *r, const char *name) {
    for (int i = 0; i < r->eval.n; i++)
        if (!strcmp(r->eval.feed[i].want.name, name)) return i;
    return -1;
}

/* target=NAME, else target:OUTPUT, else target. */
static int find_labels(const Run *r, const Metric *m, const char *output) {
    if (*m->target) return metrics_find_input(r, m->target);
    int at = metrics_find_input(r, internf("target:%s", output));
    return at >= 0 ? at : metrics_find_input(r, "target");
}

static Status no_input(Run *r, const Metric *m, const char *name) {
    StrBuf names = {0};
    for (int i = 0; i < r->eval.n; i++)
        if (sb_put_next(&names, i))
            sb_put_escaped(&names, r->eval.feed[i].want.name);
    sb_put_more(&names, r->eval.n);
    fail(&r->diag, (Loc){0},
         "--metric %s: no input is called '%s'; those of an evaluation: %s",
         m->label, name, names.data ? names.data : "none");
    sb_free(&names);
    return ERR_USER;
}

/* What the only output is where the loss says so: losses that take the softmax
   or the sigmoid themselves (nll: the softmax of logarithms is they again). */
static MetricScores scores_of_loss(const Run *r) {
    static const struct {
        const char *loss;
        MetricScores scores;
    } rows[] = {
        {"cross_entropy", SCORES_LOGITS}, {"soft_cross_entropy", SCORES_LOGITS},
        {"nll", SCORES_LOGITS},           {"focal", SCORES_LOGITS},
        {"sigmoid_focal", SCORES_LOGITS}, {"bce_with_logits", SCORES_LOGITS},
        {"bce", SCORES_PROBABILITIES}};
    JsonSpan all, options, loss;
    char text[200];
    const char *info = r->info.info;
    if (!info || !json_parse(info, strlen(info), &all) ||
        !json_get(all, "options", &options) ||
        !json_get(options, "loss", &loss) ||
        json_text(loss, text, sizeof text) < 0)
        return SCORES_PRESET;
    text[strcspn(text, ",")] = 0; /* without keys */
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        if (!strcmp(text, rows[i].loss)) return rows[i].scores;
    return SCORES_PRESET;
}

static Status open_one(Run *r, const char *text, One *one) {
    ampc_tensor_info out = {.size = sizeof out};
    Metric *m = &one->m;
    TRY(metric_read(&r->diag, text, m));
    snprintf(one->tag, sizeof one->tag, "metric/%s", m->label);
    TRY(find_output(r, m, &out));
    if (m->scores == SCORES_PRESET && !*m->output && !*m->target)
        m->scores = scores_of_loss(r);
    int at = find_labels(r, m, out.name);
    if (at < 0) return no_input(r, m, *m->target ? m->target : "target");
    int mask = *m->mask ? metrics_find_input(r, m->mask) : -1;
    if (*m->mask && mask < 0) return no_input(r, m, m->mask);
    one->labels = &r->eval.in[at];
    one->mask = mask < 0 ? NULL : &r->eval.in[mask];
    one->out = malloc(out.bytes ? out.bytes : 1);
    if (!one->out) return fail(&r->diag, (Loc){0}, "out of memory");
    return metric_fit(&r->diag, m, &out, &r->eval.feed[at].want,
                      mask < 0 ? NULL : &r->eval.feed[mask].want, r->eval.batch,
                      r->eval.samples);
}

Status metrics_open(Run *r) {
    const RunOptions *o = r->opt;
    if (!o->metric.n) return OK;
    RunMetrics *all = r->metrics = calloc(1, sizeof *all);
    if (!all) return fail(&r->diag, (Loc){0}, "out of memory");
    all->best = -1;
    for (int i = 0; i < o->metric.n; i++) {
        all->n++;
        TRY(open_one(r, o->metric.at[i], &all->one[i]));
        for (int k = 0; k < i; k++)
            if (!strcmp(all->one[k].m.label, all->one[i].m.label))
                return fail(&r->diag, (Loc){0}, "--metric %s is given twice",
                            all->one[i].m.label);
        if (o->best_by && !strcmp(o->best_by, all->one[i].m.label))
            all->best = i;
    }
    return OK;
}

void metrics_close(Run *r) {
    for (int i = 0; r->metrics && i < r->metrics->n; i++) {
        metric_free(&r->metrics->one[i].m);
        free(r->metrics->one[i].out);
    }
    free(r->metrics);
    r->metrics = NULL;
}

/* ---- an evaluation ------------------------------------------------------- */

void metrics_clear(Run *r) {
    for (int i = 0; r->metrics && i < r->metrics->n; i++)
        metric_clear(&r->metrics->one[i].m);
}

Status metrics_batch(Run *r, int64_t first, int64_t n) {
    for (int i = 0; r->metrics && i < r->metrics->n; i++) {
        One *one = &r->metrics->one[i];
        Metric *m = &one->m;
        ampc_output out = ampc_out(m->out.name, one->out, m->out.bytes,
                                   (ampc_dtype)m->out.dtype);
        if (r->api->read_output(r->s, m->out.name, &out) != AMPC_OK)
            return run_api_fail(r, m->out.name);
        TRY(metric_add(&r->diag, m, first, n, one->out, one->labels->data,
                       one->mask ? one->mask->data : NULL));
    }
    return OK;
}

static Status sum_one(Run *r, Metric *m) {
    TRY(ranks_sum(r, m->count, (size_t)m->ncount, "--metric"));
    TRY(ranks_sum(r, m->part, (size_t)(2 * m->nbatch), "--metric"));
    return m->nslot
               ? ranks_sum(r, m->slot, (size_t)(m->nslot * m->wide), "--metric")
               : OK;
}

Status metrics_end(Run *r, bool sum) {
    for (int i = 0; r->metrics && i < r->metrics->n; i++) {
        One *one = &r->metrics->one[i];
        if (sum) TRY(sum_one(r, &one->m));
        TRY(metric_value(&r->diag, &one->m, &one->last));
        if (isnan(one->last))
            log_note(r,
                     "%s has no value: a class without samples, or numbers "
                     "that are not finite",
                     one->m.label);
    }
    return OK;
}

const char *metric_label(const Run *r, int i) {
    return r->metrics && i < r->metrics->n ? r->metrics->one[i].m.label : NULL;
}

const char *metric_tag(const Run *r, int i) { return r->metrics->one[i].tag; }

double metric_last(const Run *r, int i) { return r->metrics->one[i].last; }

bool metric_told(const Run *r, int i) {
    return isfinite(r->log.accuracy) && !strcmp(metric_label(r, i), "accuracy");
}

double metrics_best(const Run *r, double loss, bool *higher) {
    *higher = false;
    if (!r->metrics || r->metrics->best < 0) return loss;
    const One *one = &r->metrics->one[r->metrics->best];
    *higher = metric_higher_is_better(&one->m);
    return *higher ? -one->last : one->last;
}
