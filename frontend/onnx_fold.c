/* onnx_fold.c: nodes whose operands are all constant become constants at once,
   so that shape arithmetic is gone when the next node needs it.  Equal
   constants and equal folds are shared: exporters repeat the same mask in every
   layer.  Each value and their total are bounded; past the bounds a node stays
   a node.                                                                   */
#include <string.h>

#include "frontend/onnx.h"

/* ---- constants ----------------------------------------------------------- */

static ValueId scalar_const(Ox *ox, const Tensor *t) {
    DType d = type_get(t->type)->dtype;
    Arena *tmp = arena_new();
    const EvalTensor *e = eval_from_tensor(tmp, t);
    ValueId v = e->f ? graph_scalar(ox->g, d, e->f[0])
                     : graph_scalar_int(ox->g, d, e->i[0]);
    arena_free(tmp);
    return v;
}

/* Scalars are anonymous; equal bytes of one type are one constant. */
ValueId ox_make_const(Ox *ox, const char *name, const Tensor *t) {
    const Type *type = type_get(t->type);
    if (!type->rank && type->dtype != DT_U64) return scalar_const(ox, t);
    size_t n = (size_t)type_bytes(type);
    Str key = internf("%u %llx", t->type.i,
                      (unsigned long long)hash_bytes(1, t->data, n));
    int i = ox_map_get(&ox->consts, key);
    if (i >= 0) {
        const Value *old = value_get(ox->g, (ValueId){(uint32_t)i});
        if (!memcmp(old->data->data, t->data, n))
            return (ValueId){(uint32_t)i};
    }
    ValueId v = graph_const(ox->g, name, t);
    ox_map_put(ox->a, &ox->consts, key, (int)v.i);
    return v;
}

/* ---- what may be folded -------------------------------------------------- */

static bool is_const(const Ox *ox, ValueId v) {
    return is_value(v) && value_get(ox->g, v)->kind == VK_CONST;
}

static int64_t elements_of(const Ox *ox, const ValueId *v, int n) {
    int64_t sum = 0;
    for (int i = 0; i < n; i++)
        if (is_value(v[i])) sum += type_count(value_type(ox->g, v[i]));
    return sum;
}

bool ox_foldable(const Ox *ox, NodeId id) {
    const Node *n = node_get(ox->g, id);
    OpKind kind = op_info[n->op].kind;
    bool costly = kind == KIND_ANCHOR || kind == KIND_LIB ||
                  kind == KIND_COMPOSITE;
    if (n->op == OP_RAND_UNIFORM || n->op == OP_DROPOUT) return false;
    for (int i = 0; i < n->nin; i++)
        if (is_value(n->in[i]) && !is_const(ox, n->in[i])) return false;
    int64_t sum = elements_of(ox, n->in, n->nin) +
                  elements_of(ox, n->out, n->nout);
    return sum <= (costly ? OX_MAX_COSTLY_FOLD : OX_MAX_FOLD) &&
           ox->folded + sum <= OX_FOLD_BUDGET;
}

/* ---- equal folds --------------------------------------------------------- */

static uint64_t hash_attr(uint64_t h, const Attr *a) {
    h = hash_bytes(h, &a->key, sizeof a->key);
    if (attr_info[a->key].kind == ATTR_INTS)
        return hash_bytes(h, a->u.ints.v, (size_t)a->u.ints.n * 8);
    return hash_bytes(h, &a->u.i, sizeof a->u.i); /* i, f or s: 8 bytes */
}

static bool same_attr(const Attr *a, const Attr *b) {
    if (a->key != b->key) return false;
    if (attr_info[a->key].kind != ATTR_INTS) return a->u.i == b->u.i;
    return a->u.ints.n == b->u.ints.n &&
           !memcmp(a->u.ints.v, b->u.ints.v, (size_t)a->u.ints.n * 8);
}

static bool same_node(const Ox *ox, const Node *a, const Node *b) {
    if (a->op != b->op || a->nin != b->nin || a->nout != b->nout ||
        a->nattr != b->nattr)
        return false;
    for (int i = 0; i < a->nin; i++)
        if (!same_value(a->in[i], b->in[i])) return false;
    for (int i = 0; i < a->nattr; i++)
        if (!same_attr(&a->attrs[i], &b->attrs[i])) return false;
    for (int i = 0; i < a->nout; i++)
        if (value_get(ox->g, a->out[i])->type.i !=
            value_get(ox->g, b->out[i])->type.i)
            return false;
    return true;
}

static Str key_of(const Ox *ox, const Node *n) {
    uint64_t h = hash_bytes((uint64_t)n->op, n->in,
                            (size_t)n->nin * sizeof *n->in);
    for (int i = 0; i < n->nattr; i++) h = hash_attr(h, &n->attrs[i]);
    for (int i = 0; i < n->nout; i++)
        h = hash_bytes(h, &value_get(ox->g, n->out[i])->type, sizeof(TypeId));
    return internf("%llx", (unsigned long long)h);
}

/* ---- folding ------------------------------------------------------------- */

static Status evaluate(Ox *ox, const Node *n, NodeId id, ValueId *out) {
    char msg[256];
    Arena *tmp = arena_new();
    const EvalTensor **in = NEW_ARRAY(tmp, const EvalTensor *, n->nin + 1);
    EvalTensor **res = NEW_ARRAY(tmp, EvalTensor *, n->nout);
    for (int i = 0; i < n->nin; i++)
        if (is_value(n->in[i]))
            in[i] = eval_from_tensor(tmp, value_get(ox->g, n->in[i])->data);
    Status s = eval_node(ox->g, id, tmp, EVAL_STORAGE, in, res, msg);
    for (int i = 0; i < n->nout && s == OK; i++) {
        Value v = *value_get(ox->g, n->out[i]);
        out[i] = ox_make_const(ox, v.name,
                               eval_to_tensor(ox->a, res[i], v.type));
    }
    arena_free(tmp);
    return s == OK ? OK : ox_fail(ox, "its value cannot be computed: %s", msg);
}

Status ox_fold(Ox *ox, NodeId id, ValueId *out) {
    Node n = *node_get(ox->g, id); /* making constants moves the pool */
    Str key = key_of(ox, &n);
    int i = ox_map_get(&ox->folds, key);
    ox->g->order.len--;
    if (i >= 0 && same_node(ox, &ox->fold_list.data[i].node, &n)) {
        memcpy(out, ox->fold_list.data[i].out, (size_t)n.nout * sizeof *out);
        return OK;
    }
    TRY(evaluate(ox, &n, id, out));
    ox->folded += elements_of(ox, n.in, n.nin) +
                  elements_of(ox, n.out, n.nout);
    ox_map_put(ox->a, &ox->folds, key, ox->fold_list.len);
    vec_push(ox->a, &ox->fold_list,
             (OxFold){n, arena_dup(ox->a, out, (size_t)n.nout * sizeof *out)});
    return OK;
}
