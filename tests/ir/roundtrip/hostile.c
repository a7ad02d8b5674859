/* SPDX-License-Identifier: Apache-2.0 */
/* hostile.c: texts that are cut, changed or random. */
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "ir/ir.h"
#include "ir/text/text.h"
#include "tests/harness.h"
#include "tests/ir/roundtrip/roundtrip.h"

/* ---- hostile text -------------------------------------------------------- */

/* Either refused with a message, or read as a module that verifies. */
static void check_hostile(const char *text, size_t n) {
    Arena *a = arena_new();
    Diag d = {0};
    Module *m;
    if (parse_module(a, &d, "h", text, n, &m) == OK) {
        Status s = verify_module(m, STAGE_TYPED, &d);
        CHECK_MSG(s == OK, "%s\n%.*s", d.text.data, (int)n, text);
    } else {
        CHECK(d.errors > 0 && d.text.len > 0);
    }
    sb_free(&d.text);
    arena_free(a);
}

/* It took seconds when each number counted the columns to the end of the
   file. */
TEST_CASE(parse, many_numbers_take_no_time) {
    enum { LINES = 20000 };
    StrBuf sb = {0};
    sb_puts(&sb, "graph forward(%x: f32[2]) {\n  %a0 = add %x, 0.5\n");
    for (int i = 1; i < LINES; i++)
        sb_printf(&sb, "  %%a%d = add %%a%d, 0.5\n", i, i - 1);
    sb_printf(&sb, "  return %%a%d\n}\n", LINES - 1);
    Arena *a = arena_new();
    Diag d = {0};
    Module *m;
    clock_t start = clock();
    CHECK(parse_module(a, &d, "m.amp", sb.data, sb.len, &m) == OK);
    double seconds = (double)(clock() - start) / CLOCKS_PER_SEC;
    CHECK_MSG(seconds < 3, "%.1f s", seconds);
    sb_free(&sb);
    arena_free(a);
}

TEST_CASE(hostile, truncated_anywhere) {
    for (size_t n = 0; n <= strlen(roundtrip_sample); n++) {
        char *copy = malloc(n + 1); /* exactly sized, for the address
                                       sanitizer */
        memcpy(copy, roundtrip_sample, n);
        check_hostile(copy, n);
        free(copy);
    }
}

static const char *const splices[] = {
    "%x",
    "%w1",
    "f32[",
    "]",
    "}",
    "{",
    "group row {",
    "return ",
    "write %rng",
    "99999999999999999999",
    "-1",
    "0",
    ":i64",
    "\"",
    "%\"",
    "\\x",
    "\0",
    "\n",
    "#",
    "= normal(1, 1)",
    "split ",
    "concat ",
    "nan",
    "_",
    ",",
    "@",
    "!",
    "axis=-9223372036854775808",
    "9223372036854775807",
    "param ",
    "const ",
};

TEST_CASE(hostile, bytes_changed_and_pieces_put_in) {
    enum { PIECES = sizeof splices / sizeof *splices };
    Rng r = {99};
    for (int i = 0; i < 6000; i++) {
        size_t n = strlen(roundtrip_sample);
        char *text = malloc(n * 2);
        memcpy(text, roundtrip_sample, n);
        for (int k = 1 + roundtrip_below(&r, 4); k > 0; k--) {
            size_t at = (size_t)roundtrip_below(&r, (int)n);
            const char *piece = splices[roundtrip_below(&r, PIECES)];
            size_t len = strlen(piece);
            switch (roundtrip_below(&r, 4)) {
            case 0: text[at] = (char)roundtrip_draw(&r); break;
            case 1:
                text[at] =
                    roundtrip_sample[(size_t)roundtrip_below(&r, (int)n) %
                                     strlen(roundtrip_sample)];
                break;
            case 2:
                memmove(text + at + len, text + at, n - at);
                memcpy(text + at, piece, len);
                n += len;
                break;
            default: { /* a line repeated elsewhere */
                size_t from = (size_t)roundtrip_below(
                    &r, (int)strlen(roundtrip_sample) - 80);
                memmove(text + at + 80, text + at, n - at);
                memcpy(text + at, roundtrip_sample + from, 80);
                n += 80;
            }
            }
        }
        check_hostile(text, n);
        free(text);
    }
}

TEST_CASE(hostile, random_bytes) {
    Rng r = {5};
    for (int i = 0; i < 2000; i++) {
        char text[64];
        size_t n = (size_t)roundtrip_below(&r, 64);
        for (size_t k = 0; k < n; k++) text[k] = (char)roundtrip_draw(&r);
        check_hostile(text, n);
    }
}

TEST_CASE(parse, exponents_of_numbers_that_are_returned) {
    static const char text[] = "graph g() { return a=1E-3:f64, b=25e+1:f64, "
                               "c=-2E+2:f32, d=5e-1:f32 }";
    static const double want[] = {1e-3, 250, -200, 0.5};
    Arena *a = arena_new();
    Diag d = {0};
    Module *m;
    if (parse_module(a, &d, "m.amp", text, sizeof text - 1, &m) != OK)
        FAIL("%s", d.text.data);
    const Graph *g = m->graphs.data[0];
    for (int i = 0; i < 4; i++) {
        const Value *v = value_get(g, g->outputs.data[i].value);
        REQUIRE(v->kind == VK_CONST);
        CHECK_NEAR(tensor_get(v->data, 0), want[i], 0);
        CHECK_EQ_INT(type_get(v->type)->dtype, i < 2 ? DT_F64 : DT_F32);
    }
    arena_free(a);
}
