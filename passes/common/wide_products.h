/* SPDX-License-Identifier: Apache-2.0 */
/* wide_products.h: matrix products and convolutions that read f32 where
   torch.autocast reads 16 bits, because their rounding errors would be the
   result or because 16 bits do not make them faster. */
#ifndef AMPC_PASSES_COMMON_WIDE_PRODUCTS_H
#define AMPC_PASSES_COMMON_WIDE_PRODUCTS_H

#include "ir/ir.h"

/* True if n only moves elements. */
bool node_moves(const Node *n);
/* By ValueId.i: constants and what is computed from them alone; with
   `variables`, also from variables that do not train. */
bool *fixed_values(const Graph *g, bool variables, Arena *a);
/* By ValueId.i, results of products in forward whose operands are f32:
   - a sum or difference of the product and of sums over its own operands:
     squared distances by expansion, |a|^2 + |b|^2 - 2 a b, and moments,
     E[a b] - E[a] E[b]. The terms cancel; torch.cdist is fp32, too. Of more
     than 64 terms a sum, only with at most `most` multiply-adds: a search in a
     large codebook keeps its 16 bits.
   - a convolution of one input channel a group with a filter of constants, such
     as the windows of SSIM and the differences of an edge: it computes local
     means or differences, which then cancel. So does one with a variable that
     does not train, if its result is measured: multiplied with or compared to
     values of as many elements, or its absolute value, power or root is taken.
   - products of computed values of which one is matrices of at most 6 rows and
     columns, such as rotations and rigid motions.
   And in backward the products that compute the gradients of these. */
bool *wide_products(const Graph *g, double most, Arena *a);
/* Sets exact, by ValueId.i, to `why` for local moments by average pools whose
   difference cancels, pool(a b) - pool(a) pool(b): the pools, their operands, a
   and b. Rounded apart from each other, their errors would be the result. */
void note_moments(const Graph *g, const char *why, const char **exact);

#endif
