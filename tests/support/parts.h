/* SPDX-License-Identifier: Apache-2.0 */
/* parts.h: graphs as disjoint parts of one program, so that one compilation
   tests hundreds of them; and their gradients.                              */
#ifndef AMPC_TESTS_SUPPORT_PARTS_H
#define AMPC_TESTS_SUPPORT_PARTS_H

#include "ir/ir.h"

/* Copies g behind what `all` has, every name behind the prefix.  Variables
   become constants.  Inputs and outputs follow those that are there.  Constants
   that the text form does not show become inputs behind those of g: held gets
   their data. */
typedef VEC(const Tensor *) Held;
void parts_add(Graph *all, const Graph *g, const char *prefix, Held *held);

/* The outputs of floats become one number: the sum of their elements times the
   weights below.  Then they are replaced by its gradients for the inputs of
   floats, "grad.NAME".  OK without outputs: nothing is differentiable. */
Status parts_to_gradients(Graph *g, Diag *d);
double parts_weight(int64_t element); /* in [0.25, 1] */

#endif
