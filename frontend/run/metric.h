/* SPDX-License-Identifier: Apache-2.0 */
/* metric.h: measures of an evaluation beside its loss, from a model's output
   and its labels.  A measure is a row of the table in metric_kinds.c.

   A text "NAME[:OUTPUT][,KEY=VALUE...]" says which one.  Batches are added in
   any order and on any rank; sums over ranks, array by array, are the measure
   of all samples, and have the same bits for any number of ranks. */
#ifndef AMPC_FRONTEND_RUN_METRIC_H
#define AMPC_FRONTEND_RUN_METRIC_H

#include "frontend/run/metric_kinds.h"

/* The names of the rows, for messages. */
void metric_names(StrBuf *sb);
Status metric_read(Diag *d, const char *text, Metric *m);
bool metric_higher_is_better(const Metric *m);
/* The tensors of a batch and the number of samples; mask may be NULL. */
Status metric_fit(Diag *d, Metric *m, const ampc_tensor_info *out,
                  const ampc_tensor_info *labels, const ampc_tensor_info *mask,
                  int64_t batch, int64_t samples);
void metric_free(Metric *m);
/* Call before an evaluation. */
void metric_clear(Metric *m);
/* Adds samples [first, first + n), which are the first rows of a batch's
   arrays. */
Status metric_add(Diag *d, Metric *m, int64_t first, int64_t n, const void *out,
                  const void *labels, const void *mask);
/* NaN: undefined, as the AUC of a class without samples. */
Status metric_value(Diag *d, const Metric *m, double *value);

#endif
