/* SPDX-License-Identifier: Apache-2.0 */
/* pattern.h: trees of ops found in graphs, and replaced.

   A pattern is an expression of the language:
     x * rsqrt(reduce_mean(x * x, axes=axes) + E)
     e * (1 / reduce_sum(e, axes=[-1])) where e = exp(s)
   A name stands for any value, the same wherever it occurs; a name that begins
   with a capital, for a constant whose elements all equal one number; a number,
   for such a constant. Operands of + and * may be in either order. An attribute
   is a number, a list or a name; the others have their defaults. Values that
   an op grad holds are not looked into. */
#ifndef AMPC_PASSES_PATTERN_H
#define AMPC_PASSES_PATTERN_H

#include "ir/fn/formula.h"
#include "passes/rewrite.h"

typedef struct Pattern {
    const char *text;
    double near; /* the error of a number, as a part of it */
    Formula of;  /* read at the first search */
} Pattern;

enum { MATCH_NAMES = 8, MATCH_NODES = 16 };

typedef struct Match {
    FormulaName name[MATCH_NAMES];
    int names;
    NodeId node[MATCH_NODES]; /* the nodes of the tree */
    int nodes;
} Match;

/* True if v is such a tree. Names that m has already keep their meaning. */
bool pattern_matches(Pattern *p, const Graph *g, ValueId v, Match *m);
void match_bind(Match *m, const char *name, ValueId v);
ValueId match_value(const Match *m, const char *name);
double match_number(const Match *m, const char *name);
int64_t match_int(const Match *m, const char *name);

/* ---- rows ---------------------------------------------------------------- */

/* When a row applies; x is the value with this name. */
enum {
    SAME_TYPE = 1,  /* the result has x's type */
    SAME_SHAPE = 2, /* .. x's shape */
    FLOATS = 4,     /* .. floats */
    TYPED = 8       /* autocast has not run */
};

typedef struct PatternRow {
    Pattern find;
    const char *make; /* the expression in its place */
    unsigned when;
    Formula made;
    OpCode op; /* op of the tree's last node */
} PatternRow;

/* Replaces node n by the first row that applies to it. */
bool pattern_rows(Rewriter *rw, PatternRow *rows, int n, const Node *node,
                  ValueId *with);

#endif
