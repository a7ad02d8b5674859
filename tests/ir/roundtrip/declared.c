/* SPDX-License-Identifier: Apache-2.0 */
/* declared.c: the type that a text declares for a result is that of the op.

   Every text of tests/golden is read again with one declared type changed: a
   dimension, the number of dimensions, the number of types. Ops that take
   their shape from the declaration do not read operands.                    */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ir/ir.h"
#include "ir/text/text.h"
#include "tests/harness.h"
#include "tests/ir/roundtrip/roundtrip.h"

typedef struct Count {
    int texts, changes, taken;
} Count;

static bool is_taken(const char *text, size_t n) {
    Arena *a = arena_new();
    Diag d = {0};
    Module *m;
    bool ok = parse_module(a, &d, "t", text, n, &m) == OK &&
              verify_module(m, STAGE_TYPED, &d) == OK;
    sb_free(&d.text);
    arena_free(a);
    return ok;
}

/* The text with `n` bytes at `at` replaced. */
static void check_changed(Count *c, const char *name, const char *text,
                          size_t size, size_t at, size_t n, const char *by) {
    StrBuf sb = {0};
    sb_putn(&sb, text, at);
    sb_puts(&sb, by);
    sb_putn(&sb, text + at + n, size - at - n);
    const char *line = text + at, *end = strchr(line, '\n');
    while (line > text && line[-1] != '\n') line--;
    c->changes++;
    if (is_taken(sb.data, sb.len))
        c->taken +=
            !CHECK_MSG(false, "%s: %.*s: taken with '%s' for '%.*s'", name,
                       (int)(end - line), line, by, (int)n, text + at);
    sb_free(&sb);
}

/* One line "  %a, %b = op %x .. : TYPE, TYPE @.. !..". */
static void check_line(Count *c, const char *name, const char *text,
                       size_t size, const char *line, const char *end) {
    const char *is = memmem(line, (size_t)(end - line), " = ", 3), *types = end;
    const char *op = is ? is + 3 : NULL, *in;
    if (!is || *line != ' ' || line[strspn(line, " ")] != '%') return;
    in = op + strcspn(op, " \n");
    if (in[0] != ' ' || in[1] != '%' || !strncmp(op, "rand_", 5)) return;
    while (types > is && memcmp(types, " : ", 3) != 0) types--;
    if (types == is) return;
    for (const char *p = types + 3; p < end && *p != '@' && *p != '!'; p++) {
        const char *close = *p == '[' ? strchr(p, ']') : NULL;
        if (!close) continue;
        size_t at = (size_t)(p + 1 - text);
        check_changed(c, name, text, size, at, 0, close > p + 1 ? "3," : "3");
        if (close > p + 1) /* another first dimension */
            check_changed(c, name, text, size, at, 0, "1");
        if (close[1] == ',')
            check_changed(c, name, text, size, (size_t)(close + 1 - text),
                          strcspn(close + 1, "]") + 1, "");
        p = close;
    }
}

static void check_text(Count *c, const char *name, const char *text,
                       size_t size) {
    if (!is_taken(text, size)) return; /* the golden test tries it */
    c->texts++;
    for (const char *line = text, *end; (end = strchr(line, '\n'));
         line = end + 1)
        check_line(c, name, text, size, line, end);
}

static void check_file(const char *path, const char *name, void *arg) {
    static const char expect[] = "# ---- expect\n";
    size_t n;
    char *text = test_read_file(path, &n);
    REQUIRE(text != NULL);
    char *second = strstr(text, expect);
    if (second) {
        *second = 0;
        check_text(arg, name, second + sizeof expect - 1,
                   strlen(second + sizeof expect - 1));
    }
    check_text(arg, name, text, strlen(text));
    free(text);
}

TEST_CASE(parse, declared_types_are_those_of_the_op) {
    Count c = {0};
    test_each_file("tests/golden", ".amp", check_file, &c);
    printf("%d texts, %d changes, %d taken\n", c.texts, c.changes, c.taken);
    CHECK(c.texts > 200 && c.changes > 2000);
}
