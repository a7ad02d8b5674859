/* SPDX-License-Identifier: Apache-2.0 */
/* twin.h: a step whose roundings to 16 bits can be turned on one by one.

   The training program up to its gradients, with all arithmetic in fp32. Each
   value that the module stores in 16 bits is rounded if an input of the program
   is 1. With all inputs 1 the program computes the same as the module, with all
   0 the same model in fp32. `ampc audit` runs it to measure the error of each
   rounding. */
#ifndef AMPC_PASSES_COMMON_TWIN_H
#define AMPC_PASSES_COMMON_TWIN_H

#include "passes/passes.h"

/* One rounding. */
typedef struct TwinSite {
    Str input; /* bool[] of the program: rounded if it is 1                 */
    Str value; /* a value of the step, or the name of a copied parameter */
    Str node;  /* the model's node, as in policy lines; NULL: none */
    DType dtype;
    int64_t bytes;  /* its size in 16 bits */
    bool backward;  /* a gradient, or made for one                          */
    bool parameter; /* the copy of a parameter that products read           */
    VEC(Str)
    readers; /* nodes whose products read it, or that read the copy:
                without its own rounding they would round it */
} TwinSite;
typedef VEC(TwinSite) TwinSites;

/* m, of common stage PRIMITIVE and behind pass place, becomes that program
   alone, called "predict", of objective `objective`: its outputs are "loss" and
   "grad/NAME", still times the loss scale.  Errors: it trains nothing.      */
Status twin_make(Module *m, Diag *d, Str objective, TwinSites *sites);

#endif
