/* SPDX-License-Identifier: Apache-2.0 */
/* flow.h: which groups make, read and keep which buffers (flow.c); what
   schedule and memplan share.

   A buffer is named by its root: the value below all VIEWs.                 */
#ifndef AMPC_PASSES_TARGET_FLOW_H
#define AMPC_PASSES_TARGET_FLOW_H

#include "ir/ir.h"

typedef struct Flow {
    Graph *g;
    Arena *a;
    int ngroup;
    int *first, *end; /* by group: its nodes in g->order                     */
    int *from, *to;   /* by group: first and last group of its launch        */
    ValueId *root;    /* by ValueId.i                                        */
    int *def;         /* by root: the group that makes it, -1: none          */
    int *last;        /* by root: last group that reads it; ngroup: kept for
                         outputs and writes; -1: never read                  */
    bool *crowded;    /* by root: several groups of the launch that reads it
                         last do so                                          */
    bool *stored;     /* by root: made by a group and leaves it, or the first
                         result of a routine, which always writes it         */
    ValueId *read;    /* roots that group i reads, each once:                */
    int *read_at;     /*   read[read_at[i]] .. read[read_at[i + 1] - 1]      */
} Flow;

Flow *flow_new(Graph *g, Arena *scratch);
/* Of program update: rows of squares that ranks add (reduce.c). */
bool flow_sums_ranks(const Flow *f, int group);
int64_t flow_bytes(const Flow *f, ValueId root);
/* By root: a kernel of forward makes it, of forward values, and one of backward
   reads it. */
const bool *flow_kept(const Flow *f, Arena *a);

/* Group order[i] becomes number i of n; those that are not named have no nodes.
   VIEWs stand directly before the first group that reads them, or at the end;
   other nodes that are in no group go.                                      */
void groups_reorder(Graph *g, Arena *scratch, const int *order, int n);

#endif
