/* SPDX-License-Identifier: Apache-2.0 */
/* onnx_emit_forms.c: how ONNX writes each op. */
#include <math.h>
#include <string.h>

#include "frontend/onnx/onnx_emit.h"

/* Brings all operands except a condition to one dtype. */
static Status put_elem(Emit *e, const Form *f) {
    Str in[3];
    int first = e->n->op == OP_WHERE;
    DType d = emit_meet(e, first);
    for (int i = 0; i < e->n->nin; i++)
        in[i] = emit_as_dtype(e, e->n->in[i], i < first ? DT_BOOL : d);
    DType y = value_dtype(e->g, e->n->out[0]);
    return emit_chain(e, f->names, f->attrs, in, e->n->nin,
                      dtype_is_float(y) ? d : y);
}

/* All operands but the first are constants that ONNX does not round. */
static Status put_moved(Emit *e, const Form *f) {
    Str in[2] = {emit_as_stored(e, e->n->in[0])};
    const int64_t *v;
    DType d = value_dtype(e->g, e->n->in[0]);
    if (e->n->op == OP_EXPAND && dtype_is_float(d)) { /* the runtimes' own */
        d = emit_meet(e, 0);
        in[0] = emit_as_dtype(e, e->n->in[0], d);
    }
    int n = attr_ints(e->n, AK_shape, &v);
    bool shape = e->n->op != OP_TRANSPOSE;
    if (shape) in[1] = emit_ints(e, v, n);
    return emit_chain(e, f->names, f->attrs, in, 1 + shape, d);
}

static Status put_slice(Emit *e, const Form *f) {
    const Type *x = value_type(e->g, e->n->in[0]);
    const int64_t *from, *size, *step;
    int64_t to[MAX_RANK], axes[MAX_RANK];
    attr_ints(e->n, AK_starts, &from);
    attr_ints(e->n, AK_sizes, &size);
    attr_ints(e->n, AK_steps, &step);
    for (int i = 0; i < x->rank; i++) {
        axes[i] = i;
        to[i] = size[i] ? from[i] + (size[i] - 1) * step[i] : from[i] - 1;
        to[i] += step[i] > 0 || !size[i] ? 1 : -1;
        if (to[i] < 0)
            to[i] = INT64_MIN + 1; /* and does not count from the
                                      end */
    }
    Str in[] = {emit_as_stored(e, e->n->in[0]), emit_ints(e, from, x->rank),
                emit_ints(e, to, x->rank), emit_ints(e, axes, x->rank),
                emit_ints(e, step, x->rank)};
    return emit_chain(e, f->names, "", in, 5, x->dtype);
}

static Status put_pad(Emit *e, const Form *f) {
    const int64_t *pads;
    int n = attr_ints(e->n, AK_pads, &pads);
    DType d = emit_meet(e, 0);
    Str in[] = {emit_as_dtype(e, e->n->in[0], d), emit_ints(e, pads, n),
                emit_number(e, d, attr_float(e->n, AK_value))};
    return emit_chain(e, f->names, f->attrs, in, 3, d);
}

static Status put_concat(Emit *e, const Form *f) {
    Str *in = NEW_ARRAY(e->a, Str, e->n->nin);
    DType d = value_dtype(e->g, e->n->in[0]);
    for (int i = 1; i < e->n->nin; i++)
        d = dtype_promote(d, value_dtype(e->g, e->n->in[i]));
    for (int i = 0; i < e->n->nin; i++)
        in[i] = emit_as_dtype(e, e->n->in[i], d);
    return emit_chain(e, f->names, f->attrs, in, e->n->nin, d);
}

static Status put_gather(Emit *e, const Form *f) {
    DType i = value_dtype(e->g, e->n->in[1]);
    Str in[] = {emit_as_stored(e, e->n->in[0]),
                emit_as_dtype(e, e->n->in[1], i == DT_I32 ? DT_I32 : DT_I64)};
    return emit_chain(e, f->names, f->attrs, in, 2,
                      value_dtype(e->g, e->n->in[0]));
}

/* Reverses the row of onnx_ops.def: an operand in ONNX that is an attribute
   here becomes an operand again. */
static Status put_emit_row(Emit *e, const Form *f) {
    enum { MOST = 8 };
    Str in[MOST];
    const OpInfo *info = node_info(e->n);
    const OxOp *row = ox_op_find(f->names);
    DType d = emit_meet(e, 0), y = value_dtype(e->g, e->n->out[0]);
    int nin = e->n->nin;
    ASSERT(nin + info->nattr <= MOST);
    for (int i = 0; i < nin; i++) in[i] = emit_as_dtype(e, e->n->in[i], d);
    for (int i = 0; i < info->nattr; i++) {
        AttrKey key = info->attrs[i];
        OxMapEntry from = ox_map_to(row, attr_get(key)->text);
        if (!from.operand) continue;
        ASSERT(from.operand == nin);
        in[nin++] = emit_number(e, DT_I64, (double)attr_int(e->n, key));
    }
    if (!dtype_is_float(y)) d = y;
    Str to = emit_made(e, d);
    Onnx__NodeProto *p = emit_node(e, row->name, in, nin, to);
    for (int i = 0; i < e->n->nattr; i++) {
        const Attr *a = &e->n->attrs[i];
        OxMapEntry from = ox_map_to(row, attr_get(a->key)->text);
        if (!from.operand) emit_copy_attr(e, p, from.from, a);
    }
    return emit_stored(e, to, d);
}

/* The second result of TopK. */
static Status put_argsort(Emit *e, const Form *f) {
    DType d = emit_meet(e, 0);
    int64_t k = attr_int(e->n, AK_k);
    Str in[] = {emit_as_dtype(e, e->n->in[0], d), emit_ints(e, &k, 1)};
    Str y = emit_made(e, DT_I64);
    Onnx__NodeProto *p = emit_node(e, f->names, in, 2, y);
    p->n_output = 2;
    p->output = NEW_ARRAY(e->a, char *, 2);
    p->output[0] = (char *)emit_fresh(e, &e->values, internf("%s/values", y));
    p->output[1] = (char *)y;
    emit_int(e, p, "largest", attr_int(e->n, AK_descending));
    return emit_stored(e, y, DT_I64);
}

/* Bound v of numbers of type d, or the end of their range beyond which it lies.
 */
static Str put_bound(Emit *e, DType d, double v) {
    const DTypeInfo *of = &dtype_info[d];
    int bits = 8 * of->bytes - (of->kind == DK_I);
    double least = of->kind == DK_I ? -ldexp(1, bits) : 0;
    if (dtype_is_int(d)) {
        v = fmax(v, least);
        if (of->bytes < 8) v = fmin(v, ldexp(1, bits) - 1);
    }
    return emit_number(e, d, v);
}

static Status put_clip(Emit *e, const Form *f) {
    DType d = emit_meet(e, 0);
    Str in[] = {emit_as_dtype(e, e->n->in[0], d),
                put_bound(e, d, attr_float(e->n, AK_min)),
                put_bound(e, d, attr_float(e->n, AK_max))};
    return emit_chain(e, f->names, "", in, 3, d);
}

static Status put_mod(Emit *e, const Form *f) {
    DType d = emit_meet(e, 0);
    Str in[] = {emit_as_dtype(e, e->n->in[0], d),
                emit_as_dtype(e, e->n->in[1], d)};
    Str y = emit_made(e, d);
    emit_int(e, emit_node(e, f->names, in, 2, y), "fmod", dtype_is_float(d));
    return emit_stored(e, y, d);
}

static Status put_gelu_tanh(Emit *e, const Form *f) {
    DType d = emit_meet(e, 0);
    Str in = emit_as_dtype(e, e->n->in[0], d), y = emit_made(e, d);
    emit_word(e, emit_node(e, f->names, &in, 1, y), "approximate", "tanh");
    return emit_stored(e, y, d);
}

/* (1 + erf(x / sqrt 2)) / 2 + x exp(-x^2 / 2) / sqrt(2 pi) */
static Status put_gelu_slope(Emit *e, const Form *f) {
    enum { NUMBER = -1, NONE = -2 };
    static const struct {
        const char *op;
        int a, b; /* 0: x; n: the result of part n - 1 */
        double number;
    } parts[] = {{"Mul", 0, NUMBER, 0.7071067811865476},
                 {"Erf", 1, NONE, 0},
                 {"Add", 2, NUMBER, 1},
                 {"Mul", 3, NUMBER, 0.5},
                 {"Mul", 0, 0, 0},
                 {"Mul", 5, NUMBER, -0.5},
                 {"Exp", 6, NONE, 0},
                 {"Mul", 7, NUMBER, 0.3989422804014327},
                 {"Mul", 8, 0, 0},
                 {"Add", 4, 9, 0}};
    enum { PARTS = sizeof parts / sizeof *parts };
    DType d = emit_meet(e, 0);
    Str at[PARTS + 1] = {emit_as_dtype(e, e->n->in[0], d)}, y = emit_made(e, d);
    (void)f;
    for (int i = 0; i < PARTS; i++) {
        int b = parts[i].b;
        Str in[] = {at[parts[i].a], b >= 0 ? at[b]
                                    : b == NUMBER
                                        ? emit_number(e, d, parts[i].number)
                                        : NULL};
        at[i + 1] = i + 1 == PARTS
                        ? y
                        : emit_fresh(e, &e->values, internf("%s/%d", y, i));
        emit_node(e, parts[i].op, in, b == NONE ? 1 : 2, at[i + 1]);
    }
    return emit_stored(e, y, d);
}

/* True for finite numbers: x - x is 0. */
static Status put_isfinite(Emit *e, const Form *f) {
    DType d = emit_meet(e, 0);
    Str x = emit_as_dtype(e, e->n->in[0], d), in[] = {x, x};
    Str zero = emit_fresh(e, &e->values, intern("zero"));
    emit_node(e, "Sub", in, 2, zero);
    Str both[] = {zero, emit_number(e, d, 0)};
    return emit_chain(e, f->names, "", both, 2, DT_BOOL);
}

/* A cast that a store needs, or that the user's model contains. */
static Status put_user_cast(Emit *e, const Form *f) {
    (void)f;
    const Type *t = value_type(e->g, e->n->out[0]);
    Str from = emit_as_stored(e, e->n->in[0]);
    emit_cast_to(e, from, t, t->dtype, emit_made(e, t->dtype));
    return OK;
}

static Status put_generated(Emit *e, const Form *f) {
    const Type *t = value_type(e->g, e->n->out[0]);
    Type small = {.dtype = t->dtype, .rank = t->rank};
    bool counts = e->n->op == OP_IOTA;
    int axis = (int)attr_int(e->n, AK_axis);
    for (int i = 0; i < t->rank; i++)
        small.dim[i] = counts && i == axis ? t->dim[i] : 1;
    if (dtype_is_low(small.dtype)) small.dtype = DT_F32;
    const Tensor *x =
        tensor_new(e->a, type_make(small.dtype, small.rank, small.dim));
    for (int64_t i = 0, n = type_count(&small); i < n; i++)
        tensor_set(x, i, counts ? (double)i : attr_float(e->n, AK_value));
    Str in[] = {emit_tensor(e, emit_fresh(e, &e->values, intern("values")),
                            &small, x->data),
                emit_ints(e, t->dim, t->rank)};
    return emit_chain(e, f->names, "", in, 2, small.dtype);
}

static Status put_reduced(Emit *e, const Form *f) {
    const int64_t *axes;
    int n = attr_ints(e->n, AK_axes, &axes);
    DType d = emit_meet(e, 0);
    Str in[] = {emit_as_dtype(e, e->n->in[0], d), emit_ints(e, axes, n)};
    return emit_chain(e, f->names, f->attrs, in, 2, d);
}

/* Gemm for two matrices; otherwise the last two axes are transposed first. */
static Status put_matmul(Emit *e, const Form *f) {
    DType d = emit_meet(e, 0);
    Str in[2];
    AttrKey trans[] = {AK_trans_a, AK_trans_b};
    bool flat = true, any = false;
    for (int i = 0; i < 2; i++) {
        in[i] = emit_as_dtype(e, e->n->in[i], d);
        flat &= value_type(e->g, e->n->in[i])->rank == 2;
        any |= attr_int(e->n, trans[i]) != 0;
    }
    if (flat && any) {
        Str y = emit_made(e, d);
        Onnx__NodeProto *p = emit_node(e, "Gemm", in, 2, y);
        emit_int(e, p, "transA", attr_int(e->n, AK_trans_a));
        emit_int(e, p, "transB", attr_int(e->n, AK_trans_b));
        return emit_stored(e, y, d);
    }
    for (int i = 0; i < 2; i++) {
        int rank = value_type(e->g, e->n->in[i])->rank;
        int64_t perm[MAX_RANK];
        if (!attr_int(e->n, trans[i])) continue;
        for (int k = 0; k < rank; k++) perm[k] = k;
        perm[rank - 1] = rank - 2;
        perm[rank - 2] = rank - 1;
        Str y = emit_fresh(e, &e->values, internf("%s/transposed", in[i]));
        emit_list(e, emit_node(e, "Transpose", &in[i], 1, y), "perm", perm,
                  rank);
        in[i] = y;
    }
    return emit_chain(e, f->names, "", in, 2, d);
}

/* The range of window positions along spatial axis i of x. */
static int64_t window_room(const Node *n, const Type *x, int i,
                           int64_t kernel) {
    const int64_t *pads, *dilations;
    attr_ints(n, AK_pads, &pads);
    attr_ints(n, AK_dilations, &dilations);
    return x->dim[i + 2] + pads[i] + pads[i + x->rank - 2] -
           (kernel - 1) * dilations[i] - 1;
}

/* The gradient of a convolution with respect to its operand is
   ConvTranspose; positions at the end that no window reached are
   output_padding. */
static Status put_conv_transposed(Emit *e, const Form *f) {
    const Type *y = value_type(e->g, e->n->in[0]);
    const Type *w = value_type(e->g, e->n->in[1]);
    const Type *x = value_type(e->g, e->n->out[0]);
    const int64_t *strides;
    int64_t rest[MAX_RANK];
    DType d = emit_meet(e, 0);
    int spatial = attr_ints(e->n, AK_strides, &strides);
    for (int i = 0; i < spatial; i++)
        rest[i] = window_room(e->n, x, i, w->dim[i + 2]) -
                  strides[i] * (y->dim[i + 2] - 1);
    Str in[] = {emit_as_dtype(e, e->n->in[0], d),
                emit_as_dtype(e, e->n->in[1], d)};
    Str out = emit_made(e, d);
    Onnx__NodeProto *p = emit_node(e, f->names, in, 2, out);
    emit_copy_attrs(e, p, f->attrs);
    emit_list(e, p, "output_padding", rest, spatial);
    return emit_stored(e, out, d);
}

static Status put_pool(Emit *e, const Form *f) {
    const Type *x = value_type(e->g, e->n->in[0]);
    const int64_t *kernel, *strides, *sizes;
    int n = attr_ints(e->n, AK_strides, &strides);
    bool floors = true, ceils = true;
    attr_ints(e->n, AK_kernel_shape, &kernel);
    attr_ints(e->n, AK_sizes, &sizes);
    for (int i = 0; i < n; i++) {
        int64_t room = window_room(e->n, x, i, kernel[i]);
        floors &= sizes[i] == room / strides[i] + 1;
        ceils &= sizes[i] == (room + strides[i] - 1) / strides[i] + 1;
    }
    if (!floors && !ceils)
        return emit_fail(e, "its windows have no form in ONNX");
    DType d = emit_meet(e, 0);
    Str in = emit_as_dtype(e, e->n->in[0], d), y = emit_made(e, d);
    Onnx__NodeProto *p = emit_node(e, f->names, &in, 1, y);
    emit_copy_attrs(e, p, f->attrs);
    emit_int(e, p, "ceil_mode", !floors);
    return emit_stored(e, y, d);
}

/* Ops without a usable row in onnx_ops.def. Ops in neither table (gradients,
   random numbers, parts of convolutions) have no ONNX op. */
#define WINDOW    "kernel_shape strides pads dilations"
#define CONVOLVED "strides pads dilations group"
static const Form forms[] = {
    {OP_RSQRT, "Sqrt Reciprocal", "", put_elem},
    {OP_ABS, "Abs", "", put_elem},
    {OP_ATAN, "Atan", "", put_elem},
    {OP_LEAKY_RELU, "LeakyRelu", "alpha", put_elem},
    {OP_LOG_SIGMOID, "Neg Softplus Neg", "", put_elem},
    {OP_GELU, "Gelu", "", put_elem},
    {OP_GELU_TANH, "Gelu", "", put_gelu_tanh},
    {OP_GELU_SLOPE, "Erf", "", put_gelu_slope},
    {OP_CLIP, "Clip", "", put_clip},
    {OP_ISINF, "IsInf", "", put_elem},
    {OP_ISFINITE, "Equal", "", put_isfinite},
    {OP_CAST, "Cast", "", put_user_cast},
    {OP_MOD, "Mod", "", put_mod},
    {OP_POW, "Pow", "", put_elem},
    {OP_MIN, "Min", "", put_elem},
    {OP_MAX, "Max", "", put_elem},
    {OP_BIT_AND, "BitwiseAnd", "", put_elem},
    {OP_WHERE, "Where", "", put_elem},
    {OP_FULL, "Expand", "", put_generated},
    {OP_IOTA, "Expand", "", put_generated},
    {OP_RESHAPE, "Reshape", "", put_moved},
    {OP_TRANSPOSE, "Transpose", "perm", put_moved},
    {OP_EXPAND, "Expand", "", put_moved},
    {OP_SLICE, "Slice", "", put_slice},
    {OP_PAD, "Pad", "mode", put_pad},
    {OP_CONCAT, "Concat", "axis", put_concat},
    {OP_GATHER, "Gather", "axis", put_gather},
    {OP_REDUCE_SUM, "ReduceSum", "keepdims", put_reduced},
    {OP_REDUCE_MEAN, "ReduceMean", "keepdims", put_reduced},
    {OP_REDUCE_SUMSQ, "ReduceSumSquare", "keepdims", put_reduced},
    {OP_REDUCE_PROD, "ReduceProd", "keepdims", put_reduced},
    {OP_REDUCE_MAX, "ReduceMax", "keepdims", put_reduced},
    {OP_REDUCE_MIN, "ReduceMin", "keepdims", put_reduced},
    {OP_ARGMAX, "ArgMax", "axis keepdims", put_elem},
    {OP_ARGSORT, "TopK", "", put_argsort},
    {OP_RANK_SUM, "Identity", "", put_elem},
    {OP_RANK_MAX, "Identity", "", put_elem},
    {OP_MATMUL, "MatMul", "", put_matmul},
    {OP_CONV, "Conv", CONVOLVED, put_elem},
    {OP_CONV_DGRAD, "ConvTranspose", CONVOLVED, put_conv_transposed},
    {OP_MAX_POOL, "MaxPool", WINDOW, put_pool},
    {OP_AVG_POOL, "AveragePool", WINDOW " count_include_pad", put_pool},
};

bool emit_find_form(OpCode op, Form *f) {
    const OxOp *row;
    for (size_t i = 0; i < sizeof forms / sizeof *forms; i++) {
        *f = forms[i];
        if (f->op == op) return true;
    }
    for (int i = 0; (row = ox_row(i)); i++) {
        *f = (Form){op, row->name, "", put_emit_row};
        if (!*row->domain &&
            (row->handler == OX_elem || row->handler == OX_call) &&
            ox_callee(row).op == op)
            return true;
    }
    return false;
}
