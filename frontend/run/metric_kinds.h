/* SPDX-License-Identifier: Apache-2.0 */
/* metric_kinds.h: the table of metrics. */
#ifndef AMPC_FRONTEND_RUN_METRIC_KINDS_H
#define AMPC_FRONTEND_RUN_METRIC_KINDS_H

#define AMPC_NO_LOADER
#include "ir/base/base.h"
#include "runtime/ampc.h"

struct MetricKind;

typedef enum MetricAverage {
    AVERAGE_PRESET,
    AVERAGE_BINARY,
    AVERAGE_MACRO,
    AVERAGE_MICRO,
    AVERAGE_WEIGHTED
} MetricAverage;

typedef enum MetricScores {
    SCORES_PRESET, /* logits, and an error if they look like probabilities */
    SCORES_LOGITS,
    SCORES_PROBABILITIES
} MetricScores;

enum { AXIS_FOUND = -1, AXIS_NONE = -2 };

typedef struct Metric {
    const struct MetricKind *kind;
    char label[64];                        /* NAME[:OUTPUT] */
    char output[96], target[96], mask[96]; /* "": not named */
    int64_t top;
    MetricAverage average;
    MetricScores scores;
    int64_t ignore; /* labels that are not counted */
    int axis;       /* axis of the classes, AXIS_FOUND or AXIS_NONE */
    /* set by metric_fit */
    ampc_tensor_info out, labels, masks; /* masks.size 0: none */
    int64_t batch;
    int64_t outer, inner; /* positions of a sample: outer * inner          */
    int64_t classes;      /* classes of the output; 1: a number at each
                             position */
    bool ranked;          /* labels have the output's class axis, too */
    int64_t ncount, nslot, nbatch;
    double *count; /* rows, rows that look like probabilities, rows with NaN,
                      then what the kind counts */
    double *part;  /* two sums of each batch */
    double *slot;  /* for each position: label + 1, scores; 0: not counted */
    int64_t wide;  /* numbers of a slot */
} Metric;

/* One position; the scores of its classes are `step` apart. */
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
    bool averages; /* averages over classes, by average= */
    bool best;     /* its name ends with a number */
    bool asks;     /* one value for each class */
    bool keeps;    /* needs the scores of all positions together */
    bool reads;    /* reads the values of scores, so that their kind must be
                      known */
    void (*add)(Metric *m, const Point *p);
    double (*end)(const Metric *m);
} MetricKind;

enum { METRIC_ROWS, METRIC_LIKE, METRIC_NANS, METRIC_HEAD };

/* One score represents two classes. */
static inline int64_t metric_classes(const Metric *m) {
    return m->classes > 1 ? m->classes : 2;
}

/* The first of the largest of n numbers `step` apart. */
int64_t metric_largest(const double *x, int64_t step, int64_t n);

extern const MetricKind metric_kinds[]; /* metrics up to this one have no
                                           number in their name */

#endif
