/* SPDX-License-Identifier: Apache-2.0 */
/* options_precision.c: options of precision, placement and memory. */
#include "frontend/cli/options_spec.h"
#include "ir/base/near.h"

#include <math.h>
#include <string.h>

const char *const precision_words[] = {"fp32", "bf16", "fp16", NULL};

Status set_precision(Options *o, Spec *s) {
    static const char *const levels[] = {"O0", "O1", "O2", "O3", NULL};
    const SpecKey none[] = {{0}},
                  half[] = {
                      {"keep_batchnorm", .flag = &o->keep_batchnorm, .hi = 1},
                      {"master_weights", .flag = &o->master_weights, .hi = 1},
                      {0}};
    char *word = spec_next(s), *colon = strchr(word, ':');
    int plain = spec_word(precision_words, word), level;
    o->half_model = o->keep_batchnorm = o->master_weights = false;
    o->f8_products = !strcmp(word, "f8");
    if (o->f8_products) {
        o->precision = PREC_BF16;
        return spec_keys(s, none);
    }
    if (plain >= 0) {
        o->precision = (Precision)plain;
        return spec_keys(s, none);
    }
    if (colon) *colon = 0;
    level = spec_word(levels, word);
    if (level < 0 || (colon && (!level || strcmp(colon + 1, "bf16")))) {
        char text[NEAR_TEXT];
        Near near = near_to(word);
        for (int i = 0; precision_words[i]; i++)
            near_offer(&near, precision_words[i]);
        near_offer(&near, "f8");
        return spec_error(
            s,
            "'%s%s%s' is not one of fp32, bf16, fp16, f8, O0, O1, O2, O3, "
            "O1:bf16, O2:bf16, O3:bf16%s",
            word, colon ? ":" : "", colon ? colon + 1 : "",
            near_text(&near, text));
    }
    o->precision = !level ? PREC_FP32 : colon ? PREC_BF16 : PREC_FP16;
    o->half_model = level >= 2;
    o->keep_batchnorm = o->master_weights = level == 2;
    return spec_keys(s, o->half_model ? half : none);
}

Status set_remat(Options *o, Spec *s) {
    static const char *const words[] = {"auto", "none", NULL};
    int i = spec_word(words, s->text);
    o->remat = i < 0 ? REMAT_BYTES : (Remat)i;
    if (i >= 0) return OK;
    if (!strchr("0123456789", s->text[0]) || !s->text[0])
        return spec_error(s, "'%s' is not one of auto, none, BYTES", s->text);
    return spec_integer(s, s->text, 1, INT64_MAX, &o->remat_bytes);
}

Status set_keep(Options *o, Spec *s) {
    return spec_switch(s, "same", "f8", &o->keep_f8);
}

Status set_logit_rows(Options *o, Spec *s) {
    static const char *const words[] = {"all", "auto", NULL};
    int i = spec_word(words, s->text);
    o->logit_rows = -i;
    if (i >= 0) return OK;
    if (!strchr("0123456789", s->text[0]) || !s->text[0])
        return spec_error(s, "'%s' is not auto, all or a number of rows",
                          s->text);
    return spec_integer(s, s->text, 1, INT64_MAX, &o->logit_rows);
}

Status set_state_dtype(Options *o, Spec *s) {
    const char *words[NUM_DTYPES + 1];
    DType dtypes[NUM_DTYPES];
    int i, n = 0;
    for (DType d = 0; d < NUM_DTYPES; d++) {
        if (!dtype_info[d].state) continue;
        dtypes[n] = d;
        words[n++] = dtype_info[d].state;
    }
    words[n] = NULL;
    TRY(spec_pick(s, words, s->text, &i));
    o->state_dtype = dtypes[i];
    return OK;
}

Status set_gradient_dtype(Options *o, Spec *s) {
    static const char *const words[] = {"fp32", "bf16", NULL};
    int i;
    TRY(spec_pick(s, words, s->text, &i));
    o->gradient_dtype = i ? DT_BF16 : DT_F32;
    return OK;
}

Status set_f8_scales(Options *o, Spec *s) {
    static const char *const words[] = {"current", "delayed", "block", NULL};
    int i;
    TRY(spec_pick(s, words, s->text, &i));
    o->f8_scales = (F8Scales)i;
    return OK;
}

Status set_masters(Options *o, Spec *s) {
    static const char *const words[] = {"fp32", "kahan", "none", NULL};
    int i;
    TRY(spec_pick(s, words, s->text, &i));
    o->masters = (Masters)i;
    return OK;
}

Status set_matmul_precision(Options *o, Spec *s) {
    static const char *const words[] = {[AMPC_FACTORS_F32] = "highest",
                                        [AMPC_FACTORS_TF32] = "high",
                                        [AMPC_FACTORS_BF16] = "medium",
                                        NULL};
    int i;
    TRY(spec_pick(s, words, s->text, &i));
    o->factors = (AmpcFactors)i;
    return OK;
}

Status set_placement(Options *o, Spec *s) {
    static const char *const words[] = {"exact", "pytorch", NULL};
    const SpecKey none[] = {{0}},
                  exact[] = {{"residuals", .real = &o->residuals,
                              .hi = INFINITY, .word = "fp16",
                              .said = &o->fp16_residuals},
                             {"head", .flag = &o->wide_head, .hi = 1},
                             {0}};
    int i;
    TRY(spec_pick(s, words, spec_next(s), &i));
    o->placement = (Placement)i;
    o->residuals = INFINITY;
    o->fp16_residuals = o->wide_head = i == PLACE_EXACT;
    return spec_keys(s, i == PLACE_EXACT ? exact : none);
}

Status set_scale(Options *o, Spec *s) {
    ScaleSpec *c = &o->scale;
    *c = scale_default(SCALE_DYNAMIC);
    SpecKey init = {"init", .real = &c->init, .lo = 1e-30, .hi = 1e30};
    if (!strncmp(s->text, "static=", 7)) {
        c->kind = SCALE_STATIC;
        init.name = "static";
        return spec_assign(s, &init, s->text + 7);
    }
    const char *word = spec_next(s);
    bool none = !strcmp(word, "none");
    if (!none && strcmp(word, "dynamic"))
        return spec_error(s, "'%s' is not one of dynamic, static=K, none",
                          word);
    if (none) c->kind = SCALE_NONE;
    const SpecKey no_keys[] = {{0}};
    const SpecKey keys[] = {
        init,
        {"growth", .real = &c->growth, .lo = 1.0000001, .hi = 1e9},
        {"backoff", .real = &c->backoff, .lo = 1e-9, .hi = 0.9999999},
        {"interval", .integer = &c->interval, .lo = 1, .hi = 1e9},
        {"min", .real = &c->min, .hi = 1e30},
        {"max", .real = &c->max, .lo = 1e-30, .hi = INFINITY},
        {"hysteresis", .integer = &c->hysteresis, .lo = 1, .hi = 1e9},
        {0}};
    TRY(spec_keys(s, none ? no_keys : keys));
    if (c->max < c->min) return spec_error(s, "max= is below min=");
    if (c->init < c->min || c->init > c->max)
        return spec_error(s,
                          "init=%g is not in [%g, %g], which min= and max= set",
                          c->init, c->min, c->max);
    return OK;
}

Status set_max_loss_error(Options *o, Spec *s) {
    return spec_limit(s, &o->max_error[ERROR_LOSS]);
}

Status set_max_gradient_error(Options *o, Spec *s) {
    return spec_limit(s, &o->max_error[ERROR_GRADIENT]);
}
