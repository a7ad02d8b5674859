/* SPDX-License-Identifier: Apache-2.0 */
/* large_test.c: models with very many nodes: `ampc check` in bounded time,
   memory and stack. The bound on time is loose, as machines differ:
   quadratic time would take minutes. Large weights: `ampc run` in bounded
   memory. */
#define _GNU_SOURCE
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/harness.h"
#include "tests/support/wire.h"

/* ---- ONNX files, node by node -------------------------------------------- */

typedef struct Large {
    StrBuf graph, node;
} Large;

/* Operands "" are absent. */
static void put_node(Large *m, const char *op, const char *x, const char *y,
                     const char *result) {
    if (*x) wire_text(&m->node, 1, x);
    if (*y) wire_text(&m->node, 1, y);
    wire_text(&m->node, 2, result);
    wire_text(&m->node, 4, op);
    wire_message(&m->graph, 1, &m->node);
}

static void put_constant(Large *m, const char *name, float value) {
    StrBuf tensor = {0}, attribute = {0};
    wire_number(&tensor, 2, 1); /* FLOAT */
    wire_bytes(&tensor, 9, &value, sizeof value);
    wire_text(&attribute, 1, "value");
    wire_message(&attribute, 5, &tensor);
    wire_number(&attribute, 20, 4); /* TENSOR */
    wire_message(&m->node, 5, &attribute);
    put_node(m, "Constant", "", "", name);
}

/* f32[2,4] */
static void put_value(Large *m, int field, const char *name) {
    StrBuf dim = {0}, shape = {0}, tensor = {0}, type = {0}, value = {0};
    for (uint64_t n = 2; n <= 4; n += 2) {
        wire_number(&dim, 1, n);
        wire_message(&shape, 1, &dim);
    }
    wire_number(&tensor, 1, 1);
    wire_message(&tensor, 2, &shape);
    wire_message(&type, 1, &tensor);
    wire_text(&value, 1, name);
    wire_message(&value, 2, &type);
    wire_message(&m->graph, field, &value);
}

/* Of f32[4] */
static void put_parameter(Large *m, const char *name) {
    StrBuf tensor = {0};
    static const float ones[4] = {1, 1, 1, 1};
    wire_number(&tensor, 1, 4);
    wire_number(&tensor, 2, 1); /* FLOAT */
    wire_text(&tensor, 8, name);
    wire_bytes(&tensor, 9, ones, sizeof ones);
    wire_message(&m->graph, 5, &tensor);
}

/* Runs ampc with these words within that processor time and memory. */
static void check_ampc(char *const *words, double seconds, int64_t megabytes) {
    struct rusage used;
    int status;
    pid_t child = fork();
    if (child == 0) {
        execv(test_ampc(), words);
        _exit(127);
    }
    REQUIRE(wait4(child, &status, 0, &used) == child);
    CHECK_MSG(WIFEXITED(status) && WEXITSTATUS(status) == 0, "status %#x",
              (unsigned)status);
    double took = (double)(used.ru_utime.tv_sec + used.ru_stime.tv_sec);
#ifdef __SANITIZE_ADDRESS__ /* slower, and it does not reuse freed memory */
    CHECK_MSG(took <= 4 * seconds, "%g s", took);
    (void)megabytes;
#else
    CHECK_MSG(took <= seconds, "%g s", took);
    CHECK_MSG(used.ru_maxrss / 1000 <= megabytes, "%ld MB",
              used.ru_maxrss / 1000);
#endif
}

/* Checks the model of x and frees it. */
static void check_large(Large *m, const char *result, const char *loss,
                        double seconds, int64_t megabytes) {
    StrBuf model = {0}, opset = {0};
    wire_text(&m->graph, 2, "large");
    put_value(m, 11, "x");
    put_value(m, 12, result);
    wire_number(&opset, 2, 17);
    wire_number(&model, 1, 8);
    wire_message(&model, 7, &m->graph);
    wire_message(&model, 8, &opset);
    const char *path = test_tmp("large.onnx");
    bool written = test_write_file(path, model.data, model.len);
    sb_free(&model);
    REQUIRE(written);
    char *words[] = {"ampc",   "check",      (char *)path,
                     "--loss", (char *)loss, NULL};
    check_ampc(words, seconds, megabytes);
    unlink(path);
}

/* ---- shapes of models ---------------------------------------------------- */

static const char *name_of(char to[32], char kind, int i) {
    if (i < 0) return "x";
    snprintf(to, 32, "%c%d", kind, i);
    return to;
}

static void check_chain(int nodes, double seconds, int64_t megabytes) {
    Large m = {{0}, {0}};
    char a[32], b[32];
    for (int i = 0; i < nodes; i++)
        put_node(&m, i % 2 ? "Tanh" : "Relu", name_of(a, 'v', i - 1), "",
                 name_of(b, 'v', i));
    check_large(&m, name_of(a, 'v', nodes - 1), "none", seconds, megabytes);
}

TEST_CASE(large, chain) {
    if (test_slow())
        check_chain(1000000, 60, 1000);
    else
        check_chain(50000, 20, 200);
}

/* Many numbers, all different. */
TEST_CASE(large, numbers_that_differ) {
    int n = test_slow() ? 500000 : 200000;
    Large m = {{0}, {0}};
    char a[32], b[32], c[32];
    for (int i = 0; i < n; i++) {
        put_constant(&m, name_of(c, 'c', i), (float)(i + 1) / 1024);
        put_node(&m, "Add", name_of(a, 'v', i - 1), c, name_of(b, 'v', i));
    }
    check_large(&m, name_of(a, 'v', n - 1), "none", 60,
                test_slow() ? 1200 : 545);
}

/* Every value of a chain has a second reader: y = (((x + v0) + v1) + ..).
   Copying each for both readers would copy everything before it. */
TEST_CASE(large, chain_that_is_added_up) {
    enum { LINKS = 20000 };
    Large m = {{0}, {0}};
    char a[32], b[32], c[32];
    for (int i = 0; i < LINKS; i++)
        put_node(&m, i % 2 ? "Neg" : "Relu", name_of(a, 'v', i - 1), "",
                 name_of(b, 'v', i));
    for (int i = 0; i < LINKS; i++)
        put_node(&m, "Add", name_of(a, 's', i - 1), name_of(b, 'v', i),
                 name_of(c, 's', i));
    check_large(&m, name_of(a, 's', LINKS - 1), "none", 30, 500);
}

/* A sum of x times each of many parameters: the search for a cycle when two
   products merge never walks the whole sum. */
TEST_CASE(large, sum_of_parameters) {
    int terms = test_slow() ? 20000 : 2000;
    Large m = {{0}, {0}};
    char a[32], b[32], c[32];
    for (int i = 0; i < terms; i++) {
        put_parameter(&m, name_of(c, 'w', i));
        put_node(&m, "Mul", "x", c, name_of(b, 'v', i));
        put_node(&m, "Add", name_of(a, 's', i - 1), b, name_of(c, 's', i));
    }
    check_large(&m, name_of(a, 's', terms - 1), "mse", 120, 1000);
}

/* ((x w + b) + b) + ..: it is checked only a bounded number of times whether
   readers of b move to the node that computes it. */
TEST_CASE(large, one_operand_of_all) {
    int terms = test_slow() ? 300000 : 20000;
    Large m = {{0}, {0}};
    char a[32], b[32];
    put_parameter(&m, "w");
    put_node(&m, "Mul", "x", "w", "b");
    for (int i = 0; i < terms; i++)
        put_node(&m, "Add", i ? name_of(a, 's', i - 1) : "b", "b",
                 name_of(b, 's', i));
    check_large(&m, name_of(a, 's', terms - 1), "mse", test_slow() ? 100 : 6,
                1500);
}

/* Every parameter of a chain needs the gradient of everything after it. */
TEST_CASE(large, chain_of_parameters) {
    int links = test_slow() ? 20000 : 2000;
    Large m = {{0}, {0}};
    char a[32], b[32], c[32];
    for (int i = 0; i < links; i++) {
        put_parameter(&m, name_of(c, 'w', i));
        put_node(&m, "Mul", name_of(a, 'v', i - 1), c, name_of(b, 'v', i));
    }
    check_large(&m, name_of(a, 'v', links - 1), "mse", test_slow() ? 30 : 20,
                1000);
}

/* A chain that backward may recompute, before or after a parameter: the cut
   between kept and recomputed values is found in linear time. */
static void check_kept_chain(bool behind) {
    int links = (behind ? 5000 : 20000) * (test_slow() ? 5 : 1);
    Large m = {{0}, {0}};
    char a[32], b[32];
    put_parameter(&m, "w");
    if (behind) put_node(&m, "Mul", "x", "w", "y");
    for (int i = 0; i < links; i++)
        put_node(&m, "Relu", i || !behind ? name_of(a, 'v', i - 1) : "y", "",
                 name_of(b, 'v', i));
    const char *last = name_of(a, 'v', links - 1);
    if (!behind) put_node(&m, "Mul", last, "w", "y");
    check_large(&m, behind ? last : "y", "mse", test_slow() ? 150 : 20,
                test_slow() ? 5000 : 1000);
}

TEST_CASE(large, chain_in_front_of_a_parameter) { check_kept_chain(false); }

TEST_CASE(large, chain_behind_a_parameter) { check_kept_chain(true); }

/* ---- large weights ------------------------------------------------------- */

/* f32[4,2048] of zeros */
static bool write_rows(const char *path) {
    static char file[128 + 4 * 2048 * sizeof(float)];
    memcpy(file, "\x93NUMPY\1\0\x76\0", 10);
    snprintf(file + 10, sizeof file - 10, "%-117s\n",
             "{'descr': '<f4', 'fortran_order': False, 'shape': (4, 2048), }");
    file[128] = 0;
    return test_write_file(path, file, sizeof file);
}

/* A weight and its gradient have 32 MiB each: the block into which a file was
   read is free again when the first step begins. */
TEST_CASE(large, a_run_frees_what_it_loaded) {
    static const char text[] =
        "model net(x: f32[4,2048]) {\n"
        "  y = Linear(x, units=4096, bias=false)\n"
        "  return loss = reduce_mean(y * y, axes=[0,1], keepdims=0)\n}\n";
    char *amp = strdup(test_tmp("wide.amp")), *so = strdup(test_tmp("wide.so")),
         *file = strdup(test_tmp("wide.safetensors")), feed[300];
    char *compile[] = {"ampc",        amp,    "-o",       so,
                       "--precision", "fp32", "--target", "cpu:x86-64-v2",
                       "--optimizer", "sgd",  NULL};
    char *save[] = {"ampc",    "run", so,        "--feed",         feed,
                    "--steps", "0",   "--quiet", "--save-weights", file,
                    NULL};
    char *load[] = {"ampc", "run",     so,       "--feed", feed, "--steps",
                    "1",    "--quiet", "--load", file,     NULL};
    snprintf(feed, sizeof feed, "x=%s", test_tmp("wide.npy"));
    REQUIRE(test_write_file(amp, text, sizeof text - 1) &&
            write_rows(feed + 2));
    check_ampc(compile, 20, 500);
    check_ampc(save, 20, 90);
    check_ampc(load, 20, 90);
    unlink(file);
    free(amp), free(so), free(file);
}
