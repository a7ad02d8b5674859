/* feed_test.c: data files as `ampc run` reads them: layouts, damage, and sizes
   that lie.  What is read is compared with what was written here by hand.   */
#define _GNU_SOURCE
#include "frontend/driver/feed.h"

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

#include "tests/harness.h"

/* ---- helpers ------------------------------------------------------------- */

static const char *path_of(const char *name) {
    static char paths[8][600];
    static int next;
    char *p = paths[next++ % 8];
    snprintf(p, sizeof paths[0], "%s/%s", test_tmpdir(), name);
    return p;
}

static void write_npy(const char *name, int dtype, int rank, const int64_t *dim,
                      const void *data) {
    StrBuf sb = {0};
    size_t n = array_types[dtype].bytes;
    for (int i = 0; i < rank; i++) n *= (size_t)dim[i];
    npy_header(&sb, dtype, rank, dim);
    sb_putn(&sb, data, n);
    REQUIRE(test_write_file(path_of(name), sb.data, sb.len));
    sb_free(&sb);
}

/* ---- array files --------------------------------------------------------- */

static Status read_bytes(const char *data, size_t n, Array *a, Diag *d) {
    REQUIRE(test_write_file(path_of("array"), data, n));
    return array_open(d, path_of("array"), a);
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

/* Any cut and any one byte changed: an error or an array, never a crash. */
TEST_CASE(npy, truncated) {
    float data[6] = {1, 2, 3, 4, 5, 6};
    char idx[16 + 4] = {0, 0, 8, 2, 0, 0, 0, 2, 0, 0, 0, 2, 1, 2, 3, 4};
    Array a;
    write_npy("cut.npy", AMPC_DTYPE_F32, 2, (int64_t[]){2, 3}, data);
    size_t n;
    char *file = test_read_file(path_of("cut.npy"), &n);
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
    REQUIRE(read_bytes(idx, 16, &a, &d) == OK);
    CHECK(a.rank == 2 && a.dim[0] == 2 && a.memory[3] == 4);
    array_close(&a);
    free(file);
}

TEST_CASE(npy, truncated_gzip) {
    char zeros[4000] = {0}, *file;
    size_t n;
    Array a;
    gzFile f = gzopen(path_of("z.gz"), "wb");
    write_npy("z.npy", AMPC_DTYPE_F32, 1, (int64_t[]){1000}, zeros);
    file = test_read_file(path_of("z.npy"), &n);
    gzwrite(f, file, (unsigned)n);
    gzclose(f);
    free(file);
    Diag d = {0};
    REQUIRE(array_open(&d, path_of("z.gz"), &a) == OK);
    CHECK_EQ_INT(a.count, 1000);
    array_close(&a);
    file = test_read_file(path_of("z.gz"), &n);
    CHECK_EQ_INT(read_bytes(file, n - 4, &a, &d), ERR_USER);
    CHECK_HAS(d.text.data, "gzip");
    sb_free(&d.text);
    free(file);
}

/* ---- sizes that lie ------------------------------------------------------ */

static void refused(const char *name, const char *why) {
    Diag d = {0};
    Array a;
    CHECK_EQ_INT(array_open(&d, path_of(name), &a), ERR_USER);
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
    REQUIRE(test_write_file(path_of(name), file, 10 + (size_t)len + n));
}

/* Axes of which one is 0 hold no element, however long the others are. */
TEST_CASE(feed, empty_shapes_with_huge_axes) {
    static const char *const shapes[] = {"(4611686018427387904, 0)",
                                         "(0, 4611686018427387904)", "(0,)"};
    Diag d = {0};
    Array a;
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        put_header("empty.npy", shapes[i], 0);
        REQUIRE(array_open(&d, path_of("empty.npy"), &a) == OK);
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
    REQUIRE(test_write_file(path_of("lie"), idx, sizeof idx));
    refused("lie", "less than its shape");
}

TEST_CASE(feed, a_header_without_end) {
    size_t n = 1 << 20;
    char *file = malloc(n);
    memset(file, ' ', n);
    memcpy(file, "\x93NUMPY\2\0\0\0\x0f\0", 12);
    REQUIRE(test_write_file(path_of("long.npy"), file, n));
    refused("long.npy", "the .npy header is too long");
    free(file);
}

TEST_CASE(feed, what_is_no_file) {
    REQUIRE(mkfifo(path_of("fifo"), 0600) == 0);
    alarm(20); /* nobody will write to it */
    refused("fifo", "is no regular file");
    alarm(0);
    refused(".", "is a folder");
    REQUIRE(symlink("/dev/zero", path_of("zero")) == 0);
    refused("zero", "is no regular file");
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
    char *head = test_read_file(path_of("head.npy"), &n);
    gzFile f = gzopen(path_of(name), "wb1");
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
    if (array_open(&d, path_of("bomb.gz"), &a) != ERR_USER) return 1;
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
    if (array_open(&d, path_of(name), &a) != OK) return 1;
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

/* As large files are: read in windows, whatever their packing and order. */
TEST_CASE(feed, large_files_are_not_held_in_memory) {
    enum { ROWS = 1 << 20, PER = LARGE / ROWS };
    size_t n = 0;
    float *data = malloc((size_t)LARGE * 4);
    REQUIRE(data);
    for (int64_t i = 0; i < LARGE; i++) data[i] = large_value(i);
    write_npy("large.npy", AMPC_DTYPE_F32, 2, (int64_t[]){ROWS, PER}, data);
    char *file = test_read_file(path_of("large.npy"), &n);
    gzFile gz = gzopen(path_of("large.gz"), "wb1");
    REQUIRE(file && gz && gzwrite(gz, file, (unsigned)n) == (int)n);
    gzclose(gz);
    float *columns = (float *)(file + n - (size_t)LARGE * 4);
    for (int64_t r = 0; r < ROWS; r++)
        for (int64_t k = 0; k < PER; k++)
            columns[k * ROWS + r] = large_value(r * PER + k);
    char *order = memmem(file, 200, "False", 5);
    memcpy(order, "True ", 5);
    REQUIRE(test_write_file(path_of("columns.npy"), file, n));
    free(file);
    free(data);
    in_child(read_plain);
    in_child(read_packed);
    in_child(read_columns);
}

TEST_CASE(feed, a_file_that_shrinks_while_it_is_read) {
    Diag d = {0};
    Array a;
    float part[4];
    float *data = calloc(5 << 20, 4);
    write_npy("shrinks.npy", AMPC_DTYPE_F32, 1, (int64_t[]){5 << 20}, data);
    free(data);
    REQUIRE(array_open(&d, path_of("shrinks.npy"), &a) == OK);
    CHECK(!a.memory);
    CHECK(array_get(&d, "shrinks.npy", &a, 4 << 20, 4, part) == OK);
    REQUIRE(truncate(path_of("shrinks.npy"), 4096) == 0);
    CHECK_EQ_INT(array_get(&d, "shrinks.npy", &a, 4 << 20, 4, part), ERR_USER);
    CHECK_HAS(d.text.data, "became shorter");
    array_close(&a);
    sb_free(&d.text);
}
