/* SPDX-License-Identifier: Apache-2.0 */
/* metric_kinds.h: the kinds of metrics, a row each; for metric.c. */
#ifndef AMPC_FRONTEND_RUN_METRIC_KINDS_H
#define AMPC_FRONTEND_RUN_METRIC_KINDS_H

#include "frontend/run/metric.h"

/* One position: the scores of its classes lie `step` apart. */
typedef struct Point {
    const double *score;
    int64_t step, n, label; /* n = 1: a number, and its label */
    double wanted;          /* the label as a number */
    double *slot, *part;
} Point;

typedef struct MetricKind {
    const char *name;
    bool higher;   /* is better */
    bool numbers;  /* compares numbers, not classes */
    bool averages; /* over classes, by average= */
    bool best;     /* its name ends with a number */
    bool asks;     /* for a class as each label */
    bool keeps;    /* needs the scores of all positions at once */
    bool reads;    /* the values of scores, so what they are has to be known */
    void (*add)(Metric *m, const Point *p);
    double (*end)(const Metric *m);
} MetricKind;

enum { ROWS, LIKE, NANS, HEAD };

/* A single score stands for two classes. */
static inline int64_t metric_classes(const Metric *m) {
    return m->classes > 1 ? m->classes : 2;
}

/* The first of the largest of n numbers `step` apart. */
int64_t metric_largest(const double *x, int64_t step, int64_t n);

extern const MetricKind metric_kinds[]; /* up to one without a name */

#endif
