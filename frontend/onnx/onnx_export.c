/* SPDX-License-Identifier: Apache-2.0 */
/* onnx_export.c: writes the user's ONNX file with other weights.

   A module keeps a skeleton of the file (onnx_skeleton.c). Its empty tensors
   are filled. Nodes that an exporter left in training mode are switched to
   evaluation, since an exported model is for prediction. */
#include <string.h>

#include "frontend/onnx/onnx.h"
#include "frontend/onnx/wire.h"
#include "ir/base/files.h"

typedef struct Export {
    Arena *a;
    Diag *d;
    const char *path;
    Onnx__ModelProto *m;
    StrMap used; /* names read by nodes or by the graph's outputs */
} Export;

static Status export_fail(const Export *e, const char *what, const char *name) {
    StrBuf quoted = {0};
    sb_put_escaped(&quoted, name ? name : "");
    fail(e->d, (Loc){.file = e->path}, "'%s': %s", quoted.data, what);
    sb_free(&quoted);
    return ERR_USER;
}

/* ---- tensors ------------------------------------------------------------- */

static bool is_empty(const Onnx__TensorProto *t) {
    return !t->has_raw_data && !t->n_float_data && !t->n_int32_data &&
           !t->n_int64_data && !t->n_double_data && !t->n_uint64_data &&
           !t->n_string_data && !t->n_external_data;
}

static Status fill_tensor(Export *e, Onnx__TensorProto *t, const char *name,
                          OnnxWeightFn *weight, void *ctx) {
    DType dtype;
    if (!is_empty(t)) {
        if (t->n_external_data)
            warn(e->d, (Loc){.file = e->path},
                 "a constant of the model lies in another file, which must lie "
                 "beside the exported one too");
        return OK;
    }
    if (!name || t->n_dims > MAX_RANK || !dtype_from_onnx(t->data_type, &dtype))
        return export_fail(e, "a tensor of the stored model is damaged", name);
    Type type = {.dtype = dtype, .rank = (int)t->n_dims};
    for (size_t i = 0; i < t->n_dims; i++) {
        type.dim[i] = t->dims[i];
        if (t->dims[i] < 0)
            return export_fail(e, "a tensor of the stored model is damaged",
                               name);
    }
    int64_t bytes = type_bytes(&type);
    if (bytes == 0) return OK; /* whether the file stored it or not */
    t->raw_data.data = arena_alloc(e->a, (size_t)bytes + 1);
    t->raw_data.len = (size_t)bytes;
    t->has_raw_data = true;
    return weight(ctx, name, &type, t->raw_data.data);
}

/* ---- nodes as they infer ------------------------------------------------- */

static void note_used(Export *e, Onnx__NodeProto *const *node, size_t n) {
    for (size_t i = 0; i < n; i++)
        for (size_t k = 0; k < node[i]->n_input; k++)
            str_map_put(e->a, &e->used, intern(node[i]->input[k]), 1);
}

/* Outputs that exist only in training. */
static Status drop_outputs(Export *e, Onnx__NodeProto *n) {
    for (size_t k = 1; k < n->n_output; k++)
        if (*n->output[k] && str_map_get(&e->used, intern(n->output[k])) >= 0)
            return export_fail(e,
                               "the graph reads what its node gives in "
                               "training only",
                               n->output[k]);
    if (n->n_output > 1) n->n_output = 1;
    return OK;
}

static void drop_attribute(Onnx__NodeProto *n, const char *name) {
    size_t kept = 0;
    for (size_t i = 0; i < n->n_attribute; i++) {
        Onnx__AttributeProto *a = n->attribute[i];
        if (!a->name || strcmp(a->name, name)) n->attribute[kept++] = a;
    }
    n->n_attribute = kept;
}

static Status infer_node(Export *e, Onnx__NodeProto *n) {
    if (onnx_is_op(n, "BatchNormalization")) {
        drop_attribute(n, "training_mode");
        return drop_outputs(e, n);
    }
    if (!onnx_is_op(n, "Dropout")) return OK;
    if (n->n_input > 2) n->n_input = 2; /* the third operand: training_mode */
    return drop_outputs(e, n);
}

static Status infer_nodes(Export *e, Onnx__NodeProto *const *node, size_t n) {
    for (size_t i = 0; i < n; i++) TRY(infer_node(e, node[i]));
    return OK;
}

/* ---- the file ------------------------------------------------------------ */

typedef struct Pack {
    ProtobufCBuffer base;
    OutFile *out;
    bool failed;
} Pack;

static void pack_append(ProtobufCBuffer *b, size_t n, const uint8_t *data) {
    Pack *p = (Pack *)b;
    if (!p->failed) p->failed = !outfile_write(p->out, data, n);
}

Status ox_write(Diag *d, const char *path, const Onnx__ModelProto *m,
                OutFile *out) {
    Pack p = {.base = {.append = pack_append}, .out = out};
    if (onnx__model_proto__get_packed_size(m) > INT32_MAX)
        return fail(d, (Loc){.file = intern(path)},
                    "with its weights the model is larger than the 2 GiB that "
                    "an ONNX file can be");
    onnx__model_proto__pack_to_buffer(m, &p.base);
    return p.failed ? file_failed(d, path, out) : OK;
}

static Status export_model(Export *e, OnnxWeightFn *weight, void *ctx,
                           OutFile *out) {
    Onnx__GraphProto *g = e->m->graph;
    if (!g) return export_fail(e, "the stored model has no graph", "");
    note_used(e, g->node, g->n_node);
    for (size_t i = 0; i < g->n_output; i++)
        str_map_put(e->a, &e->used, intern(g->output[i]->name), 1);
    for (size_t i = 0; i < e->m->n_functions; i++) {
        Onnx__FunctionProto *f = e->m->functions[i];
        note_used(e, f->node, f->n_node);
        for (size_t k = 0; k < f->n_output; k++)
            str_map_put(e->a, &e->used, intern(f->output[k]), 1);
    }
    TRY(infer_nodes(e, g->node, g->n_node));
    for (size_t i = 0; i < e->m->n_functions; i++)
        TRY(infer_nodes(e, e->m->functions[i]->node,
                        e->m->functions[i]->n_node));
    for (size_t i = 0; i < g->n_initializer; i++) {
        Onnx__TensorProto *t = g->initializer[i];
        TRY(fill_tensor(e, t, t->name, weight, ctx));
    }
    bool in_nodes = onnx_weights_in_nodes(g);
    for (size_t i = 0; i < g->n_node && in_nodes; i++) {
        Onnx__TensorProto *t = onnx_node_weight(g->node[i]);
        if (t) TRY(fill_tensor(e, t, g->node[i]->output[0], weight, ctx));
    }
    return ox_write(e->d, e->path, e->m, out);
}

Status onnx_export(Arena *a, Diag *d, const char *path, const void *skeleton,
                   size_t n, OnnxWeightFn *weight, void *ctx, OutFile *out) {
    WireError err;
    Export e = {.a = a, .d = d, .path = path};
    e.m = (Onnx__ModelProto *)wire_unpack(a, &onnx__model_proto__descriptor,
                                          skeleton, n, &err);
    if (!e.m) return export_fail(&e, "the stored model is damaged", "");
    return export_model(&e, weight, ctx, out);
}
