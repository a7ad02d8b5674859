/* SPDX-License-Identifier: Apache-2.0 */
/* failing_memory_test.c: `ampc`, and a module in it, while allocations fail,
   one alone or with all later ones. Each run ends with a message and status
   1, or did not need the memory; existing files stay complete, and nothing
   is left behind. */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "tests/harness.h"

static void put(const char *name, const char *text) {
    REQUIRE(test_write_file(test_tmp(name), text, strlen(text)));
}

static void must(const char *command) {
    char *out;
    int rc = test_command(&out, "cd '%s' && %s", test_tmpdir(), command);
    if (rc) FAIL("%s: status %d\n%s", command, rc, out);
    free(out);
}

/* `ampc ARGS` in the test's folder; at = 0: no failure. */
static int ampc(const char *args, long at, bool all, char **out) {
    return test_command(
        out,
        "cd '%s' && CC='%s' TMPDIR='%s' AMPC_LIBNVRTC=none FAIL_COUNT='%s' "
        "FAIL_AT=%ld %s LD_PRELOAD='%s' '%s' %s",
        test_tmpdir(), test_tmp("compiler"), test_tmp("tmp"), test_tmp("count"),
        at, all ? "FAIL_ON=1" : "",
        test_data_path("tests/support/libfailing_malloc.so"), test_ampc(),
        args);
}

/* Number of its allocations. */
static long allocations(const char *args) {
    char *out;
    int rc = ampc(args, 0, false, &out);
    if (rc) FAIL("%s: status %d\n%s", args, rc, out);
    free(out);
    char *count = test_read_file(test_tmp("count"), NULL);
    REQUIRE(count);
    long n = atol(count);
    free(count);
    return n;
}

/* One failure; returns whether it was refused. */
static bool refused(const char *args, long at, bool all) {
    char *out;
    int rc = ampc(args, at, all, &out);
    CHECK_MSG(rc == 0 || rc == 1, "allocation %ld: status %d\n%s", at, rc, out);
    /* the loader has its own messages */
    if (rc == 1)
        CHECK_MSG(strstr(out, "emory") || strstr(out, "shared object"),
                  "allocation %ld: %s", at, out);
    CHECK_MSG(test_entries(test_tmp("tmp")) == 0, "allocation %ld\n%s", at,
              out);
    free(out);
    return rc == 1;
}

typedef struct Count {
    long allocations, failed, refused;
} Count;

/* At most `places` evenly chosen failures, each alone and with all later ones;
   `before`
   and `after` are commands around each.                                     */
static void sweep(const char *args, long places, const char *before,
                  const char *after, Count *c) {
    must(before);
    long n = allocations(args);
    if (places > n) places = n;
    for (int i = 0; i < 2 * places; i++) {
        must(before);
        c->refused += refused(args, 1 + i / 2 * (n - 1) / (places - 1), i % 2);
        must(after);
    }
    c->allocations += n;
    c->failed += 2 * places;
}

static void print(const Count *c) {
    printf("%ld allocations, %ld failed, %ld refusals\n", c->allocations,
           c->failed, c->refused);
    CHECK(c->refused > c->failed / 2);
}

/* The compiler runs once; later its module is reused. */
static void put_model(void) {
    char text[3000];
    const char *linked = test_tmp("linked.so");
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    SKIP("sanitizers have an allocator of their own");
#endif
    snprintf(text, sizeof text,
             "#!/bin/sh\nif [ -e '%s' ]; then\n"
             "    if [ \"$1\" = -shared ]; then cp '%s' linked.so; exit; fi\n"
             "    while [ \"$1\" != -o ]; do shift; done; echo >\"$2\"\n"
             "elif cc \"$@\"; then\n"
             "    [ \"$1\" != -shared ] || cp linked.so '%s'\n"
             "else exit 1; fi\n",
             linked, linked, linked);
    put("compiler", text);
    REQUIRE(chmod(test_tmp("compiler"), 0700) == 0);
    put("m.amp", "graph forward(%x: f32[4,3]) {\n"
                 "  param %w: f32[3,2] = normal(1, 0.5)\n"
                 "  %y = matmul %x, %w : f32[4,2]\n"
                 "  return %y\n}\n");
    must("mkdir -p tmp out");
}

#define COMPILE "m.amp -o out/m.so --loss mse --target cpu:x86-64-v2"

TEST_CASE(failing_memory, compile) {
    Count c = {0};
    put_model();
    sweep(COMPILE, test_slow() ? 500 : 10, "printf former > out/m.so",
          "test $(ls -A out | wc -l) = 1 && { test $(stat -c %s out/m.so) -gt "
          "10000 || test $(cat out/m.so) = former; }",
          &c);
    print(&c);
}

static void put_npy(const char *name, int columns, size_t bytes) {
    char x[128 + 96] = {0};
    memset(x, ' ', 128);
    int n = snprintf(x + 10, 117,
                     "{'descr': '<f4', 'fortran_order': False, "
                     "'shape': (8, %d), }",
                     columns);
    x[10 + n] = ' ';
    memcpy(x, "\x93NUMPY\1\0v\0", 10);
    x[127] = '\n';
    REQUIRE(test_write_file(test_tmp(name), x, 128 + bytes));
}

#define RUN                                                                    \
    "run out/m.so --feed x=x.npy --feed target=t.npy --threads 1 --quiet "

TEST_CASE(failing_memory, open_step_and_save) {
    static const char *const ways[] = {
        "--steps 3",
        "--steps 3 --resume",
        "--epochs 2 --shuffle --log save/log",
        "--steps 4 --save-every 1 --keep 2",
        "--steps 2 --load former.st --save-weights save/only.st",
        "--steps 2 --tensorboard save --report save/run.html",
        "--epochs 2 --eval --eval-feed x=x.npy --eval-feed target=t.npy "
        "--save-best save/best.st --patience 1",
        "--steps 2 --fetch save --profile save/profile.json",
    };
    char after[900];
    Count c = {0};
    put_model();
    put_npy("x.npy", 3, 96);
    put_npy("t.npy", 2, 64);
    allocations(COMPILE);
    allocations(RUN "--steps 1 --save former.st");
    /* the run resumes from the saved state, the new or the old one */
    snprintf(after, sizeof after,
             "test $(ls -A save | wc -l) -le 6 && '%s' " RUN
             "--resume --steps 4 --save save/w.st",
             test_ampc());
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
        char args[600];
        snprintf(args, sizeof args, RUN "--save save/w.st %s", ways[i]);
        sweep(args, test_slow() ? 500 : 4,
              "rm -rf save && mkdir save && cp former.st save/w.st", after, &c);
    }
    print(&c);
}
