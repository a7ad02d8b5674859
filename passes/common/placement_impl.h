/* SPDX-License-Identifier: Apache-2.0 */
/* placement_impl.h: declarations shared by placement.c and
   placement_budget.c. */
#ifndef AMPC_PASSES_COMMON_PLACEMENT_IMPL_H
#define AMPC_PASSES_COMMON_PLACEMENT_IMPL_H

#include "passes/common/mincut.h"
#include "passes/common/traffic.h"
#include "passes/common/wide.h"

/* The 16-bit type of residual streams and slopes, whose error must be small. */
#define FINE_TYPE DT_F16

enum { STEP_BYTES, SAVED_BYTES, PRICE, ROUNDINGS };

typedef struct Place {
    Graph *g;
    int values; /* number of values of g when these arrays were made */
    DType low;
    Facts f;
    const char **high; /* per value: why it is high; NULL: it need not be */
    bool *free;        /* per value: the pass chooses its dtype */
    bool *stream;      /* per value: high only because it is a residual
                          stream */
    const bool *whole; /* per value: stored as fp16 after division by 64 */
    int *price;        /* per value */
    Traffic *traffic;  /* per value */
    Cut *cut;
} Place;

/* Makes streams of g fp16 if the options say so; finds values that must be
   high, and the traffic. */
Place place_begin(Graph *g, PassCtx *cx);
/* True if operand and result of n, both f32, must have one dtype. */
bool is_tied(const Place *p, const Node *n);
/* True if each result element equals some operand element: if the operand
   was rounded, so is the result. */
bool is_selection(const Node *n);
/* Bytes of a mask that backward reads, if a value from which it was computed
   is high, and if that is low; false: n makes no such mask, or v does not
   affect it. */
bool mask_cost(const Place *p, const Node *n, ValueId v, CutCost *high,
               CutCost *low);
/* Per value: slopes of GELU, which are stored as fp16 if they are low. */
bool *find_slopes(const Place *p, const Graph *g, Arena *a);
/* Makes the chosen values of g low, and values of which only a copy is read. */
void place_apply(const Place *p, Graph *g, const bool *low, Arena *a);

/* placement_budget.c: pass place for a graph with error limits. */
Status place_within(Graph *g, PassCtx *cx);

#endif
