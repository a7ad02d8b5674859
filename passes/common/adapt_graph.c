/* SPDX-License-Identifier: Apache-2.0 */
/* adapt_graph.c: a graph's products with their adapters. */
#include "ir/fn/fn.h"
#include "passes/common/adapt.h"
#include "passes/common/dora.h"
#include "passes/common/frozen.h"
#include "passes/rewrite.h"

/* One graph. */
typedef struct Walk {
    const Adapt *x;
    Graph *g;
    ReadWalk reads;
    int64_t salt; /* of the next dropout */
} Walk;

static ValueId dropped(Walk *w, ValueId v, double ratio) {
    if (!(ratio > 0) || !w->x->cx->opt->dropout) return v;
    ValueId in[] = {v, graph_own_var(w->g, OWN_RNG, 0)};
    Attr attrs[] = {attr_named_f("ratio", ratio), attr_i(AK_salt, w->salt++)};
    NodeId id =
        build_call(&w->reads.b, fn_std("dropout"), in, 2, attrs, 2, 1, NULL);
    return node_get(w->g, id)->out[0];
}

static ValueId var_named(const Walk *w, Str name) {
    return graph_var(w->g, module_find_var(w->x->m, name));
}

/* The factors beside a value whose axis `axis` from the end is theirs. */
static ValueId times_factors(Walk *w, ValueId v, const Adapter *a, int axis) {
    Builder *b = &w->reads.b;
    ValueId f = var_named(w, a->factor);
    int64_t dim[MAX_RANK] = {value_count(w->g, f)};
    for (int i = 1; i < axis; i++) dim[i] = 1;
    f = b_reshape(b, f, axis, dim);
    return b2(b, OP_MUL, v, f, value_dtype(w->g, v));
}

/* n: the product with feedforward, else the node whose result has factors. */
static void multiply_factors(Walk *w, const Node *n, const Adapter *a) {
    Builder *b = &w->reads.b;
    ValueId y = n->out[0], *z = &w->reads.map[y.i];
    b->loc = n->loc;
    if (a->axes && a->feedforward) {
        ValueId x = times_factors(w, n->in[0], a, 1 + a->axes);
        *z = build(b, OP_CONV, (ValueId[]){x, n->in[1]}, 2, n->attrs, n->nattr,
                   value_dtype(w->g, y), NULL);
    } else if (a->feedforward) {
        bool turned = attr_int(n, AK_trans_a) != 0;
        ValueId x = times_factors(w, n->in[0], a, turned ? 2 : 1);
        *z = b_matmul(b, x, n->in[1], turned, attr_int(n, AK_trans_b) != 0,
                      value_dtype(w->g, y));
    } else {
        *z = times_factors(w, y, a, 1 + a->axes);
    }
    b->loc = (Loc){0};
}

/* The two products of x with lora_A and lora_B, or convolutions like n. */
static ValueId two_products(Walk *w, const Node *n, const Adapter *a,
                            ValueId x) {
    Builder *b = &w->reads.b;
    ValueId down = var_named(w, a->a), up = var_named(w, a->b);
    if (n->op == OP_MATMUL) {
        ValueId low =
            b_matmul(b, x, down, attr_int(n, AK_trans_a) != 0, true, DT_F32);
        return b_matmul(b, low, up, false, true, DT_F32);
    }
    int64_t one[MAX_RANK], none[2 * MAX_RANK] = {0};
    int axes = value_type(w->g, x)->rank - 2;
    for (int i = 0; i < axes; i++) one[i] = 1;
    Attr plain[] = {attr_v(AK_strides, one, axes),
                    attr_v(AK_pads, none, 2 * axes),
                    attr_v(AK_dilations, one, axes), attr_i(AK_group, 1)};
    ValueId low = build(b, OP_CONV, (ValueId[]){x, down}, 2, n->attrs, n->nattr,
                        DT_F32, NULL);
    return build(b, OP_CONV, (ValueId[]){low, up}, 2, plain, 4, DT_F32, NULL);
}

static void adapt_product(Walk *w, const Node *n, const Adapter *a) {
    Builder *b = &w->reads.b;
    DType d = value_dtype(w->g, n->out[0]);
    double scale = a->alpha / (double)a->rank;
    ValueId y = n->out[0];
    b->loc = n->loc;
    ValueId whole = b_cast(b, n->in[0], DT_F32),
            x = dropped(w, whole, a->dropout);
    ValueId add = two_products(w, n, a, x);
    if (scale != 1)
        add = b2(b, OP_MUL, add, b_scalar(b, DT_F32, scale), DT_F32);
    ValueId z = b2(b, OP_ADD, y, add, d);
    if (a->magnitude)
        z = dora_result(b, a, n, x.i == whole.i ? NO_VALUE : x, add, z);
    w->reads.map[y.i] = z;
    b->loc = (Loc){0};
}

/* A node without the attribute has its default, 0. */
static int64_t next_salt(const Graph *g) {
    int64_t next = 0;
    for (int i = 0; i < g->order.len; i++) {
        const Node *n = node_at(g, i);
        const Attr *a = attr_find(n, AK_salt);
        int64_t salt = a ? a->u.i : 0;
        if (info_takes(node_info(n), AK_salt) && salt >= next) next = salt + 1;
    }
    return next;
}

/* Stored variables of one module: its first nvar. */
typedef struct AllStored {
    const Stored *data;
    int nvar;
} AllStored;

/* Variables not stored as f32 are converted where they are read. */
static ValueId read_stored(Builder *b, int var, const void *user) {
    const AllStored *all = user;
    if (var >= all->nvar) return NO_VALUE;
    const Stored *s = &all->data[var];
    return s->narrow || s->scale ? frozen_read(b, s, var) : NO_VALUE;
}

void adapt_graph(const Adapt *x, Graph *g, const int *adapter,
                 const Stored *stored) {
    Walk w = {.x = x, .g = g, .salt = next_salt(g)};
    ReadWalk *r = &w.reads;
    reads_begin(r, g, x->cx->scratch, read_stored,
                &(AllStored){stored, x->nvar});
    for (int i = 0; i < r->n; i++) {
        const Node old = *node_get(g, r->old[i]); /* building may move the
                                                     pool */
        ValueId *with = &r->map[old.out[0].i];
        if (frozen_rows(&r->b, stored, x->nvar, &old, with)) {
            rewrite_take_name(g, old.out[0], *with);
            continue;
        }
        reads_keep(r, r->old[i]);
        if (adapter[i] < 0) continue;
        const Adapter *a = &x->m->adapters.data[adapter[i]];
        if (a->factor)
            multiply_factors(&w, &old, a);
        else
            adapt_product(&w, &old, a);
    }
    reads_end(r);
}
