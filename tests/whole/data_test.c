/* SPDX-License-Identifier: Apache-2.0 */
/* data_test.c: data that must not train: class and row numbers out of range, on
   the CPU and on the simulated GPU.

   The oracle is a session that never got the bad batch: every variable
   except the counters of bad and tried steps has the same bits. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/on_device.h"

enum { BATCH = 4, WORDS = 3, ROWS = 7, CLASSES = 5 };

/* The model reads two of three words; running statistics must not change. */
#define MODEL                                                                  \
    "graph forward(%ids: i32[4,3]) {\n"                                        \
    "  param %t: f32[7,8] = normal(1, 0.5), %w: f32[8,5] = normal(2, 0.5)\n"   \
    "  param %s: f32[8] = 1, %b: f32[8] = 0\n"                                 \
    "  buffer %mean: f32[8] = 0, %var: f32[8] = 1\n"                           \
    "  %r = slice %ids {starts=[0,1], sizes=[4,2], steps=[1,1]} : i32[4,2]\n"  \
    "  %e = gather %t, %r {axis=0} : f32[4,2,8]\n"                             \
    "  %m = reduce_mean %e {axes=[1], keepdims=0} : f32[4,8]\n"                \
    "  %n, %bm, %bv = batch_norm %m, %s, %b, %mean, %var {training=1} :"       \
    " f32[4,8], f32[8], f32[8]\n"                                              \
    "  %y = matmul %n, %w : f32[4,5]\n"                                        \
    "  write %mean = %bm\n"                                                    \
    "  write %var = %bv\n"                                                     \
    "  return %y\n"                                                            \
    "}\n"
#define OPTIONS "--loss cross_entropy --optimizer adamw,lr=0.01 "

typedef struct Data {
    int32_t ids[BATCH * WORDS];
    int64_t target[BATCH];
    ampc_input in[2];
} Data;

static Data *data(Data *d, int batch) {
    for (int i = 0; i < BATCH * WORDS; i++)
        d->ids[i] = (i * 5 + batch * 3) % ROWS;
    for (int i = 0; i < BATCH; i++) d->target[i] = (i + batch) % CLASSES;
    d->in[0] = ampc_in("ids", d->ids, sizeof d->ids, AMPC_DTYPE_I32);
    d->in[1] = ampc_in("target", d->target, sizeof d->target, AMPC_DTYPE_I64);
    return d;
}

/* ---- devices ------------------------------------------------------------- */

static const Compiled *compile(const char *device, const char *options) {
    return compile_on(device, MODEL, OPTIONS, options);
}

#define STATES                                                                 \
    (1u << AMPC_KIND_PARAMETER | 1u << AMPC_KIND_BUFFER | 1u << AMPC_KIND_STATE)

static void same_states(const Compiled *c, ampc_session *a, ampc_session *b) {
    size_t n, m;
    char *x = read_all(c, a, STATES, &n), *y = read_all(c, b, STATES, &m);
    if (CHECK_EQ_INT(n, m)) CHECK_MEM(x, y, n);
    free(x);
    free(y);
}

static void found(const Compiled *c, ampc_session *s, const char *input,
                  int64_t index, int64_t value, int64_t count) {
    ampc_bad_data b = {.size = sizeof b};
    char text[100];
    snprintf(text, sizeof text, "'%s': %lld at position %lld", input,
             (long long)value, (long long)index);
    CHECK_HAS(c->api->error(s), text);
    CHECK_EQ_INT(c->api->bad_data(s, &b), AMPC_OK);
    CHECK_STR(b.input, input);
    CHECK_EQ_INT(b.index, index);
    CHECK_EQ_INT(b.value, value);
    CHECK_EQ_INT(b.count, count);
    CHECK_EQ_INT(b.most, strcmp(input, "ids") ? CLASSES - 1 : ROWS - 1);
    CHECK_EQ_INT(b.least, strcmp(input, "ids") ? 0 : -ROWS);
}

/* ---- training ------------------------------------------------------------ */

/* One number of a batch, and whether it is legal. */
static const struct Number {
    int target; /* else: in ids */
    int64_t index, value;
    bool bad;
} numbers[] = {
    {1, 2, CLASSES, true},    {1, 0, -1, true},        {1, 3, -100, false},
    {1, 1, INT64_MAX, true},  {1, 1, INT64_MIN, true}, {0, 1, ROWS, true},
    {0, 11, -ROWS - 1, true}, {0, 11, -ROWS, false},   {0, 4, -1, false},
    {0, 3, 1000, false}, /* which nobody reads */
    {0, 5, INT32_MAX, true},
};

static Data *data_with(Data *d, int batch, const struct Number *n) {
    data(d, batch);
    if (n->target)
        d->target[n->index] = n->value;
    else
        d->ids[n->index] = (int32_t)n->value;
    return d;
}

static void training(const char *device) {
    const Compiled *c = compile(device, "");
    Data d;
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        const struct Number *n = &numbers[i];
        ampc_session *s = open_on(c, device, 0), *never = open_on(c, device, 0);
        ampc_metrics m = {.size = sizeof m};
        step_ok(c, s, data(&d, 0)->in, 2);
        step_ok(c, never, d.in, 2);
        CHECK_EQ_INT(c->api->step(s, data_with(&d, 1, n)->in, 2, &m),
                     n->bad ? AMPC_ERR_DATA : AMPC_OK);
        CHECK_EQ_INT(m.applied, !n->bad);
        CHECK_EQ_INT(m.skipped, n->bad);
        CHECK_EQ_INT(m.bad_data, n->bad);
        CHECK(isnan(m.loss) == n->bad);
        if (n->bad) {
            found(c, s, n->target ? "target" : "ids", n->index, n->value, 1);
            same_states(c, s, never);
            step_ok(c, s, data(&d, 2)->in, 2);
            step_ok(c, never, d.in, 2);
            same_states(c, s, never);
        }
        c->api->close(s);
        c->api->close(never);
    }
}

TEST_CASE(data, bad_numbers_do_not_train_cpu) { training("cpu"); }
TEST_CASE(data, bad_numbers_do_not_train_gpu) { training("cuda"); }

/* Labels of 32 and 8 bits train to the same bits as labels of 64. */
static void narrow_labels(const char *device) {
    const Compiled *c = compile(device, "");
    for (int bits = 8; bits <= 32; bits += 24) {
        ampc_session *s = open_on(c, device, 0), *wide = open_on(c, device, 0);
        int32_t words[BATCH];
        uint8_t bytes[BATCH];
        ampc_eval a = {.size = sizeof a}, b = a;
        ampc_metrics m = {.size = sizeof m};
        Data d;
        for (int step = 0; step < 3; step++) {
            step_ok(c, wide, data(&d, step)->in, 2);
            CHECK_EQ_INT(c->api->evaluate(wide, d.in, 2, BATCH, &a), AMPC_OK);
            for (int i = 0; i < BATCH; i++) {
                words[i] = (int32_t)d.target[i];
                bytes[i] = (uint8_t)d.target[i];
            }
            d.in[1] =
                bits == 8
                    ? ampc_in("target", bytes, sizeof bytes, AMPC_DTYPE_U8)
                    : ampc_in("target", words, sizeof words, AMPC_DTYPE_I32);
            step_ok(c, s, d.in, 2);
            CHECK_EQ_INT(c->api->evaluate(s, d.in, 2, BATCH, &b), AMPC_OK);
            same_states(c, s, wide);
        }
        CHECK(a.loss_num == b.loss_num && a.correct == b.correct);
        words[2] = bits == 8 ? (bytes[2] = CLASSES) : -1;
        CHECK_EQ_INT(c->api->step(s, d.in, 2, &m), AMPC_ERR_DATA);
        found(c, s, "target", 2, words[2], 1);
        d.in[1].bytes--;
        CHECK_EQ_INT(c->api->step(s, d.in, 2, &m), AMPC_ERR_ARGUMENT);
        CHECK_HAS(c->api->error(s), bits == 8 ? "3 bytes given, 4 needed"
                                              : "15 bytes given, 16 needed");
        d.in[1].bytes++;
        d.in[1].dtype = AMPC_DTYPE_U16;
        CHECK_EQ_INT(c->api->step(s, d.in, 2, &m), AMPC_ERR_ARGUMENT);
        d.in[0].dtype = AMPC_DTYPE_U8;
        CHECK_EQ_INT(c->api->step(s, d.in, 2, &m), AMPC_ERR_ARGUMENT);
        CHECK_HAS(c->api->error(s), "'ids': dtype u8 given");
        c->api->close(s);
        c->api->close(wide);
    }
}

TEST_CASE(data, labels_of_fewer_bits_cpu) { narrow_labels("cpu"); }
TEST_CASE(data, labels_of_fewer_bits_gpu) { narrow_labels("cuda"); }

/* Bytes have no sign: labels above 127 train as they do in 64 bits. */
static void labels_above_127(const char *device) {
    const Compiled *c = compile_on(
        device, "model net(x: f32[4,3]) { return y = Linear(x, units=200) }\n",
        OPTIONS, "");
    ampc_session *s = open_on(c, device, 0), *wide = open_on(c, device, 0);
    ampc_eval a = {.size = sizeof a}, b = a;
    ampc_metrics m = {.size = sizeof m};
    uint8_t bytes[BATCH] = {199, 128, 127, 0};
    int64_t target[BATCH] = {199, 128, 127, 0};
    float x[BATCH * 3] = {1, -1, 2, 3, 0, -2, 1, 1, 4, 0, 2, -3};
    ampc_input in[] = {
        ampc_in("x", x, sizeof x, AMPC_DTYPE_F32),
        ampc_in("target", target, sizeof target, AMPC_DTYPE_I64)};
    step_ok(c, wide, in, 2);
    CHECK_EQ_INT(c->api->evaluate(wide, in, 2, BATCH, &a), AMPC_OK);
    in[1] = ampc_in("target", bytes, sizeof bytes, AMPC_DTYPE_U8);
    step_ok(c, s, in, 2);
    CHECK_EQ_INT(c->api->evaluate(s, in, 2, BATCH, &b), AMPC_OK);
    same_states(c, s, wide);
    CHECK(a.loss_num == b.loss_num && a.correct == b.correct);
    bytes[1] = 200;
    CHECK_EQ_INT(c->api->step(s, in, 2, &m), AMPC_ERR_DATA);
    CHECK_HAS(c->api->error(s), "'target': 200 at position 1");
    c->api->close(s);
    c->api->close(wide);
}

TEST_CASE(data, labels_above_127_cpu) { labels_above_127("cpu"); }
TEST_CASE(data, labels_above_127_gpu) { labels_above_127("cuda"); }

/* If one micro-batch of a step is bad, both are skipped. */
static void accumulation(const char *device) {
    const Compiled *c = compile(device, "--accumulate 2");
    for (int which = 0; which < 2; which++) {
        ampc_session *s = open_on(c, device, 0), *never = open_on(c, device, 0);
        ampc_metrics m = {.size = sizeof m};
        Data d;
        for (int i = 0; i < 2; i++) {
            data_with(&d, i, &numbers[i == which ? 0 : 8]);
            CHECK_EQ_INT(c->api->step(s, d.in, 2, &m),
                         i == which ? AMPC_ERR_DATA : AMPC_OK);
            if (i == which) found(c, s, "target", 2, CLASSES, 1);
        }
        CHECK_EQ_INT(m.updated, 1);
        CHECK_EQ_INT(m.applied, 0);
        CHECK_EQ_INT(m.bad_data, 1);
        for (int i = 2; i < 4; i++) {
            CHECK_EQ_INT(c->api->step(s, data(&d, i)->in, 2, &m), AMPC_OK);
            CHECK_EQ_INT(c->api->step(never, d.in, 2, &m), AMPC_OK);
        }
        CHECK_EQ_INT(m.applied, 1);
        c->api->close(s);
        c->api->close(never);
    }
}

TEST_CASE(data, a_bad_micro_batch_spoils_its_step_cpu) { accumulation("cpu"); }
TEST_CASE(data, a_bad_micro_batch_spoils_its_step_gpu) { accumulation("cuda"); }

/* No metrics are requested for some steps: sync reports the error, once. */
TEST_CASE(data, steps_that_nobody_waits_for) {
    const Compiled *c = compile("cuda", "");
    ampc_session *s = open_on(c, "cuda", 0), *never = open_on(c, "cuda", 0);
    ampc_metrics m = {.size = sizeof m};
    Data d;
    for (int i = 0; i < 6; i++) {
        data_with(&d, i, &numbers[i == 2 ? 0 : i == 3 ? 5 : 8]);
        CHECK_EQ_INT(c->api->step(s, d.in, 2, NULL), AMPC_OK);
        if (i != 2 && i != 3) step_ok(c, never, d.in, 2);
    }
    CHECK_EQ_INT(c->api->sync(s, &m), AMPC_ERR_DATA);
    CHECK_EQ_INT(m.bad_data, 2);
    CHECK_EQ_INT(m.applied, 1);
    found(c, s, "ids", 1, ROWS, 2);
    CHECK_EQ_INT(c->api->sync(s, &m), AMPC_OK);
    same_states(c, s, never);
    c->api->close(s);
    c->api->close(never);
}

/* ---- evaluation and prediction ------------------------------------------- */

static void inference(const char *device) {
    const Compiled *c = compile(device, "");
    ampc_session *s = open_on(c, device, 0);
    ampc_eval e = {.size = sizeof e}, before;
    Data d;
    CHECK_EQ_INT(c->api->evaluate(s, data(&d, 0)->in, 2, BATCH, &e), AMPC_OK);
    before = e;
    data_with(&d, 1, &numbers[0]); /* sample 2 */
    CHECK_EQ_INT(c->api->evaluate(s, d.in, 2, 3, &e), AMPC_ERR_DATA);
    found(c, s, "target", 2, CLASSES, 0);
    CHECK_MEM(&e, &before, sizeof e);
    CHECK_EQ_INT(c->api->evaluate(s, d.in, 2, 2, &e), AMPC_OK);
    CHECK_EQ_INT(e.samples, BATCH + 2);
    data_with(&d, 1, &numbers[5]); /* sample 0 */
    CHECK_EQ_INT(c->api->predict(s, d.in, 1, 1, NULL, 0), AMPC_ERR_DATA);
    found(c, s, "ids", 1, ROWS, 0);
    CHECK_EQ_INT(c->api->predict(s, data(&d, 1)->in, 1, 1, NULL, 0), AMPC_OK);
    data_with(&d, 1, &numbers[10]); /* sample 1 */
    CHECK_EQ_INT(c->api->predict(s, d.in, 1, 1, NULL, 0), AMPC_OK);
    CHECK_EQ_INT(c->api->predict(s, d.in, 1, 2, NULL, 0), AMPC_ERR_DATA);
    found(c, s, "ids", 5, INT32_MAX, 0);
    c->api->close(s);
}

/* Positions count from the start of the call's inputs, not of a batch; rows
   that are not valid may contain anything. */
TEST_CASE(data, calls_of_several_batches_name_the_position) {
    const Compiled *c = compile("cpu", "");
    ampc_session *s = open_on(c, "cpu", 0);
    ampc_eval e = {.size = sizeof e};
    int32_t ids[2 * BATCH * WORDS] = {0};
    int64_t target[2 * BATCH] = {0};
    ampc_input in[] = {
        ampc_in("ids", ids, sizeof ids, AMPC_DTYPE_I32),
        ampc_in("target", target, sizeof target, AMPC_DTYPE_I64)};
    ids[6 * WORDS + 1] = ROWS;
    CHECK_EQ_INT(c->api->predict(s, in, 1, 6, NULL, 0), AMPC_OK);
    CHECK_EQ_INT(c->api->predict(s, in, 1, 7, NULL, 0), AMPC_ERR_DATA);
    found(c, s, "ids", 6 * WORDS + 1, ROWS, 0);
    CHECK_EQ_INT(c->api->evaluate(s, in, 2, 7, &e), AMPC_ERR_DATA);
    found(c, s, "ids", 6 * WORDS + 1, ROWS, 0);
    target[6] = CLASSES;
    ids[6 * WORDS + 1] = 0;
    CHECK_EQ_INT(c->api->evaluate(s, in, 2, 7, &e), AMPC_ERR_DATA);
    found(c, s, "target", 6, CLASSES, 0);
    CHECK_EQ_INT(e.samples, 0);
    CHECK_EQ_INT(c->api->evaluate(s, in, 2, 6, &e), AMPC_OK);
    CHECK_EQ_INT(e.samples, 6);
    c->api->close(s);
}

TEST_CASE(data, evaluation_and_prediction_refuse_cpu) { inference("cpu"); }
TEST_CASE(data, evaluation_and_prediction_refuse_gpu) { inference("cuda"); }

/* Ops inside a function of the model that read inputs under other names. */
TEST_CASE(data, functions_of_the_model_are_looked_into) {
    static const char text[] =
        "def row(t, i: int) -> y class any {\n"
        "  y = gather(t, transpose(i, perm=[1, 0]), axis=0)\n}\n"
        "def rows(t, i: int) -> y class any { y = row(t, i) }\n"
        "def punish(x, t: int) -> loss: f32 class fullout {\n"
        "  loss = nll_loss(x, t, axis=1)\n}\n"
        "graph forward(%ids: i32[2,3], %class: i64[4]) {\n"
        "  param %t: f32[7,4] = normal(1, 0.5), %w: f32[4,5] = 0.1\n"
        "  %e = rows %t, %ids : f32[3,2,4]\n"
        "  %y = matmul %w, %w {trans_a=1} : f32[5,5]\n"
        "  %z = slice %y {starts=[0,0], sizes=[4,5], steps=[1,1]} : f32[4,5]\n"
        "  %l = punish %z, %class : f32[]\n"
        "  %m = reduce_mean %e {axes=[0,1,2], keepdims=0} : f32[]\n"
        "  %s = add %l, %m : f32[]\n"
        "  return %s\n}\n";
    Compiled c = compile_text(text, "--loss auto --optimizer sgd,lr=0.1");
    ampc_session *s = open_on(&c, "cpu", 0);
    int32_t ids[6] = {0, 1, 2, 3, 4, 6};
    int64_t class[4] = {0, 4, 2, 1};
    ampc_input in[] = {ampc_in("ids", ids, sizeof ids, AMPC_DTYPE_I32),
                       ampc_in("class", class, sizeof class, AMPC_DTYPE_I64)};
    ampc_bad_data b = {.size = sizeof b};
    CHECK_EQ_INT(c.api->step(s, in, 2, NULL), AMPC_OK);
    class[3] = CLASSES;
    CHECK_EQ_INT(c.api->step(s, in, 2, NULL), AMPC_ERR_DATA);
    CHECK_EQ_INT(c.api->bad_data(s, &b), AMPC_OK);
    CHECK_STR(b.input, "class");
    CHECK_EQ_INT(b.index, 3);
    class[3] = 0;
    ids[4] = 7;
    CHECK_EQ_INT(c.api->step(s, in, 2, NULL), AMPC_ERR_DATA);
    CHECK_EQ_INT(c.api->bad_data(s, &b), AMPC_OK);
    CHECK_STR(b.input, "ids");
    CHECK_EQ_INT(b.index, 4);
    CHECK_EQ_INT(b.value, 7);
    c.api->close(s);
    compiled_close(&c);
}

/* ---- loops and branches ---------------------------------------------------
 */

#define TRIPS                                                                  \
    "graph forward(%x: f32[4,2], %n: i64[4]) {\n"                              \
    "  param %w: f32[2,5] = normal(1, 0.5), %t: f32[3,5] = normal(2, 0.5)\n"   \
    "  const %few: i64[] = 3\n"                                                \
    "  %y = matmul %x, %w : f32[4,5]\n"                                        \
    "  %turns = reduce_max %n {axes=[0], keepdims=0} : i64[]\n"                \
    "  %e = ended %y, %turns {loop=\"again\", most=5} : f32[4,5]\n"            \
    "  %c = less %n, %few : bool[4]\n"                                         \
    "  %i = read_if %n, %c : i64[4]\n"                                         \
    "  %r = gather %t, %i {axis=0} : f32[4,5]\n"                               \
    "  %z = add %e, %r : f32[4,5]\n"                                           \
    "  return %z\n"                                                            \
    "}\n"

/* More than 5 turns do not train; row 4 is read only where n is below 3, so
   that 3 to 5 are no rows out of range, but -9 is. */
static void turns(const char *device) {
    const Compiled *c = compile_on(device, TRIPS, OPTIONS, "");
    ampc_session *s = open_on(c, device, 0), *never = open_on(c, device, 0);
    float x[8] = {1, -1, 2, 3, 0, -2, 1, 1};
    int64_t n[4] = {0, 5, 3, 2}, target[4] = {0, 1, 4, 2};
    ampc_input in[] = {
        ampc_in("x", x, sizeof x, AMPC_DTYPE_F32),
        ampc_in("n", n, sizeof n, AMPC_DTYPE_I64),
        ampc_in("target", target, sizeof target, AMPC_DTYPE_I64)};
    ampc_bad_data b = {.size = sizeof b};
    ampc_metrics m = {.size = sizeof m};
    ampc_eval e = {.size = sizeof e};
    step_ok(c, s, in, 3);
    step_ok(c, never, in, 3);
    n[1] = 6;
    CHECK_EQ_INT(c->api->step(s, in, 3, &m), AMPC_ERR_DATA);
    CHECK_HAS(c->api->error(s), "loop 'again' makes more than 5 trips");
    CHECK_EQ_INT(m.applied, 0);
    CHECK_EQ_INT(m.bad_data, 1);
    CHECK_EQ_INT(c->api->bad_data(s, &b), AMPC_OK);
    CHECK_STR(b.input, "again");
    CHECK_EQ_INT(b.value, 6);
    CHECK_EQ_INT(b.most, 5);
    same_states(c, s, never);
    CHECK_EQ_INT(c->api->evaluate(s, in, 3, 4, &e), AMPC_ERR_DATA);
    CHECK_EQ_INT(c->api->predict(s, in, 2, 4, NULL, 0), AMPC_ERR_DATA);
    CHECK_HAS(c->api->error(s), "--max-trips");
    n[1] = -9;
    CHECK_EQ_INT(c->api->step(s, in, 3, &m), AMPC_ERR_DATA);
    CHECK_HAS(c->api->error(s), "'n': -9 at position 1 is outside -3..2");
    n[1] = 4;
    step_ok(c, s, in, 3);
    c->api->close(s);
    c->api->close(never);
}

TEST_CASE(data, loops_of_too_many_trips_do_not_train_cpu) { turns("cpu"); }
TEST_CASE(data, loops_of_too_many_trips_do_not_train_gpu) { turns("cuda"); }

/* ---- checkpoints, constants, the driver ---------------------------------- */

/* Counts reported before a checkpoint are not reported again after it. */
TEST_CASE(data, resumed_counts_are_old_news) {
    const Compiled *c = compile("cpu", "");
    ampc_session *s = open_on(c, "cpu", 0);
    ampc_metrics m = {.size = sizeof m};
    Data d;
    const char *path = test_tmp("told.safetensors");
    data_with(&d, 0, &numbers[0]);
    CHECK_EQ_INT(c->api->step(s, d.in, 2, NULL), AMPC_ERR_DATA);
    CHECK_EQ_INT(c->api->save(s, path), AMPC_OK);
    c->api->close(s);
    s = open_on(c, "cpu", 0);
    CHECK_EQ_INT(c->api->resume(s, path), AMPC_OK);
    CHECK_EQ_INT(c->api->step(s, data(&d, 1)->in, 2, &m), AMPC_OK);
    CHECK_EQ_INT(m.bad_data, 1);
    data_with(&d, 2, &numbers[1]);
    CHECK_EQ_INT(c->api->step(s, d.in, 2, NULL), AMPC_ERR_DATA);
    found(c, s, "target", 0, -1, 2);
    c->api->close(s);
}

static void refused(const char *text, const char *why) {
    char path[600], *out = NULL;
    snprintf(path, sizeof path, "%s/refused.amp", test_tmpdir());
    REQUIRE(test_write_file(path, text, strlen(text)));
    CHECK_EQ_INT(
        test_command(&out, "'%s' check '%s' --loss none", test_ampc(), path),
        1);
    CHECK_HAS(out, why);
    free(out);
}

TEST_CASE(data, constants_are_refused_when_compiling) {
    refused("graph forward(%x: f32[4,5]) {\n"
            "  const %i: i64[3] = [0, 4, 1]\n"
            "  %y = gather %x, %i {axis=0} : f32[3,5]\n"
            "  return %y\n}\n",
            "index 4 at position 1 is outside -4..3");
    refused("graph forward(%x: f32[1,2]) {\n"
            "  const %c: f32[2,2] = [1, 2, 3, 4]\n"
            "  const %i: i64[1] = [-3]\n"
            "  %r = gather %c, %i {axis=0} : f32[1,2]\n"
            "  %y = add %x, %r : f32[1,2]\n"
            "  return %y\n}\n",
            "index -3 at position 0 is outside -2..1");
}

/* An .npy file of 64-bit integers. */
static void write_labels(const char *path, const int64_t *v, int n) {
    char file[128 + 64 * 8];
    memset(file, ' ', 128);
    memcpy(file, "\x93NUMPY\x01\x00\x76\x00", 10);
    snprintf(file + 10, 100,
             "{'descr': '<i8', 'fortran_order': False, 'shape': (%d,), }", n);
    file[10 + strlen(file + 10)] = ' ';
    file[127] = '\n';
    memcpy(file + 128, v, (size_t)n * 8);
    REQUIRE(test_write_file(path, file, 128 + (size_t)n * 8));
}

static void run_fails(const char *options) {
    static const char text[] = "graph forward(%ids: i64[4]) {\n"
                               "  param %t: f32[7,5] = normal(1, 1)\n"
                               "  %y = gather %t, %ids {axis=0} : f32[4,5]\n"
                               "  return %y\n}\n";
    char ids[600], target[600], *out = NULL;
    int64_t v[16];
    Compiled c = compile_text(text, OPTIONS);
    snprintf(ids, sizeof ids, "%s/ids.npy", test_tmpdir());
    snprintf(target, sizeof target, "%s/t.npy", test_tmpdir());
    for (int i = 0; i < 16; i++) v[i] = 1 + i % CLASSES; /* counted from 1 */
    v[4] = v[14] = 1; /* but for one sample */
    write_labels(ids, v, 16);
    write_labels(target, v, 16);
    CHECK_EQ_INT(test_command(&out,
                              "cd '%s' && '%s' run '%s' --quiet --device cpu "
                              "--feed ids=ids.npy --feed target=t.npy %s",
                              test_tmpdir(), test_ampc(), c.path, options),
                 1);
    CHECK_HAS(out, "t.npy: ");
    CHECK_HAS(out, "error: sample 9 (from 0) has 5; input 'target' takes 0 "
                   "to 4");
    free(out);
    compiled_close(&c);
}

/* The ids above 2 are two in each batch of four but the last. */
TEST_CASE(data, run_names_the_node_of_rows_that_are_too_few) {
    static const char text[] =
        "graph forward(%ids: i64[4]) {\n"
        "  param %w: f32[4,5] = normal(1, 1)\n"
        "  const %two: i64[] = 2\n"
        "  %m = greater %ids, %two : bool[4]\n"
        "  %i = cast %m : i64[4]\n"
        "  %n = reduce_sum %i {axes=[0], keepdims=0} : i64[]\n"
        "  %e = sub %n, %two : i64[]\n"
        "  %y = as_many %w, %e {node=\"put\"} : f32[4,5]\n"
        "  return %y\n}\n";
    char file[600], *out = NULL;
    int64_t v[16];
    Compiled c = compile_text(text, OPTIONS);
    snprintf(file, sizeof file, "%s/ids.npy", test_tmpdir());
    for (int i = 0; i < 16; i++) v[i] = 1 + i % CLASSES;
    write_labels(file, v, 16);
    snprintf(file, sizeof file, "%s/t.npy", test_tmpdir());
    for (int i = 0; i < 16; i++) v[i]--;
    write_labels(file, v, 16);
    CHECK_EQ_INT(test_command(&out,
                              "cd '%s' && '%s' run '%s' --quiet --device cpu "
                              "--feed ids=ids.npy --feed target=t.npy --eval",
                              test_tmpdir(), test_ampc(), c.path),
                 1);
    CHECK_HAS(out, "node 'put' puts rows where a mask selects, and the mask "
                   "selects 1 rows more than there are");
    free(out);
    compiled_close(&c);
}

TEST_CASE(data, run_names_file_sample_and_value) {
    run_fails("--steps 8");
    run_fails("--epochs 1 --shuffle");
    run_fails("--eval");
}
