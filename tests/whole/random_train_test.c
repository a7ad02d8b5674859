/* random_train_test.c: random graphs that train, under random options.

   A model is several random graphs with parameters
   (tests/support/random_graph.h) whose losses are added up; options, data and
   numbers of threads are random, too.  In fp32 each step has an oracle of its
   own: gradients of the model's text in double by the interpreter, held against
   differences of the loss, then PyTorch's formulas of the update
   (tests/support/update_rule.h).  In 16 bits the programs, as they are before
   targets part, are interpreted with every value rounded to its type: what
   follows must compute just that.  A run that stops and resumes has the bits of
   one that does not.                                  */
#define _GNU_SOURCE
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/cuda_gpu.h"
#include "tests/support/parts.h"
#include "tests/support/random_graph.h"
#include "tests/support/update_rule.h"
#include "tests/tolerance.h"

enum { PARTS = 5, NODES = 16, STEPS = 5, STOP = 2, MOST_INPUTS = 4 * PARTS };

/* ---- making models ------------------------------------------------------- */

typedef struct Model Model;

/* One of the graphs: as part of the module, and alone for the oracle. */
typedef struct Part {
    Model *model;
    int number, first; /* of its parameters in the model's */
    int nparam;
    Module *alone; /* whose parameters are inputs behind the data */
    Graph *grads;  /* its gradients */
} Part;

struct Model {
    Arena *a;
    Module *m;
    const char *text;
    Part part[PARTS];
    Str name[UPDATE_PARAMS];
    TypeId type[UPDATE_PARAMS];
    bool trains[UPDATE_PARAMS]; /* the loss depends on it */
    int nparam;
    UpdateTensors initial;
    Str input[MOST_INPUTS];
    TypeId input_type[MOST_INPUTS];
    int ninput;
};

static ValueId fresh_param(RandomGraph *p, int rank, const int64_t *dim) {
    Part *part = p->ctx;
    Model *m = part->model;
    int k = part->first + part->nparam++;
    TypeId t = type_make(DT_F32, rank, dim);
    int n = (int)type_count(type_get(t));
    Str name = internf("p%d.%d", part->number, k);
    if (k >= UPDATE_PARAMS || n > UPDATE_ELEMENTS)
        FAIL("a parameter %d of %d elements", k, n);
    m->name[k] = name;
    m->type[k] = t;
    if (part->alone) return graph_input(p->b.g, name, t);
    int var = module_var(m->m, VAR_PARAM, name, t, NULL, 0);
    m->m->vars.data[var].init_text = internf("normal(%d, 0.5)", k);
    return graph_var(p->b.g, var);
}

static void add_input(RandomGraph *p, int rank, const int64_t *dim) {
    Part *part = p->ctx;
    Model *m = part->model;
    Str name = internf("x%d.%d", part->number, p->n);
    TypeId t = type_make(DT_F32, rank, dim);
    random_keep(p, graph_input(p->b.g, name, t));
    if (part->alone) return;
    m->input[m->ninput] = name;
    m->input_type[m->ninput++] = t;
}

static ValueId mean_of(Builder *b, ValueId v) {
    int64_t axes[MAX_RANK];
    int rank = value_type(b->g, v)->rank;
    for (int i = 0; i < rank; i++) axes[i] = i;
    return b_reduce(b, OP_REDUCE_MEAN, v, axes, rank, false, DT_DEFAULT);
}

/* Means of what nobody reads, and of some squares. */
static ValueId loss_of(RandomGraph *p, Arena *a) {
    ValueId loss = NO_VALUE;
    int *uses = graph_use_counts(p->b.g, a);
    for (int i = p->nleaf; i < p->n; i++) {
        ValueId v = p->v[i];
        if (uses[v.i] && random_below(6)) continue;
        if (random_below(2)) v = b2(&p->b, OP_MUL, v, v, DT_DEFAULT);
        v = mean_of(&p->b, v);
        loss = loss.i ? b2(&p->b, OP_ADD, loss, v, DT_DEFAULT) : v;
    }
    return loss;
}

static int elements(const Model *m, int param) {
    return (int)type_count(type_get(m->type[param]));
}

static void read_initial(Model *m) {
    StrBuf text = {0};
    Diag d = {0};
    Module *read;
    print_module(m->m, &text);
    m->text = arena_printf(m->a, "%s", text.data);
    if (parse_module(m->a, &d, "random", text.data, text.len, &read) != OK)
        FAIL("%s", d.text.data);
    for (int k = 0; k < m->nparam; k++) {
        const Var *v = &read->vars.data[module_find_var(read, m->name[k])];
        const Tensor *t = var_initial(m->a, v);
        for (int i = 0; i < elements(m, k); i++)
            m->initial[k][i] = tensor_get(t, i);
    }
    sb_free(&text);
}

/* The same numbers are drawn whichever graph it is built in. */
static ValueId build_part(Part *part, Graph *g, uint64_t seed) {
    Model *m = part->model;
    RandomGraph p = {.b = {.g = g}, .param = fresh_param, .ctx = part};
    random_seed(seed * 1000 + (uint64_t)part->number);
    part->nparam = 0;
    int64_t r = 1 + random_below(7), c = 1 + random_below(19);
    int64_t b = 1 + random_below(3);
    add_input(&p, 2, (int64_t[]){r, c});
    add_input(&p, 1, (int64_t[]){c});
    add_input(&p, 2, (int64_t[]){r, 1});
    add_input(&p, 3, (int64_t[]){b, r, c});
    p.nleaf = p.n;
    random_keep(&p, fresh_param(&p, 1, (int64_t[]){c}));
    random_keep(&p, fresh_param(&p, 2, (int64_t[]){r, c}));
    random_nodes(&p, p.n + NODES);
    return loss_of(&p, m->a);
}

/* The parameter whose gradient that is; -1: an input's. */
static int gradient_of(const Part *p, Str output) {
    const char *name = output + strlen("grad.");
    int k = p->first;
    if (*name != 'p') return -1;
    while (strcmp(p->model->name[k], name) != 0) k++;
    return k;
}

static void find_gradients(Part *p) {
    Diag d = {0};
    p->grads = graph_clone(p->alone->graphs.data[0], "gradients");
    if (parts_to_gradients(p->grads, &d) != OK) FAIL("%s", d.text.data);
    for (int i = 0; i < p->grads->outputs.len; i++) {
        int k = gradient_of(p, p->grads->outputs.data[i].name);
        if (k >= 0) p->model->trains[k] = true;
    }
}

static void model_make(Model *m, uint64_t seed) {
    memset(m, 0, sizeof *m);
    m->a = arena_new();
    m->m = module_new(m->a, "random");
    Graph *g = graph_new(m->m, "forward");
    Builder b = {.g = g};
    ValueId loss = NO_VALUE;
    for (int i = 0; i < PARTS; i++) {
        Part *p = &m->part[i];
        *p = (Part){.model = m, .number = i, .first = m->nparam};
        ValueId v = build_part(p, g, seed);
        loss = loss.i ? b2(&b, OP_ADD, loss, v, DT_DEFAULT) : v;
        p->alone = module_new(m->a, "part");
        Graph *alone = graph_new(p->alone, "part");
        graph_add_output(alone, intern("loss"), build_part(p, alone, seed));
        find_gradients(p);
        m->nparam += p->nparam;
    }
    graph_add_output(g, intern("loss"), loss);
    read_initial(m);
}

/* ---- data ---------------------------------------------------------------- */

static float *fill_input(const Model *m, int input, int batch, size_t *bytes) {
    const Type *t = type_get(m->input_type[input]);
    int64_t n = type_count(t);
    float *x = arena_alloc(m->a, (size_t)n * 4 + 4);
    uint64_t s = 77 + (uint64_t)(batch * 101 + input);
    for (int64_t i = 0; i < n; i++) {
        s = s * 6364136223846793005u + 1442695040888963407u;
        x[i] = (float)((double)(s >> 40) / (1 << 22) - 2);
    }
    *bytes = (size_t)n * 4;
    return x;
}

typedef struct Batch {
    ampc_input in[MOST_INPUTS];
} Batch;

static Batch batch_make(const Model *m, int number) {
    Batch b;
    for (int i = 0; i < m->ninput; i++) {
        size_t bytes;
        float *x = fill_input(m, i, number, &bytes);
        b.in[i] = ampc_in(m->input[i], x, bytes, AMPC_DTYPE_F32);
    }
    return b;
}

static void bind_numbers(Arena *a, Evaluator *e, ValueId v, TypeId type,
                         const double *p, const float *x) {
    EvalTensor *t = eval_tensor_new(a, type);
    int64_t n = type_count(type_get(type));
    for (int64_t i = 0; i < n; i++) t->f[i] = p ? p[i] : (double)x[i];
    eval_bind(e, v, t);
}

/* ---- the oracle in double ------------------------------------------------ */

static Evaluator *run_part(const Part *p, Arena *a, const Graph *g,
                           const UpdateOracle *o, const Batch *b) {
    const Model *m = p->model;
    Evaluator *e = eval_new(g, a, EVAL_EXACT);
    Diag d = {0};
    for (int i = 0, k = p->first, x = 0; i < g->inputs.len; i++) {
        const Value *v = value_get(g, g->inputs.data[i]);
        bool param = v->name[0] == 'p';
        while (!param && strcmp(m->input[x], v->name) != 0) x++;
        bind_numbers(a, e, g->inputs.data[i], v->type, param ? o->p[k++] : NULL,
                     param ? NULL : b->in[x].data);
    }
    if (eval_run(e, &d) != OK) FAIL("%s", d.text.data);
    return e;
}

static double part_loss(const Part *p, const UpdateOracle *o, const Batch *b) {
    Arena *a = arena_new();
    const Graph *g = p->alone->graphs.data[0];
    Evaluator *e = run_part(p, a, g, o, b);
    double loss = eval_get(e, g->outputs.data[0].value)->f[0];
    arena_free(a);
    return loss;
}

/* The loss where every parameter is moved by h times random numbers. */
static double loss_beside(const Part *p, const UpdateOracle *o, const Batch *b,
                          double h) {
    static UpdateOracle moved;
    moved = *o;
    random_seed((uint64_t)o->tried + 5);
    for (int k = p->first; k < p->first + p->nparam; k++)
        for (int i = 0; i < elements(p->model, k); i++)
            moved.p[k][i] += h * random_number();
    return part_loss(p, &moved, b);
}

/* Adds the part's gradient, which is checked in one direction. */
static void add_gradient(const Part *p, UpdateOracle *o, const Batch *b) {
    const double h = 1e-6;
    const EvalTensor *grad[UPDATE_PARAMS] = {0};
    double slope = 0, size = 1;
    Arena *a = arena_new();
    Evaluator *e = run_part(p, a, p->grads, o, b);
    for (int i = 0; i < p->grads->outputs.len; i++) {
        const Output *out = &p->grads->outputs.data[i];
        int k = gradient_of(p, out->name);
        if (k >= 0) grad[k] = eval_get(e, out->value);
    }
    random_seed((uint64_t)o->tried + 5);
    for (int k = p->first; k < p->first + p->nparam; k++)
        for (int i = 0; i < elements(p->model, k); i++) {
            double v = random_number();
            if (!grad[k]) continue;
            double x = grad[k]->f[i] / parts_weight(0);
            o->g[k][i] += x;
            slope += x * v;
            size += fabs(x * v);
        }
    double differ = loss_beside(p, o, b, h) - loss_beside(p, o, b, -h);
    CHECK_MSG(fabs(differ / (2 * h) - slope) <= TOL_SLOPE * size,
              "part %d: slope %.9g, differences say %.9g", p->number, slope,
              differ / (2 * h));
    arena_free(a);
}

static void oracle_feed(const Model *m, UpdateOracle *o, const Batch *b) {
    for (int i = 0; i < PARTS; i++) {
        o->loss += part_loss(&m->part[i], o, b);
        add_gradient(&m->part[i], o, b);
    }
}

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
    static const char *const name[] = {"", "cosine", "linear", "step"};
    UpdateRule *u = &o->u;
    u->schedule = (UpdateDecay)random_below(4);
    if (u->schedule == CONSTANT) return;
    u->warmup = random_below(3);
    say(o, " --lr-schedule %s,warmup=%g", name[u->schedule], u->warmup);
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

/* What changes how a step is computed, and none of its numbers. */
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
        Batch b = batch_make(r->m, step * windows + i);
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
        int n = elements(m, k);
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

static void begin(const Run *r, UpdateOracle *o) {
    update_begin(o, &r->o->u);
    o->nparam = r->m->nparam;
    memcpy(o->p, r->m->initial, sizeof o->p);
    for (int k = 0; k < o->nparam; k++)
        o->count[k] = r->m->trains[k] ? elements(r->m, k) : 0;
}

static void train(Run *r) {
    static UpdateOracle o;
    const char *path = test_tmp("stopped");
    int windows = update_windows(&r->o->u);
    begin(r, &o);
    r->s = open_some(r, 3);
    check_tensors(r, &o, 0, 0);
    for (int step = 0; step < STEPS; step++) {
        if (step == STOP && r->c->api->save(r->s, path))
            FAIL("save: %s", r->c->api->error(r->s));
        for (int i = 0; i < windows; i++) {
            Batch b = batch_make(r->m, step * windows + i);
            oracle_feed(r->m, &o, &b);
        }
        ampc_metrics m = run_step(r, r->s, step);
        check_metrics(r, &m, &o, TOL_RANDOM_F32);
        update_step(&o);
        check_tensors(r, &o, TOL_RANDOM_F32, step + 1);
    }
    check_resumed(r, path);
    r->c->api->close(r->s);
}

static void check_f32(uint64_t seed, bool gpu) {
    static Model m;
    static Options o;
    model_make(&m, seed);
    options_make(&o, &m, "fp32", seed);
    char all[900];
    snprintf(all, sizeof all, "%s%s", o.text,
             gpu ? "" : " --target cpu:x86-64-v2");
    Compiled c = gpu ? compile_text_cuda(m.text, all, "cuda:sm_80")
                     : compile_text(m.text, all);
    if (gpu) gpu_for(&c, seed);
    Run r = {&c, &m, &o, NULL, gpu};
    train(&r);
    if (gpu) gpu_clean("random training");
    compiled_close(&c);
    arena_free(m.a);
}

static void for_seeds(void (*check)(uint64_t seed, bool gpu), bool gpu, int n) {
    uint64_t many = test_slow() ? 40 : (uint64_t)n;
    for (uint64_t seed = 1; seed <= many; seed++) check(seed, gpu);
}

TEST_CASE(random_training, fp32_on_the_cpu) { for_seeds(check_f32, false, 4); }

TEST_CASE(random_training, fp32_on_the_gpu) { for_seeds(check_f32, true, 2); }
