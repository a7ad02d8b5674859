/* SPDX-License-Identifier: Apache-2.0 */
/* rewrite.h: one walk over a graph that rebuilds its order.

   For every node, in order, a rule may return replacements.  New nodes that
   the rule builds land directly before the place of the old one, and later
   nodes read the replacement.  Requirements for rule authors:
   1. A replacement has the type of the value that it replaces.
   2. Same bits for every input (NaN included), unless the rule's comment names
      the difference and why it is wanted.
   3. Every rule lowers a measure (node count, or op strength), so that
      repeating the walk ends.
   4. Rules only read nodes; they change nothing but through the builder. */
#ifndef AMPC_PASSES_REWRITE_H
#define AMPC_PASSES_REWRITE_H

#include "ir/ir.h"

typedef struct Rewriter {
    Graph *g;
    Builder b; /* flags and loc of the current node */
    Arena *scratch;
    uint32_t limit; /* ValueIds of values that existed before the walk are
                       smaller */
    int *uses;      /* number of uses of each of these values */
    VEC(int) fresh; /* the same for values made during the walk */
    ValueId *map;   /* per value: 0 = itself */
    int changes;
    void *user;
} Rewriter;

/* Sets with[0..nout) and returns true to replace node n; if with[i] is 0,
   the old node stays for result i. */
typedef bool RewriteRule(Rewriter *rw, NodeId n, ValueId *with);

/* Number of replaced nodes. */
int rewrite_graph(Graph *g, Arena *scratch, RewriteRule *rule, void *user);

/* ---- helpers for rules --------------------------------------------------- */

enum { FOLD_LIMIT = 1 << 20 }; /* largest folded constant, in elements */

/* The node that computes v if its op is `op`, else NULL. A move that also
   rounds does not count, nor does a value with respect to which an op grad
   differentiates. */
const Node *def_of(const Graph *g, ValueId v, OpCode op);
/* The result that replaces `old` takes its name. */
void rewrite_take_name(Graph *g, ValueId old, ValueId new_value);
/* Number of operands and outputs that are v. */
int uses_of(const Rewriter *rw, ValueId v);
/* The node that computes v if it calls the library's function, else NULL. */
const Node *call_of(const Graph *g, ValueId v, const char *name);
/* Per value: true if a root depends on the value, through any operand. */
bool *needed_by(const Graph *g, Arena *scratch, const ValueId *root, int n);
/* Returns the *n nodes in order and empties the order of the graph; the
   caller puts them back. */
NodeId *order_take(Graph *g, Arena *scratch, int *n);
/* True if every element of v equals one constant, *c. */
bool value_number(const Graph *g, ValueId v, double *c);
/* True if that constant is c. */
bool is_number(const Graph *g, ValueId v, double c);

/* ---- what stands for a variable ------------------------------------------ */

/* What readers of variable `var` read instead; NO_VALUE: the variable. */
typedef ValueId ReadVar(Builder *b, int var, const void *user);

/* A walk over all nodes of a graph, whose readers of variables may read other
   values. */
typedef struct ReadWalk {
    Builder b;
    NodeId *old; /* the n nodes, in order */
    int n;
    ValueId *map;   /* per value, what is read instead; 0 = itself */
    uint32_t limit; /* values below it have an entry */
} ReadWalk;

/* Empties the order of the graph and builds what stands for variables. The
   caller puts each node back, or leaves it out. */
void reads_begin(ReadWalk *w, Graph *g, Arena *scratch, ReadVar *read,
                 const void *user);
void reads_keep(ReadWalk *w, NodeId id);
void reads_end(const ReadWalk *w);

/* Changes the type of a variable and its initial value, in all graphs. */
void var_narrow(Module *m, int var, DType d);
/* The same for the marked variables; their readers read a cast to f32. */
void vars_narrow(Module *m, const bool *narrow, DType d, Arena *scratch);

#endif
