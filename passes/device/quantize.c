/* SPDX-License-Identifier: Apache-2.0 */
/* quantize.c: matrix products read quantized weights directly.
   Before:  %w = widen_quantized %q, %s : f32    %b = cast %w : bf16
            %y = matmul %x, %b {trans_b=1}
   After:   %y = matmul_quantized %x, %q, %s {trans_b=1}
   The routine widens pieces while it packs them; a weight that all its readers
   take so is never whole in memory.
   requires     stage PRIMITIVE
   establishes  nothing; same bits: the routine rounds as the cast does      */
#include "passes/passes.h"
#include "passes/rewrite.h"

/* The node that widens v, or of whose result v is a rounding to d; *turned
   flips for each transposition. */
static const Node *widened(const Graph *g, ValueId v, DType d, bool *turned) {
    const int64_t *perm;
    for (const Node *n; (n = value_maker(g, v)); v = n->in[0]) {
        DType of = value_dtype(g, v);
        if (n->fn || (of != d && of != DT_F32)) return NULL;
        if (n->op == OP_WIDEN_QUANTIZED) return n;
        if (n->op == OP_TRANSPOSE && attr_ints(n, AK_perm, &perm) == 2 &&
            perm[0] == 1)
            *turned = !*turned;
        else if (n->op != OP_CAST)
            return NULL;
    }
    return NULL;
}

static bool quantize_rule(Rewriter *rw, NodeId id, ValueId *with) {
    Graph *g = rw->g;
    const Node n = *node_get(g, id); /* building may move the pool */
    if (n.fn || n.op != OP_MATMUL || attr_int(&n, AK_trans_a)) return false;
    bool tb = attr_int(&n, AK_trans_b) != 0;
    DType d = value_dtype(g, n.in[0]);
    const Node *w = widened(g, n.in[1], d, &tb);
    if (!w || value_dtype(g, n.in[1]) != d || d == DT_F64 ||
        value_type(g, n.in[1])->rank != 2)
        return false;
    ValueId in[] = {n.in[0], w->in[0], w->in[1]};
    Attr attrs[] = {attr_i(AK_code, attr_int(w, AK_code)),
                    attr_i(AK_trans_b, tb)};
    with[0] = build(&rw->b, OP_MATMUL_QUANTIZED, in, 3, attrs, 2,
                    value_dtype(g, n.out[0]), NULL);
    rewrite_take_name(g, n.out[0], with[0]);
    return true;
}

Status pass_quantize(Module *m, PassCtx *cx) {
    for (int i = 0; i < m->graphs.len; i++)
        rewrite_graph(m->graphs.data[i], cx->scratch, quantize_rule, NULL);
    return OK;
}
