/* SPDX-License-Identifier: Apache-2.0 */
/* sensitivity.h: a program that measures the effect of each rounding on loss
   and gradient, without rounding.

   To first order, rounding element i of a value by d_i changes the loss by
   (dL/dv_i) d_i.  If the errors of elements are independent and symmetric, the
   variance of their total effect is sum_i (dL/dv_i d_i)^2. The program is the
   training step in fp32 with its own derivative: it returns this sum for each
   site (sites.h).  For the gradient G, L is <G, u> with a random vector u of
   signs; the mean of its squared change over u is the square of G's change. */
#ifndef AMPC_PASSES_COMMON_SENSITIVITY_H
#define AMPC_PASSES_COMMON_SENSITIVITY_H

#include "passes/common/sites.h"

typedef struct SensitivitySite {
    uint64_t key, name_key;
    int64_t count;             /* of elements */
    bool measured[NUM_ERRORS]; /* false: rounding has no effect on it */
} SensitivitySite;

typedef struct Sensitivity {
    VEC(SensitivitySite) of;
} Sensitivity;

/* The only graph of m, the micro program before pass place, becomes two
   programs in fp32, of stage STEP:
   "eval"     sums for each site: "loss"; "norm", the square of the gradient's
              2-norm; "0/SITE" and "1/SITE", the sums for loss and gradient;
              "2/SITE" and "3/SITE", the sums of (dL/dv_i d_i), whose squares
              tell if the errors are independent.  Inputs SIGNS/PARAMETER are u.
              Without a limit of the gradient's error, only what is for the loss
   "predict"  the step that rounds at a site if the input ROUND/SITE is 1:
              "loss" and "grad/PARAMETER"
   As programs of one module they share variables and kernels.               */
Status sensitivity_make(Module *m, PassCtx *cx, Sensitivity *out);

#endif
