/* SPDX-License-Identifier: Apache-2.0 */
/* onnx_torch.c: what a node was in PyTorch's graph, in the metadata that
   torch.export's exporter writes, and what the node itself lost:
       %loss : [..] = call_function[target=torch.ops.aten.cross_entropy_loss
         .default](args = (%y, %t, None, 1, -100, 0.3), kwargs = {})          */
#include <stdlib.h>
#include <string.h>

#include "frontend/onnx/onnx.h"

static Str text_of(const OxNode *n) {
    return ox_text(ox_metadata(n->proto->metadata_props,
                               n->proto->n_metadata_props,
                               "pkg.torch.onnx.fx_node"));
}

Str ox_torch_node(const OxNode *n, const char *target) {
    const char *at = strstr(text_of(n), "target=torch.ops.aten.");
    at = at ? at + strlen("target=torch.ops.") : NULL;
    return at && !strncmp(at, target, strlen(target)) ? at : NULL;
}

/* Where an argument ends: at a comma or bracket of its own level. */
static size_t argument_length(const char *s) {
    int depth = 0;
    size_t n = 0;
    for (; s[n]; n++) {
        if (strchr("([{", s[n])) depth++;
        if (strchr(")]}", s[n]) && depth-- == 0) break;
        if (s[n] == ',' && depth == 0) break;
    }
    return n;
}

Str ox_torch_argument(const OxNode *n, int index) {
    const char *s = strstr(text_of(n), "(args = (");
    if (!s) return NULL;
    s += strlen("(args = (");
    for (;; index--) {
        size_t length = argument_length(s);
        if (!index) return intern_n(s, length);
        if (s[length] != ',') return NULL;
        s += length + 1;
        while (*s == ' ') s++;
    }
}

double ox_torch_number(const OxNode *n, const char *target, int index,
                       double otherwise) {
    Str s = ox_torch_node(n, target) ? ox_torch_argument(n, index) : NULL;
    char *end = NULL;
    double v = s ? strtod(s, &end) : 0;
    return s && end != s && !*end ? v : otherwise;
}
