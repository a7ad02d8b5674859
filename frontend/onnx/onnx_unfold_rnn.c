/* SPDX-License-Identifier: Apache-2.0 */
/* onnx_unfold_rnn.c: parameters of recurrent layers, which PyTorch's exporter
   folds into W, R and B of ONNX: the gates in another order, both directions
   concatenated, and both biases concatenated.

   Each parameter gets its gates back in PyTorch's order; nodes Split, Concat
   and Reshape convert them to what the layer reads. */
#include <string.h>

#include "frontend/onnx/onnx_unfold.h"

enum { GATES = 4 };

/* For each gate in ONNX's order, its number in PyTorch's. */
static const struct Rnn {
    const char *aten, *onnx;
    int gates, order[GATES];
} rnns[] = {
    {"aten.lstm.input", "LSTM", 4, {0, 3, 1, 2}},
    {"aten.gru.input", "GRU", 3, {1, 0, 2}},
    {"aten.rnn_tanh.input", "RNN", 1, {0}},
    {"aten.rnn_relu.input", "RNN", 1, {0}},
};

/* W, R or B of a node, and the parameters of which it consists. */
typedef struct Folded {
    Slot slot;
    int at[4], count; /* lines of the signature */
} Folded;

static const struct Rnn *rnn_of(Str text) {
    const char *op = unfold_op(text);
    for (size_t i = 0; i < sizeof rnns / sizeof *rnns; i++)
        if (!strncmp(op, rnns[i].aten, strlen(rnns[i].aten))) return &rnns[i];
    return NULL;
}

/* The tensor consists of exactly these parameters and constants of the code. */
static bool made_of(const Unfold *u, const Folded *f) {
    Str list = f->slot.init >= 0 ? u->folded[f->slot.init] : NULL;
    int found = 0;
    const char *s = list, *end;
    for (; s && (s = strchr(s, '\'')) && (end = strchr(s + 1, '\''));
         s = end + 1) {
        int line =
            str_map_get(&u->targets, intern_n(s + 1, (size_t)(end - s - 1)));
        bool ours = line < 0;
        for (int i = 0; i < f->count; i++) ours |= f->at[i] == line;
        if (!ours) return false;
        found += line >= 0;
    }
    return found == f->count;
}

/* ---- a parameter's values ------------------------------------------------ */

/* The gates of part `part` of the tensor, whose parts are concatenated. */
static Status put_values(Unfold *u, const struct Rnn *r, const Folded *f,
                         int part, const Tensor *data) {
    const Onnx__TensorProto *from = u->g->initializer[f->slot.init];
    const Type *type = type_get(data->type);
    size_t bytes = (size_t)type_bytes(type) / (size_t)f->count;
    size_t gate = bytes / (size_t)r->gates;
    const uint8_t *in = (const uint8_t *)data->data + (size_t)part * bytes;
    uint8_t *out = arena_alloc(u->a, bytes + 1);
    int64_t dim[2] = {type->rank == 3 ? type->dim[1] : type->dim[1] / 2,
                      type->rank == 3 ? type->dim[2] : 0};
    for (int i = 0; i < r->gates; i++)
        memcpy(out + (size_t)r->order[i] * gate, in + (size_t)i * gate, gate);
    return unfold_values(u, f->at[part], from, out, bytes, dim,
                         type->rank == 3 ? 2 : 1);
}

/* ---- nodes --------------------------------------------------------------- */

static char *named(Unfold *u, Str of, const char *what, int i) {
    return unfold_copy(u, internf("%s.%s%d", of, what, i));
}

/* Appends the names of the parameter's gates, in ONNX's order. */
static void rnn_split(Unfold *u, const struct Rnn *r, const Folded *f, int part,
                      int64_t rows, char **gates) {
    Str target = u->ox->signature.data[f->at[part]].target;
    int64_t sizes[GATES];
    if (r->gates == 1) {
        gates[0] = unfold_copy(u, target);
        return;
    }
    Onnx__NodeProto *n = unfold_node(u, "Split", f->slot.node, 2, r->gates);
    for (int i = 0; i < r->gates; i++) {
        sizes[i] = rows / r->gates;
        n->output[i] = named(u, target, "gate", i);
    }
    n->input[0] = unfold_copy(u, target);
    n->input[1] = unfold_integers(u, internf("%s.gates", target), sizes,
                                  (size_t)r->gates);
    n->name = named(u, target, "split", 0);
    vec_push(u->a, &u->nodes, n);
    for (int i = 0; i < r->gates; i++) gates[i] = n->output[r->order[i]];
}

static void set_axis_0(Unfold *u, Onnx__NodeProto *n) {
    Onnx__AttributeProto *a = NEW(u->a, Onnx__AttributeProto);
    onnx__attribute_proto__init(a);
    a->name = unfold_copy(u, "axis");
    a->has_type = true;
    a->type = ONNX__ATTRIBUTE_PROTO__ATTRIBUTE_TYPE__INT;
    a->has_i = true;
    a->i = 0;
    n->n_attribute = 1;
    n->attribute = NEW(u->a, Onnx__AttributeProto *);
    n->attribute[0] = a;
}

static void put_nodes(Unfold *u, const struct Rnn *r, const Folded *f,
                      const Type *type) {
    Str first = u->ox->signature.data[f->at[0]].target;
    int64_t rows = type->rank == 3 ? type->dim[1] : type->dim[1] / 2;
    Onnx__NodeProto *all =
        unfold_node(u, "Concat", f->slot.node, f->count * r->gates, 1);
    for (int i = 0; i < f->count; i++)
        rnn_split(u, r, f, i, rows, all->input + i * r->gates);
    set_axis_0(u, all);
    all->name = named(u, first, "concat", 0);
    all->output[0] = named(u, first, "rows", 0);
    vec_push(u->a, &u->nodes, all);
    Onnx__NodeProto *shape = unfold_node(u, "Reshape", f->slot.node, 2, 1);
    shape->input[0] = all->output[0];
    shape->input[1] = unfold_integers(u, internf("%s.shape", all->output[0]),
                                      type->dim, (size_t)type->rank);
    shape->name = named(u, first, "reshape", 0);
    shape->output[0] = named(u, first, "folded", 0);
    vec_push(u->a, &u->nodes, shape);
    f->slot.node->input[f->slot.k] = shape->output[0];
    u->changes++;
}

/* ---- a layer ------------------------------------------------------------- */

static bool has_all(const Unfold *u, const Folded *f) {
    for (int i = 0; i < f->count; i++)
        if (str_map_get(&u->inits, u->ox->signature.data[f->at[i]].target) >= 0)
            return true;
    return false;
}

static Status restore_one(Unfold *u, const struct Rnn *r, const Folded *f) {
    const Tensor *data;
    if (!made_of(u, f) || has_all(u, f)) return OK;
    const Onnx__TensorProto *from = u->g->initializer[f->slot.init];
    TRY(ox_tensor(u->ox, from, ox_text(from->name), &data));
    const Type *type = type_get(data->type);
    int rank = f->slot.k == 3 ? 2 : 3;
    int64_t parts = f->slot.k == 3 ? 2 : 1;
    if (type->rank != rank || type->dim[0] * parts != f->count ||
        type->dim[1] % (parts * r->gates))
        return OK;
    for (int i = 0; i < f->count; i++) TRY(put_values(u, r, f, i, data));
    put_nodes(u, r, f, type);
    return OK;
}

/* Operands k = 1, 2, 3: weights, recurrent weights, both biases of each
   direction. */
static Status restore_layer(Unfold *u, const struct Rnn *r, Onnx__NodeProto *n,
                            const int *at, int directions, int each) {
    for (size_t k = 1; k < n->n_input && k < (each == 4 ? 4u : 3u); k++) {
        Folded f = {
            .slot = {n, k, str_map_get(&u->inits, ox_text(n->input[k]))}};
        if (f.slot.init < 0 || f.slot.init >= u->ninits) continue;
        for (int d = 0; d < directions; d++)
            for (int b = 0; b < (k == 3 ? 2 : 1); b++)
                f.at[f.count++] = at[d * each + (int)k - 1 + b];
        TRY(restore_one(u, r, &f));
    }
    return OK;
}

Status unfold_rnn(Unfold *u, size_t first, size_t end, Str text) {
    const struct Rnn *r = rnn_of(text);
    int at[MOST], layers = 0, next = 0;
    if (!r) return OK;
    int nat = unfold_arguments(u, text, at);
    for (size_t i = first; i < end; i++)
        layers += onnx_is_op(u->g->node[i], r->onnx);
    const OxNode n = {.proto = u->g->node[first]};
    Str biases = ox_torch_argument(&n, 3), both = ox_torch_argument(&n, 7);
    int each = biases && !strcmp(biases, "True") ? 4 : 2;
    int directions = both && !strcmp(both, "True") ? 2 : 1;
    if (!layers || nat != layers * directions * each) return OK;
    for (size_t i = first; i < end; i++) {
        if (!onnx_is_op(u->g->node[i], r->onnx)) continue;
        TRY(restore_layer(u, r, u->g->node[i], at + next, directions, each));
        next += directions * each;
    }
    return OK;
}
