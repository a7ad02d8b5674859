/* SPDX-License-Identifier: Apache-2.0 */
/* onnx_model.c: header checks, and model-local functions inlined into the
   flat list ox->nodes.                                                      */
#include <string.h>

#include "frontend/onnx/onnx.h"

/* ---- header -------------------------------------------------------------- */

static Status check_opsets(Ox *ox, Onnx__OperatorSetIdProto *const *op,
                           size_t n, const char *whose) {
    if (n == 0)
        return ox_fail_model(ox, "%s imports no opset (opset_import)", whose);
    for (size_t i = 0; i < n; i++) {
        Str d = ox_domain(op[i]->domain);
        for (size_t j = 0; j < i; j++)
            if (ox_domain(op[j]->domain) == d &&
                op[j]->version != op[i]->version)
                return ox_fail_model(
                    ox,
                    "%s imports domain '%s' twice, as version %lld and %lld",
                    whose, ox_quote(ox, d), (long long)op[j]->version,
                    (long long)op[i]->version);
        if (d == intern(OX_AMPC_DOMAIN) && op[i]->version > OX_AMPC_OPSET)
            return ox_fail_model(ox,
                                 "version %lld of domain '%s' is newer than "
                                 "this compiler knows (%d): use a newer ampc",
                                 (long long)op[i]->version, d, OX_AMPC_OPSET);
        if (d != intern("")) continue;
        if (op[i]->version > OX_MAX_OPSET)
            return ox_fail_model(ox,
                                 "opset %lld is newer than this compiler knows;"
                                 " re-export at opset <= %d",
                                 (long long)op[i]->version, OX_MAX_OPSET);
        if (op[i]->version < OX_MIN_OPSET)
            return ox_fail_model(ox,
                                 "opset %lld is too old; accepted: %d to "
                                 "%d",
                                 (long long)op[i]->version, OX_MIN_OPSET,
                                 OX_MAX_OPSET);
    }
    return OK;
}

Status ox_check_model(Ox *ox) {
    const Onnx__ModelProto *m = ox->model;
    if (m->ir_version < OX_MIN_IR || m->ir_version > OX_MAX_IR)
        return ox_fail_model(ox, "ir_version %lld; accepted: %d to %d",
                             (long long)m->ir_version, OX_MIN_IR, OX_MAX_IR);
    if (!m->graph) return ox_fail_model(ox, "the model has no graph");
    ox->graph = m->graph;
    TRY(check_opsets(ox, m->opset_import, m->n_opset_import, "the model"));
    if (m->n_training_info)
        return ox_fail_model(ox, "training_info is not supported: give the "
                                 "loss and the optimizer as options");
    if (m->graph->n_sparse_initializer)
        return ox_fail_model(ox, "sparse_initializer is not supported");
    if (m->graph->n_output == 0)
        return ox_fail_model(ox, "the graph has no outputs");
    return OK;
}

/* ---- functions ----------------------------------------------------------- */

/* A body that is being copied: the model's graph, a function called from
   `up`, or a subgraph of a node in `up`, which can read the names of `up`. */
typedef struct OxScope {
    const struct OxScope *up;
    const Onnx__FunctionProto *fn; /* NULL: a graph */
    bool inner;                    /* a subgraph    */
    const OxNode *call;
    Str prefix;
    StrMap to; /* formal name to index in `actual` */
    VEC(Str) actual;
    Onnx__OperatorSetIdProto *const *opset;
    size_t nopset;
    int depth;
} Scope;

static Str function_key(const char *domain, const char *name,
                        const char *overload) {
    return internf("%s\n%s\n%s", ox_domain(domain), ox_text(name),
                   ox_text(overload));
}

static Status index_functions(Ox *ox) {
    for (size_t i = 0; i < ox->model->n_functions; i++) {
        const Onnx__FunctionProto *f = ox->model->functions[i];
        Str key = function_key(f->domain, f->name, f->overload);
        if (str_map_get(&ox->functions, key) >= 0)
            return ox_fail_model(ox, "function '%s' is defined twice",
                                 ox_quote(ox, ox_text(f->name)));
        str_map_put(ox->scratch, &ox->functions, key, (int)i);
        if (!*ox_domain(f->domain) && ox_op_find(ox_text(f->name)))
            ox_warn_model(ox,
                          "function '%s' of the file has the name of an op of "
                          "ONNX and is taken in its place; other programs may "
                          "compute the op: rename the function",
                          ox_quote(ox, ox_text(f->name)));
    }
    return OK;
}

static const Onnx__FunctionProto *find_function(const Ox *ox,
                                                const Onnx__NodeProto *p) {
    if (!ox->model->n_functions) return NULL;
    int i = str_map_get(&ox->functions,
                        function_key(p->domain, p->op_type, p->overload));
    return i < 0 ? NULL : ox->model->functions[i];
}

static Str scoped(const Scope *sc, const char *name) {
    Str s = ox_text(name);
    if ((!sc->fn && !sc->inner) || !*s) return s;
    int i = str_map_get(&sc->to, s);
    if (i >= 0) return sc->actual.data[i];
    return sc->inner ? scoped(sc->up, name) : internf("%s%s", sc->prefix, s);
}

Str ox_scoped(const OxNode *owner, const char *name) {
    return scoped(owner->scope, name);
}

static void stands_for(Ox *ox, Scope *sc, const char *name, Str actual) {
    str_map_put(ox->scratch, &sc->to, ox_text(name), sc->actual.len);
    vec_push(ox->scratch, &sc->actual, actual);
}

/* 0: not imported. ONNX Runtime's own domain, which has one version, needs no
   import there, and many files lack it. */
static int version_of(const Scope *sc, Str domain) {
    for (size_t i = 0; i < sc->nopset; i++)
        if (ox_domain(sc->opset[i]->domain) == domain) {
            int64_t v = sc->opset[i]->version;
            return v < 0 || v > INT32_MAX ? 0 : (int)v;
        }
    return domain == intern("com.microsoft");
}

/* The attribute to which a reference inside a function body refers: from the
   call, else the function's default, else none. */
static const Onnx__AttributeProto *referred(const Scope *sc, Str ref) {
    while (sc->inner) sc = sc->up;
    if (!sc->fn) return NULL;
    for (int i = 0; i < sc->call->nattr; i++)
        if (sc->call->attr[i].name == ref) return sc->call->attr[i].p;
    for (size_t i = 0; i < sc->fn->n_attribute_proto; i++)
        if (ox_text(sc->fn->attribute_proto[i]->name) == ref)
            return sc->fn->attribute_proto[i];
    return NULL;
}

static void copy_attrs(Ox *ox, const Scope *sc, const Onnx__NodeProto *p,
                       OxNode *n) {
    n->attr = NEW_ARRAY(ox->scratch, OxAttr, p->n_attribute);
    for (size_t i = 0; i < p->n_attribute; i++) {
        const Onnx__AttributeProto *a = p->attribute[i];
        Str name = ox_text(a->name), ref = ox_text(a->ref_attr_name);
        if (*ref) a = referred(sc, ref);
        if (a) n->attr[n->nattr++] = (OxAttr){name, a};
    }
}

static Str *copy_names(Ox *ox, const Scope *sc, char *const *p, size_t n) {
    Str *s = NEW_ARRAY(ox->scratch, Str, n);
    for (size_t i = 0; i < n; i++) s[i] = scoped(sc, p[i]);
    return s;
}

/* Names defined inside subgraphs that are being searched. */
typedef struct Locals {
    const struct Locals *up;
    StrMap names;
} Locals;

static void capture(Ox *ox, const Scope *sc, const Locals *inside,
                    const char *name, OxNode *n) {
    Str s = ox_text(name), outer = scoped(sc, name);
    for (const Locals *l = inside; l; l = l->up)
        if (str_map_get(&l->names, s) >= 0) return;
    for (int i = 0; i < n->nin; i++)
        if (n->in[i] == outer) return;
    if (!*s) return;
    Str *in = NEW_ARRAY(ox->scratch, Str, n->nin + 1);
    memcpy(in, n->in, (size_t)n->nin * sizeof *in);
    in[n->nin++] = outer;
    n->in = in;
    n->captured++;
}

/* Values that the subgraph reads from outside become operands of its node. */
static void capture_graph(Ox *ox, const Scope *sc, const Locals *up,
                          const Onnx__GraphProto *g, OxNode *n) {
    Locals in = {.up = up};
    for (size_t i = 0; i < g->n_input; i++)
        str_map_put(ox->scratch, &in.names, ox_text(g->input[i]->name), 0);
    for (size_t i = 0; i < g->n_initializer; i++)
        str_map_put(ox->scratch, &in.names, ox_text(g->initializer[i]->name),
                    0);
    for (size_t i = 0; i < g->n_node; i++)
        for (size_t k = 0; k < g->node[i]->n_output; k++)
            str_map_put(ox->scratch, &in.names, ox_text(g->node[i]->output[k]),
                        0);
    for (size_t i = 0; i < g->n_node; i++) {
        const Onnx__NodeProto *p = g->node[i];
        for (size_t k = 0; k < p->n_input; k++)
            capture(ox, sc, &in, p->input[k], n);
        for (size_t k = 0; k < p->n_attribute; k++)
            if (p->attribute[k]->g)
                capture_graph(ox, sc, &in, p->attribute[k]->g, n);
    }
    for (size_t i = 0; i < g->n_output; i++)
        capture(ox, sc, &in, g->output[i]->name, n);
}

static OxNode make_node(Ox *ox, const Scope *sc, const Onnx__NodeProto *p) {
    OxNode n = {.proto = p,
                .type = ox_text(p->op_type),
                .domain = ox_domain(p->domain),
                .nin = (int)p->n_input,
                .nout = (int)p->n_output};
    n.version = version_of(sc, n.domain);
    n.in = copy_names(ox, sc, p->input, p->n_input);
    n.out = copy_names(ox, sc, p->output, p->n_output);
    Str name = ox_text(p->name);
    if (!*name)
        for (int i = 0; i < n.nout && !*name; i++) name = n.out[i];
    bool own = sc->fn || sc->inner;
    n.name = own ? internf("%s%s", sc->prefix, ox_text(p->name)) : name;
    if (own && !*ox_text(p->name)) n.name = name;
    copy_attrs(ox, sc, p, &n);
    n.scope = sc;
    for (int i = 0; i < n.nattr; i++)
        if (n.attr[i].p->g) capture_graph(ox, sc, NULL, n.attr[i].p->g, &n);
    n.op = ox_op_in(n.domain, n.type);
    return n;
}

static Status flatten(Ox *ox, const Scope *sc, Onnx__NodeProto *const *node,
                      size_t n);

static Status enter(Ox *ox, const Scope *up, const Onnx__FunctionProto *f,
                    const OxNode *call) {
    for (const Scope *s = up; s; s = s->up)
        if (s->fn == f)
            return ox_fail_node(ox, call, "the function calls itself");
    if (++ox->calls > OX_MAX_NODES)
        return ox_fail_model(ox, "more than %d function calls", OX_MAX_NODES);
    if (up->depth >= OX_MAX_CALLS)
        return ox_fail_node(ox, call, "functions nested deeper than %d",
                            OX_MAX_CALLS);
    if (call->nin > (int)f->n_input || call->nout > (int)f->n_output)
        return ox_fail_node(ox, call,
                            "%d operands and %d results, but the "
                            "function takes %zu and gives %zu",
                            call->nin, call->nout, f->n_input, f->n_output);
    TRY(check_opsets(ox, f->opset_import, f->n_opset_import, "a function"));
    Scope *sc = NEW(ox->scratch, Scope);
    *sc = (Scope){.up = up,
                  .fn = f,
                  .call = call,
                  .depth = up->depth + 1,
                  .opset = f->opset_import,
                  .nopset = f->n_opset_import};
    sc->prefix = internf("%.60s.%d/", call->name, ox->calls);
    for (size_t i = 0; i < f->n_input; i++)
        stands_for(ox, sc, f->input[i],
                   (int)i < call->nin ? call->in[i] : intern(""));
    for (int i = 0; i < call->nout; i++)
        if (*call->out[i]) stands_for(ox, sc, f->output[i], call->out[i]);
    return flatten(ox, sc, f->node, f->n_node);
}

static Status flatten(Ox *ox, const Scope *sc, Onnx__NodeProto *const *node,
                      size_t n) {
    for (size_t i = 0; i < n; i++) {
        OxNode o = make_node(ox, sc, node[i]);
        const Onnx__FunctionProto *f = find_function(ox, node[i]);
        bool own = o.op && o.domain == intern(OX_AMPC_DOMAIN);
        if (f && !own) {
            OxNode *call = arena_dup(ox->scratch, &o, sizeof o);
            TRY(enter(ox, sc, f, call));
            continue;
        }
        if (ox->nodes.len >= OX_MAX_NODES)
            return ox_fail_model(ox, "more than %d nodes", OX_MAX_NODES);
        vec_push(ox->scratch, &ox->nodes, o);
    }
    return OK;
}

Status ox_flatten(Ox *ox) {
    TRY(index_functions(ox));
    Scope *sc = NEW(ox->scratch, Scope);
    *sc = (Scope){.opset = ox->model->opset_import,
                  .nopset = ox->model->n_opset_import};
    return flatten(ox, sc, ox->graph->node, ox->graph->n_node);
}

/* "Gemm", "domain::Function". */
static Str full_type(const OxNode *n) {
    return *n->domain ? internf("%s::%s", n->domain, n->type) : n->type;
}

/* Neighbouring nodes often have one type, and there may be very many: nodes
   of one type share one list. */
static const Str *types_of(Ox *ox, const OxNode *n) {
    if (ox->typed.types && ox->typed.type == n->type &&
        ox->typed.domain == n->domain && ox->typed.scope == n->scope)
        return ox->typed.types;
    int depth = 1;
    for (const Scope *s = n->scope; s; s = s->up) depth += s->call != NULL;
    Str *types = NEW_ARRAY(ox->a, Str, depth + 1);
    *types = full_type(n);
    depth = 1;
    for (const Scope *s = n->scope; s; s = s->up)
        if (s->call) types[depth++] = full_type(s->call);
    ox->typed.type = n->type;
    ox->typed.domain = n->domain;
    ox->typed.scope = n->scope;
    return ox->typed.types = types;
}

Loc ox_loc(Ox *ox, const OxNode *n) {
    return (Loc){.file = ox->file, .node = n->name, .types = types_of(ox, n)};
}

/* ---- subgraphs ----------------------------------------------------------- */

Status ox_flatten_body(Ox *ox, const OxNode *owner, const Onnx__GraphProto *g,
                       const Str *in, int nin, const Str *inits, Str *out) {
    const Scope *up = owner->scope;
    Scope *sc = NEW(ox->scratch, Scope);
    *sc = (Scope){.up = up,
                  .inner = true,
                  .depth = up->depth + 1,
                  .opset = up->opset,
                  .nopset = up->nopset};
    if (++ox->calls > OX_MAX_NODES || sc->depth > OX_MAX_CALLS)
        return ox_fail(ox, "too many subgraphs, or nested too deep");
    if (g->n_sparse_initializer || (int)g->n_input != nin)
        return ox_fail(ox, "its body takes %zu operands, is given %d",
                       g->n_input, nin);
    sc->prefix = internf("%.60s.%d/", owner->name, ox->calls);
    for (int i = 0; i < nin; i++) stands_for(ox, sc, g->input[i]->name, in[i]);
    for (size_t i = 0; i < g->n_initializer; i++)
        stands_for(ox, sc, g->initializer[i]->name, inits[i]);
    for (size_t i = 0; i < g->n_node; i++)
        for (size_t k = 0; k < g->node[i]->n_output; k++) {
            const char *s = g->node[i]->output[k];
            if (s && *s) stands_for(ox, sc, s, internf("%s%s", sc->prefix, s));
        }
    TRY(flatten(ox, sc, g->node, g->n_node));
    for (size_t i = 0; i < g->n_output; i++)
        out[i] = scoped(sc, g->output[i]->name);
    return OK;
}
