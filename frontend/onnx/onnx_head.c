/* SPDX-License-Identifier: Apache-2.0 */
/* onnx_head.c: --replace-head OUTPUT=N: the linear layer before an output gets
   N units. Its fresh weights are initialised as by PyTorch's Linear: uniform in
   +-1/sqrt(inputs), by the seed.

   The file's bytes are changed before anything else reads them, so that the
   copy of the model in the module, and its exports, have the new layer. */
#include <math.h>
#include <string.h>

#include "frontend/onnx/onnx.h"
#include "frontend/onnx/wire.h"

typedef struct Head {
    Arena *a;
    Diag *d;
    const char *path;
    Onnx__GraphProto *g;
    uint64_t random;
    Onnx__TensorProto *weight, *bias; /* bias may be NULL */
    const char *weight_name, *bias_name;
    int axis;    /* axis of the weight's units */
    bool shared; /* weight or bias is read elsewhere, too */
} Head;

static Status head_fail(const Head *h, const char *output, const char *fmt, ...)
    PRINTF_LIKE(3, 4);
static Status head_fail(const Head *h, const char *output, const char *fmt,
                        ...) {
    StrBuf sb = {0};
    va_list ap;
    sb_puts(&sb, "--replace-head: '");
    sb_put_escaped(&sb, output);
    sb_puts(&sb, "' ");
    va_start(ap, fmt);
    sb_vprintf(&sb, fmt, ap);
    va_end(ap);
    fail(h->d, (Loc){.file = h->path}, "%s", sb.data);
    sb_free(&sb);
    return ERR_USER;
}

/* ---- finding the layer --------------------------------------------------- */

static Onnx__NodeProto *made_by(const Head *h, const char *name) {
    for (size_t i = 0; i < h->g->n_node; i++)
        if (h->g->node[i]->n_output && !strcmp(h->g->node[i]->output[0], name))
            return h->g->node[i];
    return NULL;
}

static Onnx__TensorProto *initializer(const Head *h, const char *name) {
    for (size_t i = 0; i < h->g->n_initializer; i++)
        if (h->g->initializer[i]->name &&
            !strcmp(h->g->initializer[i]->name, name))
            return h->g->initializer[i];
    const Onnx__NodeProto *n = made_by(h, name);
    return n && onnx_weights_in_nodes(h->g) ? onnx_node_weight(n) : NULL;
}

static int readers(const Head *h, const char *name) {
    int n = 0;
    for (size_t i = 0; i < h->g->n_node; i++)
        for (size_t k = 0; k < h->g->node[i]->n_input; k++)
            n += !strcmp(h->g->node[i]->input[k], name);
    return n;
}

/* Ops that leave their last axis unchanged. */
static bool passes_on(const Onnx__NodeProto *n) {
    static const char *const ops[] = {"Identity", "Cast",       "Dropout",
                                      "Sigmoid",  "LogSoftmax", "Softmax"};
    for (size_t i = 0; i < sizeof ops / sizeof *ops; i++)
        if (onnx_is_op(n, ops[i])) return n->n_input > 0;
    return false;
}

static int64_t integer_attribute(const Onnx__NodeProto *n, const char *name) {
    for (size_t i = 0; i < n->n_attribute; i++)
        if (n->attribute[i]->name && !strcmp(n->attribute[i]->name, name))
            return n->attribute[i]->i;
    return 0;
}

static void forget_shape(Head *h, const char *name) {
    size_t kept = 0;
    for (size_t i = 0; i < h->g->n_value_info; i++)
        if (!h->g->value_info[i]->name ||
            strcmp(h->g->value_info[i]->name, name) != 0)
            h->g->value_info[kept++] = h->g->value_info[i];
    h->g->n_value_info = kept;
}

static bool copies(const Onnx__NodeProto *n) {
    return n->n_input == 1 &&
           (onnx_is_op(n, "Cast") || onnx_is_op(n, "Identity"));
}

/* The initializer behind casts, copies and, if `axis` is given, transpositions,
   which change the axis of the units. */
static Onnx__TensorProto *read_through(Head *h, const char **name, int *axis) {
    for (size_t i = 0; i <= h->g->n_node; i++) {
        h->shared |= readers(h, *name) != 1;
        Onnx__TensorProto *t = initializer(h, *name);
        const Onnx__NodeProto *n = made_by(h, *name);
        if (t || !n) return t;
        bool turns = axis && n->n_input == 1 && onnx_is_op(n, "Transpose");
        if (!turns && !copies(n)) return NULL;
        if (turns) *axis = 1 - *axis;
        forget_shape(h, *name);
        *name = n->input[0];
    }
    return NULL;
}

static void take_bias(Head *h, const char *name) {
    h->bias_name = name;
    h->bias = read_through(h, &h->bias_name, NULL);
}

static bool head_product(const Onnx__NodeProto *n) {
    return n->n_input >= 2 &&
           (onnx_is_op(n, "Gemm") || onnx_is_op(n, "MatMul"));
}

static bool has_bias(const Onnx__NodeProto *product) {
    return product->n_input > 2 && *product->input[2];
}

static void take_weight(Head *h, const Onnx__NodeProto *product) {
    h->axis = integer_attribute(product, "transB") ? 0 : 1;
    h->weight_name = product->input[1];
    h->weight = read_through(h, &h->weight_name, &h->axis);
}

/* A product with or without a bias, or the sum of a product and a bias. */
static void take_layer(Head *h, const Onnx__NodeProto *n) {
    if (head_product(n)) {
        take_weight(h, n);
        if (has_bias(n)) take_bias(h, n->input[2]);
    }
    for (int k = 0; k < 2 && onnx_is_op(n, "Add") && n->n_input == 2; k++) {
        const Onnx__NodeProto *product = made_by(h, n->input[k]);
        if (!product || !head_product(product) || has_bias(product)) continue;
        take_bias(h, n->input[1 - k]);
        if (h->bias) take_weight(h, product);
    }
}

static Status find_layer(Head *h, const char *output) {
    const Onnx__NodeProto *n = made_by(h, output);
    for (size_t i = 0; n && passes_on(n) && i <= h->g->n_node; i++) {
        forget_shape(h, n->input[0]);
        n = made_by(h, n->input[0]);
    }
    if (n) take_layer(h, n);
    for (size_t k = 0; n && k < n->n_input; k++) forget_shape(h, n->input[k]);
    if (!h->weight || h->weight->n_dims != 2 ||
        (h->bias && h->bias->n_dims != 1))
        return head_fail(h, output,
                         "does not come from a linear layer (Gemm or MatMul "
                         "with a weight, and Add); it comes from %s",
                         n && n->op_type ? n->op_type : "no node");
    if (h->shared)
        return head_fail(h, output,
                         "comes from a layer that shares its weights with "
                         "another layer (tied weights)");
    if (h->weight->data_type != 1 || (h->bias && h->bias->data_type != 1))
        return head_fail(h, output, "comes from a layer that is not fp32");
    return OK;
}

/* ---- the new layer ------------------------------------------------------- */

static void head_fill(Head *h, Onnx__TensorProto *t, double bound) {
    int64_t n = 1;
    for (size_t i = 0; i < t->n_dims; i++) n *= t->dims[i];
    float *x = arena_alloc(h->a, (size_t)n * sizeof *x + 1);
    for (int64_t i = 0; i < n; i++) {
        double u = (double)(draw_next(&h->random) >> 11) * 0x1p-52 - 1;
        x[i] = (float)(bound * u);
    }
    t->raw_data = (ProtobufCBinaryData){(size_t)n * sizeof *x, (uint8_t *)x};
    t->has_raw_data = true;
    t->n_float_data = t->n_external_data = 0;
    t->has_data_location = false;
}

static Status set_shape(Head *h, const char *output, int64_t units) {
    for (size_t i = 0; i < h->g->n_output; i++) {
        Onnx__ValueInfoProto *v = h->g->output[i];
        if (!v->name || strcmp(v->name, output) != 0) continue;
        Onnx__TypeProto *t = v->type;
        if (!t || t->value_case != ONNX__TYPE_PROTO__VALUE_TENSOR_TYPE ||
            !t->tensor_type || !t->tensor_type->shape ||
            !t->tensor_type->shape->n_dim)
            return OK;
        Onnx__TensorShapeProto *s = t->tensor_type->shape;
        s->dim[s->n_dim - 1]->value_case =
            ONNX__TENSOR_SHAPE_PROTO__DIMENSION__VALUE_DIM_VALUE;
        s->dim[s->n_dim - 1]->dim_value = units;
        return OK;
    }
    StrBuf names = {0};
    int n = (int)h->g->n_output;
    for (int i = 0; i < n && sb_put_next(&names, i); i++)
        sb_put_escaped(&names, h->g->output[i]->name);
    sb_put_more(&names, n);
    head_fail(h, output, "is not an output of the model; its outputs: %s",
              names.data ? names.data : "none");
    sb_free(&names);
    return ERR_USER;
}

static Status head_replace(Head *h, const DimBind *b) {
    h->weight = h->bias = NULL;
    h->shared = false;
    TRY(set_shape(h, b->name, b->value));
    TRY(find_layer(h, b->name));
    int64_t inputs = h->weight->dims[1 - h->axis], all;
    if (inputs < 1 || !mul_ok(inputs, b->value, &all) ||
        all > OX_MAX_ELEMENTS / 4)
        return head_fail(h, b->name, "would have too many elements");
    h->weight->dims[h->axis] = b->value;
    if (h->bias) h->bias->dims[0] = b->value;
    double bound = 1 / sqrt((double)inputs);
    head_fill(h, h->weight, bound);
    if (h->bias) head_fill(h, h->bias, bound);
    return OK;
}

/* ---- the file ------------------------------------------------------------ */

Status onnx_replace_heads(Arena *a, Diag *d, const char *path, Options *opt,
                          const uint8_t **bytes, size_t *n) {
    WireError e;
    Onnx__ModelProto *m = (Onnx__ModelProto *)wire_unpack(
        a, &onnx__model_proto__descriptor, *bytes, *n, &e);
    if (!m || !m->graph) return OK; /* the importer reports the defect */
    Head h = {.a = a,
              .d = d,
              .path = path,
              .g = m->graph,
              .random = (uint64_t)opt->seed * 0xd1342543de82ef95u + 1};
    opt->fresh.len = 0;
    for (int i = 0; i < opt->heads.len; i++) {
        TRY(head_replace(&h, &opt->heads.data[i]));
        vec_push(opt->arena, &opt->fresh, intern(h.weight_name));
        if (h.bias) vec_push(opt->arena, &opt->fresh, intern(h.bias_name));
    }
    *n = onnx__model_proto__get_packed_size(m);
    uint8_t *out = arena_alloc(a, *n + 1);
    onnx__model_proto__pack(m, out);
    *bytes = out;
    return OK;
}
