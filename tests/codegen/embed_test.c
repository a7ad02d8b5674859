/* SPDX-License-Identifier: Apache-2.0 */
/* Tests the files inside `ampc`: the runtime's archive links into a shared
   library that needs nothing but libc, libm and threads; the headers equal
   the source tree's. */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "codegen/embed.h"
#include "tests/harness.h"

TEST_CASE(embed, files_are_the_sources) {
    bool plan = false;
    for (size_t i = 0; i < embed_nfile; i++) {
        const EmbedFile *f = &embed_files[i];
        size_t size = 0;
        char *text = test_read_file(test_data_path(f->name), &size);
        if (i > 0) CHECK(strcmp(embed_files[i - 1].name, f->name) < 0);
        if (!CHECK_MSG(text != NULL, "%s", f->name)) continue;
        if (CHECK_EQ_INT(f->size, size)) CHECK_MEM(f->data, text, size + 1);
        plan |= strcmp(f->name, "runtime/program/plan.h") == 0;
        free(text);
    }
    CHECK(plan);
}

/* Sanitized objects expect the sanitizer's symbols in the program. */
#ifdef __SANITIZE_ADDRESS__
#define DEFS ""
#else
#define DEFS "-Wl,-z,defs"
#endif

/* gcc 9, of Ubuntu 20.04, compiles modules: what a module is compiled with has
   no built-in that it lacks. */
TEST_CASE(embed, headers_need_no_newer_compiler) {
    static const char *const newer[] = {"__builtin_shufflevector",
                                        "__builtin_bit_cast"};
    int n = 0;
    for (size_t i = 0; i < embed_nfile; i++) {
        const EmbedFile *f = &embed_files[i];
        if (strncmp(f->name, "runtime/cpu/kmath", 17) != 0) continue;
        n++;
        for (size_t k = 0; k < sizeof newer / sizeof *newer; k++)
            CHECK_MSG(!memmem(f->data, f->size, newer[k], strlen(newer[k])),
                      "%s has %s", f->name, newer[k]);
    }
    CHECK(n >= 3);
}

TEST_CASE(embed, archive_links_alone) {
    char archive[4096], *out;
    REQUIRE(embed_runtime_a_size > 8);
    CHECK_MEM(embed_runtime_a, "!<arch>\n", 8);
    snprintf(archive, sizeof archive, "%s/runtime.a", test_tmpdir());
    REQUIRE(test_write_file(archive, embed_runtime_a, embed_runtime_a_size));
    int rc =
        test_command(&out,
                     "cd %s && cc -shared -o all.so -Wl,--whole-archive "
                     "runtime.a -Wl,--no-whole-archive " DEFS " -lm -pthread",
                     test_tmpdir());
    CHECK_MSG(rc == 0, "%s", out);
    free(out);
    rc = test_command(&out, "nm -D --defined-only %s/all.so", test_tmpdir());
    CHECK_EQ_INT(rc, 0);
    CHECK_STR(out, ""); /* only a module's exports are visible */
    free(out);
}
