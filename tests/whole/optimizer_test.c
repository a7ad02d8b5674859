/* SPDX-License-Identifier: Apache-2.0 */
/* optimizer_test.c: consecutive updates compared with PyTorch's formulas
   (tests/support/update_rule.h).

   The loss is sum(x a) + sum(z b): its gradients are the inputs, so that each
   case can choose gradients of any size. Cases in which the scale of a
   gradient matters use SGD, since Adam does not depend on it. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "runtime/program/half.h"
#include "tests/support/compiled.h"
#include "tests/support/update_rule.h"
#include "tests/tolerance.h"

enum { NA = 3, NB = 2, NPARAM = 2, MAX_ELEMENTS = 3 };

static const char model[] =
    "graph forward(%x: f32[3], %z: f32[2]) {\n"
    "  param %a: f32[3] = [0.5, -0.25, 0.125], %b: f32[2] = [-1, 0.75]\n"
    "  %xa = mul %x, %a : f32[3]\n"
    "  %zb = mul %z, %b : f32[2]\n"
    "  %sx = reduce_sum %xa {axes=[0], keepdims=0} : f32[]\n"
    "  %sz = reduce_sum %zb {axes=[0], keepdims=0} : f32[]\n"
    "  %loss = add %sx, %sz : f32[]\n"
    "  return %loss\n"
    "}\n";

static const double initial[NPARAM][MAX_ELEMENTS] = {{0.5, -0.25, 0.125},
                                                     {-1, 0.75}};

static const int count[NPARAM] = {NA, NB};

static const char *const name_of[NPARAM] = {"a", "b"};

typedef struct Rule {
    const char *name, *options;
    const char *micro; /* a letter per micro-batch: '.' an ordinary one, 'o'
                          one that overflows when scaled, 'n' one with a NaN */
    UpdateRule u;
    double size;   /* size of the gradients; 0 means 1 */
    double new_lr; /* set_hyper half-way */
} Rule;

static const Rule rules[] = {
    {"in_backward_is_skipped_whole_where_it_is_one_part",
     "--precision fp32 --optimizer sgd,lr=0.1,momentum=0.9 "
     "--optimizer-in-backward",
     ".n..n.....", .u = {.lr = 0.1, .momentum = 0.9}},
    {"in_backward_clips_by_the_norm_of_a_first_pass",
     "--precision fp16 --loss-scale static=512 --clip-norm 0.7 "
     "--optimizer sgd,lr=0.1 --optimizer-in-backward",
     "..o..n....", .u = {.lr = 0.1, .clip_norm = 0.7, .init = 512}},
    {"clip_norm_may_be_of_the_step_before",
     "--precision fp32 --optimizer sgd,lr=0.1,momentum=0.5 --clip-norm 0.7 "
     "--clip-previous --accumulate 2",
     "....n.........",
     .u = {.lr = 0.1,
           .momentum = 0.5,
           .clip_norm = 0.7,
           .accumulate = 2,
           .clip_previous = true}},
    {"sgd", "--precision fp32 --optimizer sgd,lr=0.1", "........",
     .u = {.lr = 0.1}},
    {"sgd_momentum_and_decay",
     "--precision fp32 --optimizer sgd,lr=0.1,momentum=0.9,weight_decay=0.2",
     "n.........", .u = {.lr = 0.1, .momentum = 0.9, .decay = {0.2, 0.2}}},
    {"sgd_nesterov",
     "--precision fp32 --optimizer "
     "sgd,lr=0.1,momentum=0.8,nesterov,weight_decay=0.05",
     "...n.......",
     .u =
         {.lr = 0.1, .momentum = 0.8, .nesterov = true, .decay = {0.05, 0.05}}},
    {"clip_norm_is_capped_at_one",
     "--precision fp32 --optimizer sgd,lr=0.1 --clip-norm 1", "..........",
     .u = {.lr = 0.1, .clip_norm = 1}},
    {"clip_norm_adds_its_epsilon",
     "--precision fp32 --optimizer sgd,lr=10000 --clip-norm 0.000004",
     "..........", .u = {.lr = 1e4, .clip_norm = 4e-6}, .size = 1e-5},
    {"clip_norm_is_in_unscaled_units",
     "--precision fp16 --loss-scale static=512 --optimizer sgd,lr=0.1 "
     "--clip-norm 1",
     "....o.....", .u = {.lr = 0.1, .clip_norm = 1, .init = 512}},
    {"clip_value",
     "--precision fp16 --loss-scale static=64 --optimizer "
     "sgd,lr=0.1,momentum=0.5 --clip-value 0.3",
     "..........",
     .u = {.lr = 0.1, .momentum = 0.5, .clip_value = 0.3, .init = 64}},
    {"adam_adds_its_decay_to_the_gradient",
     "--precision fp32 --optimizer "
     "adam,lr=0.05,beta1=0.8,beta2=0.95,eps=0.01,weight_decay=0.3",
     "..n........",
     .u = {.kind = ADAM,
           .lr = 0.05,
           .beta1 = 0.8,
           .beta2 = 0.95,
           .eps = 0.01,
           .decay = {0.3, 0.3}}},
    {"adamw_shrinks_the_parameter",
     "--precision fp32 --optimizer "
     "adamw,lr=0.05,beta1=0.8,beta2=0.95,eps=0.01,weight_decay=0.3",
     "..n........",
     .u = {.kind = ADAMW,
           .lr = 0.05,
           .beta1 = 0.8,
           .beta2 = 0.95,
           .eps = 0.01,
           .decay = {0.3, 0.3}}},
    {"adamw_by_default", "--precision bf16", "..........",
     .u = {.kind = ADAMW,
           .lr = 1e-3,
           .beta1 = 0.9,
           .beta2 = 0.999,
           .eps = 1e-8,
           .decay = {0.01, 0.01}}},
    {"groups_of_sgd",
     "--precision fp32 --optimizer sgd,lr=0.1,momentum=0.9,weight_decay=0.1 "
     "--param-group '*,weight_decay=0.5,lr_scale=3' "
     "--param-group b,lr_scale=0.25",
     "..........",
     .u = {.lr = 0.1,
           .momentum = 0.9,
           .decay = {0.5, 0.5},
           .lr_scale = {3, 0.25}}},
    {"groups_of_adamw",
     "--precision fp32 --optimizer adamw,lr=0.05,weight_decay=0.1 "
     "--param-group b,lr_scale=0.25,weight_decay=0.8",
     "..........",
     .u = {.kind = ADAMW,
           .lr = 0.05,
           .beta1 = 0.9,
           .beta2 = 0.999,
           .eps = 1e-8,
           .decay = {0.1, 0.8},
           .lr_scale = {1, 0.25}}},
    {"groups_of_adam",
     "--precision fp32 --optimizer adam,lr=0.05 "
     "--param-group a,lr_scale=2,weight_decay=0.4",
     "..........",
     .u = {.kind = ADAM,
           .lr = 0.05,
           .beta1 = 0.9,
           .beta2 = 0.999,
           .eps = 1e-8,
           .decay = {0.4, 0},
           .lr_scale = {2, 1}}},
    {"warmup_and_cosine_count_successful_steps",
     "--precision fp16 --optimizer sgd,lr=0.2 "
     "--lr-schedule cosine,warmup=3,total=9,min=0.02",
     ".o..no.........",
     .u = {.lr = 0.2,
           .schedule = COSINE,
           .warmup = 3,
           .total = 9,
           .min = 0.02,
           .init = 65536,
           .growth = 2,
           .backoff = 0.5,
           .scale_min = 1,
           .scale_max = 16777216,
           .interval = 2000,
           .hysteresis = 1}},
    {"constant_after_its_warmup",
     "--precision fp32 --optimizer sgd,lr=0.2 --lr-schedule constant,warmup=4",
     "..n.......", .u = {.lr = 0.2, .warmup = 4}},
    {"linear_from_a_new_rate",
     "--precision fp32 --optimizer sgd,lr=0.2 "
     "--lr-schedule linear,warmup=2,total=12,min=0.01",
     "..n............",
     .u =
         {.lr = 0.2, .schedule = LINEAR, .warmup = 2, .total = 12, .min = 0.01},
     .new_lr = 0.05},
    {"steps_begin_after_the_warmup",
     "--precision fp32 --optimizer sgd,lr=0.2 "
     "--lr-schedule step,warmup=2,every=3,gamma=0.3",
     "............",
     .u = {.lr = 0.2, .schedule = STEP, .warmup = 2, .every = 3, .gamma = 0.3}},
    {"the_scale_has_hysteresis_floor_and_cap",
     "--precision fp16 --optimizer sgd,lr=0.1 --loss-scale "
     "dynamic,init=1024,growth=4,backoff=0.125,interval=3,min=100,max=20000,"
     "hysteresis=2",
     "..o.o.o.........oo.oooo...ooo.................",
     .u = {.lr = 0.1,
           .init = 1024,
           .growth = 4,
           .backoff = 0.125,
           .scale_min = 100,
           .scale_max = 20000,
           .interval = 3,
           .hysteresis = 2}},
    {"the_scale_as_in_pytorch",
     "--precision fp16 --optimizer sgd,lr=0.1 --loss-scale "
     "dynamic,init=16,interval=2,min=0,max=inf",
     "o..o..nn.oo...on......n..",
     .u = {.lr = 0.1,
           .init = 16,
           .growth = 2,
           .backoff = 0.5,
           .scale_max = INFINITY,
           .interval = 2,
           .hysteresis = 1,
           .blames_loss = true}},
    {"the_scale_by_factors_that_f32_rounds",
     "--precision fp16 --optimizer sgd,lr=0.1 --loss-scale "
     "dynamic,init=16,growth=1.1,backoff=0.9,interval=2,min=0,max=inf",
     "o..o..o..oo...o.....o..o....",
     .u = {.lr = 0.1,
           .init = 16,
           .growth = 1.1,
           .backoff = 0.9,
           .scale_max = INFINITY,
           .interval = 2,
           .hysteresis = 1,
           .blames_loss = true}},
    {"the_scale_with_a_cap_alone_keeps_after_a_bad_loss",
     "--precision fp16 --optimizer sgd,lr=0.1 --loss-scale "
     "dynamic,init=16,interval=2,min=0,max=1e9",
     "o..n.no.....n...",
     .u = {.lr = 0.1,
           .init = 16,
           .growth = 2,
           .backoff = 0.5,
           .scale_max = 1e9,
           .interval = 2,
           .hysteresis = 1}},
    {"accumulation_averages_and_clips_once",
     "--precision fp32 --accumulate 3 --clip-norm 0.8 "
     "--optimizer sgd,lr=0.1,momentum=0.9",
     "......n..............",
     .u = {.lr = 0.1, .momentum = 0.9, .clip_norm = 0.8, .accumulate = 3}},
    {"an_overflow_spoils_its_window_only",
     "--precision fp16 --accumulate 3 --optimizer sgd,lr=0.1 --loss-scale "
     "dynamic,init=256,interval=2",
     "...o.....o.......oo..........",
     .u = {.lr = 0.1,
           .accumulate = 3,
           .init = 256,
           .growth = 2,
           .backoff = 0.5,
           .scale_min = 1,
           .scale_max = 16777216,
           .interval = 2,
           .hysteresis = 1}},
};

/* ---- the two side by side ------------------------------------------------ */

typedef struct Feed {
    float x[NA], z[NB];
    ampc_input in[2];
} Feed;

/* Values in [-1, 1) times the rule's size, alternately smaller and larger. */
static void feed_fill(Feed *f, const Rule *r, int i) {
    static const double turn[] = {1, 0.05, 4, 0.4};
    uint64_t state = 77 + (uint64_t)i;
    float *all[] = {f->x, f->z};
    for (int k = 0; k < NPARAM; k++)
        for (int j = 0; j < count[k]; j++) {
            for (int n = 0; n < 3; n++)
                state = state * 6364136223846793005u + 1442695040888963407u;
            double u = (double)(state >> 40) / (1 << 23) - 1;
            all[k][j] = (float)(u * (r->size ? r->size : 1) * turn[i % 4]);
        }
    if (r->micro[i] == 'o') f->x[1] = 3e38f;
    if (r->micro[i] == 'n') f->z[0] = NAN;
    f->in[0] = ampc_in("x", f->x, sizeof f->x, AMPC_DTYPE_F32);
    f->in[1] = ampc_in("z", f->z, sizeof f->z, AMPC_DTYPE_F32);
}

static void oracle_feed(UpdateOracle *o, const Feed *f, char letter) {
    const float *all[] = {f->x, f->z};
    o->overflow |= letter == 'o';
    for (int k = 0; k < NPARAM; k++)
        for (int i = 0; i < count[k]; i++) {
            o->g[k][i] += (double)all[k][i];
            o->loss += (double)all[k][i] * o->p[k][i];
        }
}

static void check_tensor(const Compiled *c, ampc_session *s, const char *name,
                         const double *want, int n, int step) {
    float got[MAX_ELEMENTS];
    double largest = 0;
    read_var(c, s, name, got, (size_t)n * sizeof *got, AMPC_DTYPE_F32);
    for (int i = 0; i < n; i++) largest = fmax(largest, fabs(want[i]));
    for (int i = 0; i < n; i++)
        CHECK_MSG(fabs((double)got[i] - want[i]) <= TOL_UPDATE * largest,
                  "update %d: %s[%d] is %.9g, not %.9g", step, name, i,
                  (double)got[i], want[i]);
}

static void check_state(const Compiled *c, ampc_session *s,
                        const UpdateOracle *o) {
    char name[80];
    for (int k = 0; k < NPARAM; k++) {
        check_tensor(c, s, name_of[k], o->p[k], count[k], o->tried);
        if (o->r->kind == SGD && o->r->momentum == 0) continue;
        snprintf(name, sizeof name, "ampc.opt/%s/%s", name_of[k],
                 o->r->kind == SGD ? "momentum_buffer" : "exp_avg");
        check_tensor(c, s, name, o->m[k], count[k], o->tried);
        if (o->r->kind == SGD) continue;
        snprintf(name, sizeof name, "ampc.opt/%s/exp_avg_sq", name_of[k]);
        check_tensor(c, s, name, o->v[k], count[k], o->tried);
    }
}

/* Checks the metrics of a step; `o` has not been updated yet. */
static void check_metrics(const ampc_metrics *m, const UpdateOracle *o) {
    double loss = o->loss / update_windows(o->r);
    bool ok = isfinite(loss) && !o->overflow;
    CHECK_EQ_INT(m->updated, 1);
    CHECK_EQ_INT(m->applied, ok);
    CHECK_EQ_INT(m->step, o->step + ok);
    CHECK_EQ_INT(m->tried, o->tried + 1);
    CHECK_EQ_INT(m->skipped, o->skipped + !ok);
    CHECK_EQ_INT(m->bad_forward, o->bad_forward + !isfinite(loss));
    CHECK_NEAR(m->scale, o->scale, 0);
    CHECK_REL(m->lr, update_rate(o), 1e-7);
    if (isfinite(loss))
        CHECK_REL(m->loss, loss, 1e-5);
    else
        CHECK(isnan(m->loss));
    if (ok)
        CHECK_REL(m->grad_norm, update_norm(o), TOL_UPDATE);
    else
        CHECK(!isfinite(m->grad_norm));
}

/* Also as an output of the program. */
static void check_step_output(const Compiled *c, ampc_session *s,
                              const ampc_metrics *m) {
    int64_t step = -1;
    ampc_output out = ampc_out("ampc.step", &step, sizeof step, AMPC_DTYPE_I64);
    CHECK_MSG(c->api->read_output(s, "ampc.step", &out) == AMPC_OK, "%s",
              c->api->error(s));
    CHECK_EQ_INT(step, m->step);
}

static void run(void *arg) {
    const Rule *r = arg;
    char options[512];
    snprintf(options, sizeof options, "%s --target cpu:x86-64-v2", r->options);
    Compiled c = compile_text(model, options);
    ampc_session *s = open_threads(&c, 1);
    UpdateOracle o;
    update_begin(&o, &r->u);
    o.nparam = NPARAM;
    memcpy(o.count, count, sizeof count);
    for (int k = 0; k < NPARAM; k++)
        memcpy(o.p[k], initial[k], sizeof *initial);
    int n = (int)strlen(r->micro), window = update_windows(&r->u);
    for (int i = 0; i < n / window * window; i++) {
        Feed f;
        if (r->new_lr && i == n / 2) {
            REQUIRE(!c.api->set_hyper(s, "lr", r->new_lr));
            o.lr = r->new_lr;
        }
        feed_fill(&f, r, i);
        oracle_feed(&o, &f, r->micro[i]);
        ampc_metrics m = step_ok(&c, s, f.in, 2);
        if ((i + 1) % window) {
            CHECK_EQ_INT(m.updated, 0);
            CHECK_EQ_INT(m.tried, o.tried);
        } else {
            check_metrics(&m, &o);
            check_step_output(&c, s, &m);
            update_step(&o);
        }
        check_state(&c, s, &o);
    }
    CHECK(o.step > 4);
    c.api->close(s);
    compiled_close(&c);
}

/* Many gradients, each too large to be squared in f32: the step reports the
   norm and is clipped, not skipped. */
TEST_CASE(optimizer, norms_of_huge_gradients) {
    enum { N = 40000 };
    const double size = 1e22;
    static float x[N], a[N];
    Compiled c = compile_text(
        "graph forward(%x: f32[40000]) {\n  param %a: f32[40000] = 0\n"
        "  %xa = mul %x, %a : f32[40000]\n"
        "  %loss = reduce_sum %xa {axes=[0], keepdims=0} : f32[]\n"
        "  return %loss\n}\n",
        "--precision fp32 --target cpu:x86-64-v2 --optimizer sgd,lr=1 "
        "--clip-norm 1");
    ampc_session *s = open_threads(&c, 1);
    for (int i = 0; i < N; i++) x[i] = (float)(i % 2 ? size : -size);
    ampc_input in = ampc_in("x", x, sizeof x, AMPC_DTYPE_F32);
    ampc_metrics m = step_ok(&c, s, &in, 1);
    CHECK_EQ_INT(m.applied, 1);
    CHECK_REL(m.grad_norm, size * sqrt(N), TOL_UPDATE);
    read_var(&c, s, "a", a, sizeof a, AMPC_DTYPE_F32);
    for (int i = 0; i < N; i += 1001)
        CHECK_REL(a[i], (i % 2 ? -1 : 1) / sqrt(N), TOL_UPDATE);
    c.api->close(s);
    compiled_close(&c);
}

static void add_rules(void) {
    for (size_t i = 0; i < sizeof rules / sizeof *rules; i++)
        harness_register("optimizer", rules[i].name, run, (void *)&rules[i]);
}

TEST_REGISTRAR(add_rules);
