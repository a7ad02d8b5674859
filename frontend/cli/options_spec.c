/* SPDX-License-Identifier: Apache-2.0 */
/* options_spec.c: see options_spec.h. */
#include "frontend/cli/options_spec.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "ir/base/near.h"

Status spec_error(const Spec *s, const char *fmt, ...) {
    StrBuf why = {0};
    va_list ap;
    va_start(ap, fmt);
    sb_vprintf(&why, fmt, ap);
    va_end(ap);
    fail(s->d, s->loc, "%s: %s", s->option, why.data);
    sb_free(&why);
    return s->loc.file ? ERR_USER : ERR_USAGE;
}

char *spec_next(Spec *s) {
    if (!s->text) return NULL;
    char *piece = s->text, *comma = strchr(piece, ',');
    if (comma) *comma = 0;
    s->text = comma ? comma + 1 : NULL;
    return piece;
}

bool spec_starts_number(const char *text) {
    return *text && strchr("0123456789+-.", *text);
}

Status spec_number(const Spec *s, const char *key, const char *text,
                   double *out) {
    const char *is = *key ? "=" : "";
    char *end = NULL;
    errno = 0;
    *out = !strcmp(text, "inf") ? INFINITY : strtod(text, &end);
    if (!end) return OK;
    if (!spec_starts_number(text) || *end || isnan(*out))
        return spec_error(s, "%s%s'%s' is not a number", key, is, text);
    if (errno == ERANGE || isinf(*out))
        return spec_error(s, "%s%s'%s' is outside the range of numbers", key,
                          is, text);
    return OK;
}

Status spec_integer(const Spec *s, const char *text, int64_t lo, int64_t hi,
                    int64_t *out) {
    char *end;
    errno = 0;
    long long v = strtoll(text, &end, 10);
    if (!spec_starts_number(text) || end == text || *end)
        return spec_error(s, "'%s' is not an integer", text);
    if (hi == INT64_MAX && v < lo)
        return spec_error(s, "%s is less than %lld, the smallest value", text,
                          (long long)lo);
    if (errno == ERANGE || v < lo || v > hi)
        return spec_error(s, "%s is not in %lld .. %lld", text, (long long)lo,
                          (long long)hi);
    *out = v;
    return OK;
}

/* Numbers become f32, so that none may be above f32's range, or be below it
   unless 0. */

Status spec_assign(const Spec *s, const SpecKey *k, char *value) {
    double v;
    if (k->words) return spec_pick(s, k->words, value, k->choice);
    char *more = k->list ? strchr(value, '/') : NULL;
    if (more) *more = 0;
    if (k->said && (*k->said = !strcmp(value, k->word))) return OK;
    if (k->flag && (!strcmp(value, "true") || !strcmp(value, "false"))) {
        *k->flag = *value == 't';
        return OK;
    }
    size_t n = strlen(value);
    bool share = k->share && n > 1 && value[n - 1] == '%';
    if (share) value[n - 1] = 0;
    TRY(spec_number(s, k->name, value, &v));
    if (share && v > 0 && v < 100) {
        *k->share = v / 100;
        return OK;
    }
    if (share)
        return spec_error(s, "%s=%s%% is not in (0, 100)", k->name, value);
    if (v < k->lo || v > k->hi || (k->open && v == k->hi))
        return spec_error(s, "%s=%s is not in [%g, %g%c", k->name, value, k->lo,
                          k->hi, k->open ? ')' : ']');
    if (k->list) vec_push(s->arena, k->list, v);
    if (more) return spec_assign(s, k, more + 1);
    bool whole = (k->integer || k->whole) && v != floor(v);
    if (whole && k->share && v > 0 && v < 1)
        return spec_error(s,
                          "%s=%s is not an integer; a share of total= is "
                          "%s=%g%%",
                          k->name, value, k->name, v * 100);
    if (whole) return spec_error(s, "%s=%s is not an integer", k->name, value);
    if (k->real) *k->real = v;
    if (k->integer) *k->integer = (int64_t)v;
    if (k->flag) *k->flag = v != 0;
    return OK;
}

static Status unknown_key(const Spec *s, const SpecKey *keys,
                          const char *piece) {
    StrBuf all = {0};
    sb_puts(&all, keys->name ? "; its keys are " : "; it has no keys");
    for (const SpecKey *k = keys; k->name; k++)
        sb_printf(&all, "%s%s", k > keys ? ", " : "", k->name);
    char text[NEAR_TEXT];
    Near near = near_to(piece);
    for (const SpecKey *k = keys; k->name; k++) near_offer(&near, k->name);
    Status st = spec_error(s, "unknown key '%s'%s%s", piece, all.data,
                           near_text(&near, text));
    sb_free(&all);
    return st;
}

Status spec_keys(Spec *s, const SpecKey *keys) {
    for (char *piece; (piece = spec_next(s));) {
        char flag[] = "1", *eq = strchr(piece, '=');
        if (eq) *eq = 0;
        const SpecKey *k = keys;
        while (k->name && strcmp(k->name, piece)) k++;
        if (!k->name) return unknown_key(s, keys, piece);
        if (!eq && !k->flag)
            return spec_error(s, "key '%s' needs a value", piece);
        TRY(spec_assign(s, k, eq ? eq + 1 : flag));
    }
    return OK;
}

int spec_word(const char *const *words, const char *w) {
    for (int i = 0; words[i]; i++)
        if (!strcmp(words[i], w)) return i;
    return -1;
}

Status spec_pick(const Spec *s, const char *const *words, const char *word,
                 int *out) {
    StrBuf all = {0};
    *out = spec_word(words, word);
    if (*out >= 0) return OK;
    for (int i = 0; words[i]; i++)
        sb_printf(&all, "%s%s", i ? ", " : "", words[i]);
    if (strchr(word, '=')) sb_puts(&all, "; keys follow it: WORD,KEY=VALUE");
    char text[NEAR_TEXT];
    Near near = near_to(word);
    for (int i = 0; words[i]; i++) near_offer(&near, words[i]);
    Status st = spec_error(s, "'%s' is not one of %s%s", word, all.data,
                           near_text(&near, text));
    sb_free(&all);
    return st;
}

Status spec_switch(const Spec *s, const char *off, const char *on, bool *out) {
    const char *const words[] = {off, on, NULL};
    int i;
    TRY(spec_pick(s, words, s->text, &i));
    *out = i == 1;
    return OK;
}

Status spec_limit(const Spec *s, double *out) {
    TRY(spec_number(s, "", s->text, out));
    if (*out >= LEAST && *out <= MOST) return OK;
    return spec_error(s, "%s is not in [%g, %g]", s->text, LEAST, MOST);
}

void over_model(int *len, int *of_model) {
    if (*of_model) *len = 0;
    *of_model = 0;
}

Status spec_objective(Options *o, const Spec *s, Objective **j) {
    *j = &o->objectives.data[o->objectives.len - 1];
    o->only_given |= !s->nested;
    if (!s->nested && *(*j)->name)
        return spec_error(s,
                          "must be a key of each --objective if any is given");
    return OK;
}
