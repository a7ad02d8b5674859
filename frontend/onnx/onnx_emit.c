/* SPDX-License-Identifier: Apache-2.0 */
/* onnx_emit.c: a program as an ONNX file: --emit-onnx, ampc export.

   A value stored in 16 bits becomes a 16-bit tensor, and each rounding or
   widening becomes a Cast. Arithmetic is fp32, as in compiled code. ONNX's
   matrix products have one type, so a 16-bit one would round the sum that ampc
   keeps in fp32; and most ONNX runtimes have no bf16 arithmetic on CPUs. Ops
   that only move elements keep the type of their operand. The 16-bit copy of a
   parameter is a Cast of
   the parameter.                                                            */
#include <string.h>

#include "frontend/onnx/onnx_emit.h"

enum { OPSET = 20, IR_VERSION = 9 };

/* Opset 20 has no powers of two. */
static bool is_power_of_two(const Graph *g, const Node *n) {
    bool is = false;
    for (int k = 0; k < n->nout; k++)
        is |= value_dtype(g, n->out[k]) == DT_E8M0;
    return is;
}

/* Finds the nodes that the user's outputs need. Reports every op that ONNX
   lacks, once. */
static Status check_forms(Emit *e) {
    const Graph *g = e->g;
    Form f;
    StrMap told = {0};
    e->needed = NEW_ARRAY(e->a, bool, g->values.len);
    for (int i = 0; i < g->outputs.len; i++)
        if (!name_is_own(g->outputs.data[i].name))
            e->needed[g->outputs.data[i].value.i] = true;
    for (int i = g->order.len; i-- > 0;) {
        const Node *n = e->n = node_at(g, i);
        bool read = false, only_first = true;
        for (int k = 0; k < n->nout; k++) {
            read |= e->needed[n->out[k].i];
            only_first &= !k || !e->needed[n->out[k].i];
        }
        for (int k = 0; k < n->nin && read; k++) e->needed[n->in[k].i] = true;
        if (!read ||
            (only_first && emit_find_form(n->op, &f) && !is_power_of_two(g, n)))
            continue;
        Str name = intern(node_info(n)->text);
        if (str_map_get(&told, name) < 0) emit_fail(e, "has no form in ONNX");
        str_map_put(e->a, &told, name, 1);
    }
    return told.len ? ERR_USER : OK;
}

/* ---- the file ------------------------------------------------------------ */

/* Inputs, outputs and variables keep their names; a result that is several
   outputs takes the name of the first. */
static void name_values(Emit *e) {
    const Graph *g = e->g;
    const Module *m = g->module;
    e->as = NEW_ARRAY(e->a, Str, g->values.len * NUM_DTYPES);
    e->outputs = NEW_ARRAY(e->a, Str, g->outputs.len);
    e->has_var = NEW_ARRAY(e->a, bool, m->vars.len);
    for (int i = 0; i < m->vars.len; i++)
        str_map_put(e->a, &e->values, m->vars.data[i].name, 1);
    for (int i = 0; i < g->inputs.len; i++) {
        ValueId v = g->inputs.data[i];
        *emit_called(e, v, value_dtype(g, v)) =
            emit_fresh(e, &e->values, value_get(g, v)->name);
    }
    for (int i = 0; i < g->outputs.len; i++) {
        const Output *o = &g->outputs.data[i];
        const Value *v = value_get(g, o->value);
        Str *name = emit_called(e, o->value, value_dtype(g, o->value));
        if (name_is_own(o->name)) continue;
        bool same = v->kind == VK_VAR ? m->vars.data[v->var].name == o->name
                                      : *name == o->name;
        e->outputs[i] = same ? o->name : emit_fresh(e, &e->values, o->name);
        if (v->kind == VK_RESULT && !*name) *name = e->outputs[i];
    }
    for (int i = 0; i < g->order.len; i++) {
        ValueId v = node_at(g, i)->out[0];
        Str *name = emit_called(e, v, value_dtype(g, v));
        if (!*name) *name = emit_fresh(e, &e->values, value_get(g, v)->name);
    }
}

static void put_outputs(Emit *e, Onnx__GraphProto *p) {
    const Graph *g = e->g;
    p->output = NEW_ARRAY(e->a, Onnx__ValueInfoProto *, g->outputs.len);
    e->n = NULL;
    for (int i = 0; i < g->outputs.len; i++) {
        Str to = e->outputs[i];
        if (!to) continue;
        ValueId v = g->outputs.data[i].value;
        Str name = emit_as_stored(e, v);
        if (name != to) emit_node(e, "Identity", &name, 1, to);
        p->output[p->n_output++] = emit_value_info(e, to, value_type(g, v));
    }
}

static Status emit_graph(Emit *e, Onnx__GraphProto *p) {
    const Graph *g = e->g;
    Form f;
    p->name = (char *)(*g->module->name ? g->module->name : g->name);
    p->n_input = (size_t)g->inputs.len;
    p->input = NEW_ARRAY(e->a, Onnx__ValueInfoProto *, g->inputs.len);
    for (int i = 0; i < g->inputs.len; i++) {
        ValueId v = g->inputs.data[i];
        const Type *t = value_type(g, v);
        p->input[i] = emit_value_info(e, *emit_called(e, v, t->dtype), t);
    }
    for (int i = 0; i < g->order.len; i++) {
        e->n = node_at(g, i);
        if (e->needed[e->n->out[0].i] && emit_find_form(e->n->op, &f))
            TRY(f.put(e, &f));
    }
    put_outputs(e, p);
    p->n_node = (size_t)e->nodes.len;
    p->node = e->nodes.data;
    p->n_initializer = (size_t)e->tensors.len;
    p->initializer = e->tensors.data;
    p->n_value_info = (size_t)e->infos.len;
    p->value_info = e->infos.data;
    return OK;
}

Status onnx_emit(Arena *a, Diag *d, const char *path, const Graph *g,
                 OnnxWeightFn *weight, void *ctx, OutFile *out) {
    Emit e = {.a = a, .d = d, .g = g, .weight = weight, .ctx = ctx};
    Onnx__ModelProto model = ONNX__MODEL_PROTO__INIT;
    Onnx__GraphProto graph = ONNX__GRAPH_PROTO__INIT;
    Onnx__OperatorSetIdProto opset = ONNX__OPERATOR_SET_ID_PROTO__INIT;
    Onnx__OperatorSetIdProto *opsets[] = {&opset};
    TRY(check_forms(&e));
    name_values(&e);
    TRY(emit_graph(&e, &graph));
    TRY(e.weights);
    opset.domain = "";
    opset.has_version = model.has_ir_version = true;
    opset.version = OPSET;
    model.ir_version = IR_VERSION;
    model.producer_name = "ampc";
    model.graph = &graph;
    model.n_opset_import = 1;
    model.opset_import = opsets;
    return ox_write(d, path, &model, out);
}
