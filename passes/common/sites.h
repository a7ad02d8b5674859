/* SPDX-License-Identifier: Apache-2.0 */
/* sites.h: the values that pass place may round within an error budget. */
#ifndef AMPC_PASSES_COMMON_SITES_H
#define AMPC_PASSES_COMMON_SITES_H

#include "passes/common/budget.h"
#include "passes/common/placement_impl.h"

/* A value that may be stored in 16 bits, or an operand of a product that may
   read a rounded copy of an f32 value or parameter.                         */
typedef struct Site {
    NodeId node;  /* the node that computes the value, or the product */
    int at;       /* the result; or the operand's index */
    bool operand; /* it is an operand */
    DType low;
    uint64_t key, name_key;
} Site;
typedef VEC(Site) SiteList;

typedef struct Sites {
    Place p;
    SiteList of;
    DType *as; /* per value: NUM_DTYPES, or its dtype when low: the pass may
                  choose */
} Sites;

/* Number of elements of the value that it rounds. */
int64_t site_count(const Graph *g, const Site *s);
/* First makes streams of g fp16 if the options say so. */
Sites sites_find(Graph *g, PassCtx *cx);
/* The f32 value or parameter of which v is a rounded copy, or a move of one;
   NO_VALUE: it is not such a copy. A parameter may be read by no node of g
   yet. */
ValueId rounded_from(Graph *g, ValueId v);
/* True if the pass chooses the dtype that the product reads. */
bool chooses_product(const Graph *g, const Node *n);

#endif
