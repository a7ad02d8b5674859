/* SPDX-License-Identifier: Apache-2.0 */
/* bounds.h: magnitudes that values cannot exceed, whatever inputs and
   parameters are: of softmax, norms before their weight, sigmoid, tanh and what
   is computed from them. */
#ifndef AMPC_PASSES_COMMON_BOUNDS_H
#define AMPC_PASSES_COMMON_BOUNDS_H

#include "ir/ir.h"

/* Per value, by ValueId.i: the largest magnitude of an element; infinite if
   nothing is known. NaN is not excluded. */
const double *bounds_find(const Graph *g, Arena *a);

#endif
