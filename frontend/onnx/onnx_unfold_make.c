/* SPDX-License-Identifier: Apache-2.0 */
/* onnx_unfold_make.c: makes the parameters and nodes that onnx_unfold.c
   restores. */
#include <string.h>

#include "frontend/onnx/onnx_unfold.h"

#define KIND "pkg.torch.export.graph_signature.InputSpec.kind"

/* Largest number of elements of a restored bias. */
#define MOST_BIAS ((int64_t)1 << 24)

/* Largest number of bytes of added parameters. */
#define MOST_BYTES ((size_t)4 << 30)

/* ---- what is added ------------------------------------------------------- */

char *unfold_copy(const Unfold *u, Str s) {
    return arena_printf(u->a, "%s", s);
}

/* Marks a restored initializer with the exporter's own mark. */
static void add_info(Unfold *u, const OxSigned *x) {
    Onnx__ValueInfoProto *v = NEW(u->a, Onnx__ValueInfoProto);
    Onnx__StringStringEntryProto *p = NEW(u->a, Onnx__StringStringEntryProto);
    onnx__value_info_proto__init(v);
    onnx__string_string_entry_proto__init(p);
    p->key = unfold_copy(u, KIND);
    p->value = unfold_copy(u, x->kind);
    v->name = unfold_copy(u, x->target);
    v->n_metadata_props = 1;
    v->metadata_props = NEW(u->a, Onnx__StringStringEntryProto *);
    v->metadata_props[0] = p;
    vec_push(u->a, &u->infos, v);
}

/* Transposes the bytes of a [rows, cols] matrix. */
static uint8_t *transposed(Unfold *u, const uint8_t *from, int64_t rows,
                           int64_t cols, size_t size) {
    size_t bytes = (size_t)rows * (size_t)cols * size;
    uint8_t *to = arena_alloc(u->a, bytes + 1);
    for (int64_t i = 0; i < rows; i++)
        for (int64_t j = 0; j < cols; j++)
            memcpy(to + (size_t)(j * rows + i) * size,
                   from + (size_t)(i * cols + j) * size, size);
    return to;
}

static Status put_parameter(Unfold *u, int at, Onnx__TensorProto *t) {
    const OxSigned *x = &u->ox->signature.data[at];
    u->copied += onnx__tensor_proto__get_packed_size(t);
    if (u->copied > MOST_BYTES)
        return ox_fail_model(u->ox, "the parameters that the exporter folded "
                                    "or merged are larger than 4 GiB; export "
                                    "with optimize=False");
    t->name = unfold_copy(u, x->target);
    str_map_put(u->a, &u->inits, x->target, u->ninits + u->tensors.len);
    vec_push(u->a, &u->tensors, t);
    add_info(u, x);
    return OK;
}

Status unfold_values(Unfold *u, int at, const Onnx__TensorProto *from,
                     uint8_t *data, size_t bytes, const int64_t *dim,
                     size_t rank) {
    Onnx__TensorProto *t = NEW(u->a, Onnx__TensorProto);
    if (str_map_get(&u->inits, u->ox->signature.data[at].target) >= 0)
        return OK;
    onnx__tensor_proto__init(t);
    t->has_data_type = true;
    t->data_type = from->data_type;
    t->n_dims = rank;
    t->dims = arena_dup(u->a, dim, rank * sizeof *dim);
    t->has_raw_data = true;
    t->raw_data.len = bytes;
    t->raw_data.data = data;
    return put_parameter(u, at, t);
}

static Status put_transposed(Unfold *u, int at, const Onnx__TensorProto *from) {
    const Tensor *data;
    TRY(ox_tensor(u->ox, from, ox_text(from->name), &data));
    const Type *type = type_get(data->type);
    size_t bytes = (size_t)type_bytes(type);
    int64_t count = type_count(type), dim[] = {type->dim[1], type->dim[0]};
    return unfold_values(u, at, from,
                         transposed(u, data->data, dim[1], dim[0],
                                    count ? bytes / (size_t)count : 1),
                         bytes, dim, 2);
}

Status unfold_parameter(Unfold *u, int at, const Onnx__TensorProto *from,
                        Form form) {
    Onnx__TensorProto *t = NEW(u->a, Onnx__TensorProto);
    if (str_map_get(&u->inits, u->ox->signature.data[at].target) >= 0)
        return OK;
    if (form == FORM_TRANSPOSED) return put_transposed(u, at, from);
    *t = *from;
    if (form == FORM_VECTOR) {
        t->n_dims = 1;
        t->dims = NEW(u->a, int64_t);
        t->dims[0] = 1;
        for (size_t i = 0; i < from->n_dims; i++) t->dims[0] *= from->dims[i];
    }
    return put_parameter(u, at, t);
}

Onnx__NodeProto *unfold_node(Unfold *u, const char *op,
                             const Onnx__NodeProto *of, int nin, int nout) {
    Onnx__NodeProto *n = NEW(u->a, Onnx__NodeProto);
    onnx__node_proto__init(n);
    n->op_type = unfold_copy(u, op);
    n->n_input = (size_t)nin;
    n->input = NEW_ARRAY(u->a, char *, nin);
    n->n_output = (size_t)nout;
    n->output = NEW_ARRAY(u->a, char *, nout);
    n->metadata_props = of->metadata_props;
    n->n_metadata_props = of->n_metadata_props;
    return n;
}

char *unfold_integers(Unfold *u, Str name, const int64_t *x, size_t n) {
    Onnx__TensorProto *t = NEW(u->a, Onnx__TensorProto);
    onnx__tensor_proto__init(t);
    t->name = unfold_copy(u, name);
    t->has_data_type = true;
    t->data_type = ONNX__TENSOR_PROTO__DATA_TYPE__INT64;
    t->n_dims = 1;
    t->dims = NEW(u->a, int64_t);
    t->dims[0] = (int64_t)n;
    t->n_int64_data = n;
    t->int64_data = arena_dup(u->a, x, n * sizeof *x);
    vec_push(u->a, &u->tensors, t);
    return t->name;
}

/* The result of the node that converts the parameter to the form that
   `reader` reads. */
static Str formed(Unfold *u, int at, const Onnx__TensorProto *as, Form form,
                  const Onnx__NodeProto *reader) {
    Str target = u->ox->signature.data[at].target;
    Str result = internf(form == FORM_TRANSPOSED ? "%s.T" : "%s.%zud", target,
                         as->n_dims);
    if (str_map_get(&u->made, result) >= 0) return result;
    str_map_put(u->a, &u->made, result, 1);
    bool reshaped = form != FORM_TRANSPOSED;
    Onnx__NodeProto *n = unfold_node(u, reshaped ? "Reshape" : "Transpose",
                                     reader, reshaped ? 2 : 1, 1);
    vec_push(u->a, &u->nodes, n);
    n->input[0] = unfold_copy(u, target);
    if (reshaped)
        n->input[1] = unfold_integers(u, internf("%s.shape", result), as->dims,
                                      as->n_dims);
    n->name = unfold_copy(u, internf("node_%s", result));
    n->output[0] = unfold_copy(u, result);
    return result;
}

/* The file has the parameter, or got it back, with other numbers than the
   operand: the operand is not the parameter. */
static Status is_another(Unfold *u, int at, const Onnx__TensorProto *t,
                         Form form, bool *other) {
    int has = str_map_get(&u->inits, u->ox->signature.data[at].target);
    *other = false;
    if (has < 0) return OK;
    const Onnx__TensorProto *p = has < u->ninits
                                     ? u->g->initializer[has]
                                     : u->tensors.data[has - u->ninits];
    if (p == t) return OK;
    const Tensor *want, *got;
    TRY(ox_tensor(u->ox, p, ox_text(p->name), &want));
    TRY(ox_tensor(u->ox, t, ox_text(t->name), &got));
    const Type *a = type_get(want->type), *b = type_get(got->type);
    size_t bytes = (size_t)type_bytes(b);
    const void *data = got->data;
    *other = a->dtype != b->dtype || type_count(a) != type_count(b);
    if (form == FORM_TRANSPOSED && !*other) {
        *other = a->rank != 2 || a->dim[0] != b->dim[1];
        if (bytes && !*other)
            data = transposed(u, data, b->dim[0], b->dim[1],
                              bytes / (size_t)type_count(b));
    }
    *other = *other || (bytes && memcmp(want->data, data, bytes) != 0);
    return OK;
}

Status unfold_operand(Unfold *u, const Slot *s, int at, Form form) {
    const Onnx__TensorProto *t = u->g->initializer[s->init];
    bool other;
    TRY(is_another(u, at, t, form, &other));
    if (other) return OK;
    TRY(unfold_parameter(u, at, t, form));
    Str name = u->ox->signature.data[at].target;
    if (form == FORM_TRANSPOSED || form == FORM_VECTOR)
        name = formed(u, at, t, form, s->node);
    s->node->input[s->k] = unfold_copy(u, name);
    u->changes++;
    return OK;
}

/* True if the bytes are the first `part` of them again and again. */
static bool repeat(const uint8_t *p, size_t bytes, size_t part) {
    for (size_t i = part; i < bytes; i += part)
        if (memcmp(p, p + i, part)) return false;
    return true;
}

/* True if two rows of `part` bytes agree: one row of a table, read twice. */
static bool rows_agree(Unfold *u, const uint8_t *p, size_t bytes, size_t part) {
    StrMap seen = {0};
    for (size_t i = 0; part && i < bytes; i += part) {
        Str key =
            internf("%llx", (unsigned long long)hash_bytes(1, p + i, part));
        int old = str_map_get(&seen, key);
        if (old >= 0 && !memcmp(p + (size_t)old * part, p + i, part))
            return true;
        str_map_put(u->a, &seen, key, (int)(i / part));
    }
    return false;
}

/* A node gives the parameter the shape of the constant, whose name its result
   takes, as in PyTorch's graph. */
static void take_name(Unfold *u, int at, Onnx__TensorProto *t,
                      const Onnx__NodeProto *reader) {
    Str name = ox_text(t->name);
    Onnx__NodeProto *n = unfold_node(u, "Expand", reader, 2, 1);
    vec_push(u->a, &u->nodes, n);
    n->input[0] = unfold_copy(u, u->ox->signature.data[at].target);
    n->input[1] =
        unfold_integers(u, internf("%s.shape", name), t->dims, t->n_dims);
    n->name = unfold_copy(u, internf("node_%s", name));
    n->output[0] = t->name;
    t->name = unfold_copy(u, internf("%s.folded", name));
    u->changes++;
}

/* True if the elements along the axis are equal: the parameter may have been
   repeated along it. */
static bool is_constant_along(const Tensor *t, int axis) {
    const Type *type = type_get(t->type);
    const uint8_t *p = t->data;
    size_t inner = (size_t)type_bytes(type), outer = 1;
    for (int k = 0; k <= axis; k++) inner /= (size_t)type->dim[k];
    for (int k = 0; k < axis; k++) outer *= (size_t)type->dim[k];
    size_t n = (size_t)type->dim[axis];
    for (size_t i = 0; i < outer; i++)
        if (!repeat(p + i * n * inner, n * inner, inner)) return false;
    return true;
}

/* The samples share all elements, and no element stands in several places of
   one sample. */
static bool is_for_all_samples(const Tensor *t) {
    const Type *type = type_get(t->type);
    bool differ = is_constant_along(t, 0);
    for (int k = 1; k < type->rank; k++)
        differ &= type->dim[k] == 1 || !is_constant_along(t, k);
    return differ;
}

/* Leading axes repeat the matrix, and no row stands in several places.
   Positions 0, 1, .. differ, whatever the rows hold. */
static bool is_table(Unfold *u, const Tensor *t, Beside with) {
    const Type *type = type_get(t->type);
    size_t bytes = (size_t)type_bytes(type), part = bytes;
    for (int k = 0; k < type->rank - 2; k++) part /= (size_t)type->dim[k];
    if (with <= BESIDE_RANGE && part == bytes) return true;
    return repeat(t->data, bytes, part) &&
           !rows_agree(u, t->data, part,
                       part / (size_t)type->dim[type->rank - 2]);
}

Status unfold_shared(Unfold *u, int init, int at, Form form) {
    Onnx__TensorProto *t = u->g->initializer[init];
    const Tensor *data;
    TRY(ox_tensor(u->ox, t, ox_text(t->name), &data));
    const Type *type = type_get(data->type);
    int64_t dim[MAX_RANK];
    int rank = form == FORM_ROWS ? 2 : type->rank;
    size_t part = (size_t)type_bytes(type);
    if (!part || !(form == FORM_ROWS ? is_table(u, data, u->with[init])
                                     : is_for_all_samples(data)))
        return OK;
    memcpy(dim, type->dim + type->rank - rank, (size_t)rank * sizeof *dim);
    for (int k = 0; k < type->rank - rank; k++) part /= (size_t)type->dim[k];
    if (form == FORM_SAMPLES) {
        part /= (size_t)dim[0];
        dim[0] = 1;
    }
    TRY(unfold_values(u, at, t, arena_dup(u->a, data->data, part), part, dim,
                      (size_t)rank));
    take_name(u, at, t, u->reads.data[u->last[init]].node);
    return OK;
}

Status unfold_repeated(Unfold *u, const Slot *s, int at, int64_t times) {
    const Onnx__TensorProto *t = u->g->initializer[s->init];
    Str target = u->ox->signature.data[at].target;
    Str result = internf("%s.repeated", target);
    const Tensor *data;
    TRY(ox_tensor(u->ox, t, ox_text(t->name), &data));
    const Type *type = type_get(data->type);
    int64_t length = type_count(type) / times;
    size_t bytes = (size_t)type_bytes(type), part = bytes / (size_t)times;
    if (type->rank != 1 || length * times != type->dim[0] || !length ||
        !repeat(data->data, bytes, part))
        return OK;
    TRY(unfold_values(u, at, t, arena_dup(u->a, data->data, part), part,
                      &length, 1));
    if (str_map_get(&u->made, result) < 0) {
        Onnx__NodeProto *n = unfold_node(u, "Tile", s->node, 2, 1);
        str_map_put(u->a, &u->made, result, 1);
        n->input[0] = unfold_copy(u, target);
        n->input[1] =
            unfold_integers(u, internf("%s.times", result), &times, 1);
        n->name = unfold_copy(u, internf("node_%s", result));
        n->output[0] = unfold_copy(u, result);
        vec_push(u->a, &u->nodes, n);
    }
    s->node->input[s->k] = unfold_copy(u, result);
    u->changes++;
    return OK;
}

/* ---- biases of zeros, which the exporter drops --------------------------- */

int64_t unfold_integer(const Onnx__NodeProto *n, const char *name,
                       int64_t otherwise) {
    for (size_t i = 0; i < n->n_attribute; i++)
        if (n->attribute[i]->name && !strcmp(n->attribute[i]->name, name))
            return n->attribute[i]->i;
    return otherwise;
}

/* Number of elements of the bias that the node lacks; -1: the node needs
   none. */
static int64_t bias_length(const Onnx__NodeProto *n,
                           const Onnx__TensorProto *w) {
    int64_t groups = unfold_integer(n, "group", 1);
    if (n->n_input != 2 || w->n_dims < 2) return -1;
    if (onnx_is_op(n, "Gemm")) return w->dims[!unfold_integer(n, "transB", 0)];
    if (onnx_is_op(n, "Conv")) return w->dims[0];
    if (!onnx_is_op(n, "ConvTranspose") || groups < 1) return -1;
    return w->dims[1] > MOST_BIAS / groups ? -1 : w->dims[1] * groups;
}

static Status add_zeros(Unfold *u, Onnx__NodeProto *n, int at,
                        const Onnx__TensorProto *weight, int64_t length) {
    DType d;
    if (length < 0 || length > MOST_BIAS ||
        !dtype_from_onnx(weight->data_type, &d))
        return OK;
    Type type = {.dtype = d, .rank = 1, .dim = {length}};
    size_t bytes = (size_t)type_bytes(&type);
    uint8_t *zeros = arena_alloc(u->a, bytes + 1);
    memset(zeros, 0, bytes);
    TRY(unfold_values(u, at, weight, zeros, bytes, &length, 1));
    char **in = NEW_ARRAY(u->a, char *, 3);
    in[0] = n->input[0], in[1] = n->input[1];
    in[2] = unfold_copy(u, u->ox->signature.data[at].target);
    n->input = in;
    n->n_input = 3;
    u->changes++;
    return OK;
}

/* A linear or convolutional layer whose third argument is a parameter that
   the file lacks. */
Status unfold_bias(Unfold *u, Onnx__NodeProto *p) {
    const OxNode n = {.proto = p};
    if (!ox_torch_node(&n, "aten.linear") && !ox_torch_node(&n, "aten.conv"))
        return OK;
    Str bias = ox_torch_argument(&n, 2);
    int at = bias && *bias == '%' ? str_map_get(&u->arguments, intern(bias + 1))
                                  : -1;
    int w = p->n_input > 1 ? str_map_get(&u->inits, ox_text(p->input[1])) : -1;
    if (at < 0 || w < 0 ||
        str_map_get(&u->inits, u->ox->signature.data[at].target) >= 0)
        return OK;
    const Onnx__TensorProto *t =
        w < u->ninits ? u->g->initializer[w] : u->tensors.data[w - u->ninits];
    return add_zeros(u, p, at, t, bias_length(p, t));
}

/* ---- dropout inside attention, which infers in the file ------------------ */

static void add_dropout(Unfold *u, size_t softmax, size_t end, double ratio) {
    Onnx__NodeProto *from = u->g->node[softmax];
    Str result = internf("%s.dropped", from->output[0]);
    Onnx__TensorProto *t = NEW(u->a, Onnx__TensorProto);
    Onnx__NodeProto *n = unfold_node(u, "Dropout", from, 2, 1);
    onnx__tensor_proto__init(t);
    t->name = unfold_copy(u, internf("%s.ratio", result));
    t->has_data_type = true;
    t->data_type = ONNX__TENSOR_PROTO__DATA_TYPE__FLOAT;
    t->n_float_data = 1;
    t->float_data = NEW(u->a, float);
    t->float_data[0] = (float)ratio;
    vec_push(u->a, &u->tensors, t);
    n->input[0] = from->output[0];
    n->input[1] = t->name;
    n->name = unfold_copy(u, internf("node_%s", result));
    n->output[0] = unfold_copy(u, result);
    vec_push(u->a, &u->dropouts, n);
    vec_push(u->a, &u->behind, softmax);
    for (size_t i = softmax + 1; i < end; i++)
        for (size_t k = 0; k < u->g->node[i]->n_input; k++)
            if (!strcmp(u->g->node[i]->input[k], from->output[0]))
                u->g->node[i]->input[k] = n->output[0];
    u->changes++;
}

void unfold_dropout(Unfold *u, size_t first, size_t end) {
    static const char sdpa[] = "aten.scaled_dot_product_attention";
    size_t softmax = end;
    const OxNode n = {.proto = u->g->node[first]};
    double ratio = ox_torch_number(&n, sdpa, 4, 0);
    if (!(ratio > 0 && ratio < 1)) return;
    for (size_t i = first; i < end; i++) {
        if (onnx_is_op(u->g->node[i], "Dropout")) return;
        if (onnx_is_op(u->g->node[i], "Softmax") && u->g->node[i]->n_output)
            softmax = i;
    }
    if (softmax < end) add_dropout(u, softmax, end, ratio);
}

/* ---- the file ------------------------------------------------------------ */

static void note_names(Unfold *u, const Onnx__GraphProto *g, StrMap *read) {
    for (size_t i = 0; i < g->n_node; i++) {
        const Onnx__NodeProto *n = g->node[i];
        for (size_t k = 0; k < n->n_input; k++)
            str_map_put(u->a, read, intern(n->input[k]), 1);
        for (size_t k = 0; k < n->n_attribute; k++)
            if (n->attribute[k]->g) note_names(u, n->attribute[k]->g, read);
    }
    for (size_t i = 0; i < g->n_output; i++)
        str_map_put(u->a, read, ox_text(g->output[i]->name), 1);
}

#define JOINED(u, list, count, added, type)                                    \
    do {                                                                       \
        size_t n_ = (count), m_ = (size_t)(added).len;                         \
        type **all_ = NEW_ARRAY((u)->a, type *, n_ + m_ + 1);                  \
        if (m_) memcpy(all_, (added).data, m_ * sizeof *all_);                 \
        if (n_) memcpy(all_ + m_, (list), n_ * sizeof *all_);                  \
        (list) = all_;                                                         \
        (count) = n_ + m_;                                                     \
    } while (0)

static void put_nodes(Unfold *u) {
    Onnx__GraphProto *g = u->g;
    size_t count = g->n_node + (size_t)u->nodes.len + (size_t)u->dropouts.len;
    Onnx__NodeProto **all = NEW_ARRAY(u->a, Onnx__NodeProto *, count + 1);
    size_t n = 0;
    int next = 0;
    for (int i = 0; i < u->nodes.len; i++) all[n++] = u->nodes.data[i];
    for (size_t i = 0; i < g->n_node; i++) {
        all[n++] = g->node[i];
        if (next < u->dropouts.len && u->behind.data[next] == i)
            all[n++] = u->dropouts.data[next++];
    }
    g->node = all;
    g->n_node = n;
}

/* Drops constants without readers, and inserts everything added. */
void unfold_write(Unfold *u) {
    Onnx__GraphProto *g = u->g;
    StrMap read = {0};
    size_t kept = 0;
    note_names(u, g, &read);
    for (size_t i = 0; i < g->n_initializer; i++) {
        Str name = ox_text(g->initializer[i]->name);
        if (!u->folded[i] || str_map_get(&read, name) >= 0)
            g->initializer[kept++] = g->initializer[i];
    }
    g->n_initializer = kept;
    JOINED(u, g->initializer, g->n_initializer, u->tensors, Onnx__TensorProto);
    JOINED(u, g->value_info, g->n_value_info, u->infos, Onnx__ValueInfoProto);
    put_nodes(u);
}
