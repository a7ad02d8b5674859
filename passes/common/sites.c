/* SPDX-License-Identifier: Apache-2.0 */
/* sites.c: see sites.h. */
#include "passes/common/sites.h"

ValueId rounded_from(Graph *g, ValueId v) {
    for (;;) {
        const Value *x = value_get(g, v);
        if (!v.i || !dtype_is_low(type_get(x->type)->dtype)) return NO_VALUE;
        if (x->kind == VK_VAR) {
            const Var *var = value_var(g, v);
            int of =
                var->kind == VAR_SHADOW ? shadow_source(g->module, var) : -1;
            return of < 0 ? NO_VALUE : graph_var(g, of);
        }
        if (x->kind != VK_RESULT) return NO_VALUE;
        const Node *n = node_get(g, x->def);
        OpKind kind = node_kind(n);
        if (n->op == OP_CAST)
            return !attr_int(n, AK_user) && dtype_of(g, n->in[0]) == DT_F32
                       ? n->in[0]
                       : NO_VALUE;
        if (kind != KIND_VIEW && kind != KIND_MOVE) return NO_VALUE;
        if (n->nin != 1) return NO_VALUE;
        v = n->in[0];
    }
}

int64_t site_count(const Graph *g, const Site *s) {
    const Node *n = node_get(g, s->node);
    return value_count(g, s->operand ? n->in[s->at] : n->out[s->at]);
}

bool chooses_product(const Graph *g, const Node *n) {
    bool any = false;
    if (op_info[n->op].amp != AMP_LOW || n->flags & NODE_UPDATE || n->loc.amp ||
        n->op == OP_ATTEND || n->op == OP_ATTEND_GRAD)
        return false;
    for (int k = 0; k < n->nin; k++)
        any |= dtype_is_low(value_dtype(g, n->in[k]));
    return any && dtype_of(g, n->out[0]) == DT_F32;
}

/* fp16 after division by 64: made by streams_as_fp16. */
static bool is_divided(const Place *p, const Node *n) {
    return p->whole && n->op == OP_MUL && p->whole[n->in[0].i] &&
           dtype_of(p->g, n->out[0]) == FINE_TYPE;
}

static void find_values(Sites *s, Arena *a) {
    Graph *g = s->p.g;
    const bool *slope = find_slopes(&s->p, g, a);
    s->as = NEW_ARRAY(a, DType, g->values.len);
    for (int v = 0; v < g->values.len; v++) {
        s->as[v] = NUM_DTYPES;
        if (s->p.free[v] && dtype_of(g, (ValueId){(uint32_t)v}) == DT_F32)
            s->as[v] = slope[v] ? FINE_TYPE : s->p.low;
    }
    for (int i = 0; i < g->order.len; i++) {
        const Node *n = node_at(g, i);
        if (is_divided(&s->p, n) ||
            (shares_type(n) && dtype_of(g, n->in[0]) == FINE_TYPE &&
             s->as[n->in[0].i] == FINE_TYPE))
            s->as[n->out[0].i] = FINE_TYPE;
    }
}

/* Storing a value that stays in registers in 16 bits saves nothing. */
static bool is_stored(const Place *p, ValueId v) {
    ValueId copy = p->f.cast[v.i];
    return p->traffic[v.i].stored || (copy.i && p->traffic[copy.i].stored);
}

static void add_site(Sites *s, Site x, const uint64_t *keys, Arena *a) {
    const Graph *g = s->p.g;
    const Node *n = node_get(g, x.node);
    ValueId v = n->out[x.operand ? 0 : x.at];
    x.key = keys[v.i];
    x.name_key = name_key(g, g->objective, v);
    if (x.operand) {
        x.key = operand_key(x.key, x.at);
        x.name_key = operand_key(x.name_key, x.at);
    }
    vec_push(a, &s->of, x);
}

/* Done first, so that rounded_from makes no values later. */
static void read_parameters(Graph *g) {
    for (int v = 1, n = g->values.len; v < n; v++)
        if (value_get(g, (ValueId){(uint32_t)v})->kind == VK_VAR)
            rounded_from(g, (ValueId){(uint32_t)v});
}

Sites sites_find(Graph *g, PassCtx *cx) {
    Arena *a = cx->scratch;
    read_parameters(g);
    Sites s = {.p = place_begin(g, cx)};
    const uint64_t *keys = value_keys(g, g->objective, a);
    find_values(&s, a);
    for (int i = 0; i < g->order.len; i++) {
        NodeId id = g->order.data[i];
        Node n = *node_get(g, id);
        if (n.flags & NODE_UPDATE) continue;
        for (int k = 0; k < n.nout; k++) {
            DType low = s.as[n.out[k].i];
            bool moved = shares_type(&n) && is_selection(&n);
            if (low != NUM_DTYPES && !moved && is_stored(&s.p, n.out[k]))
                add_site(&s, (Site){.node = id, .at = k, .low = low}, keys, a);
        }
        for (int k = 0; k < n.nin && chooses_product(g, &n); k++)
            if (rounded_from(g, n.in[k]).i)
                add_site(&s,
                         (Site){.node = id,
                                .at = k,
                                .operand = true,
                                .low = value_dtype(g, n.in[k])},
                         keys, a);
    }
    return s;
}
