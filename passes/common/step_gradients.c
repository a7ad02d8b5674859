/* SPDX-License-Identifier: Apache-2.0 */
/* step_gradients.c: gradients between backward and update: unscale, check,
   norm, clip, transform. The sum of squares is f64, in which finite f32
   gradients cannot overflow, so one isfinite of it is the whole check. */
#include "passes/common/compact.h"
#include "passes/common/step.h"

#include <math.h>
#include <string.h>

/* Streams of random numbers that no model and no stochastic rounding uses. */
#define FIRST_SALT ((int64_t)3 << 29)

/* ---- unscale, check, norm, clip ------------------------------------------ */

void step_set_loss(Step *s, ValueId loss) {
    Str name = own_output(OUT_LOSS, s->g->objective);
    s->loss = loss;
    for (int i = 0; i < s->g->outputs.len; i++)
        if (s->g->outputs.data[i].name == name)
            s->g->outputs.data[i].value = loss;
}

/* A mean over no labels is 0 / 0 and has no gradient: the loss becomes 0,
   and the step is skipped. */
static void without_labels(Step *s, bool last) {
    ValueId nan = b1(&s->b, OP_ISNAN, s->loss, DT_DEFAULT);
    ValueId none = bin(s, OP_AND, nan, s->finite);
    s->some = b1(&s->b, OP_NOT, none, DT_DEFAULT);
    if (last) step_set_loss(s, b_where(&s->b, none, f32c(s, 0), s->loss));
}

/* The factor that divides gradients by scale and shares; 0: there is none. */
static ValueId unscale(Step *s) {
    ValueId by = step_scale(s);
    if (s->shares.i) by = by.i ? bin(s, OP_MUL, by, s->shares) : s->shares;
    return by.i ? b1(&s->b, OP_RECIPROCAL, by, DT_F32) : NO_VALUE;
}

ValueId step_unscale(Step *s, EarlyPart part) {
    ValueId inv = unscale(s), total = f64c(s, 0), sq;
    int64_t axes[MAX_RANK];
    for (int i = 0; i < MAX_RANK; i++) axes[i] = i;
    for (int i = 0; i < part.n; i++) {
        ValueId *g = &s->grads.data[part.which[i]];
        int rank = value_type(s->g, *g)->rank;
        if (inv.i) *g = b2(&s->b, OP_MUL, *g, inv, DT_F32);
        if (rank) {
            sq =
                b_reduce(&s->b, OP_REDUCE_SUMSQ, *g, axes, rank, false, DT_F64);
        } else {
            ValueId wide = b_cast(&s->b, *g, DT_F64);
            sq = bin(s, OP_MUL, wide, wide);
        }
        total = i ? bin(s, OP_ADD, total, sq) : sq;
        s->squares.data[part.which[i]] = sq;
    }
    return total;
}

/* The sum over all parts in the order of parameters, so that the norm has
   the same bits for any division into parts. */
static ValueId sum_parts(Step *s) {
    ValueId total = s->squares.data[0];
    for (int i = 1; i < s->squares.len; i++)
        total = bin(s, OP_ADD, total, s->squares.data[i]);
    return total;
}

/* True if the gradients of a part and of all earlier parts are finite. */
void step_check(Step *s, EarlyPart part, bool last) {
    bool whole = last && !s->finite.i;
    ValueId total = step_unscale(s, part), finite;
    if (s->bad.i) total = b_where(&s->b, s->bad, f64c(s, NAN), total);
    finite = b1(&s->b, OP_ISFINITE, total, DT_DEFAULT);
    s->ok = s->finite =
        s->finite.i ? bin(s, OP_AND, s->finite, finite) : finite;
    if (s->labels) without_labels(s, last);
    if (s->some.i) s->ok = bin(s, OP_AND, s->finite, s->some);
    if (!last) return;
    s->b.loc.chunk = 0;
    s->loss_ok = b1(&s->b, OP_ISFINITE, s->loss, DT_DEFAULT);
    if (!whole) {
        total = sum_parts(s);
        if (s->bad.i) total = b_where(&s->b, s->bad, f64c(s, NAN), total);
    }
    s->norm = b_cast(&s->b, b1(&s->b, OP_SQRT, total, DT_F64), DT_F32);
    s->b.loc.chunk = part.chunk;
}

void step_clip(Step *s, EarlyPart part) {
    double most = s->objective->clip_norm, lim = s->objective->clip_value;
    Attr bounds[] = {attr_f(AK_min, -lim), attr_f(AK_max, lim)};
    Attr limit = attr_named_f("most", most);
    ValueId f, norm = s->opt->clip_previous
                          ? graph_own_var(s->g, OWN_LAST_NORM, 0)
                          : s->norm;
    if (most > 0) call(&s->b, "clip_factor", &norm, 1, &limit, 1, &f, 1);
    for (int i = 0; i < part.n; i++) {
        ValueId *g = &s->grads.data[part.which[i]];
        if (most > 0) *g = b2(&s->b, OP_MUL, *g, f, DT_F32);
        if (lim > 0) *g = build(&s->b, OP_CLIP, g, 1, bounds, 2, DT_F32, NULL);
    }
}

/* Ranks that share updates hold parts of gradients. */
static Status check_parts(Step *s, const TransformSpec *t, NodeId id) {
    if (!s->opt->shard_optimizer ||
        call_is_elementwise(s->g, node_get(s->g, id)))
        return OK;
    fail(s->diag, (Loc){0},
         "--shard-optimizer: %s looks at whole gradients, so that ranks cannot "
         "share updates",
         t->fn->info.text);
    return ERR_USAGE;
}

/* An operand behind the gradient and the parameter. */
static ValueId named_operand(Step *s, Str name) {
    if (!strcmp(name, "t")) return s->number;
    ASSERT(!strcmp(name, "rng"));
    return compact_random(&s->b);
}

/* Transform number k of the gradient of parameter p. */
static Status transform(Step *s, int k, int p) {
    const TransformSpec *t = &s->objective->transforms.data[k];
    const Fn *fn = t->fn;
    int nattr = t->keys.len, variable = value_get(s->g, s->params.data[p])->var;
    Attr attrs[MAX_OP_ATTRS];
    ValueId in[MAX_FN_OPERANDS] = {s->grads.data[p],
                                   b_cast(&s->b, s->params.data[p], DT_F32)};
    for (int i = 2; i < fn->operands.len; i++)
        in[i] = named_operand(s, fn->operands.data[i].name);
    for (int i = 0; i < nattr; i++)
        attrs[i] =
            attr_named_f(t->keys.data[i].key->name, t->keys.data[i].value);
    if (fn_attr(fn, "salt"))
        attrs[nattr++] = attr_i(
            AK_salt, FIRST_SALT + variable * s->objective->transforms.len + k);
    NodeId id =
        build_call(&s->b, fn, in, fn->operands.len, attrs, nattr, 1, NULL);
    TRY(check_parts(s, t, id));
    s->grads.data[p] = node_get(s->g, id)->out[0];
    return OK;
}

Status step_transform(Step *s, EarlyPart part) {
    for (int i = 0; i < part.n; i++) {
        ValueId *g = &s->grads.data[part.which[i]];
        *g = b_cast(&s->b, *g, DT_F32);
    }
    for (int k = 0; k < s->objective->transforms.len; k++)
        for (int i = 0; i < part.n; i++) TRY(transform(s, k, part.which[i]));
    return OK;
}

void step_first_pass(Step *s, const EarlyParts *parts) {
    int n = s->grads.len;
    Builder b = s->b;
    ValueId *first = NEW_ARRAY(s->g->arena, ValueId, n);
    b.flags = NODE_BACKWARD;
    memcpy(first, s->grads.data, (size_t)n * sizeof *first);
    for (int i = 0; i < parts->len; i++) {
        s->b.loc.chunk = parts->data[i].chunk;
        step_check(s, parts->data[i], i + 1 == parts->len);
    }
    ValueId inv = unscale(s);
    for (int i = 0; i < parts->len; i++) {
        EarlyPart *part = &parts->data[i];
        part->chunk += parts->len;
        s->b.loc.chunk = part->chunk;
        for (int k = 0; k < part->n; k++) {
            ValueId *g = &s->grads.data[part->which[k]];
            *g = early_again(&b, first[part->which[k]], s->ok);
            if (inv.i) *g = b2(&s->b, OP_MUL, *g, inv, DT_F32);
        }
    }
    s->b.loc.chunk = 0;
}
