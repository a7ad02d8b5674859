/* SPDX-License-Identifier: Apache-2.0 */
/* metric_kinds.c: what each metric sums, and how its value follows from the
   sums. Definitions are those of scikit-learn and, for perplexity and mean
   IoU, of torchmetrics; models/record/metric_values.py has their values. */
#include "frontend/run/metric_kinds.h"

#include <math.h>
#include <stdlib.h>

static double *own_counts(const Metric *m) { return m->count + METRIC_HEAD; }

/* ---- adding -------------------------------------------------------------- */

int64_t metric_largest(const double *x, int64_t step, int64_t n) {
    int64_t best = 0;
    for (int64_t i = 1; i < n; i++)
        if (x[i * step] > x[best * step]) best = i;
    return best;
}

static int64_t kinds_told(const Metric *m, const Point *p) {
    if (p->n > 1) return metric_largest(p->score, p->step, p->n);
    return p->score[0] > (m->scores == SCORES_PROBABILITIES ? 0.5 : 0);
}

static void add_accuracy(Metric *m, const Point *p) {
    own_counts(m)[0] += kinds_told(m, p) == p->label;
}

/* The number of classes ahead of the label: with a higher score, or an equal
   score and a lower number, so that top1 is accuracy. */
static void add_top(Metric *m, const Point *p) {
    int64_t before = 0;
    double own = p->score[p->label * p->step];
    for (int64_t i = 0; i < p->n; i++) {
        double x = p->score[i * p->step];
        before += x > own || (x == own && i < p->label);
    }
    own_counts(m)[0] += before < m->top;
}

static void add_confusion(Metric *m, const Point *p) {
    int64_t c = metric_classes(m), k = kinds_told(m, p);
    double *hit = own_counts(m), *wrong = hit + c, *missed = wrong + c;
    if (k == p->label) {
        hit[k]++;
    } else {
        wrong[k]++;
        missed[p->label]++;
    }
}

/* log(sum(exp)), without overflow. */
static double log_sum(const Point *p) {
    double top = p->score[metric_largest(p->score, p->step, p->n) * p->step],
           sum = 0;
    for (int64_t i = 0; i < p->n; i++) sum += exp(p->score[i * p->step] - top);
    return top + log(sum);
}

static void add_perplexity(Metric *m, const Point *p) {
    double own = p->score[p->label * p->step];
    p->part[0] +=
        m->scores == SCORES_PROBABILITIES ? -log(own) : log_sum(p) - own;
    p->part[1]++;
}

static void add_rmse(Metric *m, const Point *p) {
    double x = p->score[0] - p->wanted;
    (void)m;
    p->part[0] += x * x;
    p->part[1]++;
}

static void add_auc(Metric *m, const Point *p) {
    p->slot[0] = (double)p->label + 1;
    if (p->n <= 2) {
        p->slot[1] = p->n == 1 ? p->score[0] : p->score[p->step] - p->score[0];
        return;
    }
    double all = m->scores == SCORES_PROBABILITIES ? 0 : log_sum(p);
    for (int64_t i = 0; i < p->n; i++) {
        double x = p->score[i * p->step];
        p->slot[1 + i] = m->scores == SCORES_PROBABILITIES ? x : exp(x - all);
    }
}

/* ---- values -------------------------------------------------------------- */

static double end_share(const Metric *m) {
    return own_counts(m)[0] / m->count[METRIC_ROWS];
}

/* A mean over the classes that occur among labels or predictions. */
static double mean_of_classes(const Metric *m, double extra) {
    int64_t c = metric_classes(m);
    const double *hit = own_counts(m), *wrong = hit + c, *missed = wrong + c;
    double sum = 0, weight = 0;
    for (int64_t i = 0; i < c; i++) {
        double all = hit[i] + wrong[i] + missed[i];
        double w = m->average == AVERAGE_WEIGHTED ? hit[i] + missed[i] : 1;
        if (all == 0) continue;
        sum += w * (1 + extra) * hit[i] / (all + extra * hit[i]);
        weight += w;
    }
    return sum / weight;
}

static double end_iou(const Metric *m) { return mean_of_classes(m, 0); }

static double end_f1(const Metric *m) {
    int64_t c = metric_classes(m);
    const double *hit = own_counts(m), *wrong = hit + c, *missed = wrong + c;
    if (m->average == AVERAGE_MACRO || m->average == AVERAGE_WEIGHTED)
        return mean_of_classes(m, 1);
    double h = 0, off = 0;
    for (int64_t i = m->average == AVERAGE_BINARY; i < c; i++) {
        h += hit[i];
        off += wrong[i] + missed[i];
    }
    return h + off > 0 ? 2 * h / (2 * h + off) : 0;
}

static void kinds_sum_parts(const Metric *m, double sum[2]) {
    sum[0] = sum[1] = 0;
    for (int64_t i = 0; i < m->nbatch; i++)
        for (int k = 0; k < 2; k++) sum[k] += m->part[2 * i + k];
}

static double end_rmse(const Metric *m) {
    double sum[2];
    kinds_sum_parts(m, sum);
    return sqrt(sum[0] / sum[1]);
}

static double end_perplexity(const Metric *m) {
    double sum[2];
    kinds_sum_parts(m, sum);
    return exp(sum[0] / sum[1]);
}

typedef struct Scored {
    double score;
    bool positive;
} Scored;

static int by_score(const void *a, const void *b) {
    double x = ((const Scored *)a)->score, y = ((const Scored *)b)->score;
    return (x > y) - (x < y);
}

/* Mann and Whitney: the share of pairs of a positive and a negative in which
   the positive has the higher score; equal scores count half. */
static double area(Scored *s, int64_t n) {
    double positive = 0, pairs = 0, below = 0;
    qsort(s, (size_t)n, sizeof *s, by_score);
    for (int64_t i = 0, end; i < n; i = end) {
        double here = 0;
        for (end = i; end < n && s[end].score == s[i].score; end++)
            here += s[end].positive;
        double other = (double)(end - i) - here;
        pairs += here * (below + other / 2);
        below += other;
        positive += here;
    }
    return pairs / (positive * below);
}

static double end_auc(const Metric *m) {
    int64_t columns = m->wide - 1;
    double sum = 0;
    Scored *s = malloc((size_t)(m->nslot + 1) * sizeof *s);
    if (!s) return NAN;
    for (int64_t c = 0; c < columns; c++) {
        int64_t n = 0, positive = columns == 1 ? 1 : c;
        for (int64_t i = 0; i < m->nslot; i++) {
            const double *slot = m->slot + i * m->wide;
            if (slot[0] == 0) continue;
            s[n++] = (Scored){slot[1 + c], slot[0] - 1 == (double)positive};
        }
        sum += area(s, n);
    }
    free(s);
    return sum / (double)columns;
}

const MetricKind metric_kinds[] = {
    {.name = "accuracy", .higher = true, .add = add_accuracy, .end = end_share},
    {.name = "topK",
     .higher = true,
     .best = true,
     .add = add_top,
     .end = end_share},
    {.name = "f1",
     .higher = true,
     .averages = true,
     .add = add_confusion,
     .end = end_f1},
    {.name = "auc",
     .higher = true,
     .keeps = true,
     .reads = true,
     .add = add_auc,
     .end = end_auc},
    {.name = "miou", .higher = true, .add = add_confusion, .end = end_iou},
    {.name = "perplexity",
     .asks = true,
     .reads = true,
     .add = add_perplexity,
     .end = end_perplexity},
    {.name = "rmse", .numbers = true, .add = add_rmse, .end = end_rmse},
    {.name = NULL},
};
