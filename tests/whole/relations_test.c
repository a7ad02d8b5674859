/* SPDX-License-Identifier: Apache-2.0 */
/* relations_test.c: relations that hold between runs of a module, whatever its
   model and options are.

   Models and options are drawn, crossed with one another; no case knows what a
   number should be, only which ones are equal: a run that stops and resumes
   between micro-steps and one that does not, to the last byte of the
   checkpoint, with other numbers of threads; the loss of a step and the
   evaluation of its samples; sums of evaluations and the evaluation of all;
   rows in any order; a session and one that loads its weights. And what must
   not change does not: frozen weights ever, weights by a step that is skipped,
   anything by evaluation and prediction.                                     */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/compiled.h"
#include "tests/support/cuda_gpu.h"
#include "tests/support/random_graph.h"

enum { BATCH = 8, POOL = 40, IN = 6, ROWS = 640, CLASSES = 4, STEPS = 4 };

/* ---- models -------------------------------------------------------------- */

typedef enum Target { LABELS, NUMBERS, SHARES } Target;

typedef struct Model {
    char text[1500], options[1200];
    Target target;
    bool exact; /* a row's numbers are the same in training and evaluation */
    bool averages;
    bool each_mean; /* the mean of the micro-batches' means */
    double tolerance;
} Model;

#define ONE_OF(list) (list)[random_below((int)(sizeof(list) / sizeof *(list)))]

static void add(Model *m, const char *option) {
    size_t n = strlen(m->options);
    REQUIRE((size_t)snprintf(m->options + n, sizeof m->options - n, " %s",
                             option) < sizeof m->options - n);
}

static void some_text(Model *m) {
    static const char *const bodies[] = {
        "  h = relu(Linear(x, units=8, scope=\"a\")) + gather(table, k, "
        "axis=0)\n",
        "  h = LayerNorm(gelu(Linear(x, units=8, scope=\"a\")), scope=\"n\")\n"
        "  h = h + gather(table, k, axis=0)\n",
        "  h = Linear(x, units=8, scope=\"a\")\n"
        "  h = tanh(h + gather(table, k, axis=0))\n"
        "  h = h + sigmoid(Linear(h, units=8, scope=\"b\")) * h\n",
        "  h = softmax(Linear(x, units=8, scope=\"a\"), axis=1)\n"
        "  h = LayerNorm(h + gather(table, k, axis=0), scope=\"n\")\n",
        "  h = Dropout(Linear(x, units=8, scope=\"a\"), ratio=0.3)\n"
        "  h = h + gather(table, k, axis=0)\n"};
    const char *body = ONE_OF(bodies);
    m->exact = !strstr(body, "Dropout");
    snprintf(m->text, sizeof m->text,
             "model m(x: f32[%d,%d], k: i64[%d]) {\n"
             "  param table: f32[%d,8] = normal(0.3)\n%s"
             "  return y = Linear(h, units=%d, scope=\"out\")\n}\n",
             BATCH, IN, BATCH, ROWS, body, CLASSES);
}

static void some_loss(Model *m) {
    static const struct {
        const char *text;
        Target target;
    } losses[] = {
        {"--loss cross_entropy", LABELS},
        {"--loss cross_entropy,ignore_index=2", LABELS},
        {"--loss cross_entropy,label_smoothing=0.1", LABELS},
        {"--loss cross_entropy,class_weights=1/0.5/2/3", LABELS},
        {"--loss focal,gamma=2", LABELS},
        {"--loss multi_margin", LABELS},
        {"--loss mse", NUMBERS},
        {"--loss l1", NUMBERS},
        {"--loss huber,delta=0.5", NUMBERS},
        {"--loss smooth_l1", NUMBERS},
        {"--loss bce_with_logits", SHARES},
    };
    int i = random_below((int)(sizeof losses / sizeof *losses));
    add(m, losses[i].text);
    m->target = losses[i].target;
}

static void some_precision(Model *m) {
    static const char *const bf16[] = {"", "--masters kahan", "--masters none",
                                       "--placement pytorch", "--keep f8"};
    static const char *const scale[] = {
        "--loss-scale none", "--loss-scale static=64",
        "--loss-scale dynamic,init=64,interval=2"};
    int kind = random_below(3);
    m->tolerance = kind == 0 ? 1e-4 : 0.05;
    add(m, kind == 0   ? "--precision fp32"
           : kind == 1 ? "--precision bf16"
                       : "--precision fp16");
    if (kind == 1) add(m, ONE_OF(bf16));
    add(m, ONE_OF(scale));
}

static void some_update(Model *m) {
    static const char *const optimizers[] = {
        "--optimizer sgd,lr=0.05,momentum=0.9,nesterov",
        "--optimizer adamw,lr=0.01",
        "--optimizer adam,lr=0.01,weight_decay=0.1",
        "--optimizer rmsprop,lr=0.005,centered",
        "--optimizer lion,lr=0.002",
        "--optimizer adagrad,lr=0.02"};
    static const char *const schedules[] = {
        "", "--lr-schedule cosine,total=6,warmup=2,min=0.001",
        "--lr-schedule step,every=2,gamma=0.5",
        "--lr-schedule one_cycle,total=9"};
    static const char *const clips[] = {"",
                                        "--clip-norm 0.5",
                                        "--clip-norm 0.5 --clip-previous",
                                        "--clip-value 0.02",
                                        "--clip-norm 1 --gradient centralize",
                                        "--gradient noise,eta=0.001"};
    static const char *const averages[] = {
        "", "--ema 0.7", "--ema 0.5,every=2,after=1", "--swa start=2"};
    static const char *const micros[] = {"", "--accumulate 2", "--accumulate 3",
                                         "--accumulate 2,mean_of_means"};
    static const char *const states[] = {
        "", "--state-dtype bf16", "--state-dtype int8", "--state-dtype f8"};
    static const char *const others[] = {
        "",           "--wrapper lookahead,k=2", "--remat none",
        "--top-k 2",  "--debug-nonfinite",       "--no-fuse",
        "--shuffle 5"};
    const char *average = ONE_OF(averages), *micro = ONE_OF(micros);
    add(m, ONE_OF(optimizers));
    add(m, ONE_OF(schedules));
    add(m, ONE_OF(clips));
    add(m, average);
    add(m, micro);
    add(m, ONE_OF(states));
    const char *other = ONE_OF(others);
    add(m, m->target == LABELS || !strstr(other, "top-k") ? other : "");
    add(m, "--freeze out.bias --param-group 'a.*,lr_scale=2,weight_decay=0'");
    m->averages = *average;
    m->each_mean = strstr(micro, "mean_of_means") != NULL;
}

static void model_draw(Model *m, uint64_t seed) {
    random_seed(seed * 0x9E3779B97F4A7C15u);
    memset(m, 0, sizeof *m);
    some_text(m);
    some_loss(m);
    some_precision(m);
    some_update(m);
}

/* ---- data ---------------------------------------------------------------- */

static struct Samples {
    float x[POOL][IN], r[POOL][CLASSES];
    int64_t k[POOL], t[POOL];
} pool, given; /* given: the samples of a call, in its order */

static void pool_make(const Model *m) {
    for (int i = 0; i < POOL; i++) {
        for (int j = 0; j < IN; j++) pool.x[i][j] = (float)random_number();
        for (int j = 0; j < CLASSES; j++)
            pool.r[i][j] = m->target == SHARES ? (float)random_below(2)
                                               : (float)random_number();
        pool.k[i] = random_below(ROWS);
        pool.t[i] = random_below(CLASSES);
    }
}

typedef struct Batch {
    ampc_input in[3];
} Batch;

/* Samples first, first + by, ..: n of them; predict has no target. */
static Batch batch_of(const Model *m, int first, int by, int n) {
    for (int i = 0; i < n; i++) {
        int from = (first + i * by) % POOL;
        memcpy(given.x[i], pool.x[from], sizeof *given.x);
        memcpy(given.r[i], pool.r[from], sizeof *given.r);
        given.k[i] = pool.k[from];
        given.t[i] = pool.t[from];
    }
    size_t all = (size_t)n;
    return (Batch){
        {ampc_in("x", given.x, all * sizeof *given.x, AMPC_DTYPE_F32),
         ampc_in("k", given.k, all * sizeof *given.k, AMPC_DTYPE_I64),
         m->target == LABELS
             ? ampc_in("target", given.t, all * sizeof *given.t, AMPC_DTYPE_I64)
             : ampc_in("target", given.r, all * sizeof *given.r,
                       AMPC_DTYPE_F32)}};
}

/* ---- a run --------------------------------------------------------------- */

typedef struct Run {
    const Compiled *c;
    const Model *m;
    ampc_module_info info;
    bool gpu;
} Run;

static ampc_session *opened(const Run *r, int threads) {
    return r->gpu ? gpu_open(r->c) : open_threads(r->c, threads);
}

static void ok(const Run *r, ampc_session *s, ampc_status status,
               const char *what) {
    if (status != AMPC_OK)
        FAIL("%s: %s: %s", r->m->options, what, r->c->api->error(s));
}

/* Samples of micro-step i: now and then fewer than a batch. */
static int some(const Run *r, int i) {
    return !r->info.parts || i % 3 != 1 ? BATCH : 1 + i * 5 % (BATCH - 1);
}

static ampc_metrics micro(const Run *r, ampc_session *s, int i) {
    Batch b = batch_of(r->m, i * BATCH, 1, some(r, i));
    return step_ok(r->c, s, b.in, 3);
}

static char *saved(const Run *r, ampc_session *s, const char *name, size_t *n) {
    ok(r, s, r->c->api->save(s, test_tmp(name)), "save");
    char *text = test_read_file(test_tmp(name), n);
    REQUIRE(text != NULL);
    return text;
}

static void check_files(const Run *r, const char *what, char *a, size_t na,
                        char *b, size_t nb) {
    CHECK_MSG(na == nb && memcmp(a, b, na) == 0, "%s: %s", r->m->options, what);
    free(a);
    free(b);
}

static ampc_eval evaluated(const Run *r, ampc_session *s, int first, int by,
                           int n, ampc_eval sums) {
    Batch b = batch_of(r->m, first, by, n);
    sums.size = sizeof sums;
    ok(r, s, r->c->api->evaluate(s, b.in, 3, n, &sums), "evaluate");
    return sums;
}

static void predicted(const Run *r, ampc_session *s, int first, int by, int n,
                      float *y) {
    Batch b = batch_of(r->m, first, by, n);
    ampc_output out =
        ampc_out("y", y, (size_t)n * CLASSES * sizeof *y, AMPC_DTYPE_F32);
    ok(r, s, r->c->api->predict(s, b.in, 2, n, &out, 1), "predict");
}

/* ---- relations ----------------------------------------------------------- */

static void check_near(const Run *r, const char *what, double a, double b) {
    CHECK_MSG(fabs(a - b) <= r->m->tolerance * (0.1 + fabs(b)),
              "%s: %s: %.9g and %.9g", r->m->options, what, a, b);
}

/* The samples of step `step` in one evaluation: its loss is the step's. */
static void check_loss(const Run *r, ampc_session *s, int step,
                       const ampc_metrics *m, double evaluated_loss) {
    (void)s;
    if (r->m->exact && !r->m->each_mean && m->applied)
        check_near(r, "loss of a step and of its samples", m->loss,
                   evaluated_loss);
    CHECK_EQ_INT(m->tried, step + 1);
}

static double loss_before(const Run *r, ampc_session *s, int step) {
    int micros = (int)r->info.accumulate;
    ampc_eval e = {.size = sizeof e};
    for (int i = step * micros; i < (step + 1) * micros; i++)
        e = evaluated(r, s, i * BATCH, 1, some(r, i), e);
    return e.loss_num / e.loss_den;
}

/* Evaluations and predictions of any number of samples, in any order. */
static void check_rows(const Run *r, ampc_session *s) {
    enum { ALL = 2 * BATCH + 3 };
    float y[ALL][CLASSES], back[ALL][CLASSES];
    ampc_eval zero = {.size = sizeof zero};
    ampc_eval all = evaluated(r, s, 0, 1, ALL, zero), sum = zero;
    for (int i = ALL - 1, n = 1; i >= 0; i -= n, n = n % 5 + 1)
        sum = evaluated(r, s, i, POOL - 1, n <= i ? n : i + 1, sum);
    CHECK_EQ_INT(all.exact, 1);
    CHECK_EQ_INT(all.samples, ALL);
    CHECK_EQ_INT(sum.samples, ALL);
    CHECK_NEAR(sum.count, all.count, 0);
    check_near(r, "sums of losses", sum.loss_num, all.loss_num);
    check_near(r, "sums of weights", sum.loss_den, all.loss_den);
    predicted(r, s, 0, 1, ALL, &y[0][0]);
    predicted(r, s, ALL - 1, POOL - 1, ALL, &back[0][0]);
    double hits = 0;
    for (int i = 0; i < ALL; i++) {
        int best = 0;
        for (int j = 0; j < CLASSES; j++) {
            check_near(r, "a row elsewhere", back[ALL - 1 - i][j], y[i][j]);
            if (y[i][j] > y[i][best]) best = j;
        }
        bool counts =
            !strstr(r->m->options, "ignore_index=2") || pool.t[i] != 2;
        hits += counts && best == pool.t[i];
    }
    if (r->m->target == LABELS && all.count > 0)
        CHECK_MSG(fabs(hits - all.correct) <= (r->m->tolerance > 1e-3),
                  "%s: %g correct, evaluation says %g", r->m->options, hits,
                  all.correct);
}

/* One step on the same samples in another order. */
static void check_order(const Run *r) {
    ampc_session *s[2] = {opened(r, 1), opened(r, 2)};
    for (int i = 0; i < (int)r->info.accumulate; i++) {
        ampc_metrics m[2];
        for (int k = 0; k < 2; k++) {
            int first = i * BATCH + (k ? BATCH - 1 : 0);
            Batch b = batch_of(r->m, first, k ? POOL - 1 : 1, BATCH);
            m[k] = step_ok(r->c, s[k], b.in, 3);
        }
        check_near(r, "loss in another order", m[1].loss, m[0].loss);
        if (m[0].updated)
            check_near(r, "norm in another order", m[1].grad_norm,
                       m[0].grad_norm);
    }
    r->c->api->close(s[0]);
    r->c->api->close(s[1]);
}

/* A session that loads the weights of another predicts the same bits. */
static void check_weights(const Run *r, ampc_session *s, bool averaged) {
    const char *path = test_tmp("weights");
    float y[BATCH * CLASSES], z[BATCH * CLASSES];
    if (averaged) ok(r, s, r->c->api->set_hyper(s, "averaged", 1), "set_hyper");
    predicted(r, s, 3, 1, BATCH, y);
    ok(r, s, r->c->api->save_weights(s, path), "save_weights");
    ampc_session *other = opened(r, 1);
    ok(r, other, r->c->api->load(other, path), "load");
    predicted(r, other, 3, 1, BATCH, z);
    /* an average is stored in more bits than weights without masters */
    bool rounded = averaged && strstr(r->m->options, "--masters");
    for (int i = 0; i < BATCH * CLASSES && rounded; i++)
        check_near(r, "loaded averages", z[i], y[i]);
    CHECK_MSG(rounded || memcmp(y, z, sizeof y) == 0, "%s: loaded weights%s",
              r->m->options, averaged ? ", averages" : "");
    if (averaged) ok(r, s, r->c->api->set_hyper(s, "averaged", 0), "set_hyper");
    r->c->api->close(other);
}

/* A step on numbers that are not finite changes no weight. */
static void check_skipped(const Run *r, ampc_session *s) {
    size_t n, again;
    unsigned weights = 1u << AMPC_KIND_PARAMETER | 1u << AMPC_KIND_FROZEN;
    char *before = read_all(r->c, s, weights, &n);
    ampc_scaler a = {.size = sizeof a}, b = {.size = sizeof b};
    ampc_metrics m = {.size = sizeof m};
    ok(r, s, r->c->api->scaler(s, &a), "scaler");
    for (int i = 0; i < (int)r->info.accumulate; i++) {
        Batch x = batch_of(r->m, i, 1, BATCH);
        /* over all samples: labels of some may not count */
        for (int k = 0; k < BATCH && i == 0; k++) given.x[k][IN - 1] = NAN;
        m = step_ok(r->c, s, x.in, 3);
    }
    ok(r, s, r->c->api->scaler(s, &b), "scaler");
    char *after = read_all(r->c, s, weights, &again);
    CHECK_MSG(!m.applied && m.updated, "%s: NaN was applied", r->m->options);
    CHECK_MSG(b.step == a.step && b.tried == a.tried + 1 &&
                  b.skipped == a.skipped + 1 &&
                  b.bad_forward == a.bad_forward + 1,
              "%s: counters of a skipped step", r->m->options);
    check_files(r, "weights of a skipped step", before, n, after, again);
}

/* The whole run again: other threads, and it stops after micro-step `stop`. */
static char *run_again(const Run *r, int stop, size_t *n) {
    ampc_session *s = opened(r, 1);
    for (int i = 0; i < STEPS * (int)r->info.accumulate; i++) {
        if (i == stop) {
            ok(r, s, r->c->api->save(s, test_tmp("stopped")), "save");
            r->c->api->close(s);
            s = opened(r, 2);
            ok(r, s, r->c->api->resume(s, test_tmp("stopped")), "resume");
        }
        micro(r, s, i);
    }
    char *end = saved(r, s, "again", n);
    r->c->api->close(s);
    return end;
}

/* The bytes that the module reports are the sums over its variables. */
static void check_memory(const Run *r, ampc_session *s) {
    ampc_memory_info m = {.size = sizeof m};
    uint64_t weights = 0;
    ok(r, s, r->c->api->memory(s, &m), "memory");
    for (uint32_t i = 0; i < r->info.nvariable; i++) {
        ampc_variable_info v = {.size = sizeof v};
        REQUIRE(r->c->api->variable(r->c->api->module, i, &v) == AMPC_OK);
        if (v.kind == AMPC_KIND_PARAMETER || v.kind == AMPC_KIND_FROZEN)
            weights += v.bytes;
    }
    CHECK_MSG(m.parameters >= weights && m.parameters < weights + 4096,
              "%s: %llu bytes of parameters, variables have %llu",
              r->m->options, (unsigned long long)m.parameters,
              (unsigned long long)weights);
    CHECK_EQ_INT(m.total, m.parameters + m.copies + m.state + m.gradients +
                              m.activations + m.workspace);
}

static void check_run(Run *r) {
    size_t n, after;
    float bias[2][CLASSES];
    ampc_session *s = opened(r, 3);
    ampc_metrics m = {.size = sizeof m};
    read_var(r->c, s, "out.bias", bias[0], sizeof *bias, AMPC_DTYPE_F32);
    for (int step = 0, i = 0; step < STEPS; step++) {
        double want = loss_before(r, s, step);
        for (int k = 0; k < (int)r->info.accumulate; k++) m = micro(r, s, i++);
        check_loss(r, s, step, &m, want);
    }
    char *end = saved(r, s, "end", &n);
    check_rows(r, s);
    char *same = saved(r, s, "same", &after);
    CHECK_MSG(n == after && memcmp(end, same, n) == 0,
              "%s: evaluation and prediction change the state", r->m->options);
    free(same);
    char *again = run_again(
        r, 1 + random_below(STEPS * (int)r->info.accumulate - 1), &after);
    check_files(r, "stopped and resumed", end, n, again, after);
    check_memory(r, s);
    check_weights(r, s, false);
    if (r->m->averages) check_weights(r, s, true);
    check_skipped(r, s);
    read_var(r->c, s, "out.bias", bias[1], sizeof *bias, AMPC_DTYPE_F32);
    CHECK_MEM(bias[1], bias[0], sizeof *bias);
    r->c->api->close(s);
    if (r->m->exact) check_order(r);
}

static void check_model(Model *m, uint64_t seed, bool gpu) {
    char options[1300];
    pool_make(m);
    REQUIRE(test_write_file(test_tmp("m.amp"), m->text, strlen(m->text)));
    snprintf(options, sizeof options, "%s%s", m->options,
             gpu ? "" : " --target cpu:x86-64-v2");
    Compiled c = gpu ? compile_file_gpu(test_tmp("m.amp"), options)
                     : compile_file(test_tmp("m.amp"), options);
    if (gpu) gpu_for(&c, seed);
    Run r = {&c, m, {.size = sizeof r.info}, gpu};
    c.api->describe(c.api->module, &r.info);
    check_run(&r);
    if (gpu) gpu_clean("relations");
    compiled_close(&c);
}

static void check_seed(uint64_t seed, bool gpu) {
    Model m;
    model_draw(&m, seed);
    check_model(&m, seed, gpu);
}

/* script/test --slow tries more of them. */
TEST_CASE(relations, on_the_cpu) {
    for (uint64_t seed = 1; seed <= (test_slow() ? 100 : 9); seed++)
        check_seed(seed, false);
}

TEST_CASE(relations, on_the_gpu) {
    for (uint64_t seed = 101; seed <= (test_slow() ? 110 : 101); seed++)
        check_seed(seed, true);
}

/* Lion reads its state once more after the new one was computed: codes of f8
   are copied. */
TEST_CASE(relations, state_that_is_copied) {
    Model m;
    model_draw(&m, 1);
    m.options[0] = 0;
    m.target = NUMBERS;
    m.averages = m.each_mean = false;
    add(&m, "--loss mse --precision bf16 --optimizer lion,lr=0.002 "
            "--state-dtype f8 --freeze out.bias");
    check_model(&m, 1, false);
}
