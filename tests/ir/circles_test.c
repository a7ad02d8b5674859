/* SPDX-License-Identifier: Apache-2.0 */
/* circles_test.c: no file includes itself, directly or through others. A
   header and the .c file of the same name count as one. */
#define _POSIX_C_SOURCE 200809L
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/harness.h"

enum { MOST = 1000 };

typedef struct Files {
    char name[MOST][100]; /* without .c or .h */
    bool includes[MOST][MOST];
    bool gone[MOST];
    int n;
} Files;

static int file_index(Files *f, const char *path) {
    char name[100];
    int i = 0;
    REQUIRE(strlen(path) < sizeof name);
    strcpy(name, path);
    char *end = strrchr(name, '.');
    if (end) *end = 0;
    while (i < f->n && strcmp(f->name[i], name) != 0) i++;
    if (i < f->n) return i;
    REQUIRE(f->n < MOST);
    strcpy(f->name[f->n], name);
    return f->n++;
}

/* Lines of grep: path:#include "path" */
static int read_includes(Files *f) {
    char line[1000];
    int n = 0;
    FILE *p = popen("grep -REo --include='*.[ch]' '^#include \"[^\"]*\\.h\"' "
                    "ir passes codegen frontend runtime",
                    "r");
    REQUIRE(p != NULL);
    for (; fgets(line, sizeof line, p); n++) {
        char *colon = strchr(line, ':'), *from = strchr(line, '"');
        REQUIRE(colon && from);
        *colon = 0;
        from[1 + strcspn(from + 1, "\"")] = 0;
        int a = file_index(f, line), b = file_index(f, from + 1);
        if (a != b) f->includes[a][b] = true;
    }
    pclose(p);
    return n;
}

/* Removes a file that includes none of the remaining ones; false: every file
   includes one. */
static bool take_one(Files *f) {
    for (int i = 0; i < f->n; i++) {
        bool ends = !f->gone[i];
        for (int k = 0; k < f->n && ends; k++)
            ends = f->gone[k] || !f->includes[i][k];
        if (ends) return f->gone[i] = true;
    }
    return false;
}

TEST_CASE(circles, none_among_files) {
    Files *f = calloc(1, sizeof *f);
    REQUIRE(f != NULL);
    CHECK(read_includes(f) > 500); /* the source tree was found */
    while (take_one(f)) {
    }
    for (int i = 0; i < f->n; i++)
        if (!f->gone[i]) FAIL("in a circle or above one: %s", f->name[i]);
    free(f);
}
