/* SPDX-License-Identifier: Apache-2.0 */
/* run.c: `ampc run` on a device, and how cuBLASLt is found. */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/program/plan.h"
#include "tests/support/gpu_session.h"

/* ---- ampc run ------------------------------------------------------------ */

/* Zeros for an input of "train", two batches, as a .npy file whose header
   has 128 bytes: 'v' is the length of its text. */
static void write_zeroes(const ampc_api *a, uint32_t index, char option[700]) {
    ampc_tensor_info t = {.size = sizeof t};
    char head[128], path[600];
    CHECK_EQ_INT(a->input(a->module, "train", index, &t), AMPC_OK);
    REQUIRE(t.rank == 1 || t.rank == 2);
    int n = snprintf(head, sizeof head,
                     "\x93NUMPY%c%c%c%c{'descr': '%s', 'fortran_order': False, "
                     "'shape': (%d,",
                     1, 0, 'v', 0, t.dtype == AMPC_DTYPE_I64 ? "<i8" : "<f4",
                     (int)(2 * t.shape[0]));
    if (t.rank == 2)
        n +=
            snprintf(head + n, sizeof head - (size_t)n, " %d", (int)t.shape[1]);
    n += snprintf(head + n, sizeof head - (size_t)n, "), }");
    size_t size = sizeof head + 2 * t.bytes;
    char *file = calloc(1, size);
    memset(file, ' ', sizeof head);
    memcpy(file, head, (size_t)n);
    file[sizeof head - 1] = '\n';
    snprintf(path, sizeof path, "%s/%u.npy", test_tmpdir(), index);
    REQUIRE(test_write_file(path, file, size));
    snprintf(option, 700, "--feed %s=%s", t.name, path);
    free(file);
}

TEST_CASE(cuda_runtime, ampc_run_takes_a_device) {
    static const struct {
        const char *device, *says;
        int status;
    } rows[] = {{"auto", "GPU 'Simulated", 0}, {"cuda", "GPU 'Simulated", 0},
                {"cuda:0", "\"step\":3", 0},   {"cpu", "x86-64-v2", 0},
                {"cuda:1", "no GPU 1", 1},     {"tpu", "'cuda:N'", 1}};
    const Model *m = model(&plain);
    const ampc_api *a = machine(m, NULL);
    char feed[2][700];
    setenv("AMPC_SIM_TWINS", m->c.cuda_dir, 1);
    for (uint32_t i = 0; i < 2; i++) write_zeroes(a, i, feed[i]);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char *out = NULL;
        int rc = test_command(&out, "'%s' run '%s' --device %s %s %s --steps 3",
                              test_ampc(), m->c.path, rows[i].device, feed[0],
                              feed[1]);
        CHECK_EQ_INT(rc, rows[i].status);
        CHECK_HAS(out, rows[i].says);
        free(out);
    }
    /* the share of the GPU's peak */
    char *out = NULL;
    int rc =
        test_command(&out,
                     "'%s' run '%s' --device cuda %s %s --steps 3 "
                     "--profile '%s/trace.json'",
                     test_ampc(), m->c.path, feed[0], feed[1], test_tmpdir());
    CHECK_EQ_INT(rc, 0);
    CHECK_HAS(out, "on the GPU ");
    CHECK_HAS(out, " ms a step, ");
    free(out);
    unsetenv("AMPC_SIM_TWINS");
}

/* Folders with libraries of these names; "no": a file that is not a library. */
static const char *put_libraries(const char *folder, const char *v13,
                                 const char *v12) {
    const char *at = test_tmp(folder);
    const char *const names[] = {"libcublasLt.so.13", "libcublasLt.so.12"};
    const char *const kinds[] = {v13, v12};
    CHECK_EQ_INT(test_command(NULL, "mkdir -p '%s' && ln -sf '%s' '%s'/", at,
                              sim()->path, at),
                 0);
    for (int i = 0; i < 2; i++)
        if (kinds[i])
            CHECK_EQ_INT(test_command(NULL, "ln -sf '%s' '%s/%s'",
                                      strcmp(kinds[i], "no") == 0
                                          ? "/lib/x86_64-linux-gnu/libm.so.6"
                                          : sim()->cublaslt,
                                      at, names[i]),
                         0);
    return at;
}

typedef struct Found {
    int driver;
    const char *libraries, *device, *says;
    int status;
    const char *home; /* NULL: there is none */
} Found;

/* Precedes a command: hides this machine's CUDA toolkit. */
static const char *hide_toolkit(void) {
    static const char hides[] =
        "unshare -rm sh -c 'mount -t tmpfs none /usr/local && exec \"$@\"' sh";
    if (test_command(NULL, "ls /usr/local/cuda*/lib64/libcublasLt.so.1?") != 0)
        return "";
    if (test_command(NULL, "%s true", hides) != 0)
        SKIP("this machine has a CUDA toolkit, which would be found");
    return hides;
}

static void check_found(const Found *rows, size_t n) {
    const Model *m = model(&plain);
    const ampc_api *a = machine(m, NULL);
    const char *hides = hide_toolkit();
    char feed[2][700];
    for (uint32_t i = 0; i < 2; i++) write_zeroes(a, i, feed[i]);
    unsetenv("AMPC_LIBCUBLASLT");
    for (const Found *r = rows; r < rows + n; r++) {
        char *out = NULL;
        int rc = test_command(
            &out,
            "LD_LIBRARY_PATH='%s' VIRTUAL_ENV='%s' HOME='%s' "
            "AMPC_SIM_DRIVER=%d "
            "AMPC_SIM_BLAS_VERSION=%d AMPC_SIM_TWINS='%s' %s '%s' run '%s' "
            "--device %s %s %s --steps 1",
            r->libraries,
            strcmp(r->libraries, "nowhere") == 0 ? test_tmp("env") : "none",
            r->home ? r->home : "none", r->driver,
            strstr(r->says, ".12") ? 120805 : 130100, m->c.cuda_dir, hides,
            test_ampc(), m->c.path, r->device, feed[0], feed[1]);
        CHECK_MSG(rc == r->status, "status %d\n%s", rc, out);
        CHECK_HAS(out, r->says);
        free(out);
    }
    machine(m, NULL);
}

TEST_CASE(cuda_runtime, cublaslt_is_of_a_version) {
    const Found rows[] = {{13000, put_libraries("both", "yes", "yes"), "cuda",
                           "both/libcublasLt.so.13", 0, NULL},
                          {12080, put_libraries("old", NULL, "yes"), "cuda",
                           "old/libcublasLt.so.12", 0, NULL}};
    check_found(rows, sizeof rows / sizeof *rows);
}

TEST_CASE(cuda_runtime, cublaslt_is_searched_for) {
    static const char in_package[] =
        "env/lib/python3.11/site-packages/nvidia/cu13/lib";
    static const char in_users[] =
        "home/.local/lib/python3.12/site-packages/nvidia/cublas/lib";
    const Found rows[] = {
        {13000, put_libraries("wrong", "no", "yes"), "cuda",
         "wrong/libcublasLt.so.12", 0, NULL},
        {12080, put_libraries("new", "yes", NULL), "cuda",
         "the driver is too old for libcublasLt.so.13", 1, NULL},
        {12080, test_tmp("new"), "auto", "the GPU is not used", 0, NULL},
        {13000, put_libraries(in_package, "yes", NULL) ? "nowhere" : "", "cuda",
         "cu13/lib/libcublasLt.so.13", 0, NULL},
        {12080, put_libraries(in_users, NULL, "yes") ? "none" : "", "cuda",
         "cublas/lib/libcublasLt.so.12", 0, test_tmp("home")}};
    check_found(rows, sizeof rows / sizeof *rows);
}
