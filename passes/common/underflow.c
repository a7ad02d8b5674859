/* SPDX-License-Identifier: Apache-2.0 */
/* underflow.c: --count-underflow: counts the elements of each gradient that
   fp16 flushes to zero.
   Before:  graph underflow, as probes makes it:
            %dy = ... : f16[4,3]                 %g = matmul %x, %dy : f32[2,3]
   After:   the same, and backward once more in fp32
            %dy.2 = ... : f32[4,3]               %g.2 = matmul %x, %dy.2
            return ampc.nonzero/w=sum(%g.2 != 0),
                   ampc.flushed/w=sum(%g == 0 and %g.2 != 0)
   An element that is zero with 16-bit values on its way and not without was
   lost; one that is zero either way (an unused row, a dead unit) was not there.
   The host runs it when it wants to know (api->underflow); programs that train
   are the same, and so are their checkpoints.
   requires     stage PRIMITIVE, types chosen */
#include "passes/passes.h"

typedef struct Underflow {
    Graph *g;
    Builder b;
    Arena *scratch;
    ValueId *wide; /* per value: its form in fp32; 0: none yet */
    int limit;     /* length of `wide` */
} Underflow;

/* ---- backward in fp32 ---------------------------------------------------- */

static ValueId wide(Underflow *u, ValueId v) {
    if (!v.i) return v;
    if (u->wide[v.i].i) return u->wide[v.i];
    return dtype_is_short(value_dtype(u->g, v)) ? b_cast(&u->b, v, DT_F32) : v;
}

/* Makes a node of backward fp32; forward nodes stay unchanged. */
static void widen_node(Underflow *u, NodeId id) {
    Node n = *node_get(u->g, id); /* building may move the pool */
    if (!(n.flags & NODE_BACKWARD) || n.flags & NODE_AGAIN) return;
    ValueId *in = NEW_ARRAY(u->scratch, ValueId, n.nin);
    DType *out = NEW_ARRAY(u->scratch, DType, n.nout);
    u->b.loc = n.loc;
    for (int i = 0; i < n.nin; i++) in[i] = wide(u, n.in[i]);
    for (int i = 0; i < n.nout; i++) {
        out[i] = value_dtype(u->g, n.out[i]);
        if (dtype_is_short(out[i])) out[i] = DT_F32;
    }
    if (n.op == OP_CAST) {
        u->wide[n.out[0].i] = b_cast(&u->b, in[0], out[0]);
        return;
    }
    if (!n.nin) return; /* a generator */
    NodeId to =
        n.fn ? build_call(&u->b, n.fn, in, n.nin, n.attrs, n.nattr, n.nout, out)
             : build_multi(&u->b, n.op, in, n.nin, n.attrs, n.nattr, n.nout,
                           out, NULL);
    for (int i = 0; i < n.nout; i++)
        u->wide[n.out[i].i] = node_get(u->g, to)->out[i];
}

/* ---- the counts ---------------------------------------------------------- */

static ValueId is_zero(Underflow *u, ValueId v) {
    ValueId zero = b_scalar(&u->b, value_dtype(u->g, v), 0);
    return b2(&u->b, OP_EQUAL, v, zero, DT_DEFAULT);
}

static ValueId underflow_count(Underflow *u, ValueId flags) {
    int64_t n = value_count(u->g, flags), axis = 0;
    ValueId x = b_reshape(&u->b, b_cast(&u->b, flags, DT_F64), 1, &n);
    x = b_reduce(&u->b, OP_REDUCE_SUM, x, &axis, 1, true, DT_F64);
    return b_reshape(&u->b, x, 0, NULL);
}

static void count_graph(Graph *g, PassCtx *cx) {
    Underflow u = {.g = g,
                   .b = {.g = g, .flags = NODE_BACKWARD},
                   .scratch = cx->scratch,
                   .limit = g->values.len};
    u.wide = NEW_ARRAY(cx->scratch, ValueId, u.limit);
    for (int i = 0, n = g->order.len; i < n; i++)
        widen_node(&u, g->order.data[i]);
    Output *old = g->outputs.data;
    int nold = g->outputs.len;
    g->outputs.data = NULL;
    g->outputs.len = g->outputs.cap = 0;
    g->writes.len = 0;
    for (int i = 0; i < nold; i++) {
        Str parameter = family_member(FAMILY_GRAD, old[i].name);
        if (!parameter) continue;
        ValueId lost = is_zero(&u, old[i].value);
        ValueId there = is_zero(&u, wide(&u, old[i].value));
        there = b1(&u.b, OP_NOT, there, DT_DEFAULT);
        lost = b2(&u.b, OP_AND, lost, there, DT_DEFAULT);
        graph_add_output(g, family_name(FAMILY_NONZERO, parameter),
                         underflow_count(&u, there));
        graph_add_output(g, family_name(FAMILY_FLUSHED, parameter),
                         underflow_count(&u, lost));
    }
}

Status pass_underflow(Module *m, PassCtx *cx) {
    for (int i = 0; i < m->graphs.len; i++)
        if (m->graphs.data[i]->program == PROGRAM_UNDERFLOW)
            count_graph(m->graphs.data[i], cx);
    return OK;
}
