/* SPDX-License-Identifier: Apache-2.0 */
/* onnx_unfold.c: restores parameters that torch.onnx.export folded or merged.

   PyTorch's default export (dynamo, optimised) turns a Linear's weight that a
   Transpose reads into a constant 'val_9' of the transposed shape. It also
   keeps only one of several equal tensors: all LayerNorms of a fresh model
   share a weight. The file still records what each node read in PyTorch's
   graph, aten.linear.default](args = (%x, %p_fc_weight, %p_fc_bias), .. and the
   signature says that p_fc_weight is PARAMETER 'fc.weight'. If the record and
   the form of the tensor determine the parameter, the file gets it back, with
   the node that made the constant (onnx_unfold_make.c; recurrent layers:
   onnx_unfold_rnn.c). Everything else is left to onnx_spoiled.c, which refuses
   the file.

   The file's bytes are changed before anything else reads them, so that the
   module's copy of the model, and its exports, have the parameters. */
#include <string.h>

#include "frontend/onnx/onnx_unfold.h"
#include "frontend/onnx/wire.h"

#define SIGNATURE "pkg.torch.export.ExportedProgram.graph_signature"
#define FOLDED    "pkg.onnxscript.optimizer.folded_from"

/* ---- what the file tells ------------------------------------------------- */

/* Classifies a name of folded_from that does not belong to a parameter.
   positions: the list has an arange. */
static Beside beside(Str name, bool positions) {
    static const struct {
        const char *op;
        Beside is;
    } all[] = {{"val", BESIDE_CODE},        {"arange", BESIDE_RANGE},
               {"unsqueeze", BESIDE_RANGE}, {"slice", BESIDE_MOVES},
               {"select", BESIDE_MOVES},    {"expand", BESIDE_MOVES},
               {"gather", BESIDE_MOVES},    {"repeat", BESIDE_MOVES},
               {"view", BESIDE_MOVES}};
    if (positions && ox_torch_counts(name, "add")) return BESIDE_MOVES;
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (ox_torch_counts(name, all[i].op)) return all[i].is;
    return BESIDE_OTHERS;
}

/* The next quoted name of a list; NULL: none. */
static Str next_quoted(const char **s) {
    const char *start = strchr(*s, '\''),
               *end = start ? strchr(start + 1, '\'') : NULL;
    if (!end) return NULL;
    *s = end + 1;
    return intern_n(start + 1, (size_t)(end - start - 1));
}

/* The only parameter in the list, beside which buffers are indices, or its only
   buffer; -1: none, or several. */
static int only_source(const Unfold *u, Str list, Beside *with) {
    int parameter = -1, buffer = -1, parameters = 0, buffers = 0;
    bool positions = strstr(list, "'arange") != NULL;
    const char *s = list;
    *with = BESIDE_NOTHING;
    for (Str name; (name = next_quoted(&s));) {
        int line = str_map_get(&u->targets, name);
        Beside is = BESIDE_NOTHING;
        if (line < 0)
            is = beside(name, positions);
        else if (ox_signed_as(&u->ox->signature.data[line], "PARAMETER"))
            parameter = line, parameters++;
        else
            buffer = line, buffers++;
        if (is > *with) *with = is;
    }
    if (parameters && buffers && *with < BESIDE_MOVES) *with = BESIDE_MOVES;
    if (parameters) return parameters == 1 ? parameter : -1;
    return buffers == 1 ? buffer : -1;
}

static void read_infos(Unfold *u) {
    for (size_t i = 0; i < u->g->n_value_info; i++) {
        const Onnx__ValueInfoProto *v = u->g->value_info[i];
        if (!v->name) continue;
        int init = str_map_get(&u->inits, intern(v->name));
        if (init < 0) continue;
        Str list = ox_metadata(v->metadata_props, v->n_metadata_props, FOLDED);
        if (!list) continue;
        u->folded[init] = list;
        u->source[init] = only_source(u, list, &u->with[init]);
    }
}

static void read_model(Unfold *u) {
    Ox *ox = u->ox;
    size_t n = u->g->n_initializer;
    u->ninits = (int)n;
    ox_read_signature(ox);
    for (int i = 0; i < ox->signature.len; i++) {
        const OxSigned *x = &ox->signature.data[i];
        str_map_put(u->a, &u->defined, x->argument, i);
        if (!ox_signed_as(x, "PARAMETER") && !ox_signed_as(x, "BUFFER"))
            continue;
        str_map_put(u->a, &u->arguments, x->argument, i);
        str_map_put(u->a, &u->targets, x->target, i);
    }
    u->folded = NEW_ARRAY(u->a, Str, n + 1);
    u->source = NEW_ARRAY(u->a, int, n + 1);
    u->with = NEW_ARRAY(u->a, Beside, n + 1);
    for (size_t i = 0; i < n; i++) {
        u->source[i] = -1;
        str_map_put(u->a, &u->inits, ox_text(u->g->initializer[i]->name),
                    (int)i);
    }
    for (size_t i = 0; i < u->g->n_node; i++) {
        const char *s = ox_torch_text(u->g->node[i]);
        Str name = *s == '%' ? ox_torch_next_name(&s) : NULL;
        if (name) str_map_put(u->a, &u->defined, name, (int)i);
    }
    read_infos(u);
}

/* ---- nodes that name their parameters ------------------------------------ */

/* Ops of PyTorch whose parameters ONNX reads in the same order, and the form
   in which the exporter folds them. */
typedef struct Ordered {
    const char *op;
    Form form;
    bool drops;       /* its bias, if that is 0 */
    int first, count; /* the arguments that may be parameters */
} Ordered;

static const Ordered in_order[] = {
    {"aten.linear", FORM_TRANSPOSED, true, 1, 2},
    {"aten.layer_norm", FORM_NONE, false, 2, 2},
    {"aten.native_layer_norm", FORM_NONE, false, 2, 2},
    {"aten.rms_norm", FORM_NONE, false, 2, 1},
    {"aten.group_norm", FORM_VECTOR, false, 2, 2},
    {"aten.native_group_norm", FORM_VECTOR, false, 1, 2},
    {"aten.prelu", FORM_VECTOR, false, 1, 1},
    {"aten._prelu_kernel", FORM_VECTOR, false, 1, 1},
    {"aten.batch_norm", FORM_NONE, false, 1, 4},
    {"aten._native_batch_norm", FORM_NONE, false, 1, 4},
    {"aten.native_batch_norm", FORM_NONE, false, 1, 4},
    {"aten.conv", FORM_NONE, true, 1, 2},
    {"aten.embedding", FORM_NONE, false, 0, 1},
    {"aten.index.Tensor", FORM_ITSELF, false, 0, 1},
};

/* weight[i] of PyTorch's graph, as experts are chosen: the exporter moves the
   axis of i to the front, where it is. */
static bool indexes_first_axis(const char *op) {
    const char *s = strchr(op, '[');
    return s && s[1] == '%' && !strstr(s, "None");
}

static const Ordered *ordered(Str text) {
    const char *op = unfold_op(text);
    for (size_t i = 0; i < sizeof in_order / sizeof *in_order; i++)
        if (!strncmp(op, in_order[i].op, strlen(in_order[i].op)))
            return in_order[i].form != FORM_ITSELF || indexes_first_axis(op)
                       ? &in_order[i]
                       : NULL;
    return NULL;
}

static bool is_vector(const Onnx__TensorProto *t) {
    int wide = 0;
    for (size_t i = 0; i < t->n_dims; i++) wide += t->dims[i] != 1;
    return wide <= 1;
}

/* The node reads the transposed weight of its layer, whatever the name of the
   operand: equal tensors became one. */
static bool reads_transposed(const Unfold *u, const Slot *s, const Ordered *o) {
    if (!o || o->form != FORM_TRANSPOSED || s->k != 1 ||
        u->g->initializer[s->init]->n_dims != 2)
        return false;
    return onnx_is_op(s->node, "MatMul") ||
           (onnx_is_op(s->node, "Gemm") &&
            !unfold_integer(s->node, "transB", 0));
}

static Form unfold_form_of(const Unfold *u, const Slot *s, const Ordered *o) {
    const Onnx__TensorProto *t = u->g->initializer[s->init];
    Form folds = o ? o->form : FORM_NONE;
    if (!u->folded[s->init])
        return reads_transposed(u, s, o) ? FORM_TRANSPOSED : FORM_ITSELF;
    bool alone = u->with[s->init] == BESIDE_NOTHING;
    if (folds == FORM_TRANSPOSED && t->n_dims == 2 && alone) return folds;
    if (folds == FORM_ITSELF && alone) return folds;
    return folds == FORM_VECTOR && is_vector(t) ? folds : FORM_NONE;
}

const char *unfold_op(Str text) {
    static const char start[] = "target=torch.ops.";
    const char *op = strstr(text, start);
    return op ? op + strlen(start) : "";
}

int unfold_arguments(const Unfold *u, Str text, int *at) {
    int n = 0;
    const char *s = strstr(text, "(args = ");
    for (Str name; s && (name = ox_torch_next_name(&s));) {
        int line = str_map_get(&u->arguments, name);
        if (line >= 0 && n < MOST) at[n++] = line;
    }
    return n;
}

/* Operands of nodes first, first + 1, .. of the same text that are parameters,
   in order. */
static int parameter_slots(const Unfold *u, size_t first, size_t end, Slot *s) {
    int n = 0;
    for (size_t i = first; i < end; i++)
        for (size_t k = 0; k < u->g->node[i]->n_input; k++) {
            Str name = ox_text(u->g->node[i]->input[k]);
            int init = str_map_get(&u->inits, name);
            if (init < 0 || init >= u->ninits) continue;
            bool parameter =
                u->source[init] >= 0 || str_map_get(&u->targets, name) >= 0;
            if (parameter && n < MOST) s[n++] = (Slot){u->g->node[i], k, init};
        }
    return n;
}

static bool is_itself(const Unfold *u, const Slot *s, const Ordered *o,
                      int at) {
    return !u->folded[s->init] && !reads_transposed(u, s, o) &&
           !strcmp(ox_text(u->g->initializer[s->init]->name),
                   u->ox->signature.data[at].target);
}

/* Without an order: the only missing argument is the only operand without a
   name. */
static int unmatched(const Unfold *u, int *at, int nat, Slot *s, int ns) {
    int left = 0, open = 0;
    for (int i = 0; i < nat; i++) {
        bool there = false;
        for (int k = 0; k < ns; k++) there |= is_itself(u, &s[k], NULL, at[i]);
        if (!there) at[left++] = at[i];
    }
    for (int k = 0; k < ns; k++) {
        bool there = false;
        for (int i = 0; i < nat; i++) there |= is_itself(u, &s[k], NULL, at[i]);
        if (!there) s[open++] = s[k];
    }
    return left == 1 && open == 1;
}

/* Nothing was folded or merged: ONNX may read the parameters in another
   order. */
static bool all_there(const Unfold *u, const Ordered *o, const int *at, int nat,
                      const Slot *s, int ns) {
    for (int i = 0; i < nat; i++) {
        bool there = false;
        for (int k = 0; k < ns; k++) there |= is_itself(u, &s[k], o, at[i]);
        if (!there) return false;
    }
    return ns == nat;
}

/* Lines of the parameters in their places among the arguments; -1: another
   node's result, such as a weight that the model's code transposes. */
static int in_places(const Unfold *u, const Onnx__NodeProto *node,
                     const Ordered *o, int *at) {
    const OxNode n = {.proto = node};
    int nat = 0;
    for (int i = 0; i < o->count; i++) {
        Str a = ox_torch_argument(&n, o->first + i);
        if (!a || *a != '%') continue;
        at[nat++] = str_map_get(&u->arguments, intern(a + 1));
    }
    return nat;
}

/* The number of samples for which an InstanceNorm in eval() repeats its
   vectors: the first length of the shape that the group's last node restores;
   0: unknown. */
static Status repeats(const Unfold *u, const Onnx__NodeProto *last,
                      int64_t *times) {
    const Tensor *shape;
    int init = onnx_is_op(last, "Reshape") && last->n_input > 1
                   ? str_map_get(&u->inits, ox_text(last->input[1]))
                   : -1;
    *times = 0;
    if (init < 0 || init >= u->ninits) return OK;
    TRY(ox_tensor(u->ox, u->g->initializer[init], last->input[1], &shape));
    const Type *type = type_get(shape->type);
    if (type->dtype == DT_I64 && type->rank == 1 && type->dim[0] > 2)
        *times = ((const int64_t *)shape->data)[0];
    return OK;
}

/* InstanceNorm with running statistics, in eval(): a BatchNormalization over
   all channels of all samples. */
static Status restore_instance_norm(Unfold *u, size_t first, size_t end) {
    static const Ordered vectors = {"", FORM_NONE, false, 1, 4};
    int at[4];
    int64_t times;
    if (in_places(u, u->g->node[first], &vectors, at) != 4) return OK;
    TRY(repeats(u, u->g->node[end - 1], &times));
    for (size_t i = first; i < end && times > 0; i++) {
        Onnx__NodeProto *n = u->g->node[i];
        if (!onnx_is_op(n, "BatchNormalization") || n->n_input != 5) continue;
        for (size_t k = 0; k < 4; k++) {
            int init = str_map_get(&u->inits, ox_text(n->input[k + 1]));
            Slot s = {n, k + 1, init};
            if (init >= 0 && init < u->ninits && u->folded[init] && at[k] >= 0)
                TRY(unfold_repeated(u, &s, at[k], times));
        }
    }
    return OK;
}

static Status restore_group(Unfold *u, size_t first, size_t end, Str text) {
    static const char instance_norm[] = "aten.instance_norm";
    if (!strncmp(unfold_op(text), instance_norm, strlen(instance_norm)))
        return restore_instance_norm(u, first, end);
    int at[MOST], nat = unfold_arguments(u, text, at);
    Slot s[MOST];
    int ns = parameter_slots(u, first, end, s);
    const Ordered *o = ordered(text);
    if (all_there(u, o, at, nat, s, ns)) return OK;
    int places[MOST], n = o ? in_places(u, u->g->node[first], o, places) : 0;
    if (n > nat) memcpy(at, places, (size_t)(nat = n) * sizeof *at);
    if (!o) ns = nat = nat && ns ? unmatched(u, at, nat, s, ns) : 0;
    bool weight = o && o->drops && ns == 1 && nat == 2 && s[0].k == 1 &&
                  !onnx_is_op(s[0].node, "Add");
    if (ns != nat && !weight) return OK;
    for (int i = 0; i < ns; i++) {
        Form form = unfold_form_of(u, &s[i], o);
        if (form == FORM_NONE || at[i] < 0 || is_itself(u, &s[i], o, at[i]))
            continue;
        TRY(unfold_operand(u, &s[i], at[i], form));
    }
    return OK;
}

/* ---- constants that have the name of their node in PyTorch's graph --------
 */

static const struct Named {
    const char *op;
    Form form;
    Beside most; /* constants that may be folded with the parameter */
} named[] = {
    {"t", FORM_TRANSPOSED, BESIDE_NOTHING},
    {"permute", FORM_TRANSPOSED, BESIDE_NOTHING},
    {"transpose", FORM_TRANSPOSED, BESIDE_NOTHING},
    {"swapaxes", FORM_TRANSPOSED, BESIDE_NOTHING},
    {"numpy_T", FORM_TRANSPOSED, BESIDE_NOTHING},
    {"mT", FORM_TRANSPOSED, BESIDE_NOTHING},
    {"view", FORM_VIEW, BESIDE_CODE},
    {"_unsafe_view", FORM_VIEW, BESIDE_CODE},
    {"reshape", FORM_VIEW, BESIDE_CODE},
    {"flatten", FORM_VIEW, BESIDE_CODE},
    {"unsqueeze", FORM_VIEW, BESIDE_RANGE},
    {"squeeze", FORM_VIEW, BESIDE_CODE},
    {"slice", FORM_PART, BESIDE_CODE},
    {"select", FORM_PART, BESIDE_CODE},
    {"expand", FORM_SAMPLES, BESIDE_CODE},
    {"embedding", FORM_ROWS, BESIDE_MOVES}, /* at constant places */
    {"index", FORM_ROWS, BESIDE_MOVES},
};

static Form form_by_name(const Unfold *u, int init) {
    const Onnx__TensorProto *t = u->g->initializer[init];
    for (size_t i = 0; i < sizeof named / sizeof *named; i++) {
        const struct Named *n = &named[i];
        if (!ox_torch_counts(ox_text(t->name), n->op)) continue;
        if (u->with[init] > n->most) return FORM_NONE;
        if (n->form == FORM_TRANSPOSED && t->n_dims != 2) return FORM_NONE;
        bool matrix = n->form == FORM_ROWS || n->form == FORM_SAMPLES;
        if (matrix && t->n_dims < 2) return FORM_NONE;
        return n->form;
    }
    return FORM_NONE;
}

static void find_reads(Unfold *u) {
    Onnx__GraphProto *g = u->g;
    u->last = NEW_ARRAY(u->a, int, g->n_initializer + 1);
    for (size_t i = 0; i < g->n_initializer; i++) u->last[i] = -1;
    for (size_t i = 0; i < g->n_node; i++)
        for (size_t k = 0; k < g->node[i]->n_input; k++) {
            int init = str_map_get(&u->inits, ox_text(g->node[i]->input[k]));
            if (init < 0 || init >= u->ninits || u->source[init] < 0) continue;
            vec_push(u->a, &u->before, u->last[init]);
            u->last[init] = u->reads.len;
            vec_push(u->a, &u->reads, (Slot){g->node[i], k, init});
        }
}

/* True if all readers name the constant, which means that no equal one was
   merged into it. */
static bool all_name_it(const Unfold *u, int init) {
    Str name = ox_text(u->g->initializer[init]->name);
    for (int i = u->last[init]; i >= 0; i = u->before.data[i])
        if (!ox_torch_reads(ox_torch_text(u->reads.data[i].node), name))
            return false;
    return u->last[init] >= 0;
}

/* A node reads the result of arithmetic that the exporter dropped, such as a
   multiplication by a gate that is 1 now. */
static bool lacks_arithmetic(const Unfold *u) {
    static const char *const ops[] = {"mul", "add", "sub", "div", "pow"};
    for (size_t i = 0; i < u->g->n_node; i++) {
        const char *s = strstr(ox_torch_text(u->g->node[i]), "(args = ");
        for (Str name; s && (name = ox_torch_next_name(&s));)
            for (size_t k = 0; k < sizeof ops / sizeof *ops; k++)
                if (ox_torch_counts(name, ops[k]) &&
                    str_map_get(&u->defined, name) < 0)
                    return true;
    }
    return false;
}

static Status restore_named(Unfold *u, int init) {
    Form form = form_by_name(u, init);
    int at = u->source[init];
    if (form == FORM_NONE || at < 0) return OK;
    Str target = u->ox->signature.data[at].target;
    if (form != FORM_TRANSPOSED && str_map_get(&u->inits, target) >= 0)
        return OK;
    if (!all_name_it(u, init) || (form == FORM_PART && lacks_arithmetic(u)))
        return OK;
    bool shared = form == FORM_ROWS || form == FORM_SAMPLES;
    if (shared) TRY(unfold_shared(u, init, at, form));
    for (int i = u->last[init]; i >= 0 && !shared; i = u->before.data[i])
        TRY(unfold_operand(u, &u->reads.data[i], at, form));
    if ((form == FORM_PART || shared) && str_map_get(&u->inits, target) >= 0)
        ox_warn_model(
            u->ox,
            "the file holds those elements of parameter '%s' that the "
            "model reads; they train and are saved under its name",
            ox_quote(u->ox, target));
    return OK;
}

/* ---- the file ------------------------------------------------------------ */

static Status restore_all(Unfold *u) {
    Onnx__GraphProto *g = u->g;
    for (size_t i = 0, end; i < g->n_node; i = end) {
        Str text = ox_torch_text(g->node[i]);
        for (end = i + 1; end < g->n_node; end++)
            if (*text == 0 || ox_torch_text(g->node[end]) != text) break;
        if (!*text && !u->rewritten) TRY(unfold_scope(u, i));
        if (!*text) continue;
        unfold_dropout(u, i, end);
        TRY(restore_group(u, i, end, text));
        TRY(unfold_code(u, i, end, text));
        TRY(unfold_rnn(u, i, end, text));
        for (size_t k = i; k < end && !u->rewritten; k++)
            TRY(unfold_bias(u, g->node[k]));
    }
    find_reads(u);
    for (size_t i = 0; i < g->n_initializer; i++) TRY(restore_named(u, (int)i));
    return OK;
}

Status onnx_unfold(Arena *a, Diag *d, const char *path, const Options *opt,
                   const uint8_t **bytes, size_t *n) {
    WireError e;
    TRY(unfold_linear(a, bytes, n));
    bool recorded = wire_holds(*bytes, *n, SIGNATURE);
    if (!recorded && !wire_holds(*bytes, *n, TIED_NAME)) return OK;
    Onnx__ModelProto *m = (Onnx__ModelProto *)wire_unpack(
        a, &onnx__model_proto__descriptor, *bytes, *n, &e);
    if (!m || !m->graph) return OK; /* the importer reports the defect */
    Ox ox = {.a = a,
             .d = d,
             .opt = opt,
             .file = intern(path),
             .dir = ox_directory(path),
             .scratch = a,
             .model = m,
             .graph = m->graph};
    Unfold u = {.ox = &ox, .a = a, .g = m->graph};
    if (recorded) {
        u.rewritten = ox_rewritten_by(&ox) != NULL;
        read_model(&u);
        TRY(restore_all(&u));
    } else {
        TRY(unfold_ties(&u));
    }
    if (!u.changes) return OK;
    unfold_write(&u);
    *n = onnx__model_proto__get_packed_size(m);
    uint8_t *out = arena_alloc(a, *n + 1);
    onnx__model_proto__pack(m, out);
    *bytes = out;
    return OK;
}
