/* SPDX-License-Identifier: Apache-2.0 */
/* json.c: JSON in checkpoints and logs. */
#define _GNU_SOURCE
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "runtime/base/json.h"
#include "tests/harness.h"

/* ---- JSON ---------------------------------------------------------------- */

TEST_CASE(json, strict) {
    static const char *const good[] = {"0",
                                       "-1.5e+3",
                                       "\"a\\u00e9\\n\"",
                                       "[]",
                                       "{}",
                                       " [1, {\"a\":[true]}] ",
                                       "null",
                                       "{\"a\":1,\"b\":{\"c\":[[]]}}"};
    static const char *const bad[] = {
        "",     "01",      "1.",         "-",       "+1",          ".5",
        "1e",   "nan",     "\"a",        "\"\\x\"", "\"\\u12g4\"", "[1,]",
        "[,1]", "{\"a\"}", "{\"a\":1,}", "{a:1}",   "[1] 2",       "tru",
        "'a'",  "\"\t\"",  "[",          "{\"a\":", "[1 2]",       "[}"};
    JsonSpan v;
    char deep[200];
    for (size_t i = 0; i < sizeof good / sizeof *good; i++)
        CHECK_MSG(json_parse(good[i], strlen(good[i]), &v), "%s", good[i]);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        CHECK_MSG(!json_parse(bad[i], strlen(bad[i]), &v), "%s", bad[i]);
    memset(deep, '[', 100);
    memset(deep + 100, ']', 100);
    CHECK(!json_parse(deep, 200, &v));
    CHECK(json_parse(deep + 80, 40, &v));
}

TEST_CASE(json, walks) {
    const char *text = "{\"a\\u0062\":[1,2.5,\"\\ud83d\\ude00\"],\"c\":-7}";
    JsonSpan v, a, item, key;
    int64_t n = 0;
    double d;
    char buf[8];
    REQUIRE(json_parse(text, strlen(text), &v));
    REQUIRE(json_get(v, "ab", &a));
    CHECK(json_get(v, "c", &item) && json_int(item, &n) && n == -7);
    CHECK(!json_get(v, "d", &item));
    JsonIter it = json_iter(a);
    CHECK(json_next(&it, &key, &item) && json_int(item, &n) && n == 1);
    CHECK(json_next(&it, &key, &item) && !json_int(item, &n));
    CHECK(json_double(item, &d) && d == 2.5);
    CHECK(json_next(&it, &key, &item));
    CHECK_EQ_INT(json_text(item, buf, sizeof buf), 4);
    CHECK_STR(buf, "\xf0\x9f\x98\x80");
    CHECK_EQ_INT(json_text(item, buf, 4), -1);
    CHECK(!json_next(&it, &key, &item));
}

/* Each escape, each length of UTF-8 at both of its ends, and halves of pairs.
 */
TEST_CASE(json, strings) {
    static const struct {
        const char *json, *text; /* NULL: it has none */
    } rows[] = {{"\"\"", ""},
                {"\"a b\"", "a b"},
                {"\"\\\"\\\\\\/\"", "\"\\/"},
                {"\"\\b\\f\\n\\r\\t\"", "\b\f\n\r\t"},
                {"\"\\u0041\\u007F\"", "A\x7f"},
                {"\"\\u0080\"", "\xc2\x80"},
                {"\"\\u07fF\"", "\xdf\xbf"},
                {"\"\\u0800\"", "\xe0\xa0\x80"},
                {"\"\\uABCD\\uabcd\"", "\xea\xaf\x8d\xea\xaf\x8d"},
                {"\"\\uFFFF\"", "\xef\xbf\xbf"},
                {"\"\\uD800\\uDC00\"", "\xf0\x90\x80\x80"},
                {"\"\\uDBFF\\uDFFF\"", "\xf4\x8f\xbf\xbf"},
                {"\"\\ud800\"", "\xef\xbf\xbd"},
                {"\"\\ud800x\"", "\xef\xbf\xbdx"},
                {"\"\\udc00\\ud800\"", "\xef\xbf\xbd\xef\xbf\xbd"},
                {"\"\\udc00\\udc01\"", "\xef\xbf\xbd\xef\xbf\xbd"},
                {"\"\\ud800\\u0041\"", "\xef\xbf\xbd"
                                       "A"},
                {"\"\\u0000\"", NULL},
                {"\"a\\u0000\"", NULL},
                {"7", NULL},
                {"[]", NULL}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        JsonSpan v;
        char buf[16], longer[20];
        REQUIRE(json_parse(rows[i].json, strlen(rows[i].json), &v));
        int64_t n = json_text(v, buf, sizeof buf);
        if (!rows[i].text) {
            CHECK_MSG(n == -1, "%s", rows[i].json);
            CHECK(!json_equals(v, "") && !json_equals(v, "a"));
            continue;
        }
        size_t len = strlen(rows[i].text);
        CHECK_EQ_INT(n, len);
        CHECK_STR(buf, rows[i].text);
        CHECK_EQ_INT(json_text(v, buf, len + 1), len);
        CHECK_EQ_INT(json_text(v, buf, len), -1);
        CHECK_MSG(json_equals(v, rows[i].text), "%s", rows[i].json);
        snprintf(longer, sizeof longer, "%sx", rows[i].text);
        CHECK(!json_equals(v, longer));
        if (!len) continue;
        longer[len - 1] ^= 1;
        longer[len] = 0;
        CHECK(!json_equals(v, longer));
        longer[len - 1] = 0;
        CHECK(!json_equals(v, longer));
    }
}

TEST_CASE(json, numbers_and_depths) {
    static const struct {
        const char *json;
        bool whole;
        int64_t n;
        bool real;
        double x;
    } rows[] = {{"9223372036854775807", true, INT64_MAX, true, 0x1p63},
                {"9223372036854775808", false, 0, true, 0x1p63},
                {"-9223372036854775808", true, INT64_MIN, true, -0x1p63},
                {"-9223372036854775809", false, 0, true, -0x1p63},
                {"1e2", false, 0, true, 100},
                {"-0", true, 0, true, 0},
                {"0.5E-1", false, 0, true, 0.05},
                {"true", false, 0, false, 0},
                {"\"1\"", false, 0, false, 0}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        JsonSpan v;
        int64_t n = 77;
        double x = 77;
        REQUIRE(json_parse(rows[i].json, strlen(rows[i].json), &v));
        CHECK_MSG(json_int(v, &n) == rows[i].whole &&
                      n == (rows[i].whole ? rows[i].n : 77),
                  "%s", rows[i].json);
        CHECK_MSG(json_double(v, &x) == rows[i].real &&
                      x == (rows[i].real ? rows[i].x : 77),
                  "%s", rows[i].json);
    }
    enum { DEEPEST = 32 };
    for (int depth = DEEPEST; depth <= DEEPEST + 1; depth++) {
        char text[2 * DEEPEST + 2];
        JsonSpan v;
        memset(text, '[', (size_t)depth);
        memset(text + depth, ']', (size_t)depth);
        CHECK_EQ_INT(json_parse(text, 2 * (size_t)depth, &v), depth == DEEPEST);
    }
    char digits[64];
    JsonSpan v = {digits, 63};
    int64_t n;
    memset(digits, '0', sizeof digits);
    CHECK(json_int(v, &n) && n == 0);
    v.n = 64;
    CHECK(!json_int(v, &n));
}
