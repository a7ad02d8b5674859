/* SPDX-License-Identifier: Apache-2.0 */
/* join.c: matrix products that are summed become one product with a longer
   reduction.
   Before:  %p = matmul %a, %b {trans_a=1} : f32[m,n]    %a: [k,m], %b: [k,n]
            %q = matmul %c, %d {trans_a=1} : f32[m,n]
            %w = add %p, %q
   After:   %x = concat %c, %a    %y = concat %d, %b     (2k rows)
            %w = matmul %x, %y {trans_a=1} : f32[m,n]
   The gradient of a weight that every step of a recurrence reads is then
   written once, not once per step. The order of summation changes. Two kinds of
   sums stay: 16-bit sums, which round at every step, and sums of the update,
   where micro-batches must add up as ranks do.
   requires     stage PRIMITIVE
   establishes  nothing; breaks nothing; leaves dead nodes                    */
#include "passes/rewrite.h"
#include "passes/passes.h"

typedef VEC(ValueId) ValueList;

/* Terms of one sum that are products of operands with equal layout. */
typedef struct Kind {
    ValueList of;
    int64_t copied; /* elements of the operands */
    ValueId joined; /* 0: not yet */
} Kind;
typedef VEC(Kind) KindList;

/* The node of forward or backward that computes the sum v; all terms have
   type t. */
static const Node *sum_of(const Graph *g, ValueId v, TypeId t) {
    const Node *n = def_of(g, v, OP_ADD);
    return n && value_get(g, v)->type.i == t.i && !(n->flags & NODE_UPDATE)
               ? n
               : NULL;
}

/* Per value: true for a sum whose only reader is another sum of the same
   type. */
static bool *find_inner(const Graph *g, Arena *scratch) {
    bool *inner = NEW_ARRAY(scratch, bool, g->values.len);
    const int *uses = graph_use_counts(g, scratch);
    for (int i = 0; i < g->order.len; i++) {
        const Node *n = node_at(g, i);
        if (n->op != OP_ADD || n->flags & NODE_UPDATE) continue;
        TypeId t = value_get(g, n->out[0])->type;
        for (int k = 0; k < 2; k++)
            inner[n->in[k].i] |=
                uses[n->in[k].i] == 1 && sum_of(g, n->in[k], t) != NULL;
    }
    return inner;
}

/* The terms of the sum, from left to right. */
static ValueList terms_of(const Rewriter *rw, ValueId sum) {
    const bool *inner = rw->user;
    TypeId t = value_get(rw->g, sum)->type;
    ValueList todo = {0}, terms = {0};
    vec_push(rw->scratch, &todo, sum);
    while (todo.len) {
        ValueId v = todo.data[--todo.len];
        if (v.i == sum.i || inner[v.i]) {
            const Node *n = sum_of(rw->g, v, t);
            vec_push(rw->scratch, &todo, n->in[1]);
            vec_push(rw->scratch, &todo, n->in[0]);
        } else {
            vec_push(rw->scratch, &terms, v);
        }
    }
    return terms;
}

/* The product of two matrices that computes v, if the sum is its only reader
   and it is larger than its operands. */
static const Node *term_product(const Rewriter *rw, ValueId v, TypeId t) {
    const Node *n = def_of(rw->g, v, OP_MATMUL);
    if (!n || uses_of(rw, v) != 1 || value_get(rw->g, v)->type.i != t.i)
        return NULL;
    const Type *a = value_type(rw->g, n->in[0]);
    const Type *b = value_type(rw->g, n->in[1]);
    return a->rank == 2 && b->rank == 2 &&
                   type_count(a) + type_count(b) < type_count(type_get(t))
               ? n
               : NULL;
}

static bool alike(const Graph *g, const Node *a, const Node *b) {
    return attr_int(a, AK_trans_a) == attr_int(b, AK_trans_a) &&
           attr_int(a, AK_trans_b) == attr_int(b, AK_trans_b) &&
           value_dtype(g, a->in[0]) == value_dtype(g, b->in[0]) &&
           value_dtype(g, a->in[1]) == value_dtype(g, b->in[1]);
}

static const Node *product_of(const Graph *g, ValueId v) {
    return node_get(g, value_get(g, v)->def);
}

/* For each term the index of its kind in *kinds; -1: none. */
static int *sort_terms(const Rewriter *rw, const ValueList *terms, TypeId t,
                       KindList *kinds) {
    const Graph *g = rw->g;
    int *kind = NEW_ARRAY(rw->scratch, int, terms->len);
    for (int i = 0; i < terms->len; i++) {
        const Node *p = term_product(rw, terms->data[i], t);
        kind[i] = -1;
        if (!p) continue;
        int k = 0;
        while (k < kinds->len &&
               !alike(g, p, product_of(g, kinds->data[k].of.data[0])))
            k++;
        if (k == kinds->len) vec_push(rw->scratch, kinds, (Kind){0});
        vec_push(rw->scratch, &kinds->data[k].of, terms->data[i]);
        kinds->data[k].copied +=
            value_count(g, p->in[0]) + value_count(g, p->in[1]);
        kind[i] = k;
    }
    return kind;
}

/* True if copying the operands moves fewer bytes than adding the results. */
static bool pays(const Kind *k, TypeId t) {
    return k->copied < (k->of.len - 1) * type_count(type_get(t));
}

/* Concatenates the operands in reverse: backward adds gradients in one
   order, and forward's own concats of the same values have the opposite one. */
static ValueId join_operands(Rewriter *rw, const ValueList *v, int which,
                             int axis) {
    ValueId *in = NEW_ARRAY(rw->scratch, ValueId, v->len);
    for (int i = 0; i < v->len; i++)
        in[v->len - 1 - i] = product_of(rw->g, v->data[i])->in[which];
    Attr a = attr_i(AK_axis, axis);
    return build(&rw->b, OP_CONCAT, in, v->len, &a, 1,
                 value_dtype(rw->g, in[0]), NULL);
}

static ValueId join_products(Rewriter *rw, const ValueList *v) {
    Node first = *product_of(rw->g, v->data[0]); /* building may move the
                                                    pool */
    DType d = value_dtype(rw->g, v->data[0]);
    ValueId in[2];
    in[0] = join_operands(rw, v, 0, attr_int(&first, AK_trans_a) ? 0 : 1);
    in[1] = join_operands(rw, v, 1, attr_int(&first, AK_trans_b) ? 1 : 0);
    return build(&rw->b, OP_MATMUL, in, 2, first.attrs, first.nattr, d, NULL);
}

static bool join_rule(Rewriter *rw, NodeId id, ValueId *with) {
    Graph *g = rw->g;
    const bool *inner = rw->user;
    const Node *n = node_get(g, id);
    ValueId out = n->out[0], sum = {0};
    TypeId t = value_get(g, out)->type;
    DType d = value_dtype(g, out);
    if (!sum_of(g, out, t) || inner[out.i] || dtype_is_low(d)) return false;
    ValueList terms = terms_of(rw, out);
    KindList kinds = {0};
    const int *kind = sort_terms(rw, &terms, t, &kinds);
    bool any = false;
    for (int i = 0; i < kinds.len; i++) any |= pays(&kinds.data[i], t);
    if (!any) return false;
    for (int i = 0; i < terms.len; i++) {
        Kind *k = kind[i] < 0 ? NULL : &kinds.data[kind[i]];
        ValueId v = terms.data[i];
        if (k && pays(k, t)) {
            if (k->joined.i) continue;
            v = k->joined = join_products(rw, &k->of);
        }
        sum = sum.i ? b2(&rw->b, OP_ADD, sum, v, d) : v;
    }
    rewrite_take_name(g, out, sum);
    with[0] = sum;
    return true;
}

Status pass_join(Module *m, PassCtx *cx) {
    for (int i = 0; i < m->graphs.len; i++) {
        Graph *g = m->graphs.data[i];
        rewrite_graph(g, cx->scratch, join_rule, find_inner(g, cx->scratch));
    }
    return OK;
}
