/* SPDX-License-Identifier: Apache-2.0 */
/* epilogue.c: which operations a matrix product's launch on a GPU may include
   (target.h). cuBLASLt includes those of product.h, and none in
   convolutions; all other launches are our own kernels, which take any
   epilogue. */
#include "passes/device/fold.h"
#include "passes/device/product.h"
#include "passes/device/target.h"

/* True for a convolution with windows of one element and stride 1, or its
   gradient by the input, that cuBLASLt computes: a matrix product per image. */
static bool is_point_conv(const Graph *g, const Node *n) {
    bool back = n->op == OP_CONV_DGRAD;
    if (n->op != OP_CONV && !back) return false;
    const Type *x = value_type(g, back ? n->out[0] : n->in[0]);
    const Type *y = value_type(g, back ? n->in[0] : n->out[0]);
    const Type *w = value_type(g, n->in[1]);
    bool points =
        w->dim[1] == x->dim[1] && w->dtype == value_dtype(g, n->in[0]);
    int64_t positions = 1;
    for (int d = 2; d < x->rank && points; d++) {
        points = w->dim[d] == 1 && x->dim[d] == y->dim[d];
        positions *= y->dim[d];
    }
    return points && planes_align(positions, dtype_info[w->dtype].bytes);
}

bool target_any_epilogue(const Graph *g, const Node *product) {
    return !is_point_conv(g, product) && !product_is_library(g, product);
}

bool target_epilogue_cuda(const Graph *g, NodeId anchor, const NodeId *nodes,
                          int n, bool stored) {
    const Node *product = node_get(g, anchor);
    if (target_any_epilogue(g, product)) return true;
    if (is_point_conv(g, product)) return false;
    return nodes[0].i == anchor.i && !stored &&
           product_end(g, product, nodes + 1, n - 1).how != PLAN_PRODUCT_PLAIN;
}
