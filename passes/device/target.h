/* SPDX-License-Identifier: Apache-2.0 */
/* target.h: what the passes after the split know of a device.

   Types, casts and the training step are the same everywhere.  From there each
   kind of target has graphs of its own (Graph.target), and a pass that has to
   weigh something asks the row of its graph's target: no number about a machine
   stands in a pass.                                                         */
#ifndef AMPC_PASSES_TARGET_TARGET_H
#define AMPC_PASSES_TARGET_TARGET_H

#include "passes/options.h"

/* Whether the target can do `nodes`, an anchor and element-wise work of its
   shape behind it, before the anchor is stored; stored: its own result is kept
   too. */
typedef bool EpilogueFn(const Graph *g, NodeId anchor, const NodeId *nodes,
                        int n, bool stored);
EpilogueFn target_epilogue_cuda; /* epilogue.c */
/* Whether each target can do any such work behind it. */
bool target_any_epilogue(const Graph *g, const Node *product);

typedef struct TargetInfo {
    EpilogueFn *epilogue; /* NULL: any                                       */
    bool pools; /* a convolution may have its pool behind it                */
    /* attention is one routine where it is causal or has so many keys; 0: it
       never is */
    int64_t attend_keys;
    int64_t attend_columns; /* most, of operands of one 16-bit type; 0: any  */
    bool shares_launches; /* groups of equal work may run in one launch      */
    /* one kernel */
    int max_buffers; /* operands and results                                 */
    int max_numbers; /* the same, where each result is one number            */
    int max_nodes;
    /* arithmetic against memory */
    int max_moved;  /* nodes worth computing at a moved index            */
    int max_padded; /* ... for a pad alone, each element once            */
    /* parts of a concatenation that costly work may move into, by whether its
       axis is the last: an element computes what all of them do, unless each
       is a loop of its own.  On CPUs parts of an outer axis are, too, but what
       they save was measured to be nothing                                  */
    int costly_parts[2];
    int max_copies;     /* readers worth computing a cheap value for, each   */
    int64_t min_copied; /* elements: smaller values cost nothing to keep     */
    /* rows of matrices that tensor cores read: bytes at whose multiples they
       are to begin (0: anywhere), elements from which on a copy of the other
       operand costs less than rows that do not                              */
    int64_t row_bytes, long_row;
    /* bytes of the column sums that a kernel of rows may make beside them; 0:
       it makes none */
    int64_t column_sums;
    /* what keeps it busy: a worker (a core, a block of threads) takes a row,
       or neighbouring rows where the innermost axis is not folded           */
    int64_t rows_enough;    /* workers' shares that are enough               */
    int64_t rows_beside;    /* neighbouring rows of one worker               */
    int64_t columns_serial; /* elements that a worker may fold by itself     */
    int64_t least_share;    /* elements that are worth a worker of their own */
    int64_t short_row;      /* columns that a worker may walk once more      */
    int64_t small_tensor;   /* elements that cost less than a step           */
    int64_t tiny_tensor;    /* the same, where one worker may get them all   */
} TargetInfo;

extern const TargetInfo target_info[NUM_TARGETS]; /* [TARGET_ANY]: unused    */

static inline const TargetInfo *target_of(const Graph *g) {
    ASSERT(g->target != TARGET_ANY);
    return &target_info[g->target];
}

/* Gives every kind of target that the options ask for (none: the CPU) its own
   graphs, in order of kind; a split module stays as it is.                  */
void target_split(Module *m, const Options *opt);

#endif
