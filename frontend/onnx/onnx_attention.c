/* onnx_attention.c: Attention (opset 23 on) written out: scores, bias, softmax,
   weighted values.  Caches are a matter of inference and refused.           */
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "frontend/onnx/onnx.h"

typedef struct Heads {
    ValueId q, k, v;     /* [batch, heads, length, size] */
    int64_t heads, t, s; /* query heads; query and key lengths */
    bool merged;         /* operands were [batch, length, heads * size] */
    DType dtype;
} Heads;

static Status split_heads(Ox *ox, ValueId *x, int64_t heads) {
    Type t = ox_type(ox, *x);
    if (heads < 1 || t.dim[2] % heads)
        return ox_fail(
            ox, "%" PRId64 " features do not divide into %" PRId64 " heads",
            t.dim[2], heads);
    int64_t dim[] = {t.dim[0], t.dim[1], heads, t.dim[2] / heads};
    TRY(ox_reshape(ox, *x, 4, dim, x));
    return ox_transpose(ox, *x, (int64_t[]){0, 2, 1, 3}, x);
}

/* Grouped heads: each key and value head serves several query heads. */
static Status repeat_heads(Ox *ox, ValueId *x, int64_t heads) {
    Type t = ox_type(ox, *x);
    if (t.dim[1] == heads) return OK;
    if (t.dim[1] < 1 || heads % t.dim[1])
        return ox_fail(ox, "%" PRId64 " query heads for %" PRId64 " key heads",
                       heads, t.dim[1]);
    int64_t one[] = {t.dim[0], t.dim[1], 1, t.dim[2], t.dim[3]};
    int64_t all[] = {t.dim[0], t.dim[1], heads / t.dim[1], t.dim[2], t.dim[3]};
    int64_t to[] = {t.dim[0], heads, t.dim[2], t.dim[3]};
    TRY(ox_reshape(ox, *x, 5, one, x));
    TRY(ox_expand(ox, *x, 5, all, x));
    return ox_reshape(ox, *x, 4, to, x);
}

static Status read_heads(Ox *ox, Heads *h) {
    ValueId *x[] = {&h->q, &h->k, &h->v};
    int rank = ox_type(ox, ox_in(ox, 0)).rank;
    h->merged = rank == 3;
    for (int i = 0; i < 3; i++) {
        *x[i] = ox_in(ox, i);
        if ((rank != 3 && rank != 4) || ox_type(ox, *x[i]).rank != rank)
            return ox_fail(ox, "Q, K and V must all have rank 3 or 4");
        if (h->merged)
            TRY(split_heads(ox, x[i],
                            ox_int(ox, i ? "kv_num_heads" : "q_num_heads", 0)));
    }
    Type q = ox_type(ox, h->q);
    h->heads = q.dim[1];
    h->t = q.dim[2];
    h->s = ox_type(ox, h->k).dim[2];
    h->dtype = q.dtype;
    TRY(repeat_heads(ox, &h->k, h->heads));
    return repeat_heads(ox, &h->v, h->heads);
}

/* ---- bias ---------------------------------------------------------------- */

/* 0 where query i may see key j, else -inf; NO_VALUE when it always may. */
static Status position_bias(Ox *ox, const Heads *h, ValueId *out) {
    bool causal = ox_int(ox, "is_causal", 0) != 0;
    int64_t left = ox_int(ox, "left_window_size", -1);
    int64_t right = ox_int(ox, "right_window_size", -1), n;
    *out = NO_VALUE;
    if (!causal && left < 0 && right < 0) return OK;
    if (!mul_ok(h->t, h->s, &n) || n > OX_MAX_FOLD)
        return ox_fail(ox, "a mask of %" PRId64 " by %" PRId64, h->t, h->s);
    TypeId type = type_make(h->dtype, 2, (int64_t[]){h->t, h->s});
    EvalTensor *e = eval_tensor_new(ox->a, type);
    for (int64_t i = 0; i < h->t; i++)
        for (int64_t j = 0; j < h->s; j++) {
            bool sees = !(causal && j > i) && !(left >= 0 && i - j > left) &&
                        !(right >= 0 && j - i > right);
            e->f[i * h->s + j] = sees ? 0 : -INFINITY;
        }
    return ox_const(ox, eval_to_tensor(ox->a, e, type), out);
}

/* The mask operand as a bias; a narrow one hides the keys it lacks. */
static Status mask_bias(Ox *ox, const Heads *h, ValueId *out) {
    ValueId m = ox_in(ox, 3);
    *out = NO_VALUE;
    if (!is_value(m)) return OK;
    Type t = ox_type(ox, m);
    double inf = (double)-INFINITY;
    if (t.dtype == DT_BOOL)
        TRY(ox3(ox, OP_WHERE, m, ox_scalar(ox, h->dtype, 0),
                ox_scalar(ox, h->dtype, inf), &m));
    if (t.rank && t.dim[t.rank - 1] > 1 && t.dim[t.rank - 1] < h->s) {
        int64_t pads[2 * MAX_RANK] = {0};
        pads[2 * t.rank - 1] = h->s - t.dim[t.rank - 1];
        Attr attr[] = {attr_v(AK_pads, pads, 2 * t.rank),
                       attr_s(AK_mode, "constant"), attr_f(AK_value, inf)};
        TRY(ox_op(ox, OP_PAD, &m, 1, attr, 3, &m));
    }
    *out = m;
    return OK;
}

/* ---- the op -------------------------------------------------------------- */

static Status scores(Ox *ox, const Heads *h, ValueId *s) {
    double size = (double)ox_type(ox, h->q).dim[3];
    double scale = ox_float(ox, "scale", 1 / sqrt(size > 0 ? size : 1));
    double cap = ox_float(ox, "softcap", 0);
    ValueId q;
    Attr attr[] = {attr_i(AK_trans_a, 0), attr_i(AK_trans_b, 1)};
    TRY(ox2k(ox, OP_MUL, h->q, scale, &q));
    TRY(ox_op(ox, OP_MATMUL, (ValueId[]){q, h->k}, 2, attr, 2, s));
    if (cap == 0) return OK;
    TRY(ox2k(ox, OP_DIV, *s, cap, s));
    TRY(ox1(ox, OP_TANH, *s, s));
    return ox2k(ox, OP_MUL, *s, cap, s);
}

/* Softmax; a row that sees nothing gives zeros, not NaN. */
static Status weights(Ox *ox, const Heads *h, bool may_be_blind, ValueId *p) {
    Attr axis = attr_i(AK_axis, 3);
    DType d = h->dtype;
    ValueId blind;
    if (ox_attr(ox, "softmax_precision")) {
        int64_t code = ox_int(ox, "softmax_precision", 0);
        TRY(ox_dtype(ox, code < 0 || code > 1000 ? -1 : (int)code,
                     "softmax_precision", &d));
    }
    TRY(ox_cast(ox, *p, d, true, p));
    TRY(ox_op(ox, OP_SOFTMAX, p, 1, &axis, 1, p));
    if (may_be_blind) {
        TRY(ox1(ox, OP_ISNAN, *p, &blind));
        TRY(ox3(ox, OP_WHERE, blind, ox_scalar(ox, d, 0), *p, p));
    }
    return ox_cast(ox, *p, h->dtype, true, p);
}

static Status refuse_caches(Ox *ox) {
    for (int i = 4; i < 7; i++)
        if (is_value(ox_in(ox, i)))
            return ox_fail(ox, "key and value caches are for inference");
    for (int i = 1; i < 4; i++)
        if (ox_has_out(ox, i))
            return ox_fail(ox, "result %d is not supported", i);
    return OK;
}

Status onnx_attention(Ox *ox) {
    Heads h = {0};
    ValueId s, y, mask, position;
    TRY(refuse_caches(ox));
    TRY(read_heads(ox, &h));
    TRY(position_bias(ox, &h, &position));
    TRY(mask_bias(ox, &h, &mask));
    TRY(scores(ox, &h, &s));
    Type before = ox_type(ox, s);
    if (is_value(mask) && is_value(position))
        TRY(ox2(ox, OP_ADD, mask, position, &mask));
    ValueId bias = is_value(mask) ? mask : position;
    if (is_value(bias)) TRY(ox2(ox, OP_ADD, s, bias, &s));
    Type after = ox_type(ox, s);
    if (!shape_equal(&before, &after))
        return ox_fail(ox, "the mask does not broadcast to the scores");
    bool window = ox_int(ox, "left_window_size", -1) >= 0 ||
                  ox_int(ox, "right_window_size", -1) >= 0;
    TRY(weights(ox, &h, is_value(mask) || window, &s));
    TRY(ox2(ox, OP_MATMUL, s, h.v, &y));
    if (h.merged) {
        Type t = ox_type(ox, y);
        int64_t dim[] = {t.dim[0], t.dim[2], t.dim[1] * t.dim[3]};
        TRY(ox_transpose(ox, y, (int64_t[]){0, 2, 1, 3}, &y));
        TRY(ox_reshape(ox, y, 3, dim, &y));
    }
    return ox_out(ox, 0, y);
}
