/* SPDX-License-Identifier: Apache-2.0 */
/* text.c: growable text: numbers, quotes, JSON and paths in it. */
#define _POSIX_C_SOURCE 200809L
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "ir/base/base.h"
#include "runtime/base/utf8.h"

/* ---- growable text ------------------------------------------------------- */

static void sb_reserve(StrBuf *sb, size_t extra) {
    if (sb->data && sb->cap - sb->len > extra) return;
    size_t cap = sb->cap ? sb->cap : 64;
    while (cap - sb->len <= extra) {
        if (cap > SIZE_MAX / 2) out_of_memory();
        cap *= 2;
    }
    char *p = realloc(sb->data, cap);
    if (!p) out_of_memory();
    sb->data = p;
    sb->cap = cap;
    sb->data[sb->len] = 0;
}

void sb_putn(StrBuf *sb, const char *s, size_t n) {
    sb_reserve(sb, n);
    if (n) memcpy(sb->data + sb->len, s, n);
    sb->len += n;
    sb->data[sb->len] = 0;
}

void sb_puts(StrBuf *sb, const char *s) { sb_putn(sb, s, strlen(s)); }

void sb_vprintf(StrBuf *sb, const char *fmt, va_list ap) {
    va_list again;
    va_copy(again, ap);
    sb_reserve(sb, 1);
    size_t room = sb->cap - sb->len;
    int n = fmt ? vsnprintf(sb->data + sb->len, room, fmt, ap) : -1;
    ASSERT(n >= 0);
    if ((size_t)n >= room) {
        sb_reserve(sb, (size_t)n);
        vsnprintf(sb->data + sb->len, (size_t)n + 1, fmt, again);
    }
    va_end(again);
    sb->len += (size_t)n;
}

void sb_printf(StrBuf *sb, const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    sb_vprintf(sb, fmt, ap);
    va_end(ap);
}

void sb_free(StrBuf *sb) {
    free(sb->data);
    *sb = (StrBuf){0};
}

/* ---- diagnostics --------------------------------------------------------- */

/* Appends one character and returns the position after it: unchanged, with a
   backslash if it is in `quoted`, or as \\x1b if it is a control byte or
   part of a broken sequence. */
static const char *put_char(StrBuf *sb, const char *s, const char *quoted) {
    unsigned char c = (unsigned char)*s;
    size_t n = utf8_length(s, s + strnlen(s, 4));
    /* U+0080..U+009F are control characters, too */
    bool control =
        c < 0x20 || c == 0x7f || (c == 0xc2 && (unsigned char)s[1] < 0xa0);
    if (n == 0 || control) {
        sb_printf(sb, "\\x%02x", c);
        return s + 1;
    }
    if (strchr(quoted, c)) sb_puts(sb, "\\");
    sb_putn(sb, s, n);
    return s + n;
}

void sb_put_escaped(StrBuf *sb, const char *s) {
    enum { LONGEST = 120 };
    size_t start = sb->len;
    while (*s && sb->len - start < LONGEST) s = put_char(sb, s, "\"'\\");
    sb_puts(sb, *s ? "..." : "");
}

void sb_put_path(StrBuf *sb, const char *path) {
    enum { LONGEST = 120 };
    size_t n = strlen(path);
    if (n > LONGEST) {
        sb_puts(sb, "...");
        path += n - LONGEST;
        while (((unsigned char)*path & 0xc0) == 0x80) path++;
    }
    sb_put_escaped(sb, path);
}

enum { LONGEST_LIST = 8 };

bool sb_put_next(StrBuf *sb, int i) {
    if (i >= LONGEST_LIST) return false;
    sb_puts(sb, i ? ", " : "");
    return true;
}

void sb_put_more(StrBuf *sb, int n) {
    if (n > LONGEST_LIST) sb_printf(sb, " and %d more", n - LONGEST_LIST);
}

void sb_put_json(StrBuf *sb, const char *s) {
    while (*s) {
        unsigned char c = (unsigned char)*s;
        size_t n = utf8_length(s, s + strnlen(s, 4));
        if (n == 0)
            sb_puts(sb, "\\ufffd"); /* JSON is UTF-8, a path may be anything */
        else if (c == '"' || c == '\\')
            sb_printf(sb, "\\%c", c);
        else if (c < 32 || c == 127)
            sb_printf(sb, "\\u%04x", c);
        else
            sb_putn(sb, s, n);
        s += n ? n : 1;
    }
}

void sb_put_json_string(StrBuf *sb, const char *s) {
    sb_puts(sb, "\"");
    if (s) sb_put_json(sb, s);
    sb_puts(sb, "\"");
}

void sb_put_json_field(StrBuf *sb, const char *key, const char *text) {
    sb_printf(sb, "\"%s\":", key);
    sb_put_json_string(sb, text);
}

void sb_put_quoted(StrBuf *sb, const char *s) {
    sb_puts(sb, "\"");
    while (*s) {
        bool line = *s == '\n';
        if (line) sb_puts(sb, "\\n");
        s = line ? s + 1 : put_char(sb, s, "\"\\");
    }
    sb_puts(sb, "\"");
}

/* text = v in that many digits; true if reading it gives v */
static bool read_back(char text[40], int digits, double v, bool as_f32) {
    snprintf(text, 40, "%.*g", digits, v);
    double back = strtod(text, NULL);
    return back == v || (as_f32 && (float)back == (float)v);
}

void sb_put_double(StrBuf *sb, double v, bool as_f32) {
    char text[40];
    if (isnan(v)) {
        sb_puts(sb, "nan");
        return;
    }
    if (isinf(v)) {
        sb_puts(sb, v < 0 ? "-inf" : "inf");
        return;
    }
    /* few numbers need more than 1 and fewer than `usual` digits */
    bool whole = fabs(v) < 1e9 && v == floor(v); /* 10, not 1e+01 */
    int usual = as_f32 ? 6 : 15;
    bool short_text = read_back(text, whole ? 9 : usual, v, as_f32);
    for (int digits = short_text ? 1 : usual + 1; !whole && digits <= 17;
         digits++)
        if (read_back(text, digits, v, as_f32)) break;
    sb_puts(sb, text);
}

void sb_put_message(StrBuf *sb, const char *fmt, va_list ap) {
    StrBuf msg = {0};
    sb_vprintf(&msg, fmt, ap);
    for (const char *s = msg.data; *s;) {
        bool line = *s == '\n';
        if (line) sb_puts(sb, "\n");
        s = line ? s + 1 : put_char(sb, s, "");
    }
    sb_puts(sb, "\n");
    sb_free(&msg);
}
