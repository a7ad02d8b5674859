/* autocast.c: products read 16 bits.
   Before:  %h = matmul %x, %w : f32[..]      %r = relu %h : f32[..]
   After:   %x.bf16 = cast %x   %w.bf16 = cast %w
            %h = matmul %x.bf16, %w.bf16 : f32[..]   %r = relu %h : f32[..]
   An op of class LOW computes from operands of 16 bits, and a cast serves every
   reader of its value; all other arithmetic is f32.  What is stored in 16 bits
   besides is for pass place to choose.
   A product of nothing but constants and positions (integers made floating,
   and what is computed from them until a sine or cosine bounds it) reads f32:
   an angle of some thousand radians has no phase in 16 bits.
   Values of 64-bit floats and integers are left alone, as are the casts that
   the user wrote.
   requires     stage TYPED
   establishes  stage CAST: a LOW op reads 16 bits where autocast is on, or
                f32 through all operands                                     */
#include "ir/fn/fn.h"
#include "passes/common/origin.h"
#include "passes/common/rewrite.h"
#include "passes/passes.h"

typedef struct Autocast {
    Graph *g;
    DType low;
    Builder b;
    Origins origins;
    ValueId *low_of; /* by ValueId.i: its 16-bit copy */
} Autocast;

static ValueId low_copy(Autocast *ac, ValueId v) {
    if (!ac->low_of[v.i].i) ac->low_of[v.i] = b_cast(&ac->b, v, ac->low);
    return ac->low_of[v.i];
}

/* What the user has rounded: a cast that stays in front of what is no product.
 */
static ValueId rounded(Autocast *ac, Loc loc, ValueId v) {
    Attr user = attr_i(AK_user, 1);
    ac->b.loc = loc;
    v = build(&ac->b, OP_CAST, &v, 1, &user, 1, ac->low, NULL);
    ac->b.loc = (Loc){0};
    return v;
}

static void autocast_node(Autocast *ac, NodeId id) {
    Graph *g = ac->g;
    Node n = *node_get(g, id); /* building moves the pool */
    bool product = node_info(&n)->amp == AMP_LOW;
    bool wide = product && node_class(&n) == AMP_FULL;
    /* the user's word holds for positions, too */
    bool low = node_class(&n) == AMP_LOW &&
               (n.loc.amp || origin_joined(g, &ac->origins, &n) == FROM_DATA);
    for (int k = 0; k < n.nin; k++) {
        ValueId v = n.in[k];
        if (!v.i || (n.fn && n.fn->operands.data[k].kind == FO_ANY)) continue;
        DType d = value_dtype(g, v);
        if (low && d == DT_F32)
            n.in[k] = product ? low_copy(ac, v) : rounded(ac, n.loc, v);
        if (wide && dtype_is_16(d)) n.in[k] = b_cast(&ac->b, v, DT_F32);
    }
    vec_push(g->arena, &g->order, id);
}

static void autocast_graph(Graph *g, DType low, Arena *scratch) {
    Autocast ac = {.g = g, .low = low, .b = {.g = g}};
    ac.origins = origins_of(g, scratch);
    ac.low_of = NEW_ARRAY(scratch, ValueId, g->values.len);
    int n;
    NodeId *old = order_take(g, scratch, &n);
    for (int i = 0; i < n; i++) autocast_node(&ac, old[i]);
}

Status pass_autocast(Module *m, PassCtx *cx) {
    if (cx->opt->precision == PREC_FP32 || m->rule) return OK;
    DType low = cx->opt->precision == PREC_FP16 ? DT_F16 : DT_BF16;
    m->low = low;
    for (int i = 0; i < m->graphs.len; i++)
        autocast_graph(m->graphs.data[i], low, cx->scratch);
    return OK;
}
