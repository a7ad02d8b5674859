/* SPDX-License-Identifier: Apache-2.0 */
/* onnx_index.c: parts of tensors: concat, split, slice, gather, pad. */
#include <ctype.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "frontend/onnx/onnx.h"

Status onnx_concat(Ox *ox) {
    int n = ox->node->nin, axis;
    ValueId *in = NEW_ARRAY(ox->a, ValueId, n), y;
    for (int i = 0; i < n; i++) in[i] = ox_in(ox, i);
    if (!ox_attr(ox, "axis") && ox->node->version >= 4)
        return ox_fail(ox, "attribute 'axis' is missing");
    TRY(ox_axis(ox, ox_int(ox, "axis", 1), ox_type(ox, in[0]).rank, &axis));
    TRY(ox_concat(ox, in, n, axis, false, &y));
    return ox_out(ox, 0, y);
}

/* ---- split --------------------------------------------------------------- */

/* n chunks; the last may be smaller if `uneven` allows it. */
static Status even_sizes(Ox *ox, int64_t total, int n, bool uneven,
                         int64_t *sizes) {
    int64_t chunk = (total + n - 1) / n, left = total;
    if (!uneven && total % n)
        return ox_fail(ox, "%" PRId64 " does not divide into %d parts", total,
                       n);
    for (int i = 0; i < n; i++) {
        sizes[i] = left < chunk ? left : chunk;
        left -= sizes[i];
    }
    return OK;
}

Status ox_check_sizes(Ox *ox, const int64_t *v, int n, int64_t total) {
    int64_t sum = 0;
    for (int i = 0; i < n; i++)
        if (v[i] < 0 || !add_ok(sum, v[i], &sum))
            return ox_fail(ox, "split size %d is %" PRId64, i, v[i]);
    if (sum != total)
        return ox_fail(ox,
                       "split sizes sum to %" PRId64 ", the axis has %" PRId64,
                       sum, total);
    return OK;
}

Status onnx_split(Ox *ox) {
    ValueId x = ox_in(ox, 0);
    Type t = ox_type(ox, x);
    int n = ox->node->nout, axis, given;
    int64_t *sizes = NEW_ARRAY(ox->a, int64_t, n);
    ValueId *out = NEW_ARRAY(ox->a, ValueId, n);
    const int64_t *v;
    TRY(ox_axis(ox, ox_int(ox, "axis", 0), t.rank, &axis));
    if (ox->node->nin > 1)
        TRY(ox_const_ints(ox, 1, "split", &v, &given));
    else
        given = ox_ints(ox, "split", &v);
    if (given >= 0) {
        if (given != n)
            return ox_fail(ox, "%d split sizes for %d results", given, n);
        TRY(ox_check_sizes(ox, v, n, t.dim[axis]));
        memcpy(sizes, v, (size_t)n * sizeof *v);
    } else {
        if (ox_int(ox, "num_outputs", n) != n)
            return ox_fail(ox, "num_outputs differs from its %d results", n);
        bool uneven = ox_attr(ox, "num_outputs") != NULL;
        TRY(even_sizes(ox, t.dim[axis], n, uneven, sizes));
    }
    TRY(ox_split(ox, x, axis, sizes, n, out));
    for (int i = 0; i < n; i++) TRY(ox_out(ox, i, out[i]));
    return OK;
}

/* ---- slice --------------------------------------------------------------- */

static int64_t between(int64_t v, int64_t low, int64_t high) {
    return v < low ? low : v > high ? high : v;
}

/* One axis of length d: INT64_MIN and INT64_MAX mean "to the end". */
static Status slice_axis(Ox *ox, int64_t d, int64_t start, int64_t end,
                         int64_t step, int64_t out[3]) {
    if (step == 0) return ox_fail(ox, "a step of 0");
    step = between(step, -d - 1, d + 1);
    start = between(start, -d - 1, d + 1);
    end = between(end, -d - 1, d + 1);
    if (start < 0) start += d;
    if (end < 0) end += d;
    if (step > 0) {
        start = between(start, 0, d);
        end = between(end, 0, d);
    } else {
        start = between(start, d ? 0 : -1, d - 1);
        end = between(end, -1, d - 1);
    }
    int64_t span = step > 0 ? end - start : start - end;
    int64_t stride = step > 0 ? step : -step;
    int64_t n = span > 0 ? (span + stride - 1) / stride : 0;
    out[0] = n ? start : 0;
    out[1] = n;
    out[2] = n > 1 ? step : 1;
    return OK;
}

typedef struct SliceSpec {
    const int64_t *starts, *ends, *axes, *steps;
    int nstarts, nends, naxes, nsteps;
} SliceSpec;

static Status slice_spec(Ox *ox, SliceSpec *s) {
    if (ox->node->nin > 1) {
        TRY(ox_const_ints(ox, 1, "starts", &s->starts, &s->nstarts));
        TRY(ox_const_ints(ox, 2, "ends", &s->ends, &s->nends));
        TRY(ox_const_ints(ox, 3, "axes", &s->axes, &s->naxes));
        TRY(ox_const_ints(ox, 4, "steps", &s->steps, &s->nsteps));
    } else {
        s->nstarts = ox_ints(ox, "starts", &s->starts);
        s->nends = ox_ints(ox, "ends", &s->ends);
        s->naxes = ox_ints(ox, "axes", &s->axes);
        s->nsteps = -1;
    }
    int n = s->nstarts;
    if (n < 0 || s->nends != n || (s->naxes >= 0 && s->naxes != n) ||
        (s->nsteps >= 0 && s->nsteps != n))
        return ox_fail(ox, "starts, ends, axes and steps differ in length");
    return OK;
}

Status onnx_slice(Ox *ox) {
    ValueId x = ox_in(ox, 0), y;
    Type t = ox_type(ox, x);
    SliceSpec s = {0};
    int64_t starts[MAX_RANK] = {0}, sizes[MAX_RANK], steps[MAX_RANK];
    TRY(slice_spec(ox, &s));
    for (int i = 0; i < t.rank; i++) {
        sizes[i] = t.dim[i];
        steps[i] = 1;
    }
    for (int i = 0; i < s.nstarts; i++) {
        int k;
        int64_t r[3] = {0};
        TRY(ox_axis(ox, s.axes ? s.axes[i] : i, t.rank, &k));
        TRY(slice_axis(ox, t.dim[k], s.starts[i], s.ends[i],
                       s.steps ? s.steps[i] : 1, r));
        starts[k] = r[0];
        sizes[k] = r[1];
        steps[k] = r[2];
    }
    TRY(ox_slice(ox, x, starts, sizes, steps, &y));
    return ox_out(ox, 0, y);
}

/* ---- gather, pad, trilu -------------------------------------------------- */

/* padding_idx of PyTorch's embedding, which the ONNX op cannot express; -1:
   none. Example: aten.embedding.default](args = (%weight, %ids, 0), .. */
static int padding_of(const OxNode *n) {
    const char *s = ox_torch_node(n, "aten.embedding");
    for (int i = 0; i < 2 && s; i++)
        if ((s = strpbrk(s, ",)"))) s = *s == ',' ? s + 1 : NULL;
    return s && *s == ' ' && isdigit((unsigned char)s[1]) ? atoi(s + 1) : -1;
}

/* scale_grad_by_freq divides a row's gradient by how often the row is read. */
static bool scales_by_frequency(const OxNode *n) {
    Str s =
        ox_torch_node(n, "aten.embedding.") ? ox_torch_argument(n, 3) : NULL;
    return s && !strcmp(s, "True");
}

typedef struct Norm {
    double norm;
    const float *row;
} Norm;

static int by_norm(const void *a, const void *b) {
    double x = ((const Norm *)a)->norm, y = ((const Norm *)b)->norm;
    return (x > y) - (x < y);
}

/* The norms of a table's rows, in fp32, sorted. */
static Norm *norms_of(Arena *a, const OxInit *x, const Type *t) {
    Norm *all = NEW_ARRAY(a, Norm, (size_t)t->dim[0] + 1);
    for (int64_t i = 0; i < t->dim[0]; i++) {
        const float *row = (const float *)x->data->data + i * t->dim[1];
        double sum = 0;
        for (int64_t k = 0; k < t->dim[1]; k++)
            sum += (double)row[k] * (double)row[k];
        all[i] = (Norm){sqrt(sum), row};
    }
    qsort(all, (size_t)t->dim[0], sizeof *all, by_norm);
    return all;
}

/* Two different rows of the norm that a twentieth of all rows have. */
static bool rows_of_one_norm(const Norm *all, const Type *t, Norm out[2]) {
    int64_t n = t->dim[0], least = n / 20 > 2 ? n / 20 : 2;
    size_t bytes = (size_t)t->dim[1] * sizeof *all->row;
    for (int64_t i = 0; i + least <= n; i++) {
        const Norm *first = &all[i], *last = &all[i + least - 1];
        if (first->norm <= 0 || last->norm - first->norm > 1e-6 * first->norm ||
            !memcmp(first->row, last->row, bytes))
            continue;
        out[0] = *first;
        out[1] = *last;
        return true;
    }
    return false;
}

/* TorchScript drops max_norm, which leaves the rows that were too long with
   one norm. */
static void warn_of_max_norm(Ox *ox, const OxInit *x, const Type *t) {
    Norm of[2];
    const float *start = x->data->data;
    if (t->dtype != DT_F32 || t->dim[1] < 2) return;
    Arena *tmp = arena_new();
    if (rows_of_one_norm(norms_of(tmp, x, t), t, of))
        ox_warn_node(ox, ox->node,
                     "rows %" PRId64 " and %" PRId64 " of '%s' have the norm "
                     "%g, as max_norm leaves rows, and TorchScript loses "
                     "max_norm: no step shortens rows here",
                     (of[0].row - start) / t->dim[1],
                     (of[1].row - start) / t->dim[1], ox_quote(ox, x->name),
                     (double)(float)of[0].norm);
    arena_free(tmp);
}

/* TorchScript drops padding_idx, whose row is zeros before training. */
static void warn_of_rows(Ox *ox) {
    const OxName *name = ox_name_of(ox, ox->node->in[0]);
    if (!ox->is_torch || ox->has_signature || !name || name->kind != OX_INIT ||
        !options_train(ox->opt))
        return;
    const OxInit *x = &ox->inits.data[name->index];
    Type t = *type_get(x->data->type);
    if (!x->is_var || x->kind != VAR_PARAM || t.rank != 2) return;
    warn_of_max_norm(ox, x, &t);
    for (int64_t i = 0, n = 0; i < t.dim[0]; i++, n = 0) {
        while (n < t.dim[1] && tensor_get(x->data, i * t.dim[1] + n) == 0) n++;
        if (n < t.dim[1] || !n) continue;
        ox_warn_node(ox, ox->node,
                     "row %" PRId64 " of '%s' is zeros, as padding_idx leaves "
                     "it, and TorchScript loses padding_idx: it trains here; "
                     "dynamo=True, optimize=False keeps it",
                     i, ox_quote(ox, x->name));
        return;
    }
}

Status onnx_gather(Ox *ox) {
    ValueId in[2] = {ox_in(ox, 0), ox_in(ox, 1)}, y;
    int axis, padding = padding_of(ox->node);
    TRY(ox_axis(ox, ox_int(ox, "axis", 0), ox_type(ox, in[0]).rank, &axis));
    Attr attr = attr_i(AK_axis, axis);
    if (axis == 0) warn_of_rows(ox);
    if (options_train(ox->opt) && scales_by_frequency(ox->node))
        return ox_fail(ox,
                       "scale_grad_by_freq=True changes the gradient, which "
                       "no ONNX operator does: export without it");
    if (axis == 0 && padding >= 0) {
        attr = attr_named_i("unused", padding);
        TRY(ox_call(ox, "padded_rows", in, 2, &attr, 1, 1, &y));
    } else {
        TRY(ox_op(ox, OP_GATHER, in, 2, &attr, 1, &y));
    }
    return ox_out(ox, 0, y);
}

/* i == 0, 1, 2, ... along a new axis of length n */
static Status is_position(Ox *ox, ValueId i, int axis, int64_t n,
                          ValueId *out) {
    Type t = ox_type(ox, i);
    int64_t dim[MAX_RANK], along[MAX_RANK];
    if (t.rank == MAX_RANK || n > OX_MAX_FOLD)
        return ox_fail(ox, "%" PRId64 " classes at rank %d", n, t.rank);
    for (int k = 0; k <= t.rank; k++) {
        dim[k] = k == axis ? 1 : t.dim[k - (k > axis)];
        along[k] = k == axis ? n : 1;
    }
    TypeId type = type_make(DT_I64, t.rank + 1, along);
    EvalTensor *e = eval_tensor_new(ox->a, type);
    for (int64_t k = 0; k < n; k++) e->i[k] = k;
    ValueId iota;
    TRY(ox_const(ox, eval_to_tensor(ox->a, e, type), &iota));
    TRY(ox_reshape(ox, i, t.rank + 1, dim, &i));
    return ox2(ox, OP_EQUAL, i, iota, out);
}

/* Selects one of the two values [off, on]. */
static Status one_of_two(Ox *ox, ValueId v, int64_t which, ValueId *out) {
    int64_t size = 1, step = 1;
    TRY(ox_slice(ox, v, &which, &size, &step, out));
    return ox_reshape(ox, *out, 0, NULL, out);
}

Status onnx_one_hot(Ox *ox) {
    ValueId i = ox_in(ox, 0), v = ox_in(ox, 2), on, off, hit, y;
    Type t = ox_type(ox, i), tv = ox_type(ox, v);
    double depth;
    int axis;
    if (!ox_const_scalar(ox, ox_in(ox, 1), &depth))
        return ox_fail_unknown(ox, 1, "depth");
    if (!(depth >= 1 && depth <= (double)OX_MAX_FOLD))
        return ox_fail(ox, "a depth of %g", depth);
    if (tv.rank != 1 || tv.dim[0] != 2)
        return ox_fail(ox, "values must be [off, on]");
    TRY(ox_axis(ox, ox_int(ox, "axis", -1), t.rank + 1, &axis));
    TRY(ox_cast(ox, i, DT_I64, false, &i));
    TRY(ox_wrap_negative(ox, &i, ox_scalar(ox, DT_I64, depth)));
    TRY(is_position(ox, i, axis, (int64_t)depth, &hit));
    TRY(one_of_two(ox, v, 0, &off));
    TRY(one_of_two(ox, v, 1, &on));
    TRY(ox3(ox, OP_WHERE, hit, on, off, &y));
    return ox_out(ox, 0, y);
}

/* 1 at the first maximum, 0 elsewhere. Before opset 13 all axes from `axis`
   on were treated as one. */
Status onnx_hardmax(Ox *ox) {
    ValueId x = ox_in(ox, 0), y;
    Type t = ox_type(ox, x), r = t;
    int axis;
    bool flat = ox->node->version < 13;
    TRY(ox_axis(ox, ox_int(ox, "axis", flat ? 1 : -1), t.rank, &axis));
    if (flat) {
        r = (Type){.dtype = t.dtype, .rank = 2, .dim = {1, 1}};
        for (int k = 0; k < t.rank; k++) r.dim[k >= axis] *= t.dim[k];
        axis = 1;
    }
    TRY(ox_reshape(ox, x, r.rank, r.dim, &x));
    Attr attr[] = {attr_i(AK_axis, axis), attr_i(AK_keepdims, 0)};
    TRY(ox_op(ox, OP_ARGMAX, &x, 1, attr, 2, &y));
    TRY(is_position(ox, y, axis, r.dim[axis], &y));
    TRY(ox_cast(ox, y, t.dtype, false, &y));
    TRY(ox_reshape(ox, y, t.rank, t.dim, &y));
    return ox_out(ox, 0, y);
}

/* For every axis the beginnings, then the ends, from the operand or
   attribute. */
static Status read_pads(Ox *ox, int rank, int64_t *pads) {
    const int64_t *v, *axes;
    int n, naxes = -1;
    memset(pads, 0, 2 * MAX_RANK * sizeof *pads);
    if (ox->node->nin > 1) {
        TRY(ox_const_ints(ox, 1, "pads", &v, &n));
        TRY(ox_const_ints(ox, 3, "axes", &axes, &naxes));
    } else {
        n = ox_ints(ox, "pads", &v);
        if (n < 0) n = ox_ints(ox, "paddings", &v);
    }
    int count = naxes < 0 ? rank : naxes;
    if (n != 2 * count) return ox_fail(ox, "%d pads for %d axes", n, count);
    for (int i = 0; i < count; i++) {
        int k = i;
        if (naxes >= 0) TRY(ox_axis(ox, axes[i], rank, &k));
        for (int side = 0; side < 2; side++) {
            int64_t p = v[i + side * count];
            if (p > INT32_MAX || p < INT32_MIN)
                return ox_fail(ox, "a pad of %" PRId64, p);
            pads[k + side * rank] = p;
        }
    }
    return OK;
}

/* Negative pads crop. */
static Status crop(Ox *ox, ValueId *x, int64_t *pads) {
    Type t = ox_type(ox, *x);
    int64_t starts[MAX_RANK] = {0}, sizes[MAX_RANK], steps[MAX_RANK];
    for (int i = 0; i < t.rank; i++) {
        int64_t *begin = &pads[i], *end = &pads[i + t.rank];
        starts[i] = *begin < 0 ? -*begin : 0;
        sizes[i] = t.dim[i] - starts[i] + (*end < 0 ? *end : 0);
        steps[i] = 1;
        if (sizes[i] < 0)
            return ox_fail(ox, "pads crop more than axis %d has", i);
        if (*begin < 0) *begin = 0;
        if (*end < 0) *end = 0;
    }
    return ox_slice(ox, *x, starts, sizes, steps, x);
}

/* y, where x was padded, with a value of data where it was not. */
static Status fill_pads(Ox *ox, ValueId x, ValueId fill, const Attr *attr,
                        int nattr, ValueId *y) {
    ValueId inside = ox_scalar(ox, DT_F32, 1), zero = ox_scalar(ox, DT_F32, 0);
    Type t = ox_type(ox, x);
    TRY(ox_expand(ox, inside, t.rank, t.dim, &inside));
    TRY(ox_op(ox, OP_PAD, &inside, 1, attr, nattr, &inside));
    TRY(ox2(ox, OP_GREATER, inside, zero, &inside));
    TRY(ox_reshape(ox, fill, 0, NULL, &fill));
    return ox3(ox, OP_WHERE, inside, *y, fill, y);
}

Status onnx_pad(Ox *ox) {
    ValueId x = ox_in(ox, 0), fill = ox_in(ox, 2), y;
    int rank = ox_type(ox, x).rank;
    int64_t pads[2 * MAX_RANK];
    double value = ox_float(ox, "value", 0);
    Str mode = ox_str(ox, "mode", "constant");
    bool negative = false;
    TRY(read_pads(ox, rank, pads));
    bool of_data = is_value(fill) && !ox_const_scalar(ox, fill, &value);
    if (of_data && type_count(value_type(ox->g, fill)) != 1)
        return ox_fail(ox, "the pad value is %s", ox_type_text(ox, fill));
    for (int i = 0; i < 2 * rank; i++) negative |= pads[i] < 0;
    if (negative && strcmp(mode, "constant"))
        return ox_fail(ox, "negative pads with mode %s are not supported",
                       ox_quote(ox, mode));
    if (negative) TRY(crop(ox, &x, pads));
    Attr attr[] = {attr_v(AK_pads, pads, 2 * rank), attr_s(AK_mode, mode),
                   attr_f(AK_value, value)};
    TRY(ox_op(ox, OP_PAD, &x, 1, attr, 3, &y));
    if (of_data && !strcmp(mode, "constant"))
        TRY(fill_pads(ox, x, fill, attr, 3, &y));
    return ox_out(ox, 0, y);
}

/* Each axis is cut or padded with zeros at both ends; an odd element goes to
   the end.
 */
Status onnx_center_crop_pad(Ox *ox) {
    ValueId x = ox_in(ox, 0), y;
    Type t = ox_type(ox, x);
    int64_t pads[2 * MAX_RANK] = {0};
    const int64_t *size, *axes;
    int n, given = ox_ints(ox, "axes", &axes), axis;
    TRY(ox_const_ints(ox, 1, "shape", &size, &n));
    if (n != (given < 0 ? t.rank : given))
        return ox_fail(ox, "shape has %d entries", n);
    for (int i = 0; i < n; i++) {
        TRY(ox_axis(ox, given < 0 ? i : axes[i], t.rank, &axis));
        if (size[i] < 0) return ox_fail(ox, "a size of %" PRId64, size[i]);
        int64_t more = size[i] - t.dim[axis];
        pads[axis] = more / 2;
        pads[t.rank + axis] = more - more / 2;
    }
    TRY(crop(ox, &x, pads));
    Attr attr[] = {attr_v(AK_pads, pads, 2 * t.rank),
                   attr_s(AK_mode, "constant"), attr_f(AK_value, 0)};
    TRY(ox_op(ox, OP_PAD, &x, 1, attr, 3, &y));
    return ox_out(ox, 0, y);
}
