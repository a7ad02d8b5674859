/* SPDX-License-Identifier: Apache-2.0 */
/* schedule_values_test.c: the learning rate of each step of every schedule,
   compared with the rates that models/record/schedule_values.py records with
   PyTorch and transformers. */
#define _POSIX_C_SOURCE 200809L
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/compiled.h"
#include "tests/tolerance.h"

static const char model[] = "graph forward(%x: f32[1]) {\n"
                            "  param %w: f32[1] = 1\n"
                            "  %y = mul %x, %w : f32[1]\n"
                            "  %loss = reduce_mean %y {axes=[0], keepdims=0} : "
                            "f32[]\n"
                            "  return %loss\n}\n";

static void run(void *arg) {
    char *row = strdup(arg), *save = NULL, options[600];
    const char *schedule = strtok_r(row, "|", &save);
    int first = atoi(strtok_r(NULL, "|", &save)), n = 0;
    snprintf(options, sizeof options,
             "--precision fp32 --target cpu:x86-64-v2 --loss auto --optimizer "
             "sgd,lr=0.1 --lr-schedule %s",
             strncmp(schedule, "models/", 7) ? schedule
                                             : test_data_path(schedule));
    Compiled c = compile_text(model, options);
    ampc_session *s = open_threads(&c, 1);
    float x = 1;
    ampc_input in = ampc_in("x", &x, sizeof x, AMPC_DTYPE_F32);
    for (int i = 0; i < first; i++) step_ok(&c, s, &in, 1);
    for (char *p; (p = strtok_r(NULL, "|", &save)); n++) {
        double lr = step_ok(&c, s, &in, 1).lr, want = atof(p);
        CHECK_MSG(fabs(lr - want) <= 1e-7 * 0.1 + 1e-6 * want,
                  "%s: step %d has %.9g, not %.9g", schedule, first + n + 1, lr,
                  want);
    }
    CHECK(n >= 20);
    c.api->close(s);
    compiled_close(&c);
    free(row);
}

/* The message for a text that does not parse names its place. */
TEST_CASE(schedules, mistakes_have_a_place) {
    static const char *const bad[][2] = {
        {"def f(lr, i, totl) -> r class none { r = lr }", ":1: error: operand "
                                                          "'totl' of 'f'"},
        {"def f(lr, i) -> r { r = lr }", ":1:1: error: 'f' has no class"},
        {"def f(lr) -> r class none { r = lr }", "takes no learning rate and"},
        {"def f(lr, i) -> r class none {\n  r = lr * foo(i)\n}",
         ":2:12: error: 'foo' is not an op"},
        {"def f(lr, i) -> r class none { r = reshape(lr, shape=[1, 1]) }",
         "'r' becomes f64[1,1], was f64[]"},
        {"def f(lr, i; k: float) -> r class none { r = lr * k }",
         "'k' of 'f' is not a number with a default"}};
    REQUIRE(test_write_file(test_tmp("m.amp"), model, strlen(model)));
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        char *out;
        REQUIRE(
            test_write_file(test_tmp("s.amp"), bad[i][0], strlen(bad[i][0])));
        int rc = test_command(&out,
                              "cd '%s' && '%s' check m.amp --loss auto "
                              "--lr-schedule s.amp 2>&1",
                              test_tmpdir(), test_ampc());
        CHECK_EQ_INT(rc, 1);
        CHECK_HAS(out, bad[i][1]);
        CHECK_HAS(out, "s.amp:");
        free(out);
    }
}

static void add_rows(void) {
    static char *rows[100];
    char *text =
             test_read_file(test_data_path("tests/schedules/values.csv"), NULL),
         *save = NULL, name[100];
    int n = 0;
    for (char *line = strtok_r(text, "\n", &save); line && n < 100;
         line = strtok_r(NULL, "\n", &save)) {
        rows[n] = strdup(line);
        snprintf(name, sizeof name, "%.*s", (int)strcspn(line, "|"), line);
        for (char *p = name; *p; p++)
            if (strchr(",=./", *p)) *p = '_';
        harness_register("schedule_values", strdup(name), run, rows[n++]);
    }
    free(text);
}
TEST_REGISTRAR(add_rows);
