/* SPDX-License-Identifier: Apache-2.0 */
/* onnx_names.c: the meaning of every name, the live nodes in order, and the
   check of each node against its row of onnx_ops.def. */
#include <string.h>

#include "frontend/onnx/onnx.h"

/* ---- definitions --------------------------------------------------------- */

static const char *place(Ox *ox, const OxName *n) {
    switch (n->kind) {
    case OX_INPUT: return "a graph input";
    case OX_INIT: return "an initializer";
    case OX_RESULT: break;
    }
    return arena_printf(ox->scratch, "a result of node '%s'",
                        ox_quote(ox, ox->nodes.data[n->index].name));
}

static Status define(Ox *ox, OxName n) {
    if (!*n.name) return ox_fail_model(ox, "%s has no name", place(ox, &n));
    if (name_is_own(n.name))
        return ox_fail_model(ox,
                             "'%s' is %s: names that start with 'ampc.' are "
                             "reserved, rename it in the model",
                             ox_quote(ox, n.name), place(ox, &n));
    OxName *old = ox_name_of(ox, n.name);
    if (old)
        return ox_fail_model(ox, "'%s' is defined twice: as %s and as %s",
                             ox_quote(ox, n.name), place(ox, old),
                             place(ox, &n));
    str_map_put(ox->scratch, &ox->by_name, n.name, ox->names.len);
    vec_push(ox->scratch, &ox->names, n);
    return OK;
}

static Status define_init(Ox *ox, OxInit init) {
    TRY(define(
        ox,
        (OxName){.name = init.name, .kind = OX_INIT, .index = ox->inits.len}));
    vec_push(ox->scratch, &ox->inits, init);
    return OK;
}

static Status define_inits(Ox *ox) {
    for (size_t i = 0; i < ox->graph->n_initializer; i++) {
        const Onnx__TensorProto *t = ox->graph->initializer[i];
        TRY(define_init(ox, (OxInit){.name = ox_text(t->name), .proto = t}));
    }
    return OK;
}

static int shared_names(const Ox *ox) {
    int n = 0;
    for (size_t i = 0; i < ox->graph->n_input; i++) {
        const OxName *x = ox_name_of(ox, ox_text(ox->graph->input[i]->name));
        n += x && x->kind == OX_INIT;
    }
    return n;
}

/* Initializers that a later tool made of Constant nodes. */
static int former_constants(const Ox *ox) {
    int n = 0;
    for (int i = 0; i < ox->inits.len; i++)
        n += strstr(ox->inits.data[i].name, "/Constant_") != NULL;
    return n;
}

/* PyTorch writes either all initializers as inputs, too, or none. Otherwise
   an argument of the forward, or a name in input_names=, has the same name
   as a parameter. */
static Status check_shared(Ox *ox) {
    int shared = shared_names(ox);
    if (!ox->is_torch || !shared ||
        shared == ox->inits.len - former_constants(ox))
        return OK;
    for (size_t i = 0; i < ox->graph->n_input; i++) {
        Str name = ox_text(ox->graph->input[i]->name);
        const OxName *x = ox_name_of(ox, name);
        if (x && x->kind == OX_INIT)
            (void)ox_fail_model(ox,
                                "input '%s' and the model's tensor '%s' have "
                                "one name in the file, and the input is lost; "
                                "export again with another name for the "
                                "argument, or with input_names=[..]",
                                ox_quote(ox, name), ox_quote(ox, name));
    }
    return ERR_USER;
}

/* An initializer that is also an input is a default; it is not a data input. */
static Status define_inputs(Ox *ox) {
    StrMap seen = {0};
    TRY(check_shared(ox));
    for (size_t i = 0; i < ox->graph->n_input; i++) {
        Str name = ox_text(ox->graph->input[i]->name);
        if (str_map_get(&seen, name) >= 0)
            return ox_fail_model(ox, "graph input '%s' is given twice",
                                 ox_quote(ox, name));
        str_map_put(ox->scratch, &seen, name, (int)i);
        OxName *old = ox_name_of(ox, name);
        if (old && old->kind == OX_INIT) continue;
        TRY(define(ox,
                   (OxName){.name = name, .kind = OX_INPUT, .index = (int)i}));
    }
    return OK;
}

Status ox_define_results(Ox *ox, int first) {
    for (int i = first; i < ox->nodes.len; i++) {
        const OxNode *n = &ox->nodes.data[i];
        for (int r = 0; r < n->nout; r++)
            if (*n->out[r])
                TRY(define(ox, (OxName){.name = n->out[r],
                                        .kind = OX_RESULT,
                                        .index = i,
                                        .result = r}));
    }
    return OK;
}

Status ox_define_value(Ox *ox, ValueId v, Str *name) {
    *name = internf("%.60s.%d", ox->node->name, ++ox->calls);
    return define(ox, (OxName){.name = *name, .kind = OX_RESULT, .value = v});
}

static bool is_graph_output(const Ox *ox, Str name) {
    return str_map_get(&ox->outputs, name) >= 0;
}

static Status check_defined(Ox *ox) {
    static const char remedy[] =
        ": PyTorch's optimiser wrote an invalid file, as it does where a model "
        "clamps a value twice; export with optimize=False";
    int bad = 0;
    for (int i = 0; i < ox->nodes.len; i++) {
        const OxNode *n = &ox->nodes.data[i];
        for (int k = 0; k < n->nin; k++)
            if (*n->in[k] && !ox_name_of(ox, n->in[k]) && ++bad <= 20)
                (void)ox_fail_node(
                    ox, n, "operand %d, '%s', is never defined%s", k,
                    ox_quote(ox, n->in[k]), ox->has_signature ? remedy : "");
    }
    for (size_t i = 0; i < ox->graph->n_output; i++) {
        Str name = ox_text(ox->graph->output[i]->name);
        if (!ox_name_of(ox, name) && ++bad <= 20)
            (void)ox_fail_model(ox, "graph output '%s' is never defined",
                                ox_quote(ox, name));
        if (is_graph_output(ox, name) && ++bad <= 20)
            (void)ox_fail_model(ox, "graph output '%s' is given twice",
                                ox_quote(ox, name));
        str_map_put(ox->scratch, &ox->outputs, name, (int)i);
    }
    return bad ? ERR_USER : OK;
}

/* ---- marks of the exporter ----------------------------------------------- */

/* Identity nodes that exporters write for a gradient stop, recognised by the
   names of their results or their own names. */
static bool named_stop(const Ox *ox, const OxNode *n) {
    static const struct {
        const char *producer, *glob;
    } rows[] = {{"jax2onnx", "*stop_out_*"}, {"tf2onnx", "*StopGradient*"}};
    const char *by = ox->model->producer_name;
    if (ox->is_paddle && glob_match("p2o.pd_op.share_data_*", n->out[0]))
        return true;
    for (size_t i = 0; by && i < sizeof rows / sizeof *rows; i++)
        if (!strncmp(by, rows[i].producer, strlen(rows[i].producer)) &&
            (glob_match(rows[i].glob, n->out[0]) ||
             glob_match(rows[i].glob, n->name)))
            return true;
    return false;
}

bool ox_detaches(const Ox *ox, const OxNode *n) {
    return n->op->handler == OX_identity &&
           (ox_torch_node(n, "aten.detach") || named_stop(ox, n));
}

bool ox_stops(const Ox *ox, const OxNode *n, int result) {
    const OxName *out = ox_name_of(ox, n->out[result]);
    return (out && out->stops) || ox_detaches(ox, n);
}

static void read_marks(Ox *ox) {
    const Onnx__GraphProto *g = ox->graph;
    for (size_t i = 0; i < g->n_value_info; i++) {
        const Onnx__ValueInfoProto *v = g->value_info[i];
        if (!v->n_metadata_props || !v->name) continue;
        OxName *n = ox_name_of(ox, intern(v->name));
        if (!n || n->kind != OX_INIT) continue;
        OxInit *init = &ox->inits.data[n->index];
        init->mark = ox_metadata(v->metadata_props, v->n_metadata_props,
                                 "pkg.torch.export.graph_signature."
                                 "InputSpec.kind");
        init->folded = ox_metadata(v->metadata_props, v->n_metadata_props,
                                   "pkg.onnxscript.optimizer.folded_from");
    }
}

/* In dynamo's files a BatchNormalization that is used again reads its
   statistics through one Identity for each earlier use: the results are the
   buffer itself.
   (In TorchScript's files they are separate tensors, see below.) */
static void find_statistics(Ox *ox) {
    enum { USES = 64 };
    if (!ox->has_signature) return;
    for (int i = 0; i < ox->nodes.len; i++) {
        OxNode *n = &ox->nodes.data[i];
        bool bn = !strcmp(n->type, "BatchNormalization");
        for (int k = 3; bn && k < n->nin; k++)
            for (int left = USES; left > 0; left--) {
                const OxName *x = ox_name_of(ox, n->in[k]);
                if (!x || x->kind != OX_RESULT) break;
                const OxNode *from = &ox->nodes.data[x->index];
                if (strcmp(from->type, "Identity") || from->nin != 1) break;
                n->in[k] = from->in[0];
            }
    }
}

/* Removes the result of a node, so that nothing reads it. */
static void becomes_init(Ox *ox, Str name, OxInit init) {
    OxName *to = ox_name_of(ox, name);
    to->kind = OX_INIT;
    to->index = ox->inits.len;
    init.name = name;
    vec_push(ox->scratch, &ox->inits, init);
}

/* The name of a parameter, not of a value. */
static bool is_parameter_name(Str name) {
    return strchr(name, '.') && name[0] != '/' && !strstr(name, "::");
}

/* TorchScript keeps one of several equal tensors and rebuilds the others as
   Identity nodes named after the lost parameter: each is a separate parameter.
   (Truly tied parameters share one name and have no Identity, but for tensors
   without names.) */
static void split_identities(Ox *ox) {
    if (ox->has_signature) return;
    bool numbered = ox_all_numbered(ox);
    if (numbered) ox_numbered_biases(ox);
    for (int i = 0; i < ox->nodes.len; i++) {
        OxNode *n = &ox->nodes.data[i];
        if (n->type != intern("Identity") || *n->domain || n->nin != 1 ||
            n->nout != 1 ||
            !(numbered ? ox_numbered_apart(ox, n)
                       : is_parameter_name(n->out[0])))
            continue;
        const OxName *from = ox_name_of(ox, n->in[0]);
        if (!from || from->kind != OX_INIT || is_graph_output(ox, n->out[0]))
            continue;
        const Onnx__TensorProto *proto = ox->inits.data[from->index].proto;
        DType d;
        if (!dtype_from_onnx(proto->data_type, &d) || !dtype_is_float(d))
            continue;
        becomes_init(ox, n->out[0], (OxInit){.proto = proto, .alias = true});
    }
}

static Status split_constants(Ox *ox) {
    if (!ox_lacks_constants(ox)) return OK;
    for (int i = 0; i < ox->nodes.len; i++) {
        OxNode *n = &ox->nodes.data[i];
        for (OxMerged at = {0}; ox_next_merged(ox, n, &at); at.operand++) {
            const OxName *from = ox_name_of(ox, n->in[at.operand]);
            OxInit init = ox->inits.data[from->index];
            init.name = at.name;
            init.alias = true;
            if (!ox_name_of(ox, at.name)) TRY(define_init(ox, init));
            n->in[at.operand] = at.name;
        }
    }
    return OK;
}

bool onnx_may_be_weight(const Onnx__TensorProto *t) {
    DType d;
    bool several = false;
    for (size_t i = 0; i < t->n_dims; i++) several |= t->dims[i] != 1;
    return several && dtype_from_onnx(t->data_type, &d) && dtype_is_float(d);
}

bool onnx_weights_in_nodes(const Onnx__GraphProto *g) {
    for (size_t i = 0; i < g->n_initializer; i++)
        if (onnx_may_be_weight(g->initializer[i])) return false;
    return true;
}

Onnx__TensorProto *onnx_node_weight(const Onnx__NodeProto *n) {
    bool one =
        onnx_is_op(n, "Constant") && n->n_output == 1 && n->n_attribute == 1;
    Onnx__TensorProto *t = one ? n->attribute[0]->t : NULL;
    return t && onnx_may_be_weight(t) ? t : NULL;
}

static void find_weights_in_nodes(Ox *ox) {
    if (ox->has_signature || !onnx_weights_in_nodes(ox->graph)) return;
    for (size_t i = 0; i < ox->graph->n_node; i++) {
        const Onnx__NodeProto *n = ox->graph->node[i];
        const Onnx__TensorProto *t = onnx_node_weight(n);
        if (t && !is_graph_output(ox, intern(n->output[0])))
            becomes_init(ox, intern(n->output[0]), (OxInit){.proto = t});
    }
}

Status ox_resolve_names(Ox *ox) {
    TRY(define_inits(ox));
    TRY(define_inputs(ox));
    TRY(ox_define_results(ox, 0));
    TRY(check_defined(ox));
    read_marks(ox);
    find_statistics(ox);
    split_identities(ox);
    TRY(split_constants(ox));
    find_weights_in_nodes(ox);
    return OK;
}

/* ---- order --------------------------------------------------------------- */

typedef struct Frame {
    int node, next; /* the operand to examine next */
} Frame;

enum { UNSEEN, OPEN, DONE };

static Status report_cycle(Ox *ox, const Frame *stack, int len, int node) {
    StrBuf sb = {0};
    int from = len - 1;
    while (from > 0 && stack[from].node != node) from--;
    for (int i = from; i < len && sb_put_next(&sb, i - from); i++)
        sb_printf(&sb, "'%s'",
                  ox_quote(ox, ox->nodes.data[stack[i].node].name));
    sb_put_more(&sb, len - from);
    Status s = ox_fail_model(ox, "these nodes form a cycle: %s", sb.data);
    sb_free(&sb);
    return s;
}

/* The node that an operand needs first; -1: none. */
static int producer_of(Ox *ox, Str name) {
    OxName *n = ox_name_of(ox, name);
    if (!n) return -1;
    n->uses++;
    if (n->kind == OX_INIT) ox->inits.data[n->index].live = true;
    return n->kind == OX_RESULT ? n->index : -1;
}

/* Depth-first order from one output; operands come first, in their written
   order. */
static Status visit(Ox *ox, int root, char *state, Frame *stack) {
    int len = 0;
    if (state[root] == UNSEEN) {
        stack[len++] = (Frame){root, 0};
        state[root] = OPEN;
    }
    while (len) {
        Frame *f = &stack[len - 1];
        const OxNode *n = &ox->nodes.data[f->node];
        if (f->next == n->nin) {
            state[f->node] = DONE;
            vec_push(ox->scratch, &ox->order, f->node);
            len--;
            continue;
        }
        Str name = n->in[f->next++];
        int p = *name ? producer_of(ox, name) : -1;
        if (p < 0 || state[p] == DONE) continue;
        if (state[p] == OPEN) return report_cycle(ox, stack, len, p);
        state[p] = OPEN;
        stack[len++] = (Frame){p, 0};
    }
    return OK;
}

Status ox_sort(Ox *ox) {
    char *state = NEW_ARRAY(ox->scratch, char, ox->nodes.len + 1);
    Frame *stack = NEW_ARRAY(ox->scratch, Frame, ox->nodes.len + 1);
    for (size_t i = 0; i < ox->graph->n_output; i++) {
        int p = producer_of(ox, intern(ox->graph->output[i]->name));
        if (p >= 0) TRY(visit(ox, p, state, stack));
    }
    for (int i = 0; i < ox->signature.len; i++) {
        const OxSigned *s = &ox->signature.data[i];
        const OxName *value = ox_name_of(ox, s->argument);
        if ((!ox_signed_as(s, "BUFFER_MUTATION") &&
             !ox_signed_as(s, "PARAMETER_MUTATION")) ||
            !value || value->kind != OX_RESULT)
            continue;
        (void)producer_of(ox, s->target);
        TRY(visit(ox, producer_of(ox, s->argument), state, stack));
    }
    return OK;
}

int *ox_needed(Ox *ox, int first, const Str *out, int nout, int *n) {
    int *order = NEW_ARRAY(ox->scratch, int, ox->nodes.len - first + 1);
    *n = 0;
    for (int i = 0; i < nout; i++) (void)producer_of(ox, out[i]);
    for (int i = ox->nodes.len - 1; i >= first; i--) { /* users first */
        const OxNode *node = &ox->nodes.data[i];
        bool needed = false;
        for (int r = 0; r < node->nout; r++)
            needed |= *node->out[r] && ox_uses(ox, node->out[r]) > 0;
        if (!needed) continue;
        for (int k = 0; k < node->nin; k++)
            if (*node->in[k]) (void)producer_of(ox, node->in[k]);
        order[(*n)++] = i;
    }
    for (int i = 0; i < *n / 2; i++) {
        int other = order[*n - 1 - i];
        order[*n - 1 - i] = order[i];
        order[i] = other;
    }
    return order;
}

/* ---- signatures ---------------------------------------------------------- */

/* The letter for the kind of an attribute in a row; 0: unknown. */
static char attr_kind(const OxOp *op, Str name) {
    size_t len = strlen(name);
    for (const char *s = op->attrs; *s;) {
        const char *colon = strchr(s, ':');
        if ((size_t)(colon - s) == len && !memcmp(s, name, len))
            return colon[1];
        s = colon + 2;
        while (*s == ' ') s++;
    }
    return 0;
}

static const struct {
    char letter;
    Onnx__AttributeProto__AttributeType type;
    const char *text;
} kinds[] = {
    {'i', ONNX__ATTRIBUTE_PROTO__ATTRIBUTE_TYPE__INT, "an integer"},
    {'f', ONNX__ATTRIBUTE_PROTO__ATTRIBUTE_TYPE__FLOAT, "a float"},
    {'s', ONNX__ATTRIBUTE_PROTO__ATTRIBUTE_TYPE__STRING, "a string"},
    {'t', ONNX__ATTRIBUTE_PROTO__ATTRIBUTE_TYPE__TENSOR, "a tensor"},
    {'I', ONNX__ATTRIBUTE_PROTO__ATTRIBUTE_TYPE__INTS, "integers"},
    {'F', ONNX__ATTRIBUTE_PROTO__ATTRIBUTE_TYPE__FLOATS, "floats"},
    {'S', ONNX__ATTRIBUTE_PROTO__ATTRIBUTE_TYPE__STRINGS, "strings"},
    {'g', ONNX__ATTRIBUTE_PROTO__ATTRIBUTE_TYPE__SPARSE_TENSOR,
     "a sparse tensor"},
    {'G', ONNX__ATTRIBUTE_PROTO__ATTRIBUTE_TYPE__GRAPH, "a graph"},
};

/* True if the attribute holds a value of another kind than its type. */
static bool stray_value(const Onnx__AttributeProto *p, char letter) {
    return (p->has_i && letter != 'i') || (p->has_f && letter != 'f') ||
           (p->has_s && letter != 's') || (p->t && letter != 't') ||
           (p->n_ints && letter != 'I') || (p->n_floats && letter != 'F') ||
           (p->n_strings && letter != 'S') || (p->g && letter != 'G') ||
           (p->sparse_tensor && letter != 'g') || p->tp || p->n_graphs ||
           p->n_tensors || p->n_sparse_tensors || p->n_type_protos;
}

static Status check_attr(Ox *ox, const OxNode *n, const OxAttr *a) {
    char letter = attr_kind(n->op, a->name);
    const char *name = ox_quote(ox, a->name);
    if (letter == 'n') /* an integer, and in opset 1 a float */
        letter =
            n->version == 1 && a->p->has_f && ox_is_whole(a->p->f) ? 'f' : 'i';
    if (!letter) return ox_fail_node(ox, n, "unknown attribute '%s'", name);
    if (!a->p->has_type)
        return ox_fail_node(ox, n, "attribute '%s' has no type", name);
    for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++)
        if (kinds[k].letter == letter && kinds[k].type != a->p->type)
            return ox_fail_node(ox, n, "attribute '%s' must be %s", name,
                                kinds[k].text);
    if (stray_value(a->p, letter) || (letter == 't' && !a->p->t) ||
        (letter == 'G' && !a->p->g))
        return ox_fail_node(ox, n,
                            "the value of attribute '%s' disagrees with "
                            "its type",
                            name);
    return OK;
}

static Status check_node(Ox *ox, const OxNode *n) {
    const OxOp *op = n->op;
    Status s = OK;
    if (n->version == 0) s = ox_fail_node(ox, n, "no opset is imported for it");
    int nin = n->nin - n->captured;
    if (nin < op->in_min || (op->in_max >= 0 && nin > op->in_max))
        s = ox_fail_node(ox, n, "%d operands", nin);
    if (n->nout < op->out_min || (op->out_max >= 0 && n->nout > op->out_max))
        s = ox_fail_node(ox, n, "%d results", n->nout);
    int need = op->in_max < 0 ? n->nin : op->in_min;
    /* a Loop without trip count or condition */
    for (int i = op->handler == OX_loop ? 2 : 0; i < need && i < n->nin; i++)
        if (!*n->in[i]) s = ox_fail_node(ox, n, "operand %d is required", i);
    for (int i = 0; i < n->nattr; i++) {
        for (int j = 0; j < i; j++)
            if (n->attr[j].name == n->attr[i].name)
                s = ox_fail_node(ox, n, "attribute '%s' is given twice",
                                 ox_quote(ox, n->attr[i].name));
        if (check_attr(ox, n, &n->attr[i]) != OK) s = ERR_USER;
    }
    return s;
}

static const char *hint(Str domain, Str type) {
    if (!strcmp(domain, "com.microsoft.nchwc"))
        return "; laid out for one CPU: optimise up to ORT_ENABLE_EXTENDED";
    if (!strcmp(domain, "com.microsoft"))
        return "; fused for inference: use the exporter's original file";
    if (!strcmp(domain, "ai.onnx.ml"))
        return !strcmp(type, "ZipMap")
                   ? "; convert with options={'zipmap': False}"
                   : "; scalers, normalizers, imputers, linear models and "
                     "trees are supported";
    if (!strncmp(domain, "pkg.", 4))
        return "; the file lacks this function's body";
    if (!*type) return "; the node has no op_type";
    if (*domain) return "";
    return "; outside the tiers: strings, features of sound, shapes "
           "that depend on data do not train";
}

/* Lists every unsupported op once, with its count and first node. */
static Status report_unsupported(Ox *ox, const int *order, int len) {
    StrMap seen = {0};
    VEC(int) first = {0}, count = {0};
    for (int i = 0; i < len; i++) {
        const OxNode *n = &ox->nodes.data[order[i]];
        if (n->op) continue;
        Str key = *n->domain ? internf("%s::%s", n->domain, n->type) : n->type;
        int k = str_map_get(&seen, key);
        if (k < 0) {
            k = first.len;
            str_map_put(ox->scratch, &seen, key, k);
            vec_push(ox->scratch, &first, order[i]);
            vec_push(ox->scratch, &count, 0);
        }
        count.data[k]++;
    }
    for (int k = 0; k < first.len; k++) {
        const OxNode *n = &ox->nodes.data[first.data[k]];
        (void)ox_fail_node(ox, n,
                           "unsupported op%s%s%s (%d node%s, this is "
                           "the first)%s",
                           *n->domain ? " of domain '" : "",
                           *n->domain ? ox_quote(ox, n->domain) : "",
                           *n->domain ? "'" : "", count.data[k],
                           count.data[k] == 1 ? "" : "s",
                           hint(n->domain, n->type));
    }
    return first.len ? ERR_USER : OK;
}

Status ox_check_nodes(Ox *ox, const int *order, int len) {
    Status s = report_unsupported(ox, order, len);
    for (int i = 0; i < len; i++) {
        const OxNode *n = &ox->nodes.data[order[i]];
        if (n->op && check_node(ox, n) != OK) s = ERR_USER;
    }
    return s;
}
