/* SPDX-License-Identifier: Apache-2.0 */
/* samples.c: the weight of a micro-batch in the mean of a step, and samples
   that only fill a batch.
   Before:  %loss = softmax_cross_entropy %y, %target {ignore_index=-100}
            return ampc.loss=%loss
   After:   %rows = 1 for the first %ampc.valid samples, else 0
            %share = number of targets that count / number of targets
            %loss = softmax_cross_entropy %y, where(%rows, %target, -100)
            return ampc.loss=%loss * %ampc.shares, ampc.share=%share,
                   ampc.rows=%rows
   So the loss of a step, sum of ampc.loss / sum of ampc.share over its
   micro-batches and ranks, equals the loss of all its samples in one batch, and
   its gradients are equal, too. A mean over samples has the share of samples
   that count; a quotient of sums has its divisor; a sum has the constant 0,
   which says that losses are added up. Terms that are added must have the same
   share. With any other loss each micro-batch has the same weight: there is no
   ampc.share. Samples are masked only in the loss; so nothing is masked if one
   sample can affect another's loss or a running statistic (rows.h). Pass
   optimizer removes both outputs. It puts the share where %ampc.shares is read,
   which stands for it until then; in program train that and the rows are
   1, and simplify leaves the model's own loss. requires     stage TYPED; one
   graph per program, whose inputs were checked establishes  Module.masks:
   whether all objectives can mask samples        */
#include "ir/fn/fn.h"
#include "passes/rewrite.h"
#include "passes/common/rows.h"
#include "passes/passes.h"

#include <math.h>
#include <string.h>

typedef enum PoolKind {
    POOL_NONE,   /* it is the same for all samples */
    POOL_EACH,   /* has the axis of samples  */
    POOL_MEAN,   /* the mean over samples */
    POOL_SUM,    /* their sum */
    POOL_LABELS, /* a mean whose weights depend on the data: `share` */
    POOL_OTHER
} PoolKind;

/* How a value depends on the samples of the batch. */
typedef struct Pool {
    PoolKind kind;
    ValueId value;  /* masked; MEAN and LABELS: multiplied by the share */
    ValueId share;  /* LABELS: f32[] */
    double nominal; /* number of elements that MEAN and SUM add */
} Pool;

typedef struct Samples {
    Graph *g;
    Builder b;
    const Options *opt;
    int64_t batch;
    const Rows *rows;    /* number of values when the pass began */
    const bool *trained; /* per value: depends on a parameter */
    bool masks, fails;   /* true: masks samples; true: it cannot */
    ValueId stand_in;    /* f32[]: multiplied into losses of kind LABELS */
    ValueId valid;       /* f32[batch]: 1 for samples that count */
    ValueId part;        /* f32[]: the share of the batch that counts; 0: no
                            masks */
    Reals *nominals; /* of the objective's shares, in order; NULL: a trial */
    int shares;      /* made so far */
} Samples;

static Pool pool(Samples *s, ValueId v);

/* ---- masks --------------------------------------------------------------- */

/* s->valid along the axis of v, for broadcasting. */
static ValueId mask_of(Samples *s, ValueId v, Rows r) {
    Type t = *value_type(s->g, v);
    int64_t dim[MAX_RANK] = {1, s->batch, 1}, rank = t.rank - r.axis;
    ValueId m = s->valid;
    if (r.outer * r.inner > 1) {
        m = b_reshape(&s->b, m, 3, dim);
        dim[0] = r.outer;
        dim[2] = r.inner;
        Attr shape = attr_v(AK_shape, dim, 3);
        m = build(&s->b, OP_EXPAND, &m, 1, &shape, 1, DT_DEFAULT, NULL);
    }
    for (int i = 0; i < rank; i++) dim[i] = 1;
    dim[0] = t.dim[r.axis];
    return b_reshape(&s->b, m, (int)rank, dim);
}

/* True if samples of v can be masked; if any cannot, none is. */
static bool maskable(Samples *s, ValueId v) {
    Rows r = s->rows[v.i];
    if (s->masks && (!r.has || r.mixed)) s->fails = true;
    return s->masks && !s->fails;
}

/* Multiplies instead of selecting: a select would add guards to the
   gradients before it, and the samples that fill a batch are copies of
   others, thus finite. */
static ValueId masked(Samples *s, ValueId v) {
    if (!maskable(s, v)) return v;
    DType d = value_dtype(s->g, v);
    ValueId m = b_cast(&s->b, mask_of(s, v, s->rows[v.i]), d);
    return b2(&s->b, OP_MUL, v, m, d);
}

/* v times a number f32[]. */
static ValueId times(Samples *s, ValueId v, ValueId by) {
    return by.i ? b2(&s->b, OP_MUL, v, by, value_dtype(s->g, v)) : v;
}

/* ---- sums and quotients -------------------------------------------------- */

static const Pool other = {.kind = POOL_OTHER};

static bool is_linear(PoolKind k) {
    return k == POOL_MEAN || k == POOL_SUM || k == POOL_LABELS;
}

/* Node id with operand k replaced by the given one. */
static Pool again(Samples *s, NodeId id, int k, Pool p) {
    Node n = *node_get(s->g, id);
    ValueId in[2] = {n.in[0], n.nin > 1 ? n.in[1] : NO_VALUE};
    if (!is_linear(p.kind)) return other;
    if (same_value(in[k], p.value)) {
        p.value = n.out[0];
        return p;
    }
    in[k] = p.value;
    p.value = node_get(s->g, build_again(&s->b, id, in))->out[0];
    return p;
}

static Pool samples_reduced(Samples *s, NodeId id) {
    Node n = *node_get(s->g, id);
    Pool p = pool(s, n.in[0]);
    if (p.kind == POOL_EACH) {
        p.kind = n.op == OP_REDUCE_MEAN ? POOL_MEAN : POOL_SUM;
        p.nominal = (double)value_count(s->g, n.in[0]) /
                    (double)value_count(s->g, n.out[0]);
    }
    return again(s, id, 0, p);
}

/* A sum divided by the number of its samples or elements is a mean. */
static bool counts_them(const Samples *s, const Pool *sum, ValueId by) {
    double n;
    if (sum->kind != POOL_SUM || !value_is_splat(s->g, by, &n)) return false;
    if (n < (double)s->batch || n > sum->nominal || n != (double)(int64_t)n)
        return false;
    return (int64_t)n % s->batch == 0 &&
           (int64_t)sum->nominal % (int64_t)n == 0;
}

/* The divisor of a quotient: a *sum over samples, possibly bounded away from
   0 (`kept`). sum: the sum itself. */
static ValueId divisor(Samples *s, ValueId v, Pool *sum, bool *kept) {
    const Value *val = value_get(s->g, v);
    NodeId id = val->kind == VK_RESULT ? val->def : NO_NODE;
    *sum = pool(s, v);
    if (sum->kind == POOL_MEAN || sum->kind == POOL_SUM || !id.i)
        return sum->value;
    Node n = *node_get(s->g, id);
    int k = 0;
    if (n.op == OP_ADD || n.op == OP_MAX)
        k = value_get(s->g, n.in[0])->kind == VK_CONST;
    else if (n.op != OP_CAST && n.op != OP_RESHAPE && n.op != OP_CLIP)
        return v;
    if (n.nin > 1 && value_get(s->g, n.in[1 - k])->kind != VK_CONST) return v;
    ValueId in[2] = {n.in[0], n.nin > 1 ? n.in[1] : NO_VALUE};
    *kept |= n.op == OP_ADD || n.op == OP_MAX || n.op == OP_CLIP;
    in[k] = divisor(s, in[k], sum, kept);
    if (same_value(in[k], n.in[k])) return v;
    return node_get(s->g, build_again(&s->b, id, in))->out[0];
}

/* f32[]: the sum of all elements. */
static ValueId sum_of_all(Samples *s, ValueId v) {
    int rank = value_type(s->g, v)->rank;
    int64_t axes[MAX_RANK];
    for (int i = 0; i < MAX_RANK; i++) axes[i] = i;
    return rank ? b_reduce(&s->b, OP_REDUCE_SUM, v, axes, rank, false, DT_F32)
                : v;
}

/* The nominal that all sizes of the model divide their next share by: that of
   the model's own sizes, so that micro-batches of several sizes add up. */
static double common_nominal(Samples *s, double nominal) {
    int k = s->shares++;
    if (!s->nominals) return nominal;
    if (!*s->g->size) vec_push(s->g->arena, s->nominals, nominal);
    return k < s->nominals->len ? s->nominals->data[k] : nominal;
}

/* The weight of `sum`: its ratio to a sum of as many ones; f32[]. */
static ValueId share_of(Samples *s, ValueId sum, double nominal) {
    nominal = common_nominal(s, nominal);
    ValueId x = b_reshape(&s->b, b_cast(&s->b, sum, DT_F32), 0, NULL);
    return b2(&s->b, OP_DIV, x, b_scalar(&s->b, DT_F32, nominal), DT_F32);
}

/* The share of a quotient whose model bounds its divisor `by` away from 0,
   as detectors do that divide by the number of objects: if there are no
   objects but the numerator is not 0, the share counts as `by`. */
static ValueId kept_share(Samples *s, ValueId num, ValueId by, ValueId share,
                          double nominal) {
    ValueId zero = b_scalar(&s->b, DT_F32, 0);
    ValueId all = b_cast(&s->b, num, DT_F32);
    all = sum_of_all(s, b1(&s->b, OP_ABS, all, DT_F32));
    ValueId alone = b2(&s->b, OP_GREATER, all, zero, DT_DEFAULT);
    alone = b_where(&s->b, alone, share_of(s, by, nominal), zero);
    ValueId some = b2(&s->b, OP_GREATER, share, zero, DT_DEFAULT);
    return b_where(&s->b, some, share, alone);
}

/* sum(each * weight) / sum(weight), the weights known without parameters. If
   all weights are 0 it is NaN, like the mean of a library's loss, and has no
   gradient.
 */
static Pool quotient(Samples *s, NodeId id) {
    Node n = *node_get(s->g, id);
    Pool num = pool(s, n.in[0]), den;
    if (s->rows[n.in[1].i].has) return other;
    if (!s->rows[n.in[1].i].mixed) {
        if (counts_them(s, &num, n.in[1])) num.kind = POOL_MEAN;
        return again(s, id, 0, num);
    }
    bool kept = false;
    ValueId by = divisor(s, n.in[1], &den, &kept);
    bool sums = (num.kind == POOL_SUM || num.kind == POOL_MEAN) &&
                (den.kind == POOL_SUM || den.kind == POOL_MEAN);
    if (!sums || s->trained[n.in[1].i] || value_count(s->g, n.in[1]) != 1)
        return other;
    double nominal = den.kind == POOL_SUM ? den.nominal : 1;
    if (s->opt->equal_batches) {
        ValueId in[] = {num.value, by};
        ValueId mean = node_get(s->g, build_again(&s->b, id, in))->out[0];
        return (Pool){.kind = POOL_MEAN, .value = times(s, mean, s->part)};
    }
    ValueId share = share_of(s, den.value, nominal);
    if (kept) share = kept_share(s, num.value, by, share, nominal);
    ValueId zero = b_scalar(&s->b, DT_F32, 0);
    ValueId some = b2(&s->b, OP_GREATER, share, zero, DT_DEFAULT);
    DType d = value_dtype(s->g, by), to = value_dtype(s->g, n.out[0]);
    ValueId in[] = {num.value, b_where(&s->b, some, by, b_scalar(&s->b, d, 1))};
    ValueId mean = node_get(s->g, build_again(&s->b, id, in))->out[0];
    ValueId nan =
        b_where(&s->b, some, b_scalar(&s->b, to, 0), b_scalar(&s->b, to, NAN));
    mean = b2(&s->b, OP_ADD, mean, nan, to);
    return (Pool){POOL_LABELS, times(s, mean, s->stand_in), share, 0};
}

static bool same_share(const Samples *s, ValueId a, ValueId b) {
    if (same_value(a, b)) return true;
    const Value *x = value_get(s->g, a), *y = value_get(s->g, b);
    if (x->kind == VK_CONST && y->kind == VK_CONST) {
        double u, v;
        return x->type.i == y->type.i && value_is_splat(s->g, a, &u) &&
               value_is_splat(s->g, b, &v) && u == v;
    }
    if (x->kind != VK_RESULT || y->kind != VK_RESULT || x->type.i != y->type.i)
        return false;
    const Node *m = node_get(s->g, x->def), *n = node_get(s->g, y->def);
    if (!node_same_work(m, n) || m->nin != n->nin) return false;
    for (int i = 0; i < m->nin; i++)
        if (m->in[i].i != n->in[i].i &&
            (!m->in[i].i || !n->in[i].i || !same_share(s, m->in[i], n->in[i])))
            return false;
    return true;
}

/* A term that depends on no sample has the same weight as the others. */
static Pool added(Samples *s, NodeId id) {
    Node n = *node_get(s->g, id);
    Pool p[] = {pool(s, n.in[0]), pool(s, n.in[1])};
    for (int i = 0; i < 2; i++) {
        if (p[i].kind != POOL_NONE || !is_linear(p[1 - i].kind)) continue;
        if (p[1 - i].kind == POOL_SUM) return other;
        p[i].kind = p[1 - i].kind;
        p[i].share = p[1 - i].share;
        p[i].value = times(s, p[i].value, p[i].share.i ? s->stand_in : s->part);
    }
    if (p[0].kind != p[1].kind || !is_linear(p[0].kind)) return other;
    if (p[0].kind == POOL_LABELS && !same_share(s, p[0].share, p[1].share))
        return other;
    p[0].nominal = 0;
    if (same_value(p[0].value, n.in[0]) && same_value(p[1].value, n.in[1])) {
        p[0].value = n.out[0];
        return p[0];
    }
    ValueId in[] = {p[0].value, p[1].value};
    p[0].value = node_get(s->g, build_again(&s->b, id, in))->out[0];
    return p[0];
}

static Pool product(Samples *s, NodeId id) {
    Node n = *node_get(s->g, id);
    Pool a = pool(s, n.in[0]), b = pool(s, n.in[1]);
    if (a.kind == POOL_NONE) return again(s, id, 1, b);
    return b.kind == POOL_NONE ? again(s, id, 0, a) : other;
}

/* ---- losses of the library ----------------------------------------------- */

/* The call with another target and attribute `a`, which replaces its own. */
static ValueId call_with(Samples *s, const Node *n, ValueId target, Attr a) {
    Attr attrs[MAX_OP_ATTRS + 1];
    ValueId in[MAX_FN_OPERANDS];
    int count = 0;
    for (int i = 0; i < n->nattr; i++)
        if (n->attrs[i].key != a.key) attrs[count++] = n->attrs[i];
    attrs[count++] = a;
    memcpy(in, n->in, (size_t)n->nin * sizeof *in);
    in[1] = target;
    DType d[MAX_FN_OPERANDS];
    for (int i = 0; i < n->nout; i++)
        d[i] = i ? DT_DEFAULT : value_dtype(s->g, n->out[0]);
    NodeId id = build_call(&s->b, n->fn, in, n->nin, attrs, count, n->nout, d);
    return node_get(s->g, id)->out[0];
}

/* f32[]: the weight of the targets, relative to as many ones. */
static ValueId class_share(Samples *s, const Node *n, ValueId target,
                           Attr ignore, bool ignores) {
    ValueId in[] = {n->in[0], target, n->nin > 2 ? n->in[2] : NO_VALUE}, each;
    Attr attrs[2] = {0};
    if (in[2].i) {
        call_attr(s->g, n, "axis", &attrs[0]);
        attrs[1] = ignore;
        NodeId w = build_call(&s->b, fn_std("target_weights"), in, 3, attrs,
                              ignores ? 2 : 1, 1, NULL);
        each = node_get(s->g, w)->out[0];
    } else {
        ValueId gone =
            graph_scalar_int(s->g, value_dtype(s->g, target), ignore.u.i);
        ValueId is = b2(&s->b, OP_EQUAL, target, gone, DT_DEFAULT);
        each = b_cast(&s->b, b1(&s->b, OP_NOT, is, DT_DEFAULT), DT_F32);
    }
    return share_of(s, sum_of_all(s, each), (double)value_count(s->g, target));
}

/* A loss over classes: targets of masked samples are ignored. */
static Pool class_loss(Samples *s, const Node *n, bool sum) {
    enum { IGNORED = -100 };
    ValueId target = n->in[1], value = n->out[0];
    DType d = value_dtype(s->g, target);
    Attr ignore = attr_named_i("ignore_index", IGNORED), given;
    bool ignores = call_attr(s->g, n, "ignore_index", &given);
    bool weighs = ignores || n->nin > 2;
    if (ignores) ignore = given;
    if (d != DT_I32) target = b_cast(&s->b, target, d = DT_I64);
    if (maskable(s, n->in[0]) && maskable(s, n->in[1])) {
        ValueId m = mask_of(s, target, s->rows[n->in[1].i]);
        ValueId zero = b_scalar(&s->b, DT_F32, 0);
        m = b2(&s->b, OP_GREATER, m, zero, DT_DEFAULT);
        ValueId gone = graph_scalar_int(s->g, d, ignore.u.i);
        target = b_where(&s->b, m, target, gone);
        value = call_with(s, n, target, ignore);
    }
    if (sum) return (Pool){.kind = POOL_SUM, .value = value};
    if (!weighs || s->opt->equal_batches)
        return (Pool){.kind = POOL_MEAN, .value = times(s, value, s->part)};
    ValueId share = class_share(s, n, target, ignore, ignores || s->masks);
    return (Pool){POOL_LABELS, times(s, value, s->stand_in), share, 0};
}

/* The loss of each element of the first operand; NO_VALUE: the loss is not a
   mean or sum of per-element losses. */
static ValueId loss_of_each(Samples *s, const Node *n) {
    ValueId each = call_with(s, n, n->in[1],
                             attr_s(attr_key("reduction", ATTR_STR), "none"));
    const Type *e = value_type(s->g, each), *x = value_type(s->g, n->in[0]);
    bool same = e->rank == x->rank;
    for (int i = 0; same && i < e->rank; i++) same = e->dim[i] == x->dim[i];
    return same ? each : NO_VALUE;
}

/* A mean or sum over all elements. */
static Pool element_loss(Samples *s, const Node *n, ValueId each, bool sum) {
    Pool p = {.kind = sum ? POOL_SUM : POOL_MEAN, .value = n->out[0]};
    int rank = value_type(s->g, each)->rank;
    int64_t axes[MAX_RANK];
    p.nominal = (double)value_count(s->g, n->in[0]);
    if (s->rows[n->in[1].i].mixed) s->fails = true;
    if (!maskable(s, n->in[0])) return p;
    for (int i = 0; i < MAX_RANK; i++) axes[i] = i;
    each =
        b2(&s->b, OP_MUL, each, mask_of(s, each, s->rows[n->in[0].i]), DT_F32);
    p.value = b_reduce(&s->b, sum ? OP_REDUCE_SUM : OP_REDUCE_MEAN, each, axes,
                       rank, false, value_dtype(s->g, n->out[0]));
    return p;
}

/* The part of a loss's function that defines the sums of evaluation. */
static FnSamples samples_of(Samples *s, const Node *n) {
    FnCall call = fn_call(n);
    FnSamples x;
    char msg[MSG_TEXT];
    ASSERT(fn_run_samples(&s->b, &call, &x, msg) == OK);
    return x;
}

/* True for numbers that depend on neither samples nor parameters. */
static bool is_fixed(const Samples *s, ValueId v, int depth) {
    const Node *n = value_maker(s->g, v);
    if (!n) return value_get(s->g, v)->kind == VK_CONST;
    if (n->op == OP_FULL || is_call(n, "sample_share") ||
        is_call(n, "sample_ones"))
        return true;
    bool all = n->nin > 0 && depth > 0;
    for (int k = 0; all && k < n->nin; k++)
        all = is_fixed(s, n->in[k], depth - 1);
    return all;
}

/* The mean divides by the number of elements of the first operand. */
static bool is_mean_of_elements(Samples *s, const Node *n) {
    ValueId den = samples_of(s, n).den;
    const Node *share = value_maker(s->g, den);
    return share && is_call(share, "sample_share") &&
           same_value(share->in[0], n->in[0]);
}

/* Any loss with such a part; the user's own loss may have one. */
static Pool own_loss(Samples *s, const Node *n) {
    enum { DEPTH = 4 };
    s->fails = true;
    FnSamples x = samples_of(s, n);
    if (!x.den.i || value_count(s->g, n->out[0]) != 1) return other;
    if (is_fixed(s, x.den, DEPTH) || s->opt->equal_batches)
        return (Pool){.kind = POOL_MEAN, .value = n->out[0]};
    double nominal = (double)value_count(s->g, x.den);
    ValueId share = share_of(s, sum_of_all(s, x.den), nominal);
    return (Pool){POOL_LABELS, times(s, n->out[0], s->stand_in), share, 0};
}

static Pool call_loss(Samples *s, NodeId id) {
    Node n = *node_get(s->g, id); /* building may move the pool */
    const char *name = n.fn->info.text;
    Attr reduction;
    if (!n.fn->samples.given) return other;
    if (fn_find(NULL, name, strlen(name)) != n.fn) return own_loss(s, &n);
    call_attr(s->g, &n, "reduction", &reduction);
    bool sum = !strcmp(reduction.u.s, "sum");
    if (is_call(&n, "softmax_cross_entropy") || is_call(&n, "nll_loss"))
        return class_loss(s, &n, sum);
    ValueId each = loss_of_each(s, &n);
    if (!sum && each.i && !is_mean_of_elements(s, &n)) each = NO_VALUE;
    if (!each.i && sum) s->fails = true;
    if (!each.i && sum) return (Pool){.kind = POOL_SUM, .value = n.out[0]};
    if (!each.i) return own_loss(s, &n);
    return element_loss(s, &n, each, sum);
}

/* ---- the loss ------------------------------------------------------------ */

static Pool unary(Samples *s, NodeId id) {
    return again(s, id, 0, pool(s, node_get(s->g, id)->in[0]));
}

/* How a value without the axis of samples was computed. */
static const struct {
    OpCode op;
    Pool (*rule)(Samples *s, NodeId id);
} rules[] = {
    {OP_CAST, unary},
    {OP_RESHAPE, unary},
    {OP_NEG, unary},
    {OP_REDUCE_MEAN, samples_reduced},
    {OP_REDUCE_SUM, samples_reduced},
    {OP_ADD, added},
    {OP_SUB, added},
    {OP_MUL, product},
    {OP_DIV, quotient},
    {OP_CALL, call_loss},
};

static Pool pool(Samples *s, ValueId v) {
    Rows r = s->rows[v.i];
    if (!r.has && !r.mixed) return (Pool){.kind = POOL_NONE, .value = v};
    if (r.has) return (Pool){.kind = POOL_EACH, .value = masked(s, v)};
    const Value *val = value_get(s->g, v);
    if (val->kind != VK_RESULT) return other;
    NodeId id = val->def;
    const Node *n = node_get(s->g, id);
    s->b.loc = n->loc;
    for (size_t i = 0; i < sizeof rules / sizeof *rules; i++)
        if (rules[i].op == n->op) return rules[i].rule(s, id);
    return other;
}

/* Per value: it depends on a parameter. */
static bool *find_trained(const Graph *g, Arena *a) {
    bool *t = NEW_ARRAY(a, bool, g->values.len + 1);
    for (int i = 1; i < g->values.len; i++) {
        ValueId v = {(uint32_t)i};
        t[i] = value_get(g, v)->kind == VK_VAR &&
               value_var(g, v)->kind == VAR_PARAM;
    }
    for (int i = 0; i < g->order.len; i++) {
        const Node *n = node_at(g, i);
        bool any = false;
        for (int k = 0; k < n->nin; k++) any |= t[n->in[k].i];
        for (int k = 0; k < n->nout; k++) t[n->out[k].i] = any;
    }
    return t;
}

/* Running statistics would count masked samples, too. */
static bool keeps_statistics(const Graph *g, const Rows *rows) {
    for (int i = 0; i < g->writes.len; i++) {
        const Write *w = &g->writes.data[i];
        VarKind kind = value_var(g, w->var)->kind;
        Rows r = rows[w->value.i];
        if ((kind == VAR_BUFFER || kind == VAR_FROZEN) && (r.has || r.mixed))
            return true;
    }
    return false;
}

/* Splits the loss of g into terms, with masks or without; returns whether it
   succeeded. nominals: of the objective; NULL: a trial, in which the number of
   samples is not a variable. */
static bool take_apart(Graph *g, PassCtx *cx, bool masks, Reals *nominals,
                       PoolKind *kind) {
    bool trial = !nominals;
    Samples s = {.g = g,
                 .b = {.g = g},
                 .opt = cx->opt,
                 .masks = masks,
                 .nominals = nominals};
    Str name = own_output(OUT_LOSS, g->objective);
    ValueId loss = graph_output(g, name);
    s.batch = graph_samples(g);
    s.rows = rows_find(g, cx->scratch, s.batch);
    s.trained = find_trained(g, cx->scratch);
    if (masks && (s.batch < 2 || keeps_statistics(g, s.rows))) return false;
    s.stand_in =
        trial ? b_scalar(&s.b, DT_F32, 1) : graph_own_var(g, OWN_SHARES, 0);
    if (masks) {
        ValueId n = trial ? graph_scalar_int(g, DT_I32, s.batch)
                          : graph_own_var(g, OWN_VALID, (double)s.batch);
        ValueId at = build_gen(&s.b, OP_IOTA, NULL, 0, NULL, 0,
                               type_make(DT_I32, 1, &s.batch), NULL);
        ValueId in = b2(&s.b, OP_LESS, at, n, DT_DEFAULT);
        s.valid = b_cast(&s.b, in, DT_F32);
        s.part = share_of(&s, n, (double)s.batch);
    }
    Pool p = pool(&s, loss);
    *kind = p.kind;
    if (masks && (s.fails || !is_linear(p.kind))) return false;
    if (!is_linear(p.kind)) return true;
    ValueId share = p.kind == POOL_SUM      ? b_scalar(&s.b, DT_F32, 0)
                    : p.kind == POOL_LABELS ? p.share
                                            : s.part;
    if (masks && cx->opt->equal_batches && p.kind == POOL_MEAN) {
        p.value = b2(&s.b, OP_DIV, p.value, s.part, DT_F32);
        share = b_scalar(&s.b, DT_F32, 1);
    }
    for (int i = 0; i < g->outputs.len; i++)
        if (g->outputs.data[i].name == name) g->outputs.data[i].value = p.value;
    if (share.i)
        graph_add_output(g, own_output(OUT_SHARE, g->objective), share);
    if (masks) graph_add_output(g, own_output(OUT_ROWS, g->objective), s.valid);
    return true;
}

static bool can_mask(const Graph *g, PassCtx *cx) {
    Module aside = *g->module;
    PoolKind kind;
    Graph *trial = graph_clone_aside(g, &aside, cx->scratch);
    return take_apart(trial, cx, true, NULL, &kind);
}

static void samples_tell(const Graph *g, PassCtx *cx, PoolKind kind) {
    Loc at = {.file = g->module->file};
    if (cx->opt->accumulate == 1 || cx->opt->equal_batches) return;
    if (kind == POOL_SUM)
        fail_note(cx->diag, at,
                  "--accumulate: the loss is a sum over samples: losses and "
                  "gradients of micro-batches are added, not averaged");
    if (!is_linear(kind))
        fail_note(cx->diag, at,
                  "--accumulate: what the loss divides by is not known, so "
                  "each micro-batch counts the same, however many labels it "
                  "has");
}

Status pass_samples(Module *m, PassCtx *cx) {
    int n = 0, masked_ones = 0;
    Reals *nominals = NEW_ARRAY(cx->scratch, Reals, cx->opt->objectives.len);
    for (int i = 0; i < m->graphs.len; i++) {
        Graph *g = m->graphs.data[i];
        const Objective *j = options_objective(cx->opt, g->objective);
        Str loss = own_output(OUT_LOSS, g->objective);
        PoolKind kind;
        if (g->program != PROGRAM_TRAIN) continue;
        n++;
        if (!j || j->loss.kind == LOSS_HOST || !graph_output(g, loss).i)
            continue;
        bool masks = can_mask(g, cx);
        masked_ones += masks;
        take_apart(g, cx, masks, &nominals[j - cx->opt->objectives.data],
                   &kind);
        if (!*g->size) samples_tell(g, cx, kind);
    }
    m->masks = n > 0 && masked_ones == n;
    return OK;
}

/* ---- what pass optimizer does with it ------------------------------------ */

static void put_samples(Graph *g, ValueId old, ValueId with) {
    for (int i = 0; i < g->order.len; i++) {
        const Node *n = node_at(g, i);
        for (int k = 0; k < n->nin; k++)
            if (same_value(n->in[k], old)) n->in[k] = with;
    }
    for (int i = 0; graph_root(g, i); i++)
        if (same_value(*graph_root(g, i), old)) *graph_root(g, i) = with;
}

static void put_own(Graph *g, OwnVar var, ValueId with) {
    int v = module_find_own_var(g->module, var, g->objective);
    ValueId old = v >= 0 ? graph_find_var(g, v) : NO_VALUE;
    if (old.i) put_samples(g, old, with);
}

static ValueId take_own(Graph *g, OwnOutput o) {
    return graph_take_output(g, own_output(o, g->objective));
}

bool samples_sum(const Graph *g) {
    double share;
    ValueId v = graph_output(g, own_output(OUT_SHARE, g->objective));
    return v.i && value_is_splat(g, v, &share) && share == 0;
}

/* True if v is computed from inputs. */
static bool reads_inputs(const Graph *g, ValueId v) {
    const Value *val = value_get(g, v);
    if (val->kind != VK_RESULT) return val->kind == VK_INPUT;
    const Node *n = node_get(g, val->def);
    for (int i = 0; i < n->nin; i++)
        if (n->in[i].i && reads_inputs(g, n->in[i])) return true;
    return false;
}

ValueId samples_weigh(Graph *g) {
    ValueId share = take_own(g, OUT_SHARE);
    take_own(g, OUT_ROWS);
    if (!share.i || value_get(g, share)->kind == VK_CONST)
        share = graph_scalar(g, DT_F32, 1);
    put_own(g, OWN_SHARES, share);
    return share;
}

/* Ones of that type: a constant, with which simplify folds what reads them,
   unless they are more elements than it folds. Then a node makes them, the
   first of the graph: time and memory of the compiler do not grow with them. */
static ValueId ones(Graph *g, TypeId type) {
    if (type_count(type_get(type)) <= FOLD_LIMIT) {
        Tensor *t = tensor_new(g->arena, type);
        tensor_set(t, 0, 1);
        tensor_repeat(t);
        return graph_const(g, "ampc.rows", t);
    }
    Builder b = {.g = g};
    ValueId made = b_full(&b, type, 1);
    NodeId *order = g->order.data, last = order[g->order.len - 1];
    memmove(order + 1, order, (size_t)(g->order.len - 1) * sizeof *order);
    order[0] = last;
    return made;
}

bool samples_all(Graph *g) {
    ValueId rows = take_own(g, OUT_ROWS), share = take_own(g, OUT_SHARE);
    bool labels = share.i && reads_inputs(g, share);
    put_own(g, OWN_SHARES, graph_scalar(g, DT_F32, 1));
    if (!rows.i) return labels;
    put_samples(g, rows, ones(g, value_get(g, rows)->type));
    /* the divisor for an incomplete batch */
    int64_t batch = value_type(g, rows)->dim[0];
    put_own(g, OWN_VALID, graph_scalar_int(g, DT_I32, batch));
    return labels;
}
