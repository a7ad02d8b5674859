/* autocast.c: choose storage dtypes and place casts by the class of each op.
   Before:  %h = matmul %x, %w : f32[..]      %r = relu %h : f32[..]
   After:   %x.bf16 = cast %x   %w.bf16 = cast %w
            %h = matmul %x.bf16, %w.bf16 : bf16[..]   %r = relu %h : bf16[..]
   A cast serves every reader of its value.  Rules (amp.md section 1.1):
     LOW      operands are read as 16 bits; the result stays f32 when its one
              reader adds a parameter (a bias: both meet in registers), else 16
     FOLLOW   result as the first operand
     WIDEST   result 16 when every activation operand is 16; parameters and
              constants do not widen it
     FULL     result 16 when only LOW ops read it, else f32
     FULLOUT  result f32
     ANY      result as its operand
   Values of 64-bit floats and integers are left alone, as are the casts that
   the user wrote; the model's outputs keep their declared types.
   requires     stage TYPED
   establishes  stage CAST: no LOW op reads f32 where autocast is on        */
#include "ir/fn/fn.h"
#include "passes/passes.h"

#include <string.h>

typedef struct Autocast {
    Graph *g;
    DType low;
    Builder b;
    Arena *scratch;
    ValueId *low_of; /* by ValueId.i: its 16-bit copy */
    int *uses;
    AmpClass *reader; /* by ValueId.i: LOW if every reader is LOW      */
    bool *meets_leaf; /* by ValueId.i: the reader combines it with a leaf */
    uint32_t limit;
} Autocast;

/* A parameter or constant, possibly reshaped. */
static bool is_leaf(const Graph *g, ValueId v) {
    const Value *val = value_get(g, v);
    if (val->kind != VK_RESULT)
        return val->kind == VK_VAR || val->kind == VK_CONST;
    const Node *n = node_get(g, val->def);
    return (n->op == OP_RESHAPE || n->op == OP_EXPAND) && is_leaf(g, n->in[0]);
}

static bool combines_with_leaf(const Graph *g, const Node *n, int operand) {
    const OpInfo *op = &op_info[n->op];
    return op->kind == KIND_ELEM && op->amp == AMP_WIDEST && n->nin == 2 &&
           is_leaf(g, n->in[1 - operand]);
}

/* One pass over the uses: what the readers of each value want. */
static void note_readers(Autocast *ac) {
    const Graph *g = ac->g;
    for (uint32_t i = 0; i < ac->limit; i++) ac->reader[i] = AMP_LOW;
    for (int i = 0; i < g->order.len; i++) {
        const Node *n = node_get(g, g->order.data[i]);
        for (int k = 0; k < n->nin; k++) {
            uint32_t v = n->in[k].i;
            if (node_info(n)->amp != AMP_LOW) ac->reader[v] = AMP_FULL;
            ac->meets_leaf[v] = v && combines_with_leaf(g, n, k);
        }
    }
    for (int i = 0; i < g->outputs.len; i++)
        ac->reader[g->outputs.data[i].value.i] = AMP_FULL;
    for (int i = 0; i < g->writes.len; i++)
        ac->reader[g->writes.data[i].value.i] = AMP_FULL;
}

static ValueId read_low(Autocast *ac, ValueId v) {
    if (!v.i || value_dtype(ac->g, v) != DT_F32) return v;
    if (!ac->low_of[v.i].i) ac->low_of[v.i] = b_cast(&ac->b, v, ac->low);
    return ac->low_of[v.i];
}

/* WIDEST: 16 bits unless an activation is wider; leaves alone decide only
   when there is no activation. */
static DType widest(const Graph *g, const Node *n) {
    DType act = NUM_DTYPES, leaf = NUM_DTYPES;
    for (int i = 0; i < n->nin; i++) {
        if (!n->in[i].i) continue;
        DType d = value_dtype(g, n->in[i]);
        if (!dtype_is_float(d)) continue;
        DType *into = is_leaf(g, n->in[i]) ? &leaf : &act;
        *into = *into == NUM_DTYPES ? d : dtype_promote(*into, d);
    }
    return act != NUM_DTYPES ? act : leaf;
}

static DType first_operand(const Graph *g, const Node *n) {
    for (int i = 0; i < n->nin; i++)
        if (n->in[i].i && dtype_is_float(value_dtype(g, n->in[i])))
            return value_dtype(g, n->in[i]);
    return NUM_DTYPES;
}

/* An f32 accumulator of 16-bit operands meets its bias: round here, once. */
static bool meets_accumulator(const Graph *g, const Node *n) {
    for (int i = 0; i < n->nin && n->nin == 2; i++) {
        const Value *v = value_get(g, n->in[i]);
        if (v->kind != VK_RESULT || !is_leaf(g, n->in[1 - i])) continue;
        const Node *def = node_get(g, v->def);
        if (node_info(def)->amp == AMP_LOW &&
            dtype_is_16(value_dtype(g, def->in[0])))
            return true;
    }
    return false;
}

static DType result_dtype(const Autocast *ac, const Node *n, ValueId out) {
    const Graph *g = ac->g;
    bool only_low = out.i < ac->limit && ac->reader[out.i] == AMP_LOW &&
                    ac->uses[out.i] > 0;
    bool in_registers =
        out.i < ac->limit && ac->uses[out.i] == 1 && ac->meets_leaf[out.i];
    switch (node_info(n)->amp) {
    case AMP_LOW:
        if (!dtype_is_16(value_dtype(g, n->in[0]))) return NUM_DTYPES;
        return in_registers ? DT_F32 : ac->low;
    case AMP_FOLLOW:
    case AMP_ANY: return first_operand(g, n);
    case AMP_WIDEST: {
        DType d = widest(g, n);
        return d == DT_F32 && meets_accumulator(g, n) ? ac->low : d;
    }
    case AMP_FULL: return only_low ? ac->low : DT_F32;
    case AMP_FULLOUT: return DT_F32;
    case AMP_NONE: break;
    }
    return NUM_DTYPES;
}

/* Only f32 results are autocast's to change; what a function declares to be of
   one dtype stays so. */
static void assign(Autocast *ac, NodeId id) {
    Graph *g = ac->g;
    const Node *n = node_get(g, id);
    for (int i = 0; i < n->nout; i++) {
        if (n->fn && n->fn->results.data[i].dtype != NUM_DTYPES) continue;
        Value *v = value_get(g, n->out[i]);
        DType have = type_get(v->type)->dtype;
        if (have != DT_F32) continue;
        DType want = result_dtype(ac, n, n->out[i]);
        if (want == ac->low || want == DT_F32)
            v->type = type_with_dtype(v->type, want);
    }
}

static void autocast_node(Autocast *ac, NodeId id) {
    Graph *g = ac->g;
    const OpInfo *op = node_info(node_get(g, id));
    const Fn *fn = node_get(g, id)->fn;
    if (op->amp == AMP_LOW)
        for (int k = 0; k < node_get(g, id)->nin; k++) {
            if (fn && fn->operands.data[k].kind == FO_ANY) continue;
            ValueId low = read_low(ac, node_get(g, id)->in[k]);
            node_get(g, id)->in[k] = low;
        }
    vec_push(g->arena, &g->order, id);
    assign(ac, id);
}

/* Outputs and written variables keep their declared types. */
static void restore_roots(Autocast *ac, const TypeId *declared) {
    Graph *g = ac->g;
    for (int i = 0; i < g->outputs.len; i++) {
        ValueId v = g->outputs.data[i].value;
        DType want = type_get(declared[i])->dtype;
        g->outputs.data[i].value = b_cast(&ac->b, v, want);
    }
    for (int i = 0; i < g->writes.len; i++) {
        Write *w = &g->writes.data[i];
        w->value = b_cast(&ac->b, w->value, value_dtype(g, w->var));
    }
}

static void autocast_graph(Graph *g, DType low, Arena *scratch) {
    uint32_t limit = (uint32_t)g->values.len;
    Autocast ac = {
        .g = g, .low = low, .b = {.g = g}, .limit = limit, .scratch = scratch};
    ac.low_of = NEW_ARRAY(scratch, ValueId, limit);
    ac.reader = NEW_ARRAY(scratch, AmpClass, limit);
    ac.meets_leaf = NEW_ARRAY(scratch, bool, limit);
    ac.uses = graph_use_counts(g, scratch);
    note_readers(&ac);
    TypeId *declared = NEW_ARRAY(scratch, TypeId, g->outputs.len + 1);
    for (int i = 0; i < g->outputs.len; i++)
        declared[i] = value_get(g, g->outputs.data[i].value)->type;
    int n = g->order.len;
    NodeId *old = arena_dup(scratch, g->order.data, (size_t)n * sizeof *old);
    g->order.len = 0;
    for (int i = 0; i < n; i++) autocast_node(&ac, old[i]);
    restore_roots(&ac, declared);
}

Status pass_autocast(Module *m, PassCtx *cx) {
    if (cx->opt->precision == PREC_FP32) return OK;
    DType low = cx->opt->precision == PREC_FP16 ? DT_F16 : DT_BF16;
    m->low = low;
    for (int i = 0; i < m->graphs.len; i++)
        autocast_graph(m->graphs.data[i], low, cx->scratch);
    return OK;
}
