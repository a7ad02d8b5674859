/* SPDX-License-Identifier: Apache-2.0 */
/* vocabulary.c: see vocabulary.h. */
#include "frontend/run/vocabulary.h"

#include <stdlib.h>
#include <string.h>

#include "ir/base/files.h"

/* Replaces escapes of a line in place; returns its length, or -1 for an
   unknown escape. */
static int unescape(char *s) {
    static const char from[] = "ntr\\", to[] = "\n\t\r\\";
    char *out = s;
    for (const char *p = s; *p; p++) {
        if (*p != '\\') {
            *out++ = *p;
            continue;
        }
        const char *at = *++p ? strchr(from, *p) : NULL;
        if (!at) return -1;
        *out++ = to[at - from];
    }
    *out = 0;
    return (int)(out - s);
}

static Status add_line(Arena *a, Diag *d, const char *file, const char *p,
                       size_t n, Vocabulary *v) {
    char *line = arena_printf(a, "%.*s", (int)n, p);
    int length = unescape(line);
    if (length <= 0)
        return fail(d, (Loc){.file = intern(file), .line = v->line.len + 1},
                    length ? "an escape is one of \\n, \\t, \\r, \\\\"
                           : "an empty token");
    vec_push(a, &v->line, line);
    vec_push(a, &v->length, length);
    return OK;
}

static Status read_vocabulary_lines(Arena *a, Diag *d, const char *file,
                                    const char *text, size_t bytes,
                                    Vocabulary *v) {
    for (size_t at = 0; at < bytes;) {
        const char *end = memchr(text + at, '\n', bytes - at);
        size_t n = end ? (size_t)(end - text) - at : bytes - at;
        TRY(add_line(a, d, file, text + at, n, v));
        at += n + 1;
    }
    if (v->line.len == v->size) return OK;
    return fail(d, (Loc){.file = intern(file)},
                "has %d tokens, a line each; the model has %lld", v->line.len,
                (long long)v->size);
}

Status vocabulary_open(Arena *a, Diag *d, const char *file, int64_t size,
                       Vocabulary *v) {
    *v = (Vocabulary){.size = size, .bytes = !file && size <= 256};
    if (!file) return OK;
    size_t n;
    char *text = read_file(d, file, &n);
    if (!text) return ERR_USER;
    Status st = read_vocabulary_lines(a, d, file, text, n, v);
    free(text);
    return st;
}

static Status bad_prompt(Diag *d, const Vocabulary *v, const char *at) {
    StrBuf rest = {0};
    sb_put_escaped(&rest, at);
    fail(d, (Loc){0},
         v->line.len ? "--generate: no token of the vocabulary begins '%.40s'"
         : v->bytes  ? "--generate: the model has no token for '%.40s'"
                     : "--generate: the prompt is token numbers such as "
                       "464,3290 for a model with more tokens than bytes, "
                       "unless --sample vocabulary=FILE says what they stand "
                       "for; not '%.40s'",
         rest.data ? rest.data : "");
    sb_free(&rest);
    return ERR_USER;
}

/* The first token of the text, and its length; -1: no token matches. */
static int64_t first_token(const Vocabulary *v, const char *text, size_t *n) {
    int64_t found = -1;
    *n = 1;
    if (v->bytes)
        return (unsigned char)*text < v->size ? (unsigned char)*text : -1;
    *n = 0;
    for (int i = 0; i < v->line.len; i++) {
        size_t k = (size_t)v->length.data[i];
        if (k <= *n || strncmp(text, v->line.data[i], k) != 0) continue;
        *n = k;
        found = i;
    }
    return found;
}

static Status encode_numbers(const Vocabulary *v, Diag *d, const char *text,
                             Tokens *to) {
    while (*(text += strspn(text, ", "))) {
        char *end;
        long long n = strtoll(text, &end, 10);
        if (end == text || (*end && *end != ',' && *end != ' ') || n < 0 ||
            n >= v->size)
            return bad_prompt(d, v, text);
        vec_push(to->a, &to->at, n);
        text = end;
    }
    return OK;
}

Status vocabulary_encode(const Vocabulary *v, Diag *d, const char *text,
                         Tokens *to) {
    if (!v->bytes && !v->line.len) return encode_numbers(v, d, text, to);
    while (*text) {
        size_t n;
        int64_t token = first_token(v, text, &n);
        if (token < 0) return bad_prompt(d, v, text);
        vec_push(to->a, &to->at, token);
        text += n;
    }
    return OK;
}

void vocabulary_decode(const Vocabulary *v, int64_t token, StrBuf *sb) {
    if (v->bytes)
        sb_putn(sb, (char[]){(char)token}, 1);
    else if (v->line.len)
        sb_putn(sb, v->line.data[token], (size_t)v->length.data[token]);
    else
        sb_printf(sb, "%lld ", (long long)token);
}
