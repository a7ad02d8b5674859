/* SPDX-License-Identifier: Apache-2.0 */
/* again.h: which values of forward backward computes again. */
#ifndef AMPC_PASSES_AGAIN_H
#define AMPC_PASSES_AGAIN_H

#include "ir/ir.h"

/* Per value, by ValueId.i: the forward value that it repeats; 0: none. With
   `codes` also that for whose codes of 8 bits it stands. */
ValueId *again_originals(const Graph *g, Arena *a, bool codes);

#endif
