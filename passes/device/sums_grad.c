/* SPDX-License-Identifier: Apache-2.0 */
/* sums_grad.c: see sums.h.
   Before:  %d = conv_dgrad %dy, %w : bf16[256,64,56,56]
            %h = mul (sub %x, %mean), %rstd
            %c = less_equal relu(add(mul %h, %gain), %shift), 0
            %g = where %c, 0, %d : bf16[256,64,56,56]
            %a = reduce_mean %g {axes=[0,2,3]}
            %b = reduce_sum (mul %g, %h) {axes=[0,2,3]}
   After:   %g, %s, %p = conv_dgrad_sums %dy, %w, %x, %mean, %rstd, _, %gain,
                                         %shift
            %a = div reduce_sum(%s), 802816    %b = reduce_sum(%p)
   Where a stored tensor is compared with 0 it is the gate, and %d may be added
   to another gradient.  The gradient is written once, with the gate applied,
   and read once less.  A sum of both gradients is rounded once, not twice.  */
#include "passes/device/sums.h"
#include "passes/device/target.h"
#include "passes/rewrite.h"
#include "runtime/program/strip.h"

#include <math.h>

/* (x * scale - mean) * rstd. */
typedef struct Norm {
    ValueId x, mean, rstd;
    double scale;
} Norm;

/* A gated gradient whose sums are known, in strips. */
typedef struct GatedSums {
    ValueId g;
    Norm norm;
    ValueId parts[2], sum[2]; /* sums of g, of g * norm; sum: 0: not yet */
} GatedSums;

typedef struct GradSums {
    UserIndex users;
    const int *position; /* per node, before the walk */
    struct {
        GatedSums *data;
        int len, cap;
    } list;
} GradSums;

/* The operands of conv_dgrad_sums in place of a node. */
typedef struct GateParts {
    const Node *dgrad;
    ValueId gate, gain, shift, add; /* 0: absent */
    Norm norm;
} GateParts;

/* ---- finding ------------------------------------------------------------- */

static bool is_f32(const Graph *g, ValueId v) {
    return value_dtype(g, v) == DT_F32;
}

/* A number for each channel of a tensor of type t. */
static bool of_channels(const Graph *g, ValueId v, const Type *t) {
    const Type *c = value_type(g, v);
    bool is = c->dtype == DT_F32 && c->rank == t->rank;
    for (int d = 0; d < t->rank && is; d++)
        is = c->dim[d] == (d == 1 ? t->dim[1] : 1);
    return is;
}

/* An operand of 16 bits, as large as t, that the kernel reads. */
static bool is_stored(const Graph *g, ValueId v, const Type *t) {
    return dtype_is_low(value_dtype(g, v)) && shape_equal(value_type(g, v), t);
}

static bool norm_of(const Graph *g, ValueId v, const Type *t, Norm *out) {
    const Node *mul = def_of(g, v, OP_MUL);
    const Node *sub = mul ? def_of(g, mul->in[0], OP_SUB) : NULL;
    int e;
    if (!sub || !is_f32(g, v) || !is_f32(g, mul->in[0]) ||
        !of_channels(g, mul->in[1], t) || !of_channels(g, sub->in[1], t))
        return false;
    *out = (Norm){sub->in[0], sub->in[1], mul->in[1], 1};
    const Node *scaled = def_of(g, out->x, OP_MUL);
    if (scaled && is_f32(g, out->x) &&
        value_is_splat(g, scaled->in[1], &out->scale) &&
        frexp(out->scale, &e) == 0.5)
        out->x = scaled->in[0];
    else
        out->scale = 1;
    return is_stored(g, out->x, t);
}

static bool same_norm(const Norm *a, const Norm *b) {
    return same_value(a->x, b->x) && same_value(a->mean, b->mean) &&
           same_value(a->rstd, b->rstd) && a->scale == b->scale;
}

/* A sum or mean of each channel, over images and positions. */
static bool is_channel_fold(const Graph *g, const Node *n) {
    const int64_t *axes;
    if (n->fn || (n->op != OP_REDUCE_MEAN && n->op != OP_REDUCE_SUM) ||
        !of_channels(g, n->out[0], value_type(g, n->in[0])))
        return false;
    int na = attr_ints(n, AK_axes, &axes);
    bool all = na == value_type(g, n->in[0])->rank - 1;
    for (int i = 0; i < na && all; i++) all = axes[i] == i + (i > 0);
    return all;
}

/* If n = v * norm: true, and the norm. */
static bool product_with_norm(const Graph *g, const Node *n, ValueId v,
                              Norm *out) {
    if (n->fn || n->op != OP_MUL || !is_f32(g, n->out[0])) return false;
    for (int i = 0; i < 2; i++)
        if (same_value(n->in[i], v) &&
            norm_of(g, n->in[1 - i], value_type(g, v), out))
            return true;
    return false;
}

/* The first norm whose products with v are added up. */
static bool summed_norm(const GradSums *s, const Graph *g, ValueId v,
                        Norm *out) {
    for (Users u = users_of(&s->users, v); u.at < u.end; u.at++) {
        const Node *n = node_get(g, *u.at);
        if (!product_with_norm(g, n, v, out)) continue;
        for (Users f = users_of(&s->users, n->out[0]); f.at < f.end; f.at++)
            if (is_channel_fold(g, node_get(g, *f.at))) return true;
    }
    return false;
}

/* z > 0 is where the gradient passes: a stored tensor, or computed from the
   norm. */
static bool find_gate(const Graph *g, ValueId z, const Type *t, GateParts *p) {
    const Node *relu = def_of(g, z, OP_RELU);
    const Node *add = relu ? def_of(g, relu->in[0], OP_ADD) : NULL;
    const Node *mul = add ? def_of(g, add->in[0], OP_MUL) : NULL;
    Norm norm;
    if (mul && is_f32(g, z) && is_f32(g, relu->in[0]) &&
        is_f32(g, add->in[0]) && norm_of(g, mul->in[0], t, &norm) &&
        same_norm(&norm, &p->norm) && of_channels(g, mul->in[1], t) &&
        of_channels(g, add->in[1], t)) {
        p->gain = mul->in[1];
        p->shift = add->in[1];
        return true;
    }
    const Value *v = value_get(g, z);
    p->gate = z;
    return is_stored(g, z, t) &&
           (v->kind != VK_RESULT ||
            !(node_get(g, v->def)->flags & NODE_BACKWARD));
}

/* Vectors of 4 elements at least; tiles of our own, unless the library
   multiplies faster. */
static bool gate_pays(const Graph *g, const Node *n) {
    enum { LEAST_NEAR = 4 };
    const TargetInfo *target = target_of(g);
    const Type *x = value_type(g, n->out[0]), *w = value_type(g, n->in[1]);
    const int64_t *stride;
    int64_t plane = type_count(x) / (x->dim[0] * x->dim[1]);
    int ns = attr_ints(n, AK_strides, &stride);
    for (int i = 0; i < ns; i++)
        if (stride[i] != 1) return false;
    return dtype_is_low(w->dtype) && w->dtype == value_dtype(g, n->in[0]) &&
           plane % LEAST_NEAR == 0 && type_count(x) >= target->small_tensor &&
           w->dim[1] > CONV_FEW_CHANNELS &&
           (target_any_epilogue(g, n) ||
            (w->dim[0] <= target->sums_depth && conv_fills_gpu(g, n)));
}

/* v: a gradient by the input that nobody else reads. */
static const Node *dgrad_of(const Rewriter *rw, ValueId v) {
    const Node *n = def_of(rw->g, v, OP_CONV_DGRAD);
    return n && uses_of(rw, v) == 1 && gate_pays(rw->g, n) ? n : NULL;
}

static bool find_gradients(const Rewriter *rw, ValueId v, const Type *t,
                           GateParts *p) {
    const Graph *g = rw->g;
    p->dgrad = dgrad_of(rw, v);
    const Node *add = p->dgrad ? NULL : def_of(g, v, OP_ADD);
    if (!add || uses_of(rw, v) != 1) return p->dgrad != NULL;
    for (int i = 0; i < 2 && !p->dgrad; i++) {
        p->add = add->in[1 - i];
        if (is_stored(g, p->add, t)) p->dgrad = dgrad_of(rw, add->in[i]);
    }
    return p->dgrad != NULL;
}

/* A reader of n's result reads v. True if n may read it, too: v is there by
   then, not computed again behind n, and no node of this walk replaces it. */
static bool is_there(const Rewriter *rw, const Node *n, ValueId v) {
    const GradSums *s = rw->user;
    const Value *x = value_get(rw->g, v);
    NodeId own = value_get(rw->g, n->out[0])->def;
    return v.i < rw->limit && !rw->map[v.i].i &&
           (x->kind != VK_RESULT || s->position[x->def.i] < s->position[own.i]);
}

static bool find_gated(const Rewriter *rw, const GradSums *s, const Node *n,
                       GateParts *p) {
    const Graph *g = rw->g;
    *p = (GateParts){0};
    if (n->fn || n->op != OP_WHERE || !is_number(g, n->in[1], 0)) return false;
    const Type *t = value_type(g, n->out[0]);
    const Node *gate = def_of(g, n->in[0], OP_LESS_EQUAL);
    return gate && is_number(g, gate->in[1], 0) && t->rank > 2 &&
           is_stored(g, n->out[0], t) &&
           shape_equal(value_type(g, n->in[2]), t) &&
           find_gradients(rw, n->in[2], t, p) &&
           summed_norm(s, g, n->out[0], &p->norm) &&
           is_there(rw, n, p->norm.x) && is_there(rw, n, p->norm.mean) &&
           is_there(rw, n, p->norm.rstd) && find_gate(g, gate->in[0], t, p);
}

/* ---- the walk ------------------------------------------------------------ */

static ValueId gate_conv(Rewriter *rw, const GateParts *p, DType dtype) {
    enum { OPERANDS = 9 };
    GradSums *s = rw->user;
    const Norm *norm = &p->norm;
    const Node *d = p->dgrad;
    ValueId in[OPERANDS] = {d->in[0],   d->in[1],   norm->x,
                            norm->mean, norm->rstd, p->gate,
                            p->gain,    p->shift,   p->add};
    DType dtypes[] = {dtype, DT_F32, DT_F32};
    Attr attrs[8];
    int nattr = 0, nin = OPERANDS;
    while (!in[nin - 1].i) nin--;
    for (; nattr < d->nattr; nattr++) attrs[nattr] = d->attrs[nattr];
    if (norm->scale != 1) attrs[nattr++] = attr_f(AK_scale, norm->scale);
    NodeId id = build_multi(&rw->b, OP_CONV_DGRAD_SUMS, in, nin, attrs, nattr,
                            3, dtypes, NULL);
    const ValueId *out = node_get(rw->g, id)->out;
    GatedSums sums = {.g = out[0], .norm = *norm, .parts = {out[1], out[2]}};
    vec_push(rw->scratch, &s->list, sums);
    return out[0];
}

/* The known sums of v; *which: of the gradient or of its product. */
static GatedSums *known_fold(const GradSums *s, const Graph *g, ValueId v,
                             int *which) {
    const Node *mul = def_of(g, v, OP_MUL);
    Norm norm;
    for (int i = 0; i < s->list.len; i++) {
        GatedSums *own = &s->list.data[i];
        *which = !same_value(own->g, v);
        if (!*which || (mul && product_with_norm(g, mul, own->g, &norm) &&
                        same_norm(&norm, &own->norm)))
            return own;
    }
    return NULL;
}

static bool gradient_rule(Rewriter *rw, NodeId id, ValueId *with) {
    Graph *g = rw->g;
    GradSums *s = rw->user;
    const Node n = *node_get(g, id); /* building may move the pool */
    const int64_t axis = 0;
    GateParts p;
    int which;
    if (n.nout == 1 && find_gated(rw, s, &n, &p)) {
        with[0] = gate_conv(rw, &p, value_dtype(g, n.out[0]));
        rewrite_take_name(g, n.out[0], with[0]);
        return true;
    }
    if (n.nout != 1 || !is_channel_fold(g, &n)) return false;
    GatedSums *own = known_fold(s, g, n.in[0], &which);
    if (!own) return false;
    if (!own->sum[which].i)
        own->sum[which] = b_reduce(&rw->b, OP_REDUCE_SUM, own->parts[which],
                                   &axis, 1, true, DT_F32);
    double all =
        (double)value_count(g, n.in[0]) / (double)value_count(g, n.out[0]);
    with[0] = own->sum[which];
    if (n.op == OP_REDUCE_MEAN)
        with[0] =
            b2(&rw->b, OP_DIV, with[0], graph_scalar(g, DT_F32, all), DT_F32);
    rewrite_take_name(g, n.out[0], with[0]);
    return true;
}

void sums_of_gradients(Graph *g, Arena *scratch) {
    GradSums s = {.users = graph_users(g, scratch),
                  .position = graph_positions(g, scratch)};
    rewrite_graph(g, scratch, gradient_rule, &s);
}
