/* SPDX-License-Identifier: Apache-2.0 */
/* early.h: updates in the middle of the backward pass
   (--optimizer-in-backward).
   Before:  gradients of all parameters, one check of all, all updates
   After:   parts of the parameters in the order in which backward finishes
            their gradients: check and update of one part, then of the next
   A gradient is freed by its update, so that the gradients of one part are in
   memory at a time, and not those of all parameters. Few parts keep the number
   of launches low. Nodes of a part share a number (Loc.chunk), which keeps
   pass fuse from joining parts and tells pass schedule what may run early.
   With --clip-norm the norm of all gradients comes first: a first pass adds
   up the squares of each gradient and frees it, and the update computes the
   gradient again, if keeping the operands of its last matrix multiplication
   takes less memory than keeping the gradient. --clip-previous clips by the
   norm of the step before instead. */
#ifndef AMPC_PASSES_COMMON_EARLY_H
#define AMPC_PASSES_COMMON_EARLY_H

#include "passes/options.h"

typedef struct EarlyPart {
    const int *which; /* numbers of parameters */
    int n;
    int chunk; /* 0: there is only one part */
} EarlyPart;

typedef VEC(EarlyPart) EarlyParts;

/* The parts of the parameters with these gradients; one part with all, in
   the given order, unless the options request more. */
EarlyParts early_parts(Graph *g, const Options *o, const ValueId *grads, int n);
/* True if the updates need the norm of a first pass. */
bool early_needs_norm(const Graph *g, const Options *o);
/* The gradient, computed again when `ok`, the check of all gradients, is
   known; the gradient itself if that saves no memory. */
ValueId early_again(Builder *b, ValueId grad, ValueId ok);
/* Refuses options that need all gradients before the first update. */
Status early_check(const Options *o, const Objective *j, Diag *d);

#endif
