/* SPDX-License-Identifier: Apache-2.0 */
/* sample.c: see sample.h. */
#define _GNU_SOURCE
#include "frontend/run/sample.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "ir/base/near.h"

/* ---- the option ---------------------------------------------------------- */

typedef enum KeyKind { KEY_COUNT, KEY_NUMBER, KEY_TEXT } KeyKind;

static const struct Key {
    const char *name;
    KeyKind kind;
    size_t field;
    double least, most;
} keys[] = {
    {"tokens", KEY_COUNT, offsetof(Sampling, tokens), 1, 1e9},
    {"temperature", KEY_NUMBER, offsetof(Sampling, temperature), 0, 1e6},
    {"top_k", KEY_COUNT, offsetof(Sampling, top_k), 1, 1e9},
    {"top_p", KEY_NUMBER, offsetof(Sampling, top_p), 1e-9, 1},
    {"seed", KEY_COUNT, offsetof(Sampling, seed), 0, 1e15},
    {"output", KEY_TEXT, offsetof(Sampling, output), 0, 0}};
enum { KEYS = sizeof keys / sizeof *keys };

static Status sample_bad(Diag *d, const char *key, const char *why) {
    fail(d, (Loc){0}, "--sample: '%s' %s", key, why);
    return ERR_USAGE;
}

static Status no_key(Diag *d, const char *name) {
    char text[NEAR_TEXT];
    Near near = near_to(name);
    StrBuf all = {0};
    for (int i = 0; i < KEYS; i++) {
        near_offer(&near, keys[i].name);
        sb_printf(&all, "%s%s=", i ? ", " : "", keys[i].name);
    }
    fail(d, (Loc){0}, "--sample: '%s' is not one of %s%s", name, all.data,
         near_text(&near, text));
    sb_free(&all);
    return ERR_USAGE;
}

static Status take_key(Diag *d, const char *name, const char *value,
                       Sampling *s) {
    const struct Key *k = keys;
    while (k < keys + KEYS && strcmp(k->name, name) != 0) k++;
    if (k == keys + KEYS) return no_key(d, name);
    void *field = (char *)s + k->field;
    if (k->kind == KEY_TEXT) {
        *(const char **)field = value;
        return OK;
    }
    char *end, why[120];
    errno = 0;
    double x = strtod(value, &end);
    bool whole = k->kind == KEY_COUNT;
    if (end == value || *end || errno || !(x >= k->least && x <= k->most) ||
        (whole && x != floor(x))) {
        snprintf(why, sizeof why, "takes a %s from %g to %g, not '%.20s'",
                 whole ? "whole number" : "number", k->least, k->most, value);
        return sample_bad(d, name, why);
    }
    if (whole)
        *(int64_t *)field = (int64_t)x;
    else
        *(double *)field = x;
    return OK;
}

Status sampling_read(Arena *a, Diag *d, const char *text, Sampling *s) {
    *s = (Sampling){.tokens = 200, .temperature = 1, .top_p = 1, .seed = -1};
    while (text && *text) {
        size_t n = strcspn(text, ",");
        char *item = arena_printf(a, "%.*s", (int)n, text);
        char *value = strchr(item, '=');
        if (!value) return sample_bad(d, item, "has no value: KEY=VALUE,..");
        *value++ = 0;
        TRY(take_key(d, item, value, s));
        text += n + (text[n] == ',');
    }
    return OK;
}

/* ---- drawing ------------------------------------------------------------- */

static int by_logit(const void *a, const void *b, void *logits) {
    const double *x = logits;
    int64_t i = *(const int64_t *)a, k = *(const int64_t *)b;
    return x[i] != x[k] ? (x[i] < x[k] ? 1 : -1) : (i > k) - (i < k);
}

/* The probability of a token divided by that of the likeliest one. */
static double sample_weight(const Sampling *s, const double *logits, int64_t i,
                            int64_t best) {
    return exp((logits[i] - logits[best]) / s->temperature);
}

static double sample_sum_of(const Sampling *s, const double *logits,
                            const int64_t *order, int64_t n) {
    double sum = 0;
    for (int64_t i = 0; i < n; i++)
        sum += sample_weight(s, logits, order[i], order[0]);
    return sum;
}

int64_t sampling_pick(const Sampling *s, const double *logits, int64_t n,
                      double u, int64_t *order) {
    for (int64_t i = 0; i < n; i++) order[i] = i;
    qsort_r(order, (size_t)n, sizeof *order, by_logit, (void *)logits);
    if (s->temperature == 0) return order[0];
    if (s->top_k && s->top_k < n) n = s->top_k;
    if (s->top_p < 1) {
        double most = s->top_p * sample_sum_of(s, logits, order, n), sum = 0;
        int64_t kept = 0;
        while (kept < n && sum < most)
            sum += sample_weight(s, logits, order[kept++], order[0]);
        n = kept;
    }
    double left = u * sample_sum_of(s, logits, order, n);
    for (int64_t i = 0; i + 1 < n; i++) {
        left -= sample_weight(s, logits, order[i], order[0]);
        if (left < 0) return order[i];
    }
    return order[n - 1];
}
