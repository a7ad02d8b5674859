/* SPDX-License-Identifier: Apache-2.0 */
/* amp.c: models in text.  The command line decides which parameters train,
   which norms use running statistics and which dropouts drop, as for an ONNX
   model (onnx_train.c, onnx_norm.c); the text decides everything else. */
#include <stdlib.h>
#include <string.h>

#include "frontend/frontend.h"
#include "ir/fn/fn.h"
#include "ir/base/files.h"
#include "ir/text/text.h"

typedef struct Amp {
    Arena *a;
    Diag *d;
    const Options *opt;
    Module *m;
    Graph *g;    /* the model */
    bool passes; /* graphs of any name, for passes that the user names */
    Loc loc;
} Amp;

/* The model is graph "forward", or else the only graph that is not a
   program. */
static Status find_model(Amp *x) {
    Graph *only = NULL;
    int programs = 0;
    x->g = module_graph(x->m, FORWARD);
    for (int i = 0; i < x->m->graphs.len && !x->g; i++) {
        Graph *g = x->m->graphs.data[i];
        programs += g->program != PROGRAM_NONE;
        if (only && g->program == PROGRAM_NONE)
            return fail(x->d, x->loc,
                        "graphs '%s' and '%s': a file has one model; if "
                        "'%s' is it, call it '%s'",
                        only->name, g->name, only->name, FORWARD);
        if (g->program == PROGRAM_NONE) only = g;
    }
    if (x->g || (!only && programs)) return OK;
    if (programs)
        return fail(x->d, x->loc,
                    "graph '%s' is neither a program nor named 'forward', "
                    "beside programs that were made from a model",
                    only->name);
    x->g = only;
    x->g->name = intern(FORWARD);
    return OK;
}

/* Programs already contain their loss and the choice of parameters. */
static Status check_programs(const Amp *x) {
    const Options *o = x->opt;
    const char *given = o->loss_given || *o->objectives.data[0].name ? "a loss"
                        : o->train_rules.len      ? "--train and --freeze"
                        : o->batchnorm_frozen.len ? "--batchnorm"
                        : !o->dropout             ? "--dropout"
                                                  : NULL;
    if (!given) return OK;
    fail(x->d, x->loc, "%s: no graph of the file is a model, called '%s'",
         given, FORWARD);
    return ERR_USAGE;
}

static Status choose_trained(const Amp *x) {
    for (int i = 0; i < x->opt->train_rules.len; i++) {
        const GlobRule *r = &x->opt->train_rules.data[i];
        const char *option = r->train ? "--train" : "--freeze";
        bool used = false;
        for (int k = 0; k < x->m->vars.len; k++) {
            Var *v = &x->m->vars.data[k];
            if ((v->kind != VAR_PARAM && v->kind != VAR_FROZEN) ||
                !dtype_is_float(type_get(v->type)->dtype) ||
                !glob_layer(r->glob, v->name))
                continue;
            used = true;
            v->kind = r->train ? VAR_PARAM : VAR_FROZEN;
            v->why = internf("%s %s", option, r->glob);
        }
        if (used) continue;
        fail(x->d, x->loc,
             "%s '%s' matches no parameter of the model (ampc inspect MODEL "
             "--params lists them)",
             option, r->glob);
        return ERR_USAGE;
    }
    return OK;
}

/* ---- batch normalisation ------------------------------------------------- */

static bool is_named(const Graph *g, ValueId v, Str glob) {
    Str name = value_get(g, v)->name;
    return name && glob_match(glob, name);
}

/* True if a glob matches the batch norm's first result or its scale; sets
   used[] for each glob that matches. */
static bool is_frozen(const Amp *x, const Node *n, bool *used) {
    bool frozen = false;
    for (int i = 0; i < x->opt->batchnorm_frozen.len; i++) {
        Str glob = x->opt->batchnorm_frozen.data[i];
        if (!is_named(x->g, n->out[0], glob) && !is_named(x->g, n->in[1], glob))
            continue;
        frozen = used[i] = true;
    }
    return frozen;
}

/* Drops the writes of running statistics; the nodes that compute them become
   dead. */
static void stop_writes(Graph *g, const Node *n) {
    int kept = 0;
    for (int i = 0; i < g->writes.len; i++) {
        const Write *w = &g->writes.data[i];
        if (!same_value(w->var, n->in[3]) && !same_value(w->var, n->in[4]))
            g->writes.data[kept++] = *w;
    }
    g->writes.len = kept;
}

/* The form of batch norm that reads running statistics: it has one result. */
static Status freeze_norm(const Amp *x, Node *n, const int *uses) {
    Attr *attrs = NEW_ARRAY(x->g->arena, Attr, n->nattr);
    int kept = 0;
    for (int i = 1; i < n->nout; i++)
        if (uses[n->out[i].i])
            return fail(x->d, n->loc,
                        "--batchnorm frozen: statistics of the batch are read "
                        "by more than its running ones");
    for (int i = 0; i < n->nattr; i++)
        if (strcmp(attr_get(n->attrs[i].key)->text, "training"))
            attrs[kept++] = n->attrs[i];
    n->attrs = attrs;
    n->nattr = kept;
    n->nout = 1;
    return OK;
}

static Status freeze_norms(const Amp *x, Arena *scratch) {
    const Options *o = x->opt;
    Graph *g = x->g;
    bool *used = NEW_ARRAY(scratch, bool, o->batchnorm_frozen.len + 1);
    VEC(NodeId) frozen = {0};
    for (int i = 0; i < g->order.len; i++) {
        const Node *n = node_at(g, i);
        if (!is_call(n, "batch_norm") || !is_frozen(x, n, used)) continue;
        stop_writes(g, n);
        vec_push(scratch, &frozen, g->order.data[i]);
    }
    for (int i = 0; i < o->batchnorm_frozen.len; i++) {
        Str glob = o->batchnorm_frozen.data[i];
        if (used[i] || !strcmp(glob, "*")) continue;
        fail(x->d, x->loc, "--batchnorm frozen:%s matches no batch_norm", glob);
        return ERR_USAGE;
    }
    if (!frozen.len) return OK;
    VEC(ValueId) roots = {0};
    for (int i = 0; graph_root(g, i); i++)
        vec_push(scratch, &roots, *graph_root(g, i));
    graph_drop_unneeded(g, 0, 0, roots.data, roots.len);
    const int *uses = graph_use_counts(g, scratch);
    for (int i = 0; i < frozen.len; i++)
        TRY(freeze_norm(x, node_get(g, frozen.data[i]), uses));
    return OK;
}

/* ---- dropout ------------------------------------------------------------- */

static void pass_through(ValueId *v, const ValueId *operand) {
    while (is_value(operand[v->i])) *v = operand[v->i];
}

static void disable_dropout(Graph *g, Arena *scratch) {
    ValueId *operand = NEW_ARRAY(scratch, ValueId, g->values.len);
    int kept = 0;
    for (int i = 0; i < g->order.len; i++) {
        NodeId id = g->order.data[i];
        const Node *n = node_get(g, id);
        for (int k = 0; k < n->nin; k++) pass_through(&n->in[k], operand);
        if (is_call(n, "dropout"))
            operand[n->out[0].i] = n->in[0];
        else
            g->order.data[kept++] = id;
    }
    g->order.len = kept;
    for (int i = 0; graph_root(g, i); i++)
        pass_through(graph_root(g, i), operand);
}

static Status apply_options(Amp *x) {
    const Options *o = x->opt;
    if (o->batchnorm_unbiased >= 0 || o->batchnorm_cumulative >= 0) {
        fail(x->d, x->loc,
             "--batchnorm train:%s: this is for ONNX models; a .amp model "
             "writes its running statistics itself",
             o->batchnorm_unbiased > 0     ? "unbiased"
             : o->batchnorm_unbiased == 0  ? "population"
             : o->batchnorm_cumulative > 0 ? "cumulative"
                                           : "momentum");
        return ERR_USAGE;
    }
    if (o->sync_batchnorm) {
        fail(x->d, x->loc,
             "--sync-batchnorm: this is for ONNX models; in a .amp model write "
             "batch_norm .. "
             "{training=1, ranks=1}");
        return ERR_USAGE;
    }
    if (x->passes)
        x->g = module_graph(x->m, FORWARD);
    else
        TRY(find_model(x));
    if (!x->g) return check_programs(x);
    TRY(choose_trained(x));
    Arena *scratch = arena_new();
    Status s = freeze_norms(x, scratch);
    if (s == OK && !o->dropout) disable_dropout(x->g, scratch);
    arena_free(scratch);
    return s;
}

/* Options of ONNX models alone, and numbers that no text allows. */
static Status check_text_options(const Amp *x) {
    const Options *o = x->opt;
    if (o->heads.len) {
        fail(x->d, x->loc,
             "--replace-head is for ONNX models: a .amp file is edited");
        return ERR_USAGE;
    }
    if (o->set_inputs.len) {
        fail(x->d, x->loc,
             "--set %s is for ONNX models: in a .amp file write the number in "
             "place of the input",
             o->set_inputs.data[0].name);
        return ERR_USAGE;
    }
    for (int i = 0; i < o->dims.len; i++) {
        if (o->dims.data[i].value) continue;
        fail(x->d, x->loc,
             "--dim %s=0: the dimensions of a .amp file are at least 1",
             o->dims.data[i].name);
        return ERR_USAGE;
    }
    return OK;
}

/* Passes put graphs on a target; of such texts only `ampc opt` knows what
   passes come next. */
static Status check_no_target(const Amp *x) {
    for (int i = 0; i < x->m->graphs.len && !x->passes; i++) {
        const Graph *g = x->m->graphs.data[i];
        if (g->target == TARGET_ANY) continue;
        return fail(x->d, x->loc,
                    "graph '%s' is on %s: leave 'on %s' out and give --target "
                    "%s; only 'ampc opt' reads graphs of one target",
                    g->name, target_text[g->target], target_text[g->target],
                    target_text[g->target]);
    }
    return OK;
}

/* def .. = onnx("FILE"), with a path relative to the text. */
static Status import_layer(void *ctx, Str name, const TypeId *in, int n,
                           Module **out) {
    const Amp *x = ctx;
    size_t size;
    Options plain;
    Str file = file_beside(x->loc.file, name);
    TRY(file_reads(x->d, x->opt->guard, file, "the layer"));
    char *bytes = read_file(x->d, file, &size);
    if (!bytes) return ERR_USER;
    options_init(&plain, x->a);
    plain.accept_folded = x->opt->accept_folded;
    plain.max_trips.data = x->opt->max_trips.data;
    plain.max_trips.len = x->opt->max_trips.len;
    const uint8_t *model = (const uint8_t *)bytes;
    Status s = onnx_unfold(x->a, x->d, file, &plain, &model, &size);
    if (s == OK)
        s = import_onnx_layer(x->a, x->d, file, model, size, &plain, in, n,
                              out);
    free(bytes);
    return s;
}

Status import_amp(Arena *a, Diag *d, const char *path, const char *text,
                  size_t n, const Options *opt, bool passes, Module **out) {
    Amp x = {.a = a,
             .d = d,
             .opt = opt,
             .passes = passes,
             .loc = {.file = intern(path)}};
    TRY(check_text_options(&x));
    TextOptions given = {.dims = opt->dims.data,
                         .ndims = opt->dims.len,
                         .seed = opt->seed,
                         .batch = opt->batch,
                         .batch_else = options_largest_batch(opt),
                         .layer = import_layer,
                         .ctx = &x};
    TRY(parse_model(a, d, path, text, n, &given, &x.m));
    TRY(check_no_target(&x));
    TRY(check_trips(d, x.loc, opt, true));
    TRY(apply_options(&x));
    *out = x.m;
    return verify_module(x.m, STAGE_TYPED, d);
}
