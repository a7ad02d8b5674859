/* SPDX-License-Identifier: Apache-2.0 */
/* gpus_test.c: the rows of runtime/cuda/archs.def, and that no other file
   decides by the number or the name of a compute capability. */
#define _POSIX_C_SOURCE 200809L
#include <regex.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "passes/device/fold.h"
#include "runtime/cuda/peak.h"
#include "tests/harness.h"

/* ---- rows ---------------------------------------------------------------- */

TEST_CASE(gpus, rows_are_in_order) {
    for (int i = 0; i < NGPU_ARCH; i++) {
        const GpuArch *r = &gpu_archs[i], *before = r - (i > 0);
        CHECK(!i || r->number > before->number);
        /* what a newer GPU multiplies includes what an older one does */
        CHECK_MSG(!(before->tensor & ~r->tensor), "%s", r->name);
        CHECK_MSG(r->block <= r->shared && r->block >= 48 << 10 &&
                      r->threads % 512 == 0,
                  "%s", r->name);
        CHECK_MSG(r->mma > 0 && r->mma <= 1 && r->latency > 1e-7, "%s",
                  r->name);
        CHECK_MSG(!(r->tensor & TENSOR_BF16) || r->block >= GPU_BLOCK_SHARED,
                  "%s: fold.h", r->name);
    }
}

TEST_CASE(gpus, other_capabilities_are_like_an_older_row) {
    static const struct {
        const char *word, *row;
    } rows[] = {{"sm_75", "sm_75"},   {"sm_80", "sm_80"},
                {"sm_89", "sm_89"},   {"sm_103", "sm_100"},
                {"sm_110", "sm_100"}, {"sm_121", "sm_120"},
                {"sm_70", "sm_75"},   {"ptx", "sm_80"}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        CHECK_STR(gpu_arch_of(rows[i].word)->name, rows[i].row);
    CHECK_STR(gpu_arch_of_ptx()->ptx, "compute_80");
}

static Options options_for(Target *t, int n) {
    Options o = {0};
    o.targets.data = t;
    o.targets.len = n;
    return o;
}

TEST_CASE(gpus, options_ask_for_all_their_gpus) {
    Target t[] = {{.isa = 3},
                  {.cuda = true, .arch = "sm_90"},
                  {.cuda = true, .arch = "ptx"},
                  {.cuda = true, .arch = "sm_75"}};
    Options cpu = options_for(t, 1), one = options_for(t, 2),
            two = options_for(t, 3), all = options_for(t, 4);
    CHECK(!any_gpu(&cpu) && any_gpu(&one));
    CHECK(!gpu_without(&cpu, TENSOR_F8) && !gpu_without(&one, TENSOR_F8));
    CHECK(gpu_without(&two, TENSOR_F8) == &t[2]);
    CHECK(!gpu_without(&two, TENSOR_BF16 | TENSOR_TF32));
    CHECK(gpu_without(&all, TENSOR_BF16) == &t[3]);
    CHECK(!gpu_without(&all, TENSOR_F16) && !gpu_without(&all, 0));
    CHECK_EQ_INT(gpu_block_shared(&cpu), GPU_BLOCK_SHARED);
    CHECK_EQ_INT(gpu_block_shared(&two), GPU_BLOCK_SHARED);
    CHECK_EQ_INT(gpu_block_shared(&all), 64 << 10);
}

/* ---- texts --------------------------------------------------------------- */

TEST_CASE(gpus, words_without_a_number) {
    CHECK_STR(gpu_usual(0), "sm_90");
    CHECK_STR(gpu_usual(1), "sm_80");
    CHECK_STR(gpu_usual(2), "ptx");
    CHECK(!gpu_usual(3) && !gpu_usual(4));
    char *help = test_read_file("frontend/cli/manual.c", NULL);
    CHECK_HAS(help, "cuda (sm_80, sm_90 and PTX)");
    free(help);
}

/* Device code cannot read the table. */
TEST_CASE(gpus, kernels_agree_with_the_rows) {
    int i = 0;
    char line[80];
    while (!(gpu_archs[i].tensor & TENSOR_BF16)) i++;
    int first = 10 * gpu_archs[i].number;
    char *ptx = test_read_file("runtime/cuda/ptx.cuh", NULL),
         *math = test_read_file("runtime/cpu/kmath.h", NULL);
    snprintf(line, sizeof line, "#if __CUDA_ARCH__ < %d\n", first);
    CHECK_HAS(ptx, line);
    snprintf(line, sizeof line, "#if __CUDA_ARCH__ >= %d\n", first);
    CHECK_HAS(math, line);
    free(ptx);
    free(math);
}

#define NUMBER "(7[05]|8[0679]|90|10[03]|12[01])"

static regex_t question(void) {
    regex_t re;
    REQUIRE(!regcomp(&re,
                     "\"(sm|compute)_[0-9]|(arch|capab|tensor|gpu_|major \\*).*"
                     "[<>=] *" NUMBER "0?([^0-9.a-z]|$)",
                     REG_EXTENDED | REG_ICASE | REG_NOSUB));
    return re;
}

static bool asks_number(const regex_t *re, const char *line) {
    return !regexec(re, line, 0, NULL, 0);
}

TEST_CASE(gpus, questions_are_found) {
    static const char *const all[] = {
        "    return t->cuda && !strcmp(t->arch, \"sm_75\");",
        "enum { FIRST_ARCH = 89 };",
        "return of->tensor_cores > 75;",
        "    GPU_LEAST = 75,",
        "if (d->major * 10 + d->minor >= 100) {",
        "const char *arch = \"compute_80\";",
        "#if __CUDA_ARCH__ < 800\n"};
    regex_t re = question();
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        CHECK_MSG(asks_number(&re, all[i]), "%s", all[i]);
    CHECK(!asks_number(&re, "if (gpu_without(opt, TENSOR_F8)) return OK;"));
    regfree(&re);
}

/* Overwrites comments with spaces. */
static void blank_comments(char *text) {
    for (char *p = text, *end; (p = strstr(p, "/*")); p = end) {
        end = strstr(p, "*/");
        end = end ? end + 2 : p + strlen(p);
        for (; p < end; p++)
            if (*p != '\n') *p = ' ';
    }
}

TEST_CASE(gpus, no_other_file_asks) {
    static const char may_ask[] = "runtime/cuda/archs.def runtime/cuda/ptx.cuh "
                                  "runtime/cpu/kmath.h";
    char path[300];
    int n = 0;
    regex_t re = question();
    FILE *p = popen("find -L ir passes codegen frontend runtime -name '*.[ch]' "
                    "-o -name '*.cuh' -o -name '*.def'",
                    "r");
    REQUIRE(p != NULL);
    for (; fgets(path, sizeof path, p); n++) {
        path[strcspn(path, "\n")] = 0;
        char *text = strstr(may_ask, path) ? NULL : test_read_file(path, NULL);
        if (text) blank_comments(text);
        for (char *line = text ? strtok(text, "\n") : NULL; line;
             line = strtok(NULL, "\n"))
            CHECK_MSG(!asks_number(&re, line), "%s: ask archs.def instead: %s",
                      path, line);
        free(text);
    }
    pclose(p);
    regfree(&re);
    CHECK(n > 400);
}
