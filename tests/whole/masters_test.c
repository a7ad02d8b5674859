/* SPDX-License-Identifier: Apache-2.0 */
/* masters_test.c: training that reads fp32 weights and rounds them in matrix
   products (pass masters), beside the rounding of this file. Weights need more
   bits than bf16 has; every sum is exact. */
#include <string.h>

#include "runtime/program/half.h"
#include "runtime/program/plan.h"
#include "tests/support/compiled.h"

enum { ROWS = 64, IN = 2048, OUT = 1024, APART = 16 };

/* The loss adds up every 16th column of %x times %w. */
static const char model[] =
    "graph forward(%x: f32[64,2048], %c: f32[64,1024]) {\n"
    "  param %w: f32[2048,1024] = 1\n"
    "  %y = matmul %x, %w : f32[64,1024]\n"
    "  %z = mul %y, %c : f32[64,1024]\n"
    "  %loss = reduce_sum %z {axes=[0,1], keepdims=0} : f32[]\n"
    "  return %loss\n"
    "}\n";

static float x[ROWS * IN], at[ROWS * OUT], w[IN * OUT];

/* Row i of %x selects this row of %w. */
static int row_of(int i) { return 7 * i % IN; }

static float rounded(float v) { return bf16_to_f32(f32_to_bf16(v)); }

static void fill(void) {
    memset(x, 0, sizeof x);
    memset(at, 0, sizeof at);
    for (int i = 0; i < ROWS; i++) {
        x[i * IN + row_of(i)] = 1;
        for (int j = 0; j < OUT; j += APART) at[i * OUT + j] = 1;
    }
    for (int i = 0; i < IN * OUT; i++)
        w[i] = 1 + (float)(i / APART % 251) / 256;
}

static double expected(void) {
    double sum = 0;
    for (int i = 0; i < ROWS; i++)
        for (int j = 0; j < OUT; j += APART)
            sum += (double)rounded(w[row_of(i) * OUT + j]);
    return sum;
}

/* The gradient of a selected weight is 1. */
static void descend(float rate) {
    for (int i = 0; i < ROWS; i++)
        for (int j = 0; j < OUT; j += APART) w[row_of(i) * OUT + j] -= rate;
}

static double evaluated(const Compiled *m, ampc_session *s,
                        const ampc_input *in) {
    ampc_eval e = {.size = sizeof e};
    if (m->api->evaluate(s, in, 2, ROWS, &e) != AMPC_OK)
        FAIL("%s", m->api->error(s));
    return e.loss_num / e.loss_den;
}

static void check_copy(const Compiled *m, ampc_session *s) {
    static uint16_t copy[IN * OUT];
    read_var(m, s, "ampc.bf16/w", copy, sizeof copy, AMPC_DTYPE_BF16);
    for (int i = 0; i < IN * OUT; i++)
        if (!CHECK_EQ_INT(copy[i], f32_to_bf16(w[i]))) return;
}

/* Programs that read copies run between steps that do not write them. */
static void train_with(const char *options, bool evaluates) {
    ampc_input in[] = {ampc_in("x", x, sizeof x, AMPC_DTYPE_F32),
                       ampc_in("c", at, sizeof at, AMPC_DTYPE_F32)};
    fill();
    Compiled m = compile_text(model, options);
    ampc_session *s = open_threads(&m, 2);
    write_var(&m, s, "w", w, sizeof w, AMPC_DTYPE_F32);
    for (int step = 0; step < 3; step++) {
        if (evaluates) CHECK_NEAR(evaluated(&m, s, in), expected(), 0);
        CHECK_NEAR(step_ok(&m, s, in, 2).loss, expected(), 0);
        descend(1.0f / 256);
        if (evaluates) check_copy(&m, s);
    }
    check_copy(&m, s);
    CHECK_NEAR(evaluated(&m, s, in), expected(), 0);
    m.api->close(s);
    compiled_close(&m);
}

#define OPTIONS "--precision bf16 --optimizer sgd,lr=0.00390625"

TEST_CASE(masters, products_round_the_weights_of_every_step) {
    train_with(OPTIONS, false);
}

TEST_CASE(masters, copies_follow_the_weights_where_programs_read_them) {
    train_with(OPTIONS, true);
}

TEST_CASE(masters, all_levels_round_alike) {
    train_with(OPTIONS " " ALL_LEVELS, true);
}

TEST_CASE(masters, updates_in_parts_and_micro_batches_read_weights_too) {
    train_with(OPTIONS " --optimizer-in-backward", true);
    train_with(OPTIONS " --accumulate 1", true);
}

TEST_CASE(masters, programs_that_train_need_no_copies) {
    Compiled m = compile_text(model, OPTIONS);
    const AmpcModule *plan = (const void *)m.api->module;
    for (uint32_t i = 0; i < plan->nprogram; i++) {
        const char *name = plan->programs[i].name;
        bool trains = strcmp(name, "train") == 0 ||
                      strcmp(name, "micro") == 0 || strcmp(name, "update") == 0;
        CHECK_EQ_INT(plan->cpu->runs[i].masters, trains);
    }
    compiled_close(&m);
}

/* A checkpoint of a session that never made copies has the weights. */
TEST_CASE(masters, saves_without_copies) {
    ampc_input in[] = {ampc_in("x", x, sizeof x, AMPC_DTYPE_F32),
                       ampc_in("c", at, sizeof at, AMPC_DTYPE_F32)};
    static float now[IN * OUT];
    const char *path = test_tmp("masters.safetensors");
    fill();
    Compiled m = compile_text(model, OPTIONS);
    ampc_session *s = open_threads(&m, 1);
    write_var(&m, s, "w", w, sizeof w, AMPC_DTYPE_F32);
    step_ok(&m, s, in, 2);
    descend(1.0f / 256);
    CHECK_EQ_INT(m.api->save(s, path), AMPC_OK);
    m.api->close(s);
    s = open_threads(&m, 1);
    CHECK_EQ_INT(m.api->load(s, path), AMPC_OK);
    read_var(&m, s, "w", now, sizeof now, AMPC_DTYPE_F32);
    CHECK_EQ_INT(memcmp(now, w, sizeof w), 0);
    CHECK_NEAR(step_ok(&m, s, in, 2).loss, expected(), 0);
    m.api->close(s);
    compiled_close(&m);
}
