/* SPDX-License-Identifier: Apache-2.0 */
/* onnx_shape.c: constants, shapes, and ops that only reinterpret or repeat
   elements. */
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "frontend/onnx/onnx.h"

/* ---- constants ----------------------------------------------------------- */

static Status constant_of(Ox *ox, const Onnx__AttributeProto *p, Str key) {
    const Tensor *t = NULL;
    Tensor *made = NEW(ox->a, Tensor);
    int64_t ni = (int64_t)p->n_ints, nf = (int64_t)p->n_floats;
    ValueId v;
    if (!strcmp(key, "value")) {
        TRY(ox_tensor(ox, p->t, ox->node->name, &t));
    } else if (!strcmp(key, "value_int")) {
        *made = (Tensor){type_scalar(DT_I64), arena_dup(ox->a, &p->i, 8)};
    } else if (!strcmp(key, "value_float")) {
        *made = (Tensor){type_scalar(DT_F32), arena_dup(ox->a, &p->f, 4)};
    } else if (!strcmp(key, "value_ints")) {
        *made = (Tensor){type_make(DT_I64, 1, &ni),
                         arena_dup(ox->a, p->ints, (size_t)ni * 8)};
    } else if (!strcmp(key, "value_floats")) {
        *made = (Tensor){type_make(DT_F32, 1, &nf),
                         arena_dup(ox->a, p->floats, (size_t)nf * 4)};
    } else {
        return ox_fail(ox, "%s is not supported", key);
    }
    TRY(ox_const(ox, t ? t : made, &v));
    return ox_out(ox, 0, v);
}

Status onnx_constant(Ox *ox) {
    if (ox->node->nattr != 1)
        return ox_fail(ox, "needs exactly one attribute, has %d",
                       ox->node->nattr);
    return constant_of(ox, ox->node->attr[0].p, ox->node->attr[0].name);
}

Status onnx_constant_of_shape(Ox *ox) {
    const int64_t *dim;
    int rank;
    const Tensor *t = NULL;
    double value = 0;
    DType d = DT_F32;
    TypeId type;
    ValueId y;
    TRY(ox_const_ints(ox, 0, "shape", &dim, &rank));
    if (ox_attr(ox, "value")) {
        TRY(ox_tensor(ox, ox_attr(ox, "value")->t, ox->node->name, &t));
        const EvalTensor *e = eval_from_tensor(ox->a, t);
        if (type_count(type_get(t->type)) != 1)
            return ox_fail(ox, "attribute 'value' must have one element");
        d = type_get(t->type)->dtype;
        value = e->f ? e->f[0] : (double)e->i[0];
    }
    TRY(ox_type_make(ox, "its result", d, rank, dim, &type));
    Attr attr = attr_f(AK_value, value);
    TRY(ox_opn(ox, OP_FULL, NULL, 0, &attr, 1, 1, &type, &y));
    return ox_out(ox, 0, y);
}

/* The identity matrix, possibly with another diagonal. */
Status onnx_eye_like(Ox *ox) {
    Type t = ox_type(ox, ox_in(ox, 0));
    int64_t k = ox_int(ox, "k", 0), code = ox_int(ox, "dtype", 0);
    DType d = t.dtype;
    ValueId y;
    if (ox_attr(ox, "dtype"))
        TRY(ox_dtype(ox, code < 0 || code > 1000 ? -1 : (int)code,
                     "attribute dtype", &d));
    if (t.rank != 2 || type_count(&t) > OX_MAX_FOLD)
        return ox_fail(
            ox, "the operand must be a matrix of at most %" PRId64 " elements",
            OX_MAX_FOLD);
    TypeId type = type_make(d, 2, t.dim);
    EvalTensor *e = eval_tensor_new(ox->a, type);
    int64_t rows = t.dim[1] ? t.dim[0] : 0; /* none if empty */
    for (int64_t i = 0; i < rows; i++) {
        int64_t j;
        if (!add_ok(i, k, &j) || j < 0 || j >= t.dim[1]) continue;
        if (e->f)
            e->f[i * t.dim[1] + j] = 1;
        else
            e->i[i * t.dim[1] + j] = 1;
    }
    TRY(ox_const(ox, eval_to_tensor(ox->a, e, type), &y));
    return ox_out(ox, 0, y);
}

/* Number of elements of a range; -1: invalid range. */
static int64_t range_count(double start, double limit, double delta) {
    double n = ceil((limit - start) / delta);
    if (!(n > 0)) return n <= 0 ? 0 : -1;
    return n > (double)OX_MAX_FOLD ? -1 : (int64_t)n;
}

static Status range_operands(Ox *ox, const EvalTensor *v[3], DType *d) {
    for (int i = 0; i < 3; i++) {
        const Tensor *t = ox_data(ox, ox_in(ox, i));
        if (!t) return ox_fail_unknown(ox, i, "shape");
        if (type_count(type_get(t->type)) != 1)
            return ox_fail(ox, "operand %d must be a scalar", i);
        *d = type_get(t->type)->dtype;
        v[i] = eval_from_tensor(ox->a, t);
        if (!v[i]->f != !v[0]->f)
            return ox_fail(ox, "operands must have one element type");
    }
    return OK;
}

static double shape_number(const EvalTensor *e) {
    return e->f ? e->f[0] : (double)e->i[0];
}

Status onnx_range(Ox *ox) {
    const EvalTensor *v[3];
    DType d = DT_I64;
    ValueId y;
    TRY(range_operands(ox, v, &d));
    int64_t n =
        range_count(shape_number(v[0]), shape_number(v[1]), shape_number(v[2]));
    if (shape_number(v[2]) == 0) return ox_fail(ox, "delta is 0");
    if (n < 0)
        return ox_fail(ox, "a range from %g to %g by %g is too long",
                       shape_number(v[0]), shape_number(v[1]),
                       shape_number(v[2]));
    TypeId type = type_make(d, 1, &n);
    EvalTensor *e = eval_tensor_new(ox->a, type);
    for (int64_t i = 0; i < n; i++) {
        if (e->f)
            e->f[i] = v[0]->f[0] + (double)i * v[2]->f[0];
        else
            e->i[i] = v[0]->i[0] + i * v[2]->i[0];
    }
    TRY(ox_const(ox, eval_to_tensor(ox->a, e, type), &y));
    return ox_out(ox, 0, y);
}

static int64_t clamp(int64_t v, int64_t rank) {
    if (v < 0) v = v < -rank ? 0 : v + rank;
    return v > rank ? rank : v;
}

Status onnx_shape(Ox *ox) {
    Type t = ox_type(ox, ox_in(ox, 0));
    int64_t start = clamp(ox_int(ox, "start", 0), t.rank);
    int64_t end = clamp(ox_int(ox, "end", t.rank), t.rank);
    ValueId y;
    TRY(ox_const_i64(ox, t.dim + start, 1, end > start ? end - start : 0, &y));
    return ox_out(ox, 0, y);
}

Status onnx_size(Ox *ox) {
    Type t = ox_type(ox, ox_in(ox, 0));
    int64_t n = type_count(&t);
    ValueId y;
    TRY(ox_const_i64(ox, &n, 0, 1, &y));
    return ox_out(ox, 0, y);
}

/* ---- other shape, same elements ------------------------------------------ */

Status onnx_identity(Ox *ox) { return ox_out_name(ox, 0, ox->node->in[0]); }

/* An optional value is its tensor, or an operand that is not given. */
Status onnx_has_element(Ox *ox) {
    ValueId y;
    Tensor *t = NEW(ox->a, Tensor);
    t->type = type_make(DT_BOOL, 0, NULL);
    t->data = arena_alloc(ox->a, 1);
    *(bool *)t->data = is_value(ox_in(ox, 0));
    TRY(ox_const(ox, t, &y));
    return ox_out(ox, 0, y);
}

/* 0 copies a dimension; -1 follows from the other dimensions. */
static Status reshape_dims(Ox *ox, const Type *t, const int64_t *want, int n,
                           bool allowzero, int64_t *dim) {
    int64_t known = 1, total = type_count(t);
    int infer = -1;
    if (n > MAX_RANK)
        return ox_fail(ox, "its shape has rank %d; at most %d", n, MAX_RANK);
    for (int i = 0; i < n; i++) {
        dim[i] = want[i];
        if (want[i] == 0 && !allowzero) {
            if (i >= t->rank)
                return ox_fail(ox,
                               "0 at position %d of its shape copies a "
                               "dimension that the operand lacks",
                               i);
            dim[i] = t->dim[i];
        }
        if (want[i] < -1)
            return ox_fail(ox, "dimension %d of its shape is %" PRId64, i,
                           want[i]);
        if (want[i] == -1) {
            if (infer >= 0) return ox_fail(ox, "its shape has two -1");
            infer = i;
        } else if (!mul_ok(known, dim[i], &known)) {
            return ox_fail(ox, "its shape is too large");
        }
    }
    if (infer >= 0) {
        if (known == 0 || total % known)
            return ox_fail(ox,
                           "%" PRId64 " elements do not divide into %" PRId64,
                           total, known);
        dim[infer] = total / known;
        known *= dim[infer];
    }
    if (known != total)
        return ox_fail(ox,
                       "%" PRId64 " elements cannot take a shape of %" PRId64,
                       total, known);
    return OK;
}

/* Exporters swap the last two axes of [.., a, b] through three axes: [n, a,
   b], [n, b, a], [.., b, a]. Returns x of such a chain, or NO_VALUE. */
static ValueId swapped(const Ox *ox, ValueId v, const int64_t *dim, int rank) {
    const Node *t = ox_def(ox, v, OP_TRANSPOSE);
    const Node *r = t ? ox_def(ox, t->in[0], OP_RESHAPE) : NULL;
    const int64_t *perm;
    if (!r || attr_ints(t, AK_perm, &perm) != 3 || perm[0] != 0 || perm[1] != 2)
        return NO_VALUE;
    Type x = ox_type(ox, r->in[0]), mid = ox_type(ox, t->in[0]);
    if (x.rank != rank || rank < 3 || x.dim[rank - 1] != mid.dim[2] ||
        x.dim[rank - 2] != mid.dim[1] || dim[rank - 1] != mid.dim[1] ||
        dim[rank - 2] != mid.dim[2])
        return NO_VALUE;
    for (int i = 0; i < rank - 2; i++)
        if (x.dim[i] != dim[i]) return NO_VALUE;
    return r->in[0];
}

Status onnx_reshape(Ox *ox) {
    ValueId x = ox_in(ox, 0), y;
    Type t = ox_type(ox, x);
    const int64_t *want;
    int64_t dim[MAX_RANK];
    int n;
    if (ox->node->nin > 1)
        TRY(ox_const_ints(ox, 1, "shape", &want, &n));
    else
        n = ox_ints(ox, "shape", &want);
    if (n < 0) return ox_fail(ox, "its shape is missing");
    TRY(reshape_dims(ox, &t, want, n, ox_int(ox, "allowzero", 0) != 0, dim));
    ValueId from = swapped(ox, x, dim, n);
    if (!is_value(from)) {
        TRY(ox_reshape(ox, x, n, dim, &y));
        return ox_out(ox, 0, y);
    }
    int rank = ox_type(ox, from).rank;
    int64_t perm[MAX_RANK];
    for (int i = 0; i < rank; i++) perm[i] = i;
    perm[rank - 2] = rank - 1;
    perm[rank - 1] = rank - 2;
    TRY(ox_transpose(ox, from, perm, &y));
    return ox_out(ox, 0, y);
}

Status onnx_flatten(Ox *ox) {
    ValueId x = ox_in(ox, 0), y;
    Type t = ox_type(ox, x);
    int64_t axis = ox_int(ox, "axis", 1), dim[2] = {1, 1};
    if (axis < -t.rank || axis > t.rank)
        return ox_fail(ox, "axis %" PRId64 " is out of range for rank %d", axis,
                       t.rank);
    if (axis < 0) axis += t.rank;
    for (int i = 0; i < t.rank; i++) dim[i >= axis] *= t.dim[i];
    TRY(ox_reshape(ox, x, 2, dim, &y));
    return ox_out(ox, 0, y);
}

Status onnx_squeeze(Ox *ox) {
    ValueId x = ox_in(ox, 0), y;
    Type t = ox_type(ox, x);
    int64_t axes[MAX_RANK], dim[MAX_RANK];
    int n, rank = 0, k = 0;
    TRY(ox_axes(ox, ox->node->nin > 1, t.rank, axes, &n));
    for (int i = 0; i < t.rank; i++) {
        bool drop = n < 0 ? t.dim[i] == 1 : k < n && axes[k] == i;
        if (drop && n >= 0) k++;
        if (drop && t.dim[i] != 1)
            return ox_fail(ox, "dimension %d is %" PRId64 ", not 1", i,
                           t.dim[i]);
        if (!drop) dim[rank++] = t.dim[i];
    }
    TRY(ox_reshape(ox, x, rank, dim, &y));
    return ox_out(ox, 0, y);
}

Status onnx_unsqueeze(Ox *ox) {
    ValueId x = ox_in(ox, 0), y;
    Type t = ox_type(ox, x);
    const int64_t *v;
    int64_t axes[MAX_RANK], dim[MAX_RANK];
    int n, k = 0, from = 0;
    bool from_input = ox->node->nin > 1;
    if (from_input)
        TRY(ox_const_ints(ox, 1, "axes", &v, &n));
    else
        n = ox_ints(ox, "axes", &v);
    if (n < 0) return ox_fail(ox, "axes are missing");
    if (t.rank + n > MAX_RANK)
        return ox_fail(ox, "a result of rank %d; at most %d", t.rank + n,
                       MAX_RANK);
    TRY(ox_axes(ox, from_input, t.rank + n, axes, &n));
    for (int i = 0; i < t.rank + n; i++) {
        bool added = k < n && axes[k] == i;
        dim[i] = added ? 1 : t.dim[from++];
        k += added;
    }
    TRY(ox_reshape(ox, x, t.rank + n, dim, &y));
    return ox_out(ox, 0, y);
}

/* ---- order and repetition ------------------------------------------------ */

/* Negative entries are not valid ONNX, but TorchScript writes them (Mamba2). */
Status onnx_transpose(Ox *ox) {
    ValueId x = ox_in(ox, 0), y;
    int rank = ox_type(ox, x).rank;
    const int64_t *v;
    int64_t perm[MAX_RANK];
    bool seen[MAX_RANK] = {0};
    int n = ox_ints(ox, "perm", &v);
    if (n >= 0 && n != rank)
        return ox_fail(ox, "perm has %d entries for rank %d", n, rank);
    for (int i = 0; i < rank; i++) {
        perm[i] = n < 0 ? rank - 1 - i : v[i] + (v[i] < 0 ? rank : 0);
        if (perm[i] < 0 || perm[i] >= rank || seen[perm[i]])
            return ox_fail(ox, "perm is not a permutation");
        seen[perm[i]] = true;
    }
    TRY(ox_transpose(ox, x, perm, &y));
    return ox_out(ox, 0, y);
}

Status onnx_expand(Ox *ox) {
    ValueId x = ox_in(ox, 0), y;
    Type t = ox_type(ox, x), want = {0}, to = {0};
    const int64_t *v;
    int n;
    TypeId checked;
    TRY(ox_const_ints(ox, 1, "shape", &v, &n));
    TRY(ox_type_make(ox, "its shape", DT_F32, n, v, &checked));
    want = *type_get(checked);
    if (!shape_broadcast(&t, &want, &to))
        return ox_fail(ox, "the operand does not broadcast to its shape");
    TRY(ox_expand(ox, x, to.rank, to.dim, &y));
    return ox_out(ox, 0, y);
}

/* Repeats one axis: [before, 1, rest] expanded to [before, r, rest]. */
static Status tile_axis(Ox *ox, ValueId *x, int axis, int64_t r) {
    Type t = ox_type(ox, *x), big = t;
    int64_t before = 1, rest = 1;
    for (int i = 0; i < t.rank; i++) *(i < axis ? &before : &rest) *= t.dim[i];
    if (!mul_ok(t.dim[axis], r, &big.dim[axis]))
        return ox_fail(ox, "a result that is too large");
    TRY(ox_reshape(ox, *x, 3, (int64_t[]){before, 1, rest}, x));
    TRY(ox_expand(ox, *x, 3, (int64_t[]){before, r, rest}, x));
    return ox_reshape(ox, *x, t.rank, big.dim, x);
}

Status onnx_tile(Ox *ox) {
    ValueId x = ox_in(ox, 0);
    int rank = ox_type(ox, x).rank, n;
    const int64_t *r;
    TRY(ox_const_ints(ox, 1, "repeats", &r, &n));
    if (n != rank) return ox_fail(ox, "%d repeats for rank %d", n, rank);
    for (int i = 0; i < rank; i++) {
        if (r[i] < 0) return ox_fail(ox, "a negative repeat");
        if (r[i] != 1) TRY(tile_axis(ox, &x, i, r[i]));
    }
    return ox_out(ox, 0, x);
}

/* ---- space and depth ----------------------------------------------------- */

static Status shuffle(Ox *ox, const int64_t *split, const int64_t *perm,
                      const int64_t *dim) {
    ValueId y;
    TRY(ox_reshape(ox, ox_in(ox, 0), 6, split, &y));
    TRY(ox_transpose(ox, y, perm, &y));
    TRY(ox_reshape(ox, y, 4, dim, &y));
    return ox_out(ox, 0, y);
}

static Status block_size(Ox *ox, int64_t *b) {
    *b = ox_int(ox, "blocksize", 0);
    if (*b < 1 || *b > 1 << 15) return ox_fail(ox, "blocksize is %" PRId64, *b);
    if (ox_type(ox, ox_in(ox, 0)).rank != 4)
        return ox_fail(ox, "the operand must have rank 4");
    return OK;
}

Status onnx_depth_to_space(Ox *ox) {
    int64_t b;
    TRY(block_size(ox, &b));
    Type t = ox_type(ox, ox_in(ox, 0));
    const int64_t *d = t.dim;
    bool crd = !strcmp(ox_str(ox, "mode", "DCR"), "CRD");
    if (d[1] % (b * b))
        return ox_fail(ox, "%" PRId64 " channels do not divide by %" PRId64,
                       d[1], b * b);
    int64_t c = d[1] / (b * b);
    int64_t dcr_in[] = {d[0], b, b, c, d[2], d[3]};
    int64_t crd_in[] = {d[0], c, b, b, d[2], d[3]};
    int64_t to[] = {d[0], c, d[2] * b, d[3] * b};
    return crd ? shuffle(ox, crd_in, (int64_t[]){0, 1, 4, 2, 5, 3}, to)
               : shuffle(ox, dcr_in, (int64_t[]){0, 3, 4, 1, 5, 2}, to);
}

Status onnx_space_to_depth(Ox *ox) {
    int64_t b;
    TRY(block_size(ox, &b));
    Type t = ox_type(ox, ox_in(ox, 0));
    const int64_t *d = t.dim;
    if (d[2] % b || d[3] % b)
        return ox_fail(ox, "the image does not divide by blocksize %" PRId64,
                       b);
    int64_t in[] = {d[0], d[1], d[2] / b, b, d[3] / b, b};
    int64_t to[] = {d[0], d[1] * b * b, d[2] / b, d[3] / b};
    bool crd = !strcmp(ox_str(ox, "mode", "DCR"), "CRD");
    return crd ? shuffle(ox, in, (int64_t[]){0, 1, 3, 5, 2, 4}, to)
               : shuffle(ox, in, (int64_t[]){0, 3, 5, 1, 2, 4}, to);
}
