/* SPDX-License-Identifier: Apache-2.0 */
/* factors.c: fp32 products that GPUs may compute from rounded operands
   (--matmul-precision).
   Before:  %h = matmul %x, %w : f32[..]
   After:   %h = matmul %x, %w : f32[..] !factors=tf32
   The mark is part of the node's place (Loc), so that gradients and bodies of
   calls inherit it. It says nothing about products whose operands have 16 bits,
   which pass autocast makes of most of them.

   Unmarked, that is exact, stay
   - products of the optimizer, which have no place in the model, and of calls
     whose class is not low, such as linear algebra
   - products of class full by --amp-policy
   - the products of wide_products.h, whose terms cancel
   - products of constants and positions alone: angles of many turns

   requires     stage TYPED
   establishes  nothing new                                                   */
#include <math.h>

#include "ir/fn/fn.h"
#include "passes/common/origin.h"
#include "passes/common/wide_products.h"
#include "passes/passes.h"
#include "passes/rewrite.h"

static void mark_graph(Graph *g, AmpcFactors factors, Arena *scratch) {
    Origins origins = origins_of(g, scratch);
    const bool *wide = wide_products(g, INFINITY, scratch);
    for (int i = 0; i < g->order.len; i++) {
        Node *n = node_get(g, g->order.data[i]);
        if (node_class(n) == AMP_LOW && !wide[n->out[0].i] &&
            (n->fn || origin_joined(g, &origins, n) == FROM_DATA))
            n->loc.factors = (unsigned char)factors;
    }
}

Status pass_factors(Module *m, PassCtx *cx) {
    if (cx->opt->factors == AMPC_FACTORS_F32) return OK;
    for (int i = 0; i < m->graphs.len; i++)
        mark_graph(m->graphs.data[i], cx->opt->factors, cx->scratch);
    return OK;
}
