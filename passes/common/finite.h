/* SPDX-License-Identifier: Apache-2.0 */
/* finite.h: finds the values that are finite whenever all inputs and parameters
   are. */
#ifndef AMPC_PASSES_COMMON_FINITE_H
#define AMPC_PASSES_COMMON_FINITE_H

#include "ir/ir.h"

typedef struct Finite {
    const Graph *g;
    Arena *a;
    VEC(bool) may_not; /* by ValueId.i: it may be infinite or NaN */
} Finite;

/* Notes the results of n, whose operands are noted already.  Sums and
   products of finite values count as finite. */
void finite_note(Finite *f, const Node *n);
/* True if a slope of n may be infinite or NaN. */
bool has_infinite_slope(const Finite *f, const Node *n);

#endif
