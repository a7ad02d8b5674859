/* verify_stage.c: what the passes of each stage promise (list: verify.c).   */
#include "ir/graph/verify.h"

/* ---- PRIMITIVE ----------------------------------------------------------- */

Status verify_primitive(Verifier *v) {
    for (int i = 0; i < v->g->order.len; i++) {
        const Node *n = node_get(v->g, v->g->order.data[i]);
        OpKind kind = op_info[n->op].kind;
        if (kind == KIND_COMPOSITE || n->op == OP_SPLIT)
            return verify_fail(v, n, "is expanded by now");
        if (kind == KIND_REDUCE && !attr_int(n, AK_keepdims, 1))
            return verify_fail(v, n, "reductions keep their dimensions by now");
    }
    return OK;
}
