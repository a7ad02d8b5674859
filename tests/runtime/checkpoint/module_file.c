/* SPDX-License-Identifier: Apache-2.0 */
/* module_file.c: a module's own file: tail, directory, weights. */
#define _GNU_SOURCE
#include "tests/runtime/checkpoint/saved.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- the module's own file ----------------------------------------------- */

/* A shared object with a plan of two variables; the weights are before its
   tail. */
static const char module_source[] =
    "#include \"runtime/program/plan.h\"\n"
    "static const PlanVar vars[] = {\n"
    "  {\"w\", PLAN_PARAM, AMPC_F32, 1, AMPC_F32, {4}, 16, 0, 0},\n"
    "  {\"c\", PLAN_CONST, AMPC_U8, 1, AMPC_U8, {3}, 3, 64, 0}};\n"
    "static const PlanIsa isas[] = {{2, 0, 0, 0}};\n"
    "static const PlanTarget cpu = {0};\n"
    "const AmpcModule plan = {.version = AMPC_PLAN_VERSION, .model = \"m\",\n"
    "  .info = \"{}\", .nvar = 2, .nisa = 1, .vars = vars, .cpu = &cpu,\n"
    "  .isas = isas};\n";

typedef struct Tail {
    uint8_t weights[80];
    PlanSection section[2];
    PlanTail tail;
} Tail;

static Tail tail_new(uint64_t at) {
    Tail t = {.tail = {at + offsetof(Tail, section), 2, 0, AMPC_TAIL_MAGIC}};
    float w[4] = {1, 2, 3, 4};
    memcpy(t.weights, w, sizeof w);
    memcpy(t.weights + 64, "\7\10\11", 3);
    strcpy(t.section[0].name, "model");
    strcpy(t.section[1].name, "weights");
    t.section[1].offset = at;
    t.section[1].bytes = sizeof t.weights;
    t.section[1].crc = crc32_slow(t.weights, sizeof t.weights);
    return t;
}

static ampc_status open_file(const char *image, size_t n, const Tail *t,
                             size_t tail_bytes, char err[300]) {
    static int number;
    char name[40];
    snprintf(name, sizeof name, "module%d.so", number++);
    const char *path = test_tmp(name);
    char *all = malloc(n + sizeof *t);
    memcpy(all, image, n);
    memcpy(all + n, t, tail_bytes);
    REQUIRE(test_write_file(path, all, n + tail_bytes));
    free(all);
    void *lib = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    REQUIRE(lib != NULL);
    const AmpcModule *m = dlsym(lib, "plan");
    ampc_session *s = NULL;
    ampc_status st = tiny_api()->open(tiny_handle(m), NULL, &s, err, 300);
    if (st == AMPC_OK) {
        CHECK(((float *)cpu_var(s, 0))[3] == 4);
        CHECK_MEM(cpu_var(s, 1), "\7\10\11", 3);
    }
    tiny_api()->close(s);
    dlclose(lib);
    return st;
}

/* Loaded by a relative path, opened from another folder. */
static void open_after_chdir(const char *image, size_t n, const Tail *t) {
    char *all = malloc(n + sizeof *t), *home = getcwd(NULL, 0), err[300];
    memcpy(all, image, n);
    memcpy(all + n, t, sizeof *t);
    REQUIRE(test_write_file(test_tmp("relative.so"), all, n + sizeof *t));
    REQUIRE(home && chdir(test_tmpdir()) == 0);
    void *lib = dlopen("./relative.so", RTLD_NOW | RTLD_LOCAL);
    REQUIRE(chdir("/") == 0 && lib);
    ampc_session *s = NULL;
    const AmpcModule *m = dlsym(lib, "plan");
    CHECK_MSG(tiny_api()->open(tiny_handle(m), NULL, &s, err, sizeof err) ==
                  AMPC_OK,
              "%s", err);
    tiny_api()->close(s);
    dlclose(lib);
    CHECK(chdir(home) == 0);
    free(home);
    free(all);
}

TEST_CASE(checkpoint, weights_of_the_module) {
    const char *src = test_tmp("module.c"), *so = test_tmp("module.so");
    char err[300], *out, *image;
    size_t n;
    REQUIRE(test_write_file(src, module_source, sizeof module_source - 1));
    if (test_command(&out, "cc -shared -fPIC -I%s/.. -o %s %s",
                     test_data_path("runtime"), so, src) != 0)
        FAIL("%s", out);
    free(out);
    REQUIRE((image = test_read_file(so, &n)) != NULL);
    Tail t = tail_new(n);
    CHECK_EQ_INT(open_file(image, n, &t, sizeof t, err), AMPC_OK);
    for (size_t cut = 1; cut < sizeof t; cut += 7)
        CHECK_EQ_INT(open_file(image, n, &t, sizeof t - cut, err),
                     AMPC_ERR_FORMAT);
    open_after_chdir(image, n, &t);
    t.weights[5] ^= 1;
    CHECK_EQ_INT(open_file(image, n, &t, sizeof t, err), AMPC_ERR_FORMAT);
    CHECK_HAS(err, "checksum");
    t = tail_new(n);
    t.tail.nsection = UINT64_MAX / 4;
    CHECK_EQ_INT(open_file(image, n, &t, sizeof t, err), AMPC_ERR_FORMAT);
    t = tail_new(n);
    t.tail.directory = UINT64_MAX - 8;
    CHECK_EQ_INT(open_file(image, n, &t, sizeof t, err), AMPC_ERR_FORMAT);
    t = tail_new(n);
    t.section[1].offset = UINT64_MAX - 16;
    CHECK_EQ_INT(open_file(image, n, &t, sizeof t, err), AMPC_ERR_FORMAT);
    t = tail_new(n);
    t.section[1].bytes = 66;
    CHECK_EQ_INT(open_file(image, n, &t, sizeof t, err), AMPC_ERR_FORMAT);
    CHECK_HAS(err, "too short");
    t = tail_new(n);
    memset(t.section[1].name, 'w', sizeof t.section[1].name);
    CHECK_EQ_INT(open_file(image, n, &t, sizeof t, err), AMPC_ERR_FORMAT);
    CHECK_HAS(err, "no section 'weights'");
    free(image);
}
