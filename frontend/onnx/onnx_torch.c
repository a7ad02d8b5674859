/* SPDX-License-Identifier: Apache-2.0 */
/* onnx_torch.c: what a node was in PyTorch's graph, in the metadata that
   torch.export's exporter writes, and what the node itself lost:
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

/* Length of an argument, which ends at a comma or bracket of its level. */
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

/* ---- one op in parts ----------------------------------------------------- */

static bool is_number(const Ox *ox, Str name, double k) {
    const OxName *x = ox_name_of(ox, name);
    double v;
    return x && is_value(x->value) && value_is_splat(ox->g, x->value, &v) &&
           v == k;
}

/* x of max(log(x), -100), or NULL. */
static Str bounded_log(const Ox *ox, Str name) {
    const OxNode *max = ox_maker(ox, name, "Max");
    const OxNode *log = max ? ox_maker(ox, max->in[0], "Log") : NULL;
    bool bounded = log && max->nin == 2 && is_number(ox, max->in[1], -100);
    return bounded ? log->in[0] : NULL;
}

/* (t - 1) max(log(1 - p), -100) - t max(log(p), -100): into that torch.export
   takes F.binary_cross_entropy apart.  The gradient of a log that is bounded is
   0 at a probability of 0 or 1, but the gradient of PyTorch's function is not.
 */
static Status binary_cross_entropy(Ox *ox, bool *done) {
    const OxNode *n = ox->node;
    const OxNode *miss = ox_maker(ox, n->in[0], "Mul");
    const OxNode *hit = ox_maker(ox, n->in[1], "Mul");
    const OxNode *less = miss ? ox_maker(ox, miss->in[0], "Sub") : NULL;
    Str p = hit ? bounded_log(ox, hit->in[1]) : NULL;
    Str rest = miss ? bounded_log(ox, miss->in[1]) : NULL;
    const OxNode *add = rest ? ox_maker(ox, rest, "Add") : NULL;
    const OxNode *neg = add ? ox_maker(ox, add->in[0], "Neg") : NULL;
    if (!p || !less || !neg || neg->in[0] != p || less->in[0] != hit->in[0] ||
        !is_number(ox, less->in[1], 1) || !is_number(ox, add->in[1], 1))
        return OK;
    ValueId in[] = {ox_name_of(ox, p)->value,
                    ox_name_of(ox, hit->in[0])->value},
            y;
    Attr none = attr_s(attr_key("reduction", ATTR_STR), "none");
    TRY(ox_call(ox, "bce_loss", in, 2, &none, 1, 1, &y));
    *done = true;
    return ox_out(ox, 0, y);
}

/* Functions of PyTorch's that the file has in parts, and that lose something
   thereby: built whole at the last part. */
Status ox_torch_whole(Ox *ox, bool *done) {
    static const struct {
        const char *target;
        Status (*build)(Ox *ox, bool *done);
    } rows[] = {{"aten.sub.", binary_cross_entropy}};
    *done = false;
    for (size_t i = 0; i < sizeof rows / sizeof *rows && !*done; i++)
        if (ox_torch_node(ox->node, rows[i].target) && ox->node->nin == 2)
            TRY(rows[i].build(ox, done));
    return OK;
}
