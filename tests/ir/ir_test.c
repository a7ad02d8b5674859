/* SPDX-License-Identifier: Apache-2.0 */
/* Tests the core of the IR: memory, strings, numbers, types, graphs, the
   builder. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ir/fn/fn.h"
#include "ir/ir.h"
#include "tests/harness.h"

/* ---- base ---------------------------------------------------------------- */

TEST_CASE(arena, memory_is_zero_aligned_and_apart) {
    Arena *a = arena_new();
    char *last = NULL;
    for (size_t n = 1; n < 300000; n = n * 3 + 1) {
        char *p = arena_alloc(a, n);
        CHECK_EQ_INT((uintptr_t)p % 16, 0);
        for (size_t i = 0; i < n; i++)
            if (!CHECK(p[i] == 0)) break;
        memset(p, 1, n);
        CHECK(p != last);
        last = p;
    }
    arena_free(a);
}

TEST_CASE(arena, vec_keeps_elements_while_growing) {
    Arena *a = arena_new();
    VEC(int) v = {0};
    for (int i = 0; i < 1000; i++) vec_push(a, &v, i * 7);
    CHECK_EQ_INT(v.len, 1000);
    for (int i = 0; i < 1000; i++) CHECK_EQ_INT(v.data[i], i * 7);
    arena_free(a);
}

TEST_CASE(strings, equal_text_is_one_pointer) {
    Str a = intern("weight"), b = intern_n("weights", 6);
    CHECK(a == b);
    CHECK(intern("weights") != a);
    CHECK(internf("%s.%d", "x", 2) == intern("x.2"));
    for (int i = 0; i < 5000; i++) CHECK(internf("n%d", i) != a);
    CHECK(intern("n4999") == intern("n4999"));
    CHECK(intern("weight") == a);
    CHECK_STR(intern_n("", 0), "");
}

/* Every third of many names, and names far apart; a copy is independent. */
TEST_CASE(strings, map_tells_what_was_put) {
    enum { N = 4000 };
    Arena *a = arena_new();
    StrMap m = {0};
    CHECK_EQ_INT(str_map_get(&m, intern("map.0")), -1);
    for (int i = 0; i < N; i++) {
        Str s = internf("map.%d", i);
        if (i % 3 == 0) str_map_put(a, &m, s, i);
        if (i % 700 == 0) str_map_put(a, &m, s, i + N);
    }
    StrMap copy = str_map_copy(a, &m);
    for (int i = 0; i < N; i++) {
        int want = i % 700 == 0 ? i + N : i % 3 == 0 ? i : -1;
        if (!CHECK_EQ_INT(str_map_get(&m, internf("map.%d", i)), want)) break;
    }
    str_map_put(a, &m, intern("map.3"), 17);
    str_map_put(a, &m, intern("map.4"), 18);
    CHECK_EQ_INT(str_map_get(&copy, intern("map.3")), 3);
    CHECK_EQ_INT(str_map_get(&copy, intern("map.4")), -1);
    CHECK_EQ_INT(str_map_get(&m, intern("map.4")), 18);
    arena_free(a);
}

TEST_CASE(strings, globs) {
    static const struct {
        const char *pattern, *name;
        bool match;
    } cases[] = {
        {"*", "", true},
        {"*", "abc", true},
        {"a*c", "abbc", true},
        {"a*c", "abcd", false},
        {"?", "", false},
        {"?b", "ab", true},
        {"[a-c]x", "bx", true},
        {"[!a-c]x", "bx", false},
        {"[!a-c]x", "dx", true},
        {"[]]", "]", true},
        {"[", "[", true},
        {"*.weight", "fc.0.weight", true},
        {"fc?.w", "fc10.w", false},
        {"**a*", "bab", true},
        {"", "", true},
        {"", "a", false},
        {"a[b", "a[b", true},
        {"*[0-9]", "conv12", true},
        {"[a-c]x", "ax", true},
        {"[a-c]x", "cx", true},
        {"[a-c]x", "dx", false},
        {"[b-d]", "a", false},
        {"[b-d]", "-", false},
        {"[a-]", "-", true},
        {"[a-]", "a", true},
        {"[a-]", "b", false},
        {"[a-", "[a-", true},
        {"[a-", "a", false},
        {"[]-a]", "^", true}, /* a range from ] */
        {"[]-a]", "b", false},
        {"[!]]", "]", false},
        {"[!]]", "a", true},
        {"[^a]", "a", false},
        {"[^a]", "b", true},
        {"[\xc3-\xff]", "\xe9", true},
        {"[\xc3-\xff]", "a", false},
        {"[a-\xff]", "\xe9", true},
        {"a?", "a", false},
        {"*?", "", false},
        {"*?", "a", true},
        {"a*b*c", "abcbc", true},
        {"a*b*c", "acb", false},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        CHECK_MSG(glob_match(cases[i].pattern, cases[i].name) == cases[i].match,
                  "'%s' against '%s'", cases[i].pattern, cases[i].name);
}

/* Backtracking over many stars would take too long. */
TEST_CASE(strings, hostile_glob_is_quick) {
    char name[4001], pattern[401];
    memset(name, 'a', 4000);
    for (int i = 0; i < 400; i++) pattern[i] = i % 2 ? 'a' : '*';
    name[4000] = pattern[400] = 0;
    pattern[399] = 'b';
    CHECK(!glob_match(pattern, name));
}

TEST_CASE(strings, escapes_show_bytes) {
    StrBuf sb = {0};
    sb_put_escaped(&sb, "a\n\"\\\x1b[0m\xff\xc3\xa9");
    CHECK_STR(sb.data, "a\\x0a\\\"\\\\\\x1b[0m\\xff\xc3\xa9");
    sb.len = 0;
    char big[1000];
    memset(big, 'x', 999);
    big[999] = 0;
    sb_put_escaped(&sb, big);
    CHECK(sb.len < 130);
    CHECK_HAS(sb.data, "...");
    sb.len = 0; /* a path keeps its end, from a whole character on */
    for (int i = 0; i < 990; i++) big[i] = i % 2 ? (char)0xa9 : (char)0xc3;
    memcpy(big + 990, "/last.png", 10);
    sb_put_path(&sb, big);
    CHECK(sb.len < 130 && !strncmp(sb.data, "...\xc3\xa9", 5));
    CHECK_HAS(sb.data, "\xa9/last.png");
    sb_free(&sb);
}

/* Reads the output of sb_put_escaped back; false: a control character is
   visible. */
static bool unescape(const char *s, char *out) {
    for (; *s; s++) {
        unsigned char c = (unsigned char)*s, next = (unsigned char)s[1];
        if (c < 0x20 || c == 0x7f) return false;
        if (c == 0xc2 && next >= 0x80 && next < 0xa0) return false;
        if (c == '\\' && next == 'x') {
            char hex[] = {s[2], s[3], 0};
            *out++ = (char)strtol(hex, NULL, 16);
            s += 3;
        } else
            *out++ = c == '\\' ? *++s : *s;
    }
    *out = 0;
    return true;
}

/* Any two bytes: the text contains nothing that a terminal interprets, and
   no information is lost. */
TEST_CASE(strings, escapes_hide_every_control_character_and_read_back) {
    StrBuf sb = {0};
    for (int i = 1; i < 256; i++)
        for (int j = 1; j < 256; j++) {
            const char bytes[] = {(char)i, (char)j, 0};
            char back[16] = "";
            sb.len = 0;
            sb_put_escaped(&sb, bytes);
            CHECK_MSG(unescape(sb.data, back) && !strcmp(back, bytes),
                      "bytes %02x %02x", (unsigned)i, (unsigned)j);
        }
    sb_free(&sb);
}

/* The first and the last character of each length, and bytes that are not a
   character. */
TEST_CASE(strings, characters_of_every_length) {
    static const char *const rows[][2] = {
        {"\xc2\xa0", NULL},
        {"\xdf\xbf", NULL},
        {"\xe0\xa0\x80", NULL},
        {"\xef\xbf\xbd", NULL},
        {"\xf0\x90\x80\x80", NULL},
        {"\xf4\x8f\xbf\xbf", NULL},
        {"\xc1\xbf", "\\xc1\\xbf"},
        {"\xe0\x9f\xbf", "\\xe0\\x9f\\xbf"},
        {"\xed\xa0\x80", "\\xed\\xa0\\x80"},
        {"\xf0\x8f\xbf\xbf", "\\xf0\\x8f\\xbf\\xbf"},
        {"\xf4\x90\x80\x80", "\\xf4\\x90\\x80\\x80"},
        {"\xc2\x9f", "\\xc2\\x9f"},
        {"\xc2\x80", "\\xc2\\x80"},
        {"\xf5\x80\x80\x80", "\\xf5\\x80\\x80\\x80"},
        {"\xe0\xa0z", "\\xe0\\xa0z"},
        {"\xf0\x90\x80z", "\\xf0\\x90\\x80z"},
        {"\xdfz", "\\xdfz"},
        {"\xbf", "\\xbf"},
        {"\x7f", "\\x7f"},
        {"\x1f", "\\x1f"},
        {"\xc3\x80", NULL},
        {" ", NULL},
        {"~", NULL}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        StrBuf sb = {0};
        sb_put_escaped(&sb, rows[i][0]);
        CHECK_STR(sb.data, rows[i][1] ? rows[i][1] : rows[i][0]);
        sb_free(&sb);
    }
}

/* 120 bytes at most, then dots. */
TEST_CASE(strings, long_names_end_in_dots) {
    for (int n = 118; n < 124; n++) {
        char text[130], want[140];
        StrBuf sb = {0};
        memset(text, 'x', sizeof text);
        text[n] = 0;
        snprintf(want, sizeof want, "%.120s%s", text, n > 120 ? "..." : "");
        sb_put_escaped(&sb, text);
        CHECK_STR(sb.data, want);
        sb_free(&sb);
    }
}

TEST_CASE(strings, json) {
    StrBuf sb = {0};
    sb_put_json(&sb, "a\"b\\c\x01\x1f \x7e\x7f\xc3\xa9\n");
    CHECK_STR(sb.data, "a\\\"b\\\\c\\u0001\\u001f ~\\u007f\xc3\xa9\\u000a");
    sb_free(&sb);
    sb_put_json(&sb, "\xff/\xc3(\xed\xa0\x80\xc3");
    CHECK_STR(sb.data, "\\ufffd/\\ufffd(\\ufffd\\ufffd\\ufffd\\ufffd");
    sb_free(&sb);
}

TEST_CASE(strings, shortest_numbers_read_back) {
    static const double v[] = {
        0,     -0.0,   1,    0.1,   1e-5,           1.0 / 3,
        1e300, 5e-324, 0.02, 65504, -123456789.125, 3.4028234663852886e38};
    for (size_t i = 0; i < sizeof v / sizeof *v; i++) {
        StrBuf sb = {0};
        sb_put_double(&sb, v[i], false);
        double back = strtod(sb.data, NULL);
        CHECK_MEM(&back, &v[i], sizeof back);
        sb_free(&sb);
    }
    StrBuf sb = {0};
    sb_put_double(&sb, (double)0.1f, true);
    CHECK_STR(sb.data, "0.1");
    sb_free(&sb);
}

TEST_CASE(diag, place_and_text) {
    Diag d = {0};
    Loc line = {.file = intern("m.amp"), .line = 3, .col = 7};
    Loc node = {.file = intern("m.onnx"), .node = intern("a'b\n")};
    CHECK_EQ_INT(fail(&d, line, "%d is bad", 4), ERR_USER);
    fail(&d, node, "wrong");
    warn(&d, (Loc){0}, "odd \x1b byte");
    CHECK_STR(d.text.data, "m.amp:3:7: error: 4 is bad\n"
                           "m.onnx: node 'a\\'b\\x0a': error: wrong\n"
                           "warning: odd \\x1b byte\n");
    CHECK_EQ_INT(d.errors, 2);
    CHECK_EQ_INT(d.warnings, 1);
    sb_free(&d.text);
}

TEST_CASE(numbers, overflow_is_seen) {
    int64_t r;
    CHECK(mul_ok(1LL << 31, 1LL << 31, &r) && r == 1LL << 62);
    CHECK(!mul_ok(1LL << 32, 1LL << 31, &r));
    CHECK(!add_ok(INT64_MAX, 1, &r));
    CHECK(add_ok(INT64_MIN, INT64_MAX, &r) && r == -1);
}

TEST_CASE(numbers, hash_depends_on_every_byte) {
    char text[64] = {0};
    uint64_t h = hash_bytes(0, text, 64);
    for (int i = 0; i < 64; i++) {
        text[i] = 1;
        CHECK(hash_bytes(0, text, 64) != h);
        text[i] = 0;
    }
    CHECK(hash_bytes(0, text, 63) != h);
    CHECK(hash_bytes(1, text, 64) != h);
}
