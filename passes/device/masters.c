/* SPDX-License-Identifier: Apache-2.0 */
/* masters.c: on CPUs, training reads fp32 weights; matrix products round them
   while they pack them.
   Before:  %y = matmul %x, %ampc.bf16/w {trans_b=1}
            %z = add %y, %ampc.bf16/bias
            write %w = %w.new    write %ampc.bf16/w = %w.new.bf16
   After:   %y = matmul_quantized %x, %w {trans_b=1, code=3}
            %bias.bf16 = cast %bias    %z = add %y, %bias.bf16
            write %w = %w.new
   Copies would take 2 of the 14 bytes of a weight and AdamW's state. Programs
   that evaluate and predict read copies, since products of few rows take as
   long as reading the weight; the runtime makes the copies when such a program
   runs first after a step (PlanRun.masters).

   All programs that train change or none does: only where products of many
   rows read the copies of matrices, and element-wise nodes read copies of
   vectors. Convolutions read copies.

   requires     stage PRIMITIVE
   establishes  Graph.rounds_weights; same bits: the routine rounds as the cast
                does
   breaks       nothing; leaves dead nodes                                   */
#include "passes/passes.h"
#include "passes/device/target.h"
#include "passes/rewrite.h"
#include "runtime/program/quantized.h"

/* Products of fewer rows pack a weight longer than they multiply it. */
#define LEAST_ROWS 64
/* Fewer bytes of copies are not worth another kernel. */
#define LEAST_BYTES ((int64_t)4 << 20)

static bool trains_on_cpu(const Graph *g) {
    return g->target == TARGET_CPU &&
           (g->program == PROGRAM_TRAIN || g->program == PROGRAM_MICRO ||
            g->program == PROGRAM_UPDATE);
}

static bool is_rounded_copy(const Graph *g, ValueId v) {
    return is_value(v) && value_get(g, v)->kind == VK_VAR &&
           value_var(g, v)->kind == VAR_SHADOW;
}

/* The fp32 variable that was rounded to v; -1: v is not a copy of one. */
static int master_of(const Graph *g, ValueId v) {
    const Module *m = g->module;
    if (!is_rounded_copy(g, v)) return -1;
    int source = shadow_source(m, value_var(g, v));
    if (source < 0) return -1;
    const Type *t = type_get(m->vars.data[source].type);
    return t->dtype == DT_F32 && shape_equal(t, value_type(g, v)) ? source : -1;
}

/* True if operand k of n, a copy, is a weight that the routine can round. */
static bool rounds_operand(const Graph *g, const Node *n, int k) {
    const Type *y = value_type(g, n->out[0]);
    if (n->fn || n->op != OP_MATMUL || k != 1 || is_rounded_copy(g, n->in[0]) ||
        attr_int(n, AK_trans_a) || value_type(g, n->in[1])->rank != 2 ||
        value_dtype(g, n->in[0]) != value_dtype(g, n->in[1]))
        return false;
    int64_t columns = y->dim[y->rank - 1];
    return columns > 0 && type_count(y) / columns >= LEAST_ROWS;
}

/* A number per column, which a kernel rounds again and again. */
static bool casts_operand(const Graph *g, const Node *n, int k) {
    return node_kind(n) == KIND_ELEM && value_type(g, n->in[k])->rank <= 1;
}

/* True if the graph needs no copy. */
static bool can_round(const Graph *g) {
    for (int i = 0; i < g->order.len; i++) {
        const Node *n = node_at(g, i);
        for (int k = 0; k < n->nin; k++)
            if (is_rounded_copy(g, n->in[k]) &&
                (master_of(g, n->in[k]) < 0 ||
                 (!rounds_operand(g, n, k) && !casts_operand(g, n, k))))
                return false;
    }
    for (int i = 0; i < g->outputs.len; i++)
        if (is_rounded_copy(g, g->outputs.data[i].value)) return false;
    for (int i = 0; i < g->writes.len; i++)
        if (is_rounded_copy(g, g->writes.data[i].value) &&
            !same_value(g->writes.data[i].value, g->writes.data[i].var))
            return false;
    return true;
}

/* Programs that train may lack copies if nothing but copies is made from
   weights before the first step, and if they change fp32 weights as a whole. */
static bool module_can_round(const Module *m, const Options *o) {
    int64_t bytes = 0;
    for (int i = 0; i < m->vars.len; i++)
        if (m->vars.data[i].kind == VAR_SHADOW)
            bytes += type_bytes(type_get(m->vars.data[i].type));
    if (bytes < LEAST_BYTES || o->shard_optimizer) return false;
    for (int i = 0; i < m->graphs.len; i++) {
        const Graph *g = m->graphs.data[i];
        for (int k = 0; k < g->writes.len && g->program == PROGRAM_REFRESH; k++)
            if (value_var(g, g->writes.data[k].var)->kind != VAR_SHADOW)
                return false;
        if (trains_on_cpu(g) && !can_round(g)) return false;
    }
    return true;
}

static bool masters_rule(Rewriter *rw, NodeId id, ValueId *with) {
    Graph *g = rw->g;
    const Node n = *node_get(g, id); /* building may move the pool */
    ValueId *in = arena_dup(g->arena, n.in, (size_t)n.nin * sizeof *in);
    bool any = false;
    for (int k = 0; k < n.nin; k++) {
        int master = master_of(g, n.in[k]);
        if (master < 0) continue;
        DType d = value_dtype(g, n.in[k]);
        any = true;
        in[k] = graph_var(g, master);
        if (n.op != OP_MATMUL || n.fn) in[k] = b_cast(&rw->b, in[k], d);
    }
    if (!any || n.nout != 1) return false;
    DType d = value_dtype(g, n.out[0]);
    if (n.op == OP_MATMUL && !n.fn) {
        Attr attrs[] = {attr_i(AK_code, QUANTIZED_F32),
                        attr_i(AK_trans_b, attr_int(&n, AK_trans_b))};
        with[0] = build(&rw->b, OP_MATMUL_QUANTIZED, in, 2, attrs, 2, d, NULL);
    } else {
        with[0] = build(&rw->b, n.op, in, n.nin, n.attrs, n.nattr, d, NULL);
    }
    rewrite_take_name(g, n.out[0], with[0]);
    return true;
}

static void drop_rounded_copies(Graph *g) {
    int kept = 0;
    for (int i = 0; i < g->writes.len; i++)
        if (value_var(g, g->writes.data[i].var)->kind != VAR_SHADOW)
            g->writes.data[kept++] = g->writes.data[i];
    g->writes.len = kept;
}

Status pass_masters(Module *m, PassCtx *cx) {
    if (!module_can_round(m, cx->opt)) return OK;
    for (int i = 0; i < m->graphs.len; i++) {
        Graph *g = m->graphs.data[i];
        if (!trains_on_cpu(g)) continue;
        drop_rounded_copies(g);
        rewrite_graph(g, cx->scratch, masters_rule, NULL);
        g->rounds_weights = true;
    }
    return OK;
}
