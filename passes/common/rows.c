/* SPDX-License-Identifier: Apache-2.0 */
/* rows.c: follows the axis of samples from the inputs through the nodes. */
#include "passes/common/rows.h"

#include "ir/fn/fn.h"
#include "ir/graph/names.h"

typedef struct Walk {
    const Graph *g;
    Arena *a;
    int64_t batch;
    Rows *of; /* per value */
} Walk;

static const Rows mixed = {.mixed = true, .unknown = true},
                  gone = {.mixed = true};

/* Two operands with a common result; axes are counted in the result. */
static Rows both(Rows x, Rows y) {
    Rows r = x.has ? x : y;
    r.mixed = x.mixed || y.mixed;
    r.unknown = x.unknown || y.unknown;
    if (x.has && y.has &&
        (x.axis != y.axis || x.outer != y.outer || x.inner != y.inner))
        return mixed;
    return r;
}

static Rows rows_moved(Rows r, int by) {
    r.axis += by;
    return r;
}

/* Operands broadcast against the result. */
static Rows element_wise(const Walk *w, const Node *n) {
    int rank = value_type(w->g, n->out[0])->rank;
    Rows r = {0};
    for (int i = 0; i < n->nin; i++)
        if (n->in[i].i)
            r = both(r, rows_moved(w->of[n->in[i].i],
                                   rank - value_type(w->g, n->in[i])->rank));
    return r;
}

static Rows reshaped(const Walk *w, const Node *n) {
    Rows r = w->of[n->in[0].i];
    const Type *from = value_type(w->g, n->in[0]);
    const Type *to = value_type(w->g, n->out[0]);
    int64_t before = r.outer, after = r.inner, at = 1;
    for (int i = 0; i < r.axis; i++) before *= from->dim[i];
    for (int i = r.axis + 1; i < from->rank; i++) after *= from->dim[i];
    for (int i = 0; i < to->rank && before % at == 0; at *= to->dim[i++]) {
        int64_t outer = before / at, inner = to->dim[i] / (outer * w->batch);
        if (inner == 0 || outer * w->batch * inner != to->dim[i]) continue;
        if (after % inner) return mixed;
        return (Rows){.has = true,
                      .mixed = r.mixed,
                      .axis = i,
                      .outer = outer,
                      .inner = inner};
    }
    return mixed;
}

static Rows transposed(const Walk *w, const Node *n) {
    Rows r = w->of[n->in[0].i];
    const int64_t *perm;
    int rank = attr_ints(n, AK_perm, &perm), axis = r.axis;
    for (int i = 0; i < rank; i++)
        if (perm[i] == axis) r.axis = i;
    return r;
}

/* The axis must keep its elements in their order. */
static Rows cut(const Walk *w, const Node *n) {
    Rows r = w->of[n->in[0].i];
    const Type *from = value_type(w->g, n->in[0]);
    const int64_t *v;
    int count = attr_ints(n, AK_steps, &v);
    if (count && v[r.axis] != 1) return mixed;
    count = attr_ints(n, AK_pads, &v);
    if (count && (v[r.axis] || v[r.axis + from->rank])) return mixed;
    bool whole = value_type(w->g, n->out[0])->dim[r.axis] == from->dim[r.axis];
    return whole ? r : mixed;
}

static Rows reduced(const Walk *w, const Node *n) {
    Rows r = w->of[n->in[0].i];
    const int64_t *axes;
    int count = attr_ints(n, AK_axes, &axes), before = 0;
    for (int i = 0; i < count; i++) {
        if (axes[i] == r.axis) return gone;
        before += axes[i] < r.axis;
    }
    return attr_int(n, AK_keepdims) ? r : rows_moved(r, -before);
}

/* An op along the axis named by its attribute; argmax may drop the axis. */
static Rows along(const Walk *w, const Node *n) {
    Rows r = w->of[n->in[0].i];
    int rank = value_type(w->g, n->in[0])->rank;
    int axis =
        n->op == OP_ARGSORT ? rank - 1 : axis_norm(attr_int(n, AK_axis), rank);
    bool drops = n->op == OP_ARGMAX && !attr_int(n, AK_keepdims);
    if (axis == r.axis) return drops ? gone : mixed;
    return drops && axis < r.axis ? rows_moved(r, -1) : r;
}

/* Whole batches one behind the other: [2 * batch, ..] of two [batch, ..]. */
static bool joins_batches(const Walk *w, const Node *n, int axis, Rows *r) {
    Rows all = rows_along(axis);
    all.inner = w->of[n->in[0].i].inner;
    all.outer = 0;
    for (int i = 0; i < n->nin; i++) {
        Rows x = w->of[n->in[i].i];
        if (!x.has || x.axis != axis || x.inner != all.inner) return false;
        all.mixed |= x.mixed;
        all.outer += x.outer;
    }
    *r = all;
    return true;
}

static Rows concatenated(const Walk *w, const Node *n) {
    int rank = value_type(w->g, n->out[0])->rank;
    int axis = axis_norm(attr_int(n, AK_axis), rank);
    Rows r = {0};
    if (joins_batches(w, n, axis, &r)) return r;
    for (int i = 0; i < n->nin; i++) {
        Rows x = w->of[n->in[i].i];
        r = both(r, x.has && x.axis == axis ? gone : x);
    }
    return r;
}

static Rows gathered(const Walk *w, const Node *n) {
    Rows data = w->of[n->in[0].i], index = w->of[n->in[1].i];
    int rank = value_type(w->g, n->in[0])->rank;
    int more = value_type(w->g, n->in[1])->rank - 1;
    int axis = axis_norm(attr_int(n, AK_axis), rank);
    if (data.has && data.axis == axis) return mixed;
    if (data.has && data.axis > axis) data = rows_moved(data, more);
    return both(data, rows_moved(index, axis));
}

/* The axis in the result: `line` is the operand's axis that the matrix
   product keeps and `to` its position in the result; the product sums over
   the other one of the last two axes. */
static Rows product_operand(Rows r, int rank, int line, int out_rank, int to) {
    if (!r.has || r.axis < rank - 2) return rows_moved(r, out_rank - rank);
    if (r.axis != line) return gone;
    r.axis = to;
    return r;
}

static Rows product(const Walk *w, const Node *n) {
    int a = value_type(w->g, n->in[0])->rank;
    int b = value_type(w->g, n->in[1])->rank;
    int out = value_type(w->g, n->out[0])->rank;
    bool ta = attr_int(n, AK_trans_a), tb = attr_int(n, AK_trans_b);
    if (a < 2 || b < 2) return mixed;
    return both(
        product_operand(w->of[n->in[0].i], a, ta ? a - 1 : a - 2, out, out - 2),
        product_operand(w->of[n->in[1].i], b, tb ? b - 2 : b - 1, out,
                        out - 1));
}

/* Samples along axis 0 of the image, or their channels along axis 1. */
static Rows images(const Walk *w, const Node *n) {
    Rows x = w->of[n->in[0].i], weight = {0};
    bool conv = n->op == OP_CONV || n->op == OP_CONV_DGRAD;
    if (n->nin > 1) weight = w->of[n->in[1].i];
    return x.has && x.axis < (conv ? 1 : 2) && !weight.has && !weight.mixed
               ? x
               : mixed;
}

static void walk(const Walk *w);

/* Result k of a call, from the function's body. */
static void rows_call(const Walk *w, const Node *n) {
    const Type **in = NEW_ARRAY(w->a, const Type *, n->nin + 1);
    for (int k = 0; k < n->nin; k++)
        in[k] = n->in[k].i ? value_type(w->g, n->in[k]) : NULL;
    const FnInstance *x = fn_instance(n, in);
    if (x->status != OK) {
        for (int k = 0; k < n->nout; k++) w->of[n->out[k].i] = mixed;
        return;
    }
    Walk body = {x->g, w->a, w->batch,
                 NEW_ARRAY(w->a, Rows, x->g->values.len + 1)};
    for (int k = 0; k < n->nin; k++)
        if (n->in[k].i && x->in[k].i) body.of[x->in[k].i] = w->of[n->in[k].i];
    walk(&body);
    for (int k = 0; k < n->nout; k++)
        if (n->out[k].i && x->out[k].i)
            w->of[n->out[k].i] = body.of[x->out[k].i];
}

static Rows expanded(const Walk *w, const Node *n) {
    return element_wise(w, n);
}

static Rows same(const Walk *w, const Node *n) { return w->of[n->in[0].i]; }

/* Rules of the ops that keep samples apart; all other ops mix them. */
static const struct {
    OpCode op;
    bool first; /* operand 0 has the axis */
    Rows (*rule)(const Walk *w, const Node *n);
} rules[] = {
    {OP_EXPAND, false, expanded}, {OP_CONCAT, false, concatenated},
    {OP_GATHER, false, gathered}, {OP_MATMUL, false, product},
    {OP_RESHAPE, true, reshaped}, {OP_TRANSPOSE, true, transposed},
    {OP_SLICE, true, cut},        {OP_PAD, true, cut},
    {OP_SPLIT, true, along},      {OP_CUMSUM, true, along},
    {OP_ARGSORT, true, along},    {OP_ARGMAX, true, along},
    {OP_CONV, true, images},      {OP_CONV_DGRAD, true, images},
    {OP_MAX_POOL, true, images},  {OP_AVG_POOL, true, images},
    {OP_TRILU, true, same},       {OP_WIDEN_QUANTIZED, true, same},
};

static Rows of_node(const Walk *w, const Node *n) {
    bool any = false, axis = false;
    for (int i = 0; i < n->nin; i++) {
        Rows r = n->in[i].i ? w->of[n->in[i].i] : (Rows){0};
        any |= r.has || r.mixed;
        axis |= r.has || r.unknown;
    }
    if (!axis) return any ? gone : (Rows){0};
    OpKind kind = node_kind(n);
    if (kind == KIND_ELEM) return element_wise(w, n);
    bool has = w->of[n->in[0].i].has;
    if (kind == KIND_REDUCE && has) return reduced(w, n);
    for (size_t i = 0; i < sizeof rules / sizeof *rules; i++)
        if (rules[i].op == n->op && (has || !rules[i].first))
            return rules[i].rule(w, n);
    return mixed;
}

static void node(const Walk *w, const Node *n) {
    if (n->fn) {
        rows_call(w, n);
        return;
    }
    Rows r = of_node(w, n);
    for (int k = 0; k < n->nout; k++)
        if (n->out[k].i) w->of[n->out[k].i] = r;
}

static void walk(const Walk *w) {
    for (int i = 0; i < w->g->order.len; i++) node(w, node_at(w->g, i));
}

void rows_step(const Graph *g, Arena *a, int64_t batch, Rows *of,
               const Node *n) {
    node(&(Walk){g, a, batch, of}, n);
}

Rows *rows_find(const Graph *g, Arena *a, int64_t batch) {
    Walk w = {g, a, batch, NEW_ARRAY(a, Rows, g->values.len + 1)};
    for (int i = 0; i < g->inputs.len; i++) {
        ValueId v = g->inputs.data[i];
        const Type *t = value_type(g, v);
        if (t->rank && t->dim[0] == batch) w.of[v.i] = rows_along(0);
    }
    walk(&w);
    return w.of;
}

/* Per value: whether it is computed from variables. */
static bool *of_variables(const Graph *g, Arena *a) {
    bool *of = NEW_ARRAY(a, bool, g->values.len + 1);
    for (int v = 1; v < g->values.len; v++)
        of[v] = value_get(g, (ValueId){(uint32_t)v})->kind == VK_VAR;
    for (int i = 0; i < g->order.len; i++) {
        const Node *n = node_at(g, i);
        bool any = false;
        for (int k = 0; k < n->nin; k++) any |= of[n->in[k].i];
        for (int k = 0; k < n->nout; k++) of[n->out[k].i] |= any;
    }
    return of;
}

/* Where no rule knows the axis, only its size tells; so it does for constants
   and metrics, such as a state of zeros for each sample. */
static int64_t sample_rows(const Type *t, Rows r, int64_t batch, bool fixed) {
    bool same = !r.has && !r.mixed;
    if (same && (fixed || !t->rank || t->dim[0] != batch)) return -1;
    if (!t->rank) return 0;
    if (same) return 1;
    if (!r.has && r.unknown) return t->dim[0] % batch ? 0 : t->dim[0] / batch;
    return r.has && r.axis == 0 && r.outer == 1 ? r.inner : 0;
}

void rows_mark_outputs(Graph *g, Arena *a) {
    int64_t batch = graph_samples(g);
    const Rows *rows = batch > 0 ? rows_find(g, a, batch) : NULL;
    const bool *of = of_variables(g, a);
    for (int i = 0; rows && i < g->outputs.len; i++) {
        Output *o = &g->outputs.data[i];
        o->sample_rows =
            sample_rows(value_type(g, o->value), rows[o->value.i], batch,
                        of[o->value.i] && !name_is_own(o->name));
    }
}
