/* SPDX-License-Identifier: Apache-2.0 */
/* runtime_test.c: sessions and the C API on the hand-written plan of
   tiny_module.c: results; runtime/ has the other subjects. */
#define _GNU_SOURCE
#include "tests/support/tiny_session.h"

#include <math.h>
#include <stdint.h>
#include <string.h>
#include <unistd.h>

TEST_CASE(runtime, describes_module) {
    const ampc_api *a = tiny_api();
    ampc_module_info i = {.size = sizeof i};
    ampc_tensor_info t = {.size = sizeof t};
    ampc_variable_info v = {.size = sizeof v};
    ampc_program_info p = {.size = sizeof p};
    REQUIRE(a && a->abi == AMPC_ABI_VERSION && a->size == sizeof *a);
    CHECK_EQ_INT(a->describe(a->module, &i), AMPC_OK);
    CHECK_STR(i.model, "tiny");
    CHECK_EQ_INT(i.batch, TINY_BATCH);
    CHECK(i.trains && i.evaluates && i.predicts && i.accumulate == 1);
    CHECK_EQ_INT(a->program(a->module, "train", &p), AMPC_OK);
    CHECK_EQ_INT(p.ninput, 2);
    CHECK_EQ_INT(a->program(a->module, "micro", &p), AMPC_ERR_UNSUPPORTED);
    CHECK_EQ_INT(a->input(a->module, "train", 1, &t), AMPC_OK);
    CHECK_STR(t.name, "target");
    CHECK(t.rank == 2 && t.shape[1] == 2 && t.bytes == 32);
    CHECK_EQ_INT(a->input(a->module, "train", 2, &t), AMPC_ERR_ARGUMENT);
    CHECK_EQ_INT(a->variable(a->module, 0, &v), AMPC_OK);
    CHECK_STR(v.name, "w");
    CHECK_EQ_INT(v.kind, AMPC_KIND_PARAMETER);
    CHECK_EQ_INT(a->variable(a->module, i.nvariable, &v), AMPC_ERR_ARGUMENT);
    CHECK(ampc_module_api(&tiny_module, 99) == NULL);
}

TEST_CASE(runtime, older_and_smaller_structs) {
    const ampc_api *a = tiny_api();
    ampc_module_info i;
    memset(&i, 0x5a, sizeof i);
    i.size = offsetof(ampc_module_info, info);
    CHECK_EQ_INT(a->describe(a->module, &i), AMPC_OK);
    CHECK_STR(i.model, "tiny");
    CHECK_EQ_INT(i.batch, 0x5a5a5a5a5a5a5a5a);
}

TEST_CASE(runtime, trains) {
    ampc_session *s = open_module(&tiny_module, 2);
    ampc_metrics m = train(s, 0, 1);
    ampc_scaler sc = {.size = sizeof sc};
    double first = m.loss;
    CHECK(first > 0.5 && m.grad_norm > 0 && m.applied && m.updated);
    CHECK_EQ_INT(m.scale, 1024);
    CHECK_NEAR(m.lr, 0.1, 1e-7);
    m = train(s, 1, 400);
    CHECK(m.loss < 1e-3 * first);
    CHECK_EQ_INT(m.step, 401);
    CHECK_EQ_INT(tiny_api()->scaler(s, &sc), AMPC_OK);
    CHECK(sc.step == 401 && sc.skipped == 0 && sc.good == 401 &&
          sc.scale == 1024);
    tiny_api()->close(s);
}

/* Reference by hand: loss of the first batch with w = 1/4, b = 0. */
TEST_CASE(runtime, first_loss_is_right) {
    ampc_session *s = open_module(&tiny_module, 1);
    Batch b;
    batch(&b, 0);
    double want = 0;
    for (int r = 0; r < TINY_BATCH; r++)
        for (int o = 0; o < TINY_OUT; o++) {
            double y = 0;
            for (int i = 0; i < TINY_IN; i++) y += b.x[r * TINY_IN + i] * 0.25;
            want += pow(y - b.target[r * TINY_OUT + o], 2);
        }
    CHECK_REL(train(s, 0, 1).loss, want / (TINY_BATCH * TINY_OUT), 1e-6);
    tiny_api()->close(s);
}

TEST_CASE(runtime, threads_do_not_change_bits) {
    float w[3][6];
    int threads[] = {1, 2, 5};
    for (int i = 0; i < 3; i++) {
        ampc_session *s = open_module(&tiny_module, threads[i]);
        train(s, 0, 50);
        read_w(s, w[i]);
        tiny_api()->close(s);
    }
    CHECK_MEM(w[0], w[1], sizeof w[0]);
    CHECK_MEM(w[0], w[2], sizeof w[0]);
}

TEST_CASE(runtime, skips_steps_that_are_not_finite) {
    ampc_session *s = open_module(&tiny_module, 1);
    ampc_metrics m = {.size = sizeof m};
    float before[6], after[6];
    Batch b;
    train(s, 0, 3);
    read_w(s, before);
    batch(&b, 3);
    b.x[5] = INFINITY;
    CHECK_EQ_INT(tiny_api()->step(s, b.in, 2, &m), AMPC_OK);
    CHECK(!m.applied && m.skipped == 1 && m.step == 3 && m.tried == 4);
    CHECK_EQ_INT(m.bad_forward, 1);
    CHECK_EQ_INT(m.scale, 1024); /* the value used in this step */
    read_w(s, after);
    CHECK_MEM(before, after, sizeof before);
    m = train(s, 3, 1);
    CHECK(m.applied && m.scale == 512);
    tiny_api()->close(s);
}

/* Whichever session reports them, the counters are the host's: good steps,
   steps whose loss is not finite, and steps in which only gradients are not
   finite. */
TEST_CASE(runtime, counters_are_the_hosts_own) {
    static const char steps[] = ".G.LLG...L.G";
    ampc_session *s = open_module(&tiny_module, 1);
    int64_t step = 0, skipped = 0, bad = 0, good = 0;
    for (int i = 0; steps[i]; i++) {
        bool fine = steps[i] == '.';
        ampc_metrics m = {.size = sizeof m};
        ampc_scaler sc = {.size = sizeof sc};
        Batch b;
        batch(&b, i);
        if (!fine) b.x[5] = steps[i] == 'L' ? INFINITY : 1e19F;
        CHECK_EQ_INT(tiny_api()->step(s, b.in, 2, &m), AMPC_OK);
        step += fine;
        skipped += !fine;
        bad += steps[i] == 'L';
        good = fine ? good + 1 : 0;
        CHECK_EQ_INT(m.applied, fine);
        CHECK_EQ_INT(m.step, step);
        CHECK_EQ_INT(m.tried, i + 1);
        CHECK_EQ_INT(m.skipped, skipped);
        CHECK_EQ_INT(m.bad_forward, bad);
        CHECK_EQ_INT(tiny_api()->scaler(s, &sc), AMPC_OK);
        CHECK_EQ_INT(sc.step, step);
        CHECK_EQ_INT(sc.tried, i + 1);
        CHECK_EQ_INT(sc.skipped, skipped);
        CHECK_EQ_INT(sc.bad_forward, bad);
        CHECK_EQ_INT(sc.good, good);
    }
    tiny_api()->close(s);
}

/* Two micro-steps on one batch each equal one step on both: by `step`, and by
   micro_step and update.                                                    */
TEST_CASE(runtime, accumulates) {
    const ampc_api *a = tiny_api();
    ampc_session *s = open_module(&tiny_accumulating, 1);
    ampc_session *t = open_module(&tiny_accumulating, 1);
    ampc_metrics m = {.size = sizeof m}, n = {.size = sizeof n};
    double loss[2];
    float w[6], v[6];
    Batch b;
    for (int round = 0; round < 3; round++) {
        CHECK_EQ_INT(a->step(s, batch(&b, 2 * round), 2, &m), AMPC_OK);
        CHECK(!m.updated && !m.applied && m.step == round && m.tried == round);
        double first = m.loss;
        CHECK_EQ_INT(a->step(s, batch(&b, 2 * round + 1), 2, &m), AMPC_OK);
        CHECK(m.updated && m.applied && m.step == round + 1);
        CHECK_EQ_INT(a->update(t, &n), AMPC_ERR_ARGUMENT);
        CHECK_HAS(a->error(t), "2 micro-steps; 0 were made");
        for (int i = 0; i < 2; i++)
            CHECK_EQ_INT(
                a->micro_step(t, batch(&b, 2 * round + i), 2, &loss[i]),
                AMPC_OK);
        CHECK_EQ_INT(a->micro_step(t, batch(&b, 0), 2, NULL),
                     AMPC_ERR_ARGUMENT);
        CHECK_EQ_INT(a->step(t, batch(&b, 0), 2, &n), AMPC_ERR_ARGUMENT);
        CHECK_HAS(a->error(t), "update is due"); /* and is not made */
        CHECK_EQ_INT(a->update(t, &n), AMPC_OK);
        CHECK_REL(n.loss, (loss[0] + loss[1]) / 2, 1e-6);
        CHECK(loss[0] == first && n.updated && n.applied);
        CHECK(n.loss == m.loss && n.grad_norm == m.grad_norm);
    }
    read_w(s, w);
    read_w(t, v);
    CHECK_MEM(w, v, sizeof w);
    a->close(s);
    a->close(t);
}

TEST_CASE(runtime, evaluates_valid_samples_only) {
    const ampc_api *a = tiny_api();
    ampc_session *s = open_module(&tiny_module, 1);
    ampc_eval e = {.size = sizeof e}, part = {.size = sizeof part};
    Batch b;
    CHECK_EQ_INT(a->evaluate(s, batch(&b, 0), 2, 4, &e), AMPC_OK);
    CHECK_EQ_INT(a->evaluate(s, batch(&b, 0), 2, 3, &part), AMPC_OK);
    for (int i = 0; i < 3; i++) b.x[i] = b.x[9 + i];
    for (int i = 0; i < 2; i++) b.target[i] = b.target[6 + i];
    for (int i = 0; i < 3; i++) b.x[9 + i] = NAN; /* padding */
    CHECK_EQ_INT(a->evaluate(s, b.in, 2, 1, &part), AMPC_OK);
    CHECK_EQ_INT(part.samples, 4);
    CHECK(part.exact && part.count == 0);
    CHECK_EQ_INT(part.loss_den, 8);
    CHECK_REL(part.loss_num, e.loss_num, 1e-9);
    CHECK_REL(e.loss_num / e.loss_den, train(s, 0, 1).loss, 1e-6);
    CHECK_EQ_INT(a->evaluate(s, b.in, 2, 5, &part), AMPC_ERR_ARGUMENT);
    CHECK_EQ_INT(part.samples, 4);
    a->close(s);
}

TEST_CASE(runtime, a_plan_with_more_fixed_steps_than_steps_is_refused) {
    const ampc_api *a = tiny_api();
    PlanRun runs[4];
    PlanTarget plan = *tiny_module.cpu;
    AmpcModule m = tiny_module;
    memcpy(runs, plan.runs, sizeof runs);
    plan.runs = runs;
    m.cpu = &plan;
    for (uint32_t more = 0; more < 2; more++) {
        ampc_session *s = NULL;
        ampc_options o = {.size = sizeof o, .device = "cpu"};
        char text[200] = "";
        runs[0].nfixed = runs[0].nstep + more;
        ampc_status st = a->open((const void *)&m, &o, &s, text, sizeof text);
        CHECK_MSG(st == (more ? AMPC_ERR_INTERNAL : AMPC_OK), "%d %s", (int)st,
                  text);
        if (s) a->close(s);
    }
}

/* If a program returns only a mean over all samples, a partial batch gives
   no information about the valid ones. */
TEST_CASE(runtime, a_mean_of_a_part_of_a_batch_is_not_exact) {
    const ampc_api *a = tiny_api();
    const AmpcModule *micro = &tiny_accumulating; /* its loss is a mean */
    PlanProgram programs[4];
    PlanRun runs[4];
    PlanTarget plan = *tiny_module.cpu;
    AmpcModule m = tiny_module;
    memcpy(programs, m.programs, sizeof programs);
    memcpy(runs, plan.runs, sizeof runs);
    programs[1] = micro->programs[0];
    programs[1].name = "eval";
    runs[1] = micro->cpu->runs[0];
    runs[1].nstep = 2; /* forward, loss */
    m.programs = programs;
    plan.runs = runs;
    m.cpu = &plan;
    ampc_session *s = open_module(&m, 1);
    ampc_eval e = {.size = sizeof e};
    Batch b;
    CHECK_EQ_INT(a->evaluate(s, batch(&b, 0), 2, TINY_BATCH, &e), AMPC_OK);
    double loss = e.loss_num / TINY_BATCH;
    CHECK(e.exact && e.loss_den == TINY_BATCH && loss > 0);
    CHECK_EQ_INT(a->evaluate(s, b.in, 2, TINY_BATCH, &e), AMPC_OK);
    CHECK(e.exact && e.loss_den == 2 * TINY_BATCH);
    CHECK_REL(e.loss_num, 2 * TINY_BATCH * loss, 1e-12);
    CHECK_EQ_INT(a->evaluate(s, b.in, 2, TINY_BATCH - 1, &e), AMPC_OK);
    CHECK(!e.exact && e.loss_den == 2 * TINY_BATCH);
    CHECK_EQ_INT(a->evaluate(s, b.in, 2, TINY_BATCH, &e), AMPC_OK);
    CHECK(!e.exact && e.samples == 4 * TINY_BATCH - 1);
    e = (ampc_eval){.size = sizeof e};
    CHECK_EQ_INT(a->evaluate(s, b.in, 2, 1, &e), AMPC_OK);
    CHECK(!e.exact && e.samples == 1 && e.loss_den == 0);
    CHECK_EQ_INT(a->evaluate(s, b.in, 2, TINY_BATCH, &e), AMPC_OK);
    CHECK(!e.exact);
    CHECK_REL(e.loss_num / e.loss_den, loss, 1e-12);
    a->close(s);
}

TEST_CASE(runtime, accuracy) {
    const ampc_api *a = tiny_api();
    ampc_session *s = open_module(&tiny_labels, 1);
    ampc_eval e = {.size = sizeof e};
    int64_t label[4] = {0, 1, 1, 0};
    float x[12] = {0};
    ampc_input in[] = {ampc_in("target", label, sizeof label, AMPC_DTYPE_I64),
                       ampc_in("x", x, sizeof x, AMPC_DTYPE_F32)};
    CHECK_EQ_INT(a->evaluate(s, in, 2, 3, &e), AMPC_OK);
    CHECK(e.count == 3 && e.correct == 1); /* ties go to class 0 */
    a->close(s);
}

TEST_CASE(runtime, predicts_valid_rows) {
    const ampc_api *a = tiny_api();
    ampc_session *s = open_module(&tiny_module, 1);
    float y[8], all[8];
    Batch b;
    batch(&b, 0);
    ampc_output out = ampc_out("y/out", y, 3 * 8, AMPC_DTYPE_F32);
    for (int i = 0; i < 8; i++) y[i] = 77;
    CHECK_EQ_INT(a->predict(s, b.in, 1, 3, &out, 1), AMPC_OK);
    CHECK_NEAR(y[0], 0.25 * (b.x[0] + b.x[1] + b.x[2]), 1e-6);
    CHECK_EQ_INT(y[6], 77);
    ampc_output view = ampc_out(NULL, all, sizeof all, AMPC_DTYPE_F32);
    CHECK_EQ_INT(a->read_output(s, "y/out", &view), AMPC_OK);
    CHECK_MEM(all, y, 24);
    out.bytes = 23;
    CHECK_EQ_INT(a->predict(s, b.in, 1, 3, &out, 1), AMPC_ERR_ARGUMENT);
    CHECK_HAS(a->error(s), "24 bytes; 23 given");
    out = ampc_out("z", y, 24, AMPC_DTYPE_F32);
    CHECK_EQ_INT(a->predict(s, b.in, 1, 3, &out, 1), AMPC_ERR_ARGUMENT);
    a->close(s);
}

/* A host of a later version has larger entries; the first one gives the
   distance between them. */
TEST_CASE(runtime, larger_output_entries) {
    typedef struct Later {
        ampc_output known;
        char more[40];
    } Later;
    const ampc_api *a = tiny_api();
    ampc_session *s = open_module(&tiny_module, 1);
    float y[2][8] = {{0}};
    Batch b;
    Later out[2];
    batch(&b, 0);
    memset(out, 0x5a, sizeof out);
    for (int i = 0; i < 2; i++) {
        out[i].known = ampc_out("y/out", y[i], sizeof y[i], AMPC_DTYPE_F32);
        out[i].known.size = sizeof *out;
    }
    CHECK_EQ_INT(a->predict(s, b.in, 1, 4, &out[0].known, 2), AMPC_OK);
    CHECK_NEAR(y[0][0], 0.25 * (b.x[0] + b.x[1] + b.x[2]), 1e-6);
    CHECK_MEM(y[1], y[0], sizeof y[0]);
    a->close(s);
}

TEST_CASE(runtime, a_success_takes_the_message_back) {
    const ampc_api *a = tiny_api();
    ampc_session *s = open_module(&tiny_module, 1);
    Batch b;
    batch(&b, 0);
    CHECK_STR(a->error(s), "");
    CHECK_EQ_INT(a->step(s, b.in, 1, NULL), AMPC_ERR_ARGUMENT);
    CHECK(a->error(s)[0] != 0);
    CHECK_EQ_INT(a->step(s, b.in, 2, NULL), AMPC_OK);
    CHECK_STR(a->error(s), "");
    a->close(s);
}
