/* SPDX-License-Identifier: Apache-2.0 */
/* eights.c: GPUs that can multiply the numbers of 8 bits themselves.
   Before:  %x8 = cast %c : bf16    %w8 = cast %d : bf16    (%c, %d: f8e4m3)
            %p = matmul %x8, %w8 : f32
   After:   %d.2 = transpose %d {perm=[1,0]}
            %p = matmul %c, %d.2 {trans_b=1} : f32
   The library of these GPUs wants the elements of each sum side by side, so
   that codes get a second, transposed copy where a product reads them across.
   The sums equal sums of bf16, since bf16 holds every code. A module
   with code for an older GPU keeps bf16: one plan serves all its GPUs.

   requires     stage PRIMITIVE
   establishes  nothing
   breaks       nothing; leaves dead nodes                                   */
#include "passes/device/fold.h"
#include "passes/device/product.h"
#include "passes/passes.h"
#include "passes/rewrite.h"

/* The codes for which v stands, in the shape of v; NO_VALUE: v does not cast
   codes. */
static ValueId codes_of(Builder *b, ValueId v) {
    Graph *g = b->g;
    const Type t = *value_type(g, v);
    const Node *n;
    while ((n = value_maker(g, v)) && !n->fn && node_kind(n) == KIND_VIEW)
        v = n->in[0];
    if (!n || n->fn || n->op != OP_CAST || attr_int(n, AK_user) ||
        !dtype_info[value_dtype(g, n->in[0])].stored)
        return NO_VALUE;
    ValueId code = n->in[0];
    return shape_equal(value_type(g, code), &t)
               ? code
               : b_reshape(b, code, t.rank, t.dim);
}

static bool eights_rule(Rewriter *rw, NodeId id, ValueId *with) {
    static const int64_t perm[] = {1, 0};
    Graph *g = rw->g;
    Builder *b = &rw->b;
    const Node n = *node_get(g, id); /* building may move the pool */
    if (n.fn || n.op != OP_MATMUL) return false;
    bool ta = attr_int(&n, AK_trans_a), tb = attr_int(&n, AK_trans_b);
    if (value_type(g, n.in[1])->rank != 2 ||
        (ta && value_type(g, n.in[0])->rank != 2))
        return false;
    ValueId x = codes_of(b, n.in[0]), w = codes_of(b, n.in[1]);
    if (!x.i || !w.i) return false;
    if (ta) x = b_transpose(b, x, perm);
    if (!tb) w = b_transpose(b, w, perm);
    ValueId y = b_matmul(b, x, w, false, true, value_dtype(g, n.out[0]));
    if (!product_is_library(g, value_maker(g, y))) return false;
    with[0] = y;
    rewrite_take_name(g, n.out[0], with[0]);
    return true;
}

Status pass_eights(Module *m, PassCtx *cx) {
    if (!any_gpu(cx->opt) || gpu_without(cx->opt, TENSOR_F8)) return OK;
    for (int i = 0; i < m->graphs.len; i++)
        if (m->graphs.data[i]->target == TARGET_CUDA)
            rewrite_graph(m->graphs.data[i], cx->scratch, eights_rule, NULL);
    return OK;
}
