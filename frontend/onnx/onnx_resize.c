/* SPDX-License-Identifier: Apache-2.0 */
/* onnx_resize.c: Resize and Upsample.  Sizes are known, so each axis becomes
   a sum of a few gathers at known positions times known weights (cubic: Keys
   1981); axes are resized one after the other. */
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "frontend/onnx/onnx.h"

enum { MAX_TAPS = 256 };

typedef struct Resize {
    Str coordinate, mode, nearest;
    bool antialias, exclude_outside;
    double cubic_a, fill;
} Resize;

typedef struct Axis {
    int64_t in, out;
    double scale, start, end; /* start, end: the region, as parts from 0 to 1 */
    int taps;
    int64_t *at;     /* [taps][out], indices inside the operand */
    double *weight;  /* [taps][out]                     */
    int64_t *inside; /* [out]: 0 where the result is the fill value */
} Axis;

/* ---- one axis ------------------------------------------------------------ */

/* The position of result i between the operand's elements, by ONNX's rules
   for Resize; false if the mode is unknown. */
static bool position(const Resize *z, const Axis *a, int64_t i, double *x) {
    double n = (double)a->out, in = (double)a->in, at = (double)i;
    Str m = z->coordinate;
    if (!strcmp(m, "half_pixel")) {
        *x = (at + 0.5) / a->scale - 0.5;
    } else if (!strcmp(m, "half_pixel_symmetric")) {
        double adjust = n / (a->scale * in);
        *x = in / 2 * (1 - adjust) + (at + 0.5) / a->scale - 0.5;
    } else if (!strcmp(m, "pytorch_half_pixel")) {
        *x = n > 1 ? (at + 0.5) / a->scale - 0.5 : 0;
    } else if (!strcmp(m, "align_corners")) {
        *x = n > 1 ? at * (in - 1) / (n - 1) : 0;
    } else if (!strcmp(m, "asymmetric")) {
        *x = at / a->scale;
    } else if (!strcmp(m, "tf_half_pixel_for_nn")) {
        *x = (at + 0.5) / a->scale;
    } else if (!strcmp(m, "tf_crop_and_resize")) {
        *x = n > 1 ? a->start * (in - 1) +
                         at * (a->end - a->start) * (in - 1) / (n - 1)
                   : 0.5 * (a->start + a->end) * (in - 1);
    } else {
        return false;
    }
    return true;
}

static double cubic(double a, double x) {
    x = fabs(x);
    if (x <= 1) return ((a + 2) * x - (a + 3)) * x * x + 1;
    return x < 2 ? ((a * x - 5 * a) * x + 8 * a) * x - 4 * a : 0;
}

static double resize_weight_of(const Resize *z, double distance) {
    if (!strcmp(z->mode, "cubic")) return cubic(z->cubic_a, distance);
    return fabs(distance) < 1 ? 1 - fabs(distance) : 0;
}

static double nearest(const Resize *z, double x) {
    if (!strcmp(z->nearest, "floor")) return floor(x);
    if (!strcmp(z->nearest, "ceil")) return ceil(x);
    if (!strcmp(z->nearest, "round_prefer_ceil")) return floor(x + 0.5);
    return ceil(x - 0.5);
}

/* The taps of result i: elements around x, weighted by distance; with
   antialias the kernel is as wide as the step between results. */
static void fill_taps(const Resize *z, Axis *a, int64_t i, double x) {
    bool one = !strcmp(z->mode, "nearest");
    double wide = z->antialias && a->scale < 1 ? a->scale : 1, sum = 0;
    double first = one ? nearest(z, x) : ceil(x) - a->taps / 2;
    for (int k = 0; k < a->taps; k++) {
        double at = first + k,
               w = one ? 1 : resize_weight_of(z, (at - x) * wide);
        bool outside = at < 0 || at > (double)(a->in - 1);
        if (z->exclude_outside && outside) w = 0;
        at = at < 0 ? 0 : at > (double)(a->in - 1) ? (double)(a->in - 1) : at;
        a->at[k * a->out + i] = (int64_t)at;
        a->weight[k * a->out + i] = w;
        sum += w;
    }
    for (int k = 0; k < a->taps && sum != 0; k++)
        a->weight[k * a->out + i] /= sum;
    a->inside[i] = x >= 0 && x <= (double)(a->in - 1);
}

static Status make_axis(Ox *ox, const Resize *z, Axis *a) {
    double wide = z->antialias && a->scale < 1 ? a->scale : 1;
    double reach = !strcmp(z->mode, "cubic") ? 2 : 1;
    double taps =
        !strcmp(z->mode, "nearest") ? 1 : 2 - 2 * (floor(-reach / wide) + 1);
    if (!(taps >= 1 && taps <= MAX_TAPS) || a->in < 1)
        return ox_fail(ox, "a scale of %g on %" PRId64 " elements", a->scale,
                       a->in);
    a->taps = (int)taps;
    a->at = NEW_ARRAY(ox->a, int64_t, a->taps * a->out + 1);
    a->weight = NEW_ARRAY(ox->a, double, a->taps * a->out + 1);
    a->inside = NEW_ARRAY(ox->a, int64_t, a->out + 1);
    for (int64_t i = 0; i < a->out; i++) {
        double x;
        if (!position(z, a, i, &x))
            return ox_fail(ox, "coordinate_transformation_mode '%s' is unknown",
                           ox_quote(ox, z->coordinate));
        fill_taps(z, a, i, x);
    }
    return OK;
}

/* ---- the nodes of one axis ----------------------------------------------- */

/* Repeats every element n times: a copy, not a gather, so that its gradient is
   a sum.
 */
static bool repeats(const Axis *a) {
    if (a->taps != 1 || a->out % a->in) return false;
    for (int64_t i = 0; i < a->out; i++)
        if (a->at[i] != i / (a->out / a->in)) return false;
    return true;
}

static Status repeat(Ox *ox, ValueId *x, int axis, int64_t n) {
    Type t = ox_type(ox, *x), whole = t;
    int64_t dim[3] = {1, 1, 1};
    for (int k = 0; k < t.rank; k++) dim[k > axis ? 2 : 0] *= t.dim[k];
    whole.dim[axis] *= n;
    TRY(ox_reshape(ox, *x, 3, dim, x));
    dim[1] = n;
    TRY(ox_expand(ox, *x, 3, dim, x));
    return ox_reshape(ox, *x, t.rank, whole.dim, x);
}

/* Constants along one axis: [1, .., n, .., 1]. */
static Status along(Ox *ox, DType d, const double *f, const int64_t *i,
                    int axis, int rank, int64_t n, ValueId *out) {
    int64_t dim[MAX_RANK];
    for (int k = 0; k < rank; k++) dim[k] = k == axis ? n : 1;
    TypeId type = type_make(d, rank, dim);
    EvalTensor *e = eval_tensor_new(ox->a, type);
    for (int64_t k = 0; k < n; k++) {
        if (e->f)
            e->f[k] = f[k];
        else
            e->i[k] = i[k];
    }
    return ox_const(ox, eval_to_tensor(ox->a, e, type), out);
}

static Status tap(Ox *ox, const Axis *a, int k, ValueId x, int axis,
                  ValueId *y) {
    Type t = ox_type(ox, x);
    ValueId at, weight;
    Attr attr = attr_i(AK_axis, axis);
    bool weighs = false;
    TRY(ox_const_i64(ox, a->at + k * a->out, 1, a->out, &at));
    TRY(ox_op(ox, OP_GATHER, (ValueId[]){x, at}, 2, &attr, 1, y));
    for (int64_t i = 0; i < a->out; i++)
        weighs |= a->weight[k * a->out + i] != 1;
    if (!weighs) return OK;
    TRY(along(ox, dtype_compute(t.dtype, t.dtype), a->weight + k * a->out, NULL,
              axis, t.rank, a->out, &weight));
    return ox2(ox, OP_MUL, *y, weight, y);
}

static Status resize_axis(Ox *ox, const Resize *z, const Axis *a, int axis,
                          ValueId *x) {
    ValueId sum = NO_VALUE, term, mask;
    Type t = ox_type(ox, *x);
    if (repeats(a)) return repeat(ox, x, axis, a->out / a->in);
    for (int k = 0; k < a->taps; k++) {
        TRY(tap(ox, a, k, *x, axis, &term));
        if (!is_value(sum))
            sum = term;
        else
            TRY(ox2(ox, OP_ADD, sum, term, &sum));
    }
    if (!strcmp(z->coordinate, "tf_crop_and_resize")) {
        TRY(along(ox, DT_BOOL, NULL, a->inside, axis, t.rank, a->out, &mask));
        TRY(ox3(ox, OP_WHERE, mask, sum,
                ox_scalar(ox, ox_type(ox, sum).dtype, z->fill), &sum));
    }
    *x = sum;
    return OK;
}

/* ---- the operator -------------------------------------------------------- */

/* A list that is known, from an operand or an attribute; *n = -1: absent. */
static Status known_floats(Ox *ox, int operand, const char *what, double *v,
                           int *n) {
    ValueId x = ox_in(ox, operand);
    *n = -1;
    if (!is_value(x)) return OK;
    Type t = ox_type(ox, x);
    const Tensor *data = ox_data(ox, x);
    if (!data) return ox_fail_unknown(ox, operand, what);
    if (t.rank != 1 || t.dim[0] > 2 * MAX_RANK)
        return ox_fail(ox, "its %s must be a short list", what);
    const EvalTensor *e = eval_from_tensor(ox->a, data);
    for (int64_t i = 0; i < t.dim[0]; i++)
        v[i] = e->f ? e->f[i] : (double)e->i[i];
    *n = t.dim[0] ? (int)t.dim[0] : -1;
    return OK;
}

/* keep_aspect_ratio_policy: one scale for all axes. */
static Status keep_ratio(Ox *ox, Axis *axis, const int *which, int n) {
    Str policy = ox_str(ox, "keep_aspect_ratio_policy", "stretch");
    double scale = 0;
    if (!strcmp(policy, "stretch")) return OK;
    bool larger = !strcmp(policy, "not_smaller");
    if (!larger && strcmp(policy, "not_larger"))
        return ox_fail(ox, "keep_aspect_ratio_policy '%s' is unknown",
                       ox_quote(ox, policy));
    for (int i = 0; i < n; i++) {
        double s = axis[which[i]].scale;
        if (i == 0 || (larger ? s > scale : s < scale)) scale = s;
    }
    for (int i = 0; i < n; i++) {
        Axis *a = &axis[which[i]];
        a->scale = scale;
        a->out = (int64_t)floor(scale * (double)a->in + 0.5);
    }
    return OK;
}

static Status set_scale(Ox *ox, Axis *a, double scale, bool is_size) {
    double out = is_size ? scale : floor((double)a->in * scale);
    if (!(scale > 0) || !(out >= 0) || out > (double)OX_MAX_FOLD)
        return ox_fail(ox, "a %s of %g", is_size ? "size" : "scale", scale);
    a->out = (int64_t)out;
    a->scale = is_size ? scale / (double)a->in : scale;
    return OK;
}

/* Reads the resized axes and their new sizes. */
static Status read_axes(Ox *ox, int rank, Axis *axis) {
    bool old = ox->node->version < 11 || !strcmp(ox->node->type, "Upsample");
    double scales[2 * MAX_RANK], sizes[2 * MAX_RANK], roi[2 * MAX_RANK];
    const Onnx__AttributeProto *p = ox_attr(ox, "scales");
    const int64_t *v;
    int nscale, nsize = -1, nroi = -1, which[MAX_RANK];
    int n = ox_ints(ox, "axes", &v), count = n < 0 ? rank : n;
    TRY(known_floats(ox, old ? 1 : 2, "scales", scales, &nscale));
    if (!old) TRY(known_floats(ox, 1, "roi", roi, &nroi));
    if (!old) TRY(known_floats(ox, 3, "sizes", sizes, &nsize));
    if (p) nscale = p->n_floats < MAX_RANK ? (int)p->n_floats : MAX_RANK;
    for (int i = 0; p && i < nscale; i++) scales[i] = (double)p->floats[i];
    if (count > rank || (nsize < 0) == (nscale < 0) ||
        (nsize < 0 ? nscale : nsize) != count ||
        (nroi >= 0 && nroi != 2 * count))
        return ox_fail(ox, "scales or sizes do not fit the operand");
    for (int i = 0; i < count; i++) {
        which[i] = i;
        if (n >= 0) TRY(ox_axis(ox, v[i], rank, &which[i]));
        Axis *a = &axis[which[i]];
        TRY(set_scale(ox, a, nsize < 0 ? scales[i] : sizes[i], nsize >= 0));
        if (nroi < 0) continue;
        a->start = roi[i];
        a->end = roi[i + count];
    }
    return nsize < 0 ? OK : keep_ratio(ox, axis, which, count);
}

Status onnx_resize(Ox *ox) {
    ValueId x = ox_in(ox, 0);
    Type t = ox_type(ox, x);
    Axis axis[MAX_RANK];
    bool old = ox->node->version < 11 || !strcmp(ox->node->type, "Upsample");
    Resize z = {.coordinate = ox_str(ox, "coordinate_transformation_mode",
                                     old ? "asymmetric" : "half_pixel"),
                .mode = ox_str(ox, "mode", "nearest"),
                .nearest = ox_str(ox, "nearest_mode",
                                  old ? "floor" : "round_prefer_floor"),
                .antialias = ox_int(ox, "antialias", 0) != 0,
                .exclude_outside = ox_int(ox, "exclude_outside", 0) != 0,
                .cubic_a = ox_float(ox, "cubic_coeff_a", -0.75),
                .fill = ox_float(ox, "extrapolation_value", 0)};
    if (!strcmp(z.mode, "bilinear")) z.mode = intern("linear");
    if (strcmp(z.mode, "nearest") && strcmp(z.mode, "linear") &&
        strcmp(z.mode, "cubic"))
        return ox_fail(ox, "mode '%s' is unknown", ox_quote(ox, z.mode));
    for (int k = 0; k < t.rank; k++)
        axis[k] = (Axis){
            .in = t.dim[k], .out = t.dim[k], .scale = 1, .start = 0, .end = 1};
    TRY(read_axes(ox, t.rank, axis));
    for (int k = 0; k < t.rank; k++) {
        bool crop = axis[k].start != 0 || axis[k].end != 1;
        if (axis[k].out == axis[k].in && axis[k].scale == 1 && !crop) continue;
        TRY(make_axis(ox, &z, &axis[k]));
        TRY(resize_axis(ox, &z, &axis[k], k, &x));
    }
    TRY(ox_cast(ox, x, t.dtype, false, &x));
    return ox_out(ox, 0, x);
}
