/* SPDX-License-Identifier: Apache-2.0 */
/* csv.c: numbers in text, .csv or .tsv: a line per sample, columns separated by
   commas, semicolons, tabs or blanks, as in the first line; a first line may
   name the columns.  FILE.csv:COLUMNS takes some of them: names, numbers from 0
   and ranges of these (FILE.csv:age,3,10-20,height-width).  One column that is
   chosen by its name may hold words: names of classes, for labels, or of
   pictures.

   The text is read once, in parts; its numbers are written to a copy. */
#include <ctype.h>
#include <errno.h>
#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "frontend/data/array.h"
#include "ir/base/near.h"

enum { PART = 1 << 16, FIELD_MAX = 256, COLUMNS_MAX = 1 << 20 };

/* What a chosen column holds; its first field decides. */
typedef enum CsvKind { CSV_OPEN, CSV_NUMBERS, CSV_WORDS } CsvKind;

typedef struct Csv {
    Source *s;
    const ArrayPick *pick;
    Arena *a;
    char separator;
    VEC(char *) first; /* fields of the first line */
    int *columns;      /* for each element of a sample, its column */
    int ncolumn;
    bool *wanted;    /* by column */
    bool only_first; /* only the first line is requested */
    bool only_words; /* numbers are not requested */
    bool by_name;    /* one column is chosen, by its name */
    CsvKind kind;
    VEC(const char *) words; /* of that column */
    int64_t line, rows;
    double *row; /* values of one line, all columns; or int64_t */
    int nfield;  /* fields of the current line so far */
    int fd;
    uint64_t written;
    char out[PART];
    size_t nout;
    /* the reader */
    unsigned char in[PART];
    size_t at, got;
    uint64_t offset;
    bool ended;
} Csv;

/* ---- characters ---------------------------------------------------------- */

/* Returns the next byte; -1 at the end. */
static Status next(Csv *c, int *byte) {
    if (c->at == c->got && !c->ended) {
        TRY(source_take(c->s, c->in, PART, c->offset, &c->got));
        c->offset += c->got;
        c->at = 0;
        c->ended = c->got == 0;
    }
    *byte = c->at < c->got ? c->in[c->at++] : -1;
    return OK;
}

static Status field_bad(const Csv *c, const char *text, const char *why) {
    StrBuf quoted = {0};
    sb_put_escaped(&quoted, text);
    source_bad(c->s, "line %lld, column %d: '%s' %s", (long long)c->line,
               c->nfield, quoted.data, why);
    sb_free(&quoted);
    return ERR_USER;
}

/* Reads a field, without the quotes around it and surrounding blanks; two
   quotes inside of quotes are one. *end: the character that ended it. */
static Status take_field(Csv *c, int byte, char text[FIELD_MAX], int *end) {
    size_t n = 0;
    bool quoted = false;
    while (byte == ' ' && c->separator != ' ') TRY(next(c, &byte));
    for (;;) {
        if (byte == '"' && (quoted || n == 0)) {
            TRY(next(c, &byte));
            if (!quoted || byte != '"') {
                quoted = !quoted;
                continue;
            }
        }
        if (byte < 0 || byte == '\n') break;
        if (byte == c->separator && !quoted) break;
        text[n] = 0;
        if (n + 1 == FIELD_MAX) return field_bad(c, text, "is too long");
        if (!byte)
            return field_bad(c, text,
                             "ends in a byte 0, as characters of UTF-16 do: "
                             "iconv -f UTF-16 -t UTF-8 makes a text that is "
                             "read");
        text[n++] = (char)byte;
        TRY(next(c, &byte));
    }
    while (n && (text[n - 1] == ' ' || text[n - 1] == '\r')) n--;
    text[n] = 0;
    *end = byte;
    return OK;
}

/* ---- numbers ------------------------------------------------------------- */

/* True for text that stands for a missing number, not for a name. */
static bool csv_is_missing(const char *text) {
    static const char *const words[] = {"NA",   "N/A",  "#N/A", "n/a", "null",
                                        "NULL", "None", "?",    "-"};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if (!strcmp(text, words[i])) return true;
    return false;
}

static Status not_number(const Csv *c, const char *text, int column) {
    StrBuf why = {0};
    sb_puts(&why, "is not a number");
    bool word = isalpha((unsigned char)*text) && !csv_is_missing(text);
    if (word && c->pick->labels && !c->by_name)
        sb_puts(&why, "; classes in words are one column, chosen by its name: "
                      "FILE.csv:NAME");
    else if (word) {
        sb_puts(&why, "; for classes in words: python3 -c \"import pandas; d = "
                      "pandas.read_csv('");
        sb_put_escaped(&why, c->s->path);
        sb_printf(&why,
                  "'); d[d.columns[%d]] = d[d.columns[%d]]"
                  ".astype('category').cat.codes; d.to_csv('",
                  column, column);
        sb_put_escaped(&why, c->s->path);
        sb_puts(&why, ".csv', index=False)\"");
    }
    Status st = field_bad(c, text, why.data);
    sb_free(&why);
    return st;
}

static bool is_csv_number(const char *text, double *x) {
    char *end;
    *x = strtod(text, &end);
    return end != text && !*end;
}

static Status take_csv_number(Csv *c, const char *text, int column) {
    char *end;
    double x;
    if (c->pick->integers) {
        errno = 0;
        long long n = strtoll(text, &end, 10);
        if (errno && !*end) return field_bad(c, text, "is beyond 64 bits");
        if (end == text || *end)
            return *text && is_csv_number(text, &x)
                       ? field_bad(c, text,
                                   "is not a whole number, which this input "
                                   "needs")
                       : not_number(c, text, column);
        ((int64_t *)c->row)[column] = n;
        return OK;
    }
    double *to = &c->row[column];
    errno = 0;
    if (!is_csv_number(text, to)) return not_number(c, text, column);
    if (errno && isinf(*to)) return field_bad(c, text, "is beyond every type");
    return OK;
}

static Status put_csv_value(Csv *c, const void *value) {
    if (c->nout == PART) {
        if (!source_put(c->fd, c->out, c->nout, c->written))
            return source_copy_failed(c->s);
        c->written += c->nout;
        c->nout = 0;
    }
    memcpy(c->out + c->nout, value, 8);
    c->nout += 8;
    return OK;
}

static Status put_csv_row(Csv *c) {
    c->rows++;
    for (int i = 0; i < c->ncolumn && c->kind != CSV_WORDS; i++)
        TRY(put_csv_value(c, &c->row[c->columns[i]]));
    return OK;
}

/* ---- words --------------------------------------------------------------- */

static Status take_csv_word(Csv *c, const char *text) {
    double x;
    if (!*text || csv_is_missing(text))
        return field_bad(c, text,
                         "stands for nothing; the lines before have "
                         "words");
    if (c->pick->labels && is_csv_number(text, &x))
        return field_bad(c, text, "is a number; the lines before have words");
    if (c->pick->known && classes_find(c->pick->known, text) < 0) {
        StrBuf why = {0};
        classes_unknown(c->pick->known, &why);
        field_bad(c, text, why.data);
        sb_free(&why);
        return ERR_USER;
    }
    vec_push(c->a, &c->words, arena_printf(c->a, "%s", text));
    return OK;
}

/* The numbers of the classes that the words name. */
static Status put_classes_of_words(Csv *c, ArrayHead *h) {
    const Classes *known = c->pick->known;
    Classes made;
    if (!classes_make(&made,
                      known ? (const char *const *)known->name : c->words.data,
                      known ? known->n : c->words.len))
        return source_bad(c->s, "out of memory");
    Status st = OK;
    for (int i = 0; i < c->words.len && st == OK; i++) {
        int64_t class = classes_find(&made, c->words.data[i]);
        st = put_csv_value(c, &class);
    }
    h->classes = made;
    return st;
}

/* ---- columns ------------------------------------------------------------- */

static bool take_range(const char *item, int n, int *lo, int *hi) {
    char *end;
    long a = strtol(item, &end, 10), b = a;
    if (end == item || a < 0) return false;
    if (*end == '-') {
        char *from = end + 1;
        b = strtol(from, &end, 10);
        if (end == from) return false;
    }
    if (*end || b < a || b >= n) return false;
    *lo = (int)a;
    *hi = (int)b;
    return true;
}

/* The column of that name; -1: none. A number selects a column by position,
   even if the first line has such a name. */
static int named_column(const Csv *c, const char *name, size_t n) {
    double x;
    for (int i = 0; i < c->first.len; i++) {
        const char *has = c->first.data[i];
        if (!strncmp(has, name, n) && !has[n] && !is_csv_number(has, &x))
            return i;
    }
    return -1;
}

/* FIRST-LAST; names may have a "-", too. */
static bool take_named_range(const Csv *c, const char *item, int *lo, int *hi) {
    for (const char *p = strchr(item, '-'); p; p = strchr(p + 1, '-')) {
        *lo = named_column(c, item, (size_t)(p - item));
        *hi = named_column(c, p + 1, strlen(p + 1));
        if (*lo >= 0 && *hi >= *lo) return true;
    }
    return false;
}

static Status no_column(const Csv *c, const char *item) {
    StrBuf names = {0};
    for (int i = 0; i < c->first.len && sb_put_next(&names, i); i++) {
        sb_puts(&names, "'");
        sb_put_escaped(&names, c->first.data[i]);
        sb_puts(&names, "'");
    }
    sb_put_more(&names, c->first.len);
    char text[NEAR_TEXT];
    Near near = near_to(item);
    for (int i = 0; i < c->first.len; i++) near_offer(&near, c->first.data[i]);
    source_bad(c->s, "no column '%s'; the first line has %d: %s%s", item,
               c->first.len, names.data, near_text(&near, text));
    sb_free(&names);
    return ERR_USER;
}

static void add_column(Csv *c, int column) {
    c->columns[c->ncolumn++] = column;
    c->wanted[column] = true;
}

static Status choose_item(Csv *c, const char *item) {
    int lo = named_column(c, item, strlen(item)), hi = lo;
    if (lo < 0 && !take_range(item, c->first.len, &lo, &hi) &&
        !take_named_range(c, item, &lo, &hi))
        return no_column(c, item);
    for (int i = lo; i <= hi; i++) {
        if (c->wanted[i])
            return source_bad(c->s, "column %d is chosen twice", i);
        add_column(c, i);
    }
    return OK;
}

/* Each column is taken at most once, so that the list has room for all. */
static Status choose_columns(Csv *c) {
    int n = c->first.len;
    c->columns = NEW_ARRAY(c->a, int, n + 1);
    c->wanted = NEW_ARRAY(c->a, bool, n + 1);
    c->row = NEW_ARRAY(c->a, double, n + 1);
    const char *p = c->pick->part;
    for (int i = 0; !p && i < n; i++) add_column(c, i);
    c->by_name = p && named_column(c, p, strlen(p)) >= 0;
    while (p) {
        size_t k = strcspn(p, ",");
        TRY(choose_item(c, arena_printf(c->a, "%.*s", (int)k, p)));
        p = p[k] ? p + k + 1 : NULL;
    }
    return OK;
}

/* ---- lines --------------------------------------------------------------- */

/* The separator is the candidate that occurs most often in the first line. */
static char separator_in(const unsigned char *p, size_t n) {
    static const char all[] = ",;\t";
    size_t best = 0;
    char found = ' ';
    for (const char *s = all; *s; s++) {
        size_t count = 0;
        for (size_t i = 0; i < n && p[i] != '\n'; i++) count += p[i] == *s;
        if (count > best) {
            best = count;
            found = *s;
        }
    }
    return found;
}

/* True for text that is no number, though its first letter or digit is a
   digit: 2.5.1, 1x1, $1, a minus of typography. */
static bool is_mistyped(const char *text) {
    const char *p = text;
    while (*p && !isalnum((unsigned char)*p) && *p != '_') p++;
    return isdigit((unsigned char)*p) && !is_csv_number(text, &(double){0});
}

/* What a column holds whose first field is this text: names of pictures may
   begin with digits. */
static CsvKind column_kind(const Csv *c, const char *text) {
    bool number = is_csv_number(text, &(double){0}) || csv_is_missing(text);
    bool word = c->only_words || (c->pick->labels && !is_mistyped(text));
    return c->by_name && *text && !number && word ? CSV_WORDS : CSV_NUMBERS;
}

static Status take_csv_value(Csv *c, const char *text, int column) {
    if (c->kind == CSV_OPEN) c->kind = column_kind(c, text);
    if (c->kind == CSV_WORDS) return take_csv_word(c, text);
    return c->only_words ? OK : take_csv_number(c, text, column);
}

/* 0, 1, 2 ..: numbers of columns, which pandas writes where they have no
   names. */
static void warn_counters(const Csv *c) {
    char *end;
    for (int i = 0; i < c->first.len; i++)
        if (strtol(c->first.data[i], &end, 10) != i || *end ||
            end == c->first.data[i])
            return;
    if (c->first.len > 2)
        warn(c->s->d, (Loc){.file = intern(c->s->path)},
             "line 1, which counts 0, 1, .. %d, is read as a sample; if it "
             "names the columns, as pandas writes it, remove it "
             "(to_csv(.., header=False))",
             c->first.len - 1);
}

/* Reads the first line. It holds names if a chosen field is not a number.
   But if other fields are numbers and no field is a word, that field is an
   error. */
static Status first_line(Csv *c) {
    double x;
    bool names = false, numbers = false, words = false;
    TRY(choose_columns(c));
    for (int i = 0; i < c->first.len; i++) {
        const char *text = c->first.data[i];
        bool number = is_csv_number(text, &x);
        numbers |= number;
        words |=
            *text && !number && !is_mistyped(text) && !csv_is_missing(text);
        names |= *text && !number && c->wanted[i];
    }
    if (names && (words || !numbers)) return OK;
    warn_counters(c);
    for (int i = 0; i < c->first.len; i++) {
        c->nfield = i + 1;
        if (c->wanted[i]) TRY(take_csv_number(c, c->first.data[i], i));
    }
    return put_csv_row(c);
}

static Status take_line(Csv *c, int byte) {
    char text[FIELD_MAX];
    int end = c->separator;
    bool blanks = c->separator == ' ';
    c->nfield = 0;
    while (end == c->separator) {
        while (blanks && byte == ' ') TRY(next(c, &byte));
        if (blanks && (byte == '\n' || byte < 0) && c->nfield) break;
        c->nfield++;
        TRY(take_field(c, byte, text, &end));
        if (!c->row) {
            if (c->nfield > COLUMNS_MAX)
                return source_bad(c->s, "a line has more than %d columns",
                                  COLUMNS_MAX);
            vec_push(c->a, &c->first, arena_printf(c->a, "%s", text));
        } else if (c->nfield <= c->first.len && c->wanted[c->nfield - 1]) {
            TRY(take_csv_value(c, text, c->nfield - 1));
        }
        if (end == c->separator) TRY(next(c, &byte));
    }
    if (!c->row) return c->only_first ? OK : first_line(c);
    if (c->nfield != c->first.len)
        return source_bad(c->s, "line %lld has %d columns; the first has %d",
                          (long long)c->line, c->nfield, c->first.len);
    return c->only_words ? OK : put_csv_row(c);
}

/* Reads all lines; skips empty lines and those that begin with '#'. */
static Status take_lines(Csv *c) {
    for (;;) {
        int byte;
        TRY(next(c, &byte));
        if (byte < 0) return OK;
        c->line++;
        while (byte == '\r') TRY(next(c, &byte));
        if (byte == '#' || byte == '\n')
            while (byte >= 0 && byte != '\n') TRY(next(c, &byte));
        else if (byte >= 0)
            TRY(take_line(c, byte));
        if (c->only_first && c->first.len) return OK;
        if (c->only_words && c->kind == CSV_NUMBERS) return OK;
    }
}

static void csv_begin(Csv *c, const ArrayHead *h) {
    memcpy(c->in, h->head,
           c->got = h->head_bytes < PART ? h->head_bytes : PART);
    c->offset = c->got;
    c->ended = c->got == 0;
    if (c->got >= 3 && !memcmp(c->in, "\xef\xbb\xbf", 3))
        c->at = 3; /* the UTF-8 mark that Excel writes */
    c->separator = separator_in(c->in, c->got);
}

static Status read_all(Csv *c, ArrayHead *h) {
    csv_begin(c, h);
    c->fd = source_copy();
    if (c->fd < 0) return source_copy_failed(c->s);
    TRY(take_lines(c));
    bool words = c->kind == CSV_WORDS;
    if (words) TRY(put_classes_of_words(c, h));
    if (!source_put(c->fd, c->out, c->nout, c->written))
        return source_copy_failed(c->s);
    h->dtype = c->pick->integers || words ? AMPC_DTYPE_I64 : AMPC_DTYPE_F64;
    h->rank = c->ncolumn == 1 ? 1 : 2;
    h->dim[0] = c->rows;
    h->dim[1] = c->ncolumn;
    h->found = h->text = true;
    h->copy = c->fd;
    return OK;
}

static Status csv_find(Source *s, const ArrayPick *pick, ArrayHead *h) {
    Arena *a = arena_new();
    Csv *c = NEW(a, Csv);
    c->s = s;
    c->pick = pick;
    c->a = a;
    c->fd = -1;
    Status st = read_all(c, h);
    if (st != OK && c->fd >= 0) close(c->fd);
    arena_free(a);
    return st;
}

static Status csv_words_of(Csv *c, bool *found) {
    unsigned char *head = arena_alloc(c->a, ARRAY_HEAD);
    ArrayHead h = {.head = head};
    TRY(source_open(c->s));
    TRY(source_begin(c->s, head, ARRAY_HEAD, &h.head_bytes));
    csv_begin(c, &h);
    TRY(take_lines(c));
    *found = c->kind == CSV_WORDS;
    return OK;
}

Status csv_words(Diag *d, const char *path, const char *column, CsvWords *to,
                 bool *found) {
    Source s = {.d = d, .path = path, .fd = -1};
    ArrayPick pick = {.part = column, .input = ""};
    Csv *c = NEW(to->a, Csv);
    *c =
        (Csv){.s = &s, .pick = &pick, .a = to->a, .fd = -1, .only_words = true};
    *found = false;
    Status st = csv_words_of(c, found);
    for (int i = 0; i < c->words.len; i++)
        vec_push(to->a, &to->at, c->words.data[i]);
    source_close(&s);
    return st;
}

/* The columns by number, with the names of the first line if it has any. */
static Status parts(Source *s, const ArrayHead *h, ArrayParts *to) {
    static const ArrayPick all = {.part = NULL};
    Csv *c = NEW(to->arena, Csv);
    *c = (Csv){
        .s = s, .pick = &all, .a = to->arena, .fd = -1, .only_first = true};
    double x;
    bool names = false;
    csv_begin(c, h);
    TRY(take_lines(c));
    to->columns = true;
    for (int i = 0; i < c->first.len; i++)
        names |= !is_csv_number(c->first.data[i], &x);
    for (int i = 0; i < c->first.len; i++)
        vec_push(to->arena, &to->list,
                 (ArrayPart){arena_printf(to->arena, "%d", i),
                             names ? c->first.data[i] : NULL});
    return OK;
}

const ArrayFormat csv_format = {
    .name = ".csv", .end = ".csv", .find = csv_find, .parts = parts};
const ArrayFormat tsv_format = {
    .name = ".tsv", .end = ".tsv", .find = csv_find, .parts = parts};
