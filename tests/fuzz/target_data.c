/* SPDX-License-Identifier: Apache-2.0 */
/* target_data.c: data files as `ampc run` reads them: whole, in windows, as the
   inputs of a program; every third one packed.  Formats recognised by file
   name take turns. */
#include <string.h>
#include <zlib.h>

#include "frontend/data/feed.h"
#include "tests/fuzz/fuzz.h"
#include "tests/support/tiny_module.h"

enum { MANY = 1 << 16 }; /* number of elements that are read in windows */

static const char *const names[] = {"feed", "feed.bin", "feed.csv", "feed.csv"};

static const ArrayPick picks[] = {
    {.input = ""},
    {.input = "x"},
    {.part = "x", .input = "x"},
    {.part = "a,2", .input = "x", .integers = true},
    {.part = "0-1", .input = "x"},
    {.part = "u32+1", .input = "x"},
};
enum { PICKS = sizeof picks / sizeof *picks };

/* gzip, with its table of 256 KB reused; one of eight files is also made
   smaller. */
static size_t pack(const uint8_t *p, size_t n, int level, uint8_t *out,
                   size_t room) {
    static z_stream kept[2];
    z_stream *z = &kept[level > 0];
    fuzz_check((z->state ? deflateReset(z)
                         : deflateInit2(z, level, Z_DEFLATED, 15 + 16, 8,
                                        Z_DEFAULT_STRATEGY)) == Z_OK,
               "deflateInit2");
    z->next_in = (Bytef *)p;
    z->avail_in = (uInt)n;
    z->next_out = out;
    z->avail_out = (uInt)room;
    fuzz_check(deflate(z, Z_FINISH) == Z_STREAM_END, "deflate");
    return z->total_out;
}

static const char *file_of(const uint8_t *p, size_t n, uint64_t hash) {
    static uint8_t packed[FUZZ_MOST + 4096];
    const char *name = names[hash >> 8 & 3];
    if (hash % 3) return fuzz_file(name, p, n);
    n = pack(p, n, hash >> 10 & 7 ? 0 : 1, packed, sizeof packed);
    return fuzz_file(name, packed, n);
}

/* Reading element by element gives the same as reading all at once. */
static void check_windows(const char *path, const Array *a) {
    static char all[MANY * 8], part[MANY * 8];
    Diag d = {0};
    size_t size = dtype_bytes((uint32_t)a->dtype);
    int64_t n = a->count < MANY ? a->count : MANY;
    int64_t step = n > 64 ? n / 7 : 5;
    bool ok = array_get(&d, path, a, 0, n, all) == OK;
    for (int64_t at = 0; at < n && ok; at += step) {
        int64_t k = n - at < step ? n - at : step;
        ok = array_get(&d, path, a, at, k, part) == OK;
        fuzz_check(!ok ||
                       !memcmp(part, all + (size_t)at * size, (size_t)k * size),
                   "a window differs");
    }
    fuzz_check(ok == (d.errors == 0), "errors: %d", d.errors);
    sb_free(&d.text);
}

/* A feed for the other input, with the same number of samples. */
static const char *plain_feed(int64_t samples, int64_t columns) {
    StrBuf sb = {0};
    static const char zeros[64 * TINY_IN * 4];
    if (samples < 1 || samples > 64) samples = TINY_BATCH;
    npy_header(&sb, AMPC_DTYPE_F32, 2, (int64_t[]){samples, columns});
    sb_putn(&sb, zeros, (size_t)(samples * columns) * 4);
    const char *path = fuzz_file("other", sb.data, sb.len);
    sb_free(&sb);
    return path;
}

/* The file is fed to x or to a target: numbers or labels. */
static bool feed_as(int way, int64_t samples, const char *path) {
    Diag d = {0};
    FeedSet fs;
    ampc_api api = *tiny_api();
    char spec[300], other[300];
    FileGuard *guard = file_guard_new();
    bool x = way < 2;
    if (way == 3) api.module = tiny_handle(&tiny_labels);
    snprintf(spec, sizeof spec, "%s=%s", x ? "x" : "target", path);
    snprintf(other, sizeof other, "%s=%s", x ? "target" : "x",
             plain_feed(samples, x ? TINY_OUT : TINY_IN));
    RunList specs = {{spec, other}, way ? 2 : 1, NULL};
    Status s =
        feeds_open(&d, guard, &api, way ? "train" : "predict", &specs, &fs);
    for (int64_t at = 0; s == OK && at < fs.samples && at < 64; at += fs.batch)
        s = feeds_fill(&d, &fs, NULL, at,
                       fs.samples - at < fs.batch ? fs.samples - at : fs.batch);
    fuzz_check((s == OK) == (d.errors == 0), "status %d, %d errors", s,
               d.errors);
    feeds_free(&fs);
    file_guard_free(guard);
    sb_free(&d.text);
    return s == OK;
}

/* Half of all arrays are read without a part name, like most files. */
static const ArrayPick *pick_of(uint64_t hash) {
    return &picks[hash >> 12 & 1 ? 1 : (hash >> 16) % PICKS];
}

void feed_run(const uint8_t *p, size_t n) {
    Diag d = {0};
    Array a;
    uint64_t hash = hash_bytes(0, p, n);
    const char *path = file_of(p, n, hash);
    Status s = array_open(&d, path, pick_of(hash), &a);
    fuzz_check((s == OK) == (d.errors == 0), "status %d, %d errors", s,
               d.errors);
    if (s == OK) {
        int64_t samples = a.rank ? a.dim[0] : 1;
        check_windows(path, &a);
        array_close(&a);
        if (feed_as((int)(hash >> 13 & 3), samples, path)) fuzz_taken();
    }
    sb_free(&d.text);
}

static void seed_npy(int dtype, int rank, int64_t a, int64_t b) {
    StrBuf sb = {0};
    int64_t dim[] = {a, b}, n = rank > 1 ? a * b : a;
    npy_header(&sb, dtype, rank, dim);
    for (size_t i = 0; i < (size_t)n * dtype_bytes((uint32_t)dtype); i++)
        sb_putn(&sb, (char[]){(char)(rank > 1 ? i * 7 : 0)}, 1);
    fuzz_seed(sb.data, sb.len);
    sb_free(&sb);
}

static void put_number(StrBuf *sb, uint64_t v, int bytes) {
    for (int i = 0; i < bytes; i++)
        sb_putn(sb, (char[]){(char)(v >> 8 * i)}, 1);
}

/* A zip archive of two small arrays, the second deflated. */
static void seed_npz(void) {
    StrBuf zip = {0}, directory = {0};
    for (int k = 0; k < 2; k++) {
        StrBuf npy = {0}, head = {0};
        uint8_t packed[400];
        z_stream z = {.next_out = packed, .avail_out = sizeof packed};
        npy_header(&npy, AMPC_DTYPE_F32, 2, (int64_t[]){4, 3});
        for (int i = 0; i < 12; i++) put_number(&npy, 0x3f800000, 4);
        z.next_in = (Bytef *)npy.data;
        z.avail_in = (uInt)npy.len;
        fuzz_check(deflateInit2(&z, 9, Z_DEFLATED, -15, 8,
                                Z_DEFAULT_STRATEGY) == Z_OK &&
                       deflate(&z, Z_FINISH) == Z_STREAM_END,
                   "deflate");
        deflateEnd(&z);
        size_t size = k ? z.total_out : npy.len, at = zip.len;
        /* version, flags, method, time, crc, sizes, lengths of names */
        put_number(&head, 20, 2);
        put_number(&head, 0, 2);
        put_number(&head, k ? 8 : 0, 2);
        put_number(&head, 0, 4);
        put_number(&head, crc32_z(0, (Bytef *)npy.data, npy.len), 4);
        put_number(&head, size, 4);
        put_number(&head, npy.len, 4);
        put_number(&head, 5, 2);
        put_number(&head, 0, 2);
        sb_puts(&zip, "PK\3\4");
        sb_putn(&zip, head.data, head.len);
        sb_puts(&zip, k ? "x.npy" : "a.npy");
        sb_putn(&zip, k ? (char *)packed : npy.data, size);
        sb_puts(&directory, "PK\1\2");
        put_number(&directory, 20, 2);
        sb_putn(&directory, head.data, head.len);
        put_number(&directory, 0, 8);
        put_number(&directory, 0, 2);
        put_number(&directory, at, 4);
        sb_puts(&directory, k ? "x.npy" : "a.npy");
        sb_free(&head);
        sb_free(&npy);
    }
    size_t at = zip.len;
    sb_putn(&zip, directory.data, directory.len);
    sb_puts(&zip, "PK\5\6");
    put_number(&zip, 0, 4);
    put_number(&zip, 2, 2);
    put_number(&zip, 2, 2);
    put_number(&zip, directory.len, 4);
    put_number(&zip, at, 4);
    put_number(&zip, 0, 2);
    fuzz_seed(zip.data, zip.len);
    sb_free(&zip);
    sb_free(&directory);
}

static void seed_text(const char *text) { fuzz_seed(text, strlen(text)); }

void feed_seeds(void) {
    static const char idx[] = "\0\0\x08\x02\0\0\0\x05\0\0\0\x03"
                              "0123456789abcde";
    for (int t = 0; t < AMPC_NDTYPE; t++) seed_npy(t, 2, 6, 3);
    for (int t = 0; t < AMPC_NDTYPE; t++) seed_npy(t, 2, 8, 2);
    seed_npy(AMPC_DTYPE_I64, 1, 8, 1);
    seed_npy(AMPC_DTYPE_I32, 1, 8, 1);
    seed_npy(AMPC_DTYPE_U8, 1, 8, 1);
    seed_npy(AMPC_DTYPE_F64, 2, 40, 3);
    seed_npz();
    seed_text("a,b,x\n1,2,3\n4,5,6\n-7,8e-1,nan\n10,11,12\n");
    seed_text("1;2;3\r\n4;5;6\r\n7;8;9\r\n0;1;2\r\n");
    seed_text("\"a\"\t\"x\"\n1\t2\n3\t4\n");
    fuzz_seed("\x40\0\0\0\0\0\0\0{\"x\":{\"dtype\":\"F32\",\"shape\":[1,3],"
              "\"data_offsets\":[0,12]}}         0123456789ab",
              84);
    fuzz_seed(idx, sizeof idx - 1);
    fuzz_seed("\0\0\x0d\x01\0\0\0\x03\x3f\x80\0\0\x3f\x80\0\0\x3f\x80\0\0", 20);
    fuzz_seed("\0\0\x0d\0\x3f\x80\0\0", 8);
    fuzz_seed("\x93NUMPY\2\0\x3c\0\0\0{'descr': '>f4', 'fortran_order': True, "
              "'shape': (1, 3), }\n0123456789ab",
              84);
    fuzz_seed("\x1f\x8b\x08\0\0\0\0\0\0\3\3\0\0\0\0\0\0\0\0\0", 20);
}

const char *const *feed_words(void) {
    static const char *words[AMPC_NDTYPE + 34] = {"'descr': ",
                                                  "'fortran_order': ",
                                                  "'shape': ",
                                                  "True",
                                                  "False",
                                                  "(",
                                                  ")",
                                                  "(2, 3)",
                                                  "(5,)",
                                                  "()",
                                                  "{",
                                                  "}",
                                                  ", ",
                                                  "'",
                                                  "\"",
                                                  "\x93NUMPY",
                                                  "'|b1'",
                                                  "'>f8'",
                                                  "'<V2'",
                                                  "0",
                                                  "4611686018427387904",
                                                  "PK\3\4",
                                                  "PK\1\2",
                                                  "PK\6\6",
                                                  "PK\6\7",
                                                  "\xff\xff\xff\xff",
                                                  "\"dtype\":",
                                                  "\"data_offsets\":",
                                                  "1e999",
                                                  "nan",
                                                  ";",
                                                  "\t",
                                                  "\r\n"};
    int n = 33;
    if (!words[n])
        for (int t = 0; t < AMPC_NDTYPE; t++) words[n++] = dtype_info[t].npy;
    return words;
}
