/* SPDX-License-Identifier: Apache-2.0 */
/* random_graph.h: random nodes, so that ops occur in unforeseen groups.
   Values stay within a few units: products are followed by tanh, sums are
   scaled. Operands of comparisons are leaves, so that no rounding decides a
   branch. */
#ifndef AMPC_TESTS_SUPPORT_RANDOM_GRAPH_H
#define AMPC_TESTS_SUPPORT_RANDOM_GRAPH_H

#include "ir/ir.h"

enum { RANDOM_VALUES = 128, RANDOM_ELEMENTS = 512 /* of a parameter */ };

typedef struct RandomGraph {
    Builder b;
    ValueId v[RANDOM_VALUES]; /* inputs, and values computed from them */
    int n, nleaf;             /* number of values; of the first ones, the
                                 inputs */
    bool low;                 /* 16-bit values too */
    /* A parameter of that shape, for layers; NULL: there are none. */
    ValueId (*param)(struct RandomGraph *p, int rank, const int64_t *dim);
    void *ctx;
} RandomGraph;

void random_seed(uint64_t seed);
int random_below(int n);
double random_number(void); /* in [-1, 1) */
DType random_dtype(const RandomGraph *p);
void random_keep(RandomGraph *p, ValueId v);
/* Adds nodes until there are that many values. */
void random_nodes(RandomGraph *p, int values);

#endif
