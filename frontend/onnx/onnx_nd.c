/* SPDX-License-Identifier: Apache-2.0 */
/* onnx_nd.c: gathers and scatters by positions along several axes, expressed
   as gathers and scatters of rows: x becomes [rows, inner], and positions
   become row numbers. */
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "frontend/onnx/onnx.h"

/* ---- row numbers --------------------------------------------------------- */

/* Sums positions times strides along the axes of `index` other than `axis`. */
static Status bases(Ox *ox, const int64_t *stride, const Type *index, int axis,
                    ValueId *out) {
    int64_t n = type_count(index);
    if (n > OX_MAX_FOLD) return ox_fail(ox, "%" PRId64 " indices", n);
    TypeId type = type_make(DT_I64, index->rank, index->dim);
    EvalTensor *e = eval_tensor_new(ox->a, type);
    for (int64_t i = 0; i < n; i++) {
        int64_t rest = i;
        for (int k = index->rank - 1; k >= 0; k--) {
            if (k != axis) e->i[i] += rest % index->dim[k] * stride[k];
            rest /= index->dim[k];
        }
    }
    return ox_const(ox, eval_to_tensor(ox->a, e, type), out);
}

/* Given a position along one axis of x for each element, returns the offsets
   of these elements. */
static Status rows_of_elements(Ox *ox, const Type *x, ValueId i, int axis,
                               ValueId *row) {
    Type t = ox_type(ox, i);
    int64_t stride[MAX_RANK];
    ValueId base;
    for (int k = 0; k < x->rank; k++)
        if (t.rank != x->rank || (k != axis && t.dim[k] > x->dim[k]))
            return ox_fail(ox, "the indices do not fit the operand");
    shape_strides(x, stride);
    TRY(bases(ox, stride, &t, axis, &base));
    TRY(ox_cast(ox, i, DT_I64, false, &i));
    TRY(ox_wrap_negative(ox, &i, ox_scalar(ox, DT_I64, x->dim[axis])));
    TRY(ox2k(ox, OP_MUL, i, (double)stride[axis], &i));
    return ox2(ox, OP_ADD, i, base, row);
}

/* View of x: the first `lead` axes are rows, the other axes are inside a
   row. */
typedef struct Rows {
    int lead, inner;
    int64_t dim[MAX_RANK + 1]; /* number of rows, then the other dims */
} Rows;

static Rows rows_of(const Type *x, int lead) {
    Rows r = {.lead = lead, .inner = x->rank - lead, .dim = {1}};
    for (int k = 0; k < x->rank; k++)
        *(k < lead ? &r.dim[0] : &r.dim[k - lead + 1]) *=
            k < lead ? x->dim[k] : 1;
    for (int k = lead; k < x->rank; k++) r.dim[k - lead + 1] = x->dim[k];
    return r;
}

/* Given tuples of positions along the last axis of i, returns the row
   numbers. The first `batch` axes of x and i correspond. */
static Status rows_of_tuples(Ox *ox, const Type *x, ValueId i, int batch,
                             Rows *r, ValueId *row) {
    Type t = ox_type(ox, i);
    int last = t.rank - 1;
    int64_t n = last < 0 ? 0 : t.dim[last], stride[MAX_RANK], one[MAX_RANK];
    ValueId dims, steps, base;
    if (batch > last || n < 1 || n > x->rank - batch)
        return ox_fail(ox, "the indices name no positions of the operand");
    for (int k = 0; k < batch; k++)
        if (t.dim[k] != x->dim[k])
            return ox_fail(ox, "batch dimension %d of the indices differs", k);
    *r = rows_of(x, batch + (int)n);
    stride[r->lead - 1] = 1;
    for (int k = r->lead - 1; k > 0; k--) stride[k - 1] = stride[k] * x->dim[k];
    TRY(ox_cast(ox, i, DT_I64, false, &i));
    TRY(ox_const_i64(ox, x->dim + batch, 1, n, &dims));
    TRY(ox_const_i64(ox, stride + batch, 1, n, &steps));
    TRY(ox_wrap_negative(ox, &i, dims));
    TRY(ox2(ox, OP_MUL, i, steps, &i));
    int64_t axis = last;
    TRY(ox_reduce(ox, OP_REDUCE_SUM, i, &axis, 1, false, row));
    if (batch == 0) return OK;
    Type lead = {.dtype = DT_I64, .rank = last};
    for (int k = 0; k < last; k++) {
        lead.dim[k] = k < batch ? t.dim[k] : 1;
        one[k] = k < batch ? stride[k] : 0;
    }
    TRY(bases(ox, one, &lead, -1, &base));
    return ox2(ox, OP_ADD, *row, base, row);
}

/* ---- gather -------------------------------------------------------------- */

static Status gather_rows(Ox *ox, ValueId x, const Rows *r, ValueId row,
                          ValueId *y) {
    Attr attr = attr_i(AK_axis, 0);
    TRY(ox_reshape(ox, x, 1 + r->inner, r->dim, &x));
    return ox_op(ox, OP_GATHER, (ValueId[]){x, row}, 2, &attr, 1, y);
}

Status onnx_gather_elements(Ox *ox) {
    ValueId x = ox_in(ox, 0), row, y;
    Type t = ox_type(ox, x);
    Rows r = rows_of(&t, t.rank);
    int axis;
    TRY(ox_axis(ox, ox_int(ox, "axis", 0), t.rank, &axis));
    TRY(rows_of_elements(ox, &t, ox_in(ox, 1), axis, &row));
    TRY(gather_rows(ox, x, &r, row, &y));
    return ox_out(ox, 0, y);
}

Status onnx_gather_nd(Ox *ox) {
    ValueId x = ox_in(ox, 0), row, y;
    Type t = ox_type(ox, x);
    int64_t batch = ox_int(ox, "batch_dims", 0);
    Rows r;
    if (batch < 0 || batch > t.rank)
        return ox_fail(ox, "batch_dims is %" PRId64, batch);
    TRY(rows_of_tuples(ox, &t, ox_in(ox, 1), (int)batch, &r, &row));
    if (ox_type(ox, row).rank + r.inner > MAX_RANK)
        return ox_fail(ox, "a result of rank %d; at most %d",
                       ox_type(ox, row).rank + r.inner, MAX_RANK);
    TRY(gather_rows(ox, x, &r, row, &y));
    return ox_out(ox, 0, y);
}

/* ---- scatter ------------------------------------------------------------- */

typedef struct Reduction {
    const char *text;
    OpCode op, fold; /* op of two operands; reduction along an axis */
    double none;     /* neutral element */
} Reduction;

static const Reduction reductions[] = {
    {"none", OP_WHERE, OP_WHERE, 0},
    {"add", OP_ADD, OP_REDUCE_SUM, 0},
    {"mul", OP_MUL, OP_REDUCE_PROD, 1},
    {"max", OP_MAX, OP_REDUCE_MAX, -INFINITY},
    {"min", OP_MIN, OP_REDUCE_MIN, INFINITY},
};

static Status scatter_add(Ox *ox, ValueId from, ValueId row, const int64_t *dim,
                          int rank, ValueId *y) {
    Attr attr[] = {attr_i(AK_axis, 0), attr_v(AK_shape, dim, rank)};
    return ox_op(ox, OP_SCATTER_ADD, (ValueId[]){from, row}, 2, attr, 2, y);
}

/* For each row, true if an update is applied to it: [rows, 1, ..]. */
static Status touched(Ox *ox, ValueId row, const Rows *r, ValueId *hit) {
    TypeId type = type_make(DT_F32, 1, ox_type(ox, row).dim);
    int64_t dim[MAX_RANK + 1] = {r->dim[0]};
    Attr one = attr_f(AK_value, 1);
    for (int k = 0; k < r->inner; k++) dim[k + 1] = 1;
    TRY(ox_opn(ox, OP_FULL, NULL, 0, &one, 1, 1, &type, hit));
    TRY(scatter_add(ox, *hit, row, dim, 1, hit));
    TRY(ox2k(ox, OP_GREATER, *hit, 0, hit));
    return ox_reshape(ox, *hit, 1 + r->inner, dim, hit);
}

/* If row numbers are known: for each row of x the last index that names it;
   ONNX's reference evaluator keeps the last one, too. */
static Status pick_last(Ox *ox, const int64_t *row, int64_t n, const Rows *r,
                        ValueId *hit, ValueId *from) {
    int64_t rows = r->dim[0], dim[MAX_RANK + 1] = {rows};
    TypeId flag = type_make(DT_BOOL, 1, dim),
           number = type_make(DT_I64, 1, dim);
    EvalTensor *h = eval_tensor_new(ox->a, flag);
    EvalTensor *f = eval_tensor_new(ox->a, number);
    for (int64_t i = 0; i < n; i++) {
        if (row[i] < 0 || row[i] >= rows)
            return ox_fail(ox, "an index names no position of the operand");
        h->i[row[i]] = 1;
        f->i[row[i]] = i;
    }
    for (int k = 0; k < r->inner; k++) dim[k + 1] = 1;
    TRY(ox_const(ox, eval_to_tensor(ox->a, h, flag), hit));
    TRY(ox_const(ox, eval_to_tensor(ox->a, f, number), from));
    return ox_reshape(ox, *hit, 1 + r->inner, dim, hit);
}

/* For every row, the sum of its updates. */
static Status sum_updates(Ox *ox, ValueId row, const Rows *r, DType d,
                          ValueId *up) {
    if (!dtype_is_float(d)) TRY(ox_cast(ox, *up, DT_F64, false, up));
    TRY(scatter_add(ox, *up, row, r->dim, 1 + r->inner, up));
    return ox_cast(ox, *up, d, false, up);
}

/* Sorts updates by their rows and sets all updates of a row but the last one
   to 0. */
static Status keep_last(Ox *ox, ValueId *row, ValueId *up, const Rows *r) {
    int64_t n = ox_type(ox, *row).dim[0], one = 1, none = -1;
    int64_t dim[MAX_RANK + 1] = {n};
    Attr axis = attr_i(AK_axis, 0), all = attr_i(AK_k, n);
    ValueId order, next[2], last;
    for (int k = 0; k < r->inner; k++) dim[k + 1] = 1;
    TRY(ox_op(ox, OP_ARGSORT, row, 1, &all, 1, &order));
    TRY(ox_op(ox, OP_GATHER, (ValueId[]){*row, order}, 2, &axis, 1, row));
    TRY(ox_op(ox, OP_GATHER, (ValueId[]){*up, order}, 2, &axis, 1, up));
    n--;
    TRY(ox_slice(ox, *row, &one, &n, &one, &next[0]));
    TRY(ox_const_i64(ox, &none, 1, 1, &next[1]));
    TRY(ox_concat(ox, next, 2, 0, false, &last));
    TRY(ox2(ox, OP_EQUAL, *row, last, &last));
    TRY(ox_reshape(ox, last, 1 + r->inner, dim, &last));
    ValueId zero = ox_scalar(ox, ox_type(ox, *up).dtype, 0);
    return ox3(ox, OP_WHERE, last, zero, *up, up);
}

/* A scalar, if all elements are known to equal it. */
static bool is_uniform(Ox *ox, ValueId v, ValueId *scalar) {
    const Tensor *t = ox_data(ox, v);
    int64_t n = t ? type_count(type_get(t->type)) : 0;
    if (n == 0 || n > OX_MAX_FOLD) return false;
    const EvalTensor *e = eval_from_tensor(ox->a, t);
    TypeId type = type_make(type_get(t->type)->dtype, 0, NULL);
    EvalTensor *one = eval_tensor_new(ox->a, type);
    for (int64_t i = 1; i < n; i++)
        if (e->f ? e->f[i] != e->f[0] : e->i[i] != e->i[0]) return false;
    if (e->f)
        one->f[0] = e->f[0];
    else
        one->i[0] = e->i[0];
    return ox_const(ox, eval_to_tensor(ox->a, one, type), scalar) == OK;
}

/* For each row the last update that applies, or x if none does. */
static Status nd_replace(Ox *ox, ValueId x, ValueId row, ValueId up,
                         const Rows *r, ValueId *y) {
    const Tensor *known = ox_data(ox, row);
    Attr axis = attr_i(AK_axis, 0);
    ValueId hit, from;
    if (ox_type(ox, row).dim[0] == 0) {
        *y = x;
        return OK;
    }
    if (known && r->dim[0] <= OX_MAX_FOLD) {
        TRY(pick_last(ox, eval_from_tensor(ox->a, known)->i,
                      ox_type(ox, row).dim[0], r, &hit, &from));
        TRY(ox_op(ox, OP_GATHER, (ValueId[]){up, from}, 2, &axis, 1, &up));
        return ox3(ox, OP_WHERE, hit, up, x, y);
    }
    TRY(touched(ox, row, r, &hit));
    if (!is_uniform(ox, up, &up)) {
        TRY(keep_last(ox, &row, &up, r));
        TRY(sum_updates(ox, row, r, ox_type(ox, x).dtype, &up));
    }
    return ox3(ox, OP_WHERE, hit, up, x, y);
}

/* Pairs every update with every row: [updates, rows, ..]. */
static Status combine(Ox *ox, const Reduction *how, ValueId x, ValueId row,
                      ValueId up, const Rows *r, ValueId *y) {
    int64_t n = ox_type(ox, row).dim[0], rows = r->dim[0], all, first = 0;
    int64_t dim[MAX_RANK + 2] = {n, 1}, one[MAX_RANK + 2] = {n, 1};
    Type t = ox_type(ox, x);
    ValueId hit;
    if (r->inner + 2 > MAX_RANK || !mul_ok(n, rows, &all) || all > OX_MAX_FOLD)
        return ox_fail(ox,
                       "reduction %s of %" PRId64 " updates into %" PRId64
                       " rows is too large",
                       how->text, n, rows);
    for (int k = 0; k < r->inner; k++) {
        dim[k + 2] = r->dim[k + 1];
        one[k + 2] = 1;
    }
    int64_t *number = NEW_ARRAY(ox->a, int64_t, rows + 1);
    for (int64_t i = 0; i < rows; i++) number[i] = i;
    TRY(ox_const_i64(ox, number, 1, rows, &hit));
    TRY(ox_reshape(ox, row, 2, one, &row));
    TRY(ox2(ox, OP_EQUAL, row, hit, &hit));
    one[1] = rows;
    TRY(ox_reshape(ox, hit, 2 + r->inner, one, &hit));
    TRY(ox_reshape(ox, up, 2 + r->inner, dim, &up));
    TRY(ox3(ox, OP_WHERE, hit, up, ox_scalar(ox, t.dtype, how->none), &up));
    if (how->op == OP_MUL) {
        TRY(ox_reduce(ox, how->fold, up, &first, 1, false, &up));
        return ox2(ox, how->op, x, up, y);
    }
    /* equal elements share the gradient of a maximum, x like the updates */
    ValueId all_of[2] = {x, up};
    dim[0] = 1;
    dim[1] = rows;
    TRY(ox_reshape(ox, x, 2 + r->inner, dim, &all_of[0]));
    TRY(ox_concat(ox, all_of, 2, 0, false, &up));
    return ox_reduce(ox, how->fold, up, &first, 1, false, y);
}

static bool scatters_into_zeros(Ox *ox) {
    const Tensor *t = ox_data(ox, ox_in(ox, 0));
    const uint8_t *bytes = t ? t->data : NULL;
    int64_t size = t ? type_bytes(type_get(t->type)) : 0;
    for (int64_t i = 0; i < size; i++)
        if (bytes[i]) return false;
    return t != NULL;
}

/* index_add(): the indices are repeated along the other axes by the updates'
   shape. */
static bool repeats_indices(const Ox *ox) {
    const OxNode *n = ox->node, *rows = ox_maker(ox, n->in[1], "Expand");
    const OxNode *shape = rows ? ox_maker(ox, rows->in[1], "Shape") : NULL;
    return shape && shape->in[0] == n->in[2] &&
           ox_maker(ox, n->in[2], "Expand");
}

/* TorchScript writes index_put(accumulate=True) and index_add() as a scatter
   over zeros followed by an addition, which loses that rows named twice are
   summed. */
bool ox_lost_sum(Ox *ox) {
    const OxNode *n = ox->node;
    const OxNode *zeros = ox_maker(ox, n->in[0], "ConstantOfShape");
    bool puts = !strcmp(n->type, "ScatterND") && zeros &&
                ox_maker(ox, zeros->in[0], "Shape");
    if (!ox->is_torch || ox->has_signature || ox_uses(ox, n->out[0]) != 1 ||
        (!puts && (strcmp(n->type, "ScatterElements") != 0 ||
                   !repeats_indices(ox) || !scatters_into_zeros(ox))))
        return false;
    for (int i = 0; i < ox->order.len; i++) {
        const OxNode *sum = &ox->nodes.data[ox->order.data[i]];
        for (int k = 0; k < sum->nin; k++)
            if (sum->in[k] == n->out[0]) return !strcmp(sum->type, "Add");
    }
    return false;
}

static Status scatter(Ox *ox, ValueId row, const Rows *r) {
    ValueId x = ox_in(ox, 0), up = ox_in(ox, 2), y;
    Type t = ox_type(ox, x), tu = ox_type(ox, up), tr = ox_type(ox, row);
    Str text = ox_str(ox, "reduction", ox_lost_sum(ox) ? "add" : "none");
    int64_t dim[MAX_RANK + 1], n = type_count(&tr), want = n;
    const Reduction *how = NULL;
    for (size_t i = 0; i < sizeof reductions / sizeof *reductions; i++)
        if (!strcmp(reductions[i].text, text)) how = &reductions[i];
    if (!how)
        return ox_fail(ox, "reduction '%s' is unknown", ox_quote(ox, text));
    Str torch = ox_torch_node(ox->node, "aten.scatter_reduce")
                    ? ox_torch_argument(ox->node, 4)
                    : NULL;
    if (torch && !strcmp(torch, "mean"))
        return ox_fail(ox,
                       "the model takes the mean (scatter_reduce), the file "
                       "has reduction '%s': the exporter lost it; write the "
                       "sum divided by the counts (scatter_add twice) and "
                       "export again",
                       ox_quote(ox, text));
    memcpy(dim, r->dim, sizeof dim);
    dim[0] = n;
    for (int k = 0; k < r->inner; k++) want *= dim[k + 1];
    if (tu.dtype != t.dtype)
        return ox_fail(ox, "the updates are %s, the operand %s",
                       dtype_info[tu.dtype].text, dtype_info[t.dtype].text);
    if (want != type_count(&tu))
        return ox_fail(ox, "the updates do not fit the indices");
    if (how->op == OP_MAX && !dtype_is_float(t.dtype))
        return ox_fail(ox, "reduction max of integers is not supported");
    if (how->op == OP_MIN && !dtype_is_float(t.dtype))
        return ox_fail(ox, "reduction min of integers is not supported");
    TRY(ox_reshape(ox, x, 1 + r->inner, r->dim, &x));
    TRY(ox_reshape(ox, up, 1 + r->inner, dim, &up));
    TRY(ox_reshape(ox, row, 1, &n, &row));
    if (how->op == OP_WHERE) {
        TRY(nd_replace(ox, x, row, up, r, &y));
    } else if (how->op == OP_ADD) {
        TRY(sum_updates(ox, row, r, t.dtype, &up));
        TRY(ox2(ox, OP_ADD, x, up, &y));
    } else {
        TRY(combine(ox, how, x, row, up, r, &y));
    }
    TRY(ox_reshape(ox, y, t.rank, t.dim, &y));
    return ox_out(ox, 0, y);
}

Status onnx_scatter_elements(Ox *ox) {
    Type t = ox_type(ox, ox_in(ox, 0));
    Rows r = rows_of(&t, t.rank);
    ValueId row;
    int axis;
    TRY(ox_axis(ox, ox_int(ox, "axis", 0), t.rank, &axis));
    TRY(rows_of_elements(ox, &t, ox_in(ox, 1), axis, &row));
    return scatter(ox, row, &r);
}

Status onnx_scatter_nd(Ox *ox) {
    Type t = ox_type(ox, ox_in(ox, 0));
    Rows r;
    ValueId row;
    TRY(rows_of_tuples(ox, &t, ox_in(ox, 1), 0, &r, &row));
    return scatter(ox, row, &r);
}

/* ---- signals ------------------------------------------------------------- */

/* Before opset 20 positions were along the first axis after the batch. */
Status onnx_dft(Ox *ox) {
    ValueId x = ox_in(ox, 0), y;
    Attr attr[MAX_OP_ATTRS];
    int n;
    TRY(ox_mapped(ox, attr, &n));
    if (ox->node->version < 20 && !ox_attr(ox, "axis"))
        attr[n++] = attr_i(AK_axis, 1);
    TRY(ox_call(ox, "dft", &x, 1, attr, n, 1, &y));
    return ox_out(ox, 0, y);
}

Status onnx_stft(Ox *ox) {
    ValueId in[] = {ox_in(ox, 0), ox_in(ox, 2)}, y;
    Attr attr[MAX_OP_ATTRS];
    int n;
    TRY(ox_mapped(ox, attr, &n));
    TRY(ox_call(ox, "stft", in, is_value(in[1]) ? 2 : 1, attr, n, 1, &y));
    return ox_out(ox, 0, y);
}

/* a - b cos(2 pi i / n) + c cos(4 pi i / n) for each i; n is one less if the
   last value should equal the first. */
Status onnx_window(Ox *ox) {
    static const struct {
        const char *op;
        double a, b, c;
    } rows[] = {{"HannWindow", 0.5, 0.5, 0},
                {"HammingWindow", 25.0 / 46, 21.0 / 46, 0},
                {"BlackmanWindow", 0.42, 0.5, 0.08}};
    const int64_t *size;
    int k, row = 0;
    DType d;
    ValueId y;
    TRY(ox_const_ints(ox, 0, "size", &size, &k));
    if (k != 1 || *size < 1 || *size > OX_MAX_FOLD)
        return ox_fail(ox, "the size of the window is not a whole number >= 1");
    TRY(ox_dtype(ox, (int)ox_int(ox, "output_datatype", 1), "the window", &d));
    while (strcmp(rows[row].op, ox->node->op->name) != 0) row++;
    TypeId type = type_make(DT_F64, 1, size);
    EvalTensor *e = eval_tensor_new(ox->a, type);
    int64_t n = ox_int(ox, "periodic", 1) ? *size : *size - 1;
    for (int64_t i = 0; i < *size; i++) {
        double turn = n ? 2 * acos(-1) * (double)i / (double)n : 0;
        e->f[i] =
            rows[row].a - rows[row].b * cos(turn) + rows[row].c * cos(2 * turn);
    }
    TRY(ox_const(ox, eval_to_tensor(ox->a, e, type), &y));
    TRY(ox_cast(ox, y, d, false, &y));
    return ox_out(ox, 0, y);
}
