/* SPDX-License-Identifier: Apache-2.0 */
/* facts.c: see facts.h. */
#include <stdarg.h>
#include <string.h>

#include "ir/base/facts.h"

static void fact_end(Facts *f, const char *key) {
    ASSERT(f->n < MOST_FACTS);
    f->key[f->n] = key;
    f->end[f->n++] = f->text.len;
}

void fact_word(Facts *f, const char *key, const char *word, const char *words) {
    if (f->json)
        sb_put_json_string(&f->text, word);
    else if (*word)
        sb_printf(&f->text, words ? words : "%s", word);
    fact_end(f, key);
}

void fact_name(Facts *f, const char *key, const char *name, const char *words,
               const char *none) {
    if (f->json) {
        sb_put_json_string(&f->text, name ? name : "");
    } else if (name) {
        sb_puts(&f->text, words ? words : "");
        sb_put_escaped(&f->text, name);
    } else {
        sb_puts(&f->text, none ? none : "");
    }
    fact_end(f, key);
}

void fact_int(Facts *f, const char *key, long long v, const char *words) {
    sb_printf(&f->text, f->json || !words ? "%lld" : words, v);
    fact_end(f, key);
}

static void fact_spell(Facts *f, const char *key, const char *form,
                       va_list ap) {
    sb_vprintf(&f->text, form, ap);
    fact_end(f, key);
}

void fact_form(Facts *f, const char *key, const char *json, const char *words,
               ...) {
    va_list ap;
    va_start(ap, words);
    fact_spell(f, key, f->json ? json : words, ap);
    va_end(ap);
}

void fact_words(Facts *f, const char *key, const char *words, ...) {
    va_list ap;
    va_start(ap, words);
    if (!f->json) fact_spell(f, key, words, ap);
    va_end(ap);
}

void fact_json(Facts *f, const char *key, const char *json, ...) {
    va_list ap;
    va_start(ap, json);
    if (f->json) fact_spell(f, key, json, ap);
    va_end(ap);
}

void fact_bool(Facts *f, const char *key, bool yes, const char *words) {
    sb_puts(&f->text, f->json ? (yes ? "true" : "false") : yes ? words : "");
    fact_end(f, key);
}

void fact_row(Facts *f, const char *key, long long v, const char *row) {
    if (f->json)
        sb_printf(&f->text, "%lld", v);
    else if (row)
        sb_printf(&f->text, row, key, v);
    fact_end(f, key);
}

static void facts_take(StrBuf *from, StrBuf *to) {
    if (from->len) sb_putn(to, from->data, from->len);
    sb_free(from);
}

void fact_text(Facts *f, const char *key, StrBuf *value) {
    facts_take(value, &f->text);
    fact_end(f, key);
}

void fact_members(Facts *f, const char *key, StrBuf *members) {
    if (members->len) fact_text(f, f->json ? NULL : key, members);
}

void fact_part(Facts *f, const char *key, Facts *part, const char *line) {
    facts_put(part, line, &f->text);
    fact_end(f, key);
}

static void list_put(FactList *l, const char *open, const char *close,
                     StrBuf *sb) {
    sb_puts(sb, l->json ? open : "");
    facts_take(&l->text, sb);
    sb_puts(sb, l->json ? close : "");
}

void fact_list(Facts *f, const char *key, FactList *l) {
    list_put(l, l->lines ? "[\n" : "[", "]", &f->text);
    fact_end(f, key);
}

void fact_break(Facts *f) {
    ASSERT(f->n < MOST_FACTS);
    f->before[f->n] = "\n";
}

static void put_fact(const Facts *f, int i, StrBuf *sb) {
    size_t begin = i ? f->end[i - 1] : 0;
    if (f->end[i] > begin) sb_putn(sb, f->text.data + begin, f->end[i] - begin);
}

static void put_members(const Facts *f, StrBuf *sb) {
    for (int i = 0; i < f->n; i++) {
        sb_puts(sb, i ? "," : "");
        sb_puts(sb, f->before[i] ? f->before[i] : "");
        if (f->key[i]) sb_printf(sb, "\"%s\":", f->key[i]);
        put_fact(f, i, sb);
    }
}

static void facts_put_line(const Facts *f, const char *line, StrBuf *sb) {
    while (*line) {
        size_t n = strcspn(line, "{");
        sb_putn(sb, line, n);
        line += n;
        if (!*line++) break;
        n = strcspn(line, "}");
        for (int i = 0; i < f->n; i++)
            if (f->key[i] && strlen(f->key[i]) == n &&
                !strncmp(f->key[i], line, n))
                put_fact(f, i, sb);
        line += n + 1;
    }
}

void facts_put_members(Facts *f, const char *line, StrBuf *sb) {
    if (f->json)
        put_members(f, sb);
    else if (line)
        facts_put_line(f, line, sb);
    else
        for (int i = 0; i < f->n; i++) put_fact(f, i, sb);
    sb_free(&f->text);
}

void facts_put(Facts *f, const char *line, StrBuf *sb) {
    bool json = f->json;
    sb_puts(sb, json ? "{" : "");
    facts_put_members(f, line, sb);
    sb_puts(sb, json ? "}" : "");
}

/* ---- lists --------------------------------------------------------------- */

FactList fact_lines(bool json) {
    return (FactList){json, true, json ? ",\n" : "", 0, {0}};
}

FactList fact_series(bool json, const char *between_json,
                     const char *between_words) {
    return (FactList){json, false, json ? between_json : between_words, 0, {0}};
}

StrBuf *fact_next(FactList *l) {
    sb_puts(&l->text, l->n++ ? l->between : "");
    return &l->text;
}

void fact_next_word(FactList *l, const char *word) {
    StrBuf *sb = fact_next(l);
    if (l->json)
        sb_put_json_string(sb, word);
    else
        sb_puts(sb, word);
}

void fact_list_put(FactList *l, StrBuf *sb) { list_put(l, "[", "]\n", sb); }
