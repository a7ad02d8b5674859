/* SPDX-License-Identifier: Apache-2.0 */
/* rows.h: which axis of a value goes over the samples of the batch. */
#ifndef AMPC_PASSES_COMMON_ROWS_H
#define AMPC_PASSES_COMMON_ROWS_H

#include "ir/ir.h"

/* has: element i of `axis` belongs to sample i / inner % batch; the axis has
   outer * batch * inner elements. mixed: elements depend on other samples than
   their own. Without both, the value is the same for every batch. */
typedef struct Rows {
    bool has, mixed;
    int axis;
    int64_t outer, inner;
} Rows;

/* The samples in a batch: the first axis of the first input that has axes; 0 if
   there is none. */
int64_t graph_samples(const Graph *g);
/* Per value of g. What an unknown op does to the axis counts as mixed. */
Rows *rows_find(const Graph *g, Arena *a, int64_t batch);

#endif
