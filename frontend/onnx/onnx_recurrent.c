/* SPDX-License-Identifier: Apache-2.0 */
/* onnx_recurrent.c: RNN, GRU, LSTM as calls of `recurrent`. */
#include <inttypes.h>
#include <string.h>
#include <strings.h>

#include "frontend/onnx/onnx.h"

enum { GATES = 3 }; /* f, g and h of ONNX: `recurrent`'s f, g and out */

/* Our name of an activation; case is ignored. NULL: unknown. */
static const char *activation(const char *s, size_t n) {
    static const char *const ours[][2] = {{"Sigmoid", "sigmoid"},
                                          {"Tanh", "tanh"},
                                          {"Relu", "relu"},
                                          {"Softsign", "softsign"},
                                          {"Softplus", "softplus"},
                                          {"HardSigmoid", "hard_sigmoid"},
                                          {"Elu", "elu"}};
    for (size_t i = 0; i < sizeof ours / sizeof *ours; i++)
        if (strlen(ours[i][0]) == n && !strncasecmp(ours[i][0], s, n))
            return ours[i][1];
    return NULL;
}

/* ONNX groups the activations by direction: three for an LSTM, two for a
   GRU, one for an RNN. */
static Status activations(Ox *ox, Str cell, int ways, Attr *out) {
    static const char *const key[2][GATES] = {{"f", "g", "out"},
                                              {"f_back", "g_back", "out_back"}};
    int each = !strcmp(cell, "LSTM") ? 3 : !strcmp(cell, "GRU") ? 2 : 1;
    const Onnx__AttributeProto *p = ox_attr(ox, "activations");
    const Onnx__AttributeProto *alpha = ox_attr(ox, "activation_alpha");
    const Onnx__AttributeProto *beta = ox_attr(ox, "activation_beta");
    if ((alpha && alpha->n_floats) || (beta && beta->n_floats))
        return ox_fail(ox, "activation_alpha and activation_beta are not "
                           "supported");
    if (p && p->n_strings && p->n_strings != (size_t)(each * ways))
        return ox_fail(ox, "%zu activations, needs %d", p->n_strings,
                       each * ways);
    for (int k = 0; k < 2 * GATES; k++) {
        int way = k / GATES, i = k % GATES;
        const char *name = each > 1 && i == 0 ? "sigmoid" : "tanh";
        if (p && p->n_strings && i < each) {
            ProtobufCBinaryData s =
                p->strings[(ways == 2 ? way : 0) * each + i];
            name = activation((const char *)s.data, s.len);
        }
        if (!name) return ox_fail(ox, "activation %d is not supported", i);
        out[k] = attr_s(attr_key(key[way][i], ATTR_STR), name);
    }
    return OK;
}

static Status recurrent(Ox *ox, const ValueId in[8], Str cell) {
    ValueId out[3];
    Attr attr[MAX_OP_ATTRS];
    int n, ways;
    ways = !strcmp(ox_str(ox, "direction", "forward"), "bidirectional") ? 2 : 1;
    if (ox_int(ox, "hidden_size", 0) &&
        (ox_type(ox, in[2]).rank != 3 ||
         ox_int(ox, "hidden_size", 0) != ox_type(ox, in[2]).dim[2]))
        return ox_fail(ox, "hidden_size disagrees with operand R");
    TRY(ox_mapped(ox, attr, &n));
    TRY(activations(ox, cell, ways, attr + n));
    TRY(ox_call(ox, "recurrent", in, 8, attr, n + 2 * GATES, 3, out));
    for (int i = 0; i < ox->node->nout; i++) TRY(ox_out(ox, i, out[i]));
    return OK;
}

Status onnx_recurrent(Ox *ox) {
    ValueId in[8];
    for (int i = 0; i < 8; i++) in[i] = ox_in(ox, i);
    return recurrent(ox, in, ox->node->type);
}

/* Weights of [directions, in, gates] with a scale and a zero point for each
   direction, or for each gate of one. */
static Status real_weights(Ox *ox, int w, int scale, ValueId *y) {
    static const int64_t perm[] = {0, 2, 1};
    TRY(ox_numbers(ox, ox_in(ox, w), y));
    Type t = ox_type(ox, *y);
    if (t.rank != 3) return ox_fail(ox, "operand %d has rank %d", w, t.rank);
    for (int k = 1; k >= 0; k--) {
        ValueId z;
        TRY(ox_numbers(ox, ox_in(ox, scale + k), &z));
        if (!is_value(z)) continue;
        Type tz = ox_type(ox, z);
        int64_t n = type_count(&tz), dim[] = {t.dim[0], 1, n / t.dim[0]};
        if (n != t.dim[0] && n != t.dim[0] * t.dim[2])
            return ox_fail(ox,
                           "operand %d has %" PRId64 " elements, needs "
                           "one for each direction or each gate",
                           scale + k, n);
        TRY(ox_reshape(ox, z, 3, dim, &z));
        TRY(ox2(ox, k ? OP_SUB : OP_MUL, *y, z, y));
    }
    return ox_transpose(ox, *y, perm, y);
}

/* An LSTM that rounds what it multiplies with 8-bit weights: x as a whole, and
   the state of each sample. ONNX Runtime rounds the states of all samples that
   a thread computes together, so that its results depend on the threads. */
Status onnx_dynamic_lstm(Ox *ox) {
    ValueId in[8];
    for (int i = 0; i < 8; i++) in[i] = ox_in(ox, i);
    TRY(real_weights(ox, 1, 8, &in[1]));
    TRY(real_weights(ox, 2, 10, &in[2]));
    return recurrent(ox, in, "LSTM");
}
