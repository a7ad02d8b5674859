/* SPDX-License-Identifier: Apache-2.0 */
/* options_info.c: compile options as text for people and for the module's
   info. */
#include "frontend/cli/options_spec.h"

#include <string.h>

#include "frontend/cli/options_text.h"

/* ---- for the module's info ----------------------------------------------- */

/* "cross_entropy + 0.5*mse", with outputs: "cross_entropy of a + 0.5*mse of b"
 */
static void put_losses(const Objective *j, bool outputs, StrBuf *sb) {
    for (int i = 0; i <= j->added.len; i++) {
        const LossSpec *l = i ? &j->added.data[i - 1] : &j->loss;
        if (i) sb_puts(sb, " + ");
        if (l->factor != 1) sb_printf(sb, "%g*", l->factor);
        sb_puts(sb, loss_word(l));
        for (int k = 0; outputs && k < l->outputs.len; k++) {
            sb_puts(sb, k ? ", " : " of ");
            sb_put_escaped(sb, l->outputs.data[k]);
        }
    }
}

static const char *average_word(const AverageSpec *a) {
    return a->fn + strlen("average_");
}

static void json_objective(const Objective *j, StrBuf *sb) {
    const OptimizerSpec *p = &j->optimizer;
    sb_puts(sb, "\"loss\":\"");
    put_losses(j, false, sb);
    sb_puts(sb, "\",\"optimizer\":");
    sb_printf(sb, "{\"name\":\"%s\",\"lr\":%.9g", p->fn->info.text, p->lr);
    for (int i = 0; i < p->keys.len; i++) {
        const OptimizerKey *k = &p->keys.data[i];
        sb_printf(sb, ",\"%s\":", k->key->name);
        if (k->key->kind == FA_BOOL)
            sb_puts(sb, k->value != 0 ? "true" : "false");
        else
            sb_printf(sb, "%.9g", k->value);
    }
    sb_puts(sb, "}");
    sb_printf(sb, ",\"lr_schedule\":\"%s\",\"clip_norm\":%.9g",
              j->schedule.row->word, j->clip_norm);
    sb_printf(sb, ",\"clip_value\":%.9g", j->clip_value);
}

static const char *scale_text(const Options *o) {
    return !options_has_scaler(o)          ? "none"
           : o->scale.kind == SCALE_STATIC ? "static"
                                           : "dynamic";
}

/* "T", or "x:1" for an axis of an input. */
static void json_sizes(const DimSizes *d, int i, StrBuf *sb) {
    sb_puts(sb, i ? ",\"" : ",\"dims\":{\"");
    sb_put_json(sb, d->name);
    if (d->axis >= 0) sb_printf(sb, ":%d", d->axis);
    sb_puts(sb, "\":[");
    for (int k = 0; k < d->sizes.len; k++)
        sb_printf(sb, "%s%lld", k ? "," : "", (long long)d->sizes.data[k]);
    sb_puts(sb, "]");
}

void options_json(const Options *o, StrBuf *sb) {
    const Objective *j = o->objectives.data;
    sb_printf(sb, "{\"precision\":\"%s\",", options_precision(o));
    if (!*j->name) json_objective(j, sb);
    for (int i = 0; *j->name && i < o->objectives.len; i++) {
        sb_printf(sb, "%s{\"name\":\"%s\",", i ? "," : "\"objectives\":[",
                  j[i].name);
        json_objective(&j[i], sb);
        sb_puts(sb, i + 1 < o->objectives.len ? "}" : "}]");
    }
    if (o->equal_batches) sb_puts(sb, ",\"equal_batches\":1");
    sb_printf(sb, ",\"accumulate\":%lld,\"loss_scale\":\"%s\",\"seed\":%lld",
              (long long)o->accumulate, scale_text(o), (long long)o->seed);
    for (int i = 0; i < o->batch_sizes.len; i++)
        sb_printf(sb, "%s%lld", i ? "," : ",\"batch_sizes\":[",
                  (long long)o->batch_sizes.data[i]);
    if (o->batch_sizes.len) sb_puts(sb, "]");
    for (int i = 0; i < o->dim_sizes.len; i++)
        json_sizes(&o->dim_sizes.data[i], i, sb);
    if (o->dim_sizes.len) sb_puts(sb, "}");
    for (int i = 0; i < o->pads.len; i++) {
        sb_puts(sb, i ? "," : ",\"pad\":{");
        sb_put_json_string(sb, o->pads.data[i].input);
        sb_printf(sb, ":%.17g%s", o->pads.data[i].value,
                  i + 1 < o->pads.len ? "" : "}");
    }
    if (o->average.fn)
        sb_printf(sb, ",\"average\":\"%s\"", average_word(&o->average));
    for (int i = 0; i < o->fresh.len; i++) {
        sb_puts(sb, i ? "," : ",\"fresh\":[");
        sb_put_json_string(sb, o->fresh.data[i]);
        sb_puts(sb, i + 1 < o->fresh.len ? "" : "]");
    }
    sb_printf(sb, ",\"shard_optimizer\":%d,\"top_k\":%lld}", o->shard_optimizer,
              (long long)o->top_k);
}

static void objective_lines(const Options *o, const Objective *j, StrBuf *sb) {
    if (*j->name) sb_printf(sb, "objective   %s\n", j->name);
    sb_puts(sb, "loss        ");
    put_losses(j, true, sb);
    if (options_train(o)) {
        sb_printf(sb, "\noptimizer   %s, lr %g %s", j->optimizer.fn->info.text,
                  j->optimizer.lr, j->schedule.row->word);
        for (int i = 0; i < j->wrappers.len; i++)
            sb_printf(sb, ", wrapper %s", j->wrappers.data[i].fn->info.text);
        if (j->clip_norm > 0) sb_printf(sb, ", clip-norm %g", j->clip_norm);
        if (j->clip_value > 0) sb_printf(sb, ", clip-value %g", j->clip_value);
        for (int i = 0; i < j->transforms.len; i++)
            sb_printf(sb, ", gradient %s",
                      transform_word(j->transforms.data[i].fn));
        if (o->accumulate > 1)
            sb_printf(sb, ", %lld micro-batches a step%s",
                      (long long)o->accumulate,
                      o->equal_batches ? " (the mean of their means)" : "");
    }
    sb_puts(sb, "\n");
}

void options_lines(const Options *o, StrBuf *sb) {
    for (int i = 0; i < o->objectives.len; i++)
        objective_lines(o, &o->objectives.data[i], sb);
    for (int i = 0; i < o->batch_sizes.len; i++)
        sb_printf(sb, "%s%lld%s", i ? ", " : "batch sizes ",
                  (long long)o->batch_sizes.data[i],
                  i + 1 < o->batch_sizes.len ? "" : " (eval, predict)\n");
    for (int i = 0; i < o->dim_sizes.len; i++) {
        const DimSizes *d = &o->dim_sizes.data[i];
        sb_puts(sb, i ? "            " : "sizes       ");
        sb_put_escaped(sb, d->name);
        if (d->axis >= 0) sb_printf(sb, ":%d", d->axis);
        for (int k = 0; k < d->sizes.len; k++)
            sb_printf(sb, "%s %lld", k ? "," : "", (long long)d->sizes.data[k]);
        sb_puts(sb, "\n");
    }
    if (o->average.fn) {
        sb_printf(sb, "average     %s", average_word(&o->average));
        for (int i = 0; i < AVERAGE_KEYS && o->average.keys[i].name; i++)
            sb_printf(sb, "%s %s %g", i ? "," : "", o->average.keys[i].name,
                      o->average.keys[i].value);
        sb_puts(sb, o->average.buffers ? ", buffers averaged\n" : "\n");
    }
    for (int i = 0; i < o->adapters.len; i++) {
        const AdapterSpec *l = &o->adapters.data[i];
        if (l->ia3) {
            sb_printf(sb, "ia3         %s, factors of %s\n", l->glob,
                      l->feedforward ? "inputs" : "outputs");
            continue;
        }
        sb_printf(sb, "lora        %s, rank %lld, alpha %g, dropout %g, ",
                  l->glob, (long long)l->rank, l->alpha, l->dropout);
        sb_printf(sb, "bias %s%s\n", lora_biases[l->bias],
                  l->dora ? ", trained norms (DoRA)" : "");
    }
    if (o->frozen_dtype)
        sb_printf(sb, "frozen      weights in %s\n",
                  frozen_dtypes[o->frozen_dtype - FROZEN_BF16]);
    sb_printf(sb, "precision   %s, loss scale %s\n", options_precision(o),
              scale_text(o));
}
