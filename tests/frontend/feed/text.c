/* SPDX-License-Identifier: Apache-2.0 */
/* text.c: safetensors, tokens, texts and CSV tables. */
#define _GNU_SOURCE
#include "tests/frontend/feed/files.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <zlib.h>

#include "runtime/program/dtype.h"

/* ---- safetensors, tokens ------------------------------------------------- */

static void write_tensors(const char *name, const char *header,
                          const void *data, size_t n) {
    StrBuf sb = {0};
    put_number(&sb, strlen(header), 8);
    sb_puts(&sb, header);
    sb_putn(&sb, data, n);
    REQUIRE(test_write_file(test_tmp(name), sb.data, sb.len));
    sb_free(&sb);
}

TEST_CASE(tensors, by_name) {
    static const char header[] =
        "{\"__metadata__\":{\"format\":\"pt\"},"
        "\"x\":{\"dtype\":\"F32\",\"shape\":[2,1],\"data_offsets\":[4,12]},"
        "\"n\":{\"dtype\":\"U16\",\"shape\":[2],\"data_offsets\":[0,4]}}";
    struct {
        uint16_t n[2];
        float x[2];
    } data = {{3, 4}, {0.5f, 2}};
    Diag d = {0};
    Array a;
    write_tensors("s.safetensors", header, &data, sizeof data);
    REQUIRE(pick("s.safetensors", NULL, "x", false, &a, &d) == OK);
    CHECK(a.dtype == AMPC_DTYPE_F32 && a.rank == 2 && a.dim[0] == 2);
    CHECK_MEM(a.memory, data.x, 8);
    array_close(&a);
    REQUIRE(pick("s.safetensors", "n", "x", false, &a, &d) == OK);
    CHECK(a.dtype == AMPC_DTYPE_U16);
    CHECK_MEM(a.memory, data.n, 4);
    array_close(&a);
    pick_fails("s.safetensors", NULL, "y", "no tensor 'y' (FILE:TENSOR");
    pick_fails("s.safetensors", NULL, "y", "'n', 'x'");
    write_tensors("s.safetensors", header, &data, sizeof data - 1);
    pick_fails("s.safetensors", "x", "x",
               "damaged safetensors file: truncated");
    write_tensors(
        "s.safetensors",
        "{\"x\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]},"
        "\"x\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[4,12]}}",
        &data, sizeof data);
    pick_fails("s.safetensors", NULL, "x", "no tensor 'x'");
}

static void check_tokens(const char *part, int dtype, int64_t n, int first) {
    Diag d = {0};
    Array a;
    REQUIRE(pick("t.bin", part, "x", true, &a, &d) == OK);
    CHECK(a.windows && (int)a.dtype == dtype);
    CHECK_EQ_INT(a.count, n);
    if (n > 0)
        CHECK_EQ_INT(dtype == AMPC_DTYPE_U16 ? *(uint16_t *)a.memory
                                             : (int)*(uint32_t *)a.memory,
                     first);
    array_close(&a);
}

/* The last token is only a target. */
TEST_CASE(tokens, bytes_of_a_text) {
    Diag d = {0};
    Array a;
    REQUIRE(test_write_file(test_tmp("t.txt"), "caf\xc3\xa9", 5));
    for (int shift = 0; shift < 2; shift++) {
        REQUIRE(pick("t.txt", shift ? "+1" : NULL, "x", true, &a, &d) == OK);
        CHECK(a.windows && a.dtype == AMPC_DTYPE_U8);
        CHECK_EQ_INT(a.count, 4);
        CHECK(!memcmp(a.memory, shift ? "af\xc3\xa9" : "caf\xc3", 4));
        array_close(&a);
    }
    pick_fails("t.txt", "u16", "x", "5 bytes are not a whole number of u16");
}

static void put_text(const char *name, const char *text) {
    REQUIRE(test_write_file(test_tmp(name), text, strlen(text)));
}

/* A token a line; a text is split from its beginning, the longest first. */
TEST_CASE(tokens, a_text_has_a_vocabulary) {
    static const uint32_t want[] = {3, 2, 0, 1, 4, 3};
    REQUIRE(test_write_file(test_tmp("v"), "a\nab\nb\nabc\n\\n\n", 14));
    REQUIRE(test_write_file(test_tmp("t.txt"), "abcbaab\nabc", 11));
    ArrayPick pick = {
        .input = "x", .integers = true, .vocabulary = test_tmp("v")};
    for (int shift = 0; shift < 2; shift++) {
        Diag d = {0};
        Array a;
        pick.part = shift ? "+1" : NULL;
        if (array_open(&d, test_tmp("t.txt"), &pick, &a) != OK)
            FAIL("%s", d.text.data);
        CHECK(a.windows && a.dtype == AMPC_DTYPE_U32);
        CHECK_EQ_INT(a.count, 5);
        CHECK(!memcmp(a.memory, want + shift, 5 * sizeof *want));
        array_close(&a);
    }
    static const struct {
        const char *vocabulary, *text, *part, *why;
    } rows[] = {
        {"a\nb\n", "ab\nac", NULL,
         "t.txt:1: error: no token of the vocabulary "
         "begins '\\x0aac'"},
        {"a\n\\n\n", "a\na\nc", NULL, "t.txt:3: error: no token"},
        {"", "ab", NULL, "v: error: has no tokens"},
        {"a\n\nb\n", "ab", NULL, "v:2: error: an empty token"},
        {"a\nb\n", "ab", "u8", "'u8': tokens of --vocabulary are taken from"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        Diag d = {0};
        Array a;
        put_text("v", rows[i].vocabulary);
        put_text("t.txt", rows[i].text);
        pick.part = rows[i].part;
        CHECK_EQ_INT(array_open(&d, test_tmp("t.txt"), &pick, &a), ERR_USER);
        CHECK_HAS(d.text.data, rows[i].why);
        sb_free(&d.text);
    }
}

/* Tokens are copied in parts. */
TEST_CASE(tokens, texts_of_any_length) {
    enum { PART = 4096 };
    static const int lengths[] = {1,        2,        PART - 1,     PART,
                                  PART + 1, PART + 2, 2 * PART + 1, 5 * PART};
    REQUIRE(test_write_file(test_tmp("v"), "b\na\nc\n", 6));
    ArrayPick pick = {
        .input = "x", .integers = true, .vocabulary = test_tmp("v")};
    for (size_t k = 0; k < sizeof lengths / sizeof *lengths; k++)
        for (int shift = 0; shift < 2; shift++) {
            int n = lengths[k], wrong = 0;
            Diag d = {0};
            Array a;
            char *text = malloc((size_t)n);
            uint32_t *got = malloc((size_t)n * sizeof *got);
            for (int i = 0; i < n; i++) text[i] = "abc"[i * i / 7 % 3];
            REQUIRE(test_write_file(test_tmp("t.txt"), text, (size_t)n));
            pick.part = shift ? "+1" : NULL;
            REQUIRE(array_open(&d, test_tmp("t.txt"), &pick, &a) == OK);
            CHECK_EQ_INT(a.count, n - 1);
            REQUIRE(array_get(&d, "t.txt", &a, 0, n - 1, got) == OK);
            for (int i = 0; i < n - 1; i++)
                wrong += got[i] !=
                         (uint32_t)(strchr("bac", text[i + shift]) - "bac");
            CHECK_MSG(!wrong, "%d tokens, shift %d: %d are wrong", n, shift,
                      wrong);
            array_close(&a);
            free(text);
            free(got);
        }
}

TEST_CASE(tokens, widths_shifts_and_headers) {
    uint16_t narrow[5] = {10, 11, 12, 13, 14};
    uint32_t wide[4] = {70000, 70001, 70002, 70003};
    REQUIRE(test_write_file(test_tmp("t.bin"), narrow, sizeof narrow));
    check_tokens(NULL, AMPC_DTYPE_U16, 4, 10);
    check_tokens("u16", AMPC_DTYPE_U16, 4, 10);
    check_tokens("+1", AMPC_DTYPE_U16, 4, 11);
    pick_fails("t.bin", "u32", "x",
               "10 bytes are not a whole number of u32 tokens");
    pick_fails("t.bin", "+2", "x", "tokens are taken as u8, u16 or u32");
    pick_fails("t.bin", "", "x", "tokens are taken as u8, u16 or u32");
    REQUIRE(test_write_file(test_tmp("t.bin"), wide, sizeof wide));
    check_tokens("u32", AMPC_DTYPE_U32, 3, 70000);
    check_tokens("u32+1", AMPC_DTYPE_U32, 3, 70001);
    int32_t file[256 + 4] = {20240801, 7, 4};
    memcpy(file + 256, wide, sizeof wide);
    REQUIRE(test_write_file(test_tmp("t.bin"), file, sizeof file));
    check_tokens(NULL, AMPC_DTYPE_U32, 3, 70000);
    check_tokens("+1", AMPC_DTYPE_U32, 3, 70001);
    REQUIRE(test_write_file(test_tmp("t.bin"), file, 1024));
    check_tokens(NULL, AMPC_DTYPE_U32, 0, 0);
    REQUIRE(test_write_file(test_tmp("t.bin"), wide, 0));
    check_tokens(NULL, AMPC_DTYPE_U16, 0, 0);
}

/* ---- text ---------------------------------------------------------------- */

static void check_text(const char *name, const char *part, bool integers,
                       int64_t rows, int64_t columns, const char *want) {
    Diag d = {0};
    Array a;
    StrBuf got = {0};
    if (pick(name, part, "x", integers, &a, &d) != OK) FAIL("%s", d.text.data);
    CHECK_EQ_INT(a.dim[0], rows);
    CHECK_EQ_INT(a.rank, columns == 1 ? 1 : 2);
    CHECK_EQ_INT(a.count, rows * columns);
    for (int64_t i = 0; i < a.count; i++) {
        if (integers)
            sb_printf(&got, "%lld ", (long long)((int64_t *)a.memory)[i]);
        else
            sb_printf(&got, "%g ", ((double *)a.memory)[i]);
    }
    CHECK_STR(got.data ? got.data : "", want);
    sb_free(&got);
    array_close(&a);
}

TEST_CASE(csv, columns_and_separators) {
    put_text("a.csv", "age,\"body, mass\" ,label\r\n31,70.5,0\r\n\r\n"
                      "# a remark\n 40 ,\"81\",1\n22,-6e1,2");
    check_text("a.csv", NULL, false, 3, 3, "31 70.5 0 40 81 1 22 -60 2 ");
    check_text("a.csv", "label", true, 3, 1, "0 1 2 ");
    check_text("a.csv", "2,0", true, 3, 2, "0 31 1 40 2 22 ");
    check_text("a.csv", "0-1", false, 3, 2, "31 70.5 40 81 22 -60 ");
    check_text("a.csv", "age,2", false, 3, 2, "31 0 40 1 22 2 ");
    put_text("b.csv", "a,b-c,b,d\n1,2,3,4\n");
    check_text("b.csv", "a-b,d", false, 1, 4, "1 2 3 4 ");
    check_text("b.csv", "b-c-d", false, 1, 3, "2 3 4 ");
    pick_fails("b.csv", "d-a", "x", "no column 'd-a'");
    put_text("b.csv", "1;2\n3;4\n");
    check_text("b.csv", NULL, false, 2, 2, "1 2 3 4 ");
    put_text("b.tsv", "a\tb\n1\tnan\n");
    check_text("b.tsv", NULL, false, 1, 2, "1 nan ");
    put_text("b.csv", "  1   2 \n3 4\n");
    check_text("b.csv", NULL, true, 2, 2, "1 2 3 4 ");
    put_text("b.csv", "5\n");
    check_text("b.csv", NULL, true, 1, 1, "5 ");
    put_text("b.csv", "\xef\xbb\xbf"
                      "a,b\n1,2\n"); /* as Excel writes it */
    check_text("b.csv", "a", true, 1, 1, "1 ");
    put_text("b.csv", "\xef\xbb\xbf"
                      "3,4\n1,2\n");
    check_text("b.csv", NULL, false, 2, 2, "3 4 1 2 ");
    put_text("b.csv", "1x1,1x2\n5,6\n");
    check_text("b.csv", NULL, false, 1, 2, "5 6 ");
    put_text("b.csv", "label,0,1x2\n5,6,7\n");
    check_text("b.csv", "1-2", false, 1, 2, "6 7 ");
    put_text("b.csv", "a,\"say \"\"b\"\"\"\n1,\"\"\n");
    pick_fails("b.csv", NULL, "x", "line 2, column 2: '' is not a number");
    put_text("b.csv", "a,\"say \"\"b\"\"\"\n1,\"2\"\n");
    check_text("b.csv", "say \"b\"", true, 1, 1, "2 ");
    put_text("b.csv", "a,b\n");
    check_text("b.csv", NULL, true, 0, 2, "");
    static const char *const mistyped[] = {"\xe2\x88\x92"
                                           "1,2\n3,4\n",
                                           "$1,2\n3,4\n", "(1),2\n3,4\n"};
    for (size_t i = 0; i < sizeof mistyped / sizeof *mistyped; i++) {
        put_text("b.csv", mistyped[i]);
        pick_fails("b.csv", NULL, "x", "line 1, column 1: ");
    }
    gzFile f = gzopen(test_tmp("c.csv.gz"), "wb");
    REQUIRE(f && gzputs(f, "1,2\n3,4\n") == 8);
    gzclose(f);
    check_text("c.csv.gz", "1", true, 2, 1, "2 4 ");
}

/* pandas numbers columns that have no names. */
TEST_CASE(csv, a_first_line_of_counters) {
    static const struct {
        const char *text;
        bool told;
    } rows[] = {{"0,1,2\n5,6,7\n", true},
                {"0,1,2.0\n5,6,7\n", false},
                {"0,1\n5,6\n", false},
                {"1,2,3\n5,6,7\n", false}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        Diag d = {0};
        Array a;
        put_text("b.csv", rows[i].text);
        REQUIRE(pick("b.csv", NULL, "x", false, &a, &d) == OK);
        CHECK_EQ_INT(a.dim[0], 2);
        bool told = d.text.data && strstr(d.text.data, "is read as a sample");
        CHECK_MSG(told == rows[i].told, "row %zu", i);
        sb_free(&d.text);
        array_close(&a);
    }
}

/* More text and more numbers than are read and written at once. */
TEST_CASE(csv, many_lines) {
    enum { LINES = 20011 };
    StrBuf text = {0};
    Diag d = {0};
    Array a;
    for (int64_t i = 0; i < LINES; i++)
        sb_printf(&text, "%lld,%lld,%lld\n", (long long)i, (long long)(-7 * i),
                  (long long)(i * i));
    REQUIRE(test_write_file(test_tmp("a.csv"), text.data, text.len));
    REQUIRE(pick("a.csv", "2,0", "x", true, &a, &d) == OK);
    REQUIRE(a.dim[0] == LINES && a.dim[1] == 2);
    int64_t *got = malloc(LINES * 16);
    REQUIRE(array_get(&d, "a.csv", &a, 0, 2 * LINES, got) == OK);
    for (int64_t i = 0; i < LINES; i++)
        if (got[2 * i] != i * i || got[2 * i + 1] != i) {
            CHECK_MSG(0, "line %lld: %lld, %lld", (long long)i,
                      (long long)got[2 * i], (long long)got[2 * i + 1]);
            break;
        }
    free(got);
    array_close(&a);
    sb_free(&text);
}

static const Classes *known_words;

/* Labels: opens column `part`, and expects numbers, or a message. */
static void check_words(const char *part, const char *want) {
    Diag d = {0};
    Array a;
    StrBuf got = {0};
    ArrayPick pick = {.part = part,
                      .input = "target",
                      .integers = true,
                      .labels = true,
                      .known = known_words};
    if (array_open(&d, test_tmp("w.csv"), &pick, &a) != OK) {
        CHECK_HAS(d.text.data, want);
        sb_free(&d.text);
        return;
    }
    for (int64_t i = 0; i < a.count; i++)
        sb_printf(&got, "%lld ", (long long)((int64_t *)a.memory)[i]);
    for (int i = 0; i < a.classes.n; i++)
        sb_printf(&got, "%s ", a.classes.name[i]);
    CHECK_STR(got.data, want);
    sb_free(&got);
    array_close(&a);
}

/* A column of words that is chosen by its name. */
TEST_CASE(csv, words_are_classes) {
    put_text("w.csv", "age,kind\n1,bee\n2,\"ant, red\"\n3,bee\n");
    check_words("kind", "1 0 1 ant, red bee ");
    check_words("age", "1 2 3 ");
    check_words("1", "classes in words are one column, chosen by its name: "
                     "FILE.csv:NAME");
    check_words("age,kind", "'bee' is not a number; classes in words");
    Classes known;
    REQUIRE(
        classes_make(&known, (const char *[]){"cow", "bee", "ant, red"}, 3));
    known_words = &known;
    check_words("kind", "1 0 1 ant, red bee cow ");
    put_text("w.csv", "age,kind\n1,bee\n2,wasp\n");
    check_words("kind", "line 3, column 2: 'wasp' is not one of the 3 classes "
                        "that train: ant, red, bee, cow");
    classes_free(&known);
    known_words = NULL;
    put_text("w.csv", "kind\nbee\n7\n");
    check_words("kind", "line 3, column 1: '7' is a number; the lines before "
                        "have words");
    put_text("w.csv", "kind\nbee\nNA\n");
    check_words("kind", "'NA' stands for nothing");
    put_text("w.csv", "kind,x\nbee,1\n,2\n");
    check_words("kind", "line 3, column 1: '' stands for nothing");
    put_text("w.csv", "kind\n7\nbee\n");
    check_words("kind", "line 3, column 1: 'bee' is not a number");
    put_text("w.csv", "kind\n1.2.3\nbee\n");
    check_words("kind", "'1.2.3' is not a number");
}

TEST_CASE(csv, mistakes) {
    Diag d = {0};
    Array a;
    put_text("a.csv", "a,b\n1,2\n3\n");
    pick_fails("a.csv", NULL, "x", "line 3 has 1 columns; the first has 2");
    put_text("a.csv", "a,b\n1,2\n3,4,5\n");
    pick_fails("a.csv", NULL, "x", "line 3 has 3 columns; the first has 2");
    put_text("a.csv", "a,b\n1,2\n3,cat\n");
    pick_fails("a.csv", NULL, "x", "line 3, column 2: 'cat' is not a number");
    pick_fails("a.csv", "c", "x",
               "no column 'c'; the first line has 2: 'a', "
               "'b'");
    pick_fails("a.csv", "1-2", "x", "no column '1-2'");
    pick_fails("a.csv", "a,0", "x", "column 0 is chosen twice");
    pick_fails("a.csv", "", "x", "no column ''");
    put_text("a.csv", "1,2\n3,4.5\n");
    CHECK_EQ_INT(pick("a.csv", "1", "x", true, &a, &d), ERR_USER);
    CHECK_HAS(d.text.data,
              "'4.5' is not a whole number, which this input needs");
    sb_free(&d.text);
    static const char *const beyond[] = {"9223372036854775808",
                                         "-9223372036854775809", "1e400"};
    for (int i = 0; i < 3; i++) {
        char text[60];
        snprintf(text, sizeof text, "1,2\n3,%s\n", beyond[i]);
        put_text("a.csv", text);
        CHECK_EQ_INT(pick("a.csv", "1", "x", true, &a, &d), ERR_USER);
        CHECK_HAS(d.text.data,
                  i < 2 ? "is beyond 64 bits" : "not a whole number");
        sb_free(&d.text);
        d = (Diag){0};
    }
    for (int i = 0; i < 2; i++) {
        put_text("a.csv", i ? "1,2\n3,-1e400\n" : "1,2\n3,1e400\n");
        pick_fails("a.csv", NULL, "x", "1e400' is beyond every type");
    }
    put_text("a.csv", "1,2\n-inf,1e-400\n"); /* the data contain it; it is
                                                rounded */
    REQUIRE(pick("a.csv", NULL, "x", false, &a, &d) == OK);
    array_close(&a);
    put_text("a.csv", "1,2\n3,-9223372036854775808\n");
    REQUIRE(pick("a.csv", "1", "x", true, &a, &d) == OK);
    array_close(&a);
    /* no numbers in two parts */
    put_text("a.csv", "1,\"2\"\"3\"\n");
    pick_fails("a.csv", NULL, "x",
               "line 1, column 2: '2\\\"3' is not a number");
    put_text("a.csv", "1,2\n1,2\"3\"\n");
    pick_fails("a.csv", NULL, "x", "line 2, column 2: '2\\\"3");
    REQUIRE(test_write_file(test_tmp("a.csv"), "1,2\n3,4\0005\n", 10));
    pick_fails("a.csv", NULL, "x", "line 2, column 2: '4' ends in a byte 0");
    REQUIRE(test_write_file(test_tmp("a.csv"), "1\0,\0002\0\n\0", 8));
    pick_fails("a.csv", NULL, "x", "iconv -f UTF-16 -t UTF-8");
    put_text("a.csv", "1,\n");
    pick_fails("a.csv", NULL, "x", "line 1, column 2: '' is not a number");
    /* a typing error, not a line of names */
    put_text("a.csv", "1,2.5.1\n3,4\n");
    pick_fails("a.csv", NULL, "x", "line 1, column 2: '2.5.1' is not a number");
    pick_fails("a.csv", "1", "x", "line 1, column 2: '2.5.1' is not a number");
    put_text("a.csv", "NA,1,2\n3,4,5\n"); /* a missing number, no name */
    pick_fails("a.csv", NULL, "x", "line 1, column 1: 'NA' is not a number");
    enum { MOST = 1 << 20 }; /* columns */
    char *row = malloc(2 * (MOST + 1) + 1);
    for (int i = 0; i <= MOST; i++) memcpy(row + 2 * i, "1,", 3);
    row[2 * MOST - 1] = 0;
    put_text("a.csv", row);
    REQUIRE(pick("a.csv", NULL, "x", false, &a, &d) == OK);
    CHECK_EQ_INT(a.dim[1], MOST);
    array_close(&a);
    row[2 * MOST - 1] = ',';
    row[2 * MOST + 1] = 0;
    put_text("a.csv", row);
    pick_fails("a.csv", NULL, "x", "a line has more than 1048576 columns");
    free(row);
    char long_field[600];
    memset(long_field, '1', sizeof long_field - 1);
    long_field[599] = 0;
    put_text("a.csv", long_field);
    pick_fails("a.csv", NULL, "x", "is too long");
    put_text("a.dat", "1,2\n");
    pick_fails("a.dat", NULL, "x",
               "has no format that can be read: .npy, .npz, "
               "IDX, CIFAR, safetensors, tokens (.bin), text (.txt), .csv");
    write_npy("p.npy", AMPC_DTYPE_F32, 1, (int64_t[]){1}, long_field);
    pick_fails("p.npy", "part", "x", "a .npy file has no parts");
}

TEST_CASE(feed, a_long_path_to_a_damaged_file) {
    char name[1400] = "";
    for (int i = 0; i < 600; i++) strcat(name, "./");
    strcat(name, "long.safetensors");
    REQUIRE(test_write_file(test_tmp("long.safetensors"), "\2\0\0\0\0\0\0\0{\"",
                            10));
    char path[2100];
    Diag d = {0};
    Array a;
    snprintf(path, sizeof path, "%s/%s", test_tmpdir(), name);
    CHECK_EQ_INT(array_open(&d, path, NULL, &a), ERR_USER);
    CHECK_HAS(d.text.data, "damaged safetensors file: ");
    sb_free(&d.text);
}
