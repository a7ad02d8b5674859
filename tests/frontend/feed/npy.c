/* SPDX-License-Identifier: Apache-2.0 */
/* npy.c: .npy and IDX files: layouts, damage, gzip. */
#define _GNU_SOURCE
#include "tests/frontend/feed/files.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <zlib.h>

#include "runtime/program/dtype.h"

/* ---- array files --------------------------------------------------------- */

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

/* The bytes that numpy.save writes before the data. */
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

/* A scalar's header must contain them, with any values. */
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

/* Any truncation and any changed byte gives an error or an array, never a
   crash. */
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
        sb_free(&d.text);
    }
    CHECK_EQ_INT(read_bytes(idx, 17, &a, &d), ERR_USER);
    sb_free(&d.text);
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

/* One number of the array's, gzipped, with `more` bytes after it, and with
   or without a flipped bit in the checksum. */
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

/* For arrays of any size. */
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

/* Packs n bytes as one member of a gzip file. */
static size_t pack(const char *bytes, size_t n, unsigned char *to,
                   size_t most) {
    z_stream z = {.next_in = (Bytef *)(uintptr_t)bytes,
                  .avail_in = (unsigned)n,
                  .next_out = to,
                  .avail_out = (unsigned)most};
    REQUIRE(deflateInit2(&z, 6, Z_DEFLATED, MAX_WBITS + 16, 8,
                         Z_DEFAULT_STRATEGY) == Z_OK);
    REQUIRE(deflate(&z, Z_FINISH) == Z_STREAM_END);
    deflateEnd(&z);
    return z.total_out;
}

/* `cat a.gz b.gz` is a gzip file, and tapes end with zeros. Anything else
   behind a member is damage: zlib itself would drop the rest of the array or
   of the table in silence. */
TEST_CASE(npy, bytes_behind_a_member_of_gzip) {
    enum { MOST = 2000 };
    static const struct {
        const char *bytes;
        size_t n;
        const char *why; /* NULL: it is taken */
    } rows[] = {{"", 0, NULL},
                {"\0\0\0\0\0", 5, NULL},
                {"junk", 4, "other bytes behind its end"},
                {"\0\0junk", 6, "other bytes behind its end"},
                {"\x1f", 1, "damaged or truncated gzip file"},
                {"\x1f\x8b", 2, "damaged or truncated gzip file"},
                {"\x1f\x8c\x08", 3, "damaged or truncated gzip file"}};
    unsigned char file[MOST];
    float data[6] = {1, 2, 3, 4, 5, 6};
    size_t n;
    write_npy("m.npy", AMPC_DTYPE_F32, 1, (int64_t[]){6}, data);
    char *plain = test_read_file(test_tmp("m.npy"), &n);
    REQUIRE(plain != NULL);
    size_t first = pack(plain, 100, file, MOST);
    size_t zeros = first + 3;
    memset(file + first, 0, 3);
    size_t end = zeros + pack(plain + 100, n - 100, file + zeros, MOST - zeros);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        Diag d = {0};
        Array a;
        memcpy(file + end, rows[i].bytes, rows[i].n);
        Status got = read_bytes((char *)file, end + rows[i].n, &a, &d);
        CHECK_EQ_INT(got, rows[i].why ? ERR_USER : OK);
        if (rows[i].why) CHECK_HAS(d.text.data, rows[i].why);
        if (got == OK) array_close(&a);
        sb_free(&d.text);
    }
    file[zeros] = 'j'; /* the second member is none */
    Diag d = {0};
    Array a;
    CHECK_EQ_INT(read_bytes((char *)file, end, &a, &d), ERR_USER);
    CHECK_HAS(d.text.data, "other bytes behind its end");
    sb_free(&d.text);
    free(plain);
}

/* Each type of IDX, with numbers and sizes of more than one byte, and the
   refused ones. */
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

/* The length of the header has two bytes; from version 2 on, four. */
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
