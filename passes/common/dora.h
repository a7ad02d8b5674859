/* SPDX-License-Identifier: Apache-2.0 */
/* dora.h: adapters whose outputs have a trained norm (dora of --lora), as
   PEFT computes them:
     scale = magnitude / |W + alpha/rank B A|     per output; no gradient flows
                                                  through the norm
     z = scale * (W x + alpha/rank B A x)
   With dropout, the part scale - 1 of W x reads the dropped x, too.

   magnitude begins as the norms of W, which a session knows when its weights
   are loaded. Until then magnitude is NaN; program refresh replaces the NaN. */
#ifndef AMPC_PASSES_COMMON_DORA_H
#define AMPC_PASSES_COMMON_DORA_H

#include "ir/ir.h"

/* The adapted result of matrix product or convolution n. x: its left operand
   after dropout, or NO_VALUE without dropout; add: the adapter's part; z: the
   result of n plus that part. */
ValueId dora_result(Builder *b, const Adapter *a, const Node *n, ValueId x,
                    ValueId add, ValueId z);
/* Adds the first value of each magnitude to program refresh. */
void dora_begin(Graph *refresh);

#endif
