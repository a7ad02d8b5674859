/* SPDX-License-Identifier: Apache-2.0 */
/* op_type.c: type rules of element-wise ops, generators, moves and
   reductions; op_type_nn.c has the rules of library ops and composites.

   Float operands may differ in storage dtype, and a result may be declared in
   any float dtype. No op takes floats and integers together. */
#include "ir/op/rule.h"

#include <string.h>

Status type_error(TypeCtx *cx, const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(cx->msg, sizeof cx->msg, fmt, ap);
    va_end(ap);
    return ERR_USER;
}

/* A call has the types of its function's body. */
Status ty_call(TypeCtx *cx) { return node_info(cx->n)->call->types(cx); }

Status type_result(TypeCtx *cx, int i, const Type *t) {
    cx->out[i] = *t;
    cx->free_dtype[i] = dtype_is_float(t->dtype);
    return OK;
}

Status type_want(TypeCtx *cx, TypeWant what, int i) {
    static const char *const text[] = {"floating point", "integers", "numbers",
                                       "bool"};
    DType d = cx->ins[i]->dtype;
    bool ok = what == WANT_FLOAT  ? dtype_is_float(d)
              : what == WANT_INT  ? dtype_is_int(d)
              : what == WANT_BOOL ? d == DT_BOOL
                                  : d != DT_BOOL;
    return ok ? OK
              : type_error(cx, "operand %d is %s, wants %s", i, TXT(cx->ins[i]),
                           text[what]);
}

Status type_want_ints(TypeCtx *cx, AttrKey key, int n, const int64_t **v) {
    int got = attr_ints(cx->n, key, v);
    if (!attr_find(cx->n, key))
        return type_error(cx, "needs attribute '%s'", attr_get(key)->text);
    if (got != n)
        return type_error(cx, "attribute '%s' has %d numbers, wants %d",
                          attr_get(key)->text, got, n);
    return OK;
}

Status type_want_shape(TypeCtx *cx, DType d, Type *out) {
    const int64_t *v;
    int n = attr_ints(cx->n, AK_shape, &v);
    if (!attr_find(cx->n, AK_shape))
        return type_error(cx, "needs attribute 'shape'");
    if (!type_make(d, n, v).i)
        return type_error(cx,
                          "attribute 'shape' is not a shape: rank %d, "
                          "a dimension is negative or too large",
                          n);
    *out = (Type){.dtype = d, .rank = n};
    for (int i = 0; i < n; i++) out->dim[i] = v[i];
    return OK;
}

/* Attribute `axis`, which refers to `rank` axes and is never negative. */
static Status type_want_axis(TypeCtx *cx, int rank, int *axis) {
    int64_t a = attr_int(cx->n, AK_axis);
    if (!attr_find(cx->n, AK_axis)) return type_error(cx, "axis is missing");
    if (a < 0 || a >= rank)
        return type_error(cx, "axis %lld is outside rank %d", (long long)a,
                          rank);
    *axis = (int)a;
    return OK;
}

/* ---- element-wise -------------------------------------------------------- */

Status ty_unary_n(TypeCtx *cx) {
    int axis = 0;
    TRY(type_want(cx, WANT_NUMBER, 0));
    if (attr_find(cx->n, AK_axis))
        TRY(type_want_axis(cx, cx->ins[0]->rank, &axis));
    return type_result(cx, 0, cx->ins[0]);
}

Status ty_unary_f(TypeCtx *cx) {
    TRY(type_want(cx, WANT_FLOAT, 0));
    return type_result(cx, 0, cx->ins[0]);
}

Status ty_unary_f32(TypeCtx *cx) {
    cx->out[0] = *cx->ins[0];
    if (cx->ins[0]->dtype == DT_F32) return OK;
    return type_error(cx, "operand 0 is %s, wants f32", TXT(cx->ins[0]));
}

Status ty_test_f(TypeCtx *cx) {
    TRY(type_want(cx, WANT_FLOAT, 0));
    cx->out[0] = *cx->ins[0];
    cx->out[0].dtype = DT_BOOL;
    return OK;
}

static Status same_kind(TypeCtx *cx, const Type *a, const Type *b) {
    if (dtype_is_float(a->dtype) == dtype_is_float(b->dtype) &&
        (a->dtype == DT_BOOL) == (b->dtype == DT_BOOL))
        return OK;
    return type_error(cx, "operands %s and %s mix kinds of numbers", TXT(a),
                      TXT(b));
}

/* Common shape and dtype of operands i and j. */
static Status type_join(TypeCtx *cx, int i, int j, Type *out) {
    const Type *a = cx->ins[i], *b = cx->ins[j];
    TRY(same_kind(cx, a, b));
    if (!shape_broadcast(a, b, out))
        return type_error(cx, "shapes of %s and %s do not broadcast", TXT(a),
                          TXT(b));
    out->dtype = dtype_promote(a->dtype, b->dtype);
    return OK;
}

Status ty_binary_n(TypeCtx *cx) {
    Type t = {0};
    TRY(type_want(cx, WANT_NUMBER, 0));
    TRY(type_join(cx, 0, 1, &t));
    return type_result(cx, 0, &t);
}

Status ty_binary_i(TypeCtx *cx) {
    TRY(type_want(cx, WANT_INT, 0));
    return ty_binary_n(cx);
}

Status ty_compare(TypeCtx *cx) {
    Type t = {0};
    if (cx->n->op != OP_EQUAL) TRY(type_want(cx, WANT_NUMBER, 0));
    TRY(type_join(cx, 0, 1, &t));
    t.dtype = DT_BOOL;
    return type_result(cx, 0, &t);
}

Status ty_logic(TypeCtx *cx) {
    Type t = *cx->ins[0];
    TRY(type_want(cx, WANT_BOOL, 0));
    if (cx->n->nin == 2) TRY(type_join(cx, 0, 1, &t));
    return type_result(cx, 0, &t);
}

Status ty_where(TypeCtx *cx) {
    Type t = {0};
    TRY(type_want(cx, WANT_BOOL, 0));
    TRY(type_join(cx, 1, 2, &t));
    Type branches = t;
    if (!shape_broadcast(cx->ins[0], &branches, &t))
        return type_error(cx, "condition %s does not broadcast with %s",
                          TXT(cx->ins[0]), TXT(&branches));
    return type_result(cx, 0, &t);
}

Status ty_cast(TypeCtx *cx) {
    if (!cx->given || cx->given[0].dtype == NUM_DTYPES)
        return type_error(cx, "needs the type of its result");
    cx->out[0] = *cx->ins[0];
    cx->out[0].dtype = cx->given[0].dtype;
    return OK;
}

/* ---- generators ---------------------------------------------------------- */

Status ty_gen(TypeCtx *cx) {
    int axis = 0;
    if (!cx->given || cx->given[0].rank < 0 || cx->given[0].dtype == NUM_DTYPES)
        return type_error(cx, "needs the type of its result");
    const Type *t = &cx->given[0];
    if (cx->n->op == OP_FULL && !attr_find(cx->n, AK_value))
        return type_error(cx, "needs attribute 'value'");
    if (cx->n->op == OP_IOTA) {
        TRY(type_want_axis(cx, t->rank, &axis));
        if (t->dtype == DT_BOOL)
            return type_error(cx, "result is %s, wants numbers", TXT(t));
    }
    if (cx->n->op == OP_RAND_UNIFORM) {
        const Type *rng = cx->ins[0];
        if (rng->dtype != DT_I64 || rng->rank != 1 || rng->dim[0] != 2)
            return type_error(
                cx, "operand 0 is %s, wants i64[2]: seed, counter", TXT(rng));
        if (!dtype_is_float(t->dtype))
            return type_error(cx, "result is %s, wants floating point", TXT(t));
    }
    return type_result(cx, 0, t);
}

/* ---- moves --------------------------------------------------------------- */

Status ty_reshape(TypeCtx *cx) {
    Type t;
    TRY(type_want_shape(cx, cx->ins[0]->dtype, &t));
    if (type_count(&t) != type_count(cx->ins[0]))
        return type_error(cx, "%s has %lld elements, %s has %lld",
                          TXT(cx->ins[0]), (long long)type_count(cx->ins[0]),
                          TXT(&t), (long long)type_count(&t));
    return type_result(cx, 0, &t);
}

Status ty_transpose(TypeCtx *cx) {
    const Type *x = cx->ins[0];
    const int64_t *perm;
    unsigned seen = 0;
    Type t = *x;
    TRY(type_want_ints(cx, AK_perm, x->rank, &perm));
    for (int i = 0; i < x->rank; i++) {
        if (perm[i] < 0 || perm[i] >= x->rank || seen >> perm[i] & 1)
            return type_error(cx,
                              "attribute 'perm' is not a permutation of %d "
                              "axes",
                              x->rank);
        seen |= 1u << perm[i];
        t.dim[i] = x->dim[perm[i]];
    }
    return type_result(cx, 0, &t);
}

Status ty_expand(TypeCtx *cx) {
    Type t, both = {0};
    TRY(type_want_shape(cx, cx->ins[0]->dtype, &t));
    if (!shape_broadcast(cx->ins[0], &t, &both) || !shape_equal(&both, &t))
        return type_error(cx, "%s does not expand to %s", TXT(cx->ins[0]),
                          TXT(&t));
    return type_result(cx, 0, &t);
}

/* Positions starts[i] + k * steps[i], k < part.dim[i], lie inside whole. */
static Status check_slice(TypeCtx *cx, const Type *whole, const Type *part) {
    const int64_t *starts, *steps;
    TRY(type_want_ints(cx, AK_starts, whole->rank, &starts));
    TRY(type_want_ints(cx, AK_steps, whole->rank, &steps));
    int64_t reach = 1, far; /* extent of strides; empty axes count as 1 */
    for (int i = 0; i < whole->rank; i++)
        reach *= whole->dim[i] ? whole->dim[i] : 1;
    for (int i = 0; i < whole->rank; i++) {
        int64_t n = part->dim[i], last = n ? n - 1 : 0;
        bool ok = mul_ok(last, steps[i], &last) &&
                  add_ok(starts[i], last, &last) &&
                  mul_ok(steps[i], reach, &far) && (steps[i] != 0 || !n);
        int64_t most = n ? whole->dim[i] - 1 : whole->dim[i];
        if (!ok || starts[i] < 0 || starts[i] > most || last < 0 || last > most)
            return type_error(cx,
                              "axis %d: %lld positions from %lld by %lld leave "
                              "%lld elements",
                              i, (long long)part->dim[i], (long long)starts[i],
                              (long long)steps[i], (long long)whole->dim[i]);
    }
    return OK;
}

Status ty_slice(TypeCtx *cx) {
    const Type *x = cx->ins[0];
    const int64_t *sizes;
    Type t = *x;
    TRY(type_want_ints(cx, AK_sizes, x->rank, &sizes));
    for (int i = 0; i < x->rank; i++) t.dim[i] = sizes[i];
    if (!type_make(t.dtype, t.rank, t.dim).i)
        return type_error(cx, "attribute 'sizes' is not a shape");
    TRY(check_slice(cx, x, &t));
    return type_result(cx, 0, &t);
}

Status ty_slice_grad(TypeCtx *cx) {
    Type t;
    TRY(type_want_shape(cx, cx->ins[0]->dtype, &t));
    if (t.rank != cx->ins[0]->rank)
        return type_error(cx, "%s has not the rank of %s", TXT(cx->ins[0]),
                          TXT(&t));
    TRY(check_slice(cx, &t, cx->ins[0]));
    return type_result(cx, 0, &t);
}

/* The shape of x after padding; checks `pads` and `mode`. */
static Status padded(TypeCtx *cx, const Type *x, Type *out) {
    Str mode = attr_str(cx->n, AK_mode);
    bool constant = strcmp(mode, "constant") == 0;
    bool reflect = strcmp(mode, "reflect") == 0;
    const int64_t *pads;
    if (!constant && !reflect && strcmp(mode, "edge") && strcmp(mode, "wrap"))
        return type_error(cx, "mode is constant, reflect, edge or wrap");
    TRY(type_want_ints(cx, AK_pads, 2 * x->rank, &pads));
    *out = *x;
    for (int i = 0; i < x->rank; i++) {
        int64_t before = pads[i], after = pads[i + x->rank];
        if (before < 0 || after < 0 ||
            !add_ok(out->dim[i], before, &out->dim[i]) ||
            !add_ok(out->dim[i], after, &out->dim[i]))
            return type_error(cx, "axis %d: pads %lld and %lld", i,
                              (long long)before, (long long)after);
        int64_t reach = before > after ? before : after;
        if (reach && !constant &&
            (x->dim[i] == 0 || (reflect && reach >= x->dim[i])))
            return type_error(cx, "axis %d: pad %lld of %lld elements by %s", i,
                              (long long)reach, (long long)x->dim[i], mode);
    }
    return OK;
}

Status ty_pad(TypeCtx *cx) {
    Type t;
    TRY(padded(cx, cx->ins[0], &t));
    return type_result(cx, 0, &t);
}

Status ty_pad_grad(TypeCtx *cx) {
    Type x, t;
    TRY(type_want(cx, WANT_FLOAT, 0));
    TRY(type_want_shape(cx, cx->ins[0]->dtype, &x));
    TRY(padded(cx, &x, &t));
    if (!shape_equal(&t, cx->ins[0]))
        return type_error(cx, "operand is %s, padding gives %s",
                          TXT(cx->ins[0]), TXT(&t));
    return type_result(cx, 0, &x);
}

Status ty_concat(TypeCtx *cx) {
    Type t = *cx->ins[0];
    int axis = 0;
    TRY(type_want_axis(cx, t.rank, &axis));
    for (int i = 1; i < cx->n->nin; i++) {
        Type x = *cx->ins[i];
        int64_t sum;
        TRY(same_kind(cx, &t, &x));
        if (x.rank != t.rank || !add_ok(x.dim[axis], t.dim[axis], &sum))
            return type_error(cx, "operands %s and %s differ in rank", TXT(&t),
                              TXT(&x));
        x.dim[axis] = t.dim[axis] = sum;
        if (!shape_equal(&x, &t))
            return type_error(cx, "operand %d, %s, differs outside axis %d", i,
                              TXT(cx->ins[i]), axis);
        t.dtype = dtype_promote(t.dtype, x.dtype);
    }
    return type_result(cx, 0, &t);
}

Status ty_split(TypeCtx *cx) {
    const Type *x = cx->ins[0];
    const int64_t *sizes;
    int64_t sum = 0;
    int axis = 0;
    TRY(type_want_axis(cx, x->rank, &axis));
    TRY(type_want_ints(cx, AK_sizes, cx->n->nout, &sizes));
    for (int i = 0; i < cx->n->nout; i++) {
        Type t = *x;
        t.dim[axis] = sizes[i];
        if (sizes[i] < 0 || !add_ok(sum, sizes[i], &sum))
            return type_error(cx, "size %lld", (long long)sizes[i]);
        type_result(cx, i, &t);
    }
    if (sum != x->dim[axis])
        return type_error(cx, "sizes add up to %lld, axis %d has %lld",
                          (long long)sum, axis, (long long)x->dim[axis]);
    return OK;
}

/* data.shape[:axis] + indices.shape + data.shape[axis+1:] */
static Status gathered(TypeCtx *cx, const Type *data, const Type *index,
                       Type *out) {
    int axis = 0;
    TRY(type_want_axis(cx, data->rank, &axis));
    if (data->rank - 1 + index->rank > MAX_RANK)
        return type_error(cx, "result has rank %d, at most %d",
                          data->rank - 1 + index->rank, MAX_RANK);
    *out = (Type){.dtype = data->dtype};
    for (int i = 0; i < axis; i++) out->dim[out->rank++] = data->dim[i];
    for (int i = 0; i < index->rank; i++) out->dim[out->rank++] = index->dim[i];
    for (int i = axis + 1; i < data->rank; i++)
        out->dim[out->rank++] = data->dim[i];
    return OK;
}

Status ty_gather(TypeCtx *cx) {
    Type t;
    TRY(type_want(cx, WANT_INT, 1));
    TRY(gathered(cx, cx->ins[0], cx->ins[1], &t));
    return type_result(cx, 0, &t);
}

Status ty_scatter_add(TypeCtx *cx) {
    Type data, t;
    TRY(type_want(cx, WANT_NUMBER, 0));
    TRY(type_want(cx, WANT_INT, 1));
    TRY(type_want_shape(cx, cx->ins[0]->dtype, &data));
    TRY(gathered(cx, &data, cx->ins[1], &t));
    if (!shape_equal(&t, cx->ins[0]))
        return type_error(cx, "updates are %s, indices %s into %s want %s",
                          TXT(cx->ins[0]), TXT(cx->ins[1]), TXT(&data),
                          TXT(&t));
    return type_result(cx, 0, &data);
}

/* trilu */
Status ty_same(TypeCtx *cx) {
    if (cx->ins[0]->rank < 2)
        return type_error(cx, "operand is %s, wants rank 2 or more",
                          TXT(cx->ins[0]));
    return type_result(cx, 0, cx->ins[0]);
}

/* ---- reductions ---------------------------------------------------------- */

/* x without the masked axes, or with length 1 there. */
static Type type_reduced(const Type *x, unsigned axes, bool keepdims) {
    Type t = {.dtype = x->dtype};
    for (int i = 0; i < x->rank; i++) {
        bool gone = axes >> i & 1;
        if (!gone || keepdims) t.dim[t.rank++] = gone ? 1 : x->dim[i];
    }
    return t;
}

Status ty_reduce(TypeCtx *cx) {
    const Type *x = cx->ins[0];
    const int64_t *axes;
    unsigned mask = 0;
    int n = attr_ints(cx->n, AK_axes, &axes);
    TRY(type_want(cx, WANT_NUMBER, 0));
    if (n == 0) return type_error(cx, "needs attribute 'axes', not empty");
    for (int i = 0; i < n; i++) {
        if (axes[i] < 0 || axes[i] >= x->rank)
            return type_error(cx, "axis %lld is outside rank %d",
                              (long long)axes[i], x->rank);
        if (i && axes[i] <= axes[i - 1])
            return type_error(cx, "attribute 'axes' wants rising numbers");
        mask |= 1u << axes[i];
    }
    Type t = type_reduced(x, mask, attr_int(cx->n, AK_keepdims));
    return type_result(cx, 0, &t);
}

Status ty_argmax(TypeCtx *cx) {
    const Type *x = cx->ins[0];
    int axis = 0;
    TRY(type_want(cx, WANT_NUMBER, 0));
    TRY(type_want_axis(cx, x->rank, &axis));
    if (x->dim[axis] == 0)
        return type_error(cx, "axis %d of %s is empty", axis, TXT(x));
    Type t = type_reduced(x, 1u << axis, attr_int(cx->n, AK_keepdims));
    t.dtype = DT_I64;
    return type_result(cx, 0, &t);
}

Status ty_argsort(TypeCtx *cx) {
    Type t = *cx->ins[0];
    TRY(type_want(cx, WANT_NUMBER, 0));
    if (!attr_find(cx->n, AK_k)) return type_error(cx, "needs attribute 'k'");
    int64_t k = attr_int(cx->n, AK_k);
    int64_t n = t.rank ? t.dim[t.rank - 1] : -1;
    if (k < 0 || k > n || n > INT32_MAX)
        return type_error(cx, "k is %lld of the last axis of %s", (long long)k,
                          TXT(&t));
    t.dim[t.rank - 1] = k;
    t.dtype = DT_I32;
    return type_result(cx, 0, &t);
}

Status ty_suppress(TypeCtx *cx) {
    const Type *x = cx->ins[0];
    Type t = *cx->ins[1];
    TRY(type_want(cx, WANT_BOOL, 1));
    if (x->dtype != DT_F32 || cx->ins[2]->dtype != DT_F32)
        return type_error(cx, "boxes and overlap are f32, not %s and %s",
                          TXT(x), TXT(cx->ins[2]));
    if (x->rank != 3 || x->dim[2] != 4 || t.rank != 2 ||
        t.dim[0] != x->dim[0] || t.dim[1] != x->dim[1])
        return type_error(
            cx, "boxes are [m,n,4] and candidates [m,n], not %s and %s", TXT(x),
            TXT(&t));
    if (type_count(cx->ins[2]) != 1)
        return type_error(cx, "overlap is one number, not %s", TXT(cx->ins[2]));
    if (!attr_find(cx->n, AK_k)) return type_error(cx, "needs attribute 'k'");
    if (attr_int(cx->n, AK_k) < 0)
        return type_error(cx, "k is %lld, wants 0 or more",
                          (long long)attr_int(cx->n, AK_k));
    return type_result(cx, 0, &t);
}

Status ty_grad(TypeCtx *cx) {
    if (cx->n->nout != cx->n->nin - 1)
        return type_error(cx,
                          "gives one result for each operand but the first: "
                          "%d, not %d",
                          cx->n->nin - 1, cx->n->nout);
    for (int i = 0; i < cx->n->nin; i++) TRY(type_want(cx, WANT_FLOAT, i));
    for (int i = 0; i < cx->n->nout; i++) cx->out[i] = *cx->ins[i + 1];
    return OK;
}
