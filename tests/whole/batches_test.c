/* SPDX-License-Identifier: Apache-2.0 */
/* batches_test.c: a module for several sizes of its inputs, with the same
   weights. --batch-sizes: evaluation and prediction with other batch sizes than
   the module trains with; the oracle is the program for the module's own batch,
   row by row. --dim NAME=N|N: the oracle are modules for one of the sizes, and
   inputs that the test fills up. */
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

/* ---- several sizes of a dimension ---------------------------------------- */

#define SENTENCES                                                              \
    "dim B = 4\n"                                                              \
    "dim T\n"                                                                  \
    "model net(x: i64[B,T], mask: f32[B,T]) {\n"                               \
    "  h = Embedding(x, size=11, width=8)\n"                                   \
    "  s = cumsum(h * reshape(mask, shape=[B,T,1]), axis=1)\n"                 \
    "  h = Dropout(gelu(Linear(h + s, units=8)), ratio=0.1)\n"                 \
    "  return y = Linear(h, units=5)\n"                                        \
    "}\n"
#define SENTENCE_OPTIONS                                                       \
    "--loss cross_entropy,axis=2 --optimizer sgd,lr=0.5,momentum=0.9 "         \
    "--precision fp16 "
#define PADS  "--pad x=0,mask=0,target=-100 "
#define SIZES "--dim 'T=4|8' " PADS
#define THREE                                                                  \
    "--dim 'T=4|6|8' --batch-sizes 1 --precision fp32 --accumulate 2 "         \
    "--dropout off --debug-nonfinite " PADS

enum { SAMPLES = 4, LONGEST = 8, WORDS = 5 };

typedef struct Sentences {
    int64_t x[SAMPLES * LONGEST], target[SAMPLES * LONGEST];
    float mask[SAMPLES * LONGEST];
    int64_t shape[2];
} Sentences;

/* Sentences of t words, in rows of `width`. */
static Sentences sentences(int n, int t, int width) {
    Sentences s = {.shape = {n, width}};
    for (int i = 0; i < n; i++)
        for (int k = 0; k < width; k++) {
            bool word = k < t;
            s.x[i * width + k] = word ? (i * 7 + k * 3) % 11 : 0;
            s.mask[i * width + k] = word;
            s.target[i * width + k] = word ? (i + k) % WORDS : -100;
        }
    return s;
}

static void sentence_inputs(const Sentences *s, ampc_input in[3]) {
    size_t n = (size_t)(s->shape[0] * s->shape[1]);
    in[0] = ampc_in("x", s->x, n * 8, AMPC_DTYPE_I64);
    in[1] = ampc_in("mask", s->mask, n * 4, AMPC_DTYPE_F32);
    in[2] = ampc_in("target", s->target, n * 8, AMPC_DTYPE_I64);
    for (int i = 0; i < 3; i++) {
        in[i].rank = 2;
        in[i].shape = s->shape;
    }
}

static ampc_metrics sentence_step(const Compiled *c, ampc_session *s,
                                  Sentences d) {
    ampc_input in[3];
    sentence_inputs(&d, in);
    return step_ok(c, s, in, 3);
}

enum { TRAINED = 1 << AMPC_KIND_PARAMETER | 1 << AMPC_KIND_STATE };

static void same_state(const Compiled *a, ampc_session *s, const void *want,
                       size_t bytes, int step) {
    size_t n;
    void *x = read_all(a, s, TRAINED, &n);
    CHECK_MSG(n == bytes && memcmp(x, want, n) == 0, "step %d: another state",
              step);
    free(x);
}

/* A variable before a step. */
typedef struct Before {
    char name[64], bytes[600];
    size_t n;
    ampc_dtype dtype;
} Before;

enum { VARIABLES = 40, STEPS = 5 };

/* A step of the module for several sizes. */
typedef struct Sized {
    Before before[VARIABLES];
    int n;
    ampc_metrics metrics;
    void *after;
    size_t bytes;
} Sized;

static void keep_state(const Compiled *c, ampc_session *s, Sized *to) {
    ampc_module_info info = {.size = sizeof info};
    REQUIRE(!c->api->describe(c->api->module, &info));
    for (uint32_t i = 0; i < info.nvariable; i++) {
        ampc_variable_info v = {.size = sizeof v};
        Before *b = &to->before[to->n];
        REQUIRE(!c->api->variable(c->api->module, i, &v));
        if (v.kind > AMPC_KIND_STATE) continue;
        REQUIRE(v.bytes <= sizeof b->bytes && to->n < VARIABLES);
        snprintf(b->name, sizeof b->name, "%s", v.name);
        b->n = v.bytes;
        b->dtype = (ampc_dtype)v.dtype;
        read_var(c, s, b->name, b->bytes, b->n, b->dtype);
        to->n++;
    }
}

static const int sizes_of_steps[STEPS] = {4, 8, 8, 4, 4};

/* Makes the steps of t words in a module for that size alone, each from the
   state that it began with. */
static void check_one_size(const char *device, const Compiled *c, int t,
                           const Sized *step) {
    ampc_session *s = open_on(c, device, 0);
    for (int i = 0; i < STEPS; i++) {
        if (sizes_of_steps[i] != t) continue;
        for (int k = 0; k < step[i].n; k++) {
            const Before *b = &step[i].before[k];
            write_var(c, s, b->name, b->bytes, b->n, b->dtype);
        }
        const ampc_metrics *w = &step[i].metrics;
        ampc_metrics m = sentence_step(c, s, sentences(SAMPLES, t, t));
        CHECK_MSG(m.loss == w->loss && m.grad_norm == w->grad_norm,
                  "step %d: loss %.9g, norm %.9g, not %.9g, %.9g", i, m.loss,
                  m.grad_norm, w->loss, w->grad_norm);
        same_state(c, s, step[i].after, step[i].bytes, i);
    }
    c->api->close(s);
}

/* Steps of changing sizes have the bits of modules for one size. */
static void check_sized_steps(const char *device, bool both) {
    Sized *step = calloc(STEPS, sizeof *step);
    const Compiled *c = compile_on(device, SENTENCES, SENTENCE_OPTIONS, SIZES);
    ampc_session *s = open_on(c, device, 0);
    for (int i = 0; i < STEPS; i++) {
        int t = sizes_of_steps[i];
        keep_state(c, s, &step[i]);
        step[i].metrics = sentence_step(c, s, sentences(SAMPLES, t, t));
        step[i].after = read_all(c, s, TRAINED, &step[i].bytes);
        CHECK_EQ_INT(step[i].metrics.tried, i + 1);
    }
    c->api->close(s);
    check_one_size(device,
                   compile_on(device, SENTENCES, SENTENCE_OPTIONS, "--dim T=4"),
                   4, step);
    if (both)
        check_one_size(
            device,
            compile_on(device, SENTENCES, SENTENCE_OPTIONS, "--dim T=8"), 8,
            step);
    for (int i = 0; i < STEPS; i++) free(step[i].after);
    free(step);
}

TEST_CASE(sizes, steps_are_those_of_one_size) {
    check_sized_steps("cpu", true);
}
TEST_CASE(sizes, steps_are_those_of_one_size_cuda) {
    check_sized_steps("cuda", false);
}

/* Inputs between two sizes take the larger one, filled up. */
static void check_filled(const char *device) {
    const Compiled *c = compile_on(device, SENTENCES, SENTENCE_OPTIONS, SIZES);
    static const int words[] = {1, 3, 4, 5, 7, 8}, sizes[] = {4, 4, 4, 8, 8, 8};
    ampc_session *s = open_on(c, device, 0), *t = open_on(c, device, 0);
    for (int i = 0; i < 6; i++) {
        Sentences part = sentences(SAMPLES, words[i], words[i]);
        Sentences full = sentences(SAMPLES, words[i], sizes[i]);
        ampc_metrics m = sentence_step(c, s, part);
        ampc_metrics w = sentence_step(c, t, full);
        CHECK_MSG(m.loss == w.loss && m.loss > 0, "%d words: %.9g, not %.9g",
                  words[i], m.loss, w.loss);
        size_t n;
        void *state = read_all(c, t, TRAINED, &n);
        same_state(c, s, state, n, i);
        free(state);
    }
    for (int n = 1; n <= SAMPLES + 2; n += 2) { /* and to a batch */
        ampc_eval e = {.size = sizeof e}, f = e;
        ampc_input in[3];
        int most = n < SAMPLES ? n : SAMPLES;
        Sentences part = sentences(most, 3, 3), full = sentences(most, 3, 4);
        float y[2][SAMPLES * LONGEST * WORDS];
        ampc_output out =
            ampc_out("y", y[0], (size_t)most * 4 * WORDS * 4, AMPC_DTYPE_F32);
        sentence_inputs(&part, in);
        CHECK_EQ_INT(c->api->evaluate(s, in, 3, most, &e), AMPC_OK);
        CHECK_EQ_INT(c->api->predict(s, in, 2, most, &out, 1), AMPC_OK);
        sentence_inputs(&full, in);
        CHECK_EQ_INT(c->api->evaluate(s, in, 3, most, &f), AMPC_OK);
        out.data = y[1];
        CHECK_EQ_INT(c->api->predict(s, in, 2, most, &out, 1), AMPC_OK);
        CHECK(e.loss_num == f.loss_num && e.loss_den == f.loss_den);
        CHECK_EQ_INT(e.loss_den, most * 3);
        CHECK(memcmp(y[0], y[1], out.bytes) == 0);
    }
    CHECK(sentence_step(c, s, sentences(3, 3, 3)).loss ==
          sentence_step(c, t, sentences(3, 3, 4)).loss);
    c->api->close(s);
    c->api->close(t);
}

TEST_CASE(sizes, inputs_are_filled_up) { check_filled("cpu"); }
TEST_CASE(sizes, inputs_are_filled_up_cuda) { check_filled("cuda"); }

/* Values of --pad count here: axis T is filled up, missing samples and an axis
   of one size are not. */
static void check_not_filled(const char *device) {
    const Compiled *c =
        compile_on(device, SENTENCES, SENTENCE_OPTIONS "--dim 'T=4|8' ",
                   "--pad x=0,mask=0,target=0");
    ampc_session *s = open_on(c, device, 0), *t = open_on(c, device, 0);
    Sentences part = sentences(3, 3, 3), full = sentences(3, 3, 4);
    for (int i = 0; i < 3 * 4; i++)
        if (full.target[i] < 0) full.target[i] = 0;
    double loss = sentence_step(c, s, part).loss;
    CHECK(loss == sentence_step(c, t, full).loss && loss > 0);
    c->api->close(s);
    c->api->close(t);
    c = compile_on(device,
                   "dim T\n"
                   "model net(x: f32[2,T,3]) {\n"
                   "  return y = Linear(x, units=2)\n"
                   "}\n",
                   "--loss none --dim 'T=4|8' ", "--pad x=0");
    s = open_on(c, device, 0);
    float x[2 * 3 * 3] = {0}, y[2 * 8 * 2];
    ampc_input in = ampc_in("x", x, 2 * 3 * 2 * sizeof *x, AMPC_DTYPE_F32);
    ampc_output out = ampc_out("y", y, sizeof y, AMPC_DTYPE_F32);
    in.rank = 3;
    in.shape = (int64_t[]){2, 3, 2};
    CHECK_EQ_INT(c->api->predict(s, &in, 1, 2, &out, 1), AMPC_ERR_ARGUMENT);
    CHECK_HAS(c->api->error(s), "shape f32[2,3,2] given, f32[2,4,3] needed");
    in.bytes = sizeof x;
    in.shape = (int64_t[]){2, 3, 3};
    CHECK_EQ_INT(c->api->predict(s, &in, 1, 2, &out, 1), AMPC_OK);
    c->api->close(s);
}

TEST_CASE(sizes, what_is_not_filled_up) { check_not_filled("cpu"); }
TEST_CASE(sizes, what_is_not_filled_up_cuda) { check_not_filled("cuda"); }

/* Without a shape the bytes choose; `fit` tells which program. */
TEST_CASE(sizes, programs_are_chosen) {
    const Compiled *c = compile_on("cpu", SENTENCES, SENTENCE_OPTIONS, THREE);
    static const struct {
        int samples, words;
        bool shape;
        const char *micro, *predict;
    } rows[] = {
        {4, 8, true, "micro", "predict"},
        {4, 7, true, "micro", "predict"},
        {4, 6, true, "micro@T=6", "predict@T=6"},
        {4, 2, true, "micro@T=4", "predict@T=4"},
        {1, 5, true, "micro@T=6", "predict@1,T=6"},
        {1, 8, true, "micro", "predict@1"},
        {2, 4, true, "micro@T=4", "predict@T=4"},
        {9, 3, true, "micro@T=4", "predict@T=4"},
        {4, 9, true, "micro", "predict"},
        {4, 6, false, "micro@T=6", "predict@T=6"},
        {1, 4, false, "micro", "predict@1,T=4"},
    };
    ampc_session *s = open_on(c, "cpu", 0);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        int64_t shape[2] = {rows[i].samples, rows[i].words};
        size_t n = (size_t)(shape[0] * shape[1]);
        ampc_input in[] = {ampc_in("x", NULL, n * 8, AMPC_DTYPE_I64),
                           ampc_in("mask", NULL, n * 4, AMPC_DTYPE_F32)};
        const char *name = "";
        for (int k = 0; k < 2; k++) {
            in[k].shape = shape;
            in[k].rank = rows[i].shape ? 2 : -1;
        }
        CHECK_EQ_INT(c->api->fit(s, "micro", in, 2, &name), AMPC_OK);
        CHECK_STR(name, rows[i].micro);
        CHECK_EQ_INT(c->api->fit(s, "predict", in, 2, &name), AMPC_OK);
        CHECK_STR(name, rows[i].predict);
        ampc_tensor_info t = {.size = sizeof t};
        CHECK_EQ_INT(c->api->output(c->api->module, name, 0, &t), AMPC_OK);
    }
    const char *name;
    CHECK_EQ_INT(c->api->fit(s, "outputs", NULL, 0, &name), AMPC_ERR_ARGUMENT);
    CHECK_EQ_INT(c->api->fit(s, NULL, NULL, 0, &name), AMPC_ERR_ARGUMENT);
    c->api->close(s);
}

TEST_CASE(sizes, what_does_not_fit_is_refused) {
    const Compiled *c = compile_on("cpu", SENTENCES,
                                   SENTENCE_OPTIONS "--dim 'T=4|8' --pad x=0 ",
                                   "--precision fp32");
    ampc_session *s = open_on(c, "cpu", 0);
    ampc_input in[3];
    ampc_metrics m = {.size = sizeof m};
    Sentences d = sentences(SAMPLES, 5, 5);
    sentence_inputs(&d, in);
    CHECK_EQ_INT(c->api->step(s, in, 3, &m), AMPC_ERR_ARGUMENT);
    CHECK_HAS(c->api->error(s),
              "input 'mask': shape f32[4,5] given, f32[4,8] needed; smaller "
              "sizes of this module: T=4; --pad INPUT=VALUE");
    int64_t wide[2] = {SAMPLES, 9};
    for (int i = 0; i < 3; i++) {
        in[i].shape = wide;
        in[i].bytes = in[i].bytes / 20 * 36;
    }
    CHECK_EQ_INT(c->api->step(s, in, 3, &m), AMPC_ERR_ARGUMENT);
    CHECK_HAS(c->api->error(s), "i64[4,9] given, i64[4,8] needed; smaller");
    sentence_inputs(&d, in);
    in[1].bytes--;
    CHECK_EQ_INT(c->api->step(s, in, 3, &m), AMPC_ERR_ARGUMENT);
    CHECK_EQ_INT(c->api->predict(s, in, 1, 1, NULL, 0), AMPC_ERR_ARGUMENT);
    d = sentences(SAMPLES, 4, 4);
    CHECK_EQ_INT(sentence_step(c, s, d).tried, 1);
    c->api->close(s);
}

/* A module of fewer sizes goes on with a checkpoint; one of another batch does
   not. */
TEST_CASE(sizes, other_sizes_resume) {
    const char *path = test_tmp("sizes.safetensors");
    const Compiled *c = compile_on("cpu", SENTENCES, SENTENCE_OPTIONS, SIZES);
    const Compiled *one =
        compile_on("cpu", SENTENCES, SENTENCE_OPTIONS, "--dim T=4");
    const Compiled *few = compile_on("cpu", SENTENCES, SENTENCE_OPTIONS,
                                     "--dim B=2 --dim 'T=4|8' " PADS);
    ampc_session *s = open_on(c, "cpu", 0), *t = open_on(one, "cpu", 0);
    ampc_session *u = open_on(few, "cpu", 0);
    sentence_step(c, s, sentences(SAMPLES, 4, 4));
    sentence_step(c, s, sentences(SAMPLES, 8, 8));
    REQUIRE(c->api->save(s, path) == AMPC_OK);
    if (one->api->resume(t, path)) FAIL("%s", one->api->error(t));
    sentence_step(c, s, sentences(SAMPLES, 4, 4));
    sentence_step(one, t, sentences(SAMPLES, 4, 4));
    size_t n;
    void *want = read_all(c, s, TRAINED, &n);
    same_state(one, t, want, n, 2);
    REQUIRE(one->api->save(t, path) == AMPC_OK);
    if (c->api->resume(s, path)) FAIL("%s", c->api->error(s));
    same_state(c, s, want, n, 2);
    CHECK_EQ_INT(few->api->resume(u, path), AMPC_ERR_FORMAT);
    CHECK_HAS(few->api->error(u), "other options: --dim was");
    free(want);
    c->api->close(s);
    one->api->close(t);
    few->api->close(u);
}

/* Micro-steps of one update may have several sizes. */
TEST_CASE(sizes, micro_steps_add_up) {
    const Compiled *c = compile_on("cpu", SENTENCES, SENTENCE_OPTIONS, THREE);
    ampc_session *s = open_on(c, "cpu", 0), *t = open_on(c, "cpu", 0);
    for (int i = 0; i < 3; i++) {
        ampc_metrics m, w;
        sentence_step(c, s, sentences(SAMPLES, 3, 3));
        m = sentence_step(c, s, sentences(SAMPLES, 6, 6));
        sentence_step(c, t, sentences(SAMPLES, 3, 8));
        w = sentence_step(c, t, sentences(SAMPLES, 6, 8));
        CHECK(m.updated && w.updated);
        CHECK_MSG(fabs(m.loss - w.loss) <= 1e-5, "%g, not %g", m.loss, w.loss);
    }
    c->api->close(s);
    c->api->close(t);
}
