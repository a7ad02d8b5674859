/* SPDX-License-Identifier: Apache-2.0 */
/* keep.h: what a value takes that forward stores for backward. */
#ifndef AMPC_PASSES_COMMON_KEEP_H
#define AMPC_PASSES_COMMON_KEEP_H

#include "passes/passes.h"

/* Per value, by ValueId.i: its bytes if forward stores it; with --keep f8 those
   of codes and scales where everything that backward now reads of it bears
   their error. */
const int64_t *keep_bytes(Graph *g, PassCtx *cx);

#endif
