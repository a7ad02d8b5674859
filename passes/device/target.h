/* SPDX-License-Identifier: Apache-2.0 */
/* target.h: facts about devices for the passes after the split.

   Types, casts and the training step are the same everywhere.  After the
   split each kind of target has its own graphs (Graph.target). A pass that
   needs a number about the machine reads the row of its graph's target:
   passes contain no such numbers. */
#ifndef AMPC_PASSES_TARGET_TARGET_H
#define AMPC_PASSES_TARGET_TARGET_H

#include "passes/options.h"

/* True if the target can compute `nodes` (an anchor and element-wise work of
   its shape after it) before the anchor's result is stored; stored: that
   result is stored, too. */
typedef bool EpilogueFn(const Graph *g, NodeId anchor, const NodeId *nodes,
                        int n, bool stored);
EpilogueFn target_epilogue_cuda; /* epilogue.c */
/* True if every target can compute any such work after it. */
bool target_any_epilogue(const Graph *g, const Node *product);

typedef struct TargetInfo {
    EpilogueFn *epilogue; /* NULL: any                                       */
    bool pools;           /* a convolution's group may end in its pool */
    /* attention becomes one routine if it is causal or has at least this
       many keys; in a graph without a backward pass; 0: never */
    int64_t attend_keys, attend_keys_alone;
    int64_t attend_columns; /* largest number of features, for operands of
                               one 16-bit type; 0: any */
    bool attend_heads; /* attention reads and writes heads beside rows       */
    bool shares_launches; /* groups of equal work may run in one launch      */
    /* operations that take as long as a byte of memory (guard.h) */
    double work_of_a_byte;
    /* one kernel */
    int max_buffers; /* operands and results                                 */
    int max_numbers; /* limit if each result is a single number */
    int max_nodes;
    /* largest ratio of arithmetic to memory traffic */
    int max_moved;  /* nodes that may be computed again at another index */
    int max_padded; /* ... for a pad alone, which computes each element once */
    /* parts of a concatenation into which costly work may move: for its last
       axis, and for other axes. Each element computes the work of all parts,
       unless each part is a loop of its own. On CPUs the parts along an
       outer axis are separate loops, but moving work into them was measured
       to save nothing. */
    int costly_parts[2];
    int max_copies;     /* number of readers that may each compute a cheap
                           value */
    int64_t min_copied; /* elements: storing smaller values costs nothing */
    /* a convolution may add up its results for a batch norm; of channels that
       a library could multiply: at most so many; 0: no convolution does */
    int64_t sums_depth;
    /* rows of matrices that tensor cores read: the alignment in bytes of
       their beginnings (0: any), and the number of elements from which on
       copying the other operand costs less than unaligned rows */
    int64_t row_bytes, long_row;
    /* bytes of an fp32 result for the host, from which on its rows begin
       anywhere: memory for a copy counts more than time */
    int64_t large_output;
    /* a kernel may store codes of 8 bits transposed, too, and make blocks
       (node_by_tile) */
    bool turns_codes;
    /* largest size in bytes of column sums, and of lines of codes that it
       turns, that a kernel of rows may have; 0: none */
    int64_t column_sums;
    /* reductions that keep the target busy: a worker (a core, a block of
       threads) takes one row, or neighbouring rows if the innermost axis is
       not folded */
    int64_t rows_enough;    /* number of shares that keeps all workers busy */
    int64_t rows_beside;    /* neighbouring rows per worker */
    int64_t columns_serial; /* elements that a worker may fold by itself     */
    int64_t least_share;    /* elements that are worth another worker */
    int64_t short_row;      /* columns that a worker may read a second time */
    int64_t row_held;       /* bytes of a row that a worker can hold between two
                               sweeps; 0: any */
    int64_t small_tensor;   /* elements that cost less than a step           */
    int64_t tiny_tensor;    /* elements that a single worker may fold */
} TargetInfo;

extern const TargetInfo target_info[NUM_TARGETS]; /* [TARGET_ANY]: unused    */

static inline const TargetInfo *target_of(const Graph *g) {
    ASSERT(g->target != TARGET_ANY);
    return &target_info[g->target];
}

/* The target's numbers with the limits of the options' smallest GPU; may be
   allocated from a. */
const TargetInfo *target_smallest(const Graph *g, const Options *opt, Arena *a);

/* Gives every kind of target in the options (none: the CPU) its own graphs,
   in order of kind; a split module stays unchanged. */
void target_split(Module *m, const Options *opt);

#endif
