/* SPDX-License-Identifier: Apache-2.0 */
/* sums.c: the statistics of a batch norm come from the kernel of the
   convolution before it.
   Before:  %y = conv %x, %w : bf16[256,64,56,56]
            %m = reduce_mean %y {axes=[0,2,3]} : f32[1,64,1,1]
            %d = sub %y, %m    %s = mul %d, %d
            %v = reduce_mean %s {axes=[0,2,3]} : f32[1,64,1,1]
   After:   %y, %a, %q = conv_sums %x, %w     (of strips of 128 positions)
            %m = div reduce_sum(%a), 802816
            %v = div reduce_sum(%q + (%a / 128 - %m)^2 * 128), 802816
   A kernel that reads all of %y is spared. The squares of a strip are those
   around its own mean, as reduce.c has them of a plane (Chan, Golub and
   LeVeque, 1979); many strips are added up in two stages.

   Where a result is stored times a power of two, stored numbers are added up:
   Before:  %s = mul %y, 0.015625 : f16
            %u = mul %s, 64 : f32    %m = reduce_mean %u
   After:   %s, %a, %q = conv_sums %x, %w {scale=0.015625}, and sums times 64

   Where the library multiplies a convolution faster, the kernel that is spared
   takes longer than what is lost only if few channels are summed and tiles fill
   half of the GPU. A small result is read in less time than a launch takes.

   requires     stage PRIMITIVE
   establishes  nothing
   breaks       nothing; leaves dead nodes                                   */
#include "passes/device/sums.h"
#include "passes/device/target.h"
#include "passes/passes.h"
#include "passes/rewrite.h"
#include "runtime/program/strip.h"

#include <math.h>

/* A stored result whose sums are known, of parts: those of y * factor. */
typedef struct Summed {
    ValueId y, mean; /* mean: 0: not yet                                     */
    ValueId sums, squares, count; /* count: elements of a part               */
    double factor;
} Summed;

typedef struct Sums {
    UserIndex users;
    struct {
        Summed *data;
        int len, cap;
    } list;
} Sums;

/* ---- finding ------------------------------------------------------------- */

/* True if n is the mean of each channel, over images and positions. */
static bool is_channel_mean(const Graph *g, const Node *n) {
    const int64_t *axes;
    if (n->fn || n->op != OP_REDUCE_MEAN || value_dtype(g, n->out[0]) != DT_F32)
        return false;
    int na = attr_ints(n, AK_axes, &axes);
    bool all = na == value_type(g, n->in[0])->rank - 1;
    for (int i = 0; i < na && all; i++) all = axes[i] == i + (i > 0);
    return all;
}

/* The factor of the product n of a value and a power of two; 0: n is another
   node. */
static double factor_of_power(const Graph *g, const Node *n) {
    double c;
    int e;
    return !n->fn && n->op == OP_MUL && value_is_splat(g, n->in[1], &c) &&
                   c > 0 && frexp(c, &e) == 0.5
               ? c
               : 0;
}

/* The mean of each channel of y * factor is computed. */
static bool has_mean(const Sums *s, const Graph *g, ValueId y, double factor) {
    for (Users u = users_of(&s->users, y); u.at < u.end; u.at++) {
        const Node *n = node_get(g, *u.at);
        if (factor == 1 ? is_channel_mean(g, n)
                        : factor_of_power(g, n) == factor &&
                              value_dtype(g, n->out[0]) == DT_F32 &&
                              has_mean(s, g, n->out[0], 1))
            return true;
    }
    return false;
}

/* The convolution whose results n stores, times *scale; NULL: none. */
static const Node *stored_conv(const Rewriter *rw, const Node *n,
                               double *scale) {
    const Graph *g = rw->g;
    *scale = 1;
    if (n->fn || n->op == OP_CONV) return n->fn ? NULL : n;
    if (n->op != OP_CAST) *scale = factor_of_power(g, n);
    if (!*scale || !dtype_is_low(value_dtype(g, n->out[0]))) return NULL;
    const Node *conv = def_of(g, n->in[0], OP_CONV);
    return conv && value_dtype(g, n->in[0]) == DT_F32 &&
                   uses_of(rw, n->in[0]) == 1
               ? conv
               : NULL;
}

bool conv_fills_gpu(const Graph *g, const Node *conv) {
    const Type *y = value_type(g, conv->out[0]);
    int64_t columns = type_count(y) / y->dim[1];
    int64_t tiles = (columns + CONV_STRIP - 1) / CONV_STRIP *
                    ((y->dim[1] + CONV_STRIP - 1) / CONV_STRIP);
    return 2 * tiles >= target_of(g)->rows_enough;
}

static bool sums_pay(const Graph *g, const Node *n) {
    const Type *x = value_type(g, n->in[0]), *w = value_type(g, n->in[1]);
    const TargetInfo *target = target_of(g);
    return dtype_is_low(x->dtype) && x->dtype == w->dtype &&
           value_count(g, n->out[0]) >= target->small_tensor &&
           w->dim[0] / attr_int(n, AK_group) > CONV_FEW_CHANNELS &&
           (target_any_epilogue(g, n) ||
            (w->dim[1] <= target->sums_depth && conv_fills_gpu(g, n)));
}

/* ---- parts --------------------------------------------------------------- */

/* The elements of `parts` parts of `each`, the last one shorter: one number, or
   a value of that rank. */
static ValueId part_counts(Graph *g, int64_t parts, int64_t each, int64_t all,
                           int rank) {
    int64_t last = all - (parts - 1) * each, dim[MAX_RANK];
    if (last == each) return graph_scalar(g, DT_F32, (double)each);
    for (int d = 0; d < rank; d++) dim[d] = d ? 1 : parts;
    Tensor *t = tensor_new(g->arena, type_make(DT_F32, rank, dim));
    for (int64_t i = 0; i < parts; i++)
        tensor_set(t, i, (double)(i + 1 < parts ? each : last));
    return graph_const(g, "count", t);
}

/* Squares around the mean of all from those around means of their own. */
static ValueId moved_squares(Builder *b, const Summed *s, ValueId mean) {
    ValueId own = b2(b, OP_DIV, s->sums, s->count, DT_F32);
    ValueId apart = b2(b, OP_SUB, own, mean, DT_F32);
    apart =
        b2(b, OP_MUL, b2(b, OP_MUL, apart, apart, DT_F32), s->count, DT_F32);
    return b2(b, OP_ADD, s->squares, apart, DT_F32);
}

/* Strips of a part, so that few parts are left; 1: no such number is near. */
static int64_t strips_of_part(int64_t strips) {
    enum { FEW_PARTS = 512, MOST_STRIPS = 256 };
    int64_t n = (strips + FEW_PARTS - 1) / FEW_PARTS;
    while (strips % n && n < MOST_STRIPS) n++;
    return strips % n ? 1 : n;
}

/* Adds up neighbouring strips. */
static void join_strips(Builder *b, Summed *s, int64_t columns) {
    Graph *g = b->g;
    Type t = *value_type(g, s->sums);
    int64_t n = strips_of_part(t.dim[0]), axis = 1;
    int64_t dim[] = {t.dim[0] / n, n, t.dim[1]};
    int64_t one[] = {t.dim[0] / n, n, 1}, line[] = {t.dim[0] / n, 1, 1};
    Summed strips = *s;
    if (n == 1) return;
    strips.sums = b_reshape(b, s->sums, 3, dim);
    strips.squares = b_reshape(b, s->squares, 3, dim);
    if (value_count(g, s->count) > 1)
        strips.count = b_reshape(b, s->count, 3, one);
    ValueId count = part_counts(g, dim[0], n * CONV_STRIP, columns, t.rank);
    ValueId each =
        value_count(g, count) > 1 ? b_reshape(b, count, 3, line) : count;
    ValueId sums =
        b_reduce(b, OP_REDUCE_SUM, strips.sums, &axis, 1, true, DT_F32);
    ValueId mean = b2(b, OP_DIV, sums, each, DT_F32);
    ValueId squares =
        b_reduce(b, OP_REDUCE_SUM, moved_squares(b, &strips, mean), &axis, 1,
                 true, DT_F32);
    t.dim[0] = dim[0];
    s->sums = b_reshape(b, sums, t.rank, t.dim);
    s->squares = b_reshape(b, squares, t.rank, t.dim);
    s->count = count;
}

/* ---- the pass ------------------------------------------------------------ */

static ValueId times_factor(Builder *b, ValueId v, double factor) {
    if (factor == 1) return v;
    return b2(b, OP_MUL, v, graph_scalar(b->g, DT_F32, factor), DT_F32);
}

/* old: the result that is stored. */
static void sum_conv(Rewriter *rw, const Node *conv, ValueId old, double scale,
                     ValueId *with) {
    Graph *g = rw->g;
    Sums *sums = rw->user;
    ValueId in[] = {conv->in[0], conv->in[1]};
    const Type t = *value_type(g, old);
    DType d[] = {t.dtype, DT_F32, DT_F32};
    Attr attrs[8];
    int nattr = 0;
    for (; nattr < conv->nattr; nattr++) attrs[nattr] = conv->attrs[nattr];
    if (scale != 1) attrs[nattr++] = attr_f(AK_scale, scale);
    NodeId id =
        build_multi(&rw->b, OP_CONV_SUMS, in, 2, attrs, nattr, 3, d, NULL);
    Summed s = {.y = node_get(g, id)->out[0], .factor = 1 / scale};
    s.sums = times_factor(&rw->b, node_get(g, id)->out[1], s.factor);
    s.squares =
        times_factor(&rw->b, node_get(g, id)->out[2], s.factor * s.factor);
    int64_t columns = type_count(&t) / t.dim[1];
    s.count = part_counts(g, value_type(g, s.sums)->dim[0], CONV_STRIP, columns,
                          t.rank);
    join_strips(&rw->b, &s, columns);
    vec_push(rw->scratch, &sums->list, s);
    rewrite_take_name(g, old, s.y);
    with[0] = s.y;
}

static ValueId mean_of_parts(Builder *b, ValueId parts, const Node *n) {
    const int64_t axis = 0;
    Graph *g = b->g;
    double all =
        (double)value_count(g, n->in[0]) / (double)value_count(g, n->out[0]);
    ValueId sum = b_reduce(b, OP_REDUCE_SUM, parts, &axis, 1, true, DT_F32);
    return b2(b, OP_DIV, sum, graph_scalar(g, DT_F32, all), DT_F32);
}

/* What is known of the sums of x. */
static Summed *known_sums(Sums *s, const Graph *g, ValueId x) {
    const Node *mul = def_of(g, x, OP_MUL);
    double factor =
        mul && value_dtype(g, x) == DT_F32 ? factor_of_power(g, mul) : 0;
    for (int i = 0; i < s->list.len; i++) {
        Summed *own = &s->list.data[i];
        if (factor ? same_value(own->y, mul->in[0]) && own->factor == factor
                   : same_value(own->y, x) && own->factor == 1)
            return own;
    }
    return NULL;
}

static bool sums_rule(Rewriter *rw, NodeId id, ValueId *with) {
    Graph *g = rw->g;
    Sums *all = rw->user;
    const Node n = *node_get(g, id); /* building may move the pool */
    double scale;
    const Node *conv = n.nout == 1 ? stored_conv(rw, &n, &scale) : NULL;
    if (conv && sums_pay(g, conv) && has_mean(all, g, n.out[0], 1 / scale)) {
        const Node found = *conv;
        sum_conv(rw, &found, n.out[0], scale, with);
        return true;
    }
    if (!is_channel_mean(g, &n)) return false;
    Summed *s = known_sums(all, g, n.in[0]);
    if (s) {
        if (!s->mean.i) s->mean = mean_of_parts(&rw->b, s->sums, &n);
        with[0] = s->mean;
        rewrite_take_name(g, n.out[0], with[0]);
        return true;
    }
    const Node *mul = def_of(g, n.in[0], OP_MUL);
    const Node *sub = mul ? def_of(g, mul->in[0], OP_SUB) : NULL;
    s = sub ? known_sums(all, g, sub->in[0]) : NULL;
    if (!s || !same_value(mul->in[0], mul->in[1]) ||
        !shape_equal(value_type(g, sub->in[1]), value_type(g, n.out[0])) ||
        value_dtype(g, mul->out[0]) != DT_F32 ||
        value_dtype(g, sub->out[0]) != DT_F32)
        return false;
    ValueId mean = sub->in[1]; /* of all ranks, or of this one */
    with[0] = mean_of_parts(&rw->b, moved_squares(&rw->b, s, mean), &n);
    rewrite_take_name(g, n.out[0], with[0]);
    return true;
}

Status pass_sums(Module *m, PassCtx *cx) {
    for (int i = 0; i < m->graphs.len; i++) {
        Graph *g = m->graphs.data[i];
        if (!target_of(g)->sums_depth) continue;
        Sums s = {.users = graph_users(g, cx->scratch)};
        rewrite_graph(g, cx->scratch, sums_rule, &s);
        sums_of_gradients(g, cx->scratch);
        sums_of_attention(g, cx->scratch);
    }
    return OK;
}
