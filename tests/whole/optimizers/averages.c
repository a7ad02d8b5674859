/* SPDX-License-Identifier: Apache-2.0 */
/* averages.c: averages of parameters in evaluation and files. */
#include <math.h>
#include <stdio.h>

#include "tests/support/compiled.h"
#include "tests/whole/optimizers/optimizers.h"

static double loss_of(const Compiled *c, ampc_session *s) {
    Feed f;
    ampc_eval e = {.size = sizeof e};
    param_feed(&f, 2, false);
    if (c->api->evaluate(s, f.in, NPARAM, 3, &e))
        FAIL("evaluate: %s", c->api->error(s));
    return e.loss_num;
}

static void use_averages(const Compiled *c, ampc_session *s, double yes) {
    REQUIRE(c->api->set_hyper(s, "averaged", yes) == AMPC_OK);
}

/* Evaluation and save_weights use the averages if the host asks for them;
   load reads a checkpoint's averages. */
TEST_CASE(averages, are_what_evaluation_and_files_have_when_asked) {
    Compiled c =
        compile_text(param_model, "--precision fp32 --ema 0.9 --optimizer "
                                  "sgd,lr=0.1 --target cpu:x86-64-v2");
    Case x = {.letters = "...................."};
    ampc_session *s = param_begin(&c), *t = open_threads(&c, 1);
    double before = loss_of(&c, s);
    use_averages(&c, s, 1);
    CHECK(loss_of(&c, s) == before); /* no step, no average */
    param_steps(&c, s, &x, 0, 5);
    double averaged = loss_of(&c, s);
    use_averages(&c, s, 0);
    double plain = loss_of(&c, s);
    CHECK(fabs(plain - averaged) > 0.01);
    const char *weights = test_tmp("weights"), *all = test_tmp("all");
    REQUIRE(c.api->save(s, all) == AMPC_OK);
    REQUIRE(c.api->load(t, all) == AMPC_OK);
    CHECK(loss_of(&c, t) == plain);
    use_averages(&c, t, 1);
    REQUIRE(c.api->load(t, all) == AMPC_OK);
    CHECK(loss_of(&c, t) == averaged);
    use_averages(&c, s, 1);
    REQUIRE(c.api->save_weights(s, weights) == AMPC_OK);
    use_averages(&c, t, 0);
    REQUIRE(c.api->load(t, weights) == AMPC_OK);
    CHECK(loss_of(&c, t) == averaged);
    c.api->close(s);
    c.api->close(t);
    compiled_close(&c);
}

/* An optimizer's state `evaluated`, which no host asks for. */
TEST_CASE(averages, evaluated_is_what_evaluation_and_files_have) {
    Compiled c = compile_text(
        param_model, "--precision fp32 --optimizer "
                     "schedule_free_adamw,lr=0.1 --target cpu:x86-64-v2");
    Case x = {.letters = "...................."};
    ampc_session *s = param_begin(&c), *t = open_threads(&c, 1);
    double before = loss_of(&c, s), want = 0;
    Feed f;
    param_steps(&c, s, &x, 0, 5);
    param_feed(&f, 2, false);
    for (int k = 0; k < NPARAM; k++) {
        float p[MAX_N];
        char name[40];
        snprintf(name, sizeof name, "ampc.opt/%s/evaluated", param_names[k]);
        read_var(&c, s, name, p, (size_t)param_sizes[k] * sizeof *p,
                 AMPC_DTYPE_F32);
        for (int i = 0; i < param_sizes[k]; i++)
            want += (double)f.x[k][i] * p[i];
    }
    double there = loss_of(&c, s);
    CHECK(fabs(there - before) > 0.01);
    CHECK_REL(there, 3 * want, 1e-5);
    const char *weights = test_tmp("weights"), *all = test_tmp("all");
    REQUIRE(c.api->save(s, all) == AMPC_OK);
    REQUIRE(c.api->load(t, all) == AMPC_OK);
    CHECK(loss_of(&c, t) == there);
    REQUIRE(c.api->save_weights(s, weights) == AMPC_OK);
    REQUIRE(c.api->load(t, weights) == AMPC_OK);
    CHECK(loss_of(&c, t) == there);
    c.api->close(t);
    t = open_threads(&c, 1);
    REQUIRE(c.api->resume(t, all) == AMPC_OK);
    CHECK(loss_of(&c, t) == there);
    c.api->close(s);
    c.api->close(t);
    compiled_close(&c);
}

TEST_CASE(averages, evaluated_is_one_and_as_its_parameter) {
    optimizer_refused("schedule_free_adamw", "--ema 0.9",
                      "--optimizer schedule_free_adamw computes itself what "
                      "evaluation reads");
    optimizer_refused(optimizer_file("own.amp",
                                     "optimizer own(p, g; lr = 0.1)\n"
                                     "  state evaluated[2]\n"
                                     "{ p = p - g * lr }\n"),
                      "", ":2:9: error: 'evaluated' stands in for the");
}
