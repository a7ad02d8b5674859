/* SPDX-License-Identifier: Apache-2.0 */
/* cost_test.c: the cost of compiling a long model, up to the C compiler, and
   the size of modules.

   Processor time and memory of `ampc check` on chains (chain.h), each four
   times as long as the one before. Time is noisy, so the bound is halfway
   between linear and quadratic growth; memory is not noisy. */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "tests/harness.h"
#include "tests/support/chain.h"

#if defined __SANITIZE_ADDRESS__
enum { SANITIZED = 1 };
#else
enum { SANITIZED = 0 };
#endif

enum { WIDTH = 8, SHORT = 100, STEP = 4, LENGTHS = 4, REPEATED = 3 };

typedef struct Cost {
    double seconds; /* of the processor */
    long kilobytes; /* most at a time */
} Cost;

typedef void ChainFn(StrBuf *sb, int layers, int width);

static void write_chain(const char *path, ChainFn *chain, int layers,
                        int width) {
    StrBuf sb = {0};
    chain(&sb, layers, width);
    FILE *f = fopen(path, "wb");
    REQUIRE(f && fwrite(sb.data, 1, sb.len, f) == sb.len && !fclose(f));
    sb_free(&sb);
}

/* Time and memory of a run of ampc with these arguments. */
static Cost run_ampc(const char *const *arguments) {
    int status = 0;
    struct rusage r;
    pid_t pid = fork();
    REQUIRE(pid >= 0);
    if (!pid) { /* a list of thousands of parameters would not help here */
        if (!freopen("/dev/null", "w", stdout)) _exit(126);
        execv(test_ampc(), (char *const *)arguments);
        _exit(127);
    }
    REQUIRE(wait4(pid, &status, 0, &r) == pid);
    CHECK_MSG(status == 0, "ampc %s: %d", arguments[1], status);
    return (Cost){(double)(r.ru_utime.tv_sec + r.ru_stime.tv_sec) +
                      1e-6 * (double)(r.ru_utime.tv_usec + r.ru_stime.tv_usec),
                  r.ru_maxrss};
}

static Cost run_check(const char *path) {
    const char *const arguments[] = {"ampc", "check",    path,  "--loss",
                                     "mse",  "--target", "cpu", NULL};
    return run_ampc(arguments);
}

/* The smallest of several runs: other processes only add time. */
static Cost cost_of(const char *end, ChainFn *chain, int layers, int runs) {
    char path[700];
    snprintf(path, sizeof path, "%s/chain%d.%s", test_tmpdir(), layers, end);
    write_chain(path, chain, layers, WIDTH);
    Cost best = run_check(path);
    for (int i = 1; i < runs; i++) {
        Cost c = run_check(path);
        if (c.seconds < best.seconds) best = c;
    }
    unlink(path);
    printf("%5d layers, %s: %.2f s, %ld KB\n", layers, end, best.seconds,
           best.kilobytes);
    return best;
}

/* Quadratic work, even with a small factor, shows at the fourth length,
   which is run once. */
static void check_growth(const char *end, ChainFn *chain, int lengths) {
    Cost c[LENGTHS];
    for (int i = 0, layers = SHORT; i < lengths; i++, layers *= STEP)
        c[i] = cost_of(end, chain, layers, i < REPEATED ? 3 : 1);
    for (int i = 1; i < lengths; i++) {
        CHECK_MSG(c[i].seconds < 2 * STEP * c[i - 1].seconds,
                  "%d times the layers, %.1f times the time", STEP,
                  c[i].seconds / c[i - 1].seconds);
        CHECK_MSG(SANITIZED ||
                      10 * c[i].kilobytes < 10 * STEP * c[i - 1].kilobytes +
                                                STEP * c[i - 1].kilobytes,
                  "%d times the layers, %ld KB after %ld KB", STEP,
                  c[i].kilobytes, c[i - 1].kilobytes);
    }
    CHECK_MSG(SANITIZED || c[REPEATED - 1].kilobytes < 260 * 1024,
              "1,600 layers take %ld KB", c[REPEATED - 1].kilobytes);
}

/* ---- size ---------------------------------------------------------------- */

static long file_size(const char *path) {
    struct stat st;
    REQUIRE(stat(path, &st) == 0);
    return (long)st.st_size;
}

enum { BIG_LAYERS = 11, BIG_WIDTH = 1024 };
enum { ROOM = SANITIZED ? 1 << 20 : 830000 };

/* As many bytes of weights as ResNet-18. All routines of all levels would
   exceed the limit; products alone do not. */
TEST_CASE(cost, a_module_stores_each_weight_once) {
    char path[700], module[700], *out;
    snprintf(path, sizeof path, "%s/big.onnx", test_tmpdir());
    snprintf(module, sizeof module, "%s/big.so", test_tmpdir());
    write_chain(path, chain_onnx, BIG_LAYERS, BIG_WIDTH);
    int rc = test_command(&out, "'%s' '%s' -o '%s' --loss mse --target cpu",
                          test_ampc(), path, module);
    REQUIRE(CHECK_MSG(rc == 0, "%s", out));
    long model = file_size(path), made = file_size(module);
    CHECK_MSG(made > model && made < model + ROOM, "%ld bytes made of %ld",
              made, model);
    free(out);
    unlink(path);
    unlink(module);
}

/* Weights from a seed are not in the module: routines of three levels and
   the kernels are. */
static void check_code(const char *model, long most) {
    char module[700], *out;
    snprintf(module, sizeof module, "%s/code.so", test_tmpdir());
    int rc = test_command(&out, "'%s' '%s' -o '%s' --target cpu", test_ampc(),
                          test_data_path(model), module);
    REQUIRE(CHECK_MSG(rc == 0, "%s", out));
    long made = file_size(module);
    printf("%s: %ld bytes\n", model, made);
    CHECK_MSG(SANITIZED || made < most, "%s: %ld bytes", model, made);
    free(out);
    unlink(module);
}

TEST_CASE(cost, code_of_networks_is_small) {
    check_code("models/mlp.amp", 740000);
    check_code("models/cnn.amp", 1570000);
    check_code("models/resnet18.amp", 1920000);
}

/* ---- plans of real size for a GPU ---------------------------------------- */

/* Limits from README, plus a margin. */
static const struct {
    const char *model, *dims[2];
    long launches, bytes; /* largest number of bytes: of a step; of a module
                             for sm_90 */
    double ms, gigabytes;
    double sorts; /* processor time in units of sort_seconds */
} plans[] = {{"models/gpt.amp", {"B=64", "T=1024"}, 425, 2200000, 132, 186, 20},
             {"models/resnet50.amp", {"B=256"}, 535, 4300000, 43, 83, 60}};

static int compare(const void *a, const void *b) {
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return (x > y) - (x < y);
}

/* Processor time that the C library takes to sort four million numbers: the
   unit of time for this machine and its present load. */
static double sort_seconds(void) {
    enum { COUNT = 1 << 22 };
    uint32_t *x = malloc(COUNT * sizeof *x), state = 1;
    REQUIRE(x != NULL);
    for (int i = 0; i < COUNT; i++) x[i] = state = state * 1664525 + 1013904223;
    clock_t start = clock();
    qsort(x, COUNT, sizeof *x, compare);
    double s = (double)(clock() - start) / CLOCKS_PER_SEC;
    CHECK(x[0] <= x[COUNT - 1]);
    free(x);
    return s;
}

static double number_in(const char *json, const char *name) {
    char key[40];
    snprintf(key, sizeof key, "\"%s\":", name);
    const char *at = strstr(json, key);
    if (!at) FAIL("no %s in %.300s", name, json);
    return strtod(at + strlen(key), NULL);
}

static void check_plan(int i) {
    char module[700], *log, *out;
    const char *model = test_data_path(plans[i].model);
    snprintf(module, sizeof module, "%s/plan.so", test_tmpdir());
    const char *arguments[] = {"ampc",
                               model,
                               "-o",
                               module,
                               "--cache",
                               "none",
                               "--target",
                               "cuda:sm_90",
                               "--dim",
                               plans[i].dims[0],
                               plans[i].dims[1] ? "--dim" : NULL,
                               plans[i].dims[1],
                               NULL};
    double sort = sort_seconds() / 2;
    Cost c = run_ampc(arguments);
    sort += sort_seconds() / 2;
    REQUIRE(!test_command(&log, "'%s' inspect '%s' --roofline --json",
                          test_ampc(), module));
    double launches = number_in(log, "launches"),
           ms = number_in(log, "H100_ms");
    double bytes = number_in(log, "bytes");
    long size = file_size(module);
    printf("%s: %.1f s or %.1f sorts, %ld bytes, %g launches, %.1f GB, %.1f "
           "ms\n",
           plans[i].model, c.seconds, c.seconds / sort, size, launches,
           1e-9 * bytes, ms);
    CHECK(launches > 300 && launches <= (double)plans[i].launches);
    CHECK(ms > 30 && ms <= plans[i].ms);
    CHECK(bytes > 50e9 && bytes <= 1e9 * plans[i].gigabytes);
    CHECK(size <= plans[i].bytes);
    CHECK_MSG(SANITIZED || c.seconds <= plans[i].sorts * sort,
              "%.1f s, %.1f sorts", c.seconds, c.seconds / sort);
    REQUIRE(!test_command(&out, "'%s' inspect '%s' --kernels --json",
                          test_ampc(), module));
    const char *spills = "\"spill_stores\":";
    int kernels = 0;
    for (const char *p = out; (p = strstr(p, spills)); kernels++)
        CHECK_EQ_INT(atoi(p += strlen(spills)), 0);
    CHECK(kernels > 100);
    free(log);
    free(out);
    unlink(module);
}

TEST_CASE(cost, plans_of_real_networks_for_a_gpu) {
    char *out;
    if (test_command(&out, "'%s' check '%s' --target cuda:sm_90", test_ampc(),
                     test_data_path("models/mlp.amp")))
        SKIP("%s", out);
    free(out);
    for (int i = 0; i < 2; i++) check_plan(i);
}

TEST_CASE(cost, onnx_grows_linearly) {
    check_growth("onnx", chain_onnx, LENGTHS);
}

TEST_CASE(cost, text_grows_linearly) {
    check_growth("amp", chain_amp, REPEATED);
}
