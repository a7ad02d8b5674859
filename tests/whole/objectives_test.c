/* SPDX-License-Identifier: Apache-2.0 */
/* objectives_test.c: modules that train several objectives, compared with
   PyTorch's GradScaler with as many optimizers (torch/amp/grad_scaler.py: step
   of each, then one update), written here in plain C.

   The losses are sum(x*a) and sum(z*b): their gradients are the inputs.     */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/compiled.h"

enum { N = 2 };

static const char model[] =
    "graph forward(%x: f32[2], %z: f32[2]) {\n"
    "  param %a: f32[2] = [0.5, -0.25], %b: f32[2] = [-1, 0.75]\n"
    "  %xa = mul %x, %a\n"
    "  %zb = mul %z, %b\n"
    "  %la = reduce_sum %xa {axes=[0], keepdims=0}\n"
    "  %lb = reduce_sum %zb {axes=[0], keepdims=0}\n"
    "  return %la, %lb\n"
    "}\n";

#define OBJECTIVES                                                             \
    "--precision fp32 "                                                        \
    "--objective one,loss=auto:la,params=a,optimizer=sgd,lr=0.5 "              \
    "--objective "                                                             \
    "two,loss=auto:lb,params=b,optimizer=sgd,lr=0.25,momentum=0.5 "
#define GRAD_SCALER "--loss-scale dynamic,init=1024,interval=3,min=0,max=inf"

static const char options[] = OBJECTIVES GRAD_SCALER;

/* With bounds a loss that is not finite does not affect the scale, but the
   step counts as bad. */
static const struct Rule {
    const char *text;
    double growth, backoff, least, most;
    int interval, hysteresis;
} rules[] = {
    {GRAD_SCALER, 2, 0.5, 0, INFINITY, 3, 1},
    {"--loss-scale dynamic,init=1024,interval=2,hysteresis=2", 2, 0.5, 1,
     16777216, 2, 2},
    {"--loss-scale dynamic,init=1024,interval=3,hysteresis=3,growth=4,"
     "backoff=0.25,min=200,max=3000",
     4, 0.25, 200, 3000, 3, 3},
};

/* ---- GradScaler ---------------------------------------------------------- */

typedef struct Scaler {
    double scale;
    int growth, steps[2];
    bool stepped[2], found_inf, blamed;
    float p[2][N], buf[N];
    const struct Rule *rule;
    int left; /* bad steps until the scale is reduced */
} Scaler;

static void update(Scaler *s) {
    const struct Rule *r = s->rule;
    if (!s->found_inf && ++s->growth == r->interval) {
        s->scale = fmin(s->scale * r->growth, r->most);
        s->growth = 0;
        s->left = r->hysteresis;
    } else if (s->found_inf) {
        s->growth = 0;
        if (s->blamed && --s->left <= 0)
            s->scale = fmax(s->scale * r->backoff, r->least);
    }
    s->found_inf = s->blamed = s->stepped[0] = s->stepped[1] = false;
}

/* True if the optimizer's step is made. */
static bool step(Scaler *s, int which, const float *grad) {
    bool finite = true;
    if (s->stepped[which]) update(s);
    for (int i = 0; i < N; i++)
        finite &= isfinite((float)s->scale * grad[i]) != 0;
    s->stepped[which] = true;
    s->found_inf |= !finite;
    s->blamed |= !finite && (s->rule->least == 0 || isfinite(grad[0]));
    s->steps[which] += finite;
    for (int i = 0; i < N && finite; i++) {
        float g = grad[i];
        if (which) g = s->buf[i] = s->buf[i] * 0.5f + g;
        s->p[which][i] -= (which ? 0.25f : 0.5f) * g;
    }
    return finite;
}

/* ---- a step -------------------------------------------------------------- */

/* One letter per step: objective one (a, c) or two (b, d); a capital
   overflows, for c and d in the loss already. */
static bool is_two(char letter) { return (letter | 32) % 2 == 0; }

static void gradient(char letter, int i, float *g) {
    bool over = letter < 'a';
    g[0] = over && letter > 'B' ? INFINITY
           : over               ? 3e37f
                                : (float)(i % 5) * 0.25f - 0.5f;
    g[1] = over ? 0 : 0.125f * (float)(1 + i % 3);
}

static ampc_metrics run(const Compiled *c, ampc_session *s, char letter,
                        const float *g) {
    bool two = is_two(letter);
    ampc_input in = ampc_in(two ? "z" : "x", g, N * sizeof *g, AMPC_DTYPE_F32);
    REQUIRE(c->api->objective(s, two ? "two" : "one") == AMPC_OK);
    return step_ok(c, s, &in, 1);
}

static const char steps[] =
    "abababABabaBabAbabababaaabaAabbBababababababababCbabaDababABCDabAbaDCbab"
    "ababCBabAbAbabababababaBababab";

static void scaled_as(const struct Rule *rule) {
    char words[600];
    snprintf(words, sizeof words, OBJECTIVES "%s", rule->text);
    Compiled c = compile_text(model, words);
    ampc_session *s = open_threads(&c, 1);
    Scaler want = {.scale = 1024,
                   .p = {{0.5f, -0.25f}, {-1, 0.75f}},
                   .rule = rule,
                   .left = rule->hysteresis};
    CHECK_STR(c.api->objective_name(c.api->module, 0), "one");
    CHECK_STR(c.api->objective_name(c.api->module, 1), "two");
    CHECK(c.api->objective_name(c.api->module, 2) == NULL);
    for (int i = 0; steps[i]; i++) {
        float g[N], p[N];
        int which = is_two(steps[i]);
        gradient(steps[i], i, g);
        bool made = step(&want, which, g);
        double scale = want.scale;
        ampc_metrics m = run(&c, s, steps[i], g);
        CHECK_MSG(m.applied == made && m.scale == scale &&
                      m.step == want.steps[which],
                  "step %d: applied %d, not %d, at scale %g, not %g", i,
                  m.applied, made, m.scale, scale);
        if (want.stepped[0] && want.stepped[1]) update(&want);
        for (int k = 0; k < 2; k++) {
            read_var(&c, s, k ? "b" : "a", p, sizeof p, AMPC_DTYPE_F32);
            for (int e = 0; e < N; e++)
                CHECK_MSG(fabsf(p[e] - want.p[k][e]) <= 1e-6f,
                          "step %d: parameter %d is %g, not %g", i, k, p[e],
                          want.p[k][e]);
        }
    }
    c.api->close(s);
    compiled_close(&c);
}

TEST_CASE(objectives, the_scale_follows_grad_scaler) { scaled_as(&rules[0]); }

TEST_CASE(objectives, the_scale_keeps_to_its_bounds) {
    scaled_as(&rules[1]);
    scaled_as(&rules[2]);
}

TEST_CASE(objectives, a_run_goes_on_within_an_iteration) {
    Compiled c = compile_text(model, options);
    char path[600];
    float g[N];
    size_t n, m;
    snprintf(path, sizeof path, "%s/objectives.ckpt", test_tmpdir());
    for (int cut = 1; cut < (int)sizeof steps - 1; cut += 5) {
        ampc_session *s = open_threads(&c, 1), *t = open_threads(&c, 1);
        ampc_metrics x = {0}, y = {0};
        for (int i = 0; steps[i]; i++) {
            if (i == cut) {
                REQUIRE(c.api->save(s, path) == AMPC_OK);
                REQUIRE(c.api->resume(t, path) == AMPC_OK);
            }
            gradient(steps[i], i, g);
            x = run(&c, s, steps[i], g);
            if (i < cut) continue;
            y = run(&c, t, steps[i], g);
            CHECK(x.scale == y.scale && x.applied == y.applied);
        }
        char *a = read_all(&c, s, ~0u, &n), *b = read_all(&c, t, ~0u, &m);
        CHECK(n == m && !memcmp(a, b, n));
        free(a);
        free(b);
        c.api->close(s);
        c.api->close(t);
    }
    compiled_close(&c);
}

TEST_CASE(objectives, sums_of_gradients_are_of_one) {
    char more[600];
    snprintf(more, sizeof more, "%s --accumulate 2", options);
    Compiled c = compile_text(model, more);
    ampc_session *s = open_threads(&c, 1);
    float g[N] = {1, 2}, p[N];
    ampc_input x = ampc_in("x", g, sizeof g, AMPC_DTYPE_F32);
    CHECK(c.api->objective(s, "three") == AMPC_ERR_ARGUMENT);
    REQUIRE(c.api->step(s, &x, 1, NULL) == AMPC_OK);
    CHECK(c.api->objective(s, "one") == AMPC_OK);
    CHECK(c.api->objective(s, "two") == AMPC_ERR_ARGUMENT);
    CHECK_HAS(c.api->error(s), "micro-steps were made for objective 'one'");
    REQUIRE(c.api->step(s, &x, 1, NULL) == AMPC_OK);
    CHECK(c.api->objective(s, "two") == AMPC_OK);
    read_var(&c, s, "a", p, sizeof p, AMPC_DTYPE_F32);
    CHECK(p[0] == 0.5f - 1 && p[1] == -0.25f - 2); /* the loss is a sum */
    c.api->close(s);
    compiled_close(&c);
}

static double rate(const Compiled *c, ampc_session *s, const char *name) {
    double x;
    if (c->api->get_hyper(s, name, &x)) FAIL("%s", c->api->error(s));
    return x;
}

TEST_CASE(objectives, have_learning_rates_of_their_own) {
    Compiled c = compile_text(model, options);
    ampc_session *s = open_threads(&c, 1);
    CHECK(rate(&c, s, "lr") == 0.5 && rate(&c, s, "lr:two") == 0.25);
    REQUIRE(c.api->objective(s, "two") == AMPC_OK);
    CHECK(rate(&c, s, "ampc.lr") == 0.25 && rate(&c, s, "lr:one") == 0.5);
    CHECK(c.api->set_hyper(s, "lr", 2) == AMPC_OK);
    CHECK(rate(&c, s, "lr:two") == 2 && rate(&c, s, "lr:one") == 0.5);
    CHECK(c.api->set_hyper(s, "lr:three", 2) == AMPC_ERR_ARGUMENT);
    CHECK_HAS(c.api->error(s), "the module has: lr:one lr:two");
    c.api->close(s);
    compiled_close(&c);
}

/* --lr of ampc run applies to all of them. */
TEST_CASE(objectives, take_the_rate_of_ampc_run) {
    char *out;
    Compiled c = compile_text(model, options);
    static const char rows[] = "1\n2\n3\n4\n";
    REQUIRE(test_write_file(test_tmp("o.csv"), rows, sizeof rows - 1));
    int rc =
        test_command(&out,
                     "'%s' run '%s' --feed x='%s' --feed z='%s' --steps 1 "
                     "--lr 0.125 --quiet",
                     test_ampc(), c.path, test_tmp("o.csv"), test_tmp("o.csv"));
    CHECK_EQ_INT(rc, 0);
    const char *first = strstr(out, "\"lr\":0.125");
    CHECK_MSG(first && strstr(first + 1, "\"lr\":0.125"), "%s", out);
    free(out);
    compiled_close(&c);
}

/* Each objective trains alone as it trains beside the other. */
TEST_CASE(objectives, train_as_they_do_alone) {
    static const char *const alone[] = {
        "--precision fp32 --loss auto:la --optimizer sgd,lr=0.5",
        "--precision fp32 --loss auto:lb "
        "--optimizer sgd,lr=0.25,momentum=0.5"};
    Compiled c = compile_text(
        model, "--precision fp32 "
               "--objective one,loss=auto:la,params=a,optimizer=sgd,lr=0.5 "
               "--objective two,loss=auto:lb,params=b,optimizer=sgd,lr=0.25,"
               "momentum=0.5");
    ampc_session *s = open_threads(&c, 1);
    float g[N], p[N], q[N];
    for (int i = 0; i < 8; i++) {
        gradient("ab"[i % 2], i, g);
        run(&c, s, "ab"[i % 2], g);
    }
    for (int which = 0; which < 2; which++) {
        Compiled one = compile_text(model, alone[which]);
        ampc_session *t = open_threads(&one, 1);
        for (int i = which; i < 8; i += 2) {
            gradient('a', i, g);
            ampc_input in[] = {ampc_in("x", g, sizeof g, AMPC_DTYPE_F32),
                               ampc_in("z", g, sizeof g, AMPC_DTYPE_F32)};
            step_ok(&one, t, in, 2);
        }
        read_var(&c, s, which ? "b" : "a", p, sizeof p, AMPC_DTYPE_F32);
        read_var(&one, t, which ? "b" : "a", q, sizeof q, AMPC_DTYPE_F32);
        CHECK(!memcmp(p, q, sizeof p));
        one.api->close(t);
        compiled_close(&one);
    }
    c.api->close(s);
    compiled_close(&c);
}

/* Makes eight steps, of both objectives in turns; reads parameters a and b. */
static void train_two_in_turns(const Compiled *c, float p[2][N]) {
    ampc_session *s = open_threads(c, 1);
    float g[N];
    for (int i = 0; i < 8; i++) {
        gradient("ab"[i % 2], i, g);
        run(c, s, "ab"[i % 2], g);
    }
    read_var(c, s, "a", p[0], sizeof p[0], AMPC_DTYPE_F32);
    read_var(c, s, "b", p[1], sizeof p[1], AMPC_DTYPE_F32);
    c->api->close(s);
}

/* Makes the steps of one objective in a module without the other. */
static void train_one_alone(const char *words, int which, float p[N]) {
    Compiled c = compile_text(model, words);
    ampc_session *s = open_threads(&c, 1);
    for (int i = which; i < 8; i += 2) {
        float g[N];
        gradient('a', i, g);
        ampc_input in[] = {ampc_in("x", g, sizeof g, AMPC_DTYPE_F32),
                           ampc_in("z", g, sizeof g, AMPC_DTYPE_F32)};
        step_ok(&c, s, in, 2);
    }
    read_var(&c, s, which ? "b" : "a", p, N * sizeof *p, AMPC_DTYPE_F32);
    c.api->close(s);
    compiled_close(&c);
}

/* An option of one objective neither reaches the other nor gets lost. */
TEST_CASE(objectives, have_options_of_their_own) {
    static const struct {
        const char *key, *option;
    } rows[] = {
        {"lr_schedule=step,every=2,gamma=0.5",
         "--lr-schedule step,every=2,gamma=0.5"},
        {"lr_schedule=constant,warmup=3,clip_norm=0.25",
         "--lr-schedule constant,warmup=3 --clip-norm 0.25"},
        {"clip_value=0.125,wrapper=lookahead,k=2,alpha=0.25",
         "--clip-value 0.125 --wrapper lookahead,k=2,alpha=0.25"},
        {"clip_norm=0.5,clip_value=0.25", "--clip-norm 0.5 --clip-value 0.25"}};
    enum { PLAIN = sizeof rows / sizeof *rows, BOTH = PLAIN + 1 };
    static const char *const loss[] = {"auto:la", "auto:lb"};
    float alone[2][BOTH][N], p[2][N];
    char words[800];
    for (int which = 0; which < 2; which++)
        for (int k = 0; k < BOTH; k++) {
            snprintf(words, sizeof words,
                     "--precision fp32 --target cpu:x86-64-v2 --optimizer "
                     "sgd,lr=0.5 --loss %s %s",
                     loss[which], k < PLAIN ? rows[k].option : "");
            train_one_alone(words, which, alone[which][k]);
        }
    for (int k = 0; k < PLAIN; k++)
        for (int of = 0; of < 2; of++) {
            size_t n = (size_t)snprintf(words, sizeof words,
                                        "--precision fp32 --target "
                                        "cpu:x86-64-v2");
            for (int which = 0; which < 2; which++)
                n += (size_t)snprintf(
                    words + n, sizeof words - n,
                    " --objective %s,loss=%s,params=%s,optimizer=sgd,lr=0.5%s"
                    "%s",
                    which ? "two" : "one", loss[which], which ? "b" : "a",
                    which == of ? "," : "", which == of ? rows[k].key : "");
            Compiled c = compile_text(model, words);
            train_two_in_turns(&c, p);
            for (int which = 0; which < 2; which++)
                CHECK_MSG(!memcmp(p[which],
                                  alone[which][which == of ? k : PLAIN],
                                  sizeof p[which]),
                          "objective %s beside another, of which %s has %s: "
                          "%g, alone %g",
                          which ? "two" : "one", of ? "two" : "one",
                          rows[k].key, (double)p[which][0],
                          (double)alone[which][which == of ? k : PLAIN][0]);
            compiled_close(&c);
        }
}

/* Two networks, each with a batch normalisation, dropout and state of the
   optimizer: a step of one writes nothing of the other. */
TEST_CASE(objectives, a_step_writes_nothing_of_the_other) {
    enum { ROWS = 8, WIDTH = 4 };
    static const char nets[] =
        "model nets(x: f32[8,4], z: f32[8,4]) {\n"
        "  a = Linear(BatchNorm(x, scope=\"a.bn\"), units=1, scope=\"a.fc\")\n"
        "  b = Linear(BatchNorm(z, scope=\"b.bn\"), units=1, scope=\"b.fc\")\n"
        "  return la = reduce_mean(a * a, axes=[0,1], keepdims=0), "
        "lb = reduce_mean(b * b, axes=[0,1], keepdims=0)\n}\n";
    static const char *const parts[] = {"bn.running_mean", "bn.running_var",
                                        "bn.weight", "bn.bias"};
    float x[ROWS * WIDTH], old[2][4][WIDTH], now[WIDTH];
    Compiled c = compile_text(
        nets, "--precision fp32 --target cpu:x86-64-v2 "
              "--objective one,loss=auto:la,params=a.*,optimizer=adam,lr=0.1 "
              "--objective two,loss=auto:lb,params=b.*,optimizer=adam,lr=0.1");
    ampc_session *s = open_threads(&c, 1);
    for (int i = 0; i < ROWS * WIDTH; i++)
        x[i] = (float)((29 * i + 5) % 64) / 16;
    for (int i = 0; i < 4; i++) {
        ampc_input in[] = {ampc_in("x", x, sizeof x, AMPC_DTYPE_F32),
                           ampc_in("z", x, sizeof x, AMPC_DTYPE_F32)};
        char name[40];
        int which = i % 2;
        for (int k = 0; k < 8; k++) {
            snprintf(name, sizeof name, "%c.%s", "ab"[k / 4], parts[k % 4]);
            read_var(&c, s, name, old[k / 4][k % 4], sizeof now,
                     AMPC_DTYPE_F32);
        }
        REQUIRE(!c.api->objective(s, which ? "two" : "one"));
        step_ok(&c, s, &in[which], 1);
        for (int k = 0; k < 8; k++) {
            snprintf(name, sizeof name, "%c.%s", "ab"[k / 4], parts[k % 4]);
            read_var(&c, s, name, now, sizeof now, AMPC_DTYPE_F32);
            bool same = !memcmp(now, old[k / 4][k % 4], sizeof now);
            CHECK_MSG(same == (k / 4 != which),
                      "step %d of objective %s: %s %s", i,
                      which ? "two" : "one", name,
                      same ? "is as before" : "has changed");
        }
    }
    c.api->close(s);
    compiled_close(&c);
}

/* Scale, checks of data and predictions belong to the module, whichever
   objective makes steps. */
TEST_CASE(objectives, share_scale_checks_and_predictions) {
    static const char table[] =
        "graph forward(%i: i32[2], %j: i32[2]) {\n"
        "  param %a: f32[4] = [1, 2, 4, 8], %b: f32[4] = [16, 32, 64, 128]\n"
        "  %ga = gather %a, %i {axis=0}\n"
        "  %gb = gather %b, %j {axis=0}\n"
        "  %la = reduce_sum %ga {axes=[0], keepdims=0}\n"
        "  %lb = reduce_sum %gb {axes=[0], keepdims=0}\n"
        "  return %la, %lb\n"
        "}\n";
    Compiled c = compile_text(table, options);
    static const char *const names[] = {"one", "two"};
    for (int which = 0; which < 2; which++) {
        ampc_session *s = open_threads(&c, 1);
        int32_t i[] = {1, 3}, j[] = {0, 2};
        float sum[2] = {0};
        ampc_input in[] = {ampc_in("i", i, sizeof i, AMPC_DTYPE_I32),
                           ampc_in("j", j, sizeof j, AMPC_DTYPE_I32)};
        ampc_output out[] = {
            ampc_out("la", &sum[0], sizeof *sum, AMPC_DTYPE_F32),
            ampc_out("lb", &sum[1], sizeof *sum, AMPC_DTYPE_F32)};
        ampc_scaler scaler = {.size = sizeof scaler};
        ampc_bad_data bad = {.size = sizeof bad};
        REQUIRE(c.api->objective(s, names[which]) == AMPC_OK);
        if (c.api->predict(s, in, 2, 1, out, 2)) FAIL("%s", c.api->error(s));
        CHECK(sum[0] == 2 + 8 && sum[1] == 16 + 64);
        (which ? j : i)[1] = 4;
        CHECK_EQ_INT(c.api->step(s, &in[which], 1, NULL), AMPC_ERR_DATA);
        CHECK_EQ_INT(c.api->bad_data(s, &bad), AMPC_OK);
        CHECK_STR(bad.input, which ? "j" : "i");
        CHECK(bad.count == 1 && bad.index == 1 && bad.value == 4);
        CHECK_EQ_INT(c.api->scaler(s, &scaler), AMPC_OK);
        CHECK(scaler.scale == 1024 && scaler.tried == 1 && scaler.skipped == 1);
        CHECK_EQ_INT(c.api->objective(s, names[!which]), AMPC_OK);
        CHECK_EQ_INT(c.api->step(s, &in[!which], 1, NULL), AMPC_OK);
        CHECK_EQ_INT(c.api->scaler(s, &scaler), AMPC_OK);
        CHECK(scaler.tried == 1 && scaler.skipped == 0 && scaler.step == 1);
        c.api->close(s);
    }
    compiled_close(&c);
}
