/* SPDX-License-Identifier: Apache-2.0 */
/* totals_test.c: sums over all parameters in optimizers written by users:
   their values, what may be a total, and published methods that need them, with
   the options that change what an update reads. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/on_device.h"
#include "tests/tolerance.h"

/* The loss is the sum of x * p over parameters: the inputs are the
   gradients. */
enum { NPARAM = 3, MAX_N = 20, STEPS = 5 };

static const char *const name_of[NPARAM] = {"a", "m", "c"};
static const int count[NPARAM] = {3, 20, 1};

static const char model[] =
    "graph forward(%x: f32[3], %y: f32[5,4], %z: f32[]) {\n"
    "  param %a: f32[3] = 1, %m: f32[5,4] = 0.5, %c: f32[] = 2\n"
    "  %xa = mul %x, %a : f32[3]\n"
    "  %ym = mul %y, %m : f32[5,4]\n"
    "  %zc = mul %z, %c : f32[]\n"
    "  %sx = reduce_sum %xa {axes=[0], keepdims=0} : f32[]\n"
    "  %sy = reduce_sum %ym {axes=[0,1], keepdims=0} : f32[]\n"
    "  %s = add %sx, %sy : f32[]\n"
    "  %loss = add %s, %zc : f32[]\n"
    "  return %loss\n"
    "}\n";

typedef struct Feed {
    float x[NPARAM][MAX_N];
    ampc_input in[NPARAM];
} Feed;

static double drawn(int i, int j) {
    return sin(1.7 * i + 0.9 * j + 0.3 * i * j);
}

static void feed_fill(Feed *f, int i) {
    static const char *const inputs[] = {"x", "y", "z"};
    for (int k = 0, at = 0; k < NPARAM; k++) {
        for (int j = 0; j < count[k]; j++) /* few bits: exact in 16 */
            f->x[k][j] = (float)(round(16 * drawn(i, at++)) / 8);
        f->in[k] = ampc_in(inputs[k], f->x[k], (size_t)count[k] * sizeof(float),
                           AMPC_DTYPE_F32);
    }
}

static const char *own_file(const char *name, const char *text) {
    const char *path = test_tmp(name);
    REQUIRE(test_write_file(path, text, strlen(text)));
    return path;
}

static Compiled compiled_with(const char *of, const char *optimizer,
                              const char *options) {
    char all[900];
    snprintf(all, sizeof all, "--target cpu:x86-64-v2 --optimizer %s %s",
             optimizer, options);
    return compile_text(of, all);
}

static void train(const Compiled *c, ampc_session *s, int from, int to) {
    for (int i = from; i < to; i++) {
        Feed f;
        feed_fill(&f, i);
        step_ok(c, s, f.in, NPARAM);
    }
}

/* ---- values -------------------------------------------------------------- */

/* p goes lr along the gradient of all parameters, whatever its length; the mean
   of all gradients is a total of what a total made. */
TEST_CASE(totals, are_over_all_parameters) {
    static const char text[] = "optimizer along(p, g; lr = 0.125)\n"
                               "  state mean[]\n"
                               "{\n"
                               "  square = total(g * g)\n"
                               "  n = total(g * 0 + 1)\n"
                               "  g = g / sqrt(square)\n"
                               "  all = total(g / n)\n"
                               "  mean = all\n"
                               "  p = p - g * lr\n"
                               "}\n";
    double square = 0, sum = 0, n = 0;
    float before[MAX_N], after[MAX_N], mean;
    Feed f;
    Compiled c =
        compiled_with(model, own_file("along.amp", text), "--precision fp32");
    ampc_session *s = open_threads(&c, 1);
    feed_fill(&f, 0);
    for (int k = 0; k < NPARAM; k++)
        for (int j = 0; j < count[k]; j++, n++) {
            square += (double)f.x[k][j] * (double)f.x[k][j];
            sum += (double)f.x[k][j];
        }
    read_var(&c, s, "m", before, 20 * sizeof *before, AMPC_DTYPE_F32);
    step_ok(&c, s, f.in, NPARAM);
    read_var(&c, s, "m", after, 20 * sizeof *after, AMPC_DTYPE_F32);
    for (int j = 0; j < 20; j++)
        CHECK_NEAR(after[j],
                   (double)before[j] - (double)f.x[1][j] * 0.125 / sqrt(square),
                   TOL_OPTIMIZER);
    read_var(&c, s, "ampc.opt/c/mean", &mean, sizeof mean, AMPC_DTYPE_F32);
    CHECK_NEAR(mean, sum / sqrt(square) / n, TOL_OPTIMIZER);
    c.api->close(s);
    compiled_close(&c);
}

/* Numbers count once for each parameter; what is true is 1; names may be those
   of functions; a total that nothing reads changes nothing. */
TEST_CASE(totals, of_numbers_and_odd_names) {
    static const char text[] = "optimizer odd(p, g; lr = 0.5, key = 3)\n"
                               "  state ones[]\n"
                               "  state ranks[]\n"
                               "  state positive[]\n"
                               "  state keys[]\n"
                               "  state roots[]\n"
                               "{\n"
                               "  sqrt = total(1)\n"
                               "  total = total(rank(p))\n"
                               "  abs = total(g >= 0)\n"
                               "  Key = total(key + lr)\n"
                               "  unused = total(exp(g) / 0)\n"
                               "  _p = total(sqrt(p * p) * sqrt)\n"
                               "  ones = sqrt\n"
                               "  ranks = total\n"
                               "  positive = abs\n"
                               "  keys = Key\n"
                               "  roots = _p\n"
                               "  p = p - g * lr\n"
                               "}\n";
    static const char *const of[] = {"ones", "ranks", "positive", "keys",
                                     "roots"};
    double positive = 0, want[] = {3, 3, 0, 10.5, 3 * (3 * 1 + 20 * 0.5 + 2)};
    float m[MAX_N];
    Feed f;
    Compiled c =
        compiled_with(model, own_file("odd.amp", text), "--precision fp32");
    ampc_session *s = open_threads(&c, 1);
    feed_fill(&f, 0);
    for (int k = 0; k < NPARAM; k++)
        for (int j = 0; j < count[k]; j++) positive += f.x[k][j] >= 0;
    want[2] = positive;
    step_ok(&c, s, f.in, NPARAM);
    for (int i = 0; i < 5; i++) {
        char name[40];
        float got;
        snprintf(name, sizeof name, "ampc.opt/m/%s", of[i]);
        read_var(&c, s, name, &got, sizeof got, AMPC_DTYPE_F32);
        CHECK_NEAR(got, want[i], 1e-5);
    }
    read_var(&c, s, "m", m, sizeof m, AMPC_DTYPE_F32);
    for (int j = 0; j < 20; j++) CHECK(m[j] == 0.5f - 0.5f * f.x[1][j]);
    c.api->close(s);
    compiled_close(&c);
}

/* Clipping by a total is that of --clip-norm, in every precision and with
   everything that changes gradients or what is trained. */
TEST_CASE(totals, clip_as_clip_norm_does) {
    static const char text[] =
        "optimizer clipped(p, g; lr = 0.125, weight_decay = 0.0)\n"
        "{\n"
        "  square = total(g * g)\n"
        "  g = g * min(0.75 / (sqrt(square) + 1e-6), 1)\n"
        "  p = p - (g + p * weight_decay) * lr\n"
        "}\n";
    static const char *const options[] = {
        "--precision fp32",
        "--precision bf16",
        "--precision fp16",
        "--precision fp32 --freeze m",
        "--precision fp32 --accumulate 2",
        "--precision fp32 --param-group a,lr_scale=0.5,weight_decay=0.25 "
        "--param-group c,weight_decay=0.125"};
    const char *path = own_file("clipped.amp", text);
    for (size_t i = 0; i < sizeof options / sizeof *options; i++) {
        char with[300];
        snprintf(with, sizeof with, "%s --clip-norm 0.75", options[i]);
        Compiled c[] = {compiled_with(model, path, options[i]),
                        compiled_with(model, "sgd,lr=0.125", with)};
        ampc_session *s[2];
        for (int k = 0; k < 2; k++) {
            s[k] = open_threads(&c[k], 1);
            train(&c[k], s[k], 0, 2 * STEPS);
        }
        for (int k = 0; k < NPARAM; k++) {
            float p[2][MAX_N];
            for (int n = 0; n < 2; n++)
                read_var(&c[n], s[n], name_of[k], p[n],
                         (size_t)count[k] * sizeof(float), AMPC_DTYPE_F32);
            for (int j = 0; j < count[k]; j++)
                CHECK_MSG(fabs((double)p[0][j] - (double)p[1][j]) <= 5e-6,
                          "%s: %s[%d] is %.9g, not %.9g", options[i],
                          name_of[k], j, (double)p[0][j], (double)p[1][j]);
        }
        for (int k = 0; k < 2; k++) {
            c[k].api->close(s[k]);
            compiled_close(&c[k]);
        }
    }
}

/* State in codes is computed in blocks of 128 elements; a total that looks at
   rows still sees the rows. */
TEST_CASE(totals, see_whole_parameters_beside_codes) {
    static const char text[] =
        "optimizer rows(p, g; lr = 1.0)\n"
        "  state mean\n"
        "{\n"
        "  most = total(reduce_max(abs(g), axes=[rank(g) - 1]))\n"
        "  mean = mean * 0.5 + g\n"
        "  p = p - sign(mean) * (most * lr)\n"
        "}\n";
    enum { N = 16 * 512 };
    static const char wide[] =
        "graph forward(%x: f32[16,512]) {\n"
        "  param %w: f32[16,512] = 0\n"
        "  %xw = mul %x, %w : f32[16,512]\n"
        "  %loss = reduce_sum %xw {axes=[0,1], keepdims=0} : f32[]\n"
        "  return %loss\n"
        "}\n";
    static float x[N], w[N];
    Compiled c = compiled_with(wide, own_file("rows.amp", text),
                               "--precision fp32 --state-dtype int8");
    ampc_session *s = open_threads(&c, 1);
    for (int i = 0; i < N; i++) x[i] = i % 512 ? 0.25f : 1;
    ampc_input in = ampc_in("x", x, sizeof x, AMPC_DTYPE_F32);
    step_ok(&c, s, &in, 1);
    read_var(&c, s, "w", w, sizeof w, AMPC_DTYPE_F32);
    CHECK_NEAR(w[5], -16, 1e-4);
    c.api->close(s);
    compiled_close(&c);
}

/* ---- published methods --------------------------------------------------- */

static const char lamb_clipped[] =
    "def size(x) -> y class none {\n"
    "  y = sqrt(reduce_sumsq(x, axes=0..rank(x)))\n"
    "}\n"
    "optimizer lamb_clipped(p, g; lr = 0.01, decay = 0.01, most = 1.0)\n"
    "  state m\n"
    "  state v\n"
    "  once (lr, t) -> rate, c1, c2 {\n"
    "    rate = lr\n"
    "    c1 = 1 / (1 - pow(0.9, t))\n"
    "    c2 = 1 / (1 - pow(0.999, t))\n"
    "  }\n"
    "{\n"
    "  square = total(g * g)\n"
    "  g = g / max(sqrt(square) / most, 1)\n"
    "  m = m * 0.9 + g * 0.1\n"
    "  v = v * 0.999 + g * g * 0.001\n"
    "  u = m * c1 / (sqrt(v * c2) + 1e-6) + p * decay\n"
    "  ratio = where(size(p) * size(u) > 0, size(p) / max(size(u), 1e-30), 1)\n"
    "  p = p - u * ratio * rate\n"
    "}\n";

static const char d_adapted[] =
    "optimizer d_adapted(p, g; lr = 1.0, growth = 1e30)\n"
    "  state m\n"
    "  state v\n"
    "  state s\n"
    "  state d[] = 1e-3\n"
    "  state above[]\n"
    "{\n"
    "  m = m * 0.9 + g * (0.1 * d * lr)\n"
    "  dot = total(g * s / (sqrt(v) + 1e-8))\n"
    "  v = v * 0.999 + g * g * 0.001\n"
    "  s = s * 0.9995 + g * (0.0005 * d * lr)\n"
    "  above = above * 0.9995 + dot * (0.0005 * d * lr)\n"
    "  below = total(abs(s))\n"
    "  hat = above / (max(below, 1e-30) * 0.0005)\n"
    "  d = where(below > 0, min(max(d, hat), d * growth), d)\n"
    "  p = p - m / (sqrt(v) + 1e-8)\n"
    "}\n";

/* Odd steps climb by rho along all gradients, even ones go back and down. */
static const char climbing[] =
    "optimizer climbing(p, g; lr = 0.1, rho = 0.05)\n"
    "  state e\n"
    "  once (lr, t) -> rate, odd { rate = lr  odd = t - floor(t / 2) * 2 }\n"
    "{\n"
    "  square = total(g * g)\n"
    "  up = g * (rho / (sqrt(square) + 1e-12))\n"
    "  climbs = odd > 0.5\n"
    "  p = where(climbs, p + up, p - e - g * rate)\n"
    "  e = where(climbs, up, 0)\n"
    "}\n";

static const char lookahead[] =
    "optimizer slow_and_fast(p, g; lr = 0.01, alpha = 0.5, k = 3)\n"
    "  state slow\n"
    "  state m\n"
    "  state moved[]\n"
    "  once (lr, t) -> rate, first, ends {\n"
    "    rate = lr\n"
    "    first = where(t < 1.5, 1, 0)\n"
    "    ends = where(t - floor(t / k) * k < 0.5, 1, 0)\n"
    "  }\n"
    "{\n"
    "  slow = where(first > 0.5, p, slow)\n"
    "  m = m * 0.9 + g\n"
    "  p = p - m * rate\n"
    "  far = total(abs(p - slow))\n"
    "  moved = far\n"
    "  now = slow + (p - slow) * alpha\n"
    "  p = where(ends > 0.5, now, p)\n"
    "  slow = where(ends > 0.5, now, slow)\n"
    "}\n";

/* Large enough for several threads. */
static const char net[] = "model net(x: f32[8,96]) {\n"
                          "  h = relu(Linear(x, units=256, scope=\"one\"))\n"
                          "  return y = Linear(h, units=16, scope=\"two\")\n"
                          "}\n";

static void train_net(const Compiled *c, ampc_session *s, int from, int to) {
    static float x[8 * 96], t[8 * 16];
    for (int i = from; i < to; i++) {
        for (int j = 0; j < 8 * 96; j++) x[j] = (float)drawn(i, j);
        for (int j = 0; j < 8 * 16; j++) t[j] = (float)drawn(i + 9, j);
        ampc_input in[] = {ampc_in("x", x, sizeof x, AMPC_DTYPE_F32),
                           ampc_in("target", t, sizeof t, AMPC_DTYPE_F32)};
        CHECK(isfinite(step_ok(c, s, in, 2).loss));
    }
}

/* The bits of a run of 1 thread, of 3, and of one that a checkpoint cuts. */
static void check_bits(const Compiled *c, const char *what, int steps) {
    const char *half = test_tmp("half.ckpt");
    void *bits[3];
    size_t n[3];
    for (int i = 0; i < 3; i++) {
        ampc_session *s = open_threads(c, i == 1 ? 3 : 1);
        int from = i == 2 ? steps / 2 : 0;
        if (i == 2 && c->api->resume(s, half))
            FAIL("%s: %s", what, c->api->error(s));
        train_net(c, s, from, steps / 2);
        if (i == 0) REQUIRE(c->api->save(s, half) == AMPC_OK);
        train_net(c, s, steps / 2, steps);
        bits[i] = read_all(c, s, ~0u, &n[i]);
        CHECK_MSG(n[i] == n[0] && n[i] > 0 && !memcmp(bits[i], bits[0], n[0]),
                  "%s: run %d has other bits", what, i);
        c->api->close(s);
    }
    for (int i = 0; i < 3; i++) free(bits[i]);
}

static const struct Method {
    const char *name, *text;
} methods[] = {{"lamb_clipped", lamb_clipped},
               {"d_adapted", d_adapted},
               {"climbing", climbing},
               {"slow_and_fast", lookahead}};

TEST_CASE(totals, published_methods_train_and_resume) {
    static const char *const options[] = {
        "--precision fp32 --ema 0.9",
        "--precision bf16 --freeze one.bias --accumulate 2",
        "--precision fp16 --param-group '*.bias',lr_scale=2",
        "--precision bf16 --state-dtype int8"};
    for (size_t i = 0; i < sizeof methods / sizeof *methods; i++) {
        const char *path = own_file("method.amp", methods[i].text);
        for (size_t k = i % 2; k < sizeof options / sizeof *options; k += 2) {
            char all[200], what[300];
            snprintf(all, sizeof all, "--loss mse %s", options[k]);
            snprintf(what, sizeof what, "%s %s", methods[i].name, options[k]);
            Compiled c = compiled_with(net, path, all);
            check_bits(&c, what, strstr(all, "accumulate") ? 10 : 5);
            compiled_close(&c);
        }
    }
}

/* On a GPU they make the parameters that they make on a CPU, and a checkpoint
   cuts a run without a trace. */
TEST_CASE(totals, published_methods_on_the_simulated_gpu) {
    static float p[2][256 * 96];
    const char *half = test_tmp("half.ckpt");
    for (size_t i = 0; i < sizeof methods / sizeof *methods; i++) {
        char more[300], name[40];
        snprintf(name, sizeof name, "method%zu.amp", i);
        snprintf(more, sizeof more, "--optimizer %s",
                 own_file(name, methods[i].text));
        for (int on = 0; on < 2; on++) {
            const char *device = on ? "cuda" : "cpu";
            const Compiled *c =
                compile_on(device, net, "--precision fp32 --loss mse", more);
            ampc_session *s = open_on(c, device, 0), *t;
            train_net(c, s, 0, STEPS - 2);
            if (on) REQUIRE(c->api->save(s, half) == AMPC_OK);
            train_net(c, s, STEPS - 2, STEPS);
            read_var(c, s, "one.weight", p[on], sizeof *p, AMPC_DTYPE_F32);
            c->api->close(s);
            if (!on) continue;
            for (int k = 0; k < 256 * 96; k++)
                CHECK_MSG(fabsf(p[0][k] - p[1][k]) <= 2e-6f, "%s: %g, not %g",
                          methods[i].name, (double)p[1][k], (double)p[0][k]);
            t = open_on(c, device, 0);
            if (c->api->resume(t, half)) FAIL("resume: %s", c->api->error(t));
            train_net(c, t, STEPS - 2, STEPS);
            read_var(c, t, "one.weight", p[0], sizeof *p, AMPC_DTYPE_F32);
            CHECK_MEM(p[0], p[1], sizeof *p);
            c->api->close(t);
        }
    }
}

/* ---- texts --------------------------------------------------------------- */

/* Where a total may stand, and what its name may be. */
TEST_CASE(totals, are_lines_of_their_own) {
    static const char *const bad[][2] = {
        {"p = p - total(g)", "a total is a line of its own"},
        {"if 1 < 2 { s = total(g) }", "a total is a line of its own"},
        {"s = total(total(g) + g)", "a total is a line of its own"},
        {"s, r = total(g)",
         "3:3: error: a total is NAME = total(x)\n    s, r = total(g)\n    ^"},
        {"s = total(g, p)", "a total is NAME = total(x)"},
        {"s = total(x=g)", "a total is NAME = total(x)"},
        {"s = total()", "a total is NAME = total(x)"},
        {"lr = total(g)", "3:3: error: 'lr' is there already"},
        {"p = total(g)", "3:3: error: 'p' is there already"},
        {"s = total(g)\n  s = total(p)", "4:3: error: 's' is there already"},
        {"s = 0\n  s = total(g)", "4:3: error: 's' is there already"},
        {"if lr > 1 { s = 0 }\n  s = total(g)",
         "4:3: error: 's' is there already"},
        {"for s in 0..2 { p = p }\n  s = total(g)",
         "4:3: error: 's' is there already"},
        {"once = total(g)", "3:3: error: 'once' is there already"},
        {"twice = total(g)", "3:3: error: 'twice' of optimizer o makes a "
                             "function o_twice, which exists already"},
        {"g = g / s\n  s = total(g)", "'s' has no value here (bad.amp:3:11)"},
        {"s = total(s + g)", "'s' has no value here (bad.amp:3:13)"},
        {"s = total([1, 2])", "found a list (bad.amp:3:7)"},
        {"s = total(g @ g)", "(bad.amp:3:15)"}};
    own_file("net.amp", model);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        char text[300], *out;
        snprintf(text, sizeof text,
                 "def o_twice(x) -> y class none { y = x * 2 } "
                 "optimizer o(p, g; lr = 0.1)\n{\n  %s\n  p = p - g\n}\n",
                 bad[i][0]);
        own_file("bad.amp", text);
        int status = test_command(&out,
                                  "cd '%s' && '%s' check net.amp --target "
                                  "cpu:x86-64-v2 --optimizer bad.amp 2>&1",
                                  test_tmpdir(), test_ampc());
        CHECK_MSG(status != 0, "%s is taken", bad[i][0]);
        CHECK_HAS(out, bad[i][1]);
        free(out);
    }
}

/* `ampc opt` prints what the optimizer calls, too, so that it reads its own
   text. */
TEST_CASE(totals, printed_programs_are_read_again) {
    static const char text[] =
        "graph train(%x: f32[4,3]) {\n"
        "  param %w: f32[3]\n"
        "  %y = mul %x, %w : f32[4,3]\n"
        "  %g = reduce_sum %y {axes=[0], keepdims=0} : f32[3]\n"
        "  %loss = reduce_mean %y {axes=[0,1], keepdims=0} : f32[]\n"
        "  return ampc.loss=%loss, ampc.grad/w=%g\n"
        "}\n";
    char *out;
    own_file("train.amp", text);
    own_file("lamb.amp", lamb_clipped);
    int status = test_command(
        &out,
        "cd '%s' && '%s' opt train.amp --precision fp32 --pass optimizer "
        "--optimizer lamb.amp > one.amp && '%s' opt one.amp --precision fp32 "
        "--pass simplify > two.amp && '%s' opt two.amp --precision fp32 --pass "
        "simplify > three.amp && cmp two.amp three.amp 2>&1",
        test_tmpdir(), test_ampc(), test_ampc(), test_ampc());
    CHECK_MSG(status == 0, "%s", out);
    free(out);
}
