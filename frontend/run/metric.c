/* SPDX-License-Identifier: Apache-2.0 */
/* metric.c: see metric.h: a metric's text, its shapes, its batches. */
#define _POSIX_C_SOURCE 200809L
#include "frontend/run/metric.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "frontend/data/feed.h"
#include "ir/base/near.h"

bool metric_higher_is_better(const Metric *m) { return m->kind->higher; }

/* ---- its text ------------------------------------------------------------ */

void metric_names(StrBuf *sb) {
    for (int i = 0; metric_kinds[i].name; i++)
        sb_printf(sb, "%s%s", i ? ", " : "", metric_kinds[i].name);
}

static const MetricKind *metric_find_kind(const char *name, int64_t *top) {
    char *end;
    *top = !strncmp(name, "top", 3) ? strtoll(name + 3, &end, 10) : 0;
    for (int i = 0; metric_kinds[i].name; i++)
        if (!strcmp(metric_kinds[i].name, *top > 0 && !*end ? "topK" : name))
            return *top > 0 || !metric_kinds[i].best ? &metric_kinds[i] : NULL;
    return NULL;
}

static Status no_kind(Diag *d, const char *name) {
    StrBuf all = {0};
    char text[NEAR_TEXT];
    Near near = near_to(name);
    for (int i = 0; metric_kinds[i].name; i++)
        near_offer(&near, metric_kinds[i].name);
    metric_names(&all);
    fail(d, (Loc){0},
         "--metric: unknown metric '%s'; the metrics are %s (K of topK is a "
         "number: top5)%s",
         name, all.data, near_text(&near, text));
    sb_free(&all);
    return ERR_USAGE;
}

static bool take_word(const char *value, const char *const *words, int n,
                      int *to) {
    for (int i = 0; i < n; i++)
        if (!strcmp(value, words[i])) *to = i + 1;
    return *to > 0;
}

static bool take_number(const char *value, int64_t *to) {
    char *end;
    *to = strtoll(value, &end, 10);
    return end != value && !*end;
}

static bool metric_take_name(const char *value, char to[96]) {
    snprintf(to, 96, "%s", value);
    return *value && strlen(value) < 96;
}

static bool take_axis(const char *value, int *axis) {
    int64_t n = 0;
    if (!strcmp(value, "none")) {
        *axis = AXIS_NONE;
        return true;
    }
    bool ok = take_number(value, &n) && n >= 1 && n < AMPC_RANK_LIMIT;
    *axis = (int)n;
    return ok;
}

/* One KEY=VALUE. */
static bool metric_take_key(Metric *m, const char *key, const char *value) {
    static const char *const averages[] = {"binary", "macro", "micro",
                                           "weighted"};
    static const char *const scores[] = {"logits", "probabilities"};
    int word = 0;
    if (!strcmp(key, "target")) return metric_take_name(value, m->target);
    if (!strcmp(key, "mask")) return metric_take_name(value, m->mask);
    if (!strcmp(key, "ignore")) return take_number(value, &m->ignore);
    if (!strcmp(key, "axis")) return take_axis(value, &m->axis);
    if (!strcmp(key, "average") && m->kind->averages) {
        bool ok = take_word(value, averages, 4, &word);
        m->average = (MetricAverage)word;
        return ok;
    }
    if (strcmp(key, "scores")) return false;
    bool ok = take_word(value, scores, 2, &word);
    m->scores = (MetricScores)word;
    return ok;
}

Status metric_read(Diag *d, const char *text, Metric *m) {
    char copy[512], *save = NULL;
    *m = (Metric){.ignore = -100, .axis = AXIS_FOUND};
    snprintf(copy, sizeof copy, "%s", text);
    char *word = strtok_r(copy, ",", &save);
    if (!word || strlen(text) >= sizeof copy || strlen(word) >= sizeof m->label)
        return no_kind(d, text);
    snprintf(m->label, sizeof m->label, "%s", word);
    char *colon = strchr(word, ':');
    if (colon) *colon = 0;
    m->kind = metric_find_kind(word, &m->top);
    if (!m->kind) return no_kind(d, word);
    if (colon) snprintf(m->output, sizeof m->output, "%s", colon + 1);
    while ((word = strtok_r(NULL, ",", &save))) {
        char *eq = strchr(word, '=');
        if (eq) *eq = 0;
        if (eq && metric_take_key(m, word, eq + 1)) continue;
        fail(d, (Loc){0},
             "--metric %s: '%s%s%s' is not target=INPUT, mask=INPUT, "
             "ignore=LABEL, axis=N or none, scores=logits or probabilities%s",
             text, word, eq ? "=" : "", eq ? eq + 1 : "",
             m->kind->averages ? ", average=binary, macro, micro or weighted"
                               : "");
        return ERR_USAGE;
    }
    return OK;
}

/* ---- shapes -------------------------------------------------------------- */

/* The axes except those of length 1 and axis `without`. */
static int axes_of(const ampc_tensor_info *t, int without, int64_t *dim) {
    int n = 0;
    for (int i = 0; i < t->rank; i++)
        if (i != without && (t->shape[i] != 1 || i == 0))
            dim[n++] = t->shape[i];
    return n;
}

static bool same_axes(const ampc_tensor_info *a, int without,
                      const ampc_tensor_info *b) {
    int64_t x[AMPC_RANK_LIMIT], y[AMPC_RANK_LIMIT];
    int n = axes_of(a, without, x);
    return n == axes_of(b, -1, y) && !memcmp(x, y, (size_t)n * sizeof *x);
}

static int64_t per_sample(const ampc_tensor_info *t, int64_t batch) {
    int64_t n = 1;
    for (int i = 0; i < t->rank; i++) n *= t->shape[i];
    return n / batch;
}

static Status metric_misfit(Diag *d, const Metric *m, const char *why) {
    StrBuf sb = {0};
    const ampc_tensor_info *t[] = {&m->out, &m->labels};
    for (int k = 0; k < 2; k++) {
        sb_printf(&sb, "%s'%s' [", k ? " and " : "", t[k]->name);
        for (int i = 0; i < t[k]->rank; i++)
            sb_printf(&sb, "%s%lld", i ? "," : "", (long long)t[k]->shape[i]);
        sb_puts(&sb, "]");
    }
    fail(d, (Loc){0}, "--metric %s: %s: %s", m->label, sb.data, why);
    sb_free(&sb);
    return ERR_USER;
}

/* The axis of the classes: the one that the labels lack. */
static Status find_axis(Diag *d, Metric *m) {
    bool same = same_axes(&m->out, -1, &m->labels);
    int found = 0;
    if (m->kind->numbers) {
        m->axis = AXIS_NONE;
        return same ? OK : metric_misfit(d, m, "the shapes differ");
    }
    if (m->axis == AXIS_NONE)
        return same ? OK
                    : metric_misfit(d, m, "axis=none needs the same shape");
    if (m->axis >= m->out.rank)
        return metric_misfit(d, m, "the output lacks this axis");
    if (m->axis > 0) {
        m->ranked = same;
        return same || same_axes(&m->out, m->axis, &m->labels)
                   ? OK
                   : metric_misfit(d, m, "the labels have other axes");
    }
    if (same && per_sample(&m->out, m->batch) == 1) {
        m->axis = AXIS_NONE;
        return OK;
    }
    if (same)
        return metric_misfit(
            d, m,
            "the shapes are the same: say axis=1 (or another) for "
            "one-hot or soft labels, whose largest is the class, or "
            "axis=none if each element is a yes or no of its own");
    for (int i = m->out.rank - 1; i > 0; i--)
        if (same_axes(&m->out, i, &m->labels)) {
            if (found)
                return metric_misfit(d, m,
                                     "which axis has the classes? axis=N");
            found = i;
        }
    m->axis = found;
    return found
               ? OK
               : metric_misfit(d, m,
                               "the labels are not the output without an axis "
                               "of classes");
}

/* positions = outer * inner; the scores of one lie `inner` apart. */
static void metric_measure(Metric *m) {
    int64_t all = per_sample(&m->out, m->batch);
    m->classes = m->axis > 0 ? m->out.shape[m->axis] : 1;
    m->inner = 1;
    for (int i = m->axis + 1; m->axis > 0 && i < m->out.rank; i++)
        m->inner *= m->out.shape[i];
    m->outer = all / m->classes / m->inner;
}

static Status make_metric_room(Diag *d, Metric *m, int64_t samples) {
    int64_t points = m->outer * m->inner, bytes;
    m->nbatch = (samples + m->batch - 1) / m->batch;
    m->ncount = METRIC_HEAD + 3 * metric_classes(m);
    m->wide = 1 + (m->classes > 2 ? m->classes : 1);
    m->nslot = m->kind->keeps ? samples * points : 0;
    if (!mul_ok(m->nslot, m->wide * 8, &bytes) || bytes > INT64_C(1) << 40)
        return fail(d, (Loc){0}, "--metric %s: too many scores", m->label);
    m->count = calloc((size_t)m->ncount, sizeof(double));
    m->part = calloc((size_t)(2 * m->nbatch), sizeof(double));
    m->slot = calloc((size_t)(m->nslot * m->wide + 1), sizeof(double));
    return m->count && m->part && m->slot ? OK
                                          : fail(d, (Loc){0}, "out of memory");
}

static Status check_kind(Diag *d, Metric *m) {
    bool two = metric_classes(m) == 2;
    if (m->kind->asks && (m->classes == 1 || m->ranked))
        return metric_misfit(d, m, "perplexity needs class numbers as labels");
    if (m->kind->best && m->top > m->classes)
        return metric_misfit(d, m, "there are fewer classes");
    if (m->average == AVERAGE_BINARY && !two)
        return metric_misfit(d, m, "average=binary needs two classes");
    if (m->average == AVERAGE_PRESET && m->kind->averages)
        m->average = m->classes == 1 ? AVERAGE_BINARY : AVERAGE_MACRO;
    return OK;
}

Status metric_fit(Diag *d, Metric *m, const ampc_tensor_info *out,
                  const ampc_tensor_info *labels, const ampc_tensor_info *mask,
                  int64_t batch, int64_t samples) {
    m->out = *out;
    m->labels = *labels;
    m->batch = batch;
    if (mask) m->masks = *mask;
    if (!(out->dtype >= AMPC_DTYPE_F16))
        return metric_misfit(d, m, "the output has no floating numbers");
    if (batch < 1 || out->sample_rows < 1 || !labels->rank ||
        labels->shape[0] != out->shape[0])
        return metric_misfit(d, m,
                             "the first axis is not the samples of a batch");
    TRY(find_axis(d, m));
    metric_measure(m);
    if (mask && (!mask->rank || mask->shape[0] != out->shape[0] ||
                 per_sample(mask, batch) < 1 ||
                 m->outer * m->inner % per_sample(mask, batch)))
        return metric_misfit(d, m, "the mask has other positions");
    TRY(check_kind(d, m));
    return make_metric_room(d, m, samples);
}

void metric_free(Metric *m) {
    free(m->count);
    free(m->part);
    free(m->slot);
    *m = (Metric){.kind = NULL};
}

void metric_clear(Metric *m) {
    memset(m->count, 0, (size_t)m->ncount * sizeof(double));
    memset(m->part, 0, (size_t)(2 * m->nbatch) * sizeof(double));
    memset(m->slot, 0, (size_t)(m->nslot * m->wide) * sizeof(double));
}

/* ---- batches ------------------------------------------------------------- */

/* True if these may be probabilities: of one class, or of all, whose sum is
   1. */
static bool like_probabilities(const Point *p) {
    double sum = 0;
    for (int64_t i = 0; i < p->n; i++) {
        double x = p->score[i * p->step];
        if (!(x >= 0 && x <= 1)) return false;
        sum += x;
    }
    return p->n == 1 || fabs(sum - 1) < 1e-2;
}

static bool has_nan(const Point *p) {
    for (int64_t i = 0; i < p->n; i++)
        if (isnan(p->score[i * p->step])) return true;
    return false;
}

static Status bad_label(Diag *d, const Metric *m, int64_t sample, double x) {
    return fail(
        d, (Loc){0},
        "--metric %s: sample %lld (from 0): '%s' has %g, a class from 0 "
        "to %lld is needed (ignore=LABEL leaves one out)",
        m->label, (long long)sample, m->labels.name, x,
        (long long)metric_classes(m) - 1);
}

/* The label of a position; *counts: whether the position counts. */
static Status find_label(Diag *d, const Metric *m, int64_t sample, Point *p,
                         const double *label, bool *counts) {
    p->wanted = *label;
    if (m->kind->numbers) return OK;
    if (m->ranked) {
        p->label = metric_largest(label, p->step, p->n);
        return OK;
    }
    *counts = *label != (double)m->ignore;
    if (!*counts) return OK;
    if (!(*label >= 0 && *label < (double)metric_classes(m)) ||
        *label != floor(*label))
        return bad_label(d, m, sample, *label);
    p->label = (int64_t)*label;
    return OK;
}

static void add_point(Metric *m, const Point *p) {
    m->count[METRIC_ROWS]++;
    m->count[METRIC_LIKE] += like_probabilities(p);
    if (has_nan(p))
        m->count[METRIC_NANS]++;
    else
        m->kind->add(m, p);
}

/* The positions of one sample; its scores and labels are already numbers. */
static Status add_sample(Diag *d, Metric *m, int64_t sample, int64_t row,
                         const double *score, const double *label,
                         const void *mask) {
    int64_t points = m->outer * m->inner;
    int64_t masks = mask ? per_sample(&m->masks, m->batch) : 0;
    for (int64_t i = 0; i < points; i++) {
        int64_t at = i / m->inner * m->classes * m->inner + i % m->inner;
        Point p = {.score = score + at,
                   .step = m->inner,
                   .n = m->classes,
                   .part = m->part + 2 * (sample / m->batch)};
        bool counts = true;
        if (m->nslot) p.slot = m->slot + (sample * points + i) * m->wide;
        TRY(find_label(d, m, sample, &p, label + (m->ranked ? at : i),
                       &counts));
        double weight = 1;
        if (masks)
            numbers_of(m->masks.dtype, mask, row * masks + i / (points / masks),
                       1, &weight);
        counts &= weight != 0;
        if (counts) add_point(m, &p);
    }
    return OK;
}

Status metric_add(Diag *d, Metric *m, int64_t first, int64_t n, const void *out,
                  const void *labels, const void *mask) {
    int64_t a = per_sample(&m->out, m->batch);
    int64_t b = per_sample(&m->labels, m->batch);
    double *x = malloc((size_t)(a + b) * sizeof *x);
    if (!x) return fail(d, (Loc){0}, "out of memory");
    Status st = OK;
    for (int64_t r = 0; r < n && st == OK; r++) {
        numbers_of(m->out.dtype, out, r * a, a, x);
        numbers_of(m->labels.dtype, labels, r * b, b, x + a);
        st = add_sample(d, m, first + r, r, x, x + a, mask);
    }
    free(x);
    return st;
}

Status metric_value(Diag *d, const Metric *m, double *value) {
    double rows = m->count[METRIC_ROWS], like = m->count[METRIC_LIKE];
    /* a threshold also depends on the kind of scores */
    bool reads = !m->kind->numbers &&
                 (m->classes == 1
                      ? !m->kind->keeps
                      : m->kind->reads && !(m->kind->keeps && m->classes == 2));
    *value = NAN;
    if (rows == 0 || m->count[METRIC_NANS] > 0) return OK;
    if (reads && m->scores == SCORES_PRESET && like == rows)
        return fail(d, (Loc){0},
                    "--metric %s: all numbers of '%s' look like probabilities: "
                    "say scores=probabilities, or scores=logits",
                    m->label, m->out.name);
    if (reads && m->scores == SCORES_PROBABILITIES && like != rows)
        return fail(d, (Loc){0},
                    "--metric %s: some numbers of '%s' are not probabilities",
                    m->label, m->out.name);
    *value = m->kind->end(m);
    return OK;
}
