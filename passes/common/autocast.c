/* SPDX-License-Identifier: Apache-2.0 */
/* autocast.c: matrix products and convolutions read 16 bits.
   Before:  %h = matmul %x, %w : f32[..]      %r = relu %h : f32[..]
   After:   %x.bf16 = cast %x   %w.bf16 = cast %w
            %h = matmul %x.bf16, %w.bf16 : f32[..]   %r = relu %h : f32[..]
   An op of class LOW ("product" below) reads 16-bit operands; one cast serves
   all readers of a value.  All other arithmetic is f32.  Pass place decides
   later which other values are stored in 16 bits.
   Exceptions, which read f32:
   - a product whose operands are only constants and positions (integers
     converted to floats, and values computed from them until a sine or cosine
     bounds them): an angle of some thousand radians has no phase in 16 bits
   - the last products before the loss, nearest first, such as a classifier: no
     other product reads their results.  They may have at most 1/4096 of all
     multiply-adds in matrix products and 1/256 of the activation elements.
     Rounding errors of earlier products average out; errors of the last
     products reach the loss. An fp32 product takes up to 16 times as long, so
     the cost is at most 1/256 of the time of all products. A last product with
     at most 1/64 of the multiply-adds, behind convolutions that have most of
     them, and with at most 1/8 as many results as operand elements, reads its
     weight as two bf16 numbers: the second is the rounding
   error of the first.  A convolution reads its weight at many positions, so
   that errors average out; the classifier's weights cause the largest error of
   a CNN's loss. The gradient goes to the first number.
   --placement exact,head=0: the last products read 16 bits like the others,
   as they do with an error budget, for which pass place decides.
   If the result of a product is multiplied by a constant before another product
   reads it, the constant multiplies the second product's result instead: the
   operand is then rounded only once.
   Before:  %k = mul %h, 0.6     %s = matmul %q, %k
   After:   %p = matmul %q, %h   %s = mul %p, 0.6
   The products of wide_products.h read f32, and so do, unless the user says
   otherwise, a dot product of two vectors, an outer product and the product of
   a matrix and a vector: 16 bits do not speed them up. 64-bit floats, integers
   and the user's own casts are left alone.

   requires     stage TYPED
   establishes  stage CAST: a LOW op reads 16 bits where autocast is on, or
                f32 through all operands                                     */
#include <math.h>

#include "ir/fn/fn.h"
#include "passes/common/origin.h"
#include "passes/rewrite.h"
#include "passes/common/wide.h"
#include "passes/common/wide_products.h"
#include "passes/passes.h"

typedef struct Autocast {
    Graph *g;
    DType low;
    Builder b;
    Origins origins;
    ValueId *low_of; /* per value: its 16-bit copy; 0: none yet */
    bool *wide;      /* per value: result of a product of wide_products.h */
    bool *head;      /* per value: result of a last product that reads f32 */
    bool *rest;      /* per value: result of a last product whose weight has two
                        parts */
    bool rests;      /* at least one product has a weight in two parts */
    uint32_t limit;  /* ValueId.i before casts */
} Autocast;

/* ---- products nearest the loss ------------------------------------------- */

static double autocast_count_of(const Graph *g, ValueId v) {
    return v.i ? (double)value_count(g, v) : 0;
}

/* Terms of each sum of a matmul. */
static int64_t depth_of(const Graph *g, const Node *n) {
    const Type *t = value_type(g, n->in[0]);
    return t->dim[t->rank - (t->rank > 1 && attr_int(n, AK_trans_a) ? 2 : 1)];
}

/* A matmul of two vectors, of a column and a row, or of a matrix and a vector
   (in PyTorch dot, outer, mv).  A row or column that is a matrix of the model,
   such as the weight of a linear layer with one output, is not a vector. */
static bool is_of_vectors(const Graph *g, const Node *n) {
    if (n->fn || n->op != OP_MATMUL || n->loc.amp) return false;
    const Type *t = value_type(g, n->out[0]);
    return depth_of(g, n) == 1 || is_vector_view(g, n->in[0]) ||
           is_vector_view(g, n->in[1]) ||
           (t->dim[t->rank - 1] == 1 && t->dim[t->rank - 2] == 1);
}

double product_work(const Graph *g, const Node *n) {
    if (n->fn || op_info[n->op].amp != AMP_LOW) return 0;
    if (n->op == OP_MATMUL)
        return autocast_count_of(g, n->out[0]) * (double)depth_of(g, n);
    if (n->op == OP_CONV || n->op == OP_CONV_DGRAD) {
        ValueId made = n->op == OP_CONV ? n->out[0] : n->in[0];
        const Type *w = value_type(g, n->in[1]);
        return autocast_count_of(g, made) * (double)type_count(w) /
               (double)w->dim[0];
    }
    return 0;
}

/* A matrix of few results that reads a weight. */
static bool is_classifier(const Graph *g, const Node *n) {
    ValueId w = n->nin == 2 ? n->in[1] : NO_VALUE;
    return n->op == OP_MATMUL && value_get(g, w)->kind == VK_VAR &&
           value_dtype(g, w) == DT_F32 && value_dtype(g, n->in[0]) == DT_F32 &&
           autocast_count_of(g, n->out[0]) * 8 <=
               autocast_count_of(g, n->in[0]);
}

static void find_head(Autocast *ac, Arena *scratch) {
    enum { WORK_PART = 4096, NUMBERS_PART = 256, REST_PART = 64 };
    const Graph *g = ac->g;
    bool *ahead = NEW_ARRAY(scratch, bool, g->values.len);
    double all = 0, convs = 0, numbers = 0;
    for (int i = 0; i < g->order.len; i++) {
        const Node *n = node_at(g, i);
        double its = product_work(g, n);
        all += its;
        if (n->op != OP_MATMUL) convs += its;
        for (int k = 0; k < n->nout && !n->flags; k++)
            if (n->out[k].i && dtype_is_float(value_dtype(g, n->out[k])))
                numbers += autocast_count_of(g, n->out[k]) / NUMBERS_PART;
    }
    double work = all / WORK_PART;
    /* fp16 keeps more bits */
    bool few_bits = dtype_info[ac->low].mantissa < dtype_info[DT_F16].mantissa;
    double rest = few_bits && 2 * convs > all ? all / REST_PART : 0;
    for (int i = g->order.len - 1; i >= 0; i--) {
        const Node *n = node_at(g, i);
        double its = product_work(g, n), of = autocast_count_of(g, n->out[0]);
        bool any = false;
        for (int k = 0; k < n->nout; k++) any |= ahead[n->out[k].i];
        for (int k = 0; k < n->nin; k++) {
            ahead[n->in[k].i] |= any || node_info(n)->amp == AMP_LOW;
            of += autocast_count_of(g, n->in[k]);
        }
        if (any || n->loc.amp || its <= 0) continue;
        if (its <= work && of <= numbers) {
            work -= its;
            numbers -= of;
            ac->head[n->out[0].i] = true;
        } else if (its <= rest && is_classifier(g, n)) {
            rest -= its;
            ac->rest[n->out[0].i] = ac->rests = true;
        }
    }
}

/* ---- factors of operands ------------------------------------------------- */

/* True if v, a value without other readers, is x times ( *op is OP_DIV:
   over) the number *by. */
static bool is_multiple(const Rewriter *rw, ValueId v, ValueId *x, OpCode *op,
                        ValueId *by) {
    const Graph *g = rw->g;
    const Node *n = def_of(g, v, *op = OP_MUL);
    double c;
    if (!n) n = def_of(g, v, *op = OP_DIV);
    if (!n || n->loc.amp || uses_of(rw, v) != 1) return false;
    for (int k = *op == OP_DIV; k < 2; k++) {
        *by = n->in[k], *x = n->in[1 - k];
        if (!value_is_splat(g, *by, &c) || value_type(g, *by)->rank > 0 ||
            !shape_equal(value_type(g, *x), value_type(g, v)))
            continue;
        int exponent;
        double part = frexp(fabs(c), &exponent); /* other constants change
                                                    the range */
        return part > .5 && exponent > -8 && exponent < 8;
    }
    return false;
}

static bool is_moved(const Graph *g, const Node *n) {
    return n && !n->fn && n->nin == 1 && value_dtype(g, n->in[0]) == DT_F32 &&
           (node_kind(n) == KIND_VIEW || node_kind(n) == KIND_MOVE);
}

/* True if v is the result of a product, possibly moved and with a bias. */
static bool is_of_product(const Graph *g, ValueId v) {
    for (const Node *n; (n = value_maker(g, v));) {
        bool bias = !n->fn && n->op == OP_ADD &&
                    value_count(g, n->in[0]) != value_count(g, n->in[1]);
        if (!bias && !is_moved(g, n)) return node_info(n)->amp == AMP_LOW;
        v = n->in[bias && value_count(g, n->in[0]) < value_count(g, v)];
    }
    return false;
}

/* The operand of v without its constant factor: *op and *by; NO_VALUE: it
   has no factor. */
static ValueId without_factor(Rewriter *rw, ValueId v, OpCode *op,
                              ValueId *by) {
    const Node *n = value_maker(rw->g, v);
    ValueId x;
    if (is_multiple(rw, v, &x, op, by))
        return is_of_product(rw->g, x) ? x : NO_VALUE;
    if (!is_moved(rw->g, n) || uses_of(rw, v) != 1) return NO_VALUE;
    NodeId id = value_get(rw->g, v)->def;
    x = without_factor(rw, n->in[0], op, by);
    return x.i ? node_get(rw->g, build_again(&rw->b, id, &x))->out[0]
               : NO_VALUE;
}

static bool factor_behind(Rewriter *rw, NodeId id, ValueId *with) {
    Graph *g = rw->g;
    Node n = *node_get(g, id); /* building may move the pool */
    ValueId by[2] = {NO_VALUE};
    OpCode op[2];
    if (n.fn || n.op != OP_MATMUL || n.loc.amp) return false;
    for (int k = 0; k < 2; k++) {
        if (value_dtype(g, n.in[k]) != DT_F32) return false;
        ValueId x = without_factor(rw, n.in[k], &op[k], &by[k]);
        if (x.i)
            n.in[k] = x;
        else
            by[k] = NO_VALUE;
    }
    if (!by[0].i && !by[1].i) return false;
    with[0] = build(&rw->b, OP_MATMUL, n.in, 2, n.attrs, n.nattr, DT_F32, NULL);
    for (int k = 0; k < 2; k++)
        if (by[k].i) with[0] = b2(&rw->b, op[k], with[0], by[k], DT_F32);
    rewrite_take_name(g, n.out[0], with[0]);
    return true;
}

/* ---- casts --------------------------------------------------------------- */

static ValueId low_copy(Autocast *ac, ValueId v) {
    if (!ac->low_of[v.i].i) ac->low_of[v.i] = b_cast(&ac->b, v, ac->low);
    return ac->low_of[v.i];
}

/* Rounds v with a cast marked as the user's: it stays even if no product
   reads it. */
static ValueId autocast_rounded(Autocast *ac, Loc loc, ValueId v) {
    Attr user = attr_i(AK_user, 1);
    ac->b.loc = loc;
    v = build(&ac->b, OP_CAST, &v, 1, &user, 1, ac->low, NULL);
    ac->b.loc = (Loc){0};
    return v;
}

static void autocast_node(Autocast *ac, NodeId id) {
    Graph *g = ac->g;
    Node n = *node_get(g, id); /* building may move the pool */
    bool product = node_info(&n)->amp == AMP_LOW, made = node_made_low(&n);
    bool apart =
        ac->head[n.out[0].i] || ac->wide[n.out[0].i] || is_of_vectors(g, &n);
    bool wide = product && !made && (node_class(&n) == AMP_FULL || apart);
    /* the user's choice also holds for positions */
    bool low = node_class(&n) == AMP_LOW && !apart && !made &&
               (n.loc.amp || origin_joined(g, &ac->origins, &n) == FROM_DATA);
    for (int k = 0; k < n.nin; k++) {
        ValueId v = n.in[k];
        if (!v.i || (n.fn && n.fn->operands.data[k].kind == FO_ANY)) continue;
        DType d = value_dtype(g, v);
        if (low && d == DT_F32)
            n.in[k] =
                product ? low_copy(ac, v) : autocast_rounded(ac, n.loc, v);
        if (wide && dtype_is_low(d)) n.in[k] = b_cast(&ac->b, v, DT_F32);
    }
    vec_push(g->arena, &g->order, id);
}

/* Before:  %y = matmul %x.bf16, %w.bf16
   After:   %rest = sub %w, %w.bf16    %rest.bf16 = cast %rest
            %p = matmul %x.bf16, %w.bf16
            %q = matmul %x.bf16, %rest.bf16     without a gradient
            %y = add %p, %q */
static bool add_rest(Rewriter *rw, NodeId id, ValueId *with) {
    const Autocast *ac = rw->user;
    Node n = *node_get(rw->g, id); /* building may move the pool */
    Builder *b = &rw->b;
    if (n.out[0].i >= ac->limit || !ac->rest[n.out[0].i]) return false;
    const Node *cast = def_of(rw->g, n.in[1], OP_CAST);
    if (!cast) return false; /* a product of positions */
    ValueId w = cast->in[0], wide = b_cast(b, n.in[1], DT_F32), in[2];
    ValueId left = b2(b, OP_SUB, w, wide, DT_F32);
    ValueId of[] = {n.in[0], b_cast(b, left, ac->low)};
    for (int k = 0; k < 2; k++)
        in[k] = node_get(rw->g, build_call(b, fn_std("stop"), &of[k], 1, NULL,
                                           0, 1, &ac->low))
                    ->out[0];
    ValueId p = build(b, OP_MATMUL, n.in, 2, n.attrs, n.nattr, DT_F32, NULL);
    ValueId q = build(b, OP_MATMUL, in, 2, n.attrs, n.nattr, DT_F32, NULL);
    with[0] = b2(b, OP_ADD, p, q, DT_F32);
    rewrite_take_name(rw->g, n.out[0], with[0]);
    return true;
}

static double all_work(const Graph *g) {
    double all = 0;
    for (int i = 0; i < g->order.len; i++)
        all += product_work(g, node_at(g, i));
    return all;
}

/* Multiply-adds that a product of wide_products.h may always take. In fp32 this
   is a tenth of a second of a CPU core, and the step is still faster than
   torch.autocast's (docs/numerics.md). */
static const double wide_work = 0x1p33;

static void autocast_graph(Graph *g, DType low, bool head, Arena *scratch) {
    enum { WIDE_PART = 1024 };
    Autocast ac = {.g = g, .low = low, .b = {.g = g}};
    rewrite_graph(g, scratch, factor_behind, NULL);
    ac.origins = origins_of(g, scratch);
    ac.low_of = NEW_ARRAY(scratch, ValueId, g->values.len);
    ac.wide =
        wide_products(g, fmax(all_work(g) / WIDE_PART, wide_work), scratch);
    ac.head = NEW_ARRAY(scratch, bool, g->values.len);
    ac.rest = NEW_ARRAY(scratch, bool, g->values.len);
    ac.limit = (uint32_t)g->values.len;
    if (head) find_head(&ac, scratch);
    int n;
    NodeId *old = order_take(g, scratch, &n);
    for (int i = 0; i < n; i++) autocast_node(&ac, old[i]);
    if (ac.rests) rewrite_graph(g, scratch, add_rest, &ac);
}

Status pass_autocast(Module *m, PassCtx *cx) {
    if (cx->opt->precision == PREC_FP32 || m->rule) return OK;
    DType low = precision_dtype[cx->opt->precision];
    m->low = low;
    for (int i = 0; i < m->graphs.len; i++)
        autocast_graph(m->graphs.data[i], low,
                       cx->opt->wide_head && !options_budget(cx->opt),
                       cx->scratch);
    return OK;
}
