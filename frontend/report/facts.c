/* SPDX-License-Identifier: Apache-2.0 */
/* facts.c: see facts.h. */
#include <string.h>

#include "frontend/report/facts.h"

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

void fact_type(Facts *f, const char *key, TypeId t) {
    sb_puts(&f->text, f->json ? "\"" : "");
    sb_put_type(&f->text, t);
    sb_puts(&f->text, f->json ? "\"" : "");
    fact_end(f, key);
}

void fact_int(Facts *f, const char *key, long long v, const char *words) {
    sb_printf(&f->text, f->json || !words ? "%lld" : words, v);
    fact_end(f, key);
}

void fact_real(Facts *f, const char *key, double v, const char *json,
               const char *words) {
    sb_printf(&f->text, f->json ? json : words, v);
    fact_end(f, key);
}

void fact_bool(Facts *f, const char *key, bool yes, const char *words) {
    sb_puts(&f->text, f->json ? (yes ? "true" : "false") : yes ? words : "");
    fact_end(f, key);
}

static void put_fact(const Facts *f, int i, StrBuf *sb) {
    size_t begin = i ? f->end[i - 1] : 0;
    if (f->end[i] > begin) sb_putn(sb, f->text.data + begin, f->end[i] - begin);
}

static void put_object(const Facts *f, StrBuf *sb) {
    for (int i = 0; i < f->n; i++) {
        sb_printf(sb, "%s\"%s\":", i ? "," : "{", f->key[i]);
        put_fact(f, i, sb);
    }
    sb_puts(sb, "}");
}

static void put_line(const Facts *f, const char *line, StrBuf *sb) {
    while (*line) {
        size_t n = strcspn(line, "{");
        sb_putn(sb, line, n);
        line += n;
        if (!*line++) break;
        n = strcspn(line, "}");
        for (int i = 0; i < f->n; i++)
            if (strlen(f->key[i]) == n && !strncmp(f->key[i], line, n))
                put_fact(f, i, sb);
        line += n + 1;
    }
}

void facts_put(Facts *f, const char *line, StrBuf *sb) {
    if (f->json)
        put_object(f, sb);
    else
        put_line(f, line, sb);
    sb_free(&f->text);
}
