/* SPDX-License-Identifier: Apache-2.0 */
/* onnx_nn.c: convolution and pooling. */
#include <inttypes.h>
#include <string.h>

#include "frontend/onnx/onnx.h"

enum { MAX_SPATIAL = 3 };

/* Windows over the spatial axes, every default written out. */
typedef struct Window {
    int n;
    int64_t in[MAX_SPATIAL], kernel[MAX_SPATIAL], stride[MAX_SPATIAL],
        dilation[MAX_SPATIAL], pads[2 * MAX_SPATIAL];
} Window;

static Status read_list(Ox *ox, const char *name, int n, int64_t low,
                        int64_t dflt, int64_t *out) {
    const int64_t *v;
    int given = ox_ints(ox, name, &v);
    if (given >= 0 && given != n)
        return ox_fail(ox, "%s has %d entries, needs %d", name, given, n);
    for (int i = 0; i < n; i++) {
        out[i] = given < 0 ? dflt : v[i];
        if (out[i] < low || out[i] > INT32_MAX)
            return ox_fail(ox, "%s[%d] is %" PRId64, name, i, out[i]);
    }
    return OK;
}

static int64_t extent(const Window *w, int i) {
    return (w->kernel[i] - 1) * w->dilation[i] + 1;
}

/* SAME: results = ceil(in / stride); an odd element of padding goes to the
   end (UPPER) or the beginning (LOWER). */
static void same_pads(Window *w, bool upper) {
    for (int i = 0; i < w->n; i++) {
        int64_t out = (w->in[i] + w->stride[i] - 1) / w->stride[i];
        int64_t all = (out - 1) * w->stride[i] + extent(w, i) - w->in[i];
        if (all < 0) all = 0;
        w->pads[i] = upper ? all / 2 : all - all / 2;
        w->pads[i + w->n] = all - w->pads[i];
    }
}

/* kernel: the weight's, or NULL for attribute kernel_shape. */
static Status read_window(Ox *ox, const Type *x, const int64_t *kernel,
                          Window *w) {
    w->n = x->rank - 2;
    if (w->n < 1 || w->n > MAX_SPATIAL)
        return ox_fail(ox,
                       "an operand of rank %d; 1 to %d spatial axes are "
                       "supported",
                       x->rank, MAX_SPATIAL);
    if (!kernel && !ox_attr(ox, "kernel_shape"))
        return ox_fail(ox, "attribute 'kernel_shape' is missing");
    TRY(read_list(ox, "kernel_shape", w->n, 1, 1, w->kernel));
    for (int i = 0; i < w->n; i++) {
        w->in[i] = x->dim[2 + i];
        if (w->in[i] > INT32_MAX)
            return ox_fail(ox, "spatial axis %d has %" PRId64 " elements", i,
                           w->in[i]);
        if (!kernel) continue;
        if (ox_attr(ox, "kernel_shape") && w->kernel[i] != kernel[i])
            return ox_fail(
                ox, "kernel_shape[%d] is %" PRId64 ", the weight has %" PRId64,
                i, w->kernel[i], kernel[i]);
        w->kernel[i] = kernel[i];
    }
    TRY(read_list(ox, "strides", w->n, 1, 1, w->stride));
    TRY(read_list(ox, "dilations", w->n, 1, 1, w->dilation));
    TRY(read_list(ox, "pads", 2 * w->n, 0, 0, w->pads));
    Str pad = ox_str(ox, "auto_pad", "NOTSET");
    if (!strncmp(pad, "SAME_", 5))
        same_pads(w, !strcmp(pad, "SAME_UPPER"));
    else if (!strcmp(pad, "VALID"))
        memset(w->pads, 0, sizeof w->pads);
    else if (strcmp(pad, "NOTSET") && *pad)
        return ox_fail(ox, "auto_pad '%s' is unknown", ox_quote(ox, pad));
    return OK;
}

/* ---- convolution --------------------------------------------------------- */

static Status add_bias(Ox *ox, ValueId bias, ValueId *y) {
    double k;
    Type t = ox_type(ox, *y), tb = ox_type(ox, bias);
    int64_t dim[MAX_RANK];
    if (value_is_splat(ox->g, bias, &k) && k == 0) return OK;
    if (tb.rank != 1 || tb.dim[0] != t.dim[1])
        return ox_fail(ox, "the bias must have one element per output "
                           "channel");
    for (int i = 0; i < t.rank - 1; i++) dim[i] = i ? 1 : t.dim[1];
    TRY(ox_reshape(ox, bias, t.rank - 1, dim, &bias));
    return ox2(ox, OP_ADD, *y, bias, y);
}

/* Of floats, or of i32: whole. */
static Status plain_conv(Ox *ox, const ValueId in[2], bool whole, ValueId *y) {
    Type x = ox_type(ox, in[0]), k = ox_type(ox, in[1]);
    Window w;
    if (k.rank != x.rank)
        return ox_fail(ox, "operand and weight differ in rank: %d and %d",
                       x.rank, k.rank);
    TRY(read_window(ox, &x, k.dim + 2, &w));
    Attr attr[] = {attr_v(AK_strides, w.stride, w.n),
                   attr_v(AK_pads, w.pads, 2 * w.n),
                   attr_v(AK_dilations, w.dilation, w.n),
                   attr_i(AK_group, ox_int(ox, "group", 1))};
    return whole ? ox_call(ox, "whole_conv", in, 2, attr, 4, 1, y)
                 : ox_op(ox, OP_CONV, in, 2, attr, 4, y);
}

static Status convolve(Ox *ox, const ValueId in[2], ValueId bias, ValueId *y) {
    TRY(plain_conv(ox, in, false, y));
    return is_value(bias) ? add_bias(ox, bias, y) : OK;
}

Status onnx_conv(Ox *ox) {
    ValueId in[2] = {ox_in(ox, 0), ox_in(ox, 1)}, y;
    TRY(convolve(ox, in, ox_in(ox, 2), &y));
    return ox_out(ox, 0, y);
}

/* Levels without their zero point, which for a weight may be one for each
   channel. */
static Status centred(Ox *ox, int x, int zero, ValueId *y) {
    ValueId z;
    TRY(ox_numbers(ox, ox_in(ox, x), y));
    TRY(ox_numbers(ox, ox_in(ox, zero), &z));
    if (!is_value(z)) return OK;
    Attr rank = attr_named_i("rank", ox_type(ox, *y).rank);
    TRY(ox_call(ox, "q_of_channels", &z, 1, &rank, 1, 1, &z));
    return ox2(ox, OP_SUB, *y, z, y);
}

/* Centres integers to which no floats were rounded, as i32. */
static Status centred_integers(Ox *ox, int x, int zero, ValueId *y) {
    ValueId z = ox_in(ox, zero);
    int64_t dim[MAX_RANK];
    TRY(ox_cast(ox, ox_in(ox, x), DT_I32, false, y));
    if (!is_value(z)) return OK;
    Type t = ox_type(ox, *y), tz = ox_type(ox, z);
    for (int k = 0; k < t.rank; k++) dim[k] = k ? 1 : type_count(&tz);
    TRY(ox_reshape(ox, z, t.rank, dim, &z));
    TRY(ox_cast(ox, z, DT_I32, false, &z));
    return ox2(ox, OP_SUB, *y, z, y);
}

/* ConvInteger. */
Status onnx_integer_conv(Ox *ox) {
    ValueId in[2], level[2], y;
    for (int i = 0; i < 2; i++) TRY(ox_levels(ox, ox_in(ox, i), &level[i]));
    if (!is_value(level[0]) && !is_value(level[1])) {
        TRY(centred_integers(ox, 0, 2, &in[0]));
        TRY(centred_integers(ox, 1, 3, &in[1]));
        TRY(plain_conv(ox, in, true, &y));
        return ox_out(ox, 0, y);
    }
    TRY(centred(ox, 0, 2, &in[0]));
    TRY(centred(ox, 1, 3, &in[1]));
    TRY(plain_conv(ox, in, false, &y));
    ox_warn_node(
        ox, ox->node,
        "its products are added up in fp32: results may be some units off");
    TRY(ox_whole(ox, y, DT_I32, &y));
    return ox_out(ox, 0, y);
}

/* QLinearConv: x, w and y with a scale and a zero point each, a bias with the
   scale of the products. */
Status onnx_levels_conv(Ox *ox) {
    ValueId in[2], bias, scale = ox_in(ox, 1), ws = ox_in(ox, 4), out[3], y;
    Attr range[2];
    DType d = ox_type(ox, ox_in(ox, 7)).dtype;
    if (!dtype_is_int(d) || dtype_info[d].bytes > 2)
        return ox_fail(ox, "a result of dtype %s", dtype_info[d].text);
    TRY(centred(ox, 0, 2, &in[0]));
    TRY(centred(ox, 3, 5, &in[1]));
    TRY(ox_numbers(ox, ox_in(ox, 8), &bias));
    TRY(convolve(ox, in, bias, &y));
    Attr at[] = {attr_named_i("rank", ox_type(ox, y).rank),
                 attr_named_i("at", 1)};
    TRY(ox_reshape(ox, scale, 0, NULL, &scale));
    TRY(ox_call(ox, "q_of_channels", &ws, 1, at, 2, 1, &ws));
    TRY(ox2(ox, OP_MUL, scale, ws, &scale));
    TRY(ox2(ox, OP_MUL, y, scale, &out[0]));
    for (int k = 0; k < 2; k++)
        TRY(ox_numbers(ox, ox_in(ox, 6 + k), &out[1 + k]));
    TRY(ox_call(ox, "q_level", out, 3, range, ox_range(d, range), 1, &y));
    TRY(ox_whole(ox, y, d, &y));
    return ox_out(ox, 0, y);
}

/* Moves the channels from the last axis to axis 1, or back. */
static Status move_channels(Ox *ox, bool back, ValueId *x) {
    int n = ox_type(ox, *x).rank;
    int64_t perm[MAX_RANK] = {0};
    if (n < 3) return ox_fail(ox, "an operand of rank %d", n);
    for (int i = 1; i < n; i++)
        perm[i] = back ? i == n - 1 ? 1 : i + 1 : i == 1 ? n - 1 : i - 1;
    return ox_transpose(ox, *x, perm, x);
}

/* ONNX Runtime: a convolution, the sum with operand 3, an activation. */
Status onnx_fused_conv(Ox *ox) {
    ValueId in[2] = {ox_in(ox, 0), ox_in(ox, 1)}, more = ox_in(ox, 3), y;
    bool last = !strncmp(ox->node->type, "Nhwc", 4);
    for (int i = 0; last && i < 2; i++) TRY(move_channels(ox, false, &in[i]));
    TRY(convolve(ox, in, ox_in(ox, 2), &y));
    if (last) TRY(move_channels(ox, true, &y));
    if (is_value(more)) TRY(ox2(ox, OP_ADD, y, more, &y));
    const Onnx__AttributeProto *p = ox_attr(ox, "activation_params");
    Attr attr[3] = {
        attr_s(attr_key("kind", ATTR_STR), ox_str(ox, "activation", ""))};
    static const char *const key[] = {"first", "second"};
    int n = 1;
    for (size_t i = 0; p && i < p->n_floats && i < 2; i++)
        attr[n++] = attr_named_f(key[i], (double)p->floats[i]);
    if (*attr[0].u.s) TRY(ox_call(ox, "ms_activation", &y, 1, attr, n, 1, &y));
    return ox_out(ox, 0, y);
}

static int pool_numbers(const OxNode *pool, const char *name,
                        const int64_t **v) {
    for (int i = 0; i < pool->nattr; i++)
        if (!strcmp(pool->attr[i].name, name)) {
            *v = pool->attr[i].p->ints;
            return (int)pool->attr[i].p->n_ints;
        }
    return 0;
}

/* False if the indices are known to be a MaxPool's whose windows have no
   element in common. */
static bool may_name_one_place_twice(const Ox *ox) {
    const OxNode *pool = ox_maker(ox, ox->node->in[1], "MaxPool");
    const int64_t *size, *step, *gap;
    if (!pool) return true;
    int n = pool_numbers(pool, "kernel_shape", &size);
    int steps = pool_numbers(pool, "strides", &step);
    int gaps = pool_numbers(pool, "dilations", &gap);
    for (int k = 0; k < n; k++) {
        int64_t span = (k < gaps ? gap[k] : 1) * (size[k] - 1) + 1;
        if ((k < steps ? step[k] : 1) < span) return true;
    }
    return false;
}

/* True if the result has the shape from which MaxPool took the maxima, so that
   the indices count its elements. */
static bool has_shape_of_pooled(Ox *ox, const int64_t *dim, int n) {
    const OxNode *pool = ox_maker(ox, ox->node->in[1], "MaxPool");
    if (!pool || n < 0) return false;
    Type t = ox_type(ox, ox_name_of(ox, pool->in[0])->value);
    return t.rank == n && !memcmp(t.dim, dim, (size_t)n * sizeof *dim);
}

Status onnx_max_unpool(Ox *ox) {
    ValueId in[] = {ox_in(ox, 0), ox_in(ox, 1)}, y;
    Attr attr[MAX_OP_ATTRS];
    const int64_t *sizes;
    int n, rank;
    TRY(ox_mapped(ox, attr, &n));
    TRY(ox_const_ints(ox, 2, "output_shape", &sizes, &rank));
    attr[n++] = attr_named_i("of_result", has_shape_of_pooled(ox, sizes, rank));
    attr[n++] = attr_named_i("shared", may_name_one_place_twice(ox));
    TRY(ox_call(ox, ox->node->op->fn, in, 2, attr, n, 1, &y));
    return ox_out(ox, 0, y);
}

/* A transposed convolution is the gradient of a convolution with respect to
   its input: here x is the convolution's result, y its operand. */
static Status transposed_sizes(Ox *ox, Window *w, int64_t *size) {
    const int64_t *want;
    int64_t extra[MAX_SPATIAL];
    Str pad = ox_str(ox, "auto_pad", "NOTSET");
    bool same = !strncmp(pad, "SAME_", 5);
    int given = ox_ints(ox, "output_shape", &want);
    TRY(read_list(ox, "output_padding", w->n, 0, 0, extra));
    if (given >= 0 && given != w->n)
        return ox_fail(ox, "output_shape has %d entries, needs %d", given,
                       w->n);
    for (int i = 0; i < w->n; i++) {
        int64_t *p = w->pads, s = w->stride[i];
        int64_t whole = s * (w->in[i] - 1) + extra[i] + extent(w, i);
        size[i] = whole - p[i] - p[i + w->n];
        if (given < 0 && !same) continue;
        size[i] = given < 0 ? w->in[i] * s : want[i];
        int64_t cut = whole - size[i];
        if (cut < 0) cut = 0; /* more at the end; the core checks how much */
        p[i] = strcmp(pad, "SAME_UPPER") ? cut - cut / 2 : cut / 2;
        p[i + w->n] = cut - p[i];
    }
    return OK;
}

/* The core op's result may extend beyond its last window by less than a
   stride. A larger result means less padding at the end, then rows that no
   window reaches. */
static void split_surplus(Window *w, int64_t *size, int64_t *zeros) {
    for (int i = 0; i < w->n; i++) {
        int64_t *end = &w->pads[i + w->n];
        int64_t surplus = size[i] - w->stride[i] * (w->in[i] - 1) -
                          extent(w, i) + w->pads[i] + *end;
        zeros[i] = 0;
        if (surplus < w->stride[i]) continue;
        int64_t less = surplus < *end ? surplus : *end;
        *end -= less;
        surplus -= less;
        if (surplus < w->stride[i]) continue;
        zeros[i] = surplus;
        size[i] -= surplus;
    }
}

static Status append_zeros(Ox *ox, ValueId *y, const int64_t *zeros, int n) {
    int64_t pads[2 * MAX_RANK] = {0};
    bool any = false;
    int rank = n + 2;
    for (int i = 0; i < n; i++) {
        pads[rank + 2 + i] = zeros[i];
        any |= zeros[i] != 0;
    }
    Attr attr[] = {attr_v(AK_pads, pads, 2 * rank), attr_s(AK_mode, "constant"),
                   attr_f(AK_value, 0)};
    return any ? ox_op(ox, OP_PAD, y, 1, attr, 3, y) : OK;
}

Status onnx_conv_transpose(Ox *ox) {
    ValueId in[2] = {ox_in(ox, 0), ox_in(ox, 1)}, bias = ox_in(ox, 2), y;
    Type x = ox_type(ox, in[0]), k = ox_type(ox, in[1]);
    int64_t shape[MAX_RANK], zeros[MAX_SPATIAL];
    int64_t group = ox_int(ox, "group", 1);
    Window w;
    if (k.rank != x.rank)
        return ox_fail(ox, "operand and weight differ in rank: %d and %d",
                       x.rank, k.rank);
    TRY(read_window(ox, &x, k.dim + 2, &w));
    TRY(transposed_sizes(ox, &w, shape + 2));
    split_surplus(&w, shape + 2, zeros);
    shape[0] = x.dim[0];
    if (group < 1 || !mul_ok(k.dim[1], group, &shape[1]))
        return ox_fail(ox, "%" PRId64 " groups", group);
    Attr attr[] = {
        attr_v(AK_shape, shape, x.rank), attr_v(AK_strides, w.stride, w.n),
        attr_v(AK_pads, w.pads, 2 * w.n), attr_v(AK_dilations, w.dilation, w.n),
        attr_i(AK_group, group)};
    TRY(ox_op(ox, OP_CONV_DGRAD, in, 2, attr, 5, &y));
    TRY(append_zeros(ox, &y, zeros, w.n));
    if (is_value(bias)) TRY(add_bias(ox, bias, &y));
    return ox_out(ox, 0, y);
}

/* ---- pools --------------------------------------------------------------- */

/* With ceil_mode a window may extend beyond the end, but must not start
   there. */
static Status pool_sizes(Ox *ox, const Window *w, int64_t *sizes) {
    bool ceil_mode = ox_int(ox, "ceil_mode", 0) != 0;
    for (int i = 0; i < w->n; i++) {
        int64_t all = w->in[i] + w->pads[i] + w->pads[i + w->n];
        int64_t room = all - extent(w, i), s = w->stride[i];
        if (room < 0 && !(ceil_mode && room > -s))
            return ox_fail(
                ox, "a window of %" PRId64 " on %" PRId64 " padded elements",
                extent(w, i), all);
        sizes[i] = (ceil_mode ? room + s - 1 : room) / s + 1;
        if ((sizes[i] - 1) * s >= w->in[i] + w->pads[i]) sizes[i]--;
        if (sizes[i] < 1)
            return ox_fail(ox, "an empty result along spatial axis %d", i);
    }
    return OK;
}

static Status read_pool(Ox *ox, ValueId x, Window *w, int64_t *sizes,
                        Attr *attr) {
    Type t = ox_type(ox, x);
    TRY(read_window(ox, &t, NULL, w));
    TRY(pool_sizes(ox, w, sizes));
    attr[0] = attr_v(AK_kernel_shape, w->kernel, w->n);
    attr[1] = attr_v(AK_strides, w->stride, w->n);
    attr[2] = attr_v(AK_pads, w->pads, 2 * w->n);
    attr[3] = attr_v(AK_dilations, w->dilation, w->n);
    attr[4] = attr_v(AK_sizes, sizes, w->n);
    return OK;
}

Status onnx_max_pool(Ox *ox) {
    ValueId x = ox_in(ox, 0), out[2], idx, level = NO_VALUE;
    Window w;
    int64_t sizes[MAX_SPATIAL];
    Attr attr[6];
    DType d = ox_type(ox, x).dtype;
    TRY(read_pool(ox, x, &w, sizes, attr));
    if (!dtype_is_float(d)) {
        TRY(ox_levels(ox, x, &level));
        if (is_value(level))
            x = level;
        else
            TRY(ox_cast(ox, x, DT_F64, false, &x));
    }
    TRY(ox_opn(ox, OP_MAX_POOL, &x, 1, attr, 5, 2, NULL, out));
    if (is_value(level))
        TRY(ox_whole(ox, out[0], d, &out[0]));
    else
        TRY(ox_cast(ox, out[0], d, false, &out[0]));
    TRY(ox_out(ox, 0, out[0]));
    if (!ox_has_out(ox, 1)) return OK;
    Type t = ox_type(ox, x);
    attr[4] = attr_v(AK_shape, t.dim, t.rank); /* instead of sizes */
    attr[5] = attr_named_i("by_columns", ox_int(ox, "storage_order", 0) != 0);
    TRY(ox_call(ox, "pool_positions", &out[1], 1, attr, 6, 1, &idx));
    return ox_out(ox, 1, idx);
}

static Status average(Ox *ox, ValueId x, ValueId *y) {
    Window w;
    int64_t sizes[MAX_SPATIAL];
    Attr attr[6];
    TRY(read_pool(ox, x, &w, sizes, attr));
    /* PyTorch's exporter omits divisor_override */
    double divisor = ox_torch_number(ox->node, "aten.avg_pool", 6, 0), area = 1;
    for (int i = 0; i < w.n; i++) area *= (double)w.kernel[i];
    if (divisor && ox_int(ox, "ceil_mode", 0))
        return ox_fail(ox,
                       "the model divides by divisor_override=%g, which the "
                       "file has not, and ceil_mode has smaller windows",
                       divisor);
    attr[5] = attr_i(AK_count_include_pad,
                     divisor || ox_int(ox, "count_include_pad", 0) != 0);
    TRY(ox_op(ox, OP_AVG_POOL, &x, 1, attr, 6, y));
    return divisor ? ox2k(ox, OP_MUL, *y, area / divisor, y) : OK;
}

Status onnx_average_pool(Ox *ox) {
    ValueId y;
    TRY(average(ox, ox_in(ox, 0), &y));
    return ox_out(ox, 0, y);
}

Status onnx_levels_average_pool(Ox *ox) {
    ValueId in[3], y;
    Attr range[2];
    DType d = ox_type(ox, ox_in(ox, 0)).dtype;
    bool last = ox_int(ox, "channels_last", 0) != 0;
    if (!dtype_is_int(d) || dtype_info[d].bytes > 1)
        return ox_fail(ox, "an operand of dtype %s", dtype_info[d].text);
    for (int k = 0; k < 3; k++) TRY(ox_numbers(ox, ox_in(ox, k), &in[k]));
    TRY(ox_call(ox, "q_real", in, 3, NULL, 0, 1, &in[0]));
    if (last) TRY(move_channels(ox, false, &in[0]));
    TRY(average(ox, in[0], &in[0]));
    if (last) TRY(move_channels(ox, true, &in[0]));
    for (int k = 1; k < 3; k++) TRY(ox_numbers(ox, ox_in(ox, 2 + k), &in[k]));
    TRY(ox_call(ox, "q_level", in, 3, range, ox_range(d, range), 1, &y));
    TRY(ox_whole(ox, y, d, &y));
    return ox_out(ox, 0, y);
}

/* A window that extends beyond the end reads zeros there. */
Status onnx_lp_pool(Ox *ox) {
    ValueId x = ox_in(ox, 0), y;
    Window w;
    int64_t sizes[MAX_SPATIAL];
    Attr attr[6];
    TRY(read_pool(ox, x, &w, sizes, attr));
    for (int i = 0; i < w.n; i++) {
        int64_t end = (sizes[i] - 1) * w.stride[i] + extent(&w, i) - w.in[i];
        if (end - w.pads[i] > w.pads[w.n + i])
            w.pads[w.n + i] = end - w.pads[i];
    }
    attr[5] = attr_named_i("p", ox_int(ox, "p", 2));
    TRY(ox_call(ox, ox->node->op->fn, &x, 1, attr, 6, 1, &y));
    return ox_out(ox, 0, y);
}

Status onnx_global_pool(Ox *ox) {
    ValueId x = ox_in(ox, 0), y = x;
    int rank = ox_type(ox, x).rank;
    int64_t axes[MAX_RANK];
    if (rank < 2) return ox_fail(ox, "an operand of rank %d", rank);
    for (int i = 2; i < rank; i++) axes[i - 2] = i;
    if (rank > 2)
        TRY(ox_reduce(ox, ox->node->op->core, x, axes, rank - 2, true, &y));
    return ox_out(ox, 0, y);
}
