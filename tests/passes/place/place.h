/* SPDX-License-Identifier: Apache-2.0 */
/* place.h: for place_test.c and the files of folder place. */
#ifndef AMPC_TESTS_PASSES_PLACE_PLACE_H
#define AMPC_TESTS_PASSES_PLACE_PLACE_H

#include <stdlib.h>

#include "passes/common/traffic.h"

Module *planned_with(Arena *a, const char *model, const char *loss,
                     const char *precision, const char *remat,
                     const char *placement);
Module *place_planned(Arena *a, const char *model, const char *precision,
                      const char *remat);
const Node *place_maker(const Graph *g, ValueId v);

/* The objective as placement.c defines it, for graphs whose nodes have class
   any (free) or full (fp32) from the user: bytes of a step, bytes saved, the
   accuracy price, roundings. */
typedef struct Trial {
    Graph *g;
    const Traffic *traffic;
    bool *low, *high; /* by ValueId.i: labels; values that must not be low */
    ValueId *copy;    /* by ValueId.i                                         */
    int price[64];
    ValueId free[16];
    int nfree;
} Trial;

bool is_cast(const Graph *g, const Node *n);
void place_total(const Trial *t, int64_t sum[4]);

/* In the form that pass place gets. */
Module *place_lifted(Arena *a, const char *text);

#endif
