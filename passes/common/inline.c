/* SPDX-License-Identifier: Apache-2.0 */
/* inline.c: the nodes of a function's body in place of its call.
   Before:  %y = softmax %x {axis=1} : bf16[64,10]
   After:   %x.reduce_max = reduce_max %x {axes=[1]} : bf16[64,1]
            ... sub, exp, reduce_sum ...
            %y = div %x.exp, %x.reduce_sum : bf16[64,10]
   Arithmetic of a body is fp32 (fp64 for fp64 operands) whatever is stored;
   only its results round to their declared types.
   Calls of `whole` functions (a parameter's update) stay one node until a
   target's passes make kernels: what stands between looks at no body.  One with
   a reduction or a product in it is inlined at once, for the passes that split
   these.
   requires     stage STEP
   establishes  no calls but of whole functions; on a target none            */
#include "ir/fn/optimizer.h"
#include "passes/rewrite.h"
#include "passes/passes.h"

static bool inline_rule(Rewriter *rw, NodeId id, ValueId *with) {
    Graph *g = rw->g;
    Node n = *node_get(g, id); /* building may move the pool */
    DType *want = NEW_ARRAY(rw->scratch, DType, n.nout);
    FnCall call = fn_call(&n);
    char msg[MSG_TEXT];
    int made = g->order.len;
    if (!n.fn ||
        (n.fn->whole && g->target == TARGET_ANY && call_is_elementwise(g, &n)))
        return false;
    call.want = want;
    call.flat = true;
    for (int i = 0; i < n.nout; i++) want[i] = value_dtype(g, n.out[i]);
    rw->b.loc.inside = true;
    if (node_class(&n) == AMP_LOW) rw->b.loc.amp = 0; /* it rounds operands */
    Status s = fn_run(&rw->b, &call, &call.fn->body, with, msg);
    ASSERT(s == OK && "the call was checked when it was made");
    for (int i = 0; i < n.nout && g->order.len > made; i++) {
        rewrite_take_name(g, n.out[i], with[i]);
        if (value_get(g, with[i])->kind == VK_RESULT)
            node_get(g, value_get(g, with[i])->def)->loc.inside = n.loc.inside;
    }
    return true;
}

Status pass_inline(Module *m, PassCtx *cx) {
    for (int i = 0; i < m->graphs.len; i++)
        rewrite_graph(m->graphs.data[i], cx->scratch, inline_rule, NULL);
    return OK;
}
