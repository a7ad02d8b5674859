/* SPDX-License-Identifier: Apache-2.0 */
/* nvrtc_standin_test.c: NVRTC's results and messages get to their places in a
   module, and are cached for the next compilation.
   tests/support/standin_nvrtc.c replaces NVRTC; its results show from what
   they were made. */
#define _POSIX_C_SOURCE 200809L
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "codegen/section.h"
#include "tests/harness.h"

static const char model[] =
    "graph forward(%x: f32[40,30]) {\n"
    "  param %w: f32[30,20] = normal(1, 0.5)\n"
    "  param %v: f32[20,33] = normal(2, 0.5)\n"
    "  %h = matmul %x, %w\n  %r = gelu %h\n  %n = softmax %r\n"
    "  %y = matmul %n, %v\n  return %y\n}\n";

/* Status of compiling to m.so; *out: its messages. */
static int compiled(char **out, const char *environment, const char *options) {
    REQUIRE(test_write_file(test_tmp("m.amp"), model, strlen(model)));
    (void)unlink(test_tmp("runs"));
    return test_command(
        out,
        "cd '%s' && AMPC_LIBNVRTC='%s' AMPC_CACHE_DIR='%s' STANDIN_RUNS=runs "
        "%s '%s' m.amp -o m.so --loss mse %s",
        test_tmpdir(), test_data_path("tests/support/libstandin_nvrtc.so"),
        test_tmp("kept"), environment, test_ampc(), options);
}

/* How often the last compilation made code for an architecture. */
static int runs(const char *arch) {
    char *text = test_read_file(test_tmp("runs"), NULL);
    int n = 0;
    for (const char *at = text; at && (at = strstr(at, arch)); at++) n++;
    free(text);
    return n;
}

typedef struct Sections {
    Arena *a;
    Diag d;
    SectionFile f;
    int nunit;
} Sections;

static char *section(Sections *m, const char *prefix, int unit, size_t *n) {
    char name[80], *data;
    snprintf(name, sizeof name, "%s:%d", prefix, unit);
    const PlanSection *s = sections_find(&m->f, name);
    if (!s) return NULL;
    if (sections_read(m->a, &m->d, &m->f, s, &data, n) != OK)
        FAIL("%s", m->d.text.data);
    char *text = arena_alloc(m->a, *n + 1);
    memcpy(text, data, *n);
    text[*n] = 0;
    return text;
}

static void open_sections(Sections *m) {
    size_t n;
    *m = (Sections){.a = arena_new()};
    if (sections_open(m->a, &m->d, test_tmp("m.so"), &m->f) != OK)
        FAIL("%s", m->d.text.data);
    while (section(m, "txt:cuda", m->nunit, &n)) m->nunit++;
    REQUIRE(m->nunit > 0);
}

static void close_sections(Sections *m) {
    sections_close(&m->f);
    sb_free(&m->d.text);
    arena_free(m->a);
}

/* The stand-in's mark of a text. */
static unsigned long long mark(const char *text) {
    uint64_t hash = 14695981039346656037u;
    for (; *text; text++) hash = (hash ^ (unsigned char)*text) * 1099511628211u;
    return hash;
}

/* Each image comes from its unit's text for its architecture. */
static void check_images(Sections *m, const char *const *cubin, bool ptx) {
    char want[200];
    size_t n;
    for (int u = 0; u < m->nunit; u++) {
        const char *text = section(m, "txt:cuda", u, &n), *image;
        for (int k = 0; cubin[k]; k++) {
            char prefix[40];
            snprintf(prefix, sizeof prefix, "cuda:%s", cubin[k]);
            snprintf(want, sizeof want, "cubin %s %016llx", cubin[k],
                     mark(text));
            REQUIRE((image = section(m, prefix, u, &n)));
            CHECK_EQ_INT(n, strlen(want));
            CHECK_STR(image, want);
        }
        /* in the version that the oldest driver accepts, 8.0 instead of 8.7 */
        snprintf(want, sizeof want,
                 "//\n.version 8.0\n.target sm_80\n// %016llx\n", mark(text));
        image = section(m, "cuda:compute_80", u, &n);
        CHECK((image != NULL) == ptx);
        if (!image) continue;
        CHECK_EQ_INT(n, strlen(want) + 1);
        CHECK_STR(image, want);
    }
}

TEST_CASE(nvrtc_standin, results_are_kept) {
    static const char *const both[] = {"sm_80", "sm_90", NULL};
    static const char all[] =
        "--target cpu:x86-64-v2,cuda:sm_80,cuda:sm_90,cuda:ptx";
    Sections m;
    char *out;
    for (int time = 0; time < 3; time++) { /* without a cache, to a cache,
                                              and from it */
        int rc = compiled(&out, time ? "" : "AMPC_CACHE_DIR=none", all);
        CHECK_MSG(rc == 0, "status %d\n%s", rc, out);
        free(out);
        open_sections(&m);
        check_images(&m, both, true);
        CHECK_EQ_INT(runs("sm_80"), time < 2 ? m.nunit : 0);
        CHECK_EQ_INT(runs("sm_90"), time < 2 ? m.nunit : 0);
        CHECK_EQ_INT(runs("compute_80"), 0); /* made with sm_80's */
        close_sections(&m);
        if (time == 0)
            REQUIRE(rename(test_tmp("m.so"), test_tmp("first.so")) == 0);
        else
            test_same_files("m.so", "first.so");
    }
    /* an entry for two architectures serves a compilation for one; PTX alone is
       another entry */
    REQUIRE(compiled(NULL, "", "--target cpu:x86-64-v2,cuda:sm_90") == 0);
    CHECK_EQ_INT(runs("_"), 0);
    open_sections(&m);
    check_images(&m, both + 1, false);
    REQUIRE(compiled(NULL, "", "--target cpu:x86-64-v2,cuda:ptx") == 0);
    CHECK_EQ_INT(runs("compute_80"), m.nunit);
    CHECK_EQ_INT(runs("sm_"), 0);
    close_sections(&m);
    open_sections(&m);
    check_images(&m, both + 2, true);
    close_sections(&m);
}

/* Finds a kernel in the text: its number among the kernels of its unit, and
   its largest number of threads. */
static bool find_kernel(Sections *m, const char *name, int *number,
                        unsigned *threads) {
    size_t n;
    char head[100];
    snprintf(head, sizeof head, ")\n%s(", name);
    for (int u = 0; u < m->nunit; u++) {
        const char *text = section(m, "txt:cuda", u, &n);
        const char *here = strstr(text, head), *bound = NULL;
        if (!here) continue;
        *number = -1;
        for (const char *at = text;
             (at = strstr(at, "__launch_bounds__(")) && at < here; at++)
            bound = at, ++*number;
        REQUIRE(bound != NULL);
        *threads = (unsigned)strtoul(strchr(bound, '(') + 1, NULL, 10);
        return true;
    }
    return false;
}

/* "NAME: 3 x 256 threads; sm_90: 41 registers, 210 bytes spilled, 0 shared" */
TEST_CASE(nvrtc_standin, usage_is_told_of_each_kernel) {
    Sections m;
    char *out;
    int seen = 0;
    REQUIRE(compiled(NULL, "",
                     "--target cpu:x86-64-v2,cuda:sm_80,cuda:sm_90") == 0);
    open_sections(&m);
    REQUIRE(test_command(&out, "'%s' inspect '%s' --kernels", test_ampc(),
                         test_tmp("m.so")) == 0);
    for (char *at = out; (at = strstr(at, "gpu: ")); at++) {
        char name[40], line[400];
        int number, used[2] = {0}, spilled[2] = {0}, shared[2] = {0};
        unsigned threads, bound;
        long long blocks;
        snprintf(line, sizeof line, "%.*s", (int)strcspn(at, "\n"), at);
        if (sscanf(line, "gpu: %39[^:]: %lld x %u threads", name, &blocks,
                   &threads) != 3)
            continue;
        if (!find_kernel(&m, name, &number, &bound))
            FAIL("no kernel %s in the text: %s", name, line);
        const char *const arch[] = {"; sm_80: ", "; sm_90: "};
        for (int k = 0; k < 2; k++) {
            const char *told = strstr(line, arch[k]);
            CHECK_MSG(told && sscanf(told + strlen(arch[k]),
                                     "%d registers, %d bytes spilled, %d "
                                     "shared",
                                     &used[k], &spilled[k], &shared[k]) == 3,
                      "%s", line);
            CHECK_MSG(used[k] == 40 + number &&
                          spilled[k] == 200 + 10 * number &&
                          shared[k] == (k ? 0 : 64 + number),
                      "number %d: %s", number, line);
        }
        CHECK_MSG(threads == bound && blocks > 0, "%u: %s", bound, line);
        seen++;
    }
    CHECK_MSG(seen > 3, "%d kernels in\n%s", seen, out);
    free(out);
    close_sections(&m);
}

TEST_CASE(nvrtc_standin, what_it_refuses_is_told) {
    char *out;
    int rc = compiled(&out, "STANDIN_REFUSES=sm_90",
                      "--cache none --target cpu:x86-64-v2,cuda:sm_80,cuda:"
                      "sm_90");
    CHECK_EQ_INT(rc, 3);
    CHECK_HAS(out, "NVRTC refuses unit 0 for sm_90");
    CHECK_HAS(out, "unit.cu(3): error: it does not please");
    free(out);
    rc = compiled(&out, "", "--target cuda:sm_70");
    CHECK_EQ_INT(rc, 1);
    CHECK_HAS(out, "NVRTC 12.8 makes code for: cuda:sm_80 cuda:sm_90 cuda:ptx");
    free(out);
    rc = compiled(&out, "", "--target cuda:sm_75"); /* between two it has */
    CHECK_EQ_INT(rc, 1);
    free(out);
}

static void copy(const char *from, const char *to) {
    size_t n;
    char *data = test_read_file(from, &n);
    REQUIRE(data && test_write_file(to, data, n));
    free(data);
}

/* NVRTC opens its builtins by name only: they are loaded from the folder of
   NVRTC itself. */
TEST_CASE(nvrtc_standin, builtins_stand_beside_it) {
    const char *of = test_data_path("tests/support/libstandin_nvrtc.so");
    char library[600], builtins[600], words[1400], *out;
    snprintf(library, sizeof library, "%s", test_tmp("libnvrtc.so.12"));
    snprintf(builtins, sizeof builtins, "%s",
             test_tmp("libnvrtc-builtins.so.12.8"));
    copy(of, library);
    snprintf(words, sizeof words, "AMPC_LIBNVRTC='%s' STANDIN_BUILTINS='%s'",
             library, builtins);
    static const char options[] =
        "--cache none --target cpu:x86-64-v2,cuda:ptx";
    CHECK_EQ_INT(compiled(&out, words, options), 3);
    CHECK_HAS(out, "no builtins");
    free(out);
    copy(of, builtins);
    int rc = compiled(&out, words, options);
    CHECK_MSG(rc == 0, "%s", out);
    free(out);
}
