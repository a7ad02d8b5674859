/* SPDX-License-Identifier: Apache-2.0 */
/* twin.h: a step in which each rounding to 16 bits, or to codes of 8 bits, can
   be turned on separately.

   It is the training program up to its gradients, with all arithmetic in fp32.
   Each value that the module stores in 16 bits is rounded if an input of the
   program is 1, and so is what backward reads of values with codes (passes
   place and keep give both). With all inputs 1 the program computes the same as
   the module; with all inputs 0, the same model in fp32. `ampc audit` runs it
   to measure the error of each rounding. */
#ifndef AMPC_PASSES_COMMON_TWIN_H
#define AMPC_PASSES_COMMON_TWIN_H

#include "passes/passes.h"

/* One rounding. */
typedef struct TwinSite {
    Str input; /* bool[] input of the program: the value is rounded if it is
                  1 */
    Str value; /* a value of the step, or the name of a copied parameter */
    Str node;  /* the model's node, as policy lines name it; NULL: none */
    DType dtype;
    int64_t bytes;  /* its size in this dtype */
    bool backward;  /* a gradient, or computed for one */
    bool parameter; /* the copy of a parameter that products read           */
    VEC(Str)
    readers; /* nodes whose products read the value or its copy: without this
                rounding they would round it themselves */
} TwinSite;
typedef VEC(TwinSite) TwinSites;

/* m, of common stage PRIMITIVE after pass place or keep, becomes that program
   alone, called "predict", for objective `objective`. Its outputs are "loss"
   and "grad/NAME", still multiplied by the loss scale. Errors: the program
   trains nothing. */
Status twin_make(Module *m, Diag *d, Str objective, TwinSites *sites);

#endif
