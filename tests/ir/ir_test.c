/* SPDX-License-Identifier: Apache-2.0 */
/* Tests the core of the IR: memory, strings, numbers, types, graphs, the
   builder. */
#include "ir/fn/fn.h"
#include "ir/ir.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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

/* ---- 16-bit floats ------------------------------------------------------- */

TEST_CASE(halves, every_pattern_reads_back) {
    for (int i = 0; i < 65536; i++) {
        uint16_t h = (uint16_t)i;
        double f = f16_to_double(h), b = bf16_to_double(h);
        if (isnan(f))
            CHECK(isnan(f16_to_double(double_to_f16(f))));
        else
            CHECK_EQ_INT(double_to_f16(f), h);
        if (isnan(b))
            CHECK(isnan(bf16_to_double(double_to_bf16(b))));
        else
            CHECK_EQ_INT(double_to_bf16(b), h);
    }
}

/* Between two neighbours: below the middle rounds down, above it up, and the
   middle to even. */
static void check_rounding(double (*decode)(uint16_t),
                           uint16_t (*encode)(double), uint16_t inf) {
    for (uint16_t h = 0; h + 1 < inf; h++) {
        double lo = decode(h), hi = decode(h + 1), mid = (lo + hi) / 2;
        bool ok = encode(mid) == (h & 1 ? h + 1 : h) &&
                  encode(nextafter(mid, lo)) == h &&
                  encode(nextafter(mid, hi)) == h + 1 &&
                  encode(-mid) == (0x8000 | (h & 1 ? h + 1 : h));
        if (!CHECK_MSG(ok, "between %g and %g", lo, hi)) return;
    }
}

TEST_CASE(halves, round_to_nearest_even) {
    check_rounding(f16_to_double, double_to_f16, 0x7c00);
    check_rounding(bf16_to_double, double_to_bf16, 0x7f80);
}

TEST_CASE(halves, limits) {
    CHECK_EQ_INT(double_to_f16(65504), 0x7bff);
    CHECK_EQ_INT(double_to_f16(65519.99), 0x7bff);
    CHECK_EQ_INT(double_to_f16(65520), 0x7c00);
    CHECK_EQ_INT(double_to_f16(-1e300), 0xfc00);
    CHECK_EQ_INT(double_to_f16(0x1p-25), 0);
    CHECK_EQ_INT(double_to_f16(0x1.0000001p-25), 1);
    CHECK_EQ_INT(double_to_bf16((double)3.40282347e38f), 0x7f80);
    CHECK_EQ_INT(double_to_bf16(1), 0x3f80);
}

TEST_CASE(tensors, elements_in_every_dtype) {
    Arena *a = arena_new();
    int64_t dim[] = {3};
    for (int d = 0; d < NUM_DTYPES; d++) {
        Tensor *t = tensor_new(a, type_make((DType)d, 1, dim));
        double least = d == DT_E8M0 ? 0x1p-127 : 0;
        CHECK_NEAR(tensor_get(t, 1), least, 0);
        tensor_set(t, 1, 1);
        tensor_set_int(t, 2, 1);
        CHECK_NEAR(tensor_get(t, 0), least, 0);
        CHECK_NEAR(tensor_get(t, 1), 1, 0);
        CHECK_EQ_INT(tensor_get_int(t, 2), 1);
    }
    arena_free(a);
}

/* ---- types --------------------------------------------------------------- */

static TypeId make(DType d, int rank, int64_t a, int64_t b, int64_t c) {
    int64_t dim[] = {a, b, c};
    return type_make(d, rank, dim);
}

TEST_CASE(tensors, one_element_becomes_all) {
    Arena *a = arena_new();
    for (int d = 0; d < NUM_DTYPES; d++)
        for (int64_t n = 0; n < 20; n++) {
            Tensor *t = tensor_new(a, type_make((DType)d, 1, &n));
            if (n) tensor_set(t, 0, 1);
            tensor_repeat(t);
            for (int64_t i = 0; i < n; i++) CHECK(tensor_get(t, i) == 1);
        }
    arena_free(a);
}

/* The declared distribution of a variable contains every drawn value, and is
   checked. */
TEST_CASE(tensors, bounds_of_what_is_drawn) {
    static const Draw draws[] = {{DRAW_NORMAL, 1, 0.5, 0},
                                 {DRAW_NORMAL, 2, -3, 0},
                                 {DRAW_UNIFORM, 3, -2, 0.25},
                                 {DRAW_UNIFORM, 4, 0.5, 3}};
    const int64_t n = 1 << 20;
    for (size_t i = 0; i < sizeof draws / sizeof *draws; i++) {
        double most = 0, bound = draw_bound(&draws[i]);
        for (int64_t k = 0; k < n; k++)
            most =
                fmax(most, fabs(draw_at(&draws[i], DRAW_FLOAT, (uint64_t)k)));
        CHECK_MSG(most <= bound && bound < 1.5 * most, "%d: %g of %g", (int)i,
                  most, bound);
    }
}

TEST_CASE(types, equal_types_share_an_id) {
    TypeId a = make(DT_F32, 2, 3, 4, 0);
    const Type *p = type_get(a);
    CHECK_EQ_INT(make(DT_F32, 2, 3, 4, 9).i, a.i);
    CHECK(make(DT_F32, 3, 3, 4, 0).i != a.i);
    CHECK(make(DT_F64, 2, 3, 4, 0).i != a.i);
    for (int i = 0; i < 2000; i++) make(DT_I8, 1, i + 100, 0, 0);
    CHECK(type_get(a) == p); /* the table grew, but the type did not move */
    CHECK_EQ_INT(make(DT_F32, 2, 3, 4, 0).i, a.i);
    CHECK_EQ_INT(type_with_dtype(a, DT_BF16).i, make(DT_BF16, 2, 3, 4, 0).i);
}

TEST_CASE(types, impossible_shapes_have_no_id) {
    CHECK_EQ_INT(make(DT_F32, 1, -1, 0, 0).i, 0);
    CHECK_EQ_INT(make(DT_F32, 2, INT64_MAX, 2, 0).i, 0);
    CHECK_EQ_INT(make(DT_F32, 1, INT64_MAX, 0, 0).i, 0);
    CHECK_EQ_INT(make(DT_F32, 3, 1LL << 40, 0, 1LL << 40).i, 0);
    CHECK_EQ_INT(type_make(DT_F32, MAX_RANK + 1, (int64_t[9]){0}).i, 0);
    CHECK(make(DT_U8, 1, MAX_ELEMENTS, 0, 0).i != 0);
    CHECK_EQ_INT(make(DT_U8, 1, MAX_ELEMENTS + 1, 0, 0).i, 0);
    CHECK(make(DT_U8, 2, 1LL << 30, 1LL << 10, 0).i != 0);
    CHECK_EQ_INT(make(DT_U8, 2, 1LL << 30, 1LL << 11, 0).i, 0);
    CHECK(make(DT_F32, 3, 1LL << 39, 0, 2).i != 0);
    CHECK_EQ_INT(type_count(type_get(make(DT_F32, 3, 7, 0, 2))), 0);
    CHECK_EQ_INT(type_bytes(type_get(type_scalar(DT_F64))), 8);
}

TEST_CASE(types, strides) {
    static const int64_t cases[][6] = {{4, 3, 2, 6, 2, 1}, {4, 1, 2, 2, 2, 1},
                                       {4, 3, 1, 3, 1, 1}, {1, 1, 1, 1, 1, 1},
                                       {4, 0, 2, 2, 2, 1}, {0, 3, 2, 6, 2, 1},
                                       {4, 3, 0, 3, 1, 1}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        int64_t stride[MAX_RANK];
        shape_strides(type_get(type_make(DT_F32, 3, cases[i])), stride);
        for (int k = 0; k < 3; k++) CHECK_EQ_INT(stride[k], cases[i][3 + k]);
    }
}

TEST_CASE(types, broadcasting) {
    static const struct {
        int ra, rb;
        int64_t a[3], b[3];
        int rank; /* -1: mismatch */
        int64_t out[3];
    } cases[] = {
        {2, 1, {4, 3}, {3}, 2, {4, 3}},
        {2, 2, {4, 1}, {1, 3}, 2, {4, 3}},
        {0, 2, {0}, {2, 3}, 2, {2, 3}},
        {1, 1, {2}, {3}, -1, {0}},
        {3, 1, {2, 3, 1}, {5}, 3, {2, 3, 5}},
        {1, 1, {0}, {1}, 1, {0}},
        {1, 1, {0}, {2}, -1, {0}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        Type a = {.rank = cases[i].ra}, b = {.rank = cases[i].rb};
        Type out = {.dtype = DT_I8};
        memcpy(a.dim, cases[i].a, sizeof cases[i].a);
        memcpy(b.dim, cases[i].b, sizeof cases[i].b);
        bool ok = shape_broadcast(&a, &b, &out);
        CHECK_EQ_INT(ok, cases[i].rank >= 0);
        if (!ok) continue;
        CHECK_EQ_INT(out.rank, cases[i].rank);
        CHECK_MEM(out.dim, cases[i].out, sizeof cases[i].out);
        CHECK_EQ_INT(out.dtype, DT_I8);
    }
}

TEST_CASE(types, promotion) {
    CHECK_EQ_INT(dtype_promote(DT_F16, DT_BF16), DT_F32);
    CHECK_EQ_INT(dtype_promote(DT_BF16, DT_BF16), DT_BF16);
    CHECK_EQ_INT(dtype_promote(DT_F32, DT_BF16), DT_F32);
    CHECK_EQ_INT(dtype_promote(DT_F32, DT_F64), DT_F64);
    CHECK_EQ_INT(dtype_promote(DT_I32, DT_I64), DT_I64);
    CHECK_EQ_INT(dtype_promote(DT_I64, DT_F16), DT_F16);
    for (int a = 0; a < NUM_DTYPES; a++)
        for (int b = 0; b < NUM_DTYPES; b++)
            CHECK_EQ_INT(dtype_promote((DType)a, (DType)b),
                         dtype_promote((DType)b, (DType)a));
}

TEST_CASE(types, text_of_dtypes) {
    DType d;
    for (int i = 0; i < NUM_DTYPES; i++) {
        CHECK(dtype_from_text(dtype_info[i].text, strlen(dtype_info[i].text),
                              &d) &&
              (int)d == i);
        CHECK(dtype_from_onnx(dtype_info[i].onnx, &d) && (int)d == i);
    }
    CHECK(!dtype_from_text("f3", 2, &d));
    CHECK(!dtype_from_onnx(99, &d));
}

/* ---- the op table -------------------------------------------------------- */

TEST_CASE(ops, rows_are_sound) {
    for (int i = 0; i < NUM_OPS; i++) {
        const OpInfo *op = &op_info[i];
        OpCode back;
        CHECK(op_from_text(op->text, strlen(op->text), &back) &&
              (int)back == i);
        CHECK_MSG(op->type != NULL, "%s has no type rule", op->text);
        CHECK(op->out_min >= 1);
        CHECK(op->in_max < 0 || op->in_min <= op->in_max);
        CHECK(op->out_max < 0 || op->out_min <= op->out_max);
        CHECK_MSG(op->kind != KIND_ELEM || strcmp(op->expr, "0") != 0,
                  "%s has no expression", op->text);
        CHECK_MSG(op->kind != KIND_ELEM || op->out_max == 1, "%s", op->text);
        for (int a = 0; a < op->nattr; a++) CHECK(op->attrs[a] < NUM_ATTRS);
    }
}

/* ---- graphs -------------------------------------------------------------- */

typedef struct Fixture {
    Arena *a;
    Module *m;
    Graph *g;
    Builder b;
    ValueId x; /* f32[4,3] */
} Fixture;

static Fixture start(void) {
    Fixture f = {.a = arena_new()};
    f.m = module_new(f.a, "m");
    f.g = graph_new(f.m, "forward");
    f.b.g = f.g;
    f.x = graph_input(f.g, "x", make(DT_F32, 2, 4, 3, 0));
    return f;
}

static const char *name_of(const Fixture *f, ValueId v) {
    return value_get(f->g, v)->name;
}

TEST_CASE(graph, names_are_unique) {
    Fixture f = start();
    TypeId t = type_scalar(DT_F32);
    CHECK_STR(name_of(&f, graph_input(f.g, "x", t)), "x.2");
    CHECK_STR(name_of(&f, graph_input(f.g, "x.3", t)), "x.3");
    CHECK_STR(name_of(&f, graph_input(f.g, "x", t)), "x.4");
    CHECK(same_value(graph_find_value(f.g, "x"), f.x));
    CHECK(!is_value(graph_find_value(f.g, "nothing")));
    arena_free(f.a);
}

TEST_CASE(graph, variables_keep_their_names) {
    Fixture f = start();
    ValueId y = b1(&f.b, OP_RELU, f.x, DT_DEFAULT);
    CHECK_STR(name_of(&f, y), "x.relu");
    int w =
        module_var(f.m, VAR_PARAM, "x.relu", value_get(f.g, y)->type, NULL, 0);
    CHECK_EQ_INT(
        module_var(f.m, VAR_PARAM, "x.relu", value_get(f.g, y)->type, NULL, 0),
        w);
    CHECK(!is_value(graph_find_var(f.g, w)));
    ValueId v = graph_var(f.g, w);
    CHECK(same_value(graph_var(f.g, w), v));
    CHECK(same_value(graph_find_var(f.g, w), v));
    CHECK_STR(name_of(&f, v), "x.relu");
    CHECK_STR(name_of(&f, y), "x.relu.2");
    CHECK(same_value(graph_find_value(f.g, "x.relu"), v));
    CHECK_STR(name_of(&f, b1(&f.b, OP_RELU, f.x, DT_DEFAULT)), "x.relu.3");
    arena_free(f.a);
}

TEST_CASE(graph, scalars_are_shared_by_bits) {
    Fixture f = start();
    ValueId zero = graph_scalar(f.g, DT_F32, 0);
    double v;
    CHECK(same_value(graph_scalar(f.g, DT_F32, 0), zero));
    CHECK(!same_value(graph_scalar(f.g, DT_F32, -0.0), zero));
    CHECK(!same_value(graph_scalar(f.g, DT_F64, 0), zero));
    ValueId nan = graph_scalar(f.g, DT_F32, (double)NAN);
    CHECK(same_value(graph_scalar(f.g, DT_F32, (double)NAN), nan));
    CHECK(value_is_splat(f.g, zero, &v) && v == 0);
    CHECK(!value_is_splat(f.g, f.x, &v));
    Tensor *t = tensor_new(f.a, make(DT_F16, 1, 3, 0, 0));
    for (int i = 0; i < 3; i++) tensor_set(t, i, 0.5);
    ValueId c = graph_const(f.g, "c", t);
    CHECK(value_is_splat(f.g, c, &v) && v == 0.5);
    tensor_set(t, 2, 1);
    CHECK(!value_is_splat(f.g, c, &v));
    arena_free(f.a);
}

TEST_CASE(graph, count_uses) {
    Fixture f = start();
    ValueId y = b1(&f.b, OP_EXP, f.x, DT_DEFAULT);
    ValueId z = b2(&f.b, OP_ADD, y, y, DT_DEFAULT);
    int w = module_var(f.m, VAR_BUFFER, "w", value_get(f.g, y)->type, NULL, 0);
    vec_push(f.a, &f.g->outputs, (Output){intern("y"), y});
    vec_push(f.a, &f.g->writes, (Write){.var = graph_var(f.g, w), .value = y});
    CHECK_EQ_INT(graph_use_counts(f.g, f.a)[y.i], 4);
    CHECK_EQ_INT(graph_use_counts(f.g, f.a)[z.i], 0);
    CHECK_EQ_INT(graph_use_counts(f.g, f.a)[f.x.i], 1);
    arena_free(f.a);
}

TEST_CASE(graph, clone_is_apart) {
    Fixture f = start();
    ValueId y = b1(&f.b, OP_EXP, f.x, DT_DEFAULT);
    vec_push(f.a, &f.g->outputs, (Output){intern("y"), y});
    Graph *c = graph_clone(f.g, "copy");
    uint64_t h = graph_hash(f.g);
    Builder b = {.g = c};
    ValueId z = b1(&b, OP_EXP, f.x, DT_DEFAULT);
    CHECK_STR(value_get(c, z)->name, "x.exp.2");
    c->outputs.data[0].value = z;
    node_get(c, c->order.data[0])->in[0] = z;
    CHECK(graph_hash(f.g) == h);
    CHECK(graph_hash(c) != h);
    CHECK(module_graph(f.m, "copy") == c);
    module_remove_graph(f.m, "copy");
    CHECK(module_graph(f.m, "copy") == NULL);
    Module aside;
    Graph *other = graph_clone_aside(f.g, &aside, f.a);
    CHECK(other != f.g && other->module == &aside);
    CHECK(graph_hash(other) == h);
    CHECK_EQ_INT(aside.graphs.len, 1);
    CHECK_EQ_INT(f.m->graphs.len, 1);
    arena_free(f.a);
}

/* ---- the builder --------------------------------------------------------- */

/* The hash identifies a program: everything in its text changes the hash,
   except initial values of variables. */
TEST_CASE(graph, hash_tells_programs_apart) {
    static const char *const texts[] = {
        "graph g(%x: f32[4], %y: f32[4]) {\n  state %s: f32[4], %t: f32[4], "
        "%u: f32[4]\n"
        "  %a = add %x, %s\n  %b = sub %y, %t\n  write %s = %a\n"
        "  write %t = %b\n  return p=%a, q=%b\n}",
        "add %x, %s",
        "mul %x, %s",
        "add %x, %s",
        "add %s, %x",
        "add %x, %s",
        "add %x, 2",
        "add %x, %s",
        "add %x, 3",
        "sub %y, %t",
        "sub %y, %t !backward",
        "p=%a",
        "r=%a",
        "q=%b",
        "r=%b",
        "p=%a, q=%b",
        "p=%b, q=%a",
        "p=%a, q=%b",
        "p=%a",
        "write %s = %a",
        "write %s = %b",
        "write %t = %b",
        "write %t = %a",
        "write %t = %b",
        "write %u = %b",
        "write %s = %a\n",
        "",
        "%x: f32[4], %y",
        "%x: bf16[4], %y",
        "%x: f32[4], %y: f32[4]",
        "%y: f32[4], %x: f32[4]",
        "graph g",
        "graph h",
        "state %s",
        "param %s",
        "add %x, %s",
        "leaky_relu %x {alpha=0.1}",
        "add %x, %s",
        "leaky_relu %x {alpha=0.2}"};
    enum { N = 1 + sizeof texts / sizeof *texts / 2 };
    uint64_t hash[N];
    for (int i = 0; i < N; i++) {
        Arena *a = arena_new();
        Diag d = {0};
        Module *m;
        const char *from = i ? texts[2 * i - 1] : "graph",
                   *to = i ? texts[2 * i] : "graph";
        const char *at = strstr(texts[0], from);
        REQUIRE(at != NULL);
        char *text = arena_printf(a, "%.*s%s%s", (int)(at - texts[0]), texts[0],
                                  to, at + strlen(from));
        if (parse_module(a, &d, "t", text, strlen(text), &m) != OK)
            FAIL("%s\n%s", text, d.text.data);
        hash[i] = graph_hash(m->graphs.data[0]);
        for (int k = 0; k < i; k++)
            CHECK_MSG(hash[k] != hash[i], "%s is as with %s", text,
                      k ? texts[2 * k] : "nothing changed");
        arena_free(a);
    }
}

/* The name of a program gives its kind, its objective and its sizes. */
TEST_CASE(graph, programs_are_known_by_name) {
    static const struct {
        const char *name;
        ProgramKind kind;
        const char *objective, *size;
    } rows[] = {
        {"train", PROGRAM_TRAIN, "", ""},
        {"train:a", PROGRAM_TRAIN, "a", ""},
        {"train:a:b", PROGRAM_TRAIN, "a:b", ""},
        {"train:", PROGRAM_TRAIN, "", ""},
        {"trains", PROGRAM_NONE, "", ""},
        {"trai", PROGRAM_NONE, "", ""},
        {"", PROGRAM_NONE, "", ""},
        {"@7", PROGRAM_NONE, "", "7"},
        {"eval@64", PROGRAM_EVAL, "", "64"},
        {"eval:a@64", PROGRAM_EVAL, "a", "64"},
        {"eval@1", PROGRAM_EVAL, "", "1"},
        {"eval@9@8", PROGRAM_NONE, "", "8"},
        {"eval@", PROGRAM_NONE, "", ""},
        {"eval@0", PROGRAM_NONE, "", ""},
        {"eval@01", PROGRAM_NONE, "", ""},
        {"eval@10", PROGRAM_EVAL, "", "10"},
        {"eval@6a", PROGRAM_NONE, "", ""},
        {"eval@a6", PROGRAM_NONE, "", ""},
        {"eval@999999999999999999", PROGRAM_EVAL, "", "999999999999999999"},
        {"eval@1000000000000000000", PROGRAM_NONE, "", ""},
        {"train@T=64", PROGRAM_TRAIN, "", "T=64"},
        {"train:a@T=64,H_2=8", PROGRAM_TRAIN, "a", "T=64,H_2=8"},
        {"predict@8,T=64", PROGRAM_PREDICT, "", "8,T=64"},
        {"predict@8=64", PROGRAM_PREDICT, "", "8=64"},
        {"train@T=", PROGRAM_NONE, "", ""},
        {"train@T=0", PROGRAM_NONE, "", ""},
        {"train@=4", PROGRAM_NONE, "", ""},
        {"train@T=4,", PROGRAM_NONE, "", ""},
        {"train@T=4,8", PROGRAM_NONE, "", ""},
        {"train@T=4;U=8", PROGRAM_NONE, "", ""},
        {"train@8,", PROGRAM_NONE, "", ""},
        {"train@,T=8", PROGRAM_NONE, "", ""},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        Str objective, size;
        CHECK_EQ_INT(program_of_name(rows[i].name, &objective, &size),
                     rows[i].kind);
        CHECK_STR(size, rows[i].size);
        if (rows[i].kind != PROGRAM_NONE)
            CHECK_STR(objective, rows[i].objective);
    }
    CHECK_STR(name_at_size("eval", ""), "eval");
    CHECK_STR(name_at_size("eval", "12"), "eval@12");
    CHECK_EQ_INT(size_batch("12"), 12);
    CHECK_EQ_INT(size_batch("12,T=4"), 12);
    CHECK_EQ_INT(size_batch("12=4"), 0);
    CHECK_EQ_INT(size_batch("T=4"), 0);
    CHECK_EQ_INT(size_batch(""), 0);
    CHECK(size_has_dims("12,T=4") && !size_has_dims("12"));
    CHECK_STR(size_with_dim("12", "a:1", 3), "12,a_1=3");
    CHECK_STR(size_with_dim("", "s 77", 3), "s_77=3");
    CHECK_STR(program_name(PROGRAM_TRAIN, intern("")), "train");
    CHECK_STR(program_name(PROGRAM_TRAIN, intern("d")), "train:d");
}

/* Two lines that are one computation, or are not. */
TEST_CASE(graph, nodes_that_are_the_same) {
    static const struct {
        const char *one, *other;
        bool work, all;
    } rows[] = {
        {"add %x, %z", "add %x, %z", true, true},
        {"add %x, %z", "add %z, %x", true, false},
        {"add %x, %z", "add %x, %x", true, false},
        {"add %x, %z", "sub %x, %z", false, false},
        {"add %x, %z", "add %x, %z : bf16[4,4]", true, false},
        {"relu %x", "add %x, %x", false, false},
        {"leaky_relu %x {alpha=0.1}", "leaky_relu %x {alpha=0.1}", true, true},
        {"leaky_relu %x {alpha=0.1}", "leaky_relu %x {alpha=0.2}", false,
         false},
        {"leaky_relu %x {alpha=0.1}", "leaky_relu %x", false, false},
        {"clip %x {min=0, max=1}", "clip %x {min=0, max=2}", false, false},
        {"clip %x {min=0, max=1}", "clip %x {min=-1, max=1}", false, false},
        {"clip %x {min=0}", "clip %x {max=0}", false, false},
        {"transpose %x {perm=[1,0]}", "transpose %x {perm=[1,0]}", true, true},
        {"transpose %x {perm=[1,0]}", "transpose %x {perm=[0,1]}", false,
         false},
        {"reduce_sum %x {axes=[0]}", "reduce_sum %x {axes=[0,1]}", false,
         false},
        {"reduce_sum %x {axes=[0]}", "reduce_sum %x {axes=[1]}", false, false},
        {"reduce_sum %x {axes=[0]}", "reduce_max %x {axes=[0]}", false, false},
        {"softmax %x {axis=1}", "softmax %x {axis=1}", true, true},
        {"softmax %x {axis=1}", "log_softmax %x {axis=1}", false, false},
        {"exp %x", "exp %x !full", true, false},
        {"exp %x !full", "exp %x !full", true, true},
        {"exp %x !low", "exp %x !full", true, false},
        {"exp %x", "exp %x !again", true, false},
        {"exp %x", "exp %x !update", true, true},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        Arena *a = arena_new();
        Diag d = {0};
        Module *m;
        char *text = arena_printf(a,
                                  "graph g(%%x: f32[4,4], %%z: f32[4,4]) {\n"
                                  "%%a = %s\n%%b = %s\nreturn %%a, %%b }",
                                  rows[i].one, rows[i].other);
        if (parse_module(a, &d, "t", text, strlen(text), &m) != OK)
            FAIL("%s", d.text.data);
        const Graph *g = m->graphs.data[0];
        const Node *one = node_at(g, 0), *other = node_at(g, 1);
        CHECK_MSG(node_same_work(one, other) == rows[i].work, "%s", text);
        CHECK_MSG(node_same(g, one, other) == rows[i].all, "%s", text);
        CHECK_MSG(node_same(g, other, one) == rows[i].all, "%s", text);
        if (rows[i].all) CHECK(node_hash(g, one) == node_hash(g, other));
        arena_free(a);
    }
}

/* Blocks beside graphs are found without parsing the graphs. */
TEST_CASE(text, blocks_are_cut_out) {
    static const struct {
        const char *text, *train, *policy, *onnx;
    } rows[] = {
        {"train m { loss = mse; lr=1 # why\n  epochs = 2\t \r\n}\n"
         "policy m { op Add low\n}",
         "loss = mse|lr=1|epochs = 2|", "op Add low|", NULL},
        {"train m { a = \"x;y#}\" ; }", "a = \"x;y#}\"|", "", NULL},
        {"train m { a = \"x\" }", "a = \"x\"|", "", NULL},
        {"train m{a}train m{b}", "a|b|", "", NULL},
        {"graph g() { train m { a } }", "", "", NULL},
        {"graph g() { { } } train m { a }", "a|", "", NULL},
        {"graph g() { train m { a }", "", "", NULL},
        {"model m = onnx(\"f.onnx\") train m { a }", "a|", "", "f.onnx"},
        {"model m(x: f32[2]) { y = onnx(\"f\") } train m { a }", "a|", "",
         NULL},
        {"train m { a }\ntrain m { \n", "", "", NULL},
        {"train m { a }\nmodel m = onnx(3)", "", "", NULL},
        {"def policy(x) -> y { y = x }\ntrain m { a }", "a|", "", NULL},
        {"dim train = 2\ndef f(x; policy = 1) -> y { y = x }\ntrain m { a }",
         "a|", "", NULL},
        {"model m(x: f32[4]) { for i in 0..4 { } }\ntrain m { a }", "a|", "",
         NULL},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        Arena *a = arena_new();
        Module *m;
        StrBuf got = {0};
        text_blocks(a, "f", rows[i].text, strlen(rows[i].text), &m);
        sb_puts(&got, "");
        for (int k = 0; k < m->settings.len; k++)
            sb_printf(&got, "%s|", m->settings.data[k].text);
        CHECK_STR(got.data, rows[i].train);
        got.len = 0;
        sb_puts(&got, "");
        for (int k = 0; k < m->policy.len; k++)
            sb_printf(&got, "%s|", m->policy.data[k].text);
        CHECK_STR(got.len ? got.data : "", rows[i].policy);
        CHECK_STR(m->onnx, rows[i].onnx);
        sb_free(&got);
        arena_free(a);
    }
}

TEST_CASE(builder, names_stay_short) {
    Fixture f = start();
    ValueId y = f.x;
    for (int i = 0; i < 4; i++) y = b1(&f.b, OP_EXP, y, DT_DEFAULT);
    CHECK_STR(name_of(&f, y), "x.exp.4");
    y = b1(&f.b, OP_TANH, y, DT_DEFAULT);
    CHECK_STR(name_of(&f, y), "x.tanh");
    y = b_cast(&f.b, y, DT_BF16);
    CHECK_STR(name_of(&f, y), "x.bf16");
    CHECK_STR(name_of(&f, b_cast(&f.b, y, DT_F32)), "x.f32");
    CHECK(same_value(b_cast(&f.b, y, DT_BF16), y));
    CHECK_STR(name_of(&f, b2(&f.b, OP_MUL, b_scalar(&f.b, DT_F32, 2), f.x,
                             DT_DEFAULT)),
              "x.mul");
    CHECK_STR(name_of(&f, b_full(&f.b, value_get(f.g, f.x)->type, 0)), "full");
    static const char *const derived[][2] = {{"q.exp", "q.neg"},
                                             {"q.exp.7", "q.neg"},
                                             {"q.7", "q.7.neg"},
                                             {"q.exp.", "q.exp..neg"},
                                             {"q.", "q..neg"},
                                             {".exp", ".exp.neg"},
                                             {"q.bf16", "q.neg"},
                                             {"q.grad", "q.grad.neg"},
                                             {"q.softmax", "q.neg"},
                                             {"q.layer_norm", "q.neg"},
                                             {"q.layer_norm.2", "q.neg"},
                                             {"q.exps", "q.exps.neg"},
                                             {"q.exp.7a", "q.exp.7a.neg"},
                                             {"q.r.mul.2", "q.r.neg"}};
    for (size_t i = 0; i < sizeof derived / sizeof *derived; i++) {
        y = graph_input(f.g, derived[i][0], value_get(f.g, f.x)->type);
        y = b1(&f.b, OP_NEG, y, DT_DEFAULT);
        const char *want = derived[i][1], *got = name_of(&f, y);
        size_t n = strlen(want); /* possibly with a number */
        CHECK_MSG(!strncmp(got, want, n) && (!got[n] || got[n] == '.'),
                  "%s: %s, not %s", derived[i][0], got, want);
    }
    f.b.suffix = ".grad";
    y = b1(&f.b, OP_NEG, f.x, DT_DEFAULT);
    CHECK_STR(name_of(&f, y), "x.grad");
    CHECK_STR(name_of(&f, b1(&f.b, OP_NEG, y, DT_DEFAULT)), "x.grad.2");
    CHECK_STR(name_of(&f, b_full(&f.b, value_get(f.g, f.x)->type, 0)),
              "full.grad");
    y = graph_input(f.g, "grad", value_get(f.g, f.x)->type);
    CHECK_STR(name_of(&f, b1(&f.b, OP_NEG, y, DT_DEFAULT)), "grad.grad");
    y = graph_input(f.g, ".grad", value_get(f.g, f.x)->type);
    CHECK_STR(name_of(&f, b1(&f.b, OP_NEG, y, DT_DEFAULT)), ".grad.grad");
    arena_free(f.a);
}

TEST_CASE(builder, attributes_have_one_form) {
    Fixture f = start();
    int64_t axes[] = {-1, 0};
    Attr a[] = {attr_i(AK_keepdims, 0), attr_v(AK_axes, axes, 2)};
    ValueId y = build(&f.b, OP_REDUCE_SUM, &f.x, 1, a, 2, DT_DEFAULT, "y");
    const Node *n = node_get(f.g, value_get(f.g, y)->def);
    const int64_t *v;
    CHECK_EQ_INT(n->attrs[0].key, AK_axes);
    CHECK_EQ_INT(attr_ints(n, AK_axes, &v), 2);
    CHECK_EQ_INT(v[0], 0);
    CHECK_EQ_INT(v[1], 1);
    CHECK_EQ_INT(axes[0], -1); /* the caller's own entries stay unchanged */
    n = node_get(
        f.g, build_call(&f.b, fn_std("softmax"), &f.x, 1, NULL, 0, 1, NULL));
    CHECK_EQ_INT(attr_int(n, AK_axis), 1);
    CHECK(!attr_find(n, AK_k));
    static const char *const along[] = {"softmax", "cumprod", "topk"};
    int rank = value_type(f.g, f.x)->rank;
    for (int i = 0; i < 3; i++)
        for (int axis = -rank; axis < rank; axis++) {
            Attr given[] = {attr_i(AK_axis, axis), attr_i(AK_k, 1)};
            n = node_get(f.g, build_call(&f.b, fn_std(along[i]), &f.x, 1, given,
                                         i == 2 ? 2 : 1, i == 2 ? 2 : 1, NULL));
            REQUIRE(attr_find(n, AK_axis) != NULL);
            CHECK_EQ_INT(attr_int(n, AK_axis), axis < 0 ? axis + rank : axis);
        }
    arena_free(f.a);
}

TEST_CASE(builder, dtypes) {
    Fixture f = start();
    ValueId low = b_cast(&f.b, f.x, DT_F16);
    CHECK_EQ_INT(value_dtype(f.g, b2(&f.b, OP_ADD, low, f.x, DT_DEFAULT)),
                 DT_F32);
    CHECK_EQ_INT(value_dtype(f.g, b2(&f.b, OP_ADD, low, f.x, DT_BF16)),
                 DT_BF16);
    CHECK_EQ_INT(value_dtype(f.g, b2(&f.b, OP_LESS, low, f.x, DT_DEFAULT)),
                 DT_BOOL);
    arena_free(f.a);
}

TEST_CASE(builder, shorthands) {
    Fixture f = start();
    int64_t flat[] = {12}, perm[] = {1, 0}, axis[] = {0};
    ValueId y = b_reshape(&f.b, f.x, 1, flat);
    CHECK_EQ_INT(value_type(f.g, y)->rank, 1);
    CHECK(same_value(b_reshape(&f.b, y, 1, flat), y));
    y = b_transpose(&f.b, f.x, perm);
    CHECK_EQ_INT(value_type(f.g, y)->dim[0], 3);
    y = b_matmul(&f.b, f.x, f.x, true, false, DT_DEFAULT);
    CHECK_EQ_INT(value_type(f.g, y)->dim[0], 3);
    CHECK_EQ_INT(value_type(f.g, y)->dim[1], 3);
    y = b_reduce(&f.b, OP_REDUCE_MAX, f.x, axis, 1, true, DT_DEFAULT);
    CHECK_EQ_INT(value_type(f.g, y)->dim[0], 1);
    CHECK_EQ_INT(value_type(f.g, y)->dim[1], 3);
    arena_free(f.a);
}

TEST_CASE(builder, mistakes_are_messages) {
    Fixture f = start();
    Diag d = {0};
    NodeId n;
    ValueId in[] = {f.x, f.x};
    f.b.loc = (Loc){.file = intern("m.onnx"), .node = intern("fc")};
    CHECK_EQ_INT(build_checked(&f.b, &d, callee_op(OP_MATMUL), in, 2, NULL, 0,
                               1, NULL, NULL, &n),
                 ERR_USER);
    CHECK_STR(d.text.data, "m.onnx: node 'fc': error: matmul: f32[4,3] and "
                           "f32[4,3]: inner dimensions 3 and 4\n");
    CHECK_EQ_INT(f.g->order.len, 0);
    sb_free(&d.text);
    arena_free(f.a);
}

/* The slice moves no elements: it takes the first elements of each row, all
   rows, without gaps. */
TEST_CASE(ir, a_slice_cuts_rows_where_it_begins_them) {
    static const struct {
        int64_t starts[2], sizes[2], steps[2];
        bool cuts;
    } rows[] = {
        {{0, 0}, {4, 3}, {1, 1}, true},  {{0, 0}, {4, 6}, {1, 1}, true},
        {{0, 0}, {4, 3}, {1, 2}, false}, {{0, 1}, {4, 3}, {1, 1}, false},
        {{0, 0}, {3, 3}, {1, 1}, false}, {{0, 0}, {2, 3}, {2, 1}, false},
        {{1, 0}, {3, 6}, {1, 1}, false}, {{0, 5}, {4, 6}, {1, -1}, false}};
    Arena *a = arena_new();
    Module *m = module_new(a, "m");
    Builder b = {.g = graph_new(m, "g")};
    ValueId x = graph_input(b.g, "x", type_make(DT_F32, 2, (int64_t[]){4, 6}));
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        Attr attrs[] = {attr_v(AK_starts, rows[i].starts, 2),
                        attr_v(AK_sizes, rows[i].sizes, 2),
                        attr_v(AK_steps, rows[i].steps, 2)};
        ValueId y = build(&b, OP_SLICE, &x, 1, attrs, 3, DT_DEFAULT, NULL);
        const Node *n = node_get(b.g, value_get(b.g, y)->def);
        CHECK_MSG(node_cuts_rows(b.g, n) == rows[i].cuts, "row %d", (int)i);
    }
    arena_free(a);
}

TEST_CASE(strings, formatted_texts_of_every_length) {
    char text[600];
    for (size_t n = 250; n < 262; n++) {
        memset(text, 'a', n);
        text[n - 1] = 'z';
        text[n] = 0;
        CHECK(internf("%s", text) == intern(text));
    }
    memset(text, 'b', sizeof text - 1);
    text[sizeof text - 1] = 0;
    CHECK(internf("%s", text) == intern(text));
}
