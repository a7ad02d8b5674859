/* SPDX-License-Identifier: Apache-2.0 */
/* target_module.c: the sections after a module, as `ampc inspect` reads
   them: all sections, whatever their names. */
#define _GNU_SOURCE
#include <stdlib.h>
#include <string.h>
#include <zlib.h>

#include "codegen/section.h"
#include "tests/fuzz/fuzz.h"

void module_run(const uint8_t *p, size_t n) {
    Arena *a = arena_new();
    Diag d = {0};
    SectionFile f;
    Status s = sections_open(a, &d, fuzz_file("module", p, n), &f);
    fuzz_check((s == OK) == (d.errors == 0), "status %d, %d errors", s,
               d.errors);
    for (int i = 0; s == OK && i < f.n; i++) {
        char *text = NULL;
        size_t size = 0;
        int errors = d.errors;
        const PlanSection *named = sections_find(&f, f.dir[i].name);
        fuzz_check(named && !strcmp(named->name, f.dir[i].name), "not found");
        Status read = sections_read(a, &d, &f, &f.dir[i], &text, &size);
        fuzz_check((read == OK) == (d.errors == errors), "status %d", read);
        fuzz_check(read != OK || text[size] == 0, "not terminated");
    }
    if (s == OK) {
        sections_close(&f);
        fuzz_taken();
    }
    sb_free(&d.text);
    arena_free(a);
}

/* The tail, if the file ends in one whose directory is inside the file. */
static PlanSection *directory(uint8_t *p, size_t n, PlanTail *t) {
    if (n < sizeof *t) return NULL;
    memcpy(t, p + n - sizeof *t, sizeof *t);
    uint64_t room = n - sizeof *t;
    if (t->directory > room ||
        t->nsection > (room - t->directory) / sizeof(PlanSection))
        return NULL;
    return (PlanSection *)(p + t->directory);
}

void module_fix(uint8_t *p, size_t n) {
    PlanTail t;
    uint8_t *dir = (uint8_t *)directory(p, n, &t);
    for (uint64_t i = 0; dir && i < t.nsection; i++) {
        PlanSection s;
        memcpy(&s, dir + i * sizeof s, sizeof s);
        if (s.packed || s.offset > n || s.bytes > n - s.offset) continue;
        s.crc = (uint32_t)crc32_z(0, p + s.offset, s.bytes);
        memcpy(dir + i * sizeof s, &s, sizeof s);
    }
}

void module_seeds(void) {
    static const char text[] = "graph train(%x: f32[2]) {\n  return %x\n}\n";
    char *bytes;
    size_t n;
    for (int sections = 0; sections < 4; sections++) {
        SectionWriter w = {.file = open_memstream(&bytes, &n),
                           .arena = arena_new()};
        fuzz_check(w.file != NULL, "open_memstream");
        for (int i = 0; i < sections; i++)
            section_add_text(&w, i ? "ir:fuse" : "json:casts", text,
                             sizeof text - 1);
        section_begin(&w, "weights");
        section_put(&w, text, 16);
        section_end(&w);
        fuzz_check(section_finish(&w, 7), "section_finish");
        fclose(w.file);
        fuzz_seed(bytes, n);
        free(bytes);
        arena_free(w.arena);
    }
}

const char *const *module_words(void) {
    static const char *const words[] = {"AMPTAIL2",   "ir:",     "txt:cuda:0",
                                        "json:casts", "weights", NULL};
    return words;
}
