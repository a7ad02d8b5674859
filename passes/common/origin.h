/* SPDX-License-Identifier: Apache-2.0 */
/* origin.h: the origin of values, as far as rounding depends on it. */
#ifndef AMPC_PASSES_COMMON_ORIGIN_H
#define AMPC_PASSES_COMMON_ORIGIN_H

#include "ir/ir.h"

typedef enum Origin {
    FROM_CONSTANTS, /* numbers that do not train                            */
    FROM_POSITIONS, /* also integers, until a sine or cosine bounds them */
    FROM_DATA
} Origin;

typedef struct Origins {
    Origin *of;    /* per value */
    double *bound; /* per value: bound on the magnitude of finite elements,
                      counting data as 0; INFINITY: unknown */
} Origins;

Origins origins_of(const Graph *g, Arena *a);
/* The origin of n's result, unless n bounds it. */
Origin origin_joined(const Graph *g, const Origins *o, const Node *n);
/* True if 16-bit dtype d can store the result of n, which combines data with
   numbers up to `bound`: beside a larger number a sum loses data of
   magnitude 1, and values that other ops compute may use half of the range. */
bool origin_fits(const Node *n, double bound, DType d);

#endif
