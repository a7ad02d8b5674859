/* SPDX-License-Identifier: Apache-2.0 */
/* samples_loss.c: the share of a call of a loss, and the call without the
   samples that only fill a batch (samples.c). */
#include "ir/fn/fn.h"
#include "passes/common/samples_impl.h"

#include <string.h>

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
    return samples_share_of(s, samples_add_up(s, each),
                            (double)value_count(s->g, target));
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
    if (samples_maskable(s, n->in[0]) && samples_maskable(s, n->in[1])) {
        ValueId m = samples_mask(s, target, s->rows[n->in[1].i]);
        ValueId zero = b_scalar(&s->b, DT_F32, 0);
        m = b2(&s->b, OP_GREATER, m, zero, DT_DEFAULT);
        ValueId gone = graph_scalar_int(s->g, d, ignore.u.i);
        target = b_where(&s->b, m, target, gone);
        value = call_with(s, n, target, ignore);
    }
    if (sum) return (Pool){.kind = POOL_SUM, .value = value};
    if (!weighs || s->opt->equal_batches)
        return (Pool){.kind = POOL_MEAN,
                      .value = samples_times(s, value, s->part)};
    ValueId share = class_share(s, n, target, ignore, ignores || s->masks);
    return (Pool){POOL_LABELS, samples_times(s, value, s->stand_in), share, 0};
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
    if (!samples_maskable(s, n->in[0])) return p;
    for (int i = 0; i < MAX_RANK; i++) axes[i] = i;
    each = b2(&s->b, OP_MUL, each, samples_mask(s, each, s->rows[n->in[0].i]),
              DT_F32);
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
    if (!x.den.i || value_count(s->g, n->out[0]) != 1) return pool_other();
    if (is_fixed(s, x.den, DEPTH) || s->opt->equal_batches)
        return (Pool){.kind = POOL_MEAN, .value = n->out[0]};
    double nominal = (double)value_count(s->g, x.den);
    ValueId share = samples_share_of(s, samples_add_up(s, x.den), nominal);
    return (Pool){POOL_LABELS, samples_times(s, n->out[0], s->stand_in), share,
                  0};
}

Pool samples_call_loss(Samples *s, NodeId id) {
    Node n = *node_get(s->g, id); /* building may move the pool */
    const char *name = n.fn->info.text;
    Attr reduction;
    if (!n.fn->samples.given) return pool_other();
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
