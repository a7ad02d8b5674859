/* SPDX-License-Identifier: Apache-2.0 */
/* checkpoint_test.c: save, load, resume: bit-exact and atomic; checkpoint/ has
   the other subjects. */
#define _GNU_SOURCE
#include "tests/runtime/checkpoint/saved.h"

#include <fcntl.h>
#include <locale.h>
#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "runtime/files/checkpoint.h"

/* ---- round trips --------------------------------------------------------- */

static void resume_equals(const AmpcModule *m, int stop) {
    const ampc_api *a = tiny_api();
    const char *path = test_tmp("resume.safetensors");
    ampc_session *one = open_module(m, 1), *two = open_module(m, 1);
    train(one, 0, 30);
    train(two, 0, stop);
    check_ok(two, a->set_cursor(two, "{\"epoch\":3}"));
    check_ok(two, a->set_hyper(two, "seed", 99));
    check_ok(two, a->save(two, path));
    a->close(two);
    two = open_module(m, 1);
    check_ok(two, a->resume(two, path));
    CHECK_STR(a->get_cursor(two), "{\"epoch\":3}");
    CHECK(two->bad.count == 0);
    train(two, stop, 30 - stop);
    check_ok(one, a->set_cursor(one, "{\"epoch\":3}"));
    check_ok(one, a->set_hyper(one, "seed", 99));
    Snapshot x = snapshot(one), y = snapshot(two);
    check_same(&x, &y);
    a->close(one);
    a->close(two);
}

TEST_CASE(checkpoint, resume_is_bit_exact) {
    resume_equals(&tiny_module, 0);
    resume_equals(&tiny_module, 17);
}

TEST_CASE(checkpoint, resume_between_micro_steps) {
    resume_equals(&tiny_accumulating, 17);
    resume_equals(&tiny_accumulating, 18);
}

static void write_f32(ampc_session *s, const char *name, float x) {
    ampc_input in = ampc_in(NULL, &x, sizeof x, AMPC_DTYPE_F32);
    check_ok(s, tiny_api()->write_variable(s, name, &in));
}

TEST_CASE(checkpoint, states_that_are_not_finite) {
    const ampc_api *a = tiny_api();
    ampc_session *s = open_module(&tiny_module, 1);
    float odd[] = {NAN, INFINITY, -INFINITY, 1.17549435e-38f, 1e-45f, 0.1f};
    const char *path = test_tmp("odd.safetensors");
    for (int i = 0; i < 6; i++) {
        write_f32(s, "ampc.loss_sum", odd[i]);
        if (odd[i] > 0 && isfinite(odd[i])) write_f32(s, "ampc.scale", odd[i]);
        Snapshot before = snapshot(s);
        check_ok(s, a->save(s, path));
        write_f32(s, "ampc.loss_sum", odd[5]);
        write_f32(s, "ampc.scale", odd[5]);
        check_ok(s, a->resume(s, path));
        Snapshot after = snapshot(s);
        if (!isnan(odd[i])) CHECK_MEM(before.bytes, after.bytes, before.n);
    }
    a->close(s);
}

/* With these values every later step would be skipped, or refused. */
TEST_CASE(checkpoint, scalars_that_cannot_be) {
    static const float scales[] = {NAN, 0, -1, INFINITY, -INFINITY};
    static const int64_t counts[] = {-1, INT64_MIN, INT64_MAX};
    const ampc_api *a = tiny_api();
    ampc_session *s = open_module(&tiny_accumulating, 1);
    Snapshot before = snapshot(s);
    ampc_input in = ampc_in(NULL, NULL, 4, AMPC_DTYPE_F32);
    for (size_t i = 0; i < sizeof scales / sizeof *scales; i++) {
        in.data = &scales[i];
        CHECK_EQ_INT(a->write_variable(s, "ampc.scale", &in),
                     AMPC_ERR_ARGUMENT);
        CHECK_HAS(a->error(s), "'ampc.scale' cannot be");
    }
    in = ampc_in(NULL, NULL, 8, AMPC_DTYPE_I64);
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
        in.data = &counts[i];
        CHECK_EQ_INT(a->write_variable(s, "ampc.step", &in), AMPC_ERR_ARGUMENT);
    }
    int32_t micro = 3; /* of 2 */
    in = ampc_in(NULL, &micro, 4, AMPC_DTYPE_I32);
    CHECK_EQ_INT(a->write_variable(s, "ampc.micro", &in), AMPC_ERR_ARGUMENT);
    Snapshot after = snapshot(s);
    check_same(&before, &after);
    a->close(s);
}

/* The bf16 copy of w from the last step does not match the loaded w. */
TEST_CASE(checkpoint, loading_refreshes_the_16_bit_copies) {
    const ampc_api *a = tiny_api();
    const char *path = test_tmp("refresh.safetensors");
    float x[TINY_BATCH * TINY_IN], t[TINY_BATCH * TINY_OUT];
    for (int resume = 0; resume < 2; resume++) {
        ampc_session *s = open_module(&tiny_module, 1);
        train(s, 0, 1);
        check_ok(s, a->save(s, path));
        train(s, 1, 5);
        check_ok(s, resume ? a->resume(s, path) : a->load(s, path));
        tiny_batch(0, x, t);
        ampc_input in = ampc_in("x", x, sizeof x, AMPC_DTYPE_F32);
        check_ok(s, a->predict(s, &in, 1, 0, NULL, 0));
        const float *w = cpu_var(s, 0);
        const uint16_t *copy = cpu_var(s, (uint32_t)find_var(s->m, "w.bf16"));
        for (int i = 0; i < TINY_IN * TINY_OUT; i++) {
            uint32_t wide = (uint32_t)copy[i] << 16;
            float back;
            memcpy(&back, &wide, 4);
            CHECK_REL(back, w[i], 0.004); /* 8 bits of mantissa */
        }
        a->close(s);
    }
}

TEST_CASE(checkpoint, does_not_depend_on_the_locale) {
    if (!setlocale(LC_ALL, "de_DE.UTF-8") && !setlocale(LC_ALL, "fr_FR.UTF-8"))
        SKIP("no locale with a decimal comma is installed");
    resume_equals(&tiny_module, 5);
    setlocale(LC_ALL, "C");
}

TEST_CASE(checkpoint, load_takes_weights_alone) {
    const ampc_api *a = tiny_api();
    const char *path = test_tmp("weights.safetensors");
    ampc_session *s = open_module(&tiny_module, 1),
                 *t = open_module(&tiny_other, 1);
    ampc_scaler sc = {.size = sizeof sc};
    train(s, 0, 10);
    check_ok(s, a->save(s, path));
    check_ok(t, a->load(t, path));
    CHECK_MEM(cpu_var(s, 0), cpu_var(t, 0), 24);
    check_ok(t, a->scaler(t, &sc));
    CHECK_EQ_INT(sc.step, 0);
    CHECK_EQ_INT(a->resume(t, path), AMPC_ERR_FORMAT);
    CHECK_HAS(a->error(t), "another model");
    a->close(s);
    a->close(t);
}

/* Weights from other programs: no metadata, and unneeded tensors. */
TEST_CASE(checkpoint, load_takes_files_from_elsewhere) {
    static const char header[] =
        "{\"w\":{\"dtype\":\"F32\",\"shape\":[3,2],\"data_offsets\":[0,24]},"
        "\"b\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[24,32]},"
        "\"running \\\"mean\\\"\":{\"dtype\":\"F32\",\"shape\":[],"
        "\"data_offsets\":[32,36]},"
        "\"head\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[36,40]}}";
    const ampc_api *a = tiny_api();
    const char *path = test_tmp("elsewhere.safetensors");
    char file[8 + sizeof header - 1 + 40];
    uint64_t n = sizeof header - 1;
    float w = 0.75f;
    memset(file, 0, sizeof file);
    memcpy(file, &n, 8);
    memcpy(file + 8, header, n);
    memcpy(file + 8 + n, &w, 4);
    REQUIRE(test_write_file(path, file, sizeof file));
    ampc_session *s = open_module(&tiny_module, 1);
    CHECK_EQ_INT(a->resume(s, path), AMPC_ERR_FORMAT);
    CHECK_STR(a->notice(s), "");
    check_ok(s, a->load(s, path));
    CHECK(*(float *)cpu_var(s, 0) == 0.75f);
    CHECK_HAS(a->notice(s), "1 tensors are not in this module: 'head'");
    a->close(s);
}

static char pattern(uint64_t at) { return (char)(at * 7 % 251); }

static ampc_status get_pattern(ampc_session *s, PlanRef from, void *to,
                               uint64_t bytes) {
    (void)s;
    for (uint64_t i = 0; i < bytes; i++)
        ((char *)to)[i] = pattern(from.offset + i);
    return AMPC_OK;
}

TEST_CASE(checkpoint, a_tensor_is_written_in_parts) {
    enum { BYTES = 700001 };
    const char *path = test_tmp("long.safetensors");
    ampc_session *s = open_module(&tiny_module, 1);
    struct AmpcBackend device = *s->backend;
    const struct AmpcBackend *own = s->backend;
    StItem item = {.name = "long",
                   .dtype = AMPC_U8,
                   .rank = 1,
                   .dim = {BYTES},
                   .bytes = BYTES,
                   .scales = -1,
                   .code = -1};
    device.get = get_pattern;
    s->backend = &device;
    check_ok(s, st_write(s, path, &item, 1, &(StOutput){"format", "pt", NULL}));
    s->backend = own;
    size_t n = 0, same = 0;
    char *file = test_read_file(path, &n);
    REQUIRE(file && n > BYTES);
    while (same < BYTES && file[n - BYTES + same] == pattern(same)) same++;
    CHECK_EQ_INT(same, BYTES);
    uint64_t header;
    memcpy(&header, file, sizeof header);
    CHECK_EQ_INT(n, sizeof header + header + BYTES);
    free(file);
    tiny_api()->close(s);
}

TEST_CASE(checkpoint, file_is_as_promised) {
    const ampc_api *a = tiny_api();
    const char *path = test_tmp("format.safetensors");
    ampc_session *s = open_module(&tiny_module, 1);
    size_t n;
    train(s, 0, 2);
    check_ok(s, a->save(s, path));
    char *file = test_read_file(path, &n);
    REQUIRE(file);
    uint64_t header;
    memcpy(&header, file, 8);
    CHECK_EQ_INT(header % 8, 0);
    CHECK_EQ_INT(n, 8 + header + 24 + 8 + 24 + 8 + 4);
    file[8 + header] = 0;
    CHECK_HAS(file + 8, "\"w\":{\"dtype\":\"F32\",\"shape\":[3,2],"
                        "\"data_offsets\":[0,24]}");
    CHECK_HAS(file + 8, "\"ampc.opt/w/momentum_buffer\":");
    CHECK_HAS(file + 8, "\"running \\\"mean\\\"\":");
    CHECK_HAS(file + 8, "\\\"scaler\\\":{\\\"scale\\\":1024,\\\"good\\\":2}");
    CHECK_HAS(file + 8, "\\\"rng\\\":{\\\"rng\\\":[");
    CHECK_HAS(file + 8, "\\\"graph_hash\\\":\\\"0000000000001234\\\"");
    char *crc = strstr(file + 8, "\"ampc.crc32\":\"");
    CHECK(crc && crc < strstr(file + 8, "\"ampc\":"));
    free(file);
    CHECK_EQ_INT(test_temporaries(), 0);
    a->close(s);
}

/* A safetensors header must be UTF-8. */
TEST_CASE(checkpoint, a_cursor_is_utf8) {
    static const char *const wrong[] = {
        "\"caf\xe9\"",          "\"\xc0\x80\"", "\"\xed\xa0\x80\"",
        "\"\xf4\x90\x80\x80\"", "\"\xe2\x82\"", "{\"\xff\":1}"};
    const ampc_api *a = tiny_api();
    const char *path = test_tmp("utf8.safetensors");
    ampc_session *s = open_module(&tiny_module, 1);
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        CHECK_EQ_INT(a->set_cursor(s, wrong[i]), AMPC_ERR_ARGUMENT);
        CHECK_HAS(a->error(s), "no UTF-8");
        CHECK_STR(a->get_cursor(s), "null");
    }
    const char *good = "{ \"at\" :\n\"caf\xc3\xa9 \xf0\x9f\x98\x80\"}";
    check_ok(s, a->set_cursor(s, good));
    check_ok(s, a->save(s, path));
    check_ok(s, a->set_cursor(s, "0"));
    check_ok(s, a->resume(s, path));
    CHECK_STR(a->get_cursor(s), good);
    /* memory of an older module */
    char *old = mem_alloc(s, 6);
    memcpy(old, "\"a\xe9z\"", 6);
    session_take_cursor(s, old);
    check_ok(s, a->save(s, path));
    size_t n;
    char *file = test_read_file(path, &n);
    uint64_t header;
    memcpy(&header, file, 8);
    CHECK(json_is_utf8(file + 8, header));
    free(file);
    check_ok(s, a->resume(s, path));
    CHECK_STR(a->get_cursor(s), "\"a\\u00e9z\"");
    a->close(s);
}

/* Writes a copy of a file whose header has `byte` in the place of the first
   letter of `word`. */
static void spoil(const char *path, const char *good, size_t n,
                  const char *word, char byte) {
    char *copy = malloc(n);
    memcpy(copy, good, n);
    uint64_t header;
    memcpy(&header, good, 8);
    char *at = memmem(copy + 8, header, word, strlen(word));
    REQUIRE(at != NULL);
    *at = byte;
    REQUIRE(test_write_file(path, copy, n));
    free(copy);
}

TEST_CASE(checkpoint, a_header_that_is_no_utf8_is_damaged) {
    static const char *const words[] = {"tiny", "caf", "made_by"};
    const ampc_api *a = tiny_api();
    const char *path = test_tmp("header.safetensors");
    ampc_session *s = open_module(&tiny_module, 1);
    train(s, 0, 1);
    check_ok(s, a->set_cursor(s, "\"caf\""));
    check_ok(s, a->save(s, path));
    size_t n;
    char *good = test_read_file(path, &n);
    REQUIRE(good);
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        spoil(path, good, n, words[i], '\xe9');
        CHECK_EQ_INT(a->resume(s, path), AMPC_ERR_FORMAT);
        CHECK_HAS(a->error(s), "the header is not UTF-8 text");
        CHECK_EQ_INT(a->load(s, path), AMPC_ERR_FORMAT);
        CHECK_HAS(a->error(s), "the header is not UTF-8 text");
    }
    free(good);
    a->close(s);
}

/* ---- the checkpoint before ----------------------------------------------- */

static int64_t steps_of(ampc_session *s) {
    ampc_scaler sc = {.size = sizeof sc};
    check_ok(s, tiny_api()->scaler(s, &sc));
    return sc.step;
}

static void damage(const char *path, const char *good, size_t n, int how) {
    char *copy = malloc(n);
    memcpy(copy, good, n);
    if (how == 0) REQUIRE(test_write_file(path, copy, n - 3));
    if (how == 1) REQUIRE(test_write_file(path, copy, 0));
    copy[n - 3] ^= 4; /* one bit of the data */
    if (how == 2) REQUIRE(test_write_file(path, copy, n));
    if (how == 3) REQUIRE(unlink(path) == 0);
    free(copy);
}

TEST_CASE(checkpoint, a_torn_file_falls_back_and_says_so) {
    static const char *const why[] = {"truncated", "the file is empty",
                                      "checksum is wrong", "No such file"};
    const ampc_api *a = tiny_api();
    const char *path = test_tmp("torn.safetensors");
    const char *prev = test_tmp("torn.safetensors.prev");
    ampc_session *s = open_module(&tiny_module, 1);
    size_t n;
    train(s, 0, 2);
    check_ok(s, a->save(s, path));
    CHECK(access(prev, F_OK) != 0);
    Snapshot before = snapshot(s);
    train(s, 2, 1);
    check_ok(s, a->save(s, path));
    char *good = test_read_file(path, &n);
    REQUIRE(good);
    for (int how = 0; how < 4; how++) {
        damage(path, good, n, how);
        CHECK(a->load(s, path) != AMPC_OK);
        train(s, 3, 1);
        check_ok(s, a->resume(s, path));
        Snapshot after = snapshot(s);
        check_same(&before, &after);
        CHECK_HAS(a->notice(s), why[how]);
        CHECK_HAS(a->notice(s), "torn.safetensors.prev");
        REQUIRE(test_write_file(path, good, n));
        check_ok(s, a->resume(s, path));
        CHECK_EQ_INT(steps_of(s), 3);
        CHECK_STR(a->notice(s), "");
    }
    damage(path, good, n, 2);
    damage(prev, good, n, 2);
    CHECK_EQ_INT(a->resume(s, path), AMPC_ERR_FORMAT);
    CHECK_HAS(a->error(s), "torn.safetensors: damaged");
    CHECK_EQ_INT(steps_of(s), 3);
    free(good);
    a->close(s);
}

/* The checkpoint before a damaged one stays until there are two good ones. */
TEST_CASE(checkpoint, a_damaged_file_does_not_replace_a_good_one) {
    const ampc_api *a = tiny_api();
    const char *path = test_tmp("kept.safetensors");
    ampc_session *s = open_module(&tiny_module, 1);
    size_t n;
    train(s, 0, 2);
    check_ok(s, a->save(s, path));
    train(s, 2, 1);
    check_ok(s, a->save(s, path));
    char *good = test_read_file(path, &n);
    REQUIRE(good);
    damage(path, good, n, 2);
    for (int again = 0; again < 2; again++) {
        check_ok(s, a->resume(s, path));
        CHECK(!again == !!strstr(a->notice(s), "kept.safetensors.prev"));
        CHECK_EQ_INT(steps_of(s), 2 + again);
        train(s, 2 + again, 1);
        check_ok(s, a->save(s, path));
        if (!again) CHECK(access(test_tmp("kept.safetensors.prev"), F_OK) == 0);
    }
    damage(path, good, n, 2); /* step 4; before it step 3 */
    check_ok(s, a->resume(s, path));
    CHECK_EQ_INT(steps_of(s), 3);
    damage(path, good, n, 2);
    check_ok(s, a->resume(s, path));
    train(s, 3, 1);
    check_ok(s, a->save(s, path));
    damage(path, good, n, 2); /* as if it had not been saved whole */
    check_ok(s, a->resume(s, path));
    CHECK_EQ_INT(steps_of(s), 3);
    free(good);
    a->close(s);
}

/* A complete file of another program is a mistake, not damage. */
TEST_CASE(checkpoint, a_foreign_file_does_not_fall_back) {
    const ampc_api *a = tiny_api();
    const char *path = test_tmp("foreign.safetensors");
    ampc_session *s = open_module(&tiny_module, 1),
                 *t = open_module(&tiny_other, 1);
    check_ok(s, a->save(s, path));
    check_ok(t, a->save(t, path));
    CHECK_EQ_INT(a->resume(s, path), AMPC_ERR_FORMAT);
    CHECK_HAS(a->error(s), "another model");
    a->close(s);
    a->close(t);
}

TEST_CASE(checkpoint, every_bit_of_the_data_counts) {
    const ampc_api *a = tiny_api();
    const char *path = test_tmp("bits.safetensors");
    ampc_session *s = open_module(&tiny_module, 1);
    train(s, 0, 2);
    check_ok(s, a->save(s, path));
    size_t n;
    char *file = test_read_file(path, &n);
    REQUIRE(file);
    for (size_t i = 0; i < n; i++) {
        file[i] ^= (char)(1 << i % 8);
        REQUIRE(test_write_file(path, file, n));
        bool ok = a->resume(s, path) != AMPC_OK;
        if (!CHECK_MSG(ok, "byte %zu", i)) break;
        file[i] ^= (char)(1 << i % 8);
    }
    free(file);
    a->close(s);
}

/* ---- what is in the way of a save ---------------------------------------- */

TEST_CASE(checkpoint, a_save_destroys_nothing_of_the_user) {
    const ampc_api *a = tiny_api();
    const char *path = test_tmp("safe.safetensors");
    const char *other = test_tmp("safe.safetensors.tmp");
    ampc_session *s = open_module(&tiny_module, 1);
    struct stat st;
    REQUIRE(test_write_file(other, "mine", 4));
    int fd = open(other, O_RDONLY);
    REQUIRE(flock(fd, LOCK_EX) == 0);
    alarm(20); /* a lock held by another process is not waited for */
    check_ok(s, a->save(s, path));
    alarm(0);
    char *text = test_read_file(other, NULL);
    CHECK_STR(text, "mine");
    free(text);
    close(fd);
    const char *fifo = test_tmp("safe.fifo");
    REQUIRE(mkfifo(fifo, 0600) == 0);
    CHECK_EQ_INT(a->save(s, fifo), AMPC_ERR_FILE);
    CHECK_HAS(a->error(s), "not a regular file");
    CHECK(lstat(fifo, &st) == 0 && S_ISFIFO(st.st_mode));
    a->close(s);
}

/* The signal's default action would end the host. */
TEST_CASE(checkpoint, a_limit_on_file_sizes_fails_the_save) {
    const ampc_api *a = tiny_api();
    const char *path = test_tmp("limited.safetensors");
    ampc_session *s = open_module(&tiny_module, 1);
    int status;
    check_ok(s, a->save(s, path));
    pid_t pid = fork();
    REQUIRE(pid >= 0);
    if (pid == 0) {
        struct rlimit l = {100, 100};
        ampc_session *own = open_module(&tiny_module, 1);
        setrlimit(RLIMIT_FSIZE, &l);
        _exit(a->save(own, path) == AMPC_ERR_FILE &&
                      strstr(a->error(own), "File too large")
                  ? 0
                  : 1);
    }
    REQUIRE(waitpid(pid, &status, 0) == pid);
    CHECK_EQ_INT(status, 0);
    check_ok(s, a->resume(s, path));
    CHECK_EQ_INT(test_temporaries(), 0);
    a->close(s);
}

/* ---- killed while saving ------------------------------------------------- */

static void save_forever(const char *path) {
    ampc_session *s = open_module(&tiny_module, 1);
    for (int i = 0;; i++) {
        train(s, i, 1);
        if (tiny_api()->save(s, path) != AMPC_OK) _exit(1);
    }
}

TEST_CASE(checkpoint, survives_kill) {
    const ampc_api *a = tiny_api();
    const char *path = test_tmp("killed.safetensors");
    ampc_session *s = open_module(&tiny_module, 1);
    ampc_scaler sc = {.size = sizeof sc};
    check_ok(s, a->save(s, path));
    int kills = test_slow() ? 1000 : 25;
    for (int i = 0; i < kills; i++) {
        pid_t pid = fork();
        REQUIRE(pid >= 0);
        if (pid == 0) save_forever(path);
        struct timespec t = {0, 3000000 + 700000 * (i % 25) + 1000 * i};
        nanosleep(&t, NULL);
        kill(pid, SIGKILL);
        waitpid(pid, NULL, 0);
        check_ok(s, a->resume(s, path));
        check_ok(s, a->scaler(s, &sc));
        CHECK_EQ_INT(sc.step, sc.tried);
    }
    check_ok(s, a->save(s, path));
    CHECK_EQ_INT(test_temporaries(), 0);
    a->close(s);
}

TEST_CASE(checkpoint, two_writers_of_one_path) {
    const ampc_api *a = tiny_api();
    const char *path = test_tmp("shared.safetensors");
    ampc_session *s = open_module(&tiny_module, 1);
    pid_t pid[2];
    check_ok(s, a->save(s, path));
    for (int i = 0; i < 2; i++)
        if ((pid[i] = fork()) == 0) save_forever(path);
    for (double end = comm_seconds() + 0.5; comm_seconds() < end;)
        if (!CHECK_EQ_INT(a->resume(s, path), AMPC_OK)) break;
    for (int i = 0; i < 2; i++) {
        CHECK_EQ_INT(waitpid(pid[i], NULL, WNOHANG), 0); /* still saving */
        kill(pid[i], SIGKILL);
        waitpid(pid[i], NULL, 0);
    }
    a->close(s);
}
