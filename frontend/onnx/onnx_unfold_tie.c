/* SPDX-License-Identifier: Apache-2.0 */
/* onnx_unfold_tie.c: gives back a tie that TorchScript's exporter folded.
   Before:  %h = Gather %wte, %ids   ..   %y = MatMul %z, %onnx::MatMul_453
   After:   %h = Gather %wte, %ids   ..   %t = Transpose %wte
                                          %y = MatMul %z, %t
   A language model's head is the table of its tokens. Folded constants turn the
   transposed table into a tensor of its own, without a name of the model, which
   would train apart. Its elements tell: they are those of a table that a Gather
   reads. Other tensors without a name may be copies, such as the layers of a
   new nn.TransformerEncoder, and stay. */
#include <string.h>

#include "frontend/onnx/onnx_unfold.h"

/* The initializer of that name, a float matrix; -1: something else. */
static int float_matrix(const Unfold *u, Str name) {
    int i = str_map_get(&u->inits, name);
    DType d;
    if (i < 0 || u->g->initializer[i]->n_dims != 2 ||
        !dtype_from_onnx(u->g->initializer[i]->data_type, &d) ||
        !dtype_is_float(d))
        return -1;
    return i;
}

static bool is_transposed(const Tensor *x, const Tensor *y) {
    const Type *t = type_get(x->type);
    int64_t rows = t->dim[0], cols = t->dim[1];
    size_t size = (size_t)dtype_info[t->dtype].bytes;
    const uint8_t *p = x->data, *q = y->data;
    bool varies = false;
    for (int64_t i = 0; i < rows; i++)
        for (int64_t j = 0; j < cols; j++) {
            const uint8_t *a = p + (size_t)(i * cols + j) * size;
            if (memcmp(a, q + (size_t)(j * rows + i) * size, size))
                return false;
            varies |= memcmp(a, p, size) != 0;
        }
    return varies;
}

static Status are_tied(Unfold *u, int table, int folded, bool *same) {
    const Onnx__TensorProto *x = u->g->initializer[table],
                            *y = u->g->initializer[folded];
    const Tensor *a, *b;
    *same = false;
    if (x->data_type != y->data_type || x->dims[0] != y->dims[1] ||
        x->dims[1] != y->dims[0])
        return OK;
    TRY(ox_tensor(u->ox, x, ox_text(x->name), &a));
    TRY(ox_tensor(u->ox, y, ox_text(y->name), &b));
    *same = is_transposed(a, b);
    return OK;
}

/* Operand 1 of the product becomes the transposed table. */
static void tie(Unfold *u, Onnx__NodeProto *product, int table, int folded) {
    Str name = ox_text(u->g->initializer[table]->name);
    Str result = internf("%s.T", name);
    if (str_map_get(&u->made, result) < 0) {
        str_map_put(u->a, &u->made, result, 1);
        Onnx__NodeProto *n = unfold_node(u, "Transpose", product, 1, 1);
        vec_push(u->a, &u->nodes, n);
        n->input[0] = unfold_copy(u, name);
        n->output[0] = unfold_copy(u, result);
    }
    ox_warn_model(u->ox,
                  "'%s' has the elements of '%s', transposed: one parameter, "
                  "as a head that shares the table of its tokens",
                  ox_quote(u->ox, product->input[1]), ox_quote(u->ox, name));
    product->input[1] = unfold_copy(u, result);
    u->folded[folded] = name;
    u->changes++;
}

Status unfold_ties(Unfold *u) {
    Onnx__GraphProto *g = u->g;
    u->ninits = (int)g->n_initializer;
    u->folded = NEW_ARRAY(u->a, Str, g->n_initializer + 1);
    for (size_t i = 0; i < g->n_initializer; i++)
        str_map_put(u->a, &u->inits, ox_text(g->initializer[i]->name), (int)i);
    for (size_t i = 0; i < g->n_node; i++) {
        Onnx__NodeProto *n = g->node[i];
        bool same = false;
        if (!onnx_is_op(n, "MatMul") || n->n_input != 2 ||
            strncmp(ox_text(n->input[1]), TIED_NAME, strlen(TIED_NAME)))
            continue;
        int folded = float_matrix(u, ox_text(n->input[1]));
        for (size_t k = 0; k < g->n_node && folded >= 0 && !same; k++) {
            const Onnx__NodeProto *reads = g->node[k];
            int table = onnx_is_op(reads, "Gather") && reads->n_input
                            ? float_matrix(u, ox_text(reads->input[0]))
                            : -1;
            if (table < 0) continue;
            TRY(are_tied(u, table, folded, &same));
            if (same) tie(u, n, table, folded);
        }
    }
    return OK;
}
