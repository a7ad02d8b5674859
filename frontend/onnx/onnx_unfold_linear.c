/* SPDX-License-Identifier: Apache-2.0 */
/* onnx_unfold_linear.c: LinearRegressor and LinearClassifier of ai.onnx.ml have
   their coefficients in attributes. They become Gemm with initializers, which
   train, and what makes scores and labels of its result. As in onnx_unfold.c
   the file's bytes are changed before anything else reads them, so that exports
   have what was trained. Nodes of another form stay, and are refused. */
#include <string.h>

#include "frontend/onnx/onnx_unfold.h"
#include "frontend/onnx/wire.h"

typedef struct Linear {
    Arena *a;
    VEC(Onnx__NodeProto *) nodes;
    VEC(Onnx__TensorProto *) tensors;
    int changes;
} Linear;

static const Onnx__AttributeProto *given(const Onnx__NodeProto *n,
                                         const char *name) {
    for (size_t i = 0; i < n->n_attribute; i++)
        if (n->attribute[i]->name && !strcmp(n->attribute[i]->name, name))
            return n->attribute[i];
    return NULL;
}

static char *linear_name(Linear *l, const Onnx__NodeProto *of,
                         const char *part) {
    const char *name = of->name && *of->name ? of->name : of->output[0];
    return arena_printf(l->a, "%s.%s", name, part);
}

static char *put_tensor(Linear *l, char *name, Onnx__TensorProto *t,
                        const int64_t *dim, size_t rank) {
    t->name = name;
    t->has_data_type = true;
    t->n_dims = rank;
    t->dims = arena_dup(l->a, dim, rank * sizeof *dim);
    vec_push(l->a, &l->tensors, t);
    return name;
}

static char *put_floats(Linear *l, char *name, const float *x, size_t n,
                        const int64_t *dim, size_t rank) {
    Onnx__TensorProto *t = NEW(l->a, Onnx__TensorProto);
    onnx__tensor_proto__init(t);
    t->data_type = ONNX__TENSOR_PROTO__DATA_TYPE__FLOAT;
    t->n_float_data = n;
    t->float_data = arena_dup(l->a, x, n * sizeof *x);
    return put_tensor(l, name, t, dim, rank);
}

static char *put_integers(Linear *l, char *name, const int64_t *x, size_t n) {
    Onnx__TensorProto *t = NEW(l->a, Onnx__TensorProto);
    onnx__tensor_proto__init(t);
    t->data_type = ONNX__TENSOR_PROTO__DATA_TYPE__INT64;
    t->n_int64_data = n;
    t->int64_data = arena_dup(l->a, x, n * sizeof *x);
    return put_tensor(l, name, t, (int64_t[]){(int64_t)n}, 1);
}

/* A node whose result is `out`, with an attribute of one integer. */
static void linear_node(Linear *l, const char *op, const Onnx__NodeProto *of,
                        char *const *in, size_t nin, char *out,
                        const char *attribute, int64_t value) {
    Onnx__NodeProto *n = NEW(l->a, Onnx__NodeProto);
    onnx__node_proto__init(n);
    n->op_type = arena_printf(l->a, "%s", op);
    n->name = linear_name(l, of, op);
    n->n_input = nin;
    n->input = arena_dup(l->a, in, nin * sizeof *in);
    n->n_output = 1;
    n->output = NEW(l->a, char *);
    n->output[0] = out;
    if (attribute) {
        Onnx__AttributeProto *p = NEW(l->a, Onnx__AttributeProto);
        onnx__attribute_proto__init(p);
        p->name = arena_printf(l->a, "%s", attribute);
        p->has_type = p->has_i = true;
        p->type = ONNX__ATTRIBUTE_PROTO__ATTRIBUTE_TYPE__INT;
        p->i = value;
        n->n_attribute = 1;
        n->attribute = NEW(l->a, Onnx__AttributeProto *);
        n->attribute[0] = p;
    }
    vec_push(l->a, &l->nodes, n);
}

/* The op that makes scores; NULL: another form. */
static const char *transform_of(const Onnx__NodeProto *n, bool classifies) {
    static const char *const ops[][2] = {
        {"NONE", "Identity"}, {"SOFTMAX", "Softmax"}, {"LOGISTIC", "Sigmoid"}};
    const Onnx__AttributeProto *p = given(n, "post_transform");
    for (int i = 0; i < (classifies ? 3 : 1); i++)
        if (!p || (p->s.len == strlen(ops[i][0]) &&
                   !memcmp(p->s.data, ops[i][0], p->s.len)))
            return ops[i][1];
    return NULL;
}

/* Rows of the coefficients: targets, or classes; 0: another form. */
static size_t linear_rows(const Onnx__NodeProto *n, bool classifies) {
    const Onnx__AttributeProto *labels = given(n, "classlabels_ints"),
                               *targets = given(n, "targets"),
                               *b = given(n, "intercepts");
    if (classifies) return labels ? labels->n_ints : 0;
    if (targets && targets->i > 0) return (size_t)targets->i;
    return b && b->n_floats ? b->n_floats : 1;
}

static bool replace_linear(Linear *l, const Onnx__NodeProto *n,
                           bool classifies) {
    const Onnx__AttributeProto *w = given(n, "coefficients"),
                               *b = given(n, "intercepts");
    const char *op = transform_of(n, classifies);
    size_t rows = linear_rows(n, classifies), nw = w ? w->n_floats : 0;
    if (!op || !rows || !nw || nw % rows || n->n_input != 1 ||
        n->n_output != (classifies ? 2 : 1) ||
        (b && b->n_floats && b->n_floats != rows))
        return false;
    int64_t dim[] = {(int64_t)rows, (int64_t)(nw / rows)};
    char *x = linear_name(l, n, "input"),
         *y = classifies ? linear_name(l, n, "scores") : n->output[0];
    char *in[] = {
        x,
        put_floats(l, linear_name(l, n, "coefficients"), w->floats, nw, dim, 2),
        NULL};
    bool biased = b && b->n_floats;
    if (biased)
        in[2] = put_floats(l, linear_name(l, n, "intercepts"), b->floats, rows,
                           dim, 1);
    linear_node(l, "Cast", n, n->input, 1, x, "to",
                ONNX__TENSOR_PROTO__DATA_TYPE__FLOAT);
    linear_node(l, "Gemm", n, in, biased ? 3 : 2, y, "transB", 1);
    if (!classifies) return true;
    linear_node(l, op, n, &y, 1, n->output[1],
                !strcmp(op, "Softmax") ? "axis" : NULL, 1);
    if (!*n->output[0]) return true;
    char *best = linear_name(l, n, "best");
    const Onnx__AttributeProto *labels = given(n, "classlabels_ints");
    char *pick[] = {
        put_integers(l, linear_name(l, n, "labels"), labels->ints, rows), best};
    linear_node(l, "ArgMax", n, &y, 1, best, "axis", 1);
    l->nodes.data[l->nodes.len - 1]->output[0] = best;
    char *flat = linear_name(l, n, "flat"), *shape[] = {best, NULL};
    shape[1] = put_integers(l, linear_name(l, n, "row"), (int64_t[]){-1}, 1);
    linear_node(l, "Reshape", n, shape, 2, flat, NULL, 0);
    pick[1] = flat;
    linear_node(l, "Gather", n, pick, 2, n->output[0], NULL, 0);
    return true;
}

static void rewrite(Linear *l, Onnx__GraphProto *g) {
    for (size_t i = 0; i < g->n_node; i++) {
        Onnx__NodeProto *n = g->node[i];
        bool ml = n->domain && !strcmp(n->domain, "ai.onnx.ml");
        bool classifies =
            ml && !strcmp(ox_text(n->op_type), "LinearClassifier");
        bool regresses = ml && !strcmp(ox_text(n->op_type), "LinearRegressor");
        if ((classifies || regresses) && replace_linear(l, n, classifies))
            l->changes++;
        else
            vec_push(l->a, &l->nodes, n);
    }
    for (size_t i = 0; i < g->n_initializer; i++)
        vec_push(l->a, &l->tensors, g->initializer[i]);
}

Status unfold_linear(Arena *a, const uint8_t **bytes, size_t *n) {
    WireError e;
    Linear l = {.a = a};
    if (!wire_holds(*bytes, *n, "ai.onnx.ml")) return OK;
    Onnx__ModelProto *m = (Onnx__ModelProto *)wire_unpack(
        a, &onnx__model_proto__descriptor, *bytes, *n, &e);
    if (!m || !m->graph) return OK; /* the importer reports the defect */
    rewrite(&l, m->graph);
    if (!l.changes) return OK;
    m->graph->node = l.nodes.data;
    m->graph->n_node = (size_t)l.nodes.len;
    m->graph->initializer = l.tensors.data;
    m->graph->n_initializer = (size_t)l.tensors.len;
    *n = onnx__model_proto__get_packed_size(m);
    uint8_t *out = arena_alloc(a, *n + 1);
    onnx__model_proto__pack(m, out);
    *bytes = out;
    return OK;
}
