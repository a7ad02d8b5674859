/* SPDX-License-Identifier: Apache-2.0 */
/* changed_graph.h: turns a graph into another well-typed one. It is built
   again node by node: some nodes get another operand, op or attribute, nodes
   are added or removed, and some sizes change; nodes without a type are left
   out. */
#ifndef AMPC_TESTS_SUPPORT_CHANGED_GRAPH_H
#define AMPC_TESTS_SUPPORT_CHANGED_GRAPH_H

#include "ir/ir.h"

/* A random number below n; 0 for n = 0. */
typedef size_t RandomBelow(size_t n);

/* Number of elements of all its values. */
int64_t graph_numbers(const Graph *g);
/* In a separate module, as graph forward; NULL: nothing is left. */
Module *changed_graph(Arena *a, const Graph *from, RandomBelow *below);

#endif
