/* SPDX-License-Identifier: Apache-2.0 */
/* keep.c: what forward stores for backward becomes codes of 8 bits (--keep f8).
   Before:  %h = gelu %x : bf16[4,128]       %y = matmul %h, %w
            %dw = matmul %h, %dy {trans_a=1} !backward
   After:   %h = gelu %x : bf16[4,128]       %y = matmul %h, %w
            %c, %s = the codes and scales of %h          (passes/codes.h)
            %z = cast (from_f8 %c, %s) : bf16[4,128] !backward !again
            %dw = matmul %z, %dy {trans_a=1} !backward
   The forward pass is unchanged. A value has codes if
     - it has at least 4,096 elements and no reader broadcasts it. Values that
       leave the program keep their dtype, and so do f32 values where pass place
       chose dtypes: they are f32 for a reason
     - backward multiplies it, adds it, or reads a smooth function of it whose
       slope is bounded. Differences, quotients, exp, log and powers would
       amplify the error of up to 6 %; comparisons need exact numbers, except
       those with 0
     - it is neither an operand of scores of attention nor a probability:
       backward reads exp of them
     - no policy line asks for fp32 there
   Of a chain of recomputed values, of which backward reads only the last one,
   that one has codes: the normalised form of a norm's operand instead of the
   operand, whose difference from the mean may be small. Comparisons of
   recomputed values with 0 read another kept value of the same sign. A value
   that few multiplications and additions give from one that has codes has none:
   backward computes it again, such as the result of a norm from its normalised
   operand.

   requires     stage PRIMITIVE, types chosen, recomputed values in backward
   establishes  nothing                                                      */
#include "passes/common/keep.h"

#include "passes/codes.h"
#include "passes/again.h"
#include "passes/common/traffic.h"
#include "passes/common/wide.h"
#include "passes/rewrite.h"

enum { FEWEST = 4096, DEPTH = 6 };

typedef struct Keep {
    Graph *g;
    Arena *a;
    UserIndex users;   /* of the graph before codes */
    uint32_t values;   /* number of its values */
    bool *kept;        /* per value: forward stores it for backward */
    bool *exponent;    /* per value: an operand of scores, or a probability */
    ValueId *original; /* per recomputed value: the forward value */
    bool *encoded;     /* per forward value: it has codes */
    int *derived;      /* per forward value: 1 + the operand from whose codes
                          backward computes it; 0: it does not */
    Codes *codes;      /* .. once they are built */
    ValueId *wide, *same; /* per forward value: read from codes, as f32 and in
                             its own dtype */
} Keep;

static bool moves_one(const Node *n) {
    OpKind kind = node_kind(n);
    return kind == KIND_VIEW || (kind == KIND_MOVE && n->nin == 1);
}

static bool by_elements(const Node *n) {
    return node_kind(n) == KIND_ELEM || moves_one(n);
}

/* ---- recomputed values --------------------------------------------------- */

static ValueId forward_of(const Keep *k, ValueId v) {
    return k->original[v.i].i ? k->original[v.i] : v;
}

/* ---- comparisons with 0 -------------------------------------------------- */

static bool compares_two(const Graph *g, const Node *n) {
    return node_kind(n) == KIND_ELEM && n->nin == 2 &&
           value_dtype(g, n->out[0]) == DT_BOOL;
}

/* A kept value with the sign of forward value v or, with relu, one that is
   above 0 where v is; NO_VALUE: none. */
static ValueId same_sign(const Keep *k, ValueId v, bool relu, int depth) {
    if (k->kept[v.i]) return v;
    for (Users u = users_of(&k->users, v); depth && u.at < u.end; u.at++) {
        const Node *n = node_get(k->g, *u.at);
        bool same = n->op == OP_CAST
                        ? dtype_is_float(value_dtype(k->g, n->out[0]))
                        : relu && n->op == OP_RELU;
        ValueId found = n->flags || !same
                            ? NO_VALUE
                            : same_sign(k, n->out[0], relu, depth - 1);
        if (found.i) return found;
    }
    return NO_VALUE;
}

static void share_signs(Keep *k) {
    enum { STEPS = 2 }; /* relu and a cast */
    Graph *g = k->g;
    for (int i = 0; i < g->order.len; i++) {
        Node *n = node_at(g, i);
        if (!(n->flags & NODE_BACKWARD) || !compares_two(g, n) ||
            !k->original[n->in[0].i].i || !is_number(g, n->in[1], 0))
            continue;
        bool relu = n->op == OP_LESS_EQUAL || n->op == OP_GREATER;
        ValueId v = same_sign(k, k->original[n->in[0].i], relu, STEPS);
        if (v.i) n->in[0] = v;
    }
    k->users = graph_users(g, k->a);
}

/* ---- attention ----------------------------------------------------------- */

/* If n is exp(s - c) with one c for each row: s; NO_VALUE otherwise. */
static ValueId score_of(const Graph *g, const Node *n) {
    const Node *sub = n->op == OP_EXP ? value_maker(g, n->in[0]) : NULL;
    bool rows = sub && sub->op == OP_SUB &&
                value_count(g, sub->in[1]) < value_count(g, n->out[0]);
    return rows ? sub->in[0] : NO_VALUE;
}

static void find_exponents(Keep *k) {
    const Graph *g = k->g;
    bool *ahead =
             NEW_ARRAY(k->a, bool, k->values), /* a product depends on it */
        *score = NEW_ARRAY(k->a, bool, k->values),
         *part = NEW_ARRAY(k->a, bool, k->values); /* exp, or a part of it */
    for (int i = g->order.len - 1; i >= 0; i--) {
        const Node *n = node_at(g, i);
        uint32_t v = n->out[0].i;
        bool product = op_info[n->op].amp == AMP_LOW, passes = by_elements(n);
        if (n->flags) continue;
        if (ahead[v]) {
            ValueId s = score_of(g, n);
            score[s.i] = s.i != 0;
            part[v] |= s.i != 0;
        }
        for (int j = 0; j < n->nin; j++) {
            uint32_t in = n->in[j].i;
            ahead[in] |= ahead[v] || product;
            score[in] |= score[v] && passes;
            k->exponent[in] |= k->exponent[v] ? passes : score[v] && product;
        }
    }
    for (int i = 0; i < g->order.len; i++) {
        const Node *n = node_at(g, i);
        for (int j = 0; j < n->nin && !n->flags && by_elements(n); j++)
            part[n->out[0].i] |= n->in[j].i && part[n->in[j].i];
    }
    for (uint32_t v = 1; v < k->values; v++) k->exponent[v] |= part[v];
}

/* ---- what backward does with a value ------------------------------------- */

static bool reads_well(const Keep *k, ValueId v, bool sign, int depth);

/* True if every operand of n but v is a constant, a variable, or made by
   forward. */
static bool is_made_of_forward(const Keep *k, const Node *n, ValueId v) {
    for (int i = 0; i < n->nin; i++) {
        const Node *x = value_maker(k->g, n->in[i]);
        if (!same_value(n->in[i], v) && x && x->flags &&
            !(x->flags & NODE_AGAIN))
            return false;
    }
    return true;
}

/* n is element-wise; sign: v has exactly the signs of the forward value. */
static bool element_reads_well(const Keep *k, const Node *n, ValueId v,
                               bool sign, int depth) {
    const Graph *g = k->g;
    DType d = value_dtype(g, n->out[0]);
    if (compares_two(g, n)) return sign && is_number(g, n->in[1], 0);
    if (!dtype_is_float(d) || op_numeric[n->op].grows ||
        op_numeric[n->op].reads)
        return false;
    switch (op_coded[n->op]) {
    case CODED_JUMPS: return false;
    case CODED_SIGN: return sign;
    case CODED_SMOOTH: return !op_steep[n->op];
    case CODED_LOSES: sign = false; break;
    case CODED_KEEPS: break;
    }
    return !is_made_of_forward(k, n, v) ||
           reads_well(k, n->out[0], sign, depth - 1);
}

static bool node_reads_well(const Keep *k, const Node *n, ValueId v, bool sign,
                            int depth) {
    switch (node_kind(n)) {
    case KIND_ANCHOR: return true;
    case KIND_ELEM: return element_reads_well(k, n, v, sign, depth);
    case KIND_REDUCE: return n->op == OP_REDUCE_SUM || n->op == OP_REDUCE_MEAN;
    case KIND_LIB: return n->op == OP_CONV_DGRAD || n->op == OP_CONV_WGRAD;
    case KIND_VIEW:
    case KIND_MOVE:
        return n->nin == 1 && reads_well(k, n->out[0], sign, depth - 1);
    default: return false;
    }
}

/* True if all that backward does with v bears the error of codes. v: a forward
   value, or what backward computes of one. */
static bool reads_well(const Keep *k, ValueId v, bool sign, int depth) {
    const Graph *g = k->g;
    bool forward = is_forward(g, v);
    for (Users u = users_of(&k->users, v); u.at < u.end; u.at++) {
        const Node *n = node_get(g, *u.at);
        if (!n->flags && forward && (!moves_one(n) || k->kept[n->out[0].i]))
            continue;
        if (!depth || n->flags & NODE_UPDATE ||
            (node_kind(n) == KIND_ELEM && broadcasts(g, n, v)) ||
            !node_reads_well(k, n, v, sign, depth))
            return false;
    }
    return true;
}

/* ---- which values -------------------------------------------------------- */

/* The only node of backward that reads v, if v itself is read; NULL. */
static const Node *only_reader(const Keep *k, ValueId v) {
    const Node *only = NULL;
    bool forward = is_forward(k->g, v);
    for (Users u = users_of(&k->users, v); u.at < u.end; u.at++) {
        const Node *n = node_get(k->g, *u.at);
        if (!n->flags && forward && !moves_one(n)) continue;
        if (!n->flags || (only && only != n)) return NULL;
        only = n;
    }
    return only;
}

/* The recomputed value that n alone computes from v and few other numbers;
   NO_VALUE: n does more. */
static ValueId next_of(const Keep *k, const Node *n, ValueId v) {
    const Graph *g = k->g;
    if (!n || !(n->flags & NODE_AGAIN) || node_kind(n) != KIND_ELEM ||
        !k->original[n->out[0].i].i ||
        value_count(g, n->out[0]) != value_count(g, v) ||
        !dtype_is_float(value_dtype(g, n->out[0])))
        return NO_VALUE;
    for (int i = 0; i < n->nin; i++)
        if (!same_value(n->in[i], v) &&
            value_count(g, n->in[i]) * 8 > value_count(g, v))
            return NO_VALUE;
    return n->out[0];
}

/* The forward value that has codes in the place of kept value v; NO_VALUE: v
   keeps its dtype. */
static ValueId codes_instead(const Keep *k, ValueId v) {
    const Graph *g = k->g;
    const Module *m = g->module;
    bool placed = m->low != NUM_DTYPES && !m->rule;
    DType d = value_dtype(g, v);
    ValueId best = NO_VALUE;
    if (!dtype_is_float(d) || d == DT_F64 || dtype_info[d].stored ||
        value_count(g, v) < FEWEST || k->exponent[v.i])
        return NO_VALUE;
    if (!(placed && d == DT_F32) && reads_well(k, v, true, DEPTH)) best = v;
    while ((v = next_of(k, only_reader(k, v), v)).i)
        if (reads_well(k, v, true, DEPTH)) best = forward_of(k, v);
    const Node *n = best.i ? value_maker(g, best) : NULL;
    return n && node_wide_by_policy(n) ? NO_VALUE : best;
}

static void choose_codes(Keep *k) {
    const Graph *g = k->g;
    bool *leaves = NEW_ARRAY(k->a, bool, k->values);
    for (int i = 0; graph_root(g, i); i++)
        leaves[view_root(g, *graph_root(g, i)).i] = true;
    for (uint32_t v = 1; v < k->values; v++)
        if (k->kept[v] && !leaves[v] && is_forward(g, (ValueId){v}))
            k->encoded[codes_instead(k, (ValueId){v}).i] = true;
    k->encoded[0] = false;
}

static Keep keep_new(Graph *g, Arena *a) {
    int n = g->values.len;
    return (Keep){.g = g,
                  .a = a,
                  .values = (uint32_t)n,
                  .users = graph_users(g, a),
                  .kept = NEW_ARRAY(a, bool, n),
                  .exponent = NEW_ARRAY(a, bool, n),
                  .original = again_originals(g, a, true),
                  .encoded = NEW_ARRAY(a, bool, n)};
}

static void note_read_by_backward(Keep *k) {
    const Graph *g = k->g;
    for (int i = 0; i < g->order.len; i++) {
        const Node *n = node_at(g, i);
        for (int j = 0; j < n->nin && n->flags & NODE_BACKWARD; j++)
            if (n->in[j].i) k->kept[view_root(g, n->in[j]).i] = true;
    }
}

const int64_t *keep_bytes(Graph *g, PassCtx *cx) {
    int64_t *bytes = NEW_ARRAY(cx->scratch, int64_t, g->values.len);
    for (uint32_t v = 1; v < (uint32_t)g->values.len; v++)
        bytes[v] = type_bytes(value_type(g, (ValueId){v}));
    if (!cx->opt->keep_f8) return bytes;
    Keep k = keep_new(g, cx->scratch);
    note_read_by_backward(&k);
    find_exponents(&k);
    choose_codes(&k);
    for (uint32_t v = 1; v < k.values; v++)
        if (k.encoded[v]) bytes[v] = codes_bytes(value_type(g, (ValueId){v}));
    return bytes;
}

/* ---- values that others give --------------------------------------------- */

/* The only operand of n as large as its result, if n multiplies, adds or rounds
   it; -1: there is none. */
static int large_operand(const Graph *g, const Node *n) {
    int at = -1;
    if (!n || n->flags ||
        (n->op != OP_MUL && n->op != OP_ADD && n->op != OP_CAST))
        return -1;
    int64_t count = value_count(g, n->out[0]);
    for (int i = 0; i < n->nin; i++) {
        if (value_count(g, n->in[i]) * 8 <= count) continue;
        if (at >= 0 || value_count(g, n->in[i]) != count) return -1;
        at = i;
    }
    return at;
}

/* Marks the way to v from a value with codes, if it is short. */
static bool derive(Keep *k, ValueId v, int steps) {
    const Node *n = value_maker(k->g, v);
    int at = steps ? large_operand(k->g, n) : -1;
    if (at < 0 || !is_forward(k->g, n->in[at])) return false;
    ValueId from = n->in[at];
    if (!k->encoded[from.i] && !derive(k, from, steps - 1)) return false;
    k->derived[v.i] = 1 + at;
    return true;
}

static void derive_all(Keep *k) {
    enum { STEPS = 6 };
    for (int i = 0; i < k->g->order.len; i++) {
        const Node *n = node_at(k->g, i);
        for (int j = 0; j < n->nout; j++) {
            ValueId v = n->out[j];
            if (k->encoded[v.i] && k->kept[v.i] &&
                reads_well(k, v, false, DEPTH) && derive(k, v, STEPS))
                k->encoded[v.i] = false;
        }
    }
}

/* ---- the nodes ----------------------------------------------------------- */

static void encode_value(Keep *k, ValueId v) {
    Builder b = {.g = k->g,
                 .loc = node_get(k->g, value_get(k->g, v)->def)->loc};
    Codes c = k->codes[v.i] = codes_make(&b, v);
    value_get(k->g, c.code)->why = "kept for backward";
    value_get(k->g, c.scale)->why = "a scale";
}

/* What backward reads instead of forward value v, which may be moved codes;
   wide: as f32. */
static ValueId decoded(Keep *k, ValueId v, bool wide) {
    Graph *g = k->g;
    NodeId def = value_get(g, v)->def;
    Builder b = {.g = g,
                 .flags = NODE_BACKWARD | NODE_AGAIN,
                 .loc = node_get(g, def)->loc};
    if (k->encoded[v.i]) {
        if (!k->wide[v.i].i) k->wide[v.i] = codes_read(&b, k->codes[v.i]);
        if (wide) return k->wide[v.i];
        if (!k->same[v.i].i)
            k->same[v.i] = b_cast(&b, k->wide[v.i], value_dtype(g, v));
        return k->same[v.i];
    }
    if (k->same[v.i].i) return k->same[v.i];
    const Node *n = node_get(g, def);
    int at = k->derived[v.i] ? k->derived[v.i] - 1 : 0;
    k->same[v.i] = v;
    if (!k->derived[v.i] && (k->kept[v.i] || !moves_one(n))) return v;
    ValueId *in = arena_dup(k->a, n->in, (size_t)n->nin * sizeof *in);
    if (!is_forward(g, in[at])) return v;
    in[at] = decoded(k, in[at], k->derived[v.i] != 0);
    if (!same_value(in[at], node_get(g, def)->in[at]))
        k->same[v.i] = node_get(g, build_again(&b, def, in))->out[0];
    return k->same[v.i];
}

static void read_from_codes(Keep *k, NodeId id) {
    Graph *g = k->g;
    for (int i = 0; i < node_get(g, id)->nin; i++) {
        const Node *n = node_get(g, id);
        ValueId v = forward_of(k, n->in[i]);
        bool again = k->original[n->in[i].i].i != 0,
             wide = node_kind(n) == KIND_ELEM;
        if (!is_forward(g, v) || (again && !k->encoded[v.i])) continue;
        v = decoded(k, v, wide);
        node_get(g, id)->in[i] = v;
    }
}

static bool keep_graph(Graph *g, PassCtx *cx) {
    Arena *a = cx->scratch;
    int n, values = g->values.len;
    bool any = false;
    for (int i = 0; i < g->order.len; i++)
        any |= (node_at(g, i)->flags & NODE_BACKWARD) != 0;
    if (!any) return false;
    Keep k = keep_new(g, a);
    k.derived = NEW_ARRAY(a, int, values);
    k.codes = NEW_ARRAY(a, Codes, values);
    k.wide = NEW_ARRAY(a, ValueId, values);
    k.same = NEW_ARRAY(a, ValueId, values);
    traffic_kept(g, k.kept, cx);
    share_signs(&k);
    find_exponents(&k);
    choose_codes(&k);
    derive_all(&k);
    NodeId *old = order_take(g, a, &n);
    for (int i = 0; i < n; i++) {
        if (node_get(g, old[i])->flags & NODE_BACKWARD)
            read_from_codes(&k, old[i]);
        vec_push(g->arena, &g->order, old[i]);
        if (node_get(g, old[i])->flags) continue;
        for (int j = 0; j < node_get(g, old[i])->nout; j++) {
            ValueId v = node_get(g, old[i])->out[j];
            if (k.encoded[v.i]) encode_value(&k, v);
        }
    }
    return true;
}

Status pass_keep(Module *m, PassCtx *cx) {
    bool any = false;
    if (!cx->opt->keep_f8) return OK;
    for (int i = 0; i < m->graphs.len; i++)
        any |= keep_graph(m->graphs.data[i], cx);
    if (!any) return OK;
    return pass_dce(m, cx); /* drops recomputed values that codes replace */
}
