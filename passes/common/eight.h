/* SPDX-License-Identifier: Apache-2.0 */
/* eight.h: scales of numbers of 8 bits from the largest magnitudes of earlier
   steps (--f8-scales delayed), and of blocks (--f8-scales block). */
#ifndef AMPC_PASSES_COMMON_EIGHT_H
#define AMPC_PASSES_COMMON_EIGHT_H

#include "ir/ir.h"
#include "runtime/program/blocks.h"

enum { EIGHT_HISTORY = 16 }; /* batches that a history remembers */

/* The history of one tensor. */
typedef struct EightTensor {
    int weight;   /* of the product that reads the tensor; its variable */
    DType dtype;  /* of its codes */
    ValueId var;  /* largest magnitudes, f32[EIGHT_HISTORY], latest first;
                     NO_VALUE: a bound gives the scale */
    ValueId rows; /* largest magnitudes of the tensor's rows in this step */
} EightTensor;

typedef struct EightHistory {
    Graph *g;
    Arena *a;
    VEC(EightTensor) tensors;
} EightHistory;

/* The largest magnitudes of v's rows: the kernel that makes v folds them, too.
 */
ValueId eight_rows(Builder *b, ValueId v);
/* The largest of v along its axes behind `from`. */
ValueId eight_largest(Builder *b, ValueId v, int from);
/* The magnitude for which the scale of v, of type d, is made; a graph that
   trains remembers the present one. The history belongs to the optimizer's
   state of that weight. */
ValueId eight_history(EightHistory *h, Builder *b, ValueId v, int weight,
                      DType d);
/* The same place for a tensor whose scale follows from a bound: it may have
   none in another graph, and those behind it keep their histories. */
void eight_history_skip(EightHistory *h, int weight, DType d);
/* Appends the nodes by which the graph writes its histories. */
void eight_history_write(EightHistory *h);

/* A matrix in codes e4m3, with a scale e8m0 for each block; [0]: blocks lie
   along its rows, [1]: along its columns. */
typedef struct EightBlocks {
    int64_t columns; /* 0: not made */
    ValueId code[2], scale[2];
    ValueId read[2][2]; /* bf16 again: in forward, in backward */
} EightBlocks;

/* Codes of v as a matrix of that many columns; rows and columns are multiples
   of BLOCK_SIZE. */
void eight_blocks(Builder *b, ValueId v, int64_t columns, EightBlocks *to);
/* The bf16 numbers for which codes stand; down: of blocks along columns. */
ValueId eight_blocks_read(Builder *b, EightBlocks *of, bool down);

#endif
