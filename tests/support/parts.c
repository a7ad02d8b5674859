/* SPDX-License-Identifier: Apache-2.0 */
/* parts.c: see parts.h. */
#include "tests/support/parts.h"

#include "ir/graph/ir_impl.h"
#include "passes/passes.h"
#include "tests/harness.h"

/* ---- grafting ------------------------------------------------------------ */

static ValueId copy_const(Graph *all, const Value *v, const Tensor *data,
                          const char *prefix, Held *held) {
    const Type *t = type_get(v->type);
    const char *name = v->name ? internf("%s%s", prefix, v->name) : NULL;
    if (type_count(t) > DATA_SHOWN) {
        vec_push(all->arena, held, data);
        return graph_input(all, name, v->type);
    }
    if (t->rank || name) return graph_const(all, name, data);
    return dtype_is_float(t->dtype)
               ? graph_scalar(all, t->dtype, tensor_get(data, 0))
               : graph_scalar_int(all, t->dtype, tensor_get_int(data, 0));
}

static const Tensor *start_of(Arena *a, const Var *v) {
    const Tensor *t = var_initial(a, v);
    if (t) return t;
    Tensor *filled = tensor_new(a, v->type);
    for (int64_t i = 0; i < type_count(type_get(v->type)); i++)
        tensor_set(filled, i, v->fill);
    return filled;
}

static ValueId *copy_leaves(Graph *all, const Graph *g, const char *prefix,
                            Held *held) {
    ValueId *map = NEW_ARRAY(all->arena, ValueId, g->values.len);
    for (int i = 0; i < g->inputs.len; i++) {
        const Value *v = value_get(g, g->inputs.data[i]);
        map[g->inputs.data[i].i] =
            graph_input(all, internf("%s%s", prefix, v->name), v->type);
    }
    for (int i = 1; i < g->values.len; i++) {
        const Value *v = &g->values.data[i];
        if (v->kind != VK_CONST && v->kind != VK_VAR) continue;
        const Tensor *data =
            v->kind == VK_CONST
                ? v->data
                : start_of(all->arena, &g->module->vars.data[v->var]);
        map[i] = copy_const(all, v, data, prefix, held);
    }
    return map;
}

static void copy_node(Graph *all, const Graph *g, const Node *n, ValueId *map,
                      const char *prefix) {
    ValueId *in = NEW_ARRAY(all->arena, ValueId, n->nin + 1);
    TypeId *types = NEW_ARRAY(all->arena, TypeId, n->nout);
    const char **names = NEW_ARRAY(all->arena, const char *, n->nout);
    Diag d = {0};
    NodeId made;
    for (int i = 0; i < n->nin; i++) in[i] = map[n->in[i].i];
    for (int i = 0; i < n->nout; i++) {
        types[i] = value_get(g, n->out[i])->type;
        names[i] = internf("%s%s", prefix, value_get(g, n->out[i])->name);
    }
    Builder b = {.g = all};
    Status s = build_checked(&b, &d, node_callee(n), in, n->nin, n->attrs,
                             n->nattr, n->nout, types, names, &made);
    if (s != OK) FAIL("%s: %s", prefix, d.text.data);
    for (int i = 0; i < n->nout; i++)
        map[n->out[i].i] = node_get(all, made)->out[i];
}

void parts_add(Graph *all, const Graph *g, const char *prefix, Held *held) {
    ValueId *map = copy_leaves(all, g, prefix, held);
    for (int i = 0; i < g->order.len; i++)
        copy_node(all, g, node_get(g, g->order.data[i]), map, prefix);
    for (int i = 0; i < g->outputs.len; i++) {
        const Output *o = &g->outputs.data[i];
        graph_add_output(all, internf("%s%s", prefix, o->name),
                         map[o->value.i]);
    }
}

/* ---- gradients ----------------------------------------------------------- */

double parts_weight(int64_t element) {
    return 0.25 + 0.75 * (double)(element * 37 % 64) / 64;
}

static ValueId weighted_sum(Builder *b, ValueId v) {
    Type t = *value_type(b->g, v);
    Tensor *w = tensor_new(b->g->arena, type_make(DT_F32, t.rank, t.dim));
    int64_t axes[MAX_RANK], n = type_count(&t);
    for (int64_t i = 0; i < n; i++) tensor_set(w, i, parts_weight(i));
    for (int i = 0; i < t.rank; i++) axes[i] = i;
    DType d = t.dtype == DT_F64 ? DT_F64 : DT_F32;
    if (dtype_info[t.dtype].stored)
        v = b_cast(b, v, d); /* no other op reads it */
    ValueId x = b2(b, OP_MUL, v, graph_const(b->g, "weights", w), d);
    return t.rank ? b_reduce(b, OP_REDUCE_SUM, x, axes, t.rank, false, d) : x;
}

Status parts_to_gradients(Graph *g, Diag *d) {
    Builder b = {.g = g};
    ValueId loss = NO_VALUE;
    ValueId *want = NEW_ARRAY(g->arena, ValueId, g->inputs.len + 1);
    ValueId *grads = NEW_ARRAY(g->arena, ValueId, g->inputs.len + 1);
    int n = 0;
    for (int i = 0; i < g->outputs.len; i++) {
        ValueId v = g->outputs.data[i].value;
        if (!dtype_is_float(value_dtype(g, v))) continue;
        ValueId s = weighted_sum(&b, v);
        loss = loss.i ? b2(&b, OP_ADD, loss, s, DT_DEFAULT) : s;
    }
    for (int i = 0; i < g->inputs.len; i++) {
        DType dtype = value_dtype(g, g->inputs.data[i]);
        if (dtype_is_float(dtype) && !dtype_info[dtype].stored)
            want[n++] = g->inputs.data[i];
    }
    g->outputs.len = 0;
    if (!loss.i || !n) return OK;
    TRY(autodiff(g, d, g->arena, NODE_BACKWARD, loss, NO_VALUE, want, n,
                 grads));
    for (int i = 0; i < n; i++) {
        Str name = internf("grad.%s", value_get(g, want[i])->name);
        if (grads[i].i) graph_add_output(g, name, grads[i]);
    }
    return OK;
}
