/* SPDX-License-Identifier: Apache-2.0 */
/* mincut.h: the exact cheapest assignment of two labels.

   Every variable is low or high.  The cost is a sum of terms over one variable
   or two; its minimum is a minimum s-t cut, with low on the side of the source.
   Costs are vectors that compare lexicographically: the second number decides
   only between assignments that agree in the first. Among several cheapest
   assignments, the one with the fewest low variables is returned. It is
   contained in every other, so that the result does not depend on the order
   of variables and terms or on the algorithm. */
#ifndef AMPC_PASSES_COMMON_MINCUT_H
#define AMPC_PASSES_COMMON_MINCUT_H

#include "ir/base/base.h"

enum { CUT_RANKS = 4 };

/* The cost of a term: every component is >= 0, and the sum of all terms fits
   int64_t. */
typedef struct CutCost {
    int64_t of[CUT_RANKS];
} CutCost;

typedef struct Cut Cut;
Cut *cut_new(Arena *a, int variables);
/* Terms of the cost; terms on the same variable or pair add up. */
void cut_if_low(Cut *c, int x, CutCost cost);
void cut_if_high(Cut *c, int x, CutCost cost);
void cut_if_low_high(Cut *c, int x, int y, CutCost cost);
/* Constraints. */
void cut_force(Cut *c, int x, bool low);
void cut_low_implies_low(Cut *c, int x, int y);
/* low[variables]; false if the constraints contradict each other. */
bool cut_solve(Cut *c, bool *low, CutCost *total);

#endif
