/* SPDX-License-Identifier: Apache-2.0 */
/* metric.h: measures of an evaluation beside its loss, from a model's output
   and its labels.  A measure is a row of the table in metric.c.

   A text "NAME[:OUTPUT][,KEY=VALUE...]" says which one.  Batches are added in
   any order and on any rank; sums over ranks, array by array, are the measure
   of all samples, and have the same bits for any number of ranks. */
#ifndef AMPC_FRONTEND_RUN_METRIC_H
#define AMPC_FRONTEND_RUN_METRIC_H

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
    int axis;       /* of the classes, AXIS_FOUND or AXIS_NONE */
    /* set by metric_fit */
    ampc_tensor_info out, labels, masks; /* masks.size 0: none */
    int64_t batch;
    int64_t outer, inner; /* positions of a sample: outer * inner          */
    int64_t classes;      /* of the output; 1: a number at each position   */
    bool ranked;          /* labels have the output's axis of classes, too */
    int64_t ncount, nslot, nbatch;
    double *count; /* rows, rows that look like probabilities, rows with NaN,
                      then what the kind counts */
    double *part;  /* two sums of each batch */
    double *slot;  /* of each position: label + 1, scores; 0: not counted */
    int64_t wide;  /* numbers of a slot */
} Metric;

/* How the rows are called, for messages. */
void metric_names(StrBuf *sb);
Status metric_read(Diag *d, const char *text, Metric *m);
bool metric_higher_is_better(const Metric *m);
/* The tensors of a batch and the number of samples; mask may be NULL. */
Status metric_fit(Diag *d, Metric *m, const ampc_tensor_info *out,
                  const ampc_tensor_info *labels, const ampc_tensor_info *mask,
                  int64_t batch, int64_t samples);
void metric_free(Metric *m);
/* Before an evaluation. */
void metric_clear(Metric *m);
/* Samples [first, first + n), at the beginning of a batch's arrays. */
Status metric_add(Diag *d, Metric *m, int64_t first, int64_t n, const void *out,
                  const void *labels, const void *mask);
/* NaN: it has none, as the AUC of a class without samples. */
Status metric_value(Diag *d, const Metric *m, double *value);

#endif
