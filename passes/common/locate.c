/* SPDX-License-Identifier: Apache-2.0 */
/* locate.c: --debug-nonfinite: finds the first value that is not finite.
   Before:  graph locate, as probes makes it: %y = matmul %x, %w  ...
   After:   of each value that the model names, in its type,
            %c = 2 k + kind if an element is not finite; else 2^63 - 1
            return ampc.nonfinite=min(%c, ...),
                   ampc.located/K/WAY/OP/DTYPE/LENGTH:NAME/SOURCE=%c, ...
   k counts values in the program's order: inputs, variables, then nodes; kind
   is 0 for NaN, 1 for infinities alone.  WAY is i(nput), v(ariable), f(orward)
   or b(ackward), SOURCE the node of the model.
   The runtime runs it before each step (runtime/api/locate.c). Programs that
   train are unchanged bit for bit, and so are their checkpoints. Infinities
   computed from constants by arithmetic and moves are intended, as in masks;
   NaN
   never is.  Values inside a function are its own affair. requires     stage
   PRIMITIVE, types chosen */
#include "passes/rewrite.h"
#include "passes/passes.h"

#include <math.h>
#include <stdint.h>
#include <string.h>

typedef struct Locator {
    Graph *g;
    Builder b;
    bool *meant;   /* per value: infinities are intended, they come from
                      constants */
    ValueId first; /* i64[]: the smallest code so far */
    int n;         /* values so far                                */
} Locator;

static ValueId i64c(Locator *l, int64_t v) {
    return graph_scalar_int(l->g, DT_I64, v);
}

static ValueId locate_bin(Locator *l, OpCode op, ValueId x, ValueId y) {
    return b2(&l->b, op, x, y, DT_DEFAULT);
}

/* ---- the code of a value ------------------------------------------------- */

/* The sum of squares in f64, which finite f32 cannot overflow, reads a value
   once and writes one number. */
static ValueId code_of(Locator *l, ValueId v) {
    bool meant = l->meant[v.i];
    Type t = *value_type(l->g, v);
    int64_t axes[MAX_RANK];
    ValueId sum, none = i64c(l, INT64_MAX);
    for (int i = 0; i < t.rank; i++) axes[i] = i;
    if (dtype_is_low(t.dtype) || !t.rank)
        v = b_cast(&l->b, v, t.rank ? DT_F32 : DT_F64);
    sum = t.rank
              ? b_reduce(&l->b, OP_REDUCE_SUMSQ, v, axes, t.rank, true, DT_F64)
              : locate_bin(l, OP_MUL, v, v);
    sum = b_reshape(&l->b, sum, 0, NULL);
    ValueId is_nan = b1(&l->b, OP_ISNAN, sum, DT_DEFAULT);
    ValueId is_inf = b1(&l->b, OP_ISINF, sum, DT_DEFAULT);
    ValueId code = b_where(&l->b, is_nan, i64c(l, 2 * (int64_t)l->n), none);
    if (meant) return code;
    return b_where(&l->b, is_inf, i64c(l, 2 * (int64_t)l->n + 1), code);
}

static void locate(Locator *l, ValueId v, char way, const char *op, Loc loc) {
    const Value *val = value_get(l->g, v);
    DType d = type_get(val->type)->dtype;
    if (!dtype_is_float(d) || !type_count(type_get(val->type))) return;
    const char *name = val->name ? val->name : "";
    Str source = loc.node   ? loc.node
                 : loc.line ? internf("line %d", loc.line)
                            : intern("");
    Str of = internf("%d/%c/%s/%s/%d:%s/%s", l->n, way, op, dtype_info[d].text,
                     (int)strlen(name), name, source);
    ValueId code = code_of(l, v);
    graph_add_output(l->g, family_name(FAMILY_LOCATED, of), code);
    l->first = l->n++ ? locate_bin(l, OP_MIN, l->first, code) : code;
}

/* ---- which values -------------------------------------------------------- */

static bool holds_infinity(const Tensor *t) {
    if (!dtype_is_float(type_get(t->type)->dtype)) return false;
    for (int64_t i = 0, n = type_count(type_get(t->type)); i < n; i++)
        if (isinf(tensor_get(t, i))) return true;
    return false;
}

static bool is_meant(const Locator *l, const Node *n) {
    OpKind kind = node_kind(n);
    if (n->op == OP_FULL) return isinf(attr_float(n, AK_value));
    if (n->loc.inside ||
        (kind != KIND_ELEM && kind != KIND_VIEW && kind != KIND_MOVE))
        return false;
    for (int i = 0; i < n->nin; i++)
        if (l->meant[n->in[i].i]) return true;
    return false;
}

/* Variables that forward and backward read; copies come last. */
static void locate_vars(Locator *l, const bool *read, int limit) {
    static const VarKind kinds[] = {VAR_PARAM, VAR_FROZEN, VAR_BUFFER,
                                    VAR_SHADOW};
    for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++)
        for (uint32_t i = 1; i < (uint32_t)limit; i++) {
            ValueId v = {i};
            if (read[i] && value_get(l->g, v)->kind == VK_VAR &&
                value_var(l->g, v)->kind == kinds[k])
                locate(l, v, 'v', "", (Loc){0});
        }
}

static void locate_node(Locator *l, NodeId id) {
    Node n = *node_get(l->g, id); /* building may move the pool */
    vec_push(l->g->arena, &l->g->order, id);
    bool meant = is_meant(l, &n);
    for (int i = 0; i < n.nout; i++) {
        l->meant[n.out[i].i] = meant;
        if (n.loc.inside) continue;
        locate(l, n.out[i], n.flags & NODE_BACKWARD ? 'b' : 'f',
               node_info(&n)->text, n.loc);
    }
}

static void locate_graph(Graph *g, PassCtx *cx) {
    Locator l = {.g = g, .b = {.g = g}};
    int limit = g->values.len, n;
    NodeId *old = order_take(g, cx->scratch, &n);
    bool *read = NEW_ARRAY(cx->scratch, bool, limit);
    l.meant = NEW_ARRAY(cx->scratch, bool, limit);
    for (int i = 1; i < limit; i++)
        if (g->values.data[i].kind == VK_CONST)
            l.meant[i] = holds_infinity(g->values.data[i].data);
    for (int i = 0; i < n; i++) {
        const Node *x = node_get(g, old[i]);
        for (int k = 0; k < x->nin; k++) read[x->in[k].i] = true;
    }
    g->outputs.len = g->writes.len = 0;
    for (int i = 0; i < g->inputs.len; i++)
        locate(&l, g->inputs.data[i], 'i', "", (Loc){0});
    locate_vars(&l, read, limit);
    for (int i = 0; i < n; i++) locate_node(&l, old[i]);
    graph_add_output(g, own_output(OUT_NONFINITE, g->objective), l.first);
}

Status pass_locate(Module *m, PassCtx *cx) {
    for (int i = 0; i < m->graphs.len; i++)
        if (m->graphs.data[i]->program == PROGRAM_LOCATE)
            locate_graph(m->graphs.data[i], cx);
    return OK;
}
