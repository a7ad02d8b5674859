/* SPDX-License-Identifier: Apache-2.0 */
/* guard.h: work that a step leaves out where one truth value says so. */
#ifndef AMPC_PASSES_TARGET_GUARD_H
#define AMPC_PASSES_TARGET_GUARD_H

#include "ir/ir.h"

/* Per node, by NodeId.i: where it runs; NULL: every node always does. A node's
   condition is computed before it and always; so are, where the node runs, all
   its operands. */
const Guard *guards_of(const Graph *g, Arena *a);

static inline bool guard_same(Guard a, Guard b) {
    return same_value(a.when, b.when) && a.unless == b.unless;
}

#endif
