/* SPDX-License-Identifier: Apache-2.0 */
/* lex.c: text to tokens.  The text is not trusted: it may contain any bytes,
   NUL too. */
#include "ir/lex/lex.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- messages ------------------------------------------------------------ */

Loc lex_loc(const Lexer *lx, const Token *t) {
    Loc loc = {.file = lx->file, .line = t->line, .col = t->col};
    return loc;
}

static size_t char_start(const char *s, size_t at, size_t lo) {
    while (at > lo && ((unsigned char)s[at] & 0xc0) == 0x80) at--;
    return at;
}

void lex_show(Lexer *lx, const Token *t) {
    enum { BEFORE = 60, AFTER = 40 };
    StrBuf *sb = &lx->diag->text;
    size_t lo = t->at, hi = t->at, columns = 0;
    while (lo > 0 && lx->text[lo - 1] != '\n' && t->at - lo < BEFORE) lo--;
    while (hi < lx->n && lx->text[hi] != '\n' && hi - t->at < AFTER) hi++;
    if (lo < lx->n) lo = char_start(lx->text, lo, 0);
    if (hi < lx->n) hi = char_start(lx->text, hi, lo);
    sb_puts(sb, "  ");
    for (size_t i = lo; i < hi; i++) {
        unsigned char c = (unsigned char)lx->text[i];
        char shown = c < 0x20 || c == 0x7f ? ' ' : (char)c;
        sb_putn(sb, &shown, 1);
        if (i < t->at && (c & 0xc0) != 0x80) columns++;
    }
    sb_printf(sb, "\n  %*s^\n", (int)columns, "");
}

Status lex_fail(Lexer *lx, const Token *at, const char *fmt, ...) {
    StrBuf msg = {0};
    va_list ap;
    va_start(ap, fmt);
    sb_vprintf(&msg, fmt, ap);
    va_end(ap);
    fail(lx->diag, lex_loc(lx, at), "%s", msg.data);
    sb_free(&msg);
    lex_show(lx, at);
    return ERR_USER;
}

const char *lex_describe(const Token *t, char *buf) {
    enum { SIZE = 80 };
    switch (t->kind) {
    case T_EOF: return "end of file";
    case T_PUNCT:
        if (*t->text)
            snprintf(buf, SIZE, "'%s'", t->text);
        else
            snprintf(buf, SIZE, "'%c'", t->ch);
        break;
    case T_NAME: snprintf(buf, SIZE, "'%%%.60s'", t->text); break;
    case T_STRING: snprintf(buf, SIZE, "\"%.60s\"", t->text); break;
    default: snprintf(buf, SIZE, "'%.60s'", t->text); break;
    }
    return buf;
}

/* ---- tokens -------------------------------------------------------------- */

static char peek(const Lexer *lx, size_t ahead) {
    return lx->at + ahead < lx->n ? lx->text[lx->at + ahead] : 0;
}

bool name_char(char c, char next) {
    if (c == ':') return next >= '0' && next <= '9';
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
           (c >= '0' && c <= '9') || (c && strchr("_.-/", c));
}

static bool is_digit(char c) { return c >= '0' && c <= '9'; }

static bool is_letter(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
}

void lex_skip(Lexer *lx, const char *blank) {
    for (; lx->at < lx->n; lx->at++) {
        char c = lx->text[lx->at];
        while (c == '#' && lx->at + 1 < lx->n && lx->text[lx->at + 1] != '\n')
            lx->at++;
        if (!c || (c != '#' && !strchr(blank, c))) return;
    }
}

static int hex_digit(char c) {
    if (is_digit(c)) return c - '0';
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    if (c >= 'A' && c <= 'F') return c - 'A' + 10;
    return -1;
}

/* Reads the character after a backslash. */
static Status lex_escape(Lexer *lx, const Token *t, char *out) {
    char c = peek(lx, 0);
    int hi = hex_digit(peek(lx, 1)), lo = hex_digit(peek(lx, 2));
    if (c == 'n' || c == '"' || c == '\\' || c == '\'') {
        *out = c == 'n' ? '\n' : c;
        lx->at++;
        return OK;
    }
    if (c != 'x' || hi < 0 || lo < 0 || hi + lo == 0)
        return lex_fail(lx, t, "escapes are \\\" \\\\ \\n and \\x01 to \\xff");
    *out = (char)(hi * 16 + lo);
    lx->at += 3;
    return OK;
}

/* lx->at is at the opening quote. */
static Status lex_string(Lexer *lx, const Token *t, StrBuf *sb) {
    sb_puts(sb, "");
    for (lx->at++; lx->at < lx->n;) {
        char c = lx->text[lx->at++];
        if (c == '"') return OK;
        if (c == '\n' || c == 0) break;
        if (c == '\\') TRY(lex_escape(lx, t, &c));
        sb_putn(sb, &c, 1);
    }
    return lex_fail(lx, t, "the string does not end on its line");
}

static Status lex_quoted(Lexer *lx, Token *t) {
    StrBuf sb = {0};
    Status s = lex_string(lx, t, &sb);
    t->text = intern_n(sb.data, sb.len);
    sb_free(&sb);
    return s;
}

bool lex_is_plain(const Token *t) {
    const char *c = t->kind == T_WORD ? t->text : "";
    while (is_letter(*c) || is_digit(*c)) c++;
    return t->kind == T_WORD && !*c;
}

static void lex_word(Lexer *lx, Token *t) {
    size_t start = lx->at;
    for (; lx->at < lx->n; lx->at++) {
        char c = peek(lx, 0);
        if (lx->infix ? !is_letter(c) && !is_digit(c)
                      : !name_char(c, peek(lx, 1)))
            break;
    }
    t->text = intern_n(lx->text + start, lx->at - start);
}

/* Reads all characters that a number can have; its form is checked when
   used. */
static void lex_number(Lexer *lx, Token *t) {
    size_t start = lx->at;
    bool hex = peek(lx, 0) == '0' && peek(lx, 1) == 'x';
    t->kind = T_NUMBER;
    for (lx->at++; lx->at < lx->n; lx->at++) {
        char c = lx->text[lx->at], before = lx->text[lx->at - 1];
        bool sign =
            (c == '-' || c == '+') && !hex && (before == 'e' || before == 'E');
        if (!sign && !is_digit(c) && !is_letter(c) && c != '.') break;
        if (lx->infix && c == '.' && peek(lx, 1) == '.') break;
    }
    t->text = intern_n(lx->text + start, lx->at - start);
}

/* Reads the sign of the number after it. */
static bool starts_number(const Lexer *lx, char c, char next) {
    if (is_digit(c)) return true;
    if (lx->infix || (c != '-' && c != '+' && c != '.')) return false;
    return is_digit(next) || next == '.' || next == 'i' || next == 'n';
}

static void lex_punct(Lexer *lx, Token *t, char c, char next) {
    static const char pairs[][3] = {
        [LEX_RANGE] = "..",   [LEX_ARROW] = "->", [LEX_EQ] = "==",
        [LEX_NE] = "!=",      [LEX_LE] = "<=",    [LEX_GE] = ">=",
        [LEX_FLOORDIV] = "//"};
    t->kind = T_PUNCT;
    t->ch = c;
    for (int k = 1; lx->infix && k <= LEX_FLOORDIV; k++)
        if (pairs[k][0] == c && pairs[k][1] == next) {
            t->ch = (char)k;
            t->text = intern(pairs[k]);
        }
    lx->at += *t->text ? 2 : 1;
}

static Token nothing_at(int line, int col, size_t at) {
    return (Token){
        .kind = T_EOF, .line = line, .col = col, .at = at, .text = intern("")};
}

Token lex_here(Lexer *lx) {
    for (; lx->counted < lx->at; lx->counted++) {
        char c = lx->text[lx->counted];
        lx->line += c == '\n';
        lx->col = c == '\n' ? 1 : lx->col + (((unsigned char)c & 0xc0) != 0x80);
    }
    return nothing_at(lx->line, lx->col, lx->at);
}

Status lex_next(Lexer *lx) {
    lx->prev_line = lx->tok.line;
    lex_skip(lx, " \t\r\n");
    Token t = lex_here(lx);
    char c = peek(lx, 0), next = peek(lx, 1);
    lx->tok = t;
    if (lx->at == lx->n) return OK;
    if (c == '%' && !lx->infix) {
        t.kind = T_NAME;
        lx->at++;
        if (next == '"')
            TRY(lex_quoted(lx, &t));
        else
            lex_word(lx, &t);
        if (!*t.text) return lex_fail(lx, &t, "a name is missing after %%");
    } else if (c == '"') {
        t.kind = T_STRING;
        TRY(lex_quoted(lx, &t));
    } else if (is_letter(c)) {
        t.kind = T_WORD;
        lex_word(lx, &t);
    } else if (starts_number(lx, c, next)) {
        lex_number(lx, &t);
    } else if (c && strchr(lx->infix ? "(){}[],:=;?!.+-*/%<>@" : "(){}[],:=@!-",
                           c)) {
        lex_punct(lx, &t, c, next);
    } else {
        return lex_fail(lx, &t, "unexpected character");
    }
    lx->tok = t;
    return OK;
}

Status lex_again(Lexer *lx, const Token *from, bool infix) {
    int prev = lx->prev_line;
    lx->at = lx->counted = from->at;
    lx->line = from->line;
    lx->col = from->col;
    lx->infix = infix;
    Status s = lex_next(lx);
    lx->prev_line = prev;
    return s;
}

/* Bytes of a byte-order mark at the beginning. */
static size_t mark_bytes(const Lexer *lx) {
    return lx->n >= 3 && memcmp(lx->text, "\xef\xbb\xbf", 3) == 0 ? 3 : 0;
}

Token lex_token_at(const Lexer *lx, int line, int col) {
    Token t = nothing_at(line, col, mark_bytes(lx));
    for (int l = 1; l < line && t.at < lx->n; t.at++)
        l += lx->text[t.at] == '\n';
    for (int c = 1; t.at < lx->n; t.at++)
        if (((unsigned char)lx->text[t.at] & 0xc0) != 0x80 && c++ == col) break;
    return t;
}

Status lex_start(Lexer *lx, Diag *d, const char *file, const char *text,
                 size_t n) {
    *lx = (Lexer){.diag = d,
                  .file = file ? intern(file) : NULL,
                  .text = text,
                  .n = n,
                  .line = 1,
                  .col = 1};
    if (n > INT32_MAX) return fail(d, lex_loc(lx, &lx->tok), "file too large");
    lx->at = lx->counted = mark_bytes(lx);
    return lex_next(lx);
}

/* ---- what a parser asks for ---------------------------------------------- */

bool lex_is(const Lexer *lx, char ch) {
    return lx->tok.kind == T_PUNCT && lx->tok.ch == ch;
}

bool lex_is_word(const Lexer *lx, const char *word) {
    return lx->tok.kind == T_WORD && strcmp(lx->tok.text, word) == 0;
}

bool lex_is_dtype(const Lexer *lx, DType *out) {
    const char *text = lx->tok.text;
    return lx->tok.kind == T_WORD && dtype_from_text(text, strlen(text), out);
}

char lex_behind(const Lexer *lx) {
    size_t at = lx->at;
    while (at < lx->n && (lx->text[at] == ' ' || lx->text[at] == '\t')) at++;
    return at < lx->n ? lx->text[at] : 0;
}

Status lex_take(Lexer *lx, char ch, bool *taken) {
    *taken = lex_is(lx, ch);
    return *taken ? lex_next(lx) : OK;
}

Status lex_expected(Lexer *lx, const char *what) {
    char buf[80];
    return lex_fail(lx, &lx->tok, "%s expected, found %s", what,
                    lex_describe(&lx->tok, buf));
}

Status lex_expect(Lexer *lx, char ch) {
    char what[4] = {'\'', ch, '\'', 0};
    return lex_is(lx, ch) ? lex_next(lx) : lex_expected(lx, what);
}

Status lex_open(Lexer *lx, char open, char close, bool *more) {
    TRY(lex_expect(lx, open));
    *more = !lex_is(lx, close);
    return *more ? OK : lex_next(lx);
}

Status lex_more(Lexer *lx, char close, bool *more) {
    TRY(lex_take(lx, ',', more));
    return *more ? OK : lex_expect(lx, close);
}

Status lex_expect_word(Lexer *lx, Str *out, const char *what) {
    if (lx->tok.kind != T_WORD && lx->tok.kind != T_STRING)
        return lex_expected(lx, what);
    *out = lx->tok.text;
    return lex_next(lx);
}

Status lex_expect_string(Lexer *lx, Str *out) {
    if (lx->tok.kind != T_STRING) return lex_expected(lx, "a \"string\"");
    *out = lx->tok.text;
    return lex_next(lx);
}

Status lex_expect_dtype(Lexer *lx, DType *out) {
    Token at = lx->tok;
    Str name;
    TRY(lex_expect_word(lx, &name, "a dtype"));
    if (dtype_from_text(name, strlen(name), out)) return OK;
    return lex_fail(lx, &at, "unknown dtype '%.40s'", name);
}

Status lex_expect_int(Lexer *lx, int64_t *out) {
    char *end;
    if (lx->tok.kind != T_NUMBER) return lex_expected(lx, "an integer");
    errno = 0;
    *out = strtoll(lx->tok.text, &end, 10);
    if (*end) return lex_expected(lx, "an integer");
    if (errno) return lex_fail(lx, &lx->tok, "the integer is too large");
    return lex_next(lx);
}

Status lex_expect_double(Lexer *lx, double *out) {
    const char *s = lx->tok.text;
    char *end;
    bool plain = s[strspn(s, "0123456789.eE+-")] == 0;
    bool ok = lx->tok.kind == T_NUMBER ? plain || !strcmp(s, "-inf")
              : lx->tok.kind == T_WORD ? !strcmp(s, "nan") || !strcmp(s, "inf")
                                       : false;
    if (ok) *out = strtod(s, &end);
    if (!ok || *end) return lex_expected(lx, "a number");
    if (isinf(*out) && !strstr(s, "inf"))
        return lex_fail(lx, &lx->tok, "%.40s is beyond every type", s);
    return lex_next(lx);
}

Status lex_import(Lexer *lx, Str *file, size_t *end) {
    TRY(lex_expect(lx, '='));
    if (!lex_is_word(lx, "onnx")) return lex_expected(lx, "onnx(\"FILE\")");
    TRY(lex_next(lx));
    TRY(lex_expect(lx, '('));
    Token at = lx->tok;
    TRY(lex_expect_string(lx, file));
    if (!**file) return lex_fail(lx, &at, "a file's name expected");
    *end = lx->tok.at + 1;
    return lex_expect(lx, ')');
}
