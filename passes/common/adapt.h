/* SPDX-License-Identifier: Apache-2.0 */
/* adapt.h: adapters of --lora and --ia3: their uses and the graphs with them.
 */
#ifndef AMPC_PASSES_COMMON_ADAPT_H
#define AMPC_PASSES_COMMON_ADAPT_H

#include "ir/fn/fn.h"
#include "passes/common/frozen.h"
#include "passes/passes.h"

/* The uses of a variable in the graphs. */
typedef struct Use {
    const AdapterSpec *spec; /* the last that matches; NULL: none */
    bool product, columns;   /* the matrix product has it on the right, as
                                [in,out] */
    const Node *conv;        /* NULL, or a convolution that reads it */
    const char *other;       /* NULL, or the reason why it cannot have an
                                adapter */
    int adapter;             /* index in m->adapters; -1: none */
    bool whole;              /* it trains itself */
} Use;

typedef struct Adapt {
    Module *m;
    PassCtx *cx;
    Use *use; /* per variable of the model */
    int nvar;
} Adapt;

void adapt_graph(const Adapt *x, Graph *g, const int *adapter,
                 const Stored *stored);

#endif
