/* SPDX-License-Identifier: Apache-2.0 */
/* onnx_nodes.c: builds nodes in order, each by its row's handler, and stops
   gradients at results where the file says so. */
#include "frontend/onnx/onnx.h"

static OxBuild *const handlers[] = {
#define HANDLER(x) [OX_##x] = onnx_##x,
#include "frontend/onnx/onnx_handlers.def"
#undef HANDLER
};

static bool takes_sequences(const OxNode *n) {
    switch (n->op->handler) {
    case OX_sequence_at:
    case OX_sequence_insert:
    case OX_sequence_erase:
    case OX_sequence_length:
    case OX_sequence_concat:
    case OX_identity:
    case OX_if:
    case OX_loop:
    case OX_scan: return true;
    default: return false;
    }
}

Status ox_make_nodes(Ox *ox, const int *order, int count) {
    for (int i = 0; i < count; i++) {
        const OxNode *n = &ox->nodes.data[order[i]];
        ox->node = n;
        ox->b.loc = ox_loc(ox, n);
        ox->first_node = (uint32_t)ox->g->nodes.len;
        ox->first_value = (uint32_t)ox->g->values.len;
        for (int k = 0; k < n->nin && !takes_sequences(n); k++)
            if (*n->in[k] && !is_value(ox_name_of(ox, n->in[k])->value))
                return ox_fail(ox, "operand '%s' is a sequence",
                               ox_quote(ox, n->in[k]));
        bool done;
        OxBuild *run = handlers[n->op->handler];
        TRY(ox_make_picked(ox, run, &done));
        if (!done) TRY(ox_torch_whole(ox, &done));
        if (!done) TRY(run(ox));
        for (int k = 0; k < n->nout; k++) {
            if (!ox_has_out(ox, k)) continue;
            const OxName *out = ox_name_of(ox, n->out[k]);
            ValueId v = out->value;
            if (!is_value(v) && !out->seq)
                return ox_fail(ox, "result %d is not supported", k);
            if (out->drops) TRY(ox_drop(ox, k));
            if (!ox_stops(ox, n, k) || !is_value(v) ||
                !dtype_is_float(ox_type(ox, v).dtype))
                continue;
            TRY(ox_call(ox, "stop", &v, 1, NULL, 0, 1, &v));
            TRY(ox_out(ox, k, v));
        }
    }
    ox->node = NULL;
    return OK;
}
