/* SPDX-License-Identifier: Apache-2.0 */
/* random_train_test.c: random graphs that train, under random options.

   A model is several random graphs with parameters
   (tests/support/random_graph.h) whose losses are added; options, data and
   numbers of threads are random, too. In fp32 each step has an independent
   oracle: gradients of the model's text in double by the interpreter, checked
   by differences of the loss, then PyTorch's formulas for the update
   (tests/support/update_rule.h). In 16 bits the programs common to all targets
   are interpreted with every value rounded to its type; the compiled module
   must compute the same. A run that stops and resumes has the same bits as
   one that does not. */
#define _GNU_SOURCE
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/cuda_gpu.h"
#include "tests/support/interpreted.h"
#include "tests/support/random_graph.h"
#include "tests/support/random_model.h"
#include "tests/tolerance.h"

enum { STEPS = 5, STOP = 2 };

/* ---- random options ------------------------------------------------------ */

typedef struct Options {
    UpdateRule u;
    char text[800];
} Options;

static double pick(const double *of, int n) { return of[random_below(n)]; }
#define PICK(...)                                                              \
    pick((const double[]){__VA_ARGS__},                                        \
         (int)(sizeof((const double[]){__VA_ARGS__}) / sizeof(double)))

__attribute__((format(printf, 2, 3))) static void say(Options *o,
                                                      const char *fmt, ...) {
    size_t n = strlen(o->text);
    va_list ap;
    va_start(ap, fmt);
    REQUIRE((size_t)vsnprintf(o->text + n, sizeof o->text - n, fmt, ap) <
            sizeof o->text - n);
    va_end(ap);
}

static void some_optimizer(Options *o) {
    UpdateRule *u = &o->u;
    static const char *const name[] = {"sgd", "adam", "adamw"};
    u->kind = (UpdateKind)random_below(3);
    u->lr = u->kind == SGD ? PICK(0.1, 0.03) : PICK(0.02, 0.005);
    double decay = PICK(0, 0.1);
    say(o, " --optimizer %s,lr=%g,weight_decay=%g", name[u->kind], u->lr,
        decay);
    if (u->kind == SGD) {
        u->momentum = PICK(0, 0.5, 0.9);
        u->nesterov = u->momentum != 0 && random_below(2);
        say(o, ",momentum=%g%s", u->momentum, u->nesterov ? ",nesterov" : "");
    } else {
        u->beta1 = PICK(0.8, 0.9);
        u->beta2 = PICK(0.95, 0.99);
        u->eps = PICK(0.01, 0.1);
        say(o, ",beta1=%g,beta2=%g,eps=%g", u->beta1, u->beta2, u->eps);
    }
    for (int k = 0; k < UPDATE_PARAMS; k++) u->decay[k] = decay;
}

static void some_group(Options *o, const Model *m) {
    if (random_below(2)) return;
    const Part *p = &m->part[random_below(PARTS)];
    double scale = PICK(0.25, 3), decay = PICK(0, 0.3);
    say(o, " --param-group 'p%d.*,lr_scale=%g,weight_decay=%g'", p->number,
        scale, decay);
    for (int k = p->first; k < p->first + p->nparam; k++) {
        o->u.lr_scale[k] = scale;
        o->u.decay[k] = decay;
    }
}

static void some_schedule(Options *o) {
    static const char *const name[] = {"constant", "cosine", "linear", "step"};
    UpdateRule *u = &o->u;
    u->schedule = (UpdateDecay)random_below(4);
    u->warmup = random_below(3);
    say(o, " --lr-schedule %s,warmup=%g", name[u->schedule], u->warmup);
    if (u->schedule == CONSTANT) return;
    if (u->schedule == STEP) {
        u->every = 1 + random_below(2);
        u->gamma = 0.5;
        say(o, ",every=%g,gamma=%g", u->every, u->gamma);
    } else {
        u->total = 4 + random_below(6);
        u->min = 0.001;
        say(o, ",total=%g,min=%g", u->total, u->min);
    }
}

static void some_scaler(Options *o) {
    UpdateRule *u = &o->u;
    int kind = random_below(3);
    if (kind == 0) {
        say(o, " --loss-scale none");
    } else if (kind == 1) {
        u->init = PICK(4, 128);
        say(o, " --loss-scale static=%g", u->init);
    } else {
        u->init = PICK(16, 64);
        u->interval = 1 + random_below(3);
        u->growth = 2;
        u->backoff = 0.5;
        u->scale_max = 256;
        u->hysteresis = 1;
        say(o, " --loss-scale dynamic,init=%g,interval=%d,max=256", u->init,
            u->interval);
    }
}

/* Draws options that change how a step is computed, but not its results. */
static void some_ways(Options *o) {
    static const char *const way[] = {
        " --remat none",      " --debug-nonfinite", " --no-fuse",
        " --comm-bucket 100", " --shuffle 7",       " --weights sidecar",
        " --shard-optimizer", " --seed 3",
    };
    for (int i = 0; i < (int)(sizeof way / sizeof *way); i++)
        if (!random_below(4)) say(o, "%s", way[i]);
}

static void options_make(Options *o, const Model *m, const char *precision,
                         uint64_t seed) {
    memset(o, 0, sizeof *o);
    random_seed(seed * 7919);
    say(o, "--precision %s", precision);
    some_optimizer(o);
    some_group(o, m);
    some_schedule(o);
    if (random_below(2)) {
        o->u.clip_norm = PICK(0.1, 0.5, 10);
        say(o, " --clip-norm %g", o->u.clip_norm);
    }
    if (!random_below(3)) {
        o->u.clip_value = PICK(0.01, 0.05);
        say(o, " --clip-value %g", o->u.clip_value);
    }
    if (random_below(2)) {
        o->u.accumulate = 2 + random_below(2);
        say(o, " --accumulate %d", o->u.accumulate);
    }
    some_scaler(o);
    some_ways(o);
}

/* ---- a run --------------------------------------------------------------- */

typedef struct Run {
    const Compiled *c;
    Model *m;
    const Options *o;
    ampc_session *s;
    bool gpu;
} Run;

static ampc_session *open_some(const Run *r, int threads) {
    return r->gpu ? gpu_open(r->c) : open_threads(r->c, threads);
}

/* The metrics of the last micro-step. */
static ampc_metrics run_step(const Run *r, ampc_session *s, int step) {
    ampc_metrics m;
    int windows = update_windows(&r->o->u);
    for (int i = 0; i < windows; i++) {
        Batch b = random_batch(r->m, step * windows + i);
        m = step_ok(r->c, s, b.in, (size_t)r->m->ninput);
        CHECK_EQ_INT(m.updated, i == windows - 1);
    }
    return m;
}

static char *all_state(const Run *r, ampc_session *s, size_t *n) {
    return read_all(r->c, s, 1u << AMPC_KIND_PARAMETER | 1u << AMPC_KIND_STATE,
                    n);
}

/* From the checkpoint of step STOP to the end. */
static void check_resumed(const Run *r, const char *path) {
    size_t n, again;
    char *want = all_state(r, r->s, &n);
    ampc_session *s = open_some(r, 1);
    if (r->c->api->resume(s, path)) FAIL("resume: %s", r->c->api->error(s));
    for (int i = STOP; i < STEPS; i++) run_step(r, s, i);
    char *got = all_state(r, s, &again);
    CHECK_EQ_INT(n, again);
    CHECK_MEM(got, want, n);
    r->c->api->close(s);
    free(got);
    free(want);
}

static void check_tensors(const Run *r, const UpdateOracle *o, double tolerance,
                          int step) {
    const Model *m = r->m;
    for (int k = 0; k < m->nparam; k++) {
        float got[UPDATE_ELEMENTS];
        int n = random_model_elements(m, k);
        double moved = 0, largest = 0, worst = 0;
        read_var(r->c, r->s, m->name[k], got, (size_t)n * 4, AMPC_DTYPE_F32);
        for (int i = 0; i < n; i++) {
            moved = fmax(moved, fabs(o->p[k][i] - m->initial[k][i]));
            largest = fmax(largest, fabs(o->p[k][i]));
            double off = fabs((double)got[i] - o->p[k][i]);
            if (!(off <= worst)) worst = off;
        }
        CHECK_MSG(worst <= tolerance * moved + TOL_UPDATE * largest,
                  "%s: step %d: %s is off by %g of %g (moved by %g)",
                  r->o->text, step, m->name[k], worst, largest, moved);
    }
}

static void check_metrics(const Run *r, const ampc_metrics *m,
                          const UpdateOracle *o, double tolerance) {
    CHECK_EQ_INT(m->applied, 1);
    CHECK_EQ_INT(m->step, o->step + 1);
    CHECK_NEAR(m->scale, o->scale, 0);
    CHECK_REL(m->lr, update_rate(o), 1e-6);
    CHECK_REL(m->loss, o->loss / update_windows(&r->o->u), tolerance);
    CHECK_REL(m->grad_norm, update_norm(o), tolerance);
}

/* As many micro-batches as a step takes: for the oracle, and for the
   programs. */
static void feed_oracle(const Run *r, UpdateOracle *o, int step) {
    int windows = update_windows(&r->o->u);
    for (int i = 0; i < windows; i++) {
        Batch b = random_batch(r->m, step * windows + i);
        random_model_feed(r->m, o, &b);
    }
}

static void interpret(const Run *r, Interpreted *x, int step) {
    int windows = update_windows(&r->o->u);
    for (int i = 0; i < windows; i++) {
        Batch b = random_batch(r->m, step * windows + i);
        interpreted_run(x, windows > 1 ? "micro" : "train", b.in, r->m->ninput);
    }
    if (windows > 1) interpreted_run(x, "update", NULL, 0);
}

static void save_at(const Run *r, int step, const char *path) {
    if (step == STOP && r->c->api->save(r->s, path))
        FAIL("save: %s", r->c->api->error(r->s));
}

static void train(Run *r) {
    static UpdateOracle o;
    const char *path = test_tmp("stopped");
    random_model_begin(r->m, &o, &r->o->u);
    r->s = open_some(r, 3);
    check_tensors(r, &o, 0, 0);
    for (int step = 0; step < STEPS; step++) {
        save_at(r, step, path);
        feed_oracle(r, &o, step);
        ampc_metrics m = run_step(r, r->s, step);
        check_metrics(r, &m, &o, TOL_RANDOM_F32);
        update_step(&o);
        check_tensors(r, &o, TOL_RANDOM_F32, step + 1);
    }
    check_resumed(r, path);
    r->c->api->close(r->s);
}

static void check_interpreted(const Run *r, const Interpreted *x,
                              const UpdateOracle *o, int step) {
    for (int k = 0; k < r->m->nparam; k++) {
        const EvalTensor *t = interpreted_var(x, r->m->name[k]);
        double moved = 0, worst = 0;
        for (int i = 0; i < random_model_elements(r->m, k); i++) {
            moved = fmax(moved, fabs(o->p[k][i] - r->m->initial[k][i]));
            double off = fabs(t->f[i] - o->p[k][i]);
            if (!(off <= worst)) worst = off;
        }
        CHECK_MSG(worst <= TOL_RANDOM_CONSTANTS * moved + 1e-9,
                  "%s: step %d: %s is off by %g, moved by %g", r->o->text, step,
                  r->m->name[k], worst, moved);
    }
}

static void take_params(const Run *r, const Interpreted *x, UpdateOracle *o) {
    for (int k = 0; k < r->m->nparam; k++)
        memcpy(o->p[k], interpreted_var(x, r->m->name[k])->f,
               (size_t)random_model_elements(r->m, k) * sizeof *o->p[k]);
}

/* Without roundings the programs must agree with the oracle's steps; with
   roundings, with the module's. */
static void train_low(Run *r) {
    static UpdateOracle o, stored_at;
    const char *path = test_tmp("stopped");
    Interpreted exact = interpreted_new(r->c->path, EVAL_EXACT);
    Interpreted stored = interpreted_new(r->c->path, EVAL_STORAGE);
    random_model_begin(r->m, &o, &r->o->u);
    r->s = open_some(r, 3);
    for (int step = 0; step < STEPS; step++) {
        save_at(r, step, path);
        feed_oracle(r, &o, step);
        update_step(&o);
        interpret(r, &exact, step);
        check_interpreted(r, &exact, &o, step + 1);
        interpret(r, &stored, step);
        ampc_metrics m = run_step(r, r->s, step);
        CHECK_EQ_INT(m.applied, 1);
        CHECK_REL(m.grad_norm, interpreted_output(&stored, "ampc.grad_norm"),
                  TOL_RANDOM_LOW);
        take_params(r, &stored, &stored_at);
        check_tensors(r, &stored_at, TOL_RANDOM_LOW, step + 1);
    }
    check_resumed(r, path);
    r->c->api->close(r->s);
    interpreted_free(&exact);
    interpreted_free(&stored);
}

static void check_random(uint64_t seed, const char *precision, bool gpu,
                         void (*train_it)(Run *r)) {
    static Model m;
    static Options o;
    char all[900];
    random_model_make(&m, seed);
    options_make(&o, &m, precision, seed);
    snprintf(all, sizeof all, "%s%s", o.text,
             gpu ? "" : " --target cpu:x86-64-v2");
    Compiled c =
        gpu ? compile_text_gpu(m.text, all) : compile_text(m.text, all);
    if (gpu) gpu_for(&c, seed);
    Run r = {&c, &m, &o, NULL, gpu};
    train_it(&r);
    if (gpu) gpu_clean("random training");
    compiled_close(&c);
    arena_free(m.a);
}

static void check_f32(uint64_t seed, bool gpu) {
    check_random(seed, "fp32", gpu, train);
}

static void check_low(uint64_t seed, bool gpu) {
    static const char *const precision[] = {
        "bf16", "fp16", "bf16 --placement pytorch", "O2",
        "fp16 --placement exact,residuals=inf"};
    check_random(seed + 100, precision[seed % 5], gpu, train_low);
}

/* script/test --slow runs more of them. */
static void for_seeds(void (*check)(uint64_t seed, bool gpu), bool gpu, int n) {
    uint64_t many = test_slow() ? 40 : (uint64_t)n;
    for (uint64_t seed = 1; seed <= many; seed++) check(seed, gpu);
}

TEST_CASE(random_training, fp32_on_the_cpu) { for_seeds(check_f32, false, 3); }

TEST_CASE(random_training, mixed_on_the_cpu) { for_seeds(check_low, false, 3); }

TEST_CASE(random_training, fp32_on_the_gpu) { for_seeds(check_f32, true, 1); }

TEST_CASE(random_training, mixed_on_the_gpu) { for_seeds(check_low, true, 1); }
