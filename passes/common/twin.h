/* SPDX-License-Identifier: Apache-2.0 */
/* twin.h: a step whose roundings to 16 bits can be turned on one by one.

   The program that trains, up to its gradients, with all arithmetic in fp32;
   each value that it stores in 16 bits is rounded where an input says so.  With
   all of them on it computes what the module does, with none the same model in
   fp32: `ampc audit` runs it to learn what each rounding costs.             */
#ifndef AMPC_PASSES_COMMON_TWIN_H
#define AMPC_PASSES_COMMON_TWIN_H

#include "passes/passes.h"

/* One rounding. */
typedef struct TwinSite {
    Str input; /* bool[] of the program: rounded if it is 1                 */
    Str value; /* of the step; of the copy of a parameter, its name         */
    Str node;  /* of the model, as policy lines call it; NULL: none         */
    DType dtype;
    int64_t bytes;  /* that it takes in 16 bits                             */
    bool backward;  /* a gradient, or made for one                          */
    bool parameter; /* the copy of a parameter that products read           */
    VEC(Str)
    readers; /* nodes whose products read it, or that read the copy:
                without its own rounding they would round it       */
} TwinSite;
typedef VEC(TwinSite) TwinSites;

/* m, of common stage PRIMITIVE and behind pass place, becomes that program
   alone, called "predict", of objective `objective`: its outputs are "loss" and
   "grad/NAME", still times the loss scale.  Errors: it trains nothing.      */
Status twin_make(Module *m, Diag *d, Str objective, TwinSites *sites);

#endif
