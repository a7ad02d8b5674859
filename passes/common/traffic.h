/* SPDX-License-Identifier: Apache-2.0 */
/* traffic.h: which values reach memory, by an estimate of the fusion. */
#ifndef AMPC_PASSES_COMMON_TRAFFIC_H
#define AMPC_PASSES_COMMON_TRAFFIC_H

#include "passes/passes.h"

/* Memory traffic of a value and all its views that have a buffer. */
typedef struct Traffic {
    bool stored; /* the value is stored by the kernel that computes it */
    int reads;   /* number of kernels that read it; the host counts as one */
    bool saved;  /* the forward pass computes it, the backward pass reads it */
} Traffic;

/* Takes the maximum over all targets of the traffic of g with its present
   types into t[0..values), by ValueId.i. */
void traffic_join(const Graph *g, Traffic *t, int values, PassCtx *cx);

/* Sets kept[v] for values that forward stores for backward on some target,
   where attention is one node. A view counts as the value below it. */
void traffic_kept(const Graph *g, bool *kept, PassCtx *cx);

/* Bytes kept for backward beyond 2 per floating-point element, or beyond
   half of the bytes of other values; estimated as above. */
int64_t traffic_beyond_half(const Graph *g, PassCtx *cx);

/* True if the forward pass computes v; v may be 0. */
bool is_forward(const Graph *g, ValueId v);

/* True if a node of the update computes v. */
bool is_updates(const Graph *g, ValueId v);

#endif
