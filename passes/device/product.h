/* SPDX-License-Identifier: Apache-2.0 */
/* product.h: which matrix products cuBLASLt computes, and with which epilogues.
   Fusion and the passes that form launches call it. */
#ifndef AMPC_PASSES_TARGET_PRODUCT_H
#define AMPC_PASSES_TARGET_PRODUCT_H

#include "ir/ir.h"
#include "runtime/program/lib.h"

/* Sizes and strides of matmul node n; t: the types of its operands and of its
   result. */
void product_shape(const Node *n, LibGemm *p, const Type *const *t);
/* True if cuBLASLt multiplies a and b, with results of that type. */
bool product_fits_types(int64_t a, int64_t b, int64_t out);
bool product_fits(const LibGemm *p);
/* True if n is a matrix product that cuBLASLt computes. */
bool product_is_library(const Graph *g, const Node *n);

typedef struct ProductEnd {
    PlanProduct how;    /* PLAN_PRODUCT_PLAIN: no epilogue */
    ValueId scale, add; /* the buffers of its operands */
} ProductEnd;
enum { PRODUCT_MOST_AFTER = 2 };
/* The epilogue by which cuBLASLt can compute the nodes after[0] .. after[n -
   1], a chain behind the product without other readers. */
ProductEnd product_end(const Graph *g, const Node *product, const NodeId *after,
                       int n);

/* GELU, in the form of tanh, of a product, or the product times its slope. */
typedef struct ProductGelu {
    bool slope;
    ValueId product, at, out; /* the product as stored, GELU's operand, the
                                 next group's result */
    ValueId sums;             /* a sum of `out` beside it; NO_VALUE: none */
} ProductGelu;
/* True if cuBLASLt can compute a product with GELU, or its slope, in the group
   behind it; first, next: the groups' first nodes in the order of the graph. */
bool product_gelu(const Graph *g, int first, int next, ProductGelu *x);

#endif
