/* SPDX-License-Identifier: Apache-2.0 */
/* onnx_unfold_scope.c: merged parameters of nodes without a record of what
   they read in PyTorch's graph, such as the Split of an attention's
   in_proj_bias. The module in which the result is read names the parameter. */
#include <string.h>

#include "frontend/onnx/onnx_unfold.h"

static bool gives(const Onnx__NodeProto *n, const char *name) {
    for (size_t r = 0; r < n->n_output; r++)
        if (*n->output[r] && !strcmp(n->output[r], name)) return true;
    return false;
}

/* The exporter puts such a node before the node that reads it. */
enum { NEAR = 64 };

/* The next node that reads a result of node i, if it is near. */
static const Onnx__NodeProto *reader_of(const Unfold *u, size_t i) {
    for (size_t j = i + 1; j < u->g->n_node && j <= i + NEAR; j++)
        for (size_t k = 0; k < u->g->node[j]->n_input; k++)
            if (gives(u->g->node[i], u->g->node[j]->input[k]))
                return u->g->node[j];
    return NULL;
}

Status unfold_scope(Unfold *u, size_t i) {
    Onnx__NodeProto *n = u->g->node[i];
    for (size_t k = 0; k < n->n_input; k++) {
        int init = str_map_get(&u->inits, ox_text(n->input[k]));
        if (init < 0 || init >= u->ninits ||
            str_map_get(&u->targets, ox_text(n->input[k])) < 0)
            continue;
        const Onnx__NodeProto *reader = reader_of(u, i);
        Str module = reader ? ox_torch_module(reader) : NULL;
        const char *dot = strrchr(n->input[k], '.');
        if (!module || !dot) return OK;
        Str target = internf("%s%s", module, dot);
        int at = str_map_get(&u->targets, target),
            has = str_map_get(&u->inits, target);
        if (has >= 0 && has < u->ninits) continue; /* it was not merged */
        Slot s = {n, k, init};
        if (at >= 0 && ox_signed_as(&u->ox->signature.data[at], "PARAMETER"))
            TRY(unfold_operand(u, &s, at, FORM_ITSELF));
    }
    return OK;
}
