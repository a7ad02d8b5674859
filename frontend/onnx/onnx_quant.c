/* SPDX-License-Identifier: Apache-2.0 */
/* onnx_quant.c: quantisation.  A model trained with quantisation has
   QuantizeLinear and DequantizeLinear in pairs. A pair is one function,
   whose gradient passes straight through. What stands between the two of other
   files reads levels (onnx_levels.c). */
#include <math.h>
#include <string.h>

#include "frontend/onnx/onnx.h"
#include "ir/fn/fn.h"

/* Operands x, scale and zero point; a scale or zero point per channel or
   block is broadcast along its axis. n: their number. */
static Status read_operands(Ox *ox, ValueId in[3], int *n) {
    int axis, block = (int)ox_int(ox, "block_size", 0);
    *n = is_value(ox_in(ox, 2)) ? 3 : 2;
    for (int i = 0; i < *n; i++) {
        in[i] = ox_in(ox, i);
        if (dtype_info[ox_type(ox, in[i]).dtype].stored)
            TRY(ox_cast(ox, in[i], DT_F32, true, &in[i]));
    }
    Type x = ox_type(ox, in[0]);
    for (int i = 1; i < *n; i++) {
        Type t = ox_type(ox, in[i]);
        int64_t dim[MAX_RANK + 1];
        if (type_count(&t) == 1 && t.rank <= 1) {
            TRY(ox_reshape(ox, in[i], 0, NULL, &in[i]));
            continue;
        }
        TRY(ox_axis(ox, ox_int(ox, "axis", 1), x.rank, &axis));
        if (t.rank == 1 && t.dim[0] == x.dim[axis] && !block) {
            for (int k = 0; k < x.rank; k++) dim[k] = k == axis ? t.dim[0] : 1;
            TRY(ox_reshape(ox, in[i], x.rank, dim, &in[i]));
            continue;
        }
        if (t.rank != x.rank || block < 1 ||
            t.dim[axis] != (x.dim[axis] + block - 1) / block)
            return ox_fail(ox,
                           "the scale or zero point of rank %d fits "
                           "neither an axis nor blocks of %d",
                           t.rank, block);
        Attr at = attr_i(AK_axis, axis);
        int64_t *row = NEW_ARRAY(ox->a, int64_t, x.dim[axis] + 1);
        ValueId rows;
        for (int64_t k = 0; k < x.dim[axis]; k++) row[k] = k / block;
        TRY(ox_const_i64(ox, row, 1, x.dim[axis], &rows));
        TRY(ox_op(ox, OP_GATHER, (ValueId[]){in[i], rows}, 2, &at, 1, &in[i]));
    }
    return OK;
}

static Status integer_dtype(Ox *ox, DType *d) {
    int64_t to = ox_int(ox, "output_dtype", 0);
    *d = DT_U8;
    if (is_value(ox_in(ox, 2)))
        *d = ox_type(ox, ox_in(ox, 2)).dtype;
    else if (to)
        TRY(ox_dtype(ox, to < 0 || to > 1000 ? -1 : (int)to, "output_dtype",
                     d));
    if (!dtype_is_int(*d) || dtype_info[*d].bytes > 2)
        return ox_fail(ox, "a result of dtype %s", dtype_info[*d].text);
    return OK;
}

/* The operand is an initializer of integers of four bits. */
static bool has_nibbles(const Ox *ox, int i) {
    const OxName *x =
        i < ox->node->nin ? ox_name_of(ox, ox->node->in[i]) : NULL;
    return x && x->kind == OX_INIT &&
           ox_is_nibbles(ox->inits.data[x->index].proto);
}

Status onnx_quantize(Ox *ox) {
    ValueId in[3], y;
    int n;
    DType d;
    TRY(integer_dtype(ox, &d));
    TRY(read_operands(ox, in, &n));
    Attr attr[2];
    (void)ox_range(d, attr);
    if (has_nibbles(ox, 2)) {
        double low = d == DT_U8 ? 0 : -8;
        attr[0] = attr_named_f("low", low);
        attr[1] = attr_named_f("high", low + 15);
    }
    TRY(ox_call(ox, ox->node->op->fn, in, n, attr, 2, 1, &y));
    TRY(ox_cast(ox, y, d, false, &y));
    return ox_out(ox, 0, y);
}

/* True if two values are equal at run time: one value, one tensor of the
   file with two names, or equal nodes of such values. */
static bool equal(const Ox *ox, ValueId a, ValueId b) {
    if (same_value(a, b)) return true;
    const Value *va = value_get(ox->g, a), *vb = value_get(ox->g, b);
    const Tensor *ta = ox_data(ox, a), *tb = ox_data(ox, b);
    if (va->type.i != vb->type.i) return false;
    if (ta && tb)
        return !memcmp(ta->data, tb->data,
                       (size_t)type_bytes(type_get(ta->type)));
    static const OpCode same[] = {OP_RESHAPE, OP_CAST};
    for (size_t i = 0; i < sizeof same / sizeof *same; i++) {
        const Node *na = ox_def(ox, a, same[i]), *nb = ox_def(ox, b, same[i]);
        if (na && nb) return equal(ox, na->in[0], nb->in[0]);
    }
    return false;
}

/* The quantize node whose result is v and which has this scale and zero
   point, and the levels that a later clip leaves. */
static const Node *made_by(const Ox *ox, const ValueId *in, int n, double *low,
                           double *high) {
    ValueId v = in[0];
    const Node *max, *min;
    double k;
    for (;;) {
        max = ox_def(ox, v, OP_MAX), min = ox_def(ox, v, OP_MIN);
        const Node *bound = max ? max : min;
        if (!bound || !ox_const_scalar(ox, bound->in[1], &k)) break;
        if (max && k > *low) *low = k;
        if (min && k < *high) *high = k;
        v = bound->in[0];
    }
    const Node *cast = ox_def(ox, v, OP_CAST);
    const Node *q = cast ? ox_def(ox, cast->in[0], OP_CALL) : NULL;
    if (!q || !is_call(q, "quantize") || q->nin != n) return NULL;
    for (int i = 1; i < n; i++)
        if (!equal(ox, q->in[i], in[i])) return NULL;
    return q;
}

/* Quantise and dequantise: one function, with the levels of both. */
static Status fake_quantize(Ox *ox, const Node *q, ValueId *in, int n,
                            double low, double high, ValueId *y) {
    double least = attr_float(q, attr_key("low", ATTR_FLOAT));
    double most = attr_float(q, attr_key("high", ATTR_FLOAT));
    Attr attr[] = {attr_named_f("low", low > least ? low : least),
                   attr_named_f("high", high < most ? high : most)};
    in[0] = q->in[0];
    return ox_call(ox, "fake_quantize", in, n, attr, 2, 1, y);
}

Status onnx_dequantize(Ox *ox) {
    ValueId in[3], y;
    int n;
    TRY(read_operands(ox, in, &n));
    DType d = ox_type(ox, in[1]).dtype;
    int64_t to = ox_int(ox, "output_dtype", 0);
    if (to)
        TRY(ox_dtype(ox, to < 0 || to > 1000 ? -1 : (int)to, "output_dtype",
                     &d));
    double low = -INFINITY, high = INFINITY;
    const Node *q = made_by(ox, in, n, &low, &high);
    if (q) {
        TRY(fake_quantize(ox, q, in, n, low, high, &y));
    } else {
        for (int i = 0; i < n; i++) TRY(ox_numbers(ox, in[i], &in[i]));
        TRY(ox_call(ox, ox->node->op->fn, in, n, NULL, 0, 1, &y));
    }
    TRY(ox_cast(ox, y, d, false, &y));
    return ox_out(ox, 0, y);
}
