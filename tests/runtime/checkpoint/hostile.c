/* SPDX-License-Identifier: Apache-2.0 */
/* hostile.c: files that are refused without any change. */
#define _GNU_SOURCE
#include "tests/runtime/checkpoint/saved.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- hostile files ------------------------------------------------------- */

/* Corrects the checksum. */
static void sum(char *file, size_t n) {
    static const char key[] = "\"ampc.crc32\":\"";
    char *at = memmem(file, n, key, sizeof key - 1), digits[9];
    if (!at || (at += sizeof key - 1) + 8 > file + n) return;
    memset(at, '0', 8);
    snprintf(digits, sizeof digits, "%08x",
             (unsigned)crc32_slow((uint8_t *)file, n));
    memcpy(at, digits, 8);
}

typedef struct Victim {
    ampc_session *s;
    Snapshot before;
    const char *path;
    char *good;
    size_t n;
} Victim;

static Victim victim_new(void) {
    const ampc_api *a = tiny_api();
    Victim v = {.s = open_module(&tiny_module, 1),
                .path = test_tmp("hostile.safetensors")};
    unlink(v.path);
    train(v.s, 0, 13);
    check_ok(v.s, a->set_cursor(v.s, "[1,2]"));
    check_ok(v.s, a->save(v.s, v.path));
    unlink(test_tmp("hostile.safetensors.prev"));
    v.good = test_read_file(v.path, &v.n);
    REQUIRE(v.good);
    train(v.s, 13, 1);
    check_ok(v.s, a->set_cursor(v.s, "[3]"));
    v.before = snapshot(v.s);
    return v;
}

static void victim_free(Victim *v) {
    free(v->good);
    tiny_api()->close(v->s);
}

/* Neither load nor resume may accept the file or change anything. */
static void refused(Victim *v, const char *data, size_t n, const char *why) {
    const ampc_api *a = tiny_api();
    REQUIRE(test_write_file(v->path, data, n));
    CHECK_EQ_INT(a->resume(v->s, v->path), AMPC_ERR_FORMAT);
    if (why) CHECK_HAS(a->error(v->s), why);
    Snapshot after = snapshot(v->s);
    check_same(&v->before, &after);
}

TEST_CASE(checkpoint, truncated_anywhere) {
    Victim v = victim_new();
    for (size_t n = v.n; n-- > 0;) {
        REQUIRE(truncate(v.path, (off_t)n) == 0);
        if (!CHECK_EQ_INT(tiny_api()->resume(v.s, v.path), AMPC_ERR_FORMAT) ||
            !CHECK_EQ_INT(tiny_api()->load(v.s, v.path), AMPC_ERR_FORMAT))
            break;
    }
    Snapshot after = snapshot(v.s);
    check_same(&v.before, &after);
    REQUIRE(test_write_file(v.path, v.good, v.n - 1));
    CHECK_EQ_INT(tiny_api()->resume(v.s, v.path), AMPC_ERR_FORMAT);
    CHECK_HAS(tiny_api()->error(v.s), "truncated");
    char *longer = calloc(1, v.n + 4);
    memcpy(longer, v.good, v.n);
    refused(&v, longer, v.n + 4, "more data");
    free(longer);
    victim_free(&v);
}

/* Each byte of the header is changed, with a correct checksum: the file is
   accepted or refused, never half of it. */
TEST_CASE(checkpoint, damaged_headers) {
    Victim v = victim_new();
    uint64_t header;
    memcpy(&header, v.good, 8);
    static const char with[] = "\"0{]9-\\\x80";
    char *copy = malloc(v.n);
    int fd = open(v.path, O_WRONLY);
    REQUIRE(fd >= 0 && copy);
    for (size_t i = 0; i < 8 + header; i++) {
        for (size_t k = 0; k + 1 < sizeof with; k++) {
            memcpy(copy, v.good, v.n);
            copy[i] = with[k];
            sum(copy, v.n);
            REQUIRE(pwrite(fd, copy, v.n, 0) == (ssize_t)v.n);
            ampc_status st = tiny_api()->resume(v.s, v.path);
            if (st != AMPC_OK) CHECK_EQ_INT(st, AMPC_ERR_FORMAT);
        }
    }
    REQUIRE(pwrite(fd, v.good, v.n, 0) == (ssize_t)v.n);
    close(fd);
    free(copy);
    check_ok(v.s, tiny_api()->resume(v.s, v.path));
    victim_free(&v);
}

#define SUMMED "{\"__metadata__\":{\"ampc.crc32\":\"00000000\","

/* A file from header text and `data` zero bytes. */
static void craft(Victim *v, const char *header, size_t data, const char *why) {
    char file[4096] = {0};
    uint64_t n = strlen(header);
    memcpy(file, &n, 8);
    memcpy(file + 8, header, n);
    sum(file, 8 + n + data);
    refused(v, file, 8 + n + data, why);
}

TEST_CASE(checkpoint, crafted_files) {
    Victim v = victim_new();
    craft(&v, "[]", 0, "not JSON");
    craft(&v, "{}", 0, "not a checkpoint of ampc");
    craft(&v, "{}", 8, "more data");
    craft(&v, "{\"w\":{\"dtype\":\"F32\",\"shape\":[3,2]}}", 24, "malformed");
    craft(&v,
          "{\"w\":{\"dtype\":\"F32\",\"shape\":[3,2],\"data_offsets\":[0,23]}}",
          24, "malformed entry \"w\"");
    craft(&v,
          "{\"w\":{\"dtype\":\"F32\",\"shape\":[3,2],\"data_offsets\":[0,28]}}",
          28, "malformed entry \"w\"");
    craft(&v,
          "{\"w\":{\"dtype\":\"F32\",\"shape\":[-3,-2],"
          "\"data_offsets\":[0,24]}}",
          24, "malformed");
    craft(&v,
          "{\"w\":{\"dtype\":\"F32\",\"shape\":[4611686018427387904,2],"
          "\"data_offsets\":[0,0]}}",
          0, "malformed");
    craft(&v,
          "{\"w\":{\"dtype\":\"U8\",\"shape\":[9223372036854775807],"
          "\"data_offsets\":[0,9223372036854775807]}}",
          0, "truncated");
    craft(&v,
          "{\"a\":{\"dtype\":\"U8\",\"shape\":[8],\"data_offsets\":[0,8]},"
          "\"b\":{\"dtype\":\"U8\",\"shape\":[8],\"data_offsets\":[4,12]}}",
          12, "overlap");
    craft(&v, "{\"__metadata__\":{\"ampc\":\"{}\"}}", 0, "no checksum");
    craft(&v, "{\"__metadata__\":{\"ampc.crc32\":\"0\"}}", 0, "checksum");
    craft(&v, "{\"__metadata__\":{\"ampc.crc32\":1}}", 0, "checksum");
    craft(&v, SUMMED "\"ampc\":\"{}\"}}", 0, "malformed");
    craft(&v, SUMMED "\"ampc\":\"{\\\"version\\\":3}\"}}", 0, "version 3");
    craft(&v, SUMMED "\"ampc\":7}}", 0, "no metadata");
    victim_free(&v);
}

static void replaced(Victim *v, const char *from, const char *to,
                     const char *why) {
    char *copy = malloc(v->n + 1);
    memcpy(copy, v->good, v->n);
    char *at = memmem(copy, v->n, from, strlen(from));
    REQUIRE(at && strlen(from) == strlen(to));
    memcpy(at, to, strlen(to));
    refused(v, copy, v->n, NULL);
    sum(copy, v->n);
    refused(v, copy, v->n, why);
    free(copy);
}

/* Checkpoints of other graphs with the same variables. */
TEST_CASE(checkpoint, another_build_may_have_made_it) {
    const ampc_api *a = tiny_api();
    Victim v = victim_new();
    const char *path = test_tmp("build.safetensors");
    char *at = memmem(v.good, v.n, "0000000000001234", 16);
    REQUIRE(at);
    at[15] = '5';
    sum(v.good, v.n);
    REQUIRE(test_write_file(path, v.good, v.n));
    ampc_session *s = open_module(&tiny_module, 1);
    check_ok(s, a->resume(s, path));
    CHECK_HAS(a->notice(s), "made by another build of ampc");
    a->close(s);
    victim_free(&v);
}

/* The good file with another text in its header, and zeros after its data. */
static ampc_status exchanged(Victim *v, const char *from, const char *to,
                             size_t more) {
    uint64_t header;
    char file[8192] = {0};
    memcpy(&header, v->good, 8);
    const char *at = memmem(v->good, v->n, from, strlen(from));
    REQUIRE(at && v->n + strlen(to) + more + 8 < sizeof file);
    size_t before = (size_t)(at - v->good), n = before + strlen(to);
    size_t rest = (size_t)header + 8 - before - strlen(from);
    memcpy(file, v->good, before);
    memcpy(file + before, to, strlen(to));
    memcpy(file + n, at + strlen(from), rest);
    for (n += rest; n % 8; n++) file[n] = ' ';
    header = n - 8;
    memcpy(file, &header, 8);
    uint64_t former;
    memcpy(&former, v->good, 8);
    memcpy(file + n, v->good + 8 + former, v->n - 8 - former);
    n += v->n - 8 - former + more;
    sum(file, n);
    REQUIRE(test_write_file(v->path, file, n));
    return tiny_api()->resume(v->s, v->path);
}

/* Numbers up to the limits of their types, and none of another width. */
TEST_CASE(checkpoint, numbers_of_files_fit_their_types) {
    static const struct {
        const char *from, *to;
        size_t more;
        const char *why; /* NULL: it is taken */
    } rows[] = {
        {"\\\"good\\\":13", "\\\"good\\\":2147483647", 0, NULL},
        {"\\\"good\\\":13", "\\\"good\\\":2147483648", 0, "scaler.good"},
        {"\\\"good\\\":13", "\\\"good\\\":4294967296", 0, "scaler.good"},
        {"\\\"good\\\":13", "\\\"good\\\":-2147483649", 0, "scaler.good"},
        {"[-9007199254740992,-", "[9223372036854775807,-", 0, NULL},
        {"[-9007199254740992,-", "[-9223372036854775808,-", 0, NULL},
        {"[-9007199254740992,-", "[9223372036854775808,-", 0, "rng.rng"},
        {"[-9007199254740992,-", "[-9223372036854775809,-", 0, "rng.rng"},
        {"[-9007199254740992,-", "[1.5,-", 0, "rng.rng"},
        {"\\\"step\\\":13", "\\\"step\\\":9007199254740992", 0, NULL},
        {"\\\"step\\\":13", "\\\"step\\\":9007199254740994", 0, "step"},
        {"\\\"scale\\\":1024", "\\\"scale\\\":3.4e38", 0, NULL},
        {"\\\"scale\\\":1024", "\\\"scale\\\":3.5e38", 0, "scaler.scale"},
        {"F32\",\"shape\":[],\"data_offsets\":[64,68]",
         "F32\",\"shape\":[],\"data_offsets\":[64,68] ", 0, NULL},
        {"F32\",\"shape\":[],\"data_offsets\":[64,68]",
         "F64\",\"shape\":[],\"data_offsets\":[64,72]", 4,
         "is f64[] in the file and f32[]"},
        {"F32\",\"shape\":[],\"data_offsets\":[64,68]",
         "I32\",\"shape\":[],\"data_offsets\":[64,68]", 0,
         "is i32[] in the file and f32[]"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        Victim v = victim_new();
        ampc_status st = exchanged(&v, rows[i].from, rows[i].to, rows[i].more);
        CHECK_MSG(st == (rows[i].why ? AMPC_ERR_FORMAT : AMPC_OK), "%s: %s",
                  rows[i].to, tiny_api()->error(v.s));
        if (rows[i].why) {
            CHECK_HAS(tiny_api()->error(v.s), rows[i].why);
            Snapshot after = snapshot(v.s);
            check_same(&v.before, &after);
        }
        victim_free(&v);
    }
}

TEST_CASE(checkpoint, mismatched_files) {
    Victim v = victim_new();
    replaced(&v, "\"shape\":[3,2]", "\"shape\":[2,3]",
             "'w' is f32[2,3] in the file and f32[3,2]");
    replaced(&v, "\"b\":{\"dtype", "\"c\":{\"dtype", "'c' is unknown");
    replaced(&v, "\\\"good\\\":", "\\\"gold\\\":", "scaler.good");
    replaced(&v, "\\\"step\\\":13", "\\\"step\\\":1x", "malformed");
    replaced(&v, "\\\"tried\\\":13", "\\\"tried\\\":1\\", NULL);
    replaced(&v, "\\\"micro\\\":0", "\\\"micro\\\":7", "micro-steps");
    replaced(&v, "\\\"scale\\\":1024", "\\\"scale\\\":null",
             "has no valid 'scaler.scale'");
    replaced(&v, "\\\"scale\\\":1024", "\\\"scale\\\":-124",
             "'scaler.scale' = -124 cannot be");
    replaced(&v, "\\\"scale\\\":1024", "\\\"scale\\\":0e24",
             "'scaler.scale' = 0e24 cannot be");
    replaced(&v, "\\\"lr\\\":0.100000001", "\\\"lr\\\":1e200000000",
             "'schedule.lr'");
    replaced(&v, "\\\"tried\\\":13", "\\\"tried\\\":-3",
             "'counts.tried' = -3 cannot be");
    /* two numbers where one is missing, or three */
    replaced(&v, "[-9007199254740992,-9007199254740992]",
             "[-9007199254740992                  ]", "has no valid 'rng.rng'");
    replaced(&v, "[-9007199254740992,-9007199254740992]",
             "[-9007199254740992,-90071992547409,2]", "has no valid 'rng.rng'");
    victim_free(&v);
}

TEST_CASE(checkpoint, paths_that_are_no_files) {
    const ampc_api *a = tiny_api();
    ampc_session *s = open_module(&tiny_module, 1);
    const char *fifo = test_tmp("pipe");
    CHECK_EQ_INT(a->load(s, test_tmp("absent")), AMPC_ERR_FILE);
    CHECK_HAS(a->error(s), "absent: No such file");
    CHECK_EQ_INT(a->load(s, test_tmpdir()), AMPC_ERR_FORMAT);
    CHECK_EQ_INT(a->load(s, ""), AMPC_ERR_ARGUMENT);
    CHECK_EQ_INT(a->save(s, NULL), AMPC_ERR_ARGUMENT);
    REQUIRE(mkfifo(fifo, 0600) == 0);
    CHECK_EQ_INT(a->load(s, fifo), AMPC_ERR_FORMAT);
    CHECK_EQ_INT(a->save(s, test_tmp("no/such/folder/x")), AMPC_ERR_FILE);
    CHECK_EQ_INT(a->save(s, "/dev/full/x"), AMPC_ERR_FILE);
    CHECK_EQ_INT(a->set_cursor(s, "{epoch:1}"), AMPC_ERR_ARGUMENT);
    a->close(s);
}
