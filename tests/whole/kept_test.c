/* SPDX-License-Identifier: Apache-2.0 */
/* kept_test.c: matrix products keep the packed form of a parameter, and
   within a run the packed form of a value that several products read. A
   session that has run predicts the same as a newly opened one that resumes
   from it. */
#define _POSIX_C_SOURCE 200809L
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/compiled.h"

enum { N = 3, X = 40, CLASSES = 5 };

/* Each program reads %u twice. */
static const char text[] = "graph forward(%x: f32[3,40], %y: i64[3]) {\n"
                           "  param %u: f32[40,40] = normal(0, 0.2)\n"
                           "  param %w: f32[40,5] = normal(0, 0.2)\n"
                           "  %a = matmul %x, %u : f32[3,40]\n"
                           "  %b = tanh %a : f32[3,40]\n"
                           "  %c = matmul %b, %u : f32[3,40]\n"
                           "  %d = tanh %c : f32[3,40]\n"
                           "  %z = matmul %d, %w : f32[3,5]\n"
                           "  %loss = softmax_cross_entropy %z, %y : f32[]\n"
                           "  return loss=%loss, z=%z\n"
                           "}\n";

/* %w is the kernel of a convolution. */
static const char convolves[] =
    "graph forward(%x: f32[3,40], %y: i64[3]) {\n"
    "  param %u: f32[40,40] = normal(0, 0.2)\n"
    "  param %w: f32[5,4,2,5] = normal(0, 0.2)\n"
    "  %a = matmul %x, %u : f32[3,40]\n"
    "  %i = reshape %a {shape=[3,4,2,5]} : f32[3,4,2,5]\n"
    "  %o = conv %i, %w : f32[3,5,1,1]\n"
    "  %z = reshape %o {shape=[3,5]} : f32[3,5]\n"
    "  %loss = softmax_cross_entropy %z, %y : f32[]\n"
    "  return loss=%loss, z=%z\n"
    "}\n";

/* %m is a running product, written afterwards, by which other operands are
   multiplied. */
static const char runs[] = "graph forward(%x: f32[3,40], %y: i64[3]) {\n"
                           "  param %u: f32[40,40] = normal(0, 0.2)\n"
                           "  param %w: f32[40,5] = normal(0, 0.2)\n"
                           "  buffer %m: f32[40,40] = 0.1\n"
                           "  %a = matmul %x, %m : f32[3,40]\n"
                           "  %b = matmul %a, %u : f32[3,40]\n"
                           "  %z = matmul %b, %w : f32[3,5]\n"
                           "  %c = matmul %x, %x {trans_a=1} : f32[40,40]\n"
                           "  %d = mul %c, 0.1 : f32[40,40]\n"
                           "  %e = mul %m, 0.9 : f32[40,40]\n"
                           "  %n = add %e, %d : f32[40,40]\n"
                           "  write %m = %n\n"
                           "  %loss = softmax_cross_entropy %z, %y : f32[]\n"
                           "  return loss=%loss, z=%z\n"
                           "}\n";

/* %m and %k depend on parameters alone, and a product reads each of them. */
static const char makes[] = "graph forward(%x: f32[3,40], %y: i64[3]) {\n"
                            "  param %u: f32[40,40] = normal(0, 0.2)\n"
                            "  param %w: f32[40,5] = normal(0, 0.2)\n"
                            "  %m = matmul %u, %u {trans_b=1} : f32[40,40]\n"
                            "  %t = tanh %m : f32[40,40]\n"
                            "  %k = mul %t, 0.5 : f32[40,40]\n"
                            "  %a = matmul %x, %m : f32[3,40]\n"
                            "  %b = tanh %a : f32[3,40]\n"
                            "  %c = matmul %b, %k : f32[3,40]\n"
                            "  %z = matmul %c, %w : f32[3,5]\n"
                            "  %loss = softmax_cross_entropy %z, %y : f32[]\n"
                            "  return loss=%loss, z=%z\n"
                            "}\n";

typedef struct Data {
    float x[N * X];
    int64_t y[N];
    ampc_input in[2];
} Data;

static Data *data(Data *d) {
    for (int i = 0; i < N * X; i++)
        d->x[i] = (float)((i * 37 + 11) % 64 - 32) / 32;
    for (int i = 0; i < N; i++) d->y[i] = (2 * i + 1) % CLASSES;
    d->in[0] = ampc_in("x", d->x, sizeof d->x, AMPC_DTYPE_F32);
    d->in[1] = ampc_in("y", d->y, sizeof d->y, AMPC_DTYPE_I64);
    return d;
}

typedef struct Says {
    float z[N * CLASSES];
    double loss;
} Says;

static Says says(const Compiled *c, ampc_session *s) {
    Data d;
    Says r = {0};
    ampc_eval e = {.size = sizeof e};
    ampc_output out = ampc_out("z", r.z, sizeof r.z, AMPC_DTYPE_F32);
    data(&d);
    if (c->api->predict(s, d.in, 2, N, &out, 1))
        FAIL("predict: %s", c->api->error(s));
    REQUIRE(c->api->evaluate(s, d.in, 2, N, &e) == AMPC_OK);
    r.loss = e.loss_num;
    return r;
}

/* The same as a session that never ran; and different from before. */
static void check_news(const Compiled *c, ampc_session *s, Says *before,
                       const char *what) {
    const char *path = test_tmp("kept.ckpt");
    ampc_session *fresh = open_threads(c, 1);
    REQUIRE(c->api->save(s, path) == AMPC_OK);
    REQUIRE(c->api->resume(fresh, path) == AMPC_OK);
    Says now = says(c, s), want = says(c, fresh);
    CHECK_MSG(memcmp(&now, &want, sizeof now) == 0, "%s: loss %.9g, not %.9g",
              what, now.loss, want.loss);
    CHECK_MSG(memcmp(now.z, before->z, sizeof now.z) != 0 &&
                  now.loss != before->loss,
              "%s changed nothing", what);
    *before = now;
    c->api->close(fresh);
}

static void follows(const char *graph, const char *options) {
    Compiled c = compile_text(graph, options);
    ampc_session *s = open_threads(&c, 2);
    float w[X * CLASSES], u[X * X];
    Data d;
    Says last = says(&c, s);
    data(&d);
    REQUIRE(c.api->save(s, test_tmp("begin.ckpt")) == AMPC_OK);
    for (int i = 0; i < 2; i++) {
        step_ok(&c, s, d.in, 2);
        check_news(&c, s, &last, "a step");
    }
    REQUIRE(c.api->micro_step(s, d.in, 2, NULL) == AMPC_OK);
    REQUIRE(c.api->update(s, NULL) == AMPC_OK);
    check_news(&c, s, &last, "an update");
    read_var(&c, s, "u", u, sizeof u, AMPC_DTYPE_F32);
    u[X + 3] += 1;
    write_var(&c, s, "u", u, sizeof u, AMPC_DTYPE_F32);
    check_news(&c, s, &last, "a parameter that the host writes");
    read_var(&c, s, "w", w, sizeof w, AMPC_DTYPE_F32);
    w[7] += 1;
    write_var(&c, s, "w", w, sizeof w, AMPC_DTYPE_F32);
    check_news(&c, s, &last, "another");
    REQUIRE(c.api->load(s, test_tmp("begin.ckpt")) == AMPC_OK);
    check_news(&c, s, &last, "weights that are loaded");
    c.api->close(s);
    compiled_close(&c);
}

TEST_CASE(kept, predictions_follow_parameters) {
    follows(text,
            "--target cpu:x86-64-v2 --precision fp32 --optimizer sgd,lr=0.5 "
            "--loss auto");
}
TEST_CASE(kept, convolutions_follow_parameters) {
    follows(convolves,
            "--target cpu:x86-64-v2 --precision fp32 --optimizer sgd,lr=0.5 "
            "--loss auto");
}
TEST_CASE(kept, predictions_follow_buffers) {
    follows(runs,
            "--target cpu:x86-64-v2 --precision fp32 --optimizer sgd,lr=0.02 "
            "--loss auto");
}
TEST_CASE(kept, predictions_follow_16_bit_copies) {
    follows(text,
            "--target cpu:x86-64-v2 --precision bf16 --optimizer sgd,lr=0.5 "
            "--loss auto");
}

TEST_CASE(kept, predictions_follow_what_parameters_make) {
    follows(makes,
            "--target cpu:x86-64-v2 --precision fp32 --optimizer sgd,lr=0.02 "
            "--loss auto");
}

static void count_steps(void *ctx, const char *program, const char *step,
                        uint64_t begin, uint64_t end) {
    (void)program, (void)step, (void)begin, (void)end;
    ++*(int *)ctx;
}

/* Kernels that a prediction runs, and its outputs. */
static int ran(const Compiled *c, ampc_session *s, float z[N * CLASSES]) {
    int n = 0;
    Data d;
    ampc_output out = ampc_out("z", z, N * CLASSES * sizeof *z, AMPC_DTYPE_F32);
    data(&d);
    REQUIRE(c->api->profile(s, count_steps, &n) == AMPC_OK);
    REQUIRE(c->api->predict(s, d.in, 2, N, &out, 1) == AMPC_OK);
    REQUIRE(c->api->profile(s, NULL, NULL) == AMPC_OK);
    return n;
}

/* Values that parameters alone determine are computed again only after another
   program ran, whose values may lie there, or a parameter changed. */
TEST_CASE(kept, what_parameters_make_is_computed_once) {
    Compiled c = compile_text(makes, "--target cpu:x86-64-v2 --precision fp32 "
                                     "--optimizer sgd,lr=0.02 --loss auto");
    ampc_session *s = open_threads(&c, 2), *fresh = open_threads(&c, 1);
    const char *path = test_tmp("makes.ckpt");
    float z[2][N * CLASSES], u[X * X];
    int all = ran(&c, s, z[0]), again = ran(&c, s, z[1]);
    CHECK_MSG(again < all, "%d kernels, then %d", all, again);
    CHECK(memcmp(z[0], z[1], sizeof z[0]) == 0);
    says(&c, s);
    CHECK_EQ_INT(ran(&c, s, z[1]), all);
    CHECK_EQ_INT(ran(&c, s, z[1]), again);
    CHECK(memcmp(z[0], z[1], sizeof z[0]) == 0);
    read_var(&c, s, "u", u, sizeof u, AMPC_DTYPE_F32);
    u[X + 3] += 1;
    write_var(&c, s, "u", u, sizeof u, AMPC_DTYPE_F32);
    REQUIRE(c.api->save(s, path) == AMPC_OK);
    REQUIRE(c.api->resume(fresh, path) == AMPC_OK);
    CHECK_EQ_INT(ran(&c, s, z[0]), all);
    CHECK_EQ_INT(ran(&c, fresh, z[1]), all);
    CHECK(memcmp(z[0], z[1], sizeof z[0]) == 0);
    c.api->close(s);
    c.api->close(fresh);
    compiled_close(&c);
}

/* Also for a parameter that a step uses twice: 5 steps of one session equal
   five sessions that each resume where the previous one ended. */
TEST_CASE(kept, steps_follow_parameters) {
    Compiled c = compile_text(
        text, "--target cpu:x86-64-v2 --precision fp32 --optimizer sgd,lr=0.5 "
              "--loss auto");
    ampc_session *s = open_threads(&c, 2), *t = open_threads(&c, 2);
    const char *path = test_tmp("step.ckpt");
    Data d;
    data(&d);
    for (int i = 0; i < 5; i++) {
        ampc_metrics a = step_ok(&c, s, d.in, 2), b = step_ok(&c, t, d.in, 2);
        CHECK_MSG(a.loss == b.loss && a.grad_norm == b.grad_norm,
                  "step %d: loss %.9g, not %.9g", i, a.loss, b.loss);
        REQUIRE(c.api->save(t, path) == AMPC_OK);
        c.api->close(t);
        t = open_threads(&c, 2);
        REQUIRE(c.api->resume(t, path) == AMPC_OK);
    }
    c.api->close(s);
    c.api->close(t);
    compiled_close(&c);
}

/* ---- values of the arena ------------------------------------------------- */

/* Two values of one shape, the second in the memory of the first, each read
   by two products. */
static const char in_a_run[] = "graph forward(%x: f32[3,40]) {\n"
                               "  param %u: f32[40,40] = normal(0, 0.2)\n"
                               "  %t = tanh %u : f32[40,40]\n"
                               "  %a = matmul %x, %t : f32[3,40]\n"
                               "  %b = matmul %a, %t : f32[3,40]\n"
                               "  %s = reduce_sum %b {axes=[0,1]} : f32[1,1]\n"
                               "  %q = tanh %s : f32[1,1]\n"
                               "  %r = sub %u, %q : f32[40,40]\n"
                               "  %c = matmul %b, %r : f32[3,40]\n"
                               "  %z = matmul %c, %r : f32[3,40]\n"
                               "  return z=%z\n"
                               "}\n";

static void product(double *z, const double *x, const double *w) {
    for (int i = 0; i < N; i++)
        for (int j = 0; j < X; j++) {
            double sum = 0;
            for (int k = 0; k < X; k++) sum += x[i * X + k] * w[k * X + j];
            z[i * X + j] = sum;
        }
}

/* Largest difference of a prediction from its formula, relative to its largest
   value.
 */
static double off(const Compiled *c, ampc_session *s, const float *u) {
    static double t[X * X], r[X * X], x[2][N * X];
    float z[N * X];
    double most = 0, wrong = 0, sum = 0;
    Data d;
    ampc_output out = ampc_out("z", z, sizeof z, AMPC_DTYPE_F32);
    data(&d);
    REQUIRE(c->api->predict(s, d.in, 1, N, &out, 1) == AMPC_OK);
    for (int i = 0; i < X * X; i++) t[i] = tanh(u[i]);
    for (int i = 0; i < N * X; i++) x[0][i] = d.x[i];
    product(x[1], x[0], t);
    product(x[0], x[1], t);
    for (int i = 0; i < N * X; i++) sum += x[0][i];
    for (int i = 0; i < X * X; i++) r[i] = u[i] - tanh(sum);
    product(x[1], x[0], r);
    product(x[0], x[1], r);
    for (int i = 0; i < N * X; i++) {
        most = fmax(most, fabs(x[0][i]));
        wrong = fmax(wrong, fabs(x[0][i] - z[i]));
    }
    return wrong / most;
}

TEST_CASE(kept, values_of_a_run) {
    Compiled c = compile_text(
        in_a_run, "--target cpu:x86-64-v2 --precision fp32 --loss none");
    ampc_session *s = open_threads(&c, 2);
    float u[X * X];
    read_var(&c, s, "u", u, sizeof u, AMPC_DTYPE_F32);
    for (int i = 0; i < 3; i++) {
        double e = off(&c, s, u);
        CHECK_MSG(e < 1e-5, "run %d is %.2g off", i, e);
        for (int j = 0; j < X * X; j++) u[j] = u[j] * 1.5F + 0.01F;
        write_var(&c, s, "u", u, sizeof u, AMPC_DTYPE_F32);
    }
    c.api->close(s);
    compiled_close(&c);
}

/* Each product has packed panels of its own parameter, though everything
   else is equal: results with twice the parameter are exactly twice as
   large. */
TEST_CASE(kept, parameters_of_one_shape) {
    Compiled c = compile_text("graph forward(%x: f32[3,40]) {\n"
                              "  param %u: f32[40,40] = normal(0, 0.2)\n"
                              "  param %v: f32[40,40] = normal(1, 0.2)\n"
                              "  %a = matmul %x, %u : f32[3,40]\n"
                              "  %ta = tanh %a : f32[3,40]\n"
                              "  %b = matmul %ta, %v : f32[3,40]\n"
                              "  %c = matmul %ta, %u : f32[3,40]\n"
                              "  return b=%b, c=%c\n"
                              "}\n",
                              "--precision fp32 --loss none");
    ampc_session *s = open_threads(&c, 2);
    float u[X * X], x[N * X], b[N * X], z[N * X];
    for (int i = 0; i < N * X; i++) x[i] = (float)(i % 17 - 8) / 8;
    ampc_input in = ampc_in("x", x, sizeof x, AMPC_DTYPE_F32);
    ampc_output out[] = {ampc_out("b", b, sizeof b, AMPC_DTYPE_F32),
                         ampc_out("c", z, sizeof z, AMPC_DTYPE_F32)};
    read_var(&c, s, "u", u, sizeof u, AMPC_DTYPE_F32);
    for (int i = 0; i < X * X; i++) u[i] *= 2;
    write_var(&c, s, "v", u, sizeof u, AMPC_DTYPE_F32);
    for (int run = 0; run < 2; run++) {
        REQUIRE(c.api->predict(s, &in, 1, N, out, 2) == AMPC_OK);
        int wrong = 0;
        for (int i = 0; i < N * X; i++) wrong += b[i] != 2 * z[i];
        CHECK_MSG(wrong == 0 && z[0] != 0, "run %d: %d differ", run, wrong);
    }
    c.api->close(s);
    compiled_close(&c);
}

static void *counted(void *ctx, size_t bytes, size_t align) {
    *(size_t *)ctx += bytes;
    return aligned_alloc(align, (bytes + 63) / 64 * 64);
}

static void given_back(void *ctx, void *p, size_t bytes) {
    *(size_t *)ctx -= bytes;
    free(p);
}

typedef struct Reader {
    const char *op, *attrs, *x, *u; /* shapes of %x, of its result, and of %u */
} Reader;

/* Bytes that a session holds after a prediction with a model whose n ops
   read the same parameter. */
static size_t held_after(const Reader *r, int n) {
    char *model = NULL;
    size_t size, bytes = 0;
    FILE *f = open_memstream(&model, &size);
    fprintf(f,
            "graph forward(%%x0: f32[%s]) {\n"
            "  param %%u: f32[%s] = normal(0, 0.1)\n",
            r->x, r->u);
    for (int i = 0; i < n; i++)
        fprintf(f, "  %%a%d = %s %%x%d, %%u%s\n  %%x%d = tanh %%a%d\n", i,
                r->op, i, r->attrs, i + 1, i);
    fprintf(f, "  return z=%%x%d\n}\n", n);
    fclose(f);
    Compiled c = compile_text(model, "--precision fp32 --loss none");
    ampc_options o = {.size = sizeof o,
                      .alloc = counted,
                      .free = given_back,
                      .alloc_ctx = &bytes};
    static float x[3 * 256], z[3 * 256];
    ampc_input in = ampc_in("x0", x, sizeof x, AMPC_DTYPE_F32);
    ampc_output out = ampc_out("z", z, sizeof z, AMPC_DTYPE_F32);
    ampc_session *s;
    char err[256];
    REQUIRE(c.api->open(c.api->module, &o, &s, err, sizeof err) == AMPC_OK);
    REQUIRE(c.api->predict(s, &in, 1, 3, &out, 1) == AMPC_OK);
    size_t held = bytes;
    c.api->close(s);
    compiled_close(&c);
    free(model);
    return held;
}

TEST_CASE(kept, once_for_all_that_read_a_parameter) {
    static const Reader readers[] = {
        {"matmul", "", "3,256", "256,256"},
        {"conv", " {pads=[1,1,1,1]}", "3,64,2,2", "64,64,3,3"}};
    for (int i = 0; i < 2; i++) {
        const Reader *r = &readers[i];
        size_t one = held_after(r, 1), four = held_after(r, 4);
        CHECK_MSG(four < one + 100000, "%s: %zu bytes more", r->op, four - one);
    }
}

/* A step packs a parameter that it changes and multiplies once in memory that
   all steps share; a prediction keeps the packed copy. */
TEST_CASE(kept, nothing_of_what_a_step_changes) {
    enum { PANELS = 512 * 512 * 4 };
    Compiled c = compile_text("graph forward(%x: f32[3,512], %y: i64[3]) {\n"
                              "  param %u: f32[512,512] = normal(0, 0.1)\n"
                              "  %z = matmul %x, %u : f32[3,512]\n"
                              "  %loss = softmax_cross_entropy %z, %y : f32[]\n"
                              "  return loss=%loss, z=%z\n"
                              "}\n",
                              "--precision fp32 --optimizer sgd,lr=0.1");
    size_t bytes = 0, opened, stepped;
    ampc_options o = {.size = sizeof o,
                      .alloc = counted,
                      .free = given_back,
                      .alloc_ctx = &bytes};
    static float x[3 * 512], z[3 * 512];
    int64_t y[3] = {1, 2, 3};
    ampc_input in[] = {ampc_in("x", x, sizeof x, AMPC_DTYPE_F32),
                       ampc_in("y", y, sizeof y, AMPC_DTYPE_I64)};
    ampc_output out = ampc_out("z", z, sizeof z, AMPC_DTYPE_F32);
    ampc_session *s;
    char err[256];
    REQUIRE(c.api->open(c.api->module, &o, &s, err, sizeof err) == AMPC_OK);
    opened = bytes;
    step_ok(&c, s, in, 2);
    stepped = bytes;
    REQUIRE(c.api->predict(s, in, 2, 3, &out, 1) == AMPC_OK);
    CHECK_MSG(stepped < opened + PANELS / 2, "%zu bytes", stepped - opened);
    CHECK_MSG(bytes >= stepped + PANELS, "%zu bytes", bytes - stepped);
    c.api->close(s);
    CHECK(bytes == 0);
    compiled_close(&c);
}
