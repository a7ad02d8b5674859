/* SPDX-License-Identifier: Apache-2.0 */
/* grad.c: gradients that the model itself asks for.
   Before:  %g = grad %y, %x : f32[4,8]
   After:   the nodes that compute d sum(y) / dx, the last of them called %g
   They stand where the op stood and are nodes as any others, so that a loss may
   be computed from them (a gradient penalty) and differentiated again.
   requires     stage TYPED
   establishes  no op grad                                                   */
#include "ir/fn/fn.h"
#include "passes/passes.h"
#include "passes/rewrite.h"

/* A call is differentiated as a whole, so gradients requested inside its
   body are not. */
static Status check_call(const Graph *g, PassCtx *cx, const Node *n) {
    const Type **in = NEW_ARRAY(cx->scratch, const Type *, n->nin + 1);
    for (int k = 0; k < n->nin; k++)
        in[k] = n->in[k].i ? value_type(g, n->in[k]) : NULL;
    const Graph *body = fn_instance(n, in)->g;
    for (int i = 0; i < body->order.len; i++) {
        const Node *x = node_at(body, i);
        if (x->op == OP_GRAD)
            return fail(
                cx->diag, n->loc,
                "grad is used inside function %s; only graphs may use it",
                node_info(n)->text);
        if (x->fn) TRY(check_call(body, cx, x));
    }
    return OK;
}

static Status expand(Graph *g, PassCtx *cx, const Node *n, ValueId *grads) {
    Builder b = {.g = g, .loc = n->loc};
    ValueId y = n->in[0], seed = b_full(&b, value_get(g, y)->type, 1);
    TRY(autodiff(g, cx->diag, cx->scratch, 0, y, seed, n->in + 1, n->nout,
                 grads));
    for (int k = 0; k < n->nout; k++) {
        if (!is_value(grads[k]))
            return fail(
                cx->diag, n->loc, "grad: no gradient passes from '%s' to '%s'",
                value_get(g, y)->name, value_get(g, n->in[k + 1])->name);
        rewrite_take_name(g, n->out[k], grads[k]);
    }
    return OK;
}

static Status calls_do_graph(Graph *g, PassCtx *cx) {
    int n;
    NodeId *old = order_take(g, cx->scratch, &n);
    ValueId *map = /* 0: itself */
        NEW_ARRAY(cx->scratch, ValueId, g->values.len);
    for (int i = 0; i < n; i++) {
        Node x = *node_get(g, old[i]); /* building may move the pool */
        for (int k = 0; k < x.nin; k++)
            if (map[x.in[k].i].i) x.in[k] = map[x.in[k].i];
        if (x.fn) TRY(check_call(g, cx, &x));
        if (x.op != OP_GRAD) {
            vec_push(g->arena, &g->order, old[i]);
            continue;
        }
        ValueId *grads = NEW_ARRAY(cx->scratch, ValueId, x.nout);
        TRY(expand(g, cx, &x, grads));
        for (int k = 0; k < x.nout; k++) map[x.out[k].i] = grads[k];
    }
    for (uint32_t v = 1; v < (uint32_t)g->values.len; v++)
        value_get(g, (ValueId){v})->held = false;
    for (int i = 0; graph_root(g, i); i++) {
        ValueId *v = graph_root(g, i);
        if (map[v->i].i) *v = map[v->i];
    }
    return OK;
}

Status pass_grad(Module *m, PassCtx *cx) {
    for (int i = 0; i < m->graphs.len; i++)
        TRY(calls_do_graph(m->graphs.data[i], cx));
    return OK;
}
