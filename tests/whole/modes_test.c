/* SPDX-License-Identifier: Apache-2.0 */
/* modes_test.c: behaviour in training that evaluation lacks: batch statistics
   and their running averages, dropout.

   Models are ONNX files, since the import decides about momentum, the unbiased
   variance and the random streams. Expected values follow from
   torch.nn.BatchNorm1d's definition, in double. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/compiled.h"
#include "tests/support/onnx_util.h"
#include "tests/tolerance.h"

static Compiled compile_made(Made *m, const char *options) {
    char path[512], all[512];
    static int count;
    size_t n;
    uint8_t *bytes = model_pack(&m->model, &n);
    snprintf(path, sizeof path, "%s/made%d.onnx", test_tmpdir(), ++count);
    REQUIRE(test_write_file(path, bytes, n));
    free(bytes);
    snprintf(all, sizeof all, "--target cpu:x86-64-v2 %s", options);
    return compile_file(path, all);
}

/* ---- batch norm ---------------------------------------------------------- */

enum { N = 4, C = 3, L = 2, X = N * C * L };
#define EPSILON  0.3
#define MOMENTUM 0.7 /* share of the old value, as in ONNX */

typedef struct Norm {
    double mean[C], var[C];             /* running */
    double batch_mean[C], batch_var[C]; /* population */
} Norm;

static void batch_statistics(Norm *b, const float *x) {
    for (int c = 0; c < C; c++) {
        double sum = 0, square = 0;
        for (int i = 0; i < X; i++)
            if (i / L % C == c) sum += (double)x[i];
        b->batch_mean[c] = sum / (N * L);
        for (int i = 0; i < X; i++) {
            double d = (double)x[i] - b->batch_mean[c];
            if (i / L % C == c) square += d * d;
        }
        b->batch_var[c] = square / (N * L);
    }
}

static void run_on(Norm *b, bool unbiased) {
    double n = N * L, share = unbiased ? n / (n - 1) : 1;
    for (int c = 0; c < C; c++) {
        b->mean[c] = MOMENTUM * b->mean[c] + (1 - MOMENTUM) * b->batch_mean[c];
        b->var[c] =
            MOMENTUM * b->var[c] + (1 - MOMENTUM) * share * b->batch_var[c];
    }
}

/* Scale and bias count up from 1 and -1 by a quarter. */
static double normalised(const float *x, int i, const double *mean,
                         const double *var) {
    int c = i / L % C;
    double scale = 1 + 0.25 * c, bias = -1 + 0.25 * c;
    return ((double)x[i] - mean[c]) / sqrt(var[c] + EPSILON) * scale + bias;
}

static double mean_square(const float *x, const double *mean, const double *var,
                          int samples) {
    double sum = 0;
    int n = samples * C * L;
    for (int i = 0; i < n; i++) sum += pow(normalised(x, i, mean, var), 2);
    return sum / n;
}

static void check_running(const Compiled *c, ampc_session *s, const Norm *b) {
    float mean[C], var[C];
    read_var(c, s, "mean", mean, sizeof mean, AMPC_DTYPE_F32);
    read_var(c, s, "var", var, sizeof var, AMPC_DTYPE_F32);
    for (int i = 0; i < C; i++) {
        CHECK_REL(mean[i], b->mean[i], TOL_LOSS);
        CHECK_REL(var[i], b->var[i], TOL_LOSS);
    }
}

typedef struct Batch {
    float x[X], target[X];
    ampc_input in[2];
} Batch;

static void batch_fill(Batch *b, uint64_t seed) {
    for (int i = 0; i < X; i++) {
        seed = seed * 6364136223846793005u + 1442695040888963407u;
        b->x[i] = (float)((double)(seed >> 40) / (1 << 22) + i / L % C);
        b->target[i] = 0;
    }
    b->in[0] = ampc_in("x", b->x, sizeof b->x, AMPC_DTYPE_F32);
    b->in[1] = ampc_in("target", b->target, sizeof b->target, AMPC_DTYPE_F32);
}

/* Evaluation normalises by the running statistics and does not change them. */
static void check_inference(const Compiled *c, ampc_session *s, const Norm *b,
                            Batch *data) {
    ampc_eval e = {.size = sizeof e};
    float y[X];
    ampc_output out = ampc_out(NULL, y, sizeof y, AMPC_DTYPE_F32);
    for (int valid = N; valid > 2; valid--) {
        e = (ampc_eval){.size = sizeof e};
        REQUIRE(!c->api->evaluate(s, data->in, 2, valid, &e));
        CHECK_REL(e.loss_num / e.loss_den,
                  mean_square(data->x, b->mean, b->var, valid), TOL_LOSS);
    }
    REQUIRE(!c->api->predict(s, data->in, 1, N, &out, 1));
    for (int i = 0; i < X; i++)
        CHECK_NEAR(y[i], normalised(data->x, i, b->mean, b->var), 1e-5);
    check_running(c, s, b);
}

static void batch_norm(const char *producer, const char *options, bool unbiased,
                       bool frozen, int accumulate) {
    Made m;
    char all[256];
    made_start(&m, 12);
    if (producer) m.model.producer_name = made_text(&m, producer);
    made_input(&m, "x", DT_F32, "4,3,2");
    made_f32(&m, "scale", "3", 1);
    made_f32(&m, "bias", "3", -1);
    made_f32(&m, "mean", "3", 0.5f);
    made_f32(&m, "var", "3", 2);
    Onnx__NodeProto *n =
        made_node(&m, "BatchNormalization", "x,scale,bias,mean,var", "y");
    made_float(&m, n, "epsilon", (float)EPSILON);
    made_float(&m, n, "momentum", (float)MOMENTUM);
    made_output(&m, "y");
    snprintf(all, sizeof all,
             "--precision fp32 --loss mse --optimizer sgd,lr=0 "
             "--accumulate %d %s",
             accumulate, options);
    Compiled c = compile_made(&m, all);
    ampc_session *s = open_threads(&c, 1);
    Norm b = {.mean = {0.5, 0.75, 1}, .var = {2, 2.25, 2.5}};
    Batch data;
    double sum = 0;
    for (int i = 0; i < 6; i++) {
        batch_fill(&data, 3 + (uint64_t)i);
        if (i == 3) data.x[5] = NAN; /* a bad forward does not count */
        batch_statistics(&b, data.x);
        ampc_metrics got = step_ok(&c, s, data.in, 2);
        sum += frozen ? mean_square(data.x, b.mean, b.var, N)
                      : mean_square(data.x, b.batch_mean, b.batch_var, N);
        if (!frozen && i != 3) run_on(&b, unbiased);
        check_running(&c, s, &b);
        if ((i + 1) % accumulate) continue;
        if (isnan(sum))
            CHECK(isnan(got.loss));
        else
            CHECK_REL(got.loss, sum / accumulate, TOL_LOSS);
        sum = 0;
    }
    check_inference(&c, s, &b, &data);
    c.api->close(s);
    compiled_close(&c);
    made_end(&m);
}

TEST_CASE(modes, batch_norm_keeps_the_population_variance) {
    batch_norm(NULL, "", false, false, 1);
}

TEST_CASE(modes, batch_norm_of_pytorch_keeps_the_unbiased_variance) {
    batch_norm("pytorch", "--accept-folded", true, false, 1);
}

TEST_CASE(modes, batch_norm_unbiased_when_asked) {
    batch_norm(NULL, "--batchnorm train:unbiased", true, false, 1);
}

TEST_CASE(modes, batch_norm_population_when_asked) {
    batch_norm("pytorch", "--accept-folded --batchnorm train:population", false,
               false, 1);
}

TEST_CASE(modes, batch_norm_follows_every_micro_batch) {
    batch_norm(NULL, "", false, false, 2);
}

TEST_CASE(modes, frozen_batch_norm_trains_with_its_running_statistics) {
    batch_norm(NULL, "--batchnorm frozen", false, true, 1);
}

/* ---- dropout ------------------------------------------------------------- */

enum { UNITS = 4096 };

/* sum(dropout(x*a, 1/4)) + sum(dropout(x*b, 1/2)), x = 1: the gradients of a
   and b are the masks over 1 - ratio. */
static Compiled dropouts(const char *options) {
    Made m;
    made_start(&m, 12);
    made_input(&m, "x", DT_F32, "4096");
    made_f32(&m, "a", "4096", 1);
    made_f32(&m, "b", "4096", 1);
    made_f32(&m, "quarter", "", 0.25f);
    made_f32(&m, "half", "", 0.5f);
    made_node(&m, "Mul", "x,a", "xa");
    made_node(&m, "Mul", "x,b", "xb");
    made_node(&m, "Dropout", "xa,quarter", "da");
    made_node(&m, "Dropout", "xb,half", "db");
    made_int(&m, made_node(&m, "ReduceSum", "da", "sa"), "keepdims", 0);
    made_int(&m, made_node(&m, "ReduceSum", "db", "sb"), "keepdims", 0);
    made_node(&m, "Add", "sa,sb", "sum");
    made_output(&m, "sum");
    Compiled c = compile_made(&m, options);
    made_end(&m);
    return c;
}

typedef struct Masks {
    bool a[UNITS], b[UNITS];
} Masks;

/* A gradient since `before`, as a mask; every element is 0 or 1/(1 - ratio). */
static void read_mask(const Compiled *c, ampc_session *s, const char *name,
                      float *before, double ratio, bool *mask) {
    float now[UNITS];
    read_var(c, s, name, now, sizeof now, AMPC_DTYPE_F32);
    for (int i = 0; i < UNITS; i++) {
        double g = (double)now[i] - (double)before[i];
        mask[i] = g != 0;
        REQUIRE(!mask[i] || fabs(g * (1 - ratio) - 1) < 1e-5);
    }
    memcpy(before, now, sizeof now);
}

static void micro_masks(const Compiled *c, ampc_session *s,
                        float before[2][UNITS], Masks *m) {
    float x[UNITS];
    for (int i = 0; i < UNITS; i++) x[i] = 1;
    ampc_input in = ampc_in("x", x, sizeof x, AMPC_DTYPE_F32);
    if (c->api->micro_step(s, &in, 1, NULL)) FAIL("%s", c->api->error(s));
    read_mask(c, s, "ampc.grad/a", before[0], 0.25, m->a);
    read_mask(c, s, "ampc.grad/b", before[1], 0.5, m->b);
}

static double share(const bool *x) {
    int n = 0;
    for (int i = 0; i < UNITS; i++) n += x[i];
    return (double)n / UNITS;
}

static double share_both(const bool *x, const bool *y) {
    int n = 0;
    for (int i = 0; i < UNITS; i++) n += x[i] && y[i];
    return (double)n / UNITS;
}

/* Five standard deviations of a share of UNITS elements. */
static double chance(double p) { return 5 * sqrt(p * (1 - p) / UNITS); }

static void check_independent(const bool *x, double px, const bool *y,
                              double py) {
    double both = px * py;
    CHECK_NEAR(share_both(x, y), both, chance(both));
}

TEST_CASE(modes, dropout_masks_are_all_different) {
    enum { MICRO = 6, ACCUMULATE = 3 };
    Compiled c = dropouts("--precision fp32 --accumulate 3 "
                          "--optimizer sgd,lr=0");
    ampc_session *s = open_threads(&c, 2);
    static float before[2][UNITS];
    static Masks m[MICRO];
    for (int i = 0; i < MICRO; i++) {
        if (i % ACCUMULATE == 0) memset(before, 0, sizeof before);
        micro_masks(&c, s, before, &m[i]);
        if (i % ACCUMULATE == ACCUMULATE - 1) REQUIRE(!c.api->update(s, NULL));
        CHECK_NEAR(share(m[i].a), 0.75, chance(0.75));
        CHECK_NEAR(share(m[i].b), 0.5, chance(0.5));
        for (int k = 0; k <= i; k++) {
            check_independent(m[i].a, 0.75, m[k].b, 0.5);
            if (k == i) continue;
            check_independent(m[i].a, 0.75, m[k].a, 0.75);
            check_independent(m[i].b, 0.5, m[k].b, 0.5);
        }
    }
    c.api->close(s);
    compiled_close(&c);
}

TEST_CASE(modes, dropout_masks_follow_the_seed) {
    static Masks m[3];
    for (int i = 0; i < 3; i++) {
        static float before[2][UNITS];
        Compiled c =
            dropouts(i ? "--precision fp32 --seed 9" : "--precision fp32");
        ampc_session *s = open_threads(&c, i);
        memset(before, 0, sizeof before);
        micro_masks(&c, s, before, &m[i]);
        c.api->close(s);
        compiled_close(&c);
    }
    CHECK_MEM(&m[1], &m[2], sizeof m[1]);
    check_independent(m[0].a, 0.75, m[1].a, 0.75);
}

static double predicted_sum(const Compiled *c, ampc_session *s) {
    float x[UNITS], sum = 0;
    for (int i = 0; i < UNITS; i++) x[i] = i < 4 ? 1 : 0;
    ampc_input in = ampc_in("x", x, sizeof x, AMPC_DTYPE_F32);
    ampc_output out = ampc_out(NULL, &sum, sizeof sum, AMPC_DTYPE_F32);
    if (c->api->predict(s, &in, 1, UNITS, &out, 1))
        FAIL("%s", c->api->error(s));
    return (double)sum;
}

/* a and b count up from 1 by a quarter. */
TEST_CASE(modes, dropout_is_not_in_predictions) {
    Compiled c = dropouts("--precision fp32");
    ampc_session *s = open_threads(&c, 1);
    CHECK_NEAR(predicted_sum(&c, s), 2 * (1 + 1.25 + 1.5 + 1.75), 1e-5);
    CHECK_NEAR(predicted_sum(&c, s), 2 * (1 + 1.25 + 1.5 + 1.75), 1e-5);
    c.api->close(s);
    compiled_close(&c);
}

TEST_CASE(modes, dropout_off_keeps_everything) {
    Compiled c = dropouts("--precision fp32 --dropout off");
    ampc_session *s = open_threads(&c, 1);
    float x[UNITS], grad[UNITS];
    for (int i = 0; i < UNITS; i++) x[i] = 1;
    ampc_input in = ampc_in("x", x, sizeof x, AMPC_DTYPE_F32);
    if (c.api->micro_step(s, &in, 1, NULL)) FAIL("%s", c.api->error(s));
    read_var(&c, s, "ampc.grad/b", grad, sizeof grad, AMPC_DTYPE_F32);
    for (int i = 0; i < UNITS; i++)
        if (!CHECK_NEAR(grad[i], 1, 0)) break;
    c.api->close(s);
    compiled_close(&c);
}

/* ---- programs beside each other ------------------------------------------ */

enum { SAMPLES = 8, FEATURES = 16, CLASSES = 10 };

static const char classifier[] =
    "graph forward(%x: f32[8,16]) {\n"
    "  param %w: f32[16,24] = normal(1, 0.4), %v: f32[24,10] = normal(2, 0.4)\n"
    "  param %b: f32[24] = normal(3, 0.4), %g: f32[24] = 1.25, %h: f32[24] = "
    "0\n"
    "  %m = matmul %x, %w : f32[8,24]\n"
    "  %a = add %m, %b : f32[8,24]\n"
    "  %n, %mean, %rstd = layer_norm %a, %g, %h {axis=1, epsilon=0.01}\n"
    "  %e = gelu %n : f32[8,24]\n"
    "  %s = add %e, %a : f32[8,24]\n"
    "  %y = matmul %s, %v : f32[8,10]\n"
    "  return y=%y\n}\n";

static double entropy_of(const float *y, const int64_t *target) {
    double all = 0;
    for (int i = 0; i < SAMPLES; i++) {
        double sum = 0;
        for (int k = 0; k < CLASSES; k++)
            sum += exp((double)y[i * CLASSES + k]);
        all += log(sum) - (double)y[i * CLASSES + target[i]];
    }
    return all / SAMPLES;
}

/* The model rounds the same in each program, wherever its casts are: a
   prediction has the loss that evaluation and training report, and samples
   in another order, or in other batches, get the same predictions. */
TEST_CASE(modes, programs_agree) {
    static const char *const options[] = {"fp32",
                                          "bf16",
                                          "fp16",
                                          "bf16 --placement pytorch",
                                          "fp16 --placement pytorch",
                                          "O2",
                                          "O3"};
    for (size_t k = 0; k < sizeof options / sizeof *options; k++) {
        char all[200];
        snprintf(all, sizeof all,
                 "--loss cross_entropy --optimizer sgd,lr=0 "
                 "--target cpu:x86-64-v2 --precision %s",
                 options[k]);
        Compiled c = compile_text(classifier, all);
        ampc_session *s = open_threads(&c, 1);
        float x[SAMPLES * FEATURES], back[SAMPLES * FEATURES];
        float y[3][SAMPLES * CLASSES];
        int64_t target[SAMPLES];
        uint64_t seed = 7 + k;
        for (int i = 0; i < SAMPLES * FEATURES; i++) {
            seed = seed * 6364136223846793005u + 1442695040888963407u;
            x[i] = (float)((double)(seed >> 40) / (1 << 23) - 1);
            back[(SAMPLES - 1 - i / FEATURES) * FEATURES + i % FEATURES] = x[i];
        }
        for (int i = 0; i < SAMPLES; i++) target[i] = i * 3 % CLASSES;
        ampc_input in[] = {
            ampc_in("x", x, sizeof x, AMPC_DTYPE_F32),
            ampc_in("target", target, sizeof target, AMPC_DTYPE_I64)};
        ampc_input turned = ampc_in("x", back, sizeof back, AMPC_DTYPE_F32);
        ampc_eval e = {.size = sizeof e};
        for (int i = 0; i < 3; i++) {
            ampc_output out = ampc_out("y", y[i], sizeof y[i], AMPC_DTYPE_F32);
            if (i == 1
                    ? c.api->evaluate(s, in, 2, SAMPLES, &e) ||
                          c.api->read_output(s, "y", &out)
                    : c.api->predict(s, i ? &turned : in, 1, SAMPLES, &out, 1))
                FAIL("%s", c.api->error(s));
        }
        double want = entropy_of(y[0], target), most = 0, turn = 0;
        for (int i = 0; i < SAMPLES * CLASSES; i++) {
            int at = (SAMPLES - 1 - i / CLASSES) * CLASSES + i % CLASSES;
            most = fmax(most, fabs((double)(y[1][i] - y[0][i])));
            turn = fmax(turn, fabs((double)(y[2][at] - y[0][i])));
        }
        CHECK_MSG(most < 1e-5, "%s: evaluated %g beside", options[k], most);
        CHECK_MSG(turn < 1e-5, "%s: turned %g beside", options[k], turn);
        CHECK_MSG(fabs(e.loss_num / e.loss_den - want) < 1e-5 * want,
                  "%s: evaluation's loss is %g, not %g", options[k],
                  e.loss_num / e.loss_den, want);
        ampc_metrics m = step_ok(&c, s, in, 2);
        /* with free casts, training keeps values for backward in 16 bits */
        double near = k == 1 || k == 2 ? 0x1p-8 : 1e-5;
        CHECK_MSG(fabs(m.loss - want) < near * want,
                  "%s: training's loss is %g, not %g", options[k], m.loss,
                  want);
        c.api->close(s);
        compiled_close(&c);
    }
}
