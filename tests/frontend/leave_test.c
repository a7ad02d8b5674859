/* SPDX-License-Identifier: Apache-2.0 */
/* leave_test.c: if `ampc` is interrupted, out of memory, or fails an
   assertion, it leaves no temporary folder, no half-written file and no
   compiler. */
#define _GNU_SOURCE
#include "ir/base/leave.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "ir/base/base.h"
#include "runtime/files/outfile.h"
#include "tests/harness.h"

/* ---- helpers ------------------------------------------------------------- */

static void fresh(const char *folder) {
    CHECK_EQ_INT(test_command(NULL, "rm -rf '%s' && mkdir '%s'",
                              test_tmp(folder), test_tmp(folder)),
                 0);
}

static bool within_seconds(double s, bool (*fn)(void)) {
    struct timespec pause = {0, 20000000};
    for (double t = 0; t < s; t += 0.02) {
        if (fn()) return true;
        nanosleep(&pause, NULL);
    }
    return fn();
}

/* ---- a compiler that never ends ------------------------------------------ */

static void put_model(void) {
    static const char text[] = "graph forward(%x: f32[4,3]) {\n"
                               "  param %w: f32[3,2] = normal(1, 0.5)\n"
                               "  %y = matmul %x, %w : f32[4,2]\n"
                               "  return %y\n}\n";
    REQUIRE(test_write_file(test_tmp("m.amp"), text, strlen(text)));
}

/* A stand-in compiler with a child, as compilers have; both print their process
   ids. */
static void put_compiler(void) {
    static const char text[] = "#!/bin/sh\n"
                               "sleep 300 &\n"
                               "echo $! >> \"$PIDS\"\n"
                               "echo $$ >> \"$PIDS\"\n"
                               "echo text > half.s\n"
                               "wait\n";
    REQUIRE(test_write_file(test_tmp("cc.sh"), text, strlen(text)));
    REQUIRE(chmod(test_tmp("cc.sh"), 0755) == 0);
}

static pid_t start(const char *out) {
    unlink(test_tmp("pids"));
    pid_t pid = fork();
    REQUIRE(pid >= 0);
    if (pid) return pid;
    char module[700];
    snprintf(module, sizeof module, "%s/%s", test_tmpdir(), out);
    setenv("TMPDIR", test_tmp("tmp"), 1);
    setenv("PIDS", test_tmp("pids"), 1);
    setenv("CC", test_tmp("cc.sh"), 1);
    setenv("AMPC_LIBNVRTC", "none", 1);
    execl(test_ampc(), "ampc", test_tmp("m.amp"), "-o", module, "--loss", "mse",
          "--target", "cpu:x86-64-v2", "--report", test_tmp("out/r.txt"),
          (char *)NULL);
    _exit(127);
}

/* At least three compilers, of large kernels, of small ones and of the plan,
   with a child each. */
static bool compilers_run(void) {
    char *text = test_read_file(test_tmp("pids"), NULL);
    int lines = 0;
    for (char *p = text; p && *p; p++) lines += *p == '\n';
    free(text);
    return lines >= 6 && lines % 2 == 0;
}

static bool is_running(long pid) {
    char path[64], *text;
    snprintf(path, sizeof path, "/proc/%ld/stat", pid);
    text = test_read_file(path, NULL);
    char *end = text ? strrchr(text, ')') : NULL;
    bool runs = end && end[1] == ' ' && end[2] != 'Z' && end[2] != 'X';
    free(text);
    return runs;
}

static bool compilers_stopped(void) {
    char *text = test_read_file(test_tmp("pids"), NULL);
    bool stopped = text != NULL;
    for (char *p = text; p && *p;) {
        stopped &= !is_running(strtol(p, &p, 10));
        if (*p == '\n') p++;
    }
    free(text);
    return stopped;
}

static void interrupt(int sig) {
    int status = 0;
    fresh("tmp");
    fresh("out");
    put_model();
    put_compiler();
    REQUIRE(test_write_file(test_tmp("out/m.so"), "former", 6));
    pid_t pid = start("out/m.so");
    if (!within_seconds(60, compilers_run)) {
        kill(pid, SIGKILL);
        FAIL("the compilers did not start");
    }
    CHECK_EQ_INT(test_entries(test_tmp("tmp")), 1);
    kill(pid, sig);
    REQUIRE(waitpid(pid, &status, 0) == pid);
    CHECK_MSG(WIFSIGNALED(status) && WTERMSIG(status) == sig,
              "signal %d: wait status %#x", sig, status);
    CHECK_MSG(within_seconds(10, compilers_stopped), "signal %d", sig);
    CHECK_EQ_INT(test_entries(test_tmp("tmp")), 0);
    CHECK_EQ_INT(test_entries(test_tmp("out")), 1);
    char *text = test_read_file(test_tmp("out/m.so"), NULL);
    CHECK_STR(text, "former");
    free(text);
}

TEST_CASE(leave, interrupted_while_compiling) {
    interrupt(SIGINT);
    interrupt(SIGTERM);
    interrupt(SIGHUP);
}

TEST_CASE(leave, what_nohup_ignores_stays_ignored) {
    int status = 0;
    fresh("tmp");
    fresh("out");
    put_model();
    put_compiler();
    signal(SIGHUP, SIG_IGN);
    pid_t pid = start("out/m.so");
    signal(SIGHUP, SIG_DFL);
    bool started = within_seconds(60, compilers_run);
    kill(pid, SIGHUP);
    CHECK(started && waitpid(pid, &status, WNOHANG) == 0);
    kill(pid, SIGTERM);
    REQUIRE(waitpid(pid, &status, 0) == pid);
    CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGTERM);
    CHECK(within_seconds(10, compilers_stopped));
}

/* Whenever the signal comes, the result is all outputs, or the former files. */
TEST_CASE(leave, interrupted_at_any_time) {
    int times = test_slow() ? 200 : 8;
    put_model();
    put_compiler();
    for (int i = 0; i < times; i++) {
        struct timespec t = {0, 40000000L * i / times};
        int status = 0;
        fresh("tmp");
        fresh("out");
        REQUIRE(test_write_file(test_tmp("out/m.so"), "former", 6));
        pid_t pid = start("out/m.so");
        nanosleep(&t, NULL);
        kill(pid, SIGTERM);
        REQUIRE(waitpid(pid, &status, 0) == pid);
        CHECK_MSG(WIFSIGNALED(status) && WTERMSIG(status) == SIGTERM,
                  "wait status %#x", status);
        if (access(test_tmp("pids"), F_OK) == 0)
            CHECK(within_seconds(10, compilers_stopped));
        CHECK_EQ_INT(test_entries(test_tmp("tmp")), 0);
        CHECK_EQ_INT(test_entries(test_tmp("out")), 1);
        char *text = test_read_file(test_tmp("out/m.so"), NULL);
        CHECK_STR(text, "former");
        free(text);
    }
}

/* ---- limits -------------------------------------------------------------- */

static void limited(const char *limit) {
    char *out;
    fresh("tmp");
    fresh("out");
    put_model();
    int rc = test_command(&out,
                          "%s && TMPDIR='%s' AMPC_LIBNVRTC=none '%s' '%s' -o "
                          "'%s' --loss mse --target cpu:x86-64-v2",
                          limit, test_tmp("tmp"), test_ampc(),
                          test_tmp("m.amp"), test_tmp("out/m.so"));
    CHECK_MSG(rc == 1 || (rc == 0 && test_entries(test_tmp("out")) == 1),
              "%s: status %d\n%s", limit, rc, out);
    CHECK_MSG(rc == 0 || test_entries(test_tmp("out")) == 0, "%s", limit);
    CHECK_MSG(test_entries(test_tmp("tmp")) == 0, "%s\n%s", limit, out);
    free(out);
}

TEST_CASE(leave, limits_on_file_sizes) {
    char limit[64];
    limited("ulimit -f 1");
    limited("ulimit -f 100");
    limited("ulimit -f 1000");
    for (int kb = 2; test_slow() && kb < 2000; kb += 1 + kb / 16) {
        snprintf(limit, sizeof limit, "ulimit -f %d", kb);
        limited(limit);
    }
}

/* The compiler has a stack of its own, whatever the shell's limit. */
TEST_CASE(leave, limits_on_the_stack) {
    enum { DEPTH = 1000 };
    FILE *f = fopen(test_tmp("deep.amp"), "w");
    char *out;
    fresh("tmp");
    put_model();
    REQUIRE(f != NULL);
    fputs("graph forward(%x: f32[2,2]) {\n  param %w: f32[2,2] = 1\n"
          "  %h0 = matmul %x, %w : f32[2,2]\n",
          f);
    for (int i = 0; i < DEPTH; i++)
        fprintf(f, "  %%h%d = tanh %%h%d : f32[2,2]\n", i + 1, i);
    fprintf(f, "  return y=%%h%d\n}\n", DEPTH);
    REQUIRE(fclose(f) == 0);
    int rc = test_command(
        &out,
        "ulimit -s 64 && AMPC_LIBNVRTC=none '%s' '%s' -o '%s' --loss mse "
        "--target c && '%s' check '%s' --loss mse",
        test_ampc(), test_tmp("m.amp"), test_tmp("m.c"), test_ampc(),
        test_tmp("deep.amp"));
    CHECK_MSG(rc == 0, "status %d\n%s", rc, out);
    free(out);
    rc = test_command(
        &out,
        "ulimit -s 64 && TMPDIR='%s' CC=false AMPC_CACHE_DIR=none "
        "'%s' '%s' -o '%s' --loss mse --target cpu:x86-64-v2",
        test_tmp("tmp"), test_ampc(), test_tmp("m.amp"), test_tmp("m.so"));
    CHECK_MSG(rc == 1 && strstr(out, "ulimit -s, is 64 KB"), "status %d\n%s",
              rc, out);
    free(out);
}

#ifndef __SANITIZE_ADDRESS__ /* the sanitizer's shadow memory needs more than  \
                                any of the limits */
TEST_CASE(leave, limits_on_memory) {
    char limit[64];
    for (int kb = 12000; kb < 60000; kb += 8000) {
        snprintf(limit, sizeof limit, "ulimit -v %d", kb);
        limited(limit);
    }
}
#endif

/* ---- our own mistakes ---------------------------------------------------- */

static void half_done(void) {
    static OutFile o; /* the file that must be removed */
    char dir[700];
    snprintf(dir, sizeof dir, "%s/ampc-XXXXXX", test_tmp("tmp"));
    leave_install();
    if (!leave_make_folder(dir)) _exit(10);
    strcat(dir, "/file");
    if (!test_write_file(dir, "x", 1)) _exit(11);
    if (!outfile_open(&o, test_tmp("out/half"), 0666, NULL, NULL) ||
        !outfile_write(&o, "x", 1) || !outfile_ready(&o) || !o.named)
        _exit(12);
    if (test_entries(test_tmp("tmp")) != 1 ||
        test_entries(test_tmp("out")) != 1)
        _exit(13);
}

static void assert_here(void) {
    if (!freopen("/dev/null", "w", stderr)) _exit(14);
    half_done();
    ASSERT(!"a bug");
}

static void assert_while_holding(void) {
    if (!freopen("/dev/null", "w", stderr)) _exit(14);
    half_done();
    leave_hold();
    ASSERT(!"a bug");
}

static void no_memory(void) {
    if (!freopen("/dev/null", "w", stderr)) _exit(14);
    half_done();
    out_of_memory();
}

static void signalled(void) {
    half_done();
    kill(getpid(), SIGTERM);
    for (;;) pause();
}

static int ends(void (*fn)(void)) {
    int status = 0;
    fresh("tmp");
    fresh("out");
    pid_t pid = fork();
    REQUIRE(pid >= 0);
    if (pid == 0) {
        alarm(30);
        fn();
        _exit(20);
    }
    REQUIRE(waitpid(pid, &status, 0) == pid);
    CHECK_EQ_INT(test_entries(test_tmp("tmp")), 0);
    CHECK_EQ_INT(test_entries(test_tmp("out")), 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

TEST_CASE(leave, assertions_and_exhausted_memory) {
    CHECK_EQ_INT(ends(assert_here), 3);
    CHECK_EQ_INT(ends(assert_while_holding), 3);
    CHECK_EQ_INT(ends(no_memory), 1);
    CHECK_EQ_INT(ends(signalled), 128 + SIGTERM);
}
