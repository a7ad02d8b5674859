/* SPDX-License-Identifier: Apache-2.0 */
/* loss_test.c: every loss of --loss and its options, in training and in
   evaluation, compared with PyTorch's definitions written here in double.

   The model is y = x * w, so that the gradient that reaches w comes from the
   loss alone; the wanted one is a central difference of the loss written here.
   In evaluation the rows beyond the valid ones contain garbage. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/compiled.h"
#include "tests/tolerance.h"

enum { BATCH = 4, MAX_SHARE = 24, MAX_X = BATCH * MAX_SHARE };

typedef enum Kind { XENT, NLL, MSE, L1, HUBER, BCE } Kind;

typedef struct Loss {
    const char *name, *option, *dims; /* of a sample */
    Kind kind;
    int classes,
        inner; /* dimensions of a sample [outer, classes, inner]; 0: one */
    int outer;
    double smoothing, delta;
    int ignored;      /* this class is ignored; 0: none */
    int rejected;     /* one target in this many is ignored; 1: all */
    double weight[5]; /* weight of each class; if the first is 0, all are 1 */
    int top_k;        /* top_k of the options, or 0 */
} Loss;

static const Loss losses[] = {
    {"cross_entropy", "cross_entropy", "5", XENT, .classes = 5},
    {"cross_entropy_smoothed", "cross_entropy,label_smoothing=0.3", "5", XENT,
     .classes = 5, .smoothing = 0.3},
    {"cross_entropy_ignores_some", "cross_entropy,ignore_index=2", "5", XENT,
     .classes = 5, .ignored = 2, .rejected = 2},
    {"cross_entropy_ignores_minus_100", "cross_entropy", "5", XENT,
     .classes = 5, .ignored = -100, .rejected = 3},
    {"cross_entropy_ignores_all", "cross_entropy", "5", XENT, .classes = 5,
     .ignored = -100, .rejected = 1},
    {"cross_entropy_smoothed_ignores_some",
     "cross_entropy,label_smoothing=0.2,ignore_index=-1", "5", XENT,
     .classes = 5, .smoothing = 0.2, .ignored = -1, .rejected = 2},
    {"cross_entropy_of_tokens", "cross_entropy,ignore_index=0", "6,4", XENT,
     .classes = 4, .outer = 6, .ignored = 0, .rejected = 5},
    {"cross_entropy_of_pixels", "cross_entropy,label_smoothing=0.1", "3,2,2",
     XENT, .classes = 3, .inner = 4, .smoothing = 0.1},
    {"cross_entropy_axis_1_of_3", "cross_entropy,axis=1", "3,4", XENT,
     .classes = 3, .inner = 4},
    {"cross_entropy_axis_minus_1", "cross_entropy,axis=-1", "2,3,2", XENT,
     .classes = 2, .outer = 6},
    {"cross_entropy_of_weights",
     "cross_entropy,label_smoothing=0.2,ignore_index=2,"
     "class_weights=0.5/2/1/0/3",
     "5", XENT, .classes = 5, .smoothing = 0.2, .ignored = 2, .rejected = 4,
     .weight = {0.5, 2, 1, 0, 3}},
    {"nll_of_weights", "nll,class_weights=1/0.25/3 --top-k 2", "3,2,2", NLL,
     .classes = 3, .inner = 4, .weight = {1, 0.25, 3}, .top_k = 2},
    {"cross_entropy_top_3", "cross_entropy,ignore_index=1 --top-k 3", "6,4",
     XENT, .classes = 4, .outer = 6, .ignored = 1, .rejected = 5, .top_k = 3},
    {"nll", "nll", "5", NLL, .classes = 5},
    {"nll_ignores_some", "nll,ignore_index=3", "3,2,2", NLL, .classes = 3,
     .inner = 4, .ignored = 3, .rejected = 3},
    {"mse", "mse", "6,2", .kind = MSE},
    {"l1", "l1", "5", .kind = L1},
    {"huber", "huber", "5", HUBER, .delta = 1},
    {"huber_narrow", "huber,delta=0.25", "3,4", HUBER, .delta = 0.25},
    {"huber_wide", "huber,delta=2.5", "5", HUBER, .delta = 2.5},
    {"bce_with_logits", "bce_with_logits", "5", .kind = BCE},
};

/* ---- the oracle ---------------------------------------------------------- */

typedef struct Sums {
    double loss, weight, correct, top, count;
} Sums;

typedef struct Data {
    const Loss *l;
    int share, targets; /* numbers of elements and targets per sample */
    float x[MAX_X], w[MAX_SHARE];
    int64_t label[MAX_X];
    float value[MAX_X];
    bool kept[MAX_X];
} Data;

static int at_least_1(int n) { return n ? n : 1; }

static double class_weight(const Loss *l, int64_t k) {
    return l->weight[0] != 0 ? l->weight[k] : 1;
}

/* One target: its classes are `step` apart, from y on. */
static void add_class(Sums *s, const Loss *l, const double *y, int step,
                      int64_t label) {
    double most = y[0], sum = 0, smooth = 0, own = y[label * step];
    int best = 0, better = 0;
    for (int k = 0; k < l->classes; k++)
        if (y[k * step] > most) most = y[k * step], best = k;
    for (int k = 0; k < l->classes; k++) {
        sum += exp(y[k * step] - most);
        better += y[k * step] > own;
    }
    double lse = most + log(sum), e = l->smoothing, w = class_weight(l, label);
    for (int k = 0; k < l->classes; k++)
        smooth += class_weight(l, k) * (lse - y[k * step]) / l->classes;
    s->loss +=
        l->kind == NLL ? -w * own : (1 - e) * w * (lse - own) + e * smooth;
    s->weight += w;
    s->count += 1;
    s->correct += best == label;
    s->top += better < l->top_k;
}

static double element(const Loss *l, double y, double t) {
    double d = y - t, a = fabs(d);
    switch (l->kind) {
    case MSE: return d * d;
    case L1: return a;
    case HUBER: return a < l->delta ? d * d / 2 : l->delta * (a - l->delta / 2);
    case BCE: {
        double p = 1 / (1 + exp(-y));
        return -(t * log(p) + (1 - t) * log(1 - p));
    }
    case XENT:
    case NLL: break;
    }
    FAIL("not element by element");
}

static Sums sums(const Data *d, const double *w, int samples) {
    const Loss *l = d->l;
    int inner = at_least_1(l->inner);
    Sums s = {0};
    double y[MAX_X];
    for (int i = 0; i < samples * d->share; i++)
        y[i] = (double)d->x[i] * w[i % d->share];
    for (int i = 0; i < samples * d->targets; i++) {
        if (!l->classes) {
            s.loss += element(l, y[i], (double)d->value[i]);
            s.weight += 1;
        } else if (d->kept[i]) {
            int first = i / inner * l->classes * inner + i % inner;
            add_class(&s, l, y + first, inner, d->label[i]);
        }
    }
    return s;
}

static double mean_loss(const Data *d, const double *w) {
    Sums s = sums(d, w, BATCH);
    return s.loss / s.weight;
}

static double slope(const Data *d, int i) {
    double w[MAX_SHARE], h = 1e-6, up;
    for (int k = 0; k < d->share; k++) w[k] = (double)d->w[k];
    w[i] += h;
    up = mean_loss(d, w);
    w[i] -= 2 * h;
    return (up - mean_loss(d, w)) / (2 * h);
}

/* ---- data ---------------------------------------------------------------- */

static double noise(uint64_t *state) {
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (double)(*state >> 40) / (1 << 23) - 1;
}

static Data data_new(const Loss *l) {
    uint64_t seed = 41;
    Data d = {.l = l, .share = 1};
    for (const char *p = l->dims; *p; p += *p == ',')
        d.share *= (int)strtol(p, (char **)&p, 10);
    d.targets = d.share / at_least_1(l->classes);
    if (l->classes)
        REQUIRE(d.share ==
                l->classes * at_least_1(l->inner) * at_least_1(l->outer));
    for (int i = 0; i < BATCH * d.share; i++)
        d.x[i] = (float)(2 * noise(&seed));
    for (int i = 0; i < d.share; i++) d.w[i] = (float)(1 + 0.5 * noise(&seed));
    for (int i = 0; i < BATCH * d.targets; i++) {
        d.value[i] = (float)(l->kind == BCE ? (noise(&seed) + 1) / 2
                                            : 1.5 * noise(&seed));
        d.kept[i] = !l->rejected || i % l->rejected;
        if (!l->classes) continue;
        do d.label[i] = (int64_t)(l->classes * (noise(&seed) + 1) / 2);
        while (l->rejected && d.label[i] == l->ignored);
        if (!d.kept[i]) d.label[i] = l->ignored;
    }
    return d;
}

static void inputs(Data *d, ampc_input in[2]) {
    size_t n = (size_t)(BATCH * d->targets);
    in[0] = ampc_in("x", d->x, (size_t)(BATCH * d->share) * 4, AMPC_DTYPE_F32);
    in[1] = d->l->classes ? ampc_in("target", d->label, n * 8, AMPC_DTYPE_I64)
                          : ampc_in("target", d->value, n * 4, AMPC_DTYPE_F32);
}

/* ---- the two side by side ------------------------------------------------ */

static void check_training(const Compiled *c, ampc_session *s, Data *d) {
    ampc_input in[2];
    double w[MAX_SHARE], loss, largest = 0;
    float grad[MAX_SHARE], shares;
    for (int i = 0; i < d->share; i++) w[i] = (double)d->w[i];
    inputs(d, in);
    if (d->l->rejected == 1) { /* 0 / 0 and no gradient: the step is skipped */
        ampc_metrics m = step_ok(c, s, in, 2);
        CHECK_NEAR(m.loss, 0, 0);
        CHECK_EQ_INT(m.applied, 0);
        CHECK_EQ_INT(m.bad_forward, 0);
        CHECK_NEAR(m.grad_norm, 0, 0);
        return;
    }
    if (c->api->micro_step(s, in, 2, &loss)) FAIL("%s", c->api->error(s));
    CHECK_REL(loss, mean_loss(d, w), TOL_LOSS);
    read_var(c, s, "ampc.grad/w", grad, (size_t)d->share * 4, AMPC_DTYPE_F32);
    read_var(c, s, "ampc.shares", &shares, sizeof shares, AMPC_DTYPE_F32);
    for (int i = 0; i < d->share; i++)
        largest = fmax(largest, fabs(slope(d, i)));
    CHECK(largest > 0.01);
    for (int i = 0; i < d->share; i++)
        CHECK_NEAR(grad[i] / shares, slope(d, i), TOL_LOSS * largest);
}

static void check_evaluation(const Compiled *c, ampc_session *s, Data *d,
                             int valid) {
    ampc_input in[2];
    Data padded = *d;
    double w[MAX_SHARE];
    ampc_eval e = {.size = sizeof e};
    for (int i = 0; i < d->share; i++) w[i] = (double)d->w[i];
    Sums want = sums(d, w, valid);
    for (int i = valid * d->share; i < BATCH * d->share; i++)
        padded.x[i] = i % 2 ? NAN : 1e30f;
    for (int i = valid * d->targets; i < BATCH * d->targets; i++) {
        padded.label[i] = 0;
        padded.value[i] = -1e20f;
    }
    inputs(&padded, in);
    if (c->api->evaluate(s, in, 2, valid, &e)) FAIL("%s", c->api->error(s));
    CHECK_EQ_INT(e.exact, 1);
    CHECK_EQ_INT(e.samples, valid);
    CHECK_NEAR(e.loss_num, want.loss, TOL_LOSS * fabs(want.loss));
    CHECK_NEAR(e.loss_den, want.weight, 1e-6 * want.weight);
    CHECK_NEAR(e.correct, want.correct, 0);
    CHECK_NEAR(e.count, want.count, 0);
    CHECK_EQ_INT(e.top_k, d->l->top_k);
    CHECK_NEAR(e.correct_top, want.top, 0);
    if (c->api->evaluate(s, in, 2, valid, &e)) FAIL("%s", c->api->error(s));
    CHECK_NEAR(e.loss_den, 2 * want.weight, 2e-6 * want.weight);
    CHECK_NEAR(e.loss_num, 2 * want.loss, 2 * TOL_LOSS * fabs(want.loss));
    CHECK_EQ_INT(e.samples, 2 * valid);
}

static void run(void *arg) {
    const Loss *l = arg;
    Data d = data_new(l);
    char text[512], options[256];
    snprintf(text, sizeof text,
             "graph forward(%%x: f32[%d,%s]) {\n  param %%w: f32[%s] = 1\n"
             "  %%y = mul %%x, %%w : f32[%d,%s]\n  return %%y\n}\n",
             BATCH, l->dims, l->dims, BATCH, l->dims);
    snprintf(options, sizeof options,
             "--precision fp32 --target cpu:x86-64-v2 --loss %s", l->option);
    Compiled c = compile_text(text, options);
    ampc_session *s = open_threads(&c, 1);
    write_var(&c, s, "w", d.w, (size_t)d.share * 4, AMPC_DTYPE_F32);
    check_training(&c, s, &d);
    check_evaluation(&c, s, &d, BATCH);
    check_evaluation(&c, s, &d, 1);
    check_evaluation(&c, s, &d, BATCH - 1);
    c.api->close(s);
    compiled_close(&c);
}

/* A loss that the model computes itself, a mean over all elements. */
TEST_CASE(loss, a_mean_of_the_models_own_is_split_by_samples) {
    enum { WIDTH = 3 };
    Compiled c = compile_text("graph forward(%x: f32[4,3]) {\n"
                              "  param %w: f32[3] = [0.5, -2, 4]\n"
                              "  %y = mul %x, %w : f32[4,3]\n"
                              "  %yy = mul %y, %y : f32[4,3]\n"
                              "  %loss = reduce_mean %yy {axes=[0,1], "
                              "keepdims=0} : f32[]\n"
                              "  return %loss\n}\n",
                              "--precision fp32 --target cpu:x86-64-v2");
    ampc_session *s = open_threads(&c, 1);
    static const double w[WIDTH] = {0.5, -2, 4};
    float x[BATCH * WIDTH];
    double want = 0;
    ampc_input in = ampc_in("x", x, sizeof x, AMPC_DTYPE_F32);
    for (int i = 0; i < BATCH * WIDTH; i++) x[i] = (float)(i + 1);
    for (int i = 0; i < BATCH * WIDTH; i++) {
        double y = (i + 1) * w[i % WIDTH];
        ampc_eval e = {.size = sizeof e};
        want += y * y;
        if ((i + 1) % WIDTH) continue;
        int valid = (i + 1) / WIDTH;
        if (c.api->evaluate(s, &in, 1, valid, &e)) FAIL("%s", c.api->error(s));
        CHECK_EQ_INT(e.exact, 1);
        CHECK_REL(e.loss_num / e.loss_den, want / (i + 1), TOL_LOSS);
    }
    CHECK_REL(step_ok(&c, s, &in, 1).loss, want / (BATCH * WIDTH), TOL_LOSS);
    c.api->close(s);
    compiled_close(&c);
}

/* Evaluation of a whole batch reports the loss of a step. If samples weigh
   alike, two halves of the batch add up to that loss; otherwise evaluation
   leaves a partly valid batch out. */
TEST_CASE(loss, an_evaluation_is_the_loss_of_a_step) {
    enum { WIDTH = 3, HALF = BATCH / 2 };
    static const struct {
        const char *loss;
        bool exact;
    } rows[] = {{"3 * reduce_mean(y * y, axes=[0,1], keepdims=0)", true},
                {"softmax_cross_entropy(y, t) * 0.5", true},
                {"softmax_cross_entropy(y, t, ignore_index=2) * 0.5", true},
                {"softmax_cross_entropy(y, t) + 0.25 * reduce_mean(y * y, "
                 "axes=[0,1], keepdims=0)",
                 true},
                {"2 * (softmax_cross_entropy(y, t) + "
                 "0.5 * (0.5 * softmax_cross_entropy(y * 2, t)))",
                 true},
                {"softmax_cross_entropy(y, t, ignore_index=2) + "
                 "reduce_mean(y * y, axes=[0,1], keepdims=0)",
                 false},
                {"softmax_cross_entropy(y, t, ignore_index=2) + "
                 "softmax_cross_entropy(y * 2, t, ignore_index=0)",
                 false}};
    float x[2 * BATCH * WIDTH];
    int64_t label[2 * BATCH] = {2, 0, 1, 0, 2, 0, 1, 0}; /* twice the batch */
    for (int i = 0; i < 2 * BATCH * WIDTH; i++)
        x[i] = (float)(5 * (i % (BATCH * WIDTH)) % 7) / 4;
    for (size_t k = 0; k < sizeof rows / sizeof *rows; k++) {
        char text[600];
        snprintf(text, sizeof text,
                 "model m(x: f32[4,3], t: i64[4]) {\n"
                 "  param w: f32[3] = ones\n  y = x * w\n"
                 "  return loss = %s\n}\n",
                 rows[k].loss);
        Compiled c =
            compile_text(text, "--precision fp32 --target cpu:x86-64-v2");
        ampc_session *s = open_threads(&c, 1);
        ampc_eval all = {.size = sizeof all}, halves = {.size = sizeof halves};
        for (int half = 0; half < 3; half++) {
            int from = half % 2 * HALF;
            ampc_input in[] = {
                ampc_in("x", x + from * WIDTH, BATCH * WIDTH * 4,
                        AMPC_DTYPE_F32),
                ampc_in("t", label + from, BATCH * 8, AMPC_DTYPE_I64)};
            if (c.api->evaluate(s, in, 2, half < 2 ? HALF : BATCH,
                                half < 2 ? &halves : &all))
                FAIL("%s", c.api->error(s));
            if (half < 2) continue;
            double loss = step_ok(&c, s, in, 2).loss;
            CHECK_MSG(fabs(all.loss_num / all.loss_den - loss) <=
                          TOL_LOSS * loss,
                      "%s: a step %g, evaluation %g", rows[k].loss, loss,
                      all.loss_num / all.loss_den);
            CHECK_MSG(halves.exact == rows[k].exact, "%s: exact is %d",
                      rows[k].loss, halves.exact);
            if (!halves.exact) continue;
            CHECK_MSG(fabs(halves.loss_num / halves.loss_den - loss) <=
                          TOL_LOSS * loss,
                      "%s: a step %g, evaluation of halves %g", rows[k].loss,
                      loss, halves.loss_num / halves.loss_den);
        }
        c.api->close(s);
        compiled_close(&c);
    }
}

/* If the loss is not a mean over samples, a partly valid batch reports
   nothing, and no later batch compensates for it. */
TEST_CASE(loss, what_no_part_has_stays_left_out) {
    Compiled c = compile_text("graph forward(%x: f32[4,3]) {\n"
                              "  param %w: f32[3] = [0.5, -2, 4]\n"
                              "  %y = mul %x, %w : f32[4,3]\n"
                              "  %loss = reduce_max %y {axes=[0,1], "
                              "keepdims=0} : f32[]\n"
                              "  return %loss\n"
                              "}\n",
                              "--precision fp32 --target cpu:x86-64-v2");
    ampc_session *s = open_threads(&c, 1);
    float x[BATCH * 3];
    ampc_input in = ampc_in("x", x, sizeof x, AMPC_DTYPE_F32);
    ampc_eval e = {.size = sizeof e};
    static const int valid[] = {BATCH, 2, BATCH};
    for (int i = 0; i < BATCH * 3; i++) x[i] = (float)(i + 1);
    for (int k = 0; k < 3; k++) {
        if (c.api->evaluate(s, &in, 1, valid[k], &e))
            FAIL("%s", c.api->error(s));
        CHECK_EQ_INT(e.exact, k == 0);
    }
    CHECK_EQ_INT(e.samples, 2 * BATCH + 2);
    CHECK_REL(e.loss_num / e.loss_den, 4.0 * BATCH * 3, TOL_LOSS);
    c.api->close(s);
    compiled_close(&c);
}

static void add_losses(void) {
    for (size_t i = 0; i < sizeof losses / sizeof *losses; i++)
        harness_register("loss", losses[i].name, run, (void *)&losses[i]);
}
TEST_REGISTRAR(add_losses);
