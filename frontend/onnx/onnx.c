/* SPDX-License-Identifier: Apache-2.0 */
/* onnx.c: the ONNX frontend from file to module; stages in onnx.h. */
#include "frontend/onnx/onnx.h"

#include <string.h>

#include "frontend/onnx/wire.h"
#include "ir/fn/fn.h"

/* ---- initializers -------------------------------------------------------- */

const Tensor *ox_as(Arena *a, const Tensor *t, DType d) {
    if (type_get(t->type)->dtype == d) return t;
    Arena *tmp = arena_new();
    const Tensor *r = eval_to_tensor(a, eval_from_tensor(tmp, t),
                                     type_with_dtype(t->type, d));
    arena_free(tmp);
    return r;
}

/* Records the file's tensors that are not variables, each once, so that the
   report is complete. */
static void note_literal(Ox *ox, const OxInit *x) {
    DType dtype;
    const Onnx__TensorProto *t = x->proto;
    bool known = !x->alias && t->n_dims <= MAX_RANK &&
                 dtype_from_onnx(t->data_type, &dtype);
    for (size_t i = 0; known && i < t->n_dims; i++) known = t->dims[i] >= 0;
    if (!known || !dtype_is_float(dtype) || x->is_var) return;
    Literal l = {x->name, type_make(dtype, (int)t->n_dims, t->dims),
                 x->live ? x->why : intern("no node reads it"),
                 x->live && ox_name_of(ox, x->name)->reaches};
    vec_push(ox->a, &ox->m->literals, l);
}

static void make_inits(Ox *ox) {
    for (int i = 0; i < ox->inits.len; i++) {
        const OxInit *x = &ox->inits.data[i];
        note_literal(ox, x);
        if (!x->live) continue;
        ValueId *v = &ox_name_of(ox, x->name)->value;
        if (!x->is_var) {
            *v = graph_const(ox->g, x->name, x->data);
            continue;
        }
        /* variables are fp32 whatever dtype the file has */
        const Tensor *t = ox_as(ox->a, x->data, DT_F32);
        int var = module_var(ox->m, x->kind, x->name, t->type, t, 0);
        ox->m->vars.data[var].stored_dtype = type_get(x->data->type)->dtype;
        ox->m->vars.data[var].why = x->why;
        *v = graph_var(ox->g, var);
    }
}

/* ---- the whole ----------------------------------------------------------- */

static void start_module(Ox *ox) {
    fn_library_read(); /* names of nodes may end in a function's name */
    const char *base = strrchr(ox->file, '/');
    base = base ? base + 1 : ox->file;
    const char *dot = strrchr(base, '.');
    size_t n = dot && dot > base ? (size_t)(dot - base) : strlen(base);
    ox->m = module_new(ox->a, intern_n(base, n));
    ox->m->file = ox->file;
    ox->m->class_axis = -1;
    if (ox->model->producer_name && *ox->model->producer_name)
        ox->m->producer = intern(ox->model->producer_name);
    ox->m->keeps = ox_keeps_no_stops(ox);
    ox->g = graph_new(ox->m, FORWARD);
    ox->b = (Builder){.g = ox->g};
}

/* Globs are checked after everything that they could match has been seen;
   the glob of a bare `--batchnorm frozen` may match nothing. */
static Status check_frozen(Ox *ox) {
    for (int i = 0; i < ox->opt->batchnorm_frozen.len; i++) {
        Str glob = ox->opt->batchnorm_frozen.data[i];
        if (ox->frozen_used[i] || !strcmp(glob, "*")) continue;
        ox_fail_model(ox,
                      "--batchnorm frozen:%s matches no BatchNormalization of "
                      "the model",
                      ox_quote(ox, glob));
        return ERR_USAGE;
    }
    return OK;
}

/* paddle2onnx does not write its name, but names results of nodes. */
static bool made_by_paddle(const Onnx__ModelProto *m) {
    const char *by = m->producer_name;
    if (by && *by) return !strncmp(by, "paddle2onnx", 11);
    for (size_t i = 0; i < m->graph->n_node; i++) {
        const Onnx__NodeProto *n = m->graph->node[i];
        for (size_t k = 0; k < n->n_output; k++)
            if (!strncmp(n->output[k], "p2o.", 4)) return true;
    }
    return false;
}

static Status import_model(Ox *ox, const TypeId *given, int ngiven) {
    TRY(ox_check_model(ox));
    ox->is_torch = ox_by_torch(ox->model);
    ox->is_paddle = made_by_paddle(ox->model);
    ox_read_signature(ox);
    ox_find_kinks(ox);
    TRY(ox_flatten(ox));
    TRY(ox_resolve_names(ox));
    ox_restore_stops(ox);
    TRY(ox_sort(ox));
    TRY(ox_check_nodes(ox, ox->order.data, ox->order.len));
    TRY(ox_check_spoiled(ox));
    ox->frozen_used = NEW_ARRAY(ox->a, bool, ox->opt->batchnorm_frozen.len + 1);
    TRY(ox_decide(ox));
    TRY(ox_check_dtypes(ox));
    ox_warn_steps(ox);
    ox_warn_epsilons(ox);
    ox_find_drops(ox);
    start_module(ox);
    TRY(ox_make_inputs(ox, given, ngiven));
    make_inits(ox);
    TRY(ox_make_nodes(ox, ox->order.data, ox->order.len));
    TRY(check_frozen(ox));
    TRY(ox_write_mutations(ox));
    TRY(ox_make_outputs(ox));
    if (ox->dropouts_enabled)
        ox_warn_model(ox,
                      "%d Dropout node%s exported disabled will drop in "
                      "training, first '%s' (--dropout off keeps them off)",
                      ox->dropouts_enabled,
                      ox->dropouts_enabled == 1 ? "" : "s",
                      ox_quote(ox, ox_text(ox->enabled)));
    return OK;
}

Str ox_directory(const char *path) {
    const char *slash = strrchr(path, '/');
    if (!slash) return intern(".");
    return slash == path ? intern("/") : intern_n(path, (size_t)(slash - path));
}

/* Other files that people give in place of a model; NULL: none of them. */
static const char *other_kind(const uint8_t *bytes, size_t n) {
    static const struct {
        size_t at;
        const char *begin, *what;
    } kinds[] = {
        {0, "PK\3\4",
         "a zip file, as torch.save and numpy.savez write, not an ONNX model: "
         "export the model with torch.onnx.export"},
        {0, "\x1f\x8b", "a packed file, not a model: gunzip unpacks it"},
        {0, "\x89HDF",
         "an HDF5 file, as Keras writes, not a model: export it to ONNX "
         "(model.export(FILE, format='onnx'))"},
        {4, "TFL3",
         "a TensorFlow Lite file, for predictions alone: convert the original "
         "to ONNX by tf2onnx"},
        {4, "ORTM",
         "a file of ONNX Runtime's own format: give the .onnx file that it "
         "was made of"},
        {0, "\177ELF",
         "a module or another library, not a model: ampc run and ampc inspect "
         "take a module"},
        {0, "\x93NUMPY",
         "data, not a model: ampc run OUT.so --feed INPUT=FILE trains on it"},
        {8, "{\"",
         "weights, not a model: ampc run OUT.so --load FILE reads them"}};
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        size_t k = strlen(kinds[i].begin);
        if (n >= kinds[i].at + k &&
            !memcmp(bytes + kinds[i].at, kinds[i].begin, k))
            return kinds[i].what;
    }
    return NULL;
}

Status import_onnx_layer(Arena *a, Diag *d, const char *path,
                         const uint8_t *bytes, size_t n, const Options *opt,
                         const TypeId *in, int nin, Module **out) {
    WireError e = {0};
    Ox ox = {.a = a,
             .d = d,
             .opt = opt,
             .file = intern(path),
             .dir = ox_directory(path)};
    ox.scratch = arena_new();
    ox.model = (Onnx__ModelProto *)wire_unpack(
        ox.scratch, &onnx__model_proto__descriptor, bytes, n, &e);
    Status s = ERR_USER;
    const char *other = other_kind(bytes, n);
    if (other)
        ox_fail_model(&ox, "%s", other);
    else if (e.what)
        ox_fail_model(
            &ox, "not an ONNX model or truncated: %s (stopped at byte %zu)",
            e.what, e.offset);
    else if (!n || !ox.model)
        ox_fail_model(&ox, "not an ONNX model%s",
                      n ? "" : ": the file is empty");
    else
        s = import_model(&ox, in, nin);
    arena_free(ox.scratch);
    *out = s == OK ? ox.m : NULL;
    return s;
}

Status check_trips(Diag *d, Loc loc, const Options *opt, bool all) {
    for (int i = 0; i < opt->max_trips.len; i++) {
        const TripBound *b = &opt->max_trips.data[i];
        if (b->used || (!b->glob && !all)) continue;
        if (b->glob)
            fail(d, loc,
                 "--max-trips %s: no loop of that name has a number of trips "
                 "that depends on data",
                 b->glob);
        else
            fail(d, loc,
                 "--max-trips: no loop of the model has a number of trips that "
                 "depends on data");
        return ERR_USAGE;
    }
    return OK;
}

Status import_onnx(Arena *a, Diag *d, const char *path, const uint8_t *bytes,
                   size_t n, const Options *opt, Module **out) {
    TRY(import_onnx_layer(a, d, path, bytes, n, opt, NULL, 0, out));
    return check_trips(d, (Loc){.file = intern(path)}, opt, false);
}
