/* SPDX-License-Identifier: Apache-2.0 */
/* Tests the harness itself: checks that hold, and, in a second process of
   this binary, checks that must fail. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/harness.h"

TEST_CASE(harness, checks_that_hold) {
    CHECK(CHECK(1 + 1 == 2));
    CHECK_MSG(1, "unused %d", 1);
    CHECK_EQ_INT(3, 3u);
    CHECK_NEAR(1, 1.1, 0.2);
    CHECK_NEAR(INFINITY, INFINITY, 0);
    CHECK_REL(1e9, 1e9 + 1, 1e-8);
    CHECK_STR("a", "a");
    CHECK_STR(NULL, NULL);
    CHECK_MEM("abc", "abd", 2);
    CHECK_HAS("abc", "bc");
    REQUIRE(1);
}

TEST_CASE(harness, files_and_commands) {
    char path[4096], *text, *out;
    size_t size = 0;
    snprintf(path, sizeof path, "%s/file", test_tmpdir());
    CHECK(test_write_file(path, "a\0b", 3));
    text = test_read_file(path, &size);
    REQUIRE(text != NULL);
    CHECK_EQ_INT(size, 3);
    CHECK_MEM(text, "a\0b", 4);
    free(text);
    CHECK(test_read_file("/nonexistent/x", NULL) == NULL);
    CHECK(!test_write_file("/nonexistent/x", "", 0));
    CHECK_EQ_INT(test_command(&out, "echo out; echo err >&2; exit 3"), 3);
    CHECK_STR(out, "out\nerr\n");
    free(out);
    CHECK_EQ_INT(test_command(NULL, "exec sh -c 'kill -9 $$'"), 137);
}

/* ---- the failing half ---------------------------------------------------- */

static void near_nan(void *arg) {
    CHECK_NEAR((double)NAN, (double)NAN, 1);
    (void)arg;
}

static void rel_far(void *arg) {
    CHECK_REL(1, 1.1, 0.01);
    (void)arg;
}

static void rel_inf(void *arg) {
    CHECK_REL(INFINITY, 1, 0.01);
    (void)arg;
}

static void str_null(void *arg) {
    CHECK_STR(NULL, "");
    (void)arg;
}

static void str_line(void *arg) {
    CHECK_STR("one\ntwo\nthree", "one\ntoo\nthree");
    (void)arg;
}

static void mem_byte(void *arg) {
    CHECK_MEM("abc", "abd", 3);
    (void)arg;
}

static void fail_ends(void *arg) {
    (void)arg;
    FAIL("stopped %s", "here");
}

static void skip_deep(void) { SKIP("no %s", "device"); }

static void skip_ends(void *arg) {
    (void)arg;
    skip_deep();
    CHECK(0);
}

static void flood(void *arg) {
    int i;
    (void)arg;
    for (i = 0; i < 1000; i++) CHECK_MSG(0, "number %d", i);
}

static const struct {
    const char *name;
    void (*fn)(void *);
} wrong[] = {
    {"near_nan", near_nan},   {"rel_far", rel_far},     {"rel_inf", rel_inf},
    {"str_null", str_null},   {"str_line", str_line},   {"mem_byte", mem_byte},
    {"fail_ends", fail_ends}, {"skip_ends", skip_ends}, {"flood", flood}};

enum { NWRONG = sizeof wrong / sizeof wrong[0] };

static void register_wrong(void) {
    int i;
    if (!getenv("HARNESS_TEST_WRONG")) return;
    for (i = 0; i < NWRONG; i++)
        harness_register("wrong", wrong[i].name, wrong[i].fn, NULL);
}
TEST_REGISTRAR(register_wrong);

TEST_CASE(harness, wrong_is_reported) {
    char *out, line[80];
    int i;
    if (getenv("HARNESS_TEST_WRONG")) return;
    CHECK_EQ_INT(test_command(&out,
                              "env -u XML_OUTPUT_FILE -u TEST_TOTAL_SHARDS "
                              "HARNESS_TEST_WRONG=1 /proc/%d/exe "
                              "--gtest_filter='wrong.*' --gtest_color=no",
                              (int)getpid()),
                 1);
    for (i = 0; i < NWRONG; i++) {
        bool skips = strcmp(wrong[i].name, "skip_ends") == 0;
        snprintf(line, sizeof line, "[  %s ] wrong.%s",
                 skips ? "SKIPPED" : "FAILED ", wrong[i].name);
        CHECK_HAS(out, line);
    }
    CHECK_HAS(out, "harness_test.c:");
    CHECK_HAS(out, "line 2, column 2");
    CHECK_HAS(out, "1 of 3 bytes differ; first at 2: 63 and 64");
    CHECK_HAS(out, "stopped here");
    CHECK_HAS(out, "number 4");
    CHECK(strstr(out, "number 5") == NULL);
    CHECK_HAS(out, "995 more failures of this case, not shown");
    free(out);
}
