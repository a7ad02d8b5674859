/* SPDX-License-Identifier: Apache-2.0 */
/* mistakes.c: messages about mistakes in a text. */
#include <stdlib.h>
#include <string.h>

#include "ir/ir.h"
#include "ir/text/text.h"
#include "tests/harness.h"
#include "tests/ir/roundtrip/roundtrip.h"

/* ---- messages ------------------------------------------------------------ */

static void check_message(const char *text, const char *want) {
    Arena *a = arena_new();
    Diag d = {0};
    Module *m;
    Status s = parse_module(a, &d, "f", text, strlen(text), &m);
    if (CHECK_MSG(s != OK, "accepted: %s", text)) CHECK_HAS(d.text.data, want);
    sb_free(&d.text);
    arena_free(a);
}

TEST_CASE(parse, carets_point_at_the_mistake) {
    check_message("graph g(%x: f32[2]) {\n\t%\"é\" = relu %y\n}\n",
                  "f:2:14: error: '%y' is not defined here\n"
                  "   %\"é\" = relu %y\n"
                  "               ^\n");
    check_message("graph g(%x: f32[2,3]) { %y = matmul %x, %x }",
                  "f:1:30: error: matmul: f32[2,3] and f32[2,3]: inner");
    check_message("graph g(",
                  "f:1:9: error: a name such as %x expected, found end "
                  "of file\n"
                  "  graph g(\n"
                  "          ^\n");
}

static void put_times(StrBuf *sb, const char *s, int n) {
    while (n-- > 0) sb_puts(sb, s);
}

/* A long line shows 60 bytes before the mistake and 40 after it; a character
   cut at the front is shown whole, one cut at the end is left out. */
TEST_CASE(parse, long_lines_are_cut_around_the_mistake) {
    static const char *const letters[] = {"a", "\xc3\xa9"};
    for (int w = 1; w <= 2; w++)
        for (int before = 20; before < 80; before++)
            for (int after = 10; after < 50; after++) {
                StrBuf text = {0}, want = {0};
                const char *c = letters[w - 1];
                sb_puts(&text, "graph g() {\n%\"");
                put_times(&text, c, before);
                sb_puts(&text, "\" = ^");
                put_times(&text, c, after);
                sb_puts(&text, "\n}\n");
                /* 4 bytes before ^ are not letters */
                int most = (56 + w - 1) / w, shown = before;
                bool whole = w * before + 6 <= 60;
                if (before > most) shown = most;
                sb_puts(&want, whole                  ? "\n  %\""
                               : w * before + 5 == 60 ? "\n  \""
                                                      : "\n  ");
                put_times(&want, c, shown);
                sb_puts(&want, "\" = ^");
                put_times(&want, c, after < 39 / w ? after : 39 / w);
                sb_puts(&want, "\n  ");
                put_times(&want, " ",
                          shown + 4 + (whole ? 2 : w * before + 5 == 60));
                sb_puts(&want, "^\n");
                check_message(text.data, want.data);
                sb_free(&text);
                sb_free(&want);
            }
}

/* A byte-order mark does not count as a column. */
TEST_CASE(parse, a_mark_may_stand_in_front) {
#define MARK "\xef\xbb\xbf"
    check_message(MARK "graph g() { ^ }", "f:1:13: error: unexpected");
    check_message(MARK, "f:1:1: error: the file has no model");
    check_message("\xef\xbb", "unexpected character");
    check_message("\xef\xbb\xbe", "unexpected character");
    check_message(MARK "model m(x: f32[2]) {\n  return y = z\n}\n",
                  "f:2:14: error: 'z' has no value here");
    Arena *a = arena_new();
    Diag d = {0};
    Module *m;
    static const char text[] = MARK "graph g(%x: f32[2]) { return %x }";
    CHECK(parse_module(a, &d, "f", text, sizeof text - 1, &m) == OK);
    sb_free(&d.text);
    arena_free(a);
}

/* Two graphs of a file may make the same statements about one variable. */
TEST_CASE(parse, variables_of_two_graphs_begin_alike) {
    static const struct {
        const char *first, *second;
        bool alike;
    } rows[] = {
        {"", "", true},
        {" = 1", " = 1", true},
        {" = 1", "", true},
        {"", " = 1", false},
        {" = [1, 2]", " = [1, 2]", true},
        {" = [1, 2]", "", true},
        {" = [1, 2]", " = [1, 3]", false},
        {" = [1, 2]", " = [3, 2]", false},
        {" = [1, 2]", " = 1", false},
        {" = 1", " = [1, 2]", false},
        {" = normal(1, 1)", " = normal(1, 1)", true},
        {" = normal(1, 1)", " = normal(2, 1)", false},
        {" = normal(1, 1)", " = normal(1, 2)", false},
        {" = normal(1, 1)", " = uniform(1, 0, 1)", false},
        {" = normal(1, 1)", " = 0", false},
        {" = uniform(1, 0, 1)", " = uniform(1, 0, 2)", false},
        {" = uniform(1, 0, 1)", " = uniform(1, 0.5, 1)", false},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        Arena *a = arena_new();
        Diag d = {0};
        Module *m;
        char *text = arena_printf(a,
                                  "graph g() { state %%s: f32[2]%s }\n"
                                  "graph h() { state %%s: f32[2]%s }\n",
                                  rows[i].first, rows[i].second);
        Status s = parse_module(a, &d, "f", text, strlen(text), &m);
        CHECK_MSG((s == OK) == rows[i].alike, "%s%s", text,
                  s == OK ? "accepted" : d.text.data);
        if (s != OK) CHECK_HAS(d.text.data, "'%s' begins otherwise in another");
        sb_free(&d.text);
        arena_free(a);
    }
}

/* A module has a header line for each of its facts. */
TEST_CASE(roundtrip, headers) {
    static const char *const heads[] = {
        "", "module m\n\n", "module \"\" {class_axis=0}\n\n",
        "module \"\" {producer=\"p\"}\n\n",
        "module m {class_axis=7, producer=\"p 1\"}\n\n"};
    for (size_t i = 0; i < sizeof heads / sizeof *heads; i++) {
        Arena *a = arena_new();
        Diag d = {0};
        Module *m;
        char *text = arena_printf(a,
                                  "%sgraph g(%%x: f32[2]) {\n"
                                  "  return %%x\n}\n",
                                  heads[i]);
        if (CHECK_MSG(parse_module(a, &d, "s", text, strlen(text), &m) == OK,
                      "%s", d.text.data)) {
            char *back = roundtrip_printed(m);
            CHECK_STR(back, text);
            free(back);
        }
        sb_free(&d.text);
        arena_free(a);
    }
}

/* Texts that print differently; the printed texts read back as themselves. */
TEST_CASE(roundtrip, other_ways_to_write_it) {
    static const char *const rows[][2] = {
        {"graph g(%\"\\x4a\\x4F\\x6B\": f32[2]) {\n  return %JOk\n}\n",
         "graph g(%JOk: f32[2]) {\n  return %JOk\n}\n"},
        {"graph g(%\"\\xaF\\xfA\": f32[2]) {\n  return y=%\"\\xaf\\xfa\"\n}\n",
         "graph g(%\"\\xaf\\xfa\": f32[2]) {\n  return y=%\"\\xaf\\xfa\"\n}\n"},
        {"graph g(%x: f32[2]) { %y = exp %x !checkpoint=1\n return %y }",
         "graph g(%x: f32[2]) {\n  %y = exp %x : f32[2] !checkpoint=1\n"
         "  return %y\n}\n"},
        {"graph g(%x: f32[2]) { %y = exp %x !chunk=3\n return %y }",
         "graph g(%x: f32[2]) {\n  %y = exp %x : f32[2] !chunk=3\n"
         "  return %y\n}\n"},
        {"graph g(%x: f32[2]) { %y = exp %x !checkpoint=2147483646\n"
         " return %y }",
         "graph g(%x: f32[2]) {\n"
         "  %y = exp %x : f32[2] !checkpoint=2147483646\n  return %y\n}\n"},
        {"dim B = 4\ngraph g(%x: f32[B,2]) { return %x }",
         "graph g(%x: f32[4,2]) {\n  return %x\n}\n"},
        {"def f(x) -> y { y = exp(x) }\n"
         "graph g(%x: f32[2]) { %y = relu %x  return %y }",
         "def f(x) -> y { y = exp(x) }\n\n"
         "graph g(%x: f32[2]) {\n  %y = relu %x : f32[2]\n  return %y\n}\n"},
        {"graph g(%x: f32[2]) { %a = add %x, .5 %b = add %a, -.5\n"
         "%c = add %b, +2 %d = add %c, -inf %e = add %d, nan return %e }",
         "graph g(%x: f32[2]) {\n  %a = add %x, 0.5 : f32[2]\n"
         "  %b = add %a, -0.5 : f32[2]\n  %c = add %b, 2 : f32[2]\n"
         "  %d = add %c, -inf : f32[2]\n  %e = add %d, nan : f32[2]\n"
         "  return %e\n}\n"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        for (int k = 0; k < 2; k++) { /* also the printed form */
            Arena *a = arena_new();
            Diag d = {0};
            Module *m;
            const char *text = rows[i][k];
            if (parse_module(a, &d, "s", text, strlen(text), &m) != OK)
                FAIL("%s\n%s", text, d.text.data);
            char *back = roundtrip_printed(m);
            CHECK_STR(back, rows[i][1]);
            free(back);
            arena_free(a);
        }
}

/* Blocks belong to the module or to its only graph. */
TEST_CASE(parse, blocks_are_of_a_model) {
#define G "graph g(%x: f32[2]) { return %x }\n"
    static const char *const good[] = {"module m\n" G "train m { lr=1 }\n",
                                       "module m\n" G "train g { lr=1 }\n",
                                       G "policy g { op Add low }\n",
                                       "train g { lr=1 }\n" G};
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        Arena *a = arena_new();
        Diag d = {0};
        Module *m;
        CHECK_MSG(parse_module(a, &d, "f", good[i], strlen(good[i]), &m) == OK,
                  "%s", good[i]);
        sb_free(&d.text);
        arena_free(a);
    }
    check_message("module m\n" G "train h { lr=1 }\n",
                  "f:3:7: error: the file has no model 'h'");
    check_message("module m\n" G "graph h() { }\ntrain h { lr=1 }\n",
                  "f:4:7: error: the file has no model 'h'");
}

TEST_CASE(parse, mistakes) {
    static const char *const cases[][2] = {
        {"foo", "'graph', 'model', 'def', 'dim', 'train' or "},
        {"graph", "the graph's name expected, found end of file"},
        {"graph g(%x f32[2]) {}", "':' expected, found 'f32'"},
        {"graph g(%x: f31[2]) {}", "a type such as f32[2,3] expected"},
        {"graph g(%x: f32) {}", "'[' expected"},
        {"graph g(%x: f32[1,1,1,1,1,1,1,1,1]) {}", "more than 8 dimensions"},
        {"graph g(%x: f32[99999999999999999999]) {}", "too large"},
        {"graph g(%x: f32[2], %x: f32[2]) {}", "'%x' is already defined"},
        {"graph g() {} graph g() {}", "of this name exists already"},
        {"graph g() { %y = frob 1 }", "an operator expected, found 'frob'"},
        {"graph g() { %y = exp 1 {foo=1} }", "has no attribute 'foo'"},
        {"graph g() { %y = clip 1 {min=\"a\"} }", "a number expected"},
        {"graph g() { %y = clip 1 {min=0x1p3} }", "a number expected"},
        {"graph g() { %y = trilu 1 {k=1.5} }", "an integer expected"},
        {"graph g() { %y = trilu 1 {k=1, k=2} }", "given twice"},
        {"graph g(%x: f32[2,2]) { %y = trilu %x {k=9223372036854775808} }",
         "1:42: error: the integer is too large"},
        {"graph g(%x: f32[2,2]) { %y = trilu %x {k=-9223372036854775809} }",
         "the integer is too large"},
        {"graph g() { %y = exp 1 : f32[], f32[] }", "2 types for 1 results"},
        {"graph g() { %y = exp 1 !forward }", "!checkpoint=N"},
        {"graph g() { %y = exp 1 !factors=fp16 }",
         "1:33: error: fp32, tf32 or bf16"},
        {"graph g() { %i = iota\n%y = exp 1 }",
         "1:18: error: iota: needs the type of its result"},
        {"graph g() { %y = exp 1:f99 }", "unknown dtype 'f99'"},
        {"graph g() { %y = abs 300:u8 }", "300 is outside u8"},
        {"graph g() { %y = abs -1:u64 }", "outside u64"},
        {"graph g() { %y, %y = split 1 }", "outside rank 0"},
        {"graph g(%x: f32[2]) { %y, %y = split %x {sizes=[1,1]} }",
         "'%y' is already defined"},
        {"graph g() { const %c: f32[2] = [1] }", "1 elements, the type has 2"},
        {"graph g() { const %c: f32[2] = [1, 2, 3] }", "more than 2 elements"},
        {"graph g() { const %c: i32[2] = [1, 2.5] }", "an integer expected"},
        {"graph g() { const %c: i8[1] = [128] }", "128 is outside i8"},
        {"graph g() { const %c: f32[999999999999] = 1 }", "too large for text"},
        {"graph g() { const %c: i32[2] = normal(1, 1) }", "floating point"},
        {"graph g() { const %c: i8[33554433] = uniform(1, 0, 2) "
         "const %d: i8[33554432] = uniform(2, 0, 2) }",
         "1:80: error: the constants hold 67108865 numbers that are not "
         "written out, at most 67108864: a frozen variable is filled when the "
         "module is opened"},
        {"graph g() { const %c: f16[67108865] = nan }", "67108865 numbers"},
        {"graph g() { const %c: f32[2] = data(12) }", "a hash 0x.. expected"},
        {"graph g() { %y = exp 1 !checkpoint=0 }",
         "1:36: error: checkpoints are counted from 1"},
        {"graph g() { %y = exp 1 !checkpoint=2147483647 }",
         "checkpoints are counted from 1"},
        {"graph g() { %y = exp 1 !chunk=0 }",
         "1:31: error: chunks are counted from 1"},
        {"graph g() { const %c: f32[2] = data(0x12345678901234567) }",
         "not a 64-bit hash"},
        {"graph g() { const %c: f32[2] = data(0xfg) }", "not a 64-bit hash"},
        {"graph g() { const %c: f32[2] }", "'=' expected"},
        {"graph g() { param %w: f32[2] {foo=1} }", "lr_scale, stored"},
        {"graph g(%x: f32[]) { write %x = 1 }", "only variables are written"},
        {"graph g(%x: f32[]) { param %w: f32[] write %w = %x bucket 0 }",
         "buckets are counted from 1"},
        {"graph g(%x: f32[]) { param %w: f32[] write %w = %x bucket 1 }",
         "%w is summed over ranks, but no f32 gradient"},
        {"graph g(%x: bf16[]) { param %w: f32[] grad %ampc.grad/w: bf16[] "
         "write %ampc.grad/w = %x bucket 1 }",
         "%ampc.grad/w is summed over ranks, but no f32 gradient"},
        {"graph g() { state %s: i32[] write %s = 1 }", "the variable is i32[]"},
        {"graph g() { state %s: f32[] write %s = 1 write %s = 2 }",
         "%s is written twice"},
        {"graph g() { return 1 }", "the output needs a name"},
        {"graph g() { return a=1, a=2 }",
         "1:27: error: an output 'a' exists already"},
        {"graph g() { return a=_ }", "a value expected"},
        {"graph g() { return a=1", "'}' expected, found end of file"},
        {"graph g() { group big { } }", "point, row, anchor or lib"},
        {"graph g() { group row { return } }", "a name such as %x expected"},
        {"graph g() { %y = exp 1 : f32[] @-4 }", "negative offset"},
        {"graph g() { %y = exp 1 : f32[] @%q }", "unknown variable"},
        {"graph g() { param %w: f32[] } graph h() { state %w: f32[] }",
         "'%w' is a param of type f32[] in another graph"},
        {"graph g() { param %w: f32[] = 1 } graph h() { param %w: f32[] = 2 }",
         "begins otherwise"},
        {"module m {class_axis=9}", "an axis is 0 to 7"},
        {"module m {class_axis=8}", "an axis is 0 to 7"},
        {"module m {class_axis=-1}", "an axis is 0 to 7"},
        {"graph g() { %\"abc }", "does not end on its line"},
        {"graph g() { %\"a\nb\" = exp 1 }", "does not end on its line"},
        {"graph g() { %\"\\x00\" = exp 1 }", "escapes are"},
        {"graph g() { %\"\\x4G\" = exp 1 }", "escapes are"},
        {"graph g() { %\"\\x4g\" = exp 1 }", "escapes are"},
        {"graph g() { %\"\\x@1\" = exp 1 }", "escapes are"},
        {"graph g() { %\"\\x`1\" = exp 1 }", "escapes are"},
        {"graph g() { %\"\\x/1\" = exp 1 }", "escapes are"},
        {"graph g() { %\"\\x:1\" = exp 1 }", "escapes are"},
        {"graph g() { %\"\\y41\" = exp 1 }", "escapes are"},
        {"graph g() { ^\x7f\t- }", "graph g() { ^  - }\n"},
        {"graph g() { %\"\" = exp 1 }", "a name is missing"},
        {"graph g() { ^ }", "unexpected character"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        check_message(cases[i][0], cases[i][1]);
}

/* ? stands for a byte of 0, which only a comment may hold. */
TEST_CASE(parse, zero_bytes_are_no_blanks) {
    static const char *const texts[] = {
        "# a?b\ngraph g() { }\n", "?graph g() { }\n",
        "graph?g() { }\n",        "graph g() {? }\n",
        "graph g() { }\n?\n",     "graph g() { }\n?graph h() { }\n"};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        Arena *a = arena_new();
        Diag d = {0};
        Module *m;
        char *text = arena_printf(a, "%s", texts[i]);
        *strchr(text, '?') = 0;
        Status s = parse_module(a, &d, "f", text, strlen(texts[i]), &m);
        CHECK_MSG((s == OK) == (i == 0), "%s: %s", texts[i], d.text.data);
        sb_free(&d.text);
        arena_free(a);
    }
}

/* A variable's name in another graph may be used in this one. */
TEST_CASE(parse, names_belong_to_their_graph) {
    static const char text[] = "graph a() {\n  param %w: f32[2]\n"
                               "  return %w\n}\n\n"
                               "graph b(%x: f32[2]) {\n"
                               "  %w = exp %x : f32[2]\n  return %w\n}\n";
    Arena *a = arena_new();
    Diag d = {0};
    Module *m;
    REQUIRE(parse_module(a, &d, "t", text, strlen(text), &m) == OK);
    char *out = roundtrip_printed(m);
    CHECK_STR(out, text);
    free(out);
    arena_free(a);
}
