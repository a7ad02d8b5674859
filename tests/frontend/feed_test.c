/* SPDX-License-Identifier: Apache-2.0 */
/* feed_test.c: data files as `ampc run` reads them: layouts, damage, and sizes
   that lie.  What is read is compared with what was written here by hand.   */
#define _GNU_SOURCE
#include "frontend/data/feed.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#include <zlib.h>

#include "runtime/program/dtype.h"
#include "tests/harness.h"

/* ---- helpers ------------------------------------------------------------- */

static void write_npy(const char *name, int dtype, int rank, const int64_t *dim,
                      const void *data) {
    StrBuf sb = {0};
    size_t n = dtype_bytes((uint32_t)dtype);
    for (int i = 0; i < rank; i++) n *= (size_t)dim[i];
    npy_header(&sb, dtype, rank, dim);
    sb_putn(&sb, data, n);
    REQUIRE(test_write_file(test_tmp(name), sb.data, sb.len));
    sb_free(&sb);
}

/* ---- array files --------------------------------------------------------- */

static Status read_bytes(const char *data, size_t n, Array *a, Diag *d) {
    REQUIRE(test_write_file(test_tmp("array"), data, n));
    return array_open(d, test_tmp("array"), NULL, a);
}

static Status read_npy_header(const char *dict, const void *data, size_t n,
                              Array *a, Diag *d) {
    char file[1024] = "\x93NUMPY\1";
    size_t len = strlen(dict);
    file[8] = (char)len;
    memcpy(file + 10, dict, len);
    if (n) memcpy(file + 10 + len, data, n);
    return read_bytes(file, 10 + len + n, a, d);
}

TEST_CASE(npy, layouts) {
    Diag d = {0};
    Array a;
    short want[6] = {1, 2, 3, 4, 5, 6};
    REQUIRE(read_npy_header("{'descr': '<i2', 'fortran_order': False, "
                            "'shape': (2, 3), }\n",
                            want, 12, &a, &d) == OK);
    CHECK(a.dtype == AMPC_DTYPE_I16 && a.rank == 2 && a.dim[1] == 3);
    CHECK_MEM(a.memory, want, 12);
    array_close(&a);
    REQUIRE(read_npy_header("{\"shape\":(2,3),'fortran_order':True,"
                            "'descr':'>i2'}",
                            "\0\1\0\4\0\2\0\5\0\3\0\6", 12, &a, &d) == OK);
    CHECK_MEM(a.memory, want, 12);
    array_close(&a);
    REQUIRE(read_npy_header("{'descr':'|b1','fortran_order':False,'shape':()}",
                            "\1", 1, &a, &d) == OK);
    CHECK(a.rank == 0 && a.count == 1);
    array_close(&a);
}

/* Byte for byte what numpy.save puts in front of the data. */
TEST_CASE(npy, headers_are_numpys) {
    static const struct {
        int dtype;
        const char *descr;
    } types[] = {{AMPC_DTYPE_BOOL, "|b1"}, {AMPC_DTYPE_U8, "|u1"},
                 {AMPC_DTYPE_I8, "|i1"},   {AMPC_DTYPE_I16, "<i2"},
                 {AMPC_DTYPE_I32, "<i4"},  {AMPC_DTYPE_I64, "<i8"},
                 {AMPC_DTYPE_F16, "<f2"},  {AMPC_DTYPE_F32, "<f4"},
                 {AMPC_DTYPE_F64, "<f8"}};
    static const char *const shapes[] = {"()", "(7,)", "(7, 0)",
                                         "(7, 0, 12345)", "(7, 0, 12345, 1)"};
    const int64_t dim[] = {7, 0, 12345, 1};
    for (size_t i = 0; i < sizeof types / sizeof *types; i++)
        for (int rank = 0; rank <= 4; rank++) {
            char want[200];
            StrBuf sb = {0};
            npy_header(&sb, types[i].dtype, rank, dim);
            int n = snprintf(want, sizeof want,
                             "{'descr': '%s', 'fortran_order': False, "
                             "'shape': %s, }",
                             types[i].descr, shapes[rank]);
            int pad = 63 - (10 + n) % 64;
            snprintf(want + n, sizeof want - (size_t)n, "%*s\n", pad, "");
            REQUIRE(sb.len == 10 + strlen(want));
            CHECK_MEM(sb.data, "\x93NUMPY\1\0", 8);
            CHECK_EQ_INT(sb.data[8] + 256 * sb.data[9], strlen(want));
            CHECK_STR(sb.data + 10, want);
            sb_free(&sb);
        }
}

TEST_CASE(npy, damaged) {
    static const char *const dicts[] = {
        "",
        "{}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3)",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (7,)}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (5,)}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (-1,)}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': 6}",
        "{'descr': '<f4', 'fortran_order': 1, 'shape': (6,)}",
        "{'descr': '<U4', 'fortran_order': False, 'shape': (6,)}",
        "{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (6,)}",
        "{'descr': '<f4', 'fortran_order': False, "
        "'shape': (4611686018427387904, 4)}",
        "{'descr': '<f4', 'fortran_order': False, "
        "'shape': (99999999999999999999,)}",
        "{'descr': '<f4', 'fortran_order': False, "
        "'shape': (1,1,1,1,1,1,1,1,6)}"};
    float data[6] = {0};
    Array a;
    for (size_t i = 0; i < sizeof dicts / sizeof *dicts; i++) {
        Diag d = {0};
        CHECK_MSG(read_npy_header(dicts[i], data, 24, &a, &d) == ERR_USER, "%s",
                  dicts[i]);
        CHECK(d.errors == 1 && a.memory == NULL);
        sb_free(&d.text);
    }
}

/* A scalar needs nothing of them but that they are there. */
TEST_CASE(npy, each_member_is_needed) {
    static const char *const members[] = {
        "'descr': '<f4', ", "'fortran_order': False, ", "'shape': (), "};
    for (int lacks = 0; lacks <= 3; lacks++) {
        char dict[100] = "{";
        float x = 1;
        Diag d = {0};
        Array a = {0};
        for (int i = 0; i < 3; i++)
            if (i != lacks) strcat(dict, members[i]);
        strcat(dict, "}");
        Status want = lacks < 3 ? ERR_USER : OK;
        CHECK_MSG(read_npy_header(dict, &x, sizeof x, &a, &d) == want, "%s",
                  dict);
        array_close(&a);
        sb_free(&d.text);
    }
}

/* Any cut and any one byte changed: an error or an array, never a crash. */
TEST_CASE(npy, truncated) {
    float data[6] = {1, 2, 3, 4, 5, 6};
    char idx[16 + 4] = {0, 0, 8, 2, 0, 0, 0, 2, 0, 0, 0, 2, 1, 2, 3, 4};
    Array a;
    write_npy("cut.npy", AMPC_DTYPE_F32, 2, (int64_t[]){2, 3}, data);
    size_t n;
    char *file = test_read_file(test_tmp("cut.npy"), &n);
    for (size_t i = 0; i < n; i++) {
        Diag d = {0};
        CHECK_EQ_INT(read_bytes(file, i, &a, &d), ERR_USER);
        file[i] ^= 0x11;
        if (read_bytes(file, n, &a, &d) == OK) array_close(&a);
        file[i] ^= 0x11;
        sb_free(&d.text);
    }
    for (size_t i = 0; i < 16; i++) {
        Diag d = {0};
        CHECK_EQ_INT(read_bytes(idx, i, &a, &d), ERR_USER);
        sb_free(&d.text);
    }
    Diag d = {0};
    char *more = calloc(1, n + 9);
    memcpy(more, file, n);
    for (size_t i = 1; i <= 9; i++) {
        CHECK_EQ_INT(read_bytes(more, n + i, &a, &d), ERR_USER);
        CHECK_HAS(d.text.data, "more data than its shape");
    }
    CHECK_EQ_INT(read_bytes(idx, 17, &a, &d), ERR_USER);
    free(more);
    REQUIRE(read_bytes(idx, 16, &a, &d) == OK);
    CHECK(a.rank == 2 && a.dim[0] == 2 && a.memory[3] == 4);
    array_close(&a);
    free(file);
}

TEST_CASE(npy, truncated_gzip) {
    char zeros[4000] = {0}, *file;
    size_t n;
    Array a;
    gzFile f = gzopen(test_tmp("z.gz"), "wb");
    write_npy("z.npy", AMPC_DTYPE_F32, 1, (int64_t[]){1000}, zeros);
    file = test_read_file(test_tmp("z.npy"), &n);
    gzwrite(f, file, (unsigned)n);
    gzclose(f);
    free(file);
    Diag d = {0};
    REQUIRE(array_open(&d, test_tmp("z.gz"), NULL, &a) == OK);
    CHECK_EQ_INT(a.count, 1000);
    array_close(&a);
    file = test_read_file(test_tmp("z.gz"), &n);
    CHECK_EQ_INT(read_bytes(file, n - 4, &a, &d), ERR_USER);
    CHECK_HAS(d.text.data, "gzip");
    sb_free(&d.text);
    free(file);
}

/* One number of the array's, gzipped: `more` bytes behind it, and one of the
   checksum's turned or not. */
static Status read_gzipped(const char *file, size_t n, size_t more, bool turn,
                           Diag *d) {
    char zeros[8] = {0}, *packed;
    size_t size;
    Array a;
    gzFile f = gzopen(test_tmp("e.gz"), "wb1");
    REQUIRE(f && gzwrite(f, file, (unsigned)n) == (int)n &&
            gzwrite(f, zeros, (unsigned)more) == (int)more);
    gzclose(f);
    REQUIRE((packed = test_read_file(test_tmp("e.gz"), &size)));
    if (turn) packed[size - 8] ^= 1;
    REQUIRE(test_write_file(test_tmp("e.gz"), packed, size));
    free(packed);
    Status s = array_open(d, test_tmp("e.gz"), NULL, &a);
    if (s == OK) array_close(&a);
    return s;
}

/* However large the array is. */
TEST_CASE(npy, gzip_ends_where_the_array_does) {
    for (int64_t count = 1; count < 1 << 23; count *= 16) {
        size_t n;
        Diag d = {0};
        float *zeros = calloc((size_t)count, sizeof *zeros);
        write_npy("e.npy", AMPC_DTYPE_F32, 1, &count, zeros);
        char *file = test_read_file(test_tmp("e.npy"), &n);
        REQUIRE(file != NULL);
        CHECK_EQ_INT(read_gzipped(file, n, 0, false, &d), OK);
        CHECK_EQ_INT(read_gzipped(file, n, 1, false, &d), ERR_USER);
        CHECK_HAS(d.text.data, "more data than its shape");
        CHECK_EQ_INT(read_gzipped(file, n, 0, true, &d), ERR_USER);
        CHECK_HAS(d.text.data, "gzip");
        sb_free(&d.text);
        free(file);
        free(zeros);
    }
}

/* Each type of IDX, numbers and sizes of more than one byte, and where it is
   refused. */
TEST_CASE(idx, types_and_ranks) {
    static const struct {
        unsigned char type, bytes[8];
        int dtype;
        double value;
    } rows[] = {{0x08, {200}, AMPC_DTYPE_U8, 200},
                {0x09, {200}, AMPC_DTYPE_I8, -56},
                {0x0b, {0xfe, 0x01}, AMPC_DTYPE_I16, -511},
                {0x0c, {0, 1, 0, 2}, AMPC_DTYPE_I32, 65538},
                {0x0d, {0xc0, 0x20, 0, 0}, AMPC_DTYPE_F32, -2.5},
                {0x0e, {0xc0, 4, 0, 0, 0, 0, 0, 0}, AMPC_DTYPE_F64, -2.5}};
    enum { COUNT = 258 }; /* two bytes of the size */
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char file[8 + COUNT * 8] = {0, 0, (char)rows[i].type, 1, 0, 0, 1, 2};
        size_t each = dtype_bytes((uint32_t)rows[i].dtype);
        Diag d = {0};
        Array a;
        memcpy(file + 8 + (COUNT - 1) * each, rows[i].bytes, each);
        REQUIRE(read_bytes(file, 8 + COUNT * each, &a, &d) == OK);
        CHECK(a.rank == 1 && a.count == COUNT && (int)a.dtype == rows[i].dtype);
        const char *last = a.memory + (COUNT - 1) * each;
        double value = 0;
        switch (rows[i].dtype) {
        case AMPC_DTYPE_U8: value = *(const uint8_t *)last; break;
        case AMPC_DTYPE_I8: value = *(const int8_t *)last; break;
        case AMPC_DTYPE_I16: value = *(const int16_t *)last; break;
        case AMPC_DTYPE_I32: value = *(const int32_t *)last; break;
        case AMPC_DTYPE_F32: value = (double)*(const float *)last; break;
        case AMPC_DTYPE_F64: value = *(const double *)last; break;
        }
        CHECK(value == rows[i].value);
        array_close(&a);
    }
    char deep[4 + 4 * (AMPC_RANK_LIMIT + 1) + 1] = {0, 0, 8, AMPC_RANK_LIMIT};
    Diag d = {0};
    Array a;
    for (int i = 0; i <= AMPC_RANK_LIMIT; i++) deep[7 + 4 * i] = 1;
    REQUIRE(read_bytes(deep, 4 + 4 * AMPC_RANK_LIMIT + 1, &a, &d) == OK);
    CHECK(a.rank == AMPC_RANK_LIMIT && a.count == 1);
    array_close(&a);
    deep[3]++;
    CHECK_EQ_INT(read_bytes(deep, sizeof deep, &a, &d), ERR_USER);
    CHECK_HAS(d.text.data, "IDX file: its rank is 9");
    deep[3] = 2;
    CHECK_EQ_INT(read_bytes(deep, 11, &a, &d), ERR_USER);
    CHECK_HAS(d.text.data, "truncated IDX file");
    sb_free(&d.text);
}

/* The length of the header has two bytes, from version 2 on four. */
TEST_CASE(npy, versions) {
    static const char dict[] =
        "{'descr': '<i2', 'fortran_order': False, 'shape': (1,), }\n";
    for (int version = 0; version < 5; version++) {
        char file[100] = "\x93NUMPY";
        size_t at = version == 1 ? 10 : 12, n = at + sizeof dict - 1 + 2;
        Diag d = {0};
        Array a;
        file[6] = (char)version;
        file[8] = sizeof dict - 1;
        memcpy(file + at, dict, sizeof dict - 1);
        file[n - 2] = 77;
        if (version >= 1 && version <= 3) {
            REQUIRE(read_bytes(file, n, &a, &d) == OK);
            CHECK_EQ_INT(*(short *)a.memory, 77);
            array_close(&a);
            CHECK_EQ_INT(read_bytes(file, n - 3, &a, &d), ERR_USER);
            CHECK_HAS(d.text.data, "truncated .npy file");
        } else {
            CHECK_EQ_INT(read_bytes(file, n, &a, &d), ERR_USER);
            CHECK_HAS(d.text.data, "damaged .npy file: its version");
        }
        sb_free(&d.text);
    }
}

/* ---- zip ----------------------------------------------------------------- */

static void put_number(StrBuf *sb, uint64_t v, int bytes) {
    for (; bytes--; v >>= 8) sb_putn(sb, (char[]){(char)(v & 0xff)}, 1);
}

/* A zip archive as numpy.savez writes it: sizes of the local headers in the
   64-bit extension. */
typedef struct Zip {
    StrBuf file, directory;
    int n;
    bool wide; /* the directory has its sizes in the extension, too */
} Zip;

static void zip_add(Zip *z, const char *name, const void *data, size_t n,
                    bool deflate_it) {
    uLongf packed = compressBound(n);
    unsigned char *p = malloc(packed + 1);
    REQUIRE(p && (!deflate_it || compress2(p, &packed, data, n, 1) == Z_OK));
    const void *body = deflate_it ? p + 2 : data; /* without zlib's own frame */
    uint64_t bytes = deflate_it ? packed - 6 : n, at = z->file.len;
    uint32_t crc = (uint32_t)crc32_z(0, data, n);
    put_number(&z->file, 0x04034b50, 4);
    put_number(&z->file, 45 | (uint64_t)(deflate_it ? 8 : 0) << 32, 10);
    put_number(&z->file, crc, 4);
    put_number(&z->file, UINT64_MAX, 8);
    put_number(&z->file, strlen(name), 2);
    put_number(&z->file, 20, 2);
    sb_puts(&z->file, name);
    put_number(&z->file, 1 | 16 << 16, 4);
    put_number(&z->file, n, 8);
    put_number(&z->file, bytes, 8);
    sb_putn(&z->file, body, bytes);
    put_number(&z->directory, 0x02014b50, 4);
    put_number(&z->directory, 45 | 45 << 16, 4);
    put_number(&z->directory, (uint64_t)(deflate_it ? 8 : 0) << 16, 8);
    put_number(&z->directory, crc, 4);
    put_number(&z->directory, z->wide ? UINT32_MAX : bytes, 4);
    put_number(&z->directory, z->wide ? UINT32_MAX : n, 4);
    put_number(&z->directory, strlen(name), 2);
    put_number(&z->directory, z->wide ? 28 : 0, 2);
    put_number(&z->directory, 0, 8);
    put_number(&z->directory, 0, 2);
    put_number(&z->directory, z->wide ? UINT32_MAX : at, 4);
    sb_puts(&z->directory, name);
    if (z->wide) {
        put_number(&z->directory, 1 | 24 << 16, 4);
        put_number(&z->directory, n, 8);
        put_number(&z->directory, bytes, 8);
        put_number(&z->directory, at, 8);
    }
    z->n++;
    free(p);
}

static void zip_write(Zip *z, const char *name) {
    uint64_t at = z->file.len, bytes = z->directory.len;
    sb_putn(&z->file, bytes ? z->directory.data : "", bytes);
    if (z->wide) {
        uint64_t end = z->file.len;
        put_number(&z->file, 0x06064b50, 4);
        put_number(&z->file, 44, 8);
        put_number(&z->file, 45 | 45 << 16, 4);
        put_number(&z->file, 0, 8);
        put_number(&z->file, (uint64_t)z->n, 8);
        put_number(&z->file, (uint64_t)z->n, 8);
        put_number(&z->file, bytes, 8);
        put_number(&z->file, at, 8);
        put_number(&z->file, 0x07064b50, 4);
        put_number(&z->file, 0, 4);
        put_number(&z->file, end, 8);
        put_number(&z->file, 1, 4);
    }
    put_number(&z->file, 0x06054b50, 4);
    put_number(&z->file, 0, 4);
    put_number(&z->file, (uint64_t)z->n, 2);
    put_number(&z->file, (uint64_t)z->n, 2);
    put_number(&z->file, bytes, 4);
    put_number(&z->file, z->wide ? UINT32_MAX : at, 4);
    put_number(&z->file, 0, 2);
    REQUIRE(test_write_file(test_tmp(name), z->file.data, z->file.len));
    sb_free(&z->file);
    sb_free(&z->directory);
}

static void zip_add_npy(Zip *z, const char *name, const float *data, int64_t n,
                        bool deflate_it) {
    StrBuf sb = {0};
    npy_header(&sb, AMPC_DTYPE_F32, 1, &n);
    sb_putn(&sb, (const char *)data, (size_t)n * 4);
    zip_add(z, name, sb.data, sb.len, deflate_it);
    sb_free(&sb);
}

static Status pick(const char *name, const char *part, const char *input,
                   bool integers, Array *a, Diag *d) {
    ArrayPick p = {.part = part, .input = input, .integers = integers};
    return array_open(d, test_tmp(name), &p, a);
}

static void pick_fails(const char *name, const char *part, const char *input,
                       const char *why) {
    Diag d = {0};
    Array a;
    CHECK_EQ_INT(pick(name, part, input, false, &a, &d), ERR_USER);
    CHECK_HAS(d.text.data, why);
    CHECK(a.memory == NULL && a.fd == -1);
    sb_free(&d.text);
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
}

/* Arrays that are not read: their entries in the directory. */
TEST_CASE(npz, packed_in_other_ways) {
    static const struct {
        size_t at; /* in the entry of the directory */
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

/* Any cut, any byte changed: an error or an array, never a crash; and no
   change of a deflated array goes unseen. */
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

/* The extension is cut in front of its last number, which then stands in none:
   read all the same it would be right. */
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

/* The last token only ever is a target. */
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

static void put_text(const char *name, const char *text) {
    REQUIRE(test_write_file(test_tmp(name), text, strlen(text)));
}

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
    put_text("b.csv", "a,b\n");
    check_text("b.csv", NULL, true, 0, 2, "");
    gzFile f = gzopen(test_tmp("c.csv.gz"), "wb");
    REQUIRE(f && gzputs(f, "1,2\n3,4\n") == 8);
    gzclose(f);
    check_text("c.csv.gz", "1", true, 2, 1, "2 4 ");
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
    put_text("a.csv", "1,2\n-inf,1e-400\n"); /* the data say so; it rounds */
    REQUIRE(pick("a.csv", NULL, "x", false, &a, &d) == OK);
    array_close(&a);
    put_text("a.csv", "1,2\n3,-9223372036854775808\n");
    REQUIRE(pick("a.csv", "1", "x", true, &a, &d) == OK);
    array_close(&a);
    put_text("a.csv", "1,\n");
    pick_fails("a.csv", NULL, "x", "line 1, column 2: '' is not a number");
    /* mistyped, and no line of names */
    put_text("a.csv", "1,2.5.1\n3,4\n");
    pick_fails("a.csv", NULL, "x", "line 1, column 2: '2.5.1' is not a number");
    pick_fails("a.csv", "1", "x", "line 1, column 2: '2.5.1' is not a number");
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

/* ---- sizes that lie ------------------------------------------------------ */

static void refused(const char *name, const char *why) {
    Diag d = {0};
    Array a;
    CHECK_EQ_INT(array_open(&d, test_tmp(name), NULL, &a), ERR_USER);
    CHECK_HAS(d.text.data, why);
    CHECK(a.memory == NULL && a.fd == -1);
    sb_free(&d.text);
}

/* A header alone, or with that many bytes behind it. */
static void put_header(const char *name, const char *shape, size_t n) {
    char file[1024] = "\x93NUMPY\1", data[64] = {0};
    int len = snprintf(file + 10, 512,
                       "{'descr': '<f4', 'fortran_order': False, 'shape': %s, "
                       "}\n",
                       shape);
    file[8] = (char)len;
    memcpy(file + 10 + len, data, n);
    REQUIRE(test_write_file(test_tmp(name), file, 10 + (size_t)len + n));
}

/* An array with an axis of 0 holds no elements, however long its other axes
   are. */
TEST_CASE(feed, empty_shapes_with_huge_axes) {
    static const char *const shapes[] = {"(4611686018427387904, 0)",
                                         "(0, 4611686018427387904)", "(0,)"};
    Diag d = {0};
    Array a;
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        put_header("empty.npy", shapes[i], 0);
        REQUIRE(array_open(&d, test_tmp("empty.npy"), NULL, &a) == OK);
        CHECK_EQ_INT(a.count, 0);
        CHECK_EQ_INT(a.bytes, 0);
        array_close(&a);
        put_header("empty.npy", shapes[i], 8);
        refused("empty.npy", "more data than its shape");
    }
}

TEST_CASE(feed, shapes_beyond_the_file) {
    static const char *const shapes[] = {
        "(4611686018427387904, 4)", "(4611686018427387904,)",
        "(4294967296, 4294967296)", "(1000000000000,)", "(5,)"};
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        put_header("lie.npy", shapes[i], 16);
        refused("lie.npy", "less than its shape");
    }
    put_header("lie.npy", "(-1,)", 16);
    refused("lie.npy", "damaged .npy header");
    unsigned char idx[16] = {0,   0,   0x0e, 3,   255, 255, 255, 255,
                             255, 255, 255,  255, 255, 255, 255, 255};
    REQUIRE(test_write_file(test_tmp("lie"), idx, sizeof idx));
    refused("lie", "less than its shape");
}

TEST_CASE(feed, a_header_without_end) {
    size_t n = 1 << 20;
    char *file = malloc(n);
    memset(file, ' ', n);
    memcpy(file, "\x93NUMPY\2\0\0\0\x0f\0", 12);
    REQUIRE(test_write_file(test_tmp("long.npy"), file, n));
    refused("long.npy", "the .npy header is too long");
    free(file);
}

TEST_CASE(feed, what_is_no_file) {
    REQUIRE(mkfifo(test_tmp("fifo"), 0600) == 0);
    alarm(20); /* nobody will write to it */
    refused("fifo", "is not a regular file");
    alarm(0);
    refused(".", "is a folder");
    REQUIRE(symlink("/dev/zero", test_tmp("zero")) == 0);
    refused("zero", "is not a regular file");
    refused("none", "No such file");
}

/* ---- memory -------------------------------------------------------------- */

static long peak_kb(void) {
    struct rusage u;
    getrusage(RUSAGE_SELF, &u);
    return u.ru_maxrss;
}

/* fn in a process of its own: its peak is not another case's. */
static void in_child(int (*fn)(void)) {
    int status = -1;
    pid_t pid = fork();
    REQUIRE(pid >= 0);
    if (pid == 0) _exit(fn());
    REQUIRE(waitpid(pid, &status, 0) == pid);
    CHECK_MSG(WIFEXITED(status) && WEXITSTATUS(status) == 0, "wait status %#x",
              status);
}

static void put_packed(const char *name, const char *shape, int megabytes) {
    size_t n;
    char *zeros = calloc(1, 1 << 20);
    put_header("head.npy", shape, 0);
    char *head = test_read_file(test_tmp("head.npy"), &n);
    gzFile f = gzopen(test_tmp(name), "wb1");
    REQUIRE(f && head && zeros && gzwrite(f, head, (unsigned)n) == (int)n);
    for (int i = 0; i < megabytes; i++)
        REQUIRE(gzwrite(f, zeros, 1 << 20) == 1 << 20);
    gzclose(f);
    free(head);
    free(zeros);
}

static int open_bomb(void) {
    Diag d = {0};
    Array a;
    long before = peak_kb();
    if (array_open(&d, test_tmp("bomb.gz"), NULL, &a) != ERR_USER) return 1;
    if (!strstr(d.text.data, "more data than its shape")) return 2;
    return peak_kb() - before > 8 << 10 ? 3 : 0;
}

TEST_CASE(feed, a_packed_file_is_unpacked_no_further_than_its_shape) {
    put_packed("bomb.gz", "(32,)", 200);
    in_child(open_bomb);
    put_packed("lie.gz", "(1000000000000,)", 1);
    refused("lie.gz", "less than its shape");
    put_packed("lie.gz", "(262144,)", 0);
    refused("lie.gz", "less than its shape");
}

enum { LARGE = 30 << 20 }; /* elements: 120 MB */

static float large_value(int64_t i) { return (float)(i % 65521); }

static int read_large(const char *name) {
    Diag d = {0};
    Array a;
    float part[1000];
    long before = peak_kb();
    if (array_open(&d, test_tmp(name), NULL, &a) != OK) return 1;
    if (a.count != LARGE || a.memory) return 2;
    for (int64_t at = 0; at < LARGE; at += 999983) {
        int64_t n = LARGE - at < 1000 ? LARGE - at : 1000;
        if (array_get(&d, name, &a, at, n, part) != OK) return 3;
        for (int64_t i = 0; i < n; i++)
            if (part[i] != large_value(at + i)) return 4;
    }
    array_close(&a);
    return peak_kb() - before > 40 << 10 ? 5 : 0;
}

static int read_plain(void) { return read_large("large.npy"); }
static int read_packed(void) { return read_large("large.gz"); }
static int read_columns(void) { return read_large("columns.npy"); }
static int read_npz(void) { return read_large("large.npz"); }

/* 3M lines of 7 bytes become 24 MB of numbers. */
static int read_text(void) {
    Diag d = {0};
    Array a;
    double x;
    long before = peak_kb();
    if (array_open(&d, test_tmp("large.csv"), NULL, &a) != OK) return 1;
    if (a.count != 3000000 || a.memory) return 2;
    for (int64_t at = 0; at < a.count; at += 1009)
        if (array_get(&d, "large.csv", &a, at, 1, &x) != OK ||
            x != (double)(at % 900000 + 100000))
            return 3;
    array_close(&a);
    return peak_kb() - before > 8 << 10 ? 4 : 0;
}

/* As large files are: read in windows, whatever their packing and order. */
TEST_CASE(feed, large_files_are_not_held_in_memory) {
    enum { ROWS = 1 << 20, PER = LARGE / ROWS };
    size_t n = 0;
    float *data = malloc((size_t)LARGE * 4);
    REQUIRE(data);
    for (int64_t i = 0; i < LARGE; i++) data[i] = large_value(i);
    write_npy("large.npy", AMPC_DTYPE_F32, 2, (int64_t[]){ROWS, PER}, data);
    char *file = test_read_file(test_tmp("large.npy"), &n);
    gzFile gz = gzopen(test_tmp("large.gz"), "wb1");
    REQUIRE(file && gz && gzwrite(gz, file, (unsigned)n) == (int)n);
    gzclose(gz);
    Zip stored = {.n = 0};
    zip_add(&stored, "x.npy", file, n, false);
    zip_write(&stored, "large.npz");
    float *columns = (float *)(file + n - (size_t)LARGE * 4);
    for (int64_t r = 0; r < ROWS; r++)
        for (int64_t k = 0; k < PER; k++)
            columns[k * ROWS + r] = large_value(r * PER + k);
    char *order = memmem(file, 200, "False", 5);
    memcpy(order, "True ", 5);
    REQUIRE(test_write_file(test_tmp("columns.npy"), file, n));
    free(file);
    free(data);
    FILE *text = fopen(test_tmp("large.csv"), "w");
    REQUIRE(text);
    for (int i = 0; i < 3000000; i++)
        fprintf(text, "%d\n", i % 900000 + 100000);
    fclose(text);
    in_child(read_text);
    in_child(read_npz);
    in_child(read_plain);
    in_child(read_packed);
    in_child(read_columns);
}

/* An array of a x b x c numbers in every order, byte order and packing has the
   same elements, in memory and where it is too large to be kept there.      */
static void check_layout(const int64_t dim[3], bool columns, bool big,
                         int packing) {
    static const char *const names[] = {"l.npy", "l.npy.gz", "l.npz", "l.npz"};
    int64_t n = dim[0] * dim[1] * dim[2];
    StrBuf sb = {0};
    char head[200];
    Diag d = {0};
    Array a;
    int len = snprintf(head, sizeof head,
                       "{'descr': '%ci2', 'fortran_order': %s, 'shape': "
                       "(%lld, %lld, %lld), }\n",
                       big ? '>' : '<', columns ? "True" : "False",
                       (long long)dim[0], (long long)dim[1], (long long)dim[2]);
    sb_putn(&sb, "\x93NUMPY\1\0", 8);
    sb_putn(&sb, (char[]){(char)len, 0}, 2);
    sb_putn(&sb, head, (size_t)len);
    unsigned char *data = malloc((size_t)n * 2);
    for (int64_t i = 0; i < n; i++) {
        int64_t x = i / (dim[1] * dim[2]), y = i / dim[2] % dim[1];
        int64_t z = i % dim[2];
        int64_t at = columns ? x + dim[0] * (y + dim[1] * z) : i;
        int value = (int)(i * 7919 & 0x7fff);
        data[2 * at + big] = (unsigned char)(value & 0xff);
        data[2 * at + !big] = (unsigned char)(value >> 8);
    }
    sb_putn(&sb, (char *)data, (size_t)n * 2);
    if (packing == 1) {
        gzFile f = gzopen(test_tmp("l.npy.gz"), "wb1");
        REQUIRE(f && gzwrite(f, sb.data, (unsigned)sb.len) == (int)sb.len);
        gzclose(f);
    } else if (packing) {
        Zip z = {.n = 0};
        zip_add(&z, "x.npy", sb.data, sb.len, packing == 3);
        zip_write(&z, "l.npz");
    } else {
        REQUIRE(test_write_file(test_tmp("l.npy"), sb.data, sb.len));
    }
    sb_free(&sb);
    if (pick(names[packing], NULL, "x", false, &a, &d) != OK)
        FAIL("%s", d.text.data);
    CHECK_EQ_INT(a.count, n);
    short part[1000];
    for (int64_t at = 0, k; at < n; at += k) {
        k = n - at < 1000 ? n - at : 1000;
        REQUIRE(array_get(&d, "l", &a, at, k, part) == OK);
        int wrong = 0;
        for (int64_t i = 0; i < k; i++)
            wrong += part[i] != ((at + i) * 7919 & 0x7fff);
        if (!CHECK_MSG(!wrong, "%s, columns %d, big-endian %d: from %lld on",
                       names[packing], columns, big, (long long)at))
            break;
    }
    free(data);
    array_close(&a);
}

TEST_CASE(feed, every_layout_has_the_same_elements) {
    for (int way = 0; way < 16; way++)
        check_layout((int64_t[]){3, 5, 7}, way & 1, way & 2, way >> 2);
    for (int way = 0; way < 4; way++)
        check_layout((int64_t[]){1001, 4, 2100}, way & 1, way & 2, 0);
    check_layout((int64_t[]){1001, 4, 2100}, true, true, 3);
    check_layout((int64_t[]){2, 1400, 3001}, true, true, 1);
}

TEST_CASE(feed, a_file_that_shrinks_while_it_is_read) {
    Diag d = {0};
    Array a;
    float part[4];
    float *data = calloc(5 << 20, 4);
    write_npy("shrinks.npy", AMPC_DTYPE_F32, 1, (int64_t[]){5 << 20}, data);
    free(data);
    REQUIRE(array_open(&d, test_tmp("shrinks.npy"), NULL, &a) == OK);
    CHECK(!a.memory);
    CHECK(array_get(&d, "shrinks.npy", &a, 4 << 20, 4, part) == OK);
    REQUIRE(truncate(test_tmp("shrinks.npy"), 4096) == 0);
    CHECK_EQ_INT(array_get(&d, "shrinks.npy", &a, 4 << 20, 4, part), ERR_USER);
    CHECK_HAS(d.text.data, "became shorter");
    array_close(&a);
    sb_free(&d.text);
}

/* ---- inputs without the batch -------------------------------------------- */

static ampc_status graph_module(const ampc_module_t *m,
                                ampc_module_info *info) {
    (void)m;
    info->batch = 4;
    return AMPC_OK;
}

static ampc_status graph_program(const ampc_module_t *m, const char *program,
                                 ampc_program_info *info) {
    (void)m;
    (void)program;
    info->ninput = 2;
    return AMPC_OK;
}

/* nodes f32[4], edges i64[2,3] */
static ampc_status graph_inputs(const ampc_module_t *m, const char *program,
                                uint32_t i, ampc_tensor_info *t) {
    static const int64_t shapes[][2] = {{4}, {2, 3}};
    (void)m;
    (void)program;
    if (i > 1) return AMPC_ERR_UNSUPPORTED;
    t->name = i ? "edges" : "nodes";
    t->dtype = i ? AMPC_DTYPE_I64 : AMPC_DTYPE_F32;
    t->rank = i ? 2 : 1;
    memcpy(t->shape, shapes[i], sizeof shapes[i]);
    t->bytes = i ? 48 : 16;
    return AMPC_OK;
}

TEST_CASE(feed, an_input_without_the_batch_is_given_whole) {
    static const ampc_api api = {.describe = graph_module,
                                 .program = graph_program,
                                 .input = graph_inputs};
    float nodes[8] = {0, 1, 2, 3, 4, 5, 6, 7};
    int64_t edges[8] = {0, 1, 2, 1, 2, 3, 0, 0};
    Diag d = {0};
    FeedSet fs;
    RunList specs = {.n = 2};
    char at[2][700];
    for (int i = 0; i < 2; i++) {
        snprintf(at[i], sizeof at[i], "%s=%s", i ? "edges" : "nodes",
                 test_tmp(i ? "edges.npy" : "nodes.npy"));
        specs.at[i] = at[i];
    }
    write_npy("nodes.npy", AMPC_DTYPE_F32, 1, (int64_t[]){8}, nodes);
    write_npy("edges.npy", AMPC_DTYPE_I64, 2, (int64_t[]){2, 3}, edges);
    REQUIRE(feeds_open(&d, NULL, &api, "train", &specs, &fs) == OK);
    CHECK_EQ_INT(fs.samples, 8);
    for (int i = 0; i < 2; i++) {
        REQUIRE(feeds_fill(&d, &fs, NULL, 4 * i, 4) == OK);
        CHECK_MEM(fs.in[0].data, nodes + 4 * i, 16);
        CHECK_MEM(fs.in[1].data, edges, 48);
    }
    feeds_free(&fs);
    write_npy("edges.npy", AMPC_DTYPE_I64, 2, (int64_t[]){2, 4}, edges);
    CHECK_EQ_INT(feeds_open(&d, NULL, &api, "train", &specs, &fs), ERR_USER);
    CHECK_HAS(d.text.data, "i64[2,4] does not fit input 'edges' i64[2,3]");
    feeds_free(&fs);
    sb_free(&d.text);
}

/* ---- widths -------------------------------------------------------------- */

/* The dtype of the one input of a module whose batch is 4. */
static int taken_dtype;
static int64_t taken_shape[3] = {4, 1, 1};

static ampc_status one_input(const ampc_module_t *m, const char *program,
                             ampc_program_info *info) {
    (void)m;
    (void)program;
    info->ninput = 1;
    return AMPC_OK;
}

static ampc_status taken_input(const ampc_module_t *m, const char *program,
                               uint32_t i, ampc_tensor_info *t) {
    (void)m;
    (void)program;
    if (i) return AMPC_ERR_UNSUPPORTED;
    t->name = "v";
    t->dtype = taken_dtype;
    t->rank = 3;
    t->bytes = dtype_bytes((uint32_t)taken_dtype);
    for (int k = 0; k < 3; k++)
        t->bytes *= (size_t)(t->shape[k] = taken_shape[k]);
    return AMPC_OK;
}

static const ampc_api one_api = {
    .describe = graph_module, .program = one_input, .input = taken_input};

__extension__ typedef __int128 Wide;

/* Numbers that are the first or the last of some type, or beside it. */
static const Wide edges_of_types[] = {0,          1,         127,
                                      128,        255,       256,
                                      32767,      32768,     65535,
                                      65536,      INT32_MAX, 1LL << 31,
                                      UINT32_MAX, 1LL << 32, -1,
                                      -128,       -129,      -32768,
                                      -32769,     INT32_MIN, -(1LL << 31) - 1,
                                      INT64_MAX,  INT64_MIN, UINT64_MAX};

static bool holds(int dtype, Wide v) {
    int bits = 8 * (int)dtype_bytes((uint32_t)dtype);
    bool sign = dtype_info[dtype].npy[0] == 'i';
    Wide most = ((Wide)1 << (bits - sign)) - 1;
    return v <= most && v >= (sign ? -most - 1 : 0);
}

/* Integers of every width for inputs of every other: the number itself, or the
   sample and the number that do not fit. */
TEST_CASE(feed, integers_of_every_width) {
    enum { COUNT = 8204, BAD = 8195 }; /* behind the part that is looked at */
    char spec[700];
    RunList specs = {.n = 1, .at = {spec}};
    char *file = calloc(COUNT, 8);
    snprintf(spec, sizeof spec, "v=%s", test_tmp("v.npy"));
    for (int from = AMPC_DTYPE_U8; from <= AMPC_DTYPE_I64; from++)
        for (size_t k = 0; k < sizeof edges_of_types / sizeof *edges_of_types;
             k++) {
            Wide v = edges_of_types[k];
            size_t size = dtype_bytes((uint32_t)from);
            if (!holds(from, v)) continue;
            uint64_t bits = (uint64_t)v;
            memset(file, 0, COUNT * 8);
            memcpy(file + BAD * size, &bits, size);
            write_npy("v.npy", from, 1, (int64_t[]){COUNT}, file);
            for (int to = AMPC_DTYPE_U8; to <= AMPC_DTYPE_I64; to++) {
                Diag d = {0};
                FeedSet fs;
                char want[32] = {0}, said[100];
                taken_dtype = to;
                Status st =
                    feeds_open(&d, NULL, &one_api, "train", &specs, &fs);
                if (holds(to, v)) {
                    REQUIRE(st == OK);
                    memcpy(want + (BAD % 4) * dtype_bytes((uint32_t)to), &bits,
                           dtype_bytes((uint32_t)to));
                    REQUIRE(feeds_fill(&d, &fs, NULL, BAD / 4 * 4, 4) == OK);
                    CHECK_MEM(fs.in[0].data, want,
                              4 * dtype_bytes((uint32_t)to));
                } else {
                    CHECK_EQ_INT(st, ERR_USER);
                    snprintf(said, sizeof said,
                             v < 0 ? "sample %d: the value %lld does not fit "
                                     "input 'v', %s"
                                   : "sample %d: the value %llu does not fit "
                                     "input 'v', %s",
                             BAD, (unsigned long long)v, dtype_info[to].text);
                    CHECK_HAS(d.text.data, said);
                }
                feeds_free(&fs);
                sb_free(&d.text);
            }
        }
    free(file);
}

/* Integers but bytes are numbers; so is a truth value. */
TEST_CASE(feed, integers_for_floating_inputs) {
    char spec[700];
    RunList specs = {.n = 1, .at = {spec}};
    snprintf(spec, sizeof spec, "v=%s", test_tmp("v.npy"));
    for (int from = AMPC_DTYPE_BOOL; from <= AMPC_DTYPE_I64; from++) {
        char file[32] = {0};
        size_t size = dtype_bytes((uint32_t)from);
        bool bits = from == AMPC_DTYPE_BOOL, sign = from % 2 == 0 && !bits;
        if (from == AMPC_DTYPE_U8) continue;
        memset(file, sign ? 255 : 0, size);
        for (int i = 1; i < 4; i++)
            memcpy(file + (size_t)i * size, (uint8_t[]){bits ? i == 2 : i * 9},
                   1);
        write_npy("v.npy", from, 1, (int64_t[]){4}, file);
        for (int to = AMPC_DTYPE_F32; to <= AMPC_DTYPE_F64; to++) {
            Diag d = {0};
            FeedSet fs;
            taken_dtype = to;
            REQUIRE(feeds_open(&d, NULL, &one_api, "train", &specs, &fs) == OK);
            REQUIRE(feeds_fill(&d, &fs, NULL, 0, 4) == OK);
            for (int i = 0; i < 4; i++) {
                double want = bits ? i == 2 : i ? i * 9 : sign ? -1 : 0;
                double x = to == AMPC_DTYPE_F64
                               ? ((const double *)fs.in[0].data)[i]
                               : ((const float *)fs.in[0].data)[i];
                CHECK_MSG(x == want, "%s: %g, not %g", dtype_info[from].text, x,
                          want);
            }
            feeds_free(&fs);
        }
        /* and no number is a truth value, no fraction an integer */
        Diag d = {0};
        FeedSet fs;
        taken_dtype = AMPC_DTYPE_BOOL;
        CHECK_EQ_INT(feeds_open(&d, NULL, &one_api, "train", &specs, &fs),
                     bits ? OK : ERR_USER);
        feeds_free(&fs);
        sb_free(&d.text);
    }
    write_npy("v.npy", AMPC_DTYPE_F32, 1, (int64_t[]){4}, (float[4]){0});
    Diag d = {0};
    FeedSet fs;
    taken_dtype = AMPC_DTYPE_I64;
    CHECK_EQ_INT(feeds_open(&d, NULL, &one_api, "train", &specs, &fs),
                 ERR_USER);
    CHECK_HAS(d.text.data, "another kind of values");
    feeds_free(&fs);
    sb_free(&d.text);
}

/* Bytes are images, 0 to 1; signed ones are numbers. */
TEST_CASE(feed, bytes_for_floating_inputs) {
    static const int dtypes[] = {AMPC_DTYPE_F16, AMPC_DTYPE_BF16,
                                 AMPC_DTYPE_F32, AMPC_DTYPE_F64};
    char spec[700];
    RunList specs = {.n = 1, .at = {spec}};
    unsigned char bytes[4] = {0, 51, 255, 128};
    snprintf(spec, sizeof spec, "v=%s", test_tmp("v.npy"));
    for (int sign = 0; sign < 2; sign++)
        for (int i = 0; i < 4; i++) {
            Diag d = {0};
            FeedSet fs;
            write_npy("v.npy", sign ? AMPC_DTYPE_I8 : AMPC_DTYPE_U8, 1,
                      (int64_t[]){4}, bytes);
            taken_dtype = dtypes[i];
            REQUIRE(feeds_open(&d, NULL, &one_api, "train", &specs, &fs) == OK);
            REQUIRE(feeds_fill(&d, &fs, NULL, 0, 4) == OK);
            const uint16_t *half = fs.in[0].data;
            for (int k = 0; k < 4; k++) {
                double want =
                    sign ? (double)(int8_t)bytes[k] : bytes[k] / 255.0;
                double got = i == 3 ? ((const double *)fs.in[0].data)[k]
                             : i == 2
                                 ? (double)((const float *)fs.in[0].data)[k]
                             : i == 1 ? (double)bf16_to_f32(half[k])
                                      : (double)f16_to_f32(half[k]);
                CHECK_NEAR(got, want, i == 3 ? 0 : i == 2 ? 3e-8 : 4e-3);
            }
            feeds_free(&fs);
        }
}

/* How many samples a file has for an input, by both shapes; -1: it does not
   fit.  A sample may have several rows of the input's first axis.           */
TEST_CASE(feed, samples_are_counted_by_shape) {
    static const struct {
        int64_t input[3];
        int rank;
        int64_t file[4], samples;
    } rows[] = {
        {{4, 1, 1}, 1, {12}, 12},    {{4, 1, 1}, 2, {12, 1}, 12},
        {{4, 1, 1}, 2, {6, 2}, -1},  {{4, 2, 3}, 3, {8, 2, 3}, 8},
        {{4, 2, 3}, 2, {8, 6}, 8},   {{4, 2, 3}, 2, {8, 3}, -1},
        {{4, 2, 3}, 1, {48}, -1},    {{8, 3, 1}, 2, {16, 3}, 8},
        {{8, 3, 1}, 2, {8, 6}, 8},   {{8, 3, 1}, 3, {8, 2, 3}, 8},
        {{8, 3, 1}, 2, {15, 3}, -1}, {{12, 1, 1}, 1, {24}, 8},
        {{12, 1, 1}, 2, {8, 3}, 8},  {{12, 1, 1}, 2, {4, 6}, -1},
        {{4, 1, 1}, 0, {0}, -1},     {{6, 1, 1}, 1, {6}, 0},
        {{6, 1, 1}, 1, {12}, -1},    {{6, 1, 1}, 2, {2, 3}, 0},
    };
    char spec[700];
    RunList specs = {.n = 1, .at = {spec}};
    float data[64], got[64];
    for (int i = 0; i < 64; i++) data[i] = (float)i;
    snprintf(spec, sizeof spec, "v=%s", test_tmp("v.npy"));
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        Diag d = {0};
        FeedSet fs;
        taken_dtype = AMPC_DTYPE_F32;
        memcpy(taken_shape, rows[i].input, sizeof taken_shape);
        write_npy("v.npy", AMPC_DTYPE_F32, rows[i].rank, rows[i].file, data);
        Status st = feeds_open(&d, NULL, &one_api, "train", &specs, &fs);
        int64_t n = rows[i].input[0] * rows[i].input[1] * rows[i].input[2];
        if (rows[i].samples < 0) {
            CHECK_MSG(st == ERR_USER, "row %zu is taken", i);
            CHECK_HAS(d.text.data, "element counts differ");
        } else if (rows[i].samples == 0) { /* whole, but there are no samples */
            CHECK_EQ_INT(st, ERR_USER);
            CHECK_HAS(d.text.data, "the fed files contain no samples");
        } else {
            CHECK_MSG(st == OK && fs.samples == rows[i].samples,
                      "row %zu: %lld samples", i, (long long)fs.samples);
            for (int64_t k = 0; k < n; k++) got[k] = (float)(n + k);
            REQUIRE(feeds_fill(&d, &fs, NULL, 4, 4) == OK);
            CHECK_MEM(fs.in[0].data, got, (size_t)n * 4);
        }
        feeds_free(&fs);
        sb_free(&d.text);
    }
    memcpy(taken_shape, (int64_t[]){4, 1, 1}, sizeof taken_shape);
}

/* ---- the order of axes --------------------------------------------------- */

TEST_CASE(feed, another_order_of_axes_is_refused) {
    static const struct {
        int64_t input[3];
        int rank;
        int64_t file[5];
        const char *why; /* NULL: it is taken */
    } rows[] = {
        {{4, 2, 3}, 3, {4, 2, 3}, NULL},
        {{4, 2, 3}, 2, {4, 6}, NULL},
        {{4, 2, 3}, 4, {4, 1, 2, 3}, NULL},
        {{4, 2, 3}, 5, {4, 1, 2, 1, 3}, NULL},
        {{4, 6, 1}, 3, {4, 2, 3}, NULL},
        {{4, 6, 1}, 2, {4, 6}, NULL},
        {{4, 1, 6}, 2, {4, 6}, NULL},
        {{8, 3, 1}, 3, {4, 2, 3}, NULL},
        {{8, 3, 1}, 2, {8, 3}, NULL},
        {{4, 2, 3}, 3, {4, 3, 2}, "transposed by (0, 2, 1) it would fit"},
        {{4, 2, 3}, 3, {2, 3, 4}, "transposed by (2, 0, 1) it would fit"},
        {{4, 2, 3}, 4, {4, 3, 1, 2}, "shapes differ"},
        {{4, 4, 6}, 3, {4, 6, 4}, "transposed by (0, 2, 1) it would fit"},
        {{4, 4, 6}, 3, {4, 2, 12}, "shapes differ"},
        {{8, 3, 1}, 3, {4, 3, 2}, "shapes differ"},
    };
    char spec[700];
    RunList specs = {.n = 1, .at = {spec}};
    float data[128] = {0};
    snprintf(spec, sizeof spec, "v=%s", test_tmp("v.npy"));
    taken_dtype = AMPC_DTYPE_F32;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        Diag d = {0};
        FeedSet fs;
        memcpy(taken_shape, rows[i].input, sizeof taken_shape);
        write_npy("v.npy", AMPC_DTYPE_F32, rows[i].rank, rows[i].file, data);
        Status st = feeds_open(&d, NULL, &one_api, "train", &specs, &fs);
        CHECK_MSG((st == OK) == !rows[i].why, "row %zu", i);
        if (rows[i].why && st != OK) CHECK_HAS(d.text.data, rows[i].why);
        feeds_free(&fs);
        sb_free(&d.text);
    }
    memcpy(taken_shape, (int64_t[]){4, 1, 1}, sizeof taken_shape);
}

/* A line for each array that is converted. */
TEST_CASE(feed, what_is_done_to_data_is_told) {
    static const struct {
        int64_t input[3];
        int dtype, rank;
        int64_t file[4];
        const char *line;
    } rows[] = {
        {{4, 2, 3}, AMPC_DTYPE_F32, 3, {8, 2, 3}, ""},
        {{4, 2, 3}, AMPC_DTYPE_F16, 4, {8, 1, 2, 3}, ""},
        {{4, 2, 3},
         AMPC_DTYPE_U8,
         3,
         {8, 2, 3},
         "v: u8 8x2x3, divided by 255\n"},
        {{4, 2, 3},
         AMPC_DTYPE_F64,
         2,
         {8, 6},
         "v: f64 8x6, rounded to f32, as 8x2x3\n"},
        {{4, 2, 3}, AMPC_DTYPE_F32, 2, {8, 6}, "v: f32 8x6, as 8x2x3\n"},
        {{4, 6, 1}, AMPC_DTYPE_I16, 2, {8, 6}, "v: i16 8x6, as f32\n"},
        {{4, 6, 1}, AMPC_DTYPE_BOOL, 2, {8, 6}, "v: bool 8x6, as 0 and 1\n"},
    };
    char spec[700], data[512] = {0};
    RunList specs = {.n = 1, .at = {spec}};
    snprintf(spec, sizeof spec, "v=%s", test_tmp("v.npy"));
    taken_dtype = AMPC_DTYPE_F32;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        Diag d = {0};
        FeedSet fs;
        StrBuf sb = {0};
        memcpy(taken_shape, rows[i].input, sizeof taken_shape);
        write_npy("v.npy", rows[i].dtype, rows[i].rank, rows[i].file, data);
        REQUIRE(feeds_open(&d, NULL, &one_api, "train", &specs, &fs) == OK);
        Fed fed = feed_facts(&fs.feed[0], fs.samples);
        fed_tells(&fed, &sb);
        CHECK_STR(sb.len ? sb.data : "", rows[i].line);
        sb_free(&sb);
        feeds_free(&fs);
    }
    memcpy(taken_shape, (int64_t[]){4, 1, 1}, sizeof taken_shape);
}
