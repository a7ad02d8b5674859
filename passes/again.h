/* SPDX-License-Identifier: Apache-2.0 */
/* again.h: which values of forward backward computes again. */
#ifndef AMPC_PASSES_COMMON_AGAIN_H
#define AMPC_PASSES_COMMON_AGAIN_H

#include "ir/ir.h"

/* Per value, by ValueId.i: the forward value that it repeats, or for whose
   codes of 8 bits it stands; 0: none. */
ValueId *again_originals(const Graph *g, Arena *a);

#endif
