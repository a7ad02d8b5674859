/* SPDX-License-Identifier: Apache-2.0 */
/* frozen.h: how frozen weights are stored (--frozen-dtype): unchanged, in 16
   bits, or as codes of few bits with scales (quantized.h). */
#ifndef AMPC_PASSES_COMMON_FROZEN_H
#define AMPC_PASSES_COMMON_FROZEN_H

#include "passes/passes.h"

/* The variable that v is, or whose transpose v is (then *turned flips); -1:
   none. */
int weight_at(const Graph *g, ValueId v, bool *turned);
/* The weight that a matrix product reads as its right operand, *columns: as
   [in,out]; -1: none. */
int weight_of(const Graph *g, const Node *n, bool *columns);

typedef struct Stored {
    bool narrow; /* in 16 bits, read through a cast */
    int scale;   /* variable with the scales of codes; 0: none */
    int code;
} Stored;

/* Stores the frozen variables among the first n in that dtype; ours: those
   that --lora or --freeze froze. Returns an entry for each. */
Stored *frozen_store(Module *m, PassCtx *cx, const bool *ours, int n);
/* How frozen_store stored it. */
Stored frozen_stored(const Module *m, int var);
/* What a reader of variable `var` must read instead. */
ValueId frozen_read(Builder *b, const Stored *s, int var);
/* If node n looks up rows of codes: the value that replaces its result. */
bool frozen_rows(Builder *b, const Stored *s, int nvar, const Node *n,
                 ValueId *with);

/* Weights of codes in a graph that leaves ampc: f32 variables again, without
   initial values. */
void frozen_widen(Graph *g, Arena *scratch);

#endif
