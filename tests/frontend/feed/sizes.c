/* SPDX-License-Identifier: Apache-2.0 */
/* sizes.c: false sizes, and the memory that large files take. */
#define _GNU_SOURCE
#include "tests/frontend/feed/files.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#include <zlib.h>

#include "runtime/program/dtype.h"

/* ---- sizes that lie ------------------------------------------------------ */

static void refused(const char *name, const char *why) {
    Diag d = {0};
    Array a;
    CHECK_EQ_INT(array_open(&d, test_tmp(name), NULL, &a), ERR_USER);
    CHECK_HAS(d.text.data, why);
    CHECK(a.memory == NULL && a.fd == -1);
    sb_free(&d.text);
}

/* A header alone, or with that many bytes after it. */
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

/* An array with an axis of length 0 has no elements, whatever its other axes
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
    alarm(20); /* no process writes to it */
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

/* Runs fn in a separate process, so that its peak memory does not include
   other cases. */
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

/* Like large files: read in windows, whatever their packing and order. */
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

/* An array of a x b x c numbers in every order, byte order and packing has
   the same elements, both in memory and when too large for it. */
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
