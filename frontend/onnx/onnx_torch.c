/* SPDX-License-Identifier: Apache-2.0 */
/* onnx_torch.c: what a node was in PyTorch's graph, in the metadata that
   torch.export's exporter writes:
       %loss : [..] = call_function[target=torch.ops.aten.cross_entropy_loss
         .default](args = (%y, %t, None, 1, -100, 0.3), kwargs = {})          */
#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#include "frontend/onnx/onnx.h"

Str ox_torch_text(const Onnx__NodeProto *n) {
    return ox_text(ox_metadata(n->metadata_props, n->n_metadata_props,
                               "pkg.torch.onnx.fx_node"));
}

bool ox_torch_in_name(char c) { return isalnum((unsigned char)c) || c == '_'; }

Str ox_torch_next_name(const char **s) {
    const char *p = strchr(*s, '%');
    if (!p) return NULL;
    size_t n = 0;
    while (ox_torch_in_name(p[1 + n])) n++;
    *s = p + 1 + n;
    return intern_n(p + 1, n);
}

bool ox_torch_reads(Str text, Str name) {
    const char *s = strstr(text, "(args = ");
    for (Str found; s && (found = ox_torch_next_name(&s));)
        if (!strcmp(found, name)) return true;
    return false;
}

bool ox_torch_counts(Str name, const char *op) {
    size_t n = strlen(op);
    if (strncmp(name, op, n)) return false;
    for (name += n; *name == '_' || isdigit((unsigned char)*name);) name++;
    return !*name;
}

Str ox_torch_node(const OxNode *n, const char *target) {
    const char *at = strstr(ox_torch_text(n->proto), "target=torch.ops.aten.");
    at = at ? at + strlen("target=torch.ops.") : NULL;
    return at && !strncmp(at, target, strlen(target)) ? at : NULL;
}

/* Length of an argument, which ends at a comma or bracket of its nesting
   level. */
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
    const char *s = strstr(ox_torch_text(n->proto), "(args = (");
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

Str ox_torch_module(const Onnx__NodeProto *n) {
    const char *s = ox_text(ox_metadata(n->metadata_props, n->n_metadata_props,
                                        "pkg.torch.onnx.name_scopes"));
    const char *end;
    Str last = NULL, before = NULL;
    for (; (s = strchr(s, '\'')) && (end = strchr(s + 1, '\'')); s = end + 1) {
        before = last;
        last = intern_n(s + 1, (size_t)(end - s - 1));
    }
    return before && *before ? before : NULL;
}
