/* epilogue.c: what cuBLASLt does to a product before it stores it (target.h):
   adds a bias, one value per column and of the result's dtype, or multiplies by
   a number that lies on the device.  Nothing may be rounded between the product
   and what follows, so the product itself is fp32.  Its relu is left alone:
   what it makes of NaN is not documented, and a NaN may not go unseen.

   Products that cuBLASLt cannot do, and convolutions with windows, are kernels
   of our own, which take any epilogue. */
#include "passes/target/target.h"

static bool mixes_with(DType in, DType out) {
    return (in == DT_F32 || in == DT_F16 || in == DT_BF16) &&
           (out == in || out == DT_F32);
}

/* Whether operand t walks along with batch dimension d of a result of that
   rank. */
static bool walks(const Type *t, int rank, int d) {
    int own = d - (rank - t->rank);
    return own >= 0 && t->dim[own] != 1;
}

/* Batch dimensions that are left when neighbours that both operands walk alike
   are one, and rows of a over a batch of one b are rows. */
static int batch_dims(const Graph *g, const Node *n) {
    const Type *a = value_type(g, n->in[0]), *b = value_type(g, n->in[1]);
    const Type *y = value_type(g, n->out[0]);
    bool rows = !attr_int(n, AK_trans_a, 0);
    int count = 0, last = -1;
    for (int d = y->rank - 3; d >= 0; d--) {
        int how = walks(a, y->rank, d) + 2 * walks(b, y->rank, d);
        if (y->dim[d] == 1) continue;
        if (rows && how == 1) continue;
        rows = false;
        count += how != last;
        last = how;
    }
    return count;
}

/* y = product + bias, or product * number */
static bool is_library_epilogue(const Graph *g, const Node *product,
                                const Node *n) {
    ValueId p = product->out[0];
    DType out = value_dtype(g, n->out[0]);
    if ((n->op != OP_ADD && n->op != OP_MUL) ||
        same_value(n->in[0], n->in[1]) || value_dtype(g, p) != DT_F32 ||
        !mixes_with(value_dtype(g, product->in[0]), out))
        return false;
    ValueId other = same_value(n->in[0], p) ? n->in[1] : n->in[0];
    const Type *t = value_type(g, other), *y = value_type(g, p);
    int64_t columns = y->dim[y->rank - 1];
    if (n->op == OP_ADD) /* one number for each column */
        return t->dtype == out && columns > 1 && t->rank > 0 &&
               t->dim[t->rank - 1] == columns && type_count(t) == columns;
    return t->dtype == DT_F32 && out == DT_F32 && type_count(t) == 1 &&
           !value_is_immediate(g, other);
}

/* Windows are single places, of which all are read: a product for each image.
 */
static bool is_point_conv(const Graph *g, const Node *n) {
    const Type *x = value_type(g, n->in[0]), *w = value_type(g, n->in[1]);
    const Type *y = value_type(g, n->out[0]);
    bool points = n->op == OP_CONV && w->dim[1] == x->dim[1];
    for (int d = 2; d < x->rank && points; d++)
        points = w->dim[d] == 1 && x->dim[d] == y->dim[d];
    return points;
}

bool target_epilogue_cuda(const Graph *g, NodeId anchor, const NodeId *nodes,
                          int n, bool stored) {
    const Node *product = node_get(g, anchor);
    DType in = value_dtype(g, product->in[0]);
    bool points = is_point_conv(g, product);
    bool library =
        in == value_dtype(g, product->in[1]) &&
        mixes_with(in, value_dtype(g, product->out[0])) &&
        (points || (product->op == OP_MATMUL && batch_dims(g, product) <= 1));
    if (!library) return true;
    if (points || n != 2 || stored) return false;
    NodeId other = nodes[nodes[0].i == anchor.i];
    return is_library_epilogue(g, product, node_get(g, other));
}
