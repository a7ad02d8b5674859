/* SPDX-License-Identifier: Apache-2.0 */
/* onnx_io.c: the graph's inputs, the values of their symbolic dimensions, and
   the outputs. */
#include <inttypes.h>
#include <string.h>

#include "frontend/onnx/onnx.h"
#include "ir/base/near.h"

/* ---- dimensions ---------------------------------------------------------- */

typedef Onnx__TensorShapeProto__Dimension Dim;

/* Values of symbolic dimensions, and their sources. */
typedef struct Dims {
    Ox *ox;
    const TypeId *given; /* types of a layer's operands; NULL: as in the
                            file, with the options' values */
    int ngiven;
    StrMap index; /* dim_param to its index in `value` */
    VEC(int64_t) value;
    Str batch; /* the dimension whose value is Options.batch; NULL: none */
} Dims;

/* "?" means that several dimensions are unknown, not that they are equal. */
static Str dim_name(const Dim *d) {
    if (d->value_case != ONNX__TENSOR_SHAPE_PROTO__DIMENSION__VALUE_DIM_PARAM)
        return intern("");
    Str name = ox_text(d->dim_param);
    return strcmp(name, "?") ? name : intern("");
}

/* PaddlePaddle and TensorFlow write an unknown dimension as -1. */
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

/* The batch is the first dimension of the first input that has one. */
static const Dim *batch_dim(const Ox *ox) {
    for (size_t i = 0; i < ox->graph->n_input; i++) {
        const Onnx__TensorShapeProto *s = shape_of(ox->graph->input[i]);
        if (s && s->n_dim && is_data_input(ox, ox->graph->input[i]))
            return s->dim[0];
    }
    return NULL;
}

/* Binds --dim NAME=N, or the dimension named by --dim INPUT:AXIS=N, and
   every equal dimension. A batch size of --batch-sizes is not changed. */
static Status bind(Dims *s, Str name, int64_t value) {
    int old = str_map_get(&s->index, name);
    if (!value && batch_dim(s->ox) && dim_name(batch_dim(s->ox)) == name)
        return ox_fail_model(s->ox, "--dim %s=0: the batch has no samples",
                             ox_quote(s->ox, name));
    if (old >= 0 && name == s->batch) return OK;
    if (old >= 0 && s->value.data[old] != value)
        return ox_fail_model(
            s->ox, "dimension '%s' is bound to %" PRId64 " and to %" PRId64,
            ox_quote(s->ox, name), s->value.data[old], value);
    if (old < 0) {
        str_map_put(s->ox->a, &s->index, name, s->value.len);
        vec_push(s->ox->a, &s->value, value);
    }
    return OK;
}

/* How to export the file so that dimension `axis` of its inputs is dynamic. */
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

Str ox_training_recipe(Ox *ox) {
    enum { MOST = 4 };
    StrBuf names = {0}, shapes = {0};
    int n = 0, symbols = 0;
    for (int pass = 0; pass < 2; pass++)
        for (size_t i = 0; i < ox->graph->n_input; i++) {
            const Onnx__ValueInfoProto *v = ox->graph->input[i];
            const Onnx__TensorShapeProto *s = shape_of(v);
            if (!is_data_input(ox, v)) continue;
            bool symbol = s && s->n_dim && *dim_name(s->dim[0]);
            if (!pass) {
                symbols += symbol;
                continue;
            }
            if (n++ == MOST) break;
            sb_printf(&names, "%s'%s'", n > 1 ? ", " : "",
                      ox_quote(ox, v->name ? v->name : ""));
            bool batch = symbols ? symbol : s && s->n_dim;
            sb_printf(&shapes, "%s%s,", n > 1 ? " " : "",
                      batch ? "{0: d}" : "None");
        }
    StrBuf sb = {0};
    sb_puts(&sb, "torch.onnx.export(model.train(), args, dynamo=True, "
                 "optimize=False");
    if (n && n <= MOST)
        sb_printf(&sb,
                  ", f='train.onnx', input_names=[%s], dynamic_shapes=(%s)",
                  names.data, shapes.data);
    sb_puts(&sb, ")");
    if (n && n <= MOST) sb_puts(&sb, " with d = torch.export.Dim('batch')");
    sb_puts(&sb, ", or ampc.torch.export(model.train(), args, 'train.onnx') of "
                 "the Python package");
    Str recipe = intern(sb.data);
    sb_free(&sb);
    sb_free(&names);
    sb_free(&shapes);
    return recipe;
}

static Status bind_axis(Dims *dims, const DimBind *b, bool *found) {
    Ox *ox = dims->ox;
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
        if (*dim_name(d)) TRY(bind(dims, dim_name(d), b->value));
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

/* "; did you mean 'batch'?", or "". */
static Str meant_dim(Ox *ox, Str name) {
    char text[NEAR_TEXT];
    Near near = near_to(name);
    for (size_t i = 0; i < ox->graph->n_input; i++) {
        const Onnx__TensorShapeProto *s = shape_of(ox->graph->input[i]);
        for (size_t k = 0; s && k < s->n_dim; k++)
            near_offer(&near, dim_name(s->dim[k]));
    }
    if (near.best) near.best = ox_quote(ox, near.best);
    return intern(near_text(&near, text));
}

static Status bind_batch(Dims *dims) {
    Ox *ox = dims->ox;
    const Dim *d = batch_dim(ox);
    int64_t n = ox->opt->batch;
    if (!n && d && dim_known(d) && ox->is_torch && options_train(ox->opt))
        fail_note(ox->d, (Loc){.file = ox->file},
                  "the file fixes the batch at %" PRId64 "; for another: %s",
                  d->dim_value, export_again(ox, 0));
    if (!n) return OK;
    if (!d) return ox_fail_model(ox, "--batch-sizes: no input has a batch");
    if (dim_known(d) && d->dim_value != n)
        return ox_fail_model(ox,
                             "--batch-sizes %" PRId64 ": this file was "
                             "exported with the fixed batch %" PRId64 "; %s",
                             n, d->dim_value, export_again(ox, 0));
    dims->batch = dim_name(d);
    return *dims->batch ? bind(dims, dims->batch, n) : OK;
}

/* --dim batch=N of a file whose batch is a number. */
static Status fixed_batch(Ox *ox, const DimBind *b, bool *found) {
    const Dim *d = batch_dim(ox);
    if (strcmp(b->name, "batch") || !d || !dim_known(d)) return OK;
    *found = d->dim_value == b->value;
    if (*found) return OK;
    return ox_fail_model(ox,
                         "--dim batch=%" PRId64 ": this file was exported with "
                         "the fixed batch %" PRId64 "; %s",
                         b->value, d->dim_value, export_again(ox, 0));
}

static Status bind_dims(Dims *dims) {
    Ox *ox = dims->ox;
    for (int i = 0; i < ox->opt->dims.len; i++) {
        const DimBind *b = &ox->opt->dims.data[i];
        bool found = false;
        if (b->value < 0)
            return ox_fail_model(ox, "--dim %s: %" PRId64 " is negative",
                                 ox_quote(ox, b->name), b->value);
        if (b->axis >= 0) {
            TRY(bind_axis(dims, b, &found));
        } else if (is_dim_param(ox, b->name)) {
            TRY(bind(dims, b->name, b->value));
            found = true;
        } else {
            TRY(fixed_batch(ox, b, &found));
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
                                 "dimensions are: %s%s",
                                 ox_quote(ox, b->name), known_dims(ox),
                                 meant_dim(ox, b->name));
    }
    return OK;
}

/* The value of one input dimension; -1: unbound. */
static int64_t dim_value(const Dims *dims, Str input, int axis, const Dim *d) {
    const Ox *ox = dims->ox;
    if (dim_known(d)) return d->dim_value;
    Str name = dim_name(d);
    int i = *name ? str_map_get(&dims->index, name) : -1;
    if (i >= 0) return dims->value.data[i];
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

/* Dimensions without a value; each name once. */
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

/* Nobody need feed an input that --dim leaves without elements, such as an
   empty past. */
static ValueId no_elements(Ox *ox, Str name, TypeId type) {
    Tensor *t = NEW(ox->a, Tensor);
    *t = (Tensor){.type = type, .data = arena_alloc(ox->a, 1)};
    return ox_make_const(ox, name, t);
}

static Status make_input(Dims *dims, const Onnx__ValueInfoProto *v,
                         Unbound *u) {
    Ox *ox = dims->ox;
    Str name = intern(v->name);
    const Onnx__TensorShapeProto *s = shape_of(v);
    int at = ox->g->inputs.len; /* for a layer's operands all dimensions are
                                   known */
    const Type *given = at < dims->ngiven ? type_get(dims->given[at]) : NULL;
    int64_t dim[MAX_RANK] = {0};
    const InputValue *set = given ? NULL : ox_set_of(ox, name);
    bool complete = true, none = false;
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
            TRY(bind(dims, dim_name(s->dim[k]), given->dim[k]));
        dim[k] = ours ? given->dim[k] : dim_value(dims, name, k, s->dim[k]);
        if (dim[k] < 0 && !dim_known(s->dim[k]) && set && s->n_dim == 1)
            dim[k] = set->numbers.len;
        none |= dim[k] == 0 && !dim_known(s->dim[k]);
        if (dim[k] >= 0 || dim_known(s->dim[k])) continue;
        note_unbound(ox, u, name, k, s->dim[k]);
        complete = false;
    }
    if (!complete) return OK;
    TRY(ox_type_make(ox, name, d, (int)s->n_dim, dim, &type));
    ValueId *value = &ox_name_of(ox, name)->value;
    if (set) return ox_set_value(ox, set, type, value);
    *value = none && !given ? no_elements(ox, name, type)
                            : graph_input(ox->g, name, type);
    return OK;
}

static Status check_operand_count(Ox *ox, int ngiven) {
    int n = 0;
    for (size_t i = 0; i < ox->graph->n_input; i++)
        n += is_data_input(ox, ox->graph->input[i]);
    if (n == ngiven) return OK;
    return ox_fail_model(ox, "%d operands for %d inputs", ngiven, n);
}

Status ox_make_inputs(Ox *ox, const TypeId *given, int ngiven) {
    Dims dims = {.ox = ox, .given = given, .ngiven = ngiven};
    Unbound u = {0};
    ox->is_layer = given != NULL;
    Status st = given ? check_operand_count(ox, ngiven) : bind_batch(&dims);
    if (st == OK && !given) st = bind_dims(&dims);
    if (st == OK && !given) st = ox_check_set(ox);
    for (size_t i = 0; i < ox->graph->n_input && st == OK; i++)
        if (is_data_input(ox, ox->graph->input[i]))
            st = make_input(&dims, ox->graph->input[i], &u);
    sb_put_more(&u.text, u.count);
    if (st == OK && u.count)
        st = ox_fail_model(ox,
                           "these input dimensions have no value: %s; "
                           "bind them, for example --dim %s=64",
                           u.text.data, u.example);
    sb_free(&u.text);
    return st;
}

/* ---- outputs ------------------------------------------------------------- */

/* The output shapes that a file declares are ignored: in files edited by
   hand they are often wrong, and other runtimes run such files. */
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

/* Weights stored in 16 bits are f32 here, and so are values computed from
   them; outputs are cast to the dtype that the file declares. A loss is not
   cast. */
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

Status ox_make_outputs(Ox *ox) {
    VEC(Output) numbers = {0};
    for (size_t i = 0; i < ox->graph->n_output; i++) {
        const Onnx__ValueInfoProto *v = ox->graph->output[i];
        Str name = intern(v->name);
        ValueId y = ox_name_of(ox, name)->value, n;
        if (!is_value(y))
            return ox_fail_model(ox, "output '%s' is a sequence",
                                 ox_quote(ox, name));
        TRY(ox_put_rows(ox, name, &y, &n));
        if (is_value(n))
            vec_push(ox->a, &numbers,
                     (Output){.name = internf("%s.rows", name), .value = n});
        check_declared(ox, v, y);
        TRY(as_declared(ox, v, &y));
        vec_push(ox->a, &ox->g->outputs, (Output){.name = name, .value = y});
    }
    for (int i = 0; i < numbers.len; i++)
        vec_push(ox->a, &ox->g->outputs, numbers.data[i]);
    return OK;
}
