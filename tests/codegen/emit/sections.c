/* SPDX-License-Identifier: Apache-2.0 */
/* sections.c: sections of a module's file. */
#define _GNU_SOURCE
#include <stdlib.h>
#include <string.h>

#include "codegen/section.h"
#include "tests/codegen/emit/emit.h"
#include "tests/harness.h"

/* Texts of many lengths, similar to the previous one or not, read in any
   order. */
TEST_CASE(section, texts) {
    static const size_t size[] = {0,     1,      70000,  70000,  0,
                                  65536, 200001, 200001, 1000003};
    enum { N = sizeof size / sizeof *size };
    Arena *a = arena_new();
    Diag d = {0};
    SectionFile f;
    char *path = in_tmp(a, "texts"), *data[N], *text;
    size_t n;
    SectionWriter w = {.file = fopen(path, "wb"), .arena = a};
    REQUIRE(w.file != NULL);
    for (int i = 0; i < N; i++) {
        data[i] = arena_alloc(a, size[i] + 1);
        for (size_t k = 0; k < size[i]; k++)
            data[i][k] = (char)(i % 2 ? data[i - 1][k % (size[i - 1] + 1)] + 1
                                : i == N - 1 ? 'x' /* a few bytes, packed */
                                             : (int)(k * k >> (k % 7)));
        section_add_text(&w, arena_printf(a, "t%d", i), data[i], size[i]);
    }
    section_begin(&w, "plain");
    section_put(&w, "plain", 5);
    section_end(&w);
    REQUIRE(section_finish(&w, 0));
    fclose(w.file);
    REQUIRE(sections_open(a, &d, path, &f) == OK);
    for (int k = 0; k < 2 * N; k++) {
        int i = k * 5 % N;
        const PlanSection *s = sections_find(&f, arena_printf(a, "t%d", i));
        REQUIRE(s != NULL && sections_read(a, &d, &f, s, &text, &n) == OK);
        CHECK_EQ_INT(n, size[i]);
        CHECK(!memcmp(text, data[i], size[i] + 1));
    }
    const PlanSection *s = sections_find(&f, "plain");
    REQUIRE(s != NULL && sections_read(a, &d, &f, s, &text, &n) == OK);
    CHECK_STR(text, "plain");
    sections_close(&f);
    arena_free(a);
}

/* A stage's text takes space only for its differences from the stage before. */
TEST_CASE(section, a_text_is_not_stored_twice) {
    enum { SIZE = 300000 };
    static char noise[2][SIZE];
    char *bytes;
    size_t n;
    uint32_t state = 1;
    SectionWriter w = {.file = open_memstream(&bytes, &n),
                       .arena = arena_new()};
    REQUIRE(w.file != NULL);
    for (int i = 0; i < 2 * SIZE; i++) {
        state = state * 1664525 + 1013904223;
        noise[i / SIZE][i % SIZE] = (char)(state >> 24);
    }
    for (int i = 0; i < 4; i++)
        section_add_text(&w, i < 2 ? "first" : "again", noise[i % 2], SIZE);
    REQUIRE(section_finish(&w, 0));
    fclose(w.file);
    CHECK_MSG(n < 2 * SIZE + 2000, "%zu bytes", n);
    free(bytes);
    arena_free(w.arena);
}
