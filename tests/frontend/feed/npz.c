/* SPDX-License-Identifier: Apache-2.0 */
/* npz.c: .npz archives. */
#define _GNU_SOURCE
#include "tests/frontend/feed/files.h"

#include <stdio.h>
#include <stdlib.h>
#include <zlib.h>

#include "runtime/program/dtype.h"

static void zip_add_npy(Zip *z, const char *name, const float *data, int64_t n,
                        bool deflate_it) {
    StrBuf sb = {0};
    npy_header(&sb, AMPC_DTYPE_F32, 1, &n);
    sb_putn(&sb, (const char *)data, (size_t)n * 4);
    zip_add(z, name, sb.data, sb.len, deflate_it);
    sb_free(&sb);
}

TEST_CASE(npz, arrays_by_name) {
    float x[3] = {1, 2, 3}, t[2] = {7, 8};
    for (int way = 0; way < 4; way++) {
        Zip z = {.wide = way & 1};
        zip_add(&z, "notes.txt", "hello", 5, false);
        zip_add_npy(&z, "x.npy", x, 3, way & 2);
        zip_add_npy(&z, "t.npy", t, 2, way & 2);
        zip_write(&z, "a.npz");
        Diag d = {0};
        Array a;
        REQUIRE(pick("a.npz", NULL, "t", false, &a, &d) == OK);
        CHECK(a.rank == 1 && a.dim[0] == 2 && ((float *)a.memory)[1] == 8);
        array_close(&a);
        REQUIRE(pick("a.npz", "x", "t", false, &a, &d) == OK);
        CHECK(a.dim[0] == 3);
        CHECK_MEM(a.memory, x, 12);
        array_close(&a);
        pick_fails(
            "a.npz", NULL, "y",
            "no array 'y' (FILE.npz:ARRAY chooses); the file has 2: 'x', 't'");
        pick_fails("a.npz", "z", "t", "no array 'z'");
    }
    Zip one = {.n = 0};
    zip_add_npy(&one, "arr_0.npy", x, 3, false);
    zip_write(&one, "one.npz");
    Diag d = {0};
    Array a;
    REQUIRE(pick("one.npz", NULL, "t", false, &a, &d) == OK);
    array_close(&a);
    Zip none = {.n = 0};
    zip_add(&none, "data.pkl", "hello", 5, false);
    zip_write(&none, "model.pt");
    pick_fails("model.pt", NULL, "t", "a zip file without .npy arrays");
    Zip twice = {.n = 0};
    zip_add_npy(&twice, "t.npy", t, 2, false);
    zip_add_npy(&twice, "x.npy", x, 3, false);
    zip_add_npy(&twice, "t.npy", x, 2, false);
    zip_write(&twice, "twice.npz");
    pick_fails("twice.npz", NULL, "t", "two arrays are named 't'");
    REQUIRE(pick("twice.npz", "x", "t", false, &a, &d) == OK);
    array_close(&a);
}

/* Arrays that cannot be read, from their directory entries. */
TEST_CASE(npz, packed_in_other_ways) {
    static const struct {
        size_t at; /* in the directory entry */
        char byte;
        const char *why;
    } rows[] = {{8, 1, "the array is encrypted"},
                {10, 9, "the array is compressed by an unsupported method (9)"},
                {20, 1, "damaged or truncated zip file"},
                {45, 1, "truncated"}};
    float x[2] = {1, 2};
    size_t n;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        Zip z = {.n = 0};
        zip_add_npy(&z, "x.npy", x, 2, false);
        size_t entry = z.file.len;
        zip_write(&z, "a.npz");
        char *file = test_read_file(test_tmp("a.npz"), &n);
        file[entry + rows[i].at] = rows[i].byte;
        REQUIRE(test_write_file(test_tmp("a.npz"), file, n));
        pick_fails("a.npz", NULL, "x", rows[i].why);
        free(file);
    }
    Zip z = {.n = 0};
    zip_add_npy(&z, "x.npy", x, 2, false);
    zip_write(&z, "a.npz");
    char *file = test_read_file(test_tmp("a.npz"), &n);
    gzFile f = gzopen(test_tmp("a.npz.gz"), "wb");
    REQUIRE(f && gzwrite(f, file, (unsigned)n) == (int)n);
    gzclose(f);
    free(file);
    pick_fails("a.npz.gz", NULL, "x", "a gzipped .npz file is not read");
    f = gzopen(test_tmp("t.bin"), "wb");
    REQUIRE(f && gzwrite(f, x, sizeof x) == sizeof x);
    gzclose(f);
    pick_fails("t.bin", NULL, "x", "gzipped tokens are not read");
}

/* Any truncation and any changed byte gives an error or an array, never a
   crash; every change of a deflated array is noticed. */
TEST_CASE(npz, damaged) {
    float x[16];
    for (int i = 0; i < 16; i++) x[i] = (float)i;
    for (int way = 0; way < 4; way++) {
        Zip z = {.wide = way & 1};
        zip_add_npy(&z, "x.npy", x, 16, way & 2);
        zip_write(&z, "b.npz");
        size_t n;
        char *file = test_read_file(test_tmp("b.npz"), &n);
        Array a;
        for (size_t i = 0; i < n; i++) {
            Diag d = {0};
            CHECK_EQ_INT(read_bytes(file, i, &a, &d), ERR_USER);
            file[i] ^= 0x15;
            if (read_bytes(file, n, &a, &d) == OK) {
                if (way & 2 && a.count == 16) CHECK_MEM(a.memory, x, 64);
                array_close(&a);
            }
            file[i] ^= 0x15;
            sb_free(&d.text);
        }
        free(file);
    }
}

/* The extension is truncated before its last number; reading on would find
   the right number. */
TEST_CASE(npz, sizes_behind_their_extension) {
    float x[2] = {1, 2};
    Zip z = {.wide = true};
    zip_add_npy(&z, "x.npy", x, 2, false);
    char *length = z.directory.data + z.directory.len - 26;
    REQUIRE(*length == 24);
    *length = 16;
    zip_write(&z, "cut.npz");
    pick_fails("cut.npz", NULL, "x", "damaged or truncated zip file");
}
