/* SPDX-License-Identifier: Apache-2.0 */
/* rows.h: finds the axis of a value that runs over the samples of the batch. */
#ifndef AMPC_PASSES_COMMON_ROWS_H
#define AMPC_PASSES_COMMON_ROWS_H

#include "ir/ir.h"

/* has: element i of `axis` belongs to sample i / inner % batch; the axis has
   outer * batch * inner elements. mixed: elements depend on other samples than
   their own. If neither is set, the value is the same for every batch.
   unknown: it may have the axis, unless `has` says so. */
typedef struct Rows {
    bool has, mixed, unknown;
    int axis;
    int64_t outer, inner;
} Rows;

/* Samples one behind the other along the axis. */
static inline Rows rows_along(int axis) {
    return (Rows){.has = true, .axis = axis, .outer = 1, .inner = 1};
}
/* Sets the axes of n's results from those of its operands. */
void rows_step(const Graph *g, Arena *a, int64_t batch, Rows *of,
               const Node *n);
/* Sets Output.sample_rows of all outputs of g. */
void rows_mark_outputs(Graph *g, Arena *a);
/* Per value of g. A value is mixed, too, if an unknown op changes the axis. */
Rows *rows_find(const Graph *g, Arena *a, int64_t batch);

#endif
