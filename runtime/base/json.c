/* SPDX-License-Identifier: Apache-2.0 */
/* json.c: see json.h.  A recursive checker over a cursor; walking reuses it
   to skip values.                                                           */
#include "runtime/base/json.h"
#include "runtime/base/utf8.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { JSON_DEPTH = 32 };

typedef struct Json {
    const char *p, *end;
} Json;

static void json_space(Json *j) {
    while (j->p < j->end &&
           (*j->p == ' ' || *j->p == '\t' || *j->p == '\n' || *j->p == '\r'))
        j->p++;
}

static bool json_char(Json *j, char c) {
    if (j->p == j->end || *j->p != c) return false;
    j->p++;
    return true;
}

static bool json_word(Json *j, const char *w) {
    size_t n = strlen(w);
    if ((size_t)(j->end - j->p) < n || memcmp(j->p, w, n) != 0) return false;
    j->p += n;
    return true;
}

static int json_hex(char c) {
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    if (c >= 'A' && c <= 'F') return c - 'A' + 10;
    return -1;
}

/* The four digits of \uXXXX at p, or -1. */
static int json_hex4(const char *p, const char *end) {
    int v = 0;
    if (end - p < 4) return -1;
    for (int i = 0; i < 4; i++) {
        int d = json_hex(p[i]);
        if (d < 0) return -1;
        v = v * 16 + d;
    }
    return v;
}

static bool json_string(Json *j) {
    if (!json_char(j, '"')) return false;
    while (j->p < j->end && *j->p != '"') {
        if ((unsigned char)*j->p < 0x20) return false;
        if (*j->p++ != '\\') continue;
        if (j->p == j->end || !*j->p || !strchr("\"\\/bfnrtu", *j->p))
            return false;
        if (*j->p++ == 'u') {
            if (json_hex4(j->p, j->end) < 0) return false;
            j->p += 4;
        }
    }
    return json_char(j, '"');
}

static bool json_digits(Json *j) {
    const char *from = j->p;
    while (j->p < j->end && *j->p >= '0' && *j->p <= '9') j->p++;
    return j->p > from;
}

static bool json_number(Json *j) {
    json_char(j, '-');
    if (!json_char(j, '0') && !json_digits(j)) return false;
    if (json_char(j, '.') && !json_digits(j)) return false;
    if (json_char(j, 'e') || json_char(j, 'E')) {
        if (!json_char(j, '+')) json_char(j, '-');
        return json_digits(j);
    }
    return true;
}

static bool json_value(Json *j, int depth);

static bool json_members(Json *j, char close, int depth) {
    bool object = close == '}';
    if (depth >= JSON_DEPTH) return false;
    json_space(j);
    if (json_char(j, close)) return true;
    do {
        json_space(j);
        if (object) {
            if (!json_string(j)) return false;
            json_space(j);
            if (!json_char(j, ':')) return false;
        }
        if (!json_value(j, depth + 1)) return false;
        json_space(j);
    } while (json_char(j, ','));
    return json_char(j, close);
}

static bool json_value(Json *j, int depth) {
    json_space(j);
    if (j->p == j->end) return false;
    switch (*j->p) {
    case '{': j->p++; return json_members(j, '}', depth);
    case '[': j->p++; return json_members(j, ']', depth);
    case '"': return json_string(j);
    case 't': return json_word(j, "true");
    case 'f': return json_word(j, "false");
    case 'n': return json_word(j, "null");
    default: return json_number(j);
    }
}

bool json_is_utf8(const char *text, size_t n) {
    const char *end = text + n;
    for (size_t k; text < end; text += k)
        if (!(k = utf8_length(text, end))) return false;
    return true;
}

bool json_parse(const char *text, size_t n, JsonSpan *value) {
    Json j = {text, text + n};
    json_space(&j);
    value->p = j.p;
    if (!json_value(&j, 0)) return false;
    value->n = (size_t)(j.p - value->p);
    json_space(&j);
    return j.p == j.end;
}

static bool json_starts(JsonSpan v, char c) { return v.n > 0 && *v.p == c; }

bool json_is_object(JsonSpan v) { return json_starts(v, '{'); }

bool json_is_array(JsonSpan v) { return json_starts(v, '['); }

bool json_is_string(JsonSpan v) { return json_starts(v, '"'); }

JsonIter json_iter(JsonSpan v) {
    JsonIter it = {NULL, NULL};
    if (json_is_object(v) || json_is_array(v))
        it = (JsonIter){v.p + 1, v.p + v.n};
    return it;
}

/* The text is already checked: only the closing bracket ends the walk. */
bool json_next(JsonIter *it, JsonSpan *key, JsonSpan *value) {
    Json j = {it->p, it->end};
    json_space(&j);
    if (j.p == j.end || *j.p == '}' || *j.p == ']') return false;
    const char *first = j.p;
    if (!json_value(&j, 0)) return false;
    *value = (JsonSpan){first, (size_t)(j.p - first)};
    json_space(&j);
    if (json_char(&j, ':')) {
        *key = *value;
        json_space(&j);
        first = j.p;
        if (!json_value(&j, 0)) return false;
        *value = (JsonSpan){first, (size_t)(j.p - first)};
        json_space(&j);
    }
    json_char(&j, ',');
    it->p = j.p;
    return true;
}

bool json_get(JsonSpan object, const char *key, JsonSpan *value) {
    JsonSpan k, v;
    if (!json_is_object(object)) return false;
    for (JsonIter it = json_iter(object); json_next(&it, &k, &v);) {
        if (!json_equals(k, key)) continue;
        *value = v;
        return true;
    }
    return false;
}

static int json_utf8(uint32_t c, char out[4]) {
    if (c < 0x80) {
        out[0] = (char)c;
        return 1;
    }
    int n = c < 0x800 ? 2 : c < 0x10000 ? 3 : 4;
    static const unsigned char lead[] = {0, 0, 0xc0, 0xe0, 0xf0};
    for (int i = n - 1; i > 0; i--, c >>= 6) out[i] = (char)(0x80 | (c & 0x3f));
    out[0] = (char)(lead[n] | c);
    return n;
}

/* Decodes one character at *p (not the closing quote); a lone surrogate
   becomes U+FFFD.  Returns its length in bytes.                             */
static int json_decode(const char **p, const char *end, char out[4]) {
    static const char from[] = "bfnrt", to[] = "\b\f\n\r\t";
    char c = *(*p)++;
    if (c != '\\') {
        out[0] = c;
        return 1;
    }
    c = *(*p)++;
    const char *at = strchr(from, c);
    if (at) {
        out[0] = to[at - from];
        return 1;
    }
    if (c != 'u') {
        out[0] = c;
        return 1;
    }
    uint32_t u = (uint32_t)json_hex4(*p, end);
    *p += 4;
    if (u >= 0xd800 && u < 0xdc00 && end - *p >= 6 && (*p)[0] == '\\' &&
        (*p)[1] == 'u') {
        uint32_t low = (uint32_t)json_hex4(*p + 2, end);
        if (low >= 0xdc00 && low < 0xe000) {
            *p += 6;
            u = 0x10000 + ((u - 0xd800) << 10) + (low - 0xdc00);
        }
    }
    if (u >= 0xd800 && u < 0xe000) u = 0xfffd;
    return json_utf8(u, out);
}

int64_t json_text(JsonSpan string, char *buf, size_t cap) {
    if (!json_is_string(string)) return -1;
    const char *p = string.p + 1, *end = string.p + string.n - 1;
    size_t n = 0;
    while (p < end) {
        char c[4];
        int k = json_decode(&p, end, c);
        if (c[0] == 0 || n + (size_t)k + 1 > cap) return -1;
        memcpy(buf + n, c, (size_t)k);
        n += (size_t)k;
    }
    if (n + 1 > cap) return -1;
    buf[n] = 0;
    return (int64_t)n;
}

bool json_equals(JsonSpan string, const char *text) {
    if (!json_is_string(string)) return false;
    const char *p = string.p + 1, *end = string.p + string.n - 1;
    size_t left = strlen(text);
    while (p < end) {
        char c[4];
        size_t k = (size_t)json_decode(&p, end, c);
        if (c[0] == 0 || k > left || memcmp(c, text, k) != 0) return false;
        text += k;
        left -= k;
    }
    return left == 0;
}

/* Copies a number to where strto can read it; false if it is not a number. */
static bool json_number_text(JsonSpan v, char buf[64]) {
    if (v.n == 0 || v.n >= 64 || !(*v.p == '-' || (*v.p >= '0' && *v.p <= '9')))
        return false;
    memcpy(buf, v.p, v.n);
    buf[v.n] = 0;
    return true;
}

bool json_int(JsonSpan v, int64_t *out) {
    char buf[64], *end;
    if (!json_number_text(v, buf)) return false;
    errno = 0;
    long long x = strtoll(buf, &end, 10);
    if (*end || errno) return false;
    *out = x;
    return true;
}

bool json_double(JsonSpan v, double *out) {
    char buf[64], *end;
    if (!json_number_text(v, buf)) return false;
    *out = strtod(buf, &end);
    return *end == 0 && isfinite(*out);
}
