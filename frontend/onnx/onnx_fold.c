/* SPDX-License-Identifier: Apache-2.0 */
/* onnx_fold.c: nodes whose operands are all constant become constants at once,
   so that shape arithmetic is gone when the next node needs it.  Equal
   constants and equal folds are shared: exporters repeat the same mask in every
   layer.  The size of each constant and their total are limited; beyond the
   limits a node is kept. */
#include <string.h>

#include "frontend/onnx/onnx.h"
#include "ir/fn/fn.h"

/* ---- constants ----------------------------------------------------------- */

/* Scalars have no names; constants of one type with equal bytes are shared. */
ValueId ox_make_const(Ox *ox, const char *name, const Tensor *t) {
    const Type *type = type_get(t->type);
    DType d = type->dtype;
    if (!type->rank && d != DT_U64)
        return dtype_is_float(d)
                   ? graph_scalar(ox->g, d, tensor_get(t, 0))
                   : graph_scalar_int(ox->g, d, tensor_get_int(t, 0));
    size_t n = (size_t)type_bytes(type);
    Str key = internf("%u %llx", t->type.i,
                      (unsigned long long)hash_bytes(1, t->data, n));
    int i = str_map_get(&ox->folds.consts, key);
    if (i >= 0) {
        const Value *old = value_get(ox->g, (ValueId){(uint32_t)i});
        if (!memcmp(old->data->data, t->data, n)) return (ValueId){(uint32_t)i};
    }
    ValueId v = graph_const(ox->g, name, t);
    str_map_put(ox->a, &ox->folds.consts, key, (int)v.i);
    return v;
}

/* ---- what may be folded -------------------------------------------------- */

static int64_t elements_of(const Ox *ox, const ValueId *v, int n) {
    int64_t sum = 0;
    for (int i = 0; i < n; i++)
        if (is_value(v[i])) sum += value_count(ox->g, v[i]);
    return sum;
}

bool ox_foldable(const Ox *ox, NodeId id) {
    const Node *n = node_get(ox->g, id);
    OpKind kind = node_kind(n);
    bool whole = !dtype_is_float(value_dtype(ox->g, n->out[0]));
    bool costly = kind == KIND_ANCHOR || kind == KIND_COMPOSITE ||
                  (kind == KIND_LIB && !whole); /* cumsum is cheap */
    if (n->op == OP_RAND_UNIFORM || is_call(n, "dropout")) return false;
    for (int i = 0; i < n->nin; i++)
        if (is_value(n->in[i]) && value_get(ox->g, n->in[i])->kind != VK_CONST)
            return false;
    int64_t sum =
        elements_of(ox, n->in, n->nin) + elements_of(ox, n->out, n->nout);
    return sum <= (costly ? OX_MAX_COSTLY_FOLD : OX_MAX_FOLD) &&
           ox->folds.elements + sum <= OX_FOLD_BUDGET;
}

/* ---- folding ------------------------------------------------------------- */

static Status evaluate(Ox *ox, const Node *n, NodeId id, ValueId *out) {
    char msg[MSG_TEXT];
    Arena *tmp = arena_new();
    const EvalTensor **in = NEW_ARRAY(tmp, const EvalTensor *, n->nin + 1);
    EvalTensor **res = NEW_ARRAY(tmp, EvalTensor *, n->nout);
    for (int i = 0; i < n->nin; i++)
        if (is_value(n->in[i]))
            in[i] = eval_from_tensor(tmp, value_get(ox->g, n->in[i])->data);
    Status s = eval_node(ox->g, id, tmp, EVAL_STORAGE, in, res, msg);
    for (int i = 0; i < n->nout && s == OK; i++) {
        Value v = *value_get(ox->g, n->out[i]);
        out[i] =
            ox_make_const(ox, v.name, eval_to_tensor(ox->a, res[i], v.type));
    }
    arena_free(tmp);
    return s == OK ? OK : ox_fail(ox, "its value cannot be computed: %s", msg);
}

Status ox_fold(Ox *ox, NodeId id, ValueId *out) {
    Node n = *node_get(ox->g, id); /* creating constants may move the pool */
    Str key = internf("%llx", (unsigned long long)node_hash(ox->g, &n));
    int i = str_map_get(&ox->folds.index, key);
    ox->g->order.len--;
    if (i >= 0 && node_same(ox->g, &ox->folds.list.data[i].node, &n)) {
        memcpy(out, ox->folds.list.data[i].out, (size_t)n.nout * sizeof *out);
        return OK;
    }
    TRY(evaluate(ox, &n, id, out));
    ox->folds.elements +=
        elements_of(ox, n.in, n.nin) + elements_of(ox, n.out, n.nout);
    str_map_put(ox->a, &ox->folds.index, key, ox->folds.list.len);
    vec_push(ox->a, &ox->folds.list,
             (OxFold){n, arena_dup(ox->a, out, (size_t)n.nout * sizeof *out)});
    return OK;
}
