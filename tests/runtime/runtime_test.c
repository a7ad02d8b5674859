/* SPDX-License-Identifier: Apache-2.0 */
/* runtime_test.c: sessions and the C API on the hand-written plan of
   tiny_module.c: results, messages, allocation failure, threads, fork.      */
#define _GNU_SOURCE
#include "tests/harness.h"

#include <locale.h>
#include <math.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "runtime/base/json.h"
#include "runtime/api/session.h"
#include "tests/support/ranks.h"
#include "tests/support/tiny_module.h"

typedef struct Batch {
    float x[TINY_BATCH * TINY_IN], target[TINY_BATCH * TINY_OUT];
    ampc_input in[2];
} Batch;

static const ampc_input *batch(Batch *b, int i) {
    tiny_batch(i, b->x, b->target);
    b->in[0] = ampc_in("x", b->x, sizeof b->x, AMPC_DTYPE_F32);
    b->in[1] = ampc_in("target", b->target, sizeof b->target, AMPC_DTYPE_F32);
    return b->in;
}

static ampc_session *open_module(const AmpcModule *m, int threads) {
    ampc_options o = {.size = sizeof o, .threads = threads};
    ampc_session *s = NULL;
    char err[256];
    ampc_status status =
        tiny_api()->open(tiny_handle(m), &o, &s, err, sizeof err);
    if (!CHECK_MSG(status == AMPC_OK, "%s", err)) harness_leave();
    return s;
}

static ampc_metrics train(ampc_session *s, int first, int n) {
    ampc_metrics m = {.size = sizeof m};
    Batch b;
    for (int i = 0; i < n; i++)
        CHECK_EQ_INT(tiny_api()->step(s, batch(&b, first + i), 2, &m), AMPC_OK);
    return m;
}

static void read_w(ampc_session *s, float w[6]) {
    ampc_output out = ampc_out(NULL, w, 24, AMPC_DTYPE_F32);
    CHECK_EQ_INT(tiny_api()->read_variable(s, "w", &out), AMPC_OK);
}

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
    CHECK_EQ_INT(m.scale, 1024); /* the one used in this step */
    read_w(s, after);
    CHECK_MEM(before, after, sizeof before);
    m = train(s, 3, 1);
    CHECK(m.applied && m.scale == 512);
    tiny_api()->close(s);
}

/* Whichever session reports them, the counters are the host's: good steps,
   steps whose loss is not finite, and steps with only gradients that are not
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
        CHECK(!m.updated);
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

/* If a program gives one mean over all samples, a batch that is not full tells
   nothing about the valid ones. */
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

/* A host of a later version has larger entries; they lie as far apart as the
   first one says. */
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

TEST_CASE(runtime, wrong_inputs_have_messages) {
    const ampc_api *a = tiny_api();
    ampc_session *s = open_module(&tiny_module, 1);
    int64_t shape[] = {4, 2};
    float before[6], after[6];
    Batch b;
    read_w(s, before);
    batch(&b, 0);
    CHECK_EQ_INT(a->step(s, b.in, 1, NULL), AMPC_ERR_ARGUMENT);
    CHECK_HAS(a->error(s), "1 inputs given, 2 needed");
    CHECK_HAS(a->error(s), "x, target");
    b.in[0].bytes--;
    CHECK_EQ_INT(a->step(s, b.in, 2, NULL), AMPC_ERR_ARGUMENT);
    CHECK_HAS(a->error(s), "'x': 47 bytes given, 48 needed (f32[4,3])");
    b.in[0].bytes += 2;
    CHECK_EQ_INT(a->step(s, b.in, 2, NULL), AMPC_ERR_ARGUMENT);
    CHECK_HAS(a->error(s), "'x': 49 bytes given, 48 needed (f32[4,3])");
    batch(&b, 0);
    b.in[0].dtype = AMPC_DTYPE_F64;
    CHECK_EQ_INT(a->step(s, b.in, 2, NULL), AMPC_ERR_ARGUMENT);
    CHECK_HAS(a->error(s), "dtype f64 given, f32[4,3] needed");
    batch(&b, 0);
    b.in[0].rank = 2;
    b.in[0].shape = shape;
    CHECK_EQ_INT(a->step(s, b.in, 2, NULL), AMPC_ERR_ARGUMENT);
    batch(&b, 0);
    b.in[1].name = "x";
    CHECK_EQ_INT(a->step(s, b.in, 2, NULL), AMPC_ERR_ARGUMENT);
    CHECK_HAS(a->error(s), "twice given: input 'x'");
    b.in[1].name = "labels";
    CHECK_EQ_INT(a->step(s, b.in, 2, NULL), AMPC_ERR_ARGUMENT);
    batch(&b, 0);
    b.in[0].data = (const char *)b.x + 1;
    CHECK_EQ_INT(a->step(s, b.in, 2, NULL), AMPC_ERR_ARGUMENT);
    CHECK_HAS(a->error(s), "not aligned");
    b.in[0].data = NULL;
    CHECK_EQ_INT(a->step(s, b.in, 2, NULL), AMPC_ERR_ARGUMENT);
    CHECK_EQ_INT(a->micro_step(s, b.in, 2, NULL), AMPC_ERR_UNSUPPORTED);
    CHECK_EQ_INT(a->vjp(s, b.in, 2), AMPC_ERR_UNSUPPORTED);
    CHECK_EQ_INT(a->step(NULL, b.in, 2, NULL), AMPC_ERR_ARGUMENT);
    read_w(s, after);
    CHECK_MEM(before, after, sizeof before);
    b.in[0].name = b.in[1].name = NULL; /* by position */
    b.in[0].data = b.x;
    CHECK_EQ_INT(a->step(s, b.in, 2, NULL), AMPC_OK);
    a->close(s);
}

/* Variables of every type begin with their number, past the part that is
   written at once. */
TEST_CASE(runtime, variables_of_every_type_begin_as_given) {
    enum { COUNT = 33001 };
    static const struct {
        uint32_t dtype;
        double fill;
        uint64_t bits;
    } rows[] = {{AMPC_BOOL, 7, 1},
                {AMPC_U8, 200, 200},
                {AMPC_I8, -56, 200},
                {AMPC_U16, 40000, 40000},
                {AMPC_I16, -2, 0xfffe},
                {AMPC_U32, 3e9, 3000000000},
                {AMPC_I32, -2, 0xfffffffe},
                {AMPC_U64, 9007199254740992.0, 9007199254740992},
                {AMPC_I64, -2, UINT64_MAX - 1},
                {AMPC_F16, -2, 0xc000},
                {AMPC_BF16, -2, 0xc000},
                {AMPC_F32, -2, 0xc0000000},
                {AMPC_F64, -2, UINT64_C(0xc000000000000000)},
                {AMPC_F32, 0, 0}};
    PlanVar vars[32];
    AmpcModule m = tiny_module;
    memcpy(vars, m.vars, m.nvar * sizeof *vars);
    m.vars = vars;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        size_t size = dtype_bytes(rows[i].dtype);
        vars[tiny_module.nvar] = (PlanVar){.name = "v",
                                           .kind = PLAN_BUFFER,
                                           .dtype = rows[i].dtype,
                                           .stored_dtype = rows[i].dtype,
                                           .rank = 1,
                                           .dim = {COUNT},
                                           .bytes = COUNT * size,
                                           .init = -1,
                                           .fill = rows[i].fill};
        m.nvar = tiny_module.nvar + 1;
        ampc_session *s = open_module(&m, 1);
        const char *p = cpu_var(s, tiny_module.nvar);
        int wrong = 0;
        for (int k = 0; k < COUNT; k++)
            wrong += memcmp(p + (size_t)k * size, &rows[i].bits, size) != 0;
        CHECK_MSG(!wrong, "%s: %d are wrong", dtype_name(rows[i].dtype), wrong);
        tiny_api()->close(s);
    }
}

/* Impossible arguments: each call reports them and changes nothing. A refused
   call leaves its message in the session; a successful one leaves none. */
TEST_CASE(runtime, wrong_arguments_have_messages) {
    const ampc_api *a = tiny_api();
    ampc_session *s = open_module(&tiny_module, 1);
    ampc_session *fresh = open_module(&tiny_module, 1);
    ampc_session *micro = open_module(&tiny_accumulating, 1);
    float w[6] = {0}, before[6], after[6], one[1] = {2}, y[8];
    int64_t shape[] = {3, 2}, other[] = {2, 3};
    double x;
    void *data;
    Batch b;
    ampc_metrics m = {.size = 0};
    ampc_eval e = {.size = 0}, sums = {.size = sizeof sums};
    ampc_input in = ampc_in(NULL, w, sizeof w, AMPC_DTYPE_F32);
    ampc_output out = ampc_out("w", w, sizeof w, AMPC_DTYPE_F32);
    ampc_weights from = {.size = sizeof from - 1};
    ampc_input more = in, less = in, wide = in, flat = in, deep = in;
    ampc_input turned = in, short_in = in, nothing = in, number = in;
    ampc_output unsized = out, small = out, none = out, odd = out;
    ampc_output two[2] = {ampc_out("y/out", y, sizeof y, AMPC_DTYPE_F32),
                          ampc_out(NULL, y, sizeof y, AMPC_DTYPE_F32)};
    more.bytes++, less.bytes--, wide.dtype = AMPC_DTYPE_F64;
    flat.rank = 1, flat.shape = shape, deep.rank = 2, deep.shape = NULL;
    turned.rank = 2, turned.shape = other, short_in.size--, nothing.data = NULL;
    number.data = one, number.bytes = sizeof one;
    unsized.size = 0, small.bytes--, none.data = NULL, odd.dtype = 0;
    batch(&b, 0);
    read_w(s, before);
#define REFUSED(call, status, text)                                            \
    do {                                                                       \
        CHECK_EQ_INT(a->call, status);                                         \
        CHECK_HAS(a->error(s), text);                                          \
    } while (0)
#define WRONG(call, text) REFUSED(call, AMPC_ERR_ARGUMENT, text)
#define CANNOT(call, text)                                                     \
    REFUSED(call, AMPC_ERR_UNSUPPORTED, "this module cannot " text "; its")
    WRONG(step(s, b.in, 2, &m), "ampc_metrics.size is not set");
    WRONG(sync(s, &m), "ampc_metrics.size is not set");
    WRONG(evaluate(s, b.in, 2, 4, &e), "ampc_eval.size is not set");
    WRONG(evaluate(s, b.in, 2, 5, &sums), "5 valid samples in a batch of 4");
    WRONG(evaluate(s, b.in, 2, -1, &sums), "-1 valid samples in a batch of 4");
    WRONG(scaler(s, &(ampc_scaler){.size = 0}), "ampc_scaler.size is not set");
    WRONG(bad_data(s, &(ampc_bad_data){.size = 0}), "ampc_bad_data.size is");
    WRONG(nonfinite(s, &(ampc_nonfinite){.size = 0}), "ampc_nonfinite.size is");
    WRONG(device(s, &(ampc_device_info){.size = 0}), "ampc_device_info.size");
    WRONG(load_weights(s, NULL), "ampc_weights.size is not set");
    WRONG(load_weights(s, &from), "ampc_weights.size is not set");
    WRONG(predict(s, b.in, 1, 4, NULL, 1), "ampc_output.size is not set");
    WRONG(predict(s, b.in, 1, 4, &unsized, 1), "ampc_output.size is not set");
    WRONG(predict(s, b.in, 1, 4, two, 2), "no output '(by position)'");
    WRONG(predict(s, b.in, 1, 4, &out, 1), "no output 'w'");
    WRONG(predict(s, b.in, 1, 5, two, 1), "5 valid samples in a batch of 4");
    WRONG(read_output(s, "y/out", two),
          "no output 'y/out' of the program that");
    WRONG(read_variable(s, "z", &out), "no variable 'z'");
    WRONG(read_variable(s, NULL, &out), "no variable ''");
    WRONG(read_variable(s, "w", &unsized), "ampc_output.size is not set");
    WRONG(read_variable(s, "w", &small), "needs 24 bytes; 23 given");
    WRONG(read_variable(s, "w", &none), "needs 24 bytes; 0 given");
    WRONG(read_variable(s, "w", &odd), "'w' is f32; bool was asked for");
    WRONG(write_variable(s, "z", &in), "no variable 'z'");
    WRONG(write_variable(s, NULL, &in), "no variable ''");
    WRONG(write_variable(s, "ampc.lr", &number), "'ampc.lr': set_hyper sets");
    WRONG(write_variable(s, "w.bf16", &in), "'w.bf16' is read-only");
    WRONG(write_variable(s, "w", &short_in), "ampc_input.size is not set");
    WRONG(write_variable(s, "w", &more),
          "is f32[3,2], 24 bytes: the data given differ");
    WRONG(write_variable(s, "w", &less),
          "is f32[3,2], 24 bytes: the data given differ");
    WRONG(write_variable(s, "w", &wide),
          "is f32[3,2], 24 bytes: the data given differ");
    WRONG(write_variable(s, "w", &flat),
          "is f32[3,2], 24 bytes: the data given differ");
    WRONG(write_variable(s, "w", &deep),
          "is f32[3,2], 24 bytes: the data given differ");
    WRONG(write_variable(s, "w", &turned),
          "is f32[3,2], 24 bytes: the data given differ");
    WRONG(write_variable(s, "w", &nothing),
          "is f32[3,2], 24 bytes: the data given differ");
    one[0] = -1;
    WRONG(write_variable(s, "ampc.scale", &number),
          "'ampc.scale' cannot be -1");
    WRONG(set_hyper(s, "z", 1),
          "unknown hyper-parameter 'z'; the module has: lr");
    WRONG(set_hyper(s, NULL, 1),
          "unknown hyper-parameter ''; the module has: lr");
    WRONG(set_hyper(s, "lr", INFINITY), "'lr' (f32) cannot be inf");
    WRONG(set_hyper(s, "seed", 2.5), "'seed' (i64) cannot be 2.5");
    WRONG(get_hyper(s, "z", &x), "unknown hyper-parameter 'z'");
    WRONG(get_hyper(s, "lr", NULL), "unknown hyper-parameter 'lr'");
    WRONG(set_cursor(s, NULL), "the cursor is not JSON");
    WRONG(set_cursor(s, "{"), "the cursor is not JSON");
    WRONG(save(s, ""), "no path given");
    WRONG(load(s, NULL), "no path given");
    WRONG(resume(s, ""), "no path given");
    for (int i = 0; i < 2; i++) {
        const char *const path = i ? "" : NULL;
        WRONG(load_weights(s, &((ampc_weights){.size = sizeof(ampc_weights),
                                               .paths = &path,
                                               .npath = 1})),
              "no path given");
    }
    WRONG(save_weights(s, NULL), "no path given");
    WRONG(stage(s, "train", 0, NULL), "data is NULL");
    WRONG(stage(s, "train", 2, &data), "program 'train' has no input 2");
    REFUSED(stage(s, "micro", 0, &data), AMPC_ERR_UNSUPPORTED,
            "this module has no program 'micro'");
    WRONG(objective(s, "z"), "no objective 'z'");
    WRONG(objective(s, NULL), "no objective ''");
    CANNOT(micro_step(s, b.in, 2, NULL), "make micro-steps");
    CANNOT(update(s, NULL), "accumulate");
    CANNOT(vjp(s, b.in, 2), "take gradients from the host");
    CANNOT(outputs(s, b.in, 1, 4, two, 1),
           "give outputs to a loss of the host's");
    CHECK_EQ_INT(a->stage(s, "train", 1, &data), AMPC_OK);
    CHECK(data == NULL);
    CHECK_STR(a->error(s), "");
    deep.shape = shape;
    read_w(s, after);
    CHECK_MEM(before, after, sizeof before);
    CHECK(train(s, 0, 3).loss == train(fresh, 0, 3).loss);
    CHECK_EQ_INT(a->write_variable(s, "w", &deep), AMPC_OK);
    a->close(s);
    s = micro;
    WRONG(update(s, NULL), "update needs 2 micro-steps; 0 were made");
    CHECK_EQ_INT(a->micro_step(s, b.in, 2, NULL), AMPC_OK);
    WRONG(update(s, NULL), "update needs 2 micro-steps; 1 were made");
    CHECK_EQ_INT(a->micro_step(s, b.in, 2, NULL), AMPC_OK);
    WRONG(micro_step(s, b.in, 2, NULL),
          "2 micro-steps were made: update is due");
    CHECK_EQ_INT(a->update(s, NULL), AMPC_OK);
    CHECK_EQ_INT(a->micro_step(s, b.in, 2, NULL), AMPC_OK);
    a->close(s);
    a->close(fresh);
}

TEST_CASE(runtime, hyper_parameters) {
    const ampc_api *a = tiny_api();
    ampc_session *s = open_module(&tiny_module, 1);
    double lr;
    CHECK_EQ_INT(a->set_hyper(s, "lr", 0.5), AMPC_OK);
    CHECK_EQ_INT(a->get_hyper(s, "ampc.lr", &lr), AMPC_OK);
    CHECK(lr == 0.5 && train(s, 0, 1).lr == 0.5);
    CHECK_EQ_INT(a->set_hyper(s, "lr", NAN), AMPC_ERR_ARGUMENT);
    CHECK_EQ_INT(a->set_hyper(s, "seed", 0.5), AMPC_ERR_ARGUMENT);
    CHECK_EQ_INT(a->set_hyper(s, "seed", 5), AMPC_OK);
    CHECK_EQ_INT(a->set_hyper(s, "w", 1), AMPC_ERR_ARGUMENT);
    CHECK_HAS(a->error(s), "the module has: lr seed");
    a->close(s);
}

static void read_copy(ampc_session *s, uint16_t w16[6]) {
    ampc_output out = ampc_out(NULL, w16, 12, AMPC_DTYPE_BF16);
    CHECK_EQ_INT(tiny_api()->read_variable(s, "w.bf16", &out), AMPC_OK);
}

TEST_CASE(runtime, writes_refresh_the_16_bit_copies) {
    const ampc_api *a = tiny_api();
    ampc_session *s = open_module(&tiny_module, 1);
    float w[6] = {1, 2, 3, 4, 5, 6}, y[8];
    uint16_t w16[6];
    Batch b;
    ampc_output out = ampc_out("y/out", y, sizeof y, AMPC_DTYPE_F32);
    ampc_input in = ampc_in(NULL, w, sizeof w, AMPC_DTYPE_F32);
    CHECK_EQ_INT(a->predict(s, batch(&b, 0), 1, 4, &out, 1), AMPC_OK);
    read_copy(s, w16);
    CHECK_EQ_INT(w16[0], 0x3e80); /* 0.25 */
    CHECK_EQ_INT(a->write_variable(s, "w", &in), AMPC_OK);
    CHECK_EQ_INT(a->predict(s, b.in, 1, 4, &out, 1), AMPC_OK);
    read_copy(s, w16);
    CHECK_EQ_INT(w16[0], 0x3f80);
    CHECK_EQ_INT(w16[5], 0x40c0);
    in.bytes = 20;
    CHECK_EQ_INT(a->write_variable(s, "w", &in), AMPC_ERR_ARGUMENT);
    CHECK_HAS(a->error(s), "f32[3,2], 24 bytes");
    CHECK_EQ_INT(a->write_variable(s, "w.bf16", &in), AMPC_ERR_ARGUMENT);
    CHECK_HAS(a->error(s), "read-only");
    CHECK_EQ_INT(a->write_variable(s, "ampc.lr", &in), AMPC_ERR_ARGUMENT);
    CHECK_HAS(a->error(s), "set_hyper");
    CHECK_EQ_INT(a->write_variable(s, "nope", &in), AMPC_ERR_ARGUMENT);
    a->close(s);
}

TEST_CASE(runtime, gradients_can_be_read) {
    const ampc_api *a = tiny_api();
    ampc_session *s = open_module(&tiny_accumulating, 1);
    float g[6];
    ampc_output out = ampc_out(NULL, g, sizeof g, AMPC_DTYPE_F32);
    Batch b;
    CHECK_EQ_INT(a->read_variable(s, "ampc.grad/w", &out), AMPC_OK);
    CHECK(g[0] == 0 && g[5] == 0);
    CHECK_EQ_INT(a->micro_step(s, batch(&b, 0), 2, NULL), AMPC_OK);
    CHECK_EQ_INT(a->read_variable(s, "ampc.grad/w", &out), AMPC_OK);
    CHECK(g[0] != 0);
    a->close(s);
}

/* With a learning rate of 0 every round of micro-steps is alike. */
TEST_CASE(runtime, gradients_start_from_zero) {
    const ampc_api *a = tiny_api();
    ampc_session *s = open_module(&tiny_accumulating, 1);
    ampc_metrics m[2] = {{.size = sizeof *m}, {.size = sizeof *m}};
    Batch b;
    CHECK_EQ_INT(a->set_hyper(s, "lr", 0), AMPC_OK);
    for (int i = 0; i < 4; i++)
        CHECK_EQ_INT(a->step(s, batch(&b, i % 2), 2, &m[i / 2]), AMPC_OK);
    CHECK(m[0].grad_norm > 0 && m[0].grad_norm == m[1].grad_norm);
    CHECK(m[0].loss == m[1].loss);
    a->close(s);
}

TEST_CASE(runtime, inputs_may_move) {
    ampc_session *s = open_module(&tiny_module, 1);
    ampc_metrics m[4];
    Batch b[2];
    CHECK_EQ_INT(tiny_api()->set_hyper(s, "lr", 0), AMPC_OK);
    for (int i = 0; i < 4; i++) {
        m[i].size = sizeof *m;
        tiny_api()->step(s, batch(&b[i % 2], i % 2), 2, &m[i]);
    }
    CHECK(m[0].loss != m[1].loss);
    CHECK(m[0].loss == m[2].loss && m[1].loss == m[3].loss);
    tiny_api()->close(s);
}

TEST_CASE(runtime, one_input_may_move_alone) {
    ampc_session *s = open_module(&tiny_module, 1);
    ampc_metrics m[4];
    Batch b[2];
    CHECK_EQ_INT(tiny_api()->set_hyper(s, "lr", 0), AMPC_OK);
    for (int i = 0; i < 2; i++) batch(&b[i], i);
    for (int i = 0; i < 4; i++) {
        ampc_input in[] = {b[0].in[0], b[i % 2].in[1]};
        m[i].size = sizeof *m;
        CHECK_EQ_INT(tiny_api()->step(s, in, 2, &m[i]), AMPC_OK);
    }
    CHECK(m[0].loss != m[1].loss);
    CHECK(m[0].loss == m[2].loss && m[1].loss == m[3].loss);
    tiny_api()->close(s);
}

#ifdef __SSE__
/* Zeros for subnormals, towards zero: kernels compute otherwise. */
TEST_CASE(runtime, the_host_keeps_its_way_to_round) {
    enum { OWN = 0xffc0, FLAGS = 0x3f };
    ampc_session *s = open_module(&tiny_module, 2);
    ampc_metrics m = {.size = sizeof m};
    Batch b;
    unsigned before = __builtin_ia32_stmxcsr();
    __builtin_ia32_ldmxcsr(OWN);
    ampc_status status = tiny_api()->step(s, batch(&b, 0), 2, &m);
    unsigned after = __builtin_ia32_stmxcsr();
    __builtin_ia32_ldmxcsr(before);
    CHECK_EQ_INT(status, AMPC_OK);
    CHECK_EQ_INT(after & ~(unsigned)FLAGS, OWN);
    tiny_api()->close(s);
}
#endif

/* ---- opening ------------------------------------------------------------- */

TEST_CASE(runtime, open_refuses) {
    const ampc_api *a = tiny_api();
    ampc_session *s = (ampc_session *)&s;
    ampc_options o = {.size = sizeof o, .device = "cuda:1"};
    char err[80];
    CHECK_EQ_INT(a->open(a->module, &o, &s, err, sizeof err),
                 AMPC_ERR_UNSUPPORTED);
    CHECK(s == NULL);
    CHECK_HAS(err, "CPU only");
    CHECK_EQ_INT(a->open(a->module, &o, &s, err, 10), AMPC_ERR_UNSUPPORTED);
    CHECK_EQ_INT(strlen(err), 9);
    CHECK_EQ_INT(a->open(a->module, &o, &s, NULL, 0), AMPC_ERR_UNSUPPORTED);
    o = (ampc_options){.size = sizeof o, .device = "tpu"};
    CHECK_EQ_INT(a->open(a->module, &o, &s, err, sizeof err),
                 AMPC_ERR_ARGUMENT);
    o = (ampc_options){.size = sizeof o, .threads = -1};
    CHECK_EQ_INT(a->open(a->module, &o, &s, err, sizeof err),
                 AMPC_ERR_ARGUMENT);
    o = (ampc_options){.size = sizeof o, .stream = &o};
    CHECK_EQ_INT(a->open(a->module, &o, &s, err, sizeof err),
                 AMPC_ERR_ARGUMENT);
    o = (ampc_options){.size = 0};
    CHECK_EQ_INT(a->open(a->module, &o, &s, err, sizeof err),
                 AMPC_ERR_ARGUMENT);
    CHECK_EQ_INT(a->open(NULL, NULL, &s, err, sizeof err), AMPC_ERR_ARGUMENT);
    a->close(NULL);
}

static void *plain_alloc(void *ctx, size_t bytes, size_t align) {
    (void)ctx;
    return aligned_alloc(align, (bytes + align - 1) / align * align);
}

static void plain_free(void *ctx, void *p, size_t bytes) {
    (void)ctx, (void)bytes;
    free(p);
}

/* Values that options cannot have, beside values that they can. */
TEST_CASE(runtime, options_have_bounds) {
    const ampc_api *a = tiny_api();
    const struct {
        ampc_options bad, good;
        const char *why;
    } rows[] = {
        {{.threads = -1}, {.threads = 0}, "threads: use 0 (all) to 1024"},
        {{.threads = 1025}, {.threads = 3}, "threads: use 0 (all) to 1024"},
        {{.max_skipped = -2},
         {.max_skipped = -1},
         "max_skipped: -1 (no limit)"},
        {{.alloc = plain_alloc},
         {.alloc = plain_alloc, .free = plain_free},
         "alloc and free: set both or neither"},
        {{.free = plain_free}, {.threads = 1}, "alloc and free: set both or"},
        {{.stream = &a}, {.stream = NULL}, "this module has no CUDA code"}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        ampc_options bad = rows[i].bad, good = rows[i].good;
        ampc_session *s = NULL;
        char err[200];
        bad.size = good.size = sizeof bad;
        CHECK_EQ_INT(a->open(a->module, &bad, &s, err, sizeof err),
                     AMPC_ERR_ARGUMENT);
        CHECK_HAS(err, rows[i].why);
        CHECK(!s);
        CHECK_EQ_INT(a->open(a->module, &good, &s, err, sizeof err), AMPC_OK);
        CHECK_STR(err, "");
        a->close(s);
    }
    ampc_options o = {.size = sizeof o.size - 1};
    ampc_session *s;
    char err[200];
    CHECK_EQ_INT(a->open(a->module, &o, &s, err, sizeof err),
                 AMPC_ERR_ARGUMENT);
    CHECK_STR(err, "ampc_options.size is not set");
    CHECK_EQ_INT(a->open(a->module, NULL, NULL, err, sizeof err),
                 AMPC_ERR_ARGUMENT);
    CHECK_STR(err, "out is NULL");
}

TEST_CASE(runtime, devices_by_name) {
    const ampc_api *a = tiny_api();
    static const char *const unknown[] = {"tpu",     "cuda:",   "cuda:x",
                                          "cuda:-1", "cuda:1x", "cuda:99999",
                                          "cpu:0",   ""};
    static const char *const absent[] = {"cuda", "cuda:0", "cuda:7"};
    static const char *const fine[] = {NULL, "auto", "cpu"};
    ampc_session *s;
    char err[200];
    for (size_t i = 0; i < sizeof unknown / sizeof *unknown; i++) {
        ampc_options o = {.size = sizeof o, .device = unknown[i]};
        CHECK_EQ_INT(a->open(a->module, &o, &s, err, sizeof err),
                     AMPC_ERR_ARGUMENT);
        CHECK_HAS(err, "or 'cuda:N'");
    }
    for (size_t i = 0; i < 3; i++) {
        ampc_options o = {.size = sizeof o, .device = absent[i]};
        CHECK_EQ_INT(a->open(a->module, &o, &s, err, sizeof err),
                     AMPC_ERR_UNSUPPORTED);
        CHECK_HAS(err, "for the CPU only");
        o.device = fine[i];
        CHECK_EQ_INT(a->open(a->module, &o, &s, err, sizeof err), AMPC_OK);
        a->close(s);
    }
}

TEST_CASE(runtime, open_refuses_other_levels) {
    static const PlanIsa v9[] = {{9, NULL, NULL, NULL}};
    AmpcModule m = tiny_module;
    ampc_session *s;
    char err[200];
    m.isas = v9;
    CHECK_EQ_INT(tiny_api()->open(tiny_handle(&m), NULL, &s, err, sizeof err),
                 AMPC_ERR_UNSUPPORTED);
    CHECK_HAS(err, "compiled for an unknown level");
}

TEST_CASE(runtime, open_refuses_a_damaged_plan) {
    AmpcModule m = tiny_module;
    PlanTarget plan = *tiny_module.cpu;
    PlanRef refs[200];
    ampc_session *s;
    char err[200];
    m.cpu = &plan;
    plan.nref -= 20;
    CHECK_EQ_INT(tiny_api()->open(tiny_handle(&m), NULL, &s, err, sizeof err),
                 AMPC_ERR_INTERNAL);
    plan = *tiny_module.cpu;
    memcpy(refs, plan.refs, plan.nref * sizeof *refs);
    plan.refs = refs;
    refs[1].index = 1000;
    CHECK_EQ_INT(tiny_api()->open(tiny_handle(&m), NULL, &s, err, sizeof err),
                 AMPC_ERR_INTERNAL);
    CHECK_HAS(err, "'y'");
    refs[1].index = 0;
    refs[3].offset = 1 << 20;
    CHECK_EQ_INT(tiny_api()->open(tiny_handle(&m), NULL, &s, err, sizeof err),
                 AMPC_ERR_INTERNAL);
}

/* The operands of library steps must match the routine's row. */
TEST_CASE(runtime, open_refuses_a_damaged_library_step) {
    AmpcModule m = tiny_module;
    PlanStep steps[32];
    PlanRef refs[200];
    int64_t pars[16];
    ampc_session *s;
    char err[200];
    uint32_t at = 0;
    PlanTarget plan = *m.cpu;
    memcpy(steps, plan.steps, plan.nstep * sizeof *steps);
    memcpy(refs, plan.refs, plan.nref * sizeof *refs);
    memcpy(pars, plan.pars, plan.npar * sizeof *pars);
    plan.steps = steps;
    plan.refs = refs;
    plan.pars = pars;
    m.cpu = &plan;
    while (steps[at].kind != PLAN_LIB) at++;
    for (int damage = 0; damage < 4; damage++) {
        PlanStep step = steps[at];
        PlanRef ref = refs[step.ref0];
        int64_t *dtype = &pars[step.par0 + 1], good = *dtype;
        if (damage == 0) steps[at].fn = PLAN_NLIB;
        if (damage == 1) steps[at].nref--;
        if (damage == 2) refs[step.ref0].space = PLAN_NONE;
        if (damage == 3) *dtype = AMPC_NDTYPE;
        CHECK_EQ_INT(
            tiny_api()->open(tiny_handle(&m), NULL, &s, err, sizeof err),
            AMPC_ERR_INTERNAL);
        CHECK_HAS(err, "'copy'");
        steps[at] = step;
        refs[step.ref0] = ref;
        *dtype = good;
    }
}

/* A module that wants weights from a file that has none: the test binary. */
TEST_CASE(runtime, open_refuses_a_module_without_its_tail) {
    AmpcModule m = tiny_module;
    PlanVar vars[32];
    ampc_session *s;
    char err[400];
    memcpy(vars, m.vars, m.nvar * sizeof *vars);
    vars[0].init = 0;
    m.vars = vars;
    CHECK_EQ_INT(tiny_api()->open(tiny_handle(&m), NULL, &s, err, sizeof err),
                 AMPC_ERR_FILE); /* a plan on the stack lies in no file */
    CHECK(s == NULL);
}

/* ---- memory -------------------------------------------------------------- */

typedef struct Hook {
    int calls, fail_at; /* -1: never */
    bool rest;          /* all behind it, too */
    int64_t live, bytes;
} Hook;

static void *hook_alloc(void *ctx, size_t bytes, size_t align) {
    Hook *h = ctx;
    int at = h->calls++;
    if (at == h->fail_at) return NULL;
    if (h->rest && h->fail_at >= 0 && at > h->fail_at) return NULL;
    h->live++;
    h->bytes += (int64_t)bytes;
    return aligned_alloc(align, (bytes + align - 1) / align * align);
}

static void hook_free(void *ctx, void *p, size_t bytes) {
    Hook *h = ctx;
    h->live--;
    h->bytes -= (int64_t)bytes;
    free(p);
}

/* Everything an accumulating session can allocate; false when some call gave
   AMPC_ERR_MEMORY.                                                          */
static bool use_all(Hook *h, const char *path) {
    const ampc_api *a = tiny_api();
    ampc_options o = {.size = sizeof o,
                      .threads = 1,
                      .alloc = hook_alloc,
                      .free = hook_free,
                      .alloc_ctx = h};
    ampc_session *s = NULL;
    char err[200];
    float before[6], after[6], y[8];
    bool ok = true;
    Batch b;
    ampc_output out = ampc_out("y/out", y, sizeof y, AMPC_DTYPE_F32);
    ampc_status st =
        a->open(tiny_handle(&tiny_accumulating), &o, &s, err, sizeof err);
    if (st != AMPC_OK) {
        CHECK_EQ_INT(st, AMPC_ERR_MEMORY);
        CHECK_HAS(err, "out of memory");
        return false;
    }
    read_w(s, before);
#define TRY_MEMORY(call)                                                       \
    do {                                                                       \
        st = (call);                                                           \
        CHECK_MSG(st == AMPC_OK || st == AMPC_ERR_MEMORY, "%s", a->error(s));  \
        if (st == AMPC_ERR_MEMORY) {                                           \
            ok = false;                                                        \
            read_w(s, after);                                                  \
            CHECK_MEM(before, after, sizeof before);                           \
            CHECK_EQ_INT((call), AMPC_OK); /* memory is back */                \
        }                                                                      \
        read_w(s, before);                                                     \
    } while (0)
    TRY_MEMORY(a->step(s, batch(&b, 0), 2, NULL));
    TRY_MEMORY(a->step(s, batch(&b, 1), 2, NULL));
    TRY_MEMORY(a->predict(s, batch(&b, 1), 1, 4, &out, 1));
    TRY_MEMORY(a->set_cursor(s, "{\"epoch\":1}"));
    TRY_MEMORY(a->save(s, path));
    TRY_MEMORY(a->load(s, path));
    TRY_MEMORY(a->resume(s, path));
    a->close(s);
    return ok;
}

TEST_CASE(runtime, every_allocation_may_fail) {
    int n = 0;
    const char *path = test_tmp("memory.safetensors");
    for (bool done = false; !done && n < 1000; n++) {
        Hook h = {.fail_at = n};
        done = use_all(&h, path);
        CHECK_EQ_INT(h.live, 0);
        CHECK_EQ_INT(h.bytes, 0);
    }
    CHECK(n > 12 && n < 1000);
}

typedef enum Call { OPEN, STEP, PREDICT, SAVE, RESUME, CALLS } Call;

static ampc_status call(Call c, ampc_session *s, const char *path, int i) {
    const ampc_api *a = tiny_api();
    float y[8];
    ampc_output out = ampc_out("y/out", y, sizeof y, AMPC_DTYPE_F32);
    Batch b;
    batch(&b, i);
    return c == STEP      ? a->step(s, b.in, 2, NULL)
           : c == PREDICT ? a->predict(s, b.in, 1, TINY_BATCH, &out, 1)
           : c == SAVE    ? a->save(s, path)
                          : a->resume(s, path);
}

/* Allocation number `at` of a call fails, alone or with the rest; false: it
   makes fewer.  i: which module, how many threads. */
static bool fails_at(Call c, int at, int i, const char *path) {
    static const AmpcModule *const modules[] = {
        &tiny_module, &tiny_accumulating, &tiny_other};
    const AmpcModule *m = modules[i % 3];
    const ampc_api *a = tiny_api();
    Hook h = {.fail_at = c == OPEN ? at : -1, .rest = i / 3 % 2};
    ampc_options o = {.size = sizeof o,
                      .threads = 1 + i / 6 % 3,
                      .alloc = hook_alloc,
                      .free = hook_free,
                      .alloc_ctx = &h};
    ampc_session *s = NULL;
    char err[200] = "";
    float before[6], after[6];
    ampc_status st = a->open(tiny_handle(m), &o, &s, err, sizeof err);
    if (c == OPEN && st != AMPC_OK) {
        CHECK_EQ_INT(st, AMPC_ERR_MEMORY);
        CHECK_HAS(err, "out of memory");
    } else if (CHECK_EQ_INT(st, AMPC_OK) && c != OPEN) {
        if (c != STEP) CHECK_EQ_INT(call(STEP, s, path, i), AMPC_OK);
        CHECK_EQ_INT(call(SAVE, s, path, 0), AMPC_OK);
        read_w(s, before);
        h.fail_at = h.calls + at;
        st = call(c, s, path, i + 1);
        h.fail_at = -1;
        if (st != AMPC_OK) {
            CHECK_EQ_INT(st, AMPC_ERR_MEMORY);
            CHECK_HAS(a->error(s), "out of memory");
            read_w(s, after);
            CHECK_MEM(before, after, sizeof before);
            /* the saved state is unchanged, and memory is freed */
            CHECK_EQ_INT(call(RESUME, s, path, 0), AMPC_OK);
            read_w(s, after);
            CHECK_MEM(before, after, sizeof before);
            CHECK_EQ_INT(call(c, s, path, i + 1), AMPC_OK);
        }
    }
    a->close(s);
    CHECK_EQ_INT(h.live, 0);
    CHECK_EQ_INT(h.bytes, 0);
    return st != AMPC_OK;
}

TEST_CASE(runtime, allocations_of_each_call_fail) {
    static const char *const names[] = {"open", "step", "predict", "save",
                                        "resume"};
    const char *path = test_tmp("call.safetensors");
    int want = test_slow() ? 1000 : 40;
    for (Call c = OPEN; c < CALLS; c++) {
        int failed = 0, at = 0;
        for (int i = 0; failed < want; i++) {
            if (fails_at(c, at, i, path)) {
                failed++, at++;
            } else {
                if (!CHECK_MSG(at > 0, "%s allocates nothing", names[c])) break;
                at = 0;
            }
        }
        printf("%s: %d failed allocations\n", names[c], failed);
    }
    CHECK_EQ_INT(test_temporaries(), 0);
}

/* ---- ranks ----------------------------------------------------------------
 */

typedef struct Met {
    Ranks ranks;
    const AmpcModule *of[2];
    ampc_status status[2];
    char err[2][200];
} Met;

static void meet(void *ctx, int rank) {
    Met *t = ctx;
    ampc_options o = {.size = sizeof o, .comm = &t->ranks.comm[rank]};
    ampc_session *s = NULL;
    o.threads = 1;
    t->status[rank] = tiny_api()->open(tiny_handle(t->of[rank]), &o, &s,
                                       t->err[rank], sizeof t->err[rank]);
    tiny_api()->close(s);
}

/* Both ranks say how their modules differ; "": they do not. */
static void meets(const AmpcModule *other, const char *why) {
    Met t = {.of = {&tiny_module, other}};
    ranks_open(&t.ranks, 2);
    ranks_run(&t.ranks, meet, &t);
    for (int i = 0; i < 2; i++) {
        CHECK_EQ_INT(t.status[i], *why ? AMPC_ERR_COMM : AMPC_OK);
        CHECK_STR(t.err[i], why);
    }
    ranks_close(&t.ranks);
}

TEST_CASE(runtime, ranks_compare_every_bit_of_their_modules) {
    AmpcModule m = tiny_module;
    meets(&m, "");
    for (int bit = 0; bit < 64; bit++) {
        m = tiny_module;
        m.graph_hash ^= UINT64_C(1) << bit;
        meets(&m, "rank 1 has another graph than rank 0");
        m = tiny_module;
        m.id ^= UINT64_C(1) << bit;
        meets(&m, "rank 1 has another module than rank 0");
    }
    char *info = strdup(tiny_module.info);
    for (size_t n = strlen(info), i = 0; i < n; i += n / 7) {
        m = tiny_module;
        m.info = info;
        info[i] ^= 1;
        meets(&m, "rank 1 has a module of other compile options than rank 0");
        info[i] ^= 1;
    }
    free(info);
}

/* ---- threads, fork, environment ------------------------------------------ */

static void *train_alone(void *out) {
    ampc_session *s = open_module(&tiny_module, 2);
    train(s, 0, 100);
    read_w(s, out);
    tiny_api()->close(s);
    return NULL;
}

TEST_CASE(runtime, sessions_run_in_parallel) {
    float w[4][6];
    pthread_t t[4];
    for (int i = 0; i < 4; i++)
        REQUIRE(pthread_create(&t[i], NULL, train_alone, w[i]) == 0);
    for (int i = 0; i < 4; i++) pthread_join(t[i], NULL);
    for (int i = 1; i < 4; i++) CHECK_MEM(w[0], w[i], sizeof w[0]);
}

TEST_CASE(runtime, a_second_thread_is_told_busy) {
    ampc_session *s = open_module(&tiny_module, 1);
    Batch b;
    atomic_store(&s->busy, 1); /* as if another thread were inside */
    CHECK_EQ_INT(tiny_api()->step(s, batch(&b, 0), 2, NULL), AMPC_ERR_BUSY);
    atomic_store(&s->busy, 0);
    CHECK_EQ_INT(tiny_api()->step(s, batch(&b, 0), 2, NULL), AMPC_OK);
    tiny_api()->close(s);
}

TEST_CASE(runtime, sessions_survive_fork) {
    ampc_session *s = open_module(&tiny_module, 3);
    float parent[6], child[6];
    int fd[2], status = -1;
    train(s, 0, 20);
    REQUIRE(pipe(fd) == 0);
    pid_t pid = fork();
    REQUIRE(pid >= 0);
    if (pid == 0) {
        alarm(20);
        train(s, 20, 20);
        read_w(s, child);
        tiny_api()->close(s);
        _exit(write(fd[1], child, sizeof child) != sizeof child);
    }
    CHECK_EQ_INT(read(fd[0], child, sizeof child), sizeof child);
    waitpid(pid, &status, 0);
    CHECK_EQ_INT(status, 0);
    train(s, 20, 20);
    read_w(s, parent);
    CHECK_MEM(parent, child, sizeof parent);
    close(fd[0]);
    close(fd[1]);
    tiny_api()->close(s);
}

static int count_threads(void) {
    char *out = NULL;
    test_command(&out, "ls /proc/%d/task | wc -l", (int)getpid());
    int n = atoi(out);
    free(out);
    return n;
}

TEST_CASE(runtime, threads_live_as_long_as_sessions) {
    int before = count_threads();
    ampc_session *s = open_module(&tiny_module, 4);
    CHECK_EQ_INT(count_threads(), before + 3);
    tiny_api()->close(s);
    CHECK_EQ_INT(count_threads(), before);
}

TEST_CASE(runtime, header_is_c99_and_cpp) {
    char src[600], *out = NULL;
    snprintf(src, sizeof src, "%s/header.c", test_tmpdir());
    static const char text[] =
        "#include \"runtime/ampc.h\"\n"
        "int main(void) {\n"
        "    ampc_input in = ampc_in(\"x\", NULL, 0, AMPC_DTYPE_F32);\n"
        "    return ampc_load(\"/none.so\", NULL, NULL, 0) || in.rank > 0;\n"
        "}\n";
    REQUIRE(test_write_file(src, text, sizeof text - 1));
    const char *flags = "-Wall -Wextra -Wpedantic -Werror -Wshadow -o";
    const char *root = test_data_path("runtime");
    if (test_command(&out, "cc -std=c99 -I%s/.. %s %s.out %s -ldl && %s.out",
                     root, flags, src, src, src) != 0)
        FAIL("%s", out);
    free(out);
    if (test_command(&out, "c++ -xc++ -std=c++11 -I%s/.. %s %s.out %s -ldl",
                     root, flags, src, src) != 0)
        FAIL("%s", out);
    free(out);
}

static int steps_seen;
static void profile_step(void *ctx, const char *program, const char *step,
                         uint64_t begin, uint64_t end) {
    const char *names[] = {"y", "loss", "w.grad", "update", "w.bf16"};
    if (strcmp(program, "refresh") == 0) return;
    CHECK(ctx == names || end >= begin);
    CHECK_STR(step, names[steps_seen++ % 5]);
}

TEST_CASE(runtime, profiles) {
    ampc_session *s = open_module(&tiny_module, 1);
    steps_seen = 0;
    tiny_api()->profile(s, profile_step, NULL);
    train(s, 0, 2);
    CHECK_EQ_INT(steps_seen, 10);
    tiny_api()->profile(s, NULL, NULL);
    train(s, 0, 2);
    CHECK_EQ_INT(steps_seen, 10);
    tiny_api()->close(s);
}

/* ---- JSON ---------------------------------------------------------------- */

TEST_CASE(json, strict) {
    static const char *const good[] = {"0",
                                       "-1.5e+3",
                                       "\"a\\u00e9\\n\"",
                                       "[]",
                                       "{}",
                                       " [1, {\"a\":[true]}] ",
                                       "null",
                                       "{\"a\":1,\"b\":{\"c\":[[]]}}"};
    static const char *const bad[] = {
        "",     "01",      "1.",         "-",       "+1",          ".5",
        "1e",   "nan",     "\"a",        "\"\\x\"", "\"\\u12g4\"", "[1,]",
        "[,1]", "{\"a\"}", "{\"a\":1,}", "{a:1}",   "[1] 2",       "tru",
        "'a'",  "\"\t\"",  "[",          "{\"a\":", "[1 2]",       "[}"};
    JsonSpan v;
    char deep[200];
    for (size_t i = 0; i < sizeof good / sizeof *good; i++)
        CHECK_MSG(json_parse(good[i], strlen(good[i]), &v), "%s", good[i]);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        CHECK_MSG(!json_parse(bad[i], strlen(bad[i]), &v), "%s", bad[i]);
    memset(deep, '[', 100);
    memset(deep + 100, ']', 100);
    CHECK(!json_parse(deep, 200, &v));
    CHECK(json_parse(deep + 80, 40, &v));
}

TEST_CASE(json, walks) {
    const char *text = "{\"a\\u0062\":[1,2.5,\"\\ud83d\\ude00\"],\"c\":-7}";
    JsonSpan v, a, item, key;
    int64_t n = 0;
    double d;
    char buf[8];
    REQUIRE(json_parse(text, strlen(text), &v));
    REQUIRE(json_get(v, "ab", &a));
    CHECK(json_get(v, "c", &item) && json_int(item, &n) && n == -7);
    CHECK(!json_get(v, "d", &item));
    JsonIter it = json_iter(a);
    CHECK(json_next(&it, &key, &item) && json_int(item, &n) && n == 1);
    CHECK(json_next(&it, &key, &item) && !json_int(item, &n));
    CHECK(json_double(item, &d) && d == 2.5);
    CHECK(json_next(&it, &key, &item));
    CHECK_EQ_INT(json_text(item, buf, sizeof buf), 4);
    CHECK_STR(buf, "\xf0\x9f\x98\x80");
    CHECK_EQ_INT(json_text(item, buf, 4), -1);
    CHECK(!json_next(&it, &key, &item));
}

/* Each escape, each length of UTF-8 at both of its ends, and halves of pairs.
 */
TEST_CASE(json, strings) {
    static const struct {
        const char *json, *text; /* NULL: it has none */
    } rows[] = {{"\"\"", ""},
                {"\"a b\"", "a b"},
                {"\"\\\"\\\\\\/\"", "\"\\/"},
                {"\"\\b\\f\\n\\r\\t\"", "\b\f\n\r\t"},
                {"\"\\u0041\\u007F\"", "A\x7f"},
                {"\"\\u0080\"", "\xc2\x80"},
                {"\"\\u07fF\"", "\xdf\xbf"},
                {"\"\\u0800\"", "\xe0\xa0\x80"},
                {"\"\\uABCD\\uabcd\"", "\xea\xaf\x8d\xea\xaf\x8d"},
                {"\"\\uFFFF\"", "\xef\xbf\xbf"},
                {"\"\\uD800\\uDC00\"", "\xf0\x90\x80\x80"},
                {"\"\\uDBFF\\uDFFF\"", "\xf4\x8f\xbf\xbf"},
                {"\"\\ud800\"", "\xef\xbf\xbd"},
                {"\"\\ud800x\"", "\xef\xbf\xbdx"},
                {"\"\\udc00\\ud800\"", "\xef\xbf\xbd\xef\xbf\xbd"},
                {"\"\\udc00\\udc01\"", "\xef\xbf\xbd\xef\xbf\xbd"},
                {"\"\\ud800\\u0041\"", "\xef\xbf\xbd"
                                       "A"},
                {"\"\\u0000\"", NULL},
                {"\"a\\u0000\"", NULL},
                {"7", NULL},
                {"[]", NULL}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        JsonSpan v;
        char buf[16], longer[20];
        REQUIRE(json_parse(rows[i].json, strlen(rows[i].json), &v));
        int64_t n = json_text(v, buf, sizeof buf);
        if (!rows[i].text) {
            CHECK_MSG(n == -1, "%s", rows[i].json);
            CHECK(!json_equals(v, "") && !json_equals(v, "a"));
            continue;
        }
        size_t len = strlen(rows[i].text);
        CHECK_EQ_INT(n, len);
        CHECK_STR(buf, rows[i].text);
        CHECK_EQ_INT(json_text(v, buf, len + 1), len);
        CHECK_EQ_INT(json_text(v, buf, len), -1);
        CHECK_MSG(json_equals(v, rows[i].text), "%s", rows[i].json);
        snprintf(longer, sizeof longer, "%sx", rows[i].text);
        CHECK(!json_equals(v, longer));
        if (!len) continue;
        longer[len - 1] ^= 1;
        longer[len] = 0;
        CHECK(!json_equals(v, longer));
        longer[len - 1] = 0;
        CHECK(!json_equals(v, longer));
    }
}

TEST_CASE(json, numbers_and_depths) {
    static const struct {
        const char *json;
        bool whole;
        int64_t n;
        bool real;
        double x;
    } rows[] = {{"9223372036854775807", true, INT64_MAX, true, 0x1p63},
                {"9223372036854775808", false, 0, true, 0x1p63},
                {"-9223372036854775808", true, INT64_MIN, true, -0x1p63},
                {"-9223372036854775809", false, 0, true, -0x1p63},
                {"1e2", false, 0, true, 100},
                {"-0", true, 0, true, 0},
                {"0.5E-1", false, 0, true, 0.05},
                {"true", false, 0, false, 0},
                {"\"1\"", false, 0, false, 0}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        JsonSpan v;
        int64_t n = 77;
        double x = 77;
        REQUIRE(json_parse(rows[i].json, strlen(rows[i].json), &v));
        CHECK_MSG(json_int(v, &n) == rows[i].whole &&
                      n == (rows[i].whole ? rows[i].n : 77),
                  "%s", rows[i].json);
        CHECK_MSG(json_double(v, &x) == rows[i].real &&
                      x == (rows[i].real ? rows[i].x : 77),
                  "%s", rows[i].json);
    }
    enum { DEEPEST = 32 };
    for (int depth = DEEPEST; depth <= DEEPEST + 1; depth++) {
        char text[2 * DEEPEST + 2];
        JsonSpan v;
        memset(text, '[', (size_t)depth);
        memset(text + depth, ']', (size_t)depth);
        CHECK_EQ_INT(json_parse(text, 2 * (size_t)depth, &v), depth == DEEPEST);
    }
    char digits[64];
    JsonSpan v = {digits, 63};
    int64_t n;
    memset(digits, '0', sizeof digits);
    CHECK(json_int(v, &n) && n == 0);
    v.n = 64;
    CHECK(!json_int(v, &n));
}
