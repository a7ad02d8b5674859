/* autocast.c: choose storage dtypes and place casts by the class of each op.
   Before:  %h = matmul %x, %w : f32[..]      %r = relu %h : f32[..]
   After:   %x.bf16 = cast %x   %w.bf16 = cast %w
            %h = matmul %x.bf16, %w.bf16 : bf16[..]   %r = relu %h : bf16[..]
   A cast serves every reader of its value.  Rules (amp.md section 1.1):
     LOW      operands are read as 16 bits; the result stays f32 when its one
              reader adds a parameter (a bias: both meet in registers), else 16
     FOLLOW   result as the first operand
     WIDEST   result 16 when every activation operand is 16; parameters and
              constants do not widen it, but for those with a number beside
              which 16 bits lose the data (a mask of -1e9)
     FULL     result 16 when only LOW ops read it, else f32
     FULLOUT  result f32
     ANY      result as its operand
   A product of nothing but constants and positions (integers made floating,
   and what is computed from them until a sine or cosine bounds it) reads f32:
   an angle of some thousand radians has no phase in 16 bits.
   Values of 64-bit floats and integers are left alone, as are the casts that
   the user wrote; the model's outputs keep their declared types.
   requires     stage TYPED
   establishes  stage CAST: a LOW op reads 16 bits where autocast is on, or
                f32 through all operands                                     */
#include "ir/fn/fn.h"
#include "passes/passes.h"

#include <math.h>
#include <string.h>

/* What a value is made of, as far as rounding goes. */
typedef enum Origin {
    FROM_CONSTANTS, /* numbers that do not train                            */
    FROM_POSITIONS, /* and integers                                         */
    FROM_DATA
} Origin;

typedef struct Autocast {
    Graph *g;
    DType low;
    Builder b;
    Arena *scratch;
    ValueId *low_of; /* by ValueId.i: its 16-bit copy */
    int *uses;
    AmpClass *reader; /* by ValueId.i: LOW if every reader is LOW      */
    bool *meets_leaf; /* by ValueId.i: the reader combines it with a leaf */
    Origin *origin;   /* by ValueId.i                                     */
    uint32_t limit;
} Autocast;

/* Up to where a number leaves room for 16-bit data: where ones are lost beside
   it if the two are added, else half of the type's range. */
static double room(const Autocast *ac, const Node *n) {
    if (n->op == OP_ADD || n->op == OP_SUB)
        return ldexp(1, dtype_info[ac->low].mantissa);
    return ac->low == DT_F16 ? 0x1.ffcp14 : 0x1.fep126;
}

/* Infinities all types hold. */
static bool within(double v, double room) {
    return !(fabs(v) > room) || isinf(v);
}

/* A parameter or constant, possibly reshaped. */
static bool is_leaf(const Graph *g, ValueId v) {
    const Value *val = value_get(g, v);
    if (val->kind != VK_RESULT)
        return val->kind == VK_VAR || val->kind == VK_CONST;
    const Node *n = node_get(g, val->def);
    return (n->op == OP_RESHAPE || n->op == OP_EXPAND) && is_leaf(g, n->in[0]);
}

/* Whether leaf v, as operand of n, has no number too large for 16 bits. */
static bool fits(const Autocast *ac, const Node *n, ValueId v) {
    const Graph *g = ac->g;
    double most = room(ac, n);
    const Value *val = value_get(g, v);
    while (val->kind == VK_RESULT) {
        v = node_get(g, val->def)->in[0];
        val = value_get(g, v);
    }
    const Tensor *t = val->data;
    if (val->kind == VK_VAR) {
        const Var *var = value_var(g, v);
        t = var->kind == VAR_PARAM ? NULL : var->init;
        if (var->kind == VAR_FROZEN && !t) return within(var->fill, most);
    }
    int64_t count = t ? type_count(type_get(t->type)) : 0;
    for (int64_t i = 0; i < count; i++)
        if (!within(tensor_get(t, i), most)) return false;
    return true;
}

/* ---- positions ----------------------------------------------------------- */

static Origin origin_of(const Autocast *ac, ValueId v) {
    const Value *val = value_get(ac->g, v);
    switch (val->kind) {
    case VK_INPUT: return FROM_DATA;
    case VK_CONST: return FROM_CONSTANTS;
    case VK_VAR: {
        VarKind k = value_var(ac->g, v)->kind;
        return k == VAR_FROZEN ? FROM_CONSTANTS : FROM_DATA;
    }
    case VK_RESULT: break;
    }
    return ac->origin[v.i];
}

/* Integers of 8 bits are pixels, which 16-bit floats hold. */
static bool counts(DType d) {
    return dtype_is_int(d) && dtype_info[d].bytes > 1;
}

static Origin result_origin(const Autocast *ac, const Node *n) {
    Origin most = FROM_CONSTANTS;
    DType d = n->nin ? value_dtype(ac->g, n->in[0]) : NUM_DTYPES;
    if (n->op == OP_CAST && !dtype_is_float(d))
        return counts(d) ? FROM_POSITIONS : FROM_DATA;
    if (n->op == OP_IOTA) return FROM_POSITIONS;
    if (n->fn || n->op == OP_SIN || n->op == OP_COS || n->op == OP_RAND_UNIFORM)
        return FROM_DATA;
    for (int k = 0; k < n->nin; k++) {
        if (!n->in[k].i || !dtype_is_float(value_dtype(ac->g, n->in[k])))
            continue;
        Origin o = origin_of(ac, n->in[k]);
        if (o > most) most = o;
    }
    return most;
}

static bool reads_positions(const Autocast *ac, const Node *n) {
    return node_info(n)->amp == AMP_LOW &&
           result_origin(ac, n) == FROM_POSITIONS;
}

static void find_origins(Autocast *ac) {
    const Graph *g = ac->g;
    for (int i = 0; i < g->order.len; i++) {
        const Node *n = node_get(g, g->order.data[i]);
        Origin o = result_origin(ac, n);
        for (int k = 0; k < n->nout; k++) ac->origin[n->out[k].i] = o;
    }
}

/* ---- readers ------------------------------------------------------------- */

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
            if (node_info(n)->amp != AMP_LOW || reads_positions(ac, n))
                ac->reader[v] = AMP_FULL;
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

/* WIDEST: 16 bits unless an activation is wider or a leaf does not fit; other
   leaves decide only when there is no activation. */
static DType widest(const Autocast *ac, const Node *n) {
    const Graph *g = ac->g;
    DType act = NUM_DTYPES, leaf = NUM_DTYPES;
    for (int i = 0; i < n->nin; i++) {
        if (!n->in[i].i) continue;
        DType d = value_dtype(g, n->in[i]);
        if (!dtype_is_float(d)) continue;
        bool yields = is_leaf(g, n->in[i]) && fits(ac, n, n->in[i]);
        DType *into = yields ? &leaf : &act;
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
static bool meets_accumulator(const Autocast *ac, const Node *n) {
    const Graph *g = ac->g;
    for (int i = 0; i < n->nin && n->nin == 2; i++) {
        const Value *v = value_get(g, n->in[i]);
        if (v->kind != VK_RESULT || !is_leaf(g, n->in[1 - i]) ||
            !fits(ac, n, n->in[1 - i]))
            continue;
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
        DType d = widest(ac, n);
        return d == DT_F32 && meets_accumulator(ac, n) ? ac->low : d;
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
    if (op->amp == AMP_LOW && !reads_positions(ac, node_get(g, id)))
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
    ac.origin = NEW_ARRAY(scratch, Origin, limit);
    ac.uses = graph_use_counts(g, scratch);
    find_origins(&ac);
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
