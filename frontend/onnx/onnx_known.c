/* SPDX-License-Identifier: Apache-2.0 */
/* onnx_known.c: ops whose result's shape depends on data, for data that is
   known when the model is compiled. */
#include <stdlib.h>
#include <string.h>

#include "frontend/onnx/onnx.h"

static Status known_tensor(Ox *ox, int operand, const EvalTensor **out) {
    ValueId v = ox_in(ox, operand);
    const Tensor *t = is_value(v) ? ox_data(ox, v) : NULL;
    if (!t)
        return ox_fail(ox,
                       "the shape of its result depends on data: operand "
                       "%d must be known at compile time%s",
                       operand, ox_set_remedy(ox, v));
    *out = eval_from_tensor(ox->a, t);
    return OK;
}

static double at(const EvalTensor *t, int64_t i) {
    return t->f ? t->f[i] : (double)t->i[i];
}

/* Positions of elements other than 0: [rank, their number]. */
Status onnx_non_zero(Ox *ox) {
    const EvalTensor *x;
    ValueId y;
    TRY(known_tensor(ox, 0, &x));
    const Type *t = type_get(x->type);
    int64_t all = type_count(t), n = 0, dim[2] = {t->rank ? t->rank : 1, 0};
    for (int64_t i = 0; i < all; i++) dim[1] += at(x, i) != 0;
    int64_t *v = NEW_ARRAY(ox->a, int64_t, dim[0] * dim[1] + 1);
    for (int64_t i = 0; i < all; i++) {
        int64_t rest = i;
        if (at(x, i) == 0) continue;
        for (int d = t->rank - 1; d >= 0; d--) {
            v[d * dim[1] + n] = rest % t->dim[d];
            rest /= t->dim[d];
        }
        n++;
    }
    TRY(ox_const_i64(ox, v, 1, dim[0] * dim[1], &y));
    TRY(ox_reshape(ox, y, 2, dim, &y));
    return ox_out(ox, 0, y);
}

/* Rows of an axis, or elements, where the condition is true. */
Status onnx_compress(Ox *ox) {
    ValueId x = ox_in(ox, 0), rows, y;
    const EvalTensor *c;
    Type t = ox_type(ox, x);
    int64_t all = type_count(&t), n = 0;
    int axis = 0;
    TRY(known_tensor(ox, 1, &c));
    if (ox_attr(ox, "axis"))
        TRY(ox_axis(ox, ox_int(ox, "axis", 0), t.rank, &axis));
    else
        TRY(ox_reshape(ox, x, 1, &all, &x));
    int64_t given = type_count(type_get(c->type));
    if (given > ox_type(ox, x).dim[axis])
        return ox_fail(ox, "%lld conditions", (long long)given);
    int64_t *v = NEW_ARRAY(ox->a, int64_t, given + 1);
    for (int64_t i = 0; i < given; i++)
        if (at(c, i) != 0) v[n++] = i;
    Attr attr = attr_i(AK_axis, axis);
    TRY(ox_const_i64(ox, v, 1, n, &rows));
    TRY(ox_op(ox, OP_GATHER, (ValueId[]){x, rows}, 2, &attr, 1, &y));
    return ox_out(ox, 0, y);
}

/* ---- unique -------------------------------------------------------------- */

/* Selects slices of x along an axis, or elements of x. */
typedef struct Slices {
    const EvalTensor *x;
    int64_t outer, n, inner;
} Slices;

static int known_compare(const Slices *s, int64_t a, int64_t b) {
    for (int64_t o = 0; o < s->outer; o++)
        for (int64_t i = 0; i < s->inner; i++) {
            int64_t ia = (o * s->n + a) * s->inner + i;
            int64_t ib = (o * s->n + b) * s->inner + i;
            double p = at(s->x, ia), q = at(s->x, ib);
            if (s->x->i && s->x->i[ia] != s->x->i[ib])
                return s->x->i[ia] < s->x->i[ib] ? -1 : 1;
            if (p != q && (p == p || q == q))
                return q != q || p < q ? -1 : 1; /* NaN is last */
        }
    return 0;
}

/* Finds the distinct slices, in order of value or of appearance: first[k] is
   the first one equal to slice k; kind: for each slice, its k. Returns their
   number. */
static int64_t distinct(const Slices *s, bool sorted, int64_t *first,
                        int64_t *kind) {
    int64_t n = 0;
    for (int64_t i = 0; i < s->n; i++) {
        int64_t k = 0, at_most = n;
        while (k < n && known_compare(s, first[k], i)) k++;
        if (k < n) continue;
        if (sorted)
            for (k = 0; k < n && known_compare(s, first[k], i) < 0;) k++;
        memmove(first + k + 1, first + k,
                (size_t)(at_most - k) * sizeof *first);
        first[k] = i;
        n++;
    }
    for (int64_t i = 0; i < s->n; i++)
        for (int64_t k = 0; k < n; k++)
            if (!known_compare(s, first[k], i)) kind[i] = k;
    return n;
}

Status onnx_unique(Ox *ox) {
    enum { MOST = 4096 }; /* every slice is compared with every other */
    ValueId x = ox_in(ox, 0), rows, y;
    Slices s;
    int axis = 0;
    Attr attr;
    if (!ox_data(ox, x)) return onnx_unique_of_data(ox);
    TRY(known_tensor(ox, 0, &s.x));
    Type t = ox_type(ox, x);
    int64_t all = type_count(&t);
    if (ox_attr(ox, "axis")) {
        TRY(ox_axis(ox, ox_int(ox, "axis", 0), t.rank, &axis));
    } else {
        TRY(ox_reshape(ox, x, 1, &all, &x));
        t = ox_type(ox, x);
    }
    s = (Slices){s.x, 1, t.dim[axis], 1};
    for (int d = 0; d < t.rank; d++)
        if (d != axis) *(d < axis ? &s.outer : &s.inner) *= t.dim[d];
    if (all > MOST) return ox_fail(ox, "%lld elements", (long long)all);
    int64_t *v = NEW_ARRAY(ox->a, int64_t, 3 * s.n + 2);
    int64_t *kind = v + s.n + 1, *count = kind + s.n;
    int64_t n = distinct(&s, ox_int(ox, "sorted", 1) != 0, v, kind);
    for (int64_t i = 0; i < s.n; i++) count[kind[i]]++;
    attr = attr_i(AK_axis, axis);
    TRY(ox_const_i64(ox, v, 1, n, &rows));
    TRY(ox_op(ox, OP_GATHER, (ValueId[]){x, rows}, 2, &attr, 1, &y));
    TRY(ox_out(ox, 0, y));
    TRY(ox_out(ox, 1, rows));
    TRY(ox_const_i64(ox, kind, 1, s.n, &y));
    TRY(ox_out(ox, 2, y));
    TRY(ox_const_i64(ox, count, 1, n, &y));
    return ox_out(ox, 3, y);
}
