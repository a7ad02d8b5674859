/* SPDX-License-Identifier: Apache-2.0 */
/* onnx_kinks.c: gradients at kinks and ties, where frameworks differ.

   std.amp has those of PyTorch 2.15 (docs/coverage/subgradients.csv is the
   whole table, with the columns of PyTorch 2.11 and JAX).  ox_find_kinks alone
   decides by the file's producer and its version; the handlers here obey. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "frontend/onnx/onnx.h"

/* Up to PyTorch 2.11, clamp passed the gradient at its bounds. */
static bool clamp_passed(const Onnx__ModelProto *m) {
    const char *version = ox_text(m->producer_version);
    char *end;
    if (strcmp(m->producer_name, "pytorch")) return false;
    long major = strtol(version, &end, 10);
    long minor = *end == '.' ? strtol(end + 1, NULL, 10) : 0;
    return major < 2 || (major == 2 && minor <= 11);
}

void ox_find_kinks(Ox *ox) {
    const Onnx__ModelProto *m = ox->model;
    bool jax = m->producer_name && !strcmp(m->producer_name, "jax2onnx");
    ox->kinks = (OxKinks){
        .clamp_passes = ox->is_torch && clamp_passed(m),
        .clamp_shares = jax,
        .abs_is_above = jax,
        .max_is_element = ox->is_torch && !ox->has_signature,
    };
}

/* ---- clamp --------------------------------------------------------------- */

/* The node whose result is operand i, ignoring casts, or NULL. */
static const OxNode *origin(const Ox *ox, Str name) {
    for (;;) {
        const OxName *x = ox_name_of(ox, name);
        if (!x || x->kind != OX_RESULT) return NULL;
        const OxNode *n = &ox->nodes.data[x->index];
        bool cast = n->op && (n->op->handler == OX_cast ||
                              n->op->handler == OX_cast_like ||
                              n->op->handler == OX_identity);
        if (!cast || ox_torch_node(n, "aten.scalar_tensor")) return n;
        name = n->in[0];
    }
}

/* A Python number, as dynamo writes it, not a tensor. */
static bool is_python_number(const Ox *ox, Str name) {
    const OxNode *n = origin(ox, name);
    const OxName *x = ox_name_of(ox, name);
    if (n && ox_torch_node(n, "aten.scalar_tensor")) return true;
    while (x && x->kind == OX_RESULT && ox->nodes.data[x->index].nin)
        x = ox_name_of(ox, ox->nodes.data[x->index].in[0]);
    return x && x->kind == OX_INIT && !strncmp(x->name, "scalar_tensor", 13);
}

/* In files of TorchScript only the bounds of clamp and relu6 are cast. */
static bool bounds_are_cast(const Ox *ox) {
    for (int i = 1; i < ox->node->nin; i++) {
        const OxName *x = ox_name_of(ox, ox->node->in[i]);
        if (x && x->kind == OX_RESULT &&
            ox->nodes.data[x->index].op->handler == OX_cast)
            return true;
    }
    return false;
}

/* For hardtanh and relu6 no version of PyTorch passes a gradient at the
   bounds. */
static bool is_activation(const Ox *ox, double min, double max) {
    const OxNode *n = ox->node;
    if (ox_torch_node(n, "aten.clamp")) return false;
    if (ox_torch_node(n, "aten.")) return true;
    return (min == 0 && max == 6) || !bounds_are_cast(ox);
}

/* A squared distance, which cdist clamps at 0 below its root: there the root's
   slope is infinite, and PyTorch's distance has gradient 0. */
static bool is_distance(const Ox *ox) {
    const OxNode *n = ox->node;
    if (!ox->is_torch || !ox_maker(ox, n->in[0], "MatMul") ||
        ox_uses(ox, n->out[0]) != 1)
        return false;
    for (int i = 0; i < ox->order.len; i++) {
        const OxNode *reader = &ox->nodes.data[ox->order.data[i]];
        if (reader->nin == 1 && reader->in[0] == n->out[0])
            return !strcmp(reader->type, "Sqrt");
    }
    return false;
}

/* Selects x if it is not below (above) the bound; otherwise the bound, which
   gets the gradient. */
static Status pass_at_bound(Ox *ox, OpCode op, ValueId x, ValueId bound,
                            ValueId *y) {
    ValueId inside, other;
    OpCode order = op == OP_MAX ? OP_GREATER_EQUAL : OP_LESS_EQUAL;
    TRY(ox2(ox, order, x, bound, &inside));
    TRY(ox2(ox, op, x, bound, &other));
    return ox3(ox, OP_WHERE, inside, x, other, y);
}

static Status clip_to(Ox *ox, ValueId x, double min, double max, bool inclusive,
                      ValueId *y) {
    Attr attr[] = {attr_f(AK_min, min), attr_f(AK_max, max),
                   attr_i(AK_inclusive, inclusive)};
    return ox_op(ox, OP_CLIP, &x, 1, attr, 3, y);
}

static Status bound_by(Ox *ox, OpCode op, ValueId bound, double k, ValueId *y) {
    if (!is_value(bound) && isinf(k)) return OK;
    if (!is_value(bound)) bound = ox_scalar(ox, ox_type(ox, *y).dtype, k);
    bool passes =
        ox->kinks.clamp_passes && dtype_is_float(ox_type(ox, *y).dtype);
    return passes ? pass_at_bound(ox, op, *y, bound, y)
                  : ox2(ox, op, *y, bound, y);
}

Status onnx_clip(Ox *ox) {
    ValueId x = ox_in(ox, 0), y = x;
    ValueId vmin = ox_in(ox, 1), vmax = ox_in(ox, 2);
    double min = ox_float(ox, "min", -INFINITY);
    double max = ox_float(ox, "max", INFINITY);
    bool known = dtype_is_float(ox_type(ox, x).dtype);
    if (is_value(vmin)) known &= ox_const_scalar(ox, vmin, &min);
    if (is_value(vmax)) known &= ox_const_scalar(ox, vmax, &max);
    if (known && !isnan(min) && !isnan(max) && !ox->kinks.clamp_shares) {
        bool passes = ox->kinks.clamp_passes && !is_activation(ox, min, max) &&
                      !(min == 0 && is_distance(ox));
        TRY(clip_to(ox, x, min, max, passes, &y));
    } else {
        TRY(bound_by(ox, OP_MAX, vmin, min, &y));
        TRY(bound_by(ox, OP_MIN, vmax, max, &y));
    }
    return ox_out(ox, 0, y);
}

/* ---- max, min ------------------------------------------------------------ */

/* The Max inside a Min that together are JAX's relu6, hard_tanh or
   lax.clamp, by the result's name in jax2onnx; or NULL. */
static const OxNode *jax_max(const Ox *ox, bool *inclusive) {
    static const char *const names[] = {"hard_tanh_maxed", "relu6_max",
                                        "clamp_max_out"};
    const OxName *x = ox_name_of(ox, ox->node->in[0]);
    if (!ox->kinks.clamp_shares || ox->node->op->core != OP_MIN ||
        ox->node->nin != 2 || !x || x->kind != OX_RESULT)
        return NULL;
    for (int i = 0; i < 3; i++)
        if (!strncmp(x->name, names[i], strlen(names[i]))) {
            const OxNode *max = &ox->nodes.data[x->index];
            *inclusive = i == 0;
            return max->op->core == OP_MAX && max->nin == 2 ? max : NULL;
        }
    return NULL;
}

/* hard_tanh has slope 1 also at the bounds. */
static Status bounded(Ox *ox, const OxNode *max, bool inclusive, ValueId *y) {
    ValueId x = ox_name_of(ox, max->in[0])->value;
    ValueId low = ox_name_of(ox, max->in[1])->value;
    ValueId raised = ox_in(ox, 0), high = ox_in(ox, 1), below, above, inner;
    double least, most;
    if (ox_const_scalar(ox, low, &least) && ox_const_scalar(ox, high, &most) &&
        !isnan(least) && !isnan(most) && dtype_is_float(ox_type(ox, x).dtype))
        return clip_to(ox, x, least, most, inclusive, y);
    TRY(ox2(ox, inclusive ? OP_LESS : OP_LESS_EQUAL, x, low, &below));
    TRY(ox2(ox, inclusive ? OP_GREATER : OP_GREATER_EQUAL, raised, high,
            &above));
    TRY(ox3(ox, OP_WHERE, below, low, x, &inner));
    return ox3(ox, OP_WHERE, above, high, inner, y);
}

/* One bound of dynamo's clamp: a Max or Min of x and the bound. */
static Status clamp_part(Ox *ox, OpCode op, ValueId x, ValueId bound,
                         ValueId *y) {
    double k;
    if (ox->kinks.clamp_passes) return pass_at_bound(ox, op, x, bound, y);
    if (!is_python_number(ox, ox->node->in[1]) ||
        !ox_const_scalar(ox, bound, &k) || isnan(k) ||
        !dtype_is_float(ox_type(ox, x).dtype))
        return ox2(ox, op, x, bound, y);
    return clip_to(ox, x, op == OP_MAX ? k : -INFINITY,
                   op == OP_MAX ? INFINITY : k, false, y);
}

Status onnx_extreme(Ox *ox) {
    OpCode op = ox->node->op->core;
    ValueId y = ox_in(ox, 0);
    bool inclusive = false;
    const OxNode *max = jax_max(ox, &inclusive);
    bool clamp = ox->node->nin == 2 && ox_torch_node(ox->node, "aten.clamp");
    double k;
    if (op == OP_MAX && ox->node->nin == 2 &&
        ox_const_scalar(ox, ox_in(ox, 1), &k) && k == 0 && is_distance(ox)) {
        TRY(clip_to(ox, y, 0, INFINITY, false, &y));
        return ox_out(ox, 0, y);
    }
    for (int i = 1; i < ox->node->nin; i++) {
        ValueId x = y, z = ox_in(ox, i);
        if (max)
            TRY(bounded(ox, max, inclusive, &y));
        else if (clamp)
            TRY(clamp_part(ox, op, x, z, &y));
        else
            TRY(ox2(ox, op, x, z, &y));
    }
    return ox_out(ox, 0, y);
}

/* x.max(dim) or the maximum of an EmbeddingBag, not x.amax(dim), which shares
   the gradient. */
bool ox_picks_element(const Ox *ox, DType d, int naxes) {
    OpCode op = ox->node->op->core;
    if (ox->node->op->fn || (op != OP_REDUCE_MAX && op != OP_REDUCE_MIN) ||
        naxes != 1 || !dtype_is_float(d))
        return false;
    return ox_torch_node(ox->node, "aten.max.dim") ||
           ox_torch_node(ox->node, "aten.min.dim") ||
           ox_torch_node(ox->node, "aten.embedding_bag") ||
           ox->kinks.max_is_element;
}

/* ---- others -------------------------------------------------------------- */

Status onnx_abs(Ox *ox) {
    ValueId x = ox_in(ox, 0), y;
    if (ox->kinks.abs_is_above && dtype_is_float(ox_type(ox, x).dtype))
        TRY(ox_call(ox, "abs_above", &x, 1, NULL, 0, 1, &y));
    else
        TRY(ox1(ox, OP_ABS, x, &y));
    return ox_out(ox, 0, y);
}

Status onnx_leaky_relu(Ox *ox) {
    ValueId x = ox_in(ox, 0), above, scaled, y;
    if (!ox->kinks.abs_is_above) return onnx_call(ox);
    TRY(ox2k(ox, OP_GREATER_EQUAL, x, 0, &above));
    TRY(ox2k(ox, OP_MUL, x, ox_float(ox, "alpha", 0.01), &scaled));
    TRY(ox3(ox, OP_WHERE, above, x, scaled, &y));
    return ox_out(ox, 0, y);
}

/* The angle of (0, 0) is 0, but TorchScript's formula gives 0/0. The formula
   reads the atan three times; a user's own atan keeps its NaN. */
static Status angle_of_zero(Ox *ox, const ValueId *in, ValueId *y) {
    ValueId zero, other;
    if (!ox->is_torch || ox_uses(ox, ox->node->out[0]) != 3) return OK;
    TRY(ox2k(ox, OP_EQUAL, in[0], 0, &zero));
    TRY(ox2k(ox, OP_EQUAL, in[1], 0, &other));
    TRY(ox2(ox, OP_AND, zero, other, &zero));
    return ox3(ox, OP_WHERE, zero, ox_scalar(ox, ox_type(ox, *y).dtype, 0), *y,
               y);
}

/* Exporters write atan2 as a corrected atan of a quotient: its gradient is
   the angle's, which is finite even if the quotient is not. */
Status onnx_atan(Ox *ox) {
    ValueId x = ox_in(ox, 0), y;
    const Node *n = ox_def(ox, x, OP_DIV);
    ValueId in[2];
    if (n) {
        in[0] = n->in[0], in[1] = n->in[1]; /* creating nodes may move the
                                               pool */
        TRY(ox_call(ox, "atan_of_ratio", in, 2, NULL, 0, 1, &y));
        TRY(angle_of_zero(ox, in, &y));
    } else {
        TRY(ox1(ox, OP_ATAN, x, &y));
    }
    return ox_out(ox, 0, y);
}
