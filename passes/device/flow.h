/* SPDX-License-Identifier: Apache-2.0 */
/* flow.h: which groups write, read and keep which buffers (flow.c); shared by
   schedule and memplan.

   A buffer is named by its root: the value below all VIEWs.                 */
#ifndef AMPC_PASSES_TARGET_FLOW_H
#define AMPC_PASSES_TARGET_FLOW_H

#include "ir/ir.h"

typedef struct Flow {
    Graph *g;
    Arena *a;
    int ngroup;
    int *first, *end; /* per group: range of its nodes in g->order */
    int *from, *to;   /* per group: first and last group of its launch */
    ValueId *root;    /* per value: view_root */
    int *def;         /* per root: group that computes it; -1: none */
    int *last; /* per root: last group that reads it; ngroup: kept for outputs
                  and writes; -1: never read */
    bool *crowded; /* per root: several groups of its last launch read it
                    */
    bool *stored;  /* per root: its group stores it because others read it, or
                      because it is the first result of a routine, which is
                      always written */
    ValueId *read; /* roots that group i reads, each once:                */
    int *read_at;  /*   read[read_at[i]] .. read[read_at[i + 1] - 1]      */
} Flow;

Flow *flow_new(Graph *g, Arena *scratch);
/* True if the group is in program update and adds up rows of squares over
   ranks (reduce.c). */
bool flow_sums_ranks(const Flow *f, int group);
/* True if the group reads buffer r only at the index at which it stores a
   result with type t. */
bool flow_reads_in_step(const Flow *f, int group, ValueId r, const Type *t);
/* True if result v of the group may take the place of buffer r, if r dies. */
bool flow_in_place(const Flow *f, int group, ValueId r, ValueId v);
int64_t flow_bytes(const Flow *f, ValueId root);
/* Per root: true if a forward kernel computes it from forward values and
   backward reads it. */
const bool *flow_kept(const Flow *f, Arena *a);

/* Per group of a program for CPUs that writes no variable: true if it depends
   on variables alone, so that its results stay from run to run. */
const bool *flow_fixed(const Flow *f, Arena *a);

/* Gives group order[i] the number i of n; groups that are not in the list have
   no nodes. VIEWs are placed directly before the first group that reads
   them, or at the end; other nodes without a group are removed. */
void groups_reorder(Graph *g, Arena *scratch, const int *order, int n);

#endif
