/* SPDX-License-Identifier: Apache-2.0 */
/* step.c: the order of a step: check, clip, transform, update, loss scale,
   counters. */
#include "passes/common/average.h"
#include "passes/common/step.h"

static void count(Step *s, OwnVar counter, ValueId more) {
    ValueId c = graph_own_var(s->g, counter, 0);
    write_var(s, c, bin(s, OP_ADD, c, b_cast(&s->b, more, DT_I64)));
}

/* Updates the parameters of a part. */
static Status emit_part(Step *s, EarlyPart part) {
    s->b.loc.chunk = part.chunk;
    step_clip(s, part);
    TRY(step_transform(s, part));
    s->b.loc.chunk = 0;
    if (!s->share.i) s->share = average_share(&s->b, s->opt, s->number);
    s->b.loc.chunk = part.chunk;
    TRY(step_update(s, part));
    s->b.loc.chunk = 0;
    return OK;
}

Status step_emit(Step *s) {
    int n = s->grads.len;
    EarlyParts parts;
    ASSERT(s->objective && is_value(s->loss));
    ASSERT(n > 0 && n == s->params.len);
    s->b.flags = NODE_UPDATE;
    s->squares = s->grads;
    s->squares.data = NEW_ARRAY(s->g->arena, ValueId, n);
    parts = early_parts(s->g, s->opt, s->grads.data, n);
    TRY(step_lr(s));
    TRY(step_keep_definition(s, s->objective->optimizer.fn));
    for (int i = 0; i < s->objective->wrappers.len; i++)
        TRY(step_keep_definition(s, s->objective->wrappers.data[i].fn));
    bool twice = early_needs_norm(s->g, s->opt);
    if (twice) step_first_pass(s, &parts);
    for (int i = 0; i < parts.len; i++) {
        s->b.loc.chunk = parts.data[i].chunk;
        if (!twice) step_check(s, parts.data[i], i + 1 == parts.len);
        TRY(emit_part(s, parts.data[i]));
    }
    if (s->opt->clip_previous) {
        ValueId last = graph_own_var(s->g, OWN_LAST_NORM, 0);
        write_var(s, last, b_where(&s->b, s->ok, s->norm, last));
    }
    ValueId scale = step_scale(s), step = graph_own_var(s->g, OWN_STEP, 0);
    output(s, OUT_GRAD_NORM, s->norm);
    output(s, OUT_SCALE, scale.i ? b_cast(&s->b, scale, DT_F32) : f32c(s, 1));
    output(s, OUT_LR, b_cast(&s->b, s->lr, DT_F32));
    output(s, OUT_APPLIED, s->ok);
    output(s, OUT_STEP, bin(s, OP_ADD, step, b_cast(&s->b, s->ok, DT_I64)));
    step_scaler(s);
    ValueId bad = b1(&s->b, OP_NOT, s->ok, DT_DEFAULT);
    ValueId one = graph_scalar_int(s->g, DT_I64, 1);
    count(s, OWN_STEP, s->ok);
    count(s, OWN_TRIED, one);
    count(s, OWN_SKIPPED, bad);
    count(s, OWN_BAD_FORWARD, b1(&s->b, OP_NOT, s->loss_ok, DT_DEFAULT));
    ValueId streak = graph_own_var(s->g, OWN_SKIP_STREAK, 0);
    ValueId longer = bin(s, OP_ADD, streak, one);
    write_var(s, streak,
              b_where(&s->b, s->ok, graph_scalar_int(s->g, DT_I64, 0), longer));
    return OK;
}
