/* SPDX-License-Identifier: Apache-2.0 */
/* placement_apply.c: gives the values of a graph the dtypes that pass place has
   chosen, and rounds what goes with them. */
#include "passes/common/placement_impl.h"
#include "passes/rewrite.h"

bool *find_slopes(const Place *p, const Graph *g, Arena *a) {
    bool *slope = NEW_ARRAY(a, bool, g->values.len);
    for (int v = 1; v < g->values.len; v++)
        slope[v] =
            def_of(g, (ValueId){(uint32_t)v}, OP_GELU_SLOPE) && !p->f.cast[v].i;
    for (int i = 0; i < g->order.len; i++) {
        const Node *n = node_at(g, i);
        for (int k = 0; k < n->nin && node_kind(n) != KIND_ELEM; k++)
            slope[n->in[k].i] = false;
    }
    return slope;
}

void place_apply(const Place *p, Graph *g, const bool *low, Arena *a) {
    const int *uses = graph_use_counts(g, a);
    const bool *slope = find_slopes(p, g, a);
    int kept = 0;
    ValueId *stands = NEW_ARRAY(a, ValueId, g->values.len);
    for (uint32_t v = 1; v < (uint32_t)p->values; v++) {
        Value *val = value_get(g, (ValueId){v});
        bool only_copy = p->free[v] && p->f.cast[v].i && uses[v] == 1 &&
                         !shares_type(node_get(g, val->def));
        val->why = p->high[v] ? p->high[v] : "16 bits save nothing";
        if (!p->free[v] || !(low[v] || only_copy)) continue;
        val->type = type_with_dtype(val->type, slope[v] ? DT_F16 : p->low);
        if (p->f.cast[v].i) stands[p->f.cast[v].i] = (ValueId){v};
    }
    for (int i = 0; i < g->order.len; i++) {
        Node *n = node_at(g, i);
        if (n->nout && stands[n->out[0].i].i) continue;
        for (int k = 0; k < n->nin; k++)
            if (stands[n->in[k].i].i) n->in[k] = stands[n->in[k].i];
        g->order.data[kept++] = g->order.data[i];
    }
    g->order.len = kept;
    for (int i = 0; graph_root(g, i); i++)
        if (stands[graph_root(g, i)->i].i)
            *graph_root(g, i) = stands[graph_root(g, i)->i];
}

void place_narrow_biases(Graph *g, Arena *a) {
    DType low = g->module->low;
    const int *uses = graph_use_counts(g, a);
    for (int i = 0; i < g->order.len; i++) {
        const Node *n = node_at(g, i);
        for (int k = 0; k < 2 && n->op == OP_ADD; k++) {
            ValueId product = n->in[k], bias = n->in[1 - k];
            const Type *t = value_type(g, bias);
            if (dtype_of(g, n->out[0]) != low || t->dtype != DT_F32 ||
                dtype_of(g, product) != DT_F32 ||
                !def_of(g, product, OP_MATMUL) || uses[product.i] != 1 ||
                t->rank == 0 || type_count(t) != t->dim[t->rank - 1] ||
                type_count(t) == 1)
                continue;
            ValueId narrow = shadow_of(g, bias, low);
            if (is_value(narrow)) node_at(g, i)->in[1 - k] = narrow;
        }
    }
}

/* The f32 stream that the norm n divides; NO_VALUE: n divides no stream. */
static ValueId normalised(const Place *p, const Node *n) {
    const Graph *g = p->g;
    double eps;
    ValueId x = n->flags ? NO_VALUE : place_divided_by(g, n, &eps);
    bool is = is_forward(g, x) && dtype_of(g, x) == DT_F32 &&
              !(p->whole && p->whole[x.i]) &&
              dtype_of(g, n->out[0]) == DT_F32 && n->loc.amp != 1 + AMP_FULL &&
              (p->traffic[x.i].stored || p->high[x.i] == place_stream);
    return is ? x : NO_VALUE;
}

typedef struct Keep {
    const Place *p;
    Graph *g;
    ValueId *stands; /* per value: its replacement in backward */
} Keep;

/* The replacement of v in backward, computed from a rounded copy; NO_VALUE
   unless v is a quotient with such a copy, or linear in one with small
   factors and terms. */
static ValueId from_copy(Keep *k, ValueId v) {
    Graph *g = k->g;
    if (k->stands[v.i].i || !is_forward(g, v) || k->p->high[v.i] ||
        k->p->traffic[v.i].stored || dtype_of(g, v) != DT_F32)
        return k->stands[v.i];
    NodeId id = value_get(g, v)->def;
    Node n = *node_get(g, id); /* building may move the pool */
    ValueId in[2] = {NO_VALUE};
    int large = 0;
    if (n.op != OP_ADD && n.op != OP_SUB && n.op != OP_MUL) return NO_VALUE;
    for (int i = 0; i < 2; i++) {
        in[i] = n.in[i];
        if (value_count(g, in[i]) * 8 <= value_count(g, v)) continue;
        large++;
        in[i] = from_copy(k, in[i]);
    }
    if (large != 1 || !in[0].i || !in[1].i) return NO_VALUE;
    Builder b = {.g = g, .flags = NODE_BACKWARD | NODE_AGAIN, .loc = n.loc};
    ValueId again = node_get(g, build_again(&b, id, in))->out[0];
    value_get(g, again)->why = value_get(g, v)->why;
    return k->stands[v.i] = again;
}

void place_keep_normalised(const Place *p, Graph *g, Arena *a) {
    int n = g->order.len, values = g->values.len;
    NodeId *old = arena_dup(a, g->order.data, (size_t)n * sizeof *old);
    bool *factor = NEW_ARRAY(a, bool, values),
         *read = NEW_ARRAY(a, bool, values);
    Keep keep = {p, g, NEW_ARRAY(a, ValueId, values)};
    for (int i = 0; i < n; i++) {
        const Node *x = node_get(g, old[i]);
        for (int k = 0; k < x->nin && x->flags & NODE_BACKWARD; k++)
            (x->op == OP_MUL ? factor : read)[x->in[k].i] = true;
    }
    g->order.len = 0;
    for (int i = 0; i < n; i++) {
        const Node *x = node_get(g, old[i]);
        ValueId of = normalised(p, x), v = x->out[0], copy = p->f.cast[v.i];
        for (int k = 0; k < x->nin && x->flags & NODE_BACKWARD; k++) {
            ValueId instead = from_copy(&keep, x->in[k]);
            x = node_get(g, old[i]);
            if (instead.i) x->in[k] = instead;
        }
        vec_push(g->arena, &g->order, old[i]);
        if (!of.i || read[of.i] || factor[of.i] || read[v.i] || !factor[v.i])
            continue;
        Builder b = {.g = g, .loc = x->loc};
        keep.stands[v.i] =
            is_forward(g, copy) ? copy : b1(&b, OP_CAST, v, p->low);
    }
}
