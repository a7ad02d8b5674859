/* SPDX-License-Identifier: Apache-2.0 */
/* product.h: matrix products that cuBLASLt does, and what it does to one before
   it stores it.  Fusion and what makes launches of groups ask here.         */
#ifndef AMPC_PASSES_TARGET_PRODUCT_H
#define AMPC_PASSES_TARGET_PRODUCT_H

#include "ir/ir.h"
#include "runtime/program/lib.h"

/* Sizes and strides of matmul node n; t: the types of its operands and of its
   result. */
void product_shape(const Node *n, LibGemm *p, const Type *const *t);
bool product_fits(const LibGemm *p);
/* The same of a node; false: it is something else. */
bool product_is_library(const Graph *g, const Node *n);

typedef struct ProductEnd {
    PlanProduct how; /* PLAN_PRODUCT_PLAIN: nothing                          */
    ValueId with;    /* the buffer of its operand                            */
} ProductEnd;
/* What cuBLASLt does to such a product where n is all that reads it. */
ProductEnd product_end(const Graph *g, const Node *product, const Node *n);

#endif
