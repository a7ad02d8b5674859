/* SPDX-License-Identifier: Apache-2.0 */
/* images_test.c: folders of pictures, compared with Pillow's pixels
   (models/record/image_values.py), and files that are not pictures. */
#define _GNU_SOURCE
#include "frontend/data/images.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/harness.h"

enum { PICTURES = 8, WIDTH = 9, HEIGHT = 7 };

static ampc_tensor_info input(int rank, const int64_t *shape, int dtype) {
    ampc_tensor_info t = {.name = "x", .dtype = dtype, .rank = rank};
    memcpy(t.shape, shape, (size_t)rank * sizeof *shape);
    return t;
}

static Array opened(const char *folder, const ampc_tensor_info *want) {
    Diag d = {0};
    Array a;
    if (images_open(&d, folder, want, NULL, &a) != OK) FAIL("%s", d.text.data);
    return a;
}

/* Bytes may differ by `most`, in at most one of `part` bytes: Pillow rounds
   fixed-point sums, and converts a JPEG's colours to grey, while we read its
   brightness. */
static void check_bytes(const Array *a, const char *path, int most,
                        size_t part) {
    size_t n, off = 0;
    char *want = test_read_file(test_data_path(path), &n);
    REQUIRE(want && a->memory && a->bytes == n);
    for (size_t i = 0; i < n; i++) {
        int d = (unsigned char)want[i] - (unsigned char)a->memory[i];
        CHECK_MSG(abs(d) <= most, "byte %zu is off by %d", i, d);
        off += d != 0;
    }
    CHECK_MSG(off * part <= n, "%zu of %zu bytes differ", off, n);
    free(want);
}

TEST_CASE(images, are_as_pillow_reads_and_resizes_them) {
    const int64_t rgb[] = {2, 3, HEIGHT, WIDTH}, last[] = {2, HEIGHT, WIDTH, 3},
                  grey[] = {2, 1, HEIGHT, WIDTH};
    const char *folder = test_data_path("tests/images");
    ampc_tensor_info t = input(4, rgb, AMPC_DTYPE_F32);
    Array a = opened(folder, &t), b;
    CHECK(a.dtype == AMPC_DTYPE_U8 && a.rank == 4);
    CHECK(a.dim[0] == PICTURES && a.dim[1] == 3 && a.dim[3] == WIDTH);
    check_bytes(&a, "tests/images.rgb", 1, 15);
    t = input(4, last, AMPC_DTYPE_F32); /* images as before, channels last */
    b = opened(folder, &t);
    CHECK(b.dim[1] == HEIGHT && b.dim[3] == 3);
    enum { PIXELS = HEIGHT * WIDTH };
    for (int i = 0; i < PICTURES * PIXELS * 3; i++) {
        int picture = i / (3 * PIXELS), c = i / PIXELS % 3, at = i % PIXELS;
        CHECK(a.memory[i] == b.memory[(picture * PIXELS + at) * 3 + c]);
    }
    array_close(&a);
    array_close(&b);
    t = input(4, grey, AMPC_DTYPE_F32);
    a = opened(folder, &t);
    check_bytes(&a, "tests/images.grey", 2, 3);
    array_close(&a);
}

TEST_CASE(images, folders_are_classes) {
    const int64_t batch[] = {4};
    ampc_tensor_info t = input(1, batch, AMPC_DTYPE_I64);
    Array a = opened(test_data_path("tests/images"), &t);
    REQUIRE(a.dtype == AMPC_DTYPE_I64 && a.dim[0] == PICTURES);
    for (int i = 0; i < PICTURES; i++)
        CHECK_EQ_INT(((int64_t *)a.memory)[i], i >= 4);
    array_close(&a);
}

/* Evaluation has the numbers of training: a folder that lacks a class. */
TEST_CASE(images, known_classes_keep_their_numbers) {
    const int64_t batch[] = {4};
    ampc_tensor_info t = input(1, batch, AMPC_DTYPE_I64);
    const char *folder = test_data_path("tests/images");
    Classes known;
    Diag d = {0};
    Array a;
    REQUIRE(classes_make(&known, (const char *[]){"bee", "aphid", "ant"}, 3));
    REQUIRE(images_open(&d, folder, &t, &known, &a) == OK);
    for (int i = 0; i < PICTURES; i++)
        CHECK_EQ_INT(((int64_t *)a.memory)[i], i >= 4 ? 2 : 0);
    CHECK(a.classes.n == 3 && !strcmp(a.classes.name[1], "aphid"));
    array_close(&a);
    classes_free(&known);
    REQUIRE(classes_make(&known, (const char *[]){"bee", "fly", "bee"}, 3));
    CHECK_EQ_INT(known.n, 2);
    CHECK_EQ_INT(images_open(&d, folder, &t, &known, &a), ERR_USER);
    CHECK_HAS(d.text.data,
              "/ant: error: is not one of the 2 classes that train: bee, fly");
    sb_free(&d.text);
    classes_free(&known);
}

/* ---- pictures that a table names ----------------------------------------- */

static void table(const char *name, const char *text) {
    REQUIRE(test_write_file(test_tmp(name), text, strlen(text)));
}

TEST_CASE(images, a_column_names_pictures) {
    const int64_t rgb[] = {2, 3, HEIGHT, WIDTH};
    ampc_tensor_info t = input(4, rgb, AMPC_DTYPE_F32);
    Diag d = {0};
    Array a, all = opened(test_data_path("tests/images"), &t);
    StrBuf sb = {0};
    bool found;
    const char *bee = test_data_path("tests/images/bee/colour.jpg");
    size_t n;
    char *file =
        test_read_file(test_data_path("tests/images/ant/colour.png"), &n);
    REQUIRE(file && test_write_file(test_tmp("1.png"), file, n));
    free(file);
    sb_printf(&sb, "file,label,width\n%s,bee,9\n1.png,ant,9\n", bee);
    table("list.csv", sb.data);
    REQUIRE(images_of_table(&d, test_tmp("list.csv"), "file", &t, &a, &found) ==
            OK);
    REQUIRE(found && a.rank == 4 && a.dim[0] == 2);
    size_t one = a.bytes / 2;
    int same[2] = {-1, -1};
    for (int i = 0; i < PICTURES; i++)
        for (int k = 0; k < 2; k++)
            if (!memcmp(a.memory + (size_t)k * one,
                        all.memory + (size_t)i * one, one))
                same[k] = i;
    CHECK(same[0] >= 4 && same[1] >= 0 && same[1] < 4);
    array_close(&a);
    array_close(&all);
    /* numbers are refused as pictures; a missing file is named, with the table
     */
    REQUIRE(images_of_table(&d, test_tmp("list.csv"), "width", &t, &a,
                            &found) == OK);
    CHECK(!found);
    table("list.csv", "file\nnone.png\n");
    CHECK_EQ_INT(
        images_of_table(&d, test_tmp("list.csv"), "file", &t, &a, &found),
        ERR_USER);
    CHECK_HAS(d.text.data, "/none.png: error: No such file");
    CHECK_HAS(d.text.data, "names it, relative to its own folder");
    sb_free(&d.text);
    sb_free(&sb);
}

/* ---- what is refused ----------------------------------------------------- */

static void refuse(const char *folder, int rank, const char *why) {
    const int64_t shape[] = {2, 3, HEIGHT, WIDTH};
    ampc_tensor_info t =
        input(rank, shape, rank == 1 ? AMPC_DTYPE_I64 : AMPC_DTYPE_F32);
    Diag d = {0};
    Array a;
    CHECK_EQ_INT(images_open(&d, folder, &t, NULL, &a), ERR_USER);
    CHECK_HAS(d.text.data, why);
    sb_free(&d.text);
}

static void put(const char *name, const char *from, size_t most) {
    size_t n;
    char *file = test_read_file(test_data_path(from), &n);
    REQUIRE(file);
    REQUIRE(test_write_file(test_tmp(name), file, n < most ? n : most));
    free(file);
}

TEST_CASE(images, what_is_no_picture_is_refused) {
    const char *folder = test_tmp("f"), *class = test_tmp("f/c");
    REQUIRE(mkdir(folder, 0755) == 0 && mkdir(class, 0755) == 0);
    REQUIRE(test_write_file(test_tmp("f/c/.hidden"), "no", 2));
    put("f/c/x", "tests/images/bee/colour.jpg", 400);
    refuse(folder, 4, ": error: damaged JPEG file: Premature end");
    put("f/c/x", "tests/images/ant/colour.png", 300);
    refuse(folder, 4, ": error: damaged PNG file: truncated");
    put("f/c/x", "tests/images/ant/colour.png", 40);
    refuse(folder, 4, "damaged PNG file");
    REQUIRE(test_write_file(test_tmp("f/c/x"), "GIF89a..", 8));
    refuse(folder, 4, "a GIF picture, which is not read as it is: python3");
    REQUIRE(test_write_file(test_tmp("f/c/x"), "<html>", 6));
    refuse(folder, 4, ": error: a web page about the file: fetch");
    REQUIRE(test_write_file(test_tmp("f/c/x"), "some text", 9));
    refuse(folder, 4, "neither PNG nor JPEG");
    put("f/c/x", "tests/images/ant/colour.png", 1 << 20);
    refuse(folder, 3, "[batch, channels, height, width]");
    put("f/y", "tests/images/ant/colour.png", 1 << 20);
    refuse(folder, 4, "a folder holds pictures, or folders of classes alone");
    REQUIRE(unlink(test_tmp("f/c/x")) == 0 &&
            unlink(test_tmp("f/c/.hidden")) == 0 && rmdir(class) == 0);
    refuse(folder, 1, "has no folders of classes");
}

/* Every truncation and every changed byte of a file gives a message or a
   picture. */
TEST_CASE(images, damaged_files_end_nothing) {
    static const char *const files[] = {"tests/images/ant/palette.png",
                                        "tests/images/bee/progressive.jpg"};
    char why[100];
    Picture p;
    for (int k = 0; k < 2; k++) {
        size_t n;
        char *file = test_read_file(test_data_path(files[k]), &n);
        REQUIRE(file);
        for (size_t i = 0; i < n; i++) {
            unsigned char *cut = malloc(i + 1); /* sanitizers check its end */
            memcpy(cut, file, i);
            if (picture_decode(cut, i, 3, &p, why)) free(p.pixels);
            free(cut);
            file[i] ^= (char)(1 + i % 255);
            if (picture_decode((unsigned char *)file, n, 1, &p, why))
                free(p.pixels);
            file[i] ^= (char)(1 + i % 255);
        }
        free(file);
    }
}
