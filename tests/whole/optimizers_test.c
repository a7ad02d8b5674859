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

enum { NPARAM = 3, MAX_N = 20, STEPS = 20 };

static const char *const name_of[NPARAM] = {"a", "m", "c"};
static const int count[NPARAM] = {3, 20, 12};

static const char model[] =
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

/* A case of the file: its line, and the following lines of numbers. */
typedef struct Case {
    char name[64], letters[STEPS + 1], options[300];
    const char *numbers;
    bool average; /* the numbers are averages */
} Case;

typedef struct Feed {
    float x[NPARAM][MAX_N];
    ampc_input in[NPARAM];
} Feed;

static void feed_fill(Feed *f, int i, bool overflows) {
    static const double turn[] = {1, 0.05, 4, 0.4};
    static const char *const inputs[] = {"x", "y", "z"};
    uint64_t state = 77 + (uint64_t)i;
    for (int k = 0; k < NPARAM; k++) {
        for (int j = 0; j < count[k]; j++) {
            for (int n = 0; n < 3; n++)
                state = state * 6364136223846793005u + 1442695040888963407u;
            double u = (double)(state >> 40) / (1 << 23) - 1;
            f->x[k][j] = (float)(u * turn[i % 4]);
        }
        f->in[k] = ampc_in(inputs[k], f->x[k], (size_t)count[k] * sizeof(float),
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

static ampc_session *begin(const Compiled *c) {
    ampc_session *s = open_threads(c, 1);
    for (int k = 0; k < NPARAM; k++) set_numbers(c, s, name_of[k], count[k]);
    return s;
}

static void steps(const Compiled *c, ampc_session *s, const Case *x, int from,
                  int to) {
    for (int i = from; i < to; i++) {
        Feed f;
        feed_fill(&f, i, x->letters[i] == 'o');
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
        check_var(c, s, x, step, name_of[k], count[k]);
}

/* A run cut in two by a checkpoint ends with the same bits. */
static void check_resume(const Compiled *c, ampc_session *whole,
                         const Case *x) {
    const char *path = test_tmp("half.ckpt");
    size_t n[2];
    ampc_session *s = begin(c);
    steps(c, s, x, 0, STEPS / 2);
    REQUIRE(c->api->save(s, path) == AMPC_OK);
    c->api->close(s);
    s = open_threads(c, 1);
    if (c->api->resume(s, path)) FAIL("resume: %s", c->api->error(s));
    steps(c, s, x, STEPS / 2, STEPS);
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
    Compiled c = compile_text(model, options);
    ampc_session *s = begin(&c);
    steps(&c, s, x, 0, 1);
    check_params(&c, s, x, 0);
    steps(&c, s, x, 1, 5);
    check_params(&c, s, x, 4);
    steps(&c, s, x, 5, STEPS);
    check_params(&c, s, x, STEPS - 1);
    check_resume(&c, s, x);
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
        feed_fill(&f, i, false);
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
        feed_fill(&f, from + i, false);
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

/* ---- a user's own -------------------------------------------------------- */

static const char own[] =
    "# Signs of a mean.\n"
    "def halved(x) -> y class none { y = x / 2 }\n"
    "optimizer mine(p, g; lr = 0.125, keep = 0.5 from 0 below 1 \"decay\")\n"
    "  source \"us\"\n"
    "  state mean, seen: i32[] = 3\n"
    "{\n"
    "  mean = mean * keep + halved(g)\n"
    "  seen = seen + 1\n"
    "  p = p - sign(mean) * lr\n"
    "}\n";

static const char *own_file(const char *name, const char *text) {
    const char *path = test_tmp(name);
    REQUIRE(test_write_file(path, text, strlen(text)));
    return path;
}

TEST_CASE(optimizers, a_user_writes_one) {
    static float mean[NPARAM][MAX_N], p[MAX_N];
    char options[600];
    Case x = {.name = "mine", .letters = "...................."};
    snprintf(options, sizeof options,
             "--precision fp32 --target cpu:x86-64-v2 --optimizer "
             "%s,keep=0.75",
             own_file("mine.amp", own));
    Compiled c = compile_text(model, options);
    ampc_session *s = begin(&c);
    for (int i = 0; i < 3; i++) {
        Feed f;
        feed_fill(&f, i, false);
        step_ok(&c, s, f.in, NPARAM);
        for (int k = 0; k < NPARAM; k++)
            for (int j = 0; j < count[k]; j++)
                mean[k][j] = mean[k][j] * 0.75f + f.x[k][j] / 2;
    }
    int32_t seen = 0;
    read_var(&c, s, "ampc.opt/a/seen", &seen, sizeof seen, AMPC_DTYPE_I32);
    CHECK_EQ_INT(seen, 6);
    read_var(&c, s, "ampc.opt/m/mean", p, 20 * sizeof *p, AMPC_DTYPE_F32);
    for (int j = 0; j < 20; j++) CHECK_REL(p[j], mean[1][j], 1e-6);
    steps(&c, s, &x, 3, STEPS);
    check_resume(&c, s, &x);
    c.api->close(s);
    compiled_close(&c);
}

/* Sums that fp32 would round: 1 + k / 2^40. Of m alone, since a and c have no
   such state. */
TEST_CASE(optimizers, state_in_f64_is_kept_in_f64) {
    static double wide[20];
    char options[600];
    Case x = {.name = "wide", .letters = "...................."};
    snprintf(
        options, sizeof options,
        "--precision fp32 --target cpu:x86-64-v2 --optimizer %s",
        own_file("wide.amp",
                 "optimizer wide(p, g; lr = 0.125)\n"
                 "  state sum: f64 = 1 if rank(p) == 2\n{\n"
                 "  if rank(p) == 2 { sum = sum + 9.094947017729282e-13 }\n"
                 "  p = p - g * lr\n}\n"));
    Compiled c = compile_text(model, options);
    ampc_session *s = begin(&c);
    steps(&c, s, &x, 0, 3);
    read_var(&c, s, "ampc.opt/m/sum", wide, sizeof wide, AMPC_DTYPE_F64);
    for (int i = 0; i < 20; i++) CHECK(wide[i] == 1 + 3 * 0x1p-40);
    c.api->close(s);
    compiled_close(&c);
}

static void check_refused(const char *optimizer, const char *options,
                          const char *message) {
    const char *path = own_file("refused.amp", model);
    char *out;
    CHECK(test_command(&out,
                       "%s '%s' --target cpu:x86-64-v2 --optimizer '%s' %s "
                       "-o '%s' 2>&1",
                       test_ampc(), path, optimizer, options,
                       test_tmp("refused.so")) != 0);
    CHECK_MSG(strstr(out, message), "%s", out);
    free(out);
}

/* One of each role; the numbers are those of the formulas. */
TEST_CASE(optimizers, a_user_writes_a_wrapper) {
    char options[600];
    float p[MAX_N];
    const char *after =
        own_file("half.amp", "wrapper after half(p, old; part = 0.5)\n"
                             "  state steps: i32[]\n"
                             "{\n  steps = steps + 1\n"
                             "  p = old + (p - old) * part\n}\n");
    snprintf(options, sizeof options,
             "--precision fp32 --target cpu:x86-64-v2 --optimizer sgd,lr=0.5 "
             "--wrapper %s,part=0.25 --wrapper sam",
             after);
    Compiled c = compile_text(model, options);
    ampc_session *s = begin(&c);
    Feed f;
    feed_fill(&f, 0, false);
    step_ok(&c, s, f.in, NPARAM);
    read_var(&c, s, "a", p, 3 * sizeof *p, AMPC_DTYPE_F32);
    for (int i = 0; i < 3; i++)
        CHECK_REL(p[i], ((37 * i + 11) % 64 - 32) / 32.0 - 0.125 * f.x[0][i],
                  1e-6);
    c.api->close(s);
    compiled_close(&c);
    static const char *const wrong[][2] = {
        {"wrapper w(p, g) { p = g }", "'before' or 'after'"},
        {"wrapper after w(p; lr = 1.0) { p = p }", "and its value before"},
        {"wrapper after w(p, q; lr = 1.0) { p = q }",
         "a wrapper has no key lr"},
        {"wrapper before w(p, g)\n  state m { p = g }", "has no state"},
        {"wrapper before w(p, g)\n  once (lr, t) -> r { r = lr }\n{ p = g }",
         "has no once"},
        {"wrapper after w(p, old; k: float = a) { p = p * k }",
         "the default of 'k' is not a number"},
        {"wrapper after w(p, old; k: int = 1 // 0) { p = p * k }",
         "the default of 'k' is not a number"},
        {"wrapper after w(p, old; k: float = 1 / 0) { p = p * k }",
         "the default inf of 'k' is not in [0, 1e+38]"},
        {"wrapper after w(p, old; k = 1 from 5 to 9) { p = p * k }",
         "the default 1 of 'k' is not in [5, 9]"},
        {"wrapper before w(p, g) { p = p + grad(p, g) }",
         "works in models alone"},
        {"wrapper after w(p, old) { q = p }", "assigns no value to 'p'"},
        {"wrapper before w(p, g) { }", "assigns no value to 'p'"},
        {"wrapper after w(p, old)\n  once (lr, t) -> r { s = lr }\n"
         "{ p = p * r }",
         "once assigns no value to its result 'r'"},
        {"wrapper after w(p, old) { p = p }\nwrapper after v(p, old) { p = p }",
         "one optimizer or wrapper"},
        {"optimizer w(p, g; lr = 1.0) { p = p - g * lr }",
         "is an optimizer; give it to --optimizer"}};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        snprintf(options, sizeof options, "--wrapper '%s'",
                 own_file("wrong.amp", wrong[i][0]));
        check_refused("sgd", options, wrong[i][1]);
    }
    check_refused(after, "", "is a wrapper; give it to --wrapper");
    static const char *const helps[] = {
        "def help(x) -> y class none { y = x * 2 }\n"
        "wrapper after one(p, old) { p = help(p) }",
        "def help(x) -> y class none { y = x * 3 }\n"
        "wrapper after two(p, old) { p = help(p) }"};
    int at = snprintf(options, sizeof options, "--wrapper '%s'",
                      own_file("one.amp", helps[0]));
    snprintf(options + at, sizeof options - (size_t)at, " --wrapper '%s'",
             own_file("two.amp", helps[1]));
    check_refused("sgd", options, "--wrapper two defines 'help', and so does");
    check_refused("lookahead", "", "is a wrapper; give it to --wrapper");
    check_refused("sgd", "--wrapper foo",
                  "'foo' is not one of sam, lookahead, FILE.amp");
    check_refused("foo", "", "muon, FILE.amp");
    check_refused("sgd", "--wrapper sam --wrapper sam", "both choose where");
    check_refused("sgd", "--wrapper lookahead --wrapper lookahead",
                  "has a state 'slow', too");
    check_refused("schedule_free_adamw", "--wrapper lookahead",
                  "computes itself what evaluation reads");
    check_refused("sgd", "--wrapper sam --precision O2",
                  "moves fp32 parameters");
    check_refused("sgd", "--wrapper sam --loss host",
                  "computes the loss twice");
    check_refused("sgd", "--gradient noise --shard-optimizer",
                  "gradient_noise looks at whole gradients");
}

/* Ranks share the state of optimizers that work element by element; others
   are refused. */
TEST_CASE(optimizers, ranks_share_what_they_can) {
    for (const Fn *f = NULL; (f = optimizer_next(f, ROLE_OPTIMIZER));) {
        static const char *const whole[] = {"lars",      "lamb",
                                            "adafactor", "muon",
                                            "nadam",     "schedule_free_adamw",
                                            "prodigy"};
        bool refused = false;
        for (size_t i = 0; i < sizeof whole / sizeof *whole; i++)
            refused |= !strcmp(whole[i], f->info.text);
        const char *path = own_file("share.amp", model);
        int status = test_command(
            NULL,
            "%s '%s' --precision fp32 --target cpu:x86-64-v2 "
            "--shard-optimizer --optimizer %s,lr=0.1%s -o '%s' 2>'%s'",
            test_ampc(), path, f->info.text,
            !strcmp(f->info.text, "lars")   ? ",always_adapt"
            : !strcmp(f->info.text, "adam") ? " --gradient sign"
                                            : "",
            test_tmp("share.so"), test_tmp("share.err"));
        CHECK_MSG((status != 0) == refused, "%s: status %d", f->info.text,
                  status);
    }
    const char *path = own_file("agc.amp", model);
    char *out;
    CHECK(test_command(&out,
                       "%s '%s' --target cpu:x86-64-v2 --shard-optimizer "
                       "--gradient agc -o '%s' 2>&1",
                       test_ampc(), path, test_tmp("agc.so")) == 2);
    CHECK_MSG(strstr(out, "gradient_agc looks at whole gradients"), "%s", out);
    free(out);
}

/* Updates in the backward pass run before the last gradient is complete. */
TEST_CASE(optimizers, in_backward_refuses_what_needs_all_gradients) {
    static const char *const with[][2] = {
        {"--clip-previous", "--clip-previous needs --clip-norm X"},
        {"--precision fp16", "loss scaling leaves all parameters"},
        {"--precision fp16 --clip-norm 1 --clip-previous",
         "loss scaling leaves all parameters"},
        {"--accumulate 2", "--accumulate keeps the sums"},
        {"--optimizer prodigy", "adds up numbers of all parameters"},
        {"--debug-nonfinite", "--debug-nonfinite repeats a skipped step"}};
    const char *path = own_file("early.amp", model);
    for (size_t i = 0; i < sizeof with / sizeof *with; i++) {
        char *out;
        CHECK(test_command(&out,
                           "%s '%s' --target cpu:x86-64-v2 "
                           "--optimizer-in-backward %s -o '%s' 2>&1",
                           test_ampc(), path, with[i][0],
                           test_tmp("early.so")) == 2);
        CHECK_MSG(strstr(out, with[i][1]), "%s: %s", with[i][0], out);
        free(out);
    }
}

/* ---- averages ------------------------------------------------------------ */

static double loss_of(const Compiled *c, ampc_session *s) {
    Feed f;
    ampc_eval e = {.size = sizeof e};
    feed_fill(&f, 2, false);
    if (c->api->evaluate(s, f.in, NPARAM, 3, &e))
        FAIL("evaluate: %s", c->api->error(s));
    return e.loss_num;
}

static void use_averages(const Compiled *c, ampc_session *s, double yes) {
    REQUIRE(c->api->set_hyper(s, "averaged", yes) == AMPC_OK);
}

/* Evaluation and save_weights use the averages if the host asks for them;
   load reads those of a checkpoint. */
TEST_CASE(averages, are_what_evaluation_and_files_have_when_asked) {
    Compiled c = compile_text(model, "--precision fp32 --ema 0.9 --optimizer "
                                     "sgd,lr=0.1 --target cpu:x86-64-v2");
    Case x = {.letters = "...................."};
    ampc_session *s = begin(&c), *t = open_threads(&c, 1);
    double before = loss_of(&c, s);
    use_averages(&c, s, 1);
    CHECK(loss_of(&c, s) == before); /* no step, no average */
    steps(&c, s, &x, 0, 5);
    double averaged = loss_of(&c, s);
    use_averages(&c, s, 0);
    double plain = loss_of(&c, s);
    CHECK(fabs(plain - averaged) > 0.01);
    const char *weights = test_tmp("weights"), *all = test_tmp("all");
    REQUIRE(c.api->save(s, all) == AMPC_OK);
    REQUIRE(c.api->load(t, all) == AMPC_OK);
    CHECK(loss_of(&c, t) == plain);
    use_averages(&c, t, 1);
    REQUIRE(c.api->load(t, all) == AMPC_OK);
    CHECK(loss_of(&c, t) == averaged);
    use_averages(&c, s, 1);
    REQUIRE(c.api->save_weights(s, weights) == AMPC_OK);
    use_averages(&c, t, 0);
    REQUIRE(c.api->load(t, weights) == AMPC_OK);
    CHECK(loss_of(&c, t) == averaged);
    c.api->close(s);
    c.api->close(t);
    compiled_close(&c);
}

/* An optimizer's state `evaluated`, which no host asks for. */
TEST_CASE(averages, evaluated_is_what_evaluation_and_files_have) {
    Compiled c = compile_text(
        model, "--precision fp32 --optimizer "
               "schedule_free_adamw,lr=0.1 --target cpu:x86-64-v2");
    Case x = {.letters = "...................."};
    ampc_session *s = begin(&c), *t = open_threads(&c, 1);
    double before = loss_of(&c, s), want = 0;
    Feed f;
    steps(&c, s, &x, 0, 5);
    feed_fill(&f, 2, false);
    for (int k = 0; k < NPARAM; k++) {
        float p[MAX_N];
        char name[40];
        snprintf(name, sizeof name, "ampc.opt/%s/evaluated", name_of[k]);
        read_var(&c, s, name, p, (size_t)count[k] * sizeof *p, AMPC_DTYPE_F32);
        for (int i = 0; i < count[k]; i++) want += (double)f.x[k][i] * p[i];
    }
    double there = loss_of(&c, s);
    CHECK(fabs(there - before) > 0.01);
    CHECK_REL(there, 3 * want, 1e-5);
    const char *weights = test_tmp("weights"), *all = test_tmp("all");
    REQUIRE(c.api->save(s, all) == AMPC_OK);
    REQUIRE(c.api->load(t, all) == AMPC_OK);
    CHECK(loss_of(&c, t) == there);
    REQUIRE(c.api->save_weights(s, weights) == AMPC_OK);
    REQUIRE(c.api->load(t, weights) == AMPC_OK);
    CHECK(loss_of(&c, t) == there);
    c.api->close(t);
    t = open_threads(&c, 1);
    REQUIRE(c.api->resume(t, all) == AMPC_OK);
    CHECK(loss_of(&c, t) == there);
    c.api->close(s);
    c.api->close(t);
    compiled_close(&c);
}

TEST_CASE(averages, evaluated_is_one_and_as_its_parameter) {
    check_refused("schedule_free_adamw", "--ema 0.9",
                  "--optimizer schedule_free_adamw computes itself what "
                  "evaluation reads");
    check_refused(own_file("own.amp", "optimizer own(p, g; lr = 0.1)\n"
                                      "  state evaluated[2]\n"
                                      "{ p = p - g * lr }\n"),
                  "", ":2:9: error: 'evaluated' stands in for the");
}
