/* SPDX-License-Identifier: Apache-2.0 */
/* infer.c: runs type rules, and checks the rules common to all ops. */
#include "ir/graph/ir_impl.h"
#include "ir/op/rule.h"

#include <string.h>

static Status bad(char *msg, const char *fmt, ...) PRINTF_LIKE(2, 3);
static Status bad(char *msg, const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(msg, MSG_TEXT, fmt, ap);
    va_end(ap);
    return ERR_USER;
}

static Status check_counts(const OpInfo *info, const Node *n, char *msg) {
    const char *s = n->nin == 1 ? "" : "s";
    bool few = n->nin < info->in_min;
    if (few || (info->in_max >= 0 && n->nin > info->in_max)) {
        if (info->in_max == info->in_min)
            return bad(msg, "%d operand%s given, takes %d", n->nin, s,
                       info->in_min);
        return bad(msg, "%d operand%s given, takes %s %d", n->nin, s,
                   few ? "at least" : "at most",
                   few ? info->in_min : info->in_max);
    }
    few = n->nout < info->out_min;
    if (few || (info->out_max >= 0 && n->nout > info->out_max))
        return bad(msg, "%d result%s named, gives %d%s", n->nout,
                   n->nout == 1 ? "" : "s", few ? info->out_min : info->out_max,
                   info->out_min == info->out_max ? "" : " or fewer");
    return OK;
}

static Status check_attrs(const OpInfo *info, const Node *n, char *msg) {
    for (int i = 0; i < n->nattr; i++) {
        const Attr *a = &n->attrs[i];
        const AttrInfo *row = attr_get(a->key);
        const char *text = row->text;
        if (!info_takes(info, a->key))
            return bad(msg, "has no attribute '%s'", text);
        if (i && strcmp(attr_get(n->attrs[i - 1].key)->text, text) >= 0)
            return bad(msg, "attribute '%s' is given twice or out of order",
                       text);
        if (row->flag && a->u.i != 0 && a->u.i != 1)
            return bad(msg, "attribute '%s' is %lld, not 0 or 1", text,
                       (long long)a->u.i);
    }
    return OK;
}

/* Compares declared and inferred types. */
static Status check_given(const Type *given, const Type *got, bool free_dtype,
                          int i, char *msg) {
    if (given->rank >= 0 && !shape_equal(given, got))
        return bad(msg, "result %d is %s, declared %s", i, TXT(got),
                   TXT(given));
    if (given->dtype == NUM_DTYPES || given->dtype == got->dtype) return OK;
    if (free_dtype && dtype_is_float(given->dtype) &&
        dtype_is_float(got->dtype))
        return OK;
    return bad(msg, "result %d is %s, not %s", i, TXT(got),
               dtype_info[given->dtype].text);
}

/* Casts, views and what makes blocks alone know types that are only stored; on
   GPUs products and transpositions, too (pass eights). */
static Status check_stored(const Graph *g, const TypeCtx *cx, char *msg) {
    const Node *n = cx->n;
    if (n->op == OP_CAST || node_kind(n) == KIND_VIEW) return OK;
    if (g->target == TARGET_CUDA &&
        (n->op == OP_MATMUL || n->op == OP_TRANSPOSE))
        return OK;
    for (int i = 0; i < n->nin; i++)
        if (cx->ins[i] && dtype_info[cx->ins[i]->dtype].stored)
            return bad(msg, "operand %d is %s: cast it to f32 first", i,
                       TXT(cx->ins[i]));
    for (int i = 0; i < n->nout && !node_makes_blocks(n); i++) {
        DType d = cx->given ? cx->given[i].dtype : cx->out[i].dtype;
        if (d != NUM_DTYPES && dtype_info[d].stored)
            return bad(msg, "result %d cannot be %s: cast it instead", i,
                       dtype_info[d].text);
    }
    return OK;
}

Status infer_types(const Graph *g, const Node *n, const Type *given,
                   TypeId *out, char *msg) {
    enum { FEW = 16 };
    const OpInfo *info = node_info(n);
    const Type *few_in[FEW];
    Type few_out[FEW];
    bool few_free[FEW] = {0};
    TypeCtx cx; /* most of the text is for a message, which is seldom needed */
    cx.n = n;
    cx.given = given;
    cx.msg[0] = msg[0] = 0;
    TRY(check_counts(info, n, msg));
    TRY(check_attrs(info, n, msg));
    cx.ins = n->nin <= FEW ? few_in : NEW_ARRAY(g->arena, const Type *, n->nin);
    cx.out = n->nout <= FEW ? few_out : NEW_ARRAY(g->arena, Type, n->nout);
    cx.free_dtype =
        n->nout <= FEW ? few_free : NEW_ARRAY(g->arena, bool, n->nout);
    memset(cx.out, 0, (size_t)n->nout * sizeof *cx.out);
    for (int i = 0; i < n->nin; i++) {
        cx.ins[i] = is_value(n->in[i]) ? value_type(g, n->in[i]) : NULL;
        if (!cx.ins[i] && (i < info->in_min || info->in_max < 0))
            return bad(msg, "operand %d is absent", i);
    }
    if (op_info[n->op].type(&cx) != OK) return bad(msg, "%s", cx.msg);
    TRY(check_stored(g, &cx, msg));
    for (int i = 0; i < n->nout; i++) {
        Type t = cx.out[i];
        if (given) {
            TRY(check_given(&given[i], &t, cx.free_dtype[i], i, msg));
            if (given[i].dtype != NUM_DTYPES) t.dtype = given[i].dtype;
        }
        if (!out) continue;
        out[i] = type_make(t.dtype, t.rank, t.dim);
        if (!out[i].i) return bad(msg, "result %d is too large", i);
    }
    return OK;
}

/* The types of n's results, with dtype d for `result` (-1: for none). */
static Status check_types_as(const Graph *g, const Node *n, int result, DType d,
                             char *msg) {
    enum { FEW = 16 };
    Type few[FEW];
    Type *given = n->nout <= FEW ? few : NEW_ARRAY(g->arena, Type, n->nout);
    for (int i = 0; i < n->nout; i++) {
        TypeId t = value_get(g, n->out[i])->type;
        if (!t.i) return bad(msg, "result %d has no type", i);
        given[i] = *type_get(t);
        if (i == result) given[i].dtype = d;
    }
    return infer_types(g, n, given, NULL, msg);
}

Status node_check_types(const Graph *g, const Node *n, char *msg) {
    return check_types_as(g, n, -1, NUM_DTYPES, msg);
}

bool node_may_store(const Graph *g, const Node *n, int result, DType d) {
    char msg[MSG_TEXT];
    return check_types_as(g, n, result, d, msg) == OK;
}
