/* SPDX-License-Identifier: Apache-2.0 */
/* optimizers_test.c: every optimizer compared with its source, over 20 steps
   (tests/optimizers/reference.txt, which make.py there recorded in f64),
   averages of parameters (averages.txt, make_averages.py), wrappers and noise
   (wrappers.txt, make_wrappers.py), and optimizers written by users, among
   them the published ones of models/optimizers (published.txt,
   make_published.py).

   The loss is the sum of x*p over parameters p: the inputs are the gradients.
   Cases "net_.." have a small network with a batch normalisation. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ir/fn/optimizer.h"
#include "tests/support/compiled.h"
#include "tests/tolerance.h"
#include "tests/whole/optimizers/optimizers.h"

const char *const param_names[NPARAM] = {"a", "m", "c"};
const int param_sizes[NPARAM] = {3, 20, 12};

const char param_model[] =
    "graph forward(%x: f32[3], %y: f32[5,4], %z: f32[2,3,2]) {\n"
    "  param %a: f32[3] = 0, %m: f32[5,4] = 0, %c: f32[2,3,2] = 0\n"
    "  %xa = mul %x, %a : f32[3]\n"
    "  %ym = mul %y, %m : f32[5,4]\n"
    "  %zc = mul %z, %c : f32[2,3,2]\n"
    "  %sx = reduce_sum %xa {axes=[0], keepdims=0} : f32[]\n"
    "  %sy = reduce_sum %ym {axes=[0,1], keepdims=0} : f32[]\n"
    "  %sz = reduce_sum %zc {axes=[0,1,2], keepdims=0} : f32[]\n"
    "  %s = add %sx, %sy : f32[]\n"
    "  %loss = add %s, %sz : f32[]\n"
    "  return %loss\n"
    "}\n";

static const char net[] =
    "model net(x: f32[5,4], t: f32[5,2]) {\n"
    "  param w1: f32[4,4] = normal(0.1)\n"
    "  param w2: f32[4,2] = normal(0.1)\n"
    "  y = tanh(BatchNorm(x @ w1, scope=\"bn\")) @ w2 - t\n"
    "  return loss = reduce_mean(y * y, axes=[0,1], keepdims=0)\n}\n";

static const struct NetVar {
    const char *name;
    int n;
} net_vars[] = {{"w1", 16},
                {"w2", 8},
                {"bn.weight", 4},
                {"bn.bias", 4},
                {"bn.running_mean", 4},
                {"bn.running_var", 4}};
enum { NET_VARS = sizeof net_vars / sizeof *net_vars };

void param_feed(Feed *f, int i, bool overflows) {
    static const double turn[] = {1, 0.05, 4, 0.4};
    static const char *const inputs[] = {"x", "y", "z"};
    uint64_t state = 77 + (uint64_t)i;
    for (int k = 0; k < NPARAM; k++) {
        for (int j = 0; j < param_sizes[k]; j++) {
            for (int n = 0; n < 3; n++)
                state = state * 6364136223846793005u + 1442695040888963407u;
            double u = (double)(state >> 40) / (1 << 23) - 1;
            f->x[k][j] = (float)(u * turn[i % 4]);
        }
        f->in[k] =
            ampc_in(inputs[k], f->x[k], (size_t)param_sizes[k] * sizeof(float),
                    AMPC_DTYPE_F32);
    }
    if (overflows) f->x[1][2] = 3e38f;
}

static void set_numbers(const Compiled *c, ampc_session *s, const char *name,
                        int n) {
    float p[MAX_N];
    for (int i = 0; i < n; i++) p[i] = (float)((37 * i + 11) % 64 - 32) / 32;
    write_var(c, s, name, p, (size_t)n * sizeof *p, AMPC_DTYPE_F32);
}

ampc_session *param_begin(const Compiled *c) {
    ampc_session *s = open_threads(c, 1);
    for (int k = 0; k < NPARAM; k++)
        set_numbers(c, s, param_names[k], param_sizes[k]);
    return s;
}

void param_steps(const Compiled *c, ampc_session *s, const Case *x, int from,
                 int to) {
    for (int i = from; i < to; i++) {
        Feed f;
        param_feed(&f, i, x->letters[i] == 'o');
        ampc_metrics m = step_ok(c, s, f.in, NPARAM);
        CHECK_EQ_INT(m.applied, x->letters[i] != 'o');
    }
}

/* The numbers of one line, "at STEP NAME NUMBER ..": where they begin. */
static const char *numbers_of(const Case *x, int step, const char *name) {
    char head[40];
    snprintf(head, sizeof head, "\nat %d %s ", step, name);
    const char *end = strstr(x->numbers, "\ncase "),
               *at = strstr(x->numbers, head);
    REQUIRE(at && (!end || at < end));
    return at + strlen(head);
}

static void check_var(const Compiled *c, ampc_session *s, const Case *x,
                      int step, const char *name, int n) {
    float got[MAX_N];
    double want[MAX_N], largest = 0;
    char average[100];
    const char *p = numbers_of(x, step, name);
    for (int i = 0; i < n; i++) {
        char *end;
        want[i] = strtod(p, &end);
        REQUIRE(end > p);
        p = end;
        largest = fmax(largest, fabs(want[i]));
    }
    snprintf(average, sizeof average, "ampc.opt/%s/%s", name,
             strstr(x->options, "schedule_free") ? "evaluated" : "average");
    read_var(c, s, x->average ? average : name, got, (size_t)n * sizeof *got,
             AMPC_DTYPE_F32);
    for (int i = 0; i < n; i++)
        CHECK_MSG(fabs((double)got[i] - want[i]) <= TOL_OPTIMIZER * largest,
                  "%s: after step %d %s[%d] is %.9g, not %.9g", x->name, step,
                  name, i, (double)got[i], want[i]);
}

static void check_params(const Compiled *c, ampc_session *s, const Case *x,
                         int step) {
    for (int k = 0; k < NPARAM; k++)
        check_var(c, s, x, step, param_names[k], param_sizes[k]);
}

/* A run cut in two by a checkpoint ends with the same bits. */
void param_resume(const Compiled *c, ampc_session *whole, const Case *x) {
    const char *path = test_tmp("half.ckpt");
    size_t n[2];
    ampc_session *s = param_begin(c);
    param_steps(c, s, x, 0, STEPS / 2);
    REQUIRE(c->api->save(s, path) == AMPC_OK);
    c->api->close(s);
    s = open_threads(c, 1);
    if (c->api->resume(s, path)) FAIL("resume: %s", c->api->error(s));
    param_steps(c, s, x, STEPS / 2, STEPS);
    void *a = read_all(c, s, ~0u, &n[0]), *b = read_all(c, whole, ~0u, &n[1]);
    CHECK(n[0] == n[1] && n[0] > 0 && !memcmp(a, b, n[0]));
    free(a);
    free(b);
    c->api->close(s);
}

/* The case's options; a file of models/ is where the test's data are. */
static void options_of(const Case *x, char options[1000]) {
    const char *file = strstr(x->options, "models/"),
               *root = file ? test_data_path("") : "";
    int n = file ? (int)(file - x->options) : 0;
    snprintf(options, 1000, "%.*s%s%s --target cpu:x86-64-v2", n, x->options,
             root, x->options + n);
}

static void run(void *arg) {
    const Case *x = arg;
    char options[1000];
    options_of(x, options);
    Compiled c = compile_text(param_model, options);
    ampc_session *s = param_begin(&c);
    param_steps(&c, s, x, 0, 1);
    check_params(&c, s, x, 0);
    param_steps(&c, s, x, 1, 5);
    check_params(&c, s, x, 4);
    param_steps(&c, s, x, 5, STEPS);
    check_params(&c, s, x, STEPS - 1);
    param_resume(&c, s, x);
    c.api->close(s);
    compiled_close(&c);
}

/* Averages of the running statistics of a batch normalisation. */
static void run_buffers(void *arg) {
    static const char text[] = "model m(x: f32[4,3]) {\n"
                               "  y = BatchNorm(x, scope=\"bn\") * x\n"
                               "  return loss = reduce_sum(y, axes=[0,1], "
                               "keepdims=0)\n}\n";
    static const char *const of[] = {"bn.weight", "bn.bias", "bn.running_mean",
                                     "bn.running_var"};
    const Case *x = arg;
    char options[400];
    snprintf(options, sizeof options, "%s --target cpu:x86-64-v2", x->options);
    Compiled c = compile_text(text, options);
    ampc_session *s = open_threads(&c, 1);
    for (int i = 0; i < STEPS; i++) {
        Feed f;
        param_feed(&f, i, false);
        ampc_input in =
            ampc_in("x", f.x[1], 12 * sizeof(float), AMPC_DTYPE_F32);
        step_ok(&c, s, &in, 1);
        for (int k = 0; k < 4 && (i == 0 || i == 4 || i == STEPS - 1); k++)
            check_var(&c, s, x, i, of[k], 3);
    }
    c.api->close(s);
    compiled_close(&c);
}

/* ---- a network ------------------------------------------------------------
 */

static ampc_session *net_begin(const Compiled *c, int threads) {
    ampc_session *s = open_threads(c, threads);
    for (int k = 0; k < 2; k++)
        set_numbers(c, s, net_vars[k].name, net_vars[k].n);
    return s;
}

/* A step of micro-batches from number `from` on. */
static void net_step(const Compiled *c, ampc_session *s, int from, int micro) {
    for (int i = 0; i < micro; i++) {
        Feed f;
        param_feed(&f, from + i, false);
        ampc_input in[] = {
            ampc_in("x", f.x[1], 20 * sizeof(float), AMPC_DTYPE_F32),
            ampc_in("t", f.x[2], 10 * sizeof(float), AMPC_DTYPE_F32)};
        if (micro == 1)
            step_ok(c, s, in, 2);
        else if (c->api->micro_step(s, in, 2, NULL))
            FAIL("micro_step: %s", c->api->error(s));
    }
    if (micro > 1 && c->api->update(s, NULL))
        FAIL("update: %s", c->api->error(s));
}

static void check_equal(const Compiled *c, ampc_session *s, const Compiled *d,
                        ampc_session *t) {
    size_t n[2];
    void *a = read_all(c, s, ~0u, &n[0]), *b = read_all(d, t, ~0u, &n[1]);
    CHECK(n[0] == n[1] && n[0] > 0 && !memcmp(a, b, n[0]));
    free(a);
    free(b);
}

/* Also on three threads, and continued from a checkpoint: with the same bits.
 */
static void run_net(void *arg) {
    const Case *x = arg;
    char options[400];
    int micro = strstr(x->options, "--accumulate 2") ? 2 : 1;
    const char *path = test_tmp("net.ckpt");
    snprintf(options, sizeof options, "%s --target cpu:x86-64-v2", x->options);
    Compiled c = compile_text(net, options);
    ampc_session *s = net_begin(&c, 1), *t = net_begin(&c, 3);
    for (int i = 0; i < STEPS; i++) {
        if (i == STEPS / 2) {
            REQUIRE(c.api->save(t, path) == AMPC_OK);
            c.api->close(t);
            t = open_threads(&c, 3);
            REQUIRE(c.api->resume(t, path) == AMPC_OK);
        }
        net_step(&c, s, i * micro, micro);
        net_step(&c, t, i * micro, micro);
        for (int k = 0; k < NET_VARS && (i == 0 || i == 4 || i == STEPS - 1);
             k++)
            check_var(&c, s, x, i, net_vars[k].name, net_vars[k].n);
    }
    check_equal(&c, s, &c, t);
    c.api->close(s);
    c.api->close(t);
    compiled_close(&c);
}

/* An ascent of length 0 changes no bit: both passes drop the same elements, and
   running statistics move once. */
TEST_CASE(optimizers, sam_of_length_0_is_the_plain_step) {
    static const char text[] =
        "model net(x: f32[5,4], t: f32[5,2]) {\n"
        "  param w1: f32[4,4] = normal(0.1)\n"
        "  param w2: f32[4,2] = normal(0.1)\n"
        "  h = Dropout(BatchNorm(x @ w1, scope=\"bn\"), ratio=0.4)\n"
        "  y = tanh(h) @ w2 - t\n"
        "  return loss = reduce_mean(y * y, axes=[0,1], keepdims=0)\n}\n";
    static const char *const with[] = {"--precision fp32",
                                       "--precision fp16 --placement pytorch "
                                       "--clip-norm 0.1",
                                       "--accumulate 2 --precision fp32"};
    for (size_t k = 0; k < sizeof with / sizeof *with; k++) {
        char options[300];
        int micro = strstr(with[k], "accumulate") ? 2 : 1;
        snprintf(options, sizeof options, "%s --target cpu:x86-64-v2", with[k]);
        Compiled c = compile_text(text, options);
        snprintf(options, sizeof options,
                 "%s --target cpu:x86-64-v2 --wrapper sam,rho=0", with[k]);
        Compiled d = compile_text(text, options);
        ampc_session *s = net_begin(&c, 1), *t = net_begin(&d, 1);
        for (int i = 0; i < 3; i++) {
            net_step(&c, s, i * micro, micro);
            net_step(&d, t, i * micro, micro);
        }
        check_equal(&c, s, &d, t);
        c.api->close(s);
        d.api->close(t);
        compiled_close(&c);
        compiled_close(&d);
    }
}

/* ---- noise ----------------------------------------------------------------
 */

enum { NOISES = 1 << 14, DRAWS = 4 }; /* p and q in two steps */

/* The correlation of two columns of numbers. */
static double correlation(const float *x, const float *y) {
    double xy = 0, xx = 0, yy = 0;
    for (int i = 0; i < NOISES; i++) {
        xy += (double)x[i] * y[i];
        xx += (double)x[i] * x[i];
        yy += (double)y[i] * y[i];
    }
    return xy / sqrt(xx * yy);
}

/* Fails beyond four standard deviations of each estimate. */
static void check_normal(const float *x, double variance) {
    double sum = 0, square = 0, fourth = 0, n = NOISES;
    for (int i = 0; i < NOISES; i++) {
        double u = (double)x[i] / sqrt(variance);
        sum += u;
        square += u * u;
        fourth += u * u * u * u;
    }
    CHECK_MSG(fabs(sum / n) < 4 / sqrt(n), "mean %g", sum / n);
    CHECK_MSG(fabs(square / n - 1) < 4 * sqrt(2 / n), "square %g", square / n);
    CHECK_MSG(fabs(fourth / n - 3) < 4 * sqrt(96 / n), "fourth %g", fourth / n);
}

/* The gradient is 0 and lr 1: a step takes the noise away from p and q. */
static void draw_noise(const Compiled *c, int threads, float x[DRAWS][NOISES]) {
    static float zeros[NOISES], old[2][NOISES], now[NOISES];
    static const char *const names[] = {"p", "q"};
    ampc_session *s = open_threads(c, threads);
    ampc_input in = ampc_in("x", zeros, sizeof zeros, AMPC_DTYPE_F32);
    memset(old, 0, sizeof old);
    for (int k = 0; k < DRAWS; k++) {
        if (k % 2 == 0) step_ok(c, s, &in, 1);
        read_var(c, s, names[k % 2], now, sizeof now, AMPC_DTYPE_F32);
        for (int i = 0; i < NOISES; i++) x[k][i] = old[k % 2][i] - now[i];
        memcpy(old[k % 2], now, sizeof now);
    }
    c->api->close(s);
}

TEST_CASE(optimizers, noise_is_normal_and_the_same_on_any_threads) {
    static const char text[] =
        "model net(x: f32[128,128]) {\n"
        "  param p: f32[128,128] = zeros\n"
        "  param q: f32[128,128] = zeros\n"
        "  return loss = reduce_sum(x * (p + q), axes=[0,1], keepdims=0)\n}\n";
    static float x[DRAWS][NOISES], y[DRAWS][NOISES];
    Compiled c = compile_text(text, "--precision fp32 --target cpu:x86-64-v2 "
                                    "--optimizer sgd,lr=1 --gradient "
                                    "noise,eta=0.09,gamma=0.55");
    draw_noise(&c, 1, x);
    draw_noise(&c, 3, y);
    CHECK_MEM(x, y, sizeof x);
    for (int k = 0; k < DRAWS; k++) {
        check_normal(x[k], 0.09 / pow(k / 2 + 1, 0.55));
        for (int i = 0; i < k; i++)
            CHECK(fabs(correlation(x[i], x[k])) < 4 / sqrt(NOISES));
    }
    compiled_close(&c);
}

/* With a few last products, which read fp32: both passes find the same. */
TEST_CASE(optimizers, sam_of_length_0_has_the_types_of_the_plain_step) {
    enum { X = 16 * 256, T = 16 };
    static const char text[] =
        "model net(x: f32[16,256], t: f32[16,1]) {\n"
        "  h = tanh(Linear(x, units=512, scope=\"one\"))\n"
        "  h = reduce_mean(reshape(h, shape=[16,64,8]), axes=[2], "
        "keepdims=0)\n"
        "  y = Linear(h, units=1, scope=\"two\") - t\n"
        "  return loss = reduce_mean(y * y, axes=[0,1], keepdims=0)\n}\n";
    static float x[X], t[T];
    for (int i = 0; i < X; i++) x[i] = (float)((29 * i + 5) % 64 - 32) / 32;
    for (int i = 0; i < T; i++) t[i] = (float)i / 16;
    ampc_input in[] = {ampc_in("x", x, sizeof x, AMPC_DTYPE_F32),
                       ampc_in("t", t, sizeof t, AMPC_DTYPE_F32)};
    static const char *const with[] = {"", " --wrapper sam,rho=0"};
    Compiled c[2];
    ampc_session *s[2];
    for (int k = 0; k < 2; k++) {
        char options[200];
        snprintf(options, sizeof options,
                 "--target cpu:x86-64-v2 --placement pytorch --optimizer "
                 "sgd,lr=0.1%s",
                 with[k]);
        c[k] = compile_text(text, options);
        s[k] = open_threads(&c[k], 1);
        for (int i = 0; i < 2; i++) step_ok(&c[k], s[k], in, 2);
    }
    check_equal(&c[0], s[0], &c[1], s[1]);
    for (int k = 0; k < 2; k++) {
        c[k].api->close(s[k]);
        compiled_close(&c[k]);
    }
}

/* ---- the file ------------------------------------------------------------ */

enum { MAX_CASES = 200 };
static Case cases[MAX_CASES];
static int ncases;

static void cases_of(const char *name, bool average) {
    size_t size;
    char path[100];
    snprintf(path, sizeof path, "tests/optimizers/%s", name);
    const char *p = test_read_file(test_data_path(path), &size);
    while (ncases < MAX_CASES && (p = strstr(p, "\ncase "))) {
        Case *x = &cases[ncases++];
        REQUIRE(sscanf(p, "\ncase %63s %20s %299[^\n]", x->name, x->letters,
                       x->options) == 3);
        p += 6;
        x->numbers = strchr(p, '\n');
        x->average = average;
        bool buffers = !strcmp(x->name, "buffers");
        bool small = !strncmp(x->name, "net_", 4);
        harness_register(average ? "averages" : "optimizers", x->name,
                         buffers ? run_buffers
                         : small ? run_net
                                 : run,
                         x);
    }
}

static void read_cases(void) {
    cases_of("reference.txt", false);
    cases_of("averages.txt", true);
    cases_of("wrappers.txt", false);
    cases_of("published.txt", false);
    REQUIRE(ncases > 0 && ncases < MAX_CASES);
}
TEST_REGISTRAR(read_cases);

TEST_CASE(optimizers, each_has_a_source_and_cases) {
    static const char *const kinds[] = {"", "_decay_clip", "_groups", "_fp16"};
    int n = 0;
    for (const Fn *f = NULL; (f = optimizer_next(f, ROLE_OPTIMIZER)); n++) {
        CHECK_MSG(f->optimizer->source, "%s names no source", f->info.text);
        for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++) {
            char name[100];
            bool found = false;
            snprintf(name, sizeof name, "%s%s", f->info.text, kinds[k]);
            for (int i = 0; i < ncases; i++)
                found |= !strcmp(cases[i].name, name);
            CHECK_MSG(found, "tests/optimizers/make.py records no case of %s",
                      name);
        }
    }
    CHECK(n >= 18);
    for (int role = WRAPPER_BEFORE; role <= WRAPPER_AFTER; role++)
        for (const Fn *f = NULL; (f = optimizer_next(f, role));) {
            bool found = false;
            for (int i = 0; i < ncases; i++)
                found |= strstr(cases[i].name, f->info.text) != NULL;
            CHECK_MSG(found && f->optimizer->source,
                      "%s: no source, or make_wrappers.py records no case",
                      f->info.text);
        }
}
