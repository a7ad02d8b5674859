/* SPDX-License-Identifier: Apache-2.0 */
/* own.c: optimizers and wrappers that a user writes. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ir/fn/optimizer.h"
#include "tests/support/compiled.h"
#include "tests/whole/optimizers/optimizers.h"

static const char own[] =
    "# Signs of a mean.\n"
    "def halved(x) -> y class none { y = x / 2 }\n"
    "optimizer mine(p, g; lr = 0.125, keep = 0.5 from 0 below 1 \"decay\")\n"
    "  source \"us\"\n"
    "  state mean, seen: i32[] = 3\n"
    "{\n"
    "  mean = mean * keep + halved(g)\n"
    "  seen = seen + 1\n"
    "  p = p - sign(mean) * lr\n"
    "}\n";

const char *optimizer_file(const char *name, const char *text) {
    const char *path = test_tmp(name);
    REQUIRE(test_write_file(path, text, strlen(text)));
    return path;
}

TEST_CASE(optimizers, a_user_writes_one) {
    static float mean[NPARAM][MAX_N], p[MAX_N];
    char options[600];
    Case x = {.name = "mine", .letters = "...................."};
    snprintf(options, sizeof options,
             "--precision fp32 --target cpu:x86-64-v2 --optimizer "
             "%s,keep=0.75",
             optimizer_file("mine.amp", own));
    Compiled c = compile_text(param_model, options);
    ampc_session *s = param_begin(&c);
    for (int i = 0; i < 3; i++) {
        Feed f;
        param_feed(&f, i, false);
        step_ok(&c, s, f.in, NPARAM);
        for (int k = 0; k < NPARAM; k++)
            for (int j = 0; j < param_sizes[k]; j++)
                mean[k][j] = mean[k][j] * 0.75f + f.x[k][j] / 2;
    }
    int32_t seen = 0;
    read_var(&c, s, "ampc.opt/a/seen", &seen, sizeof seen, AMPC_DTYPE_I32);
    CHECK_EQ_INT(seen, 6);
    read_var(&c, s, "ampc.opt/m/mean", p, 20 * sizeof *p, AMPC_DTYPE_F32);
    for (int j = 0; j < 20; j++) CHECK_REL(p[j], mean[1][j], 1e-6);
    param_steps(&c, s, &x, 3, STEPS);
    param_resume(&c, s, &x);
    c.api->close(s);
    compiled_close(&c);
}

/* Sums that fp32 would round: 1 + k / 2^40. Of m alone, since a and c have no
   such state. */
TEST_CASE(optimizers, state_in_f64_is_kept_in_f64) {
    static double wide[20];
    char options[600];
    Case x = {.name = "wide", .letters = "...................."};
    snprintf(options, sizeof options,
             "--precision fp32 --target cpu:x86-64-v2 --optimizer %s",
             optimizer_file(
                 "wide.amp",
                 "optimizer wide(p, g; lr = 0.125)\n"
                 "  state sum: f64 = 1 if rank(p) == 2\n{\n"
                 "  if rank(p) == 2 { sum = sum + 9.094947017729282e-13 }\n"
                 "  p = p - g * lr\n}\n"));
    Compiled c = compile_text(param_model, options);
    ampc_session *s = param_begin(&c);
    param_steps(&c, s, &x, 0, 3);
    read_var(&c, s, "ampc.opt/m/sum", wide, sizeof wide, AMPC_DTYPE_F64);
    for (int i = 0; i < 20; i++) CHECK(wide[i] == 1 + 3 * 0x1p-40);
    c.api->close(s);
    compiled_close(&c);
}

void optimizer_refused(const char *optimizer, const char *options,
                       const char *message) {
    const char *path = optimizer_file("refused.amp", param_model);
    char *out;
    CHECK(test_command(
              &out,
              "%s '%s' --quick --target cpu:x86-64-v2 --optimizer '%s' %s "
              "-o '%s' 2>&1",
              test_ampc(), path, optimizer, options,
              test_tmp("refused.so")) != 0);
    CHECK_MSG(strstr(out, message), "%s", out);
    free(out);
}

/* One of each role; the formulas give the numbers. */
TEST_CASE(optimizers, a_user_writes_a_wrapper) {
    char options[600];
    float p[MAX_N];
    const char *after =
        optimizer_file("half.amp", "wrapper after half(p, old; part = 0.5)\n"
                                   "  state steps: i32[]\n"
                                   "{\n  steps = steps + 1\n"
                                   "  p = old + (p - old) * part\n}\n");
    snprintf(options, sizeof options,
             "--precision fp32 --target cpu:x86-64-v2 --optimizer "
             "sgd,lr=0.5 "
             "--wrapper %s,part=0.25 --wrapper sam",
             after);
    Compiled c = compile_text(param_model, options);
    ampc_session *s = param_begin(&c);
    Feed f;
    param_feed(&f, 0, false);
    step_ok(&c, s, f.in, NPARAM);
    read_var(&c, s, "a", p, 3 * sizeof *p, AMPC_DTYPE_F32);
    for (int i = 0; i < 3; i++)
        CHECK_REL(p[i], ((37 * i + 11) % 64 - 32) / 32.0 - 0.125 * f.x[0][i],
                  1e-6);
    c.api->close(s);
    compiled_close(&c);
    static const char *const wrong[][2] = {
        {"wrapper w(p, g) { p = g }", "'before' or 'after'"},
        {"wrapper after w(p; lr = 1.0) { p = p }", "and its value before"},
        {"wrapper after w(p, q; lr = 1.0) { p = q }",
         "a wrapper has no key lr"},
        {"wrapper before w(p, g)\n  state m { p = g }", "has no state"},
        {"wrapper before w(p, g)\n  once (lr, t) -> r { r = lr }\n{ p = g }",
         "has no once"},
        {"wrapper after w(p, old; k: float = a) { p = p * k }",
         "the default of 'k' is not a number"},
        {"wrapper after w(p, old; k: int = 1 // 0) { p = p * k }",
         "the default of 'k' is not a number"},
        {"wrapper after w(p, old; k: float = 1 / 0) { p = p * k }",
         "the default inf of 'k' is not in [0, 1e+38]"},
        {"wrapper after w(p, old; k = 1 from 5 to 9) { p = p * k }",
         "the default 1 of 'k' is not in [5, 9]"},
        {"wrapper before w(p, g) { p = p + grad(p, g) }",
         "works in models alone"},
        {"wrapper after w(p, old) { q = p }", "assigns no value to 'p'"},
        {"wrapper before w(p, g) { }", "assigns no value to 'p'"},
        {"wrapper after w(p, old)\n  once (lr, t) -> r { s = lr }\n"
         "{ p = p * r }",
         "once assigns no value to its result 'r'"},
        {"wrapper after w(p, old) { p = p }\nwrapper after v(p, old) { p = p }",
         "one optimizer or wrapper"},
        {"optimizer w(p, g; lr = 1.0) { p = p - g * lr }",
         "is an optimizer; give it to --optimizer"}};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        snprintf(options, sizeof options, "--wrapper '%s'",
                 optimizer_file("wrong.amp", wrong[i][0]));
        optimizer_refused("sgd", options, wrong[i][1]);
    }
    optimizer_refused(after, "", "is a wrapper; give it to --wrapper");
    static const char *const helps[] = {
        "def help(x) -> y class none { y = x * 2 }\n"
        "wrapper after one(p, old) { p = help(p) }",
        "def help(x) -> y class none { y = x * 3 }\n"
        "wrapper after two(p, old) { p = help(p) }"};
    int at = snprintf(options, sizeof options, "--wrapper '%s'",
                      optimizer_file("one.amp", helps[0]));
    snprintf(options + at, sizeof options - (size_t)at, " --wrapper '%s'",
             optimizer_file("two.amp", helps[1]));
    optimizer_refused("sgd", options,
                      "--wrapper two defines 'help', and so does");
    optimizer_refused("lookahead", "", "is a wrapper; give it to --wrapper");
    optimizer_refused("sgd", "--wrapper foo",
                      "'foo' is not one of sam, lookahead, FILE.amp");
    optimizer_refused("foo", "", "muon, FILE.amp");
    optimizer_refused("sgd", "--wrapper sam --wrapper sam",
                      "both choose where");
    optimizer_refused("sgd", "--wrapper lookahead --wrapper lookahead",
                      "has a state 'slow', too");
    optimizer_refused("schedule_free_adamw", "--wrapper lookahead",
                      "computes itself what evaluation reads");
    optimizer_refused("sgd", "--wrapper sam --precision O2",
                      "moves fp32 parameters");
    optimizer_refused("sgd", "--wrapper sam --loss host",
                      "computes the loss twice");
    optimizer_refused("sgd", "--gradient noise --shard-optimizer",
                      "gradient_noise looks at whole gradients");
}

/* Ranks share the state of optimizers that work element by element; others
   are refused. */
TEST_CASE(optimizers, ranks_share_what_they_can) {
    for (const Fn *f = NULL; (f = optimizer_next(f, ROLE_OPTIMIZER));) {
        static const char *const whole[] = {"lars",      "lamb",
                                            "adafactor", "muon",
                                            "nadam",     "schedule_free_adamw",
                                            "prodigy",   "asgd"};
        bool refused = false;
        for (size_t i = 0; i < sizeof whole / sizeof *whole; i++)
            refused |= !strcmp(whole[i], f->info.text);
        const char *path = optimizer_file("share.amp", param_model);
        int status = test_command(
            NULL,
            "%s '%s' --precision fp32 --quick --target cpu:x86-64-v2 "
            "--shard-optimizer --optimizer %s,lr=0.1%s -o '%s' 2>'%s'",
            test_ampc(), path, f->info.text,
            !strcmp(f->info.text, "lars")   ? ",always_adapt"
            : !strcmp(f->info.text, "adam") ? " --gradient sign"
                                            : "",
            test_tmp("share.so"), test_tmp("share.err"));
        CHECK_MSG((status != 0) == refused, "%s: status %d", f->info.text,
                  status);
    }
    const char *path = optimizer_file("agc.amp", param_model);
    char *out;
    CHECK(
        test_command(&out,
                     "%s '%s' --quick --target cpu:x86-64-v2 --shard-optimizer "
                     "--gradient agc -o '%s' 2>&1",
                     test_ampc(), path, test_tmp("agc.so")) == 2);
    CHECK_MSG(strstr(out, "gradient_agc looks at whole gradients"), "%s", out);
    free(out);
}

/* Updates in the backward pass run before the last gradient is complete. */
TEST_CASE(optimizers, in_backward_refuses_what_needs_all_gradients) {
    static const char *const with[][2] = {
        {"--clip-previous", "--clip-previous needs --clip-norm X"},
        {"--precision fp16", "loss scaling leaves all parameters"},
        {"--precision fp16 --clip-norm 1 --clip-previous",
         "loss scaling leaves all parameters"},
        {"--accumulate 2", "--accumulate keeps the sums"},
        {"--optimizer prodigy", "adds up numbers of all parameters"},
        {"--debug-nonfinite", "--debug-nonfinite repeats a skipped step"}};
    const char *path = optimizer_file("early.amp", param_model);
    for (size_t i = 0; i < sizeof with / sizeof *with; i++) {
        char *out;
        CHECK(test_command(&out,
                           "%s '%s' --quick --target cpu:x86-64-v2 "
                           "--optimizer-in-backward %s -o '%s' 2>&1",
                           test_ampc(), path, with[i][0],
                           test_tmp("early.so")) == 2);
        CHECK_MSG(strstr(out, with[i][1]), "%s: %s", with[i][0], out);
        free(out);
    }
}
