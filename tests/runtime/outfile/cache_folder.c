/* SPDX-License-Identifier: Apache-2.0 */
/* cache_folder.c: the folder of caches (runtime/files/cache_folder.h). */
#define _GNU_SOURCE
#include "runtime/files/cache_folder.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "tests/harness.h"

static const char *const variables[] = {"AMPC_CACHE_DIR", "XDG_CACHE_HOME",
                                        "HOME"};
enum { VARIABLES = 3, SIZE = 400 };

static void set_variables(const char *const *value) {
    for (int i = 0; i < VARIABLES; i++)
        if (value[i])
            setenv(variables[i], value[i], 1);
        else
            unsetenv(variables[i]);
}

TEST_CASE(cache_folder, the_first_variable_that_says_something_counts) {
    const char *home = test_tmpdir();
    char below[600];
    snprintf(below, sizeof below, "%s/.cache/ampc", home);
    const struct {
        const char *value[VARIABLES], *want; /* NULL: no folder */
    } rows[] = {
        {{"/o", "/x", home}, "/o"},
        {{"none", "/x", home}, NULL},
        {{"nonesuch", "/x", home}, "nonesuch"},
        {{"", "/x", home}, "/x/ampc"},
        {{NULL, "/x", home}, "/x/ampc"},
        {{NULL, "", home}, below},
        {{NULL, NULL, home}, below},
        {{NULL, NULL, "/nonexistent"}, NULL},
        {{NULL, NULL, ""}, NULL},
        {{"", "", NULL}, NULL},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char got[1024] = "";
        set_variables(rows[i].value);
        bool is = cache_folder(got, sizeof got);
        CHECK_MSG(is == (rows[i].want != NULL), "row %zu: %s", i,
                  is ? got : "no folder");
        if (is && rows[i].want) CHECK_STR(got, rows[i].want);
    }
}

/* Paths of every length: the folder leaves room for a file's name. */
TEST_CASE(cache_folder, has_room_for_a_name) {
    static const char *const behind[] = {"", "/ampc", "/.cache/ampc"};
    for (int k = 0; k < VARIABLES; k++)
        for (size_t n = strlen(test_tmpdir()); n < SIZE + 9; n++) {
            char value[SIZE + 10], got[SIZE + 1], want[SIZE + 40];
            const char *values[VARIABLES] = {NULL};
            memset(value, '/', n);
            memcpy(value, test_tmpdir(), strlen(test_tmpdir()));
            value[n] = 0;
            values[k] = value;
            set_variables(values);
            snprintf(want, sizeof want, "%s%s", value, behind[k]);
            got[SIZE] = 7;
            bool is = cache_folder(got, SIZE);
            CHECK_MSG(got[SIZE] == 7, "%s: written behind its end", want);
            CHECK_MSG(is == (strlen(want) + CACHE_FILE_NAME < SIZE),
                      "%s of %zu bytes", variables[k], strlen(want));
            if (is) CHECK_STR(got, want);
        }
}

TEST_CASE(cache_folder, folders_are_made_for_the_user_alone) {
    char path[1200], name[] = "/a/b/c/d/file";
    struct stat st;
    umask(0);
    for (size_t n = 2; n < sizeof name; n++) {
        if (name[n] != '/') continue;
        snprintf(path, sizeof path, "%s/%zu%.*s/file", test_tmpdir(), n, (int)n,
                 name);
        CHECK_MSG(cache_folders_make(path), "%s", path);
        *strrchr(path, '/') = 0;
        CHECK_MSG(stat(path, &st) == 0 && S_ISDIR(st.st_mode) &&
                      (st.st_mode & 0777) == 0700,
                  "%s: %o", path, (unsigned)st.st_mode);
    }
    snprintf(path, sizeof path, "%s/here", test_tmpdir());
    REQUIRE(test_write_file(path, "x", 1));
    snprintf(path, sizeof path, "%s/here/file", test_tmpdir());
    CHECK(!cache_folders_make(path));
}

/* A path that is too long for the copy is not cut off. */
TEST_CASE(cache_folder, long_paths_make_nothing) {
    for (size_t n = 1000; n < 1100; n++) {
        char path[1200];
        snprintf(path, sizeof path, "%s", test_tmpdir());
        memset(path + strlen(path), '/', n - strlen(path));
        path[n] = 0;
        CHECK_MSG(cache_folders_make(path) == (n < 1024), "%zu bytes", n);
    }
}
