/* SPDX-License-Identifier: Apache-2.0 */
/* onnx_merged.c: parameters of a dynamo file's signature that the file lacks:
   second names of tied tensors, unread ones, or ones that the exporter's
   optimiser dropped with a node or merged with an equal tensor. */
#include <string.h>

#include "frontend/onnx/onnx_spoiled.h"

/* Names in PyTorch's graph: of the file's nodes, and of their arguments. */
typedef struct Told {
    StrMap defined, read;
    StrMap untold; /* last parts of names read by nodes without a text */
    StrMap whole;  /* values that are integers or truth values */
    StrMap tied;   /* parameters in whose place another one is read */
    bool any;
} Told;

static void read_untold(Ox *ox, Told *t, const OxNode *n) {
    for (int k = 0; k < n->nin; k++) {
        const OxName *x = ox_name_of(ox, n->in[k]);
        const char *dot = strrchr(n->in[k], '.');
        if (x && x->kind == OX_INIT && dot)
            str_map_put(ox->scratch, &t->untold, intern(dot), 1);
    }
}

static void read_integers(Ox *ox, Told *t) {
    for (size_t i = 0; i < ox->graph->n_value_info; i++) {
        const Onnx__ValueInfoProto *v = ox->graph->value_info[i];
        DType d;
        if (v->type &&
            v->type->value_case == ONNX__TYPE_PROTO__VALUE_TENSOR_TYPE &&
            v->type->tensor_type &&
            dtype_from_onnx(v->type->tensor_type->elem_type, &d) &&
            !dtype_is_float(d))
            str_map_put(ox->scratch, &t->whole, ox_text(v->name), 1);
    }
}

/* No gradient passes the node: whatever it reads, no parameter trains there. */
static bool is_whole(const Told *t, const OxNode *n) {
    for (int i = 0; i < n->nout; i++)
        if (str_map_get(&t->whole, n->out[i]) < 0) return false;
    return true;
}

/* PyTorch's graph has one of the names of a tied tensor: embed_tokens reads
   p_lm_head_weight if embed_tokens.weight is the same tensor. */
static void read_tied(Ox *ox, Told *t, const OxNode *n) {
    Str module = ox_torch_module(n->proto);
    const char *s = strstr(ox_torch_text(n->proto), "(args = ");
    for (Str name; module && s && (name = ox_torch_next_name(&s));)
        for (int k = 0; k < ox->signature.len; k++) {
            const OxSigned *p = &ox->signature.data[k];
            const char *dot = strrchr(p->target, '.');
            if (p->argument == name && ox_signed_as(p, "PARAMETER") && dot)
                str_map_put(ox->scratch, &t->tied, internf("%s%s", module, dot),
                            1);
        }
}

/* A second name of a tensor that the file has. transformers' models with an
   encoder and a decoder own its first name, shared.weight, which no module
   reads. */
static bool is_tied(const Told *t, Str parameter) {
    static const char shared[] = "shared.weight";
    size_t n = strlen(parameter), k = sizeof shared - 1;
    if (str_map_get(&t->tied, parameter) >= 0) return true;
    if (n < k || strcmp(parameter + n - k, shared)) return false;
    Str module = intern_n(parameter, n - k);
    return str_map_get(&t->tied,
                       internf("%sencoder.embed_tokens.weight", module)) >= 0 &&
           str_map_get(&t->tied,
                       internf("%sdecoder.embed_tokens.weight", module)) >= 0;
}

static void read_told(Ox *ox, Told *t) {
    read_integers(ox, t);
    for (int i = 0; i < ox->nodes.len; i++) {
        const char *s = ox_torch_text(ox->nodes.data[i].proto), *args;
        Str name = *s == '%' ? ox_torch_next_name(&s) : NULL;
        if (name) str_map_put(ox->scratch, &t->defined, name, 1);
        if (!name) read_untold(ox, t, &ox->nodes.data[i]);
        t->any |= name != NULL;
        args = strstr(s, "(args = ");
        while (args && (name = ox_torch_next_name(&args)))
            str_map_put(ox->scratch, &t->read, name, i);
        read_tied(ox, t, &ox->nodes.data[i]);
    }
    for (int k = 0; k < ox->signature.len; k++) {
        const OxSigned *p = &ox->signature.data[k];
        if (!strstr(p->kind, "OUTPUT") && !strstr(p->kind, "MUTATION"))
            str_map_put(ox->scratch, &t->defined, p->argument, 1);
    }
}

/* Nodes that change no element: their names may be missing without loss. */
static bool changes_nothing(Str name) {
    static const char *const ops[] = {"_to_copy",   "_unsafe_view",
                                      "alias",      "alpha_dropout",
                                      "chunk",      "clone",
                                      "contiguous", "detach",
                                      "dropout",    "expand",
                                      "expand_as",  "feature_dropout",
                                      "flatten",    "getitem",
                                      "identity",   "lift_fresh_copy",
                                      "narrow",     "numpy_T",
                                      "permute",    "reshape",
                                      "select",     "slice",
                                      "split",      "split_with_sizes",
                                      "squeeze",    "sym_size_int",
                                      "t",          "to",
                                      "transpose",  "type_as",
                                      "unbind",     "unsqueeze",
                                      "view",       "feature_alpha_dropout",
                                      "repeat",     "native_dropout"};
    for (size_t i = 0; i < sizeof ops / sizeof *ops; i++)
        if (ox_torch_counts(name, ops[i])) return true;
    return !strncmp(name, "sym_", 4);
}

static bool is_missing(const Ox *ox, const Told *t, Str name) {
    return str_map_get(&t->defined, name) < 0 && !ox_name_of(ox, name);
}

/* A node of PyTorch's graph that something reads but the file lacks, such as
   a product with a parameter of ones. */
static bool lacks_node(Ox *ox, const Told *t) {
    for (int i = 0; i < ox->nodes.len; i++) {
        const OxNode *n = &ox->nodes.data[i];
        if (is_whole(t, n)) continue; /* such as a sum of positions and 0 */
        const char *s = strstr(ox_torch_text(n->proto), "(args = ");
        for (Str name; s && (name = ox_torch_next_name(&s));)
            if (is_missing(ox, t, name) && !changes_nothing(name)) return true;
    }
    for (int k = 0; k < ox->signature.len; k++) {
        const OxSigned *p = &ox->signature.data[k];
        if (!strcmp(p->kind, "USER_OUTPUT") &&
            str_map_get(&t->defined, p->argument) < 0)
            return true;
    }
    return false;
}

/* A node without a record of what it read, such as the Split that the
   exporter makes of split_with_sizes, reads a parameter of that name in
   another module: equal parameters were merged. */
static bool perhaps_read(const Told *t, Str parameter) {
    const char *end = strrchr(parameter, '.');
    return end && str_map_get(&t->untold, intern(end)) >= 0;
}

/* What a node reads in PyTorch's graph. */
typedef struct Read {
    bool missing;  /* a name that the file lacks */
    bool argument; /* the parameter that was asked for */
} Read;

static Read read_of(const Ox *ox, const Told *t, const OxNode *n,
                    Str argument) {
    const char *s = strstr(ox_torch_text(n->proto), "(args = ");
    Read r = {0};
    for (Str name; s && (name = ox_torch_next_name(&s));) {
        r.missing |= is_missing(ox, t, name);
        r.argument |= name == argument;
    }
    return r;
}

static bool lacks_any_node(const Ox *ox, const Told *t) {
    for (int i = 0; i < ox->nodes.len; i++) {
        const OxNode *n = &ox->nodes.data[i];
        if (!is_whole(t, n) && read_of(ox, t, n, NULL).missing) return true;
    }
    return false;
}

/* A node reads a parameter that its record does not name, and the record
   names something that the file lacks: the view of an equal parameter. */
static bool reads_another(const Ox *ox, const Told *t, const OxSigned *p) {
    for (int i = 0; i < ox->nodes.len; i++) {
        const OxNode *n = &ox->nodes.data[i];
        bool reads = false;
        for (int k = 0; k < n->nin; k++) reads |= n->in[k] == p->target;
        if (!reads) continue;
        Read r = read_of(ox, t, n, p->argument);
        if (r.missing && !r.argument) return true;
    }
    return false;
}

static bool views_merged(const Ox *ox, const Told *t) {
    for (int k = 0; k < ox->signature.len; k++)
        if (ox_signed_as(&ox->signature.data[k], "PARAMETER") &&
            reads_another(ox, t, &ox->signature.data[k]))
            return true;
    return false;
}

bool ox_is_held(const Ox *ox, Str name) {
    const OxName *n = ox_name_of(ox, name);
    return n && n->kind == OX_INIT && ox->inits.data[n->index].live;
}

static void warn_missing(Ox *ox, Lost *l) {
    if (!l->count || !options_train(ox->opt)) return;
    sb_put_more(&l->names, l->count);
    ox_warn_model(ox,
                  "the file lacks parameters of its signature: %s; either the "
                  "model does not read them, or the exporter merged what they "
                  "compute with an equal value; if the model reads them, "
                  "export with optimize=False",
                  l->names.data);
    sb_free(&l->names);
}

/* A parameter that is missing was not read (or has a second name), unless a
   node's record names it, or a node is missing or has no record. */
void ox_merged_parameters(Ox *ox, Lost *lost) {
    Lost unread = {0};
    Told t = {0};
    int missing = 0;
    for (int k = 0; k < ox->signature.len; k++) {
        const OxSigned *p = &ox->signature.data[k];
        missing += ox_signed_as(p, "PARAMETER") && !ox_is_held(ox, p->target);
    }
    if (!missing) return;
    read_told(ox, &t);
    bool optimised = ox_was_optimised(ox);
    bool lacks = t.any ? lacks_node(ox, &t) || views_merged(ox, &t) : optimised;
    bool any = t.any && lacks_any_node(ox, &t);
    for (int k = 0; k < ox->signature.len; k++) {
        const OxSigned *p = &ox->signature.data[k];
        if (!ox_signed_as(p, "PARAMETER") || ox_is_held(ox, p->target) ||
            is_tied(&t, p->target))
            continue;
        if (lacks || str_map_get(&t.read, p->argument) >= 0 ||
            (t.any && optimised && perhaps_read(&t, p->target)))
            ox_lose(ox, lost, p->target, NULL);
        else if (any && !ox_lifts_variables(ox))
            ox_lose(ox, &unread, p->target, NULL);
    }
    warn_missing(ox, &unread);
}

/* Equal constants, which are variables, were merged behind a computation. */
void ox_warn_lifted(Ox *ox) {
    Lost lost = {0};
    if (!options_train(ox->opt) || !ox_lifts_variables(ox)) return;
    for (int k = 0; k < ox->signature.len; k++)
        if (ox_lost_constant(ox, &ox->signature.data[k]))
            ox_lose(ox, &lost, ox->signature.data[k].target, NULL);
    if (!lost.count) return;
    sb_put_more(&lost.names, lost.count);
    ox_warn_model(ox,
                  "the exporter stored one of several equal tensors: %s %s "
                  "lost, and what read %s reads another variable; with Keras "
                  "export with a batch of any size "
                  "(InputSpec(shape=(None, ..)))",
                  lost.names.data, lost.count == 1 ? "is" : "are",
                  lost.count == 1 ? "it" : "them");
    sb_free(&lost.names);
}
