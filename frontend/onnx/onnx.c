/* SPDX-License-Identifier: Apache-2.0 */
/* onnx.c: the ONNX frontend from file to module; stages in onnx.h. */
#include "frontend/onnx/onnx.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "frontend/onnx/wire.h"

/* ---- dimensions ---------------------------------------------------------- */

typedef Onnx__TensorShapeProto__Dimension Dim;

/* "?" says of several dimensions that they are unknown, not that they are
   equal. */
static Str dim_name(const Dim *d) {
    if (d->value_case != ONNX__TENSOR_SHAPE_PROTO__DIMENSION__VALUE_DIM_PARAM)
        return intern("");
    Str name = ox_text(d->dim_param);
    return strcmp(name, "?") ? name : intern("");
}

/* -1 is how PaddlePaddle and TensorFlow write an unknown one. */
static bool dim_known(const Dim *d) {
    return d->value_case ==
               ONNX__TENSOR_SHAPE_PROTO__DIMENSION__VALUE_DIM_VALUE &&
           d->dim_value != -1;
}

static const Onnx__TensorShapeProto *shape_of(const Onnx__ValueInfoProto *v) {
    if (!v->type ||
        v->type->value_case != ONNX__TYPE_PROTO__VALUE_TENSOR_TYPE ||
        !v->type->tensor_type)
        return NULL;
    return v->type->tensor_type->shape;
}

static bool is_data_input(const Ox *ox, const Onnx__ValueInfoProto *v) {
    const OxName *n = ox_name_of(ox, ox_text(v->name));
    return n && n->kind == OX_INPUT;
}

/* Every symbolic dimension of the data inputs, as text for messages. */
static const char *known_dims(Ox *ox) {
    StrBuf sb = {0};
    StrMap seen = {0};
    int count = 0;
    for (size_t i = 0; i < ox->graph->n_input; i++) {
        const Onnx__ValueInfoProto *v = ox->graph->input[i];
        const Onnx__TensorShapeProto *s = shape_of(v);
        for (size_t k = 0; s && k < s->n_dim && is_data_input(ox, v); k++) {
            Str name = dim_name(s->dim[k]);
            if (!*name || str_map_get(&seen, name) >= 0) continue;
            str_map_put(ox->a, &seen, name, 0);
            if (sb_put_next(&sb, count++))
                sb_printf(&sb, "'%s'", ox_quote(ox, name));
        }
    }
    sb_put_more(&sb, count);
    const char *r = arena_printf(ox->a, "%s", sb.len ? sb.data : "none");
    sb_free(&sb);
    return r;
}

/* Binds --dim NAME=N, or the name of the dimension of --dim INPUT:AXIS=N,
   and thereby every equal dimension. A batch of --batch-sizes is not
   changed. */
static Status bind(Ox *ox, Str name, int64_t value) {
    int old = str_map_get(&ox->dims, name);
    if (old >= 0 && name == ox->batch_dim) return OK;
    if (old >= 0 && ox->dim_values.data[old] != value)
        return ox_fail_model(
            ox, "dimension '%s' is bound to %" PRId64 " and to %" PRId64,
            ox_quote(ox, name), ox->dim_values.data[old], value);
    if (old < 0) {
        str_map_put(ox->a, &ox->dims, name, ox->dim_values.len);
        vec_push(ox->a, &ox->dim_values, value);
    }
    return OK;
}

/* How to export the file so that dimension `axis` of its inputs is free. */
static Str export_again(const Ox *ox, int axis) {
    StrBuf all = {0};
    int n = 0;
    for (size_t i = 0; i < ox->graph->n_input; i++)
        if (is_data_input(ox, ox->graph->input[i]) && n++ < 8)
            sb_printf(&all, "%s{%d: d},", n > 1 ? " " : "", axis);
    Str s = ox->is_torch && n && n <= 8
                ? internf("export it again with d = torch.export.Dim(\"batch\")"
                          " and dynamic_shapes=(%s)",
                          all.data)
                : intern("export it again with a dynamic one");
    sb_free(&all);
    return s;
}

static Status bind_axis(Ox *ox, const DimBind *b, bool *found) {
    for (size_t i = 0; i < ox->graph->n_input; i++) {
        const Onnx__ValueInfoProto *v = ox->graph->input[i];
        const Onnx__TensorShapeProto *s = shape_of(v);
        if (!s || !v->name || intern(v->name) != b->name ||
            b->axis >= (int)s->n_dim || !is_data_input(ox, v))
            continue;
        *found = true;
        const Dim *d = s->dim[b->axis];
        if (dim_known(d) && d->dim_value != b->value)
            return ox_fail_model(ox,
                                 "--dim %s:%d=%" PRId64 ": this file was "
                                 "exported with the fixed dimension %" PRId64
                                 "; %s",
                                 ox_quote(ox, b->name), b->axis, b->value,
                                 d->dim_value, export_again(ox, b->axis));
        if (*dim_name(d)) TRY(bind(ox, dim_name(d), b->value));
        return OK;
    }
    return OK;
}

static bool is_dim_param(const Ox *ox, Str name) {
    for (size_t i = 0; i < ox->graph->n_input; i++) {
        const Onnx__TensorShapeProto *s = shape_of(ox->graph->input[i]);
        for (size_t k = 0; s && k < s->n_dim; k++)
            if (dim_name(s->dim[k]) == name) return true;
    }
    return false;
}

static bool has_symbols(const Ox *ox) {
    for (size_t i = 0; i < ox->graph->n_input; i++) {
        const Onnx__TensorShapeProto *s = shape_of(ox->graph->input[i]);
        for (size_t k = 0; s && k < s->n_dim; k++)
            if (*dim_name(s->dim[k])) return true;
    }
    return false;
}

/* The batch is the first dimension of the first input that has one. */
static const Dim *batch_dim(const Ox *ox) {
    for (size_t i = 0; i < ox->graph->n_input; i++) {
        const Onnx__TensorShapeProto *s = shape_of(ox->graph->input[i]);
        if (s && s->n_dim && is_data_input(ox, ox->graph->input[i]))
            return s->dim[0];
    }
    return NULL;
}

static Status bind_batch(Ox *ox) {
    const Dim *d = batch_dim(ox);
    int64_t n = ox->opt->batch;
    bool one = d && dim_known(d) && d->dim_value == 1;
    if (!n && one && ox->is_torch && options_train(ox->opt))
        ox_warn_model(ox, "the file fixes the batch at 1; for another: %s",
                      export_again(ox, 0));
    if (!n) return OK;
    if (!d) return ox_fail_model(ox, "--batch-sizes: no input has a batch");
    if (dim_known(d) && d->dim_value != n)
        return ox_fail_model(ox,
                             "--batch-sizes %" PRId64 ": this file was "
                             "exported with the fixed batch %" PRId64 "; %s",
                             n, d->dim_value, export_again(ox, 0));
    ox->batch_dim = dim_name(d);
    return *ox->batch_dim ? bind(ox, ox->batch_dim, n) : OK;
}

static Status bind_dims(Ox *ox) {
    for (int i = 0; i < ox->opt->dims.len; i++) {
        const DimBind *b = &ox->opt->dims.data[i];
        bool found = false;
        if (b->value < 0)
            return ox_fail_model(ox, "--dim %s: %" PRId64 " is negative",
                                 ox_quote(ox, b->name), b->value);
        if (b->axis >= 0) {
            TRY(bind_axis(ox, b, &found));
        } else if (is_dim_param(ox, b->name)) {
            TRY(bind(ox, b->name, b->value));
            found = true;
        }
        if (!found && b->axis >= 0)
            return ox_fail_model(
                ox, "--dim %s:%d: the model has no such input dimension",
                ox_quote(ox, b->name), b->axis);
        if (!found && !has_symbols(ox))
            return ox_fail_model(ox,
                                 "--dim %s: the file has no symbolic "
                                 "dimensions, it was exported with fixed ones; "
                                 "%s",
                                 ox_quote(ox, b->name), export_again(ox, 0));
        if (!found)
            return ox_fail_model(ox,
                                 "--dim %s: the model's symbolic "
                                 "dimensions are: %s",
                                 ox_quote(ox, b->name), known_dims(ox));
    }
    return OK;
}

/* The value of one input dimension, -1: unbound. */
static int64_t dim_value(const Ox *ox, Str input, int axis, const Dim *d) {
    if (dim_known(d)) return d->dim_value;
    Str name = dim_name(d);
    int i = *name ? str_map_get(&ox->dims, name) : -1;
    if (i >= 0) return ox->dim_values.data[i];
    if (ox->opt->batch && !*name && axis == 0) return ox->opt->batch;
    for (int k = 0; k < ox->opt->dims.len; k++) {
        const DimBind *b = &ox->opt->dims.data[k];
        if (b->axis == axis && b->name == input) return b->value;
    }
    int64_t most = options_largest_batch(ox->opt);
    const Dim *batch = most ? batch_dim(ox) : NULL;
    bool is_batch = batch && (*name ? dim_name(batch) == name : axis == 0);
    return is_batch ? most : -1;
}

/* ---- inputs -------------------------------------------------------------- */

/* Dimensions without a value: each name once. */
typedef struct Unbound {
    StrBuf text;
    StrMap seen;
    const char *example;
    int count;
} Unbound;

static void note_unbound(Ox *ox, Unbound *u, Str input, int axis,
                         const Dim *d) {
    Str name = dim_name(d);
    const char *place = arena_printf(ox->a, "%s:%d", ox_quote(ox, input), axis);
    if (*name && str_map_get(&u->seen, name) >= 0) return;
    str_map_put(ox->a, &u->seen, name, 0);
    if (sb_put_next(&u->text, u->count++)) {
        if (*name) sb_printf(&u->text, "'%s' (", ox_quote(ox, name));
        sb_printf(&u->text, "%s%s", place, *name ? ")" : "");
    }
    if (!u->example) u->example = *name ? ox_quote(ox, name) : place;
}

static Status make_input(Ox *ox, const Onnx__ValueInfoProto *v, Unbound *u) {
    Str name = intern(v->name);
    const Onnx__TensorShapeProto *s = shape_of(v);
    int at = ox->g->inputs.len; /* with a layer's operands all are complete */
    const Type *given = at < ox->ngiven ? type_get(ox->given[at]) : NULL;
    int64_t dim[MAX_RANK] = {0};
    bool complete = true;
    DType d;
    TypeId type;
    if (!s)
        return ox_fail_model(ox, "input '%s' is not a tensor with a shape",
                             ox_quote(ox, name));
    TRY(ox_dtype(ox, v->type->tensor_type->elem_type, name, &d));
    if (s->n_dim > MAX_RANK)
        return ox_fail_model(ox, "input '%s' has rank %zu; at most %d",
                             ox_quote(ox, name), s->n_dim, MAX_RANK);
    for (int k = 0; k < (int)s->n_dim; k++) {
        bool ours = given && k < given->rank && !dim_known(s->dim[k]);
        if (ours && *dim_name(s->dim[k]))
            TRY(bind(ox, dim_name(s->dim[k]), given->dim[k]));
        dim[k] = ours ? given->dim[k] : dim_value(ox, name, k, s->dim[k]);
        if (dim[k] >= 0 || dim_known(s->dim[k])) continue;
        note_unbound(ox, u, name, k, s->dim[k]);
        complete = false;
    }
    if (!complete) return OK;
    TRY(ox_type_make(ox, name, d, (int)s->n_dim, dim, &type));
    ox_name_of(ox, name)->value = graph_input(ox->g, name, type);
    return OK;
}

static Status check_operand_count(Ox *ox) {
    int n = 0;
    for (size_t i = 0; i < ox->graph->n_input; i++)
        n += is_data_input(ox, ox->graph->input[i]);
    if (n == ox->ngiven) return OK;
    return ox_fail_model(ox, "%d operands for %d inputs", ox->ngiven, n);
}

static Status make_inputs(Ox *ox) {
    Unbound u = {0};
    Status st = ox->given ? check_operand_count(ox) : bind_batch(ox);
    if (st == OK && !ox->given) st = bind_dims(ox);
    for (size_t i = 0; i < ox->graph->n_input && st == OK; i++)
        if (is_data_input(ox, ox->graph->input[i]))
            st = make_input(ox, ox->graph->input[i], &u);
    sb_put_more(&u.text, u.count);
    if (st == OK && u.count)
        st = ox_fail_model(ox,
                           "these input dimensions have no value: %s; "
                           "bind them, for example --dim %s=64",
                           u.text.data, u.example);
    sb_free(&u.text);
    return st;
}

/* ---- initializers -------------------------------------------------------- */

const Tensor *ox_as(Arena *a, const Tensor *t, DType d) {
    if (type_get(t->type)->dtype == d) return t;
    Arena *tmp = arena_new();
    const Tensor *r = eval_to_tensor(a, eval_from_tensor(tmp, t),
                                     type_with_dtype(t->type, d));
    arena_free(tmp);
    return r;
}

/* Notes tensors of the file that are not variables, each once, so that the
   report omits nothing. */
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

/* ---- nodes --------------------------------------------------------------- */

static bool takes_sequences(const OxNode *n) {
    static OxHandler *const some[] = {onnx_sequence_at,
                                      onnx_sequence_insert,
                                      onnx_sequence_erase,
                                      onnx_sequence_length,
                                      onnx_sequence_concat,
                                      onnx_identity,
                                      onnx_if,
                                      onnx_loop,
                                      onnx_scan};
    for (size_t i = 0; i < sizeof some / sizeof *some; i++)
        if (n->op->handler == some[i]) return true;
    return false;
}

Status ox_make_nodes(Ox *ox, const int *order, int count) {
    for (int i = 0; i < count; i++) {
        const OxNode *n = &ox->nodes.data[order[i]];
        ox->node = n;
        ox->b.loc = ox_loc(ox, n);
        ox->first_node = (uint32_t)ox->g->nodes.len;
        ox->first_value = (uint32_t)ox->g->values.len;
        for (int k = 0; k < n->nin && !takes_sequences(n); k++)
            if (*n->in[k] && !is_value(ox_name_of(ox, n->in[k])->value))
                return ox_fail(ox, "operand '%s' is a sequence",
                               ox_quote(ox, n->in[k]));
        bool done;
        TRY(ox_torch_whole(ox, &done));
        if (!done) TRY(n->op->handler(ox));
        for (int k = 0; k < n->nout; k++) {
            if (!ox_has_out(ox, k)) continue;
            const OxName *out = ox_name_of(ox, n->out[k]);
            ValueId v = out->value;
            if (!is_value(v) && !out->seq)
                return ox_fail(ox, "result %d is not supported", k);
            if (out->drops) TRY(ox_drop(ox, k));
            if (!ox_stops(ox, n, k) || !is_value(v) ||
                !dtype_is_float(ox_type(ox, v).dtype))
                continue;
            TRY(ox_call(ox, "stop", &v, 1, NULL, 0, 1, &v));
            TRY(ox_out(ox, k, v));
        }
    }
    ox->node = NULL;
    return OK;
}

/* ---- outputs ------------------------------------------------------------- */

/* A file's declared output shapes are not relied on: in files edited by hand
   they are often wrong, and other runtimes run such files. */
static void check_declared(Ox *ox, const Onnx__ValueInfoProto *v, ValueId y) {
    const Onnx__TensorShapeProto *s = shape_of(v);
    Type t = ox_type(ox, y);
    if (s && (int)s->n_dim != t.rank)
        ox_warn_model(ox,
                      "output '%s' is declared with rank %zu but has rank %d",
                      ox_quote(ox, v->name), s->n_dim, t.rank);
    for (int k = 0; s && (int)s->n_dim == t.rank && k < t.rank; k++)
        if (dim_known(s->dim[k]) && s->dim[k]->dim_value != t.dim[k])
            ox_warn_model(ox,
                          "dimension %d of output '%s' is declared as %" PRId64
                          " but is %" PRId64,
                          k, ox_quote(ox, v->name), s->dim[k]->dim_value,
                          t.dim[k]);
}

/* Weights stored in 16 bits are f32 here, and so are the values computed
   from them; outputs are cast to the dtype that the file declares. A loss is
   not cast. */
static Status as_declared(Ox *ox, const Onnx__ValueInfoProto *v, ValueId *y) {
    Type t = ox_type(ox, *y);
    DType d;
    if (!v->type ||
        v->type->value_case != ONNX__TYPE_PROTO__VALUE_TENSOR_TYPE ||
        !dtype_from_onnx(v->type->tensor_type->elem_type, &d) ||
        !dtype_is_low(d) || t.dtype != DT_F32 || type_count(&t) == 1)
        return OK;
    return ox_cast(ox, *y, d, true, y);
}

static Status make_outputs(Ox *ox) {
    for (size_t i = 0; i < ox->graph->n_output; i++) {
        const Onnx__ValueInfoProto *v = ox->graph->output[i];
        Str name = intern(v->name);
        ValueId y = ox_name_of(ox, name)->value;
        if (!is_value(y))
            return ox_fail_model(ox, "output '%s' is a sequence",
                                 ox_quote(ox, name));
        check_declared(ox, v, y);
        TRY(as_declared(ox, v, &y));
        vec_push(ox->a, &ox->g->outputs, (Output){name, y});
    }
    return OK;
}

/* ---- the whole ----------------------------------------------------------- */

static void start_module(Ox *ox) {
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

/* Globs are checked when everything that they could match has been seen; the
   one of a bare `--batchnorm frozen` may match nothing. */
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

static Status import_model(Ox *ox) {
    TRY(ox_check_model(ox));
    ox->is_torch = ox->model->producer_name &&
                   !strcmp(ox->model->producer_name, "pytorch");
    ox_read_signature(ox);
    ox_find_kinks(ox);
    TRY(ox_flatten(ox));
    TRY(ox_resolve_names(ox));
    TRY(ox_sort(ox));
    TRY(ox_check_nodes(ox, ox->order.data, ox->order.len));
    TRY(ox_check_spoiled(ox));
    TRY(ox_decide(ox));
    TRY(ox_check_dtypes(ox));
    ox_warn_steps(ox);
    ox_find_drops(ox);
    start_module(ox);
    TRY(make_inputs(ox));
    make_inits(ox);
    ox->frozen_used = NEW_ARRAY(ox->a, bool, ox->opt->batchnorm_frozen.len + 1);
    TRY(ox_make_nodes(ox, ox->order.data, ox->order.len));
    TRY(check_frozen(ox));
    TRY(ox_write_mutations(ox));
    TRY(make_outputs(ox));
    if (ox->dropouts_enabled)
        ox_warn_model(ox,
                      "%d Dropout node%s exported disabled will drop in "
                      "training (--dropout off keeps them off)",
                      ox->dropouts_enabled,
                      ox->dropouts_enabled == 1 ? "" : "s");
    return OK;
}

Str ox_directory(const char *path) {
    const char *slash = strrchr(path, '/');
    if (!slash) return intern(".");
    return slash == path ? intern("/") : intern_n(path, (size_t)(slash - path));
}

Status import_onnx_layer(Arena *a, Diag *d, const char *path,
                         const uint8_t *bytes, size_t n, const Options *opt,
                         const TypeId *in, int nin, Module **out) {
    WireError e = {0};
    Ox ox = {.a = a,
             .d = d,
             .opt = opt,
             .file = intern(path),
             .dir = ox_directory(path),
             .given = in,
             .ngiven = nin};
    ox.scratch = arena_new();
    ox.model = (Onnx__ModelProto *)wire_unpack(
        ox.scratch, &onnx__model_proto__descriptor, bytes, n, &e);
    Status s = ERR_USER;
    if (n > 4 && !memcmp(bytes, "PK\3\4", 4))
        ox_fail_model(&ox, "a zip file, as torch.save writes, not an ONNX "
                           "model: export the model with torch.onnx.export");
    else if (e.what)
        ox_fail_model(
            &ox, "not an ONNX model or truncated: %s (stopped at byte %zu)",
            e.what, e.offset);
    else if (!n || !ox.model)
        ox_fail_model(&ox, "not an ONNX model%s",
                      n ? "" : ": the file is empty");
    else
        s = import_model(&ox);
    arena_free(ox.scratch);
    *out = s == OK ? ox.m : NULL;
    return s;
}

Status import_onnx(Arena *a, Diag *d, const char *path, const uint8_t *bytes,
                   size_t n, const Options *opt, Module **out) {
    return import_onnx_layer(a, d, path, bytes, n, opt, NULL, 0, out);
}
