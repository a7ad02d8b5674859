/* SPDX-License-Identifier: Apache-2.0 */
/* sensitivity.c: see sensitivity.h.
   Before:  graph micro: %h.bf16 = cast %h     %z = matmul %h.bf16, %w.bf16
            write %ampc.grad/w = add %ampc.grad/w, %dw
   After:   graph eval(.., %signs/w: f32[..]):
            %h.operand = reshape %h     %z = matmul %h.operand, %w.operand
            %q = reduce_sum (mul %dw, %signs/w)
            %a = gradient of the loss by %h   %d = sub (cast (cast %h)), %h
            %s = reduce_sumsq (mul %a, %d)
            return loss=.., norm=.., 0/0=%s, ..
   and:     graph predict(.., %round/0: bool[]):
            %h.round = where %round/0, (cast (cast %h)), %h
            return loss=.., grad/w=%dw
   requires     stage PRIMITIVE, before pass place                           */
#include "passes/common/sensitivity.h"

#include "ir/graph/names.h"
#include "passes/rewrite.h"

typedef enum SensitivityForm {
    SENSITIVITY_SLOPES,
    SENSITIVITY_SWITCHES
} SensitivityForm;

typedef struct Maker {
    Graph *g;
    Builder b;
    Arena *a;
    PassCtx *cx;
    Sites s;
    ValueId *wide; /* per value: its f32 form; 0: none yet */
    int limit;
    ValueId *at; /* per site: the value that is rounded */
    SensitivityForm form;
    Sensitivity *out;
} Maker;

/* ---- the step in fp32 ---------------------------------------------------- */

static ValueId sensitivity_widened(Maker *m, ValueId v) {
    if (!v.i || (int)v.i >= m->limit) return v;
    if (!m->wide[v.i].i) {
        ValueId from = rounded_from(m->g, v);
        if (!dtype_is_low(value_dtype(m->g, v)))
            m->wide[v.i] = v;
        else
            m->wide[v.i] = b_cast(&m->b, from.i ? from : v, DT_F32);
    }
    return m->wide[v.i];
}

/* v rounded, and converted back to f32. */
static ValueId sensitivity_rounded(Maker *m, ValueId v, DType low) {
    return b_cast(&m->b, b_cast(&m->b, v, low), DT_F32);
}

/* Site i is v: as another value, with respect to which the loss can be
   differentiated, or v rounded if an input says so. */
static ValueId apart(Maker *m, int i, ValueId v) {
    if (m->form == SENSITIVITY_SWITCHES) {
        ValueId on =
            graph_input(m->g, internf("round/%d", i), type_scalar(DT_BOOL));
        return b_where(&m->b, on,
                       sensitivity_rounded(m, v, m->s.of.data[i].low), v);
    }
    const Type *t = value_type(m->g, v);
    Attr shape = attr_v(AK_shape, t->dim, t->rank);
    return build(&m->b, OP_RESHAPE, &v, 1, &shape, 1, DT_F32, NULL);
}

static bool is_cast_of_f32(const Graph *g, const Node *n) {
    return n->op == OP_CAST && !attr_int(n, AK_user) &&
           !(n->flags & NODE_UPDATE) && dtype_is_low(dtype_of(g, n->out[0])) &&
           dtype_of(g, n->in[0]) == DT_F32;
}

/* Builds the node again in f32; *site: the next site. */
static void widen_sensitivity_node(Maker *m, NodeId id, int *site) {
    Graph *g = m->g;
    Node n = *node_get(g, id); /* building may move the pool */
    ValueId *in = NEW_ARRAY(m->a, ValueId, n.nin + 1);
    DType *out = NEW_ARRAY(m->a, DType, n.nout + 1);
    const Site *sites = m->s.of.data;
    m->b.loc = n.loc;
    m->b.flags = n.flags;
    for (int k = 0; k < n.nin; k++) in[k] = sensitivity_widened(m, n.in[k]);
    int first = *site;
    while (*site < m->s.of.len && sites[*site].node.i == id.i) {
        const Site *s = &sites[*site];
        if (s->operand) in[s->at] = m->at[*site] = apart(m, *site, in[s->at]);
        ++*site;
    }
    if (is_cast_of_f32(g, &n)) {
        m->wide[n.out[0].i] = in[0];
        return;
    }
    bool same = true;
    for (int k = 0; k < n.nin; k++) same &= same_value(in[k], n.in[k]);
    for (int k = 0; k < n.nout; k++) {
        out[k] = value_dtype(g, n.out[k]);
        if (dtype_is_low(out[k])) out[k] = DT_F32;
        same &= out[k] == value_dtype(g, n.out[k]);
    }
    if (same) vec_push(g->arena, &g->order, id);
    NodeId to = same   ? id
                : n.fn ? build_call(&m->b, n.fn, in, n.nin, n.attrs, n.nattr,
                                    n.nout, out)
                       : build_multi(&m->b, n.op, in, n.nin, n.attrs, n.nattr,
                                     n.nout, out, NULL);
    for (int k = 0; k < n.nout; k++)
        m->wide[n.out[k].i] = node_get(g, to)->out[k];
    for (int i = first; i < *site; i++) {
        if (sites[i].operand) continue;
        ValueId *v = &m->wide[n.out[sites[i].at].i];
        if (m->form == SENSITIVITY_SWITCHES) *v = apart(m, i, *v);
        m->at[i] = *v;
    }
}

/* ---- sums ---------------------------------------------------------------- */

static ValueId sum_all(Maker *m, OpCode op, ValueId v) {
    int64_t axes[MAX_RANK];
    int rank = value_type(m->g, v)->rank;
    for (int k = 0; k < rank; k++) axes[k] = k;
    if (!rank) return op == OP_REDUCE_SUM ? v : b2(&m->b, OP_MUL, v, v, DT_F32);
    return b_reduce(&m->b, op, v, axes, rank, false, DT_F32);
}

static ValueId plus(Maker *m, ValueId a, ValueId b) {
    return a.i ? b2(&m->b, OP_ADD, a, b, DT_F32) : b;
}

/* Finds %dw in: write %ampc.grad/w = add %ampc.grad/w, %dw. */
static ValueId sensitivity_summand(const Graph *g, Write w) {
    const Node *n = def_of(g, w.value, OP_ADD);
    if (!n) return w.value;
    return same_value(n->in[0], w.var) ? n->in[1] : n->in[0];
}

/* Outputs the gradients; or returns <G, signs>, and outputs the squared norm
   of G. */
static ValueId add_gradients(Maker *m, const Write *w, int n) {
    Graph *g = m->g;
    ValueId q = NO_VALUE, norm = NO_VALUE;
    for (int i = 0; i < n; i++) {
        Str of = family_member(FAMILY_GRAD, value_var(g, w[i].var)->name);
        if (!of) continue;
        ValueId grad = sensitivity_widened(m, sensitivity_summand(g, w[i]));
        if (m->form == SENSITIVITY_SWITCHES) {
            graph_add_output(g, internf("grad/%s", of), grad);
            continue;
        }
        Str name = internf("signs/%s", of);
        ValueId signs = graph_input(g, name, value_get(g, grad)->type);
        ValueId part = b2(&m->b, OP_MUL, grad, signs, DT_F32);
        q = plus(m, q, sum_all(m, OP_REDUCE_SUM, part));
        norm = plus(m, norm, sum_all(m, OP_REDUCE_SUMSQ, grad));
    }
    if (norm.i) graph_add_output(g, intern("norm"), norm);
    return q;
}

static Status sensitivity_add_sums(Maker *m, ErrorKind kind, ValueId of) {
    Graph *g = m->g;
    int n = m->s.of.len;
    ValueId *slope = NEW_ARRAY(m->a, ValueId, n + 1);
    TRY(autodiff(g, m->cx->diag, m->a, NODE_BACKWARD, of, NO_VALUE, m->at, n,
                 slope));
    for (int i = 0; i < n; i++) {
        if (!slope[i].i) continue;
        ValueId d = sensitivity_rounded(m, m->at[i], m->s.of.data[i].low);
        d = b2(&m->b, OP_SUB, d, m->at[i], DT_F32);
        ValueId each = b2(&m->b, OP_MUL, slope[i], d, DT_F32);
        graph_add_output(g, internf("%d/%d", kind, i),
                         sum_all(m, OP_REDUCE_SUMSQ, each));
        graph_add_output(g, internf("%d/%d", NUM_ERRORS + kind, i),
                         sum_all(m, OP_REDUCE_SUM, each));
        m->out->of.data[i].measured[kind] = true;
    }
    return OK;
}

static void make_step(Maker *m) {
    Graph *g = m->g;
    int n, site = 0;
    NodeId *old = order_take(g, m->a, &n);
    m->limit = g->values.len;
    m->wide = NEW_ARRAY(m->a, ValueId, m->limit);
    m->at = NEW_ARRAY(m->a, ValueId, m->s.of.len + 1);
    for (int i = 0; i < n; i++) widen_sensitivity_node(m, old[i], &site);
}

static void list_sites(Maker *m) {
    for (int i = 0; i < m->s.of.len; i++) {
        const Site *s = &m->s.of.data[i];
        vec_push(m->g->arena, &m->out->of,
                 (SensitivitySite){.key = s->key,
                                   .name_key = s->name_key,
                                   .count = site_count(m->g, s)});
    }
}

static Status make_sums(Maker *m, ValueId loss, const Write *writes, int n) {
    ValueId q = NO_VALUE;
    bool slopes = m->form == SENSITIVITY_SLOPES;
    if (slopes) TRY(sensitivity_add_sums(m, ERROR_LOSS, loss));
    if (!slopes || m->cx->opt->max_error[ERROR_GRADIENT] > 0)
        q = add_gradients(m, writes, n);
    return q.i ? sensitivity_add_sums(m, ERROR_GRADIENT, q) : OK;
}

static Status make_program(Graph *g, PassCtx *cx, SensitivityForm form,
                           Sensitivity *out) {
    Maker m = {.g = g,
               .b = {.g = g},
               .a = cx->scratch,
               .cx = cx,
               .form = form,
               .out = out};
    bool slopes = form == SENSITIVITY_SLOPES;
    m.s = sites_find(g, cx);
    if (slopes) list_sites(&m);
    make_step(&m);
    ValueId loss = graph_output(g, own_output(OUT_LOSS, g->objective));
    int n = g->writes.len;
    Write *writes = g->writes.data;
    g->outputs.len = g->writes.len = 0;
    m.b = (Builder){.g = g, .flags = NODE_BACKWARD};
    loss = sensitivity_widened(&m, loss);
    graph_add_output(g, intern("loss"), loss);
    TRY(make_sums(&m, loss, writes, n));
    VEC(ValueId) roots = {0};
    for (int i = 0; graph_root(g, i); i++)
        vec_push(m.a, &roots, *graph_root(g, i));
    graph_drop_unneeded(g, 0, 0, roots.data, roots.len);
    for (int i = 0; i < g->order.len; i++)
        node_at(g, i)->flags &= ~(uint32_t)(NODE_UPDATE | NODE_BACKWARD);
    g->program = slopes ? PROGRAM_EVAL : PROGRAM_PREDICT;
    g->objective = intern("");
    g->name = program_name(g->program, g->objective);
    return OK;
}

Status sensitivity_make(Module *m, PassCtx *cx, Sensitivity *out) {
    Graph *step = m->graphs.data[0];
    Graph *slopes = graph_clone(step, step->name);
    TRY(make_program(slopes, cx, SENSITIVITY_SLOPES, out));
    TRY(make_program(step, cx, SENSITIVITY_SWITCHES, out));
    m->low = NUM_DTYPES;
    m->stage = STAGE_STEP;
    return OK;
}
