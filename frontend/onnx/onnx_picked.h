/* SPDX-License-Identifier: Apache-2.0 */
/* onnx_picked.h: rows that a mask selects: what onnx_picked.c and its rules in
   onnx_placed.c share. */
#ifndef FRONTEND_ONNX_ONNX_PICKED_H
#define FRONTEND_ONNX_ONNX_PICKED_H

#include "frontend/onnx/onnx.h"

/* How a node is built: rows that do not count become `fill` in operand 0
   unless it is NaN; the rows are on `axis` of the result, -1: on none. */
typedef struct OxPlan {
    OxBuild *run; /* the node's */
    int pick, axis;
    double fill;
    bool mean; /* the divisor becomes the number of rows that count */
    bool zero; /* the result is 0 if no row counts */
    bool done; /* the rule has built the node                       */
} OxPlan;

const OxPick *ox_pick(const Ox *ox, int pick);
/* NULL: the node lacks it. */
OxName *ox_operand(const Ox *ox, int k);
/* A message about a node that reads such rows. */
Status ox_refuse_rows(Ox *ox, const char *why);
/* The pick of a mask; equal masks share one. */
Status ox_find_pick(Ox *ox, ValueId mask, int *pick);
/* x, with `fill` in rows that do not count. */
Status ox_masked_rows(Ox *ox, ValueId x, int axis, int pick, double fill,
                      ValueId *y);

/* onnx_counted.c: a node whose operands have the number of a mask's rows as an
   element; not done: none has. */
Status ox_counted_rows(Ox *ox, OxBuild *run, bool *done);
/* The shape of a tensor with such rows. */
Status ox_shape_of_rows(Ox *ox, OxBuild *run);

/* Scatters at positions of a mask. */
Status ox_plan_scatter(Ox *ox, OxPlan *p);
/* Expand to a shape with the number of a mask's rows. */
Status ox_plan_expand(Ox *ox, OxPlan *p);
/* Slice of as many rows as there are. */
Status ox_plan_slice(Ox *ox, OxPlan *p);

#endif
