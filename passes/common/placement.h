/* SPDX-License-Identifier: Apache-2.0 */
/* placement.h: what the files of pass place share.

   traffic.c     what of a graph reaches memory, by an estimate of its fusion
   placement.c   the storage dtype of every value                            */
#ifndef AMPC_PASSES_COMMON_PLACEMENT_H
#define AMPC_PASSES_COMMON_PLACEMENT_H

#include "passes/passes.h"

/* Of a value and all views of it, where they have a buffer. */
typedef struct Traffic {
    bool stored; /* it leaves the kernel that makes it                       */
    int reads;   /* kernels that read it; the host is one                    */
    bool saved;  /* the forward pass makes it, the backward pass reads it    */
} Traffic;

/* By ValueId.i, of g with the types that it has, whatever the device: the most
   of what any target would do, joined to t[0..values).                      */
void traffic_join(const Graph *g, Traffic *t, int values, PassCtx *cx);

/* How many bytes more than 2 for each number, or than half of what is none, are
   kept for backward; as above. */
int64_t traffic_beyond_half(const Graph *g, PassCtx *cx);

/* Whether the forward pass makes v; it may be none. */
bool is_forward(const Graph *g, ValueId v);

/* Whether a node of the update makes v. */
bool is_updates(const Graph *g, ValueId v);

#endif
