/* SPDX-License-Identifier: Apache-2.0 */
/* lift.c: makes values that the compiler rounded to 16 bits f32 again, except
   operands of matrix products.
   Before:  %h = matmul %x, %w : bf16[..]     %r = add %h, %y : bf16[..]
   After:   %h = matmul %x, %w : f32[..]      %r = add %h, %y : f32[..]
            %r.bf16 = cast %r         before the product that reads %r
   Values that the model itself declares as 16 bits stay, as do values computed
   from them and the copies that the update writes.
   requires     stage PRIMITIVE
   establishes  only products, and writes of variables of 16 bits, read values
                that the compiler made 16 bits, each through its own cast */
#include "passes/rewrite.h"
#include "passes/passes.h"

typedef struct Lift {
    Graph *g;
    DType low;
    Builder b;
    bool *own;       /* per value: the model declares it as 16 bits */
    bool *made;      /* per value: 16 bits by the compiler's choice; not a
                        constant or a copy of a variable, nor a move of one */
    ValueId *wide;   /* per value: its f32 replacement; 0: itself */
    ValueId *low_of; /* per value: its 16-bit cast */
    bool *stands;    /* per value: this cast is in the new order already */
    uint32_t limit;
} Lift;

/* True if the model declares v as 16 bits; false for the compiler's copies
   and folded constants. */
static bool declares_16(const Graph *g, ValueId v) {
    const Value *val = value_get(g, v);
    if (!dtype_is_low(type_get(val->type)->dtype)) return false;
    if (val->kind == VK_VAR)
        return value_var(g, v)->kind != VAR_SHADOW &&
               value_var(g, v)->stored_dtype != DT_F32;
    return val->kind == VK_INPUT;
}

static bool is_compiler_cast(const Node *n) {
    return n->op == OP_CAST && !attr_int(n, AK_user) &&
           !(n->flags & NODE_UPDATE);
}

static void lift_find_own(Lift *l) {
    const Graph *g = l->g;
    for (uint32_t v = 1; v < l->limit; v++)
        l->own[v] = declares_16(g, (ValueId){v});
    for (int i = 0; i < g->order.len; i++) {
        const Node *n = node_at(g, i);
        bool own = n->op == OP_CAST && !is_compiler_cast(n);
        for (int k = 0; k < n->nin; k++) own |= l->own[n->in[k].i];
        for (int k = 0; k < n->nout; k++)
            l->own[n->out[k].i] =
                own && dtype_is_low(value_dtype(g, n->out[k]));
    }
    l->own[0] = false;
}

static void find_made(Lift *l) {
    const Graph *g = l->g;
    for (int i = 0; i < g->order.len; i++) {
        const Node *n = node_at(g, i);
        OpKind kind = node_kind(n);
        bool moves = kind == KIND_MOVE || kind == KIND_VIEW;
        ValueId v = n->out[0], from = n->nin ? n->in[0] : NO_VALUE;
        bool of_leaf = moves && dtype_is_low(value_dtype(g, from)) &&
                       !l->own[from.i] && !l->made[from.i];
        l->made[v.i] = !l->own[v.i] && !of_leaf && value_dtype(g, v) == l->low;
    }
}

static ValueId wide(const Lift *l, ValueId v) {
    return v.i < l->limit && l->wide[v.i].i ? l->wide[v.i] : v;
}

/* The 16-bit cast of v, an existing one if possible. For a view: the view of
   its source's cast, which all views of the source share. */
static ValueId low(Lift *l, ValueId v) {
    if (value_dtype(l->g, v) != DT_F32) return v;
    ValueId c = l->low_of[v.i];
    const Value *val = value_get(l->g, v);
    const Node *def = val->kind == VK_RESULT ? node_get(l->g, val->def) : NULL;
    bool stands = c.i >= l->limit || l->stands[c.i];
    if (!stands && def && node_kind(def) == KIND_VIEW) {
        ValueId from = low(l, def->in[0]);
        def = node_get(l->g, val->def);
        c = build(&l->b, def->op, &from, 1, def->attrs, def->nattr, l->low,
                  NULL);
    } else if (!c.i) {
        c = b_cast(&l->b, v, l->low);
    } else if (c.i < l->limit && !l->stands[c.i]) {
        NodeId id = value_get(l->g, c)->def;
        node_get(l->g, id)->in[0] = v;
        vec_push(l->g->arena, &l->g->order, id);
        l->stands[c.i] = true;
    }
    return l->low_of[v.i] = c;
}

static void lift_node(Lift *l, NodeId id) {
    Graph *g = l->g;
    Node n = *node_get(g, id);
    bool product = op_info[n.op].amp == AMP_LOW;
    /* Removes a cast between f32 and a value that the compiler made 16 bits. */
    if (is_compiler_cast(&n) &&
        ((l->made[n.out[0].i] && value_dtype(g, n.in[0]) == DT_F32) ||
         (l->made[n.in[0].i] && value_dtype(g, n.out[0]) == DT_F32))) {
        ValueId from = wide(l, n.in[0]);
        const Value *v = value_get(g, from);
        Node *def = v->kind == VK_RESULT ? node_get(g, v->def) : NULL;
        if (def && def->loc.inside && !n.loc.inside) {
            /* The function ended with the cast; now it ends with the cast's
               operand. */
            def->loc.inside = false;
            rewrite_take_name(g, n.out[0], from);
        }
        l->wide[n.out[0].i] = from;
        if (!l->low_of[from.i].i && l->made[n.out[0].i])
            l->low_of[from.i] = n.out[0];
        return;
    }
    for (int k = 0; k < n.nin; k++) {
        ValueId in = wide(l, n.in[k]);
        if (product && l->made[n.in[k].i]) {
            l->b.flags = n.flags & NODE_BACKWARD;
            in = low(l, in);
        }
        n.in[k] = in;
    }
    Value *v = value_get(g, n.out[0]);
    if (!(n.flags & NODE_UPDATE) && l->made[n.out[0].i])
        v->type = type_with_dtype(v->type, DT_F32);
    vec_push(g->arena, &g->order, id);
}

static void lift_graph(Graph *g, Arena *scratch) {
    uint32_t limit = (uint32_t)g->values.len;
    Lift l = {.g = g, .low = g->module->low, .b = {.g = g}, .limit = limit};
    l.own = NEW_ARRAY(scratch, bool, limit);
    l.made = NEW_ARRAY(scratch, bool, limit);
    l.wide = NEW_ARRAY(scratch, ValueId, limit);
    l.low_of = NEW_ARRAY(scratch, ValueId, limit);
    l.stands = NEW_ARRAY(scratch, bool, limit);
    lift_find_own(&l);
    find_made(&l);
    int n;
    NodeId *old = order_take(g, scratch, &n);
    for (int i = 0; i < n; i++) lift_node(&l, old[i]);
    for (int i = 0; graph_root(g, i); i++)
        *graph_root(g, i) = wide(&l, *graph_root(g, i));
    l.b.flags = 0;
    for (int i = 0; i < g->writes.len; i++)
        if (value_dtype(g, g->writes.data[i].var) == l.low)
            g->writes.data[i].value = low(&l, g->writes.data[i].value);
}

Status pass_lift(Module *m, PassCtx *cx) {
    if (m->low == NUM_DTYPES || m->rule) return OK;
    for (int i = 0; i < m->graphs.len; i++)
        lift_graph(m->graphs.data[i], cx->scratch);
    return OK;
}
