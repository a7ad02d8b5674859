/* SPDX-License-Identifier: Apache-2.0 */
/* sizes_test.c: batches, outputs and parameters larger than what the runtime
   moves or adds at once, compared with plain C, on both devices. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/on_device.h"
#include "tests/support/simulate.h"
#include "tests/tolerance.h"

static double scramble(int64_t i) {
    uint64_t x = (uint64_t)i * 0x9e3779b97f4a7c15u + 12345;
    x = (x ^ x >> 29) * 0xbf58476d1ce4e5b9u;
    return (double)(x >> 40) / (1 << 23) - 1;
}

/* ---- many samples -------------------------------------------------------- */

/* Target is as large as x; prediction has only x, and one of its outputs has
   two rows per sample. */
enum { MANY = 1100, WIDTH = 2, MOST = MANY * WIDTH };

static const char many[] = "graph forward(%x: f32[1100,2]) {\n"
                           "  param %w: f32[2] = [0.5, -2]\n"
                           "  %y = mul %x, %w : f32[1100,2]\n"
                           "  %rows = reshape %y {shape=[2200,1]}\n"
                           "  return y=%y, rows=%rows\n"
                           "}\n";

typedef struct Samples {
    float x[MOST], t[MOST];
    ampc_input in[2];
} Samples;

static void draw(Samples *d, int number) {
    for (int i = 0; i < MOST; i++) {
        d->x[i] = (float)scramble(number * MOST + i);
        d->t[i] = (float)scramble(-1 - number * MOST - i);
    }
    d->in[0] = ampc_in("x", d->x, sizeof d->x, AMPC_DTYPE_F32);
    d->in[1] = ampc_in("target", d->t, sizeof d->t, AMPC_DTYPE_F32);
}

/* The sum of squares of the first samples, and its slope. */
static double squares(const Samples *d, const double w[WIDTH], int samples,
                      double slope[WIDTH]) {
    double sum = 0;
    slope[0] = slope[1] = 0;
    for (int i = 0; i < samples * WIDTH; i++) {
        double e = d->x[i] * w[i % WIDTH] - d->t[i];
        sum += e * e;
        slope[i % WIDTH] += 2 * e * d->x[i];
    }
    return sum;
}

static const Compiled *compile_many(const char *device) {
    return compile_on(device, many, "--precision fp32 --loss mse:y",
                      "--optimizer sgd,lr=0.25");
}

/* The host does not wait for the steps, and overwrites each step's data when
   the call returns. */
static void trains_many(const char *device, uint64_t seed) {
    const Compiled *c = compile_many(device);
    sim()->reset(&(SimConfig){.seed = seed, .twins = c->cuda_dir});
    ampc_session *s = open_on(c, device, 0);
    ampc_metrics m = {.size = sizeof m};
    double w[WIDTH] = {0.5, -2}, slope[WIDTH], loss = 0;
    float got[WIDTH];
    static Samples d;
    for (int i = 0; i < 5; i++) {
        draw(&d, i);
        CHECK_EQ_INT(c->api->step(s, d.in, 2, NULL), AMPC_OK);
        loss = squares(&d, w, MANY, slope) / MOST;
        for (int k = 0; k < WIDTH; k++) w[k] -= 0.25 * slope[k] / MOST;
        memset(d.x, 0x7f, sizeof d.x);
        memset(d.t, 0x7f, sizeof d.t);
    }
    CHECK_EQ_INT(c->api->sync(s, &m), AMPC_OK);
    CHECK_REL(m.loss, loss, TOL_LOSS);
    CHECK_EQ_INT(m.step, 5);
    read_var(c, s, "w", got, sizeof got, AMPC_DTYPE_F32);
    for (int k = 0; k < WIDTH; k++) CHECK_REL(got[k], w[k], 1e-5);
    c->api->close(s);
}

TEST_CASE(sizes, many_samples_train_cpu) { trains_many("cpu", 1); }
TEST_CASE(sizes, many_samples_train_gpu) {
    for (uint64_t seed = 1; seed <= 8; seed++) trains_many("cuda", seed);
}

static void evaluates_many(const char *device) {
    const Compiled *c = compile_many(device);
    ampc_session *s = open_on(c, device, 0);
    const double w[WIDTH] = {0.5, -2};
    double slope[WIDTH];
    static Samples d;
    static const int valid[] = {MANY, MANY - 1, 1030, 1024, 3};
    draw(&d, 7);
    for (size_t i = 0; i < sizeof valid / sizeof *valid; i++) {
        ampc_eval e = {.size = sizeof e};
        CHECK_EQ_INT(c->api->evaluate(s, d.in, 2, valid[i], &e), AMPC_OK);
        CHECK_EQ_INT(e.exact, 1);
        CHECK_EQ_INT(e.samples, valid[i]);
        CHECK_REL(e.loss_num / e.loss_den,
                  squares(&d, w, valid[i], slope) / (valid[i] * WIDTH),
                  TOL_LOSS);
    }
    c->api->close(s);
}

TEST_CASE(sizes, many_samples_evaluate_cpu) { evaluates_many("cpu"); }
TEST_CASE(sizes, many_samples_evaluate_gpu) { evaluates_many("cuda"); }

/* For an output with several rows per sample, predict returns the rows of
   the valid samples, and needs room only for them. */
static void predicts_rows(const char *device) {
    const Compiled *c = compile_many(device);
    ampc_session *s = open_on(c, device, 0);
    enum { VALID = 3, ROWS = VALID * WIDTH };
    static Samples d;
    float rows[ROWS + 1];
    draw(&d, 9);
    rows[ROWS] = 77;
    ampc_output out =
        ampc_out("rows", rows, ROWS * sizeof *rows, AMPC_DTYPE_F32);
    CHECK_EQ_INT(c->api->predict(s, d.in, 1, VALID, &out, 1), AMPC_OK);
    for (int i = 0; i < ROWS; i++)
        CHECK_NEAR(rows[i], d.x[i] * (i % WIDTH ? -2 : 0.5), 1e-6);
    CHECK(rows[ROWS] == 77);
    c->api->close(s);
}

TEST_CASE(sizes, rows_of_valid_samples_cpu) { predicts_rows("cpu"); }
TEST_CASE(sizes, rows_of_valid_samples_gpu) { predicts_rows("cuda"); }

/* ---- programs of unequal inputs ------------------------------------------ */

/* Two objectives; the last one reads hardly anything: its inputs are all
   zeros, so that its parameter does not change. */
static const char unequal[] =
    "graph forward(%x: f32[1100,2], %z: f32[2]) {\n"
    "  param %w: f32[2] = [0.5, -2], %v: f32[2] = [3, 4]\n"
    "  %y = mul %x, %w : f32[1100,2]\n"
    "  %one = reduce_sum %y {axes=[0,1], keepdims=0}\n"
    "  %q = mul %z, %v : f32[2]\n"
    "  %two = reduce_sum %q {axes=[0], keepdims=0}\n"
    "  return %one, %two\n"
    "}\n";

static void trains_unequal(const char *device) {
    const Compiled *c = compile_on(
        device, unequal, "--precision fp32",
        "--objective one,loss=auto:one,params=w,optimizer=sgd,lr=0.25 "
        "--objective two,loss=auto:two,params=v,optimizer=sgd,lr=0.5");
    ampc_session *s = open_on(c, device, 0);
    double w[WIDTH] = {0.5, -2};
    float got[WIDTH], z[2] = {0, 0};
    static Samples d;
    for (int i = 0; i < 4; i++) {
        draw(&d, i);
        ampc_input small = ampc_in("z", z, sizeof z, AMPC_DTYPE_F32);
        REQUIRE(c->api->objective(s, "one") == AMPC_OK);
        if (c->api->step(s, d.in, 1, NULL)) FAIL("%s", c->api->error(s));
        REQUIRE(c->api->objective(s, "two") == AMPC_OK);
        if (c->api->step(s, &small, 1, NULL)) FAIL("%s", c->api->error(s));
        for (int k = 0; k < MOST; k++) w[k % WIDTH] -= 0.25 * d.x[k];
    }
    read_var(c, s, "w", got, sizeof got, AMPC_DTYPE_F32);
    for (int k = 0; k < WIDTH; k++) CHECK_REL(got[k], w[k], 1e-5);
    read_var(c, s, "v", got, sizeof got, AMPC_DTYPE_F32);
    CHECK(got[0] == 3 && got[1] == 4);
    c->api->close(s);
    if (strcmp(device, "cuda") == 0) CHECK_STR(sim()->errors(), "");
}

TEST_CASE(sizes, programs_of_unequal_inputs_cpu) { trains_unequal("cpu"); }
TEST_CASE(sizes, programs_of_unequal_inputs_gpu) { trains_unequal("cuda"); }

/* ---- tables of unequal length -------------------------------------------- */

/* Scratch memory for their gradients grows with the table's length: the
   middle one is the longest, in any order. */
enum { IDS = 3, EACH = 4, LONG = 4000 };

static const char tables[] =
    "graph forward(%i: i64[3], %x: f32[3,4]) {\n"
    "  param %a: f32[5,4] = 1, %b: f32[4000,4] = 2, %c: f32[6,4] = 3\n"
    "  %ga = gather %a, %i {axis=0} : f32[3,4]\n"
    "  %gb = gather %b, %i {axis=0} : f32[3,4]\n"
    "  %gc = gather %c, %i {axis=0} : f32[3,4]\n"
    "  %ab = add %ga, %gb : f32[3,4]\n"
    "  %abc = add %ab, %gc : f32[3,4]\n"
    "  %y = mul %abc, %x : f32[3,4]\n"
    "  %loss = reduce_sum %y {axes=[0,1], keepdims=0}\n"
    "  return %loss\n"
    "}\n";

static void steps_tables(const char *device) {
    static const struct {
        const char *name;
        int rows;
        float first;
    } table[] = {{"a", 5, 1}, {"b", LONG, 2}, {"c", 6, 3}};
    static const int64_t id[IDS] = {2, 4, 2};
    const Compiled *c = compile_on(device, tables, "--precision fp32",
                                   "--optimizer sgd,lr=0.5");
    ampc_session *s = open_on(c, device, 0);
    float x[IDS * EACH], got[LONG * EACH];
    for (int i = 0; i < IDS * EACH; i++) x[i] = (float)(i + 1) / 8;
    ampc_input in[] = {ampc_in("i", id, sizeof id, AMPC_DTYPE_I64),
                       ampc_in("x", x, sizeof x, AMPC_DTYPE_F32)};
    for (int i = 0; i < 3; i++) step_ok(c, s, in, 2);
    for (int t = 0; t < 3; t++) {
        size_t bytes = (size_t)table[t].rows * EACH * sizeof(float);
        int wrong = 0;
        read_var(c, s, table[t].name, got, bytes, AMPC_DTYPE_F32);
        for (int k = 0; k < IDS * EACH; k++)
            got[id[k / EACH] * EACH + k % EACH] += 3 * 0.5f * x[k];
        for (int k = 0; k < table[t].rows * EACH; k++)
            wrong += got[k] != table[t].first;
        CHECK_MSG(wrong == 0, "%s: %d", table[t].name, wrong);
    }
    c->api->close(s);
    if (strcmp(device, "cuda") == 0) CHECK_STR(sim()->errors(), "");
}

TEST_CASE(sizes, tables_of_unequal_length_cpu) { steps_tables("cpu"); }
TEST_CASE(sizes, tables_of_unequal_length_gpu) { steps_tables("cuda"); }

/* ---- a large parameter --------------------------------------------------- */

/* One element more than fits a mebibyte, and more than any number of full
   blocks. */
enum { LARGE = (1 << 18) + 1 };

static const char large[] = "graph forward(%x: f32[1,262145]) {\n"
                            "  param %w: f32[262145] = 0\n"
                            "  param %v: f32[1025] = 0.5\n"
                            "  %y = mul %x, %w : f32[1,262145]\n"
                            "  %vv = mul %v, %v : f32[1025]\n"
                            "  %sum = reduce_sum %vv {axes=[0], keepdims=0}\n"
                            "  %yy = reduce_sum %y {axes=[0,1], keepdims=0}\n"
                            "  %loss = add %yy, %sum\n"
                            "  return %loss\n"
                            "}\n";

static void steps_large(const char *device) {
    const Compiled *c = compile_on(device, large, "--precision fp32",
                                   "--optimizer sgd,lr=0.125");
    ampc_session *s = open_on(c, device, 0);
    float *x = malloc(LARGE * sizeof *x), *w = malloc(LARGE * sizeof *w);
    float *got = malloc(LARGE * sizeof *got), v[1025];
    int64_t wrong = 0;
    REQUIRE(x && w && got);
    for (int i = 0; i < LARGE; i++) {
        x[i] = (float)scramble(i);
        w[i] = (float)scramble(i + 1000000);
    }
    write_var(c, s, "w", w, LARGE * sizeof *w, AMPC_DTYPE_F32);
    read_var(c, s, "w", got, LARGE * sizeof *w, AMPC_DTYPE_F32);
    CHECK_MEM(got, w, LARGE * sizeof *w);
    ampc_input in = ampc_in("x", x, LARGE * sizeof *x, AMPC_DTYPE_F32);
    for (int i = 0; i < 3; i++) step_ok(c, s, &in, 1);
    read_var(c, s, "w", got, LARGE * sizeof *w, AMPC_DTYPE_F32);
    for (int i = 0; i < LARGE; i++) {
        float want = w[i];
        for (int k = 0; k < 3; k++) want -= 0.125f * x[i];
        wrong += !(fabsf(got[i] - want) <= 1e-6f);
    }
    CHECK_EQ_INT(wrong, 0);
    read_var(c, s, "v", v, sizeof v, AMPC_DTYPE_F32);
    for (int i = 0; i < 1025; i++)
        wrong += v[i] != 0.5f * 0.75f * 0.75f * 0.75f;
    CHECK_EQ_INT(wrong, 0);
    free(x);
    free(w);
    free(got);
    c->api->close(s);
}

TEST_CASE(sizes, a_large_parameter_cpu) { steps_large("cpu"); }
TEST_CASE(sizes, a_large_parameter_gpu) { steps_large("cuda"); }

/* ---- what a program computes ----------------------------------------------
 */

/* Two per multiply-add of a matrix product or convolution; sums and
   element-wise work are not counted. */
TEST_CASE(sizes, flops_are_those_of_products_and_convolutions) {
    static const char text[] =
        "graph forward(%x: f32[8,16], %i: f32[2,3,6,6]) {\n"
        "  param %w: f32[16,4], %c: f32[5,3,3,3]\n"
        "  %y = matmul %x, %w\n  %r = relu %y\n"
        "  %z = conv %i, %c\n"
        "  %s = reduce_sum %z {axes=[0,1,2,3], keepdims=0}\n"
        "  return y=%r, s=%s\n}\n";
    Compiled c = compile_text(text, "--loss none --precision fp32");
    ampc_program_info info = {.size = sizeof info};
    REQUIRE(!c.api->program(c.api->module, "predict", &info));
    CHECK(info.flops == 2 * 8 * 16 * 4 + 2 * (2 * 5 * 4 * 4) * 27);
    compiled_close(&c);
}
