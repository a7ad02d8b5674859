/* SPDX-License-Identifier: Apache-2.0 */
/* failures.c: compilers and files that fail. */
#define _GNU_SOURCE
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "codegen/section.h"
#include "runtime/ampc.h"
#include "tests/codegen/emit/emit.h"
#include "tests/harness.h"

/* ---- failures ------------------------------------------------------------ */

static void expect_failure(const char *options, const char *path,
                           const char *message) {
    Run r;
    Arena *a = arena_new();
    static int count;
    char *tmp = fresh_dir(a, arena_printf(a, "tmp%d", count++));
    setenv("TMPDIR", tmp, 1);
    CHECK_EQ_INT(emit_emit(&r, options, path), ERR_USER);
    unsetenv("TMPDIR");
    CHECK_HAS(r.d.text.data, message);
    CHECK_EQ_INT(test_entries(tmp), 0);
    CHECK(access(path, F_OK) != 0);
    run_end(&r);
    arena_free(a);
}

TEST_CASE(emit, no_compiler) {
    Arena *a = arena_new();
    setenv("CC", "/nonexistent/cc", 1);
    expect_failure("", in_tmp(a, "nocc.so"), "no C compiler");
    setenv("CC", "false", 1);
    expect_failure("", in_tmp(a, "badcc.so"),
                   "the C compiler ($CC names another one; gcc 9, clang 11 and "
                   "newer ones will do) failed");
    setenv("CC", "true", 1);
    expect_failure("", in_tmp(a, "nothing.so"),
                   "the C compiler 'true' reports success, but has written no");
    unsetenv("CC");
    arena_free(a);
}

/* In the order of PATH; a file that may not be executed is passed over. */
TEST_CASE(emit, compilers_that_do_not_start) {
    Arena *a = arena_new();
    char *first = fresh_dir(a, "first"), *second = fresh_dir(a, "second");
    char *path = arena_printf(a, "%s", getenv("PATH"));
    char *denied = arena_printf(a, "%s/some-cc", first);
    char *empty = arena_printf(a, "%s/some-cc", second);
    REQUIRE(test_write_file(denied, "x", 1) && chmod(denied, 0600) == 0);
    setenv("CC", "some-cc -O1", 1);
    setenv("PATH", arena_printf(a, "%s:%s/none:%s", first, denied, path), 1);
    expect_failure("", in_tmp(a, "denied.so"),
                   "'some-cc -O1' does not start: Permission denied");
    REQUIRE(test_write_file(empty, "", 0) && chmod(empty, 0755) == 0);
    setenv("PATH", arena_printf(a, "%s:%s:%s", first, second, path), 1);
    expect_failure("", in_tmp(a, "format.so"),
                   "'some-cc -O1' does not start: Exec format error");
    setenv("PATH", path, 1);
    unsetenv("CC");
    arena_free(a);
}

/* The compiler's output on either channel reaches the user. Signals that the
   caller blocks or ignores are restored for the compiler: otherwise it could
   not be stopped. */
TEST_CASE(emit, what_compilers_say_and_which_signals_they_get) {
    static const char text[] =
        "#!/bin/sh\n"
        "echo to the output\n"
        "set -- $(sed -n 's/Sig[BI][lg][kn]://p' /proc/self/status)\n"
        "echo \"blocked $((0x$1)) ignored $((0x$2 >> 11 & 1))\" >&2\n"
        "exit 1\n";
    Arena *a = arena_new();
    Run r;
    sigset_t some, before;
    sigemptyset(&some);
    sigaddset(&some, SIGTERM);
    sigaddset(&some, SIGUSR1);
    char *cc = in_tmp(a, "says.sh");
    REQUIRE(test_write_file(cc, text, strlen(text)) && chmod(cc, 0755) == 0);
    setenv("CC", cc, 1);
    sigprocmask(SIG_BLOCK, &some, &before);
    signal(SIGUSR2, SIG_IGN); /* number 12 */
    CHECK_EQ_INT(emit_emit(&r, "", in_tmp(a, "says.so")), ERR_USER);
    signal(SIGUSR2, SIG_DFL);
    sigprocmask(SIG_SETMASK, &before, NULL);
    unsetenv("CC");
    CHECK_HAS(r.d.text.data, "to the output");
    CHECK_HAS(r.d.text.data, "blocked 0 ignored 0");
    run_end(&r);
    arena_free(a);
}

TEST_CASE(emit, no_place_to_write) {
    Arena *a = arena_new();
    expect_failure("--target=cpu:x86-64-v2", in_tmp(a, "no/such/dir/x.so"),
                   "No such file or directory");
    expect_failure("--target=cpu:x86-64-v2 --weights=sidecar",
                   in_tmp(a, "no/such/dir/x.so"), "No such file or directory");
    arena_free(a);
}

TEST_CASE(emit, no_place_for_temporary_files) {
    Arena *a = arena_new();
    Run r;
    const char *absent = in_tmp(a, "absent");
    setenv("TMPDIR", absent, 1);
    CHECK_EQ_INT(emit_emit(&r, "", in_tmp(a, "notmp.so")), ERR_USER);
    unsetenv("TMPDIR");
    StrBuf text = {0};
    sb_printf(&text,
              "a temporary folder in %s: No such file or directory; $TMPDIR "
              "names the place",
              absent);
    CHECK_HAS(r.d.text.data, text.data);
    sb_free(&text);
    run_end(&r);
    arena_free(a);
}

TEST_CASE(emit, old_output_stays_when_compiling_fails) {
    Arena *a = arena_new();
    Run r;
    char *dir = fresh_dir(a, "kept"), *path = in_tmp(a, "kept/old.so");
    size_t n;
    REQUIRE(test_write_file(path, "old", 3));
    setenv("CC", "false", 1);
    CHECK_EQ_INT(emit_emit(&r, "", path), ERR_USER);
    unsetenv("CC");
    char *text = test_read_file(path, &n);
    CHECK_STR(text, "old");
    CHECK_EQ_INT(test_entries(dir), 1);
    free(text);
    run_end(&r);
    arena_free(a);
}

/* Every truncation and every damaged byte of the tail gives an error or is
   harmless; none crashes. */
/* Packed texts that hardly shrink, longer than any buffer. */
TEST_CASE(section, long_texts_come_back_whole) {
    enum { N = 3, SIZE = 1 << 20 };
    static char text[N][SIZE];
    Arena *a = arena_new();
    Diag d = {0};
    char *path = in_tmp(a, "long"), *got;
    FILE *f = fopen(path, "wb");
    REQUIRE(f != NULL);
    SectionWriter w = {.file = f, .arena = a};
    uint64_t state = 1;
    for (int i = 0; i < N; i++) {
        for (int k = 0; k < SIZE; k++) {
            state = state * 6364136223846793005u + 1442695040888963407u;
            text[i][k] = (char)(state >> 56);
        }
        section_add_text(&w, arena_printf(a, "t%d", i), text[i], SIZE - i);
    }
    REQUIRE(section_finish(&w, 0));
    fclose(f);
    SectionFile sf;
    if (sections_open(a, &d, path, &sf) != OK) FAIL("%s", d.text.data);
    for (int i = 0; i < N; i++) {
        size_t n;
        const PlanSection *s = sections_find(&sf, arena_printf(a, "t%d", i));
        REQUIRE(s != NULL);
        if (sections_read(a, &d, &sf, s, &got, &n) != OK)
            FAIL("%s", d.text.data);
        CHECK(n == (size_t)(SIZE - i) && !memcmp(got, text[i], n));
    }
    sections_close(&sf);
    sb_free(&d.text);
    arena_free(a);
}

/* A new file of sections, with the first section in place. */
static SectionWriter weights_in(Arena *a, const char *path) {
    SectionWriter w = {.file = fopen(path, "wb"), .arena = a};
    REQUIRE(w.file != NULL);
    section_begin(&w, "weights");
    section_put(&w, "0123456789", 10);
    section_pad(&w, 64);
    section_end(&w);
    return w;
}

/* The last byte before the directory may belong to a section, the byte after
   it may not, even if the numbers wrap. */
TEST_CASE(section, lie_before_the_directory) {
    static const struct {
        int64_t from; /* offset in the directory */
        uint64_t bytes;
        bool opens;
    } cases[] = {
        {0, 0, true},   {-1, 1, true},           {-8, 8, true},
        {1, 0, false},  {0, 1, false},           {-1, 2, false},
        {-8, 9, false}, {-8, UINT64_MAX, false}, {-8, INT64_MAX, false}};
    Arena *a = arena_new();
    Diag d = {0};
    char *path = in_tmp(a, "bounds");
    SectionWriter w = weights_in(a, path);
    REQUIRE(section_finish(&w, 0));
    fclose(w.file);
    size_t size;
    char *bytes = test_read_file(path, &size);
    REQUIRE(bytes != NULL && size > sizeof(PlanTail));
    PlanTail tail;
    PlanSection first;
    memcpy(&tail, bytes + size - sizeof tail, sizeof tail);
    memcpy(&first, bytes + tail.directory, sizeof first);
    CHECK_STR(first.name, "weights");
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        SectionFile sf;
        first.offset = tail.directory + (uint64_t)cases[i].from;
        first.bytes = cases[i].bytes;
        memcpy(bytes + tail.directory, &first, sizeof first);
        REQUIRE(test_write_file(path, bytes, size));
        bool opens = sections_open(a, &d, path, &sf) == OK;
        CHECK_MSG(opens == cases[i].opens, "%lld bytes from %lld",
                  (long long)cases[i].bytes, (long long)cases[i].from);
        if (opens) sections_close(&sf);
    }
    free(bytes);
    sb_free(&d.text);
    arena_free(a);
}

TEST_CASE(section, damaged_files) {
    Arena *a = arena_new();
    Diag d = {0};
    char *path = in_tmp(a, "damaged");
    SectionWriter w = weights_in(a, path);
    section_add_text(&w, "text", "hello hello hello", 17);
    REQUIRE(section_finish(&w, 0));
    fclose(w.file);
    size_t size, n;
    char *good = test_read_file(path, &size), *text;
    REQUIRE(good != NULL);
    char *bytes = arena_dup(a, good, size);
    int before = test_entries("/proc/self/fd");
    for (size_t i = 0; i < 2 * size; i++) {
        memcpy(bytes, good, size);
        if (i < size) bytes[i] ^= 0x55;
        test_write_file(path, bytes, i < size ? size : i - size);
        SectionFile sf;
        if (sections_open(a, &d, path, &sf) != OK) continue;
        for (int k = 0; k < sf.n; k++) {
            if (sections_read(a, &d, &sf, &sf.dir[k], &text, &n) != OK)
                continue;
            if (!strcmp(sf.dir[k].name, "text"))
                CHECK_STR(text, "hello hello hello");
            if (!strcmp(sf.dir[k].name, "weights"))
                CHECK(n == 64 && !memcmp(text, "0123456789\0\0", 12));
        }
        sections_close(&sf);
        CHECK(i < size); /* a truncated file is never opened */
    }
    CHECK_EQ_INT(test_entries("/proc/self/fd"), before); /* all are closed */
    CHECK_HAS(d.text.data, "not a module made by ampc");
    CHECK_HAS(d.text.data, "checksum");
    free(good);
    sb_free(&d.text);
    arena_free(a);
}
