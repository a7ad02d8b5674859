/* SPDX-License-Identifier: Apache-2.0 */
/* vocabulary.c: see vocabulary.h. */
#define _GNU_SOURCE
#include "frontend/data/vocabulary.h"

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
    if (!v->line.len)
        return fail(d, (Loc){.file = intern(file)}, "has no tokens");
    if (v->size < 0) v->size = v->line.len;
    if (v->line.len == v->size) return OK;
    return fail(d, (Loc){.file = intern(file)},
                "has %d tokens, a line each; the model has %lld", v->line.len,
                (long long)v->size);
}

static int by_token(const void *a, const void *b, void *lines) {
    const char **line = lines;
    int i = *(const int *)a, k = *(const int *)b, order;
    order = strcmp(line[i], line[k]);
    return order ? order : (i > k) - (i < k);
}

static void sort_tokens(Arena *a, Vocabulary *v) {
    v->sorted = NEW_ARRAY(a, int, v->line.len + 1);
    for (int i = 0; i < v->line.len; i++) v->sorted[i] = i;
    qsort_r(v->sorted, (size_t)v->line.len, sizeof *v->sorted, by_token,
            v->line.data);
}

Status vocabulary_open(Arena *a, Diag *d, const char *file, int64_t size,
                       Vocabulary *v) {
    *v = (Vocabulary){.size = size, .bytes = !file && size <= 256};
    if (!file) return OK;
    size_t n;
    char *text = read_file(d, file, &n);
    if (!text) return ERR_USER;
    Status st = read_vocabulary_lines(a, d, file, text, n, v);
    if (st == OK) sort_tokens(a, v);
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
                       "unless --vocabulary FILE says what they stand "
                       "for; not '%.40s'",
         rest.data ? rest.data : "");
    sb_free(&rest);
    return ERR_USER;
}

/* The text goes on where no token begins. */
static Status bad_text(Diag *d, const char *file, const char *text,
                       const char *at) {
    StrBuf rest = {0};
    int line = 1;
    for (const char *p = text; p < at; p++) line += *p == '\n';
    sb_printf(&rest, "%.20s", at);
    StrBuf shown = {0};
    sb_put_escaped(&shown, rest.data);
    fail(d, (Loc){.file = intern(file), .line = line},
         "no token of the vocabulary begins '%.40s': with a token for each "
         "character every text can be split",
         shown.data);
    sb_free(&rest);
    sb_free(&shown);
    return ERR_USER;
}

/* The first of the sorted tokens [lo, hi), which are equal up to byte k, whose
   byte k is `byte` or more. */
static int from_byte(const Vocabulary *v, int lo, int hi, size_t k, int byte) {
    while (lo < hi) {
        int mid = lo + (hi - lo) / 2;
        if ((unsigned char)v->line.data[v->sorted[mid]][k] < byte)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo;
}

/* The longest token that the text begins with, and its length; -1: none. Of
   the sorted tokens those that begin with k bytes of the text are a range, with
   the token of just these bytes at its beginning. */
static int64_t first_token(const Vocabulary *v, const char *text, size_t *n) {
    int64_t found = -1;
    int lo = 0, hi = v->line.len;
    *n = 1;
    if (v->bytes)
        return (unsigned char)*text < v->size ? (unsigned char)*text : -1;
    for (size_t k = 0; lo < hi && text[k]; k++) {
        int byte = (unsigned char)text[k];
        lo = from_byte(v, lo, hi, k, byte);
        hi = from_byte(v, lo, hi, k, byte + 1);
        if (lo == hi || v->line.data[v->sorted[lo]][k + 1]) continue;
        found = v->sorted[lo];
        *n = k + 1;
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

Status vocabulary_encode(const Vocabulary *v, Diag *d, const char *file,
                         const char *text, Tokens *to) {
    if (!v->bytes && !v->line.len) return encode_numbers(v, d, text, to);
    for (const char *at = text; *at;) {
        size_t n;
        int64_t token = first_token(v, at, &n);
        if (token < 0)
            return file ? bad_text(d, file, text, at) : bad_prompt(d, v, at);
        vec_push(to->a, &to->at, token);
        at += n;
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
