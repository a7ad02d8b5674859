/* SPDX-License-Identifier: Apache-2.0 */
/* origin.h: what values are made of, as far as rounding goes.               */
#ifndef AMPC_PASSES_COMMON_ORIGIN_H
#define AMPC_PASSES_COMMON_ORIGIN_H

#include "ir/ir.h"

typedef enum Origin {
    FROM_CONSTANTS, /* numbers that do not train                            */
    FROM_POSITIONS, /* and integers, until a sine or cosine bounds them     */
    FROM_DATA
} Origin;

typedef struct Origins {
    Origin *of;    /* by ValueId.i                                          */
    double *bound; /* by ValueId.i: no finite number in it is larger, where
                      data count as 0; INFINITY: unknown                    */
} Origins;

Origins origins_of(const Graph *g, Arena *a);
/* The origin that the result of n has if it does not bound it. */
Origin origin_joined(const Graph *g, const Origins *o, const Node *n);
/* Whether 16 bits of dtype d can keep the result of n, in which numbers as
   large as `bound` meet data: beside larger ones a sum loses what is about 1,
   and of what others compute half of the range is room enough. */
bool origin_fits(const Node *n, double bound, DType d);

#endif
