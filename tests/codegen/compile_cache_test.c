/* SPDX-License-Identifier: Apache-2.0 */
/* compile_cache_test.c: compiled results are reused if and only if all
   inputs are the same. */
#define _GNU_SOURCE
#include "codegen/cache/compile_cache.h"
#include "tests/harness.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- results ------------------------------------------------------------- */

static CompileKey key_of(const char *a, const char *b) {
    CompileKey k = compile_key("test");
    compile_key_text(&k, a);
    compile_key_text(&k, b);
    return k;
}

/* Checks the entry stored under the key; "": no entry. */
static void check_kept(const char *folder, CompileKey k, const char *want) {
    size_t n = 0;
    char *got = compile_cache_get(folder, k, &n);
    CHECK_EQ_INT(n, strlen(want));
    CHECK((got != NULL) == (*want != 0));
    if (got && n == strlen(want)) CHECK(memcmp(got, want, n) == 0);
    free(got);
}

/* The only file in the folder. */
static void entry_path(char path[4096], const char *folder) {
    char *out;
    REQUIRE(test_command(&out, "ls '%s'", folder) == 0);
    out[strcspn(out, "\n")] = 0;
    CHECK_EQ_INT(strlen(out), 64);
    snprintf(path, 4096, "%s/%s", folder, out);
    free(out);
}

TEST_CASE(compile_cache, a_result_is_found_by_all_of_its_key) {
    Arena *a = arena_new();
    const char *folder = compile_cache_open(a, test_tmp("keys"));
    REQUIRE(folder != NULL);
    compile_cache_put(folder, key_of("ab", "c"), "first", 5);
    compile_cache_put(folder, key_of("x", ""), "second", 6);
    check_kept(folder, key_of("ab", "c"), "first");
    check_kept(folder, key_of("a", "bc"), "");
    check_kept(folder, key_of("x", ""), "second");
    check_kept(folder, key_of("", "x"), "");
    check_kept(NULL, key_of("ab", "c"), "");
    CompileKey now = compile_key("file"), later = now;
    const char *file = test_tmp("program");
    REQUIRE(test_write_file(file, "1", 1));
    compile_key_file(&now, file);
    REQUIRE(test_write_file(file, "12", 2));
    compile_key_file(&later, file);
    compile_cache_put(folder, now, "old", 3);
    check_kept(folder, later, "");
    arena_free(a);
}

/* A changed byte, a truncation, an appended byte, and a link instead of the
   file. */
TEST_CASE(compile_cache, damage_is_no_result) {
    Arena *a = arena_new();
    char path[4096], text[256];
    size_t n;
    const char *folder = compile_cache_open(a, test_tmp("damage"));
    REQUIRE(folder != NULL);
    CompileKey k = key_of("k", "");
    compile_cache_put(folder, k, "the result", 10);
    entry_path(path, folder);
    char *whole = test_read_file(path, &n);
    REQUIRE(whole && n < sizeof text - 1);
    for (size_t i = 0; i < n; i++) {
        memcpy(text, whole, n);
        text[i] ^= 1;
        REQUIRE(test_write_file(path, text, n));
        check_kept(folder, k, "");
        REQUIRE(test_write_file(path, whole, i));
        check_kept(folder, k, "");
    }
    memcpy(text, whole, n);
    text[n] = 0;
    REQUIRE(test_write_file(path, text, n + 1));
    check_kept(folder, k, "");
    REQUIRE(test_write_file(test_tmp("elsewhere"), whole, n));
    REQUIRE(unlink(path) == 0 && symlink(test_tmp("elsewhere"), path) == 0);
    check_kept(folder, k, "");
    REQUIRE(unlink(path) == 0 && mkfifo(path, 0600) == 0);
    check_kept(folder, k, "");
    REQUIRE(unlink(path) == 0);
    compile_cache_put(folder, k, "again", 5);
    check_kept(folder, k, "again");
    free(whole);
    arena_free(a);
}

/* If others may write to the folder, their files would become code of a module.
 */
TEST_CASE(compile_cache, a_folder_of_others_is_not_used) {
    Arena *a = arena_new();
    const char *top = test_tmp("open"), *folder = compile_cache_open(a, top);
    REQUIRE(folder != NULL);
    struct stat st;
    REQUIRE(stat(folder, &st) == 0);
    CHECK_EQ_INT(st.st_mode & 0777, 0700);
    REQUIRE(chmod(folder, 0770) == 0);
    CHECK(compile_cache_open(a, top) == NULL);
    REQUIRE(chmod(folder, 0702) == 0);
    CHECK(compile_cache_open(a, top) == NULL);
    REQUIRE(chmod(folder, 0755) == 0);
    CHECK(compile_cache_open(a, top) != NULL);
    if (chown(folder, geteuid() + 1, (gid_t)-1) == 0)
        CHECK(compile_cache_open(a, top) == NULL);
    CHECK(compile_cache_open(a, "none") == NULL);
    unsetenv("AMPC_CACHE_DIR");
    unsetenv("XDG_CACHE_HOME");
    setenv("HOME", test_tmp("nobody"), 1);
    CHECK(compile_cache_open(a, NULL) == NULL);
    CHECK(access(test_tmp("nobody"), F_OK) != 0);
    CHECK(compile_cache_open(a, "/proc/none") == NULL);
    arena_free(a);
}

TEST_CASE(compile_cache, what_was_not_used_for_long_goes_first) {
    Arena *a = arena_new();
    static char data[1000];
    const char *folder = compile_cache_open(a, test_tmp("trim"));
    static const char *const name[] = {"0", "1", "2", "3"};
    REQUIRE(folder != NULL);
    memset(data, 'x', sizeof data);
    for (int i = 0; i < 4; i++) {
        data[0] = name[i][0];
        compile_cache_put(folder, key_of(name[i], ""), data, sizeof data);
        usleep(20000);
    }
    size_t n;
    free(compile_cache_get(folder, key_of("0", ""), &n)); /* used now */
    compile_cache_trim(folder, 5000);
    for (int i = 0; i < 4; i++) {
        char *got = compile_cache_get(folder, key_of(name[i], ""), &n);
        CHECK(got && got[0] == name[i][0]);
        free(got);
        usleep(20000);
    }
    free(compile_cache_get(folder, key_of("0", ""), &n));
    compile_cache_trim(folder, 2500);
    for (int i = 0; i < 4; i++) {
        char *got = compile_cache_get(folder, key_of(name[i], ""), &n);
        CHECK((got != NULL) == (i == 0 || i == 3));
        free(got);
    }
    arena_free(a);
}

/* An entry that cannot be removed stays; all others are removed. */
TEST_CASE(compile_cache, a_folder_in_the_place_of_an_entry) {
    Arena *a = arena_new();
    const char *folder = compile_cache_open(a, test_tmp("stays"));
    REQUIRE(folder != NULL);
    char path[1000];
    snprintf(path, sizeof path, "%s/%064d", folder, 0); /* as a SHA-256 is */
    REQUIRE(mkdir(path, 0700) == 0);
    compile_cache_put(folder, key_of("0", ""), "x", 1);
    compile_cache_trim(folder, 0);
    CHECK(access(path, F_OK) == 0);
    size_t n;
    CHECK(compile_cache_get(folder, key_of("0", ""), &n) == NULL);
    arena_free(a);
}

/* ---- compiling ----------------------------------------------------------- */

static void put_layer(int rows, int from, int to) {
    char model[400];
    snprintf(model, sizeof model,
             "graph forward(%%x: f32[%d,%d]) {\n"
             "  param %%w: f32[%d,%d] = normal(1, 0.5)\n"
             "  %%y = matmul %%x, %%w : f32[%d,%d]\n  return %%y\n}\n",
             rows, from, from, to, rows, to);
    REQUIRE(test_write_file(test_tmp("m.amp"), model, strlen(model)));
}

/* A compiler that counts its runs. */
static void put_model(void) {
    char cc[4096];
    put_layer(4, 3, 2);
    snprintf(cc, sizeof cc, "#!/bin/sh\necho run >>'%s'\nexec cc \"$@\"\n",
             test_tmp("runs"));
    REQUIRE(test_write_file(test_tmp("counting"), cc, strlen(cc)));
    REQUIRE(chmod(test_tmp("counting"), 0700) == 0);
}

static int runs(void) {
    size_t n = 0;
    free(test_read_file(test_tmp("runs"), &n));
    return (int)n / 4;
}

/* Compiles the model and returns how often the compiler ran. */
static int compiled(const char *environment, const char *options) {
    char *out;
    int before = runs();
    int rc = test_command(
        &out,
        "cd '%s' && CC='%s' AMPC_CACHE_DIR='%s' %s '%s' m.amp -o m.so "
        "--loss mse --target cpu:x86-64-v2 %s",
        test_tmpdir(), test_tmp("counting"), test_tmp("kept"), environment,
        test_ampc(), options);
    CHECK_MSG(rc == 0, "status %d\n%s", rc, out);
    free(out);
    return runs() - before;
}

TEST_CASE(compile_cache, a_second_compilation_only_links) {
    put_model();
    int all = compiled("", "--cache none");
    CHECK_EQ_INT(all, 5); /* two files of large kernels, small ones, plan,
                              linking */
    REQUIRE(rename(test_tmp("m.so"), test_tmp("without.so")) == 0);
    CHECK_EQ_INT(compiled("", ""), all);
    test_same_files("m.so", "without.so");
    CHECK_EQ_INT(compiled("", ""), 1);
    test_same_files("m.so", "without.so");
    CHECK_EQ_INT(compiled("", "--cache none"), all);
    CHECK_EQ_INT(compiled("", "--precision fp32"), all);
    /* large kernels of two levels, plan, linking */
    CHECK_EQ_INT(compiled("", "--target cpu:x86-64-v3"), 4);
    CHECK_EQ_INT(compiled("CPATH=/nowhere", ""), all);
    CHECK_EQ_INT(compiled("C_INCLUDE_PATH=/nowhere", ""), all);
    REQUIRE(chmod(test_tmp("kept/objects"), 0777) == 0);
    CHECK_EQ_INT(compiled("", ""), all);
    REQUIRE(chmod(test_tmp("kept/objects"), 0700) == 0);
    CHECK_EQ_INT(compiled("AMPC_CACHE_DIR=none", ""), all);
}

/* Another compiler with the same name. */
TEST_CASE(compile_cache, a_new_compiler_compiles) {
    put_model();
    (void)compiled("", "");
    CHECK_EQ_INT(compiled("", ""), 1);
    char *out;
    REQUIRE(test_command(&out, "echo '# newer' >>'%s'", test_tmp("counting")) ==
            0);
    free(out);
    CHECK_EQ_INT(compiled("", ""), 5);
}

/* Numbers of an optimizer are data of the plan. */
TEST_CASE(compile_cache, a_weight_decay_compiles_no_kernel) {
    put_model();
    (void)compiled("", "--optimizer adamw,lr=0.1,weight_decay=0.01");
    REQUIRE(rename(test_tmp("m.so"), test_tmp("before.so")) == 0);
    CHECK_EQ_INT(compiled("", "--optimizer adamw,lr=0.1,weight_decay=0.03"), 2);
    CHECK_EQ_INT(compiled("", "--optimizer adamw,lr=0.1,weight_decay=0.01"), 1);
    test_same_files("m.so", "before.so");
}

/* So are sizes. */
TEST_CASE(compile_cache, another_width_compiles_no_kernel) {
    put_model();
    put_layer(40, 48, 72);
    (void)compiled("", "");
    put_layer(40, 48, 104);
    CHECK_EQ_INT(compiled("", ""), 2);
}
