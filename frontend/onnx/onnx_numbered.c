/* SPDX-License-Identifier: Apache-2.0 */
/* onnx_numbered.c: files whose initializers TorchScript numbered
   (onnx::MatMul_7), as it does for Keras on PyTorch: its layers cast their
   variables. A variable without a cast is called _torch_params.LAYER/NAME.
   Equal tensors are stored once, and each use of another one reads an Identity.
   Equal biases are one variable if their products read one weight. Other
   tensors are separate if all their elements are equal, as gains of norms that
   begin as ones; else they are one variable and used again. */
#include <string.h>

#include "frontend/onnx/onnx.h"

/* Nodes between a variable and its use, operands of a product, and products
   between the root of a norm and its offset. */
enum { NUMBERED_FAR = 16, NUMBERED_OPERANDS = 4, NUMBERED_NORM = 3 };

bool ox_all_numbered(const Ox *ox) {
    int numbered = 0;
    for (int i = 0; i < ox->inits.len; i++) {
        Str name = ox->inits.data[i].name;
        bool counted = !strncmp(name, "onnx::", 6);
        if (!counted && strncmp(name, "_torch_params.", 14)) return false;
        numbered += counted;
    }
    return numbered && !ox->has_signature;
}

/* The initializer that a name stands for; NULL: none. */
static const OxInit *numbered_init(const Ox *ox, Str name) {
    for (int left = NUMBERED_FAR; left > 0; left--) {
        const OxName *x = *name ? ox_name_of(ox, name) : NULL;
        if (x && x->kind == OX_INIT) return &ox->inits.data[x->index];
        const OxNode *n = ox_maker(ox, name, "Identity");
        if (!n || n->nin != 1) return NULL;
        name = n->in[0];
    }
    return NULL;
}

/* The node behind casts and transpositions. */
static const OxNode *numbered_maker(const Ox *ox, Str name) {
    const OxNode *n = ox_made_by(ox, name);
    for (int left = NUMBERED_FAR; n && left > 0; left--) {
        if (n->nin < 1 ||
            (strcmp(n->type, "Cast") && strcmp(n->type, "Transpose")))
            break;
        n = ox_made_by(ox, n->in[0]);
    }
    return n;
}

/* True if x is as large as the product's last axes, or has its channels. */
static bool is_bias_of(const Onnx__TensorProto *x, const OxNode *product,
                       const Onnx__TensorProto *weight) {
    size_t from = 0, n = x->n_dims, all = weight->n_dims;
    while (from + 1 < n && x->dims[from] == 1) from++;
    n -= from;
    if (!strcmp(product->type, "Conv"))
        return n == 1 && all > 2 && x->dims[from] == weight->dims[0];
    return n > 0 && n < all &&
           !memcmp(x->dims + from, weight->dims + (all - n),
                   n * sizeof *x->dims);
}

Str ox_numbered_weight(const Ox *ox, const OxNode *add, Str bias) {
    const OxInit *x = numbered_init(ox, bias);
    if (!x || strcmp(add->type, "Add")) return NULL;
    for (int k = 0; k < add->nin; k++) {
        const OxNode *from = numbered_maker(ox, add->in[k]);
        if (!from || ox_elementwise(from)) continue;
        for (int j = 0; j < from->nin && j < NUMBERED_OPERANDS; j++) {
            const OxInit *w = numbered_init(ox, from->in[j]);
            if (w && is_bias_of(x->proto, from, w->proto)) return w->name;
        }
    }
    return NULL;
}

bool ox_numbered_slope(const Ox *ox, const OxNode *mul, Str slope) {
    const OxInit *x = numbered_init(ox, slope);
    if (!x || !x->proto->n_dims || strcmp(mul->type, "Mul")) return false;
    for (int k = 0; k < mul->nin; k++) {
        const OxNode *relu = numbered_maker(ox, mul->in[k]);
        if (!relu || relu->nin != 1 || strcmp(relu->type, "Relu")) continue;
        const OxNode *neg = numbered_maker(ox, relu->in[0]);
        if (neg && !strcmp(neg->type, "Neg")) return true;
    }
    return false;
}

/* True if the value is computed from 1 / sqrt(x), where the graph computes x:
   the exporter has folded no statistics. */
static bool is_numbered_norm(const Ox *ox, Str name, int depth) {
    const OxNode *n = numbered_maker(ox, name);
    bool divides = n && (!strcmp(n->type, "Div") || !strcmp(n->type, "Mul") ||
                         !strcmp(n->type, "Reciprocal"));
    for (int k = 0; divides && k < n->nin; k++) {
        const OxNode *root = numbered_maker(ox, n->in[k]);
        if (root && !strcmp(root->type, "Sqrt") && *n->type != 'M') return true;
        if (depth > 0 && is_numbered_norm(ox, n->in[k], depth - 1)) return true;
    }
    return false;
}

bool ox_numbered_gain(const Ox *ox, const OxNode *reader, Str gain) {
    const OxInit *x = numbered_init(ox, gain);
    bool reads = !strcmp(reader->type, "Mul") || !strcmp(reader->type, "Add");
    if (!x || !x->proto->n_dims || !reads || strncmp(x->name, "onnx::", 6))
        return false;
    for (int k = 0; k < reader->nin; k++)
        if (is_numbered_norm(ox, reader->in[k], NUMBERED_NORM)) return true;
    return false;
}

void ox_numbered_biases(Ox *ox) {
    for (int i = 0; i < ox->nodes.len; i++) {
        const OxNode *n = &ox->nodes.data[i];
        for (int k = 0; k < n->nin && !strcmp(n->type, "Add"); k++) {
            OxName *x = ox_name_of(ox, n->in[k]);
            if (x && !x->weight)
                x->weight = ox_numbered_weight(ox, n, n->in[k]);
        }
    }
}

/* True if all elements have the same bytes. */
static bool all_equal(const Onnx__TensorProto *t) {
    size_t count = 1, n = t->n_float_data;
    for (size_t i = 0; i < t->n_dims; i++) count *= (size_t)t->dims[i];
    for (size_t i = 1; i < n; i++)
        if (memcmp(&t->float_data[i], t->float_data, sizeof(float)))
            return false;
    if (n || !count || t->raw_data.len % count) return n > 0;
    size_t each = t->raw_data.len / count;
    if (!each) return false;
    for (size_t i = 1; i < count; i++)
        if (memcmp(t->raw_data.data + i * each, t->raw_data.data, each))
            return false;
    return true;
}

bool ox_numbered_apart(Ox *ox, OxNode *identity) {
    const OxInit *from = numbered_init(ox, identity->in[0]);
    const OxName *to = ox_name_of(ox, identity->out[0]);
    if (!from || !to) return false;
    if (!to->weight) return all_equal(from->proto);
    for (int i = 0; i < ox->inits.len; i++) {
        const OxInit *x = &ox->inits.data[i];
        if (x->proto != from->proto ||
            ox_name_of(ox, x->name)->weight != to->weight)
            continue;
        identity->in[0] = x->name;
        return false;
    }
    return true;
}
