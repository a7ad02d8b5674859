/* SPDX-License-Identifier: Apache-2.0 */
/* attend.h: declarations shared by the files of pass attend.

   attend_scores.c   finds softmax, masks, scale and dropout
   attend_grad.c     finds the gradient
   attend.c          finds whole attentions and replaces them */
#ifndef AMPC_PASSES_DEVICE_ATTEND_H
#define AMPC_PASSES_DEVICE_ATTEND_H

#include "passes/passes.h"
#include "passes/pattern.h"

/* An operand of a node. Values cannot be remembered, because the rewriter
   replaces them. */
typedef struct Operand {
    NodeId node; /* 0: none */
    int at;
} Operand;

/* An attention in the graph; its gradient's nodes are 0 if it has none. */
typedef struct Attention {
    NodeId scores, y, dp, dv, dq, dk;
    NodeId dk_sum, dv_sum; /* sums over the heads that share keys; else dk
                              and dv */
    NodeId moved;          /* transposes y like dy is transposed back */
    Operand q, k, v, mask, rng, hide; /* hide: the condition of a where       */
    Operand kept_v; /* v for the gradient: read from codes, or v */
    bool causal, trans_b, zeros;
    bool hide_seen; /* hide is true for visible keys instead of hidden ones */
    double scale, ratio, fill;
    int64_t offset, salt;
    ValueId lse, to_y; /* their replacements */
    ValueId grad[3];   /* dq, dk, dv           */
} Attention;

typedef struct Attend {
    const Graph *g;
    int *uses; /* per value */
    int *of;   /* per node: 1 + number of the attention that contains the node
                */
    UserIndex users;
    int *position;     /* per node */
    uint32_t limit;    /* number of nodes before the pass */
    bool trains;       /* has_backward */
    VEC(NodeId) nodes; /* nodes of the current attention */
    VEC(Attention) found;
    Arena *scratch;
} Attend;

static inline ValueId attend_operand(const Graph *g, Operand o) {
    return o.node.i ? node_get(g, o.node)->in[o.at] : NO_VALUE;
}

/* ---- attend_scores.c ----------------------------------------------------- */

/* The node that defines v if its op is `op`; it then counts as part of the
   attention. */
const Node *attend_takes(Attend *a, ValueId v, OpCode op);
/* True if v is such a tree; its nodes then count, too. */
bool attend_matches(Attend *a, Pattern *p, ValueId v, Match *m);
/* True if x and y are equal: remat computes values again. */
enum { AGAIN = 6 }; /* depth of that search */
bool attend_again(const Graph *g, ValueId x, ValueId y, int depth);
/* True if v is x times the constant *c. */
bool attend_scaled(const Graph *g, ValueId v, ValueId *x, double *c);
/* v without its dropout factor, if it has one; else v. Sets t->rng, or
   requires the factor found before. */
ValueId attend_undropped(Attend *a, Attention *t, ValueId v);
/* The scores of a softmax p, or NO_VALUE; zeros: p is 0 if everything is
   hidden. */
ValueId attend_softmax_of(Attend *a, ValueId p, bool zeros);
/* The p of where(isnan(softmax(s)), 0, p), *scores: s; else v. If p is the
   softmax or the masked softmax of s, v is the masked softmax, unless scores
   are NaN. */
ValueId attend_not_nan(Attend *a, ValueId v, ValueId *scores);
/* Finds the matrix product that gives the scores v, and the scale and masks
   between them; false: there is none. *why: the reason why the attention
   routine cannot compute it. */
bool attend_find_scores(Attend *a, Attention *t, ValueId v, const char **why);

/* ---- attend_grad.c ------------------------------------------------------- */

bool attend_is_product(const Node *n, bool ta, bool tb);
/* Finds the gradient, if there is one. p: the softmax; d: the first operand
   of the product that gives y. */
void attend_find_grad(Attend *a, Attention *t, ValueId p, ValueId d);

#endif
