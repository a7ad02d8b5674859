/* SPDX-License-Identifier: Apache-2.0 */
/* batches_test.c: --batch-sizes: a module evaluates and predicts with other
   batch sizes than it trains with, using the same weights. The oracle is the
   program for the module's own batch, row by row. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/on_device.h"

enum { BATCH = 6, IN = 5, CLASSES = 4 };

#define MODEL                                                                  \
    "dim B\n"                                                                  \
    "model net(x: f32[B,5]) {\n"                                               \
    "  h = Dropout(BatchNorm(Linear(x, units=7)), ratio=0.25)\n"               \
    "  return y = Linear(relu(h), units=4)\n"                                  \
    "}\n"
#define OPTIONS                                                                \
    "--loss cross_entropy --batch-sizes 1,6,4 --optimizer sgd,lr=0.1 "

typedef struct Data {
    float x[BATCH * IN];
    int64_t target[BATCH];
} Data;

static Data data(void) {
    Data d;
    for (int i = 0; i < BATCH * IN; i++) d.x[i] = sinf((float)i * 0.7f);
    for (int i = 0; i < BATCH; i++) d.target[i] = i * 3 % CLASSES;
    return d;
}

/* Rows from `first` on, as the inputs of a batch of n. */
static void rows(Data *d, int first, int n, ampc_input in[2]) {
    in[0] = ampc_in("x", d->x + (size_t)first * IN, (size_t)n * IN * 4,
                    AMPC_DTYPE_F32);
    in[1] = ampc_in("target", d->target + first, (size_t)n * 8, AMPC_DTYPE_I64);
}

static ampc_session *trained(const Compiled *c, const char *device, Data *d) {
    ampc_input in[2];
    ampc_session *s = open_on(c, device, 0);
    rows(d, 0, BATCH, in);
    for (int i = 0; i < 3; i++) step_ok(c, s, in, 2);
    return s;
}

static void predict(const Compiled *c, ampc_session *s, Data *d, int first,
                    int n, int valid, float *y) {
    ampc_input in[2];
    ampc_output out =
        ampc_out("y", y, (size_t)valid * CLASSES * 4, AMPC_DTYPE_F32);
    rows(d, first, n, in);
    if (c->api->predict(s, in, 1, valid, &out, 1))
        FAIL("batch of %d: %s", n, c->api->error(s));
}

static void close_to(const float *got, const float *want, int n) {
    for (int i = 0; i < n; i++)
        CHECK_MSG(fabsf(got[i] - want[i]) <= 1e-5f, "[%d]: %g, not %g", i,
                  got[i], want[i]);
}

static void check_rows(const char *device) {
    const Compiled *c = compile_on(device, MODEL, OPTIONS, "--precision fp32");
    Data d = data();
    ampc_session *s = trained(c, device, &d);
    float all[BATCH * CLASSES], y[BATCH * CLASSES];
    predict(c, s, &d, 0, BATCH, BATCH, all);
    for (int i = 0; i < BATCH; i++) {
        predict(c, s, &d, i, 1, 1, y);
        close_to(y, all + i * CLASSES, CLASSES);
    }
    for (int first = 0; first + 4 <= BATCH; first += 2) {
        predict(c, s, &d, first, 4, 4, y);
        close_to(y, all + first * CLASSES, 4 * CLASSES);
        predict(c, s, &d, first, 4, 3, y);
        close_to(y, all + first * CLASSES, 3 * CLASSES);
    }
    float one[CLASSES];
    ampc_output out = ampc_out("y", y, 4 * CLASSES * 4, AMPC_DTYPE_F32);
    CHECK_EQ_INT(c->api->read_output(s, "y", &out), AMPC_OK);
    close_to(y, all + 2 * CLASSES, 4 * CLASSES);
    predict(c, s, &d, 5, 1, 1, one);
    out.bytes = sizeof one;
    out.data = one;
    CHECK_EQ_INT(c->api->read_output(s, "y", &out), AMPC_OK);
    close_to(one, all + 5 * CLASSES, CLASSES);
    c->api->close(s);
}

static void check_sums(const char *device) {
    const Compiled *c = compile_on(device, MODEL, OPTIONS, "--precision fp32");
    Data d = data();
    ampc_session *s = trained(c, device, &d);
    ampc_eval whole = {.size = sizeof whole}, parts = whole;
    ampc_input in[2];
    rows(&d, 0, BATCH, in);
    CHECK_EQ_INT(c->api->evaluate(s, in, 2, BATCH, &whole), AMPC_OK);
    rows(&d, 0, 4, in);
    CHECK_EQ_INT(c->api->evaluate(s, in, 2, 4, &parts), AMPC_OK);
    rows(&d, 4, 1, in);
    CHECK_EQ_INT(c->api->evaluate(s, in, 2, 1, &parts), AMPC_OK);
    rows(&d, 2, 4, in); /* row 2 again, which does not count */
    d.target[2] = CLASSES;
    CHECK_EQ_INT(c->api->evaluate(s, in, 2, 1, &parts), AMPC_ERR_DATA);
    d.target[2] = 2;
    rows(&d, 5, 1, in);
    CHECK_EQ_INT(c->api->evaluate(s, in, 2, 1, &parts), AMPC_OK);
    CHECK_EQ_INT(parts.samples, BATCH);
    CHECK(parts.correct == whole.correct && parts.count == whole.count);
    CHECK(fabs(parts.loss_num - whole.loss_num) <= 1e-5);
    CHECK(parts.exact && parts.loss_den == whole.loss_den);
    c->api->close(s);
}

TEST_CASE(batches, rows_are_those_of_the_own_batch) { check_rows("cpu"); }
TEST_CASE(batches, rows_are_those_of_the_own_batch_cuda) { check_rows("cuda"); }
TEST_CASE(batches, evaluation_adds_up) { check_sums("cpu"); }
TEST_CASE(batches, evaluation_adds_up_cuda) { check_sums("cuda"); }

/* 16-bit copies of weights are shared, also after weights were written. */
TEST_CASE(batches, weights_are_shared) {
    Compiled c = compile_text(MODEL, OPTIONS "--target cpu:x86-64-v2");
    Data d = data();
    ampc_session *s = trained(&c, "cpu", &d);
    float all[BATCH * CLASSES], y[CLASSES], w[7 * IN];
    read_var(&c, s, "Linear.weight", w, sizeof w, AMPC_DTYPE_F32);
    for (int round = 0; round < 2; round++) {
        predict(&c, s, &d, 3, 1, 1, y);
        predict(&c, s, &d, 0, BATCH, BATCH, all);
        for (int i = 0; i < CLASSES; i++)
            CHECK_MSG(fabsf(y[i] - all[3 * CLASSES + i]) <= 0.02f,
                      "round %d, [%d]: %g, not %g", round, i, y[i],
                      all[3 * CLASSES + i]);
        for (int i = 0; i < 7 * IN; i++) w[i] = -w[i];
        write_var(&c, s, "Linear.weight", w, sizeof w, AMPC_DTYPE_F32);
    }
    c.api->close(s);
    compiled_close(&c);
}

TEST_CASE(batches, programs_and_sizes) {
    Compiled c = compile_text(MODEL, OPTIONS "--target cpu:x86-64-v2");
    Data d = data();
    ampc_module_info info = {.size = sizeof info};
    ampc_tensor_info t = {.size = sizeof t};
    ampc_program_info p = {.size = sizeof p};
    REQUIRE(!c.api->describe(c.api->module, &info));
    CHECK_EQ_INT(info.batch, BATCH); /* the largest one, since no option sets
                                        B */
    CHECK_HAS(info.info, "\"batch_sizes\":[1,6,4]");
    CHECK_EQ_INT(c.api->input(c.api->module, "predict@4", 0, &t), AMPC_OK);
    CHECK_EQ_INT(t.shape[0], 4);
    CHECK_EQ_INT(c.api->output(c.api->module, "predict@1", 0, &t), AMPC_OK);
    CHECK_EQ_INT(t.shape[0], 1);
    CHECK_EQ_INT(c.api->program(c.api->module, "eval@4", &p), AMPC_OK);
    CHECK_EQ_INT(c.api->program(c.api->module, "predict@6", &p),
                 AMPC_ERR_UNSUPPORTED);
    ampc_session *s = trained(&c, "cpu", &d);
    ampc_input in[2];
    rows(&d, 0, 3, in);
    CHECK_EQ_INT(c.api->predict(s, in, 1, 3, NULL, 0), AMPC_OK);
    in[0].bytes--;
    CHECK_EQ_INT(c.api->predict(s, in, 1, 3, NULL, 0), AMPC_ERR_ARGUMENT);
    CHECK_HAS(c.api->error(s), "120 needed (f32[6,5])");
    rows(&d, 0, 4, in);
    CHECK_EQ_INT(c.api->predict(s, in, 1, 5, NULL, 0), AMPC_ERR_ARGUMENT);
    CHECK_HAS(c.api->error(s), "5 valid samples in a batch of 4");
    c.api->close(s);
    compiled_close(&c);
}

/* --dim replaces the batch size for training; the same for an ONNX file. */
TEST_CASE(batches, of_an_onnx_model) {
    Compiled c =
        compile_file(test_data_path("models/mnist_cnn.onnx"),
                     "--loss cross_entropy --dim batch=4 --batch-sizes 1,8 "
                     "--target cpu:x86-64-v2 --precision fp32");
    ampc_module_info info = {.size = sizeof info};
    REQUIRE(!c.api->describe(c.api->module, &info));
    CHECK_EQ_INT(info.batch, 4);
    float *x = calloc(8 * 784, sizeof *x), all[80], y[10];
    for (int i = 0; i < 8 * 784; i++) x[i] = sinf((float)i);
    ampc_session *s = open_threads(&c, 2);
    ampc_input in = ampc_in(NULL, x, 8 * 784 * 4, AMPC_DTYPE_F32);
    ampc_output out = ampc_out(NULL, all, sizeof all, AMPC_DTYPE_F32);
    CHECK_EQ_INT(c.api->predict(s, &in, 1, 8, &out, 1), AMPC_OK);
    in.data = x + 7 * 784;
    in.bytes = 784 * 4;
    out.data = y;
    out.bytes = sizeof y;
    CHECK_EQ_INT(c.api->predict(s, &in, 1, 1, &out, 1), AMPC_OK);
    close_to(y, all + 70, 10);
    c.api->close(s);
    compiled_close(&c);
    free(x);
}
