/* SPDX-License-Identifier: Apache-2.0 */
/* data_test.c: `ampc data`, CIFAR's files, and unsupported kinds of files. */
#include <stdlib.h>
#include <string.h>

#include "frontend/data/feed.h"
#include "frontend/data/images.h"
#include "tests/harness.h"

/* ---- CIFAR --------------------------------------------------------------- */

enum { PIXELS = 3072, RECORDS = 50 };

static unsigned char pixel(int record, int i) {
    return (unsigned char)(record * 7 + i * 31);
}

/* Records with that number of labels: record % 10, and 7 less. */
static size_t write_cifar(const char *name, int labels) {
    size_t n = (size_t)(RECORDS * (labels + PIXELS));
    unsigned char *file = malloc(n), *p = file;
    REQUIRE(file);
    for (int r = 0; r < RECORDS; r++) {
        for (int k = labels; k-- > 0;) *p++ = (unsigned char)(r % 10 + 7 * k);
        for (int i = 0; i < PIXELS; i++) *p++ = pixel(r, i);
    }
    REQUIRE(test_write_file(test_tmp(name), file, n));
    free(file);
    return n;
}

static Array opened(const char *name, const char *part, bool integers) {
    Diag d = {0};
    Array a;
    ArrayPick pick = {.part = part, .input = "x", .integers = integers};
    if (array_open(&d, test_tmp(name), &pick, &a) != OK)
        FAIL("%s", d.text.data);
    return a;
}

static void check_labels(const char *name, const char *part, int more) {
    Array a = opened(name, part, true);
    REQUIRE(a.dtype == AMPC_DTYPE_U8 && a.rank == 1 && a.dim[0] == RECORDS);
    for (int r = 0; r < RECORDS; r++) CHECK_EQ_INT(a.memory[r], r % 10 + more);
    array_close(&a);
}

static void check_pictures(const char *name) {
    Array a = opened(name, NULL, false);
    REQUIRE(a.dtype == AMPC_DTYPE_U8 && a.rank == 4 && a.dim[0] == RECORDS);
    CHECK(a.dim[1] == 3 && a.dim[2] == 32 && a.dim[3] == 32);
    for (int r = 0; r < RECORDS; r++)
        for (int i = 0; i < PIXELS; i++)
            CHECK_EQ_INT((unsigned char)a.memory[r * PIXELS + i], pixel(r, i));
    array_close(&a);
}

TEST_CASE(data, cifar_has_pictures_and_labels) {
    write_cifar("ten.bin", 1);
    write_cifar("hundred.bin", 2);
    check_pictures("ten.bin");
    check_pictures("hundred.bin");
    check_labels("ten.bin", NULL, 0);
    check_labels("hundred.bin", NULL, 0);
    check_labels("hundred.bin", "fine", 0);
    check_labels("hundred.bin", "coarse", 7);
}

static void refused(const char *name, const char *part, const char *why) {
    Diag d = {0};
    Array a;
    ArrayPick pick = {.part = part, .input = "x"};
    CHECK_EQ_INT(array_open(&d, test_tmp(name), &pick, &a), ERR_USER);
    CHECK_HAS(d.text.data, why);
    sb_free(&d.text);
}

static void put_text(const char *name, const char *text) {
    REQUIRE(test_write_file(test_tmp(name), text, strlen(text)));
}

TEST_CASE(data, cifar_that_is_cut_off_is_refused) {
    char *file;
    size_t n = write_cifar("ten.bin", 1);
    file = test_read_file(test_tmp("ten.bin"), NULL);
    REQUIRE(file && test_write_file(test_tmp("cut.bin"), file, n - 100));
    free(file);
    refused("cut.bin", NULL, "a record of 3073 bytes is not whole");
    refused("ten.bin", "fine", "no part 'fine' (FILE:PART chooses)");
}

/* Tokens of small vocabularies are recognised as tokens. */
TEST_CASE(data, tokens_are_not_cifar) {
    uint16_t tokens[4 * 3073];
    for (size_t i = 0; i < 4 * 3073; i++) tokens[i] = (uint16_t)(i % 5);
    REQUIRE(test_write_file(test_tmp("t.bin"), (char *)tokens, sizeof tokens));
    Array a = opened("t.bin", NULL, false);
    CHECK(a.windows && a.dtype == AMPC_DTYPE_U16);
    array_close(&a);
}

/* ---- what is not read ---------------------------------------------------- */

TEST_CASE(data, kinds_that_are_not_read_have_a_command) {
    static const struct {
        const char *bytes;
        size_t n;
        const char *what, *how;
    } rows[] = {
        {"PAR1\0\0\0\0", 8, "a Parquet file", "pandas.read_parquet('"},
        {"ARROW1\0\0", 8, "an Arrow (Feather) file", "pandas.read_feather('"},
        {"\x89HDF\r\n\x1a\n", 8, "an HDF5 file", "h5py.File('"},
        {"\x80\x04\x95\0\0", 5, "a pickle", "pickle.load(open('"},
        {"RIFF\0\0\0\0WEBPVP8 ", 16, "a WebP picture", "Image.open('"},
        {"GIF89a\0\0", 8, "a GIF picture", "Image.open('"},
        {"\x89PNG\r\n\x1a\n", 8, "a PNG picture", "FOLDER/CLASS/FILE"},
        {"{\"x\": 1}", 8, "a JSON text", "pandas.read_json('"}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        REQUIRE(test_write_file(test_tmp("odd"), rows[i].bytes, rows[i].n));
        refused("odd", NULL, rows[i].what);
        refused("odd", NULL, rows[i].how);
    }
    REQUIRE(test_write_file(test_tmp("$(no)\".gif"), "GIF89a\0\0", 8));
    refused("$(no)\".gif", NULL, "Image.open('FILE').convert('RGB')");
    refused("$(no)\".gif", NULL, "rename it to FILE first");
    REQUIRE(test_write_file(test_tmp("odd"), "", 0));
    refused("odd", NULL, "the file is empty");
    REQUIRE(test_write_file(test_tmp("odd"), "what?", 5));
    refused("odd", NULL,
            "has no format that can be read: .npy, .npz, IDX, "
            "CIFAR, safetensors");
}

/* Whatever the name of the file: csv and text are chosen by it. */
TEST_CASE(data, what_lies_in_a_files_place) {
    static const char pointer[] =
        "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a2146\n"
        "size 12345\n";
    static const char *const names[] = {"p.csv", "p.txt", "p.bin",
                                        "p.npy", "p.tsv", "p"};
    static const char *const pages[] = {"<!DOCTYPE html>\n<p>",
                                        "\n<!doctype Html>",
                                        "\xef\xbb\xbf<HTML lang=en>"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        put_text(names[i], pointer);
        refused(names[i], NULL,
                "a pointer of Git LFS, not the file itself: "
                "git lfs pull fetches it");
        for (size_t k = 0; k < sizeof pages / sizeof *pages && i != 1; k++) {
            put_text(names[i], pages[k]);
            refused(names[i], NULL, "a web page about the file: fetch");
        }
    }
    Diag d = {0};
    Array a;
    put_text("p.txt", pages[0]);
    REQUIRE(array_open(&d, test_tmp("p.txt"), NULL, &a) == OK);
    CHECK_HAS(d.text.data, "warning: a web page about the file");
    CHECK_HAS(d.text.data, "it is read as a text");
    array_close(&a);
    sb_free(&d.text);
}

/* ---- the command --------------------------------------------------------- */

static void check_says(int status, const char *words, const char *const *says) {
    char *out;
    int rc = test_command(&out, "cd '%s' && '%s' data %s", test_tmpdir(),
                          test_ampc(), words);
    CHECK_MSG(rc == status, "ampc data %s: status %d\n%s", words, rc, out);
    for (; *says; says++) CHECK_HAS(out, *says);
    free(out);
}

#define SAYS(status, words, ...)                                               \
    check_says(status, words, (const char *const[]){__VA_ARGS__, NULL})

TEST_CASE(data, says_what_is_in_a_file) {
    char words[600];
    put_text("t.csv", "age,name,label,kind\n1.5,a,0,bee\n2.5,b,1,ant\n"
                      "3.5,c,1,bee\n");
    put_text("t.txt", "abcabc");
    put_text("one.csv", "word\nant\n");
    put_text("same.csv", "word\nant\nant\n");
    put_text("two.csv", "word\nant\nbee\n");
    write_cifar("ten.bin", 1);
    SAYS(0, "t.csv ten.bin",
         "t.csv: .csv\n  0 age: f64 3, 1.5 to 3.5, mean 2.5",
         "  1 name: 3 words, all different: a, b, c\n",
         "  3 kind: 3 words, 2 classes: 0 ant (1), 1 bee (2)\n",
         "  fed by part: --feed INPUT=t.csv:age\n",
         "  2 label: i64 3, 0 to 1, mean 0.6667; 2 classes: 1 2\n",
         "ten.bin: CIFAR\n  images: u8 50x3x32x32, 0 to 255",
         "  labels: u8 50, 0 to 9, mean 4.5; 10 classes: 5 5 5");
    SAYS(0, "one.csv", ": 1 words, 1 class: 0 ant (1)\n");
    SAYS(0, "same.csv", ": 2 words, 1 class: 0 ant (2)\n");
    SAYS(0, "two.csv", ": 2 words, all different: ant, bee\n");
    SAYS(0, "t.txt t.csv:label",
         "u8 5, 97 to 99, mean 97.8; 3 tokens below 100",
         "--feed INPUT=t.txt --feed target=t.txt:+1", "  label: i64 3, 0 to 1");
    snprintf(words, sizeof words, "'%s'", test_data_path("tests/images"));
    SAYS(0, words, ": a folder of pictures\n  8 pictures, ",
         "; 2 classes: 0 ant (4), 1 bee (4)\n");
    SAYS(1, "t.csv none", "t.csv: .csv", "none: error: No such file");
    SAYS(2, "", "a file is missing");
    SAYS(2, "t.csv --dim B=3", "--dim is for a model");
}

static const char model[] =
    "dim B = 4\n"
    "model m(x: f32[B,3,7,9]) {\n"
    "  return y = Linear(reshape(x, shape=[B,189]), units=2)\n"
    "}\n"
    "train m { loss = cross_entropy }\n";

/* A module and its model give the same answer. */
TEST_CASE(data, says_which_inputs_a_file_fits) {
    char words[1200], *out;
    const char *images = test_data_path("tests/images");
    put_text("m.amp", model);
    put_text("y.csv", "1\n0\n1\n0\n1\n");
    int rc = test_command(&out,
                          "cd '%s' && AMPC_LIBNVRTC=none '%s' m.amp -o "
                          "m.so --target cpu:x86-64-v2",
                          test_tmpdir(), test_ampc());
    CHECK_MSG(rc == 0, "%s", out);
    free(out);
    for (int i = 0; i < 2; i++) {
        snprintf(words, sizeof words, "'%s' y.csv %s", images,
                 i ? "m.so" : "m.amp");
        SAYS(0, words,
             "  for x f32[4,3,7,9]: fits: 8 samples, 2 batches of 4; u8 "
             "8x3x7x9, divided by 255\n",
             "  for target i64[4]: fits: 8 samples, 2 batches of 4; 2 classes: "
             "0 ant, 1 bee\n",
             "  for x f32[4,3,7,9]: no: f64[5] does not fit input 'x' "
             "f32[4,3,7,9]: element counts differ\n",
             "  for target i64[4]: fits: 5 samples, 1 batch of 4 and one of "
             "1\n");
        SAYS(1, i ? "x=y.csv m.so" : "x=y.csv m.amp",
             "y.csv: error: does not fit input 'x'");
    }
    SAYS(0, "y.csv m.amp --dim B=2", "fits: 5 samples, 2 batches of 2");
    SAYS(2, "m.so", "a data file is missing");
}
