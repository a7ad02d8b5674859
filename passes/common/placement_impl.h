/* SPDX-License-Identifier: Apache-2.0 */
/* placement_impl.h: declarations shared by the files of pass place:
   placement.c, placement_high.c, placement_spare.c, placement_streams.c,
   placement_cut.c, placement_apply.c and placement_budget.c. */
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
   high, prices and the traffic. */
Place place_begin(Graph *g, PassCtx *cx);

/* placement_high.c */

/* The reason in Place.high of a residual stream. */
extern const char place_stream[];
/* Finds values that must be high; no prices and no traffic yet. whole: as in
   Place. */
Place place_new(Graph *g, const bool *whole, Arena *a);

/* placement_spare.c: makes values high that cost few bytes. */
void place_spare(Place *p, Arena *a);

/* placement_cut.c */

/* Cost of v. Low: one 16-bit form serves all readers. High: readers get an
   f32 form, and matrix products a 16-bit copy. */
CutCost place_cost(const Place *p, ValueId v, bool low);
/* The cheapest choice: low, per value; returns its cost. */
CutCost place_cut(Place *p, bool *low, Arena *a);
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

/* placement_streams.c */

void place_hold_stream(Place *p, ValueId v, bool high);
/* Makes streams low, except for those whose fp32 form adds at most `percent`
   to the bytes of a step. */
void place_keep_streams(Place *p, double percent, Arena *a);
/* Before:  %s = add %r, %a : f32             %t = tanh %s
   After:   %s = add %r, %a : f32             %s.f16 = mul %s, 1/64 : f16
            %s.f32 = mul %s.f16, 64 : f32     %t = tanh %s.f32
   By ValueId.i: values like %s and %s.f32, which stay in registers. */
bool *place_streams_as_fp16(Graph *g, Arena *a);
/* The value that n, a norm, divides by the root of its mean square (about
   the mean or about 0); NO_VALUE if n is not a norm. *eps: the constant
   added to the mean square. */
ValueId place_divided_by(const Graph *g, const Node *n, double *eps);

/* placement_apply.c */

/* Per value: slopes of GELU that only element-wise arithmetic reads, not
   products. They are between -1 and 2, where fp16 has 11 significant bits
   and bf16 has 8. */
bool *find_slopes(const Place *p, const Graph *g, Arena *a);
/* Makes the chosen values of g low, and values of which only a copy is read. */
void place_apply(const Place *p, Graph *g, const bool *low, Arena *a);
/* If backward needs only the normalised form of a stream, keeps a rounded copy
   of that. */
void place_keep_normalised(const Place *p, Graph *g, Arena *a);
/* Makes biases 16 bits: parameters with one element per column that are
   added only to a matrix product, before it is rounded. */
void place_narrow_biases(Graph *g, Arena *a);

/* placement_budget.c: pass place for a graph with error limits. */
Status place_within(Graph *g, PassCtx *cx);

#endif
