/* SPDX-License-Identifier: Apache-2.0 */
/* onnx_signature.c: reads the metadata in which dynamo describes the exported
   program, a line for each input and result, such as p_fc_weight: PARAMETER
   target='fc.weight'
       add_1: BUFFER_MUTATION target='steps'                                 */
#include <string.h>

#include "frontend/onnx/onnx.h"

#define BY_TORCH "pytorch"
#define BY_ORT   "onnxruntime.transformers"

static void read_line(Ox *ox, const char *s, size_t n) {
    const char *end = s + n, *colon = memchr(s, ':', n);
    if (!colon || colon + 2 > end) return;
    const char *kind = colon + 2;
    const char *stop = memchr(kind, ' ', (size_t)(end - kind));
    OxSigned x = {.argument = intern_n(s, (size_t)(colon - s)),
                  .kind = intern_n(kind, (size_t)((stop ? stop : end) - kind)),
                  .target = intern("")};
    const char *open = memchr(kind, '\'', (size_t)(end - kind));
    const char *shut =
        open ? memchr(open + 1, '\'', (size_t)(end - open - 1)) : NULL;
    if (shut) x.target = intern_n(open + 1, (size_t)(shut - open - 1));
    vec_push(ox->a, &ox->signature, x);
}

void ox_read_signature(Ox *ox) {
    const Onnx__GraphProto *g = ox->graph;
    Str s = ox_metadata(g->metadata_props, g->n_metadata_props,
                        "pkg.torch.export.ExportedProgram.graph_signature");
    ox->has_signature = s != NULL;
    while (s && *s) {
        size_t n = strcspn(s, "\n");
        read_line(ox, s, n);
        s += n + (s[n] == '\n');
    }
}

bool ox_signed_as(const OxSigned *x, const char *kind) {
    return !strcmp(x->kind, kind) && *x->target;
}

bool ox_by_ampc(const Ox *ox) {
    return ox_metadata(ox->model->metadata_props, ox->model->n_metadata_props,
                       "ampc.torch.export");
}

static bool is_by(const Onnx__ModelProto *m, const char *producer) {
    return m->producer_name && !strcmp(m->producer_name, producer);
}

bool ox_by_torch(const Onnx__ModelProto *m) {
    if (!is_by(m, BY_ORT)) return is_by(m, BY_TORCH);
    for (size_t i = 0; i < m->graph->n_node; i++) {
        Str name = ox_text(m->graph->node[i]->name);
        if (name[0] == '/' || !strncmp(name, "node_", 5)) return true;
    }
    return false;
}

Str ox_rewritten_by(const Ox *ox) {
    const Onnx__ModelProto *m = ox->model;
    if (is_by(m, BY_ORT)) return intern("the optimiser of ONNX Runtime");
    for (size_t i = 0; i < m->n_metadata_props; i++)
        if (!strncmp(ox_text(m->metadata_props[i]->key), "onnxsim.", 8))
            return intern("onnxsim");
    for (size_t i = 0; i < ox->graph->n_node && !ox->has_signature; i++)
        if (ox->is_torch &&
            !strncmp(ox_text(ox->graph->node[i]->name), "node_", 5))
            return intern(
                "another tool (onnxslim, onnxoptimizer, ONNX Runtime)");
    return NULL;
}
