/* SPDX-License-Identifier: Apache-2.0 */
/* parts.h: graphs as disjoint parts of one program, so that one compilation
   tests hundreds of them; and their gradients.                              */
#ifndef AMPC_TESTS_SUPPORT_PARTS_H
#define AMPC_TESTS_SUPPORT_PARTS_H

#include "ir/ir.h"

/* Copies g after the graphs that `all` has, with the prefix before every name.
   Variables
   become constants.  Inputs and outputs are appended. Constants that the
   text form does not show become inputs after g's own: held gets their data. */
typedef VEC(const Tensor *) Held;
void parts_add(Graph *all, const Graph *g, const char *prefix, Held *held);

/* The floating-point outputs become one number: the sum of their elements times
   the weights below. They are then replaced by its gradients with respect to
   the floating-point inputs, "grad.NAME". OK without outputs: nothing is
   differentiable. */
Status parts_to_gradients(Graph *g, Diag *d);
double parts_weight(int64_t element); /* in [0.25, 1] */

#endif
