/* SPDX-License-Identifier: Apache-2.0 */
/* onnx_dtypes.c: operands with different element types where ONNX requires
   equal ones, as in files of Keras in mixed precision. Variables are fp32
   here whatever the file stores, so that this file tracks the file's own
   types. */
#include <string.h>

#include "frontend/onnx/onnx.h"

/* Ops whose operands all have one type. */
static const char *const of_one_type[] = {
    "Add",    "Sub",  "Mul",  "Div",           "Max",    "Min",   "Sum", "Mean",
    "MatMul", "Gemm", "Conv", "ConvTranspose", "Concat", "PRelu", NULL};
/* Ops whose result has another type than the first operand, or a type from
   an attribute that is not read here. */
static const char *const of_another[] = {"CastLike",
                                         "Constant",
                                         "ConstantOfShape",
                                         "DequantizeLinear",
                                         "DynamicQuantizeLinear",
                                         "EyeLike",
                                         "If",
                                         "Loop",
                                         "Multinomial",
                                         "OneHot",
                                         "QuantizeLinear",
                                         "RandomNormalLike",
                                         "RandomUniformLike",
                                         "Bernoulli",
                                         "Range",
                                         "Scan",
                                         "SequenceConstruct",
                                         "SequenceEmpty",
                                         "SequenceAt",
                                         "SequenceInsert",
                                         "SplitToSequence",
                                         "ConcatFromSequence",
                                         "Where",
                                         "Attention",
                                         "DFT",
                                         "STFT",
                                         NULL};

static bool is_among(Str type, const char *const *list) {
    for (; *list; list++)
        if (!strcmp(type, *list)) return true;
    return false;
}

/* Element type of each named value; -1: unknown, or not floating. */
typedef struct Known {
    Ox *ox;
    int *dtype;
} Known;

static int float_or_none(int code) {
    DType d;
    return dtype_from_onnx(code, &d) && dtype_is_float(d) ? (int)d : -1;
}

static int dtypes_known(const Known *k, Str name) {
    const OxName *n = ox_name_of(k->ox, name);
    if (!n) return -1;
    if (n->kind == OX_INIT)
        return float_or_none(k->ox->inits.data[n->index].proto->data_type);
    return k->dtype[n - k->ox->names.data];
}

static int result_of(const Known *k, const OxNode *n) {
    if (!strcmp(n->type, "Cast")) {
        for (int i = 0; i < n->nattr; i++)
            if (!strcmp(n->attr[i].name, "to") && n->attr[i].p->has_i)
                return float_or_none((int)n->attr[i].p->i);
        return -1;
    }
    return n->nin && !n->captured && !is_among(n->type, of_another)
               ? dtypes_known(k, n->in[0])
               : -1;
}

static Status check(const Known *k, const OxNode *n) {
    int first = -1, at = 0;
    if (!is_among(n->type, of_one_type)) return OK;
    for (int i = 0; i < n->nin; i++) {
        int d = dtypes_known(k, n->in[i]);
        if (d < 0 || d == first) continue;
        if (first >= 0)
            return ox_fail_node(
                k->ox, n,
                "operands '%s' of %s and '%s' of %s: ONNX has one type for "
                "both; export in float32, ampc's own mixed precision is an "
                "option",
                ox_quote(k->ox, n->in[at]), dtype_info[first].text,
                ox_quote(k->ox, n->in[i]), dtype_info[d].text);
        first = d;
        at = i;
    }
    return OK;
}

Status ox_check_dtypes(Ox *ox) {
    if (!ox->inits.len) return OK;
    Arena *tmp = arena_new();
    Known k = {ox, NEW_ARRAY(tmp, int, ox->names.len + 1)};
    Status s = OK;
    for (int i = 0; i < ox->names.len; i++) k.dtype[i] = -1;
    for (size_t i = 0; i < ox->graph->n_input; i++) {
        const Onnx__ValueInfoProto *v = ox->graph->input[i];
        const OxName *n = ox_name_of(ox, ox_text(v->name));
        if (n && v->type &&
            v->type->value_case == ONNX__TYPE_PROTO__VALUE_TENSOR_TYPE &&
            v->type->tensor_type)
            k.dtype[n - ox->names.data] =
                float_or_none(v->type->tensor_type->elem_type);
    }
    for (int i = 0; i < ox->order.len; i++) {
        const OxNode *n = &ox->nodes.data[ox->order.data[i]];
        if (check(&k, n) != OK) s = ERR_USER;
        int d = result_of(&k, n);
        const OxName *out = n->nout ? ox_name_of(ox, n->out[0]) : NULL;
        if (out) k.dtype[out - ox->names.data] = d;
    }
    arena_free(tmp);
    return s;
}
