/* SPDX-License-Identifier: Apache-2.0 */
/* traffic.h: which values reach memory, by an estimate of the fusion. */
#ifndef AMPC_PASSES_COMMON_TRAFFIC_H
#define AMPC_PASSES_COMMON_TRAFFIC_H

#include "passes/passes.h"

/* Memory traffic of a value and all its views that have a buffer. */
typedef struct Traffic {
    bool stored; /* the value is stored by the kernel that computes it */
    int reads;   /* kernels that read it; the host is one                    */
    bool saved;  /* the forward pass makes it, the backward pass reads it    */
} Traffic;

/* Joins to t[0..values), by ValueId.i, the traffic of g with its present
   types: the maximum over all targets. */
void traffic_join(const Graph *g, Traffic *t, int values, PassCtx *cx);

/* Bytes kept for backward beyond 2 per element of floats, or beyond half of
   the bytes of other values; estimated as above. */
int64_t traffic_beyond_half(const Graph *g, PassCtx *cx);

/* Whether the forward pass makes v; it may be none. */
bool is_forward(const Graph *g, ValueId v);

/* Whether a node of the update makes v. */
bool is_updates(const Graph *g, ValueId v);

#endif
