/* SPDX-License-Identifier: Apache-2.0 */
/* changed_graph.h: a graph to another that is typed as well: it is built again
   node by node, some nodes with another operand, op or attribute, some more or
   fewer of them, some sizes others; what no longer has a type is left out. */
#ifndef AMPC_TESTS_SUPPORT_CHANGED_GRAPH_H
#define AMPC_TESTS_SUPPORT_CHANGED_GRAPH_H

#include "ir/ir.h"

/* A random number below n; 0 for n = 0. */
typedef size_t RandomBelow(size_t n);

/* Elements of all its values. */
int64_t graph_numbers(const Graph *g);
/* In a module of its own, as graph forward; NULL: nothing is left. */
Module *changed_graph(Arena *a, const Graph *from, RandomBelow *below);

#endif
