/* SPDX-License-Identifier: Apache-2.0 */
/* accumulate_test.c: a step of several micro-batches equals one with all
   their samples in one batch, whatever the weights of their labels, and
   samples that do not fill a batch train. models/record/accumulate.py wrote
   tests/accumulate/expected.csv. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/compiled.h"
#include "tests/tolerance.h"

enum { BATCH = 4, SAMPLES = 22, T = 3, IN = 5, H = 6, C = 4, MOST = 12 };
#define CPU    " --target cpu:x86-64-v2 "
#define BY_SGD " --loss auto --optimizer sgd,lr=0.2" CPU

/* Numbers as in models/record/accumulate.py. */
static struct Data {
    float x[SAMPLES * T * IN], r[SAMPLES * T * C], m[SAMPLES * T];
    int64_t t[SAMPLES * T];
    float w[IN * H], v[H * C];
} all;

static void numbers(float *to, int n, int by, int plus) {
    for (int i = 0; i < n; i++) to[i] = (float)((i * by + plus) % 64) / 32 - 1;
}

static void make_data(void) {
    numbers(all.x, SAMPLES * T * IN, 37, 5);
    numbers(all.r, SAMPLES * T * C, 29, 3);
    numbers(all.w, IN * H, 11, 7);
    numbers(all.v, H * C, 13, 2);
    for (int i = 0; i < SAMPLES * T; i++) {
        bool gone = i * 5 % 7 < 3 || i / T / 4 == 1 || i / T >= 12;
        all.t[i] = gone ? -100 : (i * 7 + i / 5) % C;
        all.m[i] = gone ? 0 : 1 + (float)(i % 3);
    }
}

/* Samples first .. first + n - 1 for the inputs of `program`. */
static size_t part(const Compiled *c, const char *program, int first, int n,
                   ampc_input *in) {
    const struct {
        const char *name;
        const void *data;
        size_t each; /* bytes of a sample */
        ampc_dtype dtype;
    } rows[] = {{"x", all.x, sizeof all.x / SAMPLES, AMPC_DTYPE_F32},
                {"r", all.r, sizeof all.r / SAMPLES, AMPC_DTYPE_F32},
                {"m", all.m, sizeof all.m / SAMPLES, AMPC_DTYPE_F32},
                {"t", all.t, sizeof all.t / SAMPLES, AMPC_DTYPE_I64}};
    ampc_tensor_info t = {.size = sizeof t};
    size_t k = 0;
    for (; c->api->input(c->api->module, program, (uint32_t)k, &t) == AMPC_OK;
         k++)
        for (int i = 0; i < 4; i++)
            if (!strcmp(t.name, rows[i].name))
                in[k] = ampc_in(rows[i].name,
                                (const char *)rows[i].data +
                                    (size_t)first * rows[i].each,
                                (size_t)n * rows[i].each, rows[i].dtype);
    return k;
}

static Compiled compiled(const char *name, const char *options) {
    char path[100];
    snprintf(path, sizeof path, "tests/accumulate/%s.amp", name);
    make_data();
    return compile_file(test_data_path(path), options);
}

static ampc_session *opened(const Compiled *c) {
    ampc_session *s = open_threads(c, 1);
    write_var(c, s, "w", all.w, sizeof all.w, AMPC_DTYPE_F32);
    write_var(c, s, "v", all.v, sizeof all.v, AMPC_DTYPE_F32);
    return s;
}

/* The window of `a` micro-batches that begins with sample `first`. */
static ampc_metrics window(const Compiled *c, ampc_session *s, int first,
                           int a) {
    ampc_metrics m = {.size = sizeof m};
    ampc_input in[4];
    for (int k = 0; k < a; k++, first += BATCH) {
        int n = SAMPLES - first;
        n = n < 0 ? 0 : n < BATCH ? n : BATCH;
        size_t nin = part(c, "micro", n ? first : 0, n, in);
        m = step_ok(c, s, in, nin);
    }
    return m;
}

/* ---- beside PyTorch ------------------------------------------------------ */

static double next_number(char **line) {
    char *end;
    double x = strtod(*line + 1, &end);
    REQUIRE(**line == ',' && end != *line + 1);
    *line = end;
    return x;
}

static void trains_as(const char *name, int a, char *line) {
    char options[100];
    float w[IN * H], v[H * C];
    snprintf(options, sizeof options, "--precision fp32 --accumulate %d" BY_SGD,
             a);
    Compiled c = compiled(name, options);
    ampc_session *s = opened(&c);
    for (int epoch = 0; epoch < 2; epoch++)
        for (int first = 0; first < SAMPLES; first += a * BATCH) {
            double want = next_number(&line);
            ampc_metrics m = window(&c, s, first, a);
            CHECK_MSG(fabs(m.loss - want) < TOL_STATE * (1 + fabs(want)),
                      "%s, %d: loss %.9g, not %.9g", name, a, m.loss, want);
            CHECK_EQ_INT(m.applied, want != 0);
        }
    read_var(&c, s, "w", w, sizeof w, AMPC_DTYPE_F32);
    read_var(&c, s, "v", v, sizeof v, AMPC_DTYPE_F32);
    for (int i = 0; i < IN * H; i++)
        CHECK_NEAR(w[i], next_number(&line), TOL_STATE);
    for (int i = 0; i < H * C; i++)
        CHECK_NEAR(v[i], next_number(&line), TOL_STATE);
    REQUIRE(*line == '\n');
    c.api->close(s);
    compiled_close(&c);
}

TEST_CASE(accumulate, as_one_batch) {
    static char line[4096];
    char name[40];
    int a, used, rows = 0;
    FILE *f = fopen(test_data_path("tests/accumulate/expected.csv"), "r");
    REQUIRE(f != NULL);
    while (fgets(line, sizeof line, f)) {
        REQUIRE(sscanf(line, "%39[^,],%d%n", name, &a, &used) == 2);
        trains_as(name, a, line + used);
        rows++;
    }
    fclose(f);
    CHECK_EQ_INT(rows, 2 * 17);
}

/* ---- means of means, on request ------------------------------------------ */

static double loss_of(const char *options, int first, int a) {
    Compiled c = compiled("labels", options);
    ampc_session *s = opened(&c);
    double loss = window(&c, s, first, a).loss;
    c.api->close(s);
    compiled_close(&c);
    return loss;
}

TEST_CASE(accumulate, means_of_means_on_request) {
    double a = loss_of("--precision fp32" BY_SGD, 0, 1);
    double b = loss_of("--precision fp32" BY_SGD, 8, 1);
    make_data();
    CHECK(a > 0.1 && b > 0.1 && fabs(a - b) > 0.01);
    Compiled c = compiled(
        "labels", "--precision fp32 --accumulate 2,mean_of_means" BY_SGD);
    ampc_session *s = opened(&c);
    ampc_input in[4];
    step_ok(&c, s, in, part(&c, "micro", 0, BATCH, in));
    ampc_metrics m = step_ok(&c, s, in, part(&c, "micro", 8, BATCH, in));
    CHECK_NEAR(m.loss, (a + b) / 2, TOL_STATE);
    c.api->close(s);
    compiled_close(&c);
}

/* A message names a loss that is not a mean over a batch. */
TEST_CASE(accumulate, other_losses_are_said) {
    static const struct {
        const char *loss, *options, *says;
    } rows[] = {
        {"sqrt(mse_loss(y, r))", "--accumulate 2", "counts the same"},
        {"mse_loss(y, r, reduction=\"sum\")", "--accumulate 2",
         "are added, not averaged"},
        {"mse_loss(y, r)", "--accumulate 2", NULL},
        {"sqrt(mse_loss(y, r))", "--accumulate 2,mean_of_means", NULL},
        {"sqrt(mse_loss(y, r))", "", NULL},
    };
    for (int i = 0; i < 5; i++) {
        const char *path = test_tmp("other.amp");
        char *says;
        FILE *f = fopen(path, "w");
        REQUIRE(f != NULL);
        fprintf(f,
                "model other(x: f32[4,3], r: f32[4,2]) {\n"
                "  y = Linear(x, units=2, scope=\"fc\")\n"
                "  return loss = %s\n}\n",
                rows[i].loss);
        fclose(f);
        REQUIRE(!test_command(&says, "'%s' '%s' -o '%s' --loss auto" CPU "%s",
                              test_ampc(), path, test_tmp("other.so"),
                              rows[i].options));
        CHECK_MSG(rows[i].says ? strstr(says, rows[i].says) != NULL
                               : !strstr(says, "--accumulate:"),
                  "%s: %s", rows[i].loss, says);
        free(says);
    }
}

/* ---- steps without labels ------------------------------------------------ */

/* Only the counters change; the scale is not reduced. */
static void skips_alone(const char *options, int a) {
    Compiled c = compiled("labels", options);
    ampc_session *s = opened(&c);
    unsigned kinds = 1u << AMPC_KIND_PARAMETER | 1u << AMPC_KIND_STATE;
    size_t n, n2;
    double scale = window(&c, s, 0, a).scale;
    void *before = read_all(&c, s, kinds, &n);
    ampc_metrics m = window(&c, s, 12, a);
    CHECK(m.loss == 0 && m.grad_norm == 0 && !m.applied && m.skipped == 1);
    CHECK_HAS(c.api->notice(s), "step 2 was skipped: no label counts");
    void *after = read_all(&c, s, kinds, &n2);
    CHECK(n == n2 && memcmp(before, after, n) == 0);
    m = window(&c, s, 0, a);
    CHECK(m.applied && m.scale == scale && m.bad_forward == 0);
    free(before);
    free(after);
    c.api->close(s);
    compiled_close(&c);
}

TEST_CASE(accumulate, a_step_without_labels_is_skipped) {
    static const char *const precision[] = {"fp32", "bf16", "fp16"};
    for (int i = 0; i < 3; i++)
        for (int a = 1; a <= 2; a++) {
            char options[200];
            snprintf(options, sizeof options,
                     "--loss auto --optimizer adamw,lr=0.1,weight_decay=0.1 "
                     "--accumulate %d --precision %s" CPU,
                     a, precision[i]);
            skips_alone(options, a);
        }
}

TEST_CASE(accumulate, nothing_but_steps_without_labels_ends) {
    Compiled c = compiled("labels", "--precision fp32" BY_SGD);
    ampc_options o = {.size = sizeof o, .device = "cpu", .max_skipped = 3};
    ampc_session *s;
    ampc_input in[4];
    ampc_metrics m = {.size = sizeof m};
    size_t n = part(&c, "micro", 12, BATCH, in);
    REQUIRE(c.api->open(c.api->module, &o, &s, NULL, 0) == AMPC_OK);
    CHECK_EQ_INT(c.api->step(s, in, n, &m), AMPC_OK);
    CHECK_EQ_INT(c.api->step(s, in, n, &m), AMPC_OK);
    CHECK_EQ_INT(c.api->step(s, in, n, &m), AMPC_ERR_DIVERGED);
    CHECK_HAS(c.api->error(s),
              "3 steps in a row were skipped: no label counts");
    c.api->close(s);
    compiled_close(&c);
}

/* fp16: the same step as in fp32 up to rounding, with or without labels that
   count. */
TEST_CASE(accumulate, scaled_losses_weigh_the_same) {
    double want = loss_of("--precision fp32 --accumulate 3" BY_SGD, 0, 3);
    double got = loss_of("--precision fp16 --accumulate 3" BY_SGD, 0, 3);
    CHECK_NEAR(got, want, 0x1p-9 * want);
}

/* ---- in the middle of a window ------------------------------------------- */

TEST_CASE(accumulate, resumes_in_a_window) {
    Compiled c = compiled("weights", "--precision fp32 --accumulate 3" BY_SGD);
    const char *path = test_tmp("window.safetensors");
    unsigned kinds = 1u << AMPC_KIND_PARAMETER | 1u << AMPC_KIND_STATE;
    ampc_input in[4];
    void *state[2];
    size_t bytes[2];
    for (int i = 0; i < 2; i++) {
        ampc_session *s = opened(&c);
        step_ok(&c, s, in, part(&c, "micro", 0, BATCH, in));
        step_ok(&c, s, in, part(&c, "micro", 8, 2, in));
        if (i) {
            REQUIRE(c.api->save(s, path) == AMPC_OK);
            c.api->close(s);
            s = open_threads(&c, 1);
            REQUIRE(c.api->resume(s, path) == AMPC_OK);
        }
        step_ok(&c, s, in, part(&c, "micro", 10, 3, in));
        state[i] = read_all(&c, s, kinds, &bytes[i]);
        c.api->close(s);
    }
    CHECK(bytes[0] == bytes[1] && memcmp(state[0], state[1], bytes[0]) == 0);
    free(state[0]);
    free(state[1]);
    compiled_close(&c);
}

/* ---- samples that cannot be masked --------------------------------------- */

static const char norm[] =
    "model norm(x: f32[4,3,2,2], t: i64[4]) {\n"
    "  y = BatchNorm(Conv2d(x, channels=4, size=2, scope=\"c\"), "
    "scope=\"bn\")\n"
    "  return loss = softmax_cross_entropy(reshape(y, shape=[4, 4]), t)\n"
    "}\n";

static const char *norm_file(void) {
    const char *path = test_tmp("norm.amp");
    FILE *f = fopen(path, "w");
    REQUIRE(f != NULL);
    fputs(norm, f);
    fclose(f);
    return path;
}

TEST_CASE(accumulate, batch_statistics_refuse_part_of_a_batch) {
    static float x[4 * 12];
    static int64_t t[4] = {0, 1, 2, 3};
    Compiled c = compile_file(norm_file(), "--loss auto" CPU);
    ampc_module_info info = {.size = sizeof info};
    ampc_session *s = open_threads(&c, 1);
    ampc_metrics m = {.size = sizeof m};
    ampc_input in[] = {ampc_in("x", x, sizeof x, AMPC_DTYPE_F32),
                       ampc_in("t", t, sizeof t, AMPC_DTYPE_I64)};
    c.api->describe(c.api->module, &info);
    CHECK_EQ_INT(info.parts, 0);
    numbers(x, 48, 37, 5);
    CHECK_EQ_INT(c.api->step(s, in, 2, &m), AMPC_OK);
    in[0].bytes /= 2;
    CHECK_EQ_INT(c.api->step(s, in, 2, &m), AMPC_ERR_ARGUMENT);
    in[1].bytes /= 2;
    CHECK_EQ_INT(c.api->step(s, in, 2, &m), AMPC_ERR_ARGUMENT);
    CHECK_HAS(c.api->error(s), "2 samples given: a step takes 4");
    c.api->close(s);
    compiled_close(&c);
}

/* A loss, and whether one sample's depends on others: then no part of a batch
   can be left out. */
static const struct Mixing {
    const char *loss;
    int parts;
} mixing[] = {
    {"mse_loss(y, r)", 1},
    {"mse_loss(y, r * 2 - 1)", 1},
    {"mse_loss(y, r - mean(r, axes=0))", 0},
    {"mse_loss(y - mean(y, axes=0), r)", 0},
    {"mse_loss(y, slice(r, starts=[3, 0], sizes=[4, 2], steps=[-1, 1]))", 0},
    {"mse_loss(y, cumsum(r, axis=0))", 0},
    {"mse_loss(y, cumsum(r, axis=1))", 1},
    {"bce_with_logits_loss(y, sigmoid(r - mean(r)))", 0},
    {"mse_loss(transpose(y, perm=[1, 0]), transpose(r, perm=[1, 0]))", 1},
};

TEST_CASE(accumulate, samples_that_mix_refuse_part_of_a_batch) {
    for (size_t i = 0; i < sizeof mixing / sizeof *mixing; i++) {
        char text[400];
        ampc_module_info info = {.size = sizeof info};
        snprintf(text, sizeof text,
                 "model mix(x: f32[4,3], r: f32[4,2]) {\n"
                 "  y = Linear(x, units=2, scope=\"fc\")\n"
                 "  return loss = %s\n}\n",
                 mixing[i].loss);
        REQUIRE(test_write_file(test_tmp("mix.amp"), text, strlen(text)));
        Compiled c = compile_file(test_tmp("mix.amp"),
                                  "--precision fp32 --loss auto" CPU);
        c.api->describe(c.api->module, &info);
        CHECK_MSG(info.parts == mixing[i].parts, "%s: parts %d", mixing[i].loss,
                  info.parts);
        compiled_close(&c);
    }
}

/* ---- batches without objects --------------------------------------------- */

/* sum / max(objects, 1) is the same with one object and with none: a detector
   learns from pictures without objects, too. */
static double detector(const float *found, int a, float *w) {
    static const char text[] =
        "model detector(x: f32[4,3], found: f32[4]) {\n"
        "  y = Linear(x, units=1, scope=\"fc\")\n"
        "  return loss = sum(y * y) / max(sum(found), 1.0)\n}\n";
    char options[100];
    float x[12];
    numbers(x, 12, 37, 5);
    snprintf(options, sizeof options, "--precision fp32 --accumulate %d" BY_SGD,
             a);
    REQUIRE(test_write_file(test_tmp("detector.amp"), text, strlen(text)));
    Compiled c = compile_file(test_tmp("detector.amp"), options);
    ampc_session *s = open_threads(&c, 1);
    ampc_metrics m = {.size = sizeof m};
    ampc_input in[] = {ampc_in("x", x, sizeof x, AMPC_DTYPE_F32),
                       ampc_in("found", found, 16, AMPC_DTYPE_F32)};
    for (int i = 0; i < a; i++)
        CHECK_EQ_INT(c.api->step(s, in, 2, &m), AMPC_OK);
    CHECK(m.applied && m.skipped == 0);
    read_var(&c, s, "fc.weight", w, 3 * sizeof *w, AMPC_DTYPE_F32);
    c.api->close(s);
    compiled_close(&c);
    return m.loss;
}

TEST_CASE(accumulate, batches_without_objects_train) {
    static const float none[4] = {0}, one[4] = {0, 1}, less[4] = {-1, -1};
    float w[3], v[3];
    for (int a = 1; a <= 2; a++) {
        double loss = detector(one, a, w);
        CHECK(loss > 0.01);
        CHECK_NEAR(detector(none, a, v), loss, TOL_STATE);
        for (int i = 0; i < 3; i++) CHECK_NEAR(v[i], w[i], TOL_STATE);
        CHECK_NEAR(detector(less, a, v), loss, TOL_STATE);
        for (int i = 0; i < 3; i++) CHECK_NEAR(v[i], w[i], TOL_STATE);
    }
}

/* ---- ampc run ------------------------------------------------------------ */

static void write_csv(const char *path, int n, int columns) {
    FILE *f = fopen(path, "w");
    REQUIRE(f != NULL);
    for (int i = 0; i < n; i++)
        for (int k = 0; k < columns; k++)
            fprintf(f, "%d%s", (i * 7 + k * 3) % 4,
                    k + 1 < columns ? "," : "\n");
    fclose(f);
}

/* The number of steps in the run's log, and its messages. */
static int run_steps(const char *model, const char *options, int width,
                     char **says) {
    int steps = 0;
    write_csv(test_tmp("x.csv"), SAMPLES, width);
    write_csv(test_tmp("t.csv"), SAMPLES, 1);
    REQUIRE(!test_command(says, "'%s' '%s' -o '%s' --loss auto %s" CPU,
                          test_ampc(), model, test_tmp("run.so"), options));
    free(*says);
    char x[300], t[300], log[300];
    snprintf(x, sizeof x, "%s", test_tmp("x.csv"));
    snprintf(t, sizeof t, "%s", test_tmp("t.csv"));
    snprintf(log, sizeof log, "%s", test_tmp("run.jsonl"));
    REQUIRE(!test_command(says,
                          "'%s' run '%s' --device cpu --epochs 2 --feed "
                          "x='%s' --feed t='%s' --log '%s'",
                          test_ampc(), test_tmp("run.so"), x, t, log));
    FILE *f = fopen(log, "r");
    char line[1000];
    REQUIRE(f != NULL);
    while (fgets(line, sizeof line, f)) steps += !strncmp(line, "{\"step\"", 7);
    fclose(f);
    return steps;
}

TEST_CASE(accumulate, run_trains_what_is_left) {
    const char *path = test_tmp("lin.amp");
    FILE *f = fopen(path, "w");
    char *says;
    REQUIRE(f != NULL);
    fputs("model lin(x: f32[4,3], t: i64[4]) {\n"
          "  y = Linear(x, units=4, scope=\"fc\")\n"
          "  return loss = softmax_cross_entropy(y, t)\n}\n",
          f);
    fclose(f);
    CHECK_EQ_INT(run_steps(path, "", 3, &says), 2 * 6);
    CHECK_HAS(says, "22 samples are 5 steps of 4, which leaves 2: the last "
                    "step of every epoch trains them");
    free(says);
    CHECK_EQ_INT(run_steps(path, "--accumulate 3", 3, &says), 2 * 2);
    CHECK_HAS(says, "22 samples are 1 step of 12, which leaves 10: the last");
    free(says);
}

TEST_CASE(accumulate, run_says_what_it_cannot_train) {
    char *says;
    CHECK_EQ_INT(run_steps(norm_file(), "", 12, &says), 2 * 5);
    CHECK_HAS(says, "2 samples, the last of every epoch, are not trained");
    free(says);
    CHECK_EQ_INT(run_steps(norm_file(), "--accumulate 3", 12, &says), 2 * 2);
    CHECK_HAS(says, "which leaves 8: the last step of every epoch trains them");
    CHECK_HAS(says, "2 samples, the last of every epoch, are not trained");
    free(says);
}

/* ---- evaluation and prediction ------------------------------------------- */

TEST_CASE(accumulate, any_number_of_samples_is_evaluated_and_predicted) {
    static const char text[] = "graph forward(%x: f32[4,15]) {\n"
                               "  param %w: f32[15,4] = normal(0, 0.5)\n"
                               "  %y = matmul %x, %w : f32[4,4]\n"
                               "  return %y\n"
                               "}\n";
    static int64_t t[SAMPLES];
    static float y[SAMPLES * 4], want[SAMPLES * 4];
    make_data();
    for (int i = 0; i < SAMPLES; i++) t[i] = i % 4;
    Compiled c = compile_text(text, "--loss cross_entropy" CPU);
    ampc_session *s = open_threads(&c, 1);
    ampc_eval one = {.size = sizeof one}, sum = {.size = sizeof sum};
    for (int first = 0; first < SAMPLES; first += BATCH) {
        int n = SAMPLES - first < BATCH ? SAMPLES - first : BATCH;
        ampc_input in[] = {ampc_in("x", all.x + first * 15,
                                   sizeof all.x / SAMPLES * (size_t)n,
                                   AMPC_DTYPE_F32),
                           ampc_in("target", t + first, sizeof *t * (size_t)n,
                                   AMPC_DTYPE_I64)};
        ampc_output out =
            ampc_out("y", want + first * 4, (size_t)n * 16, AMPC_DTYPE_F32);
        CHECK_EQ_INT(c.api->evaluate(s, in, 2, n, &sum), AMPC_OK);
        CHECK_EQ_INT(c.api->predict(s, in, 1, n, &out, 1), AMPC_OK);
    }
    ampc_input in[] = {ampc_in("x", all.x, sizeof all.x, AMPC_DTYPE_F32),
                       ampc_in("target", t, sizeof t, AMPC_DTYPE_I64)};
    ampc_output out = ampc_out("y", y, sizeof y, AMPC_DTYPE_F32);
    CHECK_EQ_INT(c.api->evaluate(s, in, 2, SAMPLES, &one), AMPC_OK);
    CHECK_EQ_INT(c.api->predict(s, in, 1, SAMPLES, &out, 1), AMPC_OK);
    CHECK(one.loss_num == sum.loss_num && one.loss_den == SAMPLES);
    CHECK(one.correct == sum.correct && one.samples == SAMPLES && one.exact);
    CHECK(memcmp(y, want, sizeof y) == 0);
    CHECK_EQ_INT(c.api->evaluate(s, in, 2, SAMPLES + 1, &one),
                 AMPC_ERR_ARGUMENT);
    t[17] = 9;
    CHECK_EQ_INT(c.api->evaluate(s, in, 2, SAMPLES, &one), AMPC_ERR_DATA);
    CHECK_HAS(c.api->error(s), "9 at position 17");
    c.api->close(s);
    compiled_close(&c);
}

/* Outputs that are not of samples cannot be joined: one call has one batch. */
TEST_CASE(accumulate, outputs_of_a_whole_batch_are_predicted_batch_by_batch) {
    static const char text[] =
        "graph forward(%x: f32[4,15]) {\n"
        "  param %w: f32[15] = 1\n"
        "  %y = mul %x, %w : f32[4,15]\n"
        "  %mean = reduce_mean %y {axes=[0,1], keepdims=0} : f32[]\n"
        "  %columns = reduce_mean %y {axes=[0], keepdims=0} : f32[15]\n"
        "  return %y, %mean, %columns\n"
        "}\n";
    static float y[SAMPLES * 15], mean[SAMPLES], columns[SAMPLES * 15];
    make_data();
    Compiled c = compile_text(text, "--loss none" CPU);
    ampc_session *s = open_threads(&c, 1);
    ampc_output out[] = {
        ampc_out("y", y, sizeof y, AMPC_DTYPE_F32),
        ampc_out("mean", mean, sizeof mean, AMPC_DTYPE_F32),
        ampc_out("columns", columns, sizeof columns, AMPC_DTYPE_F32)};
    static const int given[] = {BATCH, 2 * BATCH, BATCH - 1};
    for (int k = 0; k < 3; k++) {
        int n = given[k];
        ampc_input in =
            ampc_in("x", all.x, (size_t)n * 15 * sizeof(float), AMPC_DTYPE_F32);
        CHECK_EQ_INT(c.api->predict(s, &in, 1, n, out, 1), AMPC_OK);
        CHECK(memcmp(y, all.x, (size_t)n * 15 * sizeof(float)) == 0);
        for (int i = 1; i < 3; i++) {
            mean[0] = columns[0] = 77;
            ampc_status status = c.api->predict(s, &in, 1, n, &out[i], 1);
            CHECK_EQ_INT(status, k ? AMPC_ERR_ARGUMENT : AMPC_OK);
            CHECK((i == 1 ? mean : columns)[0] == 77 || !k);
            if (k) CHECK_HAS(c.api->error(s), "is of a whole batch");
        }
    }
    c.api->close(s);
    compiled_close(&c);
}
