/* SPDX-License-Identifier: Apache-2.0 */
/* format.c: the layout of a text, as `ampc fmt` prints it.

   Line breaks and comments are kept.  A line is indented by two columns per
   block; a line that continues a statement keeps its distance from the first.
   Words of the language are separated by one blank, and so are binary operators
   and `=`, except `=` before the value of an attribute, and inside of brackets,
   types and ranges.  In a line of IR, and in the values of a block `train` or
   `policy`, runs of blanks only become one blank; the keys of a block `train`
   have their `=` in one column.  A comment after code is preceded by two
   blanks. Several empty lines become one.
   Formatting a formatted text changes nothing.  A text with unbalanced brackets
   or an unterminated string has no layout.                                  */
#include "frontend/frontend.h"
#include "ir/lex/lex.h"

#include <ctype.h>
#include <string.h>

typedef enum PieceKind {
    P_WORD, /* letters, digits, _ */
    P_NUMBER,
    P_TEXT, /* "..", and %name */
    P_OPEN,
    P_CLOSE,
    P_MARK, /* operators and other characters */
    P_COMMENT
} PieceKind;

typedef struct Piece {
    PieceKind kind;
    const char *at;
    size_t n;
    bool spaced; /* blanks stood before it */
} Piece;

typedef struct Bracket {
    char kind; /* {, (, [, or t of a type, o of a variable's options */
    const char *at;
} Bracket;

typedef struct Layout {
    Arena *a;
    StrBuf *out;
    VEC(Piece) line;
    VEC(Bracket) open;
    const char *wrong; /* the first position that has no layout, and why */
    const char *why;
    bool raw;        /* inside of a block `train` or `policy` */
    bool train;      /* .. of a train block */
    bool goes_on;    /* the statement goes on in the next line */
    bool header;     /* in the header of a definition, up to its block */
    int first, last; /* column of its first line: old and new */
    size_t key;      /* of a train block: length of its longest key */
    bool blank;      /* an empty line must be printed first */
} Layout;

/* ---- pieces -------------------------------------------------------------- */

static bool is_name(char c) { return isalnum((unsigned char)c) || c == '_'; }

/* The piece at s. */
static Piece take_piece(const char *s, const char *end) {
    static const char *const pairs[] = {
        "..", "->", "==", "!=", "<=", ">=", "//"};
    Piece p = {P_MARK, s, 1, false};
    bool digit = isdigit((unsigned char)*s) != 0;
    if (*s == '#') {
        p.kind = P_COMMENT;
        p.n = (size_t)(end - s);
        while (p.n && isspace((unsigned char)s[p.n - 1])) p.n--;
    } else if (*s == '"' ||
               (*s == '%' && end - s > 1 &&
                (is_name(s[1]) || (s[1] && strchr("\"/:-.", s[1]))))) {
        const char *q = s + (*s == '%');
        p.kind = P_TEXT;
        if (*q == '"') {
            for (q++; q < end && *q != '"'; q++) q += *q == '\\' && q + 1 < end;
            q += q < end;
        } else {
            while (q < end && (is_name(*q) || (*q && strchr(".-/:", *q)))) q++;
        }
        p.n = (size_t)(q - s);
    } else if (digit || is_name(*s)) {
        p.kind = digit ? P_NUMBER : P_WORD;
        for (; s + p.n < end; p.n++) {
            char c = s[p.n], before = s[p.n - 1];
            bool range = c == '.' && s + p.n + 1 < end && s[p.n + 1] == '.';
            bool sign =
                (c == '-' || c == '+') && (before == 'e' || before == 'E');
            if (!is_name(c) && !(digit && ((c == '.' && !range) || sign)))
                break;
        }
    } else if (*s && strchr("([{", *s)) {
        p.kind = P_OPEN;
    } else if (*s && strchr(")]}", *s)) {
        p.kind = P_CLOSE;
    } else {
        for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++)
            if (end - s > 1 && !memcmp(s, pairs[i], 2)) p.n = 2;
    }
    return p;
}

static void no_layout(Layout *l, const char *at, const char *why) {
    if (!l->wrong) l->wrong = at, l->why = why;
}

/* A string or a quoted name that is not closed on its line. */
static bool is_cut(const Piece *p) {
    size_t from = *p->at == '%', i = from + 1;
    if (p->kind != P_TEXT || p->at[from] != '"') return false;
    while (i < p->n && p->at[i] != '"') i += p->at[i] == '\\' ? 2 : 1;
    return i >= p->n;
}

static bool is(const Piece *p, const char *text) {
    return p && p->n == strlen(text) && !memcmp(p->at, text, p->n);
}

static bool is_any(const Piece *p, const char *const *words, size_t n) {
    for (size_t i = 0; i < n; i++)
        if (is(p, words[i])) return true;
    return false;
}

/* True if the piece may be part of a name in IR; next: the piece after it in
   the name, or NULL. */
static bool is_of_name(const Piece *p, const Piece *next) {
    static const char *const marks[] = {".", "..", "-", "/", "//"};
    bool count = is(p, ":") && next && next->kind == P_NUMBER && !next->spaced;
    return p->kind == P_WORD || p->kind == P_NUMBER || count ||
           is_any(p, marks, sizeof marks / sizeof *marks);
}

/* Without the blank between them they would be other pieces, as `= =` is. */
static bool would_join(Layout *l, const Piece *p, const Piece *q) {
    if (!q->spaced) return false;
    char *both = arena_alloc(l->a, p->n + q->n);
    memcpy(both, p->at, p->n);
    memcpy(both + p->n, q->at, q->n);
    return take_piece(both, both + p->n + q->n).n != p->n;
}

/* No blank precedes the piece, now or after formatting. */
static bool is_tight(Layout *l, const Piece *p) {
    static const char *const dots[] = {".", ".."};
    return !p->spaced || ((is_any(p - 1, dots, 2) || is_any(p, dots, 2)) &&
                          !would_join(l, p - 1, p));
}

/* An output's name may contain characters that are operators elsewhere: `a-b
   = x` is not a difference. Joins the pieces before number `end` that form a
   name. */
static void join_name(Layout *l, int end) {
    Piece *line = l->line.data, *stop = line + end, *first = stop;
    while (first > line && (first == stop || is_tight(l, first)) &&
           is_of_name(first - 1, first == stop ? NULL : first))
        first--;
    while (first < stop && first->kind != P_WORD) first++;
    if (stop - first < 2) return;
    char *name =
        arena_alloc(l->a, (size_t)(stop[-1].at - first->at) + stop[-1].n);
    size_t n = 0;
    for (const Piece *p = first; p < stop; n += p++->n)
        memcpy(name + n, p->at, p->n);
    first->at = name;
    first->n = n;
    memmove(first + 1, stop,
            (size_t)(line + l->line.len - stop) * sizeof *stop);
    l->line.len -= (int)(stop - first - 1);
}

/* True if the next word in the following lines is `=`. */
static bool gives_next(const char *s, const char *end) {
    while (s < end && (isspace((unsigned char)*s) || *s == '#')) {
        const char *stop = memchr(s, '\n', (size_t)(end - s));
        s = *s != '#' ? s + 1 : stop ? stop : end;
    }
    return s < end && *s == '=' && take_piece(s, end).n == 1;
}

/* text_end: the end of all lines. */
static void split_line(Layout *l, const char *s, const char *end,
                       const char *text_end) {
    bool spaced = false;
    l->line.len = 0;
    while (s < end) {
        if (*s == ' ' || *s == '\t' || *s == '\r') {
            spaced = true;
            s++;
            continue;
        }
        Piece p = take_piece(s, end);
        p.spaced = spaced;
        spaced = false;
        s += p.n;
        if (is_cut(&p)) no_layout(l, p.at, "has no end");
        vec_push(l->a, &l->line, p);
        if (is(&p, "=")) join_name(l, l->line.len - 1);
    }
    int n = l->line.len;
    if (n && l->line.data[n - 1].kind == P_COMMENT) n--;
    if (n && gives_next(end, text_end)) join_name(l, n);
}

/* True for a word of the language that is not a name. */
static bool format_is_keyword(const Piece *p) {
    static const char *const words[] = {"if",     "else",    "for",   "in",
                                        "and",    "or",      "not",   "return",
                                        "param",  "require", "write", "scope",
                                        "frozen", "buffer",  "state"};
    return p && p->kind == P_WORD &&
           is_any(p, words, sizeof words / sizeof *words);
}

/* True if the piece ends a value: an operator after it is binary. */
static bool ends_value(const Piece *p) {
    return p && (p->kind == P_NUMBER || p->kind == P_TEXT ||
                 (p->kind == P_WORD && !format_is_keyword(p)) ||
                 (p->kind == P_CLOSE && *p->at != '}'));
}

static bool is_operator(const Piece *p) {
    static const char *const marks[] = {"+",  "-",  "*", "/", "//", "%", "@",
                                        "==", "!=", "<", ">", "<=", ">="};
    return p && p->kind == P_MARK &&
           is_any(p, marks, sizeof marks / sizeof *marks);
}

/* ---- one line ------------------------------------------------------------ */

/* True for a line of IR, whose names contain characters that are operators
   elsewhere. */
static bool is_ir(const Layout *l) {
    static const char *const words[] = {"graph", "module", "const", "group"};
    if (is_any(l->line.data, words, sizeof words / sizeof *words)) return true;
    for (int i = 0; i < l->line.len; i++)
        if (*l->line.data[i].at == '%' && l->line.data[i].n > 1) return true;
    return false;
}

/* In a definition's header: `from LO to HI` or `below HI`. */
static bool before_bound(const Layout *l, const Piece *p) {
    return l->header && (is(p, "from") || is(p, "to") || is(p, "below"));
}

static char around(const Layout *l) {
    return l->open.len ? l->open.data[l->open.len - 1].kind : '{';
}

/* True if a blank separates p from the next piece q; `before` precedes p. */
static bool is_spaced(const Layout *l, const Piece *before, const Piece *p,
                      const Piece *q) {
    char in = around(l), c = *q->at;
    if (q->kind == P_COMMENT) return true;
    if (is(p, "(") || is(p, "[") || is(q, ")") || is(q, "]")) return false;
    if (is(p, ",")) return in != 't';
    if (is(q, ",") || is(q, ";") || is(q, ":") || is(q, "?")) return false;
    if (is(q, "{")) return true;
    if (is(p, "..") || is(q, "..") || is(p, ".") || is(q, ".")) return false;
    if (is(p, ":")) return !before || before->kind != P_NUMBER;
    if (is(p, "{") || is(q, "}")) return in != 'o';
    if (is(p, "=") || is(q, "=")) return in == '{' || l->header;
    if (is_operator(p) && (!ends_value(before) || before_bound(l, before)))
        return false; /* unary */
    if (c == '(' && is(p, "grad") && (!before || is(before, "}"))) return true;
    if (c == '(' || c == '[') return !ends_value(p);
    return true;
}

/* blank: a blank was printed before it. */
static void open_bracket(Layout *l, const Piece *p, const Piece *before,
                         bool blank, bool variable) {
    char c = *p->at;
    bool type = before && before->kind == P_WORD && before->n <= 4 && !blank &&
                strchr("fibu", *before->at) &&
                (isdigit((unsigned char)before->at[before->n - 1]) ||
                 is(before, "bool"));
    if (c == '[' && type) c = 't';
    if (c == '{' && variable) c = 'o';
    vec_push(l->a, &l->open, ((Bracket){c, p->at}));
}

static void close_bracket(Layout *l, const Piece *p) {
    static const char pairs[] = "()[]{}";
    const char *open = l->open.len ? l->open.data[l->open.len - 1].at : NULL;
    if (open && strchr(pairs, *p->at) == strchr(pairs, *open) + 1)
        l->open.len--;
    else
        no_layout(l, p->at,
                  open ? "closes another bracket" : "closes no bracket");
}

/* Prints the pieces from number `from` on. */
static void format_put_words(Layout *l, int from, bool as_is) {
    static const char *const kinds[] = {"param", "frozen", "buffer", "state"};
    const Piece *before = NULL, *p = NULL;
    bool variable = false;
    l->header |= is(l->line.data, "def");
    for (int i = from; i < l->line.len; i++) {
        const Piece *q = &l->line.data[i];
        variable |= is_any(q, kinds, sizeof kinds / sizeof *kinds) &&
                    (!p || is(p, "{")) && i + 1 < l->line.len &&
                    q[1].kind == P_WORD;
        bool blank = p && ((as_is ? q->spaced : is_spaced(l, before, p, q)) ||
                           would_join(l, p, q));
        if (q->kind == P_COMMENT && p)
            sb_puts(l->out, "  ");
        else if (blank)
            sb_puts(l->out, " ");
        sb_putn(l->out, q->at, q->n);
        if (q->kind == P_OPEN) open_bracket(l, q, p, blank, variable && !as_is);
        if (q->kind == P_CLOSE) close_bracket(l, q);
        if (is(q, "{") || (is(q, "=") && !l->open.len)) l->header = false;
        before = p;
        p = q;
    }
}

/* "key   = value" of a train block. */
static bool format_put_entry(Layout *l) {
    const Piece *key = l->line.data;
    if (!l->train || l->line.len < 3 || key->kind != P_WORD ||
        !is(key + 1, "="))
        return false;
    for (int i = 0; i < l->line.len; i++)
        if (is(&key[i], ";") || is(&key[i], "}")) return false;
    sb_putn(l->out, key->at, key->n);
    for (size_t n = key->n; n < l->key; n++) sb_puts(l->out, " ");
    sb_puts(l->out, " = ");
    format_put_words(l, 2, true);
    return true;
}

/* ---- lines --------------------------------------------------------------- */

/* The widest key of the train block whose lines begin at s. */
static size_t widest_key(const char *s, const char *end) {
    size_t most = 0;
    while (s < end && *s != '}') {
        const char *stop = memchr(s, '\n', (size_t)(end - s));
        size_t n = 0;
        while (s < end && (*s == ' ' || *s == '\t')) s++;
        if (s < end && *s == '}') break;
        while (s + n < end && is_name(s[n])) n++;
        if (n > most) most = n;
        s = stop ? stop + 1 : end;
    }
    return most;
}

static void indent(Layout *l, int column) {
    int own = 0;
    for (int i = 0; i < l->open.len; i++)
        if (l->open.data[i].kind == '{') own += 2;
    if (l->line.data->kind == P_CLOSE && own && !l->goes_on) own -= 2;
    if (l->goes_on && l->line.data->kind != P_CLOSE) {
        int more = column - l->first;
        own = l->last + (more < 2 ? 2 : more);
    } else {
        l->first = column;
        l->last = own;
    }
    for (int i = 0; i < own; i++) sb_puts(l->out, " ");
}

static bool goes_on(const Layout *l) {
    int n = l->line.len;
    while (n && l->line.data[n - 1].kind == P_COMMENT) n--;
    const Piece *p = n ? &l->line.data[n - 1] : NULL;
    return p && (l->header || around(l) != '{' || is(p, ",") || is(p, "=") ||
                 is_operator(p) || is(p, "and") || is(p, "or"));
}

static void format_put_line(Layout *l, const char *s, const char *end,
                            const char *rest, const char *text_end) {
    split_line(l, s, end, text_end);
    if (!l->line.len) {
        l->blank = l->out->len > 0;
        return;
    }
    if (l->blank) sb_puts(l->out, "\n");
    l->blank = false;
    const Piece *first = l->line.data;
    bool alone = first->kind == P_COMMENT;
    bool starts = !l->open.len && (is(first, "train") || is(first, "policy"));
    int column = 0;
    while (s + column < end && (s[column] == ' ' || s[column] == '\t'))
        column++;
    indent(l, column);
    if (starts) {
        l->raw = true;
        l->train = is(first, "train");
        l->key = l->train ? widest_key(rest, text_end) : 0;
    }
    if (!l->raw || starts || !format_put_entry(l))
        format_put_words(l, 0, l->raw ? !starts : is_ir(l));
    if (!l->open.len) l->raw = false;
    if (!alone) l->goes_on = !l->raw && goes_on(l);
    sb_puts(l->out, "\n");
}

static Status format_fail_at(Diag *d, const char *file, const char *text,
                             size_t n, const char *at, const char *why) {
    Lexer lx = {.diag = d, .file = intern(file), .text = text, .n = n};
    Token t = {.line = 1, .col = 1, .at = (size_t)(at - text)};
    for (const char *s = text; s < at; s++) {
        t.line += *s == '\n';
        t.col = *s == '\n' ? 1 : t.col + (((unsigned char)*s & 0xc0) != 0x80);
    }
    return lex_fail(&lx, &t, "'%c' %s", *at, why);
}

Status amp_format(Diag *d, const char *file, const char *text, size_t n,
                  StrBuf *out) {
    Layout l = {.a = arena_new(), .out = out};
    const char *end = text + n;
    for (const char *s = text; s < end && !l.wrong;) {
        const char *stop = memchr(s, '\n', (size_t)(end - s));
        if (!stop) stop = end;
        const char *next = stop < end ? stop + 1 : end;
        format_put_line(&l, s, stop, next, end);
        s = next;
    }
    if (l.open.len && !l.wrong)
        no_layout(&l, l.open.data[l.open.len - 1].at, "is not closed");
    Status s = l.wrong ? format_fail_at(d, file, text, n, l.wrong, l.why) : OK;
    arena_free(l.a);
    return s;
}
