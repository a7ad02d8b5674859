/* SPDX-License-Identifier: Apache-2.0 */
/* placement_impl.h: what placement.c and placement_budget.c share. */
#ifndef AMPC_PASSES_COMMON_PLACEMENT_IMPL_H
#define AMPC_PASSES_COMMON_PLACEMENT_IMPL_H

#include "passes/common/mincut.h"
#include "passes/common/traffic.h"
#include "passes/common/wide.h"

/* The low type of residual streams and slopes, whose error must be small. */
#define FINE_TYPE DT_F16

enum { STEP_BYTES, SAVED_BYTES, PRICE, ROUNDINGS };

typedef struct Place {
    Graph *g;
    int values; /* number of values of g when the facts were found */
    DType low;
    Facts f;
    const char **high; /* per value: why it is high; NULL: need not be */
    bool *free;        /* per value: the pass chooses */
    bool *stream;      /* per value: high only as a residual stream */
    const bool *whole; /* per value: stored as fp16 after division by 64 */
    int *price;        /* per value */
    Traffic *traffic;  /* per value */
    Cut *cut;
} Place;

/* Streams of g become fp16 where the options say so; finds what is high and the
   traffic. */
Place place_begin(Graph *g, PassCtx *cx);
/* Whether operand and result of n, both f32, must have one dtype. */
bool is_tied(const Place *p, const Node *n);
/* True if each result element equals some operand element: it is rounded
   only if that was not. */
bool is_selection(const Node *n);
/* Bytes of a mask that backward reads: if a value that it was computed from is
   high, and if that is low; false: n makes no such mask, or v does not matter
   to it. */
bool mask_cost(const Place *p, const Node *n, ValueId v, CutCost *high,
               CutCost *low);
/* Per value: slopes of GELU, which are stored as fp16 if they are low. */
bool *find_slopes(const Place *p, const Graph *g, Arena *a);
/* Makes the chosen values of g low, and values whose copy alone is read. */
void place_apply(const Place *p, Graph *g, const bool *low, Arena *a);

/* placement_budget.c: what pass place does with a graph where errors have a
   limit. */
Status place_within(Graph *g, PassCtx *cx);

#endif
