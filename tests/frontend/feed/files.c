/* SPDX-License-Identifier: Apache-2.0 */
/* files.c: see files.h. */
#include "tests/frontend/feed/files.h"

#include <stdlib.h>
#include <string.h>
#include <zlib.h>

#include "runtime/program/dtype.h"

void write_npy(const char *name, int dtype, int rank, const int64_t *dim,
               const void *data) {
    StrBuf sb = {0};
    size_t n = dtype_bytes((uint32_t)dtype);
    for (int i = 0; i < rank; i++) n *= (size_t)dim[i];
    npy_header(&sb, dtype, rank, dim);
    sb_putn(&sb, data, n);
    REQUIRE(test_write_file(test_tmp(name), sb.data, sb.len));
    sb_free(&sb);
}

Status read_bytes(const char *data, size_t n, Array *a, Diag *d) {
    REQUIRE(test_write_file(test_tmp("array"), data, n));
    return array_open(d, test_tmp("array"), NULL, a);
}

void put_number(StrBuf *sb, uint64_t v, int bytes) {
    for (; bytes--; v >>= 8) sb_putn(sb, (char[]){(char)(v & 0xff)}, 1);
}

void zip_add(Zip *z, const char *name, const void *data, size_t n,
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

void zip_write(Zip *z, const char *name) {
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

Status pick(const char *name, const char *part, const char *input,
            bool integers, Array *a, Diag *d) {
    ArrayPick p = {.part = part, .input = input, .integers = integers};
    return array_open(d, test_tmp(name), &p, a);
}

void pick_fails(const char *name, const char *part, const char *input,
                const char *why) {
    Diag d = {0};
    Array a;
    CHECK_EQ_INT(pick(name, part, input, false, &a, &d), ERR_USER);
    CHECK_HAS(d.text.data, why);
    CHECK(a.memory == NULL && a.fd == -1);
    sb_free(&d.text);
}
